/* golden_attention.c - golden cases of attention: see golden_core.c for what they are and how one is added.
 */
#include "golden_internal.h"

#include <keel/attention_ops.h>

enum { BIDIRECTIONAL = 1, ALIBI = 2, SEGMENTS = 4 };
/* batch, tokens, heads, width of a head, percent of the probabilities that are dropped, what of these,
 * window, keys of their own */
static struct keel_attention attention_operands(struct golden_run *run, const uint32_t *shape)
{
    struct keel_attention op = {.batch = shape[0],
                                .tokens = shape[1],
                                .heads = shape[2],
                                .head_width = shape[3],
                                .window = shape[6],
                                .keys = shape[7]};
    const uint64_t rows = (uint64_t)op.batch * op.tokens * op.heads;
    op.dropout_rate = (float)shape[4] * 0x1.47ae14p-7F;
    op.stream = 7;
    op.bidirectional = shape[5] & BIDIRECTIONAL;
    if (shape[5] & ALIBI)
        op.alibi = (struct keel_alibi){op.heads + 1, 1};
    op.qkv =
        golden_floats(run, "qkv", GOLDEN_INPUT, (op.keys > 0 ? 1 : 3) * rows * op.head_width, -2.0F, 2.0F);
    if (op.keys > 0)
        op.kv = golden_floats(run, "kv", GOLDEN_INPUT,
                              (uint64_t)2 * op.batch * op.keys * op.heads * op.head_width, -2.0F, 2.0F);
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

static enum keel_status attention(struct golden_run *run, const uint32_t *shape)
{
    struct keel_attention op = attention_operands(run, shape);
    const uint64_t bytes = keel_attention_workspace_bytes(run->kernels, &op);
    if (bytes > 0)
        op.workspace = golden_scratch(run, "workspace", bytes);
    return golden_ready(run) ? keel_op_attention(run->kernels, &op, &run->list) : KEEL_OK;
}

/* The gradient after its forward pass, which it needs. */
static enum keel_status attention_grad(struct golden_run *run, const uint32_t *shape)
{
    struct keel_attention_grad op = {.forward = attention_operands(run, shape)};
    const uint64_t count = (uint64_t)shape[0] * shape[1] * shape[2] * shape[3];
    op.dout = GOLDEN_FLOATS(run, "dout", count);
    op.dqkv = golden_output(run, "dqkv", (op.forward.keys > 0 ? 1 : 3) * count);
    if (op.forward.keys > 0)
        op.dkv = golden_output(run, "dkv", 2 * count / shape[1] * shape[7]);
    op.forward.workspace =
        golden_scratch(run, "workspace", keel_attention_grad_workspace_bytes(run->kernels, &op));
    if (!golden_ready(run))
        return KEEL_OK;
    KEEL_TRY(keel_op_attention(run->kernels, &op.forward, &run->list));
    return keel_op_attention_grad(run->kernels, &op, &run->list);
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
static enum keel_status attention_decode(struct golden_run *run, const uint32_t *shape)
{
    struct keel_attention_decode op = {.batch = shape[0],
                                       .heads = shape[1],
                                       .kv_heads = shape[5] != 0 ? shape[5] : shape[1],
                                       .head_width = shape[2],
                                       .capacity = shape[3],
                                       .slots = shape[6]};
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
