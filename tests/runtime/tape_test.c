/* tape_test.c - tapes that are made pass the check, do each shard's work once and leave what the group
 * expects; tapes with an action dropped, doubled, exchanged or misdirected are refused. */
#include "harness.h"
#include "tape.h"
#include <jansson.h>
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROUNDS = 400,
    SHARDS_MAX = 16,
    RANKS_MAX = 16,
    SEGMENTS_MAX = 16,
    PLACES_MAX = 4,
    BUCKETS_MAX = 5,
    GATHERS_MAX = 12
};

static uint32_t random_state = 1;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % below;
}

struct world {
    uint16_t shard_position[SHARDS_MAX];
    struct keel_partial_sums held;
    uint32_t waits[BUCKETS_MAX + 1];
    struct keel_tape_config config;
    struct keel_tape tape;
    struct keel_tape_segment segments[SEGMENTS_MAX];
    struct keel_engine_gather gathers[GATHERS_MAX];
};

/* Nodes that a life before has left: some shards of this rank were computed, in whatever order, then the map
 * changed. */
static void hold_some(struct world *world)
{
    int merged[KEEL_HOLD_LEVELS_MAX];
    const uint32_t shards = world->config.shard_count;
    for (uint32_t n = next_random(shards + 1); n > 0; n--) {
        const uint32_t shard = next_random(shards);
        if (keel_hold_covers(&world->held, shard))
            continue;
        struct keel_held_node *node = keel_hold_in_gradients(&world->held);
        if (node != NULL)
            node->slot = keel_hold_free_slot(&world->held);
        keel_hold_add(&world->held, shard, merged);
        node = keel_hold_in_gradients(&world->held);
        if (world->config.compressed || world->config.waits != NULL) /* all on the host, or in slots */
            node->slot = keel_hold_free_slot(&world->held);
    }
    keel_hold_keep(&world->held, world->shard_position, world->config.position);
}

/* Ranks with some slices: buckets end in order, something is exchanged behind about every second segment, and
 * behind some in the last microbatch of a shard alone. */
static void cut_segments(struct world *world)
{
    struct keel_tape_config *config = &world->config;
    config->sharing = true;
    config->segments = world->segments;
    for (uint32_t b = 0; b <= config->bucket_count; config->segment_count++) {
        const bool ends =
            next_random(2) == 0 || config->segment_count + config->bucket_count >= SEGMENTS_MAX - 2;
        const bool exchanges = next_random(2) == 0;
        world->segments[config->segment_count] =
            (struct keel_tape_segment){.bucket = ends && b < config->bucket_count ? b : UINT32_MAX,
                                       .exchanges = exchanges,
                                       .exchanges_last = !exchanges && next_random(2) == 0};
        b += ends;
    }
}

/* The first window that nobody reads from `begin` on; how many there are grows with it. */
static uint32_t free_window(const struct world *world, uint32_t begin)
{
    uint32_t window = 0;
    for (uint32_t g = 0; g < world->config.gather_count; g++)
        if (world->gathers[g].window == window && world->gathers[g].last >= begin) {
            window++;
            g = UINT32_MAX; /* from the first again */
        }
    return window;
}

/* Weights come, some ahead, and are read by one segment or more. */
static void gather_weights(struct world *world)
{
    struct keel_tape_config *config = &world->config;
    uint32_t first = 0, begin = 0;
    config->gathers = world->gathers;
    while (config->gather_count < GATHERS_MAX && first < config->segment_count) {
        const uint32_t ahead = next_random(3), most = config->segment_count - 1;
        const uint32_t wanted = first > ahead && config->gather_count > 0 ? first - ahead : 0;
        begin = wanted > begin ? wanted : begin;
        const uint32_t last = first + next_random(2);
        world->gathers[config->gather_count] =
            (struct keel_engine_gather){.bucket = next_random(config->bucket_count),
                                        .window = free_window(world, begin),
                                        .begin = begin,
                                        .first = first,
                                        .last = last < most ? last : most};
        config->gather_count++;
        first += next_random(3);
    }
}

/* Segments end for the sake of weights alone. */
static void share_nothing(struct world *world)
{
    world->config.sharing = false;
    for (uint32_t s = 0; s < world->config.segment_count; s++)
        world->segments[s].exchanges = world->segments[s].exchanges_last = false;
}

/* As many as this rank, or another one, has to compute. */
static uint32_t draw_rounds(const struct world *world)
{
    uint32_t rounds = 0;
    for (uint32_t s = 0; s < world->config.shard_count; s++)
        if (world->shard_position[s] == world->config.position && !keel_hold_covers(&world->held, s))
            rounds += world->config.microbatches;
    rounds += next_random(3);
    return rounds > 0 ? rounds : 1;
}

/* Buckets lie where others did before: what must be summed before a segment runs only grows. */
static void use_windows(struct world *world)
{
    world->config.waits = world->waits;
    world->config.microbatches = 1;
    for (uint32_t s = 1; s <= world->config.bucket_count; s++) {
        const uint32_t most = s - 1, least = world->waits[s - 1];
        world->waits[s] = least + (most > least ? next_random(most - least + 1) : 0);
    }
}

static void make_world(struct world *world)
{
    *world = (struct world){.held = {.shard_count = 0}};
    const uint32_t shards = 1 + next_random(SHARDS_MAX), ranks = 1 + next_random(RANKS_MAX);
    for (uint32_t s = 0; s < shards; s++)
        world->shard_position[s] = (uint16_t)next_random(ranks);
    world->held.shard_count = shards;
    world->config = (struct keel_tape_config){.bucket_count = 1 + next_random(BUCKETS_MAX),
                                              .microbatches = 1 + next_random(4),
                                              .shard_count = shards,
                                              .shard_position = world->shard_position,
                                              .position = next_random(ranks),
                                              .grouped = ranks > 1 || next_random(2) == 0,
                                              .compressed = next_random(3) == 0,
                                              .held = &world->held};
    if (next_random(2) == 0 && !world->config.compressed) {
        world->config.in_pieces = world->config.grouped = true;
        world->config.shadowed = next_random(2) == 0;
    }
    const bool gathers = world->config.in_pieces && next_random(2) == 0;
    if (next_random(2) == 0 || gathers)
        cut_segments(world);
    if (world->config.in_pieces && next_random(2) == 0)
        use_windows(world);
    if (gathers)
        gather_weights(world);
    if (gathers && next_random(2) == 0)
        share_nothing(world);
    hold_some(world);
    world->config.rounds = gathers ? draw_rounds(world) : 0;
    ck_ok(keel_tape_reserve(&world->tape, keel_tape_bound(&world->config)));
    keel_tape_make(&world->tape, &world->config);
}

static uint32_t count_of(const struct keel_tape *tape, enum keel_action_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < tape->count; i++)
        count += tape->actions[i].kind == kind;
    return count;
}

/* Microbatches of a shard that reach piece 0. */
static uint32_t computed_of(const struct keel_tape *tape, uint32_t shard)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < tape->count; i++) {
        const struct keel_action *action = &tape->actions[i];
        if (action->kind == KEEL_ACTION_COMPUTE && action->shard == shard &&
            (action->piece == 0 || action->piece == KEEL_PIECE_ALL))
            count += action->microbatch_count;
    }
    return count;
}

START_TEST(a_tape_does_what_is_missing_once_and_passes_the_check)
{
    struct keel_tree_node nodes[SHARDS_MAX];
    uint32_t node_count, compressed = 0;
    for (uint32_t round = 0; round < ROUNDS * 10; round++) {
        struct world world;
        make_world(&world);
        ck_ok(keel_tape_check(&world.tape, &world.config));
        for (uint32_t s = 0; s < world.config.shard_count; s++) {
            bool missing =
                world.shard_position[s] == world.config.position && !keel_hold_covers(&world.held, s);
            ck_assert_uint_eq(computed_of(&world.tape, s), missing ? world.config.microbatches : 0);
        }
        ck_ok(keel_tree_nodes(world.config.shard_count, world.shard_position, world.config.position, nodes,
                              SHARDS_MAX, &node_count));
        ck_assert_uint_eq(world.tape.part_count, node_count);
        const uint32_t sums = world.config.grouped ? world.config.bucket_count + 1 : 0;
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_REDUCE), sums);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_COMPARE), world.config.grouped);
        const uint32_t buckets = world.config.in_pieces ? world.config.bucket_count : 0;
        const uint32_t shadows = world.config.shadowed, pieces = world.config.in_pieces;
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_SHADOW), shadows);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_COMMIT), pieces);
        const uint32_t gathers = world.config.rounds * world.config.gather_count;
        const uint32_t spreads = world.config.gathers != NULL ? 0 : buckets;
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_SPREAD), spreads);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_WEIGHTS), gathers);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_AWAIT),
                          sums + world.config.grouped + shadows + pieces + spreads + gathers);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_UPDATE), 1);
        uint32_t exchanges = 0;
        for (uint32_t s = 0; s < world.config.segment_count; s++)
            exchanges += world.segments[s].exchanges        ? world.config.microbatches
                         : world.segments[s].exchanges_last ? 1
                                                            : 0;
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_EXCHANGE),
                          exchanges * world.tape.shards_computed);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_NORM), world.config.sharing);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_AGREE), world.config.sharing);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_DIGEST),
                          world.config.sharing || world.config.gathers != NULL);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_DECODE), world.config.compressed);
        ck_assert_uint_eq(count_of(&world.tape, KEEL_ACTION_ENCODE),
                          world.config.compressed ? world.tape.shards_computed : 0);
        compressed += world.config.compressed;
        keel_tape_fini(&world.tape);
    }
    ck_assert_uint_gt(compressed, ROUNDS);
}
END_TEST

/* ---- mutants ------------------------------------------------------------------------------------------- */

static struct keel_tape copy_of(const struct keel_tape *tape)
{
    struct keel_tape copy = {.actions = NULL};
    ck_ok(keel_tape_reserve(&copy, tape->count + 1));
    memcpy(copy.actions, tape->actions, tape->count * sizeof *tape->actions);
    copy.count = tape->count;
    copy.shards_computed = tape->shards_computed;
    copy.part_count = tape->part_count;
    return copy;
}

static void refuse(struct keel_tape *mutant, const struct world *world, const char *what, uint32_t at)
{
    enum keel_status status = keel_tape_check(mutant, &world->config);
    ck_assert_msg(status == KEEL_INVALID, "action %u of %u, %s, %s: not refused", at, world->tape.count,
                  keel_action_name((enum keel_action_kind)world->tape.actions[at].kind), what);
    keel_tape_fini(mutant);
}

static void drop_and_double(const struct world *world)
{
    for (uint32_t i = 0; i < world->tape.count; i++) {
        struct keel_tape mutant = copy_of(&world->tape);
        memmove(&mutant.actions[i], &mutant.actions[i + 1], (mutant.count - i - 1) * sizeof *mutant.actions);
        mutant.count--;
        refuse(&mutant, world, "dropped", i);
        mutant = copy_of(&world->tape);
        memmove(&mutant.actions[i + 1], &mutant.actions[i], (mutant.count - i) * sizeof *mutant.actions);
        mutant.count++;
        refuse(&mutant, world, "doubled", i);
    }
}

static bool are_stores(const struct keel_action *a, const struct keel_action *b)
{
    return a->kind == KEEL_ACTION_STORE && b->kind == KEEL_ACTION_STORE && a->piece == KEEL_PIECE_ALL;
}

/* Two actions of a tape change places; two nodes may each lie in the other's slot. */
static void exchange(const struct world *world)
{
    for (uint32_t i = 0; i < world->tape.count; i++) {
        const uint32_t other =
            next_random(2) == 0 && i + 1 < world->tape.count ? i + 1 : next_random(world->tape.count);
        if (memcmp(&world->tape.actions[i], &world->tape.actions[other], sizeof *world->tape.actions) == 0 ||
            are_stores(&world->tape.actions[i], &world->tape.actions[other]))
            continue;
        struct keel_tape mutant = copy_of(&world->tape);
        mutant.actions[i] = world->tape.actions[other];
        mutant.actions[other] = world->tape.actions[i];
        refuse(&mutant, world, "exchanged", i);
    }
}

/* One number of one action is another. */
static void misdirect(const struct world *world)
{
    for (uint32_t i = 0; i < world->tape.count; i++) {
        struct keel_tape mutant = copy_of(&world->tape);
        struct keel_action *action = &mutant.actions[i];
        switch (action->kind) {
        case KEEL_ACTION_ADD:
        case KEEL_ACTION_UPDATE:
        case KEEL_ACTION_DECODE:
        case KEEL_ACTION_NORM:
            action->slot = (int16_t)(action->slot + 1);
            break;
        case KEEL_ACTION_COMPUTE:
            action->shard = (action->shard + 1) % (world->config.shard_count + 1);
            break;
        case KEEL_ACTION_STORE:
            action->piece = 0; /* of windows another one, else no piece at all */
            action->slot = KEEL_HOLD_NODES_MAX;
            break;
        case KEEL_ACTION_HOLD:
        case KEEL_ACTION_ENCODE:
            action->shard++;
            break;
        case KEEL_ACTION_SPREAD:
        case KEEL_ACTION_WEIGHTS:
        case KEEL_ACTION_DRILL:
        case KEEL_ACTION_MARK:
        case KEEL_ACTION_REDUCE:
        case KEEL_ACTION_COMPARE:
        case KEEL_ACTION_AWAIT:
        case KEEL_ACTION_EXCHANGE:
            action->piece++;
            break;
        default:
            action->kind = KEEL_ACTION_COUNT;
        }
        refuse(&mutant, world, "misdirected", i);
    }
}

START_TEST(a_tape_with_an_action_wrong_is_refused)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        make_world(&world);
        drop_and_double(&world);
        exchange(&world);
        misdirect(&world);
        keel_tape_fini(&world.tape);
    }
}
END_TEST

/* ---- all ranks' tapes together ------------------------------------------------------------------------- */

/* A grid of data positions x places, each rank somewhere in its tape. */
struct grid {
    struct world world; /* its config, but for the position */
    uint32_t data, places, at[RANKS_MAX];
    struct keel_tape tapes[RANKS_MAX]; /* of position * places + place */
};

/* Whom the action waits for: the column, the data position, all, or nobody. */
static bool waits_for(const struct grid *grid, const struct keel_action *action, uint32_t rank,
                      uint32_t other)
{
    switch (action->kind) {
    case KEEL_ACTION_EXCHANGE:
    case KEEL_ACTION_NORM:
        return rank / grid->places == other / grid->places;
    case KEEL_ACTION_AWAIT:
        return rank % grid->places == other % grid->places;
    default:
        return action->kind == KEEL_ACTION_AGREE || action->kind == KEEL_ACTION_DIGEST;
    }
}

/* Which of two slots a sum lies in is a rank's own business. */
static bool are_alike(const struct keel_action *a, const struct keel_action *b)
{
    return a->kind == b->kind && a->piece == b->piece && a->shard == b->shard &&
           a->microbatch == b->microbatch;
}

static bool may_pass(const struct grid *grid, uint32_t rank)
{
    const struct keel_action *action = &grid->tapes[rank].actions[grid->at[rank]];
    for (uint32_t r = 0; r < grid->data * grid->places; r++) {
        if (!waits_for(grid, action, rank, r))
            continue;
        if (grid->at[r] == grid->tapes[r].count || !are_alike(action, &grid->tapes[r].actions[grid->at[r]]))
            return false;
    }
    return true;
}

static void pass(struct grid *grid, uint32_t rank)
{
    const struct keel_action *action = &grid->tapes[rank].actions[grid->at[rank]];
    for (uint32_t r = 0; r < grid->data * grid->places; r++)
        grid->at[r] += r == rank || waits_for(grid, action, rank, r);
}

/* Whether all come to the end. */
static bool play(struct grid *grid)
{
    const uint32_t ranks = grid->data * grid->places;
    uint32_t ended = 0;
    memset(grid->at, 0, sizeof grid->at);
    for (bool moved = true; moved;) {
        moved = false;
        ended = 0;
        for (uint32_t r = 0; r < ranks; r++) {
            for (; grid->at[r] < grid->tapes[r].count && may_pass(grid, r); moved = true)
                pass(grid, r);
            ended += grid->at[r] == grid->tapes[r].count;
        }
    }
    return ended == ranks;
}

static void make_grid(struct grid *grid)
{
    do {
        make_world(&grid->world);
        keel_tape_fini(&grid->world.tape);
    } while (!grid->world.config.sharing || grid->world.config.gathers != NULL);
    struct keel_tape_config *config = &grid->world.config;
    config->segments = grid->world.segments;
    config->shard_position = grid->world.shard_position;
    config->held = &grid->world.held;
    config->waits = config->waits != NULL ? grid->world.waits : NULL;
    grid->world.held.count = 0;
    grid->places = 2 + next_random(PLACES_MAX - 1);
    grid->data = 1 + next_random(RANKS_MAX / PLACES_MAX);
    config->grouped = grid->data > 1 || config->in_pieces;
    for (uint32_t s = 0; s < config->shard_count; s++)
        grid->world.shard_position[s] = (uint16_t)next_random(grid->data);
    for (uint32_t r = 0; r < grid->data * grid->places; r++) {
        config->position = r / grid->places;
        grid->tapes[r] = (struct keel_tape){.actions = NULL};
        ck_ok(keel_tape_reserve(&grid->tapes[r], keel_tape_bound(config)));
        keel_tape_make(&grid->tapes[r], config);
    }
}

/* Members of a data position do the same exchanges in the same order, and nobody waits for ever; with one
 * exchange less, or two in the other order, on one rank, somebody does. */
START_TEST(ranks_that_share_slices_never_wait_for_ever)
{
    static struct grid grid;
    uint32_t stuck = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        make_grid(&grid);
        ck_assert(play(&grid));
        const uint32_t rank = next_random(grid.data * grid.places);
        struct keel_tape *tape = &grid.tapes[rank];
        for (uint32_t i = 0; i < tape->count; i++) {
            if (tape->actions[i].kind != KEEL_ACTION_EXCHANGE)
                continue;
            tape->actions[i].kind = KEEL_ACTION_MARK;
            ck_assert(!play(&grid));
            stuck++;
            break;
        }
        for (uint32_t r = 0; r < grid.data * grid.places; r++)
            keel_tape_fini(&grid.tapes[r]);
    }
    ck_assert_uint_gt(stuck, ROUNDS / 4);
}
END_TEST

/* ---- ranks that gather weights ------------------------------------------------------------------------ */

/* Each holds other nodes, so each has another number of shards to compute. */
struct gathering {
    struct world worlds[RANKS_MAX];
    uint32_t ranks, at[RANKS_MAX];
    uint32_t weights[RANKS_MAX], sums[RANKS_MAX]; /* begun so far */
    bool others[RANKS_MAX][KEEL_ACTION_COUNT];    /* likewise */
    uint32_t newest[RANKS_MAX][BUCKETS_MAX];      /* gather of a bucket that a rank began last */
};

static uint32_t own_rounds(const struct world *world)
{
    uint32_t rounds = 0;
    for (uint32_t s = 0; s < world->config.shard_count; s++)
        if (world->shard_position[s] == world->config.position && !keel_hold_covers(&world->held, s))
            rounds += world->config.microbatches;
    return rounds;
}

static void make_gathering(struct gathering *all)
{
    struct world first;
    do {
        make_world(&first);
        keel_tape_fini(&first.tape);
    } while (first.config.gathers == NULL || first.config.sharing);
    *all = (struct gathering){.ranks = 1 + next_random(RANKS_MAX)};
    uint32_t rounds = 1;
    for (uint32_t s = 0; s < first.config.shard_count; s++)
        first.shard_position[s] = (uint16_t)next_random(all->ranks);
    for (uint32_t r = 0; r < all->ranks; r++) {
        struct world *world = &all->worlds[r];
        *world = first;
        world->tape = (struct keel_tape){.actions = NULL};
        world->held.count = 0;
        world->config.position = r;
        world->config.shard_position = world->shard_position;
        world->config.segments = world->segments;
        world->config.gathers = world->gathers;
        world->config.held = &world->held;
        world->config.waits = world->config.waits != NULL ? world->waits : NULL;
        hold_some(world);
        rounds = own_rounds(world) > rounds ? own_rounds(world) : rounds;
    }
    for (uint32_t r = 0; r < all->ranks; r++) {
        struct world *world = &all->worlds[r];
        world->config.rounds = rounds;
        ck_ok(keel_tape_reserve(&world->tape, keel_tape_bound(&world->config)));
        keel_tape_make(&world->tape, &world->config);
        ck_ok(keel_tape_check(&world->tape, &world->config));
    }
}

/* A collective is done when all ranks have begun it. */
static bool is_there(const struct gathering *all, uint32_t rank, uint32_t piece)
{
    const uint32_t buckets = all->worlds[rank].config.bucket_count;
    for (uint32_t r = 0; r < all->ranks; r++) {
        if (piece <= buckets && all->sums[r] <= piece)
            return false;
        if (piece >= keel_piece_weights(buckets, 0) &&
            all->weights[r] <= all->newest[rank][piece - keel_piece_weights(buckets, 0)])
            return false;
        const enum keel_action_kind other = piece == buckets + 1                  ? KEEL_ACTION_COMPARE
                                            : piece == keel_piece_shadow(buckets) ? KEEL_ACTION_SHADOW
                                            : piece == keel_piece_commit(buckets) ? KEEL_ACTION_COMMIT
                                                                                  : KEEL_ACTION_COUNT;
        if (other != KEEL_ACTION_COUNT && !all->others[r][other])
            return false;
    }
    return true;
}

static bool step_on(struct gathering *all, uint32_t r)
{
    const struct keel_tape *tape = &all->worlds[r].tape;
    if (all->at[r] == tape->count)
        return false;
    const struct keel_action *action = &tape->actions[all->at[r]];
    if (action->kind == KEEL_ACTION_AWAIT && !is_there(all, r, action->piece))
        return false;
    if (action->kind == KEEL_ACTION_WEIGHTS)
        all->newest[r][action->piece] = all->weights[r]++;
    if (action->kind == KEEL_ACTION_REDUCE)
        all->sums[r]++;
    all->others[r][action->kind] = true;
    all->at[r]++;
    return true;
}

/* Whether all come to the end, whoever is fast. */
static bool gather_on(struct gathering *all)
{
    uint32_t ended = 0;
    memset(all->at, 0, sizeof all->at);
    memset(all->weights, 0, sizeof all->weights);
    memset(all->sums, 0, sizeof all->sums);
    memset(all->others, 0, sizeof all->others);
    for (bool moved = true; moved;) {
        moved = false;
        ended = 0;
        for (uint32_t i = 0, r = next_random(all->ranks); i < all->ranks; i++, r = (r + 1) % all->ranks) {
            while (step_on(all, r))
                moved = true;
            ended += all->at[r] == all->worlds[r].tape.count;
        }
    }
    return ended == all->ranks;
}

/* Gathers and sums of buckets, one after the other; NULL: no more. */
static const struct keel_action *next_begun(const struct world *world, uint32_t *at)
{
    for (; *at < world->tape.count; ++*at) {
        const struct keel_action *action = &world->tape.actions[*at];
        if (action->kind == KEEL_ACTION_WEIGHTS ||
            (action->kind == KEEL_ACTION_REDUCE && action->piece < world->config.bucket_count))
            return &world->tape.actions[(*at)++];
    }
    return NULL;
}

static void compare_order(const struct gathering *all)
{
    for (uint32_t r = 1; r < all->ranks; r++) {
        const struct keel_action *a, *b;
        uint32_t at_a = 0, at_b = 0;
        do {
            a = next_begun(&all->worlds[0], &at_a);
            b = next_begun(&all->worlds[r], &at_b);
            ck_assert((a == NULL) == (b == NULL));
            ck_assert(a == NULL || (a->kind == b->kind && a->piece == b->piece));
        } while (a != NULL);
    }
}

/* Whoever computes less: all begin the same gathers and sums in one order, and come to the end. With one
 * gather less on one rank somebody waits for ever. */
START_TEST(ranks_that_gather_weights_never_wait_for_ever)
{
    static struct gathering all;
    uint32_t stuck = 0, unlike = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        make_gathering(&all);
        compare_order(&all);
        ck_assert(gather_on(&all));
        struct keel_tape *tape = &all.worlds[next_random(all.ranks)].tape;
        for (uint32_t r = 1; r < all.ranks; r++)
            unlike += own_rounds(&all.worlds[r]) != own_rounds(&all.worlds[0]);
        for (uint32_t i = 0; i < tape->count && all.ranks > 1; i++) {
            if (tape->actions[i].kind != KEEL_ACTION_WEIGHTS)
                continue;
            tape->actions[i].kind = KEEL_ACTION_MARK;
            ck_assert(!gather_on(&all));
            stuck++;
            break;
        }
        for (uint32_t r = 0; r < all.ranks; r++)
            keel_tape_fini(&all.worlds[r].tape);
    }
    ck_assert_uint_gt(stuck, ROUNDS / 2);
    ck_assert_uint_gt(unlike, ROUNDS);
}
END_TEST

/* A slot that holds a node must not be written: another attempt needs it. */
START_TEST(a_store_into_a_held_slot_is_refused)
{
    const uint16_t all_mine[4] = {0};
    const struct keel_partial_sums none = {.shard_count = 4};
    const struct keel_tape_config config = {
        .bucket_count = 1, .microbatches = 1, .shard_count = 4, .shard_position = all_mine, .held = &none};
    struct keel_tape tape = {.actions = NULL};
    ck_ok(keel_tape_reserve(&tape, keel_tape_bound(&config)));
    keel_tape_make(&tape, &config);
    uint32_t stores = 0;
    for (uint32_t i = 0; i < tape.count; i++)
        if (tape.actions[i].kind == KEEL_ACTION_STORE && stores++ == 2) { /* shards 0 and 1 lie in slot 0 */
            ck_assert_int_eq(tape.actions[i].slot, 1);
            tape.actions[i].slot = 0;
        }
    ck_assert_uint_eq(stores, 3);
    ck_status(keel_tape_check(&tape, &config), KEEL_INVALID);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "the slot holds a node"));
    keel_tape_fini(&tape);
}
END_TEST

/* An ENCODE must not write what it reads, nor what another attempt needs; nor may a node be made elsewhere
 * than on the host. */
START_TEST(compressed_nodes_lie_in_slots_of_their_own)
{
    uint32_t over_nodes = 0, turned = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        make_world(&world);
        struct keel_tape mutant = copy_of(&world.tape);
        world.config.compressed = !world.config.compressed;
        ck_status(keel_tape_check(&mutant, &world.config), KEEL_INVALID);
        keel_tape_fini(&mutant);
        world.config.compressed = !world.config.compressed;
        for (uint32_t i = 0; i < world.tape.count && world.held.count > 0; i++) {
            if (world.tape.actions[i].kind != KEEL_ACTION_ENCODE)
                continue;
            mutant = copy_of(&world.tape);
            mutant.actions[i].slot = (int16_t)world.held.held[0].slot;
            const enum keel_status status = keel_tape_check(&mutant, &world.config);
            over_nodes += status == KEEL_INVALID && strstr(keel_detail(), "the slot holds a node") != NULL;
            turned++;
            keel_tape_fini(&mutant);
            break; /* later ones may take the slot of a node that was merged */
        }
        keel_tape_fini(&world.tape);
    }
    ck_assert_uint_gt(turned, 10);
    ck_assert_uint_eq(over_nodes, turned);
}
END_TEST

/* What a redo begins with must not be where the sum goes; and all of the sum must be where the update reads.
 */
START_TEST(a_sum_over_a_held_node_or_to_two_places_is_refused)
{
    uint32_t over_nodes = 0, apart = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        make_world(&world);
        for (uint32_t i = 0; i < world.tape.count; i++) {
            const struct keel_action *action = &world.tape.actions[i];
            if (action->kind != KEEL_ACTION_REDUCE)
                continue;
            struct keel_tape mutant = copy_of(&world.tape);
            mutant.actions[i].slot =
                KEEL_HOLD_NODES_MAX - 1; /* no node lies there: but other buckets do not */
            refuse(&mutant, &world, "apart", i);
            apart++;
            if (action->slot < 0)
                continue;
            mutant = copy_of(&world.tape); /* a node lies there: else the sum would, too */
            for (uint32_t k = 0; k < mutant.count; k++)
                if (mutant.actions[k].kind == KEEL_ACTION_UPDATE ||
                    (mutant.actions[k].kind == KEEL_ACTION_REDUCE && mutant.actions[k].slot >= 0))
                    mutant.actions[k].slot = KEEL_HOLD_GRADIENTS;
            refuse(&mutant, &world, "over a node", i);
            over_nodes++;
        }
        keel_tape_fini(&world.tape);
    }
    ck_assert_uint_gt(over_nodes, ROUNDS / 10);
    ck_assert_uint_gt(apart, over_nodes);
}
END_TEST

START_TEST(tapes_are_printed_line_by_line_and_as_json)
{
    static const uint64_t bytes[] = {4096, 8192, 4, 40};
    const uint16_t two[2] = {0, 1};
    const struct keel_partial_sums none = {.shard_count = 2};
    const struct keel_tape_config config = {.bucket_count = 2,
                                            .microbatches = 3,
                                            .shard_count = 2,
                                            .shard_position = two,
                                            .grouped = true,
                                            .held = &none};
    struct keel_tape tape = {.actions = NULL};
    char *text = NULL;
    size_t size = 0, lines = 0;
    ck_ok(keel_tape_reserve(&tape, keel_tape_bound(&config)));
    keel_tape_make(&tape, &config);
    FILE *out = open_memstream(&text, &size);
    keel_tape_print(&tape, bytes, out);
    fclose(out);
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    ck_assert_uint_eq(lines, tape.count);
    ck_assert_ptr_nonnull(strstr(text, "shard 0 microbatches 0 to 1 all segments"));
    ck_assert_ptr_nonnull(strstr(text, "piece 1, 8192 bytes to slot 0"));
    ck_assert_ptr_nonnull(strstr(text, "update   from slot 0"));
    free(text);
    out = open_memstream(&text, &size);
    struct keel_json json = {.out = out};
    keel_json_open(&json, NULL, '{');
    keel_tape_print_json(&tape, bytes, &json, "tape");
    keel_json_close(&json, '}');
    fclose(out);
    json_t *parsed = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(parsed);
    ck_assert_uint_eq(json_array_size(json_object_get(parsed, "tape")), tape.count);
    json_decref(parsed);
    free(text);
    keel_tape_fini(&tape);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_tape_does_what_is_missing_once_and_passes_the_check);
    tcase_add_test(tc, a_tape_with_an_action_wrong_is_refused);
    tcase_add_test(tc, ranks_that_share_slices_never_wait_for_ever);
    tcase_add_test(tc, ranks_that_gather_weights_never_wait_for_ever);
    tcase_add_test(tc, a_store_into_a_held_slot_is_refused);
    tcase_add_test(tc, compressed_nodes_lie_in_slots_of_their_own);
    tcase_add_test(tc, a_sum_over_a_held_node_or_to_two_places_is_refused);
    tcase_add_test(tc, tapes_are_printed_line_by_line_and_as_json);
}

KEEL_TEST_MAIN("tape", cases, 60)
