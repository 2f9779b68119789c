/* node_wire.c - see node_wire.h.
 *
 * One function per kind writes, one reads; `flow` visits the fields of plain records in both directions, so
 * that the two cannot disagree. */
#include "node_wire.h"

#include "wire_bytes.h"
#include <stddef.h>
#include <string.h>

#define WIRE_MAGIC UINT32_C(0x414e454b) /* "KENA": the digit is the version */

enum { KIND_AT = 4, HEAD_BYTES = 13, RECORD_BYTES = 136, WORKER_BYTES = 38 + KEEL_ADDRESS_BYTES };

_Static_assert(HEAD_BYTES + 70 + RECORD_BYTES + KEEL_WORKERS_PER_NODE * WORKER_BYTES +
                       KEEL_WIRE_DETAIL_BYTES <
                   KEEL_MESSAGE_BYTES,
               "a status fits");
_Static_assert(HEAD_BYTES + 36 + KEEL_WIRE_VIEW_BYTES + 2 * KEEL_NODES_MAX <= KEEL_MESSAGE_BYTES,
               "what is other in a view fits, with all to whom it is handed on");
_Static_assert(HEAD_BYTES + 10 + 2 * KEEL_NODES_MAX <= KEEL_MESSAGE_BYTES,
               "all nodes that are to be away fit");
_Static_assert(HEAD_BYTES + 68 + KEEL_WIRE_PART_BYTES <= KEEL_MESSAGE_BYTES, "a part fits");
_Static_assert((int)KEEL_WIRE_PARTS_MAX <= 256 && (int)KEEL_WIRE_PARTS_MAX <= (int)KEEL_BITSET_BITS,
               "a part's number is a byte, and parts make a set");

/* ---- both directions ----------------------------------------------------------------------------------- */

struct flow {
    struct keel_writer *w; /* one of the two is NULL */
    struct keel_wire_reader *r;
};

static uint64_t flow_number(struct flow *f, uint64_t value, uint32_t width_bytes)
{
    if (f->w) {
        keel_writer_number(f->w, value, width_bytes);
        return value;
    }
    return keel_reader_number(f->r, width_bytes);
}

static void flow_u64(struct flow *f, uint64_t *value)
{
    *value = flow_number(f, *value, 8);
}

static void flow_u32(struct flow *f, uint32_t *value)
{
    *value = (uint32_t)flow_number(f, *value, 4);
}

static void flow_u16(struct flow *f, uint16_t *value)
{
    *value = (uint16_t)flow_number(f, *value, 2);
}

static void flow_u8(struct flow *f, uint8_t *value)
{
    *value = (uint8_t)flow_number(f, *value, 1);
}

static void refuse(struct flow *f)
{
    if (f->r)
        f->r->failed = true;
}

/* A number below `limit`, in two bytes. */
static uint32_t flow_choice(struct flow *f, uint32_t value, uint32_t limit)
{
    uint32_t got = (uint32_t)flow_number(f, value, 2);
    if (got < limit)
        return got;
    refuse(f);
    return 0;
}

static void flow_bool(struct flow *f, bool *value)
{
    *value = flow_choice(f, *value ? 1 : 0, 2) == 1;
}

static void flow_bytes(struct flow *f, void *data, uint32_t bytes)
{
    if (f->w)
        keel_writer_bytes(f->w, data, bytes);
    else
        keel_reader_bytes(f->r, data, bytes);
}

static void flow_address(struct flow *f, struct keel_address *address)
{
    address->bytes = flow_choice(f, address->bytes, KEEL_ADDRESS_BYTES + 1);
    flow_bytes(f, address->data, address->bytes);
}

static void flow_text(struct flow *f, char *text, uint32_t capacity)
{
    uint32_t bytes = flow_choice(f, f->w ? (uint32_t)strnlen(text, capacity - 1) : 0, capacity);
    flow_bytes(f, text, bytes);
    if (f->r)
        text[f->r->failed ? 0 : bytes] = '\0';
}

/* How long what was written since `begin` is; nothing of what is read. */
static uint32_t written_since(const struct flow *f, uint32_t begin)
{
    return f->w ? f->w->bytes - begin : 0;
}

static void flow_record(struct flow *f, struct keel_step_record *record)
{
    const uint32_t begin = written_since(f, 0);
    flow_u64(f, &record->step);
    flow_u32(f, &record->loss_bits);
    flow_u32(f, &record->grad_norm_bits);
    flow_u32(f, &record->learning_rate_bits);
    flow_u32(f, &record->val_loss_bits);
    flow_u32(f, &record->has_val_loss);
    flow_u32(f, &record->val_accuracy_bits);
    flow_u32(f, &record->has_val_accuracy);
    flow_u64(f, &record->tokens);
    flow_u64(f, &record->epoch);
    flow_u64(f, &record->digest);
    flow_u64(f, &record->duration_ns);
    flow_u64(f, &record->exposed_comm_ns);
    flow_u64(f, &record->snapshot_stall_ns);
    flow_u64(f, &record->sync_ns);
    flow_u64(f, &record->heal_ns);
    flow_u64(f, &record->heal_bytes);
    flow_u32(f, &record->heal_ranks);
    flow_u64(f, &record->redo_ns);
    flow_u32(f, &record->redo_microbatches);
    flow_u32(f, &record->loss_scale_bits);
    flow_u64(f, &record->sent_bytes);
    KEEL_ASSERT(f->r || written_since(f, begin) == RECORD_BYTES); /* by which a status fits */
}

static void flow_worker(struct flow *f, struct keel_wire_worker *worker)
{
    const uint32_t begin = written_since(f, 0);
    flow_u32(f, &worker->incarnation);
    worker->state = (enum keel_worker_state)flow_choice(f, worker->state, KEEL_WORKER_STATE_COUNT);
    worker->cause = (enum keel_cause)flow_choice(f, worker->cause, KEEL_CAUSE_COUNT);
    worker->failure = (enum keel_status)flow_choice(f, worker->failure, KEEL_STATUS_COUNT);
    flow_u64(f, &worker->sent_epoch);
    flow_u64(f, &worker->progress);
    flow_u64(f, &worker->accused_epoch);
    flow_u16(f, &worker->accused_rank);
    flow_address(f, &worker->address);
    KEEL_ASSERT(written_since(f, begin) <= WORKER_BYTES);
}

static void flow_ballot(struct flow *f, struct keel_ballot *ballot)
{
    flow_u64(f, &ballot->counter);
    flow_u64(f, &ballot->node);
    if (!keel_ballot_in_reach(*ballot)) /* who proposes after it would find no higher one */
        refuse(f);
}

static void flow_status(struct flow *f, struct keel_wire_status *status)
{
    flow_ballot(f, &status->term);
    flow_u64(f, &status->next_step);
    flow_bool(f, &status->stopping);
    flow_u64(f, &status->away);
    flow_u32(f, &status->incarnation);
    if (status->incarnation > KEEL_WIRE_INCARNATION_MAX)
        refuse(f);
    flow_u64(f, &status->sequence);
    flow_bool(f, &status->ended);
    flow_u32(f, &status->disk);
    flow_u16(f, &status->silent_node);
    if (status->silent_node >= KEEL_NODES_MAX && status->silent_node != KEEL_RANK_NONE)
        refuse(f);
    flow_u64(f, &status->first_record);
    flow_bool(f, &status->has_newest);
    if (status->has_newest)
        flow_record(f, &status->newest);
    status->worker_count = (uint8_t)flow_choice(f, status->worker_count, KEEL_WORKERS_PER_NODE + 1);
    for (uint8_t i = 0; i < status->worker_count; i++)
        flow_worker(f, &status->workers[i]);
    flow_text(f, status->detail, sizeof status->detail);
}

static void flow_leader(struct flow *f, struct keel_wire_leader *leader)
{
    flow_ballot(f, &leader->term);
    flow_u64(f, &leader->first_step);
    flow_u64(f, &leader->next_step);
    flow_u64(f, &leader->lacks_to);
    flow_bool(f, &leader->missing);
    flow_bool(f, &leader->stop);
    flow_bool(f, &leader->end);
    flow_bool(f, &leader->leave);
    flow_u64(f, &leader->note);
    flow_u64(f, &leader->away);
    leader->status = (enum keel_status)flow_choice(f, leader->status, KEEL_STATUS_COUNT);
    flow_text(f, leader->detail, sizeof leader->detail);
}

static void flow_shard(struct flow *f, struct keel_wire_shard *shard, bool with_summary)
{
    shard->local = (uint8_t)flow_choice(f, shard->local, KEEL_WORKERS_PER_NODE);
    flow_u64(f, &shard->step);
    flow_u64(f, &shard->attempt);
    if (!with_summary)
        return;
    flow_u32(f, &shard->summary.rank);
    flow_u32(f, &shard->summary.record_count);
    flow_u64(f, &shard->summary.file_bytes);
    flow_u64(f, &shard->summary.raw_bytes);
    flow_u64(f, &shard->summary.stored_bytes);
    flow_u64(f, &shard->summary.state_digest);
    flow_bytes(f, shard->summary.index_digest, sizeof shard->summary.index_digest);
}

static void flow_note(struct flow *f, struct keel_wire_note *note)
{
    flow_u64(f, &note->number);
    note->local = (uint8_t)flow_choice(f, note->local, KEEL_WORKERS_PER_NODE);
    note->bytes = (uint16_t)flow_choice(f, note->bytes, KEEL_WIRE_NOTE_BYTES + 1);
    flow_bytes(f, note->data, note->bytes);
}

/* One part of so many bytes. */
static void flow_part(struct flow *f, uint32_t bytes, uint8_t *part, uint8_t *data)
{
    flow_u8(f, part);
    if (bytes > KEEL_VIEW_BYTES_MAX || (*part > 0 && *part >= keel_wire_parts(bytes)))
        refuse(f);
    else
        flow_bytes(f, data, keel_wire_part_bytes(bytes, *part));
}

/* A promise tells what was accepted, with its ballot, or nothing. */
static void flow_register(struct flow *f, struct keel_wire_register *reg)
{
    struct keel_register_head *head = &reg->head;
    uint32_t kind = flow_choice(f, head->kind, KEEL_REGISTER_ACCEPTED + 1);
    if (kind < KEEL_REGISTER_PREPARE)
        refuse(f);
    head->kind = (enum keel_register_kind)kind;
    flow_bool(f, &head->ok);
    flow_u32(f, &head->disk);
    if (head->disk == KEEL_DISK_NONE)
        refuse(f);
    flow_ballot(f, &head->ballot);
    flow_ballot(f, &head->promised);
    flow_ballot(f, &head->accepted);
    flow_u32(f, &reg->value_bytes);
    flow_part(f, reg->value_bytes, &reg->part, reg->data);
    if (f->r && kind == KEEL_REGISTER_ACCEPT && reg->value_bytes == 0)
        refuse(f);
    if (f->r && kind == KEEL_REGISTER_PROMISE && (head->accepted.counter > 0) != (reg->value_bytes > 0))
        refuse(f);
}

static void flow_name(struct flow *f, struct keel_wire_view_name *name)
{
    flow_u64(f, &name->epoch);
    flow_u64(f, &name->digest);
    flow_u32(f, &name->bytes);
    if (name->epoch == 0 || name->epoch > KEEL_EPOCH_MAX || name->bytes == 0 ||
        name->bytes > KEEL_VIEW_BYTES_MAX)
        refuse(f);
}

static void flow_view(struct flow *f, struct keel_wire_view *view)
{
    flow_name(f, &view->name);
    view->source = (uint16_t)flow_choice(f, view->source, KEEL_NODES_MAX);
    flow_u64(f, &view->base);
    view->data_bytes = (uint16_t)flow_choice(f, view->data_bytes, KEEL_WIRE_VIEW_BYTES + 1);
    flow_bytes(f, view->data, view->data_bytes);
    view->have_count = (uint16_t)flow_choice(f, view->have_count, KEEL_NODES_MAX + 1);
    view->lack_count = (uint16_t)flow_choice(f, view->lack_count, KEEL_NODES_MAX + 1);
    const uint32_t count = (uint32_t)view->have_count + view->lack_count;
    if (count > KEEL_NODES_MAX)
        refuse(f);
    for (uint32_t i = 0; i < count && !(f->r && f->r->failed); i++)
        view->nodes[i] = (uint16_t)flow_choice(f, view->nodes[i], KEEL_NODES_MAX);
}

static void flow_pull(struct flow *f, struct keel_wire_pull *pull)
{
    flow_name(f, &pull->name);
    flow_u8(f, &pull->first);
    flow_u64(f, &pull->parts);
}

static void flow_view_part(struct flow *f, struct keel_wire_part *part)
{
    flow_name(f, &part->name);
    flow_part(f, part->name.bytes, &part->part, part->data);
}

static void flow_past(struct flow *f, struct keel_wire_past *past)
{
    flow_u64(f, &past->step);
    past->bytes = (uint16_t)flow_choice(f, past->bytes, KEEL_PAST_BYTES_MAX + 1);
    flow_bytes(f, past->data, past->bytes);
}

static void flow_away(struct flow *f, struct keel_wire_away *away)
{
    flow_u64(f, &away->version);
    if (away->version > KEEL_EPOCH_MAX) /* who changes it would find no higher one */
        refuse(f);
    away->count = (uint16_t)flow_choice(f, away->count, KEEL_NODES_MAX);
    for (uint32_t i = 0; i < away->count && !(f->r && f->r->failed); i++) {
        away->nodes[i] = (uint16_t)flow_choice(f, away->nodes[i], KEEL_NODES_MAX);
        if (away->nodes[i] <= (i > 0 ? away->nodes[i - 1] : 0))
            refuse(f);
    }
}

static void flow_message(struct flow *f, struct keel_wire_message *message)
{
    uint32_t magic = WIRE_MAGIC;
    flow_u32(f, &magic);
    uint8_t kind = (uint8_t)message->kind;
    flow_u8(f, &kind);
    if (magic != WIRE_MAGIC)
        refuse(f);
    message->kind = (enum keel_wire_kind)(kind < KEEL_WIRE_KIND_COUNT ? kind : 0);
    flow_u64(f, &message->epoch);
    switch (message->kind) {
    case KEEL_WIRE_STATUS:
        flow_status(f, &message->as.status);
        break;
    case KEEL_WIRE_LEADER:
        flow_leader(f, &message->as.leader);
        break;
    case KEEL_WIRE_STEP:
        flow_record(f, &message->as.step);
        break;
    case KEEL_WIRE_SHARD:
    case KEEL_WIRE_SHARD_ACK:
        flow_shard(f, &message->as.shard, message->kind == KEEL_WIRE_SHARD);
        break;
    case KEEL_WIRE_NOTE:
        flow_note(f, &message->as.note);
        break;
    case KEEL_WIRE_BEAT:
        break;
    case KEEL_WIRE_REGISTER:
        flow_register(f, &message->as.reg);
        break;
    case KEEL_WIRE_VIEW:
        flow_view(f, &message->as.view);
        break;
    case KEEL_WIRE_PULL:
        flow_pull(f, &message->as.pull);
        break;
    case KEEL_WIRE_PART:
        flow_view_part(f, &message->as.part);
        break;
    case KEEL_WIRE_PAST:
        flow_past(f, &message->as.past);
        break;
    case KEEL_WIRE_AWAY:
        flow_away(f, &message->as.away);
        break;
    case KEEL_WIRE_KIND_COUNT:
    default:
        refuse(f);
        break;
    }
}

/* What must be zero of a kind: all but what is large, and read only where the rest says that it is there. */
static size_t cleared_bytes(enum keel_wire_kind kind)
{
    switch (kind) {
    case KEEL_WIRE_STATUS:
        return sizeof(struct keel_wire_status);
    case KEEL_WIRE_LEADER:
        return sizeof(struct keel_wire_leader);
    case KEEL_WIRE_STEP:
        return sizeof(struct keel_step_record);
    case KEEL_WIRE_SHARD:
    case KEEL_WIRE_SHARD_ACK:
        return sizeof(struct keel_wire_shard);
    case KEEL_WIRE_NOTE:
        return sizeof(struct keel_wire_note);
    case KEEL_WIRE_REGISTER:
        return offsetof(struct keel_wire_register, data);
    case KEEL_WIRE_VIEW:
        return offsetof(struct keel_wire_view, data);
    case KEEL_WIRE_PULL:
        return sizeof(struct keel_wire_pull);
    case KEEL_WIRE_PART:
        return offsetof(struct keel_wire_part, data);
    case KEEL_WIRE_PAST:
        return sizeof(struct keel_wire_past);
    case KEEL_WIRE_AWAY:
        return offsetof(struct keel_wire_away, nodes);
    case KEEL_WIRE_BEAT:
    case KEEL_WIRE_KIND_COUNT:
    default:
        return 0;
    }
}

uint32_t keel_wire_parts(uint32_t bytes)
{
    return (bytes + KEEL_WIRE_PART_BYTES - 1) / KEEL_WIRE_PART_BYTES;
}

uint32_t keel_wire_part_bytes(uint32_t bytes, uint32_t part)
{
    const uint32_t at = part * KEEL_WIRE_PART_BYTES;
    KEEL_ASSERT(at <= bytes);
    return bytes - at < KEEL_WIRE_PART_BYTES ? bytes - at : KEEL_WIRE_PART_BYTES;
}

void keel_wire_clear(struct keel_wire_message *message, enum keel_wire_kind kind)
{
    memset(message, 0, offsetof(struct keel_wire_message, as) + cleared_bytes(kind));
    message->kind = kind;
}

uint32_t keel_wire_encode(const struct keel_wire_message *message, uint8_t *out)
{
    struct keel_writer w = {.data = out, .capacity = KEEL_MESSAGE_BYTES};
    struct flow f = {.w = &w};
    /* Writing leaves the message as it is: every field is flowed to itself. */
    flow_message(&f, (struct keel_wire_message *)(uintptr_t)message);
    KEEL_ASSERT(!w.failed);
    return w.bytes;
}

bool keel_wire_decode(const uint8_t *data, uint32_t bytes, struct keel_wire_message *out)
{
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    struct flow f = {.r = &r};
    const uint8_t kind = bytes > KIND_AT ? data[KIND_AT] : 0;
    keel_wire_clear(out, (enum keel_wire_kind)(kind < KEEL_WIRE_KIND_COUNT ? kind : 0));
    flow_message(&f, out);
    return keel_reader_complete(&r);
}
