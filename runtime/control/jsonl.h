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

/* Open to append, creating the file. A last line without its newline is cut off; the others go to `take`
 * (may be NULL) with their number. CORRUPT names file and line. */
enum keel_status keel_jsonl_open(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context, struct keel_jsonl **out);

/* Read without opening to write: NOT_FOUND, CORRUPT. Where out_skipped is given, lines that are no JSON are
 * counted there and are no error. */
enum keel_status keel_jsonl_read(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context, uint64_t *out_skipped);

/* Write one line; takes the reference of `line`. NULL is ignored. One thread writes. */
void keel_jsonl_write(struct keel_jsonl *file, json_t *line);

/* All lines are on the disk, or why not (NO_SPACE, IO). Blocks; any thread. */
enum keel_status keel_jsonl_sync(struct keel_jsonl *file);

/* Keep the first `lines` lines and cut off the others, durably. Not while another thread writes. */
enum keel_status keel_jsonl_cut(struct keel_jsonl *file, uint64_t lines);

/* Try what is left once more, and close. NULL is ignored. */
void keel_jsonl_close(struct keel_jsonl *file);

#endif
