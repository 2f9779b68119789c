/* plans_test.c - ranks that share a model have the bits of one device with all of it.
 *
 * A case is a random model, T slices and a plan: [0, T) is cut into uneven runs, or not, an engine for each,
 * which exchange here in plain C by the tree over slices; and of each run several positions of the data axis
 * have an engine, or one has, which own a share each of the optimizer's state of that run: another may have a
 * copy, and squares and weights go round in plain C. They are held against one engine with all: the losses,
 * the norms and the digests of the weights of each step, and the loss of an evaluation, bit for bit. In every
 * third their products have checksums, which find nothing; in every fourth some parameters are frozen.
 *
 * KEEL_PLANS_CASES (1,000) and KEEL_PLANS_SECONDS (300, but none for `make test-long`): what ends first,
 * though not before a tenth of the cases. KEEL_PLANS_FIRST: the number of the first case, so that one that
 * failed can be had alone. */
#include "plans_models.h"

#include "holdings.h"
#include <keel/clock.h>
#include <keel/engine.h>
#include <keel/memory.h>
#include <keel/transport.h>
#include <math.h>
#include <stdlib.h>

enum { STEPS = 2, MICROBATCHES = 4, INPUTS = 3, INPUT_BYTES = 1 << 14, ELEMENTS = 1 << 15, BUCKETS = 128 };

static struct keel_device *device;
static struct keel_kernels *kernels;

static uint64_t soon(void)
{
    return keel_deadline_after_ns(60 * KEEL_NS_PER_S);
}

/* ---- engines ------------------------------------------------------------------------------------------- */

/* What an owner holds: its share, and behind it those that it has copies of. */
struct owned {
    struct keel_engine_run runs[POSITIONS * BUCKETS], *pages;
    uint32_t shares[POSITIONS], share_count, page_runs;
    uint64_t page_count; /* of its share */
    struct keel_engine_pieces *pieces;
};

/* Engines that share the slices, by place: a position of the data axis. */
struct side {
    struct keel_engine *engines[SLICES];
    struct owned *owned[SLICES]; /* NULL: none */
    uint32_t count;
    const struct plan_case *of;
};

/* Each computes the whole step. */
struct positions {
    struct side at[POSITIONS];
    uint32_t count;
};

static bool holds(const struct plan_case *of, uint32_t position, uint32_t owner)
{
    const struct keel_owners_map map = {
        .count = of->positions, .group = of->group, .holders = of->holders, .node = NULL};
    return keel_has_share(&map, position, owner);
}

/* Runs of an owner between the flat buffer and its own. */
static void fill_owned(struct keel_engine *engine, const struct owned *owned, enum keel_engine_flat which)
{
    const uint32_t runs = owned->share_count * keel_engine_bucket_count(engine);
    struct keel_buffer *from = keel_engine_flat(engine, which),
                       *to = keel_engine_pieces_flat(owned->pieces, which);
    for (uint32_t r = 0; r < runs; r++)
        if (owned->runs[r].count > 0)
            ck_ok(keel_queue_copy(keel_engine_queue(engine), from, owned->runs[r].first * 4, to,
                                  keel_engine_pieces_at(owned->pieces, r) * 4, owned->runs[r].count * 4, NULL,
                                  NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
}

/* First weights, a bucket at a time. */
static void draw_owned(struct keel_engine *engine, const struct owned *owned)
{
    const uint32_t buckets = keel_engine_bucket_count(engine), runs = owned->share_count * buckets;
    for (uint32_t b = 0; b < buckets; b++) {
        ck_ok(keel_engine_draw(engine, b, 42));
        for (uint32_t r = b; r < runs; r += buckets) {
            const uint64_t within = owned->runs[r].first - keel_engine_bucket(engine, b)->offset;
            if (owned->runs[r].count > 0)
                ck_ok(keel_queue_copy(keel_engine_queue(engine), keel_engine_weight_windows(engine),
                                      (keel_engine_weights_at(engine, b) + within) * 4,
                                      keel_engine_pieces_flat(owned->pieces, KEEL_FLAT_WEIGHTS),
                                      keel_engine_pieces_at(owned->pieces, r) * 4, owned->runs[r].count * 4,
                                      NULL, NULL));
        }
        ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
    }
}

static struct owned *open_owned(const struct side *side, uint32_t place, uint32_t position)
{
    struct keel_engine *engine = side->engines[place];
    const uint32_t buckets = keel_engine_bucket_count(engine);
    struct owned *owned = calloc(1, sizeof *owned);
    ck_assert_ptr_nonnull(owned);
    ck_assert_uint_le(buckets, BUCKETS);
    for (uint32_t i = 0; i < side->of->positions; i++) {
        const uint32_t owner = (position + i) % side->of->positions; /* its own first */
        if (!holds(side->of, position, owner))
            continue;
        ck_ok(keel_engine_share(engine, owner, side->of->positions,
                                owned->runs + (size_t)owned->share_count * buckets));
        owned->shares[owned->share_count++] = owner;
    }
    ck_ok(keel_engine_run_pages(engine, owned->runs, buckets, &owned->pages, &owned->page_runs));
    for (uint32_t p = 0; p < owned->page_runs; p++)
        owned->page_count += owned->pages[p].count;
    ck_ok(keel_engine_pieces_create(engine, owned->runs, owned->share_count * buckets, &owned->pieces));
    if (side->of->gathers)
        draw_owned(engine, owned);
    else
        fill_owned(engine, owned, KEEL_FLAT_WEIGHTS);
    return owned;
}

static void close_owned(struct owned *owned)
{
    if (owned == NULL)
        return;
    keel_engine_pieces_destroy(owned->pieces);
    keel_free(owned->pages);
    free(owned);
}

static enum keel_status open_side(struct side *side, const struct plan_case *of,
                                  const struct keel_graph *graph, uint32_t position, bool whole)
{
    const bool cut = !whole && of->places > 1, pieces = !whole && of->owners;
    *side = (struct side){.of = of};
    for (; side->count < (whole ? 1 : of->places); side->count++) {
        const struct keel_engine_config config = {
            .device = device,
            .kernels = kernels,
            .graph = graph,
            .microbatches = MICROBATCHES,
            .tensor = of->slices,
            .tensor_first = cut ? of->begin[side->count] : 0,
            .tensor_count = cut ? of->begin[side->count + 1] - of->begin[side->count] : 0,
            .bucket_bytes = 4096,
            .storage = of->storage,
            .passes_off = of->passes_off,
            .in_pieces = pieces,
            .weight_windows = pieces && of->gathers,
            .ahead = of->ahead,
            .check_products = !whole && of->checked,
            .training = true};
        KEEL_TRY(keel_engine_create(&config, &side->engines[side->count]));
        if (!config.weight_windows)
            ck_ok(keel_engine_initialize(side->engines[side->count], 42));
        side->owned[side->count] = pieces ? open_owned(side, side->count, position) : NULL;
    }
    return KEEL_OK;
}

/* The whole on one device, or the ranks of the plan. */
static enum keel_status open_all(struct positions *all, const struct plan_case *of,
                                 const struct keel_graph *graph, bool whole)
{
    enum keel_status status = KEEL_OK;
    for (all->count = 0; all->count < (whole ? 1 : of->positions) && status == KEEL_OK; all->count++)
        status = open_side(&all->at[all->count], of, graph, all->count, whole);
    return status;
}

static void close_all(struct positions *all)
{
    for (uint32_t p = 0; p < all->count; p++)
        for (uint32_t r = 0; r < SLICES; r++) {
            close_owned(all->at[p].owned[r]);
            keel_engine_destroy(all->at[p].engines[r]);
        }
}

static void read_at(struct keel_engine *engine, struct keel_buffer *buffer, uint64_t at, void *out,
                    uint64_t count)
{
    ck_ok(keel_queue_read(keel_engine_queue(engine), buffer, at * 4, out, count * 4, NULL, NULL));
    ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
}

static void read_words(struct keel_engine *engine, struct keel_buffer *buffer, void *out, uint64_t count)
{
    read_at(engine, buffer, 0, out, count);
}

/* ---- exchanges, in plain C ----------------------------------------------------------------------------- */

/* Sums of nodes of the tree, as ranks gave them. */
struct tree {
    bool given[SLICES][SLICES]; /* by level and index */
    float *sum[SLICES][SLICES];
};
static float pool[SLICES * SLICES][ELEMENTS], joined[ELEMENTS];
static float own[SLICES][ELEMENTS];

static float join(const struct tree *tree, uint32_t slices, uint32_t level, uint32_t index, uint64_t at)
{
    if (tree->given[level][index])
        return tree->sum[level][index][at];
    ck_assert_msg(level > 0, "slice %u is of no rank's sums", index);
    const float left = join(tree, slices, level - 1, 2 * index, at);
    if ((2 * index + 1) << (level - 1) >= slices)
        return left;
    return left + join(tree, slices, level - 1, 2 * index + 1, at);
}

static void add_sums(const struct side *side, const struct keel_engine_exchange *const *all, uint64_t count)
{
    struct tree tree = {.given = {{false}}};
    uint32_t used = 0, top = 0;
    uint16_t owner[SLICES];
    for (uint32_t r = 0; r < side->count; r++)
        for (uint32_t s = side->of->begin[r]; s < side->of->begin[r + 1]; s++)
            owner[s] = (uint16_t)r;
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_tree_node nodes[SLICES];
        uint32_t node_count;
        ck_ok(keel_tree_nodes(side->of->slices, owner, r, nodes, SLICES, &node_count));
        ck_assert_uint_eq(node_count, all[r]->part_count);
        for (uint32_t n = 0; n < node_count; n++) {
            tree.given[nodes[n].level][nodes[n].index] = true;
            tree.sum[nodes[n].level][nodes[n].index] = pool[used];
            read_words(side->engines[r], all[r]->parts[n], pool[used++], count);
        }
    }
    while (1U << top < side->of->slices)
        top++;
    for (uint64_t i = 0; i < count; i++)
        joined[i] = join(&tree, side->of->slices, top, 0, i);
}

static void add_bits_or_choose(const struct side *side, const struct keel_engine_exchange *const *all,
                               uint64_t count)
{
    for (uint32_t r = 0; r < side->count; r++) {
        ck_assert_uint_eq(all[r]->part_count, 1);
        read_words(side->engines[r], all[r]->parts[0], own[r], count);
    }
    memcpy(joined, own[0], count * sizeof *joined);
    for (uint32_t r = 1; r < side->count; r++)
        for (uint64_t i = 0; i < count; i++) {
            uint32_t a, b;
            memcpy(&a, &joined[i], sizeof a);
            memcpy(&b, &own[r][i], sizeof b);
            a += b;
            if (all[0]->kind == KEEL_EXCHANGE_SUM_BITS)
                memcpy(&joined[i], &a, sizeof a);
            else
                joined[i] = own[r][i] > joined[i] ? own[r][i] : joined[i];
        }
}

static void run_of(const struct side *side, const struct keel_engine_exchange *exchange, uint32_t rank,
                   uint64_t *first, uint64_t *count)
{
    const uint32_t *begin = side->of->begin;
    *first = keel_engine_exchange_count(exchange, side->of->slices, 0, begin[rank]);
    *count =
        keel_engine_exchange_count(exchange, side->of->slices, begin[rank], begin[rank + 1] - begin[rank]);
}

static void exchange(const struct side *side, const struct keel_engine_exchange *const *all)
{
    uint64_t first, count = (uint64_t)all[0]->units * all[0]->unit;
    ck_assert_uint_le(count, ELEMENTS);
    for (uint32_t r = 0; r < side->count; r++) {
        ck_assert_ptr_nonnull(all[r]);
        ck_assert(all[r]->kind == all[0]->kind && all[r]->scatter == all[0]->scatter &&
                  all[r]->units == all[0]->units && all[r]->unit == all[0]->unit);
    }
    if (all[0]->kind == KEEL_EXCHANGE_SUM)
        add_sums(side, all, count);
    else if (all[0]->kind != KEEL_EXCHANGE_GATHER)
        add_bits_or_choose(side, all, count);
    for (uint32_t r = 0; all[0]->kind == KEEL_EXCHANGE_GATHER && r < side->count; r++) {
        run_of(side, all[r], r, &first, &count);
        read_words(side->engines[r], all[r]->parts[0], joined + first, count);
    }
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_queue *queue = keel_engine_queue(side->engines[r]);
        first = 0;
        count = (uint64_t)all[0]->units * all[0]->unit;
        if (all[r]->scatter)
            run_of(side, all[r], r, &first, &count);
        ck_ok(keel_queue_write(queue, all[r]->result, 0, joined + first, count * 4, NULL, NULL));
        ck_ok(keel_queue_finish(queue, soon()));
    }
}

/* What all engines exchange now; nothing of one. */
static void exchange_all(const struct side *side,
                         const struct keel_engine_exchange *(*find)(const struct keel_engine *, uint32_t),
                         uint32_t segment)
{
    const struct keel_engine_exchange *all[SLICES];
    uint32_t found = 0;
    for (uint32_t r = 0; r < side->count; r++)
        found += (all[r] = find(side->engines[r], segment)) != NULL ? 1 : 0;
    ck_assert_msg(found == 0 || found == side->count, "segment %u: %u of %u ranks exchange", segment, found,
                  side->count);
    if (found > 0)
        exchange(side, all);
}

/* ---- steps --------------------------------------------------------------------------------------------- */

struct outcome {
    uint32_t losses[STEPS], norms[STEPS], eval;
    uint64_t digests[STEPS];
};

static uint8_t inputs[INPUTS][INPUT_BYTES];
static const void *const batch_inputs[INPUTS] = {inputs[0], inputs[1], inputs[2]};

static void fill_inputs(const struct side *side, uint64_t seed)
{
    const struct keel_engine *engine = side->engines[0];
    ck_assert_uint_le(keel_engine_input_count(engine), INPUTS);
    for (uint32_t i = 0; i < keel_engine_input_count(engine); i++) {
        const struct keel_engine_input *input = keel_engine_input(engine, i);
        ck_assert_uint_le(input->bytes, INPUT_BYTES);
        for (uint64_t e = 0; e < input->bytes / 4; e++) {
            const int32_t id = (int32_t)(draw(&seed) % side->of->classes);
            const float value = (float)(draw(&seed) % 4096) / 2048.0F - 1.0F;
            if (input->dtype == KEEL_I32)
                memcpy(inputs[i] + 4 * e, &id, sizeof id);
            else
                memcpy(inputs[i] + 4 * e, &value, sizeof value);
        }
    }
}

static uint32_t same_loss(const struct side *side)
{
    uint32_t first = 0, bits;
    for (uint32_t r = 0; r < side->count; r++) {
        read_words(side->engines[r], keel_engine_loss(side->engines[r]), &bits, 1);
        ck_assert_msg(r == 0 || bits == first, "%s: rank %u has another loss", side->of->what, r);
        first = bits;
    }
    return first;
}

/* What begins before a segment, from the owners. It is written as early as it may be, and what was in the
 * window before is gone. */
static void gather(const struct positions *all, const struct side *side, bool evaluation, uint32_t segment)
{
    for (uint32_t r = 0; r < side->count; r++) {
        uint32_t count;
        struct keel_engine *engine = side->engines[r];
        const struct keel_engine_gather *gathers = keel_engine_gathers(engine, evaluation, &count);
        for (uint32_t g = 0; g < count; g++) {
            const uint32_t bucket = gathers[g].bucket;
            const struct keel_engine_bucket *of = keel_engine_bucket(engine, bucket);
            if (gathers[g].begin != segment)
                continue;
            memset(joined, 0xff, of->count * 4);
            for (uint32_t p = 0; p < all->count; p++) {
                const struct owned *owned = all->at[p].owned[r];
                const struct keel_engine_run *run = &owned->runs[bucket];
                if (run->count > 0)
                    read_at(all->at[p].engines[r], keel_engine_pieces_flat(owned->pieces, KEEL_FLAT_WEIGHTS),
                            keel_engine_pieces_at(owned->pieces, bucket), joined + run->first - of->offset,
                            run->count);
            }
            ck_ok(keel_queue_write(keel_engine_queue(engine), keel_engine_weight_windows(engine),
                                   keel_engine_weights_at(engine, bucket) * 4, joined, of->count * 4, NULL,
                                   NULL));
            ck_ok(keel_engine_gathered(engine, bucket));
            ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
        }
    }
}

static void run_microbatch(const struct positions *all, const struct side *side, uint32_t step,
                           uint32_t microbatch)
{
    const struct keel_engine_batch batch = {.inputs = batch_inputs,
                                            .seed = 42,
                                            .step = step,
                                            .microbatch = microbatch,
                                            .more = microbatch % 2 == 0};
    fill_inputs(side, step * 100 + microbatch + 1);
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_feed(side->engines[r], &batch));
    const uint32_t segments = keel_engine_segment_count(side->engines[0]);
    for (uint32_t s = 0; s < segments; s++) {
        gather(all, side, false, s);
        for (uint32_t r = 0; r < side->count; r++) {
            ck_assert_uint_eq(keel_engine_segment_count(side->engines[r]), segments);
            ck_ok(keel_engine_segment(side->engines[r], s));
        }
        exchange_all(side, keel_engine_exchange, s);
    }
}

static const struct keel_engine_exchange *norm_exchange(const struct keel_engine *engine, uint32_t segment)
{
    (void)segment;
    return keel_engine_norm_exchange(engine);
}

static struct keel_engine_update request_of(uint32_t step)
{
    return (struct keel_engine_update){
        .settings = {.beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F, .max_norm = 0.5F, .weight_decay = 0.1F},
        .learning_rate = 1e-2F,
        .step = step};
}

/* The squares of all pages of a place, from their owners, to all of them. */
static void join_squares(const struct positions *all, uint32_t place)
{
    ck_assert_uint_le(keel_engine_page_count(all->at[0].engines[place]), ELEMENTS);
    memset(joined, 0xff, sizeof joined); /* NaN where nobody gives any */
    for (uint32_t p = 0; p < all->count; p++) {
        const struct owned *owned = all->at[p].owned[place];
        const float *mine = own[p];
        fill_owned(all->at[p].engines[place], owned, KEEL_FLAT_GRADIENTS);
        ck_ok(keel_engine_pieces_squares(owned->pieces, soon(), own[p], owned->page_count));
        for (uint32_t i = 0; i < owned->page_runs; mine += owned->pages[i++].count)
            memcpy(joined + owned->pages[i].first, mine, owned->pages[i].count * sizeof *mine);
    }
    for (uint32_t p = 0; p < all->count; p++) {
        ck_ok(keel_engine_pieces_sum(all->at[p].owned[place]->pieces, joined));
        ck_ok(keel_queue_finish(keel_engine_queue(all->at[p].engines[place]), soon()));
    }
}

/* All weights of a place from who holds them, to its group if there are several: all who hold them say the
 * same. */
static void spread_weights(const struct positions *all, uint32_t place, uint32_t holder)
{
    const struct owned *from = all->at[holder].owned[place];
    const uint32_t runs = from->share_count * keel_engine_bucket_count(all->at[holder].engines[place]);
    for (uint32_t i = 0; i < runs; i++) {
        const struct keel_engine_run *run = &from->runs[i];
        ck_assert_uint_le(run->count, ELEMENTS);
        if (run->count == 0)
            continue;
        read_at(all->at[holder].engines[place], keel_engine_pieces_flat(from->pieces, KEEL_FLAT_WEIGHTS),
                keel_engine_pieces_at(from->pieces, i), joined, run->count);
        for (uint32_t p = 0; p < all->count; p++) {
            struct keel_engine *engine = all->at[p].engines[place];
            if (p / all->at[p].of->group != holder / all->at[p].of->group)
                continue;
            ck_ok(keel_queue_write(keel_engine_queue(engine), keel_engine_flat(engine, KEEL_FLAT_WEIGHTS),
                                   run->first * 4, joined, run->count * 4, NULL, NULL));
            ck_ok(keel_queue_finish(keel_engine_queue(engine), soon()));
        }
    }
}

/* The norm of a rank, by which its neighbour in the place updates. */
static void update_place(const struct positions *all, uint32_t position, uint32_t place, uint32_t step,
                         struct outcome *out)
{
    const struct keel_engine_update request = request_of(step);
    const struct side *side = &all->at[position], *next = &all->at[(position + 1) % all->count];
    struct keel_engine_norm norm;
    struct keel_engine_updated updated;
    uint32_t bits;
    ck_ok(keel_engine_pieces_norm(side->owned[place]->pieces, &request, soon(), &norm, &updated));
    memcpy(&bits, &updated.grad_norm, sizeof bits);
    ck_assert_msg((position == 0 && place == 0) || bits == out->norms[step],
                  "%s: place %u of position %u has another norm", side->of->what, place, position);
    out->norms[step] = bits;
    ck_ok(keel_engine_pieces_update(next->owned[place]->pieces, &request, &norm, soon()));
}

/* Of the model, from the engines of a position. */
static uint64_t digest_of(const struct side *side)
{
    uint64_t digest = 0, shared = 0;
    for (uint32_t r = 0; r < side->count; r++) {
        uint64_t mine;
        ck_ok(keel_engine_digest(side->engines[r], soon(), &mine));
        ck_assert_msg(r == 0 || keel_engine_digest_shared(side->engines[r]) == shared,
                      "%s: place %u has other weights of those that all have", side->of->what, r);
        shared = keel_engine_digest_shared(side->engines[r]);
        digest += mine - shared;
    }
    return digest + shared;
}

/* Of the model, from what each owns of it. */
static uint64_t digest_of_owners(const struct positions *all)
{
    uint64_t digest = 0;
    for (uint32_t k = 0; k < all->at[0].count; k++)
        for (uint32_t p = 0; p < all->count; p++) {
            uint64_t mine, shared;
            ck_ok(keel_engine_pieces_digest(all->at[p].owned[k]->pieces, soon(), &mine, &shared));
            digest += k == 0 ? mine : mine - shared;
        }
    return digest;
}

/* Weights go round from the first position to the last, or the other way: so that of two who hold a share
 * each has the last word once. */
static void update_owned(const struct positions *all, uint32_t step, struct outcome *out)
{
    const uint32_t places = all->at[0].count;
    for (uint32_t k = 0; k < places; k++)
        join_squares(all, k);
    for (uint32_t p = 0; p < all->count; p++)
        exchange_all(&all->at[p], norm_exchange, 0);
    for (uint32_t p = 0; p < all->count; p++)
        for (uint32_t k = 0; k < places; k++)
            update_place(all, p, k, step, out);
    if (all->at[0].of->gathers) {
        out->digests[step] = digest_of_owners(all);
        return;
    }
    for (uint32_t p = 0; p < all->count; p++)
        for (uint32_t k = 0; k < places; k++)
            spread_weights(all, k, step % 2 == 0 ? p : all->count - 1 - p);
    for (uint32_t p = 0; p < all->count; p++) {
        const uint64_t digest = digest_of(&all->at[p]);
        ck_assert_msg(p == 0 || digest == out->digests[step], "%s: position %u has other weights",
                      all->at[p].of->what, p);
        out->digests[step] = digest;
    }
}

static void update(const struct side *side, uint32_t step, struct outcome *out)
{
    const struct keel_engine_update request = request_of(step);
    uint64_t shared = 0;
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_norm_begin(side->engines[r], NULL));
    exchange_all(side, norm_exchange, 0);
    out->digests[step] = 0;
    for (uint32_t r = 0; r < side->count; r++) {
        struct keel_engine_updated updated;
        uint32_t bits;
        ck_ok(keel_engine_update(side->engines[r], &request, soon(), &updated));
        memcpy(&bits, &updated.grad_norm, sizeof bits);
        ck_assert_msg(r == 0 || bits == out->norms[step], "%s: rank %u has another norm", side->of->what, r);
        ck_assert_msg(r == 0 || updated.digest_shared == shared,
                      "%s: rank %u has other weights of those that all have", side->of->what, r);
        out->norms[step] = bits;
        shared = updated.digest_shared;
        out->digests[step] += updated.digest - shared;
    }
    out->digests[step] += shared;
}

static uint32_t evaluate(const struct positions *all, const struct side *side)
{
    const struct keel_engine_batch batch = {.inputs = batch_inputs, .seed = 42, .step = STEPS};
    uint32_t first = 0, bits;
    fill_inputs(side, 7);
    for (uint32_t r = 0; r < side->count; r++)
        ck_ok(keel_engine_eval_begin(side->engines[r], &batch));
    for (uint32_t s = 0; s < keel_engine_eval_segment_count(side->engines[0]); s++) {
        gather(all, side, true, s);
        for (uint32_t r = 0; r < side->count; r++)
            ck_ok(keel_engine_eval_segment(side->engines[r], s));
        exchange_all(side, keel_engine_eval_exchange, s);
    }
    for (uint32_t r = 0; r < side->count; r++) {
        float loss;
        ck_ok(keel_engine_eval_end(side->engines[r], soon(), &loss));
        memcpy(&bits, &loss, sizeof bits);
        ck_assert_msg(r == 0 || bits == first, "%s: rank %u evaluates otherwise", side->of->what, r);
        first = bits;
    }
    return first;
}

/* Two shards of two microbatches each step. */
static void train(const struct positions *all, struct outcome *out)
{
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t p = 0; p < all->count; p++) {
            const struct side *side = &all->at[p];
            for (uint32_t r = 0; r < side->count; r++)
                ck_ok(keel_engine_zero(side->engines[r]));
            for (uint32_t m = 0; m < MICROBATCHES; m++)
                run_microbatch(all, side, step, m);
            for (uint32_t r = 0; r < side->count; r++)
                ck_ok(keel_engine_settle(side->engines[r], soon()));
            out->losses[step] = same_loss(side);
        }
        if (all->at[0].owned[0] != NULL)
            update_owned(all, step, out);
        else
            update(&all->at[0], step, out);
    }
    out->eval = evaluate(all, &all->at[all->count - 1]);
}

/* ---- cases --------------------------------------------------------------------------------------------- */

/* Owners along the data axis, fewer where slices are cut, since each computes all; each share has one holder,
 * or two, or one in each group. */
static void draw_owners(struct plan_case *of)
{
    of->owners = true;
    of->positions = draw_of(&of->random, 1, of->places > 1 ? 3 : POSITIONS);
    of->holders = draw_of(&of->random, 1, 2);
    of->gathers = draw_bool(&of->random);
    of->ahead = draw_of(&of->random, 0, 3);
    of->group = keel_zero_group(of->positions, draw_of(&of->random, 0, of->positions));
}

/* Cut [0, slices) into 2 to `slices` runs. */
static void draw_cut(struct plan_case *of)
{
    bool cut[SLICES] = {false};
    of->places = draw_of(&of->random, 2, of->slices);
    for (uint32_t cuts = 1; cuts < of->places;) {
        const uint32_t at = draw_of(&of->random, 1, of->slices - 1);
        cuts += cut[at] ? 0 : 1;
        cut[at] = true;
    }
    uint32_t place = 0;
    for (uint32_t s = 1; s < of->slices; s++)
        if (cut[s])
            of->begin[++place] = s;
    of->begin[of->places] = of->slices;
}

static struct plan_case draw_case(uint64_t number)
{
    static const char *const off[] = {NULL, "", "fuse", "plan-memory"};
    struct plan_case of = {.random = number * 7919 + 13,
                           .places = 1,
                           .positions = 1,
                           .checked = number % 3 == 0,
                           .freezes = number % 4 == 1,
                           .groups = number % 5 == 2};
    of.slices = draw_of(&of.random, 1, SLICES);
    if (of.slices > 1 && draw_of(&of.random, 0, 3) > 0)
        draw_cut(&of);
    if (of.places == 1 || draw_of(&of.random, 0, 2) == 0)
        draw_owners(&of);
    of.batch = draw_of(&of.random, 1, 3);
    of.tokens = draw_of(&of.random, (of.slices + of.batch - 1) / of.batch, SLICES);
    of.heads = draw_of(&of.random, of.slices, SLICES + 2);
    of.width = draw_of(&of.random, of.slices > 1 ? of.slices : 2, 2 * SLICES); /* move() halves it */
    of.vocab = draw_of(&of.random, of.slices, 4 * SLICES + 7);
    of.classes = of.vocab;
    of.storage = draw_of(&of.random, 0, 3) > 0 ? KEEL_F32 : draw_bool(&of.random) ? KEEL_BF16 : KEEL_F16;
    of.passes_off = off[draw_of(&of.random, 0, 3)];
    size_t used =
        (size_t)snprintf(of.what, sizeof of.what, "case %llu: T %u ", (unsigned long long)number, of.slices);
    if (of.owners)
        used +=
            (size_t)snprintf(of.what + used, sizeof of.what - used, "%u owners, %u holders, groups of %u%s ",
                             of.positions, of.holders, of.group, of.gathers ? ", gathers" : "");
    for (uint32_t k = 1; k < of.places; k++)
        used +=
            (size_t)snprintf(of.what + used, sizeof of.what - used, k == 1 ? "cut %u" : " %u", of.begin[k]);
    snprintf(of.what + used, sizeof of.what - used, " storage %d off %s%s%s", (int)of.storage,
             of.passes_off == NULL ? "-" : of.passes_off, of.checked ? " checked" : "",
             of.freezes ? " freezes" : "");
    return of;
}

static void compare(const struct plan_case *of, const struct outcome *one, const struct outcome *many)
{
    for (uint32_t s = 0; s < STEPS; s++) {
        ck_assert_msg(many->losses[s] == one->losses[s], "%s: loss of step %u: %08x, of one device %08x",
                      of->what, s, many->losses[s], one->losses[s]);
        ck_assert_msg(many->norms[s] == one->norms[s], "%s: norm of step %u: %08x, of one device %08x",
                      of->what, s, many->norms[s], one->norms[s]);
        ck_assert_msg(many->digests[s] == one->digests[s], "%s: weights of step %u differ", of->what, s);
    }
    ck_assert_msg(many->eval == one->eval, "%s: evaluation: %08x, of one device %08x", of->what, many->eval,
                  one->eval);
}

/* What is planned of all engines, their pieces among it, is what the device has given. */
static void count_memory(const struct plan_case *of, const struct positions *one,
                         const struct positions *many)
{
    const struct positions *both[] = {one, many};
    uint64_t planned = 0;
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t p = 0; p < both[i]->count; p++)
            for (uint32_t r = 0; r < both[i]->at[p].count; r++) {
                struct keel_engine_facts facts;
                keel_engine_facts(both[i]->at[p].engines[r], &facts);
                planned += facts.planned_peak_bytes;
            }
    ck_assert_msg(planned == keel_device_stats(device).live_bytes, "%s: %llu bytes planned, %llu taken",
                  of->what, (unsigned long long)planned,
                  (unsigned long long)keel_device_stats(device).live_bytes);
}

/* A rank knows the parameters by the shapes that they have as a whole: by these plans and snapshots do. */
static void compare_params(const struct plan_case *of, const struct positions *one,
                           const struct positions *many)
{
    const struct keel_engine *all = one->at[0].engines[0];
    for (uint32_t r = 0; r < many->at[0].count; r++)
        for (uint32_t i = 0; i < keel_engine_param_count(all); i++) {
            const struct keel_engine_param *a = keel_engine_param(all, i),
                                           *b = keel_engine_param(many->at[0].engines[r], i);
            uint64_t held = 1;
            for (uint32_t d = 0; d < b->dims; held *= b->shape[d++])
                ck_assert(b->shape[d] == b->whole[d] || d == b->split_dim);
            ck_assert_msg(a->dims == b->dims && held == b->count &&
                              memcmp(a->whole, b->whole, a->dims * sizeof a->whole[0]) == 0,
                          "%s: place %u has another shape of %s", of->what, r, a->name);
        }
}

/* Whether the model could be cut; a split that is refused says so by name. */
static bool run_case(uint64_t number)
{
    struct plan_case of = draw_case(number);
    struct keel_graph *graph = write_model(&of);
    static struct positions whole, ranks;
    struct outcome one, many;
    whole = ranks = (struct positions){.count = 0};
    ck_assert_msg(open_all(&whole, &of, graph, true) == KEEL_OK, "%s: %s", of.what, keel_detail());
    const enum keel_status status = open_all(&ranks, &of, graph, false);
    ck_assert_msg(status == KEEL_OK || status == KEEL_UNSUPPORTED, "%s: %s", of.what, keel_detail());
    if (status == KEEL_OK) {
        count_memory(&of, &whole, &ranks);
        compare_params(&of, &whole, &ranks);
        train(&whole, &one);
        train(&ranks, &many);
        compare(&of, &one, &many);
    } else if (getenv("KEEL_PLANS_REFUSED") != NULL) {
        printf("note: %s: %s\n", of.what, keel_detail());
    }
    close_all(&ranks);
    close_all(&whole);
    keel_graph_destroy(graph);
    return status == KEEL_OK;
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : strtoull(text, NULL, 10);
}

/* Cases that one test has: libcheck, which tells how long each took, ends with an error where one took more
 * than 35 minutes. */
enum { PART = 1000 };
static uint64_t cases_wanted(void)
{
    return setting("KEEL_PLANS_CASES", PART);
}

/* A model whose layouts no cut can follow is refused, but no such is drawn: all cases are compared. */
START_TEST(ranks_that_share_a_model_have_the_bits_of_one)
{
    const uint64_t before = (uint64_t)_i * PART, rest = cases_wanted() - before;
    const uint64_t wanted = rest < PART ? rest : PART, first = setting("KEEL_PLANS_FIRST", 0) + before;
    const uint64_t seconds = setting("KEEL_PLANS_SECONDS", getenv("KEEL_TEST_LONG") != NULL ? 0 : 300);
    const uint64_t end_ns = keel_deadline_after_ns(seconds * KEEL_NS_PER_S);
    uint64_t done = 0, refused = 0;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    for (; done < wanted && (done <= wanted / 10 || seconds == 0 || keel_now_ns() < end_ns); done++)
        refused += run_case(first + done) ? 0 : 1;
    printf("note: cases %llu to %llu, of %llu, of which %llu were refused\n", (unsigned long long)first,
           (unsigned long long)(first + done - 1), (unsigned long long)wanted, (unsigned long long)refused);
    ck_assert_uint_eq(refused, 0);
    ck_assert_uint_eq(keel_device_stats(device).live_bytes, 0);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

/* What cannot be had is refused by name: a run of too many nodes, and what only all slices have. */
START_TEST(cuts_that_no_rank_can_have_are_refused)
{
    static const struct {
        uint32_t tensor, first, count;
        const char *says;
    } refused[] = {{64, 1, 62, "10 nodes"}, {4, 3, 2, "of 4 tensor slices"}, {4, 1, 0, "0 slices from 1"}};
    struct keel_graph *graph;
    struct keel_engine *engine = NULL;
    ck_ok(keel_device_open("host", NULL, &device));
    ck_ok(keel_kernels_create(device, &kernels));
    ck_ok(keel_graph_create(&graph));
    ck_ok(keel_model_gpt(
        graph,
        &(struct keel_gpt_config){
            .layers = 1, .heads = 64, .width = 128, .block = 64, .vocab = 64, .batch = 1, .bias = true}));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const struct keel_engine_config config = {.device = device,
                                                  .kernels = kernels,
                                                  .graph = graph,
                                                  .tensor = refused[i].tensor,
                                                  .tensor_first = refused[i].first,
                                                  .tensor_count = refused[i].count,
                                                  .training = true};
        ck_assert_int_ne(keel_engine_create(&config, &engine), KEEL_OK);
        ck_assert_msg(strstr(keel_detail(), refused[i].says) != NULL, "%s: %s", refused[i].says,
                      keel_detail());
    }
    keel_graph_destroy(graph);
    keel_kernels_destroy(kernels);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, cuts_that_no_rank_can_have_are_refused);
    tcase_add_loop_test(tc, ranks_that_share_a_model_have_the_bits_of_one, 0,
                        (int)((cases_wanted() + PART - 1) / PART));
}

KEEL_TEST_MAIN("plans", cases, 7200)
