/* block_counter.h - one word that counts each basic block of the sources that a program is built with
 * (-fsanitize-coverage=trace-pc, KEEL_COUNT_BLOCKS), else stays 0. */
#ifndef KEEL_TESTS_BLOCK_COUNTER_H
#define KEEL_TESTS_BLOCK_COUNTER_H

#include <stdint.h>

static uint64_t blocks_run;

#ifdef KEEL_COUNT_BLOCKS
void __sanitizer_cov_trace_pc(void);
__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
    blocks_run++;
}
#endif

#endif
