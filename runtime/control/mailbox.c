/* mailbox.c - a UDP socket, a directory of nodes (directory.h), and datagrams that prove themselves.
 *
 * Owns the socket. Promises that only authenticated, fresh messages come out, and that
 * strangers change nothing, the directory included. Sealing is seal.c's; what messages mean is node.c's. */
#include "mailbox.h"

#include "directory.h"
#include "seldom.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CHANNEL_CONTROL = 1,   /* for the owner */
    CHANNEL_HELLO = 2,     /* empty: here I am */
    CHANNEL_DIRECTORY = 3, /* what is new in it */
    CHANNEL_PROBE = 4,     /* does so much get through? Answered with as much */
    CHANNEL_ECHO = 5,
    LAUNCHER = 0,
    TAKEN_PER_CALL = 64,
    SOCKET_BUFFER_BYTES = 4 << 20,
    VERSIONS_BITS = 20, /* of the directory, that one incarnation of the launcher counts */
    VERSIONS_GAP = 1 << 16
};

_Static_assert(KEEL_DATAGRAM_BYTES <= 65507, "a message is one datagram of UDP over IPv4");

struct keel_mailbox {
    int fd;
    sa_family_t family;
    struct keel_net_place here;
    struct keel_seal seal;
    struct keel_directory directory;
    uint64_t heard_ns[KEEL_NODES_MAX]; /* a message that proved itself came from it */
    uint16_t by;                       /* agent: who let it in */
    bool keeps;                        /* the directory */
    uint32_t echoed_bytes;             /* agent: the largest probe that came back */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    void *context;
    struct keel_seldom told;
    uint64_t stranger_count;
    uint8_t datagram[KEEL_DATAGRAM_BYTES + 1]; /* one more byte tells too long a one */
};

/* ---- sending ------------------------------------------------------------------------------------------ */

static void send_on(struct keel_mailbox *mailbox, uint16_t node, uint16_t channel, const void *data,
                    uint32_t bytes)
{
    const struct keel_directory_node *known = &mailbox->directory.nodes[node];
    struct sockaddr_storage to;
    const socklen_t to_bytes =
        known->place.port != 0 ? keel_net_place_to_socket(&known->place, mailbox->family, &to) : 0;
    if (to_bytes == 0)
        return;
    const struct keel_seal_label label = {
        .to = node, .channel = channel, .version = mailbox->directory.version, .tag = known->tag};
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

static void send_directory(void *context, uint16_t node, const void *data, uint32_t bytes)
{
    send_on(context, node, CHANNEL_DIRECTORY, data, bytes);
}

/* ---- receiving ---------------------------------------------------------------------------------------- */

static void refuse(struct keel_mailbox *mailbox, const struct keel_net_place *from,
                   enum keel_seal_verdict verdict)
{
    mailbox->stranger_count++;
    if (mailbox->stranger == NULL || !keel_seldom_says(&mailbox->told, keel_now_ns()))
        return;
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
    const uint64_t now_ns = keel_now_ns();
    mailbox->heard_ns[label->from] = now_ns;
    if (mailbox->keeps)
        keel_directory_hear(&mailbox->directory, label->from, from,
                            keel_seal_peer_tag(&mailbox->seal, label->from), label->version, now_ns,
                            send_directory, mailbox);
    if (label->channel == CHANNEL_PROBE) { /* also by who let it in, and keeps the directory no more */
        send_on(mailbox, label->from, CHANNEL_ECHO, data, bytes);
    } else if (mailbox->keeps) {
        return;
    } else if (label->channel == CHANNEL_DIRECTORY) {
        keel_directory_take(&mailbox->directory, data, bytes, label->version);
    } else if (label->channel == CHANNEL_ECHO) {
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
    send_on(mailbox, mailbox->by, CHANNEL_PROBE, data, bytes);
}

uint32_t keel_mailbox_echoed(const struct keel_mailbox *mailbox)
{
    return mailbox->echoed_bytes;
}

uint64_t keel_mailbox_heard_ns(const struct keel_mailbox *mailbox, uint16_t node)
{
    return mailbox->heard_ns[node];
}

uint32_t keel_mailbox_host(const struct keel_mailbox *mailbox, uint16_t node)
{
    const bool own = node == mailbox->seal.node;
    const struct keel_net_place *place = own ? &mailbox->here : &mailbox->directory.nodes[node].place;
    uint32_t hash = UINT32_C(2166136261); /* FNV-1a */
    bool some = false;
    for (uint32_t i = 0; i < KEEL_IP_BYTES && place->port != 0; i++) {
        hash = (hash ^ place->ip[i]) * UINT32_C(16777619);
        some = some || place->ip[i] != 0;
    }
    return some ? hash | UINT32_C(1) << 31 : node;
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
    const bool keeps =
        config->node == LAUNCHER && config->incarnation > 0; /* agents take a newer one alone */
    keel_directory_init(&mailbox->directory, config->node,
                        keeps ? (config->incarnation - 1) << VERSIONS_BITS : 0);
    mailbox->keeps = config->node == LAUNCHER;
    mailbox->by = config->by;
    if (config->by != LAUNCHER)
        keel_directory_know(&mailbox->directory, config->by, &config->by_place, config->by_tag);
    struct keel_net_place place = {.port = 0};
    enum keel_status status = KEEL_OK;
    if (config->launcher != NULL)
        status = keel_net_place_parse(config->launcher, &mailbox->directory.nodes[LAUNCHER].place);
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
    *out = mailbox;
    return KEEL_OK;
}

void keel_mailbox_greet(struct keel_mailbox *mailbox)
{
    send_on(mailbox, mailbox->by, CHANNEL_HELLO, NULL, 0);
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

bool keel_mailbox_place_of(const struct keel_mailbox *mailbox, uint16_t node, char out[KEEL_PLACE_BYTES])
{
    const bool own = node == mailbox->seal.node;
    if (node >= KEEL_NODES_MAX || (!own && mailbox->directory.nodes[node].place.port == 0))
        return false;
    keel_net_place_print(own ? &mailbox->here : &mailbox->directory.nodes[node].place, out);
    return true;
}

uint32_t keel_mailbox_tag(const struct keel_mailbox *mailbox)
{
    return keel_seal_tag(&mailbox->seal);
}

void keel_mailbox_keep(struct keel_mailbox *mailbox, bool keeps)
{
    if (keeps && !mailbox->keeps)
        keel_directory_keep(&mailbox->directory, &mailbox->here, keel_seal_tag(&mailbox->seal),
                            1 + randombytes_uniform(VERSIONS_GAP));
    mailbox->keeps = keeps;
}

void keel_mailbox_place(const struct keel_mailbox *mailbox, char out[KEEL_PLACE_BYTES])
{
    keel_net_place_print(&mailbox->here, out);
}
