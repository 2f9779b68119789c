/* compressed_codec.h - floats to fewer bytes and back, with what is lost put aside. Pure and reentrant.
 *
 * A coded vector of `count` floats: F16 and BF16, two bytes each, to nearest even, finite ones saturating.
 * I8: one fp32 scale for every block of 256 (NaN when a number of the block is not finite), then one signed
 * byte each: the number is scale x byte. TOP_K is no such code: see below. No alignment is asked of I8. */
#ifndef KEEL_TRANSPORT_LEAN_CODEC_H
#define KEEL_TRANSPORT_LEAN_CODEC_H

#include <keel/transport_compressed.h>

enum { KEEL_COMPRESSED_BLOCK = 256, KEEL_COMPRESSED_STEP = 16 * KEEL_COMPRESSED_BLOCK };

uint64_t keel_compressed_coded_bytes(enum keel_compressed_format format, uint64_t count);

/* A run of floats within a vector: [first, first + count) of `whole`; first a multiple of
 * KEEL_COMPRESSED_BLOCK. */
struct keel_compressed_run {
    uint64_t whole, first, count;
};
/* coded = given + kept, as near as can be; keep = given + kept - coded, or kept where that is not finite.
 * given, kept and keep point at the run, coded at the whole coded vector. */
void keel_compressed_encode(enum keel_compressed_format format, struct keel_compressed_run run,
                            const float *given, const float *kept, uint8_t *coded, float *keep);
/* out = (add: out +) coded, for the run; out points at the run. */
void keel_compressed_decode(enum keel_compressed_format format, struct keel_compressed_run run,
                            const uint8_t *coded, bool add, float *out);

/* ---- the largest --------------------------------------------------------------------------------------- */

struct keel_compressed_pair {
    uint32_t index;
    float value;
};
/* The `keep_count` numbers of largest magnitude of given + kept (NaN above all; equal ones by lowest index),
 * ascending by index, into pairs; keep = what is not among them, or kept where that is not finite. */
void keel_compressed_select(const float *given, const float *kept, uint64_t count, uint64_t keep_count,
                            struct keel_compressed_pair *pairs, float *keep);

#endif
