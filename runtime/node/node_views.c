/* node_views.c - how a view comes from the leader to all nodes.
 *
 * A view is told by epoch and digest, with what is other in it than in the one before, or whole where that is
 * short; else its parts are asked for. Who is told is given nodes to hand it on to: a few are told at once,
 * many through FAN_OUT heads or, where parts must follow, through as many as HAND_ON_BYTES allow, or two. So
 * nobody sends more than that for a change, or two views where one is longer than a third of it, with one
 * node or with thousands. What is lost on the way is repaired by reports: the leader answers the report of a
 * node that has an older view (node_leader.c).
 *
 * Parts are asked for, a WINDOW at once, so that a receiver's buffer holds what comes; a source that is
 * silent is asked again, and exchanged when the leader names another. What comes is compared with the
 * digest before it is believed. */
#include "node_state.h"
#include "view_delta.h"

#include <string.h>

#ifndef KEEL_LIMIT_FAN_OUT
#define KEEL_LIMIT_FAN_OUT 64
#define KEEL_LIMIT_HAND_ON 1048576
#endif

enum {
    FAN_OUT = KEEL_LIMIT_FAN_OUT,
    HAND_ON_BYTES = KEEL_LIMIT_HAND_ON, /* of a node, for a change */
    SERVED_BYTES = HAND_ON_BYTES / 4 * 3,
    WINDOW = 8,
    HEAD_BYTES = 64 /* of a message, about */
};

/* ---- telling ------------------------------------------------------------------------------------------- */

/* The bytes of the view, in `out`; they are as node->news says. */
static void encode_view(const struct keel_node *node, uint8_t out[KEEL_VIEW_BYTES_MAX])
{
    const uint32_t bytes = keel_view_encode(&node->view, out);
    KEEL_ASSERT(bytes == node->news.name.bytes && node->view.epoch == node->news.name.epoch);
}

static struct keel_wire_view *announce(struct keel_node *node, uint16_t source, bool as_delta)
{
    const struct keel_view_news *news = &node->news;
    struct keel_wire_view *out = &keel_node_message(node, KEEL_WIRE_VIEW)->as.view;
    out->name = news->name;
    out->source = source;
    if (as_delta) {
        out->base = news->base;
        out->data_bytes = (uint16_t)news->data_bytes;
        memcpy(out->data, news->data, news->data_bytes);
    } else if (news->name.bytes <= KEEL_WIRE_VIEW_BYTES) {
        const size_t mark = node->lent_bytes;
        uint8_t *bytes = keel_node_lend(node, KEEL_VIEW_BYTES_MAX);
        encode_view(node, bytes);
        out->data_bytes = (uint16_t)news->name.bytes;
        memcpy(out->data, bytes, news->name.bytes);
        node->lent_bytes = mark;
    }
    return out;
}

void keel_views_tell(struct keel_node *node, uint16_t to, uint64_t epoch, uint16_t source)
{
    (void)announce(node, source, node->news.base != 0 && node->news.base == epoch);
    keel_node_send(node, to);
}

static uint32_t within(uint64_t number, uint32_t least, uint32_t most)
{
    return number < least ? least : number > most ? most : (uint32_t)number;
}

/* To the first of these nodes, which hands it on to the others. */
static void tell_head(struct keel_node *node, const uint16_t *have, uint32_t have_count, const uint16_t *lack,
                      uint32_t lack_count)
{
    const bool as_delta = have_count > 0;
    const uint16_t head = as_delta ? have[0] : lack[0];
    struct keel_wire_view *out = announce(node, node->config.node, as_delta);
    out->have_count = (uint16_t)(have_count - (as_delta ? 1 : 0));
    out->lack_count = (uint16_t)(lack_count - (as_delta ? 0 : 1));
    memcpy(out->nodes, have + 1, out->have_count * sizeof out->nodes[0]);
    memcpy(out->nodes + out->have_count, lack + (as_delta ? 0 : 1), out->lack_count * sizeof out->nodes[0]);
    if (head != node->config.node) /* a lie */
        keel_node_send(node, head);
}

/* To one that has none, in parts or not. */
static uint64_t bytes_of_whole(const struct keel_view_news *news)
{
    return news->name.bytes + keel_wire_parts(news->name.bytes) * (uint64_t)HEAD_BYTES;
}

/* In a beat, of parts: two views at least, or a chain would have a link for each node. */
static uint64_t most_served(const struct keel_view_news *news)
{
    const uint64_t two = 2 * bytes_of_whole(news);
    return two > SERVED_BYTES ? two : SERVED_BYTES;
}

void keel_views_hand_on(struct keel_node *node, const uint16_t *nodes, uint16_t have, uint16_t lack)
{
    const struct keel_view_news *news = &node->news;
    if (news->base == 0) { /* we came by it in parts */
        lack = (uint16_t)(lack + have);
        have = 0;
    }
    const uint64_t delta_bytes = HEAD_BYTES + news->data_bytes, whole_bytes = bytes_of_whole(news);
    const uint32_t count = (uint32_t)have + lack;
    if (count <= FAN_OUT && have * delta_bytes + lack * whole_bytes <= HAND_ON_BYTES &&
        lack * whole_bytes <=
            most_served(news)) { /* who asks for more than is served waits for half a beat */
        for (uint32_t i = 0; i < count; i++)
            tell_head(node, nodes + i, i < have ? 1 : 0, nodes + i, i < have ? 0 : 1);
        return;
    }
    const uint32_t heads = have > 0 ? within(HAND_ON_BYTES / 8 / delta_bytes, 2, FAN_OUT)
                                    : within(SERVED_BYTES / whole_bytes, 2, FAN_OUT);
    const uint32_t parts = within(heads, 1, have > 0 ? have : lack);
    for (uint32_t i = 0; i < parts; i++) {
        const uint32_t have_at = i * have / parts, have_end = (i + 1) * have / parts;
        const uint32_t lack_at = i * lack / parts, lack_end = (i + 1) * lack / parts;
        tell_head(node, nodes + have_at, have_end - have_at, nodes + have + lack_at, lack_end - lack_at);
    }
}

void keel_views_made(struct keel_node *node, const struct keel_view *old)
{
    struct keel_view_news *news = &node->news;
    uint8_t *bytes = keel_node_lend(node, KEEL_VIEW_BYTES_MAX);
    news->name.epoch = node->view.epoch;
    news->name.bytes = keel_view_encode(&node->view, bytes);
    news->name.digest = keel_view_digest(bytes, news->name.bytes);
    news->data_bytes = old->epoch == 0 ? 0 : keel_view_delta(old, &node->view, news->data, sizeof news->data);
    news->base = news->data_bytes > 0 ? old->epoch : 0;
}

/* ---- hearing ------------------------------------------------------------------------------------------- */

static bool same_view(const struct keel_wire_view_name *a, const struct keel_wire_view_name *b)
{
    return a->epoch == b->epoch && a->digest == b->digest && a->bytes == b->bytes;
}

static bool bears_name(struct keel_node *node, const struct keel_view *view,
                       const struct keel_wire_view_name *name)
{
    uint8_t *bytes = keel_node_lend(node, KEEL_VIEW_BYTES_MAX);
    return view->epoch == name->epoch && keel_view_encode(view, bytes) == name->bytes &&
           keel_view_digest(bytes, name->bytes) == name->digest;
}

/* The view is right, and new. */
static void adopt(struct keel_node *node, const struct keel_view *view,
                  const struct keel_wire_view_name *name, const struct keel_wire_view *delta)
{
    struct keel_view_news *news = &node->news;
    news->name = *name;
    news->base = delta != NULL ? delta->base : 0;
    news->data_bytes = delta != NULL ? delta->data_bytes : 0;
    if (delta != NULL)
        memcpy(news->data, delta->data, delta->data_bytes);
    if (node->fetch.name.epoch <= name->epoch)
        node->fetch.name.epoch = 0;
    keel_agent_adopt(node, view);
}

static void pull(struct keel_node *node)
{
    struct keel_view_fetch *fetch = &node->fetch;
    const uint32_t count = keel_wire_parts(fetch->name.bytes);
    uint32_t first = 0, wanted = 0;
    uint64_t parts = 0;
    while (first < count && keel_bitset_has(&fetch->have, first))
        first++;
    memset(&fetch->asked, 0, sizeof fetch->asked);
    for (uint32_t part = first; part < count && part < first + 64 && wanted < WINDOW; part++) {
        if (keel_bitset_has(&fetch->have, part))
            continue;
        keel_bitset_add(&fetch->asked, part);
        parts |= UINT64_C(1) << (part - first);
        wanted++;
    }
    fetch->asked_ns = node->now_ns;
    if (fetch->source == node->config.node) /* a lie */
        return;
    struct keel_wire_pull *out = &keel_node_message(node, KEEL_WIRE_PULL)->as.pull;
    out->name = fetch->name;
    out->first = (uint8_t)first;
    out->parts = parts;
    keel_node_send(node, fetch->source);
}

/* Ask for the parts of a view that was told of; one that comes already goes on to come from where it does,
 * until that source is silent. */
static void begin_fetch(struct keel_node *node, const struct keel_wire_view *in)
{
    struct keel_view_fetch *fetch = &node->fetch;
    const bool silent = keel_node_due(node, fetch->heard_ns + node->times.beat_ns);
    const bool same = same_view(&fetch->name, &in->name);
    if (fetch->name.epoch != 0 && !silent && (same || fetch->name.epoch > in->name.epoch))
        return;
    if (!same) {
        fetch->name = in->name;
        memset(&fetch->have, 0, sizeof fetch->have);
    }
    if (!same || in->have_count + in->lack_count > 0) {
        fetch->have_count = in->have_count;
        fetch->lack_count = in->lack_count;
        memcpy(fetch->nodes, in->nodes, ((size_t)in->have_count + in->lack_count) * sizeof in->nodes[0]);
    }
    fetch->source = in->source;
    fetch->heard_ns = node->now_ns;
    pull(node);
}

static void take_view(struct keel_node *node, const struct keel_wire_view *in)
{
    struct keel_view *next = keel_node_lend(node, sizeof *next);
    if (in->name.epoch < node->view.epoch)
        return;
    if (in->name.epoch > node->view.epoch) {
        const bool usable = in->data_bytes > 0 && (in->base == 0 || in->base == node->view.epoch);
        if (!usable) {
            begin_fetch(node, in);
            return;
        }
        const bool reads = in->base == 0 ? keel_view_decode(in->data, in->data_bytes, next)
                                         : keel_view_apply(&node->view, in->data, in->data_bytes, next);
        if (!reads || !bears_name(node, next, &in->name)) {
            keel_node_trace(node, "drop a view that is not what its digest says");
            return;
        }
        adopt(node, next, &in->name, in->base != 0 ? in : NULL);
    }
    if (same_view(&in->name, &node->news.name))
        keel_views_hand_on(node, in->nodes, in->have_count, in->lack_count);
}

static void take_part(struct keel_node *node, const struct keel_wire_part *in)
{
    struct keel_view_fetch *fetch = &node->fetch;
    const uint32_t count = keel_wire_parts(fetch->name.bytes);
    if (!same_view(&fetch->name, &in->name) || in->name.epoch <= node->view.epoch)
        return;
    memcpy(fetch->data + in->part * KEEL_WIRE_PART_BYTES, in->data,
           keel_wire_part_bytes(fetch->name.bytes, in->part));
    keel_bitset_add(&fetch->have, in->part);
    keel_bitset_remove(&fetch->asked, in->part);
    fetch->asked_ns = fetch->heard_ns = node->now_ns;
    if (keel_bitset_count(&fetch->have) < count) {
        if (keel_bitset_next(&fetch->asked, 0) == KEEL_BITSET_BITS)
            pull(node);
        return;
    }
    struct keel_view *next = keel_node_lend(node, sizeof *next);
    const struct keel_wire_view_name name = fetch->name;
    fetch->name.epoch = 0;
    if (keel_view_digest(fetch->data, name.bytes) != name.digest ||
        !keel_view_decode(fetch->data, name.bytes, next) || next->epoch != name.epoch) {
        keel_node_trace(node, "drop a view whose parts do not make what its digest says");
        return;
    }
    adopt(node, next, &name, NULL);
    keel_views_hand_on(node, fetch->nodes, fetch->have_count, fetch->lack_count);
}

/* ---- serving ------------------------------------------------------------------------------------------- */

/* Who asks for an older view is told of the present one. */
static void serve(struct keel_node *node, uint16_t to, const struct keel_wire_pull *in)
{
    struct keel_view_news *news = &node->news;
    if (!same_view(&news->name, &in->name)) {
        if (news->name.epoch > in->name.epoch)
            keel_views_tell(node, to, 0, node->config.node);
        return;
    }
    if (keel_node_due(node, news->served_ns + node->times.beat_ns)) {
        news->served_ns = node->now_ns;
        news->served_bytes = 0;
    }
    uint8_t *bytes = keel_node_lend(node, KEEL_VIEW_BYTES_MAX);
    encode_view(node, bytes);
    const uint32_t count = keel_wire_parts(news->name.bytes);
    const uint64_t most = most_served(news);
    for (uint32_t i = 0, sent = 0; i < 64 && in->first + i < count && sent < WINDOW; i++) {
        const uint32_t part = in->first + i, part_bytes = keel_wire_part_bytes(news->name.bytes, part);
        if ((in->parts >> i & 1) == 0 || news->served_bytes + HEAD_BYTES + part_bytes > most)
            continue;
        struct keel_wire_part *out = &keel_node_message(node, KEEL_WIRE_PART)->as.part;
        out->name = news->name;
        out->part = (uint8_t)part;
        memcpy(out->data, bytes + part * KEEL_WIRE_PART_BYTES, part_bytes);
        keel_node_send(node, to);
        news->served_bytes += HEAD_BYTES + part_bytes;
        sent++;
    }
}

void keel_views_message(struct keel_node *node, uint16_t from)
{
    const struct keel_wire_message *in = &node->scratch->in;
    if (in->kind == KEEL_WIRE_PULL)
        serve(node, from, &in->as.pull);
    else if (keel_node_leads(node))
        keel_node_trace(node, "drop message kind %d from node %u: not its part", (int)in->kind, from);
    else if (in->kind == KEEL_WIRE_VIEW)
        take_view(node, &in->as.view);
    else if (in->kind == KEEL_WIRE_PART)
        take_part(node, &in->as.part);
}

/* Half a beat without a part: it was lost, or its source is. */
void keel_views_work(struct keel_node *node)
{
    const uint64_t due_ns = node->fetch.asked_ns + node->times.beat_ns / 2;
    if (node->fetch.name.epoch == 0)
        return;
    if (keel_node_due(node, due_ns))
        pull(node);
    else
        keel_node_wake(node, due_ns);
}
