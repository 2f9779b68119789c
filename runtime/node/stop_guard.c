/* stop_guard.c - see stop_guard.h. */
#include "stop_guard.h"

#include <keel/clock.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A loop that turns has taken the signal by then. */
static const uint64_t take_ns = KEEL_NS_PER_S / 2;

static bool waits(int fd, int timeout_ms)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return poll(&ready, 1, timeout_ms) > 0;
}

/* Whether the guard's work is over, asked until then. */
static bool is_over_by(struct keel_stop_guard *guard, uint64_t deadline_ns)
{
    eventfd_t woken;
    while (!atomic_load(&guard->over) && keel_now_ns() < deadline_ns)
        if (waits(guard->wake_fd, keel_remaining_poll_ms(deadline_ns)))
            (void)eventfd_read(guard->wake_fd, &woken);
    return atomic_load(&guard->over);
}

/* A signal waits or was taken, or it is over. Where the loop takes one before this thread looks, nothing
 * waits: so it wakes this thread too. */
static void await_signal(struct keel_stop_guard *guard)
{
    eventfd_t woken;
    struct pollfd fds[2] = {{.fd = guard->wake_fd, .events = POLLIN},
                            {.fd = guard->signal_fd, .events = POLLIN}};
    while (!atomic_load(&guard->over) && !atomic_load(&guard->taken)) {
        if (poll(fds, 2, -1) <= 0)
            continue; /* EINTR */
        if (fds[0].revents == 0)
            return;
        (void)eventfd_read(guard->wake_fd, &woken);
    }
}

static void *work(void *argument)
{
    struct keel_stop_guard *guard = argument;
    for (;;) {
        await_signal(guard);
        const uint64_t still_until_ns = atomic_load(&guard->turn) + guard->still_ns;
        const uint64_t soonest_ns = keel_deadline_after_ns(take_ns);
        if (is_over_by(guard, still_until_ns > soonest_ns ? still_until_ns : soonest_ns))
            return NULL;
        const uint64_t turn = atomic_load(&guard->turn);
        if (keel_now_ns() - turn < guard->still_ns)
            continue;
        /* Where all of the process stood still it moves again now. */
        if (is_over_by(guard, keel_deadline_after_ns(take_ns)))
            return NULL;
        if (atomic_load(&guard->turn) == turn && (atomic_load(&guard->taken) || waits(guard->signal_fd, 0)))
            guard->give_up(guard->context, keel_now_ns() - turn);
    }
}

void keel_stop_guard_begin(struct keel_stop_guard *guard)
{
    atomic_store(&guard->turn, keel_now_ns());
    atomic_store(&guard->over, false);
    guard->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    guard->runs =
        guard->wake_fd >= 0 && keel_thread_create(&guard->thread, "keel-stop", work, guard) == KEEL_OK;
    if (!guard->runs && guard->wake_fd >= 0)
        close(guard->wake_fd);
}

void keel_stop_guard_take(struct keel_stop_guard *guard)
{
    atomic_store(&guard->taken, true);
    if (guard->runs)
        (void)eventfd_write(guard->wake_fd, 1);
}

void keel_stop_guard_end(struct keel_stop_guard *guard)
{
    if (!guard->runs)
        return;
    atomic_store(&guard->over, true);
    (void)eventfd_write(guard->wake_fd, 1);
    keel_thread_join(&guard->thread);
    close(guard->wake_fd);
    guard->runs = false;
}
