/* artifact.h - artifacts: kernels in a device's own code, made before and kept in a folder with a manifest.
 *
 * A folder holds manifest.json, manifest.sum (the BLAKE2b-256 of manifest.json, as `b2sum -l 256` prints it)
 * and the files that the manifest names, each with its size and hash. The format is in FORMATS.md of this
 * folder. All of it is checked when the folder is opened: a driver is given only code that was made for this
 * device, driver version and source text. The sums detect damage, not tampering, for they have no key:
 * whoever can write to the folder decides what the driver runs.
 *
 * Threads: writing, one; an open folder may be asked by any thread. */
#ifndef KEEL_ARTIFACT_H
#define KEEL_ARTIFACT_H

#include <keel/device.h>
#include <keel/file.h>
#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEEL_ARTIFACT_FILES_MAX = 256,
    KEEL_ARTIFACT_PROGRAMS_MAX = 256,
    KEEL_ARTIFACT_KERNELS_MAX = 4096,
    KEEL_ARTIFACT_HASH_BYTES = 32,
    KEEL_ARTIFACT_HEX_BYTES = 2 * KEEL_ARTIFACT_HASH_BYTES + 1,
    KEEL_ARTIFACT_MANIFEST_BYTES_MAX = 4 << 20
};
#define KEEL_ARTIFACT_FILE_BYTES_MAX (UINT64_C(1) << 30)

/* BLAKE2b-256 in hexadecimal. */
void keel_artifact_hash(const void *data, uint64_t bytes, char out[KEEL_ARTIFACT_HEX_BYTES]);
/* That of a module's text. NO_MEMORY. */
enum keel_status keel_artifact_source_hash(const struct keel_module *module,
                                           char out[KEEL_ARTIFACT_HEX_BYTES]);

/* ---- the manifest (artifact_manifest.c) ---- */

/* What a program is for: a module, its build options, and the text that it was made of. */
struct keel_artifact_program {
    const char *module, *options;
    const char *source; /* hash of the text, as hexadecimal; NULL: not made from a text (built-in kernels) */
    const struct keel_code_kernel *kernels;
    uint32_t kernel_count;
};

/* One file, or a set of built-in kernels. */
struct keel_artifact_file {
    enum keel_code_form form;
    const char *name, *hash; /* BINARY: the file in the folder */
    uint64_t bytes;
    uint64_t image; /* 0: an image of its own */
    const struct keel_artifact_program *programs;
    uint32_t program_count;
};

struct keel_artifact_manifest {
    void *json;                             /* owns all strings */
    const char *platform, *device, *driver; /* what it was made for */
    struct keel_artifact_file *files;
    struct keel_artifact_program *programs; /* of all files, in their order */
    struct keel_code_kernel *kernels;       /* of all programs, in their order */
    uint32_t file_count, program_count, kernel_count;
    uint32_t bank_count; /* banks of memory that its kernels need */
};

/* Parse and check `bytes` of JSON; `where` is for messages. CORRUPT says what is wrong, VERSION that it is of
 * another format. On failure there is nothing to fini. */
enum keel_status keel_artifact_manifest_parse(const char *text, size_t bytes, const char *where,
                                              struct keel_artifact_manifest *out);
void keel_artifact_manifest_fini(struct keel_artifact_manifest *manifest);

/* ---- an open folder (artifact.c) ---- */

struct keel_artifacts;

/* Open a folder for a device with so many memory banks, and check everything. NOT_FOUND: there is none;
 * CORRUPT, VERSION: damaged; MISMATCH: made for another device or driver, or for more banks. */
enum keel_status keel_artifacts_open(const char *folder, const struct keel_device_info *info,
                                     struct keel_artifacts **out);
void keel_artifacts_close(struct keel_artifacts *artifacts); /* NULL is accepted */

/* The code of a module with these options, which lives as long as `artifacts`. NOT_FOUND: not among them;
 * MISMATCH: made from another text of the module, or without one of its kernels. */
enum keel_status keel_artifacts_find(const struct keel_artifacts *artifacts, const struct keel_module *module,
                                     const char *options, struct keel_code *out);

/* ---- making one (artifact_write.c) ---- */

struct keel_artifact_writer {
    char folder[KEEL_PATH_BYTES];
    char work[KEEL_PATH_BYTES],
        made[KEEL_PATH_BYTES]; /* a folder of its own beside it; within that, the new */
    void *files;               /* JSON array */
    uint32_t count;
};

/* May artifacts take the place of what is in this folder? INVALID names the first file that is none of its
 * own manifest. Asked again when they do; for who would rather know before the compiler has run. */
enum keel_status keel_artifact_may_replace(const char *folder);
/* Begin a folder, which is made if it is not there. On failure nothing is changed, and there is nothing to
 * fini. */
enum keel_status keel_artifact_writer_begin(struct keel_artifact_writer *writer, const char *folder);
/* Add a file of code, written as it is, with a name made from `stem`; name, hash and bytes of `file` are set
 * here and need not be given. */
enum keel_status keel_artifact_writer_add(struct keel_artifact_writer *writer, const char *stem,
                                          const void *data, const struct keel_artifact_file *file);
/* Write the manifest for a device, and put the new folder in the place of the old one: until then the old one
 * is as it was. */
enum keel_status keel_artifact_writer_finish(struct keel_artifact_writer *writer,
                                             const struct keel_device_info *info);
/* What was not finished is removed. */
void keel_artifact_writer_fini(struct keel_artifact_writer *writer);

#endif
