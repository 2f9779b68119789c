/* device_bench.c - an all-reduce of device memory: staged in one piece, against reading all of it,
 * summing and writing all of it one after the other; and in place, where host and device share memory.
 *
 * Four processes, each with PoCL on one thread, where the "device" is the same four cores: what copies cost
 * is seen here, what they gain by overlapping only as far as cores are idle. Ways alternate within a round;
 * figures are medians. One JSON object a line. */
#include <keel/clock.h>
#include <keel/transport_device.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, ROUNDS = 9, BYTES = 64 << 20 };
enum way { IN_TURN, STAGED, IN_PLACE, WRAPPED, HOST, WAYS };

static const char *const names[WAYS] = {"read, sum, write in turn", "staged", "in place",
                                        "in place in transport memory", "host memory alone"};

struct rank {
    uint32_t rank;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct keel_address addresses[RANKS];
    uint64_t sequence;
    struct keel_device *device;
    struct keel_queue *queue;
    struct keel_device_collectives *ways[2]; /* staged, in place */
    struct keel_buffer *in, *out;            /* the device's */
    struct keel_buffer *win, *wout;          /* in the regions */
    uint8_t *part, *result;                  /* regions */
    uint8_t *under_part, *under_result;      /* regions under win and wout */
};

static void die(const char *what)
{
    fprintf(stderr, "device_bench: %s: %s\n", what, keel_detail());
    exit(1);
}

static void must(enum keel_status status, const char *what)
{
    if (status != KEEL_OK)
        die(what);
}

static uint64_t limit(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

static void barrier(struct rank *me)
{
    struct keel_collective what = {.kind = KEEL_BARRIER, .sequence = me->sequence++};
    must(keel_group_run(me->group, &what, limit()), "barrier");
}

static void on_host(struct rank *me, uint64_t bytes)
{
    const void *parts[1] = {me->part};
    struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                   .sequence = me->sequence++,
                                   .element = KEEL_ELEMENT_F32,
                                   .count = bytes / sizeof(float),
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = me->result};
    must(keel_group_run(me->group, &what, limit()), "a sum");
}

static void on_device(struct rank *me, struct keel_device_collectives *collectives, struct keel_buffer *in,
                      struct keel_buffer *out, uint64_t bytes)
{
    struct keel_device_place part = {in, 0};
    struct keel_device_collective sum = {.what = {.kind = KEEL_ALL_REDUCE,
                                                  .sequence = me->sequence++,
                                                  .element = KEEL_ELEMENT_F32,
                                                  .count = bytes / sizeof(float),
                                                  .part_count = 1},
                                         .parts = &part,
                                         .result = {out, 0}};
    must(keel_device_collective_run(collectives, me->group, &sum, limit()), "a sum of device memory");
}

static void go(struct rank *me, enum way way, uint64_t bytes)
{
    if (way == IN_TURN) {
        must(keel_queue_read(me->queue, me->in, 0, me->part, bytes, NULL, NULL), "read");
        must(keel_queue_finish(me->queue, limit()), "read");
        on_host(me, bytes);
        must(keel_queue_write(me->queue, me->out, 0, me->result, bytes, NULL, NULL), "write");
        must(keel_queue_finish(me->queue, limit()), "write");
    } else if (way == HOST) {
        on_host(me, bytes);
    } else if (way == WRAPPED) {
        on_device(me, me->ways[1], me->win, me->wout, bytes);
    } else {
        on_device(me, me->ways[way == IN_PLACE], me->in, me->out, bytes);
    }
}

/* ---- figures ------------------------------------------------------------------------------------------- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, by_value);
    return values[ROUNDS / 2];
}

static void measure(struct rank *me, uint64_t bytes)
{
    double took_ms[WAYS][ROUNDS], in_turn_ms = 0;
    for (int round = -1; round < ROUNDS; round++) /* the first is not counted */
        for (uint32_t way = 0; way < WAYS; way++) {
            barrier(me);
            uint64_t start = keel_now_ns();
            go(me, (enum way)way, bytes);
            barrier(me);
            took_ms[way][round < 0 ? 0 : round] = (double)(keel_now_ns() - start) / 1e6;
        }
    for (uint32_t way = 0; way < WAYS && me->rank == 0; way++) {
        double ms = median(took_ms[way]);
        in_turn_ms = way == IN_TURN ? ms : in_turn_ms;
        printf("{\"room\":\"transport\",\"figure\":\"all-reduce of device memory, 4 ranks, %u MiB, %s\","
               "\"value\":%.3f,\"unit\":\"ms\",\"peer\":\"%s\",\"peer_value\":%.3f,\"ratio\":%.2f,"
               "\"goal\":null,\"met\":null}\n",
               (unsigned)(bytes >> 20), names[way], ms, names[IN_TURN], in_turn_ms, in_turn_ms / ms);
    }
    fflush(stdout);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */

static void prepare(struct rank *me)
{
    struct keel_device_options options = {.threads = 1};
    must(keel_device_open("auto", &options, &me->device), "device");
    must(keel_queue_create(me->device, &me->queue), "queue");
    for (uint32_t k = 0; k < 2; k++) {
        struct keel_device_collectives_config config = {.device = me->device,
                                                        .parts_max = 1,
                                                        .operations_max = 1,
                                                        .staging_bytes = 2 * (uint64_t)BYTES,
                                                        .staged = k == 0};
        must(keel_device_collectives_create(&config, &me->ways[k]), "device collectives");
    }
    must(keel_buffer_create(me->device, BYTES, &me->in), "buffer");
    must(keel_buffer_create(me->device, BYTES, &me->out), "buffer");
    must(keel_transport_alloc(BYTES, &me->part), "memory");
    must(keel_transport_alloc(BYTES, &me->result), "memory");
    must(keel_transport_alloc(BYTES, &me->under_part), "memory");
    must(keel_transport_alloc(BYTES, &me->under_result), "memory");
    must(keel_buffer_wrap(me->device, me->under_part, BYTES, &me->win), "wrapped buffer");
    must(keel_buffer_wrap(me->device, me->under_result, BYTES, &me->wout), "wrapped buffer");
}

static void give_up(struct rank *me)
{
    for (uint32_t k = 0; k < 2; k++)
        keel_device_collectives_free(me->ways[k]);
    keel_buffer_destroy(me->win);
    keel_buffer_destroy(me->wout);
    keel_buffer_destroy(me->in);
    keel_buffer_destroy(me->out);
    keel_queue_destroy(me->queue);
    keel_device_close(me->device);
    keel_transport_free(me->part);
    keel_transport_free(me->result);
    keel_transport_free(me->under_part);
    keel_transport_free(me->under_result);
}

static int run_rank(struct rank *me, int to_parent, int from_parent)
{
    static const uint16_t shard_rank[RANKS] = {0, 1, 2, 3};
    struct keel_endpoint_config config = {.key = NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(keel_endpoint_open(&config, &me->endpoint), "endpoint");
    keel_endpoint_address(me->endpoint, &me->addresses[me->rank]);
    if (write(to_parent, &me->addresses[me->rank], sizeof me->addresses[0]) < 0 ||
        read(from_parent, me->addresses, sizeof me->addresses) != (ssize_t)sizeof me->addresses)
        die("addresses");
    struct keel_group_config group = {.epoch = 1,
                                      .rank = me->rank,
                                      .rank_count = RANKS,
                                      .addresses = me->addresses,
                                      .shard_count = RANKS,
                                      .shard_rank = shard_rank};
    must(keel_group_open(me->endpoint, &group, &me->group), "group");
    prepare(me);
    measure(me, 1 << 20);
    measure(me, 16 << 20);
    measure(me, BYTES);
    barrier(me);
    keel_group_close(me->group);
    give_up(me);
    keel_endpoint_close(me->endpoint);
    return 0;
}

int main(void)
{
    int up[RANKS][2], down[RANKS][2], failed = 0;
    pid_t pids[RANKS];
    struct keel_address addresses[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        if (pipe(up[r]) != 0 || pipe(down[r]) != 0)
            die("pipes");
        pids[r] = fork();
        if (pids[r] == 0) {
            struct rank me = {.rank = r};
            exit(run_rank(&me, up[r][1], down[r][0]));
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        if (read(up[r][0], &addresses[r], sizeof addresses[r]) != (ssize_t)sizeof addresses[r])
            die("a rank's address");
    for (uint32_t r = 0; r < RANKS; r++)
        if (write(down[r][1], addresses, sizeof addresses) != (ssize_t)sizeof addresses)
            die("addresses");
    for (uint32_t r = 0; r < RANKS; r++) {
        int status = 0;
        failed |= waitpid(pids[r], &status, 0) != pids[r] || status != 0;
    }
    return failed;
}
