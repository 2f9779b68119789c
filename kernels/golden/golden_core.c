/* golden_core.c - golden cases of what a GPT needs: for every operation its shapes, and the hash of each.
 *
 * The shapes are odd on purpose - tails, edges, more than one block - and small, so that a simulator gets
 * through all of them in minutes. To add a case: a row, whose hash tests/kernels/golden_test.c prints when
 * it is wrong. To change a hash on purpose is to change the bits of a release: see README.md. */
#include "golden_internal.h"
#include "planes_internal.h"

#include <keel/memory.h>
#include <string.h>

/* ---- matrix product: m, n, k, batch, flags, extra elements to each row as it is stored ---- */

enum { TA = 1, TB = 2, ACCUMULATE = 4, BIAS = 8, GELU = 16, CHAIN = 32, ADDED = 64, EXACT = 128 };

/* Elements of a type: floats in [-1, 1), or patterns of 16 bits that are no denormal of any. */
static struct keel_buffer *elements(struct golden_run *run, const char *name, enum golden_role role,
                                    uint64_t count, uint32_t type)
{
    if (type == KEEL_F32)
        return golden_floats(run, name, role, count, -1.0F, 1.0F);
    uint16_t *patterns;
    if (keel_alloc(count, sizeof *patterns, &patterns) != KEEL_OK)
        return NULL; /* which the operation refuses */
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t x = (uint32_t)(i + count) * UINT32_C(2654435761);
        patterns[i] = (uint16_t)(0x3000U + (x >> 20) + (x >> 16 << 15));
    }
    struct keel_buffer *buffer = golden_bytes(run, name, role, patterns, count * sizeof *patterns);
    keel_free(patterns);
    return buffer;
}

/* All of so many slices of a dimension; none of 0. */
static struct keel_slices all_slices(uint32_t count, uint32_t units)
{
    return count == 0 ? (struct keel_slices){0}
                      : (struct keel_slices){.count = count, .of = count, .units = units, .unit = 1};
}

/* shape[6]: the types of A, B and C, two bits each; [7]: slices of k, 0 for none */
static enum keel_status gemm(struct golden_run *run, const uint32_t *shape)
{
    const uint32_t m = shape[0], n = shape[1], k = shape[2], batch = shape[3], flags = shape[4],
                   pad = shape[5];
    const bool ta = (flags & TA) != 0, tb = (flags & TB) != 0;
    struct keel_gemm op = {.m = m, .n = n, .k = k, .batch = batch, .transpose_a = ta, .transpose_b = tb};
    op.accumulate = (flags & ACCUMULATE) != 0;
    op.chain = (flags & CHAIN) != 0;
    op.k_slices = all_slices(shape[7], k);
    op.a_type = (enum keel_dtype)(shape[6] & 3);
    op.b_type = (enum keel_dtype)(shape[6] >> 2 & 3);
    op.c_type = (enum keel_dtype)(shape[6] >> 4 & 3);
    op.lda = (ta ? m : k) + pad;
    op.ldb = (tb ? k : n) + pad;
    op.ldc = n + pad;
    op.stride_a = (uint64_t)op.lda * (ta ? k : m);
    op.stride_b = (uint64_t)op.ldb * (tb ? n : k);
    op.stride_c = (uint64_t)op.ldc * m;
    op.a = elements(run, "a", GOLDEN_INPUT, batch * op.stride_a, op.a_type);
    op.b = elements(run, "b", GOLDEN_INPUT, batch * op.stride_b, op.b_type);
    op.c = elements(run, "c", GOLDEN_UPDATED, batch * op.stride_c, op.c_type);
    if (flags & BIAS)
        op.bias = GOLDEN_FLOATS(run, "bias", n);
    if (flags & GELU)
        op.pre = elements(run, "pre", GOLDEN_UPDATED, batch * op.stride_c, op.c_type);
    if (flags & ADDED)
        op.residual = elements(run, "residual", GOLDEN_INPUT, batch * op.stride_c, op.c_type);
    if (flags & EXACT)
        op.planes =
            golden_scratch(run, "planes", keel_planes_bytes(&op, keel_planes_class_digits(run->numerics)));
    return golden_ready(run) ? keel_op_gemm(run->kernels, &op, &run->list) : KEEL_OK;
}

/* The same in the class of the kernels. */
static enum keel_status gemm_exact(struct golden_run *run, const uint32_t *shape)
{
    uint32_t exact[GOLDEN_SHAPE_MAX];
    memcpy(exact, shape, sizeof exact);
    exact[4] |= EXACT;
    return gemm(run, exact);
}

/* Integers and scales that are made from their numbers, as the operation has them; NULL: no memory. */
static uint32_t *quantised_words(const struct keel_gemm_quantised *op, uint64_t count)
{
    const uint32_t groups = op->group == 0 ? 1 : (op->k + op->group - 1) / op->group;
    const uint64_t all = (uint64_t)op->n * op->k, scale_count = (uint64_t)op->n * groups;
    int8_t *integers = NULL;
    float *scales = NULL;
    uint32_t *words = NULL;
    if (keel_alloc(all, 1, &integers) == KEEL_OK &&
        keel_alloc(scale_count, sizeof *scales, &scales) == KEEL_OK &&
        keel_alloc(count, sizeof *words, &words) == KEEL_OK) {
        for (uint64_t i = 0; i < all; i++) {
            const uint32_t x = (uint32_t)(i + all) * UINT32_C(2654435761) >> (32 - op->bits);
            integers[i] = (int8_t)((int32_t)x - (INT32_C(1) << (op->bits - 1)));
        }
        for (uint64_t i = 0; i < scale_count; i++)
            scales[i] = (float)(1 + i % 97) * 0x1.23456p-9F;
        keel_quantised_pack(op, integers, scales, words);
    }
    keel_free(integers);
    keel_free(scales);
    return words;
}

/* m, n, k, bits, group, whether there is a bias */
static enum keel_status gemm_quantised(struct golden_run *run, const uint32_t *shape)
{
    struct keel_gemm_quantised op = {
        .m = shape[0], .n = shape[1], .k = shape[2], .bits = shape[3], .group = shape[4]};
    uint64_t count;
    KEEL_TRY(keel_quantised_words(&op, &count));
    uint32_t *words = quantised_words(&op, count);
    if (words == NULL)
        return KEEL_NO_MEMORY;
    op.a = GOLDEN_FLOATS(run, "a", (uint64_t)op.m * op.k);
    op.weights = golden_bytes(run, "weights", GOLDEN_INPUT, words, count * sizeof *words);
    keel_free(words);
    op.c = golden_output(run, "c", (uint64_t)op.m * op.n);
    if (shape[5])
        op.bias = GOLDEN_FLOATS(run, "bias", op.n);
    const uint64_t workspace = keel_gemm_quantised_workspace_bytes(&op);
    if (workspace > 0)
        op.workspace = golden_scratch(run, "workspace", workspace);
    return golden_ready(run) ? keel_op_gemm_quantised(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n, k, flags, over k; of four groups the second is empty, and the last rows belong to none. */
static enum keel_status gemm_grouped(struct golden_run *run, const uint32_t *shape)
{
    enum { GROUPS = 4 };
    const uint32_t rows = shape[0], n = shape[1], k = shape[2], flags = shape[3];
    const bool over_k = shape[4] != 0, tb = (flags & TB) != 0;
    const int32_t cuts[GROUPS + 1] = {0, (int32_t)(rows / 3), (int32_t)(rows / 3), (int32_t)(rows / 2),
                                      (int32_t)(rows - rows / 7)};
    struct keel_gemm_grouped op = {.groups = GROUPS, .over_k = over_k};
    struct keel_gemm *one = &op.product;
    one->m = over_k ? k : rows;
    one->n = n;
    one->k = over_k ? rows : k;
    one->batch = 1;
    one->transpose_a = over_k;
    one->transpose_b = tb;
    one->accumulate = (flags & ACCUMULATE) != 0;
    one->lda = k;
    one->ldb = tb ? k : n;
    one->ldc = n;
    one->stride_b = (uint64_t)n * k;
    one->stride_c = (uint64_t)n * k;
    op.offsets = golden_bytes(run, "offsets", GOLDEN_INPUT, cuts, sizeof cuts);
    one->a = GOLDEN_FLOATS(run, "a", (uint64_t)rows * k);
    one->b = GOLDEN_FLOATS(run, "b", (uint64_t)n * (over_k ? rows : GROUPS * k));
    one->c = golden_floats(run, "c", GOLDEN_UPDATED, (uint64_t)n * (over_k ? GROUPS * k : rows), -1.0F, 1.0F);
    if (flags & BIAS)
        one->bias = GOLDEN_FLOATS(run, "bias", (uint64_t)GROUPS * n);
    return golden_ready(run) ? keel_op_gemm_grouped(run->kernels, &op, &run->list) : KEEL_OK;
}

/* m, n, k, batch, elements of C that are overwritten before C is checked */
static enum keel_status gemm_check(struct golden_run *run, const uint32_t *shape)
{
    const uint32_t begun[2] = {0, UINT32_MAX};
    struct keel_gemm op = {.m = shape[0], .n = shape[1], .k = shape[2], .batch = shape[3]};
    op.lda = op.k;
    op.ldb = op.ldc = op.n;
    op.stride_a = (uint64_t)op.m * op.k;
    op.stride_b = (uint64_t)op.k * op.n;
    op.stride_c = (uint64_t)op.m * op.n;
    op.a = GOLDEN_FLOATS(run, "a", op.batch * op.stride_a);
    op.b = GOLDEN_FLOATS(run, "b", op.batch * op.stride_b);
    op.c = golden_output(run, "c", op.batch * op.stride_c);
    op.checksums = golden_written(run, "checksums", GOLDEN_OUTPUT, keel_gemm_checksum_bytes(&op));
    const struct keel_gemm_check check = {
        .product = &op, .report = golden_bytes(run, "report", GOLDEN_UPDATED, begun, sizeof begun)};
    const struct keel_fill fill = {.count = shape[4], .value = 0.5F, .y = op.c};
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_gemm(run->kernels, &op, &run->list));
    KEEL_TRY(keel_op_fill(run->kernels, &fill, &run->list));
    return keel_op_gemm_check(run->kernels, &check, &run->list);
}

/* ---- rows: rows, n, flags ---- */

enum { BETA = 1, RESIDUAL = 2, RMS = 4, PLAIN = 8 /* without gamma */ };

/* The last of the shape, here and below: slices of the rows, 0 for none. */
static enum keel_status bias_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_bias_grad op = {
        .rows = shape[0], .n = shape[1], .row_slices = all_slices(shape[2], shape[0])};
    const uint32_t sums = shape[2] > 0 ? shape[2] : 1;
    op.x = GOLDEN_FLOATS(run, "x", (uint64_t)op.rows * op.n);
    op.out = golden_floats(run, "out", GOLDEN_UPDATED, (uint64_t)sums * op.n, -1.0F, 1.0F);
    return golden_ready(run) ? keel_op_bias_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status layernorm(struct golden_run *run, const uint32_t *shape)
{
    struct keel_layernorm op = {.rows = shape[0], .n = shape[1], .epsilon = 0x1.4f8b58p-17F};
    const uint64_t count = (uint64_t)op.rows * op.n;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -3.0F, 5.0F);
    if (!(shape[2] & PLAIN))
        op.gamma = GOLDEN_FLOATS(run, "gamma", op.n);
    if (shape[2] & BETA)
        op.beta = GOLDEN_FLOATS(run, "beta", op.n);
    op.y = golden_output(run, "y", count);
    if (!(shape[2] & RMS))
        op.mean = golden_output(run, "mean", op.rows);
    op.rstd = golden_output(run, "rstd", op.rows);
    return golden_ready(run) ? keel_op_layernorm(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status layernorm_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_layernorm_grad op = {
        .rows = shape[0], .n = shape[1], .row_slices = all_slices(shape[3], shape[0])};
    const uint64_t count = (uint64_t)op.rows * op.n, sums = (shape[3] > 0 ? shape[3] : 1) * (uint64_t)op.n;
    op.x = golden_floats(run, "x", GOLDEN_INPUT, count, -3.0F, 5.0F);
    if (!(shape[2] & PLAIN))
        op.gamma = GOLDEN_FLOATS(run, "gamma", op.n);
    if (!(shape[2] & RMS))
        op.mean = golden_floats(run, "mean", GOLDEN_INPUT, op.rows, 0.5F, 1.5F);
    op.rstd = golden_floats(run, "rstd", GOLDEN_INPUT, op.rows, 0.3F, 0.6F);
    op.dy = GOLDEN_FLOATS(run, "dy", count);
    if (shape[2] & RESIDUAL)
        op.residual = GOLDEN_FLOATS(run, "residual", count);
    op.dx = golden_output(run, "dx", count);
    if (!(shape[2] & PLAIN))
        op.dgamma = golden_floats(run, "dgamma", GOLDEN_UPDATED, sums, -1.0F, 1.0F);
    if (shape[2] & BETA)
        op.dbeta = golden_floats(run, "dbeta", GOLDEN_UPDATED, sums, -1.0F, 1.0F);
    return golden_ready(run) ? keel_op_layernorm_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- element by element: count, and what is said ---- */

/* Between which its inputs lie. */
static const float activation_range[KEEL_ACTIVATION_COUNT][2] = {
#define ACTIVATION_RANGE(kind, name, value, slope, of, truth, low, high, ...) [kind] = {low, high},
    KEEL_ACTIVATION_TABLE(ACTIVATION_RANGE)};

/* count, which function */
static enum keel_status activation(struct golden_run *run, const uint32_t *shape)
{
    struct keel_activation op = {.count = shape[0], .kind = (enum keel_activation_kind)shape[1]};
    const float *range = activation_range[op.kind];
    op.x = golden_floats(run, "x", GOLDEN_INPUT, op.count, range[0], range[1]);
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_activation(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status activation_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_activation_grad op = {.count = shape[0], .kind = (enum keel_activation_kind)shape[1]};
    const float *range = activation_range[op.kind];
    op.x = golden_floats(run, "x", GOLDEN_INPUT, op.count, range[0], range[1]);
    op.dy = GOLDEN_FLOATS(run, "dy", op.count);
    op.dx = golden_output(run, "dx", op.count);
    return golden_ready(run) ? keel_op_activation_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status swiglu(struct golden_run *run, const uint32_t *shape)
{
    struct keel_swiglu op = {.count = shape[0]};
    op.a = golden_floats(run, "a", GOLDEN_INPUT, op.count, -12.0F, 12.0F);
    op.b = GOLDEN_FLOATS(run, "b", op.count);
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_swiglu(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status swiglu_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_swiglu_grad op = {.count = shape[0]};
    op.a = golden_floats(run, "a", GOLDEN_INPUT, op.count, -12.0F, 12.0F);
    op.b = GOLDEN_FLOATS(run, "b", op.count);
    op.dy = GOLDEN_FLOATS(run, "dy", op.count);
    op.da = golden_output(run, "da", op.count);
    op.db = golden_output(run, "db", op.count);
    return golden_ready(run) ? keel_op_swiglu_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status add(struct golden_run *run, const uint32_t *shape)
{
    struct keel_add op = {.count = shape[0]};
    const float range = shape[1] ? 0x1p-127F : 1.0F; /* of denormals: kept, and not flushed */
    op.a = golden_floats(run, "a", GOLDEN_INPUT, op.count, -range, range);
    op.b = golden_floats(run, "b", GOLDEN_INPUT, op.count, -range, range);
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_add(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, n */
static enum keel_status bias(struct golden_run *run, const uint32_t *shape)
{
    struct keel_bias op = {.rows = shape[0], .n = shape[1]};
    op.x = GOLDEN_FLOATS(run, "x", op.rows * op.n);
    op.bias = GOLDEN_FLOATS(run, "bias", op.n);
    op.y = golden_output(run, "y", op.rows * op.n);
    return golden_ready(run) ? keel_op_bias(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status fill(struct golden_run *run, const uint32_t *shape)
{
    struct keel_fill op = {.count = shape[0], .value = 0x1.99999ap-4F};
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_fill(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status copy(struct golden_run *run, const uint32_t *shape)
{
    struct keel_copy op = {.count = shape[0]};
    op.x = golden_bits(run, "x", op.count * sizeof(float));
    op.y = golden_output(run, "y", op.count);
    return golden_ready(run) ? keel_op_copy(run->kernels, &op, &run->list) : KEEL_OK;
}

/* count, percent of the elements that are dropped, whether there is a base */
static enum keel_status dropout(struct golden_run *run, const uint32_t *shape)
{
    struct keel_dropout op = {.count = shape[0], .rate = (float)shape[1] * 0x1.47ae14p-7F, .stream = 3};
    op.x = GOLDEN_FLOATS(run, "x", op.count);
    if (shape[2])
        op.base = GOLDEN_FLOATS(run, "base", op.count);
    op.y = golden_output(run, "y", op.count);
    op.control = golden_control(run, 0.0F);
    return golden_ready(run) ? keel_op_dropout(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status normal(struct golden_run *run, const uint32_t *shape)
{
    struct keel_normal op = {.count = shape[0], .deviation = 0x1.47ae14p-6F, .stream = 11};
    op.y = golden_output(run, "y", op.count);
    op.control = golden_control(run, 0.0F);
    return golden_ready(run) ? keel_op_normal(run->kernels, &op, &run->list) : KEEL_OK;
}

/* count, from, to: of any bits, so that NaN, infinities and denormals are among them */
static enum keel_status cast(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cast op = {
        .count = shape[0], .from = (enum keel_dtype)shape[1], .to = (enum keel_dtype)shape[2]};
    op.x = golden_bits(run, "x", op.count * (op.from == KEEL_F32 ? 4 : 2));
    op.y = golden_written(run, "y", GOLDEN_OUTPUT, op.count * (op.to == KEEL_F32 ? 4 : 2));
    return golden_ready(run) ? keel_op_cast(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status digest(struct golden_run *run, const uint32_t *shape)
{
    static const uint64_t begun = UINT64_C(0x0123456789abcdef);
    struct keel_digest op = {
        .count = shape[0], .first_element = shape[1], .row = shape[2], .stride = shape[3]};
    op.x = golden_bits(run, "x", op.count * sizeof(float));
    op.digest = golden_bytes(run, "digest", GOLDEN_UPDATED, &begun, sizeof begun);
    op.scratch = golden_scratch(run, "scratch", keel_digest_scratch_bytes(op.count));
    return golden_ready(run) ? keel_op_digest(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- what a transformer needs ---- */

/* batch, tokens, width, rows of the table, with positions, the first row, and how many ids there are beyond
 */
static enum keel_status embedding(struct golden_run *run, const uint32_t *shape)
{
    struct keel_embedding op = {
        .batch = shape[0], .tokens = shape[1], .width = shape[2], .vocab = shape[3], .first = shape[5]};
    const uint64_t rows = (uint64_t)op.batch * op.tokens;
    op.ids = golden_ids(run, "ids", rows, op.first + op.vocab + shape[6]);
    op.table = GOLDEN_FLOATS(run, "table", (uint64_t)op.vocab * op.width);
    if (shape[4])
        op.positions = GOLDEN_FLOATS(run, "positions", (uint64_t)op.tokens * op.width);
    op.y = golden_output(run, "y", rows * op.width);
    return golden_ready(run) ? keel_op_embedding(run->kernels, &op, &run->list) : KEEL_OK;
}

static enum keel_status embedding_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_embedding_grad op = {
        .batch = shape[0], .tokens = shape[1], .width = shape[2], .vocab = shape[3], .first = shape[5]};
    const uint64_t rows = (uint64_t)op.batch * op.tokens;
    op.ids = golden_ids(run, "ids", rows, op.first + op.vocab + shape[6]);
    op.dy = GOLDEN_FLOATS(run, "dy", rows * op.width);
    op.dtable = golden_floats(run, "dtable", GOLDEN_UPDATED, (uint64_t)op.vocab * op.width, -1.0F, 1.0F);
    if (shape[4])
        op.dpositions =
            golden_floats(run, "dpositions", GOLDEN_UPDATED, (uint64_t)op.tokens * op.width, -1.0F, 1.0F);
    return golden_ready(run) ? keel_op_embedding_grad(run->kernels, &op, &run->list) : KEEL_OK;
}

static const float grown_scale = 0x1.8p+15F; /* 2^15, and half of the good steps to the next */

/* rows, vocabulary, with gradient, which is scaled; slices of the vocabulary; eighths of label smoothing */
static enum keel_status cross_entropy(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cross_entropy op = {.rows = shape[0], .vocab = shape[1], .scale = 0x1.1c71c8p-4F};
    op.vocab_slices = all_slices(shape[4], op.vocab);
    op.smoothing = (float)shape[5] / 8.0F;
    const uint64_t count = (uint64_t)op.rows * op.vocab;
    op.logits = golden_floats(run, "logits", GOLDEN_INPUT, count, -9.0F, 9.0F);
    op.targets = golden_ids(run, "targets", op.rows, op.vocab);
    op.row_loss = golden_scratch(run, "row_loss", op.rows * sizeof(float));
    op.loss = golden_floats(run, "loss", GOLDEN_UPDATED, 1, 0.0F, 1.0F);
    if (shape[2])
        op.dlogits = golden_output(run, "dlogits", count);
    if (shape[3])
        op.loss_scale = golden_bytes(run, "loss_scale", GOLDEN_INPUT, &grown_scale, sizeof grown_scale);
    return golden_ready(run) ? keel_op_cross_entropy(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, columns, the first of them, and how many there are behind */
static enum keel_status cross_entropy_max(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cross_entropy_max op = {.rows = shape[0],
                                        .columns = shape[1],
                                        .first_column = shape[2],
                                        .vocab = shape[1] + shape[2] + shape[3]};
    op.logits = golden_floats(run, "logits", GOLDEN_INPUT, (uint64_t)op.rows * op.columns, -9.0F, 9.0F);
    op.targets = golden_ids(run, "targets", op.rows, op.vocab);
    op.maxima = golden_output(run, "maxima", op.rows);
    op.target_bits = golden_output(run, "target_bits", op.rows);
    return golden_ready(run) ? keel_op_cross_entropy_max(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, columns, those before the node's and its own, its slices, whether exponentials are kept */
static enum keel_status cross_entropy_part(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cross_entropy_part op = {.rows = shape[0],
                                         .columns = shape[1],
                                         .at = shape[2],
                                         .count = shape[3],
                                         .vocab_slices = all_slices(shape[4], shape[3])};
    const uint64_t count = (uint64_t)op.rows * op.columns;
    op.logits = golden_floats(run, "logits", GOLDEN_INPUT, count, -9.0F, 9.0F);
    op.maxima = golden_floats(run, "maxima", GOLDEN_INPUT, op.rows, 8.0F, 9.0F);
    op.sums = golden_output(run, "sums", op.rows);
    if (shape[5])
        op.exponentials = golden_floats(run, "exponentials", GOLDEN_UPDATED, count, 0.0F, 1.0F);
    return golden_ready(run) ? keel_op_cross_entropy_part(run->kernels, &op, &run->list) : KEEL_OK;
}

/* rows, columns, the first of them, how many there are behind; with gradient, which is scaled */
static enum keel_status cross_entropy_end(struct golden_run *run, const uint32_t *shape)
{
    struct keel_cross_entropy_end op = {.rows = shape[0],
                                        .columns = shape[1],
                                        .first_column = shape[2],
                                        .vocab = shape[1] + shape[2] + shape[3],
                                        .scale = 0x1.1c71c8p-4F};
    op.maxima = golden_floats(run, "maxima", GOLDEN_INPUT, op.rows, 8.0F, 9.0F);
    op.sums = golden_floats(run, "sums", GOLDEN_INPUT, op.rows, 1.0F, 40.0F);
    op.target_bits = golden_floats(run, "target_bits", GOLDEN_INPUT, op.rows, -9.0F, 9.0F);
    op.targets = golden_ids(run, "targets", op.rows, op.vocab);
    op.row_loss = golden_scratch(run, "row_loss", op.rows * sizeof(float));
    op.loss = golden_floats(run, "loss", GOLDEN_UPDATED, 1, 0.0F, 1.0F);
    if (shape[4])
        op.dlogits =
            golden_floats(run, "dlogits", GOLDEN_UPDATED, (uint64_t)op.rows * op.columns, 0.0F, 1.0F);
    if (shape[5])
        op.loss_scale = golden_bytes(run, "loss_scale", GOLDEN_INPUT, &grown_scale, sizeof grown_scale);
    return golden_ready(run) ? keel_op_cross_entropy_end(run->kernels, &op, &run->list) : KEEL_OK;
}

/* count, which loss, whether there is a gradient, whether it is scaled */
static enum keel_status loss(struct golden_run *run, const uint32_t *shape)
{
    struct keel_loss op = {.count = shape[0], .kind = (enum keel_loss_kind)shape[1], .scale = 0x1.1c71c8p-4F};
    op.x = golden_floats(run, "x", GOLDEN_INPUT, op.count, -9.0F, 9.0F);
    op.targets = golden_floats(run, "targets", GOLDEN_INPUT, op.count, 0.0F, 1.0F);
    op.scratch = golden_scratch(run, "scratch", keel_loss_scratch_bytes(op.count));
    op.loss = golden_floats(run, "loss", GOLDEN_UPDATED, 1, 0.0F, 1.0F);
    if (shape[2])
        op.dx = golden_output(run, "dx", op.count);
    if (shape[3])
        op.loss_scale = golden_bytes(run, "loss_scale", GOLDEN_INPUT, &grown_scale, sizeof grown_scale);
    return golden_ready(run) ? keel_op_loss(run->kernels, &op, &run->list) : KEEL_OK;
}

/* ---- the table ---- */

/* 70001 rows: some drivers end a kernel, without a word, after 65535 turns of its loops (Mesa's llvmpipe). */

/* Of each row of keel/activation_table.h, which has the hashes: three counts of the value, three of the
 * slope. */
#define COUNT_CASE(op, kind, name, count, hash)                                                              \
    {                                                                                                        \
        name #count, #op, KEEL_MODULE_elementwise, op, {count, kind}, UINT64_C(hash)                         \
    }
#define COUNT_CASES(op, kind, name, one, some, many)                                                         \
    COUNT_CASE(op, kind, name, 1, one), COUNT_CASE(op, kind, name, 67, some),                                \
        COUNT_CASE(op, kind, name, 4115, many)
#define ACTIVATION_CASES(kind, name, value, slope, of, truth, low, high, corners, limits, values, slopes)    \
    GOLDEN_CALL(COUNT_CASES, activation, kind, GOLDEN_UNPACK values),                                        \
        GOLDEN_CALL(COUNT_CASES, activation_grad, kind, GOLDEN_UNPACK slopes),

static const struct golden_case cases[] = {
    GOLDEN_CASE(gemm, gemm, "1x1x1-nn", 0xcbd45a9662aaa5b4, 1, 1, 1, 1, 0, 0),
    GOLDEN_CASE(gemm, gemm, "13x48x300-nn", 0x741f896de632e36a, 13, 48, 300, 1, 0, 0),
    GOLDEN_CASE(gemm, gemm, "67x97x41-tn-accumulate", 0xc09d9920eddcb48e, 67, 97, 41, 1, TA | ACCUMULATE, 0),
    GOLDEN_CASE(gemm, gemm, "33x101x37-nt-bias-gelu", 0x7205a51951a92243, 33, 101, 37, 1, TB | BIAS | GELU,
                0),
    GOLDEN_CASE(gemm, gemm, "9x50x70-tt-bias-padded", 0xfe0262e97fa12857, 9, 50, 70, 1, TA | TB | BIAS, 3),
    GOLDEN_CASE(gemm, gemm, "1x1x1-nn-residual", 0xf4b22b9f59e10911, 1, 1, 1, 1, ADDED, 0),
    GOLDEN_CASE(gemm, gemm, "17x50x70-nt-bias-residual", 0x63ff5ddf4a2aa597, 17, 50, 70, 1, TB | BIAS | ADDED,
                3),
    GOLDEN_CASE(gemm, gemm, "9x97x19-nn-residual", 0xe16daca3fc89f2bb, 9, 97, 19, 1, ADDED, 0),
    GOLDEN_CASE(gemm, gemm, "17x50x300-nn-chain", 0x556ecf30bca02202, 17, 50, 300, 1, CHAIN, 2),
    GOLDEN_CASE(gemm, gemm, "11x50x19-nn-bf16-residual", 0x8f51581f7e8cd7d4, 11, 50, 19, 1, ADDED, 0, 1 << 4),
    GOLDEN_CASE(gemm, gemm, "33x101x37-nn-bf16", 0xa90acbcc29745139, 33, 101, 37, 1, ACCUMULATE | BIAS, 1,
                1 | 1 << 2 | 1 << 4),
    GOLDEN_CASE(gemm, gemm, "19x53x70-nt-f16", 0x7eef507793db1b3c, 19, 53, 70, 1, TB | GELU, 3,
                2 | 2 << 2 | 2 << 4),
    GOLDEN_CASE(gemm, gemm, "17x96x129-tn-mixed", 0xc4226d52ad3d6a40, 17, 96, 129, 1, TA, 0, 2 | 1 << 2),
    GOLDEN_CASE(gemm, gemm, "19x97x301-nn-1-slice", 0x62f4f78d5f0113de, 19, 97, 301, 1, BIAS, 0, 0, 1),
    GOLDEN_CASE(gemm, gemm, "19x97x301-nn-2-slices", 0x4b7a56a2311fd914, 19, 97, 301, 1, BIAS, 0, 0, 2),
    GOLDEN_CASE(gemm, gemm, "33x50x37-nt-3-slices", 0x94290f789f7ff1ff, 33, 50, 37, 1, TB | BIAS | GELU, 1, 0,
                3),
    GOLDEN_CASE(gemm, gemm, "2*9x49x66-tn-4-slices", 0x78b50baca510b6c9, 9, 49, 66, 2, TA | ACCUMULATE, 0, 0,
                4),
    GOLDEN_CASE(gemm, gemm, "17x96x131-nn-bf16-7-slices", 0x0217bbb63ac478a1, 17, 96, 131, 1, BIAS, 0,
                1 | 1 << 2 | 1 << 4, 7),
    GOLDEN_CASE(gemm, gemm, "65x50x301-nt-8-slices", 0x0cd47d456fd6cb41, 65, 50, 301, 1, TB | BIAS | ADDED, 0,
                0, 8),
    GOLDEN_CASE(gemm, gemm, "5x48x70-nn-64-slices", 0x9b057e197720c189, 5, 48, 70, 1, 0, 0, 0, 64),
    GOLDEN_CASE(gemm_grouped, gemm, "53x49x37-bias", 0x9c0ef7019f7a24bd, 53, 49, 37, BIAS, 0),
    GOLDEN_CASE(gemm_grouped, gemm, "31x50x17-nt", 0x4296f092c05b8663, 31, 50, 17, TB, 0),
    GOLDEN_CASE(gemm_grouped, gemm, "29x13x19-over-k", 0xb763a11d841f2f26, 29, 13, 19, ACCUMULATE, 1),
    GOLDEN_CASE(gemm_grouped, gemm, "7x97x5-over-k", 0xe0451387ced75ccd, 7, 97, 5, 0, 1),
    GOLDEN_CASE(gemm, gemm, "3*5x49x18-nt-padded", 0xdba11c0879b6fcb5, 5, 49, 18, 3, TB, 1),
    GOLDEN_CASE(gemm_quantised, quantised, "1x1x1-4", 0xa633808a05db98c2, 1, 1, 1, 4, 0),
    GOLDEN_CASE(gemm_quantised, quantised, "1x115x77-4-by-32-bias", 0x96acad9478154fe9, 1, 115, 77, 4, 32, 1),
    GOLDEN_CASE(gemm_quantised, quantised, "2x37x70-8-bias", 0x1e9fd08eff326073, 2, 37, 70, 8, 0, 1),
    GOLDEN_CASE(gemm_quantised, quantised, "3x17x9-8-by-4", 0xfeefa2d4352d4e00, 3, 17, 9, 8, 4),
    GOLDEN_CASE(gemm_quantised, quantised, "7x16x130-4-by-64", 0x9a0ab3d234a18abe, 7, 16, 130, 4, 64),
    GOLDEN_CASE(gemm_quantised, quantised, "19x35x67-4-bias", 0x48c85878907adf99, 19, 35, 67, 4, 0, 1),
    GOLDEN_CASE(bias_grad, layernorm, "1x1", 0x9398197ea3c42480, 1, 1),
    GOLDEN_CASE(bias_grad, layernorm, "70001x1", 0x506405b1d2bb47c8, 70001, 1),
    GOLDEN_CASE(bias_grad, layernorm, "7x67", 0x181556db386f1de8, 7, 67),
    GOLDEN_CASE(bias_grad, layernorm, "33x130", 0x6c8b31d35edc76aa, 33, 130),
    GOLDEN_CASE(bias_grad, layernorm, "33x130-8-slices", 0xcda99eb12a851d4a, 33, 130, 8),
    GOLDEN_CASE(bias_grad, layernorm, "7x67-3-slices", 0x41e51e5efdca2513, 7, 67, 3),
    GOLDEN_CASE(gemm_check, gemm, "1x1x1", 0x9fe3b154e7fe9502, 1, 1, 1, 1, 1),
    GOLDEN_CASE(gemm_check, gemm, "19x97x5", 0x803f9c7aeed93cb8, 19, 97, 5, 1, 97),
    GOLDEN_CASE(gemm_check, gemm, "2*9x48x3", 0x6badb29bc5627d97, 9, 48, 3, 2, 0),
    GOLDEN_CASE(layernorm, layernorm, "1x3", 0x239b79095b42bab0, 1, 3, BETA),
    GOLDEN_CASE(layernorm, layernorm, "5x67-beta", 0x4c667e1c8a960edf, 5, 67, BETA),
    GOLDEN_CASE(layernorm, layernorm, "3x128", 0xc94bb84893245513, 3, 128, 0),
    GOLDEN_CASE(layernorm_grad, layernorm, "1x3-beta", 0xac1590cd523b96f6, 1, 3, BETA),
    GOLDEN_CASE(layernorm_grad, layernorm, "5x67-beta-residual", 0xecff277985741973, 5, 67, BETA | RESIDUAL),
    GOLDEN_CASE(layernorm_grad, layernorm, "3x130", 0x6ae7e3b41158dfdc, 3, 130, 0),
    GOLDEN_CASE(layernorm, layernorm, "rms-1x1", 0x2f9e6ffbe074cfd6, 1, 1, RMS),
    GOLDEN_CASE(layernorm, layernorm, "rms-5x67", 0x67f249a50c913c97, 5, 67, RMS),
    GOLDEN_CASE(layernorm, layernorm, "rms-3x130", 0xac52d7737ffa370f, 3, 130, RMS),
    GOLDEN_CASE(layernorm_grad, layernorm, "13x67-beta-4-slices", 0x7b2b35036ac98e57, 13, 67, BETA, 4),
    GOLDEN_CASE(layernorm_grad, layernorm, "rms-11x130-3-slices", 0x49c8ec4341e74d13, 11, 130, RMS, 3),
    GOLDEN_CASE(layernorm_grad, layernorm, "rms-1x1", 0x72a2f7c96fbeb278, 1, 1, RMS),
    GOLDEN_CASE(layernorm_grad, layernorm, "rms-5x67", 0x748276b79f807420, 5, 67, RMS | RESIDUAL),
    GOLDEN_CASE(layernorm_grad, layernorm, "rms-3x130", 0x84bdca52b7de93a8, 3, 130, RMS),
    GOLDEN_CASE(layernorm, layernorm, "plain-1x3", 0xa5a140daef82627d, 1, 3, PLAIN),
    GOLDEN_CASE(layernorm, layernorm, "plain-5x67", 0x7c24c236835a5cab, 5, 67, PLAIN),
    GOLDEN_CASE(layernorm, layernorm, "plain-3x2050", 0x45fd4c9f7374922a, 3, 2050, PLAIN),
    GOLDEN_CASE(layernorm_grad, layernorm, "plain-1x3", 0x978e5ab304069173, 1, 3, PLAIN),
    GOLDEN_CASE(layernorm_grad, layernorm, "plain-5x67-residual", 0xcb15a1d7d41c67dd, 5, 67,
                PLAIN | RESIDUAL),
    GOLDEN_CASE(layernorm_grad, layernorm, "plain-3x2050", 0x3cdbcdbf30494fe6, 3, 2050, PLAIN),
    KEEL_ACTIVATION_TABLE(ACTIVATION_CASES) GOLDEN_CASE(swiglu, elementwise, "1", 0x25bf927b4f9a1774, 1),
    GOLDEN_CASE(swiglu, elementwise, "67", 0x937a6fe909f9c27f, 67),
    GOLDEN_CASE(swiglu, elementwise, "4115", 0xb32a4bbc8987f7d5, 4115),
    GOLDEN_CASE(swiglu_grad, elementwise, "1", 0x34909ed80914872d, 1),
    GOLDEN_CASE(swiglu_grad, elementwise, "67", 0xacc7bf0f34e2f1c4, 67),
    GOLDEN_CASE(swiglu_grad, elementwise, "4115", 0x33340435fb87b50b, 4115),
    GOLDEN_CASE(add, elementwise, "1", 0xecbc934cac6730af, 1),
    GOLDEN_CASE(add, elementwise, "67-denormals", 0x5f789efcd5af55c1, 67, 1),
    GOLDEN_CASE(add, elementwise, "67", 0x0dae1483fca0fa86, 67),
    GOLDEN_CASE(add, elementwise, "4115", 0x14d242a3b2f03be0, 4115),
    GOLDEN_CASE(bias, elementwise, "1x1", 0xdfcb02d390ecba7c, 1, 1),
    GOLDEN_CASE(bias, elementwise, "70x67", 0x41390c31f819928d, 70, 67),
    GOLDEN_CASE(bias, elementwise, "7x4096", 0xefdee63f537dcb9a, 7, 4096),
    GOLDEN_CASE(fill, elementwise, "1", 0x848a69dce2401057, 1),
    GOLDEN_CASE(fill, elementwise, "67", 0x9f52fb1a84b8ef2b, 67),
    GOLDEN_CASE(fill, elementwise, "4115", 0xa32013802aa47a4b, 4115),
    GOLDEN_CASE(copy, elementwise, "1", 0x1889596b70a0ef86, 1),
    GOLDEN_CASE(copy, elementwise, "67", 0x6db023dc30a630ab, 67),
    GOLDEN_CASE(copy, elementwise, "4115", 0xbfeee2824f11af89, 4115),
    GOLDEN_CASE(dropout, dropout, "1", 0x4d25767f9dce13f5, 1, 50, 0),
    GOLDEN_CASE(dropout, dropout, "67-base", 0xcf3a57d754296cec, 67, 30, 1),
    GOLDEN_CASE(dropout, dropout, "4173", 0x9b1172d69b033a28, 4173, 10, 0),
    GOLDEN_CASE(normal, normal, "1", 0x1228b875457c2035, 1),
    GOLDEN_CASE(normal, normal, "67", 0x1a7fd50bd20a400f, 67),
    GOLDEN_CASE(normal, normal, "4173", 0x1c65ab9106295dd6, 4173),
    GOLDEN_CASE(cast, cast, "1-f32-bf16", 0x08cb5d07b56d33a7, 1, KEEL_F32, KEEL_BF16),
    GOLDEN_CASE(cast, cast, "67-f32-bf16", 0x77cc428f6614cd63, 67, KEEL_F32, KEEL_BF16),
    GOLDEN_CASE(cast, cast, "4115-f32-bf16", 0x2a8b526b79a9f925, 4115, KEEL_F32, KEEL_BF16),
    GOLDEN_CASE(cast, cast, "1-f32-f16", 0x0831cc07b4ea3079, 1, KEEL_F32, KEEL_F16),
    GOLDEN_CASE(cast, cast, "67-f32-f16", 0xb001d447ca93a076, 67, KEEL_F32, KEEL_F16),
    GOLDEN_CASE(cast, cast, "4115-f32-f16", 0xff169f8b3f8632ca, 4115, KEEL_F32, KEEL_F16),
    GOLDEN_CASE(cast, cast, "1-bf16-f32", 0x4c22e07f9cf21f3f, 1, KEEL_BF16, KEEL_F32),
    GOLDEN_CASE(cast, cast, "67-bf16-f32", 0xfff9d1a51b7fe198, 67, KEEL_BF16, KEEL_F32),
    GOLDEN_CASE(cast, cast, "4115-bf16-f32", 0x8b901454f630cb99, 4115, KEEL_BF16, KEEL_F32),
    GOLDEN_CASE(cast, cast, "1-f16-f32", 0x4b030e7f9bfe7a06, 1, KEEL_F16, KEEL_F32),
    GOLDEN_CASE(cast, cast, "67-f16-f32", 0xf4b121a08acf1bcb, 67, KEEL_F16, KEEL_F32),
    GOLDEN_CASE(cast, cast, "4115-f16-f32", 0x32cc2aac703f93d1, 4115, KEEL_F16, KEEL_F32),
    GOLDEN_CASE(digest, digest, "1", 0x18c67258bfaf2732, 1, 0),
    GOLDEN_CASE(digest, digest, "67-from-1001", 0x6f4505c23a09ddbb, 67, 1001),
    GOLDEN_CASE(digest, digest, "8205", 0xc8ec4c08175bfb85, 8205, 0),
    GOLDEN_CASE(digest, digest, "9003-in-rows", 0x6c125b2a227a4ed1, 9003, 5, 67, 300),
    GOLDEN_CASE(embedding, embedding, "1x1x1", 0x68275689b9909bdb, 1, 1, 1, 1, 1),
    GOLDEN_CASE(embedding, embedding, "2x5x67", 0xbc29297d6400c735, 2, 5, 67, 11, 1),
    GOLDEN_CASE(embedding, embedding, "3x7x130", 0x5554395c470ad498, 3, 7, 130, 5, 0),
    GOLDEN_CASE(embedding, embedding, "3x7x130-of-11-to-29", 0x5fc61ad6e7f00b89, 3, 7, 130, 18, 0, 11, 20),
    GOLDEN_CASE(embedding_grad, embedding, "1x1x1", 0x241c2ad1356ec0af, 1, 1, 1, 1, 1),
    GOLDEN_CASE(embedding_grad, embedding, "2x5x67", 0xac78c0dd5c1fab11, 2, 5, 67, 11, 1),
    GOLDEN_CASE(embedding_grad, embedding, "3x7x130", 0xfa364c86b8d41002, 3, 7, 130, 5, 0),
    GOLDEN_CASE(embedding_grad, embedding, "3x7x130-of-11-to-29", 0x7a590f51391aeb17, 3, 7, 130, 18, 0, 11,
                20),
    GOLDEN_CASE(cross_entropy, cross_entropy, "1x3", 0x22ffca6ef9236a56, 1, 3, 1),
    GOLDEN_CASE(cross_entropy, cross_entropy, "5x67", 0x0638273363b7824b, 5, 67, 1),
    GOLDEN_CASE(cross_entropy, cross_entropy, "3x130-loss-alone", 0xf942a550fe5790f4, 3, 130, 0),
    GOLDEN_CASE(cross_entropy, cross_entropy, "5x67-scaled", 0x64cc5fe0ffd014bd, 5, 67, 1, 1),
    GOLDEN_CASE(cross_entropy, cross_entropy, "5x131-2-slices", 0x5168662c04c3f495, 5, 131, 1, 0, 2),
    GOLDEN_CASE(cross_entropy, cross_entropy, "7x1009-7-slices", 0x878b912b025994df, 7, 1009, 1, 1, 7),
    GOLDEN_CASE(cross_entropy, cross_entropy, "3x67-64-slices-loss", 0xa44bd17ead0d4003, 3, 67, 0, 0, 64),
    GOLDEN_CASE(cross_entropy, cross_entropy, "5x67-smoothed", 0xd78bcbb7f5e908c1, 5, 67, 1, 0, 0, 1),
    GOLDEN_CASE(cross_entropy, cross_entropy, "31x1009-smoothed", 0xdabdfb02d3ede51a, 31, 1009, 1, 1, 0, 3),
    GOLDEN_CASE(cross_entropy_max, cross_entropy, "1x1", 0xdee0859b3e6b4709, 1, 1, 0, 0),
    GOLDEN_CASE(cross_entropy_max, cross_entropy, "7x67-of-200", 0x70e8ee068fcf4253, 7, 67, 90, 43),
    GOLDEN_CASE(cross_entropy_max, cross_entropy, "31x130-first", 0x685d203e4b3898ee, 31, 130, 0, 5),
    GOLDEN_CASE(cross_entropy_part, cross_entropy, "1x1-1-slice", 0xb9861528237c85c9, 1, 1, 0, 1, 1, 1),
    GOLDEN_CASE(cross_entropy_part, cross_entropy, "7x130-3-slices-of-67", 0x24030ac722bac803, 7, 130, 50, 67,
                3, 1),
    GOLDEN_CASE(cross_entropy_part, cross_entropy, "5x131-8-slices", 0x2c910590fe6d093c, 5, 131, 0, 131, 8,
                0),
    GOLDEN_CASE(cross_entropy_end, cross_entropy, "1x1", 0x88c4684429b476d5, 1, 1, 0, 0, 1),
    GOLDEN_CASE(cross_entropy_end, cross_entropy, "7x67-of-200", 0x3ccf8ba313ccc69e, 7, 67, 90, 43, 1, 1),
    GOLDEN_CASE(cross_entropy_end, cross_entropy, "5x130-loss", 0xe1fb842d3f557c88, 5, 130, 3, 0, 0, 0),
    GOLDEN_CASE(loss, loss, "bce-67-scaled", 0x052abe1b26e8bba8, 67, KEEL_LOSS_BCE, 1, 1),
    GOLDEN_CASE(loss, loss, "mse-67-scaled", 0xa25eb94e9d3901ba, 67, KEEL_LOSS_MSE, 1, 1),
    GOLDEN_CASE(loss, loss, "bce-1", 0x6f77e01fdea31eaa, 1, KEEL_LOSS_BCE, 1),
    GOLDEN_CASE(loss, loss, "bce-67", 0xa4cc9d3079446905, 67, KEEL_LOSS_BCE, 0),
    GOLDEN_CASE(loss, loss, "bce-4115", 0x6e704e0205740b4c, 4115, KEEL_LOSS_BCE, 1),
    GOLDEN_CASE(loss, loss, "mse-1", 0xd4b3d1814bf370e2, 1, KEEL_LOSS_MSE, 1),
    GOLDEN_CASE(loss, loss, "mse-67", 0x9129a0781c91b154, 67, KEEL_LOSS_MSE, 0),
    GOLDEN_CASE(loss, loss, "mse-4115", 0x5ae7f2a520f7f56b, 4115, KEEL_LOSS_MSE, 1),
    GOLDEN_CASE(loss, loss, "product-67", 0x063507367f8142c0, 67, KEEL_LOSS_PRODUCT, 1),
};
const struct golden_family golden_core = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};

/* Of the classes whose products have planes: the hash in two digits, in three, and in bf16. */
#define EXACT_ROWS(X)                                                                                        \
    X("1x1x1-nn", 0xfd098559844d4b3c, 0x6c16b65262477989, 0x5308ae7dee2e7eea, 1, 1, 1, 1, 0, 0)              \
    X("13x48x300-nn", 0x8fa65fcbc6cf11b7, 0x7fba13fedb7f27bd, 0xf789f8f611023967, 13, 48, 300, 1, 0, 0)      \
    X("67x97x41-tn-accumulate", 0x6c10c479877bdc90, 0x61c147c729fb2102, 0x160238e3fc8729f8, 67, 97, 41, 1,   \
      TA | ACCUMULATE, 0)                                                                                    \
    X("33x101x37-nt-bias-gelu", 0x59788e1c39d53129, 0x94d756bac3f7be0c, 0xb6b4c470bee5905f, 33, 101, 37, 1,  \
      TB | BIAS | GELU, 0)                                                                                   \
    X("9x50x70-tt-bias-padded", 0x785163cd1298aef7, 0x3aca96e197176760, 0x3ba01d47ec1a8a74, 9, 50, 70, 1,    \
      TA | TB | BIAS, 3)                                                                                     \
    X("17x50x2300-nn-chain", 0x333b95d29e192113, 0xf9c6cb152c9c7c51, 0xb75d4f3e8aaec36a, 17, 50, 2300, 1,    \
      CHAIN, 2)                                                                                              \
    X("130x140x1025-nt-residual", 0xdb740655c85bc01b, 0x79d9045dba9ce7d0, 0x19b64b43e9fcb369, 130, 140,      \
      1025, 1, TB | ADDED, 0)                                                                                \
    X("33x101x37-nn-bf16", 0x7cede01d1ff9384d, 0xd2cdd1745047bbed, 0xaea372ef12e2df78, 33, 101, 37, 1,       \
      ACCUMULATE | BIAS, 1, 1 | 1 << 2 | 1 << 4)                                                             \
    X("17x96x129-tn-mixed", 0x67af29ad77b144f4, 0xa90ec808a1b19236, 0x2851328bf9c34231, 17, 96, 129, 1, TA,  \
      0, 2 | 1 << 2)                                                                                         \
    X("19x97x301-nn-2-slices", 0x9196ab63028db930, 0xd796f174920e38dd, 0x25d8b8941f1433a6, 19, 97, 301, 1,   \
      BIAS, 0, 0, 2)                                                                                         \
    X("2*9x49x66-tn-4-slices", 0x75553caa75a2c160, 0x2225ed29e87b7970, 0xdcf50b9e3632fc1f, 9, 49, 66, 2,     \
      TA | ACCUMULATE, 0, 0, 4)                                                                              \
    X("7x40x4300-nn-3-slices", 0x7eb3d8b9cf5ea7fc, 0x9f083ce0e5771092, 0x89335c8abbc2f3b1, 7, 40, 4300, 1,   \
      0, 0, 0, 3)                                                                                            \
    X("5x48x70-nn-64-slices", 0xe48b220999f7f237, 0xa107248a03e36633, 0xed31cd23f045d7d7, 5, 48, 70, 1, 0,   \
      0, 0, 64)
#define EXACT8X2_ROW(name, two, three, pairs, ...)                                                           \
    GOLDEN_CASE_OF(gemm_exact, "exact8x2", planes, name, two, __VA_ARGS__),
#define EXACT8X3_ROW(name, two, three, pairs, ...)                                                           \
    GOLDEN_CASE_OF(gemm_exact, "exact8x3", planes, name, three, __VA_ARGS__),
#define BF16_ROW(name, two, three, pairs, ...)                                                               \
    GOLDEN_CASE_OF(gemm_exact, "bf16", planes, name, pairs, __VA_ARGS__),
static const struct golden_case exact8x2_cases[] = {EXACT_ROWS(EXACT8X2_ROW)};
static const struct golden_case exact8x3_cases[] = {EXACT_ROWS(EXACT8X3_ROW)};
static const struct golden_case bf16_cases[] = {EXACT_ROWS(BF16_ROW)};
const struct golden_family golden_exact8x2 = {
    exact8x2_cases, sizeof exact8x2_cases / sizeof exact8x2_cases[0], KEEL_EXACT8X2};
const struct golden_family golden_exact8x3 = {
    exact8x3_cases, sizeof exact8x3_cases / sizeof exact8x3_cases[0], KEEL_EXACT8X3};
const struct golden_family golden_bf16 = {bf16_cases, sizeof bf16_cases / sizeof bf16_cases[0],
                                          KEEL_CLASS_BF16};
