/* launcher.h - the process that holds a run together.
 *
 * The launcher is node 0: it holds the register with the view, starts an agent per node (or has people, ssh
 * or Slurm start them on other hosts, and lets them in: gate.h, hosts.h), delivers committed steps and what
 * happened, commits snapshots, and ends the run. Training itself does not wait for it. When it dies
 * one of its agents starts another in its place, which takes the run over as it is (succession.h). The agents
 * of other hosts (cluster.launch) end their workers then, and the same command goes on from the newest
 * snapshot. */
#ifndef KEEL_LAUNCHER_H
#define KEEL_LAUNCHER_H

#include "committer.h"
#include "gate.h"
#include "worker_link.h"
#include <keel/job.h>
#include <keel/node.h>
#include <keel/process.h>

/* What the launcher tells its caller; all are set, called from the loop, and must not block for long. */
struct keel_launch_report {
    void *context;
    /* As in struct keel_env. */
    void (*step)(void *context, const struct keel_step_record *record);
    /* Steps that were committed, of which `step` will not be called: what waited to be told was too much. */
    void (*hole)(void *context, uint64_t first, uint64_t last);
    void (*mismatch)(void *context, const struct keel_step_record *a, const struct keel_step_record *b);
    void (*view)(void *context, const struct keel_view *old_view, const struct keel_view *new_view,
                 enum keel_cause cause, uint64_t alive_ns, uint64_t evidence_ns);
    void (*shortage)(void *context, uint16_t ranks, uint16_t fewest);
    void (*drain)(void *context, uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest);
    void (*note)(void *context, uint16_t node, uint8_t local, const uint8_t *data, uint32_t bytes);
    /* A snapshot was committed, or was not (status, detail); the run goes on either way. */
    void (*snapshot)(void *context, const struct keel_committed *snapshot);
    /* The agent of a node was killed or failed. */
    void (*agent_exit)(void *context, uint16_t node, uint32_t incarnation,
                       const struct keel_process_end *end);
    /* full: a view change waits because the disk is full, and `detail` names the file. Not full: it goes on.
     */
    void (*room)(void *context, bool full, const char *detail);
    /* A datagram that does not belong to the run was dropped; `total` so far; ever more seldom. */
    void (*stranger)(void *context, const char *place, const char *reason, uint64_t total);
    /* Of a run whose agents dial in: who came, went, or was refused; and a line for people, of what they are
     * to do or to know. */
    void (*agent)(void *context, const struct keel_gate_news *news);
    void (*tell)(void *context, const char *text);
    /* True: the run is to be ended in order, as by a signal. NULL: never. */
    bool (*stop)(void *context);
    /* Where others may lead (cluster.holders): what the next one must know of the steps so far, at most
     * KEEL_PAST_BYTES_MAX of it into `out`, and of which step that is, 0: nothing. Then `learn` gives it to
     * who leads next, before any step. NULL: nothing is to be known. */
    uint64_t (*past)(void *context, uint8_t *out, uint32_t *bytes);
    void (*learn)(void *context, const uint8_t *data, uint32_t bytes);
    /* Make durable what was told of steps: a snapshot is committed behind that, so that no resume leaves a
     * hole. On the committer's thread, may block; what fails fails the snapshot. NULL: nothing to do. */
    enum keel_status (*settle)(void *context, uint64_t step);
};

/* Of a directory (run_locks.h), by descriptor; -1: not had. */
struct keel_launch_locks {
    int run_fd, leader_fd;
};

/* A run on this host whose launcher ended, handed over by one of its agents (succession.h): agents and
 * workers live on. */
struct keel_take_over {
    uint64_t run;         /* its number */
    uint32_t incarnation; /* of the launcher that takes over: larger than of any before */
    int socket;           /* of the one before; goes over to the launcher */
    bool ended;           /* it had told agents how the run ended, and that is all that is left: */
    enum keel_status status;
    const char *detail;
};

struct keel_launch_config {
    const struct keel_job *job;
    const char *job_path;  /* the job as agents and workers load it: DIR/job.conf, written by the caller */
    const char *directory; /* of the run; exists */
    const char *identity;  /* keel_job_identity, for manifests */
    const uint64_t *plans; /* by ranks, as in struct keel_node_config; of job->ranks and one */
    const char *metadata;  /* JSON object for manifests; NULL is {} */
    const char *const *passed_on;   /* options of `keel worker` and their values, one after the other */
    uint32_t passed_on_count;       /* at most KEEL_PASSED_BY_USER_MAX */
    const char *resume;             /* handed to workers as --resume; NULL: nothing */
    uint64_t first_step;            /* steps before this one are not reported */
    uint64_t past_epoch;            /* as in struct keel_node_config */
    uint64_t kept_step;             /* of a run that is taken over: newest of which a snapshot is committed */
    struct keel_launch_locks locks; /* of the directory; agents of this host share the first */
    const struct keel_take_over *take_over; /* NULL: the run is begun */
    struct keel_launch_report report;
    bool *left;      /* becomes true when a run that was to be taken over could not be: its processes live on,
                        and another may try; may be NULL */
    bool *signalled; /* becomes true when a signal asked for the end, and not the caller's `stop` alone; may
                        be NULL */
    bool *unsaved;   /* becomes true when the end came before all that was to be saved was: the store hangs,
                        or steps are longer than the wait for who stops; may be NULL */
};

/* One run per directory: lock it before anything in it is opened or written. Its agents share the lock, so
 * that it goes with the last of its processes, however they end. BUSY names the process that leads. */
enum keel_status keel_launch_lock(const char *directory, struct keel_launch_locks *out);
void keel_launch_unlock(struct keel_launch_locks *locks);

/* What the launcher that began a run left to who takes it over: plans of 0 .. ranks. NOT_FOUND, CORRUPT. */
enum keel_status keel_launch_read_state(const char *directory, uint32_t ranks, uint64_t *first_step,
                                        uint64_t *past_epoch, uint64_t *plans);

/* Does a process run in the directory now? Writes nothing there. */
bool keel_launch_is_locked(const char *directory);

/* Hold SIGINT, SIGTERM and SIGHUP back until keel_launch takes them, so that a run is ended in order however
 * early it is asked to; and take a reader of our output that goes away as no reason to end. Call it when the
 * lock is held. */
void keel_launch_hold_signals(void);

/* Run the job to its end, in a directory that the caller has locked. Blocks; call from the main thread;
 * SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) are taken over meanwhile: the first ends
 * the run in order (INTERRUPTED), another one, a quarter of a second later or more, kills it (INTERRUPTED
 * too). OK: all steps are done. What else ended the run comes as its status, with the detail of who decided
 * it. No process of the run is left. */
enum keel_status keel_launch(const struct keel_launch_config *config);

#endif
