/* succession.c - see succession.h. */
#include "succession.h"

#include "worker_link.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    BEATS_SILENT = 2,   /* then it is asked whether somebody leads */
    TIMEOUTS_HELD = 3,  /* so long who leads may be silent */
    HASTY_TIMEOUTS = 2, /* who lives no longer, */
    HASTY_MAX = 10,     /* so many in a row, cannot lead: the agent sees to no more */
    ARGS = 14
};

static bool lock_path(const struct keel_succession *succession, char out[KEEL_PATH_BYTES])
{
    return keel_path_join(out, succession->directory, "leader.lock") == KEEL_OK;
}

/* Watched from now on, if it is on this host and lives. */
static void watch(struct keel_succession *succession, const struct keel_lock_words *words)
{
    succession->words = *words;
    if (succession->leader.pidfd >= 0)
        keel_process_close(&succession->leader);
    if (keel_process_find((pid_t)words->pid, &succession->leader) != KEEL_OK)
        succession->leader = (struct keel_process){.pid = (pid_t)words->pid, .pidfd = -1};
}

enum keel_status keel_succession_begin(struct keel_succession *succession, uint16_t node,
                                       uint32_t incarnation)
{
    char path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    const struct keel_lock_words own = {
        .pid = (long)getpid(), .incarnation = incarnation, .run = succession->run};
    succession->started.pidfd = succession->leader.pidfd = -1;
    succession->change_ns = keel_now_ns();
    succession->incarnation = incarnation;
    succession->node = node;
    if (lock_path(succession, path) && keel_lock_read(path, &words))
        watch(succession, &words);
    (void)keel_lock_touched(path, &succession->touched_ns);
    KEEL_TRY(keel_lock_agent_path(succession->directory, node, path));
    KEEL_TRY(keel_lock_claim(KEEL_AGENT_LOCK_FD, path));
    return keel_lock_write(KEEL_AGENT_LOCK_FD, &own, path);
}

static void reap(struct keel_succession *succession)
{
    struct keel_process_end end;
    if (succession->started.pidfd >= 0 &&
        keel_process_wait(&succession->started, keel_now_ns(), &end) != KEEL_TIMEOUT)
        keel_process_close(&succession->started);
}

struct last_words { /* how the run ended, from who led; NULL: it goes on */
    const char *status, *detail;
};

static enum keel_status start(struct keel_succession *succession, int lock_fd,
                              const struct keel_lock_words *words, uint64_t heard_ns,
                              const struct last_words *last)
{
    char run[20], incarnation[12], heard[24];
    char *argv[ARGS + KEEL_PASSED_ON_MAX] = {(char *)succession->self,
                                             "lead",
                                             (char *)succession->directory,
                                             "--run",
                                             run,
                                             "--incarnation",
                                             incarnation,
                                             "--heard",
                                             heard};
    uint32_t count = 9;
    snprintf(run, sizeof run, "%016" PRIx64, words->run);
    snprintf(incarnation, sizeof incarnation, "%" PRIu32, words->incarnation + 1);
    snprintf(heard, sizeof heard, "%" PRIu64, heard_ns);
    if (last != NULL) {
        argv[count++] = "--ended";
        argv[count++] = (char *)last->status;
        argv[count++] = "--detail";
        argv[count++] = (char *)last->detail;
    }
    KEEL_ASSERT(count + succession->passed_on_count < sizeof argv / sizeof argv[0]);
    memcpy(argv + count, succession->passed_on, succession->passed_on_count * sizeof argv[0]);
    const int kept[KEEL_LEAD_FDS_END - KEEL_LEAD_RUN_FD] = {KEEL_AGENT_RUN_FD, lock_fd, KEEL_AGENT_SOCKET_FD};
    if (succession->started.pidfd >= 0)
        keel_process_close(&succession->started);
    /* The locks name it at once, and a stop that comes while it starts is not to end it alone. */
    return keel_process_spawn_apart(argv, kept, KEEL_LEAD_FDS_END - KEEL_LEAD_RUN_FD, true,
                                    &succession->started);
}

static void keep(struct keel_succession *succession, int fd, const struct keel_lock_words *words,
                 const char *path)
{
    if (keel_lock_keep(fd, words, path) == KEEL_OK)
        succession->unkept = (struct keel_seldom){0};
    else if (!keel_seldom_says(&succession->unkept, keel_now_ns()))
        return;
    else if (keel_path_exists(succession->directory))
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
    else
        keel_log(KEEL_LOG_WARN,
                 "%s: the directory of the run was moved away or removed; the run goes on, but nobody can "
                 "take it over: bring it back under that name, or end the run (keel job stop, with where it "
                 "is now)",
                 keel_detail());
}

/* Of this agent: the next leader is to find it. */
static void keep_lock(struct keel_succession *succession, const struct keel_control_plane *control)
{
    char path[KEEL_PATH_BYTES];
    const struct keel_lock_words own = {
        .pid = (long)getpid(), .incarnation = succession->incarnation, .run = succession->run};
    if (!control->finished && keel_lock_agent_path(succession->directory, succession->node, path) == KEEL_OK)
        keep(succession, KEEL_AGENT_LOCK_FD, &own, path);
}

/* The lock is ours, and so nobody leads. Who reads the locks finds the new process at once. */
static void replace(struct keel_succession *succession, int lock_fd, uint64_t heard_ns,
                    const struct last_words *last)
{
    char path[KEEL_PATH_BYTES], run_path[KEEL_PATH_BYTES];
    struct keel_lock_words words;
    if (!lock_path(succession, path) ||
        keel_path_join(run_path, succession->directory, "run.lock") != KEEL_OK)
        return;
    if (!keel_lock_read(path, &words) && words.run == 0) /* the file was removed, and this one is new */
        words = succession->words;
    if (words.pid == 0 || words.run != succession->run)
        return;
    keep(succession, KEEL_AGENT_RUN_FD, &(struct keel_lock_words){.pid = words.pid},
         run_path); /* the leader made it anew */
    if (start(succession, lock_fd, &words, heard_ns, last) != KEEL_OK) {
        if (keel_seldom_says(&succession->vacant, keel_now_ns()))
            keel_log(KEEL_LOG_ERROR, "process %ld led and has ended, and none can take its place: %s",
                     words.pid, keel_detail());
        return;
    }
    keel_log(KEEL_LOG_WARN, "process %ld led and has ended: process %ld takes its place", words.pid,
             (long)succession->started.pid);
    words.pid = (long)succession->started.pid;
    words.incarnation++;
    const struct keel_lock_words holder = {.pid = words.pid};
    if (keel_lock_write(lock_fd, &words, path) != KEEL_OK ||
        keel_lock_write(KEEL_AGENT_RUN_FD, &holder, "run.lock") != KEEL_OK)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
}

/* Somebody has the lock. Another than before has as long to be heard as any; one that was silent for too long
 * is in the way. */
static void look_at_leader(struct keel_succession *succession, struct keel_control_plane *control,
                           const char *path, uint64_t silent_ns)
{
    struct keel_lock_words words;
    struct keel_process process;
    if (!keel_lock_read(path, &words))
        return;
    if (words.run != succession->run) /* somebody began another run here: this one ends */
        return;
    if (words.pid != (long)succession->leader.pid) {
        const uint64_t now_ns = keel_now_ns();
        const bool hasty = now_ns - succession->change_ns < HASTY_TIMEOUTS * succession->timeout_ns;
        succession->hasty = hasty ? succession->hasty + 1 : 0;
        watch(succession, &words);
        (void)keel_lock_touched(path, &succession->touched_ns);
        keel_control_step(control, &(struct keel_node_event){.kind = KEEL_EVENT_LEADER});
        succession->change_ns = keel_now_ns(); /* who is heard later leads */
    } else if (keel_lock_touched(path, &succession->touched_ns)) {
        keel_control_step(control, &(struct keel_node_event){.kind = KEEL_EVENT_LEADER});
    } else if (silent_ns >= TIMEOUTS_HELD * succession->timeout_ns &&
               keel_lock_find(path, &process) == KEEL_OK) {
        keel_log(KEEL_LOG_WARN, "process %ld leads but is silent for %.1f s: killed", words.pid,
                 (double)silent_ns / (double)KEEL_NS_PER_S);
        (void)keel_process_signal(&process, SIGKILL);
        keel_process_close(&process);
    }
}

void keel_succession_turn(struct keel_succession *succession, struct keel_control_plane *control, bool gone)
{
    char path[KEEL_PATH_BYTES];
    int fd;
    const uint64_t beat_ns = succession->timeout_ns / 10, now_ns = keel_now_ns();
    const uint64_t heard_ns = keel_node_leader_ns(control->node);
    const uint64_t silent_ns = now_ns > heard_ns ? now_ns - heard_ns : 0;
    reap(succession);
    if (now_ns >= succession->keep_ns) {
        succession->keep_ns = now_ns + beat_ns;
        keep_lock(succession, control);
    }
    if (gone) { /* what one could not begin for may pass */
        keel_process_close(&succession->leader);
        succession->look_ns = now_ns + (heard_ns > succession->change_ns ? 0 : succession->hasty * beat_ns);
    }
    const bool doubt = silent_ns >= BEATS_SILENT * beat_ns || succession->leader.pidfd < 0;
    const bool due = doubt && now_ns >= succession->look_ns;
    if (control->finished || !due || succession->hasty > HASTY_MAX || !lock_path(succession, path))
        return;
    succession->look_ns = now_ns + beat_ns;
    if (keel_lock_take(path, false, &fd) == KEEL_OK) {
        replace(succession, fd, heard_ns, NULL);
        keel_file_unlock(fd); /* what was started has it */
    }
    look_at_leader(succession, control, path, silent_ns);
}

void keel_succession_leave(const struct keel_succession *succession)
{
    const struct keel_lock_words ended = {.incarnation = succession->incarnation, .run = succession->run};
    (void)keel_lock_write(KEEL_AGENT_LOCK_FD, &ended, "agent.lock");
}

void keel_succession_end(struct keel_succession *succession, enum keel_status status, const char *detail)
{
    char path[KEEL_PATH_BYTES];
    int fd;
    const struct last_words last = {.status = keel_status_name(status), .detail = detail};
    keel_succession_leave(succession);
    if (!lock_path(succession, path) || keel_lock_take(path, false, &fd) != KEEL_OK)
        return;
    replace(succession, fd, keel_now_ns(), &last);
    keel_file_unlock(fd);
}
