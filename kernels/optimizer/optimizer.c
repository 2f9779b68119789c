/* optimizer.c - the norm of a gradient, the loss scale, the update: descriptors to launches. The kernels are
 * in optimizer.cl. */
#include "kernels_internal.h"

#include <keel/optimizer_ops.h>
#include <string.h>

/* ---- the norm ---- */

/* A sum for each page. */
uint64_t keel_norm_tiles_scratch_bytes(uint64_t count)
{
    return KEEL_BYTES(keel_update_page_count(count), sizeof(float));
}

/* A sum for each block of tiles. */
uint64_t keel_norm_scratch_bytes(uint32_t tile_count)
{
    return KEEL_BYTES(tile_count / KEEL_BLOCK_ELEMENTS + 1, sizeof(float));
}

uint64_t keel_norm_page_count(const struct keel_update_tensor *tensors, uint32_t tensor_count)
{
    uint64_t pages = 0;
    for (uint32_t t = 0; t < tensor_count; t++)
        pages = keel_plus(pages, keel_update_page_count(tensors[t].count));
    return pages;
}

enum keel_status keel_norm_find_pages(struct keel_update_tensor *tensors, uint32_t tensor_count,
                                      uint64_t count, uint32_t *pages)
{
    uint64_t next = 0;
    for (uint32_t t = 0; t < tensor_count; t++) {
        struct keel_update_tensor *tensor = &tensors[t];
        struct keel_random_slice box = {tensor->offset, tensor->row, tensor->stride};
        const uint64_t end = next + keel_update_page_count(tensor->count);
        if (tensor->count == 0 || tensor->kind >= KEEL_TENSOR_KIND_COUNT || end > UINT32_MAX ||
            keel_check_random("norm", tensor->count, count, &box) != KEEL_OK)
            return keel_fail(
                KEEL_INVALID,
                "norm: tile %u, %llu elements from %llu on in rows of %llu, %llu apart, is no box of %llu", t,
                (unsigned long long)tensor->count, (unsigned long long)tensor->offset,
                (unsigned long long)tensor->row, (unsigned long long)tensor->stride,
                (unsigned long long)count);
        tensor->row = box.row;
        tensor->stride = box.stride;
        tensor->page = (uint32_t)next;
        for (; next < end; next++)
            pages[next] = t;
    }
    return KEEL_OK;
}

static uint64_t pages_of(const struct keel_norm_tiles *op)
{
    return op->page_count > 0 ? op->page_count : keel_update_page_count(op->count);
}

/* Elements of gradients and moments. */
static uint64_t held_of(uint64_t count, uint64_t held_count)
{
    return held_count > 0 && held_count < count ? held_count : count;
}

static enum keel_status check_norm_tiles(const struct keel_norm_tiles *op)
{
    const uint64_t held_bytes = KEEL_BYTES(held_of(op->count, op->held_count), sizeof(float));
    if (op->x == NULL && op->tiles == NULL)
        return keel_fail(KEEL_INVALID, "norm_tiles: neither gradients nor sums of tiles");
    if (op->count == 0 || op->tensor_count == 0 || op->tile_count == 0)
        return keel_fail(KEEL_INVALID, "norm_tiles: %u tensors and %u tiles in %llu elements",
                         op->tensor_count, op->tile_count, (unsigned long long)op->count);
    return KEEL_CHECK_OPERANDS(
        "norm_tiles", {"x", op->x, held_bytes, KEEL_READ | KEEL_OPTIONAL},
        {"tensors", op->tensors, KEEL_BYTES(op->tensor_count, sizeof(struct keel_update_tensor)), KEEL_READ},
        {"pages", op->pages, KEEL_BYTES(pages_of(op), sizeof(uint32_t)), KEEL_READ},
        {"scratch", op->scratch, KEEL_BYTES(pages_of(op), sizeof(float)), KEEL_WRITTEN},
        {"tiles", op->tiles, KEEL_BYTES(op->tile_count, sizeof(float)), KEEL_WRITTEN | KEEL_OPTIONAL});
}

enum keel_status keel_op_norm_tiles(struct keel_kernels *kernels, const struct keel_norm_tiles *op,
                                    struct keel_launch_list *list)
{
    KEEL_TRY(check_norm_tiles(op));
    const uint64_t page_count = pages_of(op);
    struct keel_range range = keel_kernels_rows(kernels, page_count);
    if (op->x != NULL)
        KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_page_squares", &range,
                                     KEEL_ARGS(keel_arg_buffer(op->x), keel_arg_buffer(op->tensors),
                                               keel_arg_buffer(op->pages), keel_arg_buffer(op->scratch),
                                               keel_arg_u64(page_count), keel_arg_u32(op->tensor_count),
                                               keel_arg_u64(held_of(op->count, op->held_count)))));
    if (op->tiles == NULL)
        return KEEL_OK;
    if (page_count > KEEL_BLOCK_ELEMENTS) /* fewer pages are one block, of whichever tensor they are */
        KEEL_TRY(keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_page_sums", &range,
                                     KEEL_ARGS(keel_arg_buffer(op->tensors), keel_arg_buffer(op->pages),
                                               keel_arg_buffer(op->scratch), keel_arg_u64(page_count),
                                               keel_arg_u32(op->tensor_count))));
    range = keel_kernels_lone_rows(kernels, op->tensor_count);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_tile_sums", &range,
                               KEEL_ARGS(keel_arg_buffer(op->tensors), keel_arg_buffer(op->scratch),
                                         keel_arg_buffer(op->tiles), keel_arg_u64(page_count),
                                         keel_arg_u32(op->tensor_count), keel_arg_u32(op->tile_count)));
}

enum keel_status keel_op_norm(struct keel_kernels *kernels, const struct keel_norm *op,
                              struct keel_launch_list *list)
{
    if (op->tile_count == 0)
        return keel_fail(KEEL_INVALID, "norm: no tiles");
    KEEL_TRY(KEEL_CHECK_OPERANDS(
        "norm", {"tiles", op->tiles, KEEL_BYTES(op->tile_count, sizeof(float)), KEEL_READ},
        {"control", op->control, sizeof(struct keel_control), KEEL_READ},
        {"loss_scale", op->loss_scale, sizeof(float), KEEL_OPTIONAL},
        {"scratch", op->scratch, keel_norm_scratch_bytes(op->tile_count), KEEL_WRITTEN},
        {"norm", op->norm, KEEL_BYTES(op->loss_scale != NULL ? 3 : 2, sizeof(float)), KEEL_WRITTEN}));
    struct keel_range range = keel_kernels_lone_rows(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_norm_finish", &range,
                               KEEL_ARGS(keel_arg_buffer(op->tiles), keel_arg_buffer(op->scratch),
                                         keel_arg_buffer(op->control), keel_arg_buffer(op->norm),
                                         keel_arg_either(op->loss_scale, op->norm),
                                         keel_arg_u32(op->tile_count), keel_arg_u32(op->loss_scale != NULL)));
}

/* ---- the scale of the loss ---- */

enum keel_status keel_op_loss_scale(struct keel_kernels *kernels, const struct keel_loss_scale *op,
                                    struct keel_launch_list *list)
{
    KEEL_TRY(KEEL_CHECK_OPERANDS("loss_scale", {"norm", op->norm, KEEL_BYTES(2, sizeof(float)), KEEL_READ},
                                 {"state", op->state, sizeof(float), KEEL_WRITTEN}));
    struct keel_range range = keel_kernels_range(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_loss_scale", &range,
                               KEEL_ARGS(keel_arg_buffer(op->state), keel_arg_buffer(op->norm)));
}

/* ---- the update ---- */

/* Of optimizer.cl: words of the digest's slots, and work-items that share a page where they share rows. */
enum { SLOT_WORDS = 2 * 256, PAGE_ITEMS = 64 };

struct keel_control keel_update_control(const struct keel_update_settings *settings, float learning_rate,
                                        uint32_t step)
{
    return (struct keel_control){.step = step,
                                 .learning_rate = learning_rate,
                                 .beta1 = settings->beta1,
                                 .beta2 = settings->beta2,
                                 .bias1 = keel_adam_bias(settings->beta1, step + 1),
                                 .bias2 = keel_adam_bias(settings->beta2, step + 1),
                                 .epsilon = settings->epsilon,
                                 .max_norm = settings->max_norm,
                                 .momentum = settings->momentum,
                                 .weight_decay = settings->weight_decay,
                                 .trust = settings->trust};
}

bool keel_optimizer_has_v(enum keel_optimizer optimizer)
{
    return optimizer != KEEL_OPTIMIZER_SGD && optimizer != KEEL_OPTIMIZER_LARS;
}

static bool has_trust(enum keel_optimizer optimizer)
{
    return optimizer == KEEL_OPTIMIZER_LARS || optimizer == KEEL_OPTIMIZER_LAMB;
}

uint64_t keel_update_page_count(uint64_t count)
{
    return count / KEEL_UPDATE_PAGE + (count % KEEL_UPDATE_PAGE != 0);
}

/* Slots of the digest; then the ratio of each tensor and two sums a page. */
uint64_t keel_update_scratch_bytes(const struct keel_update *op)
{
    uint64_t words = SLOT_WORDS;
    if (has_trust(op->optimizer))
        words += op->tensor_count + 2 * keel_update_page_count(op->count);
    return KEEL_BYTES(words, sizeof(uint32_t));
}

enum keel_status keel_update_find_pages(const struct keel_update_tensor *tensors, uint32_t tensor_count,
                                        uint64_t count, uint32_t *pages)
{
    memset(pages, 0xff, keel_size(KEEL_BYTES(keel_update_page_count(count), sizeof *pages)));
    for (uint32_t t = 0; t < tensor_count; t++) {
        const struct keel_update_tensor *tensor = &tensors[t];
        const uint64_t first = tensor->offset / KEEL_UPDATE_PAGE;
        bool fits = tensor->offset % KEEL_UPDATE_PAGE == 0 && tensor->count > 0 && tensor->offset < count &&
                    tensor->count <= count - tensor->offset && tensor->kind < KEEL_TENSOR_KIND_COUNT;
        for (uint64_t p = 0; fits && p < keel_update_page_count(tensor->count); p++) {
            fits = pages[first + p] == UINT32_MAX;
            pages[first + p] = t;
        }
        if (!fits)
            return keel_fail(
                KEEL_INVALID,
                "update: tensor %u, %llu elements at %llu of %llu, begins within a page, overlaps "
                "another or does not fit",
                t, (unsigned long long)tensor->count, (unsigned long long)tensor->offset,
                (unsigned long long)count);
    }
    return KEEL_OK;
}

static enum keel_status check_update(const struct keel_update *op)
{
    const uint64_t bytes = KEEL_BYTES(op->count, sizeof(float));
    const uint64_t held_bytes = KEEL_BYTES(held_of(op->count, op->held_count), sizeof(float));
    if ((unsigned)op->optimizer >= KEEL_OPTIMIZER_COUNT)
        return keel_fail(KEEL_INVALID, "update: no optimizer has number %u", (unsigned)op->optimizer);
    if (op->count == 0 || op->tensor_count == 0)
        return keel_fail(KEEL_INVALID, "update: %u tensors in %llu elements", op->tensor_count,
                         (unsigned long long)op->count);
    if (op->half != NULL && op->half_type != KEEL_BF16 && op->half_type != KEEL_F16)
        return keel_fail(KEEL_INVALID, "update: element type %d is none of 16 bits", (int)op->half_type);
    const bool has_v = keel_optimizer_has_v(op->optimizer);
    return KEEL_CHECK_OPERANDS(
        "update", {"w", op->w, bytes, KEEL_WRITTEN}, {"grad", op->grad, held_bytes, KEEL_READ},
        {"m", op->m, held_bytes, KEEL_WRITTEN},
        {"v", op->v, has_v ? held_bytes : 0, has_v ? KEEL_WRITTEN : KEEL_WRITTEN | KEEL_OPTIONAL},
        {"norm", op->norm, KEEL_BYTES(2, sizeof(float)), KEEL_READ},
        {"control", op->control, sizeof(struct keel_control), KEEL_READ},
        {"tensors", op->tensors, KEEL_BYTES(op->tensor_count, sizeof(struct keel_update_tensor)), KEEL_READ},
        {"pages", op->pages, KEEL_BYTES(keel_update_page_count(op->count), sizeof(uint32_t)), KEEL_READ},
        {"half", op->half, KEEL_BYTES(op->count, sizeof(uint16_t)), KEEL_WRITTEN | KEEL_OPTIONAL},
        {"digest", op->digest, sizeof(uint64_t), KEEL_WRITTEN},
        {"scratch", op->scratch, keel_update_scratch_bytes(op), KEEL_WRITTEN});
}

static enum keel_status launch_trust(struct keel_kernels *kernels, const struct keel_update *op,
                                     struct keel_launch_list *list)
{
    const uint64_t page_count = keel_update_page_count(op->count);
    struct keel_range range = keel_kernels_range(kernels, page_count);
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_optimizer, "keel_trust_blocks", &range,
        KEEL_ARGS(keel_arg_buffer(op->w), keel_arg_buffer(op->grad), keel_arg_buffer(op->m),
                  keel_arg_either(op->v, op->m), keel_arg_buffer(op->norm), keel_arg_buffer(op->control),
                  keel_arg_buffer(op->tensors), keel_arg_buffer(op->pages), keel_arg_buffer(op->scratch),
                  keel_arg_u64(page_count), keel_arg_u32(op->tensor_count), keel_arg_u32(op->optimizer),
                  keel_arg_u64(held_of(op->count, op->held_count)))));
    range = keel_kernels_lone_rows(kernels, op->tensor_count);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_trust_ratios", &range,
                               KEEL_ARGS(keel_arg_buffer(op->tensors), keel_arg_buffer(op->scratch),
                                         keel_arg_buffer(op->norm), keel_arg_buffer(op->control),
                                         keel_arg_u64(page_count), keel_arg_u32(op->tensor_count),
                                         keel_arg_u32(op->optimizer)));
}

enum keel_status keel_op_update(struct keel_kernels *kernels, const struct keel_update *op,
                                struct keel_launch_list *list)
{
    KEEL_TRY(check_update(op));
    if (has_trust(op->optimizer))
        KEEL_TRY(launch_trust(kernels, op, list));
    const uint32_t block = keel_kernels_item_elements(kernels);
    struct keel_range range =
        keel_kernels_share_rows(kernels)
            ? keel_kernels_range(kernels, keel_update_page_count(op->count) * PAGE_ITEMS)
            : keel_kernels_range(kernels, (op->count + block - 1) / block);
    KEEL_TRY(keel_kernels_launch(
        kernels, list, KEEL_MODULE_optimizer, "keel_update", &range,
        KEEL_ARGS(keel_arg_buffer(op->w), keel_arg_buffer(op->grad), keel_arg_buffer(op->m),
                  keel_arg_either(op->v, op->m), keel_arg_buffer(op->norm), keel_arg_buffer(op->control),
                  keel_arg_buffer(op->tensors), keel_arg_buffer(op->pages), keel_arg_buffer(op->scratch),
                  /* as ratios, and as slots */ keel_arg_buffer(op->scratch),
                  keel_arg_either(op->half, op->w), keel_arg_u64(op->count), keel_arg_u32(op->optimizer),
                  keel_arg_u32(op->nesterov),
                  keel_arg_u32(op->half != NULL ? (uint32_t)op->half_type : KEEL_F32), keel_arg_u32(block),
                  keel_arg_u32(op->tensor_count), keel_arg_u64(held_of(op->count, op->held_count)))));
    range = keel_kernels_range(kernels, 1);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_optimizer, "keel_update_digest", &range,
                               KEEL_ARGS(keel_arg_buffer(op->scratch), keel_arg_buffer(op->digest)));
}
