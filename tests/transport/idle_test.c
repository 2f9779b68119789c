/* idle_test.c - strangers who connect and say nothing, or half a greeting: they take no more than a few
 * descriptors, for a short time, and new epochs open meanwhile. */
#include "callers.h"
#include "ranks.h"
#include "sums.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { HELD_MAX = 4 }; /* by idle connections: the kernel keeps them */
enum { STRANGERS = 1000, HALVES = 1000, HALF_BYTES = 10, DESCRIPTORS = 256, EPOCHS = 4 };

static uint32_t count_descriptors(void)
{
    uint32_t count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all != NULL && readdir(all) != NULL)
        count++;
    closedir(all);
    return count;
}

static void limit_descriptors(uint32_t most)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int call(const struct keel_address *address)
{
    struct sockaddr_in where;
    memcpy(&where, address->data, sizeof where);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&where, sizeof where) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void add_up(struct rank *me, uint64_t epoch)
{
    const uint16_t shard_rank[2] = {0, 1};
    float *parts[2], result[1000];
    struct keel_operation *operation = NULL;
    struct keel_group *group = rank_group(me, epoch, 2, shard_rank);
    uint32_t count = make_parts(2, shard_rank, me->rank, 1000, parts);
    rank_ok(me, sum_begin(group, 1, (const float *const *)parts, count, result, 1000, &operation));
    rank_ok(me, keel_operation_wait(operation, in_seconds(20)));
    rank_check(me, first_wrong(result, 2, 1000) == 1000);
    keel_group_close(group);
    free_parts(parts, count);
}

/* Ranks 0 and 1 work; rank 2 is the stranger, and needs no endpoint for that. seed 1: it says nothing; 2:
 * half a greeting. */
static int crowded_body(struct rank *me)
{
    static int silent[2][STRANGERS];
    static uint8_t half[HALF_BYTES];
    uint32_t count = 2 * (me->seed == 1 ? STRANGERS : HALVES);
    if (me->rank == 2) {
        rank_say(me, 'i');
        rank_hear(me); /* the ranks have had an epoch */
        limit_descriptors(2 * STRANGERS + DESCRIPTORS);
        for (uint32_t k = 0; k < count; k++)
            silent[k % 2][k / 2] = call(&me->addresses[k % 2]);
        for (uint32_t k = 0; k < count; k++)
            rank_check(
                me, silent[k % 2][k / 2] >= 0 &&
                        (me->seed == 1 || send(silent[k % 2][k / 2], half, sizeof half, MSG_NOSIGNAL) > 0));
        rank_say(me, 'i');
        rank_hear(me);
        rank_hear(me); /* the ranks are done */
        return 0;
    }
    limit_descriptors(DESCRIPTORS);
    me->rank_count = 2;
    add_up(me, 1);
    uint32_t before = count_descriptors();
    rank_say(me, 'i');
    rank_hear(me);
    rank_say(me, 'i');
    rank_hear(me); /* all strangers have called */
    uint32_t held = count_descriptors();
    held -= held < before ? held : before;
    printf("note: %d %s connections to rank %u hold %u of its descriptors\n",
           me->seed == 1 ? STRANGERS : HALVES, me->seed == 1 ? "idle" : "half-greeted", me->rank, held);
    fflush(stdout);
    rank_check(me, me->seed != 1 || held <= HELD_MAX);
    for (uint64_t epoch = 2; epoch < 2 + EPOCHS; epoch++)
        add_up(me, epoch);
    rank_check(me, count_descriptors() < DESCRIPTORS / 2);
    rank_say(me, 'd');
    rank_hear(me);
    return 0;
}

static void crowd(uint64_t seed, bool keyed)
{
    struct ranks ranks;
    static const uint8_t key[32] = "a key the strangers have not";
    const uint8_t *keys[] = {key, key, key};
    setenv("KEEL_SHARED_MEMORY", "0", 1);
    ranks_start(&ranks, 3, seed, keyed ? keys : NULL, crowded_body);
    ranks_together(&ranks);
    ranks_together(&ranks);
    for (uint32_t rank = 0; rank < 2; rank++)
        ck_assert_int_eq(ranks_listen(&ranks, rank), 'd');
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_tell(&ranks, rank, 'c');
    ranks_end(&ranks, -1);
}

START_TEST(a_thousand_idle_connections_to_each_rank_hold_up_no_new_epoch)
{
    crowd(1, _i == 0);
}
END_TEST

START_TEST(half_a_greeting_holds_up_no_new_epoch)
{
    crowd(2, _i == 0);
}
END_TEST

/* A member that was stopped between its connection and its greeting is such a caller. */
static int lone_body(struct rank *me)
{
    if (me->rank == 2) {
        struct pollfd connection = {.events = POLLIN | POLLRDHUP};
        rank_say(me, 'i');
        rank_hear(me); /* the ranks have had an epoch */
        connection.fd = call(&me->addresses[0]);
        rank_check(me, connection.fd >= 0 && poll(&connection, 1, KEEL_SILENT_MS + 1000) == 0);
        rank_say(me, 'd');
        rank_hear(me);
        return 0;
    }
    me->rank_count = 2;
    add_up(me, 1);
    rank_say(me, 'i');
    rank_hear(me);
    rank_hear(me); /* the endpoint's own thread sees to the stranger */
    return 0;
}

START_TEST(few_silent_callers_are_given_all_the_time_they_take)
{
    struct ranks ranks;
    setenv("KEEL_SHARED_MEMORY", "0", 1);
    ranks_start(&ranks, 3, 1, NULL, lone_body);
    ranks_together(&ranks);
    ck_assert_int_eq(ranks_listen(&ranks, 2), 'd');
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_tell(&ranks, rank, 'c');
    ranks_end(&ranks, -1);
}
END_TEST

enum { LISTENERS_MAX = 4 };

/* Where this process listens over TCP; the kernel is told to keep no callers to itself. */
static uint32_t find_listeners(struct sockaddr_in *out)
{
    uint32_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS && count < LISTENERS_MAX; fd++) {
        socklen_t bytes = sizeof out[count], value_bytes = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &value_bytes) != 0 || listens == 0 ||
            getsockname(fd, (struct sockaddr *)&out[count], &bytes) != 0 || out[count].sin_family != AF_INET)
            continue;
        setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &(int){0}, sizeof(int));
        count++;
    }
    return count;
}

static uint32_t count_accepted(const struct sockaddr_in *listeners, uint32_t listener_count)
{
    uint32_t count = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        struct sockaddr_in own = {0}, peer;
        socklen_t bytes = sizeof own, peer_bytes = sizeof peer;
        if (getsockname(fd, (struct sockaddr *)&own, &bytes) == 0 && own.sin_family == AF_INET &&
            getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) == 0)
            for (uint32_t k = 0; k < listener_count; k++)
                count += own.sin_port == listeners[k].sin_port;
    }
    return count;
}

/* A socket of this process whose other end is that of the connection. */
static bool is_accepted(int connection)
{
    struct sockaddr_in caller = {0};
    socklen_t bytes = sizeof caller;
    if (getsockname(connection, (struct sockaddr *)&caller, &bytes) != 0)
        return false;
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        struct sockaddr_in peer = {0};
        bytes = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 && peer.sin_family == AF_INET &&
            peer.sin_port == caller.sin_port)
            return true;
    }
    return false;
}

/* A stranger whom the listener has lost patience with calls again. */
static void call_again(struct rank *me, const struct keel_address *address, int *connection)
{
    struct pollfd hung_up = {.fd = *connection, .events = POLLRDHUP};
    if (poll(&hung_up, 1, 0) == 0)
        return;
    close(*connection);
    *connection = call(address);
    rank_check(me, *connection >= 0);
}

/* The endpoint closes while a stranger who has said nothing is connected to each of its listeners: also to
 * that of libfabric which an unconnected endpoint has for itself. */
static int closing_body(struct rank *me)
{
    struct sockaddr_in listeners[LISTENERS_MAX];
    struct keel_group *group = rank_group(me, 1, 1, (const uint16_t[]){0});
    rank_ok(me, barrier(group, 1, in_seconds(20)));
    uint32_t count = find_listeners(listeners);
    rank_check(me, count == (me->seed == 1 ? 2 : 1));
    struct keel_address addresses[LISTENERS_MAX] = {0};
    int connections[LISTENERS_MAX];
    for (uint32_t k = 0; k < count; k++) {
        memcpy(addresses[k].data, &listeners[k], sizeof listeners[k]);
        rank_check(me, (connections[k] = call(&addresses[k])) >= 0);
    }
    for (uint32_t accepted = 0; accepted < count;) {
        keel_sleep_until_ns(keel_deadline_after_ns(5 * KEEL_NS_PER_MS));
        accepted = 0;
        for (uint32_t k = 0; k < count; k++) {
            call_again(me, &addresses[k], &connections[k]);
            accepted += is_accepted(connections[k]);
        }
    }
    rank_say(me, 'd');
    rank_hear(me);
    keel_group_close(group);
    keel_endpoint_close(me->endpoint);
    rank_check(me, count_accepted(listeners, count) == 0);
    exit(0); /* the endpoint is gone already */
}

START_TEST(an_endpoint_that_closes_keeps_no_descriptor_of_a_silent_caller)
{
    struct ranks ranks;
    setenv("KEEL_SHARED_MEMORY", "0", 1);
    setenv("KEEL_TEST_PROVIDER", _i == 1 ? "tcp;ofi_rxm" : "tcp", 1);
    setenv("FI_OFI_RXM_MSG_RX_SIZE", "256", 1); /* it fills 64 MiB with zeros otherwise */
    ranks_start(&ranks, 2, (uint64_t)_i, NULL, closing_body);
    ranks_together(&ranks);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_thousand_idle_connections_to_each_rank_hold_up_no_new_epoch, 0, 2);
    tcase_add_test(tc, few_silent_callers_are_given_all_the_time_they_take);
    tcase_add_loop_test(tc, half_a_greeting_holds_up_no_new_epoch, 0, 2);
    tcase_add_loop_test(tc, an_endpoint_that_closes_keeps_no_descriptor_of_a_silent_caller, 0, 2);
}
KEEL_TEST_MAIN("transport with idle callers", cases, 120)
