/* plugin.c - see plugin.h. What a plug-in says of itself is checked here, and trusted afterwards: it is code.
 */
#include "plugin.h"
#include <dlfcn.h>
#include <keel/memory.h>
#include <pthread.h>
#include <sodium.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 28 };
#define ENTRY "keel_model_plugin"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct keel_job_plugin *plugins; /* guarded by lock; never freed: jobs point into them */

static bool is_onnx(const char *path)
{
    const size_t length = strlen(path);
    return length > 5 && strcmp(path + length - 5, ".onnx") == 0;
}

bool keel_plugin_is_path(const char *kind)
{
    const size_t length = strlen(kind);
    return strchr(kind, '/') != NULL || (length > 3 && strcmp(kind + length - 3, ".so") == 0) ||
           is_onnx(kind);
}

static size_t bytes_of(const struct keel_ini_key *key)
{
    switch (key->type) {
    case KEEL_INI_U32:
    case KEEL_INI_CHOICE:
        return sizeof(uint32_t);
    case KEEL_INI_U64:
        return sizeof(uint64_t);
    case KEEL_INI_FLOAT:
        return sizeof(float);
    case KEEL_INI_DOUBLE:
        return sizeof(double);
    case KEEL_INI_BOOL:
        return sizeof(bool);
    case KEEL_INI_TEXT:
        return key->bytes > 1 ? key->bytes : 2;
    default:
        return 0;
    }
}

/* The key is one that the table of jobs can have, and its default is a value of it. */
static enum keel_status check_key(const char *path, const struct keel_ini_key *key, uint32_t index,
                                  uint32_t settings_bytes)
{
    char settings[KEEL_PLUGIN_SETTINGS_BYTES], override[256];
    const struct keel_ini_table table = {.keys = key, .key_count = 1, .what = "job"};
    const char *name = key->name != NULL ? key->name : "";
    const char *wrong = NULL;
    if (key->section == NULL || strcmp(key->section, "model") != 0)
        wrong = "is of another section than model";
    else if (name[0] == '\0' || strlen(name) >= 64 ||
             name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_")] != '\0')
        wrong = "has a name of other signs than a-z, 0-9 and _";
    else if (key->initial == NULL || key->help == NULL ||
             (key->type == KEEL_INI_CHOICE && key->choices == NULL))
        wrong = "lacks a default, its help or its choices";
    else if (bytes_of(key) != key->bytes || key->offset > settings_bytes ||
             key->bytes > settings_bytes - key->offset)
        wrong = "is not of its type's size, or lies beyond settings_bytes";
    else if (key->mark != 0)
        wrong = "has a mark";
    if (wrong != NULL)
        return keel_fail(KEEL_INVALID, "%s: its key %u (from 0), \"%.64s\", %s; mend the plug-in", path,
                         index, name, wrong);
    snprintf(override, sizeof override, "model.%s=%s", name, key->initial);
    if (keel_ini_override(&table, override, settings) != KEEL_OK)
        return keel_fail(KEEL_INVALID,
                         "%s: the default of its key %s is no value of it (%.200s); mend the plug-in", path,
                         name, keel_detail());
    return KEEL_OK;
}

static enum keel_status check_entry(const char *path, const struct keel_model_plugin *entry)
{
    if (entry->version != KEEL_MODEL_PLUGIN_VERSION)
        return keel_fail(
            KEEL_VERSION,
            "%s: is a plug-in of version %u, this Keel takes version %d; build it again with this "
            "Keel's headers",
            path, entry->version, KEEL_MODEL_PLUGIN_VERSION);
    const struct keel_plugin_reader *reader = entry->reader;
    if ((entry->data == KEEL_PLUGIN_OWN) != (reader != NULL) ||
        (reader != NULL && (reader->open == NULL || reader->fill == NULL || reader->close == NULL)))
        return keel_fail(
            KEEL_INVALID,
            "%s: has a reader without KEEL_PLUGIN_OWN, or that without a reader of open, fill and "
            "close; mend the plug-in",
            path);
    if (entry->build == NULL || entry->data >= KEEL_PLUGIN_DATA_COUNT ||
        entry->key_count > KEEL_PLUGIN_KEYS_MAX || (entry->keys == NULL && entry->key_count > 0) ||
        entry->settings_bytes > KEEL_PLUGIN_SETTINGS_BYTES)
        return keel_fail(KEEL_INVALID,
                         "%s: its " ENTRY
                         " has no build, unknown data, more than %d keys or more than %d bytes of "
                         "settings; mend the plug-in",
                         path, KEEL_PLUGIN_KEYS_MAX, KEEL_PLUGIN_SETTINGS_BYTES);
    for (uint32_t k = 0; k < entry->key_count; k++) {
        KEEL_TRY(check_key(path, &entry->keys[k], k, entry->settings_bytes));
        for (uint32_t before = 0; before < k; before++)
            if (strcmp(entry->keys[before].name, entry->keys[k].name) == 0)
                return keel_fail(KEEL_INVALID, "%s: has two keys \"%s\"; mend the plug-in", path,
                                 entry->keys[k].name);
    }
    return KEEL_OK;
}

static enum keel_status digest_file(const char *path, char out[KEEL_PLUGIN_DIGEST_BYTES])
{
    unsigned char hash[(KEEL_PLUGIN_DIGEST_BYTES - 1) / 2];
    char *bytes;
    size_t count;
    if (keel_path_exists(path) && !keel_path_is_file(path))
        return keel_fail(KEEL_INVALID, "model.kind = %s: no regular file; name a shared object", path);
    enum keel_status status = keel_file_read(path, FILE_BYTES_MAX, &bytes, &count);
    if (status == KEEL_NOT_FOUND)
        return keel_fail(status,
                         "model.kind = %s: no such file; name a plug-in (keel/model_plugin.h), or a model "
                         "that comes with Keel",
                         path);
    KEEL_TRY(status);
    crypto_generichash(hash, sizeof hash, (const unsigned char *)bytes, count, NULL, 0);
    keel_free(bytes);
    sodium_bin2hex(out, KEEL_PLUGIN_DIGEST_BYTES, hash, sizeof hash);
    return KEEL_OK;
}

static enum keel_status load_onnx(struct keel_job_plugin *plugin)
{
    enum keel_plugin_data data;
    _Static_assert((int)KEEL_ONNX_DIGEST_BYTES == (int)KEEL_PLUGIN_DIGEST_BYTES, "digests of models");
    KEEL_TRY(keel_onnx_file_open(plugin->path, &plugin->onnx));
    const enum keel_status status = keel_onnx_check(keel_onnx_file_graph(plugin->onnx), &data);
    KEEL_TRY(status);
    keel_onnx_file_digest(plugin->onnx, plugin->digest);
    plugin->own = (struct keel_model_plugin){.version = KEEL_MODEL_PLUGIN_VERSION, .data = data};
    plugin->entry = &plugin->own;
    return KEEL_OK;
}

/* `path`: as the job names it. */
static enum keel_status load(const char *path, struct keel_job_plugin *plugin)
{
    if (is_onnx(path))
        return load_onnx(plugin);
    KEEL_TRY(digest_file(plugin->path, plugin->digest));
    void *library = dlopen(plugin->path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return keel_fail(KEEL_INVALID, "model.kind = %s: cannot be loaded: %s; build it as the template does",
                         path, dlerror());
    plugin->entry = dlsym(library, ENTRY);
    if (plugin->entry == NULL)
        return keel_fail(KEEL_INVALID,
                         "model.kind = %s: has no " ENTRY "; define it as keel/model_plugin.h says", path);
    return check_entry(path, plugin->entry);
}

enum keel_status keel_plugin_load(const char *path, enum keel_status (*fill)(struct keel_job_plugin *plugin),
                                  const struct keel_job_plugin **out)
{
    enum keel_status status = KEEL_OK;
    char file[KEEL_PATH_BYTES]; /* dlopen looks for a name without a slash elsewhere */
    KEEL_TRY(keel_path_join(file, strchr(path, '/') == NULL ? "." : "", path));
    pthread_mutex_lock(&lock);
    struct keel_job_plugin *plugin = plugins;
    while (plugin != NULL && strcmp(plugin->path, file) != 0)
        plugin = plugin->next;
    if (plugin == NULL) {
        status = keel_alloc(1, sizeof *plugin, &plugin);
        if (status == KEEL_OK) {
            memcpy(plugin->path, file, strlen(file) + 1);
            status = load(path, plugin);
        }
        if (status == KEEL_OK)
            status = fill(plugin);
        if (status == KEEL_OK) {
            plugin->next = plugins;
            plugins = plugin;
        } else {
            if (plugin != NULL)
                keel_onnx_file_close(plugin->onnx);
            keel_free(plugin);
        }
    }
    pthread_mutex_unlock(&lock);
    if (status == KEEL_OK)
        *out = plugin;
    return status;
}
