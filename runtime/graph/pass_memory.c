/* pass_memory.c - plan-memory: where each TEMP value lies in the one arena.
 *
 * Promises that two values which live at the same node never share a byte, except a result that its
 * operation may write over an operand which nobody reads afterwards. Lifetimes are intervals of nodes, known
 * in full, so placement is off line: largest first, each into the smallest gap that fits (Pisarchyk and Lee
 * 2020, "Efficient Memory Management for Deep Neural Net Inference"). Same graph, same plan. */
#include "ops.h"

#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

/* One place of the arena, for one value or several that follow each other in it. */
struct place {
    uint64_t bytes, offset;
    uint32_t first, last; /* nodes, inclusive */
    keel_value value;     /* the first of them; 0: not in the arena */
};

/* First and last node of every value, and in which place it lies (in `storage`). */
static void find_lifetimes(const struct keel_graph *graph, const struct keel_memory_options *options,
                           struct place *places)
{
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
            keel_value value = node->out[i];
            if (value == 0 || graph->values[value].kind != KEEL_VALUE_TEMP)
                continue;
            places[value] =
                (struct place){.bytes = keel_round_up(keel_value_bytes(graph, value), options->align_bytes),
                               .first = n,
                               .last = n,
                               .value = value};
        }
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
            const keel_value value = node->in[i];
            KEEL_ASSERT(value < graph->value_count); /* and made by a node that stands before this one: */
            KEEL_ASSERT(graph->values[value].kind != KEEL_VALUE_TEMP ||
                        (places[value].value == value && places[value].first < n));
            places[value].last = n;
        }
    }
    if (options->keep != 0)
        places[options->keep].last = graph->node_count;
    places[0].value = 0;
}

/* Whether the result may take the place of each operand that is this value: a residual may be what the
 * product reads, too. */
static bool may_replace(const struct keel_ir_node *node, char result, keel_value operand)
{
    bool may = true;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        bool listed = false;
        for (const char *pair = keel_op_row(node->op)->in_place; *pair != '\0'; pair += 2)
            listed = listed || (pair[0] == result && (uint32_t)(pair[1] - '0') == i);
        may = may && (listed || node->in[i] != operand);
    }
    return may;
}

/* Let results take the place of operands that end with their node. */
static void share_in_place(const struct keel_graph *graph, struct place *places, uint32_t *storage)
{
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        const char *pair = keel_op_row(node->op)->in_place;
        for (; pair != NULL && *pair != '\0'; pair += 2) {
            keel_value result = node->out[pair[0] - '0'];
            keel_value operand = node->in[pair[1] - '0'];
            if (result == 0 || operand == 0 || storage[result] != result || places[result].last == n)
                continue; /* a result that nothing reads would free the place for the next pair at the same
                             node */
            struct place *place = &places[storage[operand]];
            if (place->value == 0 || place->last != n || place->bytes != places[result].bytes ||
                !may_replace(node, pair[0], operand))
                continue;
            place->last = places[result].last;
            places[result].value = 0;
            storage[result] = storage[operand];
        }
    }
}

/* Largest first; among equals the earlier one. */
static int compare_places(const void *a, const void *b)
{
    const struct place *x = a;
    const struct place *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first != y->first ? (x->first < y->first ? -1 : 1) : (x->value < y->value ? -1 : 1);
}

/* The smallest gap between those placed (ascending by offset) that live at the same time. */
static uint64_t best_fit(const struct place *placed, uint32_t count, const struct place *place, bool reuse)
{
    uint64_t end = 0; /* of what was passed so far */
    uint64_t best = UINT64_MAX;
    uint64_t best_gap = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        if (reuse && (placed[i].last < place->first || place->last < placed[i].first))
            continue;
        uint64_t gap = placed[i].offset > end ? placed[i].offset - end : 0;
        if (gap >= place->bytes && gap < best_gap) {
            best_gap = gap;
            best = end;
        }
        if (placed[i].offset + placed[i].bytes > end)
            end = placed[i].offset + placed[i].bytes;
    }
    return best == UINT64_MAX ? end : best;
}

/* Give each of `count` places (largest first) an offset; `placed` is room for as many. */
static uint64_t place_all(struct place *places, uint32_t count, struct place *placed, bool reuse)
{
    uint64_t arena_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        places[i].offset = best_fit(placed, i, &places[i], reuse);
        uint32_t at = i;
        for (; at > 0 && placed[at - 1].offset > places[i].offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = places[i];
        if (places[i].offset + places[i].bytes > arena_bytes)
            arena_bytes = places[i].offset + places[i].bytes;
    }
    return arena_bytes;
}

/* The most that lives at one node. `live`: room for a number more than there are nodes, and one behind. */
static uint64_t find_floor(const struct keel_graph *graph, const struct place *places, uint32_t count,
                           uint64_t *live)
{
    uint64_t floor_bytes = 0, now = 0;
    for (uint32_t i = 0; i < count; i++) {
        live[places[i].first] += places[i].bytes;
        live[places[i].last + 1] -= places[i].bytes; /* modulo 2^64 */
    }
    for (uint32_t n = 0; n <= graph->node_count; n++) {
        now += live[n];
        floor_bytes = now > floor_bytes ? now : floor_bytes;
    }
    return floor_bytes;
}

/* What was promised of `count` places, read back: each aligned and within the arena, and no two that live at
 * one node (or, without reuse, no two at all) share a byte. */
static void check_places(const struct place *places, uint32_t count,
                         const struct keel_memory_options *options, uint64_t arena_bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct place *a = &places[i];
        KEEL_ASSERT(a->first <= a->last && a->offset % options->align_bytes == 0);
        KEEL_ASSERT(a->bytes <= arena_bytes && a->offset <= arena_bytes - a->bytes);
        for (uint32_t j = 0; j < i; j++) {
            const struct place *b = &places[j];
            const bool together = !options->reuse || (a->first <= b->last && b->first <= a->last);
            KEEL_ASSERT(!together || a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset);
        }
    }
}

/* With `places` by value and room for as many in `placed`; `live`: of find_floor, zeroes. */
static void make_plan(const struct keel_graph *graph, const struct keel_memory_options *options,
                      struct place *places, struct place *placed, uint64_t *live,
                      struct keel_memory_plan *out)
{
    find_lifetimes(graph, options, places);
    for (uint32_t i = 0; i < graph->value_count; i++)
        out->storage[i] = i;
    if (options->reuse)
        share_in_place(graph, places, out->storage);
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->value_count; i++)
        if (places[i].value != 0)
            places[count++] = places[i];
    qsort(places, count, sizeof *places, compare_places);
    out->arena_bytes = place_all(places, count, placed, options->reuse);
    out->floor_bytes = find_floor(graph, places, count, live);
    check_places(places, count, options, out->arena_bytes);
    KEEL_ASSERT(out->floor_bytes <= out->arena_bytes);
    for (uint32_t i = 0; i < count; i++)
        out->offset[places[i].value] = places[i].offset;
    for (uint32_t i = 0; i < graph->value_count; i++) {
        KEEL_ASSERT(out->storage[out->storage[i]] == out->storage[i]);
        out->offset[i] = out->offset[out->storage[i]];
    }
}

enum keel_status keel_pass_memory(const struct keel_graph *graph, const struct keel_memory_options *options,
                                  struct keel_memory_plan *out)
{
    struct place *places = NULL;
    uint64_t *live = NULL;
    struct keel_memory_plan made = {.offset = NULL};
    enum keel_status status = keel_alloc((size_t)graph->value_count * 2, sizeof *places, (void *)&places);
    if (status == KEEL_OK)
        status = keel_alloc((uint64_t)graph->node_count + 2, sizeof *live, &live);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *made.offset, (void *)&made.offset);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *made.storage, (void *)&made.storage);
    if (status == KEEL_OK) {
        make_plan(graph, options, places, places + graph->value_count, live, &made);
        *out = made;
    } else {
        keel_memory_plan_fini(&made);
    }
    keel_free(live);
    keel_free(places);
    return status;
}

void keel_memory_plan_fini(struct keel_memory_plan *plan)
{
    keel_free(plan->offset);
    keel_free(plan->storage);
    *plan = (struct keel_memory_plan){.offset = NULL};
}
