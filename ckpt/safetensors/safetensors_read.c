/* safetensors_read.c - opening safetensors files, one or several with their index, and reading tensors.
 *
 * A file that is open is the file that was checked: it is never opened again by its name. What the texts say
 * is the business of safetensors_header.c and safetensors_index.c. */
#include "safetensors_header.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MAX = 768 }; /* each is a descriptor; 1024 are what a process may commonly have */

struct part {
    int fd;
    char *path;       /* owned */
    char *text;       /* owned; the header, into which names point */
    uint64_t data_at; /* behind the header */
};

struct keel_safetensors {
    struct part *parts;
    uint32_t part_count;
    struct keel_safetensors_header all; /* of all parts, notes of the first; ordered by name */
    size_t header_bytes;                /* of all parts so far */
};

/* ---- one file ------------------------------------------------------------------------------------------ */

/* For reading, whatever links lead there; but only a regular file. */
static enum keel_status open_regular(const char *path, int *out_fd, uint64_t *out_bytes)
{
    int fd = keel_disk_open(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "%s: cannot be opened", path);
    struct stat info;
    if (keel_disk_fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        keel_disk_close(fd);
        return keel_fail(KEEL_INVALID, "%s: is no regular file", path);
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)info.st_size;
    return KEEL_OK;
}

static enum keel_status read_length(const struct part *part, uint64_t file_bytes, size_t room, size_t *out)
{
    uint8_t raw[KEEL_SAFETENSORS_LENGTH_BYTES];
    uint64_t length = 0;
    if (file_bytes < sizeof raw)
        return keel_fail(KEEL_CORRUPT, "%s: %" PRIu64 " bytes: too short for a safetensors file", part->path,
                         file_bytes);
    KEEL_TRY(keel_pread_all(part->fd, raw, sizeof raw, 0, part->path));
    for (size_t i = sizeof raw; i-- > 0;)
        length = length << 8 | raw[i];
    if (length > KEEL_SAFETENSORS_HEADER_BYTES_MAX)
        return keel_fail(KEEL_LIMIT,
                         "%s: a header of %" PRIu64 " bytes; %d at most: is this a safetensors file?",
                         part->path, length, KEEL_SAFETENSORS_HEADER_BYTES_MAX);
    if (length > room)
        return keel_fail(KEEL_LIMIT, "%s: the headers of all files together have more than %d bytes",
                         part->path, KEEL_SAFETENSORS_HEADER_BYTES_MAX);
    if (length > file_bytes - sizeof raw)
        return keel_fail(KEEL_CORRUPT,
                         "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                         ": the file is cut short; fetch it again",
                         part->path, length, file_bytes);
    *out = (size_t)length;
    return KEEL_OK;
}

static enum keel_status read_header(struct part *part, uint64_t file_bytes, size_t room, size_t *out_length,
                                    struct keel_safetensors_header *out)
{
    size_t length = 0;
    KEEL_TRY(read_length(part, file_bytes, room, &length));
    KEEL_TRY(keel_alloc(length + 1, 1, &part->text));
    KEEL_TRY(keel_pread_all(part->fd, part->text, length, KEEL_SAFETENSORS_LENGTH_BYTES, part->path));
    part->data_at = KEEL_SAFETENSORS_LENGTH_BYTES + length;
    *out_length = length;
    return keel_safetensors_header_parse(part->text, length, file_bytes - part->data_at, part->path, out);
}

/* Append a part's entries to those of the file. */
static enum keel_status merge(struct keel_safetensors *file, struct keel_safetensors_header *header)
{
    struct keel_safetensors_header *all = &file->all;
    for (uint32_t i = 0; i < header->count; i++)
        header->entries[i].file = file->part_count - 1;
    if (file->part_count == 1) {
        *all = *header;
        *header = (struct keel_safetensors_header){0};
        return KEEL_OK;
    }
    KEEL_TRY(
        keel_realloc(&all->entries, all->count, (size_t)all->count + header->count, sizeof *all->entries));
    if (header->count > 0)
        memcpy(all->entries + all->count, header->entries, header->count * sizeof *header->entries);
    all->count += header->count;
    return KEEL_OK;
}

/* Add the file `path`; *out_header may be looked at until the next call and is the caller's to free. */
static enum keel_status add_part(struct keel_safetensors *file, const char *path,
                                 struct keel_safetensors_header *out_header)
{
    struct part *part = &file->parts[file->part_count];
    uint64_t file_bytes = 0;
    size_t length = 0;
    KEEL_TRY(keel_strdup(path, &part->path));
    part->fd = -1;
    file->part_count++;
    KEEL_TRY(open_regular(path, &part->fd, &file_bytes));
    KEEL_TRY(read_header(part, file_bytes, KEEL_SAFETENSORS_HEADER_BYTES_MAX - file->header_bytes, &length,
                         out_header));
    file->header_bytes += length;
    return KEEL_OK;
}

static enum keel_status open_single(struct keel_safetensors *file, const char *path)
{
    struct keel_safetensors_header header = {0};
    KEEL_TRY(keel_alloc(1, sizeof *file->parts, &file->parts));
    KEEL_TRY(add_part(file, path, &header));
    return merge(file, &header);
}

/* ---- several files ------------------------------------------------------------------------------------- */

/* The file has exactly the tensors that the index puts there: places [first, end), ordered by name as the
 * header is. */
static enum keel_status compare_places(const struct keel_safetensors_index *index, uint32_t first,
                                       uint32_t end, const struct keel_safetensors_header *header,
                                       const char *index_path)
{
    uint32_t place = first;
    for (uint32_t i = 0; i < header->count || place < end;) {
        int order = i == header->count ? -1
                    : place == end     ? 1
                                       : strcmp(index->places[place].name, header->entries[i].tensor.name);
        if (order < 0)
            return keel_fail(KEEL_CORRUPT, "%s: tensor %s is not in %s, where it should be", index_path,
                             keel_safetensors_shown(index->places[place].name).text,
                             keel_safetensors_shown(index->places[first].file).text);
        if (order > 0)
            return keel_fail(KEEL_CORRUPT, "%s: does not say that tensor %s is in %s", index_path,
                             keel_safetensors_shown(header->entries[i].tensor.name).text,
                             keel_safetensors_shown(index->places[first].file).text);
        i++;
        place++;
    }
    return KEEL_OK;
}

static uint32_t end_of_file(const struct keel_safetensors_index *index, uint32_t first)
{
    uint32_t end = first;
    while (end < index->count && strcmp(index->places[end].file, index->places[first].file) == 0)
        end++;
    return end;
}

static enum keel_status add_files(struct keel_safetensors *file, const struct keel_safetensors_index *index,
                                  const char *index_path)
{
    char directory[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    uint64_t total = 0;
    KEEL_TRY(keel_path_parent(directory, index_path));
    for (uint32_t first = 0; first < index->count;) {
        struct keel_safetensors_header header = {0};
        uint32_t end = end_of_file(index, first);
        KEEL_TRY(keel_path_join(path, directory, index->places[first].file));
        KEEL_TRY(add_part(file, path, &header));
        enum keel_status status = compare_places(index, first, end, &header, index_path);
        for (uint32_t i = 0; i < header.count; i++)
            total += header.entries[i].end - header.entries[i].begin;
        if (status == KEEL_OK)
            status = merge(file, &header);
        keel_safetensors_header_fini(&header);
        KEEL_TRY(status);
        first = end;
    }
    if (index->has_total && index->total_bytes != total)
        return keel_fail(KEEL_CORRUPT,
                         "%s: total_size is %" PRIu64 ", but its tensors have %" PRIu64
                         " bytes; fetch all files again, or put it right",
                         index_path, index->total_bytes, total);
    return KEEL_OK;
}

static enum keel_status open_parsed(struct keel_safetensors *file, const struct keel_safetensors_index *index,
                                    const char *path)
{
    uint32_t files = 0;
    for (uint32_t first = 0; first < index->count; first = end_of_file(index, first))
        files++;
    if (files > FILES_MAX)
        return keel_fail(KEEL_LIMIT, "%s: names %u files; %d at most", path, files, FILES_MAX);
    KEEL_TRY(keel_alloc(files, sizeof *file->parts, &file->parts));
    KEEL_TRY(add_files(file, index, path));
    qsort(file->all.entries, file->all.count, sizeof *file->all.entries,
          keel_safetensors_by_name); /* names are unique */
    return KEEL_OK;
}

static enum keel_status read_text(const char *path, char **out, size_t *out_bytes)
{
    int fd = -1;
    uint64_t bytes = 0;
    char *text = NULL;
    KEEL_TRY(open_regular(path, &fd, &bytes));
    enum keel_status status = bytes <= KEEL_SAFETENSORS_HEADER_BYTES_MAX
                                  ? keel_alloc(bytes + 1, 1, &text)
                                  : keel_fail(KEEL_LIMIT, "%s: %" PRIu64 " bytes; %d at most", path, bytes,
                                              KEEL_SAFETENSORS_HEADER_BYTES_MAX);
    if (status == KEEL_OK)
        status = keel_pread_all(fd, text, bytes, 0, path);
    keel_disk_close(fd);
    if (status != KEEL_OK) {
        keel_free(text);
        return status;
    }
    *out = text;
    *out_bytes = keel_size(bytes);
    return KEEL_OK;
}

static enum keel_status open_index(struct keel_safetensors *file, const char *path)
{
    char *text;
    size_t bytes;
    struct keel_safetensors_index index;
    KEEL_TRY(read_text(path, &text, &bytes));
    enum keel_status status = keel_safetensors_index_parse(text, bytes, path, &index);
    if (status == KEEL_OK) {
        status = open_parsed(file, &index, path);
        keel_safetensors_index_fini(&index);
    }
    keel_free(text);
    return status;
}

/* ---- a directory --------------------------------------------------------------------------------------- */

struct search {
    char index[KEEL_PATH_BYTES], single[KEEL_PATH_BYTES]; /* names; the first that was seen */
    uint32_t indices, singles;
    bool both; /* NAME.safetensors beside the index of NAME */
};

static bool ends_in(const char *name, const char *suffix)
{
    size_t bytes = strlen(name), tail = strlen(suffix);
    return bytes > tail && strcmp(name + bytes - tail, suffix) == 0;
}

static enum keel_status see_file(void *context, const char *name)
{
    struct search *search = context;
    if (strlen(name) >= sizeof search->index || name[0] == '.')
        return KEEL_OK;
    if (ends_in(name, KEEL_SAFETENSORS_INDEX_SUFFIX) && search->indices++ == 0)
        snprintf(search->index, sizeof search->index, "%s", name);
    if (ends_in(name, KEEL_SAFETENSORS_SUFFIX) && search->singles++ == 0)
        snprintf(search->single, sizeof search->single, "%s", name);
    return KEEL_OK;
}

/* What the directory holds; not the files that an index names. */
static enum keel_status choose(const char *directory, char out[KEEL_PATH_BYTES])
{
    struct search search = {0};
    KEEL_TRY(keel_dir_list(directory, see_file, &search));
    if (search.indices == 0 && search.singles == 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no .safetensors file", directory);
    if (search.indices > 1 || (search.indices == 0 && search.singles > 1))
        return keel_fail(KEEL_INVALID, "%s: holds several models (one is %s); name the one that is meant",
                         directory, search.indices > 0 ? search.index : search.single);
    if (search.indices == 1) {
        char whole[KEEL_PATH_BYTES], name[KEEL_PATH_BYTES];
        size_t stem = strlen(search.index) - strlen(".index.json");
        snprintf(name, sizeof name, "%.*s", (int)stem, search.index);
        KEEL_TRY(keel_path_join(whole, directory, name));
        if (keel_path_exists(whole))
            return keel_fail(KEEL_INVALID, "%s: holds both %s and %s; name the one that is meant", directory,
                             search.index, name);
    }
    return keel_path_join(out, directory, search.indices == 1 ? search.index : search.single);
}

/* ---- public calls -------------------------------------------------------------------------------------- */

static enum keel_status open_any(struct keel_safetensors *file, const char *path)
{
    char chosen[KEEL_PATH_BYTES];
    struct stat info;
    if (strlen(path) >= sizeof chosen)
        return keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", path, KEEL_PATH_BYTES);
    snprintf(chosen, sizeof chosen, "%s", path);
    if (keel_disk_stat(AT_FDCWD, path, &info, 0) == 0 && S_ISDIR(info.st_mode))
        KEEL_TRY(choose(path, chosen));
    return ends_in(chosen, ".json") ? open_index(file, chosen) : open_single(file, chosen);
}

enum keel_status keel_safetensors_open(const char *path, struct keel_safetensors **out)
{
    struct keel_safetensors *file;
    KEEL_ASSERT(path != NULL && out != NULL);
    KEEL_TRY(keel_alloc(1, sizeof *file, &file));
    enum keel_status status = open_any(file, path);
    if (status == KEEL_OK)
        *out = file;
    else
        keel_safetensors_close(file);
    return status;
}

void keel_safetensors_close(struct keel_safetensors *file)
{
    if (file == NULL)
        return;
    for (uint32_t i = 0; i < file->part_count; i++) {
        if (file->parts[i].fd >= 0)
            keel_disk_close(file->parts[i].fd);
        keel_free(file->parts[i].path);
        keel_free(file->parts[i].text);
    }
    keel_free(file->parts);
    keel_safetensors_header_fini(&file->all);
    keel_free(file);
}

uint32_t keel_safetensors_count(const struct keel_safetensors *file)
{
    KEEL_ASSERT(file != NULL);
    return file->all.count;
}

const struct keel_safetensors_tensor *keel_safetensors_tensor(const struct keel_safetensors *file,
                                                              uint32_t index)
{
    KEEL_ASSERT(file != NULL && index < file->all.count);
    return &file->all.entries[index].tensor;
}

uint32_t keel_safetensors_find(const struct keel_safetensors *file, const char *name)
{
    KEEL_ASSERT(file != NULL && name != NULL);
    uint32_t low = 0, high = file->all.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, file->all.entries[middle].tensor.name);
        if (order == 0)
            return middle;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return UINT32_MAX;
}

const char *keel_safetensors_note(const struct keel_safetensors *file, const char *key)
{
    KEEL_ASSERT(file != NULL && key != NULL);
    for (uint32_t i = 0; i < file->all.note_count; i++)
        if (strcmp(file->all.notes[i].key, key) == 0)
            return file->all.notes[i].value;
    return NULL;
}

enum keel_status keel_safetensors_read(const struct keel_safetensors *file, uint32_t index,
                                       uint64_t offset_bytes, uint64_t bytes, void *out)
{
    KEEL_ASSERT(file != NULL && index < file->all.count && (out != NULL || bytes == 0));
    const struct keel_safetensors_entry *entry = &file->all.entries[index];
    const struct part *part = &file->parts[entry->file];
    KEEL_ASSERT(offset_bytes <= entry->end - entry->begin &&
                bytes <= entry->end - entry->begin - offset_bytes);
    return keel_pread_all(part->fd, out, bytes, part->data_at + entry->begin + offset_bytes, part->path);
}
