/* job_snapshots.c - what a job says of its snapshots. */
#include <keel/job.h>

#include <stdlib.h>

enum { BANDWIDTH_MIN = 65536 };

bool keel_job_takes_snapshots(const struct keel_job *job)
{
    return job->snapshot_every > 0 || job->snapshot_first;
}

/* With train.patience those from the best evaluation to the newest, which has at most so many behind it. */
static uint32_t keep_last(const struct keel_job *job)
{
    const uint64_t best = job->patience > 0 ? job->patience * (job->eval_every / job->snapshot_every) + 2 : 0;
    return best <= job->snapshot_keep ? job->snapshot_keep : best < UINT32_MAX ? (uint32_t)best : UINT32_MAX;
}

struct keel_retention keel_job_retention(const struct keel_job *job)
{
    return (struct keel_retention){.keep_last = keep_last(job),
                                   .keep_every_steps = job->snapshot_keep_every,
                                   .keep_within_ns = (uint64_t)(job->snapshot_keep_within_s * 1e9)};
}

const char *keel_job_key_file(const struct keel_job *job)
{
    return job->snapshot_key_file[0] != '\0' ? job->snapshot_key_file : NULL;
}

bool keel_job_stores(const struct keel_job *job, uint64_t step)
{
    return job->snapshot_store[0] != '\0' &&
           (job->snapshot_store_every == 0 || step == job->steps || step % job->snapshot_store_every == 0);
}

/* "K+M", and nothing behind it. */
static bool read_erasure(const char *text, unsigned long *k, unsigned long *m)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    *k = strtoul(text, &end, 10);
    if (*end != '+' || end[1] < '0' || end[1] > '9')
        return false;
    *m = strtoul(end + 1, &end, 10);
    return *end == '\0' && *k >= 1 && *m >= 1 && *k <= KEEL_ERASURE_NODES_MAX &&
           *m <= KEEL_ERASURE_NODES_MAX && *k + *m <= KEEL_ERASURE_NODES_MAX;
}

bool keel_job_erasure(const struct keel_job *job, uint32_t *out_nodes, uint32_t *out_parity)
{
    unsigned long k = 0, m = 0;
    const bool some = read_erasure(job->snapshot_erasure, &k, &m);
    *out_nodes = some ? (uint32_t)(k + m) : 0;
    *out_parity = some ? (uint32_t)m : 0;
    return some;
}

/* The best evaluation is one whose weights are kept. */
static enum keel_status check_patience(const struct keel_job *job)
{
    if (job->patience == 0 && job->min_delta > 0.0F)
        return keel_fail(KEEL_INVALID, "train.min_delta = %g says nothing without train.patience",
                         (double)job->min_delta);
    if (job->patience > 0 &&
        (job->eval_every == 0 || job->snapshot_every == 0 || job->eval_every % job->snapshot_every != 0))
        return keel_fail(KEEL_INVALID,
                         "train.patience = %u: the snapshot of the best evaluation is kept, and with "
                         "train.eval_every = %llu and snapshot.every = %llu there may be none; give an "
                         "eval_every that is a multiple of snapshot.every",
                         job->patience, (unsigned long long)job->eval_every,
                         (unsigned long long)job->snapshot_every);
    return KEEL_OK;
}

static uint32_t node_count(const struct keel_job *job)
{
    return job->nodes != 0 ? job->nodes : job->ranks;
}

static enum keel_status check_erasure(const struct keel_job *job)
{
    uint32_t nodes, parity;
    if (job->snapshot_erasure[0] == '\0')
        return KEEL_OK;
    if (!keel_job_erasure(job, &nodes, &parity))
        return keel_fail(
            KEEL_INVALID,
            "snapshot.erasure = %s: K+M is wanted, such as 8+2: of 10 nodes any 2 may be lost; %d "
            "nodes at most",
            job->snapshot_erasure, KEEL_ERASURE_NODES_MAX);
    if (node_count(job) < nodes)
        return keel_fail(
            KEEL_INVALID,
            "snapshot.erasure = %s wants %u nodes, and cluster.nodes are %u: give more nodes, or "
            "smaller sets",
            job->snapshot_erasure, nodes, node_count(job));
    if (keel_job_node_count(job) > KEEL_ERASURE_NODES_MAX)
        return keel_fail(KEEL_INVALID,
                         "snapshot.erasure: of more than %d nodes it is not built yet; give snapshot.partner",
                         KEEL_ERASURE_NODES_MAX);
    return KEEL_OK;
}

static enum keel_status check_local(const struct keel_job *job)
{
    if (job->snapshot_codec == KEEL_CODEC_DELTA)
        return keel_fail(
            KEEL_INVALID,
            "snapshot.codec = delta does not go with snapshot.local, where nobody sees the snapshot "
            "that all deltas need: give codec = planes");
    const bool relative = job->snapshot_local[0] != '/';
    if (job->launch != KEEL_LAUNCH_LOCAL &&
        (relative || (job->snapshot_store[0] != '\0' && job->snapshot_store[0] != '/')))
        return keel_fail(KEEL_INVALID,
                         "snapshot.%s = %.200s: on other hosts it is found by its whole path; give one that "
                         "begins with /",
                         relative ? "local" : "store", relative ? job->snapshot_local : job->snapshot_store);
    if (job->snapshot_partner && node_count(job) < 2)
        return keel_fail(
            KEEL_INVALID,
            "snapshot.partner: one node has no other to keep its copies; give cluster.nodes = 2 or "
            "more, or leave it out");
    return KEEL_OK;
}

enum keel_status keel_job_check_snapshots(const struct keel_job *job)
{
    const bool local = keel_job_has_local_snapshots(job);
    if (job->snapshot_bandwidth_bytes_s > 0 && job->snapshot_bandwidth_bytes_s < BANDWIDTH_MIN)
        return keel_fail(KEEL_INVALID,
                         "snapshot.bandwidth_bytes_s = %llu is in bytes a second: no snapshot would be done "
                         "in time; give %d or more, or 0 for no cap",
                         (unsigned long long)job->snapshot_bandwidth_bytes_s, BANDWIDTH_MIN);
    if (!local &&
        (job->snapshot_partner || job->snapshot_store[0] != '\0' || job->snapshot_erasure[0] != '\0'))
        return keel_fail(KEEL_INVALID,
                         "snapshot.%s is a copy of what nodes have in directories of their own: give "
                         "snapshot.local = DIR, or leave it out",
                         job->snapshot_partner            ? "partner"
                         : job->snapshot_store[0] != '\0' ? "store"
                                                          : "erasure");
    if (job->snapshot_store_every > 0 && job->snapshot_store[0] == '\0')
        return keel_fail(KEEL_INVALID,
                         "snapshot.store_every = %llu: of which store? Give snapshot.store = DIR",
                         (unsigned long long)job->snapshot_store_every);
    KEEL_TRY(check_erasure(job));
    KEEL_TRY(check_patience(job));
    return local ? check_local(job) : KEEL_OK;
}
