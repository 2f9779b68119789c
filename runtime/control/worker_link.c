/* worker_link.c - the packets between an agent and its worker.
 *
 * Owns the socket pair and the size of each packet: only the part of struct keel_link_message that its
 * kind uses goes over, so that a beat is 24 bytes and a view some kilobytes. Promises that a call returns
 * by its deadline and that a packet is whole or not there. What a message means is the agent's and the
 * worker's business. */
#include "worker_link.h"

#include <errno.h>
#include <keel/clock.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for some forty views, in a kernel that grants what is asked (net.core.wmem_max). */
enum { LINK_BUFFER_BYTES = 64 * (int)sizeof(struct keel_link_message), HEAD_BYTES = 24 };
_Static_assert(offsetof(struct keel_link_message, as) == HEAD_BYTES, "beats carry the head alone");

void keel_link_ignore_signals(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};
    sigset_t blocked; /* too: a driver's compiler (LLVM) catches them anew later, and ends the process */
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        KEEL_ASSERT(signal(ignored[i], SIG_IGN) != SIG_ERR);
        sigaddset(&blocked, ignored[i]);
    }
    KEEL_ASSERT(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
}

enum keel_status keel_link_pair(int out[2])
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return keel_fail_errno(errno, "worker link: no socket pair");
    int bytes = LINK_BUFFER_BYTES;
    for (int i = 0; i < 2; i++)
        if (setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) != 0) {
            int error = errno;
            close(pair[0]);
            close(pair[1]);
            return keel_fail_errno(error, "worker link: no buffer of %d bytes", bytes);
        }
    out[0] = pair[0];
    out[1] = pair[1];
    return KEEL_OK;
}

/* Bytes behind the head for a kind; -1 for a kind that there is not. */
static int payload_bytes(const struct keel_link_message *message)
{
    switch (message->kind) {
    case KEEL_LINK_BEAT:
    case KEEL_LINK_ACCUSE:
    case KEEL_LINK_DONE:
    case KEEL_LINK_STOP:
        return 0;
    case KEEL_LINK_READY:
        return sizeof message->as.address;
    case KEEL_LINK_STEP:
        return sizeof message->as.record;
    case KEEL_LINK_SHARD:
        return sizeof message->as.summary;
    case KEEL_LINK_VIEW:
        return sizeof message->as.view;
    case KEEL_LINK_NOTE:
    case KEEL_LINK_FAILED:
        return (int)strnlen(message->as.text, sizeof message->as.text - 1) + 1;
    default:
        return -1;
    }
}

/* After EAGAIN: OK to try again, TIMEOUT when the deadline passed. */
static enum keel_status wait_for(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd poller = {.fd = fd, .events = events};
    int ready = poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    if (ready == 0)
        return keel_fail(KEEL_TIMEOUT, "worker link: the other end does not %s",
                         events == POLLIN ? "speak" : "read");
    return ready < 0 && errno != EINTR ? keel_fail_errno(errno, "worker link: poll") : KEEL_OK;
}

enum keel_status keel_link_send(int fd, const struct keel_link_message *message, uint64_t deadline_ns)
{
    int payload = payload_bytes(message);
    KEEL_ASSERT(payload >= 0);
    size_t bytes = HEAD_BYTES + (size_t)payload;
    for (;;) {
        ssize_t sent = send(fd, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent == (ssize_t)bytes)
            return KEEL_OK;
        if (sent >= 0)
            return keel_fail(KEEL_INTERNAL, "worker link: a packet was cut");
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return keel_fail(KEEL_PEER_LOST, "worker link: the other end is gone");
        if (errno != EAGAIN && errno != EINTR)
            return keel_fail_errno(errno, "worker link: cannot send");
        KEEL_TRY(wait_for(fd, POLLOUT, deadline_ns));
    }
}

static enum keel_status check_received(struct keel_link_message *message, size_t bytes)
{
    if (message->kind == KEEL_LINK_NOTE || message->kind == KEEL_LINK_FAILED)
        message->as.text[sizeof message->as.text - 1] = '\0';
    int payload = bytes >= HEAD_BYTES ? payload_bytes(message) : -1;
    if (payload < 0 || bytes != HEAD_BYTES + (size_t)payload)
        return keel_fail(KEEL_CORRUPT, "worker link: a packet of %zu bytes and kind %u", bytes,
                         message->kind);
    return KEEL_OK;
}

enum keel_status keel_link_receive(int fd, struct keel_link_message *out, uint64_t deadline_ns)
{
    for (;;) {
        memset(out, 0, sizeof *out);
        ssize_t got = recv(fd, out, sizeof *out, MSG_DONTWAIT | MSG_TRUNC);
        if (got > 0)
            return check_received(out, (size_t)got);
        if (got == 0 || errno == ECONNRESET)
            return keel_fail(KEEL_PEER_LOST, "worker link: the other end is gone");
        if (errno != EAGAIN && errno != EINTR)
            return keel_fail_errno(errno, "worker link: cannot receive");
        KEEL_TRY(wait_for(fd, POLLIN, deadline_ns));
    }
}
