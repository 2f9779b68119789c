/* tier_repair.c - a whole snapshot brought into a store, or mended in it: which files, in which order.
 *
 * Bases first, then shards, then parity, and the manifest last: so at every moment the store holds what it
 * held before, or more, and a snapshot that was not committed here becomes so when all of it is there. */
#include "snapshot.h"
#include "tier_repair_shard.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum {
    SETS_MAX = KEEL_SNAPSHOT_RANKS_MAX,
    SETS_OF_RANK_MAX = KEEL_REPAIR_SHARD_TIERS_MAX - KEEL_TIER_SOURCES_MAX,
    GENERATIONS_MAX = 256
};

struct repair {
    struct keel_store *store;
    const struct keel_repair_config *config;
    struct keel_tier *self;                         /* owned */
    struct keel_tier *tiers[KEEL_TIER_SOURCES_MAX]; /* self, then the sources by nearness; borrowed */
    uint32_t tier_count;
    struct keel_repair_result result;
    char first_lost[KEEL_DETAIL_BYTES];
    struct keel_generation seen[GENERATIONS_MAX]; /* this one and its bases */
    uint32_t seen_count;
};

static void report(struct repair *repair, const struct keel_object *object, enum keel_repair_outcome outcome,
                   const char *detail)
{
    repair->result.sound += outcome == KEEL_REPAIR_SOUND;
    repair->result.repaired += outcome == KEEL_REPAIR_DONE;
    repair->result.lost += outcome == KEEL_REPAIR_LOST;
    if (outcome == KEEL_REPAIR_LOST && repair->result.lost == 1)
        snprintf(repair->first_lost, sizeof repair->first_lost, "%s", detail);
    if (repair->config->report != NULL)
        repair->config->report(repair->config->context, object, outcome, detail);
}

/* What a repair may survive and go on after: one file is lost. Anything else ends it, above all a shortage:
 * what merely could not be looked at is not lost. */
static bool is_loss(enum keel_status status)
{
    return status == KEEL_CORRUPT || status == KEEL_NOT_FOUND || status == KEEL_MISMATCH ||
           status == KEEL_VERSION || status == KEEL_TIMEOUT || status == KEEL_PEER_LOST;
}

/* ---- manifest ------------------------------------------------------------------------------------------ */

/* Of the generation that is repaired. Its bytes are kept from the reading that verified them, as the tier
 * that they came from may be gone when all shards are there and they are written. */
struct found_manifest {
    struct keel_manifest manifest;
    char *text; /* owned */
    uint64_t text_bytes;
    struct keel_tier *from; /* borrowed */
};

static void forget_manifest(struct found_manifest *found)
{
    keel_manifest_fini(&found->manifest);
    keel_free(found->text);
}

/* From the store, or the nearest tier that has it sound: whatever is wrong with one, the next is asked. */
static enum keel_status find_manifest(struct repair *repair, const struct keel_object *object,
                                      struct found_manifest *out)
{
    enum keel_status first = KEEL_OK;
    char detail[KEEL_DETAIL_BYTES] = "";
    for (uint32_t i = 0; i < repair->tier_count; i++) {
        enum keel_status status =
            keel_manifest_from_tier(repair->tiers[i], object, &out->manifest, &out->text, &out->text_bytes);
        out->from = repair->tiers[i];
        if (status == KEEL_OK || keel_is_shortage(status))
            return status;
        if (first == KEEL_OK || (first == KEEL_NOT_FOUND && status != KEEL_NOT_FOUND)) {
            first = status;
            snprintf(detail, sizeof detail, "%s", keel_detail());
        }
    }
    return keel_fail(first, "%s", detail);
}

/* ---- sets ---------------------------------------------------------------------------------------------- */

struct membership {
    uint32_t rank, set;
};

/* The erasure sets of a generation. A large run has hundreds, each with files and memory of its own, so a set
 * is open only while one of its files is mended. */
struct sets {
    uint64_t step, attempt;
    bool there[SETS_MAX]; /* by number: some tier lists parity of it */
    bool members_known;
    struct membership *members; /* owned; which ranks' shards they hold, once one of them is wanted */
    size_t member_count, capacity;
    uint32_t number; /* of the one that is being listed */
};

static enum keel_status note_set(void *context, const struct keel_object_info *info)
{
    struct sets *sets = context;
    if (info->object.kind == KEEL_OBJECT_PARITY && info->object.step == sets->step &&
        info->object.attempt == sets->attempt)
        sets->there[info->object.set] = true;
    return KEEL_OK;
}

/* Of what cannot be listed or opened no parity is used. */
static enum keel_status find_sets(struct repair *repair, struct sets *sets)
{
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < repair->tier_count && !keel_is_shortage(status); i++)
        status = keel_tier_list(repair->tiers[i], note_set, sets);
    return keel_is_shortage(status) ? status : KEEL_OK;
}

/* *out is NULL when it cannot be opened. */
static enum keel_status open_set(struct repair *repair, const struct sets *sets, uint32_t number,
                                 struct keel_tier **out)
{
    *out = NULL;
    enum keel_status status =
        keel_tier_erasure_open(repair->tiers, repair->tier_count, sets->step, sets->attempt, number, out);
    return keel_is_shortage(status) ? status : KEEL_OK;
}

static enum keel_status note_member_rank(void *context, const struct keel_object_info *info)
{
    struct sets *sets = context;
    if (info->object.kind != KEEL_OBJECT_SHARD)
        return KEEL_OK;
    KEEL_TRY(keel_grow(&sets->members, &sets->capacity, sets->member_count + 1, sizeof *sets->members));
    sets->members[sets->member_count++] = (struct membership){info->object.member, sets->number};
    return KEEL_OK;
}

static enum keel_status find_members(struct repair *repair, struct sets *sets)
{
    enum keel_status status = KEEL_OK;
    struct keel_tier *set;
    for (uint32_t i = 0; i < SETS_MAX && !sets->members_known && status == KEEL_OK; i++) {
        if (!sets->there[i])
            continue;
        sets->number = i;
        status = open_set(repair, sets, i, &set);
        if (set != NULL)
            status = keel_tier_list(set, note_member_rank, sets);
        keel_tier_end(set);
    }
    sets->members_known = status == KEEL_OK;
    return status;
}

/* The sets that hold one shard, open. */
struct open_sets {
    struct keel_tier *tiers[SETS_OF_RANK_MAX]; /* owned */
    uint32_t count;
};

static enum keel_status open_sets_of(struct repair *repair, const struct sets *sets, uint32_t rank,
                                     struct open_sets *out)
{
    enum keel_status status = KEEL_OK;
    out->count = 0;
    for (size_t i = 0; i < sets->member_count && out->count < SETS_OF_RANK_MAX && status == KEEL_OK; i++) {
        if (sets->members[i].rank != rank)
            continue;
        status = open_set(repair, sets, sets->members[i].set, &out->tiers[out->count]);
        out->count += out->tiers[out->count] != NULL;
    }
    return status;
}

static void close_sets(struct open_sets *sets)
{
    for (uint32_t i = 0; i < sets->count; i++)
        keel_tier_end(sets->tiers[i]);
    sets->count = 0;
}

/* ---- shards and parity --------------------------------------------------------------------------------- */

/* By nearness: the sources and the sets. */
static void fill_tiers(const struct repair *repair, const struct open_sets *sets,
                       struct keel_repair_shard *shard_repair)
{
    shard_repair->tier_count = 0;
    for (int latency = 0; latency < KEEL_LATENCY_COUNT; latency++) {
        for (uint32_t i = 1; i < repair->tier_count; i++)
            if ((int)repair->tiers[i]->latency == latency)
                shard_repair->tiers[shard_repair->tier_count++] = repair->tiers[i];
        for (uint32_t i = 0; i < sets->count && latency == KEEL_LATENCY_ERASURE; i++)
            shard_repair->tiers[shard_repair->tier_count++] = sets->tiers[i];
    }
}

static enum keel_status repair_shard(struct repair *repair, struct keel_repair_shard *shard_repair,
                                     struct sets *sets, uint32_t rank)
{
    const struct keel_object object = {.step = shard_repair->manifest->info.step,
                                       .attempt = shard_repair->manifest->info.attempt,
                                       .kind = KEEL_OBJECT_SHARD,
                                       .member = rank};
    char from[KEEL_DETAIL_BYTES];
    struct open_sets open;
    enum keel_status status = keel_repair_shard_check(shard_repair, repair->self, rank);
    if (status == KEEL_OK)
        report(repair, &object, KEEL_REPAIR_SOUND, "");
    if (status == KEEL_OK || keel_is_shortage(status))
        return status;
    KEEL_TRY(find_members(repair, sets));
    status = open_sets_of(repair, sets, rank, &open);
    if (status == KEEL_OK) {
        fill_tiers(repair, &open, shard_repair);
        status = keel_repair_shard_run(shard_repair, rank, from);
    }
    close_sets(&open);
    if (status == KEEL_OK)
        report(repair, &object, KEEL_REPAIR_DONE, from);
    else if (is_loss(status))
        report(repair, &object, KEEL_REPAIR_LOST, keel_detail());
    else
        return status;
    return KEEL_OK;
}

/* What lies here and is damaged; a restore brings none. */
static enum keel_status repair_parity(struct repair *repair, struct keel_tier *set,
                                      const struct keel_object *object)
{
    struct keel_tier_source *source;
    enum keel_status status = keel_tier_open(repair->self, object, &source);
    if (status != KEEL_OK)
        return keel_is_shortage(status) ? status : KEEL_OK;
    status = keel_source_verify(source);
    keel_tier_close_source(source);
    if (status == KEEL_OK)
        report(repair, object, KEEL_REPAIR_SOUND, "");
    if (status == KEEL_OK || keel_is_shortage(status))
        return status;
    status =
        repair->config->dry_run ? keel_tier_verify(set, object) : keel_tier_copy(set, object, repair->self);
    if (status == KEEL_OK)
        report(repair, object, KEEL_REPAIR_DONE, "computed from the other members of its set");
    else if (is_loss(status))
        report(repair, object, KEEL_REPAIR_LOST, keel_detail());
    else
        return status;
    return KEEL_OK;
}

struct members {
    struct keel_object objects[KEEL_ERASURE_NODES_MAX];
    uint32_t count;
};

static enum keel_status note_member(void *context, const struct keel_object_info *info)
{
    struct members *members = context;
    if (info->object.kind == KEEL_OBJECT_PARITY && members->count < KEEL_ERASURE_NODES_MAX)
        members->objects[members->count++] = info->object;
    return KEEL_OK;
}

static enum keel_status repair_parities(struct repair *repair, struct keel_tier *set)
{
    struct members members = {.count = 0};
    KEEL_TRY(keel_tier_list(set, note_member, &members));
    for (uint32_t i = 0; i < members.count; i++)
        KEEL_TRY(repair_parity(repair, set, &members.objects[i]));
    return KEEL_OK;
}

static enum keel_status repair_sets(struct repair *repair, const struct sets *sets)
{
    enum keel_status status = KEEL_OK;
    struct keel_tier *set;
    for (uint32_t i = 0; i < SETS_MAX && status == KEEL_OK; i++) {
        if (!sets->there[i])
            continue;
        status = open_set(repair, sets, i, &set);
        if (set != NULL)
            status = repair_parities(repair, set);
        keel_tier_end(set);
    }
    return status;
}

static enum keel_status repair_files(struct repair *repair, const struct keel_manifest *manifest)
{
    struct keel_repair_shard shard_repair = {.store = repair->store,
                                             .self = repair->self,
                                             .manifest = manifest,
                                             .dry_run = repair->config->dry_run};
    struct sets sets = {.step = manifest->info.step, .attempt = manifest->info.attempt};
    enum keel_status status = find_sets(repair, &sets);
    for (uint32_t rank = 0; rank < manifest->info.shard_count && status == KEEL_OK; rank++)
        status = repair_shard(repair, &shard_repair, &sets, rank);
    keel_repair_shard_fini(&shard_repair);
    if (status == KEEL_OK)
        status = repair_sets(repair, &sets);
    keel_free(sets.members);
    return status;
}

/* ---- generations --------------------------------------------------------------------------------------- */

static enum keel_status remove_temporary(void *context, const char *name)
{
    const struct keel_step_place *place = context;
    if (keel_name_kind_of(name) == KEEL_NAME_TEMPORARY && keel_disk_unlink(place->fd, name, 0) != 0 &&
        errno != ENOENT)
        return keel_fail_errno(errno, "%s/%s: cannot be removed", place->path, name);
    return KEEL_OK;
}

static enum keel_status sync_name(void *context, const char *name)
{
    const struct keel_step_place *place = context;
    uint64_t bytes;
    int fd = -1;
    if (keel_name_kind_of(name) == KEEL_NAME_FOREIGN ||
        keel_step_open_file(place, name, &fd, &bytes) != KEEL_OK)
        return KEEL_OK;
    enum keel_status status = KEEL_OK;
    if (keel_disk_fsync(fd) != 0)
        status = keel_fail_errno(errno, "%s/%s: cannot be synced", place->path, name);
    keel_disk_close(fd);
    return status;
}

/* Call `visit` with the names in a generation's directory; a dry run changes none. Then, with `sync`, make
 * the directory durable. */
static enum keel_status in_directory(struct repair *repair, uint64_t step, uint64_t attempt,
                                     enum keel_status (*visit)(void *context, const char *name), bool sync)
{
    struct keel_step_place place;
    if (repair->config->dry_run)
        return KEEL_OK;
    enum keel_status status = keel_step_open(repair->store, step, attempt, false, &place);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? KEEL_OK : status;
    status = keel_dir_list(place.path, visit, &place);
    if (status == KEEL_OK && sync &&
        (keel_disk_fsync(place.fd) != 0 || keel_disk_fsync(repair->store->run_fd) != 0))
        status = keel_fail_errno(errno, "%s: cannot be synced", place.path);
    keel_step_close(&place);
    return status;
}

static enum keel_status write_manifest(struct repair *repair, const struct keel_object *object,
                                       const struct found_manifest *found)
{
    struct keel_tier_sink *sink;
    uint8_t digest[KEEL_DIGEST_BYTES];
    KEEL_TRY(keel_tier_create(repair->self, object, found->text_bytes, &sink));
    enum keel_status status = keel_tier_write(sink, found->text, keel_size(found->text_bytes));
    if (status != KEEL_OK) {
        keel_tier_abort(sink);
        return status;
    }
    keel_format_digest(found->text, found->text_bytes, digest);
    return keel_tier_commit(sink, digest);
}

static enum keel_status finish_manifest(struct repair *repair, const struct keel_object *object,
                                        const struct found_manifest *found, uint32_t lost_before)
{
    if (found->from == repair->self) {
        report(repair, object, KEEL_REPAIR_SOUND, "");
        return KEEL_OK;
    }
    if (repair->result.lost > lost_before) {
        report(repair, object, KEEL_REPAIR_LOST, "files that it names are lost; nothing was committed");
        return KEEL_OK;
    }
    if (!repair->config->dry_run)
        KEEL_TRY(write_manifest(repair, object, found));
    char detail[KEEL_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "from %s", found->from->name);
    report(repair, object, KEEL_REPAIR_DONE, detail);
    return KEEL_OK;
}

/* As a commit leaves it. One that fits is left as it is, and a snapshot that cannot be read here has none.
 * A shortage alone is an error. */
static enum keel_status write_merged(struct repair *repair, const struct keel_object *object)
{
    struct keel_snapshot *snapshot = NULL, *whole;
    if (repair->config->dry_run)
        return KEEL_OK;
    enum keel_status status = keel_snapshot_open(repair->store, object->step, object->attempt, &snapshot);
    if (status == KEEL_OK)
        status = keel_snapshot_whole(snapshot, &whole);
    if (status == KEEL_OK)
        keel_merged_write(whole);
    keel_snapshot_close(snapshot);
    return keel_is_shortage(status) ? status : KEEL_OK;
}

/* Remember a generation. False when it was met before. LIMIT. */
static enum keel_status meet(struct repair *repair, struct keel_generation generation, bool *out_new)
{
    *out_new = false;
    for (uint32_t i = 0; i < repair->seen_count; i++)
        if (keel_generation_compare(&repair->seen[i], &generation) == 0)
            return KEEL_OK;
    if (repair->seen_count == GENERATIONS_MAX)
        return keel_fail(KEEL_LIMIT, "%s: a snapshot has more than %d bases", repair->store->path,
                         GENERATIONS_MAX);
    repair->seen[repair->seen_count++] = generation;
    *out_new = true;
    return KEEL_OK;
}

static enum keel_status repair_generation(struct repair *repair, uint64_t step, uint64_t attempt,
                                          uint32_t depth);

static enum keel_status repair_bases(struct repair *repair, const struct keel_manifest *manifest,
                                     uint32_t depth)
{
    for (uint32_t i = 0; i < manifest->base_count; i++) {
        const struct keel_generation *base = &manifest->bases[i];
        const struct keel_object object = {
            .step = base->step, .attempt = base->attempt, .kind = KEEL_OBJECT_MANIFEST};
        if (depth == KEEL_FORMAT_CHAIN_MAX)
            return keel_fail(KEEL_CORRUPT, "%s: bases of bases go on for more than %d generations",
                             repair->store->path, KEEL_FORMAT_CHAIN_MAX);
        enum keel_status status = repair_generation(repair, base->step, base->attempt, depth + 1);
        if (status == KEEL_OK)
            continue;
        if (!is_loss(status))
            return status;
        report(repair, &object, KEEL_REPAIR_LOST, keel_detail());
    }
    return KEEL_OK;
}

static enum keel_status repair_generation(struct repair *repair, uint64_t step, uint64_t attempt,
                                          uint32_t depth)
{
    const struct keel_object object = {.step = step, .attempt = attempt, .kind = KEEL_OBJECT_MANIFEST};
    struct found_manifest found = {0};
    uint32_t lost_before = repair->result.lost;
    bool is_new;
    KEEL_TRY(meet(repair, (struct keel_generation){step, attempt}, &is_new));
    if (!is_new)
        return KEEL_OK;
    KEEL_TRY(find_manifest(repair, &object, &found));
    /* What a crash of an earlier repair left. */
    enum keel_status status = in_directory(repair, step, attempt, remove_temporary, false);
    if (status == KEEL_OK)
        status = repair_bases(repair, &found.manifest, depth);
    if (status == KEEL_OK)
        status = repair_files(repair, &found.manifest);
    /* What is found sound is seen, and may yet vanish: its writer may have been killed before it synced the
     * file, or the name. Before anything that needs it becomes a snapshot it must be on the disk. */
    if (status == KEEL_OK)
        status = in_directory(repair, step, attempt, sync_name, true);
    if (status == KEEL_OK)
        status = finish_manifest(repair, &object, &found, lost_before);
    if (status == KEEL_OK && repair->result.lost == lost_before)
        status = write_merged(repair, &object);
    forget_manifest(&found);
    return status;
}

enum keel_status keel_store_repair(struct keel_store *store, const struct keel_repair_config *config,
                                   struct keel_repair_result *out)
{
    struct repair *repair;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(config != NULL && (config->sources != NULL || config->source_count == 0));
    if (!config->dry_run)
        KEEL_TRY(keel_store_writable(store));
    if (config->source_count >= KEEL_TIER_SOURCES_MAX)
        return keel_fail(KEEL_INVALID, "a repair takes from at most %d tiers", KEEL_TIER_SOURCES_MAX - 1);
    for (uint32_t i = 0; i < config->source_count; i++)
        if (strcmp(config->sources[i]->run, store->run) != 0)
            return keel_fail(KEEL_MISMATCH, "%s is of run %s, the store of run %s: repair within one run",
                             config->sources[i]->name, config->sources[i]->run, store->run);
    KEEL_TRY(keel_alloc(1, sizeof *repair, &repair));
    repair->store = store;
    repair->config = config;
    enum keel_status status = keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, "the store", &repair->self);
    if (status == KEEL_OK) {
        repair->tiers[repair->tier_count++] = repair->self;
        for (uint32_t i = 0; i < config->source_count; i++)
            repair->tiers[repair->tier_count++] = config->sources[i];
        status = repair_generation(repair, config->step, config->attempt, 0);
        if (status == KEEL_OK && repair->result.lost > 0)
            status = keel_fail(KEEL_CORRUPT, "%s", repair->first_lost);
        if (out != NULL)
            *out = repair->result;
        keel_tier_end(repair->self);
    }
    keel_free(repair);
    return status;
}
