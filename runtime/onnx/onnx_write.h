/* onnx_write.h - writing the wire format of Protocol Buffers, for .onnx files (onnx_wire.h reads it).
 *
 * A writer of its own and not protobuf-c, which packs a message from structures that hold all of it, so that
 * each weight would lie in memory twice, and wants onnx.proto and its generator in the build: these calls are
 * all that a file takes, and a weight is read, written and let go.
 *
 * A message within a message begins before its length is known: five bytes are kept for that, and filled in
 * at its end. The first failure is kept and all later calls do nothing: ask once, at the end. */
#ifndef KEEL_ONNX_WRITE_H
#define KEEL_ONNX_WRITE_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begin with zeros. */
struct keel_onnx_writer {
    uint8_t *bytes; /* owned */
    uint64_t count, capacity;
    enum keel_status status; /* NO_MEMORY, LIMIT */
};

void keel_onnx_put_integer(struct keel_onnx_writer *writer, uint32_t field, uint64_t value);
void keel_onnx_put_real(struct keel_onnx_writer *writer, uint32_t field, float value);
void keel_onnx_put_text(struct keel_onnx_writer *writer, uint32_t field, const char *text);
/* Several integers in one field. */
void keel_onnx_put_list(struct keel_onnx_writer *writer, uint32_t field, const int64_t *list, uint32_t count);
/* A field of so many bytes, which the caller fills before the next call; NULL after a failure. */
uint8_t *keel_onnx_put_room(struct keel_onnx_writer *writer, uint32_t field, uint64_t bytes);

/* A message as a field: between the two calls all that is put is its own. */
uint64_t keel_onnx_begin(struct keel_onnx_writer *writer, uint32_t field);
void keel_onnx_end(struct keel_onnx_writer *writer, uint64_t begun);

#endif
