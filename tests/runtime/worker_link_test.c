/* worker_link_test.c - packets between an agent and its worker arrive whole, in time, or not at all. */
#include "worker_inbox.h"

#include "harness.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/thread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

/* With as many members, and as long addresses, as there may be. */
static const struct keel_view *make_view(uint64_t epoch)
{
    static struct keel_view view;
    view.epoch = epoch;
    view.plan = 1;
    view.member_count = KEEL_MEMBERS_MAX;
    view.shard_count = KEEL_SHARDS_MAX;
    for (uint16_t i = 0; i < KEEL_MEMBERS_MAX; i++)
        view.members[i] = (struct keel_member){.rank = i,
                                               .node = (uint16_t)(i % (KEEL_NODES_MAX - 1) + 1),
                                               .local = (uint8_t)(i / (KEEL_NODES_MAX - 1)),
                                               .incarnation = i,
                                               .data.bytes = KEEL_ADDRESS_BYTES};
    for (uint16_t i = 0; i < KEEL_SHARDS_MAX; i++)
        view.shard_rank[i] = i % KEEL_MEMBERS_MAX;
    return &view;
}

static uint64_t epoch_of(int file)
{
    static struct keel_view view;
    ck_ok(keel_link_take_view(file, &view));
    ck_assert_uint_eq(view.member_count, KEEL_MEMBERS_MAX);
    ck_assert_uint_eq(view.members[KEEL_MEMBERS_MAX - 1].incarnation, KEEL_MEMBERS_MAX - 1);
    return view.epoch;
}

START_TEST(every_kind_arrives_as_it_was_sent)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    static const uint32_t kinds[] = {KEEL_LINK_READY,  KEEL_LINK_BEAT, KEEL_LINK_STEP, KEEL_LINK_SHARD,
                                     KEEL_LINK_ACCUSE, KEEL_LINK_DONE, KEEL_LINK_STOP};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct keel_link_message sent, got;
        memset(&sent, 0, sizeof sent);
        sent.kind = kinds[i];
        sent.rank = 7;
        sent.cause = KEEL_CAUSE_SILENCE;
        sent.value = UINT64_MAX - i;
        sent.attempt = i;
        if (kinds[i] == KEEL_LINK_READY)
            sent.as.address = (struct keel_address){.bytes = 2, .data = {1, 2}};
        if (kinds[i] == KEEL_LINK_STEP)
            sent.as.record = (struct keel_step_record){.step = 9, .digest = 11, .redo_microbatches = 3};
        if (kinds[i] == KEEL_LINK_SHARD)
            sent.as.summary = (struct keel_shard_summary){.rank = 2, .index_digest = {[15] = 4}};
        ck_ok(keel_link_send(pair[0], &sent, soon()));
        ck_ok(keel_link_receive(pair[1], &got, soon()));
        ck_assert_mem_eq(&sent, &got, sizeof sent);
    }
    close(pair[0]);
    close(pair[1]);
}
END_TEST

START_TEST(a_text_without_an_end_is_cut_to_its_room)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    struct keel_link_message sent, got;
    memset(&sent, 'x', sizeof sent);
    sent.kind = KEEL_LINK_FAILED;
    ck_ok(keel_link_send(pair[0], &sent, soon()));
    ck_ok(keel_link_receive(pair[1], &got, soon()));
    ck_assert_uint_eq(strlen(got.as.text), KEEL_LINK_TEXT_BYTES - 1);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

/* Of the largest run, before anyone reads; each is a file that all workers of a node have. */
START_TEST(several_views_fit_whatever_their_size_and_go_to_several_workers)
{
    enum { VIEWS = 8, WORKERS = 2 };
    int pairs[WORKERS][2], files[VIEWS];
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_VIEW;
    for (int w = 0; w < WORKERS; w++)
        ck_ok(keel_link_pair(pairs[w]));
    for (int i = 0; i < VIEWS; i++) {
        ck_ok(keel_link_view_file(make_view((uint64_t)i + 1), &files[i]));
        message.as.view_file = files[i];
        for (int w = 0; w < WORKERS; w++)
            ck_ok(keel_link_send(pairs[w][0], &message, 0));
        close(files[i]); /* it lives as long as somebody is to read it */
    }
    for (int w = 0; w < WORKERS; w++) {
        for (uint64_t i = 0; i < VIEWS; i++) {
            ck_ok(keel_link_receive(pairs[w][1], &message, 0));
            ck_assert_uint_eq(message.kind, KEEL_LINK_VIEW);
            ck_assert_uint_eq(epoch_of(message.as.view_file), i + 1);
        }
        ck_status(keel_link_receive(pairs[w][1], &message, 0), KEEL_TIMEOUT);
        close(pairs[w][0]);
        close(pairs[w][1]);
    }
}
END_TEST

static int lowest_free(void)
{
    const int file = dup(0);
    close(file);
    return file;
}

static int cut_view(off_t bytes)
{
    static uint8_t all[KEEL_VIEW_BYTES_MAX];
    const uint32_t count = keel_view_encode(make_view(1), all);
    const int file = memfd_create("cut", MFD_CLOEXEC);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(pwrite(file, all, count, 0), (ssize_t)count);
    ck_assert_int_eq(ftruncate(file, bytes), 0);
    return file;
}

/* A worker cannot change what the others of its node are told. */
START_TEST(a_view_is_what_it_was_whoever_has_it)
{
    int file;
    ck_ok(keel_link_view_file(make_view(5), &file));
    ck_assert_int_eq(ftruncate(file, 1000), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(pwrite(file, "x", 1, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), MAP_FAILED);
    ck_assert_uint_eq(epoch_of(file), 5);
}
END_TEST

/* Two files beside one packet, which has room for one. */
START_TEST(a_second_file_is_left_nowhere)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    struct keel_link_message got, head;
    memset(&head, 0, sizeof head);
    head.kind = KEEL_LINK_BEAT;
    const int before = lowest_free();
    const int files[2] = {0, 0};
    _Alignas(struct cmsghdr) char beside[CMSG_SPACE(sizeof files)] = {0};
    struct iovec part = {.iov_base = &head, .iov_len = 24};
    struct msghdr packet = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
    struct cmsghdr *first = CMSG_FIRSTHDR(&packet);
    *first = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof files)};
    memcpy(CMSG_DATA(first), files, sizeof files);
    ck_assert_int_eq(sendmsg(pair[0], &packet, 0), 24);
    ck_status(keel_link_receive(pair[1], &got, soon()), KEEL_CORRUPT);
    ck_assert_int_eq(lowest_free(), before);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

/* And leaves no descriptor behind: of what is no view, and of a view that is told by a packet that is none.
 */
START_TEST(a_view_that_is_none_is_refused)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    struct keel_link_message message;
    static struct keel_view view;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_VIEW;
    const int before = lowest_free();
    ck_status(keel_link_take_view(cut_view(1000), &view), KEEL_CORRUPT);
    ck_status(keel_link_take_view(cut_view(0), &view), KEEL_CORRUPT);
    ck_status(keel_link_take_view(cut_view(KEEL_VIEW_BYTES_MAX + 1), &view), KEEL_CORRUPT);
    ck_assert_int_eq(send(pair[0], &message, 24, 0), 24); /* without a file */
    ck_status(keel_link_receive(pair[1], &message, soon()), KEEL_CORRUPT);
    ck_assert_int_eq(lowest_free(), before);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

enum { STEPS = 3000 }; /* more than any link holds */

static void *read_slowly(void *argument)
{
    int fd = *(int *)argument;
    static struct keel_link_message message;
    uint64_t sum = 0;
    while (keel_link_receive(fd, &message, soon()) == KEEL_OK && message.kind == KEEL_LINK_STEP)
        sum += message.value;
    return (void *)(uintptr_t)sum;
}

START_TEST(a_sender_waits_for_a_slow_reader)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    struct keel_thread reader;
    ck_ok(keel_thread_create(&reader, "reader", read_slowly, &pair[1]));
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_STEP;
    for (message.value = 1; message.value <= STEPS; message.value++)
        ck_ok(keel_link_send(pair[0], &message, soon()));
    message.kind = KEEL_LINK_STOP;
    ck_ok(keel_link_send(pair[0], &message, soon()));
    void *sum;
    ck_assert_int_eq(pthread_join(reader.native, &sum), 0);
    ck_assert_uint_eq((uintptr_t)sum, STEPS * (STEPS + 1) / 2);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

START_TEST(a_closed_end_is_peer_lost_after_its_last_packet)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_DONE;
    ck_ok(keel_link_send(pair[0], &message, soon()));
    close(pair[0]);
    ck_ok(keel_link_receive(pair[1], &message, soon()));
    ck_assert_uint_eq(message.kind, KEEL_LINK_DONE);
    ck_status(keel_link_receive(pair[1], &message, soon()), KEEL_PEER_LOST);
    message.kind = KEEL_LINK_DONE;
    ck_status(keel_link_send(pair[1], &message, soon()), KEEL_PEER_LOST);
    close(pair[1]);
}
END_TEST

START_TEST(a_packet_that_is_none_is_refused)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    static struct keel_link_message message, got;
    message.kind = KEEL_LINK_STEP;
    const size_t whole = offsetof(struct keel_link_message, as) + sizeof message.as.record;
    for (size_t bytes = 1; bytes < sizeof message; bytes += bytes + 7 == whole ? 8 : 7) {
        ck_assert_int_eq(send(pair[0], &message, bytes, 0), (ssize_t)bytes);
        ck_status(keel_link_receive(pair[1], &got, soon()), KEEL_CORRUPT);
    }
    message.kind = 4711;
    ck_assert_int_gt(send(pair[0], &message, 24, 0), 0);
    ck_status(keel_link_receive(pair[1], &got, soon()), KEEL_CORRUPT);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

/* An agent that is stopped for four timeouts, and then reads on. */
static void *read_late(void *argument)
{
    int fd = *(int *)argument;
    struct keel_link_message message;
    keel_sleep_until_ns(keel_now_ns() + 4 * 500 * KEEL_NS_PER_MS);
    for (uint64_t next = 1; next <= STEPS;) {
        enum keel_status status = keel_link_receive(fd, &message, soon());
        ck_ok(status);
        if (message.kind == KEEL_LINK_STEP)
            ck_assert_uint_eq(message.value, next++);
    }
    return NULL;
}

static void no_beat(void *context)
{
    (void)context;
}

START_TEST(steps_told_to_an_agent_that_is_stopped_wait_for_it)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    static struct keel_inbox inbox;
    struct keel_thread reader;
    struct keel_link_message message = {.kind = KEEL_LINK_STEP};
    struct keel_times times;
    keel_times_derive(500 * KEEL_NS_PER_MS, &times);
    ck_ok(keel_inbox_start(&inbox, pair[0], &times, no_beat, NULL));
    ck_ok(keel_thread_create(&reader, "late-agent", read_late, &pair[1]));
    for (message.value = 1; message.value <= STEPS; message.value++)
        keel_inbox_say(&inbox, &message);
    keel_thread_join(&reader);
    keel_inbox_end(&inbox);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

/* Its process waits no longer than a timeout of the run, however long the launcher would. */
START_TEST(a_worker_whose_board_hangs_ends_though_its_agent_is_stopped)
{
    int pair[2];
    ck_ok(keel_link_pair(pair));
    static struct keel_inbox inbox;
    struct keel_link_message message;
    const struct keel_times times = {.beat_ns = 10 * KEEL_NS_PER_MS,
                                     .silence_ns = 100 * KEEL_NS_PER_MS,
                                     .join_wait_ns = 3600 * KEEL_NS_PER_S};
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_FAILED;
    while (keel_link_send(pair[0], &message, 0) == KEEL_OK)
        ;
    ck_ok(keel_inbox_start(&inbox, pair[0], &times, no_beat, NULL));
    uint64_t since = keel_now_ns();
    keel_inbox_say_briefly(&inbox, &message);
    ck_assert_uint_ge(keel_now_ns() - since, times.silence_ns);
    keel_inbox_end(&inbox);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

static void end_by_signal(int signal_number)
{
    _exit(signal_number);
}

START_TEST(a_file_beyond_the_limit_is_an_error_also_when_a_library_takes_the_signal)
{
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit limit = {4096, 4096};
        static const char block[8192];
        char path[] = "/tmp/keel-limit-XXXXXX";
        keel_link_ignore_signals();
        signal(SIGXFSZ, end_by_signal); /* as LLVM does while it compiles */
        int fd = mkstemp(path);
        unlink(path);
        bool refused = setrlimit(RLIMIT_FSIZE, &limit) == 0 && write(fd, block, sizeof block) == 4096 &&
                       write(fd, block, sizeof block) < 0 && errno == EFBIG;
        _exit(refused ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}
END_TEST

/* Beats of a long timeout are minutes apart: a worker that is done does not wait for the next. */
START_TEST(an_end_waits_for_no_beat)
{
    static struct keel_inbox inbox;
    struct keel_times times;
    struct keel_link_message got;
    const struct keel_link_message word = {.kind = KEEL_LINK_DONE};
    int pair[2];
    ck_ok(keel_link_pair(pair));
    keel_times_derive(100000 * KEEL_NS_PER_S, &times);
    ck_assert_uint_gt(times.beat_ns, 1000 * KEEL_NS_PER_S); /* longer than this test may take */
    ck_ok(keel_inbox_start(&inbox, pair[1], &times, no_beat, NULL));
    (void)usleep(50000); /* it waits for its agent */
    keel_inbox_end(&inbox);
    ck_ok(keel_link_send(pair[1], &word, soon()));
    ck_ok(keel_link_receive(pair[0], &got, soon()));
    ck_assert_uint_eq(got.kind, KEEL_LINK_DONE);
    close(pair[0]);
    close(pair[1]);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_worker_whose_board_hangs_ends_though_its_agent_is_stopped);
    tcase_add_test(tc, an_end_waits_for_no_beat);
    tcase_add_test(tc, steps_told_to_an_agent_that_is_stopped_wait_for_it);
    tcase_add_test(tc, a_file_beyond_the_limit_is_an_error_also_when_a_library_takes_the_signal);
    tcase_add_test(tc, every_kind_arrives_as_it_was_sent);
    tcase_add_test(tc, a_text_without_an_end_is_cut_to_its_room);
    tcase_add_test(tc, several_views_fit_whatever_their_size_and_go_to_several_workers);
    tcase_add_test(tc, a_view_that_is_none_is_refused);
    tcase_add_test(tc, a_view_is_what_it_was_whoever_has_it);
    tcase_add_test(tc, a_second_file_is_left_nowhere);
    tcase_add_test(tc, a_sender_waits_for_a_slow_reader);
    tcase_add_test(tc, a_closed_end_is_peer_lost_after_its_last_packet);
    tcase_add_test(tc, a_packet_that_is_none_is_refused);
}

KEEL_TEST_MAIN("worker_link", cases, 120)
