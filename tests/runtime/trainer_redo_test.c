/* trainer_redo_test.c - a step that was cut short and is begun again ends with the bits of one that was not.
 */
#include "harness.h"
#include "trainer.h"
#include "trainer_rig.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS = 2, STEPS = 2 };
#define LONG_NS  (60 * KEEL_NS_PER_S)
#define SHORT_NS (5 * KEEL_NS_PER_S)

struct rig {
    struct keel_job job;
    struct keel_data *data;
    struct keel_device *device;
    struct keel_trainer *trainer;
    struct keel_endpoint *endpoint;
    atomic_uint_fast64_t progress;
};

static void rig_build(struct rig *rig, const char *selector, uint64_t stall_ns,
                      const struct keel_endpoint_config *endpoint)
{
    rig_open_data(&rig->job, &rig->data);
    ck_ok(keel_device_open(selector, NULL, &rig->device));
    struct keel_trainer_config config = {.job = &rig->job,
                                         .data = rig->data,
                                         .device = rig->device,
                                         .stall_ns = stall_ns,
                                         .progress = &rig->progress};
    ck_ok(keel_trainer_create(&config, &rig->trainer));
    ck_ok(keel_endpoint_open(endpoint, &rig->endpoint));
}

static void rig_close(struct rig *rig)
{
    keel_endpoint_close(rig->endpoint);
    keel_trainer_destroy(rig->trainer);
    keel_device_close(rig->device);
    keel_data_close(rig->data);
}

/* Large enough that the device is still at work when the calls that feed it have returned. */
static const struct keel_job job = {RIG_JOB(STEPS), .shards = SHARDS,  .ranks = 2, .width = 128,
                                    .block = 64,    .microbatches = 1, .batch = 8};

static const char *const gradients[] = {"exact", "int8", "topk:0.02"};
enum { WAYS = sizeof gradients / sizeof gradients[0] };

static void rig_open(struct rig *rig, uint64_t stall_ns, int way)
{
    *rig = (struct rig){.job = job};
    strcpy(rig->job.gradients, gradients[way]);
    rig_build(rig, "auto", stall_ns, &(struct keel_endpoint_config){.provider = NULL});
}

/* Little work, but gradients of several buckets, on the device whose memory is the host's. */
static void rig_open_wide(struct rig *rig, bool fabric_only, int way)
{
    *rig = (struct rig){.job = job};
    rig->job.layers = 4;
    rig->job.width = 320;
    rig->job.block = 16;
    rig->job.batch = 1;
    strcpy(rig->job.gradients, gradients[way]);
    rig_build(rig, "host", LONG_NS, &(struct keel_endpoint_config){.fabric_only = fabric_only});
}

static void rig_begin(struct rig *rig)
{
    uint64_t digest;
    ck_ok(keel_trainer_initialize(rig->trainer));
    ck_ok(keel_trainer_digest(rig->trainer, &digest));
}

/* One rank carries all shards, without a group. */
static struct keel_trainer_step alone(uint64_t step)
{
    static const uint16_t all_mine[SHARDS] = {0};
    return (struct keel_trainer_step){.step = step, .epoch = 1, .rank_count = 1, .shard_position = all_mine};
}

static uint64_t undisturbed(struct rig *rig)
{
    struct keel_trainer_result result = {.loss = 0};
    rig_begin(rig);
    for (uint64_t n = 0; n < STEPS; n++) {
        struct keel_trainer_step step = alone(n);
        ck_ok(keel_trainer_run(rig->trainer, &step, &result));
    }
    return result.digest;
}

static struct keel_group *group_of(struct rig *rig, uint64_t epoch, struct rig *const *ranks, uint32_t count,
                                   const uint16_t *shard_rank)
{
    struct keel_address addresses[2];
    struct keel_group_config config = {.epoch = epoch,
                                       .rank_count = count,
                                       .addresses = addresses,
                                       .shard_count = SHARDS,
                                       .shard_rank = shard_rank};
    for (uint32_t r = 0; r < count; r++) {
        keel_endpoint_address(ranks[r]->endpoint, &addresses[r]);
        if (ranks[r] == rig)
            config.rank = r;
    }
    struct keel_group *group = NULL;
    ck_ok(keel_group_open(rig->endpoint, &config, &group));
    return group;
}

static void leave(struct rig *rig, struct keel_group *group)
{
    keel_group_close(group);
    ck_ok(keel_trainer_leave_group(rig->trainer));
}

/* The epoch ends while the device still computes; the next attempt finds every node held. */
START_TEST(a_redo_waits_for_what_the_device_has_not_ended)
{
    static struct rig rig;
    struct rig *only[] = {&rig};
    rig_open(&rig, LONG_NS, _i);
    uint64_t wanted = undisturbed(&rig), epoch = 1;
    struct keel_trainer_result result = {.loss = 0};
    rig_begin(&rig);
    for (uint64_t n = 0; n < STEPS; n++) {
        struct keel_trainer_step step = alone(n);
        step.group = group_of(&rig, epoch, only, 1, step.shard_position);
        step.epoch = epoch++;
        keel_group_revoke(step.group);
        ck_status(keel_trainer_run(rig.trainer, &step, &result), KEEL_REVOKED);
        leave(&rig, step.group);
        step.group = group_of(&rig, epoch, only, 1, step.shard_position);
        step.epoch = epoch++;
        ck_ok(keel_trainer_run(rig.trainer, &step, &result));
        ck_assert_uint_eq(result.computed_microbatches, 0);
        leave(&rig, step.group);
    }
    ck_assert_uint_eq(result.digest, wanted);
    rig_close(&rig);
}
END_TEST

/* Tape, slots and staging are there after the first step of a view; the first rounds of the transport warm up
 * its own. */
START_TEST(a_step_in_a_group_allocates_nothing_after_the_first_ones)
{
    static struct rig rig;
    struct rig *only[] = {&rig};
    uint64_t host = 0, device = 0;
    rig_open(&rig, LONG_NS, _i);
    rig_begin(&rig);
    struct keel_trainer_step step = alone(0);
    step.group = group_of(&rig, 1, only, 1, step.shard_position);
    for (; step.step < 6; step.step++) {
        struct keel_trainer_result result;
        ck_ok(keel_trainer_run(rig.trainer, &step, &result));
        if (step.step < 2) {
            host = keel_memory_stats().allocations;
            device = keel_device_stats(rig.device).allocations;
        }
    }
    ck_assert_uint_eq(keel_memory_stats().allocations, host);
    ck_assert_uint_eq(keel_device_stats(rig.device).allocations, device);
    leave(&rig, step.group);
    rig_close(&rig);
}
END_TEST

/* ---- two ranks ----------------------------------------------------------------------------------------- */

static const uint16_t one_each[SHARDS] = {0, 1};

struct other { /* rank 1, on a thread of its own */
    struct rig *rig;
    struct keel_trainer_step step;
    enum keel_status status;
};

static void *run_other(void *argument)
{
    struct other *other = argument;
    struct keel_trainer_result result;
    other->status = keel_trainer_run(other->rig->trainer, &other->step, &result);
    return NULL;
}

static atomic_bool reading_ends;

/* A capture that gets no further than its first byte while the flag is down. */
static enum keel_status read_late(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes,
                                  void *out)
{
    (void)context, (void)index, (void)offset_bytes;
    while (!atomic_load(&reading_ends))
        keel_sleep_until_ns(keel_deadline_after_ns(10 * KEEL_NS_PER_MS));
    memset(out, 0, bytes);
    return KEEL_OK;
}

static struct keel_save *begin_late_save(struct keel_store *store)
{
    struct keel_region region = {
        .name = "t", .dtype = KEEL_CKPT_F32, .dims = 1, .shape = {16}, .extent = {16}};
    struct keel_save_config config = {
        .step = 1, .attempt = 1, .rank_count = 1, .regions = &region, .region_count = 1, .read = read_late};
    struct keel_save *save = NULL;
    ck_ok(keel_save_begin(store, &config, &save));
    return save;
}

/* Both ranks have the sum, but a snapshot still holds the weights of one of them until it gives up. What it
 * holds for the redo must still be its own shard, not the sum. */
START_TEST(a_capture_that_hangs_spoils_no_held_node)
{
    static struct rig rigs[2];
    struct rig *pair[] = {&rigs[0], &rigs[1]};
    char root[] = "/tmp/keel-trainer-XXXXXX";
    struct keel_store *store = NULL;
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_ok(keel_store_open(&(struct keel_store_config){.root = root, .run = "r", .create = true}, &store));
    rig_open(&rigs[0], SHORT_NS, _i);
    rig_open(&rigs[1], LONG_NS, _i); /* it also has the kernels built, which takes its time */
    uint64_t wanted = undisturbed(&rigs[1]);
    rig_begin(&rigs[0]);
    rig_begin(&rigs[1]);
    struct other other = {.rig = &rigs[1]};
    other.step =
        (struct keel_trainer_step){.epoch = 1, .position = 1, .rank_count = 2, .shard_position = one_each};
    other.step.group = group_of(&rigs[1], 1, pair, 2, one_each);
    struct keel_trainer_step step = other.step;
    step.position = 0;
    step.group = group_of(&rigs[0], 1, pair, 2, one_each);
    atomic_store(&reading_ends, false);
    step.save = begin_late_save(store);
    struct keel_thread thread;
    struct keel_trainer_result result;
    ck_ok(keel_thread_create(&thread, "other", run_other, &other));
    ck_status(keel_trainer_run(rigs[0].trainer, &step, &result), KEEL_TIMEOUT);
    keel_thread_join(&thread);
    ck_ok(other.status);
    atomic_store(&reading_ends, true);
    keel_save_cancel(step.save);
    leave(&rigs[0], step.group);
    leave(&rigs[1], other.step.group);
    for (uint64_t n = 0; n < STEPS; n++) { /* the other is gone: its shard is computed here now */
        struct keel_trainer_step again = alone(n);
        ck_ok(keel_trainer_run(rigs[0].trainer, &again, &result));
        ck_assert_uint_eq(result.computed_microbatches, n == 0 ? 1 : SHARDS);
    }
    ck_assert_uint_eq(result.digest, wanted);
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

/* Gradients are summed where they lie: the device runs no command for that, and the processor copies what it
 * takes from the network, which is the half of the sum that the other rank adds up; 1% for the rest. */
static void check_copies(const struct rig *rig, uint32_t nodes)
{
    const uint64_t flat = keel_engine_flat_count(keel_trainer_engine(rig->trainer)) * sizeof(float);
    const uint32_t buckets = keel_engine_bucket_count(keel_trainer_engine(rig->trainer));
    struct keel_device_collectives_facts facts;
    struct keel_transport_stats stats;
    keel_trainer_sum_facts(rig->trainer, &facts);
    keel_endpoint_stats(rig->endpoint, &stats);
    ck_assert_uint_ge(buckets, 3);
    ck_assert_uint_eq(facts.operations, STEPS * buckets);
    ck_assert_uint_eq(facts.device_to_host_bytes, 0);
    ck_assert_uint_eq(facts.host_to_device_bytes, 0);
    ck_assert_uint_eq(facts.mapped_bytes, STEPS * (nodes + 1) * flat);
    ck_assert_uint_le(stats.data_copied, STEPS * (flat / 2 + flat / 100));
}

/* Each of the two adds up half of the elements: it sends the other half once, and its own sums once. */
static void check_traffic(const struct rig *rig)
{
    struct keel_engine *engine = keel_trainer_engine(rig->trainer);
    struct keel_transport_stats stats;
    struct keel_compression how;
    uint64_t elements = 0, counts[KEEL_ENGINE_BUCKETS_MAX];
    ck_assert(keel_job_compression(&rig->job, &how));
    ck_ok(keel_trainer_count_compressed(engine, &how, counts));
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
        elements += counts[b];
    const uint64_t once = elements * KEEL_COMPRESSED_BYTES;
    keel_endpoint_stats(rig->endpoint, &stats);
    ck_assert_uint_lt(once, keel_engine_flat_count(engine) * sizeof(float) / 3);
    ck_assert_uint_ge(stats.data_sent, STEPS * (once - once / 20));
    ck_assert_uint_le(stats.data_sent, STEPS * (once + once / 20 + 1024));
}

/* Two ranks, and one that does the work of both: a rank that rounded the sum of its shards, not each of them,
 * would have other bits. */
static uint64_t pair_run(struct rig *rigs)
{
    struct rig *pair[] = {&rigs[0], &rigs[1]};
    struct keel_trainer_result result = {.loss = 0};
    struct keel_thread thread;
    const struct keel_trainer_step first = {.epoch = 1, .rank_count = 2, .shard_position = one_each};
    struct keel_trainer_step step = first;
    struct other other = {.rig = &rigs[1], .step = first};
    other.step.position = 1;
    step.group = group_of(&rigs[0], 1, pair, 2, one_each);
    other.step.group = group_of(&rigs[1], 1, pair, 2, one_each);
    rig_begin(&rigs[0]);
    rig_begin(&rigs[1]);
    for (; step.step < STEPS; other.step.step = ++step.step) {
        ck_ok(keel_thread_create(&thread, "other", run_other, &other));
        ck_ok(keel_trainer_run(rigs[0].trainer, &step, &result));
        keel_thread_join(&thread);
        ck_ok(other.status);
    }
    leave(&rigs[0], step.group);
    leave(&rigs[1], other.step.group);
    return result.digest;
}

START_TEST(compressed_sums_of_two_ranks_are_those_of_one_and_send_what_elements_take)
{
    static struct rig rigs[2];
    for (uint32_t r = 0; r < 2; r++)
        rig_open_wide(&rigs[r], _i % 2 == 1, 1 + _i / 2);
    const uint64_t wanted = undisturbed(&rigs[0]);
    ck_assert_uint_eq(pair_run(rigs), wanted);
    for (uint32_t r = 0; r < 2; r++) {
        check_traffic(&rigs[r]);
        rig_close(&rigs[r]);
    }
}
END_TEST

START_TEST(a_bucket_is_copied_once_at_most_and_by_no_command_of_the_device)
{
    static struct rig rigs[2];
    for (uint32_t r = 0; r < 2; r++)
        rig_open_wide(&rigs[r], _i == 1, 0);
    const uint64_t wanted = undisturbed(&rigs[0]);
    ck_assert_uint_eq(pair_run(rigs), wanted);
    for (uint32_t r = 0; r < 2; r++) {
        check_copies(&rigs[r], 1);
        rig_close(&rigs[r]);
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, a_redo_waits_for_what_the_device_has_not_ended, 0, WAYS);
    tcase_add_loop_test(tc, a_step_in_a_group_allocates_nothing_after_the_first_ones, 0, WAYS);
    tcase_add_loop_test(tc, compressed_sums_of_two_ranks_are_those_of_one_and_send_what_elements_take, 0, 4);
    tcase_add_loop_test(tc, a_bucket_is_copied_once_at_most_and_by_no_command_of_the_device, 0, 2);
    tcase_add_loop_test(tc, a_capture_that_hangs_spoils_no_held_node, 0, WAYS);
}

KEEL_TEST_MAIN("trainer_redo", cases, 240)
