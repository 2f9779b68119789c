/* trained.h - a trained model, for the commands that use one (keel eval, keel sample): what an operand names,
 * which snapshot is meant, and the model opened on one device with its weights. */
#ifndef KEEL_TRAINED_H
#define KEEL_TRAINED_H

#include "inference.h"
#include <keel/board.h>
#include <keel/command.h>
#include <keel/job.h>

/* Options of these commands: the begin of each one's own struct. */
struct keel_trained_options {
    const char *step, *out, *job, *device, *weights; /* NULL: not given */
    bool ema;
    struct keel_command_texts set;
};
/* clang-format off */
#define KEEL_TRAINED_OPTIONS \
    {"--step", "N", KEEL_COMMAND_TEXT, offsetof(struct keel_trained_options, step), \
     "the snapshot of that step; without it the newest"}, \
    {"--out", "DIR", KEEL_COMMAND_TEXT, offsetof(struct keel_trained_options, out), \
     "with JOB.conf: the run's directory, as of keel run; default runs/NAME"}, \
    {"--job", "FILE", KEEL_COMMAND_TEXT, offsetof(struct keel_trained_options, job), \
     "the job file of snapshots that lie in no directory of a run"}, \
    {"--weights", "TYPE", KEEL_COMMAND_TEXT, offsetof(struct keel_trained_options, weights), \
     "int8 or int4: those of products as few bits stand for them; :32, :64 or :128 behind it: inputs to a scale"}, \
    {"--ema", NULL, KEEL_COMMAND_FLAG, offsetof(struct keel_trained_options, ema), \
     "of a job with train.ema: the average of its weights in their place"}, \
    {"--device", "NAME", KEEL_COMMAND_TEXT, offsetof(struct keel_trained_options, device), \
     "device or board, as keel board list names them; default: the job's first"}, \
    {"--set", "section.key=value", KEEL_COMMAND_TEXTS, offsetof(struct keel_trained_options, set), \
     "override any key of the job; may be repeated"}
/* clang-format on */

struct keel_trained {
    char
        directory[KEEL_PATH_BYTES]; /* of the run, or of the snapshots where they lie in none: for messages */
    struct keel_job job;
    struct keel_store *store;
    bool newest;            /* is meant; else: */
    uint64_t step, attempt; /* attempt 0: the newest of that step */
    struct keel_board *board;
    struct keel_data *data; /* the caller opens it, for `job`; owned from then on */
    struct keel_inference *inference;
    struct keel_snapshot_info info; /* what was loaded */
    uint64_t stall_ns;
    struct keel_quantise quantise; /* of weights, when the model is opened */
    uint32_t decode;               /* as struct keel_inference_config, with the next; for keel_trained_open */
    uint32_t prompt_rows;
    bool only_decode, averages; /* averages: --ema */
};
/* PATH is a job file, the directory of a run, a store, a run in it or a snapshot. A job file names a
 * directory
 * (--out, runs/NAME), and where the job in that has another model it is told; the directory's job counts.
 * NOT_FOUND, INVALID and what job files and stores say. */
enum keel_status keel_trained_find(const struct keel_trained_options *options, const char *path,
                                   struct keel_trained *out);
/* The same of a model that predicts the next token, with its data opened. `identity` is for
 * keel_trained_open. INVALID: another model. Errors as of data. */
enum keel_status keel_trained_find_text(const struct keel_trained_options *options, const char *path,
                                        struct keel_trained *out, char identity[KEEL_IDENTITY_BYTES]);
/* Open device and model, and load the weights: `identity` is what the snapshot must bear, "" anything.
 * Blocks. MISMATCH: it is another job's. Errors as of boards, snapshots and keel_inference_create. */
enum keel_status keel_trained_open(struct keel_trained *trained, const struct keel_trained_options *options,
                                   const char *identity);
/* The model and the weights of the same snapshot again, as `quantise` says now. Errors as before. Blocks. */
enum keel_status keel_trained_reload(struct keel_trained *trained);
/* How many of the model's tensors, and of their numbers, few bits stand for; and what all take on the device,
 * of what they would as floats. */
struct keel_trained_quantised {
    uint32_t tensors, of_tensors;
    uint64_t numbers, of_numbers;
    uint64_t bytes, of_bytes;
};
struct keel_trained_quantised keel_trained_quantised(const struct keel_trained *trained);
/* Also after a failure. */
void keel_trained_close(struct keel_trained *trained);

/* A line of progress that is written over, where the standard error is a terminal. */
struct keel_trained_meter {
    uint64_t shown_ns;
    bool terminal;
};
struct keel_trained_meter keel_trained_meter(void);
void keel_trained_meter_show(struct keel_trained_meter *meter, const char *what, uint64_t done, uint64_t of);
void keel_trained_meter_hide(const struct keel_trained_meter *meter);

#endif
