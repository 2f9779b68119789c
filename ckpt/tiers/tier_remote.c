/* tier_remote.c - a tier that another process serves (tier_serve.c), seen as a local one. Every answer is
 * validated; a peer that is stopped, dead or faulty costs a call its timeout and the tier its use, nothing
 * else.
 *
 * One call at a time holds the lock from its request to its answer. A call that timed out leaves its answer
 * in flight: the next call recognises it by its serial number and closes what was opened for it. Until that
 * answer arrives the tier is silent, and calls fail without waiting: links lose nothing, so a peer that
 * recovers is heard, and one that hangs costs its timeout once. After a failure that leaves the link in doubt
 * (sending timed out, the peer is gone, a malformed message) the tier is broken: every later call fails at
 * once. */
#include "store.h"
#include "tier.h"
#include "tier_wire.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

struct remote_tier {
    struct keel_tier tier;
    struct keel_tier_link link; /* its context is borrowed */
    uint64_t call_timeout_ns;
    struct keel_mutex lock;            /* guards: */
    struct keel_tier_message *message; /* owned; the request, then the answer */
    uint64_t serial;
    bool broken;
    bool silent; /* a call timed out, and nothing has come since */
};

struct remote_source {
    struct keel_tier_source source;
    uint64_t handle;
};

struct remote_sink {
    struct keel_tier_sink sink;
    uint64_t handle;
};

static struct remote_tier *remote_of(struct keel_tier *tier)
{
    return (struct remote_tier *)tier;
}

/* ---- calls (all with the lock held) -------------------------------------------------------------------- */

static enum keel_status doubt(struct remote_tier *remote, enum keel_status status)
{
    remote->broken = true;
    return keel_fail(status, "%s: %s; open it again over another link", remote->tier.name, keel_detail());
}

static enum keel_status garbage(struct remote_tier *remote)
{
    return doubt(remote, keel_fail(KEEL_CORRUPT, "answers what nobody asked"));
}

static enum keel_status post(struct remote_tier *remote, uint64_t deadline_ns)
{
    if (remote->broken)
        return keel_fail(KEEL_PEER_LOST, "%s: is not reached any more; open it again over another link",
                         remote->tier.name);
    enum keel_status status = keel_wire_send(&remote->link, remote->message, deadline_ns);
    return status == KEEL_OK ? KEEL_OK : doubt(remote, status);
}

/* The other side's failure as ours. */
static enum keel_status pass_on(struct remote_tier *remote)
{
    const struct keel_wire_header *header = &remote->message->header;
    char detail[KEEL_DETAIL_BYTES] = "";
    if (header->status >= KEEL_STATUS_COUNT)
        return garbage(remote);
    for (size_t i = 0; i < header->payload_bytes && i < sizeof detail - 1; i++) {
        char c = (char)remote->message->payload[i];
        detail[i] = c >= ' ' && c <= '~' ? c : '?';
    }
    /* What is short over there is not short here, where it would end more than this call. */
    const enum keel_status status = (enum keel_status)header->status;
    return keel_fail(keel_is_shortage(status) ? KEEL_IO : status, "%s: %s", remote->tier.name, detail);
}

/* The answer to a call that gave up is here. What was opened for that call nobody else would close, and what
 * it has reserved over there would stay so as long as the link lives. */
static enum keel_status let_go(struct remote_tier *remote, uint64_t deadline_ns)
{
    const struct keel_wire_header *header = &remote->message->header;
    const uint64_t handle = header->handle, serial = header->serial;
    const bool source = header->op == (KEEL_WIRE_OPEN | KEEL_WIRE_ANSWER);
    const bool sink = header->op == (KEEL_WIRE_CREATE | KEEL_WIRE_ANSWER);
    if (header->status != KEEL_OK || (!source && !sink))
        return KEEL_OK;
    keel_wire_begin(remote->message, source ? KEEL_WIRE_CLOSE : KEEL_WIRE_ABORT, serial, remote->tier.run);
    remote->message->header.handle = handle;
    return post(remote, deadline_ns);
}

/* Has the answer come that the last call did not wait for? Looks, without waiting. */
static void listen_again(struct remote_tier *remote)
{
    const struct keel_wire_header *header = &remote->message->header;
    enum keel_status status = keel_wire_receive(&remote->link, remote->message, keel_now_ns());
    if (status == KEEL_TIMEOUT)
        return;
    remote->silent = false;
    if (status != KEEL_OK)
        (void)doubt(remote, status);
    else if ((header->op & KEEL_WIRE_ANSWER) == 0 || header->serial > remote->serial)
        (void)garbage(remote);
    else
        (void)let_go(remote, keel_deadline_after_ns(remote->call_timeout_ns));
}

/* Fill in a request. */
static struct keel_wire_header *begin(struct remote_tier *remote, enum keel_wire_op op)
{
    if (remote->silent)
        listen_again(remote);
    keel_wire_begin(remote->message, op, ++remote->serial, remote->tier.run);
    return &remote->message->header;
}

static enum keel_status still_silent(const struct remote_tier *remote)
{
    return keel_fail(KEEL_TIMEOUT, "%s: still no answer to a call that timed out", remote->tier.name);
}

/* Send what was begun and wait for its answer. On OK it is in remote->message. */
static enum keel_status call(struct remote_tier *remote)
{
    const uint64_t deadline_ns = keel_deadline_after_ns(remote->call_timeout_ns);
    const uint32_t op = remote->message->header.op;
    const struct keel_wire_header *header = &remote->message->header;
    if (remote->silent)
        return still_silent(remote);
    KEEL_TRY(post(remote, deadline_ns));
    for (;;) {
        enum keel_status status = keel_wire_receive(&remote->link, remote->message, deadline_ns);
        remote->silent = status == KEEL_TIMEOUT;
        if (remote->silent)
            return keel_fail(KEEL_TIMEOUT, "%s: no answer within %llu ms", remote->tier.name,
                             (unsigned long long)(remote->call_timeout_ns / KEEL_NS_PER_MS));
        if (status != KEEL_OK)
            return doubt(remote, status);
        if ((header->op & KEEL_WIRE_ANSWER) == 0 || header->serial > remote->serial)
            return garbage(remote);
        if (header->serial < remote->serial) {
            KEEL_TRY(let_go(remote, deadline_ns));
            if (keel_remaining_ns(deadline_ns) == 0)
                return keel_fail(KEEL_TIMEOUT, "%s: only late answers come", remote->tier.name);
            continue;
        }
        if (header->op != (op | KEEL_WIRE_ANSWER))
            return garbage(remote);
        return header->status == KEEL_OK ? KEEL_OK : pass_on(remote);
    }
}

/* Send what was begun; nobody answers. A silent tier gets what its link takes without waiting. */
static void tell(struct remote_tier *remote)
{
    (void)post(remote, remote->silent ? keel_now_ns() : keel_deadline_after_ns(remote->call_timeout_ns));
}

/* ---- list ---------------------------------------------------------------------------------------------- */

/* One page behind `after` (NULL: from the first) into `out`, KEEL_WIRE_INFOS_MAX. Each lies behind the one
 * before, so a list ends whatever the other side does. */
static enum keel_status fetch_page(struct remote_tier *remote, const struct keel_object *after,
                                   struct keel_object_info *out, uint32_t *out_count, bool *out_more)
{
    struct keel_wire_header *header = begin(remote, KEEL_WIRE_LIST);
    if (after != NULL) {
        header->object = keel_wire_object_from(after);
        header->flags = KEEL_WIRE_AFTER;
    }
    KEEL_TRY(call(remote));
    const uint32_t count = header->payload_bytes / (uint32_t)sizeof(struct keel_wire_info);
    *out_more = (header->flags & KEEL_WIRE_MORE) != 0;
    if (header->payload_bytes % sizeof(struct keel_wire_info) != 0 || count > KEEL_WIRE_INFOS_MAX ||
        (*out_more && count == 0))
        return garbage(remote);
    for (uint32_t i = 0; i < count; i++) {
        struct keel_wire_info wire;
        memcpy(&wire, remote->message->payload + i * sizeof wire, sizeof wire);
        out[i] = (struct keel_object_info){.bytes = wire.bytes,
                                           .digest_known = (wire.flags & KEEL_WIRE_DIGEST) != 0};
        memcpy(out[i].digest, wire.digest, sizeof out[i].digest);
        if (!keel_wire_object_to(&wire.object, &out[i].object) || wire.bytes > INT64_MAX ||
            (after != NULL && keel_object_compare(after, &out[i].object) >= 0))
            return garbage(remote);
        after = &out[i].object;
    }
    *out_count = count;
    return KEEL_OK;
}

static enum keel_status
list_pages(struct remote_tier *remote, struct keel_object_info *page,
           enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct keel_object last;
    bool more = true, first = true;
    while (more) {
        uint32_t count = 0;
        keel_mutex_lock(&remote->lock);
        enum keel_status status = fetch_page(remote, first ? NULL : &last, page, &count, &more);
        keel_mutex_unlock(&remote->lock);
        if (status != KEEL_OK)
            return status;
        for (uint32_t i = 0; i < count; i++)
            KEEL_TRY(visit(context, &page[i]));
        if (count > 0)
            last = page[count - 1].object;
        first = false;
    }
    return KEEL_OK;
}

static enum keel_status
remote_list(struct keel_tier *tier,
            enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct keel_object_info *page;
    KEEL_TRY(keel_alloc(KEEL_WIRE_INFOS_MAX, sizeof *page, &page));
    enum keel_status status = list_pages(remote_of(tier), page, visit, context);
    keel_free(page);
    return status;
}

/* ---- source -------------------------------------------------------------------------------------------- */

static enum keel_status call_open(struct remote_tier *remote, struct remote_source *source)
{
    struct keel_wire_header *header = begin(remote, KEEL_WIRE_OPEN);
    struct keel_object_info *info = &source->source.info;
    header->object = keel_wire_object_from(&info->object);
    KEEL_TRY(call(remote));
    if (header->bytes > INT64_MAX)
        return garbage(remote);
    source->handle = header->handle;
    info->bytes = header->bytes;
    info->digest_known = (header->flags & KEEL_WIRE_DIGEST) != 0;
    memcpy(info->digest, header->digest, sizeof info->digest);
    return KEEL_OK;
}

static enum keel_status remote_open(struct keel_tier_source *source)
{
    struct remote_tier *remote = remote_of(source->tier);
    keel_mutex_lock(&remote->lock);
    enum keel_status status = call_open(remote, (struct remote_source *)source);
    keel_mutex_unlock(&remote->lock);
    return status;
}

static enum keel_status call_read(struct remote_tier *remote, uint64_t handle, uint64_t offset, void *out,
                                  size_t bytes)
{
    struct keel_wire_header *header = begin(remote, KEEL_WIRE_READ);
    header->handle = handle;
    header->offset = offset;
    header->bytes = bytes;
    KEEL_TRY(call(remote));
    if (header->payload_bytes != bytes)
        return garbage(remote);
    memcpy(out, remote->message->payload, bytes);
    return KEEL_OK;
}

static enum keel_status remote_read(struct keel_tier_source *source, uint64_t offset, void *out, size_t bytes)
{
    struct remote_tier *remote = remote_of(source->tier);
    uint8_t *at = out;
    enum keel_status status = KEEL_OK;
    while (bytes > 0 && status == KEEL_OK) {
        size_t part = bytes < KEEL_WIRE_PAYLOAD_MAX ? bytes : KEEL_WIRE_PAYLOAD_MAX;
        keel_mutex_lock(&remote->lock);
        status = call_read(remote, ((struct remote_source *)source)->handle, offset, at, part);
        keel_mutex_unlock(&remote->lock);
        at += part;
        offset += part;
        bytes -= part;
    }
    return status;
}

static void tell_handle(struct remote_tier *remote, enum keel_wire_op op, uint64_t handle)
{
    keel_mutex_lock(&remote->lock);
    begin(remote, op)->handle = handle;
    tell(remote);
    keel_mutex_unlock(&remote->lock);
}

static void remote_close(struct keel_tier_source *source)
{
    tell_handle(remote_of(source->tier), KEEL_WIRE_CLOSE, ((struct remote_source *)source)->handle);
}

/* ---- sink ---------------------------------------------------------------------------------------------- */

static enum keel_status call_create(struct remote_tier *remote, struct remote_sink *sink)
{
    struct keel_wire_header *header = begin(remote, KEEL_WIRE_CREATE);
    header->object = keel_wire_object_from(&sink->sink.info.object);
    header->bytes = sink->sink.info.bytes;
    KEEL_TRY(call(remote));
    sink->handle = header->handle;
    return KEEL_OK;
}

static enum keel_status remote_create(struct keel_tier_sink *sink)
{
    struct remote_tier *remote = remote_of(sink->tier);
    keel_mutex_lock(&remote->lock);
    enum keel_status status = call_create(remote, (struct remote_sink *)sink);
    keel_mutex_unlock(&remote->lock);
    return status;
}

static enum keel_status remote_write(struct keel_tier_sink *sink, const void *data, size_t bytes)
{
    struct remote_tier *remote = remote_of(sink->tier);
    const uint8_t *at = data;
    uint64_t offset = sink->written_bytes;
    enum keel_status status = KEEL_OK;
    while (bytes > 0 && status == KEEL_OK) {
        size_t part = bytes < KEEL_WIRE_PAYLOAD_MAX ? bytes : KEEL_WIRE_PAYLOAD_MAX;
        keel_mutex_lock(&remote->lock);
        struct keel_wire_header *header = begin(remote, KEEL_WIRE_WRITE);
        header->handle = ((struct remote_sink *)sink)->handle;
        header->offset = offset;
        header->payload_bytes = (uint32_t)part;
        memcpy(remote->message->payload, at, part);
        status = remote->silent ? still_silent(remote)
                                : post(remote, keel_deadline_after_ns(remote->call_timeout_ns));
        keel_mutex_unlock(&remote->lock);
        at += part;
        offset += part;
        bytes -= part;
    }
    return status;
}

static void remote_abort(struct keel_tier_sink *sink)
{
    tell_handle(remote_of(sink->tier), KEEL_WIRE_ABORT, ((struct remote_sink *)sink)->handle);
}

static enum keel_status remote_commit(struct keel_tier_sink *sink,
                                      const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES])
{
    struct remote_tier *remote = remote_of(sink->tier);
    keel_mutex_lock(&remote->lock);
    struct keel_wire_header *header = begin(remote, KEEL_WIRE_COMMIT);
    header->handle = ((struct remote_sink *)sink)->handle;
    memcpy(header->digest, digest, sizeof header->digest);
    const bool was_silent = remote->silent;
    enum keel_status status = call(remote);
    keel_mutex_unlock(&remote->lock);
    if (was_silent) { /* the commit was not sent: it must not stay open over there */
        remote_abort(sink);
        return still_silent(remote);
    }
    return status;
}

/* ---- the tier ----------------------------------------------------------------------------------------- */

static enum keel_status remote_remove(struct keel_tier *tier, const struct keel_object *object)
{
    struct remote_tier *remote = remote_of(tier);
    keel_mutex_lock(&remote->lock);
    begin(remote, KEEL_WIRE_REMOVE)->object = keel_wire_object_from(object);
    enum keel_status status = call(remote);
    keel_mutex_unlock(&remote->lock);
    return status;
}

static void remote_end(struct keel_tier *tier)
{
    struct remote_tier *remote = remote_of(tier);
    keel_mutex_fini(&remote->lock);
    keel_free(remote->message);
    keel_free(remote);
}

static const struct keel_tier_ops remote_ops = {.source_bytes = sizeof(struct remote_source),
                                                .sink_bytes = sizeof(struct remote_sink),
                                                .list = remote_list,
                                                .open = remote_open,
                                                .read = remote_read,
                                                .close = remote_close,
                                                .create = remote_create,
                                                .write = remote_write,
                                                .commit = remote_commit,
                                                .abort = remote_abort,
                                                .remove = remote_remove,
                                                .end = remote_end};

static enum keel_status greet(struct remote_tier *remote)
{
    keel_mutex_lock(&remote->lock);
    begin(remote, KEEL_WIRE_HELLO);
    enum keel_status status = call(remote);
    keel_mutex_unlock(&remote->lock);
    return status;
}

enum keel_status keel_tier_remote_open(const struct keel_tier_link *link, enum keel_tier_latency latency,
                                       const char *run, const char *name, uint64_t call_timeout_ns,
                                       struct keel_tier **out)
{
    struct remote_tier *remote;
    KEEL_TRY(keel_alloc(1, sizeof *remote, &remote));
    enum keel_status status = keel_tier_init(&remote->tier, &remote_ops, latency, run, name);
    if (status == KEEL_OK)
        status = keel_alloc(1, sizeof *remote->message, &remote->message);
    if (status != KEEL_OK) {
        keel_free(remote);
        return status;
    }
    keel_mutex_init(&remote->lock);
    remote->link = *link;
    remote->call_timeout_ns = call_timeout_ns;
    status = greet(remote);
    if (status != KEEL_OK) {
        remote_end(&remote->tier);
        return status;
    }
    *out = &remote->tier;
    return KEEL_OK;
}
