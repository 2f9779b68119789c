/* combine.c - the program over typed leaves, block by block in the first-level cache.
 *
 * Each inner node is one loop over a block of at most 4 KiB that the compiler turns into vectors (for the
 * widest set of instructions that the processor has: CLONES); what is between the leaves and the root stays
 * in the cache. So a node costs its operands' traffic once, and the order of additions is the program's
 * alone: lanes are elements, never parts of one sum. Loops say that element i depends on no other element,
 * which holds in place too.
 *
 * NaN: the payload that an addition keeps depends on the operand that the compiler puts first. The same bits
 * are promised, so every NaN that an inner node makes is the positive quiet one without payload. */
#include "combine.h"
#include "compressed.h"

#include <keel/memory.h>

#include "half.h"
#include "tree.h"

#include <string.h>
#if defined __x86_64__ && !defined __clang__
#include <immintrin.h>
#endif

enum { BLOCK_BYTES = 4096 };

/* out[i] = value of (a = left[i], b = right[i]) */
#define EACH(type, value)                                                                                    \
    do {                                                                                                     \
        type *o_ = out;                                                                                      \
        const type *l_ = left, *r_ = right;                                                                  \
        INDEPENDENT for (uint64_t i_ = 0; i_ < count; i_++)                                                  \
        {                                                                                                    \
            const type a = l_[i_], b = r_[i_];                                                               \
            o_[i_] = (type)(value);                                                                          \
        }                                                                                                    \
    } while (0)

typedef void node_loop(enum keel_reduction reduction, void *out, const void *left, const void *right,
                       uint64_t count);

/* ---- values: how two elements become one ---- */

#define F64_NAN UINT64_C(0x7ff8000000000000)

static inline uint64_t f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double f64_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bool f64_nan(uint64_t bits)
{
    return (bits & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000);
}

/* The less of two, or the greater. Of equals, -0 is the less: its sign bit survives OR, and falls to AND. */
static inline float f32_extreme(float a, float b, bool least)
{
    uint32_t x = keel_bits_of(a), y = keel_bits_of(b), equal = least ? x | y : x & y;
    uint32_t extreme = (least ? a < b : a > b) ? x : equal;
    extreme = (least ? b < a : b > a) ? y : extreme;
    return keel_float_of(f32_nan(x) || f32_nan(y) ? F32_NAN : extreme);
}

static inline double f64_sum(double a, double b)
{
    uint64_t sum = f64_bits(a + b);
    return f64_of(f64_nan(sum) ? F64_NAN : sum);
}

static inline double f64_extreme(double a, double b, bool least)
{
    uint64_t x = f64_bits(a), y = f64_bits(b), equal = least ? x | y : x & y;
    uint64_t extreme = (least ? a < b : a > b) ? x : equal;
    extreme = (least ? b < a : b > a) ? y : extreme;
    return f64_of(f64_nan(x) || f64_nan(y) ? F64_NAN : extreme);
}

/* ---- halves by the processor ---- */

#if defined __x86_64__ && !defined __clang__ /* whose check of the processor does not know f16c */
/* The same sums where the processor converts halves itself, eight at a time; how many were done. */
__attribute__((target("avx2,f16c"))) static uint64_t f16_sum_eights(uint16_t *out, const uint16_t *left,
                                                                    const uint16_t *right, uint64_t count)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)F32_NAN));
    uint64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(left + i)));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(right + i)));
        __m256 sum = _mm256_add_ps(a, b);
        sum = _mm256_blendv_ps(sum, nan, _mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
        _mm_storeu_si128((void *)(out + i), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}

static uint64_t f16_sum_fast(uint16_t *out, const uint16_t *left, const uint16_t *right, uint64_t count)
{
    bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    return able ? f16_sum_eights(out, left, right, count) : 0;
}
#else
static uint64_t f16_sum_fast(uint16_t *out, const uint16_t *left, const uint16_t *right, uint64_t count)
{
    (void)out, (void)left, (void)right, (void)count;
    return 0;
}
#endif

/* ---- one loop a type and reduction ---- */

#define NODE(name, type, least, most, sum_type, sum)                                                         \
    CLONES static void name(enum keel_reduction reduction, void *out, const void *left, const void *right,   \
                            uint64_t count)                                                                  \
    {                                                                                                        \
        if (reduction == KEEL_MIN)                                                                           \
            EACH(type, least);                                                                               \
        else if (reduction == KEEL_MAX)                                                                      \
            EACH(type, most);                                                                                \
        else                                                                                                 \
            EACH(sum_type, sum);                                                                             \
    }

/* f16_rest is what the processor does not convert itself. Integers wrap, so they are added unsigned. */
#define NODES(X)                                                                                             \
    X(f32_node, float, f32_extreme(a, b, true), f32_extreme(a, b, false), float, f32_sum(a, b))              \
    X(f64_node, double, f64_extreme(a, b, true), f64_extreme(a, b, false), double, f64_sum(a, b))            \
    X(f16_rest, uint16_t, f16_narrow(f32_extreme(f16_wide(a), f16_wide(b), true)),                           \
      f16_narrow(f32_extreme(f16_wide(a), f16_wide(b), false)), uint16_t,                                    \
      f16_narrow(f16_wide(a) + f16_wide(b)))                                                                 \
    X(bf16_node, uint16_t, bf16_narrow(f32_extreme(bf16_wide(a), bf16_wide(b), true)),                       \
      bf16_narrow(f32_extreme(bf16_wide(a), bf16_wide(b), false)), uint16_t,                                 \
      bf16_narrow(bf16_wide(a) + bf16_wide(b)))                                                              \
    X(i8_node, int8_t, (a < b ? a : b), (a > b ? a : b), uint8_t, a + b)                                     \
    X(u8_node, uint8_t, (a < b ? a : b), (a > b ? a : b), uint8_t, a + b)                                    \
    X(i32_node, int32_t, (a < b ? a : b), (a > b ? a : b), uint32_t, a + b)                                  \
    X(i64_node, int64_t, (a < b ? a : b), (a > b ? a : b), uint64_t, a + b)

NODES(NODE)

static void f16_node(enum keel_reduction reduction, void *out, const void *left, const void *right,
                     uint64_t count)
{
    uint16_t *to = out;
    const uint16_t *a = left, *b = right;
    bool sums = reduction != KEEL_MIN && reduction != KEEL_MAX;
    uint64_t done = sums ? f16_sum_fast(to, a, b, count) : 0;
    f16_rest(reduction, to + done, a + done, b + done, count - done);
}

static node_loop *const node_loops[KEEL_ELEMENT_ALL] = {
    [KEEL_ELEMENT_F32] = f32_node,
    [KEEL_ELEMENT_F64] = f64_node,
    [KEEL_ELEMENT_F16] = f16_node,
    [KEEL_ELEMENT_BF16] = bf16_node,
    [KEEL_ELEMENT_I8] = i8_node,
    [KEEL_ELEMENT_I32] = i32_node,
    [KEEL_ELEMENT_I64] = i64_node,
    [KEEL_ELEMENT_U8] = u8_node,
    [KEEL_ELEMENT_I8_BLOCK] = keel_i8_block_node,
    [KEEL_ELEMENT_TOP_K] = keel_top_k_node,
};

/* ---- the program ---- */

/* A program, and where in the leaves the block of this turn begins. */
struct work {
    node_loop *node;
    enum keel_reduction reduction;
    uint32_t element_bytes;
    const void *const *leaves;
    const uint16_t *program;
    uint32_t program_count;
};

/* The root goes straight to its place, as the last use of any leaf: `out` may be one of them. */
static void combine_block(const struct work *work, uint64_t first_byte, void *out, uint64_t count)
{
    _Alignas(64) uint8_t between[KEEL_TREE_DEPTH_MAX][BLOCK_BYTES];
    const void *stack[KEEL_TREE_DEPTH_MAX];
    uint32_t depth = 0;
    for (uint32_t k = 0; k < work->program_count; k++) {
        if (work->program[k] != KEEL_TREE_ADD) {
            KEEL_ASSERT(depth < KEEL_TREE_DEPTH_MAX);
            stack[depth++] = (const uint8_t *)work->leaves[work->program[k]] + first_byte;
            continue;
        }
        KEEL_ASSERT(depth >= 2);
        depth--;
        void *value = k + 1 == work->program_count ? out : between[depth - 1];
        work->node(work->reduction, value, stack[depth - 1], stack[depth], count);
        stack[depth - 1] = value;
    }
    KEEL_ASSERT(depth == 1);
    if (stack[0] != out)
        memcpy(out, stack[0], keel_size(count * work->element_bytes));
}

void keel_combine(enum keel_element element, enum keel_reduction reduction, const void *const *leaves,
                  const uint16_t *program, uint32_t program_count, void *out, uint64_t count)
{
    KEEL_ASSERT(element < KEEL_ELEMENT_ALL && reduction < KEEL_REDUCTION_COUNT);
    const struct work work = {.node = node_loops[element],
                              .reduction = reduction,
                              .element_bytes = keel_element_bytes(element),
                              .leaves = leaves,
                              .program = program,
                              .program_count = program_count};
    if (program_count == 3) { /* two leaves: nothing is between them, so nothing need be cut */
        KEEL_ASSERT(program[2] == KEEL_TREE_ADD);
        work.node(reduction, out, leaves[program[0]], leaves[program[1]], count);
        return;
    }
    uint64_t block = BLOCK_BYTES / work.element_bytes;
    for (uint64_t first = 0; first < count; first += block) {
        uint64_t first_byte = first * work.element_bytes, left = count - first;
        combine_block(&work, first_byte, (uint8_t *)out + first_byte, left < block ? left : block);
    }
}

/* ---- the end of an average ---- */

/* In place: x[i] = value of a = x[i]. */
#define EACH_IN(type, value)                                                                                 \
    do {                                                                                                     \
        type *x_ = x;                                                                                        \
        for (uint64_t i_ = 0; i_ < count; i_++) {                                                            \
            const type a = x_[i_];                                                                           \
            x_[i_] = (type)(value);                                                                          \
        }                                                                                                    \
    } while (0)

#define QUOTIENT(element, type, value)                                                                       \
    case element:                                                                                            \
        EACH_IN(type, value);                                                                                \
        return;

#define QUOTIENTS(X)                                                                                         \
    X(KEEL_ELEMENT_F32, float, a / by)                                                                       \
    X(KEEL_ELEMENT_F64, double, a / (double)divisor)                                                         \
    X(KEEL_ELEMENT_F16, uint16_t, f16_narrow(f16_wide(a) / by))                                              \
    X(KEEL_ELEMENT_BF16, uint16_t, bf16_narrow(bf16_wide(a) / by))                                           \
    X(KEEL_ELEMENT_I8, int8_t, a / whole)                                                                    \
    X(KEEL_ELEMENT_I32, int32_t, a / whole)                                                                  \
    X(KEEL_ELEMENT_I64, int64_t, a / whole)                                                                  \
    X(KEEL_ELEMENT_U8, uint8_t, a / whole)

/* Half precision by way of a float's quotient rounds as if once: a quotient by at most 4,096 that is no tie
 * between two halves lies further from it than a float's rounding goes. */
void keel_combine_divide(enum keel_element element, void *x, uint64_t count, uint64_t divisor)
{
    KEEL_ASSERT(divisor > 0 && divisor <= KEEL_GROUP_SHARDS_MAX);
    const float by = (float)divisor;
    const int64_t whole = (int64_t)divisor;
    switch (element) {
        QUOTIENTS(QUOTIENT)
    default:
        KEEL_ASSERT(element < KEEL_ELEMENT_COUNT);
    }
}
