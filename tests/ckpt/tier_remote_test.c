/* tier_remote_test.c - a partner in a process of its own, that is killed, stopped, or mad: a call ends
 * within its time, nothing wrong is believed, and what others hold is still there. */
#include "socket_link.h"
#include "tier_rig.h"
#include "tier_wire.h"
#include <sys/wait.h>

enum { CAPACITY_BYTES = 8 << 20, KILLS = 100 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { THINNER = 4 }; /* a sanitizer looks at a quarter of the flipped bits */
#else
enum { THINNER = 1 };
#endif

/* ---- a partner ----------------------------------------------------------------------------------------- */

struct partner {
    pid_t process;
    struct socket_link socket;
    struct keel_tier *tier; /* NULL when greeting it failed */
};

typedef void partner_main(struct socket_link *socket);

static void serve_memory(struct socket_link *socket)
{
    struct keel_tier *memory;
    struct keel_tier_link link = link_over(socket);
    if (keel_tier_memory_open("sample", CAPACITY_BYTES, "memory", &memory) == KEEL_OK)
        (void)keel_tier_serve(memory, &link, 100 * KEEL_NS_PER_S);
}

static void fork_partner(partner_main *body, struct partner *out)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    *out = (struct partner){.process = fork(), .socket = {ends[0], true}};
    if (out->process == 0) {
        struct socket_link theirs = {.fd = ends[1]};
        close(ends[0]);
        body(&theirs);
        _exit(0);
    }
    ck_assert_int_gt(out->process, 0);
    close(ends[1]);
}

static enum keel_status start_partner(partner_main *body, uint64_t timeout_ns, struct partner *out)
{
    fork_partner(body, out);
    struct keel_tier_link link = link_over(&out->socket);
    return keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, "sample", "partner 1", timeout_ns, &out->tier);
}

/* When this returns, a partner that is stopped stands still. */
static void signal_partner(struct partner *partner, int number)
{
    int state;
    ck_assert_int_eq(kill(partner->process, number), 0);
    if (number == SIGSTOP)
        ck_assert(waitpid(partner->process, &state, WUNTRACED) == partner->process && WIFSTOPPED(state));
    partner->socket.patient = number == SIGCONT;
}

static void end_partner(struct partner *partner)
{
    keel_tier_end(partner->tier);
    close(partner->socket.fd);
    (void)kill(partner->process, SIGKILL);
    ck_assert_int_eq(waitpid(partner->process, NULL, 0), partner->process);
}

/* ---- killed -------------------------------------------------------------------------------------------- */

START_TEST(a_partner_killed_at_any_moment_costs_its_copies_only)
{
    struct origin origin = make_origin();
    struct listed all = list_tier(origin.tier);
    uint64_t state = 17, whole_turns = 0, losses = 0;
    for (uint32_t round = 0; round < KILLS; round++) {
        struct partner partner;
        ck_ok(start_partner(serve_memory, PATIENCE_NS, &partner));
        pid_t killer = fork();
        if (killer == 0) {
            keel_sleep_until_ns(keel_deadline_after_ns(draw(&state, 4 * KEEL_NS_PER_MS)));
            kill(partner.process, SIGKILL);
            _exit(0);
        }
        draw(&state, 1); /* the child drew, too */
        enum keel_status status = KEEL_OK;
        while (status == KEEL_OK) {
            for (uint32_t i = 0; i < all.count && status == KEEL_OK; i++)
                status = keel_tier_copy(origin.tier, &all.infos[i].object, partner.tier);
            for (uint32_t i = 0; i < all.count && status == KEEL_OK; i++)
                status = keel_tier_verify(partner.tier, &all.infos[i].object);
            whole_turns += status == KEEL_OK;
        }
        ck_assert_msg(status == KEEL_PEER_LOST, "%s: %s", keel_status_name(status), keel_detail());
        losses++;
        struct keel_tier_source *source; /* for ever, and at once */
        ck_status(keel_tier_open(partner.tier, &all.infos[0].object, &source), KEEL_PEER_LOST);
        end_partner(&partner);
        ck_assert_int_eq(waitpid(killer, NULL, 0), killer);
    }
    for (uint32_t i = 0; i < all.count; i++)
        ck_ok(keel_tier_verify(origin.tier, &all.infos[i].object));
    printf("note: a partner was killed %llu times, between it took %llu whole generations\n",
           (unsigned long long)losses, (unsigned long long)whole_turns);
    end_origin(&origin);
}
END_TEST

/* Two partners, one killed: the generation comes from the other and from the erasure set's nodes that are
 * left. */
START_TEST(a_generation_survives_the_partner_that_had_it)
{
    struct origin origin = make_origin(), restored = make_empty_origin();
    struct listed all = list_tier(origin.tier);
    struct partner partners[2];
    for (uint32_t p = 0; p < 2; p++) {
        ck_ok(start_partner(serve_memory, PATIENCE_NS, &partners[p]));
        for (uint32_t i = 0; i < all.count; i++)
            ck_ok(keel_tier_copy(origin.tier, &all.infos[i].object, partners[p].tier));
    }
    signal_partner(&partners[0], SIGKILL);
    struct keel_tier *sources[2] = {partners[0].tier, partners[1].tier};
    struct keel_repair_config config = {.step = 5, .attempt = 2, .sources = sources, .source_count = 2};
    ck_ok(keel_store_repair(restored.store, &config, NULL));
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(restored.store, 5, 2, &snapshot));
    ck_ok(check_all(snapshot, 5));
    keel_snapshot_close(snapshot);
    for (uint32_t p = 0; p < 2; p++)
        end_partner(&partners[p]);
    end_origin(&restored);
    end_origin(&origin);
}
END_TEST

/* ---- stopped ------------------------------------------------------------------------------------------- */

START_TEST(a_stopped_partner_costs_a_call_its_deadline_and_may_come_back)
{
    struct origin origin = make_origin();
    struct partner partner;
    struct keel_object object = shard_object(5, 2, 1), other = shard_object(5, 2, 2);
    struct keel_tier_source *source;
    const uint64_t timeout_ns = 200 * KEEL_NS_PER_MS;
    ck_ok(start_partner(serve_memory, timeout_ns, &partner));
    ck_ok(keel_tier_copy(origin.tier, &object, partner.tier));
    signal_partner(&partner, SIGSTOP);
    uint64_t from_ns = keel_now_ns();
    ck_status(keel_tier_open(partner.tier, &object, &source), KEEL_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "partner 1: no answer within 200 ms"));
    ck_assert_uint_ge(keel_now_ns() - from_ns, timeout_ns);
    ck_status(keel_tier_remove(partner.tier, &other), KEEL_TIMEOUT); /* and the next ones nothing */
    ck_assert_ptr_nonnull(strstr(keel_detail(), "partner 1: still no answer"));
    signal_partner(&partner, SIGCONT);
    enum keel_status status = KEEL_TIMEOUT; /* late answers are dropped, the next call gets its own */
    for (uint32_t i = 0; i < 100 && status == KEEL_TIMEOUT; i++)
        status = keel_tier_verify(partner.tier, &object);
    ck_assert_int_eq(status, KEEL_OK);
    ck_ok(keel_tier_copy(origin.tier, &other, partner.tier));
    ck_ok(keel_tier_verify(partner.tier, &other));
    ck_assert_uint_eq(list_tier(partner.tier).count, 2);
    end_partner(&partner);
    end_origin(&origin);
}
END_TEST

/* A link whose other side answers so many messages, and then stands still. Nobody waits: what would have is
 * counted. */
struct freezing_link {
    struct socket_link *socket;
    uint32_t answers, waits;
};

static enum keel_status freezing_send(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    const struct freezing_link *link = context;
    return link->answers == 0 ? KEEL_OK : socket_send(link->socket, message, bytes, deadline_ns);
}

static enum keel_status freezing_receive(void *context, void *message, size_t capacity, size_t *out_bytes,
                                         uint64_t deadline_ns)
{
    struct freezing_link *link = context;
    if (link->answers > 0) {
        link->answers--;
        return socket_receive(link->socket, message, capacity, out_bytes, deadline_ns);
    }
    link->waits += keel_remaining_ns(deadline_ns) > 0;
    return keel_fail(KEEL_TIMEOUT, "the other side is frozen");
}

/* However much a repair or a choice wants of it; the other source has everything. */
START_TEST(a_frozen_partner_costs_its_timeout_once)
{
    struct origin origin = make_origin();
    struct listed all = list_tier(origin.tier);
    uint32_t repairs = 0, waits = 1;
    for (uint32_t answers = 1; waits > 0; answers++) {
        struct origin empty = make_empty_origin();
        struct partner partner;
        fork_partner(serve_memory, &partner);
        struct freezing_link freezing = {.socket = &partner.socket, .answers = UINT32_MAX};
        struct keel_tier_link link = {freezing_send, freezing_receive, &freezing};
        ck_ok(keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, "sample", "partner 1", PATIENCE_NS,
                                    &partner.tier));
        for (uint32_t i = 0; i < all.count; i++)
            ck_ok(keel_tier_copy(origin.tier, &all.infos[i].object, partner.tier));
        freezing.answers = answers;
        struct keel_tier *sources[2] = {partner.tier, origin.tier};
        struct keel_repair_config config = {.step = 5, .attempt = 2, .sources = sources, .source_count = 2};
        ck_ok(keel_store_repair(empty.store, &config, NULL));
        ck_assert_uint_le(freezing.waits, 1);
        struct keel_offer offers[2];
        uint32_t count;
        ck_ok(keel_tier_inventory(sources, 2, 0, offers, 2, &count));
        ck_assert_uint_le(freezing.waits, 1);
        ck_assert_uint_eq(count, 1);
        waits = freezing.waits;
        repairs++;
        end_partner(&partner);
        end_origin(&empty);
    }
    ck_assert_uint_gt(repairs, 10);
    printf("note: %u repairs from a partner that froze after each of its answers: one time-out each\n",
           repairs);
    end_origin(&origin);
}
END_TEST

/* It is the partner's memory, or one of its few handles, that would stay taken. */
START_TEST(what_a_call_that_gave_up_had_opened_is_let_go)
{
    enum { TURNS = 80 };
    struct partner partner;
    struct keel_object object = shard_object(5, 2, 1), other = shard_object(5, 2, 2);
    struct keel_tier_sink *sink = NULL;
    struct keel_tier_source *source;
    uint8_t byte = 1;
    ck_ok(start_partner(serve_memory, 50 * KEEL_NS_PER_MS, &partner));
    ck_ok(write_object(partner.tier, &other, &byte, 1, 1));
    for (uint32_t i = 0; i < TURNS; i++) {
        signal_partner(&partner, SIGSTOP);
        ck_status(i % 8 == 0 ? keel_tier_create(partner.tier, &object, CAPACITY_BYTES / 2, &sink)
                             : keel_tier_open(partner.tier, &other, &source),
                  KEEL_TIMEOUT);
        signal_partner(&partner, SIGCONT);
        enum keel_status status = KEEL_TIMEOUT;
        for (uint32_t tries = 0; tries < 100 && status != KEEL_OK; tries++)
            status = keel_tier_create(partner.tier, &object, CAPACITY_BYTES / 4 * 3, &sink);
        ck_assert_int_eq(status, KEEL_OK);
        keel_tier_abort(sink);
    }
    end_partner(&partner);
}
END_TEST

START_TEST(what_a_stopped_partner_does_not_take_is_given_up)
{
    struct partner partner;
    struct keel_object object = shard_object(5, 2, 1);
    struct keel_tier_sink *sink;
    struct keel_tier_source *source;
    uint8_t *data;
    ck_ok(keel_alloc(CAPACITY_BYTES, 1, &data));
    ck_ok(start_partner(serve_memory, 200 * KEEL_NS_PER_MS, &partner));
    ck_ok(keel_tier_create(partner.tier, &object, CAPACITY_BYTES, &sink));
    signal_partner(&partner, SIGSTOP);
    ck_status(keel_tier_write(sink, data, CAPACITY_BYTES), KEEL_TIMEOUT); /* more than the socket holds */
    uint64_t from_ns = keel_now_ns();
    keel_tier_abort(sink);
    ck_status(keel_tier_open(partner.tier, &object, &source), KEEL_PEER_LOST);
    ck_assert_uint_lt(keel_now_ns() - from_ns, 20 * KEEL_NS_PER_S); /* does not wait for what cannot come */
    signal_partner(&partner, SIGCONT);
    end_partner(&partner);
    keel_free(data);
}
END_TEST

/* ---- mad ----------------------------------------------------------------------------------------------- */

static void answer_noise(struct socket_link *socket)
{
    static uint8_t message[KEEL_TIER_MESSAGE_BYTES];
    size_t bytes;
    uint64_t state = 5;
    while (socket_receive(socket, message, sizeof message, &bytes, keel_deadline_after_ns(PATIENCE_NS)) ==
           KEEL_OK) {
        for (size_t i = 0; i < 500; i++)
            message[i] = (uint8_t)draw(&state, 256);
        if (socket_send(socket, message, draw(&state, 500), keel_deadline_after_ns(PATIENCE_NS)) != KEEL_OK)
            return;
    }
}

START_TEST(noise_is_refused)
{
    struct partner partner;
    ck_status(start_partner(answer_noise, PATIENCE_NS, &partner), KEEL_CORRUPT);
    end_partner(&partner);
}
END_TEST

static void close_at_once(struct socket_link *socket)
{
    close(socket->fd);
}

START_TEST(nobody_there_is_told)
{
    struct partner partner;
    ck_status(start_partner(close_at_once, PATIENCE_NS, &partner), KEEL_PEER_LOST);
    end_partner(&partner);
}
END_TEST

static void serve_another_run(struct socket_link *socket)
{
    struct keel_tier *memory;
    struct keel_tier_link link = link_over(socket);
    if (keel_tier_memory_open("another", CAPACITY_BYTES, "memory", &memory) == KEEL_OK)
        (void)keel_tier_serve(memory, &link, 100 * KEEL_NS_PER_S);
}

START_TEST(a_partner_of_another_run_is_refused)
{
    struct partner partner;
    ck_status(start_partner(serve_another_run, PATIENCE_NS, &partner), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "another"));
    end_partner(&partner);
}
END_TEST

/* A link that changes one bit of the answer whose turn it is, and of that turn only. */
struct bad_link {
    struct socket_link *socket;
    uint32_t answers, bad_answer;
    uint64_t bit;
    bool hit;
};

static enum keel_status bad_send(void *context, const void *message, size_t bytes, uint64_t deadline_ns)
{
    return socket_send(((struct bad_link *)context)->socket, message, bytes, deadline_ns);
}

static enum keel_status bad_receive(void *context, void *message, size_t capacity, size_t *out_bytes,
                                    uint64_t deadline_ns)
{
    struct bad_link *link = context;
    KEEL_TRY(socket_receive(link->socket, message, capacity, out_bytes, deadline_ns));
    if (link->answers++ == link->bad_answer && link->bit / 8 < *out_bytes) {
        ((uint8_t *)message)[link->bit / 8] ^= (uint8_t)(1 << link->bit % 8);
        link->hit = true;
    }
    return KEEL_OK;
}

/* All kinds of calls. */
static enum keel_status use_tier(struct keel_tier *from, struct keel_tier *to)
{
    const struct keel_object object = shard_object(5, 2, 0);
    struct listed listed = {.count = 0};
    KEEL_TRY(keel_tier_copy(from, &object, to));
    KEEL_TRY(keel_tier_list(to, note_listed, &listed));
    ck_assert_uint_eq(listed.count, 1);
    KEEL_TRY(keel_tier_verify(to, &object));
    return keel_tier_remove(to, &object);
}

START_TEST(a_flipped_bit_in_any_answer_is_found)
{
    struct origin origin = make_origin();
    uint64_t hits = 0;
    bool more = true;
    for (uint32_t answer = 0; more; answer++) {
        more = false;
        for (uint64_t bit = 0; bit < 8 * sizeof(struct keel_wire_header) + 100; bit += 7 * THINNER) {
            struct partner partner;
            fork_partner(serve_memory, &partner);
            struct bad_link bad = {.socket = &partner.socket, .bad_answer = answer, .bit = bit};
            struct keel_tier_link link = {bad_send, bad_receive, &bad};
            enum keel_status status = keel_tier_remote_open(&link, KEEL_LATENCY_MEMORY, "sample",
                                                            "a bad line", PATIENCE_NS, &partner.tier);
            if (status == KEEL_OK)
                status = use_tier(origin.tier, partner.tier);
            ck_assert_msg(status == (bad.hit ? KEEL_CORRUPT : KEEL_OK), "answer %u, bit %llu: %s", answer,
                          (unsigned long long)bit, keel_status_name(status));
            hits += bad.hit;
            more = more || bad.hit;
            end_partner(&partner);
        }
    }
    ck_assert_uint_gt(hits, 1000 / THINNER);
    printf("note: %llu answers with a flipped bit: all refused\n", (unsigned long long)hits);
    end_origin(&origin);
}
END_TEST

/* ---- the server's side --------------------------------------------------------------------------------- */

struct exchange {
    struct socket_link client, server;
    struct keel_tier *memory;
    struct keel_tier_message *message;
};

static struct exchange make_exchange(void)
{
    struct exchange x;
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    x.client = (struct socket_link){.fd = ends[0]};
    x.server = (struct socket_link){.fd = ends[1]};
    for (int i = 0; i < 2; i++) /* all requests wait there before the first is served, and all answers */
        ck_assert_int_eq(setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &(int){4 << 20}, sizeof(int)), 0);
    ck_ok(keel_tier_memory_open("sample", CAPACITY_BYTES, "memory", &x.memory));
    ck_ok(keel_alloc(1, sizeof *x.message, &x.message));
    return x;
}

static void end_exchange(struct exchange *x)
{
    close(x->server.fd);
    keel_tier_end(x->memory); /* asserts that nothing is left open */
    keel_free(x->message);
}

static void post(struct exchange *x, uint32_t op, uint64_t handle, uint64_t bytes)
{
    struct keel_tier_link link = link_over(&x->client);
    const struct keel_object object = shard_object(5, 2, 0);
    keel_wire_begin(x->message, op, 1, "sample");
    x->message->header.object = keel_wire_object_from(&object);
    x->message->header.handle = handle;
    x->message->header.bytes = bytes;
    if (op == KEEL_WIRE_WRITE)
        x->message->header.payload_bytes = 100;
    ck_ok(keel_wire_send(&link, x->message, keel_deadline_after_ns(PATIENCE_NS)));
}

static void answered(struct exchange *x, uint32_t op, enum keel_status status)
{
    struct keel_tier_link link = link_over(&x->client);
    ck_ok(keel_wire_receive(&link, x->message, keel_deadline_after_ns(PATIENCE_NS)));
    ck_assert_uint_eq(x->message->header.op, op | KEEL_WIRE_ANSWER);
    ck_assert_uint_eq(x->message->header.status, status);
}

enum { HANDLES = 3 * KEEL_ERASURE_NODES_MAX };

START_TEST(a_server_survives_clients_that_know_no_manners)
{
    struct exchange x = make_exchange();
    struct keel_tier_link link = link_over(&x.server);
    post(&x, KEEL_WIRE_READ, 77, 10);          /* a handle that is not open */
    post(&x, KEEL_WIRE_COMMIT, 0, 0);          /* none at all */
    post(&x, KEEL_WIRE_ABORT, 3, 0);           /* not answered */
    post(&x, KEEL_WIRE_WRITE, 9, 0);           /* not answered */
    post(&x, KEEL_WIRE_CREATE, 0, UINT64_MAX); /* more than can be */
    post(&x, KEEL_WIRE_CREATE, 0, 1ULL << 60); /* more than there is */
    post(&x, 99, 0, 0);                        /* no such request */
    for (uint32_t i = 0; i < HANDLES + 1; i++) /* one more than a client may have */
        post(&x, KEEL_WIRE_CREATE, 0, 1000);
    post(&x, KEEL_WIRE_WRITE, 1, 0);
    post(&x, KEEL_WIRE_WRITE, 1, 0); /* the same place again: a piece is missing */
    post(&x, KEEL_WIRE_READ, 1, 10); /* that is a sink */
    post(&x, KEEL_WIRE_COMMIT, 1, 0);
    shutdown(x.client.fd, SHUT_WR);
    ck_status(keel_tier_serve(x.memory, &link, PATIENCE_NS), KEEL_PEER_LOST);
    answered(&x, KEEL_WIRE_READ, KEEL_INVALID);
    answered(&x, KEEL_WIRE_COMMIT, KEEL_INVALID);
    answered(&x, KEEL_WIRE_CREATE, KEEL_INVALID);
    answered(&x, KEEL_WIRE_CREATE, KEEL_LIMIT);
    answered(&x, 99, KEEL_UNSUPPORTED);
    for (uint32_t i = 0; i < HANDLES + 1; i++)
        answered(&x, KEEL_WIRE_CREATE, i < HANDLES ? KEEL_OK : KEEL_LIMIT);
    answered(&x, KEEL_WIRE_READ, KEEL_INVALID);
    answered(&x, KEEL_WIRE_COMMIT, KEEL_INVALID);
    ck_assert_uint_eq(list_tier(x.memory).count, 0);
    close(x.client.fd);
    end_exchange(&x);
}
END_TEST

START_TEST(a_server_gives_up_a_silent_client_and_one_that_sends_garbage)
{
    struct exchange x = make_exchange();
    struct keel_tier_link link = link_over(&x.server);
    ck_status(keel_tier_serve(x.memory, &link, 50 * KEEL_NS_PER_MS), KEEL_TIMEOUT);
    ck_ok(socket_send(&x.client, "hello, who is there?", 20, keel_deadline_after_ns(PATIENCE_NS)));
    ck_status(keel_tier_serve(x.memory, &link, PATIENCE_NS), KEEL_CORRUPT);
    keel_wire_begin(x.message, KEEL_WIRE_HELLO, 1, "sample");
    x.message->header.version = 2;
    struct keel_tier_link client = link_over(&x.client);
    ck_ok(keel_wire_send(&client, x.message, keel_deadline_after_ns(PATIENCE_NS)));
    ck_status(keel_tier_serve(x.memory, &link, PATIENCE_NS), KEEL_VERSION);
    close(x.client.fd);
    end_exchange(&x);
}
END_TEST

/* Pages: more objects than one answer holds. */
static void fill_and_serve(struct socket_link *socket)
{
    struct keel_tier *memory;
    struct keel_tier_link link = link_over(socket);
    uint64_t state = 3;
    if (keel_tier_memory_open("sample", CAPACITY_BYTES, "memory", &memory) != KEEL_OK)
        return;
    for (uint32_t i = 0; i < 2500; i++) {
        uint8_t byte = 1;
        struct keel_object object = shard_object(draw(&state, 5), 1 + i / 2000, i % 2000);
        if (write_object(memory, &object, &byte, 1, 1) != KEEL_OK)
            return;
    }
    (void)keel_tier_serve(memory, &link, 100 * KEEL_NS_PER_S);
}

struct order {
    struct keel_object last;
    uint32_t count;
};

static enum keel_status see_in_order(void *context, const struct keel_object_info *info)
{
    struct order *order = context;
    if (order->count > 0)
        ck_assert_int_lt(keel_object_compare(&order->last, &info->object), 0);
    order->last = info->object;
    order->count++;
    return KEEL_OK;
}

START_TEST(a_long_list_comes_in_pages_each_object_once)
{
    struct partner partner;
    struct order order = {.count = 0};
    ck_ok(start_partner(fill_and_serve, PATIENCE_NS, &partner));
    ck_ok(keel_tier_list(partner.tier, see_in_order, &order));
    ck_assert_uint_eq(order.count, 2500);
    end_partner(&partner);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_partner_killed_at_any_moment_costs_its_copies_only);
    tcase_add_test(tc, a_generation_survives_the_partner_that_had_it);
    tcase_add_test(tc, a_stopped_partner_costs_a_call_its_deadline_and_may_come_back);
    tcase_add_test(tc, a_frozen_partner_costs_its_timeout_once);
    tcase_add_test(tc, what_a_call_that_gave_up_had_opened_is_let_go);
    tcase_add_test(tc, what_a_stopped_partner_does_not_take_is_given_up);
    tcase_add_test(tc, noise_is_refused);
    tcase_add_test(tc, nobody_there_is_told);
    tcase_add_test(tc, a_partner_of_another_run_is_refused);
    tcase_add_test(tc, a_flipped_bit_in_any_answer_is_found);
    tcase_add_test(tc, a_server_survives_clients_that_know_no_manners);
    tcase_add_test(tc, a_server_gives_up_a_silent_client_and_one_that_sends_garbage);
    tcase_add_test(tc, a_long_list_comes_in_pages_each_object_once);
}

KEEL_TEST_MAIN("tier_remote", cases, 600)
