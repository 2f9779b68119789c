/* worker_link.c - the packets between an agent and its worker.
 *
 * Owns the socket pair and the size of each packet: only the part of struct keel_link_message that its
 * kind uses goes over, so that a beat is 24 bytes, and a view beside them a descriptor. Promises that a call
 * returns by its deadline and that a packet is whole or not there. What a message means is the agent's and
 * the worker's business. */
#include "worker_link.h"

#include <errno.h>
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of what is asked a kernel grants as much as net.core.wmem_max allows. */
enum { LINK_BUFFER_BYTES = 1 << 20, HEAD_BYTES = 24 };
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
    case KEEL_LINK_VIEW: /* its file goes beside it */
        return 0;
    case KEEL_LINK_READY:
        return sizeof message->as.address;
    case KEEL_LINK_STEP:
        return sizeof message->as.record;
    case KEEL_LINK_SHARD:
        return sizeof message->as.summary;
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

/* A packet, and room for a descriptor beside it. */
struct packet {
    struct iovec part;
    _Alignas(struct cmsghdr) char beside[CMSG_SPACE(sizeof(int))];
    struct msghdr message;
};

static void make_packet(struct packet *out, void *data, size_t bytes, bool with_file)
{
    memset(out, 0, sizeof *out);
    out->part = (struct iovec){.iov_base = data, .iov_len = bytes};
    out->message = (struct msghdr){.msg_iov = &out->part, .msg_iovlen = 1};
    if (!with_file)
        return;
    out->message.msg_control = out->beside;
    out->message.msg_controllen = CMSG_LEN(sizeof(int)); /* no room for a second, which nobody would close */
}

static void put_file(struct packet *packet, int file)
{
    struct cmsghdr *head = CMSG_FIRSTHDR(&packet->message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof file);
    memcpy(CMSG_DATA(head), &file, sizeof file);
}

/* -1: none came. */
static int file_of(struct packet *packet)
{
    int file = -1;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&packet->message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof file))
        memcpy(&file, CMSG_DATA(head), sizeof file);
    return file;
}

enum keel_status keel_link_send(int fd, const struct keel_link_message *message, uint64_t deadline_ns)
{
    int payload = payload_bytes(message);
    KEEL_ASSERT(payload >= 0);
    size_t bytes = HEAD_BYTES + (size_t)payload;
    struct packet packet;
    make_packet(&packet, (void *)(uintptr_t)message, bytes, message->kind == KEEL_LINK_VIEW);
    if (message->kind == KEEL_LINK_VIEW)
        put_file(&packet, message->as.view_file);
    for (;;) {
        ssize_t sent = sendmsg(fd, &packet.message, MSG_DONTWAIT | MSG_NOSIGNAL);
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

/* Takes the file that came beside it, or -1. */
static enum keel_status check_received(struct keel_link_message *message, size_t bytes, int file)
{
    if (message->kind == KEEL_LINK_NOTE || message->kind == KEEL_LINK_FAILED)
        message->as.text[sizeof message->as.text - 1] = '\0';
    int payload = bytes >= HEAD_BYTES ? payload_bytes(message) : -1;
    const bool wants_file = payload >= 0 && message->kind == KEEL_LINK_VIEW;
    if (payload >= 0 && bytes == HEAD_BYTES + (size_t)payload && wants_file == (file >= 0)) {
        if (wants_file)
            message->as.view_file = file;
        return KEEL_OK;
    }
    if (file >= 0)
        close(file);
    return keel_fail(KEEL_CORRUPT, "worker link: a packet of %zu bytes and kind %u", bytes, message->kind);
}

enum keel_status keel_link_receive(int fd, struct keel_link_message *out, uint64_t deadline_ns)
{
    for (;;) {
        struct packet packet;
        memset(out, 0, sizeof *out);
        make_packet(&packet, out, sizeof *out, true);
        ssize_t got = recvmsg(fd, &packet.message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
        if (got > 0)
            return check_received(out, (size_t)got, file_of(&packet));
        if (got == 0 || errno == ECONNRESET)
            return keel_fail(KEEL_PEER_LOST, "worker link: the other end is gone");
        if (errno != EAGAIN && errno != EINTR)
            return keel_fail_errno(errno, "worker link: cannot receive");
        KEEL_TRY(wait_for(fd, POLLIN, deadline_ns));
    }
}

enum keel_status keel_link_view_file(const struct keel_view *view, int *out_file)
{
    uint8_t *bytes;
    const int file = memfd_create("keel-view", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return keel_fail_errno(errno, "worker link: no file for a view");
    enum keel_status status = keel_alloc(1, KEEL_VIEW_BYTES_MAX, &bytes);
    if (status == KEEL_OK) {
        status = keel_pwrite_all(file, bytes, keel_view_encode(view, bytes), 0, "a view");
        keel_free(bytes);
    }
    /* All workers of a node have the same one, and a model's plug-in runs in each. */
    if (status == KEEL_OK &&
        fcntl(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
        status = keel_fail_errno(errno, "worker link: a view's file cannot be sealed");
    if (status != KEEL_OK) {
        close(file);
        return status;
    }
    *out_file = file;
    return KEEL_OK;
}

enum keel_status keel_link_take_view(int file, struct keel_view *out)
{
    uint8_t *bytes = NULL;
    struct stat about;
    enum keel_status status = KEEL_OK;
    if (fstat(file, &about) != 0 || about.st_size < 0 || about.st_size > (off_t)KEEL_VIEW_BYTES_MAX)
        status = keel_fail(KEEL_CORRUPT, "worker link: a view that is none");
    if (status == KEEL_OK)
        status = keel_alloc((uint64_t)about.st_size, 1, &bytes);
    if (status == KEEL_OK)
        status = keel_pread_all(file, bytes, (uint64_t)about.st_size, 0, "a view");
    if (status == KEEL_OK && !keel_view_decode(bytes, (uint32_t)about.st_size, out))
        status = keel_fail(KEEL_CORRUPT, "worker link: a view that is none");
    keel_free(bytes);
    close(file);
    return status;
}
