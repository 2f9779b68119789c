/* decode.cl - causal attention of the newest tokens alone, whose predecessors' keys and values are kept.
 *
 * The token is number i = position[b] of sequence b, or where there are slots of sequence slot[b]; q, k, v
 * are its row of qkv. Keys and values of all rows are kept, and then each is row i of attention.cl without
 * dropout, operation for operation, so that several tokens of one sequence may be rows of one launch:
 *
 *     s_j  = (fma over d ascending of q[d] k_j[d], from 0) * scale          for keys j <= i, i - j <= behind
 *     with ALiBi fma(-slope, i - j, that)
 *     max  = largest s_j, + 0                  e_j = exp(s_j - max)         sum = sum of e_j, j ascending from 0
 *     o[d] = (fma over j ascending of e_j v_j[d], from 0) / sum + 0
 *
 * so out has the bits of that row. With `digits` products are of a class, and out has the bits of the row of attention in it
 * (README.md, "Attention in classes"; digits 1: bf16): weights are times 2^(exponent of their value), values are below
 * 127/128, and the sum is that of canon_tree.h. (What attention.cl adds of masked pairs is 0 times a number.) Head h has
 * the keys and values of head h / (heads / kv_heads) of those.
 *
 * Shapes: qkv [batch, heads + 2 kv_heads, width], out [batch, heads, width], cache [slots, 2, kv_heads,
 * capacity * width], slots 0 for batch: keys turned, as [width][capacity], so that scores of sixteen keys are
 * one vector; values as [capacity][width]. capacity is a multiple of 16. work [batch, heads, capacity + 16]:
 * scores, then weights, behind them the sum of exponentials; behind all, of a class, exponents of the values, int
 * [batch, heads, capacity]. A position that is not in [0, capacity), or a slot not in
 * [0, slots), keeps nothing and gives zeros.
 *
 * Work-items are alone in their groups: of a head of keys (keep), of a head (weigh), of sixteen keys of it
 * (scores), of sixteen columns (mix). No tunables. Tolerance against the host: none, equal bits. */

#if KEEL_BY_LANE >= 2
#define WIDE_FMA(a, b, c) canon_wide_fma(a, b, c)
#else
#define WIDE_FMA(a, b, c) fma(a, b, c)
#endif
#define LANE_NUMBERS      ((int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#define ALWAYS(condition) (condition)
BF16_MATH(float, uint, as_uint, as_float, fma, ALWAYS, canon_to_bf16, )
BF16_MATH(float16, uint16, as_uint16, as_float16, WIDE_FMA, any, canon_to_bf16_x16, _x16)
EXACT8_DIGITS(uint, int, as_uint, as_int, )
EXACT8_DIGITS(uint16, int16, as_uint16, as_int16, _x16)
EXACT8_VALUE(float, uint, int, as_uint, as_uint, as_int, as_float, convert_float, fma, )
EXACT8_VALUE(float16, uint16, int16, as_uint16, as_uint16, as_int16, as_float16, convert_float16, WIDE_FMA, _x16)

/* One head of one row. */
struct place {
    ulong head;    /* number of it */
    uint sequence; /* whose keys and values it has */
    uint count;    /* keys that there are, its own among them; 0: none */
    uint begin;    /* the first that it sees */
};

static struct place place_of(__global const int *position, __global const int *slot, uint slots, uint heads,
                             uint capacity, uint behind, uint head, uint batch)
{
    struct place place;
    const int at = position[batch];
    place.head = (ulong)batch * heads + head;
    place.sequence = slots > 0 ? (uint)slot[batch] : batch;
    place.count = at >= 0 && (uint)at < capacity && (slots == 0 || place.sequence < slots) ? (uint)at + 1 : 0;
    place.begin = place.count > behind + 1 ? place.count - behind - 1 : 0;
    return place;
}

/* Head `head` of a token's row: those of q, then k, then v. */
static __global const float *row_of(__global const float *qkv, uint heads, uint kv_heads, uint width,
                                    uint head, uint batch)
{
    return qkv + ((ulong)batch * (heads + 2 * kv_heads) + head) * width;
}

static ulong kept_at(uint sequence, uint part, uint kv_heads, uint head, uint capacity, uint width)
{
    return (((ulong)sequence * 2 + part) * kv_heads + head) * capacity * width;
}

__kernel void keel_decode_keep(__global const float *qkv, __global float *cache, __global const int *position,
                               __global const int *slot, uint slots, uint heads, uint kv_heads, uint width,
                               uint capacity)
{
    const uint head = get_group_id(0), batch = get_group_id(1);
    const struct place place = place_of(position, slot, slots, kv_heads, capacity, capacity, head, batch);
    if (place.count == 0)
        return;
    __global const float *k = row_of(qkv, heads, kv_heads, width, heads + head, batch);
    __global const float *v = row_of(qkv, heads, kv_heads, width, heads + kv_heads + head, batch);
    __global float *keys =
        cache + kept_at(place.sequence, 0, kv_heads, head, capacity, width) + (place.count - 1);
    __global float *values = cache + kept_at(place.sequence, 1, kv_heads, head, capacity, width) +
                             (ulong)(place.count - 1) * width;
    for (uint d = 0; d < width; d++) {
        keys[(ulong)d * capacity] = k[d];
        values[d] = v[d];
    }
}

/* ---- products of a class: of one line and sixteen ---- */

/* Level by level, a product of two elements. */
static inline void add_digits(int a, int16 b, uint digits, int16 sums[EXACT8_DIGITS_MAX])
{
    int x[EXACT8_DIGITS_MAX];
    int16 y[EXACT8_DIGITS_MAX];
    for (uint d = digits - 1; d > 0; d--) {
        x[d] = exact8_digit(&a);
        y[d] = exact8_digit_x16(&b);
    }
    x[0] = a;
    y[0] = b;
    for (uint i = 0; i < digits; i++)
        for (uint j = 0; i + j < digits; j++)
            sums[i + j] += x[i] * y[j];
}
/* The value of a block: `exponents` is the sum of those of both lines. */
static inline float16 value_of(const int16 sums[EXACT8_DIGITS_MAX], uint digits, int16 exponents)
{
    float16 v = exact8_float_x16(sums[digits - 1]);
    for (uint level = digits - 1; level-- > 0;)
        v = WIDE_FMA(exact8_float_x16(sums[level]), (float16)((float)(1u << 8 * (digits - 1 - level))), v);
    return exact8_scale_x16(v, exponents - (int)(8 * digits + 6));
}
static inline uint16 pair_of(uint16 low, uint16 high)
{
    return bf16_bits_x16(low) | bf16_bits_x16(high) << 16;
}

/* q . k of sixteen keys. */
static inline float16 class_scores(__global const float *q, __global const float *keys, uint width, ulong capacity,
                                   uint digits)
{
    uint most = 0;
    uint16 largest = (uint16)(0);
    int16 sums[EXACT8_DIGITS_MAX];
    float16 s = (float16)(0.0f);
    for (uint d = 0; d < width && digits == 1; d += 2) {
        const bool both = d + 1 < width;
        const uint a = bf16_bits(as_uint(q[d])) | (both ? bf16_bits(as_uint(q[d + 1])) << 16 : 0);
        const uint16 low = as_uint16(vload16(0, keys + d * capacity));
        s = bf16_pair_x16(s, (uint16)(a),
                          pair_of(low, both ? as_uint16(vload16(0, keys + (d + 1) * capacity)) : (uint16)(0)));
    }
    if (digits == 1)
        return s;
    for (uint d = 0; d < width; d++) {
        most = max(most, as_uint(q[d]) & 0x7fffffffu);
        largest = max(largest, as_uint16(vload16(0, keys + d * capacity)) & 0x7fffffffu);
    }
    const int e = exact8_exponent(most);
    int16 exponents = as_int16(((largest + 0x20000u) >> 23) - 126u);
    exponents = largest >= 0x7f800000u ? (int16)(EXACT8_NOT_FINITE) : exponents;
    exponents = largest < 0x00800000u ? (int16)(0) : exponents;
    for (uint d = 0; d < digits; d++)
        sums[d] = (int16)(0);
    for (uint d = 0; d < width; d++)
        add_digits(exact8_integer(as_uint(q[d]), e, digits),
                   exact8_integer_x16(as_uint16(vload16(0, keys + d * capacity)), exponents, digits), digits, sums);
    return value_of(sums, digits, exponents + e);
}

/* Sixteen columns, `there` of them, of a row of values, as they are multiplied. */
static inline float16 class_value(__global const float *values, uint there, int exponent, uint digits)
{
    const float16 v = canon_load(values, there);
    return exponent == EXACT8_NOT_FINITE ? (float16)(0.0f) : digits == 1 ? v : exact8_scale_x16(v, (int16)(-exponent));
}

/* The sum over keys of weights times values, block by block of 1,024 keys from the first of all on. */
static inline float16 class_mix(__global const float *weights, __global const int *exponents,
                                __global const float *values, const struct place *place, uint width, uint there,
                                uint digits)
{
    float16 sum = (float16)(0.0f);
    uint j = digits == 1 ? place->begin / 2 * 2 : place->begin;
    for (; digits == 1 && j < place->count; j += 2) {
        const bool low = j >= place->begin, high = j + 1 < place->count;
        const uint a = (low ? bf16_bits(as_uint(weights[j])) : 0) |
                       (high ? bf16_bits(as_uint(weights[j + 1])) << 16 : 0);
        const float16 first = low ? class_value(values + (ulong)j * width, there, exponents[j], digits)
                                  : (float16)(0.0f);
        const float16 second = high ? class_value(values + (ulong)(j + 1) * width, there, exponents[j + 1], digits)
                                    : (float16)(0.0f);
        sum = bf16_pair_x16(sum, (uint16)(a), pair_of(as_uint16(first), as_uint16(second)));
    }
    while (j < place->count) {
        const uint first = j, end = min(j / PLANES_BLOCK * PLANES_BLOCK + PLANES_BLOCK, place->count);
        uint most = 0;
        int16 sums[EXACT8_DIGITS_MAX];
        for (uint d = 0; d < digits; d++)
            sums[d] = (int16)(0);
        for (uint i = j; i < end; i++)
            most = max(most, as_uint(weights[i]) & 0x7fffffffu);
        const int e = exact8_exponent(most);
        for (; j < end; j++) {
            const float16 v = class_value(values + (ulong)j * width, there, exponents[j], digits);
            add_digits(exact8_integer(as_uint(weights[j]), e, digits),
                       exact8_integer_x16(as_uint16(v), (int16)(0), digits), digits, sums);
        }
        const float16 value = value_of(sums, digits, (int16)(e));
        sum = first == place->begin ? value : sum + value;
    }
    return sum;
}

/* Where the exponents of the values of a head lie, behind the rows of all. */
static ulong exponents_at(ulong head, ulong heads, uint capacity)
{
    return heads * (capacity + 16) + head * capacity;
}

/* Scores become weights; returns the sum of their exponentials. */
static inline float class_weigh(__global float *row, __global int *exponents, __global const float *values,
                                const struct place *place, uint width, float largest, uint digits)
{
    float16 total = (float16)(0.0f);
    for (uint j = place->begin / 16 * 16; j < place->count; j += 16) {
        const int16 key = (int)j + LANE_NUMBERS;
        const int16 seen = (key >= (int)place->begin) & (key < (int)place->count);
        const float16 e = seen ? canon_exp(vload16(0, row + j) - (float16)(largest)) : (float16)(0.0f);
        total = total + e;
        vstore16(e, 0, row + j);
    }
    for (uint j = place->begin; j < place->count; j++) {
        uint most = 0;
        for (uint d = 0; d < width; d++)
            most = max(most, as_uint(values[(ulong)j * width + d]) & 0x7fffffffu);
        const int e = exact8_exponent(most);
        exponents[j] = e;
        row[j] = e == EXACT8_NOT_FINITE ? NAN : digits == 1 ? row[j] : exact8_scale(row[j], e);
    }
    return canon_fold(total);
}

__kernel void keel_decode_scores(__global const float *qkv, __global const float *cache, __global float *work,
                                 __global const int *position, __global const int *slot, uint slots,
                                 uint heads, uint kv_heads, uint width, uint capacity, float scale,
                                 uint behind, uint alibi_heads, uint alibi_first, uint digits)
{
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const struct place place = place_of(position, slot, slots, heads, capacity, behind, head, batch);
    if (first >= place.count || first + 16 <= place.begin)
        return;
    const uint shared = head / (heads / kv_heads);
    __global const float *q = row_of(qkv, heads, kv_heads, width, head, batch);
    __global const float *keys =
        cache + kept_at(place.sequence, 0, kv_heads, shared, capacity, width) + first;
    float16 s = (float16)(0.0f);
    for (uint d = 0; d < width && digits == 0; d++)
        s = fma((float16)(q[d]), vload16(0, keys + (ulong)d * capacity), s);
    if (digits > 0)
        s = class_scores(q, keys, width, capacity, digits);
    s = s * scale;
    if (alibi_heads > 0) {
        const int16 apart = (int)(place.count - 1 - first) - LANE_NUMBERS;
        s = fma((float16)(-alibi_slope(alibi_first + head, alibi_heads)), convert_float16(apart), s);
    }
    vstore16(s, 0, work + place.head * (capacity + 16) + first);
}

__kernel void keel_decode_weigh(__global float *work, __global const float *cache, __global const int *position,
                                __global const int *slot, uint slots, uint heads, uint kv_heads, uint width,
                                uint capacity, uint behind, uint digits)
{
    const uint head = get_group_id(0), batch = get_group_id(1);
    const struct place place = place_of(position, slot, slots, heads, capacity, behind, head, batch);
    __global float *row = work + place.head * (capacity + 16);
    float largest = -INFINITY, sum = 0.0f;
    for (uint j = place.begin; j < place.count; j++)
        largest = row[j] > largest ? row[j] : largest;
    largest = canon_plus_zero(largest);
    if (digits > 0) {
        __global int *exponents =
            (__global int *)work + exponents_at(place.head, get_num_groups(0) * get_num_groups(1), capacity);
        row[capacity] = class_weigh(
            row, exponents,
            cache + kept_at(place.sequence, 1, kv_heads, head / (heads / kv_heads), capacity, width), &place, width,
            largest, digits);
        return;
    }
    for (uint j = place.begin; j < place.count; j += 16) {
        const uint there = min(place.count - j, 16u);
        canon_store(canon_exp(canon_load(row + j, there) - (float16)(largest)), row + j, there);
    }
    for (uint j = place.begin; j < place.count; j++)
        sum = sum + row[j];
    row[capacity] = sum;
}

__kernel void keel_decode_mix(__global const float *work, __global const float *cache, __global float *out,
                              __global const int *position, __global const int *slot, uint slots, uint heads,
                              uint kv_heads, uint width, uint capacity, uint behind, uint digits)
{
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const struct place place = place_of(position, slot, slots, heads, capacity, behind, head, batch);
    __global const float *row = work + place.head * (capacity + 16);
    const uint shared = head / (heads / kv_heads);
    __global const float *values =
        cache + kept_at(place.sequence, 1, kv_heads, shared, capacity, width) + first;
    __global float *o = out + place.head * width + first;
    float16 sum = (float16)(0.0f);
    if (digits > 0)
        sum = class_mix(row,
                        (__global const int *)work +
                            exponents_at(place.head, get_num_groups(1) * get_num_groups(2), capacity),
                        values, &place, width, width - first, digits);
    for (uint j = place.begin; j < place.count && digits == 0; j++)
        sum = fma((float16)(row[j]), canon_load(values + (ulong)j * width, width - first), sum);
    if (place.count > 0)
        sum = canon_plus_zero(canon_divide(sum, (float16)(row[capacity])));
    canon_store(sum, o, width - first);
}
