/* engine_compile.c - from the model's graph to command lists: passes, buffers, launches.
 *
 * Train: autodiff, where the mesh has slices shard, check and lower, fuse, amp (of 16-bit storage),
 * plan-memory, emit. Eval: inference, fuse, plan-memory, emit. Both programs share the arena and the
 * workspace, since the queue runs them in order. All device memory of an engine is made here, and counted.
 * Leaves the meaning of the passes to their files, and the update to engine_update.c. */
#include "engine_internal.h"
#include "ops.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <keel/transport_device.h>
#include <stdio.h>
#include <string.h>

/* ---- passes -------------------------------------------------------------------------------------------- */

static const float first_loss_scale = 0x1p24F; /* the first steps halve it to what fits */

/* What may be left out. A fusion is a pass of its own here; "fuse" is all of them. */
static const struct {
    const char *name;
    uint32_t fusions;
} passes[] = {{"fuse", KEEL_FUSE_ALL},
              {"fuse-gelu", KEEL_FUSE_GELU},
              {"fuse-dropout", KEEL_FUSE_DROPOUT},
              {"fuse-norm", KEEL_FUSE_NORM},
              {"fuse-loss", KEEL_FUSE_LOSS},
              {"fuse-image", KEEL_FUSE_IMAGE},
              {"fuse-residual", KEEL_FUSE_RESIDUAL},
              {"plan-memory", 0}};

/* Leave out one of `passes`, whose name is the first `length` characters of `off`. */
static enum keel_status leave_out(const char *off, size_t length, uint32_t *fusions, bool *reuse)
{
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        if (strlen(passes[i].name) != length || strncmp(passes[i].name, off, length) != 0)
            continue;
        *fusions &= ~passes[i].fusions;
        *reuse = *reuse && passes[i].fusions != 0;
        return KEEL_OK;
    }
    char names[160] = "";
    for (size_t i = 0, used = 0; i < sizeof passes / sizeof *passes; i++)
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", passes[i].name);
    return keel_fail(KEEL_INVALID, "%.*s is no pass that can be left out: these can, %s", (int)length, off,
                     names);
}

static enum keel_status leave_out_all(const char *off, uint32_t *fusions, bool *reuse)
{
    while (off != NULL && *off != '\0') {
        size_t length = strcspn(off, ",");
        KEEL_TRY(leave_out(off, length, fusions, reuse));
        off += length;
        off += *off == ',';
    }
    return KEEL_OK;
}

enum keel_status keel_engine_check_passes(const char *passes_off)
{
    uint32_t fusions = 0;
    bool reuse = true;
    return leave_out_all(passes_off, &fusions, &reuse);
}

/* What is left of the passes; INVALID when something else is to be left out. On a CPU what a product or a
 * batch norm reads or writes besides its own costs more than the pass over memory that it saves (README.md).
 */
static enum keel_status choose_passes(const struct keel_engine_config *config, uint32_t *fusions, bool *reuse)
{
    *fusions = KEEL_FUSE_ALL;
    *reuse = true;
    if (config->check_products)
        *fusions &= ~(uint32_t)KEEL_FUSE_LOSS; /* the checks know one product a node */
    const char *off = config->passes_off;
    enum keel_device_kind kind = keel_device_info(config->device)->kind;
    if (off == NULL && (kind == KEEL_DEVICE_HOST || kind == KEEL_DEVICE_CPU))
        *fusions &= ~(uint32_t)(KEEL_FUSE_GELU | KEEL_FUSE_RESIDUAL | KEEL_FUSE_IMAGE);
    return leave_out_all(off, fusions, reuse);
}

static enum keel_status dump(const struct keel_engine_config *config,
                             const struct keel_engine_program *program, const char *program_name,
                             uint32_t number, const char *pass)
{
    if (config->dump_directory == NULL)
        return KEEL_OK;
    char name[64];
    char path[KEEL_PATH_BYTES];
    snprintf(name, sizeof name, "%s-%u-%s.txt", program_name, number, pass);
    KEEL_TRY(keel_mkdir_all(config->dump_directory));
    KEEL_TRY(keel_path_join(path, config->dump_directory, name));
    return keel_graph_dump_plan(program->graph, program->plan.offset == NULL ? NULL : &program->plan, path);
}

/* What both programs have after their first pass. */
static enum keel_status finish_passes(const struct keel_engine_config *config,
                                      struct keel_engine_program *program, const char *name, bool training)
{
    uint32_t fusions = 0;
    bool reuse = true;
    KEEL_TRY(choose_passes(config, &fusions, &reuse));
    KEEL_TRY(keel_pass_fuse(program->graph, fusions));
    uint32_t number = 2;
    KEEL_TRY(dump(config, program, name, number++, "fuse"));
    if (training && config->storage != KEEL_F32) {
        KEEL_TRY(keel_pass_amp(program->graph, config->storage));
        KEEL_TRY(dump(config, program, name, number++, "amp"));
    }
    struct keel_memory_options options = {
        .align_bytes = KEEL_PLACE_BYTES, .keep = training ? 0 : program->graph->output, .reuse = reuse};
    KEEL_TRY(keel_pass_memory(program->graph, &options, &program->plan));
    return dump(config, program, name, number, "plan-memory");
}

/* The scale of the loss is state of the run like the weights: it lies with them, so that it is in digests and
 * snapshots, and whoever is healed has it. */
static enum keel_status add_loss_scale(struct keel_graph *graph, float fixed)
{
    struct keel_param_spec spec = {.name = KEEL_LOSS_SCALE_NAME,
                                   .shape = {.dims = 1, .size = {1}},
                                   .fill = fixed > 0.0F ? fixed : first_loss_scale,
                                   .statistic = true,
                                   .momentum = 1.0F};
    if (keel_graph_param(graph, &spec) != 0)
        graph->params[graph->param_count - 1].kept = true;
    return graph->status;
}

/* The logical mesh: what is split over it is summed by its slices. */
static enum keel_status split(const struct keel_engine *engine, struct keel_graph *graph)
{
    const uint32_t slices[KEEL_MESH_AXES] = {[KEEL_AXIS_TENSOR] = engine->tensor.of};
    const struct keel_slice_run cut[KEEL_MESH_AXES] = {[KEEL_AXIS_TENSOR] = engine->tensor};
    if (engine->tensor.of > 1) {
        KEEL_TRY(keel_pass_shard(graph, slices));
        KEEL_TRY(keel_pass_check(graph, slices));
    }
    return keel_pass_lower(graph, cut);
}

/* Parameters lie in an evaluation as they do in training, which has them: what inference takes out, dropout
 * say, may have stood where nothing could be split. */
static void lay_as_trained(const struct keel_graph *train, struct keel_graph *eval)
{
    for (uint32_t p = 0; p < eval->param_count; p++) {
        struct keel_ir_value *v = &eval->values[eval->params[p].value];
        v->spec = train->values[train->params[p].value].spec;
        v->annotated = (1U << KEEL_MESH_AXES) - 1;
    }
}

/* What hands no gradient on: what lies before it would stay as it is, unsaid. */
static enum keel_status refuse_evaluated(const struct keel_graph *graph)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct keel_op *op = keel_op_row(graph->nodes[i].op);
        if (op->instead != NULL)
            return keel_fail(KEEL_UNSUPPORTED,
                             "%s: is for graphs that are evaluated, and has no gradient; train with %s",
                             op->name, op->instead);
    }
    return KEEL_OK;
}

/* Keys and values of all layers are kept then; what is behind would be read by nobody. */
static enum keel_status cut_behind_kept(struct keel_graph *graph)
{
    uint32_t count = graph->node_count;
    while (count > 0 && graph->nodes[count - 1].op != KEEL_OP_ATTENTION_DECODE)
        count--;
    if (count == 0)
        return keel_fail(KEEL_INVALID, "engine: the graph keeps no keys and values (keel_graph_decode)");
    graph->node_count = count;
    graph->output = 0;
    return KEEL_OK;
}

static enum keel_status run_passes(struct keel_engine *engine, const struct keel_engine_config *config)
{
    struct keel_engine_program *train = &engine->train;
    struct keel_engine_program *eval = &engine->eval;
    if (engine->training)
        KEEL_TRY(refuse_evaluated(config->graph));
    KEEL_TRY(keel_graph_copy(config->graph, &train->graph));
    if (engine->training && config->storage == KEEL_F16)
        KEEL_TRY(add_loss_scale(train->graph, config->loss_scale));
    KEEL_TRY(dump(config, train, "train", 0, "build"));
    KEEL_TRY(keel_pass_autodiff(train->graph));
    if (engine->training && config->storage != KEEL_F32)
        KEEL_TRY(keel_pass_amp_choose(train->graph, config->storage));
    KEEL_TRY(split(engine, train->graph));
    KEEL_TRY(dump(config, train, "train", 1, "autodiff"));
    KEEL_TRY(keel_layout_init(&engine->layout, train->graph, &engine->tensor, config->bucket_bytes,
                              engine->in_pieces));
    if (engine->training && engine->layout.trained_tiles == 0)
        return keel_fail(KEEL_INVALID, "the graph has no parameter to train%s",
                         engine->layout.moved_tiles < engine->layout.tile_count ? ": all are frozen" : "");
    if (engine->training) {
        KEEL_TRY(finish_passes(config, train, "train", true));
        KEEL_TRY(keel_engine_plan_segments(engine, train));
        KEEL_TRY(keel_windows_init(&engine->windows, &engine->layout, train->graph));
    }
    KEEL_TRY(keel_graph_copy(config->graph, &eval->graph));
    KEEL_TRY(keel_pass_inference(eval->graph));
    lay_as_trained(train->graph, eval->graph);
    KEEL_TRY(split(engine, eval->graph));
    if (config->only_keeps)
        KEEL_TRY(cut_behind_kept(eval->graph));
    KEEL_TRY(dump(config, eval, "eval", 1, "inference"));
    KEEL_TRY(finish_passes(config, eval, "eval", false));
    KEEL_TRY(keel_engine_plan_segments(engine, eval));
    return keel_engine_has_gathers(engine) ? keel_weight_windows_init(engine) : KEEL_OK;
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

enum keel_status keel_engine_make_buffer(struct keel_engine *engine, uint64_t bytes, struct keel_buffer **out)
{
    KEEL_TRY(keel_buffer_create(engine->device, bytes, out));
    engine->planned_bytes += bytes;
    return KEEL_OK;
}

/* Inputs by order of declaration, each at a place of its own behind the control block. */
static enum keel_status find_inputs(struct keel_engine *engine, const struct keel_graph *graph)
{
    uint32_t count = 0;
    for (keel_value value = 1; value < graph->value_count; value++)
        count += graph->values[value].kind == KEEL_VALUE_INPUT ? 1 : 0;
    KEEL_TRY(keel_alloc(count == 0 ? 1 : count, sizeof *engine->inputs, (void *)&engine->inputs));
    engine->feed_bytes = KEEL_PLACE_BYTES;
    for (keel_value value = 1; value < graph->value_count; value++) {
        const struct keel_ir_value *v = &graph->values[value];
        if (v->kind != KEEL_VALUE_INPUT)
            continue;
        struct keel_feed_input *input = &engine->inputs[engine->input_count];
        char *name = NULL;
        KEEL_TRY(keel_strdup(v->name, &name));
        engine->input_count++;
        input->facts = (struct keel_engine_input){
            .name = name, .dtype = v->dtype, .shape = v->shape, .bytes = keel_value_bytes(graph, value)};
        input->offset = keel_round_up(engine->feed_bytes, KEEL_PLACE_BYTES);
        engine->feed_bytes = input->offset + input->facts.bytes;
    }
    return KEEL_OK;
}

static enum keel_status make_feed(struct keel_engine *engine)
{
    KEEL_TRY(keel_engine_make_buffer(engine, engine->feed_bytes, &engine->feed));
    for (uint32_t i = 0; i < engine->input_count; i++)
        KEEL_TRY(keel_buffer_slice(engine->feed, engine->inputs[i].offset, engine->inputs[i].facts.bytes,
                                   &engine->inputs[i].slice));
    return keel_buffer_slice(engine->feed, 0, sizeof(struct keel_control), &engine->control);
}

/* Where a tile lies in one of the flat buffers, in bytes. */
static uint64_t place_of_tile(const struct keel_engine *engine, enum keel_engine_flat which, uint32_t tile)
{
    const uint64_t at = which == KEEL_FLAT_GRADIENTS ? keel_engine_gradient_of_tile(engine, tile)
                        : which == KEEL_FLAT_WEIGHTS ? keel_engine_weight_of_tile(engine, tile)
                                                     : engine->layout.tiles[tile].offset;
    return at * sizeof(float);
}

/* No gradients of what is frozen. */
static enum keel_status slice_tiles(struct keel_engine *engine, enum keel_engine_flat which,
                                    struct keel_buffer ***out)
{
    KEEL_TRY(keel_alloc(engine->layout.tile_count, sizeof(struct keel_buffer *), (void *)out));
    for (uint32_t i = 0; i < engine->layout.tile_count; i++)
        if (which == KEEL_FLAT_WEIGHTS || engine->layout.tiles[i].offset < engine->layout.moved_count)
            KEEL_TRY(keel_buffer_slice(engine->flat[which], place_of_tile(engine, which, i),
                                       engine->layout.tiles[i].count * sizeof(float), &(*out)[i]));
    return KEEL_OK;
}

/* What an accumulator beside the gradients needs: of later uses of a parameter. */
static enum keel_status make_uses(struct keel_engine *engine)
{
    const struct keel_layout *layout = &engine->layout;
    if (layout->use_count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_engine_make_buffer(engine, layout->uses_count * sizeof(float), &engine->uses));
    KEEL_TRY(keel_alloc(layout->use_count, sizeof(struct keel_buffer *), (void *)&engine->use_slices));
    for (uint32_t u = 0; u < layout->use_count; u++)
        KEEL_TRY(keel_buffer_slice(engine->uses, layout->uses[u].offset * sizeof(float),
                                   layout->uses[u].count * sizeof(float), &engine->use_slices[u]));
    return KEEL_OK;
}

/* Where there are several losses, each has a place of its own. */
static enum keel_status make_losses(struct keel_engine *engine, struct keel_engine_program *program)
{
    const uint32_t count = program->graph->loss_count;
    if (count < 2)
        return KEEL_OK;
    KEEL_TRY(keel_engine_make_buffer(engine, (uint64_t)count * KEEL_PLACE_BYTES, &program->losses));
    KEEL_TRY(keel_alloc(count, sizeof(struct keel_buffer *), (void *)&program->loss_slices));
    for (uint32_t i = 0; i < count; i++)
        KEEL_TRY(keel_buffer_slice(program->losses, (uint64_t)i * KEEL_PLACE_BYTES, sizeof(float),
                                   &program->loss_slices[i]));
    return KEEL_OK;
}

/* What the sums of the norm need. */
static enum keel_status norm_scratch_bytes(const struct keel_engine *engine, uint64_t *out)
{
    struct keel_update_tensor *boxes = NULL;
    uint32_t count, all = engine->layout.tile_count;
    uint64_t pages = keel_norm_tiles_scratch_bytes(engine->layout.flat_count);
    if (engine->tensor.of > 1) {
        KEEL_TRY(keel_engine_norm_boxes(engine, &boxes, &count, &all));
        pages = keel_norm_page_count(boxes, count) * sizeof(float);
        keel_free(boxes);
    }
    const uint64_t norm = keel_norm_scratch_bytes(all);
    *out = pages > norm ? pages : norm;
    return KEEL_OK;
}

static enum keel_status make_scratch(struct keel_engine *engine)
{
    uint64_t bytes = 0;
    if (engine->training)
        KEEL_TRY(norm_scratch_bytes(engine, &bytes));
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        uint64_t needed = keel_digest_scratch_bytes(engine->layout.tiles[i].count);
        bytes = needed > bytes ? needed : bytes;
    }
    return bytes > 0 ? keel_engine_make_buffer(engine, bytes, &engine->scratch) : KEEL_OK;
}

uint64_t keel_engine_arena_bytes(const struct keel_engine *engine)
{
    const uint64_t train = engine->train.plan.arena_bytes, eval = engine->eval.plan.arena_bytes;
    return train > eval ? train : eval;
}

/* What the device wraps is not counted as its memory. */
static enum keel_status make_gradients(struct keel_engine *engine, uint64_t bytes)
{
    struct keel_shared_buffer shared;
    if (!engine->share_gradients)
        return keel_engine_make_buffer(engine, bytes, &engine->flat[KEEL_FLAT_GRADIENTS]);
    KEEL_TRY(keel_shared_buffer_create(engine->device, bytes, &shared));
    engine->flat[KEEL_FLAT_GRADIENTS] = shared.buffer;
    engine->gradients_memory = shared.memory;
    engine->planned_bytes += shared.memory == NULL ? bytes : 0;
    return KEEL_OK;
}

bool keel_engine_keeps(const struct keel_engine *engine, enum keel_engine_flat which)
{
    if (which == KEEL_FLAT_WEIGHTS || !engine->training)
        return which == KEEL_FLAT_WEIGHTS;
    if (which == KEEL_FLAT_V)
        return keel_optimizer_has_v(engine->optimizer);
    return which != KEEL_FLAT_EMA || engine->average > 0.0F;
}

/* What an update keeps lies with pieces, where there are such. */
static bool has_flat(const struct keel_engine *engine, enum keel_engine_flat which)
{
    return keel_engine_keeps(engine, which) && (!engine->in_pieces || which < KEEL_FLAT_M);
}

/* Those of another engine, which have the same places. */
static enum keel_status borrow_weights(struct keel_engine *engine)
{
    const struct keel_layout *own = &engine->layout, *other = &engine->weights_of->layout;
    bool same = own->tile_count == other->tile_count && own->flat_count == other->flat_count;
    for (uint32_t i = 0; i < own->tile_count && same; i++) {
        const struct keel_engine_param *a = &own->params[own->tiles[i].param];
        const struct keel_engine_param *b = &other->params[other->tiles[i].param];
        same = own->tiles[i].offset == other->tiles[i].offset &&
               own->tiles[i].count == other->tiles[i].count && strcmp(a->name, b->name) == 0;
    }
    if (!same)
        return keel_fail(KEEL_INVALID, "engine: weights of an engine that has other parameters");
    engine->flat[KEEL_FLAT_WEIGHTS] = engine->weights_of->flat[KEEL_FLAT_WEIGHTS];
    return KEEL_OK;
}

static enum keel_status make_flat(struct keel_engine *engine, enum keel_engine_flat which)
{
    if (which == KEEL_FLAT_WEIGHTS && engine->weights_of != NULL)
        return borrow_weights(engine);
    if (which == KEEL_FLAT_GRADIENTS)
        return make_gradients(engine, keel_engine_gradient_count(engine) * sizeof(float));
    const uint64_t count =
        which == KEEL_FLAT_WEIGHTS ? keel_engine_weight_count(engine) : engine->layout.moved_count;
    return keel_engine_make_buffer(engine, count * sizeof(float), &engine->flat[which]);
}

/* The scale of the loss: one of the weights; of those in windows, which come and go, a copy. */
static enum keel_status find_loss_scale(struct keel_engine *engine)
{
    for (uint32_t i = 0; i < engine->layout.tile_count; i++) {
        if (strcmp(engine->layout.params[engine->layout.tiles[i].param].name, KEEL_LOSS_SCALE_NAME) != 0)
            continue;
        if (engine->weights_windowed)
            return keel_engine_make_buffer(engine, sizeof(float), &engine->loss_scale);
        engine->loss_scale = engine->weights[i];
    }
    return KEEL_OK;
}

static enum keel_status make_buffers(struct keel_engine *engine)
{
    for (uint32_t i = 0; i < KEEL_FLAT_COUNT; i++)
        if (has_flat(engine, (enum keel_engine_flat)i))
            KEEL_TRY(make_flat(engine, (enum keel_engine_flat)i));
    KEEL_TRY(keel_engine_make_buffer(engine, keel_engine_arena_bytes(engine), &engine->arena));
    KEEL_TRY(make_feed(engine));
    KEEL_TRY(keel_engine_make_buffer(engine, sizeof(float), &engine->loss));
    KEEL_TRY(keel_engine_make_buffer(engine, sizeof(float), &engine->eval_loss));
    KEEL_TRY(keel_engine_make_buffer(engine, 3 * sizeof(float), &engine->norm));
    KEEL_TRY(keel_engine_make_buffer(engine, sizeof(uint64_t), &engine->digest));
    KEEL_TRY(make_scratch(engine));
    KEEL_TRY(slice_tiles(engine, KEEL_FLAT_WEIGHTS, &engine->weights));
    KEEL_TRY(find_loss_scale(engine));
    KEEL_TRY(make_losses(engine, &engine->eval));
    KEEL_TRY(keel_engine_sums_make(engine));
    if (!engine->training)
        return KEEL_OK;
    KEEL_TRY(make_losses(engine, &engine->train));
    KEEL_TRY(make_uses(engine));
    return slice_tiles(engine, KEEL_FLAT_GRADIENTS, &engine->gradients);
}

static uint32_t find_use(const struct keel_layout *layout, const struct keel_ir_value *gradient)
{
    uint32_t found = 0;
    while (found < layout->use_count &&
           (layout->uses[found].param != gradient->param || layout->uses[found].part != gradient->part))
        found++;
    KEEL_ASSERT(found < layout->use_count);
    return found;
}

/* Where a value that no node makes lies, and its buffer. `inputs` counts those so far. */
static void bind_given(struct keel_engine *engine, struct keel_engine_program *program, keel_value value,
                       struct keel_buffer *loss, uint32_t *inputs)
{
    const struct keel_ir_value *v = &program->graph->values[value];
    struct keel_place *place = &program->places[value];
    struct keel_buffer **buffer = &program->buffers[value];
    if (v->kind == KEEL_VALUE_INPUT) {
        const struct keel_feed_input *input = &engine->inputs[(*inputs)++];
        *place = (struct keel_place){.whole = engine->feed, .offset = input->offset};
        *buffer = input->slice;
    } else if (v->kind == KEEL_VALUE_LOSS) {
        *buffer = program->losses != NULL ? program->loss_slices[v->part] : loss;
        *place = (struct keel_place){.whole = *buffer};
    } else if (v->kind == KEEL_VALUE_GRADIENT && keel_is_use(program->graph, v)) {
        const uint32_t use = find_use(&engine->layout, v);
        *buffer = engine->use_slices[use];
        *place = (struct keel_place){.whole = engine->uses,
                                     .offset = engine->layout.uses[use].offset * sizeof(float)};
    } else if (v->kind != KEEL_VALUE_TEMP) {
        const bool weight = v->kind == KEEL_VALUE_PARAM;
        const enum keel_engine_flat which = weight ? KEEL_FLAT_WEIGHTS : KEEL_FLAT_GRADIENTS;
        KEEL_ASSERT(engine->layout.tiles[v->param].param == v->param);
        *place = (struct keel_place){.whole = engine->flat[which],
                                     .offset = place_of_tile(engine, which, v->param)};
        *buffer = weight ? engine->weights[v->param] : engine->gradients[v->param];
    }
}

/* Place and buffer of each value of a program; values that share a place share the slice. */
static enum keel_status bind_values(struct keel_engine *engine, struct keel_engine_program *program,
                                    struct keel_buffer *loss)
{
    const struct keel_graph *graph = program->graph;
    KEEL_TRY(keel_alloc(graph->value_count, sizeof *program->places, (void *)&program->places));
    KEEL_TRY(keel_alloc(graph->value_count, sizeof(struct keel_buffer *), (void *)&program->buffers));
    uint32_t inputs = 0;
    for (keel_value value = 1; value < graph->value_count; value++)
        bind_given(engine, program, value, loss, &inputs);
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++) {
            keel_value value = graph->nodes[n].out[i];
            if (value == 0 || graph->values[value].kind != KEEL_VALUE_TEMP)
                continue;
            keel_value storage = program->plan.storage[value];
            program->places[value] =
                (struct keel_place){.whole = engine->arena, .offset = program->plan.offset[value]};
            if (storage != value)
                program->buffers[value] = program->buffers[storage];
            else
                KEEL_TRY(keel_buffer_slice(engine->arena, program->plan.offset[value],
                                           keel_value_bytes(graph, value), &program->buffers[value]));
        }
    return KEEL_OK;
}

/* ---- lists --------------------------------------------------------------------------------------------- */

void keel_engine_bucket_nodes(const struct keel_layout *layout, const struct keel_graph *graph,
                              uint32_t *out_nodes)
{
    uint32_t ready = 0;
    uint32_t at = 0;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        for (; at < layout->bucket_end[b]; at++)
            for (uint32_t n = ready; n < graph->node_count; n++)
                for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
                    if (keel_is_gradient(graph, graph->nodes[n].out[i],
                                         layout->tiles[layout->order[at]].param))
                        ready = n + 1;
        out_nodes[b] = ready;
    }
}

static enum keel_status emit_node(struct keel_emit *emit)
{
    const struct keel_ir_node *node = &emit->graph->nodes[emit->node];
    return keel_op_row(node->op)->emit(emit, node);
}

static enum keel_status emit_checks(struct keel_emit *emit, bool behind)
{
    return emit->checks == NULL
               ? KEEL_OK
               : keel_gemm_checksums_emit(emit->checks, emit->kernels, emit->node, behind, emit->list);
}

/* What ends the segment, beside a bucket and weights: what is exchanged behind it. */
static enum keel_status emit_end(struct keel_engine *engine, struct keel_engine_program *program,
                                 uint32_t segment)
{
    struct keel_program_segment *at = &program->segments[segment];
    const uint32_t begin = segment > 0 ? program->segments[segment - 1].end : 0;
    if (at->joins)
        return keel_engine_join_segment(engine, program->segments[segment + 1].bucket, at);
    if (at->end > begin && program->graph->nodes[at->end - 1].op == KEEL_OP_EXCHANGE)
        keel_program_segment_set(at, program, &program->graph->nodes[at->end - 1]);
    return KEEL_OK;
}

/* Append nodes to lists, by segments. */
static enum keel_status emit_nodes(struct keel_engine *engine, struct keel_emit *emit,
                                   struct keel_engine_program *program, struct keel_launch_list *lists)
{
    emit->node = 0;
    for (uint32_t segment = 0; segment < program->list_count; segment++) {
        emit->list = &lists[segment];
        for (; emit->node < program->segments[segment].end; emit->node++) {
            KEEL_TRY(emit_checks(emit, false));
            KEEL_TRY(emit_node(emit));
            KEEL_TRY(emit_checks(emit, true));
        }
        if (!emit->fresh)
            KEEL_TRY(emit_end(engine, program, segment));
    }
    return KEEL_OK;
}

static struct keel_emit emitter(struct keel_engine *engine, struct keel_engine_program *program)
{
    bool train = program == &engine->train;
    return (struct keel_emit){.graph = program->graph,
                              .kernels = engine->kernels,
                              .buffer = program->buffers,
                              .place = program->places,
                              .parts = &program->parts,
                              .control = engine->control,
                              .workspace = engine->workspace,
                              .loss_scale = train ? engine->loss_scale : NULL,
                              .checks = train && engine->check_products ? &engine->checks : NULL,
                              .microbatches = train ? engine->microbatches : 1};
}

static enum keel_status measure(struct keel_engine *engine, struct keel_engine_program *program,
                                uint64_t *bytes)
{
    struct keel_emit emit = emitter(engine, program);
    emit.measure = true;
    for (emit.node = 0; emit.node < program->graph->node_count; emit.node++)
        KEEL_TRY(emit_node(&emit));
    *bytes = emit.workspace_bytes > *bytes ? emit.workspace_bytes : *bytes;
    return KEEL_OK;
}

static enum keel_status seal_lists(struct keel_engine *engine, struct keel_launch_list *lists, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        KEEL_TRY(keel_launch_list_seal(&lists[i], engine->kernels));
    return KEEL_OK;
}

static enum keel_status emit_program(struct keel_engine *engine, struct keel_engine_program *program)
{
    bool train = program == &engine->train;
    struct keel_emit emit = emitter(engine, program);
    KEEL_TRY(emit_nodes(engine, &emit, program, program->lists));
    if (!train)
        KEEL_TRY(keel_engine_emit_losses(engine, program, engine->eval_loss,
                                         &program->lists[program->list_count - 1]));
    return seal_lists(engine, program->lists, program->list_count);
}

static enum keel_status emit_first(struct keel_engine *engine)
{
    struct keel_engine_program *train = &engine->train;
    struct keel_emit emit = emitter(engine, train);
    emit.fresh = true;
    if (!keel_engine_has_first(engine))
        return KEEL_OK;
    KEEL_TRY(keel_alloc(train->list_count, sizeof *train->first, (void *)&train->first));
    KEEL_TRY(emit_nodes(engine, &emit, train, train->first));
    return seal_lists(engine, train->first, train->list_count);
}

static enum keel_status compile(struct keel_engine *engine, const struct keel_engine_config *config)
{
    KEEL_TRY(keel_graph_status(config->graph));
    KEEL_TRY(find_inputs(engine, config->graph));
    KEEL_TRY(run_passes(engine, config));
    if (engine->plan_only)
        return KEEL_OK;
    KEEL_TRY(make_buffers(engine));
    KEEL_TRY(bind_values(engine, &engine->eval, engine->eval_loss));
    if (engine->training)
        KEEL_TRY(bind_values(engine, &engine->train, engine->loss));
    uint64_t workspace_bytes = 0;
    KEEL_TRY(measure(engine, &engine->eval, &workspace_bytes));
    if (engine->training)
        KEEL_TRY(measure(engine, &engine->train, &workspace_bytes));
    if (workspace_bytes > 0)
        KEEL_TRY(keel_engine_make_buffer(engine, workspace_bytes, &engine->workspace));
    KEEL_TRY(
        keel_gemm_checksums_make(&engine->checks, engine->device, engine->queue, &engine->planned_bytes));
    KEEL_TRY(emit_program(engine, &engine->eval));
    if (engine->training)
        KEEL_TRY(emit_program(engine, &engine->train));
    if (engine->training)
        KEEL_TRY(emit_first(engine));
    return keel_engine_emit_update(engine);
}

/* The tensor that takes most memory, of those smaller than `than`; 0: none. */
static keel_value largest_below(const struct keel_graph *graph, uint64_t than)
{
    keel_value found = 0;
    for (keel_value value = 1; value < graph->value_count; value++)
        if (keel_value_bytes(graph, value) < than &&
            (found == 0 || keel_value_bytes(graph, value) > keel_value_bytes(graph, found)))
            found = value;
    return found;
}

/* NO_MEMORY with what takes it, and the keys by which it can be less. */
static enum keel_status name_memory(const struct keel_engine *engine,
                                    const struct keel_engine_program *program)
{
    enum { TOLD = 2 };
    const double mib = 1048576.0;
    char why[160], tensors[200] = "", shape[64];
    size_t used = 0;
    uint64_t than = UINT64_MAX;
    snprintf(why, sizeof why, "%s", keel_detail());
    for (int i = 0; i < TOLD && used < sizeof tensors; i++) {
        const keel_value value = largest_below(program->graph, than);
        if (value == 0)
            break;
        const struct keel_ir_value *v = &program->graph->values[value];
        than = keel_value_bytes(program->graph, value);
        shape[keel_shape_print(&v->shape, shape, sizeof shape - 1)] = '\0';
        used += (size_t)snprintf(tensors + used, sizeof tensors - used, "%s%s %s of %.0f MiB",
                                 i == 0 ? "" : ", ", v->name, shape, (double)than / mib);
    }
    return keel_fail(
        KEEL_NO_MEMORY,
        "the step does not fit: %.0f MiB for each of weights, gradients and moments, %.0f MiB for "
        "what waits; the largest are %s; take a smaller train.batch with more train.microbatches, "
        "train.storage = bf16, ranks that divide it (parallel.tensor, parallel.zero), or a smaller model "
        "(%s)",
        (double)(engine->layout.flat_count * sizeof(float)) / mib, (double)program->plan.arena_bytes / mib,
        tensors, why);
}

enum keel_status keel_engine_compile(struct keel_engine *engine, const struct keel_engine_config *config)
{
    const enum keel_status status = compile(engine, config);
    const struct keel_engine_program *program = engine->training ? &engine->train : &engine->eval;
    return status == KEEL_NO_MEMORY && program->plan.offset != NULL ? name_memory(engine, program) : status;
}

void keel_program_fini(struct keel_engine_program *program)
{
    for (uint32_t i = 0; i < program->list_count; i++)
        keel_launch_list_fini(&program->lists[i]);
    for (uint32_t i = 0; program->first != NULL && i < program->list_count; i++)
        keel_launch_list_fini(&program->first[i]);
    keel_free(program->first);
    keel_free(program->lists);
    keel_free(program->segments);
    keel_free(program->gathers);
    /* Slices of one buffer overlap here: the last that was made goes first (keel_buffer_slice). */
    for (keel_value value = program->buffers != NULL ? program->graph->value_count : 1; --value > 0;)
        if (program->graph->values[value].kind == KEEL_VALUE_TEMP && program->plan.storage[value] == value &&
            program->buffers[value] != NULL)
            keel_buffer_destroy(program->buffers[value]);
    for (uint32_t i = 0; program->loss_slices != NULL && i < program->graph->loss_count; i++)
        if (program->loss_slices[i] != NULL)
            keel_buffer_destroy(program->loss_slices[i]);
    keel_free(program->loss_slices);
    if (program->losses != NULL)
        keel_buffer_destroy(program->losses);
    keel_parts_fini(&program->parts);
    keel_free(program->buffers);
    keel_free(program->places);
    keel_memory_plan_fini(&program->plan);
    keel_graph_destroy(program->graph);
    *program = (struct keel_engine_program){.graph = NULL};
}
