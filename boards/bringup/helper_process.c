/* helper_process.c - starting the second process of a check, and what goes over its socket. */
#include "helper_process.h"
#include <errno.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { END_S = 10 };

enum keel_status keel_helper_start(const char *what, const char *board, const char *rank,
                                   struct keel_helper_process *out)
{
    char self[KEEL_PATH_BYTES];
    int pair[2];
    KEEL_TRY(keel_self_path(self, sizeof self));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return keel_fail_errno(errno, "no socket for a second process");
    char *argv[] = {self, (char *)"board", (char *)"member", (char *)what, (char *)board, (char *)rank, NULL};
    enum keel_status status = keel_process_spawn(argv, &pair[1], 1, -1, &out->process);
    close(pair[1]);
    out->fd = pair[0];
    if (status != KEEL_OK)
        close(pair[0]);
    return status;
}

enum keel_status keel_helper_hear(struct keel_helper_process *member, uint64_t deadline_ns,
                                  struct keel_helper_word *out)
{
    struct pollfd poller = {.fd = member->fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&poller, 1, keel_remaining_poll_ms(deadline_ns));
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return keel_fail(KEEL_TIMEOUT, "the second process says nothing");
    ssize_t got = recv(member->fd, out, sizeof *out, MSG_DONTWAIT);
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

enum keel_status keel_helper_tell(struct keel_helper_process *member, const struct keel_helper_word *word)
{
    if (send(member->fd, word, sizeof *word, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *word)
        return keel_fail(KEEL_PEER_LOST, "the second process does not listen");
    return KEEL_OK;
}

void keel_helper_end(struct keel_helper_process *member)
{
    struct keel_process_end end;
    close(member->fd);
    (void)keel_process_signal(&member->process, SIGKILL); /* fails where it has ended, which is as well */
    (void)keel_process_wait(&member->process, keel_deadline_after_ns(END_S * KEEL_NS_PER_S), &end);
    keel_process_close(&member->process);
}
