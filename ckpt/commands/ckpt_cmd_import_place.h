/* ckpt_cmd_import_place.h - where `keel ckpt import` puts its snapshot: what PATH means, whose job it is, and
 * taking away what was made for an import that did not come to its end. */
#ifndef KEEL_CKPT_CMD_IMPORT_PLACE_H
#define KEEL_CKPT_CMD_IMPORT_PLACE_H

#include "ckpt_subcommand.h"

struct keel_import_place {
    char root[KEEL_PATH_BYTES], run[KEEL_PATH_BYTES]; /* run: "" is the only one there is */
    char identity[KEEL_IDENTITY_BYTES];               /* of the job, where a `keel run` has one there */
    bool of_keel_run;                                 /* PATH is the directory of a `keel run` */
    size_t there_bytes;                               /* of root/run: what of it was there before */
    struct keel_cmd_place at;                         /* once it is open; keel_cmd_close it */
};

/* PATH is a run in a store (ROOT/RUN, made when missing), the directory of a `keel run`, or, with `run`
 * (--run, or NULL), a store. Touches nothing. INVALID, LIMIT. */
enum keel_status keel_import_place_find(const char *path, const char *run, struct keel_import_place *place);
/* Open the store, made when missing. */
enum keel_status keel_import_place_open(const struct keel_command *cmd, struct keel_import_place *place);
/* INVALID: it holds a snapshot of that step already, or, where a job is to begin from it, its `keel run`
 * would go on from something else. What listing returns where nobody can tell. */
enum keel_status keel_import_place_check(const struct keel_import_place *place, uint64_t step, bool begins);
/* Remove directories that opening made and that are empty. */
void keel_import_place_undo(const struct keel_import_place *place);

#endif
