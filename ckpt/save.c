/* save.c - one rank's save, from regions in memory to a synced shard file.
 *
 *   capture thread   reads chunk after chunk through the caller's callback into the arena, a ring that holds
 *                    chunks in order; waits when it is full
 *   drain threads    take chunks in order, encode and check them side by side, then append them to the
 *                    stream in order again (so the file does not depend on the number of threads); whoever
 *                    appended the last chunk appends index and footer
 *   writer thread    save_stream.c
 *
 * The first failure, or a cancel, sets `stopping` and wakes everybody; all threads then end by themselves,
 * and the file is removed by finish or cancel. So the waits between the threads need no deadline: each ends
 * by progress of another one, or by `stopping`. Callers' waits have theirs. Invariant, under the lock:
 *     tail <= placed <= taken <= captured <= chunk_count,   captured - tail chunks lie in the arena. */
#include "codec.h"
#include "format.h"
#include "save_stream.h"
#include "store.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { DRAIN_THREADS_MAX = 64, ARENA_ALIGNMENT_BYTES = 64 };

struct chunk_job {
    uint64_t raw_offset; /* within its region */
    uint64_t arena_at;
    uint32_t record, raw_bytes;
    bool released; /* its place in the arena is free again */
};

struct keel_save {
    /* Set by begin, constant afterwards. */
    struct keel_step_place place; /* owned */
    char shard_name[KEEL_SHARD_NAME_BYTES];
    char path[KEEL_PATH_BYTES];
    struct keel_format_header header;
    enum keel_codec codec;
    enum keel_status (*read)(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes, void *out);
    void *context;
    uint32_t record_count, chunk_count, drain_count;
    size_t index_bytes;
    uint8_t *index; /* owned; records are set by begin, chunk entries by whoever appends the chunk */
    struct keel_format_record *records;
    struct keel_format_chunk *chunks;
    struct keel_store *store;        /* borrowed: outlives its saves */
    struct keel_workspace workspace; /* owned; blocks of the stream, then the arena */
    uint8_t *arena;                  /* in it */
    uint64_t arena_bytes;
    struct chunk_job *jobs; /* owned; under the lock but for the constants in it */
    struct keel_thread threads[DRAIN_THREADS_MAX + 2];
    uint32_t thread_count;

    struct keel_mutex lock; /* guards all below; the stream's lock may be taken under it */
    struct keel_cond moved;
    uint32_t tail, placed, taken, captured;
    uint64_t arena_head;
    bool tail_claimed, stopping;
    enum keel_status failure; /* the first one */
    char failure_detail[KEEL_DETAIL_BYTES];
    atomic_uint running; /* threads; changed under the lock, read without */

    struct keel_save_stream stream;
    struct keel_shard_summary summary; /* by the thread that appends the footer */
};

/* ---- stopping
 * ------------------------------------------------------------------------------------------------ */

static void stop(struct keel_save *save, enum keel_status status, const char *detail)
{
    keel_mutex_lock(&save->lock);
    if (save->failure == KEEL_OK) {
        save->failure = status;
        snprintf(save->failure_detail, sizeof save->failure_detail, "%s", detail);
        if (status != KEEL_INTERRUPTED)
            keel_log(KEEL_LOG_WARN, "a save failed and goes away: %s", detail);
    }
    save->stopping = true;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
    keel_save_stream_stop(&save->stream);
}

/* End of every thread. */
static void *leave(struct keel_save *save, enum keel_status status)
{
    if (status != KEEL_OK)
        stop(save, status, keel_detail());
    keel_mutex_lock(&save->lock);
    atomic_fetch_sub(&save->running, 1);
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
    return NULL;
}

static enum keel_status interrupted(void)
{
    return keel_fail(KEEL_INTERRUPTED, "the save was stopped");
}

/* ---- capture
 * -------------------------------------------------------------------------------------------------- */

/* Where `bytes` fit behind the newest chunk, or UINT64_MAX. Caller holds the lock. */
static uint64_t arena_find(const struct keel_save *save, uint64_t bytes)
{
    if (save->tail == save->captured)
        return 0;
    uint64_t head = save->arena_head, tail = save->jobs[save->tail].arena_at;
    if (head > tail && save->arena_bytes - head >= bytes)
        return head;
    if (head > tail)
        return tail > bytes ? 0 : UINT64_MAX;
    return tail - head > bytes ? head : UINT64_MAX;
}

static enum keel_status arena_take(struct keel_save *save, struct chunk_job *job)
{
    uint64_t bytes = keel_round_up(job->raw_bytes, ARENA_ALIGNMENT_BYTES), at;
    keel_mutex_lock(&save->lock);
    while ((at = arena_find(save, bytes)) == UINT64_MAX && !save->stopping)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    if (!stopping) {
        KEEL_ASSERT(at + bytes <= save->arena_bytes);
        job->arena_at = at;
        save->arena_head = at + bytes;
    }
    keel_mutex_unlock(&save->lock);
    return stopping ? interrupted() : KEEL_OK;
}

static void arena_release(struct keel_save *save, uint32_t chunk)
{
    keel_mutex_lock(&save->lock);
    save->jobs[chunk].released = true;
    while (save->tail < save->captured && save->jobs[save->tail].released)
        save->tail++;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
}

static enum keel_status capture_all(struct keel_save *save)
{
    for (uint32_t i = 0; i < save->chunk_count; i++) {
        struct chunk_job *job = &save->jobs[i];
        KEEL_TRY(arena_take(save, job));
        KEEL_TRY(save->read(save->context, job->record, job->raw_offset, job->raw_bytes,
                            save->arena + job->arena_at));
        keel_mutex_lock(&save->lock);
        save->captured++;
        keel_cond_broadcast(&save->moved);
        keel_mutex_unlock(&save->lock);
    }
    return KEEL_OK;
}

static void *capture_main(void *argument)
{
    return leave(argument, capture_all(argument));
}

/* ---- drain
 * ------------------------------------------------------------------------------------------------------ */

/* A drain thread's own buffers, on the heap. */
struct drain {
    uint8_t *stored, *scratch;
};

/* The next captured chunk to encode; false when none will come. */
static enum keel_status take_chunk(struct keel_save *save, uint32_t *out_chunk, bool *out_more)
{
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->taken == save->captured && save->taken < save->chunk_count)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    *out_more = save->taken < save->captured;
    if (!stopping && *out_more)
        *out_chunk = save->taken++;
    keel_mutex_unlock(&save->lock);
    return stopping ? interrupted() : KEEL_OK;
}

static enum keel_status wait_turn(struct keel_save *save, uint32_t chunk)
{
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->placed != chunk)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool stopping = save->stopping;
    keel_mutex_unlock(&save->lock);
    return stopping ? interrupted() : KEEL_OK;
}

static enum keel_status drain_chunk(struct keel_save *save, struct drain *drain, uint32_t chunk)
{
    const struct chunk_job *job = &save->jobs[chunk];
    const uint8_t *raw = save->arena + job->arena_at;
    uint32_t dtype = save->records[job->record].dtype, raw_bytes = job->raw_bytes;
    struct keel_format_chunk entry = {.raw_bytes = raw_bytes, .raw_check = keel_format_check(raw, raw_bytes)};
    enum keel_codec codec;
    entry.stored_bytes = keel_codec_encode(save->codec == KEEL_CODEC_RAW ? KEEL_CODEC_RAW : KEEL_CODEC_PLANES,
                                           keel_ckpt_dtype_bytes((enum keel_ckpt_dtype)dtype), raw, NULL,
                                           raw_bytes, drain->stored, drain->scratch, &codec);
    arena_release(save, chunk);
    entry.codec = codec;
    entry.stored_check = keel_format_check(drain->stored, entry.stored_bytes);
    KEEL_TRY(wait_turn(save, chunk));
    entry.file_offset = save->stream.appended;
    save->chunks[chunk] = entry;
    KEEL_TRY(keel_save_stream_append(&save->stream, drain->stored, entry.stored_bytes, raw_bytes));
    KEEL_TRY(keel_save_stream_pad(&save->stream, 0));
    keel_mutex_lock(&save->lock);
    save->placed++;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
    return KEEL_OK;
}

/* Index and footer, by exactly one thread, after the last chunk. */
static enum keel_status append_tail(struct keel_save *save)
{
    keel_mutex_lock(&save->lock);
    bool mine = save->placed == save->chunk_count && !save->tail_claimed;
    if (mine)
        save->tail_claimed = true;
    keel_mutex_unlock(&save->lock);
    if (!mine)
        return KEEL_OK;
    struct keel_format_footer footer = {.index_offset = save->stream.appended,
                                        .index_bytes = save->index_bytes,
                                        .record_count = save->record_count,
                                        .chunk_count = save->chunk_count,
                                        .header_check = save->header.check};
    for (uint32_t i = 0; i < save->chunk_count; i++) {
        footer.raw_bytes += save->chunks[i].raw_bytes;
        footer.stored_bytes += save->chunks[i].stored_bytes;
    }
    keel_format_digest(save->index, save->index_bytes, footer.index_digest);
    footer.file_bytes =
        keel_round_up(footer.index_offset + footer.index_bytes + sizeof footer, KEEL_FORMAT_BLOCK_BYTES);
    keel_format_footer_seal(&footer);
    KEEL_TRY(keel_save_stream_append(&save->stream, save->index, save->index_bytes, 0));
    KEEL_TRY(keel_save_stream_pad(&save->stream, sizeof footer));
    KEEL_TRY(keel_save_stream_append(&save->stream, &footer, sizeof footer, 0));
    KEEL_ASSERT(save->stream.appended == footer.file_bytes);
    save->summary.record_count = footer.record_count;
    save->summary.file_bytes = footer.file_bytes;
    save->summary.raw_bytes = footer.raw_bytes;
    save->summary.stored_bytes = footer.stored_bytes;
    memcpy(save->summary.index_digest, footer.index_digest, sizeof footer.index_digest);
    keel_save_stream_end(&save->stream);
    return KEEL_OK;
}

static enum keel_status drain_all(struct keel_save *save, struct drain *drain)
{
    for (;;) {
        uint32_t chunk = 0;
        bool more;
        KEEL_TRY(take_chunk(save, &chunk, &more));
        if (!more)
            return append_tail(save);
        KEEL_TRY(drain_chunk(save, drain, chunk));
    }
}

static void *drain_main(void *argument)
{
    struct keel_save *save = argument;
    struct drain drain = {0};
    enum keel_status status = keel_alloc(KEEL_FORMAT_CHUNK_BYTES + KEEL_CODEC_SLACK_BYTES, 1, &drain.stored);
    if (status == KEEL_OK)
        status = keel_alloc(KEEL_FORMAT_CHUNK_BYTES + KEEL_CODEC_SLACK_BYTES, 1, &drain.scratch);
    if (status == KEEL_OK)
        status = drain_all(save, &drain);
    keel_free(drain.stored);
    keel_free(drain.scratch);
    return leave(save, status);
}

static void *writer_main(void *argument)
{
    struct keel_save *save = argument;
    enum keel_status status = keel_save_stream_drain(&save->stream);
    if (status == KEEL_OK && keel_disk_fsync(save->place.fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", save->place.path);
    return leave(save, status);
}

/* ---- begin
 * ------------------------------------------------------------------------------------------------------ */

static enum keel_status check_config(const struct keel_save_config *config)
{
    if (config->rank_count == 0 || config->rank_count > KEEL_SNAPSHOT_RANKS_MAX ||
        config->rank >= config->rank_count || config->read == NULL || config->codec > KEEL_CODEC_DELTA ||
        config->drain_threads > DRAIN_THREADS_MAX || config->region_count > KEEL_FORMAT_RECORDS_MAX)
        return keel_fail(KEEL_INVALID,
                         "a save needs rank < rank_count <= %d, a read function, a known codec, "
                         "at most %d drain threads and %d regions",
                         KEEL_SNAPSHOT_RANKS_MAX, DRAIN_THREADS_MAX, KEEL_FORMAT_RECORDS_MAX);
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        KEEL_TRY(keel_region_check(&config->regions[i]));
        chunks += keel_region_bytes(&config->regions[i]) / KEEL_FORMAT_CHUNK_BYTES + 1;
    }
    if (chunks > KEEL_FORMAT_CHUNKS_MAX)
        return keel_fail(KEEL_LIMIT, "a shard holds at most %d chunks; use more ranks",
                         KEEL_FORMAT_CHUNKS_MAX);
    return KEEL_OK;
}

static void fill_record(const struct keel_region *region, uint64_t first_chunk,
                        struct keel_format_record *record)
{
    size_t used = region->dims * sizeof region->shape[0];
    uint64_t raw_bytes = keel_region_bytes(region);
    memcpy(record->name, region->name, strlen(region->name)); /* the index is zeroed */
    record->dtype = (uint32_t)region->dtype;
    record->dims = region->dims;
    memcpy(record->shape, region->shape, used);
    memcpy(record->offset, region->offset, used);
    memcpy(record->extent, region->extent, used);
    record->raw_bytes = raw_bytes;
    record->first_chunk = first_chunk;
    record->chunk_bytes = KEEL_FORMAT_CHUNK_BYTES;
    record->chunk_count =
        (uint32_t)(raw_bytes / KEEL_FORMAT_CHUNK_BYTES + (raw_bytes % KEEL_FORMAT_CHUNK_BYTES != 0));
}

/* Cut the records into jobs; how large the arena must be. */
static void fill_jobs(struct keel_save *save, uint64_t wanted_arena_bytes)
{
    uint64_t all = 0, largest = 0;
    uint32_t next = 0;
    for (uint32_t r = 0; r < save->record_count; r++) {
        uint64_t left = save->records[r].raw_bytes;
        for (uint64_t at = 0; left > 0;) {
            uint64_t bytes = left < KEEL_FORMAT_CHUNK_BYTES ? left : KEEL_FORMAT_CHUNK_BYTES;
            uint64_t room = keel_round_up(bytes, ARENA_ALIGNMENT_BYTES);
            save->jobs[next++] =
                (struct chunk_job){.record = r, .raw_offset = at, .raw_bytes = (uint32_t)bytes};
            largest = room > largest ? room : largest;
            all += room;
            at += bytes;
            left -= bytes;
        }
    }
    KEEL_ASSERT(next == save->chunk_count);
    save->arena_bytes = wanted_arena_bytes == 0 || wanted_arena_bytes > all ? all : wanted_arena_bytes;
    if (save->arena_bytes < largest)
        save->arena_bytes = largest;
}

static enum keel_status plan(struct keel_save *save, const struct keel_save_config *config)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        uint64_t bytes = keel_region_bytes(&config->regions[i]);
        chunks += bytes / KEEL_FORMAT_CHUNK_BYTES + (bytes % KEEL_FORMAT_CHUNK_BYTES != 0);
    }
    save->record_count = config->region_count;
    save->chunk_count = (uint32_t)chunks;
    save->index_bytes = save->record_count * sizeof(struct keel_format_record) +
                        save->chunk_count * sizeof(struct keel_format_chunk);
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, save->index_bytes, &save->index));
    KEEL_TRY(keel_alloc(save->chunk_count, sizeof *save->jobs, &save->jobs));
    save->records = (struct keel_format_record *)(void *)save->index;
    save->chunks = (struct keel_format_chunk *)(void *)(save->records + save->record_count);
    uint64_t first_chunk = 0;
    for (uint32_t i = 0; i < config->region_count; i++) {
        fill_record(&config->regions[i], first_chunk, &save->records[i]);
        first_chunk += save->records[i].chunk_count;
    }
    fill_jobs(save, config->arena_bytes);
    KEEL_TRY(keel_store_take_workspace(save->store, KEEL_STREAM_MEMORY_BYTES + save->arena_bytes,
                                       &save->workspace));
    save->arena = save->workspace.data + KEEL_STREAM_MEMORY_BYTES;
    return KEEL_OK;
}

/* The shard's file, new; and an attempt that was committed takes no more files. */
static enum keel_status create_file(struct keel_save *save, int *out_fd)
{
    KEEL_TRY(keel_step_uncommitted(&save->place));
    int fd = keel_disk_open(save->place.fd, save->shard_name,
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return keel_fail(KEEL_INVALID, "%s: was used before; save under a new attempt number", save->path);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be created", save->path);
    *out_fd = fd;
    return KEEL_OK;
}

/* The directory stays, as other ranks may be about to write there; retention removes it. */
static void remove_file(struct keel_save *save)
{
    keel_disk_unlink(save->place.fd, save->shard_name, 0);
}

static void destroy(struct keel_save *save)
{
    if (save->workspace.memory != NULL)
        keel_store_give_workspace(save->store, &save->workspace);
    keel_free(save->jobs);
    keel_free(save->index);
    keel_cond_fini(&save->moved);
    keel_mutex_fini(&save->lock);
    if (save->place.fd >= 0)
        keel_step_close(&save->place);
    keel_free(save);
}

static enum keel_status start_thread(struct keel_save *save, const char *name, void *(*entry)(void *))
{
    atomic_fetch_add(&save->running, 1);
    enum keel_status status = keel_thread_create(&save->threads[save->thread_count], name, entry, save);
    if (status == KEEL_OK)
        save->thread_count++;
    else
        atomic_fetch_sub(&save->running, 1);
    return status;
}

static void join_threads(struct keel_save *save)
{
    for (uint32_t i = 0; i < save->thread_count; i++)
        keel_thread_join(&save->threads[i]);
    save->thread_count = 0;
}

static enum keel_status start_threads(struct keel_save *save)
{
    enum keel_status status = start_thread(save, "ckpt-write", writer_main);
    for (uint32_t i = 0; i < save->drain_count && status == KEEL_OK; i++)
        status = start_thread(save, "ckpt-drain", drain_main);
    if (status == KEEL_OK)
        status = start_thread(save, "ckpt-capture", capture_main);
    if (status != KEEL_OK) {
        stop(save, status, keel_detail());
        join_threads(save);
    }
    return status;
}

/* The header is the stream's first block, before any thread runs. */
static enum keel_status open_stream(struct keel_save *save, const struct keel_save_config *config)
{
    int fd = -1;
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    KEEL_TRY(create_file(save, &fd));
    keel_save_stream_init(&save->stream, fd, save->path, config->bandwidth_bytes_s, save->workspace.data);
    keel_format_header_seal(&save->header, block);
    memcpy(&save->header, block, sizeof save->header);
    return keel_save_stream_append(&save->stream, block, sizeof block, 0);
}

enum keel_status keel_save_begin(struct keel_store *store, const struct keel_save_config *config,
                                 struct keel_save **out)
{
    KEEL_TRY(keel_store_writable(store));
    KEEL_TRY(check_config(config));
    struct keel_save *save;
    KEEL_TRY(keel_alloc(1, sizeof *save, &save));
    keel_mutex_init(&save->lock);
    keel_cond_init(&save->moved);
    save->place.fd = -1;
    save->store = store;
    save->codec = config->codec == KEEL_CODEC_RAW ? KEEL_CODEC_RAW : KEEL_CODEC_PLANES;
    save->read = config->read;
    save->context = config->context;
    save->drain_count = config->drain_threads > 0 ? config->drain_threads : 1;
    save->summary.rank = config->rank;
    save->header = (struct keel_format_header){.step = config->step,
                                               .attempt = config->attempt,
                                               .rank = config->rank,
                                               .rank_count = config->rank_count};
    memcpy(save->header.run, store->run, strlen(store->run)); /* zeros behind it */
    keel_shard_name(config->rank, save->shard_name);
    enum keel_status status = plan(save, config);
    if (status == KEEL_OK)
        status = keel_step_open(store, config->step, config->attempt, true, &save->place);
    if (status == KEEL_OK)
        status = keel_path_join(save->path, save->place.path, save->shard_name);
    if (status == KEEL_OK)
        status = open_stream(save, config);
    if (status != KEEL_OK) {
        destroy(save);
        return status;
    }
    status = start_threads(save);
    if (status != KEEL_OK) {
        keel_save_stream_fini(&save->stream);
        remove_file(save);
        destroy(save);
        return status;
    }
    *out = save;
    return KEEL_OK;
}

/* ---- wait, finish, cancel
 * --------------------------------------------------------------------------------------- */

static enum keel_status failure_of(const struct keel_save *save)
{
    if (save->failure != KEEL_OK)
        keel_detail_set(save->failure_detail);
    return save->failure;
}

enum keel_status keel_save_wait_captured(struct keel_save *save, uint64_t deadline_ns)
{
    bool in_time = true;
    keel_mutex_lock(&save->lock);
    while (!save->stopping && save->captured < save->chunk_count && in_time)
        in_time = keel_cond_wait(&save->moved, &save->lock, deadline_ns);
    enum keel_status status = failure_of(save);
    if (status == KEEL_OK && save->captured < save->chunk_count)
        status = keel_fail(KEEL_TIMEOUT, "%s: %u of %u chunks are captured", save->path, save->captured,
                           save->chunk_count);
    keel_mutex_unlock(&save->lock);
    return status;
}

bool keel_save_done(const struct keel_save *save)
{
    return atomic_load(&save->running) == 0;
}

uint64_t keel_save_progress_bytes(const struct keel_save *save)
{
    return atomic_load(&save->stream.progress_bytes);
}

/* All threads have left, or will at once. */
static enum keel_status end(struct keel_save *save)
{
    join_threads(save);
    keel_save_stream_fini(&save->stream);
    enum keel_status status = failure_of(save);
    if (status != KEEL_OK)
        remove_file(save);
    return status;
}

enum keel_status keel_save_finish(struct keel_save *save, uint64_t deadline_ns,
                                  struct keel_shard_summary *out)
{
    bool in_time = true;
    keel_mutex_lock(&save->lock);
    while (atomic_load(&save->running) > 0 && in_time)
        in_time = keel_cond_wait(&save->moved, &save->lock, deadline_ns);
    bool running = atomic_load(&save->running) > 0;
    keel_mutex_unlock(&save->lock);
    if (running)
        return keel_fail(KEEL_TIMEOUT, "%s: is still being written", save->path);
    enum keel_status status = end(save);
    if (status == KEEL_OK)
        *out = save->summary;
    destroy(save);
    return status;
}

void keel_save_cancel(struct keel_save *save)
{
    if (save == NULL)
        return;
    stop(save, KEEL_INTERRUPTED, "the save was cancelled");
    (void)end(save);
    destroy(save);
}
