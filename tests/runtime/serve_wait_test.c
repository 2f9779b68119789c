/* serve_wait_test.c - when keel serve says that a request may begin: by the steps that texts take, which are
 * those that a model which reads prompts in rows would do. */
#include "harness.h"
#include "inference.h"
#include "serve_wait.h"

/* Step by step, as serve.c feeds one text. */
static uint64_t count_steps(uint32_t unread, uint32_t tokens, uint32_t rows)
{
    uint64_t steps = 0;
    for (uint32_t fed = 0, count = unread; count < unread + tokens; steps++) {
        if (count - fed > KEEL_PROMPT_LEAST)
            for (uint32_t r = 0; r < rows && fed + 1 < count; r++)
                fed++;
        if (++fed == count)
            count++;
    }
    return steps;
}

START_TEST(steps_are_those_of_the_model)
{
    static const uint32_t rows[] = {0, 1, 4, 32, 128}, tokens[] = {1, 2, 50};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++)
            for (uint32_t unread = 1; unread < 700; unread++)
                ck_assert_uint_eq(keel_serve_steps(unread, tokens[t], rows[r]),
                                  count_steps(unread, tokens[t], rows[r]));
    ck_assert_uint_eq(keel_serve_steps(1900, 2, 32), 59); /* and not 1,902 */
}
END_TEST

/* Those that wait take the slots in their order, each the first that is free. */
START_TEST(who_comes_last_waits_for_what_is_queued)
{
    uint64_t left[] = {10, 1500, 30};
    ck_assert_uint_eq(keel_serve_wait(left, 3, 0), 10);
    ck_assert_uint_eq(keel_serve_wait(left, 3, 100), 10);
    ck_assert_uint_eq(keel_serve_wait(left, 3, 5), 30);
    ck_assert_uint_eq(keel_serve_wait(left, 3, 2000), 35);
    ck_assert_uint_eq(keel_serve_wait(left, 3, 0), 110);
    uint64_t idle[] = {0};
    ck_assert_uint_eq(keel_serve_wait(idle, 1, 7), 0);
    ck_assert_uint_eq(keel_serve_wait(idle, 1, 0), 7);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, steps_are_those_of_the_model);
    tcase_add_test(tc, who_comes_last_waits_for_what_is_queued);
}

KEEL_TEST_MAIN("serve_wait", cases, 60)
