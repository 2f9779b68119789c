/* erasure_rig.h - erasure sets for tests: nodes as tiers of their own, shards of ragged sizes, or none. */
#ifndef KEEL_TESTS_CKPT_ERASURE_RIG_H
#define KEEL_TESTS_CKPT_ERASURE_RIG_H

#include "parity.h"
#include "tier_rig.h"

enum { NODES_MAX = KEEL_ERASURE_NODES_MAX, NODE_BYTES = 8 << 20 };

struct blob {
    uint8_t *data;
    uint64_t bytes;
};

/* A set over memory tiers, and what every node held before anything was lost. */
struct node_set {
    uint32_t n, m, set;
    uint32_t ranks[NODES_MAX];
    struct keel_tier *tiers[NODES_MAX];
    struct blob shards[NODES_MAX], parities[NODES_MAX];
};

static inline struct keel_object parity_object(uint32_t set, uint32_t member)
{
    return (struct keel_object){
        .step = 5, .attempt = 2, .kind = KEEL_OBJECT_PARITY, .set = set, .member = member};
}

/* Shards of step 5.2 with one tensor each, of any size up to `bytes_max`; every fifth node has none. Returns
 * how many ranks there are. */
static inline uint32_t save_ragged(struct keel_store *store, uint32_t n, uint64_t bytes_max, uint64_t *state,
                                   uint32_t ranks[NODES_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = i % 5 == 3 ? KEEL_ERASURE_NO_SHARD : count++;
    struct keel_shard_summary shards[NODES_MAX];
    for (uint32_t r = 0; r < count; r++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", r);
        uint64_t size = draw(state, bytes_max);
        struct keel_region tensor = whole(name, KEEL_CKPT_U8, 1, &size);
        struct sample_save how = {
            .step = 5, .attempt = 2, .salt = r, .rank = r, .rank_count = count, .codec = KEEL_CODEC_RAW};
        ck_ok(save_rank(store, &how, &tensor, 1, &shards[r]));
    }
    ck_ok(commit_all(store, 5, 2, shards, count));
    return count;
}

static inline struct node_set make_nodes(const struct origin *origin, uint32_t n, uint64_t bytes_max,
                                         uint64_t *state)
{
    struct node_set nodes = {.n = n};
    save_ragged(origin->store, n, bytes_max, state, nodes.ranks);
    for (uint32_t i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "node %u", i);
        ck_ok(keel_tier_memory_open("sample", NODE_BYTES, name, &nodes.tiers[i]));
        if (nodes.ranks[i] == KEEL_ERASURE_NO_SHARD)
            continue;
        struct keel_object object = shard_object(5, 2, nodes.ranks[i]);
        ck_ok(keel_tier_copy(origin->tier, &object, nodes.tiers[i]));
        ck_ok(read_object(nodes.tiers[i], &object, &nodes.shards[i].data, &nodes.shards[i].bytes));
    }
    return nodes;
}

static inline void protect_nodes(struct node_set *nodes, uint32_t m, uint32_t cell_bytes)
{
    nodes->m = m;
    nodes->set = m; /* any number */
    struct keel_erasure_config config = {.step = 5,
                                         .attempt = 2,
                                         .set = nodes->set,
                                         .node_count = nodes->n,
                                         .parity_count = m,
                                         .cell_bytes = cell_bytes,
                                         .ranks = nodes->ranks,
                                         .from = nodes->tiers,
                                         .to = nodes->tiers};
    ck_ok(keel_erasure_protect(&config));
    for (uint32_t i = 0; i < nodes->n; i++) {
        struct keel_object object = parity_object(nodes->set, i);
        keel_free(nodes->parities[i].data);
        ck_ok(read_object(nodes->tiers[i], &object, &nodes->parities[i].data, &nodes->parities[i].bytes));
    }
}

static inline void end_nodes(struct node_set *nodes)
{
    for (uint32_t i = 0; i < nodes->n; i++) {
        keel_tier_end(nodes->tiers[i]);
        keel_free(nodes->shards[i].data);
        keel_free(nodes->parities[i].data);
    }
}

/* OK only with exactly these bytes. */
static inline enum keel_status same_as_before(struct keel_tier *tier, const struct keel_object *object,
                                              const struct blob *before)
{
    uint8_t *data;
    uint64_t bytes;
    KEEL_TRY(read_object(tier, object, &data, &bytes));
    ck_assert_uint_eq(bytes, before->bytes);
    ck_assert_mem_eq(data, before->data, bytes);
    keel_free(data);
    return KEEL_OK;
}

/* What node `i` held, read from `tier`. */
static inline enum keel_status node_as_before(const struct node_set *nodes, struct keel_tier *tier,
                                              uint32_t i)
{
    struct keel_object parity = parity_object(nodes->set, i);
    if (nodes->ranks[i] != KEEL_ERASURE_NO_SHARD) {
        struct keel_object shard = shard_object(5, 2, nodes->ranks[i]);
        KEEL_TRY(same_as_before(tier, &shard, &nodes->shards[i]));
    }
    return same_as_before(tier, &parity, &nodes->parities[i]);
}

#endif
