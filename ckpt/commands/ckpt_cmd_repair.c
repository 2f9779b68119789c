/* ckpt_cmd_repair.c - `keel ckpt repair`: mend what is damaged or gone from whatever still holds it. */
#include "ckpt_subcommand.h"
#include <inttypes.h>
#include <keel/ckpt_tier.h>
#include <stdio.h>
#include <string.h>

enum { SOURCES_MAX = KEEL_TIER_SOURCES_MAX - 1 };

struct repair_options {
    struct keel_cmd_options shared;
    struct keel_command_texts from;
    bool all, dry_run;
};

_Static_assert(sizeof(struct repair_options) <= KEEL_COMMAND_OWN_BYTES, "options");

/* The other stores, as tiers. */
struct sources {
    struct keel_cmd_place places[SOURCES_MAX];
    struct keel_tier *tiers[SOURCES_MAX];
    uint32_t count;
};

struct repair {
    const struct keel_command *cmd;
    const struct repair_options *options;
    struct keel_cmd_place place;
    struct sources sources;
    json_t *results; /* with --json: of each snapshot */
    json_t *files;   /* of the present one */
    enum keel_status worst;
};

static const char *const outcome_names[] = {"sound", "mended", "lost"};

/* ---- sources ------------------------------------------------------------------------------------------- */

static void close_sources(struct sources *sources)
{
    for (uint32_t i = 0; i < sources->count; i++) {
        keel_tier_end(sources->tiers[i]);
        keel_cmd_close(&sources->places[i]);
    }
}

static enum keel_status open_source(struct repair *repair, const char *path)
{
    struct sources *sources = &repair->sources;
    struct keel_command elsewhere = *repair->cmd; /* --step is of the store that is repaired */
    struct keel_cmd_place *place = &sources->places[sources->count];
    ((struct repair_options *)(void *)elsewhere.own.bytes)->shared.step = NULL;
    if (sources->count == SOURCES_MAX)
        return keel_fail(KEEL_LIMIT, "--from %s: at most %d stores are asked", path, SOURCES_MAX);
    KEEL_TRY(keel_cmd_open(&elsewhere, path, false, place));
    enum keel_status status = KEEL_OK;
    if (strcmp(place->store->run, repair->place.store->run) != 0)
        status = keel_fail(KEEL_MISMATCH, "--from %s: is of run %s, what is to be repaired is of run %s",
                           path, place->store->run, repair->place.store->run);
    if (status == KEEL_OK)
        status = keel_tier_directory_open(place->store, KEEL_LATENCY_SHARED, path,
                                          &sources->tiers[sources->count]);
    if (status == KEEL_OK)
        sources->count++;
    else
        keel_cmd_close(place);
    return status;
}

static enum keel_status open_sources(struct repair *repair)
{
    for (uint32_t i = 0; i < repair->options->from.count; i++)
        KEEL_TRY(open_source(repair, repair->options->from.at[i]));
    return KEEL_OK;
}

/* ---- one snapshot -------------------------------------------------------------------------------------- */

static void see_file(void *context, const struct keel_object *object, enum keel_repair_outcome outcome,
                     const char *detail)
{
    const struct repair *repair = context;
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    if (repair->cmd->json)
        json_array_append_new(repair->files, json_pack("{s:s, s:s, s:s}", "file", name, "outcome",
                                                       outcome_names[outcome], "detail", detail));
    else if (outcome != KEEL_REPAIR_SOUND)
        printf("%s %s: %s\n", name,
               outcome == KEEL_REPAIR_DONE && repair->options->dry_run ? "can be mended"
                                                                       : outcome_names[outcome],
               detail);
    fflush(stdout); /* a signal may end us at any time, and what was mended should have been said */
}

static void see_end(struct repair *repair, const struct keel_snapshot_info *info, enum keel_status status,
                    const struct keel_repair_result *result)
{
    if (repair->cmd->json) {
        json_array_append_new(
            repair->results,
            json_pack("{s:o, s:o, s:s, s:b, s:i, s:i, s:i, s:O}", "step", keel_cmd_step_json(info->step),
                      "attempt", keel_cmd_u64_json(info->attempt), "status", keel_status_name(status),
                      "dry_run", repair->options->dry_run, "sound", (int)result->sound, "mended",
                      (int)result->repaired, "lost", (int)result->lost, "files", repair->files));
        return;
    }
    printf("step %" PRIu64 ": %u files are sound, %u %s, %u are lost\n", info->step, result->sound,
           result->repaired, repair->options->dry_run ? "can be mended" : "were mended", result->lost);
}

/* Damage that stays is told, and another snapshot may fare better; what is returned makes all further vain.
 */
static enum keel_status repair_one(struct repair *repair, const struct keel_snapshot_info *info)
{
    struct keel_repair_result result = {0};
    struct keel_repair_config config = {.step = info->step,
                                        .attempt = info->attempt,
                                        .sources = repair->sources.tiers,
                                        .source_count = repair->sources.count,
                                        .dry_run = repair->options->dry_run,
                                        .report = see_file,
                                        .context = repair};
    repair->files = json_array();
    enum keel_status status = keel_store_repair(repair->place.store, &config, &result);
    bool manifest_lost = result.sound + result.repaired + result.lost == 0 &&
                         (status == KEEL_NOT_FOUND || status == KEEL_CORRUPT);
    if (manifest_lost) {
        char detail[KEEL_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        status =
            keel_fail(KEEL_CORRUPT,
                      "step %" PRIu64 ": its manifest is lost: no store that was asked has a sound one, and "
                      "without it nothing tells what the files should be (%.240s)",
                      info->step, detail);
    }
    bool lost = status == KEEL_CORRUPT || status == KEEL_MISMATCH || status == KEEL_VERSION;
    if (status == KEEL_OK || (lost && status != KEEL_VERSION))
        see_end(repair, info, status, &result);
    json_decref(repair->files);
    if (!lost)
        return status;
    if (repair->sources.count == 0 && status != KEEL_VERSION)
        status = keel_fail(status, "%.400s (--from STORE names another that may hold it)", keel_detail());
    keel_cmd_report(status);
    repair->worst = status;
    return KEEL_OK;
}

/* ---- which --------------------------------------------------------------------------------------------- */

/* A snapshot that only another store has any more. */
static enum keel_status repair_from_elsewhere(struct repair *repair)
{
    for (uint32_t i = 0; i < repair->sources.count && repair->place.has_step; i++) {
        struct keel_generation_index generations;
        struct keel_cmd_place there = repair->sources.places[i];
        there.has_step = true;
        there.step = repair->place.step;
        there.attempt = repair->place.attempt;
        KEEL_TRY(keel_generation_index_scan(there.store, false, &generations));
        const struct keel_generation_entry *found = keel_cmd_find_generation(&there, &generations);
        bool is_there = found != NULL;
        struct keel_snapshot_info info = is_there ? found->info : (struct keel_snapshot_info){0};
        keel_generation_index_fini(&generations);
        if (is_there)
            return repair_one(repair, &info);
    }
    if (!repair->place.has_step)
        return keel_fail(KEEL_NOT_FOUND,
                         "%s: holds no committed snapshot; name by --step N the one that a store "
                         "given by --from holds",
                         repair->place.path);
    return keel_fail(KEEL_NOT_FOUND,
                     "%s: holds no snapshot of step %" PRIu64 ", and no store given by --from does",
                     repair->place.path, repair->place.step);
}

static enum keel_status repair_meant(struct repair *repair)
{
    struct keel_generation_index generations;
    KEEL_TRY(keel_generation_index_scan(repair->place.store, false, &generations));
    const struct keel_generation_entry *one = NULL;
    bool all = repair->options->all;
    for (size_t i = 0; i < generations.count && one == NULL; i++)
        one = keel_cmd_is_meant(&repair->place, &generations.at[i]) ? &generations.at[i] : NULL;
    enum keel_status status = one == NULL ? repair_from_elsewhere(repair) : KEEL_OK;
    for (size_t i = 0; i < generations.count && one != NULL && status == KEEL_OK; i++)
        if (all ? keel_cmd_is_meant(&repair->place, &generations.at[i]) : &generations.at[i] == one)
            status = repair_one(repair, &generations.at[i].info);
    keel_generation_index_fini(&generations);
    return status;
}

static enum keel_status repair_locked(struct repair *repair)
{
    int lock = -1;
    if (!repair->options->dry_run)
        KEEL_TRY(keel_cmd_lock_run(&repair->place, "repair", &lock));
    enum keel_status status = open_sources(repair);
    if (status == KEEL_OK)
        status = repair_meant(repair);
    close_sources(&repair->sources);
    keel_cmd_unlock_run(lock);
    return status;
}

static int run(const struct keel_command *cmd)
{
    struct repair repair = {.cmd = cmd, .options = keel_command_own(cmd)};
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], !repair.options->dry_run, &repair.place);
    if (status == KEEL_NOT_FOUND) /* where it lay may be all that is known of it */
        status = keel_fail(status,
                           "%.300s; to bring it back make the run's directory (mkdir -p ROOT/RUN), and give "
                           "--from STORE and --step N",
                           keel_detail());
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    repair.results = json_array();
    status = repair_locked(&repair);
    int code = status == KEEL_OK ? keel_status_exit_code(repair.worst) : keel_cmd_report(status), printed = 0;
    if (cmd->json && status == KEEL_OK)
        printed = keel_cmd_print_json(
            json_pack("{s:s, s:O}", "run", repair.place.store->run, "snapshots", repair.results));
    json_decref(repair.results);
    keel_cmd_close(&repair.place);
    return code != 0 ? code : printed;
}

static const struct keel_command_option options[] = {
    KEEL_CMD_STEP,
    {"--from", "STORE", KEEL_COMMAND_TEXTS, offsetof(struct repair_options, from),
     "another store of the run that may hold sound copies; may be given several times"},
    {"--all", NULL, KEEL_COMMAND_FLAG, offsetof(struct repair_options, all), "all snapshots of the run"},
    {"--dry-run", NULL, KEEL_COMMAND_FLAG, offsetof(struct repair_options, dry_run),
     "write nothing, tell what can be mended"},
    {0}};

const struct keel_command_kind keel_cmd_repair = {
    .name = "repair",
    .operands = "PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "mend what is damaged or missing in one snapshot",
    .details =
        "Mends byte for byte from other stores, parity files, and copies in other shards, with the\n"
        "snapshots that its deltas need; brings back a snapshot that only another store has. Ends with 0\n"
        "when all is sound afterwards, with 4 when something is lost.\n",
    .examples = "  keel ckpt repair out --step 120 --from /shared/out --dry-run\n",
    .options = options,
    .run = run};
