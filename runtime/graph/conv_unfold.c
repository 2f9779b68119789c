/* conv_unfold.c - see conv_unfold.h. Rows are unfolded some at a time, into the workspace, and multiplied by
 * the weights, one product for each group of channels. How many at a time changes no bit: rows of a result
 * are products of their own, and sums over rows (the weights' gradient) are cut where a chain may be, behind
 * any 1,024. */
#include "conv_unfold.h"

#include <keel/memory.h>
#include <keel/shape_ops.h>

enum { ROWS = 1024, PART_FLOATS = 1 << 20 };

/* The matrix of unfolded rows, and where parts of the workspace lie. */
struct unfolded {
    struct keel_conv_shape shape;
    bool back;
    keel_value of;
    struct keel_buffer *whole; /* what is unfolded */
    uint32_t line;             /* numbers of a row, of one group */
    uint32_t rows, step;       /* of all; and at a time */
    uint64_t rows_at, planes_at;
    struct keel_buffer *part, *planes;
};

/* Rows from `at` on in the workspace. */
static struct unfolded unfold(const struct keel_conv_shape *s, bool back, keel_value of,
                              struct keel_buffer *whole, uint64_t at)
{
    const uint32_t channels = back ? s->out_channels : s->channels;
    const uint32_t high = back ? s->height : keel_conv_out(s, 0),
                   wide = back ? s->width : keel_conv_out(s, 1);
    struct unfolded u = {.shape = *s,
                         .back = back,
                         .of = of,
                         .whole = whole,
                         .line = s->kernel[0] * s->kernel[1] * (channels / s->groups),
                         .rows = s->batch * high * wide,
                         .rows_at = at};
    const uint64_t row = (uint64_t)u.line * s->groups, fit = PART_FLOATS / row / ROWS * ROWS;
    u.step = (uint32_t)(fit < ROWS ? ROWS : fit);
    u.step = u.step < u.rows ? u.step : u.rows;
    u.planes_at =
        at + (keel_conv_is_product(s) ? 0 : keel_round_up(u.step * row * sizeof(float), KEEL_PART_ALIGN));
    return u;
}

/* Room for the planes of the largest product, which `gemm` is, behind the rows. */
static enum keel_status find_room(struct keel_emit *emit, struct unfolded *u, const struct keel_gemm *gemm)
{
    const uint64_t planes = keel_gemm_planes_bytes(emit->kernels, gemm);
    need_workspace(emit, u->planes_at + planes);
    if (emit->measure)
        return KEEL_OK;
    if (u->planes_at > u->rows_at)
        KEEL_TRY(keel_emit_workspace_part(emit, u->rows_at, u->planes_at - u->rows_at, &u->part));
    return keel_emit_workspace_part(emit, u->planes_at, planes, &u->planes);
}

/* Rows first to first + gemm's, or so many of its k, as its A. */
static enum keel_status set_rows(struct keel_emit *emit, const struct unfolded *u, uint32_t first,
                                 uint32_t rows, struct keel_gemm *gemm)
{
    const uint64_t row_bytes = (uint64_t)u->line * sizeof(float);
    gemm->batch = u->shape.groups;
    gemm->lda = u->line;
    gemm->stride_a = (uint64_t)rows * u->line;
    gemm->planes = u->planes;
    if (u->part == NULL)
        return keel_emit_part(emit, u->of, first * row_bytes, rows * row_bytes, &gemm->a);
    gemm->a = u->part;
    const struct keel_conv2d_unfold op = {u->shape, u->back, first, rows, u->whole, u->part};
    return keel_op_conv2d_unfold(emit->kernels, &op, emit->list);
}

/* y = the rows times b, of `all` columns, those of groups side by side. */
static enum keel_status multiply_rows(struct keel_emit *emit, struct unfolded *u, struct keel_gemm gemm,
                                      keel_value y, uint32_t all)
{
    gemm.m = u->step;
    gemm.n = all / u->shape.groups;
    gemm.k = gemm.lda = u->line;
    gemm.batch = u->shape.groups;
    gemm.ldc = all;
    gemm.stride_c = gemm.n;
    KEEL_TRY(find_room(emit, u, &gemm));
    for (uint32_t first = 0; first < u->rows && !emit->measure; first += gemm.m) {
        gemm.m = u->rows - first < u->step ? u->rows - first : u->step;
        KEEL_TRY(keel_emit_part(emit, y, (uint64_t)first * all * sizeof(float),
                                (uint64_t)gemm.m * all * sizeof(float), &gemm.c));
        KEEL_TRY(set_rows(emit, u, first, gemm.m, &gemm));
        KEEL_TRY(keel_op_gemm(emit->kernels, &gemm, emit->list));
    }
    return KEEL_OK;
}

enum keel_status keel_emit_unfolded(struct keel_emit *emit, const struct keel_conv2d *op, keel_value x,
                                    keel_value y)
{
    const uint32_t outs = op->shape.out_channels, groups = op->shape.groups;
    struct unfolded u = unfold(&op->shape, false, x, op->x, 0);
    const struct keel_gemm gemm = {
        .ldb = outs, .stride_b = outs / groups, .b = op->weight, .bias = groups == 1 ? op->bias : NULL};
    KEEL_TRY(multiply_rows(emit, &u, gemm, y, outs));
    if (op->bias == NULL || groups == 1 || emit->measure)
        return KEEL_OK;
    const struct keel_bias bias = {.rows = u.rows, .n = outs, .x = op->y, .bias = op->bias, .y = op->y};
    return keel_op_bias(emit->kernels, &bias, emit->list);
}

/* The weights, turned so that outputs of a group are rows: [group, taps, outputs, channels]. */
enum keel_status keel_emit_unfolded_data(struct keel_emit *emit, const struct keel_conv2d_grad_data *op,
                                         keel_value dy, keel_value dx)
{
    const struct keel_conv_shape *s = &op->shape;
    const uint32_t taps = s->kernel[0] * s->kernel[1], in = s->channels / s->groups,
                   out = s->out_channels / s->groups;
    const uint64_t bytes = (uint64_t)taps * in * s->out_channels * sizeof(float);
    struct unfolded u = unfold(s, true, dy, op->dy, keel_round_up(bytes, KEEL_PART_ALIGN));
    struct keel_permute turn = {
        .dims = 4, .size = {taps, in, s->groups, out}, .order = {2, 0, 3, 1}, .x = op->weight};
    if (!emit->measure) {
        KEEL_TRY(keel_emit_workspace_part(emit, 0, bytes, &turn.y));
        KEEL_TRY(keel_op_permute(emit->kernels, &turn, emit->list));
    }
    const struct keel_gemm gemm = {.ldb = in, .stride_b = (uint64_t)taps * out * in, .b = turn.y};
    return multiply_rows(emit, &u, gemm, dx, s->channels);
}

enum keel_status keel_emit_unfolded_weight(struct keel_emit *emit, const struct keel_conv2d_grad_weight *op,
                                           keel_value x, keel_value dy)
{
    const uint32_t outs = op->shape.out_channels, out = outs / op->shape.groups;
    struct unfolded u = unfold(&op->shape, false, x, op->x, 0);
    struct keel_gemm gemm = {.m = u.line,
                             .n = out,
                             .k = u.step,
                             .batch = op->shape.groups,
                             .transpose_a = true,
                             .chain = true,
                             .lda = u.line,
                             .ldb = outs,
                             .ldc = outs,
                             .stride_b = out,
                             .stride_c = out,
                             .c = op->dweight};
    KEEL_TRY(find_room(emit, &u, &gemm));
    for (uint32_t first = 0; first < u.rows && !emit->measure; first += gemm.k) {
        gemm.k = u.rows - first < u.step ? u.rows - first : u.step;
        KEEL_TRY(keel_emit_part(emit, dy, (uint64_t)first * outs * sizeof(float),
                                (uint64_t)gemm.k * outs * sizeof(float), &gemm.b));
        KEEL_TRY(set_rows(emit, &u, first, gemm.k, &gemm));
        KEEL_TRY(keel_op_gemm(emit->kernels, &gemm, emit->list));
    }
    return KEEL_OK;
}
