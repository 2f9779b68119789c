/* axes.c - places along the tensor axis. */
#include "axes.h"
#include <keel/status.h>
#include <string.h>

uint32_t keel_axes_tensor(uint32_t ranks, uint32_t asked)
{
    return asked <= 1 ? 1 : asked < ranks ? asked : ranks;
}

/* The first place with the fewest ranks. */
static uint32_t emptiest(const struct keel_axes *axes)
{
    uint32_t best = 0;
    for (uint32_t k = 1; k < axes->tensor; k++)
        if (axes->column_count[k] < axes->column_count[best])
            best = k;
    return best;
}

static void put(struct keel_axes *axes, uint32_t rank, uint32_t place)
{
    axes->place[rank] = (uint16_t)place;
    axes->column_count[place]++;
}

/* Ranks of each place that may go, the last one first. */
struct leavers {
    uint16_t first[KEEL_SLICES_MAX]; /* KEEL_RANK_NONE: none */
    uint16_t next[KEEL_MEMBERS_MAX];
};

static void list_leavers(const struct keel_axes *axes, const bool *stays, struct leavers *out)
{
    for (uint32_t k = 0; k < axes->tensor; k++)
        out->first[k] = KEEL_RANK_NONE;
    for (uint32_t r = 0; r < axes->ranks; r++) {
        if (stays[r])
            continue;
        out->next[r] = out->first[axes->place[r]];
        out->first[axes->place[r]] = (uint16_t)r;
    }
}

/* The first of the fullest places that somebody may leave; `tensor`: there is none. */
static uint32_t fullest(const struct keel_axes *axes, const struct leavers *leavers)
{
    uint32_t best = axes->tensor;
    for (uint32_t k = 0; k < axes->tensor; k++)
        if (leavers->first[k] != KEEL_RANK_NONE &&
            (best == axes->tensor || axes->column_count[k] > axes->column_count[best]))
            best = k;
    return best;
}

/* Who may go goes from the fullest place to the emptiest, the last one first, until that makes nothing more
 * level. Who has gone stays: its place was the emptiest, and is never two above another. */
static void level(struct keel_axes *axes, const bool *stays)
{
    struct leavers leavers;
    list_leavers(axes, stays, &leavers);
    for (;;) {
        const uint32_t full = fullest(axes, &leavers), empty = emptiest(axes);
        if (full == axes->tensor || axes->column_count[full] <= axes->column_count[empty] + 1)
            return;
        const uint16_t rank = leavers.first[full];
        leavers.first[full] = leavers.next[rank];
        axes->column_count[full]--;
        put(axes, rank, empty);
    }
}

void keel_axes_find(const uint16_t *had, const bool *stays, uint32_t ranks, uint32_t tensor,
                    struct keel_axes *out)
{
    uint16_t seen[KEEL_SLICES_MAX] = {0};
    KEEL_ASSERT(tensor >= 1 && tensor <= ranks && tensor <= KEEL_SLICES_MAX && ranks <= KEEL_MEMBERS_MAX);
    out->ranks = ranks;
    out->tensor = tensor;
    memset(out->column_count, 0, sizeof out->column_count);
    memset(out->first, 0xff, sizeof out->first);
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] < tensor)
            put(out, r, had[r]);
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] >= tensor)
            put(out, r, emptiest(out));
    level(out, stays);
    for (uint32_t r = 0; r < ranks; r++) {
        if (seen[out->place[r]] == 0)
            out->first[out->place[r]] = (uint16_t)r;
        out->index[r] = seen[out->place[r]]++;
    }
    out->data = out->column_count[emptiest(out)];
}

uint32_t keel_axes_rank(const struct keel_axes *axes, uint32_t place, uint32_t index)
{
    uint32_t rank = 0;
    KEEL_ASSERT(place < axes->tensor && index < axes->column_count[place]);
    while (axes->place[rank] != place || axes->index[rank] != index)
        rank++;
    return rank;
}

void keel_axes_column(const struct keel_axes *axes, uint32_t place, uint16_t *out)
{
    for (uint32_t r = 0; r < axes->ranks; r++)
        if (axes->place[r] == place)
            out[axes->index[r]] = (uint16_t)r;
}

uint32_t keel_axes_slice(uint32_t slices, uint32_t tensor, uint32_t place)
{
    return (uint32_t)((uint64_t)place * slices / tensor);
}

uint32_t keel_axes_position(uint32_t shards, uint32_t data, uint32_t shard)
{
    return (uint32_t)((uint64_t)shard * data / shards);
}
