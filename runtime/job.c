/* job.c - the table of job keys, and the reading, checking and writing of job files.
 *
 * One row per key: where it lies in struct keel_job, its type, default, range and help. Everything else
 * here walks that table, so a key is added in one place. */
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <math.h>
#include <sodium.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    JOB_FILE_BYTES_MAX = 1 << 20,
    VALUE_BYTES = KEEL_PATH_BYTES,
    SHARDS_MAX = 256,
    RANKS_MAX = 64,
    BANDWIDTH_MIN = 65536 /* bytes a second */
};

enum type { TYPE_U32, TYPE_U64, TYPE_FLOAT, TYPE_DOUBLE, TYPE_BOOL, TYPE_TEXT, TYPE_CHOICE };

_Static_assert((int)KEEL_CODEC_RAW == 0 && (int)KEEL_CODEC_PLANES == 1 && (int)KEEL_CODEC_DELTA == 2,
               "the choices of snapshot.codec");

struct key {
    const char *section, *name;
    enum type type;
    size_t offset, bytes;
    const char *initial;
    double minimum, maximum;
    const char *choices; /* TYPE_CHOICE: "first|second", valued 0, 1, ... */
    bool bits;           /* the bits of the run depend on it: part of the job's identity */
    const char *help;
};

#define FIELD(field) offsetof(struct keel_job, field), sizeof(((struct keel_job *)0)->field)
#define U32_MAX      4294967295.0
#define STEP_MAX     4294967295.0
#define BYTES_MAX    1e15

static const struct key keys[] = {
    {"job", "name", TYPE_TEXT, FIELD(name), "run", 1, 0, NULL, false, "name of the run and of its snapshots"},
    {"job", "seed", TYPE_U64, FIELD(seed), "1337", 0, 18446744073709551615.0, NULL, true,
     "seed of weights, data order, dropout"},
    {"job", "numerics", TYPE_CHOICE, FIELD(numerics), "canonical", 0, 0, "canonical", true,
     "canonical: the same bits on every board"},
    {"job", "shards", TYPE_U32, FIELD(shards), "4", 1, SHARDS_MAX, NULL, true,
     "logical shards of the data; ranks carry them"},
    {"model", "layers", TYPE_U32, FIELD(layers), "4", 1, 256, NULL, true, "transformer blocks"},
    {"model", "heads", TYPE_U32, FIELD(heads), "4", 1, 256, NULL, true, "attention heads"},
    {"model", "width", TYPE_U32, FIELD(width), "128", 1, 65536, NULL, true, "embedding width"},
    {"model", "block", TYPE_U32, FIELD(block), "64", 1, 65536, NULL, true, "tokens of context"},
    {"model", "vocab", TYPE_U32, FIELD(vocab), "0", 0, 1 << 20, NULL, true,
     "vocabulary; 0: what the data needs. Larger sizes train on the same data"},
    {"model", "dropout", TYPE_FLOAT, FIELD(dropout), "0", 0, 0.95, NULL, true, "dropout rate"},
    {"model", "bias", TYPE_BOOL, FIELD(bias), "true", 0, 0, NULL, true, "bias in products and norms"},
    {"model", "tied", TYPE_BOOL, FIELD(tied), "true", 0, 0, NULL, true, "output uses the embedding table"},
    {"data", "path", TYPE_TEXT, FIELD(path), "build/data/english.txt", 1, 0, NULL, false,
     "text file to train on"},
    {"data", "vocab", TYPE_CHOICE, FIELD(vocab_kind), "char", 0, 0, "char|byte", true,
     "char: the bytes that occur in the text; byte: all 256"},
    {"data", "val_fraction", TYPE_FLOAT, FIELD(val_fraction), "0.1", 0, 0.9, NULL, true,
     "share at the end of the text kept for validation"},
    {"train", "steps", TYPE_U64, FIELD(steps), "300", 1, STEP_MAX, NULL, false, "optimizer steps of the run"},
    {"train", "microbatches", TYPE_U32, FIELD(microbatches), "1", 1, 65536, NULL, true,
     "microbatches per shard and step"},
    {"train", "batch", TYPE_U32, FIELD(batch), "4", 1, 65536, NULL, true, "sequences per microbatch"},
    {"train", "lr", TYPE_FLOAT, FIELD(learning_rate), "1e-3", 0, 10, NULL, true, "highest learning rate"},
    {"train", "min_lr", TYPE_FLOAT, FIELD(min_learning_rate), "1e-4", 0, 10, NULL, true,
     "learning rate at the end of the decay"},
    {"train", "warmup_steps", TYPE_U64, FIELD(warmup_steps), "20", 0, STEP_MAX, NULL, true, "linear warm-up"},
    {"train", "decay_steps", TYPE_U64, FIELD(decay_steps), "0", 0, STEP_MAX, NULL, true,
     "cosine decay ends here; 0: at train.steps"},
    {"train", "beta1", TYPE_FLOAT, FIELD(beta1), "0.9", 0, 0.9999, NULL, true, "AdamW"},
    {"train", "beta2", TYPE_FLOAT, FIELD(beta2), "0.99", 0, 0.99999, NULL, true, "AdamW"},
    {"train", "eps", TYPE_FLOAT, FIELD(epsilon), "1e-8", 1e-20, 1, NULL, true, "AdamW"},
    {"train", "weight_decay", TYPE_FLOAT, FIELD(weight_decay), "0.1", 0, 10, NULL, true,
     "AdamW, matrices only"},
    {"train", "clip", TYPE_FLOAT, FIELD(clip), "1", 0, 1e6, NULL, true, "gradient norm limit; 0: none"},
    {"train", "eval_every", TYPE_U64, FIELD(eval_every), "50", 0, STEP_MAX, NULL, false,
     "validation loss every so many steps; 0: never"},
    {"train", "eval_batches", TYPE_U32, FIELD(eval_batches), "8", 1, 65536, NULL, false,
     "microbatches of one validation"},
    {"train", "sample", TYPE_U32, FIELD(sample_tokens), "0", 0, 1 << 20, NULL, false,
     "tokens of text to generate when the run ends"},
    {"snapshot", "every", TYPE_U64, FIELD(snapshot_every), "50", 0, STEP_MAX, NULL, false,
     "snapshot every so many steps; 0: never"},
    {"snapshot", "codec", TYPE_CHOICE, FIELD(snapshot_codec), "planes", 0, 0, "raw|planes|delta", false,
     "raw; planes: compressed byte planes; delta: those of the change since the snapshot before"},
    {"snapshot", "keep", TYPE_U32, FIELD(snapshot_keep), "3", 2, 1000, NULL, false,
     "newest committed snapshots that stay, and what they need"},
    {"snapshot", "keep_every", TYPE_U64, FIELD(snapshot_keep_every), "0", 0, STEP_MAX, NULL, false,
     "and those of a step that is a multiple of it; 0: none"},
    {"snapshot", "keep_within_s", TYPE_DOUBLE, FIELD(snapshot_keep_within_s), "0", 0, 1e9, NULL, false,
     "and those younger than so many seconds"},
    {"snapshot", "bandwidth_bytes_s", TYPE_U64, FIELD(snapshot_bandwidth_bytes_s), "0", 0, BYTES_MAX, NULL,
     false, "most that each rank writes per second, 65536 at least; 0: no cap"},
    {"snapshot", "arena_bytes", TYPE_U64, FIELD(snapshot_arena_bytes), "0", 0, BYTES_MAX, NULL, false,
     "memory of each rank for what is captured and not written yet; 0: its whole state"},
    {"snapshot", "background", TYPE_BOOL, FIELD(snapshot_background), "true", 0, 0, NULL, false,
     "encode and write only when nobody else wants the processor and the disk"},
    {"snapshot", "retry", TYPE_U32, FIELD(snapshot_retry), "3", 0, 100, NULL, false,
     "how often a write that failed is tried again, and then the snapshot, at the next steps"},
    {"snapshot", "key_file", TYPE_TEXT, FIELD(snapshot_key_file), "", 0, 0, NULL, false,
     "file of the key that seals snapshots, which only its owner may read; empty: not sealed"},
    {"snapshot", "allow_nonfinite", TYPE_BOOL, FIELD(snapshot_allow_nonfinite), "false", 0, 0, NULL, false,
     "commit a snapshot although it holds NaN or infinity"},
    {"cluster", "ranks", TYPE_U32, FIELD(ranks), "1", 1, RANKS_MAX, NULL, false, "workers that carry shards"},
    {"cluster", "nodes", TYPE_U32, FIELD(nodes), "0", 0, RANKS_MAX - 1, NULL, false,
     "nodes that the ranks are spread over; 0: one per rank"},
    {"cluster", "spares", TYPE_U32, FIELD(spares), "0", 0, 16, NULL, false,
     "warm spare nodes of one worker each"},
    {"cluster", "timeout_s", TYPE_DOUBLE, FIELD(timeout_s), "5", 0.2, 3600, NULL, false,
     "silence after which a peer is lost; every other timeout follows from it"},
    {"cluster", "device", TYPE_TEXT, FIELD(device), "auto", 1, 0, NULL, false,
     "device of each worker, as `keel board list` names it"},
    {"cluster", "network_costs", TYPE_TEXT, FIELD(network_costs), "", 0, 0, NULL, false,
     "file that `keel net tune` wrote: how collectives are done; empty: as built in"},
    {"cluster", "seal_payload", TYPE_BOOL, FIELD(seal_payload), "false", 0, 0, NULL, false,
     "encrypt and authenticate bulk data between hosts too, not only what controls them"},
    {"cluster", "respawn", TYPE_BOOL, FIELD(respawn), "true", 0, 0, NULL, false,
     "start nodes that died again, to join as spares or to grow back"},
};
enum { KEY_COUNT = sizeof keys / sizeof keys[0] };

static char *field_text(struct keel_job *job, const struct key *key)
{
    return (char *)job + key->offset;
}

/* ---- parsing of values ---------------------------------------------------------------------------- */

static enum keel_status bad_value(const struct key *key, const char *value, const char *where,
                                  const char *wanted)
{
    return keel_fail(KEEL_INVALID, "%s: %s.%s = %s: %s", where, key->section, key->name, value, wanted);
}

static enum keel_status out_of_range(const struct key *key, const char *value, const char *where)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "out of range; %.10g to %.10g is allowed", key->minimum, key->maximum);
    return bad_value(key, value, where, wanted);
}

static enum keel_status set_choice(struct keel_job *job, const struct key *key, const char *value,
                                   const char *where)
{
    uint32_t index = 0;
    for (const char *at = key->choices; at != NULL; index++) {
        const char *bar = strchr(at, '|');
        size_t length = bar != NULL ? (size_t)(bar - at) : strlen(at);
        if (strlen(value) == length && strncmp(at, value, length) == 0) {
            memcpy(field_text(job, key), &index, sizeof index);
            return KEEL_OK;
        }
        at = bar != NULL ? bar + 1 : NULL;
    }
    char wanted[128];
    snprintf(wanted, sizeof wanted, "one of %s is wanted", key->choices);
    return bad_value(key, value, where, wanted);
}

static enum keel_status set_bool(struct keel_job *job, const struct key *key, const char *value,
                                 const char *where)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        bool is_yes = strcasecmp(value, yes[i]) == 0;
        if (is_yes || strcasecmp(value, no[i]) == 0) {
            *(bool *)(void *)field_text(job, key) = is_yes;
            return KEEL_OK;
        }
    }
    return bad_value(key, value, where, "true or false is wanted");
}

static enum keel_status set_number(struct keel_job *job, const struct key *key, const char *value,
                                   const char *where)
{
    char *end;
    errno = 0;
    if (key->type == TYPE_U32 || key->type == TYPE_U64) {
        uint64_t number = strtoull(value, &end, 10);
        if (end == value || *end != '\0' || strchr(value, '-') != NULL)
            return bad_value(key, value, where, "a whole number is wanted");
        if (errno == ERANGE || (double)number < key->minimum || (double)number > key->maximum)
            return out_of_range(key, value, where);
        uint32_t narrow = (uint32_t)number;
        memcpy(field_text(job, key), key->type == TYPE_U32 ? (void *)&narrow : (void *)&number, key->bytes);
        return KEEL_OK;
    }
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(number))
        return bad_value(key, value, where, "a number is wanted");
    float narrow = (float)number;
    bool is_float = key->type == TYPE_FLOAT; /* compared as it is kept: what is written reads back */
    double low = is_float ? (double)(float)key->minimum : key->minimum;
    double high = is_float ? (double)(float)key->maximum : key->maximum;
    double kept = is_float ? (double)narrow : number;
    if (kept < low || kept > high)
        return out_of_range(key, value, where);
    memcpy(field_text(job, key), key->type == TYPE_FLOAT ? (void *)&narrow : (void *)&number, key->bytes);
    return KEEL_OK;
}

/* Whether inih reads `name = value` back as it is: it takes blanks off the ends and what follows " ;", and
 * its lines are short. */
static bool fits_in_line(const struct key *key, const char *value)
{
    static const char blanks[] = " \t\v\f\r\n";
    size_t length = strlen(value);
    if (strlen(key->name) + strlen(" = \n") + length >= INI_MAX_LINE || strpbrk(value, "\r\n") != NULL)
        return false;
    if (length > 0 && (strspn(value, blanks) > 0 || strchr(blanks, value[length - 1]) != NULL))
        return false;
    for (const char *at = value; (at = strchr(at, ';')) != NULL; at++)
        if (at == value || strchr(blanks, at[-1]) != NULL)
            return false;
    return true;
}

static enum keel_status set_text(struct keel_job *job, const struct key *key, const char *value,
                                 const char *where)
{
    size_t length = strlen(value);
    if (length < (size_t)key->minimum || length >= key->bytes)
        return bad_value(key, value, where, "empty, or too long");
    if (!fits_in_line(key, value))
        return bad_value(key, value, where,
                         "too long for a line of a job file, or with a blank at an end or before ';'");
    memcpy(field_text(job, key), value, length + 1);
    return KEEL_OK;
}

static enum keel_status set_value(struct keel_job *job, const struct key *key, const char *value,
                                  const char *where)
{
    switch (key->type) {
    case TYPE_CHOICE:
        return set_choice(job, key, value, where);
    case TYPE_BOOL:
        return set_bool(job, key, value, where);
    case TYPE_TEXT:
        return set_text(job, key, value, where);
    default:
        return set_number(job, key, value, where);
    }
}

/* ---- finding keys ------------------------------------------------------------------------------------ */

/* Levenshtein distance of short names, two rows. */
static unsigned distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    unsigned row[LONGEST + 1];
    size_t columns = strnlen(b, LONGEST), rows = strnlen(a, LONGEST);
    for (size_t j = 0; j <= columns; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= rows; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= columns; j++) {
            unsigned above = row[j];
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[columns];
}

static const struct key *find_key(const char *section, const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcmp(keys[i].section, section) == 0 && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    return NULL;
}

static enum keel_status unknown_key(const char *section, const char *name, const char *where)
{
    if (section[0] == '\0')
        return keel_fail(KEEL_INVALID, "%s: %s stands in no section; a [section] comes first", where, name);
    const struct key *nearest = &keys[0];
    unsigned best = UINT32_MAX;
    for (size_t i = 0; i < KEY_COUNT; i++) {
        unsigned d = 2 * distance(keys[i].name, name) + distance(keys[i].section, section);
        if (d < best) {
            best = d;
            nearest = &keys[i];
        }
    }
    return keel_fail(KEEL_INVALID, "%s: unknown key %s.%s; the nearest known key is %s.%s", where, section,
                     name, nearest->section, nearest->name);
}

/* ---- files and overrides ------------------------------------------------------------------------------ */

struct reading {
    struct keel_job *job;
    const char *path, *at;
    unsigned line, given[KEY_COUNT]; /* given: the line that each key was in, 0 for none */
    enum keel_status status;         /* of the first bad line */
};

static char *next_line(char *out, int capacity, void *stream)
{
    struct reading *reading = stream;
    reading->at += strspn(reading->at, " \t"); /* inih takes an indented line for more of the value above */
    if (*reading->at == '\0')
        return NULL;
    const char *end = strchr(reading->at, '\n');
    size_t length = end != NULL ? (size_t)(end - reading->at) + 1 : strlen(reading->at);
    reading->line++;
    if (length >= (size_t)capacity) {
        if (reading->status == KEEL_OK)
            reading->status = keel_fail(KEEL_INVALID, "%s:%u: line longer than %d bytes; shorten it",
                                        reading->path, reading->line, capacity - 1);
        length = (size_t)capacity - 1;
    }
    memcpy(out, reading->at, length);
    out[length] = '\0';
    reading->at = end != NULL ? end + 1 : reading->at + strlen(reading->at);
    return out;
}

static int take_entry(void *user, const char *section, const char *name, const char *value)
{
    struct reading *reading = user;
    if (reading->status != KEEL_OK)
        return 1;
    char where[KEEL_PATH_BYTES + 16];
    snprintf(where, sizeof where, "%s:%u", reading->path, reading->line);
    const struct key *key = find_key(section, name);
    if (key == NULL) {
        reading->status = unknown_key(section, name, where);
        return 1;
    }
    unsigned *given = &reading->given[key - keys];
    if (*given != 0)
        reading->status = keel_fail(KEEL_INVALID, "%s: %s.%s was given in line %u already; keep one of them",
                                    where, section, name, *given);
    else
        reading->status = set_value(reading->job, key, value, where);
    *given = reading->line;
    return 1;
}

static enum keel_status read_job_file(const char *path, struct keel_job *job)
{
    char *text;
    size_t bytes;
    KEEL_TRY(keel_file_read(path, JOB_FILE_BYTES_MAX, &text, &bytes));
    if (strlen(text) != bytes) {
        size_t whole = strlen(text);
        keel_free(text);
        return keel_fail(KEEL_INVALID, "%s: byte %zu is NUL; a job file is text", path, whole);
    }
    struct reading reading = {.job = job, .path = path, .at = text, .status = KEEL_OK};
    int line = ini_parse_stream(next_line, &reading, take_entry, &reading);
    if (line != 0 && (reading.status == KEEL_OK || (unsigned)line < reading.line))
        reading.status = keel_fail(KEEL_INVALID, "%s:%d: not `key = value`, nor a [section]", path, line);
    keel_free(text);
    return reading.status;
}

static enum keel_status apply_override(struct keel_job *job, const char *text)
{
    char where[VALUE_BYTES + 16], section[64];
    snprintf(where, sizeof where, "--set %s", text);
    const char *dot = strchr(text, '.'), *equals = strchr(text, '=');
    if (dot == NULL || equals == NULL || dot > equals || (size_t)(dot - text) >= sizeof section)
        return keel_fail(KEEL_INVALID, "%s: section.key=value is wanted", where);
    char name[64];
    if ((size_t)(equals - dot) > sizeof name)
        return keel_fail(KEEL_INVALID, "%s: section.key=value is wanted", where);
    memcpy(section, text, (size_t)(dot - text));
    section[dot - text] = '\0';
    memcpy(name, dot + 1, (size_t)(equals - dot - 1));
    name[equals - dot - 1] = '\0';
    const struct key *key = find_key(section, name);
    return key != NULL ? set_value(job, key, equals + 1, where) : unknown_key(section, name, where);
}

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
    for (size_t i = 0; i < KEY_COUNT; i++)
        KEEL_ASSERT(set_value(&job, &keys[i], keys[i].initial, "default") == KEEL_OK);
    KEEL_TRY(read_job_file(path, &job));
    for (uint32_t i = 0; i < override_count; i++)
        KEEL_TRY(apply_override(&job, overrides[i]));
    if (job.decay_steps == 0)
        job.decay_steps = job.steps; /* settled here, so that a longer run later keeps its schedule */
    KEEL_TRY(check_job(&job));
    *out = job;
    return KEEL_OK;
}

/* ---- writing
 * ------------------------------------------------------------------------------------------------ */

static void format_value(const struct keel_job *job, const struct key *key, char out[VALUE_BYTES])
{
    const char *at = (const char *)job + key->offset;
    uint32_t narrow;
    uint64_t wide;
    float single;
    double number;
    switch (key->type) {
    case TYPE_U32:
        memcpy(&narrow, at, sizeof narrow);
        snprintf(out, VALUE_BYTES, "%" PRIu32, narrow);
        break;
    case TYPE_U64:
        memcpy(&wide, at, sizeof wide);
        snprintf(out, VALUE_BYTES, "%" PRIu64, wide);
        break;
    case TYPE_FLOAT:
        memcpy(&single, at, sizeof single);
        snprintf(out, VALUE_BYTES, "%.9g", (double)single);
        break;
    case TYPE_DOUBLE:
        memcpy(&number, at, sizeof number);
        snprintf(out, VALUE_BYTES, "%.17g", number);
        break;
    case TYPE_BOOL:
        snprintf(out, VALUE_BYTES, "%s", *(const bool *)(const void *)at ? "true" : "false");
        break;
    case TYPE_CHOICE: {
        memcpy(&narrow, at, sizeof narrow);
        const char *choice = key->choices;
        for (; narrow > 0; narrow--)
            choice = strchr(choice, '|') + 1;
        snprintf(out, VALUE_BYTES, "%.*s", (int)strcspn(choice, "|"), choice);
        break;
    }
    case TYPE_TEXT:
        snprintf(out, VALUE_BYTES, "%s", at);
        break;
    }
}

enum keel_status keel_job_write(const struct keel_job *job, FILE *out)
{
    const char *section = "";
    char value[VALUE_BYTES];
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(section, keys[i].section) != 0) {
            section = keys[i].section;
            fprintf(out, "[%s]\n", section);
        }
        format_value(job, &keys[i], value);
        if (!fits_in_line(&keys[i], value))
            return bad_value(&keys[i], value, "the job file cannot be written",
                             "too long for a line, or with blanks that would be lost; use another path");
        fprintf(out, "%s = %s\n", keys[i].name, value);
    }
    return ferror(out) ? keel_fail(KEEL_IO, "the job file cannot be written") : KEEL_OK;
}

const char *keel_job_key_file(const struct keel_job *job)
{
    return job->snapshot_key_file[0] != '\0' ? job->snapshot_key_file : NULL;
}

void keel_job_print_keys(FILE *out)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%s", keys[i].section, keys[i].name);
        fprintf(out, "  %-22s %s (%s)\n", name, keys[i].help, keys[i].initial);
    }
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
    char line[VALUE_BYTES + 96], value[VALUE_BYTES];
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (!keys[i].bits)
            continue;
        format_value(job, &keys[i], value);
        int length = snprintf(line, sizeof line, "%s.%s=%s\n", keys[i].section, keys[i].name, value);
        crypto_generichash_update(&state, (const unsigned char *)line, (unsigned long long)length);
    }
    int length =
        snprintf(line, sizeof line, "data=%016" PRIx64 "\narithmetic=%d\n", data_digest, ARITHMETIC_VERSION);
    crypto_generichash_update(&state, (const unsigned char *)line, (unsigned long long)length);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, KEEL_IDENTITY_BYTES, hash, sizeof hash);
}
