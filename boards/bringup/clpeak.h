/* clpeak.h - the peaks that clpeak finds, where it is installed, beside those of level 5. Private to the
 * room. */
#ifndef KEEL_CLPEAK_H
#define KEEL_CLPEAK_H

#include "board_check.h"

/* The most that clpeak's output says of a device: single precision in GFLOPS, memory in GB/s; 0: nothing. */
struct keel_clpeak {
    double gflops, memory_gbs;
};
struct keel_clpeak keel_clpeak_read(const char *text, const char *platform, const char *device);

/* Run clpeak, two minutes at most, and add its figures to the result of check 5.5, or a note that says why
 * there are none. Without that result nothing is done. Blocks. */
void keel_clpeak_add(struct keel_check_report *report);

#endif
