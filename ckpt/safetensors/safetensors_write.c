/* safetensors_write.c - tensors to one safetensors file, or to several and an index.
 *
 * All files are written under temporary names and synced first. Then, and only then, they get their names:
 * the files, a sync of the directory, the index, a sync. Whoever dies before leaves what was there as it was
 * (and his temporary files). One buffer is all the memory; it is filled by the caller's `read` and written
 * past the page cache where the file system can do that. */
#include "json_scan.h"
#include "safetensors_header.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/text.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 16 << 20, FILES_MAX = 768, SUFFIX_BYTES = sizeof KEEL_SAFETENSORS_SUFFIX - 1 };

/* One file that is to be: tensors [first, end) of the order. */
struct output {
    uint32_t first, end;
    char path[KEEL_PATH_BYTES], temporary[KEEL_PATH_BYTES];
    bool written; /* under its temporary name */
    bool named;   /* under its own */
};

struct writing {
    const struct keel_safetensors_write *what;
    struct keel_safetensors_entry *order; /* as they lie in the files; `file` is the caller's index */
    struct output *outputs;               /* the files, then the index if there are several */
    uint32_t files, output_count;
    char directory[KEEL_PATH_BYTES], stem[KEEL_PATH_BYTES];
    bool made_directory;
    uint8_t *buffer;
    uint64_t total_bytes, done_bytes;

    /* of the file that is being written: */
    int fd;
    const char *path;
    size_t used;      /* in the buffer */
    uint64_t flushed; /* bytes of the file that are written */
};

/* ---- what is to be written ----------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct keel_safetensors_entry *x = a, *y = b;
    if (x->tensor.dtype != y->tensor.dtype)
        return x->tensor.dtype > y->tensor.dtype ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

static enum keel_status check_tensor(const struct keel_safetensors_tensor *tensor)
{
    size_t wrong;
    const char *name = tensor->name;
    if (name[0] == '\0' || strcmp(name, "__metadata__") == 0 || !keel_utf8_valid(name, strlen(name), &wrong))
        return keel_fail(KEEL_INVALID, "tensor '%s': a name of UTF-8 is wanted, other than __metadata__",
                         keel_safetensors_shown(name).text);
    if (tensor->dtype >= KEEL_SAFETENSORS_DTYPES || tensor->dims > KEEL_TENSOR_DIMS_MAX ||
        keel_safetensors_bytes(tensor) == UINT64_MAX)
        return keel_fail(KEEL_INVALID, "tensor %s: its type or shape is none",
                         keel_safetensors_shown(name).text);
    return KEEL_OK;
}

static enum keel_status check_notes(const struct keel_safetensors_write *what)
{
    for (uint32_t i = 0; i < what->note_count; i++) {
        size_t wrong;
        const struct keel_safetensors_note *note = &what->notes[i];
        bool text = keel_utf8_valid(note->key, strlen(note->key), &wrong) &&
                    keel_utf8_valid(note->value, strlen(note->value), &wrong);
        for (uint32_t j = 0; j < i; j++)
            text = text && strcmp(note->key, what->notes[j].key) != 0;
        if (!text)
            return keel_fail(KEEL_INVALID, "__metadata__ %s: is no UTF-8, or comes twice",
                             keel_safetensors_shown(note->key).text);
    }
    return KEEL_OK;
}

static enum keel_status put_in_order(struct writing *w)
{
    const struct keel_safetensors_write *what = w->what;
    KEEL_TRY(keel_alloc(what->tensor_count, sizeof *w->order, &w->order));
    KEEL_TRY(check_notes(what));
    for (uint32_t i = 0; i < what->tensor_count; i++) {
        KEEL_TRY(check_tensor(&what->tensors[i]));
        w->order[i] = (struct keel_safetensors_entry){.tensor = what->tensors[i], .file = i};
        if (__builtin_add_overflow(w->total_bytes, keel_safetensors_bytes(&what->tensors[i]),
                                   &w->total_bytes))
            return keel_fail(KEEL_LIMIT, "more bytes than 64 bits count");
    }
    qsort(w->order, what->tensor_count, sizeof *w->order, keel_safetensors_by_name);
    for (uint32_t i = 1; i < what->tensor_count; i++)
        if (keel_safetensors_by_name(&w->order[i - 1], &w->order[i]) == 0)
            return keel_fail(KEEL_INVALID, "tensor %s comes twice",
                             keel_safetensors_shown(w->order[i].tensor.name).text);
    qsort(w->order, what->tensor_count, sizeof *w->order, by_place);
    return KEEL_OK;
}

/* The end of the file that begins with tensor `first`. */
static uint32_t end_of_file(const struct writing *w, uint32_t first)
{
    uint64_t bytes = 0, most = w->what->shard_bytes > 0 ? w->what->shard_bytes : UINT64_MAX;
    uint32_t end = first;
    for (; end < w->what->tensor_count; end++) {
        uint64_t more = keel_safetensors_bytes(&w->order[end].tensor);
        if (end > first && more > most - bytes)
            break;
        bytes += more;
        if (bytes > most)
            bytes = most;
    }
    return end;
}

static enum keel_status plan_files(struct writing *w)
{
    uint32_t count = w->what->tensor_count, first = 0;
    do {
        first = end_of_file(w, first);
        w->files++;
    } while (first < count);
    if (w->files > FILES_MAX)
        return keel_fail(KEEL_LIMIT, "these shards would be %u files; %d at most: give a larger shard size",
                         w->files, FILES_MAX);
    KEEL_TRY(keel_alloc((size_t)w->files + 1, sizeof *w->outputs, &w->outputs));
    w->output_count = w->files > 1 ? w->files + 1 : 1;
    for (uint32_t i = 0, from = 0; i < w->files; i++) {
        w->outputs[i].first = from;
        w->outputs[i].end = from = end_of_file(w, from);
    }
    return KEEL_OK;
}

/* ---- where to ------------------------------------------------------------------------------------------ */

static enum keel_status split_path(struct writing *w)
{
    const char *path = w->what->path, *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    size_t bytes = strlen(path), named = strlen(name);
    struct stat info;
    if (bytes >= KEEL_PATH_BYTES)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    bool directory = keel_disk_stat(AT_FDCWD, path, &info, 0) == 0 && S_ISDIR(info.st_mode);
    if (directory || (bytes > 0 && named == 0)) {
        snprintf(w->directory, sizeof w->directory, "%s", path);
        snprintf(w->stem, sizeof w->stem, "model");
        w->made_directory = !directory;
        return directory ? KEEL_OK : keel_mkdir_all(path);
    }
    if (named <= SUFFIX_BYTES || strcmp(name + named - SUFFIX_BYTES, KEEL_SAFETENSORS_SUFFIX) != 0)
        return keel_fail(KEEL_INVALID, "%s: a NAME.safetensors or a directory is wanted (NAME/ makes one)",
                         path);
    snprintf(w->directory, sizeof w->directory, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1,
             slash == NULL ? "." : path);
    if (keel_disk_stat(AT_FDCWD, w->directory, &info, 0) != 0 && errno == ENOENT)
        return keel_fail(KEEL_NOT_FOUND, "%s: no such directory, for %s: make it first", w->directory, name);
    snprintf(w->stem, sizeof w->stem, "%.*s", (int)(named - SUFFIX_BYTES), name);
    return KEEL_OK;
}

static enum keel_status join(const struct writing *w, const char *name, char out[KEEL_PATH_BYTES])
{
    size_t bytes = strlen(w->directory);
    bool slash = bytes > 0 && w->directory[bytes - 1] == '/';
    int length = snprintf(out, KEEL_PATH_BYTES, "%s%s%s", strcmp(w->directory, ".") == 0 ? "" : w->directory,
                          slash || strcmp(w->directory, ".") == 0 ? "" : "/", name);
    return length >= 0 && length < KEEL_PATH_BYTES
               ? KEEL_OK
               : keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", w->what->path, KEEL_PATH_BYTES);
}

/* NAME.safetensors, NAME-00001-of-00003.safetensors, or the index (i == files > 1). */
static void output_name(const struct writing *w, uint32_t i, char *out, size_t room)
{
    const char *stem = w->stem;
    if (w->files == 1)
        snprintf(out, room, "%s" KEEL_SAFETENSORS_SUFFIX, stem);
    else if (i == w->files)
        snprintf(out, room, "%s" KEEL_SAFETENSORS_INDEX_SUFFIX, stem);
    else
        snprintf(out, room, "%s-%05u-of-%05u" KEEL_SAFETENSORS_SUFFIX, stem, i + 1, w->files);
}

static enum keel_status free_place(const struct writing *w, const char *path)
{
    if (w->what->replace || !keel_path_exists(path))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: is there already; name another place, or have it replaced (--force)",
                     path);
}

/* The single file and the index of that name: where both are, nobody knows which is meant. */
static enum keel_status other_forms(const struct writing *w, char out[2][KEEL_PATH_BYTES])
{
    char name[KEEL_PATH_BYTES + 64];
    snprintf(name, sizeof name, "%s" KEEL_SAFETENSORS_SUFFIX, w->stem);
    KEEL_TRY(join(w, name, out[0]));
    snprintf(name, sizeof name, "%s" KEEL_SAFETENSORS_INDEX_SUFFIX, w->stem);
    return join(w, name, out[1]);
}

static enum keel_status check_free(const struct writing *w)
{
    char forms[2][KEEL_PATH_BYTES];
    KEEL_TRY(other_forms(w, forms));
    KEEL_TRY(free_place(w, forms[0]));
    KEEL_TRY(free_place(w, forms[1]));
    for (uint32_t i = 0; i < w->output_count; i++)
        KEEL_TRY(free_place(w, w->outputs[i].path));
    return KEEL_OK;
}

static enum keel_status plan_names(struct writing *w)
{
    char name[KEEL_PATH_BYTES + 64], temporary[KEEL_PATH_BYTES + 128];
    KEEL_TRY(split_path(w));
    for (uint32_t i = 0; i < w->output_count; i++) {
        output_name(w, i, name, sizeof name);
        snprintf(temporary, sizeof temporary, ".%s.%ld.tmp", name, (long)getpid());
        KEEL_TRY(join(w, name, w->outputs[i].path));
        KEEL_TRY(join(w, temporary, w->outputs[i].temporary));
    }
    return check_free(w);
}

/* ---- one file ------------------------------------------------------------------------------------------ */

/* Write the buffer: full, or the file's last bytes. */
static enum keel_status flush(struct writing *w)
{
    if (w->used % KEEL_PAGE_BYTES != 0)
        (void)keel_disk_set_direct(w->fd, false);
    ssize_t put = keel_disk_pwrite(w->fd, w->buffer, w->used, w->flushed);
    if (put !=
        (ssize_t)w->used) { /* a file system that takes the flag and refuses the write, or a short one */
        (void)keel_disk_set_direct(w->fd, false);
        KEEL_TRY(keel_pwrite_all(w->fd, w->buffer, w->used, w->flushed, w->path));
    }
    w->flushed += w->used;
    w->used = 0;
    return KEEL_OK;
}

static enum keel_status append(struct writing *w, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes > 0) {
        size_t part = bytes < BUFFER_BYTES - w->used ? bytes : BUFFER_BYTES - w->used;
        memcpy(w->buffer + w->used, at, part);
        w->used += part;
        at += part;
        bytes -= part;
        if (w->used == BUFFER_BYTES)
            KEEL_TRY(flush(w));
    }
    return KEEL_OK;
}

/* Elements never cross a buffer's end: those of a file lie aligned, wider ones first. */
static enum keel_status append_tensor(struct writing *w, const struct keel_safetensors_entry *entry)
{
    const struct keel_safetensors_write *what = w->what;
    uint64_t bytes = keel_safetensors_bytes(&entry->tensor);
    for (uint64_t offset = 0; offset < bytes;) {
        size_t room = BUFFER_BYTES - w->used;
        size_t part = bytes - offset < room ? (size_t)(bytes - offset) : room;
        KEEL_ASSERT(keel_safetensors_dtype_bytes(entry->tensor.dtype) == 0 ||
                    part % keel_safetensors_dtype_bytes(entry->tensor.dtype) == 0);
        KEEL_TRY(what->read(what->context, entry->file, offset, part, w->buffer + w->used));
        w->used += part;
        offset += part;
        w->done_bytes += part;
        if (w->used == BUFFER_BYTES)
            KEEL_TRY(flush(w));
        if (what->progress != NULL)
            what->progress(what->context, w->done_bytes, w->total_bytes);
    }
    return KEEL_OK;
}

static enum keel_status append_header(struct writing *w, const struct output *output)
{
    const struct keel_safetensors_write *what = w->what;
    struct keel_safetensors_header header = {.entries = w->order + output->first,
                                             .count = output->end - output->first,
                                             .note_count = what->note_count};
    uint64_t end = 0;
    for (uint32_t i = 0; i < header.count; i++) {
        header.entries[i].begin = end;
        header.entries[i].end = end += keel_safetensors_bytes(&header.entries[i].tensor);
    }
    KEEL_TRY(keel_alloc(what->note_count, sizeof *header.notes, &header.notes));
    if (what->note_count > 0) {
        memcpy(header.notes, what->notes, what->note_count * sizeof *header.notes);
        qsort(header.notes, what->note_count, sizeof *header.notes, keel_safetensors_by_key);
    }
    char *text = NULL;
    size_t bytes = 0;
    enum keel_status status = keel_safetensors_header_encode(&header, &text, &bytes);
    keel_free(header.notes);
    KEEL_TRY(status);
    uint8_t length[KEEL_SAFETENSORS_LENGTH_BYTES];
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (uint8_t)(bytes >> 8 * i);
    status = append(w, length, sizeof length);
    if (status == KEEL_OK)
        status = append(w, text, bytes);
    keel_free(text);
    return status;
}

static int by_place_name(const void *a, const void *b)
{
    const struct keel_safetensors_place *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum keel_status append_index(struct writing *w)
{
    struct keel_safetensors_index index = {
        .count = w->what->tensor_count, .has_total = true, .total_bytes = w->total_bytes};
    char(*names)[KEEL_PATH_BYTES] = NULL, *text = NULL;
    size_t bytes = 0;
    KEEL_TRY(keel_alloc(w->files, sizeof *names, &names));
    enum keel_status status = keel_alloc(index.count, sizeof *index.places, &index.places);
    for (uint32_t i = 0; i < w->files && status == KEEL_OK; i++) {
        output_name(w, i, names[i], sizeof names[i]);
        for (uint32_t t = w->outputs[i].first; t < w->outputs[i].end; t++)
            index.places[t] = (struct keel_safetensors_place){w->order[t].tensor.name, names[i]};
    }
    if (status == KEEL_OK)
        qsort(index.places, index.count, sizeof *index.places, by_place_name);
    if (status == KEEL_OK)
        status = keel_safetensors_index_encode(&index, &text, &bytes);
    if (status == KEEL_OK)
        status = append(w, text, bytes);
    keel_free(text);
    keel_free(index.places);
    keel_free(names);
    return status;
}

static enum keel_status write_contents(struct writing *w, uint32_t i)
{
    const struct output *output = &w->outputs[i];
    if (i == w->files)
        return append_index(w);
    KEEL_TRY(append_header(w, output));
    for (uint32_t t = output->first; t < output->end; t++)
        KEEL_TRY(append_tensor(w, &w->order[t]));
    return KEEL_OK;
}

static enum keel_status write_one(struct writing *w, uint32_t i)
{
    struct output *output = &w->outputs[i];
    keel_disk_unlink(AT_FDCWD, output->temporary, 0); /* left by an earlier process of the same number */
    w->path = output->temporary;
    w->fd = keel_disk_open(AT_FDCWD, w->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return keel_fail_errno(errno, "%s: cannot be created", w->path);
    output->written = true;
    w->used = 0;
    w->flushed = 0;
    (void)keel_disk_set_direct(w->fd, true);
    enum keel_status status = write_contents(w, i);
    if (status == KEEL_OK && w->used > 0)
        status = flush(w);
    if (status == KEEL_OK && keel_disk_fsync(w->fd) != 0)
        status = keel_fail_errno(errno, "%s: cannot be synced", w->path);
    if (keel_disk_close(w->fd) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be closed", w->path);
    return status;
}

/* ---- names --------------------------------------------------------------------------------------------- */

static enum keel_status name_one(struct output *output)
{
    if (keel_disk_rename(AT_FDCWD, output->temporary, AT_FDCWD, output->path) != 0)
        return keel_fail_errno(errno, "%s: cannot be put in place", output->path);
    output->named = true;
    return KEEL_OK;
}

static enum keel_status remove_old(const char *path)
{
    if (keel_disk_unlink(AT_FDCWD, path, 0) != 0 && errno != ENOENT)
        return keel_fail_errno(errno, "%s: cannot be removed", path);
    return KEEL_OK;
}

/* An index that is there goes before files that it names change, and what is of the other form goes last:
 * where both are, both are whole. */
static enum keel_status name_all(struct writing *w)
{
    char forms[2][KEEL_PATH_BYTES];
    bool replace = w->what->replace, several = w->files > 1;
    KEEL_TRY(check_free(w)); /* again: it was long ago */
    KEEL_TRY(other_forms(w, forms));
    if (replace && several) {
        KEEL_TRY(remove_old(forms[1]));
        KEEL_TRY(keel_sync_path(w->directory));
    }
    for (uint32_t i = 0; i < w->files; i++)
        KEEL_TRY(name_one(&w->outputs[i]));
    KEEL_TRY(keel_sync_path(w->directory));
    if (several) {
        KEEL_TRY(name_one(&w->outputs[w->files]));
        KEEL_TRY(keel_sync_path(w->directory));
    }
    if (!replace)
        return KEEL_OK;
    KEEL_TRY(remove_old(forms[several ? 0 : 1]));
    return keel_sync_path(w->directory);
}

/* What did not come to its end. Files that are named already stay only where they took the place of others.
 */
static void clean_up(struct writing *w)
{
    for (uint32_t i = 0; i < w->output_count && w->outputs != NULL; i++) {
        if (w->outputs[i].named && !w->what->replace)
            keel_disk_unlink(AT_FDCWD, w->outputs[i].path, 0);
        else if (w->outputs[i].written && !w->outputs[i].named)
            keel_disk_unlink(AT_FDCWD, w->outputs[i].temporary, 0);
    }
    if (w->made_directory) /* stays when somebody else has put something in */
        keel_disk_unlink(AT_FDCWD, w->directory, AT_REMOVEDIR);
}

static enum keel_status write_all(struct writing *w)
{
    KEEL_TRY(put_in_order(w));
    KEEL_TRY(plan_files(w));
    KEEL_TRY(plan_names(w));
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, BUFFER_BYTES, &w->buffer));
    for (uint32_t i = 0; i < w->output_count; i++)
        KEEL_TRY(write_one(w, i));
    return name_all(w);
}

enum keel_status keel_safetensors_write(const struct keel_safetensors_write *what,
                                        struct keel_safetensors_written *out)
{
    struct writing *w;
    KEEL_ASSERT(what != NULL && out != NULL && what->path != NULL && what->read != NULL);
    KEEL_TRY(keel_alloc(1, sizeof *w, &w));
    w->what = what;
    enum keel_status status = write_all(w);
    if (status == KEEL_OK) {
        *out = (struct keel_safetensors_written){.files = w->files, .tensor_bytes = w->total_bytes};
        memcpy(out->path, w->outputs[w->output_count - 1].path, sizeof out->path);
    } else {
        char detail[KEEL_DETAIL_BYTES];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        clean_up(w);
        keel_detail_set(detail);
    }
    keel_free(w->buffer);
    keel_free(w->outputs);
    keel_free(w->order);
    keel_free(w);
    return status;
}
