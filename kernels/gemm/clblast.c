/* clblast.c - matrix products by CLBlast (Nugteren, IWOCL 2018), where kernels are native.
 *
 * Owns the calls, which run in a list like launches, CLBlast's parameters for a device and its programs.
 * Promises the tolerance that keel/kernels.h states. Leaves to our own kernel: checksums, 16-bit operands
 * (its half products add in 16 bits, and it has no bfloat16), groups, matrices of more elements than its
 * kernels count (int), and what element-wise kernels cannot end where it lies: a bias, residual or GELU on
 * rows that are not next to each other. */
#define CL_TARGET_OPENCL_VERSION 120
#include "clblast.h"
#include "kernels_internal.h"

#include <clblast_c.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <stdatomic.h>
#include <string.h>

enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ADD_C = 4 };
enum {
    CALL_A,
    CALL_B,
    CALL_C,
    CALL_M,
    CALL_N,
    CALL_K,
    CALL_BATCH,
    CALL_LDA,
    CALL_LDB,
    CALL_LDC,
    CALL_FLAGS,
    CALL_STRIDE_A,
    CALL_STRIDE_B,
    CALL_STRIDE_C,
    CALL_ARGS
};
#define WARM_NS (600 * KEEL_NS_PER_S)
enum { WARM_SIDE = 16, WARM_BYTES = 2 * WARM_SIDE * WARM_SIDE * sizeof(float) /* a batch of two */ };
enum { TILE_MAX = 128 /* of C and of k, in all of its tunings */ };

struct keel_clblast {
    struct keel_kernel *product;
};

/* CLBlast keeps programs of all devices in one place: emptied by the last who leaves. */
static atomic_uint users;

static uint32_t u32(const void *const *arguments, int index)
{
    return *(const uint32_t *)arguments[index];
}
static uint64_t u64(const void *const *arguments, int index)
{
    return *(const uint64_t *)arguments[index];
}

static int enqueue(void *context, void *queue, const void *const *arguments)
{
    (void)context;
    cl_command_queue native = queue;
    cl_mem a = (cl_mem)arguments[CALL_A], b = (cl_mem)arguments[CALL_B], c = (cl_mem)arguments[CALL_C];
    const uint32_t m = u32(arguments, CALL_M), n = u32(arguments, CALL_N), k = u32(arguments, CALL_K);
    const uint32_t lda = u32(arguments, CALL_LDA), ldb = u32(arguments, CALL_LDB);
    const uint32_t ldc = u32(arguments, CALL_LDC), flags = u32(arguments, CALL_FLAGS);
    const CLBlastTranspose ta = flags & TRANSPOSE_A ? CLBlastTransposeYes : CLBlastTransposeNo;
    const CLBlastTranspose tb = flags & TRANSPOSE_B ? CLBlastTransposeYes : CLBlastTransposeNo;
    const float beta = flags & ADD_C ? 1.0F : 0.0F;
    if (u32(arguments, CALL_BATCH) == 1)
        return (int)CLBlastSgemm(CLBlastLayoutRowMajor, ta, tb, m, n, k, 1.0F, a, 0, lda, b, 0, ldb, beta, c,
                                 0, ldc, &native, NULL);
    return (int)CLBlastSgemmStridedBatched(
        CLBlastLayoutRowMajor, ta, tb, m, n, k, 1.0F, a, 0, lda, keel_size(u64(arguments, CALL_STRIDE_A)), b,
        0, ldb, keel_size(u64(arguments, CALL_STRIDE_B)), beta, c, 0, ldc,
        keel_size(u64(arguments, CALL_STRIDE_C)), u32(arguments, CALL_BATCH), &native, NULL);
}

/* The product alone, into `c`. */
static enum keel_status append_product(const struct keel_clblast *clblast, const struct keel_gemm *op,
                                       struct keel_buffer *c, bool add, struct keel_launch_list *list)
{
    const struct keel_arg args[CALL_ARGS] = {
        [CALL_A] = keel_arg_buffer(op->a),
        [CALL_B] = keel_arg_buffer(op->b),
        [CALL_C] = keel_arg_buffer(c),
        [CALL_M] = keel_arg_u32(op->m),
        [CALL_N] = keel_arg_u32(op->n),
        [CALL_K] = keel_arg_u32(op->k),
        [CALL_BATCH] = keel_arg_u32(op->batch),
        [CALL_LDA] = keel_arg_u32(op->lda),
        [CALL_LDB] = keel_arg_u32(op->ldb),
        [CALL_LDC] = keel_arg_u32(op->ldc),
        [CALL_FLAGS] = keel_arg_u32((op->transpose_a ? TRANSPOSE_A : 0U) |
                                    (op->transpose_b ? TRANSPOSE_B : 0U) | (add ? ADD_C : 0U)),
        [CALL_STRIDE_A] = keel_arg_u64(op->stride_a),
        [CALL_STRIDE_B] = keel_arg_u64(op->stride_b),
        [CALL_STRIDE_C] = keel_arg_u64(op->stride_c),
    };
    const struct keel_range one = {.global = {1, 1, 1}, .local = {1, 1, 1}};
    return keel_launch_list_append(list, clblast->product, &one, args, CALL_ARGS);
}

/* Rows are made whole tiles in a copy where they are none. */
static uint64_t whole_tiles(uint32_t count)
{
    return ((uint64_t)count + TILE_MAX - 1) / TILE_MAX * TILE_MAX;
}

/* Whether an int counts all elements from the first to the last of a batch of matrices, and those of copies.
 */
static bool countable(uint32_t batch, uint32_t rows, uint32_t columns, uint32_t leading, uint64_t stride)
{
    const uint64_t one = (uint64_t)(rows - 1) * leading + columns;
    const uint64_t copy = whole_tiles(rows) * (whole_tiles(columns) / TILE_MAX); /* in rows of a tile */
    if (one > INT32_MAX || copy > INT32_MAX / TILE_MAX / batch)
        return false;
    return batch == 1 || stride <= (INT32_MAX - one) / (batch - 1);
}

static bool all_countable(const struct keel_gemm *op)
{
    return countable(op->batch, op->transpose_a ? op->k : op->m, op->transpose_a ? op->m : op->k, op->lda,
                     op->stride_a) &&
           countable(op->batch, op->transpose_b ? op->n : op->k, op->transpose_b ? op->k : op->n, op->ldb,
                     op->stride_b) &&
           countable(op->batch, op->m, op->n, op->ldc, op->stride_c);
}

bool keel_clblast_takes(const struct keel_clblast *clblast, const struct keel_gemm *op)
{
    const bool floats = op->a_type == KEEL_F32 && op->b_type == KEEL_F32 && op->c_type == KEEL_F32;
    const bool ends = op->bias != NULL || op->residual != NULL || op->pre != NULL;
    const bool dense = op->ldc == op->n && (op->batch == 1 || op->stride_c == (uint64_t)op->m * op->n);
    if (clblast == NULL || !floats || op->checksums != NULL || op->k_slices.count > 0 ||
        ((ends || op->fresh) && !dense) || !all_countable(op))
        return false;
    /* What waits for GELU lies in `pre`, and C's old values do not; a residual takes their place. */
    return !(op->pre != NULL && (op->accumulate || op->chain)) && !(op->residual != NULL && op->chain);
}

enum keel_status keel_clblast_append(const struct keel_clblast *clblast, struct keel_kernels *kernels,
                                     const struct keel_gemm *op, struct keel_launch_list *list)
{
    const uint64_t rows = (uint64_t)op->m * op->batch, count = rows * op->n;
    struct keel_buffer *sum = op->pre != NULL ? op->pre : op->c;
    if (op->fresh) /* its beta of 0 would leave a sum of -0 as it is */
        KEEL_TRY(keel_op_fill(kernels, &(struct keel_fill){.count = count, .y = op->c}, list));
    /* Before the product, since C may be the residual by another slice. */
    if (op->residual != NULL && op->residual != op->c)
        KEEL_TRY(
            keel_op_copy(kernels, &(struct keel_copy){.count = count, .x = op->residual, .y = op->c}, list));
    const bool add = op->accumulate || op->chain || op->residual != NULL;
    KEEL_TRY(append_product(clblast, op, sum, add, list));
    if (op->bias != NULL)
        KEEL_TRY(keel_op_bias(
            kernels, &(struct keel_bias){.rows = rows, .n = op->n, .x = sum, .bias = op->bias, .y = sum},
            list));
    if (op->pre != NULL)
        KEEL_TRY(keel_op_activation(
            kernels, &(struct keel_activation){.count = count, .kind = KEEL_GELU, .x = sum, .y = op->c},
            list));
    return KEEL_OK;
}

/* ---- setting up ---- */

static enum keel_status apply(void *native, const struct keel_provider_parameters *given)
{
    const CLBlastStatusCode code =
        CLBlastOverrideParameters(native, given->kernel, CLBlastPrecisionSingle, given->count,
                                  (const char **)given->names, given->values);
    if (code == CLBlastSuccess)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "CLBlast's kernel %s: its parameters were refused (status %d): %s",
                     given->kernel, (int)code,
                     code == CLBlastMissingOverrideParameter ? "name all of them, and no others"
                     : code == CLBlastDatabaseError || code == CLBlastInvalidOverrideKernel
                         ? "it has no such kernel"
                         : "see CLBlast's list of statuses");
}

/* A product of each of its two routines is computed, one and a batch: all kernels of a routine are one
 * program, which lies in its cache after that. */
static enum keel_status warm_with(const struct keel_clblast *clblast, struct keel_queue *queue,
                                  struct keel_buffer *const matrices[3], struct keel_launch_list *list)
{
    for (int i = 0; i < 3; i++)
        KEEL_TRY(keel_queue_fill(queue, matrices[i], 0, WARM_BYTES, 0, NULL, NULL));
    for (uint32_t batch = 1; batch <= 2; batch++) {
        struct keel_gemm op = {.m = WARM_SIDE, .n = WARM_SIDE, .k = WARM_SIDE, .batch = batch};
        op.lda = op.ldb = op.ldc = WARM_SIDE;
        op.stride_a = op.stride_b = op.stride_c = (uint64_t)WARM_SIDE * WARM_SIDE;
        op.a = matrices[0];
        op.b = matrices[1];
        KEEL_TRY(append_product(clblast, &op, matrices[2], false, list));
    }
    KEEL_TRY(keel_launch_list_run(list, queue));
    return keel_queue_finish(queue, keel_deadline_after_ns(WARM_NS));
}

static enum keel_status warm(const struct keel_clblast *clblast, struct keel_device *device,
                             struct keel_queue *queue)
{
    struct keel_buffer *matrices[3] = {NULL};
    struct keel_launch_list list = {0};
    enum keel_status status = KEEL_OK;
    for (int i = 0; i < 3 && status == KEEL_OK; i++)
        status = keel_buffer_create(device, WARM_BYTES, &matrices[i]);
    if (status == KEEL_OK)
        status = warm_with(clblast, queue, matrices, &list);
    keel_launch_list_fini(&list);
    for (int i = 0; i < 3; i++)
        if (matrices[i] != NULL)
            keel_buffer_destroy(matrices[i]);
    return status;
}

static enum keel_status set_up(const struct keel_clblast *clblast, struct keel_device *device, void *native,
                               const struct keel_kernels_options *options)
{
    struct keel_queue *queue = NULL;
    for (uint32_t i = 0; i < options->provider_parameter_count; i++)
        KEEL_TRY(apply(native, &options->provider_parameters[i]));
    KEEL_TRY(keel_queue_create(device, &queue));
    enum keel_status status = warm(clblast, device, queue);
    keel_queue_destroy(queue);
    return status;
}

/* What was given is at fault: the words name its file, and no move that a provider without it would have. */
static enum keel_status blame(const struct keel_kernels_options *options, enum keel_status status)
{
    const char *file = options->provider_file != NULL ? options->provider_file : "given parameters";
    const char *why = keel_detail();
    if (status == KEEL_INVALID)
        return keel_fail(status, "%.200s: %s", file, why);
    if (status != KEEL_UNSUPPORTED)
        return status;
    return keel_fail(status,
                     "%.200s: CLBlast cannot compute with these parameters (%.*s); let its tuners find them "
                     "anew on this device, or remove them",
                     file, (int)strcspn(why, ";"), why);
}

enum keel_status keel_clblast_create(struct keel_device *device, const struct keel_kernels_options *options,
                                     struct keel_clblast **out)
{
    const struct keel_call call = {.name = "clblast_gemm", .arg_count = CALL_ARGS, .enqueue = enqueue};
    void *native = NULL;
    struct keel_clblast *clblast = NULL;
    *out = NULL;
    if (options->only_artifacts || (keel_device_info(device)->code_forms & KEEL_CODE_SOURCE) == 0 ||
        keel_device_native(device, &native) != KEEL_OK)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, sizeof *clblast, &clblast));
    atomic_fetch_add(&users, 1);
    enum keel_status status = keel_kernel_create_call(device, &call, &clblast->product);
    if (status == KEEL_OK)
        status = set_up(clblast, device, native, options);
    if (status == KEEL_OK) {
        *out = clblast;
        return KEEL_OK;
    }
    keel_clblast_destroy(clblast);
    if (options->provider_parameter_count > 0)
        return blame(options, status);
    if (status != KEEL_UNSUPPORTED)
        return status;
    keel_log(KEEL_LOG_WARN, "%s; CLBlast cannot compute there, our own kernels do", keel_detail());
    return KEEL_OK;
}

void keel_clblast_destroy(struct keel_clblast *clblast)
{
    if (clblast == NULL)
        return;
    keel_kernel_destroy(clblast->product);
    keel_free(clblast);
    if (atomic_fetch_sub(&users, 1) == 1)
        (void)CLBlastClearCache();
}
