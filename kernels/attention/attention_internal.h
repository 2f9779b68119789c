/* attention_internal.h - what the descriptors of attention share. */
#ifndef KEEL_ATTENTION_INTERNAL_H
#define KEEL_ATTENTION_INTERNAL_H

#include <keel/attention_ops.h>

/* Whether the slopes are some of heads that there are: LIMIT, INVALID. (attention.c) */
enum keel_status keel_check_alibi(const char *op, const struct keel_alibi *alibi, uint32_t heads);

/* How far a query sees to one side: to the last of so many tokens, or less. */
static inline uint32_t keel_window_reach(uint32_t window, uint32_t tokens)
{
    return window == 0 || window > tokens ? tokens - 1 : window - 1;
}

#endif
