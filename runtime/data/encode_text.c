/* encode_text.c - see encode_text.h. */
#include "encode_text.h"
#include "token_files.h"
#include "tokenizer.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { READ_BYTES = 1 << 20, PIECE_BYTES_MAX = 1 << 26, NUMBERS = 1 << 14, ENCODING_VERSION = 1 };
enum { WIDE_FROM = 1 << 16 /* vocabularies that 16 bits do not count */, SECOND_NS = 1000000000 };

/* A text on its way into a token file. */
struct encoding {
    const struct keel_encode_config *config;
    struct keel_encoder *encoder;
    const char *path;
    struct stat info; /* of the text at first */
    int in, out;
    char temporary[KEEL_PATH_BYTES];
    char *text; /* owned, for all files: what is read and not encoded yet */
    size_t bytes, capacity;
    uint64_t read, written; /* bytes of either file */
    uint32_t width;         /* of a token */
    uint64_t told_ns;
};

bool keel_job_has_text_to_encode(const struct keel_job *job)
{
    const char *files;
    return keel_job_vocab(job, &files) == KEEL_VOCAB_BPE && keel_job_token_width(job) == 0;
}

static enum keel_status write_ids(struct encoding *encoding, const uint32_t *ids, size_t count)
{
    uint8_t numbers[NUMBERS];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t b = 0; b < encoding->width; b++)
            numbers[used++] = (uint8_t)(ids[i] >> (8 * b));
        if (used < sizeof numbers && i + 1 < count)
            continue;
        KEEL_TRY(keel_pwrite_all(encoding->out, numbers, used, encoding->written, encoding->temporary));
        encoding->written += used;
        used = 0;
    }
    return KEEL_OK;
}

/* More of the text behind what is there. */
static enum keel_status read_more(struct encoding *encoding)
{
    const uint64_t left = (uint64_t)encoding->info.st_size - encoding->read;
    const size_t more = left < READ_BYTES ? (size_t)left : READ_BYTES;
    if (encoding->bytes > PIECE_BYTES_MAX)
        return keel_fail(KEEL_INVALID,
                         "%s: has more than %d bytes from %" PRIu64
                         " on that are one word, or white space: it is no text; leave them out",
                         encoding->path, PIECE_BYTES_MAX, encoding->read - encoding->bytes);
    KEEL_TRY(keel_grow(&encoding->text, &encoding->capacity, encoding->bytes + more + 1, 1));
    KEEL_TRY(
        keel_pread_all(encoding->in, encoding->text + encoding->bytes, more, encoding->read, encoding->path));
    encoding->bytes += more;
    encoding->read += more;
    return KEEL_OK;
}

static void tell(struct encoding *encoding)
{
    const uint64_t now_ns = keel_now_ns();
    if (encoding->config->progress == NULL || now_ns - encoding->told_ns < SECOND_NS)
        return;
    encoding->told_ns = now_ns;
    encoding->config->progress(encoding->config->context, encoding->path, encoding->read - encoding->bytes,
                               (uint64_t)encoding->info.st_size);
}

static enum keel_status encode_all(struct encoding *encoding)
{
    const uint64_t size = (uint64_t)encoding->info.st_size;
    encoding->told_ns = keel_now_ns();
    while (encoding->read < size || encoding->bytes > 0) {
        const uint32_t *ids;
        size_t used, count;
        if (encoding->read < size)
            KEEL_TRY(read_more(encoding));
        const enum keel_status status = keel_encoder_run(encoding->encoder, encoding->text, encoding->bytes,
                                                         encoding->read == size, &used, &ids, &count);
        if (status == KEEL_INVALID)
            return keel_fail(status,
                             "%s: is no UTF-8 at byte %" PRIu64
                             "; make it UTF-8 (iconv), or train on its bytes "
                             "with data.vocab = byte",
                             encoding->path, encoding->read - encoding->bytes + used);
        KEEL_TRY(status);
        KEEL_TRY(write_ids(encoding, ids, count));
        encoding->bytes -= used;
        memmove(encoding->text, encoding->text + used, encoding->bytes);
        tell(encoding);
    }
    return KEEL_OK;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Into the temporary file, durable. */
static enum keel_status write_encoded(struct encoding *encoding)
{
    struct stat info = {.st_size = 0};
    KEEL_TRY(encode_all(encoding));
    if (keel_disk_fstat(encoding->in, &info) != 0 || !is_same(&info, &encoding->info))
        return keel_fail(KEEL_MISMATCH,
                         "%s: was written to while it was encoded; give the same command again",
                         encoding->path);
    if (encoding->written == 0)
        return keel_fail(KEEL_INVALID, "%s: is empty; name a text", encoding->path);
    if (keel_disk_fsync(encoding->out) != 0)
        return keel_fail_errno(errno, "%s: cannot be synced", encoding->temporary);
    return KEEL_OK;
}

/* The text becomes the file `path` of the run's directory, with the encoder and the open text. */
static enum keel_status make_file(struct encoding *encoding, const char *path)
{
    const struct keel_encode_config *config = encoding->config;
    KEEL_TRY(config->make(config->context));
    snprintf(encoding->temporary, sizeof encoding->temporary, "%.1000s.%ld.0.tmp", path, (long)getpid());
    keel_disk_unlink(AT_FDCWD, encoding->temporary, 0); /* left by an earlier process of the same number */
    encoding->out =
        keel_disk_open(AT_FDCWD, encoding->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (encoding->out < 0)
        return keel_fail_errno(errno, "%s: cannot be created", encoding->temporary);
    enum keel_status status = write_encoded(encoding);
    if (keel_disk_close(encoding->out) != 0 && status == KEEL_OK)
        status = keel_fail_errno(errno, "%s: cannot be closed", encoding->temporary);
    if (status == KEEL_OK && keel_disk_rename(AT_FDCWD, encoding->temporary, AT_FDCWD, path) != 0)
        status = keel_fail_errno(errno, "%s: cannot be named", path);
    if (status != KEEL_OK)
        keel_disk_unlink(AT_FDCWD, encoding->temporary, 0);
    return status == KEEL_OK ? keel_sync_path(config->directory) : status;
}

static enum keel_status open_text(struct encoding *encoding, const char *key)
{
    encoding->in = keel_disk_open(AT_FDCWD, encoding->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (encoding->in < 0)
        return keel_fail_errno(errno, "%s = %s: cannot be opened; name a text, or token files (*.bin)", key,
                               encoding->path);
    if (keel_disk_fstat(encoding->in, &encoding->info) == 0 && S_ISREG(encoding->info.st_mode))
        return KEEL_OK;
    keel_disk_close(encoding->in);
    return keel_fail(KEEL_INVALID, "%s = %s: no regular file; name a text, or token files (*.bin)", key,
                     encoding->path);
}

/* The token file of a text, which `path` names, and then is named by it. */
static enum keel_status encode_one(struct encoding *encoding, const struct keel_tokenizer *tokenizer,
                                   const char *key, char path[KEEL_PATH_BYTES])
{
    char name[64], file[KEEL_PATH_BYTES], *absolute;
    encoding->path = path;
    encoding->bytes = 0;
    encoding->read = encoding->written = 0;
    KEEL_TRY(open_text(encoding, key));
    const uint64_t made_of[] = {
        XXH3_64bits(path, strlen(path)),         (uint64_t)encoding->info.st_size,
        (uint64_t)encoding->info.st_mtim.tv_sec, (uint64_t)encoding->info.st_mtim.tv_nsec,
        keel_tokenizer_digest(tokenizer),        ENCODING_VERSION};
    snprintf(name, sizeof name, "tokens-%016" PRIx64 ".bin", XXH3_64bits(made_of, sizeof made_of));
    enum keel_status status = keel_path_join(file, encoding->config->directory, name);
    if (status == KEEL_OK && !keel_path_exists(file))
        status = make_file(encoding, file);
    keel_disk_close(encoding->in);
    if (status != KEEL_OK)
        return status;
    absolute = realpath(file, NULL);
    const bool fits = absolute != NULL && strlen(absolute) < KEEL_PATH_BYTES;
    if (fits)
        memcpy(path, absolute, strlen(absolute) + 1);
    free(absolute); /* realpath's own allocation */
    return fits ? KEEL_OK : keel_fail(KEEL_LIMIT, "%s: path longer than %d bytes", file, KEEL_PATH_BYTES - 1);
}

enum keel_status keel_job_encode_text(struct keel_job *job, const struct keel_encode_config *config)
{
    const char *files;
    struct keel_tokenizer *tokenizer = NULL;
    struct encoding encoding = {.config = config, .in = -1, .out = -1};
    KEEL_ASSERT(keel_job_has_text_to_encode(job));
    keel_job_vocab(job, &files);
    KEEL_TRY(keel_tokenizer_open(files, &tokenizer));
    enum keel_status status = keel_encoder_create(tokenizer, &encoding.encoder);
    const bool wide = keel_tokenizer_vocab(tokenizer) > WIDE_FROM;
    encoding.width = wide ? 4 : 2;
    if (status == KEEL_OK)
        status = encode_one(&encoding, tokenizer, "data.path", job->path);
    if (status == KEEL_OK && job->val_path[0] != '\0')
        status = encode_one(&encoding, tokenizer, "data.val_path", job->val_path);
    if (status == KEEL_OK)
        job->format = wide ? KEEL_DATA_UINT32 : KEEL_DATA_UINT16;
    keel_free(encoding.text);
    keel_encoder_destroy(encoding.encoder);
    keel_tokenizer_close(tokenizer);
    return status;
}
