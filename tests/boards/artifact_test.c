/* artifact_test.c - artifacts: what was made is what a driver gets, and nothing else ever does. */
#include "artifact.h"
#include "harness.h"
#include <jansson.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MODULES = 4, FILES = 3, TRIES = 10000, CHANGES_MAX = 4 };

static const struct keel_module modules[MODULES] = {
    {.name = "add",
     .source = "kernel void add() {}",
     .kernels = (const struct keel_module_kernel[]){{"add", NULL}},
     .kernel_count = 1},
    {.name = "mul",
     .source = "kernel void mul() {} kernel void square() {}",
     .kernels = (const struct keel_module_kernel[]){{"mul", NULL}, {"square", NULL}},
     .kernel_count = 2},
    {.name = "sum",
     .source = "kernel void sum() {}",
     .kernels = (const struct keel_module_kernel[]){{"sum", NULL}},
     .kernel_count = 1},
    {.name = "sort",
     .source = "kernel void sort() {}",
     .kernels = (const struct keel_module_kernel[]){{"sort", NULL}},
     .kernel_count = 1},
};
static const char *const options[MODULES] = {"", "-DTILE=4", "-DTILE=4", ""};
static const char *const names[] = {"manifest.json", "manifest.sum", "add-0.bin", "image-1.bin",
                                    "sort-2.bin"};
enum { NAMES = sizeof names / sizeof names[0] };

static char folder[KEEL_PATH_BYTES];
static struct keel_device_info info;
static char *original[NAMES];
static size_t original_bytes[NAMES];
static uint8_t code[FILES][600];

/* ---- a folder that is right ---- */

static void describe(uint32_t module, struct keel_code_kernel *kernels, char *hash,
                     struct keel_artifact_program *out)
{
    keel_artifact_hash(modules[module].source, strlen(modules[module].source), hash);
    for (uint32_t i = 0; i < modules[module].kernel_count; i++)
        kernels[i] = (struct keel_code_kernel){.name = modules[module].kernels[i].name, .arg_count = 3 + i};
    *out = (struct keel_artifact_program){.module = modules[module].name,
                                          .options = options[module],
                                          .source = hash,
                                          .kernels = kernels,
                                          .kernel_count = modules[module].kernel_count};
}

static void add_file(struct keel_artifact_writer *writer, uint32_t file, uint32_t first, uint32_t count,
                     const char *stem)
{
    struct keel_code_kernel kernels[MODULES][2] = {0};
    char hashes[MODULES][KEEL_ARTIFACT_HEX_BYTES];
    struct keel_artifact_program programs[MODULES];
    for (uint32_t i = 0; i < count; i++)
        describe(first + i, kernels[i], hashes[i], &programs[i]);
    kernels[0][0].local[0] = 64;
    kernels[0][0].local[1] = kernels[0][0].local[2] = 1;
    const struct keel_artifact_file described = {.form = KEEL_CODE_BINARY,
                                                 .bytes = sizeof code[file],
                                                 .image = count > 1 ? 7 : 0,
                                                 .programs = programs,
                                                 .program_count = count};
    ck_ok(keel_artifact_writer_add(writer, stem, code[file], &described));
}

static void path_of(const char *name, char out[KEEL_PATH_BYTES])
{
    ck_ok(keel_path_join(out, folder, name));
}

static void make_folder(void)
{
    struct keel_artifact_writer writer;
    snprintf(folder, sizeof folder, "/dev/shm/keel-artifact-%ld", (long)getpid());
    snprintf(info.platform, sizeof info.platform, "Acme");
    snprintf(info.name, sizeof info.name, "Acme \"One\" \\ 1");
    snprintf(info.driver_version, sizeof info.driver_version, "1.2.3");
    info.memory_banks = 1;
    for (uint32_t i = 0; i < FILES; i++)
        for (uint32_t k = 0; k < sizeof code[i]; k++)
            code[i][k] = (uint8_t)(i * 57 + k * 31 + k / 256);
    ck_ok(keel_artifact_writer_begin(&writer, folder));
    add_file(&writer, 0, 0, 1, "add");
    add_file(&writer, 1, 1, 2, "image");
    add_file(&writer, 2, 3, 1, "sort");
    ck_ok(keel_artifact_writer_finish(&writer, &info));
    keel_artifact_writer_fini(&writer);
    for (uint32_t i = 0; i < NAMES; i++) {
        char path[KEEL_PATH_BYTES];
        path_of(names[i], path);
        ck_ok(keel_file_read(path, 1 << 20, &original[i], &original_bytes[i]));
    }
}

static void remove_folder(void)
{
    for (uint32_t i = 0; i < NAMES; i++)
        keel_free(original[i]);
    ck_ok(keel_remove_tree(folder));
}

static void put(const char *name, const void *data, size_t bytes)
{
    char path[KEEL_PATH_BYTES];
    path_of(name, path);
    FILE *file = fopen(path, "wb");
    ck_assert(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void put_back(uint32_t i)
{
    put(names[i], original[i], original_bytes[i]);
}

/* A manifest with the sum that belongs to it. */
static void put_manifest(const char *text, size_t bytes)
{
    char hash[KEEL_ARTIFACT_HEX_BYTES], sum[KEEL_ARTIFACT_HEX_BYTES + 32];
    keel_artifact_hash(text, bytes, hash);
    put("manifest.json", text, bytes);
    put("manifest.sum", sum, (size_t)snprintf(sum, sizeof sum, "%s  manifest.json\n", hash));
}

static enum keel_status open_once(void)
{
    struct keel_artifacts *artifacts;
    enum keel_status status = keel_artifacts_open(folder, &info, &artifacts);
    if (status == KEEL_OK)
        keel_artifacts_close(artifacts);
    return status;
}

/* ---- claims ---- */

START_TEST(what_was_made_is_what_is_found)
{
    struct keel_artifacts *artifacts;
    struct keel_code found, other;
    ck_ok(keel_artifacts_open(folder, &info, &artifacts));
    static const uint32_t file_of[MODULES] = {0, 1, 1, 2};
    for (uint32_t i = 0; i < MODULES; i++) {
        ck_ok(keel_artifacts_find(artifacts, &modules[i], options[i], &found));
        ck_assert_int_eq(found.form, KEEL_CODE_BINARY);
        ck_assert_uint_eq(found.size, sizeof code[0]);
        ck_assert(memcmp(found.bytes, code[file_of[i]], sizeof code[0]) == 0);
        ck_assert_uint_eq(found.image, file_of[i] == 1 ? 7 : 0);
        ck_assert_str_eq(found.kernels[0].name, modules[i].kernels[0].name);
        ck_assert_uint_eq(found.kernels[0].arg_count, 3);
    }
    ck_ok(keel_artifacts_find(artifacts, &modules[0], "", &other));
    ck_assert_uint_eq(other.kernels[0].local[0], 64);
    ck_status(keel_artifacts_find(artifacts, &modules[0], "-DTILE=4", &other), KEEL_NOT_FOUND);
    keel_artifacts_close(artifacts);
}
END_TEST

START_TEST(another_source_or_a_missing_kernel_is_told)
{
    struct keel_artifacts *artifacts;
    struct keel_code found;
    struct keel_module changed = modules[0];
    ck_ok(keel_artifacts_open(folder, &info, &artifacts));
    changed.source = "kernel void add() { }";
    ck_status(keel_artifacts_find(artifacts, &changed, "", &found), KEEL_MISMATCH);
    ck_assert(strstr(keel_detail(), "keel board build") != NULL);
    changed = modules[0];
    changed.kernels = modules[2].kernels;
    ck_status(keel_artifacts_find(artifacts, &changed, "", &found), KEEL_MISMATCH);
    ck_assert(strstr(keel_detail(), "kernel sum") != NULL);
    keel_artifacts_close(artifacts);
}
END_TEST

START_TEST(another_device_or_driver_is_told_with_both_names)
{
    snprintf(info.driver_version, sizeof info.driver_version, "1.2.4");
    ck_status(open_once(), KEEL_MISMATCH);
    ck_assert(strstr(keel_detail(), "1.2.3") != NULL && strstr(keel_detail(), "1.2.4") != NULL);
    snprintf(info.driver_version, sizeof info.driver_version, "1.2.3");
    snprintf(info.name, sizeof info.name, "Acme Two");
    ck_status(open_once(), KEEL_MISMATCH);
    ck_assert(strstr(keel_detail(), "Acme Two") != NULL);
}
END_TEST

/* Beginning is refused, and names what is in the way; not a byte is changed. */
static void refuses_to_begin(const char *in_the_way)
{
    struct keel_artifact_writer writer;
    ck_status(keel_artifact_writer_begin(&writer, folder), KEEL_INVALID);
    ck_assert_msg(strstr(keel_detail(), in_the_way) != NULL, "%s", keel_detail());
    for (uint32_t i = 2; i < NAMES; i++) {
        char path[KEEL_PATH_BYTES], *text;
        size_t bytes;
        path_of(names[i], path);
        ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
        ck_assert(bytes == original_bytes[i] && memcmp(text, original[i], bytes) == 0);
        keel_free(text);
    }
}

START_TEST(no_folder_of_anything_else_is_written_over)
{
    static const char *const others[] = {"{\"format\": \"keel-snapshot\", \"shards\": []}", "[]", "{", ""};
    char path[KEEL_PATH_BYTES];
    path_of("manifest.json", path);
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        put("manifest.json", others[i], strlen(others[i]));
        refuses_to_begin(folder);
    }
    put_back(0);
    put("rank-0.keel", "weights", 7);
    refuses_to_begin("rank-0.keel");
    path_of("rank-0.keel", path);
    ck_assert_int_eq(unlink(path), 0);
    path_of("manifest.json", path);
    ck_assert_int_eq(unlink(path), 0);
    refuses_to_begin(folder);
}
END_TEST

static enum keel_status count_beside(void *context, const char *name)
{
    *(uint32_t *)context += strstr(name, strrchr(folder, '/') + 1) == name;
    return KEEL_OK;
}

START_TEST(until_the_new_folder_is_whole_the_old_one_is_as_it_was)
{
    struct keel_artifact_writer writer;
    uint32_t beside = 0;
    ck_ok(keel_artifact_writer_begin(&writer, folder));
    add_file(&writer, 0, 0, 1, "other");
    ck_ok(open_once());
    keel_artifact_writer_fini(&writer);
    ck_ok(open_once());
    ck_ok(keel_artifact_writer_begin(&writer, folder));
    add_file(&writer, 0, 0, 1, "other");
    ck_ok(keel_artifact_writer_finish(&writer, &info));
    keel_artifact_writer_fini(&writer);
    char path[KEEL_PATH_BYTES];
    path_of("other-0.bin", path);
    ck_assert(keel_path_is_file(path));
    path_of("add-0.bin", path);
    ck_assert(!keel_path_exists(path));
    ck_ok(open_once());
    ck_ok(keel_dir_list("/dev/shm", count_beside, &beside));
    ck_assert_uint_eq(beside, 1);
}
END_TEST

/* Each edit of a right manifest, and a word of what is said of it. The value is JSON, NULL takes it out. */
static const struct {
    const char *path, *value, *said;
} edits[] = {
    {"format", "\"other\"", "no manifest of artifacts"},
    {"version", "\"1\"", "Expected integer"},
    {"version", "1.0", "Expected integer"},
    {"device", NULL, "device"},
    {"device/driver", NULL, "driver"},
    {"device/extra", "1", "extra"},
    {"extra", "null", "extra"},
    {"artifacts", "{}", "must be a list"},
    {"artifacts", "[]", "must be a list"},
    {"artifacts/0", "7", "Expected object"},
    {"artifacts/0/form", "\"source\"", "binary or builtin"},
    {"artifacts/0/form", "\"builtin\"", "no file"},
    {"artifacts/0/file", NULL, "file's name"},
    {"artifacts/0/file", "\"../add-0.bin\"", "file's name"},
    {"artifacts/0/file", "\"/etc/passwd\"", "file's name"},
    {"artifacts/0/file", "\".hidden\"", "file's name"},
    {"artifacts/0/file", "\"\"", "file's name"},
    {"artifacts/0/file", "\"manifest.sum\"", "file's name"},
    {"artifacts/0/bytes", "0", "bytes must be"},
    {"artifacts/0/bytes", "-1", "bytes must be"},
    {"artifacts/0/bytes", "9223372036854775807", "bytes must be"},
    {"artifacts/0/bytes", "599", "is not what manifest.json says"},
    {"artifacts/0/blake2b", "\"00\"", "64 hexadecimal"},
    {"artifacts/0/blake2b", NULL, "64 hexadecimal"},
    {"artifacts/0/image", "-1", "negative"},
    {"artifacts/0/image", "7", "given to two"},
    {"artifacts/1/image", "0", "needs an image"},
    {"artifacts/0/programs", "[]", "programs must be"},
    {"artifacts/0/programs/0/module", "\"a b\"", "identifier"},
    {"artifacts/0/programs/0/module", NULL, "module"},
    {"artifacts/0/programs/0/options", "\"a\\nb\"", "no line"},
    {"artifacts/0/programs/0/source", "\"zz\"", "hash of its text"},
    {"artifacts/0/programs/0/source", NULL, "hash of its text"},
    {"artifacts/1/programs/1/module", "\"mul\"", "given twice"},
    {"artifacts/0/programs/0/kernels", "[]", "kernels must be"},
    {"artifacts/0/programs/0/kernels/0/name", "\"\"", "identifier"},
    {"artifacts/0/programs/0/kernels/0/args", "33", "args must be"},
    {"artifacts/0/programs/0/kernels/0/args", "-1", "args must be"},
    {"artifacts/0/programs/0/kernels/0/local", "[64, 1]", "three numbers"},
    {"artifacts/0/programs/0/kernels/0/local", "[64, 1, 0]", "three numbers"},
    {"artifacts/0/programs/0/kernels/0/banks", "[0, 0]", "one for each argument"},
    {"artifacts/0/programs/0/kernels/0/banks", "[0, 0, 64]", "0 to 63"},
    {"artifacts/1/programs/0/kernels/1/name", "\"mul\"", "given twice"},
};

/* Go down to the last name of a path; numbers are places in lists. */
static json_t *go_down(json_t *at, const char *path, const char **out_last)
{
    for (const char *slash; (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        char part[64];
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10))
                               : json_object_get(at, part);
    }
    *out_last = path;
    return at;
}

static void edit(json_t *root, const char *path, const char *value)
{
    const char *last;
    json_t *at = go_down(root, path, &last);
    json_t *item = value != NULL ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    ck_assert_ptr_nonnull(at);
    if (item == NULL)
        ck_assert_int_eq(json_object_del(at, last), 0);
    else if (json_is_array(at))
        ck_assert_int_eq(json_array_set_new(at, (size_t)strtoul(last, NULL, 10), item), 0);
    else
        ck_assert_int_eq(json_object_set_new(at, last, item), 0);
}

START_TEST(a_manifest_that_says_what_cannot_be_is_refused)
{
    json_t *root = json_loadb(original[0], original_bytes[0], 0, NULL);
    edit(root, edits[_i].path, edits[_i].value);
    char *text = json_dumps(root, 0);
    put_manifest(text, strlen(text));
    ck_status(open_once(), KEEL_CORRUPT);
    ck_assert_msg(strstr(keel_detail(), edits[_i].said) != NULL, "%s: %s", edits[_i].path, keel_detail());
    ck_assert_msg(strstr(keel_detail(), "keel board build") != NULL, "%s", keel_detail());
    free(text);
    json_decref(root);
}
END_TEST

START_TEST(a_format_of_the_future_and_more_banks_than_there_are_are_told)
{
    json_t *root = json_loadb(original[0], original_bytes[0], 0, NULL);
    edit(root, "artifacts/0/programs/0/kernels/0/banks", "[0, 3, -1]");
    char *text = json_dumps(root, 0);
    put_manifest(text, strlen(text));
    ck_status(open_once(), KEEL_MISMATCH);
    ck_assert(strstr(keel_detail(), "need 4 banks") != NULL);
    info.memory_banks = 4;
    ck_ok(open_once());
    free(text);
    edit(root, "version", "2");
    text = json_dumps(root, 0);
    put_manifest(text, strlen(text));
    ck_status(open_once(), KEEL_VERSION);
    free(text);
    json_decref(root);
}
END_TEST

/* ---- damage by chance ---- */

static uint64_t random_state = 20261121;

static uint32_t chance(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

/* Change `bytes` of `data` for sure; returns the new size, at most bytes + 64. */
static size_t damage(uint8_t *data, size_t bytes, const uint8_t *before)
{
    size_t now = bytes;
    do {
        uint32_t changes = 1 + chance(CHANGES_MAX);
        for (uint32_t i = 0; i < changes && now > 0; i++)
            data[chance((uint32_t)now)] ^= (uint8_t)(1U << chance(8));
        if (chance(8) == 0)
            now = chance((uint32_t)now + 1); /* cut off */
        if (chance(8) == 0 && now > 16)
            memmove(data + 8, data, now - 8); /* pushed along */
        if (chance(8) == 0) {
            size_t more = 1 + chance(64);
            for (size_t i = 0; i < more && now < bytes + 64; i++)
                data[now++] = (uint8_t)chance(256);
        }
    } while (now == bytes && memcmp(data, before, bytes) == 0);
    return now;
}

static uint8_t *damaged(uint32_t which, size_t *out_bytes)
{
    uint8_t *data;
    ck_ok(keel_alloc(original_bytes[which] + 64, 1, &data));
    memcpy(data, original[which], original_bytes[which]);
    *out_bytes = damage(data, original_bytes[which], (const uint8_t *)original[which]);
    return data;
}

START_TEST(of_ten_thousand_damaged_folders_none_is_opened)
{
    for (uint32_t i = 0; i < TRIES; i++) {
        size_t bytes;
        uint32_t which = i % NAMES;
        uint8_t *data = damaged(which, &bytes);
        put(names[which], data, bytes);
        enum keel_status status = open_once();
        ck_assert_msg(status == KEEL_CORRUPT || status == KEEL_LIMIT, "try %u, %s: %s: %s", i, names[which],
                      keel_status_name(status), status == KEEL_OK ? "" : keel_detail());
        keel_free(data);
        put_back(which);
    }
    ck_ok(open_once());
}
END_TEST

/* Whoever writes the sum anew may describe files wrongly; the driver still gets only files whose hash is
 * right. */
START_TEST(of_ten_thousand_damaged_manifests_with_their_sums_none_changes_a_byte_of_code)
{
    for (uint32_t i = 0; i < TRIES; i++) {
        size_t bytes;
        struct keel_artifacts *artifacts;
        uint8_t *data = damaged(0, &bytes);
        put_manifest((const char *)data, bytes);
        keel_free(data);
        if (keel_artifacts_open(folder, &info, &artifacts) != KEEL_OK)
            continue;
        for (uint32_t k = 0; k < MODULES; k++) {
            struct keel_code found;
            if (keel_artifacts_find(artifacts, &modules[k], options[k], &found) != KEEL_OK)
                continue;
            bool known = false;
            for (uint32_t file = 0; file < FILES; file++)
                known |= found.size == sizeof code[file] && memcmp(found.bytes, code[file], found.size) == 0;
            ck_assert_msg(known, "try %u: code that nobody made", i);
        }
        keel_artifacts_close(artifacts);
    }
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    char path[KEEL_PATH_BYTES];
    path_of(names[_i], path);
    ck_assert_int_eq(unlink(path), 0);
    ck_status(open_once(), KEEL_NOT_FOUND);
    ck_assert(strstr(keel_detail(), names[_i]) != NULL);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, make_folder, remove_folder);
    tcase_add_test(tc, what_was_made_is_what_is_found);
    tcase_add_test(tc, another_source_or_a_missing_kernel_is_told);
    tcase_add_test(tc, another_device_or_driver_is_told_with_both_names);
    tcase_add_test(tc, no_folder_of_anything_else_is_written_over);
    tcase_add_test(tc, until_the_new_folder_is_whole_the_old_one_is_as_it_was);
    tcase_add_loop_test(tc, a_manifest_that_says_what_cannot_be_is_refused, 0,
                        sizeof edits / sizeof edits[0]);
    tcase_add_test(tc, a_format_of_the_future_and_more_banks_than_there_are_are_told);
    tcase_add_test(tc, of_ten_thousand_damaged_folders_none_is_opened);
    tcase_add_test(tc, of_ten_thousand_damaged_manifests_with_their_sums_none_changes_a_byte_of_code);
    tcase_add_loop_test(tc, a_missing_file_is_named, 0, NAMES);
}

KEEL_TEST_MAIN("artifacts", cases, 120)
