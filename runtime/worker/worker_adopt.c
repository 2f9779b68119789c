/* worker_adopt.c - snapshot.local: directories on this host whose nodes are not in the view.
 *
 * A run that goes on with fewer nodes than before would else lack what those had written. One node of the
 * host offers what lies there as its own, and copies into its own directory what is wanted of it: files are
 * verified on the way, and nothing is changed where they came from. */
#include "worker_internal.h"
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool keel_worker_sees_node(const struct keel_worker *worker, uint32_t node)
{
    for (uint32_t i = 0; i < worker->view.member_count; i++)
        if (worker->view.members[i].node == node)
            return true;
    return false;
}

static bool shares_host(const struct keel_worker *worker, uint32_t a, uint32_t b)
{
    if (worker->address == NULL) /* all are children of one launcher */
        return true;
    return keel_job_host_of(&worker->job, worker->host_count, a) ==
           keel_job_host_of(&worker->job, worker->host_count, b);
}

/* Of the nodes of a host the first adopts, that is all of its ranks, which share its files out. */
static bool adopts(const struct keel_worker *worker)
{
    uint32_t node[KEEL_MEMBERS_MAX];
    keel_worker_nodes(worker, node);
    const uint32_t first = keel_worker_first_of_node(node, worker->position);
    for (uint32_t p = 0; p < first; p++)
        if (shares_host(worker, node[p], worker->node))
            return false;
    return true;
}

static enum keel_status open_one(struct keel_worker *worker, const char *name, uint32_t node)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    struct keel_adopted *adopted = &tiers->adopted[tiers->adopted_count];
    char root[KEEL_PATH_BYTES], label[KEEL_TIER_NAME_BYTES];
    KEEL_TRY(keel_path_join(root, worker->job.snapshot_local, name));
    const struct keel_store_config config = {.root = root,
                                             .run = worker->job.name,
                                             .read_only = true,
                                             .key_file = keel_job_key_file(&worker->job)};
    KEEL_TRY(keel_store_open(&config, &adopted->store));
    snprintf(label, sizeof label, "absent node %u's directory", node);
    const enum keel_status status =
        keel_tier_directory_open(adopted->store, KEEL_LATENCY_LOCAL, label, &adopted->tier);
    if (status != KEEL_OK)
        keel_store_close(adopted->store);
    else
        tiers->adopted_count++;
    return status;
}

static enum keel_status see_directory(void *context, const char *name)
{
    struct keel_worker *worker = context;
    char again[32];
    if (strncmp(name, "node-", 5) != 0 || worker->tiers.adopted_count == KEEL_ADOPTED_MAX)
        return KEEL_OK;
    const uint32_t node = (uint32_t)strtoul(name + 5, NULL, 10);
    snprintf(again, sizeof again, "node-%u", node);
    if (strcmp(name, again) == 0 && !keel_worker_sees_node(worker, node) &&
        open_one(worker, name, node) != KEEL_OK)
        keel_log(KEEL_LOG_INFO, "%s of snapshot.local is not looked at: %s", name, keel_detail());
    return KEEL_OK;
}

void keel_worker_adopt(struct keel_worker *worker)
{
    keel_worker_adopt_end(worker);
    if (adopts(worker) && keel_dir_list(worker->job.snapshot_local, see_directory, worker) != KEEL_OK)
        keel_log(KEEL_LOG_INFO, "directories of absent nodes are not looked at: %s", keel_detail());
}

void keel_worker_adopt_end(struct keel_worker *worker)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    for (uint32_t i = 0; i < tiers->adopted_count; i++) {
        keel_tier_end(tiers->adopted[i].tier);
        keel_store_close(tiers->adopted[i].store);
    }
    tiers->adopted_count = 0;
}

void keel_worker_adopt_file(struct keel_worker *worker, const struct keel_object *object)
{
    struct keel_worker_tiers *tiers = &worker->tiers;
    for (uint32_t i = 0; i < tiers->adopted_count; i++)
        if (keel_tier_copy(tiers->adopted[i].tier, object, tiers->near) == KEEL_OK)
            return;
}
