/* node_fuzz.c - any sequence of messages and local events to a launcher or an agent: no assertion of the
 * control plane fails, what it sends is well formed, its epoch never goes back, and it asks only for what can
 * be.
 *
 * Who sends holds the key, so what it says may be a lie, yet well formed. The input is a set-up byte and then
 * a list of orders, each a byte and what it takes; see `obey`. Messages come as bytes of the input, or
 * shaped: fields of small numbers, so that they mean something, with a few bytes changed behind the encoder's
 * back. */
#include "fuzz.h"
#include "node_state.h"
#include "view_delta.h"

enum { NODES = 4, LOCALS = 2, STEPS_MAX = 400, FROM_MAX = 6 };

static struct world {
    struct keel_node *node;
    struct keel_node_config config;
    uint64_t now_ns, random;
    bool running[LOCALS], finished;
    struct keel_ballot ballot; /* newest that it asked the holders with */
    uint8_t disk[KEEL_REGISTER_STORE_BYTES];
    uint32_t disk_bytes;
} world;

/* By ranks. */
static const uint64_t plans[] = {0, 0, 22, 23};

/* ---- effects ------------------------------------------------------------------------------------------- */

static uint64_t on_random(void *context)
{
    (void)context;
    world.random = world.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return world.random;
}

static void on_send(void *context, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    static struct keel_wire_message message;
    (void)context;
    KEEL_ASSERT(node < KEEL_NODES_MAX && bytes <= KEEL_MESSAGE_BYTES);
    KEEL_ASSERT(node != world.config.node || world.node->term.role == KEEL_LEADS);
    KEEL_ASSERT(keel_wire_decode(data, bytes, &message));
    if (message.kind == KEEL_WIRE_REGISTER && message.as.reg.head.kind <= KEEL_REGISTER_ACCEPT)
        world.ballot = message.as.reg.head.ballot;
}

static void on_timer(void *context, uint64_t deadline_ns)
{
    (void)context;
    KEEL_ASSERT(deadline_ns > world.now_ns);
}

static bool on_persist(void *context, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    KEEL_ASSERT(bytes <= sizeof world.disk);
    memcpy(world.disk, data, bytes);
    world.disk_bytes = bytes;
    return true;
}

static void on_tell_view(void *context, uint8_t local, const struct keel_view *view)
{
    (void)context;
    KEEL_ASSERT(local < LOCALS && keel_view_valid(view));
}

static void on_local(void *context, uint8_t local)
{
    (void)context;
    KEEL_ASSERT(local < LOCALS);
}

static void on_worker_start(void *context, uint8_t local, uint32_t incarnation)
{
    (void)context;
    (void)incarnation;
    KEEL_ASSERT(local < LOCALS && !world.running[local]);
    world.running[local] = true;
}

static void on_node_start(void *context, uint16_t node, uint32_t incarnation)
{
    (void)context;
    KEEL_ASSERT(node > 0 && node < NODES && incarnation < UINT32_C(1) << 24);
}

static void on_commit(void *context, uint64_t step, uint64_t attempt, const struct keel_shard_summary *shards,
                      uint32_t count)
{
    (void)context;
    const struct keel_node *node = world.node;
    const bool last = step + 1 == world.config.last_step && attempt == node->leader->before.epoch;
    KEEL_ASSERT((attempt == node->view.epoch || last) && count > 0 && count <= KEEL_MEMBERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        KEEL_ASSERT(shards[i].rank < count);
}

static void on_drop(void *context, uint64_t step, uint64_t attempt, const struct keel_bitset *ranks)
{
    (void)context;
    (void)step;
    KEEL_ASSERT(attempt <= world.node->view.epoch && keel_bitset_count(ranks) > 0);
}

static void on_step(void *context, const struct keel_step_record *record)
{
    (void)context;
    KEEL_ASSERT(record->step >= world.config.first_step && record->step < world.config.last_step);
}

static void on_mismatch(void *context, const struct keel_step_record *a, const struct keel_step_record *b)
{
    (void)context;
    KEEL_ASSERT(a->step == b->step);
}

static void on_shortage(void *context, uint16_t ranks, uint16_t fewest)
{
    (void)context;
    KEEL_ASSERT(ranks > 0 && plans[ranks] == 0 && plans[fewest] != 0);
}

static void on_view(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                    enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns)
{
    (void)context;
    KEEL_ASSERT(alive_ns <= evidence_ns);
    KEEL_ASSERT(keel_view_valid(new_view) && new_view->epoch > old_view->epoch);
    KEEL_ASSERT((unsigned)cause < KEEL_CAUSE_COUNT);
}

static void on_note(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes)
{
    (void)context;
    (void)data;
    KEEL_ASSERT(node < KEEL_NODES_MAX && local < KEEL_WORKERS_PER_NODE && bytes <= KEEL_WIRE_NOTE_BYTES);
}

static void *on_lead_place(void *context, size_t bytes)
{
    static struct keel_leader place;
    (void)context;
    KEEL_ASSERT(bytes == sizeof place);
    return &place;
}

static uint32_t on_domain(void *context, uint16_t node)
{
    (void)context;
    return node / 2;
}

static void on_drain(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest)
{
    (void)context;
    KEEL_ASSERT(node > 0 && node < KEEL_NODES_MAX && news <= KEEL_DRAIN_HOLDS);
    KEEL_ASSERT((news != KEEL_DRAIN_WAITS && news != KEEL_DRAIN_HOLDS) || ranks < fewest);
}

static void on_finish(void *context, enum keel_status status, const char *detail)
{
    (void)context;
    KEEL_ASSERT(!world.finished && (unsigned)status < KEEL_STATUS_COUNT && detail != NULL);
    world.finished = true;
}

static void on_trace(void *context, const char *line)
{
    (void)context;
    KEEL_ASSERT(strlen(line) < KEEL_NODE_TEXT_BYTES);
}

static int give(const struct keel_node_event *event)
{
    static _Alignas(64) uint8_t room[24 * sizeof(struct keel_view)];
    KEEL_ASSERT(sizeof room == keel_node_room_bytes());
    const struct keel_env env = {.room = room,
                                 .now_ns = world.now_ns,
                                 .random = on_random,
                                 .send = on_send,
                                 .timer = on_timer,
                                 .persist = on_persist,
                                 .tell_view = on_tell_view,
                                 .tell_stop = on_local,
                                 .worker_start = on_worker_start,
                                 .worker_kill = on_local,
                                 .node_start = on_node_start,
                                 .snapshot_commit = on_commit,
                                 .snapshot_drop = on_drop,
                                 .step_commit = on_step,
                                 .mismatch = on_mismatch,
                                 .view_change = on_view,
                                 .shortage = on_shortage,
                                 .note = on_note,
                                 .lead_place = on_lead_place,
                                 .domain = on_domain,
                                 .drain = on_drain,
                                 .finish = on_finish,
                                 .trace = on_trace};
    return keel_node_step(world.node, &env, event);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void start(const uint8_t *disk, uint32_t bytes)
{
    KEEL_ASSERT(keel_node_init(world.node, &world.config) == KEEL_OK);
    memset(world.running, 0, sizeof world.running);
    world.finished = false;
    const struct keel_node_event event = {.kind = KEEL_EVENT_START, .data = disk, .bytes = bytes};
    KEEL_ASSERT(give(&event) == KEEL_OK);
}

static void begin(uint8_t setup)
{
    struct keel_node *node = world.node;
    if (node == NULL)
        node = calloc(1, keel_node_bytes(&(struct keel_node_config){.launcher = true}));
    KEEL_ASSERT(node != NULL);
    memset(&world, 0, sizeof world);
    world.node = node;
    world.now_ns = UINT64_C(1000000000);
    bool launcher = (setup & 1) == 0;
    world.config = (struct keel_node_config){.node = launcher ? 0 : 1,
                                             .node_count = NODES,
                                             .holder_count = (setup & 2) != 0 ? 3 : 1,
                                             .worker_count = launcher ? 0 : LOCALS,
                                             .rank_count = 3,
                                             .spare_count = (setup & 4) != 0 ? 3 : 0,
                                             .shard_count = 8,
                                             .plans = plans,
                                             .timeout_ns = UINT64_C(400000000),
                                             .incarnation = 1,
                                             .first_step = 1,
                                             .last_step = STEPS_MAX,
                                             .respawn = (setup & 8) != 0,
                                             .launcher = launcher};
    start(NULL, 0);
}

/* The process begins anew, with what it stored, or with that damaged. */
static void start_again(struct fuzz_input *in)
{
    uint8_t disk[KEEL_REGISTER_STORE_BYTES];
    memcpy(disk, world.disk, sizeof disk);
    uint32_t bytes = world.disk_bytes, change = fuzz_take_u8(in);
    if (bytes > 0 && change % 4 == 3)
        disk[fuzz_take_u16(in) % bytes] ^= fuzz_take_u8(in);
    world.config.incarnation++;
    start(disk, bytes);
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static void give_message(uint16_t from, const uint8_t *data, uint32_t bytes)
{
    uint64_t epoch = world.node->view.epoch;
    const struct keel_node_event event = {
        .kind = KEEL_EVENT_MESSAGE, .node = from, .data = data, .bytes = bytes};
    (void)give(&event);
    KEEL_ASSERT(world.node->view.epoch >= epoch);
}

static struct keel_step_record take_record(struct fuzz_input *in)
{
    return (struct keel_step_record){
        .step = fuzz_take_u8(in), .loss_bits = fuzz_take_u8(in) % 2, .epoch = fuzz_take_u8(in) % 8};
}

static struct keel_address take_address(struct fuzz_input *in)
{
    return (struct keel_address){.bytes = fuzz_take_u8(in) % 9, .data = {fuzz_take_u8(in)}};
}

static struct keel_ballot take_ballot(struct fuzz_input *in)
{
    uint8_t bits = fuzz_take_u8(in);
    if (bits % 2 == 0)
        return world.ballot;
    return (struct keel_ballot){.counter = bits == 255 ? UINT64_MAX : bits, .node = fuzz_take_u8(in) % 4};
}

static void shape_status(struct fuzz_input *in, struct keel_wire_status *status)
{
    uint8_t bits = fuzz_take_u8(in);
    if ((bits & 64) != 0)
        status->term = take_ballot(in);
    status->next_step = (bits & 128) != 0 ? fuzz_take_u8(in) : 0;
    status->stopping = bits % 32 == 9;
    status->incarnation = fuzz_take_u8(in) % 4;
    status->sequence = fuzz_take_u16(in);
    status->ended = bits % 8 == 7;
    status->disk = bits % 16 == 3 ? KEEL_DISK_NONE : fuzz_take_u8(in) % 3;
    status->silent_node = (bits & 8) != 0 ? fuzz_take_u8(in) % FROM_MAX : KEEL_RANK_NONE;
    status->first_record = (bits & 16) != 0 ? fuzz_take_u8(in) : UINT64_MAX;
    status->has_newest = (bits & 32) != 0;
    if (status->has_newest)
        status->newest = take_record(in);
    status->worker_count = fuzz_take_u8(in) % (LOCALS + 2);
    for (uint8_t i = 0; i < status->worker_count; i++)
        status->workers[i] = (struct keel_wire_worker){
            .incarnation = status->incarnation << 8 | fuzz_take_u8(in) % 4,
            .state = (enum keel_worker_state)(fuzz_take_u8(in) % KEEL_WORKER_STATE_COUNT),
            .cause = (enum keel_cause)(fuzz_take_u8(in) % KEEL_CAUSE_COUNT),
            .failure = (enum keel_status)(fuzz_take_u8(in) % KEEL_STATUS_COUNT),
            .sent_epoch = fuzz_take_u8(in) % 8,
            .progress = fuzz_take_u8(in),
            .accused_epoch = fuzz_take_u8(in) % 8,
            .accused_rank = fuzz_take_u8(in) % 8,
            .address = take_address(in)};
}

static void shape_holders(struct fuzz_input *in, struct keel_view_holders *holders)
{
    const uint8_t bits = fuzz_take_u8(in);
    *holders = (struct keel_view_holders){.count = (uint8_t)((bits & 3) == 0 ? 0 : bits % 2 == 0 ? 3 : 1)};
    for (uint8_t i = 0; i < holders->count; i++)
        holders->at[i] =
            (struct keel_view_holder){.node = (uint16_t)((bits / 4 + i) % FROM_MAX), .disk = bits / 128};
}

/* A view that the launcher could have made of these members. */
static void shape_view(struct fuzz_input *in, struct keel_view *view)
{
    struct keel_member joins[4];
    memset(joins, 0, sizeof joins);
    uint16_t count = (uint16_t)(1 + fuzz_take_u8(in) % 4);
    for (uint16_t i = 0; i < count; i++) {
        joins[i].node = (uint16_t)(1 + i / 2);
        joins[i].local = (uint8_t)(i % 2);
        joins[i].incarnation = 256 + fuzz_take_u8(in) % 4U;
        joins[i].data = take_address(in);
    }
    static const uint64_t every[] = {0, 21, 22, 23, 24}; /* of this job, and of others */
    const struct keel_view old = {.epoch = fuzz_take_u8(in) % 8};
    const struct keel_view_change change = {.joins = joins,
                                            .join_count = count,
                                            .rank_count = (uint16_t)(1 + fuzz_take_u8(in) % 4),
                                            .shard_count = (uint16_t)(1 + fuzz_take_u8(in) % 9),
                                            .plans = every};
    KEEL_ASSERT(keel_view_next(&old, &change, view));
    shape_holders(in, &view->before);
    shape_holders(in, &view->holders);
}

static void shape_register(struct fuzz_input *in, struct keel_wire_register *message)
{
    static struct keel_view view;
    struct keel_register_head *reg = &message->head;
    reg->kind = (enum keel_register_kind)(KEEL_REGISTER_PREPARE + fuzz_take_u8(in) % 4);
    reg->ok = fuzz_take_u8(in) % 2 == 0;
    reg->disk = fuzz_take_u8(in) % 3 / 2;
    reg->ballot = take_ballot(in);
    reg->promised = take_ballot(in);
    if (reg->kind != KEEL_REGISTER_ACCEPT && fuzz_take_u8(in) % 2 == 0)
        return;
    reg->accepted = take_ballot(in);
    shape_view(in, &view);
    message->value_bytes = keel_view_encode(&view, message->data);
}

static void shape_lead(struct fuzz_input *in, struct keel_wire_leader *leader)
{
    uint8_t bits = fuzz_take_u8(in);
    if ((bits & 64) != 0)
        leader->term = take_ballot(in);
    leader->first_step = bits & 3;
    leader->next_step = leader->note = fuzz_take_u8(in);
    leader->lacks_to = (bits & 8) != 0 ? UINT64_MAX : fuzz_take_u8(in);
    leader->missing = (bits & 1) != 0;
    leader->stop = (bits & 2) != 0;
    leader->end = bits % 16 == 12;
    leader->status = (enum keel_status)(fuzz_take_u8(in) % KEEL_STATUS_COUNT);
}

/* Of a view that is right, in most cases: its name, and the view or what is other in it. */
static void shape_name(struct fuzz_input *in, struct keel_view *view, struct keel_wire_view_name *name,
                       uint8_t bytes[KEEL_VIEW_BYTES_MAX])
{
    shape_view(in, view);
    name->epoch = view->epoch;
    name->bytes = keel_view_encode(view, bytes);
    name->digest = keel_view_digest(bytes, name->bytes);
}

static void shape_announcement(struct fuzz_input *in, struct keel_wire_view *out)
{
    static struct keel_view view;
    static uint8_t bytes[KEEL_VIEW_BYTES_MAX];
    const uint8_t bits = fuzz_take_u8(in);
    shape_name(in, &view, &out->name, bytes);
    out->source = bits % FROM_MAX;
    if ((bits & 64) != 0) {
        out->data_bytes = (uint16_t)out->name.bytes;
        memcpy(out->data, bytes, out->name.bytes);
    } else if ((bits & 128) != 0) {
        out->base = world.node->view.epoch;
        out->data_bytes = (uint16_t)keel_view_delta(&world.node->view, &view, out->data, sizeof out->data);
    }
    out->have_count = bits % 3;
    out->lack_count = bits / 3 % 3;
    for (uint32_t i = 0; i < (uint32_t)out->have_count + out->lack_count; i++)
        out->nodes[i] = fuzz_take_u8(in) % FROM_MAX;
}

static void shape_pull(struct fuzz_input *in, struct keel_wire_pull *out)
{
    out->name = world.node->news.name;
    if (out->name.epoch == 0 || fuzz_take_u8(in) % 4 == 0)
        out->name = (struct keel_wire_view_name){.epoch = 1 + fuzz_take_u8(in) % 8U, .bytes = 100};
    out->first = fuzz_take_u8(in) % 4;
    out->parts = fuzz_take_u8(in);
}

/* Of the view that is fetched, or of another. */
static void shape_part(struct fuzz_input *in, struct keel_wire_part *out)
{
    static struct keel_view view;
    shape_name(in, &view, &out->name, out->data);
    if (world.node->fetch.name.epoch != 0 && fuzz_take_u8(in) % 4 == 0)
        out->name = world.node->fetch.name;
}

static void shape(struct fuzz_input *in, struct keel_wire_message *message)
{
    memset(message, 0, sizeof *message);
    message->kind = (enum keel_wire_kind)(1 + fuzz_take_u8(in) % (KEEL_WIRE_KIND_COUNT - 1));
    message->epoch = fuzz_take_u8(in) % 8;
    switch (message->kind) {
    case KEEL_WIRE_STATUS:
        shape_status(in, &message->as.status);
        break;
    case KEEL_WIRE_LEADER:
        shape_lead(in, &message->as.leader);
        break;
    case KEEL_WIRE_STEP:
        message->as.step = take_record(in);
        break;
    case KEEL_WIRE_SHARD:
    case KEEL_WIRE_SHARD_ACK:
        message->as.shard = (struct keel_wire_shard){
            .local = fuzz_take_u8(in) % 3, .step = fuzz_take_u8(in), .attempt = fuzz_take_u8(in) % 8};
        message->as.shard.summary.rank = fuzz_take_u8(in) % 8;
        break;
    case KEEL_WIRE_NOTE:
        message->as.note.number = message->epoch;
        message->as.note.bytes = fuzz_take_u16(in) % (KEEL_WIRE_NOTE_BYTES + 1);
        break;
    case KEEL_WIRE_REGISTER:
        shape_register(in, &message->as.reg);
        break;
    case KEEL_WIRE_VIEW:
        shape_announcement(in, &message->as.view);
        break;
    case KEEL_WIRE_PULL:
        shape_pull(in, &message->as.pull);
        break;
    case KEEL_WIRE_PART:
        shape_part(in, &message->as.part);
        break;
    case KEEL_WIRE_PAST:
        message->as.past.step = fuzz_take_u8(in);
        message->as.past.bytes = fuzz_take_u16(in) % (KEEL_PAST_BYTES_MAX + 1);
        break;
    case KEEL_WIRE_AWAY:
        message->as.away.version = fuzz_take_u8(in);
        message->as.away.count = fuzz_take_u8(in) % NODES;
        for (uint16_t i = 0; i < message->as.away.count; i++)
            message->as.away.nodes[i] = (uint16_t)(i + 1);
        break;
    default:
        break;
    }
}

static void send_shaped(struct fuzz_input *in)
{
    static struct keel_wire_message message;
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    uint16_t from = fuzz_take_u8(in) % FROM_MAX;
    shape(in, &message);
    uint32_t count = keel_wire_encode(&message, bytes);
    for (uint8_t flips = fuzz_take_u8(in) % 4; flips > 1; flips--) {
        uint32_t at = fuzz_take_u16(in) % count;
        bytes[at] ^= fuzz_take_u8(in);
    }
    give_message(from, bytes, count);
}

static void send_raw(struct fuzz_input *in)
{
    uint16_t from = fuzz_take_u8(in);
    size_t wanted = fuzz_take_u16(in), left = in->bytes - in->at;
    uint32_t bytes = (uint32_t)(wanted < left ? wanted : left);
    give_message(from, in->data + in->at, bytes);
    in->at += bytes;
}

/* ---- what happens here --------------------------------------------------------------------------------- */

static void local_event(struct fuzz_input *in)
{
    static const uint8_t text[] = "{\"a\":1}";
    static const enum keel_event_kind kinds[] = {
        KEEL_EVENT_WORKER_READY, KEEL_EVENT_WORKER_BEAT,    KEEL_EVENT_WORKER_STEP, KEEL_EVENT_WORKER_SHARD,
        KEEL_EVENT_WORKER_EXIT,  KEEL_EVENT_WORKER_ACCUSES, KEEL_EVENT_NODE_EXIT,   KEEL_EVENT_WORKER_DONE,
        KEEL_EVENT_WORKER_NOTE,  KEEL_EVENT_WORKER_FAILED,  KEEL_EVENT_DRAIN};
    struct keel_node_event event = {.kind = kinds[fuzz_take_u8(in) % (sizeof kinds / sizeof kinds[0])],
                                    .local = fuzz_take_u8(in) % LOCALS,
                                    .node = fuzz_take_u8(in) % NODES,
                                    .rank = fuzz_take_u8(in) % 8,
                                    .cause = (enum keel_cause)(fuzz_take_u8(in) % KEEL_CAUSE_COUNT),
                                    .value = fuzz_take_u8(in),
                                    .attempt = fuzz_take_u8(in) % 8,
                                    .address = take_address(in),
                                    .data = text,
                                    .bytes = sizeof text - 1};
    const struct keel_step_record record = take_record(in);
    const struct keel_shard_summary summary = {.rank = event.rank, .record_count = 1};
    event.record = &record;
    event.summary = &summary;
    if (event.kind == KEEL_EVENT_WORKER_FAILED)
        event.value %= KEEL_STATUS_COUNT;
    if (event.kind == KEEL_EVENT_DRAIN)
        event.value %= 2;
    bool of_worker = event.kind != KEEL_EVENT_NODE_EXIT && event.kind != KEEL_EVENT_DRAIN;
    if (of_worker && !world.running[event.local])
        return; /* the environment promises this */
    if (event.kind == KEEL_EVENT_WORKER_EXIT)
        world.running[event.local] = false;
    (void)give(&event);
}

static void tick(uint64_t after_ns)
{
    world.now_ns += after_ns;
    const struct keel_node_event event = {.kind = KEEL_EVENT_TICK};
    (void)give(&event);
}

static void obey(uint8_t order, struct fuzz_input *in)
{
    switch (order % 8) {
    case 0:
        tick(UINT64_C(1000000) * fuzz_take_u8(in) * (order >= 240 ? 10 : 1));
        break;
    case 1:
        send_raw(in);
        break;
    case 2:
    case 3:
        local_event(in);
        break;
    case 4:
        if (order >= 200)
            start_again(in);
        break;
    case 5:
        if (order >= 200) {
            const struct keel_node_event event = {.kind = KEEL_EVENT_STOP};
            (void)give(&event);
        }
        break;
    default:
        send_shaped(in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct fuzz_input in = {.data = data, .bytes = bytes};
    begin(fuzz_take_u8(&in));
    for (uint32_t orders = 0; in.at < in.bytes && orders < 500; orders++)
        obey(fuzz_take_u8(&in), &in);
    return 0;
}
