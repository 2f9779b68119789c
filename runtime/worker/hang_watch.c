/* hang_watch.c - limits from measured times, and ticks that count. */
#include "hang_watch.h"
#include <stddef.h>
#include <string.h>

const char *keel_hang_section_name(enum keel_hang_section section)
{
    static const char *const names[] = {"the first run of the kernels",
                                        "a copy or digest of the weights",
                                        "the gradients of a step",
                                        "the update of the weights",
                                        "an evaluation",
                                        "a golden operation",
                                        "a copy for a snapshot"};
    return names[section];
}

void keel_hang_watch_init(struct keel_hang_watch *watch, uint64_t timeout_ns, uint64_t stall_ns,
                          uint64_t tick_ns, uint64_t now_ns)
{
    memset(watch, 0, sizeof *watch);
    watch->timeout_ns = timeout_ns;
    watch->stall_ns = stall_ns;
    watch->tick_ns = tick_ns;
    watch->ticked_ns = now_ns;
}

void keel_hang_enter(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t now_ns)
{
    if (watch == NULL)
        return;
    watch->timers[section].entered_ns = now_ns;
    atomic_store(&watch->timers[section].counted_ns, 0);
    atomic_fetch_add(&watch->timers[section].entries, 1);
}

/* Time in which the process was stopped was not the device's: beyond what the ticks counted nothing is kept,
 * but for the tick that had begun. */
void keel_hang_leave(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t now_ns)
{
    if (watch == NULL)
        return;
    struct keel_hang_timer *timer = &watch->timers[section];
    uint64_t took_ns = now_ns - timer->entered_ns;
    uint64_t most_ns = atomic_load(&timer->counted_ns) + 2 * KEEL_HANG_TICK_MAX * watch->tick_ns;
    if (took_ns > most_ns)
        took_ns = most_ns;
    if (took_ns > atomic_load(&timer->longest_ns))
        atomic_store(&timer->longest_ns, took_ns);
    atomic_fetch_add(&timer->entries, 1);
}

void keel_hang_expect(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t ns)
{
    if (watch != NULL)
        atomic_store(&watch->timers[section].expected_ns, ns);
}

void keel_hang_trust(struct keel_hang_watch *watch, enum keel_hang_section section)
{
    if (watch != NULL)
        atomic_store(&watch->timers[section].trusted, true);
}

void keel_hang_distrust(struct keel_hang_watch *watch, enum keel_hang_section section)
{
    if (watch != NULL)
        atomic_store(&watch->timers[section].trusted, false);
}

static uint64_t limit_of(struct keel_hang_watch *watch, enum keel_hang_section section)
{
    struct keel_hang_timer *timer = &watch->timers[section];
    uint64_t warm_ns = atomic_load(&watch->timers[KEEL_HANG_WARM].longest_ns);
    uint64_t least_ns = watch->timeout_ns, limit_ns = KEEL_HANG_FACTOR * atomic_load(&timer->longest_ns);
    if (section == KEEL_HANG_WARM)
        return watch->stall_ns;
    if (!atomic_load(&timer->trusted))
        least_ns = KEEL_HANG_FIRST_TIMEOUTS * watch->timeout_ns + KEEL_HANG_FIRST_WARMS * warm_ns +
                   KEEL_HANG_FACTOR * atomic_load(&timer->expected_ns);
    if (limit_ns < least_ns)
        limit_ns = least_ns;
    if (section == KEEL_HANG_CAPTURE) {
        uint64_t before_ns = limit_of(watch, KEEL_HANG_COMPUTE);
        limit_ns = limit_ns < before_ns ? before_ns : limit_ns;
    }
    return limit_ns < watch->stall_ns ? limit_ns : watch->stall_ns;
}

bool keel_hang_watch_tick(struct keel_hang_watch *watch, uint64_t now_ns, struct keel_hang *out)
{
    const uint64_t most_ns = KEEL_HANG_TICK_MAX * watch->tick_ns;
    uint64_t passed_ns = now_ns - watch->ticked_ns, oldest_ns = 0;
    bool found = false;
    watch->ticked_ns = now_ns;
    if (passed_ns > most_ns)
        passed_ns = most_ns;
    for (int i = 0; i < KEEL_HANG_SECTIONS; i++) {
        const enum keel_hang_section section = (enum keel_hang_section)i;
        struct keel_hang_timer *timer = &watch->timers[i];
        uint64_t entries = atomic_load(&timer->entries);
        bool stayed = entries % 2 == 1 && entries == timer->seen;
        timer->seen = entries;
        if (!stayed)
            continue;
        uint64_t waited_ns = atomic_fetch_add(&timer->counted_ns, passed_ns) + passed_ns;
        uint64_t limit_ns = limit_of(watch, section);
        found = found || waited_ns > limit_ns;
        if (waited_ns < oldest_ns)
            continue;
        oldest_ns =
            waited_ns; /* what hung first is the cause: it may have a longer limit than what waits for it */
        *out = (struct keel_hang){.section = section,
                                  .waited_ns = waited_ns,
                                  .limit_ns = limit_ns,
                                  .longest_ns = atomic_load(&timer->longest_ns)};
    }
    return found;
}
