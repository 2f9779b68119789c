/* peer_fuzz.c - any sequence of connections and messages from peers and strangers, while sums, broadcasts and
 * exchanges run: memory lent to operations is all that is touched, nobody unproven joins, and whatever was
 * begun can be closed.
 *
 * The fabric is this file: connections that open, break and complete as the input says. What the progress
 * thread does is done here in turn, on one thread. The input is a set-up byte and a list of orders; see
 * `obey`. */
#include "fabric.h"
#include "fuzz.h"
#include "group.h"
#include "handshake.h"
#include "rdm.h"
#include "shared.h"
#include <keel/memory.h>

enum { RANKS = 4, ME = 1, SHARDS = 6, LINES_MAX = 48, OPERATIONS = 24, PARTS_MAX = 8, FLOATS_MAX = 40000 };

struct connection {
    struct keel_connection connection; /* first: they are the same to the room */
    void *owners[KEEL_CONNECTION_SENDS];
    bool lent[KEEL_CONNECTION_SENDS];
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
    struct connection *backends[LINES_MAX];
    uint32_t line_count, refusals; /* of the fabric, to come */
    struct running running[OPERATIONS];
    uint32_t running_count;
    struct keel_connection_backend backend;
} world;

static struct keel_recorder *recorder;

/* ---- the fabric ---------------------------------------------------------------------------------------- */

static struct keel_connection *new_line(void)
{
    struct connection *connection;
    if (world.line_count == LINES_MAX || keel_alloc(1, sizeof *connection, &connection) != KEEL_OK)
        return NULL;
    keel_connection_backend_adopt(&world.backend, &connection->connection);
    world.backends[world.line_count++] = connection;
    return &connection->connection;
}

static enum keel_status dial(struct keel_connection_backend *backend, const struct keel_address *address,
                             void *owner, struct keel_connection **out)
{
    (void)backend;
    (void)address;
    struct keel_connection *connection = new_line();
    if (connection == NULL)
        return keel_fail(KEEL_PEER_LOST, "refused");
    connection->owner = owner;
    *out = connection;
    return KEEL_OK;
}

static void hang_up(struct keel_connection *connection)
{
    connection->bulk_in_flight = 0;
}

static enum keel_send send_message(struct keel_connection *given, struct keel_message *message,
                                   const void *payload, bool lent, void *owner, bool *out_retry)
{
    struct connection *connection = (struct connection *)(void *)given;
    uint8_t sum = 0;
    for (uint32_t i = 0; i < message->bytes; i++) /* all of it must be readable */
        sum ^= ((const volatile uint8_t *)payload)[i];
    (void)sum;
    KEEL_ASSERT(given->sealer != NULL || !world.backend.ops->exposed || !world.endpoint->has_key ||
                message->kind == KEEL_MESSAGE_CHALLENGE || message->kind == KEEL_MESSAGE_HELLO);
    if (connection->count == KEEL_CONNECTION_SENDS ||
        (lent && given->bulk_in_flight == KEEL_CONNECTION_BULK_SENDS))
        return KEEL_SEND_LATER;
    if (world.refusals > 0 && world.refusals-- > 0) {
        *out_retry = true;
        return world.refusals % 4 == 3 ? KEEL_SEND_BROKEN : KEEL_SEND_LATER;
    }
    if (message->bytes % 7 == 3) /* as a backend that copies */
        return KEEL_SEND_DONE;
    connection->owners[connection->count] = owner;
    connection->lent[connection->count++] = lent;
    given->bulk_in_flight += lent ? 1 : 0;
    return KEEL_SEND_OK;
}

static const struct keel_connection_backend_ops carrier_ops = {.dial = dial,
                                                               .send = send_message,
                                                               .hang_up = hang_up},
                                                exposed_ops = {.dial = dial,
                                                               .send = send_message,
                                                               .hang_up = hang_up,
                                                               .exposed = true};

/* The room's own backends are not linked. */
enum keel_status keel_device_find(const char *provider, const char *node, struct keel_provider_info *out)
{
    (void)provider;
    (void)node;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no fabric here");
}

enum keel_status keel_fabric_open(const struct keel_provider_info *device, bool seal_payload,
                                  struct keel_connection_backend **out)
{
    (void)device;
    (void)seal_payload;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no fabric here");
}

enum keel_status keel_rdm_open(const struct keel_provider_info *device, bool seal_payload,
                               struct keel_connection_backend **out)
{
    (void)device;
    (void)seal_payload;
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no fabric here");
}

enum keel_status keel_shared_open(struct keel_connection_backend **out)
{
    (void)out;
    return keel_fail(KEEL_UNSUPPORTED, "no shared memory here");
}

/* ---- the progress thread's work ------------------------------------------------------------------------ */

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
    keel_mutex_lock(&endpoint->lock);
    keel_endpoint_mail(endpoint);
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
    keel_cond_init(&endpoint->parked);
    endpoint->tick_ns = KEEL_NEVER;
    endpoint->submitted_last = &endpoint->submitted;
    endpoint->wake_fd = -1;
    endpoint->woken = true; /* nobody sleeps */
    endpoint->has_key = setup % 2 == 1;
    if (recorder == NULL) /* one for all: it leaves no file behind, and is not what is looked at here */
        KEEL_ASSERT(keel_recorder_open("/nowhere", &recorder) == KEEL_OK);
    endpoint->recorder = recorder;
    world.backend.ops = setup / 2 % 2 == 1 ? &exposed_ops : &carrier_ops;
    world.backend.calls = &keel_session_calls;
    world.backend.context = endpoint;
    endpoint->backends.backends[endpoint->backends.backend_count++] = &world.backend;
    world.epoch = 10;
    open_group();
}

static void end_world(void)
{
    close_group();
    keel_session_close_all(world.endpoint);
    for (uint32_t i = 0; i < world.line_count; i++) {
        KEEL_ASSERT(world.backends[i]->connection.state == KEEL_CONNECTION_CLOSED);
        keel_free(world.backends[i]);
    }
    keel_cond_fini(&world.endpoint->changed);
    keel_cond_fini(&world.endpoint->parked);
    keel_mutex_fini(&world.endpoint->lock);
    keel_free(world.endpoint);
}

/* ---- operations ---------------------------------------------------------------------------------------- */

static void *take(uint64_t bytes)
{
    void *memory;
    KEEL_ASSERT(keel_alloc(1, bytes, &memory) == KEEL_OK);
    return memory;
}

static enum keel_status begin_reduce(uint64_t sequence, uint64_t count, enum keel_order order,
                                     enum keel_algorithm algorithm, struct running *out)
{
    const void *parts[PARTS_MAX];
    uint32_t part_count = world.group->node_count;
    KEEL_ASSERT(part_count <= PARTS_MAX);
    float *memory = take(count * part_count * sizeof(float));
    for (uint32_t i = 0; i < part_count; i++)
        parts[i] = memory + i * count;
    out->memory = memory;
    out->into = take(count * sizeof(float));
    const struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                         .sequence = sequence,
                                         .element = KEEL_ELEMENT_F32,
                                         .order = order,
                                         .algorithm = algorithm,
                                         .count = count,
                                         .parts = parts,
                                         .part_count = part_count,
                                         .result = out->into};
    return keel_group_begin(world.group, &what, &out->operation);
}

/* Everything else that moves bytes: all that any kind could want is given. */
static enum keel_status begin_moving(enum keel_collective_kind kind, uint64_t sequence, uint64_t bytes,
                                     uint32_t peer, enum keel_algorithm algorithm, struct running *out)
{
    const uint64_t counts_in[RANKS] = {bytes, 0, bytes / 2, 7}, counts_out[RANKS] = {1, bytes, 0, bytes};
    out->memory = take((bytes + 8) * RANKS);
    out->into = take((bytes + 8) * RANKS);
    const void *parts[] = {out->memory};
    const struct keel_collective what = {.kind = kind,
                                         .sequence = sequence,
                                         .element = KEEL_ELEMENT_U8,
                                         .algorithm = algorithm,
                                         .root = peer,
                                         .count = bytes,
                                         .counts_in = counts_in,
                                         .counts_out = counts_out,
                                         .parts = parts,
                                         .part_count = 1,
                                         .result = out->into};
    return keel_group_begin(world.group, &what, &out->operation);
}

static void begin_operation(struct fuzz_input *in)
{
    if (world.running_count == OPERATIONS)
        return;
    struct running *out = &world.running[world.running_count];
    uint8_t choice = fuzz_take_u8(in), how = fuzz_take_u8(in);
    uint64_t sequence = fuzz_take_u8(in) % 16, bytes = fuzz_take_u16(in);
    uint32_t peer = fuzz_take_u8(in) % RANKS;
    enum keel_collective_kind kind = (enum keel_collective_kind)(KEEL_ALL_GATHER + choice % 10);
    enum keel_algorithm algorithm = (enum keel_algorithm)(how % KEEL_ALGORITHM_COUNT);
    enum keel_status status;
    *out = (struct running){0};
    if (choice >= 128)
        bytes *= 4;
    if (choice % 3 == 0)
        status = begin_reduce(sequence, bytes % FLOATS_MAX, how < 128 ? KEEL_ORDER_EXACT : KEEL_ORDER_NATIVE,
                              algorithm, out);
    else
        status = begin_moving(kind, sequence, bytes, peer, algorithm, out);
    if (status == KEEL_OK) {
        world.running_count++;
        return;
    }
    KEEL_ASSERT(status == KEEL_UNSUPPORTED || status == KEEL_INVALID ||
                (status == KEEL_REVOKED && keel_group_over(world.group))); /* a peer has revoked it */
    keel_free(out->memory);
    keel_free(out->into);
}

/* ---- what peers do ------------------------------------------------------------------------------------- */

static struct connection *choose_line(struct fuzz_input *in)
{
    return world.line_count > 0 ? world.backends[fuzz_take_u8(in) % world.line_count] : NULL;
}

static uint32_t fill_handshake(struct fuzz_input *in, uint8_t *payload)
{
    struct keel_handshake handshake = {.epoch = world.epoch + fuzz_take_u8(in) % 3};
    if (fuzz_take_u8(in) % 4 == 3)
        handshake.epoch--;
    handshake.from = fuzz_take_u8(in) % (RANKS + 1);
    handshake.to = fuzz_take_u8(in) % 8 == 7 ? fuzz_take_u8(in) : ME;
    handshake.proof[0] = fuzz_take_u8(in);
    handshake.challenge[0] = handshake.proof[0] / 2;
    if (handshake.proof[0] % 8 != 7)
        memcpy(handshake.members, world.group->members, sizeof handshake.members);
    memcpy(payload, &handshake, sizeof handshake);
    return sizeof handshake;
}

/* The fabric has seen to it that `bytes` is what came, at most a chunk. */
static void give_message(struct connection *connection, struct fuzz_input *in)
{
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC,
                                   .kind = fuzz_take_u8(in) % (KEEL_MESSAGE_REVOKE + 2),
                                   .part = fuzz_take_u8(in) % 4,
                                   .epoch = world.epoch};
    uint8_t bits = fuzz_take_u8(in);
    message.sequence = fuzz_take_u8(in) % 16;
    message.group = bits % 32 == 9 ? 7 : 0;
    message.offset = fuzz_take_u16(in);
    if ((bits & 4) != 0)
        message.offset <<= 32;
    if ((bits & 8) != 0)
        message.offset = (uint64_t)(fuzz_take_u8(in) % 8) << 32 | fuzz_take_u8(in) % 8;
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
    keel_session_calls.arrived(world.endpoint, &connection->connection, &message, exact);
    keel_free(exact);
    keel_free(payload);
}

static void complete_send(struct connection *connection)
{
    if (connection->connection.state != KEEL_CONNECTION_OPEN || connection->count == 0)
        return;
    void *owner = connection->owners[0];
    connection->connection.bulk_in_flight -= connection->lent[0] ? 1 : 0;
    connection->count--;
    memmove(connection->owners, connection->owners + 1, connection->count * sizeof connection->owners[0]);
    memmove(connection->lent, connection->lent + 1, connection->count * sizeof connection->lent[0]);
    keel_session_calls.sent(world.endpoint, &connection->connection, owner);
}

static void call_us(void)
{
    struct keel_connection *connection = new_line();
    if (connection == NULL)
        return;
    if (!keel_session_calls.asked(world.endpoint, connection)) {
        keel_connection_close(connection);
        return;
    }
    connection->state = KEEL_CONNECTION_OPEN;
    keel_session_calls.opened(world.endpoint, connection);
}

static const struct keel_session *session_of(uint32_t rank)
{
    return world.group->peers[rank] != NULL ? world.group->peers[rank]->session : NULL;
}

/* A peer proves itself, by calling or by answering. */
static void connect_peer(uint32_t rank)
{
    const struct keel_endpoint *endpoint = world.endpoint;
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC, .bytes = sizeof(struct keel_handshake)};
    struct keel_handshake handshake = {.epoch = world.epoch, .from = rank, .to = ME};
    const struct keel_session *session = session_of(rank);
    memcpy(handshake.members, world.group->members, sizeof handshake.members);
    if (session == NULL) {
        call_us();
        session = endpoint->sessions;
        message.kind = KEEL_MESSAGE_HELLO;
    } else {
        message.kind = session->state == KEEL_SESSION_DIALING ? KEEL_MESSAGE_CHALLENGE : KEEL_MESSAGE_WELCOME;
    }
    if (session != NULL && session->link->state == KEEL_CONNECTION_OPEN)
        keel_session_calls.arrived(world.endpoint, session->link, &message, (const uint8_t *)&handshake);
}

/* What the flow's rank would send of that kind, or nearly; fills the payload, which has room for a chunk. */
static struct keel_message fitting(const struct keel_flow *flow, enum keel_message_kind kind, uint8_t which,
                                   uint8_t *payload)
{
    const struct keel_operation *operation = flow->operation;
    struct keel_message message = {.magic = KEEL_MESSAGE_MAGIC,
                                   .kind = (uint16_t)kind,
                                   .part = operation->lane,
                                   .epoch = world.epoch,
                                   .sequence = operation->sequence};
    struct keel_signature signature = operation->signature;
    uint64_t comes = flow->take_bytes;
    uint32_t messages = flow->receive_count;
    uint64_t block = messages > 0 ? comes / messages : 0;
    uint32_t segment = operation->lowest + which % operation->window;
    uint64_t before = (uint64_t)segment * operation->chunk_bytes, left = block > before ? block - before : 0;
    signature.give_bytes = comes;
    signature.take_bytes = flow->give_bytes;
    if (signature.kind == KEEL_SEND || signature.kind == KEEL_RECEIVE)
        signature.kind = (uint8_t)(KEEL_SEND + KEEL_RECEIVE - signature.kind);
    switch (kind) {
    case KEEL_MESSAGE_FIRST:
        memcpy(payload, &signature, sizeof signature);
        message.offset = (uint64_t)flow->give_segments << 32;
        message.bytes = sizeof signature;
        if (which % 2 == 1 && comes <= 8192) {
            message.offset |= messages;
            message.bytes += (uint32_t)comes;
        }
        break;
    case KEEL_MESSAGE_GRANT:
        message.offset = (uint64_t)flow->give_segments << 32;
        break;
    case KEEL_MESSAGE_DIFFER:
        message.bytes = sizeof(struct keel_differ);
        break;
    default:
        message.offset = (uint64_t)segment << 32 | (messages > 0 ? which / 8 % messages : 0);
        message.bytes = left < operation->chunk_bytes ? (uint32_t)left : operation->chunk_bytes;
    }
    return message;
}

/* A peer that keeps to the rules, mostly. */
static void give_fitting(struct fuzz_input *in)
{
    static const enum keel_message_kind kinds[] = {KEEL_MESSAGE_FIRST,  KEEL_MESSAGE_GRANT, KEEL_MESSAGE_DATA,
                                                   KEEL_MESSAGE_DATA,   KEEL_MESSAGE_FIRST, KEEL_MESSAGE_DATA,
                                                   KEEL_MESSAGE_DIFFER, KEEL_MESSAGE_DATA};
    uint32_t rank = fuzz_take_u8(in) % RANKS;
    if (rank == ME)
        return;
    const struct keel_session *session = session_of(rank);
    if (session == NULL || session->state != KEEL_SESSION_UP) {
        connect_peer(rank);
        return;
    }
    uint8_t which = fuzz_take_u8(in), kind = fuzz_take_u8(in), detail = fuzz_take_u8(in);
    if (world.running_count == 0 || session->link->state != KEEL_CONNECTION_OPEN)
        return;
    const struct keel_operation *operation = world.running[which % world.running_count].operation;
    const struct keel_flow *flow = NULL;
    for (uint32_t k = 0; k < operation->flow_count; k++)
        if (operation->flows[k].rank == rank)
            flow = &operation->flows[k];
    if (flow == NULL)
        return;
    uint8_t *payload = take(KEEL_CHUNK_BYTES);
    struct keel_message message = fitting(flow, kinds[kind % 8], detail, payload);
    if (kind >= 240)
        message.bytes = fuzz_take_u16(in);
    else if (kind >= 224)
        message.offset += fuzz_take_u8(in);
    else if (kind >= 216 && message.bytes > 0)
        payload[detail % message.bytes] ^= 1;
    uint8_t *exact = take(message.bytes);
    memcpy(exact, payload, message.bytes);
    keel_session_calls.arrived(world.endpoint, session->link, &message, exact);
    keel_free(exact);
    keel_free(payload);
}

static void open_or_break(struct connection *connection, bool breaks)
{
    if (connection->connection.state == KEEL_CONNECTION_CLOSED)
        return;
    if (breaks) {
        keel_session_calls.broke(world.endpoint, &connection->connection, "fuzz");
        KEEL_ASSERT(connection->connection.state == KEEL_CONNECTION_CLOSED);
    } else if (connection->connection.state == KEEL_CONNECTION_OPENING) {
        connection->connection.state = KEEL_CONNECTION_OPEN;
        keel_session_calls.opened(world.endpoint, &connection->connection);
    }
}

/* With a key nobody can prove himself here: so nobody joins. */
static void check_joined(void)
{
    for (uint32_t rank = 0; rank < RANKS && world.endpoint->has_key; rank++)
        KEEL_ASSERT(world.group->peers[rank] == NULL || world.group->peers[rank]->state != KEEL_PEER_UP);
}

static void obey(uint8_t order, struct fuzz_input *in)
{
    struct connection *connection = choose_line(in);
    switch (order % 8) {
    case 0:
        begin_operation(in);
        break;
    case 1:
        call_us();
        break;
    case 2:
        if (connection != NULL)
            open_or_break(connection, order >= 224);
        break;
    case 3:
        if (connection != NULL)
            complete_send(connection);
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
        if (connection != NULL && connection->connection.state == KEEL_CONNECTION_OPEN)
            give_message(connection, in);
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
