/* engine_weights.c - windows of weights (parallel.zero = 3): when each bucket's weights are in memory, and
 * where.
 *
 * What reads what. A node reads the weights that are its operands, forward and backward alike. A segment of a
 * program needs the buckets of its first node that reads any; a node that reads another one begins the next
 * segment. So what a segment needs is known, is mostly one bucket, and never more than one node reads at
 * once.
 *
 * Gathers. Needs of a bucket that follow each other closely are one stay; between two stays the bucket is
 * not in memory. A stay begins with a gather, `ahead` stages before the segment that needs it first, where a
 * stage is a run of segments that need the same; and ends behind the last segment that needs it. A second
 * need whose gather would begin when the stay ends makes the stay longer. So a table that the first layer and
 * the last one read is gathered for each.
 *
 * Windows. A bucket has the same place in each of its stays, in the train program and in the evaluation:
 * kernels have their operands' places for good. Two buckets share a place if no stay of the one touches one
 * of the other, a gather's time included. Buckets are placed from the largest on, each where memory grows
 * least.
 *
 * Order. Gathers are sorted by the segment that needs them first, and begin in that order too. All ranks have
 * this table, since it follows from the model, so all begin the same gathers in the same order, round after
 * round (plan/tape.h). */
#include "engine_internal.h"

#include <keel/memory.h>
#include <stdlib.h>

/* ---- what segments need -------------------------------------------------------------------------------- */

/* The bucket of an operand of a node; UINT32_MAX: it is no weight. */
static uint32_t bucket_read(const struct keel_engine *engine, const struct keel_graph *graph,
                            const struct keel_ir_node *node, uint32_t operand)
{
    const struct keel_ir_value *v = &graph->values[node->in[operand]];
    if (node->in[operand] == 0 || v->kind != KEEL_VALUE_PARAM)
        return UINT32_MAX;
    return keel_bucket_of_tile(&engine->layout, v->param);
}

bool keel_weights_cut(const struct keel_engine *engine, const struct keel_graph *graph, uint32_t node,
                      uint32_t segment, uint32_t *needs)
{
    const struct keel_ir_node *at = &graph->nodes[node];
    bool any = false, lacks = false;
    for (uint32_t b = 0; b < engine->layout.all_buckets; b++)
        any = any || needs[b] == segment;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        const uint32_t bucket = bucket_read(engine, graph, at, i);
        lacks = lacks || (bucket != UINT32_MAX && needs[bucket] != segment);
    }
    if (any && lacks)
        return true;
    for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
        const uint32_t bucket = bucket_read(engine, graph, at, i);
        if (bucket != UINT32_MAX)
            needs[bucket] = segment;
    }
    return false;
}

/* A program while its gathers are found: needs[segment * buckets + bucket], and the stage of each segment. */
struct needs {
    const struct keel_engine *engine;
    const struct keel_engine_program *program;
    bool *at;        /* owned */
    uint32_t *stage; /* owned */
    uint32_t buckets;
};

static void read_needs(struct needs *needs)
{
    const struct keel_engine_program *program = needs->program;
    for (uint32_t s = 0, n = 0; s < program->list_count; s++)
        for (; n < program->segments[s].end; n++)
            for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
                const uint32_t bucket =
                    bucket_read(needs->engine, program->graph, &program->graph->nodes[n], i);
                if (bucket != UINT32_MAX)
                    needs->at[(size_t)s * needs->buckets + bucket] = true;
            }
    /* The loss scale is read beside operands, from a copy that is made when its bucket comes. */
    const struct keel_layout *layout = &needs->engine->layout;
    for (uint32_t i = 0; i < layout->tile_count && program == &needs->engine->train; i++)
        if (layout->params[layout->tiles[i].param].kept)
            needs->at[keel_bucket_of_tile(layout, i)] = true;
}

/* A stage begins where a segment needs what the one before it, that needed anything, did not. */
static void find_stages(struct needs *needs)
{
    const bool *before = NULL;
    for (uint32_t s = 0; s < needs->program->list_count; s++) {
        const bool *now = needs->at + (size_t)s * needs->buckets;
        bool any = false, more = false;
        for (uint32_t b = 0; b < needs->buckets; b++) {
            any = any || now[b];
            more = more || (now[b] && (before == NULL || !before[b]));
        }
        needs->stage[s] = (s > 0 ? needs->stage[s - 1] : 0) + (more ? 1 : 0);
        before = any ? now : before;
    }
}

/* The segment before which a gather begins that segment `first` waits for. Of the first stage it is that with
 * which the microbatch begins. */
static uint32_t begin_of(const struct needs *needs, uint32_t first)
{
    const uint32_t *stage = needs->stage;
    uint32_t begin = first;
    while (begin > 0 && (stage[begin - 1] == 0 || stage[begin - 1] + needs->engine->ahead >= stage[first]))
        begin--;
    return begin;
}

/* The stays of a bucket, appended. */
static void put_stays(const struct needs *needs, uint32_t bucket, struct keel_engine_gather *out,
                      uint32_t *count)
{
    struct keel_engine_gather *last = NULL;
    for (uint32_t s = 0; s < needs->program->list_count; s++) {
        if (!needs->at[(size_t)s * needs->buckets + bucket])
            continue;
        const uint32_t begin = begin_of(needs, s);
        if (last == NULL || begin > last->last + 1) {
            last = &out[(*count)++];
            *last = (struct keel_engine_gather){.bucket = bucket, .begin = begin, .first = s};
        }
        last->last = s;
    }
}

static int compare_gathers(const void *a, const void *b)
{
    const struct keel_engine_gather *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->bucket < y->bucket ? -1 : x->bucket > y->bucket;
}

static void list_gathers(const struct needs *needs, struct keel_engine_program *program)
{
    for (uint32_t b = 0; b < needs->buckets; b++)
        put_stays(needs, b, program->gathers, &program->gather_count);
    qsort(program->gathers, program->gather_count, sizeof *program->gathers, compare_gathers);
}

/* No more gathers than needs: mostly two of a bucket. */
static size_t count_needs(const struct needs *needs)
{
    size_t count = 0;
    for (size_t i = 0; i < (size_t)needs->program->list_count * needs->buckets; i++)
        count += needs->at[i];
    return count;
}

static enum keel_status find_gathers(const struct keel_engine *engine, struct keel_engine_program *program)
{
    struct needs needs = {.engine = engine, .program = program, .buckets = engine->layout.all_buckets};
    enum keel_status status =
        keel_alloc((size_t)program->list_count * needs.buckets, sizeof *needs.at, (void *)&needs.at);
    if (status == KEEL_OK)
        status = keel_alloc(program->list_count, sizeof *needs.stage, (void *)&needs.stage);
    if (status == KEEL_OK) {
        read_needs(&needs);
        find_stages(&needs);
        status = keel_alloc(count_needs(&needs) + 1, sizeof *program->gathers, (void *)&program->gathers);
    }
    if (status == KEEL_OK)
        list_gathers(&needs, program);
    keel_free(needs.stage);
    keel_free(needs.at);
    return status;
}

/* ---- windows ------------------------------------------------------------------------------------------- */

static bool touch(const struct keel_engine_program *program, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < program->gather_count; i++)
        for (uint32_t k = 0; k < program->gather_count && program->gathers[i].bucket == a; k++)
            if (program->gathers[k].bucket == b && program->gathers[i].begin <= program->gathers[k].last &&
                program->gathers[k].begin <= program->gathers[i].last)
                return true;
    return false;
}

static bool may_share(const struct keel_engine *engine, uint32_t a, uint32_t b)
{
    return !touch(&engine->train, a, b) && !touch(&engine->eval, a, b);
}

/* The first window that no bucket of has a stay that touches one of this; the largest came first, so that it
 * is large enough. */
static uint32_t choose(const struct keel_engine *engine, const uint32_t *order, uint32_t placed,
                       uint32_t count)
{
    const uint32_t *number = engine->weight_windows.number;
    for (uint32_t w = 0; w < count; w++) {
        bool fits = true;
        for (uint32_t i = 0; i < placed && fits; i++)
            fits = number[order[i]] != w || may_share(engine, order[i], order[placed]);
        if (fits)
            return w;
    }
    return count;
}

/* By size, descending. */
static void sort_buckets(const struct keel_layout *layout, uint32_t *order)
{
    for (uint32_t b = 0, at; b < layout->all_buckets; b++) {
        for (at = b; at > 0 && layout->buckets[order[at - 1]].count < layout->buckets[b].count; at--)
            order[at] = order[at - 1];
        order[at] = b;
    }
}

static void place_buckets(struct keel_engine *engine, uint32_t *order)
{
    struct keel_weight_windows *windows = &engine->weight_windows;
    const struct keel_layout *layout = &engine->layout;
    uint32_t count = 0;
    sort_buckets(layout, order);
    for (uint32_t i = 0; i < layout->all_buckets; i++) {
        const uint32_t window = choose(engine, order, i, count);
        windows->number[order[i]] = window;
        windows->at[order[i]] = windows->count; /* of a new one */
        for (uint32_t k = 0; k < i && window < count; k++)
            if (windows->number[order[k]] == window)
                windows->at[order[i]] = windows->at[order[k]];
        if (window == count) {
            windows->count += layout->buckets[order[i]].count;
            count++;
        }
    }
    struct keel_engine_program *programs[] = {&engine->train, &engine->eval};
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (uint32_t g = 0; g < programs[p]->gather_count; g++)
            programs[p]->gathers[g].window = windows->number[programs[p]->gathers[g].bucket];
}

enum keel_status keel_weight_windows_init(struct keel_engine *engine)
{
    struct keel_weight_windows *windows = &engine->weight_windows;
    const uint32_t buckets = engine->layout.all_buckets;
    uint32_t *order = NULL;
    KEEL_TRY(find_gathers(engine, &engine->train));
    KEEL_TRY(find_gathers(engine, &engine->eval));
    KEEL_TRY(keel_alloc(buckets, sizeof *windows->at, (void *)&windows->at));
    KEEL_TRY(keel_alloc(buckets, sizeof *windows->number, (void *)&windows->number));
    KEEL_TRY(keel_alloc(buckets, sizeof *order, (void *)&order));
    place_buckets(engine, order);
    keel_free(order);
    return KEEL_OK;
}

void keel_weight_windows_fini(struct keel_weight_windows *windows)
{
    keel_free(windows->at);
    keel_free(windows->number);
    *windows = (struct keel_weight_windows){.at = NULL};
}

/* ---- asking -------------------------------------------------------------------------------------------- */

uint64_t keel_engine_weight_count(const struct keel_engine *engine)
{
    return engine->weights_windowed ? engine->weight_windows.count : engine->layout.flat_count;
}

uint64_t keel_engine_weight_of_tile(const struct keel_engine *engine, uint32_t tile)
{
    const uint32_t bucket = keel_bucket_of_tile(&engine->layout, tile);
    const uint64_t offset = engine->layout.tiles[tile].offset;
    return engine->weights_windowed
               ? engine->weight_windows.at[bucket] + offset - engine->layout.buckets[bucket].offset
               : offset;
}

const struct keel_engine_gather *keel_engine_gathers(const struct keel_engine *engine, bool evaluation,
                                                     uint32_t *out_count)
{
    const struct keel_engine_program *program = evaluation ? &engine->eval : &engine->train;
    *out_count = engine->weights_windowed ? program->gather_count : 0;
    return engine->weights_windowed ? program->gathers : NULL;
}

struct keel_buffer *keel_engine_weight_windows(const struct keel_engine *engine)
{
    KEEL_ASSERT(engine->weights_windowed);
    return engine->flat[KEEL_FLAT_WEIGHTS];
}

uint64_t keel_engine_weights_at(const struct keel_engine *engine, uint32_t bucket)
{
    KEEL_ASSERT(engine->weights_windowed && bucket < engine->layout.all_buckets);
    return engine->weight_windows.at[bucket];
}

enum keel_status keel_engine_gathered(struct keel_engine *engine, uint32_t bucket)
{
    KEEL_ASSERT(engine->weights_windowed && bucket < engine->layout.all_buckets);
    for (uint32_t i = 0; i < engine->layout.tile_count && engine->loss_scale != NULL; i++)
        if (engine->layout.params[engine->layout.tiles[i].param].kept &&
            keel_bucket_of_tile(&engine->layout, i) == bucket)
            return keel_queue_copy(engine->queue, engine->flat[KEEL_FLAT_WEIGHTS],
                                   keel_engine_weight_of_tile(engine, i) * sizeof(float), engine->loss_scale,
                                   0, sizeof(float), NULL, NULL);
    return KEEL_OK;
}
