/* tier_serve_fuzz.c - any messages to who serves a level: answered or refused, nothing left open, and no
 * more memory taken than the level may have.
 *
 * The input is messages; of each:
 *   0   op, and 128 for one that is not sealed
 *   1   handle (low bits), flags, run of another name (top bit)
 *   2   object: kind, step, set, member, one byte each
 *   6   offset and bytes, 16 bits each
 *   10  size of the payload, which follows */
#include "fuzz.h"
#include "tier_wire.h"
#include <keel/clock.h>
#include <keel/memory.h>

enum { CAPACITY_BYTES = 1 << 20, PAYLOAD_MAX = 256 };

struct client {
    struct fuzz_input in;
    uint32_t sent, answered;
};

static enum keel_status next_message(void *context, void *message, size_t capacity, size_t *out_bytes,
                                     uint64_t deadline_ns)
{
    struct client *client = context;
    struct fuzz_input *in = &client->in;
    struct keel_tier_message *out = message;
    (void)deadline_ns;
    KEEL_ASSERT(capacity == sizeof *out);
    if (in->at >= in->bytes)
        return keel_fail(KEEL_PEER_LOST, "the input has ended");
    uint32_t op = fuzz_take_u8(in), bits = fuzz_take_u8(in);
    keel_wire_begin(out, op & 0x7f, ++client->sent, bits & 0x80 ? "other" : "sample");
    struct keel_wire_header *header = &out->header;
    header->handle = bits & 0xf;
    header->flags = bits >> 4 & 3;
    header->object.kind = fuzz_take_u8(in) % 5;
    header->object.step = fuzz_take_u8(in) % 4;
    header->object.set = fuzz_take_u8(in);
    header->object.member = fuzz_take_u8(in);
    header->offset = fuzz_take_u16(in);
    header->bytes = fuzz_take_u16(in);
    header->payload_bytes = fuzz_take_u8(in);
    for (uint32_t i = 0; i < header->payload_bytes; i++)
        out->payload[i] = fuzz_take_u8(in);
    if ((header->op & 0x7f) == KEEL_WIRE_COMMIT) /* half of them of what was sent, as far as it was zeros */
        keel_format_digest(out->payload, header->payload_bytes, header->digest);
    *out_bytes = sizeof *header + header->payload_bytes;
    header->check = op & 0x80 ? bits : keel_format_check(out, *out_bytes);
    return KEEL_OK;
}

static enum keel_status take_answer(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    struct client *client = context;
    const struct keel_tier_message *answer = message;
    (void)deadline_ns;
    KEEL_ASSERT(bytes == sizeof answer->header + answer->header.payload_bytes);
    KEEL_ASSERT(answer->header.serial == client->sent && (answer->header.op & KEEL_WIRE_ANSWER) != 0);
    KEEL_ASSERT(answer->header.status < KEEL_STATUS_COUNT);
    client->answered++;
    return KEEL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct client client = {.in = {.data = data, .bytes = bytes}};
    struct keel_tier_link link = {.send = take_answer, .receive = next_message, .context = &client};
    struct keel_tier *level;
    uint64_t before_bytes = keel_memory_stats().live_bytes;
    KEEL_ASSERT(keel_tier_memory_open("sample", CAPACITY_BYTES, NULL, &level) == KEEL_OK);
    enum keel_status status = keel_tier_serve(level, &link, KEEL_NS_PER_S);
    KEEL_ASSERT(status == KEEL_PEER_LOST || status == KEEL_CORRUPT || status == KEEL_VERSION);
    KEEL_ASSERT(client.answered <= client.sent);
    keel_tier_end(level); /* asserts that nothing is open */
    KEEL_ASSERT(keel_memory_stats().live_bytes == before_bytes);
    return 0;
}
