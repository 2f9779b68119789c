/* tier_choose_test.c - the newest generation that all can have, against an oracle that tries them all; and
 * what a rank can have, from lists and manifests. */
#include "failing_tier.h"
#include "generations.h"

enum { RANKS_MAX = 6, OFFERS_MAX = 12, ROUNDS = 20000 };

struct world {
    struct keel_offer offers[RANKS_MAX][OFFERS_MAX];
    struct keel_rank_offers ranks[RANKS_MAX];
    uint32_t rank_count;
};

static void draw_world(struct world *world, uint64_t *state)
{
    world->rank_count = 1 + (uint32_t)draw(state, RANKS_MAX);
    for (uint32_t r = 0; r < world->rank_count; r++) {
        uint32_t count = (uint32_t)draw(state, OFFERS_MAX + 1);
        for (uint32_t i = 0; i < count; i++)
            world->offers[r][i] =
                (struct keel_offer){.step = 10 * draw(state, 4),
                                    .attempt = 1 + draw(state, 2),
                                    .latency = (enum keel_tier_latency)draw(state, KEEL_LATENCY_COUNT)};
        world->ranks[r] = (struct keel_rank_offers){world->offers[r], count, NULL};
    }
}

/* The nearest from which the rank can have it, or none. */
static int oracle_latency(const struct keel_rank_offers *rank, uint64_t step, uint64_t attempt)
{
    int best = KEEL_LATENCY_COUNT;
    for (uint32_t i = 0; i < rank->count; i++)
        if (rank->offers[i].step == step && rank->offers[i].attempt == attempt &&
            (int)rank->offers[i].latency < best)
            best = (int)rank->offers[i].latency;
    return best;
}

/* How many ranks cannot have it; *out_first is the first of them. */
static uint32_t oracle_missing(const struct world *world, uint64_t step, uint64_t attempt,
                               uint32_t *out_first)
{
    uint32_t missing = 0;
    for (uint32_t r = world->rank_count; r-- > 0;)
        if (oracle_latency(&world->ranks[r], step, attempt) == KEEL_LATENCY_COUNT) {
            missing++;
            *out_first = r;
        }
    return missing;
}

START_TEST(the_choice_is_the_oracles)
{
    uint64_t state = 3, chosen = 0, none = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        struct keel_choice choice, wanted = {0};
        enum keel_tier_latency from[RANKS_MAX];
        bool found = false;
        draw_world(&world, &state);
        for (uint64_t step = 40; step-- > 0 && !found;)
            for (uint64_t attempt = 3; attempt-- > 0 && !found;) {
                uint32_t first = 0, missing = oracle_missing(&world, step, attempt, &first);
                found = missing == 0;
                if (found) {
                    wanted.step = step;
                    wanted.attempt = attempt;
                } else if (missing < world.rank_count && !wanted.passed_over) {
                    wanted.passed_over = true;
                    wanted.newer_step = step;
                    wanted.newer_attempt = attempt;
                    wanted.missing_rank = first;
                    wanted.missing_count = missing;
                }
            }
        ck_status(keel_tier_choose(world.ranks, world.rank_count, &choice, from),
                  found ? KEEL_OK : KEEL_NOT_FOUND);
        none += !found;
        if (!found)
            continue;
        chosen++;
        ck_assert_uint_eq(choice.step, wanted.step);
        ck_assert_uint_eq(choice.attempt, wanted.attempt);
        ck_assert(choice.passed_over == wanted.passed_over);
        ck_assert_uint_eq(choice.newer_step, wanted.newer_step);
        ck_assert_uint_eq(choice.newer_attempt, wanted.newer_attempt);
        ck_assert_uint_eq(choice.missing_rank, wanted.missing_rank);
        ck_assert_uint_eq(choice.missing_count, wanted.missing_count);
        for (uint32_t r = 0; r < world.rank_count; r++)
            ck_assert_int_eq((int)from[r], oracle_latency(&world.ranks[r], choice.step, choice.attempt));
    }
    ck_assert_uint_gt(chosen, ROUNDS / 10);
    ck_assert_uint_gt(none, ROUNDS / 10);
    printf("note: %llu choices as the oracle's, %llu times none\n", (unsigned long long)chosen,
           (unsigned long long)none);
}
END_TEST

START_TEST(the_choice_says_what_it_took_and_why)
{
    const struct keel_offer both[] = {
        {120, 3, KEEL_LATENCY_LOCAL}, {130, 1, KEEL_LATENCY_MEMORY}, {120, 3, KEEL_LATENCY_MEMORY}};
    const struct keel_offer old[] = {{120, 3, KEEL_LATENCY_SHARED}, {110, 1, KEEL_LATENCY_SHARED}};
    const struct keel_rank_offers ranks[] = {
        {both, 3, NULL}, {both, 3, NULL}, {old, 2, "its partner is gone"}};
    struct keel_choice choice;
    enum keel_tier_latency from[3];
    char text[KEEL_CHOICE_TEXT_BYTES];
    ck_ok(keel_tier_choose(ranks, 3, &choice, from));
    keel_tier_choice_text(&choice, ranks, from[0], text);
    ck_assert_str_eq(text, "step 120.3 from memory; 130.1 is missing on rank 2: its partner is gone");
    keel_tier_choice_text(&choice, ranks, from[2], text);
    ck_assert_str_eq(text, "step 120.3 from shared storage; 130.1 is missing on rank 2: its partner is gone");
    ck_ok(keel_tier_choose(ranks, 2, &choice, from));
    keel_tier_choice_text(&choice, ranks, from[1], text);
    ck_assert_str_eq(text, "step 130.1 from memory");
    const struct keel_rank_offers nothing[] = {
        {both, 3, NULL}, {NULL, 0, "its disk is gone"}, {NULL, 0, NULL}};
    ck_status(keel_tier_choose(nothing, 3, &choice, from), KEEL_NOT_FOUND);
    ck_assert_str_eq(keel_detail(),
                     "no generation can be had by all 3 ranks: 130.1 is missing on rank 1 and 1 "
                     "others: its disk is gone");
    ck_status(keel_tier_choose(&nothing[1], 1, &choice, from), KEEL_NOT_FOUND);
    ck_status(keel_tier_choose(ranks, 0, &choice, from), KEEL_INVALID);
}
END_TEST

START_TEST(a_rank_offers_what_it_has_shard_and_manifest_of)
{
    struct origin origin = make_origin();
    struct keel_tier *memory, *tiers[2];
    struct keel_offer offers[4];
    uint32_t count;
    struct keel_object manifest = manifest_object(5, 2), shard = shard_object(6, 1, 0);
    add_snapshot(&origin, 6, 1, 2);
    ck_ok(keel_tier_memory_open("sample", 1 << 20, "memory", &memory));
    tiers[0] = origin.tier;
    tiers[1] = memory;
    ck_ok(keel_tier_copy(origin.tier, &shard, memory));
    ck_ok(keel_tier_inventory(tiers, 2, 0, offers, 4, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(offers[0].step, 6);
    ck_assert_int_eq(offers[0].latency, KEEL_LATENCY_MEMORY);
    ck_assert_uint_eq(offers[1].step, 5);
    ck_assert_int_eq(offers[1].latency, KEEL_LATENCY_LOCAL);
    ck_ok(keel_tier_inventory(tiers, 2, 2, offers, 4, &count)); /* 6.1 has two ranks */
    ck_assert_uint_eq(count, 1);
    ck_ok(keel_tier_inventory(tiers, 2, 0, offers, 1, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(offers[0].step, 6);
    ck_ok(keel_tier_remove(origin.tier, &manifest));
    ck_ok(keel_tier_inventory(tiers, 2, 0, offers, 4, &count));
    ck_assert_uint_eq(count, 1);
    keel_tier_end(memory);
    end_origin(&origin);
}
END_TEST

START_TEST(a_manifest_is_read_from_whichever_tier_still_gives_it)
{
    struct origin origin = make_origin();
    struct failing_tier first = make_failing_tier(origin.tier, FAILING_GONE, 1); /* after its list */
    struct keel_tier *tiers[2] = {&first.tier, origin.tier};
    struct keel_offer offers[4];
    uint32_t count;
    ck_ok(keel_tier_inventory(tiers, 2, 0, offers, 4, &count));
    ck_assert_uint_gt(first.failed, 0);
    ck_assert_uint_eq(count, 1);
    end_origin(&origin);
}
END_TEST

START_TEST(a_delta_is_offered_with_its_bases_only)
{
    struct origin origin = make_empty_origin();
    struct state state = {0};
    struct keel_offer offers[4];
    struct keel_object base = shard_object(1, 1, 0);
    uint32_t count;
    state_add(&state, "w", KEEL_CKPT_F32, 100000);
    fill_f32(&state, 0, 1);
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_save_config config = state_config(&state, step, KEEL_CODEC_DELTA);
        step_f32(&state, 0, step);
        save_and_commit(origin.store, &config);
    }
    ck_ok(keel_tier_inventory(&origin.tier, 1, 0, offers, 4, &count));
    ck_assert_uint_eq(count, 3);
    ck_ok(keel_tier_remove(origin.tier, &base));
    ck_ok(keel_tier_inventory(&origin.tier, 1, 0, offers, 4, &count));
    ck_assert_uint_eq(count, 0);
    state_free(&state);
    end_origin(&origin);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_choice_is_the_oracles);
    tcase_add_test(tc, the_choice_says_what_it_took_and_why);
    tcase_add_test(tc, a_rank_offers_what_it_has_shard_and_manifest_of);
    tcase_add_test(tc, a_manifest_is_read_from_whichever_tier_still_gives_it);
    tcase_add_test(tc, a_delta_is_offered_with_its_bases_only);
}

KEEL_TEST_MAIN("tier_choose", cases, 120)
