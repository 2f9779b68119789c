/* transport_compressed.h - all-reduces that send less: fewer bits a number, fewer numbers, or only the rows
 * there are.
 *
 * A layer above keel_group_begin, for the native mode: what is delivered is not the exact sum (rows: in no
 * tree order), but every rank gets the same bits, and the same inputs and state on the same number of ranks
 * give them again. What a lossy format does not deliver is kept in the state object and added to the next
 * step's gradient (error feedback: Seide et al. 2014, "1-bit SGD"; Karimireddy et al. 2019). Both roundings
 * are kept: the one of what a rank sends, and the one of the sum by the rank that made it (Tang et al. 2019,
 * "DoubleSqueeze"). So over any number of steps, in exact arithmetic,
 *     all that was delivered + what all states still hold = all that was given.
 *
 * Threads. An object is used by one thread at a time; several objects may have a call under way at once.
 * Memory. Everything is allocated at creation. After a failed call the group is finished, as for every
 * collective: close it before the object is used again or freed, since connections may still read its
 * buffers. */
#ifndef KEEL_TRANSPORT_LEAN_H
#define KEEL_TRANSPORT_LEAN_H

#include <keel/api.h>
#include <keel/transport.h>

KEEL_API_BEGIN

enum keel_compressed_format {
    KEEL_COMPRESSED_F16,   /* 2 bytes a number */
    KEEL_COMPRESSED_BF16,  /* 2 bytes */
    KEEL_COMPRESSED_I8,    /* 1 byte, and 4 for each block of 256: its largest magnitude / 127 (block-wise
                        quantisation: Dettmers et al. 2022; on the wire: Wang et al. 2023, "ZeRO++") */
    KEEL_COMPRESSED_TOP_K, /* the `keep` numbers of largest magnitude, 8 bytes each: index and value (Aji &
                        Heafield 2017; Lin et al. 2018, "Deep Gradient Compression"). Equal ones: lowest index
                        first */
    KEEL_COMPRESSED_FORMAT_COUNT
};
const char *
keel_compressed_format_name(enum keel_compressed_format format); /* "f16", "bf16", "i8", "top-k" */

struct keel_compressed_config {
    uint32_t rank, rank_count; /* of the groups that it is used with */
    enum keel_compressed_format format;
    enum keel_reduction reduction; /* KEEL_SUM or KEEL_AVERAGE (over ranks) */
    uint64_t count;                /* floats; below 2^32 */
    uint64_t keep;                 /* TOP_K: how many each rank sends, 1 .. count (0 if that is 0); else 0 */
};

struct keel_compressed;

/* The state of one tensor on one rank; nothing is kept yet. INVALID names what is wrong; NO_MEMORY. About
 * 4 times the floats in memory (top-k: 2). */
enum keel_status keel_compressed_create(const struct keel_compressed_config *config,
                                        struct keel_compressed **out);
void keel_compressed_free(struct keel_compressed *compressed); /* NULL is fine */

/* All-reduce part[0..count) into result[0..count), both fp32 and apart; lent until the wait returned OK or
 * the group is closed. Two messages to and from every rank (top-k: an all-gather), so in big groups use it
 * over split ones. Uses the numbers `sequence` and `sequence + 1` of the group. Begin encodes and does not
 * block; the wait goes on from there, so every rank must wait, and for several objects in the same order. All
 * ranks need the same config (rank apart): MISMATCH otherwise. Any failure leaves what is kept as it was.
 *
 * Not finite. A number that is NaN or infinite after what is kept was added is delivered as such (i8: its
 * block becomes NaN; top-k: they count as the largest), to all ranks, and what is kept there stays as it was:
 * a caller that skips such a step loses that step's gradient alone. Finite numbers stay finite: what is too
 * large for fp16 or bf16 is delivered as the largest there is, and the rest kept. */
enum keel_status keel_compressed_begin(struct keel_compressed *compressed, struct keel_group *group,
                                       uint64_t sequence, const float *part, float *result);
/* As keel_operation_wait. INVALID: nothing was begun. */
enum keel_status keel_compressed_wait(struct keel_compressed *compressed, uint64_t deadline_ns);
enum keel_status keel_compressed_run(struct keel_compressed *compressed, struct keel_group *group,
                                     uint64_t sequence, const float *part, float *result,
                                     uint64_t deadline_ns);

/* The last successful call has not been: what is kept is what was before it. For the rank that heard OK of a
 * step that others lost, and that is run again in the next view. False when there is nothing to undo. */
bool keel_compressed_undo(struct keel_compressed *compressed);
/* What is kept: `count` floats of this rank, then those of the slice that it sums (top-k: none). Part of the
 * training state: save it, and put it back into an object of the same config. Valid until the next call. */
float *keel_compressed_residual(struct keel_compressed *compressed, uint64_t *out_count);
/* Move what is kept of the slice into the rank's own `count` floats, so that these alone can be given to an
 * object of another view. */
void keel_compressed_fold(struct keel_compressed *compressed);

struct keel_compressed_stats {
    uint64_t calls;                     /* that succeeded */
    uint64_t wire_bytes, wire_messages; /* sent by this endpoint from their begin to their end, headers and
                                           all; exact where nothing else is under way meanwhile */
};
void keel_compressed_stats(const struct keel_compressed *compressed, struct keel_compressed_stats *out);
/* Payload that all ranks together send in one call, without headers: 2 (n - 1) times the encoded vector, and
 * 16 bytes from everybody to everybody; top-k: n (n - 1) times 16 bytes and 8 for each number. */
uint64_t keel_compressed_wire_bytes(const struct keel_compressed_config *config);

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Gradients of embeddings: each rank has some rows of a matrix, each `width` floats. */

struct keel_rows_config {
    uint32_t rank, rank_count;
    enum keel_reduction reduction; /* KEEL_SUM or KEEL_AVERAGE (over ranks, those without the row included) */
    uint32_t width;                /* floats of a row, 1 .. */
    uint64_t rows_max;             /* of all ranks together; below 2^32 */
};

struct keel_rows;
struct keel_row_set {
    uint64_t count;
    const uint32_t *indices; /* ascending, none twice */
    const float *values;     /* count rows of width floats, in that order */
};

/* About 2 x rows_max x (width + 1) floats in memory. */
enum keel_status keel_rows_create(const struct keel_rows_config *config, struct keel_rows **out);
void keel_rows_free(struct keel_rows *rows); /* NULL is fine */
/* The union of all ranks' rows, ascending, each the sum over the ranks that have it in rank order: exact but
 * for fp32 rounding. Blocks until the deadline at most: how much comes must be known before it can be asked
 * for. `part` is lent as above; *out belongs to the object and is valid until its next call. Uses the numbers
 * sequence .. sequence + 2. LIMIT, on all ranks: more than rows_max; MISMATCH, on all: configs differ. After
 * either the group goes on. CORRUPT: what came is not ascending. */
enum keel_status keel_rows_run(struct keel_rows *rows, struct keel_group *group, uint64_t sequence,
                               const struct keel_row_set *part, struct keel_row_set *out,
                               uint64_t deadline_ns);

KEEL_API_END

#endif
