/* spec.h - the algebra of specs: what the results of a node are, given how its operands lie over the mesh.
 *
 * Follows from the index rule and the row's `split` and `move` (ops.h). An index that is split must be split
 * in every operand that has it, and alike; a result that has it is split by it; what is summed over it is
 * partial. What is partial is taken by what moves elements alone: no other operation gives the same bits of a
 * sum as of its summands. */
#ifndef KEEL_RUNTIME_SPEC_H
#define KEEL_RUNTIME_SPEC_H

#include "rule.h"

enum { KEEL_SPEC_TEXT_BYTES = 64 };

/* "replicated", "partial", "split(2, outer 3, unit 64)", "split(0-1)"; of each axis, by ", ". */
void keel_axis_spec_print(const struct keel_axis_spec *spec, char out[KEEL_SPEC_TEXT_BYTES]);
void keel_spec_print(const struct keel_spec *spec, char out[KEEL_SPEC_TEXT_BYTES]);

bool keel_axis_spec_equal(const struct keel_axis_spec *a, const struct keel_axis_spec *b);
static inline bool keel_is_partial(const struct keel_axis_spec *spec)
{
    return spec->kind == KEEL_PARTIAL || spec->kind == KEEL_PARTIAL_BITS;
}

/* Write out what 0 and KEEL_SPLIT_ROWS stand for. INVALID, naming the value: no such dimension, or it is no
 * multiple of outer times unit. */
enum keel_status keel_axis_spec_resolve(const struct keel_ir_value *value, struct keel_axis_spec *spec);
/* Elements of a unit, in all parts. */
uint64_t keel_axis_spec_each(const struct keel_axis_spec *split);
/* How many units there are to split: slices can be as many at most. */
uint64_t keel_axis_spec_units(const struct keel_shape *shape, const struct keel_axis_spec *split);
/* The dimension along which slices lie: the first of those that are split together which is longer than 1. */
uint32_t keel_axis_spec_dim(const struct keel_shape *shape, const struct keel_axis_spec *split);

/* An index of a node that an axis splits. */
struct keel_split_index {
    char letter;                /* '*': leading dimensions; 0: none */
    char mark;                  /* of the row, or 0 */
    struct keel_axis_spec part; /* outer and unit are the letter's; of '*' also dim and dims, counted from
                                   the first leading dimension */
};

/* Which index of the node a split of `value`, at this place of the rule, splits: letter 0, with `why`, where
 * the row lets it not. */
struct keel_split_index keel_split_index(const struct keel_graph *graph, const struct keel_ir_node *node,
                                         const struct keel_rule_operand *operand, keel_value value,
                                         const struct keel_axis_spec *split, char why[KEEL_SPEC_TEXT_BYTES]);
/* How a value at this place of the rule lies when the index is split: split by it, or replicated. */
struct keel_axis_spec keel_split_of(const struct keel_graph *graph, const struct keel_ir_node *node,
                                    const struct keel_rule_operand *operand, keel_value value,
                                    const struct keel_split_index *index);
/* What result `out` is when the index is split: split, partial or replicated. */
struct keel_axis_spec keel_split_result(const struct keel_graph *graph, const struct keel_ir_node *node,
                                        const struct keel_rule *rule, uint32_t out,
                                        const struct keel_split_index *index);

/* The index of a node that is split, as its operands or else its accumulators say, and which of them does;
 * false: none is, or none that the row lets be. */
bool keel_split_of_node(const struct keel_graph *graph, const struct keel_ir_node *node,
                        enum keel_mesh_axis axis, struct keel_split_index *index, keel_value *from);

/* The specs of all results of a node on one axis, accumulators too. INVALID names the operation, the specs of
 * its operands and what is unsound. */
enum keel_status keel_spec_infer(const struct keel_graph *graph, const struct keel_ir_node *node,
                                 enum keel_mesh_axis axis, struct keel_axis_spec out[KEEL_NODE_OUT_MAX]);
/* The same message, for who finds more: printf's rules. */
enum keel_status keel_spec_refuse(const struct keel_graph *graph, const struct keel_ir_node *node,
                                  enum keel_mesh_axis axis, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
