/* starters.c - see starters.h. */
#include "starters.h"

#include <errno.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { AGENT_WAIT_TIMEOUTS = 12, AGENT_WAIT_MIN_S = 20, RETRY_DOUBLINGS = 5 };
/* A host that is away: its agent is started again after so long, twice as long each time. */
static const uint64_t retry_min_ns = 2 * KEEL_NS_PER_S;
/* An agent is gone, and what started it runs on: so long may it come back by itself. */
static const uint64_t starter_grace_ns = 10 * KEEL_NS_PER_S;

struct starter {
    struct keel_process process;
    bool running;
    uint64_t retry_ns; /* to be started again then; 0: is not */
    uint32_t retries;
};

struct keel_starters {
    struct keel_starters_config config;
    struct keel_secret secret;
    int epoll; /* by node, processes that have ended */
    bool resting;
    uint64_t look_ns; /* none of them is due before */
    struct starter nodes[KEEL_NODES_MAX];
};

enum keel_status keel_starters_open(const struct keel_starters_config *config, struct keel_starters **out)
{
    struct keel_starters *starters;
    KEEL_TRY(keel_alloc(1, sizeof *starters, &starters));
    starters->config = *config;
    starters->config.secret = NULL;
    starters->secret = *config->secret;
    starters->look_ns = KEEL_NEVER;
    starters->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (starters->epoll < 0) {
        const enum keel_status status = keel_fail_errno(errno, "what starts agents cannot be watched");
        keel_starters_close(starters);
        return status;
    }
    *out = starters;
    return KEEL_OK;
}

void keel_starters_close(struct keel_starters *starters)
{
    if (starters == NULL)
        return;
    for (uint16_t node = 1; node < starters->config.node_count; node++)
        if (starters->nodes[node].running)
            keel_process_close(&starters->nodes[node].process);
    if (starters->epoll >= 0)
        close(starters->epoll);
    keel_secret_wipe(&starters->secret);
    keel_free(starters);
}

static void set_retry(struct keel_starters *starters, uint16_t node, uint64_t wait_ns)
{
    struct starter *starter = &starters->nodes[node];
    starter->retry_ns = keel_deadline_after_ns(wait_ns);
    if (starter->retry_ns < starters->look_ns)
        starters->look_ns = starter->retry_ns;
}

/* Where the agent is here, its connection tells of its end. */
static void lose(struct keel_starters *starters, uint16_t node, enum keel_status status, const char *why)
{
    struct starter *starter = &starters->nodes[node];
    if (starters->resting || !starters->config.lost(starters->config.context, node, status, why))
        return;
    set_retry(starters, node, retry_min_ns << starter->retries);
    starter->retries += starter->retries < RETRY_DOUBLINGS;
    keel_log(KEEL_LOG_WARN, "%s; it is started again in %d s", why,
             (int)(keel_remaining_ns(starter->retry_ns) / KEEL_NS_PER_S + 1));
}

static void await(struct keel_starters *starters, uint16_t node)
{
    struct starter *starter = &starters->nodes[node];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = node};
    starter->running = true;
    if (epoll_ctl(starters->epoll, EPOLL_CTL_ADD, starter->process.pidfd, &event) != 0)
        keel_log(KEEL_LOG_ERROR, "what starts agent %u cannot be watched: %s; it counts as there", node,
                 strerror(errno));
}

void keel_starters_start(struct keel_starters *starters, uint16_t node)
{
    const struct keel_job *job = starters->config.job;
    struct starter *starter = &starters->nodes[node];
    const uint64_t wait_s = (uint64_t)(job->timeout_s * AGENT_WAIT_TIMEOUTS);
    const struct keel_host_command command = {
        .program = job->command[0] != '\0' ? job->command : starters->config.program,
        .place = starters->config.place,
        .key_file = "-",
        .node = node,
        .wait_s = wait_s > AGENT_WAIT_MIN_S ? (uint32_t)wait_s : AGENT_WAIT_MIN_S};
    char key[KEEL_SECRET_TEXT_BYTES];
    starter->retry_ns = 0;
    if (starter->running) {
        set_retry(starters, node, starter_grace_ns);
        return;
    }
    keel_secret_text(&starters->secret, key);
    const enum keel_status status = keel_host_start(job, keel_hosts_of(starters->config.hosts, job, node),
                                                    &command, key, &starter->process);
    sodium_memzero(key, sizeof key);
    if (status == KEEL_OK) {
        await(starters, node);
        return;
    }
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "node %u: %.400s", node, keel_detail());
    lose(starters, node, status, why);
}

void keel_starters_came(struct keel_starters *starters, uint16_t node)
{
    starters->nodes[node].retry_ns = starters->nodes[node].retries = 0;
}

static void reap(struct keel_starters *starters, uint16_t node)
{
    struct starter *starter = &starters->nodes[node];
    struct keel_process_end end = {0};
    char why[KEEL_DETAIL_BYTES];
    const enum keel_status status = keel_process_wait(&starter->process, keel_now_ns(), &end);
    if (status == KEEL_TIMEOUT)
        return;
    if (status != KEEL_OK)
        keel_log(KEEL_LOG_ERROR, "what starts agent %u ended: %s", node, keel_detail());
    keel_process_close(&starter->process);
    starter->running = false;
    const char *host = keel_hosts_of(starters->config.hosts, starters->config.job, node);
    const bool could_not = !end.signaled && end.code == keel_status_exit_code(KEEL_UNSUPPORTED);
    snprintf(why, sizeof why, "node %u: what starts its agent on %.64s ended (%s %d) before that came", node,
             host, end.signaled ? "signal" : "exit code", end.code);
    lose(starters, node, could_not ? KEEL_UNSUPPORTED : KEEL_PEER_LOST, why);
}

/* What is due of all; what becomes due meanwhile is looked at in the next turn. */
static void start_again(struct keel_starters *starters)
{
    if (keel_remaining_ns(starters->look_ns) > 0 || starters->resting)
        return;
    starters->look_ns = KEEL_NEVER;
    for (uint16_t node = 1; node < starters->config.node_count; node++) {
        struct starter *starter = &starters->nodes[node];
        if (starter->retry_ns != 0 && keel_remaining_ns(starter->retry_ns) == 0) {
            starter->retry_ns = 0;
            if (starter->running) /* its end is told when it is reaped */
                keel_process_signal(&starter->process, SIGKILL);
            else
                keel_starters_start(starters, node);
        }
        if (starter->retry_ns != 0 && starter->retry_ns < starters->look_ns)
            starters->look_ns = starter->retry_ns;
    }
}

void keel_starters_turn(struct keel_starters *starters)
{
    enum { AT_ONCE = 64 };
    struct epoll_event events[AT_ONCE];
    const int ready = epoll_wait(starters->epoll, events, AT_ONCE, 0);
    for (int i = 0; i < ready; i++)
        if (starters->nodes[events[i].data.u32].running)
            reap(starters, (uint16_t)events[i].data.u32);
    start_again(starters);
}

int keel_starters_fd(const struct keel_starters *starters)
{
    return starters->epoll;
}

uint64_t keel_starters_deadline_ns(const struct keel_starters *starters)
{
    return starters->resting ? KEEL_NEVER : starters->look_ns;
}

bool keel_starters_rest(struct keel_starters *starters)
{
    bool some = false;
    starters->resting = true;
    for (uint16_t node = 1; node < starters->config.node_count; node++)
        some = some || starters->nodes[node].running;
    return some;
}

void keel_starters_kill(struct keel_starters *starters)
{
    for (uint16_t node = 1; node < starters->config.node_count; node++)
        if (starters->nodes[node].running) {
            keel_log(KEEL_LOG_WARN, "what started agent %u does not end: killed", node);
            keel_process_signal(&starters->nodes[node].process, SIGKILL);
        }
}
