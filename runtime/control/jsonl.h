/* jsonl.h - files of one JSON object a line: append, and survive what a crash or a full disk tore.
 *
 * A line that the disk does not take is kept in memory and tried again with the next one; what was written of
 * it is cut off, so that a file never holds half a line before a whole one. */
#ifndef KEEL_JSONL_H
#define KEEL_JSONL_H

#include <jansson.h>
#include <keel/status.h>
#include <stdint.h>

struct keel_jsonl;

/* Open to append, creating the file. A last line without its newline is cut off; the others go to `take` with
 * their number: NULL, and no more than the end of the file is read. CORRUPT names file and line. */
enum keel_status keel_jsonl_open(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context, struct keel_jsonl **out);

/* Lines one after the other, in as much memory as the longest has, from a place where one begins. A torn last
 * line is none. */
struct keel_jsonl_reader {
    const char *path; /* borrowed */
    int fd;
    char *chunk; /* heap */
    size_t at, bytes, capacity;
    uint64_t read_to;     /* in the file: where the chunk ends */
    uint64_t end, number; /* of the line that was given last: where it ends in the file, and which it is */
};
/* NOT_FOUND, DENIED, IO. */
enum keel_status keel_jsonl_begin(struct keel_jsonl_reader *reader, const char *path, uint64_t from);
/* *text, without its newline, is valid until the next call; NULL behind the last line. CORRUPT: a line that
 * is too long. */
enum keel_status keel_jsonl_next(struct keel_jsonl_reader *reader, const char **text, size_t *bytes);
void keel_jsonl_end(struct keel_jsonl_reader *reader);

/* Where a line begins, and where the next does. */
struct keel_jsonl_place {
    uint64_t begin, end;
};
/* The last line up to `before`, where one ends, that has the text `with` in it; the caller has a reference of
 * *line. Reads the file backwards, as far as it has to. NOT_FOUND: it is not among the last 64 MiB, or no
 * JSON. */
enum keel_status keel_jsonl_find_back(const char *path, uint64_t before, const char *with, json_t **line,
                                      struct keel_jsonl_place *place);

/* Read without opening to write: NOT_FOUND, CORRUPT. Where out_skipped is given, lines that are no JSON are
 * counted there and are no error. */
enum keel_status keel_jsonl_read(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context, uint64_t *out_skipped);

/* Write one line; takes the reference of `line`. NULL is ignored. One thread writes. */
void keel_jsonl_write(struct keel_jsonl *file, json_t *line);

/* All lines are on the disk, or why not (NO_SPACE, IO). Blocks; any thread. */
enum keel_status keel_jsonl_sync(struct keel_jsonl *file);

/* Where the next line will begin. Any thread. */
uint64_t keel_jsonl_bytes(struct keel_jsonl *file);

/* Keep the first `bytes`, which is where a line ends, and cut off the others, durably. Not while another
 * thread writes. */
enum keel_status keel_jsonl_cut(struct keel_jsonl *file, uint64_t bytes);

/* Try what is left once more, and close. NULL is ignored. */
void keel_jsonl_close(struct keel_jsonl *file);

#endif
