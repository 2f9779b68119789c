/* wire_fuzz.c - any bytes as a control message and as a view: refused, or within every limit that those who
 * use it as an index rely on; encoding it gives a message that decodes to the same. */
#include "fuzz.h"
#include "node_wire.h"
#include "view_delta.h"

static void check_worker(const struct keel_wire_worker *worker)
{
    KEEL_ASSERT((unsigned)worker->state < KEEL_WORKER_STATE_COUNT &&
                (unsigned)worker->cause < KEEL_CAUSE_COUNT);
    KEEL_ASSERT((unsigned)worker->failure < KEEL_STATUS_COUNT);
    KEEL_ASSERT(worker->address.bytes <= KEEL_ADDRESS_BYTES);
}

static void check_name(const struct keel_wire_view_name *name)
{
    KEEL_ASSERT(name->epoch > 0 && name->epoch <= KEEL_EPOCH_MAX);
    KEEL_ASSERT(name->bytes > 0 && name->bytes <= KEEL_VIEW_BYTES_MAX);
}

static void check_limits(const struct keel_wire_message *m)
{
    KEEL_ASSERT(m->kind >= KEEL_WIRE_STATUS && m->kind < KEEL_WIRE_KIND_COUNT);
    switch (m->kind) {
    case KEEL_WIRE_STATUS:
        KEEL_ASSERT(m->as.status.worker_count <= KEEL_WORKERS_PER_NODE);
        KEEL_ASSERT(m->as.status.silent_node < KEEL_NODES_MAX || m->as.status.silent_node == KEEL_RANK_NONE);
        for (uint8_t i = 0; i < m->as.status.worker_count; i++)
            check_worker(&m->as.status.workers[i]);
        KEEL_ASSERT(memchr(m->as.status.detail, '\0', sizeof m->as.status.detail) != NULL);
        break;
    case KEEL_WIRE_LEADER:
        KEEL_ASSERT((unsigned)m->as.leader.status < KEEL_STATUS_COUNT);
        KEEL_ASSERT(memchr(m->as.leader.detail, '\0', sizeof m->as.leader.detail) != NULL);
        break;
    case KEEL_WIRE_SHARD:
    case KEEL_WIRE_SHARD_ACK:
        KEEL_ASSERT(m->as.shard.local < KEEL_WORKERS_PER_NODE);
        break;
    case KEEL_WIRE_NOTE:
        KEEL_ASSERT(m->as.note.local < KEEL_WORKERS_PER_NODE && m->as.note.bytes <= KEEL_WIRE_NOTE_BYTES);
        break;
    case KEEL_WIRE_REGISTER:
        KEEL_ASSERT(m->as.reg.value_bytes <= KEEL_REGISTER_BYTES_MAX);
        KEEL_ASSERT(m->as.reg.part == 0 || m->as.reg.part < keel_wire_parts(m->as.reg.value_bytes));
        break;
    case KEEL_WIRE_VIEW:
        check_name(&m->as.view.name);
        KEEL_ASSERT(m->as.view.data_bytes <= KEEL_WIRE_VIEW_BYTES && m->as.view.source < KEEL_NODES_MAX);
        KEEL_ASSERT((uint32_t)m->as.view.have_count + m->as.view.lack_count <= KEEL_NODES_MAX);
        for (uint32_t i = 0; i < (uint32_t)m->as.view.have_count + m->as.view.lack_count; i++)
            KEEL_ASSERT(m->as.view.nodes[i] < KEEL_NODES_MAX);
        break;
    case KEEL_WIRE_PULL:
        check_name(&m->as.pull.name);
        break;
    case KEEL_WIRE_PART:
        check_name(&m->as.part.name);
        KEEL_ASSERT(m->as.part.part == 0 || m->as.part.part < keel_wire_parts(m->as.part.name.bytes));
        break;
    case KEEL_WIRE_PAST:
        KEEL_ASSERT(m->as.past.bytes <= KEEL_PAST_BYTES_MAX);
        break;
    default:
        break;
    }
}

static void try_message(const uint8_t *data, uint32_t bytes)
{
    static struct keel_wire_message first, second;
    static uint8_t a[KEEL_MESSAGE_BYTES], b[KEEL_MESSAGE_BYTES];
    if (!keel_wire_decode(data, bytes, &first))
        return;
    check_limits(&first);
    uint32_t a_bytes = keel_wire_encode(&first, a);
    KEEL_ASSERT(keel_wire_decode(a, a_bytes, &second));
    uint32_t b_bytes = keel_wire_encode(&second, b);
    KEEL_ASSERT(a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0);
}

static void try_view(const uint8_t *data, uint32_t bytes)
{
    static struct keel_view view;
    static uint8_t again[KEEL_VIEW_BYTES_MAX];
    if (!keel_view_decode(data, bytes, &view))
        return;
    KEEL_ASSERT(view.epoch == 0 || keel_view_valid(&view));
    KEEL_ASSERT(keel_view_encode(&view, again) == bytes && memcmp(again, data, bytes) == 0);
}

/* As what is other than in a view: what comes out is a view, and so is what is made of the two. */
static void try_delta(const uint8_t *data, uint32_t bytes)
{
    static struct keel_view old, next, again;
    static uint8_t delta[KEEL_VIEW_BYTES_MAX];
    if (old.epoch == 0) {
        old = (struct keel_view){.epoch = 3, .plan = 7, .member_count = 3, .shard_count = 4};
        for (uint16_t i = 0; i < 3; i++)
            old.members[i] = (struct keel_member){.rank = i, .node = (uint16_t)(i + 1)};
        KEEL_ASSERT(keel_view_valid(&old));
    }
    if (!keel_view_apply(&old, data, bytes, &next))
        return;
    KEEL_ASSERT(keel_view_valid(&next) && next.epoch > old.epoch);
    const uint32_t count = keel_view_delta(&old, &next, delta, sizeof delta);
    KEEL_ASSERT(count > 0 && keel_view_apply(&old, delta, count, &again));
    static uint8_t one[KEEL_VIEW_BYTES_MAX], other[KEEL_VIEW_BYTES_MAX];
    KEEL_ASSERT(keel_view_encode(&next, one) == keel_view_encode(&again, other));
    KEEL_ASSERT(memcmp(one, other, keel_view_encode(&next, one)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    try_message(data, (uint32_t)bytes);
    try_view(data, (uint32_t)bytes);
    try_delta(data, (uint32_t)bytes);
    return 0;
}
