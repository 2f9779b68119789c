/* incident.c - see incident.h. */
#include "incident.h"
#include <string.h>

const char *keel_incident_part_name(enum keel_incident_part part)
{
    static const char *const names[] = {
#define KEEL_INCIDENT_NAME(name, text) text,
        KEEL_INCIDENT_PART_TABLE(KEEL_INCIDENT_NAME)
#undef KEEL_INCIDENT_NAME
    };
    KEEL_ASSERT(part < KEEL_INCIDENT_PART_COUNT);
    return names[part];
}

static bool is_in(const struct keel_view *view, const struct keel_member *member)
{
    for (uint32_t i = 0; i < view->member_count; i++) {
        const struct keel_member *other = &view->members[i];
        if (member->node == other->node && member->local == other->local &&
            member->incarnation == other->incarnation)
            return true;
    }
    return false;
}

uint32_t keel_incident_find_lost(const struct keel_view *old_view, const struct keel_view *new_view,
                                 struct keel_member *out, uint32_t *out_count)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < old_view->member_count; i++) {
        const struct keel_member *member = &old_view->members[i];
        if (member->spare || is_in(new_view, member))
            continue;
        lost++;
        if (out == NULL)
            continue;
        if (*out_count < KEEL_INCIDENT_LOST_MAX)
            out[*out_count] = *member;
        ++*out_count;
    }
    return lost;
}

/* The last sign of life before the evidence; a rank that took part in the last commit was alive then. Whoever
 * was silent or stuck was so for the timeout, whatever its agent said of its process. */
static uint64_t last_alive(const struct keel_incident_loss *loss)
{
    uint64_t alive_ns = loss->alive_ns;
    if (loss->drill_ns != 0)
        return loss->drill_ns;
    if (loss->cause != KEEL_CAUSE_EXIT) {
        uint64_t silent_ns = loss->evidence_ns > loss->silence_ns ? loss->evidence_ns - loss->silence_ns : 0;
        alive_ns = alive_ns != 0 && alive_ns < silent_ns ? alive_ns : silent_ns;
    }
    return alive_ns > loss->commit_ns ? alive_ns : loss->commit_ns;
}

void keel_incident_begin(struct keel_incident *incident, const struct keel_incident_loss *loss)
{
    uint64_t failure_ns = last_alive(loss);
    if (!incident->open)
        *incident = (struct keel_incident){.open = true,
                                           .injected = loss->drill_ns != 0,
                                           .commit_ns = loss->commit_ns,
                                           .failure_ns = failure_ns,
                                           .evidence_ns = loss->evidence_ns};
    incident->cause = loss->cause;
    keel_incident_find_lost(loss->old_view, loss->new_view, incident->lost, &incident->lost_count);
    keel_incident_view(incident, loss->new_view->epoch, loss->now_ns);
}

void keel_incident_view(struct keel_incident *incident, uint64_t epoch, uint64_t now_ns)
{
    incident->epoch = epoch;
    if (incident->resumed_ns == 0) /* who joins while steps are run again interrupts nothing */
        incident->view_ns = now_ns;
}

void keel_incident_resumed(struct keel_incident *incident, uint64_t step, uint64_t now_ns)
{
    incident->resumed_ns = now_ns;
    incident->resumed_step = step;
}

/* Give `part` the time up to `end_ns`, or nothing when that lies before what was given already. */
static void up_to(uint64_t out_ns[], enum keel_incident_part part, uint64_t *at_ns, uint64_t end_ns,
                  uint64_t now_ns)
{
    uint64_t end = end_ns < now_ns ? end_ns : now_ns;
    if (end <= *at_ns)
        return;
    out_ns[part] = end - *at_ns;
    *at_ns = end;
}

bool keel_incident_commit(struct keel_incident *incident, const struct keel_step_record *record,
                          uint64_t now_ns, uint64_t out_ns[KEEL_INCIDENT_PART_COUNT], uint64_t *out_total_ns)
{
    if (!incident->open)
        return false;
    if (record->epoch < incident->epoch) { /* the survivors finished a step before they heard of the loss */
        incident->commit_ns = now_ns < incident->view_ns ? now_ns : incident->view_ns;
        return false;
    }
    memset(out_ns, 0, KEEL_INCIDENT_PART_COUNT * sizeof out_ns[0]);
    uint64_t at_ns = incident->commit_ns;
    up_to(out_ns, KEEL_INCIDENT_BEFORE, &at_ns, incident->failure_ns, now_ns);
    up_to(out_ns, KEEL_INCIDENT_DETECT, &at_ns, incident->evidence_ns, now_ns);
    up_to(out_ns, KEEL_INCIDENT_RECONFIGURE, &at_ns, incident->view_ns, now_ns);
    bool restored = incident->resumed_ns != 0, first_of_view = record->sync_ns > 0;
    if (restored)
        up_to(out_ns, KEEL_INCIDENT_RESTORE, &at_ns, incident->resumed_ns, now_ns);
    if (restored && record->step > incident->resumed_step + 1)
        up_to(out_ns, KEEL_INCIDENT_AGAIN, &at_ns, now_ns, now_ns);
    else if (first_of_view) {
        if (!restored) /* of which restoring is a part */
            up_to(out_ns, KEEL_INCIDENT_SYNC, &at_ns, at_ns + record->sync_ns, now_ns);
        up_to(out_ns, KEEL_INCIDENT_HEAL, &at_ns, at_ns + record->heal_ns, now_ns);
        up_to(out_ns, KEEL_INCIDENT_REDO, &at_ns, at_ns + record->redo_ns, now_ns);
        up_to(out_ns, KEEL_INCIDENT_WAIT, &at_ns, at_ns + record->exposed_comm_ns, now_ns);
    }
    up_to(out_ns, KEEL_INCIDENT_OTHER, &at_ns, now_ns, now_ns);
    *out_total_ns = at_ns - incident->commit_ns;
    incident->open = false;
    return true;
}
