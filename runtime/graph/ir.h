/* ir.h - the data of a graph, for the builder and the passes.
 *
 * Owns the structures; graph.c makes them, the passes change them. A graph is a list of values and a list
 * of nodes in execution order (a valid order is an invariant: a node reads only what stands before it).
 * Gradients of parameters are accumulators, one for each node of the model that uses the parameter, and so
 * are losses, one for each place: nodes add to them, and the order of the nodes is the order of the
 * additions, so a pass must keep the order of two nodes that add to the same accumulator. At the end of a
 * shard the engine adds those of a parameter, and the losses, by `part`: so uses and losses may lie in
 * different stages of a pipeline. */
#ifndef KEEL_RUNTIME_IR_H
#define KEEL_RUNTIME_IR_H

#include <keel/graph.h>

/* As in the published GPT-2. */
#define KEEL_NORM_EPSILON 1e-5F

enum {
    KEEL_GRAPH_ITEMS_MAX = 1 << 16, /* values, and nodes */
    KEEL_GRAPH_PARAMS_MAX = 1 << 12,
    KEEL_NODE_IN_MAX = 8,
    KEEL_NODE_OUT_MAX = 5,
    KEEL_STREAM_DROPOUT = 1 << 16 /* random streams below are the parameters' */
};

enum keel_value_kind {
    KEEL_VALUE_INPUT,
    KEEL_VALUE_PARAM,
    KEEL_VALUE_GRADIENT, /* accumulator of one use of a parameter */
    KEEL_VALUE_LOSS,     /* accumulator of one loss over the microbatches */
    KEEL_VALUE_TEMP
};

/* How a value lies over the mesh: all zero is replicated. */
struct keel_spec {
    struct keel_axis_spec axis[KEEL_MESH_AXES];
};

struct keel_ir_value {
    char name[KEEL_VALUE_NAME_BYTES];
    enum keel_dtype dtype;
    enum keel_value_kind kind;
    struct keel_shape shape;
    struct keel_spec spec;
    uint8_t annotated;      /* bit a: the model says spec.axis[a] */
    keel_value gradient_of; /* autodiff: what it is the gradient of, or a summand; 0: of nothing */
    uint32_t param;         /* number of the parameter, of PARAM and GRADIENT */
    uint32_t part; /* of GRADIENT: which use of the parameter, by order of the model; of LOSS: which loss */
    bool stashed_half; /* amp: in 16 bits, for some of its readers */
};

/* What an operation needs besides its operands; unused fields are 0. The union has one member a family. */
struct keel_attributes {
    float rate;                     /* of dropout, wherever there is one: pass_inference makes it 0 */
    uint32_t stream;                /* random stream of that dropout */
    struct keel_slices slices;      /* of what is summed over, where it is split: keel_pass_lower sets it */
    struct keel_random_slice place; /* where a rank's part lies in the whole, likewise: of what is drawn, of
                                       the rows of a table, of columns of logits */
    union {
        struct {
            uint32_t heads;    /* letter H of the index rules */
            uint32_t kv_heads; /* of grouped_attention and attention_decode */
            bool bidirectional;
            uint32_t window, alibi_heads;
            uint32_t first_head;            /* of a rank's, in the whole */
            struct keel_rotary_turn turned; /* of grouped_attention_grad: what it turns back */
        } attention;
        struct {
            uint32_t heads;
            uint32_t kv_heads; /* of grouped_rotary */
            float base;
            struct keel_rotary_scaling scaling;
            bool inverse;
        } rotary;
        struct {
            uint32_t heads, kv_heads;
            uint32_t part; /* of heads_part: 0 to 2, of q, k and v; of pair_halves 1: pairs become halves */
        } joined;
        struct {
            float weight;    /* of this loss among several */
            float smoothing; /* of cross-entropy: what of a label is all classes' alike; 0 in an evaluation */
        } loss;
        struct {
            uint64_t size[2]; /* height and width of the image */
            uint32_t kernel[2] /* of a pool */, stride[2], pad[2], dilation[2], groups;
        } image;
        bool relu; /* of batch norm: only keel_pass_fuse sets it */
        struct {
            uint32_t outputs, bits, group;
        } quantised; /* of linear_quantised: keel_pass_quantise sets it */
        enum keel_activation_kind activation;
        struct {
            enum keel_binary_kind kind;
            enum keel_binary_result of;
        } binary;
        struct {
            enum keel_reduce_kind kind;
            uint32_t dim, dims; /* the dimensions that are summed over */
        } reduce;
        struct {
            float factor, addend;
        } scale;
        float epsilon;           /* of a norm; 0: KEEL_NORM_EPSILON */
        struct keel_shape shape; /* of a reshape's or an expansion's result */
        struct {
            uint32_t axis;
            uint64_t from, count; /* along it */
        } slice;
        uint32_t order[KEEL_DIMS_MAX]; /* of a permutation */
        struct {
            uint32_t k, n;
        } top_k;
        bool reverse;  /* of a cumulative sum */
        uint32_t rows; /* of gather's gradient */
        struct {
            uint32_t count, capacity;
        } experts;
        struct {
            uint64_t size[KEEL_DIMS_MAX]; /* the operand as so many dimensions */
            uint32_t order[KEEL_DIMS_MAX];
        } repack;
        struct {
            uint64_t outer, size, inner, from; /* of [outer, size, inner] what the result has room for */
        } run;
        struct keel_exchange_plan {
            enum keel_slices_exchange kind;
            bool scatter;   /* each rank has its part of the sum alone */
            uint32_t units; /* of what is gathered or scattered: cut like the axis */
            uint64_t unit;
        } exchange;
        struct keel_spec layout; /* of a reshard's result */
    };
};

struct keel_ir_node {
    uint32_t op;        /* enum keel_op_id */
    bool backward;      /* autodiff made it */
    uint8_t from_stash; /* amp: bit i: operand i is read from its 16-bit copy in 16 bits */
    keel_value in[KEEL_NODE_IN_MAX];
    keel_value out[KEEL_NODE_OUT_MAX];
    struct keel_attributes attributes;
};

struct keel_ir_param {
    char name[KEEL_VALUE_NAME_BYTES];
    keel_value value;
    keel_value gradient; /* of its first use, to which those of others are added; 0 until autodiff, and of
                            what is frozen */
    float deviation, fill;
    const void *values;      /* borrowed: first values, or NULL */
    float momentum;          /* of a statistic */
    struct keel_shape whole; /* keel_pass_lower: the shape of all its slices */
    float rate;              /* that the learning rate is multiplied by: 1, unless the job says so */
    bool decay, statistic;
    bool kept;   /* a statistic that no mean moves: the engine's own */
    bool added;  /* weights from elsewhere may lack it, and then it begins as drawn: an adapter, a head */
    bool frozen; /* no statistic, and not trained: no node makes its gradient */
};

struct keel_graph {
    struct keel_ir_value *values; /* [0] is no value */
    struct keel_ir_node *nodes;
    struct keel_ir_param *params;
    uint32_t value_count, value_capacity;
    uint32_t node_count, node_capacity;
    uint32_t param_count, param_capacity;
    uint32_t stream_count;
    bool differentiated; /* autodiff is at work or through: nodes are passes', no more the model's */
    keel_value position; /* of the newest token (keel_graph_decode), or 0: all tokens are there */
    uint32_t decodes;    /* tokens that there is room for, with a position */
    keel_value slot;     /* the sequence that a row is of (keel_graph_decode_rows), or 0: its own */
    uint64_t slots;      /* sequences, with a slot */
    uint32_t kept_count; /* attention that keeps keys and values: their names */
    keel_value output;   /* what keel_engine_output reads, or 0 */
    keel_value loss;     /* the first loss, or 0 */
    uint32_t loss_count;
    enum keel_status status; /* the first error */
    char detail[KEEL_DETAIL_BYTES];
};

/* A deep copy, for passes to change. */
enum keel_status keel_graph_copy(const struct keel_graph *graph, struct keel_graph **out);

/* A value that no node makes. `param` is for PARAM and GRADIENT. 0 on failure. */
keel_value keel_graph_value(struct keel_graph *graph, const char *name, enum keel_dtype dtype,
                            enum keel_value_kind kind, struct keel_shape shape, uint32_t param);

/* Append a node: checks the operands by the operation's index rule, makes the outputs whose bit is set in
 * `outputs`, and takes the accumulators of the rule from `into`. Returns output 0, or 0 on failure. */
struct keel_node_request {
    uint32_t op;
    keel_value in[KEEL_NODE_IN_MAX];
    keel_value into[KEEL_NODE_OUT_MAX];
    struct keel_attributes attributes;
    uint32_t outputs;
};
keel_value keel_graph_node(struct keel_graph *graph, const struct keel_node_request *request);
/* Another result of the node that was appended last; 0 after a failure. */
keel_value keel_graph_last_result(const struct keel_graph *graph, uint32_t out);
/* keel_graph_node, with the fields of the request in the place of the request. */
#define KEEL_NODE(graph, ...) keel_graph_node(graph, &(struct keel_node_request){__VA_ARGS__})

/* Append a node as it is: its results are there, and nothing is checked. NO_MEMORY, LIMIT. */
enum keel_status keel_graph_append(struct keel_graph *graph, const struct keel_ir_node *node);

/* Keep the first error of a graph, with its detail. */
void keel_graph_refuse(struct keel_graph *graph, enum keel_status status);

/* A node that adds to a loss of its own, its result 0; returns that loss. (graph_loss.c) */
keel_value keel_graph_add_loss(struct keel_graph *graph, struct keel_node_request *request);

/* The attributes of dropout: the rate, and a random stream of its own. Whether the rate makes sense, the
 * row's infer_dims says (keel_check_rate). */
struct keel_attributes keel_graph_random(struct keel_graph *graph, float rate);

/* Drop nodes whose op is KEEL_OP_NONE, keeping the order of the rest. */
void keel_graph_compact(struct keel_graph *graph);

/* Whether a value is an accumulator of this parameter, of any use. */
static inline bool keel_is_gradient(const struct keel_graph *graph, keel_value value, uint32_t param)
{
    return value != 0 && graph->values[value].kind == KEEL_VALUE_GRADIENT &&
           graph->values[value].param == param;
}

uint64_t keel_shape_count(const struct keel_shape *shape);
/* "[4,8,16]"; how many bytes that took, `bytes` at most. */
size_t keel_shape_print(const struct keel_shape *shape, char *out, size_t bytes);
uint64_t keel_value_bytes(const struct keel_graph *graph, keel_value value);
uint64_t keel_dtype_bytes(enum keel_dtype dtype);

/* ---- passes ------------------------------------------------------------------------------------------ */

/* autodiff: append the nodes that add to every parameter's gradient. Needs a loss. */
enum keel_status keel_pass_autodiff(struct keel_graph *graph);

/* inference: take dropout out; batch norm goes by its statistics. */
enum keel_status keel_pass_inference(struct keel_graph *graph);

/* shard: from the annotations of the model to a spec for every value, with a reshard node wherever a value is
 * read otherwise than it lies. `slices` by axis. After autodiff and keel_pass_amp_choose, whose choices go
 * along. INVALID names what cannot be split into so many, and how many it could be. Appends nothing to a
 * graph that has neither annotations nor slices. (pass_shard.c) */
enum keel_status keel_pass_shard(struct keel_graph *graph, const uint32_t slices[KEEL_MESH_AXES]);

/* check: that every spec is sound: INVALID names the operation, the index and the specs. Changes nothing.
 * (pass_check.c) */
enum keel_status keel_pass_check(const struct keel_graph *graph, const uint32_t slices[KEEL_MESH_AXES]);

/* The slices of an axis that a rank has: a run of them. */
struct keel_slice_run {
    uint32_t first, count, of;
};

/* lower: to what a rank with these slices runs: no reshard is left. After shard and check; one slice of 1
 * where they did not run. A rank with all slices has nothing to exchange; of any other, values are as large
 * as its slices are, and KEEL_OP_EXCHANGE stands where it needs what others have. UNSUPPORTED names a split
 * that no kernel sums over, or that only a rank with all slices can compute. (pass_lower.c, lower_rank.c) */
enum keel_status keel_pass_lower(struct keel_graph *graph, const struct keel_slice_run cut[KEEL_MESH_AXES]);

/* quantise: products with this parameter have it in few bits, as keel_quantised_pack lays it out: its shape
 * is [words] from then on, and it is frozen. Of a model's graph, before any other pass. *out false: something
 * else than linear layers reads it, and nothing was changed. (pass_quantise.c) */
enum keel_status keel_pass_quantise(struct keel_graph *graph, uint32_t param, uint32_t bits, uint32_t group,
                                    bool *out);

/* fuse: those of the fusions that are asked for. Same bits, whichever. */
enum keel_fusions {
    KEEL_FUSE_GELU = 1,    /* into the product before it */
    KEEL_FUSE_DROPOUT = 2, /* the addition after it into dropout */
    KEEL_FUSE_NORM = 4,    /* the gradient that by-passes a norm into the norm's */
    KEEL_FUSE_LOSS = 8, /* the product that makes many rows of logits, their loss and gradients, in chunks of
                           rows */
    KEEL_FUSE_IMAGE = 16, /* an addition and a ReLU into the batch norm before them, the gradient of that ReLU
                             into the norm's */
    KEEL_FUSE_RESIDUAL = 32, /* the addition after a product into it */
    KEEL_FUSE_ALL = 63
};
enum keel_status keel_pass_fuse(struct keel_graph *graph, uint32_t fusions);

/* amp: what waits for the backward pass does so in `dtype`, KEEL_BF16 or KEEL_F16. Chosen after autodiff, put
 * in after fuse. UNSUPPORTED names a loss that cannot be scaled, of F16. */
enum keel_status keel_pass_amp_choose(struct keel_graph *graph, enum keel_dtype dtype);
enum keel_status keel_pass_amp(struct keel_graph *graph, enum keel_dtype dtype);

/* plan-memory: a place in the arena for each TEMP value. */
struct keel_memory_plan {
    uint64_t *offset;     /* bytes, by value; heap, owned */
    uint32_t *storage;    /* by value: the value whose place this one shares (itself when none) */
    uint64_t arena_bytes; /* how much room the values need */
    uint64_t floor_bytes; /* most bytes that live at one node: no plan can need less */
};
struct keel_memory_options {
    uint64_t align_bytes; /* a power of two */
    keel_value keep;      /* stays until the end (the output), or 0 */
    bool reuse;           /* false: every value has a place of its own */
};
enum keel_status keel_pass_memory(const struct keel_graph *graph, const struct keel_memory_options *options,
                                  struct keel_memory_plan *out);
void keel_memory_plan_fini(struct keel_memory_plan *plan);

/* keel_graph_dump with the place of each value; `plan` may be NULL. */
enum keel_status keel_graph_dump_plan(const struct keel_graph *graph, const struct keel_memory_plan *plan,
                                      const char *path);

#endif
