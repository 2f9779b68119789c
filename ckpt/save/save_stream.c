/* save_stream.c - a ring of blocks between the thread that appends and the thread that writes. */
#include "save_stream.h"
#include "format.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdatomic.h>
#include <string.h>

enum {
    PIECE_BYTES_MIN = 64 << 10,
    PIECES_PER_SECOND = 32,
    CATCH_UP_NS = 100000000,   /* of the cap, by writing faster after a delay */
    RETRY_FIRST_NS = 50000000, /* then twice as long each time, */
    RETRY_DOUBLINGS = 7        /* up to 6.4 s */
};

/* A cap above this is none: no disk is faster, and the arithmetic below stays within 64 bits. */
static const uint64_t cap_max_bytes_s = UINT64_C(16) << 30;

enum keel_status keel_save_interrupted(void)
{
    return keel_fail(KEEL_INTERRUPTED, "the save was stopped");
}

void keel_save_stream_init(struct keel_save_stream *stream, int fd, const char *path,
                           const struct keel_stream_config *how, uint8_t *memory)
{
    *stream = (struct keel_save_stream){.fd = fd, .path = path, .how = *how};
    if (how->cap_bytes_s > cap_max_bytes_s)
        stream->how.cap_bytes_s = 0;
    keel_mutex_init(&stream->lock);
    keel_cond_init(&stream->moved);
    (void)keel_disk_set_direct(fd, true);
    for (size_t i = 0; i < KEEL_STREAM_BLOCKS; i++)
        stream->blocks[i].data = memory + i * KEEL_STREAM_BLOCK_BYTES;
}

void keel_save_stream_fini(struct keel_save_stream *stream)
{
    keel_cond_fini(&stream->moved);
    keel_mutex_fini(&stream->lock);
    if (stream->fd >= 0)
        keel_disk_close(stream->fd);
    stream->fd = -1;
}

/* ---- the appending side -------------------------------------------------------------------------------- */

/* Hand over the current block and wait for a free one. */
static enum keel_status next_block(struct keel_save_stream *stream)
{
    keel_mutex_lock(&stream->lock);
    stream->filled++;
    keel_cond_broadcast(&stream->moved);
    while (!stream->stopped && stream->filled - stream->written == KEEL_STREAM_BLOCKS)
        keel_cond_wait(&stream->moved, &stream->lock, KEEL_NEVER);
    bool stopped = stream->stopped;
    if (!stopped) {
        struct keel_stream_block *block = &stream->blocks[stream->filled % KEEL_STREAM_BLOCKS];
        block->used = 0;
        block->raw_bytes = 0;
    }
    keel_mutex_unlock(&stream->lock);
    return stopped ? keel_save_interrupted() : KEEL_OK;
}

enum keel_status keel_save_stream_append(struct keel_save_stream *stream, const void *data, size_t bytes,
                                         uint64_t raw_bytes)
{
    const uint8_t *at = data;
    if (bytes == 0)
        stream->blocks[stream->filled % KEEL_STREAM_BLOCKS].raw_bytes += raw_bytes;
    while (bytes > 0) {
        struct keel_stream_block *block = &stream->blocks[stream->filled % KEEL_STREAM_BLOCKS];
        size_t room = KEEL_STREAM_BLOCK_BYTES - block->used, part = bytes < room ? bytes : room;
        memcpy(block->data + block->used, at, part);
        block->used += (uint32_t)part;
        stream->appended += part;
        at += part;
        bytes -= part;
        if (bytes == 0)
            block->raw_bytes += raw_bytes;
        if (block->used == KEEL_STREAM_BLOCK_BYTES)
            KEEL_TRY(next_block(stream));
    }
    return KEEL_OK;
}

enum keel_status keel_save_stream_pad(struct keel_save_stream *stream, uint32_t before)
{
    static const uint8_t zeros[KEEL_FORMAT_BLOCK_BYTES];
    uint64_t end = keel_round_up(stream->appended + before, KEEL_FORMAT_BLOCK_BYTES) - before;
    return keel_save_stream_append(stream, zeros, keel_size(end - stream->appended), 0);
}

void keel_save_stream_end(struct keel_save_stream *stream)
{
    KEEL_ASSERT(stream->appended % KEEL_FORMAT_BLOCK_BYTES == 0);
    keel_mutex_lock(&stream->lock);
    if (stream->blocks[stream->filled % KEEL_STREAM_BLOCKS].used > 0)
        stream->filled++;
    stream->ended = true;
    keel_cond_broadcast(&stream->moved);
    keel_mutex_unlock(&stream->lock);
}

void keel_save_stream_stop(struct keel_save_stream *stream)
{
    keel_mutex_lock(&stream->lock);
    stream->stopped = true;
    keel_cond_broadcast(&stream->moved);
    keel_mutex_unlock(&stream->lock);
}

/* ---- the writing side ---------------------------------------------------------------------------------- */

/* Sleep until then; false when stopped. */
static bool sleep_until(struct keel_save_stream *stream, uint64_t due_ns)
{
    keel_mutex_lock(&stream->lock);
    while (!stream->stopped && keel_now_ns() < due_ns)
        keel_cond_wait(&stream->moved, &stream->lock, due_ns);
    bool stopped = stream->stopped;
    keel_mutex_unlock(&stream->lock);
    return !stopped;
}

/* Sleep, under the cap, until the bytes written so far are paid for; false when stopped. What was not used of
 * the cap while there was nothing to write is lost, but for a moment's. */
static bool pay(struct keel_save_stream *stream, size_t bytes)
{
    uint64_t cap = stream->how.cap_bytes_s;
    if (cap == 0)
        return sleep_until(stream, 0);
    if (!sleep_until(stream, stream->due_ns))
        return false;
    uint64_t now_ns = keel_now_ns();
    if (stream->due_ns + CATCH_UP_NS < now_ns)
        stream->due_ns = now_ns - CATCH_UP_NS;
    stream->due_ns += bytes * KEEL_NS_PER_S / cap;
    return true;
}

/* Some file systems take the flag and refuse the write: then without it. */
static enum keel_status write_piece(struct keel_save_stream *stream, const uint8_t *data, size_t bytes)
{
    ssize_t put = keel_disk_pwrite(stream->fd, data, bytes, stream->file_bytes);
    if (put == (ssize_t)bytes)
        return KEEL_OK;
    if (put < 0 && errno != EINVAL)
        return keel_fail_errno(errno, "%s: cannot be written at byte %llu", stream->path,
                               (unsigned long long)stream->file_bytes);
    (void)keel_disk_set_direct(stream->fd, false);
    return keel_pwrite_all(stream->fd, data, bytes, stream->file_bytes, stream->path);
}

static bool may_work_later(enum keel_status status)
{
    return status == KEEL_IO || status == KEEL_NO_SPACE;
}

/* Try again with growing pauses; the first time it is told. */
static enum keel_status write_stubbornly(struct keel_save_stream *stream, const uint8_t *data, size_t bytes)
{
    enum keel_status status = write_piece(stream, data, bytes);
    for (uint32_t i = 0; i < stream->how.retry_max && may_work_later(status); i++) {
        if (!stream->told_retry)
            keel_log(KEEL_LOG_WARN, "a save goes on trying: %s", keel_detail());
        stream->told_retry = true;
        uint32_t doublings = i < RETRY_DOUBLINGS ? i : RETRY_DOUBLINGS;
        if (!sleep_until(stream, keel_deadline_after_ns((uint64_t)RETRY_FIRST_NS << doublings)))
            return keel_save_interrupted();
        status = write_piece(stream, data, bytes);
    }
    return status;
}

static size_t piece_bytes(uint64_t cap_bytes_s)
{
    uint64_t piece = cap_bytes_s / PIECES_PER_SECOND & ~(uint64_t)(KEEL_FORMAT_BLOCK_BYTES - 1);
    if (cap_bytes_s == 0 || piece > KEEL_STREAM_BLOCK_BYTES)
        return KEEL_STREAM_BLOCK_BYTES;
    return keel_size(piece > PIECE_BYTES_MIN ? piece : PIECE_BYTES_MIN);
}

static enum keel_status write_block(struct keel_save_stream *stream, const struct keel_stream_block *block)
{
    size_t piece = piece_bytes(stream->how.cap_bytes_s);
    KEEL_ASSERT(block->used > 0 && block->used % KEEL_FORMAT_BLOCK_BYTES == 0);
    KEEL_ASSERT(stream->file_bytes % KEEL_FORMAT_BLOCK_BYTES == 0);
    for (size_t at = 0; at < block->used; at += piece) {
        size_t bytes = block->used - at < piece ? block->used - at : piece;
        if (!pay(stream, bytes))
            return keel_save_interrupted();
        KEEL_TRY(write_stubbornly(stream, block->data + at, bytes));
        stream->file_bytes += bytes;
    }
    atomic_fetch_add(&stream->progress_bytes, block->raw_bytes);
    return KEEL_OK;
}

enum { BLOCK_THERE, BLOCK_END, BLOCK_HANDED_OVER };

/* Wait for a block, the end, or to be relieved; the latter is said once. */
static enum keel_status wait_for_block(struct keel_save_stream *stream, int *out_what)
{
    keel_mutex_lock(&stream->lock);
    while (!stream->stopped && !stream->ended && !stream->handing_over && stream->filled == stream->written)
        keel_cond_wait(&stream->moved, &stream->lock, KEEL_NEVER);
    bool stopped = stream->stopped;
    *out_what = stream->handing_over               ? BLOCK_HANDED_OVER
                : stream->filled > stream->written ? BLOCK_THERE
                                                   : BLOCK_END;
    stream->handing_over = false;
    keel_mutex_unlock(&stream->lock);
    return stopped ? keel_save_interrupted() : KEEL_OK;
}

void keel_save_stream_hand_over(struct keel_save_stream *stream)
{
    keel_mutex_lock(&stream->lock);
    stream->handing_over = true;
    keel_cond_broadcast(&stream->moved);
    keel_mutex_unlock(&stream->lock);
}

enum keel_status keel_save_stream_drain(struct keel_save_stream *stream, bool *out_over)
{
    *out_over = false;
    stream->due_ns = keel_now_ns();
    for (;;) {
        int what = BLOCK_END;
        KEEL_TRY(wait_for_block(stream, &what));
        if (what == BLOCK_HANDED_OVER)
            return KEEL_OK;
        if (what == BLOCK_END)
            break;
        KEEL_TRY(write_block(stream, &stream->blocks[stream->written % KEEL_STREAM_BLOCKS]));
        keel_mutex_lock(&stream->lock);
        stream->written++;
        keel_cond_broadcast(&stream->moved);
        keel_mutex_unlock(&stream->lock);
    }
    KEEL_ASSERT(stream->file_bytes == stream->appended);
    if (keel_disk_fsync(stream->fd) != 0)
        return keel_fail_errno(errno, "%s: cannot be synced", stream->path);
    int fd = stream->fd;
    stream->fd = -1;
    if (keel_disk_close(fd) != 0)
        return keel_fail_errno(errno, "%s: cannot be closed", stream->path);
    *out_over = true;
    return KEEL_OK;
}
