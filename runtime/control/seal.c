/* seal.c - seals and opens datagrams; remembers what it opened.
 *
 * Owns the header's layout, the nonces and the replay windows. Promises that a datagram opens at most
 * once and only where it was meant to. Sockets and addresses are mailbox.c's.
 *
 * Nonces: {run, boot, counter} of the sender. `run` and `boot` are random 64-bit numbers and the counter
 * never repeats within a process, so no nonce is used twice with one key, though the key outlives runs. */
#include "seal.h"

#include <sodium.h>
#include <stddef.h>
#include <string.h>

enum { SEAL_MAGIC = 0x4c45454b /* "KEEL" */, SEAL_VERSION = 1, WINDOW_BITS = 64 };

struct header {
    uint32_t magic;
    uint16_t version, channel;
    uint64_t run, boot, counter; /* together the nonce */
    uint16_t from, to;
    uint32_t incarnation;
    uint32_t label_version;
    uint32_t tag; /* of the receiver's process */
};
_Static_assert(sizeof(struct header) == KEEL_SEAL_HEAD_BYTES, "header");
_Static_assert(offsetof(struct header, run) == 8 && offsetof(struct header, from) == 32, "header");
_Static_assert(crypto_aead_xchacha20poly1305_ietf_NPUBBYTES == 24, "three numbers make a nonce");
_Static_assert(crypto_aead_xchacha20poly1305_ietf_ABYTES == KEEL_SEAL_TAG_BYTES, "tag");
_Static_assert(crypto_aead_xchacha20poly1305_ietf_KEYBYTES == KEEL_SEAL_KEY_BYTES, "key");

const char *keel_seal_verdict_text(enum keel_seal_verdict verdict)
{
    static const char *const texts[] = {
#define KEEL_SEAL_TEXT(name, text) text,
        KEEL_SEAL_TABLE(KEEL_SEAL_TEXT)
#undef KEEL_SEAL_TEXT
    };
    KEEL_ASSERT((unsigned)verdict < KEEL_SEAL_VERDICTS);
    return texts[verdict];
}

/* Its lower half is the tag, and 0 stands for none. */
static uint64_t draw_boot(void)
{
    uint64_t number = 0;
    while ((uint32_t)number == 0)
        randombytes_buf(&number, sizeof number);
    return number;
}

uint32_t keel_seal_tag(const struct keel_seal *seal)
{
    return seal->node == 0 ? 0 : (uint32_t)seal->boot;
}

uint32_t keel_seal_peer_tag(const struct keel_seal *seal, uint16_t node)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX);
    return node == 0 ? 0 : (uint32_t)seal->peers[node].boot;
}

void keel_seal_init(struct keel_seal *seal, const uint8_t key[KEEL_SEAL_KEY_BYTES], uint64_t run,
                    uint16_t node, uint32_t incarnation)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX && sodium_init() >= 0);
    *seal = (struct keel_seal){.run = run, .boot = draw_boot(), .node = node, .incarnation = incarnation};
    memcpy(seal->key, key, sizeof seal->key);
}

uint32_t keel_seal_wrap(struct keel_seal *seal, const struct keel_seal_label *label, const uint8_t *data,
                        uint32_t bytes, uint8_t out[KEEL_DATAGRAM_BYTES])
{
    KEEL_ASSERT(bytes <= KEEL_MESSAGE_BYTES && label->to < KEEL_NODES_MAX);
    const struct header header = {.magic = SEAL_MAGIC,
                                  .version = SEAL_VERSION,
                                  .channel = label->channel,
                                  .run = seal->run,
                                  .boot = seal->boot,
                                  .counter = ++seal->counter,
                                  .from = seal->node,
                                  .to = label->to,
                                  .incarnation = seal->incarnation,
                                  .label_version = label->version,
                                  .tag = label->tag};
    memcpy(out, &header, sizeof header);
    unsigned long long sealed;
    KEEL_ASSERT(crypto_aead_xchacha20poly1305_ietf_encrypt(
                    out + sizeof header, &sealed, data, bytes, out, sizeof header, NULL,
                    out + offsetof(struct header, run), seal->key) == 0);
    KEEL_ASSERT(sealed == bytes + KEEL_SEAL_TAG_BYTES);
    return (uint32_t)(sizeof header + sealed);
}

/* Is it new? Only for what was authenticated. */
static enum keel_seal_verdict check_fresh(const struct keel_seal_peer *peer, const struct header *header)
{
    if (peer->boot == 0 || header->incarnation > peer->incarnation)
        return KEEL_SEAL_OPENED;
    if (header->incarnation < peer->incarnation || header->boot != peer->boot)
        return KEEL_SEAL_REPLACED;
    if (header->counter > peer->highest)
        return KEEL_SEAL_OPENED;
    uint64_t age = peer->highest - header->counter;
    if (age >= WINDOW_BITS || (peer->window >> age & 1) != 0)
        return KEEL_SEAL_REPLAYED;
    return KEEL_SEAL_OPENED;
}

static void remember(struct keel_seal_peer *peer, const struct header *header)
{
    if (peer->boot != header->boot) { /* the first of its incarnation */
        *peer = (struct keel_seal_peer){.boot = header->boot,
                                        .highest = header->counter,
                                        .window = 1,
                                        .incarnation = header->incarnation};
        return;
    }
    if (header->counter <= peer->highest) {
        peer->window |= UINT64_C(1) << (peer->highest - header->counter);
        return;
    }
    uint64_t ahead = header->counter - peer->highest;
    peer->window = ahead >= WINDOW_BITS ? 1 : peer->window << ahead | 1;
    peer->highest = header->counter;
}

/* What the clear header alone tells. */
static enum keel_seal_verdict check_header(const struct keel_seal *seal, const struct header *header)
{
    if (header->magic != SEAL_MAGIC || header->version != SEAL_VERSION || header->from >= KEEL_NODES_MAX ||
        header->boot == 0)
        return KEEL_SEAL_GARBAGE;
    if (header->run != seal->run)
        return KEEL_SEAL_FOREIGN;
    if (header->to != seal->node || header->tag != keel_seal_tag(seal) || header->from == seal->node)
        return KEEL_SEAL_ASTRAY;
    return KEEL_SEAL_OPENED;
}

enum keel_seal_verdict keel_seal_open(struct keel_seal *seal, const uint8_t *datagram,
                                      uint32_t datagram_bytes, struct keel_seal_label *out_label,
                                      uint8_t *out, uint32_t *out_bytes)
{
    if (datagram_bytes < KEEL_SEAL_EXTRA_BYTES || datagram_bytes > KEEL_DATAGRAM_BYTES)
        return KEEL_SEAL_GARBAGE;
    struct header header;
    memcpy(&header, datagram, sizeof header);
    enum keel_seal_verdict verdict = check_header(seal, &header);
    if (verdict != KEEL_SEAL_OPENED)
        return verdict;
    unsigned long long bytes;
    if (crypto_aead_xchacha20poly1305_ietf_decrypt(out, &bytes, NULL, datagram + sizeof header,
                                                   datagram_bytes - sizeof header, datagram, sizeof header,
                                                   datagram + offsetof(struct header, run), seal->key) != 0)
        return KEEL_SEAL_FORGED;
    struct keel_seal_peer *peer = &seal->peers[header.from];
    verdict = check_fresh(peer, &header);
    if (verdict != KEEL_SEAL_OPENED)
        return verdict;
    remember(peer, &header);
    *out_label = (struct keel_seal_label){
        .from = header.from, .to = header.to, .channel = header.channel, .version = header.label_version};
    *out_bytes = (uint32_t)bytes;
    return KEEL_SEAL_OPENED;
}

void keel_seal_wipe(struct keel_seal *seal)
{
    sodium_memzero(seal, sizeof *seal);
}
