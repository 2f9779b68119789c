/* hang_analysis.c - the judgement of hang_analysis.h. */
#include "hang_analysis.h"
#include "schedule.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

const char *keel_hang_analysis_state_text(enum keel_hang_analysis_state state)
{
    static const char *const texts[KEEL_HANG_ANALYSIS_STATE_COUNT] = {
        "is dead",      "is stopped",       "has not begun", "left no recording here",
        "gave up with", "closed its group", "is at work",    "waits itself",
        "is done"};
    return (uint32_t)state < KEEL_HANG_ANALYSIS_STATE_COUNT ? texts[state] : "?";
}

/* ---- groups and their ranks ---------------------------------------------------------------------------- */

/* The group of a record is among the groups. */
static enum keel_status add_group(struct keel_hang_analysis *who, const struct keel_record_group *record)
{
    for (size_t k = 0; k < who->group_count; k++)
        if (who->groups[k].identity == record->identity && who->groups[k].rank_count == record->rank_count)
            return KEEL_OK;
    KEEL_TRY(keel_grow(&who->groups, &who->group_capacity, who->group_count + 1, sizeof *who->groups));
    struct keel_hang_analysis_group *group = &who->groups[who->group_count];
    *group = (struct keel_hang_analysis_group){
        .identity = record->identity, .epoch = record->epoch, .rank_count = record->rank_count};
    KEEL_TRY(keel_alloc(record->rank_count, sizeof *group->ranks, &group->ranks));
    for (uint32_t rank = 0; rank < record->rank_count; rank++)
        group->ranks[rank].state = KEEL_HANG_ANALYSIS_UNSEEN;
    who->group_count++;
    return KEEL_OK;
}

static const struct keel_record_group *entry_of(const struct keel_recording *recording,
                                                const struct keel_hang_analysis_group *group,
                                                uint16_t *out_index)
{
    for (uint32_t k = 0; k < KEEL_RECORD_GROUPS; k++) {
        const struct keel_record_group *entry = &recording->record.groups[k];
        if (entry->state != KEEL_RECORD_FREE && entry->identity == group->identity &&
            entry->rank_count == group->rank_count) {
            *out_index = (uint16_t)k;
            return entry;
        }
    }
    return NULL;
}

/* Every group that somebody alive has open; the dead alone keep one open only when all of it are dead. */
static bool has_living(const struct keel_hang_analysis_group *group)
{
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (group->ranks[rank].recording != NULL && group->ranks[rank].recording->life != KEEL_LIFE_DEAD)
            return true;
    return false;
}

static enum keel_status gather(const struct keel_recordings *recordings, struct keel_hang_analysis *who)
{
    for (uint32_t r = 0; r < recordings->count; r++)
        for (uint32_t k = 0; k < KEEL_RECORD_GROUPS; k++) {
            const struct keel_record_group *entry = &recordings->at[r]->record.groups[k];
            if (entry->state == KEEL_RECORD_LIVE)
                KEEL_TRY(add_group(who, entry));
        }
    for (size_t g = 0; g < who->group_count; g++)
        for (uint32_t r = 0; r < recordings->count; r++) {
            uint16_t index;
            const struct keel_record_group *entry = entry_of(recordings->at[r], &who->groups[g], &index);
            if (entry != NULL)
                who->groups[g].ranks[entry->rank].recording = recordings->at[r];
        }
    return KEEL_OK;
}

/* ---- the operation ------------------------------------------------------------------------------------- */

/* An index is used again by the next group. */
static bool belongs(const struct keel_recording *recording, uint16_t index, uint16_t its_group,
                    uint64_t at_ns)
{
    return its_group == index && at_ns >= recording->record.groups[index].opened_ns;
}

static bool is_point_to_point(const struct keel_record_operation *operation)
{
    return keel_kind_is_pair((enum keel_collective_kind)operation->kind);
}

static bool is_same(const struct keel_record_operation *one, const struct keel_record_operation *other)
{
    if (one->sequence != other->sequence)
        return false;
    return is_point_to_point(one) == is_point_to_point(other);
}

/* Monotonic clocks of two machines have nothing in common; wall clocks nearly agree. */
static uint64_t wall_of(const struct keel_recording *recording, uint64_t at_ns)
{
    return recording->record.header.opened_wall_ns + (at_ns - recording->record.header.opened_ns);
}

uint64_t keel_hang_analysis_age_ns(const struct keel_recording *recording, uint64_t at_ns)
{
    bool here = recording->life != KEEL_LIFE_UNKNOWN;
    uint64_t now = here ? keel_now_ns() : keel_wall_ns();
    uint64_t then = here ? at_ns : wall_of(recording, at_ns);
    return now > then ? now - then : 0;
}

/* The oldest that a living rank (or, where none lives, any) has begun and not ended. */
static void choose_operation(struct keel_hang_analysis_group *group)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const struct keel_recording *recording = group->ranks[rank].recording;
        uint16_t index;
        if (recording == NULL || (group->living && recording->life == KEEL_LIFE_DEAD) ||
            entry_of(recording, group, &index) == NULL)
            continue;
        uint32_t in_flight = 0;
        for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS; k++) {
            const struct keel_record_operation *operation = &recording->record.operations[k];
            if (operation->state != KEEL_RECORD_LIVE ||
                !belongs(recording, index, operation->group, operation->begun_ns))
                continue;
            in_flight++;
            if (wall_of(recording, operation->begun_ns) < oldest) {
                oldest = wall_of(recording, operation->begun_ns);
                group->operation = operation;
                group->owner = rank;
            }
        }
        if (in_flight > group->in_flight)
            group->in_flight = in_flight;
    }
}

/* Of a rank what it recorded about the operation, the newest if there are several; and its last event. */
static void look_up(const struct keel_hang_analysis_group *group, struct keel_hang_analysis_rank *rank)
{
    uint16_t index;
    const struct keel_record *record = &rank->recording->record;
    if (entry_of(rank->recording, group, &index) == NULL)
        return;
    for (uint32_t k = 0; k < KEEL_RECORD_OPERATIONS && group->operation != NULL; k++) {
        const struct keel_record_operation *operation = &record->operations[k];
        if (operation->state != KEEL_RECORD_FREE &&
            belongs(rank->recording, index, operation->group, operation->begun_ns) &&
            is_same(operation, group->operation) &&
            (rank->operation == NULL || operation->begun_ns > rank->operation->begun_ns))
            rank->operation = operation;
    }
    for (uint64_t k = record->header.event_total; k > rank->recording->event_first && rank->last == NULL; k--)
        if (belongs(rank->recording, index, record->events[(k - 1) % KEEL_RECORD_EVENTS].group,
                    record->events[(k - 1) % KEEL_RECORD_EVENTS].at_ns))
            rank->last = &record->events[(k - 1) % KEEL_RECORD_EVENTS];
}

static enum keel_hang_analysis_state state_of(const struct keel_hang_analysis_group *group,
                                              const struct keel_hang_analysis_rank *rank)
{
    const struct keel_record_operation *operation = rank->operation;
    uint16_t index;
    if (rank->recording == NULL)
        return KEEL_HANG_ANALYSIS_UNSEEN;
    const struct keel_record_group *entry = entry_of(rank->recording, group, &index);
    bool over = operation != NULL && operation->state == KEEL_RECORD_OVER;
    if (over && operation->status == KEEL_OK)
        return KEEL_HANG_ANALYSIS_DONE;
    if (rank->recording->life == KEEL_LIFE_DEAD)
        return KEEL_HANG_ANALYSIS_DEAD;
    if (entry->state == KEEL_RECORD_OVER)
        return KEEL_HANG_ANALYSIS_LEFT;
    if (over)
        return KEEL_HANG_ANALYSIS_FAILED;
    if (rank->recording->life == KEEL_LIFE_STOPPED)
        return KEEL_HANG_ANALYSIS_STOPPED;
    if (operation == NULL)
        return KEEL_HANG_ANALYSIS_NOT_BEGUN;
    bool waits = operation->awaited_count > 0 && operation->want != KEEL_RECORD_WANT_NOTHING;
    return waits ? KEEL_HANG_ANALYSIS_WAITING : KEEL_HANG_ANALYSIS_WORKING;
}

/* ---- the pointers -------------------------------------------------------------------------------------- */

/* More may be awaited than have names in the recording: those without are then taken to be the ones that are
 * not on their way. */
static bool points_at(const struct keel_hang_analysis_group *group, uint32_t from, uint32_t target)
{
    const struct keel_hang_analysis_rank *rank = &group->ranks[from];
    const struct keel_record_operation *operation = rank->operation;
    if (rank->state != KEEL_HANG_ANALYSIS_WAITING)
        return false;
    if (operation->awaited_count > KEEL_RECORD_AWAITED &&
        group->ranks[target].state <= KEEL_HANG_ANALYSIS_UNSEEN)
        return true;
    for (uint32_t k = 0; k < operation->awaited_count && k < KEEL_RECORD_AWAITED; k++)
        if (operation->awaited[k] == target)
            return true;
    return false;
}

/* How many ranks reach `target` along pointers. `left` (of those that wait, who has not reached it yet) and
 * `queue` have room for all ranks. */
static uint32_t count_waiting_for(const struct keel_hang_analysis_group *group, uint32_t target,
                                  uint32_t *left, uint32_t *queue)
{
    uint32_t head = 0, tail = 0, left_count = 0;
    for (uint32_t rank = 0; rank < group->rank_count; rank++)
        if (rank != target && group->ranks[rank].state == KEEL_HANG_ANALYSIS_WAITING)
            left[left_count++] = rank;
    queue[tail++] = target;
    while (head < tail && left_count > 0) {
        uint32_t at = queue[head++], kept = 0;
        for (uint32_t k = 0; k < left_count; k++)
            if (points_at(group, left[k], at))
                queue[tail++] = left[k];
            else
                left[kept++] = left[k];
        left_count = kept;
    }
    return tail - 1;
}

static bool is_worse(const struct keel_hang_analysis_rank *one, const struct keel_hang_analysis_rank *other)
{
    if (one->waited_by != other->waited_by)
        return one->waited_by > other->waited_by;
    return one->state < other->state;
}

/* Keep the worst few, the worst first; of equals the lower rank. */
static void accuse(struct keel_hang_analysis_group *group, uint32_t rank)
{
    uint32_t at = group->culprit_count;
    while (at > 0 && is_worse(&group->ranks[rank], &group->ranks[group->culprits[at - 1]]))
        at--;
    if (at == KEEL_HANG_ANALYSIS_CULPRITS_MAX)
        return;
    if (group->culprit_count == KEEL_HANG_ANALYSIS_CULPRITS_MAX)
        group->culprit_count--;
    memmove(&group->culprits[at + 1], &group->culprits[at],
            (group->culprit_count - at) * sizeof group->culprits[0]);
    group->culprits[at] = rank;
    group->culprit_count++;
}

static enum keel_status follow(struct keel_hang_analysis_group *group)
{
    uint8_t *awaited;
    uint32_t *queue;
    KEEL_TRY(keel_alloc(group->rank_count, 2 * sizeof *queue + 1, &queue));
    uint32_t *left = queue + group->rank_count;
    awaited = (uint8_t *)(left + group->rank_count);
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const struct keel_record_operation *operation = group->ranks[rank].operation;
        if (group->ranks[rank].state != KEEL_HANG_ANALYSIS_WAITING)
            continue;
        group->waiting_count++;
        for (uint32_t k = 0; k < group->rank_count && operation->awaited_count > KEEL_RECORD_AWAITED; k++)
            awaited[k] |= group->ranks[k].state <= KEEL_HANG_ANALYSIS_UNSEEN;
        for (uint32_t k = 0; k < operation->awaited_count && k < KEEL_RECORD_AWAITED; k++)
            if (operation->awaited[k] < group->rank_count)
                awaited[operation->awaited[k]] = 1;
    }
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        enum keel_hang_analysis_state state = group->ranks[rank].state;
        if (state == KEEL_HANG_ANALYSIS_WAITING ||
            (awaited[rank] == 0 && state > KEEL_HANG_ANALYSIS_NOT_BEGUN))
            continue;
        if (awaited[rank] != 0)
            group->ranks[rank].waited_by = count_waiting_for(group, rank, left, queue);
        accuse(group, rank);
    }
    keel_free(queue);
    return KEEL_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* Point-to-point: the others have nothing to do with it. */
static bool takes_part(const struct keel_hang_analysis_group *group, uint32_t rank)
{
    if (!is_point_to_point(group->operation))
        return true;
    return rank == group->owner || rank == group->operation->root;
}

static enum keel_status judge_group(struct keel_hang_analysis_group *group)
{
    group->living = has_living(group);
    choose_operation(group);
    group->segment = UINT32_MAX;
    for (uint32_t k = 0; k < group->rank_count; k++) {
        struct keel_hang_analysis_rank *rank = &group->ranks[k];
        if (rank->recording != NULL)
            look_up(group, rank);
        if (group->operation == NULL || !takes_part(group, k)) {
            rank->state = rank->recording == NULL ? KEEL_HANG_ANALYSIS_UNSEEN : KEEL_HANG_ANALYSIS_DONE;
            continue;
        }
        rank->state = state_of(group, rank);
        bool on = rank->operation != NULL && rank->operation->state == KEEL_RECORD_LIVE;
        if (on && rank->state != KEEL_HANG_ANALYSIS_DEAD && rank->operation->segment < group->segment)
            group->segment = rank->operation->segment;
        if (rank->recording != NULL &&
            rank->recording->event_total_before != rank->recording->record.header.event_total)
            group->moves = true;
    }
    if (group->segment == UINT32_MAX)
        group->segment = 0;
    return group->operation != NULL ? follow(group) : KEEL_OK;
}

enum keel_status keel_hang_analysis_judge(const struct keel_recordings *recordings,
                                          struct keel_hang_analysis *out)
{
    struct keel_hang_analysis who = {.groups = NULL};
    enum keel_status status = gather(recordings, &who);
    for (size_t k = 0; k < who.group_count && status == KEEL_OK; k++)
        status = judge_group(&who.groups[k]);
    if (status != KEEL_OK)
        keel_hang_analysis_free(&who);
    else
        *out = who;
    return status;
}

void keel_hang_analysis_free(struct keel_hang_analysis *who)
{
    for (size_t k = 0; k < who->group_count; k++)
        keel_free(who->groups[k].ranks);
    keel_free(who->groups);
    *who = (struct keel_hang_analysis){.groups = NULL};
}

void keel_hang_analysis_culprit_text(const struct keel_hang_analysis_group *group, uint32_t rank, char *out,
                                     size_t out_bytes)
{
    const struct keel_hang_analysis_rank *culprit = &group->ranks[rank];
    char name[128], where[128] = "", place[64] = "", since[32], how[64] = "";
    keel_record_operation_name(group->operation, name, sizeof name);
    keel_format_ns(
        keel_hang_analysis_age_ns(group->ranks[group->owner].recording, group->operation->begun_ns), since);
    if (culprit->recording != NULL)
        snprintf(where, sizeof where, " (process %" PRIu32 " on %s)", culprit->recording->record.header.pid,
                 culprit->recording->record.header.host);
    if (group->operation->segments > 1)
        snprintf(place, sizeof place, ", segment %" PRIu32 " of %" PRIu32, group->segment,
                 group->operation->segments);
    if (culprit->state == KEEL_HANG_ANALYSIS_FAILED)
        snprintf(how, sizeof how, " %s", keel_status_name(culprit->operation->status));
    snprintf(out, out_bytes,
             "rank %" PRIu32 "%s %s%s%s; %" PRIu32 " of %" PRIu32 " ranks wait for it in %s%s, for %s", rank,
             where, keel_hang_analysis_state_text(culprit->state), how,
             group->moves && culprit->state == KEEL_HANG_ANALYSIS_WORKING ? ", slowly" : "",
             culprit->waited_by, group->rank_count, name, place, since);
}
