/* view.h - pure functions over struct keel_view.
 *
 * Owns how the next view follows from the last one (who holds which rank, which rank carries which
 * shard), what a well-formed view is, and a view's bytes on the wire and in the register. Knows nothing of
 * time, evidence or messages. The same arguments give the same view on every machine. */
#ifndef KEEL_VIEW_H
#define KEEL_VIEW_H

#include "bitset.h"
#include "wire_bytes.h"
#include <keel/node.h>

enum {
    KEEL_VIEW_MEMBER_BYTES = 1 + 2 + 2 + 1 + 4 + 1 + 2 + KEEL_ADDRESS_BYTES, /* at most */
    KEEL_VIEW_HEAD_BYTES = 20, /* what stands before the holders */
    KEEL_VIEW_HOLDERS_BYTES = 1 + KEEL_HOLDERS_MAX * 6,
    KEEL_VIEW_BYTES_MAX = KEEL_VIEW_HEAD_BYTES + 2 * KEEL_VIEW_HOLDERS_BYTES +
                          KEEL_MEMBERS_MAX * KEEL_VIEW_MEMBER_BYTES + KEEL_SHARDS_MAX * 2
};

#define KEEL_EPOCH_MAX (UINT64_C(1) << 62) /* out of reach by counting: what is above is damage */

/* What is to change. `joins` are borrowed; of a join only node, local, incarnation and data are read; they
 * must be sorted by (node, local) and not be members that stay. */
struct keel_view_change {
    struct keel_bitset gone; /* members of the old view that leave, by index */
    const struct keel_member *joins;
    uint16_t join_count;
    uint16_t rank_count, shard_count;
    const uint64_t *plans; /* as in struct keel_node_config; borrowed */
};

/* How many active ranks a view has when so many workers are there: the most that have a plan; 0: none. */
uint16_t keel_view_seats(const uint64_t *plans, uint16_t rank_count, uint32_t workers);

/* Build the view that follows `old` (epoch 0: none yet).
 * - As many are active as have a plan (keel_view_seats), whose number the view carries.
 * - Members that stay keep rank and role; a vacant rank below rank_count goes to a spare that stays,
 *   else to a join, ascending, and with the rank all its shards. Further joins become spares; so do the
 *   highest of the active ranks that stay, where so many have no plan, and keep their numbers.
 * - Shards of a rank that nobody took go one by one to the rank that carries least, among equals to the
 *   one that carries a neighbouring shard.
 * - Then, while two ranks differ by more than one shard, the fullest gives one to the emptiest.
 * - Where nobody of the old view's active ranks stays, shards are laid out anew: contiguous, balanced.
 * - Who holds it is not said: the first nodes.
 * False when no number of those who are there has a plan; *out is written only on true. */
bool keel_view_next(const struct keel_view *old, const struct keel_view_change *change,
                    struct keel_view *out);

/* Which of `active` members carries a shard when shards are laid out anew. */
static inline uint32_t keel_view_first_place(uint32_t shard, uint32_t shard_count, uint32_t active)
{
    return shard * active / shard_count;
}

/* Epoch 1 .. KEEL_EPOCH_MAX; a plan; ranks below KEEL_MEMBERS_MAX, unique and ascending, those of spares
 * above all others; spares carry nothing; every shard is owned by one active member; (node, local) unique;
 * addresses within their size; holders that keel_view_holders_valid. */
bool keel_view_valid(const struct keel_view *view);

/* What there is of `view`: a struct has room for the largest, and is not copied whole. */
void keel_view_copy(struct keel_view *out, const struct keel_view *view);

/* Index of the member with this rank, or of this worker; -1 when there is none. */
int keel_view_find_rank(const struct keel_view *view, uint16_t rank);
int keel_view_find_worker(const struct keel_view *view, uint16_t node, uint8_t local, uint32_t incarnation);

/* By node and local number: the member that has this place, by index; KEEL_PLACE_EMPTY: none. Rows of nodes
 * from `rows` on are not there: of what is below `least_rows`, and of members, all are. */
#define KEEL_PLACE_EMPTY UINT16_MAX
struct keel_view_places {
    uint32_t rows;
    uint16_t at[KEEL_NODES_MAX][KEEL_WORKERS_PER_NODE];
};
void keel_view_find_places(const struct keel_view *view, uint32_t least_rows, struct keel_view_places *out);

/* Active members (they come first, ascending by rank). */
uint16_t keel_view_active_count(const struct keel_view *view);

/* Little-endian bytes. Encode returns the bytes written (at most KEEL_VIEW_BYTES_MAX). Decode takes
 * exactly `bytes` and gives only valid views (or one of epoch 0, empty); after false *out is undefined. */
uint32_t keel_view_encode(const struct keel_view *view, uint8_t *out);
bool keel_view_decode(const uint8_t *data, uint32_t bytes, struct keel_view *out);

/* By which a view is told from every other (XXH3 of its bytes): for what came in parts, or as a delta. It is
 * no proof: who speaks is proved by the datagram's seal. */
uint64_t keel_view_digest(const uint8_t *data, uint32_t bytes);

/* No two of one node, and an odd number of them, or none. */
bool keel_view_holders_valid(const struct keel_view_holders *holders);
bool keel_view_holders_same(const struct keel_view_holders *a, const struct keel_view_holders *b);
bool keel_view_holders_has(const struct keel_view_holders *holders, uint16_t node);
void keel_view_holders_write(struct keel_writer *writer, const struct keel_view_holders *holders);
void keel_view_holders_read(struct keel_wire_reader *reader, struct keel_view_holders *out);
/* What the register wants to know of a view's bytes: its epoch, and whose majorities it needs. Of bytes that
 * are no view the holders are none. */
uint64_t keel_view_peek(const uint8_t *data, uint32_t bytes, struct keel_view_holders *before,
                        struct keel_view_holders *holders);

/* One member of those bytes: what is other in it than in the one before it there (NULL: it is the first).
 * Members of one node differ by a port, and neighbours by few bytes more. A member has one form: what else
 * would read as it is refused. */
void keel_view_write_member(struct keel_writer *writer, const struct keel_member *before,
                            const struct keel_member *member);
void keel_view_read_member(struct keel_wire_reader *reader, const struct keel_member *before,
                           struct keel_member *out);

#endif
