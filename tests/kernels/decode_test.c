/* decode_test.c - attention of the newest token to kept keys and values: the bits of the row that attention
 * of all tokens computes, token after token, on every device; against double; positions out of range;
 * descriptors. */
#include "device_rig.h"
#include <keel/attention_ops.h>
#include <keel/memory.h>
#include <math.h>
#include <string.h>

struct shape {
    uint32_t batch, tokens, heads, kv_heads, width, capacity, window, alibi_heads;
};
static const struct shape shapes[] = {
    {1, 1, 1, 1, 1, 16, 0, 0},   {2, 19, 3, 3, 5, 32, 0, 0},  {1, 40, 2, 2, 64, 48, 0, 0},
    {3, 33, 1, 1, 17, 48, 0, 0}, {2, 21, 6, 2, 5, 32, 0, 0},  {1, 130, 2, 1, 16, 144, 0, 0},
    {2, 45, 3, 3, 9, 48, 7, 0},  {1, 70, 6, 2, 5, 80, 33, 6}, {1, 1040, 1, 1, 3, 1040, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], LONG = 1024 /* of these only several tokens at a time */ };
static const enum keel_class classes[] = {KEEL_CANONICAL, KEEL_EXACT8X2, KEEL_EXACT8X3, KEEL_CLASS_BF16};
static const double tolerances[] = {2e-6, 0x1p-12, 0x1p-18, 0x1p-5};
enum { CLASSES = sizeof classes / sizeof classes[0] };

static uint64_t row_of(const struct shape *s)
{
    return (uint64_t)s->heads * s->width;
}

/* Of all tokens at once: [batch, tokens, heads, width]. */
static float *attend_all(const struct shape *s, struct rig_device *on, const float *qkv)
{
    struct keel_launch_list list = {0};
    struct keel_attention op = {.batch = s->batch,
                                .tokens = s->tokens,
                                .heads = s->heads,
                                .head_width = s->width,
                                .window = s->window,
                                .alibi = {s->alibi_heads, 0},
                                .of_class = true};
    const uint64_t count = s->batch * s->tokens * row_of(s);
    float *out = rig_numbers(0, count);
    op.qkv = rig_buffer(on, qkv, 3 * count * sizeof *qkv);
    op.out = rig_buffer(on, NULL, count * sizeof *out);
    op.stats = rig_buffer(on, NULL, 2 * (uint64_t)s->batch * s->tokens * s->heads * sizeof *out);
    const uint64_t workspace = keel_attention_workspace_bytes(on->kernels, &op);
    if (workspace > 0)
        op.workspace = rig_buffer(on, NULL, workspace);
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    keel_attention_part_bytes(on->kernels, &op, false, bytes);
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++)
        if (bytes[i] > 0)
            op.parts[i] = rig_buffer(on, NULL, bytes[i]);
    ck_ok(keel_op_attention(on->kernels, &op, &list));
    rig_run(on, &list);
    rig_read(on, op.out, out);
    rig_clear(on);
    return out;
}

/* Heads that share keys and values have the same ones. */
static void share_heads(const struct shape *s, float *qkv)
{
    const uint64_t row = row_of(s), group = s->heads / s->kv_heads;
    for (uint64_t part = 1; part < 3ULL * s->batch * s->tokens; part += part % 3 == 1 ? 1 : 2)
        for (uint64_t h = 0; h < s->heads; h++)
            memmove(qkv + part * row + h * s->width, qkv + part * row + h / group * group * s->width,
                    s->width * sizeof *qkv);
}

static uint64_t decoded_row(const struct shape *s)
{
    return (uint64_t)(s->heads + 2 * s->kv_heads) * s->width;
}

/* Token t of each sequence, dense: its queries, and each key and value once. */
static void take_rows(const struct shape *s, const float *qkv, uint32_t t, float *out)
{
    const uint64_t group = s->heads / s->kv_heads;
    for (uint32_t b = 0; b < s->batch; b++) {
        const float *from = qkv + ((uint64_t)b * s->tokens + t) * 3 * row_of(s);
        for (uint64_t h = 0; h < s->heads + 2ULL * s->kv_heads; h++, out += s->width) {
            const uint64_t head = h < s->heads ? h
                                               : s->heads + (h - s->heads) / s->kv_heads * s->heads +
                                                     (h - s->heads) % s->kv_heads * group;
            memcpy(out, from + head * s->width, s->width * sizeof *out);
        }
    }
}

/* The same, token after token, in a cache that held something else before. */
static float *attend_each(const struct shape *s, struct rig_device *on, const float *qkv)
{
    const uint64_t row = row_of(s), rows = s->batch * row, in = s->batch * decoded_row(s);
    struct keel_attention_decode op = {.batch = s->batch,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_width = s->width,
                                       .capacity = s->capacity,
                                       .window = s->window,
                                       .alibi = {s->alibi_heads, 0},
                                       .of_class = true};
    float *out = rig_numbers(0, s->tokens * rows), *now = rig_numbers(0, in), *o = rig_numbers(0, rows);
    float *dirty = rig_numbers(9, 2 * rows * s->capacity);
    int32_t position[4];
    op.cache = rig_buffer(on, dirty, keel_attention_decode_cache_bytes(&op));
    op.qkv = rig_buffer(on, NULL, in * sizeof *now);
    op.position = rig_buffer(on, NULL, s->batch * sizeof *position);
    op.out = rig_buffer(on, NULL, rows * sizeof *o);
    op.workspace = rig_buffer(on, NULL, keel_attention_decode_workspace_bytes(&op));
    struct keel_launch_list list = {0};
    ck_ok(keel_op_attention_decode(on->kernels, &op, &list));
    for (uint32_t t = 0; t < s->tokens; t++) {
        take_rows(s, qkv, t, now);
        for (uint32_t b = 0; b < s->batch; b++)
            position[b] = (int32_t)t;
        ck_ok(keel_queue_write(on->queue, op.qkv, 0, now, in * sizeof *now, NULL, NULL));
        ck_ok(keel_queue_write(on->queue, op.position, 0, position, s->batch * sizeof *position, NULL, NULL));
        ck_ok(keel_launch_list_run(&list, on->queue));
        rig_read(on, op.out, o);
        for (uint32_t b = 0; b < s->batch; b++)
            memcpy(out + ((uint64_t)b * s->tokens + t) * row, o + b * row, keel_size(row * sizeof *o));
    }
    keel_launch_list_fini(&list);
    rig_clear(on);
    free(now);
    free(o);
    free(dirty);
    return out;
}

/* The same, SPAN tokens of a sequence at a time, the sequences by turns in one cache. */
static float *attend_spans(const struct shape *s, struct rig_device *on, const float *qkv)
{
    enum { SPAN = 7 };
    const uint64_t row = row_of(s), in = decoded_row(s);
    struct keel_attention_decode op = {.batch = SPAN,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_width = s->width,
                                       .capacity = s->capacity,
                                       .window = s->window,
                                       .alibi = {s->alibi_heads, 0},
                                       .of_class = true,
                                       .slots = s->batch};
    float *out = rig_numbers(0, s->batch * s->tokens * row), *now = rig_numbers(0, s->batch * in);
    float *o = rig_numbers(0, SPAN * row), *rows = rig_numbers(0, SPAN * in);
    op.cache = rig_buffer(on, NULL, keel_attention_decode_cache_bytes(&op));
    op.qkv = rig_buffer(on, NULL, SPAN * in * sizeof *rows);
    op.position = rig_buffer(on, NULL, SPAN * sizeof(int32_t));
    op.slot = rig_buffer(on, NULL, SPAN * sizeof(int32_t));
    op.out = rig_buffer(on, NULL, SPAN * row * sizeof *o);
    op.workspace = rig_buffer(on, NULL, keel_attention_decode_workspace_bytes(&op));
    struct keel_launch_list list = {0};
    ck_ok(keel_op_attention_decode(on->kernels, &op, &list));
    for (uint32_t first = 0; first < s->tokens; first += SPAN)
        for (uint32_t b = 0; b < s->batch; b++) {
            int32_t position[SPAN], slot[SPAN];
            for (uint32_t i = 0; i < SPAN; i++) {
                const bool there = first + i < s->tokens;
                position[i] = there ? (int32_t)(first + i) : -1;
                slot[i] = there ? (int32_t)b : (int32_t)s->batch; /* a sequence that is not there */
                if (there)
                    take_rows(s, qkv, first + i, now);
                memcpy(rows + i * in, now + b * in, keel_size(in * sizeof *rows));
            }
            ck_ok(keel_queue_write(on->queue, op.qkv, 0, rows, SPAN * in * sizeof *rows, NULL, NULL));
            ck_ok(keel_queue_write(on->queue, op.position, 0, position, sizeof position, NULL, NULL));
            ck_ok(keel_queue_write(on->queue, op.slot, 0, slot, sizeof slot, NULL, NULL));
            ck_ok(keel_launch_list_run(&list, on->queue));
            rig_read(on, op.out, o);
            for (uint32_t i = 0; i < SPAN && first + i < s->tokens; i++)
                memcpy(out + ((uint64_t)b * s->tokens + first + i) * row, o + i * row,
                       keel_size(row * sizeof *o));
        }
    keel_launch_list_fini(&list);
    rig_clear(on);
    free(now);
    free(o);
    free(rows);
    return out;
}

/* Of six heads, as the paper's program gives them. */
static const double slopes[6] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};

static void attend_true(const struct shape *s, const float *qkv, double *out)
{
    const uint64_t row = row_of(s);
    double *e = calloc(s->tokens, sizeof *e);
    ck_assert_ptr_nonnull(e);
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint64_t h = 0; h < s->heads; h++)
            for (uint64_t i = 0; i < s->tokens; i++) {
                const float *q = qkv + (b * s->tokens + i) * 3 * row + h * s->width;
                double sum = 0;
                double *o = out + (b * s->tokens + i) * row + h * s->width;
                const uint64_t first = s->window > 0 && i >= s->window ? i - s->window + 1 : 0;
                for (uint64_t j = first; j <= i; j++) {
                    const float *k = qkv + (b * s->tokens + j) * 3 * row + row + h * s->width;
                    double dot = 0;
                    for (uint32_t d = 0; d < s->width; d++)
                        dot += (double)q[d] * (double)k[d];
                    const double bias = s->alibi_heads > 0 ? slopes[h] * (double)(i - j) : 0;
                    sum += e[j] = exp(dot / sqrt(s->width) - bias);
                }
                for (uint64_t j = first; j <= i; j++)
                    for (uint32_t d = 0; d < s->width; d++)
                        o[d] += e[j] / sum *
                                (double)qkv[(b * s->tokens + j) * 3 * row + 2 * row + h * s->width + d];
            }
    free(e);
}

/* Inputs below 1 in size: a score is off by less than width roundings of 2^-24, an exponential by as much
 * more, and the mean of values below 1 by twice that; in a class by units of its digits instead. */
START_TEST(each_token_has_the_bits_of_its_row_on_every_device)
{
    rig_open_class(classes[_i]);
    for (int n = 0; n < SHAPES; n++) {
        const struct shape *s = &shapes[n];
        const uint64_t count = s->batch * s->tokens * row_of(s);
        float *qkv = rig_numbers(1, 3 * count);
        share_heads(s, qkv);
        float *host = attend_all(s, &rig[0], qkv);
        double *truth = calloc(keel_size(count), sizeof *truth);
        ck_assert_ptr_nonnull(truth);
        attend_true(s, qkv, truth);
        for (uint64_t i = 0; i < count; i++)
            ck_assert_double_eq_tol((double)host[i], truth[i], tolerances[_i]);
        for (int d = 0; d < RIG_DEVICES; d++) {
            float *each = s->tokens < LONG ? attend_each(s, &rig[d], qkv) : NULL;
            if (each != NULL)
                rig_same_bits("attention_decode", d, each, host, count);
            free(each);
            float *spans = attend_spans(s, &rig[d], qkv);
            rig_same_bits("attention_decode of several tokens", d, spans, host, count);
            free(spans);
        }
        free(qkv);
        free(host);
        free(truth);
    }
    rig_close();
}
END_TEST

START_TEST(a_position_out_of_range_keeps_nothing_and_gives_zeros)
{
    rig_open();
    const int32_t positions[] = {-1, 16, INT32_MIN, INT32_MAX};
    for (int d = 0; d < RIG_DEVICES; d++) {
        struct rig_device *on = &rig[d];
        struct keel_launch_list list = {0};
        struct keel_attention_decode op = {
            .batch = 4, .heads = 2, .kv_heads = 2, .head_width = 5, .capacity = 16};
        float *cache = rig_numbers(3, 4 * 2 * 2 * 5 * 16), *after = rig_numbers(0, 4 * 2 * 2 * 5 * 16);
        float *qkv = rig_numbers(4, 4 * 3 * 10), *out = rig_numbers(5, 4 * 10);
        op.cache = rig_buffer(on, cache, keel_attention_decode_cache_bytes(&op));
        op.qkv = rig_buffer(on, qkv, 4 * 3 * 10 * sizeof *qkv);
        op.position = rig_buffer(on, positions, sizeof positions);
        op.out = rig_buffer(on, out, 4 * 10 * sizeof *out);
        op.workspace = rig_buffer(on, NULL, keel_attention_decode_workspace_bytes(&op));
        ck_ok(keel_op_attention_decode(on->kernels, &op, &list));
        rig_run(on, &list);
        rig_read(on, op.cache, after);
        rig_read(on, op.out, out);
        rig_same_bits("the cache", d, after, cache, 4 * 2 * 2 * 5 * 16);
        for (int i = 0; i < 4 * 10; i++)
            ck_assert(out[i] == 0);
        rig_clear(on);
        free(cache);
        free(after);
        free(qkv);
        free(out);
    }
    rig_close();
}
END_TEST

START_TEST(wrong_descriptors_are_refused_by_name)
{
    rig_open();
    struct rig_device *on = &rig[1];
    struct keel_launch_list list = {0};
    const struct keel_attention_decode sizes = {
        .batch = 2, .heads = 2, .kv_heads = 2, .head_width = 8, .capacity = 32};
    struct keel_attention_decode right = sizes;
    right.qkv = rig_buffer(on, NULL, 2 * 3 * 16 * sizeof(float));
    right.position = rig_buffer(on, NULL, 2 * sizeof(int32_t));
    right.cache = rig_buffer(on, NULL, keel_attention_decode_cache_bytes(&sizes));
    right.out = rig_buffer(on, NULL, 2 * 16 * sizeof(float));
    right.workspace = rig_buffer(on, NULL, keel_attention_decode_workspace_bytes(&sizes));
    struct keel_attention_decode op = right;
    op.capacity = 31;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "room for 31 tokens is no multiple of 16"));
    op.capacity = 0;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.capacity = 48; /* the cache is too small */
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.kv_heads = 0;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "0 heads of keys and values do not divide 2 heads"));
    op.heads = 3;
    op.kv_heads = 2;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.batch = 3;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.slots = 2; /* without saying whose rows they are */
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.position = NULL;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    op = right;
    op.out = op.qkv;
    ck_status(keel_op_attention_decode(on->kernels, &op, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    ck_ok(keel_op_attention_decode(on->kernels, &right, &list));
    keel_launch_list_fini(&list);
    rig_clear(on);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, each_token_has_the_bits_of_its_row_on_every_device, 0, CLASSES);
    tcase_add_test(tc, a_position_out_of_range_keeps_nothing_and_gives_zeros);
    tcase_add_test(tc, wrong_descriptors_are_refused_by_name);
}

KEEL_TEST_MAIN("decode", cases, 240)
