/* misuse_test.c - programs that use the C API wrongly: an error of the programmer ends them with a line that
 * says where, one that comes with the data is a status. */
#include "sample.h"
#include <keel/safetensors.h>
#include <signal.h>
#include <sys/wait.h>

#define SOON (keel_deadline_after_ns(60 * KEEL_NS_PER_S))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* A store with step 1, in a process of its own. */
struct victim {
    struct keel_store *store;
    struct keel_region region;
    struct sample_source source;
};

static struct keel_save *begin(struct victim *v)
{
    struct keel_save *save;
    struct sample_save how = {.step = 2, .attempt = 7, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    ck_ok(begin_rank(v->store, &how, &v->source, 1, &save));
    return save;
}

static struct keel_snapshot *open_one(struct victim *v)
{
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(v->store, 1, 0, &snapshot));
    return snapshot;
}

static const struct keel_commit step_2 = {.step = 2, .attempt = 7};
static struct keel_shard_summary summary;
static uint8_t room[1 << 16];

static void begins_without_settings(struct victim *v)
{
    struct keel_save *save;
    (void)keel_save_begin(v->store, NULL, &save);
}

static void begins_without_regions(struct victim *v)
{
    struct keel_save *save;
    struct keel_save_config config = {.rank_count = 1, .region_count = 1, .read = sample_read};
    (void)keel_save_begin(v->store, &config, &save);
}

static void waits_for_no_save(struct victim *v)
{
    (void)v;
    (void)keel_save_wait_captured(NULL, SOON);
}

static void finishes_no_save(struct victim *v)
{
    (void)v;
    (void)keel_save_finish(NULL, SOON, &summary);
}

static void closes_the_store_under_a_save(struct victim *v)
{
    (void)begin(v);
    keel_store_close(v->store);
}

static void commits_nothing(struct victim *v)
{
    (void)keel_store_commit(v->store, NULL);
}

static void commits_without_a_way_to_gather(struct victim *v)
{
    const struct keel_ranks ranks = {.rank_count = 1};
    (void)keel_save_commit(v->store, begin(v), &step_2, &ranks, SOON);
}

static void commits_into_no_store(struct victim *v)
{
    (void)v;
    (void)keel_store_commit(NULL, &step_2);
}

static void lists_into_nothing(struct victim *v)
{
    uint32_t count;
    (void)keel_store_list(v->store, NULL, 4, &count, NULL);
}

static void retains_without_rules(struct victim *v)
{
    (void)keel_store_retain(v->store, NULL, NULL);
}

static void opens_from_no_store(struct victim *v)
{
    struct keel_snapshot *snapshot;
    (void)v;
    (void)keel_snapshot_open(NULL, 1, 0, &snapshot);
}

static void asks_no_snapshot(struct victim *v)
{
    (void)v;
    (void)keel_snapshot_info(NULL);
}

static void reads_into_nothing(struct victim *v)
{
    (void)keel_snapshot_read(open_one(v), &v->region, NULL, keel_region_bytes(&v->region));
}

static void loads_into_nothing(struct victim *v)
{
    const struct keel_load load = {.box = v->region};
    (void)keel_snapshot_load(open_one(v), &load, 1, NULL, NULL);
}

static void measures_a_region_of_too_many_dimensions(struct victim *v)
{
    v->region.dims = KEEL_TENSOR_DIMS_MAX + 1;
    (void)keel_region_bytes(&v->region);
}

static void opens_safetensors_nowhere(struct victim *v)
{
    struct keel_safetensors *file;
    (void)v;
    (void)keel_safetensors_open(NULL, &file);
}

static void finishes_twice(struct victim *v)
{
    struct keel_save *save = begin(v);
    ck_ok(keel_save_finish(save, SOON, &summary));
    (void)keel_save_finish(save, SOON, &summary);
}

static void cancels_what_has_ended(struct victim *v)
{
    struct keel_save *save = begin(v);
    ck_ok(keel_save_finish(save, SOON, &summary));
    keel_save_cancel(save);
}

static void closes_a_store_twice(struct victim *v)
{
    keel_store_close(v->store);
    keel_store_close(v->store);
}

static void reads_what_was_closed(struct victim *v)
{
    struct keel_snapshot *snapshot = open_one(v);
    keel_snapshot_close(snapshot);
    (void)keel_snapshot_read(snapshot, &v->region, room, keel_region_bytes(&v->region));
}

static void prepare(const char *root, struct victim *v)
{
    const struct keel_commit commit = {.step = 1, .attempt = 7};
    struct sample_save how = {.step = 1, .attempt = 7, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
    struct keel_save *save;
    v->store = open_store(root, true);
    v->region = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){4096});
    v->source = (struct sample_source){.regions = &v->region};
    ck_ok(begin_rank(v->store, &how, &v->source, 1, &save));
    ck_ok(keel_save_commit(v->store, save, &commit, NULL, SOON));
}

/* In a process of its own: it ends by an assertion of this room. */
static void check_asserts(const char *name, void (*misuse)(struct victim *v))
{
    char root[KEEL_PATH_BYTES], said[4096];
    int ends[2], code;
    make_directory(root);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        struct victim v;
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        prepare(root, &v);
        misuse(&v);
        _exit(0);
    }
    close(ends[1]);
    size_t got = 0;
    for (ssize_t part = 1; part > 0 && got < sizeof said - 1; got += (size_t)(part > 0 ? part : 0))
        part = read(ends[0], said + got, sizeof said - 1 - got);
    said[got] = '\0';
    close(ends[0]);
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_msg(WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT && strstr(said, "keel: ckpt/") != NULL &&
                      strstr(said, "assertion failed") != NULL,
                  "%s: %x: %s", name, (unsigned)code, said);
    ck_ok(keel_remove_tree(root));
}

#define CASE(name) check_asserts(#name, name)

START_TEST(what_cannot_be_meant_asserts)
{
    CASE(begins_without_settings);
    CASE(begins_without_regions);
    CASE(waits_for_no_save);
    CASE(finishes_no_save);
    CASE(closes_the_store_under_a_save);
    CASE(commits_nothing);
    CASE(commits_without_a_way_to_gather);
    CASE(commits_into_no_store);
    CASE(lists_into_nothing);
    CASE(retains_without_rules);
    CASE(opens_from_no_store);
    CASE(asks_no_snapshot);
    CASE(reads_into_nothing);
    CASE(loads_into_nothing);
    CASE(measures_a_region_of_too_many_dimensions);
    CASE(opens_safetensors_nowhere);
}
END_TEST

/* Under a sanitizer it is the sanitizer that says so. */
START_TEST(what_has_ended_asserts)
{
    if (SANITIZED == 0) {
        CASE(finishes_twice);
        CASE(cancels_what_has_ended);
        CASE(closes_a_store_twice);
        CASE(reads_what_was_closed);
    }
    keel_save_cancel(NULL); /* nothing is easily ended */
    keel_snapshot_close(NULL);
    keel_store_close(NULL);
}
END_TEST

START_TEST(what_comes_with_the_data_is_a_status)
{
    char root[KEEL_PATH_BYTES];
    struct victim v;
    struct keel_save *save;
    make_directory(root);
    prepare(root, &v);
    struct keel_region odd = v.region;
    struct keel_save_config config = {
        .step = 3, .attempt = 1, .rank_count = 1, .regions = &odd, .region_count = 1, .read = sample_read};
    odd.dtype = (enum keel_ckpt_dtype)77;
    ck_status(keel_save_begin(v.store, &config, &save), KEEL_INVALID);
    odd = v.region;
    odd.dims = 99;
    ck_status(keel_save_begin(v.store, &config, &save), KEEL_INVALID);
    odd = v.region;
    memset(odd.name, 'x', sizeof odd.name);
    ck_status(keel_save_begin(v.store, &config, &save), KEEL_INVALID);
    odd = v.region;
    odd.shape[0] = odd.extent[0] = UINT64_C(1) << 62;
    ck_status(keel_save_begin(v.store, &config, &save), KEEL_INVALID);

    struct keel_snapshot *snapshot = open_one(&v);
    keel_store_close(v.store); /* allowed: snapshots stay open */
    ck_status(keel_snapshot_read(snapshot, &v.region, room, 8), KEEL_INVALID);
    ck_ok(keel_snapshot_read(snapshot, &v.region, room, keel_region_bytes(&v.region)));
    odd = v.region;
    odd.dtype = KEEL_CKPT_I32;
    ck_status(keel_snapshot_read(snapshot, &odd, room, keel_region_bytes(&odd)), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w"));
    odd = v.region;
    odd.shape[0]++;
    ck_status(keel_snapshot_read(snapshot, &odd, room, keel_region_bytes(&odd)), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor w"));
    odd = v.region;
    snprintf(odd.name, sizeof odd.name, "nowhere");
    ck_status(keel_snapshot_read(snapshot, &odd, room, keel_region_bytes(&odd)), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "nowhere"));
    odd = v.region;
    odd.offset[0] = UINT64_MAX;
    ck_status(keel_snapshot_read(snapshot, &odd, room, keel_region_bytes(&odd)), KEEL_INVALID);
    keel_snapshot_close(snapshot);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_cannot_be_meant_asserts);
    tcase_add_test(tc, what_has_ended_asserts);
    tcase_add_test(tc, what_comes_with_the_data_is_a_status);
}

KEEL_TEST_MAIN("misuse", cases, 60)
