/* tier_erasure.c - an erasure set as a tier to read from: what is sound is taken, the rest is computed
 * (erasure_stripe.c). Opening it elects, of all sound headers and footers, those that most members agree on.
 */
#include "erasure_set.h"
#include "store.h"
#include "tier.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

struct erasure_source {
    struct keel_tier_source source;
    uint32_t member;
};

static struct keel_erasure_set *erasure_of(struct keel_tier *tier)
{
    return (struct keel_erasure_set *)tier;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static enum keel_status read_shard(struct keel_erasure_set *set, uint32_t member, uint64_t offset,
                                   uint8_t *out, size_t bytes)
{
    const uint32_t cell_bytes = set->shape.cell_bytes;
    while (bytes > 0) {
        uint64_t cell = offset / cell_bytes, skip = offset % cell_bytes;
        size_t part = cell_bytes - skip < bytes ? (size_t)(cell_bytes - skip) : bytes;
        KEEL_TRY(keel_erasure_need_cell(set, keel_parity_stripe_of(&set->shape, member, true, cell), member));
        memcpy(out, keel_erasure_cell_of(set, member) + skip, part);
        out += part;
        offset += part;
        bytes -= part;
    }
    return KEEL_OK;
}

static void copy_header(const struct keel_erasure_set *set, uint32_t member, struct keel_parity_header *out)
{
    *out = set->header;
    out->member = member;
    out->file_bytes = keel_parity_file_bytes(&set->shape, member);
    keel_parity_header_seal(out);
}

static enum keel_status copy_footer(const struct keel_erasure_set *set, uint32_t member,
                                    struct keel_parity_footer *out)
{
    if (!set->digests_known)
        return keel_fail(KEEL_CORRUPT, "%s: all footers of its parity are lost or damaged; make it again",
                         set->tier.name);
    *out = set->footer;
    out->member = member;
    keel_parity_footer_seal(out);
    return KEEL_OK;
}

/* A parity file is blocks and cells by turns; read one such part, or what is wanted of it. */
static enum keel_status read_parity_part(struct keel_erasure_set *set, uint32_t member, uint64_t offset,
                                         uint8_t *out, size_t bytes, size_t *out_bytes)
{
    union {
        struct keel_parity_header header;
        struct keel_parity_stripe stripe;
        struct keel_parity_footer footer;
        uint8_t bytes[KEEL_PARITY_BLOCK_BYTES];
    } block;
    const uint64_t record_bytes = (uint64_t)KEEL_PARITY_BLOCK_BYTES + set->shape.cell_bytes;
    const uint64_t footer_at = keel_parity_file_bytes(&set->shape, member) - KEEL_PARITY_BLOCK_BYTES;
    uint64_t skip = offset, size = KEEL_PARITY_BLOCK_BYTES;
    const uint8_t *from = block.bytes;
    if (offset < KEEL_PARITY_BLOCK_BYTES) {
        copy_header(set, member, &block.header);
    } else if (offset >= footer_at) {
        KEEL_TRY(copy_footer(set, member, &block.footer));
        skip = offset - footer_at;
    } else {
        uint64_t cell = (offset - KEEL_PARITY_BLOCK_BYTES) / record_bytes;
        uint64_t stripe = keel_parity_stripe_of(&set->shape, member, false, cell);
        skip = (offset - KEEL_PARITY_BLOCK_BYTES) % record_bytes;
        if (skip < KEEL_PARITY_BLOCK_BYTES) {
            KEEL_TRY(keel_erasure_need_block(set, stripe, member, &block.stripe));
        } else {
            KEEL_TRY(keel_erasure_need_cell(set, stripe, member));
            skip -= KEEL_PARITY_BLOCK_BYTES;
            size = set->shape.cell_bytes;
            from = keel_erasure_cell_of(set, member);
        }
    }
    *out_bytes = size - skip < bytes ? (size_t)(size - skip) : bytes;
    memcpy(out, from + skip, *out_bytes);
    return KEEL_OK;
}

static enum keel_status read_parity(struct keel_erasure_set *set, uint32_t member, uint64_t offset,
                                    uint8_t *out, size_t bytes)
{
    while (bytes > 0) {
        size_t part = 0;
        KEEL_TRY(read_parity_part(set, member, offset, out, bytes, &part));
        out += part;
        offset += part;
        bytes -= part;
    }
    return KEEL_OK;
}

static enum keel_status erasure_read(struct keel_tier_source *source, uint64_t offset, void *out,
                                     size_t bytes)
{
    struct keel_erasure_set *set = erasure_of(source->tier);
    uint32_t member = ((struct erasure_source *)source)->member;
    keel_mutex_lock(&set->lock);
    enum keel_status status = source->info.object.kind == KEEL_OBJECT_SHARD
                                  ? read_shard(set, member, offset, out, bytes)
                                  : read_parity(set, member, offset, out, bytes);
    keel_mutex_unlock(&set->lock);
    return status;
}

/* ---- listing and opening ------------------------------------------------------------------------------- */

static bool has_source(const struct keel_erasure_candidate *candidates)
{
    bool any = false;
    for (uint32_t i = 0; i < KEEL_TIER_SOURCES_MAX; i++)
        any = any || candidates[i].source != NULL;
    return any;
}

/* Are there files enough that, were they sound, every stripe could be computed? Stripes repeat after n. */
static bool can_compute(struct keel_erasure_set *set)
{
    const uint32_t n = set->shape.node_count, m = set->shape.parity_count;
    for (uint32_t turn = 0; turn < n; turn++) {
        uint32_t there = 0;
        for (uint32_t i = 0; i < n; i++)
            there += keel_parity_row(&set->shape, turn, i) < m
                         ? has_source(set->parities[i])
                         : set->header.members[i].shard_bytes == 0 || has_source(set->shards[i]);
        if (there < n - m)
            return false;
    }
    return true;
}

static struct keel_object_info info_of(const struct keel_erasure_set *set, uint32_t member, bool shard)
{
    struct keel_object_info info = {.object = {.step = set->header.step, .attempt = set->header.attempt}};
    if (shard) {
        info.object.kind = KEEL_OBJECT_SHARD;
        info.object.member = set->header.members[member].rank;
        info.bytes = set->header.members[member].shard_bytes;
        info.digest_known = set->digests_known;
        if (set->digests_known)
            memcpy(info.digest, set->footer.digests[member], sizeof info.digest);
    } else {
        info.object.kind = KEEL_OBJECT_PARITY;
        info.object.set = set->header.set;
        info.object.member = member;
        info.bytes = keel_parity_file_bytes(&set->shape, member);
    }
    return info;
}

static bool offers(struct keel_erasure_set *set, uint32_t member, bool shard)
{
    if (shard && set->header.members[member].rank == KEEL_ERASURE_NO_SHARD)
        return false;
    keel_mutex_lock(&set->lock);
    bool there = has_source(shard ? set->shards[member] : set->parities[member]) || can_compute(set);
    keel_mutex_unlock(&set->lock);
    return there;
}

static enum keel_status
erasure_list(struct keel_tier *tier,
             enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct keel_erasure_set *set = erasure_of(tier);
    for (uint32_t i = 0; i < set->shape.node_count; i++)
        for (int shard = 0; shard < 2; shard++) {
            if (!offers(set, i, shard != 0))
                continue;
            struct keel_object_info info = info_of(set, i, shard != 0);
            KEEL_TRY(visit(context, &info));
        }
    return KEEL_OK;
}

static bool find_member(const struct keel_erasure_set *set, const struct keel_object *object, uint32_t *out)
{
    for (uint32_t i = 0; i < set->shape.node_count; i++)
        for (int shard = 0; shard < 2; shard++) {
            struct keel_object_info info = info_of(set, i, shard != 0);
            *out = i;
            if (keel_object_compare(&info.object, object) == 0)
                return true;
        }
    return false;
}

static enum keel_status erasure_open(struct keel_tier_source *source)
{
    struct keel_erasure_set *set = erasure_of(source->tier);
    const struct keel_object *object = &source->info.object;
    uint32_t member;
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    if (!find_member(set, object, &member))
        return keel_fail(KEEL_NOT_FOUND, "%s: %s is no part of it", set->tier.name, name);
    bool shard = object->kind == KEEL_OBJECT_SHARD;
    if (!offers(set, member, shard))
        return keel_fail(KEEL_NOT_FOUND, "%s: %s is lost, with more than the %u nodes that it mends",
                         set->tier.name, name, set->shape.parity_count);
    source->info = info_of(set, member, shard);
    ((struct erasure_source *)source)->member = member;
    return KEEL_OK;
}

/* ---- opening a set ------------------------------------------------------------------------------------- */

static void erasure_end(struct keel_tier *tier)
{
    struct keel_erasure_set *set = erasure_of(tier);
    for (uint32_t i = 0; i < KEEL_ERASURE_NODES_MAX; i++)
        for (uint32_t l = 0; l < KEEL_TIER_SOURCES_MAX; l++) {
            keel_tier_close_source(set->shards[i][l].source);
            keel_tier_close_source(set->parities[i][l].source);
        }
    keel_erasure_code_fini(&set->code);
    keel_free(set->cells);
    keel_free(set->piece);
    keel_mutex_fini(&set->lock);
    keel_free(set);
}

static const struct keel_tier_ops erasure_ops = {.source_bytes = sizeof(struct erasure_source),
                                                 .list = erasure_list,
                                                 .open = erasure_open,
                                                 .read = erasure_read,
                                                 .end = erasure_end};

/* Of all sound headers and footers the set that most belong to. */
struct vote {
    uint64_t set_check;
    uint32_t votes;
};

static void count_vote(struct vote *votes, uint64_t set_check)
{
    uint32_t i = 0;
    while (i + 1 < KEEL_ERASURE_NODES_MAX && votes[i].votes > 0 && votes[i].set_check != set_check)
        i++;
    votes[i].set_check = set_check;
    votes[i].votes++;
}

/* Headers that most agree on; the parity candidates are open. */
static bool elect_header(struct keel_erasure_set *set)
{
    struct vote votes[KEEL_ERASURE_NODES_MAX] = {0};
    uint32_t best = 0;
    for (uint32_t i = 0; i < KEEL_ERASURE_NODES_MAX; i++)
        for (uint32_t l = 0; l < set->tier_count; l++) {
            struct keel_parity_header header;
            struct keel_tier_source *source = set->parities[i][l].source;
            if (source == NULL || keel_parity_read_header(source, &header) != KEEL_OK)
                continue;
            uint64_t set_check = keel_parity_set_check(&header);
            count_vote(votes, set_check);
            uint32_t now = 0;
            for (uint32_t v = 0; v < KEEL_ERASURE_NODES_MAX; v++)
                if (votes[v].set_check == set_check)
                    now = votes[v].votes;
            if (now <= best)
                continue;
            best = now;
            set->header = header;
            set->set_check = set_check;
        }
    set->header.member = 0;
    set->shape = keel_parity_shape_of(&set->header);
    return best > 0;
}

static void find_footer(struct keel_erasure_set *set)
{
    for (uint32_t i = 0; i < set->shape.node_count && !set->digests_known; i++)
        for (uint32_t l = 0; l < set->tier_count && !set->digests_known; l++) {
            struct keel_tier_source *source = set->parities[i][l].source;
            set->digests_known = source != NULL && keel_parity_read_footer(source, &set->footer) == KEEL_OK &&
                                 set->footer.set_check == set->set_check;
        }
}

/* A candidate with another size is none, nor is one that cannot be opened; without memory or a
 * descriptor nobody can tell. */
static enum keel_status open_candidate(struct keel_tier *tier, const struct keel_object *object,
                                       uint64_t wanted_bytes, struct keel_erasure_candidate *out)
{
    struct keel_tier_source *source;
    enum keel_status status = keel_tier_open(tier, object, &source);
    if (status != KEEL_OK)
        return keel_is_shortage(status) ? status : KEEL_OK;
    if (wanted_bytes == UINT64_MAX || source->info.bytes == wanted_bytes)
        out->source = source;
    else
        keel_tier_close_source(source);
    return KEEL_OK;
}

static enum keel_status open_candidates(struct keel_erasure_set *set, uint64_t step, uint64_t attempt,
                                        uint32_t number)
{
    struct keel_object object = {.step = step, .attempt = attempt, .kind = KEEL_OBJECT_PARITY, .set = number};
    for (object.member = 0; object.member < KEEL_ERASURE_NODES_MAX; object.member++)
        for (uint32_t l = 0; l < set->tier_count; l++)
            KEEL_TRY(open_candidate(set->tiers[l], &object, UINT64_MAX, &set->parities[object.member][l]));
    if (!elect_header(set))
        return keel_fail(KEEL_NOT_FOUND, "%s: no parity file of it with a sound header is there",
                         set->tier.name);
    find_footer(set);
    object = (struct keel_object){.step = step, .attempt = attempt, .kind = KEEL_OBJECT_SHARD};
    for (uint32_t i = 0; i < set->shape.node_count; i++) {
        object.member = set->header.members[i].rank;
        for (uint32_t l = 0; l < set->tier_count && object.member != KEEL_ERASURE_NO_SHARD; l++)
            KEEL_TRY(open_candidate(set->tiers[l], &object, set->header.members[i].shard_bytes,
                                    &set->shards[i][l]));
    }
    return KEEL_OK;
}

static enum keel_status prepare(struct keel_erasure_set *set, uint64_t step, uint64_t attempt,
                                uint32_t number)
{
    KEEL_TRY(open_candidates(set, step, attempt, number));
    KEEL_TRY(keel_erasure_code_init(&set->code, set->shape.node_count - set->shape.parity_count,
                                    set->shape.parity_count));
    KEEL_TRY(keel_alloc(KEEL_TIER_PIECE_BYTES, 1, &set->piece));
    return keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)set->shape.node_count * set->shape.cell_bytes,
                              &set->cells);
}

enum keel_status keel_tier_erasure_open(struct keel_tier *const *tiers, uint32_t tier_count, uint64_t step,
                                        uint64_t attempt, uint32_t set_number, struct keel_tier **out)
{
    char name[KEEL_TIER_NAME_BYTES], step_name[KEEL_STEP_NAME_BYTES];
    struct keel_erasure_set *set;
    if (tier_count == 0 || tier_count > KEEL_TIER_SOURCES_MAX)
        return keel_fail(KEEL_INVALID, "an erasure set is read from 1 to %d tiers", KEEL_TIER_SOURCES_MAX);
    KEEL_TRY(keel_alloc(1, sizeof *set, &set));
    keel_step_name(step, attempt, step_name);
    snprintf(name, sizeof name, "erasure set %u of %s", set_number, step_name);
    enum keel_status status =
        keel_tier_init(&set->tier, &erasure_ops, KEEL_LATENCY_ERASURE, tiers[0]->run, name);
    if (status != KEEL_OK) {
        keel_free(set);
        return status;
    }
    set->tiers = tiers;
    set->tier_count = tier_count;
    set->stripe = UINT64_MAX;
    keel_mutex_init(&set->lock);
    status = prepare(set, step, attempt, set_number);
    if (status != KEEL_OK) {
        erasure_end(&set->tier);
        return status;
    }
    *out = &set->tier;
    return KEEL_OK;
}
