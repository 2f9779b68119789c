/* optimizer_test.c - norm, clipping, loss scale, the update of each optimizer, and the digest of what it
 * leaves. */
#include "op_fixture.h"

#include <keel/memory.h>
#include <keel/optimizer_ops.h>

static const uint64_t counts[] = {1, 17, 4096, 4097, 65537, 300007};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct keel_control control_of(uint32_t step)
{
    struct keel_control control = {.step = step,
                                   .learning_rate = 1e-2f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .epsilon = 1e-8f,
                                   .max_norm = 1.0f,
                                   .momentum = 0.9f,
                                   .weight_decay = 0.1f,
                                   .trust = 0.02f};
    control.bias1 = keel_adam_bias(control.beta1, step + 1);
    control.bias2 = keel_adam_bias(control.beta2, step + 1);
    return control;
}

enum { TILES_MAX = 8 };
struct state {
    struct keel_norm_tiles tiles;
    struct keel_norm norm;
    struct keel_update update;
};

/* Both stages of the norm of these tensors, appended: TILES_MAX tiles, all 0 before. */
static void build_norm(struct rig *rig, uint64_t count, const struct keel_update_tensor *tensors,
                       uint32_t tensor_count, const struct keel_control *control, struct keel_buffer *x,
                       struct state *s)
{
    uint32_t *pages;
    ck_ok(keel_alloc(keel_update_page_count(count), sizeof *pages, &pages));
    ck_ok(keel_update_find_pages(tensors, tensor_count, count, pages));
    s->tiles = (struct keel_norm_tiles){
        .count = count,
        .tensor_count = tensor_count,
        .tile_count = TILES_MAX,
        .x = x,
        .tensors = rig_bytes(rig, tensors, tensor_count * sizeof *tensors),
        .pages = rig_bytes(rig, pages, keel_update_page_count(count) * sizeof *pages),
        .scratch = rig_bytes(rig, NULL, keel_norm_tiles_scratch_bytes(count)),
        .tiles = rig_bytes(rig, NULL, TILES_MAX * sizeof(float))};
    s->norm = (struct keel_norm){.tile_count = TILES_MAX,
                                 .tiles = s->tiles.tiles,
                                 .scratch = rig_bytes(rig, NULL, keel_norm_scratch_bytes(TILES_MAX)),
                                 .norm = rig_bytes(rig, NULL, 3 * sizeof(float)),
                                 .control = rig_bytes(rig, control, sizeof *control)};
    keel_free(pages);
    ck_ok(keel_op_norm_tiles(rig->kernels, &s->tiles, &rig->list));
    ck_ok(keel_op_norm(rig->kernels, &s->norm, &rig->list));
}

/* Norm and update of these tensors in flat buffers of `count`. */
static struct state build_tensors(struct rig *rig, uint64_t count, const struct keel_update_tensor *tensors,
                                  uint32_t tensor_count, const struct keel_control *control,
                                  struct keel_update update)
{
    struct state s = {.update = update};
    build_norm(rig, count, tensors, tensor_count, control, rig_random(rig, count, 1, -0.1f, 0.1f), &s);
    s.update.count = count;
    s.update.tensor_count = tensor_count;
    s.update.w = rig_random(rig, count, 2, -1.0f, 1.0f);
    s.update.grad = s.tiles.x;
    s.update.m = rig_random(rig, count, 3, -0.1f, 0.1f);
    s.update.v = rig_random(rig, count, 4, 0.0f, 0.01f);
    s.update.norm = s.norm.norm;
    s.update.control = s.norm.control;
    s.update.tensors = s.tiles.tensors;
    s.update.pages = s.tiles.pages;
    s.update.digest = rig_bytes(rig, NULL, sizeof(uint64_t));
    s.update.scratch = rig_bytes(rig, NULL, keel_update_scratch_bytes(&s.update));
    if (update.half_type != KEEL_F32)
        s.update.half = rig_bytes(rig, NULL, count * sizeof(uint16_t));
    ck_ok(keel_op_update(rig->kernels, &s.update, &rig->list));
    return s;
}

/* AdamW of one matrix. */
static struct state build(struct rig *rig, uint64_t count, const struct keel_control *control)
{
    const struct keel_update_tensor tensor = {.count = count, .kind = KEEL_TENSOR_DECAY, .factor = 1.0f};
    return build_tensors(rig, count, &tensor, 1, control, (struct keel_update){.nesterov = false});
}

static void adamw_body(struct rig *rig, const void *shape)
{
    uint64_t count = *(const uint64_t *)shape;
    const struct keel_control control = control_of(3);
    struct state s = build(rig, count, &control);
    rig_run(rig);
    rig_run(rig); /* a list is replayed */
    rig_result(rig, s.norm.norm, 8);
    rig_result(rig, s.update.w, count * 4);
    rig_result(rig, s.update.m, count * 4);
    rig_result(rig, s.update.v, count * 4);
}

START_TEST(norm_and_adamw_give_the_same_bits)
{
    for (int c = 0; c < COUNTS; c++) {
        char name[64];
        snprintf(name, sizeof name, "adamw %llu", (unsigned long long)counts[c]);
        same_bits((enum rig_kind)_i, name, adamw_body, &counts[c]);
    }
}
END_TEST

static void rewrite(struct rig *rig, struct keel_buffer *buffer, const float *data, uint64_t count)
{
    ck_ok(keel_queue_write(rig->queue, buffer, 0, data, count * sizeof *data, NULL, NULL));
    ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
}

/* Moments of every exponent, one to a vector, of some with zeros between; every third vector has a gradient.
 */
enum { ENDS = 16 * 254 * 23 };
static void ends_body(struct rig *rig, const void *shape)
{
    static float m[ENDS], v[ENDS], grad[ENDS];
    const struct keel_control control = control_of(*(const uint32_t *)shape);
    struct state s = build(rig, ENDS, &control);
    for (int i = 0; i < ENDS; i++) {
        const int vector = i / 16;
        const float size = 1.0f + (float)(i * 7 % 16) / 16.0f;
        m[i] = i % 37 == 0 ? -0.0f : ldexpf(i % 3 == 0 ? -size : size, vector % 254 - 126);
        v[i] = i % 41 == 0 ? 0.0f : ldexpf(size, (vector / 254 * 11 + vector * 5) % 254 - 126);
        grad[i] = vector % 3 == 0 ? 0.01f * (float)(i % 5 - 2) : 0.0f;
    }
    rewrite(rig, s.update.m, m, ENDS);
    rewrite(rig, s.update.v, v, ENDS);
    rewrite(rig, s.tiles.x, grad, ENDS);
    rig_run(rig);
    rig_result(rig, s.update.w, sizeof m);
    rig_result(rig, s.update.m, sizeof m);
    rig_result(rig, s.update.v, sizeof m);
}

START_TEST(moments_of_every_exponent_give_the_same_bits)
{
    const uint32_t steps[] = {0, 1000};
    for (int c = 0; c < 2; c++) {
        char name[64];
        snprintf(name, sizeof name, "adamw ends, step %u", steps[c]);
        same_bits((enum rig_kind)_i, name, ends_body, &steps[c]);
    }
}
END_TEST

/* Moments as rare rows have them: in each vector those of one lane, another from vector to vector, have faded
 * to between 2^-60 and 2^-126, so that all sixteen go the long way; every fourth vector has none and goes the
 * short one. Rare rows have no gradient, as at most steps, or a small one. */
enum { RARE = 16 * 4 * 67 + 5 };
static void rare_body(struct rig *rig, const void *shape)
{
    static float w[RARE], m[RARE], v[RARE], grad[RARE];
    const struct keel_control control = control_of(*(const uint32_t *)shape);
    struct state s = build(rig, RARE, &control);
    for (int i = 0; i < RARE; i++) {
        const int vector = i / 16, faded = -60 - vector % 67;
        const bool rare = vector % 4 != 0 && i % 16 == vector * 5 % 16;
        const float size = 1.0f + (float)(i * 7 % 16) / 16.0f;
        m[i] = ldexpf(i % 3 == 0 ? -size : size, rare ? faded : -8);
        v[i] = ldexpf(size, rare ? faded : -14);
        w[i] = rare ? 0.0f : size; /* where a small step shows */
        grad[i] = rare ? ldexpf(i / 64 % 4 == 0 ? 1.0f : 0.0f, faded / 2) : 0.01f * (float)(i % 5 - 2);
    }
    rewrite(rig, s.update.w, w, RARE);
    rewrite(rig, s.update.m, m, RARE);
    rewrite(rig, s.update.v, v, RARE);
    rewrite(rig, s.tiles.x, grad, RARE);
    rig_run(rig);
    rig_result(rig, s.update.w, sizeof m);
    rig_result(rig, s.update.m, sizeof m);
    rig_result(rig, s.update.v, sizeof m);
}

START_TEST(one_faded_moment_among_sixteen_gives_the_same_bits)
{
    for (uint32_t step = 1; step <= 1000; step += 999)
        equal_bits((enum rig_kind)_i, "rare rows", rare_body, &step);
}
END_TEST

/* Three levels of the tree: pages, blocks of 4096 of them, and the sum of blocks. */
static void big_norm_body(struct rig *rig, const void *shape)
{
    const uint64_t count = *(const uint64_t *)shape;
    const struct keel_control control = control_of(0);
    float *x;
    ck_ok(keel_alloc(count, sizeof *x, &x));
    for (uint64_t i = 0; i < count; i++)
        x[i] = (float)(i % 1021) * 0x1p-10f - 0.5f;
    const struct keel_update_tensor tensor = {.count = count, .kind = KEEL_TENSOR_DECAY, .factor = 1.0f};
    struct state s;
    build_norm(rig, count, &tensor, 1, &control, rig_bytes(rig, x, count * 4), &s);
    keel_free(x);
    rig_run(rig);
    rig_result(rig, s.norm.norm, 8);
}

START_TEST(a_norm_of_three_levels_gives_the_same_bits)
{
    const uint64_t count = UINT64_C(4096) * 4096 + 5;
    same_bits((enum rig_kind)_i, "norm 16777221", big_norm_body, &count);
}
END_TEST

/* The gradients of four tensors, of which the third is a statistic, at `place` (in pages) of the flat
 * buffers; tensors that `held` leaves out are not in the table. */
enum { PLACED = 4, PLACED_FLAT = 24 * 1024, PLACED_ALL = 15 };
static const uint64_t placed_counts[PLACED] = {9001, 67, 5003, 2048};
static struct state build_placed(struct rig *rig, const uint64_t place[PLACED], unsigned held)
{
    struct keel_update_tensor tensors[PLACED];
    const struct keel_control control = control_of(0);
    float *x = random_floats(PLACED_FLAT, 7, 1.0f, 2.0f); /* a gap that were read would show */
    struct state s;
    uint32_t count = 0;
    for (uint32_t t = 0; t < PLACED; t++) {
        float *part = random_floats(placed_counts[t], t, -0.1f, 0.1f);
        memcpy(x + place[t] * KEEL_UPDATE_PAGE, part, placed_counts[t] * sizeof *part);
        free(part);
        if ((held >> t & 1) != 0)
            tensors[count++] = (struct keel_update_tensor){.offset = place[t] * KEEL_UPDATE_PAGE,
                                                           .count = placed_counts[t],
                                                           .kind = t == 2 ? KEEL_TENSOR_STATISTIC : t % 2,
                                                           .tile = t};
    }
    build_norm(rig, PLACED_FLAT, tensors, count, &control, rig_bytes(rig, x, PLACED_FLAT * sizeof *x), &s);
    free(x);
    return s;
}

START_TEST(a_norm_does_not_depend_on_where_tensors_lie)
{
    const uint64_t places[][PLACED] = {{0, 9, 10, 15}, {8, 23, 3, 0}, {15, 2, 4, 9}};
    float norm[2], tiles[TILES_MAX];
    for (int i = 0; i < 3; i++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        struct state s = build_placed(rig, places[i], PLACED_ALL);
        rig_run(rig);
        const float *got = rig_result(rig, s.norm.norm, sizeof norm);
        if (i == 0)
            memcpy(norm, got, sizeof norm);
        ck_assert_mem_eq(got, norm, sizeof norm);
        got = rig_result(rig, s.norm.tiles, sizeof tiles);
        if (i == 0)
            memcpy(tiles, got, sizeof tiles);
        ck_assert_mem_eq(got, tiles, sizeof tiles);
        ck_assert(tiles[0] > 0.0f && tiles[1] > 0.0f && tiles[2] == 0.0f && tiles[3] > 0.0f);
    }
}
END_TEST

/* What each of two ranks leaves of the tiles that it holds, added up, is what one rank has of all. */
START_TEST(tiles_of_two_ranks_add_up_to_the_bits_of_one)
{
    const uint64_t place[PLACED] = {8, 23, 3, 0};
    float whole[TILES_MAX], norm[2], sum[TILES_MAX] = {0};
    struct rig *rig = rig_shared((enum rig_kind)_i);
    struct state s = build_placed(rig, place, PLACED_ALL);
    rig_run(rig);
    memcpy(whole, rig_result(rig, s.norm.tiles, sizeof whole), sizeof whole);
    memcpy(norm, rig_result(rig, s.norm.norm, sizeof norm), sizeof norm);
    for (unsigned held = 5; held <= 10; held += 5) { /* 0 and 2; 1 and 3 */
        rig_clear(rig);
        s = build_placed(rig, place, held);
        rig_run(rig);
        const float *tiles = rig_result(rig, s.norm.tiles, sizeof sum);
        for (int t = 0; t < TILES_MAX; t++)
            sum[t] += tiles[t];
    }
    ck_assert_mem_eq(sum, whole, sizeof sum);
    keel_launch_list_fini(&rig->list);
    rewrite(rig, s.norm.tiles, sum, TILES_MAX);
    ck_ok(keel_op_norm(rig->kernels, &s.norm, &rig->list));
    rig_run(rig);
    ck_assert_mem_eq(rig_result(rig, s.norm.norm, sizeof norm), norm, sizeof norm);
}
END_TEST

/* One step in double; floats follow within 4e-7 of values up to 1. */
START_TEST(norm_and_adamw_are_near_the_truth)
{
    enum { COUNT = 5003 };
    struct rig *rig = rig_shared(RIG_HOST);
    const struct keel_control control = control_of(3);
    struct state s = build(rig, COUNT, &control);
    rig_run(rig);
    const float *norm = rig_result(rig, s.norm.norm, 8), *w = rig_result(rig, s.update.w, COUNT * 4);
    const float *m = rig_result(rig, s.update.m, COUNT * 4), *v = rig_result(rig, s.update.v, COUNT * 4);
    float *grad = random_floats(COUNT, 1, -0.1f, 0.1f), *w0 = random_floats(COUNT, 2, -1.0f, 1.0f);
    float *m0 = random_floats(COUNT, 3, -0.1f, 0.1f), *v0 = random_floats(COUNT, 4, 0.0f, 0.01f);
    static double tw[COUNT], tm[COUNT], tv[COUNT];
    double squares = 0.0, b1 = (double)control.beta1, b2 = (double)control.beta2;
    for (int i = 0; i < COUNT; i++)
        squares += (double)grad[i] * (double)grad[i];
    const double clip = 1.0 / sqrt(squares);
    for (int i = 0; i < COUNT; i++) {
        double g = (double)grad[i] * clip;
        tm[i] = b1 * (double)m0[i] + (1 - b1) * g;
        tv[i] = b2 * (double)v0[i] + (1 - b2) * g * g;
        double u = tm[i] / (1 - pow(b1, 4)) / (sqrt(tv[i] / (1 - pow(b2, 4))) + (double)control.epsilon);
        tw[i] = (double)w0[i] -
                (double)control.learning_rate * (u + (double)control.weight_decay * (double)w0[i]);
    }
    ck_assert_double_le(fabs((double)norm[0] / sqrt(squares) - 1.0), 4e-7);
    ck_assert_double_le(fabs((double)norm[1] / clip - 1.0), 4e-7);
    ck_assert_double_le(relative_error(w, tw, COUNT), 4e-7);
    ck_assert_double_le(relative_error(m, tm, COUNT), 4e-7);
    ck_assert_double_le(relative_error(v, tv, COUNT), 4e-7);
    free(grad);
    free(w0);
    free(m0);
    free(v0);
}
END_TEST

START_TEST(clipping_acts_only_above_the_limit)
{
    const float values[4] = {0.6f, 0.0f, 0.8f, 0.0f};
    const struct {
        float max_norm, factor;
    } rows[] = {{0.0f, 1.0f}, {1.5f, 1.0f}, {0.5f, 0.5f}};
    for (int i = 0; i < 3; i++) {
        struct rig *rig = rig_shared(RIG_HOST);
        struct keel_control control = control_of(0);
        control.max_norm = rows[i].max_norm;
        const struct keel_update_tensor tensor = {.count = 4, .kind = KEEL_TENSOR_DECAY};
        struct state s;
        build_norm(rig, 4, &tensor, 1, &control, rig_bytes(rig, values, sizeof values), &s);
        rig_run(rig);
        const float *norm = rig_result(rig, s.norm.norm, 8);
        ck_assert_float_eq_tol(norm[0], 1.0f, 1e-6f);
        ck_assert_float_eq_tol(norm[1], rows[i].factor, 1e-6f);
    }
}
END_TEST

START_TEST(a_gradient_that_is_not_finite_changes_no_weight)
{
    const float bad[] = {NAN, INFINITY, 1e30f}; /* the square of the last overflows */
    for (int i = 0; i < 3; i++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        const struct keel_control control = control_of(3);
        struct state s = build(rig, 100, &control);
        ck_ok(keel_queue_write(rig->queue, s.tiles.x, 40, &bad[i], 4, NULL, NULL));
        rig_run(rig);
        const float *norm = rig_result(rig, s.norm.norm, 8), *w = rig_result(rig, s.update.w, 400);
        float *w0 = random_floats(100, 2, -1.0f, 1.0f);
        ck_assert(!isfinite(norm[0]) && norm[1] == 0.0f);
        ck_assert_mem_eq(w, w0, 400);
        free(w0);
    }
}
END_TEST

/* ---- every optimizer, against double ---- */

/* Two matrices, a bias, a statistic and a parameter that is kept, with gaps between them. */
enum { FLAT = 16 * 1024 + 700, TENSORS = 5 };
static const struct keel_update_tensor tensors_of_test[TENSORS] = {
    {.offset = 0,
     .count = 9001,
     .first_element = UINT64_C(3) << 40,
     .kind = KEEL_TENSOR_DECAY,
     .tile = 4,
     .factor = 1.0f},
    {.offset = 9 * 1024,
     .count = 67,
     .first_element = UINT64_C(1) << 40,
     .kind = KEEL_TENSOR_PLAIN,
     .tile = 1,
     .factor = 1.0f},
    {.offset = 10 * 1024, .count = 5003, .first_element = 0, .kind = KEEL_TENSOR_DECAY, .factor = 1.0f},
    {.offset = 15 * 1024,
     .count = 1,
     .first_element = UINT64_C(9) << 40,
     .kind = KEEL_TENSOR_KEPT,
     .tile = 2},
    {.offset = 16 * 1024,
     .count = 700,
     .first_element = UINT64_C(5) << 40,
     .kind = KEEL_TENSOR_STATISTIC,
     .factor = 0.1f,
     .tile = 3},
};
static const struct variant {
    const char *name;
    enum keel_optimizer optimizer;
    bool nesterov;
    enum keel_dtype half_type;
} variants[] = {
    {"adamw", KEEL_OPTIMIZER_ADAMW, false, KEEL_BF16}, {"adam", KEEL_OPTIMIZER_ADAM, false, KEEL_F16},
    {"sgd", KEEL_OPTIMIZER_SGD, false, KEEL_F32},      {"nesterov", KEEL_OPTIMIZER_SGD, true, KEEL_F32},
    {"lars", KEEL_OPTIMIZER_LARS, false, KEEL_BF16},   {"lamb", KEEL_OPTIMIZER_LAMB, false, KEEL_F16}};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static struct state build_variant(struct rig *rig, const struct variant *variant,
                                  const struct keel_control *control)
{
    return build_tensors(rig, FLAT, tensors_of_test, TENSORS, control,
                         (struct keel_update){.optimizer = variant->optimizer,
                                              .nesterov = variant->nesterov,
                                              .half_type = variant->half_type});
}

static void variant_body(struct rig *rig, const void *shape)
{
    const struct keel_control control = control_of(3);
    struct state s = build_variant(rig, shape, &control);
    rig_run(rig);
    rig_run(rig); /* a list is replayed */
    rig_result(rig, s.update.w, FLAT * 4);
    rig_result(rig, s.update.m, FLAT * 4);
    rig_result(rig, s.update.v, FLAT * 4);
    rig_result(rig, s.update.digest, 8);
    if (s.update.half != NULL)
        rig_result(rig, s.update.half, FLAT * 2);
}

START_TEST(every_optimizer_gives_the_same_bits)
{
    for (int v = 0; v < VARIANTS; v++)
        same_bits((enum rig_kind)_i, variants[v].name, variant_body, &variants[v]);
}
END_TEST

static double square_root_of_squares(const double *x, uint64_t count)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Three passes over a tensor: direction, ratio, step. */
static void true_step(const struct variant *variant, const struct keel_update_tensor *tensor, double clip,
                      double *w, const double *grad, double *m, double *v)
{
    static double step[FLAT];
    const struct keel_control c = control_of(3);
    const double rate = (double)c.learning_rate * (double)tensor->factor, b1 = (double)c.beta1,
                 b2 = (double)c.beta2, mu = (double)c.momentum;
    const double decay = tensor->kind == KEEL_TENSOR_DECAY ? (double)c.weight_decay : 0.0;
    const enum keel_optimizer optimizer = variant->optimizer;
    const double w_norm = square_root_of_squares(w, tensor->count);
    const double g_norm = clip * square_root_of_squares(grad, tensor->count);
    for (uint64_t i = 0; i < tensor->count; i++) {
        double g = grad[i] * clip;
        if (!keel_optimizer_has_v(optimizer)) {
            step[i] = g + decay * w[i];
            continue;
        }
        if (optimizer == KEEL_OPTIMIZER_ADAM)
            g += decay * w[i];
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        step[i] = m[i] / (1 - pow(b1, 4)) / (sqrt(v[i] / (1 - pow(b2, 4))) + (double)c.epsilon);
        if (optimizer != KEEL_OPTIMIZER_ADAM)
            step[i] += decay * w[i];
    }
    double ratio = 1.0;
    if (tensor->kind == KEEL_TENSOR_DECAY && optimizer == KEEL_OPTIMIZER_LARS)
        ratio = (double)c.trust * w_norm / (g_norm + decay * w_norm);
    if (tensor->kind == KEEL_TENSOR_DECAY && optimizer == KEEL_OPTIMIZER_LAMB)
        ratio = w_norm / square_root_of_squares(step, tensor->count);
    for (uint64_t i = 0; i < tensor->count; i++) {
        if (!keel_optimizer_has_v(optimizer)) {
            m[i] = mu * m[i] + (optimizer == KEEL_OPTIMIZER_LARS ? rate * ratio : 1.0) * step[i];
            step[i] = variant->nesterov ? step[i] + mu * m[i] : m[i];
        }
        w[i] -= optimizer == KEEL_OPTIMIZER_LARS ? step[i] : rate * ratio * step[i];
    }
}

static double *doubles(uint32_t seed, float low, float high)
{
    float *x = random_floats(FLAT, seed, low, high);
    double *out = malloc(FLAT * sizeof *out);
    ck_assert_ptr_nonnull(out);
    for (uint64_t i = 0; i < FLAT; i++)
        out[i] = (double)x[i];
    free(x);
    return out;
}

/* Gaps and the parameter that is kept do not move; floats follow doubles within 1e-6 of the largest. */
START_TEST(every_optimizer_is_near_the_truth)
{
    const struct variant *variant = &variants[_i];
    struct rig *rig = rig_shared(RIG_HOST);
    const struct keel_control control = control_of(3);
    struct state s = build_variant(rig, variant, &control);
    rig_run(rig);
    double *w = doubles(2, -1.0f, 1.0f), *g = doubles(1, -0.1f, 0.1f), *m = doubles(3, -0.1f, 0.1f);
    double *v = doubles(4, 0.0f, 0.01f);
    double squares = 0.0; /* of what is trained: neither gaps nor statistics */
    for (int t = 0; t < TENSORS; t++)
        if (tensors_of_test[t].kind <= KEEL_TENSOR_DECAY)
            squares +=
                pow(square_root_of_squares(g + tensors_of_test[t].offset, tensors_of_test[t].count), 2);
    const double clip = squares > 1.0 ? 1.0 / sqrt(squares) : 1.0;
    for (int t = 0; t < TENSORS; t++) {
        const struct keel_update_tensor *tensor = &tensors_of_test[t];
        const uint64_t at = tensor->offset;
        if (tensor->kind <= KEEL_TENSOR_DECAY)
            true_step(variant, tensor, clip, w + at, g + at, m + at, v + at);
        for (uint64_t i = at; tensor->kind == KEEL_TENSOR_STATISTIC && i < at + tensor->count; i++)
            w[i] += (double)tensor->factor * (g[i] - w[i]);
    }
    ck_assert_double_le(relative_error(rig_result(rig, s.update.w, FLAT * 4), w, FLAT), 1e-6);
    ck_assert_double_le(relative_error(rig_result(rig, s.update.m, FLAT * 4), m, FLAT), 1e-6);
    ck_assert_double_le(relative_error(rig_result(rig, s.update.v, FLAT * 4), v, FLAT), 1e-6);
    free(w);
    free(g);
    free(m);
    free(v);
}
END_TEST

/* The one pass leaves what separate passes would: the digest of keel_op_digest, the copy of keel_op_cast. */
START_TEST(one_pass_leaves_the_digest_and_the_copy_of_separate_ones)
{
    for (int v = 0; v < VARIANTS; v++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        const struct keel_control control = control_of(3);
        struct state s = build_variant(rig, &variants[v], &control);
        struct keel_buffer *cast = rig_bytes(rig, NULL, FLAT * 2);
        const struct keel_cast op = {
            .count = FLAT, .from = KEEL_F32, .to = variants[v].half_type, .x = s.update.w, .y = cast};
        if (s.update.half != NULL)
            ck_ok(keel_op_cast(rig->kernels, &op, &rig->list));
        for (int replay = 0; replay < 2; replay++) {
            rig_run(rig);
            const float *w = rig_result(rig, s.update.w, FLAT * 4);
            const uint64_t *digest = rig_result(rig, s.update.digest, 8);
            uint64_t truth = 0;
            for (int t = 0; t < TENSORS; t++)
                truth += keel_digest_host(w + tensors_of_test[t].offset, tensors_of_test[t].count,
                                          tensors_of_test[t].first_element);
            ck_assert_uint_eq(*digest, truth);
        }
        if (s.update.half == NULL)
            continue;
        const uint16_t *half = rig_result(rig, s.update.half, FLAT * 2),
                       *wanted = rig_result(rig, cast, FLAT * 2);
        for (int t = 0; t < TENSORS; t++)
            ck_assert_mem_eq(half + tensors_of_test[t].offset, wanted + tensors_of_test[t].offset,
                             tensors_of_test[t].count * 2);
    }
}
END_TEST

/* One launch list of a stage alone, run. */
static void run_norm(struct rig *rig, const struct state *s)
{
    keel_launch_list_fini(&rig->list);
    ck_ok(keel_op_norm_tiles(rig->kernels, &s->tiles, &rig->list));
    ck_ok(keel_op_norm(rig->kernels, &s->norm, &rig->list));
    rig_run(rig);
}
static void run_update(struct rig *rig, const struct state *s)
{
    keel_launch_list_fini(&rig->list);
    ck_ok(keel_op_update(rig->kernels, &s->update, &rig->list));
    rig_run(rig);
}

/* A bit that flips in what says where tensors lie costs the update those that it speaks of, and nothing else;
 * the norm, of which all weights hang, reads and writes nothing outside either. */
START_TEST(tables_in_which_bits_have_flipped_lead_nowhere_outside)
{
    for (int v = 0; v < VARIANTS; v++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        const struct keel_control control = control_of(3);
        struct state s = build_variant(rig, &variants[v], &control);
        float before[9001];
        rig_run(rig);
        memcpy(before, rig_result(rig, s.update.w, FLAT * 4), sizeof before);
        rig = rig_shared((enum rig_kind)_i);
        s = build_variant(rig, &variants[v], &control);
        const uint32_t far = 0x40000003u;
        const uint64_t beyond = UINT64_C(1) << 50, little = 1024;
        const size_t at = sizeof tensors_of_test[0], count = offsetof(struct keel_update_tensor, count);
        const size_t tile = offsetof(struct keel_update_tensor, tile);
        run_norm(rig, &s);
        ck_ok(keel_queue_write(rig->queue, s.update.pages, 15 * 4, &far, 4, NULL, NULL));
        ck_ok(keel_queue_write(rig->queue, s.update.tensors, at, &beyond, 8, NULL, NULL));
        ck_ok(keel_queue_write(rig->queue, s.update.tensors, 2 * at + count, &beyond, 8, NULL, NULL));
        ck_ok(keel_queue_write(rig->queue, s.update.tensors, 4 * at, &little, 8, NULL, NULL));
        ck_ok(keel_queue_write(rig->queue, s.update.tensors, at + tile, &far, 4, NULL, NULL));
        ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(RIG_LIMIT_S * KEEL_NS_PER_S)));
        run_update(rig, &s);
        ck_assert_mem_eq(rig_result(rig, s.update.w, FLAT * 4), before, sizeof before);
        run_norm(rig, &s);
        const float *tiles = rig_result(rig, s.tiles.tiles, TILES_MAX * sizeof(float));
        ck_assert(tiles[0] == 0.0f &&
                  tiles[4] > 0.0f); /* the one reaches beyond the pages, the other is whole */
    }
}
END_TEST

/* ---- boxes ---- */

/* Columns of a matrix of 53 x 300 in four tiles, and some rows of it, where they lie and as copies of their
 * own. */
enum { BOX_ROWS = 53, BOX_COLUMNS = 300, BOXES = 5, BOX_FLAT = BOX_ROWS * BOX_COLUMNS };
static const struct box {
    uint32_t row, rows, column, columns;
} boxes[BOXES] = {{0, BOX_ROWS, 0, 1},
                  {0, BOX_ROWS, 1, 15},
                  {0, BOX_ROWS, 16, 100},
                  {0, BOX_ROWS, 116, 184},
                  {7, 20, 0, BOX_COLUMNS}};

static float *copy_of_box(const struct box *box, const float *x)
{
    float *copy = malloc(sizeof *copy * box->rows * box->columns);
    ck_assert_ptr_nonnull(copy);
    for (uint32_t r = 0; r < box->rows; r++)
        memcpy(copy + r * box->columns, x + (box->row + r) * BOX_COLUMNS + box->column,
               sizeof *copy * box->columns);
    return copy;
}

START_TEST(a_box_has_the_squares_of_a_copy_of_it)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    struct keel_update_tensor tensors[BOXES];
    uint32_t pages[64];
    const struct keel_control control = control_of(0);
    float *x = random_floats(BOX_FLAT, 3, -1.0f, 1.0f), tiles[BOXES];
    for (uint32_t b = 0; b < BOXES; b++)
        tensors[b] = (struct keel_update_tensor){.offset = boxes[b].row * BOX_COLUMNS + boxes[b].column,
                                                 .count = (uint64_t)boxes[b].rows * boxes[b].columns,
                                                 .row = boxes[b].columns,
                                                 .stride = BOX_COLUMNS,
                                                 .kind = KEEL_TENSOR_PLAIN,
                                                 .tile = b};
    struct keel_norm_tiles op = {.count = BOX_FLAT, .tensor_count = BOXES, .tile_count = BOXES};
    op.page_count = keel_norm_page_count(tensors, BOXES);
    ck_assert_uint_eq(op.page_count, 1 + 1 + 6 + 10 + 6);
    ck_ok(keel_norm_find_pages(tensors, BOXES, BOX_FLAT, pages));
    op.x = rig_bytes(rig, x, BOX_FLAT * sizeof *x);
    op.tensors = rig_bytes(rig, tensors, sizeof tensors);
    op.pages = rig_bytes(rig, pages, op.page_count * sizeof *pages);
    op.scratch = rig_bytes(rig, NULL, op.page_count * sizeof(float));
    op.tiles = rig_bytes(rig, NULL, sizeof tiles);
    ck_ok(keel_op_norm_tiles(rig->kernels, &op, &rig->list));
    rig_run(rig);
    memcpy(tiles, rig_result(rig, op.tiles, sizeof tiles), sizeof tiles);
    for (uint32_t b = 0; b < BOXES; b++) {
        const uint64_t count = tensors[b].count;
        const struct keel_update_tensor dense = {.count = count, .kind = KEEL_TENSOR_PLAIN, .tile = 0};
        float *copy = copy_of_box(&boxes[b], x);
        struct state s;
        rig_clear(rig);
        build_norm(rig, count, &dense, 1, &control, rig_bytes(rig, copy, count * sizeof *copy), &s);
        rig_run(rig);
        ck_assert_mem_eq(rig_result(rig, s.tiles.tiles, sizeof(float)), &tiles[b], sizeof(float));
        double exact = 0;
        for (uint64_t i = 0; i < count; i++)
            exact += (double)copy[i] * (double)copy[i];
        ck_assert_double_le(fabs(exact - (double)tiles[b]), 1e-6 * exact);
        free(copy);
    }
    free(x);
}
END_TEST

/* By numbers in the whole, of keel_digest and of an update that moves nothing; columns together are the
 * whole. */
START_TEST(a_box_has_the_digest_of_its_numbers_in_the_whole)
{
    enum { COLUMN_BOXES = 4 };
    float *x = random_floats(BOX_FLAT, 3, -1.0f, 1.0f);
    uint64_t sum = 0;
    for (uint32_t b = 0; b < BOXES; b++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        const uint64_t count = (uint64_t)boxes[b].rows * boxes[b].columns, first = UINT64_C(3) << 40;
        const uint64_t number = first + boxes[b].row * BOX_COLUMNS + boxes[b].column;
        float *copy = copy_of_box(&boxes[b], x);
        uint64_t wanted = 0;
        for (uint32_t i = 0; i < count; i++)
            wanted += keel_digest_host(&copy[i], 1,
                                       number + i / boxes[b].columns * BOX_COLUMNS + i % boxes[b].columns);
        struct keel_digest op = {
            .count = count, .first_element = number, .row = boxes[b].columns, .stride = BOX_COLUMNS};
        op.x = rig_bytes(rig, copy, count * sizeof *copy);
        op.digest = rig_bytes(rig, NULL, sizeof(uint64_t));
        op.scratch = rig_bytes(rig, NULL, keel_digest_scratch_bytes(count));
        ck_ok(keel_op_digest(rig->kernels, &op, &rig->list));
        const struct keel_update_tensor tensor = {.count = count,
                                                  .first_element = number,
                                                  .kind = KEEL_TENSOR_KEPT,
                                                  .row = boxes[b].columns,
                                                  .stride = BOX_COLUMNS};
        const struct keel_control control = control_of(0);
        struct state s = build_tensors(rig, count, &(struct keel_update_tensor){.count = count}, 1, &control,
                                       (struct keel_update){.nesterov = false});
        ck_ok(keel_queue_write(rig->queue, s.update.w, 0, copy, count * sizeof *copy, NULL, NULL));
        ck_ok(keel_queue_write(rig->queue, s.update.tensors, 0, &tensor, sizeof tensor, NULL, NULL));
        rig_run(rig);
        ck_assert_mem_eq(rig_result(rig, op.digest, sizeof wanted), &wanted, sizeof wanted);
        ck_assert_mem_eq(rig_result(rig, s.update.digest, sizeof wanted), &wanted, sizeof wanted);
        sum += b < COLUMN_BOXES ? wanted : 0;
        free(copy);
    }
    ck_assert(sum == keel_digest_host(x, BOX_FLAT, UINT64_C(3) << 40));
    free(x);
}
END_TEST

START_TEST(a_box_that_does_not_fit_is_refused)
{
    uint32_t pages[4];
    const struct keel_update_tensor bad[] = {{.offset = 0, .count = 0, .row = 1, .stride = 1},
                                             {.offset = 91, .count = 10, .row = 10, .stride = 10},
                                             {.offset = 8, .count = 9, .row = 3, .stride = 45},
                                             {.offset = 0, .count = 9, .row = 3, .stride = 2},
                                             {.offset = 0, .count = 9, .row = 3, .stride = UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_update_tensor tensor = bad[i];
        ck_status(keel_norm_find_pages(&tensor, 1, 100, pages), KEEL_INVALID);
    }
    struct keel_update_tensor right = {.offset = 7, .count = 9, .row = 3, .stride = 45};
    ck_ok(keel_norm_find_pages(&right, 1, 100, pages));
}
END_TEST

START_TEST(a_tensor_that_does_not_fit_is_refused)
{
    uint32_t pages[4];
    const struct keel_update_tensor bad[] = {{.offset = 16, .count = 5},
                                             {.offset = 1024, .count = 0},
                                             {.offset = 2048, .count = 1025},
                                             {.offset = 4096, .count = 1},
                                             {.offset = 0, .count = 1, .kind = KEEL_TENSOR_KIND_COUNT}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_status(keel_update_find_pages(&bad[i], 1, 3072, pages), KEEL_INVALID);
    const struct keel_update_tensor overlap[] = {{.offset = 0, .count = 1025}, {.offset = 1024, .count = 3}};
    ck_status(keel_update_find_pages(overlap, 2, 3072, pages), KEEL_INVALID);
}
END_TEST

/* ---- loss scale ---- */

/* Gradients 2^15 times too large, as a scaled loss makes them, give the norm and the weights of the others.
 */
START_TEST(a_scaled_gradient_gives_the_weights_of_the_gradient)
{
    const float scale = 0x1.8p+15F; /* 2^15 and half of the good steps to the next */
    float *grad = random_floats(5003, 1, -0.1f, 0.1f);
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const struct keel_control control = control_of(3);
    struct state plain = build(rig, 5003, &control);
    rig_run(rig);
    float norm[2];
    memcpy(norm, rig_result(rig, plain.norm.norm, 3 * sizeof(float)), sizeof norm);
    float *w = malloc(5003 * 4);
    ck_assert_ptr_nonnull(w);
    memcpy(w, rig_result(rig, plain.update.w, 5003 * 4), 5003 * 4);
    rig_clear(rig);
    for (int i = 0; i < 5003; i++)
        grad[i] *= 0x1p15F;
    struct state scaled = build(rig, 5003, &control);
    keel_launch_list_fini(&rig->list);
    scaled.norm.loss_scale = rig_bytes(rig, &scale, sizeof scale);
    ck_ok(keel_op_norm_tiles(rig->kernels, &scaled.tiles, &rig->list));
    ck_ok(keel_op_norm(rig->kernels, &scaled.norm, &rig->list));
    ck_ok(keel_op_update(rig->kernels, &scaled.update, &rig->list));
    ck_ok(keel_queue_write(rig->queue, scaled.tiles.x, 0, grad, 5003 * 4, NULL, NULL));
    rig_run(rig);
    const float *got = rig_result(rig, scaled.norm.norm, 3 * sizeof(float));
    ck_assert(got[0] == norm[0] && got[1] == norm[1] * 0x1p-15F && got[2] == 0x1p15F);
    ck_assert_mem_eq(rig_result(rig, scaled.update.w, 5003 * 4), w, 5003 * 4);
    free(w);
    free(grad);
}
END_TEST

/* The gradient of a loss is multiplied, exactly, and the loss is not. */
START_TEST(a_scaled_loss_has_the_gradient_times_a_power_of_two)
{
    enum { ROWS = 5, VOCAB = 67, COUNT = ROWS * VOCAB };
    const float scale = 0x1.8p+15F;
    const int32_t targets[ROWS] = {3, 66, 0, 1, 40};
    float loss[2][2], gradients[2][2][COUNT];
    for (int scaled = 0; scaled < 2; scaled++) {
        struct rig *rig = rig_shared((enum rig_kind)_i);
        struct keel_buffer *state = scaled != 0 ? rig_bytes(rig, &scale, sizeof scale) : NULL;
        struct keel_cross_entropy softmax = {.rows = ROWS,
                                             .vocab = VOCAB,
                                             .scale = 0.1f,
                                             .logits = rig_random(rig, COUNT, 1, -3.0f, 3.0f),
                                             .targets = rig_bytes(rig, targets, sizeof targets),
                                             .row_loss = rig_bytes(rig, NULL, ROWS * 4),
                                             .loss = rig_bytes(rig, NULL, 4),
                                             .dlogits = rig_bytes(rig, NULL, COUNT * 4),
                                             .loss_scale = state};
        struct keel_loss square = {.count = COUNT,
                                   .kind = KEEL_LOSS_MSE,
                                   .scale = 0.1f,
                                   .x = softmax.logits,
                                   .targets = rig_random(rig, COUNT, 2, 0.0f, 1.0f),
                                   .scratch = rig_bytes(rig, NULL, keel_loss_scratch_bytes(COUNT)),
                                   .loss = rig_bytes(rig, NULL, 4),
                                   .dx = rig_bytes(rig, NULL, COUNT * 4),
                                   .loss_scale = state};
        ck_ok(keel_op_cross_entropy(rig->kernels, &softmax, &rig->list));
        ck_ok(keel_op_loss(rig->kernels, &square, &rig->list));
        rig_run(rig);
        loss[scaled][0] = *(float *)rig_result(rig, softmax.loss, 4);
        loss[scaled][1] = *(float *)rig_result(rig, square.loss, 4);
        memcpy(gradients[scaled][0], rig_result(rig, softmax.dlogits, COUNT * 4), COUNT * 4);
        memcpy(gradients[scaled][1], rig_result(rig, square.dx, COUNT * 4), COUNT * 4);
    }
    for (int of = 0; of < 2; of++) {
        ck_assert(loss[0][of] == loss[1][of] && loss[0][of] > 0.0f);
        for (int i = 0; i < COUNT; i++)
            ck_assert(gradients[1][of][i] == gradients[0][of][i] * 0x1p15f);
    }
}
END_TEST

START_TEST(a_refused_step_halves_the_scale_and_2048_good_ones_double_it)
{
    struct rig *rig = rig_shared((enum rig_kind)_i);
    const float begun = 65536.0f, good[3] = {1.0f, 1.0f, 65536.0f}, bad[3] = {INFINITY, 0.0f, 65536.0f};
    struct keel_loss_scale op = {.state = rig_bytes(rig, &begun, 4),
                                 .norm = rig_bytes(rig, good, sizeof good)};
    ck_ok(keel_op_loss_scale(rig->kernels, &op, &rig->list));
    for (int i = 0; i < 2047; i++)
        ck_ok(keel_launch_list_run(&rig->list, rig->queue));
    ck_assert_float_eq(*(float *)rig_result(rig, op.state, 4), 65536.0f * (2.0f - 0x1p-11f));
    rig_run(rig);
    ck_assert_float_eq(*(float *)rig_result(rig, op.state, 4), 131072.0f);
    rig_run(rig);
    ck_ok(keel_queue_write(rig->queue, op.norm, 0, bad, sizeof bad, NULL, NULL));
    rig_run(rig); /* forgets the good step */
    ck_assert_float_eq(*(float *)rig_result(rig, op.state, 4), 65536.0f);
    for (int i = 0; i < 20; i++)
        rig_run(rig);
    ck_assert_float_eq(*(float *)rig_result(rig, op.state, 4), 1.0f);
}
END_TEST

/* The digest of any split of a tensor is the digest of the whole, on the device and on the host. */
START_TEST(a_digest_does_not_depend_on_the_split)
{
    enum { COUNT = 50021 };
    struct rig *rig = rig_shared((enum rig_kind)_i);
    float *x = random_floats(COUNT, 6, -1.0f, 1.0f);
    const uint64_t whole = keel_digest_host(x, COUNT, 1000);
    const uint64_t cuts[][4] = {{0, COUNT, COUNT, COUNT}, {0, 1, 4097, COUNT}, {0, 20000, 20007, COUNT}};
    for (int c = 0; c < 3; c++) {
        rig_clear(rig);
        struct keel_buffer *digest = rig_bytes(rig, NULL, 8);
        for (int part = 0; part < 3; part++) {
            uint64_t first = cuts[c][part], count = cuts[c][part + 1] - first;
            if (count == 0)
                continue;
            struct keel_digest op = {.count = count,
                                     .first_element = 1000 + first,
                                     .x = rig_bytes(rig, x + first, count * 4),
                                     .digest = digest,
                                     .scratch = rig_bytes(rig, NULL, keel_digest_scratch_bytes(count))};
            ck_ok(keel_op_digest(rig->kernels, &op, &rig->list));
        }
        rig_run(rig);
        const uint64_t *got = rig_result(rig, digest, 8);
        ck_assert_uint_eq(got[0], whole);
    }
    golden_check("digest 50021", whole);
    x[777] = -x[777];
    ck_assert_uint_ne(keel_digest_host(x, COUNT, 1000), whole);
    float swap = x[3];
    x[777] = -x[777], x[3] = x[4], x[4] = swap;
    ck_assert_uint_ne(keel_digest_host(x, COUNT, 1000), whole);
    free(x);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, norm_and_adamw_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, moments_of_every_exponent_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, one_faded_moment_among_sixteen_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, a_norm_of_three_levels_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, a_norm_does_not_depend_on_where_tensors_lie, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, tiles_of_two_ranks_add_up_to_the_bits_of_one, 0, RIG_DEVICES + 1);
    tcase_add_test(tc, norm_and_adamw_are_near_the_truth);
    tcase_add_test(tc, clipping_acts_only_above_the_limit);
    tcase_add_loop_test(tc, a_gradient_that_is_not_finite_changes_no_weight, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, every_optimizer_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_loop_test(tc, every_optimizer_is_near_the_truth, 0, VARIANTS);
    tcase_add_loop_test(tc, tables_in_which_bits_have_flipped_lead_nowhere_outside, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, one_pass_leaves_the_digest_and_the_copy_of_separate_ones, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_box_has_the_squares_of_a_copy_of_it, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_box_has_the_digest_of_its_numbers_in_the_whole, 0, RIG_DEVICES + 1);
    tcase_add_test(tc, a_box_that_does_not_fit_is_refused);
    tcase_add_test(tc, a_tensor_that_does_not_fit_is_refused);
    tcase_add_loop_test(tc, a_scaled_gradient_gives_the_weights_of_the_gradient, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_scaled_loss_has_the_gradient_times_a_power_of_two, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_refused_step_halves_the_scale_and_2048_good_ones_double_it, 0, RIG_DEVICES + 1);
    tcase_add_loop_test(tc, a_digest_does_not_depend_on_the_split, 0, RIG_DEVICES + 1);
}

KEEL_TEST_MAIN("optimizer", cases, RIG_LIMIT_S)
