/* health_machine.c - which health follows which, and by what.
 *
 *     OK, DEGRADED --late--> SUSPECT --late, long enough--> HUNG --progress--> DEGRADED
 *          ^                    |
 *          +------progress------+
 *
 * Progress is that of every queue in doubt: one that comes back says nothing of another.
 *
 * Invariants: (1) doubts exactly in SUSPECT and HUNG that waits have led to; (2) LOST ends in LOST or
 * QUARANTINED; (3) HUNG ends only by progress, or in LOST or QUARANTINED. */
#include "health_machine.h"

static bool become(struct keel_health_machine *machine, enum keel_health health)
{
    KEEL_ASSERT(machine->health != KEEL_HEALTH_LOST || keel_health_refuses(health)); /* invariant 2 */
    bool changed = machine->health != health;
    machine->health = health;
    if (machine->doubts > 0 && health != KEEL_HEALTH_SUSPECT && health != KEEL_HEALTH_HUNG) {
        machine->doubts = 0;
        machine->rounds++;
    }
    return changed;
}

bool keel_health_refuses(enum keel_health health)
{
    return health == KEEL_HEALTH_LOST || health == KEEL_HEALTH_QUARANTINED;
}

bool keel_health_late(struct keel_health_machine *machine, struct keel_health_doubt *doubt, uint64_t sequence,
                      uint64_t began_ns, uint64_t now_ns, uint64_t hung_after_ns)
{
    if (keel_health_refuses(machine->health))
        return false;
    if (machine->doubts == 0 && machine->health != KEEL_HEALTH_SUSPECT)
        machine->before = machine->health;
    if (machine->doubts == 0 || machine->doubt_ns == UINT64_MAX)
        machine->doubt_ns = began_ns;
    if (doubt->round != machine->rounds + 1) {
        *doubt = (struct keel_health_doubt){.round = machine->rounds + 1, .sequence = sequence};
        machine->doubts++;
    }
    if (machine->health == KEEL_HEALTH_HUNG || now_ns - machine->doubt_ns >= hung_after_ns)
        return become(machine, KEEL_HEALTH_HUNG);
    return become(machine, KEEL_HEALTH_SUSPECT);
}

bool keel_health_progress(struct keel_health_machine *machine, struct keel_health_doubt *doubt,
                          uint64_t sequence)
{
    if (machine->doubts == 0 || doubt->round != machine->rounds + 1 || sequence < doubt->sequence)
        return false;
    KEEL_ASSERT(machine->health == KEEL_HEALTH_SUSPECT || machine->health == KEEL_HEALTH_HUNG); /* 1 */
    doubt->round = 0;
    machine->doubt_ns = UINT64_MAX;
    if (machine->doubts > 1) {
        machine->doubts--;
        return false;
    }
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
