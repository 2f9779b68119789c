/* fabric_absent.c - in the place of `fabric/`, `rdm/`, the envelope and the cipher where Keel is built with
 * FABRIC=no: there is no provider, so that nothing is exposed and nothing needs sealing. Ranks of one host
 * share memory. */
#include "cipher.h"
#include "fabric.h"
#include "rdm.h"

#define ABSENT "libfabric: built with FABRIC=no, ranks of one host talk through shared memory alone"

const char *const keel_fabric_absent = ABSENT;

/* Whatever its name: keel_provider_lacks says why it is not used. */
static const struct keel_provider none = {.name = ""};

const struct keel_provider *keel_provider_find(const char *name)
{
    (void)name;
    return &none;
}

const char *keel_provider_lacks(const struct keel_provider *provider)
{
    (void)provider;
    return ABSENT "; use --carrier shared, or build with FABRIC=yes";
}

enum keel_drive keel_provider_drive(const struct keel_provider *provider)
{
    (void)provider;
    return KEEL_DRIVE_NONE;
}

enum keel_status keel_device_find(const char *provider, const char *node, struct keel_provider_info *out)
{
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, ABSENT "; %s%s takes a build with FABRIC=yes",
                     provider != NULL ? "provider " : "listening at ", provider != NULL ? provider : node);
}

enum keel_status keel_fabric_open(const struct keel_provider_info *device, bool seal_payload,
                                  struct keel_connection_backend **out)
{
    (void)seal_payload;
    (void)out;
    return keel_device_find(NULL, device->node, NULL);
}

enum keel_status keel_rdm_open(const struct keel_provider_info *device, bool seal_payload,
                               struct keel_connection_backend **out)
{
    return keel_fabric_open(device, seal_payload, out);
}

enum keel_cipher_kind keel_cipher_best(void)
{
    return KEEL_CIPHER_CHACHA;
}

enum keel_status keel_cipher_create(enum keel_cipher_kind kind, const uint8_t key[KEEL_KEY_BYTES],
                                    struct keel_cipher **out)
{
    (void)kind;
    (void)key;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, ABSENT);
}

void keel_cipher_free(struct keel_cipher *cipher)
{
    KEEL_ASSERT(cipher == NULL);
}
