/* quarantine.c - the files of boards that are not trusted. */
#include <inttypes.h>
#include <jansson.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/quarantine.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 16384, KEY_BYTES = 4, FORMAT = 1 };
static const char ending[] = ".json";

enum keel_status keel_quarantine_folder(char out[KEEL_PATH_BYTES])
{
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"KEEL_STATE", "quarantine"},
        {"XDG_STATE_HOME", "keel/quarantine"},
        {"HOME", ".local/state/keel/quarantine"},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *value = getenv(places[i].variable);
        if (value != NULL && value[0] == '/')
            return keel_path_join(out, value, places[i].below);
    }
    return keel_path_join(out, "/var/lib/keel", "quarantine");
}

static void this_host(char out[KEEL_QUARANTINE_WHERE_BYTES])
{
    if (gethostname(out, KEEL_QUARANTINE_WHERE_BYTES - 1) != 0)
        snprintf(out, KEEL_QUARANTINE_WHERE_BYTES, "localhost");
    out[KEEL_QUARANTINE_WHERE_BYTES - 1] = '\0';
}

static enum keel_status path_of(const struct keel_device_info *info, char out[KEEL_PATH_BYTES])
{
    char host[KEEL_QUARANTINE_WHERE_BYTES], folder[KEEL_PATH_BYTES], name[KEEL_DEVICE_NAME_BYTES + 32];
    const char *const parts[] = {host, info->platform, info->name, info->selector};
    unsigned char hash[crypto_generichash_BYTES_MIN];
    char key[2 * KEY_BYTES + 1];
    crypto_generichash_state state;
    this_host(host);
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        crypto_generichash_update(&state, (const unsigned char *)parts[i], strlen(parts[i]) + 1);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(key, sizeof key, hash, KEY_BYTES);
    snprintf(name, sizeof name, "%s-%s%s", info->selector, key, ending);
    for (char *at = name; *at != '\0'; at++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at) == NULL)
            *at = '_';
    KEEL_TRY(keel_quarantine_folder(folder));
    return keel_path_join(out, folder, name);
}

/* ---- one file -------------------------------------------------------------------------------------------
 */

struct field {
    const char *key;
    size_t offset, bytes;
};
#define FIELD(field)                                                                                         \
#field, offsetof(struct keel_quarantine, field), sizeof(((struct keel_quarantine *)0)->field)
static const struct field fields[] = {
    {FIELD(selector)}, {FIELD(name)},  {FIELD(platform)}, {FIELD(version)},
    {FIELD(host)},     {FIELD(where)}, {FIELD(evidence)}, {FIELD(since)},
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static enum keel_status read_record(const char *path, struct keel_quarantine *out)
{
    char *text;
    size_t bytes;
    struct keel_quarantine record = {0};
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    keel_free(text);
    bool good = json_integer_value(json_object_get(root, "format")) == FORMAT;
    for (uint32_t i = 0; i < FIELD_COUNT && good; i++) {
        const char *value = json_string_value(json_object_get(root, fields[i].key));
        good = value != NULL && strlen(value) < fields[i].bytes;
        if (good)
            memcpy((char *)&record + fields[i].offset, value, strlen(value) + 1);
    }
    json_decref(root);
    if (!good)
        return keel_fail(KEEL_CORRUPT,
                         "%s: is no record of a quarantined board; see which board it was for, check that "
                         "board, then remove the file",
                         path);
    snprintf(record.path, sizeof record.path, "%s", path);
    *out = record;
    return KEEL_OK;
}

/* Text of drivers is taken for what it is worth: bytes that are not ASCII become '?'. */
static void copy_text(char *out, size_t bytes, const char *text)
{
    snprintf(out, bytes, "%s", text);
    for (; *out != '\0'; out++)
        if ((unsigned char)*out < 0x20 || (unsigned char)*out > 0x7e)
            *out = '?';
}

static enum keel_status write_record(const struct keel_quarantine *record)
{
    char folder[KEEL_PATH_BYTES];
    json_t *root = json_pack("{s:i}", "format", FORMAT);
    bool good = root != NULL;
    for (uint32_t i = 0; i < FIELD_COUNT && good; i++)
        good = json_object_set_new(root, fields[i].key,
                                   json_string((const char *)record + fields[i].offset)) == 0;
    char *text = good ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (text == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory to write it", record->path);
    enum keel_status status = keel_quarantine_folder(folder);
    if (status == KEEL_OK)
        status = keel_mkdir_all(folder);
    if (status == KEEL_OK)
        status = keel_file_replace(record->path, text, strlen(text), 0644);
    free(text);
    return status;
}

/* ---- the doors -------------------------------------------------------------------------------------------
 */

enum keel_status keel_quarantine_find(const struct keel_device_info *info, struct keel_quarantine *out,
                                      bool *out_found)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(path_of(info, path));
    enum keel_status status = read_record(path, out);
    if (status != KEEL_OK && status != KEEL_NOT_FOUND)
        return status;
    *out_found = status == KEEL_OK;
    return KEEL_OK;
}

enum keel_status keel_quarantine_add(const struct keel_device_info *info, const char *where,
                                     const char *evidence, struct keel_quarantine *out)
{
    struct keel_quarantine record = {0};
    bool found;
    KEEL_TRY(keel_quarantine_find(info, &record, &found));
    if (!found) {
        time_t now_s = (time_t)(keel_wall_ns() / KEEL_NS_PER_S);
        struct tm utc;
        memset(&record, 0, sizeof record);
        copy_text(record.selector, sizeof record.selector, info->selector);
        copy_text(record.name, sizeof record.name, info->name);
        copy_text(record.platform, sizeof record.platform, info->platform);
        copy_text(record.version, sizeof record.version, info->version);
        this_host(record.host);
        copy_text(record.where, sizeof record.where, where);
        copy_text(record.evidence, sizeof record.evidence, evidence);
        if (gmtime_r(&now_s, &utc) != NULL)
            (void)strftime(record.since, sizeof record.since, "%Y-%m-%dT%H:%M:%SZ", &utc);
        KEEL_TRY(path_of(info, record.path));
        KEEL_TRY(write_record(&record));
    }
    if (out != NULL)
        *out = record;
    return KEEL_OK;
}

enum keel_status keel_quarantine_admit(const struct keel_device_info *info)
{
    struct keel_quarantine record;
    bool found;
    KEEL_TRY(keel_quarantine_find(info, &record, &found));
    if (!found)
        return KEEL_OK;
    return keel_fail(KEEL_DENIED,
                     "%s is quarantined since %s (%s): %.200s. Check it with `keel board check %s`, then "
                     "`keel board release %s`, or take another board",
                     info->selector, record.since, record.where, record.evidence, info->selector,
                     info->selector);
}

struct listing {
    const char *folder;
    struct keel_quarantine *out;
    uint32_t capacity, count;
};

static enum keel_status list_file(void *context, const char *name)
{
    struct listing *listing = context;
    char path[KEEL_PATH_BYTES];
    size_t length = strlen(name), tail = sizeof ending - 1;
    if (length <= tail || strcmp(name + length - tail, ending) != 0)
        return KEEL_OK;
    if (listing->count == listing->capacity)
        return keel_fail(KEEL_LIMIT, "%s: more than %u boards are quarantined", listing->folder,
                         listing->capacity);
    KEEL_TRY(keel_path_join(path, listing->folder, name));
    KEEL_TRY(read_record(path, &listing->out[listing->count]));
    listing->count++;
    return KEEL_OK;
}

enum keel_status keel_quarantine_list(struct keel_quarantine *out, uint32_t capacity, uint32_t *out_count)
{
    char folder[KEEL_PATH_BYTES];
    struct listing listing = {.folder = folder, .out = out, .capacity = capacity};
    KEEL_TRY(keel_quarantine_folder(folder));
    if (keel_path_exists(folder))
        KEEL_TRY(keel_dir_list(folder, list_file, &listing));
    *out_count = listing.count;
    return KEEL_OK;
}

static enum keel_status end_quarantine(const struct keel_quarantine *record)
{
    char released[KEEL_PATH_BYTES];
    int length = snprintf(released, sizeof released, "%s.released", record->path);
    if (length < 0 || (size_t)length >= sizeof released)
        return keel_fail(KEEL_LIMIT, "%s: the path is too long", record->path);
    if (rename(record->path, released) != 0)
        return keel_fail(KEEL_DENIED, "%s: cannot be renamed; it belongs to somebody else", record->path);
    return KEEL_OK;
}

enum keel_status keel_quarantine_release(const char *selector)
{
    struct keel_quarantine *records;
    uint32_t count = 0;
    char host[KEEL_QUARANTINE_WHERE_BYTES], names[256] = "";
    size_t used = 0;
    this_host(host);
    KEEL_TRY(keel_alloc(KEEL_QUARANTINE_MAX, sizeof *records, &records));
    enum keel_status status = keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count);
    bool found = false;
    for (uint32_t i = 0; i < count && status == KEEL_OK; i++) {
        if (strcmp(records[i].host, host) != 0)
            continue;
        if (strcmp(records[i].selector, selector) == 0) {
            found = true;
            status = end_quarantine(&records[i]);
        } else if (used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %s", records[i].selector);
        }
    }
    keel_free(records);
    if (status == KEEL_OK && !found)
        status = keel_fail(KEEL_NOT_FOUND, "%s is not quarantined here; these are:%s", selector,
                           names[0] != '\0' ? names : " none");
    return status;
}
