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
    node->run = lead->words.run;
    lead->leading = (struct keel_leading){.open = open_all};
    lead->lock_fd = -1;
    if (gethostname(lead->words.host, sizeof lead->words.host - 1) != 0)
        lead->words.host[0] = '\0';
    KEEL_TRY(read_identity(lead));
    KEEL_TRY(keel_alloc(job->ranks + 1, sizeof *lead->plans, &lead->plans));
    KEEL_TRY(
        keel_launch_read_state(directory, job->ranks, &node->first_step, &node->past_epoch, lead->plans));
    node->plans = lead->plans;
    return hold_state(lead, keep);
}

/* ---- leading ------------------------------------------------------------------------------------------- */

/* On the committer's thread. */
static enum keel_status open_store(void *context, struct keel_store **out)
{
    struct keel_agent_lead *lead = context;
    const struct keel_store_config store = {.root = lead->store_path,
                                            .run = lead->job->name,
                                            .create = true,
                                            .key_file = keel_job_key_file(lead->job)};
    KEEL_TRY(keel_store_open(&store, &lead->store));
    *out = lead->store;
    return KEEL_OK;
}

static enum keel_status settle(void *context, uint64_t step)
{
    const struct keel_agent_lead *lead = context;
    return lead->report.settle(lead->report.context, step);
}

/* On the teller's thread, as all from here to look. */
static enum keel_status open_words(void *context, struct keel_launch_report *out)
{
    struct keel_agent_lead *lead = context;
    char folder[KEEL_PATH_BYTES];
    KEEL_TRY(keel_store_check(lead->store_path, lead->words.run));
    snprintf(lead->words.folder, sizeof lead->words.folder, "%016" PRIx64 "-%u", keel_wall_ns(),
             lead->words.node);
    KEEL_TRY(keel_remote_leader_begin(lead->store_path, &lead->words));
    lead->says_so = true;
    KEEL_TRY(keel_remote_leader_path(lead->store_path, lead->words.folder, folder));
    KEEL_TRY(lead->output->open(folder, lead->job, lead->heard_ns, out));
    keel_log(KEEL_LOG_WARN, "this node leads the run: its lines go to %s/" KEEL_REMOTE_LEADER_FOLDER "/%s",
             lead->store_path, lead->words.folder);
    return KEEL_OK;
}

/* Another run's store ends it at once. One that cannot be read (its server starts again) is looked at again:
 * the others would find no more. */
static enum keel_status check_store(struct keel_agent_lead *lead)
{
    enum { BLIND_MAX = 10 }; /* five timeouts, as without a leader */
    const enum keel_status found = keel_store_check(lead->store_path, lead->words.run);
    lead->blind = found == KEEL_NOT_FOUND ? lead->blind + 1 : 0;
    if (lead->blind == 1)
        keel_log(KEEL_LOG_WARN, "%s", keel_detail());
    return lead->blind > 0 && lead->blind < BLIND_MAX ? KEEL_OK : found;
}

/* Say who leads. */
static enum keel_status look(void *context)
{
    struct keel_agent_lead *lead = context;
    const bool leads = atomic_load(&lead->leads_now);
    if (!leads && lead->says_so)
        keel_remote_leader_end(lead->store_path, &lead->words);
    if (leads && !lead->says_so)
        (void)keel_remote_leader_begin(lead->store_path, &lead->words); /* another may have led between */
    lead->says_so = leads;
    if (!leads)
        return KEEL_OK;
    KEEL_TRY(check_store(lead));
    keel_remote_leader_touch(lead->store_path, &lead->words);
    return KEEL_OK;
}

static enum keel_status begin_to_tell(struct keel_agent_lead *lead)
{
    const struct keel_job *job = lead->job;
    if (lead->output == NULL)
        return keel_fail(KEEL_UNSUPPORTED, "this program cannot lead a run");
    const struct keel_teller_config teller = {.context = lead,
                                              .open = open_words,
                                              .look = look,
                                              .look_ns =
                                                  (uint64_t)(job->timeout_s * (double)KEEL_NS_PER_S) / 2};
    atomic_store(&lead->leads_now, true);
    KEEL_TRY(keel_teller_open(&teller, &lead->teller));
    lead->report = keel_teller_report(lead->teller);
    lead->leading.report = &lead->report;
    const struct keel_committer_config committer = {.identity = lead->identity,
                                                    .retention = keel_job_retention(job),
                                                    .allow_nonfinite = job->snapshot_allow_nonfinite,
                                                    .open =
                                                        keel_job_has_local_snapshots(job) ? NULL : open_store,
                                                    .settle = settle,
                                                    .context = lead};
    return keel_committer_open(&committer, &lead->leading.committer);
}

/* Once: what fails ends the agent in its next turn. */
static bool open_all(struct keel_leading *leading)
{
    struct keel_agent_lead *lead = (struct keel_agent_lead *)leading;
    if (lead->status == KEEL_OK && lead->teller == NULL) {
        lead->status = begin_to_tell(lead);
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
    atomic_store(&lead->leads_now, leads);
    if (leads)
        (void)open_all(&lead->leading);
    else
        keel_log(KEEL_LOG_WARN, "this node leads the run no more");
}

/* Of who tells: where the run ends, and what the next one must know that leads. */
static void hear_teller(struct keel_agent_lead *lead)
{
    struct keel_teller_words words;
    if (!keel_teller_take(lead->teller, &words))
        return;
    if (words.past_bytes > 0)
        keel_control_step(lead->control, &(struct keel_node_event){.kind = KEEL_EVENT_PAST,
                                                                   .value = words.past_step,
                                                                   .data = words.past,
                                                                   .bytes = words.past_bytes});
    if (words.stop)
        keel_control_step(lead->control, &(struct keel_node_event){.kind = KEEL_EVENT_STOP});
}

enum keel_status keel_agent_lead_turn(struct keel_agent_lead *lead)
{
    if (lead->leading.report != NULL)
        keel_leading_report_snapshots(&lead->leading);
    begin_or_end(lead, keel_node_leader(lead->control->node) == lead->words.node);
    if (lead->teller != NULL && lead->status == KEEL_OK) {
        lead->status = keel_teller_failure(lead->teller);
        snprintf(lead->detail, sizeof lead->detail, "%s", lead->status != KEEL_OK ? keel_detail() : "");
    }
    if (lead->status == KEEL_OK && lead->leads)
        hear_teller(lead);
    return lead->status == KEEL_OK ? KEEL_OK : keel_fail(lead->status, "%s", lead->detail);
}

/* ---- the end ------------------------------------------------------------------------------------------- */

/* From the end on for both threads: what hangs there is the same store. One that only committed for so long
 * has its lines still to write. */
static const uint64_t drain_ns = KEEL_LEADING_DRAIN_S * KEEL_NS_PER_S;
static const uint64_t last_lines_ns = 5 * KEEL_NS_PER_S;

static void close_committer(struct keel_agent_lead *lead, uint64_t deadline_ns)
{
    if (lead->leading.committer == NULL)
        return;
    if (!keel_leading_drain(&lead->leading, deadline_ns)) {
        lead->abandoned = true;
        return;
    }
    keel_committer_close(lead->leading.committer);
    lead->leading.committer = NULL;
}

/* Of a run that was stopped: the newest snapshot, which another may have committed. */
static uint64_t find_kept(struct keel_agent_lead *lead)
{
    struct keel_snapshot_info newest = {.step = 0};
    struct keel_store *store;
    uint32_t count = 0;
    if (!keel_job_takes_snapshots(lead->job) || keel_job_has_local_snapshots(lead->job) ||
        (lead->store == NULL && open_store(lead, &store) != KEEL_OK) ||
        keel_store_list(lead->store, &newest, 1, &count, NULL) != KEEL_OK)
        return UINT64_MAX;
    return newest.step;
}

enum keel_status keel_agent_lead_end(struct keel_agent_lead *lead, bool deserted, enum keel_status status,
                                     char detail[KEEL_DETAIL_BYTES])
{
    const bool leads = lead->leads && !deserted;
    if (!deserted && lead->lock_fd >= 0) {
        unlink(lead->state_path);
        unlink(lead->lock_path);
    }
    if (lead->teller == NULL)
        return status;
    const uint64_t deadline_ns = keel_deadline_after_ns(drain_ns);
    close_committer(lead, deadline_ns);
    const uint64_t least_ns = keel_deadline_after_ns(last_lines_ns);
    lead->leading.report = NULL;
    if (!keel_teller_drain(lead->teller, deadline_ns > least_ns ? deadline_ns : least_ns)) {
        keel_log(KEEL_LOG_ERROR, "the store hangs: the last lines of this node are not there");
        lead->abandoned = true;
        lead->teller = NULL;
        return status;
    }
    const struct keel_launch_report output = *keel_teller_opened(lead->teller);
    keel_teller_close(lead->teller);
    lead->teller = NULL;
    const bool stopped = leads && status == KEEL_INTERRUPTED && strcmp(detail, KEEL_NODE_STOPPED) == 0;
    const uint64_t kept_step = stopped && !lead->abandoned ? find_kept(lead) : UINT64_MAX;
    if (output.context != NULL)
        status = lead->output->close(output.context, leads, kept_step, status, detail);
    if (leads)
        keel_remote_leader_end(lead->store_path, &lead->words);
    return status;
}

void keel_agent_lead_fini(struct keel_agent_lead *lead)
{
    char none[KEEL_DETAIL_BYTES] = "";
    if (lead->teller != NULL) /* it could not begin */
        (void)keel_agent_lead_end(lead, true, KEEL_OK, none);
    if (lead->abandoned)
        return;
    keel_committer_close(lead->leading.committer);
    keel_store_close(lead->store);
    if (lead->lock_fd >= 0)
        keel_file_unlock(lead->lock_fd);
    keel_free(lead->place);
    keel_free(lead->plans);
    *lead = (struct keel_agent_lead){.output = lead->output, .lock_fd = -1};
}
