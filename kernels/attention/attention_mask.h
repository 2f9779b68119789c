/* attention_mask.h - which keys a query sees, and where rows lie, for attention.cl and attention_lanes.h
 * (OpenCL C only).
 *
 * Query i sees key j where j - i <= ahead, i - j <= behind, and, with segments, the numbers of both are
 * equal. attention.c makes `ahead` and `behind` of causal, bidirectional and windows; neither is further than
 * the last token, so that a mask that leaves nothing out is one of this form. */
struct mask {
    int ahead, behind;
    uint tokens, keys, segmented;
    float slope;                                       /* of ALiBi in this head; 0: none */
    __global const int *query_segments, *key_segments; /* of this sequence; not read unless segmented */
};

/* What both kernels begin and end with. */
#define ATTENTION_OPERANDS                                                                                   \
    __global const float *q_in, __global const float *kv, __global const int *query_segments,                \
        __global const int *key_segments, __global const uint *control
#define ATTENTION_SCALARS                                                                                    \
    uint packed, uint tokens, uint key_count, uint heads, uint kv_heads, uint width, uint crossed,           \
        uint ahead, uint behind, uint segmented, uint alibi_heads, uint alibi_first, float scale,            \
        float rate, float keep_scale, uint stream, ulong slice_first, ulong slice_row, ulong slice_stride
#define MASK_OF(head, batch)                                                                                 \
    {                                                                                                        \
        ahead, behind, tokens, key_count, segmented,                                                         \
            alibi_heads > 0 ? alibi_slope(alibi_first + head, alibi_heads) : 0.0f,                           \
            query_segments + (ulong)batch *tokens, key_segments + (ulong)batch *key_count                    \
    }

static int mask_query(const struct mask *mask, uint query)
{
    return mask->segmented ? mask->query_segments[query] : 0;
}
static int mask_key(const struct mask *mask, uint key)
{
    return mask->segmented ? mask->key_segments[key] : 0;
}

/* Whether it may leave out a pair of these blocks. */
static bool mask_cuts(const struct mask *mask, uint query, uint queries, uint key, uint keys)
{
    return mask->segmented || (int)(key + keys - 1) - (int)query > mask->ahead ||
           (int)(query + queries - 1) - (int)key > mask->behind;
}

/* Where the rows of a head of queries, and of the keys that it shares, lie in q and kv, which are one with q,
 * k and v side by side, or two with q, and with k and v; v is so far behind k. */
struct places {
    ulong q, k, v, q_step, k_step;
};
static struct places places_of(const struct mask *mask, uint head, uint batch, uint heads, uint kv_heads,
                               uint width, uint crossed)
{
    const ulong row = (ulong)heads * width, kv_row = (ulong)kv_heads * width;
    struct places at = {.v = kv_row,
                        .q_step = crossed ? row : row + 2 * kv_row,
                        .k_step = crossed ? 2 * kv_row : row + 2 * kv_row};
    at.q = batch * mask->tokens * at.q_step + head * width;
    at.k = batch * mask->keys * at.k_step + head / (heads / kv_heads) * width + (crossed ? 0 : row);
    return at;
}

/* Where the gradient of the keys goes that a head of queries has alone: as they lie, or, where several heads
 * share them, [batch, keys, 2, heads, width] from `shares_at` on, which keel_rotary_share adds up. */
static struct places shares_of(const struct mask *mask, struct places at, uint head, uint batch, uint heads,
                               uint kv_heads, uint width, ulong shares_at)
{
    struct places to = at; /* rusticl (Mesa 22.3) gives a function its caller's own structure, not a copy */
    if (heads != kv_heads) {
        to.v = (ulong)heads * width;
        to.k_step = 2 * to.v;
        to.k = shares_at + batch * mask->keys * to.k_step + head * width;
    }
    return to;
}

/* Floats of all rows of one part, when they are packed. */
static ulong part_floats(uint tokens, uint heads, uint width)
{
    return (ulong)get_num_groups(2) * heads * tokens * width;
}

/* Where those of a head, and of the keys that it shares, lie in the gradient's workspace, when they are
 * packed. */
struct packs {
    ulong q, k, v, g, dq;
};
static struct packs packs_of(const struct mask *mask, uint head, uint batch, uint heads, uint kv_heads,
                             uint width)
{
    const ulong own = ((ulong)batch * heads + head) * width,
                shared = ((ulong)batch * kv_heads + head / (heads / kv_heads)) * width;
    const ulong of_queries = part_floats(mask->tokens, heads, width),
                of_keys = part_floats(mask->keys, kv_heads, width);
    struct packs at = {.q = own * mask->tokens, .k = of_queries + shared * mask->keys};
    at.v = at.k + of_keys;
    at.g = at.q + of_queries + 2 * of_keys;
    at.dq = at.g + of_queries;
    return at;
}
