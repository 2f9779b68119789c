/* fake_worker.h - a worker without a model, for tests of the processes around the control plane.
 *
 * It speaks the real link protocol. In place of collectives it has a page of memory shared by all workers
 * of a run: a step is committed when every active rank of the view has arrived at it, so one that is dead
 * or stopped holds up all others until the view changes, as in a real run. After a view change all active
 * ranks first tell the last step they committed, and go on from the highest. Loss and digest of a step
 * depend on nothing but its number. */
#ifndef KEEL_TESTS_FAKE_WORKER_H
#define KEEL_TESTS_FAKE_WORKER_H

#include "worker_link.h"
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/job.h>
#include <keel/process.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_PACE_MS = 3, FAKE_BEAT_MS = 20 };

struct fake_shared {
    /* By rank: epoch << 32 | step; only ever grows, so that a late writer of an old epoch is not heard. */
    _Atomic uint64_t committed[KEEL_MEMBERS_MAX]; /* at the beginning of the epoch */
    _Atomic uint64_t arrived[KEEL_MEMBERS_MAX];
    _Atomic int worker_pid[KEEL_NODES_MAX][KEEL_WORKERS_PER_NODE]; /* the newest */
    _Atomic int agent_pid[KEEL_NODES_MAX];
    _Atomic uint64_t last_step; /* no rank goes beyond it meanwhile; 0: all go on to the end */
};

/* Map DIR/shared; empty it first when `fresh`. */
static struct fake_shared *fake_map(const char *directory, int fresh)
{
    char path[KEEL_PATH_BYTES];
    if (keel_path_join(path, directory, "shared") != KEEL_OK)
        return NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (fresh ? O_TRUNC : 0), 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct fake_shared)) != 0)
        return NULL;
    void *memory = mmap(NULL, sizeof(struct fake_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* To the end of the run, which waits at a step for what is done to it. */
static inline void fake_go_on(struct fake_shared *shared)
{
    atomic_store(&shared->last_step, 0);
}

static struct keel_step_record fake_record(uint64_t step)
{
    return (struct keel_step_record){.step = step,
                                     .loss_bits = (uint32_t)(0x40000000U - step),
                                     .tokens = step * 64,
                                     .digest = step * UINT64_C(0x9e3779b97f4a7c15)};
}

struct fake {
    struct keel_job job;
    struct fake_shared *shared;
    const char *directory;
    uint16_t node;
    uint8_t local;
    uint32_t incarnation;
    char drill[64];
    struct keel_view view;
    uint16_t rank;
    bool active, synced, stopping;
    uint64_t done; /* steps committed */
    uint64_t progress, beat_ns, pace_ns;
    struct keel_store *store;
};

static void fake_send(const struct keel_link_message *message)
{
    if (keel_link_send(KEEL_LINK_FD, message, keel_deadline_after_ns(20 * KEEL_NS_PER_S)) != KEEL_OK)
        _exit(9);
}

static void fake_say(enum keel_link_kind kind, uint64_t value, const char *text)
{
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = kind;
    message.value = value;
    snprintf(message.as.text, sizeof message.as.text, "%s", text);
    fake_send(&message);
}

static void fake_give_up(void)
{
    fake_say(KEEL_LINK_FAILED, KEEL_NOT_FOUND, "text.txt: no such data file; set data.path");
    _exit(3);
}

static bool fake_drilled(const struct fake *fake, const char *action)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s:node=%u", action, fake->node);
    return strcmp(fake->drill, wanted) == 0;
}

static void fake_raise(_Atomic uint64_t *place, uint64_t value)
{
    uint64_t now = atomic_load(place);
    while (now < value && !atomic_compare_exchange_weak(place, &now, value))
        continue;
}

/* Have all active ranks told, for this epoch, at least `step`? The highest in *out. */
static bool fake_all(const struct fake *fake, _Atomic uint64_t *places, uint64_t step, uint64_t *out)
{
    *out = 0;
    for (uint16_t i = 0; i < fake->view.member_count; i++) {
        if (fake->view.members[i].spare)
            continue;
        uint64_t told = atomic_load(&places[fake->view.members[i].rank]);
        if (told >> 32 != fake->view.epoch || (uint32_t)told < step)
            return false;
        *out = (uint32_t)told > *out ? (uint32_t)told : *out;
    }
    return true;
}

static void fake_report_step(const struct fake *fake)
{
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_STEP;
    message.as.record = fake_record(fake->done);
    message.as.record.epoch = fake->view.epoch;
    fake_send(&message);
}

static enum keel_status fake_read(void *context, uint32_t index, uint64_t offset_bytes, uint64_t bytes,
                                  void *out)
{
    (void)index;
    (void)offset_bytes;
    memset(out, (int)((struct fake *)context)->done, bytes);
    return KEEL_OK;
}

/* This rank's rows of a tensor of eight floats a rank. */
static void fake_save(struct fake *fake, uint32_t position, uint32_t count, struct keel_shard_summary *out)
{
    const struct keel_region region = {.name = "weights",
                                       .dtype = KEEL_CKPT_F32,
                                       .dims = 2,
                                       .shape = {count, 8},
                                       .offset = {position, 0},
                                       .extent = {1, 8}};
    const struct keel_save_config config = {.step = fake->done,
                                            .attempt = fake->view.epoch,
                                            .rank = position,
                                            .rank_count = count,
                                            .regions = &region,
                                            .region_count = 1,
                                            .read = fake_read,
                                            .context = fake};
    struct keel_save *save;
    if (keel_save_begin(fake->store, &config, &save) != KEEL_OK ||
        keel_save_finish(save, keel_deadline_after_ns(10 * KEEL_NS_PER_S), out) != KEEL_OK)
        _exit(8);
}

/* Report this rank's shard; one that is not on the disk when the drill says so: the commit of that must
 * fail, and only that. */
static void fake_report_shard(struct fake *fake)
{
    struct keel_link_message message;
    memset(&message, 0, sizeof message);
    message.kind = KEEL_LINK_SHARD;
    message.value = fake->done;
    message.attempt = fake->view.epoch;
    uint32_t position = 0, count = 0;
    for (uint16_t i = 0; i < fake->view.member_count; i++) {
        const struct keel_member *member = &fake->view.members[i];
        position += !member->spare && member->rank < fake->rank;
        count += !member->spare;
    }
    if (fake_drilled(fake, "lose"))
        message.as.summary = (struct keel_shard_summary){.rank = position, .record_count = 1, .raw_bytes = 1};
    else
        fake_save(fake, position, count, &message.as.summary);
    fake_send(&message);
}

static void fake_take_view(struct fake *fake, int file)
{
    const struct keel_view *view = &fake->view;
    if (keel_link_take_view(file, &fake->view) != KEEL_OK)
        _exit(9);
    fake->active = fake->synced = false;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        if (member->node != fake->node || member->local != fake->local ||
            member->incarnation != fake->incarnation)
            continue;
        fake->rank = member->rank;
        fake->active = !member->spare;
    }
    if (fake_drilled(fake, "note"))
        fake_say(KEEL_LINK_NOTE, 0, "{\"event\":\"hello\"}");
    if (fake_drilled(fake, "mute")) {
        close(KEEL_LINK_FD);
        for (;;)
            pause();
    }
    if (fake->active)
        fake_raise(&fake->shared->committed[fake->rank], view->epoch << 32 | fake->done);
}

static void fake_move(struct fake *fake)
{
    uint64_t highest;
    if (!fake->synced) {
        if (!fake_all(fake, fake->shared->committed, 0, &highest))
            return;
        fake->synced = true;
        fake->done = highest; /* healed */
    }
    if (fake->done == fake->job.steps || fake->stopping) {
        fake_say(KEEL_LINK_DONE, 0, "");
        _exit(0);
    }
    const uint64_t next = fake->done + 1, last = atomic_load(&fake->shared->last_step);
    if (last > 0 && next > last)
        return;
    if (fake_drilled(fake, "fail") && next == 10)
        fake_give_up();
    fake_raise(&fake->shared->arrived[fake->rank], fake->view.epoch << 32 | next);
    if (keel_now_ns() < fake->pace_ns || !fake_all(fake, fake->shared->arrived, next, &highest))
        return;
    fake->done = next;
    fake->progress++;
    const char *slower = getenv("FAKE_PACE_MS");
    const uint64_t pace_ms = slower != NULL ? strtoull(slower, NULL, 10) : FAKE_PACE_MS;
    fake->pace_ns = keel_deadline_after_ns(pace_ms * KEEL_NS_PER_MS);
    fake_report_step(fake);
    if (fake->job.snapshot_every > 0 && fake->done % fake->job.snapshot_every == 0)
        fake_report_shard(fake);
}

static void fake_live(struct fake *fake)
{
    struct keel_link_message message;
    for (;;) {
        enum keel_status status =
            keel_link_receive(KEEL_LINK_FD, &message, keel_deadline_after_ns(KEEL_NS_PER_MS));
        if (status == KEEL_PEER_LOST)
            _exit(7);
        if (status == KEEL_OK && message.kind == KEEL_LINK_VIEW)
            fake_take_view(fake, message.as.view_file);
        if (status == KEEL_OK && message.kind == KEEL_LINK_STOP)
            fake->stopping = true;
        if (fake->active)
            fake_move(fake);
        else if (fake->stopping) {
            fake_say(KEEL_LINK_DONE, 0, "");
            _exit(0);
        }
        if (keel_now_ns() >= fake->beat_ns) {
            fake_say(KEEL_LINK_BEAT, fake->progress, "");
            fake->beat_ns = keel_deadline_after_ns(FAKE_BEAT_MS * KEEL_NS_PER_MS);
        }
    }
}

/* argv as the agent gives it: worker JOB --dir DIR --node N --local L --incarnation I, then what is passed
 * on: --resume STEP, and --drill unfit:node=N (FAILED before READY), fail:node=N (FAILED before step 10),
 * mute:node=N (closes its link, stays), lose:node=N (its shards are not on the disk), note:node=N. */
static int fake_worker_main(int argc, char **argv)
{
    static struct fake fake;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--dir") == 0)
            fake.directory = argv[i + 1];
        else if (strcmp(argv[i], "--node") == 0)
            fake.node = (uint16_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--local") == 0)
            fake.local = (uint8_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--incarnation") == 0)
            fake.incarnation = (uint32_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--resume") == 0)
            fake.done = (uint64_t)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--drill") == 0)
            snprintf(fake.drill, sizeof fake.drill, "%s", argv[i + 1]);
        else
            return 2;
    }
    keel_link_ignore_signals();
    if (keel_job_load(argv[1], NULL, 0, &fake.job) != KEEL_OK ||
        (fake.shared = fake_map(fake.directory, 0)) == NULL)
        return 3;
    char root[KEEL_PATH_BYTES];
    if (fake.job.snapshot_every > 0) {
        if (keel_path_join(root, fake.directory, "ckpt") != KEEL_OK ||
            keel_store_open(&(struct keel_store_config){.root = root, .run = fake.job.name, .create = true},
                            &fake.store) != KEEL_OK)
            return 4;
    }
    atomic_store(&fake.shared->agent_pid[fake.node], getppid());
    atomic_store(&fake.shared->worker_pid[fake.node][fake.local], getpid());
    if (fake_drilled(&fake, "unfit"))
        fake_give_up();
    struct keel_link_message ready;
    memset(&ready, 0, sizeof ready);
    ready.kind = KEEL_LINK_READY;
    ready.as.address = (struct keel_address){.bytes = 3, .data = {(uint8_t)fake.node, fake.local, 1}};
    fake_send(&ready);
    fake_live(&fake);
    return 0;
}

#endif
