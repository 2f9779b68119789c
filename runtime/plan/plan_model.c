/* plan_model.c - what plans follow from, read off a model: its parameters as slices cut them, the changes of
 * layout that cost a collective.
 *
 * The graph is sharded here as a run would (keel_pass_shard), and not lowered: what one device has of it is
 * asked of the engine. */
#include "ir.h"
#include "job_plan.h"
#include "ops.h"
#include "spec.h"
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

/* ---- the graph ----------------------------------------------------------------------------------------- */

static enum keel_status shard(const struct keel_job *job, const struct keel_graph *graph,
                              struct keel_graph **out)
{
    const uint32_t slices[KEEL_MESH_AXES] = {[KEEL_AXIS_TENSOR] = job->tensor};
    KEEL_TRY(keel_graph_copy(graph, out));
    KEEL_TRY(keel_pass_autodiff(*out));
    if (job->tensor == 1)
        return KEEL_OK;
    KEEL_TRY(keel_pass_shard(*out, slices));
    return keel_pass_check(*out, slices);
}

/* What a change of layout is, of one that costs something. */
static bool exchange_of(const struct keel_axis_spec *from, const struct keel_axis_spec *to,
                        enum keel_exchange_kind *out)
{
    if (keel_is_partial(from))
        *out = to->kind == KEEL_SPLIT ? KEEL_EXCHANGE_REDUCE_SCATTER : KEEL_EXCHANGE_ALL_REDUCE;
    else
        *out = KEEL_EXCHANGE_ALL_GATHER;
    return (keel_is_partial(from) && !keel_is_partial(to)) ||
           (from->kind == KEEL_SPLIT && to->kind == KEEL_REPLICATED);
}

static void count_exchanges(const struct keel_graph *graph, struct keel_plan_model *out)
{
    enum keel_exchange_kind kind;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        if (node->op != KEEL_OP_RESHARD)
            continue;
        const struct keel_ir_value *from = &graph->values[node->in[0]], *to = &graph->values[node->out[0]];
        if (!exchange_of(&from->spec.axis[KEEL_AXIS_TENSOR], &to->spec.axis[KEEL_AXIS_TENSOR], &kind))
            continue;
        out->exchanges[kind].count++;
        out->exchanges[kind].bytes += keel_value_bytes(graph, node->out[0]);
    }
}

/* ---- parameters ---------------------------------------------------------------------------------------- */

/* Rows are what lies before the dimension that is split, and each of `outer` parts alike. */
static struct keel_plan_param describe(const struct keel_ir_value *value)
{
    const struct keel_axis_spec *spec = &value->spec.axis[KEEL_AXIS_TENSOR];
    struct keel_plan_param out = {.rows = 1, .count = keel_shape_count(&value->shape), .outer = 1};
    if (spec->kind != KEEL_SPLIT)
        return out;
    for (uint32_t d = 0; d < spec->dim; d++)
        out.rows *= value->shape.size[d];
    out.split_dim = keel_axis_spec_dim(&value->shape, spec);
    out.outer = spec->outer != 0 ? spec->outer : 1;
    out.rows *= out.outer;
    out.units = (uint32_t)keel_axis_spec_units(&value->shape, spec);
    out.unit = out.count / out.rows / out.units;
    return out;
}

static uint32_t bucket_at(const struct keel_engine *engine, uint64_t offset)
{
    uint32_t bucket = 0;
    while (bucket + 1 < keel_engine_all_bucket_count(engine) &&
           keel_engine_bucket(engine, bucket + 1)->offset <= offset)
        bucket++;
    return bucket;
}

struct placed {
    uint64_t offset;
    uint32_t param;
};

static int compare_places(const void *a, const void *b)
{
    const uint64_t x = ((const struct placed *)a)->offset, y = ((const struct placed *)b)->offset;
    return x < y ? -1 : x > y;
}

/* The tiles of a parameter lie next to each other: the first of them says where. */
static enum keel_status find_order(const struct keel_engine *engine, struct keel_plan_model *out)
{
    struct placed *places;
    KEEL_TRY(keel_alloc(out->param_count, sizeof *places, &places));
    for (uint32_t i = keel_engine_tile_count(engine); i-- > 0;) {
        const struct keel_tile *tile = keel_engine_tile(engine, i);
        places[tile->param] = (struct placed){.offset = tile->offset, .param = tile->param};
    }
    qsort(places, out->param_count, sizeof *places, compare_places);
    for (uint32_t i = 0; i < out->param_count; i++) {
        out->order[i] = places[i].param;
        out->params[places[i].param].bucket = bucket_at(engine, places[i].offset);
    }
    keel_free(places);
    return KEEL_OK;
}

static enum keel_status read_params(const struct keel_graph *graph, const struct keel_engine *engine,
                                    struct keel_plan_model *out)
{
    out->param_count = keel_engine_param_count(engine);
    out->bucket_count = keel_engine_bucket_count(engine);
    out->owned_buckets = keel_engine_all_bucket_count(engine);
    KEEL_TRY(keel_alloc(out->param_count, sizeof *out->params, &out->params));
    KEEL_TRY(keel_alloc(out->param_count, sizeof *out->order, &out->order));
    for (uint32_t i = 0; i < out->param_count; i++) {
        const struct keel_engine_param *param = keel_engine_param(engine, i);
        out->params[i] =
            i < graph->param_count
                ? describe(&graph->values[graph->params[i].value])
                : (struct keel_plan_param){.rows = 1, .count = param->count, .outer = 1}; /* loss scale */
        KEEL_ASSERT(out->params[i].count == param->count);
        out->params[i].statistic = param->statistic;
        out->params[i].frozen = param->frozen;
        out->params[i].name = param->name;
        out->params[i].dims = param->dims;
        memcpy(out->params[i].shape, param->shape, sizeof param->shape);
    }
    return find_order(engine, out);
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* On a node, or on a host of several of them; 0: each is on its own. */
static uint32_t seats_together(const struct keel_job *job)
{
    const uint32_t on_node = job->nodes > 0 ? job->ranks / job->nodes : 1;
    const uint32_t nodes = keel_job_node_count(job), hosts = keel_job_host_count(job);
    if (hosts > 0 && hosts < nodes)
        return on_node * ((nodes + hosts - 1) / hosts);
    return job->nodes > 0 ? on_node : 0;
}

static void read_job(const struct keel_job *job, struct keel_plan_model *out)
{
    out->compressed = keel_job_compression(job, &out->compression);
    const bool whole =
        job->optimizer == KEEL_OPTIMIZER_LARS || job->optimizer == KEEL_OPTIMIZER_LAMB || out->compressed;
    out->shards = job->shards;
    out->tensor = job->tensor;
    out->microbatches = job->microbatches;
    out->per_node = seats_together(job);
    out->has_v = keel_optimizer_has_v((enum keel_optimizer)job->optimizer);
    out->has_ema = job->ema > 0.0F;
    out->zero_most = whole ? 0 : 3;
}

enum keel_status keel_plan_model_make(const struct keel_job *job, const struct keel_graph *graph,
                                      const struct keel_engine *engine, struct keel_plan_model *out)
{
    struct keel_graph *sharded = NULL;
    *out = (struct keel_plan_model){.params = NULL};
    read_job(job, out);
    KEEL_TRY(keel_alloc((uint64_t)job->tensor + 1, sizeof *out->cuts, &out->cuts));
    keel_plan_model_cut(out, job->tensor, engine);
    enum keel_status status = shard(job, graph, &sharded);
    if (status == KEEL_OK)
        status = read_params(sharded, engine, out);
    if (status == KEEL_OK)
        count_exchanges(sharded, out);
    keel_graph_destroy(sharded);
    return status;
}

void keel_plan_model_cut(struct keel_plan_model *model, uint32_t count, const struct keel_engine *engine)
{
    struct keel_engine_facts facts;
    KEEL_ASSERT(count > 0 && count <= model->tensor);
    keel_engine_facts(engine, &facts);
    model->cuts[count] = (struct keel_plan_cut){.activation_bytes = facts.activation_bytes,
                                                .accumulator_bytes = facts.accumulator_bytes,
                                                .window_bytes = facts.window_bytes,
                                                .weight_window_bytes = facts.weight_window_bytes,
                                                .gathered_bytes = facts.gathered_bytes,
                                                .gather_count = facts.gather_count};
}

bool keel_plan_has_cut(const struct keel_plan_model *model, uint32_t places, uint32_t count)
{
    for (uint32_t n = 1; n <= places && n <= model->tensor; n++)
        if (model->tensor / n == count || (model->tensor + n - 1) / n == count)
            return true;
    return false;
}

void keel_plan_model_fini(struct keel_plan_model *model)
{
    keel_free(model->cuts);
    keel_free(model->params);
    keel_free(model->order);
    *model = (struct keel_plan_model){.params = NULL};
}
