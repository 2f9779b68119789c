/* rendezvous_test.c - meeting at one address: who has the key comes in, each rank once, and nobody else is
 * heard.
 */
#include "harness.h"
#include "rendezvous_wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint8_t key[KEEL_KEY_BYTES] = {1, 2, 3}, other_key[KEEL_KEY_BYTES] = {4};

static uint64_t in_seconds(uint64_t seconds)
{
    return keel_deadline_after_ns(seconds * KEEL_NS_PER_S);
}

/* What a member does; its exit code is its enum keel_status. */
static pid_t member(const char *place, const uint8_t *its_key, uint32_t rank, uint32_t world, bool orderly)
{
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid != 0)
        return pid;
    struct keel_rendezvous_member *me = NULL;
    struct keel_address mine = {.bytes = 1, .data = {(uint8_t)(rank + 1)}}, all[8];
    char local[KEEL_RENDEZVOUS_PLACE_BYTES];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enum keel_status status = keel_rendezvous_connect(place, its_key, in_seconds(20), local, &me);
    if (status == KEEL_OK)
        status = keel_rendezvous_enter(me, rank, world, &mine, in_seconds(20), all);
    for (uint32_t r = 0; r < world && status == KEEL_OK; r++)
        if (all[r].bytes != 1 || all[r].data[0] != r + 1 || strcmp(local, "127.0.0.1") != 0)
            status = KEEL_INTERNAL;
    if (status == KEEL_OK)
        status = keel_rendezvous_say(me, KEEL_RENDEZVOUS_OWN, &rank, sizeof rank, in_seconds(20));
    keel_rendezvous_leave(me, orderly);
    _exit((int)status);
}

static int code_of(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Whether it has ended; its code is still to be had. */
static bool has_ended(pid_t pid)
{
    siginfo_t end = {.si_pid = 0};
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &end, WEXITED | WNOHANG | WNOWAIT), 0);
    return end.si_pid == pid;
}

/* The host hears whoever calls until that member has ended, however late it calls. Nothing happens. */
static void hear_until_ended(struct keel_rendezvous_host *host, pid_t pid)
{
    struct keel_rendezvous_event event;
    do
        ck_status(keel_rendezvous_host_next(host, keel_deadline_after_ns(20 * KEEL_NS_PER_MS), &event),
                  KEEL_TIMEOUT);
    while (!has_ended(pid));
}

static struct keel_rendezvous_host *host_open(uint32_t world)
{
    struct keel_rendezvous_host *host;
    ck_ok(keel_rendezvous_host_open("127.0.0.1:0", key, world, &host));
    return host;
}

START_TEST(all_meet_speak_and_part)
{
    enum { WORLD = 5 };
    struct keel_rendezvous_host *host = host_open(WORLD);
    struct keel_rendezvous_event event;
    pid_t pids[WORLD];
    uint32_t spoke = 0, left = 0;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        pids[rank] = member(keel_rendezvous_host_place(host), key, rank, WORLD, rank != 2);
    ck_ok(keel_rendezvous_host_next(host, in_seconds(20), &event));
    ck_assert_uint_eq(event.kind, KEEL_RENDEZVOUS_COMPLETE);
    while (left < WORLD) {
        ck_ok(keel_rendezvous_host_next(host, in_seconds(20), &event));
        if (event.kind == KEEL_RENDEZVOUS_FRAME) {
            ck_assert_uint_eq(event.frame_kind, KEEL_RENDEZVOUS_OWN);
            ck_assert_mem_eq(event.payload, &event.rank, sizeof event.rank);
            spoke++;
        } else {
            ck_assert_uint_eq(event.kind, KEEL_RENDEZVOUS_GONE);
            ck_assert_int_eq(event.orderly, event.rank != 2);
            left++;
        }
    }
    ck_assert_uint_eq(spoke, WORLD);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        ck_assert_int_eq(code_of(pids[rank]), KEEL_OK);
    keel_rendezvous_host_close(host);
}
END_TEST

START_TEST(who_does_not_belong_is_kept_out_and_the_rest_meet)
{
    struct keel_rendezvous_host *host = host_open(2);
    struct keel_rendezvous_event event;
    uint32_t missing;
    ck_assert_uint_eq(keel_rendezvous_host_joined(host, &missing), 0);
    pid_t first = member(keel_rendezvous_host_place(host), key, 1, 2, true);
    while (keel_rendezvous_host_joined(host, &missing) == 0) /* no event yet: the meeting is not complete */
        ck_status(keel_rendezvous_host_next(host, keel_deadline_after_ns(KEEL_NS_PER_MS), &event),
                  KEEL_TIMEOUT);
    ck_assert_uint_eq(missing, 0);
    pid_t wrong_key = member(keel_rendezvous_host_place(host), other_key, 0, 2, true);
    pid_t wrong_world = member(keel_rendezvous_host_place(host), key, 0, 3, true);
    pid_t wrong_rank = member(keel_rendezvous_host_place(host), key, 1, 2, true);
    hear_until_ended(host, wrong_key);
    hear_until_ended(host, wrong_world);
    hear_until_ended(host, wrong_rank);
    ck_assert_int_eq(code_of(wrong_key), KEEL_PEER_LOST);
    ck_assert_int_eq(code_of(wrong_world), KEEL_MISMATCH);
    ck_assert_int_eq(code_of(wrong_rank), KEEL_MISMATCH);
    ck_assert_uint_eq(keel_rendezvous_host_joined(host, &missing), 1);
    pid_t second = member(keel_rendezvous_host_place(host), key, 0, 2, true);
    ck_ok(keel_rendezvous_host_next(host, in_seconds(20), &event));
    ck_assert_uint_eq(event.kind, KEEL_RENDEZVOUS_COMPLETE);
    ck_assert_int_eq(code_of(first), KEEL_OK);
    ck_assert_int_eq(code_of(second), KEEL_OK);
    keel_rendezvous_host_close(host);
}
END_TEST

/* A host with another key cannot make a member believe its table. */
START_TEST(a_member_does_not_follow_a_host_without_the_key)
{
    struct keel_rendezvous_host *host;
    ck_ok(keel_rendezvous_host_open("127.0.0.1:0", other_key, 1, &host));
    pid_t pid = member(keel_rendezvous_host_place(host), key, 0, 1, true);
    hear_until_ended(host, pid);
    ck_assert_int_eq(code_of(pid), KEEL_PEER_LOST);
    keel_rendezvous_host_close(host);
}
END_TEST

/* Noise, a header that promises too much, and a frame that is sent twice. */
START_TEST(nonsense_ends_its_own_connection_only)
{
    struct keel_rendezvous_host *host = host_open(1);
    struct keel_rendezvous_event event;
    const char *port = strrchr(keel_rendezvous_host_place(host), ':') + 1;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    uint8_t noise[4096];
    memset(noise, 0x5a, sizeof noise);
    for (int k = 0; k < 4; k++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct keel_rendezvous_header header = {
            .magic = KEEL_RENDEZVOUS_MAGIC, .kind = KEEL_RENDEZVOUS_JOIN, .bytes = 60000};
        ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        if (k == 1)
            memcpy(noise, &header, sizeof header);
        header.bytes = sizeof(struct keel_rendezvous_join); /* of the right size, without a proof */
        if (k == 2)
            memcpy(noise, &header, sizeof header);
        if (k < 3) /* and one that says nothing at all */
            ck_assert_int_gt(send(fd, noise, sizeof noise, MSG_NOSIGNAL), 0);
        ck_status(keel_rendezvous_host_next(host, keel_deadline_after_ns(50 * KEEL_NS_PER_MS), &event),
                  KEEL_TIMEOUT);
        if (k < 3) {
            char left[64]; /* its greeting is there, then the end */
            struct timeval limit = {.tv_sec = 20};
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            while (recv(fd, left, sizeof left, 0) > 0)
                continue;
            close(fd);
        }
    }
    pid_t pid = member(keel_rendezvous_host_place(host), key, 0, 1, true);
    ck_ok(keel_rendezvous_host_next(host, in_seconds(20), &event));
    ck_assert_uint_eq(event.kind, KEEL_RENDEZVOUS_COMPLETE);
    ck_assert_int_eq(code_of(pid), KEEL_OK);
    keel_rendezvous_host_close(host);
}
END_TEST

/* A caller waits that the process has no descriptor for; the listener stays readable meanwhile. */
START_TEST(a_host_without_descriptors_does_not_spin)
{
    struct keel_rendezvous_host *host = host_open(1);
    struct keel_rendezvous_event event;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rusage before, after;
    struct rlimit limit;
    at.sin_port = htons((in_port_t)strtoul(strrchr(keel_rendezvous_host_place(host), ':') + 1, NULL, 10));
    int caller = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), next = dup(caller);
    ck_assert(caller >= 0 && next >= 0 && close(next) == 0);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(connect(caller, (const struct sockaddr *)&at, sizeof at), 0);
    getrusage(RUSAGE_SELF, &before);
    ck_status(keel_rendezvous_host_next(host, in_seconds(2), &event), KEEL_TIMEOUT);
    getrusage(RUSAGE_SELF, &after);
    const struct timeval *from = &before.ru_stime, *to = &after.ru_stime;
    ck_assert_int_lt((to->tv_sec - from->tv_sec) * 1000 + (to->tv_usec - from->tv_usec) / 1000, 50);
    close(caller);
    keel_rendezvous_host_close(host);
}
END_TEST

START_TEST(a_frame_cannot_come_twice_nor_changed)
{
    int pair[2];
    static struct keel_rendezvous_wire from, to; /* 64 KiB each */
    const uint8_t challenge[KEEL_CHALLENGE_BYTES] = {9};
    uint8_t taken[128];
    bool done;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    from = (struct keel_rendezvous_wire){.fd = pair[0], .is_host = true};
    to = (struct keel_rendezvous_wire){.fd = pair[1]};
    keel_rendezvous_wire_agree(&from, challenge, challenge);
    keel_rendezvous_wire_agree(&to, challenge, challenge);
    ck_ok(keel_rendezvous_wire_send(&from, KEEL_RENDEZVOUS_OWN, "hello", 5, in_seconds(1)));
    ssize_t bytes = recv(pair[1], taken, sizeof taken, 0);
    ck_assert_int_eq(send(pair[0], taken, (size_t)bytes, 0), bytes);
    ck_assert(keel_rendezvous_wire_take(&to, 64, &done) && done);
    ck_assert(keel_rendezvous_wire_proven(&to));
    keel_rendezvous_wire_forget(&to);
    ck_assert_int_eq(send(pair[0], taken, (size_t)bytes, 0), bytes); /* again */
    ck_assert(keel_rendezvous_wire_take(&to, 64, &done) && done);
    ck_assert(!keel_rendezvous_wire_proven(&to));
    keel_rendezvous_wire_forget(&to);
    ck_ok(keel_rendezvous_wire_send(&from, KEEL_RENDEZVOUS_OWN, "hello", 5, in_seconds(1)));
    bytes = recv(pair[1], taken, sizeof taken, 0);
    taken[bytes - 1] ^= 1;
    ck_assert_int_eq(send(pair[0], taken, (size_t)bytes, 0), bytes);
    ck_assert(keel_rendezvous_wire_take(&to, 64, &done) && done);
    ck_assert(!keel_rendezvous_wire_proven(&to));
    keel_rendezvous_wire_forget(&to);
    close(pair[0]);
    ck_assert(!keel_rendezvous_wire_take(&to, 64, &done));
    close(pair[1]);
}
END_TEST

START_TEST(a_key_file_is_for_its_owner_alone_and_well_formed)
{
    char path[] = "/tmp/keel-rendezvous-XXXXXX";
    uint8_t read_key[KEEL_KEY_BYTES];
    int fd = mkstemp(path);
    const char good[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";
    ck_assert_int_eq(write(fd, good, sizeof good - 1), (ssize_t)sizeof good - 1);
    ck_ok(keel_rendezvous_key_read(path, read_key));
    ck_assert_uint_eq(read_key[31], 31);
    ck_assert_int_eq(fchmod(fd, 0640), 0);
    ck_status(keel_rendezvous_key_read(path, read_key), KEEL_DENIED);
    ck_assert_int_eq(fchmod(fd, 0600), 0);
    ck_assert_int_eq(write(fd, "00", 2), 2); /* more than a key */
    ck_status(keel_rendezvous_key_read(path, read_key), KEEL_INVALID);
    ck_assert_int_eq(ftruncate(fd, 63), 0);
    ck_status(keel_rendezvous_key_read(path, read_key), KEEL_INVALID);
    close(fd);
    unlink(path);
    ck_status(keel_rendezvous_key_read(path, read_key), KEEL_NOT_FOUND);
}
END_TEST

START_TEST(places_that_are_none_are_refused)
{
    struct keel_rendezvous_host *host;
    struct keel_rendezvous_member *me;
    char local[KEEL_RENDEZVOUS_PLACE_BYTES];
    ck_status(keel_rendezvous_host_open("nonsense", key, 1, &host), KEEL_INVALID);
    ck_status(keel_rendezvous_host_open("127.0.0.1:0", key, 0, &host), KEEL_LIMIT);
    ck_status(keel_rendezvous_host_open("no.such.host.invalid:1", key, 1, &host), KEEL_NOT_FOUND);
    ck_status(keel_rendezvous_connect("127.0.0.1:1", key, keel_deadline_after_ns(KEEL_NS_PER_MS), local, &me),
              KEEL_TIMEOUT);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, all_meet_speak_and_part);
    tcase_add_test(tc, who_does_not_belong_is_kept_out_and_the_rest_meet);
    tcase_add_test(tc, a_member_does_not_follow_a_host_without_the_key);
    tcase_add_test(tc, nonsense_ends_its_own_connection_only);
    tcase_add_test(tc, a_host_without_descriptors_does_not_spin);
    tcase_add_test(tc, a_frame_cannot_come_twice_nor_changed);
    tcase_add_test(tc, a_key_file_is_for_its_owner_alone_and_well_formed);
    tcase_add_test(tc, places_that_are_none_are_refused);
}

KEEL_TEST_MAIN("rendezvous", cases, 60)
