/* step_records_test.c - what every rank says with a step is folded: ranks that say the same hear it and
 * gather nothing; of those that do not, all gather the records, and name the same rank. */
#include "rank_rig.h"

#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank says beside its weights, and what came of it. */
struct said {
    struct rank *rank;
    struct keel_trainer_step step;
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
};

static struct rank ranks[RANKS_MAX];
static struct said said[RANKS_MAX];

/* All say the same of step n. */
static void say(uint64_t n)
{
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        said[r] = (struct said){.rank = &ranks[r], .step = rank_step(&ranks[r], n)};
}

static void say_loss(uint32_t r, uint32_t bits)
{
    said[r].step.has_loss = true;
    said[r].step.loss_bits = bits;
}

static void *run_one(void *argument)
{
    struct said *of = argument;
    of->status = keel_trainer_run(of->rank->trainer, &of->step, &of->rank->result);
    snprintf(of->detail, sizeof of->detail, "%s", of->status != KEEL_OK ? keel_detail() : "");
    return NULL;
}

static void run_step(void)
{
    struct keel_thread threads[RANKS_MAX];
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        ck_ok(keel_thread_create(&threads[r], "rank", run_one, &said[r]));
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        keel_thread_join(&threads[r]);
}

/* The step is done by all, who hear these flags, and have no records but their own. */
static void run_alike(uint64_t flags)
{
    run_step();
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        ck_assert_msg(said[r].status == KEEL_OK, "rank %u: %s", r, said[r].detail);
        ck_assert_uint_eq(ranks[r].result.flags, flags);
        ck_assert_msg(ranks[r].trainer->records == NULL, "rank %u gathered records", r);
    }
}

/* It is done by none, and each says why. */
static void run_unlike(const char *why)
{
    run_step();
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        ck_assert_msg(said[r].status == KEEL_MISMATCH && strstr(said[r].detail, why) != NULL,
                      "rank %u: %s: %s, wanted %s", r, keel_status_name(said[r].status), said[r].detail, why);
}

static void open_zero(uint32_t zero)
{
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        ranks[r].place = 0;
        open_rank(&ranks[r], r, RANKS_MAX, RANKS_MAX, 1, zero);
        if (zero > KEEL_ZERO_NONE)
            begin(&ranks[r], 2);
        else
            ck_ok(keel_trainer_initialize(ranks[r].trainer));
    }
    open_groups(ranks, RANKS_MAX, 1);
}

/* Pieces of the optimizer, of which each has a copy. */
static void open_all(void)
{
    open_zero(KEEL_ZERO_OPTIMIZER);
}

static void close_all(void)
{
    close_groups(ranks, RANKS_MAX);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        close_rank(&ranks[r]);
}

/* ---- alike --------------------------------------------------------------------------------------------- */

/* Nobody knows the loss; some do, and say the same; each has a flag. _i: parallel.zero. */
START_TEST(who_says_the_same_gathers_nothing_and_hears_all_flags)
{
    open_zero((uint32_t)_i);
    say(0);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        said[r].step.flags = UINT64_C(2) << r;
    run_alike(30);
    say(1);
    for (uint32_t r = 1; r < RANKS_MAX; r++)
        say_loss(r, 7);
    run_alike(0);
    close_all();
}
END_TEST

/* ---- losses -------------------------------------------------------------------------------------------- */

/* _i: whose. */
START_TEST(a_loss_of_its_own_is_outvoted)
{
    char why[64];
    open_all();
    say(0);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        say_loss(r, r == (uint32_t)_i ? 9 : 8);
    snprintf(why, sizeof why, "rank %d has the loss 00000009, and 3 of 4 ranks have 00000008", _i);
    run_unlike(why);
    close_all();
}
END_TEST

START_TEST(of_two_losses_that_as_many_have_nobody_tells_which)
{
    open_all();
    say(0);
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        say_loss(r, 8 + r % 2);
    run_unlike("nobody can tell which");
    close_all();
}
END_TEST

/* ---- weights ------------------------------------------------------------------------------------------- */

static void read_floats(struct rank *rank, struct keel_buffer *flat, uint64_t first, uint64_t count,
                        float *out)
{
    struct keel_queue *queue = keel_engine_queue(keel_trainer_engine(rank->trainer));
    ck_ok(keel_queue_read(queue, flat, first * sizeof(float), out, count * sizeof(float), NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
}

static void write_floats(struct rank *rank, struct keel_buffer *flat, uint64_t first, uint64_t count,
                         const float *values)
{
    struct keel_queue *queue = keel_engine_queue(keel_trainer_engine(rank->trainer));
    ck_ok(keel_queue_write(queue, flat, first * sizeof(float), values, count * sizeof(float), NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(60 * KEEL_NS_PER_S)));
}

static void spoil_weights(struct rank *rank)
{
    const float other = 3;
    write_floats(rank, keel_engine_flat(keel_trainer_engine(rank->trainer), KEEL_FLAT_WEIGHTS), 0, 1, &other);
}

/* Behind the update, which all have seen the digest of. _i: whose. */
START_TEST(weights_that_are_no_more_what_they_were_are_found)
{
    char why[64];
    open_zero(KEEL_ZERO_NONE);
    say(0);
    run_alike(0);
    spoil_weights(&ranks[_i]);
    say(1);
    snprintf(why, sizeof why, "rank %d has weights", _i);
    run_unlike(why);
    close_all();
}
END_TEST

/* Which it takes for its own. _i: whose. */
START_TEST(weights_of_its_own_are_outvoted)
{
    char why[64];
    uint64_t digest;
    open_zero(KEEL_ZERO_NONE);
    spoil_weights(&ranks[_i]);
    ck_ok(keel_trainer_digest(ranks[_i].trainer, &digest));
    say(0);
    snprintf(why, sizeof why, "rank %d has the weights %016llx", _i, (unsigned long long)digest);
    run_unlike(why);
    close_all();
}
END_TEST

/* Nothing else that is said depends on it without owners. */
START_TEST(who_comes_of_another_epoch_is_found)
{
    open_zero(KEEL_ZERO_NONE);
    say(0);
    said[2].step.epoch = 9;
    run_step();
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        ck_assert_msg(said[r].status == KEEL_MISMATCH && strstr(said[r].detail, "came with step") != NULL,
                      "rank %u: %s: %s", r, keel_status_name(said[r].status), said[r].detail);
    close_all();
}
END_TEST

/* ---- copies -------------------------------------------------------------------------------------------- */

/* Where a rank has its copy: its first share but its own. */
static void find_copy(const struct rank *rank, uint64_t *first, uint64_t *count)
{
    const struct keel_owned_layout *now = &rank->trainer->owned.now;
    const uint32_t buckets = rank->trainer->bucket_count;
    ck_assert_uint_eq(now->share_count, 2);
    *first = keel_engine_pieces_at(now->pieces, buckets);
    *count = 0;
    for (uint32_t b = 0; b < buckets; b++)
        *count += now->runs[buckets + b].count;
    ck_assert_uint_gt(*count, 0);
}

static struct keel_buffer *moments(const struct rank *rank)
{
    return keel_engine_pieces_flat(rank->trainer->owned.now.pieces, KEEL_FLAT_M);
}

/* _i: whose. */
START_TEST(a_copy_that_is_other_than_what_its_owner_has_is_found)
{
    const float other = 3;
    uint64_t first, count;
    char why[64];
    open_all();
    find_copy(&ranks[_i], &first, &count);
    write_floats(&ranks[_i], moments(&ranks[_i]), first + count - 1, 1, &other);
    say(0);
    snprintf(why, sizeof why, "rank %d has other pieces of the state", _i);
    run_unlike(why);
    close_all();
}
END_TEST

/* As far as both are long two copies are exchanged, element by element: what they are in sum is as before. */
START_TEST(copies_that_two_ranks_exchanged_are_found)
{
    uint64_t first[2], count[2];
    open_all();
    say(0);
    run_alike(0); /* moments are zero before */
    for (uint32_t r = 0; r < 2; r++)
        find_copy(&ranks[r], &first[r], &count[r]);
    const uint64_t both = count[0] < count[1] ? count[0] : count[1];
    float *of[2];
    for (uint32_t r = 0; r < 2; r++) {
        ck_assert((of[r] = malloc(both * sizeof *of[r])) != NULL);
        read_floats(&ranks[r], moments(&ranks[r]), first[r], both, of[r]);
    }
    ck_assert(memcmp(of[0], of[1], both * sizeof *of[0]) != 0);
    for (uint32_t r = 0; r < 2; r++)
        write_floats(&ranks[r], moments(&ranks[r]), first[r], both, of[1 - r]);
    free(of[0]);
    free(of[1]);
    say(1);
    run_unlike("has other pieces of the state");
    close_all();
}
END_TEST

/* ---- slices -------------------------------------------------------------------------------------------- */

static void open_slices(void)
{
    struct keel_job cut = rank_job;
    cut.tensor = PLACES;
    open_grid(&cut, KEEL_ZERO_OPTIMIZER, 2, ranks);
    say(0);
}

/* Records are those of a column, flags those of all. */
START_TEST(ranks_with_other_slices_hear_the_flags_of_all)
{
    open_slices();
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        said[r].step.flags = UINT64_C(2) << r;
    run_alike(30);
    close_grid(ranks);
}
END_TEST

/* Two of a column have other losses, and nobody can tell which: the other column does not do the step
 * either. _i: the column. */
START_TEST(ranks_with_other_slices_hear_that_some_differ)
{
    open_slices();
    for (uint32_t r = 0; r < RANKS_MAX; r++)
        say_loss(r, place_of[r] == _i ? 8 + r / PLACES : 8);
    run_step();
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        const char *why =
            place_of[r] == _i ? "nobody can tell which" : "ranks with other slices have different";
        ck_assert_msg(said[r].status == KEEL_MISMATCH && strstr(said[r].detail, why) != NULL,
                      "rank %u: %s: %s", r, keel_status_name(said[r].status), said[r].detail);
    }
    close_grid(ranks);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, who_says_the_same_gathers_nothing_and_hears_all_flags, KEEL_ZERO_NONE,
                        KEEL_ZERO_WEIGHTS + 1);
    tcase_add_loop_test(tc, a_loss_of_its_own_is_outvoted, 0, RANKS_MAX);
    tcase_add_test(tc, of_two_losses_that_as_many_have_nobody_tells_which);
    tcase_add_loop_test(tc, weights_that_are_no_more_what_they_were_are_found, 0, RANKS_MAX);
    tcase_add_loop_test(tc, weights_of_its_own_are_outvoted, 0, RANKS_MAX);
    tcase_add_test(tc, who_comes_of_another_epoch_is_found);
    tcase_add_loop_test(tc, a_copy_that_is_other_than_what_its_owner_has_is_found, 0, RANKS_MAX);
    tcase_add_test(tc, copies_that_two_ranks_exchanged_are_found);
    tcase_add_test(tc, ranks_with_other_slices_hear_the_flags_of_all);
    tcase_add_loop_test(tc, ranks_with_other_slices_hear_that_some_differ, 0, PLACES);
}

KEEL_TEST_MAIN("step_records", cases, 120)
