/* compressed_rows_test.c - sums of rows among real processes, against a dense matrix in the plainest loop. */
#include "compressed_model.h"
#include "ranks.h"

enum { MATRIX_ROWS = 300, WIDTH_MAX = 65, N_MAX = 5, ROWS_MAX = N_MAX * MATRIX_ROWS };

static const uint16_t one_shard[] = {0};

struct part {
    uint32_t indices[MATRIX_ROWS];
    float values[MATRIX_ROWS * WIDTH_MAX];
    struct keel_row_set set;
};

/* Rank `rank` has a row with some chance that differs by rank: every 5th has none at all. */
static bool has_row(uint64_t seed, uint32_t rank, uint32_t row)
{
    return compressed_mix(seed * 10 + rank, row) % 5 < (seed + rank) % 5;
}

static float row_value(uint64_t seed, uint32_t rank, uint32_t row, uint32_t column)
{
    return compressed_value(seed * 10 + rank, (uint64_t)row * WIDTH_MAX + column);
}

static void make_part(struct part *part, uint64_t seed, uint32_t rank, uint32_t width)
{
    part->set = (struct keel_row_set){.indices = part->indices, .values = part->values};
    for (uint32_t row = 0; row < MATRIX_ROWS; row++) {
        if (!has_row(seed, rank, row))
            continue;
        for (uint32_t column = 0; column < width; column++)
            part->values[part->set.count * width + column] = row_value(seed, rank, row, column);
        part->indices[part->set.count++] = row;
    }
}

/* The row of the sum; false when nobody has it. */
static bool dense_row(uint64_t seed, uint32_t ranks, uint32_t row, uint32_t width, bool average, float *out)
{
    bool any = false;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (!has_row(seed, rank, row))
            continue;
        for (uint32_t column = 0; column < width; column++) {
            float value = row_value(seed, rank, row, column);
            out[column] = any ? out[column] + value : value;
        }
        any = true;
    }
    for (uint32_t column = 0; column < width && any && average; column++)
        out[column] /= (float)ranks;
    return any;
}

static void check_union(struct rank *me, const struct keel_row_set *sum, uint64_t seed, uint32_t width,
                        bool average)
{
    uint64_t at = 0;
    float wanted[WIDTH_MAX];
    for (uint32_t row = 0; row < MATRIX_ROWS; row++) {
        if (!dense_row(seed, me->rank_count, row, width, average, wanted))
            continue;
        rank_check(me, at < sum->count && sum->indices[at] == row);
        rank_check(me, memcmp(sum->values + at * width, wanted, width * sizeof *wanted) == 0);
        at++;
    }
    rank_check(me, at == sum->count);
}

static struct keel_rows *rows_new(struct rank *me, enum keel_reduction reduction, uint32_t width,
                                  uint64_t rows_max)
{
    struct keel_rows *rows = NULL;
    struct keel_rows_config config = {.rank = me->rank,
                                      .rank_count = me->rank_count,
                                      .reduction = reduction,
                                      .width = width,
                                      .rows_max = rows_max};
    rank_ok(me, keel_rows_create(&config, &rows));
    return rows;
}

static int union_body(struct rank *me)
{
    static struct part part;
    const uint32_t widths[] = {1, 3, WIDTH_MAX};
    uint64_t sequence = 1;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    for (uint32_t k = 0; k < 6; k++) {
        uint32_t width = widths[k / 2];
        struct keel_rows *rows = rows_new(me, k % 2 == 0 ? KEEL_SUM : KEEL_AVERAGE, width, ROWS_MAX);
        for (uint64_t seed = 0; seed < 6; seed++, sequence += 3) {
            struct keel_row_set sum;
            make_part(&part, seed, me->rank, width);
            rank_ok(me, keel_rows_run(rows, group, sequence, &part.set, &sum, in_seconds(20)));
            check_union(me, &sum, seed, width, k % 2 == 1);
        }
        struct keel_row_set none = {0}, sum;
        rank_ok(me, keel_rows_run(rows, group, sequence, &none, &sum, in_seconds(20)));
        rank_check(me, sum.count == 0);
        sequence += 3;
        keel_rows_free(rows);
    }
    keel_group_close(group);
    return 0;
}

START_TEST(the_union_of_rows_is_the_dense_sum_to_the_bit)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i, 0, NULL, union_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Too many rows, then ranks that disagree: all hear it, and the group goes on. */
static int limit_body(struct rank *me)
{
    static struct part part;
    struct keel_row_set sum;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_rows *small = rows_new(me, KEEL_SUM, 3, 100), *large = rows_new(me, KEEL_SUM, 3, ROWS_MAX);
    struct keel_rows *odd = rows_new(me, KEEL_SUM, me->rank == 1 ? 4 : 3, ROWS_MAX);
    struct keel_rows *odder = rows_new(me, me->rank == 2 ? KEEL_AVERAGE : KEEL_SUM, 3, ROWS_MAX);
    make_part(&part, 2, me->rank, 3);
    rank_check(me, keel_rows_run(small, group, 1, &part.set, &sum, in_seconds(20)) == KEEL_LIMIT);
    rank_check(me, keel_rows_run(odd, group, 4, &part.set, &sum, in_seconds(20)) == KEEL_MISMATCH);
    rank_check(me, keel_rows_run(odder, group, 7, &part.set, &sum, in_seconds(20)) == KEEL_MISMATCH);
    rank_ok(me, keel_rows_run(large, group, 10, &part.set, &sum, in_seconds(20)));
    check_union(me, &sum, 2, 3, false);
    keel_group_close(group);
    keel_rows_free(small);
    keel_rows_free(large);
    keel_rows_free(odd);
    keel_rows_free(odder);
    return 0;
}

START_TEST(too_many_rows_and_disagreement_are_heard_by_all_and_end_nothing)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 0, NULL, limit_body);
    ranks_end(&ranks, -1);
}
END_TEST

START_TEST(bad_configs_of_rows_are_named)
{
    struct keel_rows *rows = NULL;
    const struct keel_rows_config good = {.rank_count = 1, .width = 2, .rows_max = 10};
    struct keel_rows_config bad = good;
    bad.rank = 1;
    ck_status(keel_rows_create(&bad, &rows), KEEL_INVALID);
    bad = good;
    bad.rank_count = KEEL_GROUP_RANKS_MAX + 1;
    ck_status(keel_rows_create(&bad, &rows), KEEL_INVALID);
    bad = good;
    bad.width = 0;
    ck_status(keel_rows_create(&bad, &rows), KEEL_INVALID);
    bad = good;
    bad.reduction = KEEL_MIN;
    ck_status(keel_rows_create(&bad, &rows), KEEL_INVALID);
    bad = good;
    bad.rows_max = UINT64_C(1) << 32;
    ck_status(keel_rows_create(&bad, &rows), KEEL_LIMIT);
    ck_assert_ptr_null(rows);
    keel_rows_free(NULL);
}
END_TEST

static int calls_body(struct rank *me)
{
    const uint32_t twice[] = {1, 4, 4}, down[] = {5, 4, 9};
    const float values[6] = {0};
    struct keel_row_set sum, set = {.count = 3, .indices = twice, .values = values};
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_rows *rows = rows_new(me, KEEL_SUM, 2, 100);
    rank_check(me, keel_rows_run(rows, group, 1, &set, &sum, in_seconds(20)) == KEEL_INVALID);
    set.indices = down;
    rank_check(me, keel_rows_run(rows, group, 1, &set, &sum, in_seconds(20)) == KEEL_INVALID);
    set.indices = NULL;
    rank_check(me, keel_rows_run(rows, group, 1, &set, &sum, in_seconds(20)) == KEEL_INVALID);
    set = (struct keel_row_set){.count = 1, .indices = down};
    rank_check(me, keel_rows_run(rows, group, 1, &set, &sum, in_seconds(20)) == KEEL_INVALID);
    keel_group_close(group);
    keel_rows_free(rows);
    return 0;
}

START_TEST(rows_that_do_not_ascend_or_are_missing_are_refused)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 0, NULL, calls_body);
    ranks_end(&ranks, -1);
}
END_TEST

static int lost_body(struct rank *me)
{
    static struct part part;
    struct keel_row_set sum;
    struct keel_group *group = rank_group(me, 1, 1, one_shard);
    struct keel_rows *rows = rows_new(me, KEEL_SUM, WIDTH_MAX, ROWS_MAX);
    make_part(&part, 2, me->rank, WIDTH_MAX);
    rank_ok(me, keel_rows_run(rows, group, 1, &part.set, &sum, in_seconds(20)));
    rank_say(me, 'r');
    if (me->rank == 1)
        rank_hear(me); /* never */
    rank_check(me, keel_rows_run(rows, group, 4, &part.set, &sum, in_seconds(20)) == KEEL_PEER_LOST);
    keel_group_close(group);
    keel_rows_free(rows);
    return 0;
}

START_TEST(a_rank_that_dies_before_its_rows_came_is_heard_of)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 0, NULL, lost_body);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_listen(&ranks, rank);
    kill(ranks.pids[1], SIGKILL);
    ranks_end(&ranks, 1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_union_of_rows_is_the_dense_sum_to_the_bit, 1, N_MAX + 1);
    tcase_add_test(tc, too_many_rows_and_disagreement_are_heard_by_all_and_end_nothing);
    tcase_add_test(tc, bad_configs_of_rows_are_named);
    tcase_add_test(tc, rows_that_do_not_ascend_or_are_missing_are_refused);
    tcase_add_test(tc, a_rank_that_dies_before_its_rows_came_is_heard_of);
}
KEEL_TEST_MAIN("transport sums of rows", cases, 60)
