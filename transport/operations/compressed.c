/* compressed.c - all-reduces of fewer bytes: the state of a tensor, and a call as two collectives and the
 * work between.
 *
 * Every rank owns a slice of whole blocks. A call: encode all slices; all-to-all; sum those of the own slice
 * in rank order in fp32; encode the sum; all-gather; decode everything, the own slice too, so that all ranks
 * have the same bits. Top-k: select, all-gather, sum in rank order.
 *
 * What is kept is held twice: as of the last success, and as it will be of this one. Success swaps the two,
 * so that a failure at any point needs no undoing, and an undo is a swap. Every message says what it is of,
 * so ranks that disagree in what the sizes do not show hear it all and alike.
 *
 * The wait drives the call: a second collective cannot begin before the first one's data is there. A thread
 * that began it earlier would buy the overlap of half a call and cost a lock around all that is here. */
#include "combine.h"
#include "compressed_codec.h"
#include "group.h"
#include "half.h"

#include <keel/memory.h>
#include <string.h>

/* Before every slice, or set of pairs, on the wire. */
struct head {
    uint32_t magic;
    uint8_t format, reduction, unused[2];
    uint64_t count;
};
static_assert(sizeof(struct head) == 16, "the head has a fixed size on the wire");
enum { HEAD_MAGIC = 0x4b4c4541 };

enum phase { IDLE, SCATTER, GATHER };

struct keel_compressed {
    struct keel_compressed_config config;
    struct keel_tree_slice slice; /* that this rank sums */
    uint64_t slice_bytes;         /* coded */
    float *kept, *next;           /* count, then slice.count: as it is; as it will be on success */
    bool may_undo;                /* `next` holds what `kept` was before the last call */
    uint8_t *given;               /* heads and slices for all; then all coded sums */
    uint8_t *taken;               /* what came: heads and slices */
    uint8_t *sum;                 /* the coded sum of the slice */
    uint64_t *give_counts, *take_counts, *sum_counts;
    /* of the call under way */
    enum phase phase;
    struct keel_group *group;
    struct keel_operation *operation;
    uint64_t sequence;
    float *result;
    struct keel_transport_stats before;
    struct keel_compressed_stats stats;
};

const char *keel_compressed_format_name(enum keel_compressed_format format)
{
    static const char *const names[KEEL_COMPRESSED_FORMAT_COUNT] = {"f16", "bf16", "i8", "top-k"};
    return format < KEEL_COMPRESSED_FORMAT_COUNT ? names[format] : "unknown";
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

/* Whole blocks, so that a coded vector is the coded slices one after the other. */
static struct keel_tree_slice slice_of(const struct keel_compressed_config *config, uint32_t rank)
{
    uint64_t blocks = (config->count + KEEL_COMPRESSED_BLOCK - 1) / KEEL_COMPRESSED_BLOCK;
    uint64_t first = blocks * rank / config->rank_count * KEEL_COMPRESSED_BLOCK;
    uint64_t end = blocks * (rank + 1) / config->rank_count * KEEL_COMPRESSED_BLOCK;
    first = first < config->count ? first : config->count;
    end = end < config->count ? end : config->count;
    return (struct keel_tree_slice){.first = first, .count = end - first};
}

static uint64_t slice_bytes(const struct keel_compressed_config *config, uint32_t rank)
{
    return keel_compressed_coded_bytes(config->format, slice_of(config, rank).count);
}

static uint64_t pairs_bytes(const struct keel_compressed_config *config)
{
    return sizeof(struct head) + config->keep * sizeof(struct keel_compressed_pair);
}

/* Where the head of that rank's slice is. */
static uint64_t given_at(const struct keel_compressed_config *config, uint32_t rank)
{
    return rank * sizeof(struct head) +
           keel_compressed_coded_bytes(config->format, slice_of(config, rank).first);
}

static uint64_t taken_at(const struct keel_compressed *compressed, uint32_t rank)
{
    if (compressed->config.format == KEEL_COMPRESSED_TOP_K)
        return rank * pairs_bytes(&compressed->config);
    return rank * (sizeof(struct head) + compressed->slice_bytes);
}

uint64_t keel_compressed_wire_bytes(const struct keel_compressed_config *config)
{
    uint64_t ranks = config->rank_count;
    if (config->format == KEEL_COMPRESSED_TOP_K)
        return ranks * (ranks - 1) * pairs_bytes(config);
    return (ranks - 1) *
           (2 * keel_compressed_coded_bytes(config->format, config->count) + ranks * sizeof(struct head));
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status check_config(const struct keel_compressed_config *config)
{
    bool top = config->format == KEEL_COMPRESSED_TOP_K;
    if (config->format >= KEEL_COMPRESSED_FORMAT_COUNT)
        return keel_fail(KEEL_INVALID, "compressed all-reduce: there is no format %d", (int)config->format);
    if (config->rank_count == 0 || config->rank_count > KEEL_GROUP_RANKS_MAX ||
        config->rank >= config->rank_count)
        return keel_fail(KEEL_INVALID, "compressed all-reduce: rank %u of %u: there are 1 to %d ranks",
                         config->rank, config->rank_count, KEEL_GROUP_RANKS_MAX);
    if (config->reduction != KEEL_SUM && config->reduction != KEEL_AVERAGE)
        return keel_fail(KEEL_INVALID, "compressed all-reduce: no %s in a lossy format; take sum or average",
                         keel_reduction_name(config->reduction));
    if (config->count > UINT32_MAX)
        return keel_fail(KEEL_LIMIT,
                         "compressed all-reduce: %llu floats are more than %u; use several objects",
                         (unsigned long long)config->count, UINT32_MAX);
    if (top ? config->keep > config->count || (config->keep == 0) != (config->count == 0) : config->keep != 0)
        return keel_fail(KEEL_INVALID, "compressed all-reduce: %s of %llu floats cannot keep %llu",
                         keel_compressed_format_name(config->format), (unsigned long long)config->count,
                         (unsigned long long)config->keep);
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_compressed *compressed)
{
    const struct keel_compressed_config *config = &compressed->config;
    bool top = config->format == KEEL_COMPRESSED_TOP_K;
    uint32_t ranks = config->rank_count;
    uint64_t floats = config->count + compressed->slice.count;
    uint64_t given = top ? pairs_bytes(config) : given_at(config, ranks);
    KEEL_TRY(keel_alloc(floats, sizeof *compressed->kept, &compressed->kept));
    KEEL_TRY(keel_alloc(floats, sizeof *compressed->next, &compressed->next));
    KEEL_TRY(keel_alloc(given, 1, &compressed->given));
    KEEL_TRY(keel_alloc(taken_at(compressed, ranks), 1, &compressed->taken));
    KEEL_TRY(keel_alloc(compressed->slice_bytes, 1, &compressed->sum));
    KEEL_TRY(keel_alloc(ranks, sizeof *compressed->give_counts, &compressed->give_counts));
    KEEL_TRY(keel_alloc(ranks, sizeof *compressed->take_counts, &compressed->take_counts));
    KEEL_TRY(keel_alloc(ranks, sizeof *compressed->sum_counts, &compressed->sum_counts));
    for (uint32_t rank = 0; rank < ranks && !top; rank++) {
        compressed->sum_counts[rank] = slice_bytes(config, rank);
        compressed->give_counts[rank] = sizeof(struct head) + compressed->sum_counts[rank];
        compressed->take_counts[rank] = sizeof(struct head) + compressed->slice_bytes;
    }
    return KEEL_OK;
}

enum keel_status keel_compressed_create(const struct keel_compressed_config *config,
                                        struct keel_compressed **out)
{
    struct keel_compressed *compressed;
    KEEL_TRY(check_config(config));
    KEEL_TRY(keel_alloc(1, sizeof *compressed, &compressed));
    compressed->config = *config;
    if (config->format != KEEL_COMPRESSED_TOP_K) {
        compressed->slice = slice_of(config, config->rank);
        compressed->slice_bytes = slice_bytes(config, config->rank);
    }
    enum keel_status status = allocate(compressed);
    if (status != KEEL_OK) {
        keel_compressed_free(compressed);
        return status;
    }
    *out = compressed;
    return KEEL_OK;
}

void keel_compressed_free(struct keel_compressed *compressed)
{
    if (compressed == NULL)
        return;
    keel_free(compressed->sum_counts);
    keel_free(compressed->take_counts);
    keel_free(compressed->give_counts);
    keel_free(compressed->sum);
    keel_free(compressed->taken);
    keel_free(compressed->given);
    keel_free(compressed->next);
    keel_free(compressed->kept);
    keel_free(compressed);
}

/* ---- what is kept -------------------------------------------------------------------------------------- */

static void swap_kept(struct keel_compressed *compressed)
{
    float *was = compressed->kept;
    compressed->kept = compressed->next;
    compressed->next = was;
}

bool keel_compressed_undo(struct keel_compressed *compressed)
{
    if (!compressed->may_undo)
        return false;
    swap_kept(compressed);
    compressed->may_undo = false;
    return true;
}

float *keel_compressed_residual(struct keel_compressed *compressed, uint64_t *out_count)
{
    *out_count = compressed->config.count + compressed->slice.count;
    return compressed->kept;
}

void keel_compressed_fold(struct keel_compressed *compressed)
{
    float *slice = compressed->kept + compressed->config.count,
          *own = compressed->kept + compressed->slice.first;
    float times = compressed->config.reduction == KEEL_AVERAGE ? (float)compressed->config.rank_count : 1.0f;
    KEEL_ASSERT(compressed->phase == IDLE);
    for (uint64_t i = 0; i < compressed->slice.count; i++)
        own[i] += slice[i] * times;
    memset(slice, 0, keel_size(compressed->slice.count * sizeof *slice));
    compressed->may_undo = false;
}

void keel_compressed_stats(const struct keel_compressed *compressed, struct keel_compressed_stats *out)
{
    *out = compressed->stats;
}

/* ---- heads --------------------------------------------------------------------------------------------- */

static struct head head_of(const struct keel_compressed_config *config)
{
    return (struct head){.magic = HEAD_MAGIC,
                         .format = (uint8_t)config->format,
                         .reduction = (uint8_t)config->reduction,
                         .count = config->count};
}

/* If not all ranks mean the same, every rank finds one that does not mean what it does itself. */
static enum keel_status check_heads(const struct keel_compressed *compressed)
{
    const struct head own = head_of(&compressed->config);
    for (uint32_t rank = 0; rank < compressed->config.rank_count; rank++) {
        struct head head;
        memcpy(&head, compressed->taken + taken_at(compressed, rank), sizeof head);
        if (memcmp(&head, &own, sizeof head) != 0)
            return keel_fail(
                KEEL_MISMATCH,
                "compressed all-reduce %llu: rank %u sends %s (%s) of %llu floats, rank %u %s (%s) of "
                "%llu; give all ranks the same config",
                (unsigned long long)compressed->sequence, rank,
                keel_compressed_format_name((enum keel_compressed_format)head.format),
                keel_reduction_name((enum keel_reduction)head.reduction), (unsigned long long)head.count,
                compressed->config.rank, keel_compressed_format_name(compressed->config.format),
                keel_reduction_name(compressed->config.reduction),
                (unsigned long long)compressed->config.count);
    }
    return KEEL_OK;
}

/* ---- lossy formats ------------------------------------------------------------------------------------- */

static enum keel_status scatter(struct keel_compressed *compressed, const float *part)
{
    const struct keel_compressed_config *config = &compressed->config;
    const struct head head = head_of(config);
    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        struct keel_tree_slice slice = slice_of(config, rank);
        uint8_t *at = compressed->given + given_at(config, rank);
        memcpy(at, &head, sizeof head);
        keel_compressed_encode(config->format, (struct keel_compressed_run){slice.count, 0, slice.count},
                               part + slice.first, compressed->kept + slice.first, at + sizeof head,
                               compressed->next + slice.first);
    }
    const void *parts[] = {compressed->given};
    struct keel_collective what = {.kind = KEEL_ALL_TO_ALL_V,
                                   .sequence = compressed->sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .counts_in = compressed->give_counts,
                                   .counts_out = compressed->take_counts,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = compressed->taken};
    KEEL_TRY(keel_group_begin(compressed->group, &what, &compressed->operation));
    compressed->phase = SCATTER;
    return KEEL_OK;
}

/* In pieces that stay in the cache: decode and add all ranks', encode the sum. */
static void sum_slice(struct keel_compressed *compressed)
{
    float sum[KEEL_COMPRESSED_STEP];
    const struct keel_compressed_config *config = &compressed->config;
    const uint64_t own = config->count; /* where the slice's part of what is kept begins */
    for (uint64_t at = 0; at < compressed->slice.count; at += KEEL_COMPRESSED_STEP) {
        uint64_t left = compressed->slice.count - at;
        struct keel_compressed_run run = {compressed->slice.count, at,
                                          left < KEEL_COMPRESSED_STEP ? left : KEEL_COMPRESSED_STEP};
        for (uint32_t rank = 0; rank < config->rank_count; rank++)
            keel_compressed_decode(config->format, run,
                                   compressed->taken + taken_at(compressed, rank) + sizeof(struct head),
                                   rank > 0, sum);
        if (config->reduction == KEEL_AVERAGE)
            keel_combine_divide(KEEL_ELEMENT_F32, sum, run.count, config->rank_count);
        keel_compressed_encode(config->format, run, sum, compressed->kept + own + at, compressed->sum,
                               compressed->next + own + at);
    }
}

static enum keel_status gather(struct keel_compressed *compressed)
{
    KEEL_TRY(check_heads(compressed));
    sum_slice(compressed);
    const void *parts[] = {compressed->sum};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER_V,
                                   .sequence = compressed->sequence + 1,
                                   .element = KEEL_ELEMENT_U8,
                                   .counts_out = compressed->sum_counts,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = compressed->given};
    KEEL_TRY(keel_group_begin(compressed->group, &what, &compressed->operation));
    compressed->phase = GATHER;
    return KEEL_OK;
}

static void deliver(struct keel_compressed *compressed)
{
    for (uint32_t rank = 0; rank < compressed->config.rank_count; rank++) {
        struct keel_tree_slice slice = slice_of(&compressed->config, rank);
        keel_compressed_decode(
            compressed->config.format, (struct keel_compressed_run){slice.count, 0, slice.count},
            compressed->given + keel_compressed_coded_bytes(compressed->config.format, slice.first), false,
            compressed->result + slice.first);
    }
}

/* ---- top-k --------------------------------------------------------------------------------------------- */

static enum keel_status gather_pairs(struct keel_compressed *compressed, const float *part)
{
    const struct keel_compressed_config *config = &compressed->config;
    const struct head head = head_of(config);
    void *pairs = compressed->given + sizeof head;
    memcpy(compressed->given, &head, sizeof head);
    keel_compressed_select(part, compressed->kept, config->count, config->keep, pairs, compressed->next);
    const void *parts[] = {compressed->given};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER,
                                   .sequence = compressed->sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .count = pairs_bytes(config),
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = compressed->taken};
    KEEL_TRY(keel_group_begin(compressed->group, &what, &compressed->operation));
    compressed->phase = GATHER;
    return KEEL_OK;
}

static enum keel_status deliver_pairs(struct keel_compressed *compressed)
{
    const struct keel_compressed_config *config = &compressed->config;
    KEEL_TRY(check_heads(compressed));
    memset(compressed->result, 0, keel_size(config->count * sizeof *compressed->result));
    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        const void *at = compressed->taken + taken_at(compressed, rank) + sizeof(struct head);
        const struct keel_compressed_pair *pairs = at;
        for (uint64_t k = 0; k < config->keep; k++) {
            if (pairs[k].index >= config->count)
                return keel_fail(KEEL_CORRUPT, "compressed all-reduce %llu: rank %u sends float %u of %llu",
                                 (unsigned long long)compressed->sequence, rank, pairs[k].index,
                                 (unsigned long long)config->count);
            float *sum = &compressed->result[pairs[k].index];
            *sum = f32_sum(*sum, pairs[k].value);
        }
    }
    if (config->reduction == KEEL_AVERAGE)
        keel_combine_divide(KEEL_ELEMENT_F32, compressed->result, config->count, config->rank_count);
    return KEEL_OK;
}

/* ---- a call -------------------------------------------------------------------------------------------- */

static enum keel_status check_call(const struct keel_compressed *compressed, const struct keel_group *group,
                                   uint64_t sequence, const float *part, const float *result)
{
    const struct keel_compressed_config *config = &compressed->config;
    const char *why = NULL;
    if (compressed->phase != IDLE)
        why = "the call before has not been waited for";
    else if (group->rank != config->rank || group->rank_count != config->rank_count)
        why = "the group has other ranks than the object was made for";
    else if (config->count > 0 && (part == NULL || result == NULL))
        why = "the part or the result is missing";
    else if (config->count > 0 && part < result + config->count && result < part + config->count)
        why = "the result lies on the part; parts are kept, so give it a place of its own";
    if (why != NULL)
        return keel_fail(KEEL_INVALID, "compressed all-reduce %llu: %s", (unsigned long long)sequence, why);
    return KEEL_OK;
}

enum keel_status keel_compressed_begin(struct keel_compressed *compressed, struct keel_group *group,
                                       uint64_t sequence, const float *part, float *result)
{
    KEEL_TRY(check_call(compressed, group, sequence, part, result));
    compressed->group = group;
    compressed->sequence = sequence;
    compressed->result = result;
    compressed->may_undo = false;
    keel_endpoint_stats(group->endpoint, &compressed->before);
    return compressed->config.format == KEEL_COMPRESSED_TOP_K ? gather_pairs(compressed, part)
                                                              : scatter(compressed, part);
}

static enum keel_status finish(struct keel_compressed *compressed)
{
    struct keel_transport_stats now;
    if (compressed->config.format == KEEL_COMPRESSED_TOP_K)
        KEEL_TRY(deliver_pairs(compressed));
    else
        deliver(compressed);
    keel_endpoint_stats(compressed->group->endpoint, &now);
    compressed->stats.calls++;
    compressed->stats.wire_bytes += now.bytes_sent - compressed->before.bytes_sent;
    compressed->stats.wire_messages += now.messages_sent - compressed->before.messages_sent;
    swap_kept(compressed);
    compressed->may_undo = true;
    return KEEL_OK;
}

enum keel_status keel_compressed_wait(struct keel_compressed *compressed, uint64_t deadline_ns)
{
    enum keel_status status = KEEL_OK;
    if (compressed->phase == IDLE)
        return keel_fail(KEEL_INVALID, "compressed all-reduce: nothing was begun");
    if (compressed->phase == SCATTER) {
        status = keel_operation_wait(compressed->operation, deadline_ns);
        if (status == KEEL_OK)
            status = gather(compressed);
    }
    if (status == KEEL_OK)
        status = keel_operation_wait(compressed->operation, deadline_ns);
    if (status == KEEL_OK)
        status = finish(compressed);
    compressed->operation = NULL;
    compressed->phase = IDLE;
    return status;
}

enum keel_status keel_compressed_run(struct keel_compressed *compressed, struct keel_group *group,
                                     uint64_t sequence, const float *part, float *result,
                                     uint64_t deadline_ns)
{
    KEEL_TRY(keel_compressed_begin(compressed, group, sequence, part, result));
    return keel_compressed_wait(compressed, deadline_ns);
}
