/* crash_test.c - a process that saves, commits and retains in a loop is killed at any moment: what it had
 * committed is there and right. And retention, which must never be the one that loses it. */
#include "disk_run.h"
#include "generation_index.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KILLS = 50 };
#else
enum { KILLS = 250 }; /* of each of two loops */
#endif
/* A machine that others slow down may kill every turn between a commit and its removals, so the pace is taken
 * again, and removals get done, before more is left behind than LISTED_MAX. */
enum { PACE_KILLS = 25 };

static uint32_t crash_tensors(struct keel_region out[5])
{
    uint32_t count = small_tensors(out);
    out[count++] = whole("large", KEEL_CKPT_F32, 2, (const uint64_t[]){60, 500});
    return count;
}

/* The loops that are killed. *committed is memory shared with the parent. This one cuts its tensors in
 * another way each time; */
static void save_cut_anew(const char *root, uint64_t step, uint64_t attempt, _Atomic uint64_t *committed)
{
    struct keel_region tensors[5];
    uint64_t state = step * 1000 + attempt;
    struct keel_store *store = open_store(root, true);
    uint32_t count = crash_tensors(tensors);
    for (;; step++) {
        struct sample_save how = {.step = step,
                                  .attempt = attempt,
                                  .salt = step,
                                  .rank_count = RANKS,
                                  .codec = step % 2 == 0 ? KEEL_CODEC_RAW : KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, count, 4, &state));
        *committed = step;
        ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    }
}

/* Everything that is listed loads right; returns the newest step, 0 when there is none. */
static uint64_t check_store(struct keel_store *store)
{
    struct keel_snapshot_info infos[LISTED_MAX];
    uint32_t count, damaged;
    ck_ok(keel_store_list(store, infos, LISTED_MAX, &count, &damaged));
    ck_assert_uint_eq(damaged, 0);
    ck_assert_uint_lt(count, LISTED_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct keel_snapshot *snapshot;
        ck_ok(keel_snapshot_open(store, infos[i].step, infos[i].attempt, &snapshot));
        ck_assert_uint_eq(keel_snapshot_tensor_count(snapshot), 5);
        ck_ok(check_all(snapshot, infos[i].step));
        keel_snapshot_close(snapshot);
    }
    return count > 0 ? infos[0].step : 0;
}

/* and this one makes deltas, and leaves away what is a rounded copy. */
static void save_deltas(const char *root, uint64_t step, uint64_t attempt, _Atomic uint64_t *committed)
{
    struct keel_shard_summary shards[RANKS];
    struct keel_store *store = open_store(root, true);
    for (;; step++) {
        struct attempt_id id = {step, attempt};
        ck_ok(save_all(store, id, RANKS, shards));
        ck_ok(commit_all(store, step, attempt, shards, RANKS));
        *committed = step;
        ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = KEEP}, NULL));
    }
}

static uint32_t deltas_seen;

static uint64_t check_deltas(struct keel_store *store)
{
    struct attempt_id found[LISTED_MAX];
    struct keel_generation_index attempts;
    uint32_t count = 0;
    complaint[0] = '\0';
    ck_assert_msg(check_listed(store, true, found, &count), "%s", complaint);
    ck_ok(keel_generation_index_scan(store, false, &attempts));
    for (size_t i = 0; i < attempts.count; i++)
        deltas_seen += attempts.at[i].base_count > 0;
    keel_generation_index_fini(&attempts);
    return count > 0 ? found[0].step : 0;
}

struct loop {
    const char *name;
    void (*save)(const char *root, uint64_t step, uint64_t attempt, _Atomic uint64_t *committed);
    uint64_t (*check)(struct keel_store *store); /* the newest step; 0: none */
};

static const struct loop loops[] = {{"cut anew", save_cut_anew, check_store},
                                    {"deltas and rounded copies", save_deltas, check_deltas}};

/* A killed process must not share the file in which Check keeps its messages: a write cut short by SIGKILL
 * makes the whole file unreadable. Check opened that file before the test, so its number is low; nothing else
 * that the child inherits is a regular file. That a child failed by itself is seen when it is waited for. */
static void leave_files_of_parent(void)
{
    enum { INHERITED_MAX = 32 };
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = STDERR_FILENO + 1; fd < INHERITED_MAX; fd++) {
        struct stat about;
        if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode))
            dup2(nothing, fd);
    }
}

static pid_t start_child(const struct loop *loop, const char *root, uint64_t newest, uint64_t attempt,
                         _Atomic uint64_t *committed)
{
    pid_t child = fork();
    if (child == 0) {
        leave_files_of_parent();
        loop->save(root, newest + 1, attempt, committed);
        _exit(0);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

static void kill_child(pid_t child)
{
    int result;
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, &result, 0), child);
    ck_assert_msg(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL, "the child ended by itself: %d",
                  result);
}

/* How long this machine, under this sanitizer, takes for three turns of the loop. */
static uint64_t time_three_turns(const struct loop *loop, const char *root, uint64_t newest, uint64_t attempt,
                                 _Atomic uint64_t *committed)
{
    uint64_t from_ns = keel_now_ns();
    pid_t child = start_child(loop, root, newest, attempt, committed);
    while (*committed < newest + 3) {
        ck_assert_msg(waitpid(child, NULL, WNOHANG) == 0, "the child ended by itself");
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    }
    uint64_t spent_ns = keel_now_ns() - from_ns;
    kill_child(child);
    return spent_ns;
}

START_TEST(a_kill_at_any_moment_loses_no_committed_snapshot)
{
    char root[KEEL_PATH_BYTES];
    const struct loop *loop = &loops[_i];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    _Atomic uint64_t *committed =
        mmap(NULL, sizeof *committed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(committed, MAP_FAILED);
    uint64_t turns_ns = 0, state = 31, newest = 0;
    for (uint64_t kills = 0; kills < KILLS; kills++) {
        if (kills % PACE_KILLS == 0) {
            turns_ns = time_three_turns(loop, root, newest, KILLS + 2 + kills, committed);
            newest = loop->check(store);
        }
        pid_t child = start_child(loop, root, newest, kills + 2, committed);
        keel_sleep_until_ns(keel_deadline_after_ns(draw(&state, turns_ns)));
        kill_child(child);
        uint64_t now = loop->check(store);
        ck_assert_uint_ge(now, newest);
        ck_assert_uint_ge(now, *committed);
        newest = now;
    }
    ck_assert_uint_gt(newest, 3); /* the loop got on between the kills */
    if (loop->save == save_deltas)
        ck_assert_uint_gt(deltas_seen, 0);
    printf("note: %s: killed %d times, up to step %llu\n", loop->name, KILLS, (unsigned long long)newest);
    munmap((void *)committed, sizeof *committed);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* ---- retention ----------------------------------------------------------------------------------------- */

static void save_step(struct keel_store *store, uint64_t step, uint64_t attempt, bool commit)
{
    struct keel_region tensor = whole("w", KEEL_CKPT_F32, 1, (const uint64_t[]){50});
    struct keel_shard_summary shard;
    struct sample_save how = {.step = step, .attempt = attempt, .salt = step, .rank_count = 1};
    ck_ok(save_rank(store, &how, &tensor, 1, &shard));
    if (commit)
        ck_ok(commit_all(store, step, attempt, &shard, 1));
}

static bool there(struct keel_store *store, uint64_t step, uint64_t attempt)
{
    char name[KEEL_STEP_NAME_BYTES], path[KEEL_PATH_BYTES];
    keel_step_name(step, attempt, name);
    ck_ok(keel_path_join(path, store->path, name));
    return keel_path_exists(path);
}

START_TEST(retention_keeps_the_newest_and_what_may_be_on_its_way)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    uint32_t removed = 9;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    ck_status(keel_store_retain(store, &(struct keel_retention){.keep_last = 1}, &removed), KEEL_INVALID);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert_uint_eq(removed, 0);
    save_step(store, 5, 1, false);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2},
                            &removed)); /* nothing is committed yet: nothing goes */
    ck_assert(there(store, 5, 1));
    save_step(store, 10, 1, true);
    save_step(store, 20, 1, true);
    save_step(store, 20, 7, true);
    save_step(store, 30, 1, true);
    save_step(store, 15, 3, false); /* left by a crash */
    save_step(store, 30, 2, false); /* of the newest step */
    save_step(store, 40, 1, false); /* on its way */
    ck_ok(keel_path_join(path, root, "sample/notes"));
    ck_ok(keel_mkdir_all(path));
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 3}, &removed));
    ck_assert_uint_eq(removed, 3);
    ck_assert(!there(store, 5, 1) && !there(store, 10, 1) && !there(store, 15, 3));
    ck_assert(there(store, 20, 1) && there(store, 20, 7) && there(store, 30, 1));
    ck_assert(there(store, 30, 2) && there(store, 40, 1));
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert_uint_eq(removed, 1);
    ck_assert(!there(store, 20, 1) && there(store, 20, 7) && there(store, 30, 1));
    ck_assert(keel_path_exists(path)); /* what is none of ours stays */
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, 20, 0, &snapshot));
    ck_assert_uint_eq(keel_snapshot_info(snapshot)->attempt, 7);
    ck_ok(check_all(snapshot, 20));
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(what_a_run_begun_anew_makes_does_not_go_first)
{
    char root[KEEL_PATH_BYTES];
    uint32_t removed;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 130; step += 10)
        save_step(store, step, 1, true);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert(there(store, 120, 1) && there(store, 130, 1));
    save_step(store, 10, 2, true);
    save_step(store, 20, 2, false); /* on its way, below what is there */
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert_uint_eq(removed, 0);
    save_step(store, 30, 2, true);
    save_step(store, 40, 2, true);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert(!there(store, 10, 2) && !there(store, 20, 2));
    ck_assert(there(store, 30, 2) && there(store, 40, 2));
    ck_assert(there(store, 120, 1) && there(store, 130, 1)); /* still the furthest */
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(a_damaged_manifest_is_kept_for_repair_and_counts_for_nothing)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    uint32_t removed, count, damaged;
    struct keel_snapshot_info infos[4];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 10; step <= 40; step += 10)
        save_step(store, step, 1, true);
    ck_ok(keel_path_join(path, root, "sample/step-30.1/manifest.json"));
    ck_ok(keel_file_append(path, " ", 1, false));
    ck_ok(keel_store_list(store, infos, 4, &count, &damaged));
    ck_assert_uint_eq(count, 3);
    ck_assert_uint_eq(damaged, 1);
    struct keel_snapshot *snapshot;
    ck_status(keel_snapshot_open(store, 30, 0, &snapshot), KEEL_CORRUPT);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, &removed));
    ck_assert_uint_eq(removed, 1);
    ck_assert(!there(store, 10, 1) && there(store, 20, 1) && there(store, 30, 1) && there(store, 40, 1));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_kill_at_any_moment_loses_no_committed_snapshot, 0,
                        (int)(sizeof loops / sizeof loops[0]));
    tcase_add_test(tc, retention_keeps_the_newest_and_what_may_be_on_its_way);
    tcase_add_test(tc, what_a_run_begun_anew_makes_does_not_go_first);
    tcase_add_test(tc, a_damaged_manifest_is_kept_for_repair_and_counts_for_nothing);
}

KEEL_TEST_MAIN("crash", cases, 600)
