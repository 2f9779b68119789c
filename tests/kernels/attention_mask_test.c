/* attention_mask_test.c - what a query sees: windows, ALiBi, segments, keys of their own; random descriptors
 * of all of them against the formula in double, and the same bits on the host, on PoCL, and by groups of many
 * work-items. KEEL_ATTENTION_TRIALS=n draws n descriptors (make attention: 2,000 of each kind). */
#include "attention_rig.h"
#include "kernels_internal.h"

enum { TRIALS = 16, WAYS = 4 };
/* A share of the largest, and, where terms cancel, four units in the last place (2^-24 each) of the largest
 * sum of magnitudes: the product, its partner's, the exponential, the sum. Chosen so, and not proved, since a
 * proof's bound grows with the number of terms: of 1,350 results of random descriptors the worst had a
 * quarter of it. */
static const struct bound bound = {2e-6, 0x1p-22};

static void check_shape(const struct shape *s, struct rig_device *ways, int count)
{
    struct numbers n = draw_numbers(s);
    struct result host = attend(s, &ways[0], &n);
    check_against_double(s, &n, &host, &bound);
    for (int w = 1; w < count; w++) {
        struct result r = attend(s, &ways[w], &n);
        rig_same_bits("out", w % RIG_DEVICES, r.out, host.out, out_count(s));
        rig_same_bits("stats", w % RIG_DEVICES, r.stats, host.stats, stats_count(s));
        rig_same_bits("dq", w % RIG_DEVICES, r.dq, host.dq, q_count(s));
        rig_same_bits("dkv", w % RIG_DEVICES, r.dkv, host.dkv, kv_count(s));
        result_fini(&r);
    }
    result_fini(&host);
    numbers_fini(&n);
}

/* The devices of the rig, and PoCL's with 64 work-items to a group. */
static void open_ways(struct rig_device ways[WAYS])
{
    const struct keel_setting many = {"attention.items", 64};
    rig_open();
    memcpy(ways, rig, sizeof rig);
    ways[3] = rig[1];
    ck_ok(keel_kernels_create_with(rig[1].device,
                                   &(struct keel_kernels_options){.settings = &many, .setting_count = 1},
                                   &ways[3].kernels));
}
static void close_ways(struct rig_device ways[WAYS])
{
    keel_kernels_destroy(ways[3].kernels);
    rig_close();
}

/* ---- claims ---- */

static uint32_t trials(void)
{
    const char *asked = getenv("KEEL_ATTENTION_TRIALS");
    return asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : TRIALS;
}

START_TEST(random_masks_are_right_and_have_the_same_bits_everywhere)
{
    struct rig_device ways[WAYS];
    open_ways(ways);
    draws = (uint32_t)_i << 24;
    for (uint32_t trial = 0; trial < trials(); trial++) {
        const struct shape s = draw_shape(_i);
        check_shape(&s, ways, WAYS);
    }
    close_ways(ways);
}
END_TEST

/* Windows that end within and behind blocks of keys, many blocks long; more keys than are kept; heads as wide
 * as may be; all by other blocks, and in small local memory too. */
static const struct shape edges[] = {
    {1, 300, 2, 24, false, 70, 0, 0, {0, 0}, 0, 0, 0},
    {1, 300, 1, 8, true, 33, 0, 3, {0, 0}, 0, 0, 0},
    {1, 200, 2, 128, true, 150, 0, 0, {2, 0}, 0.2F, 0, 0},
    {2, 150, 3, 17, true, 0, 220, 4, {0, 0}, 0.2F, 0, 0},
    {1, 40, 2, 33, true, 0, 300, 0, {0, 0}, 0, 0, 0},
    {2, 150, 6, 17, false, 70, 0, 0, {6, 0}, 0.2F, 2, 0},
};

START_TEST(edges_of_blocks_change_no_bit)
{
    const struct keel_setting settings[] = {{"attention.block", 16}, {"attention.kept", 16}};
    struct rig_device ways[3];
    rig_open();
    struct keel_device_info small = *keel_device_info(rig[1].device);
    small.local_bytes = 32768;
    const struct keel_kernels_options options[] = {{.settings = settings, .setting_count = 2},
                                                   {.target = &small}};
    ways[0] = rig[0];
    for (int w = 0; w < 2; w++) {
        ways[1 + w] = rig[1];
        ck_ok(keel_kernels_create_with(rig[1].device, &options[w], &ways[1 + w].kernels));
    }
    for (size_t e = 0; e < sizeof edges / sizeof edges[0]; e++)
        check_shape(&edges[e], ways, 3);
    keel_kernels_destroy(ways[1].kernels);
    keel_kernels_destroy(ways[2].kernels);
    rig_close();
}
END_TEST

/* Sequences that are packed into one row have the bits of each alone, where they begin with an eight. */
START_TEST(a_packed_sequence_has_the_bits_of_itself_alone)
{
    rig_open();
    const struct shape packed = {1, 96, 2, 16, false, 0, 0, 2, {0, 0}, 0, 0, 0},
                       alone = {1, 48, 2, 16, false, 0, 0, 0, {0, 0}, 0, 0, 0};
    struct numbers n = draw_numbers(&packed);
    struct result both = attend(&packed, &rig[1], &n);
    for (uint64_t half = 0; half < 2; half++) {
        const struct numbers own = {.q = n.q + half * q_count(&alone),
                                    .dout = n.dout + half * out_count(&alone)};
        struct result r = attend(&alone, &rig[1], &own);
        rig_same_bits("out", 1, both.out + half * out_count(&alone), r.out, out_count(&alone));
        rig_same_bits("dqkv", 1, both.dq + half * q_count(&alone), r.dq, q_count(&alone));
        result_fini(&r);
    }
    result_fini(&both);
    numbers_fini(&n);
    rig_close();
}
END_TEST

/* ---- heads that share keys and values ---- */

/* Groups of two, three, six and twenty, over edges of eight heads; keys that were turned, and keys of their
 * own; heads that are packed, and that are not. */
static const struct shape shared[] = {
    {2, 37, 2, 6, false, 0, 0, 0, {0, 0}, 0, 1, 0},     {1, 70, 12, 10, false, 0, 0, 0, {0, 0}, 0, 4, 20},
    {2, 19, 20, 4, true, 7, 0, 2, {0, 0}, 0.2F, 1, 50}, {1, 67, 12, 34, false, 0, 0, 0, {12, 0}, 0, 2, 1e4F},
    {2, 21, 12, 5, true, 0, 71, 3, {0, 0}, 0.2F, 4, 0},
};

/* Part `part` of x, each shared row as often as there are heads that share it. */
static void repeat(const struct shape *s, const struct shape *all, int part, const float *x, float *to)
{
    for (uint64_t b = 0; b < s->batch; b++)
        for (uint64_t h = 0; h < s->heads; h++)
            for (uint64_t t = 0; t < (part == 0 ? s->tokens : keys_of(s)); t++)
                memcpy(to + row_at(all, part, b, h, t), x + row_at(s, part, b, h, t), s->width * sizeof *x);
}

/* The gradient of what is repeated and then turned, on the host. */
static void turn_back(const struct shape *s, float *dqkv)
{
    struct keel_launch_list list = {0};
    const struct keel_rotary op = {.batch = s->batch,
                                   .tokens = s->tokens,
                                   .heads = s->heads,
                                   .kv_heads = s->heads,
                                   .head_width = s->width,
                                   .base = s->base,
                                   .inverse = true,
                                   .qkv = rig_buffer(&rig[0], dqkv, q_count(s) * 4),
                                   .out = rig_buffer(&rig[0], NULL, q_count(s) * 4)};
    ck_ok(keel_op_rotary(rig[0].kernels, &op, &list));
    rig_run(&rig[0], &list);
    rig_read(&rig[0], op.out, dqkv);
    rig_clear(&rig[0]);
}

/* What all heads have of a part of the gradient, added, is what lies in x. */
static void same_sums(const struct shape *s, const struct shape *all, int way, int part, const float *of_all,
                      const float *x)
{
    uint32_t order[64];
    for (uint32_t kv = 0; kv < kv_heads_of(s); kv++)
        for (uint64_t row = 0; row < s->batch * (uint64_t)keys_of(s); row++) {
            const uint64_t b = row / keys_of(s), t = row % keys_of(s);
            const uint32_t count = share_order(s, kv, order);
            float sum[64] = {0};
            for (uint32_t n = 0; n < count; n++)
                for (uint32_t d = 0; d < s->width; d++)
                    sum[d] += of_all[row_at(all, part, b, order[n], t) + d];
            rig_same_bits(part == 1 ? "dk" : "dv", way % RIG_DEVICES,
                          x + row_at(s, part, b, (uint64_t)kv * count, t), sum, s->width);
        }
}

static void check_shared(const struct shape *s, struct rig_device *ways)
{
    struct shape all = *s;
    all.kv_heads = 0;
    all.base = 0;
    struct numbers n = draw_numbers(s), of_all = draw_numbers(&all);
    for (int part = 0; part < 3; part++)
        repeat(s, &all, part, part > 0 && s->keys > 0 ? n.kv : n.q,
               part > 0 && s->keys > 0 ? of_all.kv : of_all.q);
    struct result repeated = attend(&all, &ways[0], &of_all);
    all.base = s->base;
    if (s->base > 0)
        turn_back(&all, repeated.dq);
    float *dq = rig_numbers(9, q_count(&all));
    for (int w = 0; w < WAYS; w++) {
        struct result r = attend(s, &ways[w], &n);
        rig_same_bits("out", w % RIG_DEVICES, r.out, repeated.out, out_count(s));
        rig_same_bits("stats", w % RIG_DEVICES, r.stats, repeated.stats, stats_count(s));
        memcpy(dq, repeated.dq, q_count(&all) * sizeof *dq);
        repeat(s, &all, 0, r.dq, dq);
        rig_same_bits("dq", w % RIG_DEVICES, dq, repeated.dq, q_count(&all));
        for (int part = 1; part < 3; part++)
            same_sums(s, &all, w, part, s->keys > 0 ? repeated.dkv : repeated.dq, s->keys > 0 ? r.dkv : r.dq);
        result_fini(&r);
    }
    free(dq);
    result_fini(&repeated);
    numbers_fini(&n);
    numbers_fini(&of_all);
}

START_TEST(heads_that_share_keys_have_the_bits_of_keys_that_are_repeated)
{
    struct rig_device ways[WAYS];
    open_ways(ways);
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        for (first_head = 0; first_head < 8; first_head += 5) /* all heads, and some of more */
            check_shared(&shared[i], ways);
    first_head = 0;
    close_ways(ways);
}
END_TEST

/* A window that holds all is none, and so is ALiBi far from nothing: other bits only where it counts. */
START_TEST(a_window_of_all_tokens_is_none)
{
    rig_open();
    const struct shape none = {1, 70, 2, 16, true, 0, 0, 0, {0, 0}, 0.25F, 0, 0};
    struct shape all = none, less = none;
    all.window = 70;
    less.window = 69;
    struct numbers n = draw_numbers(&none);
    struct result a = attend(&none, &rig[1], &n), b = attend(&all, &rig[1], &n),
                  c = attend(&less, &rig[1], &n);
    rig_same_bits("out", 1, b.out, a.out, out_count(&none));
    rig_same_bits("dqkv", 1, b.dq, a.dq, q_count(&none));
    ck_assert_mem_ne(c.out, a.out, out_count(&none) * sizeof(float));
    result_fini(&a);
    result_fini(&b);
    result_fini(&c);
    numbers_fini(&n);
    rig_close();
}
END_TEST

START_TEST(masks_that_make_no_sense_are_refused_by_name)
{
    rig_open();
    struct keel_launch_list list = {0};
    struct keel_buffer *x = rig_buffer(&rig[0], NULL, 4096), *y = rig_buffer(&rig[0], NULL, 4096);
    const struct {
        struct keel_attention op;
        enum keel_status status;
        const char *says;
    } wrong[] = {
        {{.alibi = {1, 0}}, KEEL_INVALID, "ALiBi of 2 heads from head 0 on, there are 1"},
        {{.alibi = {4, 3}}, KEEL_INVALID, "ALiBi of 2 heads from head 3 on, there are 4"},
        {{.alibi = {KEEL_ALIBI_HEADS_MAX + 1, 0}}, KEEL_LIMIT, "at most 16384"},
        {{.keys = 4}, KEEL_INVALID, "4 keys or segments of keys, without kv"},
        {{.kv = x, .bidirectional = true}, KEEL_INVALID, "0 keys of their own"},
        {{.kv = x, .keys = 4}, KEEL_INVALID, "4 keys of their own, causal"},
        {{.kv = x, .keys = 4, .bidirectional = true, .window = 2}, KEEL_INVALID, "own, a window"},
        {{.kv = x, .keys = 4, .bidirectional = true, .alibi = {2, 0}}, KEEL_INVALID, "own, ALiBi"},
        {{.kv = x, .keys = 4, .bidirectional = true, .segments = x}, KEEL_INVALID, "give both"},
        {{.kv = x, .keys = 400, .bidirectional = true}, KEEL_INVALID, "kv"},
        {{.heads = 6, .kv_heads = 4}, KEEL_INVALID, "4 heads of keys do not divide 6 heads"},
        {{.tokens = 31, .head_width = 1, .heads = 1, .batch = 33, .segments = x}, KEEL_INVALID, "qkv"},
    };
    for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
        struct keel_attention op = wrong[w].op;
        op.batch = op.batch > 0 ? op.batch : 1;
        op.tokens = op.tokens > 0 ? op.tokens : 4;
        op.heads = op.heads > 0 ? op.heads : 2;
        op.head_width = op.head_width > 0 ? op.head_width : 8;
        op.qkv = x;
        op.out = op.stats = y;
        ck_status(keel_op_attention(rig[0].kernels, &op, &list), wrong[w].status);
        ck_assert_msg(strstr(keel_detail(), "attention") != NULL &&
                          strstr(keel_detail(), wrong[w].says) != NULL,
                      "\"%s\" lacks \"%s\"", keel_detail(), wrong[w].says);
    }
    const struct keel_attention_grad turned = {
        .forward = {.batch = 1, .tokens = 4, .heads = 2, .head_width = 8, .qkv = x, .out = y, .stats = y},
        .turned = {.base = 10}};
    struct keel_attention_grad op = turned;
    op.forward.stats = rig_buffer(&rig[0], NULL, 4096);
    ck_status(keel_op_attention_grad(rig[0].kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "queries and keys of one qkv, which heads share"));
    op.forward.kv_heads = 1;
    op.forward.workspace = rig_buffer(&rig[0], NULL, 65536); /* shared rows are packed */
    op.turned.base = 1;
    ck_status(keel_op_attention_grad(rig[0].kernels, &op, &list), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "base 1 is not in"));
    ck_assert_uint_eq(list.count, 0);
    keel_launch_list_fini(&list);
    rig_close();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, random_masks_are_right_and_have_the_same_bits_everywhere, 0, 4);
    tcase_add_test(tc, edges_of_blocks_change_no_bit);
    tcase_add_test(tc, a_packed_sequence_has_the_bits_of_itself_alone);
    tcase_add_test(tc, heads_that_share_keys_have_the_bits_of_keys_that_are_repeated);
    tcase_add_test(tc, a_window_of_all_tokens_is_none);
    tcase_add_test(tc, masks_that_make_no_sense_are_refused_by_name);
}

KEEL_TEST_MAIN("attention_mask", cases, getenv("KEEL_ATTENTION_TRIALS") != NULL ? 86400 : 240)
