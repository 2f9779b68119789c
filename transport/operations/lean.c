/* lean.c - all-reduces of fewer bytes: the state of a tensor, and a call as two collectives and the work
 * between.
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
#include "group.h"
#include "half.h"
#include "lean_codec.h"

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

struct keel_lean {
    struct keel_lean_config config;
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
    struct keel_lean_stats stats;
};

const char *keel_lean_format_name(enum keel_lean_format format)
{
    static const char *const names[KEEL_LEAN_FORMAT_COUNT] = {"f16", "bf16", "i8", "top-k"};
    return format < KEEL_LEAN_FORMAT_COUNT ? names[format] : "unknown";
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

/* Whole blocks, so that a coded vector is the coded slices one after the other. */
static struct keel_tree_slice slice_of(const struct keel_lean_config *config, uint32_t rank)
{
    uint64_t blocks = (config->count + KEEL_LEAN_BLOCK - 1) / KEEL_LEAN_BLOCK;
    uint64_t first = blocks * rank / config->rank_count * KEEL_LEAN_BLOCK;
    uint64_t end = blocks * (rank + 1) / config->rank_count * KEEL_LEAN_BLOCK;
    first = first < config->count ? first : config->count;
    end = end < config->count ? end : config->count;
    return (struct keel_tree_slice){.first = first, .count = end - first};
}

static uint64_t slice_bytes(const struct keel_lean_config *config, uint32_t rank)
{
    return keel_lean_coded_bytes(config->format, slice_of(config, rank).count);
}

static uint64_t pairs_bytes(const struct keel_lean_config *config)
{
    return sizeof(struct head) + config->keep * sizeof(struct keel_lean_pair);
}

/* Where the head of that rank's slice is. */
static uint64_t given_at(const struct keel_lean_config *config, uint32_t rank)
{
    return rank * sizeof(struct head) + keel_lean_coded_bytes(config->format, slice_of(config, rank).first);
}

static uint64_t taken_at(const struct keel_lean *lean, uint32_t rank)
{
    if (lean->config.format == KEEL_LEAN_TOP_K)
        return rank * pairs_bytes(&lean->config);
    return rank * (sizeof(struct head) + lean->slice_bytes);
}

uint64_t keel_lean_wire_bytes(const struct keel_lean_config *config)
{
    uint64_t ranks = config->rank_count;
    if (config->format == KEEL_LEAN_TOP_K)
        return ranks * (ranks - 1) * pairs_bytes(config);
    return (ranks - 1) *
           (2 * keel_lean_coded_bytes(config->format, config->count) + ranks * sizeof(struct head));
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static enum keel_status check_config(const struct keel_lean_config *config)
{
    bool top = config->format == KEEL_LEAN_TOP_K;
    if (config->format >= KEEL_LEAN_FORMAT_COUNT)
        return keel_fail(KEEL_INVALID, "lean all-reduce: there is no format %d", (int)config->format);
    if (config->rank_count == 0 || config->rank_count > KEEL_GROUP_RANKS_MAX ||
        config->rank >= config->rank_count)
        return keel_fail(KEEL_INVALID, "lean all-reduce: rank %u of %u: there are 1 to %d ranks",
                         config->rank, config->rank_count, KEEL_GROUP_RANKS_MAX);
    if (config->reduction != KEEL_SUM && config->reduction != KEEL_AVERAGE)
        return keel_fail(KEEL_INVALID, "lean all-reduce: no %s in a lossy format; take sum or average",
                         keel_reduction_name(config->reduction));
    if (config->count > UINT32_MAX)
        return keel_fail(KEEL_LIMIT, "lean all-reduce: %llu floats are more than %u; use several objects",
                         (unsigned long long)config->count, UINT32_MAX);
    if (top ? config->keep > config->count || (config->keep == 0) != (config->count == 0) : config->keep != 0)
        return keel_fail(KEEL_INVALID, "lean all-reduce: %s of %llu floats cannot keep %llu",
                         keel_lean_format_name(config->format), (unsigned long long)config->count,
                         (unsigned long long)config->keep);
    return KEEL_OK;
}

static enum keel_status allocate(struct keel_lean *lean)
{
    const struct keel_lean_config *config = &lean->config;
    bool top = config->format == KEEL_LEAN_TOP_K;
    uint32_t ranks = config->rank_count;
    uint64_t floats = config->count + lean->slice.count;
    uint64_t given = top ? pairs_bytes(config) : given_at(config, ranks);
    KEEL_TRY(keel_alloc(floats, sizeof *lean->kept, &lean->kept));
    KEEL_TRY(keel_alloc(floats, sizeof *lean->next, &lean->next));
    KEEL_TRY(keel_alloc(given, 1, &lean->given));
    KEEL_TRY(keel_alloc(taken_at(lean, ranks), 1, &lean->taken));
    KEEL_TRY(keel_alloc(lean->slice_bytes, 1, &lean->sum));
    KEEL_TRY(keel_alloc(ranks, sizeof *lean->give_counts, &lean->give_counts));
    KEEL_TRY(keel_alloc(ranks, sizeof *lean->take_counts, &lean->take_counts));
    KEEL_TRY(keel_alloc(ranks, sizeof *lean->sum_counts, &lean->sum_counts));
    for (uint32_t rank = 0; rank < ranks && !top; rank++) {
        lean->sum_counts[rank] = slice_bytes(config, rank);
        lean->give_counts[rank] = sizeof(struct head) + lean->sum_counts[rank];
        lean->take_counts[rank] = sizeof(struct head) + lean->slice_bytes;
    }
    return KEEL_OK;
}

enum keel_status keel_lean_create(const struct keel_lean_config *config, struct keel_lean **out)
{
    struct keel_lean *lean;
    KEEL_TRY(check_config(config));
    KEEL_TRY(keel_alloc(1, sizeof *lean, &lean));
    lean->config = *config;
    if (config->format != KEEL_LEAN_TOP_K) {
        lean->slice = slice_of(config, config->rank);
        lean->slice_bytes = slice_bytes(config, config->rank);
    }
    enum keel_status status = allocate(lean);
    if (status != KEEL_OK) {
        keel_lean_free(lean);
        return status;
    }
    *out = lean;
    return KEEL_OK;
}

void keel_lean_free(struct keel_lean *lean)
{
    if (lean == NULL)
        return;
    keel_free(lean->sum_counts);
    keel_free(lean->take_counts);
    keel_free(lean->give_counts);
    keel_free(lean->sum);
    keel_free(lean->taken);
    keel_free(lean->given);
    keel_free(lean->next);
    keel_free(lean->kept);
    keel_free(lean);
}

/* ---- what is kept -------------------------------------------------------------------------------------- */

static void swap_kept(struct keel_lean *lean)
{
    float *was = lean->kept;
    lean->kept = lean->next;
    lean->next = was;
}

bool keel_lean_undo(struct keel_lean *lean)
{
    if (!lean->may_undo)
        return false;
    swap_kept(lean);
    lean->may_undo = false;
    return true;
}

float *keel_lean_residual(struct keel_lean *lean, uint64_t *out_count)
{
    *out_count = lean->config.count + lean->slice.count;
    return lean->kept;
}

void keel_lean_fold(struct keel_lean *lean)
{
    float *slice = lean->kept + lean->config.count, *own = lean->kept + lean->slice.first;
    float times = lean->config.reduction == KEEL_AVERAGE ? (float)lean->config.rank_count : 1.0f;
    KEEL_ASSERT(lean->phase == IDLE);
    for (uint64_t i = 0; i < lean->slice.count; i++)
        own[i] += slice[i] * times;
    memset(slice, 0, keel_size(lean->slice.count * sizeof *slice));
    lean->may_undo = false;
}

void keel_lean_stats(const struct keel_lean *lean, struct keel_lean_stats *out)
{
    *out = lean->stats;
}

/* ---- heads --------------------------------------------------------------------------------------------- */

static struct head head_of(const struct keel_lean_config *config)
{
    return (struct head){.magic = HEAD_MAGIC,
                         .format = (uint8_t)config->format,
                         .reduction = (uint8_t)config->reduction,
                         .count = config->count};
}

/* If not all ranks mean the same, every rank finds one that does not mean what it does itself. */
static enum keel_status check_heads(const struct keel_lean *lean)
{
    const struct head own = head_of(&lean->config);
    for (uint32_t rank = 0; rank < lean->config.rank_count; rank++) {
        struct head head;
        memcpy(&head, lean->taken + taken_at(lean, rank), sizeof head);
        if (memcmp(&head, &own, sizeof head) != 0)
            return keel_fail(
                KEEL_MISMATCH,
                "lean all-reduce %llu: rank %u sends %s (%s) of %llu floats, rank %u %s (%s) of "
                "%llu; give all ranks the same config",
                (unsigned long long)lean->sequence, rank,
                keel_lean_format_name((enum keel_lean_format)head.format),
                keel_reduction_name((enum keel_reduction)head.reduction), (unsigned long long)head.count,
                lean->config.rank, keel_lean_format_name(lean->config.format),
                keel_reduction_name(lean->config.reduction), (unsigned long long)lean->config.count);
    }
    return KEEL_OK;
}

/* ---- lossy formats ------------------------------------------------------------------------------------- */

static enum keel_status scatter(struct keel_lean *lean, const float *part)
{
    const struct keel_lean_config *config = &lean->config;
    const struct head head = head_of(config);
    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        struct keel_tree_slice slice = slice_of(config, rank);
        uint8_t *at = lean->given + given_at(config, rank);
        memcpy(at, &head, sizeof head);
        keel_lean_encode(config->format, (struct keel_lean_run){slice.count, 0, slice.count},
                         part + slice.first, lean->kept + slice.first, at + sizeof head,
                         lean->next + slice.first);
    }
    const void *parts[] = {lean->given};
    struct keel_collective what = {.kind = KEEL_ALL_TO_ALL_V,
                                   .sequence = lean->sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .counts_in = lean->give_counts,
                                   .counts_out = lean->take_counts,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = lean->taken};
    KEEL_TRY(keel_group_begin(lean->group, &what, &lean->operation));
    lean->phase = SCATTER;
    return KEEL_OK;
}

/* In pieces that stay in the cache: decode and add all ranks', encode the sum. */
static void sum_slice(struct keel_lean *lean)
{
    float sum[KEEL_LEAN_STEP];
    const struct keel_lean_config *config = &lean->config;
    const uint64_t own = config->count; /* where the slice's part of what is kept begins */
    for (uint64_t at = 0; at < lean->slice.count; at += KEEL_LEAN_STEP) {
        uint64_t left = lean->slice.count - at;
        struct keel_lean_run run = {lean->slice.count, at, left < KEEL_LEAN_STEP ? left : KEEL_LEAN_STEP};
        for (uint32_t rank = 0; rank < config->rank_count; rank++)
            keel_lean_decode(config->format, run, lean->taken + taken_at(lean, rank) + sizeof(struct head),
                             rank > 0, sum);
        if (config->reduction == KEEL_AVERAGE)
            keel_combine_divide(KEEL_ELEMENT_F32, sum, run.count, config->rank_count);
        keel_lean_encode(config->format, run, sum, lean->kept + own + at, lean->sum, lean->next + own + at);
    }
}

static enum keel_status gather(struct keel_lean *lean)
{
    KEEL_TRY(check_heads(lean));
    sum_slice(lean);
    const void *parts[] = {lean->sum};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER_V,
                                   .sequence = lean->sequence + 1,
                                   .element = KEEL_ELEMENT_U8,
                                   .counts_out = lean->sum_counts,
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = lean->given};
    KEEL_TRY(keel_group_begin(lean->group, &what, &lean->operation));
    lean->phase = GATHER;
    return KEEL_OK;
}

static void deliver(struct keel_lean *lean)
{
    for (uint32_t rank = 0; rank < lean->config.rank_count; rank++) {
        struct keel_tree_slice slice = slice_of(&lean->config, rank);
        keel_lean_decode(lean->config.format, (struct keel_lean_run){slice.count, 0, slice.count},
                         lean->given + keel_lean_coded_bytes(lean->config.format, slice.first), false,
                         lean->result + slice.first);
    }
}

/* ---- top-k --------------------------------------------------------------------------------------------- */

static enum keel_status gather_pairs(struct keel_lean *lean, const float *part)
{
    const struct keel_lean_config *config = &lean->config;
    const struct head head = head_of(config);
    void *pairs = lean->given + sizeof head;
    memcpy(lean->given, &head, sizeof head);
    keel_lean_select(part, lean->kept, config->count, config->keep, pairs, lean->next);
    const void *parts[] = {lean->given};
    struct keel_collective what = {.kind = KEEL_ALL_GATHER,
                                   .sequence = lean->sequence,
                                   .element = KEEL_ELEMENT_U8,
                                   .count = pairs_bytes(config),
                                   .parts = parts,
                                   .part_count = 1,
                                   .result = lean->taken};
    KEEL_TRY(keel_group_begin(lean->group, &what, &lean->operation));
    lean->phase = GATHER;
    return KEEL_OK;
}

static enum keel_status deliver_pairs(struct keel_lean *lean)
{
    const struct keel_lean_config *config = &lean->config;
    KEEL_TRY(check_heads(lean));
    memset(lean->result, 0, keel_size(config->count * sizeof *lean->result));
    for (uint32_t rank = 0; rank < config->rank_count; rank++) {
        const void *at = lean->taken + taken_at(lean, rank) + sizeof(struct head);
        const struct keel_lean_pair *pairs = at;
        for (uint64_t k = 0; k < config->keep; k++) {
            if (pairs[k].index >= config->count)
                return keel_fail(KEEL_CORRUPT, "lean all-reduce %llu: rank %u sends float %u of %llu",
                                 (unsigned long long)lean->sequence, rank, pairs[k].index,
                                 (unsigned long long)config->count);
            float *sum = &lean->result[pairs[k].index];
            *sum = f32_sum(*sum, pairs[k].value);
        }
    }
    if (config->reduction == KEEL_AVERAGE)
        keel_combine_divide(KEEL_ELEMENT_F32, lean->result, config->count, config->rank_count);
    return KEEL_OK;
}

/* ---- a call -------------------------------------------------------------------------------------------- */

static enum keel_status check_call(const struct keel_lean *lean, const struct keel_group *group,
                                   uint64_t sequence, const float *part, const float *result)
{
    const struct keel_lean_config *config = &lean->config;
    const char *why = NULL;
    if (lean->phase != IDLE)
        why = "the call before has not been waited for";
    else if (group->rank != config->rank || group->rank_count != config->rank_count)
        why = "the group has other ranks than the object was made for";
    else if (config->count > 0 && (part == NULL || result == NULL))
        why = "the part or the result is missing";
    else if (config->count > 0 && part < result + config->count && result < part + config->count)
        why = "the result lies on the part; parts are kept, so give it a place of its own";
    if (why != NULL)
        return keel_fail(KEEL_INVALID, "lean all-reduce %llu: %s", (unsigned long long)sequence, why);
    return KEEL_OK;
}

enum keel_status keel_lean_begin(struct keel_lean *lean, struct keel_group *group, uint64_t sequence,
                                 const float *part, float *result)
{
    KEEL_TRY(check_call(lean, group, sequence, part, result));
    lean->group = group;
    lean->sequence = sequence;
    lean->result = result;
    lean->may_undo = false;
    keel_endpoint_stats(group->endpoint, &lean->before);
    return lean->config.format == KEEL_LEAN_TOP_K ? gather_pairs(lean, part) : scatter(lean, part);
}

static enum keel_status finish(struct keel_lean *lean)
{
    struct keel_transport_stats now;
    if (lean->config.format == KEEL_LEAN_TOP_K)
        KEEL_TRY(deliver_pairs(lean));
    else
        deliver(lean);
    keel_endpoint_stats(lean->group->endpoint, &now);
    lean->stats.calls++;
    lean->stats.wire_bytes += now.bytes_sent - lean->before.bytes_sent;
    lean->stats.wire_messages += now.messages_sent - lean->before.messages_sent;
    swap_kept(lean);
    lean->may_undo = true;
    return KEEL_OK;
}

enum keel_status keel_lean_wait(struct keel_lean *lean, uint64_t deadline_ns)
{
    enum keel_status status = KEEL_OK;
    if (lean->phase == IDLE)
        return keel_fail(KEEL_INVALID, "lean all-reduce: nothing was begun");
    if (lean->phase == SCATTER) {
        status = keel_operation_wait(lean->operation, deadline_ns);
        if (status == KEEL_OK)
            status = gather(lean);
    }
    if (status == KEEL_OK)
        status = keel_operation_wait(lean->operation, deadline_ns);
    if (status == KEEL_OK)
        status = finish(lean);
    lean->operation = NULL;
    lean->phase = IDLE;
    return status;
}

enum keel_status keel_lean_run(struct keel_lean *lean, struct keel_group *group, uint64_t sequence,
                               const float *part, float *result, uint64_t deadline_ns)
{
    KEEL_TRY(keel_lean_begin(lean, group, sequence, part, result));
    return keel_lean_wait(lean, deadline_ns);
}
