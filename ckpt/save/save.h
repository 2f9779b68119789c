/* save.h - inside of one rank's save, for the files that make it up:
 *
 *   save.c          its life: begin, threads, waiting, finish, cancel
 *   save_plan.c     regions cut into chunks; what the arena is like; which base it has
 *   save_capture.c  regions into the arena
 *   save_encode.c    chunks out of the arena, encoded, in order into the stream; index and footer
 *   delta_base.c     the raw state that a store holds for the deltas of the next save
 *   save_stream.c   the stream, written behind
 *
 * Invariant, under the lock:
 *     tail <= placed <= taken <= captured <= claimed <= chunk_count;
 * chunks [tail, claimed) lie in the arena. A whole arena has a place for every chunk, and gives none back. */
#ifndef KEEL_CKPT_SAVE_H
#define KEEL_CKPT_SAVE_H

#include "delta_base.h"
#include "format.h"
#include "save_stream.h"
#include "store.h"
#include <stdatomic.h>

enum {
    KEEL_SAVE_DRAIN_MAX = 64,
    KEEL_SAVE_CAPTURE_MAX = 16,
    KEEL_SAVE_ALIGNMENT_BYTES = 64, /* of chunks in the arena */
    KEEL_SAVE_PIECE_BYTES =
        64 << 20 /* read at once into a whole arena: copies of this size pass the caches */
};

/* A chunk on its way. */
struct keel_save_job {
    uint64_t raw_offset; /* within its region */
    uint64_t arena_at;
    uint32_t record, raw_bytes;
    bool captured, released; /* under the lock */
    bool same;               /* by capture: the copy of its master, so seen while it was read */
};

struct keel_save {
    /* Set by begin, constant afterwards. */
    struct keel_step_place place; /* owned */
    char shard_name[KEEL_SHARD_NAME_BYTES];
    char path[KEEL_PATH_BYTES];
    struct keel_format_header header;
    enum keel_codec codec; /* the most that is tried */
    bool background;
    bool whole; /* the arena has a place for every chunk */
    enum keel_status (*read)(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes, void *out);
    void *context;
    uint32_t record_count, chunk_count, drain_count, capture_count;
    size_t index_bytes;
    uint8_t *index; /* owned; records are set by begin, the rest in order by whoever appends a chunk */
    struct keel_format_record *records;
    struct keel_format_chunk *chunks;
    uint32_t *same_as;               /* owned; of each record, or NULL when it is nowhere set */
    struct keel_chunk_note *notes;   /* owned; of each chunk, where deltas are wanted, else NULL */
    struct keel_base *base;          /* owned; with the codec delta what they refer to; or NULL */
    struct keel_store *store;        /* borrowed: outlives its saves */
    struct keel_workspace workspace; /* owned; blocks of the stream, then the arena */
    uint8_t *arena;                  /* in it */
    uint64_t arena_bytes;
    struct keel_save_job *jobs; /* owned */
    struct keel_thread threads[2 * (KEEL_SAVE_DRAIN_MAX + 1) + KEEL_SAVE_CAPTURE_MAX];
    uint32_t thread_count;

    struct keel_mutex lock; /* guards all below; the stream's lock may be taken under it */
    struct keel_cond moved;
    uint32_t tail, placed, taken, captured, claimed;
    uint64_t arena_head;
    bool tail_claimed, stopping;
    bool hurried;             /* threads of normal priority have taken over from those in the background */
    bool writer_left;         /* the one in the background wrote its last, */
    bool writer_over;         /* and leaves nothing to another: it is all written, or failed */
    uint32_t capturing;       /* threads that may yet read the caller's regions */
    enum keel_status failure; /* the first one */
    char failure_detail[KEEL_DETAIL_BYTES];
    atomic_uint running; /* threads; changed under the lock, read without */

    struct keel_save_stream stream;
    bool any_delta;                    /* by whoever appends, as the index */
    struct keel_shard_summary summary; /* by the thread that appends the footer */
    uint32_t handle;                   /* constant till finish or cancel */
};

/* ---- save_plan.c */
enum keel_status keel_save_check_config(const struct keel_save_config *config);
/* Index, jobs, base and memory of the save, whose constant settings are there. What it has allocated when it
 * fails is freed with the save. */
enum keel_status keel_save_plan(struct keel_save *save, const struct keel_save_config *config);

/* ---- save_capture.c: body of each capture thread. */
enum keel_status keel_save_capture(struct keel_save *save);

/* ---- save_encode.c: body of each drain thread; one in the background leaves when others take over. */
enum keel_status keel_save_drain(struct keel_save *save, bool in_background);

#endif
