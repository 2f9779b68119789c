/* votes_test.c - what most say, against counting it value by value; and in how many steps. */
#include "block_count.h"
#include "harness.h"
#include "votes.h"

#include <keel/limits.h>
#include <stdio.h>
#include <string.h>

static uint32_t random_state = 1;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

static uint32_t count_of(const uint64_t *values, uint32_t count, uint64_t value)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += values[i] == value;
    return found;
}

START_TEST(as_many_say_it_as_there_are)
{
    uint64_t values[40], sorted[40] = {0};
    ck_assert_uint_eq(keel_votes_most(sorted, 0), 0);
    for (uint32_t i = 0; i < 3000; i++) {
        const uint32_t count = 1 + next_random(40), kinds = 1 + next_random(1 + next_random(40));
        uint32_t most = 0;
        for (uint32_t k = 0; k < count; k++)
            values[k] = (uint64_t)next_random(kinds) << 60 | next_random(2) << 3;
        memcpy(sorted, values, count * sizeof *values);
        keel_votes_sort(sorted, count);
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t its = count_of(values, count, values[k]);
            ck_assert_uint_eq(keel_votes_for(sorted, count, values[k]), its);
            most = its > most ? its : most;
        }
        ck_assert_uint_eq(keel_votes_most(sorted, count), most);
        ck_assert_uint_eq(keel_votes_for(sorted, count, 1), 0);
    }
}
END_TEST

/* Of ranks that all say something else, or by halves. _i: so many kinds. */
START_TEST(steps_are_n_log_n_where_nobody_agrees)
{
    static const uint32_t kinds[] = {KEEL_MEMBERS_MAX, 2};
    static uint64_t values[KEEL_MEMBERS_MAX];
    uint64_t blocks[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t count = i == 0 ? KEEL_MEMBERS_MAX / 8 : KEEL_MEMBERS_MAX;
        for (uint32_t k = 0; k < count; k++)
            values[k] = (k * 2654435761u) % kinds[_i];
        blocks_begin();
        keel_votes_sort(values, count);
        (void)keel_votes_most(values, count);
        for (uint32_t k = 0; k < count; k++)
            (void)keel_votes_for(values, count, values[k]);
        blocks[i] = blocks_end();
        printf("note: %u ranks of %u kinds: %llu basic blocks\n", count, kinds[_i],
               (unsigned long long)blocks[i]);
    }
    blocks_check(blocks, 8);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, as_many_say_it_as_there_are);
    tcase_add_loop_test(tc, steps_are_n_log_n_where_nobody_agrees, 0, 2);
}

KEEL_TEST_MAIN("votes", cases, 60)
