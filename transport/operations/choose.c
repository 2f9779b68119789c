/* choose.c - which algorithm, where the caller leaves it open: the cost model's answer, remembered.
 *
 * All that goes in is the same on all ranks (their addresses, the map, the collective, and the costs: every
 * FIRST carries a hash of them), so the answer is too. */
#include "group.h"

#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

/* A rank and its host, to be sorted. */
struct hosted_rank {
    uint8_t host[sizeof((struct keel_address_parts *)0)->host];
    uint16_t rank;
};

static int by_host(const void *left, const void *right)
{
    const struct hosted_rank *a = left, *b = right;
    int order = memcmp(a->host, b->host, sizeof a->host);
    return order != 0 ? order : (int)a->rank - (int)b->rank;
}

/* The ranks of a host stand behind each other now. Each gets the first of them; one that tells no host,
 * itself. */
static void find_firsts(const struct hosted_rank *hosted, uint32_t count, uint16_t *firsts)
{
    static const uint8_t none[sizeof hosted->host];
    const struct hosted_rank *first = hosted;
    for (uint32_t k = 0; k < count; k++) {
        const struct hosted_rank *at = &hosted[k];
        if (memcmp(at->host, first->host, sizeof at->host) != 0 ||
            memcmp(at->host, none, sizeof at->host) == 0)
            first = at;
        firsts[at->rank] = first->rank;
    }
}

enum keel_status keel_choose_hosts(struct keel_group *group, const struct keel_group *whole)
{
    struct hosted_rank *hosted;
    uint16_t hosts = 0;
    KEEL_TRY(keel_alloc(group->rank_count, sizeof *group->host_of, &group->host_of));
    KEEL_TRY(keel_alloc(group->rank_count, sizeof *hosted, &hosted));
    for (uint32_t rank = 0; rank < group->rank_count; rank++) {
        struct keel_address_parts place = keel_place_of(&whole->addresses[keel_group_to_whole(group, rank)]);
        memcpy(hosted[rank].host, place.host, sizeof place.host);
        hosted[rank].rank = (uint16_t)rank;
    }
    qsort(hosted, group->rank_count, sizeof *hosted, by_host);
    find_firsts(hosted, group->rank_count, group->host_of);
    keel_free(hosted);
    for (uint32_t rank = 0; rank < group->rank_count; rank++) /* numbered as they come */
        group->host_of[rank] = group->host_of[rank] < rank ? group->host_of[group->host_of[rank]] : hosts++;
    return KEEL_OK;
}

/* As the cost model counts it. Where all of a rank's sizes are its own there is but one way, and no choice.
 */
uint64_t keel_choose_bytes(const struct keel_group *group, const struct keel_collective *what)
{
    uint64_t count = what->count;
    if (keel_kind(what->kind)->result == KEEL_SHAPE_BLOCKS)
        count *= group->rank_count;
    if (what->kind == KEEL_ALL_TO_ALL_V || what->kind == KEEL_BARRIER)
        count = 0;
    const bool scatters = what->kind == KEEL_REDUCE_SCATTER && what->counts_out != NULL;
    if (what->kind == KEEL_ALL_GATHER_V || scatters) {
        count = 0;
        for (uint32_t rank = 0; rank < group->rank_count; rank++)
            count += what->counts_out[rank];
    }
    if (scatters && group->rank_count > 0) /* as if they were even */
        count = (count + group->rank_count - 1) / group->rank_count;
    return count * keel_element_bytes(what->element);
}

enum keel_algorithm keel_choose(struct keel_group *group, const struct keel_collective *what)
{
    if (what->algorithm != KEEL_ALGORITHM_AUTO)
        return what->algorithm;
    struct keel_collective_key key = keel_plan_key(group, what, KEEL_ALGORITHM_AUTO);
    struct keel_algorithm_choice choice = {.kind = key.kind,
                                           .exact = key.exact,
                                           .by_rank = keel_is_by_rank(what),
                                           .root = key.root,
                                           .bytes = keel_choose_bytes(group, what)};
    struct keel_algorithm_choice *kept =
        &group->choices[(choice.bytes / 16 * 31 + choice.kind + choice.root) % KEEL_CHOICES];
    keel_mutex_lock(&group->endpoint->lock);
    bool known = kept->algorithm != KEEL_ALGORITHM_AUTO && kept->kind == choice.kind &&
                 kept->exact == choice.exact && kept->by_rank == choice.by_rank &&
                 kept->root == choice.root && kept->bytes == choice.bytes;
    choice.algorithm = kept->algorithm;
    keel_mutex_unlock(&group->endpoint->lock);
    if (known)
        return choice.algorithm;
    choice.algorithm = keel_schedule_choose(&key, choice.bytes, &group->whole->costs);
    keel_mutex_lock(&group->endpoint->lock);
    *kept = choice;
    keel_mutex_unlock(&group->endpoint->lock);
    return choice.algorithm;
}
