/* decode_host.c - decode.cl in C: the reference, and what the host device runs. */
#include "canon.h"

#include "alibi.h"
#include "bf16_math.h"
#include "exact8_math.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_decode;

EXACT8_DIGITS(uint32_t, int32_t, (uint32_t), (int32_t), )
EXACT8_VALUE(float, uint32_t, int32_t, canon_as_bits, (uint32_t), (int32_t), canon_as_real, (float), fmaf, )
#define ALWAYS(condition) (condition)
BF16_MATH(float, uint32_t, canon_as_bits, canon_as_real, fmaf, ALWAYS, canon_to_bf16, )

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

/* ---- products of a class ---- */

/* Numbers `step` apart; with exponents, a column of values. */
struct line {
    const float *x;
    uint64_t step;
    const int32_t *exponents;
    uint32_t digits;
};
static uint32_t bits_at(const struct line *line, uint64_t i)
{
    const float x = line->x[i * line->step];
    if (line->exponents == NULL)
        return canon_as_bits(x);
    if (line->exponents[i] == EXACT8_NOT_FINITE)
        return 0;
    return canon_as_bits(line->digits == 1 ? x : exact8_scale(x, -line->exponents[i]));
}
static int32_t exponent_of(const struct line *line, uint64_t first, uint64_t end)
{
    uint32_t most = 0;
    if (line->exponents != NULL)
        return 0;
    for (uint64_t i = first; i < end; i++)
        most = (bits_at(line, i) & 0x7fffffffU) > most ? bits_at(line, i) & 0x7fffffffU : most;
    return exact8_exponent(most);
}

/* Of elements first to end - 1, not more than PLANES_BLOCK. */
static float block_value(const struct line *a, const struct line *b, uint64_t first, uint64_t end,
                         uint32_t digits)
{
    const int32_t ea = exponent_of(a, first, end), eb = exponent_of(b, first, end);
    int32_t sums[EXACT8_DIGITS_MAX] = {0};
    for (uint64_t i = first; i < end; i++) {
        int32_t p = exact8_integer(bits_at(a, i), ea, digits), q = exact8_integer(bits_at(b, i), eb, digits);
        int32_t x[EXACT8_DIGITS_MAX], y[EXACT8_DIGITS_MAX];
        for (uint32_t d = digits; d-- > 0;) {
            x[d] = d > 0 ? exact8_digit(&p) : p;
            y[d] = d > 0 ? exact8_digit(&q) : q;
        }
        for (uint32_t d = 0; d < digits; d++)
            for (uint32_t e = 0; d + e < digits; e++)
                sums[d + e] += x[d] * y[e];
    }
    float v = exact8_float(sums[digits - 1]);
    for (uint32_t level = digits - 1; level-- > 0;)
        v = fmaf(exact8_float(sums[level]), (float)(1U << 8 * (digits - 1 - level)), v);
    return exact8_scale(v, ea + eb - 8 * (int32_t)digits - 6);
}

static uint32_t pair_at(const struct line *line, uint64_t i, uint64_t begin, uint64_t end)
{
    return (i >= begin ? bf16_bits(bits_at(line, i)) : 0) |
           (i + 1 < end ? bf16_bits(bits_at(line, i + 1)) << 16 : 0);
}

/* Elements begin to end - 1 of two lines, block by block from element 0 on. */
static float class_dot(const struct line *a, const struct line *b, uint64_t begin, uint64_t end,
                       uint32_t digits)
{
    float sum = 0.0F;
    for (uint64_t i = begin / 2 * 2; digits == 1 && i < end; i += 2)
        sum = bf16_pair(sum, pair_at(a, i, begin, end), pair_at(b, i, begin, end));
    for (uint64_t i = begin; digits > 1 && i < end;) {
        const uint64_t next = i / PLANES_BLOCK * PLANES_BLOCK + PLANES_BLOCK, last = next < end ? next : end;
        const float value = block_value(a, b, i, last, digits);
        sum = i == begin ? value : sum + value;
        i = last;
    }
    return sum;
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
    const uint32_t heads = u32_at(arguments, 12), first = u32_at(arguments, 13),
                   digits = u32_at(arguments, 14);
    for (uint64_t number = 0; number < range->global[1] * range->global[2]; number++) {
        struct place place = place_of(arguments, 3, number);
        look_behind(&place, u32_at(arguments, 11));
        const float slope = heads > 0 ? alibi_slope(first + (uint32_t)place.head, heads) : 0.0F;
        const float *keys = (const float *)arguments[1] + kept_at(&place, 0, shared_by(&place));
        const float *q = row_of(&place, arguments[0], place.head);
        for (uint64_t j = place.begin; j < place.count; j++) {
            const struct line a = {.x = q, .step = 1}, b = {.x = keys + j, .step = place.capacity};
            const float s = digits == 0 ? score(&place, q, keys + j, scale)
                                        : class_dot(&a, &b, 0, place.width, digits) * scale;
            work[work_at(&place) + j] = heads > 0 ? canon_fma(-slope, (float)(place.count - 1 - j), s) : s;
        }
    }
}

/* Exponentials become weights of a class; returns their sum. */
static float class_weigh(const struct place *place, const float *values, uint32_t digits, float *row,
                         int32_t *exponents)
{
    float lanes[KEEL_LANES] = {0};
    for (uint64_t j = place->begin; j < place->count; j++) {
        const struct line value = {.x = values + j * place->width, .step = 1};
        const int32_t e = exponent_of(&value, 0, place->width);
        lanes[j % KEEL_LANES] = lanes[j % KEEL_LANES] + row[j];
        exponents[j] = e;
        row[j] = e == EXACT8_NOT_FINITE ? NAN : digits == 1 ? row[j] : exact8_scale(row[j], e);
    }
    return canon_fold(lanes);
}
/* The exponents of values of this head, behind the rows of all. */
static int32_t *exponents_of(const struct place *place, float *work, uint64_t heads)
{
    return (int32_t *)(void *)(work + heads * (place->capacity + KEEL_LANES) +
                               place->number * place->capacity);
}

static void host_decode_weigh(KEEL_HOST_ARGUMENTS)
{
    const uint64_t all = range->global[0] * range->global[1];
    for (uint64_t number = 0; number < all; number++) {
        struct place place = place_of(arguments, 2, number);
        look_behind(&place, u32_at(arguments, 9));
        const uint32_t digits = u32_at(arguments, 10);
        float *row = (float *)arguments[0] + work_at(&place), largest = -INFINITY, sum = 0.0F;
        for (uint64_t j = place.begin; j < place.count; j++)
            largest = row[j] > largest ? row[j] : largest;
        largest = largest + 0.0F;
        for (uint64_t j = place.begin; j < place.count; j++) {
            row[j] = canon_exp(row[j] - largest);
            sum = sum + row[j];
        }
        if (digits > 0)
            sum = class_weigh(&place, (const float *)arguments[1] + kept_at(&place, 1, shared_by(&place)),
                              digits, row, exponents_of(&place, arguments[0], all));
        row[place.capacity] = sum;
    }
}

KEEL_HOST_KERNEL static void add_scaled(float a, const float *x, uint64_t width, float *y)
{
    for (uint64_t d = 0; d < width; d++)
        y[d] = fmaf(a, x[d], y[d]);
}

static void class_mix(const struct place *place, const float *row, const int32_t *exponents,
                      const float *values, uint32_t digits, float *o)
{
    const struct line weights = {.x = row, .step = 1};
    for (uint64_t d = 0; d < place->width; d++) {
        const struct line column = {values + d, place->width, exponents, digits};
        o[d] = class_dot(&weights, &column, place->begin, place->count, digits);
    }
}

static void host_decode_mix(KEEL_HOST_ARGUMENTS)
{
    const uint64_t all = range->global[1] * range->global[2];
    const uint32_t digits = u32_at(arguments, 11);
    for (uint64_t number = 0; number < all; number++) {
        struct place place = place_of(arguments, 3, number);
        look_behind(&place, u32_at(arguments, 10));
        float *work = arguments[0], *row = work + work_at(&place);
        const float *values = (const float *)arguments[1] + kept_at(&place, 1, shared_by(&place));
        float *o = (float *)arguments[2] + number * place.width;
        for (uint64_t d = 0; d < place.width; d++)
            o[d] = 0.0F;
        if (digits > 0)
            class_mix(&place, row, exponents_of(&place, work, all), values, digits, o);
        for (uint64_t j = place.begin; j < place.count && digits == 0; j++)
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
