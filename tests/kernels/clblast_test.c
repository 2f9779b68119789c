/* clblast_test.c - products by CLBlast: within the stated bound of the exact sums, in the order of their
 * list, where kernels are native and say so, and nowhere else. On PoCL's threads. */
#include "clblast.h"
#include "harness.h"
#include "kernels_internal.h"
#include <keel/clock.h>
#include <keel/image_ops.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_NS (120 * KEEL_NS_PER_S)
enum { ACCUMULATE = 1, CHAIN = 2, BIAS = 4, PRE = 8, RESIDUAL = 16, IN_PLACE = 32 };

static struct keel_device *device;
static struct keel_kernels *native;
static struct keel_queue *queue;

static enum keel_status make(const char *selector, const struct keel_kernels_options *options,
                             struct keel_kernels **out)
{
    if (device == NULL)
        ck_ok(keel_device_open(selector, NULL, &device));
    return keel_kernels_create_with(device, options, out);
}

static const struct keel_setting by_clblast = {"gemm.provider", 1};

static void open_all(void)
{
    const struct keel_kernels_options options = {
        .numerics = KEEL_NATIVE, .settings = &by_clblast, .setting_count = 1};
    ck_ok(make("pocl", &options, &native));
    ck_ok(keel_queue_create(device, &queue));
}

static void close_all(void)
{
    keel_queue_destroy(queue);
    keel_kernels_destroy(native);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_device_close(device);
    queue = NULL, native = NULL, device = NULL;
}

static float number(uint32_t series, uint64_t i)
{
    uint64_t x = (i + 1) * UINT64_C(0x9e3779b97f4a7c15) + series * UINT64_C(0xd1b54a32d192ed03);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return (float)(int32_t)(uint32_t)(x ^ x >> 32) * 0x1p-31F;
}

/* A matrix on both sides. */
struct matrix {
    float *host;
    uint64_t count;
    struct keel_buffer *buffer;
};

static struct matrix matrix(uint32_t series, uint64_t count)
{
    struct matrix one = {.host = malloc(count * sizeof(float)), .count = count};
    ck_assert_ptr_nonnull(one.host);
    for (uint64_t i = 0; i < count; i++)
        one.host[i] = number(series, i);
    ck_ok(keel_buffer_create(device, count * sizeof(float), &one.buffer));
    ck_ok(keel_queue_write(queue, one.buffer, 0, one.host, count * sizeof(float), NULL, NULL));
    return one;
}

static void finish(void)
{
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
}

static float *contents(const struct matrix *one)
{
    float *out = malloc(one->count * sizeof(float));
    ck_assert_ptr_nonnull(out);
    ck_ok(keel_queue_read(queue, one->buffer, 0, out, one->count * sizeof(float), NULL, NULL));
    finish();
    return out;
}

static void release(struct matrix *one)
{
    free(one->host);
    keel_buffer_destroy(one->buffer);
}

struct product {
    struct keel_gemm op;
    struct matrix a, b, c, bias, pre, residual;
};

static struct product product(uint32_t m, uint32_t n, uint32_t k, uint32_t batch, int layout, int form,
                              uint32_t pad)
{
    struct product p = {.op = {.m = m, .n = n, .k = k, .batch = batch}};
    struct keel_gemm *op = &p.op;
    op->transpose_a = (layout & 1) != 0;
    op->transpose_b = (layout & 2) != 0;
    op->accumulate = (form & ACCUMULATE) != 0;
    op->chain = (form & CHAIN) != 0;
    op->lda = (op->transpose_a ? m : k) + pad;
    op->ldb = (op->transpose_b ? k : n) + pad;
    op->ldc = n + pad;
    op->stride_a = (uint64_t)op->lda * (op->transpose_a ? k : m);
    op->stride_b = (uint64_t)op->ldb * (op->transpose_b ? n : k);
    op->stride_c = (uint64_t)op->ldc * m;
    p.a = matrix(1, op->stride_a * batch);
    p.b = matrix(2, op->stride_b * batch);
    p.c = matrix(3, op->stride_c * batch);
    p.bias = matrix(4, n);
    p.pre = matrix(5, op->stride_c * batch);
    p.residual = matrix(6, op->stride_c * batch);
    op->a = p.a.buffer;
    op->b = p.b.buffer;
    op->c = p.c.buffer;
    op->bias = form & BIAS ? p.bias.buffer : NULL;
    op->pre = form & PRE ? p.pre.buffer : NULL;
    op->residual = form & RESIDUAL ? form & IN_PLACE ? p.c.buffer : p.residual.buffer : NULL;
    return p;
}

static void product_fini(struct product *p)
{
    finish(); /* a write reads what is freed here */
    release(&p->a);
    release(&p->b);
    release(&p->c);
    release(&p->bias);
    release(&p->pre);
    release(&p->residual);
}

/* What is added to the product at a place of C. */
static double added(const struct product *p, uint64_t at, uint64_t column, double *magnitude)
{
    double sum = 0;
    const double bias = p->op.bias != NULL ? (double)p->bias.host[column] : 0;
    const double old = p->op.accumulate || p->op.chain ? (double)p->c.host[at] : 0;
    double residual = 0;
    if (p->op.residual != NULL)
        residual = p->op.residual == p->op.c ? (double)p->c.host[at] : (double)p->residual.host[at];
    sum += bias + old + residual;
    *magnitude += fabs(bias) + fabs(old) + fabs(residual);
    return sum;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void check_element(const struct product *p, uint64_t batch, uint64_t i, uint64_t j, const float *c,
                          const float *pre)
{
    const struct keel_gemm *op = &p->op;
    const uint64_t at = batch * op->stride_c + i * op->ldc + j;
    const float *a = p->a.host + batch * op->stride_a, *b = p->b.host + batch * op->stride_b;
    double magnitude = 0, exact = added(p, at, j, &magnitude);
    for (uint64_t q = 0; q < op->k; q++) {
        const double x = (double)a[op->transpose_a ? q * op->lda + i : i * op->lda + q];
        const double y = (double)b[op->transpose_b ? j * op->ldb + q : q * op->ldb + j];
        exact += x * y;
        magnitude += fabs(x * y);
    }
    const double e = (op->k + 4) * 0x1p-24, s = (double)(op->pre != NULL ? pre : c)[at];
    ck_assert_msg(fabs(s - exact) <= e / (1 - e) * magnitude, "[%u, %u] of %u x %u x %u: %a, not %a",
                  (unsigned)i, (unsigned)j, op->m, op->n, op->k, s, exact);
    if (op->pre != NULL)
        ck_assert_double_le(fabs((double)c[at] - gelu(s)), 0x1p-21 * fabs(s));
}

/* All elements of a small product, some of a large one; and what lies between the rows of C is as it was. */
static void check(const struct product *p)
{
    float *c = contents(&p->c), *pre = contents(&p->pre);
    const struct keel_gemm *op = &p->op;
    const uint64_t count = (uint64_t)op->m * op->n * op->batch;
    const uint64_t step = count * op->k > 400000 ? 193 : 1;
    for (uint64_t e = 0; e < count; e += step)
        check_element(p, e / op->n / op->m, e / op->n % op->m, e % op->n, c, pre);
    for (uint64_t at = 0; at < p->c.count; at++)
        if (at % op->ldc >= op->n)
            ck_assert(c[at] == p->c.host[at]);
    free(c);
    free(pre);
}

static const char *first_name(const struct keel_launch_list *list)
{
    return keel_kernel_name(list->items[0].kernel);
}

static bool has_call(const struct keel_launch_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(keel_kernel_name(list->items[i].kernel), "clblast_gemm") == 0)
            return true;
    return false;
}

static void run_list_and_check(struct keel_launch_list *list, const struct product *p, bool sealed)
{
    ck_assert(has_call(list));
    if (sealed)
        ck_ok(keel_launch_list_seal(list, native));
    ck_ok(keel_launch_list_run(list, queue));
    finish();
    check(p);
    keel_launch_list_fini(list);
}

static void run_and_check(struct product *p, bool sealed)
{
    struct keel_launch_list list = {0};
    ck_ok(keel_op_gemm(native, &p->op, &list));
    run_list_and_check(&list, p, sealed);
}

static const uint32_t shapes[][4] = {{1, 1, 1, 1},       {3, 2, 1, 5},      {13, 47, 65, 1},
                                     {67, 97, 101, 2},   {2, 331, 31, 1},   {257, 53, 513, 1},
                                     {300, 144, 300, 1}, {64, 128, 1500, 1}};

START_TEST(every_shape_and_end_is_within_the_stated_bound)
{
    static const int forms[] = {
        0, ACCUMULATE, CHAIN, BIAS, BIAS | PRE, PRE, BIAS | RESIDUAL, RESIDUAL | IN_PLACE, BIAS | ACCUMULATE};
    open_all();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int layout = 0; layout < 4; layout++)
            for (size_t f = layout == 0 ? 0 : s % 3; f < sizeof forms / sizeof *forms;
                 f += layout == 0 ? 1 : 3) {
                struct product p =
                    product(shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], layout, forms[f], 0);
                run_and_check(&p, f % 2 != 0);
                product_fini(&p);
            }
    for (int layout = 0; layout < 4; layout++)
        for (int form = 0; form <= ACCUMULATE; form++) { /* rows with gaps, which stay as they are */
            struct product p = product(65, 50, 70, 2, layout, form, 3);
            run_and_check(&p, true);
            product_fini(&p);
        }
    close_all();
}
END_TEST

/* Slices begin where they begin. */
static void multiply_slice(void)
{
    struct product p = product(16, 32, 48, 1, 0, 0, 0);
    const uint64_t align = keel_device_info(device)->base_align_bytes, bytes = p.a.count * sizeof(float);
    struct keel_buffer *room = NULL, *slice = NULL;
    struct keel_launch_list list = {0};
    ck_ok(keel_buffer_create(device, align + bytes, &room));
    ck_ok(keel_buffer_slice(room, align, bytes, &slice));
    ck_ok(keel_queue_write(queue, slice, 0, p.a.host, bytes, NULL, NULL));
    p.op.a = slice;
    ck_ok(keel_op_gemm(native, &p.op, &list));
    ck_assert_str_eq(first_name(&list), "clblast_gemm");
    ck_ok(keel_launch_list_run(&list, queue));
    finish();
    check(&p);
    keel_launch_list_fini(&list);
    product_fini(&p);
    keel_buffer_destroy(slice);
    keel_buffer_destroy(room);
}

START_TEST(slices_and_replays_are_computed_where_they_stand)
{
    enum { SIDE = 40 };
    open_all();
    multiply_slice();
    struct product p = product(SIDE, SIDE, SIDE, 1, 0, ACCUMULATE, 0);
    struct keel_launch_list list = {0};
    const struct keel_fill begin = {.count = p.c.count, .value = 0.25F, .y = p.op.c};
    ck_ok(keel_op_fill(native, &begin, &list));
    ck_ok(keel_op_gemm(native, &p.op, &list));
    ck_ok(keel_op_add(
        native, &(struct keel_add){.count = p.c.count, .a = p.op.c, .b = p.op.c, .y = p.pre.buffer}, &list));
    ck_ok(keel_launch_list_seal(&list, native));
    for (uint64_t i = 0; i < p.c.count; i++)
        p.c.host[i] = 0.25F;
    for (int round = 0; round < 3; round++) {
        struct keel_event *event = NULL;
        ck_ok(keel_queue_fill(queue, p.pre.buffer, 0, p.c.count * sizeof(float), 0, NULL, &event));
        ck_ok(keel_queue_replay(queue, list.commands, &(struct keel_wait_list){.events = &event, .count = 1},
                                NULL));
        finish();
        keel_event_destroy(event);
        float *c = contents(&p.c), *twice = contents(&p.pre);
        for (uint64_t i = 0; i < p.c.count; i++)
            ck_assert(twice[i] == c[i] + c[i]);
        free(c);
        free(twice);
        p.op.pre = NULL;
        check(&p);
    }
    keel_launch_list_fini(&list);
    product_fini(&p);
    close_all();
}
END_TEST

enum { PIXELS = 2 * 5 * 7, CHANNELS = 19, OUTPUTS = 24 };
static const struct keel_conv_shape one_tap = {.batch = 2,
                                               .height = 5,
                                               .width = 7,
                                               .channels = CHANNELS,
                                               .out_channels = OUTPUTS,
                                               .kernel = {1, 1},
                                               .stride = {1, 1},
                                               .dilation = {1, 1},
                                               .groups = 1};

/* Pixels are the rows of A and C forward and in the gradient to data, and k in that to weights. */
START_TEST(convolutions_of_one_tap_are_its_products)
{
    struct keel_launch_list list = {0};
    open_all();
    struct product p = product(PIXELS, OUTPUTS, CHANNELS, 1, 0, BIAS, 0);
    const struct keel_conv2d forward = {
        .shape = one_tap, .x = p.op.a, .weight = p.op.b, .bias = p.op.bias, .y = p.op.c};
    ck_ok(keel_op_conv2d(native, &forward, &list));
    run_list_and_check(&list, &p, true);
    product_fini(&p);
    p = product(PIXELS, CHANNELS, OUTPUTS, 1, 2, 0, 0);
    const struct keel_conv2d_grad_data data = {
        .shape = one_tap, .dy = p.op.a, .weight = p.op.b, .dx = p.op.c};
    ck_ok(keel_op_conv2d_grad_data(native, &data, &list));
    run_list_and_check(&list, &p, true);
    product_fini(&p);
    p = product(CHANNELS, OUTPUTS, PIXELS, 1, 1, ACCUMULATE, 0);
    const struct keel_conv2d_grad_weight weight = {
        .shape = one_tap, .x = p.op.a, .dy = p.op.b, .dweight = p.op.c};
    ck_ok(keel_op_conv2d_grad_weight(native, &weight, &list));
    run_list_and_check(&list, &p, true);
    product_fini(&p);
    close_all();
}
END_TEST

START_TEST(other_convolutions_stay_our_own)
{
    open_all();
    struct product p = product(PIXELS, OUTPUTS, 9 * CHANNELS, 1, 0, 0, 0);
    struct keel_conv2d op = {.shape = one_tap, .x = p.op.a, .weight = p.op.b, .y = p.op.c};
    for (int form = 0; form < 3; form++) {
        struct keel_launch_list list = {0};
        op.shape = one_tap;
        if (form == 0)
            op.shape.stride[1] = 2;
        else if (form == 1)
            op.shape.kernel[0] = op.shape.kernel[1] = 3, op.shape.pad[0] = op.shape.pad[1] = 1;
        else
            op.shape.channels = op.shape.groups = 8;
        ck_ok(keel_op_conv2d(native, &op, &list));
        ck_assert_uint_gt(list.count, 0);
        ck_assert(!has_call(&list));
        keel_launch_list_fini(&list);
    }
    product_fini(&p);
    close_all();
}
END_TEST

static void provided_by(const struct keel_kernels *kernels, const char *begin)
{
    char provider[KEEL_PROVIDER_TEXT_BYTES];
    keel_kernels_provider(kernels, provider);
    ck_assert_msg(strncmp(provider, begin, strlen(begin)) == 0, "%s", provider);
}

static void stays_ours(struct keel_kernels *kernels, struct product *p)
{
    struct keel_launch_list list = {0};
    ck_ok(keel_op_gemm(kernels, &p->op, &list));
    ck_assert(!has_call(&list));
    ck_assert(strncmp(first_name(&list), "keel_gemm", strlen("keel_gemm")) == 0); /* or keel_gemm_sliced */
    keel_launch_list_fini(&list);
}

START_TEST(checksums_halves_and_ends_with_gaps_stay_our_own)
{
    open_all();
    struct product p = product(16, 16, 16, 1, 0, 0, 0);
    p.op.checksums = p.pre.buffer;
    stays_ours(native, &p);
    p.op.checksums = NULL;
    p.op.a_type = KEEL_BF16;
    stays_ours(native, &p);
    p.op.a_type = KEEL_F32;
    p.op.pre = p.pre.buffer;
    p.op.chain = true;
    stays_ours(native, &p);
    product_fini(&p);
    static const int ends[] = {BIAS, RESIDUAL, PRE};
    for (int e = 0; e < 3; e++) {
        p = product(16, 16, 16, 1, 0, ends[e], 1);
        stays_ours(native, &p);
        product_fini(&p);
    }
    close_all();
}
END_TEST

/* Its kernels count elements with an int: from 2^31 on, of A, B, C or a copy in whole tiles, ours do. */
START_TEST(what_an_int_does_not_count_stays_our_own)
{
    static const struct {
        uint32_t m, n, k, batch, pad;
        uint64_t gap;
        bool takes;
    } rows[] = {{46340, 16, 46336, 1, 0, 0, false}, /* A: 46,464 x 46,336 in tiles */
                {46208, 16, 46336, 1, 0, 0, true},
                {16, 46208, 46336, 1, 0, 0, true},
                {16, 46464, 46336, 1, 0, 0, false}, /* B */
                {46464, 46336, 16, 1, 0, 0, false}, /* C */
                {2, 2, 2, 1, UINT32_C(0x7ffffff0), 0, true},
                {2, 2, 2, 1, UINT32_C(0x7fffffff), 0, false}, /* the second row */
                {16, 16, 16, 2, 0, UINT32_C(0x7ffffd00), true},
                {16, 16, 16, 2, 0, UINT32_C(0x80000000), false},
                {16, 16, 16, 2, 0, UINT64_MAX - 256, false},
                {16, 16, 16, 131072, 0, 0, false}, /* copies of 128 x 128 */
                {16, 16, 16, 131071, 0, 0, true},
                {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, 0, false}};
    open_all();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int layout = 0; layout < 4; layout++) {
            struct keel_gemm op = {.m = rows[i].m, .n = rows[i].n, .k = rows[i].k, .batch = rows[i].batch};
            op.transpose_a = (layout & 1) != 0;
            op.transpose_b = (layout & 2) != 0;
            op.lda = (op.transpose_a ? op.m : op.k) + rows[i].pad;
            op.ldb = (op.transpose_b ? op.k : op.n) + rows[i].pad;
            op.ldc = op.n + rows[i].pad;
            op.stride_a = (uint64_t)op.m * op.k + rows[i].gap;
            op.stride_b = (uint64_t)op.n * op.k + rows[i].gap;
            op.stride_c = (uint64_t)op.m * op.n + rows[i].gap;
            ck_assert_msg(keel_clblast_takes(keel_kernels_clblast(native), &op) == rows[i].takes,
                          "row %zu, layout %d", i, layout);
        }
    close_all();
}
END_TEST

/* Canonical kernels never; native ones of a CPU only when told; where nothing may be compiled never; the
 * host has no OpenCL. */
START_TEST(it_is_used_where_kernels_are_native_and_say_so)
{
    struct keel_kernels *other = NULL;
    open_all();
    struct product p = product(16, 16, 16, 1, 0, 0, 0);
    ck_ok(make("", &(struct keel_kernels_options){.settings = &by_clblast, .setting_count = 1}, &other));
    stays_ours(other, &p);
    keel_kernels_destroy(other);
    ck_ok(make("", &(struct keel_kernels_options){.numerics = KEEL_NATIVE}, &other));
    stays_ours(other, &p);
    keel_kernels_destroy(other);
    struct keel_kernels_options shipped = {
        .numerics = KEEL_NATIVE, .settings = &by_clblast, .setting_count = 1};
    shipped.only_artifacts = true;
    ck_ok(make("", &shipped, &other));
    stays_ours(other, &p);
    provided_by(other, "Keel");
    provided_by(native, "CLBlast with its own");
    keel_kernels_destroy(other);
    product_fini(&p);
    close_all();
    const struct keel_kernels_options options = {
        .numerics = KEEL_NATIVE, .settings = &by_clblast, .setting_count = 1};
    ck_ok(make("host", &options, &native));
    ck_ok(keel_queue_create(device, &queue));
    p = product(16, 16, 16, 1, 0, 0, 0);
    stays_ours(native, &p);
    product_fini(&p);
    close_all();
}
END_TEST

static const char *const transpose_names[] = {"TRA_DIM", "TRA_PAD", "TRA_SHUFFLE", "TRA_WPT"};
static const size_t transpose_values[] = {4, 1, 0, 1};

START_TEST(parameters_are_taken_and_wrong_ones_refused_by_name)
{
    struct keel_provider_parameters given = {"Transpose", transpose_names, transpose_values, 4};
    const struct keel_kernels_options options = {.numerics = KEEL_NATIVE,
                                                 .settings = &by_clblast,
                                                 .setting_count = 1,
                                                 .provider_parameters = &given,
                                                 .provider_parameter_count = 1};
    ck_ok(make("pocl", &options, &native));
    ck_ok(keel_queue_create(device, &queue));
    struct product p = product(300, 144, 300, 1, 3, 0, 0);
    run_and_check(&p, false);
    product_fini(&p);
    provided_by(native, "CLBlast with parameters ");
    struct keel_kernels *none = NULL;
    given.count = 2;
    ck_status(make("", &options, &none), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "kernel Transpose"));
    given = (struct keel_provider_parameters){"Xgemn", transpose_names, transpose_values, 4};
    ck_status(make("", &options, &none), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "given parameters: CLBlast's kernel Xgemn"));
    close_all();
}
END_TEST

/* What does not build is a fault of given parameters, which stay CLBlast's in this process: without given
 * ones it cannot compute here then, and our own kernels do. */
START_TEST(where_its_programs_do_not_build_our_own_kernels_compute)
{
    static const char *const names[] = {"KWID", "MDIMAD", "MDIMCD", "NDIMBD", "NDIMCD",
                                        "PADA", "PADB",   "VWMD",   "VWND",   "WGD"};
    static const size_t values[] = {1, 8, 8, 8, 8, 1, 1, 3, 1, 8}; /* there are no vectors of 3 */
    const struct keel_provider_parameters given = {"XgemmDirect", names, values, 10};
    struct keel_kernels_options options = {.numerics = KEEL_NATIVE,
                                           .settings = &by_clblast,
                                           .setting_count = 1,
                                           .provider_parameters = &given,
                                           .provider_parameter_count = 1,
                                           .provider_file = "/b/clblast.conf"};
    ck_status(make("pocl", &options, &native), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "clblast_gemm"));
    ck_assert_int_eq(strncmp(keel_detail(), "/b/clblast.conf: ", 17), 0);
    ck_assert_ptr_null(strstr(keel_detail(), "another device"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "; let its tuners find them anew"));
    options.provider_parameter_count = 0;
    ck_ok(make("", &options, &native));
    ck_ok(keel_queue_create(device, &queue));
    struct product p = product(16, 16, 16, 1, 0, 0, 0);
    stays_ours(native, &p);
    product_fini(&p);
    close_all();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, convolutions_of_one_tap_are_its_products);
    tcase_add_test(tc, other_convolutions_stay_our_own);
    tcase_add_test(tc, where_its_programs_do_not_build_our_own_kernels_compute);
    tcase_add_test(tc, every_shape_and_end_is_within_the_stated_bound);
    tcase_add_test(tc, slices_and_replays_are_computed_where_they_stand);
    tcase_add_test(tc, checksums_halves_and_ends_with_gaps_stay_our_own);
    tcase_add_test(tc, what_an_int_does_not_count_stays_our_own);
    tcase_add_test(tc, it_is_used_where_kernels_are_native_and_say_so);
    tcase_add_test(tc, parameters_are_taken_and_wrong_ones_refused_by_name);
}

KEEL_TEST_MAIN("clblast", cases, 300)
