/* compressed.c - floats to blocks of 64 bytes and back, and the sum of two blocks.
 *
 * An element of either kind is made by one function, from floats or from a sum alike, so a leaf and an inner
 * node are rounded in the same way. Loops over the numbers of a block go number by number, so that the
 * compiler makes vectors of them. Every NaN is the positive quiet one, as in combine.c. */
#include "compressed.h"

#include "combine.h"
#include "half.h"
#include "tree.h"

#include <assert.h>
#include <keel/memory.h>

#define F32_INFINITY UINT32_C(0x7f800000)

enum { NOWHERE = 0xffff };

struct i8_block {
    float scale; /* NaN: a number of the block is not finite */
    int8_t steps[KEEL_I8_BLOCK_FLOATS];
};
static_assert(sizeof(struct i8_block) == KEEL_COMPRESSED_BYTES, "the element has a fixed size on the wire");

struct top_k {
    float value[KEEL_TOP_K_KEPT];    /* 0 where there is none; never 0 elsewhere */
    uint16_t place[KEEL_TOP_K_KEPT]; /* ascending; NOWHERE: none, and none behind it */
    uint32_t unused;
};
static_assert(sizeof(struct top_k) == KEEL_COMPRESSED_BYTES, "the element has a fixed size on the wire");

static inline uint32_t size_of(float value)
{
    return keel_bits_of(value) & UINT32_C(0x7fffffff);
}

/* ---- 8 bits -------------------------------------------------------------------------------------------- */

/* 127 steps must not pass the largest float, so that all that is finite decodes to what is. */
static inline float scale_of(uint32_t largest_bits)
{
    float scale = keel_float_of(largest_bits) / 127.0f;
    if ((keel_bits_of(scale * 127.0f) & UINT32_C(0x7fffffff)) >= F32_INFINITY)
        scale = keel_float_of(keel_bits_of(scale) - 1);
    return scale;
}

/* Of steps rather than of a reciprocal, which may be infinite. The constant's last place is 1: adding it
 * rounds to the nearest whole number, ties to even. */
static inline float steps_of(float value, float scale)
{
    const float whole = 0x1.8p23f;
    float steps = value / scale;
    steps = steps > 127.0f ? 127.0f : steps;
    steps = steps < -127.0f ? -127.0f : steps;
    return (steps + whole) - whole;
}

static inline void i8_make(const float *values, struct i8_block *out)
{
    uint32_t largest = 0;
    INDEPENDENT for (uint32_t i = 0; i < KEEL_I8_BLOCK_FLOATS; i++)
    {
        uint32_t size = size_of(values[i]);
        largest = size > largest ? size : largest;
    }
    const bool finite = largest < F32_INFINITY;
    const float scale = finite ? scale_of(largest) : keel_float_of(F32_NAN);
    *out = (struct i8_block){.scale = scale};
    if (!finite || size_of(scale) == 0)
        return;
    INDEPENDENT for (uint32_t i = 0; i < KEEL_I8_BLOCK_FLOATS; i++)
    {
        out->steps[i] = (int8_t)(int32_t)steps_of(values[i], scale);
    }
}

static inline float i8_value(const struct i8_block *block, uint32_t i)
{
    const float value = block->scale * (float)block->steps[i];
    return f32_nan(keel_bits_of(value)) ? keel_float_of(F32_NAN) : value;
}

CLONES static void i8_encode(const float *in, uint64_t floats, uint8_t *out)
{
    float values[KEEL_I8_BLOCK_FLOATS];
    struct i8_block block;
    for (uint64_t at = 0; at < floats; at += KEEL_I8_BLOCK_FLOATS, out += sizeof block) {
        const uint64_t left = floats - at;
        const bool whole = left >= KEEL_I8_BLOCK_FLOATS;
        memset(values, 0, sizeof values);
        memcpy(values, in + at, keel_size((whole ? KEEL_I8_BLOCK_FLOATS : left) * sizeof *in));
        i8_make(values, &block);
        memcpy(out, &block, sizeof block);
    }
}

CLONES static void i8_decode(const uint8_t *in, uint64_t floats, float *out)
{
    struct i8_block block;
    for (uint64_t at = 0; at < floats; at += KEEL_I8_BLOCK_FLOATS, in += sizeof block) {
        const uint64_t left = floats - at, count = left < KEEL_I8_BLOCK_FLOATS ? left : KEEL_I8_BLOCK_FLOATS;
        memcpy(&block, in, sizeof block);
        INDEPENDENT for (uint32_t i = 0; i < count; i++) out[at + i] = i8_value(&block, i);
    }
}

CLONES static void i8_sum(uint8_t *out, const uint8_t *left, const uint8_t *right, uint64_t count)
{
    float values[KEEL_I8_BLOCK_FLOATS];
    struct i8_block a, b;
    for (uint64_t k = 0; k < count * sizeof a; k += sizeof a) {
        memcpy(&a, left + k, sizeof a);
        memcpy(&b, right + k, sizeof b);
        INDEPENDENT for (uint32_t i = 0; i < KEEL_I8_BLOCK_FLOATS; i++)
        {
            values[i] = f32_sum(i8_value(&a, i), i8_value(&b, i));
        }
        i8_make(values, &a);
        memcpy(out + k, &a, sizeof a);
    }
}

void keel_i8_block_node(enum keel_reduction reduction, void *out, const void *left, const void *right,
                        uint64_t count)
{
    (void)reduction;
    i8_sum(out, left, right, count);
}

/* ---- the largest --------------------------------------------------------------------------------------- */

/* What has been chosen so far, ascending by place. */
struct choice {
    struct top_k top;
    uint32_t count, least; /* least: magnitude that a number must pass to get in; 0 while there is room */
};

static void choice_begin(struct choice *choice)
{
    *choice = (struct choice){.count = 0};
    memset(choice->top.place, 0xff, sizeof choice->top.place);
}

static uint32_t least_of(const struct choice *choice)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t k = 0; k < KEEL_TOP_K_KEPT; k++)
        least = size_of(choice->top.value[k]) < least ? size_of(choice->top.value[k]) : least;
    return least;
}

/* The smallest gives way, of equal ones the last; what stands behind it moves up. */
static void make_place(struct choice *choice)
{
    struct top_k *top = &choice->top;
    uint32_t victim = KEEL_TOP_K_KEPT - 1;
    while (size_of(top->value[victim]) != choice->least)
        victim--;
    for (; victim + 1 < KEEL_TOP_K_KEPT; victim++) {
        top->value[victim] = top->value[victim + 1];
        top->place[victim] = top->place[victim + 1];
    }
    choice->count--;
}

/* Numbers come by ascending place. */
static inline void choice_offer(struct choice *choice, uint16_t place, float value)
{
    if (size_of(value) <= choice->least)
        return;
    if (choice->count == KEEL_TOP_K_KEPT)
        make_place(choice);
    choice->top.value[choice->count] = f32_nan(keel_bits_of(value)) ? keel_float_of(F32_NAN) : value;
    choice->top.place[choice->count++] = place;
    if (choice->count == KEEL_TOP_K_KEPT)
        choice->least = least_of(choice);
}

static void top_encode(uint32_t block, const float *in, uint64_t floats, uint8_t *out)
{
    struct choice choice;
    for (uint64_t at = 0; at < floats; at += block, out += sizeof choice.top) {
        const uint64_t left = floats - at, count = left < block ? left : block;
        choice_begin(&choice);
        for (uint64_t i = 0; i < count; i++)
            choice_offer(&choice, (uint16_t)i, in[at + i]);
        memcpy(out, &choice.top, sizeof choice.top);
    }
}

static enum keel_status top_decode(uint32_t block, const uint8_t *in, uint64_t floats, float *out)
{
    struct top_k top;
    bool outside = false;
    memset(out, 0, keel_size(floats * sizeof *out));
    for (uint64_t at = 0; at < floats; at += block, in += sizeof top) {
        const uint64_t left = floats - at, count = left < block ? left : block;
        memcpy(&top, in, sizeof top);
        for (uint32_t k = 0; k < KEEL_TOP_K_KEPT && top.place[k] != NOWHERE; k++) {
            outside = outside || top.place[k] >= count;
            if (top.place[k] < count)
                out[at + top.place[k]] = top.value[k];
        }
    }
    return outside ? keel_fail(KEEL_CORRUPT, "top-k: a place lies outside its block of %u floats", block)
                   : KEEL_OK;
}

/* Places that both have are one number of the sum. */
static void top_sum(const struct top_k *a, const struct top_k *b, struct choice *sum)
{
    uint32_t i = 0, j = 0;
    choice_begin(sum);
    for (;;) {
        const uint16_t at = i < KEEL_TOP_K_KEPT ? a->place[i] : NOWHERE;
        const uint16_t bt = j < KEEL_TOP_K_KEPT ? b->place[j] : NOWHERE;
        if (at == NOWHERE && bt == NOWHERE)
            return;
        if (at < bt)
            choice_offer(sum, at, a->value[i++]);
        else if (bt < at)
            choice_offer(sum, bt, b->value[j++]);
        else
            choice_offer(sum, at, f32_sum(a->value[i++], b->value[j++]));
    }
}

void keel_top_k_node(enum keel_reduction reduction, void *out, const void *left, const void *right,
                     uint64_t count)
{
    struct choice sum;
    struct top_k a, b;
    (void)reduction;
    for (uint64_t k = 0; k < count * sizeof a; k += sizeof a) {
        memcpy(&a, (const uint8_t *)left + k, sizeof a);
        memcpy(&b, (const uint8_t *)right + k, sizeof b);
        top_sum(&a, &b, &sum);
        memcpy((uint8_t *)out + k, &sum.top, sizeof sum.top);
    }
}

/* ---- both ---------------------------------------------------------------------------------------------- */

static bool is_good(const struct keel_compression *how)
{
    if (how->element == KEEL_ELEMENT_I8_BLOCK)
        return how->block == KEEL_I8_BLOCK_FLOATS;
    return how->element == KEEL_ELEMENT_TOP_K && how->block >= KEEL_TOP_K_KEPT &&
           how->block <= KEEL_TOP_K_BLOCK_MAX;
}

uint64_t keel_compressed_count(const struct keel_compression *how, uint64_t floats)
{
    KEEL_ASSERT(is_good(how));
    return (floats + how->block - 1) / how->block;
}

void keel_compressed_encode(const struct keel_compression *how, const float *in, uint64_t floats, void *out)
{
    KEEL_ASSERT(is_good(how));
    if (how->element == KEEL_ELEMENT_I8_BLOCK)
        i8_encode(in, floats, out);
    else
        top_encode(how->block, in, floats, out);
}

enum keel_status keel_compressed_decode(const struct keel_compression *how, const void *in, uint64_t floats,
                                        float *out)
{
    KEEL_ASSERT(is_good(how));
    if (how->element == KEEL_ELEMENT_TOP_K)
        return top_decode(how->block, in, floats, out);
    i8_decode(in, floats, out);
    return KEEL_OK;
}

void keel_compressed_add(enum keel_element element, void *sum, const void *other, uint64_t count)
{
    KEEL_ASSERT(element == KEEL_ELEMENT_I8_BLOCK || element == KEEL_ELEMENT_TOP_K);
    const void *leaves[] = {sum, other};
    const uint16_t program[] = {0, 1, KEEL_TREE_ADD};
    keel_combine(element, KEEL_SUM, leaves, program, 3, sum, count);
}
