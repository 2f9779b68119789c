/* envelope.c - what vouches for a message that goes where others could change it: a checksum, or a cipher's
 * seal. */
#include "connection.h"

#include <isa-l/crc.h>
#include <string.h>

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

uint32_t keel_connection_fold(struct keel_connection *connection, uint8_t *memory,
                              const struct keel_message *message, const void *payload, bool lent, bool whole)
{
    uint32_t head = connection->sealer != NULL ? sizeof(struct keel_envelope) : sizeof(struct keel_checked);
    KEEL_ASSERT(!lent || !whole);
    if (!lent && message->bytes > 0)
        memcpy(memory + head, payload, message->bytes);
    const void *there = lent ? payload : memory + head;
    if (connection->sealer == NULL) {
        struct keel_checked checked = {.message = *message, .checksum = checksum_of(message, there)};
        memcpy(memory, &checked, sizeof checked);
    } else {
        keel_cipher_seal(connection->sealer, (struct keel_envelope *)(void *)memory, message, there, whole);
    }
    return head;
}

/* Without a key, or before it is agreed about. */
static const uint8_t *unfold_checked(struct keel_connection *connection, const uint8_t *memory, size_t bytes,
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
        connection->damaged = true;
        connection->backend->forged++;
        return NULL;
    }
    *out = checked.message;
    return payload;
}

const uint8_t *keel_connection_unfold(struct keel_connection *connection, uint8_t *memory, size_t bytes,
                                      bool whole, struct keel_message *out, const char **out_why)
{
    struct keel_envelope *envelope = (struct keel_envelope *)(void *)memory;
    if (connection->opener == NULL) {
        *out_why = "a message was damaged on its way: its checksum is wrong, or it is none of ours";
        return unfold_checked(connection, memory, bytes, out);
    }
    if (!keel_cipher_open(connection->opener, envelope, bytes)) {
        connection->damaged = true;
        connection->backend->forged++;
        *out_why = "a message was changed, repeated or left out on its way, or never sealed";
        return NULL;
    }
    *out_why = "the peer does not seal payloads, and here they have to be";
    *out = envelope->message;
    return envelope->magic == KEEL_ENVELOPE_WHOLE || !whole ? memory + sizeof *envelope : NULL;
}
