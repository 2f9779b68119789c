/* health_machine.c - which health follows which, and by what.
 *
 *     OK, DEGRADED --late--> SUSPECT --late, long enough--> HUNG --progress--> DEGRADED
 *          ^                    |
 *          +------progress------+
 *
 * Invariants: (1) doubted exactly in SUSPECT and HUNG that waits have led to; (2) LOST ends in LOST or
 * QUARANTINED; (3) HUNG ends only by progress, or in LOST or QUARANTINED. */
#include "health_machine.h"

static bool become(struct keel_health_machine *machine, enum keel_health health)
{
    bool changed = machine->health != health;
    machine->health = health;
    if (health != KEEL_HEALTH_SUSPECT && health != KEEL_HEALTH_HUNG)
        machine->doubted = false;
    return changed;
}

bool keel_health_refuses(enum keel_health health)
{
    return health == KEEL_HEALTH_LOST || health == KEEL_HEALTH_QUARANTINED;
}

bool keel_health_late(struct keel_health_machine *machine, uint32_t queue, uint64_t sequence,
                      uint64_t began_ns, uint64_t now_ns, uint64_t hung_after_ns)
{
    if (keel_health_refuses(machine->health))
        return false;
    if (!machine->doubted) {
        machine->doubted = true;
        machine->doubt_ns = began_ns;
        machine->queue = queue;
        machine->sequence = sequence;
        if (machine->health != KEEL_HEALTH_SUSPECT)
            machine->before = machine->health;
    }
    if (machine->health == KEEL_HEALTH_HUNG || now_ns - machine->doubt_ns >= hung_after_ns)
        return become(machine, KEEL_HEALTH_HUNG);
    return become(machine, KEEL_HEALTH_SUSPECT);
}

bool keel_health_progress(struct keel_health_machine *machine, uint32_t queue, uint64_t sequence)
{
    if (!machine->doubted || queue != machine->queue || sequence < machine->sequence)
        return false;
    return become(machine, machine->health == KEEL_HEALTH_HUNG ? KEEL_HEALTH_DEGRADED : machine->before);
}

bool keel_health_fail(struct keel_health_machine *machine)
{
    machine->before = KEEL_HEALTH_DEGRADED;
    return machine->health == KEEL_HEALTH_OK && become(machine, KEEL_HEALTH_DEGRADED);
}

bool keel_health_say(struct keel_health_machine *machine, enum keel_health health, bool *out_allowed)
{
    enum keel_health now = machine->health;
    bool stuck = now == KEEL_HEALTH_LOST || now == KEEL_HEALTH_HUNG;
    bool allowed = stuck ? keel_health_refuses(health) : health != KEEL_HEALTH_HUNG;
    *out_allowed = allowed;
    if (!allowed)
        return false;
    if (health == KEEL_HEALTH_SUSPECT && now != KEEL_HEALTH_SUSPECT)
        machine->before = now == KEEL_HEALTH_OK ? KEEL_HEALTH_OK : KEEL_HEALTH_DEGRADED;
    return become(machine, health);
}
