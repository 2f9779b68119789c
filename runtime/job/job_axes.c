/* job_axes.c - [parallel]: whether the ranks are a product of the axes, and what does not go together. */
#include "job_internal.h"
#include <keel/optimizer_ops.h>
#include <stdio.h>

/* Whether `ranks` are a product of the axes that are given, with one for the other that can be. */
static bool is_product(const struct keel_job *job, uint32_t data, uint32_t tensor, uint32_t ranks)
{
    if (data > 0 && tensor > 0)
        return data * tensor == ranks;
    if (data > 0)
        return ranks % data == 0 && ranks / data <= job->tensor;
    return tensor == 0 || ranks % tensor == 0;
}

/* "data could be 1, 2, 4": values of an axis with which `ranks` would be a product, the other axis as it is
 * given. */
static void list_axis(const struct keel_job *job, bool data, uint32_t ranks, char *out, size_t bytes)
{
    const uint32_t most = data ? job->shards : job->tensor;
    const char *axis = data ? "data" : "tensor";
    size_t used = 0;
    snprintf(out, bytes, "no %s will do", axis);
    for (uint32_t n = 1; n <= most && used + 16 < bytes; n++)
        if (is_product(job, data ? n : job->parallel.data, data ? job->parallel.tensor : n, ranks)) {
            if (used == 0)
                used = (size_t)snprintf(out, bytes, "%s could be %u", axis, n);
            else
                used += (size_t)snprintf(out + used, bytes - used, ", %u", n);
        }
}

enum { LIST_BYTES = 80 };

/* Groups of owners that are as large as each other. Where neither axis is given ranks do not share slices. */
static enum keel_status check_group(const struct keel_job *job, uint32_t ranks)
{
    const struct keel_parallel *axes = &job->parallel;
    const uint32_t positions = axes->data > 0 ? axes->data : axes->tensor > 0 ? ranks / axes->tensor : ranks;
    char groups[LIST_BYTES];
    size_t used = 0;
    if (axes->zero_group == 0 || positions % axes->zero_group == 0)
        return KEEL_OK;
    for (uint32_t n = 1; n <= positions && used + 16 < sizeof groups; n++)
        if (positions % n == 0)
            used += (size_t)snprintf(groups + used, sizeof groups - used, "%s%u", used == 0 ? "" : ", ", n);
    return keel_fail(
        KEEL_INVALID,
        "parallel.zero_group = %u does not divide the %u data positions of %u ranks; it could be %s",
        axes->zero_group, positions, ranks, groups);
}

enum keel_status keel_job_check_ranks(const struct keel_job *job, uint32_t ranks)
{
    char data[LIST_BYTES], tensor[LIST_BYTES];
    const struct keel_parallel *axes = &job->parallel;
    uint32_t could = ranks;
    if (is_product(job, axes->data, axes->tensor, ranks))
        return check_group(job, ranks);
    while (could > 1 && !is_product(job, axes->data, axes->tensor, could))
        could--;
    if (could == 1)
        could = (axes->data > 0 ? axes->data : 1) * (axes->tensor > 0 ? axes->tensor : 1);
    list_axis(job, true, ranks, data, sizeof data);
    list_axis(job, false, ranks, tensor, sizeof tensor);
    return keel_fail(
        KEEL_INVALID,
        "cluster.ranks = %u is no product of parallel.data = %u and parallel.tensor = %u (0: "
        "chosen, up to job.shards = %u and job.tensor = %u); with the other as it is, %s, and %s; with both, "
        "cluster.ranks could be %u",
        ranks, axes->data, axes->tensor, job->shards, job->tensor, data, tensor, could);
}

enum keel_status keel_job_check_parallel(const struct keel_job *job)
{
    const struct keel_parallel *axes = &job->parallel;
    struct keel_compression compression;
    if (axes->tensor > job->tensor)
        return keel_fail(KEEL_INVALID,
                         "parallel.tensor = %u is above job.tensor = %u, and a rank has one slice at least: "
                         "give %u at most, or another job.tensor in a new directory",
                         axes->tensor, job->tensor, job->tensor);
    if (axes->data > job->shards)
        return keel_fail(
            KEEL_INVALID,
            "parallel.data = %u is above job.shards = %u, and a position has one shard at least: "
            "give %u at most, or another job.shards in a new directory",
            axes->data, job->shards, job->shards);
    if (axes->zero_group > 0 && axes->zero == KEEL_ZERO_NONE)
        return keel_fail(
            KEEL_INVALID,
            "parallel.zero_group = %u: parallel.zero = 0 splits nothing; give 1, 2 or 3, or leave "
            "the group out",
            axes->zero_group);
    if (axes->zero <= KEEL_ZERO_NONE)
        return KEEL_OK;
    if (job->optimizer == KEEL_OPTIMIZER_LARS || job->optimizer == KEEL_OPTIMIZER_LAMB)
        return keel_fail(
            KEEL_INVALID,
            "parallel.zero = %u: train.optimizer = lars and lamb scale by norms of whole tensors, "
            "which no rank has then; give parallel.zero = 0",
            axes->zero - KEEL_ZERO_NONE);
    if (keel_job_compression(job, &compression))
        return keel_fail(
            KEEL_INVALID,
            "parallel.zero = %u: train.gradients = %s are summed on the host, whole; give exact, "
            "or parallel.zero = 0",
            axes->zero - KEEL_ZERO_NONE, job->gradients);
    return KEEL_OK;
}
