/* bitset_test.c - sets of members, ranks or nodes, against an array of flags. */
#include "bitset.h"
#include "harness.h"

#include <string.h>

START_TEST(a_set_holds_what_was_added_and_nothing_else)
{
    static const uint32_t numbers[] = {0, 1, 62, 63, KEEL_BITSET_BITS - 1};
    struct keel_bitset set = {.some = {0}};
    ck_assert_uint_eq(keel_bitset_count(&set), 0);
    ck_assert_uint_eq(keel_bitset_next(&set, 0), KEEL_BITSET_BITS);
    for (uint32_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        ck_assert(i == 0 || numbers[i] == numbers[i - 1] || !keel_bitset_has(&set, numbers[i]));
        keel_bitset_add(&set, numbers[i]);
        keel_bitset_add(&set, numbers[i]);
        ck_assert(keel_bitset_has(&set, numbers[i]));
    }
    ck_assert(!keel_bitset_has(&set, 2) && !keel_bitset_has(&set, 61));
    ck_assert_uint_eq(keel_bitset_next(&set, 2), 62);
    ck_assert_uint_eq(keel_bitset_next(&set, KEEL_BITSET_BITS), KEEL_BITSET_BITS);
}
END_TEST

/* An assertion of each number would be a write of each. */
static uint32_t count_wrong(const struct keel_bitset *set, const bool *flags)
{
    uint32_t wrong = 0, count = 0, at = keel_bitset_next(set, 0);
    for (uint32_t i = 0; i < KEEL_BITSET_BITS; i++) {
        wrong += keel_bitset_has(set, i) != flags[i] || (at == i) != flags[i];
        at = at == i ? keel_bitset_next(set, i + 1) : at;
        count += flags[i];
    }
    return wrong + (at != KEEL_BITSET_BITS) + (keel_bitset_count(set) != count);
}

START_TEST(random_sets_are_walked_counted_and_joined_as_flags_are)
{
    uint64_t state = 3;
    for (uint32_t round = 0; round < 200; round++) {
        static bool flags[2][KEEL_BITSET_BITS];
        struct keel_bitset sets[2] = {{.some = {0}}, {.some = {0}}};
        memset(flags, 0, sizeof flags);
        for (uint32_t i = 0; i < 2 * round; i++) {
            state = state * UINT64_C(6364136223846793005) + 1;
            const uint32_t drawn = (uint32_t)(state >> 33), half = round % 2 == 0 ? KEEL_BITSET_BITS : 300;
            const uint32_t number = drawn / 8 % half;
            flags[i % 2][number] = drawn % 4 != 0;
            if (drawn % 4 == 0)
                keel_bitset_remove(&sets[i % 2], number);
            else
                keel_bitset_add(&sets[i % 2], number);
        }
        ck_assert_uint_eq(count_wrong(&sets[0], flags[0]), 0);
        keel_bitset_add_all(&sets[0], &sets[1]);
        for (uint32_t i = 0; i < KEEL_BITSET_BITS; i++)
            flags[0][i] = flags[0][i] || flags[1][i];
        ck_assert_uint_eq(count_wrong(&sets[0], flags[0]), 0);
        ck_assert_uint_eq(count_wrong(&sets[1], flags[1]), 0);
        for (uint32_t i = 0; i < KEEL_BITSET_WORDS; i++)
            keel_bitset_put(&sets[1], i, sets[0].words[i]);
        ck_assert_mem_eq(&sets[1], &sets[0], sizeof sets[0]);
        for (uint32_t i = 0; i < KEEL_BITSET_WORDS; i++)
            keel_bitset_put(&sets[1], i, 0);
        ck_assert_mem_eq(&sets[1], &(struct keel_bitset){.some = {0}}, sizeof sets[1]);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_set_holds_what_was_added_and_nothing_else);
    tcase_add_test(tc, random_sets_are_walked_counted_and_joined_as_flags_are);
}

KEEL_TEST_MAIN("bitset", cases, 60)
