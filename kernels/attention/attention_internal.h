/* attention_internal.h - what the descriptors of attention share. */
#ifndef KEEL_ATTENTION_INTERNAL_H
#define KEEL_ATTENTION_INTERNAL_H

#include <keel/attention_ops.h>

/* Whether products of this attention are of the class of the kernels. */
bool keel_attention_in_class(const struct keel_kernels *kernels, const struct keel_attention *op);
/* The scalars that kernels of attention end with, as attention_mask.h names them. */
enum { KEEL_ATTENTION_SCALARS = 18, KEEL_ATTENTION_SCALAR_AHEAD = 6 };
void keel_attention_scalars(const struct keel_kernels *kernels, const struct keel_attention *op,
                            struct keel_arg args[KEEL_ATTENTION_SCALARS]);

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
