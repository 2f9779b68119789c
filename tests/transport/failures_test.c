/* failures_test.c - death, silence, strangers, old epochs, revocation: every call returns, and the next epoch
 * computes the right thing. It mostly waits. */
#include "ranks.h"
#include "sums.h"

#include <dirent.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { FLOATS = 300007, SHARDS = 6 };

static struct keel_operation *begin_sum(struct rank *me, struct keel_group *group, uint64_t sequence,
                                        float **parts, uint32_t part_count, float *result)
{
    struct keel_operation *operation = NULL;
    rank_ok(me,
            sum_begin(group, sequence, (const float *const *)parts, part_count, result, FLOATS, &operation));
    return operation;
}

/* All members but the gone sum in a new epoch, and are right. */
static void sum_without(struct rank *me, uint64_t epoch, uint32_t gone)
{
    uint32_t members[RANKS_MAX], count = 0, own = 0;
    for (uint32_t rank = 0; rank < me->rank_count; rank++) {
        if (rank == gone)
            continue;
        if (rank == me->rank)
            own = count;
        members[count++] = rank;
    }
    uint16_t shard_rank[SHARDS];
    for (uint32_t s = 0; s < SHARDS; s++)
        shard_rank[s] = (uint16_t)((s * 2 + epoch) % count);
    struct keel_group *group = rank_group_of(me, epoch, members, count, SHARDS, shard_rank);
    float *parts[SHARDS], *result = malloc(FLOATS * sizeof *result);
    uint32_t part_count = make_parts(SHARDS, shard_rank, own, FLOATS, parts);
    rank_ok(me, keel_operation_wait(begin_sum(me, group, 1, parts, part_count, result), in_seconds(20)));
    rank_check(me, first_wrong(result, SHARDS, FLOATS) == FLOATS);
    free_parts(parts, part_count);
    free(result);
    keel_group_close(group);
}

static void note_lost(void *context, uint32_t rank)
{
    *(_Atomic uint32_t *)context = rank + 1;
}

enum { VICTIM = 2, DEPTH = 3 };

/* Sums, three at a time, until one fails. */
static enum keel_status sum_until_failure(struct rank *me, struct keel_group *group, float **parts,
                                          uint32_t part_count, uint64_t deadline_ns)
{
    static float results[DEPTH][FLOATS];
    struct keel_operation *operations[DEPTH] = {NULL};
    for (uint64_t sequence = 0;; sequence++) {
        enum keel_status status = keel_operation_wait(operations[sequence % DEPTH], deadline_ns);
        if (status != KEEL_OK)
            return status;
        if (sequence >= DEPTH)
            rank_check(me, first_wrong(results[sequence % DEPTH], SHARDS, 16) == 16);
        operations[sequence % DEPTH] =
            begin_sum(me, group, sequence, parts, part_count, results[sequence % DEPTH]);
        if (sequence == 2)
            rank_say(me, 's');
    }
}

static int killed_body(struct rank *me)
{
    uint16_t shard_rank[SHARDS] = {0, 1, 2, 3, 2, 0};
    _Atomic uint32_t told = 0;
    struct keel_group *group = rank_group(me, 1, SHARDS, shard_rank);
    keel_group_on_lost(group, note_lost, &told);
    float *parts[SHARDS];
    uint32_t part_count = make_parts(SHARDS, shard_rank, me->rank, FLOATS, parts), lost = 99;
    enum keel_status status = sum_until_failure(me, group, parts, part_count, in_seconds(20));
    rank_check(me, status == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == VICTIM);
    rank_check(me, told == 0 || told == VICTIM + 1);
    keel_group_close(group);
    free_parts(parts, part_count);
    sum_without(me, 2, VICTIM);
    return 0;
}

START_TEST(a_killed_rank_is_lost_to_all_and_the_next_epoch_is_right)
{
    struct ranks ranks;
    uint64_t seed = (uint64_t)_i;
    ranks_start(&ranks, 4, 1, NULL, killed_body);
    for (uint32_t rank = 0; rank < 4; rank++)
        ranks_listen(&ranks, rank);
    keel_sleep_until_ns(keel_deadline_after_ns(test_random(&seed) % (20 * KEEL_NS_PER_MS)));
    kill(ranks.pids[VICTIM], SIGKILL);
    ranks_end(&ranks, VICTIM);
}
END_TEST

static int stopped_body(struct rank *me)
{
    uint16_t shard_rank[SHARDS] = {0, 1, 2, 3, 2, 0};
    struct keel_group *group = rank_group(me, 1, SHARDS, shard_rank);
    float *parts[SHARDS];
    uint32_t part_count = make_parts(SHARDS, shard_rank, me->rank, FLOATS, parts), lost = 99;
    uint64_t deadline = keel_deadline_after_ns(2 * KEEL_NS_PER_S);
    enum keel_status status = sum_until_failure(me, group, parts, part_count, deadline);
    uint64_t now = keel_now_ns();
    rank_check(me, status == KEEL_TIMEOUT && now >= deadline);
    rank_check(me, keel_group_lost(group, &lost) && lost == VICTIM);
    rank_say(me, 't');
    rank_hear(me);
    keel_group_close(group);
    free_parts(parts, part_count);
    sum_without(me, 2, VICTIM);
    return 0;
}

START_TEST(a_stopped_rank_is_named_at_the_deadline_and_the_next_epoch_is_right)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, stopped_body);
    for (uint32_t rank = 0; rank < 4; rank++)
        ranks_listen(&ranks, rank);
    kill(ranks.pids[VICTIM], SIGSTOP);
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != VICTIM)
            ck_assert_int_eq(ranks_listen(&ranks, rank), 't');
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != VICTIM)
            ranks_tell(&ranks, rank, 'c');
    for (uint32_t rank = 0; rank < 4; rank++)
        if (rank != VICTIM)
            ck_assert_int_eq(waitid(P_PID, (id_t)ranks.pids[rank], &(siginfo_t){0}, WEXITED | WNOWAIT), 0);
    kill(ranks.pids[VICTIM], SIGKILL);
    ranks_end(&ranks, VICTIM);
}
END_TEST

static int dead_before_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    rank_say(me, 'r');
    rank_hear(me);
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    uint32_t lost = 99;
    rank_check(me, barrier(group, 1, in_seconds(20)) == KEEL_PEER_LOST);
    rank_check(me, keel_group_lost(group, &lost) && lost == 0);
    keel_group_close(group);
    return 0;
}

START_TEST(a_lower_rank_that_died_before_it_dialed_is_noticed)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, dead_before_body);
    ranks_listen(&ranks, 0);
    ranks_listen(&ranks, 1);
    kill(ranks.pids[0], SIGKILL);
    waitid(P_PID, (id_t)ranks.pids[0], &(siginfo_t){0}, WEXITED | WNOWAIT);
    ranks_tell(&ranks, 1, 'g');
    ranks_end(&ranks, 0);
}
END_TEST

static const uint8_t key_a[32] = "the key of the job, 32 bytes....",
                     key_b[32] = "another key that is no good here";

static int keyed_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    sum_without(me, 1, 99);
    struct keel_group *group = rank_group(me, 2, 1, shard_rank);
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    keel_group_close(group);
    return 0;
}

START_TEST(ranks_that_share_the_key_work_together)
{
    struct ranks ranks;
    const uint8_t *keys[] = {key_a, key_a, key_a};
    ranks_start(&ranks, 3, 1, keys, keyed_body);
    ranks_end(&ranks, -1);
}
END_TEST

static int wrong_key_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    uint8_t data[100] = {0};
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    struct keel_operation *operation = NULL;
    struct keel_transport_stats stats;
    if (me->rank == (uint32_t)me->seed)
        memset(data, 0xee, sizeof data);
    rank_ok(me, broadcast_begin(group, 1, (uint32_t)me->seed, data, sizeof data, &operation));
    enum keel_status status = keel_operation_wait(operation, in_seconds(1));
    rank_check(me, status == KEEL_PEER_LOST || status == KEEL_TIMEOUT);
    for (uint32_t k = 0; k < sizeof data; k++)
        rank_check(me, data[k] == (me->rank == (uint32_t)me->seed ? 0xee : 0));
    rank_say(me, 'd');
    rank_hear(me);
    keel_endpoint_stats(me->endpoint, &stats);
    rank_check(me, stats.connections == 0);
    rank_check(me, me->rank == 0 || stats.stale_dropped > 0);
    keel_group_close(group);
    return 0;
}

START_TEST(a_rank_with_another_key_changes_no_byte_and_is_counted)
{
    struct ranks ranks;
    const uint8_t *keys[] = {key_a, key_b};
    ranks_start(&ranks, 2, (uint64_t)_i, keys, wrong_key_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank `seed` is still in epoch 4 when the other is in 5. */
static int old_epoch_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    bool old = me->rank == (uint32_t)me->seed;
    uint8_t data[100] = {0};
    struct keel_operation *operation = NULL;
    struct keel_transport_stats stats;
    struct keel_group *group = rank_group(me, old ? 4 : 5, 1, shard_rank);
    if (old)
        memset(data, 0xee, sizeof data);
    rank_ok(me, broadcast_begin(group, 1, (uint32_t)me->seed, data, sizeof data, &operation));
    enum keel_status status = keel_operation_wait(operation, in_seconds(old ? 60 : 1));
    rank_check(me, status == (old ? KEEL_REVOKED : KEEL_TIMEOUT));
    for (uint32_t k = 0; k < sizeof data; k++)
        rank_check(me, data[k] == (old ? 0xee : 0));
    rank_say(me, 'd');
    rank_hear(me);
    keel_endpoint_stats(me->endpoint, &stats);
    rank_check(me, old || stats.stale_dropped > 0);
    keel_group_close(group);
    if (old) {
        struct keel_group_config config = {.epoch = 4,
                                           .rank_count = 1,
                                           .addresses = me->addresses,
                                           .shard_count = 1,
                                           .shard_rank = shard_rank};
        rank_check(me, keel_group_open(me->endpoint, &config, &group) == KEEL_INVALID);
        config.epoch = 5;
        config.shard_rank = NULL;
        rank_check(me, keel_group_open(me->endpoint, &config, &group) == KEEL_INVALID);
    }
    sum_without(me, 6, 99);
    return 0;
}

START_TEST(a_rank_of_an_old_epoch_changes_no_byte_and_is_counted)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, (uint64_t)_i, NULL, old_epoch_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void *revoker(void *group)
{
    keel_sleep_until_ns(keel_deadline_after_ns(50 * KEEL_NS_PER_MS));
    keel_group_revoke(group);
    return NULL;
}

static int revoked_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    uint32_t lost = 99;
    uint8_t byte = 0;
    struct keel_thread thread;
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    if (me->rank == 0) {
        rank_ok(me, keel_thread_create(&thread, "revoker", revoker, group));
        rank_check(me, barrier(group, 1, in_seconds(60)) == KEEL_REVOKED);
        keel_thread_join(&thread);
        rank_check(me, !keel_group_lost(group, &lost));
        rank_check(me, broadcast_begin(group, 2, 0, &byte, 1, &operation) == KEEL_REVOKED);
        keel_group_revoke(group);
    }
    keel_group_close(group);
    sum_without(me, 2, 99);
    return 0;
}

START_TEST(a_revoked_group_wakes_its_waiters_and_begins_nothing)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, revoked_body);
    ranks_end(&ranks, -1);
}
END_TEST

static uint32_t entries_of(const char *path)
{
    uint32_t count = 0;
    DIR *directory = opendir(path);
    ck_assert_ptr_nonnull(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

enum { CYCLES = 50 };
enum { ROUNDING_BYTES = 256 }; /* the C library rounds a block up now and then; six bytes an epoch show */

/* Each epoch ends with a sum in flight that is never waited for. */
static int cycles_body(struct rank *me)
{
    uint16_t shard_rank[SHARDS] = {0, 1, 2, 0, 1, 2};
    float *parts[SHARDS], *result = malloc(FLOATS * sizeof *result), *other = malloc(FLOATS * sizeof *other);
    uint32_t part_count = make_parts(SHARDS, shard_rank, me->rank, FLOATS, parts);
    uint32_t fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    uint64_t blocks = keel_memory_stats().live_blocks, bytes = keel_memory_stats().live_bytes;
    rank_say(me, 'b'); /* nobody dials before all have counted */
    rank_hear(me);
    for (uint64_t epoch = 1; epoch <= CYCLES; epoch++) {
        struct keel_group *group = rank_group(me, epoch, SHARDS, shard_rank);
        rank_ok(me, keel_operation_wait(begin_sum(me, group, 1, parts, part_count, result), in_seconds(20)));
        if (epoch % 10 == 0)
            rank_check(me, first_wrong(result, SHARDS, FLOATS) == FLOATS);
        rank_ok(me, barrier(group, 2, in_seconds(20)));
        begin_sum(me, group, 3, parts, part_count, other);
        keel_group_close(group);
        memset(other, 0, FLOATS * sizeof *other);
    }
    while (entries_of("/proc/self/fd") > fds || keel_memory_stats().live_blocks > blocks)
        keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS)); /* the suite's limit ends it */
    rank_check(me, entries_of("/proc/self/fd") == fds);
    rank_check(me, entries_of("/proc/self/task") == threads);
    rank_check(me, keel_memory_stats().live_blocks == blocks);
    rank_check(me, keel_memory_stats().live_bytes <= bytes + ROUNDING_BYTES);
    for (uint32_t k = 0; k < FLOATS; k++)
        rank_check(me, other[k] == 0.0f);
    free_parts(parts, part_count);
    free(result);
    free(other);
    rank_say(me, 'd');
    rank_hear(me);
    return 0;
}

START_TEST(fifty_epochs_leave_no_descriptor_thread_or_byte_behind)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, 1, NULL, cycles_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * KEEL_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Connected, and waiting two seconds for what never comes. */
static int idle_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    uint8_t byte = 0;
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    uint64_t before = cpu_ns();
    rank_ok(me, receive_begin(group, 2, 1 - me->rank, &byte, 1, &operation));
    uint64_t deadline = in_seconds(2);
    rank_check(me, keel_operation_wait(operation, deadline) == KEEL_TIMEOUT && keel_now_ns() >= deadline);
    rank_check(me, cpu_ns() - before < 50 * KEEL_NS_PER_MS);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(waiting_takes_no_processor)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, idle_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static int mismatch_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    uint8_t data[64] = {0};
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    rank_ok(me, broadcast_begin(group, 1, 0, data, 32 + me->rank, &operation));
    rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_MISMATCH);
    rank_check(me, send_begin(group, 2, me->rank, data, 1, &operation) == KEEL_INVALID);
    rank_check(me, send_begin(group, 2, 7, data, 1, &operation) == KEEL_INVALID);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(ranks_that_disagree_about_an_operation_are_told)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, mismatch_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

enum { LIMIT_OPERATIONS = 256 };

/* Every operation that was begun is freed by the close. */
/* Ranks 0 and 1 disagree and leave at once; rank 2 comes later, to a group that all have been in, or not. */
static int late_for_a_mismatch_body(struct rank *me)
{
    const uint16_t shard_rank[1] = {0};
    uint8_t data[64] = {0};
    struct keel_operation *operation = NULL;
    struct keel_group *group = NULL;
    bool warm = me->seed == 1;
    if (warm || me->rank != 2)
        group = rank_group(me, 1, 1, shard_rank);
    if (warm)
        rank_ok(me, barrier(group, 1, in_seconds(20)));
    if (me->rank == 2)
        keel_sleep_until_ns(keel_deadline_after_ns(300 * KEEL_NS_PER_MS));
    if (group == NULL)
        group = rank_group(me, 1, 1, shard_rank);
    rank_ok(me, broadcast_begin(group, 2, 0, data, me->rank == 1 ? 33 : 32, &operation));
    rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_MISMATCH);
    rank_check(me, strstr(keel_detail(), "rank 1 has count 33") != NULL);
    keel_group_close(group);
    rank_say(me, 'd');
    rank_hear(me);
    return 0;
}

START_TEST(who_is_late_hears_of_a_disagreement_from_those_who_left)
{
    struct ranks ranks;
    ranks_start(&ranks, 3, (uint64_t)_i, NULL, late_for_a_mismatch_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static int limit_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    static uint8_t bytes[LIMIT_OPERATIONS + 1];
    struct keel_operation *operation = NULL;
    uint64_t live = keel_memory_stats().live_bytes;
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    for (uint64_t k = 0; k < LIMIT_OPERATIONS; k++)
        rank_ok(me, receive_begin(group, k, 1 - me->rank, &bytes[k], 1, &operation));
    rank_check(me, receive_begin(group, LIMIT_OPERATIONS, 1 - me->rank, &bytes[LIMIT_OPERATIONS], 1,
                                 &operation) == KEEL_LIMIT);
    keel_group_close(group);
    rank_say(me, 'd');
    rank_hear(me);
    while (keel_memory_stats().live_bytes > live)
        keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS)); /* the suite's limit ends it */
    return 0;
}

START_TEST(more_operations_than_the_limit_are_refused_and_all_are_freed)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, limit_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

/* Rank 0 has no descriptor left to connect with. That accuses nobody, and passes. */
static int destitute_body(struct rank *me)
{
    struct rlimit before, none = {.rlim_cur = 0};
    uint32_t lost = 99;
    struct keel_group *group = rank_group(me, 1, 1, (const uint16_t[]){0});
    struct keel_operation *operation = NULL;
    uint8_t byte = 0;
    rank_check(me, getrlimit(RLIMIT_NOFILE, &before) == 0);
    none.rlim_max = before.rlim_max;
    if (me->rank == 0) {
        rank_check(me, setrlimit(RLIMIT_NOFILE, &none) == 0);
        rank_ok(me, receive_begin(group, 1, 1, &byte, 1, &operation));
        rank_check(me, keel_operation_wait(operation, in_seconds(20)) == KEEL_EXHAUSTED);
        rank_check(me, !keel_group_lost(group, &lost));
        rank_check(me, setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    rank_say(me, 'c');
    rank_hear(me);
    sum_without(me, 2, 99);
    return 0;
}

START_TEST(a_rank_without_descriptors_says_so_and_accuses_nobody)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, destitute_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static int misuse_body(struct rank *me)
{
    uint16_t shard_rank[1] = {0};
    uint8_t data[2] = {0};
    struct keel_operation *first = NULL, *second = NULL;
    struct keel_group *group = rank_group(me, 1, 1, shard_rank);
    struct keel_collective no_list = {
        .kind = KEEL_ALL_GATHER, .sequence = 1, .element = KEEL_ELEMENT_U8, .count = 1, .part_count = 1};
    no_list.result = data;
    rank_check(me, keel_group_begin(group, &no_list, &first) == KEEL_INVALID);
    rank_ok(me, receive_begin(group, 2, 1 - me->rank, &data[0], 1, &first));
    rank_ok(me, receive_begin(group, 2, 1 - me->rank, &data[1], 1, &second));
    rank_check(me, keel_operation_wait(second, in_seconds(20)) == KEEL_INVALID);
    rank_check(me, strstr(keel_detail(), "another of this number is in flight") != NULL);
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    return 0;
}

START_TEST(a_missing_list_of_parts_and_a_number_given_twice_are_told)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, 1, NULL, misuse_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static int call_raw(const struct keel_address *address, const char *words)
{
    size_t bytes = strlen(words);
    struct sockaddr_in where;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memcpy(&where, address->data, sizeof where);
    if (connect(fd, (struct sockaddr *)&where, sizeof where) != 0 ||
        send(fd, words, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        return -1;
    return fd;
}

static int stranger_body(struct rank *me)
{
    int silent = call_raw(&me->addresses[1 - me->rank], "");
    int noisy = call_raw(&me->addresses[1 - me->rank], "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n");
    rank_check(me, silent >= 0 && noisy >= 0);
    sum_without(me, 1, 99);
    close(silent);
    close(noisy);
    sum_without(me, 2, 99);
    return 0;
}

START_TEST(strangers_that_speak_another_language_disturb_nothing)
{
    struct ranks ranks;
    /* at the fabric's port, while ranks use it; those at the socket of shared memory are shared_test's */
    ck_assert_int_eq(setenv("KEEL_SHARED_MEMORY", "0", 1), 0);
    ranks_start(&ranks, 2, 1, NULL, stranger_body);
    ranks_end(&ranks, -1);
}
END_TEST

enum { LEAVINGS = 400 };

/* Rank 0 begins a sum and closes its group at a random moment, mostly while the two shake hands. */
static int leaving_body(struct rank *me)
{
    uint16_t shard_rank[SHARDS] = {0, 1, 0, 1, 0, 1};
    uint64_t seed = me->seed + me->rank;
    uint32_t revoked = 0;
    for (uint64_t epoch = 1; epoch <= LEAVINGS; epoch++) {
        struct keel_group *group = rank_group(me, epoch, SHARDS, shard_rank);
        float *parts[SHARDS], result[1024];
        uint32_t part_count = make_parts(SHARDS, shard_rank, me->rank, 1024, parts), lost;
        struct keel_operation *operation = NULL;
        rank_ok(me, sum_begin(group, 1, (const float *const *)parts, part_count, result, 1024, &operation));
        if (me->rank == 0) {
            uint64_t longest_ns = 2 * KEEL_NS_PER_MS >> epoch % 8; /* connections differ in their pace */
            keel_sleep_until_ns(keel_deadline_after_ns(test_random(&seed) % longest_ns));
        } else {
            enum keel_status status = keel_operation_wait(operation, in_seconds(20));
            rank_check(me, status == KEEL_OK || status == KEEL_REVOKED);
            rank_check(me, !keel_group_lost(group, &lost));
            revoked += status == KEEL_REVOKED;
        }
        keel_group_close(group);
        free_parts(parts, part_count);
    }
    rank_check(me, me->rank == 0 || revoked > LEAVINGS / 20);
    rank_say(me, 'd'); /* rank 0 stays until rank 1 has been through all epochs */
    rank_hear(me);
    return 0;
}

START_TEST(a_rank_that_leaves_while_it_connects_is_never_taken_for_dead)
{
    struct ranks ranks;
    ranks_start(&ranks, 2, (uint64_t)_i, NULL, leaving_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_killed_rank_is_lost_to_all_and_the_next_epoch_is_right, 0, 6);
    tcase_add_test(tc, a_stopped_rank_is_named_at_the_deadline_and_the_next_epoch_is_right);
    tcase_add_test(tc, a_lower_rank_that_died_before_it_dialed_is_noticed);
    tcase_add_loop_test(tc, a_rank_that_leaves_while_it_connects_is_never_taken_for_dead, 0, 2);
    tcase_add_test(tc, ranks_that_share_the_key_work_together);
    tcase_add_loop_test(tc, a_rank_with_another_key_changes_no_byte_and_is_counted, 0, 2);
    tcase_add_loop_test(tc, a_rank_of_an_old_epoch_changes_no_byte_and_is_counted, 0, 2);
    tcase_add_test(tc, a_revoked_group_wakes_its_waiters_and_begins_nothing);
    tcase_add_test(tc, fifty_epochs_leave_no_descriptor_thread_or_byte_behind);
    tcase_add_test(tc, waiting_takes_no_processor);
    tcase_add_test(tc, ranks_that_disagree_about_an_operation_are_told);
    tcase_add_loop_test(tc, who_is_late_hears_of_a_disagreement_from_those_who_left, 0, 2);
    tcase_add_test(tc, more_operations_than_the_limit_are_refused_and_all_are_freed);
    tcase_add_test(tc, a_missing_list_of_parts_and_a_number_given_twice_are_told);
    tcase_add_test(tc, a_rank_without_descriptors_says_so_and_accuses_nobody);
    tcase_add_test(tc, strangers_that_speak_another_language_disturb_nothing);
}
KEEL_TEST_MAIN("transport failures", cases, 120)
