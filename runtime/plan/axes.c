/* axes.c - places along the tensor axis. */
#include "axes.h"
#include <keel/status.h>

uint32_t keel_axes_tensor(uint32_t ranks, uint32_t asked)
{
    return asked <= 1 ? 1 : asked < ranks ? asked : ranks;
}

/* The first place with the fewest, or with the most ranks. */
static uint32_t extreme(const struct keel_axes *axes, bool most)
{
    uint32_t best = 0;
    for (uint32_t k = 1; k < axes->tensor; k++)
        if (most ? axes->column_count[k] > axes->column_count[best]
                 : axes->column_count[k] < axes->column_count[best])
            best = k;
    return best;
}

static void put(struct keel_axes *axes, uint32_t rank, uint32_t place)
{
    axes->place[rank] = (uint16_t)place;
    axes->column_count[place]++;
}

/* The last rank of the fullest goes to the emptiest, until they differ by one at most. */
static void level(struct keel_axes *axes)
{
    for (;;) {
        const uint32_t full = extreme(axes, true), empty = extreme(axes, false);
        uint32_t rank = axes->ranks - 1;
        if (axes->column_count[full] <= axes->column_count[empty] + 1)
            return;
        while (axes->place[rank] != full)
            rank--;
        axes->column_count[full]--;
        put(axes, rank, empty);
    }
}

void keel_axes_find(const uint16_t *had, uint32_t ranks, uint32_t tensor, struct keel_axes *out)
{
    uint16_t seen[KEEL_SLICES_MAX] = {0};
    KEEL_ASSERT(tensor >= 1 && tensor <= ranks && tensor <= KEEL_SLICES_MAX && ranks <= KEEL_MEMBERS_MAX);
    *out = (struct keel_axes){.ranks = ranks, .tensor = tensor};
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] < tensor)
            put(out, r, had[r]);
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] >= tensor)
            put(out, r, extreme(out, false));
    level(out);
    for (uint32_t r = 0; r < ranks; r++)
        out->index[r] = seen[out->place[r]]++;
    out->data = out->column_count[extreme(out, false)];
}

uint32_t keel_axes_rank(const struct keel_axes *axes, uint32_t place, uint32_t index)
{
    uint32_t rank = 0;
    KEEL_ASSERT(place < axes->tensor && index < axes->column_count[place]);
    while (axes->place[rank] != place || axes->index[rank] != index)
        rank++;
    return rank;
}

uint32_t keel_axes_slice(uint32_t slices, uint32_t tensor, uint32_t place)
{
    return (uint32_t)((uint64_t)place * slices / tensor);
}

uint32_t keel_axes_position(uint32_t shards, uint32_t data, uint32_t shard)
{
    return (uint32_t)((uint64_t)shard * data / shards);
}
