/* gemm_check_test.c - a product's checksums find what has changed in its result, and nothing else. */
#include "device_rig.h"

enum { FLIPS = 400, PAD = 5 };

struct checked {
    struct keel_gemm op;
    struct keel_buffer *report;
    uint64_t c_count;
    float *c; /* as the device computed it */
};

/* Computes a product with checksums on one device. */
static struct checked compute(struct rig_device *on, uint32_t m, uint32_t n, uint32_t k, uint32_t batch,
                              bool pre)
{
    struct checked it = {.op = {.m = m,
                                .n = n,
                                .k = k,
                                .batch = batch,
                                .lda = k,
                                .ldb = n,
                                .ldc = n + PAD,
                                .stride_a = (uint64_t)m * k,
                                .stride_b = (uint64_t)k * n,
                                .stride_c = (uint64_t)m * (n + PAD)}};
    struct keel_launch_list list = {0};
    it.c_count = it.op.stride_c * batch;
    float *a = rig_numbers(1, it.op.stride_a * batch), *b = rig_numbers(2, it.op.stride_b * batch);
    it.c = rig_numbers(0, it.c_count);
    it.op.a = rig_buffer(on, a, it.op.stride_a * batch * sizeof(float));
    it.op.b = rig_buffer(on, b, it.op.stride_b * batch * sizeof(float));
    it.op.c = rig_buffer(on, NULL, it.c_count * sizeof(float));
    it.op.pre = pre ? rig_buffer(on, NULL, it.c_count * sizeof(float)) : NULL;
    it.op.checksums = rig_buffer(on, NULL, keel_gemm_checksum_bytes(&it.op));
    it.report = rig_buffer(on, NULL, KEEL_GEMM_REPORT_BYTES);
    ck_ok(keel_op_gemm(on->kernels, &it.op, &list));
    rig_run(on, &list);
    rig_read(on, it.op.c, it.c);
    free(a);
    free(b);
    return it;
}

/* Tiles that differ; *lowest is the first of them. */
static uint32_t check(struct rig_device *on, const struct checked *it, uint32_t *lowest)
{
    uint32_t report[2] = {0, UINT32_MAX};
    struct keel_launch_list list = {0};
    ck_ok(keel_queue_write(on->queue, it->report, 0, report, sizeof report, NULL, NULL));
    ck_ok(keel_op_gemm_check(on->kernels, &(struct keel_gemm_check){.product = &it->op, .report = it->report},
                             &list));
    rig_run(on, &list);
    rig_read(on, it->report, report);
    *lowest = report[1];
    return report[0];
}

static void put(struct rig_device *on, const struct checked *it, uint64_t at, const void *word)
{
    ck_ok(keel_queue_write(on->queue, it->op.c, at * sizeof(float), word, sizeof(float), NULL, NULL));
    ck_ok(keel_queue_finish(on->queue, keel_deadline_after_ns(RIG_LIMIT_NS)));
}

/* Turns `bit` of element (batch, i, j) over, looks, and turns it back. */
static void flip(struct rig_device *on, const struct checked *it, uint32_t batch, uint32_t i, uint32_t j,
                 uint32_t bit)
{
    uint64_t at = batch * it->op.stride_c + (uint64_t)i * it->op.ldc + j;
    uint32_t across = (it->op.n + 47) / 48, down = (it->op.m + 7) / 8, lowest, bits;
    memcpy(&bits, &it->c[at], sizeof bits);
    bits ^= UINT32_C(1) << bit;
    put(on, it, at, &bits);
    uint32_t found = check(on, it, &lowest);
    ck_assert_msg(found == 1 && lowest == (batch * down + i / 8) * across + j / 48,
                  "bit %u of (%u, %u, %u): %u tiles found, the lowest %u", bit, batch, i, j, found, lowest);
    put(on, it, at, &it->c[at]);
}

static uint32_t pick(uint64_t *state, uint32_t below)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % below;
}

START_TEST(any_flip_of_a_result_is_found_in_its_tile)
{
    static const uint32_t shapes[][4] = {{1, 1, 3, 1}, {8, 48, 16, 2}, {67, 97, 101, 2}, {20, 331, 31, 1}};
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            uint64_t state = s;
            uint32_t lowest, m = shapes[s][0], n = shapes[s][1], batch = shapes[s][3];
            struct checked it = compute(&rig[d], m, n, shapes[s][2], batch, s == 2);
            ck_assert_uint_eq(check(&rig[d], &it, &lowest), 0);
            ck_assert_uint_eq(lowest, UINT32_MAX);
            for (uint32_t f = 0; f < FLIPS; f++)
                flip(&rig[d], &it, pick(&state, batch), pick(&state, m), pick(&state, n), pick(&state, 32));
            ck_assert_uint_eq(check(&rig[d], &it, &lowest), 0);
            free(it.c);
            rig_clear(&rig[d]);
        }
    rig_close();
}
END_TEST

/* Rows that change places leave every plain sum as it was. */
START_TEST(rows_that_change_places_are_found)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct checked it = compute(on, 16, 96, 8, 1, false);
    uint32_t lowest;
    for (uint32_t j = 0; j < 96; j++) {
        put(on, &it, 9 * (uint64_t)it.op.ldc + j, &it.c[14 * (uint64_t)it.op.ldc + j]);
        put(on, &it, 14 * (uint64_t)it.op.ldc + j, &it.c[9 * (uint64_t)it.op.ldc + j]);
    }
    ck_assert_uint_eq(check(on, &it, &lowest), 2);
    ck_assert_uint_eq(lowest, 2);
    free(it.c);
    rig_close();
}
END_TEST

/* What lies between the rows belongs to others. */
START_TEST(what_lies_beside_the_result_is_not_looked_at)
{
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct checked it = compute(&rig[d], 10, 50, 7, 1, false);
        uint32_t lowest;
        for (uint64_t i = 0; i < it.op.m; i++)
            for (uint64_t j = it.op.n; j < it.op.ldc; j++)
                put(&rig[d], &it, i * it.op.ldc + j, &(float){1.0F});
        ck_assert_uint_eq(check(&rig[d], &it, &lowest), 0);
        free(it.c);
    }
    rig_close();
}
END_TEST

START_TEST(checksums_are_the_same_on_every_device)
{
    uint32_t sums[RIG_DEVICES][9 * 3 * 2];
    rig_open();
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct checked it = compute(&rig[d], 67, 97, 40, 2, true);
        ck_assert_uint_eq(keel_gemm_checksum_bytes(&it.op), sizeof sums[d]);
        rig_read(&rig[d], it.op.checksums, sums[d]);
        ck_assert_mem_eq(sums[d], sums[0], sizeof sums[0]);
        free(it.c);
    }
    rig_close();
}
END_TEST

START_TEST(a_check_without_checksums_is_refused_by_name)
{
    rig_open();
    struct checked it = compute(&rig[1], 10, 10, 10, 1, false);
    struct keel_launch_list list = {0};
    struct keel_gemm_check op = {.product = &it.op, .report = it.report};
    it.op.checksums = NULL;
    ck_status(keel_op_gemm_check(rig[1].kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "gemm_check"));
    it.op.checksums = it.report; /* too small */
    it.op.m = 30;
    ck_status(keel_op_gemm_check(rig[1].kernels, &op, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    free(it.c);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, any_flip_of_a_result_is_found_in_its_tile);
    tcase_add_test(tc, rows_that_change_places_are_found);
    tcase_add_test(tc, what_lies_beside_the_result_is_not_looked_at);
    tcase_add_test(tc, checksums_are_the_same_on_every_device);
    tcase_add_test(tc, a_check_without_checksums_is_refused_by_name);
}

KEEL_TEST_MAIN("gemm check", cases, 120)
