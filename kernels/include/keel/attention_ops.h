/* attention_ops.h - self-attention, rotary positions, and their gradients, as lists of launches.
 *
 * Beside keel/kernels.h, whose rules for descriptors, buffers, threads and errors hold here too. */
#ifndef KEEL_ATTENTION_OPS_H
#define KEEL_ATTENTION_OPS_H

#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

/* Linear biases (Press, Smith, Lewis 2022): a score has -slope * |i - j| added, with a slope of each head
 * that follows from its number. `heads` is how many there are in all, 0: no biases; `first` the number of the
 * operation's first. Heads by a power of two are 2^(-8 (h + 1) / heads); of others see alibi.h. */
struct keel_alibi {
    uint32_t heads /* at most KEEL_ALIBI_HEADS_MAX */, first;
};
enum { KEEL_ALIBI_HEADS_MAX = 1 << 14 };

/* Scratch of attention in a class: rows of queries or of dout, and results; rows of keys or values; scores
 * and weights; gains and sums of the gradient alone; the products' planes. */
enum keel_attention_part {
    KEEL_ATTENTION_OWN,
    KEEL_ATTENTION_OTHER,
    KEEL_ATTENTION_WEIGHTS,
    KEEL_ATTENTION_GAINS,
    KEEL_ATTENTION_KEYS_GRAD,
    KEEL_ATTENTION_VALUES_GRAD,
    KEEL_ATTENTION_PLANES,
    KEEL_ATTENTION_PARTS
};

/* Attention (Vaswani et al. 2017): causal, so that token i attends to tokens 0..i, or bidirectional, to all
 * of them (Devlin et al. 2019). qkv is [batch, tokens, 3 * heads * head_width]: q, k, v one after the other
 * in each row, heads contiguous in each. out is [batch, tokens, heads * head_width]. stats is [batch, heads,
 * tokens, 2]: the row maximum and the sum of exponentials, kept for backward. Dropout (rate, stream, control)
 * acts on the probabilities, [batch, heads, tokens, tokens]; rate 0: control may be NULL. Where `slice` says
 * that they are some heads or batches of more, row is a multiple of tokens * tokens (INVALID). Per row i:
 * scores over the keys j that it attends to, by ascending fma over the head, scaled by 1/sqrt(head_width);
 * max; e_j = exp(s_j - max); sum ascending; out = (sum over j ascending of fma(e_j, v_j, acc)) / sum. (Exact
 * rules: attention.cl.) head_width is at most 128, and at most 256 on devices with 256 KiB of local memory
 * and on the host (LIMIT). Memory is linear in the tokens: scores exist one block at a time, in local memory.
 *
 * What a token attends to may be less:
 *   window    only where |i - j| < window (sliding window; Beltagy, Peters, Cohan 2020); 0: all. Time is then
 *             of tokens * window.
 *   segments  [batch, tokens] int32, any numbers: only where both have the same. Sequences that are packed
 *             into one row have a number each; padding has one of its own, so that nothing attends to it but
 *             itself. NULL: none.
 * Heads may share keys and values in groups (Ainslie et al. 2023): with kv_heads below heads, a divisor of
 * it, head h has keys and values h / (heads / kv_heads), and qkv is [batch, tokens, (heads + 2 * kv_heads) *
 * head_width]. They are read where they lie; the bits are those of keys and values that are repeated.
 * Cross-attention: with `kv`, [batch, keys, 2 * kv_heads * head_width], keys and values come from there, qkv
 * is [batch, tokens, heads * head_width], queries alone, and probabilities are [batch, heads, tokens, keys].
 * It is bidirectional, without window and ALiBi (INVALID); with segments, key_segments [batch, keys] are
 * those of the keys. A query that attends to no key has out 0, and gives no gradient. */
struct keel_attention {
    uint32_t batch, tokens, heads, kv_heads /* 0: as heads */, head_width;
    bool bidirectional;
    uint32_t window;
    struct keel_alibi alibi;
    uint32_t keys; /* with kv; else 0 */
    float dropout_rate;
    uint32_t stream;
    struct keel_random_slice slice; /* of the probabilities */
    struct keel_buffer *qkv, *kv, *out, *stats, *control, *segments, *key_segments;
    struct keel_buffer *workspace; /* keel_attention_workspace_bytes, may be NULL when 0 */
    bool of_class; /* products are of the kernels' class, exact8x2, exact8x3 or bf16, as README.md,
                      "Attention in classes", defines them; others do not look at it */
    struct keel_buffer *parts[KEEL_ATTENTION_PARTS]; /* keel_attention_part_bytes: scratch of the class's */
};
/* What attention in a class needs of scratch, and with its gradient: bytes of each part, 0 where it has none.
 * Of heads and queries as many as make some 32 MiB of weights lie there at a time. */
void keel_attention_part_bytes(const struct keel_kernels *, const struct keel_attention *, bool gradient,
                               uint64_t bytes[KEEL_ATTENTION_PARTS]);
uint64_t keel_attention_workspace_bytes(const struct keel_kernels *, const struct keel_attention *);
enum keel_status keel_op_attention(struct keel_kernels *, const struct keel_attention *,
                                   struct keel_launch_list *);

/* Angles of rotary positions that grow more slowly, for longer texts than a model was trained on. factor 1,
 * or 0: as they are. context 0: all by 1 / factor (linear interpolation; Chen et al. 2023). Else as Llama 3
 * does (Grattafiori et al. 2024): a pair that turns r times in `context` tokens, by 1 / factor where r <=
 * low, not at all where r >= high, and between these by s + (1 - s) / factor with s = (r - low) / (high -
 * low). factor is 1 to 2^16; 0 <= low < high <= 2^10, high - low at least 2^-10. */
struct keel_rotary_scaling {
    float factor, low, high;
    uint32_t context;
};
struct keel_rotary_turn {
    float base;
    struct keel_rotary_scaling scaling;
};

/* dqkv and, with kv, dkv (overwritten, layouts of qkv and kv) from dout; recomputes probabilities from qkv
 * and stats.
 *
 * Gradients of keys and values that heads share are sums over these heads, of those that have one number
 * divided by 8 ascending, the last such eight first: the order in which gradients of repeated ones arise
 * where eight are repeated at a time. They wait in the workspace until all are there. Where queries and keys
 * are what keel_op_rotary made of others (`turned`, base not 0), dqkv is the gradient of those: each head's
 * share is turned back before it is added, as it would be if keys had been repeated before they were turned.
 * With base not 0, keys must be shared, and come from qkv (INVALID). */
struct keel_attention_grad {
    struct keel_attention forward; /* the same descriptor; out is read */
    uint32_t first_head; /* of heads that share keys, where they are some of more: the number of the first,
                            by which eights are told; else 0 */
    struct keel_rotary_turn turned;
    struct keel_buffer *dout, *dqkv, *dkv;
};
uint64_t keel_attention_grad_workspace_bytes(const struct keel_kernels *, const struct keel_attention_grad *);
enum keel_status keel_op_attention_grad(struct keel_kernels *, const struct keel_attention_grad *,
                                        struct keel_launch_list *);

/* Causal attention, in a window and with ALiBi if so, of one token of each sequence, the one that comes next,
 * to itself and to those before it, whose keys and values `cache` holds (Pope et al. 2022): the last row of
 * keel_op_attention over all of them, to the bit, without dropout. Heads may share keys and values in groups
 * (Ainslie et al. 2023), heads / kv_heads to each: the bits are those of keys and values that are repeated.
 * qkv is [batch, (heads + 2 kv_heads) * head_width]; position [batch] int32 says which token of its sequence
 * each is, from 0: the caller has had the tokens before it computed, in their order. Key and value are kept
 * in the cache, [batch, 2, kv_heads, capacity * head_width] (laid out as decode.cl says), which is read where
 * it was written alone. out is [batch, heads * head_width]: zeros for a position that is not below
 * `capacity`, a multiple of 16.
 *
 * With `slots` above 0 the cache has so many sequences, and row b is a token of sequence slot[b], int32: of
 * one that is not below `slots` zeros. So several tokens of a sequence may be computed at once, as those of a
 * prompt, with the same bits: keys and values of all rows are kept before any is read. */
struct keel_attention_decode {
    uint32_t batch, heads, kv_heads /* a divisor of heads */, head_width, capacity, slots;
    uint32_t window; /* 0: all; as in keel_attention */
    struct keel_alibi alibi;
    bool of_class; /* as in keel_attention, whose bits it then has; head_width is at most 256 (LIMIT) */
    struct keel_buffer *qkv, *position, *slot /* or NULL, where slots is 0 */, *cache, *out, *workspace;
};
uint64_t keel_attention_decode_cache_bytes(const struct keel_attention_decode *);
uint64_t keel_attention_decode_workspace_bytes(const struct keel_attention_decode *);
enum keel_status keel_op_attention_decode(struct keel_kernels *, const struct keel_attention_decode *,
                                          struct keel_launch_list *);

/* Rotary position embedding (Su et al. 2021) of q and k in qkv, whose layout is that of attention: elements
 * 2i and 2i + 1 of each head of token t turn by the angle t * base^(-2i / head_width), base usually 10,000; v
 * is copied. `inverse` turns back: that is the gradient, and undoes the operation but for rounding. Angles
 * are whole numbers (rotary.cl), so their cosines and sines are within 1e-7 wherever t is below 2^20, with
 * the same bits on every device. base in (1, 1e9]; head_width even, at most 256. out may be qkv.
 *
 * With `position`, [batch] int32, tokens is 1 and each sequence's token is the one of that number. Keys and
 * values may have fewer heads than queries: a row is (heads + 2 kv_heads) * head_width. */
struct keel_rotary {
    uint32_t batch, tokens, heads, kv_heads, head_width;
    float base;
    struct keel_rotary_scaling scaling;
    bool inverse;
    struct keel_buffer *qkv, *out, *position /* or NULL */;
};
enum keel_status keel_op_rotary(struct keel_kernels *, const struct keel_rotary *, struct keel_launch_list *);

KEEL_API_END

#endif
