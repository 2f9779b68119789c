/* exact8_test.c - products of the exact classes and of bf16: what kernels/README.md defines, computed here in
 * another way; the same bits on the host, on PoCL by AVX512-VNNI and AVX512-BF16 where there are such, in
 * plain C, and by groups of many work-items; the bound of the error against double.
 *
 * KEEL_EXACT8_TRIALS: random products of each class (`make exact8`: 10,000). */
#include "device_rig.h"
#include "kernels_internal.h"
#include <math.h>
#include <stdlib.h>

enum { BUFFER_FLOATS = 30720, TRIALS = 40, WAYS = 4, BLOCK = 1024 };

/* The kernels of a way: of which device of the rig, with what settings and facts. */
struct way {
    const char *name;
    int device;
    uint32_t items;
    bool dots;
};
static const struct way ways[WAYS] = {{"host", 0, 1, true},
                                      {"PoCL, with the processor's dots", 1, 1, true},
                                      {"PoCL basic, plain C", 2, 1, false},
                                      {"PoCL, groups of many", 1, 64, false}};
static struct keel_kernels *kernels_of[WAYS];

/* The first `count` ways: with 1 the host alone. */
static void open_ways(enum keel_class numerics, int count)
{
    if (count > 1)
        rig_open();
    else {
        ck_ok(keel_device_open("host", NULL, &rig[0].device));
        ck_ok(keel_queue_create(rig[0].device, &rig[0].queue));
    }
    for (int w = 0; w < count; w++) {
        struct keel_device_info target = *keel_device_info(rig[ways[w].device].device);
        const struct keel_setting items = {"gemm.items", ways[w].items};
        target.dots = ways[w].dots ? target.dots : 0;
        const struct keel_kernels_options options = {
            .numerics = numerics, .settings = &items, .setting_count = ways[w].device > 0, .target = &target};
        ck_ok(keel_kernels_create_with(rig[ways[w].device].device, &options, &kernels_of[w]));
    }
}

static void close_ways(int count)
{
    for (int w = 0; w < count; w++)
        keel_kernels_destroy(kernels_of[w]);
    if (count > 1) {
        rig_close();
        return;
    }
    rig_clear(&rig[0]);
    keel_queue_destroy(rig[0].queue);
    keel_device_close(rig[0].device);
}

/* ---- random descriptors and numbers ---- */

static uint32_t draws;
static uint32_t draw(uint32_t below)
{
    const struct keel_control control = {.seed_lo = 23};
    return keel_random_u32(&control, 7, draws++) % below;
}

static uint32_t draw_size(uint32_t most)
{
    static const uint32_t edges[] = {1, 4, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129};
    const uint32_t size = draw(2) == 0 ? edges[draw(sizeof edges / sizeof edges[0])] : 1 + draw(most);
    return size < most ? size : most;
}

static struct keel_slices draw_slices(uint32_t *k)
{
    struct keel_slices s = {.of = 1 + draw(draw(4) == 0 ? 64 : 8)};
    s.unit = s.of > 8 ? 1U : 1 + draw(3);
    s.units = s.of + draw(2 * s.of + 9);
    s.count = s.of;
    if (s.of == 8 && draw(2) == 0) {
        s.first = 4 * draw(2);
        s.count = 4;
    }
    *k = (keel_slice_begin(s.units, s.of, s.first + s.count) - keel_slice_begin(s.units, s.of, s.first)) *
         s.unit;
    return s;
}

enum end { END_NONE, END_ACCUMULATE, END_CHAIN, END_RESIDUAL, END_PRE, ENDS };
struct drawn {
    struct keel_gemm op; /* without buffers */
    enum end end;
    bool bias, checksums;
};

static enum keel_dtype draw_type(void)
{
    return draw(3) > 0 ? KEEL_F32 : draw(2) == 0 ? KEEL_BF16 : KEEL_F16;
}

static struct drawn draw_product(void)
{
    const bool deep = draw(8) == 0; /* more than one block of k */
    struct drawn d = {.op = {.m = draw_size(deep ? 9 : 100),
                             .n = draw_size(deep ? 9 : 140),
                             .k = deep ? 1000 + draw(1300) : draw_size(60),
                             .batch = !deep && draw(3) == 0 ? 2 : 1},
                      .end = (enum end)draw(ENDS),
                      .bias = draw(2) == 0,
                      .checksums = draw(2) == 0};
    struct keel_gemm *op = &d.op;
    op->transpose_a = draw(2) == 0;
    op->transpose_b = draw(2) == 0;
    op->accumulate = d.end == END_ACCUMULATE;
    op->chain = d.end == END_CHAIN;
    op->a_type = draw_type();
    op->b_type = draw_type();
    op->c_type = draw_type();
    if (!op->chain && draw(3) == 0 && !deep)
        op->k_slices = draw_slices(&op->k);
    op->batch = op->k > 99 ? 1 : op->batch; /* or it has no room */
    op->lda = (op->transpose_a ? op->m : op->k) + draw(5);
    op->ldb = (op->transpose_b ? op->k : op->n) + draw(5);
    op->ldc = op->n + draw(5);
    op->stride_a = (uint64_t)op->lda * (op->transpose_a ? op->k : op->m) + draw(9);
    op->stride_b = (uint64_t)op->ldb * (op->transpose_b ? op->n : op->k) + draw(9);
    op->stride_c = (uint64_t)op->ldc * op->m + draw(9);
    return d;
}

/* How numbers lie: ordinary; of any size; at the edges of digits and exponents; mostly zero, with denormals;
 * with products near the least normal number; with an infinity or a NaN now and then. */
enum numbers { ORDINARY, WIDE, EDGES, SPARSE, TINY, HOSTILE, NUMBERS };

static uint32_t number_bits(enum numbers kind, uint32_t series, uint64_t i)
{
    static const uint32_t edges[] = {0x3f800000, 0x3f7e0000, 0x3f7dffff, 0x3f7fffff, 0x3f000000,
                                     0x3f008080, 0xbf7fffff, 0xbf7e0000, 0x3b800000, 0xbb808000,
                                     0x7f7fffff, 0x00800000, 0x80800001, 0x38000000};
    const float x = rig_number(series, i);
    uint32_t bits, other;
    memcpy(&bits, &x, sizeof bits);
    other = bits * UINT32_C(2654435761) >> 8;
    if (kind == WIDE)
        return (bits & 0x807fffff) | (64 + other % 128) << 23;
    if (kind == TINY)
        return (bits & 0x807fffff) | (60 + other % 6) << 23;
    if (kind == EDGES)
        return edges[other % (sizeof edges / sizeof edges[0] - 4)];
    if (kind == SPARSE)
        return other % 4 > 0 ? 0 : other % 32 == 0 ? bits & 0x807fffff : bits;
    if (kind == HOSTILE && other % 4096 == 0)
        return other % 8192 == 0 ? 0x7f800000 : 0x7fc00000;
    if (kind == HOSTILE)
        return edges[other % (sizeof edges / sizeof edges[0])];
    return bits;
}

static void fill(uint8_t *bytes, enum numbers kind, uint32_t series, enum keel_dtype type)
{
    for (uint64_t i = 0; i < BUFFER_FLOATS; i++) {
        const uint32_t bits = number_bits(kind, series, i);
        const uint16_t half = (uint16_t)(0x2c00 + (bits >> 3 & 0x1fff) + (bits >> 31 << 15)),
                       brain = (uint16_t)(bits >> 16);
        if (type == KEEL_F32)
            memcpy(bytes + 4 * i, &bits, 4);
        else
            memcpy(bytes + 2 * i, type == KEEL_F16 ? &half : &brain, 2);
    }
}

/* ---- one product ---- */

struct results {
    uint8_t c[BUFFER_FLOATS * 4], pre[BUFFER_FLOATS * 4], checksums[4096];
    uint32_t report[2];
};

static void run(struct rig_device *on, struct keel_kernels *kernels, const struct drawn *d,
                const uint8_t *const numbers[4], struct results *out)
{
    struct keel_launch_list list = {0};
    struct keel_gemm op = d->op;
    struct keel_buffer *report = rig_buffer(on, (const uint32_t[]){0, UINT32_MAX}, sizeof out->report);
    op.a = rig_buffer(on, numbers[0], BUFFER_FLOATS * 4);
    op.b = rig_buffer(on, numbers[1], BUFFER_FLOATS * 4);
    op.c = rig_buffer(on, numbers[2], BUFFER_FLOATS * 4);
    struct keel_buffer *more = rig_buffer(on, numbers[2], BUFFER_FLOATS * 4);
    op.bias = d->bias ? rig_buffer(on, numbers[3], BUFFER_FLOATS * 4) : NULL;
    op.residual = d->end == END_RESIDUAL ? more : NULL;
    op.pre = d->end == END_PRE ? more : NULL;
    struct keel_buffer *checksums = rig_buffer(on, numbers[0], sizeof out->checksums);
    op.checksums = d->checksums ? checksums : NULL;
    op.planes = rig_buffer(on, NULL, keel_gemm_planes_bytes(kernels, &op));
    ck_ok(keel_op_gemm(kernels, &op, &list));
    if (d->checksums)
        ck_ok(keel_op_gemm_check(kernels, &(struct keel_gemm_check){&op, report, 0}, &list));
    rig_run(on, &list);
    rig_read(on, op.c, out->c);
    rig_read(on, more, out->pre);
    rig_read(on, checksums, out->checksums);
    rig_read(on, report, out->report);
    rig_clear(on);
}

/* Element `i` of a buffer of a type, as a float. */
static float element(const uint8_t *bytes, uint64_t i, enum keel_dtype type)
{
    uint32_t bits = 0;
    memcpy(&bits, bytes + i * (type == KEEL_F32 ? 4 : 2), type == KEEL_F32 ? 4 : 2);
    if (type == KEEL_BF16)
        bits <<= 16;
    if (type == KEEL_F16) { /* of normal numbers, zeros, infinities and NaNs: what there is here */
        const uint32_t a = bits & 0x7fff;
        bits = (bits >> 15) << 31 | (a >= 0x7c00 ? 0x7f800000 | (a & 0x3ff) << 13
                                     : a == 0    ? 0
                                                 : (a << 13) + 0x38000000);
    }
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Equal bits, or a NaN on both sides, whose sign and payload nobody promises. */
static void same(const char *what, const char *name, const uint8_t *found, const uint8_t *wanted,
                 enum keel_dtype type)
{
    const size_t bytes = type == KEEL_F32 ? 4 : 2;
    for (uint64_t i = 0; i < BUFFER_FLOATS; i++)
        ck_assert_msg(memcmp(found + i * bytes, wanted + i * bytes, bytes) == 0 ||
                          (isnan(element(found, i, type)) && isnan(element(wanted, i, type))),
                      "%s: %s differs at element %" PRIu64 ": %a, not %a", what, name, i,
                      (double)element(found, i, type), (double)element(wanted, i, type));
}

static void describe(const struct drawn *d, int trial, char *out, size_t bytes)
{
    const struct keel_gemm *op = &d->op;
    snprintf(out, bytes,
             "product %d: %u x %u x %u, batch %u, transposed %d %d, types %d %d %d, end %d, bias %d, slices "
             "%u of %u",
             trial, op->m, op->n, op->k, op->batch, op->transpose_a, op->transpose_b, op->a_type, op->b_type,
             op->c_type, d->end, d->bias, op->k_slices.count, op->k_slices.of);
}

/* ---- the definition, in another way ---- */

struct line {
    int exponent; /* of the block */
    bool finite;
    int64_t digits[3][BLOCK];
};

static void cut_line(const float *x, uint32_t length, uint32_t n, struct line *out)
{
    float most = 0;
    out->finite = true;
    for (uint32_t p = 0; p < length; p++) {
        out->finite = out->finite && isfinite(x[p]);
        most = fmaxf(most, fabsf(x[p]));
    }
    out->exponent = 0;
    const float part = out->finite && most >= 0x1p-126F ? frexpf(most, &out->exponent) : 0;
    out->exponent += part >= 0x1.fcp-1F;
    for (uint32_t p = 0; p < length; p++) {
        const double scaled =
            out->finite && fabsf(x[p]) >= 0x1p-126F ? ldexp(x[p], (int)(8 * n - 1) - out->exponent) : 0;
        int64_t q = llround(scaled);
        for (uint32_t d = n; d-- > 1;) {
            int64_t digit = ((q % 256) + 256) % 256;
            digit -= digit >= 128 ? 256 : 0;
            out->digits[d][p] = digit;
            q = (q - digit) / 256;
        }
        ck_assert_int_le(llabs(q), 127);
        out->digits[0][p] = q;
    }
}

static float block_value(const struct line *a, const struct line *b, uint32_t length, uint32_t n)
{
    float value = 0;
    for (uint32_t level = n; level-- > 0;) {
        int64_t sum = 0;
        for (uint32_t i = 0; i <= level; i++)
            for (uint32_t p = 0; p < length; p++)
                sum += a->digits[i][p] * b->digits[level - i][p];
        ck_assert_int_le(llabs(sum), INT32_MAX);
        value = level == n - 1 ? (float)sum : fmaf((float)sum, (float)(1U << 8 * (n - 1 - level)), value);
    }
    if (!a->finite || !b->finite)
        return NAN;
    const double exact = ldexp(value, a->exponent + b->exponent - 8 * (int)n - 6);
    return fabs(exact) < 0x1p-126 ? 0 : fabs(exact) >= 0x1p128 ? copysignf(INFINITY, value) : (float)exact;
}

/* ---- bf16, likewise: exact sums, rounded once, to an exponent without a lower end ---- */

/* To `bits` bits; below 2^-126 a zero. */
static double rounded(double x, int bits)
{
    int e;
    if (x == 0 || !isfinite(x))
        return x;
    const double part = ldexp(rint(ldexp(frexp(x, &e), bits)), -bits);
    return fabs(ldexp(part, e)) < 0x1p-126   ? copysign(0, x)
           : fabs(ldexp(part, e)) >= 0x1p128 ? copysign(INFINITY, x)
                                             : ldexp(part, e);
}

static float bf16_of(float x)
{
    return fabsf(x) < 0x1p-126F ? copysignf(0, x) : (float)rounded((double)x, 8);
}

/* sum + a b: the product is exact in double, and what the sum of both loses makes its last bit odd, so that
 * the second rounding sees on which side of a tie it is. */
static float added(float sum, float a, float b)
{
    const double x = (double)a * (double)b, y = (double)sum, s = x + y;
    if (!isfinite(s))
        return (float)s;
    const double part = s - x, lost = (x - (s - part)) + (y - part);
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    if (lost != 0 && bits % 2 == 0)
        bits += (lost > 0) == (s > 0) ? 1 : UINT64_MAX;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)rounded(odd, 24);
}

static float pairs_of(const float *a, const float *b, uint32_t first, uint32_t end, bool begun, float sum)
{
    sum = !begun ? 0 : fabsf(sum) < 0x1p-126F ? copysignf(0, sum) : sum;
    for (uint32_t p = first; p < end; p += 2) {
        sum = p + 1 < end ? added(sum, bf16_of(a[p + 1]), bf16_of(b[p + 1])) : sum + 0.0F;
        sum = added(sum, bf16_of(a[p]), bf16_of(b[p]));
    }
    return sum;
}

/* Element (row, column) of op(A) op(B), k from `first` to `end` of them. */
static float chain_of(const float *a, const float *b, uint32_t first, uint32_t end, uint32_t n, bool begun,
                      float sum)
{
    static struct line lines[2];
    if (n == 1)
        return pairs_of(a, b, first, end, begun, sum);
    for (uint32_t at = first; at < end; at += BLOCK) {
        const uint32_t length = end - at < BLOCK ? end - at : BLOCK;
        cut_line(a + at, length, n, &lines[0]);
        cut_line(b + at, length, n, &lines[1]);
        const float value = block_value(&lines[0], &lines[1], length, n);
        sum = begun ? sum + value : value;
        begun = true;
    }
    return sum;
}

static float tree_of(const float *a, const float *b, const struct keel_slices *s, uint32_t first,
                     uint32_t count, uint32_t n)
{
    if (count == 1) {
        const uint32_t base = keel_slice_begin(s->units, s->of, s->first);
        return chain_of(a, b, (keel_slice_begin(s->units, s->of, first) - base) * s->unit,
                        (keel_slice_begin(s->units, s->of, first + 1) - base) * s->unit, n, false, 0);
    }
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    const float sum = tree_of(a, b, s, first, left, n);
    return sum + tree_of(a, b, s, first + left, count - left, n);
}

/* Sums of a product without ends but CHAIN, of one of the batch, floats alone. */
static float wanted_sum(const struct drawn *d, const uint8_t *const numbers[4], uint32_t batch, uint32_t i,
                        uint32_t j, uint32_t n, float *a, float *b)
{
    const struct keel_gemm *op = &d->op;
    for (uint32_t p = 0; p < op->k; p++) {
        a[p] = element(numbers[0],
                       batch * op->stride_a +
                           (op->transpose_a ? (uint64_t)p * op->lda + i : (uint64_t)i * op->lda + p),
                       op->a_type);
        b[p] = element(numbers[1],
                       batch * op->stride_b +
                           (op->transpose_b ? (uint64_t)j * op->ldb + p : (uint64_t)p * op->ldb + j),
                       op->b_type);
    }
    const uint64_t at = batch * op->stride_c + (uint64_t)i * op->ldc + j;
    if (op->k_slices.count > 0)
        return tree_of(a, b, &op->k_slices, op->k_slices.first, op->k_slices.count, n);
    return chain_of(a, b, 0, op->k, n, op->chain, element(numbers[2], at, op->c_type));
}

static const enum keel_class classes[] = {KEEL_EXACT8X2, KEEL_EXACT8X3, KEEL_CLASS_BF16};
static const uint32_t class_digits[] = {2, 3, 1};
static uint8_t numbers[4][BUFFER_FLOATS * 4];
static const uint8_t *const given[4] = {numbers[0], numbers[1], numbers[2], numbers[3]};
static struct results wanted, found;

static void fill_all(const struct drawn *d, enum numbers kind)
{
    fill(numbers[0], kind, 1, d->op.a_type);
    fill(numbers[1], kind, 2, d->op.b_type);
    fill(numbers[2], ORDINARY, 3, d->op.c_type);
    fill(numbers[3], ORDINARY, 4, KEEL_F32);
}

START_TEST(the_host_computes_what_is_defined)
{
    const uint32_t n = class_digits[_i];
    static float a[4096], b[4096];
    draws = 1;
    open_ways(classes[_i], 1);
    for (int trial = 0; trial < 60; trial++) {
        struct drawn d = draw_product();
        d.end = d.end == END_CHAIN ? END_CHAIN : END_NONE;
        d.op.accumulate = d.bias = false;
        d.op.c_type = KEEL_F32;
        d.op.m = d.op.m < 9 ? d.op.m : 9; /* a few rows will do */
        char what[200];
        describe(&d, trial, what, sizeof what);
        fill_all(&d, (enum numbers)(trial % NUMBERS));
        run(&rig[0], kernels_of[0], &d, given, &found);
        for (uint32_t batch = 0; batch < d.op.batch; batch++)
            for (uint32_t i = 0; i < d.op.m; i++)
                for (uint32_t j = 0; j < d.op.n; j += 1 + j / 8) {
                    const float right = wanted_sum(&d, given, batch, i, j, n, a, b);
                    const float is =
                        element(found.c, batch * d.op.stride_c + (uint64_t)i * d.op.ldc + j, KEEL_F32);
                    ck_assert_msg(memcmp(&is, &right, 4) == 0 || (isnan(is) && isnan(right)),
                                  "%s: element %u, %u of %u is %a, and %a is defined", what, i, j, batch,
                                  (double)is, (double)right);
                }
    }
    close_ways(1);
}
END_TEST

/* Of each class, so many to a test: libcheck ends with an error where one took more than 35 minutes. */
enum { PART = 500, CLASSES = sizeof classes / sizeof classes[0] };
static int trials_wanted(void)
{
    const char *asked = getenv("KEEL_EXACT8_TRIALS");
    return asked != NULL ? atoi(asked) : TRIALS;
}

START_TEST(random_products_have_the_same_bits_everywhere)
{
    const int part = _i / CLASSES, left = trials_wanted() - part * PART;
    draws = 1000000 * (1 + (uint32_t)part);
    open_ways(classes[_i % CLASSES], WAYS);
    for (int trial = 0; trial < (left < PART ? left : PART); trial++) {
        const struct drawn d = draw_product();
        char what[300], at[200];
        describe(&d, trial, at, sizeof at);
        fill_all(&d, (enum numbers)(trial % NUMBERS));
        run(&rig[0], kernels_of[0], &d, given, &wanted);
        for (int w = 1; w < WAYS; w++) {
            snprintf(what, sizeof what, "%s, %s", ways[w].name, at);
            run(&rig[ways[w].device], kernels_of[w], &d, given, &found);
            same(what, "C", found.c, wanted.c, d.op.c_type);
            same(what, "pre", found.pre, wanted.pre, d.op.c_type);
            ck_assert_msg(found.report[0] == 0, "%s: a checksum does not match C", what);
        }
    }
    close_ways(WAYS);
}
END_TEST

/* |C - AB| of a block of k <= the block's length x 2^(ea + eb) x what digits lose, and the roundings of fp32
 * of its value and of the sum over blocks. */
START_TEST(the_error_is_within_its_bound)
{
    const uint32_t n = _i == 0 ? 2 : 3;
    static float a[4096], b[4096];
    const double lost = n == 2 ? 3 * 0x1p-16 : 4.1 * 0x1p-24;
    double worst = 0;
    draws = 77;
    open_ways(classes[_i], 1);
    for (int trial = 0; trial < 60; trial++) {
        struct drawn d = draw_product();
        d.end = END_NONE;
        d.op.accumulate = d.op.chain = d.bias = false;
        d.op.a_type = d.op.b_type = d.op.c_type = KEEL_F32;
        d.op.k_slices = (struct keel_slices){0};
        d.op.lda += d.op.transpose_a ? 0 : d.op.k; /* k may have been that of slices */
        fill_all(&d, (enum numbers)(trial % HOSTILE));
        run(&rig[0], kernels_of[0], &d, given, &found);
        for (uint32_t i = 0; i < d.op.m; i++)
            for (uint32_t j = 0; j < d.op.n; j++) {
                double exact = 0, bound = 0, sizes = 0;
                (void)wanted_sum(&d, given, 0, i, j, n, a, b);
                for (uint32_t at = 0; at < d.op.k; at += BLOCK) {
                    const uint32_t length = d.op.k - at < BLOCK ? d.op.k - at : BLOCK;
                    float most_a = 0, most_b = 0;
                    for (uint32_t p = at; p < at + length; p++) {
                        exact += (double)a[p] * (double)b[p];
                        sizes += fabs((double)a[p] * (double)b[p]);
                        most_a = fmaxf(most_a, fabsf(a[p]));
                        most_b = fmaxf(most_b, fabsf(b[p]));
                    }
                    bound += length * lost * (256.0 / 127 * most_a) * (256.0 / 127 * most_b) +
                             length * 0x1p-126 * ((double)most_a + (double)most_b + 1);
                }
                const uint32_t blocks = (d.op.k + BLOCK - 1) / BLOCK;
                bound += (blocks + 4) * 0x1p-24 * (sizes + bound) + 0x1p-126;
                const double is = (double)element(found.c, (uint64_t)i * d.op.ldc + j, KEEL_F32);
                if (sizes > 0x1p127) /* partial sums may overflow */
                    continue;
                ck_assert_msg(fabs(is - exact) <= bound,
                              "product %d: element %u, %u is %a, exactly %a: off by %a, bound %a", trial, i,
                              j, is, exact, fabs(is - exact), bound);
                worst = fmax(worst, fabs(is - exact) / bound);
            }
    }
    printf("exact8x%u: errors of at most %.2f of the bound\n", n, worst);
    close_ways(1);
}
END_TEST

/* k may be cut into pieces of whole blocks, as the loss does, and has the bits of the whole. */
START_TEST(a_chain_of_pieces_has_the_bits_of_the_whole)
{
    enum { M = 9, N = 50, K = 2700 };
    open_ways(classes[_i], WAYS);
    fill(numbers[0], ORDINARY, 1, KEEL_F32);
    fill(numbers[1], WIDE, 2, KEEL_F32);
    for (int w = 0; w < WAYS; w++) {
        struct rig_device *on = &rig[ways[w].device];
        struct keel_gemm op = {
            .m = M, .n = N, .k = K, .batch = 1, .transpose_a = true, .lda = M, .ldb = N, .ldc = N};
        static float whole[M * N], pieces[M * N];
        op.a = rig_buffer(on, numbers[0], BUFFER_FLOATS * 4);
        struct keel_buffer *b = op.b = rig_buffer(on, NULL, (uint64_t)K * N * 4);
        float *filled = rig_numbers(2, (uint64_t)K * N);
        ck_ok(keel_queue_write(on->queue, b, 0, filled, (uint64_t)K * N * 4, NULL, NULL));
        op.c = rig_buffer(on, NULL, sizeof whole);
        op.planes = rig_buffer(on, NULL, keel_gemm_planes_bytes(kernels_of[w], &op));
        struct keel_launch_list list = {0};
        ck_ok(keel_op_gemm(kernels_of[w], &op, &list));
        rig_run(on, &list);
        rig_read(on, op.c, whole);
        for (uint32_t at = 0; at < K; at += BLOCK) {
            struct keel_gemm piece = op;
            piece.k = K - at < BLOCK ? K - at : BLOCK;
            piece.chain = at > 0;
            piece.a = rig_buffer(on, numbers[0] + (uint64_t)at * M * 4, (uint64_t)piece.k * M * 4);
            piece.b = rig_buffer(on, filled + (uint64_t)at * N, (uint64_t)piece.k * N * 4);
            struct keel_launch_list one = {0};
            ck_ok(keel_op_gemm(kernels_of[w], &piece, &one));
            rig_run(on, &one);
        }
        rig_read(on, op.c, pieces);
        ck_assert_msg(memcmp(whole, pieces, sizeof whole) == 0, "%s", ways[w].name);
        free(filled);
        rig_clear(on);
    }
    close_ways(WAYS);
}
END_TEST

/* 2^-126 less 3/4, 1/2 and 1/4 of 2^-150: a zero, then twice 2^-126, on which the second is a tie. Where
 * denormals are to be had all three round to 2^-126. */
START_TEST(sums_below_the_least_normal_number_are_zero)
{
    enum { N = 3 };
    static const float a[2] = {0x1p-75F, 0x1p-63F};
    static const float b[2 * N] = {-0x1.8p-76F, -0x1p-76F, -0x1p-77F, 0x1p-63F, 0x1p-63F, 0x1p-63F};
    static const float right[N] = {0, 0x1p-126F, 0x1p-126F};
    open_ways(KEEL_CLASS_BF16, WAYS);
    for (int w = 0; w < WAYS; w++) {
        struct rig_device *on = &rig[ways[w].device];
        struct keel_gemm op = {.m = 1, .n = N, .k = 2, .batch = 1, .lda = 2, .ldb = N, .ldc = N};
        float is[N];
        struct keel_launch_list list = {0};
        op.a = rig_buffer(on, a, sizeof a);
        op.b = rig_buffer(on, b, sizeof b);
        op.c = rig_buffer(on, NULL, sizeof is);
        op.planes = rig_buffer(on, NULL, keel_gemm_planes_bytes(kernels_of[w], &op));
        ck_ok(keel_op_gemm(kernels_of[w], &op, &list));
        rig_run(on, &list);
        rig_read(on, op.c, is);
        ck_assert_msg(memcmp(is, right, sizeof is) == 0, "%s: %a, %a, %a", ways[w].name, (double)is[0],
                      (double)is[1], (double)is[2]);
        rig_clear(on);
    }
    close_ways(WAYS);
}
END_TEST

/* Without planes a product of such kernels is canonical; planes that are too small are refused. */
START_TEST(planes_make_a_product_exact)
{
    enum { SIDE = 40 };
    open_ways(classes[_i], WAYS);
    static float plain[SIDE * SIDE], exact[SIDE * SIDE], canonical[SIDE * SIDE];
    float *const out[] = {canonical, plain, exact};
    fill(numbers[0], ORDINARY, 1, KEEL_F32);
    for (int run_of = 0; run_of < 3; run_of++) {
        struct keel_kernels *kernels = run_of == 0 ? rig[1].kernels : kernels_of[1];
        struct keel_gemm op = {
            .m = SIDE, .n = SIDE, .k = SIDE, .batch = 1, .lda = SIDE, .ldb = SIDE, .ldc = SIDE};
        ck_assert_uint_eq(keel_gemm_planes_bytes(rig[1].kernels, &op), 0);
        op.a = rig_buffer(&rig[1], numbers[0], BUFFER_FLOATS * 4);
        op.b = rig_buffer(&rig[1], numbers[0], BUFFER_FLOATS * 4);
        op.c = rig_buffer(&rig[1], NULL, sizeof plain);
        const uint64_t bytes = keel_gemm_planes_bytes(kernels_of[1], &op);
        op.planes = run_of < 2 ? NULL : rig_buffer(&rig[1], NULL, bytes);
        struct keel_launch_list list = {0};
        ck_ok(keel_op_gemm(kernels, &op, &list));
        rig_run(&rig[1], &list);
        rig_read(&rig[1], op.c, out[run_of]);
        op.planes = rig_buffer(&rig[1], NULL, bytes - 4);
        ck_status(run_of == 0 ? KEEL_INVALID : keel_op_gemm(kernels, &op, &list), KEEL_INVALID);
        keel_launch_list_fini(&list);
        rig_clear(&rig[1]);
    }
    ck_assert_int_eq(memcmp(canonical, plain, sizeof plain), 0);
    ck_assert_int_ne(memcmp(exact, plain, sizeof plain), 0);
    close_ways(WAYS);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, the_host_computes_what_is_defined, 0, 3);
    tcase_add_loop_test(tc, random_products_have_the_same_bits_everywhere, 0,
                        CLASSES * ((trials_wanted() + PART - 1) / PART));
    tcase_add_loop_test(tc, the_error_is_within_its_bound, 0, 2);
    tcase_add_loop_test(tc, a_chain_of_pieces_has_the_bits_of_the_whole, 0, 3);
    tcase_add_test(tc, sums_below_the_least_normal_number_are_zero);
    tcase_add_loop_test(tc, planes_make_a_product_exact, 0, 3);
}

KEEL_TEST_MAIN("exact8", cases, getenv("KEEL_EXACT8_TRIALS") != NULL ? 86400 : 900)
