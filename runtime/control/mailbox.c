/* mailbox.c - a UDP socket, a directory of nodes, and datagrams that prove themselves.
 *
 * Owns the socket and the directory. Promises that only authenticated, fresh messages come out, and that
 * strangers change nothing, the directory included. Sealing is seal.c's; what messages mean is node.c's. */
#include "mailbox.h"

#include <arpa/inet.h>
#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CHANNEL_CONTROL = 1,   /* for the owner */
    CHANNEL_HELLO = 2,     /* empty: here I am */
    CHANNEL_DIRECTORY = 3, /* struct entry, one per known node */
    LAUNCHER = 0,
    TAKEN_PER_CALL = 64,
    SOCKET_BUFFER_BYTES = 4 << 20
};

/* A node may ask for the directory by every beat; it is answered no more often than this. */
static const uint64_t directory_pause_ns = 20 * KEEL_NS_PER_MS;
static const uint64_t stranger_pause_ns = KEEL_NS_PER_S;

struct place {
    uint32_t ip; /* network order; 0: not known */
    uint16_t port;
    uint32_t tag; /* of the process there */
};

struct entry { /* of a directory message */
    uint16_t node, port;
    uint32_t ip, tag;
};
_Static_assert(sizeof(struct entry) == 12, "entries have no padding");
_Static_assert(KEEL_NODES_MAX * sizeof(struct entry) <= KEEL_MESSAGE_BYTES, "a directory fits");
_Static_assert(KEEL_DATAGRAM_BYTES <= 65507, "a message is one datagram of UDP over IPv4");

struct keel_mailbox {
    int fd;
    struct keel_seal seal;
    struct place places[KEEL_NODES_MAX];
    uint64_t told_ns[KEEL_NODES_MAX]; /* launcher: when a node was sent the directory last */
    uint32_t directory_version;       /* launcher: counts changes; agent: the one it has */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    void *context;
    uint64_t stranger_told_ns, stranger_count;
    uint8_t datagram[KEEL_DATAGRAM_BYTES + 1]; /* one more byte tells too long a one */
};

/* ---- addresses --------------------------------------------------------------------------------------- */

static enum keel_status parse_ip(const char *text, uint32_t *out_ip)
{
    struct in_addr address;
    if (inet_pton(AF_INET, text, &address) != 1)
        return keel_fail(KEEL_INVALID, "%s: not a numeric IPv4 address", text);
    *out_ip = address.s_addr;
    return KEEL_OK;
}

static enum keel_status parse_place(const char *text, struct place *out)
{
    char host[KEEL_PLACE_BYTES];
    const char *colon = strrchr(text, ':');
    size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    if (length == 0 || length >= sizeof host)
        return keel_fail(KEEL_INVALID, "%s: not HOST:PORT", text);
    memcpy(host, text, length);
    host[length] = '\0';
    char *end;
    unsigned long port = strtoul(colon + 1, &end, 10);
    if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port == 0 || port > UINT16_MAX)
        return keel_fail(KEEL_INVALID, "%s: no port from 1 to 65535", text);
    struct place place = {.port = htons((uint16_t)port)};
    KEEL_TRY(parse_ip(host, &place.ip));
    *out = place;
    return KEEL_OK;
}

static void print_place(struct place place, char out[KEEL_PLACE_BYTES])
{
    char host[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &(struct in_addr){place.ip}, host, sizeof host);
    snprintf(out, KEEL_PLACE_BYTES, "%s:%u", host, ntohs(place.port));
}

/* ---- sending ------------------------------------------------------------------------------------------ */

static void send_on(struct keel_mailbox *mailbox, uint16_t node, uint16_t channel, const void *data,
                    uint32_t bytes)
{
    struct place place = mailbox->places[node];
    if (place.ip == 0)
        return;
    const struct keel_seal_label label = {
        .to = node, .channel = channel, .version = mailbox->directory_version, .tag = place.tag};
    uint8_t datagram[KEEL_DATAGRAM_BYTES];
    uint32_t sealed = keel_seal_wrap(&mailbox->seal, &label, data, bytes, datagram);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = place.port, .sin_addr.s_addr = place.ip};
    (void)sendto(mailbox->fd, datagram, sealed, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&to,
                 sizeof to);
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
    uint32_t count = 0;
    for (int i = 1; i < KEEL_NODES_MAX; i++)
        if (mailbox->places[i].ip != 0)
            entries[count++] = (struct entry){.node = (uint16_t)i,
                                              .port = mailbox->places[i].port,
                                              .ip = mailbox->places[i].ip,
                                              .tag = mailbox->places[i].tag};
    mailbox->told_ns[node] = keel_now_ns();
    send_on(mailbox, node, CHANNEL_DIRECTORY, entries, count * (uint32_t)sizeof entries[0]);
}

/* Launcher: `node` has just proved that it is at `place` and has directory `version`. */
static void learn(struct keel_mailbox *mailbox, uint16_t node, struct place place, uint32_t version)
{
    struct place *known = &mailbox->places[node];
    if (known->ip != place.ip || known->port != place.port || known->tag != place.tag) {
        *known = place;
        mailbox->directory_version++;
        for (int i = 1; i < KEEL_NODES_MAX; i++)
            if (mailbox->places[i].ip != 0)
                send_directory(mailbox, (uint16_t)i);
    } else if (version != mailbox->directory_version &&
               keel_now_ns() - mailbox->told_ns[node] >= directory_pause_ns) {
        send_directory(mailbox, node);
    }
}

/* Agent: the launcher's newest directory. One that came late is older than ours: ignored. */
static void adopt(struct keel_mailbox *mailbox, const uint8_t *data, uint32_t bytes, uint32_t version)
{
    struct entry entry;
    if (version <= mailbox->directory_version || bytes % sizeof entry != 0)
        return;
    for (uint32_t at = 0; at < bytes; at += (uint32_t)sizeof entry) {
        memcpy(&entry, data + at, sizeof entry);
        if (entry.node != LAUNCHER && entry.node != mailbox->seal.node && entry.node < KEEL_NODES_MAX)
            mailbox->places[entry.node] =
                (struct place){.ip = entry.ip, .port = entry.port, .tag = entry.tag};
    }
    mailbox->directory_version = version;
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

static void refuse(struct keel_mailbox *mailbox, struct place from, enum keel_seal_verdict verdict)
{
    mailbox->stranger_count++;
    uint64_t now_ns = keel_now_ns();
    if (mailbox->stranger == NULL ||
        (mailbox->stranger_told_ns != 0 && now_ns - mailbox->stranger_told_ns < stranger_pause_ns))
        return;
    mailbox->stranger_told_ns = now_ns;
    char place[KEEL_PLACE_BYTES];
    print_place(from, place);
    mailbox->stranger(mailbox->context, place, keel_seal_verdict_text(verdict), mailbox->stranger_count);
}

/* Take a datagram from the socket; false when there is none. A socket error (the ICMP of an earlier
 * datagram to a dead peer) is not the end of the queue: looked past. */
static bool take(struct keel_mailbox *mailbox, struct place *out_from, uint32_t *out_bytes)
{
    for (int errors = 0; errors < TAKEN_PER_CALL; errors++) {
        struct sockaddr_in from = {0};
        socklen_t from_bytes = sizeof from;
        ssize_t got = recvfrom(mailbox->fd, mailbox->datagram, sizeof mailbox->datagram, MSG_DONTWAIT,
                               (struct sockaddr *)&from, &from_bytes);
        if (got >= 0) {
            *out_from = (struct place){.ip = from.sin_addr.s_addr, .port = from.sin_port};
            *out_bytes = (uint32_t)got;
            return true;
        }
        if (errno == EAGAIN)
            return false;
    }
    return false;
}

bool keel_mailbox_receive(struct keel_mailbox *mailbox, uint16_t *out_node, uint8_t *out, uint32_t *out_bytes)
{
    for (int taken = 0; taken < TAKEN_PER_CALL; taken++) {
        struct place from;
        struct keel_seal_label label;
        uint32_t got, bytes;
        if (!take(mailbox, &from, &got))
            return false;
        enum keel_seal_verdict verdict =
            keel_seal_open(&mailbox->seal, mailbox->datagram, got, &label, out, &bytes);
        if (verdict != KEEL_SEAL_OPENED) {
            refuse(mailbox, from, verdict);
            continue;
        }
        from.tag = keel_seal_peer_tag(&mailbox->seal, label.from);
        if (mailbox->seal.node == LAUNCHER)
            learn(mailbox, label.from, from, label.version);
        else if (label.channel == CHANNEL_DIRECTORY && label.from == LAUNCHER)
            adopt(mailbox, out, bytes, label.version);
        if (label.channel != CHANNEL_CONTROL)
            continue;
        *out_node = label.from;
        *out_bytes = bytes;
        return true;
    }
    return false;
}

/* ---- life --------------------------------------------------------------------------------------------- */

static enum keel_status open_socket(struct keel_mailbox *mailbox, const char *address)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    KEEL_TRY(parse_ip(address, &here.sin_addr.s_addr));
    mailbox->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (mailbox->fd < 0)
        return keel_fail_errno(errno, "mailbox: no socket");
    int bytes = SOCKET_BUFFER_BYTES; /* the kernel grants less where its limit is lower */
    if (setsockopt(mailbox->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) != 0 ||
        setsockopt(mailbox->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0)
        return keel_fail_errno(errno, "mailbox: no buffers");
    if (bind(mailbox->fd, (const struct sockaddr *)&here, sizeof here) != 0)
        return keel_fail_errno(errno, "mailbox: cannot listen on %s", address);
    socklen_t here_bytes = sizeof here;
    if (getsockname(mailbox->fd, (struct sockaddr *)&here, &here_bytes) != 0)
        return keel_fail_errno(errno, "mailbox: cannot tell where it listens");
    mailbox->places[mailbox->seal.node] = (struct place){.ip = here.sin_addr.s_addr, .port = here.sin_port};
    return KEEL_OK;
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
    enum keel_status status = KEEL_OK;
    if (config->launcher != NULL)
        status = parse_place(config->launcher, &mailbox->places[LAUNCHER]);
    if (status == KEEL_OK)
        status = open_socket(mailbox, config->bind != NULL ? config->bind : "127.0.0.1");
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
    print_place(mailbox->places[mailbox->seal.node], out);
}
