/* synthetic.h - snapshots that exist only as indexes in memory: as many records and chunks as a test of
 * planning wants, and not one byte on a disk. For tests and benches; stops the program when memory ends. */
#ifndef KEEL_TESTS_CKPT_SYNTHETIC_H
#define KEEL_TESTS_CKPT_SYNTHETIC_H

#include "load_plan.h"
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void synthetic_must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "synthetic snapshot: %s: %s\n", keel_status_name(status), keel_detail());
    exit(1);
}

struct synthetic_rank {
    const struct keel_region *regions;
    uint32_t count;
};

static inline void synthetic_shard(const struct synthetic_rank *rank, struct keel_shard *out)
{
    uint64_t chunk_count = 0, at = KEEL_FORMAT_BLOCK_BYTES, number = 0;
    for (uint32_t i = 0; i < rank->count; i++)
        chunk_count += (keel_region_bytes(&rank->regions[i]) + KEEL_FORMAT_CHUNK_BYTES - 1) >> 20;
    synthetic_must(keel_alloc(1,
                              rank->count * sizeof(struct keel_format_record) +
                                  chunk_count * sizeof(struct keel_format_chunk) + 1,
                              &out->index));
    struct keel_format_record *records = (struct keel_format_record *)(void *)out->index;
    struct keel_format_chunk *chunks = (struct keel_format_chunk *)(void *)(records + rank->count);
    for (uint32_t i = 0; i < rank->count; i++) {
        const struct keel_region *region = &rank->regions[i];
        struct keel_format_record *record = &records[i];
        memcpy(record->name, region->name, sizeof record->name);
        record->dtype = (uint32_t)region->dtype;
        record->dims = region->dims;
        memcpy(record->shape, region->shape, sizeof record->shape);
        memcpy(record->offset, region->offset, sizeof record->offset);
        memcpy(record->extent, region->extent, sizeof record->extent);
        record->raw_bytes = keel_region_bytes(region);
        record->first_chunk = number;
        record->chunk_bytes = KEEL_FORMAT_CHUNK_BYTES;
        for (uint64_t left = record->raw_bytes; left > 0; number++, record->chunk_count++) {
            uint32_t bytes = left < KEEL_FORMAT_CHUNK_BYTES ? (uint32_t)left : KEEL_FORMAT_CHUNK_BYTES;
            chunks[number] =
                (struct keel_format_chunk){.file_offset = at, .raw_bytes = bytes, .stored_bytes = bytes};
            at += keel_round_up(bytes, KEEL_FORMAT_BLOCK_BYTES);
            left -= bytes;
        }
    }
    out->records = records;
    out->chunks = chunks;
    out->footer.record_count = rank->count;
    out->footer.chunk_count = (uint32_t)chunk_count;
}

/* The regions' unused dimensions are zero. The table of tensors is built as for a real one. */
static inline struct keel_snapshot *synthetic_snapshot(const struct synthetic_rank *ranks, uint32_t count)
{
    struct keel_snapshot *snapshot;
    synthetic_must(keel_alloc(1, sizeof *snapshot, &snapshot));
    snapshot->handle = KEEL_HANDLE_OPEN;
    snprintf(snapshot->place.path, sizeof snapshot->place.path, "synthetic");
    snapshot->manifest.info.shard_count = count;
    synthetic_must(keel_alloc(count, sizeof *snapshot->shards, &snapshot->shards));
    for (uint32_t i = 0; i < count; i++)
        synthetic_shard(&ranks[i], &snapshot->shards[i]);
    synthetic_must(keel_tensor_table_build(snapshot));
    return snapshot;
}

static inline void synthetic_free(struct keel_snapshot *snapshot)
{
    for (uint32_t i = 0; i < snapshot->manifest.info.shard_count; i++)
        keel_free(snapshot->shards[i].index);
    keel_free(snapshot->shards);
    keel_free(snapshot->pieces);
    keel_free(snapshot->tensors);
    keel_free(snapshot);
}

#endif
