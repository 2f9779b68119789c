/* quantise.h - weights in few bits: symmetric, an integer for each and a scale for each group of them
 * (Dettmers et al. 2022; Frantar et al. 2023). Of an output's inputs, all together or so many at a time, the
 * largest in size is the largest integer:
 *
 *     scale = max |w| / M        q = w / scale, to nearest, ties to even        w' = q * scale
 *
 * M = 127 for 8 bits, 7 for 4. Divisions and products are those of float, rounded correctly, so the same
 * everywhere. Only matrices that products alone read become integers: tables of embeddings, norms and biases
 * do not, nor a table that is the output layer too. Pure. */
#ifndef KEEL_QUANTISE_H
#define KEEL_QUANTISE_H

#include <keel/graph.h>

struct keel_quantise {
    uint32_t bits;  /* 8 or 4; 0: weights stay as they are */
    uint32_t group; /* inputs that share a scale: 32, 64 or 128; 0: all of an output's */
};
/* "int8", "int4", or with a group behind a colon, "int4:32"; of int8 the default group is 0, of int4 32.
 * NULL: none. INVALID says what is wanted. */
enum keel_status keel_quantise_read(const char *word, struct keel_quantise *out);

/* A parameter as matrices: of input i and output o element (c * outputs + o) * inputs + i, or where outputs
 * lie side by side (c * inputs + i) * outputs + o. */
struct keel_matrix {
    uint64_t copies, inputs, outputs;
    bool across; /* outputs lie side by side */
};
/* The parameter of that name; false: it is not read by products alone. Convolutions are products of all that
 * a place of the output sees. The graph is a model's, before any pass. */
bool keel_quantise_finds(const struct keel_graph *graph, const char *param, struct keel_matrix *out);

/* Scales to an output: 1, or as many as there are groups of inputs, of which the last may be smaller. */
uint64_t keel_quantise_groups(const struct keel_quantise *how, const struct keel_matrix *matrix);
/* Integers [copies, outputs, inputs] and scales [copies, outputs, groups], whichever way `weights` lie.
 * INVALID: one is no finite number. */
enum keel_status keel_quantise(const struct keel_quantise *how, const struct keel_matrix *matrix,
                               const float *weights, int8_t *out, float *out_scales);
/* The same as the words of a product with weights in few bits (keel_quantised_pack), of one copy. Errors as
 * before; NO_MEMORY. */
enum keel_status keel_quantise_pack(const struct keel_quantise *how, const struct keel_matrix *matrix,
                                    const float *weights, uint32_t *out);
/* What these stand for, in place. */
enum keel_status keel_quantise_round(const struct keel_quantise *how, const struct keel_matrix *matrix,
                                     float *weights);

#endif
