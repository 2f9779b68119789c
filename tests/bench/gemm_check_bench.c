/* gemm_check_bench.c - what checksums of products cost, and how many flipped bits they catch; and what slices
 * of k cost.
 *
 * Each shape of a GPT-2 124M step (and two squares) in turns: the product alone; the same with checksums and
 * their check behind it; and the product with k in 8 slices. Slices are compared by processor time, since
 * other programs may run beside it. Then FLIPS bits of the results, one after the other, are turned over in
 * device memory and looked for. One JSON object a line; medians of ROUNDS. Device: the first argument, else
 * "auto".
 */
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS = 15, SLICES = 8, FLIPS = 10000, FLIP_SIDE = 512 };

static const struct shape {
    const char *name;
    uint32_t m, n, k, times; /* times: in a step of GPT-2 124M, 4 x 64 tokens */
} shapes[] = {
    {"gpt2 qkv", 256, 2304, 768, 12},
    {"gpt2 projection", 256, 768, 768, 24},
    {"gpt2 up", 256, 3072, 768, 24},
    {"gpt2 down", 256, 768, 3072, 24},
    {"gpt2 qkv, dx", 256, 768, 2304, 12},
    {"gpt2 logits", 256, 50257, 768, 1},
    {"gpt2 logits, dx", 256, 768, 50257, 1},
    {"gpt2 qkv, dw", 768, 2304, 256, 12},
    {"gpt2 projection, dw", 768, 768, 256, 12},
    {"gpt2 up and down, dw", 768, 3072, 256, 24},
    {"gpt2 logits, dw", 50257, 768, 256, 1},
    {"square 1024", 1024, 1024, 1024, 0},
    {"square 2048", 2048, 2048, 2048, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], MATRIX_FLOATS = 50257 * 768 };

static struct keel_device *device;
static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct keel_buffer *a, *b, *c, *checksums, *report;

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "gemm_check_bench: %s\n", keel_detail());
    exit(keel_status_exit_code(status));
}

static void finish(void)
{
    must(keel_queue_finish(queue, keel_deadline_after_ns(300 * KEEL_NS_PER_S)));
}

static struct keel_buffer *buffer_of(uint64_t floats)
{
    float *data;
    struct keel_buffer *buffer;
    must(keel_alloc(floats, sizeof *data, &data));
    for (uint64_t i = 0; i < floats; i++)
        data[i] = (float)((i * 2654435761U >> 20) % 2048) / 1024.0F - 1.0F;
    must(keel_buffer_create(device, floats * sizeof *data, &buffer));
    must(keel_queue_write(queue, buffer, 0, data, floats * sizeof *data, NULL, NULL));
    finish();
    keel_free(data);
    return buffer;
}

static struct keel_gemm product_of(uint32_t m, uint32_t n, uint32_t k, bool checked)
{
    return (struct keel_gemm){.m = m,
                              .n = n,
                              .k = k,
                              .batch = 1,
                              .lda = k,
                              .ldb = n,
                              .ldc = n,
                              .a = a,
                              .b = b,
                              .c = c,
                              .checksums = checked ? checksums : NULL};
}

static double processor_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6;
}

static double run(const struct keel_launch_list *list)
{
    uint64_t since = keel_now_ns();
    must(keel_launch_list_run(list, queue));
    finish();
    return (double)(keel_now_ns() - since) * 1e-9;
}

/* The same by processor time, of so many runs that its clock can tell. */
static double run_user(const struct keel_launch_list *list, const struct shape *shape)
{
    const double products = (double)shape->m * shape->n * shape->k;
    const double since = processor_seconds();
    for (double done = 0; done < 1e9; done += products)
        must(keel_launch_list_run(list, queue));
    finish();
    return processor_seconds() - since;
}

static int compare(const void *x, const void *y)
{
    double d = *(const double *)x - *(const double *)y;
    return (d > 0) - (d < 0);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

static void print(const char *figure, double value, const char *unit, double goal, bool met)
{
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.5g,\"unit\":\"%s\",\"peer\":null,\"peer_"
           "value\":null,"
           "\"ratio\":null,",
           figure, value, unit);
    if (goal > 0)
        printf("\"goal\":%g,\"met\":%s}\n", goal, met ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
}

/* Seconds of [0] the product, [1] the product with checksums and check. */
static void measure(const struct shape *shape, double out[2])
{
    struct keel_gemm plain = product_of(shape->m, shape->n, shape->k, false);
    struct keel_gemm checked = product_of(shape->m, shape->n, shape->k, true);
    struct keel_launch_list lists[2] = {{0}};
    double seconds[2][ROUNDS], ratios[ROUNDS];
    must(keel_op_gemm(kernels, &plain, &lists[0]));
    must(keel_op_gemm(kernels, &checked, &lists[1]));
    must(keel_op_gemm_check(kernels, &(struct keel_gemm_check){.product = &checked, .report = report},
                            &lists[1]));
    for (int round = -1; round < ROUNDS; round++)
        for (int turn = 0; turn < 2; turn++) {
            int which = (turn + round) & 1;
            double once = run(&lists[which]);
            if (round >= 0)
                seconds[which][round] = once;
        }
    for (int round = 0; round < ROUNDS; round++)
        ratios[round] = seconds[1][round] / seconds[0][round];
    char figure[96];
    snprintf(figure, sizeof figure, "checksums, %s, %ux%ux%u, cost", shape->name, shape->m, shape->n,
             shape->k);
    print(figure, 100 * (median(ratios) - 1), "percent", 0, false);
    out[0] = median(seconds[0]);
    out[1] = median(seconds[1]);
    keel_launch_list_fini(&lists[0]);
    keel_launch_list_fini(&lists[1]);
}

/* Processor time of k in so many slices over that of k in one piece, in turn. */
static void measure_slices(const struct shape *shape, uint32_t count)
{
    struct keel_gemm plain = product_of(shape->m, shape->n, shape->k, false), sliced = plain;
    struct keel_launch_list lists[2] = {{0}};
    double ratios[ROUNDS];
    sliced.k_slices = (struct keel_slices){.count = count, .of = count, .units = shape->k, .unit = 1};
    must(keel_op_gemm(kernels, &plain, &lists[0]));
    must(keel_op_gemm(kernels, &sliced, &lists[1]));
    for (int round = -1; round < ROUNDS; round++) {
        const double one = run_user(&lists[0], shape), many = run_user(&lists[1], shape);
        if (round >= 0)
            ratios[round] = many / one;
    }
    char figure[96];
    snprintf(figure, sizeof figure, "%u slices of k, %s, %ux%ux%u, over one", count, shape->name, shape->m,
             shape->n, shape->k);
    const double ratio = median(ratios);
    print(figure, ratio, "ratio", 1.06, ratio <= 1.06);
    keel_launch_list_fini(&lists[0]);
    keel_launch_list_fini(&lists[1]);
}

/* Turns bits of a result over, one at a time, and counts those that the check finds. */
static uint32_t flips_caught(void)
{
    struct keel_gemm op = product_of(FLIP_SIDE, FLIP_SIDE, FLIP_SIDE, true);
    struct keel_launch_list product = {0}, check = {0};
    uint64_t state = 1;
    uint32_t caught = 0;
    must(keel_op_gemm(kernels, &op, &product));
    must(keel_op_gemm_check(kernels, &(struct keel_gemm_check){.product = &op, .report = report}, &check));
    run(&product);
    for (uint32_t i = 0; i < FLIPS; i++) {
        uint32_t word, found[2] = {0, UINT32_MAX};
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint64_t at = (state >> 33) % (FLIP_SIDE * FLIP_SIDE) * sizeof word, bit = state >> 20 & 31;
        must(keel_queue_write(queue, report, 0, found, sizeof found, NULL, NULL));
        must(keel_queue_read(queue, c, at, &word, sizeof word, NULL, NULL));
        finish();
        uint32_t flipped = word ^ (UINT32_C(1) << bit);
        must(keel_queue_write(queue, c, at, &flipped, sizeof flipped, NULL, NULL));
        run(&check);
        must(keel_queue_read(queue, report, 0, found, sizeof found, NULL, NULL));
        must(keel_queue_write(queue, c, at, &word, sizeof word, NULL, NULL));
        finish();
        caught += found[0] == 1;
    }
    keel_launch_list_fini(&product);
    keel_launch_list_fini(&check);
    return caught;
}

int main(int argc, char **argv)
{
    must(keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device));
    must(keel_queue_create(device, &queue));
    must(keel_kernels_create(device, &kernels));
    a = buffer_of(MATRIX_FLOATS);
    b = buffer_of(MATRIX_FLOATS);
    c = buffer_of(MATRIX_FLOATS);
    struct keel_gemm largest = product_of(50257, 768, 256, true), widest = product_of(256, 50257, 768, true);
    uint64_t bytes = keel_gemm_checksum_bytes(&largest), other = keel_gemm_checksum_bytes(&widest);
    must(keel_buffer_create(device, bytes > other ? bytes : other, &checksums));
    must(keel_buffer_create(device, KEEL_GEMM_REPORT_BYTES, &report));
    double step[2] = {0}, seconds[2];
    for (int s = 0; s < SHAPES; s++) {
        measure(&shapes[s], seconds);
        measure_slices(&shapes[s], SLICES);
        for (int which = 0; which < 2; which++)
            step[which] += shapes[s].times * seconds[which];
    }
    double cost = 100 * (step[1] / step[0] - 1);
    print("checksums, all products of a GPT-2 124M step, cost", cost, "percent", 2, cost <= 2);
    double share = 100.0 * flips_caught() / FLIPS;
    print("checksums, flipped bits of a result that are caught, of 10000", share, "percent", 99.9,
          share >= 99.9);
    return 0;
}
