/* committer.c - the thread that commits snapshots.
 *
 * Owns the thread and two bounded queues. Leaves what a commit means to ckpt. */
#include "committer.h"

#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ORDERS_MAX = 4 };

struct order {
    uint64_t step, attempt;
    uint32_t count;
    struct keel_shard_summary shards[KEEL_MEMBERS_MAX];
};

struct drop {
    uint64_t step, attempt;
    struct keel_bitset ranks;
};

struct keel_committer {
    struct keel_committer_config config;
    char identity[KEEL_IDENTITY_BYTES];
    struct keel_thread thread;
    enum keel_status open_status; /* of `open`, for the thread alone */
    char open_detail[KEEL_DETAIL_BYTES];
    int event_fd;
    struct keel_mutex lock; /* guards all below */
    struct keel_cond moved; /* an order came, or a result, or `ending` */
    bool opened, discarding, ending;
    /* Ring of slots: [taken, done) hold results, [done, ordered) hold orders; the counters only grow. */
    uint64_t ordered, done, taken;
    struct order orders[ORDERS_MAX];
    struct keel_committed results[ORDERS_MAX];
    struct drop drops[KEEL_DROPS_MAX];
    uint32_t drop_count;
};

/* The shards are complete and nobody writes there any more; a manifest that is there keeps them. */
static void discard(const struct keel_committer *committer, const struct drop *drop)
{
    if (committer->config.store == NULL)
        return;
    for (uint32_t rank = keel_bitset_next(&drop->ranks, 0); rank < KEEL_BITSET_BITS;
         rank = keel_bitset_next(&drop->ranks, rank + 1))
        (void)keel_save_discard(committer->config.store, drop->step, drop->attempt, rank);
}

static struct keel_bitset ranks_of(const struct keel_shard_summary *shards, uint32_t count)
{
    struct keel_bitset ranks = {.some = {0}};
    for (uint32_t i = 0; i < count; i++)
        keel_bitset_add(&ranks, shards[i].rank);
    return ranks;
}

static void commit_one(struct keel_committer *committer, const struct order *order,
                       struct keel_committed *result)
{
    struct keel_commit commit = {.step = order->step,
                                 .attempt = order->attempt,
                                 .shards = order->shards,
                                 .shard_count = order->count,
                                 .metadata = committer->config.metadata,
                                 .allow_nonfinite = committer->config.allow_nonfinite};
    memcpy(commit.identity, committer->identity, sizeof commit.identity);
    *result = (struct keel_committed){.step = order->step, .attempt = order->attempt};
    for (uint32_t i = 0; i < order->count; i++) {
        result->raw_bytes += order->shards[i].raw_bytes;
        result->stored_bytes += order->shards[i].stored_bytes;
    }
    uint64_t begin_ns = keel_now_ns();
    if (committer->open_status != KEEL_OK)
        result->status = keel_fail(committer->open_status, "%s", committer->open_detail);
    if (result->status == KEEL_OK && committer->config.settle != NULL)
        result->status = committer->config.settle(committer->config.context, order->step);
    if (result->status == KEEL_OK && committer->config.store != NULL)
        result->status = keel_store_commit(committer->config.store, &commit);
    result->duration_ns = keel_now_ns() - begin_ns;
    if (result->status != KEEL_OK) {
        snprintf(result->detail, sizeof result->detail, "%s", keel_detail());
        discard(committer,
                &(struct drop){order->step, order->attempt, ranks_of(order->shards, order->count)});
        return;
    }
    if (committer->config.store != NULL &&
        keel_store_retain(committer->config.store, &committer->config.retention, &result->removed) != KEEL_OK)
        snprintf(result->detail, sizeof result->detail, "older snapshots stay: %s", keel_detail());
}

static void open_store(struct keel_committer *committer)
{
    committer->open_status = committer->config.open(committer->config.context, &committer->config.store);
    if (committer->open_status != KEEL_OK)
        snprintf(committer->open_detail, sizeof committer->open_detail, "%s", keel_detail());
}

static void *work(void *argument)
{
    struct keel_committer *committer = argument;
    if (committer->config.open != NULL)
        open_store(committer);
    keel_mutex_lock(&committer->lock);
    committer->opened = true;
    keel_cond_broadcast(&committer->moved);
    while (!committer->ending) {
        const bool idle = committer->done == committer->ordered;
        if (idle && committer->drop_count > 0) {
            const struct drop drop = committer->drops[--committer->drop_count];
            committer->discarding = true;
            keel_mutex_unlock(&committer->lock);
            discard(committer, &drop);
            keel_mutex_lock(&committer->lock);
            committer->discarding = false;
            keel_cond_broadcast(&committer->moved);
            continue;
        }
        if (idle) {
            keel_cond_wait(&committer->moved, &committer->lock, KEEL_NEVER);
            continue;
        }
        const uint64_t slot = committer->done % ORDERS_MAX; /* nobody else touches it until done grows */
        keel_mutex_unlock(&committer->lock);
        commit_one(committer, &committer->orders[slot], &committer->results[slot]);
        keel_mutex_lock(&committer->lock);
        committer->done++;
        keel_cond_broadcast(&committer->moved);
        eventfd_write(committer->event_fd, 1);
    }
    keel_mutex_unlock(&committer->lock);
    return NULL;
}

enum keel_status keel_committer_open(const struct keel_committer_config *config, struct keel_committer **out)
{
    struct keel_committer *committer;
    KEEL_TRY(keel_alloc(1, sizeof *committer, &committer));
    committer->config = *config;
    memcpy(committer->identity, config->identity, sizeof committer->identity);
    keel_mutex_init(&committer->lock);
    keel_cond_init(&committer->moved);
    committer->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum keel_status status = KEEL_OK;
    if (committer->event_fd < 0)
        status = keel_fail_errno(errno, "committer: no eventfd");
    if (status == KEEL_OK)
        status = keel_thread_create(&committer->thread, "keel-commit", work, committer);
    if (status != KEEL_OK) {
        if (committer->event_fd >= 0)
            close(committer->event_fd);
        keel_cond_fini(&committer->moved);
        keel_mutex_fini(&committer->lock);
        keel_free(committer);
        return status;
    }
    *out = committer;
    return KEEL_OK;
}

/* With the lock held: the newest order, if it was not begun. */
static struct order *newest_waiting(struct keel_committer *committer)
{
    return committer->ordered - committer->done >= 2
               ? &committer->orders[(committer->ordered - 1) % ORDERS_MAX]
               : NULL;
}

enum keel_status keel_committer_order(struct keel_committer *committer, uint64_t step, uint64_t attempt,
                                      const struct keel_shard_summary *shards, uint32_t count,
                                      struct keel_committed *given_up)
{
    KEEL_ASSERT(count <= KEEL_MEMBERS_MAX);
    keel_mutex_lock(&committer->lock);
    const bool full = committer->ordered - committer->taken == ORDERS_MAX;
    struct order *order =
        full ? newest_waiting(committer) : &committer->orders[committer->ordered % ORDERS_MAX];
    const bool takes_place = full && order != NULL;
    *given_up = (struct keel_committed){.step = step, .attempt = attempt};
    struct keel_bitset ranks = ranks_of(shards, count);
    if (takes_place) {
        *given_up = (struct keel_committed){.step = order->step, .attempt = order->attempt};
        ranks = ranks_of(order->shards, order->count);
    }
    if (order != NULL) {
        order->step = step;
        order->attempt = attempt;
        order->count = count;
        memcpy(order->shards, shards, count * sizeof shards[0]);
        committer->ordered += !full;
        keel_cond_broadcast(&committer->moved);
    }
    keel_mutex_unlock(&committer->lock);
    if (!full)
        return KEEL_OK;
    keel_committer_drop(committer, given_up->step, given_up->attempt, &ranks);
    given_up->status = keel_fail(KEEL_BUSY, "%d snapshots wait to be committed; step %llu is given up",
                                 ORDERS_MAX, (unsigned long long)given_up->step);
    snprintf(given_up->detail, sizeof given_up->detail, "%s", keel_detail());
    return given_up->status;
}

void keel_committer_drop(struct keel_committer *committer, uint64_t step, uint64_t attempt,
                         const struct keel_bitset *ranks)
{
    keel_mutex_lock(&committer->lock);
    if (committer->drop_count < KEEL_DROPS_MAX)
        committer->drops[committer->drop_count++] = (struct drop){step, attempt, *ranks};
    keel_cond_broadcast(&committer->moved);
    keel_mutex_unlock(&committer->lock);
}

int keel_committer_fd(const struct keel_committer *committer)
{
    return committer->event_fd;
}

bool keel_committer_take(struct keel_committer *committer, struct keel_committed *out)
{
    keel_mutex_lock(&committer->lock);
    bool some = committer->taken != committer->done;
    if (some) {
        *out = committer->results[committer->taken % ORDERS_MAX];
        committer->taken++;
    } else {
        eventfd_t count;
        eventfd_read(committer->event_fd, &count); /* under the lock: no result comes in between */
    }
    keel_mutex_unlock(&committer->lock);
    return some;
}

/* With the lock held. */
static bool is_at_rest(const struct keel_committer *committer)
{
    return committer->opened && committer->done == committer->ordered && committer->drop_count == 0 &&
           !committer->discarding;
}

bool keel_committer_drain(struct keel_committer *committer, uint64_t deadline_ns)
{
    keel_mutex_lock(&committer->lock);
    bool in_time = true;
    while (!is_at_rest(committer) && in_time)
        in_time = keel_cond_wait(&committer->moved, &committer->lock, deadline_ns);
    bool drained = is_at_rest(committer);
    keel_mutex_unlock(&committer->lock);
    return drained;
}

void keel_committer_close(struct keel_committer *committer)
{
    if (committer == NULL)
        return;
    keel_mutex_lock(&committer->lock);
    committer->ending = true;
    keel_cond_broadcast(&committer->moved);
    keel_mutex_unlock(&committer->lock);
    keel_thread_join(&committer->thread);
    close(committer->event_fd);
    keel_cond_fini(&committer->moved);
    keel_mutex_fini(&committer->lock);
    keel_free(committer);
}
