/* attention_internal.h - what the descriptors of attention share. */
#ifndef KEEL_ATTENTION_INTERNAL_H
#define KEEL_ATTENTION_INTERNAL_H

#include <keel/attention_ops.h>

/* Whether products of this attention are of the class of the kernels. */
bool keel_attention_in_class(const struct keel_kernels *kernels, const struct keel_attention *op);
/* The scalars that kernels of attention end with, as attention_mask.h names them. */
enum { KEEL_ATTENTION_SCALARS = 19, KEEL_ATTENTION_SCALAR_AHEAD = 7 };
void keel_attention_scalars(const struct keel_kernels *kernels, const struct keel_attention *op,
                            struct keel_arg args[KEEL_ATTENTION_SCALARS]);

/* Heads of keys and values. */
uint32_t keel_attention_kv_heads(const struct keel_attention *op);
/* From which float of the gradient's workspace on the gradients of keys and values that several heads share
 * lie as each head has them: [batch, keys, 2, heads, head_width]. */
uint64_t keel_attention_shares_at(const struct keel_kernels *kernels, const struct keel_attention *op);

/* These added up (rotary.c, whose kernel turns keys back before): y is [batch, tokens, front + 2 kv_heads,
 * head_width], of which what is behind `front` is written; where base is not 0 the front is turned back too,
 * in place. Checks nothing. */
struct keel_rotary_share {
    uint32_t batch, tokens, heads, kv_heads, head_width, front, first_head;
    struct keel_rotary_turn turned;
    struct keel_buffer *shares;
    uint64_t at;
    struct keel_buffer *y;
};
enum keel_status keel_rotary_share_append(struct keel_kernels *kernels, const struct keel_rotary_share *share,
                                          struct keel_launch_list *list);

/* INVALID, LIMIT: what keel_op_rotary does not take. */
enum keel_status keel_check_rotary_turn(const struct keel_rotary_turn *turn, uint32_t head_width);

/* Of attention in a class (attention_class.c): whether its parts are there, and its launches; the gradient's
 * behind those of keel_attention_rows. */
enum keel_status keel_attention_check_parts(const struct keel_kernels *kernels,
                                            const struct keel_attention *op, bool gradient);
enum keel_status keel_attention_class_append(struct keel_kernels *kernels, const struct keel_attention *op,
                                             struct keel_launch_list *list);
enum keel_status keel_attention_class_append_grad(struct keel_kernels *kernels,
                                                  const struct keel_attention_grad *op,
                                                  struct keel_launch_list *list);

/* Whether the slopes are some of heads that there are: LIMIT, INVALID. (attention.c) */
enum keel_status keel_check_alibi(const char *op, const struct keel_alibi *alibi, uint32_t heads);

/* How far a query sees to one side: to the last of so many tokens, or less. */
static inline uint32_t keel_window_reach(uint32_t window, uint32_t tokens)
{
    return window == 0 || window > tokens ? tokens - 1 : window - 1;
}

#endif
