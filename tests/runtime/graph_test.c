/* graph_test.c - the graph without a device: rules, FLOPs, autodiff, fusion, memory. */
#include "harness.h"

#include "ops.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <keel/models.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct keel_gpt_config tiny = {
    .layers = 2, .heads = 2, .width = 16, .block = 8, .vocab = 11, .batch = 3, .bias = true, .tied = true};

static struct keel_graph *gpt(struct keel_gpt_config config)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(graph, &config));
    return graph;
}

static struct keel_graph *trained(struct keel_gpt_config config)
{
    struct keel_graph *graph = gpt(config);
    ck_ok(keel_pass_autodiff(graph));
    return graph;
}

static keel_value floats(struct keel_graph *graph, const char *name, struct keel_shape shape)
{
    return keel_graph_input(graph, name, KEEL_F32, shape);
}

static keel_value weight(struct keel_graph *graph, const char *name, uint64_t rows, uint64_t columns)
{
    return keel_graph_param(graph, &(struct keel_param_spec){.name = name, .shape = {2, {rows, columns}}});
}

/* ---- shapes -------------------------------------------------------------------------------------------- */

START_TEST(a_shape_error_names_the_operation_and_the_shapes)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = floats(graph, "x", (struct keel_shape){3, {4, 8, 16}});
    ck_assert_uint_eq(keel_graph_linear(graph, x, weight(graph, "w", 17, 48), 0), 0);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "linear([4,8,16], [17,48])"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "k is 16 and 17"));
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(the_first_error_is_kept_and_later_calls_do_nothing)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = floats(graph, "x", (struct keel_shape){2, {4, 16}});
    keel_value y = floats(graph, "y", (struct keel_shape){2, {4, 15}});
    keel_value sum = keel_graph_add(graph, x, y);
    keel_graph_activation(graph, sum, KEEL_GELU);
    keel_graph_dropout(graph, x, 2.0F);
    ck_assert_uint_eq(graph->node_count, 0);
    ck_status(keel_graph_status(graph), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "add([4,16], [4,15])"));
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(operands_of_the_wrong_kind_are_refused)
{
    struct {
        const char *text;
        int which;
    } cases[] = {{"must be int32", 0},
                 {"must be float32", 1},
                 {"an operand is missing", 2},
                 {"no multiple of the heads", 3},
                 {"dropout", 4},
                 {"two parameters", 5},
                 {"no multiple of 3", 6},
                 {"concat: part 1 of 3 is missing", 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct keel_graph *graph = NULL;
        ck_ok(keel_graph_create(&graph));
        keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, (struct keel_shape){2, {2, 3}});
        keel_value x = floats(graph, "x", (struct keel_shape){3, {2, 3, 12}});
        keel_value w = weight(graph, "w", 5, 12);
        switch (cases[i].which) {
        case 0:
            keel_graph_embedding(graph, x, w, 0);
            break;
        case 1:
            keel_graph_activation(graph, keel_graph_add(graph, ids, ids), KEEL_GELU);
            break;
        case 2:
            keel_graph_linear_transposed(graph, x, 0);
            break;
        case 3:
            keel_graph_attention(graph, x, &(struct keel_attention_spec){.heads = 3});
            break;
        case 4:
            keel_graph_dropout(graph, x, 1.0F);
            break;
        case 5:
            weight(graph, "w", 5, 12);
            break;
        case 7:
            keel_graph_concat(graph, (keel_value[]){x, 0, x}, 3, 0);
            break;
        default:
            keel_graph_attention(graph, keel_graph_linear_transposed(graph, x, w),
                                 &(struct keel_attention_spec){.heads = 1});
        }
        ck_status(keel_graph_status(graph), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), cases[i].text) != NULL, "%s lacks %s", keel_detail(),
                      cases[i].text);
        keel_graph_destroy(graph);
    }
}
END_TEST

static void expect_shape(const struct keel_graph *graph, keel_value value, struct keel_shape wanted)
{
    struct keel_shape shape = keel_graph_shape(graph, value);
    ck_assert_uint_eq(shape.dims, wanted.dims);
    for (uint32_t i = 0; i < wanted.dims; i++)
        ck_assert_uint_eq(shape.size[i], wanted.size[i]);
}

START_TEST(shapes_follow_from_the_index_rules)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value ids = keel_graph_input(graph, "ids", KEEL_I32, (struct keel_shape){2, {2, 3}});
    keel_value x = keel_graph_embedding(graph, ids, weight(graph, "wte", 7, 8), weight(graph, "wpe", 3, 8));
    expect_shape(graph, x, (struct keel_shape){3, {2, 3, 8}});
    keel_value qkv = keel_graph_linear(graph, x, weight(graph, "qkv", 8, 24), 0);
    expect_shape(graph, qkv, (struct keel_shape){3, {2, 3, 24}});
    keel_value out = keel_graph_attention(graph, qkv, &(struct keel_attention_spec){.heads = 4});
    expect_shape(graph, out, (struct keel_shape){3, {2, 3, 8}});
    expect_shape(graph, graph->nodes[graph->node_count - 1].out[1], (struct keel_shape){4, {2, 4, 3, 2}});
    keel_value flat = floats(graph, "flat", (struct keel_shape){2, {5, 8}});
    expect_shape(graph, keel_graph_linear(graph, flat, weight(graph, "w", 8, 9), 0),
                 (struct keel_shape){2, {5, 9}});
    keel_value gamma =
        keel_graph_param(graph, &(struct keel_param_spec){.name = "g", .shape = {1, {8}}, .fill = 1.0F});
    keel_graph_layernorm(graph, flat, gamma, 0);
    expect_shape(graph, graph->nodes[graph->node_count - 1].out[1], (struct keel_shape){1, {5}});
    ck_ok(keel_graph_status(graph));
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(gpt2_has_the_published_number_of_parameters)
{
    struct keel_graph *graph = gpt((struct keel_gpt_config){.layers = 12,
                                                            .heads = 12,
                                                            .width = 768,
                                                            .block = 1024,
                                                            .vocab = 50257,
                                                            .batch = 1,
                                                            .bias = true,
                                                            .tied = true});
    uint64_t count = 0;
    for (uint32_t i = 0; i < graph->param_count; i++)
        count += keel_shape_count(&graph->values[graph->params[i].value].shape);
    ck_assert_uint_eq(count, 124439808);
    keel_graph_destroy(graph);
}
END_TEST

/* ---- cost and specs ------------------------------------------------------------------------------------ */

/* Products: 12 width^2 weights a block and the output table, two FLOPs each and token; scores and mixing:
 * 4 block width a token and layer. Backward is twice forward. */
START_TEST(flops_of_gpt_equal_the_closed_formula)
{
    for (int variant = 0; variant < 4; variant++) {
        struct keel_gpt_config c = tiny;
        c.tied = (variant & 1) != 0;
        c.bias = (variant & 2) != 0;
        uint64_t tokens = (uint64_t)c.batch * c.block;
        uint64_t products = 12ULL * c.layers * c.width * c.width + (uint64_t)c.vocab * c.width;
        uint64_t forward = tokens * (2 * products + 4ULL * c.layers * c.block * c.width);
        struct keel_graph *graph = gpt(c);
        ck_assert_uint_eq(keel_graph_flops(graph), forward);
        ck_ok(keel_pass_autodiff(graph));
        ck_assert_uint_eq(keel_graph_flops(graph), 3 * forward);
        ck_ok(keel_pass_fuse(graph, KEEL_FUSE_ALL));
        ck_assert_uint_eq(keel_graph_flops(graph), 3 * forward);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(bytes_count_every_operand_and_accumulators_twice)
{
    struct keel_graph *graph = trained(tiny);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < graph->node_count; i++) {
        const struct keel_ir_node *node = &graph->nodes[i];
        if (node->op != KEEL_OP_TRANSPOSED_DW)
            continue;
        uint64_t rows = 3 * 8;
        ck_assert_uint_eq(keel_op_bytes(graph, node), 4 * (rows * 16 + rows * 11 + 2 * 11 * 16));
        seen++;
    }
    ck_assert_uint_eq(seen, 1);
    keel_graph_destroy(graph);
}
END_TEST

/* ---- autodiff and fusion ------------------------------------------------------------------------------- */

/* The nodes that add to accumulators of parameter `number`, as op ids, and to which use's; returns how many.
 */
static uint32_t contributions(const struct keel_graph *graph, uint32_t number, uint32_t *ops, uint32_t *parts,
                              uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++)
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++)
            if (keel_is_gradient(graph, graph->nodes[i].out[k], number)) {
                ck_assert_uint_lt(count, capacity);
                parts[count] = graph->values[graph->nodes[i].out[k]].part;
                ops[count++] = graph->nodes[i].op;
            }
    return count;
}

START_TEST(every_parameter_gets_its_gradient_and_a_tied_table_one_for_each_use)
{
    for (int tied = 0; tied < 2; tied++) {
        struct keel_gpt_config config = tiny;
        config.tied = tied != 0;
        struct keel_graph *graph = trained(config);
        for (uint32_t i = 0; i < graph->param_count; i++) {
            uint32_t ops[4], parts[4];
            uint32_t count = contributions(graph, i, ops, parts, 4);
            bool table = strcmp(graph->params[i].name, "wte.weight") == 0;
            ck_assert_uint_eq(count, table && config.tied ? 2 : 1);
            if (count == 2) {
                ck_assert_uint_eq(ops[0], KEEL_OP_TRANSPOSED_DW);
                ck_assert_uint_eq(ops[1], KEEL_OP_EMBEDDING_GRAD);
                ck_assert(parts[0] == 1 && parts[1] == 0); /* by the order of the model, not of the walk */
            }
        }
        keel_graph_destroy(graph);
    }
}
END_TEST

/* y = x w, and what takes y to a loss in a way that autodiff must refuse by name. */
START_TEST(what_cannot_be_trained_is_refused_by_name)
{
    static const char *const says[] = {"mse: the targets, w,", "bce: the targets, linear.0,"};
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value x = floats(graph, "x", (struct keel_shape){2, {4, 4}}), w = weight(graph, "w", 4, 4);
    keel_value y = keel_graph_linear(graph, x, w, 0);
    if (_i == 0)
        keel_graph_mse(graph, y, w);
    else
        keel_graph_bce(graph, x, y);
    ck_ok(keel_graph_status(graph));
    ck_status(keel_pass_autodiff(graph), KEEL_UNSUPPORTED);
    ck_assert_msg(strstr(keel_detail(), says[_i]) != NULL, "\"%s\" lacks \"%s\"", keel_detail(), says[_i]);
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(autodiff_without_a_loss_is_refused)
{
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    floats(graph, "x", (struct keel_shape){1, {4}});
    ck_status(keel_pass_autodiff(graph), KEEL_INVALID);
    keel_graph_destroy(graph);
}
END_TEST

static uint32_t count_ops(const struct keel_graph *graph, uint32_t op)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++)
        count += graph->nodes[i].op == op ? 1 : 0;
    return count;
}

/* Every node reads only what stands before it, and no value is made twice. */
static void expect_valid_order(const struct keel_graph *graph)
{
    bool made[4096] = {false};
    ck_assert_uint_lt(graph->value_count, 4096);
    for (uint32_t i = 0; i < graph->node_count; i++) {
        for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++) {
            keel_value value = graph->nodes[i].in[k];
            if (value != 0 && graph->values[value].kind == KEEL_VALUE_TEMP)
                ck_assert_msg(made[value], "node %u reads %s before it is made", i,
                              graph->values[value].name);
        }
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++) {
            keel_value value = graph->nodes[i].out[k];
            if (value == 0 || graph->values[value].kind != KEEL_VALUE_TEMP)
                continue;
            ck_assert(!made[value]);
            made[value] = true;
        }
    }
}

/* All additions to accumulators, in order. */
static uint32_t accumulations(const struct keel_graph *graph, keel_value *out, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->node_count; i++)
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++) {
            keel_value value = graph->nodes[i].out[k];
            if (value == 0 || graph->values[value].kind == KEEL_VALUE_TEMP)
                continue;
            ck_assert_uint_lt(count, capacity);
            out[count++] = value;
        }
    return count;
}

START_TEST(what_is_not_trained_gets_no_accumulator_of_its_own_for_each_use)
{
    const struct keel_shape shape = {2, {4, 16}};
    struct keel_graph *graph = NULL;
    ck_ok(keel_graph_create(&graph));
    keel_value seen = keel_graph_param(
        graph, &(struct keel_param_spec){.name = "s", .shape = shape, .statistic = true, .momentum = 0.1F});
    keel_value x = keel_graph_linear(graph, floats(graph, "x", shape), weight(graph, "w", 16, 16), 0);
    x = keel_graph_add(graph, keel_graph_add(graph, x, seen), seen);
    keel_graph_mse(graph, x, floats(graph, "t", shape));
    ck_ok(keel_pass_autodiff(graph));
    uint32_t found = 0;
    for (uint32_t i = 1; i < graph->value_count; i++)
        found += graph->values[i].kind == KEEL_VALUE_GRADIENT && strncmp(graph->values[i].name, "ds", 2) == 0;
    ck_assert_uint_eq(found, 1); /* the engine's own, where statistics are written */
    keel_graph_destroy(graph);
}
END_TEST

START_TEST(fusion_leaves_no_separate_gelu_and_addition_and_keeps_the_order_of_gradients)
{
    for (int dropout = 0; dropout < 2; dropout++) {
        struct keel_gpt_config config = tiny;
        config.dropout = dropout == 0 ? 0.0F : 0.25F;
        struct keel_graph *graph = trained(config);
        expect_valid_order(graph);
        keel_value before[128];
        keel_value after[128];
        uint32_t count = accumulations(graph, before, 128);
        ck_assert_uint_eq(count_ops(graph, KEEL_OP_ACTIVATION), 2); /* GELU, one a layer */
        ck_assert_uint_eq(count_ops(graph, KEEL_OP_ADD), 8);        /* two a layer, forward and backward */
        ck_ok(keel_pass_fuse(graph, KEEL_FUSE_ALL));
        expect_valid_order(graph);
        ck_assert_uint_eq(accumulations(graph, after, 128), count);
        ck_assert_int_eq(memcmp(before, after, count * sizeof *before), 0);
        ck_assert_uint_eq(count_ops(graph, KEEL_OP_ACTIVATION), 0);
        ck_assert_uint_eq(count_ops(graph, KEEL_OP_ADD), 0);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(inference_takes_dropout_out)
{
    struct keel_gpt_config config = tiny;
    config.dropout = 0.5F;
    struct keel_graph *graph = gpt(config);
    ck_assert_uint_eq(count_ops(graph, KEEL_OP_DROPOUT), 5);
    ck_ok(keel_pass_inference(graph));
    expect_valid_order(graph);
    ck_assert_uint_eq(count_ops(graph, KEEL_OP_DROPOUT), 0);
    for (uint32_t i = 0; i < graph->node_count; i++)
        ck_assert(!(graph->nodes[i].attributes.rate > 0.0F));
    keel_graph_destroy(graph);
}
END_TEST

/* ---- memory -------------------------------------------------------------------------------------------- */

/* Whether two values may lie over each other at node `n`: the rule table says so. */
static bool may_share(const struct keel_graph *graph, uint32_t n, keel_value result, keel_value operand)
{
    const struct keel_ir_node *node = &graph->nodes[n];
    for (const char *pair = keel_op_row(node->op)->in_place; pair != NULL && *pair != '\0'; pair += 2)
        if (node->out[pair[0] - '0'] == result && node->in[pair[1] - '0'] == operand)
            return true;
    return false;
}

/* Replays the plan: every byte range written must not be a live value's, unless shared in place. */
static void expect_no_overlap(const struct keel_graph *graph, const struct keel_memory_plan *plan,
                              keel_value keep)
{
    uint32_t last[4096] = {0};
    bool live[4096] = {false};
    for (uint32_t n = 0; n < graph->node_count; n++)
        for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++)
            last[graph->nodes[n].in[k]] = n;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++) {
            keel_value out = node->out[k];
            if (out == 0 || graph->values[out].kind != KEEL_VALUE_TEMP)
                continue;
            uint64_t from = plan->offset[out];
            uint64_t to = from + keel_value_bytes(graph, out);
            ck_assert_uint_le(to, plan->arena_bytes);
            for (keel_value v = 1; v < graph->value_count; v++) {
                if (!live[v] || plan->offset[v] >= to || plan->offset[v] + keel_value_bytes(graph, v) <= from)
                    continue;
                ck_assert_msg(last[v] == n && v != keep && may_share(graph, n, out, v),
                              "node %u writes %s over %s, which lives", n, graph->values[out].name,
                              graph->values[v].name);
            }
            live[out] = true;
        }
        for (keel_value v = 1; v < graph->value_count; v++)
            if (live[v] && last[v] <= n && v != keep)
                live[v] = false;
    }
}

START_TEST(no_two_living_values_share_memory)
{
    for (int variant = 0; variant < 8; variant++) {
        struct keel_gpt_config config = tiny;
        config.dropout = (variant & 1) != 0 ? 0.1F : 0.0F;
        struct keel_graph *graph = (variant & 2) != 0 ? trained(config) : gpt(config);
        if ((variant & 4) != 0)
            ck_ok(keel_pass_fuse(graph, KEEL_FUSE_ALL));
        struct keel_memory_options options = {
            .align_bytes = 256, .reuse = true, .keep = (variant & 2) != 0 ? 0 : graph->output};
        struct keel_memory_plan plan;
        ck_ok(keel_pass_memory(graph, &options, &plan));
        expect_no_overlap(graph, &plan, options.keep);
        ck_assert_uint_ge(plan.arena_bytes, plan.floor_bytes);
        keel_memory_plan_fini(&plan);
        keel_graph_destroy(graph);
    }
}
END_TEST

START_TEST(reuse_needs_little_more_than_the_floor_and_far_less_than_no_reuse)
{
    struct keel_graph *graph = trained((struct keel_gpt_config){.layers = 6,
                                                                .heads = 4,
                                                                .width = 128,
                                                                .block = 64,
                                                                .vocab = 300,
                                                                .batch = 4,
                                                                .bias = true,
                                                                .tied = true});
    ck_ok(keel_pass_fuse(graph, KEEL_FUSE_ALL));
    struct keel_memory_plan tight;
    struct keel_memory_plan loose;
    ck_ok(keel_pass_memory(graph, &(struct keel_memory_options){.align_bytes = 4096, .reuse = true}, &tight));
    ck_ok(keel_pass_memory(graph, &(struct keel_memory_options){.align_bytes = 4096}, &loose));
    expect_no_overlap(graph, &loose, 0);
    printf("note: arena %llu bytes, floor %llu, without reuse %llu\n", (unsigned long long)tight.arena_bytes,
           (unsigned long long)tight.floor_bytes, (unsigned long long)loose.arena_bytes);
    ck_assert_uint_le(tight.arena_bytes, tight.floor_bytes + tight.floor_bytes / 20);
    ck_assert_uint_lt(tight.arena_bytes, loose.arena_bytes * 2 / 3);
    keel_memory_plan_fini(&tight);
    keel_memory_plan_fini(&loose);
    keel_graph_destroy(graph);
}
END_TEST

/* ---- life ---------------------------------------------------------------------------------------------- */

START_TEST(a_copy_is_independent_and_nothing_leaks)
{
    uint64_t before = keel_memory_stats().live_bytes;
    struct keel_graph *graph = gpt(tiny);
    uint32_t nodes = graph->node_count;
    struct keel_graph *copy = NULL;
    ck_ok(keel_graph_copy(graph, &copy));
    ck_ok(keel_pass_autodiff(copy));
    ck_assert_uint_eq(graph->node_count, nodes);
    ck_assert_uint_gt(copy->node_count, nodes);
    ck_assert_uint_eq(graph->params[0].gradient, 0);
    keel_graph_destroy(graph);
    keel_graph_destroy(copy);
    ck_assert_uint_eq(keel_memory_stats().live_bytes, before);
}
END_TEST

START_TEST(the_dump_shows_rules_shapes_and_specs)
{
    char path[] = "/tmp/keel-graph-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    struct keel_graph *graph = trained(tiny);
    ck_ok(keel_graph_dump(graph, path));
    char *text = NULL;
    size_t bytes = 0;
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    ck_assert_ptr_nonnull(strstr(text, "h.1.attn.c_attn.weight f32[16,48] spec=(replicated)"));
    ck_assert_ptr_nonnull(strstr(text, "rule *k,kn,n?,*n?->*n"));
    ck_assert_ptr_nonnull(strstr(text, "+= "));
    keel_free(text);
    unlink(path);
    keel_graph_destroy(graph);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_shape_error_names_the_operation_and_the_shapes);
    tcase_add_test(tc, the_first_error_is_kept_and_later_calls_do_nothing);
    tcase_add_test(tc, operands_of_the_wrong_kind_are_refused);
    tcase_add_test(tc, shapes_follow_from_the_index_rules);
    tcase_add_test(tc, gpt2_has_the_published_number_of_parameters);
    tcase_add_test(tc, flops_of_gpt_equal_the_closed_formula);
    tcase_add_test(tc, bytes_count_every_operand_and_accumulators_twice);
    tcase_add_test(tc, every_parameter_gets_its_gradient_and_a_tied_table_one_for_each_use);
    tcase_add_test(tc, what_is_not_trained_gets_no_accumulator_of_its_own_for_each_use);
    tcase_add_loop_test(tc, what_cannot_be_trained_is_refused_by_name, 0, 2);
    tcase_add_test(tc, autodiff_without_a_loss_is_refused);
    tcase_add_test(tc, fusion_leaves_no_separate_gelu_and_addition_and_keeps_the_order_of_gradients);
    tcase_add_test(tc, inference_takes_dropout_out);
    tcase_add_test(tc, no_two_living_values_share_memory);
    tcase_add_test(tc, reuse_needs_little_more_than_the_floor_and_far_less_than_no_reuse);
    tcase_add_test(tc, a_copy_is_independent_and_nothing_leaks);
    tcase_add_test(tc, the_dump_shows_rules_shapes_and_specs);
}
KEEL_TEST_MAIN("graph", cases, 30)
