/* rank_rig.h - ranks of one process, each with a device, an endpoint and a trainer of its own: in one group,
 * or four of them in two columns of two that share the slices, as worker_axes.c groups them. */
#ifndef RANK_RIG_H
#define RANK_RIG_H

#include "harness.h"
#include "trainer_internal.h"
#include "trainer_rig.h"
#include <keel/clock.h>

enum { RANKS_MAX = 4, STEPS = 3, BUCKETS_MAX = 64 };

struct rank {
    struct keel_job job;
    struct keel_data *data;
    struct keel_device *device;
    struct keel_trainer *trainer;
    struct keel_endpoint *endpoint;
    struct keel_group *group, *sharers; /* sharers: NULL where all are, or none */
    atomic_uint_fast64_t progress;
    uint32_t position, count, group_size;
    uint32_t place, places;        /* of the tensor slices; places 1: it has all */
    struct keel_trainer_axes axes; /* else */
    struct keel_group *view;       /* of all; `group` is its column's */
    uint16_t shard_position[RANKS_MAX];
    uint64_t sent; /* in the last step */
    struct keel_trainer_result result;
    enum keel_status status;
};

static const struct keel_job rank_job = {
    RIG_JOB(STEPS),       .width = 64,
    .block = 16,          .batch = 2,
    .gradients = "exact", .ema = 0.9F,
    .tensor = 1,          .parallel = {.zero = KEEL_ZERO_WEIGHTS, .bucket_bytes = 65536, .ahead = 1}};

static inline void open_rank_of(struct rank *rank, const struct keel_job *of, uint32_t position,
                                uint32_t count, uint32_t shards, uint32_t microbatches, uint32_t zero)
{
    const uint32_t place = rank->place, places = rank->places > 0 ? rank->places : 1;
    *rank = (struct rank){.job = *of,
                          .position = position,
                          .count = count,
                          .group_size = count,
                          .place = place,
                          .places = places};
    rank->job.ranks = count * places;
    rank->job.shards = shards;
    rank->job.microbatches = microbatches;
    rank->job.parallel.zero = zero;
    rig_open_data(&rank->job, &rank->data);
    ck_ok(keel_device_open("host", NULL, &rank->device));
    const struct keel_trainer_config config = {.job = &rank->job,
                                               .data = rank->data,
                                               .device = rank->device,
                                               .stall_ns = 60 * KEEL_NS_PER_S,
                                               .progress = &rank->progress,
                                               .tensor_first = place,
                                               .tensor_count = places > 1 ? 1 : 0};
    ck_ok(keel_trainer_create(&config, &rank->trainer));
    ck_ok(keel_endpoint_open(&(struct keel_endpoint_config){.provider = NULL}, &rank->endpoint));
}

static inline void open_rank(struct rank *rank, uint32_t position, uint32_t count, uint32_t shards,
                             uint32_t microbatches, uint32_t zero)
{
    rank->places = 1;
    open_rank_of(rank, &rank_job, position, count, shards, microbatches, zero);
}

/* As all do it: what else it says is the test's. */
static inline struct keel_trainer_step rank_step(const struct rank *rank, uint64_t n)
{
    return (struct keel_trainer_step){.step = n,
                                      .epoch = 1,
                                      .group = rank->group,
                                      .sharers = rank->sharers,
                                      .position = rank->position,
                                      .rank_count = rank->count,
                                      .shard_position = rank->shard_position};
}

static inline void close_rank(struct rank *rank)
{
    keel_endpoint_close(rank->endpoint);
    keel_trainer_destroy(rank->trainer);
    ck_assert_uint_eq(keel_device_stats(rank->device).live_bytes, 0);
    keel_device_close(rank->device);
    keel_data_close(rank->data);
}

/* The ranks that this one gathers weights from. */
static inline void open_sharers(struct rank *rank)
{
    const uint32_t size = rank->group_size, first = rank->position / size * size;
    uint16_t members[RANKS_MAX], self[RANKS_MAX];
    for (uint32_t i = 0; i < size; i++) {
        members[i] = (uint16_t)(first + i);
        self[i] = (uint16_t)i;
    }
    const struct keel_subgroup what = {
        .sequence = 1 + first, .rank_count = size, .ranks = members, .shard_count = size, .shard_rank = self};
    rank->sharers = NULL;
    if (size > 1 && size < rank->count)
        ck_ok(keel_group_create(rank->group, &what, &rank->sharers));
    keel_trainer_gather_over(rank->trainer, size == 1               ? NULL
                                            : rank->sharers != NULL ? rank->sharers
                                                                    : rank->group);
}

static inline void open_groups(struct rank *ranks, uint32_t count, uint64_t epoch)
{
    struct keel_address addresses[RANKS_MAX];
    for (uint32_t r = 0; r < count; r++)
        keel_endpoint_address(ranks[r].endpoint, &addresses[r]);
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t s = 0; s < ranks[r].job.shards; s++)
            ranks[r].shard_position[s] = (uint16_t)s;
        const struct keel_group_config config = {.epoch = epoch,
                                                 .rank = r,
                                                 .rank_count = count,
                                                 .addresses = addresses,
                                                 .shard_count = ranks[r].job.shards,
                                                 .shard_rank = ranks[r].shard_position};
        ck_ok(keel_group_open(ranks[r].endpoint, &config, &ranks[r].group));
        open_sharers(&ranks[r]);
    }
}

static inline void close_groups(struct rank *ranks, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        keel_trainer_gather_over(ranks[r].trainer, NULL);
        if (ranks[r].sharers != NULL)
            keel_group_close(ranks[r].sharers);
        keel_group_close(ranks[r].group);
        ck_ok(keel_trainer_leave_group(ranks[r].trainer));
    }
}

static inline void begin(struct rank *rank, uint32_t holders)
{
    uint64_t digest;
    const struct keel_owners owners = {
        .epoch = 1,
        .position = rank->position,
        .of = {.count = rank->count, .group = rank->group_size, .holders = holders}};
    ck_ok(keel_trainer_own(rank->trainer, &owners));
    ck_ok(keel_trainer_initialize(rank->trainer));
    ck_ok(keel_trainer_settle(rank->trainer, 0, &digest));
}

enum { PLACES = 2, POSITIONS = 2 };
static const uint16_t place_of[] = {0, 1, 0, 1};

static inline struct keel_group *subgroup(struct rank *rank, uint64_t sequence, const uint16_t members[2])
{
    static const uint16_t self[] = {0, 1};
    struct keel_group *group;
    const struct keel_subgroup what = {
        .sequence = sequence, .rank_count = 2, .ranks = members, .shard_count = 2, .shard_rank = self};
    ck_ok(keel_group_create(rank->view, &what, &group));
    return group;
}

/* Of two columns of two, as worker_axes.c does it. */
static inline void open_axes(struct rank *rank)
{
    const uint16_t column[] = {(uint16_t)rank->place, (uint16_t)(rank->place + PLACES)};
    const uint16_t row[] = {(uint16_t)(rank->position * PLACES), (uint16_t)(rank->position * PLACES + 1)};
    rank->view = rank->group;
    rank->group = subgroup(rank, 1 + rank->place, column);
    rank->axes = (struct keel_trainer_axes){.view = rank->view,
                                            .slices = subgroup(rank, 10 + rank->position, row),
                                            .places = subgroup(rank, 20 + rank->position, row),
                                            .gives_norm = true,
                                            .rank_count = PLACES * POSITIONS,
                                            .place = rank->place,
                                            .count = PLACES,
                                            .begin = {0, 1, 2},
                                            .members = {row[0], row[1]},
                                            .rank_place = place_of,
                                            .each_owns = rank->job.parallel.zero == KEEL_ZERO_WEIGHTS};
    rank->axes.norm = rank->axes.places;
    keel_trainer_share(rank->trainer, &rank->axes);
    keel_trainer_gather_over(rank->trainer, rank->group);
}

static inline void close_axes(struct rank *rank)
{
    keel_trainer_gather_over(rank->trainer, NULL);
    keel_group_close(rank->axes.slices);
    keel_group_close(rank->axes.places);
    keel_group_close(rank->group);
    keel_group_close(rank->view);
    ck_ok(keel_trainer_leave_group(rank->trainer));
}

/* Four ranks, and their groups. */
static inline void open_grid(const struct keel_job *of, uint32_t zero, uint32_t holders, struct rank *ranks)
{
    struct keel_address addresses[PLACES * POSITIONS];
    for (uint32_t r = 0; r < PLACES * POSITIONS; r++) {
        ranks[r].place = r % PLACES;
        ranks[r].places = PLACES;
        open_rank_of(&ranks[r], of, r / PLACES, POSITIONS, POSITIONS, 1, zero);
        keel_trainer_column(ranks[r].trainer, r / PLACES, POSITIONS, r % PLACES, PLACES);
        begin(&ranks[r], holders);
        keel_endpoint_address(ranks[r].endpoint, &addresses[r]);
    }
    for (uint32_t r = 0; r < PLACES * POSITIONS; r++) {
        for (uint32_t s = 0; s < POSITIONS; s++)
            ranks[r].shard_position[s] = (uint16_t)s;
        const struct keel_group_config config = {.epoch = 1,
                                                 .rank = r,
                                                 .rank_count = PLACES * POSITIONS,
                                                 .addresses = addresses,
                                                 .shard_count = POSITIONS,
                                                 .shard_rank = ranks[r].shard_position};
        ck_ok(keel_group_open(ranks[r].endpoint, &config, &ranks[r].group));
        open_axes(&ranks[r]);
    }
}

static inline void close_grid(struct rank *ranks)
{
    for (uint32_t r = 0; r < PLACES * POSITIONS; r++)
        close_axes(&ranks[r]);
    for (uint32_t r = 0; r < PLACES * POSITIONS; r++)
        close_rank(&ranks[r]);
}

#endif
