/* agent_lead.c - see agent_lead.h. */
#include "agent_lead.h"

#include "dial.h"
#include "launcher.h"
#include "run_locks.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Static_assert(offsetof(struct keel_agent_lead, leading) == 0, "found by its first field");

/* ---- what it has before it leads ----------------------------------------------------------------------- */

/* What a holder promised is kept behind the end of its process, so that the next one of this node on this
 * host knows it; one on another host, or beside a process that hangs, finds nothing, and abstains (node.c).
 */
static enum keel_status hold_state(struct keel_agent_lead *lead, const char *keep)
{
    char name[64];
    snprintf(name, sizeof name, "keel-%016" PRIx64 "-node-%u.lock", lead->words.run, lead->words.node);
    KEEL_TRY(keel_path_join(lead->lock_path, keep, name));
    snprintf(name, sizeof name, "keel-%016" PRIx64 "-node-%u.state", lead->words.run, lead->words.node);
    KEEL_TRY(keel_path_join(lead->state_path, keep, name));
    const enum keel_status status = keel_lock_take(lead->lock_path, true, &lead->lock_fd);
    if (status != KEEL_BUSY)
        return status;
    keel_log(KEEL_LOG_WARN, "%s: another process has it; this one begins without what it knew",
             lead->state_path);
    KEEL_TRY(keel_path_join(lead->state_path, lead->directory, "register.state"));
    return keel_remove_tree(lead->state_path); /* one may be there of another run, in --dir */
}

static enum keel_status read_identity(struct keel_agent_lead *lead)
{
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    KEEL_TRY(keel_path_join(path, lead->directory, "identity"));
    KEEL_TRY(keel_file_read(path, KEEL_IDENTITY_BYTES, &text, &bytes));
    snprintf(lead->identity, sizeof lead->identity, "%s", text);
    keel_free(text);
    return KEEL_OK;
}

static bool open_all(struct keel_leading *leading);

enum keel_status keel_agent_lead_init(struct keel_agent_lead *lead, const struct keel_job *job,
                                      const char *directory, const char *keep, struct keel_node_config *node)
{
    lead->job = job;
    lead->directory = directory;
    lead->words.node = node->node;
    lead->words.pid = (long)getpid();
    lead->leading = (struct keel_leading){.open = open_all};
    lead->lock_fd = -1;
    if (gethostname(lead->words.host, sizeof lead->words.host - 1) != 0)
        lead->words.host[0] = '\0';
    KEEL_TRY(read_identity(lead));
    KEEL_TRY(keel_alloc(job->ranks + 1, sizeof *lead->plans, &lead->plans));
    KEEL_TRY(keel_launch_read_state(directory, job->ranks, &node->first_step, lead->plans));
    node->plans = lead->plans;
    return hold_state(lead, keep);
}

/* ---- leading ------------------------------------------------------------------------------------------- */

static enum keel_status open_committer(struct keel_agent_lead *lead)
{
    const struct keel_job *job = lead->job;
    const struct keel_store_config store = {
        .root = lead->store_path, .run = job->name, .create = true, .key_file = keel_job_key_file(job)};
    KEEL_TRY(keel_store_open(&store, &lead->store));
    const struct keel_committer_config config = {.store = lead->store,
                                                 .identity = lead->identity,
                                                 .retention = keel_job_retention(job),
                                                 .allow_nonfinite = job->snapshot_allow_nonfinite,
                                                 .settle = lead->report.settle,
                                                 .context = lead->report.context};
    return keel_committer_open(&config, &lead->leading.committer);
}

static enum keel_status try_open(struct keel_agent_lead *lead)
{
    char folder[KEEL_PATH_BYTES];
    if (lead->output == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "this program cannot lead a run");
    KEEL_TRY(keel_store_check(lead->store_path, lead->words.run));
    snprintf(lead->words.folder, sizeof lead->words.folder, "%016" PRIx64 "-%u", keel_wall_ns(),
             lead->words.node);
    KEEL_TRY(keel_remote_leader_begin(lead->store_path, &lead->words));
    KEEL_TRY(keel_remote_leader_path(lead->store_path, lead->words.folder, folder));
    KEEL_TRY(lead->output->open(folder, lead->job, lead->heard_ns, &lead->report));
    lead->leading.report = &lead->report;
    return open_committer(lead);
}

/* Once: what fails ends the agent in its next turn. */
static bool open_all(struct keel_leading *leading)
{
    struct keel_agent_lead *lead = (struct keel_agent_lead *)leading;
    if (lead->status == KEEL_OK && leading->report == NULL) {
        lead->status = try_open(lead);
        snprintf(lead->detail, sizeof lead->detail, "%s", lead->status != KEEL_OK ? keel_detail() : "");
    }
    return leading->report != NULL && lead->status == KEEL_OK;
}

/* It stands for leader. */
static void *effect_lead_place(void *context, size_t bytes)
{
    struct keel_control_plane *control = context;
    struct keel_agent_lead *lead = (struct keel_agent_lead *)control->leading;
    if (lead->place == NULL && keel_alloc(1, bytes, &lead->place) != KEEL_OK)
        return NULL;
    lead->heard_ns = keel_node_leader_ns(control->node);
    return lead->place;
}

void keel_agent_lead_fill(struct keel_env *effects)
{
    keel_leading_fill(effects);
    effects->lead_place = effect_lead_place;
}

int keel_agent_lead_fd(const struct keel_agent_lead *lead)
{
    return lead->leading.committer != NULL ? keel_committer_fd(lead->leading.committer) : -1;
}

static void begin_or_end(struct keel_agent_lead *lead, bool leads)
{
    if (leads == lead->leads)
        return;
    lead->leads = leads;
    lead->look_ns = 0;
    if (leads && open_all(&lead->leading)) {
        (void)keel_remote_leader_begin(lead->store_path, &lead->words); /* another may have led between */
        keel_log(KEEL_LOG_WARN,
                 "this node leads the run: its lines go to %s/" KEEL_REMOTE_LEADER_FOLDER "/%s",
                 lead->store_path, lead->words.folder);
    } else if (!leads) {
        keel_log(KEEL_LOG_WARN, "this node leads the run no more");
        keel_remote_leader_end(lead->store_path, &lead->words);
    }
}

/* Another run's store ends it at once. One that cannot be read (its server starts again) is looked at again:
 * the others would find no more. */
static void look_at_store(struct keel_agent_lead *lead)
{
    enum { BLIND_MAX = 10 }; /* five timeouts, as without a leader */
    const enum keel_status found = keel_store_check(lead->store_path, lead->words.run);
    lead->blind = found == KEEL_NOT_FOUND ? lead->blind + 1 : 0;
    if (lead->blind == 1)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
    if (found == KEEL_OK || (lead->blind > 0 && lead->blind < BLIND_MAX))
        return;
    lead->status = found;
    snprintf(lead->detail, sizeof lead->detail, "%s", keel_detail());
}

enum keel_status keel_agent_lead_turn(struct keel_agent_lead *lead)
{
    const uint64_t half_ns = (uint64_t)(lead->job->timeout_s * (double)KEEL_NS_PER_S) / 2;
    if (lead->leading.report != NULL)
        keel_leading_report_snapshots(&lead->leading);
    begin_or_end(lead, keel_node_leader(lead->control->node) == lead->words.node);
    if (lead->status == KEEL_OK && lead->leads && keel_remaining_ns(lead->look_ns) == 0) {
        lead->look_ns = keel_deadline_after_ns(half_ns);
        look_at_store(lead);
        keel_remote_leader_touch(lead->store_path, &lead->words);
        if (keel_remote_leader_is_to_stop(lead->store_path, lead->words.run))
            keel_control_step(lead->control, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
    }
    return lead->status == KEEL_OK ? KEEL_OK : keel_fail(lead->status, "%s", lead->detail);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static void close_committer(struct keel_agent_lead *lead)
{
    if (lead->leading.committer == NULL)
        return;
    if (!keel_leading_drain(&lead->leading)) {
        lead->store = NULL;
        return;
    }
    keel_committer_close(lead->leading.committer);
    lead->leading.committer = NULL;
}

enum keel_status keel_agent_lead_end(struct keel_agent_lead *lead, bool deserted, enum keel_status status,
                                     const char *detail)
{
    const bool leads = lead->leads && !deserted;
    if (!deserted && lead->lock_fd >= 0) {
        unlink(lead->state_path);
        unlink(lead->lock_path);
    }
    if (lead->leading.report == NULL)
        return status;
    close_committer(lead);
    lead->leading.report = NULL;
    status = lead->output->close(lead->report.context, leads, status, detail);
    if (leads)
        keel_remote_leader_end(lead->store_path, &lead->words);
    return status;
}

void keel_agent_lead_fini(struct keel_agent_lead *lead)
{
    if (lead->leading.report != NULL) /* it could not begin */
        (void)lead->output->close(lead->report.context, false, KEEL_OK, "");
    keel_committer_close(lead->leading.committer);
    keel_store_close(lead->store);
    if (lead->lock_fd >= 0)
        keel_file_unlock(lead->lock_fd);
    keel_free(lead->place);
    keel_free(lead->plans);
    *lead = (struct keel_agent_lead){.output = lead->output, .lock_fd = -1};
}
