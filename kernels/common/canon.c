/* canon.c - canonical scalar functions and random numbers for hosts: the bits that kernels compute. */
#include "canon.h"

#include "kernels_internal.h"

float keel_canon_exp(float x)
{
    return canon_exp(x);
}

float keel_canon_sqrt(float x)
{
    return canon_sqrt(x);
}

float keel_canon_divide(float a, float b)
{
    return canon_divide(a, b);
}

float keel_canon_cos(float x)
{
    return canon_cos(x);
}

float keel_canon_log(float x)
{
    return canon_log(x);
}

float keel_adam_bias(float beta, uint32_t t)
{
    double power = 1.0, base = (double)beta;
    for (uint32_t bits = t; bits != 0; bits >>= 1) {
        if ((bits & 1u) != 0)
            power *= base;
        base *= base;
    }
    return (float)(1.0 - power);
}

static void draw(const struct keel_control *control, uint32_t stream, uint64_t counter, uint32_t words[4])
{
    KEEL_ASSERT(counter <= UINT32_MAX);
    words[0] = (uint32_t)counter;
    words[1] = stream;
    words[2] = control->microbatch;
    words[3] = control->step;
    canon_philox(words, control->seed_lo, control->seed_hi);
}

uint32_t keel_random_u32(const struct keel_control *control, uint32_t stream, uint64_t element)
{
    uint32_t words[4];
    draw(control, stream, element / 4, words);
    return words[element % 4];
}

float keel_random_uniform(const struct keel_control *control, uint32_t stream, uint64_t element)
{
    return canon_uniform(keel_random_u32(control, stream, element));
}

/* Element i takes words 2 (i % 2) and the next of counter i / 2. */
float keel_random_normal(const struct keel_control *control, uint32_t stream, uint64_t element)
{
    uint32_t words[4];
    draw(control, stream, element / 2, words);
    const uint32_t *pair = &words[2 * (element % 2)];
    return canon_normal(pair[0], pair[1]);
}
