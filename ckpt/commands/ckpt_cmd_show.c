/* ckpt_cmd_show.c - `keel ckpt show`: what one snapshot holds, and how it is stored. Reads manifest and
 * indexes. */
#include "ckpt_cmd_tensors.h"
#include "snapshot.h"
#include <inttypes.h>
#include <stdio.h>

/* How a tensor lies in the shards, replicas included. */
struct stored {
    struct keel_region tensor;
    uint64_t raw_bytes, stored_bytes, nonfinite;
    uint32_t pieces, chunks[KEEL_CODEC_COUNT];
};

static const char *const codec_names[KEEL_CODEC_COUNT] = {"raw", "planes", "delta", "same"};

static enum keel_status look_at(const struct keel_snapshot *snapshot, uint32_t index, struct stored *out)
{
    const struct keel_tensor *tensor = &snapshot->tensors[index];
    *out = (struct stored){.pieces = tensor->piece_count};
    KEEL_TRY(keel_snapshot_tensor(snapshot, index, &out->tensor));
    for (uint32_t p = tensor->first_piece; p < tensor->first_piece + tensor->piece_count; p++) {
        const struct keel_format_record *record = keel_snapshot_record(snapshot, p);
        const struct keel_format_chunk *chunks =
            snapshot->shards[snapshot->pieces[p].shard].chunks + record->first_chunk;
        out->raw_bytes += record->raw_bytes;
        out->nonfinite += record->nonfinite;
        for (uint32_t c = 0; c < record->chunk_count; c++) {
            out->stored_bytes += chunks[c].stored_bytes;
            out->chunks[chunks[c].codec]++;
        }
    }
    return KEEL_OK;
}

/* ---- json ---------------------------------------------------------------------------------------------- */

static json_t *tensor_json(const struct stored *stored)
{
    const struct keel_region *tensor = &stored->tensor;
    json_t *chunks = json_object();
    for (uint32_t i = 0; i < KEEL_CODEC_COUNT; i++)
        json_object_set_new(chunks, codec_names[i], json_integer(stored->chunks[i]));
    return json_pack("{s:s, s:s, s:o, s:I, s:i, s:o, s:I, s:I, s:I}", "name", tensor->name, "dtype",
                     keel_ckpt_dtype_name(tensor->dtype), "shape",
                     keel_cmd_shape_json(tensor->shape, tensor->dims), "bytes",
                     (json_int_t)keel_region_bytes(tensor), "pieces", (int)stored->pieces, "chunks", chunks,
                     "raw_bytes", (json_int_t)stored->raw_bytes, "stored_bytes",
                     (json_int_t)stored->stored_bytes, "nonfinite", (json_int_t)stored->nonfinite);
}

static json_t *shards_json(const struct keel_manifest *manifest)
{
    json_t *shards = json_array();
    for (uint32_t i = 0; i < manifest->info.shard_count; i++) {
        const struct keel_shard_summary *shard = &manifest->shards[i];
        json_array_append_new(shards, json_pack("{s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)shard->rank,
                                                "records", (json_int_t)shard->record_count, "file_bytes",
                                                (json_int_t)shard->file_bytes, "raw_bytes",
                                                (json_int_t)shard->raw_bytes, "stored_bytes",
                                                (json_int_t)shard->stored_bytes));
    }
    return shards;
}

static int show_json(const struct keel_snapshot *snapshot)
{
    json_t *tensors = json_array(), *root = keel_cmd_info_json(&snapshot->manifest.info);
    struct stored stored;
    for (uint32_t i = 0; i < snapshot->tensor_count; i++)
        if (look_at(snapshot, i, &stored) == KEEL_OK)
            json_array_append_new(tensors, tensor_json(&stored));
    json_object_set_new(root, "shards", json_integer(snapshot->manifest.info.shard_count));
    json_object_set_new(root, "files", shards_json(&snapshot->manifest));
    json_object_set_new(root, "bases",
                        keel_cmd_bases_json(snapshot->manifest.bases, snapshot->manifest.base_count));
    json_object_set_new(root, "metadata",
                        json_loads(keel_snapshot_metadata(snapshot), JSON_REJECT_DUPLICATES, NULL));
    json_object_set_new(root, "tensors", tensors);
    return keel_cmd_print_json(root);
}

/* ---- text ---------------------------------------------------------------------------------------------- */

static void print_head(const struct keel_snapshot *snapshot)
{
    const struct keel_manifest *manifest = &snapshot->manifest;
    const struct keel_snapshot_info *info = &manifest->info;
    const struct keel_cmd_words words = keel_cmd_words_of(info);
    printf("step %" PRIu64 ", attempt %" PRIu64 ", created %s\n", info->step, info->attempt, words.created);
    printf("%s in %u shards, %s stored (%s)%s\n", words.raw, info->shard_count, words.stored, words.ratio,
           info->sealed ? ", sealed" : "");
    for (uint32_t i = 0; i < manifest->base_count; i++)
        printf("needs step %" PRIu64 ", attempt %" PRIu64 "\n", manifest->bases[i].step,
               manifest->bases[i].attempt);
    printf("job %s\nmetadata %s\n", info->identity[0] == '\0' ? "-" : info->identity,
           keel_snapshot_metadata(snapshot));
}

static void print_tensor(const struct stored *stored)
{
    const struct keel_region *tensor = &stored->tensor;
    char bytes[KEEL_CMD_WORD_BYTES], ratio[KEEL_CMD_WORD_BYTES], shape[256];
    keel_cmd_format_bytes(keel_region_bytes(tensor), bytes);
    keel_cmd_format_ratio(stored->raw_bytes, stored->stored_bytes, ratio);
    keel_cmd_format_shape(tensor, shape, sizeof shape);
    printf("%12s  %7s  %-4s  %s [%s] ", bytes, ratio, keel_ckpt_dtype_name(tensor->dtype), tensor->name,
           shape);
    for (uint32_t i = 0; i < KEEL_CODEC_COUNT; i++)
        if (stored->chunks[i] > 0)
            printf(" %s:%u", codec_names[i], stored->chunks[i]);
    if (stored->nonfinite > 0)
        printf("  %" PRIu64 " NaN or infinite", stored->nonfinite);
    printf("\n");
}

static void show_text(const struct keel_snapshot *snapshot)
{
    struct stored stored;
    print_head(snapshot);
    for (uint32_t i = 0; i < snapshot->tensor_count; i++)
        if (look_at(snapshot, i, &stored) == KEEL_OK)
            print_tensor(&stored);
}

struct show {
    bool json;
    int code;
};

static enum keel_status show(void *context, const struct keel_cmd_place *places,
                             struct keel_snapshot *const *snapshots)
{
    struct show *show = context;
    struct keel_snapshot *whole;
    (void)places;
    KEEL_TRY(keel_snapshot_whole(snapshots[0], &whole));
    if (show->json)
        show->code = show_json(whole);
    else
        show_text(whole);
    return KEEL_OK;
}

static int run(const struct keel_command *cmd)
{
    struct show what = {.json = cmd->json};
    enum keel_status status = keel_cmd_read(cmd, 1, show, &what);
    return status == KEEL_OK ? what.code : keel_cmd_report(status);
}

static const struct keel_command_option options[] = {KEEL_CMD_STEP, {0}};

const struct keel_command_kind keel_cmd_show = {
    .name = "show",
    .operands = "PATH",
    .operands_min = 1,
    .operands_max = 1,
    .summary = "tensors and shards of one snapshot",
    .details =
        "Of each tensor: size, how much smaller it is stored, type, name, shape, how many chunks each\n"
        "codec stores, and how many elements are NaN or infinite, if any.\n",
    .examples = "  keel ckpt show out/ckpt/demo --step 120\n",
    .options = options,
    .run = run};
