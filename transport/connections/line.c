/* line.c - the carriers of an endpoint as one, and what all lines share. */
#include "line.h"

#include <arpa/inet.h>
#include <isa-l/crc.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

/* ---- lists --------------------------------------------------------------------------------------------- */

static void put(struct keel_line **list, struct keel_line *line)
{
    line->previous = NULL;
    line->next = *list;
    if (*list != NULL)
        (*list)->previous = line;
    *list = line;
}

static void take(struct keel_line **list, struct keel_line *line)
{
    if (line->previous != NULL)
        line->previous->next = line->next;
    else
        *list = line->next;
    if (line->next != NULL)
        line->next->previous = line->previous;
}

void keel_carrier_adopt(struct keel_carrier *carrier, struct keel_line *line)
{
    line->carrier = carrier;
    line->state = KEEL_LINE_OPENING;
    put(&carrier->lines, line);
    carrier->line_count++;
}

static void add(_Atomic uint64_t *count, uint64_t more)
{
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + more, memory_order_relaxed);
}

void keel_carrier_sent(struct keel_carrier *carrier, uint32_t payload_bytes)
{
    add(&carrier->bytes_sent, sizeof(struct keel_message) + payload_bytes);
    add(&carrier->messages_sent, 1);
}

void keel_carrier_received(struct keel_carrier *carrier, uint32_t payload_bytes)
{
    add(&carrier->bytes_received, sizeof(struct keel_message) + payload_bytes);
    add(&carrier->messages_received, 1);
}

struct keel_line *keel_line_take(struct keel_line **list)
{
    struct keel_line *line = *list;
    if (line != NULL)
        take(list, line);
    return line;
}

/* ---- lines --------------------------------------------------------------------------------------------- */

enum keel_send keel_line_send(struct keel_line *line, struct keel_message *message, const void *payload,
                              bool lent, void *owner, bool *out_retry)
{
    if (line->state != KEEL_LINE_OPEN)
        return KEEL_SEND_LATER;
    KEEL_ASSERT(message->bytes <= (lent ? KEEL_CHUNK_BYTES : KEEL_EAGER_BYTES));
    message->magic = KEEL_MESSAGE_MAGIC;
    return line->carrier->ops->send(line, message, payload, lent, owner, out_retry);
}

void keel_line_seal(struct keel_line *line, bool outgoing, struct keel_cipher *cipher)
{
    struct keel_cipher **place = outgoing ? &line->sealer : &line->opener;
    KEEL_ASSERT(*place == NULL && keel_line_is_exposed(line));
    *place = cipher;
}

bool keel_line_is_exposed(const struct keel_line *line)
{
    return line->carrier->ops->exposed;
}

bool keel_line_intact(const struct keel_line *line)
{
    const struct keel_carrier_ops *ops = line->carrier->ops;
    return ops->intact == NULL || ops->intact(line);
}

uint64_t keel_line_keep(struct keel_line *line)
{
    const struct keel_carrier_ops *ops = line->carrier->ops;
    return ops->keep != NULL ? ops->keep(line) : 0;
}

bool keel_line_release(struct keel_line *line, uint64_t kept)
{
    return line->carrier->ops->release(line, kept);
}

bool keel_line_is_crowded(const struct keel_line *line)
{
    const struct keel_carrier_ops *ops = line->carrier->ops;
    return ops->crowded != NULL && ops->crowded(line);
}

void keel_line_close(struct keel_line *line)
{
    struct keel_carrier *carrier = line->carrier;
    if (line->state == KEEL_LINE_CLOSED)
        return;
    line->state = KEEL_LINE_CLOSED;
    carrier->ops->hang_up(line);
    keel_cipher_free(line->sealer);
    keel_cipher_free(line->opener);
    line->sealer = line->opener = NULL;
    take(&carrier->lines, line);
    carrier->line_count--;
    put(&carrier->dying, line);
}

void keel_line_broke(struct keel_line *line, const char *why)
{
    if (line->state == KEEL_LINE_CLOSED)
        return;
    line->carrier->calls->broke(line->carrier->context, line, why);
    KEEL_ASSERT(line->state == KEEL_LINE_CLOSED);
}

/* CRC-32C finds any one to three bits that differ, and any burst of 32. */
static uint32_t checksum_of(const struct keel_message *message, const void *payload)
{
    uint8_t header[sizeof *message];
    uint8_t *at;
    memcpy(header, message, sizeof header);
    memcpy(&at, &payload, sizeof at); /* ISA-L only reads, but has no const */
    uint32_t sum = crc32_iscsi(header, sizeof header, UINT32_MAX);
    return ~(message->bytes > 0 ? crc32_iscsi(at, (int)message->bytes, sum) : sum);
}

uint32_t keel_line_fold(struct keel_line *line, uint8_t *memory, const struct keel_message *message,
                        const void *payload, bool lent, bool whole)
{
    uint32_t head = line->sealer != NULL ? sizeof(struct keel_envelope) : sizeof(struct keel_checked);
    KEEL_ASSERT(!lent || !whole);
    if (!lent && message->bytes > 0)
        memcpy(memory + head, payload, message->bytes);
    const void *there = lent ? payload : memory + head;
    if (line->sealer == NULL) {
        struct keel_checked checked = {.message = *message, .checksum = checksum_of(message, there)};
        memcpy(memory, &checked, sizeof checked);
    } else {
        keel_cipher_seal(line->sealer, (struct keel_envelope *)(void *)memory, message, there, whole);
    }
    return head;
}

/* Without a key, or before it is agreed about. */
static const uint8_t *unfold_checked(struct keel_line *line, const uint8_t *memory, size_t bytes,
                                     struct keel_message *out)
{
    struct keel_checked checked;
    const uint8_t *payload = memory + sizeof checked;
    if (bytes < sizeof checked)
        return NULL;
    memcpy(&checked, memory, sizeof checked);
    if (checked.message.magic != KEEL_MESSAGE_MAGIC || checked.message.bytes > KEEL_CHUNK_BYTES ||
        checked.message.bytes != bytes - sizeof checked ||
        checked.checksum != checksum_of(&checked.message, payload)) {
        line->damaged = true;
        line->carrier->forged++;
        return NULL;
    }
    *out = checked.message;
    return payload;
}

const uint8_t *keel_line_unfold(struct keel_line *line, uint8_t *memory, size_t bytes, bool whole,
                                struct keel_message *out, const char **out_why)
{
    struct keel_envelope *envelope = (struct keel_envelope *)(void *)memory;
    if (line->opener == NULL) {
        *out_why = "a message was damaged on its way: its checksum is wrong, or it is none of ours";
        return unfold_checked(line, memory, bytes, out);
    }
    if (!keel_cipher_open(line->opener, envelope, bytes)) {
        line->damaged = true;
        line->carrier->forged++;
        *out_why = "a message was changed, repeated or left out on its way, or never sealed";
        return NULL;
    }
    *out_why = "the peer does not seal payloads, and here they have to be";
    *out = envelope->message;
    return envelope->magic == KEEL_ENVELOPE_WHOLE || !whole ? memory + sizeof *envelope : NULL;
}

/* ---- carriers ------------------------------------------------------------------------------------------ */

void keel_lines_close(struct keel_lines *lines)
{
    while (lines->carrier_count > 0) {
        struct keel_carrier *carrier = lines->carriers[--lines->carrier_count];
        while (carrier->lines != NULL)
            keel_line_close(carrier->lines);
        carrier->ops->close(carrier);
    }
}

enum keel_status keel_lines_address(const struct keel_lines *lines, struct keel_address *out)
{
    struct keel_address_parts place = {{0}, {0}, {0}};
    struct keel_address address = {.bytes = sizeof place};
    for (uint32_t k = 0; k < lines->carrier_count; k++)
        KEEL_TRY(lines->carriers[k]->ops->place(lines->carriers[k], &place));
    memcpy(address.data, &place, sizeof place);
    *out = address;
    return KEEL_OK;
}

struct keel_address_parts keel_place_of(const struct keel_address *address)
{
    struct keel_address_parts place = {{0}, {0}, {0}};
    memcpy(&place, address->data, address->bytes < sizeof place ? address->bytes : sizeof place);
    return place;
}

void keel_address_text(const struct keel_address *address, char out[KEEL_ADDRESS_TEXT_BYTES])
{
    struct keel_address_parts place = keel_place_of(address);
    struct sockaddr_in where;
    char host[INET_ADDRSTRLEN];
    memcpy(&where, place.fabric, sizeof where);
    if (where.sin_family == AF_INET && inet_ntop(AF_INET, &where.sin_addr, host, sizeof host) != NULL)
        snprintf(out, KEEL_ADDRESS_TEXT_BYTES, "%s:%u", host, ntohs(where.sin_port));
    else
        snprintf(out, KEEL_ADDRESS_TEXT_BYTES, "an address that is no IPv4");
}

enum keel_status keel_lines_dial(struct keel_lines *lines, const struct keel_address *address, void *owner,
                                 struct keel_line **out)
{
    enum keel_status status = KEEL_NOT_FOUND;
    for (uint32_t k = 0; k < lines->carrier_count && status == KEEL_NOT_FOUND; k++)
        status = lines->carriers[k]->ops->dial(lines->carriers[k], address, owner, out);
    return status;
}

/* To ask the fabric takes system calls; while it carries nothing, it is asked after a sleep and now and then.
 */
enum { PASSES = 64 };

static bool look_everywhere(struct keel_lines *lines)
{
    bool all = ++lines->passes >= PASSES;
    if (all)
        lines->passes = 0;
    return all;
}

void keel_lines_progress(struct keel_lines *lines)
{
    bool all = look_everywhere(lines);
    for (uint32_t k = 0; k < lines->carrier_count; k++) {
        struct keel_carrier *carrier = lines->carriers[k];
        if (all || carrier->lines != NULL || carrier->dying != NULL)
            carrier->ops->progress(carrier);
    }
}

void keel_lines_progress_data(struct keel_lines *lines)
{
    bool all = look_everywhere(lines);
    for (uint32_t k = 0; k < lines->carrier_count; k++) {
        struct keel_carrier *carrier = lines->carriers[k];
        const struct keel_carrier_ops *ops = carrier->ops;
        if (all || carrier->lines != NULL || carrier->dying != NULL)
            (ops->progress_data != NULL ? ops->progress_data : ops->progress)(carrier);
    }
}

bool keel_lines_asked(const struct keel_lines *lines)
{
    for (uint32_t k = 0; k < lines->carrier_count; k++)
        if (lines->carriers[k]->ops->asked != NULL && lines->carriers[k]->ops->asked(lines->carriers[k]))
            return true;
    return false;
}

bool keel_lines_may_sleep(struct keel_lines *lines)
{
    lines->passes = PASSES;
    for (uint32_t k = 0; k < lines->carrier_count; k++)
        if (!lines->carriers[k]->ops->may_sleep(lines->carriers[k]))
            return false;
    return true;
}

uint32_t keel_lines_descriptors(const struct keel_lines *lines, struct pollfd out[KEEL_LINES_DESCRIPTORS_MAX])
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < lines->carrier_count; k++)
        count += lines->carriers[k]->ops->descriptors(lines->carriers[k], out + count);
    KEEL_ASSERT(count <= KEEL_LINES_DESCRIPTORS_MAX);
    return count;
}

void keel_lines_renew(struct keel_lines *lines)
{
    for (uint32_t k = 0; k < lines->carrier_count; k++)
        if (lines->carriers[k]->ops->renew != NULL)
            lines->carriers[k]->ops->renew(lines->carriers[k]);
}

void keel_lines_count(const struct keel_lines *lines, struct keel_transport_stats *stats)
{
    for (uint32_t k = 0; k < lines->carrier_count; k++) {
        const struct keel_carrier *carrier = lines->carriers[k];
        stats->bytes_sent += atomic_load(&carrier->bytes_sent);
        stats->bytes_received += atomic_load(&carrier->bytes_received);
        stats->messages_sent += atomic_load(&carrier->messages_sent);
        stats->messages_received += atomic_load(&carrier->messages_received);
        stats->stale_dropped += atomic_load(&carrier->forged);
    }
}
