/* decode_host.c - decode.cl in C: the reference, and what the host device runs. */
#include "canon.h"

#include "alibi.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_decode;

/* One head of one row. */
struct place {
    uint64_t head, batch, number; /* number: of the head, over all rows */
    uint64_t sequence;            /* whose keys and values it has */
    uint64_t heads, kv_heads, width, capacity;
    uint64_t count; /* keys that there are, its own among them; 0: none */
    uint64_t begin; /* the first that it sees */
};

/* `position` is an argument, and behind it are slot and slots. */
static void find_place(struct place *place, void *const *arguments, int position, uint64_t of,
                       uint64_t number)
{
    place->number = number;
    place->head = number % of;
    place->batch = number / of;
    const int32_t at = ((const int32_t *)arguments[position])[place->batch];
    const uint32_t slots = u32_at(arguments, position + 2);
    place->sequence =
        slots > 0 ? (uint32_t)((const int32_t *)arguments[position + 1])[place->batch] : place->batch;
    const bool there = at >= 0 && (uint64_t)at < place->capacity && (slots == 0 || place->sequence < slots);
    place->count = there ? (uint64_t)at + 1 : 0;
}

/* The token sees so many keys before it. */
static void look_behind(struct place *place, uint32_t behind)
{
    place->begin = place->count > (uint64_t)behind + 1 ? place->count - behind - 1 : 0;
}

/* The scalars of a kernel: heads, kv_heads, width and capacity, behind position, slot and slots. `number`
 * counts heads of queries. */
static struct place place_of(void *const *arguments, int position, uint64_t number)
{
    const int first = position + 3;
    struct place place = {.heads = u32_at(arguments, first),
                          .kv_heads = u32_at(arguments, first + 1),
                          .width = u32_at(arguments, first + 2),
                          .capacity = u32_at(arguments, first + 3)};
    find_place(&place, arguments, position, place.heads, number);
    return place;
}

static const float *row_of(const struct place *place, const float *qkv, uint64_t head)
{
    return qkv + (place->batch * (place->heads + 2 * place->kv_heads) + head) * place->width;
}

/* Of the keys or values that a head of those has. */
static uint64_t kept_at(const struct place *place, uint64_t part, uint64_t head)
{
    return ((place->sequence * 2 + part) * place->kv_heads + head) * place->capacity * place->width;
}

static uint64_t shared_by(const struct place *place)
{
    return place->head / (place->heads / place->kv_heads);
}

static uint64_t work_at(const struct place *place)
{
    return place->number * (place->capacity + KEEL_LANES);
}

static void host_decode_keep(KEEL_HOST_ARGUMENTS)
{
    float *cache = arguments[1];
    for (uint64_t number = 0; number < range->global[0] * range->global[1]; number++) {
        struct place place = place_of(arguments, 2, 0);
        find_place(&place, arguments, 2, place.kv_heads, number);
        const float *k = row_of(&place, arguments[0], place.heads + place.head);
        const float *v = k + place.kv_heads * place.width;
        for (uint64_t d = 0; d < place.width && place.count > 0; d++) {
            cache[kept_at(&place, 0, place.head) + d * place.capacity + place.count - 1] = k[d];
            cache[kept_at(&place, 1, place.head) + (place.count - 1) * place.width + d] = v[d];
        }
    }
}

KEEL_HOST_KERNEL static float score(const struct place *place, const float *q, const float *keys, float scale)
{
    float s = 0.0F;
    for (uint64_t d = 0; d < place->width; d++)
        s = fmaf(q[d], keys[d * place->capacity], s);
    return s * scale;
}

static void host_decode_scores(KEEL_HOST_ARGUMENTS)
{
    float *work = arguments[2];
    const float scale = f32_at(arguments, 10);
    const uint32_t heads = u32_at(arguments, 12), first = u32_at(arguments, 13);
    for (uint64_t number = 0; number < range->global[1] * range->global[2]; number++) {
        struct place place = place_of(arguments, 3, number);
        look_behind(&place, u32_at(arguments, 11));
        const float slope = heads > 0 ? alibi_slope(first + (uint32_t)place.head, heads) : 0.0F;
        const float *keys = (const float *)arguments[1] + kept_at(&place, 0, shared_by(&place));
        const float *q = row_of(&place, arguments[0], place.head);
        for (uint64_t j = place.begin; j < place.count; j++) {
            const float s = score(&place, q, keys + j, scale);
            work[work_at(&place) + j] = heads > 0 ? canon_fma(-slope, (float)(place.count - 1 - j), s) : s;
        }
    }
}

static void host_decode_weigh(KEEL_HOST_ARGUMENTS)
{
    for (uint64_t number = 0; number < range->global[0] * range->global[1]; number++) {
        struct place place = {.heads = u32_at(arguments, 4), .capacity = u32_at(arguments, 5)};
        find_place(&place, arguments, 1, place.heads, number);
        look_behind(&place, u32_at(arguments, 6));
        float *row = (float *)arguments[0] + work_at(&place), largest = -INFINITY, sum = 0.0F;
        for (uint64_t j = place.begin; j < place.count; j++)
            largest = row[j] > largest ? row[j] : largest;
        largest = largest + 0.0F;
        for (uint64_t j = place.begin; j < place.count; j++) {
            row[j] = canon_exp(row[j] - largest);
            sum = sum + row[j];
        }
        row[place.capacity] = sum;
    }
}

KEEL_HOST_KERNEL static void add_scaled(float a, const float *x, uint64_t width, float *y)
{
    for (uint64_t d = 0; d < width; d++)
        y[d] = fmaf(a, x[d], y[d]);
}

static void host_decode_mix(KEEL_HOST_ARGUMENTS)
{
    for (uint64_t number = 0; number < range->global[1] * range->global[2]; number++) {
        struct place place = place_of(arguments, 3, number);
        look_behind(&place, u32_at(arguments, 10));
        const float *row = (const float *)arguments[0] + work_at(&place);
        const float *values = (const float *)arguments[1] + kept_at(&place, 1, shared_by(&place));
        float *o = (float *)arguments[2] + number * place.width;
        for (uint64_t d = 0; d < place.width; d++)
            o[d] = 0.0F;
        for (uint64_t j = place.begin; j < place.count; j++)
            add_scaled(row[j], values + j * place.width, place.width, o);
        for (uint64_t d = 0; d < place.width && place.count > 0; d++)
            o[d] = canon_divide(o[d], row[place.capacity]) + 0.0F;
    }
}

static const struct keel_module_kernel decode_kernels[] = {{"keel_decode_keep", host_decode_keep},
                                                           {"keel_decode_scores", host_decode_scores},
                                                           {"keel_decode_weigh", host_decode_weigh},
                                                           {"keel_decode_mix", host_decode_mix}};

const struct keel_module keel_module_decode = KEEL_MODULE("decode", keel_cl_decode, decode_kernels);
