/* endpoint.c - opening and closing, the progress thread, and its mailbox.
 *
 * The progress thread runs: deliver what the lines have, take the mailbox, tick what is due, then sleep in
 * poll on the lines' descriptors and an eventfd until something comes or the next tick. It never
 * spins: on the machines that this was measured on, ranks outnumber processors, and a spinning rank takes
 * the time of the one that it waits for. */
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

void keel_endpoint_wake(struct keel_endpoint *endpoint)
{
    if (endpoint->woken)
        return;
    endpoint->woken = true;
    uint64_t one = 1;
    while (write(endpoint->wake_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* ---- the mailbox --------------------------------------------------------------------------------------- */

struct mail {
    struct keel_group *opened;
    struct keel_operation *submitted;
    bool closing, stopping;
};

static struct mail take_mail(struct keel_endpoint *endpoint)
{
    keel_mutex_lock(&endpoint->lock);
    struct mail mail = {
        .submitted = endpoint->submitted, .closing = endpoint->closing, .stopping = endpoint->stopping};
    if (endpoint->opening)
        mail.opened = endpoint->group;
    endpoint->opening = false;
    endpoint->submitted = NULL;
    endpoint->submitted_last = &endpoint->submitted;
    if (endpoint->woken) {
        uint64_t count;
        (void)!read(endpoint->wake_fd, &count, sizeof count);
        endpoint->woken = false;
    }
    keel_mutex_unlock(&endpoint->lock);
    return mail;
}

static void current_opened(struct keel_endpoint *endpoint, struct keel_group *group)
{
    endpoint->current = group;
    endpoint->seen_epoch = true;
    endpoint->current_epoch = group->epoch;
    group->waiting_last = &group->waiting;
    keel_session_group_opened(endpoint, group);
}

static void current_closing(struct keel_endpoint *endpoint)
{
    struct keel_group *group = endpoint->current;
    uint64_t now = keel_now_ns();
    if (group->close_ns == 0)
        keel_session_group_closing(group, now);
    if (!keel_session_group_closed(group, now))
        return;
    endpoint->current = NULL;
    keel_mutex_lock(&endpoint->lock);
    endpoint->closing = false;
    group->detached = true;
    keel_cond_broadcast(&endpoint->changed);
    keel_mutex_unlock(&endpoint->lock);
}

/* False when the endpoint is to stop. */
static bool mailbox(struct keel_endpoint *endpoint)
{
    struct mail mail = take_mail(endpoint);
    if (mail.opened != NULL)
        current_opened(endpoint, mail.opened);
    struct keel_operation *next;
    for (struct keel_operation *at = mail.submitted; at != NULL; at = next) {
        next = at->next_submitted;
        keel_flow_begin(at);
    }
    if (mail.closing)
        current_closing(endpoint);
    return !mail.stopping;
}

/* ---- the thread
 * -------------------------------------------------------------------------------------------- */

static void sleep_until_due(struct keel_endpoint *endpoint)
{
    if (!keel_lines_may_sleep(&endpoint->lines))
        return;
    struct pollfd fds[KEEL_LINES_DESCRIPTORS_MAX + 1];
    uint32_t count = keel_lines_descriptors(&endpoint->lines, fds);
    fds[count++] = (struct pollfd){.fd = endpoint->wake_fd, .events = POLLIN};
    (void)poll(fds, count, keel_remaining_poll_ms(endpoint->tick_ns));
}

static void *progress(void *argument)
{
    struct keel_endpoint *endpoint = argument;
    for (;;) {
        keel_lines_progress(&endpoint->lines);
        if (!mailbox(endpoint))
            return NULL;
        uint64_t now = keel_now_ns();
        if (now >= endpoint->tick_ns) {
            endpoint->tick_ns = KEEL_NEVER;
            keel_session_tick(endpoint, now);
        }
        sleep_until_due(endpoint);
    }
}

/* ---- opening and closing
 * ------------------------------------------------------------------------------------- */

static void endpoint_free(struct keel_endpoint *endpoint)
{
    if (endpoint->wake_fd >= 0)
        close(endpoint->wake_fd);
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
    KEEL_TRY(keel_lines_open(&endpoint->lines, config, &keel_session_calls, endpoint));
    enum keel_status status = keel_lines_address(&endpoint->lines, &endpoint->address);
    if (status == KEEL_OK)
        status = keel_thread_create(&endpoint->thread, "keel-fabric", progress, endpoint);
    if (status != KEEL_OK)
        keel_lines_close(&endpoint->lines);
    return status;
}

enum keel_status keel_endpoint_open(const struct keel_endpoint_config *config, struct keel_endpoint **out)
{
    struct keel_endpoint *endpoint;
    KEEL_TRY(keel_alloc(1, sizeof *endpoint, &endpoint));
    keel_mutex_init(&endpoint->lock);
    keel_cond_init(&endpoint->changed);
    endpoint->tick_ns = KEEL_NEVER;
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
    keel_lines_close(&endpoint->lines);
    endpoint_free(endpoint);
}

void keel_endpoint_stats(const struct keel_endpoint *endpoint, struct keel_transport_stats *out)
{
    *out = (struct keel_transport_stats){.stale_dropped = atomic_load(&endpoint->stale_dropped),
                                         .connections = atomic_load(&endpoint->connections)};
    keel_lines_count(&endpoint->lines, out);
}
