/* board_file.h - what the files of the registry share; private to the boards room. */
#ifndef KEEL_BOARD_FILE_H
#define KEEL_BOARD_FILE_H

#include <keel/board.h>
#include <keel/ini.h>

/* "vendor/board:1" in two: the name of a folder and a number. A board without one is its first device. */
void keel_board_name_split(const char *name, char folder[KEEL_PATH_BYTES], uint32_t *out_number);
/* Which board that is, without opening it: its file and what its driver tells. Errors as of keel_board_open.
 */
enum keel_status keel_board_look(const char *name, uint32_t threads, struct keel_board_file *out_file,
                                 struct keel_device_info *out_info);
/* The settings of a device without a board file. */
void keel_board_file_defaults(struct keel_board_file *out);
/* One line of a section [kernels], of board.conf or tune.conf. */
enum keel_status keel_board_tunable_take(struct keel_board_file *file, const struct keel_ini_entry *entry);

/* Add what tune.conf says, if there is one for this driver; what board.conf says stays. */
enum keel_status keel_board_tune_read(struct keel_board_file *file, const struct keel_device_info *info);
/* The tunables as kernels take them, borrowing their names; INVALID names the line of one that there is not,
 * and the nearest that there is. */
enum keel_status keel_board_settings(const struct keel_board_file *file,
                                     struct keel_setting out[KEEL_BOARD_TUNABLES_MAX]);

/* clblast.conf: parameters by kernel, in the order of the file. Refers to itself: it stays where it is. */
enum { KEEL_BOARD_CLBLAST_KERNELS = 16, KEEL_BOARD_CLBLAST_VALUES = 256 };
struct keel_board_clblast {
    char path[KEEL_PATH_BYTES]; /* of the file */
    char driver[KEEL_DEVICE_NAME_BYTES];
    char kernels[KEEL_BOARD_CLBLAST_KERNELS][32], names[KEEL_BOARD_CLBLAST_VALUES][32];
    const char *name_list[KEEL_BOARD_CLBLAST_VALUES];
    size_t values[KEEL_BOARD_CLBLAST_VALUES];
    struct keel_provider_parameters parameters[KEEL_BOARD_CLBLAST_KERNELS];
    uint32_t kernel_count, value_count;
};
/* No kernels when there is no such file, or one for another driver. INVALID names the line. */
enum keel_status keel_board_clblast_read(const struct keel_board_file *file,
                                         const struct keel_device_info *info, struct keel_board_clblast *out);
/* Write it at `path` out of what CLBlast's tuners left in `folder`, for this device. NOT_FOUND: nothing is
 * there. INVALID: of another device, or no result of a tuner, by file. */
enum keel_status keel_board_clblast_import(const char *folder, const struct keel_device_info *info,
                                           const char *path, uint32_t *out_kernel_count);
/* Where a board's artifacts are; are there any? */
enum keel_status keel_board_artifacts_folder(const struct keel_board_file *file, char out[KEEL_PATH_BYTES]);
bool keel_board_has_artifacts(const struct keel_board_file *file);

/* How well a file fits a device. */
enum keel_board_fit { KEEL_BOARD_OTHER, KEEL_BOARD_OTHER_DRIVER, KEEL_BOARD_FITS };
enum keel_board_fit keel_board_file_fit(const struct keel_board_file *file,
                                        const struct keel_device_info *info);

#endif
