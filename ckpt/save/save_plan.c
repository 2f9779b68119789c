/* save_plan.c - what a save will do, before it does anything: settings checked, regions cut into chunks, the
 * arena measured, the base for deltas chosen. */
#include "save.h"
#include <keel/memory.h>
#include <string.h>

enum { CHAIN_DEFAULT = 4 };

/* ---- settings ------------------------------------------------------------------------------------------ */

/* A copy names a master that is none itself, of the same box, whose type can be rounded to its own. */
static enum keel_status check_same_as(const struct keel_save_config *config, uint32_t number)
{
    uint32_t master_number = config->same_as[number];
    if (master_number == KEEL_SAME_AS_NONE)
        return KEEL_OK;
    const struct keel_region *copy = &config->regions[number];
    if (master_number >= config->region_count)
        return keel_fail(KEEL_INVALID, "tensor %s: its master is region %u of %u", copy->name, master_number,
                         config->region_count);
    const struct keel_region *master = &config->regions[master_number];
    size_t used = copy->dims * sizeof copy->shape[0];
    if (config->same_as[master_number] != KEEL_SAME_AS_NONE ||
        !keel_format_rounds((uint32_t)copy->dtype, (uint32_t)master->dtype) || copy->dims != master->dims ||
        memcmp(copy->shape, master->shape, used) != 0 || memcmp(copy->offset, master->offset, used) != 0 ||
        memcmp(copy->extent, master->extent, used) != 0)
        return keel_fail(KEEL_INVALID, "tensor %s: %s is no master of it: another box or type", copy->name,
                         master->name);
    return KEEL_OK;
}

static enum keel_status check_regions(const struct keel_save_config *config)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        KEEL_TRY(keel_region_check(&config->regions[i]));
        chunks += keel_region_bytes(&config->regions[i]) / keel_region_chunk_bytes(&config->regions[i]) + 1;
    }
    if (chunks > KEEL_FORMAT_CHUNKS_MAX)
        return keel_fail(KEEL_LIMIT, "a shard holds at most %d chunks; use more ranks",
                         KEEL_FORMAT_CHUNKS_MAX);
    for (uint32_t i = 0; config->same_as != NULL && i < config->region_count; i++)
        KEEL_TRY(check_same_as(config, i));
    return KEEL_OK;
}

enum keel_status keel_save_check_config(const struct keel_save_config *config)
{
    if (config->rank_count == 0 || config->rank_count > KEEL_SNAPSHOT_RANKS_MAX ||
        config->rank >= config->rank_count || config->read == NULL || config->codec > KEEL_CODEC_DELTA ||
        config->drain_threads > KEEL_SAVE_DRAIN_MAX || config->capture_threads > KEEL_SAVE_CAPTURE_MAX ||
        config->chain_max > KEEL_FORMAT_CHAIN_MAX || config->region_count > KEEL_FORMAT_RECORDS_MAX)
        return keel_fail(KEEL_INVALID,
                         "a save needs rank < rank_count <= %d, a read function, the codec raw, planes or "
                         "delta, at most %d drain threads, %d capture threads, %d bases in a chain and %d "
                         "regions",
                         KEEL_SNAPSHOT_RANKS_MAX, KEEL_SAVE_DRAIN_MAX, KEEL_SAVE_CAPTURE_MAX,
                         KEEL_FORMAT_CHAIN_MAX, KEEL_FORMAT_RECORDS_MAX);
    return check_regions(config);
}

/* ---- index and jobs ------------------------------------------------------------------------------------ */

static void fill_record(const struct keel_region *region, uint64_t first_chunk,
                        struct keel_format_record *record)
{
    size_t used = region->dims * sizeof region->shape[0];
    uint64_t raw_bytes = keel_region_bytes(region);
    memcpy(record->name, region->name, strlen(region->name)); /* the index is zeroed */
    record->dtype = (uint32_t)region->dtype;
    record->dims = region->dims;
    memcpy(record->shape, region->shape, used);
    memcpy(record->offset, region->offset, used);
    memcpy(record->extent, region->extent, used);
    record->raw_bytes = raw_bytes;
    record->first_chunk = first_chunk;
    record->chunk_bytes = keel_region_chunk_bytes(region);
    record->chunk_count =
        (uint32_t)(raw_bytes / record->chunk_bytes + (raw_bytes % record->chunk_bytes != 0));
}

static enum keel_status make_index(struct keel_save *save, const struct keel_save_config *config)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        uint64_t bytes = keel_region_bytes(&config->regions[i]);
        uint32_t chunk_bytes = keel_region_chunk_bytes(&config->regions[i]);
        chunks += bytes / chunk_bytes + (bytes % chunk_bytes != 0);
    }
    save->record_count = config->region_count;
    save->chunk_count = (uint32_t)chunks;
    save->index_bytes = save->record_count * sizeof(struct keel_format_record) +
                        save->chunk_count * sizeof(struct keel_format_chunk);
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, save->index_bytes, &save->index));
    KEEL_TRY(keel_alloc(save->chunk_count, sizeof *save->jobs, &save->jobs));
    save->records = (struct keel_format_record *)(void *)save->index;
    save->chunks = (struct keel_format_chunk *)(void *)(save->records + save->record_count);
    uint64_t first_chunk = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        fill_record(&config->regions[i], first_chunk, &save->records[i]);
        first_chunk += save->records[i].chunk_count;
    }
    return KEEL_OK;
}

/* Cut the records into jobs, each with its place in a whole arena; how large the arena must be. */
static void fill_jobs(struct keel_save *save, uint64_t wanted_arena_bytes)
{
    uint64_t all = 0, largest = 0;
    uint32_t next = 0;
    for (uint32_t r = 0; r < save->record_count; r++) {
        uint64_t left = save->records[r].raw_bytes;
        for (uint64_t at = 0; left > 0;) {
            uint64_t bytes = left < save->records[r].chunk_bytes ? left : save->records[r].chunk_bytes;
            uint64_t room = keel_round_up(bytes, KEEL_SAVE_ALIGNMENT_BYTES);
            save->jobs[next++] = (struct keel_save_job){
                .record = r, .raw_offset = at, .raw_bytes = (uint32_t)bytes, .arena_at = all};
            largest = room > largest ? room : largest;
            all += room;
            at += bytes;
            left -= bytes;
        }
    }
    KEEL_ASSERT(next == save->chunk_count);
    save->whole = wanted_arena_bytes == 0 || wanted_arena_bytes >= all;
    save->arena_bytes = save->whole ? all : wanted_arena_bytes;
    if (save->arena_bytes < largest)
        save->arena_bytes = largest;
}

/* ---- copies and bases ---------------------------------------------------------------------------------- */

static enum keel_status plan_copies(struct keel_save *save, const struct keel_save_config *config)
{
    uint32_t copies = 0;
    for (uint32_t i = 0; config->same_as != NULL && i < config->region_count; i++)
        copies += config->same_as[i] != KEEL_SAME_AS_NONE;
    if (copies == 0)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(save->record_count, sizeof *save->same_as, &save->same_as));
    memcpy(save->same_as, config->same_as, save->record_count * sizeof *save->same_as);
    return KEEL_OK;
}

static uint64_t workspace_bytes(const struct keel_save *save)
{
    return KEEL_STREAM_MEMORY_BYTES + save->arena_bytes;
}

/* A run that went back makes earlier steps than its last. Bases are of earlier ones only, so that they can be
 * followed in order, and never in a circle. */
static bool is_earlier(const struct keel_base *base, const struct keel_format_header *header)
{
    return base->step < header->step || (base->step == header->step && base->attempt < header->attempt);
}

/* Whatever the rank's last capture left behind is taken: as the base, or for its memory (by this save, or
 * where there is some already, by the next one). */
static enum keel_status plan_base(struct keel_save *save, const struct keel_save_config *config)
{
    uint32_t chain_max = config->chain_max > 0 ? config->chain_max : CHAIN_DEFAULT;
    struct keel_base *base = keel_base_take(save->store, config->rank);
    bool delta = save->codec == KEEL_CODEC_DELTA && save->whole;
    if (save->codec == KEEL_CODEC_DELTA)
        save->codec = KEEL_CODEC_PLANES;
    bool fits = base != NULL && delta && is_earlier(base, &save->header) &&
                keel_base_fits(base, save->store, save->index, save->record_count, chain_max);
    if (base != NULL && !fits && (!delta || !keel_store_has_workspace(save->store, workspace_bytes(save)))) {
        keel_base_drop(save->store, base);
        base = NULL;
    }
    if (fits) {
        save->codec = KEEL_CODEC_DELTA;
        save->header.flags |= KEEL_HEADER_BASE;
        save->header.base_step = base->step;
        save->header.base_attempt = base->attempt;
    }
    save->base = base;
    return delta ? keel_alloc(save->chunk_count, sizeof *save->notes, &save->notes) : KEEL_OK;
}

enum keel_status keel_save_plan(struct keel_save *save, const struct keel_save_config *config)
{
    KEEL_TRY(make_index(save, config));
    fill_jobs(save, config->arena_bytes);
    KEEL_TRY(plan_copies(save, config));
    KEEL_TRY(plan_base(save, config));
    KEEL_TRY(keel_store_take_workspace(save->store, workspace_bytes(save), &save->workspace));
    save->arena = save->workspace.data + KEEL_STREAM_MEMORY_BYTES;
    return KEEL_OK;
}
