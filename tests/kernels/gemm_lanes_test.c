/* gemm_lanes_test.c - products by groups of many work-items: the bits of the host reference, for random
 * descriptors in three of the shapes that the tunables allow, on PoCL's threads or on `basic`; and which
 * devices get them.
 *
 * The kernels of the module are built for each set of tunables and put in the place of the device's own, so
 * that the launches are those of keel_op_gemm for a device of that kind. */
#include "device_rig.h"
#include "kernels_internal.h"

/* gemm.items, item_rows, item_columns, item_depth, and the units that a launch is cut for: few units take
 * large tiles. */
struct shape {
    uint32_t items, rows, columns, depth, units;
};
static const struct shape shapes[] = {
    {256, 8, 8, 16, 1},
    {64, 8, 4, 8, 1},
    {128, 4, 8, 32, 30},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], TRIALS = 40, BUFFER_FLOATS = 65536 };

/* The kernels of a device, with the module of products as this shape has it. */
struct lanes {
    struct keel_kernels kernels;
    struct keel_program *program;
    struct keel_kernel *built[8];
};

static void lanes_init(struct lanes *lanes, const struct rig_device *on, const struct shape *shape)
{
    const struct keel_setting settings[] = {{"gemm.items", shape->items},
                                            {"gemm.item_rows", shape->rows},
                                            {"gemm.item_columns", shape->columns},
                                            {"gemm.item_depth", shape->depth}};
    struct keel_built_module *module = &lanes->kernels.modules[KEEL_MODULE_gemm];
    lanes->kernels = *on->kernels;
    lanes->kernels.info.compute_units = shape->units;
    ck_ok(keel_tunables_apply(&lanes->kernels.info, settings, 4, lanes->kernels.tuned));
    keel_tunables_build_options(&lanes->kernels.info, KEEL_MODULE_gemm, lanes->kernels.tuned,
                                module->options);
    ck_ok(keel_program_create(on->device, module->module, module->options, &lanes->program));
    for (uint32_t i = 0; i < module->module->kernel_count; i++)
        ck_ok(keel_kernel_create(lanes->program, module->module->kernels[i].name, &lanes->built[i]));
    module->program = lanes->program;
    module->kernels = lanes->built;
}

static void lanes_fini(struct lanes *lanes)
{
    for (uint32_t i = 0; i < lanes->kernels.modules[KEEL_MODULE_gemm].module->kernel_count; i++)
        keel_kernel_destroy(lanes->built[i]);
    keel_program_destroy(lanes->program);
}

/* ---- random descriptors ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    const struct keel_control control = {.seed_lo = 17};
    return keel_random_u32(&control, 5, draws++) % below;
}

/* Sizes near the edges of tiles as often as any. */
static uint32_t draw_size(uint32_t most)
{
    static const uint32_t edges[] = {1, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129};
    const uint32_t size = draw(2) == 0 ? edges[draw(sizeof edges / sizeof edges[0])] : 1 + draw(most);
    return size < most ? size : most;
}

/* Slices of k, uneven ones too, those of a node of the tree: all, or one half of eight. */
static struct keel_slices draw_slices(uint32_t *k)
{
    struct keel_slices s = {.of = 1 + draw(draw(4) == 0 ? 64 : 8)};
    s.unit = s.of > 8 ? 1 : 1 + draw(3);
    s.units = s.of + draw(2 * s.of + 9);
    s.count = s.of;
    if (s.of == 8 && draw(2) == 0) {
        s.first = 4 * draw(2);
        s.count = 4;
    }
    *k = (keel_slice_begin(s.units, s.of, s.first + s.count) - keel_slice_begin(s.units, s.of, s.first)) *
         s.unit;
    return s;
}

enum end { END_NONE, END_ACCUMULATE, END_CHAIN, END_RESIDUAL, END_PRE, ENDS };
struct drawn {
    struct keel_gemm op; /* without buffers */
    enum end end;
    bool bias, checksums;
    uint32_t groups; /* 0: a plain product */
    bool over_k;
};

static enum keel_dtype draw_type(void)
{
    return draw(3) > 0 ? KEEL_F32 : draw(2) == 0 ? KEEL_BF16 : KEEL_F16;
}

static struct drawn draw_product(void)
{
    struct drawn d = {.op = {.m = draw_size(100), .n = draw_size(140), .k = draw_size(60), .batch = 1},
                      .end = (enum end)draw(ENDS),
                      .bias = draw(2) == 0,
                      .groups = draw(4) == 0 ? 1 + draw(4) : 0};
    struct keel_gemm *op = &d.op;
    op->transpose_a = draw(2) == 0;
    op->transpose_b = draw(2) == 0;
    op->accumulate = d.end == END_ACCUMULATE;
    op->chain = d.end == END_CHAIN;
    op->a_type = draw_type();
    op->b_type = draw_type();
    op->c_type = draw_type();
    d.over_k = d.groups > 0 && op->transpose_a && !op->transpose_b;
    d.checksums = d.groups == 0 && draw(2) == 0;
    if (d.groups == 0) {
        op->batch = 1 + draw(2);
        if (!op->chain && draw(3) == 0)
            op->k_slices = draw_slices(&op->k);
    }
    op->lda = (op->transpose_a ? op->m : op->k) + draw(5);
    op->ldb = (op->transpose_b ? op->k : op->n) + draw(5);
    op->ldc = op->n + draw(5);
    op->stride_a = (uint64_t)op->lda * (op->transpose_a ? op->k : op->m) + draw(9);
    op->stride_b = (uint64_t)op->ldb * (op->transpose_b ? op->n : op->k) + draw(9);
    op->stride_c = (uint64_t)op->ldc * op->m + draw(9);
    return d;
}

/* ---- one product ---- */

static void fill(uint8_t *bytes, uint32_t series, enum keel_dtype type)
{
    for (uint64_t i = 0; i < BUFFER_FLOATS; i++) {
        const float x = rig_number(series, i);
        const uint16_t half = type == KEEL_F16 ? (uint16_t)(0x3800 ^ (uint32_t)(x * 0x7ff)) : 0;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (type == KEEL_F32)
            memcpy(bytes + 4 * i, &x, 4);
        else
            memcpy(bytes + 2 * i, type == KEEL_F16 ? &half : &(uint16_t){(uint16_t)(bits >> 16)}, 2);
    }
}

struct results {
    uint8_t c[BUFFER_FLOATS * 4], pre[BUFFER_FLOATS * 4], checksums[4096];
    uint32_t report[2];
};

static void run(struct rig_device *on, struct keel_kernels *kernels, const struct drawn *d,
                const uint8_t *const numbers[4], struct results *out)
{
    const int32_t offsets[] = {0, 3, 3, 40, 61};
    struct keel_launch_list list = {0};
    struct keel_gemm op = d->op;
    struct keel_buffer *report = rig_buffer(on, (const uint32_t[]){0, UINT32_MAX}, sizeof out->report);
    op.a = rig_buffer(on, numbers[0], BUFFER_FLOATS * 4);
    op.b = rig_buffer(on, numbers[1], BUFFER_FLOATS * 4);
    op.c = rig_buffer(on, numbers[2], BUFFER_FLOATS * 4);
    struct keel_buffer *more = rig_buffer(on, numbers[2], BUFFER_FLOATS * 4);
    op.bias = d->bias ? rig_buffer(on, numbers[3], BUFFER_FLOATS * 4) : NULL;
    op.residual = d->end == END_RESIDUAL ? more : NULL;
    op.pre = d->end == END_PRE ? more : NULL;
    struct keel_buffer *checksums = rig_buffer(on, numbers[0], sizeof out->checksums);
    op.checksums = d->checksums ? checksums : NULL;
    if (d->groups > 0)
        ck_ok(keel_op_gemm_grouped(
            kernels,
            &(struct keel_gemm_grouped){op, d->groups, d->over_k, rig_buffer(on, offsets, sizeof offsets)},
            &list));
    else
        ck_ok(keel_op_gemm(kernels, &op, &list));
    if (d->checksums)
        ck_ok(keel_op_gemm_check(kernels, &(struct keel_gemm_check){&op, report, 0}, &list));
    rig_run(on, &list);
    rig_read(on, op.c, out->c);
    rig_read(on, more, out->pre);
    rig_read(on, checksums, out->checksums);
    rig_read(on, report, out->report);
    rig_clear(on);
}

static void same(const char *what, const char *name, const uint8_t *found, const uint8_t *wanted,
                 size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 2)
        ck_assert_msg(memcmp(found + i, wanted + i, 2) == 0, "%s: %s differs at byte %zu", what, name, i);
}

START_TEST(random_products_have_the_bits_of_the_reference)
{
    static uint8_t numbers[4][BUFFER_FLOATS * 4];
    static struct results wanted, found;
    const uint8_t *const given[4] = {numbers[0], numbers[1], numbers[2], numbers[3]};
    struct rig_device *on = &rig[1 + _i % 2]; /* a driver takes seconds to compile each */
    struct lanes lanes;
    draws = (uint32_t)_i * 100000;
    rig_open();
    lanes_init(&lanes, on, &shapes[_i]);
    for (int trial = 0; trial < TRIALS; trial++) {
        const struct drawn drawn = draw_product();
        const struct keel_gemm *op = &drawn.op;
        char what[200];
        snprintf(what, sizeof what,
                 "shape %d, product %d: %u x %u x %u, batch %u, transposed %d %d, types %d %d %d, end %d, "
                 "slices %u of %u, "
                 "groups %u",
                 _i, trial, op->m, op->n, op->k, op->batch, op->transpose_a, op->transpose_b, op->a_type,
                 op->b_type, op->c_type, drawn.end, op->k_slices.count, op->k_slices.of, drawn.groups);
        fill(numbers[0], 1, op->a_type);
        fill(numbers[1], 2, op->b_type);
        fill(numbers[2], 3, op->c_type);
        fill(numbers[3], 4, KEEL_F32);
        run(&rig[0], rig[0].kernels, &drawn, given, &wanted);
        run(on, &lanes.kernels, &drawn, given, &found);
        same(what, "C", found.c, wanted.c, sizeof found.c);
        same(what, "pre", found.pre, wanted.pre, sizeof found.pre);
        same(what, "the checksums", found.checksums, wanted.checksums, sizeof found.checksums);
        ck_assert_msg(found.report[0] == 0, "%s: a checksum does not match C", what);
    }
    lanes_fini(&lanes);
    rig_close();
}
END_TEST

/* ---- which devices get them ---- */

static uint32_t items_of(const struct keel_device_info *info)
{
    uint32_t values[KEEL_TUNABLE_COUNT];
    ck_ok(keel_tunables_apply(info, NULL, 0, values));
    return values[KEEL_TUNABLE_GEMM_ITEMS];
}

START_TEST(facts_of_a_device_say_how_many_work_items_a_group_has)
{
    struct keel_device_info gpu = {.kind = KEEL_DEVICE_GPU,
                                   .compute_units = 108,
                                   .local_bytes = 49152,
                                   .local_dedicated = true,
                                   .lanes = 32,
                                   .max_group_items = 1024,
                                   .max_items = {1024, 1024, 64},
                                   .numerics = KEEL_NUMERICS_FMA};
    ck_assert_uint_eq(items_of(&gpu), 128);
    struct keel_device_info info = gpu;
    info.lanes = 0; /* a driver of OpenCL 1.2 that does not tell */
    ck_assert_uint_eq(items_of(&info), 128);
    info = gpu;
    info.max_group_items = 96;
    ck_assert_uint_eq(items_of(&info), 64);
    info.max_group_items = 32;
    ck_assert_uint_eq(items_of(&info), 1);
    info = gpu;
    info.max_items[0] = 96; /* fewer in a line than in all */
    ck_assert_uint_eq(items_of(&info), 64);
    info.max_items[0] = 32;
    ck_assert_uint_eq(items_of(&info), 1);
    info = gpu;
    info.local_dedicated = false; /* caches of a processor */
    ck_assert_uint_eq(items_of(&info), 1);
    info = gpu;
    info.kind = KEEL_DEVICE_ACCELERATOR; /* one pipeline and block memory */
    info.lanes = 1;
    ck_assert_uint_eq(items_of(&info), 1);
    info.lanes = 0;
    ck_assert_uint_eq(items_of(&info), 1);
}
END_TEST

START_TEST(shapes_that_do_not_fit_are_refused_with_the_figure)
{
    const struct keel_device_info gpu = {.selector = "a board",
                                         .kind = KEEL_DEVICE_GPU,
                                         .local_bytes = 16384,
                                         .local_dedicated = true,
                                         .lanes = 32,
                                         .max_group_items = 1024,
                                         .max_items = {128, 1024, 64}};
    const struct keel_setting deep = {"gemm.item_depth", 32}, wide = {"gemm.items", 256};
    ck_ok(keel_kernels_check(&gpu, NULL, 0));
    ck_status(keel_kernels_check(&gpu, &deep, 1), KEEL_LIMIT);
    ck_assert_msg(strstr(keel_detail(), "gemm.item_depth") != NULL &&
                      strstr(keel_detail(), "51200") != NULL && strstr(keel_detail(), "16384") != NULL,
                  "%s", keel_detail());
    ck_status(keel_kernels_check(&gpu, &wide, 1), KEEL_LIMIT);
    ck_assert_msg(strstr(keel_detail(), "gemm.items = 256: groups of a board hold 128") != NULL, "%s",
                  keel_detail());
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_products_have_the_bits_of_the_reference, 0, SHAPES);
    tcase_add_test(tc, facts_of_a_device_say_how_many_work_items_a_group_has);
    tcase_add_test(tc, shapes_that_do_not_fit_are_refused_with_the_figure);
}

KEEL_TEST_MAIN("gemm_lanes", cases, 300)
