/* rendezvous_member.c - a member of a rendezvous: finds the host, joins, says things, leaves. */
#include "rendezvous_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_DIGITS = 2 * KEEL_KEY_BYTES };
#define RETRY_NS (50 * KEEL_NS_PER_MS)

struct keel_rendezvous_member {
    struct keel_rendezvous_wire wire;
    uint8_t challenge[KEEL_CHALLENGE_BYTES]; /* the host's */
};

/* ---- the key ------------------------------------------------------------------------------------------- */

static enum keel_status key_allowed(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return keel_fail_errno(errno, "%s: the key cannot be read", path);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return keel_fail(KEEL_DENIED, "%s: open to others (mode %03o); chmod 600 it", path,
                         (unsigned)info.st_mode & 0777);
    return KEEL_OK;
}

enum keel_status keel_rendezvous_key_read(const char *path, uint8_t out[KEEL_KEY_BYTES])
{
    char *text;
    size_t bytes, used = 0;
    KEEL_TRY(key_allowed(path));
    KEEL_TRY(keel_file_read(path, 4096, &text, &bytes));
    bool right = bytes >= KEY_DIGITS &&
                 sodium_hex2bin(out, KEEL_KEY_BYTES, text, KEY_DIGITS, NULL, &used, NULL) == 0 &&
                 used == KEEL_KEY_BYTES && strspn(text + KEY_DIGITS, " \r\n") == bytes - KEY_DIGITS;
    sodium_memzero(text, bytes);
    keel_free(text);
    if (!right)
        return keel_fail(KEEL_INVALID,
                         "%s: not a key: 64 hexadecimal digits (make one: openssl rand -hex 32)", path);
    return KEEL_OK;
}

/* ---- finding the host ---------------------------------------------------------------------------------- */

static int dial(const struct addrinfo *address, uint64_t deadline_ns)
{
    int error = 0, one = 1;
    socklen_t bytes = sizeof error;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS)
        error = errno;
    struct pollfd ready = {.fd = fd, .events = POLLOUT};
    if (error == 0 && (poll(&ready, 1, keel_remaining_poll_ms(deadline_ns)) != 1 ||
                       getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0))
        error = ETIMEDOUT;
    if (error != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Until somebody listens there. */
static enum keel_status dial_until(const char *place, uint64_t deadline_ns, int *out_fd)
{
    struct addrinfo *found;
    KEEL_TRY(keel_rendezvous_resolve(place, false, &found));
    int fd = -1;
    for (;;) {
        for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next)
            fd = dial(at, deadline_ns);
        uint64_t again_ns = keel_deadline_after_ns(RETRY_NS);
        if (fd >= 0 || keel_remaining_ns(deadline_ns) == 0)
            break;
        keel_sleep_until_ns(again_ns < deadline_ns ? again_ns : deadline_ns);
    }
    freeaddrinfo(found);
    if (fd < 0)
        return keel_fail(KEEL_TIMEOUT, "%s: nobody answers; start rank 0 there", place);
    *out_fd = fd;
    return KEEL_OK;
}

static enum keel_status greeting(struct keel_rendezvous_member *member, const char *place,
                                 uint64_t deadline_ns)
{
    size_t got = 0;
    while (got < sizeof member->challenge) {
        struct pollfd ready = {.fd = member->wire.fd, .events = POLLIN};
        ssize_t done = recv(member->wire.fd, member->challenge + got, sizeof member->challenge - got, 0);
        if (done == 0 || (done < 0 && errno != EAGAIN && errno != EINTR))
            return keel_fail(KEEL_PEER_LOST, "%s: whoever listens there hung up", place);
        if (done > 0)
            got += (size_t)done;
        else if (keel_remaining_ns(deadline_ns) == 0)
            return keel_fail(KEEL_TIMEOUT, "%s: whoever listens there says nothing", place);
        else
            poll(&ready, 1, keel_remaining_poll_ms(deadline_ns));
    }
    return KEEL_OK;
}

enum keel_status keel_rendezvous_connect(const char *place, const uint8_t key[KEEL_KEY_BYTES],
                                         uint64_t deadline_ns, char local[KEEL_RENDEZVOUS_PLACE_BYTES],
                                         struct keel_rendezvous_member **out)
{
    struct keel_rendezvous_member *member;
    KEEL_TRY(keel_handshake_init());
    KEEL_TRY(keel_alloc(1, sizeof *member, &member));
    member->wire.fd = -1;
    memcpy(member->wire.key, key, KEEL_KEY_BYTES);
    enum keel_status status = dial_until(place, deadline_ns, &member->wire.fd);
    if (status == KEEL_OK)
        status = keel_rendezvous_place_of(member->wire.fd, false, local);
    if (status == KEEL_OK)
        status = greeting(member, place, deadline_ns);
    if (status != KEEL_OK) {
        keel_rendezvous_leave(member, false);
        return status;
    }
    *out = member;
    return KEEL_OK;
}

/* ---- being there --------------------------------------------------------------------------------------- */

/* One frame of the table, of which `left` addresses are still to come. */
static enum keel_status take_table(struct keel_rendezvous_wire *wire, uint32_t rank, uint32_t left,
                                   uint64_t deadline_ns, struct keel_address *out)
{
    uint32_t count = left < KEEL_RENDEZVOUS_TABLE_ADDRESSES ? left : KEEL_RENDEZVOUS_TABLE_ADDRESSES;
    enum keel_status status = keel_rendezvous_wire_receive(wire, deadline_ns);
    if (status == KEEL_PEER_LOST)
        return keel_fail(status, "rank %u: the host of the meeting hung up: it ended, or has another key",
                         rank);
    KEEL_TRY(status);
    const struct keel_rendezvous_header *header = keel_rendezvous_wire_header(wire);
    const uint8_t *payload = keel_rendezvous_wire_payload(wire);
    if (header->kind == KEEL_RENDEZVOUS_BYE && header->bytes > 0 && payload[header->bytes - 1] == '\0')
        return keel_fail(KEEL_MISMATCH, "rank %u is not let in: %s", rank, (const char *)payload);
    if (header->kind != KEEL_RENDEZVOUS_TABLE || header->bytes != count * sizeof *out)
        return keel_fail(KEEL_MISMATCH, "rank %u: the host of the meeting speaks another language", rank);
    memcpy(out, payload, header->bytes);
    return KEEL_OK;
}

enum keel_status keel_rendezvous_enter(struct keel_rendezvous_member *member, uint32_t rank, uint32_t world,
                                       const struct keel_address *mine, uint64_t deadline_ns,
                                       struct keel_address *addresses)
{
    struct keel_rendezvous_join join = {.rank = rank, .world = world, .address = *mine};
    struct keel_rendezvous_wire *wire = &member->wire;
    keel_handshake_challenge(join.challenge);
    keel_rendezvous_wire_agree(wire, member->challenge, join.challenge);
    KEEL_TRY(keel_rendezvous_wire_send(wire, KEEL_RENDEZVOUS_JOIN, &join, sizeof join, deadline_ns));
    for (uint32_t first = 0; first < world; first += KEEL_RENDEZVOUS_TABLE_ADDRESSES)
        KEEL_TRY(take_table(wire, rank, world - first, deadline_ns, &addresses[first]));
    return KEEL_OK;
}

enum keel_status keel_rendezvous_say(struct keel_rendezvous_member *member, uint32_t kind,
                                     const void *payload, uint32_t bytes, uint64_t deadline_ns)
{
    return keel_rendezvous_wire_send(&member->wire, kind, payload, bytes, deadline_ns);
}

void keel_rendezvous_leave(struct keel_rendezvous_member *member, bool orderly)
{
    if (member == NULL)
        return;
    if (orderly)
        keel_rendezvous_wire_send(&member->wire, KEEL_RENDEZVOUS_BYE, NULL, 0,
                                  keel_deadline_after_ns(KEEL_NS_PER_S));
    if (member->wire.fd >= 0)
        close(member->wire.fd);
    keel_handshake_wipe(member->wire.key);
    keel_free(member);
}
