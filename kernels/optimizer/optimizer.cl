/* optimizer.cl - the norm of a gradient, the loss scale, and the update of all weights.
 *
 * norm:  page_squares   scratch[p] = sum of x^2 over page p of a trained tensor, by fma in 16 lanes
 *        page_sums      the first level of the tree over the pages of a tensor that has more than a block of them,
 *                       4096: scratch[p] of the first page of each block = the sum of the block
 *        tile_sums      tiles[t.tile] = the tree over the pages of tensor t; 0 where it is not trained
 *        norm_finish    norm[0] = sqrt(the tree over all tiles) / scale, norm[1] = 1 / scale, or less:
 *                       max_norm / norm[0] / scale, or 0 when norm[0] is not finite; norm[2] = scale, a power of
 *                       two (1: no division)
 *
 *        A tensor with a row is a box of x: element i lies at offset + i / row * stride + i % row, and its pages
 *        begin with `page`.
 *
 * update, one element: x the weight, d the decay (0 for a plain tensor), rate = learning_rate * factor of the tensor,
 * all in this order:
 *        g = grad * norm[1]
 *   Adam, AdamW, LAMB     (Adam: g = fma(d, x, g) first, and d = 0 from there on)
 *        m = flush(fma(beta1, m, (1 - beta1) * g))
 *        v = flush(fma(beta2, v, ((1 - beta2) * g) * g))
 *        u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)
 *        x = fma(-rate, fma(d, x, u), x)             LAMB: x = fma(-(rate * ratio), fma(d, x, u), x)
 *   SGD  g = fma(d, x, g);  m = flush(fma(momentum, m, g))
 *        x = fma(-rate, m, x)                        Nesterov: x = fma(-rate, fma(momentum, m, g), x)
 *   LARS m = flush(fma(momentum, m, (rate * ratio) * fma(d, x, g)));  x = x - m
 *   statistic  x = fma(factor of the tensor, grad - x, x)
 *     When norm[1] is 0 the step was refused: x, m and v stay as they are.
 * trust, before the update: for each block of 4096 elements of a tensor the sums of squares of x and of g (LARS) or
 *     fma(d, x, u) (LAMB, whose m and v are made here), by fma in 16 lanes; then the tree over the blocks of each
 *     tensor. LARS: ratio = (trust * |w|) / fma(d, |w|, |g|). LAMB: |w| / |s|.
 *
 * Shapes: flat arrays of `count`, in pages of 1024 elements of one tensor each. Division and square root are the
 * canonical ones; flush makes denormals zero, so that moments that fade cost no more than others. The tree is that
 * of canon_tree.h. The digest (digest.cl) is an integer sum, in any order: 256 slots of two words take what the
 * work-items find, by 32-bit atomic additions with carry, and update_digest empties them. Tunable: block, elements
 * per work-item (a multiple of 16), changes no bit. Where lanes are many, sixteen work-items share a sum (canon_row.h) and
 * sixty-four a page of the update.
 * control: struct keel_control as floats, 4 learning_rate, 5 beta1, 6 beta2, 7 bias1, 8 bias2,
 * 9 epsilon, 10 max_norm, 11 momentum, 12 weight_decay, 13 trust. */

#define DECAY     1u
#define STATISTIC 2u
#define PAGE      1024

/* What `pages` and `tensors` say is held against what there is, so that a bit that flipped there reads and
 * writes nothing outside the buffers: the number of a page of nobody is as far off as a wrong one. */
struct tensor {
    ulong offset, count, first;
    uint kind;
    float factor;
    uint tile, page;
    ulong row, stride;
};

/* Squares of n elements of a box from `start` on, in lanes. */
#if KEEL_ROW_ITEMS > 1
static float box_squares(__global const float *x, ulong count, const struct tensor *t, ulong start, uint n)
{
    ulong base = t->offset + start / t->row * t->stride, column = start % t->row + ROW_LANE;
    float s = 0.0f;
    for (uint i = ROW_LANE; i < n; i += 16, column += 16) {
        for (; column >= t->row; column -= t->row)
            base += t->stride;
        const float v = base + column < count ? x[base + column] : 0.0f;
        s = fma(v, v, s);
    }
    return s;
}
#else
/* Go on by n elements of a box, n at most what is left of the row. */
static inline void box_pass(const struct tensor *t, ulong *base, ulong *column, ulong n)
{
    *column += n;
    if (*column == t->row) {
        *column = 0;
        *base += t->stride;
    }
}

/* Sixteen elements of a box at `column` of the row that begins at x[base], of which `left` are in the box; then
 * those come that follow. */
static float16 box_gather(__global const float *x, ulong count, const struct tensor *t, ulong *base, ulong *column,
                          uint left)
{
    float lanes[16];
    for (uint l = 0; l < 16; l++) {
        lanes[l] = l < left && *base + *column < count ? x[*base + *column] : 0.0f;
        box_pass(t, base, column, 1);
    }
    return vload16(0, lanes);
}

/* Whole vectors of a row as they lie, others gathered. */
static float16 box_squares(__global const float *x, ulong count, const struct tensor *t, ulong start, uint n)
{
    ulong base = t->offset + start / t->row * t->stride, column = start % t->row;
    float16 s = (float16)(0.0f), v;
    for (uint i = 0; i < n;) {
        const ulong run = min(t->row - column, (ulong)(n - i)) / 16 * 16, from = base + column;
        if (run > 0 && run <= count && from <= count - run) {
            for (ulong j = 0; j < run; j += 16) {
                v = vload16(0, x + from + j);
                s = fma(v, v, s);
            }
            box_pass(t, &base, &column, run);
            i += (uint)run;
        } else {
            v = box_gather(x, count, t, &base, &column, n - i);
            s = fma(v, v, s);
            i += 16;
        }
    }
    return s;
}
#endif

/* Squares of n elements that lie together, in lanes. */
static inline row_real run_squares(__global const float *x, uint n)
{
    row_real s = (row_real)(0.0f);
    uint i = 0;
    ROW_UNROLL for (; i + 16 <= n; i += 16)
    {
        const row_real v = row_load(x + i, 16);
        s = fma(v, v, s);
    }
    if (i < n) {
        const row_real v = row_load(x + i, n - i);
        s = fma(v, v, s);
    }
    return s;
}

__kernel void keel_page_squares(__global const float *x, __global const struct tensor *tensors,
                                __global const uint *pages, __global float *scratch, ulong page_count,
                                uint tensor_count, ulong count)
{
    ROW_FOLDS(folds);
    const ulong page = ROW_NUMBER, start = page * PAGE;
    const bool known = page < page_count && pages[page] < tensor_count;
    const struct tensor t = tensors[known ? pages[page] : 0];
    const bool box = t.row > 0;
    const ulong begin = box ? (page - t.page) * PAGE : start, end = box ? t.count : min(t.offset + t.count, count);
    const bool summed = known && t.kind <= DECAY && begin < end && (box ? page >= t.page : start >= t.offset);
    const uint n = summed ? (uint)min(end - begin, (ulong)PAGE) : 0;
    const float sum = row_fold(box ? box_squares(x, count, &t, begin, n) : run_squares(x + start, n), folds);
    if (summed && ROW_LEADS)
        scratch[page] = sum;
}

/* The tree whose leaves are the `count` sums at `from`; sums of blocks go to `to`, which may be `from`: block b lies
 * behind what is read. Of work-items that share a row a group has one row. */
CANON_INLINE float tree_sum(__global const float *from, __global float *to, ulong count, __local float *folds)
{
    while (count > 1) {
        ulong blocks = 0;
        for (ulong at = 0; at < count; at += 4096, blocks++) {
            const float sum = row_sum_run(from + at, (uint)min(count - at, (ulong)4096), folds);
            if (ROW_LEADS)
                to[blocks] = sum;
        }
        ROW_SYNC
        from = to;
        count = blocks;
    }
    return from[0];
}

static inline ulong first_page(const struct tensor t)
{
    return t.row > 0 ? t.page : t.offset / PAGE;
}

/* Pages of a tensor; 0 where they have no sum, or do not fit. */
static inline ulong summed_pages(const struct tensor t, ulong page_count)
{
    const ulong first = first_page(t), held = t.count / PAGE + (t.count % PAGE != 0);
    return t.kind <= DECAY && first < page_count && held <= page_count - first ? held : 0;
}

/* A row is a block of 4096 pages of a tensor, and alone read where its sum is written. */
__kernel void keel_page_sums(__global const struct tensor *tensors, __global const uint *pages,
                             __global float *scratch, ulong page_count, uint tensor_count)
{
    ROW_FOLDS(folds);
    const ulong page = ROW_NUMBER;
    const bool known = page < page_count && pages[page] < tensor_count;
    const struct tensor t = tensors[known ? pages[page] : 0];
    const ulong held = summed_pages(t, page_count), within = page - first_page(t);
    const bool begins = known && held > 4096 && within < held && within % 4096 == 0;
    const float sum = row_sum_run(scratch + page, begins ? (uint)min(held - within, (ulong)4096) : 0, folds);
    if (begins && ROW_LEADS)
        scratch[page] = sum;
}

__kernel void keel_tile_sums(__global const struct tensor *tensors, __global float *scratch, __global float *tiles,
                             ulong page_count, uint tensor_count, uint tile_count)
{
    ROW_FOLDS(folds);
    const uint number = (uint)ROW_NUMBER;
    if (number >= tensor_count || tensors[number].tile >= tile_count)
        return;
    const struct tensor t = tensors[number];
    ulong held = summed_pages(t, page_count);
    __global float *sums = scratch + first_page(t);
    if (held > 4096) { /* page_sums was here */
        const ulong blocks = held / 4096 + (held % 4096 != 0);
        for (ulong b = 1; b < blocks && ROW_LEADS; b++)
            sums[b] = sums[b * 4096];
        ROW_SYNC
        held = blocks;
    }
    const float sum = held > 0 ? tree_sum(sums, sums, held, folds) : 0.0f;
    if (ROW_LEADS)
        tiles[t.tile] = sum;
}

__kernel void keel_norm_finish(__global const float *tiles, __global float *scratch, __global const float *control,
                               __global float *norm, __global const float *loss_scale, uint tile_count,
                               uint has_scale)
{
    ROW_FOLDS(folds);
    if (ROW_NUMBER != 0)
        return;
    float value = canon_sqrt(tree_sum(tiles, scratch, tile_count, folds)), unscale = 1.0f;
    const float max_norm = control[10];
    if (has_scale) {
        const float scale = canon_power_of_two(loss_scale[0]);
        unscale = as_float(0x7f000000u - as_uint(scale));
        value = value * unscale;
        if (ROW_LEADS)
            norm[2] = scale;
    }
    float factor = max_norm > 0.0f && value > max_norm ? canon_divide(max_norm, value) : 1.0f;
    if (!ROW_LEADS)
        return;
    norm[0] = value;
    norm[1] = (as_uint(value) & 0x7f800000u) == 0x7f800000u ? 0.0f : factor * unscale;
}

/* 2^12 is a 2048th of a power of two, in the bits of a float. */
__kernel void keel_loss_scale(__global uint *state, __global const float *norm)
{
    if (get_global_id(0) != 0)
        return;
    const uint bits = state[0], least = 127u << 23, most = 151u << 23;
    const uint halved = (bits & 0x7f800000u) - (1u << 23);
    state[0] = norm[1] == 0.0f ? max(halved, least) : min(bits + (1u << 12), most);
}

/* ---- the update ---- */

#define ADAMW 0u
#define ADAM  1u
#define SGD   2u
#define LARS  3u
#define LAMB  4u

/* Scratch: slots of the digest, ratios by tensor, sums of squares of weights and of steps by page. */
#define SLOT_WORDS 512

struct rates {
    float factor, rate, beta1, beta2, rest1, rest2, scale1, scale2, epsilon, momentum, decay, ratio;
    uint optimizer, nesterov;
};

static inline struct rates read_rates(__global const float *norm, __global const float *control, uint optimizer,
                                      uint nesterov)
{
    struct rates r;
    r.factor = norm[1];
    r.rate = control[4], r.beta1 = control[5], r.beta2 = control[6], r.epsilon = control[9];
    r.rest1 = 1.0f - r.beta1, r.rest2 = 1.0f - r.beta2;
    r.scale1 = r.scale2 = 0.0f;
    if (optimizer != SGD && optimizer != LARS) {
        r.scale1 = canon_divide(1.0f, control[7]);
        r.scale2 = canon_divide(1.0f, control[8]);
    }
    r.momentum = control[11], r.decay = control[12], r.ratio = 1.0f;
    r.optimizer = optimizer, r.nesterov = nesterov;
    return r;
}


CANON_INLINE void take_moments(const struct rates *r, float16 g, float16 *m, float16 *v)
{
    *m = canon_flush(fma((float16)(r->beta1), *m, r->rest1 * g));
    *v = canon_flush(fma((float16)(r->beta2), *v, (r->rest2 * g) * g));
}

/* Whether floats of these bits are in [2^low, 2^high). */
#define WITHIN(bits, low, high) ((bits) - ((127u + (low)) << 23) < (uint16)((uint)((high) - (low)) << 23))

/* m / (sqrt(v) + epsilon), each correctly rounded. Far from both ends of the exponents the steps of canon_sqrt
 * and canon_divide give the same bits on the numbers themselves as on their mantissas, for a power of two
 * changes no rounding: then what those do about exponents, zeros and NaN is left out, half of them. */
CANON_INLINE float16 quotient(float16 m, float16 v, float epsilon)
{
#if KEEL_BY_LANE == 0
    const int16 usual = (WITHIN(as_uint16(v), -70, 60) | (v == 0.0f)) &
                        (WITHIN(as_uint16(m) & 0x7fffffffu, -60, 60) | (m == 0.0f));
    if (epsilon >= 0x1p-40f && epsilon < 0x1p59f && canon_all(usual)) {
        const float16 y = canon_rsqrt_seeded(v), s = v * y;
        const float16 d = fma(fma(-s, s, v), 0.5f * y, s) + epsilon;
        float16 r = canon_reciprocal(d);
        r = fma(fma(-d, r, (float16)(1.0f)), r, r);
        const float16 q = m * r;
        const float16 rounded = fma(fma(-d, q, m), r, q);
        return as_float16(as_uint16(rounded) | (as_uint16(m) & 0x80000000u)); /* -0 / d is -0 */
    }
#endif
    return canon_divide(m, canon_sqrt(v) + epsilon);
}
CANON_INLINE float16 direction(const struct rates *r, float16 m, float16 v)
{
    return quotient(m * r->scale1, v * r->scale2, r->epsilon);
}

/* Sixteen elements of a work-item, n from p on to the end of what is updated: they lie together, or four times four,
 * PART_STEP apart, where sixty-four share a page. */
#if KEEL_ROW_ITEMS > 1
enum { PART_STEP = PAGE / 4 };
static inline float16 part_load(__global const float *p, uint n)
{
    float lanes[16];
    if (n >= 3 * PART_STEP + 4) {
        _Pragma("unroll") for (uint q = 0; q < 4; q++)
            vstore4(*(__global const float4 *)(p + q * PART_STEP), q, lanes);
        return vload16(0, lanes);
    }
    _Pragma("unroll") for (uint e = 0; e < 16; e++)
    {
        const uint at = e / 4 * PART_STEP + e % 4;
        lanes[e] = at < n ? p[at] : 0.0f;
    }
    return vload16(0, lanes);
}
static inline void part_store(float16 v, __global float *p, uint n)
{
    float lanes[16];
    vstore16(v, 0, lanes);
    if (n >= 3 * PART_STEP + 4) {
        _Pragma("unroll") for (uint q = 0; q < 4; q++)
            *(__global float4 *)(p + q * PART_STEP) = vload4(q, lanes);
        return;
    }
    _Pragma("unroll") for (uint e = 0; e < 16; e++)
    {
        const uint at = e / 4 * PART_STEP + e % 4;
        if (at < n)
            p[at] = lanes[e];
    }
}
static inline void part_store_halves(uint16 v, __global ushort *p, uint n)
{
    uint lanes[16];
    vstore16(v, 0, lanes);
    _Pragma("unroll") for (uint e = 0; e < 16; e++)
    {
        const uint at = e / 4 * PART_STEP + e % 4;
        if (at < n)
            p[at] = (ushort)lanes[e];
    }
}
/* The words of x, which are those from element `start` of a tensor on. */
static inline ulong mix_part(uint16 x, const struct tensor *t, ulong start, uint n)
{
    uint words[16];
    ulong sum = 0;
    vstore16(x, 0, words);
    _Pragma("unroll") for (uint e = 0; e < 16; e++)
    {
        const uint at = e / 4 * PART_STEP + e % 4;
        const ulong element = start + at,
                    number = t->row == 0 ? element : element / t->row * t->stride + element % t->row;
        ulong z = words[e] + (t->first + number) * 0x9e3779b97f4a7c15UL;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
        sum += at < n ? z ^ (z >> 31) : 0;
    }
    return sum;
}
#else
#define part_load         canon_load
#define part_store        canon_store
#define part_store_halves canon_store_halves
#endif

/* The new weights of n elements at i; moments are written. */
CANON_INLINE float16 adam_step(const struct rates *r, float16 x, float16 g, __global float *m, __global float *v,
                               ulong i, uint n)
{
    float16 first = part_load(m + i, n), second = part_load(v + i, n);
    if (r->optimizer != LAMB) {
        if (r->optimizer == ADAM)
            g = fma((float16)(r->decay), x, g);
        take_moments(r, g, &first, &second);
        part_store(first, m + i, n);
        part_store(second, v + i, n);
    }
    const float16 u = direction(r, first, second);
    const float decay = r->optimizer == ADAM ? 0.0f : r->decay;
    return fma((float16)(-(r->rate * r->ratio)), fma((float16)(decay), x, u), x);
}
CANON_INLINE float16 momentum_step(const struct rates *r, float16 x, float16 g, __global float *m, ulong i, uint n)
{
    const float16 old = part_load(m + i, n);
    g = fma((float16)(r->decay), x, g);
    const float16 pushed = r->optimizer == LARS ? (r->rate * r->ratio) * g : g;
    const float16 now = canon_flush(fma((float16)(r->momentum), old, pushed));
    part_store(now, m + i, n);
    if (r->optimizer == LARS)
        return x - now;
    return fma((float16)(-r->rate), r->nesterov ? fma((float16)(r->momentum), now, g) : now, x);
}

#if KEEL_ROW_ITEMS == 1
static inline ulong8 mix(ulong8 z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}
/* Of n words, the first of which is number `first`: a loop of its own over what is still in the inner cache, since
 * within the loop of the update it cost twice as much. */
static inline ulong8 mix_words(__global const uint *x, ulong first, uint n)
{
    const ulong golden = 0x9e3779b97f4a7c15UL;
    const ulong8 lane = (ulong8)(0, 1, 2, 3, 4, 5, 6, 7);
    ulong8 sum = (ulong8)(0), index = ((ulong8)(first) + lane) * golden;
    uint i = 0;
    for (; i + 8 <= n; i += 8) {
        sum += mix(convert_ulong8(vload8(0, x + i)) + index);
        index += (ulong8)(8 * golden);
    }
    for (; i < n; i++)
        sum.s0 += mix((ulong8)(x[i] + (first + i) * golden)).s0;
    return sum;
}

/* Of n words from element `start` of a tensor on, which may be a box of another. */
static inline ulong8 mix_box(__global const uint *x, const struct tensor *t, ulong start, uint n)
{
    if (t->row == 0)
        return mix_words(x, t->first + start, n);
    ulong8 sum = (ulong8)(0);
    ulong row = start / t->row, column = start % t->row;
    for (uint i = 0; i < n; row++, column = 0) {
        const uint run = (uint)min((ulong)(n - i), t->row - column);
        sum += mix_words(x + i, t->first + row * t->stride + column, run);
        i += run;
    }
    return sum;
}

#endif

static inline void add_to_slot(volatile __global uint *slots, uint number, ulong sum)
{
    const uint slot = (number & 255u) * 2, low = (uint)sum;
    const uint old = atomic_add(slots + slot, low);
    atomic_add(slots + slot + 1, (uint)(sum >> 32) + (old + low < old ? 1u : 0u));
}

/* n elements at i of a tensor, as they are now. */
CANON_INLINE uint16 update_at(const struct rates *r, bool trained, bool statistic, float factor, __global float *w,
                            __global const float *grad, __global float *m, __global float *v,
                            __global ushort *half_copy, uint half_type, ulong i, const uint n)
{
    float16 x = part_load(w + i, n);
    if (trained) {
        const float16 g = part_load(grad + i, n) * r->factor;
        x = r->optimizer == SGD || r->optimizer == LARS ? momentum_step(r, x, g, m, i, n)
                                                        : adam_step(r, x, g, m, v, i, n);
        part_store(x, w + i, n);
    } else if (statistic) {
        x = fma((float16)(factor), part_load(grad + i, n) - x, x);
        part_store(x, w + i, n);
    }
    const uint16 words = as_uint16(x);
    if (half_type == 1)
        part_store_halves(canon_to_bf16_x16(words), half_copy + i, n);
    if (half_type == 2)
        part_store_halves(canon_to_f16_x16(words), half_copy + i, n);
    return words;
}

/* What is done to a tensor, up to element `stop`. */
#define UPDATE_OF(t, number)                                                                                 \
    const bool moves = !refused && stop <= held;                                                             \
    const bool trained = t.kind <= DECAY && moves, statistic = t.kind == STATISTIC && moves;                 \
    r.rate = control[4] * t.factor;                                                                          \
    r.decay = t.kind == DECAY ? control[12] : 0.0f;                                                          \
    r.ratio = trust ? scratch[SLOT_WORDS + number] : 1.0f;

__kernel void keel_update(__global float *w, __global const float *grad, __global float *m, __global float *v,
                          __global const float *norm, __global const float *control,
                          __global const struct tensor *tensors, __global const uint *pages,
                          __global const float *scratch, volatile __global uint *slots, __global ushort *half_copy,
                          ulong count, uint optimizer, uint nesterov, uint half_type, uint block, uint tensor_count,
                          ulong held)
{
    struct rates r = read_rates(norm, control, optimizer, nesterov);
    const bool refused = r.factor == 0.0f, trust = optimizer == LARS || optimizer == LAMB;
#if KEEL_ROW_ITEMS > 1
    __local ulong totals[ROW_GROUP];
    const ulong page = get_global_id(0) / (PART_STEP / 4), i = page * PAGE + get_global_id(0) % (PART_STEP / 4) * 4;
    ulong sum = 0;
    (void)block;
    const uint number = i < count ? pages[page] : tensor_count;
    if (number < tensor_count) {
        const struct tensor t = tensors[number];
        const ulong stop = min(min(count, (page + 1) * PAGE), t.offset + t.count);
        UPDATE_OF(t, number)
        if (i < stop) {
            const uint16 words = update_at(&r, trained, statistic, t.factor, w, grad, m, v, half_copy, half_type, i,
                                           (uint)(stop - i));
            sum = mix_part(words, &t, i - t.offset, (uint)(stop - i));
        }
    }
    sum = group_total(sum, totals);
    if (get_local_id(0) == 0)
        add_to_slot(slots, get_group_id(0), sum);
#else
    ulong8 sums = (ulong8)(0);
    ulong i = (ulong)get_global_id(0) * block;
    const ulong end = min(i + block, count);
    while (i < end) {
        const ulong page = i / PAGE, next = min(end, (page + 1) * PAGE);
        const uint number = pages[page];
        if (number >= tensor_count) {
            i = next;
            continue;
        }
        const struct tensor t = tensors[number];
        const ulong stop = min(next, t.offset + t.count);
        UPDATE_OF(t, number)
        const ulong begin = i;
        for (; i + 16 <= stop; i += 16) {
            /* prefetchers stop at the ends of pages, and a page of four buffers is done in a microsecond */
            CANON_FETCH(w + i + PAGE);
            CANON_FETCH(grad + i + PAGE);
            CANON_FETCH(m + i + PAGE);
            CANON_FETCH(v + i + PAGE);
            update_at(&r, trained, statistic, t.factor, w, grad, m, v, half_copy, half_type, i, 16);
        }
        if (i < stop)
            update_at(&r, trained, statistic, t.factor, w, grad, m, v, half_copy, half_type, i, (uint)(stop - i));
        if (begin < stop)
            sums += mix_box((__global const uint *)w + begin, &t, begin - t.offset, (uint)(stop - begin));
        i = next;
    }
    const ulong4 of = sums.lo + sums.hi;
    add_to_slot(slots, (uint)get_global_id(0), of.s0 + of.s1 + of.s2 + of.s3);
#endif
}

__kernel void keel_update_digest(__global uint *slots, __global ulong *digest)
{
    if (get_global_id(0) != 0)
        return;
    ulong sum = 0;
    for (uint s = 0; s < SLOT_WORDS; s += 2) {
        sum += slots[s] + ((ulong)slots[s + 1] << 32);
        slots[s] = slots[s + 1] = 0;
    }
    digest[0] = sum;
}

/* ---- trust ratios ---- */

/* A work-item takes a block of 4096 elements of a tensor, begun at its page; sums lie at pages. */
__kernel void keel_trust_blocks(__global const float *w, __global const float *grad, __global float *m,
                                __global float *v, __global const float *norm, __global const float *control,
                                __global const struct tensor *tensors, __global const uint *pages,
                                __global float *scratch, ulong page_count, uint tensor_count, uint optimizer,
                                ulong count)
{
    const ulong page = get_global_id(0);
    __global float *sums = scratch + SLOT_WORDS + tensor_count;
    if (page >= page_count || pages[page] >= tensor_count)
        return;
    const struct tensor t = tensors[pages[page]];
    const ulong within = page * PAGE - t.offset, at = t.offset / PAGE + within / 4096;
    struct rates r = read_rates(norm, control, optimizer, 0);
    if (within % 4096 != 0 || t.kind > DECAY || r.factor == 0.0f || at >= page_count)
        return;
    r.decay = t.kind == DECAY ? r.decay : 0.0f;
    const ulong end = min(t.offset + min(within + 4096, t.count), count);
    float16 of_weights = (float16)(0.0f), of_steps = (float16)(0.0f);
    for (ulong i = t.offset + within; i < end; i += 16) {
        const uint n = (uint)min(end - i, (ulong)16);
        const float16 x = canon_load(w + i, n), g = canon_load(grad + i, n) * r.factor;
        float16 s = g;
        if (optimizer == LAMB) {
            float16 first = canon_load(m + i, n), second = canon_load(v + i, n);
            take_moments(&r, g, &first, &second);
            canon_store(first, m + i, n);
            canon_store(second, v + i, n);
            s = canon_mask(fma((float16)(r.decay), x, direction(&r, first, second)), n);
        }
        of_weights = fma(x, x, of_weights);
        of_steps = fma(s, s, of_steps);
    }
    sums[at] = canon_fold(of_weights);
    sums[page_count + at] = canon_fold(of_steps);
}

__kernel void keel_trust_ratios(__global const struct tensor *tensors, __global float *scratch,
                                __global const float *norm, __global const float *control, ulong page_count,
                                uint tensor_count, uint optimizer)
{
    ROW_FOLDS(folds);
    __global float *ratios = scratch + SLOT_WORDS, *sums = ratios + tensor_count;
    const uint number = (uint)ROW_NUMBER;
    if (number >= tensor_count)
        return;
    const struct tensor t = tensors[number];
    if (ROW_LEADS)
        ratios[number] = 1.0f;
    const ulong blocks = t.count / 4096 + (t.count % 4096 != 0);
    if (t.kind != DECAY || norm[1] == 0.0f || blocks == 0 || t.offset / PAGE + blocks > page_count)
        return;
    __global float *weights = sums + t.offset / PAGE, *steps = weights + page_count;
    const float of_weights = canon_sqrt(tree_sum(weights, weights, blocks, folds));
    const float of_steps = canon_sqrt(tree_sum(steps, steps, blocks, folds));
    if (ROW_LEADS && of_weights > 0.0f && of_steps > 0.0f)
        ratios[number] = optimizer == LAMB ? canon_divide(of_weights, of_steps)
                                           : canon_divide(control[13] * of_weights,
                                                          fma(control[12], of_weights, of_steps));
}
