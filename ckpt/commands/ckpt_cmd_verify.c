/* ckpt_cmd_verify.c - `keel ckpt verify`: every byte that has a check is checked, every damage is placed.
 *
 * A snapshot that opens is read as a reader reads it, decoded, with its bases. One that does not (a manifest,
 * a header, an index is damaged) is looked at file by file, as stored, so that what else is damaged shows
 * too. */
#include "ckpt_subcommand.h"
#include "generation_index.h"
#include "parity.h"
#include "snapshot.h"
#include "tier.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

struct verify_options {
    struct keel_cmd_options shared;
    bool all;
};

/* One snapshot being verified. */
struct check {
    const struct keel_command *cmd;
    const struct keel_cmd_place *place;
    const struct keel_generation_entry *attempt;
    struct keel_cmd_meter meter;
    json_t *damage;         /* with --json */
    json_t *parity_missing; /* names of files; with --json */
    uint32_t count;
    bool newer;                           /* a part is of a newer format than this program reads, */
    char newer_detail[KEEL_DETAIL_BYTES]; /* of which this says which one */
    bool removed;                   /* by a run beside, meanwhile: what is not there since is no damage */
    enum keel_status first;         /* the first damage, */
    char detail[KEEL_DETAIL_BYTES]; /* and what it is */
};

/* What keel_detail() says is wrong with that file, or with chunk `chunk` of a tensor in it. */
static void add(struct check *check, enum keel_status status, const char *file,
                const struct keel_format_record *record, const uint32_t *chunk)
{
    check->removed = check->removed || keel_cmd_is_removed(check->place, &check->attempt->info);
    if (check->removed)
        return;
    if (status == KEEL_VERSION) { /* no damage: a newer Keel reads it */
        check->newer = true;
        snprintf(check->newer_detail, sizeof check->newer_detail, "%s", keel_detail());
        return;
    }
    if (check->count++ == 0) {
        check->first = status == KEEL_IO ? KEEL_CORRUPT : status; /* as keel_snapshot_verify has it */
        memcpy(check->detail, keel_detail(), sizeof check->detail);
    }
    if (!check->cmd->json) {
        keel_cmd_meter_hide(&check->meter);
        keel_cmd_report(status);
        return;
    }
    json_t *entry = json_pack("{s:s, s:s, s:s?, s:s?}", "status", keel_status_name(status), "detail",
                              keel_detail(), "file", file, "tensor", record != NULL ? record->name : NULL);
    json_object_set_new(entry, "chunk", chunk != NULL ? json_integer(*chunk) : json_null());
    json_array_append_new(check->damage, entry);
}

static void see_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    keel_cmd_meter_show(&((struct check *)context)->meter, done_bytes, total_bytes);
}

static void see_damage(void *context, const struct keel_damage *damage)
{
    char name[KEEL_SHARD_NAME_BYTES] = "";
    if (damage->shard != NULL)
        keel_shard_name(damage->shard->header.rank, name);
    bool of_chunk = damage->shard != NULL && damage->chunk != KEEL_DAMAGE_RECORD;
    add(context, damage->status, damage->shard != NULL ? name : NULL, damage->record,
        of_chunk ? &damage->chunk : NULL);
}

/* ---- files --------------------------------------------------------------------------------------------- */

enum { SETS_MAX = KEEL_SNAPSHOT_RANKS_MAX };

struct files {
    struct check *check;
    struct keel_tier *tier;
    bool parity_only;
    struct parity_set {
        uint32_t node_count; /* 0: no header of it was sound */
        uint64_t there;      /* bit i: member i's file, sound or not */
    } * sets;                /* owned; SETS_MAX */
};
_Static_assert(KEEL_ERASURE_NODES_MAX <= 64, "parity_set.there");

static void note_parity(struct files *files, const struct keel_object *object)
{
    struct keel_tier_source *source;
    struct keel_parity_header header;
    if (object->set >= SETS_MAX || object->member >= KEEL_ERASURE_NODES_MAX)
        return;
    files->sets[object->set].there |= UINT64_C(1) << object->member;
    if (files->sets[object->set].node_count > 0 || keel_tier_open(files->tier, object, &source) != KEEL_OK)
        return;
    if (keel_parity_read_header(source, &header) == KEEL_OK)
        files->sets[object->set].node_count = header.node_count;
    keel_tier_close_source(source);
}

static enum keel_status see_file(void *context, const char *name)
{
    struct files *files = context;
    struct keel_object object;
    if (!keel_object_file_parse(name, &object) || (files->parity_only && object.kind != KEEL_OBJECT_PARITY))
        return KEEL_OK;
    object.step = files->check->attempt->info.step;
    object.attempt = files->check->attempt->info.attempt;
    enum keel_status status = keel_tier_verify(files->tier, &object);
    if (keel_is_shortage(status))
        return status;
    if (status != KEEL_OK)
        add(files->check, status, name, NULL, NULL);
    if (object.kind == KEEL_OBJECT_PARITY)
        note_parity(files, &object);
    return KEEL_OK;
}

/* Files of a set that are not there are no damage, as all data is: but less may be lost from now on. Where
 * all of them have gone, nothing tells that there was a set. */
static void tell_missing_parity(const struct files *files)
{
    struct keel_object object = {.kind = KEEL_OBJECT_PARITY};
    char name[KEEL_OBJECT_NAME_BYTES];
    for (object.set = 0; object.set < SETS_MAX; object.set++) {
        const struct parity_set *set = &files->sets[object.set];
        uint32_t missing = 0;
        for (object.member = 0; object.member < set->node_count; object.member++) {
            if ((set->there >> object.member & 1) != 0)
                continue;
            keel_object_file_name(&object, name);
            json_array_append_new(files->check->parity_missing, json_string(name));
            missing++;
        }
        if (missing > 0 && !files->check->cmd->json)
            printf("parity set %u: %u of its %u files are not here: so many fewer losses can be mended\n",
                   object.set, missing, set->node_count);
    }
}

static enum keel_status check_files(struct check *check, bool parity_only)
{
    struct files files = {.check = check, .parity_only = parity_only};
    struct keel_step_place place;
    struct keel_store *store = check->place->store;
    const struct keel_snapshot_info *info = &check->attempt->info;
    KEEL_TRY(keel_step_open(store, info->step, info->attempt, false, &place));
    enum keel_status status = keel_alloc(SETS_MAX, sizeof *files.sets, &files.sets);
    if (status == KEEL_OK)
        status = keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, "this store", &files.tier);
    if (status == KEEL_OK) {
        status = keel_dir_list(place.path, see_file, &files);
        keel_tier_end(files.tier);
    }
    check->removed = check->removed || keel_cmd_is_removed(check->place, info);
    if (status == KEEL_OK && !check->removed)
        tell_missing_parity(&files);
    keel_free(files.sets);
    keel_step_close(&place);
    return status;
}

/* ---- a snapshot ---------------------------------------------------------------------------------------- */

static enum keel_status check_snapshot(struct check *check)
{
    const struct keel_snapshot_info *info = &check->attempt->info;
    struct keel_snapshot *snapshot = NULL, *whole;
    enum keel_status opened = keel_snapshot_open(check->place->store, info->step, info->attempt, &snapshot);
    if (opened == KEEL_OK) /* by a merged index it opens without any shard having been looked at */
        opened = keel_snapshot_whole(snapshot, &whole);
    if (opened == KEEL_OK) {
        uint32_t damaged;
        enum keel_status status = keel_snapshot_verify_each(whole, see_progress, see_damage, check, &damaged);
        keel_snapshot_close(snapshot);
        return status == KEEL_OK || status == KEEL_CORRUPT || status == KEEL_FORGED ? check_files(check, true)
                                                                                    : status;
    }
    keel_snapshot_close(snapshot);
    if (opened != KEEL_CORRUPT && opened != KEEL_FORGED && opened != KEEL_MISMATCH && opened != KEEL_VERSION)
        return opened;
    char reason[KEEL_DETAIL_BYTES];
    memcpy(reason, keel_detail(), sizeof reason);
    KEEL_TRY(check_files(check, false));
    if (check->count == 0 && !check->newer &&
        !check->removed) { /* each file is sound by itself: it is missing, or of another snapshot */
        keel_detail_set(reason);
        add(check, opened, NULL, NULL, NULL);
    }
    return KEEL_OK;
}

static void print_result(const struct check *check)
{
    const struct keel_snapshot_info *info = &check->attempt->info;
    char raw[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(info->raw_bytes, raw);
    if (check->removed)
        printf("step %" PRIu64 ": was removed while it was verified, by the rules of a run beside\n",
               info->step);
    else if (check->newer && check->count == 0)
        printf("step %" PRIu64
               ": nothing was found damaged, but not all could be checked: a newer Keel is needed\n",
               info->step);
    else if (check->count == 0)
        printf("step %" PRIu64 ": all chunks are sound (%s in %u shards)\n", info->step, raw,
               info->shard_count);
    else
        printf("step %" PRIu64 ": %u parts are damaged; try %s repair\n", info->step, check->count,
               keel_command_called(&keel_ckpt_commands));
    if (info->sealed &&
        ((const struct verify_options *)keel_command_own(check->cmd))->shared.key_file == NULL &&
        !check->removed)
        printf("it is sealed: that nobody altered it is proven with --key alone\n");
}

/* Adds its result to `results`; *out_verified: it was not removed before its end. The status is of what made
 * verifying impossible. */
static enum keel_status verify_one(const struct keel_command *cmd, const struct keel_cmd_place *place,
                                   const struct keel_generation_entry *attempt, json_t *results,
                                   enum keel_status *out_damage, bool *out_verified)
{
    struct check check = {.cmd = cmd,
                          .place = place,
                          .attempt = attempt,
                          .meter = keel_cmd_meter_of("verify"),
                          .damage = json_array(),
                          .parity_missing = json_array()};
    enum keel_status status = check_snapshot(&check);
    if (status != KEEL_OK && keel_cmd_is_removed(place, &attempt->info)) {
        check.removed = true;
        status = KEEL_OK;
    }
    if (status == KEEL_OK) {
        bool gone = check.removed && check.count == 0;
        if (check.newer && check.count == 0) {
            check.first = KEEL_VERSION;
            memcpy(check.detail, check.newer_detail, sizeof check.detail);
            if (!cmd->json)
                keel_cmd_report(keel_fail(KEEL_VERSION, "%s", check.newer_detail));
        }
        json_t *result = keel_cmd_info_json(&attempt->info);
        json_object_set_new(result, "status",
                            json_string(keel_status_name(gone ? KEEL_NOT_FOUND : check.first)));
        json_object_set_new(result, "damaged_parts", json_integer(check.count));
        json_object_set_new(result, "first",
                            check.first != KEEL_OK ? json_string(check.detail) : json_null());
        json_object_set(result, "damage", check.damage);
        json_object_set(result, "parity_missing", check.parity_missing);
        json_array_append_new(results, result);
        *out_damage = check.first;
        *out_verified = !gone;
        if (!cmd->json)
            print_result(&check);
    }
    json_decref(check.damage);
    json_decref(check.parity_missing);
    return status;
}

/* ---- which --------------------------------------------------------------------------------------------- */

static enum keel_status none(const struct keel_cmd_place *place)
{
    if (place->has_step)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot of step %" PRIu64, place->path,
                         place->step);
    return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot", place->path);
}

/* The newest is the newest also when its manifest is damaged: verifying an older one would hide that. */
static const struct keel_generation_entry *find_meant(const struct keel_cmd_place *place,
                                                      const struct keel_generation_index *generations)
{
    for (size_t i = 0; i < generations->count && !place->has_step; i++)
        if (keel_cmd_is_meant(place, &generations->at[i]))
            return &generations->at[i];
    return keel_cmd_find_generation(place, generations);
}

/* *out_again: all that was meant was removed meanwhile, and there are newer ones. */
static int verify(const struct keel_command *cmd, struct keel_cmd_place *place,
                  const struct keel_generation_index *generations, bool *out_again)
{
    bool all = ((const struct verify_options *)keel_command_own(cmd))->all;
    const struct keel_generation_entry *one = find_meant(place, generations);
    enum keel_status status = KEEL_OK, worst = KEEL_OK;
    bool verified = false; /* one at least */
    if (one == NULL)
        return keel_cmd_report(none(place));
    json_t *results = json_array();
    *out_again = false;
    size_t i = all ? 0 : (size_t)(one - generations->at);
    for (; i < generations->count && status == KEEL_OK && (all || !verified); i++) {
        enum keel_status damage = KEEL_OK;
        bool seen = false;
        if (!keel_cmd_is_meant(place, &generations->at[i]))
            continue;
        status = verify_one(cmd, place, &generations->at[i], results, &damage, &seen);
        worst = worst == KEEL_OK ? damage : worst;
        verified = verified || seen;
    }
    if (status == KEEL_OK && !verified)
        status = keel_cmd_note_removed(place, one->info.step);
    *out_again = status == KEEL_OK && !verified;
    int code = status == KEEL_OK ? keel_status_exit_code(worst) : keel_cmd_report(status), printed = 0;
    if (cmd->json && status == KEEL_OK && !*out_again)
        printed =
            keel_cmd_print_json(all ? json_pack("{s:s, s:O}", "run", place->store->run, "snapshots", results)
                                    : json_incref(json_array_get(results, json_array_size(results) - 1)));
    json_decref(results);
    return code != 0 ? code : printed;
}

static int run(const struct keel_command *cmd)
{
    struct keel_cmd_place place;
    struct keel_generation_index generations;
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], false, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    int code = 0;
    for (bool again = true; again;) {
        again = false;
        status = keel_generation_index_scan(place.store, false, &generations);
        code = status == KEEL_OK ? verify(cmd, &place, &generations, &again) : keel_cmd_report(status);
        if (status == KEEL_OK)
            keel_generation_index_fini(&generations);
    }
    keel_cmd_close(&place);
    return code;
}

static const struct keel_command_option options[] = {
    KEEL_CMD_STEP,
    {"--all", NULL, KEEL_COMMAND_FLAG, offsetof(struct verify_options, all), "all snapshots of the run"},
    {0}};

const struct keel_command_kind keel_cmd_verify = {
    .name = "verify",
    .operands = "PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "check every chunk of one snapshot, or of all",
    .details =
        "Reads all of it, decodes it, with the snapshots that its deltas need, and looks at parity files;\n"
        "names file, tensor and chunk of every damage, and says which files of a parity set are not there.\n",
    .examples = "  keel ckpt verify out/ckpt/demo/step-120.3 --json\n",
    .options = options,
    .run = run};
