/* tier_remote_fuzz.c - any answers to a remote level: every call ends, nothing outside its buffers is
 * written, nothing is kept.
 *
 * The input is answers; of each:
 *   0   bits: 1 another op, 2 another serial, 4 damaged, 8 and 16 the flags, 32 no answer in time
 *   1   status
 *   2   handle, bytes (16 bits)
 *   5   payload: 0 to 3 listed objects made of four bytes each, or (128 and more) that many bytes
 *   6   what it is made of */
#include "fuzz.h"
#include "tier_wire.h"
#include <keel/clock.h>
#include <keel/memory.h>

enum { CALLS = 24 };

struct server {
    struct fuzz_input in;
    struct keel_wire_header request; /* the newest */
};

static enum keel_status take_request(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    struct server *server = context;
    (void)deadline_ns;
    KEEL_ASSERT(bytes >= sizeof server->request);
    memcpy(&server->request, message, sizeof server->request);
    KEEL_ASSERT(bytes == sizeof server->request + server->request.payload_bytes);
    return KEEL_OK;
}

static void list_objects(struct fuzz_input *in, struct keel_tier_message *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct keel_wire_info info = {
            .object = {.step = fuzz_take_u8(in), .attempt = 1, .kind = 1 + fuzz_take_u8(in) % 4}};
        info.object.member = fuzz_take_u8(in);
        info.flags = fuzz_take_u8(in);
        memcpy(out->payload + i * sizeof info, &info, sizeof info);
    }
    out->header.payload_bytes = count * (uint32_t)sizeof(struct keel_wire_info);
}

static enum keel_status give_answer(void *context, void *message, size_t capacity, size_t *out_bytes,
                                    uint64_t deadline_ns)
{
    struct server *server = context;
    struct fuzz_input *in = &server->in;
    struct keel_tier_message *out = message;
    const struct keel_wire_header request = server->request; /* the client's buffer is this one */
    (void)deadline_ns;
    KEEL_ASSERT(capacity == sizeof *out);
    if (in->at >= in->bytes)
        return keel_fail(KEEL_PEER_LOST, "the input has ended");
    uint32_t bits = fuzz_take_u8(in);
    if ((bits & 32) != 0)
        return keel_fail(KEEL_TIMEOUT, "no answer");
    keel_wire_begin(out, (request.op ^ (bits & 1)) | KEEL_WIRE_ANSWER, request.serial - (bits & 2), "sample");
    out->header.flags = bits >> 2 & 6;
    out->header.status = fuzz_take_u8(in) % 32;
    if (out->header.status >= 24)
        out->header.status = KEEL_OK;
    out->header.handle = fuzz_take_u8(in);
    out->header.bytes = fuzz_take_u16(in);
    uint32_t payload = fuzz_take_u8(in);
    if (payload < 128) {
        list_objects(in, out, payload % 4);
    } else {
        out->header.payload_bytes =
            payload == 255 ? (uint32_t)request.bytes % KEEL_WIRE_PAYLOAD_MAX : payload;
        for (uint32_t i = 0; i < out->header.payload_bytes; i++)
            out->payload[i] = fuzz_take_u8(in);
    }
    *out_bytes = sizeof out->header + out->header.payload_bytes;
    out->header.check = keel_format_check(out, *out_bytes) + (bits >> 2 & 1);
    return KEEL_OK;
}

static enum keel_status see(void *context, const struct keel_object_info *info)
{
    uint32_t *count = context;
    KEEL_ASSERT(keel_object_valid(&info->object));
    (*count)++;
    return KEEL_OK;
}

static void read_object(struct keel_tier *level, const struct keel_object *object)
{
    struct keel_tier_source *source;
    uint8_t part[300];
    if (keel_tier_open(level, object, &source) != KEEL_OK)
        return;
    (void)keel_tier_read(source, 0, part,
                         source->info.bytes < sizeof part ? source->info.bytes : sizeof part);
    keel_tier_close_source(source);
    (void)keel_tier_verify(level, object);
}

static void write_object(struct keel_tier *level, const struct keel_object *object)
{
    struct keel_tier_sink *sink;
    uint8_t data[100] = {0}, digest[KEEL_DIGEST_BYTES] = {0};
    if (keel_tier_create(level, object, sizeof data, &sink) != KEEL_OK)
        return;
    if (keel_tier_write(sink, data, sizeof data) == KEEL_OK)
        (void)keel_tier_commit(sink, digest);
    else
        keel_tier_abort(sink);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct server server = {.in = {.data = data, .bytes = bytes}};
    struct keel_tier_link link = {.send = take_request, .receive = give_answer, .context = &server};
    struct keel_tier *level;
    uint64_t before_bytes = keel_memory_stats().live_bytes;
    uint32_t seen = 0;
    if (keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, "sample", NULL, KEEL_NS_PER_S, &level) == KEEL_OK) {
        for (uint32_t i = 0; i < CALLS; i++) {
            const struct keel_object object = {
                .step = 5, .attempt = 2, .kind = (enum keel_object_kind)(1 + i % 3), .member = 0};
            (void)keel_tier_list(level, see, &seen);
            read_object(level, &object);
            write_object(level, &object);
            (void)keel_tier_remove(level, &object);
        }
        keel_tier_end(level);
    }
    KEEL_ASSERT(keel_memory_stats().live_bytes == before_bytes);
    return 0;
}
