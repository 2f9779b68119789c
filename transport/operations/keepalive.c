/* keepalive.c - signs of life: who is asked for one, when, and whom silence accuses.
 *
 * Every message of a peer is a sign of life. A quiet peer gets a PING and answers with a PONG, from its
 * endpoint's own thread if its caller is busy elsewhere. This finds what a connection does not report: a peer
 * that is stopped, powered off or cut off. With a group's `silence_ns` a peer without a sign for so long is
 * lost.
 *
 * If this thread was descheduled, extend every peer's liveness deadline by that delay; and deliver all that
 * the connections hold before each look. So a busy processor makes detection later, not wrong. */
#include "group.h"

/* From one look to the next; KEEL_NEVER: there is nothing to look for. */
static uint64_t spacing_of(const struct keel_group *group)
{
    uint64_t quarter = group->silence_ns > 0 ? group->silence_ns / KEEL_SILENCE_LOOKS : KEEL_NEVER;
    return group->active > 0 && quarter > KEEL_PING_NS ? KEEL_PING_NS : quarter;
}

/* Once an operation, so the clock is read only if the time of the last pass, or an older one, does not settle
 * it. */
void keel_keepalive_wake(struct keel_group *group)
{
    uint64_t spacing = spacing_of(group);
    if (spacing == KEEL_NEVER || group->endpoint->now_ns + spacing >= group->look_ns)
        return;
    uint64_t look_ns = keel_deadline_after_ns(spacing);
    group->look_ns = look_ns < group->look_ns ? look_ns : group->look_ns;
    keel_endpoint_at(group->endpoint, group->look_ns);
}

void keel_keepalive_begin(struct keel_group *group, struct keel_peer *peer)
{
    uint64_t now = keel_now_ns();
    atomic_store(&peer->heard_ns, now);
    atomic_store(&peer->answered_ns, now);
    keel_keepalive_wake(group);
}

void keel_keepalive_heard(struct keel_peer *peer, uint64_t now_ns)
{
    atomic_store_explicit(&peer->heard_ns, now_ns, memory_order_relaxed);
}

void keel_keepalive_left(struct keel_peer *peer)
{
    atomic_store(&peer->heard_ns, KEEL_NEVER);
    atomic_store(&peer->answered_ns, KEEL_NEVER);
}

void keel_keepalive_answered(struct keel_peer *peer, uint64_t asked_ns)
{
    if (asked_ns > atomic_load(&peer->answered_ns) && asked_ns <= keel_now_ns())
        atomic_store(&peer->answered_ns, asked_ns);
}

/* ---- who is to blame ----------------------------------------------------------------------------------- */

/* A rank whose peers all live may still wait in vain, since these wait for somebody whom it does not talk to.
 * So every answer (PONG) names whom its sender itself waits for, how long that rank has held it up, and over
 * how many ranks it knows that. As with routes in RIP (RFC 1058) a bound on those ends what goes round, and
 * nobody is told what it said itself.
 *
 * Of several suspects the one is blamed that has held an operation up for longest. A rank that lives is
 * silent as well when it gets no processor for a moment, and late when others had it; whoever is at fault has
 * been so for as long as it was waited for. */

enum { HOPS_MAX = 64 };

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of nearly equals the silent goes before one that lives and has not begun: that may have a reason. */
static uint64_t silent_weight(uint64_t ns)
{
    return ns + ns / 16;
}

/* What it said since the operation began. */
static struct keel_suspect told_by(const struct keel_flow *flow)
{
    const struct keel_peer *peer = atomic_load(&flow->peer);
    uint64_t word = atomic_load(&peer->suspect);
    if (word == 0 || atomic_load(&peer->answered_ns) < atomic_load(&flow->operation->since_ns))
        return (struct keel_suspect){.rank = KEEL_NO_RANK};
    return (struct keel_suspect){(uint32_t)(word & 0xffff) - 1, (uint32_t)(word >> 16 & 0xffff),
                                 (word >> 32) * KEEL_NS_PER_MS};
}

/* `sequence` is hops and, from bit 16 on, milliseconds. */
void keel_keepalive_told(const struct keel_group *whole, struct keel_peer *peer,
                         const struct keel_message *message)
{
    uint64_t hops = message->sequence & 0xffff, held_ms = lesser(message->sequence >> 16, UINT32_MAX);
    bool news = message->part > 0 && message->part <= whole->rank_count && message->part != whole->rank + 1 &&
                message->part != peer->rank + 1 && hops < HOPS_MAX;
    atomic_store(&peer->suspect, news ? held_ms << 32 | (hops + 1) << 16 | message->part : 0);
}

void keel_keepalive_tell(const struct keel_group *whole, const struct keel_peer *peer,
                         struct keel_message *out_message)
{
    struct keel_suspect suspect = keel_keepalive_suspect(whole, peer);
    out_message->part = (uint16_t)(suspect.rank + 1);
    out_message->sequence = suspect.held_ns / KEEL_NS_PER_MS << 16 | suspect.hops;
}

static bool is_awaited(const struct keel_flow *flow)
{
    return !atomic_load(&flow->settled);
}

uint64_t keel_keepalive_held_ns(const struct keel_flow *flow, uint64_t now_ns)
{
    const struct keel_peer *peer = atomic_load(&flow->peer);
    if (peer == NULL)
        return 0;
    uint64_t since = atomic_load(&flow->operation->since_ns), waited = now_ns > since ? now_ns - since : 0;
    uint64_t heard = atomic_load(&peer->heard_ns), answered = atomic_load(&peer->answered_ns);
    uint64_t sign = lesser(heard, answered), quiet = now_ns > sign ? now_ns - sign : 0;
    if (quiet >= KEEL_SILENT_NS)
        return silent_weight(lesser(quiet, waited));
    bool is_first = !atomic_load(&flow->begun) && told_by(flow).rank == KEEL_NO_RANK;
    return is_awaited(flow) && is_first ? waited : 0;
}

static void take_worse(struct keel_suspect *best, struct keel_suspect other)
{
    if (other.rank != KEEL_NO_RANK && other.held_ns > best->held_ns)
        *best = other;
}

struct keel_suspect keel_keepalive_blamed(const struct keel_operation *operation, const struct keel_peer *but,
                                          uint64_t now_ns)
{
    struct keel_suspect best = {.rank = KEEL_NO_RANK};
    for (uint32_t k = 0; k < operation->flow_count; k++) {
        const struct keel_flow *flow = &operation->flows[k];
        const struct keel_peer *peer = atomic_load(&flow->peer);
        if (peer == NULL || peer == but)
            continue;
        take_worse(&best, (struct keel_suspect){peer->rank, 0, keel_keepalive_held_ns(flow, now_ns)});
        if (is_awaited(flow))
            take_worse(&best, told_by(flow));
    }
    return best;
}

struct keel_suspect keel_keepalive_suspect(const struct keel_group *whole, const struct keel_peer *but)
{
    struct keel_suspect best = {.rank = KEEL_NO_RANK};
    if (whole->active == 0)
        return best;
    uint64_t now = keel_now_ns();
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++)
        for (const struct keel_operation *at = whole->table[slot]; at != NULL; at = at->next_in_table)
            if (!at->ended && now >= atomic_load(&at->since_ns) + KEEL_SILENT_NS)
                take_worse(&best, keel_keepalive_blamed(at, but, now));
    return best;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

/* Never beyond now, unless it was. */
static void shift(_Atomic uint64_t *at, uint64_t by_ns, uint64_t now_ns)
{
    uint64_t was = atomic_load(at), left = now_ns > was ? now_ns - was : 0;
    if (was != 0 && was != KEEL_NEVER)
        atomic_store(at, was + (by_ns < left ? by_ns : left));
}

/* Operations have waited for so much less, too: else a peer's silence from before they began would count. */
static void forgive(struct keel_group *group, uint64_t now_ns)
{
    if (now_ns <= group->look_ns)
        return;
    const uint64_t late_ns = now_ns - group->look_ns;
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        shift(&peer->heard_ns, late_ns, now_ns);
        shift(&peer->answered_ns, late_ns, now_ns);
    }
    for (uint32_t slot = 0; slot < KEEL_TABLE_SLOTS; slot++)
        for (struct keel_operation *at = group->table[slot]; at != NULL; at = at->next_in_table)
            shift(&at->since_ns, late_ns, now_ns);
}

/* That it is heard says nothing of whether it hears us; that matters when an operation must say who is at
 * fault. */
static bool asks(const struct keel_group *group, const struct keel_peer *peer, uint64_t now_ns)
{
    uint64_t quiet = spacing_of(group) / 2;
    return now_ns >= atomic_load(&peer->heard_ns) + quiet ||
           (group->active > 0 && now_ns >= atomic_load(&peer->answered_ns) + quiet);
}

static void look_at(struct keel_group *group, struct keel_peer *peer, uint64_t now_ns)
{
    uint64_t until_ns = atomic_load(&peer->heard_ns) + group->silence_ns;
    if (group->silence_ns > 0 && now_ns >= until_ns) {
        keel_session_break(peer->session, "it gives no sign of life");
        return;
    }
    if (group->silence_ns > 0 && until_ns < group->look_ns)
        group->look_ns = until_ns;
    if (asks(group, peer, now_ns))
        keel_session_ask(peer->session);
}

void keel_keepalive_tick(struct keel_group *group, uint64_t now_ns)
{
    uint64_t spacing = spacing_of(group);
    forgive(group, now_ns);
    group->look_ns = spacing != KEEL_NEVER ? now_ns + spacing : KEEL_NEVER;
    for (struct keel_peer *peer = group->peer_list; peer != NULL && spacing != KEEL_NEVER; peer = peer->next)
        if (peer->session != NULL)
            look_at(group, peer, now_ns);
    keel_endpoint_at(group->endpoint, group->look_ns);
}
