/* kills_test.c - two hundred deaths: one of four ranks is killed at a random moment of a stream of sums,
 * every survivor's call says who is gone, and the survivors' next epoch computes the right thing. It mostly
 * waits. */
#include "ranks.h"
#include "sums.h"

enum { RANKS = 4, SHARDS = 4, KILLS = 200 };

static uint32_t victim_of(uint64_t seed)
{
    return (uint32_t)(test_random(&seed) % RANKS);
}

/* From the eight bytes that go with the first message to what takes many. */
static uint64_t floats_of(uint64_t seed)
{
    static const uint64_t sizes[] = {2, 1000, 30011, 300007};
    return sizes[seed % 4];
}

/* Every other time the parts lie where the others read them in place; so what a survivor writes there as soon
 * as its group is closed must be nobody's sum, though others may be in the middle of theirs. */
static void share_parts(struct rank *me, float **parts, uint32_t count, uint64_t floats)
{
    for (uint32_t k = 0; k < count; k++) {
        float *shared;
        rank_ok(me, keel_transport_alloc(floats * sizeof *shared, &shared));
        memcpy(shared, parts[k], floats * sizeof *shared);
        free(parts[k]);
        parts[k] = shared;
    }
}

static void spoil_parts(float **parts, uint32_t count, uint64_t floats, bool shared)
{
    for (uint32_t k = 0; k < count; k++) {
        memset(parts[k], 0xff, floats * sizeof *parts[k]);
        if (shared)
            keel_transport_free(parts[k]);
        else
            free(parts[k]);
    }
}

/* Of long sums a sample, so that deaths still fall into operations. */
static bool looks_right(const float *result, uint64_t floats)
{
    for (uint64_t k = 0; k < floats; k += 1 + floats / 2000) {
        float wanted = node_value(tree_levels(SHARDS), 0, SHARDS, k);
        if (memcmp(&wanted, &result[k], sizeof wanted) != 0)
            return false;
    }
    return true;
}

static int survivor_body(struct rank *me)
{
    const uint16_t shard_rank[SHARDS] = {0, 1, 2, 3}, again[SHARDS] = {0, 1, 2, 0};
    uint32_t victim = victim_of(me->seed), members[RANKS], count = 0, own = 0, lost = RANKS;
    uint64_t floats = floats_of(me->seed), sequence = 0;
    float *parts[SHARDS], *result = malloc(floats * sizeof *result);
    struct keel_operation *operation = NULL;
    enum keel_status status = KEEL_OK;
    struct keel_group *group = rank_group(me, 1, SHARDS, shard_rank);
    uint32_t part_count = make_parts(SHARDS, shard_rank, me->rank, floats, parts);
    bool shared = me->seed % 8 < 4;
    if (shared)
        share_parts(me, parts, part_count, floats);
    while (status == KEEL_OK) {
        rank_ok(me, sum_begin(group, sequence, (const float *const *)parts, part_count, result, floats,
                              &operation));
        status = keel_operation_wait(operation, in_seconds(20));
        rank_check(me, status != KEEL_OK || looks_right(result, floats));
        if (sequence++ == 0)
            rank_say(me, 's');
    }
    uint64_t now = keel_now_ns();
    rank_check(me, status == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == victim);
    ranks_move(me->to_parent, &now, sizeof now, true);
    keel_group_close(group);
    spoil_parts(parts, part_count, floats, shared);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        own = rank == me->rank ? count : own;
        if (rank != victim)
            members[count++] = rank;
    }
    group = rank_group_of(me, 2, members, count, SHARDS, again);
    part_count = make_parts(SHARDS, again, own, floats, parts);
    rank_ok(me, sum_begin(group, 1, (const float *const *)parts, part_count, result, floats, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    rank_check(me, first_wrong(result, SHARDS, floats) == floats);
    keel_group_close(group);
    free_parts(parts, part_count);
    free(result);
    return 0;
}

static uint32_t kill_one(uint64_t seed, uint64_t *out_ns)
{
    struct ranks ranks;
    uint32_t victim = victim_of(seed), count = 0;
    uint64_t moment = seed + 1000;
    ranks_start(&ranks, RANKS, seed, NULL, survivor_body);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks_listen(&ranks, rank);
    keel_sleep_until_ns(keel_deadline_after_ns(test_random(&moment) % (10 * KEEL_NS_PER_MS)));
    uint64_t killed = keel_now_ns();
    kill(ranks.pids[victim], SIGKILL);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint64_t returned;
        if (rank == victim)
            continue;
        ranks_move(ranks.from_child[rank], &returned, sizeof returned, false);
        out_ns[count++] = returned > killed ? returned - killed : 0;
    }
    ranks_end(&ranks, (int)victim);
    return count;
}

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

START_TEST(whoever_is_killed_whenever_every_survivor_is_told_and_goes_on)
{
    static uint64_t took_ns[KILLS * RANKS];
    uint32_t count = 0;
    for (uint64_t seed = 0; seed < KILLS; seed++)
        count += kill_one(seed, &took_ns[count]);
    qsort(took_ns, count, sizeof took_ns[0], by_value);
    uint64_t half_ns = took_ns[count / 2], most_ns = took_ns[count * 99 / 100];
    printf("note: %u calls of survivors returned after %.2f ms (median), %.2f ms (99th percentile), %.2f ms "
           "(all)\n",
           count, (double)half_ns / 1e6, (double)most_ns / 1e6, (double)took_ns[count - 1] / 1e6);
    ck_assert_uint_eq(count, KILLS * (RANKS - 1));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, whoever_is_killed_whenever_every_survivor_is_told_and_goes_on);
}
KEEL_TEST_MAIN("transport kills", cases, 400)
