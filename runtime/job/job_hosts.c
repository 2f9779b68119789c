/* job_hosts.c - which nodes of a job share a host: those fail together. */
#include <keel/job.h>

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
