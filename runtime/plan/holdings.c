/* holdings.c - moves from holders to those who need: a sweep over the ends of all runs of a tile.
 *
 * Between two ends next to each other the same seats have, and the same need, all elements: a piece. Round
 * one deals with pieces that one seat alone has, whose load is thereby known; round two pours the others over
 * their holders, as water finds its level. */
#include "holdings.h"
#include <keel/memory.h>
#include <stdbool.h>
#include <stdlib.h>

struct item {
    struct keel_extent what;
    uint32_t seat;
    bool need;
};

/* What is at work: the runs that reach over the piece, and of each seat what the piece wants to know. */
struct sweep {
    struct item *items; /* all runs, by tile, then by first element */
    size_t item_count;
    struct item **active; /* those over the piece */
    size_t active_count;
    uint64_t *load;      /* of each seat: elements to send */
    uint8_t *has;        /* of each seat: HAS, NEEDS, over the piece */
    uint32_t *holders;   /* of the piece */
    uint32_t *receivers; /* who need it and have it not */
    uint32_t holder_count, receiver_count, seat_count;
    struct keel_moves *moves;
};
enum { HAS = 1, NEEDS = 2 };

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_tiles(const struct keel_extent *a, const struct keel_extent *b)
{
    if (a->part != b->part)
        return compare_numbers(a->part, b->part);
    if (a->param != b->param)
        return compare_numbers(a->param, b->param);
    return compare_numbers(a->slice, b->slice);
}

static int compare_extents(const struct keel_extent *a, const struct keel_extent *b)
{
    const int tiles = compare_tiles(a, b);
    return tiles != 0 ? tiles : compare_numbers(a->first, b->first);
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    const int extents = compare_extents(&x->what, &y->what);
    return extents != 0 ? extents : compare_numbers(x->seat, y->seat);
}

static int compare_moves(const void *a, const void *b)
{
    const struct keel_move *x = a, *y = b;
    return x->to != y->to ? compare_numbers(x->to, y->to) : compare_extents(&x->what, &y->what);
}

static uint64_t end_of(const struct keel_extent *extent)
{
    return extent->first + extent->count;
}

/* ---- one piece ----------------------------------------------------------------------------------------- */

static enum keel_status put(struct keel_move **moves, size_t *count, size_t *capacity, struct keel_move move)
{
    KEEL_TRY(keel_grow(moves, capacity, *count + 1, sizeof move));
    (*moves)[(*count)++] = move;
    return KEEL_OK;
}

/* Who has, and who lacks, what all active runs reach over. */
static void find_seats(struct sweep *s)
{
    s->holder_count = s->receiver_count = 0;
    for (size_t i = 0; i < s->active_count; i++)
        s->has[s->active[i]->seat] |= s->active[i]->need ? NEEDS : HAS;
    for (size_t i = 0; i < s->active_count; i++) {
        const uint32_t seat = s->active[i]->seat;
        if ((s->has[seat] & HAS) != 0)
            s->holders[s->holder_count++] = seat;
        else if (s->has[seat] != 0)
            s->receivers[s->receiver_count++] = seat;
        s->has[seat] = 0;
    }
}

/* Holders by load, then by number. Insertion: they are almost in order from one receiver to the next. */
static void sort_holders(struct sweep *s)
{
    for (uint32_t i = 1; i < s->holder_count; i++) {
        const uint32_t seat = s->holders[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            const uint32_t before = s->holders[at - 1];
            if (s->load[before] < s->load[seat] || (s->load[before] == s->load[seat] && before < seat))
                break;
            s->holders[at] = before;
        }
        s->holders[at] = seat;
    }
}

/* How many of the holders, the least loaded first, share in `count` elements: all that lie below the level
 * to which these fill them. *out_total: what they have then, together. */
static uint32_t find_level(const struct sweep *s, uint64_t count, uint64_t *out_total)
{
    uint64_t total = count;
    uint32_t sharing = 0;
    while (sharing < s->holder_count && (sharing == 0 || s->load[s->holders[sharing]] < total / sharing))
        total += s->load[s->holders[sharing++]];
    *out_total = total;
    return sharing;
}

/* The piece to one who lacks it: from each holder below the level a run that ends with a page of the tile. */
static enum keel_status pour(struct sweep *s, const struct keel_extent *piece, uint32_t to)
{
    uint64_t total, at = piece->first, ideal = piece->first;
    sort_holders(s);
    const uint32_t sharing = find_level(s, piece->count, &total);
    for (uint32_t i = 0; i < sharing && at < end_of(piece); i++) {
        const uint32_t from = s->holders[i];
        const uint64_t level = (total + sharing - 1) / sharing;
        ideal += level > s->load[from] ? level - s->load[from] : 0;
        uint64_t end = keel_round_up(ideal, KEEL_MOVE_PAGE);
        if (end > end_of(piece) || i + 1 == sharing)
            end = end_of(piece);
        if (end <= at)
            continue;
        struct keel_move move = {.from = from, .to = to, .what = *piece};
        move.what.first = at;
        move.what.count = end - at;
        KEEL_TRY(put(&s->moves->moves, &s->moves->move_count, &s->moves->move_capacity, move));
        s->load[from] += move.what.count;
        at = end;
    }
    return KEEL_OK;
}

static enum keel_status deal(struct sweep *s, const struct keel_extent *piece, bool alone)
{
    find_seats(s);
    if ((s->holder_count <= 1) != alone)
        return KEEL_OK;
    for (uint32_t r = 0; r < s->receiver_count; r++) {
        if (s->holder_count > 0) {
            KEEL_TRY(pour(s, piece, s->receivers[r]));
            continue;
        }
        const struct keel_move missing = {.from = KEEL_SEAT_NONE, .to = s->receivers[r], .what = *piece};
        KEEL_TRY(put(&s->moves->missing, &s->moves->missing_count, &s->moves->missing_capacity, missing));
    }
    return KEEL_OK;
}

/* ---- the sweep ----------------------------------------------------------------------------------------- */

/* Forget runs that end at or before `at`; where the first of the others ends. */
static uint64_t drop_ended(struct sweep *s, uint64_t at)
{
    uint64_t next = UINT64_MAX;
    size_t kept = 0;
    for (size_t i = 0; i < s->active_count; i++) {
        const uint64_t end = end_of(&s->active[i]->what);
        if (end <= at)
            continue;
        s->active[kept++] = s->active[i];
        next = end < next ? end : next;
    }
    s->active_count = kept;
    return next;
}

/* The items of one tile, [i, end): every piece between two ends. */
static enum keel_status sweep_tile(struct sweep *s, size_t i, size_t end, bool alone)
{
    uint64_t at = s->items[i].what.first;
    s->active_count = 0;
    while (i < end || s->active_count > 0) {
        while (i < end && s->items[i].what.first == at)
            s->active[s->active_count++] = &s->items[i++];
        uint64_t next = drop_ended(s, at);
        if (i < end && s->items[i].what.first < next)
            next = s->items[i].what.first;
        if (s->active_count > 0) {
            struct keel_extent piece = s->active[0]->what;
            piece.first = at;
            piece.count = next - at;
            KEEL_TRY(deal(s, &piece, alone));
        }
        at = next;
    }
    return KEEL_OK;
}

static enum keel_status sweep_all(struct sweep *s, bool alone)
{
    for (size_t i = 0, end; i < s->item_count; i = end) {
        for (end = i + 1; end < s->item_count; end++)
            if (compare_tiles(&s->items[i].what, &s->items[end].what) != 0)
                break;
        KEEL_TRY(sweep_tile(s, i, end, alone));
    }
    return KEEL_OK;
}

static size_t add_items(struct sweep *s, const struct keel_holding *of, bool need)
{
    size_t count = 0;
    for (uint32_t seat = 0; seat < s->seat_count; seat++)
        for (uint32_t e = 0; e < of[seat].count; e++) {
            if (of[seat].extents[e].count == 0)
                continue;
            count++;
            if (s->items != NULL)
                s->items[s->item_count++] =
                    (struct item){.what = of[seat].extents[e], .seat = seat, .need = need};
        }
    return count;
}

static enum keel_status prepare(struct sweep *s, const struct keel_holding *have,
                                const struct keel_holding *need)
{
    const size_t count = add_items(s, have, false) + add_items(s, need, true);
    KEEL_TRY(keel_alloc(count, sizeof *s->items, &s->items));
    KEEL_TRY(keel_alloc(count, sizeof(struct item *), (void *)&s->active));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->load, &s->load));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->has, &s->has));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->holders, &s->holders));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->receivers, &s->receivers));
    add_items(s, have, false);
    add_items(s, need, true);
    qsort(s->items, s->item_count, sizeof *s->items, compare_items);
    return KEEL_OK;
}

/* What goes on where another left off, as one. */
static size_t join(struct keel_move *moves, size_t count)
{
    size_t kept = 0;
    if (count > 0)
        qsort(moves, count, sizeof *moves, compare_moves);
    for (size_t i = 0; i < count; i++) {
        struct keel_move *last = kept > 0 ? &moves[kept - 1] : NULL;
        if (last != NULL && last->from == moves[i].from && last->to == moves[i].to &&
            compare_tiles(&last->what, &moves[i].what) == 0 && end_of(&last->what) == moves[i].what.first)
            last->what.count += moves[i].what.count;
        else
            moves[kept++] = moves[i];
    }
    return kept;
}

enum keel_status keel_moves_find(const struct keel_holding *have, const struct keel_holding *need,
                                 uint32_t seat_count, struct keel_moves *out)
{
    *out = (struct keel_moves){.moves = NULL};
    struct sweep s = {.seat_count = seat_count, .moves = out};
    enum keel_status status = prepare(&s, have, need);
    if (status == KEEL_OK)
        status = sweep_all(&s, true);
    if (status == KEEL_OK)
        status = sweep_all(&s, false);
    out->move_count = join(out->moves, out->move_count);
    out->missing_count = join(out->missing, out->missing_count);
    keel_free(s.items);
    keel_free(s.active);
    keel_free(s.load);
    keel_free(s.has);
    keel_free(s.holders);
    keel_free(s.receivers);
    return status;
}

void keel_moves_fini(struct keel_moves *moves)
{
    keel_free(moves->moves);
    keel_free(moves->missing);
    *moves = (struct keel_moves){.moves = NULL};
}

uint64_t keel_moves_sent(const struct keel_moves *moves, uint32_t seat)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < moves->move_count; i++)
        elements += moves->moves[i].from == seat ? moves->moves[i].what.count : 0;
    return elements;
}

uint64_t keel_moves_between(const struct keel_moves *moves, uint32_t from, uint32_t to)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < moves->move_count; i++)
        if (moves->moves[i].from == from && moves->moves[i].to == to)
            elements += moves->moves[i].what.count;
    return elements;
}

/* ---- lists, and who holds what twice ------------------------------------------------------------------- */

enum keel_status keel_extents_put(struct keel_extents *list, const struct keel_extent *extent)
{
    struct keel_extent *last = list->count > 0 ? &list->at[list->count - 1] : NULL;
    if (extent->count == 0)
        return KEEL_OK;
    if (last != NULL && compare_tiles(last, extent) == 0 && end_of(last) == extent->first) {
        last->count += extent->count;
        return KEEL_OK;
    }
    KEEL_TRY(keel_grow(&list->at, &list->capacity, list->count + 1, sizeof *extent));
    list->at[list->count++] = *extent;
    return KEEL_OK;
}

struct keel_holding keel_extents_holding(const struct keel_extents *list)
{
    return (struct keel_holding){.extents = list->at, .count = (uint32_t)list->count};
}

/* How many of the positions below `end` are on a node. */
static uint32_t count_on(uint32_t node, const uint32_t *nodes, uint32_t end)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < end; p++)
        count += nodes[p] == node;
    return count;
}

uint32_t keel_second_holder(uint32_t position, uint32_t count, const uint32_t *node)
{
    uint32_t at = 0;
    if (count < 2)
        return KEEL_SEAT_NONE;
    if (node == NULL || count_on(node[position], node, count) == count)
        return (position + 1) % count;
    while (node[at] != node[position])
        at++;
    do
        at = (at + 1) % count;
    while (count_on(node[at], node, at) > 0); /* until a node begins: the next one */
    uint32_t turn = count_on(node[position], node, position) % count_on(node[at], node, count);
    for (const uint32_t on = node[at]; turn > 0; turn -= node[at] == on)
        at++;
    return at;
}

bool keel_has_share(const struct keel_owners_map *map, uint32_t holder, uint32_t owner)
{
    if (holder == owner)
        return true;
    if (map->group < map->count)
        return holder % map->group == owner % map->group;
    return map->holders > 1 && keel_second_holder(owner, map->count, map->node) == holder;
}

uint32_t keel_zero_group(uint32_t count, uint32_t asked)
{
    uint32_t group = asked;
    if (asked == 0 || asked > count)
        return count;
    while (count % group != 0)
        group++;
    return group;
}
