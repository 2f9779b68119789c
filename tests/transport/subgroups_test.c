/* subgroups_test.c - groups that their members make without asking anybody else: several shards a rank, sums
 * of the bits that the tree over these shards has, members that disagree, and what a loss or a revocation
 * ends; operations that are tested instead of waited for, and messages with tags. */
#include "connection.h"
#include "ranks.h"
#include "sums.h"

enum { FLOATS = 70001, SHARDS_MAX = 24, ROUNDS = 8, PERIOD = 97 };

/* The tree over `shards`, which are the parent's, in this order. */
static float tree_value(const uint16_t *shards, uint32_t count, uint32_t level, uint32_t index,
                        uint64_t element)
{
    if (level == 0)
        return shard_value(shards[index], element);
    float left = tree_value(shards, count, level - 1, 2 * index, element);
    if (((2 * index + 1) << (level - 1)) >= count)
        return left;
    return left + tree_value(shards, count, level - 1, 2 * index + 1, element);
}

/* This rank's parts of a group with that map, and the wait for the sum that goes with them. */
static void check_sum(struct rank *me, struct keel_group *group, uint64_t sequence, const uint16_t *shards,
                      const uint16_t *shard_rank, uint32_t count)
{
    static float values[SHARDS_MAX][FLOATS], sum[FLOATS];
    const float *parts[SHARDS_MAX];
    struct keel_tree_node nodes[SHARDS_MAX];
    struct keel_operation *operation;
    enum keel_status status;
    uint32_t held = 0, floats = sequence % 2 == 0 ? FLOATS : 5;
    rank_ok(me, keel_tree_nodes(count, shard_rank, keel_group_rank(group), nodes, SHARDS_MAX, &held));
    for (uint32_t k = 0; k < held; k++) {
        parts[k] = values[k];
        for (uint32_t i = 0; i < floats; i++)
            values[k][i] = i < PERIOD ? tree_value(shards, count, nodes[k].level, nodes[k].index, i)
                                      : values[k][i - PERIOD];
    }
    rank_ok(me, sum_begin(group, sequence, parts, held, sum, floats, &operation));
    uint64_t deadline = in_seconds(20);
    while (!keel_operation_test(operation, &status)) {
        rank_check(me, keel_now_ns() < deadline);
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS / 20));
    }
    rank_ok(me, status);
    for (uint32_t i = 0; i < floats; i++) {
        float wanted = i < PERIOD ? tree_value(shards, count, tree_levels(count), 0, i) : sum[i - PERIOD];
        rank_check(me, memcmp(&wanted, &sum[i], sizeof wanted) == 0);
    }
}

/* All that a round is about, the same on all ranks. */
struct round {
    uint16_t shard_rank[SHARDS_MAX]; /* of the parent */
    uint32_t shard_count, colour[RANKS_MAX], key[RANKS_MAX];
};

static struct round make_round(uint64_t *state, uint32_t ranks)
{
    struct round round = {.shard_count = ranks + (uint32_t)(test_random(state) % (SHARDS_MAX - ranks + 1))};
    uint32_t colours = 1 + (uint32_t)(test_random(state) % 3);
    for (uint32_t shard = 0; shard < round.shard_count; shard++)
        round.shard_rank[shard] = (uint16_t)(shard < ranks ? shard : test_random(state) % ranks);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        round.colour[rank] = (uint32_t)(test_random(state) % colours);
        round.key[rank] = (uint32_t)(test_random(state) % 3);
    }
    return round;
}

/* The ranks of this one's colour by (key, rank), and the shards that they carry. */
static struct keel_subgroup expected(const struct round *round, uint32_t ranks, uint32_t mine,
                                     uint16_t *out_ranks, uint16_t *out_shards, uint16_t *out_map)
{
    struct keel_subgroup what = {.ranks = out_ranks, .shard_rank = out_map};
    for (uint32_t key = 0; key < 3; key++)
        for (uint32_t rank = 0; rank < ranks; rank++)
            if (round->colour[rank] == round->colour[mine] && round->key[rank] == key)
                out_ranks[what.rank_count++] = (uint16_t)rank;
    for (uint32_t shard = 0; shard < round->shard_count; shard++)
        for (uint16_t rank = 0; rank < what.rank_count; rank++)
            if (out_ranks[rank] == round->shard_rank[shard]) {
                out_shards[what.shard_count] = (uint16_t)shard;
                out_map[what.shard_count++] = rank;
            }
    return what;
}

static int random_body(struct rank *me)
{
    uint64_t state = me->seed;
    for (uint64_t k = 0; k < ROUNDS; k++) {
        uint16_t ranks[RANKS_MAX], shards[SHARDS_MAX], map[SHARDS_MAX], all[SHARDS_MAX];
        struct round round = make_round(&state, me->rank_count);
        struct keel_group *whole = rank_group(me, k + 1, round.shard_count, round.shard_rank), *child, *other;
        struct keel_subgroup what = expected(&round, me->rank_count, me->rank, ranks, shards, map);
        uint32_t colour = round.colour[me->rank];
        rank_ok(me, keel_group_split(whole, 1, colour, round.key[me->rank], in_seconds(20), &child));
        rank_check(me, keel_group_rank_count(child) == what.rank_count &&
                           ranks[keel_group_rank(child)] == me->rank);
        what.sequence =
            2; /* by its members alone, with the map that the other inherited, then with its own */
        rank_ok(me, keel_group_create(whole, &what, &other));
        for (uint64_t sequence = 10; sequence < 14; sequence++) {
            check_sum(me, child, sequence, shards, map, what.shard_count);
            check_sum(me, other, sequence, shards, map, what.shard_count);
        }
        keel_group_close(other);
        for (uint32_t shard = 0; shard < what.shard_count; shard++) /* the same on all its ranks */
            map[shard] = (uint16_t)((k + shard * shard + colour) % what.rank_count);
        what.sequence = 3;
        rank_ok(me, keel_group_create(whole, &what, &other));
        check_sum(me, other, 10, shards, map, what.shard_count);
        keel_group_close(other);
        keel_group_close(child);
        for (uint16_t shard = 0; shard < round.shard_count; shard++)
            all[shard] = shard;
        check_sum(me, whole, 20, all, round.shard_rank, round.shard_count);
        keel_group_close(whole);
    }
    return 0;
}

START_TEST(sums_of_random_subgroups_have_the_bits_of_the_tree_over_their_shards)
{
    struct ranks ranks;
    setenv("KEEL_SHARED_MEMORY", _i < 4 ? "1" : "0", 1);
    ranks_start(&ranks, 3 + (uint32_t)_i % 3, 1000 + (uint64_t)_i, NULL, random_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- what is refused, and what members disagree about -------------------------------------------------- */

static const uint16_t own[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

static enum keel_status create(struct keel_group *parent, uint64_t sequence, const uint16_t *ranks,
                               uint32_t count, struct keel_group **out)
{
    struct keel_subgroup what = {.sequence = sequence, .rank_count = count, .ranks = ranks};
    return keel_group_create(parent, &what, out);
}

static int refused_body(struct rank *me)
{
    struct keel_group *whole = rank_group(me, 1, me->rank_count, own), *child, *again;
    const uint16_t twice[] = {0, 1, 1}, strange[] = {0, 1, 7}, both[] = {1, 0}, wrong_map[] = {0, 2};
    const uint16_t other = (uint16_t)(1 - me->rank);
    struct keel_subgroup what = {
        .sequence = 1, .rank_count = 2, .ranks = both, .shard_count = 2, .shard_rank = wrong_map};
    rank_check(me, create(whole, 1, twice, 3, &child) == KEEL_INVALID);
    rank_check(me, create(whole, 1, strange, 2 + 1, &child) == KEEL_INVALID);
    rank_check(me, create(whole, 1, &other, 1, &child) == KEEL_INVALID);
    rank_check(me, create(whole, 1, both, 0, &child) == KEEL_INVALID);
    rank_check(me, keel_group_create(whole, &what, &child) == KEEL_INVALID);
    what.shard_rank = NULL; /* shards, and no map of them */
    rank_check(me, keel_group_create(whole, &what, &child) == KEEL_INVALID);
    rank_ok(me, create(whole, 1, both, 2, &child));
    rank_check(me, create(whole, 1, both, 2, &again) == KEEL_LIMIT);
    rank_ok(me, barrier(child, 1, in_seconds(20)));
    rank_ok(me, create(child, 1, both, 2, &again)); /* a subgroup of a subgroup: the first order again */
    rank_check(me, keel_group_rank(again) == me->rank);
    rank_ok(me, barrier(again, 1, in_seconds(20)));
    keel_group_revoke(whole);
    rank_check(me, create(whole, 2, both, 2, &again) == KEEL_REVOKED);
    keel_group_close(whole);
    keel_group_close(again);
    keel_group_close(child);
    return 0;
}

START_TEST(a_subgroup_that_cannot_be_is_refused)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, refused_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* seed 0: rank 2 has another order; 1: it takes itself for a member, and the others do not; 2: other shards.
 */
static int disagree_body(struct rank *me)
{
    static const uint16_t orders[2][3] = {{0, 1, 2}, {0, 2, 1}}, maps[2][3] = {{0, 1, 2}, {0, 2, 1}};
    struct keel_group *whole = rank_group(me, 1, 3, own), *child;
    bool odd = me->rank == 2;
    struct keel_subgroup what = {.sequence = 1,
                                 .rank_count = me->seed == 1 && !odd ? 2 : 3,
                                 .ranks = orders[me->seed == 0 && odd],
                                 .shard_count = me->seed == 2 ? 3 : 0,
                                 .shard_rank = me->seed == 2 ? maps[odd] : NULL};
    static const float one[2] = {1, 2};
    const float *parts[2] = {one, one};
    float sum[2];
    struct keel_operation *operation = NULL;
    rank_ok(me, keel_group_create(whole, &what, &child));
    if (odd)
        rank_hear(me); /* the others are in the middle of their sum, which wants rank 1 */
    if (me->rank != 1 || odd) {
        rank_ok(me, sum_begin(child, 1, parts, 1, sum, 2, &operation));
        if (me->rank == 0)
            rank_say(me, 'b');
        rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_MISMATCH);
        rank_check(me, strstr(keel_detail(), me->seed == 1 ? "no member" : "members and shards") != NULL);
    }
    rank_say(me, 'd');
    rank_hear(me);
    rank_ok(me, barrier(whole, 2, in_seconds(20))); /* nobody lost a connection over it */
    keel_group_close(child);
    keel_group_close(whole);
    return 0;
}

START_TEST(members_that_disagree_are_told_and_stay_connected)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, disagree_body);
    ck_assert_int_eq(ranks_listen(&ranks, 0), 'b');
    ranks_tell(&ranks, 2, 'g');
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* Ranks 1 and 2 open the epoch with other shards, and hear of it in their subgroup: by the rank in that, and
 * by the address of that rank, which is not the address of the epoch's rank of that number. */
static int strangers_body(struct rank *me)
{
    static const uint16_t maps[3][3] = {{0, 1, 2}, {0, 1, 2}, {0, 2, 1}}, pair[] = {1, 2}, map[] = {0, 1};
    struct keel_group *whole = rank_group(me, 1, 3, maps[me->rank]), *child;
    struct keel_subgroup what = {
        .sequence = 1, .rank_count = 2, .ranks = pair, .shard_count = 2, .shard_rank = map};
    char address[KEEL_ADDRESS_TEXT_BYTES], named[KEEL_ADDRESS_TEXT_BYTES + 32];
    if (me->rank > 0) {
        rank_ok(me, keel_group_create(whole, &what, &child));
        rank_check(me, barrier(child, 1, in_seconds(20)) == KEEL_MISMATCH);
        keel_address_text(&me->addresses[3 - me->rank], address);
        snprintf(named, sizeof named, "rank %u at %s opened", 2 - me->rank, address);
        rank_check(me, strstr(keel_detail(), named) != NULL);
        keel_group_close(child);
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(whole);
    return 0;
}

START_TEST(who_opened_another_epoch_is_named_by_his_address_in_a_subgroup)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, strangers_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- failures ------------------------------------------------------------------------------------------ */

enum { LONG = 4 << 20, DEAD = 3 };

/* Rank 3 is killed in the middle of a child's long sum. Who is in that child hears of it there, by its rank
 * in it; a child without it goes on. */
static int killed_body(struct rank *me)
{
    static const uint16_t with[] = {3, 1, 2}, without[] = {2, 0, 1};
    struct keel_group *whole = rank_group(me, 1, 4, own), *doomed = NULL, *others = NULL;
    uint32_t lost = 99;
    if (me->rank > 0)
        rank_ok(me, create(whole, 1, with, 3, &doomed));
    if (me->rank < DEAD)
        rank_ok(me, create(whole, 2, without, 3, &others));
    if (doomed != NULL) {
        float *mine = calloc(LONG, sizeof *mine), *sum = calloc(LONG, sizeof *sum);
        const float *parts[] = {mine};
        struct keel_operation *operation;
        rank_ok(me, sum_begin(doomed, 1, parts, 1, sum, LONG, &operation));
        rank_say(me, 'b');
        enum keel_status status = keel_operation_wait(operation, in_seconds(20));
        while (me->rank == DEAD)
            pause();
        while (status == KEEL_OK) { /* it was over before */
            rank_ok(me, sum_begin(doomed, 2, parts, 1, sum, LONG, &operation));
            status = keel_operation_wait(operation, in_seconds(20));
        }
        rank_check(me, status == KEEL_PEER_LOST && keel_group_lost(doomed, &lost) && lost == 0);
        keel_group_close(doomed);
        free(mine);
        free(sum);
    }
    rank_ok(me, barrier(others, 1, in_seconds(20)));
    rank_check(me, !keel_group_lost(others, &lost));
    rank_check(me, barrier(whole, 9, in_seconds(20)) == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(whole, &lost) && lost == DEAD);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(others);
    keel_group_close(whole);
    return 0;
}

START_TEST(a_member_that_dies_in_a_childs_sum_is_named_in_that_child_alone)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, killed_body);
    for (uint32_t rank = 1; rank < 4; rank++)
        ck_assert_int_eq(ranks_listen(&ranks, rank), 'b');
    kill(ranks.pids[DEAD], SIGKILL);
    for (uint32_t rank = 0; rank < DEAD; rank++)
        ck_assert_int_eq(ranks_listen(&ranks, rank), 'd');
    for (uint32_t rank = 0; rank < DEAD; rank++)
        ranks_tell(&ranks, rank, 'c');
    ranks_end(&ranks, DEAD);
}
END_TEST

/* Rank 2 revokes what it is all split from; the others wait in a grandchild that rank 2 is no member of. */
static int revoked_body(struct rank *me)
{
    struct keel_group *whole = rank_group(me, 1, 3, own), *child = NULL, *grandchild = NULL;
    rank_ok(me, barrier(whole, 1, in_seconds(20)));
    if (me->rank == 2) {
        rank_hear(me);
        keel_group_revoke(whole);
    } else {
        float one = 1, sum = 0;
        const float *parts[] = {&one};
        struct keel_operation *operation;
        rank_ok(me, create(whole, 1, own, 2, &child));
        rank_ok(me, create(child, 1, own, 2, &grandchild));
        if (me->rank == 0) {
            rank_ok(me, sum_begin(grandchild, 1, parts, 1, &sum, 1, &operation));
            rank_say(me, 'w');
            rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_REVOKED);
        } else {
            rank_check(me, keel_group_rank_count(grandchild) == 2);
            rank_say(me, 'w'); /* it has both: what comes too late is refused */
            rank_hear(me);
            uint64_t deadline = in_seconds(20);
            while (sum_begin(grandchild, 2, parts, 1, &sum, 1, &operation) == KEEL_OK &&
                   keel_now_ns() < deadline)
                rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_REVOKED);
            rank_check(me, keel_now_ns() < deadline);
        }
        keel_group_close(grandchild);
        keel_group_close(child);
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(whole);
    return 0;
}

START_TEST(revoking_the_parent_ends_what_was_made_of_it_on_every_rank)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, revoked_body);
    ck_assert_int_eq(ranks_listen(&ranks, 0), 'w');
    ck_assert_int_eq(ranks_listen(&ranks, 1), 'w');
    ranks_tell(&ranks, 2, 'r');
    ranks_tell(&ranks, 1, 'r');
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- tags ---------------------------------------------------------------------------------------------- */

/* Both ways under the same tags, begun in opposite orders, beside a collective of that number. */
static int tags_body(struct rank *me)
{
    enum { TAGS = 5, BYTES = 100000 };
    static uint8_t out[TAGS][BYTES], in[TAGS][BYTES];
    struct keel_operation *sends[TAGS], *receives[TAGS];
    struct keel_group *group = rank_group(me, 1, 2, own);
    uint32_t peer = 1 - me->rank, left = 2 * TAGS;
    for (uint32_t k = 0; k < TAGS; k++) {
        uint32_t tag = me->rank == 0 ? k : TAGS - 1 - k;
        uint64_t bytes = tag == 0 ? 0 : BYTES / (tag * tag);
        memset(out[tag], (int)(me->rank * 100 + tag + 1), BYTES);
        rank_ok(me, send_begin(group, tag, peer, out[tag], bytes, &sends[tag]));
        rank_ok(me, receive_begin(group, tag, peer, in[tag], bytes, &receives[tag]));
    }
    rank_ok(me, barrier(group, 3, in_seconds(20)));
    for (uint64_t deadline = in_seconds(20); left > 0;) {
        rank_check(me, keel_now_ns() < deadline);
        for (uint32_t k = 0; k < 2 * TAGS; k++) {
            struct keel_operation **at = k < TAGS ? &sends[k] : &receives[k - TAGS];
            enum keel_status status = KEEL_OK;
            if (*at != NULL && keel_operation_test(*at, &status)) {
                *at = NULL;
                left--;
            }
            rank_ok(me, status);
        }
    }
    for (uint32_t tag = 1; tag < TAGS; tag++)
        rank_check(me, in[tag][0] == peer * 100 + tag + 1 && in[tag][BYTES / (tag * tag) - 1] == in[tag][0]);
    keel_group_close(group);
    return 0;
}

START_TEST(messages_go_by_their_tags_and_are_tested_for)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, tags_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, sums_of_random_subgroups_have_the_bits_of_the_tree_over_their_shards, 0, 6);
    tcase_add_test(tc, a_subgroup_that_cannot_be_is_refused);
    tcase_add_loop_test(tc, members_that_disagree_are_told_and_stay_connected, 0, 3);
    tcase_add_test(tc, who_opened_another_epoch_is_named_by_his_address_in_a_subgroup);
    tcase_add_test(tc, a_member_that_dies_in_a_childs_sum_is_named_in_that_child_alone);
    tcase_add_test(tc, revoking_the_parent_ends_what_was_made_of_it_on_every_rank);
    tcase_add_test(tc, messages_go_by_their_tags_and_are_tested_for);
}
KEEL_TEST_MAIN("transport subgroups", cases, 120)
