/* job_ask_test.c - who leads is lost when it has heard what keel job asks for: whoever leads next is asked,
 * and what the one before has done already is no refusal. Gate and command are of this process, over
 * loopback. */
#include "job_ask.h"

#include "gate.h"
#include "harness.h"
#include "run_gates.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/thread.h>
#include <poll.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char directory[64];
static struct keel_secret secret;
static struct keel_gate *gate;
static uint32_t asked;
static bool done_before; /* by who led before this one */
static int lock_fd;

/* Of the command. */
static struct keel_job_question question;
static struct keel_job_answer answer;
static enum keel_status status;
static char detail[KEEL_DETAIL_BYTES];
static atomic_bool over;

static void on_news(void *context, const struct keel_gate_news *news)
{
    (void)context;
    (void)news;
}

static bool leads(void *context, char out[KEEL_PLACE_BYTES])
{
    (void)context;
    out[0] = '\0';
    return true;
}

static enum keel_status on_ask(void *context, const struct keel_handover_ask *ask)
{
    (void)context;
    ck_assert_uint_eq(ask->node, 2);
    asked++;
    return done_before ? keel_fail(KEEL_INVALID, "says that node 2 was not drained") : KEEL_OK;
}

static bool on_look(void *context, const struct keel_handover_ask *ask, char why[KEEL_REASON_BYTES])
{
    (void)context;
    (void)ask;
    why[0] = '\0';
    return false;
}

/* One more that leads, and that is known in the directory. */
static void open_gate(void)
{
    struct keel_net_place here;
    struct keel_run_gates gates = {.run = 9};
    char place[KEEL_PLACE_BYTES];
    ck_ok(keel_net_place_parse_ip("127.0.0.1", &here));
    const struct keel_gate_config config = {.bind = &here,
                                            .advertised = &here,
                                            .secret = &secret,
                                            .release = KEEL_RELEASE,
                                            .node_count = 4,
                                            .job = {.run = 9},
                                            .news = on_news,
                                            .leads = leads,
                                            .ask = on_ask,
                                            .look = on_look,
                                            .asks_only = true};
    ck_ok(keel_gate_open(&config, &gate));
    ck_ok(keel_gate_place(gate, place));
    keel_run_gates_add(&gates, place);
    ck_ok(keel_run_gates_write(directory, &gates));
}

static void put(const char *name, const char *text)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_file_replace(path, text, strlen(text), 0600));
}

/* As if a run went on there. */
static void setup(void)
{
    char path[KEEL_PATH_BYTES];
    ck_assert(sodium_init() >= 0);
    strcpy(directory, "/tmp/keel-ask-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_secret_load(directory, true, &secret));
    put("job.conf", "[job]\nname = ask-test\n");
    put("events.jsonl", "{\"event\":\"run\"}\n");
    ck_ok(keel_path_join(path, directory, "run.lock"));
    ck_ok(keel_file_lock(path, false, 0, &lock_fd));
    asked = 0;
    done_before = false;
    open_gate();
}

static void teardown(void)
{
    keel_gate_leave(gate);
    keel_file_unlock(lock_fd);
    ck_ok(keel_remove_tree(directory));
}

static void *ask(void *argument)
{
    (void)argument;
    status = keel_job_ask(&question, &answer);
    snprintf(detail, sizeof detail, "%s", status != KEEL_OK ? keel_detail() : "");
    atomic_store(&over, true);
    return NULL;
}

static void turn_until(uint32_t count)
{
    while (asked < count && !atomic_load(&over)) {
        struct pollfd ready = {.fd = keel_gate_fd(gate), .events = POLLIN};
        (void)poll(&ready, 1, 20);
        keel_gate_turn(gate);
    }
}

/* By one that leads, which is lost when it has heard it, and by the next. */
static void ask_two(enum keel_handover_wish wish)
{
    struct keel_thread thread;
    question = (struct keel_job_question){.directory = directory,
                                          .wish = wish,
                                          .node = 2,
                                          .deadline_ns = keel_deadline_after_ns(60 * KEEL_NS_PER_S)};
    atomic_store(&over, false);
    ck_ok(keel_thread_create(&thread, "ask", ask, NULL));
    turn_until(1);
    keel_gate_leave(gate);
    done_before = true;
    open_gate();
    turn_until(2);
    keel_thread_join(&thread);
    ck_assert_uint_eq(asked, 2);
}

START_TEST(a_node_that_is_back_when_another_leads_was_added)
{
    ask_two(KEEL_WISH_ADD);
    ck_assert_msg(status == KEEL_OK, "%s", detail);
}
END_TEST

START_TEST(what_else_the_next_one_refuses_is_refused)
{
    ask_two(KEEL_WISH_DRAIN);
    ck_assert_int_eq(status, KEEL_INVALID);
}
END_TEST

/* By the first that is asked. */
START_TEST(a_node_that_never_was_drained_is_not_added)
{
    done_before = true;
    question = (struct keel_job_question){.directory = directory,
                                          .wish = KEEL_WISH_ADD,
                                          .node = 2,
                                          .deadline_ns = keel_deadline_after_ns(60 * KEEL_NS_PER_S)};
    struct keel_thread thread;
    atomic_store(&over, false);
    ck_ok(keel_thread_create(&thread, "ask", ask, NULL));
    turn_until(UINT32_MAX);
    keel_thread_join(&thread);
    ck_assert_int_eq(status, KEEL_INVALID);
    ck_assert_msg(strstr(detail, "was not drained") != NULL, "%s", detail);
}
END_TEST

/* ---- before the launcher has all agents ---------------------------------------------------------------- */

static atomic_uint words; /* that were said while it waits */

static void on_word(void *context, const char *why)
{
    (void)context;
    if (strstr(why, "waits for its agents") != NULL)
        atomic_fetch_add(&words, 1);
}

/* `seconds`: until it gives up. */
static void ask_early(struct keel_thread *thread, uint64_t seconds)
{
    keel_gate_leave(gate);
    keel_run_gates_remove(directory);
    done_before = true; /* an answer that ends it */
    question = (struct keel_job_question){.directory = directory,
                                          .wish = KEEL_WISH_DRAIN,
                                          .node = 2,
                                          .deadline_ns = keel_deadline_after_ns(seconds * KEEL_NS_PER_S),
                                          .stays = on_word};
    atomic_store(&words, 0);
    atomic_store(&over, false);
    ck_ok(keel_thread_create(thread, "ask", ask, NULL));
    while (atomic_load(&words) == 0 && !atomic_load(&over))
        (void)poll(NULL, 0, 5);
}

START_TEST(a_run_that_waits_for_its_agents_is_asked_when_they_are_there)
{
    struct keel_thread thread;
    ask_early(&thread, 60);
    open_gate();
    turn_until(1);
    keel_thread_join(&thread);
    ck_assert_uint_eq(asked, 1);
    ck_assert_uint_eq(atomic_load(&words), 1);
    ck_assert_msg(status == KEEL_INVALID, "%s", detail);
}
END_TEST

START_TEST(who_waits_no_longer_for_agents_is_told_what_to_do)
{
    struct keel_thread thread;
    ask_early(&thread, 1);
    keel_thread_join(&thread);
    open_gate(); /* the teardown closes it */
    ck_assert_uint_eq(asked, 0);
    ck_assert_int_eq(status, KEEL_TIMEOUT);
    ck_assert_msg(strstr(detail, "still waits for its agents") != NULL && strstr(detail, "ask again") != NULL,
                  "%s", detail);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_node_that_is_back_when_another_leads_was_added);
    tcase_add_test(tc, what_else_the_next_one_refuses_is_refused);
    tcase_add_test(tc, a_node_that_never_was_drained_is_not_added);
    tcase_add_test(tc, a_run_that_waits_for_its_agents_is_asked_when_they_are_there);
    tcase_add_test(tc, who_waits_no_longer_for_agents_is_told_what_to_do);
}

KEEL_TEST_MAIN("job_ask", cases, 60)
