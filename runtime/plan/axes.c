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

/* Of the ranks that may go: the last one of the fullest place; `ranks`: none may. */
static uint32_t leaver(const struct keel_axes *axes, const bool *stays)
{
    uint32_t best = axes->ranks;
    for (uint32_t r = axes->ranks; r-- > 0;) {
        const uint32_t place = axes->place[r], count = axes->column_count[place];
        if (stays[r])
            continue;
        if (best == axes->ranks || count > axes->column_count[axes->place[best]] ||
            (count == axes->column_count[axes->place[best]] && place < axes->place[best]))
            best = r;
    }
    return best;
}

/* It goes to the emptiest, until that makes nothing more level. */
static void level(struct keel_axes *axes, const bool *stays)
{
    for (;;) {
        const uint32_t rank = leaver(axes, stays), empty = emptiest(axes);
        if (rank == axes->ranks || axes->column_count[axes->place[rank]] <= axes->column_count[empty] + 1)
            return;
        axes->column_count[axes->place[rank]]--;
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
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] < tensor)
            put(out, r, had[r]);
    for (uint32_t r = 0; r < ranks; r++)
        if (had[r] >= tensor)
            put(out, r, emptiest(out));
    level(out, stays);
    for (uint32_t r = 0; r < ranks; r++)
        out->index[r] = seen[out->place[r]]++;
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

uint32_t keel_axes_slice(uint32_t slices, uint32_t tensor, uint32_t place)
{
    return (uint32_t)((uint64_t)place * slices / tensor);
}

uint32_t keel_axes_position(uint32_t shards, uint32_t data, uint32_t shard)
{
    return (uint32_t)((uint64_t)shard * data / shards);
}
