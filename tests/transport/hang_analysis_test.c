/* hang_analysis_test.c - whom everybody waits for, told from outside of real processes: stopped, dead,
 * absent, slow.
 *
 * The ranks are processes that record what an engine would; what is judged is their files alone. */
#include "hang_analysis.h"
#include "harness.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/net_cmd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, IDENTITY = 77, NOBODY = 99 };

static char directory[64];
static pid_t pids[RANKS];
static int ready[2];

struct part {
    uint64_t sequence; /* of the operation it begins; 0: none */
    uint32_t segment;
    uint32_t waits_for; /* NOBODY: it is at work */
    bool moves;
    enum keel_collective_kind kind;
    uint32_t peer;
};

static void play(uint32_t rank, const struct part *part)
{
    struct keel_recorder *recorder;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (keel_recorder_open(directory, &recorder) != KEEL_OK)
        _exit(1);
    uint16_t group = keel_recorder_group_opened(recorder, IDENTITY, 4, rank, RANKS);
    struct keel_collective before = {.kind = KEEL_BARRIER, .sequence = 1}, it = {.kind = part->kind};
    uint16_t place = keel_recorder_began(recorder, group, &before, 0, 0, keel_now_ns());
    keel_recorder_ended(recorder, place, KEEL_OK, keel_now_ns());
    it.sequence = part->sequence;
    it.root = part->peer;
    if (part->sequence != 0) {
        place = keel_recorder_began(recorder, group, &it, 1 << 20, 16, keel_now_ns());
        keel_recorder_segment(recorder, place, part->segment, 0, keel_now_ns());
    }
    if (part->sequence != 0 && part->waits_for != NOBODY)
        keel_recorder_waits(recorder, place, KEEL_RECORD_WANT_DATA,
                            (const uint16_t[]){(uint16_t)part->waits_for}, 1);
    if (write(ready[1], "r", 1) != 1)
        _exit(1);
    for (uint32_t k = part->segment;; k++) {
        keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS));
        if (part->moves)
            keel_recorder_segment(recorder, place, k, 0, keel_now_ns());
    }
}

static void begin(const struct part parts[RANKS])
{
    char word;
    snprintf(directory, sizeof directory, "/tmp/keel-who-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_assert_int_eq(pipe(ready), 0);
    fflush(NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0)
            play(rank, &parts[rank]);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ck_assert_int_eq(read(ready[0], &word, 1), 1);
}

static void end(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        kill(pids[rank], SIGKILL);
        waitpid(pids[rank], NULL, 0);
    }
    ck_ok(keel_remove_tree(directory));
}

static void stop(uint32_t rank)
{
    int status;
    kill(pids[rank], SIGSTOP);
    ck_assert_int_eq(waitpid(pids[rank], &status, WUNTRACED), pids[rank]);
}

static bool has_news(const struct keel_recordings *recordings)
{
    bool news = false;
    for (uint32_t k = 0; k < recordings->count; k++)
        news = news || recordings->at[k]->record.header.event_total > recordings->at[k]->event_total_before;
    return news;
}

/* Two looks, as the command has them; where something `moves`, so far apart that it has. */
static const struct keel_hang_analysis_group *look(struct keel_recordings *recordings, bool moves,
                                                   struct keel_hang_analysis *who)
{
    ck_ok(keel_recordings_find(directory, recordings));
    do {
        keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_MS));
        for (uint32_t k = 0; k < recordings->count; k++)
            keel_recording_refresh(recordings->at[k]);
    } while (moves && !has_news(recordings)); /* the suite's limit ends it */
    ck_ok(keel_hang_analysis_judge(recordings, who));
    ck_assert_uint_eq(who->group_count, 1);
    return &who->groups[0];
}

static void judge(uint32_t culprit, enum keel_hang_analysis_state state, uint32_t waited_by, bool moves,
                  const char *words)
{
    struct keel_recordings recordings;
    struct keel_hang_analysis who;
    char text[512];
    const struct keel_hang_analysis_group *group = look(&recordings, moves, &who);
    ck_assert_uint_eq(group->operation->sequence, 17);
    ck_assert_uint_ge(group->culprit_count, 1);
    ck_assert_uint_eq(group->culprits[0], culprit);
    ck_assert_uint_eq(group->ranks[culprit].state, state);
    ck_assert_uint_eq(group->ranks[culprit].waited_by, waited_by);
    ck_assert_int_eq(group->moves, moves);
    keel_hang_analysis_culprit_text(group, culprit, text, sizeof text);
    ck_assert_msg(strstr(text, words) != NULL, "`%s` is not in: %s", words, text);
    keel_hang_analysis_free(&who);
    keel_recordings_free(&recordings);
}

/* Everybody waits for the one before, in a ring: what rank 3 waited for when it was stopped is no news. */
static const struct part ring[RANKS] = {{17, 6, 3, false, KEEL_ALL_REDUCE, 0},
                                        {17, 7, 0, false, KEEL_ALL_REDUCE, 0},
                                        {17, 8, 1, false, KEEL_ALL_REDUCE, 0},
                                        {17, 5, 2, false, KEEL_ALL_REDUCE, 0}};

START_TEST(a_stopped_rank_is_named_through_a_chain)
{
    begin(ring);
    stop(3);
    judge(3, KEEL_HANG_ANALYSIS_STOPPED, 3, false,
          "is stopped; 3 of 4 ranks wait for it in all-reduce 17 (1 MiB of f32)");
    end();
}
END_TEST

START_TEST(a_dead_rank_is_named_by_what_it_left)
{
    begin(ring);
    kill(pids[3], SIGKILL);
    waitpid(pids[3], NULL, 0);
    judge(3, KEEL_HANG_ANALYSIS_DEAD, 3, false,
          "is dead; 3 of 4 ranks wait for it in all-reduce 17 (1 MiB of f32), segment 6 of 16");
    end();
}
END_TEST

START_TEST(a_rank_that_never_began_is_named)
{
    const struct part parts[RANKS] = {{17, 0, 2, false, KEEL_ALL_REDUCE, 0},
                                      {17, 0, 2, false, KEEL_ALL_REDUCE, 0},
                                      {0, 0, 0, false, KEEL_ALL_REDUCE, 0},
                                      {17, 0, 2, false, KEEL_ALL_REDUCE, 0}};
    begin(parts);
    judge(2, KEEL_HANG_ANALYSIS_NOT_BEGUN, 3, false, "has not begun; 3 of 4 ranks wait for it");
    end();
}
END_TEST

START_TEST(a_slow_rank_is_named_and_said_to_move)
{
    const struct part parts[RANKS] = {{17, 3, 1, false, KEEL_ALL_REDUCE, 0},
                                      {17, 2, NOBODY, true, KEEL_ALL_REDUCE, 0},
                                      {17, 3, 1, false, KEEL_ALL_REDUCE, 0},
                                      {17, 3, 2, false, KEEL_ALL_REDUCE, 0}};
    begin(parts);
    judge(1, KEEL_HANG_ANALYSIS_WORKING, 3, true, "is at work, slowly; 3 of 4 ranks wait for it");
    end();
}
END_TEST

START_TEST(a_rank_without_a_recording_is_named)
{
    begin(ring);
    struct keel_recordings found;
    ck_ok(keel_recordings_find(directory, &found));
    for (uint32_t k = 0; k < found.count; k++)
        if (found.at[k]->record.header.pid == (uint32_t)pids[3])
            ck_ok(keel_remove_tree(found.at[k]->path));
    keel_recordings_free(&found);
    judge(3, KEEL_HANG_ANALYSIS_UNSEEN, 3, false, "left no recording here; 3 of 4 ranks wait for it");
    end();
}
END_TEST

START_TEST(a_circle_blames_nobody)
{
    struct keel_recordings recordings;
    struct keel_hang_analysis who;
    begin(ring);
    const struct keel_hang_analysis_group *group = look(&recordings, false, &who);
    ck_assert_uint_eq(group->waiting_count, 4);
    ck_assert_uint_eq(group->culprit_count, 0);
    ck_assert_uint_eq(group->segment, 5);
    keel_hang_analysis_free(&who);
    keel_recordings_free(&recordings);
    end();
}
END_TEST

START_TEST(of_a_message_only_two_ranks_are_judged)
{
    const struct part parts[RANKS] = {{0, 0, 0, false, KEEL_ALL_REDUCE, 0},
                                      {17, 0, 2, false, KEEL_RECEIVE, 2},
                                      {0, 0, 0, false, KEEL_ALL_REDUCE, 0},
                                      {0, 0, 0, false, KEEL_ALL_REDUCE, 0}};
    begin(parts);
    judge(2, KEEL_HANG_ANALYSIS_NOT_BEGUN, 1, false, "has not begun; 1 of 4 ranks wait for it in receive 17");
    end();
}
END_TEST

/* What the command prints, with one rank stopped. */
/* Recordings as they would be gathered of a whole machine: every other rank waits for all those that have not
 * begun. */
START_TEST(of_4096_ranks_those_that_2048_wait_for_are_found_at_once)
{
    enum { RANKS_OF_MANY = 4096 };
    struct keel_recordings all = {.count = 0};
    struct keel_hang_analysis who;
    uint64_t now = keel_now_ns();
    const clock_t begun = clock();
    ck_ok(keel_alloc(RANKS_OF_MANY, sizeof(struct keel_recording *), &all.at));
    for (; all.count < RANKS_OF_MANY; all.count++) {
        struct keel_recording *recording;
        ck_ok(keel_alloc(1, sizeof *recording, &recording));
        recording->record.groups[0] = (struct keel_record_group){
            .identity = IDENTITY, .state = KEEL_RECORD_LIVE, .rank = all.count, .rank_count = RANKS_OF_MANY};
        if (all.count % 2 == 0)
            recording->record.operations[0] =
                (struct keel_record_operation){.state = KEEL_RECORD_LIVE,
                                               .sequence = 5,
                                               .begun_ns = now,
                                               .want = KEEL_RECORD_WANT_FIRST,
                                               .awaited_count = RANKS_OF_MANY / 2,
                                               .awaited = {1, 3, 5}};
        all.at[all.count] = recording;
    }
    ck_ok(keel_hang_analysis_judge(&all, &who));
    ck_assert_uint_eq(who.group_count, 1);
    ck_assert_uint_eq(who.groups[0].waiting_count, RANKS_OF_MANY / 2);
    ck_assert_uint_eq(who.groups[0].culprit_count, KEEL_HANG_ANALYSIS_CULPRITS_MAX);
    for (uint32_t k = 0; k < KEEL_HANG_ANALYSIS_CULPRITS_MAX; k++) {
        uint32_t rank = who.groups[0].culprits[k];
        ck_assert_uint_eq(rank, 2 * k + 1);
        ck_assert_uint_eq(who.groups[0].ranks[rank].waited_by, RANKS_OF_MANY / 2);
    }
    keel_hang_analysis_free(&who);
    keel_recordings_free(&all);
    ck_assert_int_lt(clock() - begun, 20 * CLOCKS_PER_SEC); /* of the processor, however busy it is */
}
END_TEST

/* A run of 512 ranks that share slices by two: a group of all, one of each column, two of each data position.
 */
START_TEST(a_run_has_as_many_groups_as_it_likes)
{
    enum { POSITIONS = 256, GROUPS = 1 + 2 + 2 * POSITIONS };
    struct keel_recordings all = {.count = 0};
    struct keel_hang_analysis who;
    ck_ok(keel_alloc(2 * POSITIONS, sizeof(struct keel_recording *), &all.at));
    for (; all.count < 2 * POSITIONS; all.count++) {
        const uint32_t place = all.count % 2, position = all.count / 2;
        struct keel_recording *recording;
        ck_ok(keel_alloc(1, sizeof *recording, &recording));
        const struct keel_record_group groups[] = {
            {.identity = 1, .state = KEEL_RECORD_LIVE, .rank = all.count, .rank_count = 2 * POSITIONS},
            {.identity = 2 + place, .state = KEEL_RECORD_LIVE, .rank = position, .rank_count = POSITIONS},
            {.identity = 4 + position, .state = KEEL_RECORD_LIVE, .rank = place, .rank_count = 2},
            {.identity = 4 + POSITIONS + position,
             .state = KEEL_RECORD_LIVE,
             .rank = place,
             .rank_count = 2}};
        memcpy(recording->record.groups, groups, sizeof groups);
        all.at[all.count] = recording;
    }
    ck_ok(keel_hang_analysis_judge(&all, &who));
    ck_assert_uint_eq(who.group_count, GROUPS);
    for (uint32_t rank = 0; rank < 2; rank++)
        ck_assert_ptr_eq(who.groups[GROUPS - 1].ranks[rank].recording, all.at[all.count - 2 + rank]);
    keel_hang_analysis_free(&who);
    keel_recordings_free(&all);
}
END_TEST

START_TEST(the_command_names_it_for_people_and_programs)
{
    char text_path[128], dir_option[] = "--dir", json_option[] = "--json", net[] = "net", name[] = "who";
    char *people[] = {net, name, dir_option, directory, NULL};
    char *programs[] = {net, name, json_option, dir_option, directory, NULL};
    char *text;
    size_t bytes;
    begin(ring);
    stop(3);
    snprintf(text_path, sizeof text_path, "%s/out", directory);
    ck_assert_ptr_nonnull(freopen(text_path, "w", stdout));
    ck_assert_int_eq(keel_net_main(4, people), 0);
    ck_ok(keel_file_read(text_path, 1 << 20, &text, &bytes));
    ck_assert_msg(strstr(text, "> rank 3 (process ") != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "nothing moves"));
    keel_free(text);
    ck_assert_int_eq(keel_net_main(5, programs), 0);
    ck_ok(keel_file_read(text_path, 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "\"awaited\":[{\"rank\":3,"));
    ck_assert_ptr_nonnull(strstr(text, "\"state\":\"stopped\",\"waited_by\":3"));
    keel_free(text);
    end();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_stopped_rank_is_named_through_a_chain);
    tcase_add_test(tc, a_dead_rank_is_named_by_what_it_left);
    tcase_add_test(tc, a_rank_that_never_began_is_named);
    tcase_add_test(tc, a_slow_rank_is_named_and_said_to_move);
    tcase_add_test(tc, a_rank_without_a_recording_is_named);
    tcase_add_test(tc, a_circle_blames_nobody);
    tcase_add_test(tc, of_a_message_only_two_ranks_are_judged);
    tcase_add_test(tc, of_4096_ranks_those_that_2048_wait_for_are_found_at_once);
    tcase_add_test(tc, a_run_has_as_many_groups_as_it_likes);
    tcase_add_test(tc, the_command_names_it_for_people_and_programs);
}

KEEL_TEST_MAIN("who", cases, 30)
