/* attention_bench.c - what attention and its gradient reach, as a share of the device's FMA peak, and what
 * memory they take, from 64 to 8,192 tokens in 12 causal heads of 64.
 *
 * One JSON object a line. Operations are those that a causal mask leaves: 2 products forward and 5 backward
 * of half a square. Rates are per second of processor time over all threads, and so is the peak, measured in
 * the same rounds: what others do on the machine then matters little. The peer, PyTorch's
 * scaled_dot_product_attention (tests/bench/attention_peer.py by ${KEEL_PYTHON:-python3}, where torch is
 * installed), runs between two halves of our rounds. Arguments: the device, else "auto"; a list of lengths,
 * each TOKENS or TOKENSxWIDTH (of a head; 768 / WIDTH heads).
 */
#include "fma_peak.h"
#include "peer.h"

#include <keel/attention_ops.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROW = 768, WIDTH = 64, ROUNDS = 6, TOKENS_PER_RUN = 4096, TURNS = 2 };

static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct fma_bench yardstick;
static uint32_t threads;

struct seconds {
    double clock[TURNS], processor[TURNS]; /* [0] forward, [1] backward */
};

/* One length: its operands, the lists of both directions, and what they took. */
struct length {
    uint32_t tokens, batch, heads, width;
    struct keel_attention_grad op;
    struct keel_launch_list lists[TURNS];
    uint64_t peak_bytes, own_bytes; /* of the device, and of the operands */
    struct seconds rounds[ROUNDS], ours, peer;
    double peaks[ROUNDS], peak; /* FLOP for each second of the processor; the median */
};

static double processor_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static enum keel_status filled(struct keel_device *device, uint64_t floats, struct keel_buffer **out)
{
    float *data = NULL;
    KEEL_TRY(keel_buffer_create(device, floats * sizeof(float), out));
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, floats * sizeof(float), &data));
    for (uint64_t i = 0; i < floats; i++)
        data[i] = (float)((i * 2654435761U >> 20) % 2048) / 1024.0F - 1.0F;
    enum keel_status status = keel_queue_write(queue, *out, 0, data, floats * sizeof(float), NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
    keel_free(data);
    return status;
}

static enum keel_status length_open(struct keel_device *device, struct length *length)
{
    const uint64_t rows = (uint64_t)length->batch * length->tokens;
    struct keel_attention *op = &length->op.forward;
    *op = (struct keel_attention){.batch = length->batch,
                                  .tokens = length->tokens,
                                  .heads = length->heads,
                                  .head_width = length->width};
    KEEL_TRY(filled(device, 3 * rows * ROW, &op->qkv));
    KEEL_TRY(filled(device, rows * ROW, &op->out));
    KEEL_TRY(filled(device, 2 * rows * length->heads, &op->stats));
    KEEL_TRY(filled(device, rows * ROW, &length->op.dout));
    KEEL_TRY(filled(device, 3 * rows * ROW, &length->op.dqkv));
    length->own_bytes = keel_device_stats(device).live_bytes;
    const uint64_t forward = keel_attention_workspace_bytes(kernels, op);
    const uint64_t backward = keel_attention_grad_workspace_bytes(kernels, &length->op);
    KEEL_TRY(keel_buffer_create(device, forward > backward ? forward : backward, &op->workspace));
    KEEL_TRY(keel_op_attention(kernels, op, &length->lists[0]));
    return keel_op_attention_grad(kernels, &length->op, &length->lists[1]);
}

static void length_close(struct length *length)
{
    struct keel_attention *op = &length->op.forward;
    struct keel_buffer *buffers[] = {op->qkv,         op->out,         op->stats,
                                     length->op.dout, length->op.dqkv, op->workspace};
    for (int turn = 0; turn < TURNS; turn++)
        keel_launch_list_fini(&length->lists[turn]);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i] != NULL)
            keel_buffer_destroy(buffers[i]);
}

static enum keel_status run_once(const struct length *length, struct seconds *out)
{
    for (int turn = 0; turn < TURNS; turn++) {
        const double processor = processor_s();
        const uint64_t since = keel_now_ns();
        KEEL_TRY(keel_launch_list_run(&length->lists[turn], queue));
        KEEL_TRY(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
        out->clock[turn] = (double)(keel_now_ns() - since) * 1e-9;
        out->processor[turn] = processor_s() - processor;
    }
    return KEEL_OK;
}

static enum keel_status measure_peak(double *peak)
{
    const double processor = processor_s();
    const uint64_t since = keel_now_ns();
    double rate = 0;
    KEEL_TRY(fma_measure(&yardstick, &rate));
    const double spent = processor_s() - processor, share = (double)(keel_now_ns() - since) * 1e-9 / spent;
    *peak = rate * share;
    return KEEL_OK;
}

static bool run_peer(struct length *length)
{
    char arguments[128];
    struct seconds *peer = &length->peer;
    snprintf(arguments, sizeof arguments, "%u %u %u %u %u %d", length->batch, length->tokens, length->heads,
             length->width, threads, ROUNDS);
    FILE *pipe = peer_open("attention_peer.py", arguments);
    if (pipe == NULL)
        return false;
    const int found = fscanf(pipe, "%lf %lf %lf %lf", &peer->clock[0], &peer->clock[1], &peer->processor[0],
                             &peer->processor[1]);
    if (pclose(pipe) == 0 && found == 4)
        return true;
    fprintf(stderr, "attention_bench: PyTorch failed at %u x %u tokens\n", length->batch, length->tokens);
    return false;
}

static int by_value(const void *x, const void *y)
{
    const double d = *(const double *)x - *(const double *)y;
    return (d > 0) - (d < 0);
}

static void take_medians(struct length *length)
{
    qsort(length->peaks, ROUNDS, sizeof length->peaks[0], by_value);
    length->peak = length->peaks[ROUNDS / 2];
    double clock[ROUNDS], processor[ROUNDS];
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < ROUNDS; i++) {
            clock[i] = length->rounds[i].clock[turn];
            processor[i] = length->rounds[i].processor[turn];
        }
        qsort(clock, ROUNDS, sizeof clock[0], by_value);
        qsort(processor, ROUNDS, sizeof processor[0], by_value);
        length->ours.clock[turn] = clock[ROUNDS / 2];
        length->ours.processor[turn] = processor[ROUNDS / 2];
    }
}

/* peer: whether there is one; becomes whether it ran. */
static enum keel_status measure(struct length *length, bool *peer)
{
    struct seconds warm;
    KEEL_TRY(run_once(length, &warm));
    for (int round = 0; round < ROUNDS; round++) {
        KEEL_TRY(measure_peak(&length->peaks[round]));
        KEEL_TRY(run_once(length, &length->rounds[round]));
        if (round == ROUNDS / 2 - 1)
            *peer = *peer && run_peer(length);
    }
    take_medians(length);
    return KEEL_OK;
}

/* `most`: what the value may be at most, 0 where there is no goal. */
static void print_line(const char *figure, double value, const char *unit, double peer, double ratio,
                       double most)
{
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, value, unit);
    if (peer > 0)
        printf("\"peer\":\"PyTorch\",\"peer_value\":%.4g,\"ratio\":%.3g,", peer, ratio);
    else
        printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,");
    if (most > 0)
        printf("\"goal\":%g,\"met\":%s}\n", most, value <= most ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

static double bytes_per_token(const struct length *length)
{
    return (double)(length->peak_bytes - length->own_bytes) / ((double)length->batch * length->tokens);
}

static void report(const struct length *length, bool peer)
{
    static const char *const turns[TURNS] = {"forward", "backward"};
    static const double products[TURNS] = {2, 5};
    const uint64_t rows = (uint64_t)length->batch * length->tokens;
    char figure[128];
    for (int turn = 0; turn < TURNS; turn++) {
        const double flops = products[turn] * 2 * ROW * (double)rows * (length->tokens + 1) / 2;
        const double ours = length->ours.clock[turn], theirs = peer ? length->peer.clock[turn] : 0;
        snprintf(figure, sizeof figure, "attention %s, %u x %u tokens, heads of %u", turns[turn],
                 length->batch, length->tokens, length->width);
        print_line(figure, ours * 1e3, "ms", theirs * 1e3, theirs / ours, 0);
        if (length->peak <= 0) /* the host device has none */
            continue;
        snprintf(figure, sizeof figure, "attention %s, %u x %u tokens, heads of %u, share of peak",
                 turns[turn], length->batch, length->tokens, length->width);
        print_line(figure, flops / length->ours.processor[turn] / length->peak, "share",
                   peer ? flops / length->peer.processor[turn] / length->peak : 0,
                   length->peer.processor[turn] / length->ours.processor[turn], 0);
    }
    snprintf(figure, sizeof figure, "attention, %u x %u tokens, memory beside the operands", length->batch,
             length->tokens);
    print_line(figure, bytes_per_token(length), "bytes/token", 0, 0, 0);
}

/* Where both lengths were asked for. */
static void report_growth(double bytes_short, double bytes_long)
{
    if (bytes_short > 0 && bytes_long > 0)
        print_line("attention, memory per token at 8192 tokens over that at 1024", bytes_long / bytes_short,
                   "ratio", 0, 0, 1.0);
}

static enum keel_status bench(struct keel_device *device, int count, char **tokens)
{
    double bytes_short = 0, bytes_long = 0;
    const bool torch = peer_exists("attention_bench");
    threads = keel_device_info(device)->compute_units;
    KEEL_TRY(keel_queue_create(device, &queue));
    KEEL_TRY(keel_kernels_create(device, &kernels));
    KEEL_TRY(fma_open(device, &yardstick));
    for (int i = 0; i < count; i++) {
        char *after = NULL;
        struct length length = {.tokens = (uint32_t)strtoul(tokens[i], &after, 10)};
        length.width = *after == 'x' ? (uint32_t)strtoul(after + 1, NULL, 10) : WIDTH;
        length.heads = ROW / length.width;
        bool peer = torch;
        length.batch = length.tokens < TOKENS_PER_RUN ? TOKENS_PER_RUN / length.tokens : 1;
        enum keel_status status = length_open(device, &length);
        if (status == KEEL_OK)
            status = measure(&length, &peer);
        length.peak_bytes = keel_device_stats(device).live_bytes;
        if (status == KEEL_OK)
            report(&length, peer);
        bytes_short = length.tokens == 1024 ? bytes_per_token(&length) : bytes_short;
        bytes_long = length.tokens == 8192 ? bytes_per_token(&length) : bytes_long;
        length_close(&length);
        KEEL_TRY(status);
    }
    report_growth(bytes_short, bytes_long);
    fma_close(&yardstick);
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    static char *all[] = {"64", "256", "1024", "2048", "4096", "8192"};
    struct keel_device *device = NULL;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device);
    if (status == KEEL_OK)
        status =
            argc > 2 ? bench(device, argc - 2, argv + 2) : bench(device, sizeof all / sizeof all[0], all);
    if (status != KEEL_OK)
        fprintf(stderr, "attention_bench: %s: %s\n", keel_status_name(status), keel_detail());
    return keel_status_exit_code(status);
}
