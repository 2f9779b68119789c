/* shape_test.c - concatenate, slice, permute, multiply: same bits everywhere, each element where it belongs,
 * and gradients that bring it back. */
#include <keel/shape_ops.h>

#include "op_fixture.h"

/* ---- concatenate and slice ---- */

struct parts {
    uint64_t outer, inner, sizes[5];
    uint32_t count;
};
static const struct parts joins[] = {{1, 1, {1}, 1},
                                     {1, 17, {3, 1, 5}, 3},
                                     {13, 1, {7, 31, 2, 1, 16}, 5},
                                     {3, 64, {2, 9}, 2},
                                     {131, 67, {1, 3, 2}, 3}};
enum { JOINS = sizeof joins / sizeof joins[0] };

static uint64_t joined(const struct parts *p)
{
    uint64_t size = 0;
    for (uint32_t i = 0; i < p->count; i++)
        size += p->sizes[i];
    return size;
}

/* Joins the parts, takes the second-last of them out of the whole again, and puts that back among zeros. */
static void join_body(struct rig *rig, const void *shape)
{
    const struct parts *p = shape;
    const uint64_t count = p->outer * joined(p) * p->inner;
    struct keel_buffer *input[5];
    for (uint32_t i = 0; i < p->count; i++)
        input[i] = rig_random(rig, p->outer * p->sizes[i] * p->inner, i + 1, -1.0f, 1.0f);
    struct keel_concat op = {.outer = p->outer,
                             .inner = p->inner,
                             .parts = p->count,
                             .sizes = p->sizes,
                             .input = input,
                             .y = rig_bytes(rig, NULL, count * 4)};
    const uint32_t picked = p->count > 1 ? p->count - 2 : 0;
    struct keel_slice cut = {
        .outer = p->outer, .inner = p->inner, .size = joined(p), .count = p->sizes[picked], .x = op.y};
    for (uint32_t i = 0; i < picked; i++)
        cut.from += p->sizes[i];
    cut.y = rig_bytes(rig, NULL, p->outer * cut.count * p->inner * 4);
    struct keel_slice back = cut;
    back.x = rig_random(rig, count, 9, -1.0f, 1.0f);
    ck_ok(keel_op_concat(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_slice(rig->kernels, &cut, &rig->list));
    ck_ok(keel_op_slice_grad(rig->kernels, &back, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, count * 4);
    rig_result(rig, cut.y, p->outer * cut.count * p->inner * 4);
    rig_result(rig, back.x, count * 4);
}

START_TEST(joining_and_cutting_give_the_same_bits)
{
    for (int i = 0; i < JOINS; i++) {
        char name[64];
        snprintf(name, sizeof name, "concat %llux%llu-%u", (unsigned long long)joins[i].outer,
                 (unsigned long long)joins[i].inner, joins[i].count);
        same_bits((enum rig_kind)_i, name, join_body, &joins[i]);
    }
}
END_TEST

START_TEST(a_part_lies_where_it_belongs_and_comes_out_again)
{
    for (int j = 0; j < JOINS; j++) {
        const struct parts *p = &joins[j];
        const uint64_t row = joined(p) * p->inner;
        struct rig *rig = rig_shared(RIG_HOST);
        join_body(rig, p);
        const float *y = rig->results[0], *cut = rig->results[1], *back = rig->results[2];
        uint64_t from = 0;
        for (uint32_t i = 0; i < p->count; i++) {
            const bool picked = p->count == 1 || i == p->count - 2;
            const uint64_t run = p->sizes[i] * p->inner;
            float *part = random_floats(p->outer * run, i + 1, -1.0f, 1.0f);
            for (uint64_t o = 0; o < p->outer; o++) {
                ck_assert_mem_eq(y + o * row + from, part + o * run, run * 4);
                if (picked)
                    ck_assert_mem_eq(cut + o * run, part + o * run, run * 4);
                for (uint64_t e = 0; e < run; e++)
                    ck_assert(back[o * row + from + e] == (picked ? part[o * run + e] : 0.0f));
            }
            from += run;
            free(part);
        }
    }
}
END_TEST

/* ---- permute ---- */

static const struct keel_permute turns[] = {
    {.dims = 1, .size = {7}, .order = {0}},
    {.dims = 2, .size = {1, 1}, .order = {1, 0}},
    {.dims = 2, .size = {37, 331}, .order = {1, 0}},
    {.dims = 3, .size = {5, 67, 131}, .order = {2, 0, 1}},
    {.dims = 3, .size = {3, 48, 64}, .order = {0, 2, 1}},
    {.dims = 4, .size = {2, 33, 4, 16}, .order = {0, 2, 1, 3}},
    {.dims = 4, .size = {3, 17, 2, 19}, .order = {3, 1, 2, 0}},
    {.dims = 4, .size = {2, 3, 19, 35}, .order = {3, 2, 1, 0}},
    {.dims = 4, .size = {2, 16, 5, 32}, .order = {0, 2, 3, 1}},
};
enum { TURNS = sizeof turns / sizeof turns[0] };

static uint64_t volume(const struct keel_permute *p)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < p->dims; i++)
        count *= p->size[i];
    return count;
}

/* There and back. */
static void turn_body(struct rig *rig, const void *shape)
{
    struct keel_permute op = *(const struct keel_permute *)shape, back = {.dims = op.dims};
    const uint64_t bytes = volume(&op) * 4;
    op.x = rig_random(rig, volume(&op), 1, -1.0f, 1.0f);
    back.x = op.y = rig_bytes(rig, NULL, bytes);
    back.y = rig_bytes(rig, NULL, bytes);
    for (uint32_t i = 0; i < op.dims; i++) {
        back.size[i] = op.size[op.order[i]];
        back.order[op.order[i]] = i;
    }
    ck_ok(keel_op_permute(rig->kernels, &op, &rig->list));
    ck_ok(keel_op_permute(rig->kernels, &back, &rig->list));
    rig_run(rig);
    rig_result(rig, op.y, bytes);
    rig_result(rig, back.y, bytes);
}

START_TEST(permuting_gives_the_same_bits)
{
    for (int i = 0; i < TURNS; i++) {
        char name[64];
        snprintf(name, sizeof name, "permute %d", i);
        same_bits((enum rig_kind)_i, name, turn_body, &turns[i]);
    }
}
END_TEST

START_TEST(permuting_moves_each_element_and_the_gradient_moves_it_back)
{
    for (int t = 0; t < TURNS; t++) {
        const struct keel_permute *p = &turns[t];
        struct rig *rig = rig_shared(RIG_HOST);
        turn_body(rig, p);
        const float *y = rig->results[0];
        float *x = random_floats(volume(p), 1, -1.0f, 1.0f);
        ck_assert_mem_eq(rig->results[1], x, volume(p) * 4);
        for (uint64_t at = 0; at < volume(p); at++) {
            uint64_t index[4] = {0}, rest = at, from = 0; /* of y's dimensions, by x's */
            for (uint32_t i = p->dims; i-- > 0; rest /= p->size[p->order[i]])
                index[p->order[i]] = rest % p->size[p->order[i]];
            for (uint32_t i = 0; i < p->dims; i++)
                from = from * p->size[i] + index[i];
            ck_assert(y[at] == x[from]);
        }
        free(x);
    }
}
END_TEST

/* ---- multiply ---- */

static const uint64_t counts[] = {1, 17, 4096, 4097, 70001};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* The product and both gradients, each of which is a product too. */
static void multiply_body(struct rig *rig, const void *shape)
{
    const uint64_t count = *(const uint64_t *)shape;
    struct keel_buffer *in[3]; /* a, b, dy */
    for (uint32_t i = 0; i < 3; i++)
        in[i] = rig_random(rig, count, i + 1, -2.0f, 2.0f);
    const uint32_t pairs[3][2] = {{0, 1}, {2, 1}, {2, 0}};
    for (uint32_t i = 0; i < 3; i++) {
        struct keel_multiply op = {
            .count = count, .a = in[pairs[i][0]], .b = in[pairs[i][1]], .y = rig_bytes(rig, NULL, count * 4)};
        ck_ok(keel_op_multiply(rig->kernels, &op, &rig->list));
        rig_run(rig);
        rig_result(rig, op.y, count * 4);
        keel_launch_list_fini(&rig->list);
    }
}

START_TEST(multiplying_gives_the_same_bits_and_rounds_once)
{
    for (int i = 0; i < COUNTS; i++) {
        char name[64];
        snprintf(name, sizeof name, "multiply %llu", (unsigned long long)counts[i]);
        same_bits((enum rig_kind)_i, name, multiply_body, &counts[i]);
    }
    struct rig *rig = rig_shared(RIG_HOST);
    multiply_body(rig, &counts[1]);
    float *a = random_floats(17, 1, -2.0f, 2.0f), *b = random_floats(17, 2, -2.0f, 2.0f);
    float *dy = random_floats(17, 3, -2.0f, 2.0f);
    for (int i = 0; i < 17; i++) {
        ck_assert(((const float *)rig->results[0])[i] == (float)((double)a[i] * (double)b[i]));
        ck_assert(((const float *)rig->results[1])[i] == (float)((double)dy[i] * (double)b[i]));
        ck_assert(((const float *)rig->results[2])[i] == (float)((double)dy[i] * (double)a[i]));
    }
    free(a);
    free(b);
    free(dy);
}
END_TEST

/* ---- what is refused ---- */

static void refused(enum keel_status status, const char *detail)
{
    ck_status(status, KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), detail) != NULL, "%s", keel_detail());
}

START_TEST(wrong_descriptors_are_refused_by_name)
{
    struct rig *rig = rig_shared(RIG_HOST);
    struct keel_buffer *small = rig_bytes(rig, NULL, 32), *out = rig_bytes(rig, NULL, 32);
    struct keel_buffer *input[2] = {small, small};
    const uint64_t sizes[2] = {4, 4}, empty[2] = {4, 0};
    struct keel_concat join = {.outer = 1, .inner = 1, .parts = 2, .sizes = sizes, .input = input, .y = out};
    ck_ok(keel_op_concat(rig->kernels, &join, &rig->list));
    keel_launch_list_fini(&rig->list);
    join.sizes = empty;
    refused(keel_op_concat(rig->kernels, &join, &rig->list), "concat: part 1 is [1, 0, 1]");
    join.sizes = sizes;
    join.inner = 2;
    refused(keel_op_concat(rig->kernels, &join, &rig->list), "concat: y holds 32 bytes, needs 64");
    join.parts = 0;
    refused(keel_op_concat(rig->kernels, &join, &rig->list), "concat: 0 parts");
    struct keel_slice cut = {
        .outer = 1, .size = 8, .inner = 1, .from = 5, .count = 4, .x = small, .y = small};
    refused(keel_op_slice(rig->kernels, &cut, &rig->list), "slice: 4 from 5 of [1, 8, 1]");
    refused(keel_op_slice_grad(rig->kernels, &cut, &rig->list), "slice_grad: 4 from 5 of [1, 8, 1]");
    cut.size = UINT64_MAX / 2;
    refused(keel_op_slice(rig->kernels, &cut, &rig->list), "slice: 4 from 5 of");
    struct keel_permute turn = {.dims = 2, .size = {2, 4}, .order = {1, 1}, .x = small, .y = small};
    refused(keel_op_permute(rig->kernels, &turn, &rig->list), "permute: {1, 1, 0, 0} is no order of 2");
    turn.order[1] = 0;
    turn.size[0] = 0;
    refused(keel_op_permute(rig->kernels, &turn, &rig->list), "permute: dimension 0 of 2 is 0");
    turn.dims = 5;
    refused(keel_op_permute(rig->kernels, &turn, &rig->list), "permute: 5 dimensions");
    struct keel_multiply product = {.count = 9, .a = small, .b = small, .y = small};
    refused(keel_op_multiply(rig->kernels, &product, &rig->list), "multiply: a holds 32 bytes, needs 36");
    product.count = 0;
    refused(keel_op_multiply(rig->kernels, &product, &rig->list), "multiply: no elements");
    ck_assert_uint_eq(rig->list.count, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, joining_and_cutting_give_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, a_part_lies_where_it_belongs_and_comes_out_again);
    tcase_add_loop_test(tc, permuting_gives_the_same_bits, 0, RIG_DEVICES);
    tcase_add_test(tc, permuting_moves_each_element_and_the_gradient_moves_it_back);
    tcase_add_loop_test(tc, multiplying_gives_the_same_bits_and_rounds_once, 0, RIG_DEVICES);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("shape", cases, RIG_LIMIT_S)
