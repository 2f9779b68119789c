/* drill_test.c - drills are parsed strictly and fire once in the life of a directory. */
#include "drill.h"
#include "harness.h"
#include "run_locks.h"
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(good_drills_are_understood)
{
    struct keel_drill drill;
    ck_ok(keel_drill_parse("kill:rank=2,step=30", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_KILL && drill.head.target == KEEL_DRILL_RANK &&
              drill.number == 2 && drill.step == 30 && drill.phase == KEEL_AT_FORWARD);
    ck_ok(keel_drill_parse("kill:step=9,node=1,at=snapshot", &drill));
    ck_assert(drill.head.target == KEEL_DRILL_NODE && drill.phase == KEEL_AT_SNAPSHOT);
    ck_ok(keel_drill_parse("kill:rank=1,step=9,at=gather", &drill));
    ck_assert_int_eq(drill.phase, KEEL_AT_GATHER);
    ck_ok(keel_drill_parse("kill:rank=1,step=9,at=eval", &drill));
    ck_assert_int_eq(drill.phase, KEEL_AT_EVAL);
    ck_ok(keel_drill_parse("stop:rank=1,step=9,at=text", &drill));
    ck_assert_int_eq(drill.phase, KEEL_AT_TEXT);
    ck_ok(keel_drill_parse("kill:all,step=200", &drill));
    ck_assert(drill.head.target == KEEL_DRILL_ALL);
    ck_ok(keel_drill_parse("stop:rank=0,step=1", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_STOP);
    ck_ok(keel_drill_parse("slow:rank=0,step=9,ms=20,steps=3", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_SLOW && drill.ms == 20 && drill.step_count == 3);
    ck_ok(keel_drill_parse("disk-full:rank=0,step=9", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_DISK_FULL && drill.phase == KEEL_AT_SNAPSHOT && drill.ms > 0);
    ck_ok(keel_drill_parse("sick:rank=2,step=7", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_SICK && drill.number == 2 && drill.step == 7);
    ck_ok(keel_drill_parse("hang:rank=2,step=7", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_HANG && drill.number == 2 && drill.step == 7);
    ck_ok(keel_drill_parse("hang:rank=2,step=8,at=capture", &drill));
    ck_ok(keel_drill_parse("flip:rank=1,step=9", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_FLIP && drill.phase == KEEL_AT_FORWARD);
    ck_ok(keel_drill_parse("flip:rank=1,step=9,at=commit", &drill));
    ck_assert(drill.head.kind == KEEL_DRILL_FLIP && drill.phase == KEEL_AT_COMMIT);
}
END_TEST

static const char *const bad[] = {
    "",
    "kill",
    "kill:",
    "kill:rank=2",
    "kill:step=3",
    "burn:rank=1,step=2",
    "kill:rank=x,step=2",
    "kill:rank=1,step=-2",
    "kill:rank=1,step=2,at=lunch",
    "kill:rank=1,step=2,when=now",
    "stop:all,step=3",
    "kill:rank=1,step=2,rank=0",
    "kill:rank=1,all,step=2",
    "kill:all=1,step=2",
    "kill:rank=1,step=2,step=2",
    "kill:rank=1,step=2,at=reduce,at=commit",
    "slow:rank=1,step=2,ms=5,ms=6",
    "kill:rank=1,step=2\"",
    "\tkill:rank=1,step=2",
    "kill:rank=1,step=2,ms=5",
    "slow:rank=1,step=2,ms=0",
    "slow:node=1,step=2",
    "disk-full:rank=1,step=2,steps=2",
    "disk-full:all,step=2",
    "flip:rank=1,step=2,at=spread",
    "flip:rank=1,step=2,at=eval",
    "flip:rank=1,step=2,at=gather",
    "sick:rank=1,step=2,at=commit",
    "sick:all,step=2",
    "hang:node=1,step=2",
    "hang:rank=1,step=2,at=reduce",
    "hang:rank=1,step=2,at=text",
};

START_TEST(bad_drills_are_refused_with_an_example)
{
    struct keel_drill drill;
    ck_status(keel_drill_parse(bad[_i], &drill), KEEL_INVALID);
    ck_assert(strstr(keel_detail(), "kill:rank=2,step=30") != NULL);
}
END_TEST

static int fire_in_child(const char *directory, uint64_t step, uint32_t rank)
{
    pid_t child = fork();
    if (child == 0) {
        struct keel_drill_plan plan = {.count = 1, .directory = directory};
        if (keel_drill_parse("kill:rank=2,step=30,at=commit", &plan.drills[0]) != KEEL_OK)
            _exit(2);
        struct keel_drill_place place = {.step = step, .phase = KEEL_AT_COMMIT, .rank = rank};
        keel_drill_fire(&plan, &place);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

START_TEST(a_drill_fires_where_it_is_due_and_only_once)
{
    char directory[] = "/tmp/keel-drill-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    uint64_t before = keel_now_ns();
    ck_assert_int_eq(fire_in_child(directory, 29, 2), 0);
    ck_assert_int_eq(fire_in_child(directory, 30, 1), 0);
    ck_assert_uint_eq(keel_drill_last_ns(directory), 0);
    ck_assert_int_eq(fire_in_child(directory, 30, 2), SIGKILL);
    ck_assert_uint_ge(keel_drill_last_ns(directory), before);
    ck_assert_int_eq(fire_in_child(directory, 30, 2), 0);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void count_flip(void *context, enum keel_drill_phase phase)
{
    ck_assert_int_eq(phase, KEEL_AT_FORWARD);
    ++*(uint32_t *)context;
}

START_TEST(a_slow_rank_stays_slow_for_its_steps_and_a_flip_is_the_owners_to_make)
{
    char directory[] = "/tmp/keel-drill-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(directory));
    uint32_t flips = 0;
    struct keel_drill_plan plan = {.count = 2, .directory = directory, .flip = count_flip, .context = &flips};
    ck_ok(keel_drill_parse("slow:rank=0,step=3,ms=30,steps=2", &plan.drills[0]));
    ck_ok(keel_drill_parse("flip:rank=0,step=3", &plan.drills[1]));
    for (uint64_t step = 1; step <= 6; step++) {
        struct keel_drill_place place = {.step = step, .phase = KEEL_AT_FORWARD, .rank = 0};
        uint64_t since = keel_now_ns();
        keel_drill_fire(&plan, &place);
        if (step == 3 || step == 4)
            ck_assert_uint_ge(keel_now_ns() - since, 30 * KEEL_NS_PER_MS);
        ck_assert_uint_eq(flips, step >= 3);
    }
    struct keel_drill_plan later = {
        .count = 2, .directory = directory, .flip = count_flip, .context = &flips};
    memcpy(later.drills, plan.drills, sizeof later.drills);
    keel_drill_fire(&later, &(struct keel_drill_place){.step = 3, .phase = KEEL_AT_FORWARD});
    ck_assert_uint_eq(flips, 1); /* another process of the same directory */
    ck_ok(keel_remove_tree(directory));
}
END_TEST

START_TEST(a_full_disk_refuses_what_is_written_for_a_while)
{
    char directory[] = "/tmp/keel-drill-XXXXXX", path[KEEL_PATH_BYTES];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    struct keel_drill_plan plan = {.count = 1, .directory = directory};
    ck_ok(keel_drill_parse("disk-full:rank=0,step=3,ms=200", &plan.drills[0]));
    ck_ok(keel_path_join(path, directory, "file"));
    keel_drill_prepare(&plan);
    ck_ok(keel_file_replace(path, "a", 1, 0600));
    keel_drill_fire(&plan, &(struct keel_drill_place){.step = 3, .phase = KEEL_AT_SNAPSHOT});
    uint64_t full_ns = keel_now_ns();
    enum keel_status status = keel_file_replace(path, "b", 1, 0600);
    if (keel_now_ns() - full_ns < 200 * KEEL_NS_PER_MS) /* a machine that was held up saw no full disk */
        ck_status(status, KEEL_NO_SPACE);
    keel_sleep_until_ns(full_ns + 201 * KEEL_NS_PER_MS);
    ck_ok(keel_file_replace(path, "c", 1, 0600));
    keel_disk_use(NULL);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Agent 1, whose worker fires. */
static pid_t begin_all(const char *directory)
{
    const pid_t agent = fork();
    if (agent != 0)
        return agent;
    if (fork() == 0) {
        struct keel_drill_plan plan = {.count = 1, .directory = directory};
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* as workers do */
        if (keel_drill_parse("kill:all,step=1", &plan.drills[0]) == KEEL_OK)
            keel_drill_fire(&plan, &(struct keel_drill_place){.step = 1, .leader = true});
        _exit(0);
    }
    for (;;)
        pause();
}

static bool is_stopped(pid_t pid)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *file = fopen(path, "r");
    const bool there = file != NULL && fgets(text, sizeof text, file) != NULL;
    if (file != NULL)
        fclose(file);
    return there && strstr(text, ") T ") != NULL;
}

START_TEST(all_are_killed_with_an_agent_that_does_not_yet_say_who_it_is)
{
    char directory[] = "/tmp/keel-drill-XXXXXX", lock[KEEL_PATH_BYTES];
    struct keel_lock_words words = {.incarnation = 1, .run = 1};
    int fd, ends[2];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_lock_agent_path(directory, 2, lock));
    ck_ok(keel_lock_take(lock, false, &fd));
    ck_ok(keel_lock_write(fd, &words, lock)); /* as who starts it does */
    const pid_t first = begin_all(directory), second = fork();
    if (second == 0) {
        while (!is_stopped(first))
            usleep(1000);
        usleep(200000);
        words.pid = getpid();
        (void)keel_lock_write(fd, &words, lock);
        sleep(5);
        _exit(0);
    }
    close(fd); /* the agent has it */
    ck_assert_int_eq(waitpid(second, &ends[1], 0), second);
    ck_assert_int_eq(waitpid(first, &ends[0], 0), first);
    ck_assert(WIFSIGNALED(ends[0]) && WTERMSIG(ends[0]) == SIGKILL);
    ck_assert(WIFSIGNALED(ends[1]) && WTERMSIG(ends[1]) == SIGKILL);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

/* Else which of two drills of a rank comes first would say whether the other comes at all. */
START_TEST(a_drill_beside_a_full_disk_fires)
{
    char directory[] = "/tmp/keel-drill-XXXXXX", path[KEEL_PATH_BYTES];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(path, directory, "file"));
    uint32_t flips = 0;
    struct keel_drill_plan plan = {.count = 2, .directory = directory, .flip = count_flip, .context = &flips};
    ck_ok(keel_drill_parse("disk-full:rank=0,step=3,ms=3600000", &plan.drills[0]));
    ck_ok(keel_drill_parse("flip:rank=0,step=4", &plan.drills[1]));
    keel_drill_prepare(&plan);
    keel_drill_fire(&plan, &(struct keel_drill_place){.step = 3, .phase = KEEL_AT_SNAPSHOT});
    keel_drill_fire(&plan, &(struct keel_drill_place){.step = 4, .phase = KEEL_AT_FORWARD});
    ck_assert_uint_eq(flips, 1);
    ck_status(keel_file_replace(path, "a", 1, 0600), KEEL_NO_SPACE);
    keel_disk_use(NULL);
    ck_ok(keel_remove_tree(directory));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, all_are_killed_with_an_agent_that_does_not_yet_say_who_it_is);
    tcase_add_test(tc, good_drills_are_understood);
    tcase_add_loop_test(tc, bad_drills_are_refused_with_an_example, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, a_drill_fires_where_it_is_due_and_only_once);
    tcase_add_test(tc, a_slow_rank_stays_slow_for_its_steps_and_a_flip_is_the_owners_to_make);
    tcase_add_test(tc, a_full_disk_refuses_what_is_written_for_a_while);
    tcase_add_test(tc, a_drill_beside_a_full_disk_fires);
}

KEEL_TEST_MAIN("drill", cases, 10)
