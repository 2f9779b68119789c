/* job.c - the table of job keys, and what their values have to do with one another.
 *
 * One row per key: where it lies in struct keel_job, its type, default, range and help. Reading, checking
 * and writing walk that table (keel/ini.h), so a key is added in one place. */
#include <inttypes.h>
#include <keel/ini.h>
#include <keel/job.h>
#include <sodium.h>
#include <stddef.h>
#include <string.h>

enum {
    SHARDS_MAX = 256,
    RANKS_MAX = 64,
    BANDWIDTH_MIN = 65536 /* bytes a second */
};

_Static_assert((int)KEEL_CODEC_RAW == 0 && (int)KEEL_CODEC_PLANES == 1 && (int)KEEL_CODEC_DELTA == 2,
               "the choices of snapshot.codec");

#define FIELD(field) offsetof(struct keel_job, field), sizeof(((struct keel_job *)0)->field)
#define STEP_MAX     4294967295.0
#define BYTES_MAX    1e15

/* The mark is whether the bits of the run depend on the key: then it is part of the job's identity. */
static const struct keel_ini_key keys[] = {
    {"job", "name", KEEL_INI_TEXT, FIELD(name), "run", 1, 0, NULL, false,
     "name of the run and of its snapshots"},
    {"job", "seed", KEEL_INI_U64, FIELD(seed), "1337", 0, 18446744073709551615.0, NULL, true,
     "seed of weights, data order, dropout"},
    {"job", "numerics", KEEL_INI_CHOICE, FIELD(numerics), "canonical", 0, 0, "canonical", true,
     "canonical: the same bits on every board"},
    {"job", "shards", KEEL_INI_U32, FIELD(shards), "4", 1, SHARDS_MAX, NULL, true,
     "logical shards of the data; ranks carry them"},
    {"model", "layers", KEEL_INI_U32, FIELD(layers), "4", 1, 256, NULL, true, "transformer blocks"},
    {"model", "heads", KEEL_INI_U32, FIELD(heads), "4", 1, 256, NULL, true, "attention heads"},
    {"model", "width", KEEL_INI_U32, FIELD(width), "128", 1, 65536, NULL, true, "embedding width"},
    {"model", "block", KEEL_INI_U32, FIELD(block), "64", 1, 65536, NULL, true, "tokens of context"},
    {"model", "vocab", KEEL_INI_U32, FIELD(vocab), "0", 0, 1 << 20, NULL, true,
     "vocabulary; 0: what the data needs. Larger sizes train on the same data"},
    {"model", "dropout", KEEL_INI_FLOAT, FIELD(dropout), "0", 0, 0.95, NULL, true, "dropout rate"},
    {"model", "bias", KEEL_INI_BOOL, FIELD(bias), "true", 0, 0, NULL, true, "bias in products and norms"},
    {"model", "tied", KEEL_INI_BOOL, FIELD(tied), "true", 0, 0, NULL, true,
     "output uses the embedding table"},
    {"data", "path", KEEL_INI_TEXT, FIELD(path), "build/data/english.txt", 1, 0, NULL, false,
     "text file to train on"},
    {"data", "vocab", KEEL_INI_CHOICE, FIELD(vocab_kind), "char", 0, 0, "char|byte", true,
     "char: the bytes that occur in the text; byte: all 256"},
    {"data", "val_fraction", KEEL_INI_FLOAT, FIELD(val_fraction), "0.1", 0, 0.9, NULL, true,
     "share at the end of the text kept for validation"},
    {"train", "steps", KEEL_INI_U64, FIELD(steps), "300", 1, STEP_MAX, NULL, false,
     "optimizer steps of the run"},
    {"train", "microbatches", KEEL_INI_U32, FIELD(microbatches), "1", 1, 65536, NULL, true,
     "microbatches per shard and step"},
    {"train", "batch", KEEL_INI_U32, FIELD(batch), "4", 1, 65536, NULL, true, "sequences per microbatch"},
    {"train", "lr", KEEL_INI_FLOAT, FIELD(learning_rate), "1e-3", 0, 10, NULL, true, "highest learning rate"},
    {"train", "min_lr", KEEL_INI_FLOAT, FIELD(min_learning_rate), "1e-4", 0, 10, NULL, true,
     "learning rate at the end of the decay"},
    {"train", "warmup_steps", KEEL_INI_U64, FIELD(warmup_steps), "20", 0, STEP_MAX, NULL, true,
     "linear warm-up"},
    {"train", "decay_steps", KEEL_INI_U64, FIELD(decay_steps), "0", 0, STEP_MAX, NULL, true,
     "cosine decay ends here; 0: at train.steps"},
    {"train", "beta1", KEEL_INI_FLOAT, FIELD(beta1), "0.9", 0, 0.9999, NULL, true, "AdamW"},
    {"train", "beta2", KEEL_INI_FLOAT, FIELD(beta2), "0.99", 0, 0.99999, NULL, true, "AdamW"},
    {"train", "eps", KEEL_INI_FLOAT, FIELD(epsilon), "1e-8", 1e-20, 1, NULL, true, "AdamW"},
    {"train", "weight_decay", KEEL_INI_FLOAT, FIELD(weight_decay), "0.1", 0, 10, NULL, true,
     "AdamW, matrices only"},
    {"train", "clip", KEEL_INI_FLOAT, FIELD(clip), "1", 0, 1e6, NULL, true, "gradient norm limit; 0: none"},
    {"train", "eval_every", KEEL_INI_U64, FIELD(eval_every), "50", 0, STEP_MAX, NULL, false,
     "validation loss every so many steps; 0: never"},
    {"train", "eval_batches", KEEL_INI_U32, FIELD(eval_batches), "8", 1, 65536, NULL, false,
     "microbatches of one validation"},
    {"train", "check_products", KEEL_INI_BOOL, FIELD(check_products), "false", 0, 0, NULL, false,
     "notice when the memory of a board changes the result of a product, before it is trained on"},
    {"train", "sample", KEEL_INI_U32, FIELD(sample_tokens), "0", 0, 1 << 20, NULL, false,
     "tokens of text to generate when the run ends"},
    {"train", "screen_every", KEEL_INI_U64, FIELD(screen_every), "0", 0, STEP_MAX, NULL, false,
     "test each board by a golden operation every so many steps, and by all of them at first; 0: never"},
    {"snapshot", "every", KEEL_INI_U64, FIELD(snapshot_every), "50", 0, STEP_MAX, NULL, false,
     "snapshot every so many steps; 0: never"},
    {"snapshot", "codec", KEEL_INI_CHOICE, FIELD(snapshot_codec), "planes", 0, 0, "raw|planes|delta", false,
     "raw; planes: compressed byte planes; delta: those of the change since the snapshot before"},
    {"snapshot", "keep", KEEL_INI_U32, FIELD(snapshot_keep), "3", 2, 1000, NULL, false,
     "newest committed snapshots that stay, and what they need"},
    {"snapshot", "keep_every", KEEL_INI_U64, FIELD(snapshot_keep_every), "0", 0, STEP_MAX, NULL, false,
     "and those of a step that is a multiple of it; 0: none"},
    {"snapshot", "keep_within_s", KEEL_INI_DOUBLE, FIELD(snapshot_keep_within_s), "0", 0, 1e9, NULL, false,
     "and those younger than so many seconds"},
    {"snapshot", "bandwidth_bytes_s", KEEL_INI_U64, FIELD(snapshot_bandwidth_bytes_s), "0", 0, BYTES_MAX,
     NULL, false, "most that each rank writes per second, 65536 at least; 0: no cap"},
    {"snapshot", "arena_bytes", KEEL_INI_U64, FIELD(snapshot_arena_bytes), "0", 0, BYTES_MAX, NULL, false,
     "memory of each rank for what is captured and not written yet; 0: its whole state"},
    {"snapshot", "background", KEEL_INI_BOOL, FIELD(snapshot_background), "true", 0, 0, NULL, false,
     "encode and write only when nobody else wants the processor and the disk"},
    {"snapshot", "retry", KEEL_INI_U32, FIELD(snapshot_retry), "3", 0, 100, NULL, false,
     "how often a write that failed is tried again, and then the snapshot, at the next steps"},
    {"snapshot", "key_file", KEEL_INI_TEXT, FIELD(snapshot_key_file), "", 0, 0, NULL, false,
     "file of the key that seals snapshots, which only its owner may read; empty: not sealed"},
    {"snapshot", "allow_nonfinite", KEEL_INI_BOOL, FIELD(snapshot_allow_nonfinite), "false", 0, 0, NULL,
     false, "commit a snapshot although it holds NaN or infinity"},
    {"cluster", "ranks", KEEL_INI_U32, FIELD(ranks), "1", 1, RANKS_MAX, NULL, false,
     "workers that carry shards"},
    {"cluster", "nodes", KEEL_INI_U32, FIELD(nodes), "0", 0, RANKS_MAX - 1, NULL, false,
     "nodes that the ranks are spread over; 0: one per rank"},
    {"cluster", "spares", KEEL_INI_U32, FIELD(spares), "0", 0, 16, NULL, false,
     "warm spare nodes of one worker each"},
    {"cluster", "timeout_s", KEEL_INI_DOUBLE, FIELD(timeout_s), "5", 0.2, 3600, NULL, false,
     "silence after which a peer is lost; every other timeout follows from it"},
    {"cluster", "device", KEEL_INI_TEXT, FIELD(device), "auto", 1, 0, NULL, false,
     "device or board of each worker, as `keel board list` names them"},
    {"cluster", "network_costs", KEEL_INI_TEXT, FIELD(network_costs), "", 0, 0, NULL, false,
     "file that `keel net tune` wrote: how collectives are done; empty: as built in"},
    {"cluster", "seal_payload", KEEL_INI_BOOL, FIELD(seal_payload), "false", 0, 0, NULL, false,
     "encrypt and authenticate bulk data between hosts too, not only what controls them"},
    {"cluster", "respawn", KEEL_INI_BOOL, FIELD(respawn), "true", 0, 0, NULL, false,
     "start nodes that died again, to join as spares or to grow back"},
};
static const struct keel_ini_table table = {
    .keys = keys, .key_count = sizeof keys / sizeof keys[0], .what = "job"};

/* ---- what depends on one another ------------------------------------------------------------------------
 */

static enum keel_status check_name(const char *name)
{
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] != '\0' ||
        name[0] == '.')
        return keel_fail(KEEL_INVALID, "job.name = %s: letters, digits, '.', '_' and '-' only", name);
    return KEEL_OK;
}

static enum keel_status check_job(const struct keel_job *job)
{
    KEEL_TRY(check_name(job->name));
    if (job->width % job->heads != 0)
        return keel_fail(KEEL_INVALID, "model.width = %u does not divide into model.heads = %u", job->width,
                         job->heads);
    if (job->ranks > job->shards)
        return keel_fail(
            KEEL_INVALID,
            "cluster.ranks = %u is more than job.shards = %u: some ranks would have nothing to do; "
            "use fewer ranks, or a job of more shards",
            job->ranks, job->shards);
    if (job->nodes > 0 && job->ranks % job->nodes != 0)
        return keel_fail(KEEL_INVALID, "cluster.ranks = %u does not divide over cluster.nodes = %u",
                         job->ranks, job->nodes);
    if (job->snapshot_bandwidth_bytes_s > 0 && job->snapshot_bandwidth_bytes_s < BANDWIDTH_MIN)
        return keel_fail(KEEL_INVALID,
                         "snapshot.bandwidth_bytes_s = %llu is in bytes a second: no snapshot would be done "
                         "in time; give %d or more, or 0 for no cap",
                         (unsigned long long)job->snapshot_bandwidth_bytes_s, BANDWIDTH_MIN);
    if (job->min_learning_rate > job->learning_rate)
        return keel_fail(KEEL_INVALID, "train.min_lr = %g is above train.lr = %g",
                         (double)job->min_learning_rate, (double)job->learning_rate);
    return KEEL_OK;
}

enum keel_status keel_job_load(const char *path, const char *const *overrides, uint32_t override_count,
                               struct keel_job *out)
{
    struct keel_job job;
    memset(&job, 0, sizeof job);
    keel_ini_defaults(&table, &job);
    KEEL_TRY(keel_ini_read(&table, path, &job));
    for (uint32_t i = 0; i < override_count; i++)
        KEEL_TRY(keel_ini_override(&table, overrides[i], &job));
    if (job.decay_steps == 0)
        job.decay_steps = job.steps; /* settled here, so that a longer run later keeps its schedule */
    KEEL_TRY(check_job(&job));
    *out = job;
    return KEEL_OK;
}

enum keel_status keel_job_write(const struct keel_job *job, FILE *out)
{
    return keel_ini_write(&table, job, out);
}

const char *keel_job_key_file(const struct keel_job *job)
{
    return job->snapshot_key_file[0] != '\0' ? job->snapshot_key_file : NULL;
}

void keel_job_print_keys(FILE *out)
{
    keel_ini_print_keys(&table, out);
}

/* ---- identity
 * -------------------------------------------------------------------------------------------------- */

/* To be raised with any change of what the same settings compute: canonical arithmetic, data order, first
 * weights. Golden hashes change with it, and a run that is half old and half new would have no bits of
 * its own. */
enum { ARITHMETIC_VERSION = 1 };

void keel_job_identity(const struct keel_job *job, uint64_t data_digest, char out[KEEL_IDENTITY_BYTES])
{
    crypto_generichash_state state;
    unsigned char hash[32];
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    char line[KEEL_INI_VALUE_BYTES + 96], value[KEEL_INI_VALUE_BYTES];
    for (size_t i = 0; i < table.key_count; i++) {
        if (!keys[i].marked)
            continue;
        keel_ini_format(&keys[i], job, value);
        int length = snprintf(line, sizeof line, "%s.%s=%s\n", keys[i].section, keys[i].name, value);
        crypto_generichash_update(&state, (const unsigned char *)line, (unsigned long long)length);
    }
    int length =
        snprintf(line, sizeof line, "data=%016" PRIx64 "\narithmetic=%d\n", data_digest, ARITHMETIC_VERSION);
    crypto_generichash_update(&state, (const unsigned char *)line, (unsigned long long)length);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, KEEL_IDENTITY_BYTES, hash, sizeof hash);
}
