/* tier_wire.c - messages of remote tiers: sealing them, and believing none before its check. */
#include "tier_wire.h"
#include <string.h>

enum { WIRE_VERSION = 1 };
static const char wire_magic[8] = {'K', 'E', 'E', 'L', 'L', 'E', 'V', 'L'};

void keel_wire_begin(struct keel_tier_message *message, uint32_t op, uint64_t serial, const char *run)
{
    message->header = (struct keel_wire_header){.version = WIRE_VERSION, .op = op, .serial = serial};
    memcpy(message->header.magic, wire_magic, sizeof wire_magic);
    memcpy(message->header.run, run, strnlen(run, KEEL_RUN_NAME_BYTES - 1));
}

enum keel_status keel_wire_send(const struct keel_tier_link *link, struct keel_tier_message *message,
                                uint64_t deadline_ns)
{
    const size_t bytes = sizeof message->header + message->header.payload_bytes;
    KEEL_ASSERT(message->header.payload_bytes <= KEEL_WIRE_PAYLOAD_MAX);
    message->header.check = 0;
    message->header.check = keel_format_check(message, bytes);
    return link->send(link->context, message, bytes, deadline_ns);
}

enum keel_status keel_wire_receive(const struct keel_tier_link *link, struct keel_tier_message *out,
                                   uint64_t deadline_ns)
{
    size_t bytes = 0;
    KEEL_TRY(link->receive(link->context, out, sizeof *out, &bytes, deadline_ns));
    struct keel_wire_header *header = &out->header;
    if (bytes < sizeof *header || bytes > sizeof *out ||
        memcmp(header->magic, wire_magic, sizeof wire_magic) != 0)
        return keel_fail(KEEL_CORRUPT, "the other side of a tier sends what is no message of tiers");
    const uint64_t check = header->check;
    header->check = 0;
    if (keel_format_check(out, bytes) != check)
        return keel_fail(KEEL_CORRUPT, "a message of a tier was damaged on its way");
    if (header->version != WIRE_VERSION)
        return keel_fail(KEEL_VERSION, "the other side of a tier speaks version %u, this program %d",
                         header->version, WIRE_VERSION);
    if (header->payload_bytes != bytes - sizeof *header || header->zero != 0 ||
        header->run[KEEL_RUN_NAME_BYTES - 1] != '\0')
        return keel_fail(KEEL_CORRUPT, "a message of a tier contradicts itself");
    return KEEL_OK;
}

struct keel_wire_object keel_wire_object_from(const struct keel_object *object)
{
    return (struct keel_wire_object){.step = object->step,
                                     .attempt = object->attempt,
                                     .kind = object->kind,
                                     .set = object->set,
                                     .member = object->member};
}

bool keel_wire_object_to(const struct keel_wire_object *wire, struct keel_object *out)
{
    *out = (struct keel_object){.step = wire->step,
                                .attempt = wire->attempt,
                                .kind = (enum keel_object_kind)wire->kind,
                                .set = wire->set,
                                .member = wire->member};
    return wire->zero == 0 && keel_object_valid(out);
}
