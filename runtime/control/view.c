/* view.c - see view.h. */
#include "view.h"

#include <stddef.h>
#include <string.h>
#include <xxhash.h>

void keel_view_copy(struct keel_view *out, const struct keel_view *view)
{
    KEEL_ASSERT(view->member_count <= KEEL_MEMBERS_MAX && view->shard_count <= KEEL_SHARDS_MAX);
    memcpy(out, view, offsetof(struct keel_view, members));
    memcpy(out->members, view->members, view->member_count * sizeof out->members[0]);
    memcpy(out->shard_rank, view->shard_rank, view->shard_count * sizeof out->shard_rank[0]);
}

int keel_view_find_rank(const struct keel_view *view, uint16_t rank)
{
    int low = 0, high = view->member_count; /* members are sorted by rank */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (view->members[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < view->member_count && view->members[low].rank == rank ? low : -1;
}

int keel_view_find_worker(const struct keel_view *view, uint16_t node, uint8_t local, uint32_t incarnation)
{
    for (int i = 0; i < view->member_count; i++) {
        const struct keel_member *m = &view->members[i];
        if (m->node == node && m->local == local && m->incarnation == incarnation)
            return i;
    }
    return -1;
}

void keel_view_find_places(const struct keel_view *view, uint32_t least_rows, struct keel_view_places *out)
{
    out->rows = least_rows;
    for (uint16_t i = 0; i < view->member_count; i++)
        out->rows = view->members[i].node < out->rows ? out->rows : view->members[i].node + 1U;
    KEEL_ASSERT(out->rows <= KEEL_NODES_MAX);
    memset(out->at, 0xff, out->rows * sizeof out->at[0]); /* KEEL_PLACE_EMPTY */
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *member = &view->members[i];
        KEEL_ASSERT(out->at[member->node][member->local] == KEEL_PLACE_EMPTY);
        out->at[member->node][member->local] = i;
    }
}

/* The member of `view` that is this worker, by index; KEEL_PLACE_EMPTY: none. */
static uint16_t place_of(const struct keel_view *view, const struct keel_view_places *places,
                         const struct keel_member *worker)
{
    const uint16_t at =
        worker->node < places->rows ? places->at[worker->node][worker->local] : KEEL_PLACE_EMPTY;
    return at != KEEL_PLACE_EMPTY && view->members[at].incarnation == worker->incarnation ? at
                                                                                          : KEEL_PLACE_EMPTY;
}

uint16_t keel_view_active_count(const struct keel_view *view)
{
    uint16_t count = 0;
    for (uint16_t i = 0; i < view->member_count; i++)
        count = (uint16_t)(count + (view->members[i].spare ? 0 : 1));
    return count;
}

/* ---- building the next view --------------------------------------------------------------------- */

/* Put `member` under `rank`, which is not among the `taken`; the members stay in any order until
 * sort_members. */
static void add_member(struct keel_view *view, struct keel_bitset *taken, const struct keel_member *member,
                       uint16_t rank, bool spare)
{
    if (view->member_count == KEEL_MEMBERS_MAX)
        return;
    KEEL_ASSERT(rank < KEEL_MEMBERS_MAX && !keel_bitset_has(taken, rank));
    keel_bitset_add(taken, rank);
    struct keel_member *m = &view->members[view->member_count++];
    *m = *member;
    m->rank = rank;
    m->spare = spare ? 1 : 0;
}

/* Each to the place that its rank has among those that are given: no two have the same. */
static void sort_members(struct keel_view *view, const struct keel_bitset *ranks)
{
    uint16_t place[KEEL_MEMBERS_MAX], next = 0;
    for (uint32_t rank = keel_bitset_next(ranks, 0); rank < KEEL_MEMBERS_MAX;
         rank = keel_bitset_next(ranks, rank + 1))
        place[rank] = next++;
    KEEL_ASSERT(next == view->member_count);
    for (uint16_t i = 0; i < view->member_count; i++)
        while (place[view->members[i].rank] != i) {
            const uint16_t to = place[view->members[i].rank];
            const struct keel_member other = view->members[to];
            view->members[to] = view->members[i];
            view->members[i] = other;
        }
}

uint16_t keel_view_seats(const uint64_t *plans, uint16_t rank_count, uint32_t workers)
{
    uint16_t seats = workers < rank_count ? (uint16_t)workers : rank_count;
    while (seats > 0 && plans[seats] == 0)
        seats--;
    return seats;
}

/* Those who wait for a place: active ranks beyond the plan's, spares that stay, by rank, then joins, which
 * have no name yet. */
struct candidates {
    const struct keel_member *list[2 * KEEL_MEMBERS_MAX]; /* borrowed */
    uint32_t stay_count, count;
};

static uint16_t count_staying(const struct keel_view *old, const struct keel_bitset *gone)
{
    uint16_t count = 0;
    for (uint16_t i = 0; i < old->member_count; i++)
        count = (uint16_t)(count + (keel_bitset_has(gone, i) ? 0 : 1));
    return count;
}

/* Whose place is open: seats below those of all who wait, since active ranks come first in a view and the
 * highest of them wait first. So spares stay above all active ranks. */
static void seat_members(const struct keel_view *old, const struct keel_view_change *change, uint16_t seats,
                         struct keel_view *next)
{
    struct candidates waiting;                /* large */
    struct keel_bitset ranks = {.some = {0}}; /* that are given */
    uint16_t highest = 0;
    waiting.count = 0;
    for (uint16_t i = 0; i < old->member_count; i++) {
        if (keel_bitset_has(&change->gone, i))
            continue;
        if (old->members[i].spare || next->member_count == seats)
            waiting.list[waiting.count++] = &old->members[i];
        else
            add_member(next, &ranks, &old->members[i], highest = old->members[i].rank, false);
    }
    waiting.stay_count = waiting.count;
    for (uint16_t i = 0; i < change->join_count && i < KEEL_MEMBERS_MAX; i++) {
        const struct keel_member *join = &change->joins[i], *last = i > 0 ? join - 1 : NULL;
        KEEL_ASSERT(last == NULL || last->node < join->node ||
                    (last->node == join->node && last->local < join->local));
        waiting.list[waiting.count++] = join;
    }
    uint32_t seated = 0;
    for (uint16_t rank = 0; rank < change->rank_count && next->member_count < seats; rank++)
        if (!keel_bitset_has(&ranks, rank)) {
            KEEL_ASSERT(seated < waiting.count);
            add_member(next, &ranks, waiting.list[seated++], rank, false);
        }
    for (uint32_t i = seated; i < waiting.stay_count; i++)
        add_member(next, &ranks, waiting.list[i], waiting.list[i]->rank, true);
    uint16_t rank = change->rank_count > highest ? change->rank_count : (uint16_t)(highest + 1);
    for (uint32_t i = seated > waiting.stay_count ? seated : waiting.stay_count; i < waiting.count; i++) {
        while (rank < KEEL_MEMBERS_MAX && keel_bitset_has(&ranks, rank))
            rank++;
        if (rank < KEEL_MEMBERS_MAX)
            add_member(next, &ranks, waiting.list[i], rank, true);
    }
    sort_members(next, &ranks);
}

static uint32_t distance_to(const struct keel_view *view, uint16_t rank, uint32_t shard)
{
    bool beside = (shard > 0 && view->shard_rank[shard - 1] == rank) ||
                  (shard + 1U < view->shard_count && view->shard_rank[shard + 1] == rank);
    return beside ? 0 : 1;
}

/* The active rank that carries least; among equals a neighbour of `shard`, then the lowest. */
static uint16_t emptiest(const struct keel_view *view, const uint16_t *load, uint32_t shard)
{
    uint16_t best = KEEL_RANK_NONE;
    for (uint16_t i = 0; i < view->member_count; i++) {
        uint16_t rank = view->members[i].rank;
        if (view->members[i].spare)
            continue;
        if (best == KEEL_RANK_NONE || load[rank] < load[best] ||
            (load[rank] == load[best] && distance_to(view, rank, shard) < distance_to(view, best, shard)))
            best = rank;
    }
    return best;
}

static uint16_t fullest(const struct keel_view *view, const uint16_t *load)
{
    uint16_t best = KEEL_RANK_NONE;
    for (uint16_t i = 0; i < view->member_count; i++) {
        uint16_t rank = view->members[i].rank;
        if (!view->members[i].spare && (best == KEEL_RANK_NONE || load[rank] > load[best]))
            best = rank;
    }
    return best;
}

/* The shard that `from` should give to `to`: beside one of `to`, else its last. */
static uint32_t shard_to_move(const struct keel_view *view, uint16_t from, uint16_t to)
{
    uint32_t last = 0;
    for (uint32_t s = 0; s < view->shard_count; s++) {
        if (view->shard_rank[s] != from)
            continue;
        if (distance_to(view, to, s) == 0)
            return s;
        last = s;
    }
    return last;
}

static void lay_out_anew(struct keel_view *next)
{
    uint32_t active = keel_view_active_count(next);
    for (uint32_t s = 0; s < next->shard_count; s++)
        next->shard_rank[s] = next->members[keel_view_first_place(s, next->shard_count, active)].rank;
}

static void clear_load(const struct keel_view *view, uint16_t load[KEEL_MEMBERS_MAX])
{
    for (uint16_t i = 0; i < view->member_count; i++)
        load[view->members[i].rank] = 0;
}

static void move_shards(const struct keel_view *old, struct keel_view *next)
{
    uint16_t load[KEEL_MEMBERS_MAX]; /* by rank, of those who are there */
    clear_load(next, load);
    for (uint32_t s = 0; s < next->shard_count; s++) {
        uint16_t rank = old->shard_rank[s];
        int at = keel_view_find_rank(next, rank);
        next->shard_rank[s] = at >= 0 && !next->members[at].spare ? rank : KEEL_RANK_NONE;
        if (next->shard_rank[s] != KEEL_RANK_NONE)
            load[rank]++;
    }
    for (uint32_t s = 0; s < next->shard_count; s++) {
        if (next->shard_rank[s] != KEEL_RANK_NONE)
            continue;
        next->shard_rank[s] = emptiest(next, load, s);
        KEEL_ASSERT(next->shard_rank[s] != KEEL_RANK_NONE);
        load[next->shard_rank[s]]++;
    }
    for (uint32_t i = 0; i < next->shard_count; i++) {
        uint16_t from = fullest(next, load), to = emptiest(next, load, 0);
        if (load[from] <= load[to] + 1)
            break;
        next->shard_rank[shard_to_move(next, from, to)] = to;
        load[from]--;
        load[to]++;
    }
}

static bool any_active_stays(const struct keel_view *old, const struct keel_bitset *gone)
{
    for (uint16_t i = 0; i < old->member_count; i++)
        if (!old->members[i].spare && !keel_bitset_has(gone, i))
            return true;
    return false;
}

static bool joins(const struct keel_view_change *change, const struct keel_member *who)
{
    uint32_t low = 0, high = change->join_count; /* sorted by (node, local) */
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        const struct keel_member *join = &change->joins[middle];
        if (join->node < who->node || (join->node == who->node && join->local < who->local))
            low = middle + 1;
        else
            high = middle;
    }
    return low < change->join_count && change->joins[low].node == who->node &&
           change->joins[low].local == who->local && change->joins[low].incarnation == who->incarnation;
}

/* Nobody who left is there (after a new start of the run he may join again), nobody who stays lost his rank,
 * and no two ranks differ by more than one shard where shards only moved. */
static bool follows(const struct keel_view *old, const struct keel_view_change *change,
                    const struct keel_view *next, bool moved)
{
    uint16_t load[KEEL_MEMBERS_MAX], least = KEEL_SHARDS_MAX, most = 0;
    struct keel_view_places places;
    clear_load(next, load);
    keel_view_find_places(next, 0, &places);
    for (uint16_t i = 0; i < old->member_count; i++) {
        const struct keel_member *m = &old->members[i];
        const uint16_t at = place_of(next, &places, m);
        const bool gone = keel_bitset_has(&change->gone, i);
        if (gone && at != KEEL_PLACE_EMPTY && !joins(change, m))
            return false;
        if (!gone && !m->spare && (at == KEEL_PLACE_EMPTY || next->members[at].rank != m->rank))
            return false;
    }
    for (uint16_t s = 0; s < next->shard_count; s++)
        load[next->shard_rank[s]]++;
    const uint16_t active = keel_view_active_count(next);
    for (uint16_t i = 0; i < active; i++) {
        const uint16_t its = load[next->members[i].rank];
        least = its < least ? its : least;
        most = its > most ? its : most;
    }
    return !moved || most <= least + 1;
}

bool keel_view_next(const struct keel_view *old, const struct keel_view_change *change, struct keel_view *out)
{
    KEEL_ASSERT(old->epoch < KEEL_EPOCH_MAX && old->member_count <= KEEL_MEMBERS_MAX);
    KEEL_ASSERT(change->join_count == 0 || change->joins != NULL);
    KEEL_ASSERT(change->rank_count > 0 && change->rank_count <= KEEL_MEMBERS_MAX);
    KEEL_ASSERT(change->shard_count > 0 && change->shard_count <= KEEL_SHARDS_MAX);
    KEEL_ASSERT(change->plans != NULL && out != old);
    const uint32_t workers = (uint32_t)count_staying(old, &change->gone) + change->join_count;
    const uint16_t seats = keel_view_seats(change->plans, change->rank_count, workers);
    if (seats == 0)
        return false;
    out->epoch = old->epoch + 1;
    out->plan = change->plans[seats];
    out->member_count = 0;
    out->shard_count = change->shard_count;
    out->before = out->holders = (struct keel_view_holders){.count = 0};
    seat_members(old, change, seats, out);
    KEEL_ASSERT(keel_view_active_count(out) == seats);
    const bool move = old->shard_count == out->shard_count && any_active_stays(old, &change->gone);
    if (move)
        move_shards(old, out);
    else
        lay_out_anew(out);
    KEEL_ASSERT(keel_view_valid(out));
    KEEL_ASSERT(follows(old, change, out, move));
    return true;
}

/* ---- what a view must be --------------------------------------------------------------------------- */

static bool members_valid(const struct keel_view *view)
{
    uint16_t taken[KEEL_NODES_MAX]; /* bits by local number; of nodes below `rows` */
    _Static_assert(KEEL_WORKERS_PER_NODE <= 8 * sizeof taken[0], "a bit for each");
    uint32_t rows = 0;
    for (uint16_t i = 0; i < view->member_count; i++) {
        const struct keel_member *m = &view->members[i];
        for (; rows <= m->node && rows < KEEL_NODES_MAX; rows++)
            taken[rows] = 0;
        if (m->rank >= KEEL_MEMBERS_MAX || m->node >= KEEL_NODES_MAX || m->local >= KEEL_WORKERS_PER_NODE ||
            m->spare > 1 || m->data.bytes > KEEL_ADDRESS_BYTES)
            return false;
        const struct keel_member *last = i > 0 ? m - 1 : NULL;
        if ((last != NULL && (last->rank >= m->rank || last->spare > m->spare)) ||
            (taken[m->node] >> m->local & 1) != 0)
            return false;
        taken[m->node] |= (uint16_t)(1U << m->local);
    }
    return true;
}

bool keel_view_holders_valid(const struct keel_view_holders *holders)
{
    if (holders->count > KEEL_HOLDERS_MAX || (holders->count > 0 && holders->count % 2 == 0))
        return false;
    for (uint8_t i = 0; i < holders->count; i++) {
        if (holders->at[i].node >= KEEL_NODES_MAX || holders->at[i].disk == KEEL_DISK_NONE)
            return false;
        for (uint8_t before = 0; before < i; before++)
            if (holders->at[before].node == holders->at[i].node)
                return false;
    }
    return true;
}

bool keel_view_holders_same(const struct keel_view_holders *a, const struct keel_view_holders *b)
{
    bool same = a->count == b->count;
    for (uint8_t i = 0; i < a->count && same; i++)
        same = a->at[i].node == b->at[i].node && a->at[i].disk == b->at[i].disk;
    return same;
}

bool keel_view_holders_has(const struct keel_view_holders *holders, uint16_t node)
{
    for (uint8_t i = 0; i < holders->count; i++)
        if (holders->at[i].node == node)
            return true;
    return false;
}

bool keel_view_valid(const struct keel_view *view)
{
    if (!keel_view_holders_valid(&view->before) || !keel_view_holders_valid(&view->holders))
        return false;
    if (view->epoch == 0 || view->epoch > KEEL_EPOCH_MAX || view->plan == 0 || view->member_count == 0 ||
        view->member_count > KEEL_MEMBERS_MAX || view->shard_count == 0 ||
        view->shard_count > KEEL_SHARDS_MAX || !members_valid(view))
        return false;
    struct keel_bitset active = {.some = {0}};
    for (uint16_t i = 0; i < view->member_count && !view->members[i].spare; i++)
        keel_bitset_add(&active, view->members[i].rank);
    for (uint16_t s = 0; s < view->shard_count; s++)
        if (view->shard_rank[s] >= KEEL_MEMBERS_MAX || !keel_bitset_has(&active, view->shard_rank[s]))
            return false;
    return true;
}

/* ---- bytes: epoch 8, plan 8, members 2, shards 2, holders before and now, members, shard_rank 2 each --- */

void keel_view_holders_write(struct keel_writer *w, const struct keel_view_holders *holders)
{
    keel_writer_number(w, holders->count, 1);
    for (uint8_t i = 0; i < holders->count; i++) {
        keel_writer_number(w, holders->at[i].node, 2);
        keel_writer_number(w, holders->at[i].disk, 4);
    }
}

void keel_view_holders_read(struct keel_wire_reader *r, struct keel_view_holders *out)
{
    *out = (struct keel_view_holders){.count = (uint8_t)keel_reader_number(r, 1)};
    if (out->count > KEEL_HOLDERS_MAX) {
        out->count = 0;
        r->failed = true;
    }
    for (uint8_t i = 0; i < out->count; i++) {
        out->at[i].node = (uint16_t)keel_reader_number(r, 2);
        out->at[i].disk = (uint32_t)keel_reader_number(r, 4);
    }
}

uint64_t keel_view_peek(const uint8_t *data, uint32_t bytes, struct keel_view_holders *before,
                        struct keel_view_holders *holders)
{
    struct keel_wire_reader head = {.data = data, .bytes = bytes};
    const uint64_t epoch = keel_reader_number(&head, 8);
    struct keel_wire_reader r = {.data = data, .bytes = bytes, .at = KEEL_VIEW_HEAD_BYTES};
    r.failed = bytes < KEEL_VIEW_HEAD_BYTES;
    keel_view_holders_read(&r, before);
    keel_view_holders_read(&r, holders);
    if (r.failed)
        before->count = holders->count = 0;
    return head.failed ? 0 : epoch;
}

/* Of a member's first byte: which fields follow, since they are not what the member before lets expect; and
 * whether it is a spare. */
enum { OTHER_RANK = 1, OTHER_NODE = 2, OTHER_LOCAL = 4, OTHER_LIFE = 8, OTHER_LENGTH = 16, SPARE = 32 };

/* What comes after it, if nothing is said: the next rank, on the same node, its next worker. */
static struct keel_member expect(const struct keel_member *before)
{
    struct keel_member next = {.rank = 0};
    if (before != NULL) {
        next = *before;
        next.rank++;
        next.local++;
    }
    return next;
}

/* How many bytes of an address are as in another one at its begin, and behind that at its end. */
static void count_same(const struct keel_address *address, const struct keel_address *other,
                       uint32_t *out_begin, uint32_t *out_end)
{
    const uint32_t bytes = address->bytes < other->bytes ? address->bytes : other->bytes;
    uint32_t begin = 0, end = 0;
    while (begin < bytes && address->data[begin] == other->data[begin])
        begin++;
    while (end < bytes - begin &&
           address->data[address->bytes - 1 - end] == other->data[other->bytes - 1 - end])
        end++;
    *out_begin = begin;
    *out_end = end;
}

void keel_view_write_member(struct keel_writer *w, const struct keel_member *before,
                            const struct keel_member *m)
{
    struct keel_member next = expect(before);
    uint32_t begin, end;
    if (m->node != next.node)
        next.local = 0;
    const uint32_t marks =
        (m->rank != next.rank ? OTHER_RANK : 0U) | (m->node != next.node ? OTHER_NODE : 0U) |
        (m->local != next.local ? OTHER_LOCAL : 0U) | (m->incarnation != next.incarnation ? OTHER_LIFE : 0U) |
        (m->data.bytes != next.data.bytes ? OTHER_LENGTH : 0U) | (m->spare ? SPARE : 0U);
    keel_writer_number(w, marks, 1);
    if ((marks & OTHER_RANK) != 0)
        keel_writer_number(w, m->rank, 2);
    if ((marks & OTHER_NODE) != 0)
        keel_writer_number(w, m->node, 2);
    if ((marks & OTHER_LOCAL) != 0)
        keel_writer_number(w, m->local, 1);
    if ((marks & OTHER_LIFE) != 0)
        keel_writer_number(w, m->incarnation, 4);
    if ((marks & OTHER_LENGTH) != 0)
        keel_writer_number(w, m->data.bytes, 1);
    count_same(&m->data, &next.data, &begin, &end);
    keel_writer_number(w, begin, 1);
    keel_writer_number(w, end, 1);
    keel_writer_bytes(w, m->data.data + begin, m->data.bytes - begin - end);
}

uint64_t keel_view_digest(const uint8_t *data, uint32_t bytes)
{
    return XXH3_64bits(data, bytes);
}

uint32_t keel_view_encode(const struct keel_view *view, uint8_t *out)
{
    struct keel_writer w = {.data = out, .capacity = KEEL_VIEW_BYTES_MAX};
    keel_writer_number(&w, view->epoch, 8);
    keel_writer_number(&w, view->plan, 8);
    keel_writer_number(&w, view->member_count, 2);
    keel_writer_number(&w, view->shard_count, 2);
    keel_view_holders_write(&w, &view->before);
    keel_view_holders_write(&w, &view->holders);
    for (uint16_t i = 0; i < view->member_count; i++)
        keel_view_write_member(&w, i > 0 ? &view->members[i - 1] : NULL, &view->members[i]);
    for (uint16_t s = 0; s < view->shard_count; s++)
        keel_writer_number(&w, view->shard_rank[s], 2);
    KEEL_ASSERT(!w.failed);
    KEEL_ASSERT(w.bytes <= KEEL_VIEW_BYTES_MAX);
    return w.bytes;
}

static void read_address(struct keel_wire_reader *reader, bool other_length, struct keel_address *data)
{
    const struct keel_address before = *data;
    if (other_length)
        data->bytes = (uint32_t)keel_reader_number(reader, 1);
    const uint32_t begin = (uint32_t)keel_reader_number(reader, 1);
    const uint32_t end = (uint32_t)keel_reader_number(reader, 1);
    if (reader->failed || data->bytes > KEEL_ADDRESS_BYTES || begin + end > data->bytes ||
        begin + end > before.bytes) {
        reader->failed = true;
        return;
    }
    memset(data->data, 0, sizeof data->data);
    memcpy(data->data, before.data, begin);
    keel_reader_bytes(reader, data->data + begin, data->bytes - begin - end);
    memcpy(data->data + data->bytes - end, before.data + before.bytes - end, end);
}

void keel_view_read_member(struct keel_wire_reader *reader, const struct keel_member *before,
                           struct keel_member *out)
{
    const uint32_t at = reader->at;
    const uint32_t marks = (uint32_t)keel_reader_number(reader, 1);
    *out = expect(before);
    if ((marks & OTHER_RANK) != 0)
        out->rank = (uint16_t)keel_reader_number(reader, 2);
    if ((marks & OTHER_NODE) != 0) {
        out->node = (uint16_t)keel_reader_number(reader, 2);
        out->local = 0;
    }
    if ((marks & OTHER_LOCAL) != 0)
        out->local = (uint8_t)keel_reader_number(reader, 1);
    if ((marks & OTHER_LIFE) != 0)
        out->incarnation = (uint32_t)keel_reader_number(reader, 4);
    out->spare = (marks & SPARE) != 0;
    read_address(reader, (marks & OTHER_LENGTH) != 0, &out->data);
    if (reader->failed)
        return;
    uint8_t bytes[KEEL_VIEW_MEMBER_BYTES];
    struct keel_writer again = {.data = bytes, .capacity = sizeof bytes};
    keel_view_write_member(&again, before, out);
    reader->failed = again.bytes != reader->at - at || memcmp(bytes, reader->data + at, again.bytes) != 0;
}

bool keel_view_decode(const uint8_t *data, uint32_t bytes, struct keel_view *out)
{
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    out->epoch = keel_reader_number(&r, 8);
    out->plan = keel_reader_number(&r, 8);
    out->member_count = (uint16_t)keel_reader_number(&r, 2);
    out->shard_count = (uint16_t)keel_reader_number(&r, 2);
    keel_view_holders_read(&r, &out->before);
    keel_view_holders_read(&r, &out->holders);
    if (out->member_count > KEEL_MEMBERS_MAX || out->shard_count > KEEL_SHARDS_MAX)
        return false;
    for (uint16_t i = 0; i < out->member_count && !r.failed; i++)
        keel_view_read_member(&r, i > 0 ? &out->members[i - 1] : NULL, &out->members[i]);
    for (uint16_t s = 0; s < out->shard_count && !r.failed; s++)
        out->shard_rank[s] = (uint16_t)keel_reader_number(&r, 2);
    if (!keel_reader_complete(&r))
        return false;
    const bool empty = out->epoch == 0 && out->plan == 0 && out->member_count == 0 && out->shard_count == 0;
    return empty || keel_view_valid(out);
}
