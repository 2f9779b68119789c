/* gate.c - see gate.h. */
#include "gate.h"

#include "seldom.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    SILENT_TIMEOUTS = 2,
    STRANGERS_MAX = 64, /* beyond one for each node: all may dial at once */
    WAITING_MAX = 64,   /* agents beyond those that are wanted */
    ASKING_MAX = 16,    /* who wait for the end that they asked for; and for something else */
    EVENTS_PER_TURN = 256,
    IN_BYTES = KEEL_FRAME_EXTRA_BYTES + 4 + 4 + KEEL_REASON_BYTES, /* the longest that an agent sends */
    OUT_SMALL_BYTES = KEEL_FRAME_EXTRA_BYTES + 4 + 4 + KEEL_REASON_BYTES,
    FIRST_INCARNATION = 1,
    ALIVE_AFTER_S = 10,
    ALIVE_EVERY_S = 5,
    ALIVE_TRIES = 3
};
static const uint64_t stranger_patience_ns = 10 * KEEL_NS_PER_S;
static const uint64_t stranger_pause_ns = KEEL_NS_PER_S;
/* In the place of a frame's head: your first frame was not sealed with our key. */
static const uint32_t other_key = KEEL_FRAME_OTHER_KEY;

_Static_assert((int)IN_BYTES >= (int)KEEL_OPENING_BYTES && (int)IN_BYTES >= (int)KEEL_FACTS_FRAME_BYTES,
               "room for what comes");

enum caller_state { CALLER_OPENING, CALLER_FACTS, CALLER_WAITING, CALLER_SEATED, CALLER_ASKED };

struct caller {
    struct caller *next; /* of all, the newest first */
    int fd;
    enum caller_state state;
    bool wait_told, orderly;
    struct keel_net_place place;
    uint64_t deadline_ns; /* of a stranger */
    struct keel_handover handover;
    struct keel_agent_facts facts;
    struct keel_handover_ask ask; /* ASKED */
    char said[KEEL_REASON_BYTES]; /* ASKED: what it waits for, as it was told last */
    uint16_t node;                /* SEATED */
    bool handed;                  /* the job was sent, or is being sent */
    uint8_t *out;                 /* heap: what the socket did not take yet */
    uint32_t out_bytes, out_sent, got;
    uint8_t in[IN_BYTES];
};

struct seat {
    struct caller *caller;
    uint32_t incarnation; /* that is wanted, or that has it */
    bool wanted;          /* and there is none */
    bool presumed;        /* it may be there, without a connection */
};

struct keel_gate {
    struct keel_gate_config config;
    struct keel_secret secret;
    int listener, epoll;
    bool released;
    struct caller *callers;
    uint32_t strangers, waiting, asking;
    uint64_t listen_ns; /* the listener pauses until then; 0: does not */
    uint64_t refused;
    struct keel_seldom told[KEEL_STATUS_COUNT]; /* of strangers, for each reason */
    struct keel_seldom unheard;                 /* that some cannot be let in */
    struct seat seats[KEEL_NODES_MAX];
};

/* ---- telling ------------------------------------------------------------------------------------------- */

static void tell(struct keel_gate *gate, enum keel_gate_news_kind kind, const struct caller *caller,
                 uint16_t node, enum keel_status status, const char *text)
{
    char place[KEEL_PLACE_BYTES];
    keel_net_place_print(&caller->place, place);
    gate->config.news(gate->config.context,
                      &(struct keel_gate_news){.kind = kind,
                                               .node = node,
                                               .incarnation = node > 0 ? gate->seats[node].incarnation : 0,
                                               .host = caller->facts.host,
                                               .place = place,
                                               .status = status,
                                               .text = text,
                                               .orderly = caller->orderly,
                                               .total = gate->refused});
}

/* ---- callers come and go ------------------------------------------------------------------------------- */

static bool is_stranger(const struct caller *caller)
{
    return caller->state == CALLER_OPENING || caller->state == CALLER_FACTS;
}

static void set_state(struct keel_gate *gate, struct caller *caller, enum caller_state state)
{
    gate->strangers -= is_stranger(caller);
    gate->waiting -= caller->state == CALLER_WAITING;
    caller->state = state; /* who asked stays so */
    gate->strangers += is_stranger(caller);
    gate->waiting += state == CALLER_WAITING;
    gate->asking += state == CALLER_ASKED;
}

static void drop(struct keel_gate *gate, struct caller *caller)
{
    struct caller **at = &gate->callers;
    while (*at != NULL && *at != caller)
        at = &(*at)->next;
    KEEL_ASSERT(*at == caller && caller != NULL);
    *at = caller->next;
    gate->strangers -= is_stranger(caller);
    gate->waiting -= caller->state == CALLER_WAITING;
    gate->asking -= caller->state == CALLER_ASKED;
    close(caller->fd);
    keel_handover_wipe(&caller->handover);
    keel_free(caller->out);
    keel_free(caller);
}

/* As far as the socket takes it. False: the other side is gone. */
static bool flush(struct keel_gate *gate, struct caller *caller)
{
    while (caller->out_sent < caller->out_bytes) {
        ssize_t sent = send(caller->fd, caller->out + caller->out_sent, caller->out_bytes - caller->out_sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (sent < 0)
            return false;
        caller->out_sent += (uint32_t)sent;
    }
    const bool more = caller->out_sent < caller->out_bytes;
    struct epoll_event event = {.events = EPOLLIN | (more ? (uint32_t)EPOLLOUT : 0), .data.ptr = caller};
    (void)epoll_ctl(gate->epoll, EPOLL_CTL_MOD, caller->fd, &event);
    if (!more) {
        keel_free(caller->out);
        caller->out = NULL;
        caller->out_bytes = caller->out_sent = 0;
    }
    return true;
}

/* Nothing else waits to be sent. False: no memory. */
static bool say(struct caller *caller, enum keel_handover_kind kind, const uint8_t *payload, uint32_t bytes)
{
    KEEL_ASSERT(caller->out == NULL);
    if (keel_alloc(1, bytes + KEEL_FRAME_EXTRA_BYTES, &caller->out) != KEEL_OK)
        return false;
    caller->out_bytes = keel_frame_seal(&caller->handover, kind, payload, bytes, caller->out);
    return true;
}

static void say_farewell(struct keel_gate *gate, struct caller *caller, enum keel_handover_kind kind,
                         enum keel_status status, const char *text)
{
    struct keel_handover_reason reason = {.status = status};
    uint8_t payload[OUT_SMALL_BYTES];
    if (!caller->handover.agreed || caller->handover.opened == 0 || caller->out != NULL)
        return;
    snprintf(reason.text, sizeof reason.text, "%s", text);
    const uint32_t bytes = keel_handover_reason_write(&reason, payload, sizeof payload);
    if (say(caller, kind, payload, bytes))
        (void)flush(gate, caller); /* short: an empty socket takes it at once */
}

/* The end of a stranger, told to both sides: of those who prove nothing ever more seldom, for each kind of
 * reason. */
static void refuse(struct keel_gate *gate, struct caller *caller, enum keel_status status, const char *text)
{
    gate->refused++;
    say_farewell(gate, caller, KEEL_HANDOVER_REFUSED, status, text);
    if (caller->handover.opened > 0 || keel_seldom_says(&gate->told[status], keel_now_ns()))
        tell(gate, KEEL_GATE_REFUSED, caller, 0, status, text);
    drop(gate, caller);
}

/* Strangers that are too many: the one that is here longest goes. */
static void make_room(struct keel_gate *gate)
{
    struct caller *oldest = NULL;
    for (struct caller *at = gate->callers; at != NULL; at = at->next)
        if (is_stranger(at))
            oldest = at; /* the list has the newest first */
    if (gate->strangers >= STRANGERS_MAX + (uint32_t)gate->config.node_count && oldest != NULL)
        refuse(gate, oldest, KEEL_BUSY, "did not say in time who it is, and others want to");
}

static void keep_alive(int fd, bool yes)
{
    const int on = yes, after = ALIVE_AFTER_S, every = ALIVE_EVERY_S, tries = ALIVE_TRIES;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &after, sizeof after);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
}

static void listen_again(struct keel_gate *gate, bool yes)
{
    struct epoll_event event = {.events = yes ? (uint32_t)EPOLLIN : 0, .data.ptr = NULL};
    (void)epoll_ctl(gate->epoll, EPOLL_CTL_MOD, gate->listener, &event);
    gate->listen_ns = yes ? 0 : keel_deadline_after_ns(stranger_pause_ns);
}

/* Who cannot be let in, for want of descriptors or memory, stays in the kernel's queue, and would be there at
 * once again: looked at after a pause. */
static void welcome(struct keel_gate *gate)
{
    int fd = accept4(gate->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        if (keel_seldom_says(&gate->unheard, keel_now_ns()))
            keel_log(KEEL_LOG_WARN, "an agent dials in and cannot be heard: %s (ulimit -n)", strerror(errno));
        listen_again(gate, false);
    }
    if (fd < 0)
        return;
    make_room(gate);
    struct caller *caller;
    if (keel_alloc(1, sizeof *caller, &caller) != KEEL_OK) {
        close(fd);
        return;
    }
    *caller = (struct caller){.next = gate->callers,
                              .fd = fd,
                              .state = CALLER_OPENING,
                              .deadline_ns = keel_deadline_after_ns(stranger_patience_ns)};
    gate->callers = caller;
    gate->strangers++;
    keep_alive(fd, true);
    keel_handover_begin(&caller->handover, KEEL_HANDOVER_LAUNCHER, &gate->secret, gate->config.release);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = caller};
    if (keel_net_place_of_descriptor(fd, true, &caller->place) != KEEL_OK ||
        epoll_ctl(gate->epoll, EPOLL_CTL_ADD, fd, &event) != 0 ||
        send(fd, caller->handover.opening, KEEL_OPENING_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) !=
            (ssize_t)KEEL_OPENING_BYTES)
        drop(gate, caller);
}

/* ---- seats --------------------------------------------------------------------------------------------- */

/* False: it is gone, or there is no memory; its end shows when it is read. */
static bool hand_over(struct keel_gate *gate, struct caller *caller)
{
    struct keel_handed_job job = gate->config.job;
    uint8_t *payload;
    job.node = caller->node;
    job.incarnation = gate->seats[caller->node].incarnation;
    if (job.incarnation > FIRST_INCARNATION)
        job.word_count -= gate->config.first_words;
    const uint32_t bytes = keel_handed_job_bytes(&job);
    if (bytes == 0 || keel_alloc(1, bytes, &payload) != KEEL_OK)
        return false;
    KEEL_ASSERT(keel_handed_job_write(&job, payload, bytes) == bytes);
    bool said = say(caller, KEEL_HANDOVER_JOB, payload, bytes);
    keel_free(payload);
    caller->handed = said;
    /* From here on datagrams tell who is alive; a network that is cut for a while must not end this. */
    keep_alive(caller->fd, false);
    return said && flush(gate, caller);
}

static void seat(struct keel_gate *gate, struct caller *caller, uint16_t node)
{
    struct seat *seat = &gate->seats[node];
    set_state(gate, caller, CALLER_SEATED);
    caller->node = node;
    seat->caller = caller;
    seat->wanted = seat->presumed = false;
    tell(gate, KEEL_GATE_JOINED, caller, node, KEEL_OK, "");
    if (gate->released && !hand_over(gate, caller))
        shutdown(caller->fd, SHUT_RDWR);
}

/* Before the gate is released nobody has counted on it: its node is wanted as before. */
static void unseat(struct keel_gate *gate, struct caller *caller, enum keel_status status, const char *text)
{
    struct seat *seat = &gate->seats[caller->node];
    seat->caller = NULL;
    seat->wanted = !gate->released;
    tell(gate, KEEL_GATE_LEFT, caller, caller->node, status, text);
}

/* Nobody is connected, and who may be there is silent. */
static bool is_deserted(const struct keel_gate *gate, uint16_t node)
{
    return gate->seats[node].presumed && gate->config.silent(gate->config.context, node);
}

/* Its owner wants the node behind that. */
static void desert(struct keel_gate *gate, uint16_t node)
{
    gate->seats[node].presumed = false;
    gate->config.news(gate->config.context, &(struct keel_gate_news){.kind = KEEL_GATE_LEFT,
                                                                     .node = node,
                                                                     .status = KEEL_PEER_LOST,
                                                                     .host = "",
                                                                     .place = "",
                                                                     .text = "it is silent"});
}

bool keel_gate_gives_up(const struct keel_node *node, uint16_t which, uint64_t heard_ns, uint64_t since_ns,
                        uint64_t timeout_ns)
{
    const uint64_t silent_ns = keel_now_ns() - (heard_ns > since_ns ? heard_ns : since_ns);
    return silent_ns > SILENT_TIMEOUTS * timeout_ns ||
           (silent_ns > timeout_ns && heard_ns > since_ns && !keel_node_has_member(node, which));
}

/* The seat that somebody who waits may have, 0 for none. Of one that is silent, or that it had itself, the
 * agent goes first, and the node is wanted again behind that. */
static uint16_t find_seat(struct keel_gate *gate, const struct caller *caller)
{
    const uint16_t first = caller->facts.node > 0 ? caller->facts.node : 1;
    const uint16_t end = caller->facts.node > 0 ? first + 1 : gate->config.node_count;
    for (uint16_t node = first; node < end; node++)
        if (gate->seats[node].wanted)
            return node;
    for (uint16_t node = first; node < end; node++) {
        struct caller *there = gate->seats[node].caller;
        if (is_deserted(gate, node)) {
            desert(gate, node);
            return gate->seats[node].wanted ? node : 0;
        }
        if (there == NULL || (there->facts.instance != caller->facts.instance &&
                              (!there->handed || !gate->config.silent(gate->config.context, node))))
            continue;
        unseat(gate, there, KEEL_PEER_LOST,
               there->facts.instance == caller->facts.instance ? "it came again" : "it is silent");
        drop(gate, there);
        return gate->seats[node].wanted ? node : 0;
    }
    return 0;
}

/* Whoever waits longest comes first. */
static void seat_those_who_wait(struct keel_gate *gate)
{
    for (uint32_t left = gate->waiting; left > 0; left--) {
        struct caller *next = NULL;
        uint32_t behind = 0;
        for (struct caller *at = gate->callers; at != NULL; at = at->next)
            if (at->state == CALLER_WAITING && behind++ == left - 1)
                next = at;
        if (next == NULL)
            continue;
        const uint16_t node = find_seat(gate, next);
        if (node > 0) {
            seat(gate, next, node);
        } else if (!next->wait_told) {
            next->wait_told = true;
            tell(gate, KEEL_GATE_WAITS, next, next->facts.node, KEEL_OK, "");
        }
    }
}

/* Who waited, or would, is told where to dial: true, if this one does not let in. */
static bool redirect(struct keel_gate *gate, struct caller *caller)
{
    char place[KEEL_PLACE_BYTES] = "";
    if (gate->config.leads(gate->config.context, place))
        return false;
    say_farewell(gate, caller, KEEL_HANDOVER_ELSEWHERE, KEEL_BUSY, place);
    drop(gate, caller);
    return true;
}

static void redirect_those_who_wait(struct keel_gate *gate)
{
    for (struct caller *at = gate->callers, *next; at != NULL && gate->waiting + gate->asking > 0;
         at = next) {
        next = at->next;
        if ((at->state == CALLER_WAITING || at->state == CALLER_ASKED) && !redirect(gate, at))
            return;
    }
}

/* ---- what callers say ---------------------------------------------------------------------------------- */

/* NULL, or why it cannot be reached as the others are. */
static const char *wrong_way(const struct keel_gate *gate, const struct caller *caller)
{
    const struct keel_net_place *advertised = gate->config.advertised;
    if (keel_net_place_is_v4(&caller->place) != keel_net_place_is_v4(advertised))
        return "comes by the other family of addresses than the one advertised here: ranks reach one "
               "another by "
               "one family alone; dial the address that is advertised";
    if (keel_net_place_is_loopback(&caller->place) != keel_net_place_is_loopback(advertised))
        return "comes by another network than the one advertised, one of the two is loopback: other hosts "
               "could "
               "not reach its ranks; dial the address that is advertised";
    return NULL;
}

static void take_facts(struct keel_gate *gate, struct caller *caller, const uint8_t *data, uint32_t bytes)
{
    char why[KEEL_REASON_BYTES];
    if (gate->waiting == WAITING_MAX) /* of those some may be wanted */
        seat_those_who_wait(gate);
    if (!keel_agent_facts_read(data, bytes, &caller->facts)) {
        refuse(gate, caller, KEEL_CORRUPT, "says what no agent says");
        return;
    }
    if (gate->config.asks_only) {
        refuse(gate, caller, KEEL_INVALID,
               "has all its agents on its own host (cluster.launch = local): it takes none of another");
        return;
    }
    const uint16_t node = caller->facts.node;
    const struct caller *there = node < gate->config.node_count ? gate->seats[node].caller : NULL;
    if (redirect(gate, caller))
        return;
    if (wrong_way(gate, caller) != NULL) {
        refuse(gate, caller, KEEL_INVALID, wrong_way(gate, caller));
    } else if (node >= gate->config.node_count) {
        snprintf(why, sizeof why, "wants to be node %u; the run has nodes 1 to %u", node,
                 gate->config.node_count - 1U);
        refuse(gate, caller, KEEL_INVALID, why);
    } else if (node > 0 && there != NULL && there->facts.instance != caller->facts.instance &&
               !gate->config.silent(gate->config.context, node)) {
        char place[KEEL_PLACE_BYTES];
        keel_net_place_print(&there->place, place);
        snprintf(why, sizeof why, "wants to be node %u, which is here already: from %s (%s)", node,
                 there->facts.host, place);
        refuse(gate, caller, KEEL_BUSY, why);
    } else if (gate->waiting == WAITING_MAX) {
        refuse(gate, caller, KEEL_BUSY, "all nodes are here, and many wait already");
    } else {
        set_state(gate, caller, CALLER_WAITING);
    }
}

/* Of those who ask for the end, or of the others. */
static uint32_t count_asking(const struct keel_gate *gate, bool for_the_end)
{
    uint32_t count = 0;
    for (const struct caller *at = gate->callers; at != NULL; at = at->next)
        count += at->state == CALLER_ASKED && (at->ask.wish == KEEL_WISH_STOP) == for_the_end ? 1 : 0;
    return count;
}

/* Who asked last has it so: the others do not wait for what does not come any more. */
static void end_opposites(struct keel_gate *gate, const struct keel_handover_ask *ask)
{
    for (struct caller *at = gate->callers, *next; at != NULL; at = next) {
        next = at->next;
        if (at->state != CALLER_ASKED || at->ask.wish == KEEL_WISH_STOP || at->ask.node != ask->node ||
            at->ask.wish == ask->wish)
            continue;
        say_farewell(gate, at, KEEL_HANDOVER_REFUSED, KEEL_BUSY, "was asked for the opposite since then");
        drop(gate, at);
    }
}

/* Nothing else waits to be sent to who is spoken to: what does is said in a later turn. */
static void look_at_asked(struct keel_gate *gate)
{
    char why[KEEL_REASON_BYTES];
    for (struct caller *at = gate->callers, *next; at != NULL && gate->asking > 0; at = next) {
        const bool asks = at->state == CALLER_ASKED && at->ask.wish != KEEL_WISH_STOP && at->out == NULL;
        const bool done = asks && gate->config.look(gate->config.context, &at->ask, why);
        next = at->next; /* of those that are left: who looks may want a node whose agent is silent */
        if (!asks)
            continue;
        if (done) {
            if (say(at, KEEL_HANDOVER_DONE, NULL, 0))
                (void)flush(gate, at);
            drop(gate, at);
        } else if (why[0] != '\0' && strcmp(why, at->said) != 0) {
            memcpy(at->said, why, sizeof why);
            say_farewell(gate, at, KEEL_HANDOVER_STAYS, KEEL_BUSY, why);
        }
    }
}

static void take_ask(struct keel_gate *gate, struct caller *caller, const uint8_t *data, uint32_t bytes)
{
    struct keel_handover_ask ask;
    char why[KEEL_DETAIL_BYTES];
    if (!keel_handover_ask_read(data, bytes, &ask)) {
        refuse(gate, caller, KEEL_CORRUPT, "asks for what nobody asks for");
        return;
    }
    if (redirect(gate, caller))
        return;
    if (ask.run != gate->config.job.run) {
        refuse(gate, caller, KEEL_MISMATCH, "asks for it of another run than goes on there");
        return;
    }
    if (ask.node >= gate->config.node_count) {
        snprintf(why, sizeof why, "has nodes 1 to %u", gate->config.node_count - 1U);
        refuse(gate, caller, KEEL_INVALID, why);
        return;
    }
    if (count_asking(gate, ask.wish == KEEL_WISH_STOP) == ASKING_MAX) {
        refuse(gate, caller, KEEL_BUSY, "is one of many who ask already");
        return;
    }
    const enum keel_status status = gate->config.ask(gate->config.context, &ask);
    if (status != KEEL_OK) {
        snprintf(why, sizeof why, "%s", keel_detail());
        refuse(gate, caller, status, why);
        return;
    }
    end_opposites(gate, &ask);
    caller->ask = ask;
    set_state(gate, caller, CALLER_ASKED);
    if (!say(caller, KEEL_HANDOVER_HEARD, NULL, 0) || !flush(gate, caller))
        drop(gate, caller); /* it asks again */
}

static void end(struct keel_gate *gate, struct caller *caller)
{
    if (caller->state == CALLER_SEATED)
        unseat(gate, caller, KEEL_OK, "");
    drop(gate, caller);
}

/* A whole frame is in. False: the caller is gone. */
static bool take_frame(struct keel_gate *gate, struct caller *caller)
{
    enum keel_handover_kind kind;
    const uint8_t *payload;
    uint32_t bytes;
    struct keel_handover_reason reason;
    const bool first = caller->state == CALLER_FACTS;
    if (!keel_frame_open(&caller->handover, caller->in, caller->got, &kind, &payload, &bytes)) {
        if (first) {
            (void)send(caller->fd, &other_key, sizeof other_key, MSG_NOSIGNAL | MSG_DONTWAIT);
            refuse(gate, caller, KEEL_AUTH, "does not prove the job key: another key, or altered on the way");
            return false;
        }
        shutdown(caller->fd, SHUT_RDWR); /* its end is told when it is read */
        caller->got = 0;
        return true;
    }
    caller->got = 0;
    if (first && kind == KEEL_HANDOVER_FACTS) {
        take_facts(gate, caller, payload, bytes);
        return false; /* refused, or waits: what else it says is read in the next turn */
    }
    if (first && kind == KEEL_HANDOVER_ASK) {
        take_ask(gate, caller, payload, bytes);
        return false;
    }
    if (caller->state == CALLER_SEATED && kind == KEEL_HANDOVER_FAILED &&
        keel_handover_reason_read(payload, bytes, &reason)) {
        unseat(gate, caller, reason.status, reason.text);
        drop(gate, caller);
        return false;
    }
    caller->orderly = caller->state == CALLER_SEATED && kind == KEEL_HANDOVER_BYE;
    if (caller->state == CALLER_SEATED || caller->state == CALLER_ASKED) /* who asked has no more to say */
        end(gate, caller);
    else
        refuse(gate, caller, KEEL_CORRUPT, "says what no agent says");
    return false;
}

static bool take_opening(struct keel_gate *gate, struct caller *caller)
{
    enum keel_status status = keel_handover_agree(&caller->handover, caller->in);
    caller->got = 0;
    if (status != KEEL_OK) {
        char why[KEEL_DETAIL_BYTES];
        snprintf(why, sizeof why, "%s", keel_detail());
        refuse(gate, caller, status, why);
        return false;
    }
    set_state(gate, caller, CALLER_FACTS);
    return true;
}

/* What has come of one caller, at most a frame. */
static void hear(struct keel_gate *gate, struct caller *caller)
{
    for (;;) {
        uint32_t wanted = KEEL_OPENING_BYTES;
        if (caller->state != CALLER_OPENING)
            wanted = keel_frame_bytes(caller->in, caller->got,
                                      caller->state == CALLER_FACTS ? KEEL_FACTS_FRAME_BYTES : IN_BYTES);
        if (wanted == 0) {
            if (is_stranger(caller))
                refuse(gate, caller, KEEL_CORRUPT, "sends what is no frame of Keel");
            else
                end(gate, caller);
            return;
        }
        if (caller->got == wanted && wanted != KEEL_FRAME_HEAD_BYTES) {
            if (!(caller->state == CALLER_OPENING ? take_opening : take_frame)(gate, caller))
                return;
            continue;
        }
        ssize_t got = recv(caller->fd, caller->in + caller->got, wanted - caller->got, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0 && is_stranger(caller)) {
            refuse(gate, caller, KEEL_PEER_LOST, "hung up before it said who it is");
            return;
        }
        if (got <= 0) {
            end(gate, caller);
            return;
        }
        caller->got += (uint32_t)got;
    }
}

static void drop_the_slow(struct keel_gate *gate)
{
    const uint64_t now_ns = keel_now_ns();
    for (struct caller *at = gate->callers, *next; at != NULL; at = next) {
        next = at->next;
        if (is_stranger(at) && at->deadline_ns <= now_ns)
            refuse(gate, at, KEEL_TIMEOUT, "did not say in time who it is");
    }
}

void keel_gate_turn(struct keel_gate *gate)
{
    struct epoll_event event;
    for (int taken = 0; taken < EVENTS_PER_TURN && epoll_wait(gate->epoll, &event, 1, 0) == 1; taken++) {
        struct caller *caller = event.data.ptr;
        if (caller == NULL) {
            welcome(gate);
            continue;
        }
        if ((event.events & EPOLLOUT) != 0 && !flush(gate, caller)) {
            end(gate, caller);
            continue;
        }
        if ((event.events & ~(uint32_t)EPOLLOUT) != 0)
            hear(gate, caller);
    }
    if (gate->listen_ns != 0 && keel_remaining_ns(gate->listen_ns) == 0)
        listen_again(gate, true);
    drop_the_slow(gate);
    redirect_those_who_wait(gate);
    look_at_asked(gate);
    seat_those_who_wait(gate);
}

uint64_t keel_gate_deadline_ns(const struct keel_gate *gate)
{
    uint64_t deadline_ns = gate->listen_ns != 0 ? gate->listen_ns : KEEL_NEVER;
    for (const struct caller *at = gate->callers; at != NULL; at = at->next)
        if (is_stranger(at) && at->deadline_ns < deadline_ns)
            deadline_ns = at->deadline_ns;
    return deadline_ns;
}

/* ---- what its owner wants ------------------------------------------------------------------------------ */

void keel_gate_want(struct keel_gate *gate, uint16_t node, uint32_t incarnation)
{
    struct seat *seat = &gate->seats[node];
    KEEL_ASSERT(node > 0 && node < gate->config.node_count);
    if (seat->caller != NULL) { /* its owner took it for gone: it is silent */
        drop(gate, seat->caller);
        seat->caller = NULL;
    }
    seat->incarnation = incarnation;
    seat->wanted = true;
    seat->presumed = false;
}

void keel_gate_presume(struct keel_gate *gate)
{
    for (uint16_t node = 1; node < gate->config.node_count; node++) {
        struct seat *seat = &gate->seats[node];
        seat->wanted = false;
        seat->presumed = seat->caller == NULL && node != gate->config.job.by; /* which is here */
    }
}

void keel_gate_unwant(struct keel_gate *gate, uint16_t node)
{
    gate->seats[node].wanted = false;
}

void keel_gate_release(struct keel_gate *gate)
{
    gate->released = true;
    for (struct caller *at = gate->callers; at != NULL; at = at->next)
        if (at->state == CALLER_SEATED && !hand_over(gate, at))
            shutdown(at->fd, SHUT_RDWR);
}

uint16_t keel_gate_missing(const struct keel_gate *gate, uint16_t from)
{
    for (uint16_t node = from; node < gate->config.node_count; node++)
        if (gate->seats[node].wanted)
            return node;
    return 0;
}

bool keel_gate_has(const struct keel_gate *gate, uint16_t node)
{
    return gate->seats[node].caller != NULL;
}

bool keel_gate_wants(const struct keel_gate *gate, uint16_t node)
{
    return gate->seats[node].wanted;
}

bool keel_gate_has_some(const struct keel_gate *gate)
{
    for (uint16_t node = 1; node < gate->config.node_count; node++)
        if (gate->seats[node].caller != NULL)
            return true;
    return false;
}

enum keel_status keel_gate_place(const struct keel_gate *gate, char out[KEEL_PLACE_BYTES])
{
    struct keel_net_place place;
    KEEL_TRY(keel_net_place_of_descriptor(gate->listener, false, &place));
    keel_net_place_print(&place, out);
    return KEEL_OK;
}

int keel_gate_fd(const struct keel_gate *gate)
{
    return gate->epoll;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status listen_at(struct keel_gate *gate, const struct keel_net_place *place)
{
    struct sockaddr_storage here;
    const sa_family_t family = keel_net_place_family(place);
    const socklen_t bytes = keel_net_place_to_socket(place, family, &here);
    char text[KEEL_PLACE_BYTES];
    int one = 1, no = 0;
    keel_net_place_print(place, text);
    gate->listener = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool listening =
        gate->listener >= 0 && setsockopt(gate->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        (family == AF_INET || setsockopt(gate->listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) &&
        bind(gate->listener, (const struct sockaddr *)&here, bytes) == 0 &&
        listen(gate->listener, SOMAXCONN) == 0;
    if (listening)
        return KEEL_OK;
    if (errno == EADDRINUSE)
        return keel_fail(KEEL_BUSY, "%s: another process listens there", text);
    return keel_fail_errno(errno, "%s: cannot listen there", text);
}

enum keel_status keel_gate_open(const struct keel_gate_config *config, struct keel_gate **out)
{
    struct keel_gate *gate;
    KEEL_ASSERT(config->node_count <= KEEL_NODES_MAX);
    KEEL_TRY(keel_alloc(1, sizeof *gate, &gate));
    gate->config = *config;
    gate->config.bind = NULL;
    gate->config.secret = NULL;
    gate->secret = *config->secret;
    gate->listener = -1;
    gate->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    enum keel_status status = listen_at(gate, config->bind);
    if (status == KEEL_OK &&
        (gate->epoll < 0 || epoll_ctl(gate->epoll, EPOLL_CTL_ADD, gate->listener, &event) != 0))
        status = keel_fail_errno(errno, "no epoll");
    if (status != KEEL_OK)
        keel_gate_leave(gate);
    else
        *out = gate;
    return status;
}

/* How the run ended, to who asked for that. */
static void say_done(struct keel_gate *gate, struct caller *caller, enum keel_status status,
                     const char *detail)
{
    if (status != KEEL_OK)
        say_farewell(gate, caller, KEEL_HANDOVER_DONE, status, detail);
    else if (caller->out == NULL && say(caller, KEEL_HANDOVER_DONE, NULL, 0))
        (void)flush(gate, caller);
}

void keel_gate_close(struct keel_gate *gate, enum keel_status status, const char *detail)
{
    for (struct caller *at = gate != NULL ? gate->callers : NULL; at != NULL; at = at->next)
        if (at->state == CALLER_ASKED && at->ask.wish == KEEL_WISH_STOP)
            say_done(gate, at, status, detail);
        else if (at->state == CALLER_ASKED)
            say_farewell(gate, at, KEEL_HANDOVER_REFUSED, KEEL_NOT_FOUND, "is over: the run ended first");
        else
            say_farewell(gate, at, KEEL_HANDOVER_REFUSED, KEEL_INTERRUPTED,
                         "is not wanted any more: the run is over");
    keel_gate_leave(gate);
}

void keel_gate_leave(struct keel_gate *gate)
{
    if (gate == NULL)
        return;
    while (gate->callers != NULL)
        drop(gate, gate->callers);
    if (gate->listener >= 0)
        close(gate->listener);
    if (gate->epoll >= 0)
        close(gate->epoll);
    keel_secret_wipe(&gate->secret);
    keel_free(gate);
}
