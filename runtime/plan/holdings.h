/* holdings.h - who has which elements of the state, and who sends what to whom so that everybody has what he
 * needs.
 *
 * The one path for all that changes hands: a newcomer, a take-over, growing, shrinking, another plan. What
 * seats have follows from the plan that they ran, what they need from the one that they are to run
 * (job_plan.h); whoever was lost has nothing. Pure: no device, no network; everybody who computes it from the
 * same holdings finds the same moves, in the same order.
 *
 * Elements of a tile are numbered in the tile's own row-major order. */
#ifndef KEEL_HOLDINGS_H
#define KEEL_HOLDINGS_H

#include <keel/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A run of elements of one tile of one kind of state. */
struct keel_extent {
    uint32_t part; /* which state: the caller's numbers (enum keel_plan_part) */
    uint32_t param, slice;
    uint64_t first, count;
};

/* One that grows; zero it first. An extent that goes on where the last one ended lengthens that. NO_MEMORY.
 */
struct keel_extents {
    struct keel_extent *at; /* owned: keel_free */
    size_t count, capacity;
};
enum keel_status keel_extents_put(struct keel_extents *list, const struct keel_extent *extent);

/* What some seats have, or need, each of them all of it: extents in any order, and also twice. Where
 * thousands have the same they are one holding. */
struct keel_holding {
    const struct keel_extent *extents;
    const uint32_t *seats; /* each once */
    uint32_t count, seat_count;
};

/* What all have, or need; a seat may be of several. Zero it first. keel_holdings_put takes the memory of
 * `what`, also when it fails, and copies the seats; of nothing, or of nobody, it keeps nothing. NO_MEMORY. */
struct keel_holdings {
    struct keel_holding *at; /* of keel_holdings_put: owned, with what they point to */
    size_t count, capacity;
};
enum keel_status keel_holdings_put(struct keel_holdings *list, struct keel_extents *what,
                                   const uint32_t *seats, uint32_t seat_count);
void keel_holdings_fini(struct keel_holdings *list);

/* Who has a copy of what position `position` of `count` owns: its node's positions, one after the other,
 * those of the next node, in the order of their first positions. So a node's loss takes no element with it,
 * and nobody has two copies where nodes have equally many. Where all are on one node (also `node` NULL, which
 * else is by position): the next one. KEEL_SEAT_NONE: it is alone. */
uint32_t keel_second_holder(uint32_t position, uint32_t count, const uint32_t *node);

/* Seats are numbers below the count given; nobody has what is missing. */
#define KEEL_SEAT_NONE UINT32_MAX

/* Positions along the data axis, of which each owns a share of what ZeRO divides. Positions k * group to (k +
 * 1) * group - 1 are a group, whose shares are all there is: they get each other's weights. Where there are
 * several groups, the positions with the same number in each have copies of each other's shares; else a
 * second holder has one, if holders is 2. */
struct keel_owners_map {
    uint32_t count, group; /* which divides it */
    uint32_t holders;
    const uint32_t *node; /* as above */
};
/* keel_second_holder of all positions, in time that grows with them as sorting does; out: count.
 * KEEL_SEAT_NONE, too, where holders is 1. NO_MEMORY. */
enum keel_status keel_second_holders(const struct keel_owners_map *map, uint32_t *out);
/* Has position `holder` the share of `owner`? */
bool keel_has_share(const struct keel_owners_map *map, uint32_t holder, uint32_t owner);
/* Positions of a group: of so many as were asked for (0: all), or as few more as divide `count`. */
uint32_t keel_zero_group(uint32_t count, uint32_t asked);

struct keel_move {
    uint32_t from, to;
    struct keel_extent what;
};

/* Ascending by receiver, kind of state, tile and element. */
struct keel_moves {
    struct keel_move *moves;   /* owned */
    struct keel_move *missing; /* owned; from is KEEL_SEAT_NONE */
    size_t move_count, move_capacity, missing_count, missing_capacity;
    /* Of the moves of all seats, also where those of one were asked for: */
    uint64_t elements;
    uint32_t senders, receivers;
};

/* No page of so many elements of a tile is cut between two senders. */
enum { KEEL_MOVE_PAGE = 1024 };

/* What each seat lacks of what it needs: from whom it gets it. Seats are below seat_count. Nobody sends what
 * it has not, nobody gets what it has, and nothing is sent twice to one. What only one has goes first; of
 * what several have those send most that have least to send, in runs as long as that allows: where all have
 * all, no two differ by more than two pages. `seat`: keep the moves from it and to it alone, as its worker
 * needs them; KEEL_SEAT_NONE: all. What is missing is kept of all. *out is to be given to keel_moves_fini,
 * also after a failure. NO_MEMORY.
 *
 * Time grows with the extents of all holdings, and, of what somebody lacks, with the seats that have it and
 * those that get it: one newcomer among 4,096 replicas costs about as much as among 8. */
enum keel_status keel_moves_find(const struct keel_holdings *have, const struct keel_holdings *need,
                                 uint32_t seat_count, uint32_t seat, struct keel_moves *out);
void keel_moves_fini(struct keel_moves *moves);

/* Elements that `seat` sends in the moves that are kept. */
uint64_t keel_moves_sent(const struct keel_moves *moves, uint32_t seat);

#endif
