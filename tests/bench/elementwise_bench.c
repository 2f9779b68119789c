/* elementwise_bench.c - how near to the memory's speed the operations without a matrix product run.
 *
 * Each figure is the bytes that an operation must read and write, over its median time, on the best
 * device; the peer is memcpy by as many threads as there are processors, over the same number of bytes,
 * in turn with ours. One JSON object a line; the goal is the ratio to reach. */
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 9, THREADS_MAX = 64, BUFFERS_MAX = 64 };

/* Shapes of GPT-2 124M with 4 x 64 tokens; AdamW and the norms over 32 Mi parameters. */
enum { ROWS = 256, WIDTH = 768, HIDDEN = 3072, VOCAB = 50257 };
static const uint64_t PARAMETERS = UINT64_C(32) << 20;

static struct keel_device *device;
static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct keel_buffer *buffers[BUFFERS_MAX];
static uint32_t buffer_count;
static char *copy_source, *copy_target;

static void must(enum keel_status status)
{
    if (status != KEEL_OK) {
        fprintf(stderr, "elementwise_bench: %s\n", keel_detail());
        exit(keel_status_exit_code(status));
    }
}

static uint64_t far_deadline_ns(void)
{
    return keel_deadline_after_ns(300 * KEEL_NS_PER_S);
}

/* A buffer of `words` small random numbers between 0 and 1, or ids below `ids` when that is not 0. */
static struct keel_buffer *buffer_of(uint64_t words, uint32_t ids)
{
    uint32_t *data, state = 12345u + buffer_count;
    must(keel_alloc(words, sizeof *data, &data));
    for (uint64_t i = 0; i < words; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-24f;
        if (ids != 0)
            data[i] = (state >> 8) % ids;
        else
            memcpy(&data[i], &value, sizeof value);
    }
    struct keel_buffer *buffer;
    must(keel_buffer_create(device, words * sizeof *data, &buffer));
    must(keel_queue_write(queue, buffer, 0, data, words * sizeof *data, NULL, NULL));
    must(keel_queue_finish(queue, far_deadline_ns()));
    keel_free(data);
    if (buffer_count == BUFFERS_MAX)
        must(keel_fail(KEEL_LIMIT, "more than %d buffers", BUFFERS_MAX));
    buffers[buffer_count++] = buffer;
    return buffer;
}
static struct keel_buffer *floats(uint64_t count)
{
    return buffer_of(count, 0);
}

static double run_once_s(const struct keel_launch_list *list)
{
    uint64_t start = keel_now_ns();
    must(keel_launch_list_run(list, queue));
    must(keel_queue_finish(queue, far_deadline_ns()));
    return (double)(keel_now_ns() - start) * 1e-9;
}

struct copy_part {
    uint64_t offset, bytes;
};
static void *copy_part(void *argument)
{
    const struct copy_part *part = argument;
    memcpy(copy_target + part->offset, copy_source + part->offset, part->bytes);
    return NULL;
}

/* memcpy by all processors, moving `bytes` (half read, half written); repeated when that is little, so
 * that starting threads does not count. */
static double copy_gb_s(uint64_t limit_bytes)
{
    uint32_t threads = keel_cpu_count() < THREADS_MAX ? keel_cpu_count() : THREADS_MAX;
    struct keel_thread running[THREADS_MAX];
    struct copy_part parts[THREADS_MAX];
    uint64_t part_bytes = limit_bytes / threads, start = keel_now_ns();
    for (uint32_t t = 0; t < threads; t++) {
        parts[t] = (struct copy_part){part_bytes * t, part_bytes};
        must(keel_thread_create(&running[t], "copy", copy_part, &parts[t]));
    }
    for (uint32_t t = 0; t < threads; t++)
        keel_thread_join(&running[t]);
    return 2.0 * (double)(part_bytes * threads) / (double)(keel_now_ns() - start);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const uint64_t COPY_BYTES = UINT64_C(128) << 20;

static void measure(const char *figure, struct keel_launch_list *list, uint64_t bytes, double goal)
{
    double ours[ROUNDS], peer[ROUNDS];
    run_once_s(list);
    for (int round = 0; round < ROUNDS; round++) {
        ours[round] = (double)bytes / run_once_s(list) * 1e-9;
        peer[round] = copy_gb_s(COPY_BYTES);
    }
    qsort(ours, ROUNDS, sizeof *ours, by_value);
    qsort(peer, ROUNDS, sizeof *peer, by_value);
    double value = ours[ROUNDS / 2], peer_value = peer[ROUNDS / 2];
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.2f,\"unit\":\"GB/s\",\"peer\":\"memcpy\","
           "\"peer_value\":%.2f,\"ratio\":%.3f,\"goal\":%.2f,\"met\":%s}\n",
           figure, value, peer_value, value / peer_value, goal,
           value >= goal * peer_value ? "true" : "false");
    fflush(stdout);
    keel_launch_list_fini(list);
}

static void bench_activations(void)
{
    const uint64_t count = (uint64_t)ROWS * HIDDEN, narrow = (uint64_t)ROWS * WIDTH;
    struct keel_launch_list list = {0};
    struct keel_buffer *x = floats(count), *y = floats(count), *dy = floats(count);
    must(keel_op_add(kernels, &(struct keel_add){.count = count, .a = x, .b = dy, .y = y}, &list));
    measure("add", &list, count * 12, 0.8);
    must(keel_op_gelu(kernels, &(struct keel_gelu){.count = count, .x = x, .y = y}, &list));
    measure("gelu", &list, count * 8, 0.5);
    must(keel_op_gelu_grad(kernels, &(struct keel_gelu_grad){.count = count, .x = x, .dy = dy, .dx = y},
                           &list));
    measure("gelu_grad", &list, count * 12, 0.5);
    must(keel_op_bias_grad(kernels, &(struct keel_bias_grad){.rows = ROWS, .n = HIDDEN, .x = x, .out = y},
                           &list));
    measure("bias_grad", &list, count * 4, 0.5);
    struct keel_dropout dropout = {.count = count, .rate = 0.1f, .x = x, .y = y, .control = floats(16)};
    must(keel_op_dropout(kernels, &dropout, &list));
    measure("dropout", &list, count * 8, 0.3);
    struct keel_layernorm norm = {.rows = ROWS, .n = WIDTH, .epsilon = 1e-5f, .x = x, .y = y};
    norm.gamma = floats(WIDTH), norm.beta = floats(WIDTH);
    norm.mean = floats(ROWS), norm.rstd = floats(ROWS);
    must(keel_op_layernorm(kernels, &norm, &list));
    measure("layernorm", &list, narrow * 8, 0.5);
    struct keel_layernorm_grad grad = {.rows = ROWS, .n = WIDTH, .x = x, .gamma = norm.gamma};
    grad.mean = norm.mean, grad.rstd = norm.rstd, grad.dy = dy, grad.dx = y, grad.residual = dy;
    grad.dgamma = norm.gamma, grad.dbeta = norm.beta;
    must(keel_op_layernorm_grad(kernels, &grad, &list));
    measure("layernorm_grad", &list, narrow * 20, 0.5);
}

static void bench_vocabulary(void)
{
    const uint64_t cells = (uint64_t)ROWS * VOCAB;
    struct keel_launch_list list = {0};
    struct keel_buffer *ids = buffer_of(ROWS, VOCAB), *logits = floats(cells), *scratch = floats(ROWS);
    struct keel_cross_entropy loss = {.rows = ROWS, .vocab = VOCAB, .scale = 1.0f, .logits = logits};
    loss.targets = ids, loss.row_loss = scratch, loss.loss = floats(1), loss.dlogits = logits;
    must(keel_op_cross_entropy(kernels, &loss, &list));
    measure("cross_entropy in place", &list, cells * 8, 0.5);
    struct keel_embedding forward = {
        .batch = 4, .tokens = ROWS / 4, .width = WIDTH, .vocab = VOCAB, .ids = ids};
    forward.table = floats((uint64_t)VOCAB * WIDTH), forward.positions = floats((uint64_t)ROWS / 4 * WIDTH);
    forward.y = floats((uint64_t)ROWS * WIDTH);
    must(keel_op_embedding(kernels, &forward, &list));
    measure("embedding", &list, (uint64_t)ROWS * WIDTH * 8, 0.3);
    struct keel_embedding_grad grad = {
        .batch = 4, .tokens = ROWS / 4, .width = WIDTH, .vocab = VOCAB, .ids = ids};
    grad.dy = forward.y, grad.dtable = forward.table, grad.dpositions = forward.positions;
    must(keel_op_embedding_grad(kernels, &grad, &list));
    measure("embedding_grad", &list, (uint64_t)ROWS * WIDTH * 16, 0.3);
}

static void bench_parameters(void)
{
    struct keel_launch_list list = {0};
    struct keel_control control = {.learning_rate = 1e-3f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .bias1 = 0.5f,
                                   .bias2 = 0.5f,
                                   .epsilon = 1e-8f};
    struct keel_buffer *settings = floats(sizeof control / 4);
    must(keel_queue_write(queue, settings, 0, &control, sizeof control, NULL, NULL));
    must(keel_queue_finish(queue, far_deadline_ns()));
    struct keel_buffer *w = floats(PARAMETERS), *g = floats(PARAMETERS);
    struct keel_norm norm = {.count = PARAMETERS, .x = g, .norm = floats(2), .control = settings};
    norm.scratch = floats(keel_norm_scratch_bytes(PARAMETERS) / 4);
    must(keel_op_norm(kernels, &norm, &list));
    measure("norm", &list, PARAMETERS * 4, 0.5);
    struct keel_adamw adamw = {.count = PARAMETERS, .weight_decay = 0.1f, .w = w, .grad = g};
    adamw.m = floats(PARAMETERS), adamw.v = floats(PARAMETERS);
    adamw.norm = norm.norm, adamw.control = settings;
    must(keel_op_adamw(kernels, &adamw, &list));
    measure("adamw", &list, PARAMETERS * 28, 0.8);
    struct keel_digest digest = {.count = PARAMETERS, .x = w, .digest = floats(2)};
    digest.scratch = floats(keel_digest_scratch_bytes(PARAMETERS) / 4);
    must(keel_op_digest(kernels, &digest, &list));
    measure("digest", &list, PARAMETERS * 4, 0.5);
    struct keel_cast cast = {.count = PARAMETERS, .from = KEEL_F32, .to = KEEL_BF16, .x = w, .y = adamw.m};
    must(keel_op_cast(kernels, &cast, &list));
    measure("cast to bf16", &list, PARAMETERS * 6, 0.8);
    cast.to = KEEL_F16;
    must(keel_op_cast(kernels, &cast, &list));
    measure("cast to f16", &list, PARAMETERS * 6, 0.8);
    must(keel_op_fill(kernels, &(struct keel_fill){.count = PARAMETERS, .y = g}, &list));
    measure("fill", &list, PARAMETERS * 4, 0.5);
    must(keel_op_copy(kernels, &(struct keel_copy){.count = PARAMETERS, .x = w, .y = g}, &list));
    measure("copy", &list, PARAMETERS * 8, 0.8);
}

static void drop_buffers(void)
{
    while (buffer_count > 0)
        keel_buffer_destroy(buffers[--buffer_count]);
}

int main(void)
{
    must(keel_device_open("auto", NULL, &device));
    must(keel_kernels_create(device, &kernels));
    must(keel_queue_create(device, &queue));
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, COPY_BYTES, &copy_source));
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, COPY_BYTES, &copy_target));
    bench_activations();
    drop_buffers();
    bench_vocabulary();
    drop_buffers();
    bench_parameters();
    drop_buffers();
    keel_free(copy_source);
    keel_free(copy_target);
    keel_queue_destroy(queue);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
    return 0;
}
