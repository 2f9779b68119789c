/* drill_test.c - drills are parsed strictly and fire once in the life of a directory. */
#include "drill.h"
#include "harness.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(good_drills_are_understood)
{
    struct keel_drill drill;
    ck_ok(keel_drill_parse("kill:rank=2,step=30", &drill));
    ck_assert(drill.action == KEEL_DRILL_KILL && drill.target == KEEL_DRILL_RANK && drill.number == 2 &&
              drill.step == 30 && drill.phase == KEEL_AT_FORWARD);
    ck_ok(keel_drill_parse("kill:step=9,node=1,at=snapshot", &drill));
    ck_assert(drill.target == KEEL_DRILL_NODE && drill.phase == KEEL_AT_SNAPSHOT);
    ck_ok(keel_drill_parse("kill:all,step=200", &drill));
    ck_assert(drill.target == KEEL_DRILL_ALL);
    ck_ok(keel_drill_parse("stop:rank=0,step=1", &drill));
    ck_assert(drill.action == KEEL_DRILL_STOP);
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
    "kill:rank=1,step=2\"",
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

static void cases(TCase *tc)
{
    tcase_add_test(tc, good_drills_are_understood);
    tcase_add_loop_test(tc, bad_drills_are_refused_with_an_example, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(tc, a_drill_fires_where_it_is_due_and_only_once);
}

KEEL_TEST_MAIN("drill", cases, 10)
