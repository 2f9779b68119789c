/* autodiff.h - what the gradient function of a row works with.
 *
 * It is called with a forward node at which a gradient has arrived, and appends the nodes that hand it on:
 * first what parameters get, so that they are final early, then what other operands get. */
#ifndef KEEL_RUNTIME_AUTODIFF_H
#define KEEL_RUNTIME_AUTODIFF_H

#include "ops.h"

/* The uses of a parameter: the nodes of the model that read it. */
struct keel_param_uses {
    uint32_t before; /* how many stand before the node of the walk: this one's number, where it is one */
    keel_value here; /* the accumulator of the node of the walk; 0: none was asked for yet */
};

struct keel_autodiff {
    struct keel_graph *graph;
    struct keel_param_uses *uses; /* by parameter */
    keel_value *gradient;         /* by value: its gradient so far, or 0 */
    bool *wanted;                 /* by value: a trained parameter stands behind it */
    uint32_t count;               /* forward values */
    uint32_t node;                /* number of the forward node */
};

/* The gradient that has arrived at a result of a node; 0 for one that nobody uses. */
static inline keel_value arrived(const struct keel_autodiff *autodiff, keel_value value)
{
    return autodiff->gradient[value];
}

/* The accumulator of a parameter (a statistic has one too) for the forward node that is walked; 0 when
 * `value` is absent, no parameter or frozen: then no node may be made for its gradient alone. */
keel_value keel_gradient_accumulator(struct keel_autodiff *autodiff, keel_value value);
static inline keel_value accumulator(struct keel_autodiff *autodiff, keel_value value)
{
    return keel_gradient_accumulator(autodiff, value);
}

/* Whether anybody needs the gradient of `value`. */
static inline bool wanted(const struct keel_autodiff *autodiff, keel_value value)
{
    return value != 0 && autodiff->wanted[value];
}

/* Another summand of the gradient of `value`, unless that is not wanted; into its accumulator when it is a
 * parameter. */
void keel_gradient_add(struct keel_autodiff *autodiff, keel_value value, keel_value summand);
/* The same, of what a new node makes. */
#define KEEL_GRADIENT(autodiff, value, ...)                                                                  \
    keel_gradient_add(autodiff, value, KEEL_NODE((autodiff)->graph, __VA_ARGS__))

/* Ask the forward node itself for its optional result `out`, of the shape of its operand 0: a gradient that
 * it has at hand. */
keel_value keel_gradient_from_forward(struct keel_autodiff *autodiff, uint32_t out);

#endif
