/* golden_attention.c - golden cases of attention: see golden_core.c for what they are and how one is added.
 */
#include "golden_internal.h"

#include <keel/attention_ops.h>

enum { BIDIRECTIONAL = 1, ALIBI = 2, SEGMENTS = 4, TURNED = 8, SHARED = 16 /* times heads of keys */ };
/* batch, tokens, heads, width of a head, percent of the probabilities that are dropped, what of these,
 * window, keys of their own */
static uint64_t kv_count(const uint32_t *shape)
{
    const uint64_t heads = shape[5] >= SHARED ? shape[5] / SHARED : shape[2];
    return 2 * heads * shape[0] * (shape[7] > 0 ? shape[7] : shape[1]) * shape[3];
}
static uint64_t qkv_count(const uint32_t *shape)
{
    return (uint64_t)shape[0] * shape[1] * shape[2] * shape[3] + (shape[7] > 0 ? 0 : kv_count(shape));
}
static struct keel_attention attention_operands(struct golden_run *run, const uint32_t *shape)
{
    struct keel_attention op = {.batch = shape[0],
                                .tokens = shape[1],
                                .heads = shape[2],
                                .kv_heads = shape[5] / SHARED,
                                .head_width = shape[3],
                                .window = shape[6],
                                .keys = shape[7]};
    const uint64_t rows = (uint64_t)op.batch * op.tokens * op.heads;
    op.dropout_rate = (float)shape[4] * 0x1.47ae14p-7F;
    op.stream = 7;
    op.bidirectional = shape[5] & BIDIRECTIONAL;
    if (shape[5] & ALIBI)
        op.alibi = (struct keel_alibi){op.heads + 1, 1};
    op.qkv = golden_floats(run, "qkv", GOLDEN_INPUT, qkv_count(shape), -2.0F, 2.0F);
    if (op.keys > 0)
        op.kv = golden_floats(run, "kv", GOLDEN_INPUT, kv_count(shape), -2.0F, 2.0F);
    if (shape[5] & SEGMENTS)
        op.segments = golden_ids(run, "segments", (uint64_t)op.batch * op.tokens, 3);
    if (shape[5] & SEGMENTS && op.keys > 0)
        op.key_segments = golden_ids(run, "key_segments", (uint64_t)op.batch * op.keys, 3);
    op.out = golden_output(run, "out", rows * op.head_width);
    op.stats = golden_output(run, "stats", 2 * rows);
    if (shape[4])
        op.control = golden_control(run, 0.0F);
    return op;
}

/* What sizes follow from where there are no kernels, as of a case that is listed: its class. */
static const struct keel_kernels *sizes_of(const struct golden_run *run, struct keel_kernels *of_class)
{
    *of_class = (struct keel_kernels){.numerics = run->numerics};
    return run->kernels != NULL ? run->kernels : of_class;
}

/* Of a class. */
static void attention_parts(struct golden_run *run, bool gradient, struct keel_attention *op)
{
    struct keel_kernels of_class;
    uint64_t bytes[KEEL_ATTENTION_PARTS];
    keel_attention_part_bytes(sizes_of(run, &of_class), op, gradient, bytes);
    for (int i = 0; i < KEEL_ATTENTION_PARTS; i++)
        if (bytes[i] > 0)
            op->parts[i] = golden_scratch(run, "part", bytes[i]);
}

static enum keel_status attention_as(struct golden_run *run, const uint32_t *shape, bool of_class)
{
    struct keel_kernels sizes;
    struct keel_attention op = attention_operands(run, shape);
    op.of_class = of_class;
    const uint64_t bytes = keel_attention_workspace_bytes(sizes_of(run, &sizes), &op);
    if (bytes > 0)
        op.workspace = golden_scratch(run, "workspace", bytes);
    attention_parts(run, false, &op);
    return golden_ready(run) ? keel_op_attention(run->kernels, &op, &run->list) : KEEL_OK;
}
static enum keel_status attention(struct golden_run *run, const uint32_t *shape)
{
    return attention_as(run, shape, false);
}
static enum keel_status attention_class(struct golden_run *run, const uint32_t *shape)
{
    return attention_as(run, shape, true);
}

/* The gradient after its forward pass, which it needs. */
static enum keel_status attention_grad_as(struct golden_run *run, const uint32_t *shape, bool of_class)
{
    struct keel_kernels sizes;
    struct keel_attention_grad op = {.forward = attention_operands(run, shape)};
    op.forward.of_class = of_class;
    const uint64_t count = (uint64_t)shape[0] * shape[1] * shape[2] * shape[3];
    op.dout = GOLDEN_FLOATS(run, "dout", count);
    if (shape[5] & TURNED)
        op.turned.base = 500.0F;
    op.dqkv = golden_output(run, "dqkv", qkv_count(shape));
    if (op.forward.keys > 0)
        op.dkv = golden_output(run, "dkv", kv_count(shape));
    op.forward.workspace =
        golden_scratch(run, "workspace", keel_attention_grad_workspace_bytes(sizes_of(run, &sizes), &op));
    attention_parts(run, true, &op.forward);
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_attention(run->kernels, &op.forward, &run->list));
    return keel_op_attention_grad(run->kernels, &op, &run->list);
}
static enum keel_status attention_grad(struct golden_run *run, const uint32_t *shape)
{
    return attention_grad_as(run, shape, false);
}
static enum keel_status attention_grad_class(struct golden_run *run, const uint32_t *shape)
{
    return attention_grad_as(run, shape, true);
}

enum { IN_PLACE = 1, SLOWER = 2, LLAMA_3 = 4 };
/* batch, tokens, heads, width of a head, base, whether inverse (1) or of positions (2), what of these, heads
 * of keys (0: as many) */
static enum keel_status rotary(struct golden_run *run, const uint32_t *shape)
{
    struct keel_rotary op = {.batch = shape[0],
                             .tokens = shape[1],
                             .heads = shape[2],
                             .kv_heads = shape[7] != 0 ? shape[7] : shape[2],
                             .head_width = shape[3],
                             .base = (float)shape[4],
                             .inverse = shape[5] == 1};
    if (shape[6] & SLOWER)
        op.scaling = (struct keel_rotary_scaling){.factor = 4.0F};
    if (shape[6] & LLAMA_3)
        op.scaling = (struct keel_rotary_scaling){8.0F, 1.0F, 4.0F, 256};
    const uint64_t heads = op.heads + 2 * (uint64_t)op.kv_heads;
    const uint64_t count = heads * op.batch * op.tokens * op.head_width;
    op.qkv =
        golden_floats(run, "qkv", shape[6] & IN_PLACE ? GOLDEN_UPDATED : GOLDEN_INPUT, count, -2.0F, 2.0F);
    if (shape[5] == 2)
        op.position = golden_ids(run, "position", op.batch, 70000);
    op.out = shape[6] & IN_PLACE ? op.qkv : golden_output(run, "out", count);
    return golden_ready(run) ? keel_op_rotary(run->kernels, &op, &run->list) : KEEL_OK;
}

/* batch, heads, width of a head, room, what positions are below, heads of keys (0: as many), and slots. Keys
 * and values of tokens before are drawn. */
static enum keel_status attention_decode_as(struct golden_run *run, const uint32_t *shape, bool of_class)
{
    struct keel_attention_decode op = {.batch = shape[0],
                                       .heads = shape[1],
                                       .kv_heads = shape[5] != 0 ? shape[5] : shape[1],
                                       .head_width = shape[2],
                                       .capacity = shape[3],
                                       .slots = shape[6],
                                       .of_class = of_class};
    const uint64_t count = (uint64_t)op.batch * op.heads * op.head_width;
    const uint64_t shared = (uint64_t)op.batch * op.kv_heads * op.head_width;
    op.qkv = golden_floats(run, "qkv", GOLDEN_INPUT, count + 2 * shared, -2.0F, 2.0F);
    op.cache = golden_floats(run, "cache", GOLDEN_UPDATED,
                             keel_attention_decode_cache_bytes(&op) / sizeof(float), -2.0F, 2.0F);
    op.position = golden_ids(run, "position", op.batch, shape[4]);
    if (op.slots > 0)
        op.slot = golden_ids(run, "slot", op.batch, op.slots + 1);
    op.out = golden_output(run, "out", count);
    op.workspace = golden_scratch(run, "workspace", keel_attention_decode_workspace_bytes(&op));
    return golden_ready(run) ? keel_op_attention_decode(run->kernels, &op, &run->list) : KEEL_OK;
}
static enum keel_status attention_decode(struct golden_run *run, const uint32_t *shape)
{
    return attention_decode_as(run, shape, false);
}
static enum keel_status attention_decode_class(struct golden_run *run, const uint32_t *shape)
{
    return attention_decode_as(run, shape, true);
}

static const struct golden_case cases[] = {
    GOLDEN_CASE(attention, attention, "1x1x1x1", 0xe67b644d64b0eec3, 1, 1, 1, 1, 0),
    GOLDEN_CASE(attention, attention, "2x17x2x5-dropout", 0xe17b15945d81a471, 2, 17, 2, 5, 20),
    GOLDEN_CASE(attention, attention, "1x67x1x8", 0x3fa8c0a2f5762df6, 1, 67, 1, 8, 0),
    GOLDEN_CASE(attention, attention, "1x1x1x3-bidirectional", 0x4575cedf5719c036, 1, 1, 1, 3, 0, 1),
    GOLDEN_CASE(attention, attention, "2x23x3x5-bidirectional-dropout", 0x53d5076942cb729f, 2, 23, 3, 5, 20,
                1),
    GOLDEN_CASE(attention, attention, "1x67x5x17-bidirectional", 0xc80bb28a24ba3fd7, 1, 67, 5, 17, 0, 1),
    GOLDEN_CASE(attention, attention, "2x41x2x5-window-6", 0xfeca8d9e933c08dd, 2, 41, 2, 5, 0, 0, 6),
    GOLDEN_CASE(attention, attention, "1x70x3x9-bidirectional-window-19-alibi-dropout", 0x178713912d883940, 1,
                70, 3, 9, 20, BIDIRECTIONAL | ALIBI, 19),
    GOLDEN_CASE(attention, attention, "2x37x2x6-segments", 0x0cf0369460631a64, 2, 37, 2, 6, 0, SEGMENTS),
    GOLDEN_CASE(attention, attention, "1x29x5x8-alibi", 0xf954df1dbdd830e3, 1, 29, 5, 8, 0, ALIBI),
    GOLDEN_CASE(attention, attention, "2x19x3x7-of-71-keys-segments-dropout", 0x7f08a20662aee943, 2, 19, 3, 7,
                20, BIDIRECTIONAL | SEGMENTS, 0, 71),
    GOLDEN_CASE(attention, attention, "1x67x2x5-of-3-keys", 0xec608238d15b5770, 1, 67, 2, 5, 0, BIDIRECTIONAL,
                0, 3),
    GOLDEN_CASE(attention, attention, "2x37x6x5-by-2-window-9-dropout", 0xc0562638863600c0, 2, 37, 6, 5, 20,
                2 * SHARED, 9),
    GOLDEN_CASE(attention, attention, "1x67x12x8-by-4", 0x861af27e652d9d0a, 1, 67, 12, 8, 0, 4 * SHARED),
    GOLDEN_CASE(attention, attention, "2x19x6x7-by-3-of-71-keys-segments", 0x751a57c06fb99351, 2, 19, 6, 7, 0,
                BIDIRECTIONAL | SEGMENTS | 3 * SHARED, 0, 71),
    GOLDEN_CASE(attention_grad, attention, "1x1x1x1", 0x721b577c31a34ca9, 1, 1, 1, 1, 0),
    GOLDEN_CASE(attention_grad, attention, "2x17x2x5-dropout", 0xdc8eeb3261fc0cca, 2, 17, 2, 5, 20),
    GOLDEN_CASE(attention_grad, attention, "1x67x1x8", 0xa820b98dee93c0b4, 1, 67, 1, 8, 0),
    GOLDEN_CASE(attention_grad, attention, "1x1x1x3-bidirectional", 0x4873f1b181b95563, 1, 1, 1, 3, 0, 1),
    GOLDEN_CASE(attention_grad, attention, "2x23x3x5-bidirectional-dropout", 0x11c8a1e61f8150ff, 2, 23, 3, 5,
                20, 1),
    GOLDEN_CASE(attention_grad, attention, "1x67x5x17-bidirectional", 0xbf100891d1b6ce69, 1, 67, 5, 17, 0, 1),
    GOLDEN_CASE(attention_grad, attention, "2x41x2x5-window-6", 0x5369c85f638bac16, 2, 41, 2, 5, 0, 0, 6),
    GOLDEN_CASE(attention_grad, attention, "1x70x3x9-bidirectional-window-19-alibi-dropout",
                0xd5cf313858ef4984, 1, 70, 3, 9, 20, BIDIRECTIONAL | ALIBI, 19),
    GOLDEN_CASE(attention_grad, attention, "2x37x2x6-segments", 0x8dce372a6bfa6ebd, 2, 37, 2, 6, 0, SEGMENTS),
    GOLDEN_CASE(attention_grad, attention, "1x29x5x8-alibi", 0x52470b2d80b12fc7, 1, 29, 5, 8, 0, ALIBI),
    GOLDEN_CASE(attention_grad, attention, "2x19x3x7-of-71-keys-segments-dropout", 0xf70132056268caf8, 2, 19,
                3, 7, 20, BIDIRECTIONAL | SEGMENTS, 0, 71),
    GOLDEN_CASE(attention_grad, attention, "1x67x2x5-of-3-keys", 0x51e01cd8782f8561, 1, 67, 2, 5, 0,
                BIDIRECTIONAL, 0, 3),
    GOLDEN_CASE(attention_grad, attention, "2x37x6x5-by-2-window-9-dropout", 0x389f6d5abb535476, 2, 37, 6, 5,
                20, 2 * SHARED, 9),
    GOLDEN_CASE(attention_grad, attention, "1x67x12x8-by-4-turned", 0xad6af74089f32b3e, 1, 67, 12, 8, 0,
                TURNED | 4 * SHARED),
    GOLDEN_CASE(attention_grad, attention, "2x19x6x7-by-3-of-71-keys-segments", 0xd5c02cac5c023c74, 2, 19, 6,
                7, 0, BIDIRECTIONAL | SEGMENTS | 3 * SHARED, 0, 71),
    GOLDEN_CASE(attention_decode, decode, "1x1x1-of-16", 0x53d43a2bf64b4814, 1, 1, 1, 16, 1),
    GOLDEN_CASE(attention_decode, decode, "3x5x17-of-48", 0xfd8a119bed3a2880, 3, 5, 17, 48, 48),
    GOLDEN_CASE(attention_decode, decode, "2x2x64-of-272", 0xbe10900304cc7de8, 2, 2, 64, 272, 272),
    GOLDEN_CASE(attention_decode, decode, "3x6x17-of-48-by-2", 0x05a26305087f0453, 3, 6, 17, 48, 48, 2),
    GOLDEN_CASE(attention_decode, decode, "5x2x17-of-32-in-3", 0x3e7d56e4bdf32511, 5, 2, 17, 32, 32, 1, 3),
    GOLDEN_CASE(rotary, rotary, "1x1x1x2", 0xde78e79658d63723, 1, 1, 1, 2, 10000, 0, 0),
    GOLDEN_CASE(rotary, rotary, "2x37x3x10", 0x67b823f092f7c5a7, 2, 37, 3, 10, 10000, 0, 0),
    GOLDEN_CASE(rotary, rotary, "1x331x2x12-slower", 0x6aecea6b64d92e3a, 1, 331, 2, 12, 10000, 0, SLOWER),
    GOLDEN_CASE(rotary, rotary, "2x1030x1x34-llama3", 0xd1bab7dc651389d4, 2, 1030, 1, 34, 500, 0, LLAMA_3),
    GOLDEN_CASE(rotary, rotary, "1x1201x1x64-inverse", 0x816f5640f38400ea, 1, 1201, 1, 64, 500, 1, 0),
    GOLDEN_CASE(rotary, rotary, "3x5x2x18-in-place", 0x1d7b751f06790194, 3, 5, 2, 18, 10000, 0, 1),
    GOLDEN_CASE(rotary, rotary, "5x1x4x34-by-2-positions", 0x02c24c8e3909cae8, 5, 1, 4, 34, 10000, 2, 0, 2),
};

const struct golden_family golden_attention = {cases, sizeof cases / sizeof cases[0], KEEL_CANONICAL};

/* Of the classes: the hash in two digits, in three, and in bf16. */
#define CLASS_ROWS(X)                                                                                        \
    X(attention_class, "attention", attention_class, "1x1x1x1", 0xd8106e453be0cbdf, 0xb7be8d338b556b6e,      \
      0xa087cbb6df8c5e77, 1, 1, 1, 1, 0)                                                                     \
    X(attention_class, "attention", attention_class, "2x17x2x5-dropout", 0xfbe5f0822fd7b065,                 \
      0x7d7d48d362bdbd9e, 0x22186f97452d6bfc, 2, 17, 2, 5, 20)                                               \
    X(attention_class, "attention", attention_class, "1x67x5x17-bidirectional", 0xdb606bc5f9d0d4c0,          \
      0xd8c56c3b0ceeea21, 0x4670a6bdc31d0c46, 1, 67, 5, 17, 0, BIDIRECTIONAL)                                \
    X(attention_class, "attention", attention_class, "1x70x3x9-bidirectional-window-19-alibi-dropout",       \
      0x0d7eec74e8656cad, 0x14f5052b216beab2, 0x6f728e1be0a58169, 1, 70, 3, 9, 20, BIDIRECTIONAL | ALIBI,    \
      19)                                                                                                    \
    X(attention_class, "attention", attention_class, "2x37x2x6-segments", 0x140ec12a57171b6e,                \
      0xbaa29f5f39f790d2, 0xb79a8f3ecffcf356, 2, 37, 2, 6, 0, SEGMENTS)                                      \
    X(attention_class, "attention", attention_class, "2x19x3x7-of-71-keys-segments-dropout",                 \
      0x4b96ebf593494fad, 0x720d7896d167cb7e, 0x8c9084710afc4985, 2, 19, 3, 7, 20, BIDIRECTIONAL | SEGMENTS, \
      0, 71)                                                                                                 \
    X(attention_class, "attention", attention_class, "1x7x1x4-of-1100-keys", 0x064a6b9ec7add994,             \
      0xb735c9a6f9e4c4fd, 0xddc6cab3c2b1061c, 1, 7, 1, 4, 0, BIDIRECTIONAL, 0, 1100)                         \
    X(attention_class, "attention", attention_class, "1x1063x1x4-of-9-keys", 0xce597d4edadfeb99,             \
      0x72546cea53161692, 0x36226c01cd67c869, 1, 1063, 1, 4, 0, BIDIRECTIONAL, 0, 9)                         \
    X(attention_class, "attention", attention_class, "2x37x6x6-by-2-dropout", 0xf6fa9f7421e0c6bf,            \
      0xaf93c9b217cbc25d, 0x34071afdbc3c417d, 2, 37, 6, 6, 20, 2 * SHARED)                                   \
    X(attention_grad_class, "attention_grad", attention_class, "2x37x6x6-by-2-dropout-turned",               \
      0x283ae633a9cda6eb, 0x0a144513f978165a, 0x9494be28f12c036c, 2, 37, 6, 6, 20, TURNED | 2 * SHARED)      \
    X(attention_grad_class, "attention_grad", attention_class, "1x1x1x1", 0x8967e1e4b1ea2d4d,                \
      0x28fbe9ffa88c18c9, 0xc78eb9b4d456a020, 1, 1, 1, 1, 0)                                                 \
    X(attention_grad_class, "attention_grad", attention_class, "2x17x2x5-dropout", 0x88ad8f2c84af1a65,       \
      0xda8e66457411a615, 0xe7c1c413347cd277, 2, 17, 2, 5, 20)                                               \
    X(attention_grad_class, "attention_grad", attention_class, "1x67x5x17-bidirectional",                    \
      0x7daeb29b5d7b84fc, 0x7b17e3687a24f134, 0x2303c6b0591a63e5, 1, 67, 5, 17, 0, BIDIRECTIONAL)            \
    X(attention_grad_class, "attention_grad", attention_class,                                               \
      "1x70x3x9-bidirectional-window-19-alibi-dropout", 0x6a30c4cf36de89be, 0xd72945ba25bff40b,              \
      0xa4dde095d5d1354c, 1, 70, 3, 9, 20, BIDIRECTIONAL | ALIBI, 19)                                        \
    X(attention_grad_class, "attention_grad", attention_class, "2x37x2x6-segments", 0x02b494228a1cb286,      \
      0x034c7fed9cb9c7eb, 0x0230c9260cf42ca0, 2, 37, 2, 6, 0, SEGMENTS)                                      \
    X(attention_grad_class, "attention_grad", attention_class, "2x19x3x7-of-71-keys-segments-dropout",       \
      0x0d6443e868ab7060, 0xa38be6f938353f2e, 0x9e1f9e84d57884d2, 2, 19, 3, 7, 20, BIDIRECTIONAL | SEGMENTS, \
      0, 71)                                                                                                 \
    X(attention_grad_class, "attention_grad", attention_class, "1x7x1x4-of-1100-keys", 0x8d6104d0f196c22f,   \
      0x85086d8e3dedf958, 0x9e7e9dfc2e2d61b0, 1, 7, 1, 4, 0, BIDIRECTIONAL, 0, 1100)                         \
    X(attention_grad_class, "attention_grad", attention_class, "1x1063x1x4-of-9-keys", 0x433f6b7672996d7a,   \
      0x765974b28f8b0463, 0x7aa5f1b60ad5b5fa, 1, 1063, 1, 4, 0, BIDIRECTIONAL, 0, 9)                         \
    X(attention_decode_class, "attention_decode", decode, "1x1x1-of-16", 0x3421a3db066585c5,                 \
      0x4a31746d851f999a, 0x12aece768d68ba8a, 1, 1, 1, 16, 1)                                                \
    X(attention_decode_class, "attention_decode", decode, "3x5x17-of-48", 0xfc44898bc254deee,                \
      0xcd4e8929d3270a46, 0x0aff20e3a27566c1, 3, 5, 17, 48, 48)                                              \
    X(attention_decode_class, "attention_decode", decode, "2x2x64-of-1200", 0x9daf19d731c22e40,              \
      0x7cd94459c9b8df3a, 0xe0fceee1f8761245, 2, 2, 64, 1200, 1200)                                          \
    X(attention_decode_class, "attention_decode", decode, "5x6x17-of-32-by-2-in-3", 0x603a9757b8446968,      \
      0x4c0d4ff1d115d246, 0x645a53af566270f5, 5, 6, 17, 32, 32, 2, 3)
#define CLASS_EXACT8X2(op, family, module, name, two, three, pairs, ...)                                     \
    GOLDEN_CASE_OF(op, "exact8x2-" family, module, name, two, __VA_ARGS__),
#define CLASS_EXACT8X3(op, family, module, name, two, three, pairs, ...)                                     \
    GOLDEN_CASE_OF(op, "exact8x3-" family, module, name, three, __VA_ARGS__),
#define CLASS_BF16(op, family, module, name, two, three, pairs, ...)                                         \
    GOLDEN_CASE_OF(op, "bf16-" family, module, name, pairs, __VA_ARGS__),
static const struct golden_case exact8x2_cases[] = {CLASS_ROWS(CLASS_EXACT8X2)};
static const struct golden_case exact8x3_cases[] = {CLASS_ROWS(CLASS_EXACT8X3)};
static const struct golden_case bf16_cases[] = {CLASS_ROWS(CLASS_BF16)};
const struct golden_family golden_attention_exact8x2 = {
    exact8x2_cases, sizeof exact8x2_cases / sizeof exact8x2_cases[0], KEEL_EXACT8X2};
const struct golden_family golden_attention_exact8x3 = {
    exact8x3_cases, sizeof exact8x3_cases / sizeof exact8x3_cases[0], KEEL_EXACT8X3};
const struct golden_family golden_attention_bf16 = {bf16_cases, sizeof bf16_cases / sizeof bf16_cases[0],
                                                    KEEL_CLASS_BF16};
