/* tier.h - what the tiers of this room share: names of objects, sound ends of files, wholes as streams. */
#ifndef KEEL_CKPT_TIERS_TIER_H
#define KEEL_CKPT_TIERS_TIER_H

#include "format.h"
#include <keel/ckpt_tier.h>

enum { KEEL_TIER_PIECE_BYTES = 1 << 20 }; /* copies and checks go piece by piece */

_Static_assert((int)KEEL_OBJECT_DIGEST_BYTES == (int)KEEL_DIGEST_BYTES, "one digest");

/* "step-5.2/rank-0.keel of partner 3's memory", for messages. */
struct keel_label {
    char text[KEEL_OBJECT_NAME_BYTES + KEEL_TIER_NAME_BYTES + 8];
};
struct keel_label keel_tier_label(const struct keel_tier *tier, const struct keel_object *object);
struct keel_label keel_source_label(const struct keel_tier_source *source);

/* The file's name, without its directory; and back. The parser fills kind, set and member only. */
void keel_object_file_name(const struct keel_object *object, char out[KEEL_OBJECT_NAME_BYTES]);
bool keel_object_file_parse(const char *name, struct keel_object *out);

/* Fill in what all tiers have. INVALID: no valid run name. */
enum keel_status keel_tier_init(struct keel_tier *tier, const struct keel_tier_ops *ops,
                                enum keel_tier_latency latency, const char *run, const char *name);

/* Header, footer and index of a shard, checked, and seen to be that of the object. */
struct keel_frame {
    struct keel_format_header header;
    struct keel_format_footer footer;
    uint8_t *index; /* owned; from index_offset to the footer, zeros included */
};
enum keel_status keel_frame_load(struct keel_tier_source *source, struct keel_frame *out);
void keel_frame_unload(struct keel_frame *frame);
/* Header and footer only; *out.index stays NULL. */
enum keel_status keel_frame_load_ends(struct keel_tier_source *source, struct keel_frame *out);

/* Read and check a manifest; finish it with keel_manifest_fini. Its bytes as they were read go to *out_text
 * (free with keel_free) and *out_bytes; NULL when not wanted. */
struct keel_manifest;
enum keel_status keel_manifest_from_tier(struct keel_tier *tier, const struct keel_object *object,
                                         struct keel_manifest *out, char **out_text, uint64_t *out_bytes);

/* Is it what its name says, as far as header, footer, or a manifest's check tell? */
enum keel_status keel_source_quick_check(struct keel_tier_source *source);
/* keel_tier_verify on an open source. Leaves the digest of what it has seen in the source's info: what is
 * read again is compared with it, as a disk or a link may give other bytes the second time. */
enum keel_status keel_source_verify(struct keel_tier_source *source);
/* What was read must be what the source says to hold, where it says so: CORRUPT. */
enum keel_status keel_source_compare(const struct keel_tier_source *source,
                                     const uint8_t digest[KEEL_DIGEST_BYTES]);
/* Copy an open source without looking into it. */
enum keel_status keel_source_copy(struct keel_tier_source *source, struct keel_tier *to);

#endif
