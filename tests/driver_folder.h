/* driver_folder.h - a folder of OpenCL drivers of a test's own, and what discovery finds with it.
 *
 * Included once in a test program; set_up and tear_down are its fixture. Each test is a process of its own
 * (Check forks), so each may point OCL_ICD_VENDORS at `folder` first. */
#ifndef KEEL_TESTS_DRIVER_FOLDER_H
#define KEEL_TESTS_DRIVER_FOLDER_H

#include "harness.h"
#include <keel/device.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>

static char folder[] = "/tmp/keel-icd-XXXXXX";
static struct keel_device_info devices[KEEL_DEVICE_LIST_MAX];
static uint32_t count;
static char loader[KEEL_DEVICE_NAME_BYTES];

static void set_up(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void tear_down(void)
{
    ck_ok(keel_remove_tree(folder));
}

static void put(const char *name, const char *text)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, folder, name));
    ck_ok(keel_file_append(path, text, strlen(text), false));
}

/* A folder of drivers: PoCL's own file, and whatever the test put there. */
static void add_pocl(void)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_file_read("/etc/OpenCL/vendors/pocl.icd", 4096, &text, &bytes));
    put("pocl.icd", text);
    keel_free(text);
}

static void list(void)
{
    ck_ok(keel_device_list(devices, KEEL_DEVICE_LIST_MAX, &count, loader));
}

#endif
