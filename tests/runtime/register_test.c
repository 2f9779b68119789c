/* register_test.c - one value in a register of several holders: competing proposers, loss, lost memory. */
#include "harness.h"
#include "register.h"

#include <inttypes.h>
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
            keel_register_begin(&w->nodes[proposer]);
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
    keel_register_begin(&reg);
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

/* Committed by two of three; the third, which did not hear of it, is reminded until it answers. */
START_TEST(a_holder_that_lacks_what_was_committed_is_reminded_of_it)
{
    static struct keel_register nodes[3];
    struct keel_register_message ask, reply;
    bool changed = false;
    for (uint16_t i = 0; i < 3; i++)
        keel_register_init(&nodes[i], i, 3, 9);
    keel_register_begin(&nodes[0]);
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
    keel_register_begin(&nodes[0]);
    ck_assert(!keel_register_remind(&nodes[0], 2, &ask));
}
END_TEST

START_TEST(one_that_abstains_counts_for_all_and_for_no_majority)
{
    static struct keel_register nodes[2];
    struct keel_register_message ask, replies[2], none = {.head.kind = KEEL_REGISTER_ABSTAINS};
    bool changed = false;
    for (uint16_t i = 0; i < 2; i++)
        keel_register_init(&nodes[i], i, 3, 9);
    keel_register_begin(&nodes[0]);
    ck_assert(keel_register_ask(&nodes[0], &ask));
    none.head.ballot = ask.head.ballot;
    for (uint16_t i = 0; i < 2; i++)
        keel_register_answer(&nodes[i], &ask, &replies[i], &changed);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 0, &replies[0]), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 1, &none), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 2, &none), KEEL_REGISTER_WAIT); /* no majority */
    ck_assert_int_eq(keel_register_hear(&nodes[0], 1, &replies[1]), KEEL_REGISTER_HAVE);
    keel_register_write(&nodes[0], (const uint8_t *)"one", 3);
    ck_assert(keel_register_ask(&nodes[0], &ask));
    for (uint16_t i = 0; i < 2; i++)
        keel_register_answer(&nodes[i], &ask, &replies[i], &changed);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 0, &replies[0]), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 2, &none), KEEL_REGISTER_WAIT);
    ck_assert_int_eq(keel_register_hear(&nodes[0], 1, &replies[1]), KEEL_REGISTER_COMMITTED);
    ck_assert(keel_register_remind(&nodes[0], 2, &ask));
    (void)keel_register_hear(&nodes[0], 2, &none);
    ck_assert(!keel_register_remind(&nodes[0], 2, &ask));
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
    reg.promised = (struct keel_ballot){7, 2};
    reg.accepted = (struct keel_ballot){6, 1};
    reg.value.bytes = 100;
    memset(reg.value.data, 0x5a, 100);
    uint32_t count = keel_register_store(&reg, bytes);
    keel_register_init(&back, 2, 3, 9);
    ck_ok(keel_register_load(&back, bytes, count));
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
    tcase_add_test(tc, a_holder_that_lacks_what_was_committed_is_reminded_of_it);
    tcase_add_test(tc, one_that_abstains_counts_for_all_and_for_no_majority);
    tcase_add_test(tc, an_acceptor_never_takes_back_a_promise);
    tcase_add_test(tc, a_stored_state_comes_back_or_is_refused_as_a_whole);
}

KEEL_TEST_MAIN("register", cases, 60)
