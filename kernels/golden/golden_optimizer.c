/* golden_optimizer.c - golden cases of the norm, the loss scale and the update. */
#include "golden_internal.h"

#include <keel/memory.h>
#include <keel/optimizer_ops.h>
#include <string.h>

enum {
    REFUSED = 1,
    NESTEROV = 2,
    BF16 = 4,
    F16 = 8,
    MIXED = 16,  /* a matrix, a bias, a statistic and a parameter that is kept, with gaps */
    GROUPS = 32, /* the bias by a rate of its own, and no gradients behind the statistic */
    TENSORS_MAX = 4,
    PAGES_MAX = 16
};

/* tiles, whether the gradient is clipped, whether the loss was scaled */
static enum keel_status norm(struct golden_run *run, const uint32_t *shape)
{
    static const float scale = 0x1.8p+15F;
    struct keel_norm op = {.tile_count = shape[0]};
    op.tiles = golden_floats(run, "tiles", GOLDEN_INPUT, op.tile_count, 0.0F, 1.0F);
    op.scratch = golden_scratch(run, "scratch", keel_norm_scratch_bytes(op.tile_count));
    op.norm = golden_written(run, "norm", GOLDEN_OUTPUT, (shape[2] ? 3 : 2) * sizeof(float));
    op.control = golden_control(run, shape[1] ? 0.25F : 0.0F);
    if (shape[2])
        op.loss_scale = golden_bytes(run, "loss_scale", GOLDEN_INPUT, &scale, sizeof scale);
    return golden_ready(run) ? keel_op_norm(run->kernels, &op, &run->list) : KEEL_OK;
}

/* bits of the state, whether the step was refused */
static enum keel_status loss_scale(struct golden_run *run, const uint32_t *shape)
{
    const float norms[3] = {3.0F, shape[1] ? 0.0F : 1.0F, 1.0F};
    struct keel_loss_scale op = {.state = golden_bytes(run, "state", GOLDEN_UPDATED, shape, sizeof *shape)};
    op.norm = golden_bytes(run, "norm", GOLDEN_INPUT, norms, sizeof norms);
    return golden_ready(run) ? keel_op_loss_scale(run->kernels, &op, &run->list) : KEEL_OK;
}

/* One matrix of `count` elements, or several tensors of which it is the first; how many. */
static uint32_t make_tensors(uint32_t count, uint32_t flags, struct keel_update_tensor *tensors,
                             uint64_t *out_flat_count)
{
    const uint64_t next = keel_round_up(count, KEEL_UPDATE_PAGE);
    const struct keel_update_tensor all[TENSORS_MAX] = {
        {.count = count, .kind = KEEL_TENSOR_DECAY, .tile = (flags & MIXED) != 0 ? 3 : 0, .factor = 1.0F},
        {.offset = next,
         .count = 67,
         .first_element = UINT64_C(2) << 40,
         .kind = KEEL_TENSOR_PLAIN,
         .factor = (flags & GROUPS) != 0 ? 0x1.8p-3F : 1.0F},
        {.offset = next + KEEL_UPDATE_PAGE,
         .count = 33,
         .first_element = UINT64_C(7) << 40,
         .kind = KEEL_TENSOR_STATISTIC,
         .factor = 0x1.99999ap-4F,
         .tile = 1},
        {.offset = next + 2 * KEEL_UPDATE_PAGE,
         .count = 1,
         .first_element = UINT64_C(9) << 40,
         .kind = KEEL_TENSOR_KEPT,
         .tile = 2},
    };
    memcpy(tensors, all, sizeof all);
    *out_flat_count = (flags & MIXED) != 0 ? next + 2 * KEEL_UPDATE_PAGE + 1 : count;
    return (flags & MIXED) != 0 ? TENSORS_MAX : 1;
}

static enum keel_status norm_tiles_of(struct golden_run *run, struct keel_norm_tiles *op,
                                      const struct keel_update_tensor *tensors, const uint32_t *pages,
                                      uint64_t page_count)
{
    op->x = GOLDEN_FLOATS(run, "x", op->count);
    op->tensors = golden_bytes(run, "tensors", GOLDEN_INPUT, tensors, op->tensor_count * sizeof *tensors);
    op->pages = golden_bytes(run, "pages", GOLDEN_INPUT, pages, page_count * sizeof *pages);
    op->scratch = golden_scratch(run, "scratch", page_count * sizeof(float));
    op->tiles = golden_output(run, "tiles", op->tile_count);
    return golden_ready(run) ? keel_op_norm_tiles(run->kernels, op, &run->list) : KEEL_OK;
}

/* count, flags */
static enum keel_status norm_tiles(struct golden_run *run, const uint32_t *shape)
{
    struct keel_update_tensor tensors[TENSORS_MAX];
    uint32_t pages[PAGES_MAX];
    struct keel_norm_tiles op = {.count = 0};
    op.tensor_count = op.tile_count = make_tensors(shape[0], shape[1], tensors, &op.count);
    const uint64_t page_count = keel_update_page_count(op.count);
    KEEL_ASSERT(page_count <= PAGES_MAX);
    KEEL_TRY(keel_update_find_pages(tensors, op.tensor_count, op.count, pages));
    return norm_tiles_of(run, &op, tensors, pages, page_count);
}

/* rows, columns, tiles: a matrix cut by columns. A tile of more than a block of pages, 4,096, would take 16
 * MiB and is tried by optimizer_test.c; where there are as many tiles, what sums blocks runs and has to leave
 * these pages as they are. */
static enum keel_status norm_boxes(struct golden_run *run, const uint32_t *shape)
{
    const uint32_t columns = shape[1], tiles = shape[2];
    struct keel_update_tensor *tensors;
    uint32_t *pages = NULL;
    struct keel_norm_tiles op = {
        .count = (uint64_t)shape[0] * columns, .tensor_count = tiles, .tile_count = tiles};
    KEEL_TRY(keel_alloc(tiles, sizeof *tensors, &tensors));
    for (uint32_t t = 0; t < tiles; t++) {
        const uint32_t from = t * columns / tiles, width = (t + 1) * columns / tiles - from;
        tensors[t] = (struct keel_update_tensor){.offset = from,
                                                 .count = (uint64_t)shape[0] * width,
                                                 .row = width,
                                                 .stride = columns,
                                                 .kind = KEEL_TENSOR_DECAY,
                                                 .tile = t};
    }
    op.page_count = keel_norm_page_count(tensors, tiles);
    enum keel_status status = keel_alloc(keel_size(op.page_count), sizeof *pages, &pages);
    if (status == KEEL_OK)
        status = keel_norm_find_pages(tensors, tiles, op.count, pages);
    if (status == KEEL_OK)
        status = norm_tiles_of(run, &op, tensors, pages, op.page_count);
    keel_free(pages);
    keel_free(tensors);
    return status;
}

static const uint8_t zeros[KEEL_PAGE_BYTES];

static enum keel_status update(struct golden_run *run, const uint32_t *shape, enum keel_optimizer optimizer,
                               bool see_digest)
{
    const uint32_t flags = shape[1];
    const float norms[3] = {3.0F, (flags & REFUSED) != 0 ? 0.0F : 0x1.555556p-2F, 1.0F};
    struct keel_update_tensor tensors[TENSORS_MAX];
    uint32_t pages[PAGES_MAX];
    struct keel_update op = {.optimizer = optimizer, .nesterov = (flags & NESTEROV) != 0};
    op.tensor_count = make_tensors(shape[0], flags, tensors, &op.count);
    const uint64_t page_count = keel_update_page_count(op.count);
    KEEL_ASSERT(page_count <= PAGES_MAX && keel_update_scratch_bytes(&op) <= sizeof zeros);
    KEEL_TRY(keel_update_find_pages(tensors, op.tensor_count, op.count, pages));
    op.held_count = (flags & GROUPS) != 0 ? tensors[TENSORS_MAX - 1].offset : op.count;
    op.w = golden_floats(run, "w", GOLDEN_UPDATED, op.count, -1.0F, 1.0F);
    op.grad = GOLDEN_FLOATS(run, "grad", op.held_count);
    op.m = golden_floats(run, "m", GOLDEN_UPDATED, op.held_count, -0.5F, 0.5F);
    if (keel_optimizer_has_v(optimizer))
        op.v = golden_floats(run, "v", GOLDEN_UPDATED, op.held_count, 0.0F, 0.25F);
    op.norm = golden_bytes(run, "norm", GOLDEN_INPUT, norms, sizeof norms);
    op.control = golden_control(run, 0.0F);
    op.tensors = golden_bytes(run, "tensors", GOLDEN_INPUT, tensors, op.tensor_count * sizeof *tensors);
    op.pages = golden_bytes(run, "pages", GOLDEN_INPUT, pages, page_count * sizeof *pages);
    if ((flags & (BF16 | F16)) != 0)
        op.half = golden_written(run, "half", GOLDEN_OUTPUT, op.count * sizeof(uint16_t));
    op.half_type = (flags & F16) != 0 ? KEEL_F16 : KEEL_BF16;
    op.digest = golden_written(run, "digest", see_digest ? GOLDEN_OUTPUT : GOLDEN_SCRATCH, sizeof(uint64_t));
    op.scratch = golden_bytes(run, "scratch", GOLDEN_SCRATCH, zeros, keel_update_scratch_bytes(&op));
    return golden_ready(run) ? keel_op_update(run->kernels, &op, &run->list) : KEEL_OK;
}

/* count, flags. The digest is left out of these, which are older than the update in one pass: their bits show
 * that it changed none. */
static enum keel_status adamw(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_ADAMW, false);
}

/* count, flags */
static enum keel_status update_adamw(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_ADAMW, true);
}
static enum keel_status adam(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_ADAM, true);
}
static enum keel_status sgd(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_SGD, true);
}
static enum keel_status lars(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_LARS, true);
}
static enum keel_status lamb(struct golden_run *run, const uint32_t *shape)
{
    return update(run, shape, KEEL_OPTIMIZER_LAMB, true);
}

static const struct golden_case cases[] = {
    GOLDEN_CASE(norm_tiles, optimizer, "1", 0xda41b30e1ad8c770, 1, 0),
    GOLDEN_CASE(norm_tiles, optimizer, "67-mixed", 0xd319af88e401a244, 67, MIXED),
    GOLDEN_CASE(norm_tiles, optimizer, "5003-mixed", 0x67f5dae232dbc160, 5003, MIXED),
    GOLDEN_CASE(norm_boxes, optimizer, "1x5", 0x8b2023e95f34b97a, 1, 5, 2),
    GOLDEN_CASE(norm_boxes, optimizer, "37x131", 0x7c7482c168e24430, 37, 131, 3),
    GOLDEN_CASE(norm_boxes, optimizer, "3x8210", 0x988a14c675b04a78, 3, 8210, 4105),
    GOLDEN_CASE(norm, optimizer, "1", 0x8b318fdef71e2539, 1, 0, 0),
    GOLDEN_CASE(norm, optimizer, "67-clipped", 0x65a696e3d2fce598, 67, 1, 0),
    GOLDEN_CASE(norm, optimizer, "4115-clipped", 0x4d7396e298184ac6, 4115, 1, 0),
    GOLDEN_CASE(norm, optimizer, "4115-scaled", 0x7c5386eee9520335, 4115, 0, 1),
    GOLDEN_CASE(norm, optimizer, "67-scaled-clipped", 0xe0b7924f3b19a633, 67, 1, 1),
    GOLDEN_CASE(adamw, optimizer, "1", 0x418aedb5a351239a, 1, 0),
    GOLDEN_CASE(adamw, optimizer, "67-refused", 0xcab45eeeff23d6e0, 67, REFUSED),
    GOLDEN_CASE(adamw, optimizer, "4115", 0x43f3dbe0a8ec1012, 4115, 0),
    GOLDEN_CASE(loss_scale, optimizer, "good", 0xc0daff7f4ddcf5a0, 0x47800000, 0),
    GOLDEN_CASE(loss_scale, optimizer, "good-doubles", 0x4d25be7f9dce8e4d, 0x47fff000, 0),
    GOLDEN_CASE(loss_scale, optimizer, "refused", 0x4d25af7f9dce74d0, 0x47801000, 1),
    GOLDEN_CASE(loss_scale, optimizer, "refused-least", 0x4b72477f9c5c2f98, 0x3f801000, 1),
    GOLDEN_CASE(loss_scale, optimizer, "good-most", 0x4b72bb7f9c5cf4b4, 0x4b800000, 0),
    GOLDEN_CASE(update_adamw, optimizer, "67-mixed", 0x3863c942b6bc0b78, 67, MIXED),
    GOLDEN_CASE(update_adamw, optimizer, "5003-mixed-bf16", 0xd6b708f980a11b17, 5003, MIXED | BF16),
    GOLDEN_CASE(update_adamw, optimizer, "1031-f16-refused", 0x207705ec7c188119, 1031, F16 | REFUSED),
    GOLDEN_CASE(update_adamw, optimizer, "1031-groups", 0x68c773b5d2aed10b, 1031, MIXED | GROUPS),
    GOLDEN_CASE(adam, optimizer, "1", 0x49297cc411eb38b1, 1, 0),
    GOLDEN_CASE(adam, optimizer, "67", 0x35b63cd269cc274b, 67, 0),
    GOLDEN_CASE(adam, optimizer, "4115-mixed-f16", 0x1f68db2d91c6b2d8, 4115, MIXED | F16),
    GOLDEN_CASE(sgd, optimizer, "1", 0xac149c1b35fa7f2a, 1, 0),
    GOLDEN_CASE(sgd, optimizer, "1031-nesterov", 0x893c626a6aeff4f3, 1031, NESTEROV),
    GOLDEN_CASE(sgd, optimizer, "4115-mixed", 0xa28d394b28322d13, 4115, MIXED),
    GOLDEN_CASE(sgd, optimizer, "1031-groups-nesterov", 0x20b5db25b14e1260, 1031, MIXED | GROUPS | NESTEROV),
    GOLDEN_CASE(lars, optimizer, "1", 0xaf8d5c2c5180caf6, 1, 0),
    GOLDEN_CASE(lars, optimizer, "1031-groups", 0xce27691e872780e0, 1031, MIXED | GROUPS),
    GOLDEN_CASE(lars, optimizer, "67-refused", 0xa3eccaf56155d09a, 67, REFUSED),
    GOLDEN_CASE(lars, optimizer, "9001-mixed", 0x00d67e2d31a61f9e, 9001, MIXED),
    GOLDEN_CASE(lamb, optimizer, "1", 0x8cb6dd754fc99ec2, 1, 0),
    GOLDEN_CASE(lamb, optimizer, "67-refused", 0xad6e9d9bd20bd843, 67, REFUSED),
    GOLDEN_CASE(lamb, optimizer, "9001-mixed-bf16", 0xa24dd8bf3a94c7af, 9001, MIXED | BF16),
};
const struct golden_family golden_optimizer = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};
