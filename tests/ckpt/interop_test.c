/* interop_test.c - `keel ckpt export`, `import` and `diff`: what goes out comes back bit for bit, GPT-2's
 * files become what a job begins from, and what differs is told. */
#include "codec.h"
#include "command.h"
#include "float_convert.h"
#include "gpt2_names.h"
#include "snapshot.h"
#include <keel/safetensors.h>

/* ---- stores to work on ------------------------------------------------------------------------------- */

struct places {
    char root[KEEL_PATH_BYTES], store[KEEL_PATH_BYTES], out[KEEL_PATH_BYTES], back[KEEL_PATH_BYTES];
};

static struct places make_places(void)
{
    struct places p;
    make_directory(p.root);
    ck_ok(keel_path_join(p.store, p.root, "store"));
    ck_ok(keel_path_join(p.out, p.root, "out/"));
    ck_ok(keel_path_join(p.back, p.root, "back/run"));
    return p;
}

/* Every type; a scalar, empty ones, one of several chunks and dimensions. */
static uint32_t every_tensor(struct keel_region out[16])
{
    uint32_t count = 0;
    static const char *const names[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
    for (int i = 0; i < 7; i++)
        out[count++] =
            whole(names[i], (enum keel_ckpt_dtype)(KEEL_CKPT_F32 + i), 2, (const uint64_t[]){31, 17});
    out[count++] = whole("scalar", KEEL_CKPT_F32, 0, NULL);
    out[count++] = whole("empty", KEEL_CKPT_BF16, 3, (const uint64_t[]){4, 0, 3});
    out[count++] = whole("deep", KEEL_CKPT_F32, 4, (const uint64_t[]){3, 50, 41, 60});
    out[count++] = whole("adam.m/deep", KEEL_CKPT_F32, 1, (const uint64_t[]){77});
    return count;
}

static void save_every(const char *root, uint64_t step, uint64_t salt)
{
    struct keel_region tensors[16];
    uint64_t state = 5;
    struct keel_store *store = open_store(root, true);
    struct sample_save how = {
        .step = step, .attempt = 2, .salt = salt, .rank_count = 3, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(store, &how, tensors, every_tensor(tensors), 4, &state));
    keel_store_close(store);
}

/* Tensors with bytes of the test's own, as one rank. */
struct given {
    struct keel_region region;
    const void *data;
};

static enum keel_status given_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    const struct given *given = context;
    memcpy(out, (const uint8_t *)given[index].data + offset, bytes);
    return KEEL_OK;
}

static void save_given(const char *root, const char *run, uint64_t step, struct given *given, uint32_t count)
{
    struct keel_store *store;
    struct keel_region regions[64];
    struct keel_store_config at = {.root = root, .run = run, .create = true};
    ck_assert_uint_le(count, 64);
    for (uint32_t i = 0; i < count; i++)
        regions[i] = given[i].region;
    struct keel_save_config config = {.step = step,
                                      .attempt = 1,
                                      .rank_count = 1,
                                      .codec = KEEL_CODEC_PLANES,
                                      .regions = regions,
                                      .region_count = count,
                                      .read = given_read,
                                      .context = given};
    struct keel_save *save;
    struct keel_shard_summary shard;
    ck_ok(keel_store_open(&at, &store));
    ck_ok(keel_save_begin(store, &config, &save));
    ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shard));
    struct keel_commit commit = {
        .step = step, .attempt = 1, .shards = &shard, .shard_count = 1, .allow_nonfinite = true};
    ck_ok(keel_store_commit(store, &commit));
    keel_store_close(store);
}

/* A safetensors file of them. */
static void write_given(const char *path, const struct keel_safetensors_tensor *tensors, uint32_t count,
                        struct given *given)
{
    struct keel_safetensors_written written;
    struct keel_safetensors_write what = {
        .path = path, .tensors = tensors, .tensor_count = count, .read = given_read, .context = given};
    ck_ok(keel_safetensors_write(&what, &written));
}

static struct keel_snapshot *open_snapshot(const char *root, const char *run, uint64_t step,
                                           struct keel_store **store)
{
    struct keel_snapshot *snapshot;
    struct keel_store_config config = {.root = root, .run = run, .read_only = true};
    ck_ok(keel_store_open(&config, store));
    ck_ok(keel_snapshot_open(*store, step, 0, &snapshot));
    return snapshot;
}

static void check_says(struct output o, int code, const char *says)
{
    ck_assert_msg(o.code == code, "code %d, not %d: %s%s", o.code, code, o.text, o.errors);
    ck_assert_msg(strstr(o.errors, says) != NULL || strstr(o.text, says) != NULL, "not '%s': %s%s", says,
                  o.text, o.errors);
}

/* ---- round trips --------------------------------------------------------------------------------------- */

START_TEST(what_is_exported_comes_back_bit_for_bit)
{
    static char *const sizes[] = {NULL, "100KB", "1"};
    struct places p = make_places();
    char back_root[KEEL_PATH_BYTES];
    save_every(p.store, 40, 7);
    ck_ok(keel_path_join(back_root, p.root, "back"));
    char *out[] = {"export", p.store, p.out, "--json", "--shard-size", sizes[_i]};
    struct output o = run_command(sizes[_i] == NULL ? 4 : 6, out);
    ck_assert_int_eq(o.code, 0);
    json_t *root = parse(&o);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "tensors")), 11);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "step")), 40);
    ck_assert((json_integer_value(json_object_get(root, "files")) > 1) == (sizes[_i] != NULL));
    json_decref(root);
    o = COMMAND("import", p.out, p.back, "--json");
    ck_assert_msg(o.code == 0, "%s", o.errors);
    root = parse(&o);
    ck_assert_str_eq(json_string_value(json_object_get(root, "identity")), "c0ffee"); /* the whole state */
    ck_assert_int_eq(json_integer_value(json_object_get(root, "step")), 40);
    json_decref(root);
    check_says(COMMAND("diff", p.store, p.back), 0, "11 tensors equal");
    struct keel_store *store;
    struct keel_snapshot *snapshot = open_snapshot(back_root, "run", 40, &store);
    ck_ok(keel_snapshot_verify(snapshot, NULL, NULL, NULL));
    ck_ok(check_all(snapshot, 7));
    ck_assert_str_eq(keel_snapshot_metadata(snapshot), "{\"seed\":7}");
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(only_chooses_and_a_part_is_no_jobs_state)
{
    struct places p = make_places();
    save_every(p.store, 40, 7);
    check_says(COMMAND("export", p.store, p.out, "--only", "weights"), 0, "1 tensors were left out");
    struct output o = COMMAND("import", p.out, p.back, "--json");
    json_t *root = parse(&o);
    ck_assert_str_eq(json_string_value(json_object_get(root, "identity")), "");
    json_decref(root);
    check_says(COMMAND("diff", p.store, p.back), 1, "adam.m/deep");
    check_says(COMMAND("import", p.out, p.back, "--only", "f", "--step", "41"), 0, "step 41: 3 tensors");
    check_says(COMMAND("import", p.out, p.back, "--only", "x", "--step", "42"), 3, "no tensor is left");
    check_says(COMMAND("export", p.store, p.out, "--only", "x", "--force"), 3, "no tensor is meant");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(floats_are_rounded_on_the_way_out_and_widened_on_the_way_back)
{
    struct places p = make_places();
    float values[300], got[300];
    uint16_t rounded[300];
    int32_t whole_numbers[2] = {1 << 30, -7};
    for (uint32_t i = 0; i < 300; i++)
        values[i] = (float)(i + 1) * 1.0078125F / 3.0F;
    struct given given[] = {{whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){30, 10}), values},
                            {whole("i", KEEL_CKPT_I32, 1, (const uint64_t[]){2}), whole_numbers}};
    save_given(p.store, "a", 1, given, 2);
    check_says(COMMAND("export", p.store, p.out, "--dtype", "bf16"), 0, "2 tensors");
    struct keel_safetensors *file;
    ck_ok(keel_safetensors_open(p.out, &file));
    uint32_t at = keel_safetensors_find(file, "w");
    ck_assert_int_eq(keel_safetensors_tensor(file, at)->dtype, KEEL_SAFETENSORS_BF16);
    ck_assert_int_eq(keel_safetensors_tensor(file, keel_safetensors_find(file, "i"))->dtype,
                     KEEL_SAFETENSORS_I32);
    uint16_t read[300];
    ck_ok(keel_safetensors_read(file, at, 0, sizeof read, read));
    keel_codec_round(KEEL_CKPT_BF16, KEEL_CKPT_F32, values, 300, rounded);
    ck_assert_mem_eq(read, rounded, sizeof read);
    keel_safetensors_close(file);
    check_says(COMMAND("import", p.out, p.back, "--dtype", "f32"), 0, "committed");
    struct keel_store *store;
    ck_ok(keel_path_join(p.back, p.root, "back"));
    struct keel_snapshot *snapshot = open_snapshot(p.back, "run", 1, &store);
    ck_ok(keel_snapshot_read(snapshot, &given[0].region, got, sizeof got));
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t bits = (uint32_t)rounded[i] << 16;
        ck_assert_mem_eq(&got[i], &bits, 4);
    }
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    values[7] = 1e6F; /* f16 ends at 65504 */
    save_given(p.store, "a", 2, given, 2);
    check_says(COMMAND("export", p.store, p.out, "--dtype", "f16", "--force"), 0, "1 numbers are too large");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(a_damaged_snapshot_is_not_exported)
{
    struct places p = make_places();
    char shard[KEEL_PATH_BYTES];
    save_every(p.store, 40, 7);
    ck_ok(keel_path_join(shard, p.store, "sample/step-40.2/rank-1.keel"));
    FILE *file = fopen(shard, "r+b");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 4096 + 3, SEEK_SET), 0);
    int byte = fgetc(file);
    ck_assert_int_eq(fseek(file, 4096 + 3, SEEK_SET), 0);
    fputc(byte ^ 4, file);
    fclose(file);
    check_says(COMMAND("export", p.store, p.out), 4, "rank-1.keel");
    ck_assert(!keel_path_exists(p.out)); /* it was made for this, and goes with it */
    ck_ok(keel_mkdir_all(p.out));
    check_says(COMMAND("export", p.store, p.out), 4, "rank-1.keel");
    check_says(COMMAND("import", p.out, p.back), 3, "no .safetensors file");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(a_sealed_run_is_filled_and_read_with_its_key)
{
    struct places p = make_places();
    char key[KEEL_PATH_BYTES], again[KEEL_PATH_BYTES], back_root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    char name[32], *data;
    size_t bytes;
    static const char secret[] = "0123456789abcdef0123456789abcdef";
    static const float values[] = {8.5F, -2, 3, 123.25F, 5, 6, 7, 9};
    struct given given = {whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){8}), values};
    ck_ok(keel_path_join(key, p.root, "key"));
    ck_ok(keel_path_join(back_root, p.root, "back"));
    ck_ok(keel_path_join(again, p.root, "again.safetensors"));
    ck_ok(keel_file_replace(key, secret, 32, 0600));
    save_given(p.store, "a", 5, &given, 1);
    ck_assert_int_eq(COMMAND("export", p.store, p.out).code, 0);
    check_says(COMMAND("import", p.out, p.back, "--key", key), 0, "step 5");
    struct output o = COMMAND("ls", back_root, "--json", "--key", key);
    json_t *root = parse(&o), *first = json_array_get(json_object_get(root, "snapshots"), 0);
    snprintf(name, sizeof name, "%s", json_string_value(json_object_get(first, "attempt")));
    json_decref(root);
    snprintf(path, sizeof path, "%.900s/step-5.%.30s/rank-0.keel", p.back, name);
    ck_ok(keel_file_read(path, 1 << 20, &data, &bytes));
    ck_assert_ptr_null(memmem(data, bytes, values, sizeof values)); /* not to be read by others */
    keel_free(data);
    ck_assert_int_ne(COMMAND("export", back_root, again).code, 0);
    char other[KEEL_PATH_BYTES]; /* what it hides is not known: no step is there for sure */
    ck_ok(keel_path_join(other, p.root, "other"));
    ck_ok(keel_file_replace(other, secret + 1, 32, 0600));
    check_says(COMMAND("import", p.out, p.back, "--key", other, "--step", "7"), 3, "another key");
    ck_assert(!keel_path_exists(again));
    check_says(COMMAND("export", back_root, again, "--key", key), 0, "1 tensors");
    check_says(COMMAND("import", again, p.back, "--key", key, "--step", "6"), 0, "step 6");
    snprintf(path, sizeof path, "%.900s/step-5.%.30s", p.back, name);
    check_says(COMMAND("diff", back_root, path, "--key", key), 0, "1 tensors equal");
    ck_assert_int_ne(COMMAND("diff", back_root, path).code, 0);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

/* ---- GPT-2 --------------------------------------------------------------------------------------------- */

enum { LAYERS = 2, WIDTH = 6, VOCAB = 11, BLOCK = 5, GPT_TENSORS = 4 + 12 * LAYERS };
static float gpt_values[GPT_TENSORS][VOCAB * WIDTH * 4];

/* The parameters of a GPT in the order of its names' making. */
static void make_gpt(struct given out[GPT_TENSORS])
{
    static const struct {
        const char *name;
        uint64_t rows, columns; /* columns 0: a vector */
    } rows[] = {{"ln_1.weight", WIDTH, 0},
                {"ln_1.bias", WIDTH, 0},
                {"attn.c_attn.weight", WIDTH, 3 * WIDTH},
                {"attn.c_attn.bias", 3 * WIDTH, 0},
                {"attn.c_proj.weight", WIDTH, WIDTH},
                {"attn.c_proj.bias", WIDTH, 0},
                {"ln_2.weight", WIDTH, 0},
                {"ln_2.bias", WIDTH, 0},
                {"mlp.c_fc.weight", WIDTH, 4 * WIDTH},
                {"mlp.c_fc.bias", 4 * WIDTH, 0},
                {"mlp.c_proj.weight", 4 * WIDTH, WIDTH},
                {"mlp.c_proj.bias", WIDTH, 0}};
    uint32_t count = 0;
    out[count++].region = whole("wte.weight", KEEL_CKPT_F32, 2, (const uint64_t[]){VOCAB, WIDTH});
    out[count++].region = whole("wpe.weight", KEEL_CKPT_F32, 2, (const uint64_t[]){BLOCK, WIDTH});
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "h.%u.%s", layer, rows[i].name);
            out[count++].region = whole(name, KEEL_CKPT_F32, rows[i].columns > 0 ? 2 : 1,
                                        (const uint64_t[]){rows[i].rows, rows[i].columns});
        }
    out[count++].region = whole("ln_f.weight", KEEL_CKPT_F32, 1, (const uint64_t[]){WIDTH});
    out[count++].region = whole("ln_f.bias", KEEL_CKPT_F32, 1, (const uint64_t[]){WIDTH});
    ck_assert_uint_eq(count, GPT_TENSORS);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t e = 0; e < VOCAB * WIDTH * 4; e++)
            gpt_values[i][e] = (float)(mix(i * 1000 + e) >> 40) * 1e-6F;
        out[i].data = gpt_values[i];
    }
}

static uint32_t describe(const struct given *given, uint32_t count, const char *prefix,
                         struct keel_safetensors_tensor *out, char (*names)[KEEL_TENSOR_NAME_BYTES + 16])
{
    for (uint32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%.100s", prefix, given[i].region.name);
        out[i] = (struct keel_safetensors_tensor){.name = names[i],
                                                  .dtype = keel_safetensors_from_ckpt(given[i].region.dtype),
                                                  .dims = given[i].region.dims};
        memcpy(out[i].shape, given[i].region.shape, sizeof out[i].shape);
    }
    return count;
}

START_TEST(gpt2_goes_out_under_its_published_names)
{
    struct places p = make_places();
    struct given given[2 * GPT_TENSORS];
    make_gpt(given);
    for (uint32_t i = 0; i < GPT_TENSORS; i++) {
        given[GPT_TENSORS + i] = given[i];
        snprintf(given[GPT_TENSORS + i].region.name, KEEL_TENSOR_NAME_BYTES, "adam.%c/%.100s",
                 i % 2 ? 'm' : 'v', given[i].region.name);
    }
    save_given(p.store, "a", 9, given, 2 * GPT_TENSORS);
    check_says(COMMAND("export", p.store, p.out, "--names", "gpt2"), 0, "28 tensors were left out");
    struct keel_safetensors *file;
    ck_ok(keel_safetensors_open(p.out, &file));
    ck_assert_uint_eq(keel_safetensors_count(file), GPT_TENSORS);
    ck_assert_str_eq(keel_safetensors_note(file, "format"), "pt");
    ck_assert_ptr_null(keel_safetensors_note(file, "keel.identity"));
    uint32_t at = keel_safetensors_find(file, "h.1.attn.c_attn.weight");
    ck_assert_uint_eq(keel_safetensors_tensor(file, at)->shape[1], 3 * WIDTH);
    keel_safetensors_close(file);
    /* with an output layer of its own the rest has the prefix */
    given[GPT_TENSORS] = (struct given){
        whole("lm_head.weight", KEEL_CKPT_F32, 2, (const uint64_t[]){VOCAB, WIDTH}), gpt_values[1]};
    save_given(p.store, "a", 10, given, GPT_TENSORS + 1);
    ck_assert_int_eq(COMMAND("export", p.store, p.out, "--names", "gpt2", "--force").code, 0);
    ck_ok(keel_safetensors_open(p.out, &file));
    ck_assert_uint_lt(keel_safetensors_find(file, "transformer.wte.weight"), UINT32_MAX);
    ck_assert_uint_lt(keel_safetensors_find(file, "lm_head.weight"), UINT32_MAX);
    keel_safetensors_close(file);
    check_says(COMMAND("import", p.out, p.back, "--names", "gpt2"), 0, "29 tensors");
    check_says(COMMAND("diff", p.store, p.back), 0, "29 tensors equal");
    given[0].region.name[0] = 'x';
    save_given(p.store, "a", 11, given, GPT_TENSORS);
    check_says(COMMAND("export", p.store, p.out, "--names", "gpt2", "--force"), 4, "tensor xte.weight");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

/* As a hub has them: with prefix, buffers, the output layer written twice, in bfloat16 of float32. */
START_TEST(gpt2_becomes_what_a_job_begins_from)
{
    struct places p = make_places();
    struct given given[GPT_TENSORS + 3];
    static const float mask[25];
    static struct keel_safetensors_tensor tensors[GPT_TENSORS + 3];
    static char names[GPT_TENSORS + 3][KEEL_TENSOR_NAME_BYTES + 16];
    char path[KEEL_PATH_BYTES];
    make_gpt(given);
    save_given(p.store, "a", 3, given, GPT_TENSORS);
    describe(given, GPT_TENSORS, "transformer.", tensors, names);
    tensors[GPT_TENSORS] = tensors[0];
    tensors[GPT_TENSORS].name = "lm_head.weight";
    given[GPT_TENSORS] = given[0];
    tensors[GPT_TENSORS + 1] = (struct keel_safetensors_tensor){.name = "transformer.h.0.attn.bias",
                                                                .dtype = KEEL_SAFETENSORS_BOOL,
                                                                .dims = 4,
                                                                .shape = {1, 1, 5, 5}};
    tensors[GPT_TENSORS + 2] = (struct keel_safetensors_tensor){.name = "transformer.h.0.attn.masked_bias",
                                                                .dtype = KEEL_SAFETENSORS_F32};
    given[GPT_TENSORS + 1].data = given[GPT_TENSORS + 2].data = mask;
    ck_ok(keel_path_join(path, p.root, "hub.safetensors"));
    write_given(path, tensors, GPT_TENSORS + 3, given);
    struct output o = COMMAND("import", path, p.back, "--names", "gpt2");
    check_says(o, 0, "28 tensors");
    ck_assert_ptr_nonnull(strstr(o.text, "lm_head.weight: the same as wte.weight"));
    ck_assert_ptr_nonnull(strstr(o.text, "h.0.attn.bias: a constant"));
    check_says(COMMAND("diff", p.store, p.back), 0, "28 tensors equal");
    check_says(COMMAND("import", path, p.back, "--names", "gpt2", "--for-training", "--step", "1"), 0,
               "84 tensors");
    struct keel_store *store;
    ck_ok(keel_path_join(p.back, p.root, "back"));
    struct keel_snapshot *snapshot = open_snapshot(p.back, "run", 1, &store);
    struct keel_region moment = given[4].region;
    snprintf(moment.name, sizeof moment.name, "adam.v/%.100s", given[4].region.name);
    float values[VOCAB * WIDTH * 4];
    memset(values, 1, sizeof values);
    uint64_t bytes = keel_region_bytes(&moment);
    ck_ok(keel_snapshot_read(snapshot, &moment, values, bytes));
    for (uint64_t i = 0; i < bytes / 4; i++)
        ck_assert(values[i] == 0);
    ck_ok(keel_snapshot_read(snapshot, &given[4].region, values, bytes));
    ck_assert_mem_eq(values, given[4].data, bytes);
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(what_is_not_a_whole_gpt2_is_refused_by_name)
{
    struct places p = make_places();
    struct given given[GPT_TENSORS];
    static struct keel_safetensors_tensor tensors[GPT_TENSORS];
    static char names[GPT_TENSORS][KEEL_TENSOR_NAME_BYTES + 16];
    char path[KEEL_PATH_BYTES];
    make_gpt(given);
    ck_ok(keel_path_join(path, p.root, "x.safetensors"));
    for (uint32_t missing = 0; missing < GPT_TENSORS; missing++) {
        struct given rest[GPT_TENSORS];
        uint32_t count = 0;
        for (uint32_t i = 0; i < GPT_TENSORS; i++)
            if (i != missing)
                rest[count++] = given[i];
        describe(rest, count, "", tensors, names);
        keel_remove_tree(path);
        write_given(path, tensors, count, rest);
        check_says(COMMAND("import", path, p.back, "--names", "gpt2"), 3, given[missing].region.name);
    }
    describe(given, GPT_TENSORS, "", tensors, names);
    for (uint32_t i = 0; i < GPT_TENSORS; i++) { /* each of a shape of its own */
        struct keel_safetensors_tensor kept = tensors[i];
        tensors[i].shape[tensors[i].dims - 1] += 1;
        keel_remove_tree(path);
        write_given(path, tensors, GPT_TENSORS, given);
        check_says(COMMAND("import", path, p.back, "--names", "gpt2"), 4, "does not fit");
        tensors[i] = kept;
    }
    for (uint32_t i = 0; i < GPT_TENSORS; i++) /* as other programs have it: [out, in] */
        if (strstr(tensors[i].name, "c_attn.weight") != NULL) {
            tensors[i].shape[0] = 3 * WIDTH;
            tensors[i].shape[1] = WIDTH;
        }
    keel_remove_tree(path);
    write_given(path, tensors, GPT_TENSORS, given);
    check_says(COMMAND("import", path, p.back, "--names", "gpt2"), 4, "matrices are [in, out]");
    describe(given, GPT_TENSORS, "model.", tensors, names);
    keel_remove_tree(path);
    write_given(path, tensors, GPT_TENSORS, given);
    check_says(COMMAND("import", path, p.back, "--names", "gpt2"), 4, "none of GPT-2's");
    ck_assert(!keel_path_exists(p.back));
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(names_of_layers_are_numbers_and_nothing_else)
{
    static const struct {
        const char *name;
        enum keel_gpt2_kind kind;
    } cases[] = {{"wte.weight", KEEL_GPT2_PARAMETER},
                 {"transformer.wte.weight", KEEL_GPT2_PARAMETER},
                 {"transformer.transformer.wte.weight", KEEL_GPT2_STRANGER},
                 {"h.0.ln_1.bias", KEEL_GPT2_PARAMETER},
                 {"h.11.attn.bias", KEEL_GPT2_BUFFER},
                 {"h.11.attn.masked_bias", KEEL_GPT2_BUFFER},
                 {"h.01.ln_1.bias", KEEL_GPT2_STRANGER},
                 {"h..ln_1.bias", KEEL_GPT2_STRANGER},
                 {"h.-1.ln_1.bias", KEEL_GPT2_STRANGER},
                 {"h.99999999999999999999.ln_1.bias", KEEL_GPT2_STRANGER},
                 {"h.0.ln_1.biass", KEEL_GPT2_STRANGER},
                 {"h.0.ln_1", KEEL_GPT2_STRANGER},
                 {"", KEEL_GPT2_STRANGER},
                 {"adam.m/wte.weight", KEEL_GPT2_STRANGER}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *name;
        ck_assert_msg(keel_gpt2_name(cases[i].name, &name) == cases[i].kind, "%s", cases[i].name);
    }
}
END_TEST

/* ---- where imports go ---------------------------------------------------------------------------------- */

START_TEST(the_directory_of_a_run_takes_its_own_state_or_begins_from_weights)
{
    struct places p = make_places();
    char run[KEEL_PATH_BYTES], ckpt[KEEL_PATH_BYTES], identity[KEEL_PATH_BYTES];
    float values[4] = {1, 2, 3, 4};
    struct given given = {whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){4}), values};
    save_every(p.store, 40, 7);
    ck_assert_int_eq(COMMAND("export", p.store, p.out).code, 0);
    ck_ok(keel_path_join(run, p.root, "run"));
    ck_ok(keel_path_join(ckpt, p.root, "run/ckpt"));
    ck_ok(keel_path_join(identity, p.root, "run/identity"));
    save_given(ckpt, "demo", 1, &given, 1);
    ck_ok(keel_file_replace(identity, "beef", 4, 0600));
    check_says(COMMAND("import", p.out, run), 4, "not the whole state of the job");
    ck_ok(keel_file_replace(identity, "c0ffee", 6, 0600));
    check_says(COMMAND("import", p.out, run, "--dtype", "f32"), 4, "not the whole state");
    check_says(COMMAND("import", p.out, run), 0, "run/ckpt/demo");
    check_says(COMMAND("diff", p.store, run), 0, "11 tensors equal");
    check_says(COMMAND("import", p.out, run, "--for-training"), 3, "only floating-point tensors are trained");
    check_says(COMMAND("import", p.out, run, "--for-training", "--only", "f"), 2, "a new --out");
    ck_ok(keel_remove_tree(ckpt));
    struct keel_store *store; /* empty, as --prepare leaves it */
    ck_ok(keel_store_open(&(struct keel_store_config){.root = ckpt, .run = "demo", .create = true}, &store));
    keel_store_close(store);
    check_says(COMMAND("import", p.out, run, "--for-training", "--only", "f"), 0, "step 0: 9 tensors");
    struct keel_snapshot *snapshot = open_snapshot(ckpt, "demo", 0, &store);
    ck_assert_str_eq(keel_snapshot_info(snapshot)->identity, "c0ffee");
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(imports_go_where_nothing_is_overwritten)
{
    struct places p = make_places();
    save_every(p.store, 40, 7);
    ck_assert_int_eq(COMMAND("export", p.store, p.out).code, 0);
    check_says(COMMAND("import", p.out, p.store), 2, "holds other things than snapshots");
    check_says(COMMAND("import", p.out, p.store, "--run", "sample"), 2, "step 40 already");
    check_says(COMMAND("import", p.out, p.store, "--run", "sample", "--step", "41"), 0, "step 41");
    check_says(COMMAND("import", p.out, p.store, "--run", "new"), 0, "store/new");
    check_says(COMMAND("import", p.out, p.store, "--run", "../x"), 2, "run's name");
    check_says(COMMAND("import", p.out, "/tmp/.x"), 2, "run's name");
    check_says(COMMAND("import", p.out, p.back, "--step", "-1"), 2, "whole number");
    check_says(COMMAND("import", p.out, p.back, "--step", "1x"), 2, "whole number");
    check_says(COMMAND("import", p.root, p.back), 3, "no .safetensors file");
    check_says(COMMAND("export", p.store, p.out), 2, "holds 2 runs");
    check_says(COMMAND("export", p.back, p.out), 3, "is not there");
    char sample[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(sample, p.store, "sample"));
    check_says(COMMAND("export", sample, p.out), 2, "is there already");
    check_says(COMMAND("export", sample, p.out, "--names", "elmo"), 2, "keel, gpt2, torch, bert or mixtral");
    check_says(COMMAND("export", sample, p.out, "--dtype", "f64"), 2, "f32, bf16 or f16");
    check_says(COMMAND("export", sample, p.out, "--shard-size", "5"), 2, "is there already");
    check_says(COMMAND("export", sample, p.out, "--shard-size", "0"), 2, "a size is wanted");
    check_says(COMMAND("export", sample, p.out, "--shard-size", "5 GB"), 2, "a size is wanted");
    check_says(COMMAND("export", sample, p.out, "--shard-size", "99999999999999999999GB"), 2,
               "a size is wanted");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(types_and_names_that_snapshots_lack_are_refused_by_name)
{
    static char long_name[KEEL_TENSOR_NAME_BYTES + 1];
    memset(long_name, 'n', sizeof long_name - 1);
    static const uint64_t zeros[4];
    struct given given = {.data = zeros};
    const struct {
        struct keel_safetensors_tensor tensor;
        const char *says;
    } cases[] = {
        {{.name = "b", .dtype = KEEL_SAFETENSORS_F4, .dims = 1, .shape = {2}},
         "tensor b: snapshots hold no F4"},
        {{.name = "b", .dtype = KEEL_SAFETENSORS_F6_E2M3, .dims = 1, .shape = {4}}, "hold no F6_E2M3"},
        {{.name = "b", .dtype = KEEL_SAFETENSORS_F6_E3M2, .dims = 1, .shape = {4}}, "hold no F6_E3M2"},
        {{.name = "new\nline", .dtype = KEEL_SAFETENSORS_F32}, "tensor new?line: a snapshot's names are"},
        {{.name = "b", .dtype = KEEL_SAFETENSORS_F32, .dims = 2, .shape = {0, 1ULL << 62}},
         "tensor b: its shape"},
        {{.name = long_name, .dtype = KEEL_SAFETENSORS_F32}, "at most 127 bytes"}};
    struct places p = make_places();
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, p.root, "x.safetensors"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        keel_remove_tree(path);
        write_given(path, &cases[i].tensor, 1, &given);
        struct output o = COMMAND("import", path, p.back);
        check_says(o, o.code == 2 ? 2 : 3, cases[i].says);
    }
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

START_TEST(what_a_file_says_of_itself_is_neither_printed_nor_taken_as_it_is)
{
    static const uint32_t values[2] = {0x3f800000, 0x3f800000};
    struct given given[2] = {{.data = values}, {.data = values}};
    const struct keel_safetensors_tensor tensors[2] = {
        {.name = "adam.m/\x1b[31mred", .dtype = KEEL_SAFETENSORS_F32, .dims = 1, .shape = {2}},
        {.name = "w", .dtype = KEEL_SAFETENSORS_F32, .dims = 1, .shape = {2}}};
    const struct keel_safetensors_note note = {"keel.identity", "\x1b[31m"};
    struct keel_safetensors_written written;
    struct places p = make_places();
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, p.root, "x.safetensors"));
    write_given(path, tensors, 2, given);
    struct output o = COMMAND("import", path, p.back, "--for-training");
    check_says(o, 0, "left out: adam.m/");
    ck_assert_ptr_null(strchr(o.text, '\x1b'));
    struct keel_safetensors_write what = {.path = path,
                                          .tensors = tensors + 1,
                                          .tensor_count = 1,
                                          .notes = &note,
                                          .note_count = 1,
                                          .replace = true,
                                          .read = given_read,
                                          .context = given};
    ck_ok(keel_safetensors_write(&what, &written));
    check_says(COMMAND("import", path, p.back, "--step", "7"), 4, "keel.identity");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

static enum keel_status count_entry(void *context, const char *name)
{
    (void)name;
    ++*(uint32_t *)context;
    return KEEL_OK;
}

START_TEST(nan_is_not_imported_unless_asked)
{
    struct places p = make_places();
    char path[KEEL_PATH_BYTES];
    static const uint32_t values[3] = {0x3f800000, 0x7fc00000, 0x7f800000};
    struct given given = {.data = values};
    const struct keel_safetensors_tensor tensor = {
        .name = "w", .dtype = KEEL_SAFETENSORS_F32, .dims = 1, .shape = {3}};
    ck_ok(keel_path_join(path, p.root, "x.safetensors"));
    write_given(path, &tensor, 1, &given);
    check_says(COMMAND("import", path, p.back), 1, "tensor w");
    ck_assert(!keel_path_exists(p.back)); /* it was not there before */
    ck_ok(keel_mkdir_all(p.back));
    check_says(COMMAND("import", path, p.back), 1, "tensor w");
    uint32_t left = 0;
    ck_ok(keel_dir_list(p.back, count_entry, &left)); /* it was: it stays as it was */
    ck_assert_uint_eq(left, 0);
    check_says(COMMAND("import", path, p.back, "--allow-nonfinite"), 0, "committed");
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

/* ---- diff ---------------------------------------------------------------------------------------------- */

START_TEST(differences_are_counted_and_measured)
{
    struct places p = make_places();
    char a[KEEL_PATH_BYTES], b[KEEL_PATH_BYTES];
    static float w[2][200], halves_of[2][4] = {{1, 2, 3, 4}, {1, 2, 3.5F, 4}};
    static uint16_t halves[2][4];
    static int64_t large[2][2] = {{INT64_MAX, 5}, {INT64_MAX - 3, 5}};
    static uint32_t strange[2][3] = {{0x7fc00000, 0, 0x80000000}, {0x3f800000, 0, 0}};
    static const uint8_t bytes[3] = {1, 2, 3};
    for (uint32_t i = 0; i < 200; i++)
        w[0][i] = w[1][i] = (float)i + 1;
    w[1][99] = 110; /* was 100 */
    w[1][150] += 1;
    struct given given[2][6];
    for (int side = 0; side < 2; side++) {
        keel_codec_round(KEEL_CKPT_BF16, KEEL_CKPT_F32, halves_of[side], 4, halves[side]);
        const struct given all[] = {
            {whole("w", KEEL_CKPT_F32, 2, (const uint64_t[]){20, 10}), w[side]},
            {whole("half", KEEL_CKPT_BF16, 1, (const uint64_t[]){4}), halves[side]},
            {whole("large", KEEL_CKPT_I64, 1, (const uint64_t[]){2}), large[side]},
            {whole("strange", KEEL_CKPT_F32, 1, (const uint64_t[]){3}), strange[side]},
            {whole(side == 0 ? "only.a" : "only.b", KEEL_CKPT_U8, 1, (const uint64_t[]){3}), bytes},
            {whole("shape", KEEL_CKPT_U8, 1, (const uint64_t[]){side == 0 ? 3 : 2}), bytes}};
        memcpy(given[side], all, sizeof all);
        save_given(p.store, "a", (uint64_t)side + 1, given[side], 6);
    }
    ck_ok(keel_path_join(a, p.store, "a/step-1.1"));
    ck_ok(keel_path_join(b, p.store, "a/step-2.1"));
    struct output o = COMMAND("diff", a, b);
    check_says(o, 1, "differs: w: 2 of 200 elements, by at most 10, relative 0.0909");
    check_says(o, 1, "differs: half: 1 of 4 elements, by at most 0.5, relative 0.143");
    check_says(o, 1, "differs: large: 1 of 2 elements, by at most 3,");
    check_says(o, 1, "differs: strange: 2 of 3 elements, by at most 0, relative 0; 1 not finite");
    check_says(o, 1, "changed: shape: u8 [3], u8 [2]");
    check_says(o, 1, "0 tensors equal, 4 differ, 1 of another type or shape, 2 in one only");
    o = COMMAND("diff", a, b, "--json");
    ck_assert_int_eq(o.code, 1);
    json_t *root = parse(&o);
    ck_assert(json_is_false(json_object_get(root, "equal")));
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(root, "only_in_b"), 0)), "only.b");
    json_t *last = json_array_get(json_object_get(root, "different"), 3);
    ck_assert_str_eq(json_string_value(json_object_get(last, "name")), "w");
    ck_assert_int_eq(json_integer_value(json_object_get(last, "differing")), 2);
    ck_assert(json_real_value(json_object_get(last, "max_abs")) == 10.0);
    json_decref(root);
    o = COMMAND("diff", a, a, "--json");
    ck_assert_int_eq(o.code, 0);
    root = parse(&o);
    ck_assert(json_is_true(json_object_get(root, "equal")));
    json_decref(root);
    ck_assert_int_eq(COMMAND("diff", a).code, 2);
    ck_assert_int_eq(COMMAND("diff", a, p.out).code, 3);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

/* ---- the parts ----------------------------------------------------------------------------------------- */

/* The value of a 16-bit float, from its definition. */
static double value_of(uint32_t bits, uint32_t mantissa_bits, uint32_t exponent_bits)
{
    uint32_t exponent = bits >> mantissa_bits & ((1U << exponent_bits) - 1);
    double value = bits & ((1U << mantissa_bits) - 1);
    int power = (int)(exponent > 0 ? exponent : 1) - (1 << (exponent_bits - 1)) + 1 - (int)mantissa_bits;
    if (exponent > 0)
        value += 1U << mantissa_bits;
    for (; power > 0; power--)
        value *= 2;
    for (; power < 0; power++)
        value /= 2;
    return bits >> 15 ? -value : value;
}

START_TEST(every_narrow_float_is_widened_to_its_value_and_rounded_back)
{
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        uint16_t narrow = (uint16_t)bits, back;
        float wide;
        ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F32, KEEL_CKPT_F16, &narrow, 1, &wide), 0);
        if ((bits & 0x7c00) != 0x7c00)
            ck_assert((double)wide == value_of(bits, 10, 5));
        ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F16, KEEL_CKPT_F32, &wide, 1, &back), 0);
        bool loud = (bits & 0x7c00) == 0x7c00 && (bits & 0x3ff) != 0; /* a NaN becomes quiet */
        ck_assert_uint_eq(back, loud ? bits | 0x200 : bits);
        ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F32, KEEL_CKPT_BF16, &narrow, 1, &wide), 0);
        if ((bits & 0x7f80) != 0x7f80)
            ck_assert((double)wide == value_of(bits, 7, 8));
        ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_BF16, KEEL_CKPT_F32, &wide, 1, &back), 0);
        loud = (bits & 0x7f80) == 0x7f80 && (bits & 0x7f) != 0;
        ck_assert_uint_eq(back, loud ? bits | 0x40 : bits);
    }
}
END_TEST

START_TEST(numbers_that_become_infinite_are_counted)
{
    const float values[] = {1, 65504, 65519, 65520, -1e9F, 1e-9F};
    const double wide[] = {1e300, -1e300, 1};
    uint16_t narrow[6], across[6];
    float single[3];
    ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F16, KEEL_CKPT_F32, values, 6, narrow), 2);
    ck_assert_uint_eq(narrow[2], 0x7bff);
    ck_assert_uint_eq(narrow[3], 0x7c00);
    ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F32, KEEL_CKPT_F64, wide, 3, single), 2);
    ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_BF16, KEEL_CKPT_F32, values, 6, narrow), 0);
    ck_assert_uint_eq(keel_float_convert(KEEL_CKPT_F16, KEEL_CKPT_BF16, narrow, 6, across), 4);
}
END_TEST

/* Any run of elements is read as the boxes that make it up, in order. */
START_TEST(any_run_of_elements_is_read_in_dense_boxes)
{
    struct places p = make_places();
    struct keel_region tensors[16];
    struct keel_store *store;
    uint64_t state = 3;
    every_tensor(tensors);
    save_every(p.store, 40, 7);
    struct keel_snapshot *snapshot = open_snapshot(p.store, "sample", 40, &store);
    for (uint32_t round = 0; round < 300; round++) {
        struct keel_region tensor;
        ck_ok(keel_snapshot_tensor(snapshot, (uint32_t)draw(&state, keel_snapshot_tensor_count(snapshot)),
                                   &tensor));
        uint32_t size = keel_ckpt_dtype_bytes(tensor.dtype);
        uint64_t all = keel_region_bytes(&tensor) / size;
        if (all == 0)
            continue;
        uint64_t first = draw(&state, all), most = all - first < 20000 ? all - first : 20000;
        uint64_t count = 1 + draw(&state, most);
        uint8_t *got, *wanted;
        ck_ok(keel_alloc(count, size, &got));
        ck_ok(keel_alloc(count, size, &wanted));
        ck_ok(keel_snapshot_read_elements(snapshot, &tensor, first, count, got));
        sample_bytes(&tensor, 7, first * size, count * size, wanted);
        ck_assert_mem_eq(got, wanted, count * size);
        keel_free(got);
        keel_free(wanted);
    }
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(p.root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, what_is_exported_comes_back_bit_for_bit, 0, 3);
    tcase_add_test(tc, only_chooses_and_a_part_is_no_jobs_state);
    tcase_add_test(tc, floats_are_rounded_on_the_way_out_and_widened_on_the_way_back);
    tcase_add_test(tc, a_damaged_snapshot_is_not_exported);
    tcase_add_test(tc, a_sealed_run_is_filled_and_read_with_its_key);
    tcase_add_test(tc, gpt2_goes_out_under_its_published_names);
    tcase_add_test(tc, gpt2_becomes_what_a_job_begins_from);
    tcase_add_test(tc, what_is_not_a_whole_gpt2_is_refused_by_name);
    tcase_add_test(tc, names_of_layers_are_numbers_and_nothing_else);
    tcase_add_test(tc, the_directory_of_a_run_takes_its_own_state_or_begins_from_weights);
    tcase_add_test(tc, imports_go_where_nothing_is_overwritten);
    tcase_add_test(tc, types_and_names_that_snapshots_lack_are_refused_by_name);
    tcase_add_test(tc, what_a_file_says_of_itself_is_neither_printed_nor_taken_as_it_is);
    tcase_add_test(tc, nan_is_not_imported_unless_asked);
    tcase_add_test(tc, differences_are_counted_and_measured);
    tcase_add_test(tc, every_narrow_float_is_widened_to_its_value_and_rounded_back);
    tcase_add_test(tc, numbers_that_become_infinite_are_counted);
    tcase_add_test(tc, any_run_of_elements_is_read_in_dense_boxes);
}

KEEL_TEST_MAIN("interop", cases, 60)
