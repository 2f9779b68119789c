/* chunk_batch.h - chunks of one shard, read in large pieces, decoded and checked, with the chains of their
 * deltas. One batch reader is one thread's; it takes 8 MiB for its batch and 2 MiB beside, less when little
 * is to be read. */
#ifndef KEEL_CKPT_CHUNK_BATCH_H
#define KEEL_CKPT_CHUNK_BATCH_H

#include "snapshot.h"

enum {
    /* One batch: chunks, raw bytes (each rounded up to a cache line), and stored bytes with their padding. */
    KEEL_BATCH_CHUNKS_MAX = 1024,
    KEEL_BATCH_BYTES_MAX = 4 << 20,
    KEEL_BATCH_FILES = 2 * (KEEL_FORMAT_CHAIN_MAX + 1)
};

struct keel_batch_file {
    const struct keel_shard *shard; /* NULL: free */
    int fd;
    bool direct; /* page cache passed by */
};

struct keel_batch_slot; /* chunk_batch.c */

struct keel_batch_reader {
    struct keel_snapshot *snapshot; /* borrowed */
    bool direct;                    /* pass by the page cache where the file system can */
    bool stored_only;               /* check what is stored, and give that to the sink: for who has no key */
    uint64_t room_bytes;            /* of a batch, stored and raw */
    uint32_t slot_count;
    uint64_t read_bytes; /* all that was read from files */
    uint64_t base_bytes; /* stored bytes of the bases that were needed */
    struct keel_batch_file files[KEEL_BATCH_FILES];
    uint32_t file_count;           /* of them: a shard and its bases, and as many of the one before */
    uint32_t next_file;            /* the one that goes next */
    struct keel_batch_slot *slots; /* owned, as is the memory below */
    void *memory;
    uint8_t *stored, *raw, *scratch; /* in it; the first is at a page's begin */
};
/* What a chunk may take of a batch, whatever it is stored as, and a base of it. */
uint64_t keel_batch_room(const struct keel_format_chunk *chunk);
/* For as many chunks with that much room in all as will be read; more than a batch is never needed. */
enum keel_status keel_batch_reader_init(struct keel_batch_reader *reader, struct keel_snapshot *snapshot,
                                        bool direct, uint64_t room_bytes, uint64_t chunk_count);
void keel_batch_reader_fini(struct keel_batch_reader *reader);

/* How many of `count` chunks (numbers in the shard's table, none of codec same) make up the next batch: as
 * many as its bounds allow, at least one. */
uint32_t keel_batch_fit(const struct keel_shard *shard, const uint32_t *chunks, uint32_t count);

/* Read these. `sink` gets each of them once, in any order: its raw bytes (until the sink returns), or NULL
 * and what was wrong with it, keel_detail naming file, tensor and chunk. What the sink returns ends the batch
 * when it is not OK, and is returned. */
enum keel_status keel_batch_read(struct keel_batch_reader *reader, const struct keel_shard *shard,
                                 const uint32_t *chunks, uint32_t count,
                                 enum keel_status (*sink)(void *context, uint32_t index,
                                                          enum keel_status status, const uint8_t *raw),
                                 void *context);

#endif
