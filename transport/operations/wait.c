/* wait.c - waiting for an operation: the waiter makes the progress itself, if nobody else does.
 *
 * So a short operation takes no change of threads. A waiter that finds nothing to do looks again for some
 * microseconds (its patience), then spins, some tens of microseconds at most where it has not just slept for
 * a moment, and only while that pays, offering the processor to others, then sleeps on the connections'
 * descriptors. It spins less where that was in vain or where others wanted the processor: ranks may outnumber
 * processors, and a spinning rank takes the time of the one that it waits for. */
#include "group.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define SPIN_MAX_NS    (50 * KEEL_NS_PER_US)
#define SPIN_MIN_NS    (4 * KEEL_NS_PER_US)
#define SLEEP_SHORT_NS (150 * KEEL_NS_PER_US) /* what came may have taken less than to wake up */
#define YIELD_LONG_NS  (200 * KEEL_NS_PER_US) /* others had the processor for a slice */
#define YIELD_SHORT_NS (2 * KEEL_NS_PER_US)   /* nobody else wanted the processor */
#define CALM_NS        (20 * KEEL_NS_PER_MS)

/* What a short operation takes where all its ranks run, several times over; about what a sleep costs. */
#define PATIENCE_MAX_NS  (4 * KEEL_NS_PER_US)
#define PATIENCE_STEP_NS 125

/* ---- driving ------------------------------------------------------------------------------------------- */

enum { YIELD_PASSES = 8 }; /* looks between two offers of the processor to others */

static bool finished(const struct keel_operation *operation)
{
    return operation->ended || keel_group_over(operation->group);
}

/* Returns how long others had the processor. */
static uint64_t give_way(struct keel_endpoint *endpoint)
{
    uint64_t before = keel_now_ns();
    sched_yield();
    uint64_t after = keel_now_ns();
    endpoint->idle_passes = 0;
    if (after - before > YIELD_LONG_NS)
        endpoint->calm_ns = after + CALM_NS;
    return after - before;
}

/* Something came. If it came because the processor was given away, to a rank that needed it for a moment, the
 * next one is given away at once: ranks share processors. Patience comes back by and by. */
static void learn_patience(struct keel_endpoint *endpoint, uint64_t away_ns)
{
    if (away_ns > YIELD_SHORT_NS && away_ns <= YIELD_LONG_NS)
        endpoint->patience_ns = PATIENCE_STEP_NS;
    else if (endpoint->patience_ns < PATIENCE_MAX_NS)
        endpoint->patience_ns += PATIENCE_STEP_NS;
}

/* True when something came before it was worth sleeping. Short operations let others have the processor when
 * their patience is over, and for a while stop at that once those took a whole slice of it: the machine is
 * busy, and who sleeps is woken sooner than who yields. Patience itself costs less than a sleep does, so it
 * is never left out. Long operations have no time to give away. */
static bool spin(struct keel_operation *operation, uint64_t deadline_ns)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    uint64_t events = endpoint->events, start = endpoint->now_ns, patience = endpoint->patience_ns;
    uint64_t most = start >= endpoint->calm_ns && endpoint->spin_ns > patience ? endpoint->spin_ns : patience;
    bool yields = operation->segment_count <= 1;
    for (uint32_t passes = 1; endpoint->now_ns - start < most && endpoint->now_ns < deadline_ns; passes++) {
        uint64_t away = 0;
        if (yields && passes % YIELD_PASSES == 0 && endpoint->now_ns - start >= patience)
            away = give_way(endpoint);
        keel_endpoint_pass(endpoint, false);
        if (endpoint->events != events || finished(operation)) {
            learn_patience(endpoint, away);
            endpoint->spin_ns = endpoint->spin_ns * 2 < SPIN_MAX_NS ? endpoint->spin_ns * 2 : SPIN_MAX_NS;
            return true;
        }
        if (away > YIELD_LONG_NS)
            return false;
    }
    endpoint->spin_ns = endpoint->spin_ns > SPIN_MIN_NS ? endpoint->spin_ns / 2 : 0;
    return false;
}

/* Sleep. If it was short the next spin is twice as long as that took: to wake up takes up to some 100 us, and
 * ranks that sleep in turns would otherwise do so for ever, each operation as long as that. On a busy machine
 * the thread asks for short slices first, and keeps them: it wakes before whoever computes. */
static void doze(struct keel_operation *operation, uint64_t deadline_ns)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    uint64_t start = keel_now_ns();
    if (start < endpoint->calm_ns)
        keel_thread_slice(KEEL_SLICE_NS);
    keel_endpoint_sleep(endpoint, deadline_ns);
    uint64_t slept = keel_now_ns() - start;
    if (slept < SLEEP_SHORT_NS && endpoint->spin_ns < 2 * slept)
        endpoint->spin_ns = 2 * slept;
}

/* However much comes, who calls is not kept waiting: he takes us for dead. */
static bool is_called(struct keel_endpoint *endpoint, uint64_t now_ns, uint64_t *in_out_look_ns)
{
    if (now_ns < *in_out_look_ns)
        return false;
    *in_out_look_ns = now_ns + KEEL_PING_NS;
    return keel_backends_asked(&endpoint->backends);
}

/* Caller owns progress. Returns when the operation has ended, its time is up, or another thread claims
 * progress; true: connections want attention, which are the thread's. */
static bool drive(struct keel_operation *operation, uint64_t deadline_ns)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    bool asked = false;
    uint64_t look_ns = endpoint->now_ns + KEEL_PING_NS;
    while (!finished(operation) && atomic_load_explicit(&endpoint->claims, memory_order_relaxed) == 0) {
        uint64_t events = endpoint->events;
        keel_endpoint_pass(endpoint, false);
        if (finished(operation) || endpoint->now_ns >= deadline_ns)
            return false;
        if (endpoint->events != events) {
            if (is_called(endpoint, endpoint->now_ns, &look_ns))
                return true;
            asked = false;
            continue;
        }
        if (asked)
            return true;
        if (spin(operation, deadline_ns) || finished(operation))
            continue;
        asked = keel_backends_asked(&endpoint->backends); /* or data that came just now: look once more */
        if (!asked)
            doze(operation, deadline_ns);
    }
    return false;
}

/* ---- the outcome --------------------------------------------------------------------------------------- */

/* A sign of life is as old as the question that it answers, so two that fell silent together differ by the
 * time between questions; in a short silence by an eighth of it at most. */
static uint64_t about_as_long(uint64_t held_ns)
{
    uint64_t questions_ns = held_ns / 8 < 2 * KEEL_PING_NS ? held_ns / 8 : 2 * KEEL_PING_NS;
    return held_ns - (held_ns / 32 > questions_ns ? held_ns / 32 : questions_ns);
}

/* The rank that has held it up for longest, and all that did so about as long. */
static void blame_suspects(const struct keel_operation *operation)
{
    struct keel_group *whole = operation->group->whole;
    uint64_t now = keel_now_ns(), held_ns = KEEL_NEVER;
    struct keel_suspect suspect = keel_keepalive_blamed(operation, NULL, now);
    if (suspect.rank == KEEL_NO_RANK)
        return;
    keel_group_note_lost(whole, suspect.rank);
    for (uint32_t k = 0; k < operation->flow_count; k++)
        if (keel_group_to_whole(operation->group, operation->flows[k].rank) == suspect.rank)
            held_ns = keel_keepalive_held_ns(&operation->flows[k], now);
    for (uint32_t k = 0; k < operation->flow_count && held_ns > 0; k++)
        if (keel_keepalive_held_ns(&operation->flows[k], now) >= about_as_long(held_ns))
            keel_group_note_lost(whole, keel_group_to_whole(operation->group, operation->flows[k].rank));
}

/* Whom to name when the deadline has passed, the best evidence first; the others of the group hear of it with
 * the farewell. Where there is none the first awaited is named here alone. Caller holds the lock. */
static void blame(struct keel_operation *operation)
{
    struct keel_group *group = operation->group;
    if (group->lost.count > 0)
        return;
    if (group->whole->lost.count == 0)
        group->whole->lost.awaited = 1;
    blame_suspects(operation);
    for (uint32_t k = 0; k < operation->flow_count && group->lost.count == 0; k++)
        if (!atomic_load(&operation->flows[k].settled))
            keel_group_note_guess(group, operation->flows[k].rank);
}

/* Caller holds the lock. Whoever ends the operation looks for sleepers after he has said so, and we look
 * whether he has after we have said that we sleep. */
static bool sleep_until_changed(struct keel_operation *operation, uint64_t deadline_ns)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    atomic_fetch_add(&endpoint->sleepers, 1);
    bool in_time =
        atomic_load(&operation->done) || keel_cond_wait(&endpoint->changed, &endpoint->lock, deadline_ns);
    atomic_fetch_sub(&endpoint->sleepers, 1);
    return in_time;
}

/* Until it is over, or the time is. Caller owns progress, or holds the lock; it holds the lock afterwards. */
static void wait_for(struct keel_operation *operation, uint64_t deadline_ns, bool driving)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    bool in_time = true;
    while (driving || (!atomic_load(&operation->done) && !keel_group_over(group) && in_time)) {
        if (!driving && !keel_endpoint_drive(endpoint)) {
            in_time = sleep_until_changed(operation, deadline_ns);
            continue;
        }
        if (!driving)
            keel_mutex_unlock(&endpoint->lock);
        bool asked = drive(operation, deadline_ns);
        keel_mutex_lock(&endpoint->lock);
        endpoint->wanted = endpoint->wanted || asked;
        keel_endpoint_undrive(endpoint, false);
        in_time = atomic_load(&operation->done) || keel_now_ns() < deadline_ns;
        driving = false;
    }
}

/* Its time is up: whom it waits for, and in words how far it has come, which only who owns progress can say.
 * Whoever has that lets go at once but where libfabric waits for a stranger; then there are no words. Caller
 * holds the lock, and gets it back: it may have ended, or its group, meanwhile. The count of waiters keeps
 * both alive when another thread closes the group. */
static void give_up(struct keel_operation *operation, char *out_words, size_t words_bytes)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    if (keel_endpoint_claim(endpoint, keel_deadline_after_ns(KEEL_WORDS_NS))) {
        keel_mutex_unlock(&endpoint->lock);
        keel_endpoint_pass(endpoint, false); /* what lies there unread counts, after a time without running */
        keel_trace_describe(operation, out_words, words_bytes);
        keel_mutex_lock(&endpoint->lock);
        keel_endpoint_undrive(endpoint, true);
    }
    if (!atomic_load(&operation->done) && !keel_group_over(operation->group))
        blame(operation);
}

/* ---- what to say --------------------------------------------------------------------------------------- */

static void number_text(char *out, size_t bytes, const char *what, uint64_t value)
{
    snprintf(out, bytes, "%s %llu", what, (unsigned long long)value);
}

/* The first thing in which they differ, as the rank with `said` has it. */
static void said_text(const struct keel_signature *said, const struct keel_signature *other, char *out,
                      size_t bytes)
{
    bool pair = keel_kind_is_pair((enum keel_collective_kind)said->kind);
    if (said->kind != other->kind && !(pair && keel_kind_is_pair((enum keel_collective_kind)other->kind)))
        snprintf(out, bytes, "%s", keel_collective_name((enum keel_collective_kind)said->kind));
    else if (said->element != other->element)
        snprintf(out, bytes, "elements of %s", keel_element_name((enum keel_element)said->element));
    else if (said->reduction != other->reduction)
        snprintf(out, bytes, "reduction %s", keel_reduction_name((enum keel_reduction)said->reduction));
    else if (said->order != other->order)
        snprintf(out, bytes, "%s order", keel_order_name((enum keel_order)said->order));
    else if (said->root != other->root && !pair)
        number_text(out, bytes, "root", said->root);
    else if (said->count != other->count)
        number_text(out, bytes, "count", said->count);
    else if (said->counts_hash != other->counts_hash)
        number_text(out, bytes, "counts with hash", said->counts_hash);
    else if (said->map_hash != other->map_hash)
        number_text(out, bytes, "members and shards with hash", said->map_hash);
    else if (said->costs_hash != other->costs_hash)
        number_text(out, bytes, "network costs (keel net tune) with hash", said->costs_hash);
    else if (said->algorithm != other->algorithm)
        snprintf(out, bytes, "algorithm %s", keel_algorithm_name((enum keel_algorithm)said->algorithm));
    else if (said->chunk_bytes != other->chunk_bytes)
        number_text(out, bytes, "chunks of bytes:", said->chunk_bytes);
    else
        snprintf(out, bytes, "%llu bytes to give and %llu to take", (unsigned long long)said->give_bytes,
                 (unsigned long long)said->take_bytes);
}

static enum keel_status differ_fail(uint64_t sequence, uint64_t epoch, const struct keel_differ *differ)
{
    char said[2][64];
    for (uint32_t k = 0; k < 2; k++)
        said_text(&differ->said[k], &differ->said[1 - k], said[k], sizeof said[k]);
    if (differ->rank[1] == KEEL_NO_RANK)
        return keel_fail(
            KEEL_MISMATCH,
            "operation %llu of epoch %llu: a rank that is no member of this subgroup takes part in it; "
            "all members must make it with the same ranks",
            (unsigned long long)sequence, (unsigned long long)epoch);
    return keel_fail(KEEL_MISMATCH,
                     "operation %llu of epoch %llu: rank %u has %s, rank %u has %s; they must be the same",
                     (unsigned long long)sequence, (unsigned long long)epoch, differ->rank[0], said[0],
                     differ->rank[1], said[1]);
}

/* Caller holds the lock, which is let go. */
static void succeed(struct keel_operation *operation)
{
    struct keel_endpoint *endpoint = operation->group->endpoint;
    keel_group_leave(operation->group);
    keel_operation_unlink_live(operation);
    struct keel_operation *left = keel_operation_give_back(operation);
    keel_mutex_unlock(&endpoint->lock); /* from here on another thread may have closed the group */
    if (left != NULL)
        keel_operation_destroy(left);
}

static enum keel_status unfinished(const struct keel_operation *operation)
{
    return keel_group_over(operation->group) ? KEEL_REVOKED : KEEL_TIMEOUT;
}

/* `words`: how far it had come, if its time is up. Caller holds the lock, which is let go. */
static enum keel_status fail(struct keel_operation *operation, bool done, const char *words)
{
    struct keel_group *group = operation->group;
    unsigned long long sequence = operation->sequence, epoch = group->epoch;
    struct keel_differ differ = {0};
    char where[KEEL_ADDRESS_TEXT_BYTES] = "";
    enum keel_status status = done ? operation->status : unfinished(operation);
    bool named = group->lost.count > 0;
    uint32_t rank = group->lost.rank[0];
    if (status == KEEL_MISMATCH)
        differ = operation->differ;
    bool other_members = status == KEEL_MISMATCH && named && differ.rank[0] == differ.rank[1];
    if ((status == KEEL_CORRUPT && named) || other_members)
        keel_address_text(&group->whole->addresses[keel_group_to_whole(group, rank)], where);
    keel_group_leave(group);
    keel_mutex_unlock(&group->endpoint->lock); /* from here on another thread may have closed the group */
    if (other_members)
        return keel_fail(
            status,
            "operation %llu: rank %u at %s opened epoch %llu with other members, addresses or shards "
            "than this rank; give all ranks the same",
            sequence, rank, where, epoch);
    if (status == KEEL_MISMATCH)
        return differ_fail(sequence, epoch, &differ);
    if (status == KEEL_TIMEOUT && named)
        return keel_fail(status, "operation %llu of epoch %llu: rank %u is still awaited%s%s", sequence,
                         epoch, rank, words[0] != '\0' ? ": " : "", words);
    if (status == KEEL_PEER_LOST && named)
        return keel_fail(status, "operation %llu of epoch %llu: rank %u is gone; open the next group",
                         sequence, epoch, rank);
    if (status == KEEL_CORRUPT && named)
        return keel_fail(
            status,
            "operation %llu of epoch %llu: a message of rank %u was changed on the connection with "
            "%s; nothing of it was used; open the next group",
            sequence, epoch, rank, where);
    return keel_fail(status, "operation %llu of epoch %llu: %s", sequence, epoch,
                     status == KEEL_INVALID ? "another of this number is in flight; each needs its own"
                                            : keel_status_text(status));
}

enum keel_status keel_operation_await(struct keel_operation *operation, uint64_t deadline_ns, bool driving)
{
    char words[256] = "";
    wait_for(operation, deadline_ns, driving);
    if (!atomic_load(&operation->done) && !keel_group_over(operation->group))
        give_up(operation, words, sizeof words);
    bool done = atomic_load(&operation->done); /* which may come any time */
    if (!done || operation->status != KEEL_OK)
        return fail(operation, done, words);
    succeed(operation);
    return KEEL_OK;
}

enum keel_status keel_operation_wait(struct keel_operation *operation, uint64_t deadline_ns)
{
    if (operation == NULL)
        return KEEL_OK;
    keel_mutex_lock(&operation->group->endpoint->lock);
    operation->group->waiters++;
    return keel_operation_await(operation, deadline_ns, false);
}

bool keel_operation_test(struct keel_operation *operation, enum keel_status *out)
{
    struct keel_group *group = operation->group;
    struct keel_endpoint *endpoint = group->endpoint;
    keel_mutex_lock(&endpoint->lock);
    group->waiters++;
    bool over = atomic_load(&operation->done) || keel_group_over(group);
    if (!over && keel_endpoint_drive(endpoint)) {
        keel_mutex_unlock(&endpoint->lock);
        keel_endpoint_pass(endpoint, false);
        keel_mutex_lock(&endpoint->lock);
        keel_endpoint_undrive(endpoint, operation->segment_count > 1);
        over = atomic_load(&operation->done) || keel_group_over(group);
    }
    if (over) {
        *out = keel_operation_await(operation, 0, false);
        return true;
    }
    keel_group_leave(group);
    keel_mutex_unlock(&endpoint->lock);
    return false;
}
