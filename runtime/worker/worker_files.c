/* worker_files.c - see worker_files.h.
 *
 * Moves go in waves of a few, in the order of the list; in a wave all of a rank's files go side by side, a
 * piece of each at a time. Whoever is not done with the first wave that is not over has all of its ranks at
 * it, so nobody waits for who waits for him. */
#include "worker_files.h"

#include "trainer.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <string.h>

enum { WAVE = 4, PIECE_BYTES = 4 << 20, PIECES_MAX = 1 << 16 };
static const uint64_t file_bytes_max = (uint64_t)PIECE_BYTES * (PIECES_MAX - 2);
/* Bits of a sequence, below those of the call: numbers of moves and of gatherings, with pieces below. A
 * move's number is one between its two ranks: so lists may be of any length, of which a rank counts its own.
 * Where the highest is set and the rest is no gathering's, of links, which have more messages than files
 * pieces. */
enum {
    CALL_SHIFT = 36,
    NUMBER_SHIFT = 16,
    LINKS = 1 << 19,
    GATHERS = (1 << 20) - 64,
    LINK_SHIFT = 24,
    LINK_PIECES_MAX = 1 << LINK_SHIFT
};
_Static_assert((uint64_t)LINKS << NUMBER_SHIFT == UINT64_C(1) << 35, "the highest bit below the call's");
_Static_assert(((uint64_t)LINKS << NUMBER_SHIFT) + ((uint64_t)KEEL_FILE_LINKS_MAX << LINK_SHIFT) <=
                   (uint64_t)GATHERS << NUMBER_SHIFT,
               "no link has a gathering's number");

/* What precedes the pieces. */
struct file_head {
    uint64_t status, bytes;
    uint8_t digest[KEEL_OBJECT_DIGEST_BYTES];
};

/* Pieces begin with a page: they go to and from the disk past the page cache. */
struct lent {
    uint8_t piece[PIECE_BYTES];
    union {
        struct file_head head;
        uint8_t page[KEEL_PAGE_BYTES];
    };
};

struct stream {
    struct keel_file_move *move; /* NULL: this rank has no part in it */
    struct lent *lent;
    struct keel_tier_source *source;
    struct keel_tier_sink *sink;
    struct keel_operation *operation;
    uint32_t number; /* of the move, among those of the list that go the same way between the same two */
    bool gives;
};

static uint64_t number_of(uint64_t call, uint32_t number, uint64_t piece)
{
    KEEL_ASSERT(call < 2 * KEEL_CALLS_OF_GUARDS && piece < PIECES_MAX);
    return KEEL_SEQUENCE_FILES + (call << CALL_SHIFT) + ((uint64_t)number << NUMBER_SHIFT) + piece;
}

static uint64_t number_in_link(const struct keel_file_link *link, uint64_t piece)
{
    KEEL_ASSERT(link->number < KEEL_FILE_LINKS_MAX && piece < LINK_PIECES_MAX);
    return number_of(link->call, LINKS, 0) + ((uint64_t)link->number << LINK_SHIFT) + piece;
}

/* Whoever waits for another rank waits as long as the view lasts: its loss, or the view's end, ends the wait.
 */
static enum keel_status begin(const struct keel_file_mover *mover, struct stream *stream, uint64_t sequence,
                              void *data, uint64_t bytes)
{
    const void *parts[] = {data};
    const struct keel_collective what = {.kind = stream->gives ? KEEL_SEND : KEEL_RECEIVE,
                                         .sequence = sequence,
                                         .element = KEEL_ELEMENT_U8,
                                         .root = stream->gives ? stream->move->to : stream->move->from,
                                         .count = bytes,
                                         .parts = parts,
                                         .part_count = stream->gives ? 1 : 0,
                                         .result = stream->gives ? NULL : data};
    return keel_group_begin(mover->group, &what, &stream->operation);
}

static enum keel_status end(struct stream *stream)
{
    struct keel_operation *operation = stream->operation;
    stream->operation = NULL;
    return keel_operation_wait(operation, KEEL_NEVER);
}

/* ---- one file ------------------------------------------------------------------------------------------ */

static void open_source(const struct keel_file_mover *mover, struct stream *stream)
{
    struct keel_object_info info;
    struct file_head *head = &stream->lent->head;
    *head = (struct file_head){0};
    enum keel_status status = keel_tier_look(mover->tier, &stream->move->object, &info);
    if (status == KEEL_OK)
        status = keel_tier_open(mover->tier, &stream->move->object, &stream->source);
    if (status == KEEL_OK && info.bytes > file_bytes_max)
        status = keel_fail(KEEL_LIMIT, "a file of %llu bytes", (unsigned long long)info.bytes);
    head->status = (uint64_t)status;
    if (status != KEEL_OK)
        return;
    head->bytes = info.bytes;
    memcpy(head->digest, info.digest, sizeof head->digest);
}

/* What cannot be written here is received all the same. */
static void open_sink(const struct keel_file_mover *mover, struct stream *stream)
{
    const struct file_head *head = &stream->lent->head;
    if (head->status != KEEL_OK)
        (void)keel_fail(KEEL_NOT_FOUND, "rank %u has no sound copy of what it was to send",
                        stream->move->from);
    else if (keel_tier_create(mover->tier, &stream->move->object, head->bytes, &stream->sink) != KEEL_OK)
        stream->sink = NULL;
}

static uint64_t piece_bytes(const struct stream *stream, uint64_t piece)
{
    const uint64_t at = piece * PIECE_BYTES, bytes = stream->lent->head.bytes;
    const bool some = stream->lent->head.status == KEEL_OK && at < bytes;
    return !some ? 0 : bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
}

/* What can no longer be read goes as zeros: its digest is another. */
static enum keel_status begin_piece(const struct keel_file_mover *mover, struct stream *stream, uint64_t call,
                                    uint64_t piece)
{
    const uint64_t bytes = piece_bytes(stream, piece);
    uint8_t *data = stream->lent->piece;
    if (stream->gives &&
        keel_tier_read(stream->source, piece * PIECE_BYTES, data, keel_size(bytes)) != KEEL_OK)
        memset(data, 0, keel_size(bytes));
    return begin(mover, stream, number_of(call, stream->number, piece + 1), data, bytes);
}

static void take_piece(struct stream *stream, uint64_t piece)
{
    if (stream->sink == NULL ||
        keel_tier_write(stream->sink, stream->lent->piece, keel_size(piece_bytes(stream, piece))) == KEEL_OK)
        return;
    keel_tier_abort(stream->sink);
    stream->sink = NULL;
}

static void close_stream(struct stream *stream, bool whole)
{
    keel_tier_close_source(stream->source);
    if (stream->sink != NULL && whole)
        stream->move->arrived = keel_tier_commit(stream->sink, stream->lent->head.digest) == KEEL_OK;
    else
        keel_tier_abort(stream->sink);
    stream->source = NULL;
    stream->sink = NULL;
}

/* ---- a wave -------------------------------------------------------------------------------------------- */

static enum keel_status pass_heads(const struct keel_file_mover *mover, struct stream *streams, uint64_t call)
{
    for (uint32_t i = 0; i < WAVE; i++) {
        struct stream *stream = &streams[i];
        if (stream->move == NULL)
            continue;
        if (stream->gives)
            open_source(mover, stream);
        KEEL_TRY(begin(mover, stream, number_of(call, stream->number, 0), &stream->lent->head,
                       sizeof stream->lent->head));
    }
    for (uint32_t i = 0; i < WAVE; i++) {
        if (streams[i].move == NULL)
            continue;
        KEEL_TRY(end(&streams[i]));
        if (!streams[i].gives)
            open_sink(mover, &streams[i]);
    }
    return KEEL_OK;
}

static enum keel_status pass_pieces(const struct keel_file_mover *mover, struct stream *streams,
                                    uint64_t call)
{
    bool some = true;
    for (uint64_t piece = 0; some; piece++) {
        some = false;
        for (uint32_t i = 0; i < WAVE; i++) {
            if (streams[i].move == NULL || piece_bytes(&streams[i], piece) == 0)
                continue;
            KEEL_TRY(begin_piece(mover, &streams[i], call, piece));
            some = true;
        }
        for (uint32_t i = 0; i < WAVE; i++) {
            if (streams[i].operation == NULL)
                continue;
            KEEL_TRY(end(&streams[i]));
            if (!streams[i].gives)
                take_piece(&streams[i], piece);
        }
    }
    return KEEL_OK;
}

static enum keel_status reserve(struct keel_file_mover *mover)
{
    return mover->memory != NULL
               ? KEEL_OK
               : keel_alloc_aligned(KEEL_PAGE_BYTES, WAVE * sizeof(struct lent), &mover->memory);
}

/* This rank's moves so far, by the other rank: to it, and from it. */
struct passed {
    uint32_t to, from;
};

static struct stream join_in(struct keel_file_mover *mover, struct keel_file_move *move, uint32_t place,
                             uint32_t me, struct passed *passed)
{
    const bool gives = move->from == me;
    KEEL_ASSERT(move->from != move->to);
    if (!gives && move->to != me)
        return (struct stream){.move = NULL};
    const uint32_t number = gives ? passed[move->to].to++ : passed[move->from].from++;
    KEEL_ASSERT(number < LINKS); /* two ranks pass each file of a snapshot once */
    return (struct stream){
        .move = move, .lent = (struct lent *)mover->memory + place, .number = number, .gives = gives};
}

static enum keel_status run_waves(struct keel_file_mover *mover, struct keel_file_move *moves, uint32_t count,
                                  uint64_t call, struct passed *passed)
{
    const uint32_t me = keel_group_rank(mover->group);
    enum keel_status status = KEEL_OK;
    for (uint32_t first = 0; first < count && status == KEEL_OK; first += WAVE) {
        struct stream streams[WAVE] = {{.move = NULL}};
        for (uint32_t i = first; i < count && i < first + WAVE; i++)
            streams[i - first] = join_in(mover, &moves[i], i - first, me, passed);
        status = pass_heads(mover, streams, call);
        if (status == KEEL_OK)
            status = pass_pieces(mover, streams, call);
        for (uint32_t i = 0; i < WAVE; i++)
            close_stream(&streams[i], status == KEEL_OK);
    }
    return status;
}

enum keel_status keel_file_mover_run(struct keel_file_mover *mover, struct keel_file_move *moves,
                                     uint32_t count, uint64_t call)
{
    struct passed *passed;
    KEEL_ASSERT(mover->group != NULL || count == 0);
    if (count == 0)
        return KEEL_OK;
    KEEL_TRY(reserve(mover));
    KEEL_TRY(keel_alloc(keel_group_rank_count(mover->group), sizeof *passed, &passed));
    const enum keel_status status = run_waves(mover, moves, count, call, passed);
    keel_free(passed);
    return status;
}

/* ---- links --------------------------------------------------------------------------------------------- */

/* A message is its length and its bytes: two pieces. */
static enum keel_status pass(struct keel_file_link *link, bool send, uint64_t piece, void *data,
                             uint64_t bytes)
{
    struct keel_file_move move = {.from = (uint16_t)link->peer, .to = (uint16_t)link->peer};
    struct stream stream = {.move = &move, .gives = send};
    if (piece >= LINK_PIECES_MAX)
        return keel_fail(KEEL_LIMIT, "more than %d messages between two nodes", LINK_PIECES_MAX / 2);
    KEEL_TRY(begin(link->mover, &stream, number_in_link(link, piece), data, bytes));
    return end(&stream);
}

static enum keel_status link_send(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    struct keel_file_link *link = context;
    struct lent *lent = link->mover->memory;
    (void)deadline_ns;
    KEEL_ASSERT(bytes <= PIECE_BYTES);
    lent[0].head.bytes = bytes;
    if (bytes > 0)
        memcpy(lent[0].piece, message, bytes);
    KEEL_TRY(pass(link, true, 2 * link->sent, &lent[0].head.bytes, sizeof lent[0].head.bytes));
    if (bytes > 0)
        KEEL_TRY(pass(link, true, 2 * link->sent + 1, lent[0].piece, bytes));
    link->sent++;
    return KEEL_OK;
}

static enum keel_status link_receive(void *context, void *message, size_t capacity, size_t *out_bytes,
                                     uint64_t deadline_ns)
{
    struct keel_file_link *link = context;
    struct lent *lent = (struct lent *)link->mover->memory + 1;
    (void)deadline_ns;
    KEEL_TRY(pass(link, false, 2 * link->received, &lent->head.bytes, sizeof lent->head.bytes));
    const uint64_t bytes = lent->head.bytes;
    link->ended = bytes == 0;
    if (link->ended)
        return keel_fail(KEEL_PEER_LOST, "rank %u has ended its link", link->peer);
    if (bytes > capacity || bytes > PIECE_BYTES)
        return keel_fail(KEEL_CORRUPT, "rank %u sends a message that is too long", link->peer);
    KEEL_TRY(pass(link, false, 2 * link->received + 1, lent->piece, bytes));
    memcpy(message, lent->piece, keel_size(bytes));
    *out_bytes = keel_size(bytes);
    link->received++;
    return KEEL_OK;
}

enum keel_status keel_file_link_open(struct keel_file_link *link, struct keel_tier_link *out)
{
    KEEL_ASSERT(link->mover->group != NULL && link->number < KEEL_FILE_LINKS_MAX);
    *out = (struct keel_tier_link){.send = link_send, .receive = link_receive, .context = link};
    return reserve(link->mover);
}

enum keel_status keel_file_link_end(struct keel_file_link *link)
{
    return pass(link, true, 2 * link->sent, &link->mover->nothing, sizeof link->mover->nothing);
}

/* ---- gathering ----------------------------------------------------------------------------------------- */

enum keel_status keel_file_mover_gather_some(struct keel_file_mover *mover, const void *mine,
                                             const uint64_t *bytes, uint32_t ranks, void *all, uint64_t call,
                                             uint32_t number)
{
    uint64_t sum = 0;
    KEEL_ASSERT(number < 64 && ranks > 0);
    for (uint32_t p = 0; p < ranks; p++)
        sum += bytes[p];
    if (sum == 0)
        return KEEL_OK;
    if (mover->group == NULL) {
        memcpy(all, mine, keel_size(sum));
        return KEEL_OK;
    }
    const void *parts[] = {mine};
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER_V,
                                           .sequence = number_of(call, GATHERS + number, 0),
                                           .element = KEEL_ELEMENT_U8,
                                           .counts_out = bytes,
                                           .parts = parts,
                                           .part_count = bytes[keel_group_rank(mover->group)] > 0 ? 1 : 0,
                                           .result = all};
    return keel_group_run(mover->group, &gather, KEEL_NEVER);
}

enum keel_status keel_file_mover_gather(struct keel_file_mover *mover, const void *mine, size_t bytes,
                                        void *all, uint64_t call, uint32_t number)
{
    KEEL_ASSERT(number < 64);
    if (mover->group == NULL) {
        memcpy(all, mine, bytes);
        return KEEL_OK;
    }
    const void *parts[] = {mine};
    const struct keel_collective gather = {.kind = KEEL_ALL_GATHER,
                                           .sequence = number_of(call, GATHERS + number, 0),
                                           .element = KEEL_ELEMENT_U8,
                                           .count = bytes,
                                           .parts = parts,
                                           .part_count = 1,
                                           .result = all};
    return keel_group_run(mover->group, &gather, KEEL_NEVER);
}

void keel_file_mover_fini(struct keel_file_mover *mover)
{
    keel_free(mover->memory);
    mover->memory = NULL;
    mover->group = NULL;
}
