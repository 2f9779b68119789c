/* axes_test.c - who has which slices, and which shards, against what it is by definition: columns that differ
 * by one rank at most, as many ranks where they were as can be, and data positions that are whole. */
#include "axes.h"
#include "block_count.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>

static uint32_t random_state = 1;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

enum { MANY = 4096 };
static uint16_t had[KEEL_MEMBERS_MAX + 1];

/* Most are where they were, some are new, or come from a cut with more places. */
static void draw_places(uint32_t ranks, uint32_t tensor)
{
    memset(had, next_random(2) == 0 ? 0 : 0xff,
           sizeof had); /* also behind the last rank, where nobody may look */
    for (uint32_t r = 0; r < ranks; r++)
        had[r] = next_random(4) == 0 ? KEEL_NO_PLACE : (uint16_t)next_random(tensor + next_random(3));
}

/* So many can stay where columns have `ranks / tensor` ranks, or one more in as many as that leaves. */
static uint32_t most_that_stay(uint32_t ranks, uint32_t tensor)
{
    uint32_t stay = 0, more = 0;
    for (uint32_t k = 0; k < tensor; k++) {
        uint32_t were = 0;
        for (uint32_t r = 0; r < ranks; r++)
            were += had[r] == k;
        stay += were < ranks / tensor ? were : ranks / tensor;
        more += were > ranks / tensor;
    }
    return stay + (more < ranks % tensor ? more : ranks % tensor);
}

/* Some of those who have a place of the cut must keep it. */
static bool stays[KEEL_MEMBERS_MAX];

static void draw_stays(uint32_t ranks, uint32_t tensor, bool any)
{
    for (uint32_t r = 0; r < ranks; r++)
        stays[r] = any && had[r] < tensor && next_random(2) == 0;
}

/* Nobody goes who must not, and nobody who might is in a place with two more than another. */
static void check_stays(const struct keel_axes *axes, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (stays[r])
            ck_assert_uint_eq(axes->place[r], had[r]);
        else
            ck_assert_uint_le(axes->column_count[axes->place[r]], axes->data + 1);
    }
}

static void check_column(const struct keel_axes *axes, uint32_t place)
{
    static uint16_t ranks[KEEL_MEMBERS_MAX];
    keel_axes_column(axes, place, ranks);
    ck_assert_uint_eq(axes->first[place], axes->column_count[place] > 0 ? ranks[0] : KEEL_RANK_NONE);
    for (uint32_t i = 0; i < axes->column_count[place]; i++)
        ck_assert(axes->place[ranks[i]] == place && axes->index[ranks[i]] == i);
}

static void check_places(const struct keel_axes *axes, uint32_t ranks, uint32_t tensor, bool level)
{
    uint32_t count[KEEL_SLICES_MAX] = {0}, least = ranks, most = 0, stayed = 0;
    ck_assert(axes->ranks == ranks && axes->tensor == tensor);
    for (uint32_t r = 0; r < ranks; r++) {
        ck_assert_uint_lt(axes->place[r], tensor);
        ck_assert_uint_eq(axes->index[r], count[axes->place[r]]);
        if (ranks < MANY || r % 64 == 0) /* each looks at all: columns are looked at as well */
            ck_assert_uint_eq(keel_axes_rank(axes, axes->place[r], axes->index[r]), r);
        count[axes->place[r]]++;
        stayed += had[r] == axes->place[r];
    }
    for (uint32_t k = 0; k < tensor; k++) {
        ck_assert_uint_eq(axes->column_count[k], count[k]);
        least = count[k] < least ? count[k] : least;
        most = count[k] > most ? count[k] : most;
    }
    for (uint32_t k = 0; k < tensor; k++)
        check_column(axes, k);
    ck_assert_uint_eq(axes->data, least);
    check_stays(axes, ranks);
    ck_assert(!level || most - least <= 1);
    if (level)
        ck_assert_uint_eq(stayed, most_that_stay(ranks, tensor));
}

START_TEST(ranks_stay_where_they_were_as_far_as_columns_are_level)
{
    static struct keel_axes axes;
    for (uint32_t i = 0; i < 4000; i++) {
        const uint32_t most = i % 100 == 0 ? MANY : 20;
        const uint32_t ranks = i % 100 == 0 ? MANY : 1 + next_random(most);
        const uint32_t tensor = 1 + next_random(ranks < KEEL_SLICES_MAX ? ranks : KEEL_SLICES_MAX);
        draw_places(ranks, tensor);
        draw_stays(ranks, tensor, i % 2 == 1);
        keel_axes_find(had, stays, ranks, tensor, &axes);
        check_places(&axes, ranks, tensor, i % 2 == 0);
    }
}
END_TEST

/* All had one place, and all but one in `tensor` must go; with its columns. */
START_TEST(steps_grow_as_the_ranks_do)
{
    static struct keel_axes axes;
    static uint16_t column[KEEL_MEMBERS_MAX];
    uint64_t blocks[2];
    memset(had, 0, sizeof had);
    memset(stays, 0, sizeof stays);
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t ranks = i == 0 ? KEEL_MEMBERS_MAX / 8 : KEEL_MEMBERS_MAX;
        blocks_begin();
        keel_axes_find(had, stays, ranks, 8, &axes);
        for (uint32_t place = 0; place < 8; place++)
            keel_axes_column(&axes, place, column);
        blocks[i] = blocks_end();
        printf("note: %u ranks in 8 places: %llu basic blocks\n", ranks, (unsigned long long)blocks[i]);
    }
    blocks_check(blocks, 8);
}
END_TEST

START_TEST(places_are_as_many_as_asked_for_and_ranks_allow)
{
    for (uint32_t ranks = 1; ranks < 9; ranks++)
        for (uint32_t asked = 0; asked < 12; asked++) {
            const uint32_t least = asked < ranks ? asked : ranks;
            ck_assert_uint_eq(keel_axes_tensor(ranks, asked), least == 0 ? 1 : least);
        }
}
END_TEST

/* Slices lie one after the other, floor(k T / tensor) before place k; a shard's position is floor(s data /
 * shards). */
START_TEST(slices_and_shards_are_shared_as_floors_say)
{
    for (uint32_t whole = 1; whole <= KEEL_SLICES_MAX; whole++)
        for (uint32_t parts = 1; parts <= whole; parts++)
            for (uint32_t i = 0; i <= whole; i++) {
                uint32_t slice = 0, position = 0;
                while ((slice + 1) * parts <= (i < parts ? i : parts) * whole)
                    slice++;
                while ((position + 1) * whole <= i * parts)
                    position++;
                if (i <= parts)
                    ck_assert_uint_eq(keel_axes_slice(whole, parts, i), slice);
                if (i < whole)
                    ck_assert_uint_eq(keel_axes_position(whole, parts, i), position);
            }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, ranks_stay_where_they_were_as_far_as_columns_are_level);
    tcase_add_test(tc, steps_grow_as_the_ranks_do);
    tcase_add_test(tc, places_are_as_many_as_asked_for_and_ranks_allow);
    tcase_add_test(tc, slices_and_shards_are_shared_as_floors_say);
}

KEEL_TEST_MAIN("axes", cases, 60)
