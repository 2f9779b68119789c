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
 * so out has the bits of that row. (What attention.cl adds of masked pairs is 0 times a number.) Head h has
 * the keys and values of head h / (heads / kv_heads) of those.
 *
 * Shapes: qkv [batch, heads + 2 kv_heads, width], out [batch, heads, width], cache [slots, 2, kv_heads,
 * capacity * width], slots 0 for batch: keys turned, as [width][capacity], so that scores of sixteen keys are
 * one vector; values as [capacity][width]. capacity is a multiple of 16. work [batch, heads, capacity + 16]:
 * scores, then exponentials, behind them their sum. A position that is not in [0, capacity), or a slot not in
 * [0, slots), keeps nothing and gives zeros.
 *
 * Work-items are alone in their groups: of a head of keys (keep), of a head (weigh), of sixteen keys of it
 * (scores), of sixteen columns (mix). No tunables. Tolerance against the host: none, equal bits. */

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

__kernel void keel_decode_scores(__global const float *qkv, __global const float *cache, __global float *work,
                                 __global const int *position, __global const int *slot, uint slots,
                                 uint heads, uint kv_heads, uint width, uint capacity, float scale,
                                 uint behind, uint alibi_heads, uint alibi_first)
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
    for (uint d = 0; d < width; d++)
        s = fma((float16)(q[d]), vload16(0, keys + (ulong)d * capacity), s);
    s = s * scale;
    if (alibi_heads > 0) {
        const int16 apart =
            (int)(place.count - 1 - first) - (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        s = fma((float16)(-alibi_slope(alibi_first + head, alibi_heads)), convert_float16(apart), s);
    }
    vstore16(s, 0, work + place.head * (capacity + 16) + first);
}

__kernel void keel_decode_weigh(__global float *work, __global const int *position, __global const int *slot,
                                uint slots, uint heads, uint capacity, uint behind)
{
    const uint head = get_group_id(0), batch = get_group_id(1);
    const struct place place = place_of(position, slot, slots, heads, capacity, behind, head, batch);
    __global float *row = work + place.head * (capacity + 16);
    float largest = -INFINITY, sum = 0.0f;
    for (uint j = place.begin; j < place.count; j++)
        largest = row[j] > largest ? row[j] : largest;
    largest = canon_plus_zero(largest);
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
                              uint kv_heads, uint width, uint capacity, uint behind)
{
    const uint first = get_group_id(0) * 16, head = get_group_id(1), batch = get_group_id(2);
    const struct place place = place_of(position, slot, slots, heads, capacity, behind, head, batch);
    __global const float *row = work + place.head * (capacity + 16);
    const uint shared = head / (heads / kv_heads);
    __global const float *values =
        cache + kept_at(place.sequence, 1, kv_heads, shared, capacity, width) + first;
    __global float *o = out + place.head * width + first;
    float16 sum = (float16)(0.0f);
    for (uint j = place.begin; j < place.count; j++)
        sum = fma((float16)(row[j]), canon_load(values + (ulong)j * width, width - first), sum);
    if (place.count > 0)
        sum = canon_plus_zero(canon_divide(sum, (float16)(row[capacity])));
    canon_store(sum, o, width - first);
}
