/* node_wire_test.c - control messages come back as they went, and nothing else comes in. */
#include "any_plan.h"
#include "harness.h"
#include "node_wire.h"

#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % below;
}

static void fill_view(struct keel_view *view)
{
    struct keel_member joins[8];
    uint16_t count = (uint16_t)(1 + draw(8));
    for (uint16_t i = 0; i < count; i++)
        joins[i] = (struct keel_member){.node = (uint16_t)(1 + i), .data = {.bytes = (uint32_t)draw(33)}};
    const struct keel_view none = {.epoch = draw(1000)};
    const struct keel_view_change change = {.joins = joins,
                                            .join_count = count,
                                            .rank_count = 4,
                                            .shard_count = (uint16_t)(1 + draw(20)),
                                            .plans = any_plan()};
    ck_assert(keel_view_next(&none, &change, view));
}

static void fill_record(struct keel_step_record *r)
{
    *r = (struct keel_step_record){.step = draw(1 << 30), .loss_bits = 1, .grad_norm_bits = 2};
    r->digest = draw(1 << 30);
    r->redo_microbatches = 77;
    r->loss_scale_bits = 0x47800000;
    r->sent_bytes = UINT64_C(0x123456789a);
    r->val_accuracy_bits = 5;
    r->has_val_accuracy = 1;
    r->heal_ns = UINT64_MAX;
    r->heal_bytes = UINT64_C(0xabcdef0123);
    r->heal_ranks = 3;
    r->tokens = UINT64_C(1) << 50;
}

static void fill_status(struct keel_wire_status *s)
{
    s->incarnation = 3;
    s->sequence = draw(1 << 30);
    s->silent_node = draw(2) == 0 ? KEEL_RANK_NONE : (uint16_t)draw(KEEL_NODES_MAX);
    s->first_record = UINT64_MAX;
    s->has_newest = draw(2) == 0;
    if (s->has_newest)
        fill_record(&s->newest);
    s->worker_count = (uint8_t)draw(KEEL_WORKERS_PER_NODE + 1);
    for (uint8_t i = 0; i < s->worker_count; i++)
        s->workers[i] =
            (struct keel_wire_worker){.incarnation = i,
                                      .state = (enum keel_worker_state)draw(KEEL_WORKER_STATE_COUNT),
                                      .cause = (enum keel_cause)draw(KEEL_CAUSE_COUNT),
                                      .failure = (enum keel_status)draw(KEEL_STATUS_COUNT),
                                      .sent_epoch = draw(100),
                                      .address = {.bytes = KEEL_ADDRESS_BYTES, .data = {9}}};
    strcpy(s->detail, "no space left");
}

static void fill_register(struct keel_wire_register *reg)
{
    static const uint64_t big = KEEL_EPOCH_MAX - 1;
    struct keel_register_head *r = &reg->head;
    r->kind = (enum keel_register_kind)(KEEL_REGISTER_PREPARE + draw(4));
    r->ok = draw(2) == 0;
    r->ballot = (struct keel_ballot){big, 4};
    r->promised = (struct keel_ballot){draw(100), draw(5)};
    struct keel_view view;
    fill_view(&view);
    if (r->kind == KEEL_REGISTER_ACCEPT || draw(2) == 0)
        reg->value_bytes = keel_view_encode(&view, reg->data);
    if (r->kind == KEEL_REGISTER_PROMISE && reg->value_bytes > 0)
        r->accepted = r->promised = (struct keel_ballot){1 + draw(100), draw(5)};
}

static void fill_name(struct keel_wire_view_name *name)
{
    *name = (struct keel_wire_view_name){.epoch = 1 + draw(100), .digest = draw(1 << 30)};
    name->bytes = (uint32_t)(1 + draw(KEEL_VIEW_BYTES_MAX));
}

static void fill_announcement(struct keel_wire_view *v)
{
    struct keel_view view;
    uint8_t bytes[KEEL_VIEW_BYTES_MAX];
    fill_name(&v->name);
    v->source = (uint16_t)draw(KEEL_NODES_MAX);
    v->base = draw(3);
    fill_view(&view);
    v->data_bytes = (uint16_t)(draw(2) == 0 ? 0 : keel_view_encode(&view, bytes));
    memcpy(v->data, bytes, v->data_bytes);
    v->have_count = (uint16_t)draw(KEEL_NODES_MAX);
    v->lack_count = (uint16_t)draw(KEEL_NODES_MAX - v->have_count + 1U);
    for (uint32_t i = 0; i < (uint32_t)v->have_count + v->lack_count; i++)
        v->nodes[i] = (uint16_t)draw(KEEL_NODES_MAX);
}

static void fill_away(struct keel_wire_away *away)
{
    away->version = draw(1 << 30);
    for (uint32_t node = 1 + (uint32_t)draw(9); node < KEEL_NODES_MAX; node += 1 + (uint32_t)draw(9))
        away->nodes[away->count++] = (uint16_t)node;
}

static void fill(struct keel_wire_message *m, enum keel_wire_kind kind)
{
    memset(m, 0, sizeof *m);
    m->kind = kind;
    m->epoch = draw(1 << 30);
    switch (kind) {
    case KEEL_WIRE_STATUS:
        fill_status(&m->as.status);
        break;
    case KEEL_WIRE_LEADER:
        m->as.leader = (struct keel_wire_leader){.next_step = draw(1 << 30),
                                                 .stop = true,
                                                 .note = draw(1 << 30),
                                                 .lacks_to = draw(2) == 0 ? UINT64_MAX : draw(100)};
        strcpy(m->as.leader.detail, "stopped");
        break;
    case KEEL_WIRE_STEP:
        fill_record(&m->as.step);
        break;
    case KEEL_WIRE_SHARD:
    case KEEL_WIRE_SHARD_ACK:
        m->as.shard = (struct keel_wire_shard){.local = 15, .step = draw(1 << 30), .attempt = 4};
        if (kind == KEEL_WIRE_SHARD)
            m->as.shard.summary = (struct keel_shard_summary){.rank = 63, .file_bytes = UINT64_MAX};
        break;
    case KEEL_WIRE_NOTE:
        m->as.note = (struct keel_wire_note){
            .number = draw(1 << 30), .local = 3, .bytes = (uint16_t)draw(KEEL_WIRE_NOTE_BYTES + 1)};
        memset(m->as.note.data, '{', m->as.note.bytes);
        break;
    case KEEL_WIRE_REGISTER:
        fill_register(&m->as.reg);
        break;
    case KEEL_WIRE_VIEW:
        fill_announcement(&m->as.view);
        break;
    case KEEL_WIRE_PULL:
        fill_name(&m->as.pull.name);
        m->as.pull.first = (uint8_t)draw(256);
        m->as.pull.parts = draw(1 << 20);
        break;
    case KEEL_WIRE_PART:
        fill_name(&m->as.part.name);
        m->as.part.part = (uint8_t)draw(keel_wire_parts(m->as.part.name.bytes));
        memset(m->as.part.data, 7, sizeof m->as.part.data);
        break;
    case KEEL_WIRE_PAST:
        m->as.past =
            (struct keel_wire_past){.step = draw(1 << 30), .bytes = (uint16_t)draw(KEEL_PAST_BYTES_MAX + 1)};
        memset(m->as.past.data, 9, m->as.past.bytes);
        break;
    case KEEL_WIRE_AWAY:
        fill_away(&m->as.away);
        break;
    case KEEL_WIRE_BEAT:
    case KEEL_WIRE_KIND_COUNT:
        break;
    }
}

START_TEST(every_message_comes_back_as_it_went)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    state = 1;
    for (uint32_t i = 0; i < 4000; i++) {
        fill(&in, (enum keel_wire_kind)(1 + i % (KEEL_WIRE_KIND_COUNT - 1)));
        ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
        uint8_t again[KEEL_MESSAGE_BYTES];
        uint32_t count = keel_wire_encode(&in, bytes);
        ck_assert_uint_eq(count, keel_wire_encode(&out, again));
        ck_assert_mem_eq(bytes, again, count);
        ck_assert_int_eq(in.kind, out.kind);
        ck_assert_uint_eq(in.epoch, out.epoch);
    }
}
END_TEST

/* Of an older layout each would be refused at its first bytes, and the fuzzer would begin from nothing. With
 * KEEL_WRITE_GOLDEN they are made anew. */
START_TEST(seeds_of_the_fuzzer_are_messages_of_today)
{
    static const char *const names[] = {
        [KEEL_WIRE_STATUS] = "status", [KEEL_WIRE_LEADER] = "lead",         [KEEL_WIRE_STEP] = "step",
        [KEEL_WIRE_SHARD] = "shard",   [KEEL_WIRE_SHARD_ACK] = "shard_ack", [KEEL_WIRE_NOTE] = "note",
        [KEEL_WIRE_BEAT] = "beat",     [KEEL_WIRE_REGISTER] = "register"};
    static struct keel_wire_message message;
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    state = 3;
    for (uint32_t kind = KEEL_WIRE_STATUS; kind <= KEEL_WIRE_REGISTER; kind++) {
        char path[64], *seed;
        size_t count;
        snprintf(path, sizeof path, "tests/fuzz/seeds/wire/%s", names[kind]);
        fill(&message, (enum keel_wire_kind)kind);
        if (kind == KEEL_WIRE_STATUS && message.as.status.worker_count > 2)
            message.as.status.worker_count = 2;
        if (kind == KEEL_WIRE_NOTE)
            message.as.note.bytes = 2;
        if (getenv("KEEL_WRITE_GOLDEN") != NULL)
            ck_ok(keel_file_replace(path, bytes, keel_wire_encode(&message, bytes), 0644));
        ck_ok(keel_file_read(path, sizeof bytes, &seed, &count));
        ck_assert(keel_wire_decode((const uint8_t *)seed, (uint32_t)count, &message));
        ck_assert_uint_eq(message.kind, kind);
        keel_free(seed);
    }
}
END_TEST

START_TEST(fields_survive_the_way_one_by_one)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    state = 2;
    fill(&in, KEEL_WIRE_STATUS);
    in.as.status.worker_count = 2;
    in.as.status.workers[1].state = KEEL_WORKER_DONE;
    in.as.status.workers[1].accused_rank = 9;
    in.as.status.workers[1].accused_epoch = 12;
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_int_eq(out.as.status.workers[1].state, KEEL_WORKER_DONE);
    ck_assert_uint_eq(out.as.status.workers[1].accused_rank, 9);
    ck_assert_uint_eq(out.as.status.workers[1].accused_epoch, 12);
    ck_assert_str_eq(out.as.status.detail, "no space left");
    char text[KEEL_DETAIL_BYTES]; /* as long as a failure's words may be */
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    strcpy(in.as.status.detail, text);
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_str_eq(out.as.status.detail, text);
    fill(&in, KEEL_WIRE_LEADER);
    strcpy(in.as.leader.detail, text);
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_str_eq(out.as.leader.detail, text);
    fill(&in, KEEL_WIRE_STEP);
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_mem_eq(&in.as.step, &out.as.step, sizeof in.as.step);
    fill(&in, KEEL_WIRE_SHARD);
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_mem_eq(&in.as.shard.summary, &out.as.shard.summary, sizeof in.as.shard.summary);
}
END_TEST

START_TEST(nodes_that_are_to_be_away_come_in_order_each_once_and_all_of_them_fit)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    state = 5;
    fill(&in, KEEL_WIRE_AWAY);
    in.as.away.count = KEEL_NODES_MAX - 1;
    for (uint16_t i = 0; i < in.as.away.count; i++)
        in.as.away.nodes[i] = (uint16_t)(i + 1);
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    ck_assert_mem_eq(&in.as.away, &out.as.away, sizeof in.as.away - sizeof in.as.away.nodes[0]);
    static const uint16_t wrong[][2] = {{3, 3}, {4, 3}, {0, 3}, {3, KEEL_NODES_MAX}};
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        in.as.away.count = 2;
        memcpy(in.as.away.nodes, wrong[i], sizeof wrong[i]);
        ck_assert(!keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    }
}
END_TEST

/* A launcher that believed it would start the node's successor under a number that no node can have. */
START_TEST(a_status_of_a_node_that_was_never_counted_up_so_far_is_refused)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    state = 4;
    fill(&in, KEEL_WIRE_STATUS);
    in.as.status.incarnation = KEEL_WIRE_INCARNATION_MAX;
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    in.as.status.incarnation++;
    ck_assert(!keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
}
END_TEST

/* Who believed it would propose nothing, or a view of nobody. */
START_TEST(a_promise_that_says_half_of_what_was_accepted_is_refused)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    struct keel_view view;
    state = 5;
    fill_view(&view);
    in = (struct keel_wire_message){.kind = KEEL_WIRE_REGISTER, .as.reg.head.kind = KEEL_REGISTER_PROMISE};
    in.as.reg.value_bytes = keel_view_encode(&view, in.as.reg.data);
    ck_assert(!keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    in.as.reg.head.accepted = (struct keel_ballot){7, 4};
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    in.as.reg.value_bytes = 0;
    ck_assert(!keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    in.as.reg.head.accepted = (struct keel_ballot){0};
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
}
END_TEST

START_TEST(a_ballot_behind_which_there_is_no_next_is_refused)
{
    static struct keel_wire_message in, out;
    uint8_t bytes[KEEL_MESSAGE_BYTES];
    in = (struct keel_wire_message){.kind = KEEL_WIRE_REGISTER, .as.reg.head.kind = KEEL_REGISTER_ACCEPTED};
    in.as.reg.head.promised = (struct keel_ballot){KEEL_EPOCH_MAX - 1, 4};
    ck_assert(keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    for (uint64_t counter = KEEL_EPOCH_MAX; counter > 0; counter = counter < UINT64_MAX ? UINT64_MAX : 0) {
        in.as.reg.head.promised.counter = counter;
        ck_assert(!keel_wire_decode(bytes, keel_wire_encode(&in, bytes), &out));
    }
}
END_TEST

/* What a decode accepts must be safe to use and to send on. */
static void check_accepted(const struct keel_wire_message *m)
{
    uint8_t again[KEEL_MESSAGE_BYTES];
    (void)keel_wire_encode(m, again);
    if (m->kind == KEEL_WIRE_STATUS)
        ck_assert_uint_le(m->as.status.worker_count, KEEL_WORKERS_PER_NODE);
    if (m->kind == KEEL_WIRE_VIEW) {
        ck_assert_uint_le(m->as.view.data_bytes, KEEL_WIRE_VIEW_BYTES);
        ck_assert_uint_le((uint32_t)m->as.view.have_count + m->as.view.lack_count, KEEL_NODES_MAX);
    }
    if (m->kind == KEEL_WIRE_PART)
        ck_assert_uint_lt(m->as.part.part, KEEL_WIRE_PARTS_MAX);
    if (m->kind == KEEL_WIRE_REGISTER)
        ck_assert_uint_le(m->as.reg.value_bytes, KEEL_REGISTER_BYTES_MAX);
    if (m->kind == KEEL_WIRE_SHARD)
        ck_assert_uint_lt(m->as.shard.local, KEEL_WORKERS_PER_NODE);
    if (m->kind == KEEL_WIRE_NOTE)
        ck_assert_uint_le(m->as.note.bytes, KEEL_WIRE_NOTE_BYTES);
    if (m->kind == KEEL_WIRE_PAST)
        ck_assert_uint_le(m->as.past.bytes, KEEL_PAST_BYTES_MAX);
}

START_TEST(a_hundred_thousand_mutations_are_dropped_or_harmless)
{
    static struct keel_wire_message in, out;
    static uint8_t bytes[KEEL_MESSAGE_BYTES];
    uint32_t dropped = 0;
    state = 3;
    for (uint32_t i = 0; i < 100000; i++) {
        fill(&in, (enum keel_wire_kind)(1 + i % (KEEL_WIRE_KIND_COUNT - 1)));
        uint32_t count = keel_wire_encode(&in, bytes);
        switch (draw(4)) {
        case 0:
            count = (uint32_t)draw(count);
            break;
        case 1:
            memset(bytes + count, (int)draw(256), 8);
            count += 1 + (uint32_t)draw(8);
            break;
        default:
            for (uint64_t flips = 1 + draw(8); flips > 0; flips--)
                bytes[draw(count)] = (uint8_t)draw(256);
            break;
        }
        uint8_t *tight = malloc(count ? count : 1); /* so that a sanitizer sees a read behind the end */
        ck_assert_ptr_nonnull(tight);
        memcpy(tight, bytes, count);
        if (keel_wire_decode(tight, count, &out))
            check_accepted(&out);
        else
            dropped++;
        free(tight);
    }
    ck_assert_uint_gt(dropped, 50000); /* every cut and every tail, and most flips */
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, every_message_comes_back_as_it_went);
    tcase_add_test(tc, seeds_of_the_fuzzer_are_messages_of_today);
    tcase_add_test(tc, fields_survive_the_way_one_by_one);
    tcase_add_test(tc, a_status_of_a_node_that_was_never_counted_up_so_far_is_refused);
    tcase_add_test(tc, nodes_that_are_to_be_away_come_in_order_each_once_and_all_of_them_fit);
    tcase_add_test(tc, a_promise_that_says_half_of_what_was_accepted_is_refused);
    tcase_add_test(tc, a_ballot_behind_which_there_is_no_next_is_refused);
    tcase_add_test(tc, a_hundred_thousand_mutations_are_dropped_or_harmless);
}

KEEL_TEST_MAIN("node_wire", cases, 60)
