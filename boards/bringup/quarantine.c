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

/* Text of drivers is taken for what it is worth: bytes that are not ASCII become '?'. */
static void copy_text(char *out, size_t bytes, const char *text)
{
    snprintf(out, bytes, "%s", text);
    for (; *out != '\0'; out++)
        if ((unsigned char)*out < 0x20 || (unsigned char)*out > 0x7e)
            *out = '?';
}

/* What is known of a board before anything of it is read. */
struct subject {
    char host[KEEL_QUARANTINE_WHERE_BYTES];
    char platform[KEEL_DEVICE_NAME_BYTES], name[KEEL_DEVICE_NAME_BYTES], identity[KEEL_DEVICE_NAME_BYTES];
    char alike[2 * KEY_BYTES + 1]; /* of host, platform and name */
    char own[2 * KEY_BYTES + 1];   /* of these and the identity */
};

static void make_key(const char *const *parts, size_t count, char out[2 * KEY_BYTES + 1])
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    crypto_generichash_state state;
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    for (size_t i = 0; i < count; i++)
        crypto_generichash_update(&state, (const unsigned char *)parts[i], strlen(parts[i]) + 1);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, 2 * KEY_BYTES + 1, hash, KEY_BYTES);
}

static struct subject subject_of(const struct keel_device_info *info)
{
    struct subject subject = {0};
    this_host(subject.host);
    copy_text(subject.platform, sizeof subject.platform, info->platform);
    copy_text(subject.name, sizeof subject.name, info->name);
    copy_text(subject.identity, sizeof subject.identity, info->identity);
    const char *const parts[] = {subject.host, subject.platform, subject.name, subject.identity};
    make_key(parts, 3, subject.alike);
    make_key(parts, 4, subject.own);
    return subject;
}

static enum keel_status path_of(const struct subject *subject, const char *selector, const char *folder,
                                char out[KEEL_PATH_BYTES])
{
    char name[KEEL_DEVICE_NAME_BYTES + 32];
    snprintf(name, sizeof name, "%s-%s-%s%s", selector, subject->alike, subject->own, ending);
    for (char *at = name; *at != '\0'; at++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at) == NULL)
            *at = '_';
    return keel_path_join(out, folder, name);
}

static bool is_record(const char *name)
{
    size_t length = strlen(name), tail = sizeof ending - 1;
    return length > tail && strcmp(name + length - tail, ending) == 0;
}

/* By its name alone, the file of a board that is not even alike. Files of older versions have one key, do not
 * say, and are read. */
static bool is_of_others(const char *name, const struct subject *subject)
{
    enum { HEX = 2 * KEY_BYTES, KEYS = HEX + 1 + HEX + (int)sizeof ending - 1 };
    size_t length = strlen(name);
    if (length <= KEYS)
        return false;
    const char *keys = name + length - KEYS;
    return strspn(keys, "0123456789abcdef") == HEX && keys[HEX] == '-' &&
           strspn(keys + HEX + 1, "0123456789abcdef") == HEX && memcmp(keys, subject->alike, HEX) != 0;
}

/* ---- one file ------------------------------------------------------------------------------------------ */

struct field {
    const char *key;
    size_t offset, bytes;
};
#define FIELD(field)                                                                                         \
#field, offsetof(struct keel_quarantine, field), sizeof(((struct keel_quarantine *)0)->field)
static const struct field fields[] = {
    {FIELD(selector)}, {FIELD(name)},     {FIELD(platform)}, {FIELD(version)},  {FIELD(host)},
    {FIELD(where)},    {FIELD(evidence)}, {FIELD(since)},    {FIELD(identity)}, /* last: files of older
                                                                                   versions have none */
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
        if (value == NULL && i + 1 == FIELD_COUNT)
            value = "";
        good = value != NULL && strlen(value) < fields[i].bytes;
        if (good)
            memcpy((char *)&record + fields[i].offset, value, strlen(value) + 1);
    }
    const char *kind = json_string_value(json_object_get(root, "kind")); /* older versions knew one kind */
    json_int_t findings = json_integer_value(json_object_get(root, "findings"));
    json_int_t last_s = json_integer_value(json_object_get(root, "last_s"));
    json_int_t passed_s = json_integer_value(json_object_get(root, "passed_s"));
    record.kind =
        kind != NULL && strcmp(kind, "memory") == 0 ? KEEL_QUARANTINE_MEMORY : KEEL_QUARANTINE_WRONG_BITS;
    record.findings = findings > 0 && findings < UINT32_MAX ? (uint32_t)findings : 1;
    record.last_s = last_s > 0 ? (uint64_t)last_s : 0;
    record.passed_s = passed_s > 0 ? (uint64_t)passed_s : 0;
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

static enum keel_status write_record(const struct keel_quarantine *record, const char *folder)
{
    json_t *root = json_pack("{s:i, s:s, s:I, s:I, s:I}", "format", FORMAT, "kind",
                             record->kind == KEEL_QUARANTINE_MEMORY ? "memory" : "wrong bits", "findings",
                             (json_int_t)record->findings, "last_s", (json_int_t)record->last_s, "passed_s",
                             (json_int_t)record->passed_s);
    bool good = root != NULL;
    for (uint32_t i = 0; i < FIELD_COUNT && good; i++)
        good = json_object_set_new(root, fields[i].key,
                                   json_string((const char *)record + fields[i].offset)) == 0;
    char *text = good ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (text == NULL)
        return keel_fail(KEEL_NO_MEMORY, "%s: no memory to write it", record->path);
    enum keel_status status = keel_mkdir_all(folder);
    if (status == KEEL_OK)
        status = keel_file_replace(record->path, text, strlen(text), 0644);
    free(text);
    return status;
}

/* ---- public functions ---- */

struct finding {
    const struct subject *subject;
    const char *folder;
    struct keel_quarantine *out;
    bool found;
};

/* Where one of two identities is not known, whoever is alike may be the board. */
static bool may_be(const struct keel_quarantine *record, const struct subject *subject)
{
    return strcmp(record->host, subject->host) == 0 && strcmp(record->platform, subject->platform) == 0 &&
           strcmp(record->name, subject->name) == 0 &&
           (record->identity[0] == '\0' || subject->identity[0] == '\0' ||
            strcmp(record->identity, subject->identity) == 0);
}

static enum keel_status find_in_file(void *context, const char *name)
{
    struct finding *finding = context;
    struct keel_quarantine record;
    char path[KEEL_PATH_BYTES];
    if (!is_record(name) || is_of_others(name, finding->subject))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, finding->folder, name));
    enum keel_status status = read_record(path, &record);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? KEEL_OK : status; /* released meanwhile */
    if (!may_be(&record, finding->subject))
        return KEEL_OK;
    /* Of several, one that keeps the board out; then the board's own. */
    bool graver = finding->found && finding->out->kind > record.kind;
    bool lighter = finding->found && finding->out->kind < record.kind;
    if (!finding->found || graver || (!lighter && strcmp(record.identity, finding->subject->identity) == 0))
        *finding->out = record;
    finding->found = true;
    return KEEL_OK;
}

enum keel_status keel_quarantine_find(const struct keel_device_info *info, struct keel_quarantine *out,
                                      bool *out_found)
{
    const struct subject subject = subject_of(info);
    char folder[KEEL_PATH_BYTES];
    struct finding finding = {.subject = &subject, .folder = folder, .out = out};
    KEEL_TRY(keel_quarantine_folder(folder));
    if (keel_path_exists(folder))
        KEEL_TRY(keel_dir_list(folder, find_in_file, &finding));
    *out_found = finding.found;
    return KEEL_OK;
}

static enum keel_status begin_quarantine(const struct keel_device_info *info,
                                         const struct keel_quarantine_finding *finding, const char *folder,
                                         struct keel_quarantine *record)
{
    const struct subject subject = subject_of(info);
    const uint64_t now_ns = keel_wall_ns();
    memset(record, 0, sizeof *record);
    copy_text(record->selector, sizeof record->selector, info->selector);
    snprintf(record->name, sizeof record->name, "%s", subject.name);
    snprintf(record->platform, sizeof record->platform, "%s", subject.platform);
    snprintf(record->identity, sizeof record->identity, "%s", subject.identity);
    copy_text(record->version, sizeof record->version, info->version);
    snprintf(record->host, sizeof record->host, "%s", subject.host);
    copy_text(record->where, sizeof record->where, finding->where);
    copy_text(record->evidence, sizeof record->evidence, finding->evidence);
    record->kind = finding->kind;
    record->findings = 1;
    record->last_s = now_ns / KEEL_NS_PER_S;
    keel_wall_text(now_ns, record->since);
    KEEL_TRY(path_of(&subject, record->selector, folder, record->path));
    return write_record(record, folder);
}

/* The board was found out before, by its memory alone: once more, or graver. */
static enum keel_status continue_quarantine(const struct keel_quarantine_finding *finding, const char *folder,
                                            struct keel_quarantine *record)
{
    const uint64_t now_s = keel_wall_ns() / KEEL_NS_PER_S,
                   window_s = UINT64_C(86400) * KEEL_QUARANTINE_MEMORY_DAYS;
    bool late = now_s > record->last_s && now_s - record->last_s > window_s;
    if (finding->kind == KEEL_QUARANTINE_MEMORY) {
        record->findings = late ? 1 : record->findings + 1;
    } else {
        record->kind = finding->kind;
        record->findings = 1;
        copy_text(record->where, sizeof record->where, finding->where);
        copy_text(record->evidence, sizeof record->evidence, finding->evidence);
    }
    record->last_s = now_s;
    record->passed_s = 0; /* also where it passed within this second */
    return write_record(record, folder);
}

/* Two workers of one board may report at once; what each reads, and then writes, is one act. */
static enum keel_status lock_folder(const char *folder, int *out_lock)
{
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_mkdir_all(folder));
    KEEL_TRY(keel_path_join(path, folder, ".lock"));
    return keel_file_lock(path, false, keel_now_ns() + 10 * KEEL_NS_PER_S, out_lock);
}

static enum keel_status add_locked(const struct keel_device_info *info,
                                   const struct keel_quarantine_finding *finding, const char *folder,
                                   struct keel_quarantine *record)
{
    bool found = false;
    if (finding->directory == NULL)
        KEEL_TRY(keel_quarantine_find(info, record, &found));
    if (!found)
        return begin_quarantine(info, finding, folder, record);
    return record->kind == KEEL_QUARANTINE_MEMORY ? continue_quarantine(finding, folder, record) : KEEL_OK;
}

enum keel_status keel_quarantine_add(const struct keel_device_info *info,
                                     const struct keel_quarantine_finding *finding,
                                     struct keel_quarantine *out)
{
    struct keel_quarantine record = {0};
    char folder[KEEL_PATH_BYTES];
    int lock;
    KEEL_TRY(finding->directory != NULL ? keel_path_join(folder, finding->directory, "quarantine")
                                        : keel_quarantine_folder(folder));
    KEEL_TRY(lock_folder(folder, &lock));
    enum keel_status status = add_locked(info, finding, folder, &record);
    keel_file_unlock(lock);
    if (out != NULL)
        *out = record;
    return status;
}

static bool is_light(const struct keel_quarantine *record)
{
    return record->kind == KEEL_QUARANTINE_MEMORY && record->findings < KEEL_QUARANTINE_MEMORY_FINDINGS;
}

static enum keel_status pass_locked(const struct keel_device_info *info, const char *folder)
{
    struct keel_quarantine record;
    bool found;
    KEEL_TRY(keel_quarantine_find(info, &record, &found));
    if (!found || !is_light(&record))
        return KEEL_OK;
    record.passed_s = keel_wall_ns() / KEEL_NS_PER_S;
    return write_record(&record, folder);
}

enum keel_status keel_quarantine_passed(const struct keel_device_info *info)
{
    char folder[KEEL_PATH_BYTES];
    int lock;
    KEEL_TRY(keel_quarantine_folder(folder));
    KEEL_TRY(lock_folder(folder, &lock));
    enum keel_status status = pass_locked(info, folder);
    keel_file_unlock(lock);
    return status;
}

enum keel_status keel_quarantine_admit(const struct keel_device_info *info, bool *out_probation)
{
    struct keel_quarantine record;
    char who[2 * KEEL_DEVICE_NAME_BYTES + 16], alike[160] = "";
    bool found;
    KEEL_TRY(keel_quarantine_find(info, &record, &found));
    if (!found || is_light(&record)) {
        *out_probation = found && record.passed_s == 0;
        return KEEL_OK;
    }
    if (strcmp(record.selector, info->selector) == 0)
        snprintf(who, sizeof who, "%s", info->selector);
    else
        snprintf(who, sizeof who, "%s, then %s,", info->selector, record.selector);
    if (record.identity[0] == '\0' || info->identity[0] == '\0')
        snprintf(alike, sizeof alike,
                 " Its driver tells no identity, so all boards of this host that are alike are out.");
    return keel_fail(KEEL_DENIED,
                     "%s is quarantined since %s (%s): %.200s.%s Check it with `keel board check %s`, then "
                     "`keel board release %s`, or take another board",
                     who, record.since, record.where, record.evidence, alike, info->selector,
                     record.selector);
}

struct listing {
    const char *folder;
    struct keel_quarantine *out;
    uint32_t capacity, count;
    enum keel_status damaged; /* of a file that is no record; the others are listed all the same */
};

static enum keel_status list_file(void *context, const char *name)
{
    struct listing *listing = context;
    char path[KEEL_PATH_BYTES];
    if (!is_record(name))
        return KEEL_OK;
    if (listing->count == listing->capacity)
        return keel_fail(KEEL_LIMIT, "%s: more than %u boards are quarantined", listing->folder,
                         listing->capacity);
    KEEL_TRY(keel_path_join(path, listing->folder, name));
    enum keel_status status = read_record(path, &listing->out[listing->count]);
    if (status == KEEL_OK)
        listing->count++;
    else
        listing->damaged = status;
    return KEEL_OK;
}

enum keel_status keel_quarantine_list(struct keel_quarantine *out, uint32_t capacity, uint32_t *out_count)
{
    char folder[KEEL_PATH_BYTES];
    struct listing listing = {.folder = folder, .out = out, .capacity = capacity};
    KEEL_TRY(keel_quarantine_folder(folder));
    enum keel_status status = KEEL_OK;
    if (keel_path_exists(folder))
        status = keel_dir_list(folder, list_file, &listing);
    *out_count = listing.count;
    return status == KEEL_OK ? listing.damaged : status;
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

/* Its selector when it was found out, or the name of its file. */
static bool is_called(const struct keel_quarantine *record, const char *word)
{
    return strcmp(record->selector, word) == 0 || strcmp(strrchr(record->path, '/') + 1, word) == 0;
}

/* The one of this host that is called so. */
static enum keel_status pick(const struct keel_quarantine *records, uint32_t count, const char *word,
                             const struct keel_quarantine **out)
{
    char host[KEEL_QUARANTINE_WHERE_BYTES], names[256] = "", files[400] = "";
    size_t used = 0, files_used = 0;
    uint32_t found = 0;
    this_host(host);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(records[i].host, host) != 0)
            continue;
        if (is_called(&records[i], word)) {
            *out = &records[i];
            found++;
            if (files_used < sizeof files)
                files_used += (size_t)snprintf(files + files_used, sizeof files - files_used, " %s",
                                               strrchr(records[i].path, '/') + 1);
        } else if (used < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, " %s", records[i].selector);
        }
    }
    if (found > 1)
        return keel_fail(KEEL_INVALID, "%u boards were %s when they were quarantined; say which file:%s",
                         found, word, files);
    if (found == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s is not quarantined here; these are:%s", word,
                         names[0] != '\0' ? names : " none");
    return KEEL_OK;
}

enum keel_status keel_quarantine_release(const char *selector)
{
    struct keel_quarantine *records;
    const struct keel_quarantine *record = NULL;
    char folder[KEEL_PATH_BYTES];
    uint32_t count = 0;
    int lock;
    KEEL_TRY(keel_quarantine_folder(folder));
    KEEL_TRY(lock_folder(folder, &lock));
    enum keel_status listed = KEEL_OK, status = keel_alloc(KEEL_QUARANTINE_MAX, sizeof *records, &records);
    if (status == KEEL_OK) {
        listed = keel_quarantine_list(records, KEEL_QUARANTINE_MAX, &count);
        status = count > 0 || listed == KEEL_OK ? pick(records, count, selector, &record) : listed;
        if (status == KEEL_OK)
            status = end_quarantine(record);
        keel_free(records);
    }
    keel_file_unlock(lock);
    return status;
}
