/* ckpt_cmd_ls.c - `keel ckpt ls`: the committed snapshots of a run. */
#include "ckpt_cmd.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>

static int list_json(const struct keel_store *store, const struct keel_snapshot_info *infos, uint32_t count,
                     uint32_t damaged)
{
    json_t *snapshots = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(snapshots, keel_cmd_info_json(&infos[i]));
    return keel_cmd_print_json(
        json_pack("{s:s, s:i, s:o}", "run", store->run, "damaged", (int)damaged, "snapshots", snapshots));
}

static void list_text(const struct keel_store *store, const struct keel_snapshot_info *infos, uint32_t count,
                      uint32_t damaged)
{
    printf("run %s: %u committed snapshots\n", store->run, count);
    if (count > 0)
        printf("%12s  %-20s  %6s  %12s  %12s  %s\n", "step", "attempt", "shards", "raw", "stored", "created");
    for (uint32_t i = 0; i < count; i++) {
        char raw[KEEL_CMD_WORD_BYTES], stored[KEEL_CMD_WORD_BYTES], created[KEEL_CMD_WORD_BYTES];
        keel_cmd_format_bytes(infos[i].raw_bytes, raw);
        keel_cmd_format_bytes(infos[i].stored_bytes, stored);
        keel_cmd_format_time(infos[i].created_wall_ns, created);
        printf("%12" PRIu64 "  %-20" PRIu64 "  %6u  %12s  %12s  %s\n", infos[i].step, infos[i].attempt,
               infos[i].shard_count, raw, stored, created);
    }
    if (damaged > 0)
        printf("%u more cannot be read: their manifests are damaged or belong elsewhere\n", damaged);
}

static int run(const struct keel_cmd *cmd)
{
    struct keel_cmd_place place;
    struct keel_snapshot_info *infos = NULL;
    uint32_t count = 0, damaged = 0;
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], false, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    status = keel_cmd_list(&place, &infos, &count, &damaged);
    int code = 0;
    if (status != KEEL_OK)
        code = keel_cmd_report(status);
    else if (cmd->json)
        code = list_json(place.store, infos, count, damaged);
    else
        list_text(place.store, infos, count, damaged);
    keel_free(infos);
    keel_cmd_close(&place);
    return code == 0 && damaged > 0 ? KEEL_CMD_DAMAGED : code;
}

const struct keel_cmd_kind keel_cmd_ls = {.name = "ls",
                                          .operands = "PATH",
                                          .operands_min = 1,
                                          .operands_max = 1,
                                          .summary = "list the committed snapshots of a run",
                                          .details = "",
                                          .examples = "  keel ckpt ls out/ckpt\n",
                                          .run = run};
