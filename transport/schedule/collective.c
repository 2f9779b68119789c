/* collective.c - the names and sizes of what transport.h lists, and what its kinds have in common. */
#include "schedule.h"

uint32_t keel_element_bytes(enum keel_element element)
{
    static const uint32_t bytes[KEEL_ELEMENT_ALL] = {4, 8, 2, 2, 1, 4, 8, 1, 64, 64};
    return (uint32_t)element < KEEL_ELEMENT_ALL ? bytes[element] : 0;
}

const char *keel_element_name(enum keel_element element)
{
    static const char *const names[KEEL_ELEMENT_ALL] = {"f32", "f64", "f16", "bf16",     "i8",
                                                        "i32", "i64", "u8",  "i8-block", "top-k"};
    return (uint32_t)element < KEEL_ELEMENT_ALL ? names[element] : "?";
}

const char *keel_reduction_name(enum keel_reduction reduction)
{
    static const char *const names[KEEL_REDUCTION_COUNT] = {"sum", "min", "max", "average"};
    return (uint32_t)reduction < KEEL_REDUCTION_COUNT ? names[reduction] : "?";
}

/* A row a kind, in the order of transport.h: name, what a rank gives, what it gets, how the root counts. */
#define KINDS(X)                                                                                             \
    X(KEEL_ALL_REDUCE, "all-reduce", KEEL_SHAPE_VECTOR, KEEL_SHAPE_VECTOR, KEEL_KIND_REDUCES)                \
    X(KEEL_REDUCE_SCATTER, "reduce-scatter", KEEL_SHAPE_BLOCKS, KEEL_SHAPE_BLOCK, KEEL_KIND_REDUCES)         \
    X(KEEL_REDUCE, "reduce", KEEL_SHAPE_VECTOR, KEEL_SHAPE_VECTOR, KEEL_KIND_REDUCES | KEEL_KIND_ROOT_GETS)  \
    X(KEEL_ALL_GATHER, "all-gather", KEEL_SHAPE_BLOCK, KEEL_SHAPE_BLOCKS, 0)                                 \
    X(KEEL_ALL_GATHER_V, "all-gather-v", KEEL_SHAPE_BLOCK, KEEL_SHAPE_TABLE, 0)                              \
    X(KEEL_ALL_TO_ALL, "all-to-all", KEEL_SHAPE_BLOCKS, KEEL_SHAPE_BLOCKS, 0)                                \
    X(KEEL_ALL_TO_ALL_V, "all-to-all-v", KEEL_SHAPE_TABLE, KEEL_SHAPE_TABLE, 0)                              \
    X(KEEL_BROADCAST, "broadcast", KEEL_SHAPE_VECTOR, KEEL_SHAPE_VECTOR, KEEL_KIND_ROOT_GIVES)               \
    X(KEEL_GATHER, "gather", KEEL_SHAPE_BLOCK, KEEL_SHAPE_BLOCKS, KEEL_KIND_ROOT_GETS)                       \
    X(KEEL_SCATTER, "scatter", KEEL_SHAPE_BLOCKS, KEEL_SHAPE_BLOCK, KEEL_KIND_ROOT_GIVES)                    \
    X(KEEL_BARRIER, "barrier", KEEL_SHAPE_NOTHING, KEEL_SHAPE_NOTHING, 0)                                    \
    X(KEEL_SEND, "send", KEEL_SHAPE_BLOCK, KEEL_SHAPE_NOTHING, KEEL_KIND_PAIR)                               \
    X(KEEL_RECEIVE, "receive", KEEL_SHAPE_NOTHING, KEEL_SHAPE_BLOCK, KEEL_KIND_PAIR)
#define ROW(kind, name, part, result, marks) [kind] = {name, part, result, marks},
static const struct keel_kind kinds[] = {KINDS(ROW)};
_Static_assert(sizeof kinds / sizeof kinds[0] == KEEL_COLLECTIVE_COUNT, "a row for each kind");

const struct keel_kind *keel_kind(enum keel_collective_kind kind)
{
    static const struct keel_kind unknown = {.name = "?"};
    return (uint32_t)kind < KEEL_COLLECTIVE_COUNT ? &kinds[kind] : &unknown;
}

const char *keel_collective_name(enum keel_collective_kind kind)
{
    return keel_kind(kind)->name;
}

const char *keel_algorithm_name(enum keel_algorithm algorithm)
{
    static const char *const names[KEEL_ALGORITHM_COUNT] = {
        "auto", "flat", "direct", "ring", "tree", "halving", "bruck", "pairwise", "two-level", "doubling"};
    return (uint32_t)algorithm < KEEL_ALGORITHM_COUNT ? names[algorithm] : "?";
}

const char *keel_order_name(enum keel_order order)
{
    return order == KEEL_ORDER_EXACT ? "exact" : "native";
}

bool keel_kind_reduces(enum keel_collective_kind kind)
{
    return (keel_kind(kind)->marks & KEEL_KIND_REDUCES) != 0;
}

bool keel_kind_has_root(enum keel_collective_kind kind)
{
    return (keel_kind(kind)->marks & (KEEL_KIND_ROOT_GIVES | KEEL_KIND_ROOT_GETS)) != 0;
}

bool keel_kind_is_pair(enum keel_collective_kind kind)
{
    return (keel_kind(kind)->marks & KEEL_KIND_PAIR) != 0;
}

bool keel_kind_gives(enum keel_collective_kind kind, bool root)
{
    const struct keel_kind *row = keel_kind(kind);
    return row->part != KEEL_SHAPE_NOTHING && (root || (row->marks & KEEL_KIND_ROOT_GIVES) == 0);
}

bool keel_kind_gets(enum keel_collective_kind kind, bool root)
{
    const struct keel_kind *row = keel_kind(kind);
    return row->result != KEEL_SHAPE_NOTHING && (root || (row->marks & KEEL_KIND_ROOT_GETS) == 0);
}

bool keel_has_counts(const struct keel_collective *what)
{
    return keel_kind(what->kind)->result == KEEL_SHAPE_TABLE ||
           (what->kind == KEEL_REDUCE_SCATTER && what->counts_out != NULL);
}
