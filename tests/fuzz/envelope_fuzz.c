/* envelope_fuzz.c - sealed messages that somebody between two ranks treats as the input says, and any bytes
 * at all: what opens is what was sealed, in the order in which it was; nothing else opens, and nothing beyond
 * the packet is read.
 *
 * The input: a set-up byte, then orders. Each takes the next message that was sealed, an old one or bytes of
 * its own, changes it perhaps, cuts or pads it perhaps, and gives it to the opener. */
#include "fuzz.h"
#include "handshake.h"
#include <keel/memory.h>

enum { MESSAGES = 12, PAYLOAD_MAX = 700, PACKET_MAX = sizeof(struct keel_envelope) + PAYLOAD_MAX };

struct packet {
    size_t bytes;
    uint8_t data[PACKET_MAX];
    struct keel_message message;
    uint8_t payload[PAYLOAD_MAX]; /* as it was before */
};

static struct packet packets[MESSAGES];
static const uint8_t key[KEEL_KEY_BYTES] = "nobody between knows these bytes";

/* A heap copy of exactly these bytes, where a sanitizer sees each step beyond. */
static uint8_t *exact(const uint8_t *data, size_t bytes)
{
    uint8_t *copy;
    KEEL_ASSERT(keel_alloc(1, bytes > 0 ? bytes : 1, &copy) == KEEL_OK);
    memcpy(copy, data, bytes);
    return copy;
}

static void seal_all(struct keel_cipher *sealer, struct fuzz_input *in)
{
    for (uint32_t k = 0; k < MESSAGES; k++) {
        struct packet *packet = &packets[k];
        uint32_t bytes = fuzz_take_u16(in) % (PAYLOAD_MAX + 1);
        bool whole = fuzz_take_u8(in) % 2 == 0;
        packet->message = (struct keel_message){
            .magic = KEEL_MESSAGE_MAGIC, .kind = fuzz_take_u8(in), .sequence = k, .bytes = bytes};
        packet->bytes = sizeof(struct keel_envelope) + bytes;
        uint8_t *space;
        KEEL_ASSERT(keel_alloc(1, packet->bytes, &space) == KEEL_OK);
        memset(packet->payload, (int)(k * 37 + 1), bytes);
        memcpy(space + sizeof(struct keel_envelope), packet->payload, bytes);
        keel_cipher_seal(sealer, (struct keel_envelope *)(void *)space, &packet->message,
                         space + sizeof(struct keel_envelope), whole);
        keel_cipher_advance(sealer);
        memcpy(packet->data, space, packet->bytes);
        keel_free(space);
    }
}

/* Returns whether it opened. `next`: the message whose turn it is. */
static bool give(struct keel_cipher *opener, const uint8_t *data, size_t bytes, uint32_t next)
{
    uint8_t *copy = exact(data, bytes);
    const struct packet *packet = next < MESSAGES ? &packets[next] : NULL;
    bool honest = packet != NULL && bytes == packet->bytes && memcmp(data, packet->data, packet->bytes) == 0;
    bool opened = keel_cipher_open(opener, (struct keel_envelope *)(void *)copy, bytes);
    KEEL_ASSERT(opened == honest);
    if (opened) {
        const struct keel_envelope *envelope = (const struct keel_envelope *)(const void *)copy;
        KEEL_ASSERT(memcmp(&envelope->message, &packet->message, sizeof packet->message) == 0);
        KEEL_ASSERT(memcmp(copy + sizeof *envelope, packet->payload, packet->message.bytes) == 0);
    }
    keel_free(copy);
    return opened;
}

static void obey(struct keel_cipher *opener, struct fuzz_input *in, uint32_t *next)
{
    static uint8_t made[PACKET_MAX];
    uint8_t order = fuzz_take_u8(in);
    uint32_t which = order % 2 == 0 ? *next : fuzz_take_u8(in) % MESSAGES;
    size_t bytes = 0;
    if (order % 16 == 15) {
        for (bytes = 0; bytes < PACKET_MAX && in->at < in->bytes && bytes < order; bytes++)
            made[bytes] = fuzz_take_u8(in);
    } else if (which < MESSAGES) {
        bytes = packets[which].bytes;
        memcpy(made, packets[which].data, bytes);
    }
    if (order % 8 >= 4 && bytes > 0)
        made[fuzz_take_u16(in) % bytes] ^= fuzz_take_u8(in);
    if (order >= 192)
        bytes = fuzz_take_u16(in) % (PACKET_MAX + 1);
    *next += give(opener, made, bytes, *next);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    struct keel_cipher *sealer, *opener;
    uint32_t next = 0;
    KEEL_ASSERT(keel_handshake_init() == KEEL_OK);
    enum keel_cipher_kind kind = fuzz_take_u8(&in) % 2 == 0 ? KEEL_CIPHER_CHACHA : keel_cipher_best();
    KEEL_ASSERT(keel_cipher_create(kind, key, &sealer) == KEEL_OK);
    KEEL_ASSERT(keel_cipher_create(kind, key, &opener) == KEEL_OK);
    seal_all(sealer, &in);
    for (uint32_t orders = 0; in.at < in.bytes && orders < 100; orders++)
        obey(opener, &in, &next);
    keel_cipher_free(sealer);
    keel_cipher_free(opener);
    return 0;
}
