/* health_machine.h - the states of a device's health as a pure function; private to hal.
 *
 * No lock, no clock, no text: device_health.c has those. The transitions are stated in keel/health.h. */
#ifndef KEEL_HEALTH_MACHINE_H
#define KEEL_HEALTH_MACHINE_H

#include <keel/health.h>

struct keel_health_machine {
    enum keel_health health;
    enum keel_health before; /* of SUSPECT: where progress leads back to, OK or DEGRADED */
    bool doubted;            /* SUSPECT or HUNG by waits; what follows says since when and on what */
    uint64_t doubt_ns;       /* when the first of those waits began */
    uint32_t queue;          /* what it waited for: progress is this command, */
    uint64_t sequence;       /* or a later one, of this queue */
};

/* Each is true when the health changed. */

/* A wait for command `sequence` of `queue` began at began_ns and passed its deadline at now_ns. */
bool keel_health_late(struct keel_health_machine *machine, uint32_t queue, uint64_t sequence,
                      uint64_t began_ns, uint64_t now_ns, uint64_t hung_after_ns);
/* Command `sequence` of `queue` is complete. */
bool keel_health_progress(struct keel_health_machine *machine, uint32_t queue, uint64_t sequence);
/* A command failed. */
bool keel_health_fail(struct keel_health_machine *machine);
/* Somebody says so: false in *out_allowed when there is no such transition. */
bool keel_health_say(struct keel_health_machine *machine, enum keel_health health, bool *out_allowed);

/* No new command, no new object. */
bool keel_health_refuses(enum keel_health health);

#endif
