/* tape.c - makes tapes: which shards are missing, where their nodes go, and what is done with the sums. */
#include "tape.h"
#include <keel/memory.h>

uint32_t keel_tape_bound(const struct keel_tape_config *config)
{
    enum { PER_SHARD = 4, PER_PIECE = 5, PER_STEP = 24 }; /* the largest of what the functions below put */
    uint32_t carried = 0;
    for (uint32_t s = 0; s < config->shard_count; s++)
        carried += config->shard_position[s] == config->position;
    /* Of each shard every segment, and as many additions as it has nodes to be merged with: one on average.
     */
    const uint32_t stores = config->waits != NULL ? 1 : 0;
    return carried * (PER_SHARD + (2 + stores) * (config->bucket_count + 1) +
                      2 * config->microbatches * config->segment_count) +
           2 * config->rounds * config->gather_count + PER_PIECE * config->bucket_count + PER_STEP;
}

enum keel_status keel_tape_reserve(struct keel_tape *tape, uint32_t actions)
{
    if (actions <= tape->capacity)
        return KEEL_OK;
    struct keel_action *more;
    KEEL_TRY(keel_alloc(actions, sizeof *more, &more));
    keel_free(tape->actions);
    *tape = (struct keel_tape){.actions = more, .capacity = actions};
    return KEEL_OK;
}

void keel_tape_fini(struct keel_tape *tape)
{
    keel_free(tape->actions);
    *tape = (struct keel_tape){.actions = NULL};
}

static void put(struct keel_tape *tape, struct keel_action action)
{
    KEEL_ASSERT(tape->count < tape->capacity);
    tape->actions[tape->count++] = action;
}

static void put_kind(struct keel_tape *tape, enum keel_action_kind kind)
{
    put(tape, (struct keel_action){.kind = (uint16_t)kind});
}

static void put_piece(struct keel_tape *tape, enum keel_action_kind kind, uint32_t piece)
{
    put(tape, (struct keel_action){.kind = (uint16_t)kind, .piece = piece});
}

static void put_slot(struct keel_tape *tape, enum keel_action_kind kind, int slot, uint32_t piece)
{
    put(tape, (struct keel_action){.kind = (uint16_t)kind, .slot = (int16_t)slot, .piece = piece});
}

static void put_microbatches(struct keel_tape *tape, uint32_t shard, uint32_t count)
{
    if (count > 0)
        put(tape, (struct keel_action){.kind = KEEL_ACTION_COMPUTE,
                                       .piece = KEEL_PIECE_ALL,
                                       .shard = shard,
                                       .microbatch_count = count});
}

static void put_segment(struct keel_tape *tape, uint32_t shard, uint32_t microbatch, uint32_t piece)
{
    put(tape, (struct keel_action){.kind = KEEL_ACTION_COMPUTE,
                                   .piece = piece,
                                   .shard = shard,
                                   .microbatch = microbatch,
                                   .microbatch_count = 1});
}

static bool is_missing(const struct keel_tape_config *config, const struct keel_partial_sums *hold,
                       uint32_t shard)
{
    return config->shard_position[shard] == config->position && !keel_hold_covers(hold, shard);
}

static uint32_t count_segments(const struct keel_tape_config *config)
{
    return config->segments != NULL ? config->segment_count : config->bucket_count + 1;
}

/* The piece that is final behind a segment of a shard's last microbatch; above bucket_count: none. */
static uint32_t piece_behind(const struct keel_tape_config *config, uint32_t segment)
{
    if (segment + 1 == count_segments(config))
        return config->bucket_count;
    return config->segments != NULL ? config->segments[segment].bucket : segment;
}

static uint32_t segment_of(const struct keel_engine_gather *gather, bool begins)
{
    return begins ? gather->begin : gather->first;
}

/* How many gathers begin before a segment, or are waited for: they are in the order of both. */
static uint32_t count_before(const struct keel_tape_config *config, uint32_t segment, bool begins)
{
    uint32_t low = 0, high = config->gather_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (segment_of(&config->gathers[middle], begins) < segment)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Before a segment: which gathers begin, and which it waits for. */
static void put_gathers(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t segment)
{
    const struct keel_engine_gather *gathers = config->gathers;
    const uint32_t count = config->gather_count;
    for (uint32_t g = count_before(config, segment, true); g < count && gathers[g].begin == segment; g++)
        put_slot(tape, KEEL_ACTION_WEIGHTS, (int)gathers[g].window, gathers[g].bucket);
    for (uint32_t g = count_before(config, segment, false); g < count && gathers[g].first == segment; g++)
        put_piece(tape, KEEL_ACTION_AWAIT, keel_piece_weights(config->bucket_count, gathers[g].bucket));
}

/* With the weights that it reads, and what is exchanged behind it; then, where a piece is final, the nodes of
 * siblings are added. Which it is; above bucket_count: none. */
static uint32_t put_part(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t shard,
                         uint32_t microbatch, uint32_t segment, const int *chain, uint32_t chain_count)
{
    const bool ends = microbatch + 1 == config->microbatches;
    const uint32_t piece = ends ? piece_behind(config, segment) : UINT32_MAX;
    const struct keel_tape_segment *of = config->segments != NULL ? &config->segments[segment] : NULL;
    put_gathers(tape, config, segment);
    put_segment(tape, shard, microbatch, segment);
    if (of != NULL && (of->exchanges || (ends && of->exchanges_last)))
        put(tape, (struct keel_action){.kind = KEEL_ACTION_EXCHANGE,
                                       .piece = segment,
                                       .shard = shard,
                                       .microbatch = microbatch,
                                       .microbatch_count = 1});
    for (uint32_t i = 0; piece <= config->bucket_count && i < chain_count; i++)
        put_slot(tape, KEEL_ACTION_ADD, chain[i], piece);
    return piece;
}

/* Segment by segment. */
static void put_microbatch(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t shard,
                           uint32_t microbatch, const int *chain, uint32_t chain_count, bool last)
{
    for (uint32_t s = 0; s < count_segments(config); s++) {
        const uint32_t piece = put_part(tape, config, shard, microbatch, s, chain, chain_count);
        if (last && piece < config->bucket_count)
            put_piece(tape, KEEL_ACTION_MARK, piece);
    }
}

/* Microbatches but the last run through, where nothing is exchanged in them; the last one stops behind each
 * segment. */
static void put_all_microbatches(struct keel_tape *tape, const struct keel_tape_config *config,
                                 uint32_t shard, const int *chain, uint32_t chain_count, bool last)
{
    const uint32_t m = config->microbatches - 1;
    if (config->segments == NULL)
        put_microbatches(tape, shard, m);
    for (uint32_t i = config->segments == NULL ? m : 0; i <= m; i++)
        put_microbatch(tape, config, shard, i, chain, chain_count, last);
}

/* Compressed: the host takes them when all are final. The slot is not that of a sibling: an attempt that ends
 * here keeps it. */
static void put_encoded(struct keel_tape *tape, const struct keel_tape_config *config,
                        struct keel_partial_sums *hold, uint32_t shard)
{
    const int slot = keel_hold_free_slot(hold);
    int chain[KEEL_HOLD_LEVELS_MAX];
    put_kind(tape, KEEL_ACTION_ZERO);
    put_all_microbatches(tape, config, shard, NULL, 0, false);
    put(tape, (struct keel_action){.kind = KEEL_ACTION_ENCODE, .slot = (int16_t)slot, .shard = shard});
    keel_hold_add(hold, shard, chain);
    keel_hold_in_gradients(hold)->slot = slot;
}

/* Where a segment makes a piece final, held siblings are added to it. Of the last shard each bucket is
 * marked, so that its sum overlaps the segments behind it. */
static void put_shard(struct keel_tape *tape, const struct keel_tape_config *config,
                      struct keel_partial_sums *hold, uint32_t shard, bool last)
{
    struct keel_held_node *before = keel_hold_in_gradients(hold);
    int chain[KEEL_HOLD_LEVELS_MAX];
    if (before != NULL) {
        before->slot = keel_hold_free_slot(hold);
        put_slot(tape, KEEL_ACTION_STORE, before->slot, KEEL_PIECE_ALL);
    }
    put_kind(tape, KEEL_ACTION_ZERO);
    const uint32_t chain_count = keel_hold_add(hold, shard, chain);
    put_all_microbatches(tape, config, shard, chain, chain_count, last);
    put(tape, (struct keel_action){.kind = KEEL_ACTION_HOLD, .shard = shard});
}

/* With windows, of a shard that is not the last: what is final goes to a slot, which is not that of a
 * sibling: an attempt that ends here keeps it. */
static void put_stored_shard(struct keel_tape *tape, const struct keel_tape_config *config,
                             struct keel_partial_sums *hold, uint32_t shard)
{
    const int slot = keel_hold_free_slot(hold);
    int chain[KEEL_HOLD_LEVELS_MAX];
    const uint32_t chain_count = keel_hold_add(hold, shard, chain);
    put_kind(tape, KEEL_ACTION_ZERO);
    for (uint32_t i = 0; i < count_segments(config); i++) {
        const uint32_t piece = put_part(tape, config, shard, 0, i, chain, chain_count);
        if (piece <= config->bucket_count)
            put_slot(tape, KEEL_ACTION_STORE, slot, piece);
    }
    put(tape, (struct keel_action){.kind = KEEL_ACTION_HOLD, .slot = (int16_t)slot, .shard = shard});
    keel_hold_in_gradients(hold)->slot = slot;
}

static void put_bucket_sum(struct keel_tape *tape, uint32_t bucket, int sum)
{
    put_slot(tape, KEEL_ACTION_REDUCE, sum, bucket);
    if (bucket == 0)
        put_kind(tape, KEEL_ACTION_DRILL);
}

/* With windows: the sums, the first `under_way` of which are, that use memory which comes next. */
static uint32_t put_early_awaits(struct keel_tape *tape, const struct keel_tape_config *config,
                                 uint32_t under_way, uint32_t awaited)
{
    for (; awaited < config->waits[under_way]; awaited++)
        put_piece(tape, KEEL_ACTION_AWAIT, awaited);
    return awaited;
}

/* A microbatch that others compute: this rank gives its pieces of weights; of the sums its nodes, if it holds
 * all of them. It waits for these when the others do, so that no more are under way here than there. */
static void put_idle_round(struct keel_tape *tape, const struct keel_tape_config *config, bool sums)
{
    uint32_t under_way = 0, awaited = 0;
    for (uint32_t s = 0; s < count_segments(config); s++) {
        if (sums)
            awaited = put_early_awaits(tape, config, under_way, awaited);
        put_gathers(tape, config, s);
        if (!sums || piece_behind(config, s) >= config->bucket_count)
            continue;
        put_bucket_sum(tape, piece_behind(config, s), KEEL_SUM_IN_PIECES);
        under_way++;
    }
}

static void put_idle_rounds(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t but)
{
    for (uint32_t round = but; round < config->rounds; round++)
        put_idle_round(tape, config, false);
}

/* With windows, the last shard: each segment when there is memory for what it adds to, each bucket's sum when
 * that is final. */
static void put_last_shard(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t shard,
                           const int *chain, uint32_t chain_count)
{
    uint32_t under_way = 0, awaited = 0;
    for (uint32_t s = 0; s < count_segments(config); s++) {
        awaited = put_early_awaits(tape, config, under_way, awaited);
        const uint32_t piece = put_part(tape, config, shard, 0, s, chain, chain_count);
        if (piece >= config->bucket_count)
            continue;
        put_piece(tape, KEEL_ACTION_MARK, piece);
        if (piece == 0)
            put(tape,
                (struct keel_action){.kind = KEEL_ACTION_HOLD, .slot = KEEL_HOLD_GRADIENTS, .shard = shard});
        put_bucket_sum(tape, piece, KEEL_SUM_IN_PIECES);
        under_way = piece + 1;
    }
}

/* What is left of the sums, of which the first `awaited` are there. The loss is last: without it nobody
 * finishes the step, so what is found wrong before it is in nobody's weights. */
static void put_loss_sum(struct keel_tape *tape, const struct keel_tape_config *config, uint32_t awaited)
{
    const uint32_t loss = config->bucket_count, records = loss + 1;
    put_kind(tape, KEEL_ACTION_LOSS);
    put_kind(tape, KEEL_ACTION_SETTLE);
    put_kind(tape, KEEL_ACTION_SCREEN);
    put_piece(tape, KEEL_ACTION_COMPARE, records);
    put_slot(tape, KEEL_ACTION_REDUCE, KEEL_SUM_ON_HOST, loss);
    for (uint32_t piece = awaited; piece <= records; piece++) {
        put_piece(tape, KEEL_ACTION_AWAIT, piece);
        if (config->shadowed && piece + 1 == loss)
            put_kind(tape, KEEL_ACTION_SHADOW);
    }
}

/* With windows: all missing shards, and the sums. */
static void put_windowed(struct keel_tape *tape, const struct keel_tape_config *config,
                         struct keel_partial_sums *hold)
{
    int chain[KEEL_HOLD_LEVELS_MAX];
    uint32_t chain_count = 0, last = config->shard_count;
    put_idle_rounds(tape, config, tape->shards_computed > 0 ? tape->shards_computed : 1);
    for (uint32_t s = 0; s < config->shard_count; s++) {
        if (!is_missing(config, hold, s))
            continue;
        if (last < config->shard_count)
            put_stored_shard(tape, config, hold, last);
        last = s;
    }
    const bool computes = last < config->shard_count;
    if (tape->shards_computed == 0)
        put_kind(tape, KEEL_ACTION_FINISH);
    put_kind(tape, KEEL_ACTION_RECORD);
    if (computes) {
        put_kind(tape, KEEL_ACTION_ZERO);
        chain_count = keel_hold_add(hold, last, chain);
    }
    tape->part_count = hold->count;
    if (computes)
        put_last_shard(tape, config, last, chain, chain_count);
    else
        put_idle_round(tape, config, true);
    put_loss_sum(tape, config, config->waits[config->bucket_count]);
}

/* One sum a bucket, as they become final. */
static void put_sums(struct keel_tape *tape, const struct keel_tape_config *config, int sum)
{
    for (uint32_t piece = 0; piece < config->bucket_count; piece++)
        put_bucket_sum(tape, piece, sum);
    put_loss_sum(tape, config, 0);
}

/* Squares go last, when the shadows have their sums too: who has all squares knows that every sum is with its
 * holders, and updates; who has not may still do so with the norm of one who has. */
static void put_commit(struct keel_tape *tape, const struct keel_tape_config *config)
{
    const uint32_t buckets = config->bucket_count;
    put_kind(tape, KEEL_ACTION_SQUARE);
    if (config->shadowed)
        put_piece(tape, KEEL_ACTION_AWAIT, keel_piece_shadow(buckets));
    put_kind(tape, KEEL_ACTION_COMMIT);
    put_piece(tape, KEEL_ACTION_AWAIT, keel_piece_commit(buckets));
}

/* From the owners to all, unless they are gathered when they are read. */
static void put_weights(struct keel_tape *tape, const struct keel_tape_config *config)
{
    const uint32_t buckets = config->bucket_count;
    put_piece(tape, KEEL_ACTION_DRILL, 1);
    if (config->gathers != NULL)
        return;
    for (uint32_t piece = 0; piece < buckets; piece++)
        put_piece(tape, KEEL_ACTION_SPREAD, piece);
    for (uint32_t piece = 0; piece < buckets; piece++)
        put_piece(tape, KEEL_ACTION_AWAIT, keel_piece_weights(buckets, piece));
}

/* All shards are here: the sum is one node. */
static void put_alone(struct keel_tape *tape)
{
    put_kind(tape, KEEL_ACTION_DRILL);
    put_kind(tape, KEEL_ACTION_LOSS);
    put_kind(tape, KEEL_ACTION_SETTLE);
    put_kind(tape, KEEL_ACTION_SCREEN);
}

/* Where the update reads the sum: of a rank alone its node, else where no node lies. */
static int place_of_sum(const struct keel_tape_config *config, struct keel_partial_sums *hold)
{
    KEEL_ASSERT(config->grouped || hold->count == 1);
    if (config->in_pieces)
        return KEEL_SUM_IN_PIECES;
    if (!config->grouped)
        return hold->held[0].slot;
    if (config->compressed)
        return KEEL_SUM_ON_HOST;
    return keel_hold_in_gradients(hold) == NULL ? KEEL_HOLD_GRADIENTS : keel_hold_free_slot(hold);
}

/* Without windows: all missing shards, and the sums. Where these are. */
static int put_whole(struct keel_tape *tape, const struct keel_tape_config *config,
                     struct keel_partial_sums *hold)
{
    uint32_t missing = tape->shards_computed;
    put_idle_rounds(tape, config, missing * config->microbatches);
    for (uint32_t s = 0; s < config->shard_count; s++)
        if (is_missing(config, hold, s) && config->compressed)
            put_encoded(tape, config, hold, s);
        else if (is_missing(config, hold, s))
            put_shard(tape, config, hold, s, --missing == 0);
    if (tape->shards_computed == 0) /* the attempt that computed it may have ended before the device did */
        put_kind(tape, KEEL_ACTION_FINISH);
    tape->part_count = hold->count;
    const int sum = place_of_sum(config, hold);
    put_kind(tape, KEEL_ACTION_RECORD);
    if (config->grouped)
        put_sums(tape, config, sum);
    else
        put_alone(tape);
    return sum;
}

void keel_tape_make(struct keel_tape *tape, const struct keel_tape_config *config)
{
    struct keel_partial_sums hold = *config->held;
    uint32_t missing = 0;
    KEEL_ASSERT(tape->capacity >= keel_tape_bound(config));
    KEEL_ASSERT(!config->in_pieces || (config->grouped && !config->compressed));
    KEEL_ASSERT(config->segments == NULL || config->sharing || config->gathers != NULL);
    KEEL_ASSERT(config->gathers == NULL ||
                (config->in_pieces && config->segments != NULL && config->rounds > 0));
    KEEL_ASSERT(config->waits == NULL || (config->in_pieces && config->microbatches == 1));
    KEEL_ASSERT(config->bucket_count > 0 && config->microbatches > 0 &&
                hold.shard_count == config->shard_count);
    for (uint32_t s = 0; s < config->shard_count; s++)
        missing += is_missing(config, &hold, s);
    tape->count = 0;
    tape->shards_computed = missing;
    KEEL_ASSERT(config->gathers == NULL || missing * config->microbatches <= config->rounds);
    int sum = KEEL_SUM_IN_PIECES;
    if (config->waits != NULL)
        put_windowed(tape, config, &hold);
    else
        sum = put_whole(tape, config, &hold);
    put_kind(tape, KEEL_ACTION_CHECK);
    if (config->compressed) {
        put_slot(tape, KEEL_ACTION_DECODE, sum, 0);
        sum = KEEL_HOLD_GRADIENTS;
    }
    if (config->in_pieces)
        put_commit(tape, config);
    if (config->sharing) {
        put_slot(tape, KEEL_ACTION_NORM, sum, 0);
        put_slot(tape, KEEL_ACTION_AGREE, sum, 0);
    }
    put_kind(tape, KEEL_ACTION_CAPTURE);
    put_slot(tape, KEEL_ACTION_UPDATE, sum, 0);
    if (config->in_pieces)
        put_weights(tape, config);
    if (config->sharing || config->gathers != NULL)
        put_kind(tape, KEEL_ACTION_DIGEST);
}
