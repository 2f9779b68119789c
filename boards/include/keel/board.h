/* board.h - boards: a device together with its folder, which says what no driver tells.
 *
 * A board's folder holds board.conf (INI, keel/ini.h), what `keel board build` made of the kernels
 * (artifacts/), and what `keel board tune` found (tune.conf). Folders are ROOT/VENDOR/BOARD; the roots are
 * the directories of KEEL_BOARDS (':' between them), ./boards, and share/keel/boards beside the bin/ that the
 * program is in. VENDOR/BOARD in an earlier root hides the same name in a later one; a device gets its
 * board file from the first root that has a match.
 *
 * A device that no board file matches works all the same, with the defaults of its kind. The format of all
 * files is in boards/bringup/FORMATS.md.
 *
 * Threads: an open board may be used by any thread; opening and closing, by one at a time. Calls that read
 * folders block on files; opening blocks while drivers are asked. */
#ifndef KEEL_BOARD_H
#define KEEL_BOARD_H

#include <keel/api.h>
#include <keel/clock.h>
#include <keel/device.h>
#include <keel/file.h>
#include <keel/kernels.h>
#include <stdbool.h>
#include <stdint.h>

KEEL_API_BEGIN

enum {
    KEEL_BOARD_NAME_BYTES = 64,
    KEEL_BOARD_TEXT_BYTES = 192,
    KEEL_BOARD_TUNABLES_MAX = 64,
    KEEL_BOARD_WAIVERS_MAX = 32
};

/* Which devices a board file is for: patterns of fnmatch(3), any case; "" for any. */
struct keel_board_match {
    char platform[KEEL_DEVICE_NAME_BYTES];
    char name[KEEL_DEVICE_NAME_BYTES];
    char driver[KEEL_DEVICE_NAME_BYTES]; /* of the driver's version */
};

/* Where the code of the kernels comes from. */
enum keel_board_code {
    KEEL_BOARD_CODE_AUTO,      /* artifacts that were made for this driver, else source */
    KEEL_BOARD_CODE_SOURCE,    /* always source */
    KEEL_BOARD_CODE_ARTIFACTS, /* artifacts alone: without them the board does not open */
    KEEL_BOARD_CODE_BUILTIN    /* the same, of a manifest that names the kernels built into the board */
};

/* What a board must reach; 0: no limit. */
struct keel_board_limits {
    uint64_t memory_bytes;  /* at least */
    uint64_t launch_ns;     /* of an empty kernel, at most */
    uint64_t write_bytes_s; /* host to device, at least */
    uint64_t read_bytes_s;
    uint64_t copy_bytes_s; /* within the device: bytes copied, not bytes moved */
    uint64_t gemm_flops_s;
};

struct keel_board_tunable {
    char name[KEEL_BOARD_NAME_BYTES];
    uint32_t value;
    unsigned line; /* of its file */
};

/* A check that is known to fail here: "3.2 = reason until 2027-01-31". */
struct keel_board_waiver {
    char check[KEEL_BOARD_NAME_BYTES];
    char reason[KEEL_BOARD_TEXT_BYTES];
    char until[KEEL_DAY_BYTES]; /* the last day on which it holds: "2027-01-31" */
};

struct keel_board_file {
    char folder[KEEL_PATH_BYTES]; /* "" when there is none: then all the rest are defaults */
    char id[KEEL_PATH_BYTES];     /* "vendor/board": the last two names of the folder */
    /* [board] */
    char name[KEEL_BOARD_TEXT_BYTES]; /* for people */
    uint32_t kind;                    /* 0: any; else 1 + enum keel_device_kind */
    /* [match] */
    struct keel_board_match match;
    /* [device] */
    uint32_t image_limit;  /* programs' images that it holds at once; 0: no limit */
    uint32_t memory_banks; /* 0 and 1: one */
    uint32_t bank_style;   /* enum keel_bank_style: 0 none, 1 intel, 2 xilinx */
    uint64_t peak_flops_s; /* of float32, a multiply-add counted as two; 0: not known. For reports alone */
    /* [code] */
    uint32_t code;                           /* enum keel_board_code */
    char artifacts[KEEL_PATH_BYTES];         /* a folder, as an absolute path or from the board's folder */
    char build_with[KEEL_DEVICE_NAME_BYTES]; /* selector of the device that compiles for it; "": itself */
    bool one_image;                          /* all modules in one image */
    /* [limits] */
    struct keel_board_limits limits;
    /* [kernels], and what tune.conf adds */
    struct keel_board_tunable tunables[KEEL_BOARD_TUNABLES_MAX];
    uint32_t tunable_count;
    /* [waivers] */
    struct keel_board_waiver waivers[KEEL_BOARD_WAIVERS_MAX];
    uint32_t waiver_count;
    /* [recovery] */
    char reset[KEEL_BOARD_TEXT_BYTES]; /* command for sh -c that resets the board; "": none */
    uint32_t reset_s;                  /* how long that may take */
};

/* Read a folder's board.conf. INVALID names file, line, key and the nearest key; NOT_FOUND the folder. */
enum keel_status keel_board_file_read(const char *folder, struct keel_board_file *out);

/* The board file of a device, of all that the roots hold. OK with the only one that matches; OK with an empty
 * folder and defaults when none does. UNSUPPORTED names the next move: two match; one would match but for the
 * driver's version. INVALID: the file that matches has a mistake (other broken files are logged and passed
 * over). */
enum keel_status keel_board_file_find(const struct keel_device_info *info, struct keel_board_file *out);

/* Call `visit` with each folder of the roots that has a board.conf, by root, then in byte order. */
enum keel_status keel_board_folders(enum keel_status (*visit)(void *context, const char *folder),
                                    void *context);
/* The folder of "vendor/board" or of a path. NOT_FOUND says where was looked. */
enum keel_status keel_board_folder_find(const char *name, char out[KEEL_PATH_BYTES]);

/* The waiver of the check of that name, whether it still holds or not; NULL when there is none. */
const struct keel_board_waiver *keel_board_waiver(const struct keel_board_file *file, const char *name);

struct keel_board; /* an open device, its file and its code */

struct keel_board_options {
    uint32_t threads;         /* as struct keel_device_options */
    bool without_code;        /* no artifacts: from source, or for looking only */
    bool without_tuning;      /* neither tune.conf nor clblast.conf: for who makes them anew */
    enum keel_class numerics; /* of its kernels */
};

/* Open a device with all that its board file says. `name` is what keel_device_open takes, or a board:
 * "vendor/board" or the path of its folder (with a '/'), with ":n" behind it for the n-th such device of the
 * machine, from 0. options may be NULL.
 * Errors: those of keel_device_open and keel_board_file_find; NOT_FOUND: no such folder, no device that
 * matches it, artifacts missing; CORRUPT, MISMATCH: artifacts damaged, or of another device or driver. */
enum keel_status keel_board_open(const char *name, const struct keel_board_options *options,
                                 struct keel_board **out);
/* NULL is accepted; what was made on its device must be destroyed. */
void keel_board_close(struct keel_board *board);

struct keel_device *keel_board_device(const struct keel_board *board);
const struct keel_board_file *keel_board_file(const struct keel_board *board);
/* How its kernels are built: for keel_kernels_create_with. Lives as long as the board. */
const struct keel_kernels_options *keel_board_kernels(const struct keel_board *board);

KEEL_API_END

#endif
