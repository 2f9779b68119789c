/* exact8_bench.c - products of the exact classes and of bf16 beside canonical ones, on one device, in turn in
 * one process.
 *
 * exact8_bench [DEVICE [SIDE [ROUNDS]]]: a square of SIDE (1024), and products of a GPT-2 124M step. One JSON
 * object a line: GFLOP/s as if of floats (2 m n k), median of ROUNDS (5), cuts of both operands into digits
 * inside; beside it the canonical product of the same minute, and the same without the cuts. Ways: those that
 * the device has, its best first (keel/device.h, enum keel_dots), and plain C. Goal: 1.1 times canonical
 * in two digits where the processor has VNNI, 1.5 in bf16 where it has AVX512-BF16. */
#include <keel/clock.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 31, SHORT_NS = 10000000, LIMIT_S = 60, WAYS_MAX = 8 };

struct shape {
    const char *name;
    uint32_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
};
static struct shape shapes[] = {
    {"square", 1024, 1024, 1024, false, false, false},
    {"gpt2 qkv", 256, 2304, 768, false, false, false},
    {"gpt2 down", 256, 768, 3072, false, false, false},
    {"gpt2 logits", 256, 50257, 768, false, true, false},
    {"gpt2 up, dx", 256, 768, 3072, false, true, false},
    {"gpt2 logits, dx", 256, 768, 50257, false, false, false},
    {"gpt2 up, dw", 768, 3072, 256, true, false, true},
    {"gpt2 qkv, 4096 rows", 4096, 2304, 768, false, false, false},
    {"gpt2 down, 4096 rows", 4096, 768, 3072, false, false, false},
    {"gpt2 up, 4096 rows, dw", 768, 3072, 4096, true, false, true},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct way {
    char name[48];
    struct keel_kernels *kernels;
    struct keel_launch_list list, product; /* with the cuts, and without */
};
static struct way ways[WAYS_MAX];
static uint32_t way_count;
static uint32_t rounds = 5;
static struct keel_queue *queue;
static struct keel_buffer *a, *b, *c, *planes;

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "exact8_bench: %s: %s\n", keel_status_name(status), keel_detail());
    exit(keel_status_exit_code(status));
}

static void add_way(struct keel_device *device, enum keel_class numerics, uint32_t dots, const char *by)
{
    struct keel_device_info target = *keel_device_info(device);
    struct way *way = &ways[way_count++];
    target.dots &= dots;
    const struct keel_kernels_options options = {.numerics = numerics, .target = &target};
    must(keel_kernels_create_with(device, &options, &way->kernels));
    snprintf(way->name, sizeof way->name, "%s%s%s", keel_class_name(numerics), by[0] != '\0' ? ", " : "", by);
}

static void add_ways(struct keel_device *device)
{
    static const struct {
        uint32_t dot;
        const char *name;
    } dots[] = {{KEEL_DOT_MMA, "matrix units"},
                {KEEL_DOT_DP4A, "dp4a"},
                {KEEL_DOT_KHR, "integer_dot_product"},
                {KEEL_DOT_VNNI, "VNNI"}};
    const uint32_t has = keel_device_info(device)->dots;
    add_way(device, KEEL_CANONICAL, 0, "");
    for (size_t i = 0; i < sizeof dots / sizeof dots[0] && way_count < WAYS_MAX - 4; i++)
        if (has & dots[i].dot)
            add_way(device, KEEL_EXACT8X2, dots[i].dot, dots[i].name);
    add_way(device, KEEL_EXACT8X2, 0, "plain C");
    add_way(device, KEEL_EXACT8X3, has, "best");
    add_way(device, KEEL_CLASS_BF16, has, has & KEEL_DOT_BF16 ? "VDPBF16PS" : "plain C");
}

static struct keel_gemm product_of(const struct shape *s)
{
    return (struct keel_gemm){.m = s->m,
                              .n = s->n,
                              .k = s->k,
                              .batch = 1,
                              .transpose_a = s->transpose_a,
                              .transpose_b = s->transpose_b,
                              .accumulate = s->accumulate,
                              .lda = s->transpose_a ? s->m : s->k,
                              .ldb = s->transpose_b ? s->k : s->n,
                              .ldc = s->n,
                              .a = a,
                              .b = b,
                              .c = c,
                              .planes = planes};
}

static uint64_t run_ns(const struct keel_launch_list *list, uint32_t times)
{
    const uint64_t since_ns = keel_now_ns();
    for (uint32_t i = 0; i < times; i++)
        must(keel_launch_list_run(list, queue));
    must(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_S * KEEL_NS_PER_S)));
    return keel_now_ns() - since_ns;
}

static int by_size(const void *x, const void *y)
{
    const double d = *(const double *)x - *(const double *)y;
    return d < 0 ? -1 : d > 0;
}

/* Medians of seconds, of all ways in turn. */
static void measure(double whole[WAYS_MAX], double alone[WAYS_MAX])
{
    static double taken[WAYS_MAX][2][ROUNDS_MAX];
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t w = 0; w < way_count; w++) {
            const struct keel_launch_list *const lists[] = {&ways[w].list, &ways[w].product};
            for (int i = 0; i < 2; i++) {
                const uint64_t once_ns = run_ns(lists[i], 1);
                const uint32_t times = once_ns > SHORT_NS ? 1 : (uint32_t)(SHORT_NS / (once_ns + 1)) + 1;
                taken[w][i][round] = (double)run_ns(lists[i], times) / times * 1e-9;
            }
        }
    for (uint32_t w = 0; w < way_count; w++) {
        qsort(taken[w][0], rounds, sizeof(double), by_size);
        qsort(taken[w][1], rounds, sizeof(double), by_size);
        whole[w] = taken[w][0][rounds / 2];
        alone[w] = taken[w][1][rounds / 2];
    }
}

static void bench(const struct shape *s)
{
    double whole[WAYS_MAX], alone[WAYS_MAX];
    const struct keel_gemm op = product_of(s);
    for (uint32_t w = 0; w < way_count; w++) {
        struct way *way = &ways[w];
        must(keel_op_gemm(way->kernels, &op, &way->list));
        way->product = way->list; /* the last launch is the product; borrowed */
        way->product.items += way->list.count - 1;
        way->product.count = 1;
    }
    measure(whole, alone);
    const double flops = 2.0 * s->m * s->n * s->k * 1e-9;
    for (uint32_t w = 0; w < way_count; w++) {
        printf("{\"figure\":\"%s, %s %ux%ux%u\",\"value\":%.4g,\"unit\":\"GFLOP/s\"", ways[w].name, s->name,
               s->m, s->n, s->k, flops / whole[w]);
        const double goal = keel_kernels_class(ways[w].kernels) == KEEL_CLASS_BF16 ? 1.5 : 1.1;
        if (w > 0)
            printf(",\"peer\":\"canonical\",\"peer_value\":%.4g,\"ratio\":%.3f,\"goal\":%.1f,\"met\":%s,"
                   "\"without_cuts\":%.4g",
                   flops / whole[0], whole[0] / whole[w], goal,
                   whole[0] / whole[w] >= goal ? "true" : "false", flops / alone[w]);
        printf("}\n");
        keel_launch_list_fini(&ways[w].list);
        ways[w].list = (struct keel_launch_list){0};
    }
    fflush(stdout);
}

static void fill(struct keel_buffer *buffer, uint64_t floats)
{
    float *x;
    must(keel_alloc(floats, sizeof *x, &x));
    uint32_t state = 1;
    for (uint64_t i = 0; i < floats; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = (float)(int32_t)state * 0x1p-31F;
    }
    must(keel_queue_write(queue, buffer, 0, x, floats * sizeof *x, NULL, NULL));
    must(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_S * KEEL_NS_PER_S)));
    keel_free(x);
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    must(keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device));
    if (argc > 2)
        shapes[0].m = shapes[0].n = shapes[0].k = (uint32_t)atoi(argv[2]);
    if (argc > 3 && atoi(argv[3]) > 0 && atoi(argv[3]) < ROUNDS_MAX)
        rounds = (uint32_t)atoi(argv[3]);
    must(keel_queue_create(device, &queue));
    add_ways(device);
    uint64_t floats = 0, planes_bytes = 0;
    for (int s = 0; s < SHAPES; s++) {
        const struct keel_gemm op = product_of(&shapes[s]);
        const uint64_t sizes[] = {(uint64_t)op.m * op.k, (uint64_t)op.n * op.k, (uint64_t)op.m * op.n};
        for (int i = 0; i < 3; i++)
            floats = sizes[i] > floats ? sizes[i] : floats;
        for (uint32_t w = 0; w < way_count; w++) {
            const uint64_t bytes = keel_gemm_planes_bytes(ways[w].kernels, &op);
            planes_bytes = bytes > planes_bytes ? bytes : planes_bytes;
        }
    }
    must(keel_buffer_create(device, floats * sizeof(float), &a));
    must(keel_buffer_create(device, floats * sizeof(float), &b));
    must(keel_buffer_create(device, floats * sizeof(float), &c));
    must(keel_buffer_create(device, planes_bytes, &planes));
    fill(a, floats);
    fill(b, floats);
    fill(c, floats);
    for (int s = 0; s < SHAPES; s++)
        bench(&shapes[s]);
    struct keel_buffer *const buffers[] = {a, b, c, planes};
    for (int i = 0; i < 4; i++)
        keel_buffer_destroy(buffers[i]);
    for (uint32_t w = 0; w < way_count; w++)
        keel_kernels_destroy(ways[w].kernels);
    keel_queue_destroy(queue);
    keel_device_close(device);
    return 0;
}
