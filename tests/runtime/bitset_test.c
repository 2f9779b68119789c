/* bitset_test.c - sets of members, ranks or nodes, against an array of flags. */
#include "bitset.h"
#include "harness.h"

START_TEST(a_set_holds_what_was_added_and_nothing_else)
{
    static const uint32_t numbers[] = {0, 1, 62, 63, KEEL_BITSET_BITS - 1};
    struct keel_bitset set = {{0}};
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

START_TEST(random_sets_are_walked_counted_and_joined_as_flags_are)
{
    uint64_t state = 3;
    for (uint32_t round = 0; round < 200; round++) {
        bool flags[2][KEEL_BITSET_BITS] = {{false}};
        struct keel_bitset sets[2] = {{{0}}, {{0}}};
        for (uint32_t i = 0; i < round; i++) {
            state = state * UINT64_C(6364136223846793005) + 1;
            const uint32_t number = (uint32_t)(state >> 33) % KEEL_BITSET_BITS;
            flags[i % 2][number] = true;
            keel_bitset_add(&sets[i % 2], number);
        }
        keel_bitset_add_all(&sets[0], &sets[1]);
        uint32_t count = 0, at = keel_bitset_next(&sets[0], 0);
        for (uint32_t i = 0; i < KEEL_BITSET_BITS; i++) {
            const bool in = flags[0][i] || flags[1][i];
            ck_assert(keel_bitset_has(&sets[0], i) == in);
            ck_assert(keel_bitset_has(&sets[1], i) == flags[1][i]);
            ck_assert((at == i) == in);
            at = at == i ? keel_bitset_next(&sets[0], i + 1) : at;
            count += in ? 1 : 0;
        }
        ck_assert_uint_eq(at, KEEL_BITSET_BITS);
        ck_assert_uint_eq(keel_bitset_count(&sets[0]), count);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_set_holds_what_was_added_and_nothing_else);
    tcase_add_test(tc, random_sets_are_walked_counted_and_joined_as_flags_are);
}

KEEL_TEST_MAIN("bitset", cases, 60)
