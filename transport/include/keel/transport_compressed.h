/* transport_compressed.h - vectors of floats as fewer bytes, which ordinary collectives add up.
 *
 * A vector is cut into blocks from its beginning, and each block becomes one element of 64 bytes
 * (enum keel_element), of one of two kinds:
 *
 *   KEEL_ELEMENT_I8_BLOCK  60 floats: the largest magnitude / 127 as a scale, and a signed byte for each
 *                          (block-wise quantisation: Dettmers et al. 2022; on the wire: Wang et al. 2023,
 *                          "ZeRO++")
 *   KEEL_ELEMENT_TOP_K     the 10 of largest magnitude of a block of any length up to 65,535, and where they
 *                          stand; the others are zero (Aji & Heafield 2017). Equal ones: lowest place first
 *
 * Such elements are summed like others, by KEEL_ALL_REDUCE and its like: the sum of two is that of the floats
 * they stand for, rounded to one element again (of TOP_K: global top-k, Shi et al. 2019, "gTop-k S-SGD"). In
 * exact order that is one rounding for each inner node of the tree over shards, whatever ranks carry them: so
 * the bits depend on neither the number of ranks nor their placement, and one rank alone computes them with
 * keel_compressed_add. Nothing is kept from one call to the next: what a rounding loses is lost.
 *
 * Not finite. A block with a number that is NaN or infinite becomes NaN as a whole (I8_BLOCK), or keeps it as
 * one of its largest (TOP_K), in all sums too.
 *
 * Pure and reentrant; elements need no alignment. */
#ifndef KEEL_TRANSPORT_COMPRESSED_H
#define KEEL_TRANSPORT_COMPRESSED_H

#include <keel/api.h>
#include <keel/transport.h>

KEEL_API_BEGIN

enum {
    KEEL_COMPRESSED_BYTES = 64, /* of an element of either kind */
    KEEL_I8_BLOCK_FLOATS = 60,
    KEEL_TOP_K_KEPT = 10,
    KEEL_TOP_K_BLOCK_MAX = 65535
};

struct keel_compression {
    enum keel_element element; /* KEEL_ELEMENT_I8_BLOCK or KEEL_ELEMENT_TOP_K */
    uint32_t block;            /* floats that an element stands for: KEEL_I8_BLOCK_FLOATS, or any number from
                                  KEEL_TOP_K_KEPT to KEEL_TOP_K_BLOCK_MAX; the same on all ranks */
};

/* Elements that so many floats become; the last one may stand for fewer. */
uint64_t keel_compressed_count(const struct keel_compression *how, uint64_t floats);
/* in[0..floats) as keel_compressed_count elements. */
void keel_compressed_encode(const struct keel_compression *how, const float *in, uint64_t floats, void *out);
/* And back. CORRUPT: a place lies outside its block (in `out` it is left out). */
enum keel_status keel_compressed_decode(const struct keel_compression *how, const void *in, uint64_t floats,
                                        float *out);
/* sum[k] += other[k], rounded as an inner node of the tree is. Which of the two is left or right makes no
 * difference. */
void keel_compressed_add(enum keel_element element, void *sum, const void *other, uint64_t count);

KEEL_API_END

#endif
