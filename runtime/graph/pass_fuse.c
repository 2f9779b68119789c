/* pass_fuse.c - fewer, larger operations; and inference, which takes dropout out and lets batch norm go by
 * its statistics.
 *
 * Promises the same bits as without it: every fused kernel rounds where the separate ones did. The order of
 * the nodes that stay is kept. Leaves the bias to the builder (a linear node has it from the start). */
#include "ops.h"

#include <keel/memory.h>
#include <string.h>

#define NOBODY UINT32_MAX

/* By value: the node that makes it, how many nodes read it, and the last of them. */
struct links {
    uint32_t *maker, *uses, *reader;
};

static void links_fini(struct links *links)
{
    keel_free(links->maker);
    keel_free(links->uses);
    keel_free(links->reader);
}

static enum keel_status links_init(struct links *links, const struct keel_graph *graph)
{
    *links = (struct links){.maker = NULL};
    enum keel_status status = keel_alloc(graph->value_count, sizeof *links->maker, (void *)&links->maker);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *links->uses, (void *)&links->uses);
    if (status == KEEL_OK)
        status = keel_alloc(graph->value_count, sizeof *links->reader, (void *)&links->reader);
    if (status != KEEL_OK) {
        links_fini(links);
        return status;
    }
    for (uint32_t i = 0; i < graph->value_count; i++)
        links->maker[i] = links->reader[i] = NOBODY;
    for (uint32_t n = 0; n < graph->node_count; n++) {
        const struct keel_ir_node *node = &graph->nodes[n];
        for (uint32_t i = 0; i < KEEL_NODE_OUT_MAX; i++)
            if (node->out[i] != 0 && graph->values[node->out[i]].kind == KEEL_VALUE_TEMP)
                links->maker[node->out[i]] = n;
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++) {
            links->uses[node->in[i]]++;
            links->reader[node->in[i]] = n;
        }
    }
    return KEEL_OK;
}

static bool made_by(const struct keel_graph *graph, const struct links *links, keel_value value, uint32_t op)
{
    uint32_t maker = links->maker[value];
    return maker != NOBODY && graph->nodes[maker].op == op;
}

/* y = linear(x); z = gelu(y)  becomes  z, y = linear(x). */
static void fuse_gelu(struct keel_graph *graph, struct links *links, struct keel_ir_node *gelu)
{
    keel_value y = gelu->in[0];
    if (!made_by(graph, links, y, KEEL_OP_LINEAR))
        return;
    struct keel_ir_node *linear = &graph->nodes[links->maker[y]];
    if (linear->out[0] != y || linear->out[1] != 0 || linear->in[3] != 0)
        return;
    linear->out[0] = gelu->out[0];
    linear->out[1] = y;
    links->maker[gelu->out[0]] = links->maker[y];
    gelu->op = KEEL_OP_NONE;
}

/* d = dropout(x); y = d + base  becomes  y = dropout(x, base), where the addition stood. */
static bool fuse_dropout(struct keel_graph *graph, const struct links *links, struct keel_ir_node *add)
{
    for (uint32_t i = 0; i < 2; i++) {
        keel_value d = add->in[i];
        if (!made_by(graph, links, d, KEEL_OP_DROPOUT) || links->uses[d] != 1)
            continue;
        struct keel_ir_node *dropout = &graph->nodes[links->maker[d]];
        if (dropout->in[1] != 0)
            continue;
        add->op = KEEL_OP_DROPOUT;
        add->attributes = dropout->attributes;
        add->in[1] = add->in[1 - i];
        add->in[0] = dropout->in[0];
        dropout->op = KEEL_OP_NONE;
        return true;
    }
    return false;
}

/* y = linear(x); s = y + r  becomes  s = linear(x, r), where the addition stood. */
static bool fuse_residual(struct keel_graph *graph, const struct links *links, struct keel_ir_node *add)
{
    for (uint32_t i = 0; i < 2; i++) {
        keel_value y = add->in[i];
        if (!made_by(graph, links, y, KEEL_OP_LINEAR) || links->uses[y] != 1 || y == graph->output)
            continue;
        struct keel_ir_node *linear = &graph->nodes[links->maker[y]];
        if (linear->in[3] != 0 || linear->out[1] != 0 || linear->out[0] != y)
            continue;
        add->op = KEEL_OP_LINEAR;
        add->attributes = linear->attributes;
        add->in[3] = add->in[1 - i];
        for (uint32_t k = 0; k < 3; k++)
            add->in[k] = linear->in[k];
        linear->op = KEEL_OP_NONE;
        return true;
    }
    return false;
}

/* dx = layernorm_grad(...); s = dx + r  becomes  s = layernorm_grad(..., r), or rms_norm_grad, where the
 * gradient stood: it adds to accumulators, whose order must stay. So r must be there by then. */
static void fuse_norm_grad(struct keel_graph *graph, struct links *links, struct keel_ir_node *add)
{
    for (uint32_t i = 0; i < 2; i++) {
        keel_value dx = add->in[i];
        keel_value bypass = add->in[1 - i];
        bool layer = made_by(graph, links, dx, KEEL_OP_LAYERNORM_GRAD);
        if (!(layer || made_by(graph, links, dx, KEEL_OP_RMS_NORM_GRAD)) || links->uses[dx] != 1 ||
            dx == bypass)
            continue;
        uint32_t maker = links->maker[dx];
        struct keel_ir_node *grad = &graph->nodes[maker];
        keel_value *residual = &grad->in[layer ? 5 : 4];
        bool there = links->maker[bypass] == NOBODY || links->maker[bypass] < maker;
        if (*residual != 0 || !there)
            continue;
        *residual = bypass;
        grad->out[0] = add->out[0];
        links->maker[add->out[0]] = maker;
        add->op = KEEL_OP_NONE;
        return;
    }
}

/* What becomes one linear_cross_entropy: numbers of nodes. NOBODY where nobody wants the gradient: of a table
 * that is frozen, or of x. */
struct loss_parts {
    uint32_t product, loss, weights, back;
};

/* The product and the gradients around a cross_entropy, if the logits are seen by nobody else. */
static bool find_loss_parts(const struct keel_graph *graph, const struct links *links, uint32_t loss,
                            struct loss_parts *out)
{
    const struct keel_ir_node *node = &graph->nodes[loss];
    keel_value logits = node->in[0], dlogits = node->out[1];
    if (dlogits == 0 || links->uses[logits] != 1 || !made_by(graph, links, logits, KEEL_OP_LINEAR_TRANSPOSED))
        return false;
    if (graph->nodes[links->maker[logits]].in[2] != 0) /* chunks of rows have no bias */
        return false;
    *out =
        (struct loss_parts){.product = links->maker[logits], .loss = loss, .weights = NOBODY, .back = NOBODY};
    uint32_t readers = 0;
    for (uint32_t n = loss + 1; n < graph->node_count; n++) {
        const struct keel_ir_node *reader = &graph->nodes[n];
        if (reader->op == KEEL_OP_TRANSPOSED_DW && reader->in[1] == dlogits)
            out->weights = n, readers++;
        if (reader->op == KEEL_OP_TRANSPOSED_DX && reader->in[0] == dlogits)
            out->back = n, readers++;
    }
    return readers > 0 && readers == links->uses[dlogits];
}

/* Whether a node from the product to `last`, other than the parts, adds to `value`. */
static bool others_add(const struct keel_graph *graph, const struct loss_parts *parts, uint32_t last,
                       keel_value value)
{
    for (uint32_t n = parts->product; n <= last && value != 0; n++)
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++)
            if (graph->nodes[n].out[k] == value && n != parts->loss && n != parts->weights)
                return true;
    return false;
}

/* All logits at once are large: taken in chunks of rows they are not, when there are more rows than a chunk
 * has and the scratch gradient of the table, if it is wanted, counts for. Stands where the last of its parts
 * stood. */
static enum keel_status fuse_loss(struct keel_graph *graph, const struct links *links, uint32_t loss)
{
    struct loss_parts parts;
    if (!find_loss_parts(graph, links, loss, &parts))
        return KEEL_OK;
    const struct keel_ir_node *product = &graph->nodes[parts.product];
    struct keel_shape x = keel_graph_shape(graph, product->in[0]);
    const bool trained = parts.weights != NOBODY;
    const uint64_t width = x.size[x.dims - 1], least = KEEL_LOSS_CHUNK_ROWS + (trained ? width : 0);
    uint32_t last =
        trained && (parts.back == NOBODY || parts.weights > parts.back) ? parts.weights : parts.back;
    keel_value dtable = trained ? graph->nodes[parts.weights].out[0] : 0, sum = graph->nodes[loss].out[0];
    if (keel_shape_count(&x) / width <= least || others_add(graph, &parts, last, dtable) ||
        others_add(graph, &parts, last, sum))
        return KEEL_OK;
    struct keel_shape shapes[KEEL_NODE_OUT_MAX];
    struct keel_ir_node node = {.op = KEEL_OP_LINEAR_CROSS_ENTROPY,
                                .in = {product->in[0], product->in[1], graph->nodes[loss].in[1]},
                                .out = {sum, dtable},
                                .attributes = graph->nodes[loss].attributes};
    if (keel_op_infer(graph, &node, shapes) != KEEL_OK)
        return KEEL_OK; /* larger than its scratch can be: stays as it is */
    node.out[2] =
        keel_graph_value(graph, "linear_cross_entropy.scratch", KEEL_F32, KEEL_VALUE_TEMP, shapes[2], 0);
    node.out[3] = parts.back == NOBODY ? 0 : graph->nodes[parts.back].out[0];
    const uint32_t old[] = {parts.product, parts.loss, parts.weights, parts.back};
    for (uint32_t i = 0; i < sizeof old / sizeof old[0]; i++)
        if (old[i] != NOBODY)
            graph->nodes[old[i]].op = KEEL_OP_NONE;
    graph->nodes[last] = node;
    return graph->status;
}

/* A batch norm, of either form, whose result has one reader. */
static bool is_batch_norm(const struct keel_graph *graph, const struct links *links, keel_value value)
{
    return links->uses[value] == 1 && value != graph->output &&
           (made_by(graph, links, value, KEEL_OP_BATCH_NORM) ||
            made_by(graph, links, value, KEEL_OP_BATCH_NORM_EVAL));
}

/* Whether a node from `from` to before `to` adds to what `node` adds to. */
static bool shares_sums(const struct keel_graph *graph, const struct keel_ir_node *node, uint32_t from,
                        uint32_t to)
{
    bool found = false;
    for (uint32_t n = from; n < to; n++)
        for (uint32_t k = 0; k < KEEL_NODE_OUT_MAX; k++)
            for (uint32_t i = 3; i < 5; i++)
                found = found || (node->out[i] != 0 && graph->nodes[n].out[k] == node->out[i]);
    return found;
}

/* y = batch_norm(x); s = y + r  becomes  s = batch_norm(x, r), where the addition stood, for r may be made in
 * between. */
static bool fuse_batch_norm(struct keel_graph *graph, struct links *links, uint32_t at)
{
    struct keel_ir_node *add = &graph->nodes[at];
    for (uint32_t i = 0; i < 2; i++) {
        keel_value y = add->in[i], r = add->in[1 - i], sum = add->out[0];
        if (y == r || !is_batch_norm(graph, links, y))
            continue;
        uint32_t maker = links->maker[y];
        struct keel_ir_node *norm = &graph->nodes[maker];
        if (norm->in[5] != 0 || norm->attributes.relu || shares_sums(graph, norm, maker + 1, at))
            continue;
        *add = *norm;
        add->in[5] = r;
        add->out[0] = sum;
        norm->op = KEEL_OP_NONE;
        for (uint32_t k = 0; k < 3; k++)
            links->maker[add->out[k]] = at;
        return true;
    }
    return false;
}

/* y = batch_norm(x); z = relu(y)  becomes  z = batch_norm(x) with relu, where the norm stands. */
static void fuse_relu(struct keel_graph *graph, struct links *links, struct keel_ir_node *relu)
{
    keel_value y = relu->in[0];
    if (!is_batch_norm(graph, links, y))
        return;
    struct keel_ir_node *norm = &graph->nodes[links->maker[y]];
    if (norm->attributes.relu)
        return;
    norm->attributes.relu = true;
    norm->out[0] = relu->out[0];
    links->maker[relu->out[0]] = links->maker[y];
    relu->op = KEEL_OP_NONE;
}

/* g = relu_grad(z, dz); dx = batch_norm_grad(..., g)  becomes  dx = batch_norm_grad(..., dz, z), when nobody
 * else reads g: to write it out as well takes longer than it saves. */
static void fuse_relu_grad(struct keel_graph *graph, const struct links *links, struct keel_ir_node *norm)
{
    keel_value g = norm->in[4];
    if (norm->in[5] != 0 || links->uses[g] != 1 || !made_by(graph, links, g, KEEL_OP_ACTIVATION_GRAD))
        return;
    struct keel_ir_node *relu = &graph->nodes[links->maker[g]];
    if (relu->attributes.activation != KEEL_RELU)
        return;
    norm->in[4] = relu->in[1];
    norm->in[5] = relu->in[0];
    norm->from_stash |=
        (uint8_t)((relu->from_stash & 1U) << 5); /* z is read from its 16-bit copy, here too */
    relu->op = KEEL_OP_NONE;
}

static bool is_activation(const struct keel_ir_node *node, enum keel_activation_kind kind)
{
    return node->op == KEEL_OP_ACTIVATION && node->attributes.activation == kind;
}

static void fuse_node(struct keel_graph *graph, struct links *links, uint32_t at, uint32_t fusions)
{
    struct keel_ir_node *node = &graph->nodes[at];
    const bool image = (fusions & KEEL_FUSE_IMAGE) != 0;
    if (is_activation(node, KEEL_GELU) && (fusions & KEEL_FUSE_GELU) != 0)
        fuse_gelu(graph, links, node);
    if (is_activation(node, KEEL_RELU) && image)
        fuse_relu(graph, links, node);
    if (node->op == KEEL_OP_BATCH_NORM_GRAD && image)
        fuse_relu_grad(graph, links, node);
    if (node->op != KEEL_OP_ADD || ((fusions & KEEL_FUSE_DROPOUT) != 0 && fuse_dropout(graph, links, node)) ||
        (image && fuse_batch_norm(graph, links, at)) ||
        ((fusions & KEEL_FUSE_RESIDUAL) != 0 && fuse_residual(graph, links, node)))
        return;
    if ((fusions & KEEL_FUSE_NORM) != 0)
        fuse_norm_grad(graph, links, node);
}

enum keel_status keel_pass_fuse(struct keel_graph *graph, uint32_t fusions)
{
    struct links links;
    KEEL_TRY(links_init(&links, graph));
    for (uint32_t i = 0; i < graph->node_count; i++)
        fuse_node(graph, &links, i, fusions);
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < graph->node_count && status == KEEL_OK; i++)
        if (graph->nodes[i].op == KEEL_OP_CROSS_ENTROPY && (fusions & KEEL_FUSE_LOSS) != 0)
            status = fuse_loss(graph, &links, i);
    links_fini(&links);
    keel_graph_compact(graph);
    return status;
}

enum keel_status keel_pass_inference(struct keel_graph *graph)
{
    for (uint32_t i = 0; i < graph->node_count; i++) {
        struct keel_ir_node *node = &graph->nodes[i];
        node->attributes.rate = 0.0F;
        node->attributes.stream = 0;
        if (node->op == KEEL_OP_CROSS_ENTROPY)
            node->attributes.loss.smoothing = 0.0F;
        if (node->op == KEEL_OP_BATCH_NORM) {
            node->op = KEEL_OP_BATCH_NORM_EVAL;
            memset(node->out + 1, 0, sizeof node->out - sizeof *node->out);
        }
        if (node->op != KEEL_OP_DROPOUT)
            continue;
        KEEL_ASSERT(node->in[1] == 0); /* runs before fuse */
        for (uint32_t n = i + 1; n < graph->node_count; n++)
            for (uint32_t k = 0; k < KEEL_NODE_IN_MAX; k++)
                if (graph->nodes[n].in[k] == node->out[0])
                    graph->nodes[n].in[k] = node->in[0];
        if (graph->output == node->out[0])
            graph->output = node->in[0];
        node->op = KEEL_OP_NONE;
    }
    keel_graph_compact(graph);
    return KEEL_OK;
}
