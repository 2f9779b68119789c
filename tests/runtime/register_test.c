/* register_test.c - one value in a register of several holders: competing proposers, loss, lost memory. */
#include "harness.h"
#include "register.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HOLDERS_MAX = KEEL_HOLDERS_MAX, LETTERS_MAX = 64, CHANGES_MAX = 2048 };

/* A change adds one to the counter that is the value, and signs it: (count, who made it). */
struct letter {
    bool used;
    uint16_t from, to;
    struct keel_register_message message;
};

struct world {
    uint64_t random_state;
    uint32_t loss_percent;
    uint16_t holders;
    struct keel_register nodes[HOLDERS_MAX];
    uint8_t disks[HOLDERS_MAX][KEEL_REGISTER_STORE_BYTES];
    uint32_t disk_bytes[HOLDERS_MAX];
    struct letter letters[LETTERS_MAX];
    uint64_t committed[CHANGES_MAX];   /* by count: who made it, plus one; 0: not seen committed */
    uint64_t highest;                  /* committed count */
    uint64_t begun_after[HOLDERS_MAX]; /* highest committed when this proposer began to read */
    uint64_t lives;
    uint32_t commits, refusals, wipes;
};

static uint64_t draw(struct world *w, uint64_t below)
{
    w->random_state = w->random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (w->random_state >> 33) % below;
}

static void post(struct world *w, uint16_t from, uint16_t to, const struct keel_register_message *message)
{
    if (draw(w, 100) < w->loss_percent)
        return;
    uint32_t at = (uint32_t)draw(w, LETTERS_MAX); /* a full place is overwritten: lost */
    w->letters[at] = (struct letter){.used = true, .from = from, .to = to, .message = *message};
}

static void hear(struct world *w, const struct letter *letter);

static void answer(struct world *w, uint16_t holder, const struct keel_register_message *ask,
                   struct keel_register_message *reply)
{
    bool changed = false;
    keel_register_answer(&w->nodes[holder], ask, reply, &changed);
    if (changed)
        w->disk_bytes[holder] = keel_register_store(&w->nodes[holder], w->disks[holder]);
}

static void ask_all(struct world *w, uint16_t proposer)
{
    struct letter own = {.from = proposer, .to = proposer};
    struct keel_register_message ask;
    if (!keel_register_ask(&w->nodes[proposer], &ask))
        return;
    answer(w, proposer, &ask, &own.message);
    for (uint16_t to = 0; to < w->holders; to++)
        if (to != proposer)
            post(w, proposer, to, &ask);
    hear(w, &own);
}

static void read_value(const struct keel_register_value *value, uint64_t *count, uint64_t *who)
{
    *count = *who = 0;
    if (value->bytes == 0)
        return;
    ck_assert_uint_eq(value->bytes, 16);
    memcpy(count, value->data, 8);
    memcpy(who, value->data + 8, 8);
}

static void see_commit(struct world *w, const struct keel_register_value *value)
{
    uint64_t count, who;
    read_value(value, &count, &who);
    ck_assert_uint_lt(count, CHANGES_MAX);
    ck_assert(w->committed[count] == 0 || w->committed[count] == who + 1); /* one value per count */
    w->committed[count] = who + 1;
    w->highest = count > w->highest ? count : w->highest;
    w->commits++;
}

static void hear(struct world *w, const struct letter *letter)
{
    struct keel_register *reg = &w->nodes[letter->to];
    uint64_t count, who;
    uint8_t next[16];
    switch (keel_register_hear(reg, letter->from, &letter->message)) {
    case KEEL_REGISTER_WAIT:
    case KEEL_REGISTER_OTHERS:
        break;
    case KEEL_REGISTER_HAVE:
        read_value(&reg->proposal, &count, &who);
        /* Linearizable: what was committed before this read began is seen by it. */
        ck_assert_uint_ge(count, w->begun_after[letter->to]);
        count++;
        who = (uint64_t)letter->to << 32 | w->commits;
        memcpy(next, &count, 8);
        memcpy(next + 8, &who, 8);
        keel_register_write(reg, next, sizeof next);
        ask_all(w, letter->to);
        break;
    case KEEL_REGISTER_COMMITTED:
        see_commit(w, &reg->proposal);
        break;
    case KEEL_REGISTER_REFUSED:
        w->refusals++;
        break;
    }
}

static void deliver(struct world *w)
{
    uint32_t at = (uint32_t)draw(w, LETTERS_MAX);
    if (!w->letters[at].used)
        return;
    struct letter letter = w->letters[at];
    w->letters[at].used = draw(w, 10) == 0; /* now and then it comes twice */
    enum keel_register_kind kind = letter.message.head.kind;
    if (kind == KEEL_REGISTER_PROMISE || kind == KEEL_REGISTER_ACCEPTED) {
        hear(w, &letter);
        return;
    }
    struct keel_register_message reply;
    answer(w, letter.to, &letter.message, &reply);
    post(w, letter.to, letter.from, &reply);
}

/* The process is lost, its disk stays. */
static void restart(struct world *w, uint16_t node)
{
    keel_register_init(&w->nodes[node], node, w->holders, ++w->lives);
    if (w->disk_bytes[node] > 0)
        ck_ok(keel_register_load(&w->nodes[node], w->disks[node], w->disk_bytes[node]));
}

/* The disk is lost too; never those of half of the holders at a time. */
static void wipe(struct world *w, uint16_t node)
{
    int grown = 0;
    for (uint16_t i = 0; i < w->holders; i++)
        grown += i != node && w->nodes[i].accepted.counter > 0 ? 1 : 0;
    if (grown * 2 <= w->holders || w->nodes[node].accepted.counter == 0)
        return;
    w->disk_bytes[node] = 0;
    w->wipes++;
    restart(w, node);
}

static void compete(uint16_t holders, uint64_t seed, uint32_t loss_percent, struct world *w)
{
    memset(w, 0, sizeof *w);
    w->random_state = seed;
    w->loss_percent = loss_percent;
    w->holders = holders;
    for (uint16_t i = 0; i < holders; i++)
        keel_register_init(&w->nodes[i], i, holders, ++w->lives);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        uint16_t proposer = (uint16_t)draw(w, holders);
        uint64_t what = draw(w, 200);
        if (what == 0 && w->nodes[proposer].phase == KEEL_REGISTER_IDLE) {
            w->begun_after[proposer] = w->highest;
            keel_register_begin(&w->nodes[proposer], 0, NULL);
        }
        if (what < 4)
            ask_all(w, proposer);
        if (what == 5 && draw(w, 20) == 0)
            restart(w, proposer);
        if (what == 6 && draw(w, 20) == 0)
            wipe(w, proposer);
        deliver(w);
    }
}

START_TEST(competing_proposers_under_loss_and_lost_disks_commit_one_value_for_each_change)
{
    static struct world w;
    uint64_t commits = 0, refusals = 0, wipes = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        compete(_i == 0 ? 3 : 5, seed, (uint32_t)(seed % 4) * 10, &w);
        commits += w.commits;
        refusals += w.refusals;
        wipes += w.wipes;
    }
    ck_assert_uint_gt(commits, 1000);
    ck_assert_uint_gt(refusals, 500); /* they did compete */
    ck_assert_uint_gt(wipes, 20);
}
END_TEST

START_TEST(a_lone_holder_commits_at_once)
{
    static struct keel_register reg;
    struct keel_register_message ask, reply;
    bool changed = false;
    keel_register_init(&reg, 0, 1, 9);
    keel_register_begin(&reg, 0, NULL);
    ck_assert(keel_register_ask(&reg, &ask));
    keel_register_answer(&reg, &ask, &reply, &changed);
    ck_assert(changed);
    ck_assert_int_eq(keel_register_hear(&reg, 0, &reply), KEEL_REGISTER_HAVE);
    ck_assert_uint_eq(reg.proposal.bytes, 0);
    keel_register_write(&reg, (const uint8_t *)"one", 3);
    ck_assert(keel_register_ask(&reg, &ask));
    keel_register_answer(&reg, &ask, &reply, &changed);
    ck_assert(changed);
    ck_assert_int_eq(keel_register_hear(&reg, 0, &reply), KEEL_REGISTER_COMMITTED);
    ck_assert_mem_eq(reg.value.data, "one", 3);
    ck_assert(!keel_register_ask(&reg, &ask));
}
END_TEST

/* Behind the highest that others take nobody proposes: not who promised it, nor who was refused for it. */
START_TEST(nobody_begins_with_a_ballot_that_others_refuse)
{
    static struct keel_register reg;
    keel_register_init(&reg, 0, 1, 9);
    ck_assert(keel_register_may_begin(&reg));
    reg.promised.counter = KEEL_EPOCH_MAX - 2;
    ck_assert(keel_register_may_begin(&reg));
    reg.promised.counter = KEEL_EPOCH_MAX - 1;
    ck_assert(!keel_register_may_begin(&reg));
    reg.promised.counter = 0;
    reg.seen.counter = KEEL_EPOCH_MAX - 1;
    ck_assert(!keel_register_may_begin(&reg));
}
END_TEST

/* Committed by two of three; the third, which did not hear of it, is reminded until it answers. */
START_TEST(a_holder_that_lacks_what_was_committed_is_reminded_of_it)
{
    static struct keel_register nodes[3];
    struct keel_register_message ask, reply;
    bool changed = false;
    for (uint16_t i = 0; i < 3; i++)
        keel_register_init(&nodes[i], i, 3, 9);
    keel_register_begin(&nodes[0], 0, NULL);
    ck_assert(keel_register_ask(&nodes[0], &ask));
    for (uint16_t i = 0; i < 3; i++) {
        keel_register_answer(&nodes[i], &ask, &reply, &changed);
        (void)keel_register_hear(&nodes[0], i, &reply);
    }
    keel_register_write(&nodes[0], (const uint8_t *)"one", 3);
    ck_assert(!keel_register_remind(&nodes[0], 2, &reply)); /* not committed */
    ck_assert(keel_register_ask(&nodes[0], &ask));
    for (uint16_t i = 0; i < 2; i++) {
        keel_register_answer(&nodes[i], &ask, &reply, &changed);
        (void)keel_register_hear(&nodes[0], i, &reply);
    }
    ck_assert_int_eq(nodes[0].phase, KEEL_REGISTER_IDLE);
    ck_assert(!keel_register_remind(&nodes[0], 1, &ask));
    ck_assert(keel_register_remind(&nodes[0], 2, &ask));
    keel_register_answer(&nodes[2], &ask, &reply, &changed);
    ck_assert(reply.head.ok && changed);
    ck_assert_mem_eq(nodes[2].value.data, "one", 3);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 2, &reply), KEEL_REGISTER_WAIT);
    ck_assert(!keel_register_remind(&nodes[0], 2, &ask));
    keel_register_begin(&nodes[0], 0, NULL);
    ck_assert(!keel_register_remind(&nodes[0], 2, &ask));
}
END_TEST

START_TEST(one_that_lost_its_disk_counts_for_all_and_for_no_majority)
{
    static struct keel_register nodes[3];
    struct keel_register_message ask, replies[3];
    bool changed = false;
    for (uint16_t i = 0; i < 3; i++)
        keel_register_init(&nodes[i], i, 3, 9);
    nodes[2].disk = 77; /* another than the first */
    keel_register_begin(&nodes[0], 0, NULL);
    ck_assert(keel_register_ask(&nodes[0], &ask));
    for (uint16_t i = 0; i < 3; i++)
        keel_register_answer(&nodes[i], &ask, &replies[i], &changed);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 0, &replies[0]), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 2, &replies[2]), KEEL_REGISTER_WAIT); /* no majority */
    ck_assert_int_eq(keel_register_hear(&nodes[0], 1, &replies[1]), KEEL_REGISTER_HAVE);
    keel_register_write(&nodes[0], (const uint8_t *)"one", 3);
    ck_assert(keel_register_ask(&nodes[0], &ask));
    for (uint16_t i = 0; i < 3; i++)
        keel_register_answer(&nodes[i], &ask, &replies[i], &changed);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 0, &replies[0]), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 2, &replies[2]), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 1, &replies[1]), KEEL_REGISTER_COMMITTED);
}
END_TEST

/* ---- holders that change ------------------------------------------------------------------------------- */

enum { SEATS = 3, NODES = 6 };

/* A value as a view has it: its number, and whose majorities it needs; then who made it. */
struct moving_value {
    uint64_t epoch, who;
    struct keel_view_holders before, holders;
};

struct moving_world {
    struct world w; /* of whom letters and dice are used */
    struct keel_register nodes[NODES];
    uint8_t disks[NODES][KEEL_REGISTER_STORE_BYTES];
    uint32_t disk_bytes[NODES];
    struct moving_value known[NODES];           /* to each: committed */
    struct moving_value committed[CHANGES_MAX]; /* by epoch; epoch 0: none */
    uint64_t highest, begun_after[NODES];
    uint32_t commits, moves, lost_disks, others;
};

static uint32_t write_moving(const struct moving_value *value, uint8_t out[128])
{
    struct keel_writer w = {.data = out, .capacity = 128};
    keel_writer_number(&w, value->epoch, 8);
    keel_writer_number(&w, 0, 8);
    keel_writer_number(&w, 0, 4);
    keel_view_holders_write(&w, &value->before);
    keel_view_holders_write(&w, &value->holders);
    keel_writer_number(&w, value->who, 8);
    ck_assert(!w.failed);
    return w.bytes;
}

static struct moving_value read_moving(const struct keel_register_value *value)
{
    struct moving_value out = {0};
    if (value->bytes == 0)
        return out;
    struct keel_wire_reader r = {.data = value->data, .bytes = value->bytes, .at = value->bytes - 8};
    out.epoch = keel_view_peek(value->data, value->bytes, &out.before, &out.holders);
    out.who = keel_reader_number(&r, 8);
    return out;
}

static void move_answer(struct moving_world *m, uint16_t node, const struct keel_register_message *ask,
                        struct keel_register_message *reply)
{
    bool changed = false;
    keel_register_answer(&m->nodes[node], ask, reply, &changed);
    if (changed)
        m->disk_bytes[node] = keel_register_store(&m->nodes[node], m->disks[node]);
}

static void move_hear(struct moving_world *m, const struct letter *letter);

static void move_ask(struct moving_world *m, uint16_t proposer)
{
    struct letter own = {.from = proposer, .to = proposer};
    struct keel_register_message ask;
    uint16_t asked[KEEL_REGISTER_ASKED_MAX];
    if (!keel_register_ask(&m->nodes[proposer], &ask))
        return;
    move_answer(m, proposer, &ask, &own.message);
    const uint32_t count = keel_register_asked(&m->nodes[proposer], asked);
    for (uint32_t i = 0; i < count; i++)
        if (asked[i] != proposer)
            post(&m->w, proposer, asked[i], &ask);
    move_hear(m, &own);
}

/* Any three, with the disks that they have. */
static void draw_holders(struct moving_world *m, struct keel_view_holders *out)
{
    *out = (struct keel_view_holders){.count = 0};
    while (out->count < SEATS) {
        const uint16_t node = (uint16_t)draw(&m->w, NODES);
        if (!keel_view_holders_has(out, node))
            out->at[out->count++] = (struct keel_view_holder){.node = node, .disk = m->nodes[node].disk};
    }
}

static void move_write(struct moving_world *m, uint16_t proposer)
{
    struct keel_register *reg = &m->nodes[proposer];
    uint8_t bytes[128];
    struct moving_value value = read_moving(&reg->proposal);
    /* Linearizable: what was committed before this read began is seen by it. */
    ck_assert_uint_ge(value.epoch, m->begun_after[proposer]);
    value.epoch++;
    value.who = (uint64_t)proposer << 32 | (reg->ballot.counter & UINT32_MAX);
    value.before = reg->sets[0];
    value.holders = reg->sets[1];
    if (keel_view_holders_same(&reg->sets[0], &reg->sets[1]) && draw(&m->w, 2) == 0)
        draw_holders(m, &value.holders);
    keel_register_write(reg, bytes, write_moving(&value, bytes));
    move_ask(m, proposer);
}

static void move_commit(struct moving_world *m, uint16_t proposer)
{
    const struct moving_value value = read_moving(&m->nodes[proposer].proposal);
    struct moving_value *there = &m->committed[value.epoch];
    ck_assert_uint_lt(value.epoch, CHANGES_MAX);
    ck_assert(there->epoch == 0 || there->who == value.who); /* one value per epoch */
    m->moves += keel_view_holders_same(&value.before, &value.holders) ? 0 : 1;
    *there = value;
    m->highest = value.epoch > m->highest ? value.epoch : m->highest;
    m->known[proposer] = value.epoch > m->known[proposer].epoch ? value : m->known[proposer];
    m->commits++;
}

static void move_hear(struct moving_world *m, const struct letter *letter)
{
    switch (keel_register_hear(&m->nodes[letter->to], letter->from, &letter->message)) {
    case KEEL_REGISTER_WAIT:
    case KEEL_REGISTER_REFUSED:
        break;
    case KEEL_REGISTER_OTHERS:
        m->others++;
        move_ask(m, letter->to);
        break;
    case KEEL_REGISTER_HAVE:
        move_write(m, letter->to);
        break;
    case KEEL_REGISTER_COMMITTED:
        move_commit(m, letter->to);
        break;
    }
}

static void move_deliver(struct moving_world *m)
{
    const uint32_t at = (uint32_t)draw(&m->w, LETTERS_MAX);
    if (!m->w.letters[at].used)
        return;
    const struct letter letter = m->w.letters[at];
    const enum keel_register_kind kind = letter.message.head.kind;
    m->w.letters[at].used = draw(&m->w, 10) == 0;
    if (kind == KEEL_REGISTER_PROMISE || kind == KEEL_REGISTER_ACCEPTED) {
        move_hear(m, &letter);
        return;
    }
    struct keel_register_message reply;
    move_answer(m, letter.to, &letter.message, &reply);
    post(&m->w, letter.to, letter.from, &reply);
}

/* Another life, which knows of no view; where a majority of those who hold the newest one is left without it,
 * maybe with another disk. */
static void move_restart(struct moving_world *m, uint16_t node)
{
    const struct moving_value *newest = &m->committed[m->highest];
    bool lose = m->highest > 0 && draw(&m->w, 3) == 0;
    for (uint16_t i = 0; i < NODES; i++) /* all know it, so nobody asks earlier ones */
        lose = lose && m->known[i].epoch == m->highest;
    for (uint8_t i = 0; i < newest->holders.count; i++) {
        const struct keel_view_holder *holder = &newest->holders.at[i];
        lose = lose && m->nodes[holder->node].disk == holder->disk &&
               read_moving(&m->nodes[holder->node].value).epoch >= m->highest;
    }
    const uint32_t disk = m->nodes[node].disk;
    keel_register_init(&m->nodes[node], node, SEATS, ++m->w.lives);
    m->known[node] = (struct moving_value){0};
    if (lose) {
        m->nodes[node].disk = (uint32_t)m->w.lives;
        m->disk_bytes[node] = keel_register_store(&m->nodes[node], m->disks[node]);
        m->lost_disks++;
    } else if (m->disk_bytes[node] > 0) {
        ck_ok(keel_register_load(&m->nodes[node], m->disks[node], m->disk_bytes[node]));
        ck_assert_uint_eq(m->nodes[node].disk, disk);
    }
}

static void move_about(uint64_t seed, struct moving_world *m)
{
    memset(m, 0, sizeof *m);
    m->w.random_state = seed;
    m->w.loss_percent = (uint32_t)(seed % 3) * 15;
    for (uint16_t i = 0; i < NODES; i++)
        keel_register_init(&m->nodes[i], i, SEATS, ++m->w.lives);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        const uint16_t node = (uint16_t)draw(&m->w, NODES), other = (uint16_t)draw(&m->w, NODES);
        const uint64_t what = draw(&m->w, 300);
        if (what == 0 && m->nodes[node].phase == KEEL_REGISTER_IDLE) {
            m->begun_after[node] = m->highest;
            keel_register_begin(&m->nodes[node], m->known[node].epoch, &m->known[node].holders);
        }
        if (what < 6)
            move_ask(m, node);
        if (what < 20 && m->known[other].epoch > m->known[node].epoch)
            m->known[node] = m->known[other]; /* it is told */
        if (what == 21 && draw(&m->w, 10) == 0)
            move_restart(m, node);
        move_deliver(m);
    }
}

START_TEST(holders_that_change_with_each_value_commit_one_value_for_each_epoch)
{
    static struct moving_world m;
    uint64_t commits = 0, moves = 0, lost = 0, others = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        move_about(seed, &m);
        commits += m.commits;
        moves += m.moves;
        lost += m.lost_disks;
        others += m.others;
    }
    printf("note: %" PRIu64 " values, %" PRIu64 " with other holders, %" PRIu64 " disks lost, %" PRIu64
           " times others were asked\n",
           commits, moves, lost, others);
    ck_assert_uint_gt(commits, 1000);
    ck_assert_uint_gt(moves, 300);
    ck_assert_uint_gt(lost, 20);
    ck_assert_uint_gt(others, 20);
}
END_TEST

START_TEST(an_acceptor_never_takes_back_a_promise)
{
    static struct keel_register reg;
    struct keel_register_message reply;
    bool changed = false;
    keel_register_init(&reg, 0, 3, 9);
    struct keel_register_message ask = {.head = {.kind = KEEL_REGISTER_PREPARE, .ballot = {5, 1}}};
    keel_register_answer(&reg, &ask, &reply, &changed);
    ck_assert(reply.head.ok && changed);
    ask = (struct keel_register_message){.head = {.kind = KEEL_REGISTER_ACCEPT, .ballot = {5, 0}}};
    ask.value.bytes = 1;
    keel_register_answer(&reg, &ask, &reply, &changed);
    ck_assert(!reply.head.ok && !changed);
    ck_assert_uint_eq(reply.head.promised.node, 1);
    ck_assert_uint_eq(reg.value.bytes, 0);
    ask.head.ballot.node = 1;
    keel_register_answer(&reg, &ask, &reply, &changed);
    ck_assert(reply.head.ok && changed);
    keel_register_answer(&reg, &ask, &reply, &changed); /* a repeated message */
    ck_assert(reply.head.ok && !changed);
}
END_TEST

START_TEST(a_stored_state_comes_back_or_is_refused_as_a_whole)
{
    static struct keel_register reg, back;
    uint8_t bytes[KEEL_REGISTER_STORE_BYTES];
    keel_register_init(&reg, 2, 3, 9);
    reg.run = UINT64_C(0x0123456789abcdef);
    reg.promised = (struct keel_ballot){7, 2};
    reg.accepted = (struct keel_ballot){6, 1};
    reg.value.bytes = 100;
    memset(reg.value.data, 0x5a, 100);
    uint32_t count = keel_register_store(&reg, bytes);
    keel_register_init(&back, 2, 3, 9);
    ck_ok(keel_register_load(&back, bytes, count));
    ck_assert_uint_eq(back.run, reg.run);
    ck_assert_int_eq(keel_ballot_compare(back.promised, reg.promised), 0);
    ck_assert_int_eq(keel_ballot_compare(back.accepted, reg.accepted), 0);
    ck_assert_mem_eq(back.value.data, reg.value.data, 100);
    keel_register_init(&back, 2, 3, 9);
    for (uint32_t i = 0; i < count; i++) {
        bytes[i] ^= 0x10;
        ck_status(keel_register_load(&back, bytes, count), KEEL_CORRUPT);
        bytes[i] ^= 0x10;
        ck_status(keel_register_load(&back, bytes, i), KEEL_CORRUPT);
    }
    ck_assert_uint_eq(back.promised.counter, 0);
    ck_assert_uint_eq(back.value.bytes, 0);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, competing_proposers_under_loss_and_lost_disks_commit_one_value_for_each_change, 0,
                        2);
    tcase_add_test(tc, a_lone_holder_commits_at_once);
    tcase_add_test(tc, nobody_begins_with_a_ballot_that_others_refuse);
    tcase_add_test(tc, a_holder_that_lacks_what_was_committed_is_reminded_of_it);
    tcase_add_test(tc, one_that_lost_its_disk_counts_for_all_and_for_no_majority);
    tcase_add_test(tc, holders_that_change_with_each_value_commit_one_value_for_each_epoch);
    tcase_add_test(tc, an_acceptor_never_takes_back_a_promise);
    tcase_add_test(tc, a_stored_state_comes_back_or_is_refused_as_a_whole);
}

KEEL_TEST_MAIN("register", cases, 60)
