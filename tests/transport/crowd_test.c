/* crowd_test.c - one rank that very many call: two hundred endpoints of one process. */
#include "group.h"
#include "ranks.h"

#include <keel/memory.h>

enum { CROWD = 200, HUB = CROWD - 1 }; /* lower ranks dial higher ones: all the hub */

struct crowd {
    struct keel_endpoint *endpoints[CROWD];
    struct keel_address addresses[CROWD];
    struct keel_group *groups[CROWD];
    uint16_t own[CROWD];
};

static struct crowd *crowd_open(void)
{
    struct crowd *crowd;
    const struct keel_endpoint_config config = {.key = NULL};
    ck_assert_int_eq(setenv("KEEL_NET_DIR", "/dev/null", 1), 0);
    ck_ok(keel_alloc(1, sizeof *crowd, &crowd));
    for (uint32_t rank = 0; rank < CROWD; rank++) {
        ck_ok(keel_endpoint_open(&config, &crowd->endpoints[rank]));
        keel_endpoint_address(crowd->endpoints[rank], &crowd->addresses[rank]);
        crowd->own[rank] = (uint16_t)rank;
    }
    return crowd;
}

static void enter(struct crowd *crowd, uint32_t rank, uint64_t epoch)
{
    const struct keel_group_config config = {.epoch = epoch,
                                             .rank = rank,
                                             .rank_count = CROWD,
                                             .addresses = crowd->addresses,
                                             .shard_count = CROWD,
                                             .shard_rank = crowd->own};
    ck_ok(keel_group_open(crowd->endpoints[rank], &config, &crowd->groups[rank]));
}

/* Everybody sends the hub a byte, which it begins to receive after a while. */
static void send_all(struct crowd *crowd, uint64_t epoch, bool hub_is_late)
{
    static uint8_t sent[CROWD], received[CROWD];
    struct keel_operation *sends[HUB], *receives[HUB];
    if (!hub_is_late)
        enter(crowd, HUB, epoch);
    for (uint32_t rank = 0; rank < HUB; rank++) {
        if (crowd->groups[rank] != NULL)
            keel_group_close(crowd->groups[rank]);
        enter(crowd, rank, epoch);
        sent[rank] = (uint8_t)(rank + epoch);
        ck_ok(send_begin(crowd->groups[rank], 1, HUB, &sent[rank], 1, &sends[rank]));
    }
    keel_sleep_until_ns(keel_deadline_after_ns(300 * KEEL_NS_PER_MS));
    if (hub_is_late)
        enter(crowd, HUB, epoch);
    for (uint32_t rank = 0; rank < HUB; rank++)
        ck_ok(receive_begin(crowd->groups[HUB], 1, rank, &received[rank], 1, &receives[rank]));
    for (uint32_t rank = 0; rank < HUB; rank++) {
        ck_ok(keel_operation_wait(receives[rank], in_seconds(30)));
        ck_ok(keel_operation_wait(sends[rank], in_seconds(30)));
        ck_assert_uint_eq(received[rank], sent[rank]);
    }
}

/* First they come before its epoch is open; then while its connections of the epoch before wait for
 * farewells. */
START_TEST(a_rank_that_two_hundred_call_before_it_has_begun_turns_nobody_away)
{
    struct crowd *crowd = crowd_open();
    struct keel_transport_stats stats;
    send_all(crowd, 1, true);
    keel_group_close(crowd->groups[HUB]);
    send_all(crowd, 2, false);
    keel_endpoint_stats(crowd->endpoints[HUB], &stats);
    ck_assert_uint_eq(stats.stale_dropped, 0);
    for (uint32_t rank = 0; rank < CROWD; rank++) {
        keel_group_close(crowd->groups[rank]);
        keel_endpoint_close(crowd->endpoints[rank]);
    }
    keel_free(crowd);
}
END_TEST

/* A process of its own, which is stopped while they call. */
static int hub_alone(int from_parent, int to_parent)
{
    static uint8_t received[CROWD];
    static struct crowd crowd;
    const struct keel_endpoint_config config = {.key = NULL};
    struct keel_operation *receives[HUB];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (keel_endpoint_open(&config, &crowd.endpoints[HUB]) != KEEL_OK)
        return 2;
    keel_endpoint_address(crowd.endpoints[HUB], &crowd.addresses[HUB]);
    ranks_move(to_parent, &crowd.addresses[HUB], sizeof crowd.addresses[HUB], true);
    ranks_move(from_parent, crowd.addresses, sizeof crowd.addresses, false);
    for (uint32_t rank = 0; rank < CROWD; rank++)
        crowd.own[rank] = (uint16_t)rank;
    enter(&crowd, HUB, 1);
    for (uint32_t rank = 0; rank < HUB; rank++)
        ck_ok(receive_begin(crowd.groups[HUB], 1, rank, &received[rank], 1, &receives[rank]));
    for (uint32_t rank = 0; rank < HUB; rank++) {
        enum keel_status status = keel_operation_wait(receives[rank], in_seconds(30));
        if (status != KEEL_OK || received[rank] != 1 + rank % 7) {
            fprintf(stderr, "of rank %u: %s: %s\n", rank, keel_status_name(status), keel_detail());
            return 3;
        }
    }
    keel_group_close(crowd.groups[HUB]);
    keel_endpoint_close(crowd.endpoints[HUB]);
    return 0;
}

START_TEST(a_rank_that_two_hundred_call_while_it_does_not_run_turns_nobody_away)
{
    static uint8_t sent[CROWD];
    struct keel_operation *sends[HUB];
    int down[2], up[2], status = 0;
    ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
    pid_t hub = fork();
    ck_assert_int_ge(hub, 0);
    if (hub == 0)
        _exit(hub_alone(down[0], up[1]));
    struct crowd *crowd = crowd_open();
    ranks_move(up[0], &crowd->addresses[HUB], sizeof crowd->addresses[HUB], false);
    kill(hub, SIGSTOP);
    for (uint32_t rank = 0; rank < HUB; rank++) {
        enter(crowd, rank, 1);
        sent[rank] = (uint8_t)(1 + rank % 7);
        ck_ok(send_begin(crowd->groups[rank], 1, HUB, &sent[rank], 1, &sends[rank]));
    }
    keel_sleep_until_ns(keel_deadline_after_ns(300 * KEEL_NS_PER_MS));
    kill(hub, SIGCONT);
    ranks_move(down[1], crowd->addresses, sizeof crowd->addresses, true);
    for (uint32_t rank = 0; rank < HUB; rank++)
        ck_ok(keel_operation_wait(sends[rank], in_seconds(30)));
    ck_assert_int_eq(waitpid(hub, &status, 0), hub);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the hub failed: 0x%x", (unsigned)status);
    for (uint32_t rank = 0; rank < CROWD; rank++) {
        if (rank != HUB)
            keel_group_close(crowd->groups[rank]);
        keel_endpoint_close(crowd->endpoints[rank]);
    }
    keel_free(crowd);
}
END_TEST

/* A group of ranks that are not there: to begin is local. */
START_TEST(an_operation_of_more_peers_than_connections_is_refused_before_anybody_is_called)
{
    enum { MANY = 300 };
    static struct keel_address addresses[MANY];
    static uint16_t own[MANY];
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_operation *operation = NULL;
    const struct keel_endpoint_config config = {.key = NULL};
    ck_ok(keel_endpoint_open(&config, &endpoint));
    for (uint32_t rank = 0; rank < MANY; rank++) {
        keel_endpoint_address(endpoint, &addresses[rank]);
        own[rank] = (uint16_t)rank;
    }
    struct keel_group_config them = {
        .epoch = 1, .rank_count = MANY, .addresses = addresses, .shard_count = MANY, .shard_rank = own};
    addresses[MANY - 1].bytes = KEEL_ADDRESS_BYTES + 1;
    ck_assert_int_eq(keel_group_open(endpoint, &them, &group), KEEL_INVALID);
    addresses[MANY - 1].bytes = KEEL_ADDRESS_BYTES;
    ck_ok(keel_group_open(endpoint, &them, &group));
    int32_t mine = 1, sum;
    const void *parts[] = {&mine};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .element = KEEL_ELEMENT_I32,
                                   .algorithm = KEEL_ALGORITHM_FLAT,
                                   .count = 1,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = &sum};
    ck_assert_int_eq(keel_group_begin(group, &what, &operation), KEEL_LIMIT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "299 connections"));
    what.algorithm = KEEL_ALGORITHM_AUTO;
    ck_ok(keel_group_begin(group, &what, &operation));
    keel_group_close(group);
    keel_endpoint_close(endpoint);
}
END_TEST

/* Rank by rank. */
START_TEST(hosts_are_numbered_as_they_come_and_who_tells_none_is_alone)
{
    enum { RANKS = 500, HOSTS = 17 };
    static struct keel_address addresses[RANKS];
    struct keel_group group = {.rank_count = RANKS, .addresses = addresses};
    uint64_t seed = 7;
    uint16_t wanted[RANKS], hosts = 0;
    uint8_t names[RANKS];
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct keel_address_parts place = {{0}, {0}, {0}};
        names[rank] = place.host[15] = (uint8_t)(test_random(&seed) % HOSTS); /* 0: none */
        addresses[rank].bytes = sizeof place;
        memcpy(addresses[rank].data, &place, sizeof place);
        uint32_t like = 0;
        while (like < rank && (names[rank] == 0 || names[like] != names[rank]))
            like++;
        wanted[rank] = like < rank ? wanted[like] : hosts++;
    }
    ck_ok(keel_choose_hosts(&group, &group));
    ck_assert_mem_eq(group.host_of, wanted, sizeof wanted);
    keel_free(group.host_of);
}
END_TEST

/* A broadcast by flat is one connection to this rank and too many to its root: who begins it would wait for a
 * root that was refused. */
START_TEST(what_the_root_has_too_many_peers_for_all_ranks_refuse)
{
    enum { MANY = KEEL_CONNECTIONS_MAX + 2 };
    static const enum keel_algorithm straight[] = {KEEL_ALGORITHM_FLAT, KEEL_ALGORITHM_DIRECT};
    static struct keel_address addresses[MANY];
    static uint16_t own[MANY];
    const struct keel_endpoint_config config = {.key = NULL};
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    uint8_t part = 1, result = 0;
    const void *parts[] = {&part};
    ck_ok(keel_endpoint_open(&config, &endpoint));
    for (uint32_t rank = 0; rank < MANY; rank++) {
        keel_endpoint_address(endpoint, &addresses[rank]);
        own[rank] = (uint16_t)rank;
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct keel_group_config whole = {.epoch = 1 + rank,
                                                .rank = rank,
                                                .rank_count = MANY,
                                                .addresses = addresses,
                                                .shard_count = MANY,
                                                .shard_rank = own};
        ck_ok(keel_group_open(endpoint, &whole, &group));
        for (uint32_t k = 0; k < sizeof straight / sizeof straight[0]; k++) {
            const struct keel_collective spread = {.kind = KEEL_BROADCAST,
                                                   .sequence = k,
                                                   .element = KEEL_ELEMENT_U8,
                                                   .algorithm = straight[k],
                                                   .count = 1,
                                                   .parts = rank == 0 ? parts : NULL,
                                                   .part_count = rank == 0 ? 1 : 0,
                                                   .result = &result};
            struct keel_operation *operation = NULL;
            ck_status(keel_group_begin(group, &spread, &operation), KEEL_LIMIT);
        }
        keel_group_close(group);
    }
    keel_endpoint_close(endpoint);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, hosts_are_numbered_as_they_come_and_who_tells_none_is_alone);
    tcase_add_test(tc, an_operation_of_more_peers_than_connections_is_refused_before_anybody_is_called);
    tcase_add_test(tc, a_rank_that_two_hundred_call_before_it_has_begun_turns_nobody_away);
    tcase_add_test(tc, a_rank_that_two_hundred_call_while_it_does_not_run_turns_nobody_away);
    tcase_add_test(tc, what_the_root_has_too_many_peers_for_all_ranks_refuse);
}
KEEL_TEST_MAIN("transport crowd", cases, 120)
