/* golden_table.c - golden cases of what moves and picks elements: shapes, rows, tables, experts. */
#include <keel/shape_ops.h>
#include <keel/table_ops.h>

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

/* ---- tables ---- */

/* Ids of which some are absent: in [-1, below]. */
static struct keel_buffer *some_ids(struct golden_run *run, const char *name, uint64_t count, uint32_t below)
{
    int32_t ids[4200];
    uint32_t word = (uint32_t)count * 77 + below;
    KEEL_ASSERT(count <= sizeof ids / sizeof ids[0]);
    for (uint64_t i = 0; i < count; i++) {
        word = word * 1664525U + 1013904223U;
        ids[i] = (int32_t)((word >> 8) % (below + 2)) - 1;
    }
    return golden_bytes(run, name, GOLDEN_INPUT, ids, count * sizeof ids[0]);
}

/* rows, n, count */
static enum keel_status gather(struct golden_run *run, const uint32_t *shape)
{
    struct keel_gather op = {.rows = shape[0], .n = shape[1], .count = shape[2]};
    op.ids = some_ids(run, "ids", op.count, op.rows);
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.rows * op.n);
    op.y = golden_output(run, "y", (uint64_t)op.count * op.n);
    return golden_ready(run) ? keel_op_gather(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, count, ids to a row of x */
static enum keel_status scatter_add(struct golden_run *run, const uint32_t *shape)
{
    struct keel_scatter_add op = {.rows = shape[0], .n = shape[1], .count = shape[2], .per = shape[3]};
    op.ids = some_ids(run, "ids", op.count, op.rows);
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)(op.count / op.per) * op.n);
    op.table = golden_floats(run, "table", GOLDEN_UPDATED, (uint64_t)op.rows * op.n, -1.0F, 1.0F);
    op.workspace = golden_scratch(run, "workspace", keel_sort_workspace_bytes(op.count));
    return golden_ready(run) ? keel_op_scatter_add(run->kernels, &op, &run->list) : KEEL_OK;
}

/* bags, ids in each, rows, n, with weights */
static enum keel_status embedding_bag(struct golden_run *run, const uint32_t *shape)
{
    struct keel_embedding_bag op = {.bags = shape[0], .size = shape[1], .rows = shape[2], .n = shape[3]};
    op.ids = some_ids(run, "ids", (uint64_t)op.bags * op.size, op.rows);
    op.table = GOLDEN_FLOATS(run, "table", (uint64_t)op.rows * op.n);
    if (shape[4])
        op.weights = GOLDEN_FLOATS(run, "weights", (uint64_t)op.bags * op.size);
    op.y = golden_output(run, "y", (uint64_t)op.bags * op.n);
    return golden_ready(run) ? keel_op_embedding_bag(run->kernels, &op, &run->list) : KEEL_OK;
}

/* batch, rows of a sample, n */
static enum keel_status pairwise_dot(struct golden_run *run, const uint32_t *shape)
{
    struct keel_pairwise_dot op = {.batch = shape[0], .f = shape[1], .n = shape[2]};
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.batch * op.f * op.n);
    op.y = golden_output(run, "y", (uint64_t)op.batch * op.f * (op.f - 1) / 2);
    return golden_ready(run) ? keel_op_pairwise_dot(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status pairwise_dot_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_pairwise_dot_grad op = {.batch = shape[0], .f = shape[1], .n = shape[2]};
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.batch * op.f * op.n);
    op.dy = GOLDEN_FLOATS(run, "dy", (uint64_t)op.batch * op.f * (op.f - 1) / 2);
    op.dx = golden_output(run, "dx", (uint64_t)op.batch * op.f * op.n);
    return golden_ready(run) ? keel_op_pairwise_dot_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- experts ---- */

/* rows, n, k, experts, capacity */
static enum keel_status dispatch(struct golden_run *run, const uint32_t *shape)
{
    struct keel_dispatch op = {
        .rows = shape[0], .n = shape[1], .k = shape[2], .experts = shape[3], .capacity = shape[4]};
    const uint32_t places = keel_dispatch_rows(op.rows, op.k, op.experts, op.capacity);
    op.choice = some_ids(run, "choice", (uint64_t)op.rows * op.k, op.experts);
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.rows * op.n);
    op.sorted = golden_output(run, "sorted", (uint64_t)places * op.n);
    op.offsets = golden_output(run, "offsets", op.experts + 1);
    op.place = golden_output(run, "place", (uint64_t)op.rows * op.k);
    op.workspace = golden_scratch(run, "workspace", keel_dispatch_workspace_bytes(&op));
    return golden_ready(run) ? keel_op_dispatch(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, experts: the first has none, the others alike; what is left over belongs to nobody */
static enum keel_status expert_bias_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_expert_bias_grad op = {.rows = shape[0], .n = shape[1], .experts = shape[2]};
    int32_t offsets[64] = {0};
    KEEL_ASSERT(op.experts < sizeof offsets / sizeof offsets[0]);
    for (uint32_t e = 2; e <= op.experts; e++)
        offsets[e] = (int32_t)((e - 1) * (op.rows / op.experts));
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.rows * op.n);
    op.offsets = golden_bytes(run, "offsets", GOLDEN_INPUT, offsets, (op.experts + 1) * sizeof offsets[0]);
    op.out = golden_floats(run, "out", GOLDEN_UPDATED, (uint64_t)op.experts * op.n, -1.0F, 1.0F);
    return golden_ready(run) ? keel_op_expert_bias_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, k, places: every second place is taken, in turn, as far as they go */
static enum keel_status combine_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_combine_grad op = {.rows = shape[0], .n = shape[1], .k = shape[2], .places = shape[3]};
    const uint64_t count = (uint64_t)op.rows * op.k;
    int32_t place[1024];
    KEEL_ASSERT(count <= sizeof place / sizeof place[0]);
    for (uint32_t i = 0; i < count; i++)
        place[i] = (i * 7) % count * 2 < op.places ? (int32_t)((i * 7) % count * 2) : -1;
    op.place = golden_bytes(run, "place", GOLDEN_INPUT, place, count * sizeof place[0]);
    op.y = GOLDEN_FLOATS(run, "y", (uint64_t)op.places * op.n);
    op.weights = GOLDEN_FLOATS(run, "weights", count);
    op.dout = GOLDEN_FLOATS(run, "dout", (uint64_t)op.rows * op.n);
    op.dy = golden_output(run, "dy", (uint64_t)op.places * op.n);
    op.dweights = golden_output(run, "dweights", count);
    op.workspace = golden_scratch(run, "workspace", (uint64_t)op.places * sizeof(int32_t));
    return golden_ready(run) ? keel_op_combine_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, experts, k, whether there is a gradient, whether it is scaled */
static enum keel_status balance_loss(struct golden_run *run, const uint32_t *shape)
{
    static const float loss_scale = 0x1.8p+15F;
    struct keel_balance_loss op = {
        .rows = shape[0], .experts = shape[1], .k = shape[2], .scale = 0x1.47ae14p-7F};
    op.probabilities =
        golden_floats(run, "probabilities", GOLDEN_INPUT, (uint64_t)op.rows * op.experts, 0.0F, 1.0F);
    op.choice = some_ids(run, "choice", (uint64_t)op.rows * op.k, op.experts);
    op.loss = golden_floats(run, "loss", GOLDEN_UPDATED, 1, 0.0F, 1.0F);
    if (shape[3])
        op.dprobabilities = golden_output(run, "dprobabilities", (uint64_t)op.rows * op.experts);
    if (shape[4])
        op.loss_scale = golden_bytes(run, "loss_scale", GOLDEN_INPUT, &loss_scale, sizeof loss_scale);
    op.scratch = golden_scratch(run, "scratch", 2 * (uint64_t)op.experts * sizeof(float));
    return golden_ready(run) ? keel_op_balance_loss(run->kernels, &op, &run->list) : KEEL_OK;
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
    GOLDEN_CASE(gather, table, "1x1-1", 0x4d25767f9dce13f5, 1, 1, 1),
    GOLDEN_CASE(gather, table, "11x67-31", 0xa24c383a7c7e3cf9, 11, 67, 31),
    GOLDEN_CASE(gather, table, "331x3-131", 0x2e848246bf747f9c, 331, 3, 131),
    GOLDEN_CASE(scatter_add, table, "1x1-1", 0x4b6b70ce9edde04c, 1, 1, 1, 1),
    GOLDEN_CASE(scatter_add, table, "11x67-62-by-2", 0xfb47905a65e6b059, 11, 67, 62, 2),
    GOLDEN_CASE(scatter_add, table, "331x130-131", 0xfb05f2309fc02944, 331, 130, 131, 1),
    GOLDEN_CASE(scatter_add, table, "70001x1-4122-by-9", 0x4d68d0a23fb6d9ae, 70001, 1, 4122, 9),
    GOLDEN_CASE(embedding_bag, table, "1x1-1x1", 0x4d25767f9dce13f5, 1, 1, 1, 1, 0),
    GOLDEN_CASE(embedding_bag, table, "7x5-11x67", 0x7c47dc19368986e7, 7, 5, 11, 67, 0),
    GOLDEN_CASE(embedding_bag, table, "31x3-5x130-weights", 0x1febfb6f926208a3, 31, 3, 5, 130, 1),
    GOLDEN_CASE(pairwise_dot, table, "1x2x1", 0xbaededcb80f91389, 1, 2, 1),
    GOLDEN_CASE(pairwise_dot, table, "3x7x17", 0xbbd2ab054c05405f, 3, 7, 17),
    GOLDEN_CASE(pairwise_dot, table, "2x27x16", 0x65beeee2c8d7fba5, 2, 27, 16),
    GOLDEN_CASE(pairwise_dot_grad, table, "1x2x1", 0xd97615bef4f0b1bd, 1, 2, 1),
    GOLDEN_CASE(pairwise_dot_grad, table, "3x7x67", 0x46ba944691b67ee2, 3, 7, 67),
    GOLDEN_CASE(pairwise_dot_grad, table, "2x27x16", 0x5ac28ac04ecb9aa8, 2, 27, 16),
    GOLDEN_CASE(dispatch, expert, "1x1-1-of-1", 0x434cd856a3b177c1, 1, 1, 1, 1, 1),
    GOLDEN_CASE(dispatch, expert, "67x5-1-of-4-by-13", 0x81270878c2f71696, 67, 5, 1, 4, 13),
    GOLDEN_CASE(dispatch, expert, "131x17-2-of-5-by-131", 0xb73376224151d912, 131, 17, 2, 5, 131),
    GOLDEN_CASE(dispatch, expert, "97x3-3-of-301-by-1", 0x141269ac23be1cb1, 97, 3, 3, 301, 1),
    GOLDEN_CASE(expert_bias_grad, expert, "1x1-1", 0xcb19432befd66a86, 1, 1, 1),
    GOLDEN_CASE(expert_bias_grad, expert, "67x131-5", 0xedf9cb4f002ba6b7, 67, 131, 5),
    GOLDEN_CASE(expert_bias_grad, expert, "331x7-31", 0x4931dd3c659663d9, 331, 7, 31),
    GOLDEN_CASE(combine_grad, expert, "1x1-1-1", 0x800fbe5e61492621, 1, 1, 1, 1),
    GOLDEN_CASE(combine_grad, expert, "13x67-2-31", 0xc93b6431dd8a755a, 13, 67, 2, 31),
    GOLDEN_CASE(combine_grad, expert, "67x5-3-401", 0x51a51f6ab6755f7b, 67, 5, 3, 401),
    GOLDEN_CASE(balance_loss, expert, "1x1-1", 0xa76577418279f0a9, 1, 1, 1, 1),
    GOLDEN_CASE(balance_loss, expert, "67x5-1", 0x8653b94d1a90b79a, 67, 5, 1, 1),
    GOLDEN_CASE(balance_loss, expert, "67x5-1-scaled", 0xdeba63b4088dd1d0, 67, 5, 1, 1, 1),
    GOLDEN_CASE(balance_loss, expert, "131x19-2-loss-alone", 0x54ed751c718ba88d, 131, 19, 2, 0),
};
const struct golden_family golden_table = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};
