/* attention_host.c - attention.cl in C: the reference, and what the host device runs.
 *
 * Element by element in the order that the head of attention.cl states; results are summed where they
 * are stored, and scores are computed anew wherever they are needed, so that there is no scratch. */
#include "canon.h"
#include "kernels_internal.h"

extern const char keel_cl_attention[];

/* The scalars that kernels end with, and one head of one sequence. */
struct head {
    uint32_t tokens, heads, width, causal, stream;
    float scale, rate, keep_scale;
    const struct keel_control *control;
    uint64_t step, out_step; /* floats from a token to the next in qkv, in out */
    uint64_t at, out_at;     /* of the first token of this head */
    uint64_t row;            /* number of its first row of probabilities */
};

static struct head head_init(void *const *scalars, const struct keel_control *control)
{
    struct head head = {
        .tokens = *(const uint32_t *)scalars[0],
        .heads = *(const uint32_t *)scalars[1],
        .width = *(const uint32_t *)scalars[2],
        .causal = *(const uint32_t *)scalars[3],
        .scale = *(const float *)scalars[4],
        .rate = *(const float *)scalars[5],
        .keep_scale = *(const float *)scalars[6],
        .stream = *(const uint32_t *)scalars[7],
        .control = control,
    };
    head.out_step = (uint64_t)head.heads * head.width;
    head.step = 3 * head.out_step;
    return head;
}

static void head_move(struct head *head, uint64_t batch, uint64_t number)
{
    head->at = batch * head->tokens * head->step + number * head->width;
    head->out_at = batch * head->tokens * head->out_step + number * head->width;
    head->row = (batch * head->heads + number) * head->tokens;
}

/* Query i sees keys [0, keys_of(i)). */
static uint32_t keys_of(const struct head *head, uint32_t i)
{
    return head->causal ? i + 1 : head->tokens;
}

static float drop(const struct head *head, uint32_t i, uint32_t j, float x)
{
    if (head->rate == 0.0F)
        return x;
    uint64_t element = (head->row + i) * head->tokens + j;
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

KEEL_HOST_KERNEL static void forward_row(const struct head *head, const float *qkv, uint32_t i, float *out,
                                         float *stats)
{
    const float *q = qkv + head->at + i * head->step;
    const float *k = qkv + head->at + head->out_step, *v = k + head->out_step;
    float *o = out + head->out_at + i * head->out_step;
    float largest = -INFINITY, sum = 0.0F;
    for (uint32_t j = 0; j < keys_of(head, i); j++) {
        float s = dot(q, k + j * head->step, head->width) * head->scale;
        largest = s > largest ? s : largest;
    }
    largest = largest + 0.0F;
    zero_row(head->width, o);
    for (uint32_t j = 0; j < keys_of(head, i); j++) {
        float s = dot(q, k + j * head->step, head->width) * head->scale;
        float e = canon_exp(s - largest);
        sum = sum + e;
        add_scaled(drop(head, i, j, e), v + j * head->step, head->width, o);
    }
    for (uint32_t d = 0; d < head->width; d++)
        o[d] = canon_divide(o[d], sum) + 0.0F;
    stats[(head->row + i) * 2] = largest;
    stats[(head->row + i) * 2 + 1] = sum;
}

static void host_attention(void *const *arguments, const struct keel_range *range)
{
    struct head head = head_init(arguments + 4, arguments[3]);
    for (uint64_t batch = 0; batch < range->global[2]; batch++)
        for (uint64_t number = 0; number < range->global[1]; number++) {
            head_move(&head, batch, number);
            for (uint32_t i = 0; i < head.tokens; i++)
                forward_row(&head, arguments[0], i, arguments[1], arguments[2]);
        }
}

/* What the gradient reads, and the workspace of row facts. */
struct gradient {
    const float *qkv, *stats, *dout;
    const float *rows; /* inv, delta */
};

struct pair {
    float p, ds;
};

static struct pair pair_gradient(const struct head *head, const struct gradient *gradient, uint32_t i,
                                 uint32_t j)
{
    const float *q = gradient->qkv + head->at + i * head->step;
    const float *k = gradient->qkv + head->at + j * head->step + head->out_step, *v = k + head->out_step;
    const float *g = gradient->dout + head->out_at + i * head->out_step;
    uint64_t row = head->row + i;
    struct pair pair;
    float s = dot(q, k, head->width) * head->scale;
    pair.p = canon_exp(s - gradient->stats[row * 2]) * gradient->rows[row * 2];
    float dp = drop(head, i, j, dot(g, v, head->width));
    pair.ds = pair.p * (dp - gradient->rows[row * 2 + 1]);
    return pair;
}

KEEL_HOST_KERNEL static void row_facts(const struct head *head, const float *out, const float *stats,
                                       const float *dout, uint32_t i, float *rows)
{
    uint64_t row = head->row + i, out_at = head->out_at + i * head->out_step;
    rows[row * 2] = canon_divide(1.0F, stats[row * 2 + 1]);
    rows[row * 2 + 1] = dot(dout + out_at, out + out_at, head->width);
}

static void host_attention_rows(void *const *arguments, const struct keel_range *range)
{
    struct head head = {.tokens = *(const uint32_t *)arguments[4],
                        .heads = *(const uint32_t *)arguments[5],
                        .width = *(const uint32_t *)arguments[6]};
    head.out_step = (uint64_t)head.heads * head.width;
    for (uint64_t batch = 0; batch < range->global[2]; batch++)
        for (uint64_t number = 0; number < range->global[1]; number++) {
            head_move(&head, batch, number);
            for (uint32_t i = 0; i < head.tokens; i++)
                row_facts(&head, arguments[0], arguments[1], arguments[2], i, arguments[3]);
        }
}

KEEL_HOST_KERNEL static void query_row(const struct head *head, const struct gradient *gradient, uint32_t i,
                                       float *dqkv)
{
    const float *k = gradient->qkv + head->at + head->out_step;
    float *dq = dqkv + head->at + i * head->step;
    zero_row(head->width, dq);
    for (uint32_t j = 0; j < keys_of(head, i); j++)
        add_scaled(pair_gradient(head, gradient, i, j).ds, k + j * head->step, head->width, dq);
    scale_row(head->scale, head->width, dq);
}

KEEL_HOST_KERNEL static void key_row(const struct head *head, const struct gradient *gradient, uint32_t j,
                                     float *dqkv)
{
    const float *q = gradient->qkv + head->at, *g = gradient->dout + head->out_at;
    float *dk = dqkv + head->at + j * head->step + head->out_step, *dv = dk + head->out_step;
    zero_row(head->width, dk);
    zero_row(head->width, dv);
    for (uint32_t i = head->causal ? j : 0; i < head->tokens; i++) {
        struct pair pair = pair_gradient(head, gradient, i, j);
        add_scaled(drop(head, i, j, pair.p), g + i * head->out_step, head->width, dv);
        add_scaled(pair.ds, q + i * head->step, head->width, dk);
    }
    scale_row(head->scale, head->width, dk);
    scale_row(1.0F, head->width, dv);
}

enum { WANT_QUERIES = 1, WANT_KEYS = 2 };
static void host_attention_grad(void *const *arguments, const struct keel_range *range)
{
    struct head head = head_init(arguments + 6, arguments[2]);
    struct gradient gradient = {
        .qkv = arguments[0], .stats = arguments[1], .dout = arguments[3], .rows = arguments[4]};
    const uint32_t want = *(const uint32_t *)arguments[14];
    for (uint64_t batch = 0; batch < range->global[2]; batch++)
        for (uint64_t number = 0; number < range->global[1]; number++) {
            head_move(&head, batch, number);
            for (uint32_t t = 0; t < head.tokens; t++) {
                if (want & WANT_QUERIES)
                    query_row(&head, &gradient, t, arguments[5]);
                if (want & WANT_KEYS)
                    key_row(&head, &gradient, t, arguments[5]);
            }
        }
}

static const struct keel_module_kernel attention_kernels[] = {
    {"keel_attention", host_attention},
    {"keel_attention_rows", host_attention_rows},
    {"keel_attention_grad", host_attention_grad},
};

const struct keel_module keel_module_attention = {
    .name = "attention",
    .source = keel_cl_attention,
    .kernels = attention_kernels,
    .kernel_count = sizeof attention_kernels / sizeof attention_kernels[0],
};
