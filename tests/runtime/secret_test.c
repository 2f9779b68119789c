/* secret_test.c - the job key is made once, kept private, and refused when it was not. */
#include "secret.h"

#include "harness.h"
#include <keel/file.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/keel-secret-XXXXXX";
static char key_path[KEEL_PATH_BYTES];

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
    ck_ok(keel_path_join(key_path, directory, "job.key"));
}

static void teardown(void)
{
    ck_ok(keel_remove_tree(directory));
}

START_TEST(the_key_is_made_once_private_and_the_same_for_all)
{
    struct keel_secret launcher, agent, again;
    ck_status(keel_secret_load(directory, false, &agent), KEEL_NOT_FOUND);
    ck_ok(keel_secret_load(directory, true, &launcher));
    ck_ok(keel_secret_load(directory, false, &agent));
    ck_ok(keel_secret_load(directory, true, &again));
    ck_assert_mem_eq(&launcher, &agent, sizeof launcher);
    ck_assert_mem_eq(&launcher, &again, sizeof launcher);
    struct stat info;
    ck_assert_int_eq(stat(key_path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    ck_assert_int_eq(info.st_size, 65);
}
END_TEST

START_TEST(two_directories_have_two_keys)
{
    char other[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(other, directory, "other"));
    ck_ok(keel_mkdir_all(other));
    struct keel_secret a, b;
    ck_ok(keel_secret_load(directory, true, &a));
    ck_ok(keel_secret_load(other, true, &b));
    ck_assert_mem_ne(&a, &b, sizeof a);
}
END_TEST

START_TEST(a_key_that_others_can_read_is_refused)
{
    struct keel_secret secret;
    ck_ok(keel_secret_load(directory, true, &secret));
    static const mode_t open_modes[] = {0644, 0640, 0604, 0620, 0601, 0666};
    for (size_t i = 0; i < sizeof open_modes / sizeof open_modes[0]; i++) {
        ck_assert_int_eq(chmod(key_path, open_modes[i]), 0);
        ck_status(keel_secret_load(directory, true, &secret), KEEL_DENIED);
        ck_assert_ptr_nonnull(strstr(keel_detail(), "chmod 600"));
    }
    ck_assert_int_eq(chmod(key_path, 0400), 0);
    ck_ok(keel_secret_load(directory, true, &secret));
}
END_TEST

START_TEST(a_malformed_key_is_refused_and_stays_as_it_is)
{
    static const char digits[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    char cases[4][80];
    snprintf(cases[0], sizeof cases[0], "%.63s\n", digits);               /* short */
    snprintf(cases[1], sizeof cases[1], "%s%s\n", digits, "00");          /* long */
    snprintf(cases[2], sizeof cases[2], "%.32sg%.31s\n", digits, digits); /* no digit */
    snprintf(cases[3], sizeof cases[3], "%s ", digits);                   /* no end of line */
    for (size_t i = 0; i < 4; i++) {
        ck_ok(keel_file_replace(key_path, cases[i], strlen(cases[i]), 0600));
        struct keel_secret secret;
        ck_status(keel_secret_load(directory, true, &secret), KEEL_CORRUPT);
    }
    ck_ok(keel_file_replace(key_path, digits, 0, 0600));
    struct keel_secret secret;
    ck_status(keel_secret_load(directory, true, &secret), KEEL_CORRUPT);
    struct stat info;
    ck_assert_int_eq(stat(key_path, &info), 0);
    ck_assert_int_eq(info.st_size, 0);
}
END_TEST

START_TEST(a_link_in_place_of_the_key_is_not_followed)
{
    char real[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(real, directory, "elsewhere"));
    struct keel_secret secret;
    ck_ok(keel_secret_load(directory, true, &secret));
    ck_assert_int_eq(rename(key_path, real), 0);
    ck_assert_int_eq(symlink(real, key_path), 0);
    ck_status(keel_secret_load(directory, true, &secret), KEEL_DENIED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "is a symbolic link; name the file that it leads to"));
}
END_TEST

START_TEST(purposes_have_keys_of_their_own_that_do_not_tell_the_job_key)
{
    struct keel_secret secret;
    ck_ok(keel_secret_load(directory, true, &secret));
    uint8_t control[KEEL_SECRET_BYTES], fabric[KEEL_SECRET_BYTES], again[KEEL_SECRET_BYTES];
    keel_secret_derive(&secret, "control", control);
    keel_secret_derive(&secret, "fabric", fabric);
    keel_secret_derive(&secret, "control", again);
    ck_assert_mem_eq(control, again, sizeof control);
    ck_assert_mem_ne(control, fabric, sizeof control);
    ck_assert_mem_ne(control, secret.key, sizeof control);
    keel_secret_wipe(&secret);
    static const struct keel_secret zero;
    ck_assert_mem_eq(&secret, &zero, sizeof zero);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, the_key_is_made_once_private_and_the_same_for_all);
    tcase_add_test(tc, two_directories_have_two_keys);
    tcase_add_test(tc, a_key_that_others_can_read_is_refused);
    tcase_add_test(tc, a_malformed_key_is_refused_and_stays_as_it_is);
    tcase_add_test(tc, a_link_in_place_of_the_key_is_not_followed);
    tcase_add_test(tc, purposes_have_keys_of_their_own_that_do_not_tell_the_job_key);
}

KEEL_TEST_MAIN("secret", cases, 20)
