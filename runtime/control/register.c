/* register.c - see register.h. */
#include "register.h"

#include "wire_bytes.h"
#include <string.h>

#define STORE_MAGIC UINT64_C(0x324745524c45454b) /* "KEELREG2": a view has a plan */

int keel_ballot_compare(struct keel_ballot a, struct keel_ballot b)
{
    if (a.counter != b.counter)
        return a.counter < b.counter ? -1 : 1;
    if (a.node != b.node)
        return a.node < b.node ? -1 : 1;
    return 0;
}

void keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holder_count, uint64_t nonce)
{
    KEEL_ASSERT(holder_count > 0 && holder_count <= KEEL_HOLDERS_MAX);
    memset(reg, 0, sizeof *reg);
    reg->identity = nonce << 16 | node;
    reg->holder_count = holder_count;
}

/* What an acceptor holds: nothing, or a value under a ballot that it promised. */
static bool holds_together(const struct keel_register *reg)
{
    return keel_ballot_compare(reg->accepted, reg->promised) <= 0 &&
           (reg->value.bytes > 0) == (reg->accepted.counter > 0) &&
           reg->value.bytes <= KEEL_REGISTER_BYTES_MAX;
}

/* ---- the durable state: magic, promised, accepted, length, value, checksum ------------------------- */

/* FNV-1a, 64 bits: finds a torn or foreign file; it is no defence against an enemy. */
static uint64_t checksum(const uint8_t *data, uint32_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void write_ballot(struct keel_writer *w, struct keel_ballot ballot)
{
    keel_writer_number(w, ballot.counter, 8);
    keel_writer_number(w, ballot.node, 8);
}

static struct keel_ballot read_ballot(struct keel_wire_reader *r)
{
    struct keel_ballot ballot;
    ballot.counter = keel_reader_number(r, 8);
    ballot.node = keel_reader_number(r, 8);
    return ballot;
}

uint32_t keel_register_store(const struct keel_register *reg, uint8_t *out)
{
    KEEL_ASSERT(holds_together(reg));
    struct keel_writer w = {.data = out, .capacity = KEEL_REGISTER_STORE_BYTES};
    keel_writer_number(&w, STORE_MAGIC, 8);
    write_ballot(&w, reg->promised);
    write_ballot(&w, reg->accepted);
    keel_writer_number(&w, reg->value.bytes, 4);
    keel_writer_bytes(&w, reg->value.data, reg->value.bytes);
    keel_writer_number(&w, checksum(out, w.bytes), 8);
    KEEL_ASSERT(!w.failed);
    return w.bytes;
}

enum keel_status keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    uint64_t magic = keel_reader_number(&r, 8);
    struct keel_ballot promised = read_ballot(&r), accepted = read_ballot(&r);
    struct keel_register_value value = {.bytes = (uint32_t)keel_reader_number(&r, 4)};
    if (value.bytes <= KEEL_REGISTER_BYTES_MAX)
        keel_reader_bytes(&r, value.data, value.bytes);
    uint64_t sum = keel_reader_number(&r, 8);
    const struct keel_register held = {.promised = promised, .accepted = accepted, .value = value};
    if (magic != STORE_MAGIC || !keel_reader_complete(&r) || sum != checksum(data, bytes - 8) ||
        !holds_together(&held))
        return keel_fail(
            KEEL_CORRUPT,
            "register of node %u: the stored state of the view (register.state) is damaged, or of "
            "another release; remove it: the view is made anew, snapshots and metrics stay",
            (unsigned)(reg->identity & UINT16_MAX));
    reg->promised = promised;
    reg->accepted = accepted;
    reg->value = value;
    return KEEL_OK;
}

/* ---- acceptor ---------------------------------------------------------------------------------------- */

void keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                          struct keel_register_message *reply, bool *out_changed)
{
    KEEL_ASSERT(ask->head.kind == KEEL_REGISTER_PREPARE || ask->head.kind == KEEL_REGISTER_ACCEPT);
    bool prepare = ask->head.kind == KEEL_REGISTER_PREPARE;
    const struct keel_ballot promised = reg->promised, accepted = reg->accepted;
    bool ok = ask->head.ballot.counter > 0 && keel_ballot_compare(ask->head.ballot, reg->promised) >= 0;
    KEEL_ASSERT(ask->value.bytes <= KEEL_REGISTER_BYTES_MAX);
    KEEL_ASSERT(prepare || ask->value.bytes > 0);
    *out_changed = false;
    if (ok && keel_ballot_compare(ask->head.ballot, reg->promised) > 0) {
        reg->promised = ask->head.ballot;
        *out_changed = true;
    }
    if (ok && !prepare && keel_ballot_compare(ask->head.ballot, reg->accepted) != 0) {
        reg->accepted = ask->head.ballot;
        reg->value = ask->value;
        *out_changed = true;
    }
    /* What was promised and what was accepted never goes back. */
    KEEL_ASSERT(keel_ballot_compare(reg->promised, promised) >= 0);
    KEEL_ASSERT(keel_ballot_compare(reg->accepted, accepted) >= 0);
    KEEL_ASSERT(holds_together(reg));
    memset(reply, 0, sizeof *reply);
    reply->head.kind = prepare ? KEEL_REGISTER_PROMISE : KEEL_REGISTER_ACCEPTED;
    reply->head.ok = ok;
    reply->head.ballot = ask->head.ballot;
    reply->head.promised = reg->promised;
    if (prepare && ok) {
        reply->head.accepted = reg->accepted;
        reply->value = reg->value;
    }
}

static bool majority(const struct keel_register *reg, uint32_t holders)
{
    return __builtin_popcount(holders) * 2 > reg->holder_count;
}

/* ---- proposer ---------------------------------------------------------------------------------------- */

void keel_register_begin(struct keel_register *reg)
{
    uint64_t counter = reg->ballot.counter;
    if (reg->promised.counter > counter)
        counter = reg->promised.counter;
    if (reg->seen.counter > counter)
        counter = reg->seen.counter;
    const struct keel_ballot before = reg->ballot;
    reg->ballot = (struct keel_ballot){.counter = counter + 1, .node = reg->identity};
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, before) > 0);
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, reg->promised) > 0);
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, reg->seen) > 0);
    reg->newest = (struct keel_ballot){0};
    reg->proposal.bytes = 0;
    reg->answers = reg->grown = reg->absent = 0;
    reg->committed = false;
    reg->phase = KEEL_REGISTER_READING;
}

void keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    KEEL_ASSERT(reg->phase == KEEL_REGISTER_READ);
    KEEL_ASSERT(majority(reg, reg->answers));
    KEEL_ASSERT(bytes > 0 && bytes <= KEEL_REGISTER_BYTES_MAX);
    memcpy(reg->proposal.data, data, bytes);
    reg->proposal.bytes = bytes;
    reg->answers = 0;
    reg->phase = KEEL_REGISTER_WRITING;
}

void keel_register_rest(struct keel_register *reg)
{
    reg->phase = KEEL_REGISTER_IDLE;
}

bool keel_register_ask(const struct keel_register *reg, struct keel_register_message *out)
{
    if (reg->phase != KEEL_REGISTER_READING && reg->phase != KEEL_REGISTER_WRITING)
        return false;
    memset(out, 0, sizeof *out);
    out->head.ballot = reg->ballot;
    out->head.kind = reg->phase == KEEL_REGISTER_READING ? KEEL_REGISTER_PREPARE : KEEL_REGISTER_ACCEPT;
    if (reg->phase == KEEL_REGISTER_WRITING)
        out->value = reg->proposal;
    return true;
}

bool keel_register_remind(const struct keel_register *reg, uint16_t to, struct keel_register_message *out)
{
    KEEL_ASSERT(to < reg->holder_count);
    if (!reg->committed || reg->phase != KEEL_REGISTER_IDLE || (reg->answers >> to & 1) != 0)
        return false;
    memset(out, 0, sizeof *out);
    out->head.kind = KEEL_REGISTER_ACCEPT;
    out->head.ballot = reg->ballot;
    out->value = reg->proposal;
    return true;
}

static bool phase_is_over(const struct keel_register *reg)
{
    if (reg->phase == KEEL_REGISTER_WRITING)
        return majority(reg, reg->answers);
    return majority(reg, reg->grown) || (majority(reg, reg->answers) &&
                                         __builtin_popcount(reg->answers | reg->absent) == reg->holder_count);
}

/* Of what was committed it is reminded no more. */
static enum keel_register_outcome hear_abstention(struct keel_register *reg, uint16_t from)
{
    if (reg->phase == KEEL_REGISTER_IDLE)
        reg->answers |= UINT32_C(1) << from;
    if (reg->phase != KEEL_REGISTER_READING)
        return KEEL_REGISTER_WAIT;
    reg->absent |= UINT32_C(1) << from;
    if (!phase_is_over(reg))
        return KEEL_REGISTER_WAIT;
    reg->phase = KEEL_REGISTER_READ;
    return KEEL_REGISTER_HAVE;
}

enum keel_register_outcome keel_register_hear(struct keel_register *reg, uint16_t from,
                                              const struct keel_register_message *reply)
{
    if (reply->head.kind == KEEL_REGISTER_ABSTAINS && from < reg->holder_count &&
        keel_ballot_compare(reply->head.ballot, reg->ballot) == 0)
        return hear_abstention(reg, from);
    bool reading = reg->phase == KEEL_REGISTER_READING, writing = reg->phase == KEEL_REGISTER_WRITING;
    bool fits = (reading && reply->head.kind == KEEL_REGISTER_PROMISE) ||
                (writing && reply->head.kind == KEEL_REGISTER_ACCEPTED);
    const bool late =
        reg->phase == KEEL_REGISTER_IDLE && reg->committed &&
        reply->head.kind == KEEL_REGISTER_ACCEPTED; /* yes, or a later ballot is promised there */
    if (!(fits || late) || from >= reg->holder_count ||
        keel_ballot_compare(reply->head.ballot, reg->ballot) != 0)
        return KEEL_REGISTER_WAIT;
    if (late) {
        reg->answers |= UINT32_C(1) << from;
        return KEEL_REGISTER_WAIT;
    }
    if (!reply->head.ok) {
        if (keel_ballot_compare(reply->head.promised, reg->seen) > 0)
            reg->seen = reply->head.promised;
        reg->phase = KEEL_REGISTER_IDLE;
        return KEEL_REGISTER_REFUSED;
    }
    reg->answers |= UINT32_C(1) << from;
    if (reading && reply->head.accepted.counter > 0)
        reg->grown |= UINT32_C(1) << from;
    if (reading && keel_ballot_compare(reply->head.accepted, reg->newest) > 0) {
        reg->newest = reply->head.accepted;
        reg->proposal = reply->value;
    }
    if (!phase_is_over(reg))
        return KEEL_REGISTER_WAIT;
    KEEL_ASSERT(majority(reg, reg->answers));
    KEEL_ASSERT(writing || (reg->grown & ~reg->answers) == 0);
    KEEL_ASSERT((uint64_t)reg->answers >> reg->holder_count == 0);
    KEEL_ASSERT(reading ? (reg->newest.counter > 0) == (reg->proposal.bytes > 0) : reg->proposal.bytes > 0);
    reg->phase = reading ? KEEL_REGISTER_READ : KEEL_REGISTER_IDLE;
    reg->committed = writing;
    return reading ? KEEL_REGISTER_HAVE : KEEL_REGISTER_COMMITTED;
}
