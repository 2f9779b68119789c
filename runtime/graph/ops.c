/* ops.c - finds the row of an operation among the families.
 *
 * Owns nothing else: what follows from an index rule is in ops_rule.c; the rows and what their functions do,
 * in the file of each family. */
#include "ops.h"

static const struct keel_op_family *const families[] = {
    &keel_ops_dense,  &keel_ops_loss,  &keel_ops_attention, &keel_ops_table, &keel_ops_shape, &keel_ops_row,
    &keel_ops_expert, &keel_ops_image, &keel_ops_tensor,    &keel_ops_amp,   &keel_ops_shard,
};

const struct keel_op *keel_op_row(uint32_t op)
{
    static const struct keel_op none = {.name = "none", .rule = "->"};
    const struct keel_op *row = op == KEEL_OP_NONE ? &none : NULL;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (op >= families[i]->first && op <= families[i]->last)
            row = &families[i]->rows[op - families[i]->first];
    KEEL_ASSERT(row != NULL && row->name != NULL && row->rule != NULL);
    return row;
}
