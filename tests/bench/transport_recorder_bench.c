/* transport_recorder_bench.c - what the flight recorder costs an operation: of four ranks, begun, three first
 * messages, one segment, ended. Of a short operation it reads no clock: it takes the time of the pass of
 * progress, which that has read for itself. One JSON object a line. */
#include "recorder.h"

#include <keel/clock.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 15, OPERATIONS = 100000 };

/* Of this thread's processor: others may want it too. */
static uint64_t spent_ns(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * KEEL_NS_PER_S + (uint64_t)spent.tv_nsec;
}

static uint64_t record(struct keel_recorder *recorder, uint16_t group)
{
    struct keel_collective it = {.kind = KEEL_ALL_REDUCE};
    uint64_t begun_ns = keel_now_ns(), spent_before_ns = spent_ns();
    for (it.sequence = 0; it.sequence < OPERATIONS; it.sequence++) {
        uint16_t place = keel_recorder_began(recorder, group, &it, 8, 1, begun_ns);
        for (uint32_t peer = 1; peer < 4; peer++)
            keel_recorder_first(recorder, place, peer, begun_ns);
        keel_recorder_segment(recorder, place, 1, 3, begun_ns);
        keel_recorder_ended(recorder, place, KEEL_OK, begun_ns);
    }
    return spent_ns() - spent_before_ns;
}

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

int main(void)
{
    struct keel_recorder *recorder;
    uint64_t rounds[ROUNDS];
    if (keel_recorder_open(NULL, &recorder) != KEEL_OK) {
        fprintf(stderr, "transport_recorder_bench: %s\n", keel_detail());
        return 1;
    }
    uint16_t group = keel_recorder_group_opened(recorder, 1, 1, 0, 4);
    for (int k = 0; k < ROUNDS; k++)
        rounds[k] = record(recorder, group);
    qsort(rounds, ROUNDS, sizeof rounds[0], by_value);
    uint64_t median_ns = rounds[ROUNDS / 2];
    double ns = (double)median_ns / OPERATIONS;
    printf("{\"room\":\"transport\",\"figure\":\"flight recorder, an operation of 4 ranks\",\"value\":%.1f,"
           "\"unit\":\"ns\",\"peer\":null,\"peer_value\":null,\"ratio\":null,\"goal\":100,\"met\":%s}\n",
           ns, ns < 100 ? "true" : "false");
    keel_recorder_close(recorder);
    return 0;
}
