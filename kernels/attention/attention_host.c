/* attention_host.c - attention.cl in C: the reference, and what the host device runs.
 *
 * Element by element in the order that the head of attention.cl states; results are summed where they
 * are stored, and scores are computed anew wherever they are needed, so that there is no scratch. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_attention;

/* The scalars that kernels end with, and one head of one sequence. */
struct head {
    uint32_t packed, tokens, heads, width, causal, stream;
    float scale, rate, keep_scale;
    const struct keel_control *control;
    uint64_t step, out_step; /* floats from a token to the next in qkv, in out */
    uint64_t at, out_at;     /* of the first token of this head */
    uint64_t row;            /* number of its first row of probabilities */
    uint64_t element0;       /* number of its first probability in the whole tensor, by `slice` */
    struct keel_random_slice slice;
    uint64_t part; /* floats of all queries, say, when they are packed */
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
/* Part `number` of the workspace where it is packed, else those at `first`. */
static struct rows rows_of(const struct head *head, const float *work, uint32_t number, const float *first,
                           uint64_t step)
{
    if (!head->packed)
        return (struct rows){first, step};
    return (struct rows){work + number * head->part + head->row * head->width, head->width};
}

static struct head head_init(void *const *scalars, const struct keel_control *control,
                             const struct keel_range *range)
{
    struct head head = {
        .packed = *(const uint32_t *)scalars[0],
        .tokens = *(const uint32_t *)scalars[1],
        .heads = *(const uint32_t *)scalars[2],
        .width = *(const uint32_t *)scalars[3],
        .causal = *(const uint32_t *)scalars[4],
        .scale = *(const float *)scalars[5],
        .rate = *(const float *)scalars[6],
        .keep_scale = *(const float *)scalars[7],
        .stream = *(const uint32_t *)scalars[8],
        .slice = {u64_at(scalars, 9), u64_at(scalars, 10), u64_at(scalars, 11)},
        .control = control,
    };
    head.out_step = (uint64_t)head.heads * head.width;
    head.step = 3 * head.out_step;
    head.part = range->global[2] * head.tokens * head.out_step;
    return head;
}

static void head_move(struct head *head, uint64_t batch, uint64_t number)
{
    head->at = batch * head->tokens * head->step + number * head->width;
    head->out_at = batch * head->tokens * head->out_step + number * head->width;
    head->row = (batch * head->heads + number) * head->tokens;
    head->element0 =
        canon_place(head->row * head->tokens, head->slice.first, head->slice.row, head->slice.stride);
}

/* Query i sees keys [0, keys_of(i)). */
static uint32_t keys_of(const struct head *head, uint32_t i)
{
    return head->causal ? i + 1 : head->tokens;
}

/* Masked pairs whose query and key are of the same eight are summed too, with a weight of 0: query i adds
 * keys [0, added_keys(i)), key j queries from added_from(j) on. */
static uint32_t added_keys(const struct head *head, uint32_t i)
{
    return head->causal && (i | 7) < head->tokens ? (i | 7) + 1 : head->tokens;
}
static uint32_t added_from(const struct head *head, uint32_t j)
{
    return head->causal ? j & ~7U : 0;
}

static float drop(const struct head *head, uint32_t i, uint32_t j, float x)
{
    if (head->rate == 0.0F)
        return x;
    uint64_t element = head->element0 + (uint64_t)i * head->tokens + j;
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
    const uint32_t width = u32_at(arguments, 4), parts = u32_at(arguments, 5);
    const uint32_t skip = u32_at(arguments, 6), count = u32_at(arguments, 7);
    const uint32_t first = u32_at(arguments, 8);
    const uint64_t rows = range->global[2] * heads * tokens;
    for (uint32_t p = 0; p < count; p++)
        for (uint64_t row = 0; row < rows; row++) {
            uint64_t token = row / tokens / heads * tokens + row % tokens, head = row / tokens % heads;
            memcpy(to + ((first + p) * rows + row) * width,
                   from + ((token * parts + skip + p) * heads + head) * width, width * sizeof(float));
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
    float largest = -INFINITY, sum = 0.0F;
    for (uint32_t j = 0; j < keys_of(head, i); j++) {
        float s = dot(q, row_of(forward->k, j), head->width) * head->scale;
        largest = s > largest ? s : largest;
    }
    largest = largest + 0.0F;
    zero_row(head->width, o);
    for (uint32_t j = 0; j < added_keys(head, i); j++) {
        float s = dot(q, row_of(forward->k, j), head->width) * head->scale;
        float e = j < keys_of(head, i) ? canon_exp(s - largest) : 0.0F;
        sum = sum + e;
        add_scaled(drop(head, i, j, e), row_of(forward->v, j), head->width, o);
    }
    for (uint32_t d = 0; d < head->width; d++)
        o[d] = canon_divide(o[d], sum) + 0.0F;
    forward->stats[(head->row + i) * 2] = largest;
    forward->stats[(head->row + i) * 2 + 1] = sum;
}

static void host_attention(KEEL_HOST_ARGUMENTS)
{
    const float *qkv = arguments[0], *work = arguments[1];
    struct head head = head_init(arguments + 5, arguments[4], range);
    for (uint64_t number = 0; head_next(&head, &number, range);) {
        const float *q = qkv + head.at, *k = q + head.out_step;
        const struct forward forward = {.q = {q, head.step},
                                        .k = rows_of(&head, work, 0, k, head.step),
                                        .v = rows_of(&head, work, 1, k + head.out_step, head.step),
                                        .out = arguments[2],
                                        .stats = arguments[3]};
        for (uint32_t i = 0; i < head.tokens; i++)
            forward_row(&head, &forward, i);
    }
}

enum { Q, K, V, G, DQ, PARTS }; /* of the gradient's workspace, where it is packed */
static uint64_t facts_at(const struct head *head)
{
    return head->packed ? PARTS * head->part : 0;
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
                        .packed = u32_at(arguments, 4),
                        .tokens = u32_at(arguments, 5),
                        .heads = u32_at(arguments, 6),
                        .width = u32_at(arguments, 7)};
    head.out_step = (uint64_t)head.heads * head.width;
    head.part = range->global[2] * head.tokens * head.out_step;
    float *work = arguments[3];
    for (uint64_t number = 0; head_next(&head, &number, range);)
        for (uint32_t i = 0; i < head.tokens; i++)
            row_facts(&head, arguments[0], arguments[1], arguments[2], i, work + facts_at(&head));
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
    if (j >= keys_of(head, i))
        return pair;
    float s = dot(row_of(gradient->q, i), row_of(gradient->k, j), head->width) * head->scale;
    pair.p = canon_exp(s - gradient->stats[row * 2]) * gradient->facts[row * 2];
    float dp = drop(head, i, j, dot(row_of(gradient->g, i), row_of(gradient->v, j), head->width));
    pair.ds = pair.p * (dp - gradient->facts[row * 2 + 1]);
    return pair;
}

KEEL_HOST_KERNEL static void query_row(const struct head *head, const struct gradient *gradient, uint32_t i,
                                       float *dqkv)
{
    float *dq = dqkv + head->at + i * head->step;
    zero_row(head->width, dq);
    for (uint32_t j = 0; j < added_keys(head, i); j++)
        add_scaled(pair_gradient(head, gradient, i, j).ds, row_of(gradient->k, j), head->width, dq);
    scale_row(head->scale, head->width, dq);
}

KEEL_HOST_KERNEL static void key_row(const struct head *head, const struct gradient *gradient, uint32_t j,
                                     float *dqkv)
{
    float *dk = dqkv + head->at + j * head->step + head->out_step, *dv = dk + head->out_step;
    zero_row(head->width, dk);
    zero_row(head->width, dv);
    for (uint32_t i = added_from(head, j); i < head->tokens; i++) {
        struct pair pair = pair_gradient(head, gradient, i, j);
        add_scaled(drop(head, i, j, pair.p), row_of(gradient->g, i), head->width, dv);
        add_scaled(pair.ds, row_of(gradient->q, i), head->width, dk);
    }
    scale_row(head->scale, head->width, dk);
    scale_row(1.0F, head->width, dv);
}

enum { WANT_QUERIES = 1, WANT_KEYS = 2 };
static void host_attention_grad(KEEL_HOST_ARGUMENTS)
{
    struct head head = head_init(arguments + 6, arguments[2], range);
    const float *dout = arguments[3], *work = arguments[4];
    float *dqkv = arguments[5];
    const uint32_t want = u32_at(arguments, 18);
    for (uint64_t number = 0; head_next(&head, &number, range);) {
        const float *q = (const float *)arguments[0] + head.at, *k = q + head.out_step;
        const struct gradient gradient = {.q = rows_of(&head, work, Q, q, head.step),
                                          .k = rows_of(&head, work, K, k, head.step),
                                          .v = rows_of(&head, work, V, k + head.out_step, head.step),
                                          .g = rows_of(&head, work, G, dout + head.out_at, head.out_step),
                                          .stats = arguments[1],
                                          .facts = work + facts_at(&head)};
        for (uint32_t t = 0; t < head.tokens; t++) {
            if (want & WANT_QUERIES)
                query_row(&head, &gradient, t, dqkv);
            if (want & WANT_KEYS)
                key_row(&head, &gradient, t, dqkv);
        }
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
