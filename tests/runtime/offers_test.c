/* offers_test.c - what a rank says of its node's generations: what others hear of it, and how long it is. */
#include "harness.h"
#include "worker_internal.h"
#include <keel/memory.h>
#include <string.h>

static uint64_t random_state;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((random_state >> 32) * below) >> 32);
}

static struct keel_worker worker; /* alone */

static void add(uint64_t *set, uint32_t shard)
{
    set[shard / 64] |= UINT64_C(1) << shard % 64;
}

/* Runs with strides, single shards, or all of them. */
static void draw_set(uint64_t *set)
{
    for (uint32_t runs = next_random(4); runs > 0; runs--) {
        const uint32_t first = next_random(KEEL_MEMBERS_MAX), stride = 1 + next_random(9);
        const uint32_t count = 1 + next_random(next_random(3) == 0 ? KEEL_MEMBERS_MAX : 20);
        for (uint32_t k = 0; k < count && first + k * stride < KEEL_MEMBERS_MAX; k++)
            add(set, first + k * stride);
    }
    for (uint32_t more = next_random(10); more > 0; more--)
        add(set, next_random(KEEL_MEMBERS_MAX));
}

static void check_heard(const struct keel_tier_offer *mine)
{
    struct keel_offer_said said;
    struct keel_tier_offer all = {.used = false};
    ck_assert(keel_offers_find(&worker.tiers, 0, mine->step, mine->attempt, &said));
    ck_assert(said.made_ns == mine->made_ns && said.shard_count == mine->shard_count &&
              said.computed == mine->computed && said.parity == mine->parity &&
              said.manifest == mine->manifest && said.stored_manifest == mine->stored_manifest);
    keel_offer_add_said(&worker.tiers, &said, &all);
    ck_assert_mem_eq(all.have, mine->have, sizeof all.have);
    ck_assert_mem_eq(all.stored, mine->stored, sizeof all.stored);
    for (uint32_t i = 0; i < 100; i++) {
        const uint32_t shard = next_random(KEEL_MEMBERS_MAX);
        ck_assert_int_eq(keel_offer_said_has(&worker.tiers, &said, shard), keel_offer_has(mine->have, shard));
    }
}

START_TEST(what_is_said_is_heard)
{
    worker.rank_count = 1;
    for (uint32_t trial = 0; trial < 200; trial++) {
        struct keel_tier_offers *mine = &worker.tiers.mine;
        uint32_t used = 0;
        memset(mine, 0, sizeof *mine);
        mine->has_records = next_random(2);
        mine->records = next_random(1000);
        for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++) {
            struct keel_tier_offer *offer = &mine->of[i];
            if (next_random(3) == 0)
                continue;
            *offer = (struct keel_tier_offer){.step = next_random(100),
                                              .attempt = i,
                                              .made_ns = next_random(9),
                                              .shard_count = next_random(KEEL_MEMBERS_MAX),
                                              .computed = next_random(3),
                                              .used = true,
                                              .parity = next_random(2),
                                              .manifest = next_random(2),
                                              .stored_manifest = next_random(2)};
            draw_set(offer->have);
            draw_set(offer->stored);
            used++;
        }
        ck_ok(keel_worker_gather_offers(&worker, true));
        ck_assert_uint_eq(worker.tiers.said_offers.heads[0].records, mine->records);
        for (uint32_t i = 0; i < KEEL_OFFERS_MAX; i++)
            if (mine->of[i].used)
                check_heard(&mine->of[i]);
        struct keel_offer_said said;
        for (uint64_t at = 0; keel_offers_next(&worker.tiers, 0, &at, &said); used--)
            ck_assert_uint_gt(used, 0);
        ck_assert_uint_eq(used, 0);
    }
    keel_worker_forget_offers(&worker);
}
END_TEST

/* A node of eight ranks that keeps the shards of another's, three generations, as ranks share them out to be
 * looked at: some hundred bytes, whatever the number of ranks; who does not speak says a head. */
START_TEST(a_node_says_little_whatever_the_number_of_ranks)
{
    struct keel_tier_offers *mine = &worker.tiers.mine;
    worker.rank_count = 1;
    memset(mine, 0, sizeof *mine);
    for (uint32_t i = 0; i < 3; i++) {
        mine->of[i] = (struct keel_tier_offer){.step = i, .used = true, .shard_count = KEEL_MEMBERS_MAX};
        for (uint32_t k = 0; k < 8; k++) {
            add(mine->of[i].have, 16 + k);
            add(mine->of[i].have, KEEL_MEMBERS_MAX - 8 + k);
        }
        for (uint32_t k = 3; i == 2 && k < KEEL_MEMBERS_MAX; k += 8)
            add(mine->of[i].stored, k);
    }
    ck_ok(keel_worker_gather_offers(&worker, true));
    ck_assert_uint_le(sizeof *worker.tiers.said_offers.heads, 32);
    ck_assert_uint_le(worker.tiers.said_offers.heads[0].bytes, 3 * 64 + 7 * sizeof(struct keel_share_run));
    ck_ok(keel_worker_gather_offers(&worker, false));
    ck_assert_uint_eq(worker.tiers.said_offers.heads[0].bytes, 0);
    keel_worker_forget_offers(&worker);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_said_is_heard);
    tcase_add_test(tc, a_node_says_little_whatever_the_number_of_ranks);
}

KEEL_TEST_MAIN("offers", cases, 60)
