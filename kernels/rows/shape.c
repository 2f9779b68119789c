/* shape.c - concatenate, slice, permute: descriptors to launches. The kernels are in shape.cl. */
#include <keel/shape_ops.h>

#include "kernels_internal.h"

enum { DIMS = KEEL_BOX_DIMS, SPAN = 64 }; /* SPAN: as in shape.cl */
#define WORDS_MAX (UINT64_C(1) << 48)     /* so that no product of sizes overflows unseen */

/* Where a box of n lies in x and in y; x contiguous along its last dimension too, unless `tiles`. */
struct box {
    uint64_t n[DIMS], x[DIMS], y[DIMS];
    uint64_t x_from, y_from;
};

static enum keel_status launch_box(struct keel_kernels *kernels, const struct box *box, struct keel_buffer *x,
                                   struct keel_buffer *y, struct keel_launch_list *list)
{
    const uint64_t count = box->n[0] * box->n[1] * box->n[2] * box->n[3];
    if (count == 0)
        return KEEL_OK;
    return keel_kernels_launch_flat(
        kernels, list, KEEL_MODULE_shape, "keel_box", count,
        KEEL_ARGS(keel_arg_either(x, y), keel_arg_buffer(y), keel_arg_u64(box->x_from),
                  keel_arg_u64(box->y_from), keel_arg_u64(count), keel_arg_u64(box->n[1]),
                  keel_arg_u64(box->n[2]), keel_arg_u64(box->n[3]), keel_arg_u64(box->x[0]),
                  keel_arg_u64(box->x[1]), keel_arg_u64(box->x[2]), keel_arg_u64(box->y[0]),
                  keel_arg_u64(box->y[1]), keel_arg_u64(box->y[2]), keel_arg_u32(x == NULL),
                  keel_arg_u32(keel_kernels_item_elements(kernels))));
}

/* `outer` runs of `run` words, from rows of x_row words to rows of y_row; x NULL: zeros. */
static enum keel_status launch_runs(struct keel_kernels *kernels, uint64_t outer, uint64_t run,
                                    struct keel_buffer *x, uint64_t x_from, uint64_t x_row,
                                    struct keel_buffer *y, uint64_t y_from, uint64_t y_row,
                                    struct keel_launch_list *list)
{
    const bool one = run == x_row && run == y_row; /* then it is a single run */
    const struct box box = {.n = {1, 1, one ? 1 : outer, one ? outer * run : run},
                            .x = {0, 0, x_row, 1},
                            .y = {0, 0, y_row, 1},
                            .x_from = x_from,
                            .y_from = y_from};
    return launch_box(kernels, &box, x, y, list);
}

/* The product of three sizes, or 0 when one is 0 or it is beyond all memory. */
static uint64_t volume(uint64_t a, uint64_t b, uint64_t c)
{
    if (a == 0 || b == 0 || c == 0 || a > WORDS_MAX || b > WORDS_MAX / a || c > WORDS_MAX / (a * b))
        return 0;
    return a * b * c;
}

enum keel_status keel_op_concat(struct keel_kernels *kernels, const struct keel_concat *op,
                                struct keel_launch_list *list)
{
    if (op->parts == 0 || op->parts > KEEL_CONCAT_MAX)
        return keel_fail(KEEL_INVALID, "concat: %u parts; 1 to %u can be joined", op->parts, KEEL_CONCAT_MAX);
    uint64_t size = 0;
    for (uint32_t i = 0; i < op->parts; i++) {
        if (volume(op->outer, op->sizes[i], op->inner) == 0)
            return keel_fail(KEEL_INVALID, "concat: part %u is [%llu, %llu, %llu]", i,
                             (unsigned long long)op->outer, (unsigned long long)op->sizes[i],
                             (unsigned long long)op->inner);
        size += op->sizes[i];
    }
    const uint64_t y_bytes = volume(op->outer, size, op->inner) * 4;
    for (uint32_t i = 0; i < op->parts; i++)
        KEEL_TRY(KEEL_CHECK_OPERANDS(
            "concat", {"a part", op->input[i], volume(op->outer, op->sizes[i], op->inner) * 4, KEEL_READ},
            {"y", op->y, y_bytes, KEEL_WRITTEN}));
    uint64_t from = 0;
    for (uint32_t i = 0; i < op->parts; i++) {
        const uint64_t run = op->sizes[i] * op->inner;
        KEEL_TRY(
            launch_runs(kernels, op->outer, run, op->input[i], 0, run, op->y, from, size * op->inner, list));
        from += run;
    }
    return KEEL_OK;
}

static enum keel_status check_slice(const char *name, const struct keel_slice *op)
{
    const uint64_t words = volume(op->outer, op->size, op->inner);
    if (words == 0 || op->count == 0 || op->from > op->size || op->count > op->size - op->from)
        return keel_fail(KEEL_INVALID, "%s: %llu from %llu of [%llu, %llu, %llu]", name,
                         (unsigned long long)op->count, (unsigned long long)op->from,
                         (unsigned long long)op->outer, (unsigned long long)op->size,
                         (unsigned long long)op->inner);
    return KEEL_CHECK_OPERANDS(name, {"x", op->x, words * 4, KEEL_READ},
                               {"y", op->y, op->outer * op->count * op->inner * 4, KEEL_WRITTEN});
}

enum keel_status keel_op_slice(struct keel_kernels *kernels, const struct keel_slice *op,
                               struct keel_launch_list *list)
{
    KEEL_TRY(check_slice("slice", op));
    const uint64_t run = op->count * op->inner;
    return launch_runs(kernels, op->outer, run, op->x, op->from * op->inner, op->size * op->inner, op->y, 0,
                       run, list);
}

enum keel_status keel_op_slice_grad(struct keel_kernels *kernels, const struct keel_slice *op,
                                    struct keel_launch_list *list)
{
    KEEL_TRY(check_slice("slice_grad", op));
    const uint64_t row = op->size * op->inner, run = op->count * op->inner, before = op->from * op->inner;
    KEEL_TRY(launch_runs(kernels, op->outer, run, op->y, 0, run, op->x, before, row, list));
    KEEL_TRY(launch_runs(kernels, op->outer, before, NULL, 0, before, op->x, 0, row, list));
    return launch_runs(kernels, op->outer, row - before - run, NULL, 0, row - before - run, op->x,
                       before + run, row, list);
}

/* ---- permute ---- */

static enum keel_status check_permute(const struct keel_permute *op)
{
    uint32_t seen = 0;
    uint64_t words = 1;
    if (op->dims == 0 || op->dims > DIMS)
        return keel_fail(KEEL_INVALID, "permute: %u dimensions; 1 to %u can be permuted", op->dims, DIMS);
    for (uint32_t i = 0; i < op->dims; i++) {
        words = volume(words, op->size[i], 1);
        if (words == 0)
            return keel_fail(KEEL_INVALID, "permute: dimension %u of %u is %llu", i, op->dims,
                             (unsigned long long)op->size[i]);
        seen |= op->order[i] < op->dims ? 1U << op->order[i] : 0;
    }
    if (seen != (1U << op->dims) - 1)
        return keel_fail(KEEL_INVALID, "permute: {%u, %u, %u, %u} is no order of %u dimensions", op->order[0],
                         op->order[1], op->order[2], op->order[3], op->dims);
    return KEEL_CHECK_OPERANDS("permute", {"x", op->x, words * 4, KEEL_READ},
                               {"y", op->y, words * 4, KEEL_WRITTEN});
}

/* The dimensions of y with their strides in x and y: without those of size 1, neighbours joined that are
 * neighbours in x too, right-aligned in four. */
static struct box permuted_box(const struct keel_permute *op)
{
    uint64_t stride[DIMS], n[DIMS] = {1, 1, 1, 1}, x[DIMS] = {0, 0, 0, 1};
    for (uint32_t i = op->dims; i-- > 0;)
        stride[i] = i + 1 == op->dims ? 1 : stride[i + 1] * op->size[i + 1];
    uint32_t at = DIMS;
    for (uint32_t i = op->dims; i-- > 0;) {
        const uint64_t size = op->size[op->order[i]], step = stride[op->order[i]];
        if (size == 1)
            continue;
        if (at < DIMS && step == n[at] * x[at]) {
            n[at] *= size;
            continue;
        }
        at--;
        n[at] = size;
        x[at] = step;
    }
    struct box box = {.x_from = 0};
    for (uint32_t i = DIMS; i-- > 0;) {
        box.n[i] = n[i];
        box.x[i] = x[i];
        box.y[i] = i + 1 == DIMS ? 1 : box.y[i + 1] * n[i + 1];
    }
    return box;
}

static void swap_dimensions(struct box *box, uint32_t a, uint32_t b)
{
    uint64_t *const rows[] = {box->n, box->x, box->y};
    for (uint32_t i = 0; i < 3; i++) {
        const uint64_t kept = rows[i][a];
        rows[i][a] = rows[i][b];
        rows[i][b] = kept;
    }
}

static enum keel_status launch_tiles(struct keel_kernels *kernels, const struct box *box,
                                     const struct keel_permute *op, struct keel_launch_list *list)
{
    const uint64_t items =
        box->n[0] * box->n[1] * ((box->n[2] + SPAN - 1) / SPAN) * ((box->n[3] + SPAN - 1) / SPAN);
    const struct keel_range range = keel_kernels_range(kernels, items);
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_shape, "keel_tiles", &range,
        KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->y), keel_arg_u64(items),
                  keel_arg_u64(box->n[1]), keel_arg_u64(box->n[2]), keel_arg_u64(box->n[3]),
                  keel_arg_u64(box->x[0]), keel_arg_u64(box->x[1]), keel_arg_u64(box->x[3]),
                  keel_arg_u64(box->y[0]), keel_arg_u64(box->y[1]), keel_arg_u64(box->y[2])));
}

enum keel_status keel_op_permute(struct keel_kernels *kernels, const struct keel_permute *op,
                                 struct keel_launch_list *list)
{
    KEEL_TRY(check_permute(op));
    struct box box = permuted_box(op);
    if (box.x[DIMS - 1] == 1)
        return launch_box(kernels, &box, op->x, op->y, list);
    uint32_t contiguous = 0;
    for (uint32_t i = 1; i < DIMS; i++)
        contiguous = box.n[i] > 1 && box.x[i] == 1 ? i : contiguous;
    swap_dimensions(&box, contiguous, DIMS - 2);
    return launch_tiles(kernels, &box, op, list);
}
