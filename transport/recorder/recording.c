/* recording.c - finding, checking and copying recordings.
 *
 * A copy takes two readings: an operation whose turn is even and the same in both did not change while the
 * first was made. What never comes to rest (its owner was stopped in the middle of a change) is taken as it
 * is. */
#include "recording.h"
#include "recorder_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READINGS_MAX = 4 };

/* ---- one file ---- */

static enum keel_status check_format(const struct keel_record_header *header, const char *path)
{
    static const struct keel_record_header wanted = {.header_bytes = sizeof *header,
                                                     .group_bytes = sizeof(struct keel_record_group),
                                                     .group_count = KEEL_RECORD_GROUPS,
                                                     .operation_bytes = sizeof(struct keel_record_operation),
                                                     .operation_count = KEEL_RECORD_OPERATIONS,
                                                     .event_bytes = sizeof(struct keel_record_event),
                                                     .event_count = KEEL_RECORD_EVENTS};
    size_t first = offsetof(struct keel_record_header, header_bytes);
    size_t behind = offsetof(struct keel_record_header, pid);
    if (header->magic != KEEL_RECORD_MAGIC)
        return keel_fail(KEEL_CORRUPT, "%s: not a flight recording", path);
    if (header->version != KEEL_RECORD_VERSION)
        return keel_fail(KEEL_VERSION, "%s: of version %" PRIu32 "; this program reads version %d", path,
                         header->version, KEEL_RECORD_VERSION);
    if (memcmp((const uint8_t *)header + first, (const uint8_t *)&wanted + first, behind - first) != 0)
        return keel_fail(KEEL_CORRUPT, "%s: its parts have other sizes than version %d has", path,
                         KEEL_RECORD_VERSION);
    return KEEL_OK;
}

static enum keel_status copy_file(const char *path, struct keel_record *out)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be read", path);
    struct stat info;
    bool is_folder = keel_disk_fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
    enum keel_status status =
        is_folder ? keel_fail(KEEL_INVALID, "%s: is a directory, a recording was expected", path)
                  : keel_pread_all(fd, out, sizeof *out, 0, path);
    keel_disk_close(fd);
    return status;
}

/* Of `now` what is at rest, or comes to rest in a further reading. */
static enum keel_status settle(const char *path, struct keel_record *now, struct keel_record *next)
{
    bool restless = true;
    for (int reading = 1; reading < READINGS_MAX && restless; reading++) {
        restless = false;
        KEEL_TRY(copy_file(path, next));
        for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++) {
            struct keel_record_operation *operation = &now->operations[k];
            if (operation->turn == next->operations[k].turn && operation->turn % 2 == 0)
                continue;
            memcpy(operation, &next->operations[k], sizeof *operation);
            restless = true;
        }
        now->header.event_total = next->header.event_total;
    }
    return KEEL_OK;
}

/* Whatever indexes or counts something is in range from here on. */
static void bound(struct keel_recording *recording, uint64_t first_total)
{
    struct keel_record *record = &recording->record;
    record->header.host[KEEL_RECORD_HOST_BYTES - 1] = '\0';
    uint64_t total =
        record->header.event_total; /* of the last reading: what it may have overwritten is out */
    recording->event_first = total >= KEEL_RECORD_EVENTS ? total - KEEL_RECORD_EVENTS + 1 : 0;
    if (first_total < total)
        total = first_total;
    record->header.event_total = total < recording->event_first ? recording->event_first : total;
    for (uint32_t k = 0; k < KEEL_RECORD_GROUPS; k++) {
        struct keel_record_group *group = &record->groups[k];
        if (group->rank >= group->rank_count || group->rank_count > KEEL_RECORD_NONE)
            group->state = KEEL_RECORD_FREE;
    }
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++) {
        struct keel_record_operation *operation = &record->operations[k];
        if (operation->group >= KEEL_RECORD_GROUPS || operation->state > KEEL_RECORD_OVER ||
            operation->kind >= KEEL_COLLECTIVE_COUNT || operation->element >= KEEL_ELEMENT_ALL ||
            operation->algorithm >= KEEL_ALGORITHM_COUNT || operation->want >= KEEL_RECORD_WANT_COUNT)
            memset(operation, 0, sizeof *operation);
    }
}

static enum keel_recording_life life_of(const struct keel_record_header *header)
{
    char host[KEEL_RECORD_HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0 || strcmp(host, header->host) != 0)
        return KEEL_LIFE_UNKNOWN;
    struct keel_process_look look = keel_process_look_at((pid_t)header->pid);
    if (look.life == KEEL_PROCESS_DEAD || look.start_ticks != header->start_ticks)
        return KEEL_LIFE_DEAD;
    return look.life == KEEL_PROCESS_STOPPED ? KEEL_LIFE_STOPPED : KEEL_LIFE_RUNS;
}

static enum keel_status read_into(struct keel_recording *recording)
{
    struct keel_record *next;
    KEEL_TRY(copy_file(recording->path, &recording->record));
    KEEL_TRY(check_format(&recording->record.header, recording->path));
    KEEL_TRY(keel_alloc(1, sizeof *next, &next));
    uint64_t total = recording->record.header.event_total;
    enum keel_status status = settle(recording->path, &recording->record, next);
    keel_free(next);
    if (status == KEEL_OK)
        bound(recording, total);
    return status;
}

enum keel_status keel_recording_read(const char *path, struct keel_recording **out)
{
    struct keel_recording *recording;
    if (strlen(path) >= sizeof recording->path)
        return keel_fail(KEEL_LIMIT, "%s: path of %d bytes or more", path, KEEL_PATH_BYTES);
    KEEL_TRY(keel_alloc(1, sizeof *recording, &recording));
    memcpy(recording->path, path, strlen(path) + 1);
    enum keel_status status = read_into(recording);
    if (status != KEEL_OK) {
        keel_free(recording);
        return status;
    }
    recording->event_total_before = recording->record.header.event_total;
    recording->life = life_of(&recording->record.header);
    *out = recording;
    return KEEL_OK;
}

void keel_recording_refresh(struct keel_recording *recording)
{
    struct keel_recording *now = NULL;
    recording->life = life_of(&recording->record.header);
    if (keel_recording_read(recording->path, &now) != KEEL_OK || now == NULL)
        return;
    if (now->record.header.pid == recording->record.header.pid &&
        now->record.header.start_ticks == recording->record.header.start_ticks) {
        recording->event_total_before = recording->record.header.event_total;
        recording->event_first = now->event_first;
        memcpy(&recording->record, &now->record, sizeof now->record);
    }
    keel_free(now);
}

/* ---- all of them ---- */

enum keel_status keel_recordings_add(struct keel_recordings *recordings, const char *path)
{
    if (recordings->count == KEEL_RECORDINGS_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d recordings", KEEL_RECORDINGS_MAX);
    if (recordings->at == NULL)
        KEEL_TRY(keel_alloc(KEEL_RECORDINGS_MAX, sizeof(struct keel_recording *), &recordings->at));
    KEEL_TRY(keel_recording_read(path, &recordings->at[recordings->count]));
    recordings->count++;
    return KEEL_OK;
}

struct finding {
    struct keel_recordings *recordings;
    const char *directory;
};

static enum keel_status find_one(void *context, const char *name)
{
    struct finding *finding = context;
    struct keel_record_name parsed;
    char path[KEEL_PATH_BYTES];
    if (!keel_record_name_parse(name, &parsed))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, finding->directory, name));
    enum keel_status status = keel_recordings_add(finding->recordings, path);
    if (status == KEEL_NOT_FOUND) /* its owner closed it just now */
        return KEEL_OK;
    if (status != KEEL_OK && status != KEEL_LIMIT && status != KEEL_NO_MEMORY) {
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
        finding->recordings->unreadable++;
        return KEEL_OK;
    }
    return status;
}

enum keel_status keel_recordings_find(const char *directory, struct keel_recordings *out)
{
    struct keel_recordings found = {.count = 0};
    char standard[KEEL_PATH_BYTES];
    enum keel_status status = KEEL_OK;
    if (directory != NULL) {
        status = keel_dir_list(directory, find_one, &(struct finding){&found, directory});
    } else {
        for (uint32_t k = 0; status == KEEL_OK && keel_recorder_directory(k, standard, sizeof standard); k++)
            if (keel_path_exists(standard))
                status = keel_dir_list(standard, find_one, &(struct finding){&found, standard});
    }
    if (status != KEEL_OK)
        keel_recordings_free(&found);
    else
        *out = found;
    return status;
}

void keel_recordings_free(struct keel_recordings *recordings)
{
    for (uint32_t k = 0; k < recordings->count; k++)
        keel_free(recordings->at[k]);
    keel_free(recordings->at);
    *recordings = (struct keel_recordings){.count = 0};
}
