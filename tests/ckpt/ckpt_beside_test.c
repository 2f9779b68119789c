/* ckpt_beside_test.c - `keel ckpt` beside a run that goes on: before any call of the disk that a command
 * makes the run may commit two snapshots and remove what was the newest. That is no damage, and no failure.
 */
#include "command.h"
#include <keel/disk.h>

static char root[KEEL_PATH_BYTES];
static uint64_t newest; /* step */
/* The run goes on before the call of that number; 0: never. */
static uint32_t calls, go_on_at;

static void save_step(struct keel_store *store, uint64_t step)
{
    struct keel_region tensors[4];
    uint64_t state = 41;
    struct sample_save how = {
        .step = step, .attempt = 3, .salt = step, .rank_count = 2, .codec = KEEL_CODEC_PLANES};
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 2, &state));
    newest = step;
}

static void go_on(void)
{
    struct keel_store *store = open_store(root, true);
    save_step(store, newest + 100);
    save_step(store, newest + 100);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    keel_store_close(store);
}

static void count_call(void)
{
    if (go_on_at == 0 || ++calls != go_on_at)
        return;
    go_on_at = 0;
    go_on();
}

static int open_beside(int at, const char *path, int flags, unsigned mode)
{
    count_call();
    return keel_disk_posix.open(at, path, flags, mode);
}

static ssize_t pread_beside(int fd, void *data, size_t bytes, uint64_t offset)
{
    count_call();
    return keel_disk_posix.pread(fd, data, bytes, offset);
}

static int stat_beside(int at, const char *path, struct stat *out, int flags)
{
    count_call();
    return keel_disk_posix.stat(at, path, out, flags);
}

static int list_beside(int fd, int (*visit)(void *context, const char *name), void *context)
{
    count_call();
    return keel_disk_posix.list(fd, visit, context);
}

static int sync_nothing(int fd)
{
    (void)fd;
    return 0;
}

/* The command with the run going on before each of its calls in turn; `check` sees every outcome. */
static void run_beside(int count, char **words, void (*check)(const struct output *output, bool went_on))
{
    struct keel_disk_ops ops = keel_disk_posix;
    ops.open = open_beside;
    ops.pread = pread_beside;
    ops.stat = stat_beside;
    ops.list = list_beside;
    ops.fsync = sync_nothing;
    bool went_on = true;
    for (uint32_t at = 1; went_on; at++) {
        make_directory(root);
        keel_disk_use(&ops);
        struct keel_store *store = open_store(root, true);
        save_step(store, 100);
        save_step(store, 200);
        keel_store_close(store);
        calls = 0;
        go_on_at = at;
        struct output o = run_command(count, words);
        went_on = go_on_at == 0;
        go_on_at = 0;
        ck_assert_msg(strstr(o.errors, "damaged") == NULL && o.code != 4, "call %u: exit %d: %s%s", at,
                      o.code, o.text, o.errors);
        check(&o, went_on);
        keel_disk_use(NULL);
        ck_ok(keel_remove_tree(root));
        ck_assert_uint_lt(at, 2000);
    }
}

static uint32_t told_removed; /* outcomes in which a command said so */

static void done(const struct output *output, bool went_on)
{
    ck_assert_msg(output->code == 0, "%s%s", output->text, output->errors);
    const char *told = strstr(output->text, "was removed while it was verified");
    told_removed += told != NULL;
    ck_assert(told == NULL || went_on);
}

START_TEST(verify_calls_nothing_damaged_that_a_run_removed)
{
    told_removed = 0;
    run_beside(2, (char *[]){"verify", root}, done);
    ck_assert_uint_gt(told_removed, 5);
    run_beside(3, (char *[]){"verify", root, "--all"}, done);
}
END_TEST

START_TEST(what_takes_the_newest_takes_the_next_when_it_was_removed)
{
    char out[KEEL_PATH_BYTES], other[KEEL_PATH_BYTES];
    make_directory(other);
    ck_ok(keel_path_join(out, other, "x.safetensors"));
    run_beside(2, (char *[]){"show", root}, done);
    run_beside(4, (char *[]){"export", root, out, "--force"}, done);
    ck_ok(keel_remove_tree(other));
}
END_TEST

/* Each side takes the newest when it is opened, so they may differ; whatever is told is told once. */
static void compared(const struct output *output, bool went_on)
{
    ck_assert_msg(output->code == 0 || (went_on && output->code == 1), "%s%s", output->text, output->errors);
    const char *end = strstr(output->text, "tensors equal");
    ck_assert_ptr_nonnull(end);
    ck_assert_ptr_null(strstr(end + 1, "tensors equal"));
}

START_TEST(diff_begins_again_when_a_side_was_removed)
{
    run_beside(3, (char *[]){"diff", root, root}, compared);
}
END_TEST

START_TEST(a_snapshot_that_is_named_and_removed_is_not_found)
{
    struct keel_store *store;
    char step[KEEL_PATH_BYTES];
    make_directory(root);
    store = open_store(root, true);
    save_step(store, 100);
    save_step(store, 200);
    keel_store_close(store);
    ck_ok(keel_path_join(step, root, "sample/step-100.3/manifest.json"));
    ck_assert_int_eq(unlink(step), 0);
    struct output o = COMMAND("verify", root, "--step", "100");
    ck_assert_int_eq(o.code, 3);
    ck_assert_int_eq(COMMAND("show", root, "--step", "100").code, 3);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* The file and what to do are named once. */
START_TEST(a_missing_file_is_named_once)
{
    struct keel_store *store;
    char path[KEEL_PATH_BYTES];
    make_directory(root);
    store = open_store(root, true);
    save_step(store, 100);
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 100, 3, &snapshot));
    ck_ok(keel_path_join(path, root, "sample/step-100.3/rank-0.keel"));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(keel_snapshot_verify(snapshot, NULL, NULL, NULL), KEEL_CORRUPT);
    const char *file = strstr(keel_detail(), path), *advice = strstr(keel_detail(), "use another snapshot");
    ck_assert_msg(file != NULL && strstr(file + 1, path) == NULL, "%s", keel_detail());
    ck_assert_msg(advice != NULL && strstr(advice + 1, "use another") == NULL, "%s", keel_detail());
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, verify_calls_nothing_damaged_that_a_run_removed);
    tcase_add_test(tc, what_takes_the_newest_takes_the_next_when_it_was_removed);
    tcase_add_test(tc, diff_begins_again_when_a_side_was_removed);
    tcase_add_test(tc, a_snapshot_that_is_named_and_removed_is_not_found);
    tcase_add_test(tc, a_missing_file_is_named_once);
}

KEEL_TEST_MAIN("ckpt_beside", cases, 120)
