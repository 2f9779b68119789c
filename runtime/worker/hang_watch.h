/* hang_watch.h - detects a hung device after seconds instead of after the stall limit.
 *
 * The thread that drives the device marks the begin and end of each section of the step. Another thread (the
 * inbox's) checks at each heartbeat how long the current section has lasted. So a hang is found wherever the
 * driver blocks: in a launch, in a wait, or in a call without a deadline.
 *
 * The limit of a section follows what was measured:
 *
 *     limit = 20 x longest time of that section so far, but at least the user's timeout and at most the
 *             stall limit
 *
 * and before a section was measured, or where a launch may compile, it is 5 timeouts, 8 times what the
 * warm-up took, which compiled everything, and 20 times what its measure makes the section expect. A slow
 * device is not a hung one: each time that it is slower the limit grows, and a jump by 20 is far above what a
 * loaded machine makes of a step.
 *
 * Time is counted in ticks. A late tick counts as two ticks at most: when the machine is overloaded or the
 * process was stopped, the watching thread did not run either, and the delay is not charged to the device.
 *
 * Threads. A section belongs to one thread at a time; keel_hang_watch_tick to one thread. NULL watches
 * nothing. */
#ifndef KEEL_HANG_WATCH_H
#define KEEL_HANG_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum keel_hang_section {
    KEEL_HANG_WARM,    /* set-up: kernels are compiled. Never measured: the stall limit holds */
    KEEL_HANG_STATE,   /* digest, healing, restoring: rare, of any size. As a section not yet measured */
    KEEL_HANG_COMPUTE, /* one microbatch, or one wait for gradients */
    KEEL_HANG_UPDATE,
    KEEL_HANG_EVAL,
    KEEL_HANG_SCREEN,  /* one golden operation */
    KEEL_HANG_CAPTURE, /* one copy of a snapshot; it may wait behind COMPUTE, whose limit it has at least */
    KEEL_HANG_SECTIONS
};

enum {
    KEEL_HANG_FACTOR = 20,
    KEEL_HANG_FIRST_TIMEOUTS = 5,
    KEEL_HANG_FIRST_WARMS = 8,
    KEEL_HANG_TICK_MAX = 2 /* so many ticks one tick counts for at most */
};

struct keel_hang_timer {
    atomic_uint_fast64_t entries;     /* times entered and left: odd while inside */
    atomic_uint_fast64_t counted_ns;  /* so long inside, as the ticks count */
    atomic_uint_fast64_t longest_ns;  /* of all that came back; 0: none has */
    atomic_uint_fast64_t expected_ns; /* by the warm-up's measure; 0: it has none */
    atomic_bool trusted;              /* longest_ns says how long it takes */
    uint64_t entered_ns;              /* of the thread inside */
    uint64_t seen;                    /* entries at the last tick; of the thread that ticks */
};

struct keel_hang_watch {
    uint64_t timeout_ns, stall_ns, tick_ns;
    uint64_t ticked_ns; /* of the thread that ticks */
    struct keel_hang_timer timers[KEEL_HANG_SECTIONS];
};

/* What does not come back. */
struct keel_hang {
    enum keel_hang_section section;
    uint64_t waited_ns, limit_ns, longest_ns;
};

/* tick_ns: how far apart the ticks are meant to be. stall_ns: no limit is above it. */
void keel_hang_watch_init(struct keel_hang_watch *watch, uint64_t timeout_ns, uint64_t stall_ns,
                          uint64_t tick_ns, uint64_t now_ns);

/* Around what talks to the device; sections do not nest in themselves. */
void keel_hang_enter(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t now_ns);
void keel_hang_leave(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t now_ns);
/* So long the section will take, as the warm-up measured it. */
void keel_hang_expect(struct keel_hang_watch *watch, enum keel_hang_section section, uint64_t ns);
/* What was measured of a section now holds: all of it ran once. */
void keel_hang_trust(struct keel_hang_watch *watch, enum keel_hang_section section);
/* What comes next there may compile kernels: no longer so, until trusted again. */
void keel_hang_distrust(struct keel_hang_watch *watch, enum keel_hang_section section);

/* Look. True when a section has been inside for longer than its limit; then *out says which has been inside
 * longest: what waits for it may have the shorter limit. */
bool keel_hang_watch_tick(struct keel_hang_watch *watch, uint64_t now_ns, struct keel_hang *out);

/* "the gradients of a step": static. */
const char *keel_hang_section_name(enum keel_hang_section section);

#endif
