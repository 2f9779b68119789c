/* holdings_test.c - moves against a brute force, element by element: whatever was lost, everybody gets what
 * he lacks, once, from one who has it, and what nobody has is named. */
#include "harness.h"
#include "holdings.h"
#include <keel/memory.h>
#include <stdbool.h>
#include <string.h>

enum { SEATS = 7, PARTS = 3, PARAMS = 2, SLICES = 2, ELEMENTS = 5000, EXTENTS = 40 };
enum { TILES = PARTS * PARAMS * SLICES };

/* Holdings: number s < SEATS is seat s's alone, the others are of several; and the same as a flag for each
 * element of each seat. */
enum { SHARED = 5, HOLDINGS = SEATS + SHARED };
struct side {
    struct keel_extent extents[HOLDINGS][EXTENTS];
    uint32_t seats[HOLDINGS][SEATS];
    struct keel_holding of[HOLDINGS];
    uint8_t flags[SEATS][TILES][ELEMENTS];
};
static struct side have, need;

static uint32_t random_state;
static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

static uint32_t tile_of(const struct keel_extent *e)
{
    ck_assert(e->part < PARTS && e->param < PARAMS && e->slice < SLICES);
    ck_assert(e->first < ELEMENTS && e->count > 0 && e->count <= ELEMENTS - e->first);
    return (e->part * PARAMS + e->param) * SLICES + e->slice;
}

static void clear(void)
{
    memset(&have, 0, sizeof have);
    memset(&need, 0, sizeof need);
    for (uint32_t h = 0; h < HOLDINGS; h++) {
        have.seats[h][0] = need.seats[h][0] = h;
        have.of[h] = (struct keel_holding){
            .extents = have.extents[h], .seats = have.seats[h], .seat_count = h < SEATS};
        need.of[h] = (struct keel_holding){
            .extents = need.extents[h], .seats = need.seats[h], .seat_count = h < SEATS};
    }
}

static void give(struct side *side, uint32_t h, struct keel_extent extent)
{
    struct keel_holding *holding = &side->of[h];
    ck_assert_uint_lt(holding->count, EXTENTS);
    side->extents[h][holding->count++] = extent;
    for (uint32_t i = 0; i < holding->seat_count && extent.count > 0; i++)
        memset(&side->flags[side->seats[h][i]][tile_of(&extent)][extent.first], 1, (size_t)extent.count);
}

static struct keel_extent draw_extent(void)
{
    struct keel_extent extent = {next_random(PARTS), next_random(PARAMS), next_random(SLICES), 0, 0};
    extent.first = next_random(ELEMENTS);
    extent.count = next_random((uint32_t)(ELEMENTS - extent.first) + 1);
    return extent;
}

static void draw(void)
{
    clear();
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        const bool lost = next_random(4) == 0;
        const uint32_t held = lost ? 0 : next_random(EXTENTS / 4), needed = next_random(EXTENTS / 4);
        for (uint32_t i = 0; i < held; i++)
            give(&have, seat, draw_extent());
        for (uint32_t i = 0; i < needed; i++)
            give(&need, seat, draw_extent());
    }
}

/* And what several have, or need: as one holding, or each by itself. */
static void draw_shared(struct side *side, bool together)
{
    for (uint32_t h = SEATS; h < HOLDINGS; h++) {
        struct keel_holding *holding = &side->of[h];
        for (uint32_t seat = 0; seat < SEATS; seat++)
            if (next_random(2) == 0)
                side->seats[h][holding->seat_count++] = seat;
        for (uint32_t i = next_random(6); i > 0; i--) {
            const struct keel_extent extent = draw_extent();
            for (uint32_t s = 0; s < holding->seat_count && !together; s++)
                give(side, side->seats[h][s], extent);
            if (together)
                give(side, h, extent);
        }
    }
}

static bool anybody_has(uint32_t tile, uint64_t element)
{
    for (uint32_t seat = 0; seat < SEATS; seat++)
        if (have.flags[seat][tile][element])
            return true;
    return false;
}

/* Marks what a list gives: 1 for moves, 2 for what is missing. Each element of a receiver once. */
static void mark(const struct keel_move *list, size_t count, uint8_t value,
                 uint8_t got[SEATS][TILES][ELEMENTS])
{
    for (size_t i = 0; i < count; i++) {
        const struct keel_move *m = &list[i];
        const uint32_t tile = tile_of(&m->what);
        ck_assert_uint_lt(m->to, SEATS);
        ck_assert((m->from == KEEL_SEAT_NONE) == (value == 2));
        uint32_t wrong = 0; /* counted: an assertion for each element would take most of the time */
        for (uint64_t e = m->what.first; e < m->what.first + m->what.count; e++) {
            wrong += got[m->to][tile][e] != 0 || (value == 1 && !have.flags[m->from][tile][e]);
            got[m->to][tile][e] = value;
        }
        ck_assert_uint_eq(wrong, 0);
    }
}

static void check_against_brute_force(const struct keel_moves *moves)
{
    static uint8_t got[SEATS][TILES][ELEMENTS];
    memset(got, 0, sizeof got);
    mark(moves->moves, moves->move_count, 1, got);
    mark(moves->missing, moves->missing_count, 2, got);
    for (uint32_t seat = 0; seat < SEATS; seat++)
        for (uint32_t tile = 0; tile < TILES; tile++)
            for (uint64_t e = 0; e < ELEMENTS; e++) {
                const bool lacks = need.flags[seat][tile][e] && !have.flags[seat][tile][e];
                const uint8_t wanted = (uint8_t)(!lacks ? 0 : anybody_has(tile, e) ? 1 : 2);
                if (got[seat][tile][e] != wanted)
                    ck_abort_msg("seat %u tile %u element %u: %u, wanted %u", seat, tile, (unsigned)e,
                                 got[seat][tile][e], wanted);
            }
}

static struct keel_moves find_of(uint32_t seat)
{
    struct keel_moves moves;
    const struct keel_holdings given = {.at = have.of, .count = HOLDINGS},
                               wanted = {.at = need.of, .count = HOLDINGS};
    ck_ok(keel_moves_find(&given, &wanted, SEATS, seat, &moves));
    return moves;
}

static struct keel_moves find(void)
{
    struct keel_moves moves = find_of(KEEL_SEAT_NONE);
    bool sends[SEATS] = {false}, gets[SEATS] = {false};
    uint64_t elements = 0;
    check_against_brute_force(&moves);
    for (size_t i = 0; i < moves.move_count; i++) {
        elements += moves.moves[i].what.count;
        sends[moves.moves[i].from] = gets[moves.moves[i].to] = true;
    }
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        moves.senders -= sends[seat];
        moves.receivers -= gets[seat];
    }
    ck_assert_msg(moves.elements == elements && moves.senders == 0 && moves.receivers == 0, "sums differ");
    return moves;
}

START_TEST(moves_give_everybody_what_he_lacks_once_and_name_what_nobody_has)
{
    size_t moved = 0, missing = 0;
    for (random_state = 1; random_state <= 300; random_state++) {
        const uint32_t seed = random_state;
        draw();
        draw_shared(&have, seed % 4 > 0);
        draw_shared(&need, seed % 8 > 1);
        struct keel_moves moves = find();
        moved += moves.move_count;
        missing += moves.missing_count;
        keel_moves_fini(&moves);
        random_state = seed;
    }
    ck_assert(moved > 10000 && missing > 1000);
}
END_TEST

static bool same_move(const struct keel_move *x, const struct keel_move *y)
{
    return x->from == y->from && x->to == y->to && tile_of(&x->what) == tile_of(&y->what) &&
           x->what.first == y->what.first && x->what.count == y->what.count;
}

static bool same_moves(const struct keel_moves *a, const struct keel_moves *b)
{
    if (a->move_count != b->move_count)
        return false;
    for (size_t i = 0; i < a->move_count; i++)
        if (!same_move(&a->moves[i], &b->moves[i]))
            return false;
    return true;
}

static void reverse(struct side *side)
{
    for (uint32_t h = 0; h < HOLDINGS; h++) {
        const struct keel_holding *holding = &side->of[h];
        for (uint32_t i = 0, j = holding->count; i + 1 < j; i++) {
            const struct keel_extent swapped = side->extents[h][i];
            side->extents[h][i] = side->extents[h][--j];
            side->extents[h][j] = swapped;
        }
        for (uint32_t i = 0, j = holding->seat_count; i + 1 < j; i++) {
            const uint32_t swapped = side->seats[h][i];
            side->seats[h][i] = side->seats[h][--j];
            side->seats[h][j] = swapped;
        }
    }
    for (uint32_t i = 0, j = HOLDINGS; i + 1 < j; i++) {
        const struct keel_holding swapped = side->of[i];
        side->of[i] = side->of[--j];
        side->of[j] = swapped;
    }
}

/* Each worker asks for its own, and all mean the same ones. */
START_TEST(moves_of_a_seat_are_those_of_all_that_it_has_part_in)
{
    for (random_state = 2000; random_state < 2040; random_state++) {
        const uint32_t seed = random_state;
        draw();
        draw_shared(&have, true);
        draw_shared(&need, true);
        struct keel_moves all = find();
        for (uint32_t seat = 0; seat < SEATS; seat++) {
            struct keel_moves own = find_of(seat);
            size_t at = 0;
            for (size_t i = 0; i < all.move_count; i++)
                if (all.moves[i].from == seat || all.moves[i].to == seat)
                    ck_assert(at < own.move_count && same_move(&own.moves[at++], &all.moves[i]));
            ck_assert_uint_eq(at, own.move_count);
            ck_assert(own.elements == all.elements && own.missing_count == all.missing_count);
            keel_moves_fini(&own);
        }
        keel_moves_fini(&all);
        random_state = seed;
    }
}
END_TEST

START_TEST(moves_do_not_depend_on_the_order_in_which_holdings_are_listed)
{
    for (random_state = 1000; random_state < 1020; random_state++) {
        const uint32_t seed = random_state;
        draw();
        draw_shared(&have, true);
        draw_shared(&need, true);
        struct keel_moves once = find();
        reverse(&have);
        reverse(&need);
        struct keel_moves again = find();
        ck_assert(same_moves(&once, &again));
        keel_moves_fini(&once);
        keel_moves_fini(&again);
        random_state = seed;
    }
}
END_TEST

static void give_all(struct side *side, uint32_t seat)
{
    for (uint32_t part = 0; part < PARTS; part++)
        for (uint32_t param = 0; param < PARAMS; param++)
            for (uint32_t slice = 0; slice < SLICES; slice++)
                give(side, seat, (struct keel_extent){part, param, slice, 0, ELEMENTS - 37 * param});
}

START_TEST(replicas_send_equally_much_to_newcomers)
{
    for (uint32_t newcomers = 1; newcomers < SEATS; newcomers++) {
        clear();
        for (uint32_t seat = 0; seat < SEATS; seat++) {
            give_all(&need, seat);
            if (seat >= newcomers)
                give_all(&have, seat);
        }
        struct keel_moves moves = find();
        uint64_t least = UINT64_MAX, most = 0;
        for (uint32_t seat = newcomers; seat < SEATS; seat++) {
            const uint64_t sent = keel_moves_sent(&moves, seat);
            least = sent < least ? sent : least;
            most = sent > most ? sent : most;
        }
        ck_assert_uint_gt(least, 0);
        ck_assert_uint_le(most - least, 2 * KEEL_MOVE_PAGE);
        for (size_t i = 0; i < moves.move_count; i++) /* pages stay whole */
            ck_assert_uint_eq(moves.moves[i].what.first % KEEL_MOVE_PAGE, 0);
        keel_moves_fini(&moves);
    }
}
END_TEST

/* One element more than all have equally many of: the last of thousands is not to pay for the rounding. */
START_TEST(thousands_of_replicas_send_equally_much)
{
    enum { MANY = 4096, EACH = 5000 };
    static uint32_t seats[MANY];
    const struct keel_extent all = {0, 0, 0, 0, (uint64_t)(MANY - 1) * EACH + 1};
    uint64_t least = UINT64_MAX, most = 0;
    struct keel_moves moves;
    for (uint32_t seat = 0; seat < MANY; seat++)
        seats[seat] = seat;
    struct keel_holding of[2] = {{&all, seats, 1, MANY - 1}, {&all, seats, 1, MANY}};
    const struct keel_holdings given = {.at = &of[0], .count = 1}, wanted = {.at = &of[1], .count = 1};
    ck_ok(keel_moves_find(&given, &wanted, MANY, KEEL_SEAT_NONE, &moves));
    ck_assert_uint_eq(moves.senders, MANY - 1);
    ck_assert_uint_eq(moves.move_count, MANY - 1); /* by sender, as the sums below are */
    for (size_t i = 0; i < moves.move_count; i++) {
        least = moves.moves[i].what.count < least ? moves.moves[i].what.count : least;
        most = moves.moves[i].what.count > most ? moves.moves[i].what.count : most;
    }
    ck_assert_uint_le(most - least, 2 * KEEL_MOVE_PAGE);
    keel_moves_fini(&moves);
}
END_TEST

START_TEST(who_alone_has_something_sends_nothing_of_what_others_have_too)
{
    clear();
    const struct keel_extent shared = {0, 0, 0, 0, 4096}, own = {1, 0, 0, 0, 4096};
    give(&have, 0, shared);
    give(&have, 1, shared);
    give(&have, 0, own);
    give(&need, 2, shared);
    give(&need, 2, own);
    struct keel_moves moves = find();
    ck_assert_uint_eq(moves.move_count, 2);
    ck_assert_uint_eq(keel_moves_sent(&moves, 0), 4096);
    ck_assert_uint_eq(keel_moves_sent(&moves, 1), 4096);
    keel_moves_fini(&moves);
}
END_TEST

/* Pieces of the optimizer's state over n positions, each with the next one as its shadow. */
static void give_pieces(struct side *side, const uint32_t *seats, uint32_t n, bool shadows)
{
    for (uint32_t k = 0; k < n; k++) {
        const uint64_t first = (uint64_t)k * ELEMENTS / n, end = (uint64_t)(k + 1) * ELEMENTS / n;
        const struct keel_extent piece = {1, 0, 0, first, end - first};
        give(side, seats[k], piece);
        if (shadows && n > 1)
            give(side, seats[(k + 1) % n], piece);
    }
}

START_TEST(shadows_survive_one_loss_and_two_neighbours_lost_are_named)
{
    static const uint32_t all[SEATS] = {0, 1, 2, 3, 4, 5, 6};
    for (uint32_t lost = 0; lost < SEATS; lost++)
        for (uint32_t width = 1; width <= 2; width++) {
            uint32_t left[SEATS], n = 0;
            clear();
            give_pieces(&have, all, SEATS, true);
            for (uint32_t w = 0; w < width; w++) {
                have.of[(lost + w) % SEATS].count = 0;
                memset(have.flags[(lost + w) % SEATS], 0, sizeof have.flags[0]);
            }
            for (uint32_t seat = 0; seat < SEATS; seat++)
                if (have.of[seat].count > 0)
                    left[n++] = seat;
            give_pieces(&need, left, n, true);
            struct keel_moves moves = find();
            ck_assert_uint_gt(moves.move_count, 0);
            ck_assert_uint_eq(moves.missing_count > 0, width == 2);
            keel_moves_fini(&moves);
        }
}
END_TEST

START_TEST(who_has_what_he_needs_gets_nothing)
{
    clear();
    for (uint32_t seat = 0; seat < SEATS; seat++) {
        give_all(&have, seat);
        give_all(&need, seat);
        give(&need, seat, (struct keel_extent){0, 0, 0, 17, 0});
    }
    struct keel_moves moves = find();
    ck_assert_uint_eq(moves.move_count + moves.missing_count, 0);
    keel_moves_fini(&moves);
}
END_TEST

/* Nodes of any sizes, side by side or not: where all have equally many, everybody is a second holder once. */
START_TEST(a_second_holder_is_on_another_node_and_nobody_has_more_than_his_part)
{
    for (uint32_t trial = 0; trial < 2000; trial++) {
        uint32_t node[24], copies[24] = {0}, size[6] = {0};
        const uint32_t nodes = 1 + next_random(6), each = 1 + next_random(4);
        const bool even = next_random(2) == 1, blocks = next_random(2) == 1;
        const uint32_t count = even ? nodes * each : 1 + next_random(24);
        for (uint32_t p = 0; p < count; p++) {
            node[p] = !even ? next_random(nodes) : blocks ? p / each : p % nodes;
            size[node[p]]++;
        }
        uint32_t all[24];
        const struct keel_owners_map map = {.count = count, .group = count, .holders = 2, .node = node};
        ck_ok(keel_second_holders(&map, all));
        for (uint32_t p = 0; p < count; p++) {
            const uint32_t second = keel_second_holder(p, count, node);
            ck_assert_uint_eq(all[p], second);
            if (count == 1) {
                ck_assert_uint_eq(second, KEEL_SEAT_NONE);
                continue;
            }
            ck_assert(second < count && second != p);
            ck_assert_msg(size[node[p]] == count || node[second] != node[p], "trial %u: %u on one node",
                          trial, p);
            ck_assert_msg(!even || ++copies[second] == 1, "trial %u: %u has two copies", trial, second);
            ck_assert_uint_eq(keel_second_holder(p, count, NULL), (p + 1) % count);
        }
    }
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_second_holder_is_on_another_node_and_nobody_has_more_than_his_part);
    tcase_add_test(tc, moves_give_everybody_what_he_lacks_once_and_name_what_nobody_has);
    tcase_add_test(tc, moves_of_a_seat_are_those_of_all_that_it_has_part_in);
    tcase_add_test(tc, moves_do_not_depend_on_the_order_in_which_holdings_are_listed);
    tcase_add_test(tc, replicas_send_equally_much_to_newcomers);
    tcase_add_test(tc, thousands_of_replicas_send_equally_much);
    tcase_add_test(tc, who_alone_has_something_sends_nothing_of_what_others_have_too);
    tcase_add_test(tc, shadows_survive_one_loss_and_two_neighbours_lost_are_named);
    tcase_add_test(tc, who_has_what_he_needs_gets_nothing);
}

KEEL_TEST_MAIN("holdings", cases, 120)
