/* health_machine.h - the states of a device's health as a pure function; private to hal.
 *
 * No lock, no clock, no text: device_health.c has those. The transitions are stated in keel/health.h. */
#ifndef KEEL_HEALTH_MACHINE_H
#define KEEL_HEALTH_MACHINE_H

#include <keel/health.h>

/* What of one queue was waited for in vain. Zeroed: nothing. */
struct keel_health_doubt {
    uint32_t round;    /* it counts while this is the machine's */
    uint64_t sequence; /* progress is this command, or a later one */
};

struct keel_health_machine {
    enum keel_health health;
    enum keel_health before; /* of SUSPECT: where progress leads back to, OK or DEGRADED */
    uint32_t doubts;         /* queues that are; SUSPECT or HUNG by waits while there are any */
    uint32_t rounds;         /* times that all doubts were over: doubts of this round bear this plus one */
    uint64_t doubt_ns;       /* when the first wait in vain began since anything came back;
                                UINT64_MAX: none did */
};

/* Each is true when the health changed. */

/* A wait for command `sequence` of the queue of `doubt` began at began_ns and passed its deadline at now_ns.
 */
bool keel_health_late(struct keel_health_machine *machine, struct keel_health_doubt *doubt, uint64_t sequence,
                      uint64_t began_ns, uint64_t now_ns, uint64_t hung_after_ns);
/* Command `sequence` of that queue is complete. */
bool keel_health_progress(struct keel_health_machine *machine, struct keel_health_doubt *doubt,
                          uint64_t sequence);
/* A command failed. */
bool keel_health_fail(struct keel_health_machine *machine);
/* Somebody says so: false in *out_allowed when there is no such transition. */
bool keel_health_say(struct keel_health_machine *machine, enum keel_health health, bool *out_allowed);

/* No new command, no new object. */
bool keel_health_refuses(enum keel_health health);

#endif
