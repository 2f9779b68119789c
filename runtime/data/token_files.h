/* token_files.h - files of tokens, as nanoGPT and llm.c write them, numbered through and read by place.
 *
 * A file is raw numbers of 16 or 32 bits, little-endian (nanoGPT's train.bin), or begins with llm.c's header:
 * 256 numbers of 32 bits, of which the first three are the magic 20240520, version 1 and the count of tokens
 * of 16 bits; or 20240801, version 7, of 32 bits. Raw tokens may begin with the same bytes. So it is a header
 * where the file has exactly as many tokens behind it as it tells of, or where all its other numbers are 0,
 * as llm.c writes them: the file was cut then, or is of another version, and is refused.
 *
 * Files are read a window at a time (data_file.h), so their number has no limit but FILES_MAX. Each read
 * compares size and time of the file with those at open.
 *
 * What is looked at when they are opened: all of them up to KEEL_TOKENS_WHOLE_BYTES together. Above that, of
 * each file the head, the end, and blocks of 64 KiB evenly between, about 1,024 over all files: enough to
 * tell another set, another order or a copy that was cut, in a time that does not depend on their size. What
 * was looked at is in the digest, with the layout of each file. A token that nobody looked at is compared
 * with the vocabulary when it is read. */
#ifndef KEEL_TOKEN_FILES_H
#define KEEL_TOKEN_FILES_H

#include "data_file.h"

enum { KEEL_TOKEN_HEAD_BYTES = 1024, KEEL_TOKENS_WHOLE_BYTES = 1 << 28 };

/* Where the tokens of one file lie. */
struct keel_token_layout {
    uint64_t first_byte, count; /* tokens */
    uint32_t width;             /* bytes of each: 2 or 4 */
};

/* Of a file of `file_bytes` that begins with `count` bytes, KEEL_TOKEN_HEAD_BYTES where it has so many.
 * `width` is that of a file without a header. INVALID says what is wrong with file `name`, and what to do. */
enum keel_status keel_token_layout_parse(const void *head, size_t count, uint64_t file_bytes, uint32_t width,
                                         const char *name, struct keel_token_layout *out);

struct keel_token_file {
    struct keel_data_file of;
    struct keel_token_layout layout;
};
struct keel_token_files {
    struct keel_token_file *files; /* owned */
    size_t count, capacity;
    uint64_t tokens, bytes; /* of all */
};

/* Append the file that `path` names or, where there is no such file, those of its folder whose names match
 * its last part (fnmatch), in byte order. `key` is what names them in messages. NOT_FOUND; INVALID of a file;
 * LIMIT. */
enum keel_status keel_token_files_add(struct keel_token_files *files, const char *path, const char *key,
                                      uint32_t width);
void keel_token_files_fini(struct keel_token_files *files);

/* Look at them as is said above. `vocab`: a token beyond is INVALID; 0: any is right, and *out_highest is the
 * highest, which takes that all is looked at (INVALID says to give model.vocab). */
enum keel_status keel_token_files_survey(const struct keel_token_files *files, uint32_t vocab,
                                         uint64_t *out_digest, uint32_t *out_highest);
bool keel_token_files_are_surveyed_whole(const struct keel_token_files *files);

/* `count` tokens from `first` on, which the file has, into out[0 .. count); where out_first is not NULL the
 * first of them goes there, and the others to out[0 .. count - 1). MISMATCH: the file is not what it
 * was at open; INVALID: a token is not below `vocab`, with its offset; IO and the like. Any thread. */
enum keel_status keel_token_file_read(const struct keel_token_file *file, uint64_t first, uint32_t count,
                                      uint32_t vocab, int32_t *out_first, int32_t *out);

/* The tokens of a text of numbers, white space between them, on the heap: INVALID names what is no number
 * below `vocab`, by its place. `text` has `bytes` bytes. NO_MEMORY. */
enum keel_status keel_token_numbers_parse(const char *text, size_t bytes, uint32_t vocab, int32_t **out,
                                          size_t *out_count);

#endif
