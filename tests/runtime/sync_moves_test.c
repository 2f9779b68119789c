/* sync_moves_test.c - from what the ranks of a view say that they have to what goes where, against a brute
 * force over the elements of the flat buffers: whatever was lost, every element that a rank needs and has not
 * comes to it exactly once, from a live rank that has it, and what nobody has is named.
 *
 * Views, layouts and losses are random; the engine is a real one, which nothing runs on. Who owns what is
 * written down here a second time, element by element. */
#include "harness.h"
#include "held_shares.h"
#include "trainer_internal.h"
#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>

enum { RANKS = 9, EPOCHS = 4, FLAT = 1 << 15, CASES = 600, SLICES = 4, PLACES = 2 };

static uint64_t random_state;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(((random_state >> 32) * below) >> 32);
}

/* ---- a worker that only thinks ------------------------------------------------------------------------- */

static struct keel_worker worker;
static uint32_t places = 1; /* of slices, of which the engine has one's */
static struct keel_device *device;

/* What flat elements are: the end of the page that one lies in, and what is kept of it; nothing of gaps. */
static uint32_t flat_count;
static uint32_t page_end[FLAT];
static bool kept[KEEL_STATE_PARTS][FLAT];

static void map_tile(struct keel_engine *engine, const struct keel_tile *tile)
{
    const bool statistic = keel_engine_param(engine, tile->param)->statistic;
    for (uint64_t e = 0; e < tile->count; e++) {
        const uint64_t at = tile->offset + e, end = (e / KEEL_UPDATE_PAGE + 1) * KEEL_UPDATE_PAGE;
        kept[KEEL_STATE_WEIGHTS][at] = true;
        kept[KEEL_STATE_M][at] = !statistic;
        kept[KEEL_STATE_V][at] =
            !statistic && keel_optimizer_has_v((enum keel_optimizer)worker.job.optimizer);
        kept[KEEL_STATE_EMA][at] = !statistic && worker.job.ema > 0.0F;
        page_end[at] = (uint32_t)(tile->offset + end);
    }
}

static void open_worker(enum keel_zero zero, uint32_t tensor, enum keel_optimizer optimizer,
                        enum keel_dtype storage)
{
    memset(&worker, 0, sizeof worker);
    worker.job = view_job(1, 36, 24000);
    worker.job.parallel.zero = zero;
    worker.job.tensor = tensor;
    worker.job.optimizer = optimizer;
    worker.job.storage = storage;
    worker.job.ema = storage == KEEL_F32 ? 0.9F : 0.0F;
    ck_ok(view_worker_open(&worker, &device));
}

/* The engine as it is now. */
static void map_elements(void)
{
    struct keel_engine *engine = keel_trainer_engine(worker.trainer);
    flat_count = (uint32_t)keel_engine_flat_count(engine);
    ck_assert_uint_le(flat_count, FLAT);
    ck_assert_uint_gt(keel_engine_bucket_count(engine), 2);
    memset(kept, 0, sizeof kept);
    for (uint32_t i = 0; i < keel_engine_tile_count(engine); i++)
        map_tile(engine, keel_engine_tile(engine, i));
}

static void close_worker(void)
{
    places = 1;
    view_worker_close(&worker, device);
}

/* ---- who has and needs what, by definition ------------------------------------------------------------- */

static uint8_t have[RANKS][KEEL_STATE_PARTS][FLAT], need[RANKS][KEEL_STATE_PARTS][FLAT];

static void clear(void)
{
    memset(have, 0, sizeof have);
    memset(need, 0, sizeof need);
}

static void mark_all(uint8_t marks[KEEL_STATE_PARTS][FLAT], uint32_t parts)
{
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
        for (uint32_t e = 0; (parts >> part & 1) != 0 && e < flat_count; e++)
            marks[part][e] |= kept[part][e];
}

/* Of an engine with some slices pages are of rows: there the engine is believed (pieces_test.c). */
static void mark_engines_share(uint8_t marks[KEEL_STATE_PARTS][FLAT], uint32_t owner, uint32_t of,
                               uint32_t parts)
{
    static struct keel_engine_run runs[64];
    const struct keel_engine *engine = keel_trainer_engine(worker.trainer);
    ck_assert_uint_le(keel_engine_bucket_count(engine), 64);
    ck_ok(keel_engine_share(engine, owner, of, runs));
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++)
        for (uint64_t e = runs[b].first; e < runs[b].first + runs[b].count; e++)
            for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
                if ((parts >> part & 1) != 0)
                    marks[part][e] |= kept[part][e];
}

/* The owner of an element is the last position whose ideal beginning lies in or before the element's page. */
static void mark_share(uint8_t marks[KEEL_STATE_PARTS][FLAT], uint32_t owner, uint32_t of, uint32_t parts)
{
    const struct keel_engine *engine = keel_trainer_engine(worker.trainer);
    if (places > 1) {
        mark_engines_share(marks, owner, of, parts);
        return;
    }
    for (uint32_t b = 0; b < keel_engine_bucket_count(engine); b++) {
        const struct keel_engine_bucket *bucket = keel_engine_bucket(engine, b);
        const uint64_t pages = (bucket->count + KEEL_UPDATE_PAGE - 1) / KEEL_UPDATE_PAGE;
        for (uint64_t e = bucket->offset; e < bucket->offset + bucket->count; e++) {
            uint32_t last = 0;
            while (last + 1 < of && bucket->offset + pages * (last + 1) / of * KEEL_UPDATE_PAGE < page_end[e])
                last++;
            for (uint32_t part = 0; last == owner && part < KEEL_STATE_PARTS; part++)
                if ((parts >> part & 1) != 0)
                    marks[part][e] |= kept[part][e];
        }
    }
}

/* Nodes in the order of their first positions; the turn of a position on its own is its turn on the next. */
static uint32_t second_by_lists(uint32_t position, uint32_t count, const uint32_t *node)
{
    uint32_t on[RANKS][RANKS], size[RANKS] = {0}, names[RANKS], nodes = 0, mine = 0, turn = 0;
    for (uint32_t p = 0; p < count; p++) {
        uint32_t n = 0;
        while (n < nodes && names[n] != node[p])
            n++;
        names[n] = node[p];
        nodes = n == nodes ? nodes + 1 : nodes;
        mine = p == position ? n : mine;
        turn = p == position ? size[n] : turn;
        on[n][size[n]++] = p;
    }
    if (count < 2)
        return KEEL_SEAT_NONE;
    const uint32_t next = (mine + 1) % nodes;
    return nodes == 1 ? (position + 1) % count : on[next][turn % size[next]];
}

static bool gathers(void)
{
    return worker.job.parallel.zero == KEEL_ZERO_WEIGHTS;
}

static bool holds(uint32_t p, uint32_t owner, uint32_t count, const uint32_t *node)
{
    uint32_t group = worker.job.parallel.zero_group > 0 ? worker.job.parallel.zero_group : count;
    while (group < count && count % group != 0)
        group++;
    if (group < count)
        return p % group == owner % group;
    return p == owner || (worker.job.parallel.holders > 1 && second_by_lists(owner, count, node) == p);
}

static bool anybody_has(uint32_t part, uint32_t e)
{
    for (uint32_t p = 0; p < worker.rank_count; p++)
        if (have[p][part][e])
            return true;
    return false;
}

static const struct keel_tile *tile_of(const struct keel_extent *what)
{
    const struct keel_state_piece piece = keel_trainer_piece_of(worker.trainer, what);
    const struct keel_tile *tile = keel_engine_tile(keel_trainer_engine(worker.trainer), piece.tile);
    ck_assert(tile->param == what->param && tile->slice == what->slice && piece.part == what->part);
    ck_assert(piece.first == what->first && piece.count == what->count && piece.row == 0);
    ck_assert(what->count > 0 && what->first < tile->count && what->count <= tile->count - what->first);
    return tile;
}

/* 1: came, 2: was named as missing. */
static uint8_t got[RANKS][KEEL_STATE_PARTS][FLAT];

static void mark_moves(const struct keel_move *list, size_t count, uint8_t value)
{
    for (size_t i = 0; i < count; i++) {
        const struct keel_extent *what = &list[i].what;
        const uint64_t first = tile_of(what)->offset + what->first;
        const uint32_t from = list[i].from, to = list[i].to;
        uint32_t twice = 0, had_not = 0;
        ck_assert_uint_lt(to, worker.rank_count);
        ck_assert(value == 2 ? from == KEEL_SEAT_NONE : from < worker.rank_count && from != to);
        for (uint64_t e = first; e < first + what->count; e++) {
            twice += got[to][what->part][e] != 0;
            had_not += value == 1 && !have[from][what->part][e];
            got[to][what->part][e] = value;
        }
        ck_assert_msg(twice == 0 && had_not == 0, "%u -> %u: %u elements twice, %u that it has not", from, to,
                      twice, had_not);
    }
}

/* Elements that come, and in *out_missing those that nobody has. */
static uint64_t check_moves(const struct keel_moves *moves, uint64_t *out_missing)
{
    uint64_t came = 0;
    *out_missing = 0;
    memset(got, 0, sizeof got);
    mark_moves(moves->moves, moves->move_count, 1);
    mark_moves(moves->missing, moves->missing_count, 2);
    for (uint32_t p = 0; p < worker.rank_count; p++)
        for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
            for (uint32_t e = 0; e < flat_count; e++) {
                const bool lacks = need[p][part][e] && !have[p][part][e];
                const uint8_t wanted = (uint8_t)(!lacks ? 0 : anybody_has(part, e) ? 1 : 2);
                came += wanted == 1;
                *out_missing += wanted == 2;
                if (got[p][part][e] != wanted)
                    ck_abort_msg("position %u part %u element %u: %u, wanted %u", p, part, e, got[p][part][e],
                                 wanted);
            }
    return came;
}

/* ---- views --------------------------------------------------------------------------------------------- */

/* Those of the engine's place: how many, where they are in the view, and on which nodes. */
static uint32_t column, column_at[RANKS], nodes_now[RANKS];

/* So many active ranks on some nodes, and spares between them, which count for nothing. */
static void draw_view(void)
{
    struct keel_view *view = &worker.view;
    const uint32_t nodes = 1 + next_random(4);
    memset(view, 0, sizeof *view);
    memset(worker.sync_all, 0, RANKS * sizeof *worker.sync_all);
    column = 0;
    worker.rank_count = 1 + next_random(RANKS);
    worker.position = KEEL_SEAT_NONE; /* what this rank itself would do is not done */
    worker.axes.map.tensor = places;
    worker.axes.place = next_random(places);
    for (uint32_t p = 0; p < worker.rank_count;) {
        struct keel_member *member = &view->members[view->member_count];
        *member = (struct keel_member){.rank = view->member_count++, .node = (uint16_t)next_random(nodes)};
        member->spare = next_random(5) == 0;
        if (member->spare)
            continue;
        worker.axes.map.place[p] = (uint16_t)next_random(places);
        worker.sync_all[p].place = (uint8_t)worker.axes.map.place[p];
        if (worker.axes.map.place[p] == worker.axes.place) {
            column_at[column] = p;
            nodes_now[column++] = member->node;
        }
        p++;
    }
}

static void need_by_definition(void)
{
    const uint32_t moments = 1 << KEEL_STATE_M | 1 << KEEL_STATE_V | 1 << KEEL_STATE_EMA;
    const uint32_t weights = 1 << KEEL_STATE_WEIGHTS;
    const bool whole = worker.job.parallel.zero <= KEEL_ZERO_NONE;
    for (uint32_t i = 0; i < column; i++) {
        mark_all(need[column_at[i]], whole ? weights | moments : gathers() ? 0 : weights);
        for (uint32_t owner = 0; !whole && owner < column; owner++)
            if (holds(i, owner, column, nodes_now))
                mark_share(need[column_at[i]], owner, column, gathers() ? weights | moments : moments);
    }
}

/* ---- replicas ------------------------------------------------------------------------------------------ */

START_TEST(whoever_is_behind_gets_all_from_those_who_are_furthest)
{
    uint64_t came = 0, missing;
    for (uint64_t c = 0; c < CASES / 4; c++) {
        struct keel_moves moves;
        random_state = c;
        draw_view();
        clear();
        need_by_definition();
        const uint32_t best = next_random(worker.rank_count);
        worker.sync_all[best].has_state = 1;
        worker.sync_all[best].next_step = 7;
        for (uint32_t p = 0; p < worker.rank_count; p++) {
            struct keel_sync_record *record = &worker.sync_all[p];
            record->has_state = p == best || next_random(3) > 0;
            record->next_step = p == best ? 7 : 7 - next_random(2);
            if (record->has_state && record->next_step == 7)
                mark_all(have[p], UINT32_MAX);
        }
        ck_ok(keel_worker_find_healing(&worker, 7, &moves));
        came += check_moves(&moves, &missing);
        ck_assert_uint_eq(missing, 0);
        keel_moves_fini(&moves);
    }
    ck_assert_uint_gt(came, 1000000);
}
END_TEST

/* What positions read of a snapshot is all of it, each element once, and reaches everybody who needs it. */
static void check_shares(void)
{
    struct keel_extents *read = calloc(RANKS, sizeof *read);
    struct keel_moves moves;
    uint64_t missing;
    clear();
    need_by_definition();
    ck_assert_ptr_nonnull(read);
    for (uint32_t p = 0; p < column; p++) {
        ck_ok(keel_trainer_read_extents(worker.trainer, p, column, &read[p]));
        for (size_t i = 0; i < read[p].count; i++) {
            const struct keel_extent *what = &read[p].at[i];
            const uint64_t first = tile_of(what)->offset + what->first;
            for (uint64_t e = first; e < first + what->count; e++) {
                ck_assert(kept[what->part][e] && !anybody_has(what->part, (uint32_t)e));
                have[column_at[p]][what->part][e] = 1;
            }
        }
        keel_free(read[p].at);
    }
    free(read);
    ck_ok(keel_worker_find_shares(&worker, &moves));
    check_moves(&moves, &missing);
    ck_assert_uint_eq(missing, 0);
    keel_moves_fini(&moves);
}

START_TEST(what_ranks_read_of_a_snapshot_reaches_all_who_need_it)
{
    for (uint64_t c = 0; c < 40; c++) {
        random_state = 5000 + c;
        draw_view();
        check_shares();
    }
}
END_TEST

/* ---- thousands ----------------------------------------------------------------------------------------- */

enum { NEWCOMER = 7 };

/* As many ranks as there may be, each on a node of its own. */
static void fill_view(void)
{
    struct keel_view *view = &worker.view;
    memset(worker.sync_all, 0, sizeof worker.sync_all);
    worker.rank_count = KEEL_MEMBERS_MAX;
    worker.axes.map.tensor = 1;
    view->member_count = KEEL_MEMBERS_MAX;
    for (uint32_t p = 0; p < KEEL_MEMBERS_MAX; p++) {
        view->members[p] = (struct keel_member){.rank = (uint16_t)p, .node = (uint16_t)(1 + p)};
        worker.axes.map.place[p] = 0;
        worker.sync_all[p].has_state = p != NEWCOMER;
        worker.sync_all[p].next_step = p != NEWCOMER ? 7 : 0;
    }
}

static uint64_t count_kept(void)
{
    uint64_t elements = 0;
    for (uint32_t part = 0; part < KEEL_STATE_PARTS; part++)
        for (uint32_t e = 0; e < flat_count; e++)
            elements += kept[part][e];
    return elements;
}

/* All that it needs, in no more runs than there are senders and tiles. A list for each rank of what it has
 * would take `lists` bytes: it takes no tenth of that to find the moves. */
static void check_thousands(enum keel_status (*find)(struct keel_moves *), uint64_t wanted)
{
    struct keel_extents all = {.at = NULL};
    struct keel_moves moves;
    uint64_t came = 0;
    ck_ok(keel_trainer_all_extents(worker.trainer, UINT32_MAX, &all));
    const uint64_t lists = (uint64_t)KEEL_MEMBERS_MAX * all.count * sizeof *all.at;
    worker.position = NEWCOMER;
    const struct keel_memory_stats before = keel_memory_stats();
    ck_assert_uint_lt(before.peak_bytes, before.live_bytes + lists / 20); /* so that a new peak shows */
    ck_ok(find(&moves));
    ck_assert_uint_lt(keel_memory_stats().peak_bytes - before.live_bytes, lists / 10);
    for (size_t i = 0; i < moves.move_count; i++)
        came += moves.moves[i].to == NEWCOMER ? moves.moves[i].what.count : 0;
    ck_assert_uint_eq(moves.missing_count, 0);
    ck_assert_uint_eq(came, wanted);
    ck_assert_uint_eq(moves.elements, wanted);
    ck_assert_uint_eq(moves.receivers, 1);
    ck_assert_uint_le(moves.move_count, moves.senders + all.count);
    keel_moves_fini(&moves);
    keel_free(all.at);
}

static enum keel_status find_healing(struct keel_moves *out)
{
    return keel_worker_find_healing(&worker, 7, out);
}

START_TEST(one_newcomer_among_thousands_of_replicas)
{
    fill_view();
    check_thousands(find_healing, count_kept());
}
END_TEST

/* ---- owned pieces -------------------------------------------------------------------------------------- */

static enum keel_status find_owned(struct keel_moves *out)
{
    return keel_worker_find_owned(&worker, 3, 7, out);
}

/* It was an owner of what it needs; weights it gets from all, moments from who has copies. */
START_TEST(one_newcomer_among_thousands_of_owners)
{
    struct keel_extents own = {.at = NULL}, copies = {.at = NULL}, weights = {.at = NULL};
    uint64_t wanted = 0;
    fill_view();
    for (uint32_t p = 0; p < KEEL_MEMBERS_MAX; p++) {
        struct keel_owned_record *record = &worker.sync_all[p].owned[0];
        if (p == NEWCOMER)
            continue;
        *record = (struct keel_owned_record){
            .epoch = 3, .step = 7, .of = KEEL_MEMBERS_MAX, .position = p, .complete = 1};
        hold_two(&worker, p, KEEL_MEMBERS_MAX);
    }
    place_shares(&worker);
    /* What all say is gathered by all: no sets in it that grow with the ranks. */
    ck_assert_uint_le(sizeof(struct keel_sync_record), 256);
    ck_assert_uint_le(worker.shares.all_capacity, 2 * KEEL_MEMBERS_MAX);
    const uint32_t moments = 1 << KEEL_STATE_M | 1 << KEEL_STATE_V | 1 << KEEL_STATE_EMA;
    ck_ok(keel_trainer_share_extents(worker.trainer, NEWCOMER, KEEL_MEMBERS_MAX, moments, &own));
    ck_ok(keel_trainer_share_extents(worker.trainer, NEWCOMER - 1, KEEL_MEMBERS_MAX, moments, &copies));
    ck_ok(keel_trainer_all_extents(worker.trainer, KEEL_PARTS_WEIGHTS, &weights));
    const struct keel_extents *parts[] = {&own, &copies, &weights};
    for (uint32_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < parts[k]->count; i++)
            wanted += parts[k]->at[i].count;
        keel_free(parts[k]->at);
    }
    check_thousands(find_owned, wanted);
}
END_TEST

/* A view that was: the positions of a place in it, and where the ranks of now stood. */
struct layout {
    uint32_t of, node[RANKS];
};
static struct layout layouts[PLACES][EPOCHS + 1];

/* Of the engine's place. */
static bool is_empty(uint32_t owner, uint32_t of)
{
    static uint8_t marks[KEEL_STATE_PARTS][FLAT];
    memset(marks, 0, sizeof marks);
    mark_share(marks, owner, of, UINT32_MAX);
    return memchr(marks, 1, sizeof marks) == NULL;
}

/* What rank p has of the layout of an epoch, as its record i; `step` is that of the furthest. A share without
 * elements is everybody's. */
static void draw_record(uint32_t p, uint32_t i, uint64_t epoch, uint32_t position, uint64_t step)
{
    const struct layout *layout = &layouts[worker.sync_all[p].place][epoch];
    struct keel_owned_record record = {.epoch = epoch, .of = layout->of, .position = position};
    uint32_t held[RANKS], empty[RANKS], held_count = 0, empty_count = 0;
    record.step = step - (next_random(4) == 0 ? 1 : 0);
    record.has_norm = record.step == step ? next_random(8) > 0 : next_random(2);
    record.reduced = next_random(4) > 0;
    record.complete = next_random(3) == 0;
    worker.sync_all[p].owned[i] = record;
    for (uint32_t owner = 0; owner < layout->of; owner++) {
        if (is_empty(owner, layout->of))
            empty[empty_count++] = owner;
        if (holds(position, owner, layout->of, layout->node))
            held[held_count++] = owner;
    }
    hold_shares(&worker, p, i, held, held_count, empty, empty_count);
}

static void draw_layouts(uint64_t step)
{
    for (uint32_t i = 0; i < places * EPOCHS; i++) {
        struct layout *layout = &layouts[i / EPOCHS][1 + i % EPOCHS];
        const uint32_t nodes = 1 + next_random(4);
        layout->of = 1 + next_random(RANKS);
        for (uint32_t p = 0; p < layout->of; p++)
            layout->node[p] = next_random(nodes);
    }
    uint32_t used[PLACES][EPOCHS + 1] = {{0}}; /* a position is one rank's at most; some are lost */
    for (uint32_t p = 0; p < worker.rank_count; p++) {
        const uint32_t place = worker.sync_all[p].place;
        uint64_t epoch = EPOCHS + 1;
        for (uint32_t i = 0; i < 2 && epoch > 1; i++) {
            epoch -= 1 + (next_random(4) == 0 ? next_random((uint32_t)epoch - 1) : 0);
            used[place][epoch] += next_random(6) == 0;
            if (used[place][epoch] < layouts[place][epoch].of && next_random(8) > 0)
                draw_record(p, i, epoch, used[place][epoch]++, step);
        }
    }
    place_shares(&worker);
}

/* As records say after those who can have caught up; and who can, by definition: the sums of the step that
 * another one of the same layout did, whose norm is known. Only of the newer of its two layouts. */
static struct keel_owned_record after[RANKS][2];

static void catch_up_by_definition(uint64_t step)
{
    for (uint32_t p = 0; p < worker.rank_count; p++) {
        struct keel_owned_record *mine = &after[p][0];
        bool known = false;
        memcpy(after[p], worker.sync_all[p].owned, sizeof after[p]);
        for (uint32_t q = 0; q < worker.rank_count; q++) {
            const struct keel_owned_record *other = &worker.sync_all[q].owned[0];
            known = known ||
                    (other->of > 0 && other->epoch == mine->epoch && other->step == step && other->has_norm);
        }
        if (mine->of > 0 && mine->reduced && mine->step == step - 1 && known) {
            mine->step = step;
            mine->complete = 0;
        }
    }
}

static void have_by_definition(uint64_t epoch, uint64_t step)
{
    memset(have, 0, sizeof have);
    for (uint32_t m = 0; m < column; m++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &after[column_at[m]][i];
            if (record->of == 0 || record->epoch != epoch || record->step != step)
                continue;
            if (record->complete && !gathers())
                mark_all(have[column_at[m]], KEEL_PARTS_WEIGHTS);
            for (uint32_t owner = 0; owner < record->of; owner++)
                if (holds(record->position, owner, record->of, layouts[worker.axes.place][epoch].node))
                    mark_share(have[column_at[m]], owner, record->of, UINT32_MAX);
        }
}

static bool was_there(uint64_t epoch, uint64_t step)
{
    for (uint32_t m = 0; m < column; m++)
        for (uint32_t i = 0; i < 2; i++) {
            const struct keel_owned_record *record = &after[column_at[m]][i];
            if (record->of > 0 && record->epoch == epoch && record->step == step)
                return true;
        }
    return false;
}

static uint64_t furthest(void)
{
    uint64_t step = 0;
    for (uint32_t p = 0; p < worker.rank_count; p++)
        for (uint32_t i = 0; i < 2; i++)
            if (worker.sync_all[p].owned[i].of > 0 && worker.sync_all[p].owned[i].step > step)
                step = worker.sync_all[p].owned[i].step;
    return step;
}

struct tally {
    uint32_t lost, went_on, older;
    uint64_t came, missing;
};

/* Every layout's moves, and the newest from which nothing is missing. */
static void check_owned(uint64_t step, struct tally *tally)
{
    struct keel_moves moves;
    uint64_t missing, wanted = 0, newest = 0;
    ck_ok(keel_worker_catch_up_owned(&worker, step));
    for (uint64_t epoch = EPOCHS; epoch > 0; epoch--) {
        if (!was_there(epoch, step))
            continue;
        newest = newest == 0 ? epoch : newest;
        have_by_definition(epoch, step);
        ck_ok(keel_worker_find_owned(&worker, epoch, step, &moves));
        tally->came += check_moves(&moves, &missing);
        tally->missing += missing;
        wanted = wanted == 0 && missing == 0 ? epoch : wanted;
        keel_moves_fini(&moves);
    }
    const struct keel_owned_record chosen = keel_worker_choose_owned(&worker, worker.axes.place, step);
    ck_assert_msg((chosen.of == 0) == (wanted == 0) && (wanted == 0 || chosen.epoch == wanted),
                  "goes on from layout %u of %u ranks, wanted %u", (unsigned)chosen.epoch, chosen.of,
                  (unsigned)wanted);
    tally->lost += wanted == 0;
    tally->went_on += wanted > 0;
    tally->older += wanted > 0 && wanted != newest;
    if (wanted > 0)
        ck_assert_uint_eq(chosen.of, layouts[worker.axes.place][wanted].of);
}

/* Who may leave: without all of them everything is held still that is held now, and each of the others has
 * something that nobody else has. */
static void check_spare_holders(uint64_t step)
{
    static uint8_t all[KEEL_STATE_PARTS][FLAT];
    bool spare[KEEL_MEMBERS_MAX];
    const struct keel_owned_record chosen = keel_worker_choose_owned(&worker, worker.axes.place, step);
    keel_worker_find_spare_holders(&worker, step, spare);
    if (chosen.of == 0)
        return;
    have_by_definition(chosen.epoch, step);
    memset(all, 0, sizeof all);
    for (uint32_t m = 0; m < column; m++)
        for (uint32_t e = 0; !spare[column_at[m]] && e < flat_count; e++)
            all[KEEL_STATE_M][e] += have[column_at[m]][KEEL_STATE_M][e];
    uint32_t gone = 0; /* an assertion of each element would be a write of each */
    for (uint32_t e = 0; e < flat_count; e++)
        gone += all[KEEL_STATE_M][e] == 0 && anybody_has(KEEL_STATE_M, e);
    ck_assert_uint_eq(gone, 0);
    for (uint32_t m = 0; m < column; m++) {
        uint32_t alone = 0;
        for (uint32_t e = 0; e < flat_count; e++)
            alone += have[column_at[m]][KEEL_STATE_M][e] && all[KEEL_STATE_M][e] == 1;
        ck_assert_msg(spare[column_at[m]] || alone > 0, "rank %u is kept for nothing", column_at[m]);
    }
}

START_TEST(pieces_come_once_from_live_holders_of_the_newest_layout_that_is_whole)
{
    struct tally tally = {.lost = 0};
    for (uint64_t c = 0; c < CASES; c++) {
        random_state = 9000 + c;
        worker.job.parallel.holders = 1 + (next_random(4) > 0);
        worker.job.parallel.zero_group = next_random(3) > 0 ? 0 : 1 + next_random(4);
        worker.job.parallel.zero = next_random(2) > 0 ? KEEL_ZERO_WEIGHTS : KEEL_ZERO_OPTIMIZER;
        draw_view();
        draw_layouts(20);
        const uint64_t step = furthest();
        if (step == 0)
            continue;
        clear();
        need_by_definition();
        catch_up_by_definition(step);
        check_owned(step, &tally);
        check_spare_holders(step);
    }
    printf("note: %u went on, %u of them from an older layout, %u lost a piece; %llu elements came, %llu had "
           "no holder\n",
           tally.went_on, tally.older, tally.lost, (unsigned long long)tally.came,
           (unsigned long long)tally.missing);
    ck_assert(tally.went_on > 100 && tally.older > 10 && tally.lost > 100);
    ck_assert(tally.came > 1000000 && tally.missing > 1000000);
}
END_TEST

/* Five ranks where they were, in one place or in two, and each thing that can be otherwise of one of them. */
START_TEST(a_layout_is_whole_when_all_are_where_they_were_with_all_weights)
{
    for (uint32_t otherwise = 0; otherwise < 8; otherwise++) {
        struct keel_owned_record *one = &worker.sync_all[2].owned[0];
        memset(worker.sync_all, 0, RANKS * sizeof *worker.sync_all);
        worker.rank_count = 5 + (otherwise == 5);
        worker.job.parallel.zero = otherwise % 2 == 0 ? KEEL_ZERO_WEIGHTS : KEEL_ZERO_OPTIMIZER;
        worker.axes.map.tensor = places;
        for (uint32_t p = 0; p < worker.rank_count; p++) {
            const uint32_t place = p % places, of = (5 + places - 1 - place) / places;
            worker.axes.map.place[p] = (uint16_t)place;
            worker.sync_all[p].place = (uint8_t)place;
            worker.sync_all[p].digest_of = otherwise >= 6 && p == 2 ? 7 : 8;
            worker.sync_all[p].owned[p % 2] = (struct keel_owned_record){/* of its two layouts */
                                                                         .epoch = 3,
                                                                         .step = 7,
                                                                         .of = of,
                                                                         .position = p / places,
                                                                         .complete = 1};
            const uint32_t all[] = {0, 1, 2, 3, 4};
            hold_shares(&worker, p, p % 2, all, of, NULL, 0);
        }
        one->position += otherwise == 1;
        one->complete = otherwise != 2;
        one->step += otherwise == 3;
        one->epoch += otherwise == 4;
        place_shares(&worker);
        ck_assert_int_eq(keel_worker_is_whole(&worker, 7),
                         otherwise == 0 || otherwise == 7); /* where each has all, so is its digest */
    }
}
END_TEST

/* A view may end when a rank has what it is to own, and before the ranks said what they have: what it knows
 * of the model's digest is what it knew before, or nothing. */
START_TEST(the_digest_of_a_piece_is_not_said_to_be_that_of_the_model)
{
    uint32_t nodes[2] = {0, 0};
    uint64_t part, shared, digest;
    for (uint32_t known = 0; known < 2; known++) {
        const struct keel_owners owners = {.epoch = 1 + known,
                                           .of = {.count = 2, .group = 2, .holders = 1, .node = nodes}};
        worker.rank_count = 1;
        worker.position = 0;
        worker.digest = 77;
        worker.digest_of = 3 + known;
        ck_ok(keel_trainer_own(worker.trainer, &owners));
        ck_ok(keel_trainer_initialize(worker.trainer));
        ck_ok(keel_worker_settle(&worker, 3));
        worker.has_state = true;
        worker.next_step = 3;
        ck_ok(keel_worker_exchange_whole(&worker));
        ck_assert_int_eq(keel_worker_find_digest(&worker, 3, &digest), known);
        ck_assert(!known || digest == 77);
        ck_ok(keel_worker_exchange_second(&worker)); /* of a rank alone: it is all there is */
        keel_trainer_digest_parts(worker.trainer, &part, &shared);
        ck_assert(keel_worker_find_digest(&worker, 3, &digest) == known && worker.digest == part &&
                  part != 77);
        ck_ok(keel_worker_exchange_whole(&worker));
        ck_assert(keel_worker_find_digest(&worker, 3, &digest) && digest == part);
        ck_ok(keel_worker_check_digest(&worker, part));
        ck_assert_int_eq(keel_worker_check_digest(&worker, part + 1), KEEL_MISMATCH);
        keel_trainer_forget_before(worker.trainer);
    }
}
END_TEST

/* ---- slices -------------------------------------------------------------------------------------------- */

/* Ranks of other places have other elements under the same names: none of them sends, none receives. */
START_TEST(slices_come_from_their_own_column_alone)
{
    uint64_t came = 0, missing = 0, some;
    for (uint64_t c = 0; c < CASES / 4; c++) {
        struct keel_moves moves;
        random_state = 70000 + c;
        draw_view();
        clear();
        for (uint32_t p = 0; p < worker.rank_count; p++) {
            struct keel_sync_record *record = &worker.sync_all[p];
            record->has_state = next_random(3) > 0;
            record->next_step = 7 - next_random(2);
            if (worker.axes.map.place[p] != worker.axes.place)
                continue;
            mark_all(need[p], UINT32_MAX);
            if (record->has_state && record->next_step == 7)
                mark_all(have[p], UINT32_MAX);
        }
        ck_ok(keel_worker_find_healing(&worker, 7, &moves));
        came += check_moves(&moves, &some);
        missing += some;
        keel_moves_fini(&moves);
    }
    ck_assert(came > 500000 && missing > 500000);
}
END_TEST

/* Who has the sums of the step that another did, and of no other; not who is where that one is. */
START_TEST(who_is_a_step_behind_and_has_its_sums_catches_up)
{
    worker.rank_count = 8;
    worker.position = KEEL_SEAT_NONE;
    memset(worker.sync_all, 0, RANKS * sizeof *worker.sync_all);
    for (uint32_t p = 0; p < 8; p++) {
        worker.sync_all[p].has_state = p & 1;
        worker.sync_all[p].is_ready = p >> 1 & 1;
    }
    for (uint64_t next = 5; next <= 7; next++) {
        for (uint32_t p = 0; p < 8; p++)
            worker.sync_all[p].next_step = next;
        ck_ok(keel_worker_catch_up_axes(&worker, 7));
        for (uint32_t p = 0; p < 8; p++)
            ck_assert_uint_eq(worker.sync_all[p].next_step, (p & 3) == 3 && next == 6 ? 7 : next);
    }
}
END_TEST

/* A group in which nobody is missed, without groups within it. */
START_TEST(nobody_is_missed_where_all_are_there)
{
    static const uint16_t mine[4];
    const struct keel_endpoint_config config = {.provider = NULL};
    struct keel_address address;
    uint32_t position;
    ck_assert(!keel_worker_missed(&worker, &position));
    ck_ok(keel_endpoint_open(&config, &worker.endpoint));
    keel_endpoint_address(worker.endpoint, &address);
    const struct keel_group_config group = {
        .epoch = 1, .rank_count = 1, .addresses = &address, .shard_count = 4, .shard_rank = mine};
    ck_ok(keel_group_open(worker.endpoint, &group, &worker.group));
    ck_assert(!keel_worker_missed(&worker, &position));
    keel_group_close(worker.group);
    keel_endpoint_close(worker.endpoint);
}
END_TEST

/* ---- fixtures ------------------------------------------------------------------------------------------ */

static void open_replicas(void)
{
    open_worker(KEEL_ZERO_NONE, 1, KEEL_OPTIMIZER_ADAMW, KEEL_F32);
    map_elements();
}

static void open_momentum(void)
{
    open_worker(KEEL_ZERO_NONE, 1, KEEL_OPTIMIZER_SGD, KEEL_F16); /* no second moment, and a statistic */
    map_elements();
}

static void open_owned(void)
{
    open_worker(KEEL_ZERO_OPTIMIZER, 1, KEEL_OPTIMIZER_ADAMW, KEEL_F32);
    map_elements();
}

static void open_sliced(void)
{
    open_worker(KEEL_ZERO_NONE, SLICES, KEEL_OPTIMIZER_ADAMW, KEEL_F32);
    ck_ok(keel_trainer_cut(worker.trainer, 1, 2));
    map_elements();
    places = PLACES;
}

static void open_sliced_owned(void)
{
    open_worker(KEEL_ZERO_OPTIMIZER, SLICES, KEEL_OPTIMIZER_ADAMW, KEEL_F32);
    ck_ok(keel_trainer_cut(worker.trainer, 1, 2));
    map_elements();
    places = PLACES;
}

static void open_gathered(void)
{
    open_worker(KEEL_ZERO_WEIGHTS, 1, KEEL_OPTIMIZER_ADAMW, KEEL_F32);
    worker.device = device;
    map_elements();
}

static void add_case(Suite *suite, const char *name, void (*open)(void), const TTest *const *tests,
                     size_t count)
{
    TCase *tc = tcase_create(name);
    tcase_set_timeout(tc, 300);
    tcase_add_checked_fixture(tc, open, close_worker);
    for (size_t i = 0; i < count; i++)
        tcase_add_test(tc, tests[i]);
    suite_add_tcase(suite, tc);
}

/* One rule, whether it is asked of two positions or summed over all. */
START_TEST(what_owners_say_is_summed_by_who_has_copies_of_their_shares)
{
    enum { POSITIONS = 12 };
    uint32_t second[POSITIONS], node[POSITIONS];
    static struct keel_commit_record records[POSITIONS];
    for (uint32_t count = 1; count <= POSITIONS; count++)
        for (uint32_t group = 1; group <= count; group++)
            for (uint32_t holders = 1; holders <= 2 && count % group == 0; holders++) {
                struct keel_owned_layout layout = {
                    .owners.of = {.count = count, .group = group, .holders = holders, .node = node},
                    .second = second};
                uint64_t sums[POSITIONS];
                for (uint32_t p = 0; p < count; p++) {
                    node[p] = p / 3;
                    records[p].own = UINT64_C(1) << p | UINT64_MAX << 40;
                }
                ck_ok(keel_second_holders(&layout.owners.of, second));
                keel_owned_sum_copies(&layout, records, sums);
                for (uint32_t holder = 0; holder < count; holder++) {
                    uint64_t sum = 0;
                    for (uint32_t owner = 0; owner < count; owner++)
                        sum += keel_owned_copies(&layout, holder, owner) ? records[owner].own : 0;
                    ck_assert_msg(sums[holder] == sum, "%u positions, groups of %u, holder %u", count, group,
                                  holder);
                }
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sync_moves");
    const TTest *const whole[] = {whoever_is_behind_gets_all_from_those_who_are_furthest,
                                  what_ranks_read_of_a_snapshot_reaches_all_who_need_it,
                                  one_newcomer_among_thousands_of_replicas};
    const TTest *const owned[] = {pieces_come_once_from_live_holders_of_the_newest_layout_that_is_whole,
                                  what_ranks_read_of_a_snapshot_reaches_all_who_need_it,
                                  a_layout_is_whole_when_all_are_where_they_were_with_all_weights,
                                  one_newcomer_among_thousands_of_owners};
    const TTest *const gathered[] = {the_digest_of_a_piece_is_not_said_to_be_that_of_the_model,
                                     what_owners_say_is_summed_by_who_has_copies_of_their_shares};
    const TTest *const sliced[] = {
        slices_come_from_their_own_column_alone, what_ranks_read_of_a_snapshot_reaches_all_who_need_it,
        who_is_a_step_behind_and_has_its_sums_catches_up, nobody_is_missed_where_all_are_there};
    add_case(suite, "replicas", open_replicas, whole, 3);
    add_case(suite, "momentum", open_momentum, whole, 2);
    add_case(suite, "owned", open_owned, owned, 4);
    add_case(suite, "sliced", open_sliced, sliced, 4);
    add_case(suite, "sliced-owned", open_sliced_owned, owned, 3);
    add_case(suite, "gathered", open_gathered, gathered, 2);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
