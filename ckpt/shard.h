/* shard.h - one shard file, for reading: its checked index, and its chunks one at a time. */
#ifndef KEEL_CKPT_SHARD_H
#define KEEL_CKPT_SHARD_H

#include "format.h"
#include "store.h"

struct keel_shard {
    struct keel_format_header header;
    struct keel_format_footer footer;
    uint8_t *index; /* owned; records and chunks point into it */
    const struct keel_format_record *records;
    const struct keel_format_chunk *chunks;
};

/* Read and check header, footer and index. A file that is not there is CORRUPT: the caller has reason to
 * expect it. Unload when done. */
enum keel_status keel_shard_load(const struct keel_step_place *place, uint32_t rank, struct keel_shard *out);
void keel_shard_unload(struct keel_shard *shard);

/* MISMATCH when the shard is not the one that run, step, attempt and summary speak of. */
enum keel_status keel_shard_match(const struct keel_shard *shard, const struct keel_step_place *place,
                                  const char *run, uint32_t rank_count,
                                  const struct keel_shard_summary *summary);

/* A reader of chunks: an open file and its buffers. One thread. */
struct keel_chunk_reader {
    const struct keel_step_place *place; /* borrowed */
    const struct keel_shard *shard;      /* borrowed */
    int fd;
    uint64_t chunk_bytes;      /* the largest that the buffers hold */
    uint8_t *stored, *scratch; /* owned */
    uint8_t *raw;              /* owned; the chunk read last */
    uint64_t loaded;           /* its number in the shard's chunk table, UINT64_MAX when none */
};
/* `chunk_bytes`: raw size of the largest chunk that will be loaded. */
enum keel_status keel_chunk_reader_open(const struct keel_step_place *place, const struct keel_shard *shard,
                                        uint64_t chunk_bytes, struct keel_chunk_reader *out);
void keel_chunk_reader_close(struct keel_chunk_reader *reader);
/* Make chunk `number` of `record` the loaded one, checked. CORRUPT names file, tensor and chunk. */
enum keel_status keel_chunk_reader_load(struct keel_chunk_reader *reader,
                                        const struct keel_format_record *record, uint32_t number);

#endif
