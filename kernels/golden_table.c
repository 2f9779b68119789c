/* golden_table.c - golden cases of what moves and picks elements: shapes, rows, tables, experts. */
#include <keel/shape_ops.h>

#include "golden_internal.h"

/* ---- shapes ---- */

/* outer, inner, sizes of up to four parts */
static enum keel_status concat(struct golden_run *run, const uint32_t *shape)
{
    struct keel_buffer *input[4] = {NULL};
    uint64_t sizes[4] = {0}, size = 0;
    struct keel_concat op = {.outer = shape[0], .inner = shape[1], .sizes = sizes, .input = input};
    for (; op.parts < 4 && shape[2 + op.parts] != 0; op.parts++) {
        sizes[op.parts] = shape[2 + op.parts];
        size += sizes[op.parts];
        input[op.parts] = golden_bits(run, "part", op.outer * sizes[op.parts] * op.inner * sizeof(float));
    }
    op.y = golden_output(run, "y", op.outer * size * op.inner);
    return golden_ready(run) ? keel_op_concat(run->kernels, &op, &run->list) : KEEL_OK;
}

/* outer, size, inner, from, count */
static struct keel_slice slice_of(const uint32_t *shape)
{
    return (struct keel_slice){
        .outer = shape[0], .size = shape[1], .inner = shape[2], .from = shape[3], .count = shape[4]};
}

static enum keel_status slice(struct golden_run *run, const uint32_t *shape)
{
    struct keel_slice op = slice_of(shape);
    op.x = golden_bits(run, "x", op.outer * op.size * op.inner * sizeof(float));
    op.y = golden_output(run, "y", op.outer * op.count * op.inner);
    return golden_ready(run) ? keel_op_slice(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status slice_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_slice op = slice_of(shape);
    op.y = golden_bits(run, "dy", op.outer * op.count * op.inner * sizeof(float));
    op.x = golden_output(run, "dx", op.outer * op.size * op.inner);
    return golden_ready(run) ? keel_op_slice_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* sizes of four dimensions, their order */
static enum keel_status permute(struct golden_run *run, const uint32_t *shape)
{
    struct keel_permute op = {.dims = 4};
    uint64_t count = 1;
    for (uint32_t i = 0; i < 4; i++) {
        op.size[i] = shape[i];
        op.order[i] = shape[4 + i];
        count *= shape[i];
    }
    op.x = golden_bits(run, "x", count * sizeof(float));
    op.y = golden_output(run, "y", count);
    return golden_ready(run) ? keel_op_permute(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status multiply(struct golden_run *run, const uint32_t *shape)
{
    struct keel_multiply op = {.count = shape[0]};
    op.a = GOLDEN_FLOATS(run, "a", op.count);
    op.b = GOLDEN_FLOATS(run, "b", op.count);
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_multiply(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- rows: rows, n ---- */

static enum keel_status softmax(struct golden_run *run, const uint32_t *shape)
{
    struct keel_softmax op = {.rows = shape[0], .n = shape[1]};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -9.0F, 9.0F);
    op.y = golden_output(run, "y", count);
    return golden_ready(run) ? keel_op_softmax(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status softmax_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_softmax_grad op = {.rows = shape[0], .n = shape[1]};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.y = golden_floats(run, "y", GOLDEN_INPUT, count, 0.0F, 1.0F);
    op.dy = GOLDEN_FLOATS(run, "dy", count);
    op.dx = golden_output(run, "dx", count);
    return golden_ready(run) ? keel_op_softmax_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, k, whether values are asked for; of any bits, so that NaN, infinities and denormals are among them
 */
static enum keel_status top_k(struct golden_run *run, const uint32_t *shape)
{
    struct keel_top_k op = {.rows = shape[0], .n = shape[1], .k = shape[2]};
    op.x = golden_bits(run, "x", (uint64_t)op.rows * op.n * sizeof(float));
    if (shape[3])
        op.values = golden_output(run, "values", (uint64_t)op.rows * op.k);
    op.indices = golden_output(run, "indices", (uint64_t)op.rows * op.k);
    return golden_ready(run) ? keel_op_top_k(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, k; indices may come again, and lie beyond the row */
static enum keel_status top_k_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_top_k_grad op = {.rows = shape[0], .n = shape[1], .k = shape[2]};
    op.indices = golden_ids(run, "indices", (uint64_t)op.rows * op.k, op.n + 2);
    op.dvalues = GOLDEN_FLOATS(run, "dvalues", (uint64_t)op.rows * op.k);
    op.dx = golden_output(run, "dx", (uint64_t)op.rows * op.n);
    return golden_ready(run) ? keel_op_top_k_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, whether from the last to the first */
static enum keel_status cumsum(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cumsum op = {.rows = shape[0], .n = shape[1], .reverse = shape[2] != 0};
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.rows * op.n);
    op.y = golden_output(run, "y", (uint64_t)op.rows * op.n);
    return golden_ready(run) ? keel_op_cumsum(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- the table ---- */

static const struct golden_case cases[] = {
    GOLDEN_CASE(concat, shape, "1x1-1", 0x4aa4c48fc7608a60, 1, 1, 1),
    GOLDEN_CASE(concat, shape, "3x5-7-1-13", 0x5939985c51c5cbe4, 3, 5, 7, 1, 13),
    GOLDEN_CASE(concat, shape, "67x1-17-31-5-3", 0x8a8483c0a51e11e5, 67, 1, 17, 31, 5, 3),
    GOLDEN_CASE(slice, shape, "1x1x1", 0x10739540836ec066, 1, 1, 1, 0, 1),
    GOLDEN_CASE(slice, shape, "3x17x5-from-4", 0x7f95fd65ca78eb65, 3, 17, 5, 4, 11),
    GOLDEN_CASE(slice, shape, "67x131x1-from-2", 0xd7441f32c5927b73, 67, 131, 1, 2, 67),
    GOLDEN_CASE(slice_grad, shape, "1x1x1", 0xe0e05b15888ea210, 1, 1, 1, 0, 1),
    GOLDEN_CASE(slice_grad, shape, "3x17x5-from-4", 0xa45e97483624d044, 3, 17, 5, 4, 11),
    GOLDEN_CASE(slice_grad, shape, "67x131x1-from-2", 0xe81008099e217e4e, 67, 131, 1, 2, 67),
    GOLDEN_CASE(permute, shape, "1x1x1x1-3210", 0xae880cb85000e9c6, 1, 1, 1, 1, 3, 2, 1, 0),
    GOLDEN_CASE(permute, shape, "2x5x3x7-0213", 0x85a5aeba60d7f53a, 2, 5, 3, 7, 0, 2, 1, 3),
    GOLDEN_CASE(permute, shape, "1x37x1x331-0321", 0x05ab32d0ec871175, 1, 37, 1, 331, 0, 3, 2, 1),
    GOLDEN_CASE(permute, shape, "3x17x2x19-3120", 0xc5ef9fc9cd572cf6, 3, 17, 2, 19, 3, 1, 2, 0),
    GOLDEN_CASE(permute, shape, "2x16x5x32-0231", 0x8d9bbcfbdbf23634, 2, 16, 5, 32, 0, 2, 3, 1),
    GOLDEN_CASE(multiply, elementwise, "1", 0xb4710e2335ff4b5b, 1),
    GOLDEN_CASE(multiply, elementwise, "67", 0xaab1c18a7d57f73f, 67),
    GOLDEN_CASE(multiply, elementwise, "4115", 0x9a31dee316d148d2, 4115),
    GOLDEN_CASE(softmax, row, "1x1", 0x4b72477f9c5c2f98, 1, 1),
    GOLDEN_CASE(softmax, row, "5x67", 0x3d4ed6c5bb0a9591, 5, 67),
    GOLDEN_CASE(softmax, row, "131x8", 0xbd3844eebc7fb62c, 131, 8),
    GOLDEN_CASE(softmax_grad, row, "1x1", 0x0a99f1ceae397e92, 1, 1),
    GOLDEN_CASE(softmax_grad, row, "5x67", 0x940222b1a8050463, 5, 67),
    GOLDEN_CASE(softmax_grad, row, "131x8", 0x4e336820e9298075, 131, 8),
    GOLDEN_CASE(top_k, row, "1x1-1", 0x7e7e0ef3f8979220, 1, 1, 1, 1),
    GOLDEN_CASE(top_k, row, "7x67-5", 0x677a5e787f96f9f4, 7, 67, 5, 1),
    GOLDEN_CASE(top_k, row, "3x331-17", 0xf60d34867ccd9919, 3, 331, 17, 1),
    GOLDEN_CASE(top_k, row, "131x10-1-indices", 0xd7dfbdb211bdd269, 131, 10, 1, 0),
    GOLDEN_CASE(top_k_grad, row, "1x1-1", 0xd83397e3844640a8, 1, 1, 1),
    GOLDEN_CASE(top_k_grad, row, "7x67-5", 0xa9c952f74d696b2f, 7, 67, 5),
    GOLDEN_CASE(top_k_grad, row, "131x5-4", 0xc196cddfa3f8a8af, 131, 5, 4),
    GOLDEN_CASE(cumsum, row, "1x1", 0x08eab8ad6907b6a3, 1, 1, 0),
    GOLDEN_CASE(cumsum, row, "7x67", 0x605231e98d0da23c, 7, 67, 0),
    GOLDEN_CASE(cumsum, row, "3x331-reverse", 0x91df318f81838d09, 3, 331, 1),
};
const struct golden_family golden_table = {cases, sizeof cases / sizeof cases[0]};
