/* memory_test.c - host memory is zeroed, counted, and refuses what cannot be. */
#include "harness.h"
#include <keel/memory.h>
#include <stdint.h>
#include <string.h>

START_TEST(allocations_are_zero_and_counted)
{
    struct keel_memory_stats before = keel_memory_stats();
    unsigned char *data = NULL;
    ck_ok(keel_alloc(1000, 10, &data));
    for (int i = 0; i < 10000; i++)
        ck_assert_uint_eq(data[i], 0);
    struct keel_memory_stats during = keel_memory_stats();
    ck_assert_uint_eq(during.allocations, before.allocations + 1);
    ck_assert_uint_ge(during.live_bytes, before.live_bytes + 10000);
    ck_assert_uint_ge(during.peak_bytes, during.live_bytes);
    keel_free(data);
    keel_free(NULL);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, before.live_bytes);
    ck_assert_uint_eq(keel_memory_stats().peak_bytes, during.peak_bytes);
}
END_TEST

START_TEST(nothing_is_still_a_pointer)
{
    void *pointer = NULL;
    ck_ok(keel_alloc(0, 8, &pointer));
    ck_assert_ptr_nonnull(pointer);
    keel_free(pointer);
    ck_ok(keel_alloc_aligned(KEEL_CACHE_LINE_BYTES, 0, &pointer));
    ck_assert_ptr_nonnull(pointer);
    keel_free(pointer);
}
END_TEST

START_TEST(a_size_that_overflows_is_refused)
{
    int marker = 0;
    void *pointer = &marker;
    ck_status(keel_alloc(SIZE_MAX / 2, 3, &pointer), KEEL_NO_MEMORY);
    ck_assert_ptr_eq(pointer, &marker); /* unchanged on failure */
    ck_status(keel_realloc(&pointer, 0, SIZE_MAX / 2, 3), KEEL_NO_MEMORY);
    ck_assert_ptr_eq(pointer, &marker);
}
END_TEST

START_TEST(aligned_memory_is_aligned_and_zero)
{
    static const size_t alignments[] = {1, 8, KEEL_CACHE_LINE_BYTES, KEEL_PAGE_BYTES, 1 << 21};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        unsigned char *data = NULL;
        ck_ok(keel_alloc_aligned(alignments[i], 5000, &data));
        ck_assert_uint_eq((uintptr_t)data % alignments[i], 0);
        for (int b = 0; b < 5000; b++)
            ck_assert_uint_eq(data[b], 0);
        keel_free(data);
    }
}
END_TEST

START_TEST(growing_keeps_and_zeroes_shrinking_cuts)
{
    uint64_t before = keel_memory_stats().live_bytes;
    uint32_t *items = NULL;
    ck_ok(keel_realloc(&items, 0, 4, sizeof *items));
    for (uint32_t i = 0; i < 4; i++)
        items[i] = i + 1;
    ck_ok(keel_realloc(&items, 4, 100, sizeof *items));
    for (uint32_t i = 0; i < 100; i++)
        ck_assert_uint_eq(items[i], i < 4 ? i + 1 : 0);
    ck_ok(keel_realloc(&items, 100, 2, sizeof *items));
    ck_assert_uint_eq(items[1], 2);
    keel_free(items);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, before);
}
END_TEST

START_TEST(a_copy_of_a_string_is_its_own)
{
    char text[] = "board", *copy = NULL;
    ck_ok(keel_strdup(text, &copy));
    text[0] = 'x';
    ck_assert_str_eq(copy, "board");
    keel_free(copy);
}
END_TEST

START_TEST(rounding_up_goes_to_the_next_multiple)
{
    ck_assert_uint_eq(keel_round_up(0, 64), 0);
    ck_assert_uint_eq(keel_round_up(1, 64), 64);
    ck_assert_uint_eq(keel_round_up(64, 64), 64);
    ck_assert_uint_eq(keel_round_up(UINT64_C(1) << 40, 4096), UINT64_C(1) << 40);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, allocations_are_zero_and_counted);
    tcase_add_test(tc, nothing_is_still_a_pointer);
    tcase_add_test(tc, a_size_that_overflows_is_refused);
    tcase_add_test(tc, aligned_memory_is_aligned_and_zero);
    tcase_add_test(tc, growing_keeps_and_zeroes_shrinking_cuts);
    tcase_add_test(tc, a_copy_of_a_string_is_its_own);
    tcase_add_test(tc, rounding_up_goes_to_the_next_multiple);
}

KEEL_TEST_MAIN("memory", cases, 30)
