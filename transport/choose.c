/* choose.c - which algorithm, where the caller leaves it open: the cost model's answer, remembered.
 *
 * All that goes in is the same on all ranks (their addresses, the map, the collective, and the costs: every
 * FIRST carries a hash of them), so the answer is too. */
#include "group.h"

#include <keel/memory.h>

enum keel_status keel_choose_hosts(struct keel_group *group, const struct keel_group *whole)
{
    KEEL_TRY(keel_alloc(group->rank_count, sizeof *group->host_of, &group->host_of));
    uint32_t hosts = 0;
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        const struct keel_address *mine = &whole->addresses[keel_group_to_whole(group, rank)];
        uint32_t like = 0;
        while (like < rank && !keel_same_host(mine, &whole->addresses[keel_group_to_whole(group, like)]))
            like++;
        group->host_of[rank] = like < rank ? group->host_of[like] : (uint16_t)hosts++;
    }
    return KEEL_OK;
}

/* As the cost model counts it. Where ranks have sizes of their own there is but one way, and no choice. */
uint64_t keel_choose_bytes(const struct keel_group *group, const struct keel_collective *what)
{
    uint64_t count = what->count;
    if (what->kind == KEEL_ALL_GATHER || what->kind == KEEL_GATHER || what->kind == KEEL_ALL_TO_ALL)
        count *= group->rank_count;
    if (what->kind == KEEL_ALL_TO_ALL_V || what->kind == KEEL_BARRIER)
        count = 0;
    if (what->kind == KEEL_ALL_GATHER_V) {
        count = 0;
        for (uint32_t rank = 0; rank < group->rank_count; rank++)
            count += what->counts_out[rank];
    }
    return count * keel_element_bytes(what->element);
}

enum keel_algorithm keel_choose(struct keel_group *group, const struct keel_collective *what)
{
    if (what->algorithm != KEEL_ALGORITHM_AUTO)
        return what->algorithm;
    struct keel_schedule_wish wish = keel_plan_wish(group, what, KEEL_ALGORITHM_AUTO);
    struct keel_choice choice = {
        .kind = wish.kind, .exact = wish.exact, .root = wish.root, .bytes = keel_choose_bytes(group, what)};
    struct keel_choice *kept =
        &group->choices[(choice.bytes / 16 * 31 + choice.kind + choice.root) % KEEL_CHOICES];
    keel_mutex_lock(&group->endpoint->lock);
    bool known = kept->algorithm != KEEL_ALGORITHM_AUTO && kept->kind == choice.kind &&
                 kept->exact == choice.exact && kept->root == choice.root && kept->bytes == choice.bytes;
    choice.algorithm = kept->algorithm;
    keel_mutex_unlock(&group->endpoint->lock);
    if (known)
        return choice.algorithm;
    choice.algorithm = keel_schedule_choose(&wish, choice.bytes, &group->whole->costs);
    keel_mutex_lock(&group->endpoint->lock);
    *kept = choice;
    keel_mutex_unlock(&group->endpoint->lock);
    return choice.algorithm;
}
