/* engine_segments.c - where the lists of a program end: behind what makes a bucket final, behind what ranks
 * exchange, and before what reads weights that are to be gathered first.
 *
 * Nodes stay in their order, so where lists end changes no bit. All is known after the passes, before there
 * is any launch, but for the buffers of what is exchanged. */
#include "engine_internal.h"
#include "ops.h"

#include <keel/memory.h>

struct walk {
    struct keel_program_segment *segments; /* NULL: they are counted */
    uint32_t count;
    struct keel_program_segment counted; /* written where there are no segments yet */
};

static struct keel_program_segment *end_segment(struct walk *walk, uint32_t node)
{
    struct keel_program_segment *at = walk->segments != NULL ? &walk->segments[walk->count] : &walk->counted;
    *at = (struct keel_program_segment){.end = node, .bucket = UINT32_MAX};
    walk->count++;
    return at;
}

/* The bucket is final: its segment ends, and before it that behind which slices of its uses are exchanged. */
static void end_bucket(const struct keel_engine *engine, struct walk *walk, uint32_t node, uint32_t bucket)
{
    if (keel_engine_bucket_joins(engine, bucket)) {
        struct keel_program_segment *at = end_segment(walk, node);
        at->joins = true;
        at->exchange.kind = KEEL_EXCHANGE_SUM;
    }
    end_segment(walk, node)->bucket = bucket;
}

/* nodes, needs: by bucket; how many nodes make it final, and zeros. */
static void walk_nodes(const struct keel_engine *engine, const struct keel_engine_program *program,
                       const uint32_t *nodes, uint32_t *needs, struct walk *walk)
{
    const uint32_t buckets = program == &engine->train ? engine->layout.bucket_count : 0;
    uint32_t bucket = 0;
    for (uint32_t n = 0; n < program->graph->node_count; n++) {
        while (bucket < buckets && nodes[bucket] <= n)
            end_bucket(engine, walk, n, bucket++);
        if (keel_engine_has_gathers(engine) &&
            keel_weights_cut(engine, program->graph, n, walk->count + 1, needs)) {
            end_segment(walk, n);
            keel_weights_cut(engine, program->graph, n, walk->count + 1, needs);
        }
        if (program->graph->nodes[n].op == KEEL_OP_EXCHANGE)
            end_segment(walk, n + 1)->exchange.kind = program->graph->nodes[n].attributes.exchange.kind;
    }
    while (bucket < buckets)
        end_bucket(engine, walk, program->graph->node_count, bucket++);
    end_segment(walk, program->graph->node_count);
}

enum keel_status keel_engine_plan_segments(struct keel_engine *engine, struct keel_engine_program *program)
{
    const size_t buckets = engine->layout.all_buckets;
    struct walk walk = {.segments = NULL};
    uint32_t *tables;
    KEEL_TRY(keel_alloc(3 * buckets, sizeof *tables, (void *)&tables));
    if (program == &engine->train)
        keel_engine_bucket_nodes(&engine->layout, program->graph, tables);
    walk_nodes(engine, program, tables, tables + buckets, &walk);
    enum keel_status status = keel_alloc(walk.count, sizeof *program->lists, (void *)&program->lists);
    if (status == KEEL_OK)
        status = keel_alloc(walk.count, sizeof *program->segments, (void *)&program->segments);
    if (status == KEEL_OK) {
        program->list_count = walk.count;
        walk = (struct walk){.segments = program->segments};
        walk_nodes(engine, program, tables, tables + 2 * buckets, &walk);
        KEEL_ASSERT(walk.count == program->list_count);
    }
    keel_free(tables);
    return status;
}
