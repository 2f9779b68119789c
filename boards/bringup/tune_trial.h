/* tune_trial.h - one value of a tunable, tried on a board in a process of its own. Private to `keel board
 * tune`. */
#ifndef KEEL_TUNE_TRIAL_H
#define KEEL_TUNE_TRIAL_H

#include <keel/kernels.h>
#include <keel/status.h>
#include <stdint.h>

enum { KEEL_TRIAL_SETTINGS_MAX = 64 };

/* A tunable by its number, since processes share no names. */
struct keel_trial_setting {
    uint32_t tunable, value;
};

enum keel_trial_outcome {
    KEEL_TRIAL_NONE,
    KEEL_TRIAL_FAILED, /* not measured, or wrong: `said` says why */
    KEEL_TRIAL_SAME,   /* the value is the one that holds */
    KEEL_TRIAL_SLOWER, /* or not faster beyond the noise */
    KEEL_TRIAL_FASTER  /* and all golden hashes are right */
};

struct keel_trial {
    struct keel_trial_setting settings[KEEL_TRIAL_SETTINGS_MAX]; /* that hold; each tunable once at most */
    uint32_t setting_count;
    struct keel_trial_setting tried;
    /* the answer */
    enum keel_trial_outcome outcome;
    double gain; /* how much faster: 0.1 for a tenth */
    char said[KEEL_DETAIL_BYTES];
};

/* Measure trial->tried. The trial is killed at the deadline, or earlier: after a minute, or ten times the
 * longest completed trial where that is more; *longest_ns keeps that time between calls (0 at first). OK:
 * *trial has the answer, also when the driver died or hung. Blocks; the process is gone when it returns. */
enum keel_status keel_trial_run(const char *board, struct keel_trial *trial, uint64_t *longest_ns,
                                uint64_t deadline_ns);

/* The process of a trial, whose order is on descriptor 3. Returns its exit code. */
int keel_trial_main(const char *board);

#endif
