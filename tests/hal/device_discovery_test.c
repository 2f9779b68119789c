/* device_discovery_test.c - discovery survives what machines do to it, selection says what it chose from.
 *
 * Each test is a process of its own (Check forks), so each can set the driver's environment first. */
#include "driver_folder.h"
#include <keel/device.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The entry that was passed over under this name. */
static const struct keel_device_info *passed_over(const char *platform)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(devices[i].platform, platform) == 0 && devices[i].passed_over[0] != '\0')
            return &devices[i];
    return NULL;
}

START_TEST(the_host_is_last_of_the_usable)
{
    list();
    uint32_t usable = 0;
    while (usable < count && devices[usable].passed_over[0] == '\0')
        usable++;
    ck_assert_uint_ge(usable, 2); /* PoCL and the host */
    ck_assert_str_eq(devices[usable - 1].selector, "host");
    for (uint32_t i = usable; i < count; i++)
        ck_assert_str_ne(devices[i].passed_over, "");
    for (uint32_t i = 0; i < usable; i++) {
        ck_assert_str_ne(devices[i].selector, "");
        ck_assert_uint_gt(devices[i].memory_bytes, 0);
        ck_assert_uint_gt(devices[i].base_align_bytes, 0);
        ck_assert_uint_gt(devices[i].compute_units, 0);
    }
}
END_TEST

START_TEST(pocl_without_a_writable_cache_says_what_to_set)
{
    setenv("POCL_CACHE_DIR", "/proc/none", 1); /* where nobody makes a directory */
    list();
    const struct keel_device_info *info = passed_over("Portable Computing Language");
    ck_assert_ptr_nonnull(info);
    ck_assert_msg(strstr(info->passed_over, "POCL_CACHE_DIR") != NULL, "%s", info->passed_over);
}
END_TEST

START_TEST(the_loader_is_the_library_that_is_mapped)
{
    list();
    ck_assert_ptr_nonnull(strstr(loader, "libOpenCL"));
    ck_assert(keel_path_exists(loader));
}
END_TEST

static bool pocl_is_mapped(void)
{
    char *maps = NULL;
    size_t bytes = 0;
    ck_ok(keel_file_read("/proc/self/maps", 1 << 20, &maps, &bytes));
    bool found = strstr(maps, "libpocl") != NULL;
    keel_free(maps);
    return found;
}

START_TEST(the_host_is_opened_without_a_driver)
{
    struct keel_device *device = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    keel_device_close(device);
    ck_assert(!pocl_is_mapped());
    list();
    ck_assert(pocl_is_mapped());
}
END_TEST

START_TEST(a_short_list_is_cut_not_overrun)
{
    memset(devices, 'x', sizeof devices);
    ck_ok(keel_device_list(devices, 1, &count, NULL));
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(devices[1].selector[0], 'x');
}
END_TEST

START_TEST(a_broken_driver_is_named_and_the_good_one_works)
{
    add_pocl();
    put("broken.icd", "/no/such/driver.so\n");
    put("garbage.icd", "\x01\x02\xff\xfe garbage \x7f");
    put("zlib.icd", "libz.so.1\n"); /* loads, but is no driver */
    put("empty.icd", "\n");
    put("notes.txt", "not a driver file");
    setenv("OCL_ICD_VENDORS", folder, 1);
    list();
    const struct keel_device_info *broken = passed_over("broken.icd");
    ck_assert_ptr_nonnull(broken);
    ck_assert_ptr_nonnull(strstr(broken->passed_over, "/no/such/driver.so"));
    ck_assert_ptr_nonnull(passed_over("garbage.icd"));
    ck_assert_ptr_nonnull(passed_over("zlib.icd"));
    ck_assert_ptr_null(passed_over("pocl.icd"));
    ck_assert_ptr_null(passed_over("notes.txt"));
    struct keel_device *device = NULL;
    ck_ok(keel_device_open("pocl:0", NULL, &device));
    ck_assert_int_eq(keel_device_info(device)->kind, KEEL_DEVICE_CPU);
    keel_device_close(device);
}
END_TEST

START_TEST(without_any_driver_auto_is_the_host)
{
    setenv("OCL_ICD_VENDORS", folder, 1);
    list();
    ck_assert_str_eq(devices[0].selector, "host");
    ck_assert_ptr_nonnull(passed_over("OpenCL"));
    struct keel_device *device = NULL;
    ck_ok(keel_device_open("auto", NULL, &device));
    ck_assert_int_eq(keel_device_info(device)->kind, KEEL_DEVICE_HOST);
    keel_device_close(device);
    ck_status(keel_device_open("pocl", NULL, &device), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "host"));            /* what there is */
    ck_assert_ptr_nonnull(strstr(keel_detail(), "pocl-opencl-icd")); /* the next move */
}
END_TEST

START_TEST(auto_prefers_a_device_to_the_host)
{
    struct keel_device *device = NULL;
    ck_ok(keel_device_open(NULL, NULL, &device));
    ck_assert_int_ne(keel_device_info(device)->kind, KEEL_DEVICE_HOST);
    keel_device_close(device);
}
END_TEST

START_TEST(a_unique_part_of_a_name_selects)
{
    static const char *const words[] = {"POCL", "pocl:0", "portable comp", "PTHREAD"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct keel_device *device = NULL;
        ck_ok(keel_device_open(words[i], NULL, &device));
        ck_assert_str_eq(keel_device_info(device)->selector, "pocl:0");
        keel_device_close(device);
    }
}
END_TEST

START_TEST(a_part_that_fits_several_is_refused_with_their_names)
{
    setenv("POCL_DEVICES", "basic basic", 1);
    struct keel_device *device = NULL;
    ck_status(keel_device_open("pocl", NULL, &device), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "pocl:0"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "pocl:1"));
    ck_ok(keel_device_open("pocl:1", NULL, &device));
    ck_assert_str_eq(keel_device_info(device)->selector, "pocl:1");
    keel_device_close(device);
}
END_TEST

START_TEST(an_unknown_selector_shows_what_there_is)
{
    struct keel_device *device = NULL;
    ck_status(keel_device_open("warp-drive", NULL, &device), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "warp-drive"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "pocl:0"));
    ck_status(keel_device_open("", NULL, &device), KEEL_NOT_FOUND);
    ck_assert_ptr_null(device);
}
END_TEST

START_TEST(threads_limit_a_cpu_device)
{
    struct keel_device *device = NULL;
    struct keel_device_options options = {.threads = 1};
    unsetenv("POCL_MAX_PTHREAD_COUNT");
    ck_ok(keel_device_open("pocl:0", &options, &device));
    ck_assert_uint_eq(keel_device_info(device)->compute_units, 1);
    keel_device_close(device);
}
END_TEST

START_TEST(the_environment_wins_over_the_threads_option)
{
    struct keel_device *device = NULL;
    struct keel_device_options options = {.threads = 1};
    setenv("POCL_MAX_PTHREAD_COUNT", "2", 1);
    ck_ok(keel_device_open("pocl:0", &options, &device));
    ck_assert_uint_eq(keel_device_info(device)->compute_units, 2);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_checked_fixture(tc, set_up, tear_down);
    tcase_add_test(tc, the_host_is_last_of_the_usable);
    tcase_add_test(tc, pocl_without_a_writable_cache_says_what_to_set);
    tcase_add_test(tc, the_loader_is_the_library_that_is_mapped);
    tcase_add_test(tc, the_host_is_opened_without_a_driver);
    tcase_add_test(tc, a_short_list_is_cut_not_overrun);
    tcase_add_test(tc, a_broken_driver_is_named_and_the_good_one_works);
    tcase_add_test(tc, without_any_driver_auto_is_the_host);
    tcase_add_test(tc, auto_prefers_a_device_to_the_host);
    tcase_add_test(tc, a_unique_part_of_a_name_selects);
    tcase_add_test(tc, a_part_that_fits_several_is_refused_with_their_names);
    tcase_add_test(tc, an_unknown_selector_shows_what_there_is);
    tcase_add_test(tc, threads_limit_a_cpu_device);
    tcase_add_test(tc, the_environment_wins_over_the_threads_option);
}

KEEL_TEST_MAIN("discovery", cases, 60)
