/* register.c - see register.h. */
#include "register.h"

#include "wire_bytes.h"
#include <keel/bits.h>
#include <stddef.h>
#include <string.h>

#define STORE_MAGIC UINT64_C(0x354745524c45454b) /* "KEELREG5": members by what is other in them */

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
    memset(reg, 0, offsetof(struct keel_register, value));
    reg->value.bytes = reg->proposal.bytes = 0;
    reg->identity = nonce << 16 | node;
    reg->first.count = (uint8_t)holder_count;
    for (uint16_t i = 0; i < holder_count; i++)
        reg->first.at[i].node = i;
}

const struct keel_view_holders *keel_register_holders(const struct keel_register *reg,
                                                      const struct keel_view_holders *named)
{
    return named->count > 0 ? named : &reg->first;
}

/* A view may be long: copied as far as it is. */
static void copy_value(struct keel_register_value *to, const struct keel_register_value *from)
{
    KEEL_ASSERT(from->bytes <= KEEL_REGISTER_BYTES_MAX);
    to->bytes = from->bytes;
    memcpy(to->data, from->data, from->bytes);
}

static void clear_message(struct keel_register_message *message)
{
    message->head = (struct keel_register_head){0};
    message->value.bytes = 0;
}

/* What an acceptor holds: nothing, or a value of so many bytes under a ballot that it promised. */
static bool fits_together(struct keel_ballot promised, struct keel_ballot accepted, uint32_t bytes)
{
    return keel_ballot_compare(accepted, promised) <= 0 && (bytes > 0) == (accepted.counter > 0) &&
           keel_ballot_in_reach(promised) && bytes <= KEEL_REGISTER_BYTES_MAX;
}

static bool holds_together(const struct keel_register *reg)
{
    return fits_together(reg->promised, reg->accepted, reg->value.bytes);
}

/* ---- the durable state: magic, run, disk, promised, accepted, length, value, checksum ------------------ */

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
    keel_writer_number(&w, reg->run, 8);
    keel_writer_number(&w, reg->disk, 4);
    write_ballot(&w, reg->promised);
    write_ballot(&w, reg->accepted);
    keel_writer_number(&w, reg->value.bytes, 4);
    keel_writer_bytes(&w, reg->value.data, reg->value.bytes);
    keel_writer_number(&w, keel_fnv1a(KEEL_FNV1A_BEGIN, out, w.bytes), 8);
    KEEL_ASSERT(!w.failed);
    return w.bytes;
}

enum keel_status keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    const uint64_t magic = keel_reader_number(&r, 8), run = keel_reader_number(&r, 8);
    const uint32_t disk = (uint32_t)keel_reader_number(&r, 4);
    struct keel_ballot promised = read_ballot(&r), accepted = read_ballot(&r);
    const uint32_t value_bytes = (uint32_t)keel_reader_number(&r, 4), at = r.at;
    struct keel_wire_reader tail = {.data = data, .at = at + value_bytes, .bytes = bytes};
    const bool long_enough =
        !r.failed && value_bytes <= KEEL_REGISTER_BYTES_MAX && bytes >= 8 && bytes - 8 - at == value_bytes;
    if (magic != STORE_MAGIC || !long_enough ||
        keel_reader_number(&tail, 8) != keel_fnv1a(KEEL_FNV1A_BEGIN, data, bytes - 8) ||
        disk == KEEL_DISK_NONE || !fits_together(promised, accepted, value_bytes))
        return keel_fail(
            KEEL_CORRUPT,
            "register of node %u: the stored state of the view (register.state) is damaged, or of "
            "another release; remove it: the view is made anew, snapshots and metrics stay",
            (unsigned)(reg->identity & UINT16_MAX));
    reg->run = run;
    reg->disk = disk;
    reg->promised = promised;
    reg->accepted = accepted;
    reg->value.bytes = value_bytes;
    memcpy(reg->value.data, data + at, value_bytes);
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
        copy_value(&reg->value, &ask->value);
        *out_changed = true;
    }
    /* What was promised and what was accepted never goes back. */
    KEEL_ASSERT(keel_ballot_compare(reg->promised, promised) >= 0);
    KEEL_ASSERT(keel_ballot_compare(reg->accepted, accepted) >= 0);
    KEEL_ASSERT(holds_together(reg));
    clear_message(reply);
    reply->head.kind = prepare ? KEEL_REGISTER_PROMISE : KEEL_REGISTER_ACCEPTED;
    reply->head.ok = ok;
    reply->head.disk = reg->disk;
    reply->head.ballot = ask->head.ballot;
    reply->head.promised = reg->promised;
    if (prepare && ok) {
        reply->head.accepted = reg->accepted;
        copy_value(&reply->value, &reg->value);
    }
}

/* ---- proposer ---------------------------------------------------------------------------------------- */

static const struct keel_register_answer *answer_of(const struct keel_register *reg, uint16_t node)
{
    for (uint32_t i = 0; i < reg->answer_count; i++)
        if (reg->answers[i].node == node)
            return &reg->answers[i];
    return NULL;
}

/* Of a set: how many said yes, of those how many had accepted something, and how many have lost the disk by
 * which they are named. */
struct count {
    uint32_t yes, grown, lost;
};

static struct count count_answers(const struct keel_register *reg, const struct keel_view_holders *set)
{
    struct count count = {0};
    for (uint8_t i = 0; i < set->count; i++) {
        const struct keel_register_answer *answer = answer_of(reg, set->at[i].node);
        const bool same = answer != NULL && answer->disk == set->at[i].disk;
        count.yes += same ? 1 : 0;
        count.grown += same && answer->grown ? 1 : 0;
        count.lost += answer != NULL && !same ? 1 : 0;
    }
    return count;
}

static bool suffices(const struct keel_register *reg, const struct keel_view_holders *set)
{
    const struct count count = count_answers(reg, set);
    const bool majority = count.yes * 2 > set->count;
    if (reg->phase == KEEL_REGISTER_WRITING || reg->known_epoch > 0)
        return majority;
    return count.grown * 2 > set->count || (majority && count.yes + count.lost == set->count);
}

static bool phase_is_over(const struct keel_register *reg)
{
    return suffices(reg, &reg->sets[0]) && suffices(reg, &reg->sets[1]);
}

static bool is_asked(const struct keel_register *reg, uint16_t node)
{
    return keel_view_holders_has(&reg->sets[0], node) || keel_view_holders_has(&reg->sets[1], node);
}

/* Answers of others are of no use any more, and would take the place of theirs. */
static void ask_these(struct keel_register *reg, const struct keel_view_holders *a,
                      const struct keel_view_holders *b)
{
    uint32_t kept = 0;
    reg->sets[0] = *keel_register_holders(reg, a);
    reg->sets[1] = *keel_register_holders(reg, b);
    for (uint32_t i = 0; i < reg->answer_count; i++)
        if (is_asked(reg, reg->answers[i].node))
            reg->answers[kept++] = reg->answers[i];
    reg->answer_count = kept;
}

static struct keel_ballot next_ballot(const struct keel_register *reg)
{
    uint64_t counter = reg->ballot.counter;
    if (reg->promised.counter > counter)
        counter = reg->promised.counter;
    if (reg->seen.counter > counter)
        counter = reg->seen.counter;
    return (struct keel_ballot){.counter = counter + 1, .node = reg->identity};
}

bool keel_register_may_begin(const struct keel_register *reg)
{
    return keel_ballot_in_reach(next_ballot(reg));
}

void keel_register_begin(struct keel_register *reg, uint64_t known_epoch,
                         const struct keel_view_holders *known)
{
    const struct keel_ballot before = reg->ballot;
    KEEL_ASSERT(keel_register_may_begin(reg));
    reg->ballot = next_ballot(reg);
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, before) > 0);
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, reg->promised) > 0);
    KEEL_ASSERT(keel_ballot_compare(reg->ballot, reg->seen) > 0);
    reg->newest = (struct keel_ballot){0};
    reg->proposal.bytes = 0;
    reg->answer_count = 0;
    reg->known_epoch = known_epoch;
    reg->known = known_epoch > 0 ? *keel_register_holders(reg, known) : reg->first;
    ask_these(reg, &reg->known, &reg->known);
    reg->committed = false;
    reg->phase = KEEL_REGISTER_READING;
}

void keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    struct keel_view_holders before, holders;
    KEEL_ASSERT(reg->phase == KEEL_REGISTER_READ);
    KEEL_ASSERT(bytes > 0 && bytes <= KEEL_REGISTER_BYTES_MAX);
    (void)keel_view_peek(data, bytes, &before, &holders);
    const struct keel_view_holders *own = keel_register_holders(reg, &holders);
    /* By the rules above: of what was read either both sets stay, or its own is the one before. */
    const bool stays = keel_view_holders_same(keel_register_holders(reg, &before), &reg->sets[0]) &&
                       keel_view_holders_same(own, &reg->sets[1]);
    KEEL_ASSERT(stays || keel_view_holders_same(keel_register_holders(reg, &before), &reg->sets[1]));
    memcpy(reg->proposal.data, data, bytes);
    reg->proposal.bytes = bytes;
    reg->answer_count = 0;
    ask_these(reg, &before, &holders);
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
    clear_message(out);
    out->head.ballot = reg->ballot;
    out->head.kind = reg->phase == KEEL_REGISTER_READING ? KEEL_REGISTER_PREPARE : KEEL_REGISTER_ACCEPT;
    if (reg->phase == KEEL_REGISTER_WRITING)
        copy_value(&out->value, &reg->proposal);
    return true;
}

uint32_t keel_register_asked(const struct keel_register *reg, uint16_t out[KEEL_REGISTER_ASKED_MAX])
{
    uint32_t count = 0;
    for (uint8_t i = 0; i < reg->sets[0].count; i++)
        out[count++] = reg->sets[0].at[i].node;
    for (uint8_t i = 0; i < reg->sets[1].count; i++)
        if (!keel_view_holders_has(&reg->sets[0], reg->sets[1].at[i].node))
            out[count++] = reg->sets[1].at[i].node;
    return count;
}

bool keel_register_remind(const struct keel_register *reg, uint16_t to, struct keel_register_message *out)
{
    if (!reg->committed || reg->phase != KEEL_REGISTER_IDLE || !is_asked(reg, to) ||
        answer_of(reg, to) != NULL)
        return false;
    clear_message(out);
    out->head.kind = KEEL_REGISTER_ACCEPT;
    out->head.ballot = reg->ballot;
    copy_value(&out->value, &reg->proposal);
    return true;
}

static void note_answer(struct keel_register *reg, uint16_t from, const struct keel_register_head *head)
{
    if (!is_asked(reg, from) || answer_of(reg, from) != NULL)
        return;
    KEEL_ASSERT(reg->answer_count < KEEL_REGISTER_ASKED_MAX);
    reg->answers[reg->answer_count++] =
        (struct keel_register_answer){.node = from, .disk = head->disk, .grown = head->accepted.counter > 0};
}

/* A promise carried a newer value: true, if others are to be asked than before. */
static bool take_newer(struct keel_register *reg, const struct keel_register_message *reply)
{
    struct keel_view_holders before, holders;
    reg->newest = reply->head.accepted;
    copy_value(&reg->proposal, &reply->value);
    const uint64_t epoch = keel_view_peek(reply->value.data, reply->value.bytes, &before, &holders);
    const struct keel_view_holders asked[2] = {reg->sets[0], reg->sets[1]};
    if (reg->known_epoch > 0 && epoch <= reg->known_epoch)
        ask_these(reg, &reg->known, &reg->known);
    else
        ask_these(reg, &before, &holders);
    for (uint32_t set = 0; set < 2; set++)
        for (uint8_t i = 0; i < reg->sets[set].count; i++)
            if (!keel_view_holders_has(&asked[0], reg->sets[set].at[i].node) &&
                !keel_view_holders_has(&asked[1], reg->sets[set].at[i].node))
                return true;
    return false;
}

static enum keel_register_outcome refuse(struct keel_register *reg, struct keel_ballot promised)
{
    if (keel_ballot_compare(promised, reg->seen) > 0)
        reg->seen = promised;
    reg->phase = KEEL_REGISTER_IDLE;
    return KEEL_REGISTER_REFUSED;
}

enum keel_register_outcome keel_register_hear(struct keel_register *reg, uint16_t from,
                                              const struct keel_register_message *reply)
{
    const bool reading = reg->phase == KEEL_REGISTER_READING && reply->head.kind == KEEL_REGISTER_PROMISE;
    const bool writing = reg->phase == KEEL_REGISTER_WRITING && reply->head.kind == KEEL_REGISTER_ACCEPTED;
    const bool late =
        reg->phase == KEEL_REGISTER_IDLE && reg->committed &&
        reply->head.kind == KEEL_REGISTER_ACCEPTED; /* yes, or a later ballot is promised there */
    if (!(reading || writing || late) || keel_ballot_compare(reply->head.ballot, reg->ballot) != 0)
        return KEEL_REGISTER_WAIT;
    if (!late && !reply->head.ok)
        return refuse(reg, reply->head.promised);
    bool others = false;
    if (reading && keel_ballot_compare(reply->head.accepted, reg->newest) > 0)
        others = take_newer(reg, reply);
    note_answer(reg, from, &reply->head);
    if (late)
        return KEEL_REGISTER_WAIT;
    if (!phase_is_over(reg))
        return others ? KEEL_REGISTER_OTHERS : KEEL_REGISTER_WAIT;
    KEEL_ASSERT(reading ? (reg->newest.counter > 0) == (reg->proposal.bytes > 0) : reg->proposal.bytes > 0);
    reg->phase = reading ? KEEL_REGISTER_READ : KEEL_REGISTER_IDLE;
    reg->committed = writing;
    return reading ? KEEL_REGISTER_HAVE : KEEL_REGISTER_COMMITTED;
}
