/* gemm_checksum.c - checksums of a program's products; see the header. */
#include "gemm_checksum.h"
#include "ops.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

struct keel_gemm_checksum {
    uint32_t node, due; /* checked before node `due`, or right behind its own */
    uint64_t offset, bytes;
    struct keel_buffer *checksums; /* a slice */
    struct keel_gemm product;      /* once it is bound */
    char name[2 * KEEL_VALUE_NAME_BYTES + 4];
};

static const uint64_t reset_limit_ns = 120 * KEEL_NS_PER_S;

/* The last node that reads what `node` makes; itself when none does. */
static uint32_t due_of(const struct keel_graph *graph, uint32_t node)
{
    keel_value value = graph->nodes[node].out[0];
    for (uint32_t n = graph->node_count; n-- > node + 1;)
        for (uint32_t i = 0; i < KEEL_NODE_IN_MAX; i++)
            if (graph->nodes[n].in[i] == value && graph->values[value].kind == KEEL_VALUE_TEMP)
                return n;
    return node;
}

/* What a value is a copy of, of some slices or in another order. */
static keel_value source_of(const struct keel_graph *graph, keel_value value)
{
    for (uint32_t n = graph->node_count; n-- > 0;)
        if (graph->nodes[n].out[0] == value &&
            (graph->nodes[n].op == KEEL_OP_REPACK || graph->nodes[n].op == KEEL_OP_RUN))
            value = graph->nodes[n].in[0];
    return value;
}

/* Its result, and the layer by its weight, where the name of the one does not say the other. */
static void name_product(const struct keel_graph *graph, uint32_t node, char *out, size_t out_bytes)
{
    const struct keel_ir_node *of = &graph->nodes[node];
    const struct keel_ir_value *weight = &graph->values[source_of(graph, of->in[1])];
    const bool says = of->in[1] != 0 && weight->kind == KEEL_VALUE_PARAM;
    snprintf(out, out_bytes, "%s%s%s", graph->values[of->out[0]].name, says ? " of " : "",
             says ? weight->name : "");
}

enum keel_status keel_gemm_checksums_plan(struct keel_gemm_checksums *checks, const struct keel_graph *graph,
                                          uint32_t node, const struct keel_gemm *gemm)
{
    if (checks->count == checks->capacity) {
        uint32_t capacity = checks->capacity == 0 ? 64 : checks->capacity * 2;
        KEEL_TRY(keel_realloc(&checks->items, checks->capacity, capacity, sizeof *checks->items));
        checks->capacity = capacity;
    }
    struct keel_gemm_checksum *check = &checks->items[checks->count++];
    *check = (struct keel_gemm_checksum){.node = node,
                                         .due = due_of(graph, node),
                                         .offset = checks->bytes,
                                         .bytes = keel_gemm_checksum_bytes(gemm)};
    name_product(graph, node, check->name, sizeof check->name);
    checks->bytes += keel_round_up(check->bytes, checks->align_bytes);
    return KEEL_OK;
}

/* Every report begins as "nothing differs". */
static enum keel_status reset(struct keel_gemm_checksums *checks, struct keel_queue *queue)
{
    for (uint32_t i = 0; i < checks->count; i++) {
        checks->landing[2 * i] = 0;
        checks->landing[2 * i + 1] = UINT32_MAX;
    }
    KEEL_TRY(keel_queue_write(queue, checks->reports, 0, checks->landing,
                              (uint64_t)checks->count * KEEL_GEMM_REPORT_BYTES, NULL, NULL));
    return keel_queue_finish(queue, keel_deadline_after_ns(reset_limit_ns));
}

enum keel_status keel_gemm_checksums_make(struct keel_gemm_checksums *checks, struct keel_device *device,
                                          struct keel_queue *queue, uint64_t *bytes)
{
    uint64_t report_bytes = (uint64_t)checks->count * KEEL_GEMM_REPORT_BYTES;
    if (checks->count == 0)
        return KEEL_OK;
    KEEL_TRY(keel_buffer_create(device, checks->bytes, &checks->checksums));
    KEEL_TRY(keel_buffer_create(device, report_bytes, &checks->reports));
    *bytes += checks->bytes + report_bytes;
    for (uint32_t i = 0; i < checks->count; i++)
        KEEL_TRY(keel_buffer_slice(checks->checksums, checks->items[i].offset, checks->items[i].bytes,
                                   &checks->items[i].checksums));
    KEEL_TRY(keel_alloc(report_bytes / sizeof *checks->landing, sizeof *checks->landing, &checks->landing));
    return reset(checks, queue);
}

void keel_gemm_checksums_bind(struct keel_gemm_checksums *checks, uint32_t node, struct keel_gemm *gemm)
{
    for (uint32_t i = 0; i < checks->count; i++)
        if (checks->items[i].node == node) {
            gemm->checksums = checks->items[i].checksums;
            checks->items[i].product = *gemm;
        }
}

enum keel_status keel_gemm_checksums_emit(struct keel_gemm_checksums *checks, struct keel_kernels *kernels,
                                          uint32_t node, bool behind, struct keel_launch_list *list)
{
    for (uint32_t i = 0; i < checks->count; i++) {
        const struct keel_gemm_checksum *check = &checks->items[i];
        struct keel_gemm_check op = {
            .product = &check->product, .report = checks->reports, .report_index = i};
        if (check->due == node && (check->node == node) == behind)
            KEEL_TRY(keel_op_gemm_check(kernels, &op, list));
    }
    return KEEL_OK;
}

enum keel_status keel_gemm_checksums_read(struct keel_gemm_checksums *checks, struct keel_queue *queue)
{
    if (checks->count == 0)
        return KEEL_OK;
    return keel_queue_read(queue, checks->reports, 0, checks->landing,
                           (uint64_t)checks->count * KEEL_GEMM_REPORT_BYTES, NULL, NULL);
}

enum keel_status keel_gemm_checksums_judge(const struct keel_gemm_checksums *checks)
{
    for (uint32_t i = 0; i < checks->count; i++)
        if (checks->landing[2 * i] != 0)
            return keel_fail(KEEL_CORRUPT,
                             "the product %s has changed in memory since it was computed, in %u tiles of 8 x "
                             "48, the first "
                             "number %u",
                             checks->items[i].name, checks->landing[2 * i], checks->landing[2 * i + 1]);
    return KEEL_OK;
}

void keel_gemm_checksums_fini(struct keel_gemm_checksums *checks)
{
    for (uint32_t i = 0; i < checks->count; i++)
        if (checks->items[i].checksums != NULL)
            keel_buffer_destroy(checks->items[i].checksums);
    if (checks->checksums != NULL)
        keel_buffer_destroy(checks->checksums);
    if (checks->reports != NULL)
        keel_buffer_destroy(checks->reports);
    keel_free(checks->landing);
    keel_free(checks->items);
    *checks = (struct keel_gemm_checksums){.count = 0};
}
