/* jsonl.h - files of one JSON object a line: append, and survive what a crash tore. */
#ifndef KEEL_JSONL_H
#define KEEL_JSONL_H

#include <jansson.h>
#include <keel/status.h>
#include <stdint.h>
#include <stdio.h>

/* Open to append, creating the file. A last line without its newline is cut off; the others go to `take`
 * (may be NULL) with their number. CORRUPT names file and line. */
enum keel_status keel_jsonl_open(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context, FILE **out);

/* Read without opening to write: NOT_FOUND, CORRUPT. */
enum keel_status keel_jsonl_read(const char *path,
                                 enum keel_status (*take)(void *context, const json_t *line, uint64_t number),
                                 void *context);

/* Write one line and flush; takes the reference of `line`. NULL is ignored. */
void keel_jsonl_write(FILE *file, json_t *line);

#endif
