/* mailbox_test.c - nodes find one another through the launcher; strangers change nothing. */
#include "mailbox.h"

#include "harness.h"
#include <arpa/inet.h>
#include <keel/clock.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUN = 5 };

static const uint8_t key[KEEL_SEAL_KEY_BYTES] = {9};
static struct keel_mailbox *launcher;
static char launcher_place[KEEL_PLACE_BYTES];
static uint8_t message[KEEL_MESSAGE_BYTES];
static uint64_t strangers_told;
static uint64_t stranger_total;
static char stranger_reason[64];

static void on_stranger(void *context, const char *place, const char *reason, uint64_t total)
{
    (void)context;
    stranger_total = total;
    ck_assert_ptr_nonnull(strstr(place, "127.0.0.1:"));
    snprintf(stranger_reason, sizeof stranger_reason, "%s", reason);
    strangers_told++;
}

static struct keel_mailbox *open_node(uint16_t node, uint32_t incarnation)
{
    struct keel_mailbox_config config = {.key = key,
                                         .run = RUN,
                                         .node = node,
                                         .incarnation = incarnation,
                                         .launcher = node == 0 ? NULL : launcher_place,
                                         .stranger = on_stranger};
    struct keel_mailbox *mailbox;
    ck_ok(keel_mailbox_open(&config, &mailbox));
    if (node != 0)
        keel_mailbox_greet(mailbox);
    return mailbox;
}

static void setup(void)
{
    launcher = open_node(0, 1);
    keel_mailbox_place(launcher, launcher_place);
}

static void teardown(void)
{
    keel_mailbox_close(launcher);
}

/* The next message, waiting for it up to a minute. */
static bool next(struct keel_mailbox *mailbox, uint16_t *node, uint32_t *bytes)
{
    uint64_t deadline_ns = keel_deadline_after_ns(60 * KEEL_NS_PER_S);
    while (keel_remaining_ns(deadline_ns) > 0) {
        if (keel_mailbox_receive(mailbox, node, message, bytes))
            return true;
        struct pollfd poller = {.fd = keel_mailbox_fd(mailbox), .events = POLLIN};
        poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    }
    return false;
}

static bool nothing_waits(struct keel_mailbox *mailbox)
{
    uint16_t node;
    uint32_t bytes;
    return !keel_mailbox_receive(mailbox, &node, message, &bytes);
}

static void raw_send(const uint8_t *data, size_t bytes)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)atoi(strchr(launcher_place, ':') + 1));
    ck_assert_int_eq(sendto(fd, data, bytes, 0, (struct sockaddr *)&to, sizeof to), (ssize_t)bytes);
    close(fd);
}

/* The other process: sends every size, hears an answer to the last. */
static int agent_process(void)
{
    struct keel_mailbox *agent = open_node(1, 1);
    static uint8_t data[KEEL_MESSAGE_BYTES];
    memset(data, 'k', sizeof data);
    for (uint32_t bytes = 1; bytes <= KEEL_MESSAGE_BYTES; bytes *= 4)
        keel_mailbox_send(agent, 0, data, bytes);
    uint16_t node;
    uint32_t bytes;
    bool answered =
        next(agent, &node, &bytes) && node == 0 && bytes == 5 && memcmp(message, "enough", 5) == 0;
    keel_mailbox_close(agent);
    return answered ? 0 : 1;
}

START_TEST(two_processes_exchange_messages_of_every_size)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(agent_process());
    ck_assert_int_gt(pid, 0);
    uint16_t node = 0;
    uint32_t bytes = 0;
    for (uint32_t wanted = 1; wanted <= KEEL_MESSAGE_BYTES; wanted *= 4) {
        ck_assert(next(launcher, &node, &bytes));
        ck_assert(node == 1 && bytes == wanted && message[0] == 'k' && message[bytes - 1] == 'k');
    }
    keel_mailbox_send(launcher, 1, (const uint8_t *)"enough", 5);
    int code = -1;
    ck_assert_int_eq(waitpid(pid, &code, 0), pid);
    ck_assert(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}
END_TEST

START_TEST(agents_reach_one_another_once_the_launcher_has_heard_both)
{
    struct keel_mailbox *one = open_node(1, 1), *two = open_node(2, 1);
    uint16_t node;
    uint32_t bytes;
    keel_mailbox_send(one, 2, (const uint8_t *)"early", 5); /* no address yet: lost, without harm */
    ck_assert(nothing_waits(launcher));                     /* takes the two hellos */
    ck_assert(nothing_waits(one) && nothing_waits(two));    /* take the directory */
    keel_mailbox_send(one, 2, (const uint8_t *)"beat", 4);
    ck_assert(next(two, &node, &bytes) && node == 1 && bytes == 4);
    keel_mailbox_send(two, 1, (const uint8_t *)"beat", 4);
    ck_assert(next(one, &node, &bytes) && node == 2 && bytes == 4);
    keel_mailbox_close(one);
    keel_mailbox_close(two);
}
END_TEST

START_TEST(a_restarted_agent_is_found_at_its_new_place)
{
    struct keel_mailbox *one = open_node(1, 1), *two = open_node(2, 1);
    ck_assert(nothing_waits(launcher) && nothing_waits(one) && nothing_waits(two));
    struct keel_mailbox *again = open_node(2, 2);
    ck_assert(nothing_waits(launcher) && nothing_waits(one));
    keel_mailbox_send(one, 2, (const uint8_t *)"you", 3);
    uint16_t node;
    uint32_t bytes;
    ck_assert(next(again, &node, &bytes) && node == 1 && bytes == 3);
    keel_mailbox_send(two, 0, (const uint8_t *)"I was replaced", 14); /* the old one still lives */
    ck_assert(nothing_waits(launcher));
    ck_assert_uint_eq(strangers_told, 1);
    ck_assert_str_eq(stranger_reason, keel_seal_verdict_text(KEEL_SEAL_REPLACED));
    keel_mailbox_close(one);
    keel_mailbox_close(two);
    keel_mailbox_close(again);
}
END_TEST

START_TEST(a_lost_directory_is_sent_again_when_its_lack_shows)
{
    struct keel_mailbox *one = open_node(1, 1);
    ck_assert(nothing_waits(launcher));
    /* Take the directory from the socket of `one` behind its back: the datagram is lost. */
    uint8_t lost[2048];
    ck_assert_int_gt(recv(keel_mailbox_fd(one), lost, sizeof lost, MSG_DONTWAIT), 0);
    struct keel_mailbox *two = open_node(2, 1);
    ck_assert(nothing_waits(launcher));
    ck_assert_int_gt(recv(keel_mailbox_fd(one), lost, sizeof lost, MSG_DONTWAIT), 0);
    ck_assert(nothing_waits(one));
    keel_mailbox_send(one, 2, (const uint8_t *)"x", 1);
    keel_sleep_until_ns(keel_deadline_after_ns(30 * KEEL_NS_PER_MS));
    keel_mailbox_send(one, 0, (const uint8_t *)"beat", 4);
    uint16_t node;
    uint32_t bytes;
    ck_assert(next(launcher, &node, &bytes) && node == 1);
    ck_assert(nothing_waits(one));
    keel_mailbox_send(one, 2, (const uint8_t *)"x", 1);
    ck_assert(nothing_waits(launcher));
    ck_assert(next(two, &node, &bytes) && node == 1 && bytes == 1);
    keel_mailbox_close(one);
    keel_mailbox_close(two);
}
END_TEST

/* The launcher is gone: node 1 leads, and node 3 that it let in reaches node 2, and the other way round. */
START_TEST(who_leads_keeps_the_directory_in_the_launchers_place)
{
    struct keel_mailbox *one = open_node(1, 1), *two = open_node(2, 1), *three;
    char place[KEEL_PLACE_BYTES];
    uint16_t node;
    uint32_t bytes;
    ck_assert(nothing_waits(launcher) && nothing_waits(one) && nothing_waits(two));
    keel_mailbox_keep(one, true);
    ck_assert(keel_mailbox_place_of(two, 1, place));
    struct keel_mailbox_config config = {.key = key,
                                         .run = RUN,
                                         .node = 3,
                                         .incarnation = 64,
                                         .launcher = launcher_place,
                                         .by = 1,
                                         .by_tag = keel_mailbox_tag(one)};
    ck_ok(keel_net_place_parse(place, &config.by_place));
    ck_ok(keel_mailbox_open(&config, &three));
    keel_mailbox_greet(three);
    keel_mailbox_send(two, 1, (const uint8_t *)"beat", 4);
    ck_assert(next(one, &node, &bytes) && node == 2); /* behind the hello of node 3 */
    ck_assert(nothing_waits(two) && nothing_waits(three));
    keel_mailbox_send(two, 3, (const uint8_t *)"you", 3);
    ck_assert(next(three, &node, &bytes) && node == 2 && bytes == 3);
    keel_mailbox_send(three, 2, (const uint8_t *)"me", 2);
    ck_assert(next(two, &node, &bytes) && node == 3 && bytes == 2);
    keel_mailbox_probe(three, 1000);
    ck_assert(nothing_waits(one) && nothing_waits(three));
    ck_assert_uint_eq(keel_mailbox_echoed(three), 1000);
    ck_assert(!keel_mailbox_place_of(two, 4, place));
    keel_mailbox_close(one);
    keel_mailbox_close(two);
    keel_mailbox_close(three);
}
END_TEST

/* An agent gives a port back that others have for connections. */
START_TEST(a_mailbox_that_was_given_back_unused_stands_in_no_other_ones_way)
{
    const struct keel_mailbox_config config = {
        .key = key, .run = RUN, .node = 1, .incarnation = 1, .launcher = launcher_place};
    struct keel_mailbox *given_back, *one;
    ck_ok(keel_mailbox_open(&config, &given_back));
    keel_mailbox_close(given_back);
    ck_ok(keel_mailbox_open(&config, &one));
    keel_mailbox_greet(one);
    keel_mailbox_probe(one, 64);
    ck_assert(nothing_waits(launcher) && nothing_waits(one));
    ck_assert_uint_eq(keel_mailbox_echoed(one), 64);
    keel_mailbox_close(one);
}
END_TEST

START_TEST(strangers_are_dropped_counted_and_told_at_most_once_a_second)
{
    struct keel_mailbox *one = open_node(1, 1);
    ck_assert(nothing_waits(launcher) && nothing_waits(one));
    static const uint8_t other_key[KEEL_SEAL_KEY_BYTES] = {8};
    static struct keel_seal stranger;
    keel_seal_init(&stranger, other_key, RUN, 1, 7);
    static uint8_t datagram[KEEL_DATAGRAM_BYTES + 100];
    for (int i = 0; i < 20; i++) {
        const struct keel_seal_label label = {.to = 0, .channel = 1};
        uint32_t bytes = keel_seal_wrap(&stranger, &label, (const uint8_t *)"kill", 4, datagram);
        raw_send(datagram, bytes);
    }
    raw_send((const uint8_t *)"", 0);
    raw_send((const uint8_t *)"hello", 5);
    raw_send(datagram, sizeof datagram);
    ck_assert(nothing_waits(launcher));
    ck_assert_uint_eq(strangers_told, 1);
    ck_assert_str_eq(stranger_reason, "wrong key or altered on the way");
    keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_S + KEEL_NS_PER_S / 10));
    raw_send((const uint8_t *)"hello", 5);
    ck_assert(nothing_waits(launcher));
    ck_assert_uint_eq(strangers_told, 2);
    ck_assert_uint_eq(stranger_total, 24);
    ck_assert_str_eq(stranger_reason, keel_seal_verdict_text(KEEL_SEAL_GARBAGE));
    /* The directory did not move: node 1 is still reached. */
    keel_mailbox_send(launcher, 1, (const uint8_t *)"still", 5);
    uint16_t node;
    uint32_t bytes;
    ck_assert(next(one, &node, &bytes) && node == 0 && bytes == 5);
    keel_mailbox_close(one);
}
END_TEST

START_TEST(a_recorded_datagram_played_again_is_dropped)
{
    static struct keel_seal agent;
    keel_seal_init(&agent, key, RUN, 1, 1);
    static uint8_t datagram[KEEL_DATAGRAM_BYTES];
    const struct keel_seal_label label = {.to = 0, .channel = 1};
    uint32_t wrapped = keel_seal_wrap(&agent, &label, (const uint8_t *)"once", 4, datagram);
    raw_send(datagram, wrapped);
    uint16_t node;
    uint32_t bytes;
    ck_assert(next(launcher, &node, &bytes) && node == 1 && bytes == 4);
    raw_send(datagram, wrapped);
    ck_assert(nothing_waits(launcher));
    ck_assert_uint_eq(strangers_told, 1);
    ck_assert_str_eq(stranger_reason, keel_seal_verdict_text(KEEL_SEAL_REPLAYED));
}
END_TEST

START_TEST(an_address_that_is_none_is_refused)
{
    static const char *const bad[] = {"127.0.0.1", "127.0.0.1:",  "127.0.0.1:0",  "127.0.0.1:70000",
                                      ":9",        "localhost:9", "127.0.0.1:9x", "127.0.0.1: 9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct keel_mailbox_config config = {.key = key, .run = RUN, .node = 1, .launcher = bad[i]};
        struct keel_mailbox *mailbox = NULL;
        ck_status(keel_mailbox_open(&config, &mailbox), KEEL_INVALID);
        ck_assert_ptr_null(mailbox);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, two_processes_exchange_messages_of_every_size);
    tcase_add_test(tc, agents_reach_one_another_once_the_launcher_has_heard_both);
    tcase_add_test(tc, a_restarted_agent_is_found_at_its_new_place);
    tcase_add_test(tc, a_lost_directory_is_sent_again_when_its_lack_shows);
    tcase_add_test(tc, who_leads_keeps_the_directory_in_the_launchers_place);
    tcase_add_test(tc, a_mailbox_that_was_given_back_unused_stands_in_no_other_ones_way);
    tcase_add_test(tc, strangers_are_dropped_counted_and_told_at_most_once_a_second);
    tcase_add_test(tc, a_recorded_datagram_played_again_is_dropped);
    tcase_add_test(tc, an_address_that_is_none_is_refused);
}

KEEL_TEST_MAIN("mailbox", cases, 120)
