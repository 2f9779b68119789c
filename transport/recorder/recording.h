/* recording.h - reading recordings: of the living, the stopped and the dead.
 *
 * Owns the check of a file's format, copying it without tearing, and finding all of this machine. Nothing in
 * a recording is trusted: it is a file, and anybody may have written it. Blocks on the file system only,
 * never on the owner. */
#ifndef KEEL_TRANSPORT_RECORDING_H
#define KEEL_TRANSPORT_RECORDING_H

#include "recorder.h"

#include <keel/file.h>
#include <keel/process.h>

enum { KEEL_RECORDINGS_MAX = 4096 };

enum keel_recording_life {
    KEEL_LIFE_RUNS,
    KEEL_LIFE_STOPPED,
    KEEL_LIFE_DEAD,
    KEEL_LIFE_UNKNOWN /* of another machine */
};

struct keel_recording {
    char path[KEEL_PATH_BYTES];
    enum keel_recording_life life;
    uint64_t event_first;        /* the newest event_total - event_first events are whole */
    uint64_t event_total_before; /* as of the look before (keel_recording_refresh); else as now */
    struct keel_record record;   /* a copy; every text ends, every index and count is in range */
};

/* NOT_FOUND, DENIED; VERSION: of another format; CORRUPT. The caller frees *out with keel_free. */
enum keel_status keel_recording_read(const char *path, struct keel_recording **out);
/* The same file again; what it is now. A file that has gone since leaves the old contents, and the life. */
void keel_recording_refresh(struct keel_recording *recording);

struct keel_recordings {
    struct keel_recording **at; /* heap, and so is each */
    uint32_t count;
    uint32_t unreadable; /* files that were there and could not be read; the log says why */
};
/* All that lie in `directory`, or (NULL) in all standard ones. None is no error. */
enum keel_status keel_recordings_find(const char *directory, struct keel_recordings *out);
/* One more file. */
enum keel_status keel_recordings_add(struct keel_recordings *recordings, const char *path);
void keel_recordings_free(struct keel_recordings *recordings);

/* "all-reduce 17 (1.0 MiB of f32, ring), segment 3 of 16, wants data of ranks 2 and 5; ..." */
void keel_record_operation_text(const struct keel_record_operation *operation, uint64_t now_ns, char *out,
                                size_t out_bytes);
/* "all-reduce 17 (1.0 MiB of f32, ring)" */
void keel_record_operation_name(const struct keel_record_operation *operation, char *out, size_t out_bytes);
void keel_format_bytes(uint64_t bytes, char out[32]);
/* "412 us", "2.1 s" */
void keel_format_ns(uint64_t duration_ns, char out[32]);

#endif
