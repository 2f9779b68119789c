/* block_count.h - how many basic blocks of the sources that a test is built with ran: the same on every
 * machine, where time is not. Without KEEL_COUNT_BLOCKS, as tests/mutants builds it, none is counted, and
 * nothing checked. */
#ifndef KEEL_TESTS_BLOCK_COUNT_H
#define KEEL_TESTS_BLOCK_COUNT_H

#include "block_counter.h"
#include "harness.h"

static inline void blocks_begin(void)
{
    blocks_run = 0;
}

static inline uint64_t blocks_end(void)
{
    return blocks_run;
}

/* Of so many times as many: no more than twice that. A square would be that many times too much. */
static inline void blocks_check(const uint64_t blocks[2], uint64_t times)
{
#ifdef KEEL_COUNT_BLOCKS
    ck_assert_uint_gt(blocks[0], 0);
#endif
    ck_assert_uint_le(blocks[1], 2 * times * blocks[0]);
}

#endif
