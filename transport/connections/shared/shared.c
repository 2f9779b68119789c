/* shared.c - the backend between ranks of one host.
 *
 * A connection is a Unix socket and a ring pair. The dialer makes the ring pair's segment and sends it as the
 * first packet. A bell is a packet too, sent to a side that said in the segment that it sleeps. Payloads are
 * copied through the ring pair's rings; a long one that lies in a region (keel_transport_alloc) stays where
 * it is: the region's descriptor, for reading, goes over the socket once, and messages refer to it.
 *
 * The socket also says that the other side is gone, and so does its pidfd, for a process whose descriptors
 * some child of it still holds. Only processes of the same user are spoken to. What a dead peer had published
 * is delivered before its connection breaks. Nothing has a name in the file system: segments, regions and
 * sockets go with the last process that has them. */
#include "shared.h"
#include "handshake.h"
#include "region.h"
#include "shm_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

enum {
    PACKET_MAGIC = 0x4b455350,          /* "KESP" */
    BACKLOG = 2 * KEEL_CONNECTIONS_MAX, /* an epoch's callers at once, and those of the next */
    EVENTS = 32,
    PACKETS_MAX = 64,           /* taken from a socket at a time */
    LOANS_MAX = 32,             /* regions that one side of a connection may have lent */
    LENT_MAX = 64,              /* messages that refer to them, under way */
    KEPT_MAX = KEEL_FLOW_SENDS, /* of which the receiver may keep so many, and read them later */
    REFER_MIN_BYTES = 8192,     /* shorter payloads are copied */
    LOOK_PASSES = 64, /* passes of progress between two looks at the descriptors when nobody slept */
    BOOT_ID_BYTES = 64
};

enum packet_kind {
    PACKET_NONE,
    PACKET_SEGMENT, /* the ring pair's; bytes: of a ring */
    PACKET_LEND,    /* a region to which messages may refer from now on */
    PACKET_TAKE_BACK,
    PACKET_BELL /* one byte */
};

struct packet {
    uint32_t magic, kind;
    uint64_t region, bytes;
};

/* A message that refers to lent memory. */
struct lent {
    uint64_t end; /* when the other side has dropped so much, this one too */
    void *owner;
};

/* A message that its receiver reads later. */
struct kept {
    uint64_t from, message, region;
    bool released;
};

struct shared_connection {
    struct keel_connection connection; /* first: they are the same to the room */
    struct keel_shm_ring pair;         /* not mapped: its segment has not come yet */
    uint32_t number;                   /* among the backend's connections */
    int fd, pidfd;
    uint64_t region; /* to which the message that is being delivered refers, or 0 */
    bool gone;       /* the other side: what it published is delivered, then the connection breaks */
    struct keel_loan loans[LOANS_MAX]; /* from the other side */
    uint32_t loan_count;
    uint64_t given[LOANS_MAX]; /* regions lent to it, */
    uint32_t given_count;
    uint64_t generation;        /*   as of this generation */
    struct lent lent[LENT_MAX]; /* a queue */
    uint32_t lent_first, lent_count;
    uint64_t messages;                /* delivered */
    struct kept kept[KEPT_MAX];       /* a queue: what number n names lies at n % KEPT_MAX, */
    uint64_t kept_first, kept_behind; /*   from the first that is not released to the last */
};

struct shared {
    struct keel_connection_backend backend; /* first */
    int listener, epoll;
    bool look; /* at the descriptors, in the next pass */
    uint32_t passes;
    uint8_t host[sizeof((struct keel_address_parts *)0)->host],
        name[sizeof((struct keel_address_parts *)0)->socket];
    struct shared_connection
        *table[KEEL_BACKEND_CONNECTIONS_MAX]; /* the backend's connections; a callee may empty any place */
    uint32_t table_count;
};

static struct shared *shared_of(const struct keel_connection_backend *backend)
{
    return (struct shared *)(uintptr_t)backend;
}

static struct shared_connection *own_line(struct keel_connection *connection)
{
    return (struct shared_connection *)(void *)connection;
}

/* ---- who is where -------------------------------------------------------------------------------------- */

/* The same boot of the same kernel, where abstract sockets see each other, and the same user. */
static enum keel_status host_identity(uint8_t *out, size_t bytes)
{
    struct {
        char boot[BOOT_ID_BYTES];
        uint64_t device, inode, user;
    } host;
    struct stat names;
    char *boot;
    size_t boot_bytes;
    memset(&host, 0, sizeof host);
    if (stat("/proc/self/ns/net", &names) != 0)
        return keel_fail_errno(errno, "shared memory: /proc/self/ns/net");
    KEEL_TRY(keel_file_read("/proc/sys/kernel/random/boot_id", sizeof host.boot, &boot, &boot_bytes));
    memcpy(host.boot, boot, boot_bytes);
    keel_free(boot);
    host.device = names.st_dev;
    host.inode = names.st_ino;
    host.user = geteuid();
    crypto_generichash(out, bytes, (const uint8_t *)&host, sizeof host, NULL, 0);
    return KEEL_OK;
}

static struct sockaddr_un socket_address(const uint8_t *name, size_t bytes, socklen_t *out_bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int written = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "keel-");
    char *at = address.sun_path + 1 + written;
    sodium_bin2hex(at, sizeof address.sun_path - 1 - (size_t)written, name, bytes);
    *out_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)written + 2 * bytes);
    return address;
}

static bool same_user(int fd, struct ucred *out)
{
    socklen_t bytes = sizeof *out;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &bytes) == 0 && out->uid == geteuid();
}

/* -1 when there is none, as for a process of another pid namespace: the socket then says it alone. */
static int pidfd_of(int fd, const struct ucred *peer)
{
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    return peer->pid > 0 ? (int)syscall(SYS_pidfd_open, peer->pid, 0) : -1;
}

/* ---- birth and death ----------------------------------------------------------------------------------- */

/* The low bit of what epoll returns tells the pidfd from the socket. */
static bool watch(const struct shared *shared, int fd, const struct shared_connection *connection,
                  bool process)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = (uintptr_t)connection | process};
    return epoll_ctl(shared->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Takes the socket. LIMIT: no room, memory or descriptors; the caller does without. */
static enum keel_status line_create(struct shared *shared, int fd, const struct ucred *peer,
                                    struct shared_connection **out)
{
    struct shared_connection *connection;
    if (shared->table_count == KEEL_BACKEND_CONNECTIONS_MAX ||
        keel_alloc(1, sizeof *connection, &connection) != KEEL_OK) {
        close(fd);
        return KEEL_LIMIT;
    }
    connection->fd = fd;
    connection->pidfd = pidfd_of(fd, peer);
    connection->number = shared->table_count;
    connection->kept_first = connection->kept_behind = 1;
    shared->table[shared->table_count++] = connection;
    keel_connection_backend_adopt(&shared->backend, &connection->connection);
    if (!watch(shared, fd, connection, false) ||
        (connection->pidfd >= 0 && !watch(shared, connection->pidfd, connection, true))) {
        keel_connection_close(&connection->connection);
        return KEEL_LIMIT;
    }
    *out = connection;
    return KEEL_OK;
}

/* A child of this process may have the descriptors too: closing would tell nobody, nor end the watch. */
static void hang_up_descriptors(const struct shared *shared, const struct shared_connection *connection)
{
    (void)shutdown(connection->fd, SHUT_RDWR);
    (void)epoll_ctl(shared->epoll, EPOLL_CTL_DEL, connection->fd, NULL);
    close(connection->fd);
    if (connection->pidfd < 0)
        return;
    (void)epoll_ctl(shared->epoll, EPOLL_CTL_DEL, connection->pidfd, NULL);
    close(connection->pidfd);
}

/* The segment stays mapped until the connection is buried: its user may be looking at a payload. */
static void shared_hang_up(struct keel_connection *given)
{
    struct shared_connection *connection = own_line(given);
    struct shared *shared = shared_of(given->backend);
    shared->table[connection->number] = NULL;
    if (connection->pair.segment != NULL)
        keel_shm_ring_withdraw(&connection->pair);
    hang_up_descriptors(shared, connection);
}

static void bury(struct keel_connection **list)
{
    for (struct keel_connection *connection = keel_connection_take(list); connection != NULL;
         connection = keel_connection_take(list)) {
        struct shared_connection *own = own_line(connection);
        while (own->loan_count > 0)
            keel_loan_unmap(&own->loans[--own->loan_count]);
        keel_shm_ring_unmap(&own->pair);
        keel_free(own);
    }
}

static void close_gaps(struct shared *shared)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < shared->table_count; k++)
        if (shared->table[k] != NULL) {
            shared->table[count] = shared->table[k];
            shared->table[count]->number = count;
            count++;
        }
    shared->table_count = count;
}

/* ---- the conversation ---------------------------------------------------------------------------------- */

static void ring(const struct shared_connection *connection)
{
    (void)!send(connection->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* no room: bells enough are under way */
}

/* descriptor: to go with it, or -1. */
static bool send_packet(int fd, enum packet_kind kind, uint64_t region, uint64_t bytes, int descriptor)
{
    struct packet packet = {PACKET_MAGIC, (uint32_t)kind, region, bytes};
    struct iovec part = {&packet, sizeof packet};
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    memset(&control, 0, sizeof control);
    if (descriptor >= 0) {
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof descriptor);
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof packet;
}

/* NONE: there is none, or not one of ours. *out_fd: what came with it, the caller's to close, or -1; there is
 * room for one, and the system closes the others. */
static enum packet_kind take_packet(int fd, struct packet *out, int *out_fd)
{
    struct packet packet = {0, 0, 0, 0};
    struct iovec part = {&packet, sizeof packet};
    union {
        struct cmsghdr header;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(sizeof(int))};
    int descriptor = -1;
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof descriptor))
        memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    *out_fd = descriptor;
    *out = packet;
    if (got == 1)
        return PACKET_BELL;
    if (got != (ssize_t)sizeof packet || packet.magic != PACKET_MAGIC || packet.kind == PACKET_NONE ||
        packet.kind >= PACKET_BELL)
        return PACKET_NONE;
    return (enum packet_kind)packet.kind;
}

static bool region_lent(struct shared_connection *connection, const struct packet *packet, int fd)
{
    if (connection->loan_count == LOANS_MAX || fd < 0 ||
        keel_loan_map(&connection->loans[connection->loan_count], fd, packet->region, packet->bytes) !=
            KEEL_OK)
        return false;
    connection->loan_count++;
    return true;
}

/* Not one to which a message refers that is still to be read. */
static bool region_taken_back(struct shared_connection *connection, uint64_t region)
{
    for (uint64_t k = connection->kept_first; k < connection->kept_behind; k++)
        if (connection->kept[k % KEPT_MAX].region == region && !connection->kept[k % KEPT_MAX].released)
            return false;
    for (uint32_t k = 0; k < connection->loan_count; k++) {
        if (connection->loans[k].region != region)
            continue;
        keel_loan_unmap(&connection->loans[k]);
        connection->loans[k] = connection->loans[--connection->loan_count];
        return true;
    }
    return false;
}

static bool packet_arrived(struct shared_connection *connection, enum packet_kind kind,
                           const struct packet *packet, int fd)
{
    bool mapped = connection->pair.segment != NULL;
    if (kind == PACKET_BELL)
        return mapped;
    if (kind == PACKET_SEGMENT)
        return !mapped && fd >= 0 && packet->bytes == KEEL_RING_BYTES &&
               keel_shm_ring_map(&connection->pair, fd) == KEEL_OK;
    if (kind == PACKET_LEND)
        return mapped && region_lent(connection, packet, fd);
    return mapped && region_taken_back(connection, packet->region);
}

/* False when one breaks the rules. */
static bool take_packets(struct shared_connection *connection)
{
    for (uint32_t k = 0; k < PACKETS_MAX; k++) {
        struct packet packet;
        int fd = -1;
        enum packet_kind kind = take_packet(connection->fd, &packet, &fd);
        bool good =
            kind == PACKET_NONE ? packet.magic == 0 && fd < 0 : packet_arrived(connection, kind, &packet, fd);
        if (fd >= 0)
            close(fd);
        if (!good || kind == PACKET_NONE)
            return good;
    }
    return true;
}

static enum keel_status dial_socket(const struct keel_address_parts *place, int *out_fd,
                                    struct ucred *out_peer)
{
    socklen_t bytes;
    struct sockaddr_un address = socket_address(place->socket, sizeof place->socket, &bytes);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return keel_fail_errno(errno, "shared memory: making a socket");
    if (connect(fd, (const struct sockaddr *)&address, bytes) != 0 || !same_user(fd, out_peer)) {
        close(fd);
        return keel_fail(KEEL_NOT_FOUND, "shared memory: the peer's socket cannot be reached");
    }
    *out_fd = fd;
    return KEEL_OK;
}

/* Whatever stands in the way of sharing memory, the fabric may still do. */
static enum keel_status shared_dial(struct keel_connection_backend *backend,
                                    const struct keel_address *address, void *owner,
                                    struct keel_connection **out)
{
    struct shared *shared = shared_of(backend);
    struct keel_address_parts place = keel_place_of(address);
    struct shared_connection *connection = NULL;
    struct ucred peer = {.pid = 0};
    int fd = -1, segment_fd = -1;
    if (memcmp(place.host, shared->host, sizeof place.host) != 0 ||
        dial_socket(&place, &fd, &peer) != KEEL_OK || line_create(shared, fd, &peer, &connection) != KEEL_OK)
        return KEEL_NOT_FOUND;
    bool sent = false;
    if (keel_shm_ring_create(&connection->pair, &segment_fd) == KEEL_OK) {
        sent = send_packet(fd, PACKET_SEGMENT, 0, KEEL_RING_BYTES, segment_fd);
        close(segment_fd);
    }
    if (!sent) {
        keel_connection_close(&connection->connection);
        return KEEL_NOT_FOUND;
    }
    connection->connection.owner = owner;
    *out = &connection->connection;
    return KEEL_OK;
}

static void callers_arrived(struct shared *shared)
{
    struct keel_connection_backend *backend = &shared->backend;
    for (uint32_t k = 0; k < BACKLOG; k++) {
        struct shared_connection *connection = NULL;
        struct ucred peer = {.pid = 0};
        int fd = accept4(shared->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        if (!same_user(fd, &peer))
            close(fd);
        else if (line_create(shared, fd, &peer, &connection) == KEEL_OK &&
                 !backend->calls->asked(backend->context, &connection->connection))
            keel_connection_close(&connection->connection);
    }
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* The other side may read this region, from now on if not before. */
static bool lend_region(struct shared_connection *connection, uint64_t region)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < connection->given_count; k++)
        if (connection->given[k] == region)
            return true;
    if (connection->given_count == LOANS_MAX)
        return false;
    int fd = keel_region_descriptor(region, &bytes);
    if (fd < 0)
        return false;
    bool sent = send_packet(connection->fd, PACKET_LEND, region, bytes, fd);
    close(fd);
    if (sent)
        connection->given[connection->given_count++] = region;
    return sent;
}

/* Regions that are freed are taken back; nothing refers to them any more. */
static void take_back(struct shared_connection *connection)
{
    uint64_t generation = keel_region_generation();
    for (uint32_t k = 0; k < connection->given_count;) {
        if (keel_region_exists(connection->given[k])) {
            k++;
            continue;
        }
        if (!send_packet(connection->fd, PACKET_TAKE_BACK, connection->given[k], 0, -1))
            return;
        connection->given[k] = connection->given[--connection->given_count];
    }
    connection->generation = generation;
}

static bool may_refer(struct shared_connection *connection, const void *payload, uint32_t bytes,
                      struct keel_reference *out)
{
    struct keel_region_place place;
    if (bytes < REFER_MIN_BYTES || !keel_region_find(payload, bytes, &place) ||
        !lend_region(connection, place.region))
        return false;
    *out = (struct keel_reference){.region = place.region, .offset = place.offset};
    return true;
}

static enum keel_send send_result(struct shared_connection *connection, enum keel_shm_ring_result result,
                                  uint32_t bytes, enum keel_send good)
{
    struct keel_connection_backend *backend = connection->connection.backend;
    if (result != KEEL_SHM_RING_DONE)
        return result == KEEL_SHM_RING_NONE ? KEEL_SEND_LATER : KEEL_SEND_BROKEN;
    keel_connection_backend_sent(backend, bytes);
    if (keel_shm_ring_must_ring_for_message(&connection->pair))
        ring(connection);
    return good;
}

static enum keel_send shared_send(struct keel_connection *given, struct keel_message *message,
                                  const void *payload, bool lent, void *owner, bool *out_retry)
{
    struct shared_connection *connection = own_line(given);
    struct keel_reference reference;
    (void)out_retry;
    if (!lent || !may_refer(connection, payload, message->bytes, &reference))
        return send_result(connection, keel_shm_ring_put(&connection->pair, message, payload), message->bytes,
                           KEEL_SEND_DONE);
    if (connection->lent_count == LENT_MAX)
        return KEEL_SEND_LATER;
    enum keel_shm_ring_result result = keel_shm_ring_refer(&connection->pair, message, &reference);
    if (result == KEEL_SHM_RING_DONE) {
        struct lent *last = &connection->lent[(connection->lent_first + connection->lent_count++) % LENT_MAX];
        *last = (struct lent){.end = connection->pair.out_tail, .owner = owner};
        given->bulk_in_flight++;
    }
    return send_result(connection, result, message->bytes, KEEL_SEND_OK);
}

/* False when the connection is closed. */
static bool deliver_lent(struct shared_connection *connection)
{
    struct keel_connection_backend *backend = connection->connection.backend;
    uint64_t dropped = keel_shm_ring_dropped(&connection->pair);
    while (connection->lent_count > 0 && connection->lent[connection->lent_first].end <= dropped) {
        void *owner = connection->lent[connection->lent_first].owner;
        connection->lent_first = (connection->lent_first + 1) % LENT_MAX;
        connection->lent_count--;
        connection->connection.bulk_in_flight--;
        backend->calls->sent(backend->context, &connection->connection, owner);
        if (connection->connection.state == KEEL_CONNECTION_CLOSED)
            return false;
    }
    return true;
}

static const uint8_t *find_loan(const struct shared_connection *connection,
                                const struct keel_reference *reference, uint32_t bytes)
{
    for (uint32_t k = 0; k < connection->loan_count; k++) {
        const struct keel_loan *loan = &connection->loans[k];
        if (loan->region == reference->region)
            return reference->offset <= loan->bytes && bytes <= loan->bytes - reference->offset
                       ? loan->base + reference->offset
                       : NULL;
    }
    return NULL;
}

/* The packet that lends a region was sent before any message that refers to it. */
static const uint8_t *look_up(struct shared_connection *connection, const struct keel_reference *reference,
                              uint32_t bytes)
{
    const uint8_t *payload = find_loan(connection, reference, bytes);
    if (payload == NULL && take_packets(connection))
        payload = find_loan(connection, reference, bytes);
    return payload;
}

/* False when the connection is closed. */
static bool deliver_message(struct shared_connection *connection, const struct keel_message *message,
                            const uint8_t *payload)
{
    struct keel_connection_backend *backend = connection->connection.backend;
    keel_connection_backend_received(backend, message->bytes);
    connection->messages++;
    backend->calls->arrived(backend->context, &connection->connection, message, payload);
    connection->region = 0; /* nothing is being delivered: what is taken now was stored on the heap */
    if (connection->connection.state == KEEL_CONNECTION_CLOSED)
        return false;
    if (keel_shm_ring_drop(&connection->pair) && keel_shm_ring_must_ring_for_room(&connection->pair))
        ring(connection);
    return true;
}

/* At most as many bytes as a ring has, so that no peer keeps the others waiting; of the dead, as many
 * messages as it can hold, so all. False when the connection is closed. */
static bool deliver_messages(struct shared_connection *connection)
{
    for (uint64_t bytes = 0; bytes < KEEL_RING_BYTES && keel_shm_ring_has_message(&connection->pair);) {
        struct keel_message message;
        struct keel_reference reference = {0, 0};
        const uint8_t *payload;
        enum keel_shm_ring_result result =
            keel_shm_ring_get(&connection->pair, &message, &payload, &reference);
        if (result == KEEL_SHM_RING_NONE)
            return true;
        bool refers = result == KEEL_SHM_RING_DONE && payload == NULL;
        if (refers)
            payload = look_up(connection, &reference, message.bytes);
        if (result == KEEL_SHM_RING_BROKEN || payload == NULL) {
            keel_connection_broke(&connection->connection, "a message that is not ours");
            return false;
        }
        bytes += connection->gone ? KEEL_CACHE_LINE_BYTES : sizeof message + message.bytes;
        connection->region = refers ? reference.region : 0;
        if (!deliver_message(connection, &message, payload))
            return false;
    }
    return true;
}

static bool shared_intact(const struct keel_connection *given)
{
    const struct shared_connection *connection = (const struct shared_connection *)(const void *)given;
    return connection->region == 0 || !keel_shm_ring_withdrawn(&connection->pair);
}

static uint64_t shared_keep(struct keel_connection *given)
{
    struct shared_connection *connection = own_line(given);
    uint64_t number = connection->kept_behind;
    if (connection->region == 0 || number - connection->kept_first == KEPT_MAX)
        return 0;
    connection->kept[number % KEPT_MAX] = (struct kept){
        .from = connection->pair.in_head, .message = connection->messages, .region = connection->region};
    connection->kept_behind++;
    if (number == connection->kept_first)
        keel_shm_ring_keep(&connection->pair, connection->pair.in_head);
    return number;
}

static bool shared_crowded(const struct keel_connection *given)
{
    const struct shared_connection *connection = (const struct shared_connection *)(const void *)given;
    return connection->kept_first < connection->kept_behind &&
           connection->messages - connection->kept[connection->kept_first % KEPT_MAX].message >= KEPT_MAX - 2;
}

static bool shared_release(struct keel_connection *given, uint64_t number)
{
    struct shared_connection *connection = own_line(given);
    KEEL_ASSERT(number >= connection->kept_first && number < connection->kept_behind);
    connection->kept[number % KEPT_MAX].released = true;
    if (number == connection->kept_first) {
        while (connection->kept_first < connection->kept_behind &&
               connection->kept[connection->kept_first % KEPT_MAX].released)
            connection->kept_first++;
        bool any = connection->kept_first < connection->kept_behind;
        keel_shm_ring_keep(&connection->pair,
                           any ? connection->kept[connection->kept_first % KEPT_MAX].from : UINT64_MAX);
        if (keel_shm_ring_must_ring_for_room(&connection->pair))
            ring(connection);
    }
    return !keel_shm_ring_withdrawn(&connection->pair);
}

/* Nothing to deliver, and nothing else to do: most often, while somebody spins. */
static bool is_quiet(const struct shared_connection *connection, uint64_t generation)
{
    const struct keel_shm_ring *pair = &connection->pair;
    return connection->connection.state == KEEL_CONNECTION_OPEN && !keel_shm_ring_has_message(pair) &&
           !connection->gone && !pair->asleep && !pair->starved && connection->lent_count == 0 &&
           connection->generation == generation;
}

static void deliver(struct shared_connection *connection)
{
    struct keel_connection_backend *backend = connection->connection.backend;
    bool gone = connection->gone; /* then all that it ever published is there already */
    if (connection->pair.segment != NULL && connection->connection.state == KEEL_CONNECTION_OPENING) {
        connection->connection.state = KEEL_CONNECTION_OPEN;
        backend->calls->opened(backend->context, &connection->connection);
        if (connection->connection.state == KEEL_CONNECTION_CLOSED)
            return;
    }
    if (connection->pair.segment != NULL) {
        keel_shm_ring_wake(&connection->pair);
        if (!deliver_messages(connection) || (connection->lent_count > 0 && !deliver_lent(connection)))
            return;
        if (connection->generation != keel_region_generation())
            take_back(connection);
        if (connection->pair.starved && keel_shm_ring_has_room(&connection->pair))
            backend->calls->sent(backend->context, &connection->connection, NULL);
    }
    if (gone)
        keel_connection_broke(&connection->connection, "the other side is gone");
}

/* ---- progress ------------------------------------------------------------------------------------------ */

static void descriptor_ready(struct shared *shared, const struct epoll_event *event)
{
    struct shared_connection *connection =
        (struct shared_connection *)(uintptr_t)(event->data.u64 & ~UINT64_C(1));
    if (connection == NULL) {
        callers_arrived(shared);
        return;
    }
    if (connection->connection.state == KEEL_CONNECTION_CLOSED)
        return;
    if ((event->data.u64 & 1) != 0 || (event->events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0)
        connection->gone = true;
    if ((event->data.u64 & 1) != 0)
        return;
    if (!take_packets(connection))
        keel_connection_broke(&connection->connection, "a packet that is not ours");
}

static void look_at_descriptors(struct shared *shared)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(shared->epoll, events, EVENTS, 0);
    for (int k = 0; k < count; k++)
        descriptor_ready(shared, &events[k]);
    shared->look = count == EVENTS;
    shared->passes = 0;
}

static void shared_progress(struct keel_connection_backend *backend)
{
    struct shared *shared = shared_of(backend);
    if (backend->dying != NULL) {
        bury(&backend->dying);
        close_gaps(shared);
    }
    if (shared->look || backend->connections == NULL || ++shared->passes >= LOOK_PASSES)
        look_at_descriptors(shared);
    uint64_t generation = keel_region_generation();
    for (uint32_t k = 0; k < shared->table_count; k++)
        if (shared->table[k] != NULL && !is_quiet(shared->table[k], generation))
            deliver(shared->table[k]);
}

static bool shared_may_sleep(struct keel_connection_backend *backend)
{
    struct shared *shared = shared_of(backend);
    bool may = backend->dying == NULL;
    shared->look = true;
    for (uint32_t k = 0; k < shared->table_count && may; k++) {
        struct shared_connection *connection = shared->table[k];
        if (connection == NULL || connection->pair.segment == NULL)
            continue;
        may = connection->connection.state == KEEL_CONNECTION_OPEN && !connection->gone &&
              keel_shm_ring_sleep(&connection->pair, connection->lent_count > 0);
    }
    return may;
}

static uint32_t shared_descriptors(const struct keel_connection_backend *backend, struct pollfd *out)
{
    out[0] = (struct pollfd){.fd = shared_of(backend)->epoll, .events = POLLIN};
    return 1;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static enum keel_status shared_place(const struct keel_connection_backend *backend,
                                     struct keel_address_parts *in_out)
{
    const struct shared *shared = shared_of(backend);
    memcpy(in_out->host, shared->host, sizeof in_out->host);
    memcpy(in_out->socket, shared->name, sizeof in_out->socket);
    return KEEL_OK;
}

static void shared_close(struct keel_connection_backend *backend)
{
    struct shared *shared = shared_of(backend);
    bury(&backend->dying);
    if (shared->listener >= 0)
        close(shared->listener);
    if (shared->epoll >= 0)
        close(shared->epoll);
    keel_free(shared);
}

static const struct keel_connection_backend_ops shared_ops = {.close = shared_close,
                                                              .dial = shared_dial,
                                                              .send = shared_send,
                                                              .intact = shared_intact,
                                                              .keep = shared_keep,
                                                              .release = shared_release,
                                                              .crowded = shared_crowded,
                                                              .hang_up = shared_hang_up,
                                                              .progress = shared_progress,
                                                              .may_sleep = shared_may_sleep,
                                                              .descriptors = shared_descriptors,
                                                              .place = shared_place};

static enum keel_status start_listening(struct shared *shared)
{
    socklen_t bytes;
    randombytes_buf(shared->name, sizeof shared->name);
    struct sockaddr_un address = socket_address(shared->name, sizeof shared->name, &bytes);
    shared->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    shared->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (shared->listener < 0 || shared->epoll < 0 ||
        bind(shared->listener, (const struct sockaddr *)&address, bytes) != 0 ||
        listen(shared->listener, BACKLOG) != 0 || !watch(shared, shared->listener, NULL, false))
        return keel_fail_errno(errno, "shared memory: listening");
    return KEEL_OK;
}

enum keel_status keel_shared_open(struct keel_connection_backend **out)
{
    struct shared *shared;
    KEEL_TRY(keel_handshake_init());
    KEEL_TRY(keel_alloc(1, sizeof *shared, &shared));
    shared->backend.ops = &shared_ops;
    shared->listener = -1;
    shared->epoll = -1;
    shared->look = true;
    enum keel_status status = host_identity(shared->host, sizeof shared->host);
    if (status == KEEL_OK)
        status = start_listening(shared);
    if (status != KEEL_OK) {
        shared_close(&shared->backend);
        return status;
    }
    *out = &shared->backend;
    return KEEL_OK;
}
