/* safetensors_test.c - safetensors files: what is written is read back, in one file or several; the
 * reference's own bytes are met; and whatever is not a file of the format is refused. */
#include "sample.h"
#include <keel/safetensors.h>
#include <sys/wait.h>

static const char golden_path[] = "tests/golden/safetensors/reference.safetensors";

static void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void put_text(const char *directory, const char *name, const char *text)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, directory, name));
    put_file(path, text, strlen(text));
}

/* A file of this header, with its true length, and `data_bytes` behind it. */
static void put_model(const char *path, const char *header, size_t header_bytes, size_t data_bytes)
{
    uint8_t *all;
    ck_ok(keel_alloc(8 + header_bytes + data_bytes, 1, &all));
    for (size_t i = 0; i < 8; i++)
        all[i] = (uint8_t)(header_bytes >> 8 * i);
    memcpy(all + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        all[8 + header_bytes + i] = (uint8_t)i;
    put_file(path, all, 8 + header_bytes + data_bytes);
    keel_free(all);
}

/* ---- round trips --------------------------------------------------------------------------------------- */

/* One tensor of every type, a scalar, empty ones, names that need escapes. */
static uint32_t sample_tensors(struct keel_safetensors_tensor *out)
{
    uint32_t count = 0;
    for (int i = 0; i < KEEL_SAFETENSORS_DTYPES; i++)
        out[count++] = (struct keel_safetensors_tensor){
            .name = keel_safetensors_dtype_name((enum keel_safetensors_dtype)i),
            .dtype = (enum keel_safetensors_dtype)i,
            .dims = 2,
            .shape = {8, 5}};
    out[count++] = (struct keel_safetensors_tensor){.name = "scalar", .dtype = KEEL_SAFETENSORS_F32};
    out[count++] = (struct keel_safetensors_tensor){
        .name = "empty", .dtype = KEEL_SAFETENSORS_F64, .dims = 3, .shape = {4, 0, 2}};
    out[count++] = (struct keel_safetensors_tensor){.name = "a \"name\"\\ with\n \x01 gr\xc3\xbc\xc3\x9f"
                                                            "e \xf0\x9f\x9a\xa2",
                                                    .dtype = KEEL_SAFETENSORS_U8,
                                                    .dims = 1,
                                                    .shape = {3}};
    out[count++] = (struct keel_safetensors_tensor){
        .name = "large", .dtype = KEEL_SAFETENSORS_BF16, .dims = 2, .shape = {4096, 2500}};
    return count;
}

struct source {
    const struct keel_safetensors_tensor *tensors;
    uint32_t last_index;
    uint64_t last_end; /* reading is ascending */
    uint32_t fails_at; /* tensor that cannot be read; UINT32_MAX: none */
};

static void fill(const char *name, uint64_t offset, uint64_t bytes, uint8_t *out)
{
    uint64_t seed = keel_format_check(name, strlen(name));
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(mix(seed ^ ((offset + i) / 8)) >> 8 * ((offset + i) % 8));
}

static enum keel_status source_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    struct source *source = context;
    if (index == source->fails_at)
        return keel_fail(KEEL_IO, "no more");
    ck_assert_uint_le(bytes, 16 << 20);
    ck_assert_uint_eq(offset, index == source->last_index ? source->last_end : 0);
    source->last_index = index;
    source->last_end = offset + bytes;
    fill(source->tensors[index].name, offset, bytes, out);
    return KEEL_OK;
}

static enum keel_status write_sample(const char *path, uint64_t shard_bytes, bool replace,
                                     struct keel_safetensors_written *out)
{
    struct keel_safetensors_tensor tensors[32];
    struct keel_safetensors_note notes[] = {{"keel.step", "12"}, {"format", "pt"}};
    struct source source = {.tensors = tensors, .last_index = UINT32_MAX, .fails_at = UINT32_MAX};
    struct keel_safetensors_write what = {.path = path,
                                          .tensors = tensors,
                                          .tensor_count = sample_tensors(tensors),
                                          .notes = notes,
                                          .note_count = 2,
                                          .shard_bytes = shard_bytes,
                                          .replace = replace,
                                          .read = source_read,
                                          .context = &source};
    return keel_safetensors_write(&what, out);
}

static void check_sample(const char *path)
{
    struct keel_safetensors_tensor tensors[32];
    uint32_t count = sample_tensors(tensors);
    struct keel_safetensors *file;
    ck_ok(keel_safetensors_open(path, &file));
    ck_assert_uint_eq(keel_safetensors_count(file), count);
    ck_assert_str_eq(keel_safetensors_note(file, "format"), "pt");
    ck_assert_str_eq(keel_safetensors_note(file, "keel.step"), "12");
    ck_assert_ptr_null(keel_safetensors_note(file, "none"));
    ck_assert_uint_eq(keel_safetensors_find(file, "none"), UINT32_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = keel_safetensors_find(file, tensors[i].name);
        ck_assert_uint_lt(at, count);
        const struct keel_safetensors_tensor *found = keel_safetensors_tensor(file, at);
        ck_assert_uint_eq(found->dtype, tensors[i].dtype);
        ck_assert_uint_eq(found->dims, tensors[i].dims);
        ck_assert_mem_eq(found->shape, tensors[i].shape, sizeof found->shape);
        uint64_t bytes = keel_safetensors_bytes(found), middle = bytes / 3;
        uint8_t *got, *wanted;
        ck_ok(keel_alloc(bytes, 1, &got));
        ck_ok(keel_alloc(bytes, 1, &wanted));
        fill(found->name, 0, bytes, wanted);
        ck_ok(keel_safetensors_read(file, at, 0, middle, got));
        ck_ok(keel_safetensors_read(file, at, middle, bytes - middle, got + middle));
        ck_assert(memcmp(got, wanted, bytes) == 0);
        keel_free(got);
        keel_free(wanted);
    }
    keel_safetensors_close(file);
}

START_TEST(one_file_is_read_back_bit_for_bit)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(keel_path_join(path, root, "x.safetensors"));
    ck_ok(write_sample(path, 0, false, &written));
    ck_assert_uint_eq(written.files, 1);
    ck_assert_str_eq(written.path, path);
    check_sample(path);
    check_sample(root); /* the only model there */
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(several_files_are_read_back_through_their_index)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], last[KEEL_PATH_BYTES];
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(keel_path_join(path, root, "made/")); /* is made */
    ck_ok(write_sample(path, 300, false, &written));
    ck_assert_uint_gt(written.files, 4);
    ck_ok(keel_path_join(path, root, "made/model.safetensors.index.json"));
    ck_assert_str_eq(written.path, path);
    char name[64];
    snprintf(name, sizeof name, "made/model-%05u-of-%05u.safetensors", written.files, written.files);
    ck_ok(keel_path_join(last, root, name));
    ck_assert(keel_path_is_file(last));
    check_sample(path);
    ck_ok(keel_path_join(path, root, "made"));
    check_sample(path);
    /* and through links, as caches of models have them */
    char link_path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(link_path, root, "link"));
    ck_assert_int_eq(symlink(path, link_path), 0);
    check_sample(link_path);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(what_fits_one_file_has_no_index)
{
    char root[KEEL_PATH_BYTES];
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(write_sample(root, UINT64_C(1) << 40, false, &written));
    ck_assert_uint_eq(written.files, 1);
    ck_assert_ptr_nonnull(strstr(written.path, "/model.safetensors"));
    check_sample(root);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static uint32_t entries_in(const char *path)
{
    uint32_t count = 0;
    DIR *directory = opendir(path);
    ck_assert_ptr_nonnull(directory);
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

START_TEST(nothing_is_replaced_unless_asked_and_then_no_old_form_stays)
{
    char root[KEEL_PATH_BYTES];
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(write_sample(root, 0, false, &written));
    ck_status(write_sample(root, 0, false, &written), KEEL_INVALID);
    ck_status(write_sample(root, 300, false, &written), KEEL_INVALID);
    ck_assert_uint_eq(entries_in(root), 1);
    ck_ok(write_sample(root, 300, true, &written));
    ck_assert_uint_eq(entries_in(root), written.files + 1);
    check_sample(root);
    ck_ok(write_sample(root, 300, true, &written)); /* the same files */
    ck_assert_uint_eq(entries_in(root), written.files + 1);
    check_sample(root);
    ck_ok(write_sample(root, 0, true,
                       &written)); /* its shards stay: they may belong to others, and harm none */
    check_sample(written.path);
    char index[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(index, root, "model.safetensors.index.json"));
    ck_assert(!keel_path_exists(index));
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_write_that_fails_leaves_what_was_there)
{
    char root[KEEL_PATH_BYTES];
    struct keel_safetensors_tensor tensors[32];
    struct source source = {.tensors = tensors, .last_index = UINT32_MAX, .fails_at = 12};
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(write_sample(root, 300, false, &written));
    uint32_t before = entries_in(root);
    struct keel_safetensors_write what = {.path = root,
                                          .tensors = tensors,
                                          .tensor_count = sample_tensors(tensors),
                                          .shard_bytes = 200,
                                          .replace = true,
                                          .read = source_read,
                                          .context = &source};
    for (source.fails_at = 0; source.fails_at < 14; source.fails_at += 3) {
        source.last_index = UINT32_MAX;
        ck_status(keel_safetensors_write(&what, &written), KEEL_IO);
        ck_assert_uint_eq(entries_in(root), before);
        check_sample(root);
    }
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_killed_write_leaves_the_old_or_the_new)
{
    char root[KEEL_PATH_BYTES];
    struct keel_safetensors_written written;
    make_directory(root);
    ck_ok(write_sample(root, 300, false, &written));
    for (uint64_t round = 0; round < 20; round++) {
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0)
            _exit(write_sample(root, 300, true, &written) == KEEL_OK ? 0 : 1);
        keel_sleep_until_ns(keel_deadline_after_ns(mix(round) % (60 * KEEL_NS_PER_MS)));
        kill(child, SIGKILL);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        struct keel_safetensors *file;
        char index[KEEL_PATH_BYTES];
        ck_ok(keel_path_join(index, root, "model.safetensors.index.json"));
        if (keel_path_exists(
                index)) { /* it goes for the moment of the renames, never to say what is not so */
            ck_ok(keel_safetensors_open(index, &file));
            keel_safetensors_close(file);
            check_sample(index);
        }
    }
    ck_ok(write_sample(root, 300, true, &written));
    check_sample(written.path);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(writing_refuses_what_no_reader_would_take)
{
    static const uint64_t big = UINT64_C(1) << 62;
    const struct keel_safetensors_tensor bad[][2] = {
        {{.name = ""}, {.name = "b"}},
        {{.name = "__metadata__"}, {.name = "b"}},
        {{.name = "\xff"}, {.name = "b"}},
        {{.name = "twice"}, {.name = "twice", .dtype = KEEL_SAFETENSORS_U8}},
        {{.name = "dims", .dims = 9}, {.name = "b"}},
        {{.name = "type", .dtype = KEEL_SAFETENSORS_DTYPES}, {.name = "b"}},
        {{.name = "huge", .dtype = KEEL_SAFETENSORS_F64, .dims = 1, .shape = {big}}, {.name = "b"}}};
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "x.safetensors"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct source source = {.tensors = bad[i], .last_index = UINT32_MAX, .fails_at = UINT32_MAX};
        struct keel_safetensors_write what = {
            .path = path, .tensors = bad[i], .tensor_count = 2, .read = source_read, .context = &source};
        struct keel_safetensors_written written;
        ck_status(keel_safetensors_write(&what, &written), KEEL_INVALID);
    }
    struct keel_safetensors_written written;
    ck_ok(keel_path_join(path, root, "x.bin"));
    ck_status(write_sample(path, 0, false, &written), KEEL_INVALID);
    ck_ok(keel_path_join(path, root, "none/x.safetensors"));
    ck_status(write_sample(path, 0, false, &written), KEEL_NOT_FOUND);
    ck_assert_uint_eq(entries_in(root), 0);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- the reference ------------------------------------------------------------------------------------- */

static enum keel_status golden_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    (void)context;
    for (uint64_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)(7 * (index + 1) + 3 * (offset + i));
    return KEEL_OK;
}

/* The golden file was made by the reference package (Python, safetensors 0.8.0) from these very tensors. */
START_TEST(the_references_file_is_read_and_written_again_byte_for_byte)
{
    const struct keel_safetensors_tensor tensors[] = {
        {.name = "h.0.attn.c_attn.weight", .dtype = KEEL_SAFETENSORS_F32, .dims = 2, .shape = {4, 12}},
        {.name = "h.0.ln_1.bias", .dtype = KEEL_SAFETENSORS_F16, .dims = 1, .shape = {4}},
        {.name = "ids", .dtype = KEEL_SAFETENSORS_I64, .dims = 2, .shape = {2, 3}},
        {.name = "mask", .dtype = KEEL_SAFETENSORS_U8, .dims = 1, .shape = {5}},
        {.name = "step", .dtype = KEEL_SAFETENSORS_I32},
        {.name = "none", .dtype = KEEL_SAFETENSORS_F32, .dims = 2, .shape = {0, 3}},
        {.name = "v", .dtype = KEEL_SAFETENSORS_F64, .dims = 1, .shape = {3}},
        {.name = "tr\xc3\xa4ger", .dtype = KEEL_SAFETENSORS_U16, .dims = 1, .shape = {2}}};
    const uint32_t count = sizeof tensors / sizeof tensors[0];
    struct keel_safetensors_note note = {"format", "pt"};
    struct keel_safetensors *file;
    ck_ok(keel_safetensors_open(golden_path, &file));
    ck_assert_uint_eq(keel_safetensors_count(file), count);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t got[256], wanted[256];
        uint32_t at = keel_safetensors_find(file, tensors[i].name);
        ck_assert_uint_lt(at, count);
        uint64_t bytes = keel_safetensors_bytes(keel_safetensors_tensor(file, at));
        ck_assert_uint_eq(bytes, keel_safetensors_bytes(&tensors[i]));
        ck_ok(keel_safetensors_read(file, at, 0, bytes, got));
        ck_ok(golden_read(NULL, i, 0, bytes, wanted));
        ck_assert(memcmp(got, wanted, bytes) == 0);
    }
    keel_safetensors_close(file);
    char root[KEEL_PATH_BYTES], *ours, *theirs;
    size_t our_bytes, their_bytes;
    struct keel_safetensors_written written;
    make_directory(root);
    struct keel_safetensors_write what = {.path = root,
                                          .tensors = tensors,
                                          .tensor_count = count,
                                          .notes = &note,
                                          .note_count = 1,
                                          .read = golden_read};
    ck_ok(keel_safetensors_write(&what, &written));
    ck_ok(keel_file_read(written.path, 1 << 20, &ours, &our_bytes));
    ck_ok(keel_file_read(golden_path, 1 << 20, &theirs, &their_bytes));
    ck_assert_uint_eq(our_bytes, their_bytes);
    ck_assert_mem_eq(ours, theirs, our_bytes);
    keel_free(ours);
    keel_free(theirs);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- refusals ------------------------------------------------------------------------------------------ */

#define T(members) "{\"t\":{" members "}}"
#define GOOD       "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"

static const struct {
    const char *header;
    size_t data_bytes;
    enum keel_status status; /* OK stands for CORRUPT */
    const char *says;        /* in the message */
} bad_headers[] = {
    {"", 0, 0, "does not begin with '{'"},
    {" {}", 0, 0, "does not begin with '{'"},
    {"[]", 0, 0, "does not begin with '{'"},
    {"\"t\"", 0, 0, "does not begin with '{'"},
    {"\xef\xbb\xbf{}", 0, 0, "does not begin with '{'"},
    {"{", 0, 0, "a string is wanted"},
    {"{}x", 0, 0, "behind the end"},
    {"{}{}", 0, 0, "behind the end"},
    {"{\"\xff\":1}", 0, 0, "no UTF-8"},
    {"{\"\xc0\x80\":1}", 0, 0, "no UTF-8"},
    {"{\"\xed\xa0\x80\":1}", 0, 0, "no UTF-8"},
    {"{\"\xf4\x90\x80\x80\":1}", 0, 0, "no UTF-8"},
    {"{\"t\"}", 0, 0, "':' is wanted"},
    {"{\"t\":}", 0, 0, "'{' is wanted"},
    {"{\"t\":null}", 0, 0, "'{' is wanted"},
    {"{\"t\":[]}", 0, 0, "'{' is wanted"},
    {"{\"t\":{}}", 0, 0, "is missing"},
    {"{t:{" GOOD "}}", 8, 0, "a string is wanted"},
    {"{\"t\":{" GOOD "},}", 8, 0, "a string is wanted"},
    {"{\"t\":{" GOOD "}", 8, 0, "end of the list"},
    {"{\"t\n\":{" GOOD "}}", 8, 0, "control character"},
    {"{\"t\\x\":{" GOOD "}}", 8, 0, "escape"},
    {"{\"t\\u12\":{" GOOD "}}", 8, 0, "four digits"},
    {"{\"t\\u0000\":{" GOOD "}}", 8, 0, "U+0000"},
    {"{\"t\\ud800\":{" GOOD "}}", 8, 0, "surrogate"},
    {"{\"t\\udc00\":{" GOOD "}}", 8, 0, "surrogate"},
    {"{\"t\\ud800\\u0041\":{" GOOD "}}", 8, 0, "surrogate"},
    {"{\"t\":{" GOOD "},\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, 0,
     "t: comes twice"},
    {"{\"t\":{" GOOD "},\"\\u0074\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, 0,
     "comes twice"},
    {T("\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0, "is missing"},
    {T("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, 0, "is missing"},
    {T("\"dtype\":\"F32\",\"shape\":[2]"), 8, 0, "is missing"},
    {T(GOOD ",\"shape\":[2]"), 8, 0, "a member comes twice"},
    {T("\"dtype\":\"F32\"," GOOD), 8, 0, "a member comes twice"},
    {T(GOOD ",\"strides\":[1"), 8, 0, "end of the list"},
    {T("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, 0, "do not fill the last byte"},
    {T("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), 8, 0, "a string is wanted"},
    {T("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, KEEL_UNSUPPORTED, "dtype f32"},
    {T("\"dtype\":\"F8_E4M3FN\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, KEEL_UNSUPPORTED,
     "dtype F8_E4M3FN"},
    {T("\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, KEEL_UNSUPPORTED, "dtype"},
    {T("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, 0, "'[' is wanted"},
    {T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[2e0],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]"), 8, 0, "leading zero"},
    {T("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,8]"), 8, 0, "64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), 8, 0, "64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]"), 0, 0, "64 bits"},
    {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), 4, KEEL_LIMIT,
     "dimensions"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), 8, 0, "',' is wanted"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[]"), 8, 0, "whole number"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, 0, "']' is wanted"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, 0, "end before they begin"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4, 0, "hold 4 bytes"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,16]"), 16, 0, "hold 16 bytes"},
    {T("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]"), 0, 0, "need 4"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]"), 12, 0, "belong to no tensor"},
    {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[18446744073709551612,18446744073709551615]"), 8, 0,
     "hold 3"},
    {T(GOOD), 7, 0, "cut short"},
    {T(GOOD), 0, 0, "cut short"},
    {T(GOOD), 9, 0, "too long"},
    {"{}", 1, 0, "too long"},
    {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, 0,
     "another tensor does"},
    {"{\"t\":{" GOOD "},\"u\":{" GOOD "}}", 8, 0, "another tensor does"},
    {"{\"t\":{" GOOD "},\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20, 0,
     "belong to no tensor"},
    {"{\"__metadata__\":1}", 0, 0, "'{' is wanted"},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, "a string is wanted"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, 0, "a string is wanted"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, 0, "comes twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, "comes twice"},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]", 8, 0, "end of the list"},
    {T(GOOD ",\"k\":1e309"), 8, 0, "too large for a double"},
    {T(GOOD ",\"k\":[-1.8E+308]"), 8, 0, "too large for a double"},
    {T(GOOD ",\"k\":0.00017976931348623159e312"), 8, 0, "too large for a double"},
    {T(GOOD ",\"k\":1e99999999999999999999"), 8, 0, "too large for a double"},
    {"{\"t", 0, 0, "does not end"},
    {"{\"t\\", 0, 0, "escape"},
};
enum { BAD_HEADERS = sizeof bad_headers / sizeof bad_headers[0] };

START_TEST(malformed_headers_are_refused_with_their_reason)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_safetensors *file;
    const char *header = bad_headers[_i].header;
    make_directory(root);
    ck_ok(keel_path_join(path, root, "bad.safetensors"));
    put_model(path, header, strlen(header), bad_headers[_i].data_bytes);
    enum keel_status wanted = bad_headers[_i].status == KEEL_OK ? KEEL_CORRUPT : bad_headers[_i].status;
    ck_status(keel_safetensors_open(path, &file), wanted);
    ck_assert_msg(strstr(keel_detail(), bad_headers[_i].says) != NULL, "%s: said: %s", header, keel_detail());
    ck_assert_msg(strstr(keel_detail(), "bad.safetensors") != NULL, "%s: said: %s", header, keel_detail());
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(what_the_format_allows_is_taken)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        uint32_t count;
    } good[] = {
        {"{}", 0, 0},
        {"{}      ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {T(GOOD), 8, 1},
        {T("\"data_offsets\":[0,8],\"shape\":[2],\"dtype\":\"F32\""), 8, 1},
        {"{ \"t\" : { \"dtype\" : \"F32\" , \"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 8 ] } } \n", 8, 1},
        {T("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]"), 4, 1},
        {T("\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]"), 0, 1},
        {"{\"b\":{" GOOD "},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}", 9, 2},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},\"a\":{" GOOD "}}", 8, 2},
        {T(GOOD ",\"k\":[1e308,-1.7976931348623157e308,1e-999,0e999,1e-99999999999999999999,17.97e307,0."
                "0017e311]"),
         8, 1},
        {T("\"dtype\":\"U16\",\"shape\":[18446744073709551615,0],\"data_offsets\":[0,0]"), 0, 1},
        {"{\"\\ud83d\\udea2\\/\\t\":{" GOOD "}}", 8, 1}};
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "good.safetensors"));
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct keel_safetensors *file;
        put_model(path, good[i].header, strlen(good[i].header), good[i].data_bytes);
        ck_ok(keel_safetensors_open(path, &file));
        ck_assert_uint_eq(keel_safetensors_count(file), good[i].count);
        keel_safetensors_close(file);
    }
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_nul_in_the_header_is_refused)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    static const char header[] = "{\"t\0\":{" GOOD "}}", tail[] = "{}\0\0\0\0\0\0";
    struct keel_safetensors *file;
    make_directory(root);
    ck_ok(keel_path_join(path, root, "bad.safetensors"));
    put_model(path, header, sizeof header - 1, 8);
    ck_status(keel_safetensors_open(path, &file), KEEL_CORRUPT);
    put_model(path, tail, sizeof tail - 1, 0);
    ck_status(keel_safetensors_open(path, &file), KEEL_CORRUPT);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(lengths_that_lie_are_refused)
{
    static const struct {
        uint64_t length;
        size_t file_bytes;
        enum keel_status status;
    } lies[] = {{0, 8, KEEL_CORRUPT},         {0, 0, KEEL_CORRUPT},
                {2, 7, KEEL_CORRUPT},         {2, 9, KEEL_CORRUPT},
                {UINT64_MAX, 64, KEEL_LIMIT}, {UINT64_C(1) << 63, 64, KEEL_LIMIT},
                {100000001, 64, KEEL_LIMIT},  {100000000, 64, KEEL_CORRUPT},
                {57, 64, KEEL_CORRUPT},       {0x7b7d000000000000, 64, KEEL_LIMIT}}; /* a big-endian writer */
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    make_directory(root);
    ck_ok(keel_path_join(path, root, "bad.safetensors"));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        uint8_t data[64] = {0};
        struct keel_safetensors *file;
        for (size_t b = 0; b < 8; b++)
            data[b] = (uint8_t)(lies[i].length >> 8 * b);
        memset(data + 8, ' ', sizeof data - 8);
        data[8] = '{';
        put_file(path, data, lies[i].file_bytes);
        ck_status(keel_safetensors_open(path, &file), lies[i].status);
    }
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* Every prefix of a good file is refused. */
START_TEST(a_file_cut_short_anywhere_is_refused)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], *data;
    size_t bytes;
    make_directory(root);
    ck_ok(keel_path_join(path, root, "cut.safetensors"));
    ck_ok(keel_file_read(golden_path, 1 << 20, &data, &bytes));
    for (size_t cut = 0; cut < bytes; cut++) {
        struct keel_safetensors *file;
        put_file(path, data, cut);
        ck_status(keel_safetensors_open(path, &file), KEEL_CORRUPT);
    }
    keel_free(data);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(what_is_no_regular_file_is_refused_at_once)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_safetensors *file;
    make_directory(root);
    ck_status(keel_safetensors_open(root, &file), KEEL_NOT_FOUND); /* an empty directory */
    ck_ok(keel_path_join(path, root, "x.safetensors"));
    ck_status(keel_safetensors_open(path, &file), KEEL_NOT_FOUND);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_status(keel_safetensors_open(path, &file), KEEL_INVALID);
    ck_ok(keel_path_join(path, root, "x.safetensors.index.json"));
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_status(keel_safetensors_open(path, &file), KEEL_INVALID);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- indices ----------------------------------------------------------------------------------------- */

#define MAP(members) "{\"metadata\":{\"total_size\":16},\"weight_map\":{" members "}}"
#define BOTH         "\"a\":\"1.safetensors\",\"b\":\"2.safetensors\""

static const struct {
    const char *text;
    const char *says; /* NULL: it is good */
} indices[] = {
    {MAP(BOTH), NULL},
    {"{\"weight_map\":{" BOTH "}}", NULL},
    {"{\"metadata\":{},\"weight_map\":{" BOTH "}}", NULL},
    {"{\"metadata\":{\"total_parameters\":4,\"x\":[1,{\"y\":[true,null,-1.5e3,\"\"]}]},\"weight_map\":{" BOTH
     "},\"more\":{}}",
     NULL},
    {"", "'{' is wanted"},
    {"[]", "'{' is wanted"},
    {"{}", "no weight_map"},
    {"{\"weight_map\":{}}", "no weight_map"},
    {"{\"weight_map\":[]}", "'{' is wanted"},
    {"{\"weight_map\":{" BOTH "},\"weight_map\":{" BOTH "}}", "comes twice"},
    {"{\"metadata\":{},\"metadata\":{},\"weight_map\":{" BOTH "}}", "comes twice"},
    {MAP(BOTH) "x", "behind the end"},
    {MAP("\"a\":1"), "a string is wanted"},
    {MAP("\"a\":\"1.safetensors\",\"a\":\"2.safetensors\""), "comes twice"},
    {MAP("\"\":\"1.safetensors\""), "is not in 1.safetensors"},
    {MAP("\"a\":\"../1.safetensors\""), "same directory"},
    {MAP("\"a\":\"/etc/1.safetensors\""), "same directory"},
    {MAP("\"a\":\"sub/1.safetensors\""), "same directory"},
    {MAP("\"a\":\"..\""), "same directory"},
    {MAP("\"a\":\"\""), "same directory"},
    {MAP("\"a\":\".safetensors\""), "same directory"},
    {MAP("\"a\":\"1.bin\""), "same directory"},
    {MAP("\"a\":\"\\u00011.safetensors\""), "same directory"},
    {MAP("\"a\":\"..\\\\1.safetensors\""), "same directory"},
    {MAP("\"a\":\"3.safetensors\",\"b\":\"2.safetensors\""), "3.safetensors"},
    {MAP("\"a\":\"2.safetensors\",\"b\":\"1.safetensors\""), "does not say"},
    {MAP("\"a\":\"1.safetensors\""), "total_size"},
    {MAP(BOTH ",\"c\":\"1.safetensors\""), "tensor c is not in 1.safetensors"},
    {MAP(BOTH ",\"0\":\"2.safetensors\""), "tensor 0 is not in 2.safetensors"},
    {"{\"metadata\":{\"total_size\":15},\"weight_map\":{" BOTH "}}", "total_size is 15"},
    {"{\"metadata\":{\"total_size\":-1},\"weight_map\":{" BOTH "}}", "whole number"},
    {"{\"metadata\":{\"total_size\":16,\"total_size\":16},\"weight_map\":{" BOTH "}}", "comes twice"},
    {"{\"metadata\":[],\"weight_map\":{" BOTH "}}", "'{' is wanted"},
    {"{\"metadata\":{\"x\":[1,]},\"weight_map\":{" BOTH "}}", "a value is wanted"},
    {"{\"metadata\":{\"x\":nil},\"weight_map\":{" BOTH "}}", "a value is wanted"},
    {"{\"metadata\":{\"x\":1.},\"weight_map\":{" BOTH "}}", "point"},
    {"{\"metadata\":{\"x\":1e},\"weight_map\":{" BOTH "}}", "exponent"},
    {"{\"metadata\":{\"x\":{1:2}},\"weight_map\":{" BOTH "}}", "a string is wanted"},
    {"{\"metadata\":{\"x\":\"\xff\"},\"weight_map\":{" BOTH "}}", "no UTF-8"},
};
enum { INDICES = sizeof indices / sizeof indices[0] };

static void put_two_files(const char *root)
{
    char path[KEEL_PATH_BYTES];
    static const char a[] = "{\"a\":{" GOOD "}}", b[] = "{\"b\":{" GOOD "}}";
    ck_ok(keel_path_join(path, root, "1.safetensors"));
    put_model(path, a, sizeof a - 1, 8);
    ck_ok(keel_path_join(path, root, "2.safetensors"));
    put_model(path, b, sizeof b - 1, 8);
}

START_TEST(an_index_is_believed_only_where_the_files_agree)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_safetensors *file;
    make_directory(root);
    put_two_files(root);
    put_text(root, "m.safetensors.index.json", indices[_i].text);
    ck_ok(keel_path_join(path, root, "m.safetensors.index.json"));
    if (indices[_i].says == NULL) {
        ck_ok(keel_safetensors_open(path, &file));
        ck_assert_uint_eq(keel_safetensors_count(file), 2);
        ck_assert_str_eq(keel_safetensors_tensor(file, 1)->name, "b");
        keel_safetensors_close(file);
    } else {
        enum keel_status status = keel_safetensors_open(path, &file);
        ck_assert(status == KEEL_CORRUPT || status == KEEL_NOT_FOUND);
        ck_assert_msg(strstr(keel_detail(), indices[_i].says) != NULL, "%s: said: %s", indices[_i].text,
                      keel_detail());
    }
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(nesting_without_end_is_refused)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], text[4096];
    struct keel_safetensors *file;
    make_directory(root);
    snprintf(text, sizeof text, "{\"metadata\":{\"x\":%.*s", 2000, "");
    size_t begin = strlen(text);
    memset(text + begin, '[', 2000);
    text[begin + 2000] = '\0';
    put_text(root, "m.safetensors.index.json", text);
    ck_ok(keel_path_join(path, root, "m.safetensors.index.json"));
    ck_status(keel_safetensors_open(path, &file), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "too deep"));
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_directory_of_several_models_asks_which)
{
    char root[KEEL_PATH_BYTES];
    struct keel_safetensors *file;
    make_directory(root);
    put_two_files(root);
    ck_status(keel_safetensors_open(root, &file), KEEL_INVALID);
    put_text(root, "m.safetensors.index.json", MAP(BOTH));
    ck_ok(keel_safetensors_open(root, &file));
    keel_safetensors_close(file);
    put_text(root, "m.safetensors", "");
    ck_status(keel_safetensors_open(root, &file), KEEL_INVALID);
    put_text(root, "n.safetensors.index.json", MAP(BOTH));
    ck_status(keel_safetensors_open(root, &file), KEEL_INVALID);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, one_file_is_read_back_bit_for_bit);
    tcase_add_test(tc, several_files_are_read_back_through_their_index);
    tcase_add_test(tc, what_fits_one_file_has_no_index);
    tcase_add_test(tc, nothing_is_replaced_unless_asked_and_then_no_old_form_stays);
    tcase_add_test(tc, a_write_that_fails_leaves_what_was_there);
    tcase_add_test(tc, a_killed_write_leaves_the_old_or_the_new);
    tcase_add_test(tc, writing_refuses_what_no_reader_would_take);
    tcase_add_test(tc, the_references_file_is_read_and_written_again_byte_for_byte);
    tcase_add_loop_test(tc, malformed_headers_are_refused_with_their_reason, 0, BAD_HEADERS);
    tcase_add_test(tc, what_the_format_allows_is_taken);
    tcase_add_test(tc, a_nul_in_the_header_is_refused);
    tcase_add_test(tc, lengths_that_lie_are_refused);
    tcase_add_test(tc, a_file_cut_short_anywhere_is_refused);
    tcase_add_test(tc, what_is_no_regular_file_is_refused_at_once);
    tcase_add_loop_test(tc, an_index_is_believed_only_where_the_files_agree, 0, INDICES);
    tcase_add_test(tc, nesting_without_end_is_refused);
    tcase_add_test(tc, a_directory_of_several_models_asks_which);
}

KEEL_TEST_MAIN("safetensors", cases, 60)
