/* wire_bytes.h - a cursor that writes or reads little-endian numbers within bounds.
 *
 * Running over the end sets `failed` and does nothing else: callers check once, at the end. */
#ifndef KEEL_WIRE_BYTES_H
#define KEEL_WIRE_BYTES_H

#include <stdbool.h>
#include <stdint.h>

struct keel_writer {
    uint8_t *data; /* borrowed */
    uint32_t bytes, capacity;
    bool failed;
};
struct keel_wire_reader {
    const uint8_t *data; /* borrowed */
    uint32_t at, bytes;
    bool failed;
};

void keel_writer_number(struct keel_writer *writer, uint64_t value, uint32_t width_bytes);
void keel_writer_bytes(struct keel_writer *writer, const void *data, uint32_t bytes);
uint64_t keel_reader_number(struct keel_wire_reader *reader, uint32_t width_bytes);
void keel_reader_bytes(struct keel_wire_reader *reader, void *out, uint32_t bytes);
/* Everything was read, and nothing too much. */
bool keel_reader_complete(const struct keel_wire_reader *reader);

#endif
