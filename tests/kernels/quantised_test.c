/* quantised_test.c - products with weights in few bits: the bits of the product of floats that they stand
 * for, on every device, with one work-item to sixteen columns and with one to each; random descriptors of
 * them against double; descriptors that are wrong. KEEL_QUANTISED_TRIALS=n draws n descriptors (make exact8:
 * 2,000). */
#include "device_rig.h"
#include "kernels_internal.h"

#include <math.h>
#include <stdlib.h>

enum { TRIALS = 40 };

/* Rows of one block and of several, columns and k with and without a rest of a word, a group and a tile. */
static const struct keel_gemm_quantised shapes[] = {
    {.m = 1, .n = 1, .k = 1, .bits = 8, .group = 0},     {.m = 1, .n = 150, .k = 203, .bits = 4, .group = 32},
    {.m = 2, .n = 49, .k = 65, .bits = 8, .group = 64},  {.m = 3, .n = 64, .k = 40, .bits = 4, .group = 0},
    {.m = 5, .n = 33, .k = 131, .bits = 8, .group = 32}, {.m = 16, .n = 18, .k = 96, .bits = 4, .group = 8},
    {.m = 37, .n = 31, .k = 77, .bits = 4, .group = 64}, {.m = 33, .n = 16, .k = 12, .bits = 8, .group = 4},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct weights {
    int8_t *integers;
    float *scales, *floats; /* [n, groups], [n, k] */
    uint32_t *words;
    uint64_t word_count;
};

/* All integers that there are, the least too; scales of all sizes, 0 among them. Another `series`, others. */
static struct weights make_weights(const struct keel_gemm_quantised *op, uint32_t series)
{
    const uint32_t group = op->group == 0 ? op->k : op->group, groups = (op->k + group - 1) / group;
    struct weights of;
    ck_ok(keel_quantised_words(op, &of.word_count));
    of.integers = malloc((size_t)op->n * op->k);
    of.scales = rig_numbers(series, (uint64_t)op->n * groups);
    of.floats = rig_numbers(0, (uint64_t)op->n * op->k);
    of.words = malloc(keel_size(of.word_count * sizeof *of.words));
    ck_assert(of.integers != NULL && of.words != NULL);
    for (uint32_t i = 0; i < op->n * groups; i++)
        of.scales[i] = i % 5 == 4 ? 0.0F : ldexpf(fabsf(of.scales[i]), (int)(i % 40) - 20);
    for (uint32_t j = 0; j < op->n; j++)
        for (uint32_t p = 0; p < op->k; p++) {
            const uint32_t e = j * op->k + p, half = 1U << (op->bits - 1);
            const int32_t q = (int32_t)((e + series) * 2654435761U >> (32 - op->bits)) - (int32_t)half;
            of.integers[e] = (int8_t)q;
            of.floats[e] = (float)q * of.scales[j * groups + p / group];
        }
    keel_quantised_pack(op, of.integers, of.scales, of.words);
    return of;
}

static void free_weights(struct weights *of)
{
    free(of->integers);
    free(of->scales);
    free(of->floats);
    free(of->words);
}

/* By keel_op_gemm, of the floats. */
static void multiply_floats(struct rig_device *on, const struct keel_gemm_quantised *shape,
                            const struct weights *of, const float *a, const float *bias, float *out)
{
    struct keel_launch_list list = {0};
    struct keel_gemm op = {.m = shape->m,
                           .n = shape->n,
                           .k = shape->k,
                           .batch = 1,
                           .transpose_b = true,
                           .lda = shape->k,
                           .ldb = shape->k,
                           .ldc = shape->n};
    op.a = rig_buffer(on, a, (uint64_t)op.m * op.k * sizeof *a);
    op.b = rig_buffer(on, of->floats, (uint64_t)op.n * op.k * sizeof *a);
    op.c = rig_buffer(on, NULL, (uint64_t)op.m * op.n * sizeof *a);
    op.bias = bias != NULL ? rig_buffer(on, bias, op.n * sizeof *a) : NULL;
    ck_ok(keel_op_gemm(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.c, out);
    rig_clear(on);
}

static void multiply(struct rig_device *on, struct keel_kernels *kernels,
                     const struct keel_gemm_quantised *shape, const struct weights *of, const float *a,
                     const float *bias, float *out)
{
    struct keel_launch_list list = {0};
    struct keel_gemm_quantised op = *shape;
    const uint64_t workspace = keel_gemm_quantised_workspace_bytes(&op);
    op.a = rig_buffer(on, a, (uint64_t)op.m * op.k * sizeof *a);
    op.weights = rig_buffer(on, of->words, of->word_count * sizeof *of->words);
    op.c = rig_buffer(on, NULL, (uint64_t)op.m * op.n * sizeof *a);
    op.bias = bias != NULL ? rig_buffer(on, bias, op.n * sizeof *a) : NULL;
    op.workspace = workspace > 0 ? rig_buffer(on, NULL, workspace) : NULL;
    ck_ok(keel_op_gemm_quantised(kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.c, out);
    rig_clear(on);
}

/* The module as devices with many narrow lanes have it, or none. */
static void build_other(const struct rig_device *on, struct keel_kernels *kernels, const char *options,
                        struct keel_kernel *built[2])
{
    struct keel_built_module *module = &kernels->modules[KEEL_MODULE_quantised];
    *kernels = *on->kernels;
    ck_ok(keel_program_create(on->device, module->module, options, &module->program));
    for (uint32_t i = 0; i < 2; i++)
        ck_ok(keel_kernel_create(module->program, module->module->kernels[i].name, &built[i]));
    module->kernels = built;
}

static void free_other(struct keel_kernels *kernels, struct keel_kernel *built[2])
{
    keel_kernel_destroy(built[0]);
    keel_kernel_destroy(built[1]);
    keel_program_destroy(kernels->modules[KEEL_MODULE_quantised].program);
}

/* A work-item to each column, and to each of k of rows that are turned. */
static void build_lanes(const struct rig_device *on, struct keel_kernels *lanes, struct keel_kernel *built[2])
{
    build_other(on, lanes, "-DKEEL_ROW_ITEMS=16", built);
    lanes->tuned[KEEL_TUNABLE_ROW_ITEMS] = KEEL_LANES;
    lanes->tuned[KEEL_TUNABLE_GROUP_ITEMS] = KEEL_GROUP_ITEMS_MANY;
}

START_TEST(products_have_the_bits_of_the_floats_that_integers_stand_for)
{
    struct keel_kernels lanes;
    struct keel_kernel *built[2];
    rig_open();
    build_lanes(&rig[1], &lanes, built);
    for (int n = 0; n < SHAPES; n++) {
        const struct keel_gemm_quantised *s = &shapes[n];
        const uint64_t count = (uint64_t)s->m * s->n;
        struct weights of = make_weights(s, 7);
        float *a = rig_numbers(1, (uint64_t)s->m * s->k), *bias = rig_numbers(2, s->n);
        float *wanted = rig_numbers(0, count), *out = rig_numbers(0, count);
        const float *added = n % 2 == 0 ? bias : NULL;
        multiply_floats(&rig[0], s, &of, a, added, wanted);
        for (int d = 0; d < RIG_DEVICES; d++) {
            multiply(&rig[d], rig[d].kernels, s, &of, a, added, out);
            rig_same_bits("gemm_quantised", d, out, wanted, count);
        }
        multiply(&rig[1], &lanes, s, &of, a, added, out);
        rig_same_bits("gemm_quantised of many lanes", 1, out, wanted, count);
        free_weights(&of);
        free(a);
        free(bias);
        free(wanted);
        free(out);
    }
    free_other(&lanes, built);
    rig_close();
}
END_TEST

/* ---- random descriptors ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    const struct keel_control control = {.seed_lo = 29};
    return keel_random_u32(&control, 7, draws++) % below;
}
/* 1 to `most`, the sizes of blocks, words and vectors and their neighbours often. */
static uint32_t draw_size(uint32_t most)
{
    static const uint32_t edges[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 129};
    const uint32_t size = draw(2) == 0 ? edges[draw(sizeof edges / sizeof edges[0])] : 1 + draw(most);
    return size < most ? size : most;
}
static struct keel_gemm_quantised draw_descriptor(void)
{
    const bool deep = draw(8) == 0;
    struct keel_gemm_quantised op = {.m = draw_size(deep ? 5 : 70),
                                     .n = draw_size(deep ? 20 : 160),
                                     .k = deep ? 1000 + draw(3000) : draw_size(260),
                                     .bits = draw(2) == 0 ? 4 : 8};
    const uint32_t step = 32 / op.bits;
    op.group =
        draw(4) == 0 ? 0 : step * (draw(2) == 0 ? 1 + draw(4) : 1 + draw(op.k / step + 4)); /* or > k */
    return op;
}

/* As they are, of all sizes, or most of them zero and the rest denormal. */
static float *draw_rows(uint32_t series, uint64_t count)
{
    float *a = rig_numbers(series, count);
    const uint32_t kind = draw(3);
    for (uint64_t i = 0; i < count && kind > 0; i++)
        a[i] = kind == 1     ? ldexpf(a[i], (int)(i * 7 % 41) - 20)
               : i % 3 == 0  ? copysignf(0.0F, a[i])
               : i % 19 == 1 ? ldexpf(a[i], -130)
                             : a[i];
    return a;
}

/* w' is rounded once, as make_weights has it; a chain of k fused multiply-adds then errs by (k + 4) 2^-24 of
 * the sum of magnitudes at most, and where it is denormal by half of 2^-149 each. */
static void check_against_double(const struct keel_gemm_quantised *s, const struct weights *of,
                                 const float *a, const float *bias, const float *c)
{
    for (uint32_t i = 0; i < s->m; i++)
        for (uint32_t j = 0; j < s->n; j++) {
            double sum = bias != NULL ? (double)bias[j] : 0, size = fabs(sum);
            for (uint32_t p = 0; p < s->k; p++) {
                const double term =
                    (double)a[(uint64_t)i * s->k + p] * (double)of->floats[(uint64_t)j * s->k + p];
                sum += term;
                size += fabs(term);
            }
            const double bound = (s->k + 4) * (size * 0x1p-24 + 0x1p-149);
            const float got = c[(uint64_t)i * s->n + j];
            ck_assert_msg(fabs((double)got - sum) <= bound,
                          "%u x %u x %u, %u bits, groups of %u: %a, %a in double", s->m, s->n, s->k, s->bits,
                          s->group, (double)got, sum);
        }
}

/* Where lanes are many neighbours turn what lies beside each other. */
static void check_turn(struct keel_kernels *lanes, const struct keel_gemm_quantised *of)
{
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    struct keel_gemm_quantised op = *of;
    uint64_t words;
    ck_ok(keel_quantised_words(&op, &words));
    op.a = rig_buffer(on, NULL, (uint64_t)op.m * op.k * sizeof(float));
    op.weights = rig_buffer(on, NULL, words * sizeof(uint32_t));
    op.c = rig_buffer(on, NULL, (uint64_t)op.m * op.n * sizeof(float));
    op.workspace = rig_buffer(on, NULL, keel_gemm_quantised_workspace_bytes(&op));
    ck_ok(keel_op_gemm_quantised(lanes, &op, &list));
    ck_assert_str_eq(keel_kernel_name(list.items[0].kernel), "keel_quantised_turn");
    ck_assert_uint_ge(list.items[0].range.global[0], op.k); /* a work-item for each of k: a stretch of 1 */
    ck_assert_uint_eq(list.items[0].args[list.items[0].arg_count - 1].as.u32, 1);
    keel_launch_list_fini(&list);
    rig_clear(on);
}

START_TEST(random_products_are_right_and_have_the_same_bits_everywhere)
{
    const char *asked = getenv("KEEL_QUANTISED_TRIALS");
    const uint32_t trials = asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : TRIALS;
    struct keel_kernels lanes;
    struct keel_kernel *built[2];
    rig_open();
    build_lanes(&rig[1], &lanes, built);
    for (uint32_t t = 0; t < trials; t++) {
        const struct keel_gemm_quantised s = draw_descriptor();
        const uint64_t count = (uint64_t)s.m * s.n;
        struct weights of = make_weights(&s, 100 + t);
        float *a = draw_rows(2 * t, (uint64_t)s.m * s.k), *bias = rig_numbers(2 * t + 1, s.n);
        float *host = rig_numbers(0, count), *out = rig_numbers(0, count);
        const float *added = draw(2) == 0 ? bias : NULL;
        multiply(&rig[0], rig[0].kernels, &s, &of, a, added, host);
        check_against_double(&s, &of, a, added, host);
        for (int d = 1; d < RIG_DEVICES; d++) {
            multiply(&rig[d], rig[d].kernels, &s, &of, a, added, out);
            rig_same_bits("gemm_quantised", d, out, host, count);
        }
        multiply(&rig[1], &lanes, &s, &of, a, added, out);
        rig_same_bits("gemm_quantised of many lanes", 1, out, host, count);
        free_weights(&of);
        free(a);
        free(bias);
        free(host);
        free(out);
    }
    free_other(&lanes, built);
    rig_close();
}
END_TEST

START_TEST(neighbours_read_neighbours_in_rows_that_are_turned)
{
    struct keel_kernels lanes;
    struct keel_kernel *built[2];
    rig_open();
    build_lanes(&rig[1], &lanes, built);
    check_turn(&lanes, &(struct keel_gemm_quantised){.m = 5, .n = 33, .k = 131, .bits = 8});
    check_turn(&lanes, &(struct keel_gemm_quantised){.m = 16, .n = 16, .k = 1024, .bits = 4, .group = 32});
    free_other(&lanes, built);
    rig_close();
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct keel_launch_list list = {0};
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_gemm_quantised right = {.m = 2, .n = 20, .k = 33, .bits = 4, .group = 32};
    uint64_t words;
    ck_ok(keel_quantised_words(&right, &words));
    ck_assert_uint_eq(words, 2 * 16 * (2 + 5));
    right.a = rig_buffer(on, NULL, 2 * 33 * sizeof(float));
    right.weights = rig_buffer(on, NULL, words * sizeof(uint32_t));
    right.c = rig_buffer(on, NULL, 2 * 20 * sizeof(float));
    right.workspace = rig_buffer(on, NULL, keel_gemm_quantised_workspace_bytes(&right));
    struct keel_gemm_quantised op = right;
    op.bits = 5;
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "weights of 5 bits: 4 or 8"));
    op.bits = 8; /* twice the words */
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.group = 12;
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "groups of 12: a multiple of 8"));
    op = right;
    op.m = 0;
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.workspace = NULL;
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.c = op.a;
    ck_status(keel_op_gemm_quantised(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_gemm_quantised(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_clear(on);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, products_have_the_bits_of_the_floats_that_integers_stand_for);
    tcase_add_test(tc, random_products_are_right_and_have_the_same_bits_everywhere);
    tcase_add_test(tc, neighbours_read_neighbours_in_rows_that_are_turned);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("quantised", cases, getenv("KEEL_QUANTISED_TRIALS") != NULL ? 86400 : 120)
