/* gemm_bench.c - what the matrix product reaches, as a share of the device's FMA peak of the same minute.
 *
 * One JSON object a line. Shapes: squares, every product of a GPT-2 124M step on 4 x 64 tokens, those of its
 * layers on 4 x 1024, and of the demo model; packing and launches are inside the times. Peers run in turn
 * with ours: OpenBLAS (any libopenblas.so.0 that the loader finds, with its best core type) on the same
 * numbers, and CLBlast on its own OpenCL context of the same driver: on PoCL 3.1 with AVX-512 with the
 * parameters that its tuners found there for 1024 x 1024 x 1024 and 256 x 256 x 256 (it brings none for
 * PoCL), elsewhere as it comes. The peak is measured in the same rounds. Device: the first argument, else
 * "auto". Medians of ROUNDS; CLBlast's large shapes, which take it long, are measured in one. Goals: 80% of
 * the peak, OpenBLAS, five times CLBlast. */
#define CL_TARGET_OPENCL_VERSION 120
#include "fma_peak.h"

#include <clblast_c.h>
#include <dlfcn.h>
#include <keel/kernels.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, SHORT_NS = 10000000, SETTLE_NS = 5000000 };
#define CLBLAST_LONG_FLOPS 2.2e9

struct shape {
    const char *name;
    uint32_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
    uint32_t times; /* in a step of GPT-2 124M */
};
static const struct shape shapes[] = {
    {"square", 1024, 1024, 1024, false, false, false, 0},
    {"square", 2048, 2048, 2048, false, false, false, 0},
    {"gpt2 qkv", 256, 2304, 768, false, false, false, 12},
    {"gpt2 projection", 256, 768, 768, false, false, false, 12},
    {"gpt2 up", 256, 3072, 768, false, false, false, 12},
    {"gpt2 down", 256, 768, 3072, false, false, false, 12},
    {"gpt2 logits", 256, 50257, 768, false, true, false, 1},
    {"gpt2 qkv, dx", 256, 768, 2304, false, true, false, 12},
    {"gpt2 projection, dx", 256, 768, 768, false, true, false, 12},
    {"gpt2 up, dx", 256, 768, 3072, false, true, false, 12},
    {"gpt2 down, dx", 256, 3072, 768, false, true, false, 12},
    {"gpt2 logits, dx", 256, 768, 50257, false, false, false, 1},
    {"gpt2 qkv, dw", 768, 2304, 256, true, false, true, 12},
    {"gpt2 projection, dw", 768, 768, 256, true, false, true, 12},
    {"gpt2 up, dw", 768, 3072, 256, true, false, true, 12},
    {"gpt2 down, dw", 3072, 768, 256, true, false, true, 12},
    {"gpt2 logits, dw", 50257, 768, 256, true, false, true, 1},
    {"gpt2 qkv, 4096 rows", 4096, 2304, 768, false, false, false, 0},
    {"gpt2 up, 4096 rows", 4096, 3072, 768, false, false, false, 0},
    {"gpt2 down, 4096 rows", 4096, 768, 3072, false, false, false, 0},
    {"gpt2 up, 4096 rows, dx", 4096, 768, 3072, false, true, false, 0},
    {"gpt2 down, 4096 rows, dx", 4096, 3072, 768, false, true, false, 0},
    {"gpt2 up, 4096 rows, dw", 768, 3072, 4096, true, false, true, 0},
    {"gpt2 down, 4096 rows, dw", 3072, 768, 4096, true, false, true, 0},
    {"demo qkv", 256, 384, 128, false, false, false, 0},
    {"demo qkv, dw", 128, 384, 256, true, false, true, 0},
    {"demo logits", 256, 75, 128, false, true, false, 0},
    {"demo projection, 64 rows", 64, 128, 128, false, false, false, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };
static const uint64_t matrix_floats = UINT64_C(50257) * 768; /* the largest of all */

typedef void (*sgemm_function)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                               const float *a, int lda, const float *b, int ldb, float beta, float *c,
                               int ldc);

/* One way to multiply: run(shape) computes once and returns when it is done. */
struct contender {
    const char *name;
    enum keel_status (*run)(const struct shape *shape);
    double long_flops;      /* larger shapes are measured once; 0: none are */
    double seconds[SHAPES]; /* medians */
};
static double peak; /* FLOP/s, the best of all rounds: a limit, not a typical value */
static struct fma_bench yardstick;

static struct keel_kernels *kernels;
static struct keel_queue *queue;
static struct keel_buffer *a, *b, *c;
static float *host_a, *host_b, *host_c;
static sgemm_function sgemm;
static cl_command_queue cl_queue;
static cl_mem cl_a, cl_b, cl_c;

static uint32_t lda_of(const struct shape *s)
{
    return s->transpose_a ? s->m : s->k;
}
static uint32_t ldb_of(const struct shape *s)
{
    return s->transpose_b ? s->k : s->n;
}

static enum keel_status run_keel(const struct shape *s)
{
    struct keel_gemm op = {.m = s->m,
                           .n = s->n,
                           .k = s->k,
                           .batch = 1,
                           .transpose_a = s->transpose_a,
                           .transpose_b = s->transpose_b,
                           .accumulate = s->accumulate,
                           .lda = lda_of(s),
                           .ldb = ldb_of(s),
                           .ldc = s->n,
                           .a = a,
                           .b = b,
                           .c = c};
    struct keel_launch_list list = {0};
    enum keel_status status = keel_op_gemm(kernels, &op, &list);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&list, queue);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
    keel_launch_list_fini(&list);
    return status;
}

enum { CBLAS_ROW_MAJOR = 101, CBLAS_PLAIN = 111, CBLAS_TRANSPOSED = 112 };
static enum keel_status run_openblas(const struct shape *s)
{
    sgemm(CBLAS_ROW_MAJOR, s->transpose_a ? CBLAS_TRANSPOSED : CBLAS_PLAIN,
          s->transpose_b ? CBLAS_TRANSPOSED : CBLAS_PLAIN, (int)s->m, (int)s->n, (int)s->k, 1.0F, host_a,
          (int)lda_of(s), host_b, (int)ldb_of(s), s->accumulate ? 1.0F : 0.0F, host_c, (int)s->n);
    return KEEL_OK;
}

static enum keel_status run_clblast(const struct shape *s)
{
    CLBlastStatusCode code = CLBlastSgemm(
        CLBlastLayoutRowMajor, s->transpose_a ? CLBlastTransposeYes : CLBlastTransposeNo,
        s->transpose_b ? CLBlastTransposeYes : CLBlastTransposeNo, s->m, s->n, s->k, 1.0F, cl_a, 0, lda_of(s),
        cl_b, 0, ldb_of(s), s->accumulate ? 1.0F : 0.0F, cl_c, 0, s->n, &cl_queue, NULL);
    if (code != CLBlastSuccess || clFinish(cl_queue) != CL_SUCCESS)
        return keel_fail(KEEL_UNSUPPORTED, "CLBlast: status %d", (int)code);
    return KEEL_OK;
}

/* ---- set-up --------------------------------------------------------------------------------------- */

static enum keel_status host_matrix(float **out)
{
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, matrix_floats * sizeof(float), out));
    for (uint64_t i = 0; i < matrix_floats; i++)
        (*out)[i] = (float)((i * 2654435761U >> 20) % 2048) / 1024.0F - 1.0F;
    return KEEL_OK;
}

static enum keel_status device_matrix(struct keel_device *device, const float *data, struct keel_buffer **out)
{
    KEEL_TRY(keel_buffer_create(device, matrix_floats * sizeof(float), out));
    KEEL_TRY(keel_queue_write(queue, *out, 0, data, matrix_floats * sizeof(float), NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S));
}

static enum keel_status open_keel(struct keel_device *device)
{
    KEEL_TRY(keel_queue_create(device, &queue));
    KEEL_TRY(keel_kernels_create(device, &kernels));
    KEEL_TRY(host_matrix(&host_a));
    KEEL_TRY(host_matrix(&host_b));
    KEEL_TRY(host_matrix(&host_c));
    KEEL_TRY(device_matrix(device, host_a, &a));
    KEEL_TRY(device_matrix(device, host_b, &b));
    return device_matrix(device, host_c, &c);
}

/* Debian's OpenBLAS takes a slow kernel on new processors unless told (kernels/README.md). Its threads yield
 * in turns for 2^26 ticks or more after each product, which takes the processors from whom is measured next:
 * told so, for 2^20, half a millisecond, which outlasts the way from one of its own products to the next. */
static bool open_openblas(void)
{
    if (__builtin_cpu_supports("avx512f"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (library == NULL)
        return false;
    void *symbol = dlsym(library, "cblas_sgemm");
    memcpy(&sgemm, &symbol, sizeof sgemm);
    return symbol != NULL;
}

static bool says(cl_device_id id, cl_device_info what, const char *word)
{
    char text[256] = "";
    return clGetDeviceInfo(id, what, sizeof text, text, NULL) == CL_SUCCESS && strstr(text, word) != NULL;
}

/* Of some 400 sets of parameters the best of CLBlast's tuners; false, and as it was, on a device on which
 * they were not found. */
static bool tune_clblast(cl_device_id id)
{
    static const char *names[] = {"GEMMK", "MWG", "NWG", "KWG",  "MDIMC", "NDIMC", "MDIMA", "NDIMB",
                                  "KWI",   "VWM", "VWN", "STRM", "STRN",  "SA",    "SB",    "KREG"};
    static const size_t values[] = {0, 128, 64, 32, 8, 16, 16, 32, 2, 8, 2, 1, 0, 1, 1, 1};
    static const char *direct_names[] = {"WGD",  "MDIMCD", "NDIMCD", "MDIMAD", "NDIMBD",
                                         "KWID", "VWMD",   "VWND",   "PADA",   "PADB"};
    static const size_t direct_values[] = {64, 32, 8, 32, 8, 8, 2, 2, 1, 1};
    if (!says(id, CL_DEVICE_VERSION, "PoCL") || !says(id, CL_DRIVER_VERSION, "3.1") ||
        !says(id, CL_DEVICE_NAME, "avx512"))
        return false;
    return CLBlastOverrideParameters(id, "Xgemm", CLBlastPrecisionSingle, sizeof values / sizeof *values,
                                     names, values) == CLBlastSuccess &&
           CLBlastOverrideParameters(id, "XgemmDirect", CLBlastPrecisionSingle,
                                     sizeof direct_values / sizeof *direct_values, direct_names,
                                     direct_values) == CLBlastSuccess;
}

/* The first device of the first platform: on a machine with PoCL alone, that of "auto". */
static bool open_clblast(bool *tuned)
{
    cl_platform_id platform;
    cl_device_id id;
    cl_int error = CL_SUCCESS;
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL) != CL_SUCCESS)
        return false;
    *tuned = tune_clblast(id);
    cl_context context = clCreateContext(NULL, 1, &id, NULL, NULL, &error);
    if (error != CL_SUCCESS)
        return false;
    cl_queue = clCreateCommandQueue(context, id, 0, &error);
    size_t bytes = matrix_floats * sizeof(float);
    cl_mem_flags flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
    cl_a = clCreateBuffer(context, flags, bytes, host_a, &error);
    cl_b = clCreateBuffer(context, flags, bytes, host_b, &error);
    cl_c = clCreateBuffer(context, flags, bytes, host_c, &error);
    return error == CL_SUCCESS;
}

/* ---- measuring ------------------------------------------------------------------------------------- */

static int compare_doubles(const void *x, const void *y)
{
    double d = *(const double *)x - *(const double *)y;
    return (d > 0) - (d < 0);
}

/* Seconds of one run, as the mean of a stretch of at least SHORT_NS behind one that is not counted. What
 * another library's threads do after their work is waited for before. */
static enum keel_status time_once(const struct contender *contender, const struct shape *shape, double *out)
{
    keel_sleep_until_ns(keel_deadline_after_ns(SETTLE_NS));
    KEEL_TRY(contender->run(shape));
    uint64_t since = keel_now_ns(), spent = 0;
    uint32_t runs = 0;
    while (spent < SHORT_NS) {
        KEEL_TRY(contender->run(shape));
        runs++;
        spent = keel_now_ns() - since;
    }
    *out = (double)spent * 1e-9 / runs;
    return KEEL_OK;
}

static double flops_of(const struct shape *s)
{
    return 2.0 * s->m * s->n * s->k;
}

static bool takes_part(const struct contender *contender, int shape, int round)
{
    return contender->long_flops == 0 || flops_of(&shapes[shape]) <= contender->long_flops || round == 0;
}

/* All contenders in turn, ROUNDS times; the first run of each, which may compile, is not counted. */
static enum keel_status measure(struct contender *contenders, int count, int shape)
{
    double seconds[3][ROUNDS] = {{0}}, now;
    uint32_t rounds[3] = {0};
    for (int round = -1; round < ROUNDS; round++) {
        KEEL_TRY(fma_measure(&yardstick, &now));
        peak = now > peak ? now : peak;
        for (int i = 0; i < count; i++) {
            double once = 0;
            if (!takes_part(&contenders[i], shape, round))
                continue;
            KEEL_TRY(time_once(&contenders[i], &shapes[shape], &once));
            if (round >= 0)
                seconds[i][rounds[i]++] = once;
        }
    }
    for (int i = 0; i < count; i++) {
        qsort(seconds[i], rounds[i], sizeof seconds[i][0], compare_doubles);
        contenders[i].seconds[shape] = seconds[i][rounds[i] / 2];
    }
    return KEEL_OK;
}

static void print_line(const char *figure, double value, const char *unit, const char *peer,
                       double peer_value, double goal)
{
    printf("{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, value, unit);
    if (peer != NULL)
        printf("\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3g,", peer, peer_value, value / peer_value);
    else
        printf("\"peer\":null,\"peer_value\":null,\"ratio\":null,");
    if (goal > 0)
        printf("\"goal\":%.3g,\"met\":%s}\n", goal, value >= goal ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
}

/* Goals are for products that are long enough to be one: a quarter of a GFLOP or more. */
static void report_shape(const struct contender *contenders, int count, int shape)
{
    char figure[160];
    const struct shape *s = &shapes[shape];
    const double rate = flops_of(s) / contenders[0].seconds[shape];
    const bool large = flops_of(s) > 0.25e9;
    int length = snprintf(figure, sizeof figure, "%s, %ux%ux%u", s->name, s->m, s->n, s->k);
    for (int i = 1; i < count; i++) {
        const double peer = flops_of(s) / contenders[i].seconds[shape] * 1e-9;
        print_line(figure, rate * 1e-9, "GFLOP/s", contenders[i].name, peer,
                   !large ? 0 : (contenders[i].long_flops > 0 ? 5 : 1) * peer);
    }
    snprintf(figure + length, sizeof figure - (size_t)length, ", share of peak");
    if (peak > 0) /* the host device has none */
        print_line(figure, rate / peak, "share", NULL, 0, large ? 0.8 : 0);
}

/* The whole step; beside OpenBLAS where it ran. */
static void report_step(const struct contender *contenders, int count)
{
    double flops = 0, seconds[2] = {0};
    bool openblas = count > 1 && contenders[1].long_flops == 0;
    for (int s = 0; s < SHAPES; s++) {
        flops += shapes[s].times * flops_of(&shapes[s]);
        for (int i = 0; i < 1 + openblas; i++)
            seconds[i] += shapes[s].times * contenders[i].seconds[s];
    }
    print_line("gpt2-124m, all products of a step", flops / seconds[0] * 1e-9, "GFLOP/s",
               openblas ? contenders[1].name : NULL, openblas ? flops / seconds[1] * 1e-9 : 0,
               openblas ? flops / seconds[1] * 1e-9 : 0);
    if (peak > 0) {
        print_line("FMA peak, float32", peak * 1e-9, "GFLOP/s", NULL, 0, 0);
        print_line("gpt2-124m, all products of a step, share of peak", flops / seconds[0] / peak, "share",
                   NULL, 0, 0.8);
    }
}

static enum keel_status bench(struct keel_device *device)
{
    struct contender contenders[3] = {{.name = "keel", .run = run_keel}};
    int count = 1;
    bool tuned = false;
    KEEL_TRY(open_keel(device));
    KEEL_TRY(fma_open(device, &yardstick));
    if (open_openblas())
        contenders[count++] = (struct contender){.name = "OpenBLAS", .run = run_openblas};
    if (open_clblast(&tuned))
        contenders[count++] = (struct contender){.name = tuned ? "CLBlast, tuned" : "CLBlast, untuned",
                                                 .run = run_clblast,
                                                 .long_flops = CLBLAST_LONG_FLOPS};
    for (int s = 0; s < SHAPES; s++)
        KEEL_TRY(measure(contenders, count, s));
    for (int s = 0; s < SHAPES; s++)
        report_shape(contenders, count, s);
    report_step(contenders, count);
    fma_close(&yardstick);
    return KEEL_OK;
}

int main(int argc, char **argv)
{
    struct keel_device *device = NULL;
    enum keel_status status = keel_device_open(argc > 1 ? argv[1] : "auto", NULL, &device);
    if (status == KEEL_OK)
        status = bench(device);
    if (status != KEEL_OK)
        fprintf(stderr, "gemm_bench: %s: %s\n", keel_status_name(status), keel_detail());
    return keel_status_exit_code(status);
}
