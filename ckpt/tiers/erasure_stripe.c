/* erasure_stripe.c - one stripe of an erasure set: which cells are sound, and computing the others.
 *
 * What may be trusted. A header and a footer whose checks are right, and of those the ones that most members
 * agree on. A stripe's block of checks that is bound to that set: it tells of every cell of the stripe
 * whether it is what it was. Where all m blocks of a stripe are lost, all k data cells are there, or nothing
 * can be done; then a shard is trusted when the whole of it has the digest that the footers name.
 *
 * A candidate is one copy of one file: each member has at most one of its shard and one of its parity in each
 * of the tiers. One that does not answer any more is given up; one that gives wrong bytes only loses those.
 */
#include "erasure_set.h"
#include "tier.h"
#include "tier_digest.h"
#include <stdio.h>
#include <string.h>

uint8_t *keel_erasure_cell_of(const struct keel_erasure_set *set, uint32_t member)
{
    return set->cells + (size_t)member * set->shape.cell_bytes;
}

/* ---- reading candidates -------------------------------------------------------------------------------- */

static bool try_read(struct keel_erasure_candidate *candidate, uint64_t offset, void *out, size_t bytes)
{
    if (candidate->source == NULL)
        return false;
    enum keel_status status = keel_tier_read(candidate->source, offset, out, bytes);
    if (status == KEEL_TIMEOUT || status == KEEL_PEER_LOST) {
        keel_tier_close_source(candidate->source);
        candidate->source = NULL;
    }
    return status == KEEL_OK;
}

static bool whole_is_right(struct keel_erasure_set *set, struct keel_erasure_candidate *candidate,
                           uint32_t member)
{
    struct keel_digest_stream digest;
    uint8_t found[KEEL_DIGEST_BYTES];
    if (candidate->whole != KEEL_TRUST_UNKNOWN)
        return candidate->whole == KEEL_TRUST_WHOLE;
    candidate->whole = KEEL_TRUST_NONE;
    if (!set->digests_known || candidate->source == NULL)
        return false;
    keel_digest_begin(&digest);
    for (uint64_t at = 0, end = candidate->source->info.bytes; at < end;) {
        size_t bytes = end - at < KEEL_TIER_PIECE_BYTES ? (size_t)(end - at) : KEEL_TIER_PIECE_BYTES;
        if (!try_read(candidate, at, set->piece, bytes))
            return false;
        keel_digest_add(&digest, set->piece, bytes);
        at += bytes;
    }
    keel_digest_end(&digest, found);
    if (memcmp(found, set->footer.digests[member], sizeof found) == 0)
        candidate->whole = KEEL_TRUST_WHOLE;
    return candidate->whole == KEEL_TRUST_WHOLE;
}

static bool cell_is_right(const struct keel_erasure_set *set, uint32_t member)
{
    return keel_format_check(keel_erasure_cell_of(set, member), set->shape.cell_bytes) ==
           set->block.checks[member];
}

static bool fetch_data(struct keel_erasure_set *set, uint32_t member)
{
    const uint32_t cell_bytes = set->shape.cell_bytes;
    const uint64_t offset = keel_parity_data_before(&set->shape, set->stripe, member) * cell_bytes;
    const uint64_t shard_bytes = set->header.members[member].shard_bytes;
    uint64_t left = offset < shard_bytes ? shard_bytes - offset : 0;
    size_t bytes = left < cell_bytes ? (size_t)left : cell_bytes;
    memset(keel_erasure_cell_of(set, member) + bytes, 0, cell_bytes - bytes);
    if (bytes == 0)
        return true;
    for (uint32_t i = 0; i < set->tier_count; i++) {
        struct keel_erasure_candidate *candidate = &set->shards[member][i];
        if (!set->checks_known && !whole_is_right(set, candidate, member))
            continue;
        if (try_read(candidate, offset, keel_erasure_cell_of(set, member), bytes) &&
            (!set->checks_known || cell_is_right(set, member)))
            return true;
    }
    return false;
}

static uint64_t record_offset(const struct keel_erasure_set *set, uint32_t member)
{
    return keel_parity_record_offset(&set->shape,
                                     set->stripe - keel_parity_data_before(&set->shape, set->stripe, member));
}

static bool fetch_parity(struct keel_erasure_set *set, uint32_t member)
{
    for (uint32_t i = 0; i < set->tier_count && set->checks_known; i++)
        if (try_read(&set->parities[member][i], record_offset(set, member) + KEEL_PARITY_BLOCK_BYTES,
                     keel_erasure_cell_of(set, member), set->shape.cell_bytes) &&
            cell_is_right(set, member))
            return true;
    return false;
}

/* ---- one stripe ---------------------------------------------------------------------------------------- */

static void find_checks(struct keel_erasure_set *set)
{
    const uint32_t n = set->shape.node_count;
    for (uint32_t row = 0; row < set->shape.parity_count && !set->checks_known; row++) {
        uint32_t member = (uint32_t)((set->stripe + row) % n);
        for (uint32_t i = 0; i < set->tier_count && !set->checks_known; i++)
            set->checks_known = try_read(&set->parities[member][i], record_offset(set, member), &set->block,
                                         sizeof set->block) &&
                                keel_parity_stripe_sound(&set->block, set->set_check, set->stripe, member);
    }
}

static void go_to_stripe(struct keel_erasure_set *set, uint64_t stripe)
{
    if (set->stripe == stripe)
        return;
    set->stripe = stripe;
    set->checks_known = false;
    memset(set->have, 0, sizeof set->have);
    find_checks(set);
}

static void fetch(struct keel_erasure_set *set, uint32_t member)
{
    if (set->have[member])
        return;
    bool parity = keel_parity_row(&set->shape, set->stripe, member) < set->shape.parity_count;
    set->have[member] = parity ? fetch_parity(set, member) : fetch_data(set, member);
}

static enum keel_status too_much_lost(const struct keel_erasure_set *set)
{
    char lost[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < set->shape.node_count && used < sizeof lost - 16; i++)
        if (!set->have[i])
            used += (size_t)snprintf(lost + used, sizeof lost - used, "%s%u", used > 0 ? ", " : "", i);
    return keel_fail(KEEL_CORRUPT,
                     "%s: stripe %llu: the cells of members %s are lost or damaged, and %u are the most that "
                     "it mends; use another copy or snapshot",
                     set->tier.name, (unsigned long long)set->stripe, lost, set->shape.parity_count);
}

/* Compute the cells that are not here from k that are. */
static void compute_missing(struct keel_erasure_set *set)
{
    const uint32_t n = set->shape.node_count, m = set->shape.parity_count, k = n - m;
    uint32_t rows[KEEL_ERASURE_NODES_MAX], wanted[KEEL_ERASURE_NODES_MAX];
    uint8_t *sources[KEEL_ERASURE_NODES_MAX], *out[KEEL_ERASURE_NODES_MAX];
    uint32_t used = 0, missing = 0, data = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = keel_parity_row(&set->shape, set->stripe, i);
        row = row < m ? k + row : data++;
        if (!set->have[i]) {
            wanted[missing] = row;
            out[missing++] = keel_erasure_cell_of(set, i);
        } else if (used < k) {
            rows[used] = row;
            sources[used++] = keel_erasure_cell_of(set, i);
        }
    }
    keel_erasure_decode(&set->code, rows, sources, wanted, missing, out, set->shape.cell_bytes);
}

enum keel_status keel_erasure_need_cell(struct keel_erasure_set *set, uint64_t stripe, uint32_t member)
{
    const uint32_t n = set->shape.node_count, k = n - set->shape.parity_count;
    go_to_stripe(set, stripe);
    fetch(set, member);
    if (set->have[member])
        return KEEL_OK;
    uint32_t found = 0;
    for (uint32_t i = 0; i < n && found < k; i++) {
        fetch(set, i);
        found += set->have[i];
    }
    if (found < k)
        return too_much_lost(set);
    compute_missing(set);
    for (uint32_t i = 0; i < n; i++) {
        if (set->checks_known && !set->have[i] && !cell_is_right(set, i))
            return keel_fail(KEEL_CORRUPT, "%s: stripe %llu: what was computed of member %u is wrong",
                             set->tier.name, (unsigned long long)stripe, i);
        set->have[i] = true;
    }
    return KEEL_OK;
}

enum keel_status keel_erasure_need_block(struct keel_erasure_set *set, uint64_t stripe, uint32_t member,
                                         struct keel_parity_stripe *out)
{
    KEEL_TRY(keel_erasure_need_cell(set, stripe, member));
    if (!set->checks_known) { /* then all cells are here: one was computed from all the others */
        set->block = (struct keel_parity_stripe){.set_check = set->set_check, .stripe = stripe};
        for (uint32_t i = 0; i < set->shape.node_count; i++)
            set->block.checks[i] = keel_format_check(keel_erasure_cell_of(set, i), set->shape.cell_bytes);
        set->checks_known = true;
    }
    *out = set->block;
    out->member = member;
    out->check = 0;
    keel_parity_stripe_seal(out);
    return KEEL_OK;
}
