/* gemm_checksum.h - checksums of the products of a program: where they lie, and when they are looked at.
 *
 * A product's result is checked right before the last node that reads it, or right after its own node when
 * none does (the gradient of a weight): by then memory may have changed it, and nothing wrong has been handed
 * on yet. Owns the checksums, one report for each product, and its name. Filled while emitting. */
#ifndef KEEL_RUNTIME_PRODUCT_CHECK_H
#define KEEL_RUNTIME_PRODUCT_CHECK_H

#include "ir.h"
#include <keel/kernels.h>

struct keel_gemm_checksums {
    struct keel_gemm_checksum *items; /* in the order of their nodes */
    uint32_t count, capacity;
    uint64_t bytes;                /* of all checksums, places rounded up to align_bytes */
    uint64_t align_bytes;          /* of places */
    struct keel_buffer *checksums; /* of all products */
    struct keel_buffer *reports;   /* KEEL_GEMM_REPORT_BYTES each */
    uint32_t *landing;             /* reports on the host */
};

/* While measuring: node number `node` is the product `gemm`. */
enum keel_status keel_gemm_checksums_plan(struct keel_gemm_checksums *checks, const struct keel_graph *graph,
                                          uint32_t node, const struct keel_gemm *gemm);
/* After measuring: device memory for what was planned; *bytes grows by it. */
enum keel_status keel_gemm_checksums_make(struct keel_gemm_checksums *checks, struct keel_device *device,
                                          struct keel_queue *queue, uint64_t *bytes);
/* While emitting: give node's product its checksums. */
void keel_gemm_checksums_bind(struct keel_gemm_checksums *checks, uint32_t node, struct keel_gemm *gemm);
/* Append the checks that are due before node number `node`, or right behind it: in the same list as the
 * product, since behind the end of a list a gradient is summed, and its memory may be another's. */
enum keel_status keel_gemm_checksums_emit(struct keel_gemm_checksums *checks, struct keel_kernels *kernels,
                                          uint32_t node, bool behind, struct keel_launch_list *list);
/* Enqueue reading the reports; once that has been done, keel_gemm_checksums_judge says CORRUPT, naming the
 * product, when a result had changed: the board is not to be trusted. */
enum keel_status keel_gemm_checksums_read(struct keel_gemm_checksums *checks, struct keel_queue *queue);
enum keel_status keel_gemm_checksums_judge(const struct keel_gemm_checksums *checks);
void keel_gemm_checksums_fini(struct keel_gemm_checksums *checks);

#endif
