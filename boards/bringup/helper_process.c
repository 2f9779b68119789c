/* helper_process.c - starting the second process of a check, and what goes over its socket. */
#include "helper_process.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum keel_status keel_helper_start(const char *what, const char *board, const char *rank,
                                   struct keel_helper_process *out)
{
    char self[KEEL_PATH_BYTES];
    int pair[2];
    KEEL_TRY(keel_self_path(self, sizeof self));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return keel_fail_errno(errno, "no socket for a second process");
    const char *const argv[] = {self, "board", "helper", what, board, rank, NULL};
    enum keel_status status = keel_process_spawn((char *const *)argv, &pair[1], 1, -1, &out->process);
    close(pair[1]);
    out->fd = pair[0];
    if (status != KEEL_OK)
        close(pair[0]);
    return status;
}

enum keel_status keel_helper_hear(struct keel_helper_process *helper, uint64_t deadline_ns,
                                  struct keel_helper_word *out)
{
    struct pollfd poller = {.fd = helper->fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return keel_fail(KEEL_TIMEOUT, "the second process says nothing");
    ssize_t got = recv(helper->fd, out, sizeof *out, MSG_DONTWAIT);
    if (got != (ssize_t)sizeof *out)
        return keel_fail(KEEL_PEER_LOST, "the second process has ended");
    out->text[sizeof out->text - 1] = '\0';
    if (out->kind == KEEL_HELPER_FAILED) {
        enum keel_status status =
            out->value > 0 && out->value < KEEL_STATUS_COUNT ? (enum keel_status)out->value : KEEL_INTERNAL;
        return keel_fail(status, "%s", out->text);
    }
    return KEEL_OK;
}

enum keel_status keel_helper_tell(struct keel_helper_process *helper, const struct keel_helper_word *word)
{
    if (send(helper->fd, word, sizeof *word, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *word)
        return keel_fail(KEEL_PEER_LOST, "the second process does not listen");
    return KEEL_OK;
}

void keel_helper_end(struct keel_helper_process *helper)
{
    close(helper->fd);
    keel_process_kill(&helper->process);
}
