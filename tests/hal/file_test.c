/* file_test.c - files: whole or not at all, and errors that name the path. */
#include "harness.h"
#include <errno.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/keel-file-XXXXXX";
static char path[KEEL_PATH_BYTES];

static const char *in_folder(const char *name)
{
    ck_ok(keel_path_join(path, folder, name));
    return path;
}

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(folder));
    ck_assert(!keel_path_exists(folder));
}

static void check_contents(const char *file, const char *wanted)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_file_read(file, 1 << 20, &text, &bytes));
    ck_assert_uint_eq(bytes, strlen(wanted));
    ck_assert_str_eq(text, wanted); /* NUL-terminated */
    keel_free(text);
}

static enum keel_status count_entry(void *context, const char *name)
{
    (void)name;
    ++*(int *)context;
    return KEEL_OK;
}

static int entries(const char *directory)
{
    int count = 0;
    ck_ok(keel_dir_list(directory, count_entry, &count));
    return count;
}

START_TEST(a_replaced_file_is_new_and_leaves_nothing_beside_it)
{
    ck_ok(keel_file_replace(in_folder("a"), "old", 3, 0644));
    check_contents(path, "old");
    ck_ok(keel_file_replace(path, "newer", 5, 0600));
    check_contents(path, "newer");
    struct stat info;
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_ok(keel_file_replace(path, "", 0, 0600));
    check_contents(path, "");
    ck_assert_int_eq(entries(folder), 1);
}
END_TEST

/* The disk "fills" at the file size limit: the old contents must survive, whole. */
START_TEST(a_failed_replacement_leaves_the_old_contents)
{
    char large[4096];
    memset(large, 'x', sizeof large);
    ck_ok(keel_file_replace(in_folder("a"), "old", 3, 0644));
    struct rlimit before, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum keel_status status = keel_file_replace(path, large, sizeof large, 0644);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_status(status, KEEL_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(keel_detail(), path));
    check_contents(path, "old");
    ck_assert_int_eq(entries(folder), 1);
}
END_TEST

START_TEST(a_stale_temporary_file_is_no_obstacle)
{
    char stale[KEEL_PATH_BYTES + 32];
    for (unsigned serial = 0; serial < 3; serial++) { /* what an earlier process of this number left */
        snprintf(stale, sizeof stale, "%s.%ld.%u.tmp", in_folder("a"), (long)getpid(), serial);
        ck_ok(keel_file_append(stale, "x", 1, false));
    }
    ck_ok(keel_file_replace(path, "good", 4, 0644));
    check_contents(path, "good");
}
END_TEST

START_TEST(appends_add_up)
{
    ck_ok(keel_file_append(in_folder("log"), "one\n", 4, false));
    ck_ok(keel_file_append(path, "two\n", 4, true));
    ck_ok(keel_file_append(path, "", 0, true));
    check_contents(path, "one\ntwo\n");
}
END_TEST

START_TEST(a_full_disk_is_no_space)
{
    ck_status(keel_file_append("/dev/full", "x", 1, false), KEEL_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "/dev/full"));
    int fd = open("/dev/full", O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_status(keel_pwrite_all(fd, "x", 1, 0, "/dev/full"), KEEL_NO_SPACE);
    close(fd);
}
END_TEST

START_TEST(what_is_missing_is_not_found)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_status(keel_file_read(in_folder("none"), 10, &text, &bytes), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), path));
    ck_status(keel_dir_list(path, count_entry, &bytes), KEEL_NOT_FOUND);
    ck_status(keel_sync_path(path), KEEL_NOT_FOUND);
    ck_status(keel_file_replace(in_folder("none/file"), "x", 1, 0644), KEEL_NOT_FOUND);
    ck_status(keel_file_append(path, "x", 1, false), KEEL_NOT_FOUND);
    ck_assert(!keel_path_exists(path));
    ck_ok(keel_remove_tree(path));
    ck_assert_ptr_null(text);
}
END_TEST

/* Root may write anywhere but in file systems like /proc, which nobody may. */
START_TEST(a_read_only_directory_is_denied)
{
    char file[KEEL_PATH_BYTES];
    ck_ok(keel_mkdir_all(in_folder("locked")));
    ck_assert_int_eq(chmod(path, 0555), 0);
    if (geteuid() == 0) /* permissions do not bind root: become nobody, in this test's own process */
        ck_assert(chmod(folder, 0755) == 0 && seteuid(65534) == 0);
    ck_ok(keel_path_join(file, path, "file"));
    enum keel_status replaced = keel_file_replace(file, "x", 1, 0644);
    enum keel_status made = keel_mkdir_all(file), appended = keel_file_append(file, "x", 1, false);
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
    ck_status(replaced, KEEL_DENIED);
    ck_status(made, KEEL_DENIED);
    ck_status(appended, KEEL_DENIED);
    ck_assert_int_eq(entries(path), 0);
    ck_assert_int_eq(chmod(path, 0755), 0);
}
END_TEST

START_TEST(directories_are_made_with_their_parents)
{
    ck_ok(keel_mkdir_all(in_folder("a/b//c")));
    ck_ok(keel_mkdir_all(path));
    ck_assert(keel_path_exists(in_folder("a/b/c")));
    ck_ok(keel_mkdir_all(in_folder("a/b/d/")));
    ck_ok(keel_file_replace(in_folder("a/file"), "x", 1, 0644));
    ck_status(keel_mkdir_all(path), KEEL_NOT_FOUND); /* a file where a directory should be */
    ck_status(keel_mkdir_all(in_folder("a/file/b")), KEEL_NOT_FOUND);
    ck_status(keel_mkdir_all(""), KEEL_INVALID);
    ck_assert_int_eq(symlink("loop", in_folder("loop")), 0);
    ck_status(keel_mkdir_all(path), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), strerror(ELOOP)));
}
END_TEST

START_TEST(a_read_keeps_its_limit)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_file_replace(in_folder("a"), "12345", 5, 0644));
    ck_ok(keel_file_read(path, 5, &text, &bytes));
    keel_free(text);
    text = NULL;
    ck_status(keel_file_read(path, 4, &text, &bytes), KEEL_LIMIT);
    ck_status(keel_file_read(folder, 4, &text, &bytes), KEEL_INVALID);
    ck_status(keel_file_read("/proc/self/maps", 100, &text, &bytes), KEEL_LIMIT); /* tells no size */
    ck_assert_ptr_null(text);
    ck_ok(keel_file_read("/proc/self/maps", 1 << 24, &text, &bytes));
    ck_assert_uint_eq(bytes, strlen(text));
    ck_assert_uint_gt(bytes, 100);
    keel_free(text);
}
END_TEST

START_TEST(a_file_that_ends_early_is_damaged)
{
    char data[8];
    ck_ok(keel_file_replace(in_folder("a"), "12345", 5, 0644));
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    ck_ok(keel_pread_all(fd, data, 5, 0, path));
    ck_assert_mem_eq(data, "12345", 5);
    ck_status(keel_pread_all(fd, data, 5, 1, path), KEEL_CORRUPT);
    ck_ok(keel_pwrite_all(fd, "xyz", 3, 4, path));
    close(fd);
    check_contents(path, "1234xyz");
}
END_TEST

struct names {
    char text[64];
    int stop_at;
};

static enum keel_status gather(void *context, const char *name)
{
    struct names *names = context;
    strncat(names->text, name, sizeof names->text - strlen(names->text) - 1);
    return names->stop_at-- == 1 ? keel_fail(KEEL_LIMIT, "enough") : KEEL_OK;
}

START_TEST(entries_come_in_byte_order_and_stop_when_told)
{
    static const char *const made[] = {"b", "a10", "Z", "a9", ".hidden"};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
        ck_ok(keel_file_append(in_folder(made[i]), "", 0, false));
    struct names all = {.stop_at = 0}, some = {.stop_at = 2};
    ck_ok(keel_dir_list(folder, gather, &all));
    ck_assert_str_eq(all.text, ".hiddenZa10a9b");
    ck_status(keel_dir_list(folder, gather, &some), KEEL_LIMIT);
    ck_assert_str_eq(some.text, ".hiddenZ");
}
END_TEST

START_TEST(many_entries_are_all_seen)
{
    char name[16];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "f%d", i);
        ck_ok(keel_file_append(in_folder(name), "", 0, false));
    }
    ck_assert_int_eq(entries(folder), 200);
}
END_TEST

START_TEST(removing_a_tree_does_not_follow_links)
{
    char outside[KEEL_PATH_BYTES], link_path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(outside, folder, "outside"));
    ck_ok(keel_mkdir_all(outside));
    ck_ok(keel_file_replace(in_folder("outside/kept"), "x", 1, 0644));
    ck_ok(keel_mkdir_all(in_folder("tree/deep/er")));
    ck_ok(keel_path_join(link_path, folder, "tree/link"));
    ck_assert_int_eq(symlink(outside, link_path), 0);
    ck_ok(keel_remove_tree(in_folder("tree")));
    ck_assert(!keel_path_exists(path));
    check_contents(in_folder("outside/kept"), "x");
}
END_TEST

START_TEST(a_path_too_long_is_refused_not_cut)
{
    char name[KEEL_PATH_BYTES + 10], out[KEEL_PATH_BYTES] = "unchanged";
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    ck_status(keel_path_join(out, folder, name), KEEL_LIMIT);
    ck_assert_str_eq(out, "unchanged");
    ck_status(keel_mkdir_all(name), KEEL_LIMIT);
    ck_status(keel_file_replace(name, "x", 1, 0644), KEEL_LIMIT);
    ck_ok(keel_path_join(out, "", "name"));
    ck_assert_str_eq(out, "name");
}
END_TEST

static uint32_t interruptions;

static int interrupted_fsync(int fd)
{
    if (interruptions == 0)
        return keel_disk_posix.fsync(fd);
    interruptions--;
    errno = EINTR;
    return -1;
}

START_TEST(what_is_interrupted_is_tried_again_but_not_for_ever)
{
    struct keel_disk_ops ops = keel_disk_posix;
    ops.fsync = interrupted_fsync;
    ck_assert_ptr_eq(keel_disk_use(&ops), &keel_disk_posix);
    interruptions = 3;
    ck_ok(keel_sync_path(folder));
    ck_assert_uint_eq(interruptions, 0);
    interruptions = 1000000;
    ck_status(keel_sync_path(folder), KEEL_INTERRUPTED);
    ck_assert_ptr_eq(keel_disk_use(NULL), &ops);
    ck_ok(keel_sync_path(folder));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, a_replaced_file_is_new_and_leaves_nothing_beside_it);
    tcase_add_test(tc, a_failed_replacement_leaves_the_old_contents);
    tcase_add_test(tc, a_stale_temporary_file_is_no_obstacle);
    tcase_add_test(tc, appends_add_up);
    tcase_add_test(tc, a_full_disk_is_no_space);
    tcase_add_test(tc, what_is_missing_is_not_found);
    tcase_add_test(tc, a_read_only_directory_is_denied);
    tcase_add_test(tc, directories_are_made_with_their_parents);
    tcase_add_test(tc, a_read_keeps_its_limit);
    tcase_add_test(tc, a_file_that_ends_early_is_damaged);
    tcase_add_test(tc, entries_come_in_byte_order_and_stop_when_told);
    tcase_add_test(tc, many_entries_are_all_seen);
    tcase_add_test(tc, removing_a_tree_does_not_follow_links);
    tcase_add_test(tc, what_is_interrupted_is_tried_again_but_not_for_ever);
    tcase_add_test(tc, a_path_too_long_is_refused_not_cut);
}

KEEL_TEST_MAIN("file", cases, 60)
