/* company.c - signs of life: who is asked for one, when, and whom silence accuses.
 *
 * Whatever comes from a peer is a sign of its life; who is quiet is asked (PING) and answers (PONG), by the
 * endpoint's own thread if its caller is busy elsewhere. What a connection cannot tell, a peer that is
 * stopped, powered off or cut off, is found here: with a group's `silence_ns` whoever gave no sign for so
 * long is lost.
 *
 * Who did not run himself heard nothing either. So the time beyond a fraction of the silence between two
 * looks here counts for nobody, and each look comes after all that lay in the connections was delivered. */
#include "group.h"

/* Looks a silence; what passes between two beyond this is the time in which we did not run. */
static uint64_t slack_of(const struct keel_group *group)
{
    return group->silence_ns > 0 ? group->silence_ns / KEEL_SILENCE_LOOKS : KEEL_PING_NS;
}

/* Until the next look; KEEL_NEVER: there is nothing to look for. */
static uint64_t spacing_of(const struct keel_group *group)
{
    uint64_t slack = slack_of(group);
    if (group->active == 0)
        return group->silence_ns > 0 ? slack : KEEL_NEVER;
    return slack < KEEL_PING_NS ? slack : KEEL_PING_NS;
}

static void look_again(struct keel_group *group, uint64_t now_ns)
{
    uint64_t spacing = spacing_of(group);
    if (spacing != KEEL_NEVER)
        keel_endpoint_at(group->endpoint, now_ns + spacing);
}

void keel_company_begin(struct keel_group *group, struct keel_peer *peer)
{
    uint64_t now = keel_now_ns();
    atomic_store(&peer->heard_ns, now);
    atomic_store(&peer->answered_ns, now);
    look_again(group, now);
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

static void shift(_Atomic uint64_t *at, uint64_t by_ns, uint64_t now_ns)
{
    uint64_t was = atomic_load(at), is = was + by_ns;
    if (was != 0 && was != KEEL_NEVER)
        atomic_store(at, is < now_ns ? is : now_ns > was ? now_ns : was);
}

static void forgive(struct keel_group *group, uint64_t now_ns)
{
    uint64_t since = now_ns - group->looked_ns, slack = slack_of(group);
    group->looked_ns = now_ns;
    if (since <= slack)
        return;
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next) {
        shift(&peer->heard_ns, since - slack, now_ns);
        shift(&peer->answered_ns, since - slack, now_ns);
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
    if (group->silence_ns > 0)
        keel_endpoint_at(group->endpoint, until_ns);
    if (asks(group, peer, now_ns))
        keel_session_ask(peer->session);
}

void keel_company_tick(struct keel_group *group, uint64_t now_ns)
{
    if (spacing_of(group) == KEEL_NEVER)
        return;
    forgive(group, now_ns);
    for (struct keel_peer *peer = group->peer_list; peer != NULL; peer = peer->next)
        if (peer->session != NULL)
            look_at(group, peer, now_ns);
    look_again(group, now_ns);
}
