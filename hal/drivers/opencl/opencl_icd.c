/* opencl_icd.c - which drivers the OpenCL loader was told of and could not use.
 *
 * A loader leaves a broken driver out without a word. So after it has looked, its configuration is read
 * again here: a library that is named there and is not in this process is reported, with the dynamic
 * linker's reason. Rules as in ocl-icd and the Khronos loader: OCL_ICD_VENDORS, a folder of .icd files or
 * one such file, else /etc/OpenCL/vendors; the first line of an .icd file names a library. */
#include "opencl_backend.h"
#include <dlfcn.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ICD_FILE_BYTES = 4096 };
static const char default_folder[] = "/etc/OpenCL/vendors";

struct search {
    const char *folder;
    struct keel_candidate *out;
    uint32_t capacity, *count;
};

/* "" when the library is a driver in use. */
static void reason_against_library(const char *library, char *reason, size_t reason_bytes)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    bool in_use = handle != NULL;
    if (handle == NULL)
        handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const char *said = "the OpenCL loader did not take it";
    if (handle == NULL)
        said = dlerror();
    else if (dlsym(handle, "clGetExtensionFunctionAddress") == NULL)
        said = "it is no OpenCL driver";
    else if (in_use)
        said = "";
    if (handle != NULL)
        dlclose(handle);
    reason[0] = '\0';
    if (said == NULL || said[0] != '\0')
        snprintf(reason, reason_bytes, "%.180s; reinstall this driver or remove the file",
                 said != NULL ? said : "it does not load");
}

static void check_file(struct search *search, const char *path, const char *name)
{
    char *text = NULL;
    size_t bytes = 0;
    char reason[KEEL_DEVICE_NAME_BYTES * 2];
    if (keel_file_read(path, ICD_FILE_BYTES, &text, &bytes) != KEEL_OK) {
        snprintf(reason, sizeof reason, "%.200s", keel_detail());
    } else {
        text[strcspn(text, "\r\n")] = '\0';
        reason_against_library(text, reason, sizeof reason);
    }
    keel_free(text);
    if (reason[0] != '\0')
        keel_opencl_add_failure(search->out, search->capacity, search->count, name, reason);
}

static enum keel_status visit(void *context, const char *name)
{
    struct search *search = context;
    size_t length = strlen(name);
    char path[KEEL_PATH_BYTES];
    if (length > 4 && strcmp(name + length - 4, ".icd") == 0 &&
        keel_path_join(path, search->folder, name) == KEEL_OK)
        check_file(search, path, name);
    return KEEL_OK;
}

void keel_opencl_report_unloaded(struct keel_candidate *out, uint32_t capacity, uint32_t *count)
{
    const char *named = getenv("OCL_ICD_VENDORS");
    struct search search = {named != NULL && named[0] != '\0' ? named : default_folder, out, capacity, count};
    if (keel_dir_list(search.folder, visit, &search) == KEEL_OK || !keel_path_exists(search.folder))
        return;
    const char *slash = strrchr(search.folder, '/');
    size_t length = strlen(search.folder);
    if (length > 4 && strcmp(search.folder + length - 4, ".icd") == 0)
        check_file(&search, search.folder, slash != NULL ? slash + 1 : search.folder);
}
