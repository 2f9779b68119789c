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

const char *keel_collective_name(enum keel_collective_kind kind)
{
    static const char *const names[KEEL_COLLECTIVE_COUNT] = {
        "all-reduce", "reduce-scatter", "reduce",  "all-gather", "all-gather-v", "all-to-all", "all-to-all-v",
        "broadcast",  "gather",         "scatter", "barrier",    "send",         "receive"};
    return (uint32_t)kind < KEEL_COLLECTIVE_COUNT ? names[kind] : "?";
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
    return kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE_SCATTER || kind == KEEL_REDUCE;
}

bool keel_kind_has_root(enum keel_collective_kind kind)
{
    return kind == KEEL_REDUCE || kind == KEEL_BROADCAST || kind == KEEL_GATHER || kind == KEEL_SCATTER;
}

bool keel_kind_is_pair(enum keel_collective_kind kind)
{
    return kind == KEEL_SEND || kind == KEEL_RECEIVE;
}
