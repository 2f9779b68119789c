/* shard.h - one shard file, for reading: its checked index. Its chunks are read by chunk_batch.h. */
#ifndef KEEL_CKPT_SHARD_H
#define KEEL_CKPT_SHARD_H

#include "format.h"
#include "manifest.h"

struct keel_shard {
    const struct keel_step_place *place; /* borrowed */
    struct keel_format_header header;
    struct keel_format_footer footer;
    uint8_t *index; /* owned; records and chunks point into it */
    const struct keel_format_record *records;
    const struct keel_format_chunk *chunks;
};

/* Read and check header, footer and index. A file that is not there is CORRUPT: the caller has reason to
 * expect it. Unload when done; `place` must live and stay where it is till then. */
enum keel_status keel_shard_load(const struct keel_step_place *place, uint32_t rank, struct keel_shard *out);
void keel_shard_unload(struct keel_shard *shard);

/* The same, and see that the shard is the one that the manifest, which is the place's, speaks of: MISMATCH.
 * And that it comes from who has the place's key: it is sealed like its manifest or not at all (MISMATCH;
 * FORGED if the manifest is proven), and if so its mac is right (AUTH, FORGED). Without a key no mac is
 * looked at. On failure there is nothing to unload. */
enum keel_status keel_shard_load_of(const struct keel_step_place *place, const struct keel_manifest *manifest,
                                    uint32_t rank, struct keel_shard *out);

/* The record that a chunk belongs to. */
const struct keel_format_record *keel_shard_record_of(const struct keel_shard *shard, uint32_t chunk);
/* The shard's path, for messages. */
enum keel_status keel_shard_path(const struct keel_shard *shard, char out[KEEL_PATH_BYTES]);
/* Open the file again, to read chunks. CORRUPT when it is gone. */
enum keel_status keel_shard_open(const struct keel_shard *shard, int *out_fd);

#endif
