/* recorder_file.h - where recordings lie, what their files are called, and how many old ones may stay. */
#ifndef KEEL_TRANSPORT_RECORDER_FILE_H
#define KEEL_TRANSPORT_RECORDER_FILE_H

#include "recorder.h"

#include <keel/file.h>

#define KEEL_RECORD_SUFFIX ".flight"

/* PID-STARTTICKS-NUMBER.flight. False: not the name of a recording. */
struct keel_record_name {
    uint64_t pid, start_ticks, number;
};
bool keel_record_name_parse(const char *name, struct keel_record_name *out);

/* A mapped file of zeros in `directory` (NULL: the first that can be), after old ones were removed down to
 * their bound. NULL when there can be none; the log has said why. */
struct keel_record *keel_recorder_file_make(const char *directory, uint32_t number,
                                            char path[KEEL_PATH_BYTES]);
void keel_recorder_file_remove(const char *path, struct keel_record *record);

#endif
