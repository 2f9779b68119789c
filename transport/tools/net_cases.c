/* net_cases.c - which cases there are, and what each means. */
#include "net_cases.h"

#include <inttypes.h>
#include <stdio.h>

enum { MOST_BYTES = 8 << 20, MOST_BYTES_ALL = 256 << 20 };

static const uint64_t counts[] = {0, 1, 3, 17, 1000, 4099, 65537, 1048583};
static const uint64_t few_counts[] = {3, 1000};
enum { COUNTS = sizeof counts / sizeof counts[0], FEW_COUNTS = sizeof few_counts / sizeof few_counts[0] };

void keel_net_case_name(const struct keel_net_case *it, char *out, size_t out_bytes)
{
    char root[32] = "", how[48] = "";
    if (keel_kind_has_root(it->kind))
        snprintf(root, sizeof root, ", root %" PRIu32, it->root);
    if (keel_kind_reduces(it->kind))
        snprintf(how, sizeof how, ", %s, %s", keel_reduction_name(it->reduction), keel_order_name(it->order));
    snprintf(out, out_bytes, "%s of %" PRIu64 " %s%s%s, %s", keel_collective_name(it->kind), it->count,
             keel_element_name(it->element), how, root, keel_algorithm_name(it->algorithm));
}

/* ---- what a case means ---- */

uint64_t keel_net_case_count(const struct keel_net_case *it, uint32_t from, uint32_t to)
{
    if (it->kind == KEEL_ALL_GATHER_V)
        return it->count * ((from * 7 + 3) % 5) / 2;
    if (it->kind == KEEL_ALL_TO_ALL_V)
        return it->count * ((from * 3 + to * 5 + 1) % 4) / 2;
    return it->count;
}

/* Elements of a shape; `row`: what the rank gives, else what it gets. */
static uint64_t elements(const struct keel_net_case *it, enum keel_shape shape, uint32_t rank, uint32_t world,
                         bool row)
{
    uint64_t sum = 0;
    switch (shape) {
    case KEEL_SHAPE_NOTHING:
        return 0;
    case KEEL_SHAPE_BLOCKS:
        return world * it->count;
    case KEEL_SHAPE_TABLE:
        for (uint32_t other = 0; other < world; other++)
            sum += row ? keel_net_case_count(it, rank, other) : keel_net_case_count(it, other, rank);
        return sum;
    default:
        return keel_net_case_count(it, rank, 0);
    }
}

uint64_t keel_net_case_given(const struct keel_net_case *it, uint32_t rank, uint32_t world)
{
    return keel_kind_gives(it->kind, rank == it->root)
               ? elements(it, keel_kind(it->kind)->part, rank, world, true)
               : 0;
}

/* Who sends, receives as much of the rank before. */
uint64_t keel_net_case_got(const struct keel_net_case *it, uint32_t rank, uint32_t world)
{
    if (it->kind == KEEL_SEND)
        return it->count;
    return keel_kind_gets(it->kind, rank == it->root)
               ? elements(it, keel_kind(it->kind)->result, rank, world, false)
               : 0;
}

/* Blocks of several sizes: which one holds `index`, and where in it. */
static uint32_t block_of(const struct keel_net_case *it, uint32_t rank, uint32_t world, uint64_t *index)
{
    uint32_t from = 0;
    while (from + 1 < world && *index >= keel_net_case_count(it, from, rank))
        *index -= keel_net_case_count(it, from++, rank);
    return from;
}

void keel_net_case_source(const struct keel_net_case *it, uint32_t rank, uint32_t world, uint64_t index,
                          uint32_t *out_rank, uint64_t *out_index)
{
    uint64_t within = index;
    *out_index = index;
    switch (it->kind) {
    case KEEL_BROADCAST:
        *out_rank = it->root;
        return;
    case KEEL_SCATTER:
        *out_rank = it->root;
        *out_index = rank * it->count + index;
        return;
    case KEEL_SEND:
        *out_rank = (rank + world - 1) % world;
        return;
    case KEEL_ALL_TO_ALL:
        *out_rank = (uint32_t)(index / it->count);
        *out_index = rank * it->count + index % it->count;
        return;
    case KEEL_ALL_TO_ALL_V:
        *out_rank = block_of(it, rank, world, &within);
        for (uint32_t to = 0; to < rank; to++)
            within += keel_net_case_count(it, *out_rank, to);
        *out_index = within;
        return;
    default: /* what is gathered */
        *out_rank = block_of(it, rank, world, &within);
        *out_index = within;
        return;
    }
}

uint64_t keel_net_case_reduced(const struct keel_net_case *it, uint32_t rank, uint64_t index)
{
    return it->kind == KEEL_REDUCE_SCATTER ? rank * it->count + index : index;
}

/* ---- which cases there are ---- */

struct listing {
    uint32_t world;
    bool full;
    uint64_t seed;
    enum keel_status (*visit)(void *context, const struct keel_net_case *it);
    void *context;
};

static bool fits(const struct keel_net_case *it, uint32_t world)
{
    uint64_t most = MOST_BYTES_ALL / world < MOST_BYTES ? MOST_BYTES_ALL / world : MOST_BYTES;
    return it->count * world * keel_element_bytes(it->element) <= most ||
           ((it->kind == KEEL_ALL_REDUCE || it->kind == KEEL_REDUCE || it->kind == KEEL_BROADCAST ||
             it->kind == KEEL_SEND) &&
            it->count * keel_element_bytes(it->element) <= most);
}

static enum keel_status all_algorithms(struct listing *listing, struct keel_net_case it)
{
    it.seed = ++listing->seed;
    if (!fits(&it, listing->world))
        return KEEL_OK;
    for (uint32_t k = 0; k < KEEL_ALGORITHM_COUNT; k++) {
        it.algorithm = k;
        KEEL_TRY(listing->visit(listing->context, &it));
    }
    return KEEL_OK;
}

/* The first, the last, and one in between; of few ranks all. */
static enum keel_status all_roots(struct listing *listing, struct keel_net_case it, bool all)
{
    uint32_t world = listing->world;
    uint32_t step = world <= 9 && all ? 1 : world / 2 > 0 ? world / 2 : 1;
    for (uint32_t root = 0; root < world; root += step) {
        it.root = root;
        KEEL_TRY(all_algorithms(listing, it));
        if (!keel_kind_has_root(it.kind))
            return KEEL_OK;
    }
    it.root = world - 1;
    return (world - 1) % step != 0 ? all_algorithms(listing, it) : KEEL_OK;
}

static enum keel_status all_counts(struct listing *listing, struct keel_net_case it, bool few)
{
    for (uint32_t k = 0; k < (few ? FEW_COUNTS : COUNTS); k++) {
        it.count = few ? few_counts[k] : counts[k];
        KEEL_TRY(all_roots(listing, it, it.count == 17 || listing->full));
    }
    return KEEL_OK;
}

/* Of reductions every element with every reduction in both orders; the sum of f32 in all sizes. */
static enum keel_status all_elements(struct listing *listing, enum keel_collective_kind kind)
{
    bool reduces = keel_kind_reduces(kind);
    for (uint32_t element = 0; element < KEEL_ELEMENT_COUNT; element++)
        for (uint32_t reduction = 0; reduction < (reduces ? KEEL_REDUCTION_COUNT : 1); reduction++)
            for (uint32_t order = 0; order < (reduces ? 2 : 1); order++) {
                struct keel_net_case it = {
                    .kind = kind, .element = element, .reduction = reduction, .order = order};
                bool few = !listing->full && (element != KEEL_ELEMENT_F32 || reduction != KEEL_SUM);
                KEEL_TRY(all_counts(listing, it, few));
            }
    return KEEL_OK;
}

enum keel_status keel_net_cases_each(uint32_t world, const struct keel_net_case_filter *filter,
                                     enum keel_status (*visit)(void *context, const struct keel_net_case *it),
                                     void *context)
{
    struct listing listing = {.world = world, .full = filter->full, .visit = visit, .context = context};
    for (uint32_t kind = 0; kind < KEEL_COLLECTIVE_COUNT; kind++) {
        if ((filter->kind >= 0 && kind != (uint32_t)filter->kind) || kind == KEEL_RECEIVE)
            continue;
        if (kind == KEEL_SEND && world == 1)
            continue;
        if (kind == KEEL_BARRIER)
            KEEL_TRY(all_algorithms(&listing, (struct keel_net_case){.kind = kind}));
        else
            KEEL_TRY(all_elements(&listing, kind));
    }
    return KEEL_OK;
}
