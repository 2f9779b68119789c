/* ckpt_cmd_gc.c - `keel ckpt gc`: let old snapshots go, by the rules that are given. */
#include "ckpt_subcommand.h"
#include "generation_index.h"
#include <inttypes.h>
#include <stdio.h>

enum { KEEP_DEFAULT = 2 }; /* when another rule is given */

struct gc_options {
    struct keel_cmd_options shared;
    uint64_t keep, every_steps, within_ns, spaced_ns;
    bool idle, dry_run;
};

struct gc {
    const struct keel_command *cmd;
    bool dry_run;
    json_t *removed; /* with --json */
    uint32_t counts[KEEL_REMOVED_TEMPORARY + 1];
    uint64_t bytes;
};

static const char *const kind_names[] = {"snapshot", "leftover", "temporary"};

static void see_removed(void *context, const struct keel_removed *what)
{
    struct gc *gc = context;
    gc->counts[what->kind]++;
    gc->bytes += what->bytes;
    if (gc->cmd->json) {
        json_array_append_new(gc->removed,
                              json_pack("{s:s, s:o, s:o, s:I, s:s}", "kind", kind_names[what->kind], "step",
                                        keel_cmd_step_json(what->step), "attempt",
                                        keel_cmd_u64_json(what->attempt), "bytes", (json_int_t)what->bytes,
                                        "path", what->path));
        return;
    }
    char bytes[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(what->bytes, bytes);
    printf("%s %-9s  %12s  %s\n", gc->dry_run ? "would remove" : "removed", kind_names[what->kind], bytes,
           what->path);
    fflush(stdout); /* a signal may end us at any time, and what went should have been said */
}

static int print_end(const struct gc *gc, const struct keel_store *store, struct keel_generation_counts left)
{
    if (gc->cmd->json)
        return keel_cmd_print_json(json_pack("{s:s, s:b, s:O, s:I, s:I, s:I}", "run", store->run, "dry_run",
                                             gc->dry_run, "removed", gc->removed, "bytes",
                                             (json_int_t)gc->bytes, "committed", (json_int_t)left.committed,
                                             "uncommitted", (json_int_t)left.uncommitted));
    char bytes[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(gc->bytes, bytes);
    printf("%u snapshots, %u leftovers, %u temporary files %s, %s; %u committed snapshots %s\n",
           gc->counts[KEEL_REMOVED_SNAPSHOT], gc->counts[KEEL_REMOVED_LEFTOVER],
           gc->counts[KEEL_REMOVED_TEMPORARY], gc->dry_run ? "would go" : "went", bytes, left.committed,
           gc->dry_run ? "would stay" : "stay");
    if (left.uncommitted > 0)
        printf("%u more %s that are not committed, and no earlier than the newest made: they may be on their "
               "way; --idle removes them\n",
               left.uncommitted, gc->dry_run ? "would stay" : "stay");
    return 0;
}

/* What went is told also when the removal failed on its way. */
static int collect(struct gc *gc, struct keel_store *store, const struct keel_retention *rules)
{
    struct keel_generation_index index;
    enum keel_status status = keel_store_retain(store, rules, NULL);
    int code = status == KEEL_OK ? 0 : keel_cmd_report(status);
    status = keel_generation_index_scan(store, false, &index);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    struct keel_generation_counts left = keel_generation_index_count(&index);
    keel_generation_index_fini(&index);
    if (gc->dry_run) {
        left.committed -= gc->counts[KEEL_REMOVED_SNAPSHOT];
        left.uncommitted -= gc->counts[KEEL_REMOVED_LEFTOVER];
    }
    int printed = print_end(gc, store, left);
    return code != 0 ? code : printed;
}

static int run(const struct keel_command *cmd)
{
    const struct gc_options *options = keel_command_own(cmd);
    if (options->keep == 1)
        return keel_command_wrong_use(cmd->set, "--keep needs N: 2 at least, as one snapshot may be damaged",
                                      "");
    bool ruled = options->every_steps > 0 || options->within_ns > 0 || options->spaced_ns > 0;
    struct gc gc = {.cmd = cmd, .dry_run = options->dry_run};
    struct keel_retention rules = {.keep_last = ruled ? KEEP_DEFAULT : UINT32_MAX,
                                   .keep_every_steps = options->every_steps,
                                   .keep_within_ns = options->within_ns,
                                   .keep_spaced_ns = options->spaced_ns,
                                   .dry_run = options->dry_run,
                                   .removed = see_removed,
                                   .context = &gc};
    if (options->keep > 0)
        rules.keep_last = options->keep < UINT32_MAX ? (uint32_t)options->keep : UINT32_MAX;
    struct keel_cmd_place place;
    int lock = -1;
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], !options->dry_run, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    if (place.has_step)
        status = keel_fail(KEEL_INVALID, "%s: is one snapshot; name the run or the store", place.path);
    else if (!options->dry_run)
        status = keel_cmd_lock_run(&place, "gc", &lock);
    /* A run that is locked by us saves nothing. */
    rules.idle = options->idle || lock >= 0 || (options->dry_run && keel_cmd_run_is_idle(&place));
    gc.removed = json_array();
    int code = status == KEEL_OK ? collect(&gc, place.store, &rules) : keel_cmd_report(status);
    json_decref(gc.removed);
    keel_cmd_unlock_run(lock);
    keel_cmd_close(&place);
    return code;
}

static const struct keel_command_option options[] = {
    {"--keep", "N", KEEL_COMMAND_POSITIVE, offsetof(struct gc_options, keep),
     "the newest N stay, by step and by time; 2 at least"},
    {"--every", "STEPS", KEEL_COMMAND_POSITIVE, offsetof(struct gc_options, every_steps),
     "and those of a step that is a multiple of STEPS"},
    {"--within", "TIME", KEEL_COMMAND_DURATION, offsetof(struct gc_options, within_ns),
     "and those younger than TIME: 90s, 30m, 12h, 7d"},
    {"--spaced", "TIME", KEEL_COMMAND_DURATION, offsetof(struct gc_options, spaced_ns),
     "and the first of every span of TIME"},
    {"--idle", NULL, KEEL_COMMAND_FLAG, offsetof(struct gc_options, idle),
     "no program saves here now: what is not committed goes, whatever its step"},
    {"--dry-run", NULL, KEEL_COMMAND_FLAG, offsetof(struct gc_options, dry_run),
     "remove nothing, tell what would go"},
    {0}};

const struct keel_command_kind keel_cmd_gc = {
    .name = "gc",
    .operands = "PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "let old snapshots go, and what killed writers left",
    .details =
        "What any rule keeps stays, and so does every base that a delta of it needs. Without a rule all\n"
        "committed snapshots stay, and only leftovers go; with one the newest 2 stay at least. Of a\n"
        "directory of keel run, which it locks, it knows what is left over; elsewhere --idle says so.\n",
    .examples = "  keel ckpt gc out --keep 3 --every 1000 --within 1d --spaced 7d --dry-run\n",
    .options = options,
    .run = run};
