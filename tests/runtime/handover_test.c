/* handover_test.c - only who has the job key opens a frame: once, in its conversation, in its order. */
#include "handover.h"

#include "harness.h"
#include <sodium.h>
#include <string.h>

static const struct keel_secret secret = {.key = {1, 2, 3}}, other_secret = {.key = {1, 2, 4}};

struct pair {
    struct keel_handover launcher, agent;
};

static void begin(struct pair *pair, const struct keel_secret *of_launcher,
                  const struct keel_secret *of_agent)
{
    ck_assert(sodium_init() >= 0);
    keel_handover_begin(&pair->launcher, KEEL_HANDOVER_LAUNCHER, of_launcher, "1.2");
    keel_handover_begin(&pair->agent, KEEL_HANDOVER_AGENT, of_agent, "1.2");
    ck_ok(keel_handover_agree(&pair->launcher, pair->agent.opening));
    ck_ok(keel_handover_agree(&pair->agent, pair->launcher.opening));
}

static uint32_t seal_text(struct keel_handover *from, const char *text, uint8_t *out)
{
    return keel_frame_seal(from, KEEL_HANDOVER_FACTS, (const uint8_t *)text, (uint32_t)strlen(text), out);
}

/* Whether a copy of the frame opens. */
static bool opens(struct keel_handover *to, const uint8_t *frame, uint32_t frame_bytes, const char *text)
{
    uint8_t copy[256];
    enum keel_handover_kind kind;
    const uint8_t *payload;
    uint32_t bytes;
    memcpy(copy, frame, frame_bytes);
    if (!keel_frame_open(to, copy, frame_bytes, &kind, &payload, &bytes))
        return false;
    ck_assert_int_eq(kind, KEEL_HANDOVER_FACTS);
    ck_assert(bytes == strlen(text) && memcmp(payload, text, bytes) == 0);
    return true;
}

START_TEST(both_sides_open_what_the_other_sealed_in_its_order)
{
    struct pair pair;
    uint8_t first[256], second[256], back[256];
    begin(&pair, &secret, &secret);
    const uint32_t one = seal_text(&pair.agent, "one", first), two = seal_text(&pair.agent, "two", second);
    const uint32_t three = seal_text(&pair.launcher, "three", back);
    ck_assert(!opens(&pair.launcher, second, two, "two")); /* left out */
    ck_assert(opens(&pair.launcher, first, one, "one"));
    ck_assert(!opens(&pair.launcher, first, one, "one")); /* again */
    ck_assert(opens(&pair.launcher, second, two, "two"));
    ck_assert(!opens(&pair.launcher, back, three, "three")); /* turned round */
    ck_assert(opens(&pair.agent, back, three, "three"));
}
END_TEST

START_TEST(another_key_opens_nothing)
{
    struct pair pair;
    uint8_t frame[256];
    begin(&pair, &secret, &other_secret);
    ck_assert(!opens(&pair.launcher, frame, seal_text(&pair.agent, "one", frame), "one"));
    ck_assert(!opens(&pair.agent, frame, seal_text(&pair.launcher, "one", frame), "one"));
}
END_TEST

START_TEST(a_recorded_conversation_is_worth_nothing_in_another)
{
    struct pair then, now;
    uint8_t frame[256];
    begin(&then, &secret, &secret);
    const uint32_t bytes = seal_text(&then.agent, "one", frame);
    ck_assert(opens(&then.launcher, frame, bytes, "one"));
    keel_handover_begin(&now.launcher, KEEL_HANDOVER_LAUNCHER, &secret, "1.2");
    ck_ok(keel_handover_agree(&now.launcher, then.agent.opening)); /* played again, and behind it */
    ck_assert(!opens(&now.launcher, frame, bytes, "one"));
}
END_TEST

START_TEST(a_changed_bit_anywhere_opens_nothing)
{
    struct pair pair;
    uint8_t frame[256];
    begin(&pair, &secret, &secret);
    const uint32_t bytes = seal_text(&pair.agent, "one", frame);
    for (uint32_t bit = 0; bit < bytes * 8; bit++) {
        frame[bit / 8] ^= (uint8_t)(1U << bit % 8);
        ck_assert(!opens(&pair.launcher, frame, bytes, "one"));
        frame[bit / 8] ^= (uint8_t)(1U << bit % 8);
    }
    for (uint32_t shorter = 0; shorter < bytes; shorter++)
        ck_assert(!opens(&pair.launcher, frame, shorter, "one"));
    ck_assert(opens(&pair.launcher, frame, bytes, "one"));
}
END_TEST

START_TEST(another_release_is_refused_by_both_with_both_named)
{
    struct pair pair;
    ck_assert(sodium_init() >= 0);
    keel_handover_begin(&pair.launcher, KEEL_HANDOVER_LAUNCHER, &secret, "1.2");
    keel_handover_begin(&pair.agent, KEEL_HANDOVER_AGENT, &secret, "1.3");
    ck_status(keel_handover_agree(&pair.launcher, pair.agent.opening), KEEL_VERSION);
    ck_assert(strstr(keel_detail(), "the agent is of release 1.3, the launcher of release 1.2") != NULL);
    ck_status(keel_handover_agree(&pair.agent, pair.launcher.opening), KEEL_VERSION);
    ck_assert(strstr(keel_detail(), "the launcher is of release 1.2, this agent of release 1.3") != NULL);
}
END_TEST

START_TEST(an_opening_that_is_none_or_our_own_is_refused)
{
    struct keel_handover launcher;
    uint8_t opening[KEEL_OPENING_BYTES];
    ck_assert(sodium_init() >= 0);
    keel_handover_begin(&launcher, KEEL_HANDOVER_LAUNCHER, &secret, "1.2");
    memcpy(opening, launcher.opening, sizeof opening);
    ck_status(keel_handover_agree(&launcher, opening), KEEL_CORRUPT);
    opening[7] = 'A';
    memset(opening + KEEL_OPENING_BYTES - KEEL_HANDOVER_KEY_BYTES, 0, KEEL_HANDOVER_KEY_BYTES);
    ck_status(keel_handover_agree(&launcher, opening), KEEL_CORRUPT); /* a point of low order */
    memset(opening, 'x', sizeof opening);
    ck_status(keel_handover_agree(&launcher, opening), KEEL_CORRUPT);
}
END_TEST

START_TEST(a_job_comes_over_as_it_was)
{
    struct keel_handed_job job = {.node = 3,
                                  .incarnation = 2,
                                  .run = 77,
                                  .by = 5,
                                  .by_tag = 99,
                                  .launcher = "10.0.0.1:4711",
                                  .job = "[job]\nname = x\n",
                                  .identity = "abc",
                                  .store = "/shared/ckpt",
                                  .hosts = "h1,h2",
                                  .state = "1\n0\n",
                                  .words = {"--resume", "auto"},
                                  .word_count = 2};
    struct keel_handed_job back;
    uint8_t data[512];
    const uint32_t bytes = keel_handed_job_bytes(&job);
    ck_assert_uint_eq(keel_handed_job_write(&job, data, sizeof data), bytes);
    ck_assert_uint_eq(keel_handed_job_write(&job, data, bytes - 1), 0);
    keel_handed_job_write(&job, data, sizeof data);
    ck_assert(keel_handed_job_read(data, bytes, &back));
    ck_assert(back.node == 3 && back.incarnation == 2 && back.run == 77 && back.word_count == 2);
    ck_assert(back.by == 5 && back.by_tag == 99);
    ck_assert_str_eq(back.launcher, job.launcher);
    ck_assert_str_eq(back.job, job.job);
    ck_assert_str_eq(back.identity, "abc");
    ck_assert_str_eq(back.store, "/shared/ckpt");
    ck_assert_str_eq(back.hosts, "h1,h2");
    ck_assert_str_eq(back.state, job.state);
    ck_assert_str_eq(back.words[1], "auto");
    for (uint32_t shorter = 0; shorter < bytes; shorter++)
        ck_assert(!keel_handed_job_read(data, shorter, &back));
    ck_assert(!keel_handed_job_read(data, bytes + 1, &back));
    job.by = job.node; /* nobody lets itself in */
    keel_handed_job_write(&job, data, sizeof data);
    ck_assert(!keel_handed_job_read(data, bytes, &back));
}
END_TEST

START_TEST(what_a_stranger_calls_its_host_is_made_printable)
{
    struct keel_agent_facts facts = {.node = 1, .instance = 9, .host = "a\"b\n\x1b[31m"}, back;
    uint8_t data[128];
    const uint32_t bytes = keel_agent_facts_write(&facts, data, sizeof data);
    ck_assert(keel_agent_facts_read(data, bytes, &back));
    ck_assert_str_eq(back.host, "a?b??[31m");
    struct keel_handover_reason reason = {.status = KEEL_DENIED, .text = "no\tway"}, heard;
    const uint32_t reason_bytes = keel_handover_reason_write(&reason, data, sizeof data);
    ck_assert(keel_handover_reason_read(data, reason_bytes, &heard));
    ck_assert(heard.status == KEEL_DENIED && strcmp(heard.text, "no?way") == 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, both_sides_open_what_the_other_sealed_in_its_order);
    tcase_add_test(tc, another_key_opens_nothing);
    tcase_add_test(tc, a_recorded_conversation_is_worth_nothing_in_another);
    tcase_add_test(tc, a_changed_bit_anywhere_opens_nothing);
    tcase_add_test(tc, another_release_is_refused_by_both_with_both_named);
    tcase_add_test(tc, an_opening_that_is_none_or_our_own_is_refused);
    tcase_add_test(tc, a_job_comes_over_as_it_was);
    tcase_add_test(tc, what_a_stranger_calls_its_host_is_made_printable);
}

KEEL_TEST_MAIN("handover", cases, 60)
