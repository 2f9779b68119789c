/* mailbox.c - a UDP socket, a directory of nodes, and datagrams that prove themselves.
 *
 * Owns the socket and the directory. Promises that only authenticated, fresh messages come out, and that
 * strangers change nothing, the directory included. Sealing is seal.c's; what messages mean is node.c's. */
#include "mailbox.h"

#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CHANNEL_CONTROL = 1,   /* for the owner */
    CHANNEL_HELLO = 2,     /* empty: here I am */
    CHANNEL_DIRECTORY = 3, /* a page of it: struct page_head, then struct entry */
    CHANNEL_PROBE = 4,     /* does so much get through? Answered with as much */
    CHANNEL_ECHO = 5,
    LAUNCHER = 0,
    TAKEN_PER_CALL = 64,
    SOCKET_BUFFER_BYTES = 4 << 20,
    VERSIONS_BITS = 20 /* of the directory, that one incarnation of the launcher counts */
};

/* A node may ask for the directory by every beat; it is answered no more often than this. */
static const uint64_t directory_pause_ns = 20 * KEEL_NS_PER_MS;
static const uint64_t stranger_pause_ns = KEEL_NS_PER_S;

struct known {
    struct keel_net_place place; /* port 0: not known */
    uint32_t tag;                /* of the process there */
};

/* A directory comes in pages, one a message; who has all pages of a version has the directory. */
struct page_head {
    uint32_t page, page_count;
};
struct entry {
    uint16_t node, port;
    uint32_t tag;
    uint8_t ip[KEEL_IP_BYTES];
};
_Static_assert(sizeof(struct entry) == 24, "entries have no padding");
enum {
    PAGE_BYTES = KEEL_MESSAGE_BYTES < 8192 ? KEEL_MESSAGE_BYTES : 8192,
    PAGE_ENTRIES = (PAGE_BYTES - sizeof(struct page_head)) / sizeof(struct entry),
    PAGES_MAX = 64
};
_Static_assert(KEEL_NODES_MAX <= PAGE_ENTRIES * PAGES_MAX, "a directory fits");
_Static_assert(KEEL_DATAGRAM_BYTES <= 65507, "a message is one datagram of UDP over IPv4");

struct keel_mailbox {
    int fd;
    sa_family_t family;
    struct keel_net_place here;
    struct keel_seal seal;
    struct known nodes[KEEL_NODES_MAX];
    uint64_t told_ns[KEEL_NODES_MAX];  /* launcher: when a node was sent the directory last */
    uint64_t heard_ns[KEEL_NODES_MAX]; /* a message that proved itself came from it */
    uint32_t directory_version;        /* launcher: counts changes; agent: the one it has, */
    uint32_t coming_version;           /* and one of which it has these pages, by bits */
    uint64_t coming_pages;
    uint32_t echoed_bytes; /* agent: the largest probe that came back */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    void *context;
    uint64_t stranger_told_ns, stranger_count;
    uint8_t datagram[KEEL_DATAGRAM_BYTES + 1]; /* one more byte tells too long a one */
};

/* ---- sending ------------------------------------------------------------------------------------------ */

static void send_on(struct keel_mailbox *mailbox, uint16_t node, uint16_t channel, const void *data,
                    uint32_t bytes)
{
    const struct known *known = &mailbox->nodes[node];
    struct sockaddr_storage to;
    const socklen_t to_bytes =
        known->place.port != 0 ? keel_net_place_to_socket(&known->place, mailbox->family, &to) : 0;
    if (to_bytes == 0)
        return;
    const struct keel_seal_label label = {
        .to = node, .channel = channel, .version = mailbox->directory_version, .tag = known->tag};
    uint8_t datagram[KEEL_DATAGRAM_BYTES];
    uint32_t sealed = keel_seal_wrap(&mailbox->seal, &label, data, bytes, datagram);
    (void)sendto(mailbox->fd, datagram, sealed, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&to,
                 to_bytes);
}

void keel_mailbox_send(struct keel_mailbox *mailbox, uint16_t node, const uint8_t *data, uint32_t bytes)
{
    KEEL_ASSERT(node < KEEL_NODES_MAX && node != mailbox->seal.node && bytes <= KEEL_MESSAGE_BYTES);
    send_on(mailbox, node, CHANNEL_CONTROL, data, bytes);
}

/* ---- directory ---------------------------------------------------------------------------------------- */

static void send_directory(struct keel_mailbox *mailbox, uint16_t node)
{
    struct entry entries[KEEL_NODES_MAX];
    uint8_t message[PAGE_BYTES];
    uint32_t count = 0;
    for (int i = 1; i < KEEL_NODES_MAX; i++) {
        const struct known *known = &mailbox->nodes[i];
        if (known->place.port == 0)
            continue;
        entries[count] = (struct entry){.node = (uint16_t)i, .port = known->place.port, .tag = known->tag};
        memcpy(entries[count++].ip, known->place.ip, sizeof known->place.ip);
    }
    mailbox->told_ns[node] = keel_now_ns();
    struct page_head head = {.page_count = (count + PAGE_ENTRIES - 1) / PAGE_ENTRIES};
    for (; head.page < head.page_count; head.page++) {
        const uint32_t first = head.page * PAGE_ENTRIES;
        const uint32_t here = count - first < PAGE_ENTRIES ? count - first : PAGE_ENTRIES;
        memcpy(message, &head, sizeof head);
        memcpy(message + sizeof head, entries + first, here * sizeof entries[0]);
        send_on(mailbox, node, CHANNEL_DIRECTORY, message,
                (uint32_t)(sizeof head + here * sizeof entries[0]));
    }
}

/* Launcher: `node` has just proved that it is at `place` and has directory `version`. */
static void learn(struct keel_mailbox *mailbox, uint16_t node, const struct keel_net_place *place,
                  uint32_t tag, uint32_t version)
{
    struct known *known = &mailbox->nodes[node];
    if (!keel_net_place_same_ip(&known->place, place) || known->place.port != place->port ||
        known->tag != tag) {
        *known = (struct known){.place = *place, .tag = tag};
        mailbox->directory_version++;
        for (int i = 1; i < KEEL_NODES_MAX; i++)
            if (mailbox->nodes[i].place.port != 0)
                send_directory(mailbox, (uint16_t)i);
    } else if (version != mailbox->directory_version &&
               keel_now_ns() - mailbox->told_ns[node] >= directory_pause_ns) {
        send_directory(mailbox, node);
    }
}

/* Agent: a page of the launcher's newest directory. One that came late is of an older one: ignored. */
static void adopt(struct keel_mailbox *mailbox, const uint8_t *data, uint32_t bytes, uint32_t version)
{
    struct page_head head;
    struct entry entry;
    if (version <= mailbox->directory_version || version < mailbox->coming_version || bytes < sizeof head ||
        (bytes - sizeof head) % sizeof entry != 0)
        return;
    memcpy(&head, data, sizeof head);
    if (head.page_count > PAGES_MAX || head.page >= head.page_count)
        return;
    for (uint32_t at = sizeof head; at < bytes; at += (uint32_t)sizeof entry) {
        memcpy(&entry, data + at, sizeof entry);
        if (entry.node == LAUNCHER || entry.node == mailbox->seal.node || entry.node >= KEEL_NODES_MAX)
            continue;
        struct known *known = &mailbox->nodes[entry.node];
        *known = (struct known){.place.port = entry.port, .tag = entry.tag};
        memcpy(known->place.ip, entry.ip, sizeof entry.ip);
    }
    if (version != mailbox->coming_version)
        mailbox->coming_pages = 0;
    mailbox->coming_version = version;
    mailbox->coming_pages |= UINT64_C(1) << head.page;
    if (mailbox->coming_pages == UINT64_MAX >> (PAGES_MAX - head.page_count))
        mailbox->directory_version = version;
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

static void refuse(struct keel_mailbox *mailbox, const struct keel_net_place *from,
                   enum keel_seal_verdict verdict)
{
    mailbox->stranger_count++;
    uint64_t now_ns = keel_now_ns();
    if (mailbox->stranger == NULL ||
        (mailbox->stranger_told_ns != 0 && now_ns - mailbox->stranger_told_ns < stranger_pause_ns))
        return;
    mailbox->stranger_told_ns = now_ns;
    char place[KEEL_PLACE_BYTES];
    keel_net_place_print(from, place);
    mailbox->stranger(mailbox->context, place, keel_seal_verdict_text(verdict), mailbox->stranger_count);
}

/* Take a datagram from the socket; false when there is none. A socket error (the ICMP of an earlier
 * datagram to a dead peer) is not the end of the queue: looked past. */
static bool take(struct keel_mailbox *mailbox, struct keel_net_place *out_from, uint32_t *out_bytes)
{
    for (int errors = 0; errors < TAKEN_PER_CALL; errors++) {
        struct sockaddr_storage from = {0};
        socklen_t from_bytes = sizeof from;
        ssize_t got = recvfrom(mailbox->fd, mailbox->datagram, sizeof mailbox->datagram, MSG_DONTWAIT,
                               (struct sockaddr *)&from, &from_bytes);
        if (got >= 0) {
            *out_from = keel_net_place_of_socket(&from);
            *out_bytes = (uint32_t)got;
            return true;
        }
        if (errno == EAGAIN)
            return false;
    }
    return false;
}

/* What the mailbox itself is told. `bytes` of it lie at `data`. */
static void attend(struct keel_mailbox *mailbox, const struct keel_seal_label *label,
                   const struct keel_net_place *from, uint8_t *data, uint32_t bytes)
{
    mailbox->heard_ns[label->from] = keel_now_ns();
    if (mailbox->seal.node == LAUNCHER) {
        learn(mailbox, label->from, from, keel_seal_peer_tag(&mailbox->seal, label->from), label->version);
        if (label->channel == CHANNEL_PROBE)
            send_on(mailbox, label->from, CHANNEL_ECHO, data, bytes);
    } else if (label->from == LAUNCHER && label->channel == CHANNEL_DIRECTORY) {
        adopt(mailbox, data, bytes, label->version);
    } else if (label->from == LAUNCHER && label->channel == CHANNEL_ECHO) {
        if (mailbox->echoed_bytes < bytes)
            mailbox->echoed_bytes = bytes;
    }
}

bool keel_mailbox_receive(struct keel_mailbox *mailbox, uint16_t *out_node, uint8_t *out, uint32_t *out_bytes)
{
    for (int taken = 0; taken < TAKEN_PER_CALL; taken++) {
        struct keel_net_place from;
        struct keel_seal_label label;
        uint32_t got, bytes;
        if (!take(mailbox, &from, &got))
            return false;
        enum keel_seal_verdict verdict =
            keel_seal_open(&mailbox->seal, mailbox->datagram, got, &label, out, &bytes);
        if (verdict != KEEL_SEAL_OPENED) {
            refuse(mailbox, &from, verdict);
            continue;
        }
        attend(mailbox, &label, &from, out, bytes);
        if (label.channel != CHANNEL_CONTROL)
            continue;
        *out_node = label.from;
        *out_bytes = bytes;
        return true;
    }
    return false;
}

void keel_mailbox_probe(struct keel_mailbox *mailbox, uint32_t bytes)
{
    uint8_t data[KEEL_MESSAGE_BYTES] = {0};
    KEEL_ASSERT(bytes <= sizeof data);
    send_on(mailbox, LAUNCHER, CHANNEL_PROBE, data, bytes);
}

uint32_t keel_mailbox_echoed(const struct keel_mailbox *mailbox)
{
    return mailbox->echoed_bytes;
}

uint64_t keel_mailbox_heard_ns(const struct keel_mailbox *mailbox, uint16_t node)
{
    return mailbox->heard_ns[node];
}

/* ---- life --------------------------------------------------------------------------------------------- */

/* A launcher's, from the one whose place it takes. */
static enum keel_status take_socket(struct keel_mailbox *mailbox, int fd)
{
    KEEL_TRY(keel_net_place_of_descriptor(fd, false, &mailbox->here));
    mailbox->family = keel_net_place_family(&mailbox->here);
    mailbox->fd = fd;
    return KEEL_OK;
}

static enum keel_status open_socket(struct keel_mailbox *mailbox, const struct keel_net_place *place)
{
    struct sockaddr_storage here;
    char text[KEEL_PLACE_BYTES];
    mailbox->family = keel_net_place_family(place);
    const socklen_t here_bytes = keel_net_place_to_socket(place, mailbox->family, &here);
    mailbox->fd = socket(mailbox->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (mailbox->fd < 0)
        return keel_fail_errno(errno, "mailbox: no socket");
    int bytes = SOCKET_BUFFER_BYTES, no = 0; /* the kernel grants less where its limit is lower */
    if (setsockopt(mailbox->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0 ||
        setsockopt(mailbox->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0)
        return keel_fail_errno(errno, "mailbox: no buffers");
    if (mailbox->family == AF_INET6 &&
        setsockopt(mailbox->fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0)
        return keel_fail_errno(errno, "mailbox: no socket for both families");
    keel_net_place_print(place, text);
    if (bind(mailbox->fd, (const struct sockaddr *)&here, here_bytes) != 0)
        return keel_fail_errno(errno, "mailbox: cannot listen on %s", text);
    return keel_net_place_of_descriptor(mailbox->fd, false, &mailbox->here);
}

enum keel_status keel_mailbox_open(const struct keel_mailbox_config *config, struct keel_mailbox **out)
{
    KEEL_ASSERT((config->launcher == NULL) == (config->node == LAUNCHER));
    struct keel_mailbox *mailbox;
    KEEL_TRY(keel_alloc(1, sizeof *mailbox, &mailbox));
    mailbox->fd = -1;
    mailbox->stranger = config->stranger;
    mailbox->context = config->context;
    keel_seal_init(&mailbox->seal, config->key, config->run, config->node, config->incarnation);
    if (config->node == LAUNCHER && config->incarnation > 0) /* agents take a newer one alone */
        mailbox->directory_version = (config->incarnation - 1) << VERSIONS_BITS;
    struct keel_net_place place = {.port = 0};
    enum keel_status status = KEEL_OK;
    if (config->launcher != NULL)
        status = keel_net_place_parse(config->launcher, &mailbox->nodes[LAUNCHER].place);
    if (config->bind != NULL)
        place = *config->bind;
    else if (status == KEEL_OK)
        status = keel_net_place_parse_ip("127.0.0.1", &place);
    if (status == KEEL_OK)
        status = config->socket > 0 ? take_socket(mailbox, config->socket) : open_socket(mailbox, &place);
    if (status != KEEL_OK) {
        keel_mailbox_close(mailbox);
        return status;
    }
    if (config->launcher != NULL)
        send_on(mailbox, LAUNCHER, CHANNEL_HELLO, NULL, 0);
    *out = mailbox;
    return KEEL_OK;
}

void keel_mailbox_close(struct keel_mailbox *mailbox)
{
    if (mailbox == NULL)
        return;
    if (mailbox->fd >= 0)
        close(mailbox->fd);
    keel_seal_wipe(&mailbox->seal);
    keel_free(mailbox);
}

int keel_mailbox_fd(const struct keel_mailbox *mailbox)
{
    return mailbox->fd;
}

void keel_mailbox_place(const struct keel_mailbox *mailbox, char out[KEEL_PLACE_BYTES])
{
    keel_net_place_print(&mailbox->here, out);
}
