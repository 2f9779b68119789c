/* ckpt_subcommand.h - what the subcommands of `keel ckpt` share.
 *
 * A subcommand is one file, ckpt_cmd_<name>.c, with one struct keel_command_kind (<keel/command.h>): its
 * words, its options as a table, what it does; ckpt_cmd.c has the table of all. ckpt_cmd_path.c finds what a
 * PATH means; ckpt_cmd_out.c writes for people and for programs. Results go to stdout, errors and progress to
 * stderr. */
#ifndef KEEL_CKPT_SUBCOMMAND_H
#define KEEL_CKPT_SUBCOMMAND_H

#include "generation_index.h"
#include <jansson.h>
#include <keel/command.h>

enum { KEEL_CMD_DAMAGED = 4 /* exit code */ };

extern const struct keel_command_set keel_ckpt_commands;
extern const struct keel_command_kind keel_cmd_gc, keel_cmd_ls, keel_cmd_show, keel_cmd_verify, keel_cmd_diff,
    keel_cmd_export, keel_cmd_import, keel_cmd_repair;

/* Options of all subcommands: the begin of each one's own struct. */
struct keel_cmd_options {
    const char *key_file; /* --key, or NULL */
    bool accept_plain;    /* --accept-plain */
    const char *step;     /* --step, where the subcommand takes it; or NULL */
};
#define KEEL_CMD_STEP                                                                                        \
    {                                                                                                        \
        "--step", "N", KEEL_COMMAND_TEXT, offsetof(struct keel_cmd_options, step),                           \
            "the snapshot of that step; without it the newest is meant"                                      \
    }

/* ---- ckpt_cmd_path.c: what a PATH means ---- */

struct keel_cmd_place {
    struct keel_store *store;
    const char *path; /* as it was given; borrowed */
    bool has_step;    /* the PATH or --step names one snapshot */
    uint64_t step, attempt;
    uint32_t removed; /* how many that were taken as the newest were removed while they were read */
};
/* "17": a whole number without sign or leading zeros. INVALID. */
enum keel_status keel_cmd_parse_step(const char *text, uint64_t *out);
/* Fill in key_file and accept_plain. INVALID: the one without the other. */
enum keel_status keel_cmd_store_config(const struct keel_command *cmd, struct keel_store_config *config);
/* PATH is a store's root, a run in it, the directory of one snapshot, or that of a `keel run`. */
enum keel_status keel_cmd_open(const struct keel_command *cmd, const char *path, bool writable,
                               struct keel_cmd_place *out);
void keel_cmd_close(struct keel_cmd_place *place);
/* Whoever changes a store that belongs to a `keel run` holds the run's lock meanwhile. BUSY: the run is on.
 * *out_lock is -1 where there is no run to lock; give it to keel_cmd_unlock_run in any case. */
enum keel_status keel_cmd_lock_run(const struct keel_cmd_place *place, const char *verb, int *out_lock);
void keel_cmd_unlock_run(int lock);
/* The place is of a keel run, and none is writing there. Takes no lock, so it may look where nobody may
 * write. */
bool keel_cmd_run_is_idle(const struct keel_cmd_place *place);
/* Is it one that the place names, committed or with a damaged manifest? */
bool keel_cmd_is_meant(const struct keel_cmd_place *place, const struct keel_generation_entry *attempt);
/* The newest committed one that is meant, else the newest damaged one; NULL: there is none. */
const struct keel_generation_entry *keel_cmd_find_generation(const struct keel_cmd_place *place,
                                                             const struct keel_generation_index *generations);
/* A run beside removes old snapshots while they are read. Whether that snapshot, which was committed, has
 * lost its manifest, the first of its files to go: then what could not be read of it is no damage. Leaves
 * keel_detail() as it is. */
bool keel_cmd_is_removed(const struct keel_cmd_place *place, const struct keel_snapshot_info *info);
/* Open the snapshots that the first `sides` operands mean, call `work` with them, close them. When one that
 * was taken as the newest is removed meanwhile, and `work` fails, again with those that are there then: so
 * `work` begins anew each time. */
enum { KEEL_CMD_SIDES_MAX = 2 };
enum keel_status keel_cmd_read(const struct keel_command *cmd, uint32_t sides,
                               enum keel_status (*work)(void *context, const struct keel_cmd_place *places,
                                                        struct keel_snapshot *const *snapshots),
                               void *context);
/* OK: the command takes the newest of those that are there now. NOT_FOUND: one was named, or it happens again
 * and again. */
enum keel_status keel_cmd_note_removed(struct keel_cmd_place *place, uint64_t step);
/* ---- ckpt_cmd_out.c: what is written ---- */

/* Print the status with its detail, and note it (keel_command_note); returns its exit code. */
int keel_cmd_report(enum keel_status status);
/* Print and release; returns the exit code. `value` may be NULL: no memory. */
int keel_cmd_print_json(json_t *value);
json_t *keel_cmd_u64_json(uint64_t value); /* as text, as in the manifest: it may have 64 bits */
json_t *keel_cmd_step_json(uint64_t step); /* a number, unless it is too large for JSON readers: as above */
json_t *keel_cmd_info_json(const struct keel_snapshot_info *info);
json_t *keel_cmd_bases_json(const struct keel_generation *bases, uint32_t count);
enum { KEEL_CMD_WORD_BYTES = 32 };
void keel_cmd_format_bytes(uint64_t bytes, char out[KEEL_CMD_WORD_BYTES]);
/* "1.24x"; "-" when nothing is stored. */
void keel_cmd_format_ratio(uint64_t raw_bytes, uint64_t stored_bytes, char out[KEEL_CMD_WORD_BYTES]);
struct keel_cmd_words {
    char raw[KEEL_CMD_WORD_BYTES], stored[KEEL_CMD_WORD_BYTES], ratio[KEEL_CMD_WORD_BYTES],
        created[KEEL_CMD_WORD_BYTES];
};
struct keel_cmd_words keel_cmd_words_of(const struct keel_snapshot_info *info);

/* A line of progress that is written over; only where stderr is a terminal. */
struct keel_cmd_meter {
    const char *verb;
    uint64_t shown_ns;
    bool terminal;
};
struct keel_cmd_meter keel_cmd_meter_of(const char *verb);
/* Fits the progress callbacks of <keel/ckpt.h>; `context` is a struct keel_cmd_meter. */
void keel_cmd_meter_show(void *context, uint64_t done_bytes, uint64_t total_bytes);
/* Take the line away before something else is printed. */
void keel_cmd_meter_hide(const struct keel_cmd_meter *meter);

#endif
