/* ckpt.h - snapshots: save asynchronously, commit atomically, read by tensor and slice.
 *
 * Usable alone (libkeel-ckpt): no device, no network. A store is a directory
 *     ROOT/<run>/step-<n>.<attempt>/{rank-<r>.keel ..., manifest.json}
 * The manifest, never a directory listing, says what is committed; a directory is never reused.
 * The format is specified in ckpt/README.md.
 *
 * Promises (P3 in README.md): a committed snapshot is never lost, half read or silently wrong; every chunk is
 * checked; readers fail closed; a save that fails is reported and never ends the program.
 *
 * Lives. Saving: store open -> save_begin (each rank, with its regions) -> the capture thread reads the
 * regions -> save_wait_captured: sources may change again -> drain threads encode and write ->
 * save_finish gives a shard summary -> summaries of all ranks reach one process (how is the
 * caller's business) -> store_commit there; or save_commit, which does these three with the caller's gather
 * and broadcast. Reading: store_list -> snapshot_open -> snapshot_read. */
#ifndef KEEL_CKPT_H
#define KEEL_CKPT_H

#include <keel/api.h>
#include <keel/limits.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KEEL_API_BEGIN

enum {
    KEEL_TENSOR_NAME_BYTES = 128,
    KEEL_TENSOR_DIMS_MAX = 8,
    KEEL_RUN_NAME_BYTES = 64,
    KEEL_IDENTITY_BYTES = 65 /* 32 bytes in hex, and NUL */
};

enum keel_ckpt_dtype { /* values are of the file format */
                       KEEL_CKPT_F32 = 1,
                       KEEL_CKPT_F64 = 2,
                       KEEL_CKPT_BF16 = 3,
                       KEEL_CKPT_F16 = 4,
                       KEEL_CKPT_I32 = 5,
                       KEEL_CKPT_I64 = 6,
                       KEEL_CKPT_U8 = 7,
                       /* Of shards of version 2: kept as bytes, never rounded, and no NaN of theirs counted.
                        */
                       KEEL_CKPT_BOOL = 8,
                       KEEL_CKPT_I8 = 9,
                       KEEL_CKPT_I16 = 10,
                       KEEL_CKPT_U16 = 11,
                       KEEL_CKPT_U32 = 12,
                       KEEL_CKPT_U64 = 13,
                       KEEL_CKPT_F8_E5M2 = 14,
                       KEEL_CKPT_F8_E4M3 = 15,
                       KEEL_CKPT_F8_E8M0 = 16,
                       KEEL_CKPT_F8_E4M3FNUZ = 17,
                       KEEL_CKPT_F8_E5M2FNUZ = 18,
                       KEEL_CKPT_C64 = 19 /* two float32: real, imaginary */
};
uint32_t keel_ckpt_dtype_bytes(enum keel_ckpt_dtype dtype); /* 0 for an unknown one */

/* A part of a global tensor: dense, row-major box at `offset` of size `extent` in `shape`. */
struct keel_region {
    char name[KEEL_TENSOR_NAME_BYTES]; /* UTF-8 without control characters, 1 to 127 bytes */
    enum keel_ckpt_dtype dtype;
    uint32_t dims; /* 0 is a scalar */
    uint64_t shape[KEEL_TENSOR_DIMS_MAX];
    uint64_t offset[KEEL_TENSOR_DIMS_MAX];
    uint64_t extent[KEEL_TENSOR_DIMS_MAX];
};
uint64_t keel_region_bytes(const struct keel_region *region);

/* ---- store ------------------------------------------------------------------------------------ */

struct keel_store;

struct keel_store_config {
    const char *root; /* created when missing and `create` */
    const char *run;  /* directory name of the run: [A-Za-z0-9._-]; NULL takes the only run there is */
    bool create;
    bool read_only;
    /* A file of 32 bytes, or of 64 hex digits and a newline, that nobody but its owner may read: what is
     * saved is sealed with it, and what is read may be. NULL: nothing is sealed. */
    const char *key_file;
    /* With a key: also read snapshots that are not sealed. By default they are refused: anyone who can write
     * to the directory could have replaced a sealed snapshot by a plain one. */
    bool accept_plain;
};
/* NOT_FOUND, DENIED (also a key file that others may read), INVALID (several runs and none named; no key in
 * the key file). Thread-safe afterwards. */
enum keel_status keel_store_open(const struct keel_store_config *config, struct keel_store **out);
/* Whether a key_file can be used, before a store is made: the statuses of a key file that it would have. */
enum keel_status keel_key_check(const char *key_file);
/* After all saves of it have ended; snapshots may stay open. */
void keel_store_close(struct keel_store *store);

/* ---- save (each rank) --------------------------------------------------------------------------- */

enum keel_codec {
    KEEL_CODEC_RAW = 0,
    KEEL_CODEC_PLANES = 1, /* byte planes, compressed */
    KEEL_CODEC_DELTA = 2,  /* differences to the same chunk of an earlier snapshot, as planes */
    KEEL_CODEC_SAME = 3,   /* nothing stored: the rounding of a master in the same shard */
    KEEL_CODEC_COUNT
};

#define KEEL_SAME_AS_NONE UINT32_MAX

struct keel_save_config {
    uint64_t step;    /* state after this many optimizer steps */
    uint64_t attempt; /* unique for this step: epoch of the view, or a random number */
    uint32_t rank, rank_count;
    /* Of a state that all ranks hold alike, by any function of the caller's; 0: none. Shards of ranks that do
     * not agree are never committed: one of them holds a state that is not the run's. */
    uint64_t state_digest;
    /* The most that is tried: RAW, PLANES, or DELTA (where this store has captured the same regions before,
     * in a snapshot of an earlier step that is committed; otherwise, and every `chain_max` deltas, PLANES).
     * What does not get smaller is stored raw. */
    enum keel_codec codec;
    uint32_t chain_max;                /* DELTA: bases that one chunk may need, 1 .. 16; 0: 4 */
    const struct keel_region *regions; /* copied */
    uint32_t region_count;
    /* For each region the index of the region of which it is a copy rounded to nearest even (bfloat16 or
     * float16 of float32 or float64, float32 of float64; same box), or KEEL_SAME_AS_NONE; copied. Verified
     * while capturing: a chunk that is not exactly that is stored like any other. NULL: none. */
    const uint32_t *same_as;
    /* Read bytes [offset, offset + bytes) of region `index` (dense order of its extent) into `out`. Called
     * from the capture thread, ascending (with a bounded arena, masters again for their copies; with several
     * capture threads, from all of them at once and in no order); must return by itself within reasonable
     * time. A call is for at most 64 MiB, with a bounded arena for at most 1 MiB. */
    enum keel_status (*read)(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes, void *out);
    void *context;
    /* Bound of the memory that is captured into; 0: all regions at once. On top come 16 MiB, 3 MiB for each
     * drain thread, 1 MiB for each capture thread, 96 bytes for each MiB of state and 400 for each region:
     * with 128 MiB here, four and two threads, and up to 512 GiB of state, less than 256 MiB in all. The
     * codec DELTA needs all regions at once, and one more copy of them, which the store holds from save to
     * save. */
    uint64_t arena_bytes;
    uint64_t bandwidth_bytes_s; /* cap of writing, 0: none */
    uint32_t capture_threads;   /* 0: 1; at most 16 */
    uint32_t drain_threads;     /* 0: 1; at most 64 */
    /* Encode and write only when nobody else wants the processor and the disk (idle priority of both); of
     * an arena that holds all regions, nothing before everything is captured. Capturing is as urgent as its
     * caller. */
    bool background;
    uint32_t retry_max; /* how often a write that failed and may work later (IO, NO_SPACE) is tried again,
                         * with growing pauses; 0: never */
};

struct keel_save;

/* What a rank's shard file is, for the manifest. Plain data: may be sent to another process of the
 * same machine type as it is. */
struct keel_shard_summary {
    uint32_t rank, record_count;
    uint64_t file_bytes, raw_bytes, stored_bytes;
    uint64_t state_digest;    /* the save's */
    uint8_t index_digest[16]; /* XXH3-128 of the index: pins the shard to its manifest */
};

/* Take and touch the memory of such a save now, at the program's start: the first save would else stall for
 * as long as its pages take to come, which is many times a copy. The store keeps it for the next save, as it
 * does from save to save; `read` is not called, step and attempt may be any. Blocks. NO_MEMORY, INVALID,
 * LIMIT: as the save would have. */
enum keel_status keel_save_prepare(struct keel_store *store, const struct keel_save_config *config);
/* Start; returns at once (the file is opened here, so that NO_SPACE or DENIED are told early). */
enum keel_status keel_save_begin(struct keel_store *store, const struct keel_save_config *config,
                                 struct keel_save **out);
/* Wait until all regions are read; afterwards their memory may change. TIMEOUT: the capture threads may still
 * read them. Any other failure: the save has failed and no thread reads the regions any more; call
 * keel_save_finish or keel_save_cancel to free it. */
enum keel_status keel_save_wait_captured(struct keel_save *save, uint64_t deadline_ns);
bool keel_save_done(const struct keel_save *save); /* ended, well or not; never blocks */
/* Move a background save to the caller's priority, because something now waits for it. Only by the thread
 * that began the save; does not block. No effect on a save that is not in the background or has ended. When
 * the new threads cannot be started the save fails: keel_save_finish says why. */
void keel_save_hurry(struct keel_save *save);
/* Progress, 0 .. raw bytes. */
uint64_t keel_save_progress_bytes(const struct keel_save *save);
/* Wait until the shard is written and fsynced, give its summary, free the save. On TIMEOUT it goes
 * on and stays valid; on any other failure it is freed and its file removed. */
enum keel_status keel_save_finish(struct keel_save *save, uint64_t deadline_ns,
                                  struct keel_shard_summary *out);
/* Stop, remove the file, free the save. Blocks until the write (at most 4 MiB) or fsync under way returns:
 * milliseconds with direct I/O, without a limit on a disk or server that hangs. To avoid the wait, check
 * keel_save_done first or call this from another thread. */
void keel_save_cancel(struct keel_save *save);
/* Remove a rank's finished shard of an attempt that failed: another rank has no shard of it, or its commit
 * was refused. The attempt's directory is removed with its last file. The caller guarantees that nobody
 * commits that attempt any more and that the rank's save has ended. OK when nothing is there. INVALID: it is
 * committed, or was by this store and has lost its manifest since (repair can bring that back as long as the
 * shards are there). Blocks. */
enum keel_status keel_save_discard(struct keel_store *store, uint64_t step, uint64_t attempt, uint32_t rank);

/* ---- commit (one process) ------------------------------------------------------------------------ */

struct keel_commit {
    uint64_t step, attempt;
    const struct keel_shard_summary *shards; /* one per rank, any order */
    uint32_t shard_count;
    char identity[KEEL_IDENTITY_BYTES]; /* of the job: resume refuses another's */
    const char *metadata;     /* a JSON object for the owner's use (seed, digest, ...); NULL is {} */
    bool allow_nonfinite;     /* commit although a tensor holds NaN or infinity */
    uint64_t created_wall_ns; /* for the manifest; 0: now */
    /* Each node has a store of its own, and commits there: shards that are not in this store are taken at the
     * word of their summaries. The caller has seen that every one is whole in its own (keel_shard_check), and
     * knows that together they hold every tensor. With one created_wall_ns all manifests are the same file.
     * No deltas: UNSUPPORTED. */
    bool elsewhere;
};
/* Before a commit elsewhere, where the shard lies: it opens as for a reader, is that of its summary
 * (MISMATCH), and holds nothing that is NaN or infinite unless that is allowed (DIVERGED). */
enum keel_status keel_shard_check(struct keel_store *store, uint64_t step, uint64_t attempt,
                                  const struct keel_shard_summary *summary, bool allow_nonfinite);
/* Verify that each shard is there and matches its summary, write manifest.json to a temporary name,
 * fsync, rename, fsync the directories, read it back. Committed when this returns OK; not when it is refused;
 * after IO or NO_SPACE, which may come from the last fsync, and after CORRUPT of a manifest that, read back,
 * is not what was written, keel_store_list tells. Blocks. Refused: INVALID (committed already, a rank twice,
 * metadata no JSON object), CORRUPT (a shard damaged or missing, a tensor not covered, the base of a delta
 * not committed), MISMATCH (a shard that is not the one of its summary, or ranks that saved different
 * states), DIVERGED (a tensor holds NaN or infinity, and that is not allowed; names it). */
enum keel_status keel_store_commit(struct keel_store *store, const struct keel_commit *commit);

/* The ranks of a program, as keel_save_commit sees them: two collective calls that every message library has.
 * Both are called on every rank, gather first. */
struct keel_ranks {
    uint32_t rank, rank_count;
    /* `bytes` of each rank, in the order of the ranks, into `all` on rank 0 (NULL on the others). */
    enum keel_status (*gather)(void *context, const void *mine, size_t bytes, void *all);
    /* `bytes` from rank 0 into `data` on the others. */
    enum keel_status (*broadcast)(void *context, void *data, size_t bytes);
    void *context;
};
/* keel_save_finish on every rank, and keel_store_commit on rank 0 of `commit` with all summaries (its
 * `shards` and `shard_count` are not looked at). Collective, also where something failed: all ranks return
 * the same status, that of the commit or of the first rank that has no shard, and nobody is left waiting;
 * only a rank 0 that has no memory to gather into returns NO_MEMORY alone: end the program. `save` is freed
 * in any case; NULL says that it could not begin here (with this thread's detail as the reason). On TIMEOUT
 * it is cancelled. What was written of an attempt that fails is removed. `ranks` NULL: this process is the
 * only rank. */
enum keel_status keel_save_commit(struct keel_store *store, struct keel_save *save,
                                  const struct keel_commit *commit, const struct keel_ranks *ranks,
                                  uint64_t deadline_ns);

enum keel_removed_kind {
    KEEL_REMOVED_SNAPSHOT, /* it was committed */
    KEEL_REMOVED_LEFTOVER, /* directory of an attempt that was not */
    KEEL_REMOVED_TEMPORARY /* a temporary file of a snapshot that stays */
};
struct keel_removed {
    enum keel_removed_kind kind;
    uint64_t step, attempt;
    uint64_t bytes;   /* of its files */
    const char *path; /* valid during the call */
};

/* What stays. A committed snapshot goes only when no rule holds it, and no snapshot that stays needs it as
 * the base of a delta. */
struct keel_retention {
    uint32_t keep_last;        /* the newest, by step and by the time they were made; at least 2 */
    uint64_t keep_every_steps; /* and those of a step that is a multiple of it; 0: none */
    uint64_t keep_within_ns;   /* and those younger than this; 0: none */
    uint64_t keep_spaced_ns;   /* and of older ones the first of every such span of time; 0: none */
    /* No process saves into this run now, so every uncommitted attempt is a leftover and is removed whatever
     * its step. Exception: those of the last committed step or later of which no shard is seen to be
     * missing or damaged may have lost only their manifest; they stay for repair. Set by a program that
     * starts, before its first save. */
    bool idle;
    bool dry_run;                                                    /* remove nothing, tell what would go */
    void (*removed)(void *context, const struct keel_removed *what); /* for all that went; may be NULL */
    void *context;
};
/* Remove the others, manifest first, and what killed writers left: directories of attempts of earlier steps
 * than the one committed last (when idle, of any step), temporary files in snapshots of such steps. What is
 * not of the format stays, with its directory. *out_removed (may be NULL) counts directories. Blocks; one
 * process at a time, the one that commits. A copy, parity or repair that is just being written into a
 * snapshot of an earlier step fails (NOT_FOUND at its commit), and is to be made again. INVALID: keep_last
 * below 2. On another failure some are gone, the next call goes on. */
enum keel_status keel_store_retain(struct keel_store *store, const struct keel_retention *retention,
                                   uint32_t *out_removed);

/* Make room before a save begins, by whoever begins it. Where the disk has less than `bytes` free (0: the
 * snapshot made last with an eighth more), remove what `retention` would let go once the save is committed,
 * oldest first, and no more than it takes. So keep_last counts as one less; the newest snapshot and the one
 * made last stay in any case, and what they need. OK also when there is still not enough: the save tells.
 * Blocks, longer than a call to the disk only when something goes. Errors: as keel_store_retain. */
enum keel_status keel_store_make_room(struct keel_store *store, const struct keel_retention *retention,
                                      uint64_t bytes, uint32_t *out_removed);

/* ---- read ------------------------------------------------------------------------------------------ */

struct keel_snapshot_info {
    uint64_t step, attempt;
    uint64_t created_wall_ns;
    uint64_t raw_bytes, stored_bytes;
    uint32_t shard_count;
    char identity[KEEL_IDENTITY_BYTES];
    bool sealed; /* with a key: listed and verified without it, not read */
};
/* Committed snapshots, newest (highest step, then attempt) first. Damaged and forged manifests
 * are skipped and counted in *out_damaged (may be NULL). *out_count is at most `capacity`. AUTH: sealed with
 * another key than the store's, or plain where that is not accepted. DENIED, EXHAUSTED (of descriptors),
 * NO_MEMORY: one may or can not be looked at, and an older one must not pass for the newest. */
enum keel_status keel_store_list(struct keel_store *store, struct keel_snapshot_info *out, uint32_t capacity,
                                 uint32_t *out_count, uint32_t *out_damaged);

struct keel_snapshot;

/* Open one (attempt 0: the newest of that step): reads the manifest, every shard's header, index and
 * footer, and checks them. NOT_FOUND, CORRUPT (names the file), VERSION; with a key AUTH (as above) and
 * FORGED: every check fits, but whoever made it had no key. Thread-safe afterwards.
 * A snapshot of many shards has a merged index (ckpt/README.md): then the shards are opened, and what is
 * wrong with them is told, when something of them is read. What is in memory follows from what was asked for.
 */
enum keel_status keel_snapshot_open(struct keel_store *store, uint64_t step, uint64_t attempt,
                                    struct keel_snapshot **out);
/* The same with those of its shards alone that are in this store (keel_commit.elsewhere); how many are not.
 * What they hold is missing then: reading it is CORRUPT, or NOT_FOUND for a tensor of which nothing is here.
 * Not for keel_snapshot_verify. */
enum keel_status keel_snapshot_open_here(struct keel_store *store, uint64_t step, uint64_t attempt,
                                         struct keel_snapshot **out);
uint32_t keel_snapshot_missing(const struct keel_snapshot *snapshot);
/* Whether a shard that is here is the one of which the manifest that is here speaks: MISMATCH where files of
 * two snapshots of one name were mixed. Header, index and footer are checked. CORRUPT, NOT_FOUND (no
 * manifest). */
enum keel_status keel_snapshot_check_shard(struct keel_store *store, uint64_t step, uint64_t attempt,
                                           uint32_t rank);
void keel_snapshot_close(struct keel_snapshot *snapshot);
const struct keel_snapshot_info *keel_snapshot_info(const struct keel_snapshot *snapshot);
const char *keel_snapshot_metadata(const struct keel_snapshot *snapshot); /* JSON object */

/* Global tensors, in byte order of their names; region offset 0, extent = shape. */
uint32_t keel_snapshot_tensor_count(const struct keel_snapshot *snapshot);
enum keel_status keel_snapshot_tensor(const struct keel_snapshot *snapshot, uint32_t index,
                                      struct keel_region *out);

/* Read any box of a tensor into dense memory, from whichever shards hold it, reading only the chunks
 * that it needs; what is damaged in one replica comes from another, with a line in the log. MISMATCH: shape
 * or dtype differ from what is stored. CORRUPT, IO and FORGED name file, tensor and chunk; nothing is to be
 * used of `out` then. AUTH: it is sealed and the store has no key. */
enum keel_status keel_snapshot_read(struct keel_snapshot *snapshot, const struct keel_region *box, void *out,
                                    uint64_t out_bytes);

/* Many boxes at once, by several threads: each chunk that is needed is read and decoded once, in the order in
 * which it lies in its file. Errors as for keel_snapshot_read; the first one ends all. */
struct keel_load {
    struct keel_region box;
    void *out; /* dense, keel_region_bytes(&box) */
};
struct keel_load_config {
    uint32_t threads; /* 0: one per processor, at most 16 */
    /* May be NULL; called from any of the threads, one at a time. */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};
struct keel_load_stats {
    uint64_t wanted_bytes; /* raw bytes of the boxes */
    uint64_t needed_bytes; /* stored bytes of the chunks that hold them, bases and masters included */
    uint64_t read_bytes;   /* read from files, padding and repetition included */
};
/* `config` and `out_stats` may be NULL. */
enum keel_status keel_snapshot_load(struct keel_snapshot *snapshot, const struct keel_load *loads,
                                    uint32_t count, const struct keel_load_config *config,
                                    struct keel_load_stats *out_stats);

/* Check every chunk of every shard. `progress` (may be NULL) is called after each chunk; CORRUPT with
 * the first damage as detail, *out_damaged counting all. */
enum keel_status keel_snapshot_verify(struct keel_snapshot *snapshot,
                                      void (*progress)(void *context, uint64_t done_bytes,
                                                       uint64_t total_bytes),
                                      void *context, uint32_t *out_damaged);

KEEL_API_END

#endif
