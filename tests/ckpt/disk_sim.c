/* disk_sim.c - see disk_sim.h. A disk is a table of files and directories; each keeps what programs see, what
 * is certain, and the changes between the two. All calls take one lock; what they change passes
 * change_apply(), which recorded changes pass again. */
#include "disk_sim.h"
#include <errno.h>
#include <keel/memory.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SECTOR_BYTES = 512, NAME_BYTES = 64, PATH_BYTES = 512, NODES_MAX = 4096, DESCRIPTORS_MAX = 64 };
enum { FIRST_DESCRIPTOR = 1000 }; /* none that a real file may have */

struct entry {
    char name[NAME_BYTES];
    uint32_t node;
};

struct entries {
    struct entry *list; /* owned */
    uint32_t count, capacity;
};

enum change_kind { MAKE_FILE, MAKE_DIRECTORY, WRITE, SYNC, SYNC_LOST, RENAME, REMOVE };

/* One change of a disk. */
struct change {
    enum change_kind kind;
    uint32_t node;  /* written or synced; of a name: its directory */
    uint32_t named; /* of a name: what it names */
    char name[NAME_BYTES], to[NAME_BYTES];
    uint64_t offset, bytes;
    uint8_t *data;         /* owned */
    char path[PATH_BYTES]; /* of node, for messages */
};

struct changes {
    struct change *list; /* owned */
    uint32_t count, capacity;
};

struct node {
    bool directory;
    bool clean;    /* certain is what is seen, and the fields below are empty */
    bool lossy;    /* an fsync failed: what is seen is not all that will be certain */
    uint8_t *data; /* owned; what programs see */
    uint64_t bytes, room;
    struct entries seen;
    uint8_t *certain_data; /* owned */
    uint64_t certain_bytes;
    struct entries certain;
    struct changes pending;
};

struct disk {
    struct node *nodes; /* owned; 0 is the root */
    uint32_t count, capacity;
};

struct disk_trace {
    struct changes changes;
};

static pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below and the mounted disk */
static struct disk *mounted;
static struct disk_trace *recording;
static struct {
    bool open;
    uint32_t node;
    int flags;
    char path[PATH_BYTES];
} descriptors[DESCRIPTORS_MAX];

/* ---- memory -------------------------------------------------------------------------------------------- */

static void *make(uint64_t count, uint64_t bytes)
{
    uint8_t *memory;
    KEEL_ASSERT(keel_alloc(count > 0 ? count : 1, bytes, &memory) == KEEL_OK);
    return memory;
}

static void *duplicate(const void *data, uint64_t bytes)
{
    if (data == NULL)
        return NULL;
    void *copy = make(1, bytes > 0 ? bytes : 1);
    memcpy(copy, data, bytes);
    return copy;
}

/* Room for one more in a growing list. */
#define GROW(items, first)                                                                                   \
    do {                                                                                                     \
        if ((items)->count == (items)->capacity) {                                                           \
            uint32_t larger_ = (items)->capacity > 0 ? (items)->capacity * 2 : (first);                      \
            KEEL_ASSERT(keel_realloc(&(items)->list, (items)->capacity, larger_, sizeof *(items)->list) ==   \
                        KEEL_OK);                                                                            \
            (items)->capacity = larger_;                                                                     \
        }                                                                                                    \
    } while (0)

static void changes_clear(struct changes *changes)
{
    for (uint32_t i = 0; i < changes->count; i++)
        keel_free(changes->list[i].data);
    keel_free(changes->list);
    *changes = (struct changes){0};
}

static void changes_add(struct changes *changes, const struct change *change)
{
    GROW(changes, 4);
    struct change *copy = &changes->list[changes->count++];
    *copy = *change;
    copy->data = duplicate(change->data, change->bytes);
}

static struct entries entries_copy(const struct entries *from)
{
    return (struct entries){duplicate(from->list, from->capacity * sizeof *from->list), from->count,
                            from->capacity};
}

static void node_fini(struct node *node)
{
    keel_free(node->data);
    keel_free(node->certain_data);
    keel_free(node->seen.list);
    keel_free(node->certain.list);
    changes_clear(&node->pending);
}

static uint32_t node_add(struct disk *disk, bool directory)
{
    if (disk->count == disk->capacity) {
        uint32_t larger = disk->capacity > 0 ? disk->capacity * 2 : 32;
        KEEL_ASSERT(keel_realloc(&disk->nodes, disk->capacity, larger, sizeof *disk->nodes) == KEEL_OK);
        disk->capacity = larger;
    }
    KEEL_ASSERT(disk->count < NODES_MAX);
    disk->nodes[disk->count] = (struct node){.directory = directory, .clean = true};
    return disk->count++;
}

struct disk *disk_create(void)
{
    struct disk *disk = make(1, sizeof *disk);
    node_add(disk, true);
    return disk;
}

void disk_destroy(struct disk *disk)
{
    for (uint32_t i = 0; i < disk->count; i++)
        node_fini(&disk->nodes[i]);
    keel_free(disk->nodes);
    keel_free(disk);
}

struct disk *disk_copy(const struct disk *disk)
{
    struct disk *copy = make(1, sizeof *copy);
    for (uint32_t i = 0; i < disk->count; i++) {
        const struct node *from = &disk->nodes[i];
        node_add(copy, from->directory);
        struct node *to = &copy->nodes[i];
        *to = *from;
        to->data = duplicate(from->data, from->room);
        to->certain_data = duplicate(from->certain_data, from->certain_bytes);
        to->seen = entries_copy(&from->seen);
        to->certain = entries_copy(&from->certain);
        to->pending = (struct changes){0};
        for (uint32_t c = 0; c < from->pending.count; c++)
            changes_add(&to->pending, &from->pending.list[c]);
    }
    return copy;
}

/* ---- files and names ----------------------------------------------------------------------------------- */

static struct entry *entry_find(const struct entries *entries, const char *name)
{
    for (uint32_t i = 0; i < entries->count; i++)
        if (strcmp(entries->list[i].name, name) == 0)
            return &entries->list[i];
    return NULL;
}

static void entry_set(struct entries *entries, const char *name, uint32_t node)
{
    struct entry *entry = entry_find(entries, name);
    if (entry == NULL) {
        GROW(entries, 8);
        entry = &entries->list[entries->count++];
        snprintf(entry->name, sizeof entry->name, "%s", name);
    }
    entry->node = node;
}

static void entry_remove(struct entries *entries, const char *name)
{
    struct entry *entry = entry_find(entries, name);
    if (entry != NULL)
        *entry = entries->list[--entries->count];
}

/* A change of a name, on what is seen or what is certain. */
static void name_change(struct entries *entries, const struct change *change)
{
    if (change->kind == REMOVE || change->kind == RENAME)
        entry_remove(entries, change->name);
    if (change->kind == RENAME)
        entry_set(entries, change->to, change->named);
    else if (change->kind != REMOVE)
        entry_set(entries, change->name, change->named);
}

static void data_reserve(uint8_t **data, uint64_t *room, uint64_t bytes)
{
    if (bytes <= *room)
        return;
    uint64_t larger = *room * 2 > bytes ? *room * 2 : bytes;
    uint8_t *copy = make(1, larger);
    if (*data != NULL)
        memcpy(copy, *data, *room);
    keel_free(*data);
    *data = copy;
    *room = larger;
}

/* From now on what is certain is kept apart. */
static void node_dirty(struct node *node)
{
    if (!node->clean)
        return;
    node->clean = false;
    node->certain_data = duplicate(node->data, node->bytes);
    node->certain_bytes = node->bytes;
    node->certain = entries_copy(&node->seen);
}

static void node_write(struct node *node, const struct change *change)
{
    data_reserve(&node->data, &node->room, change->offset + change->bytes);
    memcpy(node->data + change->offset, change->data, change->bytes);
    if (change->offset + change->bytes > node->bytes)
        node->bytes = change->offset + change->bytes;
}

/* All pending changes become certain, in order. What an fsync that failed has dropped does not. */
static void node_sync(struct node *node)
{
    if (node->clean)
        return;
    for (uint32_t i = 0; i < node->pending.count; i++) {
        const struct change *change = &node->pending.list[i];
        if (node->directory) {
            name_change(&node->certain, change);
            continue;
        }
        uint64_t end = change->offset + change->bytes;
        if (end > node->certain_bytes) {
            data_reserve(&node->certain_data, &node->certain_bytes, end);
            node->certain_bytes = end;
        }
        memcpy(node->certain_data + change->offset, change->data, change->bytes);
    }
    changes_clear(&node->pending);
    if (node->lossy)
        return;
    node->clean = true;
    keel_free(node->certain_data);
    keel_free(node->certain.list);
    node->certain_data = NULL;
    node->certain_bytes = 0;
    node->certain = (struct entries){0};
}

static void change_apply(struct disk *disk, const struct change *change)
{
    KEEL_ASSERT(change->node < disk->count);
    if (change->kind == SYNC) {
        node_sync(&disk->nodes[change->node]);
        return;
    }
    if (change->kind == SYNC_LOST) {
        if (disk->nodes[change->node].directory)
            return;
        changes_clear(&disk->nodes[change->node].pending);
        disk->nodes[change->node].lossy = true;
        return;
    }
    if (change->kind == MAKE_FILE || change->kind == MAKE_DIRECTORY)
        KEEL_ASSERT(node_add(disk, change->kind == MAKE_DIRECTORY) == change->named);
    struct node *node = &disk->nodes[change->node];
    node_dirty(node);
    if (change->kind == WRITE)
        node_write(node, change);
    else
        name_change(&node->seen, change);
    changes_add(&node->pending, change);
}

/* ---- power loss ---------------------------------------------------------------------------------------- */

static uint64_t scramble(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint32_t draw_of(struct disk_choice *choice, uint32_t below)
{
    choice->seed = scramble(choice->seed);
    return (uint32_t)((choice->seed >> 16) % below);
}

struct disk_choice disk_choice_random(uint64_t seed)
{
    static const uint32_t likely[] = {0, 1, 8, 8, 15, 16};
    struct disk_choice choice = {.mode = DISK_KEEP_RANDOM, .seed = seed};
    choice.names_of_16 = likely[1 + draw_of(&choice, 4)];
    choice.sectors_of_16 = likely[draw_of(&choice, 6)];
    choice.stale = draw_of(&choice, 2) == 0;
    return choice;
}

bool disk_choice_next(struct disk_choice *choice)
{
    if (choice->count > DISK_CHOICES_MAX)
        return false;
    while (choice->count > 0) {
        uint32_t last = choice->count - 1;
        if (++choice->digits[last] < choice->limits[last])
            return true;
        choice->digits[last] = 0;
        choice->count = last;
    }
    return false;
}

/* One of 0 .. below - 1: how many of the changes happened. */
static uint32_t choose(struct disk_choice *choice, uint32_t below, uint32_t of_16)
{
    uint32_t result = 0;
    if (choice->mode == DISK_KEEP_ALL)
        result = below - 1;
    if (choice->mode == DISK_KEEP_RANDOM && draw_of(choice, 16) < of_16)
        result = 1 + draw_of(choice, below - 1);
    if (choice->mode == DISK_KEEP_EACH && choice->count < DISK_CHOICES_MAX) {
        result = choice->digits[choice->count];
        choice->limits[choice->count] = below;
    }
    choice->count++;
    choice->digest = scramble(choice->digest ^ result);
    return result;
}

static const struct entries *crash_names(const struct node *from, struct disk_choice *choice,
                                         struct entries *made)
{
    if (from->clean)
        return &from->seen;
    *made = entries_copy(&from->certain);
    for (uint32_t i = 0; i < from->pending.count; i++)
        if (choose(choice, 2, choice->names_of_16) == 1)
            name_change(made, &from->pending.list[i]);
    return made;
}

/* The part of a change that lies in the sector at `at`. */
static bool overlap(const struct change *change, uint64_t at, uint64_t *out_from, uint64_t *out_to)
{
    uint64_t end = change->offset + change->bytes, sector_end = at + SECTOR_BYTES;
    *out_from = change->offset > at ? change->offset : at;
    *out_to = end < sector_end ? end : sector_end;
    return *out_from < *out_to;
}

static void crash_sector(const struct node *from, uint64_t at, struct disk_choice *choice, uint8_t *out,
                         uint64_t bytes)
{
    uint32_t touching = 0;
    uint64_t first, last;
    for (uint32_t i = 0; i < from->pending.count; i++)
        touching += overlap(&from->pending.list[i], at, &first, &last);
    if (touching == 0)
        return;
    uint32_t kept = choose(choice, touching + 1, choice->sectors_of_16);
    for (uint32_t i = 0; i < from->pending.count && kept > 0; i++) {
        const struct change *change = &from->pending.list[i];
        if (!overlap(change, at, &first, &last))
            continue;
        kept--;
        if (last > bytes)
            last = bytes;
        if (first < last)
            memcpy(out + first, change->data + (first - change->offset), last - first);
    }
}

static void crash_file(const struct node *from, struct disk_choice *choice, struct node *to)
{
    if (from->clean) {
        to->data = duplicate(from->data, from->bytes);
        to->bytes = to->room = from->bytes;
        return;
    }
    /* The size is one of those that it had since the last sync. */
    uint64_t sizes[64] = {from->certain_bytes};
    uint32_t count = 1;
    for (uint32_t i = 0; i < from->pending.count; i++) {
        uint64_t end = from->pending.list[i].offset + from->pending.list[i].bytes;
        KEEL_ASSERT(count < 64);
        if (end > sizes[count - 1])
            sizes[count++] = end;
    }
    to->bytes = to->room = count > 1 ? sizes[choose(choice, count, 8)] : sizes[0];
    to->data = make(1, to->bytes > 0 ? to->bytes : 1);
    if (choice->stale && to->bytes > from->certain_bytes)
        memset(to->data + from->certain_bytes, 0x5a, to->bytes - from->certain_bytes);
    if (from->certain_bytes > 0)
        memcpy(to->data, from->certain_data, from->certain_bytes);
    for (uint64_t at = 0; at < to->bytes; at += SECTOR_BYTES)
        crash_sector(from, at, choice, to->data, to->bytes);
}

/* Copy node `from`, and all below it that is still named, to node `to`. */
static void crash_node(const struct disk *disk, uint32_t from, struct disk_choice *choice, struct disk *out,
                       uint32_t to)
{
    const struct node *node = &disk->nodes[from];
    if (!node->directory) {
        crash_file(node, choice, &out->nodes[to]);
        return;
    }
    struct entries made = {0};
    const struct entries *names = crash_names(node, choice, &made);
    for (uint32_t i = 0; i < names->count; i++) {
        const struct entry *entry = &names->list[i];
        uint32_t child = node_add(out, disk->nodes[entry->node].directory);
        entry_set(&out->nodes[to].seen, entry->name, child);
        crash_node(disk, entry->node, choice, out, child);
    }
    keel_free(made.list);
}

struct disk *disk_crash(const struct disk *disk, struct disk_choice *choice)
{
    struct disk *out = disk_create();
    choice->digest = choice->stale ? 1 : 0;
    choice->count = 0;
    crash_node(disk, 0, choice, out, 0);
    return out;
}

uint32_t disk_uncertain(const struct disk *disk)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < disk->count; i++)
        for (uint32_t c = 0; c < disk->nodes[i].pending.count; c++)
            count += 1 + (uint32_t)(disk->nodes[i].pending.list[c].bytes / SECTOR_BYTES);
    return count;
}

/* ---- recording ----------------------------------------------------------------------------------------- */

struct disk_trace *disk_trace_create(void)
{
    return make(1, sizeof(struct disk_trace));
}

void disk_trace_destroy(struct disk_trace *trace)
{
    changes_clear(&trace->changes);
    keel_free(trace);
}

void disk_record(struct disk_trace *trace)
{
    pthread_mutex_lock(&sim_lock);
    recording = trace;
    pthread_mutex_unlock(&sim_lock);
}

uint32_t disk_trace_count(const struct disk_trace *trace)
{
    return trace->changes.count;
}

void disk_trace_apply(const struct disk_trace *trace, uint32_t index, struct disk *disk)
{
    change_apply(disk, &trace->changes.list[index]);
}

const char *disk_trace_text(const struct disk_trace *trace, uint32_t index)
{
    static const char *const kinds[] = {"make file in",  "make directory in", "write",    "fsync",
                                        "fsync (fails)", "rename in",         "remove in"};
    static char text[2 * PATH_BYTES];
    const struct change *change = &trace->changes.list[index];
    snprintf(text, sizeof text, "%s %s %s", kinds[change->kind], change->path, change->name);
    return text;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* The caller holds the lock from here on. */
static void change_make(const struct change *change)
{
    change_apply(mounted, change);
    if (recording != NULL)
        changes_add(&recording->changes, change);
}

static int descriptor_index(int fd)
{
    int index = fd - FIRST_DESCRIPTOR;
    return index >= 0 && index < DESCRIPTORS_MAX && descriptors[index].open ? index : -1;
}

struct place {
    uint32_t parent, node; /* node: UINT32_MAX when the last name is not there */
    char name[NAME_BYTES];
    char path[PATH_BYTES], parent_path[PATH_BYTES];
};

/* Where a path leads; false and errno when a directory on the way is missing. */
static bool walk(int at, const char *path, struct place *out)
{
    struct place place = {0};
    int index = at == AT_FDCWD ? -1 : descriptor_index(at);
    if (index < 0 && path[0] != '/') {
        errno = EBADF;
        return false;
    }
    if (path[0] != '/') {
        place.parent = place.node = descriptors[index].node;
        snprintf(place.path, sizeof place.path, "%s", descriptors[index].path);
    }
    while (*path != '\0') {
        size_t length = strcspn(path, "/");
        if (length > 0 && !(length == 1 && path[0] == '.')) {
            if (place.node == UINT32_MAX || !mounted->nodes[place.node].directory || length >= NAME_BYTES) {
                errno = place.node == UINT32_MAX ? ENOENT : length >= NAME_BYTES ? ENAMETOOLONG : ENOTDIR;
                return false;
            }
            memcpy(place.parent_path, place.path, sizeof place.path);
            snprintf(place.name, sizeof place.name, "%.*s", (int)length, path);
            size_t used = strlen(place.path);
            snprintf(place.path + used, sizeof place.path - used, "/%s", place.name);
            place.parent = place.node;
            const struct entry *entry = entry_find(&mounted->nodes[place.node].seen, place.name);
            place.node = entry != NULL ? entry->node : UINT32_MAX;
        }
        path += length;
        path += *path == '/';
    }
    *out = place;
    return true;
}

static void change_name(enum change_kind kind, const struct place *place, uint32_t named, const char *to)
{
    struct change change = {.kind = kind, .node = place->parent, .named = named};
    snprintf(change.name, sizeof change.name, "%s", place->name);
    snprintf(change.to, sizeof change.to, "%s", to);
    snprintf(change.path, sizeof change.path, "%s", place->parent_path);
    change_make(&change);
}

static int fail(int error)
{
    errno = error;
    return -1;
}

static int open_place(struct place *place, int flags)
{
    KEEL_ASSERT((flags & O_TRUNC) == 0); /* not in the model */
    if (place->node == UINT32_MAX) {
        if ((flags & O_CREAT) == 0)
            return fail(ENOENT);
        place->node = mounted->count;
        change_name(MAKE_FILE, place, place->node, "");
    } else if ((flags & O_EXCL) != 0) {
        return fail(EEXIST);
    }
    bool directory = mounted->nodes[place->node].directory;
    if (!directory && (flags & O_DIRECTORY) != 0)
        return fail(ENOTDIR);
    if (directory && (flags & O_ACCMODE) != O_RDONLY)
        return fail(EISDIR);
    for (int i = 0; i < DESCRIPTORS_MAX; i++) {
        if (descriptors[i].open)
            continue;
        descriptors[i].open = true;
        descriptors[i].node = place->node;
        descriptors[i].flags = flags;
        memcpy(descriptors[i].path, place->path, sizeof place->path);
        return FIRST_DESCRIPTOR + i;
    }
    return fail(EMFILE);
}

static int sim_open(int at, const char *path, int flags, unsigned mode)
{
    (void)mode;
    struct place place;
    pthread_mutex_lock(&sim_lock);
    int fd = walk(at, path, &place) ? open_place(&place, flags) : -1;
    pthread_mutex_unlock(&sim_lock);
    return fd;
}

static int sim_close(int fd)
{
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd);
    KEEL_ASSERT(index >= 0); /* closed twice, or never opened */
    descriptors[index].open = false;
    pthread_mutex_unlock(&sim_lock);
    return 0;
}

static ssize_t sim_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    ssize_t got = -1;
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd);
    KEEL_ASSERT(index >= 0);
    const struct node *node = &mounted->nodes[descriptors[index].node];
    if (node->directory) {
        errno = EISDIR;
    } else {
        uint64_t left = offset < node->bytes ? node->bytes - offset : 0;
        got = (ssize_t)(left < bytes ? left : bytes);
        if (got > 0)
            memcpy(data, node->data + offset, (size_t)got);
    }
    pthread_mutex_unlock(&sim_lock);
    return got;
}

static ssize_t sim_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd);
    KEEL_ASSERT(index >= 0 && (descriptors[index].flags & O_ACCMODE) != O_RDONLY);
    struct change change = {.kind = WRITE, .node = descriptors[index].node, .offset = offset, .bytes = bytes};
    snprintf(change.path, sizeof change.path, "%s", descriptors[index].path);
    change.data = duplicate(data, bytes);
    change_make(&change);
    pthread_mutex_unlock(&sim_lock);
    keel_free(change.data);
    return (ssize_t)bytes;
}

/* Whole files are read and written by offset alone; these are not in the model. */
static ssize_t sim_read(int fd, void *data, size_t bytes)
{
    (void)fd, (void)data, (void)bytes;
    return fail(ENOSYS);
}

static ssize_t sim_write(int fd, const void *data, size_t bytes)
{
    (void)fd, (void)data, (void)bytes;
    return fail(ENOSYS);
}

static void sync_as(int fd, enum change_kind kind)
{
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd);
    KEEL_ASSERT(index >= 0);
    struct change change = {.kind = kind, .node = descriptors[index].node};
    snprintf(change.path, sizeof change.path, "%s", descriptors[index].path);
    change_make(&change);
    pthread_mutex_unlock(&sim_lock);
}

static int sim_fsync(int fd)
{
    sync_as(fd, SYNC);
    return 0;
}

void disk_sim_lose(int fd)
{
    sync_as(fd, SYNC_LOST);
}

static int sim_rename(int from_at, const char *from, int to_at, const char *to)
{
    struct place source, target;
    int result = -1;
    pthread_mutex_lock(&sim_lock);
    if (walk(from_at, from, &source) && walk(to_at, to, &target)) {
        if (source.node == UINT32_MAX)
            errno = ENOENT;
        else if (source.parent != target.parent)
            errno = EXDEV;
        else
            result = 0;
    }
    if (result == 0)
        change_name(RENAME, &source, source.node, target.name);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int unlink_place(const struct place *place, int flags)
{
    if (place->node == UINT32_MAX)
        return fail(ENOENT);
    const struct node *node = &mounted->nodes[place->node];
    if (node->directory != ((flags & AT_REMOVEDIR) != 0))
        return fail(node->directory ? EISDIR : ENOTDIR);
    if (node->directory && node->seen.count > 0)
        return fail(ENOTEMPTY);
    change_name(REMOVE, place, place->node, "");
    return 0;
}

static int sim_unlink(int at, const char *path, int flags)
{
    struct place place;
    pthread_mutex_lock(&sim_lock);
    int result = walk(at, path, &place) ? unlink_place(&place, flags) : -1;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int sim_mkdir(int at, const char *path, unsigned mode)
{
    (void)mode;
    struct place place;
    int result = -1;
    pthread_mutex_lock(&sim_lock);
    if (walk(at, path, &place)) {
        result = place.node == UINT32_MAX ? 0 : fail(EEXIST);
        if (result == 0)
            change_name(MAKE_DIRECTORY, &place, mounted->count, "");
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int sim_stat(int at, const char *path, struct stat *out, int flags)
{
    (void)flags; /* no links */
    struct place place;
    int result = -1;
    pthread_mutex_lock(&sim_lock);
    if (walk(at, path, &place)) {
        result = place.node == UINT32_MAX ? fail(ENOENT) : 0;
        if (result == 0) {
            const struct node *node = &mounted->nodes[place.node];
            *out = (struct stat){.st_mode = node->directory ? S_IFDIR | 0755 : S_IFREG | 0644,
                                 .st_ino = place.node + 1,
                                 .st_nlink = 1,
                                 .st_uid = getuid(),
                                 .st_size = (off_t)node->bytes};
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

static int sim_get_flags(int fd)
{
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd), flags = index >= 0 ? descriptors[index].flags : -1;
    pthread_mutex_unlock(&sim_lock);
    return flags;
}

static int sim_set_flags(int fd, int flags)
{
    (void)fd, (void)flags;
    return 0;
}

static int sim_list(int fd, int (*visit)(void *context, const char *name), void *context)
{
    pthread_mutex_lock(&sim_lock);
    int index = descriptor_index(fd);
    KEEL_ASSERT(index >= 0);
    struct entries names = entries_copy(&mounted->nodes[descriptors[index].node].seen);
    pthread_mutex_unlock(&sim_lock);
    int result = 0;
    for (uint32_t i = 0; i < names.count && result == 0; i++)
        result = visit(context, names.list[i].name);
    keel_free(names.list);
    return result;
}

static int sim_room(int fd, uint64_t *out_bytes)
{
    (void)fd;
    *out_bytes = UINT64_MAX;
    return 0;
}

const struct keel_disk_ops disk_sim_ops = {.open = sim_open,
                                           .close = sim_close,
                                           .read = sim_read,
                                           .write = sim_write,
                                           .pread = sim_pread,
                                           .pwrite = sim_pwrite,
                                           .fsync = sim_fsync,
                                           .rename = sim_rename,
                                           .unlink = sim_unlink,
                                           .mkdir = sim_mkdir,
                                           .stat = sim_stat,
                                           .room = sim_room,
                                           .get_flags = sim_get_flags,
                                           .set_flags = sim_set_flags,
                                           .list = sim_list};

void disk_mount(struct disk *disk)
{
    pthread_mutex_lock(&sim_lock);
    mounted = disk;
    for (int i = 0; i < DESCRIPTORS_MAX; i++)
        descriptors[i].open = false;
    pthread_mutex_unlock(&sim_lock);
}

uint32_t disk_open_descriptors(void)
{
    uint32_t count = 0;
    pthread_mutex_lock(&sim_lock);
    for (int i = 0; i < DESCRIPTORS_MAX; i++)
        count += descriptors[i].open;
    pthread_mutex_unlock(&sim_lock);
    return count;
}

const char *disk_sim_path(int fd)
{
    int index = descriptor_index(fd);
    return index >= 0 ? descriptors[index].path : "";
}

bool disk_sim_is_directory(int fd)
{
    int index = descriptor_index(fd);
    return index >= 0 && mounted->nodes[descriptors[index].node].directory;
}
