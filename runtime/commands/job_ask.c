/* job_ask.c - see job_ask.h. */
#include "job_ask.h"

#include "dial.h"
#include "run_gates.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/job.h>
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

enum {
    PATIENCE_TIMEOUTS = 10
}; /* a lease until another leads, six until one that is silent does not count */
static const uint64_t patience_min_ns = 10 * KEEL_NS_PER_S;
static const uint64_t look_limit_ns = 2 * KEEL_NS_PER_S;
static const uint64_t again_ns = 200 * KEEL_NS_PER_MS;

/* ---- a look that may hang ------------------------------------------------------------------------------ */

/* On a thread of its own, which keeps all of it where it does not come back: the process ends by itself. */
struct look {
    char directory[KEEL_PATH_BYTES];
    struct keel_thread thread;
    struct keel_mutex lock; /* guards all below */
    struct keel_cond moved;
    bool done;
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
    struct keel_run_look look;
};

static void *work(void *argument)
{
    struct look *look = argument;
    struct keel_run_look found = {.step = 0};
    const enum keel_status status = keel_run_look_at(look->directory, &found);
    keel_mutex_lock(&look->lock);
    look->look = found;
    look->status = status;
    snprintf(look->detail, sizeof look->detail, "%s", status != KEEL_OK ? keel_detail() : "");
    look->done = true;
    keel_cond_broadcast(&look->moved);
    keel_mutex_unlock(&look->lock);
    return NULL;
}

static void end_look(struct look *look)
{
    keel_cond_fini(&look->moved);
    keel_mutex_fini(&look->lock);
    keel_free(look);
}

static enum keel_status begin_look(const char *directory, struct look **out)
{
    struct look *look;
    KEEL_TRY(keel_alloc(1, sizeof *look, &look));
    snprintf(look->directory, sizeof look->directory, "%s", directory);
    keel_mutex_init(&look->lock);
    keel_cond_init(&look->moved);
    const enum keel_status status = keel_thread_create(&look->thread, "keel-look", work, look);
    if (status == KEEL_OK)
        *out = look;
    else
        end_look(look);
    return status;
}

/* One that is under way is waited for again. */
static enum keel_status look_on(struct look **at, const char *directory, uint64_t limit_ns,
                                struct keel_run_look *out)
{
    const uint64_t until_ns = keel_deadline_after_ns(limit_ns);
    bool in_time = true;
    if (*at == NULL)
        KEEL_TRY(begin_look(directory, at));
    struct look *look = *at;
    keel_mutex_lock(&look->lock);
    while (!look->done && in_time)
        in_time = keel_cond_wait(&look->moved, &look->lock, until_ns);
    const bool done = look->done;
    keel_mutex_unlock(&look->lock);
    if (!done)
        return keel_fail(KEEL_TIMEOUT, "%s: what it has, or the common store, does not answer", directory);
    keel_thread_join(&look->thread);
    const enum keel_status status =
        look->status == KEEL_OK ? KEEL_OK : keel_fail(look->status, "%s", look->detail);
    *out = look->look;
    end_look(look);
    *at = NULL;
    return status;
}

enum keel_status keel_job_look(const char *directory, uint64_t limit_ns, struct keel_run_look *out)
{
    struct look *look = NULL;
    return look_on(&look, directory, limit_ns, out);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

struct asking {
    const struct keel_job_question *question;
    struct keel_run_gates gates;
    char known[KEEL_PLACE_BYTES]; /* of who leads, as the store says; "": it was not asked, or does not */
    struct keel_secret secret;
    struct keel_handover_ask ask;
    struct keel_dial_config dial;
    uint64_t patience_ns;
    uint64_t last_ns;  /* somebody who leads was there then, or it began */
    bool heard;        /* by one of them */
    bool unbegun;      /* it was said that the run waits for its agents */
    struct look *look; /* under way; NULL: none is */
};

static enum keel_status read_job(const char *directory, uint64_t *timeout_ns, bool *local)
{
    struct keel_job *job;
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, directory, "job.conf"));
    KEEL_TRY(keel_alloc(1, sizeof *job, &job));
    const enum keel_status status = keel_job_load(path, NULL, 0, job);
    *timeout_ns = (uint64_t)(job->timeout_s * (double)KEEL_NS_PER_S);
    *local = job->launch == KEEL_LAUNCH_LOCAL;
    keel_free(job);
    return status;
}

bool keel_job_is_local(const char *directory)
{
    uint64_t timeout_ns;
    bool local = false;
    return read_job(directory, &timeout_ns, &local) == KEEL_OK && local;
}

static enum keel_status begin(struct asking *asking)
{
    uint64_t timeout_ns;
    bool local;
    KEEL_TRY(keel_secret_load(asking->question->directory, false, &asking->secret));
    KEEL_TRY(read_job(asking->question->directory, &timeout_ns, &local));
    asking->ask = (struct keel_handover_ask){.wish = asking->question->wish, .node = asking->question->node};
    asking->patience_ns = PATIENCE_TIMEOUTS * timeout_ns;
    if (asking->patience_ns < patience_min_ns)
        asking->patience_ns = patience_min_ns;
    asking->dial = (struct keel_dial_config){.places = asking->gates.places,
                                             .known = asking->known,
                                             .secret = &asking->secret,
                                             .release = KEEL_RELEASE,
                                             .ask = &asking->ask};
    asking->last_ns = keel_now_ns();
    return KEEL_OK;
}

/* The launcher writes its gates when it has all agents, which may take as long as those who start them: as
 * long as who asks wants to wait. */
static enum keel_status await_gates(struct asking *asking)
{
    const struct keel_job_question *question = asking->question;
    if (!asking->unbegun && question->stays != NULL)
        question->stays(question->context, "the run waits for its agents: asks when they are there");
    asking->unbegun = true;
    asking->last_ns = keel_now_ns();
    return keel_fail(
        KEEL_NOT_FOUND,
        "the run was not asked: it has no file gates, since it still waits for its agents, or its "
        "disk is full; ask again when keel job status tells of a view, or there is room");
}

/* The places anew each time: who leads next on the launcher's host has another. */
static enum keel_status dial(struct asking *asking, struct keel_job_answer *out)
{
    const struct keel_job_question *question = asking->question;
    struct keel_dialed dialed;
    if (!asking->heard && !keel_run_gates_are_there(question->directory))
        return await_gates(asking);
    KEEL_TRY(keel_run_gates_read(question->directory, &asking->gates));
    asking->ask.run = asking->gates.run;
    enum keel_status status = keel_dial_ask(&asking->dial, &dialed);
    if (status == KEEL_OK) {
        asking->heard = true;
        status =
            keel_dialed_await(&dialed, question->deadline_ns, question->stays, question->context, &out->end);
        out->told = status == KEEL_OK;
        asking->last_ns = keel_now_ns();
    }
    keel_dialed_close(&dialed);
    return status;
}

static bool may_come(enum keel_status status)
{
    return status == KEEL_PEER_LOST || status == KEEL_TIMEOUT || status == KEEL_NOT_FOUND;
}

/* Nobody who leads is there, as keel_detail() has it: has the run ended, or may one come? */
static enum keel_status look_further(struct asking *asking, bool *ended)
{
    const char *directory = asking->question->directory;
    char why[KEEL_DETAIL_BYTES];
    struct keel_run_look look = {.step = 0};
    snprintf(why, sizeof why, "%.400s", keel_detail());
    if (keel_remaining_ns(asking->question->deadline_ns) == 0)
        return keel_fail(KEEL_TIMEOUT, "%s: %s", directory,
                         !asking->heard ? why
                         : asking->ask.wish == KEEL_WISH_STOP
                             ? "who leads was asked, and the run still goes on"
                             : "who leads was asked, and nothing came of it in time; it is still asked for");
    const enum keel_status status = look_on(&asking->look, directory, look_limit_ns, &look);
    *ended = status == KEEL_OK && look.state != KEEL_RUN_GOES_ON;
    if (status != KEEL_OK && status != KEEL_TIMEOUT)
        return status;
    if (status == KEEL_OK && look.place[0] != '\0')
        snprintf(asking->known, sizeof asking->known, "%.*s", (int)sizeof asking->known - 1, look.place);
    if (!*ended && keel_now_ns() - asking->last_ns > asking->patience_ns)
        return keel_fail(
            KEEL_TIMEOUT,
            "%s: nobody who leads the run was reached from here in %" PRIu64 " s (%s)%s; ask where these "
            "places are reached",
            directory, asking->patience_ns / KEEL_NS_PER_S, why,
            status == KEEL_TIMEOUT ? ", and the store that may say who leads does not answer" : "");
    if (!*ended)
        keel_sleep_until_ns(keel_deadline_after_ns(again_ns));
    return KEEL_OK;
}

enum keel_status keel_job_ask(const struct keel_job_question *question, struct keel_job_answer *out)
{
    struct asking asking = {.question = question};
    bool ended = false;
    enum keel_status status = begin(&asking);
    *out = (struct keel_job_answer){.told = false};
    while (status == KEEL_OK && !ended) {
        status = dial(&asking, out);
        if (status == KEEL_OK)
            break;
        if (status == KEEL_INVALID && asking.heard && question->wish == KEEL_WISH_ADD) {
            status = KEEL_OK; /* who heard it is lost since, and who leads now has the node as one to stay */
            break;
        }
        if (may_come(status))
            status = look_further(&asking, &ended);
    }
    keel_secret_wipe(&asking.secret);
    if (status == KEEL_OK && ended && !asking.heard)
        return keel_fail(KEEL_NOT_FOUND, "%s: no run goes on there", question->directory);
    if (status == KEEL_OK && ended && question->wish != KEEL_WISH_STOP)
        return keel_fail(KEEL_NOT_FOUND, "%s: the run ended first", question->directory);
    return status;
}
