/* socket_link.h - messages over a stream socket, for tests of remote tiers: a length of four bytes, then the
 * message, with deadlines. The context of the link is a struct socket_link. */
#ifndef KEEL_TESTS_CKPT_SOCKET_LINK_H
#define KEEL_TESTS_CKPT_SOCKET_LINK_H

#include "harness.h"
#include <errno.h>
#include <keel/ckpt_tier.h>
#include <keel/clock.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* How long a test waits for what must come, on the busiest machine. */
#define PATIENCE_NS (60 * KEEL_NS_PER_S)

struct socket_link {
    int fd;
    bool
        patient; /* the other side is alive, so the caller's deadline says nothing of it but how slow it is */
};

static inline uint64_t link_deadline(const struct socket_link *socket, uint64_t deadline_ns)
{
    return socket->patient ? keel_deadline_after_ns(PATIENCE_NS) : deadline_ns;
}

static inline enum keel_status wait_for(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd at = {.fd = fd, .events = events};
    for (;;) {
        int ready = poll(&at, 1, keel_remaining_poll_ms(deadline_ns));
        if (ready > 0)
            return KEEL_OK;
        if (ready == 0)
            return keel_fail(KEEL_TIMEOUT, "the other side is silent");
        if (errno != EINTR)
            return keel_fail_errno(errno, "poll");
    }
}

static inline enum keel_status move_bytes(int fd, void *data, size_t bytes, bool out, uint64_t deadline_ns)
{
    uint8_t *at = data;
    while (bytes > 0) {
        KEEL_TRY(wait_for(fd, out ? POLLOUT : POLLIN, deadline_ns));
        ssize_t moved =
            out ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, at, bytes, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (moved <= 0)
            return keel_fail(KEEL_PEER_LOST, "the other side is gone");
        at += moved;
        bytes -= (size_t)moved;
    }
    return KEEL_OK;
}

static inline enum keel_status socket_send(void *context, const void *message, size_t bytes,
                                           uint64_t deadline_ns)
{
    int fd = ((struct socket_link *)context)->fd;
    uint32_t length = (uint32_t)bytes;
    deadline_ns = link_deadline(context, deadline_ns);
    KEEL_TRY(move_bytes(fd, &length, sizeof length, true, deadline_ns));
    return move_bytes(fd, (void *)(uintptr_t)message, bytes, true, deadline_ns);
}

/* Waits for the first byte only until the deadline; a message that has begun to come has time to end. */
static inline enum keel_status socket_receive(void *context, void *message, size_t capacity,
                                              size_t *out_bytes, uint64_t deadline_ns)
{
    int fd = ((struct socket_link *)context)->fd;
    uint32_t length = 0;
    KEEL_TRY(wait_for(fd, POLLIN, link_deadline(context, deadline_ns)));
    uint64_t end_ns = keel_deadline_after_ns(PATIENCE_NS);
    enum keel_status status = move_bytes(fd, &length, sizeof length, false, end_ns);
    if (status == KEEL_OK && length > capacity)
        status = keel_fail(KEEL_CORRUPT, "a message of %u bytes", length);
    if (status == KEEL_OK)
        status = move_bytes(fd, message, length, false, end_ns);
    if (status != KEEL_OK) /* in the middle of a message: of no use any more */
        return status == KEEL_TIMEOUT ? keel_fail(KEEL_PEER_LOST, "a message broke off") : status;
    *out_bytes = length;
    return KEEL_OK;
}

static inline struct keel_tier_link link_over(struct socket_link *socket)
{
    return (struct keel_tier_link){.send = socket_send, .receive = socket_receive, .context = socket};
}

#endif
