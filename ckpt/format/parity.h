/* parity.h - the parity file of an erasure set, version 1, as bytes, and how shards and parity lie over
 * nodes.
 *
 * Owns the little-endian structs, their limits and checks, and the geometry. README.md specifies the same for
 * strangers; the two change together. Left to others: the arithmetic (erasure_code.c), reading through a
 * tier (parity_file.c), making and using sets (erasure_protect.c, tier_erasure.c).
 *
 *   0       header block, 4096 bytes
 *   4096    one record for each stripe in which this node holds parity, in order: a block of 4096 bytes with
 *           the checks of all nodes' cells of that stripe, then the parity cell
 *   end     footer block, 4096 bytes
 *
 * Stripes. n nodes, m of parity, k = n - m. In stripe j node (j + i) mod n holds parity cell i, for i below
 * m; each of the others puts in the next cell of its shard, zeros where that has ended. */
#ifndef KEEL_CKPT_PARITY_H
#define KEEL_CKPT_PARITY_H

#include "format.h"
#include <keel/ckpt_tier.h>

enum {
    KEEL_PARITY_BLOCK_BYTES = 4096,
    KEEL_PARITY_CELL_BYTES_MIN = 4096,
    KEEL_PARITY_CELL_BYTES_MAX = 1 << 20
};

struct keel_parity_member {
    uint64_t shard_bytes; /* 0 without a shard */
    uint32_t rank;        /* of its shard, or KEEL_ERASURE_NO_SHARD */
    uint32_t zero;
};
_Static_assert(sizeof(struct keel_parity_member) == 16, "parity member");

struct keel_parity_header {
    char magic[8]; /* KEELPRTY */
    uint32_t version;
    uint32_t header_bytes; /* 4096 */
    uint64_t step, attempt;
    uint32_t set, member;
    char run[KEEL_RUN_NAME_BYTES]; /* padded with NUL, at least one */
    uint32_t node_count, parity_count;
    uint32_t cell_bytes; /* a power of two, 4096 .. 1 MiB */
    uint32_t zero;
    uint64_t stripe_count; /* the fewest that take in every shard */
    uint64_t file_bytes;   /* of this parity file */
    uint8_t reserved[112];
    uint64_t check; /* XXH3-64 of the whole block, this field taken as zero */
    struct keel_parity_member members[KEEL_ERASURE_NODES_MAX]; /* zero from node_count on */
    uint8_t rest[2816];
};
_Static_assert(sizeof(struct keel_parity_header) == KEEL_PARITY_BLOCK_BYTES, "parity header");
_Static_assert(offsetof(struct keel_parity_header, step) == 16, "parity header.step");
_Static_assert(offsetof(struct keel_parity_header, set) == 32, "parity header.set");
_Static_assert(offsetof(struct keel_parity_header, run) == 40, "parity header.run");
_Static_assert(offsetof(struct keel_parity_header, node_count) == 104, "parity header.node_count");
_Static_assert(offsetof(struct keel_parity_header, cell_bytes) == 112, "parity header.cell_bytes");
_Static_assert(offsetof(struct keel_parity_header, stripe_count) == 120, "parity header.stripe_count");
_Static_assert(offsetof(struct keel_parity_header, file_bytes) == 128, "parity header.file_bytes");
_Static_assert(offsetof(struct keel_parity_header, check) == 248, "parity header.check");
_Static_assert(offsetof(struct keel_parity_header, members) == 256, "parity header.members");

struct keel_parity_stripe {
    char magic[8];      /* KEELSTRP */
    uint64_t check;     /* XXH3-64 of the whole block, this field taken as zero */
    uint64_t set_check; /* binds it to its set: see keel_parity_set_check */
    uint64_t stripe;
    uint32_t member; /* whose file this is */
    uint32_t zero;
    uint8_t reserved[24];
    uint64_t checks[KEEL_ERASURE_NODES_MAX]; /* XXH3-64 of each node's cell of this stripe; 0 from n on */
    uint8_t rest[3520];
};
_Static_assert(sizeof(struct keel_parity_stripe) == KEEL_PARITY_BLOCK_BYTES, "parity stripe");
_Static_assert(offsetof(struct keel_parity_stripe, stripe) == 24, "parity stripe.stripe");
_Static_assert(offsetof(struct keel_parity_stripe, checks) == 64, "parity stripe.checks");

struct keel_parity_footer {
    char magic[8]; /* KEELPEND */
    uint32_t version;
    uint32_t footer_bytes; /* 4096 */
    uint64_t set_check;
    uint32_t member;
    uint32_t zero;
    uint8_t reserved[224];
    uint8_t digests[KEEL_ERASURE_NODES_MAX][KEEL_DIGEST_BYTES]; /* XXH3-128 of each member's whole shard; zero
                                                                 * without one */
    uint8_t rest[2808];
    uint64_t check; /* XXH3-64 of the 4088 bytes before it */
};
_Static_assert(sizeof(struct keel_parity_footer) == KEEL_PARITY_BLOCK_BYTES, "parity footer");
_Static_assert(offsetof(struct keel_parity_footer, set_check) == 16, "parity footer.set_check");
_Static_assert(offsetof(struct keel_parity_footer, digests) == 256, "parity footer.digests");
_Static_assert(offsetof(struct keel_parity_footer, check) == 4088, "parity footer.check");

/* ---- geometry ------------------------------------------------------------------------------------------ */

struct keel_parity_shape {
    uint32_t node_count, parity_count, cell_bytes;
    uint64_t stripe_count;
};
/* Which parity cell node `node` holds in that stripe: 0 .. m - 1; m when it holds data. */
uint32_t keel_parity_row(const struct keel_parity_shape *shape, uint64_t stripe, uint32_t node);
/* How many data cells a node has put in before that stripe. */
uint64_t keel_parity_data_before(const struct keel_parity_shape *shape, uint64_t stripe, uint32_t node);
/* The stripe of a node's data cell or parity cell of that number. */
uint64_t keel_parity_stripe_of(const struct keel_parity_shape *shape, uint32_t node, bool data,
                               uint64_t cell);
/* The fewest stripes that take in shards of these sizes. */
uint64_t keel_parity_stripes_needed(const struct keel_parity_shape *shape,
                                    const struct keel_parity_member *members);
/* The size of a node's parity file, and where the record of its parity cell of that number begins. */
uint64_t keel_parity_file_bytes(const struct keel_parity_shape *shape, uint32_t node);
uint64_t keel_parity_record_offset(const struct keel_parity_shape *shape, uint64_t cell);

/* ---- blocks -------------------------------------------------------------------------------------------- */

struct keel_parity_shape keel_parity_shape_of(const struct keel_parity_header *header);
/* The same for all files of a set, and for no other set: of the header with member, size and check as zero.
 */
uint64_t keel_parity_set_check(const struct keel_parity_header *header);
/* Fill magic, version, sizes and check; the other fields are the caller's. */
void keel_parity_header_seal(struct keel_parity_header *header);
void keel_parity_stripe_seal(struct keel_parity_stripe *stripe);
void keel_parity_footer_seal(struct keel_parity_footer *footer);
/* Check all that the bytes tell. CORRUPT or VERSION. `label` is for the message. */
enum keel_status keel_parity_header_check(const struct keel_parity_header *header, const char *label);
enum keel_status keel_parity_footer_check(const struct keel_parity_footer *footer, const char *label);
/* Sound, and of that set, stripe and member. */
bool keel_parity_stripe_sound(const struct keel_parity_stripe *block, uint64_t set_check, uint64_t stripe,
                              uint32_t member);

/* ---- a file through a tier (parity_file.c) ------------------------------------------------------------ */

/* CORRUPT, VERSION, MISMATCH (of another run, step, set or member). */
enum keel_status keel_parity_read_header(struct keel_tier_source *source, struct keel_parity_header *out);
enum keel_status keel_parity_read_footer(struct keel_tier_source *source, struct keel_parity_footer *out);
/* Header and footer, and that they belong together. */
enum keel_status keel_parity_quick_check(struct keel_tier_source *source);
/* All of the file; names the stripe that is damaged. */
enum keel_status keel_parity_verify(struct keel_tier_source *source);

#endif
