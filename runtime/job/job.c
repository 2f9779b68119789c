/* job.c - what the values of job keys have to do with one another, the keys of a plug-in, and the identity of
 * a job. The keys themselves are rows of job_keys.c: reading, checking and writing walk that table. */
#include "job_internal.h"
#include "job_keys.h"
#include "plugin.h"
#include <inttypes.h>
#include <keel/kernels.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define MIXUP_LEAST 0.001F

/* ---- what depends on one another ----------------------------------------------------------------------- */

static enum keel_status check_name(const char *name)
{
    if (name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] != '\0' ||
        name[0] == '.')
        return keel_fail(KEEL_INVALID, "job.name = %s: letters, digits, '.', '_' and '-' only", name);
    return KEEL_OK;
}

/* The keys of the job, where a plug-in may have some of its own. */
static const struct keel_ini_table *table_of(const struct keel_job *job)
{
    return job->plugin != NULL ? &job->plugin->table : &keel_job_keys;
}

static const struct keel_ini_key *find_key(const struct keel_job *job, const char *section, const char *name)
{
    const struct keel_ini_table *all = table_of(job);
    for (size_t k = 0; k < all->key_count; k++)
        if (strcmp(all->keys[k].section, section) == 0 && strcmp(all->keys[k].name, name) == 0)
            return &all->keys[k];
    KEEL_ASSERT(false);
    return NULL;
}

/* What no file said, as a file would have it. */
static bool is_default(const struct keel_ini_key *key, const struct keel_job *job)
{
    struct keel_job other;
    char value[KEEL_INI_VALUE_BYTES], initial[KEEL_INI_VALUE_BYTES];
    keel_ini_defaults(table_of(job), &other);
    keel_ini_format(key, job, value);
    keel_ini_format(key, &other, initial);
    return strcmp(value, initial) == 0;
}

/* A value as people write it: 0.1 of a float, not 0.100000001. */
static void print_value(const struct keel_ini_key *key, const struct keel_job *job,
                        char out[KEEL_INI_VALUE_BYTES])
{
    float value;
    keel_ini_format(key, job, out);
    if (key->type != KEEL_INI_FLOAT)
        return;
    memcpy(&value, (const char *)job + key->offset, sizeof value);
    snprintf(out, KEEL_INI_VALUE_BYTES, "%g", (double)value);
}

/* The choices of these bits: "moe, mixtral". */
static void name_choices(const struct keel_ini_key *by, unsigned users, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (const char *at = by->choices; at != NULL && used < bytes; users >>= 1) {
        const char *bar = strchr(at, '|');
        if ((users & 1) != 0)
            used += (size_t)snprintf(out + used, bytes - used, "%s%.*s", used > 0 ? ", " : "",
                                     (int)strcspn(at, "|"), at);
        at = bar != NULL ? bar + 1 : NULL;
    }
}

/* INVALID: a key that is set, and that is not used with the choice of the chooser's. */
static enum keel_status check_users(const struct keel_job *job, const struct keel_key_chooser *chooser,
                                    uint32_t choice)
{
    const struct keel_job builtin = {.plugin = NULL};
    char value[KEEL_INI_VALUE_BYTES], chosen[KEEL_INI_VALUE_BYTES], others[128];
    for (size_t i = 0; i < table_of(job)->key_count; i++) {
        const struct keel_ini_key *key = &table_of(job)->keys[i];
        const unsigned users = keel_key_users(key, chooser);
        if (users == 0 || (users & 1U << choice) != 0 || is_default(key, job))
            continue;
        print_value(key, job, value);
        print_value(find_key(job, chooser->section, chooser->name), job, chosen);
        name_choices(find_key(&builtin, chooser->section, chooser->name), users, others, sizeof others);
        return keel_fail(KEEL_INVALID,
                         "%s.%s = %s says nothing to %s.%s = %s: leave it out; it is for %s.%s = %s",
                         key->section, key->name, value, chooser->section, chooser->name, chosen,
                         chooser->section, chooser->name, others);
    }
    return KEEL_OK;
}

enum keel_model_kind keel_job_data_kind(const struct keel_job *job)
{
    static const enum keel_model_kind kinds[KEEL_PLUGIN_DATA_COUNT] = {
        KEEL_MODEL_GPT, KEEL_MODEL_BERT, KEEL_MODEL_RESNET, KEEL_MODEL_DLRM, KEEL_MODEL_PLUGIN};
    return job->plugin != NULL ? kinds[job->plugin->entry->data] : (enum keel_model_kind)job->kind;
}

/* data.format is one of the model's, and keys of files that are read are there where such are. */
static enum keel_status check_format(const struct keel_job *job)
{
    enum { TOKENS = 1 << KEEL_DATA_TEXT | 1 << KEEL_DATA_UINT16 | 1 << KEEL_DATA_UINT32 };
    enum { CLICKS = 1 << KEEL_DATA_CRITEO | 1 << KEEL_DATA_CSV, FOLDERS = 1 << KEEL_DATA_FOLDERS };
    static const char *const names[] = {"val_path", "val_fraction", "image_size", "crop"};
    const enum keel_model_kind kind = keel_job_data_kind(job);
    const bool clicks = kind == KEEL_MODEL_DLRM, images = (IMAGES & 1U << kind) != 0;
    const bool set = job->format != KEEL_DATA_AUTO;
    char value[KEEL_INI_VALUE_BYTES];
    print_value(find_key(job, "data", "format"), job, value);
    if (set && ((clicks ? CLICKS : images ? FOLDERS : TOKENS) & 1 << job->format) == 0)
        return keel_fail(KEEL_INVALID, "data.format = %s: %s is wanted by this model", value,
                         clicks   ? "criteo, csv, or auto for samples that are drawn"
                         : images ? "folders, or auto for IDX files"
                                  : "text, uint16 or uint32");
    for (size_t i = 0; (clicks || images) && !set && i < sizeof names / sizeof names[0]; i++)
        if (!is_default(find_key(job, "data", names[i]), job))
            return keel_fail(KEEL_INVALID,
                             "data.%s says nothing where data.format = auto: give data.format = %s, or leave "
                             "it out",
                             names[i], clicks ? "criteo or csv" : "folders");
    if (job->mixup > 0.0F && job->mixup < MIXUP_LEAST) /* whose powers float32 has not, even as logarithms */
        return keel_fail(KEEL_INVALID, "data.mixup = %g: out of range: 0, or %g to 1", (double)job->mixup,
                         (double)MIXUP_LEAST);
    if (job->mixup > 0.0F && job->plugin != NULL)
        return keel_fail(KEEL_INVALID,
                         "data.mixup = %g: the model of a file has labels of its own; leave it out",
                         (double)job->mixup);
    if (clicks && set && !is_default(find_key(job, "data", "samples"), job))
        return keel_fail(KEEL_INVALID, "data.samples = %llu says nothing where data.format = %s is read",
                         (unsigned long long)job->samples, value);
    return KEEL_OK;
}

static bool is_text(const struct keel_job *job)
{
    return (TEXT & 1U << keel_job_data_kind(job)) != 0;
}

static enum keel_status check_kind(const struct keel_job *job)
{
    const uint32_t choices[KEEL_KEY_CHOOSERS] = {[KEEL_BY_MODEL] = keel_job_data_kind(job),
                                                 [KEEL_BY_OPTIMIZER] = job->optimizer,
                                                 [KEEL_BY_DECAY] = job->decay,
                                                 [KEEL_BY_LAUNCH] = job->launch};
    for (int i = 0; i < KEEL_KEY_CHOOSERS; i++)
        KEEL_TRY(check_users(job, &keel_key_choosers[i], choices[i]));
    return KEEL_OK;
}

/* The microbatches belong to the identity, whichever way they are asked for. */
static enum keel_status settle_batch(struct keel_job *job)
{
    const uint64_t each = (uint64_t)job->shards * job->batch, microbatches = job->total_batch / each;
    if (job->total_batch == 0)
        return KEEL_OK;
    if (job->total_batch % each != 0 || microbatches > KEEL_JOB_MICROBATCHES_MAX)
        return keel_fail(KEEL_INVALID,
                         "train.total_batch = %" PRIu64
                         " is no multiple, up to %d times, of job.shards = %u x "
                         "train.batch = %u: give a multiple of %" PRIu64 ", or another train.batch",
                         job->total_batch, KEEL_JOB_MICROBATCHES_MAX, job->shards, job->batch, each);
    if (job->microbatches != 1 && job->microbatches != microbatches)
        return keel_fail(KEEL_INVALID,
                         "train.microbatches = %u and train.total_batch = %" PRIu64 ", of which %" PRIu64
                         " follow, do not agree: leave one of them out",
                         job->microbatches, job->total_batch, microbatches);
    job->microbatches = (uint32_t)microbatches;
    return KEEL_OK;
}

static bool is_scale(float scale)
{
    int exponent;
    return scale <= 0.0F || (scale >= 1.0F && frexpf(scale, &exponent) <= 0.5F);
}

static enum keel_status check_launch(const struct keel_job *job)
{
    if (job->launch == KEEL_LAUNCH_SSH && job->hosts[0] == '\0')
        return keel_fail(KEEL_INVALID, "cluster.launch = ssh: which hosts? Give cluster.hosts = a,b,c");
    return keel_job_check_holders(job);
}

/* Keys of a model that say nothing beside another one of it, as that is. */
static enum keel_status check_model(const struct keel_job *job)
{
    static const char *const names[] = {"layers", "stages", "bottleneck"};
    char value[KEEL_INI_VALUE_BYTES];
    for (size_t i = 0; job->depth > 0 && i < sizeof names / sizeof names[0]; i++) {
        const struct keel_ini_key *key = find_key(job, "model", names[i]);
        if (is_default(key, job))
            continue;
        keel_ini_format(key, job, value);
        return keel_fail(KEEL_INVALID,
                         "model.%s = %s says nothing beside model.depth = %u, of which stages and blocks "
                         "follow: leave one of them out",
                         key->name, value, job->depth);
    }
    if (job->table_rows[0] != '\0' && !is_default(find_key(job, "model", "categories"), job))
        return keel_fail(KEEL_INVALID,
                         "model.categories = %u says nothing beside model.table_rows: leave one of "
                         "them out",
                         job->categories);
    if (job->plugin == NULL)
        KEEL_TRY(keel_job_check_sizes(job));
    if (job->rope_context > 0 && job->rope_factor <= 1.0F)
        return keel_fail(KEEL_INVALID,
                         "model.rope_context = %u says nothing without model.rope_factor above 1: give one, "
                         "or leave it out",
                         job->rope_context);
    return KEEL_OK;
}

static enum keel_status check_job(const struct keel_job *job)
{
    KEEL_TRY(check_name(job->name));
    KEEL_TRY(check_launch(job));
    KEEL_TRY(keel_job_check_devices(job));
    KEEL_TRY(check_kind(job));
    KEEL_TRY(check_model(job));
    KEEL_TRY(keel_job_check_vocabulary(job));
    KEEL_TRY(check_format(job));
    if (is_text(job))
        KEEL_TRY(keel_job_check_text_names(job));
    if (job->val_path[0] != '\0' && !is_default(find_key(job, "data", "val_fraction"), job))
        return keel_fail(
            KEEL_INVALID,
            "data.val_fraction = %g says nothing beside data.val_path = %s: leave one of them out",
            (double)job->val_fraction, job->val_path);
    if (is_text(job) && job->plugin == NULL && job->width % job->heads != 0)
        return keel_fail(KEEL_INVALID, "model.width = %u does not divide into model.heads = %u", job->width,
                         job->heads);
    if (job->kind == KEEL_MODEL_MOE && job->layers < 2)
        return keel_fail(KEEL_INVALID,
                         "model.layers = %u: model.kind = moe has experts in every second block; give 2 or "
                         "more",
                         job->layers);
    if (job->nodes > 0 && job->ranks % job->nodes != 0)
        return keel_fail(KEEL_INVALID, "cluster.ranks = %u does not divide over cluster.nodes = %u",
                         job->ranks, job->nodes);
    KEEL_TRY(keel_job_check_snapshots(job));
    KEEL_TRY(keel_job_check_schedule(job));
    KEEL_TRY(keel_job_check_groups(job));
    if (job->loss_scale > 0.0F && job->storage != KEEL_F16)
        return keel_fail(KEEL_INVALID, "train.loss_scale = %g belongs to train.storage = f16",
                         (double)job->loss_scale);
    if (!is_scale(job->loss_scale))
        return keel_fail(KEEL_INVALID, "train.loss_scale = %g: a power of two, 1 at least, or 0",
                         (double)job->loss_scale);
    return keel_job_check_parallel(job);
}

/* ---- plug-ins ------------------------------------------------------------------------------------------ */

const struct keel_model_plugin *keel_job_plugin(const struct keel_job *job)
{
    return job->plugin != NULL ? job->plugin->entry : NULL;
}

struct keel_onnx_file *keel_job_onnx(const struct keel_job *job)
{
    return job->plugin != NULL ? job->plugin->onnx : NULL;
}

/* Whether a key of [model] is of the data, and not of a model that comes with Keel. */
static bool is_of_data(const struct keel_ini_key *key, enum keel_model_kind kind)
{
    const unsigned users = keel_key_users(key, &keel_key_choosers[KEEL_BY_MODEL]);
    return (key->mark & OF_DATA) != 0 && (users == 0 || (users & 1U << kind) != 0);
}

/* A plug-in's own keys, behind those of [model] that its data have. */
static enum keel_status add_own_keys(struct keel_job_plugin *plugin, uint32_t *count)
{
    const uint32_t before = *count;
    for (uint32_t k = 0; k < plugin->entry->key_count; k++) {
        struct keel_ini_key own = plugin->entry->keys[k];
        for (uint32_t i = 0; i < before; i++)
            if (strcmp(plugin->keys[i].section, "model") == 0 && strcmp(plugin->keys[i].name, own.name) == 0)
                return keel_fail(KEEL_INVALID,
                                 "%s: its key %s is one that [model] has for its data; give it another name",
                                 plugin->path, own.name);
        own.offset += offsetof(struct keel_job, settings);
        own.mark = BITS;
        plugin->keys[(*count)++] = own;
    }
    return KEEL_OK;
}

/* The keys of a job with this plug-in: all sections, and of [model] what its data have, and its own. */
static enum keel_status add_keys(struct keel_job_plugin *plugin)
{
    static const struct keel_ini_key kind = {"model", "kind", KEEL_INI_TEXT, FIELD(plugin_path),   "-", 1,
                                             0,       NULL,   BITS,          "file of the plug-in"};
    const struct keel_job of_plugin = {.plugin = plugin};
    const enum keel_model_kind data = keel_job_data_kind(&of_plugin);
    uint32_t count = 0;
    const struct keel_ini_key *const keys = keel_job_keys.keys;
    for (size_t i = 0; i < keel_job_keys.key_count; i++) {
        const bool of_model = strcmp(keys[i].section, "model") == 0;
        if (!of_model || is_of_data(&keys[i], data))
            plugin->keys[count++] = of_model && strcmp(keys[i].name, "kind") == 0 ? kind : keys[i];
        if (of_model && strcmp(keys[i + 1].section, "model") != 0)
            KEEL_TRY(add_own_keys(plugin, &count));
    }
    plugin->table = (struct keel_ini_table){.keys = plugin->keys, .key_count = count, .what = "job"};
    return KEEL_OK;
}

static enum keel_status take_any(void *object, const struct keel_ini_entry *entry)
{
    (void)object;
    (void)entry;
    return KEEL_OK;
}

enum keel_status keel_job_plugin_file(const char *path, const char *const *overrides, uint32_t override_count,
                                      char out[KEEL_PATH_BYTES])
{
    static const char prefix[] = "model.kind=";
    struct {
        char kind[KEEL_PATH_BYTES];
    } seen;
    const struct keel_ini_key key = {"model", "kind", KEEL_INI_TEXT, 0, sizeof seen.kind, "gpt", 0, 0, NULL,
                                     0,       ""};
    const struct keel_ini_table kinds = {.keys = &key, .key_count = 1, .what = "job", .take = take_any};
    keel_ini_defaults(&kinds, &seen);
    KEEL_TRY(keel_ini_read(&kinds, path, &seen));
    for (uint32_t i = 0; i < override_count; i++)
        if (strncmp(overrides[i], prefix, sizeof prefix - 1) == 0)
            KEEL_TRY(keel_ini_override(&kinds, overrides[i], &seen));
    memcpy(out, seen.kind, sizeof seen.kind);
    if (!keel_plugin_is_path(seen.kind))
        out[0] = '\0';
    return KEEL_OK;
}

/* What model.kind is has to be known before the other keys are read. */
static enum keel_status find_plugin(const char *path, const char *const *overrides, uint32_t override_count,
                                    struct keel_job *job)
{
    char file[KEEL_PATH_BYTES];
    KEEL_TRY(keel_job_plugin_file(path, overrides, override_count, file));
    if (file[0] == '\0')
        return KEEL_OK;
    job->kind = KEEL_MODEL_PLUGIN;
    return keel_plugin_load(file, add_keys, &job->plugin);
}

enum keel_status keel_job_load(const char *path, const char *const *overrides, uint32_t override_count,
                               struct keel_job *out)
{
    struct keel_job job;
    memset(&job, 0, sizeof job);
    KEEL_TRY(find_plugin(path, overrides, override_count, &job));
    keel_ini_defaults(table_of(&job), &job);
    KEEL_TRY(keel_ini_read(table_of(&job), path, &job));
    const uint64_t steps_of_file = job.steps;
    for (uint32_t i = 0; i < override_count; i++)
        KEEL_TRY(keel_ini_override(table_of(&job), overrides[i], &job));
    if (job.decay_steps == 0 && job.decay != KEEL_DECAY_CONSTANT)
        job.decay_steps =
            job.steps > 0 ? job.steps
                          : steps_of_file; /* settled here, so that a longer run later keeps its schedule */
    KEEL_TRY(keel_job_settle_gradients(&job));
    KEEL_TRY(settle_batch(&job));
    KEEL_TRY(check_job(&job));
    *out = job;
    return KEEL_OK;
}

enum keel_status keel_job_write(const struct keel_job *job, FILE *out)
{
    return keel_ini_write(table_of(job), job, out);
}

uint32_t keel_job_state_parts(const struct keel_job *job)
{
    return 2 + (keel_optimizer_has_v((enum keel_optimizer)job->optimizer) ? 1U : 0U) +
           (job->ema > 0.0F ? 1U : 0U);
}

const char *keel_job_unit(const struct keel_job *job)
{
    return is_text(job) ? "tokens" : "samples";
}

void keel_job_describe(const struct keel_job *job, char *out, size_t bytes)
{
    char kind[KEEL_INI_VALUE_BYTES];
    keel_ini_format(find_key(job, "model", "kind"), job, kind);
    if (job->plugin != NULL) {
        snprintf(out, bytes, "%s", kind);
        return;
    }
    int length = snprintf(out, bytes, "%s, %u layers, width %u", kind,
                          job->depth > 0 ? job->depth : job->layers, job->width);
    if (is_text(job) && length > 0 && (size_t)length < bytes)
        snprintf(out + length, bytes - (size_t)length, ", %u heads, %u tokens of context", job->heads,
                 job->block);
}

void keel_job_print_keys(FILE *out)
{
    keel_ini_print_keys(&keel_job_keys, out);
}

/* ---- identity ------------------------------------------------------------------------------------------ */

/* To be raised with any change of what the same settings compute: canonical arithmetic, data order, first
 * weights. Golden hashes change with it, and a run that is half old and half new would have no bits of
 * its own. The identity ends with it. That of version 1 was all hash: it is told by its end, in all but one
 * of 65,536 cases, where only the message to the user is a less exact one. 1: the norm in blocks of the flat
 * buffer, one accumulator for all uses of a tied weight and for all losses. */
enum { ARITHMETIC_VERSION = 2, VERSION_DIGITS = 4, HASH_DIGITS = KEEL_IDENTITY_BYTES - 1 - VERSION_DIGITS };

/* A value as far as the bits depend on it: of a tokenizer its contents do, which the digest of the data has,
 * and not where it lies; of a plug-in its own. */
static void format_bits(const struct keel_ini_key *key, const struct keel_job *job,
                        char out[KEEL_INI_VALUE_BYTES])
{
    keel_ini_format(key, job, out);
    if (key->offset == offsetof(struct keel_job, plugin_path))
        snprintf(out, KEEL_INI_VALUE_BYTES, "plugin:%s", job->plugin->digest);
    if (key->offset == offsetof(struct keel_job, vocabulary) &&
        strncmp(out, KEEL_JOB_BPE, sizeof KEEL_JOB_BPE - 1) == 0)
        out[sizeof KEEL_JOB_BPE - 1] = '\0';
}

static void hash_key(crypto_generichash_state *state, const struct keel_ini_key *key,
                     const struct keel_job *job)
{
    char line[KEEL_INI_VALUE_BYTES + 96], value[KEEL_INI_VALUE_BYTES];
    format_bits(key, job, value);
    int length = snprintf(line, sizeof line, "%s.%s=%s\n", key->section, key->name, value);
    crypto_generichash_update(state, (const unsigned char *)line, (unsigned long long)length);
}

static bool is_of_identity(const struct keel_ini_key *key, const struct keel_job *job)
{
    return (key->mark & BITS) != 0 && ((key->mark & LATER) == 0 || !is_default(key, job));
}

uint64_t keel_job_plan_keys(const struct keel_job *job)
{
    crypto_generichash_state state;
    unsigned char hash[crypto_generichash_BYTES_MIN];
    uint64_t out;
    const struct keel_ini_table *const all = table_of(job);
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    for (size_t i = 0; i < all->key_count; i++)
        if (is_of_identity(&all->keys[i], job) || strcmp(all->keys[i].section, "parallel") == 0 ||
            &all->keys[i] == find_key(job, "cluster", "ranks") ||
            &all->keys[i] == find_key(job, "cluster", "nodes"))
            hash_key(&state, &all->keys[i], job);
    crypto_generichash_final(&state, hash, sizeof hash);
    memcpy(&out, hash, sizeof out);
    return out;
}

/* What the same settings compute otherwise than before, told from it so that what was begun then goes on with
 * no other bits: a BERT, which is Hugging Face's now; adapters of queries, keys and values in one matrix,
 * whose slices are of heads now and were of columns; in a class of numerics convolutions, which were
 * canonical before, and then attention. All other runs are what they were, so that the version stays. */
enum of_class { LINEAR_OF_CLASS, CONVOLUTIONS_OF_CLASS, ATTENTION_OF_CLASS };

static void hash_class(crypto_generichash_state *state, const struct keel_job *job, enum of_class most)
{
    static const char convolutions[] = "convolutions=class\n", attention[] = "attention=class\n";
    const uint32_t none = RESNET | ALEXNET | DLRM;
    if (job->numerics == KEEL_CANONICAL || job->numerics == KEEL_NATIVE)
        return;
    if (most >= CONVOLUTIONS_OF_CLASS && ((IMAGES & 1U << job->kind) != 0 || job->plugin != NULL))
        crypto_generichash_update(state, (const unsigned char *)convolutions, sizeof convolutions - 1);
    if (most >= ATTENTION_OF_CLASS && (none & 1U << job->kind) == 0)
        crypto_generichash_update(state, (const unsigned char *)attention, sizeof attention - 1);
}

static void identity_of(const struct keel_job *job, uint64_t data_digest, enum of_class most,
                        char out[KEEL_IDENTITY_BYTES])
{
    const struct keel_ini_table *const all = table_of(job);
    crypto_generichash_state state;
    unsigned char hash[32];
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    char line[64];
    for (size_t i = 0; i < all->key_count; i++)
        if (is_of_identity(&all->keys[i], job))
            hash_key(&state, &all->keys[i], job);
    int length = snprintf(line, sizeof line, "data=%016" PRIx64 "\n", data_digest);
    crypto_generichash_update(&state, (const unsigned char *)line, (unsigned long long)length);
    hash_class(&state, job, most);
    if (job->kind == KEEL_MODEL_BERT)
        crypto_generichash_update(&state, (const unsigned char *)"bert=2\n", 7);
    if (job->lora_rank > 0 && job->tensor > 1 && ((GPTS & 1U << job->kind) != 0 || job->plugin != NULL))
        crypto_generichash_update(&state, (const unsigned char *)"adapters=units\n", 15);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, KEEL_IDENTITY_BYTES, hash, sizeof hash);
    snprintf(out + HASH_DIGITS, VERSION_DIGITS + 1, "%0*x", VERSION_DIGITS, ARITHMETIC_VERSION);
}

void keel_job_identity(const struct keel_job *job, uint64_t data_digest, char out[KEEL_IDENTITY_BYTES])
{
    identity_of(job, data_digest, ATTENTION_OF_CLASS, out);
}

bool keel_job_is_older_class(const struct keel_job *job, uint64_t data_digest, const char *identity)
{
    char own[KEEL_IDENTITY_BYTES], older[2][KEEL_IDENTITY_BYTES];
    keel_job_identity(job, data_digest, own);
    identity_of(job, data_digest, LINEAR_OF_CLASS, older[0]);
    identity_of(job, data_digest, CONVOLUTIONS_OF_CLASS, older[1]);
    return strcmp(identity, own) != 0 && (strcmp(identity, older[0]) == 0 || strcmp(identity, older[1]) == 0);
}

bool keel_job_is_arithmetic(const char *identity)
{
    char version[VERSION_DIGITS + 1];
    snprintf(version, sizeof version, "%0*x", VERSION_DIGITS, ARITHMETIC_VERSION);
    return strlen(identity) == HASH_DIGITS + VERSION_DIGITS && strcmp(identity + HASH_DIGITS, version) == 0;
}

/* Whether both have the same table of keys. */
static bool has_keys_of(const struct keel_job *there, const struct keel_job *here)
{
    if (there->plugin == NULL || here->plugin == NULL)
        return there->plugin == here->plugin;
    return strcmp(there->plugin->digest, here->plugin->digest) == 0;
}

/* What a job says of a key, as "train.lr is 0.1 there": of microbatches that follow from train.total_batch in
 * one of the two, which of these. */
static const struct keel_ini_key *told_key(const struct keel_ini_key *key, const struct keel_job *there,
                                           const struct keel_job *here)
{
    const bool of_total = there->total_batch > 0 || here->total_batch > 0;
    return of_total && key->offset == offsetof(struct keel_job, microbatches)
               ? find_key(here, "train", "total_batch")
               : key;
}

static void print_told(const struct keel_ini_key *key, const struct keel_job *job,
                       char out[KEEL_INI_VALUE_BYTES])
{
    struct keel_job settled = *job;
    settled.total_batch = (uint64_t)job->shards * job->microbatches * job->batch;
    print_value(key, &settled, out);
}

uint32_t keel_job_difference(const struct keel_job *there, const struct keel_job *here, char *out,
                             size_t bytes)
{
    enum { TOLD_MAX = 4 };
    const struct keel_ini_table *const all = table_of(here);
    char a[KEEL_INI_VALUE_BYTES], b[KEEL_INI_VALUE_BYTES];
    uint32_t count = 0;
    size_t used = 0;
    out[0] = '\0';
    if (!has_keys_of(there, here)) {
        keel_ini_format(find_key(there, "model", "kind"), there, a);
        keel_ini_format(find_key(here, "model", "kind"), here, b);
        snprintf(out, bytes, "model.kind is %.200s there and %.200s here", a, b);
        return 1;
    }
    for (size_t i = 0; i < all->key_count; i++) {
        format_bits(&all->keys[i], there, a);
        format_bits(&all->keys[i], here, b);
        if ((all->keys[i].mark & BITS) == 0 || strcmp(a, b) == 0 || count++ >= TOLD_MAX || used >= bytes)
            continue;
        const struct keel_ini_key *told = told_key(&all->keys[i], there, here);
        print_told(told, there, a);
        print_told(told, here, b);
        used += (size_t)snprintf(out + used, bytes - used, "%s%s.%s is %s there and %s here",
                                 used == 0 ? "" : ", ", told->section, told->name, a, b);
    }
    if (count > TOLD_MAX && used < bytes)
        snprintf(out + used, bytes - used, ", and %u more", count - TOLD_MAX);
    return count;
}
