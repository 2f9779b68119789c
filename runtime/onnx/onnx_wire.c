/* onnx_wire.c - see onnx_wire.h. */
#include "onnx_wire.h"

bool keel_wire_varint(struct keel_wire *wire, uint64_t *out)
{
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
        const uint8_t byte = *wire->at++;
        if (shift == 63 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* `bytes` of a number, the lowest first. */
static bool read_fixed(struct keel_wire *wire, uint32_t bytes, uint64_t *out)
{
    if ((size_t)(wire->end - wire->at) < bytes)
        return false;
    *out = 0;
    for (uint32_t i = 0; i < bytes; i++)
        *out |= (uint64_t)wire->at[i] << (8 * i);
    wire->at += bytes;
    return true;
}

static bool read_bytes(struct keel_wire *wire, struct keel_wire *out)
{
    uint64_t bytes;
    if (!keel_wire_varint(wire, &bytes) || bytes > (uint64_t)(wire->end - wire->at))
        return false;
    *out = (struct keel_wire){wire->at, wire->at + (size_t)bytes};
    wire->at += (size_t)bytes;
    return true;
}

enum keel_wire_result keel_wire_next(struct keel_wire *wire, struct keel_wire_field *out)
{
    uint64_t key;
    bool good;
    if (wire->at == wire->end)
        return KEEL_WIRE_END;
    if (!keel_wire_varint(wire, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
        return KEEL_WIRE_BROKEN;
    *out = (struct keel_wire_field){.number = (uint32_t)(key >> 3), .type = (enum keel_wire_type)(key & 7)};
    switch (out->type) {
    case KEEL_WIRE_VARINT:
        good = keel_wire_varint(wire, &out->value);
        break;
    case KEEL_WIRE_64:
        good = read_fixed(wire, 8, &out->value);
        break;
    case KEEL_WIRE_32:
        good = read_fixed(wire, 4, &out->value);
        break;
    case KEEL_WIRE_BYTES:
        good = read_bytes(wire, &out->bytes);
        break;
    default: /* groups, which no message here has */
        good = false;
    }
    return good ? KEEL_WIRE_FIELD : KEEL_WIRE_BROKEN;
}
