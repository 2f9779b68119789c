/* worker_moves.c - state from who holds it to who lacks it: the one path for healing, take-over, growing,
 * shrinking and reading a snapshot together.
 *
 * All ranks know from the same records who holds what (struct keel_holders), so all find the same moves
 * (plan/holdings.h), and nobody asks for anything. What goes from one rank to another is one stream, in
 * chunks; chunks of all pairs have one order, by number, then by distance, then by sender, and every rank
 * begins its own in that order, some at a time. The first chunk of all that is not done is then the first of
 * both its ranks, which are at it: so there is no deadlock, whoever is slow. */
#include "worker_internal.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <string.h>

enum { CHUNK_BYTES = 4 << 20, WINDOW = 4 };
/* First bit of which moves of the view; below it is the chunk's number. Each pair of ranks has its own. */
enum { SEQUENCE_ROUND = 48 };

struct message {
    uint32_t from, to;
    uint64_t number, bytes; /* of the chunk */
};

/* How far a stream is: at which move, and in it. */
struct stream {
    size_t move; /* NONE: at its end */
    uint64_t done_bytes, all_bytes;
};
#define NONE SIZE_MAX

struct transfer {
    struct keel_worker *worker;
    const struct keel_moves *moves;
    size_t *next;                                              /* owned: by move, the next of its stream */
    struct stream out[KEEL_MEMBERS_MAX], in[KEEL_MEMBERS_MAX]; /* by the other position */
    struct message *messages;                                  /* owned: of this rank, in the order of all */
    size_t message_count, capacity;
    struct keel_operation *window[WINDOW];
};

/* ---- who has what, and what is to go where ------------------------------------------------------------- */

static enum keel_status put_holding(enum keel_status listed, struct keel_extents *what, const uint32_t *seats,
                                    uint32_t seat_count, struct keel_holdings *list)
{
    const enum keel_status status = keel_holdings_put(list, what, seats, seat_count);
    return listed == KEEL_OK ? status : listed;
}

enum keel_status keel_worker_put_all(const struct keel_worker *worker, uint32_t parts, const uint32_t *seats,
                                     uint32_t seat_count, struct keel_holdings *list)
{
    struct keel_extents what = {.at = NULL};
    return put_holding(keel_trainer_all_extents(worker->trainer, parts, &what), &what, seats, seat_count,
                       list);
}

enum keel_status keel_worker_put_shares(const struct keel_worker *worker, const struct keel_share_run *owners,
                                        uint32_t of, uint32_t parts, const uint32_t *seats,
                                        uint32_t seat_count, struct keel_holdings *list)
{
    struct keel_extents what = {.at = NULL};
    enum keel_status status = KEEL_OK;
    for (uint32_t k = 0; k < owners->count && status == KEEL_OK; k++)
        status =
            keel_trainer_share_extents(worker->trainer, owners->first + k * owners->stride, of, parts, &what);
    return put_holding(status, &what, seats, seat_count, list);
}

enum keel_status keel_worker_put_read(const struct keel_worker *worker, uint32_t index, uint32_t count,
                                      uint32_t seat, struct keel_holdings *list)
{
    struct keel_extents what = {.at = NULL};
    return put_holding(keel_trainer_read_extents(worker->trainer, index, count, &what), &what, &seat, 1,
                       list);
}

enum keel_status keel_worker_find_moves(const struct keel_worker *worker, enum keel_status listed,
                                        struct keel_holders *holders, struct keel_moves *out)
{
    *out = (struct keel_moves){.moves = NULL};
    const enum keel_status status =
        listed != KEEL_OK
            ? listed
            : keel_moves_find(&holders->have, &holders->need, worker->rank_count, worker->position, out);
    keel_holdings_fini(&holders->have);
    keel_holdings_fini(&holders->need);
    return status;
}

/* ---- the order ----------------------------------------------------------------------------------------- */

static struct stream *stream_of(struct transfer *t, uint32_t from, uint32_t to)
{
    return from == t->worker->position ? &t->out[to] : &t->in[from];
}

static enum keel_status find_streams(struct transfer *t)
{
    KEEL_TRY(keel_alloc(t->moves->move_count, sizeof *t->next, &t->next));
    for (uint32_t p = 0; p < t->worker->rank_count; p++)
        t->out[p].move = t->in[p].move = NONE;
    for (size_t i = t->moves->move_count; i-- > 0;) {
        const struct keel_move *move = &t->moves->moves[i];
        struct stream *stream = stream_of(t, move->from, move->to);
        t->next[i] = stream->move;
        stream->move = i;
        stream->all_bytes += move->what.count * sizeof(float);
    }
    return KEEL_OK;
}

static enum keel_status put_message(struct transfer *t, uint32_t from, uint32_t to, uint64_t number)
{
    const uint64_t bytes = stream_of(t, from, to)->all_bytes, at = number * CHUNK_BYTES;
    if (at >= bytes)
        return KEEL_OK;
    KEEL_TRY(keel_grow(&t->messages, &t->capacity, t->message_count + 1, sizeof *t->messages));
    t->messages[t->message_count++] =
        (struct message){from, to, number, bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES};
    return KEEL_OK;
}

/* Those of this rank that have this number: at each distance the one to it and the one from it. */
static enum keel_status put_messages(struct transfer *t, uint64_t number)
{
    const uint32_t me = t->worker->position, count = t->worker->rank_count;
    for (uint32_t distance = 1; distance < count; distance++) {
        const uint32_t to = (me + distance) % count, from = (me + count - distance) % count;
        if (from < me)
            KEEL_TRY(put_message(t, from, me, number));
        KEEL_TRY(put_message(t, me, to, number));
        if (from > me)
            KEEL_TRY(put_message(t, from, me, number));
    }
    return KEEL_OK;
}

static enum keel_status list_messages(struct transfer *t)
{
    size_t before = NONE;
    KEEL_TRY(find_streams(t));
    for (uint64_t number = 0; before != t->message_count; number++) {
        before = t->message_count;
        KEEL_TRY(put_messages(t, number));
    }
    return KEEL_OK;
}

/* ---- chunks -------------------------------------------------------------------------------------------- */

/* The next `bytes` of a stream between the state and the chunk. */
static enum keel_status pass(struct transfer *t, const struct message *message, bool give, uint8_t *chunk)
{
    struct keel_trainer *trainer = t->worker->trainer;
    struct stream *at = stream_of(t, message->from, message->to);
    struct keel_queue *queue = keel_engine_queue(keel_trainer_engine(trainer));
    for (uint64_t done = 0; done < message->bytes;) {
        KEEL_ASSERT(at->move != NONE);
        const struct keel_state_piece piece = keel_trainer_piece_of(trainer, &t->moves->moves[at->move].what);
        const uint64_t left = keel_piece_bytes(&piece) - at->done_bytes, room = message->bytes - done;
        const uint64_t now = left < room ? left : room;
        KEEL_TRY(give ? keel_trainer_read_piece(trainer, queue, &piece, at->done_bytes, now, chunk + done)
                      : keel_trainer_write_piece(trainer, &piece, at->done_bytes, now, chunk + done));
        done += now;
        at->done_bytes += now;
        if (now == left) {
            at->move = t->next[at->move];
            at->done_bytes = 0;
        }
    }
    return KEEL_OK;
}

static uint8_t *chunk_of(const struct transfer *t, size_t number)
{
    return (uint8_t *)t->worker->chunks + number % WINDOW * CHUNK_BYTES;
}

static enum keel_status begin(struct transfer *t, size_t number)
{
    struct keel_worker *worker = t->worker;
    const struct message *message = &t->messages[number];
    const bool give = message->from == worker->position;
    uint8_t *chunk = chunk_of(t, number);
    const void *parts[] = {chunk};
    const struct keel_collective what = {.kind = give ? KEEL_SEND : KEEL_RECEIVE,
                                         .sequence = KEEL_SEQUENCE_MOVE +
                                                     (worker->move_round << SEQUENCE_ROUND) + message->number,
                                         .element = KEEL_ELEMENT_U8,
                                         .root = give ? message->to : message->from,
                                         .count = message->bytes,
                                         .parts = parts,
                                         .part_count = give ? 1 : 0,
                                         .result = give ? NULL : chunk};
    if (give)
        KEEL_TRY(pass(t, message, true, chunk));
    return keel_group_begin(worker->group, &what, &t->window[number % WINDOW]);
}

static enum keel_status end(struct transfer *t, size_t number)
{
    struct keel_worker *worker = t->worker;
    const struct message *message = &t->messages[number];
    struct keel_operation *operation = t->window[number % WINDOW];
    KEEL_TRY(keel_operation_wait(operation, keel_deadline_after_ns(worker->stall_ns)));
    if (message->to == worker->position)
        KEEL_TRY(pass(t, message, false, chunk_of(t, number)));
    atomic_fetch_add(&worker->inbox.progress, 1);
    return KEEL_OK;
}

static enum keel_status run(struct transfer *t)
{
    KEEL_TRY(list_messages(t));
    for (size_t i = 0; i < t->message_count + WINDOW; i++) {
        if (i >= WINDOW && i - WINDOW < t->message_count)
            KEEL_TRY(end(t, i - WINDOW));
        if (i < t->message_count)
            KEEL_TRY(begin(t, i));
    }
    return KEEL_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

struct keel_moved keel_worker_count_moves(const struct keel_moves *moves)
{
    return (struct keel_moved){
        .bytes = moves->elements * sizeof(float), .senders = moves->senders, .receivers = moves->receivers};
}

enum keel_status keel_worker_make_moves(struct keel_worker *worker, const struct keel_moves *moves)
{
    struct transfer *t;
    KEEL_ASSERT(moves->missing_count == 0);
    worker->move_round++; /* on every rank, also on one that has no part in it */
    if (moves->move_count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_alloc(1, sizeof *t, &t));
    t->worker = worker;
    t->moves = moves;
    enum keel_status status = KEEL_OK;
    if (worker->chunks == NULL) /* stays until the group is closed: an operation that failed may use it */
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)WINDOW * CHUNK_BYTES, &worker->chunks);
    if (status == KEEL_OK)
        status = run(t);
    keel_free(t->next);
    keel_free(t->messages);
    keel_free(t);
    return status;
}
