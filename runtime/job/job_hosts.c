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

/* What a node that leads from another host cannot do; NULL: nothing that this job wants. */
static const char *not_led(const struct keel_job *job)
{
    return !keel_job_takes_snapshots(job)
               ? "a node that leads writes its lines, and commits snapshots, in the common store; give "
                 "snapshot.every, or holders = 1"
           : keel_job_has_local_snapshots(job) && job->snapshot_store[0] == '\0'
               ? "a node that leads writes its lines into a store that all hosts have, the launcher's too, "
                 "and "
                 "snapshot.local does without; give snapshot.store = DIR, or holders = 1"
               : NULL;
}

uint32_t keel_job_holders(const struct keel_job *job)
{
    enum { AS_A_RULE = 3 }; /* on as many hosts: of two, one has the majority */
    const uint32_t nodes = keel_job_node_count(job), known = keel_job_host_count(job);
    const uint32_t hosts = known > 0 && known < nodes ? known : nodes;
    if (job->holders != 0)
        return job->holders;
    /* A store beside directories of nodes need not be one that the launcher's host has. */
    const bool may = not_led(job) == NULL && !keel_job_has_local_snapshots(job);
    return job->launch != KEEL_LAUNCH_LOCAL && hosts >= AS_A_RULE && may ? AS_A_RULE : 1;
}

enum keel_status keel_job_check_holders(const struct keel_job *job)
{
    if (job->holders <= 1)
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
    const char *reason = not_led(job);
    if (reason != NULL)
        return keel_fail(KEEL_INVALID, "cluster.holders = %u: %s", job->holders, reason);
    return KEEL_OK;
}
