/* hostile_test.c - descriptors made at random, with sizes around every power of two, for each operation of
 * the public headers, on the host device and on PoCL: what does not fit its buffers is refused, and what is
 * accepted writes nothing beyond them. Most sizes are hostile; KEEL_HOSTILE_SEED replays a run,
 * KEEL_HOSTILE_DESCRIPTORS=n draws n for each operation, on the host device alone (emulated processors). */
#include "harness.h"
#include <inttypes.h>
#include <keel/attention_ops.h>
#include <keel/clock.h>
#include <keel/image_ops.h>
#include <keel/optimizer_ops.h>
#include <keel/shape_ops.h>
#include <keel/table_ops.h>
#include <keel/tensor_ops.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LIMIT_S = 600, DESCRIPTORS = 1000, RUNS_MAX = 8, FIELDS_MAX = 32, STRUCT_BYTES = 512 };
enum { POOL = 20, GUARD_BYTES = 4096, DATA_BYTES_MAX = 65536 };
#define LIMIT_NS (120 * KEEL_NS_PER_S)

/* ---- operations ---- */

/* PITCH: from a row or a matrix to the next, or a number of tokens that comes in sixteens. OPTION: a number
 * that is 0 where something is not wanted; ABSENT: a buffer that is not there then. LARGE, RATE: a REAL that
 * is to be above 1, or below it and is mostly 0. SLICES: struct keel_slices of the dimension at `sized`. */
enum kind { NUMBER, OPTION, PITCH, REAL, LARGE, RATE, FLAG, BUFFER, ABSENT, SLICES };
struct field {
    const char *name;
    size_t offset, bytes;
    enum kind kind;
    size_t sized;
};
static bool is_buffer(const struct field *field)
{
    return field->kind == BUFFER || field->kind == ABSENT;
}
struct operation {
    const char *name;
    const char *writes; /* "out:in,in": what may be one buffer; "out": apart from all */
    enum keel_status (*append)(struct keel_kernels *, const void *, struct keel_launch_list *);
    struct field fields[FIELDS_MAX];
};

/* Those whose descriptor points at more, with what it points at. */
struct gemm_check {
    struct keel_gemm product;
    struct keel_buffer *report;
    uint32_t report_index;
};
struct concat {
    uint64_t outer, inner, sizes[2];
    struct keel_buffer *input[2], *y;
};
static enum keel_status append_gemm_check(struct keel_kernels *kernels, const void *op,
                                          struct keel_launch_list *list)
{
    const struct gemm_check *own = op;
    return keel_op_gemm_check(kernels,
                              &(struct keel_gemm_check){&own->product, own->report, own->report_index}, list);
}
static enum keel_status append_concat(struct keel_kernels *kernels, const void *op,
                                      struct keel_launch_list *list)
{
    const struct concat *own = op;
    return keel_op_concat(
        kernels, &(struct keel_concat){own->outer, own->inner, 2, own->sizes, own->input, own->y}, list);
}

#define APPEND(name)                                                                                         \
    static enum keel_status append_##name(struct keel_kernels *kernels, const void *op,                      \
                                          struct keel_launch_list *list)                                     \
    {                                                                                                        \
        return keel_op_##name(kernels, op, list);                                                            \
    }
#define EACH_PLAIN(X)                                                                                        \
    X(attention)                                                                                             \
    X(attention_grad)                                                                                        \
    X(attention_decode)                                                                                      \
    X(rotary)                                                                                                \
    X(conv2d)                                                                                                \
    X(conv2d_grad_data)                                                                                      \
    X(conv2d_grad_weight)                                                                                    \
    X(conv2d_unfold)                                                                                         \
    X(batch_norm)                                                                                            \
    X(batch_norm_eval)                                                                                       \
    X(batch_norm_grad)                                                                                       \
    X(max_pool)                                                                                              \
    X(max_pool_grad)                                                                                         \
    X(avg_pool)                                                                                              \
    X(avg_pool_grad)                                                                                         \
    X(global_avg_pool)                                                                                       \
    X(global_avg_pool_grad)                                                                                  \
    X(gemm)                                                                                                  \
    X(gemm_grouped)                                                                                          \
    X(gemm_quantised)                                                                                        \
    X(bias)                                                                                                  \
    X(bias_grad)                                                                                             \
    X(layernorm)                                                                                             \
    X(layernorm_grad)                                                                                        \
    X(activation)                                                                                            \
    X(activation_grad)                                                                                       \
    X(swiglu)                                                                                                \
    X(swiglu_grad)                                                                                           \
    X(add)                                                                                                   \
    X(dropout)                                                                                               \
    X(normal)                                                                                                \
    X(cast)                                                                                                  \
    X(fill)                                                                                                  \
    X(copy)                                                                                                  \
    X(embedding)                                                                                             \
    X(embedding_grad)                                                                                        \
    X(cross_entropy)                                                                                         \
    X(cross_entropy_max)                                                                                     \
    X(cross_entropy_part)                                                                                    \
    X(cross_entropy_end)                                                                                     \
    X(cross_entropy_sum)                                                                                     \
    X(loss)                                                                                                  \
    X(digest)                                                                                                \
    X(norm_tiles)                                                                                            \
    X(norm)                                                                                                  \
    X(loss_scale)                                                                                            \
    X(update)                                                                                                \
    X(slice)                                                                                                 \
    X(slice_grad)                                                                                            \
    X(permute)                                                                                               \
    X(multiply)                                                                                              \
    X(softmax)                                                                                               \
    X(softmax_grad)                                                                                          \
    X(top_k)                                                                                                 \
    X(top_k_grad)                                                                                            \
    X(cumsum)                                                                                                \
    X(gather)                                                                                                \
    X(scatter_add)                                                                                           \
    X(embedding_bag)                                                                                         \
    X(pairwise_dot)                                                                                          \
    X(pairwise_dot_grad)                                                                                     \
    X(dispatch)                                                                                              \
    X(expert_bias_grad)                                                                                      \
    X(combine_grad)                                                                                          \
    X(balance_loss)                                                                                          \
    X(binary)                                                                                                \
    X(reduce)                                                                                                \
    X(scale)
EACH_PLAIN(APPEND)

#define FIELD(type, name, kind)                                                                              \
    {                                                                                                        \
#name, offsetof(struct type, name), sizeof(((struct type *)0)->name), kind, 0                        \
    }
#define CUT(type, name, of)                                                                                  \
    {                                                                                                        \
#name, offsetof(struct type, name), sizeof(struct keel_slices), SLICES, offsetof(struct type, of)    \
    }
#define N(type, name) FIELD(type, name, NUMBER)
#define O(type, name) FIELD(type, name, OPTION)
#define R(type, name) FIELD(type, name, REAL)
#define F(type, name) FIELD(type, name, FLAG)
#define B(type, name)                                                                                        \
    {                                                                                                        \
#name, offsetof(struct type, name), sizeof(void *), BUFFER, 0                                        \
    }
#define A(type, name)                                                                                        \
    {                                                                                                        \
#name, offsetof(struct type, name), sizeof(void *), ABSENT, 0                                        \
    }
#define N2(t, a) N(t, a[0]), N(t, a[1])
#define CONV(t)                                                                                              \
    N(t, shape.batch), N(t, shape.height), N(t, shape.width), N(t, shape.channels),                          \
        N(t, shape.out_channels), N2(t, shape.kernel), N2(t, shape.stride), N2(t, shape.pad),                \
        N2(t, shape.dilation), N(t, shape.groups)
#define POOL_SHAPE(t)                                                                                        \
    N(t, shape.batch), N(t, shape.height), N(t, shape.width), N(t, shape.channels), N2(t, shape.kernel),     \
        N2(t, shape.stride), N2(t, shape.pad)
#define GEMM(t, p)                                                                                           \
    N(t, p m), N(t, p n), N(t, p k), N(t, p batch), F(t, p transpose_a), F(t, p transpose_b),                \
        F(t, p accumulate), F(t, p chain), F(t, p c_type), FIELD(t, p lda, PITCH), FIELD(t, p ldb, PITCH),   \
        FIELD(t, p ldc, PITCH), FIELD(t, p stride_a, PITCH), FIELD(t, p stride_b, PITCH),                    \
        FIELD(t, p stride_c, PITCH), B(t, p a), B(t, p b), B(t, p c), B(t, p bias), B(t, p pre),             \
        B(t, p residual), B(t, p checksums), CUT(t, p k_slices, p k)
#define SLICE(t, p) N(t, p slice.first), N(t, p slice.row), N(t, p slice.stride)
#define ATTEND(t, p)                                                                                         \
    N(t, p batch), N(t, p tokens), N(t, p heads), N(t, p head_width), F(t, p bidirectional), O(t, p window), \
        O(t, p alibi.heads), O(t, p alibi.first), O(t, p keys), SLICE(t, p), FIELD(t, p dropout_rate, RATE), \
        B(t, p qkv), A(t, p kv), B(t, p out), B(t, p stats), B(t, p control), A(t, p segments),              \
        A(t, p key_segments), B(t, p workspace)
#define OP(name, writes, ...)                                                                                \
    {                                                                                                        \
#name, writes, append_##name,                                                                        \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
#define T(name) keel_##name

static const struct operation operations[] = {
    OP(attention, "out stats workspace", ATTEND(T(attention), )),
    OP(attention_grad, "dqkv dkv workspace", ATTEND(T(attention_grad), forward.), B(T(attention_grad), dout),
       B(T(attention_grad), dqkv), B(T(attention_grad), dkv)),
    OP(attention_decode, "cache out workspace", N(T(attention_decode), batch), N(T(attention_decode), heads),
       N(T(attention_decode), kv_heads), N(T(attention_decode), head_width), O(T(attention_decode), window),
       O(T(attention_decode), alibi.heads), O(T(attention_decode), alibi.first),
       FIELD(T(attention_decode), capacity, PITCH), O(T(attention_decode), slots),
       B(T(attention_decode), qkv), B(T(attention_decode), position), B(T(attention_decode), slot),
       B(T(attention_decode), cache), B(T(attention_decode), out), B(T(attention_decode), workspace)),
    OP(rotary, "out:qkv", N(T(rotary), batch), N(T(rotary), tokens), N(T(rotary), heads),
       N(T(rotary), kv_heads), N(T(rotary), head_width), FIELD(T(rotary), base, LARGE),
       O(T(rotary), scaling.context), FIELD(T(rotary), scaling.factor, LARGE), R(T(rotary), scaling.low),
       FIELD(T(rotary), scaling.high, LARGE), B(T(rotary), qkv), B(T(rotary), out), A(T(rotary), position)),
    OP(conv2d, "y", CONV(T(conv2d)), B(T(conv2d), x), B(T(conv2d), weight), B(T(conv2d), bias),
       B(T(conv2d), y)),
    OP(conv2d_grad_data, "dx", CONV(T(conv2d_grad_data)), B(T(conv2d_grad_data), dy),
       B(T(conv2d_grad_data), weight), B(T(conv2d_grad_data), dx)),
    OP(conv2d_grad_weight, "dweight", CONV(T(conv2d_grad_weight)), B(T(conv2d_grad_weight), x),
       B(T(conv2d_grad_weight), dy), B(T(conv2d_grad_weight), dweight)),
    OP(conv2d_unfold, "to", CONV(T(conv2d_unfold)), F(T(conv2d_unfold), back), N(T(conv2d_unfold), first),
       N(T(conv2d_unfold), rows), B(T(conv2d_unfold), x), B(T(conv2d_unfold), to)),
    OP(batch_norm, "y:x,residual mean rstd running_mean running_variance scratch", N(T(batch_norm), rows),
       N(T(batch_norm), n), R(T(batch_norm), epsilon), R(T(batch_norm), scale), F(T(batch_norm), relu),
       B(T(batch_norm), x), B(T(batch_norm), gamma), B(T(batch_norm), beta), B(T(batch_norm), residual),
       B(T(batch_norm), y), B(T(batch_norm), mean), B(T(batch_norm), rstd), B(T(batch_norm), running_mean),
       B(T(batch_norm), running_variance), B(T(batch_norm), scratch)),
    OP(batch_norm_eval, "y:x,residual", N(T(batch_norm_eval), rows), N(T(batch_norm_eval), n),
       R(T(batch_norm_eval), epsilon), B(T(batch_norm_eval), x), B(T(batch_norm_eval), gamma),
       B(T(batch_norm_eval), beta), B(T(batch_norm_eval), residual), B(T(batch_norm_eval), y),
       B(T(batch_norm_eval), mean), B(T(batch_norm_eval), variance)),
    OP(batch_norm_grad, "dx:dy dgamma dbeta scratch", N(T(batch_norm_grad), rows), N(T(batch_norm_grad), n),
       B(T(batch_norm_grad), x), B(T(batch_norm_grad), gamma), B(T(batch_norm_grad), mean),
       B(T(batch_norm_grad), rstd), B(T(batch_norm_grad), dy), B(T(batch_norm_grad), relu_y),
       B(T(batch_norm_grad), dx), B(T(batch_norm_grad), dgamma), B(T(batch_norm_grad), dbeta),
       B(T(batch_norm_grad), scratch)),
    OP(max_pool, "y taps", POOL_SHAPE(T(max_pool)), B(T(max_pool), x), B(T(max_pool), y),
       B(T(max_pool), taps)),
    OP(max_pool_grad, "dx", POOL_SHAPE(T(max_pool_grad)), B(T(max_pool_grad), dy), B(T(max_pool_grad), taps),
       B(T(max_pool_grad), dx)),
    OP(avg_pool, "y", POOL_SHAPE(T(avg_pool)), B(T(avg_pool), x), B(T(avg_pool), y)),
    OP(avg_pool_grad, "dx", POOL_SHAPE(T(avg_pool_grad)), B(T(avg_pool_grad), dy), B(T(avg_pool_grad), dx)),
    OP(global_avg_pool, "y", N(T(global_avg_pool), batch), N(T(global_avg_pool), pixels),
       N(T(global_avg_pool), channels), B(T(global_avg_pool), x), B(T(global_avg_pool), y)),
    OP(global_avg_pool_grad, "dx", N(T(global_avg_pool_grad), batch), N(T(global_avg_pool_grad), pixels),
       N(T(global_avg_pool_grad), channels), B(T(global_avg_pool_grad), dy), B(T(global_avg_pool_grad), dx)),
    OP(gemm, "c:residual pre checksums", GEMM(T(gemm), )),
    OP(gemm_grouped, "c:residual pre checksums", GEMM(T(gemm_grouped), product.), N(T(gemm_grouped), groups),
       F(T(gemm_grouped), over_k), B(T(gemm_grouped), offsets)),
    OP(gemm_quantised, "c workspace", N(T(gemm_quantised), m), N(T(gemm_quantised), n),
       N(T(gemm_quantised), k), N(T(gemm_quantised), bits), O(T(gemm_quantised), group),
       B(T(gemm_quantised), a), B(T(gemm_quantised), weights), B(T(gemm_quantised), c),
       B(T(gemm_quantised), bias), B(T(gemm_quantised), workspace)),
    OP(gemm_check, "report", GEMM(gemm_check, product.), B(gemm_check, report), N(gemm_check, report_index)),
    OP(bias, "y:x", N(T(bias), rows), N(T(bias), n), B(T(bias), x), B(T(bias), bias), B(T(bias), y)),
    OP(bias_grad, "out", N(T(bias_grad), rows), N(T(bias_grad), n), B(T(bias_grad), x), B(T(bias_grad), out),
       CUT(T(bias_grad), row_slices, rows)),
    OP(layernorm, "y mean rstd", N(T(layernorm), rows), N(T(layernorm), n), R(T(layernorm), epsilon),
       B(T(layernorm), x), B(T(layernorm), gamma), B(T(layernorm), beta), B(T(layernorm), y),
       B(T(layernorm), mean), B(T(layernorm), rstd)),
    OP(layernorm_grad, "dx:residual dgamma dbeta", N(T(layernorm_grad), rows), N(T(layernorm_grad), n),
       B(T(layernorm_grad), x), B(T(layernorm_grad), gamma), B(T(layernorm_grad), mean),
       B(T(layernorm_grad), rstd), B(T(layernorm_grad), dy), B(T(layernorm_grad), residual),
       B(T(layernorm_grad), dx), B(T(layernorm_grad), dgamma), B(T(layernorm_grad), dbeta),
       CUT(T(layernorm_grad), row_slices, rows)),
    OP(activation, "y:x", N(T(activation), count), F(T(activation), kind), B(T(activation), x),
       B(T(activation), y)),
    OP(activation_grad, "dx:dy", N(T(activation_grad), count), F(T(activation_grad), kind),
       B(T(activation_grad), x), B(T(activation_grad), dy), B(T(activation_grad), dx)),
    OP(swiglu, "y:a,b", N(T(swiglu), count), B(T(swiglu), a), B(T(swiglu), b), B(T(swiglu), y)),
    OP(swiglu_grad, "da:a,b,dy db:a,b,dy", N(T(swiglu_grad), count), B(T(swiglu_grad), a),
       B(T(swiglu_grad), b), B(T(swiglu_grad), dy), B(T(swiglu_grad), da), B(T(swiglu_grad), db)),
    OP(add, "y:a,b", N(T(add), count), B(T(add), a), B(T(add), b), B(T(add), y)),
    OP(dropout, "y:x,base", SLICE(T(dropout), ), N(T(dropout), count), R(T(dropout), rate), B(T(dropout), x),
       B(T(dropout), base), B(T(dropout), y), B(T(dropout), control)),
    OP(normal, "y", SLICE(T(normal), ), N(T(normal), count), R(T(normal), deviation), B(T(normal), y),
       B(T(normal), control)),
    OP(cast, "y", N(T(cast), count), F(T(cast), from), F(T(cast), to), B(T(cast), x), B(T(cast), y)),
    OP(fill, "y", N(T(fill), count), B(T(fill), y)),
    OP(copy, "y", N(T(copy), count), B(T(copy), x), B(T(copy), y)),
    OP(embedding, "y", N(T(embedding), batch), N(T(embedding), tokens), N(T(embedding), width),
       N(T(embedding), vocab), B(T(embedding), ids), B(T(embedding), table), B(T(embedding), positions),
       B(T(embedding), y), N(T(embedding), first)),
    OP(embedding_grad, "dtable dpositions", N(T(embedding_grad), batch), N(T(embedding_grad), tokens),
       N(T(embedding_grad), width), N(T(embedding_grad), vocab), B(T(embedding_grad), ids),
       B(T(embedding_grad), dy), B(T(embedding_grad), dtable), B(T(embedding_grad), dpositions),
       N(T(embedding_grad), first)),
    OP(cross_entropy, "row_loss loss dlogits:logits", N(T(cross_entropy), rows), N(T(cross_entropy), vocab),
       R(T(cross_entropy), scale), B(T(cross_entropy), logits), B(T(cross_entropy), targets),
       B(T(cross_entropy), row_loss), B(T(cross_entropy), loss), B(T(cross_entropy), dlogits),
       B(T(cross_entropy), loss_scale), CUT(T(cross_entropy), vocab_slices, vocab)),
    OP(cross_entropy_max, "maxima target_bits", N(T(cross_entropy_max), rows),
       N(T(cross_entropy_max), columns), N(T(cross_entropy_max), first_column),
       N(T(cross_entropy_max), vocab), B(T(cross_entropy_max), logits), B(T(cross_entropy_max), targets),
       B(T(cross_entropy_max), maxima), B(T(cross_entropy_max), target_bits)),
    OP(cross_entropy_part, "sums exponentials:logits", N(T(cross_entropy_part), rows),
       N(T(cross_entropy_part), columns), N(T(cross_entropy_part), at), N(T(cross_entropy_part), count),
       B(T(cross_entropy_part), logits), B(T(cross_entropy_part), maxima), B(T(cross_entropy_part), sums),
       B(T(cross_entropy_part), exponentials), CUT(T(cross_entropy_part), vocab_slices, count)),
    OP(cross_entropy_end, "row_loss loss dlogits", N(T(cross_entropy_end), rows),
       N(T(cross_entropy_end), columns), N(T(cross_entropy_end), first_column),
       N(T(cross_entropy_end), vocab), R(T(cross_entropy_end), scale), B(T(cross_entropy_end), maxima),
       B(T(cross_entropy_end), sums), B(T(cross_entropy_end), target_bits), B(T(cross_entropy_end), targets),
       B(T(cross_entropy_end), row_loss), B(T(cross_entropy_end), loss), B(T(cross_entropy_end), dlogits),
       B(T(cross_entropy_end), loss_scale)),
    OP(cross_entropy_sum, "loss", N(T(cross_entropy_sum), rows), R(T(cross_entropy_sum), scale),
       B(T(cross_entropy_sum), row_loss), B(T(cross_entropy_sum), loss)),
    OP(loss, "scratch loss dx:x", N(T(loss), count), F(T(loss), kind), R(T(loss), scale), B(T(loss), x),
       B(T(loss), targets), B(T(loss), scratch), B(T(loss), loss), B(T(loss), dx), B(T(loss), loss_scale)),
    OP(digest, "digest scratch", N(T(digest), count), N(T(digest), first_element), N(T(digest), row),
       N(T(digest), stride), B(T(digest), x), B(T(digest), digest), B(T(digest), scratch)),
    OP(norm_tiles, "scratch tiles", N(T(norm_tiles), count), N(T(norm_tiles), tensor_count),
       N(T(norm_tiles), tile_count), N(T(norm_tiles), page_count), B(T(norm_tiles), x),
       B(T(norm_tiles), tensors), B(T(norm_tiles), pages), B(T(norm_tiles), scratch),
       B(T(norm_tiles), tiles)),
    OP(norm, "scratch norm", N(T(norm), tile_count), B(T(norm), tiles), B(T(norm), scratch), B(T(norm), norm),
       B(T(norm), control), B(T(norm), loss_scale)),
    OP(loss_scale, "state", B(T(loss_scale), state), B(T(loss_scale), norm)),
    OP(update, "w m v half digest scratch", F(T(update), optimizer), N(T(update), count),
       N(T(update), tensor_count), B(T(update), w), B(T(update), grad), B(T(update), m), B(T(update), v),
       B(T(update), norm), B(T(update), control), B(T(update), tensors), B(T(update), pages),
       B(T(update), half), F(T(update), half_type), B(T(update), digest), B(T(update), scratch)),
    OP(concat, "y", N(concat, outer), N(concat, inner), N2(concat, sizes), B(concat, input[0]),
       B(concat, input[1]), B(concat, y)),
    OP(slice, "y", N(T(slice), outer), N(T(slice), size), N(T(slice), inner), N(T(slice), from),
       N(T(slice), count), B(T(slice), x), B(T(slice), y)),
    OP(slice_grad, "y", N(T(slice), outer), N(T(slice), size), N(T(slice), inner), N(T(slice), from),
       N(T(slice), count), B(T(slice), x), B(T(slice), y)),
    OP(permute, "y", N(T(permute), dims), N2(T(permute), size), N(T(permute), size[2]),
       N(T(permute), size[3]), F(T(permute), order[0]), F(T(permute), order[1]), F(T(permute), order[2]),
       F(T(permute), order[3]), B(T(permute), x), B(T(permute), y)),
    OP(multiply, "y:a,b", N(T(multiply), count), B(T(multiply), a), B(T(multiply), b), B(T(multiply), y)),
    OP(softmax, "y:x", N(T(softmax), rows), N(T(softmax), n), B(T(softmax), x), B(T(softmax), y)),
    OP(softmax_grad, "dx:dy", N(T(softmax_grad), rows), N(T(softmax_grad), n), B(T(softmax_grad), y),
       B(T(softmax_grad), dy), B(T(softmax_grad), dx)),
    OP(top_k, "values indices", N(T(top_k), rows), N(T(top_k), n), N(T(top_k), k), B(T(top_k), x),
       B(T(top_k), values), B(T(top_k), indices)),
    OP(top_k_grad, "dx", N(T(top_k_grad), rows), N(T(top_k_grad), n), N(T(top_k_grad), k),
       B(T(top_k_grad), indices), B(T(top_k_grad), dvalues), B(T(top_k_grad), dx)),
    OP(cumsum, "y:x", N(T(cumsum), rows), N(T(cumsum), n), F(T(cumsum), reverse), B(T(cumsum), x),
       B(T(cumsum), y)),
    OP(gather, "y", N(T(gather), rows), N(T(gather), n), N(T(gather), count), B(T(gather), ids),
       B(T(gather), x), B(T(gather), y)),
    OP(scatter_add, "table workspace", N(T(scatter_add), rows), N(T(scatter_add), n),
       N(T(scatter_add), count), N(T(scatter_add), per), B(T(scatter_add), ids), B(T(scatter_add), x),
       B(T(scatter_add), table), B(T(scatter_add), workspace)),
    OP(embedding_bag, "y", N(T(embedding_bag), bags), N(T(embedding_bag), size), N(T(embedding_bag), rows),
       N(T(embedding_bag), n), B(T(embedding_bag), ids), B(T(embedding_bag), table), B(T(embedding_bag), y),
       B(T(embedding_bag), weights)),
    OP(pairwise_dot, "y", N(T(pairwise_dot), batch), N(T(pairwise_dot), f), N(T(pairwise_dot), n),
       B(T(pairwise_dot), x), B(T(pairwise_dot), y)),
    OP(pairwise_dot_grad, "dx", N(T(pairwise_dot_grad), batch), N(T(pairwise_dot_grad), f),
       N(T(pairwise_dot_grad), n), B(T(pairwise_dot_grad), x), B(T(pairwise_dot_grad), dy),
       B(T(pairwise_dot_grad), dx)),
    OP(dispatch, "sorted offsets place workspace", N(T(dispatch), rows), N(T(dispatch), n), N(T(dispatch), k),
       N(T(dispatch), experts), N(T(dispatch), capacity), B(T(dispatch), x), B(T(dispatch), choice),
       B(T(dispatch), sorted), B(T(dispatch), offsets), B(T(dispatch), place), B(T(dispatch), workspace)),
    OP(expert_bias_grad, "out", N(T(expert_bias_grad), rows), N(T(expert_bias_grad), n),
       N(T(expert_bias_grad), experts), B(T(expert_bias_grad), x), B(T(expert_bias_grad), offsets),
       B(T(expert_bias_grad), out)),
    OP(combine_grad, "dy dweights workspace", N(T(combine_grad), rows), N(T(combine_grad), n),
       N(T(combine_grad), k), N(T(combine_grad), places), B(T(combine_grad), y), B(T(combine_grad), place),
       B(T(combine_grad), weights), B(T(combine_grad), dout), B(T(combine_grad), dy),
       B(T(combine_grad), dweights), B(T(combine_grad), workspace)),
    OP(balance_loss, "loss dprobabilities scratch", N(T(balance_loss), rows), N(T(balance_loss), experts),
       N(T(balance_loss), k), R(T(balance_loss), scale), B(T(balance_loss), probabilities),
       B(T(balance_loss), choice), B(T(balance_loss), loss), B(T(balance_loss), dprobabilities),
       B(T(balance_loss), scratch), B(T(balance_loss), loss_scale)),
    OP(binary, "y", F(T(binary), kind), F(T(binary), of), N2(T(binary), size), N(T(binary), size[2]),
       N(T(binary), size[3]), N(T(binary), a_dims), N(T(binary), b_dims), B(T(binary), a), B(T(binary), b),
       B(T(binary), dy), B(T(binary), y)),
    OP(reduce, "y", F(T(reduce), kind), N(T(reduce), outer), N(T(reduce), n), N(T(reduce), inner),
       B(T(reduce), x), B(T(reduce), y)),
    OP(scale, "y:x", N(T(scale), count), R(T(scale), factor), R(T(scale), addend), B(T(scale), x),
       B(T(scale), y)),
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* ---- the devices, and memory with guards around it ---- */

static const char *const devices[] = {"host", "pocl"};
struct memory {
    struct keel_buffer *whole, *data;
    uint64_t data_bytes;
};
struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
    struct memory pool[POOL];
    uint64_t random;
};

static uint64_t draw(struct rig *rig)
{
    rig->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 (Steele et al. 2014) */
    uint64_t z = rig->random;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void rig_open(struct rig *rig, const char *selector)
{
    const char *seed = getenv("KEEL_HOSTILE_SEED");
    rig->random = seed != NULL ? strtoull(seed, NULL, 0) : 13;
    ck_ok(keel_device_open(selector, NULL, &rig->device));
    ck_ok(keel_kernels_create(rig->device, &rig->kernels));
    ck_ok(keel_queue_create(rig->device, &rig->queue));
    for (int i = 0; i < POOL; i++) {
        struct memory *memory = &rig->pool[i];
        memory->data_bytes = i < 2 ? 64 : i < 4 ? 4096 : DATA_BYTES_MAX;
        ck_ok(
            keel_buffer_create(rig->device, memory->data_bytes + UINT64_C(2) * GUARD_BYTES, &memory->whole));
        ck_ok(keel_buffer_slice(memory->whole, GUARD_BYTES, memory->data_bytes, &memory->data));
    }
}

static void rig_close(struct rig *rig)
{
    for (int i = 0; i < POOL; i++) {
        keel_buffer_destroy(rig->pool[i].data);
        keel_buffer_destroy(rig->pool[i].whole);
    }
    keel_queue_destroy(rig->queue);
    keel_kernels_destroy(rig->kernels);
    keel_device_close(rig->device);
}

/* Zeros, which are valid ids, offsets and tables, between guards of another pattern. */
static void lay_out(struct rig *rig)
{
    for (int i = 0; i < POOL; i++) {
        const struct memory *memory = &rig->pool[i];
        const uint64_t behind = GUARD_BYTES + memory->data_bytes;
        ck_ok(keel_queue_fill(rig->queue, memory->whole, 0, GUARD_BYTES, 0x5eed5eed, NULL, NULL));
        ck_ok(keel_queue_fill(rig->queue, memory->whole, GUARD_BYTES, memory->data_bytes, 0, NULL, NULL));
        ck_ok(keel_queue_fill(rig->queue, memory->whole, behind, GUARD_BYTES, 0x5eed5eed, NULL, NULL));
    }
}

static void check_guards(struct rig *rig, const char *what, uint64_t seed)
{
    static uint32_t words[(DATA_BYTES_MAX + 2 * GUARD_BYTES) / 4];
    for (int i = 0; i < POOL; i++) {
        const struct memory *memory = &rig->pool[i];
        const uint64_t guard = GUARD_BYTES / 4, behind = guard + memory->data_bytes / 4;
        ck_ok(keel_queue_read(rig->queue, memory->whole, 0, words, keel_buffer_bytes(memory->whole), NULL,
                              NULL));
        ck_ok(keel_queue_finish(rig->queue, keel_deadline_after_ns(LIMIT_NS)));
        for (uint64_t w = 0; w < guard; w++)
            ck_assert_msg(words[w] == 0x5eed5eed && words[behind + w] == 0x5eed5eed,
                          "%s, seed %" PRIu64 ": wrote beyond a buffer of %" PRIu64 " bytes", what, seed,
                          memory->data_bytes);
    }
}

/* ---- descriptors ---- */

/* Mostly small; else around a power of two of any size. Of slices, whose numbers are drawn by themselves,
 * nothing is used. */
static uint64_t draw_number(struct rig *rig, bool tame, size_t bytes)
{
    const uint64_t dice = draw(rig), power = UINT64_C(1) << draw(rig) % (bytes < 8 ? 8 * bytes : 64);
    if (tame || dice % 4 != 0)
        return dice % 64 == 1 && !tame ? 0 : 1 + draw(rig) % (tame ? 4 : 8);
    return power + draw(rig) % 3 - 1;
}

/* Of a field that is no float and no buffer. */
static uint64_t draw_whole(struct rig *rig, const struct field *field, bool tame)
{
    if (field->kind == FLAG)
        return draw(rig) % 2;
    if (field->kind == OPTION && draw(rig) % 4 > 0)
        return 0;
    if (field->kind == PITCH && tame)
        return field->bytes == 8 ? 64 : 16;
    return draw_number(rig, tame, field->bytes);
}

static bool is_real(const struct field *field)
{
    return field->kind == REAL || field->kind == LARGE || field->kind == RATE;
}

static float draw_real(struct rig *rig, const struct field *field, bool tame)
{
    static const float values[] = {0.5F, 0.25F, 2, 0, -1, 0x1p127F, NAN, INFINITY, -INFINITY};
    if (field->kind == RATE && draw(rig) % 4 > 0)
        return 0.0F;
    const float value = values[draw(rig) % (tame ? 2 : sizeof values / sizeof values[0])];
    return tame && field->kind == LARGE ? 1.0F / value : value;
}

/* None, all of a dimension of so many, or anything. */
static struct keel_slices draw_slices(struct rig *rig, uint32_t size, bool tame)
{
    const uint64_t dice = draw(rig) % 4;
    struct keel_slices s = {0};
    if (dice == 0 && !tame)
        s = (struct keel_slices){(uint32_t)draw_number(rig, false, 4), (uint32_t)draw_number(rig, false, 4),
                                 (uint32_t)draw_number(rig, false, 4), (uint32_t)draw_number(rig, false, 4),
                                 (uint32_t)draw_number(rig, false, 4)};
    else if (dice == 1 && size > 0) {
        const uint32_t count = 1 + (uint32_t)(draw(rig) % (size < KEEL_SLICES_MAX ? size : KEEL_SLICES_MAX));
        s = (struct keel_slices){.count = count, .of = count, .units = size, .unit = 1};
    }
    return s;
}

static void make(struct rig *rig, const struct operation *operation, unsigned char descriptor[STRUCT_BYTES])
{
    const bool tame = draw(rig) % 4 == 0; /* so that some are accepted */
    memset(descriptor, 0, STRUCT_BYTES);
    for (int i = 0; i < FIELDS_MAX && operation->fields[i].bytes != 0; i++) {
        const struct field *field = &operation->fields[i];
        unsigned char *at = descriptor + field->offset;
        const uint64_t number = draw_whole(rig, field, tame);
        const uint32_t narrow = (uint32_t)number;
        const float real = draw_real(rig, field, tame);
        const bool none = field->kind == ABSENT ? draw(rig) % 4 > 0 : draw(rig) % (tame ? 8 : 16) == 0;
        struct keel_buffer *buffer =
            none ? NULL : rig->pool[tame ? 4 + (uint64_t)i % (POOL - 4) : draw(rig) % POOL].data;
        ck_assert_uint_le(field->offset + field->bytes, STRUCT_BYTES);
        if (is_buffer(field))
            memcpy(at, (const void *)&buffer, sizeof(void *));
        else if (is_real(field))
            memcpy(at, &real, sizeof real);
        else if (field->kind == SLICES) {
            uint32_t size;
            memcpy(&size, descriptor + field->sized, sizeof size);
            const struct keel_slices slices = draw_slices(rig, size, tame);
            memcpy(at, &slices, sizeof slices);
        } else if (field->bytes == 8)
            memcpy(at, &number, sizeof number);
        else if (field->bytes == 4)
            memcpy(at, &narrow, sizeof narrow);
        else
            *at = (unsigned char)(number & 1);
    }
}

static void one_operation(struct rig *rig, const struct operation *operation, int descriptors)
{
    union {
        unsigned char bytes[STRUCT_BYTES];
        uint64_t aligned;
    } descriptor;
    uint32_t accepted = 0;
    for (int d = 0; d < descriptors; d++) {
        struct keel_launch_list list = {0};
        const uint64_t seed = rig->random;
        make(rig, operation, descriptor.bytes);
        const enum keel_status status = operation->append(rig->kernels, &descriptor, &list);
        ck_assert_msg(
            status == KEEL_OK || status == KEEL_INVALID || status == KEEL_LIMIT || status == KEEL_UNSUPPORTED,
            "%s, seed %" PRIu64 ": %s: %s", operation->name, seed, keel_status_name(status), keel_detail());
        if (status == KEEL_OK && accepted++ < RUNS_MAX) {
            lay_out(rig);
            ck_ok(keel_launch_list_run(&list, rig->queue));
            check_guards(rig, operation->name, seed);
        }
        keel_launch_list_fini(&list);
    }
    printf("%s: %u of %d accepted\n", operation->name, accepted, descriptors);
    ck_assert_msg(accepted > 0 || descriptors < DESCRIPTORS, "%s: none is accepted", operation->name);
    fflush(stdout);
}

START_TEST(no_descriptor_reaches_beyond_its_buffers)
{
    struct rig rig;
    const char *few = getenv("KEEL_HOSTILE_DESCRIPTORS");
    if (few != NULL && _i != 0)
        return;
    rig_open(&rig, devices[_i]);
    for (int i = 0; i < OPERATIONS; i++)
        one_operation(&rig, &operations[i], few != NULL ? atoi(few) : DESCRIPTORS);
    rig_close(&rig);
}
END_TEST

/* ---- what was accepted before ---- */

START_TEST(sizes_that_64_bits_do_not_hold_are_refused)
{
    struct rig rig;
    struct keel_launch_list list = {0};
    rig_open(&rig, "host");
    struct keel_buffer *x = rig.pool[4].data, *y = rig.pool[5].data, *z = rig.pool[6].data;
    struct keel_gemm gemm = {
        .m = 2, .n = 2, .k = 2, .batch = 9, .lda = 2, .ldb = 2, .ldc = 2, .a = x, .b = y, .c = z};
    gemm.stride_a = gemm.stride_b = gemm.stride_c = UINT64_C(1) << 61;
    ck_status(keel_op_gemm(rig.kernels, &gemm, &list), KEEL_INVALID);
    const uint64_t count = UINT64_C(1) << 62;
    ck_status(keel_op_fill(rig.kernels, &(struct keel_fill){.count = count, .y = y}, &list), KEEL_INVALID);
    ck_status(keel_op_add(rig.kernels, &(struct keel_add){count, x, y, z}, &list), KEEL_INVALID);
    ck_status(keel_op_softmax(rig.kernels, &(struct keel_softmax){1U << 31, 1U << 31, x, y}, &list),
              KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    rig_close(&rig);
}
END_TEST

/* uint32_t * sizeof(float) has 32 bits on a machine of 32 bits, and was 4 here. */
START_TEST(sizes_that_32_bits_do_not_hold_are_refused)
{
    struct rig rig;
    struct keel_launch_list list = {0};
    rig_open(&rig, "host");
    struct keel_buffer *b[8];
    for (int i = 0; i < 8; i++)
        b[i] = rig.pool[4 + i].data;
    const uint32_t many = 0x40000001;
    const struct keel_layernorm norm = {1, many, 0.5F, b[0], b[1], b[2], b[3], b[4], b[5]};
    ck_status(keel_op_layernorm(rig.kernels, &norm, &list), KEEL_INVALID);
    const struct keel_batch_norm_eval eval = {.rows = 1,
                                              .n = many,
                                              .x = b[0],
                                              .gamma = b[1],
                                              .beta = b[2],
                                              .y = b[3],
                                              .mean = b[4],
                                              .variance = b[5]};
    ck_status(keel_op_batch_norm_eval(rig.kernels, &eval, &list), KEEL_INVALID);
    const struct keel_gather gather = {.rows = 1, .n = 1, .count = many, .ids = b[0], .x = b[1], .y = b[2]};
    ck_status(keel_op_gather(rig.kernels, &gather, &list), KEEL_INVALID);
    ck_assert_uint_eq(list.count, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(what_cannot_work_in_place_or_with_nan_is_refused)
{
    struct rig rig;
    struct keel_launch_list list = {0};
    rig_open(&rig, "host");
    struct keel_buffer *x = rig.pool[4].data, *y = rig.pool[5].data, *z = rig.pool[6].data;
    struct keel_gemm gemm = {
        .m = 2, .n = 2, .k = 2, .batch = 1, .lda = 2, .ldb = 2, .ldc = 2, .a = x, .b = y, .c = x};
    ck_status(keel_op_gemm(rig.kernels, &gemm, &list), KEEL_INVALID);
    gemm.c = y;
    ck_status(keel_op_gemm(rig.kernels, &gemm, &list), KEEL_INVALID);
    gemm.c = rig.pool[5].whole; /* a slice of it is B */
    ck_status(keel_op_gemm(rig.kernels, &gemm, &list), KEEL_INVALID);
    gemm.c = z;
    gemm.residual = z;
    ck_ok(keel_op_gemm(rig.kernels, &gemm, &list));
    gemm.batch = 2; /* both products would be written to one place */
    gemm.residual = NULL;
    ck_status(keel_op_gemm(rig.kernels, &gemm, &list), KEEL_INVALID);
    struct keel_layernorm norm = {2, 2, NAN, x, y, y, z, rig.pool[7].data, rig.pool[8].data};
    ck_status(keel_op_layernorm(rig.kernels, &norm, &list), KEEL_INVALID);
    ck_status(keel_op_softmax(rig.kernels, &(struct keel_softmax){0, 1, x, y}, &list), KEEL_INVALID);
    const struct keel_normal normal = {.count = 4, .deviation = INFINITY, .y = x, .control = y};
    ck_status(keel_op_normal(rig.kernels, &normal, &list), KEEL_INVALID);
    keel_launch_list_fini(&list);
    rig_close(&rig);
}
END_TEST

/* ---- in place ---- */

static struct keel_buffer **buffer_at(unsigned char *descriptor, const struct field *field)
{
    return (struct keel_buffer **)(void *)(descriptor + field->offset);
}

/* A name in a list, after the struct that it lies in: "forward.out" is out, "input[0]" itself. */
static bool is_named(const char *list, size_t length, const char *name)
{
    const char *dot = strrchr(name, '.'), *from = dot != NULL ? dot + 1 : name;
    const char *last = from + strspn(from, " ");
    const size_t bytes = strlen(last);
    for (size_t i = 0; i + bytes <= length; i++)
        if ((i == 0 || strchr(",: ", list[i - 1]) != NULL) && memcmp(list + i, last, bytes) == 0 &&
            (i + bytes == length || strchr(",: ", list[i + bytes]) != NULL))
            return true;
    return false;
}

/* What `writes` says of a field: NULL when it is only read, else its inputs, *length long. */
static const char *inputs_of(const struct operation *operation, const char *field, size_t *length)
{
    for (const char *at = operation->writes; *at != 0;) {
        const size_t word = strcspn(at, " "), name = strcspn(at, ": ");
        if (is_named(at, name, field)) {
            *length = word - name;
            return at + name;
        }
        at += word + strspn(at + word, " ");
    }
    return NULL;
}

/* A descriptor that is accepted, every optional buffer there where it can be; false when none was found. */
static bool make_right(struct rig *rig, const struct operation *operation, unsigned char *descriptor)
{
    for (int tries = 0; tries < 4000; tries++) {
        struct keel_launch_list list = {0};
        make(rig, operation, descriptor);
        for (int i = 0, next = 4; i < FIELDS_MAX && operation->fields[i].bytes != 0; i++)
            if (is_buffer(&operation->fields[i]) && (*buffer_at(descriptor, &operation->fields[i]) != NULL))
                *buffer_at(descriptor, &operation->fields[i]) = rig->pool[next++].data;
        const bool right = operation->append(rig->kernels, descriptor, &list) == KEEL_OK;
        keel_launch_list_fini(&list);
        if (right)
            return true;
    }
    return false;
}

/* Each output over each other buffer: as a whole, and shifted by some bytes. */
static void each_pair(struct rig *rig, const struct operation *operation, const unsigned char *right)
{
    for (int o = 0; o < FIELDS_MAX && operation->fields[o].bytes != 0; o++)
        for (int i = 0; i < FIELDS_MAX && operation->fields[i].bytes != 0; i++) {
            const struct field *out = &operation->fields[o], *in = &operation->fields[i];
            unsigned char descriptor[STRUCT_BYTES];
            size_t length = 0;
            memcpy(descriptor, right, STRUCT_BYTES);
            const char *inputs = out->kind == BUFFER ? inputs_of(operation, out->name, &length) : NULL;
            if (o == i || !is_buffer(in) || inputs == NULL || *buffer_at(descriptor, out) == NULL ||
                *buffer_at(descriptor, in) == NULL)
                continue;
            struct keel_launch_list list = {0};
            *buffer_at(descriptor, out) = *buffer_at(descriptor, in);
            const enum keel_status status = operation->append(rig->kernels, descriptor, &list);
            keel_launch_list_fini(&list);
            const enum keel_status wanted = is_named(inputs, length, in->name) ? KEEL_OK : KEEL_INVALID;
            ck_assert_msg(status == wanted, "%s: %s over %s: %s, wanted %s", operation->name, out->name,
                          in->name, keel_status_name(status), keel_status_name(wanted));
            for (int p = 4; p < POOL; p++)
                if (*buffer_at(descriptor, in) == rig->pool[p].data)
                    *buffer_at(descriptor, out) = rig->pool[p].whole; /* begins before it */
            ck_assert_msg(operation->append(rig->kernels, descriptor, &list) == KEEL_INVALID,
                          "%s: %s partly over %s", operation->name, out->name, in->name);
            keel_launch_list_fini(&list);
        }
}

START_TEST(what_is_written_overlaps_nothing_but_what_the_descriptor_allows)
{
    struct rig rig;
    rig_open(&rig, "host");
    for (int i = 0; i < OPERATIONS; i++) {
        enum { SAMPLES = 8 };
        unsigned char descriptor[STRUCT_BYTES];
        for (int sample = 0; sample < SAMPLES; sample++) {
            ck_assert_msg(make_right(&rig, &operations[i], descriptor), "%s: nothing is accepted",
                          operations[i].name);
            each_pair(&rig, &operations[i], descriptor);
        }
    }
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_written_overlaps_nothing_but_what_the_descriptor_allows);
    tcase_add_test(tc, sizes_that_64_bits_do_not_hold_are_refused);
    tcase_add_test(tc, sizes_that_32_bits_do_not_hold_are_refused);
    tcase_add_test(tc, what_cannot_work_in_place_or_with_nan_is_refused);
    tcase_add_loop_test(tc, no_descriptor_reaches_beyond_its_buffers, 0, 2);
}

KEEL_TEST_MAIN("hostile", cases, LIMIT_S)
