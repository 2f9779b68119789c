/* launcher_local.c - the agents of the launcher's own host, which outlive it: started with what they need to
 * have another lead (succession.h), and taken over from the one that led before.
 *
 * Owns leader.state, which holds what who takes over cannot know otherwise. Promises that a node has one
 * agent: its lock is taken before it is started, and goes with it. */
#include "launcher_state.h"

#include "run_locks.h"
#include "succession.h"
#include <errno.h>
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { AGENT_ARGS = 14 };
/* An agent says in its lock who it is, first of all. */
static const uint64_t name_grace_ns = 2 * KEEL_NS_PER_S;
static const uint64_t name_look_ns = 10 * KEEL_NS_PER_MS;

/* ---- what is left to who takes over: a line each, first step, number of plans, plans ---- */

enum { STATE_LINE_BYTES = 24, STATE_BYTES = STATE_LINE_BYTES * (KEEL_MEMBERS_MAX + 3) };

enum keel_status keel_local_state_text(const struct keel_launch_config *config, char **out)
{
    char *text;
    KEEL_TRY(keel_alloc(1, STATE_BYTES, &text));
    uint32_t bytes = (uint32_t)snprintf(text, STATE_BYTES, "%" PRIu64 " %" PRIu64 "\n%u\n",
                                        config->first_step, config->past_epoch, config->job->ranks);
    for (uint32_t ranks = 0; ranks <= config->job->ranks; ranks++)
        bytes +=
            (uint32_t)snprintf(text + bytes, STATE_BYTES - bytes, "%016" PRIx64 "\n", config->plans[ranks]);
    KEEL_ASSERT(bytes < STATE_BYTES);
    *out = text;
    return KEEL_OK;
}

static enum keel_status write_state(const struct keel_launcher *launcher)
{
    char path[KEEL_PATH_BYTES], *text;
    KEEL_TRY(keel_path_join(path, launcher->config->directory, "leader.state"));
    KEEL_TRY(keel_local_state_text(launcher->config, &text));
    const enum keel_status status = keel_file_replace(path, text, strlen(text), 0666);
    keel_free(text);
    return status;
}

static enum keel_status read_state(char *text, const char *path, uint32_t ranks, uint64_t *first_step,
                                   uint64_t *past_epoch, uint64_t *plans)
{
    char *at = text;
    *first_step = strtoull(at, &at, 10);
    *past_epoch = strtoull(at, &at, 10);
    bool fine = *at == '\n' && strtoull(at, &at, 10) == ranks && *at == '\n';
    for (uint32_t i = 0; i <= ranks && fine; i++) {
        plans[i] = strtoull(at, &at, 16);
        fine = *at == '\n';
    }
    return fine ? KEEL_OK
                : keel_fail(KEEL_CORRUPT, "%s: is damaged, so that nobody can take the run over", path);
}

enum keel_status keel_launch_read_state(const char *directory, uint32_t ranks, uint64_t *first_step,
                                        uint64_t *past_epoch, uint64_t *plans)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_ASSERT(ranks <= KEEL_MEMBERS_MAX);
    KEEL_TRY(keel_path_join(path, directory, "leader.state"));
    KEEL_TRY(keel_file_read(path, STATE_BYTES, &text, &bytes));
    const enum keel_status status = read_state(text, path, ranks, first_step, past_epoch, plans);
    keel_free(text);
    return status;
}

/* ---- locks ---- */

/* Who leads, in the locks of the directory; with other hosts nobody takes over, and the processes are all
 * there is to say. */
static struct keel_lock_words own_words(const struct keel_launcher *launcher)
{
    const bool local = keel_launcher_is_local(launcher);
    return (struct keel_lock_words){.pid = (long)getpid(),
                                    .incarnation = local ? launcher->incarnation : 0,
                                    .run = local ? launcher->run : 0};
}

enum keel_status keel_local_begin(struct keel_launcher *launcher)
{
    const struct keel_launch_config *config = launcher->config;
    const struct keel_lock_words words = own_words(launcher), holder = {.pid = words.pid};
    KEEL_TRY(keel_lock_claim(config->locks.leader_fd, "leader.lock"));
    KEEL_TRY(keel_lock_claim(config->locks.run_fd, "run.lock"));
    if (config->take_over == NULL)
        KEEL_TRY(write_state(launcher));
    KEEL_TRY(keel_lock_write(config->locks.run_fd, &holder, "run.lock"));
    return keel_lock_write(config->locks.leader_fd, &words, "leader.lock");
}

enum keel_status keel_local_keep_locks(struct keel_launcher *launcher)
{
    const struct keel_launch_locks *locks = &launcher->config->locks;
    const struct keel_lock_words words = own_words(launcher), holder = {.pid = words.pid};
    char path[KEEL_PATH_BYTES];
    KEEL_TRY(keel_path_join(path, launcher->config->directory, "leader.lock"));
    KEEL_TRY(keel_lock_keep(locks->leader_fd, &words, path));
    KEEL_TRY(keel_path_join(path, launcher->config->directory, "run.lock"));
    KEEL_TRY(keel_lock_keep(locks->run_fd, &holder, path));
    KEEL_TRY(keel_path_join(path, launcher->config->directory, "leader.state"));
    return !keel_launcher_is_local(launcher) || keel_path_exists(path) ? KEEL_OK : write_state(launcher);
}

/* Somebody is the agent of this node, and nobody here knows it: an earlier leader was killed as it started
 * it. */
static enum keel_status end_unknown(const char *path)
{
    struct keel_process process;
    if (keel_lock_find(path, &process) == KEEL_OK) {
        (void)keel_process_signal(&process, SIGKILL);
        keel_process_close(&process);
    }
    return keel_fail(KEEL_BUSY, "%s: another agent of this node still ends", path);
}

/* ---- starting one ---- */

static enum keel_status start(struct keel_launcher *launcher, uint16_t node, int lock_fd)
{
    const struct keel_launch_config *config = launcher->config;
    struct keel_launched_agent *agent = &launcher->agents[node];
    char node_text[12], incarnation_text[12], run_text[20], place[KEEL_PLACE_BYTES];
    snprintf(node_text, sizeof node_text, "%u", node);
    snprintf(incarnation_text, sizeof incarnation_text, "%" PRIu32, agent->incarnation);
    snprintf(run_text, sizeof run_text, "%016" PRIx64, launcher->run);
    keel_mailbox_place(launcher->mailbox, place);
    char *argv[AGENT_ARGS + KEEL_PASSED_ON_MAX] = {launcher->self,
                                                   "agent",
                                                   (char *)config->job_path,
                                                   "--dir",
                                                   (char *)config->directory,
                                                   "--node",
                                                   node_text,
                                                   "--launcher",
                                                   place,
                                                   "--run",
                                                   run_text,
                                                   "--incarnation",
                                                   incarnation_text};
    uint32_t count = 13;
    for (uint32_t i = 0; i < config->passed_on_count; i++)
        argv[count++] = (char *)config->passed_on[i];
    if (config->resume != NULL) {
        argv[count++] = "--resume";
        argv[count++] = (char *)config->resume;
    }
    KEEL_ASSERT(count < sizeof argv / sizeof argv[0]);
    const int kept[KEEL_AGENT_FDS_END - KEEL_AGENT_RUN_FD] = {config->locks.run_fd,
                                                              keel_mailbox_fd(launcher->mailbox), lock_fd};
    return keel_process_spawn_apart(argv, kept, KEEL_AGENT_FDS_END - KEEL_AGENT_RUN_FD, false,
                                    &agent->process);
}

enum keel_status keel_local_spawn(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation)
{
    struct keel_launched_agent *agent = &launcher->agents[node];
    char path[KEEL_PATH_BYTES];
    int lock_fd;
    KEEL_TRY(keel_lock_agent_path(launcher->config->directory, node, path));
    enum keel_status status = keel_lock_take(path, true, &lock_fd);
    if (status == KEEL_BUSY)
        return end_unknown(path);
    KEEL_TRY(status);
    /* Of one that ended under another leader the node knows nothing. */
    agent->incarnation = incarnation > agent->incarnation ? incarnation : agent->incarnation + 1;
    const struct keel_lock_words nobody = {.incarnation = agent->incarnation, .run = launcher->run};
    status = keel_lock_write(lock_fd, &nobody, path);
    if (status == KEEL_OK)
        status = start(launcher, node, lock_fd);
    keel_file_unlock(lock_fd); /* the agent has it */
    if (status == KEEL_OK)
        keel_launcher_await(launcher, node);
    return status;
}

/* ---- taking over ---- */

static enum keel_status find(const char *path, struct keel_process *out)
{
    const uint64_t until_ns = keel_deadline_after_ns(name_grace_ns);
    enum keel_status status;
    while ((status = keel_lock_find(path, out)) == KEEL_BUSY && keel_remaining_ns(until_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(name_look_ns));
    return status;
}

void keel_local_adopt(struct keel_launcher *launcher)
{
    for (uint16_t node = 1; node < launcher->node_count; node++) {
        struct keel_launched_agent *agent = &launcher->agents[node];
        struct keel_lock_words words;
        char path[KEEL_PATH_BYTES];
        if (keel_lock_agent_path(launcher->config->directory, node, path) != KEEL_OK)
            continue;
        if (find(path, &agent->process) == KEEL_OK)
            keel_launcher_await(launcher, node);
        (void)keel_lock_read(path, &words); /* also of one that is gone */
        agent->incarnation = words.run == launcher->run ? words.incarnation : 0;
    }
}

bool keel_local_ended(const struct keel_launcher *launcher, uint16_t node)
{
    char path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    return keel_lock_agent_path(launcher->config->directory, node, path) == KEEL_OK &&
           !keel_lock_read(path, &words);
}
