/* peer_fuzz.c - any sequence of connections and messages from peers and strangers, while sums, broadcasts and
 * exchanges run: memory lent to operations is all that is touched, nobody unproven joins, and whatever was
 * begun can be closed.
 *
 * The fabric is this file: lines that open, break and complete as the input says. What the progress thread
 * does is done here in turn, on one thread. The input is a set-up byte and a list of orders; see `obey`. */
#include "fabric.h"
#include "fuzz.h"
#include "group.h"
#include "handshake.h"
#include "shared.h"
#include <keel/memory.h>

enum { RANKS = 4, ME = 1, SHARDS = 6, LINES_MAX = 48, OPERATIONS = 24, PARTS_MAX = 8, FLOATS_MAX = 40000 };

struct line {
    struct keel_line line; /* first: they are the same to the room */
    void *owners[KEEL_LINE_SENDS];
    bool lent[KEEL_LINE_SENDS];
    uint32_t count;
};

struct running {
    struct keel_operation *operation;
    void *memory, *into; /* lent to it */
};

static struct world {
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    uint64_t epoch;
    struct line *lines[LINES_MAX];
    uint32_t line_count, refusals; /* of the fabric, to come */
    struct running running[OPERATIONS];
    uint32_t running_count;
    struct keel_carrier carrier;
} world;

/* ---- the fabric -------------------------------------------------------------------------------------------
 */

static struct keel_line *new_line(void)
{
    struct line *line;
    if (world.line_count == LINES_MAX || keel_alloc(1, sizeof *line, &line) != KEEL_OK)
        return NULL;
    keel_carrier_adopt(&world.carrier, &line->line);
    world.lines[world.line_count++] = line;
    return &line->line;
}

static enum keel_status dial(struct keel_carrier *carrier, const struct keel_address *address, void *owner,
                             struct keel_line **out)
{
    (void)carrier;
    (void)address;
    struct keel_line *line = new_line();
    if (line == NULL)
        return keel_fail(KEEL_PEER_LOST, "refused");
    line->owner = owner;
    *out = line;
    return KEEL_OK;
}

static void hang_up(struct keel_line *line)
{
    line->bulk_in_flight = 0;
}

static enum keel_send send_message(struct keel_line *given, struct keel_message *message, const void *payload,
                                   bool lent, void *owner, bool *out_retry)
{
    struct line *line = (struct line *)(void *)given;
    uint8_t sum = 0;
    for (uint32_t i = 0; i < message->bytes; i++) /* all of it must be readable */
        sum ^= ((const volatile uint8_t *)payload)[i];
    (void)sum;
    if (line->count == KEEL_LINE_SENDS || (lent && given->bulk_in_flight == KEEL_LINE_BULK_SENDS))
        return KEEL_SEND_LATER;
    if (world.refusals > 0 && world.refusals-- > 0) {
        *out_retry = true;
        return world.refusals % 4 == 3 ? KEEL_SEND_BROKEN : KEEL_SEND_LATER;
    }
    if (message->bytes % 7 == 3) /* as a carrier that copies */
        return KEEL_SEND_DONE;
    line->owners[line->count] = owner;
    line->lent[line->count++] = lent;
    given->bulk_in_flight += lent ? 1 : 0;
    return KEEL_SEND_OK;
}

static const struct keel_carrier_ops carrier_ops = {.dial = dial, .send = send_message, .hang_up = hang_up};

/* The room's own carriers are not linked. */
enum keel_status keel_fabric_open(const struct keel_endpoint_config *config, struct keel_carrier **out)
{
    (void)config;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no fabric here");
}

enum keel_status keel_shared_open(struct keel_carrier **out)
{
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no shared memory here");
}

/* ---- the progress thread's work --------------------------------------------------------------------------
 */

static void begin_submitted(void)
{
    struct keel_endpoint *endpoint = world.endpoint;
    struct keel_operation *next, *at = endpoint->submitted;
    endpoint->submitted = NULL;
    endpoint->submitted_last = &endpoint->submitted;
    for (; at != NULL; at = next) {
        next = at->next_submitted;
        keel_flow_begin(at);
    }
}

/* What ended well is taken off; its memory must not be touched any more. */
static void collect(void)
{
    for (uint32_t i = 0; i < world.running_count;) {
        struct running *at = &world.running[i];
        if (!at->operation->done || keel_operation_wait(at->operation, 0) != KEEL_OK) {
            i++;
            continue;
        }
        keel_free(at->memory);
        keel_free(at->into);
        *at = world.running[--world.running_count];
    }
}

static void open_group(void)
{
    struct keel_address addresses[RANKS] = {{0}};
    uint16_t shard_rank[SHARDS] = {0, 1, 1, 2, 3, 1};
    const struct keel_group_config config = {.epoch = ++world.epoch,
                                             .rank = ME,
                                             .rank_count = RANKS,
                                             .addresses = addresses,
                                             .shard_count = SHARDS,
                                             .shard_rank = shard_rank};
    struct keel_endpoint *endpoint = world.endpoint;
    KEEL_ASSERT(keel_group_open(endpoint, &config, &world.group) == KEEL_OK);
    endpoint->opening = false;
    endpoint->current = world.group;
    endpoint->seen_epoch = true;
    endpoint->current_epoch = world.epoch;
    world.group->waiting_last = &world.group->waiting;
    keel_session_group_opened(endpoint, world.group);
}

static void close_group(void)
{
    struct keel_group *group = world.group;
    uint64_t now = keel_now_ns();
    keel_session_group_closing(group, now);
    KEEL_ASSERT(keel_session_group_closed(group, now + KEEL_CLOSE_NS));
    world.endpoint->current = NULL;
    group->detached = true;
    keel_group_close(group);
    world.endpoint->closing = false;
    for (uint32_t i = 0; i < world.running_count; i++) {
        keel_free(world.running[i].memory);
        keel_free(world.running[i].into);
    }
    world.running_count = 0;
}

static void begin_world(uint8_t setup)
{
    memset(&world, 0, sizeof world);
    KEEL_ASSERT(keel_handshake_init() == KEEL_OK);
    KEEL_ASSERT(keel_alloc(1, sizeof *world.endpoint, &world.endpoint) == KEEL_OK);
    struct keel_endpoint *endpoint = world.endpoint;
    keel_mutex_init(&endpoint->lock);
    keel_cond_init(&endpoint->changed);
    endpoint->tick_ns = KEEL_NEVER;
    endpoint->submitted_last = &endpoint->submitted;
    endpoint->wake_fd = -1;
    endpoint->woken = true; /* nobody sleeps */
    endpoint->has_key = setup % 2 == 1;
    world.carrier.ops = &carrier_ops;
    world.carrier.calls = &keel_session_calls;
    world.carrier.context = endpoint;
    endpoint->lines.carriers[endpoint->lines.carrier_count++] = &world.carrier;
    world.epoch = 10;
    open_group();
}

static void end_world(void)
{
    close_group();
    keel_session_close_all(world.endpoint);
    for (uint32_t i = 0; i < world.line_count; i++) {
        KEEL_ASSERT(world.lines[i]->line.state == KEEL_LINE_CLOSED);
        keel_free(world.lines[i]);
    }
    keel_cond_fini(&world.endpoint->changed);
    keel_mutex_fini(&world.endpoint->lock);
    keel_free(world.endpoint);
}

/* ---- operations
 * -------------------------------------------------------------------------------------------- */

static void *take(uint64_t bytes)
{
    void *memory;
    KEEL_ASSERT(keel_alloc(1, bytes, &memory) == KEEL_OK);
    return memory;
}

static void begin_reduce(uint64_t sequence, uint64_t count, struct running *out)
{
    const float *parts[PARTS_MAX];
    uint32_t part_count = world.group->node_count[ME];
    KEEL_ASSERT(part_count <= PARTS_MAX);
    float *memory = take(count * part_count * sizeof(float));
    for (uint32_t i = 0; i < part_count; i++)
        parts[i] = memory + i * count;
    out->memory = memory;
    out->into = take(count * sizeof(float));
    KEEL_ASSERT(keel_group_reduce_begin(world.group, sequence, parts, part_count, out->into, count,
                                        &out->operation) == KEEL_OK);
}

static void begin_operation(struct fuzz_input *in)
{
    if (world.running_count == OPERATIONS)
        return;
    struct running *out = &world.running[world.running_count++];
    uint8_t kind = fuzz_take_u8(in);
    uint64_t sequence = fuzz_take_u8(in) % 16, bytes = fuzz_take_u16(in);
    uint32_t peer = fuzz_take_u8(in) % RANKS;
    enum keel_status status = KEEL_OK;
    *out = (struct running){0};
    if (kind >= 128)
        bytes *= 4;
    switch (kind % 5) {
    case 0:
        begin_reduce(sequence, bytes % FLOATS_MAX, out);
        break;
    case 1:
        out->into = take(bytes);
        status = keel_group_broadcast_begin(world.group, sequence, peer, out->into, bytes, &out->operation);
        break;
    case 2:
        out->memory = take(bytes);
        out->into = take(bytes * RANKS);
        status = keel_group_all_gather_begin(world.group, sequence, out->memory, bytes, out->into,
                                             &out->operation);
        break;
    case 3:
        out->memory = take(bytes);
        status = keel_group_send_begin(world.group, sequence, peer == ME ? 0 : peer, out->memory, bytes,
                                       &out->operation);
        break;
    default:
        out->into = take(bytes);
        status = keel_group_receive_begin(world.group, sequence, peer == ME ? 0 : peer, out->into, bytes,
                                          &out->operation);
    }
    KEEL_ASSERT(status == KEEL_OK);
    begin_submitted();
}

/* ---- what peers do
 * --------------------------------------------------------------------------------------------- */

static struct line *choose_line(struct fuzz_input *in)
{
    return world.line_count > 0 ? world.lines[fuzz_take_u8(in) % world.line_count] : NULL;
}

static uint32_t fill_handshake(struct fuzz_input *in, uint8_t *payload)
{
    struct keel_handshake handshake = {.epoch = world.epoch + fuzz_take_u8(in) % 3};
    if (fuzz_take_u8(in) % 4 == 3)
        handshake.epoch--;
    handshake.from = fuzz_take_u8(in) % (RANKS + 1);
    handshake.to = fuzz_take_u8(in) % 8 == 7 ? fuzz_take_u8(in) : ME;
    handshake.proof[0] = fuzz_take_u8(in);
    memcpy(payload, &handshake, sizeof handshake);
    return sizeof handshake;
}

/* The fabric has seen to it that `bytes` is what came, at most a chunk. */
static void give_message(struct line *line, struct fuzz_input *in)
{
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC,
                                   .kind = fuzz_take_u8(in) % (KEEL_MESSAGE_BYE + 2),
                                   .part = fuzz_take_u8(in) % 16,
                                   .epoch = world.epoch};
    uint8_t bits = fuzz_take_u8(in);
    message.sequence = fuzz_take_u8(in) % 16;
    message.lane = bits % 4;
    message.offset = fuzz_take_u16(in);
    if ((bits & 4) != 0)
        message.offset *= 4;
    if ((bits & 8) != 0)
        message.offset = fuzz_take_u16(in) % 8;
    if (bits >= 248)
        message.offset = UINT64_MAX - message.offset;
    if (bits % 64 == 63)
        message.epoch++;
    message.bytes = fuzz_take_u16(in);
    if ((bits & 16) != 0)
        message.bytes = message.bytes % 64 * 1024;
    bool shakes = message.kind >= KEEL_MESSAGE_CHALLENGE && message.kind <= KEEL_MESSAGE_WELCOME;
    uint8_t *payload = take(message.bytes > 128 ? message.bytes : 128);
    if (shakes && bits % 16 != 15)
        message.bytes = fill_handshake(in, payload);
    uint8_t *exact = take(message.bytes);
    memcpy(exact, payload, message.bytes);
    keel_session_calls.arrived(world.endpoint, &line->line, &message, exact);
    keel_free(exact);
    keel_free(payload);
}

static void complete_send(struct line *line)
{
    if (line->line.state != KEEL_LINE_OPEN || line->count == 0)
        return;
    void *owner = line->owners[0];
    line->line.bulk_in_flight -= line->lent[0] ? 1 : 0;
    line->count--;
    memmove(line->owners, line->owners + 1, line->count * sizeof line->owners[0]);
    memmove(line->lent, line->lent + 1, line->count * sizeof line->lent[0]);
    keel_session_calls.sent(world.endpoint, &line->line, owner);
}

static void call_us(void)
{
    struct keel_line *line = new_line();
    if (line == NULL)
        return;
    if (!keel_session_calls.asked(world.endpoint, line)) {
        keel_line_close(line);
        return;
    }
    line->state = KEEL_LINE_OPEN;
    keel_session_calls.opened(world.endpoint, line);
}

/* A peer proves itself, by calling or by answering. */
static void connect_peer(uint32_t rank)
{
    const struct keel_endpoint *endpoint = world.endpoint;
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC, .bytes = sizeof(struct keel_handshake)};
    const struct keel_handshake handshake = {.epoch = world.epoch, .from = rank, .to = ME};
    const struct keel_session *session = world.group->peers[rank].session;
    if (session == NULL) {
        call_us();
        session = endpoint->sessions;
        message.kind = KEEL_MESSAGE_HELLO;
    } else {
        message.kind = session->state == KEEL_SESSION_DIALING ? KEEL_MESSAGE_CHALLENGE : KEEL_MESSAGE_WELCOME;
    }
    if (session != NULL && session->link->state == KEEL_LINE_OPEN)
        keel_session_calls.arrived(world.endpoint, session->link, &message, (const uint8_t *)&handshake);
}

/* What the leg's rank would send next of that kind. */
static struct keel_message fitting(const struct keel_leg *leg, enum keel_message_kind kind)
{
    const struct keel_operation *operation = leg->operation;
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC,
                                   .kind = (uint16_t)kind,
                                   .epoch = world.epoch,
                                   .sequence = operation->sequence,
                                   .lane = operation->lane};
    uint64_t left = leg->into_bytes - leg->into_got, begun = leg->take_chunk * operation->chunk_floats;
    uint64_t mine = operation->mine.count > begun ? operation->mine.count - begun : 0;
    switch (kind) {
    case KEEL_MESSAGE_FIRST:
        message.part = (uint16_t)operation->kind;
        if (operation->kind == KEEL_OPERATION_SEND || operation->kind == KEEL_OPERATION_RECEIVE)
            message.part = KEEL_OPERATION_SEND + KEEL_OPERATION_RECEIVE - message.part;
        message.offset = operation->signature;
        if (operation->kind != KEEL_OPERATION_REDUCE)
            message.bytes = left <= KEEL_EAGER_BYTES ? (uint32_t)left : 0;
        else if (operation->eager)
            message.bytes = (uint32_t)(operation->mine.count * leg->take_nodes * sizeof(float));
        break;
    case KEEL_MESSAGE_GRANT:
        message.offset = leg->give_chunks;
        break;
    case KEEL_MESSAGE_PART:
        message.part = (uint16_t)leg->take_node;
        message.offset = leg->take_chunk;
        message.bytes =
            (uint32_t)((mine < operation->chunk_floats ? mine : operation->chunk_floats) * sizeof(float));
        break;
    default:
        message.offset = leg->into_got;
        message.bytes = left < KEEL_CHUNK_BYTES ? (uint32_t)left : KEEL_CHUNK_BYTES;
    }
    return message;
}

/* A peer that keeps to the rules, mostly. */
static void give_fitting(struct fuzz_input *in)
{
    static const enum keel_message_kind kinds[] = {KEEL_MESSAGE_FIRST, KEEL_MESSAGE_GRANT, KEEL_MESSAGE_PART,
                                                   KEEL_MESSAGE_BODY};
    uint32_t rank = fuzz_take_u8(in) % RANKS;
    if (rank == ME)
        return;
    const struct keel_session *session = world.group->peers[rank].session;
    if (session == NULL || session->state != KEEL_SESSION_UP) {
        connect_peer(rank);
        return;
    }
    uint8_t which = fuzz_take_u8(in), kind = fuzz_take_u8(in);
    if (world.running_count == 0 || session->link->state != KEEL_LINE_OPEN)
        return;
    const struct keel_leg *leg = &world.running[which % world.running_count].operation->legs[rank];
    if (!leg->used)
        return;
    struct keel_message message = fitting(leg, kinds[kind % 4]);
    if (kind >= 240)
        message.bytes = fuzz_take_u16(in);
    else if (kind >= 224)
        message.offset += fuzz_take_u8(in);
    uint8_t *payload = take(message.bytes);
    keel_session_calls.arrived(world.endpoint, session->link, &message, payload);
    keel_free(payload);
}

static void open_or_break(struct line *line, bool breaks)
{
    if (line->line.state == KEEL_LINE_CLOSED)
        return;
    if (breaks) {
        keel_session_calls.broke(world.endpoint, &line->line, "fuzz");
        KEEL_ASSERT(line->line.state == KEEL_LINE_CLOSED);
    } else if (line->line.state == KEEL_LINE_OPENING) {
        line->line.state = KEEL_LINE_OPEN;
        keel_session_calls.opened(world.endpoint, &line->line);
    }
}

/* With a key nobody can prove himself here: so nobody joins. */
static void check_joined(void)
{
    for (uint32_t rank = 0; rank < RANKS && world.endpoint->has_key; rank++)
        KEEL_ASSERT(world.group->peers[rank].state != KEEL_PEER_UP);
}

static void obey(uint8_t order, struct fuzz_input *in)
{
    struct line *line = choose_line(in);
    switch (order % 8) {
    case 0:
        begin_operation(in);
        break;
    case 1:
        call_us();
        break;
    case 2:
        if (line != NULL)
            open_or_break(line, order >= 224);
        break;
    case 3:
        if (line != NULL)
            complete_send(line);
        break;
    case 4:
        keel_session_tick(world.endpoint, keel_now_ns() + fuzz_take_u16(in) * UINT64_C(1000000));
        break;
    case 5:
        if (order >= 240) {
            close_group();
            open_group();
        } else if (order >= 200) {
            world.refusals = fuzz_take_u8(in) % 8;
        }
        break;
    case 6:
        give_fitting(in);
        break;
    default:
        if (line != NULL && line->line.state == KEEL_LINE_OPEN)
            give_message(line, in);
    }
    collect();
    check_joined();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    begin_world(fuzz_take_u8(&in));
    for (uint32_t orders = 0; in.at < in.bytes && orders < 400; orders++)
        obey(fuzz_take_u8(&in), &in);
    end_world();
    return 0;
}
