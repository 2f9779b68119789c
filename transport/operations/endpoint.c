/* endpoint.c - opening and closing, who owns progress, the thread that makes it, and its mailbox.
 *
 * Progress (deliver what the connections have, take the mailbox, tick what is due) is made by one thread at a
 * time, who owns it: a caller that begins or waits for an operation, else the endpoint's own thread. That
 * sleeps in poll on the connections' descriptors and an eventfd. While callers come and go in quick
 * succession it leaves them alone (a lease), so that a short operation takes no change of threads; while one
 * drives for long it is parked. Connections are looked after by the thread alone, since libfabric may wait
 * there for a stranger: so a caller's deadline never hangs on one. */
#include "group.h"
#include "handshake.h"

#include <errno.h>
#include <keel/memory.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void keel_endpoint_at(struct keel_endpoint *endpoint, uint64_t when_ns)
{
    if (when_ns < endpoint->tick_ns)
        endpoint->tick_ns = when_ns;
}

/* ---- who owns progress --------------------------------------------------------------------------------- */

#define LEASE_NS     KEEL_NS_PER_MS /* so long the thread leaves progress to callers that come again */
#define PARK_LONG_NS KEEL_NS_PER_S  /* whoever drives so long tells the thread when it stops */

enum { IDLE_PASSES = 4 };

/* Whoever sleeps in poll wakes. */
static void ring(struct keel_endpoint *endpoint)
{
    if (endpoint->woken)
        return;
    endpoint->woken = true;
    uint64_t one = 1;
    while (write(endpoint->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* Caller holds the lock: the bell has been heard. */
static void hush(struct keel_endpoint *endpoint)
{
    uint64_t count;
    if (!endpoint->woken)
        return;
    (void)!read(endpoint->wake_fd, &count, sizeof count);
    endpoint->woken = false;
}

void keel_endpoint_wake(struct keel_endpoint *endpoint)
{
    atomic_store(&endpoint->mail, true);
    if (endpoint->driving || endpoint->thread_polling)
        ring(endpoint);
    else if (endpoint->thread_parked)
        keel_cond_signal(&endpoint->parked);
}

static bool take_progress(struct keel_endpoint *endpoint)
{
    if (endpoint->driving || endpoint->wanted)
        return false;
    endpoint->driving = true;
    endpoint->drives++;
    endpoint->idle_passes = 0;
    return true;
}

bool keel_endpoint_drive(struct keel_endpoint *endpoint)
{
    return atomic_load(&endpoint->claims) == 0 && take_progress(endpoint);
}

bool keel_endpoint_claim(struct keel_endpoint *endpoint, uint64_t deadline_ns)
{
    atomic_fetch_add(&endpoint->claims, 1);
    while ((endpoint->driving || endpoint->wanted) && keel_remaining_ns(deadline_ns) > 0) {
        endpoint->sleepers++;
        keel_endpoint_wake(endpoint);
        keel_cond_wait(&endpoint->changed, &endpoint->lock, keel_deadline_after_ns(KEEL_NS_PER_MS));
        endpoint->sleepers--;
    }
    atomic_fetch_sub(&endpoint->claims, 1);
    return take_progress(endpoint);
}

/* Whose progress this was looked into what ranks of this host share, so these do not ring any more: the
 * thread that still sleeps would hear of what is left under way at its next tick alone. */
static bool leaves_work(const struct keel_endpoint *endpoint)
{
    return endpoint->current != NULL && endpoint->current->active > 0;
}

void keel_endpoint_undrive(struct keel_endpoint *endpoint, bool soon)
{
    KEEL_ASSERT(endpoint->driving);
    bool now = soon || endpoint->wanted || atomic_load(&endpoint->mail);
    endpoint->driving = false;
    endpoint->lease_ns = now ? 0 : endpoint->now_ns + LEASE_NS;
    if (endpoint->sleepers > 0)
        keel_cond_broadcast(&endpoint->changed);
    if (endpoint->thread_parked && (now || endpoint->thread_deep))
        keel_cond_signal(&endpoint->parked);
    if (endpoint->thread_polling &&
        (now || leaves_work(endpoint) || endpoint->tick_ns < endpoint->thread_until_ns))
        ring(endpoint);
}

/* ---- the mailbox --------------------------------------------------------------------------------------- */

struct mail {
    struct keel_group *opened;
    struct keel_operation *submitted;
    bool closing, revoking;
};

/* Caller holds the lock, under which all mail is written. */
static struct mail take_mail(struct keel_endpoint *endpoint)
{
    struct mail mail = {
        .submitted = endpoint->submitted, .closing = endpoint->closing, .revoking = endpoint->revoking};
    atomic_store_explicit(&endpoint->mail, false, memory_order_relaxed);
    if (endpoint->opening)
        mail.opened = endpoint->group;
    endpoint->opening = endpoint->revoking = false;
    endpoint->submitted = NULL;
    endpoint->submitted_last = &endpoint->submitted;
    hush(endpoint);
    return mail;
}

static void current_opened(struct keel_endpoint *endpoint, struct keel_group *group)
{
    endpoint->current = group;
    endpoint->seen_epoch = true;
    endpoint->current_epoch = group->epoch;
    group->look_ns = KEEL_NEVER;
    keel_session_group_opened(endpoint, group);
}

static void current_closing(struct keel_endpoint *endpoint)
{
    struct keel_group *group = endpoint->current;
    uint64_t now = keel_now_ns();
    if (group->close_ns == 0) {
        keel_protocol_close(group);
        keel_session_group_closing(group, now);
    }
    if (!keel_session_group_closed(group, now))
        return;
    endpoint->current = NULL;
    keel_backends_renew(&endpoint->backends);
    keel_mutex_lock(&endpoint->lock);
    endpoint->closing = false;
    group->detached = true;
    keel_cond_broadcast(&endpoint->changed);
    keel_mutex_unlock(&endpoint->lock);
}

void keel_endpoint_mail(struct keel_endpoint *endpoint)
{
    struct mail mail = take_mail(endpoint);
    keel_mutex_unlock(&endpoint->lock);
    if (mail.opened != NULL)
        current_opened(endpoint, mail.opened);
    struct keel_operation *next;
    for (struct keel_operation *at = mail.submitted; at != NULL; at = next) {
        next = at->next_submitted;
        keel_protocol_begin(at);
    }
    if (endpoint->current != NULL && mail.revoking)
        keel_protocol_revoked(endpoint->current);
    if (endpoint->current != NULL)
        keel_session_pump(endpoint->current);
    if (endpoint->current != NULL && mail.closing)
        current_closing(endpoint);
}

/* What is due by the time before the connections are looked at: so nobody is judged by what lies there
 * unread. Of passes that find nothing, one in a few reads the clock, since that takes longer than the rest of
 * them. */
void keel_endpoint_pass(struct keel_endpoint *endpoint, bool connections)
{
    uint64_t events = endpoint->events;
    if (connections || endpoint->idle_passes++ % IDLE_PASSES == 0)
        endpoint->now_ns = keel_now_ns();
    if (connections)
        keel_backends_progress(&endpoint->backends);
    else
        keel_backends_progress_data(&endpoint->backends);
    if (endpoint->events != events) {
        endpoint->idle_passes = 0;
        atomic_store_explicit(&endpoint->vain_wakes, 0, memory_order_relaxed);
    }
    if (atomic_load(&endpoint->mail)) {
        endpoint->idle_passes = 0;
        keel_mutex_lock(&endpoint->lock);
        keel_endpoint_mail(endpoint);
    }
    if (endpoint->now_ns >= endpoint->tick_ns) {
        endpoint->tick_ns = KEEL_NEVER;
        keel_session_tick(endpoint, endpoint->now_ns);
    }
}

/* ---- sleeping ------------------------------------------------------------------------------------------ */

/* Wakes in a row by descriptors that had nothing for us, and what is slept then on the bell alone. A message
 * in its smallest packets takes a quarter of them; a caller that cannot be taken in, since the process has no
 * descriptor left, wakes without end. */
enum { VAIN_WAKES = 1000 };
#define VAIN_NS       (4 * KEEL_NS_PER_MS)
#define VAIN_SLEEP_NS (100 * KEEL_NS_PER_US)

static bool is_vain(struct keel_endpoint *endpoint)
{
    return atomic_load_explicit(&endpoint->vain_wakes, memory_order_relaxed) >= VAIN_WAKES;
}

/* It slept for so long, and a descriptor woke it. */
static void note_wake(struct keel_endpoint *endpoint, uint64_t slept_ns)
{
    if (slept_ns >= VAIN_SLEEP_NS)
        atomic_store_explicit(&endpoint->vain_wakes, 0, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&endpoint->vain_wakes, 1, memory_order_relaxed);
}

/* The bell has rung. Who does not own progress leaves it to who does: it may be for him, and he may be about
 * to sleep. */
static void hear_bell(struct keel_endpoint *endpoint, bool owns)
{
    keel_mutex_lock(&endpoint->lock);
    if (owns || !endpoint->driving) /* it may ring without mail: for a tick, or for the thread to take over */
        hush(endpoint);
    keel_mutex_unlock(&endpoint->lock);
}

/* True: something woke it. */
static bool poll_until(struct keel_endpoint *endpoint, uint64_t deadline_ns, bool owns)
{
    struct pollfd fds[KEEL_BACKENDS_DESCRIPTORS_MAX + 1];
    uint32_t count = 0;
    uint64_t began_ns = keel_now_ns();
    if (!is_vain(endpoint))
        count = keel_backends_descriptors(&endpoint->backends, fds);
    else if (deadline_ns > began_ns + VAIN_NS)
        deadline_ns = began_ns + VAIN_NS;
    uint64_t left = deadline_ns > began_ns ? deadline_ns - began_ns : 0;
    struct timespec wait = {.tv_sec = (time_t)(left / KEEL_NS_PER_S),
                            .tv_nsec = (long)(left % KEEL_NS_PER_S)};
    fds[count] = (struct pollfd){.fd = endpoint->wake_fd, .events = POLLIN};
    int ready = ppoll(fds, count + 1, deadline_ns == KEEL_NEVER ? NULL : &wait, NULL);
    if (count == 0) /* the next one is for all, once */
        atomic_store_explicit(&endpoint->vain_wakes, VAIN_WAKES - 1, memory_order_relaxed);
    if (ready > 0 && fds[count].revents != 0)
        hear_bell(endpoint, owns);
    else if (ready > 0)
        note_wake(endpoint, keel_now_ns() - began_ns);
    return ready > 0;
}

static bool holds(const struct keel_endpoint *endpoint)
{
    return endpoint->current != NULL && endpoint->current->held_count > 0;
}

void keel_endpoint_sleep(struct keel_endpoint *endpoint, uint64_t deadline_ns)
{
    endpoint->idle_passes = 0;
    if (atomic_load(&endpoint->mail) || !keel_backends_may_sleep(&endpoint->backends))
        return;
    uint64_t until_ns = endpoint->tick_ns < deadline_ns ? endpoint->tick_ns : deadline_ns;
    keel_trace_idle(endpoint);
    if (holds(endpoint)) {
        uint64_t hold_ns = keel_deadline_after_ns(KEEL_HOLD_NS);
        if (poll_until(endpoint, hold_ns < until_ns ? hold_ns : until_ns, true))
            return;
        keel_protocol_rest(endpoint->current);
    }
    poll_until(endpoint, until_ns, true);
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

/* Caller holds the lock. */
static void park(struct keel_endpoint *endpoint, uint64_t until_ns, bool deep)
{
    endpoint->thread_parked = true;
    endpoint->thread_deep = deep;
    keel_cond_wait(&endpoint->parked, &endpoint->lock, until_ns);
    endpoint->thread_parked = endpoint->thread_deep = false;
}

/* Caller holds the lock: one turn of the thread's own. */
static void own_turn(struct keel_endpoint *endpoint)
{
    endpoint->wanted = false;
    endpoint->driving = true;
    keel_mutex_unlock(&endpoint->lock);
    keel_endpoint_pass(endpoint, true);
    if (endpoint->current != NULL && endpoint->current->close_ns != 0)
        current_closing(endpoint);
    bool idle = keel_backends_may_sleep(&endpoint->backends);
    if (idle && holds(endpoint))
        keel_protocol_rest(endpoint->current);
    if (idle)
        keel_trace_idle(endpoint);
    uint64_t until_ns = endpoint->tick_ns;
    keel_mutex_lock(&endpoint->lock);
    endpoint->driving = false;
    endpoint->lease_ns = 0;
    if (endpoint->sleepers > 0)
        keel_cond_broadcast(&endpoint->changed);
    if (!idle || endpoint->wanted || endpoint->stopping || atomic_load(&endpoint->mail))
        return;
    endpoint->thread_polling = true;
    endpoint->thread_until_ns = until_ns;
    keel_mutex_unlock(&endpoint->lock);
    poll_until(endpoint, until_ns, false);
    keel_mutex_lock(&endpoint->lock);
    endpoint->thread_polling = false;
}

/* Closing: who is told farewell may not have run since, and hanging up on what it has not read, or on what it
 * has sent, would destroy what lies there. It hangs up itself when it has read the farewell. */
static void see_off(struct keel_endpoint *endpoint)
{
    uint64_t until_ns = keel_deadline_after_ns(KEEL_LINGER_NS);
    for (;;) {
        keel_endpoint_pass(endpoint, true);
        if (!keel_session_lingers(endpoint) || keel_remaining_ns(until_ns) == 0)
            return;
        if (keel_backends_may_sleep(&endpoint->backends))
            poll_until(endpoint, endpoint->tick_ns < until_ns ? endpoint->tick_ns : until_ns, true);
    }
}

static void *progress(void *argument)
{
    struct keel_endpoint *endpoint = argument;
    uint64_t seen = 0; /* the drive that was under way at the last look */
    keel_thread_slice(KEEL_SLICE_NS);
    keel_mutex_lock(&endpoint->lock);
    while (!endpoint->stopping) {
        if (endpoint->driving) {
            bool still = seen == endpoint->drives;
            seen = endpoint->drives;
            park(endpoint, keel_deadline_after_ns(still ? PARK_LONG_NS : LEASE_NS), still);
        } else if (!endpoint->wanted && !atomic_load(&endpoint->mail) && keel_now_ns() < endpoint->lease_ns) {
            park(endpoint, endpoint->lease_ns, false);
        } else {
            own_turn(endpoint);
        }
    }
    keel_mutex_unlock(&endpoint->lock);
    see_off(endpoint);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static void endpoint_free(struct keel_endpoint *endpoint)
{
    keel_handshake_wipe(endpoint->key);
    keel_recorder_close(endpoint->recorder);
    if (endpoint->wake_fd >= 0)
        close(endpoint->wake_fd);
    keel_cond_fini(&endpoint->parked);
    keel_cond_fini(&endpoint->changed);
    keel_mutex_fini(&endpoint->lock);
    keel_free(endpoint);
}

static enum keel_status endpoint_start(struct keel_endpoint *endpoint,
                                       const struct keel_endpoint_config *config)
{
    endpoint->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (endpoint->wake_fd < 0)
        return keel_fail_errno(errno, "transport: making an eventfd");
    KEEL_TRY(keel_handshake_init());
    KEEL_TRY(keel_recorder_open(NULL, &endpoint->recorder));
    KEEL_TRY(keel_backends_open(&endpoint->backends, config, &keel_session_calls, endpoint));
    enum keel_status status = keel_backends_address(&endpoint->backends, &endpoint->address);
    if (status == KEEL_OK)
        status = keel_thread_create(&endpoint->thread, "keel-fabric", progress, endpoint);
    if (status != KEEL_OK)
        keel_backends_close(&endpoint->backends);
    return status;
}

enum keel_status keel_endpoint_open(const struct keel_endpoint_config *config, struct keel_endpoint **out)
{
    struct keel_endpoint *endpoint;
    if (config->seal_payload && config->key == NULL)
        return keel_fail(KEEL_INVALID, "endpoint: seal_payload needs a key to seal with: give the job key");
    KEEL_TRY(keel_alloc(1, sizeof *endpoint, &endpoint));
    keel_mutex_init(&endpoint->lock);
    keel_cond_init(&endpoint->changed);
    keel_cond_init(&endpoint->parked);
    endpoint->tick_ns = KEEL_NEVER;
    endpoint->spin_ns = KEEL_NS_PER_US * 16;
    endpoint->submitted_last = &endpoint->submitted;
    endpoint->has_key = config->key != NULL;
    if (endpoint->has_key)
        memcpy(endpoint->key, config->key, sizeof endpoint->key);
    enum keel_status status = endpoint_start(endpoint, config);
    if (status != KEEL_OK) {
        endpoint_free(endpoint);
        return status;
    }
    *out = endpoint;
    return KEEL_OK;
}

void keel_endpoint_address(const struct keel_endpoint *endpoint, struct keel_address *out)
{
    *out = endpoint->address;
}

void keel_endpoint_close(struct keel_endpoint *endpoint)
{
    keel_mutex_lock(&endpoint->lock);
    KEEL_ASSERT(endpoint->group == NULL);
    endpoint->stopping = true;
    keel_endpoint_wake(endpoint);
    keel_mutex_unlock(&endpoint->lock);
    keel_thread_join(&endpoint->thread);
    keel_session_close_all(endpoint);
    keel_backends_close(&endpoint->backends);
    endpoint_free(endpoint);
}

void keel_endpoint_stats(const struct keel_endpoint *endpoint, struct keel_transport_stats *out)
{
    *out = (struct keel_transport_stats){.stale_dropped = atomic_load(&endpoint->stale_dropped),
                                         .data_sent = atomic_load(&endpoint->data_sent),
                                         .data_copied = atomic_load(&endpoint->data_copied),
                                         .connections = atomic_load(&endpoint->connections)};
    keel_backends_count(&endpoint->backends, out);
}
