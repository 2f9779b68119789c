/* view_test.c - how views follow from one another. */
#include "any_plan.h"
#include "harness.h"
#include "view_delta.h"

#include <string.h>

static struct keel_member worker(uint16_t node, uint8_t local, uint32_t incarnation)
{
    struct keel_member m = {.node = node, .local = local, .incarnation = incarnation, .data = {.bytes = 6}};
    m.data.data[0] = (uint8_t)node;
    m.data.data[5] = local;
    return m;
}

/* Members to leave, a bit each. */
static struct keel_bitset bits(uint64_t mask)
{
    struct keel_bitset set = {.some = {0}};
    for (uint32_t i = 0; i < 64; i++)
        if ((mask >> i & 1) != 0)
            keel_bitset_add(&set, i);
    return set;
}

static struct keel_view first_view(uint16_t workers, uint16_t ranks, uint16_t shards)
{
    struct keel_member joins[KEEL_MEMBERS_MAX];
    for (uint16_t i = 0; i < workers; i++)
        joins[i] = worker((uint16_t)(1 + i / 4), (uint8_t)(i % 4), 0);
    const struct keel_view none = {.epoch = 0};
    const struct keel_view_change change = {.joins = joins,
                                            .join_count = workers,
                                            .rank_count = ranks,
                                            .shard_count = shards,
                                            .plans = any_plan()};
    struct keel_view view;
    ck_assert(keel_view_next(&none, &change, &view));
    return view;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void loads(const struct keel_view *view, uint32_t *out)
{
    memset(out, 0, KEEL_MEMBERS_MAX * sizeof *out);
    for (uint32_t s = 0; s < view->shard_count; s++)
        out[view->shard_rank[s]]++;
}

static void check_balance(const struct keel_view *view)
{
    uint32_t load[KEEL_MEMBERS_MAX], least = UINT32_MAX, most = 0;
    loads(view, load);
    for (uint16_t i = 0; i < view->member_count; i++) {
        if (view->members[i].spare)
            continue;
        uint32_t mine = load[view->members[i].rank];
        least = mine < least ? mine : least;
        most = mine > most ? mine : most;
    }
    ck_assert_uint_le(most - least, 1);
}

START_TEST(the_first_view_ranks_workers_by_node_and_lays_shards_in_balanced_blocks)
{
    struct keel_view view = first_view(6, 5, 13);
    ck_assert_uint_eq(view.epoch, 1);
    ck_assert_uint_eq(view.member_count, 6);
    ck_assert_uint_eq(keel_view_active_count(&view), 5);
    ck_assert_uint_eq(view.members[5].spare, 1);
    ck_assert_uint_eq(view.members[5].rank, 5);
    ck_assert_uint_eq(view.members[4].node, 2);
    for (uint32_t s = 1; s < 13; s++)
        ck_assert_uint_ge(view.shard_rank[s], view.shard_rank[s - 1]);
    check_balance(&view);
}
END_TEST

START_TEST(a_lost_ranks_shards_go_to_the_emptiest_and_first_to_neighbours)
{
    struct keel_view view = first_view(4, 4, 8), next;
    const struct keel_view_change change = {
        .gone = bits(1U << 1), .rank_count = 4, .shard_count = 8, .plans = any_plan()};
    ck_assert(keel_view_next(&view, &change, &next));
    ck_assert_uint_eq(next.epoch, 2);
    ck_assert_uint_eq(next.shard_rank[2], 0); /* beside shard 1 of rank 0 */
    ck_assert_uint_eq(next.shard_rank[3], 2); /* beside shard 4 of rank 2 */
    for (uint32_t s = 0; s < 8; s++)
        if (view.shard_rank[s] != 1)
            ck_assert_uint_eq(next.shard_rank[s], view.shard_rank[s]);
}
END_TEST

START_TEST(a_newcomer_gets_the_vacant_rank_and_only_as_many_shards_as_balance_asks)
{
    struct keel_view view = first_view(4, 4, 8), less, more;
    struct keel_view_change change = {
        .gone = bits(1U << 1), .rank_count = 4, .shard_count = 8, .plans = any_plan()};
    ck_assert(keel_view_next(&view, &change, &less));
    const struct keel_member join = worker(1, 1, 1);
    change = (struct keel_view_change){
        .joins = &join, .join_count = 1, .rank_count = 4, .shard_count = 8, .plans = any_plan()};
    ck_assert(keel_view_next(&less, &change, &more));
    ck_assert_int_eq(keel_view_find_rank(&more, 1), 1);
    ck_assert_uint_eq(more.members[1].incarnation, 1);
    uint32_t moved = 0;
    for (uint32_t s = 0; s < 8; s++)
        moved += more.shard_rank[s] != less.shard_rank[s] ? 1 : 0;
    ck_assert_uint_eq(moved, 2);
    check_balance(&more);
}
END_TEST

/* Padding apart. */
static bool same_view(const struct keel_view *a, const struct keel_view *b)
{
    uint8_t x[KEEL_VIEW_BYTES_MAX], y[KEEL_VIEW_BYTES_MAX];
    uint32_t bytes = keel_view_encode(a, x);
    return bytes == keel_view_encode(b, y) && memcmp(x, y, bytes) == 0;
}

/* What is other in the next view makes it from the one before, and nothing shorter or longer does. */
static void check_delta(const struct keel_view *old, const struct keel_view *next)
{
    uint8_t delta[KEEL_VIEW_BYTES_MAX + 1];
    struct keel_view made;
    const uint32_t bytes = keel_view_delta(old, next, delta, KEEL_VIEW_BYTES_MAX);
    ck_assert_uint_gt(bytes, 0);
    ck_assert(keel_view_apply(old, delta, bytes, &made) && same_view(&made, next));
    for (uint32_t cut = 0; cut < bytes; cut += 1 + cut / 8)
        ck_assert(!keel_view_apply(old, delta, cut, &made));
    delta[bytes] = 0;
    ck_assert(!keel_view_apply(old, delta, bytes + 1, &made));
    ck_assert(!keel_view_apply(next, delta, bytes, &made)); /* the epoch is not later */
    ck_assert_uint_eq(keel_view_delta(old, next, delta, bytes - 1), 0);
}

START_TEST(random_histories_of_losses_and_joins_give_valid_balanced_views_with_minimal_movement)
{
    uint64_t state = 7;
    for (uint32_t history = 0; history < 300; history++) {
        uint16_t ranks = (uint16_t)(1 + history % 16), shards = (uint16_t)(1 + history % 50);
        struct keel_view view = first_view((uint16_t)(ranks + history % 3), ranks, shards);
        for (uint32_t i = 1; i < 30; i++) {
            state = state * UINT64_C(6364136223846793005) + 1;
            uint64_t gone = (state >> 20) & (state >> 40) & ((UINT64_C(1) << view.member_count) - 1);
            struct keel_member joins[3];
            uint16_t count = (uint16_t)(state >> 61) % 4;
            for (uint16_t j = 0; j < count; j++)
                joins[j] = worker((uint16_t)(20 + i), (uint8_t)j, i);
            const struct keel_view_change change = {.gone = bits(gone),
                                                    .joins = joins,
                                                    .join_count = count,
                                                    .rank_count = ranks,
                                                    .shard_count = shards,
                                                    .plans = any_plan()};
            struct keel_view next, again;
            if (!keel_view_next(&view, &change, &next))
                continue;
            ck_assert(keel_view_valid(&next));
            ck_assert(keel_view_next(&view, &change, &again) && same_view(&next, &again));
            check_balance(&next);
            ck_assert_uint_eq(next.epoch, view.epoch + 1);
            for (uint16_t m = 0; m < view.member_count; m++) {
                const struct keel_member *old = &view.members[m];
                int at = keel_view_find_worker(&next, old->node, old->local, old->incarnation);
                ck_assert((at < 0) == ((gone >> m & 1) != 0));
                if (at >= 0 && !old->spare)
                    ck_assert_uint_eq(next.members[at].rank, old->rank);
            }
            uint8_t bytes[KEEL_VIEW_BYTES_MAX];
            ck_assert(keel_view_decode(bytes, keel_view_encode(&next, bytes), &again));
            ck_assert(same_view(&next, &again));
            check_delta(&view, &next);
            view = next;
        }
    }
}
END_TEST

/* Of some numbers of ranks there is no plan: then the most that have one are active, and the others spares.
 */
START_TEST(a_view_has_as_many_active_ranks_as_a_plan_and_that_plans_number)
{
    uint64_t state = 11;
    uint32_t none = 0, less = 0;
    for (uint32_t history = 0; history < 400; history++) {
        const uint16_t ranks = (uint16_t)(2 + history % 15), shards = (uint16_t)(1 + history % 20);
        uint64_t plans[KEEL_MEMBERS_MAX + 1] = {0};
        for (uint16_t n = 1; n <= ranks; n++)
            plans[n] = n == ranks || (draw(&state) & 1) != 0 ? 500 + n : 0;
        struct keel_view view = first_view((uint16_t)(ranks + history % 3), ranks, shards);
        for (uint32_t i = 1; i < 30; i++) {
            const uint64_t half = draw(&state), all = (UINT64_C(1) << view.member_count) - 1;
            const uint64_t gone = half & draw(&state) & all;
            struct keel_member joins[3];
            const uint16_t count = (uint16_t)(draw(&state) % 4);
            for (uint16_t j = 0; j < count; j++)
                joins[j] = worker((uint16_t)(20 + i), (uint8_t)j, i);
            const struct keel_view_change change = {.gone = bits(gone),
                                                    .joins = joins,
                                                    .join_count = count,
                                                    .rank_count = ranks,
                                                    .shard_count = shards,
                                                    .plans = plans};
            const uint32_t workers = view.member_count - (uint32_t)keel_bitset_count(&change.gone) + count;
            const uint16_t seats = keel_view_seats(plans, ranks, workers);
            struct keel_view next;
            ck_assert(keel_view_next(&view, &change, &next) == (seats > 0));
            none += seats == 0 ? 1 : 0;
            if (seats == 0)
                continue;
            less += seats < workers && seats < ranks ? 1 : 0;
            ck_assert(keel_view_valid(&next));
            ck_assert_uint_eq(keel_view_active_count(&next), seats);
            ck_assert_uint_eq(next.plan, plans[seats]);
            check_balance(&next);
            for (uint16_t m = 0; m < view.member_count; m++) {
                const struct keel_member *old = &view.members[m];
                const int at = keel_view_find_worker(&next, old->node, old->local, old->incarnation);
                ck_assert((at < 0) == ((gone >> m & 1) != 0));
                if (at >= 0 && !old->spare)
                    ck_assert_uint_eq(next.members[at].rank, old->rank);
            }
            view = next;
        }
    }
    ck_assert(none > 100 && less > 1000);
}
END_TEST

/* A rack of 64 among all: the lost ranks, and where their shards go. */
START_TEST(what_is_other_in_a_view_is_as_long_as_the_change)
{
    const uint16_t ranks = KEEL_SHARDS_MAX, lost = 64;
    struct keel_view view = first_view(ranks, ranks, ranks), next;
    struct keel_bitset gone = {.some = {0}};
    for (uint32_t i = 0; i < lost; i++)
        keel_bitset_add(&gone, 100 + i);
    const struct keel_view_change change = {
        .gone = gone, .rank_count = ranks, .shard_count = ranks, .plans = any_plan()};
    uint8_t delta[KEEL_VIEW_BYTES_MAX];
    ck_assert(keel_view_next(&view, &change, &next));
    ck_assert_uint_eq(keel_view_delta(&view, &next, delta, sizeof delta), 26 + lost * 2 + lost * 4);
    check_delta(&view, &next);
}
END_TEST

START_TEST(nobody_left_makes_no_view)
{
    struct keel_view view = first_view(3, 3, 3), next;
    const struct keel_view_change change = {
        .gone = bits(7), .rank_count = 3, .shard_count = 3, .plans = any_plan()};
    ck_assert(!keel_view_next(&view, &change, &next));
}
END_TEST

START_TEST(a_view_that_breaks_a_rule_is_not_valid)
{
    const struct keel_view good = first_view(6, 5, 13);
    struct keel_view bad = good;
    ck_assert(keel_view_valid(&good));
    bad.shard_rank[3] = 5; /* a spare */
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.shard_rank[3] = 60; /* nobody */
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.members[2].rank = 1; /* twice */
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.members[2].local = bad.members[1].local; /* one process, two ranks */
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.members[0].spare = 1; /* below active ones */
    for (uint32_t s = 0; s < bad.shard_count; s++)
        bad.shard_rank[s] = 1;
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.plan = 0;
    ck_assert(!keel_view_valid(&bad));
    bad = good;
    bad.epoch = 0;
    ck_assert(!keel_view_valid(&bad));
}
END_TEST

/* Workers of a node, eight and the next ones, whose addresses differ by their ports: as of IPv4. */
static struct keel_member member_of(uint16_t rank)
{
    const uint32_t host = rank / 8U, port = 20000U + rank * 7U;
    struct keel_member m = {
        .rank = rank, .node = (uint16_t)(1 + host), .local = rank % 8, .incarnation = 256};
    m.data.bytes = 16;
    m.data.data[0] = 2;
    m.data.data[2] = (uint8_t)(port >> 8);
    m.data.data[3] = (uint8_t)port;
    m.data.data[4] = 10;
    m.data.data[6] = (uint8_t)(host >> 8);
    m.data.data[7] = (uint8_t)host;
    return m;
}

START_TEST(a_member_takes_as_many_bytes_as_are_other_in_it_than_in_the_one_before)
{
    static uint8_t bytes[KEEL_VIEW_BYTES_MAX];
    struct keel_writer w = {.data = bytes, .capacity = sizeof bytes};
    struct keel_wire_reader r = {.data = bytes};
    struct keel_member before, heard, member;
    for (uint16_t rank = 0; rank < KEEL_MEMBERS_MAX; rank++, before = member) {
        member = member_of(rank);
        keel_view_write_member(&w, rank > 0 ? &before : NULL, &member);
    }
    ck_assert(!w.failed && w.bytes <= KEEL_MEMBERS_MAX * 6U);
    r.bytes = w.bytes;
    for (uint16_t rank = 0; rank < KEEL_MEMBERS_MAX; rank++, before = heard) {
        keel_view_read_member(&r, rank > 0 ? &before : NULL, &heard);
        member = member_of(rank);
        ck_assert(!r.failed && heard.rank == rank && heard.node == member.node &&
                  heard.local == member.local && heard.incarnation == member.incarnation &&
                  heard.data.bytes == 16 && memcmp(heard.data.data, member.data.data, 16) == 0);
    }
    ck_assert(keel_reader_complete(&r));
}
END_TEST

/* Digests are of bytes: two forms of one view would be two views. */
START_TEST(a_member_that_says_what_is_expected_is_refused)
{
    const struct keel_member first = member_of(0), second = member_of(1);
    uint8_t bytes[2 * KEEL_VIEW_MEMBER_BYTES], longer[2 * KEEL_VIEW_MEMBER_BYTES];
    struct keel_member out;
    struct keel_writer w = {.data = bytes, .capacity = sizeof bytes};
    keel_view_write_member(&w, &first, &second);
    struct keel_wire_reader r = {.data = bytes, .bytes = w.bytes};
    keel_view_read_member(&r, &first, &out);
    ck_assert(keel_reader_complete(&r));
    struct keel_writer l = {.data = longer, .capacity = sizeof longer};
    keel_writer_number(&l, bytes[0] | 8, 1); /* its incarnation follows, which is the same */
    keel_writer_number(&l, second.incarnation, 4);
    keel_writer_bytes(&l, bytes + 1, w.bytes - 1);
    r = (struct keel_wire_reader){.data = longer, .bytes = l.bytes};
    keel_view_read_member(&r, &first, &out);
    ck_assert(r.failed);
    bytes[1]--; /* a byte less of the address is as before */
    r = (struct keel_wire_reader){.data = bytes, .bytes = w.bytes};
    keel_view_read_member(&r, &first, &out);
    ck_assert(r.failed);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_member_takes_as_many_bytes_as_are_other_in_it_than_in_the_one_before);
    tcase_add_test(tc, a_member_that_says_what_is_expected_is_refused);
    tcase_add_test(tc, the_first_view_ranks_workers_by_node_and_lays_shards_in_balanced_blocks);
    tcase_add_test(tc, a_lost_ranks_shards_go_to_the_emptiest_and_first_to_neighbours);
    tcase_add_test(tc, a_newcomer_gets_the_vacant_rank_and_only_as_many_shards_as_balance_asks);
    tcase_add_test(tc, random_histories_of_losses_and_joins_give_valid_balanced_views_with_minimal_movement);
    tcase_add_test(tc, a_view_has_as_many_active_ranks_as_a_plan_and_that_plans_number);
    tcase_add_test(tc, what_is_other_in_a_view_is_as_long_as_the_change);
    tcase_add_test(tc, nobody_left_makes_no_view);
    tcase_add_test(tc, a_view_that_breaks_a_rule_is_not_valid);
}

KEEL_TEST_MAIN("view", cases, 60)
