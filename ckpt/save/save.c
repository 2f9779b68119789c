/* save.c - the life of one rank's save, from regions in memory to a synced shard file.
 *
 *   capture threads  read chunk after chunk through the caller's callback into the arena
 *   drain threads    take chunks in order, encode and check them, append them to the stream in order again
 *   writer thread    writes the stream
 *
 * The first failure, or a cancel, sets `stopping` and wakes everybody; all threads then end by themselves,
 * and the file is removed by finish or cancel. So the waits between the threads need no deadline: each ends
 * by progress of another one, or by `stopping`. Callers' waits have theirs. */
#include "save.h"
#include "chunk_seal.h"
#include "merged_index.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

/* ---- stopping ------------------------------------------------------------------------------------------ */

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

/* ---- threads ------------------------------------------------------------------------------------------- */

/* From here on the thread touches the caller's regions no more. */
static void end_capture(struct keel_save *save)
{
    keel_mutex_lock(&save->lock);
    save->capturing--;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
}

static void *capture_main(void *argument)
{
    enum keel_status status = keel_save_capture(argument);
    end_capture(argument);
    return leave(argument, status);
}

static void *drain_main(void *argument)
{
    return leave(argument, keel_save_drain(argument, false));
}

static void *background_drain_main(void *argument)
{
    keel_thread_to_background();
    return leave(argument, keel_save_drain(argument, true));
}

static enum keel_status write_stream(struct keel_save *save, bool *out_over)
{
    enum keel_status status = keel_save_stream_drain(&save->stream, out_over);
    if (status == KEEL_OK && *out_over && keel_disk_fsync(save->place.fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", save->place.path);
    return status;
}

static void *writer_main(void *argument)
{
    struct keel_save *save = argument;
    keel_mutex_lock(&save->lock);
    while (save->hurried && !save->writer_left)
        keel_cond_wait(&save->moved, &save->lock, KEEL_NEVER);
    bool over = save->writer_over;
    keel_mutex_unlock(&save->lock);
    return leave(save, over ? KEEL_OK : write_stream(save, &over));
}

static void *background_writer_main(void *argument)
{
    struct keel_save *save = argument;
    keel_thread_to_background();
    bool over;
    enum keel_status status = write_stream(save, &over);
    keel_mutex_lock(&save->lock);
    save->writer_left = true;
    save->writer_over = over || status != KEEL_OK;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
    return leave(save, status);
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
    bool behind = save->background;
    enum keel_status status = start_thread(save, "ckpt-write", behind ? background_writer_main : writer_main);
    for (uint32_t i = 0; i < save->drain_count && status == KEEL_OK; i++)
        status = start_thread(save, "ckpt-drain", behind ? background_drain_main : drain_main);
    for (uint32_t i = 0; i < save->capture_count && status == KEEL_OK; i++) {
        keel_mutex_lock(&save->lock);
        save->capturing++;
        keel_mutex_unlock(&save->lock);
        status =
            start_thread(save, "ckpt-capture", capture_main); /* when it fails nobody waits for captures */
    }
    if (status != KEEL_OK) {
        stop(save, status, keel_detail());
        join_threads(save);
    }
    return status;
}

/* ---- begin --------------------------------------------------------------------------------------------- */

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

/* The attempt has failed, for all its ranks: with its last file the directory goes. */
static void remove_file(struct keel_save *save)
{
    keel_disk_unlink(save->place.fd, save->shard_name, 0);
    keel_disk_unlink(save->store->run_fd, save->place.name, AT_REMOVEDIR);
}

static void destroy(struct keel_save *save)
{
    if (save->workspace.memory != NULL)
        keel_store_give_workspace(save->store, &save->workspace);
    keel_base_return(save->store, save->base);
    keel_free(save->notes);
    keel_free(save->same_as);
    keel_free(save->jobs);
    keel_free(save->index);
    keel_cond_fini(&save->moved);
    keel_mutex_fini(&save->lock);
    if (save->place.fd >= 0)
        keel_step_close(&save->place);
    keel_store_count_saves(save->store, false);
    save->handle = 0;
    keel_free(save);
}

/* The header is the stream's first block, before any thread runs. */
static enum keel_status open_stream(struct keel_save *save, const struct keel_save_config *config)
{
    int fd = -1;
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    KEEL_TRY(create_file(save, &fd));
    struct keel_stream_config how = {.cap_bytes_s = config->bandwidth_bytes_s,
                                     .retry_max = config->retry_max};
    keel_save_stream_init(&save->stream, fd, save->path, &how, save->workspace.data);
    if (save->store->key != NULL)
        keel_shard_begin_seal(save->store->key, &save->header);
    keel_format_header_seal(&save->header, block);
    memcpy(&save->header, block, sizeof save->header);
    return keel_save_stream_append(&save->stream, block, sizeof block, 0);
}

/* A save that is planned, and has its memory; nothing of it is in the store yet. */
static enum keel_status make_save(struct keel_store *store, const struct keel_save_config *config,
                                  struct keel_save **out)
{
    KEEL_ASSERT(config != NULL && out != NULL && (config->regions != NULL || config->region_count == 0));
    KEEL_TRY(keel_store_writable(store));
    KEEL_TRY(keel_save_check_config(config));
    struct keel_save *save;
    KEEL_TRY(keel_alloc(1, sizeof *save, &save));
    keel_mutex_init(&save->lock);
    keel_cond_init(&save->moved);
    save->place.fd = -1;
    save->store = store;
    save->handle = KEEL_HANDLE_OPEN;
    keel_store_count_saves(store, true);
    save->codec = config->codec;
    save->background = config->background;
    save->read = config->read;
    save->context = config->context;
    save->drain_count = config->drain_threads > 0 ? config->drain_threads : 1;
    save->capture_count = config->capture_threads > 0 ? config->capture_threads : 1;
    save->summary.rank = config->rank;
    save->summary.state_digest = config->state_digest;
    save->header = (struct keel_format_header){.step = config->step,
                                               .attempt = config->attempt,
                                               .rank = config->rank,
                                               .rank_count = config->rank_count};
    memcpy(save->header.run, store->run, strlen(store->run)); /* zeros behind it */
    for (uint32_t i = 0; i < config->region_count; i++) {
        const bool small = keel_region_chunk_bytes(&config->regions[i]) < KEEL_FORMAT_CHUNK_BYTES_MIN_1;
        const uint32_t version = small ? KEEL_FORMAT_VERSION_WIDE : keel_region_version(&config->regions[i]);
        save->header.version = version > save->header.version ? version : save->header.version;
    }
    keel_shard_name(config->rank, save->shard_name);
    enum keel_status status = keel_save_plan(save, config);
    if (status != KEEL_OK) {
        destroy(save);
        return status;
    }
    *out = save;
    return KEEL_OK;
}

enum keel_status keel_save_prepare(struct keel_store *store, const struct keel_save_config *config)
{
    struct keel_save *save;
    KEEL_TRY(make_save(store, config, &save));
    volatile uint8_t *memory = save->workspace.data;
    for (size_t at = 0; at < save->workspace.bytes; at += KEEL_PAGE_BYTES)
        memory[at] = 0;
    destroy(save); /* the store keeps the memory */
    return KEEL_OK;
}

enum keel_status keel_save_begin(struct keel_store *store, const struct keel_save_config *config,
                                 struct keel_save **out)
{
    struct keel_save *save;
    KEEL_TRY(make_save(store, config, &save));
    enum keel_status status = keel_step_open(store, config->step, config->attempt, true, &save->place);
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

/* ---- wait, finish, cancel ------------------------------------------------------------------------------ */

static enum keel_status failure_of(const struct keel_save *save)
{
    if (save->failure != KEEL_OK)
        keel_detail_set(save->failure_detail);
    return save->failure;
}

enum keel_status keel_save_wait_captured(struct keel_save *save, uint64_t deadline_ns)
{
    bool in_time = true;
    KEEL_ASSERT(save != NULL && save->handle == KEEL_HANDLE_OPEN);
    keel_mutex_lock(&save->lock);
    while (save->captured < save->chunk_count && (!save->stopping || save->capturing > 0) && in_time)
        in_time = keel_cond_wait(&save->moved, &save->lock, deadline_ns);
    enum keel_status status = failure_of(save);
    if (save->captured < save->chunk_count && (!save->stopping || save->capturing > 0))
        status = keel_fail(KEEL_TIMEOUT, "%s: %u of %u chunks are captured", save->path, save->captured,
                           save->chunk_count);
    keel_mutex_unlock(&save->lock);
    return status;
}

bool keel_save_done(const struct keel_save *save)
{
    KEEL_ASSERT(save != NULL && save->handle == KEEL_HANDLE_OPEN);
    return atomic_load(&save->running) == 0;
}

/* Whoever was put into the idle class may not leave it again without a privilege: so others take over. */
void keel_save_hurry(struct keel_save *save)
{
    KEEL_ASSERT(save != NULL && save->handle == KEEL_HANDLE_OPEN);
    keel_mutex_lock(&save->lock);
    bool needed = save->background && !save->hurried && !save->stopping && !save->writer_left;
    save->hurried = save->hurried || needed;
    keel_cond_broadcast(&save->moved);
    keel_mutex_unlock(&save->lock);
    if (!needed)
        return;
    enum keel_status status = start_thread(save, "ckpt-write", writer_main);
    for (uint32_t i = 0; i < save->drain_count && status == KEEL_OK; i++)
        status = start_thread(save, "ckpt-drain", drain_main);
    if (status == KEEL_OK)
        keel_save_stream_hand_over(&save->stream);
    else
        stop(save, status, keel_detail());
}

uint64_t keel_save_progress_bytes(const struct keel_save *save)
{
    KEEL_ASSERT(save != NULL && save->handle == KEEL_HANDLE_OPEN);
    return atomic_load(&save->stream.progress_bytes);
}

/* The state that was captured is what deltas of the next save may refer to. Without memory for it: none. */
static void leave_base(struct keel_save *save)
{
    struct keel_base *heir;
    if (save->notes == NULL || keel_alloc(1, sizeof *heir, &heir) != KEEL_OK)
        return;
    *heir = (struct keel_base){.step = save->header.step,
                               .attempt = save->header.attempt,
                               .rank = save->header.rank,
                               .generation = save->any_delta ? save->base->generation + 1 : 0,
                               .record_count = save->record_count,
                               .index = save->index,
                               .notes = save->notes,
                               .workspace = save->workspace};
    save->index = NULL;
    save->notes = NULL;
    save->workspace = (struct keel_workspace){0};
    keel_base_hold(save->store, heir);
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
    KEEL_ASSERT(save != NULL && save->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(out != NULL);
    keel_mutex_lock(&save->lock);
    while (atomic_load(&save->running) > 0 && in_time)
        in_time = keel_cond_wait(&save->moved, &save->lock, deadline_ns);
    bool running = atomic_load(&save->running) > 0;
    keel_mutex_unlock(&save->lock);
    if (running)
        return keel_fail(KEEL_TIMEOUT, "%s: is still being written", save->path);
    enum keel_status status = end(save);
    if (status == KEEL_OK) {
        KEEL_ASSERT(save->placed == save->chunk_count && save->captured == save->chunk_count);
        KEEL_ASSERT(save->summary.file_bytes == save->stream.file_bytes);
        KEEL_ASSERT(save->summary.record_count == save->record_count);
        *out = save->summary;
        leave_base(save);
    }
    destroy(save);
    return status;
}

enum keel_status keel_save_discard(struct keel_store *store, uint64_t step, uint64_t attempt, uint32_t rank)
{
    struct keel_step_place place;
    char name[KEEL_SHARD_NAME_BYTES];
    KEEL_TRY(keel_store_writable(store));
    if (keel_store_has_committed(store, step, attempt))
        return keel_fail(KEEL_INVALID, "%s: step %llu, attempt %llu is committed: its shards stay",
                         store->path, (unsigned long long)step, (unsigned long long)attempt);
    enum keel_status status = keel_step_open(store, step, attempt, false, &place);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? KEEL_OK : status;
    keel_shard_name(rank, name);
    status = keel_step_uncommitted(&place);
    if (status == KEEL_OK && keel_disk_unlink(place.fd, name, 0) != 0 && errno != ENOENT)
        status = keel_fail_errno(errno, "%s/%s: cannot be removed", place.path, name);
    if (status == KEEL_OK) /* of a commit that failed; it follows from shards that go now */
        keel_disk_unlink(place.fd, KEEL_MERGED_NAME, 0);
    if (status == KEEL_OK) /* others' files may be there yet */
        keel_disk_unlink(store->run_fd, place.name, AT_REMOVEDIR);
    keel_step_close(&place);
    return status;
}

void keel_save_cancel(struct keel_save *save)
{
    if (save == NULL)
        return;
    KEEL_ASSERT(save->handle == KEEL_HANDLE_OPEN);
    stop(save, KEEL_INTERRUPTED, "the save was cancelled");
    (void)end(save);
    destroy(save);
}
