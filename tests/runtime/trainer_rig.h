/* trainer_rig.h - what tests of trainers share: a small GPT, and a text for it. */
#ifndef TRAINER_RIG_H
#define TRAINER_RIG_H

#include "data.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The keys that such jobs of `count` steps have in common. */
#define RIG_JOB(count)                                                                                       \
    .seed = 5, .layers = 3, .heads = 2, .dropout = 0.1F, .bias = true, .tied = true, .val_fraction = 0.1F,   \
    .steps = (count), .learning_rate = 1e-2F, .decay_steps = (count),                                        \
    .update = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .weight_decay = 0.1F, .max_norm = 1.0F}

/* A text of letters as the job's data, which stay when its file is gone. */
static inline void rig_open_data(struct keel_job *job, struct keel_data **out)
{
    char path[] = "/tmp/keel-trainer-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    for (uint32_t i = 0; i < 4096; i++) {
        char letter = (char)('a' + (i * i + i / 7) % 26);
        ck_assert_int_eq(write(fd, &letter, 1), 1);
    }
    close(fd);
    strcpy(job->path, path);
    ck_ok(keel_data_open(job, out));
    unlink(path);
}

#endif
