/* artifact_make.h - making the artifacts of a board with a device that compiles for it. */
#ifndef KEEL_ARTIFACT_MAKE_H
#define KEEL_ARTIFACT_MAKE_H

#include <keel/board.h>

struct keel_artifact_making {
    const struct keel_board_file *file;
    const struct keel_device_info *target; /* the board: what the code is for */
    const char *selector;                  /* of the device that compiles */
    const char *folder;                    /* where the artifacts go */
    enum keel_class numerics;              /* whose kernels are made, beside those of all classes */
};

struct keel_artifact_made {
    uint32_t programs, files;
    uint64_t bytes;
};

/* Compile every module, launch every kernel at every group that is in use, and keep what the driver then has.
 * Blocks for as long as the compiler takes. On failure the folder is no folder of artifacts. */
enum keel_status keel_artifact_make(const struct keel_artifact_making *making,
                                    struct keel_artifact_made *out);

/* Write what a vendor's own tool compiles: MODULE.cl for each module and sources.json, which says the options
 * and kernels of each. Compiles nothing. */
enum keel_status keel_artifact_write_sources(const struct keel_artifact_making *making);

#endif
