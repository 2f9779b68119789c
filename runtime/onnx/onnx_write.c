/* onnx_write.c - see onnx_write.h. */
#include "onnx_write.h"
#include "onnx_wire.h"
#include <keel/bits.h>
#include <keel/memory.h>
#include <string.h>

enum { LENGTH_BYTES = 5, VARINT_BYTES_MAX = 10, FIRST_BYTES = 1 << 16 };
static const uint64_t bytes_max = INT32_MAX; /* of a message of Protocol Buffers */

/* Room for so many bytes more, which count from then on; NULL: there is none. */
static uint8_t *extend(struct keel_onnx_writer *writer, uint64_t bytes)
{
    if (writer->status != KEEL_OK)
        return NULL;
    if (bytes > bytes_max - writer->count) {
        writer->status = keel_fail(KEEL_LIMIT, "more than 2 GiB, which no .onnx file of one piece can hold; "
                                               "export safetensors");
        return NULL;
    }
    uint64_t capacity = writer->capacity > 0 ? writer->capacity : FIRST_BYTES;
    while (capacity < writer->count + bytes)
        capacity *= 2;
    if (capacity > writer->capacity) {
        uint8_t *larger = NULL;
        writer->status = keel_alloc(keel_size(capacity), 1, &larger);
        if (writer->status != KEEL_OK)
            return NULL;
        if (writer->count > 0)
            memcpy(larger, writer->bytes, keel_size(writer->count));
        keel_free(writer->bytes);
        writer->bytes = larger;
        writer->capacity = capacity;
    }
    writer->count += bytes;
    return writer->bytes + writer->count - bytes;
}

static void put_bytes(struct keel_onnx_writer *writer, const void *from, uint64_t bytes)
{
    uint8_t *at = extend(writer, bytes);
    if (at != NULL && bytes > 0)
        memcpy(at, from, keel_size(bytes));
}

static uint32_t varint(uint64_t value, uint8_t out[VARINT_BYTES_MAX])
{
    uint32_t count = 0;
    for (; value > 0x7f; value >>= 7)
        out[count++] = (uint8_t)(value | 0x80);
    out[count++] = (uint8_t)value;
    return count;
}

static void put_varint(struct keel_onnx_writer *writer, uint64_t value)
{
    uint8_t bytes[VARINT_BYTES_MAX];
    put_bytes(writer, bytes, varint(value, bytes));
}

static void put_key(struct keel_onnx_writer *writer, uint32_t field, enum keel_wire_type type)
{
    put_varint(writer, (uint64_t)field << 3 | type);
}

void keel_onnx_put_integer(struct keel_onnx_writer *writer, uint32_t field, uint64_t value)
{
    put_key(writer, field, KEEL_WIRE_VARINT);
    put_varint(writer, value);
}

void keel_onnx_put_real(struct keel_onnx_writer *writer, uint32_t field, float value)
{
    const uint32_t word = keel_bits_of(value);
    uint8_t bytes[sizeof word];
    for (uint32_t i = 0; i < sizeof word; i++)
        bytes[i] = (uint8_t)(word >> 8 * i);
    put_key(writer, field, KEEL_WIRE_32);
    put_bytes(writer, bytes, sizeof bytes);
}

void keel_onnx_put_text(struct keel_onnx_writer *writer, uint32_t field, const char *text)
{
    const uint64_t bytes = strlen(text);
    uint8_t *at = keel_onnx_put_room(writer, field, bytes);
    if (at != NULL && bytes > 0)
        memcpy(at, text, keel_size(bytes));
}

void keel_onnx_put_list(struct keel_onnx_writer *writer, uint32_t field, const int64_t *list, uint32_t count)
{
    const uint64_t begun = keel_onnx_begin(writer, field);
    for (uint32_t i = 0; i < count; i++)
        put_varint(writer, (uint64_t)list[i]);
    keel_onnx_end(writer, begun);
}

uint8_t *keel_onnx_put_room(struct keel_onnx_writer *writer, uint32_t field, uint64_t bytes)
{
    put_key(writer, field, KEEL_WIRE_BYTES);
    put_varint(writer, bytes);
    return extend(writer, bytes);
}

uint64_t keel_onnx_begin(struct keel_onnx_writer *writer, uint32_t field)
{
    put_key(writer, field, KEEL_WIRE_BYTES);
    (void)extend(writer, LENGTH_BYTES);
    return writer->count;
}

/* Five bytes whatever the length is, which readers take: the last of them may say nothing. */
void keel_onnx_end(struct keel_onnx_writer *writer, uint64_t begun)
{
    if (writer->status != KEEL_OK)
        return;
    uint64_t length = writer->count - begun;
    for (uint32_t i = 0; i < LENGTH_BYTES; i++, length >>= 7)
        writer->bytes[begun - LENGTH_BYTES + i] =
            (uint8_t)((length & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}
