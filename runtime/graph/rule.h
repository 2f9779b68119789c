/* rule.h - an index rule (ops.h) as data, for those who work with its letters. */
#ifndef KEEL_RUNTIME_RULE_H
#define KEEL_RUNTIME_RULE_H

#include "ops.h"

enum { KEEL_RULE_STAR = '*' };

struct keel_rule_dimension {
    uint32_t factor;
    char letter; /* 0: the constant `factor` */
};
struct keel_rule_operand {
    struct keel_rule_dimension dimension[KEEL_DIMS_MAX];
    uint32_t count;
    bool star, integer, accumulator, optional, any;
};
struct keel_rule {
    struct keel_rule_operand in[KEEL_NODE_IN_MAX];
    struct keel_rule_operand out[KEEL_NODE_OUT_MAX];
    uint32_t in_count, out_count;
};
void keel_rule_read(uint32_t op, struct keel_rule *out);

#endif
