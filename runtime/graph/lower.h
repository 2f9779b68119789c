/* lower.h - what the two forms of keel_pass_lower share: of a rank with all slices (pass_lower.c), and of one
 * with some (lower_rank.c). */
#ifndef KEEL_RUNTIME_LOWER_H
#define KEEL_RUNTIME_LOWER_H

#include "spec.h"

/* A value as the mesh cuts it: [outer, units, inner], of which a slice has some units. */
struct keel_cut_view {
    uint64_t outer, inner;
    uint32_t units;
};
struct keel_cut_view keel_cut_view(const struct keel_shape *whole, const struct keel_axis_spec *split);

/* The nodes of the tree over slices of which the cut has all slices, ascending: the maximal ones.
 * UNSUPPORTED: they are more than `capacity`. (lower_rank.c) */
enum keel_status keel_cut_nodes(const struct keel_slice_run *cut, struct keel_slice_run *out,
                                uint32_t capacity, uint32_t *out_count);

/* Where the part of some slices lies in the whole. */
struct keel_random_slice keel_cut_place(const struct keel_shape *whole, const struct keel_axis_spec *spec,
                                        const struct keel_slice_run *cut);

/* The slices of the index that a node of the graph before lowering sums over, those of the cut; `of` 0: it
 * sums over none. UNSUPPORTED: rows that are not the first of their dimensions are no runs. */
enum keel_status keel_lower_find_slices(const struct keel_graph *graph, const struct keel_ir_node *node,
                                        enum keel_mesh_axis axis, const struct keel_slice_run *cut,
                                        struct keel_split_index *index, struct keel_slices *out);

/* Whether the operation, of a product that sums over an index of several parts, takes its operands by units.
 */
bool keel_lower_takes_units(uint32_t op);

/* A node that reads its operand `at` with the parts of each unit side by side, where it is split along one
 * dimension: appends the copy. */
enum keel_status keel_lower_by_units(struct keel_graph *graph, struct keel_ir_node *node, uint32_t at,
                                     const struct keel_axis_spec *spec);

/* Give an accumulator a row for each of `count` slices. */
void keel_lower_widen(struct keel_ir_value *accumulator, uint32_t count);

/* keel_pass_lower of a cut that is not the whole. */
enum keel_status keel_lower_rank(struct keel_graph *graph, enum keel_mesh_axis axis,
                                 const struct keel_slice_run *cut);

#endif
