/* holdings.c - moves from holders to those who need: a sweep over the ends of all runs of a tile.
 *
 * Between two ends next to each other the same holdings reach over all elements: a piece. Pieces over which
 * the same holdings reach are of one kind: the same seats have them, and the same need them. So seats are
 * looked at once a kind, and not once a piece. Round one deals with kinds that one seat alone has, whose load
 * is thereby known; round two pours the others over their holders, as water finds its level: for each
 * receiver all pieces of a kind are one line, which is cut once. */
#include "holdings.h"
#include <keel/bits.h>
#include <keel/memory.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A run of a holding. Keys are those of `have`, twice, and of `need`, twice plus one. */
struct item {
    struct keel_extent what;
    uint32_t key;
};

struct piece {
    struct keel_extent what;
    size_t next; /* of its kind; NONE: it is the last */
};
#define NONE SIZE_MAX

struct kind {
    size_t keys, key_count; /* in the sweep's keys, ascending */
    size_t first, last;     /* pieces */
    uint64_t elements;      /* of them */
    bool wanted, alone;     /* some seat lacks it; no two have it */
};

struct holder {
    uint64_t load;
    uint32_t seat;
};

struct sweep {
    const struct keel_holdings *have, *need;
    uint32_t seat_count, seat;
    struct item *items; /* all runs, by tile, then by first element */
    size_t item_count;
    struct item **active; /* those over the piece */
    size_t active_count;
    struct piece *pieces;
    size_t piece_count, piece_capacity;
    struct kind *kinds; /* in the order of their first pieces */
    size_t kind_count, kind_capacity;
    uint32_t *keys; /* of all kinds, and behind key_count those of the piece */
    size_t key_count, key_capacity;
    size_t *slots; /* kinds by the hash of their keys; 0: none, else one more */
    size_t slot_count;
    uint64_t *load; /* of each seat: elements to send */
    uint8_t *has;   /* of each seat: HAS, NEEDS, over the kind; GETS: something */
    /* Seats of one holding of `need`, the newest that was asked for; and by holding who gave it something: no
     * one (0), one (plus one), or several, and then all of its seats got something (UINT32_MAX). */
    const struct keel_holding *marked;
    bool *is_marked;
    uint32_t *givers;
    /* Of the kind. */
    struct holder *holders;
    uint32_t *receivers; /* who need it and have it not */
    uint32_t holder_count, receiver_count;
    struct keel_moves *moves;
};
enum { HAS = 1, NEEDS = 2, GETS = 4 };

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
    return extents != 0 ? extents : compare_numbers(x->key, y->key);
}

static int compare_keys(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return compare_numbers(*x, *y);
}

static int compare_holders(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    return x->load != y->load ? compare_numbers(x->load, y->load) : compare_numbers(x->seat, y->seat);
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

/* ---- the seats of a kind ------------------------------------------------------------------------------- */

static const struct keel_holding *holding_of(const struct sweep *s, uint32_t key)
{
    return &(key % 2 == 0 ? s->have : s->need)->at[key / 2];
}

/* Who has, and who lacks, what these holdings have in common; ascending. */
static void find_seats(struct sweep *s, const uint32_t *keys, size_t key_count)
{
    uint32_t low = s->seat_count, end = 0;
    for (size_t k = 0; k < key_count; k++) {
        const struct keel_holding *holding = holding_of(s, keys[k]);
        for (uint32_t i = 0; i < holding->seat_count; i++) {
            const uint32_t seat = holding->seats[i];
            KEEL_ASSERT(seat < s->seat_count);
            s->has[seat] |= keys[k] % 2 == 0 ? HAS : NEEDS;
            low = seat < low ? seat : low;
            end = seat >= end ? seat + 1 : end;
        }
    }
    s->holder_count = s->receiver_count = 0;
    for (uint32_t seat = low; seat < end; seat++) {
        if ((s->has[seat] & HAS) != 0)
            s->holders[s->holder_count++] = (struct holder){s->load[seat], seat};
        else if ((s->has[seat] & NEEDS) != 0)
            s->receivers[s->receiver_count++] = seat;
        s->has[seat] &= GETS;
    }
}

/* Most kinds of thousands of seats: one seat has it, or nobody, and one holding lacks it, of all its other
 * seats. So no list of seats is made of each such kind. */
struct plain {
    uint32_t holder; /* KEEL_SEAT_NONE: nobody */
    uint32_t number; /* of the holding in need */
    uint32_t receivers;
};

static bool is_plain(struct sweep *s, const uint32_t *keys, size_t key_count, struct plain *out)
{
    *out = (struct plain){.holder = KEEL_SEAT_NONE, .number = UINT32_MAX};
    for (size_t k = 0; k < key_count; k++) {
        const struct keel_holding *holding = holding_of(s, keys[k]);
        if (keys[k] % 2 == 0 ? out->holder != KEEL_SEAT_NONE || holding->seat_count != 1
                             : out->number != UINT32_MAX)
            return false;
        if (keys[k] % 2 == 0)
            out->holder = holding->seats[0];
        else
            out->number = keys[k] / 2;
    }
    if (out->number == UINT32_MAX)
        return false;
    const struct keel_holding *need = &s->need->at[out->number];
    if (s->marked != need) {
        for (uint32_t i = 0; s->marked != NULL && i < s->marked->seat_count; i++)
            s->is_marked[s->marked->seats[i]] = false;
        for (uint32_t i = 0; i < need->seat_count; i++) {
            KEEL_ASSERT(need->seats[i] < s->seat_count);
            s->is_marked[need->seats[i]] = true;
        }
        s->marked = need;
    }
    out->receivers = need->seat_count - (out->holder != KEEL_SEAT_NONE && s->is_marked[out->holder] ? 1 : 0);
    return true;
}

/* ---- kinds --------------------------------------------------------------------------------------------- */

static size_t *slot_of(const struct sweep *s, const uint32_t *keys, size_t key_count)
{
    size_t at = (size_t)keel_fnv1a(KEEL_FNV1A_BEGIN, keys, key_count * sizeof *keys) % s->slot_count;
    while (s->slots[at] != 0) {
        const struct kind *kind = &s->kinds[s->slots[at] - 1];
        if (kind->key_count == key_count && memcmp(s->keys + kind->keys, keys, key_count * sizeof *keys) == 0)
            break;
        at = (at + 1) % s->slot_count;
    }
    return &s->slots[at];
}

static enum keel_status grow_slots(struct sweep *s)
{
    if (s->kind_count * 2 < s->slot_count)
        return KEEL_OK;
    keel_free(s->slots);
    s->slots = NULL;
    s->slot_count = 4 * s->kind_count + 64;
    KEEL_TRY(keel_alloc(s->slot_count, sizeof *s->slots, &s->slots));
    for (size_t k = 0; k < s->kind_count; k++)
        *slot_of(s, s->keys + s->kinds[k].keys, s->kinds[k].key_count) = k + 1;
    return KEEL_OK;
}

/* Of the runs over the piece the holdings, each once, behind the keys that are kept. */
static enum keel_status put_keys(struct sweep *s, size_t *out_count)
{
    size_t count = 0;
    KEEL_TRY(keel_grow(&s->keys, &s->key_capacity, s->key_count + s->active_count, sizeof *s->keys));
    uint32_t *keys = s->keys + s->key_count;
    for (size_t i = 0; i < s->active_count; i++)
        keys[i] = s->active[i]->key;
    if (s->active_count > 1)
        qsort(keys, s->active_count, sizeof *keys, compare_keys);
    for (size_t i = 0; i < s->active_count; i++)
        if (count == 0 || keys[count - 1] != keys[i])
            keys[count++] = keys[i];
    *out_count = count;
    return KEEL_OK;
}

static enum keel_status find_kind(struct sweep *s, size_t *out)
{
    size_t count;
    KEEL_TRY(put_keys(s, &count));
    KEEL_TRY(grow_slots(s));
    const uint32_t *keys = s->keys + s->key_count;
    size_t *slot = slot_of(s, keys, count);
    if (*slot == 0) {
        struct plain plain;
        KEEL_TRY(keel_grow(&s->kinds, &s->kind_capacity, s->kind_count + 1, sizeof *s->kinds));
        const bool is = is_plain(s, keys, count, &plain);
        if (!is)
            find_seats(s, keys, count);
        s->kinds[s->kind_count++] = (struct kind){.keys = s->key_count,
                                                  .key_count = count,
                                                  .first = NONE,
                                                  .wanted = is ? plain.receivers > 0 : s->receiver_count > 0,
                                                  .alone = is || s->holder_count <= 1};
        s->key_count += count;
        *slot = s->kind_count;
    }
    *out = *slot - 1;
    return KEEL_OK;
}

static enum keel_status put_piece(struct sweep *s, const struct keel_extent *what)
{
    size_t number;
    KEEL_TRY(find_kind(s, &number));
    struct kind *kind = &s->kinds[number];
    if (!kind->wanted)
        return KEEL_OK;
    KEEL_TRY(keel_grow(&s->pieces, &s->piece_capacity, s->piece_count + 1, sizeof *s->pieces));
    s->pieces[s->piece_count] = (struct piece){*what, NONE};
    if (kind->first == NONE)
        kind->first = s->piece_count;
    else
        s->pieces[kind->last].next = s->piece_count;
    kind->last = s->piece_count++;
    kind->elements += what->count;
    return KEEL_OK;
}

/* ---- moves --------------------------------------------------------------------------------------------- */

static enum keel_status put(struct keel_move **moves, size_t *count, size_t *capacity, struct keel_move move)
{
    KEEL_TRY(keel_grow(moves, capacity, *count + 1, sizeof move));
    (*moves)[(*count)++] = move;
    return KEEL_OK;
}

static bool is_kept(const struct sweep *s, uint32_t from, uint32_t to)
{
    return s->seat == KEEL_SEAT_NONE || from == s->seat || to == s->seat;
}

static enum keel_status put_move(struct sweep *s, uint32_t from, uint32_t to, const struct keel_extent *what)
{
    struct keel_moves *moves = s->moves;
    const struct keel_move move = {.from = from, .to = to, .what = *what};
    if (from == KEEL_SEAT_NONE)
        return put(&moves->missing, &moves->missing_count, &moves->missing_capacity, move);
    return is_kept(s, from, to) ? put(&moves->moves, &moves->move_count, &moves->move_capacity, move)
                                : KEEL_OK;
}

/* What one seat has, or nobody, to all who lack it. */
static enum keel_status give_alone(struct sweep *s, const struct kind *kind)
{
    const uint32_t from = s->holder_count > 0 ? s->holders[0].seat : KEEL_SEAT_NONE;
    for (uint32_t r = 0; r < s->receiver_count; r++) {
        const uint32_t to = s->receivers[r];
        const bool kept = from == KEEL_SEAT_NONE || is_kept(s, from, to);
        if (from != KEEL_SEAT_NONE) {
            s->load[from] += kind->elements;
            s->has[to] |= GETS;
        }
        for (size_t p = kind->first; kept && p != NONE; p = s->pieces[p].next)
            KEEL_TRY(put_move(s, from, to, &s->pieces[p].what));
    }
    return KEEL_OK;
}

/* Who gets something of it: all but the holder, who gets it all the same where another gives some. */
static void note_plain(struct sweep *s, const struct plain *plain)
{
    const struct keel_holding *need = s->marked;
    uint32_t *giver = &s->givers[plain->number];
    for (uint32_t i = 0; *giver == 0 && i < need->seat_count; i++)
        if (need->seats[i] != plain->holder)
            s->has[need->seats[i]] |= GETS;
    if (*giver == 0)
        *giver = plain->holder + 1;
    if (*giver == UINT32_MAX || *giver == plain->holder + 1)
        return;
    if (s->is_marked[*giver - 1])
        s->has[*giver - 1] |= GETS;
    *giver = UINT32_MAX;
}

static enum keel_status give_plain(struct sweep *s, const struct kind *kind, const struct plain *plain)
{
    const bool lost = plain->holder == KEEL_SEAT_NONE;
    const bool all = lost || s->seat == KEEL_SEAT_NONE || s->seat == plain->holder;
    if (!lost) {
        s->load[plain->holder] += plain->receivers * kind->elements;
        note_plain(s, plain);
    }
    for (uint32_t i = 0; all && i < s->marked->seat_count; i++)
        for (size_t p = kind->first; s->marked->seats[i] != plain->holder && p != NONE; p = s->pieces[p].next)
            KEEL_TRY(put_move(s, plain->holder, s->marked->seats[i], &s->pieces[p].what));
    for (size_t p = kind->first; !all && s->is_marked[s->seat] && p != NONE; p = s->pieces[p].next)
        KEEL_TRY(put_move(s, plain->holder, s->seat, &s->pieces[p].what));
    return KEEL_OK;
}

/* How many of the holders, the least loaded first, share in `count` elements: all that lie below the level
 * to which these fill them. *out_total: what they have then, together. */
static uint32_t find_level(const struct sweep *s, uint64_t count, uint64_t *out_total)
{
    uint64_t total = count;
    uint32_t sharing = 0;
    while (sharing < s->holder_count && (sharing == 0 || s->holders[sharing].load < total / sharing))
        total += s->holders[sharing++].load;
    *out_total = total;
    return sharing;
}

/* The pieces of a kind, one behind the other: how far they are given. */
struct line {
    size_t piece;    /* NONE: to the end */
    uint64_t before; /* elements before that piece */
    uint64_t at;     /* the element of its tile that comes next */
};

/* The line to one who lacks it, up to `until` and to the end of the page there. */
static enum keel_status give(struct sweep *s, struct line *line, uint64_t until, struct holder *holder,
                             uint32_t to)
{
    while (line->piece != NONE && until > line->before) {
        const struct piece *piece = &s->pieces[line->piece];
        const uint64_t left = until - line->before;
        uint64_t end = end_of(&piece->what);
        if (left < piece->what.count) {
            const uint64_t page_end = keel_round_up(piece->what.first + left, KEEL_MOVE_PAGE);
            end = page_end < end ? page_end : end;
        }
        if (end > line->at) {
            struct keel_extent what = piece->what;
            what.first = line->at;
            what.count = end - line->at;
            KEEL_TRY(put_move(s, holder->seat, to, &what));
            holder->load += what.count;
            line->at = end;
        }
        if (end < end_of(&piece->what))
            break;
        line->before += piece->what.count;
        line->piece = piece->next;
        line->at = line->piece != NONE ? s->pieces[line->piece].what.first : 0;
    }
    return KEEL_OK;
}

/* From each holder below the level a part of the line, which ends with a page of a tile. What no whole level
 * divides goes to the first ones, an element each: to the last of thousands it would be pages. */
static enum keel_status pour(struct sweep *s, const struct kind *kind, uint32_t to)
{
    uint64_t total, ideal = 0;
    struct line line = {kind->first, 0, s->pieces[kind->first].what.first};
    qsort(s->holders, s->holder_count, sizeof *s->holders, compare_holders);
    const uint32_t sharing = find_level(s, kind->elements, &total);
    KEEL_ASSERT(sharing > 0); /* of two or more, of some elements */
    for (uint32_t i = 0; i < sharing; i++) {
        struct holder *holder = &s->holders[i];
        const uint64_t level = total / sharing + (i < total % sharing ? 1 : 0);
        ideal += level > holder->load ? level - holder->load : 0;
        KEEL_TRY(give(s, &line, i + 1 == sharing ? kind->elements : ideal, holder, to));
        s->load[holder->seat] = holder->load;
    }
    s->has[to] |= GETS;
    return KEEL_OK;
}

static enum keel_status deal_all(struct sweep *s, bool alone)
{
    for (size_t k = 0; k < s->kind_count; k++) {
        const struct kind *kind = &s->kinds[k];
        struct plain plain;
        if (!kind->wanted || kind->alone != alone)
            continue;
        if (is_plain(s, s->keys + kind->keys, kind->key_count, &plain)) {
            KEEL_TRY(give_plain(s, kind, &plain));
            continue;
        }
        find_seats(s, s->keys + kind->keys, kind->key_count);
        if (alone)
            KEEL_TRY(give_alone(s, kind));
        for (uint32_t r = 0; !alone && r < s->receiver_count; r++)
            KEEL_TRY(pour(s, kind, s->receivers[r]));
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
static enum keel_status sweep_tile(struct sweep *s, size_t i, size_t end)
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
            KEEL_TRY(put_piece(s, &piece));
        }
        at = next;
    }
    return KEEL_OK;
}

static enum keel_status sweep_all(struct sweep *s)
{
    for (size_t i = 0, end; i < s->item_count; i = end) {
        for (end = i + 1; end < s->item_count; end++)
            if (compare_tiles(&s->items[i].what, &s->items[end].what) != 0)
                break;
        KEEL_TRY(sweep_tile(s, i, end));
    }
    return KEEL_OK;
}

static size_t count_extents(const struct keel_holdings *list)
{
    size_t count = 0;
    for (size_t h = 0; h < list->count; h++)
        count += list->at[h].count;
    return count;
}

static void add_items(struct sweep *s, const struct keel_holdings *list, uint32_t side)
{
    for (size_t h = 0; h < list->count; h++)
        for (uint32_t e = 0; e < list->at[h].count; e++)
            if (list->at[h].extents[e].count > 0)
                s->items[s->item_count++] = (struct item){list->at[h].extents[e], (uint32_t)(2 * h) + side};
}

static enum keel_status prepare(struct sweep *s)
{
    const size_t count = count_extents(s->have) + count_extents(s->need);
    KEEL_TRY(keel_alloc(count, sizeof *s->items, &s->items));
    KEEL_TRY(keel_alloc(count, sizeof(struct item *), (void *)&s->active));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->load, &s->load));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->has, &s->has));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->is_marked, &s->is_marked));
    KEEL_TRY(keel_alloc(s->need->count, sizeof *s->givers, &s->givers));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->holders, &s->holders));
    KEEL_TRY(keel_alloc(s->seat_count, sizeof *s->receivers, &s->receivers));
    add_items(s, s->have, 0);
    add_items(s, s->need, 1);
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

static void add_up(const struct sweep *s, struct keel_moves *out)
{
    for (uint32_t seat = 0; seat < s->seat_count; seat++) {
        out->elements += s->load[seat];
        out->senders += s->load[seat] > 0;
        out->receivers += s->has[seat] != 0;
    }
    out->move_count = join(out->moves, out->move_count);
    out->missing_count = join(out->missing, out->missing_count);
}

enum keel_status keel_moves_find(const struct keel_holdings *have, const struct keel_holdings *need,
                                 uint32_t seat_count, uint32_t seat, struct keel_moves *out)
{
    *out = (struct keel_moves){.moves = NULL};
    struct sweep s = {.have = have, .need = need, .seat_count = seat_count, .seat = seat, .moves = out};
    enum keel_status status = prepare(&s);
    if (status == KEEL_OK)
        status = sweep_all(&s);
    if (status == KEEL_OK)
        status = deal_all(&s, true);
    if (status == KEEL_OK)
        status = deal_all(&s, false);
    if (status == KEEL_OK)
        add_up(&s, out);
    keel_free(s.items);
    keel_free(s.active);
    keel_free(s.pieces);
    keel_free(s.kinds);
    keel_free(s.keys);
    keel_free(s.slots);
    keel_free(s.load);
    keel_free(s.has);
    keel_free(s.is_marked);
    keel_free(s.givers);
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

enum keel_status keel_holdings_put(struct keel_holdings *list, struct keel_extents *what,
                                   const uint32_t *seats, uint32_t seat_count)
{
    uint32_t *copy = NULL;
    enum keel_status status = KEEL_OK;
    const bool empty = what->count == 0 || seat_count == 0;
    if (!empty)
        status = keel_grow(&list->at, &list->capacity, list->count + 1, sizeof *list->at);
    if (!empty && status == KEEL_OK)
        status = keel_alloc(seat_count, sizeof *copy, &copy);
    if (empty || status != KEEL_OK) {
        keel_free(what->at);
        *what = (struct keel_extents){.at = NULL};
        return status;
    }
    memcpy(copy, seats, seat_count * sizeof *copy);
    list->at[list->count++] = (struct keel_holding){
        .extents = what->at, .seats = copy, .count = (uint32_t)what->count, .seat_count = seat_count};
    *what = (struct keel_extents){.at = NULL};
    return KEEL_OK;
}

void keel_holdings_fini(struct keel_holdings *list)
{
    for (size_t i = 0; i < list->count; i++) {
        keel_free((void *)(uintptr_t)list->at[i].extents);
        keel_free((void *)(uintptr_t)list->at[i].seats);
    }
    keel_free(list->at);
    *list = (struct keel_holdings){.at = NULL};
}

/* No position before it is on its node. Positions of a node lie together, in most runs. */
static bool begins_node(const uint32_t *node, uint32_t position)
{
    uint32_t p = position;
    while (p > 0 && node[p - 1] != node[position])
        p--;
    return p == 0;
}

static bool is_one_node(const uint32_t *node, uint32_t count)
{
    uint32_t p = 1;
    while (p < count && node[p] == node[0])
        p++;
    return p == count;
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
    if (node == NULL || is_one_node(node, count))
        return (position + 1) % count;
    while (node[at] != node[position])
        at++;
    do
        at = (at + 1) % count;
    while (!begins_node(node, at)); /* the next one */
    const uint32_t there = count_on(node[at], node, count);
    KEEL_ASSERT(there > 0);
    uint32_t turn = count_on(node[position], node, position) % there;
    for (const uint32_t on = node[at]; turn > 0; turn -= node[at] == on)
        at++;
    return at;
}

/* A position and its node; and of a node's first position, in another list, where its entries begin. */
struct seated {
    uint32_t node, position;
};

static int compare_seated(const void *a, const void *b)
{
    const struct seated *x = a, *y = b;
    return x->node != y->node ? compare_numbers(x->node, y->node) : compare_numbers(x->position, y->position);
}

/* `entries` by node: each node's positions in turn to those of the node that begins next. starts: by
 * position, the entry with which a node begins there, plus one; 0: none does. */
static void take_turns(const struct seated *entries, uint32_t count, uint32_t *starts, uint32_t *out)
{
    uint32_t next = UINT32_MAX; /* the first entry of the node that begins next */
    for (uint32_t i = 0; i < count; i++)
        if (i == 0 || entries[i].node != entries[i - 1].node)
            starts[entries[i].position] = i + 1;
    for (uint32_t p = 2 * count; p-- > 0;) {
        const uint32_t start = starts[p % count];
        if (start == 0)
            continue;
        const uint32_t begin = start - 1;
        uint32_t size = 0, there = 0;
        while (begin + size < count && entries[begin + size].node == entries[begin].node)
            size++;
        for (; next != UINT32_MAX && next + there < count && entries[next + there].node == entries[next].node;
             there++)
            ;
        for (uint32_t k = 0; k < size && there > 0; k++)
            out[entries[begin + k].position] = entries[next + k % there].position;
        next = begin;
    }
}

enum keel_status keel_second_holders(const struct keel_owners_map *map, uint32_t *out)
{
    const uint32_t count = map->count;
    struct seated *entries = NULL;
    uint32_t *starts = NULL;
    const bool one = map->node == NULL || is_one_node(map->node, count);
    for (uint32_t p = 0; p < count; p++)
        out[p] = map->holders < 2 || count < 2 ? KEEL_SEAT_NONE : (p + 1) % count;
    if (map->holders < 2 || count < 2 || one)
        return KEEL_OK;
    enum keel_status status = keel_alloc(count, sizeof *entries, &entries);
    if (status == KEEL_OK)
        status = keel_alloc(count, sizeof *starts, &starts);
    for (uint32_t p = 0; status == KEEL_OK && p < count; p++)
        entries[p] = (struct seated){map->node[p], p};
    if (status == KEEL_OK) {
        qsort(entries, count, sizeof *entries, compare_seated);
        take_turns(entries, count, starts, out);
    }
    keel_free(entries);
    keel_free(starts);
    return status;
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
