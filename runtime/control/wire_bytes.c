/* wire_bytes.c - see wire_bytes.h. */
#include "wire_bytes.h"

#include <string.h>

void keel_writer_number(struct keel_writer *writer, uint64_t value, uint32_t width_bytes)
{
    if (writer->failed || writer->capacity - writer->bytes < width_bytes) {
        writer->failed = true;
        return;
    }
    for (uint32_t i = 0; i < width_bytes; i++)
        writer->data[writer->bytes++] = (uint8_t)(value >> (8 * i));
}

void keel_writer_bytes(struct keel_writer *writer, const void *data, uint32_t bytes)
{
    if (writer->failed || writer->capacity - writer->bytes < bytes) {
        writer->failed = true;
        return;
    }
    if (bytes > 0)
        memcpy(writer->data + writer->bytes, data, bytes);
    writer->bytes += bytes;
}

uint64_t keel_reader_number(struct keel_wire_reader *reader, uint32_t width_bytes)
{
    if (reader->failed || reader->bytes - reader->at < width_bytes) {
        reader->failed = true;
        return 0;
    }
    uint64_t value = 0;
    for (uint32_t i = 0; i < width_bytes; i++)
        value |= (uint64_t)reader->data[reader->at++] << (8 * i);
    return value;
}

void keel_reader_bytes(struct keel_wire_reader *reader, void *out, uint32_t bytes)
{
    if (reader->failed || reader->bytes - reader->at < bytes) {
        reader->failed = true;
        return;
    }
    if (bytes > 0)
        memcpy(out, reader->data + reader->at, bytes);
    reader->at += bytes;
}

bool keel_reader_complete(const struct keel_wire_reader *reader)
{
    return !reader->failed && reader->at == reader->bytes;
}
