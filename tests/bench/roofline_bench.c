/* roofline_bench.c - how near to the roofline of the device each operation runs, in real shapes.
 *
 * The roof of an operation is the least time that its bytes or its arithmetic allow, whichever is longer:
 * bytes that it must read and write, over what a plain kernel moves that has the same streams and as large
 * a footprint (bandwidth.h); or arithmetic, over the FMA peak (fma_peak.h). Arithmetic is counted in lane
 * operations, one for each vector instruction of the canonical text and lane (OPS below), of which the peak
 * is one FMA; so integer work and comparisons count as what they are. Both yardsticks run in turn with the
 * operation, on the same device; all figures are medians of ROUNDS, ratios are medians of the rounds'
 * ratios. One JSON object a line: the rate in the unit of what limits, the peer is the limit, the goal 0.80
 * of it; then the shares of both roofs, the larger of which is the ratio; `once`, the share of the memory's
 * roof when each operand is counted once, which is less where an operation reads one twice; and `busy`, the
 * processor time over threads times time, which is small where threads wait for others or to be woken.
 * Integers have buffers of their own: as floats they would be denormals. Shapes of GPT-2 124M: 4 x 64 tokens,
 * which caches hold, and 4 x 1024, most of which they do not.
 *
 * roofline_bench [DEVICE [THREADS [ONLY]]]: with one thread times are the processor's, not the clock's, so
 * that other programs on the machine count less. ONLY: rows whose name has this in it. To add an operation: a
 * function that appends its launches and says its work, and rows in the table. */
#include "bandwidth.h"
#include "fma_peak.h"

#include <keel/kernels.h>
#include <keel/memory.h>
#include <keel/optimizer_ops.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 7, INTEGERS = 4 << 20 };
static const double goal = 0.8;                        /* of the roof */
static const uint64_t SPAN_BYTES = UINT64_C(96) << 20; /* moved by one measurement at least, by repeating */
static const double SPAN_OPS = 1e9;                    /* or so many lane operations */
static const uint64_t POOL_FLOATS = UINT64_C(1024) * 50257; /* the largest tensor below */

/* Lane operations for each element of the canonical functions, by their text. */
enum {
    OPS_RECIPROCAL = 7,
    OPS_EXP = 19,
    OPS_EXP_BELOW = 17,
    OPS_EXP_DOWN = 14,
    OPS_SIGMOID = OPS_EXP_DOWN + OPS_RECIPROCAL + 3,
    OPS_TANH = 44,
    OPS_LOG = 27,
    OPS_ADAM_STEP = 40, /* m / (sqrt(v) + epsilon), where nothing is near an end of the exponents */
    OPS_PHILOX = 40     /* a quarter of ten rounds */
};

struct work {
    enum stream stream; /* the yardstick */
    double bytes, ops;
    double once_bytes; /* when each operand is counted once; 0: the same */
};
struct row {
    const char *name;
    enum keel_status (*build)(const struct row *row, struct keel_launch_list *list, struct work *work);
    uint64_t rows, n, k;
};

static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct keel_buffer *pool[5];     /* POOL_FLOATS each, of which those named x, y ... below */
static struct keel_buffer *integers[4]; /* INTEGERS each: indices, taps, pages, digests, workspaces */
static struct keel_buffer *ids, *choices, *small[4], *control;
static struct stream_bench streams;
static struct fma_bench fma_rate;
static bool processor_time;
static uint32_t threads;

/* `bytes` and `ops` of an element. */
static struct work moves(enum stream stream, const struct row *row, double bytes, double ops)
{
    const double count = (double)row->rows * (double)row->n;
    return (struct work){.stream = stream, .bytes = bytes * count, .ops = ops * count};
}

/* ---- operations: launches, bytes and lane operations of an element ------------------------------------ */

static enum keel_status build_add(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_TRIAD, row, 12, 1);
    return keel_op_add(
        kernels, &(struct keel_add){.count = row->rows * row->n, .a = pool[1], .b = pool[2], .y = pool[0]},
        list);
}

static enum keel_status build_gelu(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, OPS_SIGMOID + 4);
    return keel_op_activation(
        kernels,
        &(struct keel_activation){.count = row->rows * row->n, .kind = KEEL_GELU, .x = pool[1], .y = pool[0]},
        list);
}

static enum keel_status build_gelu_grad(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    *work = moves(STREAM_AXPY, row, 12, OPS_EXP_DOWN + OPS_RECIPROCAL + 14);
    return keel_op_activation_grad(
        kernels,
        &(struct keel_activation_grad){
            .count = row->rows * row->n, .kind = KEEL_GELU, .x = pool[1], .dy = pool[0], .dx = pool[0]},
        list);
}

static enum keel_status activation(const struct row *row, enum keel_activation_kind kind,
                                   struct keel_launch_list *list)
{
    struct keel_activation op = {.count = row->rows * row->n, .kind = kind, .x = pool[1], .y = pool[0]};
    return keel_op_activation(kernels, &op, list);
}
static enum keel_status build_relu(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, 2);
    return activation(row, KEEL_RELU, list);
}
static enum keel_status build_tanh(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, OPS_TANH);
    return activation(row, KEEL_TANH, list);
}
static enum keel_status build_silu(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, OPS_SIGMOID + 1);
    return activation(row, KEEL_SILU, list);
}
static enum keel_status build_relu_grad(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    struct keel_activation_grad op = {.count = row->rows * row->n, .kind = KEEL_RELU};
    op.x = pool[1], op.dy = pool[0], op.dx = pool[0];
    *work = moves(STREAM_AXPY, row, 12, 2);
    return keel_op_activation_grad(kernels, &op, list);
}
static enum keel_status build_swiglu(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    struct keel_swiglu op = {.count = row->rows * row->n, .a = pool[1], .b = pool[2], .y = pool[0]};
    *work = moves(STREAM_TRIAD, row, 12, OPS_SIGMOID + 2);
    return keel_op_swiglu(kernels, &op, list);
}

static enum keel_status build_dropout(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    struct keel_dropout op = {.count = row->rows * row->n, .rate = 0.1f, .control = control};
    op.x = pool[1], op.base = pool[2], op.y = pool[0];
    *work = moves(STREAM_TRIAD, row, 12, OPS_PHILOX + 9);
    return keel_op_dropout(kernels, &op, list);
}

static enum keel_status build_layernorm(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    struct keel_layernorm op = {.rows = (uint32_t)row->rows, .n = (uint32_t)row->n, .epsilon = 1e-5f};
    op.x = pool[1], op.y = pool[0], op.gamma = small[0], op.beta = small[1];
    op.mean = small[2], op.rstd = small[3];
    *work = moves(STREAM_COPY, row, 8, 6);
    return keel_op_layernorm(kernels, &op, list);
}

/* x and dy count twice: read by rows, and by columns, whose sums may not be split. The second time a cache
 * may have them. */
static enum keel_status build_layernorm_grad(const struct row *row, struct keel_launch_list *list,
                                             struct work *work)
{
    struct keel_layernorm_grad op = {.rows = (uint32_t)row->rows, .n = (uint32_t)row->n};
    op.x = pool[1], op.dy = pool[2], op.dx = op.residual = pool[0], op.gamma = small[0];
    op.mean = small[2], op.rstd = small[3], op.dgamma = pool[3], op.dbeta = pool[4];
    *work = moves(STREAM_AXPY, row, 24, 16);
    work->once_bytes = 16.0 / 24 * work->bytes;
    return keel_op_layernorm_grad(kernels, &op, list);
}

static enum keel_status build_bias_grad(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    struct keel_bias_grad op = {.rows = (uint32_t)row->rows, .n = (uint32_t)row->n};
    op.x = pool[1], op.out = small[2];
    *work = moves(STREAM_READ, row, 4, 1);
    return keel_op_bias_grad(kernels, &op, list);
}

static enum keel_status build_cross_entropy(const struct row *row, struct keel_launch_list *list,
                                            struct work *work)
{
    struct keel_cross_entropy op = {.rows = (uint32_t)row->rows, .vocab = (uint32_t)row->n, .scale = 1e-3f};
    op.logits = op.dlogits = pool[0], op.targets = ids, op.row_loss = small[2], op.loss = small[3];
    *work = moves(STREAM_SCALE, row, 8, OPS_EXP_BELOW + 6);
    return keel_op_cross_entropy(kernels, &op, list);
}

static enum keel_status build_embedding(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    struct keel_embedding op = {
        .batch = 4, .tokens = (uint32_t)row->rows / 4, .width = (uint32_t)row->n, .vocab = (uint32_t)row->k};
    op.ids = ids, op.table = pool[1], op.positions = pool[2], op.y = pool[0];
    *work = moves(STREAM_COPY, row, 9, 1);
    return keel_op_embedding(kernels, &op, list);
}
/* dy twice, the table's rows and a quarter of dpositions read and written. */
static enum keel_status build_embedding_grad(const struct row *row, struct keel_launch_list *list,
                                             struct work *work)
{
    struct keel_embedding_grad op = {
        .batch = 4, .tokens = (uint32_t)row->rows / 4, .width = (uint32_t)row->n, .vocab = (uint32_t)row->k};
    op.ids = ids, op.dy = pool[0], op.dtable = pool[1], op.dpositions = pool[2];
    *work = moves(STREAM_AXPY, row, 18, 2.25);
    work->once_bytes = 14.0 / 18 * work->bytes;
    return keel_op_embedding_grad(kernels, &op, list);
}

static enum keel_status build_loss(const struct row *row, enum keel_loss_kind kind,
                                   struct keel_launch_list *list)
{
    struct keel_loss op = {.count = row->rows * row->n, .kind = kind, .scale = 1e-3f};
    op.x = op.dx = pool[0], op.targets = pool[1], op.scratch = pool[2], op.loss = small[3];
    return keel_op_loss(kernels, &op, list);
}
static enum keel_status build_bce(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_AXPY, row, 12, OPS_EXP + OPS_LOG + OPS_SIGMOID + 8);
    return build_loss(row, KEEL_LOSS_BCE, list);
}
static enum keel_status build_mse(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_AXPY, row, 12, 5);
    return build_loss(row, KEEL_LOSS_MSE, list);
}

/* One tensor: all pages are number 0. */
static enum keel_status write_tables(uint64_t count)
{
    static struct keel_update_tensor tensor = {.kind = KEEL_TENSOR_DECAY, .factor = 1.0F};
    tensor.count = count;
    KEEL_TRY(keel_queue_write(queue, integers[0], 0, &tensor, sizeof tensor, NULL, NULL));
    return keel_queue_fill(queue, integers[1], 0, keel_update_page_count(count) * sizeof(uint32_t), 0, NULL,
                           NULL);
}

static enum keel_status build_norm(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    struct keel_norm_tiles tiles = {.count = row->rows * row->n, .tensor_count = 1, .tile_count = 1};
    struct keel_norm op = {.tile_count = 1, .control = control};
    tiles.x = pool[1], tiles.tensors = integers[0], tiles.pages = integers[1], tiles.scratch = pool[2];
    op.tiles = tiles.tiles = small[3], op.norm = small[2], op.scratch = pool[2];
    KEEL_TRY(write_tables(tiles.count));
    *work = moves(STREAM_READ, row, 4, 1);
    KEEL_TRY(keel_op_norm_tiles(kernels, &tiles, list));
    return keel_op_norm(kernels, &op, list);
}

static enum keel_status build_update(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    struct keel_update op = {.count = row->rows * row->n, .tensor_count = 1, .control = control};
    op.w = pool[0], op.grad = pool[1], op.m = pool[2], op.v = pool[3], op.norm = small[2];
    op.tensors = integers[0], op.pages = integers[1], op.scratch = integers[2], op.digest = integers[3];
    KEEL_TRY(write_tables(op.count));
    KEEL_TRY(keel_queue_fill(queue, op.scratch, 0, keel_update_scratch_bytes(&op), 0, NULL, NULL));
    *work = moves(STREAM_AXPY, row, 28, OPS_ADAM_STEP + 18 + 32);
    return keel_op_update(kernels, &op, list);
}

static enum keel_status build_digest(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    struct keel_digest op = {.count = row->rows * row->n};
    op.x = pool[1], op.digest = integers[3], op.scratch = integers[2];
    *work = moves(STREAM_READ, row, 4, 32);
    return keel_op_digest(kernels, &op, list);
}

static enum keel_status build_cast(const struct row *row, enum keel_dtype from, enum keel_dtype to,
                                   struct keel_launch_list *list)
{
    struct keel_cast op = {.count = row->rows * row->n, .from = from, .to = to};
    op.x = pool[1], op.y = pool[0];
    return keel_op_cast(kernels, &op, list);
}
static enum keel_status build_to_bf16(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 6, 9);
    return build_cast(row, KEEL_F32, KEEL_BF16, list);
}
static enum keel_status build_to_f16(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 6, 28);
    return build_cast(row, KEEL_F32, KEEL_F16, list);
}
static enum keel_status build_from_bf16(const struct row *row, struct keel_launch_list *list,
                                        struct work *work)
{
    *work = moves(STREAM_COPY, row, 6, 2);
    return build_cast(row, KEEL_BF16, KEEL_F32, list);
}
static enum keel_status build_from_f16(const struct row *row, struct keel_launch_list *list,
                                       struct work *work)
{
    *work = moves(STREAM_COPY, row, 6, 14);
    return build_cast(row, KEEL_F16, KEEL_F32, list);
}

static enum keel_status build_fill(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_FILL, row, 4, 0);
    return keel_op_fill(kernels, &(struct keel_fill){.count = row->rows * row->n, .y = pool[0]}, list);
}
static enum keel_status build_copy(const struct row *row, struct keel_launch_list *list, struct work *work)
{
    *work = moves(STREAM_COPY, row, 8, 0);
    return keel_op_copy(kernels, &(struct keel_copy){.count = row->rows * row->n, .x = pool[1], .y = pool[0]},
                        list);
}

enum { SHORT = 256, LONG = 4096, WIDTH = 768, HIDDEN = 3072, VOCAB = 50257, CHUNK = 1024, MI = 1 << 20 };
#define BOTH(name, build, n, k)                                                                              \
    {name, build, SHORT, n, k},                                                                              \
    {                                                                                                        \
        name, build, LONG, n, k                                                                              \
    }
#include "roofline_image.h"
#include "roofline_product.h"
#include "roofline_table.h"

static const struct row table[] = {
    BOTH("add", build_add, WIDTH, 0),
    BOTH("gelu", build_gelu, HIDDEN, 0),
    BOTH("gelu_grad", build_gelu_grad, HIDDEN, 0),
    BOTH("relu", build_relu, HIDDEN, 0),
    BOTH("relu_grad", build_relu_grad, HIDDEN, 0),
    BOTH("tanh", build_tanh, HIDDEN, 0),
    BOTH("silu", build_silu, HIDDEN, 0),
    BOTH("swiglu", build_swiglu, HIDDEN, 0),
    BOTH("dropout", build_dropout, WIDTH, 0),
    BOTH("layernorm", build_layernorm, WIDTH, 0),
    BOTH("layernorm_grad", build_layernorm_grad, WIDTH, 0),
    BOTH("bias_grad", build_bias_grad, WIDTH, 0),
    BOTH("bias_grad", build_bias_grad, HIDDEN, 0),
    BOTH("embedding", build_embedding, WIDTH, VOCAB),
    BOTH("embedding_grad", build_embedding_grad, WIDTH, VOCAB),
    {"cross_entropy", build_cross_entropy, SHORT, VOCAB, 0},
    {"cross_entropy", build_cross_entropy, CHUNK, VOCAB, 0},
    {"bce", build_bce, 32, MI, 0},
    {"mse", build_mse, 32, MI, 0},
    {"norm", build_norm, 32, MI, 0},
    {"update (AdamW, digest)", build_update, 32, MI, 0},
    {"digest", build_digest, 32, MI, 0},
    {"cast to bf16", build_to_bf16, 32, MI, 0},
    {"cast to f16", build_to_f16, 32, MI, 0},
    {"cast from bf16", build_from_bf16, 32, MI, 0},
    {"cast from f16", build_from_f16, 32, MI, 0},
    {"fill", build_fill, 32, MI, 0},
    {"copy", build_copy, 32, MI, 0},
    ROOFLINE_TABLE,
    ROOFLINE_IMAGE,
    ROOFLINE_PRODUCT,
};

/* ---- measuring ----------------------------------------------------------------------------------------- */

static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
static double now_s(void)
{
    return clock_s(processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

static enum keel_status finish(void)
{
    return keel_queue_finish(queue, keel_deadline_after_ns(300 * KEEL_NS_PER_S));
}

/* Seconds of one run among `times`, enqueued one behind another as in a step. */
static enum keel_status time_operation(const struct keel_launch_list *list, uint32_t times, double *out)
{
    double since = now_s();
    for (uint32_t i = 0; i < times; i++)
        KEEL_TRY(keel_launch_list_run(list, queue));
    KEEL_TRY(finish());
    *out = (now_s() - since) / times;
    return KEEL_OK;
}
/* The yardstick over as many bytes; seconds for that many where its buffers hold fewer. */
static enum keel_status time_stream(const struct work *work, uint32_t times, double *out)
{
    uint64_t count = (uint64_t)work->bytes / stream_bytes[work->stream] / 64 * 64;
    count = count > POOL_FLOATS / 64 * 64 ? POOL_FLOATS / 64 * 64 : count;
    double since = now_s();
    for (uint32_t i = 0; i < times; i++)
        KEEL_TRY(stream_launch(&streams, work->stream, count, pool));
    KEEL_TRY(finish());
    *out = (now_s() - since) / times * work->bytes / (double)(count * stream_bytes[work->stream]);
    return KEEL_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

struct result {
    double seconds, bandwidth, peak; /* medians: bytes/s, lane operations/s */
    double memory_share, peak_share; /* medians of the rounds' */
    double busy;
};

static uint32_t repeats(const struct work *work)
{
    double by_bytes = (double)SPAN_BYTES / work->bytes, by_ops = SPAN_OPS / (work->ops + 1);
    double times = by_bytes < by_ops ? by_bytes : by_ops;
    return times < 1 ? 1 : (uint32_t)times;
}

static enum keel_status measure(const struct keel_launch_list *list, const struct work *work,
                                struct result *out)
{
    double seconds[ROUNDS], bandwidth[ROUNDS], peak[ROUNDS], memory_share[ROUNDS], peak_share[ROUNDS], once;
    double computed = 0.0, passed = 0.0; /* processor time and time of the operation */
    const uint32_t times = repeats(work);
    KEEL_TRY(time_operation(list, 1, &once));
    KEEL_TRY(time_stream(work, 1, &once));
    for (int r = 0; r < ROUNDS; r++) {
        double flops, since = now_s();
        KEEL_TRY(fma_measure(&fma_rate, &flops));
        flops = processor_time ? fma_flops(&fma_rate) / (now_s() - since) : flops;
        KEEL_TRY(time_stream(work, times, &once));
        computed -= clock_s(CLOCK_PROCESS_CPUTIME_ID);
        passed -= clock_s(CLOCK_MONOTONIC);
        KEEL_TRY(time_operation(list, times, &seconds[r]));
        computed += clock_s(CLOCK_PROCESS_CPUTIME_ID);
        passed += clock_s(CLOCK_MONOTONIC);
        bandwidth[r] = work->bytes / once;
        peak[r] = flops / 2;
        memory_share[r] = once / seconds[r];
        peak_share[r] = work->ops / peak[r] / seconds[r];
    }
    *out = (struct result){median(seconds),      median(bandwidth),  median(peak),
                           median(memory_share), median(peak_share), computed / passed / threads};
    return KEEL_OK;
}

static void report(const struct row *row, const struct work *work, const struct result *result)
{
    const bool memory = result->memory_share >= result->peak_share;
    const double share = memory ? result->memory_share : result->peak_share;
    const double once = work->once_bytes > 0 ? work->once_bytes / work->bytes : 1;
    char shape[48];
    int length = snprintf(shape, sizeof shape, "%llu", (unsigned long long)row->rows);
    if (row->n > 0)
        length +=
            snprintf(shape + length, sizeof shape - (size_t)length, "x%llu", (unsigned long long)row->n);
    if (row->k > 0)
        snprintf(shape + length, sizeof shape - (size_t)length, "x%llu", (unsigned long long)row->k);
    printf("{\"room\":\"kernels\",\"figure\":\"roof: %s %s, %.3g MB\",\"value\":%.4g,\"unit\":\"%s\",",
           row->name, shape, work->bytes * 1e-6, (memory ? work->bytes : work->ops) / result->seconds * 1e-9,
           memory ? "GB/s" : "Gop/s");
    printf("\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3f,",
           memory ? stream_names[work->stream] : "FMA peak",
           (memory ? result->bandwidth : result->peak) * 1e-9, share);
    printf("\"goal\":%.2f,\"met\":%s,", goal, share >= goal ? "true" : "false");
    printf("\"memory\":%.3f,\"arithmetic\":%.3f,\"once\":%.3f,\"busy\":%.2f}\n", result->memory_share,
           result->peak_share, once * result->memory_share, result->busy);
    fflush(stdout);
}

static enum keel_status bench_row(const struct row *row)
{
    struct keel_launch_list list = {0};
    struct work work = {0};
    struct result result = {0};
    enum keel_status status = row->build(row, &list, &work);
    if (status == KEEL_OK)
        status = measure(&list, &work, &result);
    keel_launch_list_fini(&list);
    if (status == KEEL_OK)
        report(row, &work, &result);
    return status;
}

/* ---- set-up -------------------------------------------------------------------------------------------- */

/* Small random numbers between 0 and 1, or ids below `ids` when that is not 0. */
static enum keel_status fill_buffer(struct keel_device *device, uint64_t words, uint32_t below,
                                    struct keel_buffer **out)
{
    uint32_t *data, state = 12345u;
    KEEL_TRY(keel_alloc(words, sizeof *data, &data));
    for (uint64_t i = 0; i < words; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-24f;
        if (below != 0)
            data[i] = (state >> 8) % below;
        else
            memcpy(&data[i], &value, sizeof value);
    }
    enum keel_status status = keel_buffer_create(device, words * sizeof *data, out);
    if (status == KEEL_OK)
        status = keel_queue_write(queue, *out, 0, data, words * sizeof *data, NULL, NULL);
    if (status == KEEL_OK)
        status = finish();
    keel_free(data);
    return status;
}

static enum keel_status open_all(struct keel_device *device)
{
    struct keel_control settings = {.learning_rate = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f};
    settings.bias1 = settings.bias2 = 0.5f, settings.epsilon = 1e-8f;
    threads = keel_device_info(device)->compute_units;
    KEEL_TRY(keel_kernels_create(device, &kernels));
    KEEL_TRY(keel_queue_create(device, &queue));
    KEEL_TRY(stream_open(device, queue, &streams));
    KEEL_TRY(fma_open(device, &fma_rate));
    for (int i = 0; i < 5; i++)
        KEEL_TRY(fill_buffer(device, POOL_FLOATS, 0, &pool[i]));
    for (int i = 0; i < 4; i++)
        KEEL_TRY(fill_buffer(device, LONG, 0, &small[i]));
    for (int i = 0; i < 4; i++)
        KEEL_TRY(keel_buffer_create(device, INTEGERS * sizeof(uint32_t), &integers[i]));
    KEEL_TRY(fill_buffer(device, IDS, VOCAB, &ids));
    KEEL_TRY(fill_buffer(device, IDS, EXPERTS, &choices));
    KEEL_TRY(keel_buffer_create(device, sizeof settings, &control));
    KEEL_TRY(keel_queue_write(queue, control, 0, &settings, sizeof settings, NULL, NULL));
    return finish();
}

static void drop(struct keel_buffer **buffers, int count)
{
    for (int i = 0; i < count; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
}

static void close_all(struct keel_device *device)
{
    drop(pool, 5);
    drop(small, 4);
    drop(integers, 4);
    drop(&ids, 1);
    drop(&choices, 1);
    drop(&control, 1);
    fma_close(&fma_rate);
    stream_close(&streams);
    if (queue != NULL)
        keel_queue_destroy(queue);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    struct keel_device_options options = {.threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0};
    processor_time = options.threads == 1;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", &options, &device);
    if (status == KEEL_OK)
        status = open_all(device);
    for (size_t i = 0; i < sizeof table / sizeof *table && status == KEEL_OK; i++)
        if (argc < 4 || strstr(table[i].name, argv[3]) != NULL)
            status = bench_row(&table[i]);
    if (status != KEEL_OK)
        fprintf(stderr, "roofline_bench: %s: %s\n", keel_status_text(status), keel_detail());
    if (device != NULL)
        close_all(device);
    return keel_status_exit_code(status);
}
