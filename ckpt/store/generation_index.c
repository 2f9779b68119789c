/* generation_index.c - what lies in a run's directory: each attempt's state, the list of those committed. */
#include "generation_index.h"
#include "format.h"
#include "shard.h"
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bases of what is not committed -------------------------------------------------------------------- */

struct header_search {
    const struct keel_step_place *place;
    struct keel_generation_entry *attempt;
};

static enum keel_status add_base(struct keel_generation_entry *attempt, struct keel_generation base)
{
    for (uint32_t i = 0; i < attempt->base_count; i++)
        if (keel_generation_compare(&attempt->bases[i], &base) == 0)
            return KEEL_OK;
    KEEL_TRY(
        keel_realloc(&attempt->bases, attempt->base_count, attempt->base_count + 1, sizeof *attempt->bases));
    attempt->bases[attempt->base_count++] = base;
    return KEEL_OK;
}

/* A header of a newer version may say anything, and so may one that cannot be read; but while nothing is
 * committed it says nothing, as it is not there yet. */
static enum keel_status see_shard(void *context, const char *name)
{
    struct header_search *search = context;
    uint32_t rank;
    int fd;
    uint64_t bytes;
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    struct keel_format_header header;
    if (!keel_shard_name_parse(name, &rank))
        return KEEL_OK;
    enum keel_status status = keel_step_open_file(search->place, name, &fd, &bytes);
    if (status == KEEL_OK) {
        status = keel_pread_all(fd, block, sizeof block, 0, name);
        keel_disk_close(fd);
    }
    if (status == KEEL_OK)
        status = keel_format_header_open(block, name, &header);
    if (keel_is_shortage(status))
        return status;
    if (status == KEEL_VERSION || (status != KEEL_OK && search->attempt->state == KEEL_GENERATION_DAMAGED))
        search->attempt->bases_unknown = true;
    if (status != KEEL_OK || (header.flags & KEEL_HEADER_BASE) == 0)
        return KEEL_OK;
    return add_base(search->attempt, (struct keel_generation){header.base_step, header.base_attempt});
}

/* ---- scan ---------------------------------------------------------------------------------------------- */

struct scan {
    struct keel_store *store;
    bool retains;
    bool gone; /* one that was listed was removed before it was looked at: newer ones may not be listed */
    struct keel_generation_index *generations;
};

/* Of which kind a name is (S_IFDIR, ...); 0: it is not there, or cannot be looked at. */
static mode_t kind_of(int at, const char *name)
{
    struct stat info;
    bool there = keel_disk_stat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    return there ? info.st_mode & S_IFMT : 0;
}

/* One that may not be read, lies on a bad disk, or is of a newer version may be sound: only what is seen to
 * be missing or damaged is a reason to remove the others. */
static enum keel_status has_all_shards(const struct keel_step_place *place, bool *out)
{
    uint32_t rank_count = 1;
    *out = true;
    for (uint32_t rank = 0; rank < rank_count && *out; rank++) {
        struct keel_shard shard;
        enum keel_status status = keel_shard_load(place, rank, &shard);
        if (keel_is_shortage(status))
            return status;
        *out = status != KEEL_CORRUPT;
        if (status != KEEL_OK)
            return KEEL_OK;
        rank_count = shard.header.rank_count;
        keel_shard_unload(&shard);
    }
    return KEEL_OK;
}

static enum keel_status look_inside(const struct scan *scan, const struct keel_step_place *place,
                                    struct keel_generation_entry *out)
{
    struct keel_manifest manifest;
    enum keel_status status = keel_manifest_read(scan->store, place, &manifest);
    if (keel_is_shortage(status) ||
        status == KEEL_AUTH) /* with another key it is no way back, but is there */
        return status;
    if (status == KEEL_DENIED && kind_of(place->fd, KEEL_MANIFEST_NAME) != S_IFLNK)
        return status; /* no damage: whoever may read it knows what it is */
    if (status == KEEL_OK) {
        out->state = KEEL_GENERATION_COMMITTED;
        out->info = manifest.info;
        out->bases = manifest.bases; /* taken over */
        out->base_count = manifest.base_count;
        manifest.bases = NULL;
        for (uint32_t i = 0; i < manifest.info.shard_count; i++)
            out->file_bytes += manifest.shards[i].file_bytes;
        keel_manifest_fini(&manifest);
        return KEEL_OK;
    }
    if (status == KEEL_NOT_FOUND)
        out->state = KEEL_GENERATION_UNCOMMITTED;
    out->newer = out->bases_unknown = status == KEEL_VERSION;
    if (!scan->retains)
        return KEEL_OK;
    if (out->state == KEEL_GENERATION_UNCOMMITTED)
        KEEL_TRY(has_all_shards(place, &out->whole));
    struct header_search search = {place, out};
    status = keel_dir_list(place->path, see_shard, &search);
    if (status != KEEL_OK && out->state == KEEL_GENERATION_DAMAGED)
        out->bases_unknown = true;
    return keel_is_shortage(status) ? status : KEEL_OK;
}

/* ---- what retention has seen before -------------------------------------------------------------------- */

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* File systems tell changes apart that lie milliseconds apart, on some seconds. */
static bool was_settled(const struct stat *file, uint64_t since_ns)
{
    enum { SETTLED_S = 3 };
    return file->st_ctim.tv_sec >= 0 && (uint64_t)file->st_ctim.tv_sec + SETTLED_S < since_ns / KEEL_NS_PER_S;
}

static int newest_first(const void *a, const void *b)
{
    const struct keel_snapshot_info *x = &((const struct keel_generation_entry *)a)->info;
    const struct keel_snapshot_info *y = &((const struct keel_generation_entry *)b)->info;
    return keel_generation_compare(&(struct keel_generation){y->step, y->attempt},
                                   &(struct keel_generation){x->step, x->attempt});
}

/* Under the store's lock. */
static const struct keel_generation_entry *find_seen(const struct keel_store *store,
                                                     const struct keel_snapshot_info *info)
{
    const struct keel_generation_entry wanted = {.info = *info};
    return store->seen_count == 0
               ? NULL
               : bsearch(&wanted, store->seen, store->seen_count, sizeof wanted, newest_first);
}

/* The entry as it was, where its manifest is the file that was read then. */
static bool recall(const struct scan *scan, struct keel_generation_entry *entry)
{
    struct keel_store *store = scan->store;
    struct keel_generation *bases = NULL;
    const struct stat manifest = entry->manifest, directory = entry->directory;
    keel_mutex_lock(&store->lock);
    const struct keel_generation_entry *before = find_seen(store, &entry->info);
    const bool same = before != NULL && before->state == KEEL_GENERATION_COMMITTED &&
                      was_settled(&before->manifest, store->seen_since_ns) &&
                      is_same_file(&before->manifest, &manifest) &&
                      keel_alloc(before->base_count, sizeof *bases, &bases) == KEEL_OK;
    if (same) {
        if (before->base_count > 0)
            memcpy(bases, before->bases, before->base_count * sizeof *bases);
        *entry = *before;
        entry->bases = bases;
        entry->swept = before->swept && was_settled(&before->directory, store->seen_since_ns) &&
                       is_same_file(&before->directory, &directory);
        entry->manifest = manifest;
        entry->directory = directory;
    }
    keel_mutex_unlock(&store->lock);
    return same;
}

void keel_generation_index_keep(struct keel_store *store, struct keel_generation_index *generations)
{
    keel_mutex_lock(&store->lock);
    struct keel_generation_index before = {.at = store->seen, .count = store->seen_count};
    store->seen = generations->at;
    store->seen_count = generations->count;
    store->seen_since_ns = generations->since_ns;
    keel_mutex_unlock(&store->lock);
    keel_generation_index_fini(&before);
    *generations = (struct keel_generation_index){0};
}

/* ---- looking ------------------------------------------------------------------------------------------- */

static void mark(const struct keel_store *store, struct keel_generation_entry *entry)
{
    char name[KEEL_STEP_NAME_BYTES], path[KEEL_STEP_NAME_BYTES + sizeof KEEL_MANIFEST_NAME];
    keel_step_name(entry->info.step, entry->info.attempt, name);
    snprintf(path, sizeof path, "%s/%s", name, KEEL_MANIFEST_NAME);
    if (keel_disk_stat(store->run_fd, name, &entry->directory, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(entry->directory.st_mode) ||
        keel_disk_stat(store->run_fd, path, &entry->manifest, AT_SYMLINK_NOFOLLOW) != 0)
        memset(&entry->manifest, 0, sizeof entry->manifest); /* nothing is the same as it */
}

/* *out_gone: somebody removed it after it was listed. */
static enum keel_status look_at(const struct scan *scan, bool fresh, struct keel_generation_entry *out,
                                bool *out_gone)
{
    struct keel_step_place place;
    char name[KEEL_STEP_NAME_BYTES];
    const uint64_t step = out->info.step, number = out->info.attempt;
    if (scan->retains)
        mark(scan->store, out);
    if (scan->retains && !fresh && recall(scan, out))
        return KEEL_OK;
    enum keel_status status = keel_step_open(scan->store, step, number, false, &place);
    if (status == KEEL_OK) {
        status = look_inside(scan, &place, out);
        keel_step_close(&place);
        return status;
    }
    if (keel_is_shortage(status) || status == KEEL_DENIED)
        return status;
    /* A link, or no directory, is nothing to read and nothing to remove; a bad disk hides what it needs. */
    keel_step_name(step, number, name);
    mode_t kind = kind_of(scan->store->run_fd, name);
    out->bases_unknown = kind == S_IFDIR;
    *out_gone = kind == 0 && status == KEEL_NOT_FOUND;
    return KEEL_OK;
}

static enum keel_status see_attempt(void *context, const char *name)
{
    struct keel_generation_index *generations = context;
    uint64_t step, attempt;
    if (!keel_step_name_parse(name, &step, &attempt))
        return KEEL_OK;
    KEEL_TRY(
        keel_grow(&generations->at, &generations->capacity, generations->count + 1, sizeof *generations->at));
    generations->at[generations->count++] = (struct keel_generation_entry){
        .info = {.step = step, .attempt = attempt}, .state = KEEL_GENERATION_DAMAGED};
    return KEEL_OK;
}

/* List them, and look at each, the newest first. */
static enum keel_status scan_once(struct scan *scan)
{
    struct keel_generation_index *all = scan->generations;
    size_t left = 0;
    uint32_t committed = 0;
    all->since_ns = keel_wall_ns();
    scan->gone = false;
    KEEL_TRY(keel_dir_list(scan->store->path, see_attempt, all));
    if (all->count > 0)
        qsort(all->at, all->count, sizeof *all->at, newest_first);
    for (size_t i = 0; i < all->count; i++) {
        bool gone = false;
        KEEL_TRY(look_at(scan, committed < KEEL_GENERATIONS_FRESH, &all->at[i], &gone));
        committed += all->at[i].state == KEEL_GENERATION_COMMITTED;
        scan->gone = scan->gone || gone;
        if (!gone && left++ != i) { /* closes up: all others are there still, to be freed */
            all->at[left - 1] = all->at[i];
            all->at[i].bases = NULL;
        }
    }
    all->count = left;
    return KEEL_OK;
}

enum keel_status keel_generation_index_scan(struct keel_store *store, bool retains,
                                            struct keel_generation_index *out)
{
    enum { SCANS_MAX = 16 };
    struct keel_generation_index generations = {0};
    struct scan scan = {.store = store, .retains = retains, .gone = true, .generations = &generations};
    for (int i = 0; i < SCANS_MAX && scan.gone; i++) {
        keel_generation_index_fini(&generations);
        enum keel_status status = scan_once(&scan);
        if (status != KEEL_OK) {
            keel_generation_index_fini(&generations);
            return status;
        }
    }
    *out = generations;
    return KEEL_OK;
}

struct keel_generation_counts keel_generation_index_count(const struct keel_generation_index *index)
{
    struct keel_generation_counts counts = {0};
    for (size_t i = 0; i < index->count; i++) {
        counts.committed += index->at[i].state == KEEL_GENERATION_COMMITTED;
        counts.damaged += index->at[i].state == KEEL_GENERATION_DAMAGED;
        counts.newer += index->at[i].newer;
        counts.uncommitted += index->at[i].state == KEEL_GENERATION_UNCOMMITTED;
    }
    return counts;
}

void keel_generation_index_fini(struct keel_generation_index *generations)
{
    for (size_t i = 0; i < generations->count; i++)
        keel_free(generations->at[i].bases);
    keel_free(generations->at);
    *generations = (struct keel_generation_index){0};
}

/* ---- list ---------------------------------------------------------------------------------------------- */

enum keel_status keel_store_list(struct keel_store *store, struct keel_snapshot_info *out, uint32_t capacity,
                                 uint32_t *out_count, uint32_t *out_damaged)
{
    struct keel_generation_index generations;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(out_count != NULL && (out != NULL || capacity == 0));
    KEEL_TRY(keel_generation_index_scan(store, false, &generations));
    uint32_t count = 0, damaged = 0;
    for (size_t i = 0; i < generations.count; i++) {
        if (generations.at[i].state == KEEL_GENERATION_DAMAGED)
            damaged++;
        if (generations.at[i].state != KEEL_GENERATION_COMMITTED)
            continue;
        if (count < capacity)
            out[count++] = generations.at[i].info;
    }
    keel_generation_index_fini(&generations);
    *out_count = count;
    if (out_damaged != NULL)
        *out_damaged = damaged;
    return KEEL_OK;
}

enum keel_status keel_store_newest_attempt(struct keel_store *store, uint64_t step, uint64_t *out_attempt)
{
    struct keel_generation_index generations;
    bool found = false, sound = false;
    KEEL_TRY(keel_generation_index_scan(store, false, &generations));
    for (size_t i = 0; i < generations.count && !sound; i++) {
        const struct keel_generation_entry *attempt = &generations.at[i];
        if (attempt->info.step != step || attempt->state == KEEL_GENERATION_UNCOMMITTED)
            continue;
        sound = attempt->state == KEEL_GENERATION_COMMITTED;
        if (sound || !found)
            *out_attempt = attempt->info.attempt;
        found = true;
    }
    keel_generation_index_fini(&generations);
    if (!found)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot of step %llu", store->path,
                         (unsigned long long)step);
    return KEEL_OK;
}
