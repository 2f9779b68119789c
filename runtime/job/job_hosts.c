/* job_hosts.c - which nodes of a job share a host: those fail together; and which of them may lead. */
#include "job_internal.h"

#include <string.h>

uint32_t keel_job_node_count(const struct keel_job *job)
{
    return (job->nodes != 0 ? job->nodes : job->ranks) + job->spares;
}

uint32_t keel_job_host_count(const struct keel_job *job)
{
    uint32_t count = 0;
    if (job->launch == KEEL_LAUNCH_LOCAL || strchr(job->hosts, '/') != NULL)
        return 0;
    for (const char *at = job->hosts; *(at += strspn(at, ", \t")) != '\0'; at += strcspn(at, ", \t"))
        count++;
    return count;
}

uint32_t keel_job_host_of(const struct keel_job *job, uint32_t host_count, uint32_t node)
{
    const uint32_t nodes = keel_job_node_count(job);
    return host_count == 0 || node == 0 || node > nodes ? node : (node - 1) * host_count / nodes;
}

enum keel_status keel_job_check_holders(const struct keel_job *job)
{
    if (job->holders == 1)
        return KEEL_OK;
    if (job->holders % 2 == 0)
        return keel_fail(
            KEEL_INVALID,
            "cluster.holders = %u: a majority decides, so one more serves no better; give 1, 3 or 5",
            job->holders);
    if (job->launch == KEEL_LAUNCH_LOCAL)
        return keel_fail(
            KEEL_INVALID,
            "cluster.holders = %u is not used by cluster.launch = local, where a lock says who leads; "
            "give launch = ssh, slurm or none, or leave it out",
            job->holders);
    if (job->holders > keel_job_node_count(job) + 1)
        return keel_fail(KEEL_INVALID,
                         "cluster.holders = %u: the launcher and %u nodes are %u; give fewer holders, or "
                         "more nodes (--spares)",
                         job->holders, keel_job_node_count(job), keel_job_node_count(job) + 1);
    if (!keel_job_takes_snapshots(job) || keel_job_has_local_snapshots(job))
        return keel_fail(
            KEEL_INVALID,
            "cluster.holders = %u: a node that leads commits snapshots, and writes its lines, in the "
            "common store; give snapshot.every and no snapshot.local, or holders = 1",
            job->holders);
    if (job->spike != KEEL_SPIKE_WARN || job->patience > 0)
        return keel_fail(KEEL_INVALID,
                         "cluster.holders = %u: a node that leads does not know the losses before; leave "
                         "%s out, or give holders = 1",
                         job->holders, job->patience > 0 ? "train.patience" : "train.spike");
    return KEEL_OK;
}
