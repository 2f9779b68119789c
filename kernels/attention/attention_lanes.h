/* attention_lanes.h - attention.cl by groups of many work-items, for devices whose lanes are many and whose
 * local memory is memory of its own (OpenCL C only; attention.cl has the equations, and takes this where
 * KEEL_ATTENTION_ITEMS is above 1).
 *
 * A group has BLOCK rows of its own, queries or keys, and goes over blocks of BLOCK others. SIDE x SIDE
 * work-items have 4 x 4 of each product in registers: rows 4 ty to 4 ty + 3, columns 4 tx to 4 tx + 3. What
 * is multiplied lies in local memory, DEPTH of the chain at a time. Weights of a block of pairs (e, ds or
 * drop(p)) pass through `tile`, [other][own], from the lanes that made them to those that sum over the
 * others. Every chain is that of attention.cl, ascending, and goes on from block to block, over the others
 * that any row of the eight of an item's four meets.
 *
 * Heads wider than BLOCK are cut: a group makes BLOCK columns of its results, and weights are computed anew
 * for each such part. Forward, scores are computed twice, for the largest and for the exponentials, but where
 * all keys are one block. Tunable: attention.items (ITEMS), 64 or 256. */
#if KEEL_ATTENTION_ITEMS > 1
enum {
    ITEMS = KEEL_ATTENTION_ITEMS,
    SIDE = ITEMS == 64 ? 8 : 16,
    BLOCK = 4 * SIDE,
    DEPTH = 16,
    PITCH = BLOCK + 4
};
enum { LANES = 16 /* rows that keel_attention_pack would take, if anyone asked */ };
#define GROUP_SIZE __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#define EACH_PAIR  CANON_UNROLL for (uint r = 0; r < 4; r++) CANON_UNROLL for (uint c = 0; c < 4; c++)
#define TX         ((uint)get_local_id(0) % SIDE)
#define TY         ((uint)get_local_id(0) / SIDE)

struct sums {
    float v[4][4];
};
/* The operands of a product, DEPTH of the chain at a time. */
struct operands {
    float own[DEPTH * PITCH], other[DEPTH * PITCH];
};

/* to[d][r] = rows[first + r][d], the last row again behind it. */
CANON_INLINE void turn_part(__global const float *rows, ulong step, uint first, uint end, uint width, uint d0,
                            __local float *to)
{
    const uint d = get_local_id(0) % DEPTH, from = get_local_id(0) / DEPTH;
    if (d0 + d < width)
        CANON_UNROLL for (uint r = from; r < BLOCK; r += ITEMS / DEPTH) to[d * PITCH + r] =
            rows[min(first + r, end - 1) * step + d0 + d];
}
/* to[j][c] = rows[first + j][column + c], zero where there is none. */
CANON_INLINE void copy_part(__global const float *rows, ulong step, uint first, uint end, uint column,
                            uint width, __local float *to)
{
    const uint c = get_local_id(0) % BLOCK, from = get_local_id(0) / BLOCK;
    CANON_UNROLL for (uint j = from; j < DEPTH; j += ITEMS / BLOCK) to[j * PITCH + c] =
        first + j < end && column + c < width ? rows[(first + j) * step + column + c] : 0.0f;
}

/* One link of 4 x 4 chains. */
CANON_INLINE void link(__local const float *own, __local const float *other, struct sums *s)
{
    const float4 a = *(__local const float4 *)own, b = *(__local const float4 *)other;
    const float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    EACH_PAIR s->v[r][c] = fma(x[r], y[c], s->v[r][c]);
}

/* s = own rows times other rows, a chain over the head. */
CANON_INLINE void dot_block(__global const float *own, ulong own_step, uint own_first, uint own_count,
                            __global const float *other, ulong other_step, uint other_first, uint other_count,
                            uint width, __local struct operands *at, struct sums *s)
{
    EACH_PAIR s->v[r][c] = 0.0f;
    for (uint d0 = 0; d0 < width; d0 += DEPTH) {
        const uint depth = min((uint)DEPTH, width - d0);
        barrier(CLK_LOCAL_MEM_FENCE);
        turn_part(own, own_step, own_first, own_count, width, d0, at->own);
        turn_part(other, other_step, other_first, other_count, width, d0, at->other);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint d = 0; d < depth; d++)
            link(at->own + d * PITCH + 4 * TY, at->other + d * PITCH + 4 * TX, s);
    }
}

/* s goes on with the chain over the others, `begin` to `end` - 1 of the block, of weights times columns of
 * rows. */
CANON_INLINE void sum_block(__local const float *tile, __global const float *rows, ulong step, uint first,
                            uint count, uint column, uint width, uint begin, uint end,
                            __local struct operands *at, struct sums *s)
{
    for (uint j0 = 0; j0 < count; j0 += DEPTH) {
        const uint from = begin > j0 ? begin - j0 : 0, to = end > j0 ? min(end - j0, (uint)DEPTH) : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        copy_part(rows, step, first + j0, first + count, column, width, at->other);
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint j = from; j < to; j++)
            link(tile + (j0 + j) * PITCH + 4 * TY, at->other + j * PITCH + 4 * TX, s);
    }
}

/* tile[other][own] = s, when all have read what was there. */
CANON_INLINE void put_tile(const struct sums *s, __local float *tile)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    CANON_UNROLL for (uint c = 0; c < 4; c++) * (__local float4 *)(tile + (4 * TX + c) * PITCH + 4 * TY) =
        (float4)(s->v[0][c], s->v[1][c], s->v[2][c], s->v[3][c]);
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Rows of results, factor times s, + 0. */
CANON_INLINE void put_rows(const struct sums *s, float factor, __global float *y, ulong step, uint first,
                           uint end, uint column, uint width)
{
    EACH_PAIR
    if (first + 4 * TY + r < end && column + 4 * TX + c < width)
        y[(first + 4 * TY + r) * step + column + 4 * TX + c] = canon_plus_zero(s->v[r][c] * factor);
}

static float drop_of(const struct drop *drop, ulong element, float x)
{
    return drop->rate == 0.0f ? x : drop_keeps(drop, element) ? x * drop->keep_scale : 0.0f;
}

/* The largest of each of the four rows of an item, of all of a row's. */
CANON_INLINE void largest_of_rows(float most[4], __local float *tile)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    CANON_UNROLL for (uint r = 0; r < 4; r++) tile[TX * PITCH + 4 * TY + r] = most[r];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint x = 0; x < SIDE; x++)
        CANON_UNROLL for (uint r = 0; r < 4; r++)
        {
            const float other = tile[x * PITCH + 4 * TY + r];
            most[r] = other > most[r] ? other : most[r];
        }
}

/* Whether query and key are there and the one sees the other; `query_segment` is that of the query. */
static bool pair_seen(const struct mask *mask, uint query, uint key, int query_segment)
{
    const int apart = (int)query - (int)key;
    return apart <= mask->behind && -apart <= mask->ahead && query < mask->tokens && key < mask->keys &&
           (!mask->segmented || mask->key_segments[key] == query_segment);
}
static float pair_score(const struct mask *mask, uint query, uint key, float scale, float product)
{
    const float apart = (float)(query > key ? query - key : key - query), s = product * scale;
    return mask->slope > 0.0f ? fma(-mask->slope, apart, s) : s;
}

__kernel GROUP_SIZE void keel_attention(ATTENTION_OPERANDS, __global const float *work, __global float *out,
                                        __global float *stats, ATTENTION_SCALARS)
{
    __local struct operands at __attribute__((aligned(64)));
    __local float tile[BLOCK * PITCH] __attribute__((aligned(64))), totals[BLOCK];
    const uint parts = (width + BLOCK - 1) / BLOCK, column = get_group_id(0) % parts * BLOCK;
    const uint blocks = get_num_groups(0) / parts, first = (blocks - 1 - get_group_id(0) / parts) * BLOCK;
    const uint head = get_group_id(1), batch = get_group_id(2), id = get_local_id(0);
    const struct mask mask = MASK_OF(head, batch);
    const struct places place = places_of(&mask, head, batch, heads, kv_heads, width, crossed);
    const ulong out_step = (ulong)heads * width;
    __global const float *qs = q_in + place.q, *ks = kv + place.k, *vs = ks + place.v;
    const uint begin = max((int)first - mask.behind, 0), end = min(first + BLOCK + mask.ahead, mask.keys);
    const uint query = first + 4 * TY;
    const ulong row0 = ((ulong)batch * heads + head) * tokens;
    struct drop drop;
    struct sums s, o;
    float most[4], total = 0.0f;
    int segment[4];
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element0 = canon_place(row0 * mask.keys, slice_first, slice_row, slice_stride);
    CANON_UNROLL for (uint r = 0; r < 4; r++)
    {
        most[r] = -INFINITY;
        segment[r] = mask_query(&mask, min(query + r, tokens - 1));
    }
    EACH_PAIR o.v[r][c] = 0.0f;
    for (uint j0 = begin; j0 < end; j0 += BLOCK) {
        dot_block(qs, place.q_step, first, tokens, ks, place.k_step, j0, mask.keys, width, &at, &s);
        EACH_PAIR
        {
            const uint key = j0 + 4 * TX + c;
            const float v = pair_score(&mask, query + r, key, scale, s.v[r][c]);
            most[r] = v > most[r] && pair_seen(&mask, query + r, key, segment[r]) ? v : most[r];
        }
    }
    largest_of_rows(most, tile);
    CANON_UNROLL for (uint r = 0; r < 4; r++) most[r] = canon_plus_zero(most[r]);
    for (uint j0 = begin; j0 < end; j0 += BLOCK) {
        const uint count = min((uint)BLOCK, end - j0);
        for (uint again = end - begin > BLOCK; again > 0; again--)
            dot_block(qs, place.q_step, first, tokens, ks, place.k_step, j0, mask.keys, width, &at, &s);
        EACH_PAIR
        {
            const uint key = j0 + 4 * TX + c;
            const float e = canon_exp(pair_score(&mask, query + r, key, scale, s.v[r][c]) - most[r]);
            s.v[r][c] = pair_seen(&mask, query + r, key, segment[r]) ? e : 0.0f;
        }
        put_tile(&s, tile);
        for (uint j = 0; j < count && id < BLOCK; j++)
            total = total + tile[j * PITCH + id];
        for (uint drops = rate > 0.0f; drops > 0; drops--) {
            EACH_PAIR s.v[r][c] =
                drop_of(&drop, element0 + (ulong)(query + r) * mask.keys + j0 + 4 * TX + c, s.v[r][c]);
            put_tile(&s, tile);
        }
        const int near = (int)(query / 8 * 8) - (int)j0; /* of its eight */
        sum_block(tile, vs, place.k_step, j0, count, column, width, max(near - mask.behind, 0),
                  min(max(near + 8 + mask.ahead, 0), (int)count), &at, &o);
    }
    if (id < BLOCK)
        totals[id] = total == 0.0f ? 1.0f : total; /* of a query that sees no key */
    put_tile(&o, tile);                            /* its barriers */
    EACH_PAIR
    o.v[r][c] = canon_divide(o.v[r][c], totals[4 * TY + r]);
    put_rows(&o, 1.0f, out + batch * tokens * out_step + head * width, out_step, first, tokens, column,
             width);
    if (column == 0 && TX == 0)
        CANON_UNROLL for (uint r = 0; r < 4; r++)
        {
            if (query + r < tokens) {
                stats[(row0 + query + r) * 2] =
                    most[r] == -INFINITY && totals[4 * TY + r] == 1.0f ? 0.0f : most[r];
                stats[(row0 + query + r) * 2 + 1] = totals[4 * TY + r];
            }
        }
}

/* inv and delta of each row, for keel_attention_grad: a row to a work-item. */
__kernel GROUP_SIZE void keel_attention_rows(__global const float *out, __global const float *stats,
                                             __global const float *dout, __global float *work, ulong rows_at,
                                             uint tokens, uint heads, uint width)
{
    const uint row = get_global_id(0), head = get_group_id(1), batch = get_group_id(2);
    const ulong step = (ulong)heads * width, at = (batch * (ulong)tokens + row) * step + head * width;
    const ulong place = (((ulong)batch * heads + head) * tokens + row) * 2;
    float delta = 0.0f;
    if (row >= tokens)
        return;
    for (uint d = 0; d < width; d++)
        delta = fma(dout[at + d], out[at + d], delta);
    work[rows_at + place] = canon_divide(1.0f, stats[place + 1]);
    work[rows_at + place + 1] = delta;
}

/* dq, or dk and dv: of each part of the columns, blocks of keys come first, then blocks of queries. */
__kernel GROUP_SIZE void keel_attention_grad(ATTENTION_OPERANDS, __global const float *stats,
                                             __global const float *dout, __global float *work,
                                             __global float *dq, __global float *dkv, ATTENTION_SCALARS,
                                             ulong rows_at, ulong shares_at, uint want)
{
    __local struct operands at __attribute__((aligned(64)));
    __local float tile[BLOCK * PITCH] __attribute__((aligned(64)));
    const uint parts = (width + BLOCK - 1) / BLOCK, blocks = (key_count + BLOCK - 1) / BLOCK;
    const uint column = get_group_id(0) % parts * BLOCK, number = get_group_id(0) / parts;
    const bool keys = number < blocks;
    const uint all = get_num_groups(0) / parts;
    const uint own = (keys ? number : all - 1 - number) * BLOCK; /* the longest first */
    const uint head = get_group_id(1), batch = get_group_id(2), mine = own + 4 * TY;
    const struct mask mask = MASK_OF(head, batch);
    const struct places place = places_of(&mask, head, batch, heads, kv_heads, width, crossed);
    const ulong out_step = (ulong)heads * width, row0 = ((ulong)batch * heads + head) * tokens;
    __global const float *qs = q_in + place.q, *ks = kv + place.k, *vs = ks + place.v,
                         *gs = dout + batch * tokens * out_step + head * width;
    __global const float *rows = work + rows_at;
    __global const float *own_x = keys ? ks : qs, *other_x = keys ? qs : ks;
    __global const float *own_g = keys ? vs : gs, *other_g = keys ? gs : vs;
    const ulong own_step = keys ? place.k_step : place.q_step,
                other_step = keys ? place.q_step : place.k_step;
    const ulong own_g_step = keys ? place.k_step : out_step, other_g_step = keys ? out_step : place.k_step;
    const uint own_count = keys ? key_count : tokens, other_count = keys ? tokens : key_count;
    const int back = keys ? mask.ahead : mask.behind, on = keys ? mask.behind : mask.ahead;
    const uint begin = max((int)own - back, 0), end = min(own + BLOCK + on, other_count);
    struct drop drop;
    struct sums s, g, dx, dv;
    drop_init(&drop, rate, keep_scale, stream, control);
    const ulong element0 = canon_place(row0 * key_count, slice_first, slice_row, slice_stride);
    EACH_PAIR dx.v[r][c] = dv.v[r][c] = 0.0f;
    for (uint i0 = begin; i0 < end; i0 += BLOCK) {
        const uint count = min((uint)BLOCK, end - i0);
        dot_block(own_x, own_step, own, own_count, other_x, other_step, i0, other_count, width, &at, &s);
        dot_block(own_g, own_g_step, own, own_count, other_g, other_g_step, i0, other_count, width, &at, &g);
        EACH_PAIR
        {
            const uint x = mine + r, y = i0 + 4 * TX + c, query = keys ? y : x, key = keys ? x : y;
            const ulong there = min(query, tokens - 1), row = row0 + there;
            const float score = pair_score(&mask, query, key, scale, s.v[r][c]);
            const float p = canon_exp(score - stats[row * 2]) * rows[row * 2];
            const ulong element = element0 + (ulong)query * key_count + key;
            const bool active = pair_seen(&mask, query, key, mask_query(&mask, there));
            const float ds = p * (drop_of(&drop, element, g.v[r][c]) - rows[row * 2 + 1]);
            s.v[r][c] = active ? ds : 0.0f;
            g.v[r][c] = active ? drop_of(&drop, element, p) : 0.0f;
        }
        const int near = (int)(mine / 8 * 8) - (int)i0; /* of its eight */
        const uint first = max(near - back, 0), last = min(max(near + 8 + on, 0), (int)count);
        put_tile(&s, tile);
        sum_block(tile, other_x, other_step, i0, count, column, width, first, last, &at, &dx);
        for (uint values = keys; values > 0; values--) {
            put_tile(&g, tile);
            sum_block(tile, gs, out_step, i0, count, column, width, first, last, &at, &dv);
        }
    }
    if (keys) {
        const struct places to = shares_of(&mask, place, head, batch, heads, kv_heads, width, shares_at);
        put_rows(&dx, scale, dkv + to.k, to.k_step, own, key_count, column, width);
        put_rows(&dv, 1.0f, dkv + to.k + to.v, to.k_step, own, key_count, column, width);
    } else {
        put_rows(&dx, scale, dq + place.q, place.q_step, own, tokens, column, width);
    }
}
#endif
