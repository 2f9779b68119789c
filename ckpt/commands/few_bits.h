/* few_bits.h - weights in few bits of safetensors files, as the compressed-tensors library and `keel export
 * --weights` write them, as the floats that they stand for. Of a matrix NAME there are
 *
 *     NAME         int8 [copies,] outputs, inputs; or in its place
 *     NAME_packed  int32 [copies,] outputs, inputs / 8, rounded up: eight numbers of q + 8 each, the first in
 *                  the lowest bits, and NAME_shape
 *     NAME_scale   a float [copies,] outputs, groups
 *
 * and q * scale, in float, is a weight. A group has as many numbers as the note keel.weights of our own files
 * says, or else inputs / groups. The note keel.shapes of our own files, a JSON object, says of which matrices
 * the model has another shape, and whether outputs lie side by side there (`across`): else it is that of the
 * integers. Zero points and orders of activation are refused. */
#ifndef KEEL_CKPT_FEW_BITS_H
#define KEEL_CKPT_FEW_BITS_H

#include <keel/safetensors.h>

enum keel_few_role {
    KEEL_FEW_NONE,   /* a tensor as others are */
    KEEL_FEW_MATRIX, /* the integers of one */
    KEEL_FEW_PART    /* what belongs to those: its scales, its shape */
};

struct keel_few {
    uint32_t integers, scales; /* tensors of the file */
    bool packed, across;
    uint64_t copies, outputs, inputs, groups, group;
    char name[KEEL_TENSOR_NAME_BYTES];
    uint32_t dims; /* of the floats */
    uint64_t shape[KEEL_TENSOR_DIMS_MAX];
};

/* What a tensor of the file is; *out is set of a MATRIX. CORRUPT, with its name: tensors that do not belong
 * together. UNSUPPORTED: ways that are not read. */
enum keel_status keel_few_find(const struct keel_safetensors *file, uint32_t index,
                               enum keel_few_role *out_role, struct keel_few *out);
/* All of its floats, as the model has them. CORRUPT, NO_MEMORY, IO. */
enum keel_status keel_few_read(const struct keel_safetensors *file, const struct keel_few *few, float *out);

#endif
