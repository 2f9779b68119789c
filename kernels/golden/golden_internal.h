/* golden_internal.h - between the table of golden cases and what runs them.
 *
 * A case is built by one function, which is called twice with the same shape: first to measure (no
 * device memory yet, every operand is NULL), then in earnest. It asks for its operands in order and ends
 * with the keel_op_ call:
 *
 *     struct keel_add op = {.count = shape[0], .a = golden_floats(run, "a", shape[0], -1.0F, 1.0F), ...};
 *     return golden_ready(run) ? keel_op_add(run->kernels, &op, &run->list) : KEEL_OK; */
#ifndef KEEL_GOLDEN_INTERNAL_H
#define KEEL_GOLDEN_INTERNAL_H

#include "kernels_internal.h"

#include <keel/golden.h>

enum { GOLDEN_OPERANDS_MAX = 20, GOLDEN_SHAPE_MAX = 8 };

enum golden_role {
    GOLDEN_INPUT,   /* filled, must stay as it is */
    GOLDEN_OUTPUT,  /* poisoned, hashed */
    GOLDEN_UPDATED, /* filled, hashed */
    GOLDEN_SCRATCH  /* poisoned, not looked at */
};

struct golden_operand {
    const char *name;
    enum golden_role role;
    uint64_t bytes;
    uint8_t *sent, *back;       /* heap: guard, data, guard, as written and as read back */
    struct keel_buffer *whole;  /* the same on the device */
    struct keel_buffer *middle; /* its data, what kernels get; `whole` itself where there is no guard */
};

struct golden_run {
    struct keel_kernels *kernels;
    enum keel_class numerics; /* whose case it is */
    uint64_t guard_bytes;     /* before and behind each operand */
    uint64_t random;          /* state of the generator, begun from the name of the case */
    bool measuring;
    enum keel_status status; /* the first error of the operands */
    struct golden_operand operands[GOLDEN_OPERANDS_MAX];
    uint32_t operand_count;
    struct keel_launch_list list;
};

struct golden_case {
    const char *name, *op;
    enum keel_module_id module;
    enum keel_status (*build)(struct golden_run *run, const uint32_t *shape);
    uint32_t shape[GOLDEN_SHAPE_MAX]; /* as `build` reads it */
    uint64_t expected;
};
/* The cases of one family of operations: a table of its own beside the builders, in golden_NAME.c. To add
 * one: a line here. Cases are numbered through all families in this order. */
#define GOLDEN_FAMILIES(X)                                                                                   \
    X(core)                                                                                                  \
    X(tensor)                                                                                                \
    X(attention)                                                                                             \
    X(table)                                                                                                 \
    X(image)                                                                                                 \
    X(optimizer) X(exact8x2) X(exact8x3) X(bf16) X(attention_exact8x2) X(attention_exact8x3) X(attention_bf16)
struct golden_family {
    const struct golden_case *cases;
    uint32_t count;
    enum keel_class numerics; /* of those who have them; KEEL_CANONICAL: all */
};
#define GOLDEN_EXTERN(name) extern const struct golden_family golden_##name;
GOLDEN_FAMILIES(GOLDEN_EXTERN)
#undef GOLDEN_EXTERN

/* A row: the function that builds it, which is also its operation's name, its module, the rest of its name,
 * its hash, its shape. */
#define GOLDEN_CASE(op, module, name, hash, ...) GOLDEN_CASE_OF(op, #op, module, name, hash, __VA_ARGS__)
/* The same with another family of names, which inputs come from. */
#define GOLDEN_CASE_OF(op, family, module, name, hash, ...)                                                  \
    {                                                                                                        \
        family "/" name, #op, KEEL_MODULE_##module, op, {__VA_ARGS__}, UINT64_C(hash)                        \
    }

/* A macro of what stands in brackets in a row of a table. */
#define GOLDEN_CALL(macro, ...) macro(__VA_ARGS__)
#define GOLDEN_UNPACK(...)      __VA_ARGS__

/* One more operand; NULL while measuring, and after an error. `count` floats in [low, high), */
struct keel_buffer *golden_floats(struct golden_run *run, const char *name, enum golden_role role,
                                  uint64_t count, float low, float high);
/* `count` int32 in [0, below), */
struct keel_buffer *golden_ids(struct golden_run *run, const char *name, uint64_t count, uint32_t below);
/* any bits at all, these bytes, or poison for what is to be written. */
struct keel_buffer *golden_bits(struct golden_run *run, const char *name, uint64_t bytes);
struct keel_buffer *golden_bytes(struct golden_run *run, const char *name, enum golden_role role,
                                 const void *data, uint64_t bytes);
struct keel_buffer *golden_written(struct golden_run *run, const char *name, enum golden_role role,
                                   uint64_t bytes);

/* Floats in [-1, 1) that are read; floats to be written; scratch; a control block with all fields set. */
#define GOLDEN_FLOATS(run, name, count) golden_floats(run, name, GOLDEN_INPUT, count, -1.0F, 1.0F)
static inline struct keel_buffer *golden_output(struct golden_run *run, const char *name, uint64_t count)
{
    return golden_written(run, name, GOLDEN_OUTPUT, count * sizeof(float));
}
static inline struct keel_buffer *golden_scratch(struct golden_run *run, const char *name, uint64_t bytes)
{
    return golden_written(run, name, GOLDEN_SCRATCH, bytes);
}
struct keel_buffer *golden_control(struct golden_run *run, float max_norm);

static inline bool golden_ready(const struct golden_run *run)
{
    return !run->measuring && run->status == KEEL_OK;
}

/* keel_golden_run with guards of so many bytes on either side, at least; 0: each operand is a buffer of
 * exactly its size, for devices that watch bounds themselves. */
enum keel_status golden_run_guarded(struct keel_kernels *kernels, struct keel_queue *queue, uint32_t index,
                                    uint64_t guard_bytes, uint64_t deadline_ns,
                                    struct keel_golden_result *out);

/* What a case launches, and its operands, in a run that is zero but for `kernels`, its class and the guards.
 * Fini frees what was made, also after an error. */
enum keel_status golden_build(struct golden_run *run, uint32_t index);
void golden_run_fini(struct golden_run *run);

#endif
