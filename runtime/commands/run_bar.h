/* run_bar.h - the line at the bottom of the terminal that says how far a run is. */
#ifndef KEEL_RUN_BAR_H
#define KEEL_RUN_BAR_H

#include <stdint.h>

struct keel_bar {
    uint64_t step, steps; /* the newest, and all; steps is not 0 */
    uint64_t steps_now;   /* in the life of this command, and so many: */
    uint64_t samples;     /*   in units of the job */
    double seconds;       /*   since its first step */
    const char *unit;
    float loss;
    uint64_t snapshot, epoch; /* the newest step that was saved; the view */
    uint32_t ranks;
};

/* Draw it over the line that the cursor is in, no wider than the terminal of standard output. */
void keel_bar_draw(const struct keel_bar *bar);

#endif
