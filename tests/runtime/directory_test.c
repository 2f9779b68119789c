/* directory_test.c - all nodes come to know where all are, by what is new in the directory, whatever is lost;
 * and what the joins of thousands cost. */
#include "directory.h"

#include "harness.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <stdio.h>
#include <string.h>

enum {
    AGENTS_MAX = 8,             /* that are modelled whole; of others it is known what they were sent */
    EXTRA_BYTES = 64 + 28 + 14, /* of a datagram beside its message: seal, UDP, IP, Ethernet */
    ENTRY_BYTES = 24
};

static struct keel_directory launcher, agents[AGENTS_MAX];
static struct keel_directory *keeper = &launcher;
static uint32_t has[KEEL_NODES_MAX]; /* by node: the version that it has whole; of modelled ones their own */
static struct keel_net_place places[KEEL_NODES_MAX];
static uint32_t tags[KEEL_NODES_MAX];
static uint64_t now_ns, sent_bytes, sent_count, largest, random_state;
static uint32_t loss_percent;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

static void begin(void)
{
    keeper = &launcher;
    memset(&launcher, 0, sizeof launcher);
    memset(agents, 0, sizeof agents);
    memset(has, 0, sizeof has);
    keel_directory_init(&launcher, 0, 0);
    for (uint16_t i = 1; i < AGENTS_MAX; i++)
        keel_directory_init(&agents[i], i, 0);
    now_ns = KEEL_NS_PER_S;
    sent_bytes = sent_count = largest = 0;
    random_state = 1;
    loss_percent = 0;
}

static void on_send(void *context, uint16_t node, const void *data, uint32_t bytes)
{
    ck_assert_ptr_null(context);
    sent_bytes += bytes + EXTRA_BYTES;
    sent_count++;
    largest = bytes > largest ? bytes : largest;
    if (draw(100) < loss_percent)
        return;
    if (node < AGENTS_MAX)
        keel_directory_take(node == 0 ? &launcher : &agents[node], data, bytes, keeper->version);
    has[node] = node == 0 ? launcher.version : node < AGENTS_MAX ? agents[node].version : keeper->version;
}

/* A datagram of the node comes. */
static void hear(uint16_t node)
{
    keel_directory_hear(keeper, node, &places[node], tags[node], has[node], now_ns, on_send, NULL);
}

/* A process begins there. */
static void start(uint16_t node)
{
    places[node] = (struct keel_net_place){.ip = {[15] = 1}, .port = (uint16_t)(1 + draw(60000))};
    tags[node] = 1 + draw(1U << 30);
    has[node] = 0;
    if (node < AGENTS_MAX) {
        memset(&agents[node], 0, sizeof agents[node]);
        keel_directory_init(&agents[node], node, 0);
    }
    hear(node);
}

static bool knows(uint16_t node, uint16_t other)
{
    const struct keel_directory_node *known = &agents[node].nodes[other];
    return node == other || (keel_net_place_same_ip(&known->place, &places[other]) &&
                             known->place.port == places[other].port && known->tag == tags[other]);
}

static void check_all_know(uint16_t nodes)
{
    for (uint16_t node = 1; node < AGENTS_MAX && node < nodes; node++)
        for (uint16_t other = 1; other < nodes; other++)
            ck_assert_msg(knows(node, other), "node %u does not know where node %u is", node, other);
}

START_TEST(a_few_nodes_are_told_of_each_change_at_once_and_of_it_alone)
{
    begin();
    for (uint16_t node = 1; node < AGENTS_MAX; node++) {
        start(node);
        check_all_know(node + 1);
    }
    const uint64_t before = sent_bytes;
    start(3); /* again, elsewhere */
    check_all_know(AGENTS_MAX);
    /* To six others a message with one entry, to itself all that there are. */
    ck_assert_uint_eq(sent_bytes - before, 7 * (EXTRA_BYTES + 8) + (6 + 7) * ENTRY_BYTES);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        hear(node);
    ck_assert_uint_eq(sent_count, 7 * 8 / 2 + 7); /* who has all is told nothing */
}
END_TEST

START_TEST(what_is_lost_repairs_itself_whatever_the_order)
{
    begin();
    loss_percent = 40;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint16_t node = (uint16_t)(1 + draw(300));
        now_ns += draw(3 * KEEL_NS_PER_MS);
        if (places[node].port == 0 || draw(200) == 0)
            start(node);
        else
            hear(node);
    }
    loss_percent = 0;
    for (uint32_t round = 0; round < 4; round++)
        for (uint16_t node = 1; node <= 300; node++) {
            now_ns += KEEL_NS_PER_MS;
            if (launcher.nodes[node].place.port == 0)
                start(node);
            hear(node);
        }
    check_all_know(301);
    for (uint16_t node = 1; node <= 300; node++)
        ck_assert_uint_eq(has[node], launcher.version);
}
END_TEST

START_TEST(who_takes_the_launchers_place_is_told_to_all_anew)
{
    begin();
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        start(node);
    memset(&launcher, 0, sizeof launcher);
    keel_directory_init(&launcher, 0, 1U << 20);
    tags[2] = 77;
    places[2].port = 4711;
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        hear(node);
    check_all_know(AGENTS_MAX);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        ck_assert_uint_eq(agents[node].version, launcher.version);
}
END_TEST

/* An agent leads, and keeps it: what is new is told to all, and of the rest not a word. */
static void keep_by(uint16_t node, uint32_t gap)
{
    keeper = &agents[node];
    keel_directory_keep(keeper, &places[node], tags[node], gap);
}

START_TEST(another_keeper_tells_what_is_new_and_no_more)
{
    begin();
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        start(node);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        hear(node);
    places[0] = (struct keel_net_place){.ip = {[15] = 1}, .port = 9};
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        agents[node].nodes[0].place = places[0];
    keep_by(3, 1000);
    const uint64_t before = sent_bytes;
    start(5); /* it was lost, and another is let in */
    for (uint16_t node = 0; node < AGENTS_MAX; node++)
        if (node != 3)
            hear(node);
    check_all_know(AGENTS_MAX);
    ck_assert_uint_eq(launcher.nodes[5].tag, tags[5]); /* the launcher, which follows */
    /* Two entries at most to each, its own and that of node 5, which is told of all. */
    ck_assert_uint_le(sent_bytes - before, 9 * (EXTRA_BYTES + 8) + (7 * 2 + 7) * ENTRY_BYTES);
    keep_by(6, 1000); /* and so does the next */
    start(3);
    for (uint16_t node = 0; node < AGENTS_MAX; node++)
        if (node != 6)
            hear(node);
    check_all_know(AGENTS_MAX);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        ck_assert_uint_eq(agents[node].version, keeper->version);
}
END_TEST

/* A keeper that was cut off told some what others never heard, under numbers that are higher than those of
 * the next. */
START_TEST(what_a_keeper_told_a_few_alone_is_told_right_by_the_next)
{
    begin();
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        start(node);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        hear(node);
    keep_by(3, 50000);
    start(5);
    hear(4); /* who is told */
    const struct keel_net_place place = places[5];
    const uint32_t tag = tags[5];
    keep_by(6, 7);
    places[5] = place;
    tags[5] = tag;
    hear(5);
    start(1);
    for (uint32_t round = 0; round < 3; round++)
        for (uint16_t node = 1; node < AGENTS_MAX; node++) {
            now_ns += KEEL_NS_PER_S;
            has[node] = agents[node].version;
            if (node != 6)
                hear(node);
        }
    check_all_know(AGENTS_MAX);
    for (uint16_t node = 1; node < AGENTS_MAX; node++)
        ck_assert_uint_eq(agents[node].version, keeper->version);
}
END_TEST

/* One each 2 ms, as processes are started, each heard each half second: about an entry for each two nodes. */
START_TEST(the_joins_of_thousands_cost_an_entry_for_each_two_of_them)
{
    const uint16_t nodes = KEEL_NODES_MAX - 1;
    begin();
    for (uint16_t node = 1; node <= nodes; node++) {
        now_ns += 2 * KEEL_NS_PER_MS;
        start(node);
        for (uint16_t other = node; other > 250; other -= 250) /* their beats */
            hear((uint16_t)(other - 250));
    }
    for (uint16_t node = 1; node <= nodes; node++) {
        now_ns += KEEL_NS_PER_MS / 8;
        hear(node);
    }
    now_ns += KEEL_NS_PER_S;
    for (uint16_t node = 1; node <= nodes; node++)
        hear(node);
    for (uint16_t node = 1; node <= nodes; node++)
        ck_assert_uint_eq(has[node], launcher.version);
    check_all_know(nodes + 1U);
    const uint64_t entries = (uint64_t)nodes * nodes * ENTRY_BYTES;
    printf("%u joins: %" PRIu64 " datagrams, %" PRIu64 " bytes; entries for each two nodes: %" PRIu64 "\n",
           nodes, sent_count, sent_bytes, entries);
    ck_assert_uint_le(sent_bytes, entries + entries / 2);
    ck_assert_uint_le(largest, KEEL_MESSAGE_BYTES);
}
END_TEST

START_TEST(pages_that_are_none_change_nothing)
{
    begin();
    start(1);
    start(2);
    static struct keel_directory before;
    static uint8_t data[KEEL_MESSAGE_BYTES];
    memcpy(&before, &agents[1], sizeof before);
    for (uint32_t bytes = 0; bytes < 200; bytes++) {
        memset(data, bytes % 3 == 0 ? 0xff : 0, sizeof data); /* page 65535 of 65535, page 0 of 0 */
        keel_directory_take(&agents[1], data, bytes, 100);
    }
    keel_directory_take(&agents[1], data, 8, launcher.version); /* late */
    ck_assert_mem_eq(&before, &agents[1], sizeof before);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_few_nodes_are_told_of_each_change_at_once_and_of_it_alone);
    tcase_add_test(tc, what_is_lost_repairs_itself_whatever_the_order);
    tcase_add_test(tc, who_takes_the_launchers_place_is_told_to_all_anew);
    tcase_add_test(tc, another_keeper_tells_what_is_new_and_no_more);
    tcase_add_test(tc, what_a_keeper_told_a_few_alone_is_told_right_by_the_next);
    tcase_add_test(tc, the_joins_of_thousands_cost_an_entry_for_each_two_of_them);
    tcase_add_test(tc, pages_that_are_none_change_nothing);
}

KEEL_TEST_MAIN("directory", cases, 120)
