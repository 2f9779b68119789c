/* store.c - the directories of a store: opening it, naming and opening generations.
 * What is in the directories is the business of save.c, commit.c and snapshot.c. */
#include "delta_base.h"
#include "format.h"
#include "generation_index.h"
#include "merged_index.h"
#include <errno.h>
#include <fcntl.h>
#include <keel/disk.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the store ----------------------------------------------------------------------------------------- */

struct run_search {
    const char *root;
    char found[KEEL_RUN_NAME_BYTES]; /* a run, or an empty directory where there is none */
    uint32_t count, empty_count;
};

struct contents {
    bool steps, others;
};

static enum keel_status see_entry(void *context, const char *name)
{
    struct contents *contents = context;
    uint64_t step, attempt;
    bool is_step = keel_step_name_parse(name, &step, &attempt);
    contents->steps = contents->steps || is_step;
    contents->others = contents->others || !is_step;
    return KEEL_OK;
}

/* A run's directory holds snapshots, or nothing yet: an empty one may be a run where no other is. One that
 * cannot be listed may be one: opening tells. */
static enum keel_status see_run(void *context, const char *name)
{
    struct run_search *search = context;
    struct contents contents = {0};
    char path[KEEL_PATH_BYTES];
    struct stat info;
    if (!keel_run_name_valid(name))
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, search->root, name));
    if (keel_disk_stat(AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISDIR(info.st_mode))
        return KEEL_OK;
    enum keel_status status = keel_dir_list(path, see_entry, &contents);
    if (keel_is_shortage(status) || (contents.others && !contents.steps))
        return status;
    const bool empty = status == KEEL_OK && !contents.steps;
    search->count += !empty;
    search->empty_count += empty;
    if (!empty || search->count == 0)
        snprintf(search->found, sizeof search->found, "%s", name);
    return KEEL_OK;
}

static enum keel_status only_run(const char *root, char out[KEEL_RUN_NAME_BYTES])
{
    struct run_search search = {.root = root};
    KEEL_TRY(keel_dir_list(root, see_run, &search));
    if (search.count == 0 && search.empty_count > 1)
        return keel_fail(KEEL_INVALID,
                         "%s: holds %u empty directories, and no snapshot; name the run that is meant", root,
                         search.empty_count);
    if (search.count == 0 && search.empty_count == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no run", root);
    if (search.count > 1)
        return keel_fail(KEEL_INVALID, "%s: holds %u runs (one is %s); name the one that is meant", root,
                         search.count, search.found);
    memcpy(out, search.found, KEEL_RUN_NAME_BYTES);
    return KEEL_OK;
}

/* What one may not read, or what lies where nothing can be made, was not made by us. */
static bool is_foreign(int error)
{
    return error == EACCES || error == EINVAL || error == EROFS || error == EOPNOTSUPP;
}

static enum keel_status sync_parent(const char *path, bool was_there)
{
    char parent[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_parent(parent, path));
    int fd = keel_disk_open(AT_FDCWD, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int error = fd < 0 || keel_disk_fsync(fd) != 0 ? errno : 0;
    if (fd >= 0)
        keel_disk_close(fd);
    if (error == 0 || (was_there && is_foreign(error)))
        return KEEL_OK;
    return keel_fail_errno(error, "%s: cannot be synced", parent);
}

/* Make the root and its parents, each durable before what lies in it: a committed snapshot must not go with
 * a directory above it. One that is there may be left by a process that was killed before it synced. */
static enum keel_status make_root(const char *root)
{
    char prefix[KEEL_PATH_BYTES];
    size_t length = strlen(root);
    if (length >= sizeof prefix)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", root, KEEL_PATH_BYTES);
    for (size_t i = 1; i <= length; i++) {
        if ((i < length && root[i] != '/') || root[i - 1] == '/')
            continue;
        memcpy(prefix, root, i);
        prefix[i] = '\0';
        bool was_there = keel_path_exists(prefix);
        if (!was_there)
            KEEL_TRY(keel_mkdir_all(prefix));
        KEEL_TRY(sync_parent(prefix, was_there));
    }
    return KEEL_OK;
}

/* The root may be reached through a link, that is its owner's choice; the run may not be one. */
static enum keel_status open_run(const char *root, const char *path, const char *run, bool create,
                                 int *out_fd)
{
    if (create)
        KEEL_TRY(make_root(root));
    int root_fd = keel_disk_open(AT_FDCWD, root, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (root_fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened", root);
    if (create && keel_disk_mkdir(root_fd, run, 0777) != 0 && errno != EEXIST) {
        int error = errno;
        keel_disk_close(root_fd);
        return keel_fail_errno(error, "%s: cannot be made", path);
    }
    int fd = keel_disk_open(root_fd, run, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    int error = errno;
    if (create && keel_disk_fsync(root_fd) != 0 && fd >= 0) {
        error = errno;
        keel_disk_close(fd);
        fd = -1;
    }
    keel_disk_close(root_fd);
    if (fd < 0)
        return keel_fail_errno(error, "%s: cannot be opened as a run's directory", path);
    *out_fd = fd;
    return KEEL_OK;
}

enum keel_status keel_store_open(const struct keel_store_config *config, struct keel_store **out)
{
    char run[KEEL_RUN_NAME_BYTES] = "", path[KEEL_PATH_BYTES]; /* NULs to its end: it goes into headers */
    KEEL_ASSERT(config != NULL && out != NULL);
    if (config->root == NULL || config->root[0] == '\0' ||
        (config->create && (config->run == NULL || config->read_only)))
        return keel_fail(KEEL_INVALID, "a store needs a root, and a run's name when it is to be created");
    if (config->run == NULL)
        KEEL_TRY(only_run(config->root, run));
    else if (keel_run_name_valid(config->run))
        snprintf(run, sizeof run, "%s", config->run);
    else
        return keel_fail(KEEL_INVALID, "a run's name is 1 to %d of A-Z a-z 0-9 . _ - and begins with no dot",
                         KEEL_RUN_NAME_BYTES - 1);
    KEEL_TRY(keel_path_join(path, config->root, run));
    int fd = -1;
    struct keel_key *key = NULL;
    struct keel_store *store;
    if (config->key_file != NULL)
        KEEL_TRY(keel_key_load(config->key_file, &key));
    enum keel_status status = open_run(config->root, path, run, config->create, &fd);
    if (status == KEEL_OK)
        status = keel_alloc(1, sizeof *store, &store);
    if (status != KEEL_OK) {
        if (fd >= 0)
            keel_disk_close(fd);
        keel_key_release(key);
        return status;
    }
    keel_mutex_init(&store->lock);
    store->run_fd = fd;
    store->read_only = config->read_only;
    store->accept_plain = config->accept_plain;
    store->key = key;
    store->handle = KEEL_HANDLE_OPEN;
    memcpy(store->run, run, sizeof run);
    memcpy(store->path, path, sizeof path);
    *out = store;
    return KEEL_OK;
}

void keel_store_close(struct keel_store *store)
{
    if (store == NULL)
        return;
    KEEL_ASSERT(store->handle == KEEL_HANDLE_OPEN);
    keel_mutex_lock(&store->lock);
    uint32_t saves_under_way = store->saves;
    keel_mutex_unlock(&store->lock);
    KEEL_ASSERT(saves_under_way == 0); /* finish or cancel them first */
    store->handle = 0;
    keel_disk_close(store->run_fd);
    keel_base_drop_all(store);
    keel_key_release(store->key);
    keel_free(store->spare.memory);
    keel_generation_index_keep(store, &(struct keel_generation_index){.at = NULL});
    keel_mutex_fini(&store->lock);
    keel_free(store);
}

enum keel_status keel_store_writable(const struct keel_store *store)
{
    KEEL_ASSERT(store != NULL && store->handle == KEEL_HANDLE_OPEN);
    return store->read_only ? keel_fail(KEEL_INVALID, "%s: the store was opened read-only", store->path)
                            : KEEL_OK;
}

/* ---- workspaces ---------------------------------------------------------------------------------------- */

enum { HUGE_FROM_BYTES = 64 << 20 };

void keel_store_count_saves(struct keel_store *store, bool more)
{
    keel_mutex_lock(&store->lock);
    store->saves += more ? 1U : UINT32_MAX;
    keel_mutex_unlock(&store->lock);
}

static struct keel_workspace swap_spare(struct keel_store *store, struct keel_workspace fresh)
{
    keel_mutex_lock(&store->lock);
    struct keel_workspace old = store->spare;
    store->spare = fresh;
    keel_mutex_unlock(&store->lock);
    return old;
}

enum keel_status keel_store_take_workspace(struct keel_store *store, uint64_t bytes,
                                           struct keel_workspace *out)
{
    struct keel_workspace workspace = swap_spare(store, (struct keel_workspace){0});
    if (workspace.bytes < bytes) {
        keel_free(workspace.memory);
        uint8_t *memory; /* not touched before it is used, as memory allocated with alignment would be */
        KEEL_TRY(keel_alloc(bytes + KEEL_PAGE_BYTES, 1, &memory));
        size_t skip = -(uintptr_t)memory % KEEL_PAGE_BYTES;
        workspace = (struct keel_workspace){memory, memory + skip, keel_size(bytes)};
        if (bytes >= HUGE_FROM_BYTES) /* a hint: fewer page faults while capturing */
            (void)madvise(workspace.data, workspace.bytes, MADV_HUGEPAGE);
    }
    *out = workspace;
    return KEEL_OK;
}

bool keel_store_has_workspace(struct keel_store *store, uint64_t bytes)
{
    keel_mutex_lock(&store->lock);
    bool ready = store->spare.bytes >= bytes;
    keel_mutex_unlock(&store->lock);
    return ready;
}

void keel_store_give_workspace(struct keel_store *store, struct keel_workspace *workspace)
{
    struct keel_workspace old = swap_spare(store, *workspace);
    keel_free(old.memory);
    *workspace = (struct keel_workspace){0};
}

/* ---- what was committed here --------------------------------------------------------------------------- */

void keel_store_note_committed(struct keel_store *store, uint64_t step, uint64_t attempt)
{
    keel_mutex_lock(&store->lock);
    store->committed[store->committed_count++ % KEEL_STORE_COMMITTED_MAX] =
        (struct keel_generation){step, attempt};
    keel_mutex_unlock(&store->lock);
}

bool keel_store_has_committed(struct keel_store *store, uint64_t step, uint64_t attempt)
{
    bool found = false;
    keel_mutex_lock(&store->lock);
    for (uint64_t i = 0; i < KEEL_STORE_COMMITTED_MAX && i < store->committed_count; i++)
        found = found || (store->committed[i].step == step && store->committed[i].attempt == attempt);
    keel_mutex_unlock(&store->lock);
    return found;
}

/* ---- generations --------------------------------------------------------------------------------------- */

int keel_generation_compare(const void *a, const void *b)
{
    const struct keel_generation *x = a, *y = b;
    int order = keel_compare_u64(x->step, y->step);
    return order != 0 ? order : keel_compare_u64(x->attempt, y->attempt);
}

static const char *parse_number(const char *text, uint64_t *out)
{
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] >= '0' && text[1] <= '9'))
        return NULL;
    uint64_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (value > (UINT64_MAX - digit) / 10)
            return NULL;
        value = value * 10 + digit;
    }
    *out = value;
    return text;
}

bool keel_step_name_parse(const char *name, uint64_t *out_step, uint64_t *out_attempt)
{
    uint64_t step, attempt;
    if (strncmp(name, "step-", 5) != 0)
        return false;
    const char *at = parse_number(name + 5, &step);
    if (at == NULL || *at != '.')
        return false;
    at = parse_number(at + 1, &attempt);
    if (at == NULL || *at != '\0')
        return false;
    *out_step = step;
    *out_attempt = attempt;
    return true;
}

void keel_step_name(uint64_t step, uint64_t attempt, char out[KEEL_STEP_NAME_BYTES])
{
    snprintf(out, KEEL_STEP_NAME_BYTES, "step-%llu.%llu", (unsigned long long)step,
             (unsigned long long)attempt);
}

void keel_shard_name(uint32_t rank, char out[KEEL_SHARD_NAME_BYTES])
{
    snprintf(out, KEEL_SHARD_NAME_BYTES, "rank-%u.keel", rank);
}

/* "<number>", then `end`, then nothing that belongs to it; where it ends, or NULL. */
static const char *pass_number(const char *text, const char *end)
{
    uint64_t value;
    const char *at = parse_number(text, &value);
    return at != NULL && strncmp(at, end, strlen(end)) == 0 ? at + strlen(end) : NULL;
}

bool keel_shard_name_parse(const char *name, uint32_t *out_rank)
{
    uint64_t rank;
    if (strncmp(name, "rank-", 5) != 0)
        return false;
    const char *at = parse_number(name + 5, &rank);
    if (at == NULL || strcmp(at, ".keel") != 0 || rank >= KEEL_SNAPSHOT_RANKS_MAX)
        return false;
    *out_rank = (uint32_t)rank;
    return true;
}

enum keel_name_kind keel_name_kind_of(const char *name)
{
    const char *at = NULL;
    if (strncmp(name, KEEL_MANIFEST_NAME, strlen(KEEL_MANIFEST_NAME)) == 0)
        at = name + strlen(KEEL_MANIFEST_NAME);
    else if (strncmp(name, KEEL_MERGED_NAME, strlen(KEEL_MERGED_NAME)) == 0)
        at = name + strlen(KEEL_MERGED_NAME);
    else if (strncmp(name, "rank-", 5) == 0)
        at = pass_number(name + 5, ".keel");
    else if (strncmp(name, "parity-", 7) == 0 && (at = pass_number(name + 7, ".")) != NULL)
        at = pass_number(at, ".keel");
    if (at == NULL)
        return KEEL_NAME_FOREIGN;
    if (*at == '\0')
        return KEEL_NAME_OWN;
    if (*at == '.' && (at = pass_number(at + 1, ".")) != NULL) /* process, serial number */
        at = pass_number(at, ".tmp");
    return at != NULL && *at == '\0' ? KEEL_NAME_TEMPORARY : KEEL_NAME_FOREIGN;
}

/* Somebody removed the run's directory while it is open: what is saved from now on lies in a new one, under
 * the same descriptor. */
static enum keel_status make_again(const struct keel_store *store)
{
    char root[KEEL_PATH_BYTES];
    int fd = -1;
    memcpy(root, store->path, sizeof root);
    *strrchr(root, '/') = '\0'; /* there is one, before the run's name */
    keel_log(KEEL_LOG_WARN, "%s: was removed, and is made again", store->path);
    KEEL_TRY(open_run(root, store->path, store->run, true, &fd));
    const bool taken = dup3(fd, store->run_fd, O_CLOEXEC) >= 0;
    const int error = errno;
    keel_disk_close(fd);
    return taken ? KEEL_OK : keel_fail_errno(error, "%s: cannot be used again", store->path);
}

enum keel_status keel_step_open(const struct keel_store *store, uint64_t step, uint64_t attempt, bool create,
                                struct keel_step_place *out)
{
    struct keel_step_place place;
    keel_step_name(step, attempt, place.name);
    KEEL_TRY(keel_path_join(place.path, store->path, place.name));
    bool made = !create || keel_disk_mkdir(store->run_fd, place.name, 0777) == 0 || errno == EEXIST;
    if (!made && errno == ENOENT) {
        KEEL_TRY(make_again(store));
        made = keel_disk_mkdir(store->run_fd, place.name, 0777) == 0 || errno == EEXIST;
    }
    if (!made)
        return keel_fail_errno(errno, "%s: cannot be made", place.path);
    place.fd = keel_disk_open(store->run_fd, place.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (place.fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened as a directory", place.path);
    place.key = keel_key_retain(store->key);
    *out = place;
    return KEEL_OK;
}

void keel_step_close(struct keel_step_place *place)
{
    keel_disk_close(place->fd);
    keel_key_release(place->key);
    place->fd = -1;
    place->key = NULL;
}

enum keel_status keel_step_uncommitted(const struct keel_step_place *place)
{
    struct stat info;
    if (keel_disk_stat(place->fd, KEEL_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW) == 0)
        return keel_fail(KEEL_INVALID, "%s: is committed already; use a new attempt number", place->path);
    return errno == ENOENT ? KEEL_OK : keel_fail_errno(errno, "%s: cannot be looked into", place->path);
}

enum keel_status keel_step_open_file(const struct keel_step_place *place, const char *name, int *out_fd,
                                     uint64_t *out_bytes)
{
    /* O_NONBLOCK: should a pipe lie there, opening it must not wait for a writer */
    int fd = keel_disk_open(place->fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0 && errno == ELOOP)
        return keel_fail(KEEL_DENIED, "%s/%s: is a symbolic link; a store holds none", place->path, name);
    if (fd < 0)
        return keel_fail_errno(errno, "%s/%s: cannot be opened", place->path, name);
    struct stat info;
    if (keel_disk_fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        keel_disk_close(fd);
        return keel_fail(KEEL_CORRUPT, "%s/%s: is no regular file", place->path, name);
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return KEEL_OK;
}
