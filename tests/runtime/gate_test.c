/* gate_test.c - a node has one agent, who proves the key; who comes beyond waits, and takes the place of one
 * that ended, came again or is silent. Gate and agents are of this process, over loopback. */
#include "gate.h"

#include "harness.h"
#include <keel/clock.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NODES = 200, JOB_TEXT_BYTES = 100000 };

static const struct keel_secret secret = {.key = {5}}, other_secret = {.key = {6}};
static struct keel_gate *gate;
static struct keel_net_place place;
static char job_text[JOB_TEXT_BYTES + 1];
static uint32_t joined[NODES + 1], left[NODES + 1], waiting, refused;
static enum keel_status refused_status;
static char refused_text[KEEL_REASON_BYTES];
static uint16_t silent_node;
static const char *another; /* who leads; NULL: the gate's owner does */
static uint32_t asked;      /* so often something was asked for, */
static bool refuses;
static uint32_t looked; /* and looked at: it has come to be for this node, */
static uint16_t away_node;
static const char *stays; /* and for others not, for this reason */
static uint16_t missed;   /* who looks wants this node again, whose agent is silent; 0: none */

static void on_news(void *context, const struct keel_gate_news *news)
{
    (void)context;
    joined[news->node] += news->kind == KEEL_GATE_JOINED;
    left[news->node] += news->kind == KEEL_GATE_LEFT;
    waiting += news->kind == KEEL_GATE_WAITS;
    if (news->kind != KEEL_GATE_REFUSED)
        return;
    refused++;
    refused_status = news->status;
    snprintf(refused_text, sizeof refused_text, "%s", news->text);
}

static bool is_silent(void *context, uint16_t node)
{
    (void)context;
    return node == silent_node;
}

static bool leads(void *context, char out[KEEL_PLACE_BYTES])
{
    (void)context;
    snprintf(out, KEEL_PLACE_BYTES, "%s", another != NULL ? another : "");
    return another == NULL;
}

static enum keel_status on_ask(void *context, const struct keel_handover_ask *ask)
{
    (void)context;
    ck_assert_uint_eq(ask->run, 9);
    asked++;
    return refuses ? keel_fail(KEEL_BUSY, "has no time for it") : KEEL_OK;
}

static bool on_look(void *context, const struct keel_handover_ask *ask, char why[KEEL_REASON_BYTES])
{
    (void)context;
    ck_assert(ask->wish != KEEL_WISH_STOP && ask->node > 0);
    looked++;
    if (missed > 0)
        keel_gate_want(gate, missed, 2);
    missed = 0;
    snprintf(why, KEEL_REASON_BYTES, "%s", stays);
    return ask->node == away_node;
}

static void setup(void)
{
    ck_assert(sodium_init() >= 0);
    another = NULL;
    asked = 0;
    refuses = false;
    stays = "";
    away_node = 0;
    memset(job_text, 'j', JOB_TEXT_BYTES);
    for (uint16_t port = 20000;; port++) { /* one that is free */
        char text[32];
        snprintf(text, sizeof text, "127.0.0.1:%d", port + getpid() % 20000);
        ck_ok(keel_net_place_parse(text, &place));
        const struct keel_gate_config config = {.bind = &place,
                                                .advertised = &place,
                                                .secret = &secret,
                                                .release = "1",
                                                .node_count = NODES + 1,
                                                .job = {.run = 9,
                                                        .launcher = "",
                                                        .job = job_text,
                                                        .identity = "i",
                                                        .store = "",
                                                        .hosts = "",
                                                        .state = ""},
                                                .news = on_news,
                                                .silent = is_silent,
                                                .leads = leads,
                                                .ask = on_ask,
                                                .look = on_look};
        enum keel_status status = keel_gate_open(&config, &gate);
        if (status == KEEL_OK)
            break;
        ck_assert_int_eq(status, KEEL_BUSY);
    }
    for (uint16_t node = 1; node <= NODES; node++)
        keel_gate_want(gate, node, 1);
}

static void teardown(void)
{
    keel_gate_close(gate, KEEL_INTERRUPTED, "");
    gate = NULL;
}

/* ---- agents -------------------------------------------------------------------------------------------- */

struct agent {
    int fd;
    struct keel_handover handover;
    uint8_t *frame;
};

static struct agent dial(const struct keel_secret *key)
{
    struct sockaddr_storage address;
    struct agent agent = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const socklen_t bytes = keel_net_place_to_socket(&place, AF_INET, &address);
    ck_assert_int_eq(connect(agent.fd, (const struct sockaddr *)&address, bytes), 0);
    keel_handover_begin(&agent.handover, KEEL_HANDOVER_AGENT, key, "1");
    return agent;
}

/* Whatever comes, `bytes` of it; false when the connection ends. */
static bool hear(const struct agent *agent, uint8_t *out, uint32_t bytes)
{
    for (uint32_t got = 0; got < bytes;) {
        keel_gate_turn(gate);
        struct pollfd ready = {.fd = agent->fd, .events = POLLIN};
        if (poll(&ready, 1, 5) <= 0)
            continue; /* the test's own limit ends it */
        ssize_t more = recv(agent->fd, out + got, bytes - got, 0);
        if (more <= 0)
            return false;
        got += (uint32_t)more;
    }
    return true;
}

static void greet(struct agent *agent)
{
    uint8_t theirs[KEEL_OPENING_BYTES];
    ck_assert(hear(agent, theirs, sizeof theirs));
    ck_ok(keel_handover_agree(&agent->handover, theirs));
}

static void present(struct agent *agent, uint16_t node, uint64_t instance)
{
    uint8_t payload[KEEL_FACTS_FRAME_BYTES], frame[KEEL_FACTS_FRAME_BYTES];
    const struct keel_agent_facts facts = {.node = node, .instance = instance, .host = "h"};
    const uint32_t bytes = keel_agent_facts_write(&facts, payload, sizeof payload);
    const uint32_t frame_bytes =
        keel_frame_seal(&agent->handover, KEEL_HANDOVER_FACTS, payload, bytes, frame);
    ck_assert_int_eq(send(agent->fd, agent->handover.opening, KEEL_OPENING_BYTES, 0), KEEL_OPENING_BYTES);
    ck_assert_int_eq(send(agent->fd, frame, frame_bytes, 0), (ssize_t)frame_bytes);
}

static void introduce(struct agent *agent, uint16_t node, uint64_t instance)
{
    greet(agent);
    present(agent, node, instance);
}

/* The launcher's next frame: its kind, or 0 when the connection ended; its payload lives until the next call.
 */
static int next_frame(struct agent *agent, const uint8_t **payload, uint32_t *bytes)
{
    static uint8_t frame[2 * JOB_TEXT_BYTES];
    enum keel_handover_kind kind;
    if (!hear(agent, frame, KEEL_FRAME_HEAD_BYTES))
        return 0;
    const uint32_t whole = keel_frame_bytes(frame, KEEL_FRAME_HEAD_BYTES, sizeof frame);
    if (whole == 0)
        return -1;
    ck_assert(hear(agent, frame + KEEL_FRAME_HEAD_BYTES, whole - KEEL_FRAME_HEAD_BYTES));
    ck_assert(keel_frame_open(&agent->handover, frame, whole, &kind, payload, bytes));
    return (int)kind;
}

static void expect_job(struct agent *agent, uint16_t node, uint32_t incarnation)
{
    const uint8_t *payload;
    uint32_t bytes;
    struct keel_handed_job job;
    ck_assert_int_eq(next_frame(agent, &payload, &bytes), KEEL_HANDOVER_JOB);
    ck_assert(keel_handed_job_read(payload, bytes, &job));
    ck_assert(node == 0 || job.node == node);
    ck_assert(job.incarnation == incarnation && job.run == 9 && strlen(job.job) == JOB_TEXT_BYTES);
}

static void expect_refusal(struct agent *agent, enum keel_status status, const char *words)
{
    const uint8_t *payload;
    uint32_t bytes;
    struct keel_handover_reason reason;
    ck_assert_int_eq(next_frame(agent, &payload, &bytes), KEEL_HANDOVER_REFUSED);
    ck_assert(keel_handover_reason_read(payload, bytes, &reason));
    ck_assert_int_eq(reason.status, status);
    ck_assert_msg(strstr(reason.text, words) != NULL, "%s", reason.text);
    ck_assert_int_eq(next_frame(agent, &payload, &bytes), 0);
    close(agent->fd);
}

/* Turns until nothing is to be done: what a peer sent is there at once on loopback. */
static void settle(void)
{
    struct pollfd ready = {.fd = keel_gate_fd(gate), .events = POLLIN};
    do
        keel_gate_turn(gate);
    while (poll(&ready, 1, 20) > 0);
}

static void leave_first(struct agent agents[], uint16_t count)
{
    for (uint16_t i = 0; i < count; i++)
        close(agents[i].fd);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

START_TEST(all_agents_may_dial_at_once_and_have_their_job_when_all_are_there)
{
    static struct agent agents[NODES];
    for (uint16_t i = 0; i < NODES; i++)
        agents[i] = dial(&secret);
    for (uint16_t i = 0; i < NODES; i++)
        greet(&agents[i]);
    for (uint16_t i = 0; i < NODES; i++) /* all in one turn of the gate */
        present(&agents[i], 0, 100U + i);
    settle();
    ck_assert_uint_eq(keel_gate_missing(gate, 1), 0);
    ck_assert(refused == 0 && waiting == 0);
    keel_gate_release(gate);
    for (uint16_t i = 0; i < NODES; i++)
        expect_job(&agents[i], 0, 1);
    for (uint16_t node = 1; node <= NODES; node++)
        ck_assert(joined[node] == 1 && left[node] == 0);
    leave_first(agents, NODES);
}
END_TEST

START_TEST(who_goes_before_the_run_begins_is_missed_again)
{
    struct agent agent = dial(&secret);
    introduce(&agent, 7, 1);
    settle();
    ck_assert(keel_gate_has(gate, 7) && joined[7] == 1);
    close(agent.fd);
    settle();
    ck_assert(!keel_gate_has(gate, 7) && keel_gate_wants(gate, 7) && left[7] == 1);
    agent = dial(&secret);
    introduce(&agent, 7, 2);
    settle();
    ck_assert_uint_eq(joined[7], 2);
    close(agent.fd);
}
END_TEST

START_TEST(a_node_that_is_here_is_given_to_nobody_else)
{
    struct agent first = dial(&secret), second = dial(&secret);
    introduce(&first, 7, 1);
    introduce(&second, 7, 2);
    expect_refusal(&second, KEEL_BUSY, "node 7, which is here already: from h (127.0.0.1:");
    ck_assert(refused == 1 && refused_status == KEEL_BUSY && keel_gate_has(gate, 7));
    struct agent third = dial(&secret);
    introduce(&third, NODES + 1, 3);
    expect_refusal(&third, KEEL_INVALID, "nodes 1 to 200");
    close(first.fd);
}
END_TEST

START_TEST(one_that_comes_again_takes_its_own_place)
{
    struct agent first = dial(&secret), again;
    keel_gate_release(gate);
    introduce(&first, 7, 1);
    expect_job(&first, 7, 1);
    again = dial(&secret);
    introduce(&again, 7, 1);
    settle();
    ck_assert(left[7] == 1 && !keel_gate_has(gate, 7) && !keel_gate_wants(gate, 7));
    keel_gate_want(gate, 7, 2);
    expect_job(&again, 7, 2);
    close(again.fd);
    close(first.fd);
}
END_TEST

START_TEST(one_more_waits_and_takes_the_place_of_one_that_is_silent)
{
    struct agent first = dial(&secret), more;
    for (uint16_t node = 1; node <= NODES; node++)
        if (node != 7)
            keel_gate_unwant(gate, node);
    keel_gate_release(gate);
    introduce(&first, 0, 1);
    expect_job(&first, 7, 1);
    more = dial(&secret);
    introduce(&more, 0, 2);
    settle();
    ck_assert(waiting == 1 && left[7] == 0);
    silent_node = 7;
    settle();
    ck_assert(left[7] == 1 && !keel_gate_has(gate, 7));
    keel_gate_want(gate, 7, 2);
    expect_job(&more, 7, 2);
    const uint8_t *payload;
    uint32_t bytes;
    ck_assert_int_eq(next_frame(&first, &payload, &bytes), 0); /* it dials again, if it is alive */
    silent_node = 0;
    close(more.fd);
    close(first.fd);
}
END_TEST

START_TEST(another_key_is_told_in_the_clear_and_lets_nobody_in)
{
    struct agent stranger = dial(&other_secret);
    uint8_t head[KEEL_FRAME_HEAD_BYTES];
    uint32_t word;
    introduce(&stranger, 0, 1);
    ck_assert(hear(&stranger, head, sizeof head));
    memcpy(&word, head, sizeof word);
    ck_assert_uint_eq(word, KEEL_FRAME_OTHER_KEY);
    ck_assert(!hear(&stranger, head, 1));
    ck_assert(refused == 1 && refused_status == KEEL_AUTH && !keel_gate_has(gate, 1));
    close(stranger.fd);
}
END_TEST

START_TEST(a_conversation_played_again_lets_nobody_in)
{
    struct agent agent = dial(&secret), replay;
    uint8_t theirs[KEEL_OPENING_BYTES], payload[KEEL_FACTS_FRAME_BYTES], frame[KEEL_FACTS_FRAME_BYTES],
        head[4];
    const struct keel_agent_facts facts = {.node = 7, .instance = 1, .host = "h"};
    ck_assert(hear(&agent, theirs, sizeof theirs));
    ck_ok(keel_handover_agree(&agent.handover, theirs));
    const uint32_t bytes = keel_agent_facts_write(&facts, payload, sizeof payload);
    const uint32_t frame_bytes = keel_frame_seal(&agent.handover, KEEL_HANDOVER_FACTS, payload, bytes, frame);
    replay = dial(&secret);
    ck_assert(hear(&replay, theirs, sizeof theirs));
    send(replay.fd, agent.handover.opening, KEEL_OPENING_BYTES, 0);
    send(replay.fd, frame, frame_bytes, 0);
    ck_assert(hear(&replay, head, sizeof head));
    ck_assert(!hear(&replay, head, 1));
    ck_assert(refused == 1 && refused_status == KEEL_AUTH && !keel_gate_has(gate, 7));
    send(agent.fd, agent.handover.opening, KEEL_OPENING_BYTES, 0);
    send(agent.fd, frame, frame_bytes, 0);
    settle();
    ck_assert(keel_gate_has(gate, 7)); /* the true one is heard */
    close(replay.fd);
    close(agent.fd);
}
END_TEST

START_TEST(mute_callers_take_no_place_from_agents)
{
    enum { MUTE = NODES + 120 };
    static int mute[MUTE];
    for (int i = 0; i < MUTE; i++) {
        struct agent caller = dial(&secret);
        mute[i] = caller.fd;
        keel_gate_turn(gate);
    }
    settle();
    ck_assert(refused > 0 && refused_status == KEEL_BUSY); /* the oldest went */
    ck_assert(strstr(refused_text, "did not say in time") != NULL);
    struct agent agent = dial(&secret);
    introduce(&agent, 7, 1);
    settle();
    ck_assert(keel_gate_has(gate, 7));
    for (int i = 0; i < MUTE; i++)
        close(mute[i]);
    close(agent.fd);
}
END_TEST

/* Descriptors that are left are few, and then more again. */
START_TEST(who_cannot_be_heard_for_want_of_descriptors_is_heard_later)
{
    struct rlimit before, few;
    struct agent agent = dial(&secret);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)agent.fd + 1;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    keel_gate_turn(gate);
    struct pollfd ready = {.fd = keel_gate_fd(gate), .events = POLLIN};
    ck_assert_int_eq(poll(&ready, 1, 0), 0); /* nothing to be done: no busy loop */
    ck_assert(keel_gate_deadline_ns(gate) != KEEL_NEVER);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    introduce(&agent, 7, 1);
    settle();
    ck_assert(keel_gate_has(gate, 7));
    close(agent.fd);
}
END_TEST

START_TEST(an_agent_that_cannot_begin_says_why_and_nonsense_ends_it)
{
    struct agent agent = dial(&secret), other = dial(&secret);
    struct keel_handover_reason reason = {.status = KEEL_UNSUPPORTED, .text = "no board"};
    uint8_t payload[64], frame[128];
    keel_gate_release(gate);
    introduce(&agent, 7, 1);
    expect_job(&agent, 7, 1);
    const uint32_t bytes = keel_handover_reason_write(&reason, payload, sizeof payload);
    const uint32_t whole = keel_frame_seal(&agent.handover, KEEL_HANDOVER_FAILED, payload, bytes, frame);
    send(agent.fd, frame, whole, 0);
    settle();
    ck_assert(left[7] == 1 && !keel_gate_has(gate, 7));
    introduce(&other, 8, 2);
    expect_job(&other, 8, 1);
    memset(frame, 'x', sizeof frame);
    send(other.fd, frame, sizeof frame, 0);
    settle();
    ck_assert(left[8] == 1 && !keel_gate_has(gate, 8));
    close(agent.fd);
    close(other.fd);
}
END_TEST

static void expect_elsewhere(struct agent *agent, const char *where)
{
    const uint8_t *payload;
    uint32_t bytes;
    struct keel_handover_reason reason;
    ck_assert_int_eq(next_frame(agent, &payload, &bytes), KEEL_HANDOVER_ELSEWHERE);
    ck_assert(keel_handover_reason_read(payload, bytes, &reason));
    ck_assert_str_eq(reason.text, where);
    ck_assert_int_eq(next_frame(agent, &payload, &bytes), 0);
    close(agent->fd);
}

START_TEST(who_does_not_lead_says_who_does_to_who_proves_the_key_alone)
{
    struct agent agent = dial(&secret), stranger = dial(&other_secret), later = dial(&secret);
    uint8_t head[KEEL_FRAME_HEAD_BYTES];
    keel_gate_release(gate);
    another = "10.0.0.3:4711";
    introduce(&agent, 7, 1);
    expect_elsewhere(&agent, "10.0.0.3:4711");
    introduce(&stranger, 7, 2);
    ck_assert(hear(&stranger, head, sizeof head));
    ck_assert(!hear(&stranger, head, 1));
    ck_assert(refused == 1 && refused_status == KEEL_AUTH);
    another = ""; /* nobody leads now */
    introduce(&later, 0, 3);
    expect_elsewhere(&later, "");
    ck_assert(refused == 1 && joined[7] == 0 && !keel_gate_has(gate, 7) && keel_gate_wants(gate, 7));
    close(stranger.fd);
}
END_TEST

START_TEST(who_waits_is_sent_on_when_another_leads)
{
    struct agent agent = dial(&secret);
    for (uint16_t node = 1; node <= NODES; node++)
        keel_gate_unwant(gate, node);
    keel_gate_release(gate);
    introduce(&agent, 0, 1);
    settle();
    ck_assert_uint_eq(waiting, 1);
    another = "10.0.0.3:4711";
    expect_elsewhere(&agent, another);
}
END_TEST

/* Another let them in, so their connections are not here. */
START_TEST(who_leads_in_anothers_place_gives_away_nodes_that_are_silent_alone)
{
    struct agent agent = dial(&secret), named = dial(&secret);
    keel_gate_release(gate);
    keel_gate_presume(gate);
    for (uint16_t node = 1; node <= NODES; node++)
        ck_assert(!keel_gate_wants(gate, node));
    introduce(&named, 8, 1);
    introduce(&agent, 0, 2);
    settle();
    ck_assert(waiting == 2 && refused == 0);
    silent_node = 7;
    settle();
    ck_assert(left[7] == 1 && left[8] == 0); /* told once, until it is wanted */
    settle();
    ck_assert_uint_eq(left[7], 1);
    keel_gate_want(gate, 7, 64);
    expect_job(&agent, 7, 64);
    ck_assert(!keel_gate_has(gate, 8));
    keel_gate_want(gate, 7, 65); /* its owner takes it for gone */
    ck_assert(!keel_gate_has(gate, 7) && left[7] == 1);
    silent_node = 0;
    close(agent.fd);
    close(named.fd);
}
END_TEST

/* ---- who asks something -------------------------------------------------------------------------------- */

/* The frame is the caller's. */
static uint32_t seal_ask(struct agent *asker, const struct keel_handover_ask *ask, uint8_t *frame)
{
    uint8_t payload[KEEL_FACTS_FRAME_BYTES];
    const uint32_t bytes = keel_handover_ask_write(ask, payload, sizeof payload);
    return keel_frame_seal(&asker->handover, KEEL_HANDOVER_ASK, payload, bytes, frame);
}

static struct agent ask_for(const struct keel_secret *key, const struct keel_handover_ask *ask)
{
    struct agent asker = dial(key);
    uint8_t frame[128];
    greet(&asker);
    const uint32_t frame_bytes = seal_ask(&asker, ask, frame);
    ck_assert_int_eq(send(asker.fd, asker.handover.opening, KEEL_OPENING_BYTES, 0), KEEL_OPENING_BYTES);
    ck_assert_int_eq(send(asker.fd, frame, frame_bytes, 0), (ssize_t)frame_bytes);
    return asker;
}

static struct agent ask_of(const struct keel_secret *key, uint64_t run)
{
    return ask_for(key, &(struct keel_handover_ask){.run = run, .wish = KEEL_WISH_STOP});
}

static struct agent ask_about(uint16_t node, enum keel_handover_wish wish)
{
    return ask_for(&secret, &(struct keel_handover_ask){.run = 9, .wish = wish, .node = node});
}

static void expect_word(struct agent *asker, enum keel_handover_kind kind)
{
    const uint8_t *payload;
    uint32_t bytes;
    ck_assert_int_eq(next_frame(asker, &payload, &bytes), kind);
    ck_assert_uint_eq(bytes, 0);
}

START_TEST(who_asks_with_the_key_is_heard_and_told_how_it_ended)
{
    struct agent asker = ask_of(&secret, 9), second = ask_of(&secret, 9);
    struct keel_handover_reason reason;
    uint8_t frame[512];
    expect_word(&asker, KEEL_HANDOVER_HEARD);
    expect_word(&second, KEEL_HANDOVER_HEARD);
    ck_assert(asked == 2 && refused == 0 && waiting == 0);
    close(second.fd); /* who goes is not waited for */
    settle();
    keel_gate_close(gate, KEEL_TIMEOUT, "without its last snapshot");
    ssize_t got = recv(asker.fd, frame, sizeof frame, MSG_WAITALL);
    enum keel_handover_kind kind;
    const uint8_t *payload;
    uint32_t bytes;
    ck_assert(got > 0 && keel_frame_open(&asker.handover, frame, (uint32_t)got, &kind, &payload, &bytes));
    ck_assert(kind == KEEL_HANDOVER_DONE && keel_handover_reason_read(payload, bytes, &reason));
    ck_assert_int_eq(reason.status, KEEL_TIMEOUT);
    ck_assert_str_eq(reason.text, "without its last snapshot");
    close(asker.fd);
    setup(); /* for who tears it down */
}
END_TEST

START_TEST(a_forged_a_replayed_and_a_foreign_wish_are_not_heard)
{
    struct agent true_one = dial(&secret), replay = dial(&secret), forged = ask_of(&other_secret, 9),
                 foreign = ask_of(&secret, 8);
    uint8_t theirs[KEEL_OPENING_BYTES], frame[128], head[KEEL_FRAME_HEAD_BYTES];
    uint32_t word;
    ck_assert(hear(&forged, head, sizeof head));
    memcpy(&word, head, sizeof word);
    ck_assert_uint_eq(word, KEEL_FRAME_OTHER_KEY);
    expect_refusal(&foreign, KEEL_MISMATCH, "of another run");
    greet(&true_one);
    const struct keel_handover_ask ask = {.run = 9, .wish = KEEL_WISH_DRAIN, .node = 2};
    const uint32_t frame_bytes = seal_ask(&true_one, &ask, frame);
    ck_assert(hear(&replay, theirs, sizeof theirs)); /* what was recorded, in another conversation */
    send(replay.fd, true_one.handover.opening, KEEL_OPENING_BYTES, 0);
    send(replay.fd, frame, frame_bytes, 0);
    ck_assert(hear(&replay, head, sizeof head));
    ck_assert(!hear(&replay, head, 1));
    ck_assert_uint_eq(asked, 0);
    ck_assert_uint_eq(refused, 2); /* of two with one reason one is told in a second */
    send(true_one.fd, true_one.handover.opening, KEEL_OPENING_BYTES, 0);
    send(true_one.fd, frame, frame_bytes, 0);
    expect_word(&true_one, KEEL_HANDOVER_HEARD);
    send(true_one.fd, frame, frame_bytes, 0); /* once more, in its own */
    ck_assert(!hear(&true_one, head, 1));
    ck_assert_uint_eq(asked, 1);
    close(forged.fd);
    close(replay.fd);
    close(true_one.fd);
}
END_TEST

static void expect_stays(struct agent *asker, const char *why)
{
    const uint8_t *payload;
    uint32_t bytes;
    struct keel_handover_reason reason;
    ck_assert_int_eq(next_frame(asker, &payload, &bytes), KEEL_HANDOVER_STAYS);
    ck_assert(keel_handover_reason_read(payload, bytes, &reason));
    ck_assert_str_eq(reason.text, why);
}

START_TEST(who_asks_for_a_node_to_leave_is_told_why_it_stays_and_when_it_has_left)
{
    struct agent asker = ask_about(2, KEEL_WISH_DRAIN), other = ask_about(3, KEEL_WISH_DRAIN);
    expect_word(&asker, KEEL_HANDOVER_HEARD);
    expect_word(&other, KEEL_HANDOVER_HEARD);
    stays = "it is needed";
    expect_stays(&asker, "it is needed");
    settle();
    stays = "it is needed still"; /* else it is said once */
    expect_stays(&asker, "it is needed still");
    away_node = 2;
    expect_word(&asker, KEEL_HANDOVER_DONE);
    uint8_t more;
    ck_assert(!hear(&asker, &more, 1));
    struct agent opposite = ask_about(3, KEEL_WISH_ADD);
    expect_word(&opposite, KEEL_HANDOVER_HEARD);
    expect_stays(&other, "it is needed");
    expect_stays(&other, "it is needed still");
    expect_refusal(&other, KEEL_BUSY, "asked for the opposite");
    struct agent none = ask_about(NODES + 1, KEEL_WISH_DRAIN);
    expect_refusal(&none, KEEL_INVALID, "has nodes 1 to");
    ck_assert(asked == 3 && looked > 0);
    expect_stays(&opposite, "it is needed still");
    keel_gate_close(gate, KEEL_INTERRUPTED, "stopped");
    setup(); /* for who tears it down */
    expect_refusal(&opposite, KEEL_NOT_FOUND, "the run ended first");
    close(asker.fd);
}
END_TEST

/* Its connection, the next in the list, ends as the gate walks along it. */
START_TEST(an_agent_that_is_given_up_while_its_owner_looks_at_who_asks_is_not_looked_at)
{
    struct agent silent = dial(&secret), asker;
    introduce(&silent, 7, 1);
    settle();
    ck_assert(keel_gate_has(gate, 7));
    asker = ask_about(2, KEEL_WISH_DRAIN);
    missed = 7;
    expect_word(&asker, KEEL_HANDOVER_HEARD);
    settle();
    ck_assert(missed == 0 && !keel_gate_has(gate, 7) && keel_gate_wants(gate, 7));
    away_node = 2;
    expect_word(&asker, KEEL_HANDOVER_DONE);
    close(asker.fd);
    close(silent.fd);
}
END_TEST

START_TEST(who_asks_one_that_does_not_lead_or_no_more_is_sent_on)
{
    struct agent early = ask_of(&secret, 9);
    expect_word(&early, KEEL_HANDOVER_HEARD);
    another = "10.0.0.3:4711";
    expect_elsewhere(&early, another);
    struct agent late = ask_of(&secret, 9);
    expect_elsewhere(&late, another);
    ck_assert(asked == 1 && refused == 0);
}
END_TEST

START_TEST(who_asks_is_refused_by_the_owner_and_where_many_do)
{
    enum { MOST = 16 };
    struct agent askers[MOST], more;
    refuses = true;
    more = ask_of(&secret, 9);
    expect_refusal(&more, KEEL_BUSY, "has no time for it");
    refuses = false;
    for (int i = 0; i < MOST; i++) {
        askers[i] = ask_of(&secret, 9);
        expect_word(&askers[i], KEEL_HANDOVER_HEARD);
    }
    more = ask_of(&secret, 9);
    expect_refusal(&more, KEEL_BUSY, "many who ask already");
    struct agent leaver = ask_about(2, KEEL_WISH_DRAIN); /* who ask for the end do not fill their places */
    expect_word(&leaver, KEEL_HANDOVER_HEARD);
    close(leaver.fd);
    leave_first(askers, MOST);
    settle();
    more = ask_of(&secret, 9);
    expect_word(&more, KEEL_HANDOVER_HEARD);
    close(more.fd);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, all_agents_may_dial_at_once_and_have_their_job_when_all_are_there);
    tcase_add_test(tc, who_goes_before_the_run_begins_is_missed_again);
    tcase_add_test(tc, a_node_that_is_here_is_given_to_nobody_else);
    tcase_add_test(tc, one_that_comes_again_takes_its_own_place);
    tcase_add_test(tc, one_more_waits_and_takes_the_place_of_one_that_is_silent);
    tcase_add_test(tc, another_key_is_told_in_the_clear_and_lets_nobody_in);
    tcase_add_test(tc, a_conversation_played_again_lets_nobody_in);
    tcase_add_test(tc, mute_callers_take_no_place_from_agents);
    tcase_add_test(tc, who_cannot_be_heard_for_want_of_descriptors_is_heard_later);
    tcase_add_test(tc, an_agent_that_cannot_begin_says_why_and_nonsense_ends_it);
    tcase_add_test(tc, who_does_not_lead_says_who_does_to_who_proves_the_key_alone);
    tcase_add_test(tc, who_waits_is_sent_on_when_another_leads);
    tcase_add_test(tc, who_asks_with_the_key_is_heard_and_told_how_it_ended);
    tcase_add_test(tc, a_forged_a_replayed_and_a_foreign_wish_are_not_heard);
    tcase_add_test(tc, who_asks_for_a_node_to_leave_is_told_why_it_stays_and_when_it_has_left);
    tcase_add_test(tc, an_agent_that_is_given_up_while_its_owner_looks_at_who_asks_is_not_looked_at);
    tcase_add_test(tc, who_asks_one_that_does_not_lead_or_no_more_is_sent_on);
    tcase_add_test(tc, who_asks_is_refused_by_the_owner_and_where_many_do);
    tcase_add_test(tc, who_leads_in_anothers_place_gives_away_nodes_that_are_silent_alone);
}

KEEL_TEST_MAIN("gate", cases, 120)
