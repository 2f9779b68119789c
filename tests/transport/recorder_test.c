/* recorder_test.c - recordings: what is written is read, also from a process that is stopped or dead, and
 * what is no recording is refused. */
#include "harness.h"
#include "recording.h"

#include <dirent.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/transport.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64];

static void enter(void)
{
    snprintf(directory, sizeof directory, "/tmp/keel-recorder-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void leave(void)
{
    ck_ok(keel_remove_tree(directory));
}

static struct keel_recorder *recorder_open(void)
{
    struct keel_recorder *recorder;
    ck_ok(keel_recorder_open(directory, &recorder));
    return recorder;
}

static const struct keel_collective sum = {
    .kind = KEEL_ALL_REDUCE, .sequence = 17, .algorithm = KEEL_ALGORITHM_RING, .count = 1 << 18};

static uint32_t files_in_directory(void)
{
    uint32_t count = 0;
    DIR *stream = opendir(directory);
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream))
        count += entry->d_name[0] != '.';
    closedir(stream);
    return count;
}

/* The path of the one file in the directory. */
static const char *the_file(void)
{
    static char path[sizeof directory + sizeof(struct dirent)];
    DIR *stream = opendir(directory);
    path[0] = '\0';
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream))
        if (entry->d_name[0] != '.')
            snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    closedir(stream);
    return path;
}

START_TEST(what_is_recorded_is_read)
{
    enter();
    struct keel_recorder *recorder = recorder_open();
    uint16_t group = keel_recorder_group_opened(recorder, 99, 4, 1, 3);
    uint16_t place = keel_recorder_began(recorder, group, &sum, 1 << 20, 16, keel_now_ns());
    keel_recorder_first(recorder, place, 2, keel_now_ns());
    keel_recorder_segment(recorder, place, 3, 2, keel_now_ns());
    keel_recorder_waits(recorder, place, KEEL_RECORD_WANT_DATA, (const uint16_t[]){0, 2}, 2);
    struct keel_recording *recording;
    ck_ok(keel_recording_read(the_file(), &recording));
    const struct keel_record *record = &recording->record;
    ck_assert_uint_eq(recording->life, KEEL_LIFE_RUNS);
    ck_assert_uint_eq(record->header.pid, (uint32_t)getpid());
    ck_assert_uint_eq(record->groups[group].identity, 99);
    ck_assert_uint_eq(record->groups[group].rank, 1);
    const struct keel_record_operation *operation = &record->operations[place];
    ck_assert_uint_eq(operation->state, KEEL_RECORD_LIVE);
    ck_assert_uint_eq(operation->sequence, 17);
    ck_assert_uint_eq(operation->segment, 3);
    ck_assert_uint_eq(operation->first_count, 1);
    ck_assert_uint_eq(operation->awaited_count, 2);
    ck_assert_uint_eq(operation->awaited[1], 2);
    ck_assert_uint_eq(record->header.event_total, 3);
    ck_assert_uint_eq(record->events[2].what, KEEL_RECORD_SEGMENT);
    ck_assert_uint_eq(record->events[2].peer, 2);
    char text[256];
    keel_record_operation_text(operation, operation->begun_ns + 2 * KEEL_NS_PER_S, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(
        text,
        "all-reduce 17 (1 MiB of f32, ring), segment 3 of 16, wants data of ranks 0, 2; begun 2.0 s ago"));
    keel_recorder_ended(recorder, place, KEEL_OK, keel_now_ns());
    keel_recording_refresh(recording);
    ck_assert_uint_eq(recording->record.operations[place].state, KEEL_RECORD_OVER);
    ck_assert_uint_eq(recording->event_total_before, 3);
    keel_free(recording);
    keel_recorder_close(recorder);
    ck_assert_uint_eq(files_in_directory(), 0);
    leave();
}
END_TEST

START_TEST(the_ring_keeps_the_newest_and_says_which)
{
    enter();
    struct keel_recorder *recorder = recorder_open();
    uint16_t group = keel_recorder_group_opened(recorder, 1, 1, 0, 2);
    uint16_t place = keel_recorder_began(recorder, group, &sum, 1 << 20, 100000, keel_now_ns());
    for (uint32_t k = 1; k <= 10000; k++)
        keel_recorder_segment(recorder, place, k, 1, k);
    struct keel_recording *recording;
    ck_ok(keel_recording_read(the_file(), &recording));
    ck_assert_uint_eq(recording->record.header.event_total, 10001);
    ck_assert_uint_eq(recording->event_first, 10001 - KEEL_RECORD_EVENTS + 1);
    for (uint64_t k = recording->event_first; k < 10001; k++)
        ck_assert_uint_eq(recording->record.events[k % KEEL_RECORD_EVENTS].segment, k);
    keel_free(recording);
    keel_recorder_close(recorder);
    leave();
}
END_TEST

/* More operations in flight than there is room for are dropped, and none of the others is hurt. */
START_TEST(places_run_out_without_harm)
{
    enter();
    struct keel_recorder *recorder = recorder_open();
    uint16_t group = keel_recorder_group_opened(recorder, 1, 1, 0, 2);
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++)
        ck_assert_uint_ne(keel_recorder_began(recorder, group, &sum, 8, 1, 1), KEEL_RECORD_NONE);
    uint16_t none = keel_recorder_began(recorder, group, &sum, 8, 1, 1);
    ck_assert_uint_eq(none, KEEL_RECORD_NONE);
    keel_recorder_first(recorder, none, 1, 2);
    keel_recorder_segment(recorder, none, 1, 1, 2);
    keel_recorder_waits(recorder, none, KEEL_RECORD_WANT_DATA, NULL, 0);
    keel_recorder_ended(recorder, none, KEEL_OK, 2);
    keel_recorder_ended(recorder, 5, KEEL_OK, 2);
    ck_assert_uint_eq(keel_recorder_began(recorder, group, &sum, 8, 1, 3), 5);
    uint16_t groups[KEEL_RECORD_GROUPS];
    for (uint32_t k = 1; k < KEEL_RECORD_GROUPS; k++)
        groups[k] = keel_recorder_group_opened(recorder, k + 1, 1, 0, 2);
    ck_assert_uint_eq(keel_recorder_group_opened(recorder, 1000, 1, 0, 2), KEEL_RECORD_NONE);
    keel_recorder_group_closed(recorder, groups[7]);
    ck_assert_uint_eq(keel_recorder_group_opened(recorder, 1000, 1, 0, 2), groups[7]);
    keel_recorder_close(recorder);
    leave();
}
END_TEST

/* A child that records as fast as it can, is stopped anywhere, and then killed: what is read is whole. */
START_TEST(a_busy_owner_is_read_whole_running_stopped_and_dead)
{
    enter();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct keel_recorder *recorder = NULL;
        if (keel_recorder_open(directory, &recorder) != KEEL_OK)
            _exit(1);
        uint16_t group = keel_recorder_group_opened(recorder, 5, 1, 0, 2);
        struct keel_collective one = sum;
        for (one.sequence = 1;; one.sequence++) {
            uint16_t place = keel_recorder_began(recorder, group, &one, one.sequence, 0, one.sequence);
            keel_recorder_ended(recorder, place, KEEL_OK, one.sequence);
        }
    }
    struct keel_recordings found = {.count = 0};
    for (int k = 0; k < 500 && (found.count == 0 || found.at[0]->record.header.event_total < 10000); k++) {
        keel_recordings_free(&found);
        keel_sleep_until_ns(keel_deadline_after_ns(10 * KEEL_NS_PER_MS));
        ck_ok(keel_recordings_find(directory, &found));
    }
    ck_assert_uint_eq(found.count, 1);
    struct keel_recording *recording = found.at[0];
    for (int look = 0; look < 60; look++) {
        if (look % 20 == 10) {
            kill(child, SIGSTOP);
            ck_assert_int_eq(waitpid(child, NULL, WUNTRACED), child); /* it has stopped */
        }
        if (look % 20 == 0)
            kill(child, SIGCONT);
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
        keel_recording_refresh(recording);
        if (look % 20 >= 12)
            ck_assert_uint_eq(recording->life, KEEL_LIFE_STOPPED);
        /* every event in its place is of the operation that it must be of */
        const struct keel_record *record = &recording->record;
        for (uint64_t k = recording->event_first; k < record->header.event_total; k++)
            ck_assert_uint_eq(record->events[k % KEEL_RECORD_EVENTS].sequence, k / 2 + 1);
        for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++)
            if (record->operations[k].turn % 2 == 0)
                ck_assert_uint_eq(record->operations[k].bytes, record->operations[k].sequence);
    }
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    keel_recording_refresh(recording);
    ck_assert_uint_eq(recording->life, KEEL_LIFE_DEAD);
    ck_assert_uint_gt(recording->record.header.event_total, 10000);
    keel_recordings_free(&found);
    ck_assert_uint_eq(files_in_directory(), 1); /* evidence */
    leave();
}
END_TEST

START_TEST(what_the_dead_left_is_bounded)
{
    enter();
    char path[128];
    for (int k = 0; k < KEEL_RECORD_OLD_MAX + 5; k++) { /* start ticks that no living process has */
        snprintf(path, sizeof path, "%s/%d-1-%d.flight", directory, getpid(), k);
        ck_ok(keel_file_replace(path, "x", 1, 0600));
    }
    snprintf(path, sizeof path, "%s/else", directory);
    ck_ok(keel_file_replace(path, "x", 1, 0600));
    struct keel_recorder *recorder = recorder_open();
    ck_assert_uint_eq(files_in_directory(), KEEL_RECORD_OLD_MAX + 2);
    struct keel_recorder *second = recorder_open(); /* the living stay, and stay apart */
    ck_assert_uint_eq(files_in_directory(), KEEL_RECORD_OLD_MAX + 3);
    keel_recorder_close(second);
    keel_recorder_close(recorder);
    leave();
}
END_TEST

START_TEST(no_place_for_a_file_is_no_reason_not_to_record)
{
    struct keel_recorder *recorder;
    enter();
    ck_assert_int_eq(chmod(directory, 0777), 0); /* others could put files there */
    ck_ok(keel_recorder_open(directory, &recorder));
    ck_assert_uint_eq(files_in_directory(), 0);
    uint16_t group = keel_recorder_group_opened(recorder, 1, 1, 0, 2);
    uint16_t place = keel_recorder_began(recorder, group, &sum, 8, 1, 1);
    char text[256];
    keel_recorder_waits(recorder, place, KEEL_RECORD_WANT_FIRST, (const uint16_t[]){1}, 1);
    keel_recorder_describe(recorder, place, KEEL_NS_PER_MS, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "wants the first message of rank 1"));
    keel_recorder_describe(recorder, KEEL_RECORD_NONE, 1, text, sizeof text);
    ck_assert_str_eq(text, "");
    keel_recorder_close(recorder);
    ck_assert_int_eq(chmod(directory, 0700), 0);
    leave();
}
END_TEST

START_TEST(what_is_no_recording_is_refused)
{
    enter();
    struct keel_recording *recording;
    struct keel_recorder *recorder = recorder_open();
    char *bytes, path[128];
    size_t length;
    ck_ok(keel_file_read(the_file(), 1 << 20, &bytes, &length));
    ck_assert_uint_eq(length, sizeof(struct keel_record));
    snprintf(path, sizeof path, "%s/copy", directory);
    ck_status(keel_recording_read(path, &recording), KEEL_NOT_FOUND);
    struct keel_record *record = (struct keel_record *)(void *)bytes;
    record->header.version++;
    ck_ok(keel_file_replace(path, bytes, length, 0600));
    ck_status(keel_recording_read(path, &recording), KEEL_VERSION);
    record->header.version--;
    record->header.event_count++;
    ck_ok(keel_file_replace(path, bytes, length, 0600));
    ck_status(keel_recording_read(path, &recording), KEEL_CORRUPT);
    record->header.event_count--;
    ck_ok(keel_file_replace(path, bytes, length - 1, 0600));
    ck_assert_int_ne(keel_recording_read(path, &recording), KEEL_OK);
    memset(bytes + sizeof record->header, 0xff,
           length - sizeof record->header); /* nothing in it is believed */
    ck_ok(keel_file_replace(path, bytes, length, 0600));
    ck_ok(keel_recording_read(path, &recording));
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++)
        ck_assert_uint_eq(recording->record.operations[k].state, KEEL_RECORD_FREE);
    keel_free(recording);
    keel_free(bytes);
    keel_recorder_close(recorder);
    leave();
}
END_TEST

/* Of one epoch in which this rank waits for another that never comes, and which is revoked. */
static void epoch_in_vain(struct keel_endpoint *endpoint, uint64_t epoch)
{
    struct keel_address addresses[2] = {{0}};
    keel_endpoint_address(endpoint, &addresses[1]);
    struct keel_group_config config = {.epoch = epoch,
                                       .rank = 1,
                                       .rank_count = 2,
                                       .addresses = addresses,
                                       .shard_count = 2,
                                       .shard_rank = (const uint16_t[]){0, 1}};
    struct keel_group *group;
    struct keel_operation *operation;
    ck_ok(keel_group_open(endpoint, &config, &group));
    ck_ok(keel_group_begin(group, &(struct keel_collective){.kind = KEEL_BARRIER, .sequence = epoch},
                           &operation));
    keel_group_revoke(group);
    ck_status(keel_operation_wait(operation, KEEL_NEVER), KEEL_REVOKED);
    keel_group_close(group);
}

/* The recording has room for so many operations under way, and an epoch that ended has none. */
START_TEST(an_epoch_that_ends_leaves_nothing_under_way)
{
    enter();
    setenv("KEEL_NET_DIR", directory, 1);
    struct keel_endpoint *endpoint;
    ck_ok(keel_endpoint_open(&(struct keel_endpoint_config){.node = NULL}, &endpoint));
    for (uint64_t epoch = 1; epoch <= KEEL_RECORD_OPERATIONS + 8; epoch++)
        epoch_in_vain(endpoint, epoch);
    struct keel_recording *recording;
    ck_ok(keel_recording_read(the_file(), &recording));
    uint32_t live = 0, newest = 0;
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++) {
        const struct keel_record_operation *operation = &recording->record.operations[k];
        live += operation->state == KEEL_RECORD_LIVE;
        newest = operation->sequence > newest ? (uint32_t)operation->sequence : newest;
    }
    ck_assert_uint_eq(live, 0);
    ck_assert_uint_eq(newest, KEEL_RECORD_OPERATIONS + 8);
    keel_free(recording);
    keel_endpoint_close(endpoint);
    unsetenv("KEEL_NET_DIR");
    leave();
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, what_is_recorded_is_read);
    tcase_add_test(tc, the_ring_keeps_the_newest_and_says_which);
    tcase_add_test(tc, places_run_out_without_harm);
    tcase_add_test(tc, a_busy_owner_is_read_whole_running_stopped_and_dead);
    tcase_add_test(tc, what_the_dead_left_is_bounded);
    tcase_add_test(tc, no_place_for_a_file_is_no_reason_not_to_record);
    tcase_add_test(tc, what_is_no_recording_is_refused);
    tcase_add_test(tc, an_epoch_that_ends_leaves_nothing_under_way);
}

KEEL_TEST_MAIN("recorder", cases, 30)
