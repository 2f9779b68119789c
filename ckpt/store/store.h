/* store.h - inside of a store, for the files of this room: its directories, opened without ever following
 * a symbolic link below the root. */
#ifndef KEEL_CKPT_STORE_H
#define KEEL_CKPT_STORE_H

#include "handle.h"
#include "seal_key.h"
#include <keel/ckpt.h>
#include <keel/file.h>
#include <keel/thread.h>

enum { KEEL_STEP_NAME_BYTES = 64, KEEL_SHARD_NAME_BYTES = 32, KEEL_STORE_COMMITTED_MAX = 64 };

#define KEEL_MANIFEST_NAME "manifest.json"

/* Memory of a save: blocks of the stream, then the arena. The newest one that ended leaves it to the next, so
 * that only the first pays for fresh pages. */
struct keel_workspace {
    void *memory;  /* owned */
    uint8_t *data; /* the first page in it */
    size_t bytes;  /* from data on */
};

struct keel_base;
struct keel_generation_entry;

struct keel_generation {
    uint64_t step, attempt;
};
/* By step, then attempt: below, at or above 0. Of two struct keel_generation, as qsort wants it. */
int keel_generation_compare(const void *a, const void *b);

struct keel_store {
    char run[KEEL_RUN_NAME_BYTES];
    char path[KEEL_PATH_BYTES]; /* root/run */
    int run_fd;
    bool read_only, accept_plain;
    struct keel_key *key;        /* held; NULL: nothing is sealed */
    _Atomic uint64_t settled_ns; /* see gc_remove.c */
    struct keel_mutex lock;      /* guards: */
    struct keel_workspace spare;
    struct keel_base *bases;                                    /* list, owned: delta_base.h */
    uint32_t saves;                                             /* that have not ended */
    struct keel_generation committed[KEEL_STORE_COMMITTED_MAX]; /* a ring: those of this store, newest kept */
    uint64_t committed_count;
    struct keel_generation_entry *seen; /* by retention; owned: generation_index.h */
    size_t seen_count;
    uint64_t seen_since_ns;
    uint32_t handle; /* constant while it is open */
};
/* One save more that has begun, or that has ended. */
void keel_store_count_saves(struct keel_store *store, bool more);
/* At least `bytes` from `data` on; contents unspecified. Give it back when the save ends. NO_MEMORY. */
enum keel_status keel_store_take_workspace(struct keel_store *store, uint64_t bytes,
                                           struct keel_workspace *out);
/* Whether one of that size lies ready. */
bool keel_store_has_workspace(struct keel_store *store, uint64_t bytes);
void keel_store_give_workspace(struct keel_store *store, struct keel_workspace *workspace);

/* This store has committed that attempt; and whether it has, among the last so many. The manifest tells it,
 * too, but a disk may lose that, and repair may bring it back: until then the shards must stay. */
void keel_store_note_committed(struct keel_store *store, uint64_t step, uint64_t attempt);
bool keel_store_has_committed(struct keel_store *store, uint64_t step, uint64_t attempt);

/* Names and paths of one attempt. */
struct keel_step_place {
    char name[KEEL_STEP_NAME_BYTES]; /* step-12.3 */
    char path[KEEL_PATH_BYTES];      /* root/run/step-12.3, for messages */
    int fd;
    struct keel_key *key; /* the store's, held; or NULL */
};
/* "step-<n>.<attempt>" and nothing else: no sign, no leading zero. */
bool keel_step_name_parse(const char *name, uint64_t *out_step, uint64_t *out_attempt);
void keel_step_name(uint64_t step, uint64_t attempt, char out[KEEL_STEP_NAME_BYTES]);
/* Open the directory, made when `create`; NOT_FOUND. Close with keel_step_close. */
enum keel_status keel_step_open(const struct keel_store *store, uint64_t step, uint64_t attempt, bool create,
                                struct keel_step_place *out);
void keel_step_close(struct keel_step_place *place);
/* INVALID when it is committed, an error when nobody can tell. */
enum keel_status keel_step_uncommitted(const struct keel_step_place *place);
void keel_shard_name(uint32_t rank, char out[KEEL_SHARD_NAME_BYTES]);
bool keel_shard_name_parse(const char *name, uint32_t *out_rank);

/* Whose a file in an attempt's directory is, by its name. */
enum keel_name_kind {
    KEEL_NAME_FOREIGN,
    KEEL_NAME_OWN,      /* the format's: the manifest, a shard, a parity file */
    KEEL_NAME_TEMPORARY /* on its way to be one of those: keel_file_replace, repair */
};
enum keel_name_kind keel_name_kind_of(const char *name);

/* A regular file of that directory, for reading; no symbolic link. NOT_FOUND, DENIED, CORRUPT. */
enum keel_status keel_step_open_file(const struct keel_step_place *place, const char *name, int *out_fd,
                                     uint64_t *out_bytes);

/* The newest committed attempt of that step; when all its manifests are damaged the newest of those, so that
 * reading it says what is wrong. NOT_FOUND. */
enum keel_status keel_store_newest_attempt(struct keel_store *store, uint64_t step, uint64_t *out_attempt);

/* This process has no memory or no descriptor left: what it could not look at for that may be there, and
 * sound. So it is neither missing nor damaged, and no other may pass for it. */
static inline bool keel_is_shortage(enum keel_status status)
{
    return status == KEEL_NO_MEMORY || status == KEEL_EXHAUSTED;
}

/* INVALID when the store was opened read-only. Asserts that it is open. */
enum keel_status keel_store_writable(const struct keel_store *store);

#endif
