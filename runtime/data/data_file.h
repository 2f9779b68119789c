/* data_file.h - a file that is read again and again by place while a run goes on, and must stay what it was.
 *
 * It is read with pread, so memory does not grow with it, one that is cut gives an error where a mapping
 * would give a signal, and a 32-bit machine reads what its addresses do not reach. No descriptor is kept. */
#ifndef KEEL_DATA_FILE_H
#define KEEL_DATA_FILE_H

#include <keel/file.h>

struct keel_data_file {
    char *path; /* owned */
    uint64_t bytes;
    int64_t modified_s, modified_ns;
};

/* See what the file is now; *out_fd is to be closed (keel_disk_close). *out is to be given to fini, also
 * after a failure. INVALID: no regular file; what opening gives. */
enum keel_status keel_data_file_open(const char *path, struct keel_data_file *out, int *out_fd);
/* Open it again, if it is the one that it was, by its size and time: else MISMATCH. Any thread. */
enum keel_status keel_data_file_again(const struct keel_data_file *file, int *out_fd);
void keel_data_file_fini(struct keel_data_file *file);

#endif
