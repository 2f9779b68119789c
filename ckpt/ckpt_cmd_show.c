/* ckpt_cmd_show.c - `keel ckpt show`: the tensors of one snapshot. */
#include "ckpt_cmd.h"
#include <inttypes.h>
#include <stdio.h>

static json_t *tensor_json(const struct keel_region *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:s, s:s, s:o, s:I}", "name", tensor->name, "dtype",
                     keel_cmd_dtype_name(tensor->dtype), "shape", shape, "bytes",
                     (json_int_t)keel_region_bytes(tensor));
}

static int show_json(const struct keel_snapshot *snapshot)
{
    json_t *tensors = json_array(), *root = keel_cmd_info_json(keel_snapshot_info(snapshot));
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        struct keel_region tensor;
        if (keel_snapshot_tensor(snapshot, i, &tensor) == KEEL_OK)
            json_array_append_new(tensors, tensor_json(&tensor));
    }
    json_object_set_new(root, "metadata",
                        json_loads(keel_snapshot_metadata(snapshot), JSON_REJECT_DUPLICATES, NULL));
    json_object_set_new(root, "tensors", tensors);
    return keel_cmd_print_json(root);
}

static void show_text(const struct keel_snapshot *snapshot)
{
    const struct keel_snapshot_info *info = keel_snapshot_info(snapshot);
    char raw[KEEL_CMD_WORD_BYTES], stored[KEEL_CMD_WORD_BYTES], created[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(info->raw_bytes, raw);
    keel_cmd_format_bytes(info->stored_bytes, stored);
    keel_cmd_format_time(info->created_wall_ns, created);
    printf("step %" PRIu64 ", attempt %" PRIu64
           ", created %s\n%s in %u shards, %s stored\njob %s\nmetadata %s\n",
           info->step, info->attempt, created, raw, info->shard_count, stored,
           info->identity[0] == '\0' ? "-" : info->identity, keel_snapshot_metadata(snapshot));
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        struct keel_region tensor;
        char bytes[KEEL_CMD_WORD_BYTES];
        if (keel_snapshot_tensor(snapshot, i, &tensor) != KEEL_OK)
            continue;
        keel_cmd_format_bytes(keel_region_bytes(&tensor), bytes);
        printf("%12s  %-4s  %s [", bytes, keel_cmd_dtype_name(tensor.dtype), tensor.name);
        for (uint32_t d = 0; d < tensor.dims; d++)
            printf("%s%" PRIu64, d > 0 ? " x " : "", tensor.shape[d]);
        printf("]\n");
    }
}

static int run(const struct keel_cmd *cmd)
{
    struct keel_cmd_place place;
    struct keel_snapshot *snapshot = NULL;
    enum keel_status status = keel_cmd_open(cmd, cmd->operands[0], false, &place);
    if (status != KEEL_OK)
        return keel_cmd_report(status);
    status = keel_cmd_open_snapshot(&place, &snapshot);
    int code = 0;
    if (status != KEEL_OK)
        code = keel_cmd_report(status);
    else if (cmd->json)
        code = show_json(snapshot);
    else
        show_text(snapshot);
    keel_snapshot_close(snapshot);
    keel_cmd_close(&place);
    return code;
}

const struct keel_cmd_kind keel_cmd_show = {.name = "show",
                                            .operands = "PATH",
                                            .operands_min = 1,
                                            .operands_max = 1,
                                            .summary = "tensors and shards of one snapshot",
                                            .details = "",
                                            .examples = "  keel ckpt show out/ckpt/demo --step 120\n",
                                            .takes_step = true,
                                            .run = run};
