/* company.c - signs of life: who is asked for one, when, and whom silence accuses.
 *
 * Whatever comes from a peer is a sign of its life; who is quiet is asked (PING) and answers (PONG), by the
 * endpoint's own thread if its caller is busy elsewhere. What a connection cannot tell, a peer that is
 * stopped, powered off or cut off, is found here: with a group's `silence_ns` whoever gave no sign for so
 * long is lost.
 *
 * Who did not run himself heard nothing either. So all lateness of a look here counts for nobody, and each
 * look comes after all that lay in the connections was delivered: busy processors make it later, not wrong.
 */
#include "group.h"

/* From one look to the next; KEEL_NEVER: there is nothing to look for. */
static uint64_t spacing_of(const struct keel_group *group)
{
    uint64_t quarter = group->silence_ns > 0 ? group->silence_ns / KEEL_SILENCE_LOOKS : KEEL_NEVER;
    return group->active > 0 && quarter > KEEL_PING_NS ? KEEL_PING_NS : quarter;
}

/* Once an operation, so the clock is read only if the time of the last pass, or an older one, does not settle
 * it. */
void keel_company_wake(struct keel_group *group)
{
    uint64_t spacing = spacing_of(group);
    if (spacing == KEEL_NEVER || group->endpoint->now_ns + spacing >= group->look_ns)
        return;
    uint64_t look_ns = keel_deadline_after_ns(spacing);
    group->look_ns = look_ns < group->look_ns ? look_ns : group->look_ns;
    keel_endpoint_at(group->endpoint, group->look_ns);
}

void keel_company_begin(struct keel_group *group, struct keel_peer *peer)
{
    uint64_t now = keel_now_ns();
    atomic_store(&peer->heard_ns, now);
    atomic_store(&peer->answered_ns, now);
    keel_company_wake(group);
}

void keel_company_heard(struct keel_peer *peer, uint64_t now_ns)
{
    atomic_store_explicit(&peer->heard_ns, now_ns, memory_order_relaxed);
}

void keel_company_left(struct keel_peer *peer)
{
    atomic_store(&peer->heard_ns, KEEL_NEVER);
    atomic_store(&peer->answered_ns, KEEL_NEVER);
}

void keel_company_answered(struct keel_peer *peer, uint64_t asked_ns)
{
    if (asked_ns > atomic_load(&peer->answered_ns) && asked_ns <= keel_now_ns())
        atomic_store(&peer->answered_ns, asked_ns);
}

/* Never beyond now, unless it was. */
static void shift(_Atomic uint64_t *at, uint64_t by_ns, uint64_t now_ns)
{
    uint64_t was = atomic_load(at), left = now_ns > was ? now_ns - was : 0;
    if (was != 0 && was != KEEL_NEVER)
        atomic_store(at, was + (by_ns < left ? by_ns : left));
}

static void forgive(struct keel_group *group, uint64_t now_ns)
{
    if (now_ns <= group->look_ns)
        return;
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        shift(&peer->heard_ns, now_ns - group->look_ns, now_ns);
        shift(&peer->answered_ns, now_ns - group->look_ns, now_ns);
    }
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

void keel_company_tick(struct keel_group *group, uint64_t now_ns)
{
    uint64_t spacing = spacing_of(group);
    forgive(group, now_ns);
    group->look_ns = spacing != KEEL_NEVER ? now_ns + spacing : KEEL_NEVER;
    for (struct keel_peer *peer = group->peer_list; peer != NULL && spacing != KEEL_NEVER; peer = peer->next)
        if (peer->session != NULL)
            look_at(group, peer, now_ns);
    keel_endpoint_at(group->endpoint, group->look_ns);
}
