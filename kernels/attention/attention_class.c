/* attention_class.c - attention whose products are of a class: in which order products (keel_op_gemm) and
 * what lies between them (attention_class.cl) are launched.
 *
 * Scores and weights lie in memory, of some pairs of a sequence and a head and of CHUNK queries at a time: a
 * head has products of its own, so which go together changes no bit; and sums over queries go on from chunk
 * to chunk, as products of the classes may be cut behind any CHUNK of k. Keys behind the last that a query of
 * the chunk sees are left out. */
#include "attention_internal.h"
#include "kernels_internal.h"

#include <keel/attention_ops.h>

enum { CHUNK = 1024, WEIGHTS_FLOATS = 1 << 23 /* of a call, about; of one head of CHUNK queries at least */ };

/* What a round of launches is of: pairs, queries, and the keys that one of them sees. */
struct share {
    uint32_t first_pair, pairs, first, queries, columns;
};

static uint32_t chunk_of(const struct keel_attention *op)
{
    return op->tokens < CHUNK ? op->tokens : CHUNK;
}

static uint32_t keys_of(const struct keel_attention *op)
{
    return op->kv != NULL || op->keys > 0 ? op->keys : op->tokens;
}

static uint32_t pairs_at_once(const struct keel_attention *op)
{
    const uint64_t one = KEEL_BYTES(chunk_of(op), keys_of(op)), all = KEEL_BYTES(op->batch, op->heads);
    const uint64_t fit = one < WEIGHTS_FLOATS ? WEIGHTS_FLOATS / one : 1;
    return (uint32_t)(fit < all ? fit : all);
}

/* The share of `pairs` pairs and of queries from `first` on. */
static struct share share_of(const struct keel_attention *op, uint32_t first_pair, uint32_t pairs,
                             uint32_t first)
{
    const uint32_t keys = keys_of(op), left = op->tokens - first;
    struct share share = {first_pair, pairs, first, left < CHUNK ? left : CHUNK, keys};
    const uint64_t end =
        (uint64_t)first + share.queries + (op->bidirectional ? keel_window_reach(op->window, keys) : 0);
    if (end < keys)
        share.columns = (uint32_t)end;
    return share;
}

/* ---- the six products ---- */

enum product { SCORES, MIX, GAINS, VALUES_GRAD, KEYS_GRAD, QUERIES_GRAD };

static struct keel_gemm product_of(const struct keel_attention *op, const struct share *share,
                                   enum product product)
{
    const bool weights = product != GAINS && product != VALUES_GRAD;
    struct keel_buffer *const pairs = op->parts[weights ? KEEL_ATTENTION_WEIGHTS : KEEL_ATTENTION_GAINS],
                              *const own = op->parts[KEEL_ATTENTION_OWN],
                              *const other = op->parts[KEEL_ATTENTION_OTHER];
    const uint64_t of_queries = KEEL_BYTES(share->queries, op->head_width),
                   of_keys = KEEL_BYTES(share->columns, op->head_width),
                   of_pairs = KEEL_BYTES(share->queries, share->columns);
    struct keel_gemm gemm = {.batch = share->pairs, .planes = op->parts[KEEL_ATTENTION_PLANES]};
    if (product == SCORES || product == GAINS) { /* own rows times other rows */
        gemm.m = share->queries;
        gemm.n = gemm.ldc = share->columns;
        gemm.k = gemm.lda = gemm.ldb = op->head_width;
        gemm.transpose_b = true;
        gemm.stride_a = of_queries;
        gemm.stride_b = of_keys;
        gemm.stride_c = of_pairs;
        gemm.a = own;
        gemm.b = other;
        gemm.c = pairs;
        return gemm;
    }
    gemm.n = gemm.ldb = gemm.ldc = op->head_width;
    gemm.lda = share->columns;
    gemm.stride_a = of_pairs;
    gemm.a = pairs;
    if (product == MIX || product == QUERIES_GRAD) { /* weights times other rows */
        gemm.m = share->queries;
        gemm.k = share->columns;
        gemm.b_unit = product == MIX;
        gemm.stride_b = of_keys;
        gemm.stride_c = of_queries;
        gemm.b = other;
        gemm.c = own;
        return gemm;
    }
    gemm.m = share->columns; /* weights, turned, times own rows */
    gemm.k = share->queries;
    gemm.transpose_a = gemm.chain = true;
    gemm.stride_b = of_queries;
    gemm.stride_c = KEEL_BYTES(keys_of(op), op->head_width);
    gemm.b = own;
    gemm.c = op->parts[product == KEYS_GRAD ? KEEL_ATTENTION_KEYS_GRAD : KEEL_ATTENTION_VALUES_GRAD];
    return gemm;
}

static enum keel_status multiply(struct keel_kernels *kernels, const struct keel_attention *op,
                                 const struct share *share, enum product product,
                                 struct keel_launch_list *list)
{
    const struct keel_gemm gemm = product_of(op, share, product);
    return keel_op_gemm(kernels, &gemm, list);
}

void keel_attention_part_bytes(const struct keel_kernels *kernels, const struct keel_attention *op,
                               bool gradient, uint64_t bytes[KEEL_ATTENTION_PARTS])
{
    const struct share share = {0, pairs_at_once(op), 0, chunk_of(op), keys_of(op)};
    const uint64_t row = KEEL_BYTES(share.pairs, op->head_width, sizeof(float)),
                   pairs = KEEL_BYTES(share.pairs, share.queries, share.columns, sizeof(float));
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++)
        bytes[i] = 0;
    if (!keel_attention_in_class(kernels, op))
        return;
    bytes[KEEL_ATTENTION_OWN] = KEEL_BYTES(share.queries, row);
    bytes[KEEL_ATTENTION_OTHER] =
        keel_plus(KEEL_BYTES(share.columns, row), KEEL_BYTES(share.pairs, share.columns, sizeof(int32_t)));
    bytes[KEEL_ATTENTION_WEIGHTS] = pairs;
    if (gradient) {
        bytes[KEEL_ATTENTION_GAINS] = pairs;
        bytes[KEEL_ATTENTION_KEYS_GRAD] = bytes[KEEL_ATTENTION_VALUES_GRAD] = KEEL_BYTES(share.columns, row);
    }
    for (enum product product = SCORES; product <= QUERIES_GRAD; product++) {
        const struct keel_gemm gemm = product_of(op, &share, product);
        const uint64_t planes = keel_gemm_planes_bytes(kernels, &gemm);
        if (planes > bytes[KEEL_ATTENTION_PLANES] && (gradient || product <= MIX))
            bytes[KEEL_ATTENTION_PLANES] = planes;
    }
}

enum keel_status keel_attention_check_parts(const struct keel_kernels *kernels,
                                            const struct keel_attention *op, bool gradient)
{
    static const char *const names[KEEL_ATTENTION_PARTS] = {"own",       "other",       "weights", "gains",
                                                            "keys_grad", "values_grad", "planes"};
    enum { OTHERS = 3 };
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    struct keel_op_operand operands[OTHERS + KEEL_ATTENTION_PARTS] = {
        {"qkv", op->qkv, 0, KEEL_READ}, {"kv", op->kv, 0, KEEL_OPTIONAL}, {"out", op->out, 0, KEEL_READ}};
    uint32_t count = OTHERS;
    if (!keel_attention_in_class(kernels, op))
        return KEEL_OK;
    keel_attention_part_bytes(kernels, op, gradient, bytes);
    for (uint32_t i = 0; i < KEEL_ATTENTION_PARTS; i++)
        if (bytes[i] > 0)
            operands[count++] = (struct keel_op_operand){names[i], op->parts[i], bytes[i], KEEL_WRITTEN};
    return keel_check_operands("attention", operands, count);
}

/* ---- what lies between them ---- */

/* A part of rows of so many tokens, each `step` floats behind the last, from float `skip` on; `group` heads
 * of queries have the same. */
struct rows {
    struct keel_buffer *buffer;
    uint32_t tokens, group;
    uint64_t step, skip;
};
enum of { QUERIES, KEYS, VALUES };
/* Those of queries, keys or values, in qkv and kv, or in their gradients. */
static struct rows rows_of(const struct keel_attention *op, struct keel_buffer *qkv, struct keel_buffer *kv,
                           enum of of)
{
    const uint64_t row = KEEL_BYTES(op->heads, op->head_width),
                   shared = KEEL_BYTES(keel_attention_kv_heads(op), op->head_width);
    const uint64_t front = op->kv == NULL ? row : 0;
    if (of == QUERIES)
        return (struct rows){qkv, op->tokens, 1, op->kv == NULL ? row + 2 * shared : row, 0};
    return (struct rows){.buffer = op->kv == NULL ? qkv : kv,
                         .tokens = keys_of(op),
                         .group = op->heads / keel_attention_kv_heads(op),
                         .step = front + 2 * shared,
                         .skip = of == KEYS ? front : front + shared};
}
/* Those of out and of dout. */
static struct rows own_rows_of(const struct keel_attention *op, struct keel_buffer *buffer)
{
    return (struct rows){buffer, op->tokens, 1, KEEL_BYTES(op->heads, op->head_width), 0};
}
/* Where the gradient of keys or values goes that a head of queries has alone. */
static struct rows shares_of(const struct keel_kernels *kernels, const struct keel_attention_grad *op,
                             enum of of)
{
    const struct keel_attention *forward = &op->forward;
    struct rows rows = rows_of(forward, op->dqkv, op->dkv, of);
    if (rows.group == 1)
        return rows;
    rows = own_rows_of(forward, forward->workspace);
    rows.tokens = keys_of(forward);
    rows.skip = keel_attention_shares_at(kernels, forward) + (of == KEYS ? 0 : rows.step);
    rows.step *= 2;
    return rows;
}

enum { AS_THEY_ARE, FINITE, SCALED }; /* of keel_attention_gather */
static enum keel_status gather(struct keel_kernels *kernels, const struct keel_attention *op,
                               const struct share *share, const struct rows *rows, bool own, uint32_t how,
                               struct keel_launch_list *list)
{
    const uint32_t count = own ? share->queries : share->columns;
    const struct keel_range range = keel_kernels_rows(kernels, KEEL_BYTES(share->pairs, count));
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_attention_class, "keel_attention_gather", &range,
        KEEL_ARGS(keel_arg_buffer(rows->buffer),
                  keel_arg_buffer(op->parts[own ? KEEL_ATTENTION_OWN : KEEL_ATTENTION_OTHER]),
                  keel_arg_u32(share->first_pair), keel_arg_u32(share->pairs),
                  keel_arg_u32(own ? share->first : 0), keel_arg_u32(count), keel_arg_u32(op->heads),
                  keel_arg_u32(rows->tokens), keel_arg_u32(op->head_width), keel_arg_u32(rows->group),
                  keel_arg_u64(rows->step), keel_arg_u64(rows->skip), keel_arg_u32(how)));
}
static enum keel_status gather_of(struct keel_kernels *kernels, const struct keel_attention *op,
                                  const struct share *share, enum of of, struct keel_launch_list *list)
{
    const struct rows rows = rows_of(op, op->qkv, op->kv, of);
    return gather(kernels, op, share, &rows, of == QUERIES, AS_THEY_ARE, list);
}

/* `count` rows of each pair, from `first` on, over the sums of stats where it is given, else times factor. */
static enum keel_status scatter(struct keel_kernels *kernels, const struct keel_attention *op,
                                const struct share *share, struct keel_buffer *from, const struct rows *rows,
                                uint32_t first, uint32_t count, struct keel_buffer *stats, float factor,
                                struct keel_launch_list *list)
{
    const struct keel_range range = keel_kernels_rows(kernels, KEEL_BYTES(share->pairs, count));
    return keel_kernels_launch(
        kernels, list, KEEL_MODULE_attention_class, "keel_attention_scatter", &range,
        KEEL_ARGS(keel_arg_buffer(from), keel_arg_buffer(rows->buffer), keel_arg_either(stats, from),
                  keel_arg_u32(share->first_pair), keel_arg_u32(share->pairs), keel_arg_u32(first),
                  keel_arg_u32(count), keel_arg_u32(op->heads), keel_arg_u32(rows->tokens),
                  keel_arg_u32(op->head_width), keel_arg_u64(rows->step), keel_arg_u64(rows->skip),
                  keel_arg_f32(factor), keel_arg_u32(stats != NULL)));
}

enum { WEIGH_SCALARS = 20 };
static void set_scalars(const struct keel_kernels *kernels, const struct keel_attention *op,
                        const struct share *share, struct keel_arg args[WEIGH_SCALARS])
{
    struct keel_arg whole[KEEL_ATTENTION_SCALARS];
    keel_attention_scalars(kernels, op, whole);
    args[0] = keel_arg_u32(share->first_pair);
    args[1] = keel_arg_u32(share->pairs);
    args[2] = keel_arg_u32(share->first);
    args[3] = keel_arg_u32(share->queries);
    args[4] = keel_arg_u32(share->columns);
    args[5] = keel_arg_u32(op->heads);
    args[6] = keel_arg_u32(op->tokens);
    args[7] = keel_arg_u32(keys_of(op));
    for (uint32_t i = 8; i < WEIGH_SCALARS; i++) /* from `ahead` on they are the same */
        args[i] = whole[i - 8 + KEEL_ATTENTION_SCALAR_AHEAD];
}

/* The operands of both kernels of weights, behind two of their own: segments of queries and of keys, control.
 */
static void set_mask(const struct keel_attention *op, struct keel_arg args[3])
{
    struct keel_buffer *segments = op->segments != NULL ? op->segments : op->stats;
    args[0] = keel_arg_buffer(segments);
    args[1] = keel_arg_either(op->key_segments, segments);
    args[2] = keel_arg_buffer(op->dropout_rate > 0.0F ? op->control : op->stats);
}

static enum keel_status weigh(struct keel_kernels *kernels, const struct keel_attention *op,
                              const struct share *share, struct keel_launch_list *list)
{
    enum { SCALARS = 6 };
    struct keel_arg args[SCALARS + WEIGH_SCALARS + 1];
    args[0] = keel_arg_buffer(op->parts[KEEL_ATTENTION_WEIGHTS]);
    args[1] = keel_arg_buffer(op->parts[KEEL_ATTENTION_OTHER]);
    set_mask(op, args + 2);
    args[5] = keel_arg_buffer(op->stats);
    set_scalars(kernels, op, share, args + SCALARS);
    args[SCALARS + WEIGH_SCALARS] = keel_arg_u64(KEEL_BYTES(share->pairs, share->columns, op->head_width));
    const struct keel_range range = keel_kernels_rows(kernels, KEEL_BYTES(share->pairs, share->queries));
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention_class, "keel_attention_weigh", &range,
                               args, KEEL_ARG_COUNT(args));
}

static enum keel_status weigh_grad(struct keel_kernels *kernels, const struct keel_attention *op,
                                   const struct share *share, struct keel_launch_list *list)
{
    enum { SCALARS = 7 };
    struct keel_arg args[SCALARS + WEIGH_SCALARS];
    args[0] = keel_arg_buffer(op->parts[KEEL_ATTENTION_WEIGHTS]);
    args[1] = keel_arg_buffer(op->parts[KEEL_ATTENTION_GAINS]);
    set_mask(op, args + 2);
    args[5] = keel_arg_buffer(op->stats);
    args[6] = keel_arg_buffer(op->workspace); /* 1 / sum, and dout . out (keel_attention_rows) */
    set_scalars(kernels, op, share, args + SCALARS);
    const struct keel_range range = keel_kernels_rows(kernels, KEEL_BYTES(share->pairs, share->queries));
    return keel_kernels_launch(kernels, list, KEEL_MODULE_attention_class, "keel_attention_weigh_grad",
                               &range, args, KEEL_ARG_COUNT(args));
}

/* ---- both passes ---- */

static enum keel_status forward_share(struct keel_kernels *kernels, const struct keel_attention *op,
                                      const struct share *share, struct keel_launch_list *list)
{
    const uint32_t how = keel_kernels_class(kernels) == KEEL_CLASS_BF16 ? FINITE : SCALED;
    const struct rows values = rows_of(op, op->qkv, op->kv, VALUES), out = own_rows_of(op, op->out);
    KEEL_TRY(gather_of(kernels, op, share, QUERIES, list));
    KEEL_TRY(gather_of(kernels, op, share, KEYS, list));
    KEEL_TRY(multiply(kernels, op, share, SCORES, list));
    KEEL_TRY(gather(kernels, op, share, &values, false, how, list));
    KEEL_TRY(weigh(kernels, op, share, list));
    KEEL_TRY(multiply(kernels, op, share, MIX, list));
    return scatter(kernels, op, share, op->parts[KEEL_ATTENTION_OWN], &out, share->first, share->queries,
                   op->stats, 1.0F, list);
}

static enum keel_status backward_share(struct keel_kernels *kernels, const struct keel_attention_grad *op,
                                       const struct share *share, float scale, struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const struct rows dout = own_rows_of(forward, op->dout);
    const struct rows dq = rows_of(forward, op->dqkv, op->dkv, QUERIES);
    KEEL_TRY(gather_of(kernels, forward, share, QUERIES, list));
    KEEL_TRY(gather_of(kernels, forward, share, KEYS, list));
    KEEL_TRY(multiply(kernels, forward, share, SCORES, list));
    KEEL_TRY(gather(kernels, forward, share, &dout, true, AS_THEY_ARE, list));
    KEEL_TRY(gather_of(kernels, forward, share, VALUES, list));
    KEEL_TRY(multiply(kernels, forward, share, GAINS, list));
    KEEL_TRY(weigh_grad(kernels, forward, share, list));
    KEEL_TRY(multiply(kernels, forward, share, VALUES_GRAD, list));
    KEEL_TRY(gather_of(kernels, forward, share, QUERIES, list));
    KEEL_TRY(multiply(kernels, forward, share, KEYS_GRAD, list));
    KEEL_TRY(gather_of(kernels, forward, share, KEYS, list));
    KEEL_TRY(multiply(kernels, forward, share, QUERIES_GRAD, list));
    return scatter(kernels, forward, share, forward->parts[KEEL_ATTENTION_OWN], &dq, share->first,
                   share->queries, NULL, scale, list);
}

enum keel_status keel_attention_class_append(struct keel_kernels *kernels, const struct keel_attention *op,
                                             struct keel_launch_list *list)
{
    const uint32_t all = op->batch * op->heads, most = pairs_at_once(op);
    for (uint32_t pair = 0; pair < all; pair += most)
        for (uint32_t first = 0; first < op->tokens; first += CHUNK) {
            const struct share share = share_of(op, pair, all - pair < most ? all - pair : most, first);
            KEEL_TRY(forward_share(kernels, op, &share, list));
        }
    return KEEL_OK;
}

enum keel_status keel_attention_class_append_grad(struct keel_kernels *kernels,
                                                  const struct keel_attention_grad *op,
                                                  struct keel_launch_list *list)
{
    const struct keel_attention *forward = &op->forward;
    const uint32_t all = forward->batch * forward->heads, most = pairs_at_once(forward),
                   keys = keys_of(forward);
    const float scale = keel_canon_divide(1.0F, keel_canon_sqrt((float)forward->head_width));
    const struct rows dk = shares_of(kernels, op, KEYS), dv = shares_of(kernels, op, VALUES);
    struct keel_buffer *const sums[2] = {forward->parts[KEEL_ATTENTION_KEYS_GRAD],
                                         forward->parts[KEEL_ATTENTION_VALUES_GRAD]};
    for (uint32_t pair = 0; pair < all; pair += most) {
        const uint32_t pairs = all - pair < most ? all - pair : most;
        struct share share = {.first_pair = pair, .pairs = pairs};
        for (int i = 0; i < 2; i++)
            KEEL_TRY(keel_op_fill(
                kernels,
                &(struct keel_fill){.count = KEEL_BYTES(pairs, keys, forward->head_width), .y = sums[i]},
                list));
        for (uint32_t first = 0; first < forward->tokens; first += CHUNK) {
            share = share_of(forward, pair, pairs, first);
            KEEL_TRY(backward_share(kernels, op, &share, scale, list));
        }
        KEEL_TRY(scatter(kernels, forward, &share, sums[0], &dk, 0, keys, NULL, scale, list));
        KEEL_TRY(scatter(kernels, forward, &share, sums[1], &dv, 0, keys, NULL, 1.0F, list));
    }
    return KEEL_OK;
}
