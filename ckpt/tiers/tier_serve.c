/* tier_serve.c - a tier of this process, served to another: one request after the other, until the client
 * is gone. What a client may hold is bounded; what it asks is checked by the tier's own calls. */
#include "tier.h"
#include "tier_wire.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A client that reads an erasure set has two files of each node open, and some more. */
enum { HANDLES_MAX = 3 * KEEL_ERASURE_NODES_MAX };

/* An open source or sink of the client. Its number is never used again, so a late message for one that is
 * closed meets no other. */
struct handle {
    uint64_t number;                 /* 0: free */
    struct keel_tier_source *source; /* owned; one of the two */
    struct keel_tier_sink *sink;     /* owned */
    enum keel_status failed;         /* of the sink: told at commit */
    char detail[KEEL_DETAIL_BYTES];
};

/* Its payload begins with a page (tier_directory.c), where this does. */
struct placed_message {
    uint8_t before[KEEL_PAGE_BYTES - sizeof(struct keel_wire_header)];
    struct keel_tier_message message;
};
_Static_assert(offsetof(struct placed_message, message.payload) == KEEL_PAGE_BYTES &&
                   sizeof(struct placed_message) % KEEL_PAGE_BYTES == 0,
               "a page in front of the payload");

struct server {
    struct placed_message request, answer;
    struct keel_tier *tier;
    const struct keel_tier_link *link;
    uint64_t idle_timeout_ns;
    struct handle handles[HANDLES_MAX];
    uint64_t last_number;
};

/* ---- handles ------------------------------------------------------------------------------------------- */

static struct handle *find_handle(struct server *server, uint64_t number, bool sink)
{
    for (size_t i = 0; i < HANDLES_MAX && number != 0; i++) {
        struct handle *handle = &server->handles[i];
        if (handle->number == number && (handle->sink != NULL) == sink)
            return handle;
    }
    (void)keel_fail(KEEL_INVALID, "%s: no such source or sink is open", server->tier->name);
    return NULL;
}

static struct handle *new_handle(struct server *server)
{
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (server->handles[i].number == 0)
            return &server->handles[i];
    (void)keel_fail(KEEL_LIMIT, "%s: serves at most %d open sources and sinks", server->tier->name,
                    HANDLES_MAX);
    return NULL;
}

static void drop_handle(struct handle *handle)
{
    keel_tier_close_source(handle->source);
    keel_tier_abort(handle->sink);
    *handle = (struct handle){0};
}

/* ---- requests ------------------------------------------------------------------------------------------ */

static bool wanted_object(const struct server *server, struct keel_object *out)
{
    if (keel_wire_object_to(&server->request.message.header.object, out))
        return true;
    (void)keel_fail(KEEL_INVALID, "%s: no object has such numbers", server->tier->name);
    return false;
}

/* The smallest KEEL_WIRE_INFOS_MAX objects behind `after`, ascending. */
struct page {
    struct keel_object after;
    bool from_first, more;
    uint32_t count;
    struct keel_object_info infos[KEEL_WIRE_INFOS_MAX];
};

static enum keel_status add_to_page(void *context, const struct keel_object_info *info)
{
    struct page *page = context;
    if (!page->from_first && keel_object_compare(&info->object, &page->after) <= 0)
        return KEEL_OK;
    uint32_t at = page->count;
    while (at > 0 && keel_object_compare(&page->infos[at - 1].object, &info->object) > 0)
        at--;
    if (page->count == KEEL_WIRE_INFOS_MAX) {
        page->more = true;
        if (at == page->count)
            return KEEL_OK;
        page->count--;
    }
    memmove(&page->infos[at + 1], &page->infos[at], (page->count - at) * sizeof *page->infos);
    page->infos[at] = *info;
    page->count++;
    return KEEL_OK;
}

static enum keel_status answer_list(struct server *server)
{
    struct page *page;
    struct keel_wire_header *answer = &server->answer.message.header;
    KEEL_TRY(keel_alloc(1, sizeof *page, &page));
    page->from_first = (server->request.message.header.flags & KEEL_WIRE_AFTER) == 0;
    enum keel_status status = KEEL_OK;
    if (!page->from_first && !wanted_object(server, &page->after))
        status = KEEL_INVALID;
    if (status == KEEL_OK)
        status = keel_tier_list(server->tier, add_to_page, page);
    for (uint32_t i = 0; i < page->count && status == KEEL_OK; i++) {
        const struct keel_object_info *info = &page->infos[i];
        struct keel_wire_info wire = {.object = keel_wire_object_from(&info->object),
                                      .bytes = info->bytes,
                                      .flags = info->digest_known ? KEEL_WIRE_DIGEST : 0};
        memcpy(wire.digest, info->digest, sizeof wire.digest);
        memcpy(server->answer.message.payload + i * sizeof wire, &wire, sizeof wire);
        answer->payload_bytes += (uint32_t)sizeof wire;
    }
    answer->flags = page->more ? KEEL_WIRE_MORE : 0;
    keel_free(page);
    return status;
}

static enum keel_status answer_open(struct server *server)
{
    struct keel_object object;
    struct keel_wire_header *answer = &server->answer.message.header;
    struct handle *handle = new_handle(server);
    if (handle == NULL)
        return KEEL_LIMIT;
    if (!wanted_object(server, &object))
        return KEEL_INVALID;
    KEEL_TRY(keel_tier_open(server->tier, &object, &handle->source));
    handle->number = ++server->last_number;
    answer->handle = handle->number;
    answer->bytes = handle->source->info.bytes;
    answer->flags = handle->source->info.digest_known ? KEEL_WIRE_DIGEST : 0;
    memcpy(answer->digest, handle->source->info.digest, sizeof answer->digest);
    return KEEL_OK;
}

static enum keel_status answer_read(struct server *server)
{
    const struct keel_wire_header *request = &server->request.message.header;
    const struct handle *handle = find_handle(server, request->handle, false);
    if (handle == NULL)
        return KEEL_INVALID;
    if (request->bytes > KEEL_WIRE_PAYLOAD_MAX)
        return keel_fail(KEEL_INVALID, "%s: more is asked for than a message holds", server->tier->name);
    KEEL_TRY(keel_tier_read(handle->source, request->offset, server->answer.message.payload,
                            (size_t)request->bytes));
    server->answer.message.header.payload_bytes = (uint32_t)request->bytes;
    return KEEL_OK;
}

static enum keel_status answer_create(struct server *server)
{
    struct keel_object object;
    struct handle *handle = new_handle(server);
    if (handle == NULL)
        return KEEL_LIMIT;
    if (!wanted_object(server, &object))
        return KEEL_INVALID;
    KEEL_TRY(keel_tier_create(server->tier, &object, server->request.message.header.bytes, &handle->sink));
    handle->number = ++server->last_number;
    server->answer.message.header.handle = handle->number;
    return KEEL_OK;
}

/* Nobody waits for it: what fails is kept for the commit. */
static void take_write(struct server *server)
{
    const struct keel_wire_header *request = &server->request.message.header;
    struct handle *handle = find_handle(server, request->handle, true);
    if (handle == NULL || handle->failed != KEEL_OK)
        return;
    handle->failed =
        request->offset == handle->sink->written_bytes
            ? keel_tier_write(handle->sink, server->request.message.payload, request->payload_bytes)
            : keel_fail(KEEL_INVALID, "%s: a piece of an object is missing", server->tier->name);
    if (handle->failed != KEEL_OK)
        snprintf(handle->detail, sizeof handle->detail, "%s", keel_detail());
}

static enum keel_status answer_commit(struct server *server)
{
    struct handle *handle = find_handle(server, server->request.message.header.handle, true);
    if (handle == NULL)
        return KEEL_INVALID;
    enum keel_status status = handle->failed;
    if (status == KEEL_OK) {
        status = keel_tier_commit(handle->sink, server->request.message.header.digest);
        handle->sink = NULL;
        *handle = (struct handle){0};
        return status;
    }
    status = keel_fail(status, "%s", handle->detail);
    drop_handle(handle);
    return status;
}

static enum keel_status answer_remove(struct server *server)
{
    struct keel_object object;
    return wanted_object(server, &object) ? keel_tier_remove(server->tier, &object) : KEEL_INVALID;
}

static void take_drop(struct server *server, bool sink)
{
    struct handle *handle = find_handle(server, server->request.message.header.handle, sink);
    if (handle != NULL)
        drop_handle(handle);
}

/* ---- serving ------------------------------------------------------------------------------------------- */

static enum keel_status answer_one(struct server *server)
{
    const struct keel_wire_header *request = &server->request.message.header;
    if (strncmp(request->run, server->tier->run, sizeof request->run) != 0)
        return keel_fail(KEEL_MISMATCH, "%s: is of run %s, run %.63s was asked for", server->tier->name,
                         server->tier->run, request->run);
    switch (request->op) {
    case KEEL_WIRE_HELLO:
        return KEEL_OK;
    case KEEL_WIRE_LIST:
        return answer_list(server);
    case KEEL_WIRE_OPEN:
        return answer_open(server);
    case KEEL_WIRE_READ:
        return answer_read(server);
    case KEEL_WIRE_CREATE:
        return answer_create(server);
    case KEEL_WIRE_COMMIT:
        return answer_commit(server);
    case KEEL_WIRE_REMOVE:
        return answer_remove(server);
    default:
        return keel_fail(KEEL_UNSUPPORTED, "%s: such a request is not known here", server->tier->name);
    }
}

/* A detail longer than is kept anyway is cut. */
static void tell_failure(struct server *server, enum keel_status status)
{
    struct keel_wire_header *answer = &server->answer.message.header;
    size_t bytes = strnlen(keel_detail(), KEEL_DETAIL_BYTES);
    answer->status = status;
    answer->payload_bytes = (uint32_t)bytes;
    memcpy(server->answer.message.payload, keel_detail(), bytes);
}

static enum keel_status serve_one(struct server *server)
{
    const struct keel_wire_header *request = &server->request.message.header;
    KEEL_TRY(keel_wire_receive(server->link, &server->request.message,
                               keel_deadline_after_ns(server->idle_timeout_ns)));
    if (request->op == KEEL_WIRE_WRITE) {
        take_write(server);
        return KEEL_OK;
    }
    if (request->op == KEEL_WIRE_CLOSE || request->op == KEEL_WIRE_ABORT) {
        take_drop(server, request->op == KEEL_WIRE_ABORT);
        return KEEL_OK;
    }
    keel_wire_begin(&server->answer.message, request->op | KEEL_WIRE_ANSWER, request->serial,
                    server->tier->run);
    enum keel_status status = answer_one(server);
    if (status != KEEL_OK)
        tell_failure(server, status);
    return keel_wire_send(server->link, &server->answer.message,
                          keel_deadline_after_ns(server->idle_timeout_ns));
}

enum keel_status keel_tier_serve(struct keel_tier *tier, const struct keel_tier_link *link,
                                 uint64_t idle_timeout_ns)
{
    struct server *server;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *server, &server));
    memset(server, 0, sizeof *server);
    server->tier = tier;
    server->link = link;
    server->idle_timeout_ns = idle_timeout_ns;
    enum keel_status status = KEEL_OK;
    while (status == KEEL_OK)
        status = serve_one(server);
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (server->handles[i].number != 0)
            drop_handle(&server->handles[i]);
    keel_free(server);
    return status;
}
