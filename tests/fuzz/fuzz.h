/* fuzz.h - what the fuzz targets share: the entry points that libFuzzer calls, and a directory in memory for
 * readers that open files.
 *
 * A target's promise is written as KEEL_ASSERT: what fails ends the process, and the input is kept. */
#ifndef KEEL_TESTS_FUZZ_H
#define KEEL_TESTS_FUZZ_H

#include <keel/file.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
/* Optional: change `bytes` of `data` in place, into at most `max_bytes`; returns the new size. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed);
/* libFuzzer's own mutations, for custom mutators. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t max_bytes);

static char fuzz_root[KEEL_PATH_BYTES];

static inline void fuzz_remove_directory(void)
{
    (void)keel_remove_tree(fuzz_root);
}

/* A directory of this process, in memory where that can be, removed at the end. */
static inline const char *fuzz_directory(void)
{
    if (fuzz_root[0] == '\0') {
        snprintf(fuzz_root, sizeof fuzz_root, "%s/keel-fuzz-XXXXXX",
                 keel_path_exists("/dev/shm") ? "/dev/shm" : "/tmp");
        KEEL_ASSERT(mkdtemp(fuzz_root) != NULL);
        KEEL_ASSERT(atexit(fuzz_remove_directory) == 0);
    }
    return fuzz_root;
}

static inline void fuzz_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    KEEL_ASSERT(file != NULL);
    KEEL_ASSERT(fwrite(data, 1, bytes, file) == bytes);
    KEEL_ASSERT(fclose(file) == 0);
}

/* Cuts an input into numbers and runs of bytes; zeros behind the end. */
struct fuzz_input {
    const uint8_t *data;
    size_t bytes, at;
};

static inline uint8_t fuzz_take_u8(struct fuzz_input *in)
{
    return in->at < in->bytes ? in->data[in->at++] : 0;
}

static inline uint32_t fuzz_take_u16(struct fuzz_input *in)
{
    uint32_t low = fuzz_take_u8(in);
    return low | (uint32_t)fuzz_take_u8(in) << 8;
}

#endif
