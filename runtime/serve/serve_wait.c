/* serve_wait.c - see serve_wait.h. */
#include "serve_wait.h"
#include "inference.h"

uint64_t keel_serve_steps(uint32_t unread, uint32_t tokens, uint32_t rows)
{
    const uint64_t a_step = (uint64_t)rows + 1,
                   many = unread > KEEL_PROMPT_LEAST ? (unread - KEEL_PROMPT_LEAST + a_step - 1) / a_step : 0,
                   rest = unread > many * a_step ? unread - many * a_step : 0;
    return many + rest + tokens - 1;
}

uint64_t keel_serve_wait(uint64_t *left, uint32_t slots, uint64_t steps)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < slots; i++)
        first = left[i] < left[first] ? i : first;
    const uint64_t wait = left[first];
    left[first] += steps;
    return wait;
}
