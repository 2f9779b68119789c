/* attention_host.c - attention.cl in C: the reference, and what the host device runs.
 *
 * Element by element in the order that the head of attention.cl states; results are summed where they
 * are stored, and scores are computed anew wherever they are needed, so that there is no scratch. */
#include "canon.h"

#include "alibi.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_attention;

/* What kernels begin and end with, and one head of one sequence. */
enum { OPERAND_COUNT = 5 };
struct head {
    const float *q, *kv; /* of all */
    const int32_t *query_segments, *key_segments;
    const struct keel_control *control;
    uint32_t packed, tokens, keys, heads, kv_heads, width, crossed, ahead, behind, segmented;
    uint32_t alibi_heads, alibi_first, stream;
    float scale, rate, keep_scale, slope; /* slope: of this head */
    struct keel_random_slice slice;
    uint64_t q_step, k_step, out_step; /* floats from a token to the next in q, in kv, in out */
    uint64_t v_at;                     /* of values behind keys */
    uint64_t q_at, k_at, out_at;       /* of the first token of this head, and of the keys that it shares */
    uint64_t number, kv_number;        /* of this head among all, of its keys among all */
    uint64_t batch;
    uint64_t row;               /* number of its first row of probabilities */
    uint64_t element0;          /* number of its first probability in the whole tensor, by `slice` */
    uint64_t queries, keys_all; /* floats of all queries, and of all keys */
};

/* Rows of one head, wherever they lie. */
struct rows {
    const float *first;
    uint64_t step;
};
static const float *row_of(struct rows rows, uint64_t i)
{
    return rows.first + i * rows.step;
}
/* Where it is packed, rows of head `number` of `tokens` tokens, heads of which begin with float `at` of the
 * workspace; else those at `first`. */
static struct rows rows_of(const struct head *head, const float *work, uint64_t at, uint64_t number,
                           uint32_t tokens, const float *first, uint64_t step)
{
    if (!head->packed)
        return (struct rows){first, step};
    return (struct rows){work + at + number * tokens * head->width, head->width};
}

static struct head head_init(void *const *operands, void *const *scalars, const struct keel_range *range)
{
    struct head head = {
        .q = operands[0],
        .kv = operands[1],
        .query_segments = operands[2],
        .key_segments = operands[3],
        .control = operands[4],
        .packed = u32_at(scalars, 0),
        .tokens = u32_at(scalars, 1),
        .keys = u32_at(scalars, 2),
        .heads = u32_at(scalars, 3),
        .kv_heads = u32_at(scalars, 4),
        .width = u32_at(scalars, 5),
        .crossed = u32_at(scalars, 6),
        .ahead = u32_at(scalars, 7),
        .behind = u32_at(scalars, 8),
        .segmented = u32_at(scalars, 9),
        .alibi_heads = u32_at(scalars, 10),
        .alibi_first = u32_at(scalars, 11),
        .scale = f32_at(scalars, 12),
        .rate = f32_at(scalars, 13),
        .keep_scale = f32_at(scalars, 14),
        .stream = u32_at(scalars, 15),
        .slice = {u64_at(scalars, 16), u64_at(scalars, 17), u64_at(scalars, 18)},
    };
    head.out_step = (uint64_t)head.heads * head.width;
    head.v_at = (uint64_t)head.kv_heads * head.width;
    head.q_step = head.out_step + (head.crossed ? 0 : 2 * head.v_at);
    head.k_step = head.crossed ? 2 * head.v_at : head.q_step;
    head.queries = range->global[2] * head.tokens * head.out_step;
    head.keys_all = range->global[2] * head.keys * head.v_at;
    return head;
}

static void head_move(struct head *head, uint64_t batch, uint64_t number)
{
    head->batch = batch;
    const uint64_t shared = number / (head->heads / head->kv_heads);
    head->number = batch * head->heads + number;
    head->kv_number = batch * head->kv_heads + shared;
    head->q_at = batch * head->tokens * head->q_step + number * head->width;
    head->k_at =
        batch * head->keys * head->k_step + shared * head->width + (head->crossed ? 0 : head->out_step);
    head->out_at = batch * head->tokens * head->out_step + number * head->width;
    head->row = head->number * head->tokens;
    head->element0 =
        canon_place(head->row * head->keys, head->slice.first, head->slice.row, head->slice.stride);
    head->slope =
        head->alibi_heads > 0 ? alibi_slope(head->alibi_first + (uint32_t)number, head->alibi_heads) : 0.0F;
}

/* Whether query i sees key j. */
static bool sees(const struct head *head, uint32_t i, uint32_t j)
{
    return (j > i ? j - i <= head->ahead : i - j <= head->behind) &&
           (!head->segmented || head->query_segments[head->batch * head->tokens + i] ==
                                    head->key_segments[head->batch * head->keys + j]);
}

static float score_of(const struct head *head, uint32_t i, uint32_t j, float product)
{
    const float s = product * head->scale, apart = (float)(i > j ? i - j : j - i);
    return head->slope > 0.0F ? canon_fma(-head->slope, apart, s) : s;
}

/* [from, to) */
struct span {
    uint32_t from, to;
};
/* What rows around row i are added: all that one of its eight meets, `back` before it to `on` behind it. */
static struct span span_of(uint32_t i, uint32_t back, uint32_t on, uint32_t count)
{
    const uint32_t first = i & ~7U, end = (i | 7) + 1;
    return (struct span){first > back ? first - back : 0, end + on < count ? end + on : count};
}

static float drop(const struct head *head, uint32_t i, uint32_t j, float x)
{
    if (head->rate == 0.0F)
        return x;
    uint64_t element = head->element0 + (uint64_t)i * head->keys + j;
    float uniform = keel_random_uniform(head->control, head->stream, element);
    return uniform >= head->rate ? x * head->keep_scale : 0.0F;
}

static float dot(const float *x, const float *y, uint32_t width)
{
    float s = 0.0F;
    for (uint32_t d = 0; d < width; d++)
        s = fmaf(x[d], y[d], s);
    return s;
}

/* y += a x. */
static void add_scaled(float a, const float *x, uint32_t width, float *y)
{
    for (uint32_t d = 0; d < width; d++)
        y[d] = fmaf(a, x[d], y[d]);
}

static void scale_row(float factor, uint32_t width, float *y)
{
    for (uint32_t d = 0; d < width; d++)
        y[d] = y[d] * factor + 0.0F;
}

static void zero_row(uint32_t width, float *y)
{
    for (uint32_t d = 0; d < width; d++)
        y[d] = 0.0F;
}

/* Each head of each sequence in turn. */
static bool head_next(struct head *head, uint64_t *number, const struct keel_range *range)
{
    if (*number == range->global[1] * range->global[2])
        return false;
    head_move(head, *number / range->global[1], *number % range->global[1]);
    ++*number;
    return true;
}

static void host_attention_pack(KEEL_HOST_ARGUMENTS)
{
    const float *from = arguments[0];
    float *to = arguments[1];
    const uint32_t tokens = u32_at(arguments, 2), heads = u32_at(arguments, 3);
    const uint32_t width = u32_at(arguments, 4), count = u32_at(arguments, 7);
    const uint64_t step = u32_at(arguments, 5), skip = u32_at(arguments, 6);
    const uint64_t at = u64_at(arguments, 8), rows = range->global[2] * heads * tokens;
    for (uint32_t p = 0; p < count; p++)
        for (uint64_t row = 0; row < rows; row++) {
            uint64_t token = row / tokens / heads * tokens + row % tokens, head = row / tokens % heads;
            memcpy(to + at + (p * rows + row) * width,
                   from + token * step + skip + (p * heads + head) * width, width * sizeof(float));
        }
}

/* What forward reads and writes, of one head. */
struct forward {
    struct rows q, k, v;
    float *out, *stats;
};

KEEL_HOST_KERNEL static void forward_row(const struct head *head, const struct forward *forward, uint32_t i)
{
    const float *q = row_of(forward->q, i);
    float *o = forward->out + head->out_at + i * head->out_step;
    const struct span keys = span_of(i, head->behind, head->ahead, head->keys);
    float largest = -INFINITY, sum = 0.0F;
    for (uint32_t j = keys.from; j < keys.to; j++) {
        if (!sees(head, i, j))
            continue;
        float s = score_of(head, i, j, dot(q, row_of(forward->k, j), head->width));
        largest = s > largest ? s : largest;
    }
    largest = largest + 0.0F;
    zero_row(head->width, o);
    for (uint32_t j = keys.from; j < keys.to; j++) {
        float s = score_of(head, i, j, dot(q, row_of(forward->k, j), head->width));
        float e = sees(head, i, j) ? canon_exp(s - largest) : 0.0F;
        sum = sum + e;
        add_scaled(drop(head, i, j, e), row_of(forward->v, j), head->width, o);
    }
    if (sum == 0.0F) { /* it sees none */
        largest = 0.0F;
        sum = 1.0F;
    }
    for (uint32_t d = 0; d < head->width; d++)
        o[d] = canon_divide(o[d], sum) + 0.0F;
    forward->stats[(head->row + i) * 2] = largest;
    forward->stats[(head->row + i) * 2 + 1] = sum;
}

static void host_attention(KEEL_HOST_ARGUMENTS)
{
    const float *work = arguments[OPERAND_COUNT];
    struct head head = head_init(arguments, arguments + OPERAND_COUNT + 3, range);
    for (uint64_t number = 0; head_next(&head, &number, range);) {
        const float *k = head.kv + head.k_at, *v = k + head.v_at;
        const uint64_t shared = head.kv_number;
        const struct forward forward = {
            .q = {head.q + head.q_at, head.q_step},
            .k = rows_of(&head, work, 0, shared, head.keys, k, head.k_step),
            .v = rows_of(&head, work, head.keys_all, shared, head.keys, v, head.k_step),
            .out = arguments[OPERAND_COUNT + 1],
            .stats = arguments[OPERAND_COUNT + 2]};
        for (uint32_t i = 0; i < head.tokens; i++)
            forward_row(&head, &forward, i);
    }
}

KEEL_HOST_KERNEL static void row_facts(const struct head *head, const float *out, const float *stats,
                                       const float *dout, uint32_t i, float *facts)
{
    uint64_t row = head->row + i, out_at = head->out_at + i * head->out_step;
    facts[row * 2] = canon_divide(1.0F, stats[row * 2 + 1]);
    facts[row * 2 + 1] = dot(dout + out_at, out + out_at, head->width);
}

static void host_attention_rows(KEEL_HOST_ARGUMENTS)
{
    struct head head = {.slice = {.row = 1}, /* draws nothing */
                        .tokens = u32_at(arguments, 5),
                        .heads = u32_at(arguments, 6),
                        .kv_heads = u32_at(arguments, 6),
                        .width = u32_at(arguments, 7)};
    head.out_step = (uint64_t)head.heads * head.width;
    float *rows = (float *)arguments[3] + u64_at(arguments, 4);
    for (uint64_t number = 0; head_next(&head, &number, range);)
        for (uint32_t i = 0; i < head.tokens; i++)
            row_facts(&head, arguments[0], arguments[1], arguments[2], i, rows);
}

/* What the gradient of one head reads. */
struct gradient {
    struct rows q, k, v, g;
    const float *stats, *facts; /* max and sum, inv and delta */
};

struct pair {
    float p, ds;
};

static struct pair pair_gradient(const struct head *head, const struct gradient *gradient, uint32_t i,
                                 uint32_t j)
{
    const uint64_t row = head->row + i;
    struct pair pair = {0};
    if (!sees(head, i, j))
        return pair;
    float s = score_of(head, i, j, dot(row_of(gradient->q, i), row_of(gradient->k, j), head->width));
    pair.p = canon_exp(s - gradient->stats[row * 2]) * gradient->facts[row * 2];
    float dp = drop(head, i, j, dot(row_of(gradient->g, i), row_of(gradient->v, j), head->width));
    pair.ds = pair.p * (dp - gradient->facts[row * 2 + 1]);
    return pair;
}

KEEL_HOST_KERNEL static void query_row(const struct head *head, const struct gradient *gradient, uint32_t i,
                                       float *dq)
{
    const struct span keys = span_of(i, head->behind, head->ahead, head->keys);
    zero_row(head->width, dq);
    for (uint32_t j = keys.from; j < keys.to; j++)
        add_scaled(pair_gradient(head, gradient, i, j).ds, row_of(gradient->k, j), head->width, dq);
    scale_row(head->scale, head->width, dq);
}

KEEL_HOST_KERNEL static void key_row(const struct head *head, const struct gradient *gradient, uint32_t j,
                                     float *dk, float *dv)
{
    const struct span queries = span_of(j, head->ahead, head->behind, head->tokens);
    zero_row(head->width, dk);
    zero_row(head->width, dv);
    for (uint32_t i = queries.from; i < queries.to; i++) {
        struct pair pair = pair_gradient(head, gradient, i, j);
        add_scaled(drop(head, i, j, pair.p), row_of(gradient->g, i), head->width, dv);
        add_scaled(pair.ds, row_of(gradient->q, i), head->width, dk);
    }
    scale_row(head->scale, head->width, dk);
    scale_row(1.0F, head->width, dv);
}

/* Row j of the gradients that this head has of its keys: to where they lie, or, where several heads share
 * them, to [batch, keys, 2, heads, width] from float shares_at on. */
static void key_row_to(const struct head *head, const struct gradient *gradient, uint32_t j, float *dkv,
                       uint64_t shares_at)
{
    const bool shares = head->heads != head->kv_heads;
    float *dk = shares ? dkv + shares_at + 2 * head->batch * head->keys * head->out_step +
                             head->number % head->heads * head->width + 2 * j * head->out_step
                       : dkv + head->k_at + j * head->k_step;
    key_row(head, gradient, j, dk, dk + (shares ? head->out_step : head->v_at));
}

enum { WANT_QUERIES = 1, WANT_KEYS = 2 };
static void host_attention_grad(KEEL_HOST_ARGUMENTS)
{
    enum { SCALARS = OPERAND_COUNT + 5, REST = SCALARS + 19 };
    struct head head = head_init(arguments, arguments + SCALARS, range);
    const float *dout = arguments[OPERAND_COUNT + 1], *work = arguments[OPERAND_COUNT + 2];
    float *dq = arguments[OPERAND_COUNT + 3], *dkv = arguments[OPERAND_COUNT + 4];
    const uint64_t k_at = head.queries, v_at = k_at + head.keys_all, g_at = v_at + head.keys_all;
    const uint32_t want = u32_at(arguments, REST + 2);
    for (uint64_t number = 0; head_next(&head, &number, range);) {
        const float *q = head.q + head.q_at, *k = head.kv + head.k_at, *v = k + head.v_at;
        const uint64_t own = head.number, shared = head.kv_number;
        const struct gradient gradient = {
            .q = rows_of(&head, work, 0, own, head.tokens, q, head.q_step),
            .k = rows_of(&head, work, k_at, shared, head.keys, k, head.k_step),
            .v = rows_of(&head, work, v_at, shared, head.keys, v, head.k_step),
            .g = rows_of(&head, work, g_at, own, head.tokens, dout + head.out_at, head.out_step),
            .stats = arguments[OPERAND_COUNT],
            .facts = work + u64_at(arguments, REST)};
        for (uint32_t t = 0; want & WANT_QUERIES && t < head.tokens; t++)
            query_row(&head, &gradient, t, dq + head.q_at + t * head.q_step);
        for (uint32_t t = 0; want & WANT_KEYS && t < head.keys; t++)
            key_row_to(&head, &gradient, t, dkv, u64_at(arguments, REST + 1));
    }
}

static const struct keel_module_kernel attention_kernels[] = {
    {"keel_attention_pack", host_attention_pack},
    {"keel_attention", host_attention},
    {"keel_attention_rows", host_attention_rows},
    {"keel_attention_grad", host_attention_grad},
};

const struct keel_module keel_module_attention =
    KEEL_MODULE("attention", keel_cl_attention, attention_kernels);
