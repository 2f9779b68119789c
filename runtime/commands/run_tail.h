/* run_tail.h - the lines that a run adds to one of its files, from some moment on.
 *
 * Reads whole lines that are objects, and writes nothing. One thread. */
#ifndef KEEL_RUN_TAIL_H
#define KEEL_RUN_TAIL_H

#include <jansson.h>
#include <keel/file.h>
#include <stdint.h>

struct keel_run_tail {
    char path[KEEL_PATH_BYTES];
    uint64_t at; /* read so far: what follows is to come */
    char *chunk;
};

/* From the end of the file on, which need not be there yet. LIMIT, NO_MEMORY; close it in any case. */
enum keel_status keel_run_tail_open(struct keel_run_tail *tail, const char *directory, const char *name);
void keel_run_tail_close(struct keel_run_tail *tail);

/* What came since, as far as it is whole lines, at most 256 KiB of it. */
enum keel_status keel_run_tail_read(struct keel_run_tail *tail,
                                    void (*take)(void *context, const json_t *line), void *context);

#endif
