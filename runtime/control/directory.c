/* directory.c - see directory.h. */
#include "directory.h"

#include <keel/clock.h>
#include <string.h>

/* Who lacks what was sent is sent it again no more often than this. */
static const uint64_t repair_pause_ns = 20 * KEEL_NS_PER_MS;
/* Between two messages of changes to a node, for each node that is known: some ten times what such a message
 * costs the launcher. A few nodes are told at once. */
static const uint64_t gather_node_ns = 50 * KEEL_NS_PER_US;
enum { TOLD_AT_ONCE = 64 };

/* What changed comes in pages, one a message: who has all pages from a version that it has has the newest. */
struct page_head {
    uint32_t base;
    uint16_t page, page_count;
};
struct entry {
    uint16_t node, port;
    uint32_t tag;
    uint8_t ip[KEEL_IP_BYTES];
};
_Static_assert(sizeof(struct page_head) == 8 && sizeof(struct entry) == 24, "no padding");
enum {
    PAGE_BYTES = KEEL_MESSAGE_BYTES < 8192 ? KEEL_MESSAGE_BYTES : 8192,
    PAGE_ENTRIES = (PAGE_BYTES - sizeof(struct page_head)) / sizeof(struct entry),
    PAGES_MAX = 64
};
_Static_assert(KEEL_NODES_MAX <= PAGE_ENTRIES * PAGES_MAX, "a directory fits");

void keel_directory_init(struct keel_directory *directory, uint16_t self, uint32_t version)
{
    directory->self = self;
    directory->version = version;
    directory->log_begin = version + 1;
}

/* False: nothing is new. */
static bool put(struct keel_directory *directory, uint16_t node, const struct keel_net_place *place,
                uint32_t tag, uint32_t version)
{
    struct keel_directory_node *known = &directory->nodes[node];
    if (keel_net_place_same_ip(&known->place, place) && known->place.port == place->port && known->tag == tag)
        return false;
    directory->known_count = (uint16_t)(directory->known_count + (known->place.port == 0 ? 1 : 0));
    directory->node_end = node < directory->node_end ? directory->node_end : (uint16_t)(node + 1);
    *known = (struct keel_directory_node){.place = *place, .tag = tag, .version = version};
    return true;
}

void keel_directory_know(struct keel_directory *directory, uint16_t node, const struct keel_net_place *place,
                         uint32_t tag)
{
    KEEL_ASSERT(node > 0 && node < KEEL_NODES_MAX && node != directory->self);
    (void)put(directory, node, place, tag, 0);
}

/* ---- keeper -------------------------------------------------------------------------------------------- */

/* What is new is told to all from the next datagram on. */
static void change(struct keel_directory *directory, uint16_t node)
{
    directory->version++;
    directory->nodes[node].version = directory->version;
    directory->changed[directory->version % KEEL_DIRECTORY_LOG] = node;
    directory->behind = true;
}

/* Versions up to this one may be another keeper's. */
static void begin_behind(struct keel_directory *directory, uint32_t version)
{
    directory->version = version;
    directory->log_begin = version + 1;
}

void keel_directory_keep(struct keel_directory *directory, const struct keel_net_place *here, uint32_t tag,
                         uint32_t gap)
{
    for (uint16_t node = 0; node < directory->node_end; node++)
        directory->told[node] = (struct keel_directory_told){.version = directory->version};
    directory->due_ns = 0;
    begin_behind(directory, directory->version + gap);
    if (directory->self != 0 && put(directory, directory->self, here, tag, 0))
        change(directory, directory->self);
}

/* Whose places changed behind `since`, once each. */
static uint32_t find_changed(const struct keel_directory *directory, uint32_t since,
                             uint16_t out[KEEL_NODES_MAX])
{
    uint32_t count = 0;
    const bool logged = since + 1 >= directory->log_begin && directory->version - since <= KEEL_DIRECTORY_LOG;
    for (uint32_t v = since + 1; logged && v <= directory->version; v++) {
        const uint16_t node = directory->changed[v % KEEL_DIRECTORY_LOG];
        if (directory->nodes[node].version == v) /* else it changed once more */
            out[count++] = node;
    }
    for (uint16_t node = 1; !logged && node < directory->node_end; node++)
        if (directory->nodes[node].place.port != 0 && directory->nodes[node].version > since)
            out[count++] = node;
    return count;
}

static void tell(struct keel_directory *directory, uint16_t node, uint32_t since, uint64_t now_ns,
                 keel_directory_send *send, void *context)
{
    struct {
        struct page_head head;
        struct entry entries[PAGE_ENTRIES];
    } page;
    uint16_t changed[KEEL_NODES_MAX];
    const uint32_t count = find_changed(directory, since, changed);
    directory->told[node] = (struct keel_directory_told){.version = directory->version, .ns = now_ns};
    const uint32_t pages = (count + PAGE_ENTRIES - 1) / PAGE_ENTRIES; /* none: the version alone is told */
    page.head = (struct page_head){.base = since, .page_count = (uint16_t)(pages > 0 ? pages : 1)};
    for (; page.head.page < page.head.page_count; page.head.page++) {
        const uint32_t first = (uint32_t)page.head.page * PAGE_ENTRIES;
        const uint32_t here = count - first < PAGE_ENTRIES ? count - first : PAGE_ENTRIES;
        for (uint32_t i = 0; i < here; i++) {
            const struct keel_directory_node *known = &directory->nodes[changed[first + i]];
            page.entries[i] =
                (struct entry){.node = changed[first + i], .port = known->place.port, .tag = known->tag};
            memcpy(page.entries[i].ip, known->place.ip, sizeof known->place.ip);
        }
        send(context, node, &page, (uint32_t)(sizeof page.head + here * sizeof page.entries[0]));
    }
}

/* All who were not told of everything, and not just now. */
static void tell_others(struct keel_directory *directory, uint64_t now_ns, keel_directory_send *send,
                        void *context)
{
    const uint32_t count = directory->known_count;
    const uint64_t pause_ns = count > TOLD_AT_ONCE ? count * gather_node_ns : 0;
    directory->behind = false;
    directory->due_ns = now_ns + pause_ns;
    for (uint16_t node = 0; node < directory->node_end; node++) {
        const struct keel_directory_told *told = &directory->told[node];
        if (node == directory->self || directory->nodes[node].place.port == 0 ||
            told->version == directory->version)
            continue;
        if (told->ns != 0 && now_ns - told->ns < pause_ns)
            directory->behind = true;
        else
            tell(directory, node, told->version, now_ns, send, context);
    }
}

void keel_directory_hear(struct keel_directory *directory, uint16_t node, const struct keel_net_place *place,
                         uint32_t tag, uint32_t version, uint64_t now_ns, keel_directory_send *send,
                         void *context)
{
    struct keel_directory_told *told = &directory->told[node];
    KEEL_ASSERT(node != directory->self && node < KEEL_NODES_MAX);
    if (place->port == 0) /* nobody is there: whoever wrote that on the way is not the node */
        return;
    const uint32_t has = version <= directory->version ? version : 0;
    if (version > directory->version) /* another told it so; it may be of what is not here */
        begin_behind(directory, version + 1);
    if (node != 0 && put(directory, node, place, tag, 0)) { /* the launcher's place stays */
        change(directory, node);
        *told = (struct keel_directory_told){.version = has};
    } else if (version != directory->version && version != told->version &&
               now_ns - told->ns >= repair_pause_ns) {
        tell(directory, node, has, now_ns, send, context);
    }
    if (directory->behind && now_ns >= directory->due_ns)
        tell_others(directory, now_ns, send, context);
}

/* ---- others -------------------------------------------------------------------------------------------- */

void keel_directory_take(struct keel_directory *directory, const uint8_t *data, uint32_t bytes,
                         uint32_t version)
{
    struct page_head head;
    struct entry entry;
    if (version <= directory->version || version < directory->coming_version || bytes < sizeof head ||
        (bytes - sizeof head) % sizeof entry != 0)
        return;
    memcpy(&head, data, sizeof head);
    if (head.page_count == 0 || head.page_count > PAGES_MAX || head.page >= head.page_count)
        return;
    for (uint32_t at = sizeof head; at < bytes; at += (uint32_t)sizeof entry) {
        memcpy(&entry, data + at, sizeof entry);
        if (entry.node == 0 || entry.node == directory->self || entry.node >= KEEL_NODES_MAX)
            continue;
        struct keel_net_place place = {.port = entry.port};
        memcpy(place.ip, entry.ip, sizeof entry.ip);
        (void)put(directory, entry.node, &place, entry.tag, version);
    }
    if (version != directory->coming_version || head.base != directory->coming_base)
        directory->coming_pages = 0;
    directory->coming_version = version;
    directory->coming_base = head.base;
    directory->coming_pages |= UINT64_C(1) << head.page;
    if (directory->coming_pages == UINT64_MAX >> (PAGES_MAX - head.page_count) &&
        head.base <= directory->version)
        directory->version = version;
}
