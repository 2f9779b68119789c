/* onnx_wire.h - the wire format of Protocol Buffers, field by field: what an .onnx file is written in.
 *
 * A reader of its own and not protobuf-c: an ONNX model needs six message types with a dozen fields each,
 * weights must stay where the file is mapped (protobuf-c copies every tensor), and nothing here recurses or
 * allocates. Source: protobuf.dev, "Encoding". */
#ifndef KEEL_ONNX_WIRE_H
#define KEEL_ONNX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is left to read of a message; borrowed. */
struct keel_wire {
    const uint8_t *at, *end;
};

enum keel_wire_type { KEEL_WIRE_VARINT = 0, KEEL_WIRE_64 = 1, KEEL_WIRE_BYTES = 2, KEEL_WIRE_32 = 5 };

struct keel_wire_field {
    uint32_t number;
    enum keel_wire_type type;
    uint64_t value;         /* of VARINT, 64 and 32 */
    struct keel_wire bytes; /* of BYTES */
};

enum keel_wire_result { KEEL_WIRE_END, KEEL_WIRE_FIELD, KEEL_WIRE_BROKEN };

/* The next field. BROKEN: the bytes end within it, or are no field; nothing more is to be read then. */
enum keel_wire_result keel_wire_next(struct keel_wire *wire, struct keel_wire_field *out);

/* One varint, as packed fields have them; false: the bytes end within it, or it has more than 64 bits. */
bool keel_wire_varint(struct keel_wire *wire, uint64_t *out);

#endif
