/* job_fuzz.c - any text as a job file, its last line as an override: refused with a reason, or a job that
 * writes itself as a file which loads to the same job. */
#include "fuzz.h"
#include <keel/job.h>

static size_t write_job(const struct keel_job *job, const char *path, char *out, size_t capacity)
{
    FILE *file = fopen(path, "w+");
    KEEL_ASSERT(file != NULL && keel_job_write(job, file) == KEEL_OK);
    rewind(file);
    size_t bytes = fread(out, 1, capacity - 1, file);
    out[bytes] = '\0';
    KEEL_ASSERT(fclose(file) == 0 && bytes < capacity - 1);
    return bytes;
}

static void check_round_trip(const struct keel_job *job, const char *path)
{
    static char first[1 << 16], second[1 << 16];
    struct keel_job again;
    (void)write_job(job, path, first, sizeof first);
    if (keel_job_load(path, NULL, 0, &again) != KEEL_OK) {
        fprintf(stderr, "%s\n%s\n", keel_detail(), first);
        KEEL_ASSERT(false && "a job that was written does not load");
    }
    (void)write_job(&again, path, second, sizeof second);
    KEEL_ASSERT(strcmp(first, second) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static char path[KEEL_PATH_BYTES], override[8192];
    KEEL_ASSERT(keel_path_join(path, fuzz_directory(), "job.conf") == KEEL_OK);
    fuzz_write(path, data, bytes);
    size_t last = bytes;
    while (last > 0 && data[last - 1] != '\n')
        last--;
    snprintf(override, sizeof override, "%.*s", (int)(bytes - last), (const char *)data + last);
    const char *overrides[] = {override};
    struct keel_job job;
    if (keel_job_load(path, NULL, 0, &job) == KEEL_OK)
        check_round_trip(&job, path);
    fuzz_write(path, data, last);
    if (keel_job_load(path, overrides, 1, &job) == KEEL_OK)
        check_round_trip(&job, path);
    return 0;
}
