/* ranks.h - several ranks as processes, for the transport's tests.
 *
 * The parent forks before any fabric call but one, passes everybody's address round through pipes, and judges
 * exit codes. A child says what is wrong on stderr and exits with 1. Children die with their parent. */
#ifndef KEEL_TESTS_RANKS_H
#define KEEL_TESTS_RANKS_H

#include "harness.h"
#include "libfabric.h"
#include "message.h"

#include <fcntl.h>
#include <keel/clock.h>
#include <keel/transport.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a message has on the wire besides its payload: over the fabric, without a key, a checksum too. */
static inline uint64_t header_bytes(void)
{
    const char *shared = getenv("KEEL_SHARED_MEMORY");
    return shared != NULL && strcmp(shared, "0") == 0 ? sizeof(struct keel_checked)
                                                      : sizeof(struct keel_message);
}

enum { RANKS_MAX = 9 };

/* libfabric's verbs provider reads all of /proc/kallsyms when it is asked for the first time, whoever asked:
 * some 70 ms of processor in every rank of every test, unless the test program has done it for its children.
 */
__attribute__((constructor)) static void ranks_warm_up(void)
{
    if (keel_libfabric_open() != KEEL_OK)
        return;
    struct fi_info *found = NULL, *hints = keel_fi_allocinfo();
    if (hints != NULL && (hints->fabric_attr->prov_name = strdup("tcp")) != NULL &&
        keel_fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &found) == 0)
        keel_fi_freeinfo(found);
    keel_fi_freeinfo(hints);
}

struct ranks;
/* What one rank sees. */
struct rank {
    uint32_t rank, rank_count;
    struct keel_endpoint *endpoint;
    struct keel_address addresses[RANKS_MAX];
    int from_parent, to_parent;
    uint64_t seed;
    uint64_t silence_ns; /* of the groups that it opens; a body may set it */
    const uint8_t *key;
};

struct ranks {
    uint32_t count;
    pid_t pids[RANKS_MAX];
    int to_child[RANKS_MAX], from_child[RANKS_MAX];
};

#define rank_check(me, condition)                                                                            \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %u: %s:%d: %s: %s\n", (me)->rank, __FILE__, __LINE__, #condition,          \
                    keel_detail());                                                                          \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define rank_ok(me, call) rank_check(me, (call) == KEEL_OK)

static inline uint64_t test_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline void ranks_move(int fd, void *data, size_t bytes, bool out)
{
    uint8_t *at = data;
    while (bytes > 0) {
        ssize_t done = out ? write(fd, at, bytes) : read(fd, at, bytes);
        if (done <= 0)
            _exit(9);
        at += done;
        bytes -= (size_t)done;
    }
}

static inline void rank_say(struct rank *me, uint8_t word)
{
    ranks_move(me->to_parent, &word, 1, true);
}

static inline uint8_t rank_hear(struct rank *me)
{
    uint8_t word = 0;
    ranks_move(me->from_parent, &word, 1, false);
    return word;
}

static inline void ranks_tell(struct ranks *ranks, uint32_t rank, uint8_t word)
{
    ranks_move(ranks->to_child[rank], &word, 1, true);
}

static inline uint8_t ranks_listen(struct ranks *ranks, uint32_t rank)
{
    uint8_t word = 0;
    ranks_move(ranks->from_child[rank], &word, 1, false);
    return word;
}

/* Everybody has spoken before anybody goes on. */
static inline void ranks_together(struct ranks *ranks)
{
    for (uint32_t rank = 0; rank < ranks->count; rank++)
        ranks_listen(ranks, rank);
    for (uint32_t rank = 0; rank < ranks->count; rank++)
        ranks_tell(ranks, rank, 'c');
}

/* Where a rank lives, if not on this host like all others. */
static void (*ranks_settle)(uint32_t rank, struct keel_endpoint_config *config);

static inline void rank_run(struct rank *me, int (*body)(struct rank *), const uint8_t *keys[])
{
    static const uint8_t everybodys[32] = "a key for all where none is set";
    bool sealed = getenv("KEEL_TEST_SEALED") != NULL;
    struct keel_endpoint_config config = {
        .provider = getenv("KEEL_TEST_PROVIDER"), .key = sealed ? everybodys : NULL, .seal_payload = sealed};
    if (keys != NULL)
        config.key = keys[me->rank];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ranks_settle != NULL)
        ranks_settle(me->rank, &config);
    rank_ok(me, keel_endpoint_open(&config, &me->endpoint));
    keel_endpoint_address(me->endpoint, &me->addresses[me->rank]);
    ranks_move(me->to_parent, &me->addresses[me->rank], sizeof me->addresses[0], true);
    ranks_move(me->from_parent, me->addresses, sizeof me->addresses, false);
    int code = body(me);
    keel_endpoint_close(me->endpoint);
    exit(code);
}

/* keys: one per rank, or NULL for none. */
static inline void ranks_start(struct ranks *ranks, uint32_t count, uint64_t seed, const uint8_t *keys[],
                               int (*body)(struct rank *))
{
    struct keel_address addresses[RANKS_MAX] = {0};
    ranks->count = count;
    fflush(NULL);
    for (uint32_t rank = 0; rank < count; rank++) {
        int down[2], up[2];
        ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
        ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            struct rank me = {
                .rank = rank, .rank_count = count, .from_parent = down[0], .to_parent = up[1], .seed = seed};
            rank_run(&me, body, keys);
        }
        close(down[0]);
        close(up[1]);
        ranks->pids[rank] = pid;
        ranks->to_child[rank] = down[1];
        ranks->from_child[rank] = up[0];
    }
    for (uint32_t rank = 0; rank < count; rank++)
        ranks_move(ranks->from_child[rank], &addresses[rank], sizeof addresses[0], false);
    for (uint32_t rank = 0; rank < count; rank++)
        ranks_move(ranks->to_child[rank], addresses, sizeof addresses, true);
}

/* Wait for all; `killed` (or -1) must have died by SIGKILL, the others must have exited with 0. */
static inline void ranks_end(struct ranks *ranks, int killed)
{
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        int status = 0;
        ck_assert_int_eq(waitpid(ranks->pids[rank], &status, 0), ranks->pids[rank]);
        if ((int)rank == killed)
            ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "rank %u was not killed", rank);
        else
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %u failed: status 0x%x", rank,
                          (unsigned)status);
        close(ranks->to_child[rank]);
        close(ranks->from_child[rank]);
    }
}

/* A group over all ranks, or over those in `members` (as many as member_count, ascending). */
static inline struct keel_group *rank_group_of(struct rank *me, uint64_t epoch, const uint32_t *members,
                                               uint32_t member_count, uint32_t shard_count,
                                               const uint16_t *shard_rank)
{
    struct keel_address addresses[RANKS_MAX];
    struct keel_group_config config = {.epoch = epoch,
                                       .rank = member_count,
                                       .rank_count = member_count,
                                       .addresses = addresses,
                                       .shard_count = shard_count,
                                       .shard_rank = shard_rank,
                                       .silence_ns = me->silence_ns};
    for (uint32_t k = 0; k < member_count; k++) {
        addresses[k] = me->addresses[members[k]];
        if (members[k] == me->rank)
            config.rank = k;
    }
    struct keel_group *group = NULL;
    rank_ok(me, keel_group_open(me->endpoint, &config, &group));
    return group;
}

static inline struct keel_group *rank_group(struct rank *me, uint64_t epoch, uint32_t shard_count,
                                            const uint16_t *shard_rank)
{
    const uint32_t members[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return rank_group_of(me, epoch, members, me->rank_count, shard_count, shard_rank);
}

/* ---- operations, in short ---- */

static inline enum keel_status sum_begin(struct keel_group *group, uint64_t sequence,
                                         const float *const *parts, uint32_t part_count, float *result,
                                         uint64_t count, struct keel_operation **out)
{
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_F32,
                                   .count = count,
                                   .parts = (const void *const *)parts,
                                   .part_count = part_count,
                                   .result = result};
    return keel_group_begin(group, &what, out);
}

/* `data` is read at the root, and filled elsewhere. */
static inline enum keel_status broadcast_begin(struct keel_group *group, uint64_t sequence, uint32_t root,
                                               void *data, uint64_t bytes, struct keel_operation **out)
{
    bool mine = keel_group_rank(group) == root;
    const void *parts[] = {data};
    struct keel_collective what = {.kind = KEEL_BROADCAST,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .root = root,
                                   .count = bytes,
                                   .parts = parts,
                                   .part_count = mine ? 1 : 0,
                                   .result = mine ? NULL : data};
    return keel_group_begin(group, &what, out);
}

static inline enum keel_status all_gather_begin(struct keel_group *group, uint64_t sequence, const void *mine,
                                                uint64_t bytes, void *all, struct keel_operation **out)
{
    const void *parts[] = {mine};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .count = bytes,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = all};
    return keel_group_begin(group, &what, out);
}

static inline enum keel_status send_begin(struct keel_group *group, uint64_t sequence, uint32_t peer,
                                          const void *data, uint64_t bytes, struct keel_operation **out)
{
    const void *parts[] = {data};
    struct keel_collective what = {.kind = KEEL_SEND,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .root = peer,
                                   .count = bytes,
                                   .parts = parts,
                                   .part_count = 1};
    return keel_group_begin(group, &what, out);
}

static inline enum keel_status receive_begin(struct keel_group *group, uint64_t sequence, uint32_t peer,
                                             void *data, uint64_t bytes, struct keel_operation **out)
{
    struct keel_collective what = {.kind = KEEL_RECEIVE,
                                   .sequence = sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .root = peer,
                                   .count = bytes,
                                   .result = data};
    return keel_group_begin(group, &what, out);
}

static inline enum keel_status barrier(struct keel_group *group, uint64_t sequence, uint64_t deadline_ns)
{
    struct keel_collective what = {.kind = KEEL_BARRIER, .sequence = sequence};
    return keel_group_run(group, &what, deadline_ns);
}

static inline uint64_t in_seconds(uint64_t seconds)
{
    return keel_deadline_after_ns(seconds * KEEL_NS_PER_S);
}

#endif
