/* optimizer_host.c - optimizer.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

#include <keel/optimizer_ops.h>

extern const struct keel_packed_text keel_cl_optimizer;

/* How many of `count` elements the block that begins at `start` has. */
static uint32_t block_length(uint64_t start, uint64_t count)
{
    return count - start < KEEL_BLOCK_ELEMENTS ? (uint32_t)(count - start) : KEEL_BLOCK_ELEMENTS;
}

/* ---- the norm ---- */

/* Of n elements of a box from `start` on. */
static inline float box_squares(const float *x, uint64_t count, const struct keel_update_tensor *t,
                                uint64_t start, uint64_t n)
{
    float lanes[KEEL_LANES] = {0};
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = t->offset + (start + i) / t->row * t->stride + (start + i) % t->row;
        const float v = at < count ? x[at] : 0.0F;
        lanes[i % KEEL_LANES] = canon_fma(v, v, lanes[i % KEEL_LANES]);
    }
    return canon_fold(lanes);
}

KEEL_HOST_KERNEL static void host_page_squares(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    const struct keel_update_tensor *tensors = arguments[1];
    const uint32_t *pages = arguments[2];
    float *scratch = arguments[3];
    const uint64_t page_count = u64_at(arguments, 4), count = u64_at(arguments, 6);
    for (uint64_t p = 0; p < page_count; p++) {
        if (pages[p] >= u32_at(arguments, 5))
            continue;
        const struct keel_update_tensor *t = &tensors[pages[p]];
        if (t->row > 0) {
            const uint64_t begin = (p - t->page) * KEEL_UPDATE_PAGE;
            if (t->kind <= KEEL_TENSOR_DECAY && p >= t->page && begin < t->count)
                scratch[p] =
                    box_squares(x, count, t, begin,
                                t->count - begin < KEEL_UPDATE_PAGE ? t->count - begin : KEEL_UPDATE_PAGE);
            continue;
        }
        const uint64_t start = p * KEEL_UPDATE_PAGE, all = t->offset + t->count;
        const uint64_t end = all < count ? all : count;
        if (t->kind > KEEL_TENSOR_DECAY || start < t->offset || start >= end)
            continue;
        const uint64_t n = end - start < KEEL_UPDATE_PAGE ? end - start : KEEL_UPDATE_PAGE;
        float lanes[KEEL_LANES] = {0};
        for (uint64_t i = 0; i < n; i++)
            lanes[i % KEEL_LANES] = canon_fma(x[start + i], x[start + i], lanes[i % KEEL_LANES]);
        scratch[p] = canon_fold(lanes);
    }
}

/* The tree whose leaves are the `count` sums at `from`; sums of blocks go to `to`, which may be `from`. */
static float tree_sum(const float *from, float *to, uint64_t count)
{
    while (count > 1) {
        uint64_t blocks = 0;
        for (uint64_t at = 0; at < count; at += KEEL_BLOCK_ELEMENTS)
            to[blocks++] = canon_sum_run(from + at, block_length(at, count));
        from = to;
        count = blocks;
    }
    return from[0];
}

static uint64_t first_page(const struct keel_update_tensor *t)
{
    return t->row > 0 ? t->page : t->offset / KEEL_UPDATE_PAGE;
}

static uint64_t summed_pages(const struct keel_update_tensor *t, uint64_t page_count)
{
    const uint64_t first = first_page(t), held = keel_update_page_count(t->count);
    return t->kind <= KEEL_TENSOR_DECAY && first < page_count && held <= page_count - first ? held : 0;
}

static void host_page_sums(KEEL_HOST_ARGUMENTS)
{
    const struct keel_update_tensor *tensors = arguments[0];
    const uint32_t *pages = arguments[1];
    float *scratch = arguments[2];
    const uint64_t page_count = u64_at(arguments, 3);
    for (uint64_t page = 0; page < page_count; page++) {
        if (pages[page] >= u32_at(arguments, 4))
            continue;
        const struct keel_update_tensor *t = &tensors[pages[page]];
        const uint64_t held = summed_pages(t, page_count), within = page - first_page(t);
        if (held > KEEL_BLOCK_ELEMENTS && within < held && within % KEEL_BLOCK_ELEMENTS == 0)
            scratch[page] = canon_sum_run(scratch + page, block_length(within, held));
    }
}

static void host_tile_sums(KEEL_HOST_ARGUMENTS)
{
    const struct keel_update_tensor *tensors = arguments[0];
    float *scratch = arguments[1], *tiles = arguments[2];
    for (uint32_t t = 0; t < u32_at(arguments, 4); t++) {
        uint64_t held = summed_pages(&tensors[t], u64_at(arguments, 3));
        float *sums = scratch + first_page(&tensors[t]);
        if (held > KEEL_BLOCK_ELEMENTS) {
            const uint64_t blocks = held / KEEL_BLOCK_ELEMENTS + (held % KEEL_BLOCK_ELEMENTS != 0);
            for (uint64_t b = 1; b < blocks; b++)
                sums[b] = sums[b * KEEL_BLOCK_ELEMENTS];
            held = blocks;
        }
        if (tensors[t].tile < u32_at(arguments, 5))
            tiles[tensors[t].tile] = held > 0 ? tree_sum(sums, sums, held) : 0.0F;
    }
}

static void host_norm_finish(KEEL_HOST_ARGUMENTS)
{
    const struct keel_control *control = arguments[2];
    float *norm = arguments[3], unscale = 1.0F;
    float value = canon_sqrt(tree_sum(arguments[0], arguments[1], u32_at(arguments, 5)));
    const float max_norm = control->max_norm;
    if (u32_at(arguments, 6) != 0) {
        const float scale = canon_power_of_two(f32_at(arguments, 4));
        unscale = canon_as_real(0x7f000000U - canon_as_bits(scale));
        value = value * unscale;
        norm[2] = scale;
    }
    float factor = max_norm > 0.0f && value > max_norm ? canon_divide(max_norm, value) : 1.0f;
    norm[0] = value;
    norm[1] = (canon_as_bits(value) & 0x7f800000u) == 0x7f800000u ? 0.0f : factor * unscale;
}

static void host_loss_scale(KEEL_HOST_ARGUMENTS)
{
    uint32_t *state = arguments[0];
    const float *norm = arguments[1];
    const uint32_t least = 127U << 23, most = 151U << 23;
    const uint32_t halved = (*state & 0x7f800000U) - (1U << 23), more = *state + (1U << 12);
    if (norm[1] == 0.0F)
        *state = halved > least ? halved : least;
    else
        *state = more < most ? more : most;
}

/* ---- the update ---- */

enum { SLOT_WORDS = 512 };

struct rates {
    float factor, rate, beta1, beta2, rest1, rest2, scale1, scale2, epsilon, momentum, decay, ratio;
    enum keel_optimizer optimizer;
    bool nesterov;
};

static struct rates read_rates(const float *norm, const struct keel_control *control, uint32_t optimizer)
{
    struct rates r = {.factor = norm[1],
                      .rate = control->learning_rate,
                      .beta1 = control->beta1,
                      .beta2 = control->beta2,
                      .rest1 = 1.0F - control->beta1,
                      .rest2 = 1.0F - control->beta2,
                      .epsilon = control->epsilon,
                      .momentum = control->momentum,
                      .ratio = 1.0F,
                      .optimizer = (enum keel_optimizer)optimizer};
    if (keel_optimizer_has_v(r.optimizer)) {
        r.scale1 = canon_divide(1.0F, control->bias1);
        r.scale2 = canon_divide(1.0F, control->bias2);
    }
    return r;
}

static inline void take_moments(const struct rates *r, float g, float *m, float *v)
{
    *m = canon_flush(canon_fma(r->beta1, *m, r->rest1 * g));
    *v = canon_flush(canon_fma(r->beta2, *v, (r->rest2 * g) * g));
}
static inline float direction(const struct rates *r, float m, float v)
{
    return canon_divide(m * r->scale1, canon_sqrt(v * r->scale2) + r->epsilon);
}
static inline float adam_step(const struct rates *r, float x, float g, float *m, float *v)
{
    const bool adam = r->optimizer == KEEL_OPTIMIZER_ADAM;
    if (adam)
        g = canon_fma(r->decay, x, g);
    if (r->optimizer != KEEL_OPTIMIZER_LAMB)
        take_moments(r, g, m, v);
    return canon_fma(-(r->rate * r->ratio), canon_fma(adam ? 0.0F : r->decay, x, direction(r, *m, *v)), x);
}
static inline float momentum_step(const struct rates *r, float x, float g, float *m)
{
    g = canon_fma(r->decay, x, g);
    const bool lars = r->optimizer == KEEL_OPTIMIZER_LARS;
    *m = canon_flush(canon_fma(r->momentum, *m, lars ? (r->rate * r->ratio) * g : g));
    if (lars)
        return x - *m;
    return canon_fma(-r->rate, r->nesterov ? canon_fma(r->momentum, *m, g) : *m, x);
}

/* The flat buffers of one update. */
struct flats {
    float *w, *m, *v;
    const float *grad;
    uint16_t *half;
    uint32_t half_type;
    uint64_t held; /* elements of grad, m, v */
};

static inline void update_tensor(const struct flats *flats, const struct keel_update_tensor *tensor,
                                 const struct rates *r)
{
    const bool momentum = !keel_optimizer_has_v(r->optimizer);
    const bool moves = r->factor != 0.0F && tensor->kind != KEEL_TENSOR_KEPT &&
                       tensor->offset + tensor->count <= flats->held;
    for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
        float x = flats->w[i];
        const float g = moves ? flats->grad[i] : 0.0F;
        if (tensor->kind <= KEEL_TENSOR_DECAY && moves)
            x = momentum ? momentum_step(r, x, g * r->factor, &flats->m[i])
                         : adam_step(r, x, g * r->factor, &flats->m[i], &flats->v[i]);
        if (tensor->kind == KEEL_TENSOR_STATISTIC && moves)
            x = canon_fma(tensor->factor, g - x, x);
        flats->w[i] = x;
        if (flats->half_type == KEEL_BF16)
            flats->half[i] = (uint16_t)canon_to_bf16(canon_as_bits(x));
        if (flats->half_type == KEEL_F16)
            flats->half[i] = (uint16_t)canon_to_f16(canon_as_bits(x));
    }
}

/* Where tensors lie, as the device's memory has it. */
struct map {
    const struct keel_update_tensor *tensors;
    const uint32_t *pages;
    uint32_t tensor_count;
    uint64_t count; /* elements of the flat buffers */
};

/* The tensor that begins with page p and lies within, or NULL. */
static const struct keel_update_tensor *tensor_at(const struct map *map, uint64_t p)
{
    if (map->pages[p] >= map->tensor_count)
        return NULL;
    const struct keel_update_tensor *tensor = &map->tensors[map->pages[p]];
    const uint64_t offset = p * KEEL_UPDATE_PAGE;
    return tensor->offset == offset && tensor->count <= map->count - offset ? tensor : NULL;
}

/* All tensors, one after the other: a tensor is met at its first page. */
KEEL_HOST_KERNEL static void host_update(KEEL_HOST_ARGUMENTS)
{
    const struct flats flats = {.w = arguments[0],
                                .grad = arguments[1],
                                .m = arguments[2],
                                .v = arguments[3],
                                .half = arguments[10],
                                .half_type = u32_at(arguments, 14),
                                .held = u64_at(arguments, 17)};
    const struct keel_control *control = arguments[5];
    const struct map map = {arguments[6], arguments[7], u32_at(arguments, 16), u64_at(arguments, 11)};
    const float *ratios = (const float *)arguments[8] + SLOT_WORDS;
    uint32_t *slots = arguments[9];
    struct rates r = read_rates(arguments[4], control, u32_at(arguments, 12));
    r.nesterov = u32_at(arguments, 13) != 0;
    uint64_t sum = slots[0] + ((uint64_t)slots[1] << 32);
    for (uint64_t p = 0; p < keel_update_page_count(u64_at(arguments, 11)); p++) {
        const struct keel_update_tensor *tensor = tensor_at(&map, p);
        if (tensor == NULL)
            continue;
        const bool trust = r.optimizer == KEEL_OPTIMIZER_LARS || r.optimizer == KEEL_OPTIMIZER_LAMB;
        r.rate = control->learning_rate * tensor->factor;
        r.decay = tensor->kind == KEEL_TENSOR_DECAY ? control->weight_decay : 0.0F;
        r.ratio = trust ? ratios[map.pages[p]] : 1.0F;
        update_tensor(&flats, tensor, &r);
        const uint64_t row = tensor->row > 0 ? tensor->row : tensor->count;
        const struct keel_random_slice numbers = {tensor->first_element, row, tensor->stride};
        sum += keel_digest_rows(flats.w + tensor->offset, tensor->count, 0, &numbers);
    }
    slots[0] = (uint32_t)sum;
    slots[1] = (uint32_t)(sum >> 32);
}

static void host_update_digest(KEEL_HOST_ARGUMENTS)
{
    uint32_t *slots = arguments[0];
    uint64_t sum = 0;
    for (uint32_t s = 0; s < SLOT_WORDS; s += 2) {
        sum += slots[s] + ((uint64_t)slots[s + 1] << 32);
        slots[s] = slots[s + 1] = 0;
    }
    *(uint64_t *)arguments[1] = sum;
}

/* ---- trust ratios ---- */

/* One block of a tensor, `length` elements at flat element i. */
static inline void trust_block(void *const *arguments, const struct rates *r, uint64_t i, uint32_t length,
                               float *of_weights, float *of_steps)
{
    const float *w = (const float *)arguments[0] + i, *grad = (const float *)arguments[1] + i;
    float *m = (float *)arguments[2] + i, *v = (float *)arguments[3] + i;
    float weights[KEEL_LANES] = {0}, steps[KEEL_LANES] = {0};
    for (uint32_t e = 0; e < length; e++) {
        const float x = w[e];
        float s = grad[e] * r->factor;
        if (r->optimizer == KEEL_OPTIMIZER_LAMB) {
            take_moments(r, s, &m[e], &v[e]);
            s = canon_fma(r->decay, x, direction(r, m[e], v[e]));
        }
        weights[e % KEEL_LANES] = canon_fma(x, x, weights[e % KEEL_LANES]);
        steps[e % KEEL_LANES] = canon_fma(s, s, steps[e % KEEL_LANES]);
    }
    *of_weights = canon_fold(weights);
    *of_steps = canon_fold(steps);
}

KEEL_HOST_KERNEL static void host_trust_blocks(KEEL_HOST_ARGUMENTS)
{
    const struct keel_control *control = arguments[5];
    const struct map map = {arguments[6], arguments[7], u32_at(arguments, 10), u64_at(arguments, 12)};
    const uint64_t page_count = u64_at(arguments, 9);
    float *sums = (float *)arguments[8] + SLOT_WORDS + u32_at(arguments, 10);
    struct rates r = read_rates(arguments[4], control, u32_at(arguments, 11));
    for (uint64_t p = 0; p < page_count && r.factor != 0.0F; p++) {
        const struct keel_update_tensor *tensor = tensor_at(&map, p);
        if (tensor == NULL || tensor->kind > KEEL_TENSOR_DECAY)
            continue;
        r.decay = tensor->kind == KEEL_TENSOR_DECAY ? control->weight_decay : 0.0F;
        for (uint64_t start = 0; start < tensor->count; start += KEEL_BLOCK_ELEMENTS) {
            const uint64_t at = p + start / KEEL_BLOCK_ELEMENTS;
            trust_block(arguments, &r, tensor->offset + start, block_length(start, tensor->count), &sums[at],
                        &sums[page_count + at]);
        }
    }
}

static float tree_root(float *sums, uint64_t count)
{
    return canon_sqrt(tree_sum(sums, sums, count));
}

static void host_trust_ratios(KEEL_HOST_ARGUMENTS)
{
    const struct keel_update_tensor *tensors = arguments[0];
    const float *norm = arguments[2];
    const struct keel_control *control = arguments[3];
    const uint64_t page_count = u64_at(arguments, 4);
    const uint32_t tensor_count = u32_at(arguments, 5);
    float *ratios = (float *)arguments[1] + SLOT_WORDS, *sums = ratios + tensor_count;
    for (uint32_t t = 0; t < tensor_count; t++) {
        ratios[t] = 1.0F;
        const uint64_t at = tensors[t].offset / KEEL_UPDATE_PAGE;
        const uint64_t blocks =
            tensors[t].count / KEEL_BLOCK_ELEMENTS + (tensors[t].count % KEEL_BLOCK_ELEMENTS != 0);
        if (tensors[t].kind != KEEL_TENSOR_DECAY || norm[1] == 0.0F || blocks == 0 ||
            at + blocks > page_count)
            continue;
        const float weights = tree_root(sums + at, blocks), steps = tree_root(sums + page_count + at, blocks);
        if (!(weights > 0.0F && steps > 0.0F))
            continue;
        ratios[t] =
            u32_at(arguments, 6) == KEEL_OPTIMIZER_LAMB
                ? canon_divide(weights, steps)
                : canon_divide(control->trust * weights, canon_fma(control->weight_decay, weights, steps));
    }
}

static const struct keel_module_kernel optimizer_kernels[] = {
    {"keel_page_squares", host_page_squares},   {"keel_page_sums", host_page_sums},
    {"keel_tile_sums", host_tile_sums},         {"keel_norm_finish", host_norm_finish},
    {"keel_loss_scale", host_loss_scale},       {"keel_update", host_update},
    {"keel_update_digest", host_update_digest}, {"keel_trust_blocks", host_trust_blocks},
    {"keel_trust_ratios", host_trust_ratios},
};

const struct keel_module keel_module_optimizer =
    KEEL_MODULE("optimizer", keel_cl_optimizer, optimizer_kernels);
