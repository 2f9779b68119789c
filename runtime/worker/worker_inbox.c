/* worker_inbox.c - listen to the agent, beat, revoke. */
#include "worker_inbox.h"
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <sys/socket.h>
#include <unistd.h>

static enum keel_status take_view(struct keel_inbox *inbox, int file)
{
    struct keel_view *view;
    enum keel_status status = keel_alloc(1, sizeof *view, &view);
    if (status != KEEL_OK) {
        close(file);
        return status;
    }
    status = keel_link_take_view(file, view);
    keel_mutex_lock(&inbox->mutex);
    if (status == KEEL_OK && view->epoch > inbox->view.epoch) {
        keel_view_copy(&inbox->view, view);
        if (inbox->group != NULL && inbox->group_epoch < view->epoch)
            keel_group_revoke(inbox->group);
        keel_cond_broadcast(&inbox->changed);
    }
    keel_mutex_unlock(&inbox->mutex);
    keel_free(view);
    return status;
}

enum { STOP_SILENCES = 3 }; /* keel_inbox_end_together */

static void take_stop(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    /* Ranks stop before the same step, but some have begun it and wait for those that have not: the
     * commit before still gets two beats to arrive everywhere. */
    inbox->stop = true;
    inbox->stop_revoke_ns = keel_deadline_after_ns(
        inbox->ends_together ? STOP_SILENCES * inbox->times.silence_ns : 2 * inbox->times.beat_ns);
    keel_cond_broadcast(&inbox->changed);
    keel_mutex_unlock(&inbox->mutex);
}

static void revoke_if_stopped(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    if (inbox->stop && inbox->group != NULL && keel_remaining_ns(inbox->stop_revoke_ns) == 0)
        keel_group_revoke(inbox->group);
    keel_mutex_unlock(&inbox->mutex);
}

static bool is_closing(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    bool closing = inbox->closing;
    keel_mutex_unlock(&inbox->mutex);
    return closing;
}

static void *listen_to_agent(void *argument)
{
    struct keel_inbox *inbox = argument;
    struct keel_link_message message;
    while (!is_closing(inbox)) {
        enum keel_status status =
            keel_link_receive(inbox->fd, &message, keel_deadline_after_ns(inbox->times.beat_ns));
        if (status == KEEL_OK && message.kind == KEEL_LINK_VIEW)
            status = take_view(inbox, message.as.view_file);
        if (status == KEEL_TIMEOUT) {
            message =
                (struct keel_link_message){.kind = KEEL_LINK_BEAT, .value = atomic_load(&inbox->progress)};
            keel_inbox_say(inbox, &message);
            revoke_if_stopped(inbox);
            inbox->beat(inbox->context);
        } else if (status != KEEL_OK) {
            if (is_closing(inbox))
                break;
            keel_log(KEEL_LOG_INFO, "the agent is gone, or not to be understood (%s); this worker ends",
                     keel_detail());
            _exit(keel_status_exit_code(KEEL_INTERRUPTED));
        } else if (message.kind == KEEL_LINK_STOP) {
            take_stop(inbox);
        }
    }
    return NULL;
}

enum keel_status keel_inbox_start(struct keel_inbox *inbox, int fd, const struct keel_times *times,
                                  void (*beat)(void *context), void *context)
{
    inbox->fd = fd;
    inbox->times = *times;
    inbox->beat = beat;
    inbox->context = context;
    keel_mutex_init(&inbox->mutex);
    keel_cond_init(&inbox->changed);
    return keel_thread_create(&inbox->thread, "keel-inbox", listen_to_agent, inbox);
}

void keel_inbox_end(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    inbox->closing = true;
    keel_mutex_unlock(&inbox->mutex);
    (void)shutdown(inbox->fd, SHUT_RD); /* wakes the thread, whose next beat may be far off */
    keel_thread_join(&inbox->thread);
    keel_cond_fini(&inbox->changed);
    keel_mutex_fini(&inbox->mutex);
}

enum keel_status keel_inbox_wait(struct keel_inbox *inbox, uint64_t epoch, uint64_t deadline_ns,
                                 struct keel_view *out, bool *stop)
{
    bool in_time = true;
    keel_mutex_lock(&inbox->mutex);
    while (in_time && inbox->view.epoch <= epoch && !inbox->stop)
        in_time = keel_cond_wait(&inbox->changed, &inbox->mutex, deadline_ns);
    bool newer = inbox->view.epoch > epoch;
    *stop = inbox->stop;
    if (newer)
        keel_view_copy(out, &inbox->view);
    keel_mutex_unlock(&inbox->mutex);
    if (newer || *stop)
        return KEEL_OK;
    return keel_fail(KEEL_TIMEOUT, "no view newer than epoch %llu came", (unsigned long long)epoch);
}

void keel_inbox_end_together(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    inbox->ends_together = true;
    keel_mutex_unlock(&inbox->mutex);
}

bool keel_inbox_stopping(struct keel_inbox *inbox)
{
    keel_mutex_lock(&inbox->mutex);
    bool stop = inbox->stop;
    keel_mutex_unlock(&inbox->mutex);
    return stop;
}

bool keel_inbox_newer(struct keel_inbox *inbox, uint64_t epoch)
{
    keel_mutex_lock(&inbox->mutex);
    bool newer = inbox->view.epoch > epoch;
    keel_mutex_unlock(&inbox->mutex);
    return newer;
}

void keel_inbox_guard(struct keel_inbox *inbox, struct keel_group *group, uint64_t epoch)
{
    keel_mutex_lock(&inbox->mutex);
    inbox->group = group;
    inbox->group_epoch = epoch;
    if (group != NULL && inbox->view.epoch > epoch)
        keel_group_revoke(group);
    keel_mutex_unlock(&inbox->mutex);
}

static void say(struct keel_inbox *inbox, const struct keel_link_message *message, uint64_t patience_ns)
{
    if (keel_link_send(inbox->fd, message, keel_deadline_after_ns(patience_ns)) != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "the agent did not take a message: %s", keel_detail());
}

/* The main thread waits for an agent that is stopped as long as the launcher does, since nobody repeats what
 * it says of steps, snapshots and its state. Other threads must not be held up: the inbox's, which hears new
 * views, and the transport's, which peers watch. */
void keel_inbox_say(struct keel_inbox *inbox, const struct keel_link_message *message)
{
    const uint32_t kind = message->kind;
    bool brief = kind == KEEL_LINK_BEAT || kind == KEEL_LINK_ACCUSE || kind == KEEL_LINK_NOTE;
    say(inbox, message, brief ? inbox->times.silence_ns : inbox->times.join_wait_ns);
}

void keel_inbox_say_briefly(struct keel_inbox *inbox, const struct keel_link_message *message)
{
    say(inbox, message, inbox->times.silence_ns);
}
