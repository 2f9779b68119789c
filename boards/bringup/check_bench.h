/* check_bench.h - what the checks of calls share: a queue, two buffers of 1 MiB, and host memory to compare
 * with. */
#ifndef KEEL_CHECK_BENCH_H
#define KEEL_CHECK_BENCH_H

#include "board_check.h"

enum { KEEL_BENCH_BYTES = 1 << 20, KEEL_BENCH_STAGES = 4 };

struct keel_bench {
    struct keel_check_run *run;
    struct keel_device *device;
    struct keel_queue *queue;
    struct keel_buffer *buffer, *other; /* KEEL_BENCH_BYTES each */
    uint8_t *wanted, *got;              /* as many; wanted is filled with bytes that differ */
};

/* False where the check has its verdict. End in both cases. */
bool keel_bench_begin(struct keel_bench *bench, struct keel_check_run *run);
void keel_bench_end(struct keel_bench *bench);
bool keel_bench_ok(struct keel_bench *bench, enum keel_status status, const char *what);
bool keel_bench_finish(struct keel_bench *bench, struct keel_queue *queue, const char *what);
/* Fails with the first byte of `got` that is not as wanted. */
bool keel_bench_same(struct keel_bench *bench, const uint8_t *got, const uint8_t *wanted, uint64_t bytes,
                     const char *what);
/* Enqueue, and finish the bench's queue. */
bool keel_bench_write(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, const void *data,
                      uint64_t bytes);
bool keel_bench_read(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, void *data,
                     uint64_t bytes);
bool keel_bench_fill(struct keel_bench *bench, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                     uint32_t word);

/* Resident memory of the process that no file is behind; 0 where the system does not tell. */
uint64_t keel_bench_resident_bytes(void);
/* Measured before the first stage and after each: fails where each but the first, which may leave caches
 * behind, left memory behind. */
void keel_bench_judge_stages(struct keel_check_run *run, const uint64_t resident[KEEL_BENCH_STAGES + 1],
                             const char *what);

/* A word that has nothing to do with its neighbours'. */
static inline uint32_t keel_bench_mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    return x ^ (x >> 16);
}

/* ---- checks of transfers (check_transfers.c), which stand in level 1 ---- */
void keel_check_round_trip(struct keel_bench *bench);
void keel_check_copies(struct keel_bench *bench);
void keel_check_fills(struct keel_bench *bench);
void keel_check_maps(struct keel_bench *bench);
void keel_check_large(struct keel_bench *bench);
/* ---- checks of what is given back (check_lasting.c), which stand there too ---- */
void keel_check_gives_back(struct keel_bench *bench);
void keel_check_many_buffers(struct keel_bench *bench);
void keel_check_steady(struct keel_bench *bench);
void keel_check_reopens(struct keel_bench *bench);

#endif
