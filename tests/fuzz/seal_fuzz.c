/* seal_fuzz.c - any sequence of datagrams, true, repeated, late, altered or invented: what opens was sealed
 * for this process, is what was sealed, and never opened before.
 *
 * The input is a list of orders, each a byte and what it takes; see `obey`. */
#include "fuzz.h"
#include "seal.h"
#include <sodium.h>

enum { RUN = 77, RECEIVER = 0, SENDERS = 3, KEPT = 64, TEXT_BYTES = 32 };

struct kept {
    uint8_t datagram[KEEL_DATAGRAM_BYTES], text[TEXT_BYTES];
    uint32_t bytes, text_bytes;
    uint16_t from;
    bool for_us, opened;
};

static struct world {
    struct keel_seal receiver, senders[SENDERS];
    struct kept kept[KEPT];
    uint32_t kept_count;
} world;

/* Each input has its own key: else what one of them shows of a datagram, the next could deliver. */
static void begin(const uint8_t *data, size_t bytes)
{
    uint8_t key[KEEL_SEAL_KEY_BYTES], other_key[KEEL_SEAL_KEY_BYTES] = {9};
    memset(&world, 0, sizeof world);
    KEEL_ASSERT(crypto_generichash(key, sizeof key, data, bytes, NULL, 0) == 0);
    keel_seal_init(&world.receiver, key, RUN, RECEIVER, 1);
    for (uint16_t i = 0; i < SENDERS; i++) {
        /* The last one is a stranger, who guesses the key. */
        keel_seal_init(&world.senders[i], i + 1 < SENDERS ? key : other_key, RUN, (uint16_t)(i + 1), 1);
        world.senders[i].boot = 1000 + i;
    }
}

static void seal(struct fuzz_input *in)
{
    if (world.kept_count == KEPT)
        return;
    struct kept *kept = &world.kept[world.kept_count++];
    uint32_t sender = fuzz_take_u8(in) % SENDERS;
    struct keel_seal_label label = {.to = fuzz_take_u8(in) % 8 == 7 ? 5 : RECEIVER, .channel = 3};
    label.tag = fuzz_take_u8(in) % 8 == 7 ? 5 : keel_seal_tag(&world.receiver);
    kept->text_bytes = fuzz_take_u8(in) % (TEXT_BYTES + 1);
    for (uint32_t i = 0; i < kept->text_bytes; i++)
        kept->text[i] = (uint8_t)(world.kept_count + i);
    kept->from = world.senders[sender].node;
    kept->for_us =
        label.to == RECEIVER && label.tag == keel_seal_tag(&world.receiver) && sender + 1 < SENDERS;
    kept->bytes =
        keel_seal_wrap(&world.senders[sender], &label, kept->text, kept->text_bytes, kept->datagram);
}

static enum keel_seal_verdict open_bytes(const uint8_t *data, uint32_t bytes, struct keel_seal_label *label,
                                         uint8_t *out, uint32_t *out_bytes)
{
    enum keel_seal_verdict verdict = keel_seal_open(&world.receiver, data, bytes, label, out, out_bytes);
    KEEL_ASSERT((unsigned)verdict < KEEL_SEAL_VERDICTS && keel_seal_verdict_text(verdict)[0] != '\0');
    return verdict;
}

static void deliver(struct kept *kept)
{
    static uint8_t out[KEEL_MESSAGE_BYTES];
    struct keel_seal_label label;
    uint32_t out_bytes = 0;
    if (open_bytes(kept->datagram, kept->bytes, &label, out, &out_bytes) != KEEL_SEAL_OPENED)
        return;
    KEEL_ASSERT(kept->for_us && !kept->opened);
    KEEL_ASSERT(label.from == kept->from && label.to == RECEIVER && label.channel == 3);
    KEEL_ASSERT(out_bytes == kept->text_bytes && memcmp(out, kept->text, out_bytes) == 0);
    kept->opened = true;
}

/* A copy, of which one bit or the length is another. */
static void deliver_altered(const struct kept *kept, struct fuzz_input *in)
{
    static uint8_t copy[KEEL_DATAGRAM_BYTES + 1], out[KEEL_MESSAGE_BYTES];
    struct keel_seal_label label;
    uint32_t out_bytes, bytes = kept->bytes, at = fuzz_take_u16(in);
    memset(copy, 0, sizeof copy);
    memcpy(copy, kept->datagram, bytes);
    uint8_t bits = fuzz_take_u8(in);
    if (bits != 0)
        copy[at % bytes] ^= bits;
    else
        bytes = at % bytes;
    KEEL_ASSERT(open_bytes(copy, bytes, &label, out, &out_bytes) != KEEL_SEAL_OPENED);
}

static struct kept *find_kept(const uint8_t *data, uint32_t bytes)
{
    for (uint32_t i = 0; i < world.kept_count; i++)
        if (world.kept[i].bytes == bytes && memcmp(world.kept[i].datagram, data, bytes) == 0)
            return &world.kept[i];
    return NULL;
}

/* Bytes of the input behind a header that is right as far as anybody can know it; it may be one that was
 * sealed, in the end. */
static void deliver_invented(const struct kept *like, struct fuzz_input *in)
{
    static uint8_t datagram[KEEL_DATAGRAM_BYTES], out[KEEL_MESSAGE_BYTES];
    struct keel_seal_label label;
    uint32_t out_bytes, bytes = fuzz_take_u16(in) % 600, from = fuzz_take_u8(in) % KEEL_SEAL_HEAD_BYTES;
    memcpy(datagram, like->datagram, KEEL_SEAL_HEAD_BYTES);
    for (uint32_t i = from; i < bytes; i++)
        datagram[i] = fuzz_take_u8(in);
    struct kept *same = find_kept(datagram, bytes);
    if (same != NULL)
        deliver(same);
    else
        KEEL_ASSERT(open_bytes(datagram, bytes, &label, out, &out_bytes) != KEEL_SEAL_OPENED);
}

static void restart(struct fuzz_input *in)
{
    struct keel_seal *sender = &world.senders[fuzz_take_u8(in) % SENDERS];
    sender->incarnation += fuzz_take_u8(in) % 2;
    sender->boot += 100;
    sender->counter = 0;
}

static void obey(uint8_t order, struct fuzz_input *in)
{
    struct kept *kept = world.kept_count > 0 ? &world.kept[fuzz_take_u8(in) % world.kept_count] : NULL;
    switch (order % 6) {
    case 0:
        world.senders[fuzz_take_u8(in) % SENDERS].counter += fuzz_take_u16(in);
        break;
    case 1:
        restart(in);
        break;
    case 2:
        if (kept != NULL)
            deliver(kept);
        break;
    case 3:
        if (kept != NULL)
            deliver_altered(kept, in);
        break;
    case 4:
        if (kept != NULL)
            deliver_invented(kept, in);
        break;
    default:
        seal(in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    begin(data, bytes);
    while (in.at < in.bytes)
        obey(fuzz_take_u8(&in), &in);
    return 0;
}
