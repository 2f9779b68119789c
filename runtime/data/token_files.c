/* token_files.c - see token_files.h. */
#include "token_files.h"
#include <fnmatch.h>
#include <keel/disk.h>
#include <keel/memory.h>
#include <string.h>
#include <xxhash.h>

enum { FILES_MAX = 1 << 16, SURVEY_BLOCK_BYTES = 1 << 16, SURVEY_BLOCKS = 1024, CHUNK_BYTES = 8192 };
enum { MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7 };

static uint32_t little_endian(const uint8_t *at, uint32_t width)
{
    uint32_t low = at[0] | (uint32_t)at[1] << 8;
    return width == 2 ? low : low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- one file ------------------------------------------------------------------------------------------ */

/* The file has llm.c's header, of tokens of `width` bytes. */
static enum keel_status parse_header(const uint8_t *at, uint64_t file_bytes, uint32_t width, const char *name,
                                     struct keel_token_layout *out)
{
    const uint32_t wanted = width == 2 ? VERSION_16 : VERSION_32, version = little_endian(at + 4, 4);
    const uint64_t count = little_endian(at + 8, 4), there = (file_bytes - KEEL_TOKEN_HEAD_BYTES) / width;
    if (version != wanted)
        return keel_fail(KEEL_INVALID,
                         "%s: its header has version %u, and %u is read; write it again with a tool of that "
                         "version",
                         name, version, wanted);
    if (file_bytes != KEEL_TOKEN_HEAD_BYTES + count * width)
        return keel_fail(KEEL_INVALID,
                         "%s: has %llu tokens behind its header, which tells of %llu: it was cut short or "
                         "written to; write it again",
                         name, (unsigned long long)there, (unsigned long long)count);
    *out = (struct keel_token_layout){KEEL_TOKEN_HEAD_BYTES, count, width};
    return KEEL_OK;
}

/* The magic's width where the file begins with a header, 0 where it does not (token_files.h). */
static uint32_t header_width(const uint8_t *head, size_t count, uint64_t file_bytes)
{
    if (count < KEEL_TOKEN_HEAD_BYTES)
        return 0;
    const uint32_t magic = little_endian(head, 4), width = magic == MAGIC_16 ? 2 : magic == MAGIC_32 ? 4 : 0;
    const uint64_t told = little_endian(head + 8, 4);
    bool zeros = true;
    for (size_t i = 12; i < KEEL_TOKEN_HEAD_BYTES; i++)
        zeros = zeros && head[i] == 0;
    return zeros || file_bytes == KEEL_TOKEN_HEAD_BYTES + told * width ? width : 0;
}

enum keel_status keel_token_layout_parse(const void *head, size_t count, uint64_t file_bytes, uint32_t width,
                                         const char *name, struct keel_token_layout *out)
{
    struct keel_token_layout layout = {0, file_bytes / width, width};
    const uint32_t of_header = header_width(head, count, file_bytes);
    if (of_header != 0)
        KEEL_TRY(parse_header(head, file_bytes, of_header, name, &layout));
    else if (file_bytes % width != 0)
        return keel_fail(KEEL_INVALID,
                         "%s: %llu bytes are no whole number of tokens of %u bytes: it was cut short, or "
                         "data.format is another",
                         name, (unsigned long long)file_bytes, width);
    if (layout.count == 0)
        return keel_fail(KEEL_INVALID, "%s: has no token; write it again, or leave it out", name);
    *out = layout;
    return KEEL_OK;
}

static enum keel_status read_layout(const char *path, uint32_t width, struct keel_token_file *file)
{
    uint8_t head[KEEL_TOKEN_HEAD_BYTES];
    int fd = -1;
    KEEL_TRY(keel_data_file_open(path, &file->of, &fd));
    const size_t count = file->of.bytes < sizeof head ? (size_t)file->of.bytes : sizeof head;
    enum keel_status status = keel_pread_all(fd, head, count, 0, path);
    keel_disk_close(fd);
    if (status != KEEL_OK)
        return status;
    return keel_token_layout_parse(head, count, file->of.bytes, width, path, &file->layout);
}

static enum keel_status refuse_token(const struct keel_token_file *file, uint64_t index, uint32_t token,
                                     uint32_t vocab)
{
    const uint64_t offset = file->layout.first_byte + index * file->layout.width;
    return keel_fail(KEEL_INVALID,
                     "%s: token %u at byte %llu (number %llu) is beyond the vocabulary of %u; give the "
                     "model.vocab that the file was written for, or another data.format",
                     file->of.path, token, (unsigned long long)offset, (unsigned long long)index, vocab);
}

enum keel_status keel_token_file_read(const struct keel_token_file *file, uint64_t first, uint32_t count,
                                      uint32_t vocab, int32_t *out_first, int32_t *out)
{
    const struct keel_token_layout *layout = &file->layout;
    const uint32_t width = layout->width, most = CHUNK_BYTES / width;
    uint8_t chunk[CHUNK_BYTES];
    enum keel_status status = KEEL_OK;
    int32_t *next = out;
    int fd = -1;
    if (out_first == NULL)
        out_first = next++;
    KEEL_ASSERT(first <= layout->count && count <= layout->count - first);
    KEEL_TRY(keel_data_file_again(&file->of, &fd));
    for (uint32_t done = 0; done < count && status == KEEL_OK;) {
        const uint32_t now = count - done < most ? count - done : most;
        const uint64_t index = first + done;
        status = keel_pread_all(fd, chunk, (uint64_t)now * width, layout->first_byte + index * width,
                                file->of.path);
        for (uint32_t t = 0; t < now && status == KEEL_OK; t++) {
            const uint32_t token = little_endian(chunk + (size_t)t * width, width);
            if (token >= vocab)
                status = refuse_token(file, index + t, token, vocab);
            *(done + t == 0 ? out_first : next++) = (int32_t)token;
        }
        done += now;
    }
    keel_disk_close(fd);
    return status;
}

/* ---- several files ------------------------------------------------------------------------------------- */

static enum keel_status add_file(struct keel_token_files *files, const char *path, uint32_t width)
{
    if (files->count == FILES_MAX)
        return keel_fail(KEEL_LIMIT, "%s: more than %d token files; join some", path, FILES_MAX);
    KEEL_TRY(keel_grow(&files->files, &files->capacity, files->count + 1, sizeof *files->files));
    struct keel_token_file *file = &files->files[files->count];
    *file = (struct keel_token_file){.of = {.path = NULL}};
    files->count++; /* fini frees it from here on */
    KEEL_TRY(read_layout(path, width, file));
    files->tokens += file->layout.count;
    files->bytes += file->of.bytes;
    return KEEL_OK;
}

struct match {
    struct keel_token_files *files;
    const char *folder, *pattern;
    uint32_t width;
};

static enum keel_status see_name(void *context, const char *name)
{
    const struct match *match = context;
    char path[KEEL_PATH_BYTES];
    if (fnmatch(match->pattern, name, FNM_PERIOD) != 0)
        return KEEL_OK;
    KEEL_TRY(keel_path_join(path, match->folder, name));
    return add_file(match->files, path, match->width);
}

enum keel_status keel_token_files_add(struct keel_token_files *files, const char *path, const char *key,
                                      uint32_t width)
{
    const char *slash = strrchr(path, '/');
    const char *pattern = slash == NULL ? path : slash + 1;
    const size_t before = files->count;
    char folder[KEEL_PATH_BYTES];
    struct match match = {files, folder, pattern, width};
    if (keel_path_exists(path))
        return add_file(files, path, width);
    KEEL_TRY(keel_path_parent(folder, path));
    if (strpbrk(pattern, "*?[") != NULL && keel_path_exists(folder))
        KEEL_TRY(keel_dir_list(folder, see_name, &match));
    if (files->count > before)
        return KEEL_OK;
    return keel_fail(KEEL_NOT_FOUND,
                     "%s = %s: no such file; name a token file, or several of a folder by a pattern, as "
                     "DIR/train_*.bin",
                     key, path);
}

void keel_token_files_fini(struct keel_token_files *files)
{
    for (size_t f = 0; f < files->count; f++)
        keel_data_file_fini(&files->files[f].of);
    keel_free(files->files);
    *files = (struct keel_token_files){.files = NULL};
}

/* ---- survey -------------------------------------------------------------------------------------------- */

struct survey {
    XXH3_state_t *digest;
    uint8_t *block; /* SURVEY_BLOCK_BYTES */
    uint32_t vocab, highest;
    bool whole;
};

static enum keel_status survey_block(struct survey *survey, const struct keel_token_file *file, int fd,
                                     uint64_t offset, uint64_t bytes)
{
    const struct keel_token_layout *layout = &file->layout;
    KEEL_TRY(keel_pread_all(fd, survey->block, bytes, offset, file->of.path));
    XXH3_64bits_update(survey->digest, survey->block, (size_t)bytes);
    uint64_t at = offset < layout->first_byte ? layout->first_byte - offset : 0;
    for (; at + layout->width <= bytes; at += layout->width) {
        const uint32_t token = little_endian(survey->block + at, layout->width);
        if (survey->vocab != 0 && token >= survey->vocab)
            return refuse_token(file, (offset + at - layout->first_byte) / layout->width, token,
                                survey->vocab);
        survey->highest = token > survey->highest ? token : survey->highest;
    }
    return KEEL_OK;
}

/* Blocks of one file: all of them, or `blocks` from the first bytes to the last ones. */
static enum keel_status survey_file(struct survey *survey, const struct keel_token_file *file,
                                    uint64_t blocks)
{
    const uint64_t whole = (file->of.bytes + SURVEY_BLOCK_BYTES - 1) / SURVEY_BLOCK_BYTES;
    const bool all = survey->whole || blocks >= whole;
    enum keel_status status = KEEL_OK;
    int fd = -1;
    KEEL_TRY(keel_data_file_again(&file->of, &fd));
    for (uint64_t b = 0; b < (all ? whole : blocks) && status == KEEL_OK; b++) {
        /* Blocks begin at whole tokens: the head and a block's bytes are multiples of either width. */
        uint64_t offset =
            all ? b * SURVEY_BLOCK_BYTES : (file->of.bytes - SURVEY_BLOCK_BYTES) / (blocks - 1) * b / 4 * 4;
        if (!all && b == blocks - 1)
            offset = (file->of.bytes - SURVEY_BLOCK_BYTES) / file->layout.width * file->layout.width;
        const uint64_t left = file->of.bytes - offset;
        status =
            survey_block(survey, file, fd, offset, left < SURVEY_BLOCK_BYTES ? left : SURVEY_BLOCK_BYTES);
    }
    keel_disk_close(fd);
    return status;
}

bool keel_token_files_are_surveyed_whole(const struct keel_token_files *files)
{
    return files->bytes <= KEEL_TOKENS_WHOLE_BYTES;
}

static enum keel_status survey_all(struct survey *survey, const struct keel_token_files *files)
{
    for (size_t f = 0; f < files->count; f++) {
        const struct keel_token_file *file = &files->files[f];
        const uint64_t facts[] = {file->layout.first_byte, file->layout.count, file->layout.width};
        const uint64_t blocks =
            2 + (uint64_t)((double)SURVEY_BLOCKS * (double)file->of.bytes / (double)files->bytes);
        XXH3_64bits_update(survey->digest, facts, sizeof facts);
        KEEL_TRY(survey_file(survey, file, blocks));
    }
    return KEEL_OK;
}

enum keel_status keel_token_files_survey(const struct keel_token_files *files, uint32_t vocab,
                                         uint64_t *out_digest, uint32_t *out_highest)
{
    struct survey survey = {.vocab = vocab, .whole = keel_token_files_are_surveyed_whole(files)};
    if (vocab == 0 && !survey.whole)
        return keel_fail(KEEL_INVALID,
                         "model.vocab = 0: %llu bytes of token files are not searched for their highest "
                         "token; give the vocabulary that they were written for (50257 of GPT-2's)",
                         (unsigned long long)files->bytes);
    KEEL_TRY(keel_alloc(1, SURVEY_BLOCK_BYTES, &survey.block));
    survey.digest = XXH3_createState();
    enum keel_status status =
        survey.digest != NULL ? KEEL_OK : keel_fail(KEEL_NO_MEMORY, "no memory to look at token files");
    if (status == KEEL_OK) {
        XXH3_64bits_reset(survey.digest);
        status = survey_all(&survey, files);
    }
    if (status == KEEL_OK) {
        *out_digest = XXH3_64bits_digest(survey.digest);
        *out_highest = survey.highest;
    }
    XXH3_freeState(survey.digest);
    keel_free(survey.block);
    return status;
}

/* ---- tokens as people write them ----------------------------------------------------------------------- */

static bool is_space(char sign) /* or a comma, as lists have it */
{
    return sign == ' ' || sign == '\n' || sign == '\t' || sign == '\r' || sign == ',';
}

/* The number that a word is; UINT32_MAX: none, or too large for any vocabulary. */
static uint32_t read_number(const char *word, size_t length)
{
    uint32_t number = 0;
    for (size_t i = 0; i < length; i++) {
        if (word[i] < '0' || word[i] > '9' || number > UINT32_MAX / 10 - 1)
            return UINT32_MAX;
        number = 10 * number + (uint32_t)(word[i] - '0');
    }
    return number;
}

static enum keel_status parse_numbers(const char *text, size_t bytes, uint32_t vocab, int32_t **tokens,
                                      size_t *count)
{
    size_t capacity = 0, at = 0;
    for (;;) {
        while (at < bytes && is_space(text[at]))
            at++;
        if (at == bytes)
            return KEEL_OK;
        const size_t begin = at;
        while (at < bytes && !is_space(text[at]))
            at++;
        const uint32_t number = read_number(text + begin, at - begin);
        if (number >= vocab || number > INT32_MAX)
            return keel_fail(KEEL_INVALID,
                             "word %zu, at byte %zu, is no number of a token: they are below %u, and the job "
                             "names no tokenizer (data.vocab = bpe:...)",
                             *count + 1, begin, vocab);
        KEEL_TRY(keel_grow(tokens, &capacity, *count + 1, sizeof **tokens));
        (*tokens)[(*count)++] = (int32_t)number;
    }
}

enum keel_status keel_token_numbers_parse(const char *text, size_t bytes, uint32_t vocab, int32_t **out,
                                          size_t *out_count)
{
    int32_t *tokens = NULL;
    size_t count = 0;
    const enum keel_status status = parse_numbers(text, bytes, vocab, &tokens, &count);
    if (status != KEEL_OK) {
        keel_free(tokens);
        return status;
    }
    *out = tokens;
    *out_count = count;
    return KEEL_OK;
}
