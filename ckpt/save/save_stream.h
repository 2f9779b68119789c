/* save_stream.h - a shard file as one sequential stream: bytes appended in order by one thread at a time,
 * written behind by a thread of its own in large aligned writes, under a bandwidth cap.
 *
 * Direct I/O where the file system takes it. A write that failed and may work later is tried again. Left to
 * others: what the bytes are (save_encode.c). */
#ifndef KEEL_CKPT_SAVE_STREAM_H
#define KEEL_CKPT_SAVE_STREAM_H

#include <keel/ckpt.h>
#include <keel/file.h>
#include <keel/thread.h>

enum {
    KEEL_STREAM_BLOCKS = 4,
    KEEL_STREAM_BLOCK_BYTES = 4 << 20,
    KEEL_STREAM_MEMORY_BYTES = KEEL_STREAM_BLOCKS * KEEL_STREAM_BLOCK_BYTES
};

struct keel_stream_block {
    uint8_t *data;      /* borrowed, page aligned */
    uint32_t used;      /* bytes; full but for the last block */
    uint64_t raw_bytes; /* raw bytes whose last stored byte lies in here or before, for the progress */
};

struct keel_stream_config {
    uint64_t cap_bytes_s; /* 0: none */
    uint32_t retry_max;   /* of one write */
};

struct keel_save_stream {
    int fd;           /* owned */
    const char *path; /* borrowed, for messages */
    struct keel_stream_config how;
    uint64_t appended; /* stream position; the appending thread's */
    struct keel_stream_block blocks[KEEL_STREAM_BLOCKS];

    struct keel_mutex lock; /* guards all below; a leaf: nothing else is locked under it */
    struct keel_cond moved;
    uint64_t filled, written; /* blocks handed over, blocks written: written <= filled <= written + BLOCKS */
    bool ended, stopped, handing_over;

    uint64_t due_ns, file_bytes; /* the writing thread's: when the next write is paid for; written so far */
    bool told_retry;
    _Atomic uint64_t progress_bytes; /* raw bytes written */
};

/* Takes over `fd`, an empty file; borrows `memory` for the blocks, page aligned. */
void keel_save_stream_init(struct keel_save_stream *stream, int fd, const char *path,
                           const struct keel_stream_config *how, uint8_t *memory);
void keel_save_stream_fini(struct keel_save_stream *stream);

/* Append (0 bytes: only the progress); waits while all blocks are full. INTERRUPTED after
 * keel_save_stream_stop. */
enum keel_status keel_save_stream_append(struct keel_save_stream *stream, const void *data, size_t bytes,
                                         uint64_t raw_bytes);
/* Zeros up to the next multiple of 4096, less `before` bytes. */
enum keel_status keel_save_stream_pad(struct keel_save_stream *stream, uint32_t before);
/* No more will come; the position is a multiple of 4096. */
void keel_save_stream_end(struct keel_save_stream *stream);
/* Both sides give up. Any thread. */
void keel_save_stream_stop(struct keel_save_stream *stream);

/* The writing thread's body: until end and fsync, an error, or stop (INTERRUPTED). False in *out_over: it was
 * asked to leave the rest to another thread. */
enum keel_status keel_save_stream_drain(struct keel_save_stream *stream, bool *out_over);
/* Ask the thread that writes to leave behind the block that it is at. Another one may call drain when it
 * left. Any thread, once. */
void keel_save_stream_hand_over(struct keel_save_stream *stream);

/* What a thread of a save returns when it finds that it is to stop. */
enum keel_status keel_save_interrupted(void);

#endif
