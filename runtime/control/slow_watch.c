/* slow_watch.c - see slow_watch.h. */
#include "slow_watch.h"

#include <keel/clock.h>
#include <keel/log.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { TEXT_BYTES = 512 };
static const long signal_look_ns = 200 * 1000 * 1000;

static void say(const struct keel_slow_watch *watch, const char *text)
{
    if (watch->tell != NULL)
        watch->tell(watch->context, text);
    else
        keel_log(KEEL_LOG_WARN, "%s", text);
}

/* False: the deadline passed, and the call is still under way. */
static bool is_over_by(struct keel_slow_watch *watch, uint64_t deadline_ns)
{
    keel_mutex_lock(&watch->lock);
    while (!watch->over && keel_cond_wait(&watch->moved, &watch->lock, deadline_ns))
        ;
    const bool over = watch->over;
    keel_mutex_unlock(&watch->lock);
    return over;
}

/* What is left of the process waits for the disk: no destructor may. */
static void end_by_signal(const struct keel_slow_watch *watch)
{
    const struct timespec wait = {.tv_nsec = signal_look_ns};
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    if (sigtimedwait(&ends, NULL, &wait) < 0)
        return;
    fprintf(stderr, "interrupted: %s did not answer, and nothing was begun\n", watch->path);
    _exit(keel_status_exit_code(KEEL_INTERRUPTED));
}

static void *work(void *argument)
{
    struct keel_slow_watch *watch = argument;
    char text[TEXT_BYTES];
    if (is_over_by(watch, watch->begin_ns + KEEL_SLOW_S * KEEL_NS_PER_S))
        return NULL;
    snprintf(text, sizeof text, "%.300s: no answer for %d s, the disk or its server hangs or is slow: %s",
             watch->path, KEEL_SLOW_S,
             watch->move != NULL
                 ? watch->move
                 : "bring it back, and the run begins; or end this command, and give another");
    say(watch, text);
    while (watch->by_signal && !is_over_by(watch, keel_now_ns()))
        end_by_signal(watch);
    (void)is_over_by(watch, KEEL_NEVER);
    snprintf(text, sizeof text, "%.300s: answers again, after %.0f s", watch->path,
             (double)(keel_now_ns() - watch->begin_ns) / (double)KEEL_NS_PER_S);
    say(watch, text);
    return NULL;
}

void keel_slow_begin(struct keel_slow_watch *watch)
{
    watch->over = false;
    watch->begin_ns = keel_now_ns();
    keel_mutex_init(&watch->lock);
    keel_cond_init(&watch->moved);
    watch->runs = keel_thread_create(&watch->thread, "keel-slow", work, watch) == KEEL_OK;
}

void keel_slow_end(struct keel_slow_watch *watch)
{
    keel_mutex_lock(&watch->lock);
    watch->over = true;
    keel_cond_broadcast(&watch->moved);
    keel_mutex_unlock(&watch->lock);
    if (watch->runs)
        keel_thread_join(&watch->thread);
    keel_cond_fini(&watch->moved);
    keel_mutex_fini(&watch->lock);
}
