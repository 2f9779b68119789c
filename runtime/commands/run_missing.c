/* run_missing.c - who is missing as a run begins, and why: it was asked for so many ranks, and begins with
 * fewer.
 *
 * Owns the last trouble of each node until then. */
#include "run_output_state.h"
#include <keel/memory.h>
#include <stdarg.h>
#include <string.h>

enum { NAMED_MAX = 8, WHY_BYTES = 384 };

static uint32_t nodes_with_ranks(const struct keel_job *job)
{
    return job->nodes != 0 ? job->nodes : job->ranks;
}

void keel_output_blame(struct keel_output *output, uint16_t node, const char *why)
{
    if (node >= KEEL_NODES_MAX)
        return;
    keel_free(output->troubles[node]);
    output->troubles[node] = NULL;
    const size_t bytes = strnlen(why, WHY_BYTES - 1);
    if (bytes > 0 && keel_alloc(bytes + 1, 1, &output->troubles[node]) == KEEL_OK)
        memcpy(output->troubles[node], why, bytes); /* keel_alloc cleared the end */
}

void keel_output_forgive(struct keel_output *output)
{
    for (uint32_t node = 0; node < KEEL_NODES_MAX; node++)
        keel_output_blame(output, (uint16_t)node, "");
}

static uint32_t members_of(const struct keel_view *view, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < view->member_count; i++)
        count += view->members[i].node == node;
    return count;
}

static const char *why_of(const struct keel_output *output, uint32_t node)
{
    return output->troubles[node] != NULL ? output->troubles[node]
                                          : "none of its workers was ready in time; its log may say why";
}

void keel_output_tell_missing(struct keel_output *output, const struct keel_view *view)
{
    const struct keel_job *job = output->job;
    const uint32_t nodes = nodes_with_ranks(job), per_node = job->ranks / nodes;
    char head[160], detail[WHY_BYTES + 192] = "", spares[48] = "";
    uint32_t missing = 0;
    json_t *list = json_array();
    if (job->spares > 0)
        snprintf(spares, sizeof spares, ", and %u of %u spares", output->spares, job->spares);
    snprintf(head, sizeof head, "the run begins with %u of %u ranks%s", output->members, job->ranks, spares);
    keel_output_say(output, "%s; missing:", head);
    for (uint32_t node = 1; node <= nodes + job->spares; node++) {
        if (members_of(view, node) >= (node <= nodes ? per_node : 1))
            continue;
        const char *why = why_of(output, node);
        json_array_append_new(list, json_pack("{s:i, s:s}", "node", (int)node, "why", why));
        if (missing == 0)
            snprintf(detail, sizeof detail, "%s; node %u is missing: %s", head, node, why);
        if (missing++ < NAMED_MAX)
            keel_output_say(output, "  node %u: %s", node, why);
    }
    if (missing > NAMED_MAX)
        keel_output_say(output, "  and %u more, which events.jsonl names (ranks-missing)",
                        missing - NAMED_MAX);
    keel_output_say(output,
                    "  who comes later joins; to have all from here on, end the run (keel job stop %s), mend "
                    "that, and give the same command",
                    output->directory);
    keel_output_event(output, "ranks-missing",
                      json_pack("{s:i, s:i, s:i, s:o, s:s}", "ranks", (int)output->members, "wanted",
                                (int)job->ranks, "spares", (int)output->spares, "nodes", list, "detail",
                                detail));
}
