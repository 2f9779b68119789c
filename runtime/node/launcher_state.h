/* launcher_state.h - what a launcher is inside, shared by launcher.c, launcher_local.c and launcher_remote.c.
 *
 * launcher.c owns the loop, the register, reports and snapshots; launcher_local.c the agents of this host;
 * launcher_remote.c those of others: what starts them there, the wait until they have come, the gate's
 * news; launcher_watch.c what people do in the directory meanwhile. Private to the four. */
#ifndef KEEL_LAUNCHER_STATE_H
#define KEEL_LAUNCHER_STATE_H

#include "control.h"
#include "hosts.h"
#include "launcher.h"
#include "leading.h"
#include "run_gates.h"
#include "secret.h"
#include "starters.h"
#include "stop_guard.h"
#include <signal.h>

enum { KEEL_FIRST_INCARNATION = 1 };

struct keel_launched_agent {
    struct keel_process process; /* of this host */
    uint32_t incarnation;
    bool running;
    bool unstarted; /* could not be started: to be told once the step is over */
    uint64_t joined_ns;
};

struct keel_launcher {
    const struct keel_launch_config *config;
    const struct keel_launch_report *report;
    struct keel_control_plane control;
    struct keel_mailbox *mailbox;
    struct keel_store *store;
    struct keel_leading leading; /* its committer is NULL where the job makes no snapshots */
    uint16_t leader;             /* the node that leads, as people were told last */
    uint64_t lead_ns;            /* this one does again since then; 0: it did from the start */
    uint64_t past_step;          /* of what the next one must know, as the node was told last */
    struct keel_gate *gate;      /* for agents of other hosts, and who asks something; NULL: it is closed */
    struct keel_starters *starters; /* NULL: these are, or people start them */
    struct keel_hosts hosts;
    char host_count[12]; /* as text */
    struct keel_secret secret;
    struct keel_listen listen;
    bool gathering;                         /* the run has not begun: agents are to come first */
    uint64_t gather_until_ns, remind_at_ns; /* KEEL_NEVER: people start them */
    enum keel_status gather_status;         /* why it does not begin, */
    char gather_detail[KEEL_DETAIL_BYTES];  /* in words */
    char place[KEEL_PLACE_BYTES];           /* where agents dial in */
    char store_path[KEEL_PATH_BYTES], *job_text, *state_text, *hosts_text;
    char self[KEEL_PATH_BYTES];
    uint64_t run;
    uint32_t incarnation; /* of the launcher in this run */
    int signal_fd;
    sigset_t signals_before;
    bool stopping, hurried;       /* by a signal; by a second one */
    struct keel_stop_guard guard; /* while the loop turns */
    bool full;                    /* the disk, as the caller was told last */
    int refused_code;             /* the newest exit code of an agent that ended by itself, 0 for none */
    uint64_t stopped_ns;          /* it was told to end then, */
    uint64_t heard_ns;            /* in a turn that was over then; 0: in none yet */
    uint64_t watch_ns;            /* the directory is looked at again then */
    struct keel_run_gates gates;  /* as DIR/gates has them */
    uint64_t unkept_ns;           /* since then another has our locks; 0: nobody has */
    uint16_t node_count;
    int agents_fd; /* epoll: by node, processes of agents that have ended; of thousands each is not asked */
    uint64_t look_ns; /* all agents are looked at again then, for what is due; 0: now */
    struct keel_launched_agent agents[KEEL_NODES_MAX]; /* by node; [0] is not used */
};

/* All agents are on this host. */
static inline bool keel_launcher_is_local(const struct keel_launcher *launcher)
{
    return launcher->config->job->launch == KEEL_LAUNCH_LOCAL;
}

/* launcher.c */
/* The agent of a node is gone, of this incarnation; 0: whichever it is. */
void keel_launcher_tell_exit(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation);
/* Its process runs, and is waited for from now on. */
void keel_launcher_await(struct keel_launcher *launcher, uint16_t node);

/* The run is to end, as by a signal. */
void keel_launcher_stop(struct keel_launcher *launcher);

/* launcher_watch.c */
/* Once a beat: keep the locks, and say where who leads is asked. */
void keel_launcher_watch(struct keel_launcher *launcher);
/* Of a run on this host alone: listen on loopback for who asks something. */
enum keel_status keel_launcher_open_gate(struct keel_launcher *launcher);
/* What is asked at the gate (struct keel_gate_config); `context` is the launcher. */
enum keel_status keel_launcher_take_ask(void *context, const struct keel_handover_ask *ask);
bool keel_launcher_look_at_ask(void *context, const struct keel_handover_ask *ask,
                               char why[KEEL_REASON_BYTES]);

/* launcher_local.c */
/* The contents of leader.state; the caller frees it. */
enum keel_status keel_local_state_text(const struct keel_launch_config *config, char **out);
/* The run's number is known: say in the locks who leads what. */
enum keel_status keel_local_begin(struct keel_launcher *launcher);
/* At each beat: what somebody removed of that is made anew. BUSY: another run began in the directory since.
 */
enum keel_status keel_local_keep_locks(struct keel_launcher *launcher);
/* Start the agent of a node, of this incarnation or a larger one. BUSY: one is there that is not ours; it is
 * ended. */
enum keel_status keel_local_spawn(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation);
/* Agents that the last leader started are ours from now on, those that ended since are not running. */
void keel_local_adopt(struct keel_launcher *launcher);
/* An agent of ours that was another's child said that it ends in order. */
bool keel_local_ended(const struct keel_launcher *launcher, uint16_t node);

/* launcher_remote.c */
/* Before anything is opened: can the job run on other hosts? */
enum keel_status keel_remote_check(const struct keel_job *job);
/* Listen where the mailbox does (launcher->place), which becomes the place that agents dial. BUSY: others do.
 */
enum keel_status keel_remote_open_gate(struct keel_launcher *launcher);
/* Make the store known to agents. */
enum keel_status keel_remote_name_store(struct keel_launcher *launcher, const char *root);
/* Have agents started, or tell people how; then they are gathered, until all are there and the run begins. */
enum keel_status keel_remote_begin(struct keel_launcher *launcher);
void keel_remote_gather(struct keel_launcher *launcher);
/* Let an agent of this incarnation in, and start it where that is ours to do. */
enum keel_status keel_remote_spawn(struct keel_launcher *launcher, uint16_t node, uint32_t incarnation);
void keel_remote_take_sample(const struct keel_launcher *launcher);

#endif
