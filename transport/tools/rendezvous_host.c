/* rendezvous_host.c - the host of a rendezvous: takes strangers in, makes members of those with the key,
 * hears members.
 */
#include "rendezvous_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEND_NS (5 * KEEL_NS_PER_S)
/* A member opens its endpoint between the greeting and its answer; where there are many more of them than
 * processors that takes long. */
#define STRANGER_NS (30 * KEEL_NS_PER_S)
#define FULL_NS     (50 * KEEL_NS_PER_MS) /* nobody is taken in so long after the process had no descriptor */

struct seat {
    struct keel_rendezvous_wire *wire; /* NULL: free */
    bool joined, orderly;
    uint32_t rank;
    uint64_t deadline_ns; /* not joined: when it is dropped */
    uint8_t challenge[KEEL_CHALLENGE_BYTES];
};

struct keel_rendezvous_host {
    int listener;
    uint8_t key[KEEL_KEY_BYTES];
    char place[KEEL_RENDEZVOUS_PLACE_BYTES];
    uint32_t world, joined;
    bool complete; /* the table has been sent */
    struct keel_address *addresses;
    uint32_t *seat_of; /* rank: its seat + 1; 0: it has not joined */
    struct seat *seats;
    struct pollfd *polls; /* the listener's, then one for each seat */
    uint32_t seat_count, next;
    uint64_t full_until_ns;
    struct seat *heard; /* whose frame the user has now */
};

/* ---- addresses as text --------------------------------------------------------------------------------- */

/* "HOST:PORT" or "[V6]:PORT"; an empty host is any address. */
static enum keel_status place_split(const char *place, char host[KEEL_RENDEZVOUS_PLACE_BYTES],
                                    const char **out_port)
{
    const char *colon = strrchr(place, ':');
    if (colon == NULL || colon[1] == '\0' || (size_t)(colon - place) >= KEEL_RENDEZVOUS_PLACE_BYTES)
        return keel_fail(KEEL_INVALID, "%s: not HOST:PORT", place);
    if (strspn(colon + 1, "0123456789") == strlen(colon + 1) && strtoul(colon + 1, NULL, 10) > UINT16_MAX)
        return keel_fail(KEEL_INVALID, "%s: there is no port above %d", place, UINT16_MAX);
    size_t length = (size_t)(colon - place);
    if (length >= 2 && place[0] == '[' && colon[-1] == ']') {
        memcpy(host, place + 1, length - 2);
        host[length - 2] = '\0';
    } else {
        memcpy(host, place, length);
        host[length] = '\0';
    }
    *out_port = colon + 1;
    return KEEL_OK;
}

enum keel_status keel_rendezvous_resolve(const char *place, bool to_listen, struct addrinfo **out)
{
    char host[KEEL_RENDEZVOUS_PLACE_BYTES] = "";
    const char *port = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = to_listen ? AI_PASSIVE : 0};
    KEEL_TRY(place_split(place, host, &port));
    int error = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, out);
    if (error != 0)
        return keel_fail(KEEL_NOT_FOUND, "%s: %s", place, gai_strerror(error));
    return KEEL_OK;
}

enum keel_status keel_rendezvous_place_of(int fd, bool with_port, char out[KEEL_RENDEZVOUS_PLACE_BYTES])
{
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    char host[INET6_ADDRSTRLEN], port[8];
    memset(&bound, 0, sizeof bound);
    if (getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0)
        return keel_fail_errno(errno, "a socket has no address");
    int error = getnameinfo((const struct sockaddr *)&bound, bytes, host, sizeof host, port, sizeof port,
                            NI_NUMERICHOST | NI_NUMERICSERV);
    if (error != 0)
        return keel_fail(KEEL_IO, "a socket has no address: %s", gai_strerror(error));
    bool six = strchr(host, ':') != NULL;
    if (!with_port)
        snprintf(out, KEEL_RENDEZVOUS_PLACE_BYTES, "%s", host);
    else
        snprintf(out, KEEL_RENDEZVOUS_PLACE_BYTES, six ? "[%s]:%s" : "%s:%s", host, port);
    return KEEL_OK;
}

/* ---- opening and closing ------------------------------------------------------------------------------- */

static enum keel_status listen_at(struct keel_rendezvous_host *host, const char *place)
{
    struct addrinfo *found = NULL;
    int one = 1;
    KEEL_TRY(keel_rendezvous_resolve(place, true, &found));
    host->listener = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool listening = host->listener >= 0 &&
                     setsockopt(host->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                     bind(host->listener, found->ai_addr, found->ai_addrlen) == 0 &&
                     listen(host->listener, SOMAXCONN) == 0;
    int error = errno;
    freeaddrinfo(found);
    if (!listening)
        return keel_fail_errno(error, "%s: cannot listen there", place);
    return keel_rendezvous_place_of(host->listener, true, host->place);
}

enum keel_status keel_rendezvous_host_open(const char *place, const uint8_t key[KEEL_KEY_BYTES],
                                           uint32_t world, struct keel_rendezvous_host **out)
{
    struct keel_rendezvous_host *host;
    if (world == 0 || world > KEEL_GROUP_RANKS_MAX)
        return keel_fail(KEEL_LIMIT, "%u ranks; there may be 1 to %d", world, KEEL_GROUP_RANKS_MAX);
    KEEL_TRY(keel_handshake_init());
    KEEL_TRY(keel_alloc(1, sizeof *host, &host));
    host->listener = -1;
    host->world = world;
    host->seat_count = world + KEEL_RENDEZVOUS_STRANGERS_MAX;
    memcpy(host->key, key, sizeof host->key);
    enum keel_status status = keel_alloc(world, sizeof *host->addresses, &host->addresses);
    if (status == KEEL_OK)
        status = keel_alloc(world, sizeof *host->seat_of, &host->seat_of);
    if (status == KEEL_OK)
        status = keel_alloc(host->seat_count, sizeof *host->seats, &host->seats);
    if (status == KEEL_OK)
        status = keel_alloc(host->seat_count + 1, sizeof *host->polls, &host->polls);
    if (status == KEEL_OK)
        status = listen_at(host, place);
    if (status != KEEL_OK)
        keel_rendezvous_host_close(host);
    else
        *out = host;
    return status;
}

static void seat_clear(struct seat *seat)
{
    if (seat->wire == NULL)
        return;
    close(seat->wire->fd);
    keel_handshake_wipe(seat->wire->key);
    keel_free(seat->wire);
    *seat = (struct seat){.wire = NULL};
}

void keel_rendezvous_host_close(struct keel_rendezvous_host *host)
{
    if (host == NULL)
        return;
    for (uint32_t k = 0; host->seats != NULL && k < host->seat_count; k++)
        seat_clear(&host->seats[k]);
    if (host->listener >= 0)
        close(host->listener);
    keel_free(host->polls);
    keel_free(host->seats);
    keel_free(host->seat_of);
    keel_free(host->addresses);
    keel_handshake_wipe(host->key);
    keel_free(host);
}

const char *keel_rendezvous_host_place(const struct keel_rendezvous_host *host)
{
    return host->place;
}

uint32_t keel_rendezvous_host_joined(const struct keel_rendezvous_host *host, uint32_t *out_missing)
{
    uint32_t missing = 0;
    while (missing < host->world && host->seat_of[missing] != 0)
        missing++;
    *out_missing = missing;
    return host->joined;
}

/* ---- coming in ----------------------------------------------------------------------------------------- */

static void welcome_stranger(struct keel_rendezvous_host *host)
{
    int fd = accept4(host->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct seat *seat = NULL;
    if (fd < 0 && errno != EAGAIN)
        host->full_until_ns = keel_deadline_after_ns(FULL_NS);
    if (fd < 0)
        return;
    for (uint32_t k = 0; k < host->seat_count && seat == NULL; k++)
        if (host->seats[k].wire == NULL)
            seat = &host->seats[k];
    if (seat == NULL || keel_alloc(1, sizeof *seat->wire, &seat->wire) != KEEL_OK) {
        close(fd);
        return;
    }
    seat->wire->fd = fd;
    seat->wire->is_host = true;
    memcpy(seat->wire->key, host->key, sizeof host->key);
    seat->deadline_ns = keel_deadline_after_ns(STRANGER_NS);
    keel_handshake_challenge(seat->challenge);
    if (send(fd, seat->challenge, sizeof seat->challenge, MSG_NOSIGNAL) != (ssize_t)sizeof seat->challenge)
        seat_clear(seat);
}

static void refuse(struct seat *seat, const char *why)
{
    keel_rendezvous_wire_send(seat->wire, KEEL_RENDEZVOUS_BYE, why, (uint32_t)strlen(why) + 1,
                              keel_deadline_after_ns(KEEL_NS_PER_S));
    keel_log(KEEL_LOG_WARN, "the meeting: refused somebody: %s", why);
    seat_clear(seat);
}

/* Its first frame is here. */
static void judge_stranger(struct keel_rendezvous_host *host, struct seat *seat)
{
    struct keel_rendezvous_join join;
    const struct keel_rendezvous_header *header = keel_rendezvous_wire_header(seat->wire);
    char why[96];
    if (header->kind != KEEL_RENDEZVOUS_JOIN || header->bytes != sizeof join) {
        seat_clear(seat);
        return;
    }
    memcpy(&join, keel_rendezvous_wire_payload(seat->wire), sizeof join);
    keel_rendezvous_wire_agree(seat->wire, seat->challenge, join.challenge);
    if (!keel_rendezvous_wire_proven(seat->wire)) {
        keel_log(KEEL_LOG_WARN, "the meeting: somebody does not know the key");
        seat_clear(seat);
        return;
    }
    keel_rendezvous_wire_forget(seat->wire);
    if (join.world != host->world || join.rank >= host->world) {
        snprintf(why, sizeof why, "you are rank %u of %u, the meeting is of %u", join.rank, join.world,
                 host->world);
        refuse(seat, why);
    } else if (host->seat_of[join.rank] != 0) {
        snprintf(why, sizeof why, "rank %u is here already", join.rank);
        refuse(seat, why);
    } else {
        seat->joined = true;
        seat->rank = join.rank;
        host->addresses[join.rank] = join.address;
        host->seat_of[join.rank] = (uint32_t)(seat - host->seats) + 1;
        host->joined++;
    }
}

/* ---- events -------------------------------------------------------------------------------------------- */

/* In as many frames as it takes. Who cannot be told is found gone later. */
static void send_table(const struct keel_rendezvous_host *host, struct keel_rendezvous_wire *wire)
{
    uint64_t deadline_ns = keel_deadline_after_ns(SEND_NS);
    for (uint32_t first = 0; first < host->world; first += KEEL_RENDEZVOUS_TABLE_ADDRESSES) {
        uint32_t left = host->world - first;
        uint32_t count = left < KEEL_RENDEZVOUS_TABLE_ADDRESSES ? left : KEEL_RENDEZVOUS_TABLE_ADDRESSES;
        if (keel_rendezvous_wire_send(wire, KEEL_RENDEZVOUS_TABLE, &host->addresses[first],
                                      count * (uint32_t)sizeof *host->addresses, deadline_ns) != KEEL_OK)
            return;
    }
}

static bool complete(struct keel_rendezvous_host *host, struct keel_rendezvous_event *out)
{
    if (host->complete || host->joined < host->world)
        return false;
    host->complete = true;
    for (uint32_t rank = 0; rank < host->world; rank++)
        send_table(host, host->seats[host->seat_of[rank] - 1].wire);
    *out = (struct keel_rendezvous_event){.kind = KEEL_RENDEZVOUS_COMPLETE};
    return true;
}

static bool leave(struct keel_rendezvous_host *host, struct seat *seat, struct keel_rendezvous_event *out)
{
    bool joined = seat->joined;
    *out = (struct keel_rendezvous_event){
        .kind = KEEL_RENDEZVOUS_GONE, .rank = seat->rank, .orderly = seat->orderly};
    if (joined && !host->complete) {
        host->seat_of[seat->rank] = 0;
        host->joined--;
    }
    seat_clear(seat);
    return joined;
}

/* Something can be read from it. True: *out is an event. */
static bool hear(struct keel_rendezvous_host *host, struct seat *seat, struct keel_rendezvous_event *out)
{
    bool done;
    uint32_t most = seat->joined ? KEEL_RENDEZVOUS_FRAME_BYTES : sizeof(struct keel_rendezvous_join);
    if (!keel_rendezvous_wire_take(seat->wire, most, &done))
        return leave(host, seat, out);
    if (!done)
        return false;
    if (!seat->joined) {
        judge_stranger(host, seat);
        return complete(host, out);
    }
    const struct keel_rendezvous_header *header = keel_rendezvous_wire_header(seat->wire);
    if (!keel_rendezvous_wire_proven(seat->wire))
        return leave(host, seat, out);
    if (header->kind == KEEL_RENDEZVOUS_BYE) {
        seat->orderly = true;
        return leave(host, seat, out);
    }
    *out = (struct keel_rendezvous_event){.kind = KEEL_RENDEZVOUS_FRAME,
                                          .rank = seat->rank,
                                          .frame_kind = header->kind,
                                          .bytes = header->bytes,
                                          .payload = keel_rendezvous_wire_payload(seat->wire)};
    host->heard = seat;
    return true;
}

/* Wait, at most until the deadline or a stranger's. */
static void wait_for_any(struct keel_rendezvous_host *host, uint64_t deadline_ns)
{
    uint64_t until_ns = deadline_ns;
    uint32_t used = 0; /* poll takes no more than the process may have descriptors */
    for (uint32_t k = 0; k < host->seat_count; k++) {
        struct seat *seat = &host->seats[k];
        used = seat->wire != NULL ? k + 1 : used;
        host->polls[k + 1] =
            (struct pollfd){.fd = seat->wire != NULL ? seat->wire->fd : -1, .events = POLLIN};
        if (seat->wire != NULL && !seat->joined && seat->deadline_ns < until_ns)
            until_ns = seat->deadline_ns;
    }
    const bool full = keel_remaining_ns(host->full_until_ns) > 0;
    host->polls[0] = (struct pollfd){.fd = full ? -1 : host->listener, .events = POLLIN};
    until_ns = full && host->full_until_ns < until_ns ? host->full_until_ns : until_ns;
    poll(host->polls, used + 1, keel_remaining_poll_ms(until_ns));
    for (uint32_t k = 0; k < host->seat_count; k++)
        if (host->seats[k].wire != NULL && !host->seats[k].joined &&
            keel_remaining_ns(host->seats[k].deadline_ns) == 0) {
            seat_clear(&host->seats[k]);
            host->polls[k + 1].revents = 0;
        }
}

enum keel_status keel_rendezvous_host_next(struct keel_rendezvous_host *host, uint64_t deadline_ns,
                                           struct keel_rendezvous_event *out)
{
    if (host->heard != NULL)
        keel_rendezvous_wire_forget(host->heard->wire);
    host->heard = NULL;
    do {
        wait_for_any(host, deadline_ns);
        if (host->polls[0].revents != 0)
            welcome_stranger(host);
        for (uint32_t k = 0; k < host->seat_count; k++) {
            uint32_t at = (host->next + k) % host->seat_count;
            if (host->polls[at + 1].revents == 0 || host->seats[at].wire == NULL)
                continue;
            if (hear(host, &host->seats[at], out)) {
                host->next = at + 1;
                return KEEL_OK;
            }
        }
    } while (keel_remaining_ns(deadline_ns) > 0);
    return keel_fail(KEEL_TIMEOUT, "the meeting: nothing came in time");
}
