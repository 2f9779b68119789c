/* ckpt_cmd_verify.c - `keel ckpt verify`: check every chunk. */
#include "ckpt_cmd.h"
#include <inttypes.h>
#include <stdio.h>

static int verify_json(enum keel_status status, const struct keel_snapshot *snapshot, uint32_t damaged)
{
    json_t *root = snapshot == NULL ? json_object() : keel_cmd_info_json(keel_snapshot_info(snapshot));
    json_object_set_new(root, "status", json_string(keel_status_name(status)));
    json_object_set_new(root, "damaged_parts", json_integer(damaged));
    json_object_set_new(root, "first", status == KEEL_OK ? json_null() : json_string(keel_detail()));
    return keel_cmd_print_json(root);
}

static int verify(const struct keel_cmd *cmd, const struct keel_cmd_place *place)
{
    struct keel_snapshot *snapshot = NULL;
    struct keel_cmd_meter meter = keel_cmd_meter_of("verify");
    uint32_t damaged = 0;
    enum keel_status status = keel_cmd_open_snapshot(place, &snapshot);
    if (status == KEEL_OK)
        status = keel_snapshot_verify(snapshot, keel_cmd_meter_show, &meter, &damaged);
    if (cmd->json)
        verify_json(status, snapshot, damaged);
    if (status == KEEL_OK && !cmd->json) {
        char raw[KEEL_CMD_WORD_BYTES];
        keel_cmd_format_bytes(keel_snapshot_info(snapshot)->raw_bytes, raw);
        printf("step %" PRIu64 ": all chunks are sound (%s in %u shards)\n",
               keel_snapshot_info(snapshot)->step, raw, keel_snapshot_info(snapshot)->shard_count);
    }
    int code = status == KEEL_OK ? 0 : keel_cmd_report(status);
    if (damaged > 1)
        fprintf(stderr, "keel ckpt: %u parts are damaged\n", damaged);
    keel_snapshot_close(snapshot);
    return code;
}

static int run(const struct keel_cmd *cmd)
{
    struct keel_cmd_place place;
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], false, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    int code = verify(cmd, &place);
    keel_cmd_close(&place);
    return code;
}

const struct keel_cmd_kind keel_cmd_verify = {.name = "verify",
                                              .operands = "PATH",
                                              .operands_min = 1,
                                              .operands_max = 1,
                                              .summary = "check every chunk of one snapshot",
                                              .details = "",
                                              .examples =
                                                  "  keel ckpt verify out/ckpt/demo/step-120.3 --json\n",
                                              .takes_step = true,
                                              .run = run};
