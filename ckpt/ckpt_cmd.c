/* ckpt_cmd.c - `keel ckpt ls|show|verify PATH`: a person's, or a script's, look into a store.
 * PATH is a store's root, a run in it, the directory of one snapshot, or that of a `keel run`. Reads only. */
#include "store.h"
#include <inttypes.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LIST_MAX = 1 << 16, ERROR_CODE_DAMAGED = 4 };

struct options {
    const char *path;
    uint64_t step, attempt;
    bool json, has_step;
};

static const char usage[] =
    "usage: keel ckpt ls     PATH [--json]             list the committed snapshots of a run\n"
    "       keel ckpt show   PATH [--step N] [--json]  tensors and shards of one snapshot\n"
    "       keel ckpt verify PATH [--step N] [--json]  check every chunk of one snapshot\n"
    "\n"
    "PATH is a store, a run in it, one snapshot, or the directory of a keel run; without --step\n"
    "the newest snapshot is meant.\n"
    "Exit codes: 0 done, 2 wrong use, 3 could not run here, 4 data is damaged.\n"
    "\n"
    "examples:\n"
    "  keel ckpt ls out/ckpt\n"
    "  keel ckpt show out/ckpt/demo --step 120\n"
    "  keel ckpt verify out/ckpt/demo/step-120.3 --json\n";

/* The deciding function prints; the exit code follows from the status. */
static int report(enum keel_status status)
{
    fprintf(stderr, "keel ckpt: %s: %s\n", keel_status_text(status), keel_detail());
    return keel_status_exit_code(status);
}

static int print_json(json_t *value)
{
    char *text = value == NULL ? NULL : json_dumps(value, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    json_decref(value);
    if (text == NULL)
        return report(keel_fail(KEEL_NO_MEMORY, "no memory for the output"));
    printf("%s\n", text);
    free(text);
    return 0;
}

static void format_time(uint64_t wall_ns, char out[32])
{
    time_t seconds = (time_t)(wall_ns / KEEL_NS_PER_S);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) == NULL || strftime(out, 32, "%Y-%m-%d %H:%M:%SZ", &parts) == 0)
        snprintf(out, 32, "?");
}

static void format_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    uint32_t unit = 0;
    uint64_t tenths = bytes * 10;
    for (; tenths >= 10240 && unit < 5 && bytes < UINT64_C(1) << 60; unit++)
        tenths /= 1024;
    if (unit == 0)
        snprintf(out, 32, "%" PRIu64 " B", bytes);
    else
        snprintf(out, 32, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10, units[unit]);
}

static const char *dtype_name(enum keel_ckpt_dtype dtype)
{
    static const char *const names[] = {"?", "f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
    return dtype <= KEEL_CKPT_U8 ? names[dtype] : names[0];
}

/* Steps and attempts as text, as in the manifest: they may have 64 bits. */
static json_t *u64_json(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *info_json(const struct keel_snapshot_info *info)
{
    return json_pack("{s:I, s:o, s:o, s:s, s:I, s:I, s:i}", "step", (json_int_t)info->step, "attempt",
                     u64_json(info->attempt), "created_wall_ns", u64_json(info->created_wall_ns), "identity",
                     info->identity, "raw_bytes", (json_int_t)info->raw_bytes, "stored_bytes",
                     (json_int_t)info->stored_bytes, "shards", (int)info->shard_count);
}

/* ---- finding what PATH means
 * ---------------------------------------------------------------------------------- */

static void strip_slashes(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
}

/* Cut the last component off; "." when there is no other. Returns it. */
static const char *cut(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL)
        return NULL;
    *slash = '\0';
    strip_slashes(path);
    return slash + 1;
}

struct has_step {
    bool found;
};

static enum keel_status see_step(void *context, const char *name)
{
    uint64_t step, attempt;
    if (keel_step_name_parse(name, &step, &attempt))
        ((struct has_step *)context)->found = true;
    return KEEL_OK;
}

static enum keel_status open_at(const char *root, const char *run, struct keel_store **out)
{
    struct keel_store_config config = {.root = root, .run = run, .read_only = true};
    return keel_store_open(&config, out);
}

/* By what lies there: a directory called step-N.A is a snapshot, one that holds such is a run. */
static enum keel_status open_path(struct options *options, struct keel_store **out)
{
    char real[KEEL_PATH_BYTES];
    char *resolved = realpath(options->path, NULL);
    if (resolved == NULL)
        return keel_fail(KEEL_NOT_FOUND, "%s: is not there", options->path);
    bool fits = strlen(resolved) < sizeof real;
    snprintf(real, sizeof real, "%s", resolved);
    free(resolved);
    if (!fits)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", options->path, KEEL_PATH_BYTES);
    char parent[KEEL_PATH_BYTES];
    memcpy(parent, real, sizeof parent);
    const char *name = cut(parent);
    uint64_t step, attempt;
    if (name != NULL && keel_step_name_parse(name, &step, &attempt)) {
        if (options->has_step && options->step != step)
            return keel_fail(KEEL_INVALID, "%s: is not of step %" PRIu64, options->path, options->step);
        options->has_step = true;
        options->step = step;
        options->attempt = attempt;
        const char *run = cut(parent);
        return open_at(parent[0] == '\0' ? "/" : parent, run, out);
    }
    struct has_step search = {0};
    KEEL_TRY(keel_dir_list(real, see_step, &search));
    if (search.found)
        return open_at(parent[0] == '\0' ? "/" : parent, name, out);
    char inside[KEEL_PATH_BYTES]; /* the directory of a `keel run` keeps its store in ckpt/ */
    bool of_run = keel_path_join(inside, real, "ckpt") == KEEL_OK && keel_path_exists(inside);
    return open_at(of_run ? inside : real, NULL, out);
}

static enum keel_status list_all(struct keel_store *store, struct keel_snapshot_info **out,
                                 uint32_t *out_count, uint32_t *out_damaged)
{
    struct keel_snapshot_info *infos = NULL;
    KEEL_TRY(keel_alloc(LIST_MAX, sizeof *infos, &infos));
    enum keel_status status = keel_store_list(store, infos, LIST_MAX, out_count, out_damaged);
    if (status != KEEL_OK) {
        keel_free(infos);
        return status;
    }
    *out = infos;
    return KEEL_OK;
}

static enum keel_status open_chosen(struct keel_store *store, const struct options *options,
                                    struct keel_snapshot **out)
{
    if (options->has_step)
        return keel_snapshot_open(store, options->step, options->attempt, out);
    struct keel_snapshot_info newest;
    uint32_t count, damaged;
    KEEL_TRY(keel_store_list(store, &newest, 1, &count, &damaged));
    if (count == 0 && damaged > 0)
        return keel_fail(KEEL_CORRUPT, "%s: all of its %u manifests are damaged", options->path, damaged);
    if (count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no committed snapshot", options->path);
    return keel_snapshot_open(store, newest.step, newest.attempt, out);
}

/* ---- ls
 * -------------------------------------------------------------------------------------------------------- */

static int list_json(const struct keel_store *store, const struct keel_snapshot_info *infos, uint32_t count,
                     uint32_t damaged)
{
    json_t *snapshots = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(snapshots, info_json(&infos[i]));
    return print_json(
        json_pack("{s:s, s:i, s:o}", "run", store->run, "damaged", (int)damaged, "snapshots", snapshots));
}

static void list_text(const struct keel_store *store, const struct keel_snapshot_info *infos, uint32_t count,
                      uint32_t damaged)
{
    printf("run %s: %u committed snapshots\n", store->run, count);
    if (count > 0)
        printf("%12s  %-20s  %6s  %12s  %12s  %s\n", "step", "attempt", "shards", "raw", "stored", "created");
    for (uint32_t i = 0; i < count; i++) {
        char raw[32], stored[32], created[32];
        format_bytes(infos[i].raw_bytes, raw);
        format_bytes(infos[i].stored_bytes, stored);
        format_time(infos[i].created_wall_ns, created);
        printf("%12" PRIu64 "  %-20" PRIu64 "  %6u  %12s  %12s  %s\n", infos[i].step, infos[i].attempt,
               infos[i].shard_count, raw, stored, created);
    }
    if (damaged > 0)
        printf("%u more cannot be read: their manifests are damaged or belong elsewhere\n", damaged);
}

static int command_ls(struct keel_store *store, const struct options *options)
{
    struct keel_snapshot_info *infos = NULL;
    uint32_t count, damaged;
    enum keel_status status = list_all(store, &infos, &count, &damaged);
    if (status != KEEL_OK)
        return report(status);
    int code = 0;
    if (options->json)
        code = list_json(store, infos, count, damaged);
    else
        list_text(store, infos, count, damaged);
    keel_free(infos);
    return code == 0 && damaged > 0 ? ERROR_CODE_DAMAGED : code;
}

/* ---- show
 * ------------------------------------------------------------------------------------------------------ */

static json_t *tensor_json(const struct keel_region *tensor)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    return json_pack("{s:s, s:s, s:o, s:I}", "name", tensor->name, "dtype", dtype_name(tensor->dtype),
                     "shape", shape, "bytes", (json_int_t)keel_region_bytes(tensor));
}

static int show_json(const struct keel_snapshot *snapshot)
{
    json_t *tensors = json_array(), *root = info_json(keel_snapshot_info(snapshot));
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        struct keel_region tensor;
        if (keel_snapshot_tensor(snapshot, i, &tensor) == KEEL_OK)
            json_array_append_new(tensors, tensor_json(&tensor));
    }
    json_object_set_new(root, "metadata",
                        json_loads(keel_snapshot_metadata(snapshot), JSON_REJECT_DUPLICATES, NULL));
    json_object_set_new(root, "tensors", tensors);
    return print_json(root);
}

static void show_text(const struct keel_snapshot *snapshot)
{
    const struct keel_snapshot_info *info = keel_snapshot_info(snapshot);
    char raw[32], stored[32], created[32];
    format_bytes(info->raw_bytes, raw);
    format_bytes(info->stored_bytes, stored);
    format_time(info->created_wall_ns, created);
    printf("step %" PRIu64 ", attempt %" PRIu64
           ", created %s\n%s in %u shards, %s stored\njob %s\nmetadata %s\n",
           info->step, info->attempt, created, raw, info->shard_count, stored,
           info->identity[0] == '\0' ? "-" : info->identity, keel_snapshot_metadata(snapshot));
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        struct keel_region tensor;
        char bytes[32];
        if (keel_snapshot_tensor(snapshot, i, &tensor) != KEEL_OK)
            continue;
        format_bytes(keel_region_bytes(&tensor), bytes);
        printf("%12s  %-4s  %s [", bytes, dtype_name(tensor.dtype), tensor.name);
        for (uint32_t d = 0; d < tensor.dims; d++)
            printf("%s%" PRIu64, d > 0 ? " x " : "", tensor.shape[d]);
        printf("]\n");
    }
}

static int command_show(struct keel_store *store, const struct options *options)
{
    struct keel_snapshot *snapshot = NULL;
    enum keel_status status = open_chosen(store, options, &snapshot);
    if (status != KEEL_OK)
        return report(status);
    int code = 0;
    if (options->json)
        code = show_json(snapshot);
    else
        show_text(snapshot);
    keel_snapshot_close(snapshot);
    return code;
}

/* ---- verify
 * ---------------------------------------------------------------------------------------------------- */

struct meter {
    uint64_t shown_ns;
    bool terminal;
};

static void show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct meter *meter = context;
    if (!meter->terminal ||
        (keel_now_ns() - meter->shown_ns < 100 * KEEL_NS_PER_MS && done_bytes < total_bytes))
        return;
    char done[32], total[32];
    format_bytes(done_bytes, done);
    format_bytes(total_bytes, total);
    meter->shown_ns = keel_now_ns();
    fprintf(stderr, "\rverify: %s of %s%s", done, total, done_bytes == total_bytes ? "\n" : "        ");
}

static int verify_json(enum keel_status status, const struct keel_snapshot *snapshot, uint32_t damaged)
{
    json_t *root = snapshot == NULL ? json_object() : info_json(keel_snapshot_info(snapshot));
    json_object_set_new(root, "status", json_string(keel_status_name(status)));
    json_object_set_new(root, "damaged_parts", json_integer(damaged));
    json_object_set_new(root, "first", status == KEEL_OK ? json_null() : json_string(keel_detail()));
    return print_json(root);
}

static int command_verify(struct keel_store *store, const struct options *options)
{
    struct keel_snapshot *snapshot = NULL;
    struct meter meter = {.terminal = isatty(STDERR_FILENO) == 1};
    uint32_t damaged = 0;
    enum keel_status status = open_chosen(store, options, &snapshot);
    if (status == KEEL_OK)
        status = keel_snapshot_verify(snapshot, show_progress, &meter, &damaged);
    if (options->json)
        verify_json(status, snapshot, damaged);
    if (status == KEEL_OK && !options->json) {
        char raw[32];
        format_bytes(keel_snapshot_info(snapshot)->raw_bytes, raw);
        printf("step %" PRIu64 ": all chunks are sound (%s in %u shards)\n",
               keel_snapshot_info(snapshot)->step, raw, keel_snapshot_info(snapshot)->shard_count);
    }
    int code = status == KEEL_OK ? 0 : report(status);
    if (damaged > 1)
        fprintf(stderr, "keel ckpt: %u parts are damaged\n", damaged);
    keel_snapshot_close(snapshot);
    return code;
}

/* ---- command line
 * ---------------------------------------------------------------------------------------------- */

static int wrong_use(const char *why, const char *what)
{
    fprintf(stderr, "keel ckpt: %s%s; try keel ckpt --help\n", why, what);
    return keel_status_exit_code(KEEL_INVALID);
}

static bool parse_step(const char *text, uint64_t *out)
{
    char name[KEEL_STEP_NAME_BYTES];
    uint64_t attempt;
    int length = snprintf(name, sizeof name, "step-%s.0", text);
    return length > 0 && (size_t)length < sizeof name && keel_step_name_parse(name, out, &attempt);
}

/* 0, or the exit code. */
static int parse_options(int argc, char **argv, struct options *out)
{
    struct options options = {0};
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
        } else if (strcmp(argv[i], "--step") == 0) {
            if (++i == argc || !parse_step(argv[i], &options.step))
                return wrong_use("--step needs the number of a step", "");
            options.has_step = true;
        } else if (argv[i][0] == '-') {
            return wrong_use("unknown option ", argv[i]);
        } else if (options.path != NULL) {
            return wrong_use("one PATH too many: ", argv[i]);
        } else {
            options.path = argv[i];
        }
    }
    if (options.path == NULL)
        return wrong_use("a PATH is missing", "");
    *out = options;
    return 0;
}

int keel_ckpt_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct keel_store *store, const struct options *options);
    } commands[] = {{"ls", command_ls}, {"show", command_show}, {"verify", command_verify}};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(usage, stdout);
            return 0;
        }
    if (argc < 2)
        return wrong_use("a command is missing", "");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) != 0)
            continue;
        struct options options = {0};
        struct keel_store *store = NULL;
        int code = parse_options(argc, argv, &options);
        if (code != 0)
            return code;
        enum keel_status status = open_path(&options, &store);
        if (status != KEEL_OK)
            return report(status);
        code = commands[i].run(store, &options);
        keel_store_close(store);
        return code;
    }
    return wrong_use("unknown command ", argv[1]);
}
