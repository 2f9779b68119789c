/* safetensors_header.h - headers and indices of safetensors files, as text and as tables; no files here. */
#ifndef KEEL_CKPT_SAFETENSORS_HEADER_H
#define KEEL_CKPT_SAFETENSORS_HEADER_H

#include <keel/safetensors.h>

enum { KEEL_SAFETENSORS_HEADER_BYTES_MAX = 100 * 1000 * 1000, KEEL_SAFETENSORS_LENGTH_BYTES = 8 };
#define KEEL_SAFETENSORS_INDEX_SUFFIX ".safetensors.index.json"
#define KEEL_SAFETENSORS_SUFFIX       ".safetensors"

struct keel_safetensors_entry {
    struct keel_safetensors_tensor tensor;
    uint64_t begin, end; /* in the bytes behind the header */
    uint32_t file;       /* which of several, 0 for one */
};

struct keel_safetensors_header {
    struct keel_safetensors_entry *entries; /* owned; names point into the text */
    uint32_t count;
    struct keel_safetensors_note *notes; /* owned; ordered by key */
    uint32_t note_count;
};

/* For qsort: entries by their names, notes by their keys. */
int keel_safetensors_by_name(const void *a, const void *b);
int keel_safetensors_by_key(const void *a, const void *b);

/* A name of a stranger in a message: at most 63 bytes, nothing that a terminal would obey. */
struct keel_shown_name {
    char text[72];
};
struct keel_shown_name keel_safetensors_shown(const char *name);

/* Check and understand the header of a file that has `data_bytes` behind it; `path` is for messages. `text`
 * is overwritten and must live as long as *out; entries are ordered by name. Statuses as for
 * keel_safetensors_open. */
enum keel_status keel_safetensors_header_parse(char *text, size_t bytes, uint64_t data_bytes,
                                               const char *path, struct keel_safetensors_header *out);
void keel_safetensors_header_fini(struct keel_safetensors_header *header);

/* The text of a header, padded with blanks to a multiple of 8; entries in the order of their bytes. The
 * caller frees *out. LIMIT: longer than readers take. */
enum keel_status keel_safetensors_header_encode(const struct keel_safetensors_header *header, char **out,
                                                size_t *out_bytes);

/* Of a model in several files. */
struct keel_safetensors_place {
    const char *name, *file; /* tensor and file; point into the text */
};
struct keel_safetensors_index {
    struct keel_safetensors_place *places; /* owned; ordered by file, then by name */
    uint32_t count;
    bool has_total;
    uint64_t total_bytes; /* of all tensors */
};
/* As for headers. Files are plain names that end in .safetensors. */
enum keel_status keel_safetensors_index_parse(char *text, size_t bytes, const char *path,
                                              struct keel_safetensors_index *out);
void keel_safetensors_index_fini(struct keel_safetensors_index *index);
enum keel_status keel_safetensors_index_encode(const struct keel_safetensors_index *index, char **out,
                                               size_t *out_bytes);

#endif
