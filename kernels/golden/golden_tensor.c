/* golden_tensor.c - golden cases of tensors of unlike shapes: the rows of keel/binary_table.h, which have the
 * hashes, sums over dimensions, scaling. */
#include <keel/tensor_ops.h>

#include "golden_internal.h"

#include <keel/memory.h>

/* Shapes of the result, and the dimensions that a and b have. */
static const struct keel_binary layouts[] = {
    {.size = {1, 1, 1, 67}, .a_dims = 15, .b_dims = 15},
    {.size = {1, 5, 17, 3}, .a_dims = 15, .b_dims = 4},
    {.size = {2, 3, 4, 19}, .a_dims = 15, .b_dims = 10},
};

/* Between which b and a lie: 4 is the most. */
static const float lows[KEEL_BINARY_COUNT][2] = {
#define LOWS(kind, name, value, slope_a, slope_b, truth, low_a, low_b, ...) [kind] = {low_a, low_b},
    KEEL_BINARY_TABLE(LOWS)};

static const bool smooth[KEEL_BINARY_COUNT] = {
#define SMOOTH(kind, name, value, slope_a, slope_b, truth, low_a, low_b, smooth, ...) [kind] = smooth,
    KEEL_BINARY_TABLE(SMOOTH)};

/* An operand; where there are steps, or whole powers, of eight values, so that equals and zeros are among
 * them. */
static struct keel_buffer *operand(struct golden_run *run, const char *name, uint64_t count, float low,
                                   float step)
{
    if (step == 0.0F)
        return golden_floats(run, name, GOLDEN_INPUT, count, low, 4.0F);
    float *values;
    if (keel_alloc(count, sizeof *values, &values) != KEEL_OK)
        return NULL; /* which the operation refuses */
    for (uint64_t i = 0; i < count; i++)
        values[i] = step * ((float)((uint32_t)(i + count) * UINT32_C(2654435761) >> 29) - 4.0F);
    struct keel_buffer *buffer = golden_bytes(run, name, GOLDEN_INPUT, values, count * sizeof *values);
    keel_free(values);
    return buffer;
}

/* The value and both slopes. shape: kind, layout, and 1 for whole b. */
static enum keel_status binary(struct golden_run *run, const uint32_t *shape)
{
    struct keel_binary op = layouts[shape[1]];
    uint64_t count = 1, counts[2] = {1, 1};
    for (uint32_t d = 0; d < KEEL_TENSOR_DIMS; d++) {
        count *= op.size[d];
        counts[0] *= (op.a_dims >> d & 1) != 0 ? op.size[d] : 1;
        counts[1] *= (op.b_dims >> d & 1) != 0 ? op.size[d] : 1;
    }
    op.kind = (enum keel_binary_kind)shape[0];
    const bool steps = !smooth[op.kind] || shape[2] != 0;
    op.a = operand(run, "a", counts[0], lows[op.kind][0], steps ? 0.5F : 0.0F);
    op.b = operand(run, "b", counts[1], lows[op.kind][1], shape[2] != 0 ? 1.0F : steps ? 0.5F : 0.0F);
    op.dy = GOLDEN_FLOATS(run, "dy", count);
    struct keel_buffer *const results[KEEL_BINARY_RESULTS] = {
        golden_output(run, "y", count), golden_output(run, "da", count), golden_output(run, "db", count)};
    for (uint32_t of = 0; of < KEEL_BINARY_RESULTS && golden_ready(run); of++) {
        op.of = (enum keel_binary_result)of;
        op.y = results[of];
        KEEL_TRY(keel_op_binary(run->kernels, &op, &run->list));
    }
    return KEEL_OK;
}

/* kind, outer, n, inner */
static enum keel_status reduce(struct golden_run *run, const uint32_t *shape)
{
    struct keel_reduce op = {
        .kind = (enum keel_reduce_kind)shape[0], .outer = shape[1], .n = shape[2], .inner = shape[3]};
    op.x = GOLDEN_FLOATS(run, "x", op.outer * op.n * op.inner);
    op.y = golden_output(run, "y", op.outer * op.inner);
    return golden_ready(run) ? keel_op_reduce(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status scale(struct golden_run *run, const uint32_t *shape)
{
    struct keel_scale op = {.count = shape[0], .factor = 0x1.99999ap-1F, .addend = -0.25F};
    op.x = GOLDEN_FLOATS(run, "x", op.count);
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_scale(run->kernels, &op, &run->list) : KEEL_OK;
}

#define ONE(kind, name, shape, layout, hash)                                                                 \
    {                                                                                                        \
        "binary/" #name shape, "binary", KEEL_MODULE_tensor, binary, {kind, layout}, UINT64_C(hash)          \
    }
#define THREE(kind, name, flat, column, box)                                                                 \
    ONE(kind, name, "-67", 0, flat), ONE(kind, name, "-5x17x3-by-17x1", 1, column),                          \
        ONE(kind, name, "-2x3x4x19-by-3x1x19", 2, box),
#define CASES(kind, name, value, slope_a, slope_b, truth, low_a, low_b, smooth, hashes)                      \
    GOLDEN_CALL(THREE, kind, name, GOLDEN_UNPACK hashes)

static const struct golden_case cases[] = {
    KEEL_BINARY_TABLE(CASES)
        GOLDEN_CASE(reduce, tensor, "sum-1x1x1", 0x7e4b11b47afe1d0e, KEEL_REDUCE_SUM, 1, 1, 1),
    GOLDEN_CASE(reduce, tensor, "sum-5x67x1", 0x05b0609912e071dc, KEEL_REDUCE_SUM, 5, 67, 1),
    GOLDEN_CASE(reduce, tensor, "sum-3x19x35", 0x42c9be1b692b74d7, KEEL_REDUCE_SUM, 3, 19, 35),
    GOLDEN_CASE(reduce, tensor, "mean-33x131x1", 0xb2354d25b71027cd, KEEL_REDUCE_MEAN, 33, 131, 1),
    GOLDEN_CASE(reduce, tensor, "mean-2x7x67", 0x01ce120599322950, KEEL_REDUCE_MEAN, 2, 7, 67),
    GOLDEN_CASE(reduce, tensor, "maximum-5x67x1", 0xcba61c9827d367ed, KEEL_REDUCE_MAXIMUM, 5, 67, 1),
    GOLDEN_CASE(reduce, tensor, "maximum-3x19x35", 0xc3957f57b1870351, KEEL_REDUCE_MAXIMUM, 3, 19, 35),
    GOLDEN_CASE(scale, tensor, "1", 0xd5f0a30b63e30070, 1),
    GOLDEN_CASE(scale, tensor, "67", 0x7726589e805af151, 67),
    GOLDEN_CASE(scale, tensor, "4115", 0x23cf62bc513120e3, 4115),
    GOLDEN_CASE(binary, tensor, "power-2x3x4x19-whole", 0xd4a74177df936273, KEEL_POWER, 2, 1),
};
const struct golden_family golden_tensor = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};
