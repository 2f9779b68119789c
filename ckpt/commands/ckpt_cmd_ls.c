/* ckpt_cmd_ls.c - `keel ckpt ls`: the committed snapshots of a run. Reads manifests alone. */
#include "ckpt_subcommand.h"
#include "generation_index.h"
#include <inttypes.h>
#include <stdio.h>

static json_t *attempt_json(const struct keel_generation_entry *attempt)
{
    json_t *root = keel_cmd_info_json(&attempt->info);
    json_object_set_new(root, "bases", keel_cmd_bases_json(attempt->bases, attempt->base_count));
    return root;
}

static int list_json(const struct keel_store *store, const struct keel_generation_index *generations)
{
    json_t *snapshots = json_array();
    const struct keel_generation_counts counts = keel_generation_index_count(generations);
    for (size_t i = 0; i < generations->count; i++)
        if (generations->at[i].state == KEEL_GENERATION_COMMITTED)
            json_array_append_new(snapshots, attempt_json(&generations->at[i]));
    return keel_cmd_print_json(json_pack("{s:s, s:i, s:i, s:o}", "run", store->run, "damaged",
                                         (int)counts.damaged, "uncommitted", (int)counts.uncommitted,
                                         "snapshots", snapshots));
}

static void print_attempt(const struct keel_generation_entry *attempt)
{
    const struct keel_snapshot_info *info = &attempt->info;
    const struct keel_cmd_words words = keel_cmd_words_of(info);
    printf("%12" PRIu64 "  %-20" PRIu64 "  %6u  %10s  %10s  %6s  %-6s  %s  ", info->step, info->attempt,
           info->shard_count, words.raw, words.stored, words.ratio, info->sealed ? "yes" : "no",
           words.created);
    for (uint32_t i = 0; i < attempt->base_count; i++)
        printf("%s%" PRIu64 ".%" PRIu64, i > 0 ? ", " : "", attempt->bases[i].step,
               attempt->bases[i].attempt);
    printf("%s\n", attempt->base_count == 0 ? "-" : "");
}

static void list_text(const struct keel_store *store, const struct keel_generation_index *generations)
{
    const struct keel_generation_counts counts = keel_generation_index_count(generations);
    printf("run %s: %u committed snapshots\n", store->run, counts.committed);
    if (counts.committed > 0)
        printf("%12s  %-20s  %6s  %10s  %10s  %6s  %-6s  %-20s  %s\n", "step", "attempt", "shards", "raw",
               "stored", "ratio", "sealed", "created", "bases");
    for (size_t i = 0; i < generations->count; i++)
        if (generations->at[i].state == KEEL_GENERATION_COMMITTED)
            print_attempt(&generations->at[i]);
    if (counts.uncommitted > 0)
        printf("%u more are not committed: on their way, or leftovers\n", counts.uncommitted);
    if (counts.newer > 0)
        printf("%u more are of a newer format version; list them with a newer Keel\n", counts.newer);
    if (counts.damaged > counts.newer)
        printf("%u more cannot be read: their manifests are damaged or belong elsewhere; try %s repair\n",
               counts.damaged - counts.newer, keel_command_called(&keel_ckpt_commands));
}

static int run(const struct keel_command *cmd)
{
    struct keel_cmd_place place;
    struct keel_generation_index generations = {0};
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], false, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    status = keel_generation_index_scan(place.store, false, &generations);
    int code = 0;
    if (status != KEEL_OK)
        code = keel_cmd_report(status);
    else if (cmd->json)
        code = list_json(place.store, &generations);
    else
        list_text(place.store, &generations);
    if (code == 0 && keel_generation_index_count(&generations).damaged > 0)
        code = KEEL_CMD_DAMAGED;
    keel_generation_index_fini(&generations);
    keel_cmd_close(&place);
    return code;
}

const struct keel_command_kind keel_cmd_ls = {.name = "ls",
                                              .operands = "PATH",
                                              .operands_min = 1,
                                              .operands_max = 1,
                                              .summary = "list the committed snapshots of a run",
                                              .details = "",
                                              .examples = "  keel ckpt ls out/ckpt\n",
                                              .run = run};
