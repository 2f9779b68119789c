/* tier_directory.c - a store's directories as a tier: local disk, or a directory that all share.
 *
 * What is written goes to a temporary name of its own, is synced, read back from the medium where the file
 * system lets us (O_DIRECT), compared, renamed, and the directories are synced. A crash leaves a temporary
 * file that no reader looks at; it goes with its directory, or with the next repair.
 *
 * Large pieces of whole pages go past the page cache both ways: two thirds of the processor time of a copy
 * beside training was the kernel's, from memory to memory. */
#include "store.h"
#include "tier.h"
#include "tier_digest.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { DIRECT_BYTES_MIN = 256 << 10 };

struct directory_tier {
    struct keel_tier tier;
    struct keel_store *store; /* borrowed */
};

struct directory_source {
    struct keel_tier_source source;
    int fd;
    bool direct; /* past the page cache */
    char path[KEEL_PATH_BYTES];
};

struct directory_sink {
    struct keel_tier_sink sink;
    struct keel_step_place place;
    int fd;
    bool direct;
    char name[KEEL_OBJECT_NAME_BYTES];
    char temporary[KEEL_OBJECT_NAME_BYTES + 48];
    char path[KEEL_PATH_BYTES]; /* of the temporary file */
};

static struct keel_store *store_of(struct keel_tier *tier)
{
    return ((struct directory_tier *)tier)->store;
}

/* Past the page cache from here on, or not: *direct, of a descriptor, follows what can be had. */
static bool go_direct(int fd, bool *direct, bool wanted)
{
    if (*direct != wanted)
        *direct = keel_disk_set_direct(fd, wanted);
    return *direct;
}

static bool is_large(const void *memory, size_t bytes, uint64_t offset)
{
    return bytes >= DIRECT_BYTES_MIN && ((uintptr_t)memory | bytes | offset) % KEEL_PAGE_BYTES == 0;
}

/* ---- source -------------------------------------------------------------------------------------------- */

static enum keel_status open_file(const struct keel_step_place *place, struct directory_source *file)
{
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_file_name(&file->source.info.object, name);
    KEEL_TRY(keel_path_join(file->path, place->path, name));
    return keel_step_open_file(place, name, &file->fd, &file->source.info.bytes);
}

/* A manifest is there when it is whole; anything else when its snapshot may be: a shard that is still being
 * written has no footer. */
static enum keel_status directory_open(struct keel_tier_source *source)
{
    struct keel_step_place place;
    const struct keel_object *object = &source->info.object;
    KEEL_TRY(keel_step_open(store_of(source->tier), object->step, object->attempt, false, &place));
    enum keel_status status = open_file(&place, (struct directory_source *)source);
    keel_step_close(&place);
    return status;
}

static enum keel_status directory_read(struct keel_tier_source *source, uint64_t offset, void *out,
                                       size_t bytes)
{
    struct directory_source *file = (struct directory_source *)source;
    if (go_direct(file->fd, &file->direct, is_large(out, bytes, offset)) &&
        keel_disk_pread(file->fd, out, bytes, offset) == (ssize_t)bytes)
        return KEEL_OK;
    (void)go_direct(file->fd, &file->direct, false); /* some file systems take the flag and refuse the call */
    return keel_pread_all(file->fd, out, bytes, offset, file->path);
}

static void directory_close(struct keel_tier_source *source)
{
    keel_disk_close(((struct directory_source *)source)->fd);
}

/* ---- listing ------------------------------------------------------------------------------------------- */

struct listing {
    struct keel_tier *tier;
    enum keel_status (*visit)(void *context, const struct keel_object_info *info);
    void *context;
    struct keel_step_place place;
    uint64_t step, attempt;
};

static enum keel_status see_file(void *context, const char *name)
{
    struct listing *listing = context;
    struct keel_object object;
    if (!keel_object_file_parse(name, &object))
        return KEEL_OK;
    object.step = listing->step;
    object.attempt = listing->attempt;
    struct directory_source file = {.source = {.tier = listing->tier, .info = {.object = object}}};
    enum keel_status status = open_file(&listing->place, &file);
    if (status != KEEL_OK) /* gone meanwhile, or nothing that a store holds */
        return keel_is_shortage(status) ? status : KEEL_OK;
    status = keel_source_quick_check(&file.source);
    keel_disk_close(file.fd);
    if (status != KEEL_OK)
        return keel_is_shortage(status) ? status : KEEL_OK;
    return listing->visit(listing->context, &file.source.info);
}

static enum keel_status see_step(void *context, const char *name)
{
    struct listing *listing = context;
    if (!keel_step_name_parse(name, &listing->step, &listing->attempt))
        return KEEL_OK;
    enum keel_status status =
        keel_step_open(store_of(listing->tier), listing->step, listing->attempt, false, &listing->place);
    if (status != KEEL_OK) /* removed meanwhile, or no directory */
        return keel_is_shortage(status) ? status : KEEL_OK;
    status = keel_dir_list(listing->place.path, see_file, listing);
    keel_step_close(&listing->place);
    return status == KEEL_NOT_FOUND ? KEEL_OK : status;
}

static enum keel_status
directory_list(struct keel_tier *tier,
               enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct listing listing = {.tier = tier, .visit = visit, .context = context};
    return keel_dir_list(store_of(tier)->path, see_step, &listing);
}

/* ---- sink ---------------------------------------------------------------------------------------------- */

/* A name that no other process and no other sink of ours uses. */
static enum keel_status open_temporary(struct directory_sink *sink)
{
    static atomic_uint serial;
    snprintf(sink->temporary, sizeof sink->temporary, "%s.%ld.%u.tmp", sink->name, (long)getpid(),
             atomic_fetch_add(&serial, 1));
    KEEL_TRY(keel_path_join(sink->path, sink->place.path, sink->temporary));
    keel_disk_unlink(sink->place.fd, sink->temporary, 0); /* left by an earlier process of the same number */
    sink->fd = keel_disk_open(sink->place.fd, sink->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return sink->fd >= 0 ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be created", sink->path);
}

static enum keel_status directory_create(struct keel_tier_sink *sink)
{
    struct directory_sink *file = (struct directory_sink *)sink;
    const struct keel_object *object = &sink->info.object;
    KEEL_TRY(keel_store_writable(store_of(sink->tier)));
    keel_object_file_name(object, file->name);
    KEEL_TRY(keel_step_open(store_of(sink->tier), object->step, object->attempt, true, &file->place));
    enum keel_status status = open_temporary(file);
    if (status != KEEL_OK)
        keel_step_close(&file->place);
    return status;
}

static enum keel_status directory_write(struct keel_tier_sink *sink, const void *data, size_t bytes)
{
    struct directory_sink *file = (struct directory_sink *)sink;
    const uint64_t offset = sink->written_bytes;
    if (go_direct(file->fd, &file->direct, is_large(data, bytes, offset)) &&
        keel_disk_pwrite(file->fd, data, bytes, offset) == (ssize_t)bytes)
        return KEEL_OK;
    (void)go_direct(file->fd, &file->direct, false);
    return keel_pwrite_all(file->fd, data, bytes, offset, file->path);
}

static void close_sink(struct directory_sink *sink)
{
    if (sink->fd >= 0)
        keel_disk_close(sink->fd);
    keel_step_close(&sink->place);
}

static void directory_abort(struct keel_tier_sink *sink)
{
    struct directory_sink *file = (struct directory_sink *)sink;
    keel_disk_unlink(file->place.fd, file->temporary, 0);
    close_sink(file);
}

/* Read from the medium, not from the page cache, where that can be. Whole blocks into aligned memory; the
 * last one comes short. */
static enum keel_status digest_file(const struct directory_sink *sink, uint8_t *piece,
                                    struct keel_digest_stream *digest)
{
    bool direct = keel_disk_set_direct(sink->fd, true);
    for (uint64_t offset = 0; offset < sink->sink.info.bytes;) {
        ssize_t got = keel_disk_pread(sink->fd, piece, KEEL_TIER_PIECE_BYTES, offset);
        if (got < 0 && errno == EINVAL && direct) { /* taken, but not for this: then through the cache */
            direct = keel_disk_set_direct(sink->fd, false);
            continue;
        }
        if (got < 0)
            return keel_fail_errno(errno, "%s: cannot be read back", sink->path);
        uint64_t left = sink->sink.info.bytes - offset;
        if (got == 0 || (uint64_t)got > left)
            return keel_fail(KEEL_CORRUPT, "%s: has another size than was written", sink->path);
        keel_digest_add(digest, piece, (size_t)got);
        offset += (uint64_t)got;
    }
    return KEEL_OK;
}

static enum keel_status read_back(const struct directory_sink *sink, const uint8_t *wanted)
{
    struct keel_digest_stream digest;
    uint8_t found[KEEL_DIGEST_BYTES], *piece;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, KEEL_TIER_PIECE_BYTES, &piece));
    keel_digest_begin(&digest);
    enum keel_status status = digest_file(sink, piece, &digest);
    keel_free(piece);
    if (status != KEEL_OK)
        return status;
    keel_digest_end(&digest, found);
    if (memcmp(found, wanted, sizeof found) != 0)
        return keel_fail(KEEL_CORRUPT, "%s: what was read back is not what was written; look after this disk",
                         sink->path);
    return KEEL_OK;
}

/* The file's name in its directory, and the directory's in the run's. */
static enum keel_status publish(const struct keel_store *store, const struct directory_sink *sink)
{
    if (keel_disk_rename(sink->place.fd, sink->temporary, sink->place.fd, sink->name) != 0) {
        enum keel_status status = keel_fail_errno(errno, "%s: cannot be renamed", sink->path);
        keel_disk_unlink(sink->place.fd, sink->temporary, 0);
        return status;
    }
    if (keel_disk_fsync(sink->place.fd) != 0 || keel_disk_fsync(store->run_fd) != 0)
        return keel_fail_errno(errno, "%s: cannot be synced", sink->place.path);
    return KEEL_OK;
}

static enum keel_status directory_commit(struct keel_tier_sink *sink,
                                         const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES])
{
    struct directory_sink *file = (struct directory_sink *)sink;
    enum keel_status status = KEEL_OK;
    if (keel_disk_fsync(file->fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", file->path);
    if (status == KEEL_OK)
        status = read_back(file, digest);
    if (keel_disk_close(file->fd) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be closed", file->path);
    file->fd = -1;
    if (status != KEEL_OK) {
        directory_abort(sink);
        return status;
    }
    status = publish(store_of(sink->tier), file);
    close_sink(file);
    return status;
}

/* ---- the tier ----------------------------------------------------------------------------------------- */

static enum keel_status directory_remove(struct keel_tier *tier, const struct keel_object *object)
{
    struct keel_step_place place;
    char name[KEEL_OBJECT_NAME_BYTES];
    KEEL_TRY(keel_store_writable(store_of(tier)));
    enum keel_status status = keel_step_open(store_of(tier), object->step, object->attempt, false, &place);
    if (status != KEEL_OK)
        return status == KEEL_NOT_FOUND ? KEEL_OK : status;
    keel_object_file_name(object, name);
    if (keel_disk_unlink(place.fd, name, 0) != 0 && errno != ENOENT)
        status = keel_fail_errno(errno, "%s/%s: cannot be removed", place.path, name);
    if (status == KEEL_OK && keel_disk_fsync(place.fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", place.path);
    keel_step_close(&place);
    return status;
}

static void directory_end(struct keel_tier *tier)
{
    keel_free(tier);
}

static const struct keel_tier_ops directory_ops = {.source_bytes = sizeof(struct directory_source),
                                                   .sink_bytes = sizeof(struct directory_sink),
                                                   .list = directory_list,
                                                   .open = directory_open,
                                                   .read = directory_read,
                                                   .close = directory_close,
                                                   .create = directory_create,
                                                   .write = directory_write,
                                                   .commit = directory_commit,
                                                   .abort = directory_abort,
                                                   .remove = directory_remove,
                                                   .end = directory_end};

enum keel_status keel_tier_directory_open(struct keel_store *store, enum keel_tier_latency latency,
                                          const char *name, struct keel_tier **out)
{
    struct directory_tier *directory;
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(out != NULL);
    KEEL_TRY(keel_alloc(1, sizeof *directory, &directory));
    enum keel_status status = keel_tier_init(&directory->tier, &directory_ops, latency, store->run, name);
    if (status != KEEL_OK) {
        keel_free(directory);
        return status;
    }
    directory->store = store;
    *out = &directory->tier;
    return KEEL_OK;
}
