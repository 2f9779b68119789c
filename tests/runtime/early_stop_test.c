/* early_stop_test.c - where a run ends is a function of its validation losses, whoever hears them and how
 * often. */
#include "early_stop.h"
#include "harness.h"
#include <math.h>

static struct keel_early_stop stop;

static void begin(uint32_t patience, float min_delta)
{
    stop = (struct keel_early_stop){.patience = patience, .min_delta = min_delta};
}

/* Evaluations at steps 10, 20, ... */
static void give(const float *losses, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        keel_early_stop_add(&stop, 10 * (i + 1), losses[i]);
}

START_TEST(it_ends_when_so_many_in_a_row_were_no_better)
{
    static const float losses[] = {5, 4, 4.5F, 3, 3, 3.1F, 2};
    begin(2, 0);
    give(losses, 5);
    ck_assert_uint_eq(stop.end_step, 0);
    give(losses, 7); /* those that were heard before count once */
    ck_assert_uint_eq(stop.end_step, 60);
    ck_assert_uint_eq(stop.best.step, 40);
    ck_assert_float_eq(stop.best.loss, 3);
}
END_TEST

START_TEST(better_is_below_the_best_by_more_than_min_delta)
{
    static const float losses[] = {5, 4.6F, 4.4F, 4.2F, 3.9F, 3.8F, 3.7F};
    begin(3, 0.5F);
    give(losses, 7); /* 5 and 4.4 are, and 3.8 again */
    ck_assert_uint_eq(stop.end_step, 0);
    ck_assert_uint_eq(stop.best.step, 60);
}
END_TEST

START_TEST(a_loss_that_is_no_number_is_no_better)
{
    static const float losses[] = {NAN, 7, NAN, INFINITY};
    begin(2, 0);
    give(losses, 4);
    ck_assert_uint_eq(stop.end_step, 40);
    ck_assert_uint_eq(stop.best.step, 20);
    begin(2, 0);
    give((const float[]){NAN, -INFINITY}, 2);
    ck_assert_uint_eq(stop.end_step, 20);
    ck_assert_uint_eq(stop.best.step, 0);
}
END_TEST

START_TEST(who_goes_on_from_a_copy_finds_the_same_end)
{
    static const float losses[] = {5, 6, 4, 4, 4};
    begin(2, 0);
    give(losses, 3);
    const struct keel_early_stop copy = stop;
    give(losses, 5);
    ck_assert_uint_eq(stop.end_step, 50);
    stop = copy;
    ck_assert_uint_eq(stop.end_step, 0);
    give(losses, 5);
    ck_assert_uint_eq(stop.end_step, 50);
    ck_assert_uint_eq(stop.best.step, 30);
    keel_early_stop_forget(&stop);
    give(losses, 2);
    ck_assert_uint_eq(stop.end_step, 0);
    ck_assert_uint_eq(stop.best.step, 10);
}
END_TEST

START_TEST(without_patience_a_run_never_ends_so)
{
    begin(0, 0);
    give((const float[]){1, 2, 3, 4}, 4);
    ck_assert_uint_eq(stop.end_step, 0);
    ck_assert_uint_eq(stop.step, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, it_ends_when_so_many_in_a_row_were_no_better);
    tcase_add_test(tc, better_is_below_the_best_by_more_than_min_delta);
    tcase_add_test(tc, a_loss_that_is_no_number_is_no_better);
    tcase_add_test(tc, who_goes_on_from_a_copy_finds_the_same_end);
    tcase_add_test(tc, without_patience_a_run_never_ends_so);
}

KEEL_TEST_MAIN("early_stop", cases, 30)
