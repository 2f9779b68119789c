/* level_erasure.c - an erasure set as a level to read from: what is sound is taken, the rest is computed.
 *
 * What may be trusted. A header and a footer whose checks are right, and of those the ones that most members
 * agree on. A stripe's block of checks that is bound to that set: it tells of every cell of the stripe
 * whether it is what it was. Where all m blocks of a stripe are lost, all k data cells are there, or nothing
 * can be done; then a shard is trusted when the whole of it has the digest that the footers name.
 *
 * A candidate is one copy of one file: each member has at most one of its shard and one of its parity in each
 * of the levels. One that does not answer any more is given up; one that gives wrong bytes only loses those.
 */
#include "erasure_code.h"
#include "level.h"
#include "level_digest.h"
#include "parity.h"
#include "store.h"
#include <keel/memory.h>
#include <keel/thread.h>
#include <stdio.h>
#include <string.h>

enum trust { TRUST_UNKNOWN, TRUST_WHOLE, TRUST_NONE };

struct candidate {
    struct keel_level_source *source; /* owned; NULL: none */
    enum trust whole;                 /* a shard's: does all of it have the digest? */
};

struct erasure_level {
    struct keel_level level;
    struct keel_level *const *levels; /* borrowed */
    uint32_t level_count;
    struct keel_parity_header header; /* of member 0 */
    struct keel_parity_shape shape;
    uint64_t set_check;
    bool digests_known;
    struct keel_parity_footer footer; /* of member 0, when digests_known */
    struct keel_erasure_code code;
    struct keel_mutex lock; /* guards all below: */
    struct candidate shards[KEEL_ERASURE_NODES_MAX][KEEL_LEVEL_SOURCES_MAX];
    struct candidate parities[KEEL_ERASURE_NODES_MAX][KEEL_LEVEL_SOURCES_MAX];
    uint64_t stripe;                   /* the one whose cells are here; UINT64_MAX: none */
    bool have[KEEL_ERASURE_NODES_MAX]; /* its cell of that member is here, and right */
    bool checks_known;
    struct keel_parity_stripe block; /* of any member, when checks_known */
    uint8_t *cells;                  /* owned; one a member */
    uint8_t *piece;                  /* owned; KEEL_LEVEL_PIECE_BYTES, for digests of whole shards */
};

struct erasure_source {
    struct keel_level_source source;
    uint32_t member;
};

static struct erasure_level *erasure_of(struct keel_level *level)
{
    return (struct erasure_level *)level;
}

static uint8_t *cell_of(const struct erasure_level *set, uint32_t member)
{
    return set->cells + (size_t)member * set->shape.cell_bytes;
}

/* ---- reading candidates ------------------------------------------------------------------------------- */

static bool try_read(struct candidate *candidate, uint64_t offset, void *out, size_t bytes)
{
    if (candidate->source == NULL)
        return false;
    enum keel_status status = keel_level_read(candidate->source, offset, out, bytes);
    if (status == KEEL_TIMEOUT || status == KEEL_PEER_LOST) {
        keel_level_close_source(candidate->source);
        candidate->source = NULL;
    }
    return status == KEEL_OK;
}

static bool whole_is_right(struct erasure_level *set, struct candidate *candidate, uint32_t member)
{
    struct keel_digest_stream digest;
    uint8_t found[KEEL_DIGEST_BYTES];
    if (candidate->whole != TRUST_UNKNOWN)
        return candidate->whole == TRUST_WHOLE;
    candidate->whole = TRUST_NONE;
    if (!set->digests_known || candidate->source == NULL)
        return false;
    keel_digest_begin(&digest);
    for (uint64_t at = 0, end = candidate->source->info.bytes; at < end;) {
        size_t bytes = end - at < KEEL_LEVEL_PIECE_BYTES ? (size_t)(end - at) : KEEL_LEVEL_PIECE_BYTES;
        if (!try_read(candidate, at, set->piece, bytes))
            return false;
        keel_digest_add(&digest, set->piece, bytes);
        at += bytes;
    }
    keel_digest_end(&digest, found);
    if (memcmp(found, set->footer.digests[member], sizeof found) == 0)
        candidate->whole = TRUST_WHOLE;
    return candidate->whole == TRUST_WHOLE;
}

static bool cell_is_right(const struct erasure_level *set, uint32_t member)
{
    return keel_format_check(cell_of(set, member), set->shape.cell_bytes) == set->block.checks[member];
}

static bool fetch_data(struct erasure_level *set, uint32_t member)
{
    const uint32_t cell_bytes = set->shape.cell_bytes;
    const uint64_t offset = keel_parity_data_before(&set->shape, set->stripe, member) * cell_bytes;
    const uint64_t shard_bytes = set->header.members[member].shard_bytes;
    uint64_t left = offset < shard_bytes ? shard_bytes - offset : 0;
    size_t bytes = left < cell_bytes ? (size_t)left : cell_bytes;
    memset(cell_of(set, member) + bytes, 0, cell_bytes - bytes);
    if (bytes == 0)
        return true;
    for (uint32_t i = 0; i < set->level_count; i++) {
        struct candidate *candidate = &set->shards[member][i];
        if (!set->checks_known && !whole_is_right(set, candidate, member))
            continue;
        if (try_read(candidate, offset, cell_of(set, member), bytes) &&
            (!set->checks_known || cell_is_right(set, member)))
            return true;
    }
    return false;
}

static uint64_t record_offset(const struct erasure_level *set, uint32_t member)
{
    return keel_parity_record_offset(&set->shape,
                                     set->stripe - keel_parity_data_before(&set->shape, set->stripe, member));
}

static bool fetch_parity(struct erasure_level *set, uint32_t member)
{
    for (uint32_t i = 0; i < set->level_count && set->checks_known; i++)
        if (try_read(&set->parities[member][i], record_offset(set, member) + KEEL_PARITY_BLOCK_BYTES,
                     cell_of(set, member), set->shape.cell_bytes) &&
            cell_is_right(set, member))
            return true;
    return false;
}

/* ---- one stripe ---------------------------------------------------------------------------------------- */

static void find_checks(struct erasure_level *set)
{
    const uint32_t n = set->shape.node_count;
    for (uint32_t row = 0; row < set->shape.parity_count && !set->checks_known; row++) {
        uint32_t member = (uint32_t)((set->stripe + row) % n);
        for (uint32_t i = 0; i < set->level_count && !set->checks_known; i++)
            set->checks_known = try_read(&set->parities[member][i], record_offset(set, member), &set->block,
                                         sizeof set->block) &&
                                keel_parity_stripe_sound(&set->block, set->set_check, set->stripe, member);
    }
}

static void go_to_stripe(struct erasure_level *set, uint64_t stripe)
{
    if (set->stripe == stripe)
        return;
    set->stripe = stripe;
    set->checks_known = false;
    memset(set->have, 0, sizeof set->have);
    find_checks(set);
}

static void fetch(struct erasure_level *set, uint32_t member)
{
    if (set->have[member])
        return;
    bool parity = keel_parity_row(&set->shape, set->stripe, member) < set->shape.parity_count;
    set->have[member] = parity ? fetch_parity(set, member) : fetch_data(set, member);
}

static enum keel_status too_much_lost(const struct erasure_level *set)
{
    char lost[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < set->shape.node_count && used < sizeof lost - 16; i++)
        if (!set->have[i])
            used += (size_t)snprintf(lost + used, sizeof lost - used, "%s%u", used > 0 ? ", " : "", i);
    return keel_fail(KEEL_CORRUPT,
                     "%s: stripe %llu: the cells of members %s are lost or damaged, and %u are the most that "
                     "it mends; use another copy or snapshot",
                     set->level.name, (unsigned long long)set->stripe, lost, set->shape.parity_count);
}

/* Compute the cells that are not here from k that are. */
static void compute_missing(struct erasure_level *set)
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
            out[missing++] = cell_of(set, i);
        } else if (used < k) {
            rows[used] = row;
            sources[used++] = cell_of(set, i);
        }
    }
    keel_erasure_decode(&set->code, rows, sources, wanted, missing, out, set->shape.cell_bytes);
}

/* Have the cell of that member, from its files or from those of others. */
static enum keel_status need_cell(struct erasure_level *set, uint64_t stripe, uint32_t member)
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
                             set->level.name, (unsigned long long)stripe, i);
        set->have[i] = true;
    }
    return KEEL_OK;
}

/* The block of checks of that stripe, as it is in that member's file. */
static enum keel_status need_block(struct erasure_level *set, uint64_t stripe, uint32_t member,
                                   struct keel_parity_stripe *out)
{
    KEEL_TRY(need_cell(set, stripe, member));
    if (!set->checks_known) { /* then all cells are here: one was computed from all the others */
        set->block = (struct keel_parity_stripe){.set_check = set->set_check, .stripe = stripe};
        for (uint32_t i = 0; i < set->shape.node_count; i++)
            set->block.checks[i] = keel_format_check(cell_of(set, i), set->shape.cell_bytes);
        set->checks_known = true;
    }
    *out = set->block;
    out->member = member;
    out->check = 0;
    keel_parity_stripe_seal(out);
    return KEEL_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static enum keel_status read_shard(struct erasure_level *set, uint32_t member, uint64_t offset, uint8_t *out,
                                   size_t bytes)
{
    const uint32_t cell_bytes = set->shape.cell_bytes;
    while (bytes > 0) {
        uint64_t cell = offset / cell_bytes, skip = offset % cell_bytes;
        size_t part = cell_bytes - skip < bytes ? (size_t)(cell_bytes - skip) : bytes;
        KEEL_TRY(need_cell(set, keel_parity_stripe_of(&set->shape, member, true, cell), member));
        memcpy(out, cell_of(set, member) + skip, part);
        out += part;
        offset += part;
        bytes -= part;
    }
    return KEEL_OK;
}

static void copy_header(const struct erasure_level *set, uint32_t member, struct keel_parity_header *out)
{
    *out = set->header;
    out->member = member;
    out->file_bytes = keel_parity_file_bytes(&set->shape, member);
    keel_parity_header_seal(out);
}

static enum keel_status copy_footer(const struct erasure_level *set, uint32_t member,
                                    struct keel_parity_footer *out)
{
    if (!set->digests_known)
        return keel_fail(KEEL_CORRUPT, "%s: all footers of its parity are lost or damaged; make it again",
                         set->level.name);
    *out = set->footer;
    out->member = member;
    keel_parity_footer_seal(out);
    return KEEL_OK;
}

/* A parity file is blocks and cells by turns; read one such part, or what is wanted of it. */
static enum keel_status read_parity_part(struct erasure_level *set, uint32_t member, uint64_t offset,
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
            KEEL_TRY(need_block(set, stripe, member, &block.stripe));
        } else {
            KEEL_TRY(need_cell(set, stripe, member));
            skip -= KEEL_PARITY_BLOCK_BYTES;
            size = set->shape.cell_bytes;
            from = cell_of(set, member);
        }
    }
    *out_bytes = size - skip < bytes ? (size_t)(size - skip) : bytes;
    memcpy(out, from + skip, *out_bytes);
    return KEEL_OK;
}

static enum keel_status read_parity(struct erasure_level *set, uint32_t member, uint64_t offset, uint8_t *out,
                                    size_t bytes)
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

static enum keel_status erasure_read(struct keel_level_source *source, uint64_t offset, void *out,
                                     size_t bytes)
{
    struct erasure_level *set = erasure_of(source->level);
    uint32_t member = ((struct erasure_source *)source)->member;
    keel_mutex_lock(&set->lock);
    enum keel_status status = source->info.object.kind == KEEL_OBJECT_SHARD
                                  ? read_shard(set, member, offset, out, bytes)
                                  : read_parity(set, member, offset, out, bytes);
    keel_mutex_unlock(&set->lock);
    return status;
}

/* ---- listing and opening --------------------------------------------------------------------------------
 */

static bool has_source(const struct candidate *candidates)
{
    bool any = false;
    for (uint32_t i = 0; i < KEEL_LEVEL_SOURCES_MAX; i++)
        any = any || candidates[i].source != NULL;
    return any;
}

/* Are there files enough that, were they sound, every stripe could be computed? Stripes repeat after n. */
static bool can_mend(struct erasure_level *set)
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

static struct keel_object_info info_of(const struct erasure_level *set, uint32_t member, bool shard)
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

static bool offers(struct erasure_level *set, uint32_t member, bool shard)
{
    if (shard && set->header.members[member].rank == KEEL_ERASURE_NO_SHARD)
        return false;
    keel_mutex_lock(&set->lock);
    bool there = has_source(shard ? set->shards[member] : set->parities[member]) || can_mend(set);
    keel_mutex_unlock(&set->lock);
    return there;
}

static enum keel_status
erasure_list(struct keel_level *level,
             enum keel_status (*visit)(void *context, const struct keel_object_info *info), void *context)
{
    struct erasure_level *set = erasure_of(level);
    for (uint32_t i = 0; i < set->shape.node_count; i++)
        for (int shard = 0; shard < 2; shard++) {
            if (!offers(set, i, shard != 0))
                continue;
            struct keel_object_info info = info_of(set, i, shard != 0);
            KEEL_TRY(visit(context, &info));
        }
    return KEEL_OK;
}

static bool find_member(const struct erasure_level *set, const struct keel_object *object, uint32_t *out)
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

static enum keel_status erasure_open(struct keel_level *level, const struct keel_object *object,
                                     struct keel_level_source **out)
{
    struct erasure_level *set = erasure_of(level);
    struct erasure_source *source;
    uint32_t member;
    char name[KEEL_OBJECT_NAME_BYTES];
    keel_object_name(object, name);
    if (!find_member(set, object, &member))
        return keel_fail(KEEL_NOT_FOUND, "%s: %s is no part of it", level->name, name);
    bool shard = object->kind == KEEL_OBJECT_SHARD;
    if (!offers(set, member, shard))
        return keel_fail(KEEL_NOT_FOUND, "%s: %s is lost, with more than the %u nodes that it mends",
                         level->name, name, set->shape.parity_count);
    KEEL_TRY(keel_alloc(1, sizeof *source, &source));
    *source = (struct erasure_source){.source = {.level = level, .info = info_of(set, member, shard)},
                                      .member = member};
    *out = &source->source;
    return KEEL_OK;
}

static void erasure_close(struct keel_level_source *source)
{
    keel_free(source);
}

/* ---- only a source ---------------------------------------------------------------------------------------
 */

static enum keel_status refuse(const struct keel_level *level)
{
    return keel_fail(KEEL_UNSUPPORTED, "%s: is only read from; write to its nodes' levels", level->name);
}

static enum keel_status erasure_create(struct keel_level *level, const struct keel_object *object,
                                       uint64_t bytes, struct keel_level_sink **out)
{
    (void)object;
    (void)bytes;
    (void)out;
    return refuse(level);
}

static enum keel_status erasure_write(struct keel_level_sink *sink, const void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    return refuse(sink->level);
}

static enum keel_status erasure_commit(struct keel_level_sink *sink,
                                       const uint8_t digest[KEEL_OBJECT_DIGEST_BYTES])
{
    (void)digest;
    return refuse(sink->level);
}

static void erasure_abort(struct keel_level_sink *sink)
{
    KEEL_ASSERT(sink == NULL); /* none is ever made */
}

static enum keel_status erasure_remove(struct keel_level *level, const struct keel_object *object)
{
    (void)object;
    return refuse(level);
}

/* ---- opening a set ----------------------------------------------------------------------------------------
 */

static void erasure_end(struct keel_level *level)
{
    struct erasure_level *set = erasure_of(level);
    for (uint32_t i = 0; i < KEEL_ERASURE_NODES_MAX; i++)
        for (uint32_t l = 0; l < KEEL_LEVEL_SOURCES_MAX; l++) {
            keel_level_close_source(set->shards[i][l].source);
            keel_level_close_source(set->parities[i][l].source);
        }
    keel_erasure_code_fini(&set->code);
    keel_free(set->cells);
    keel_free(set->piece);
    keel_mutex_fini(&set->lock);
    keel_free(set);
}

static const struct keel_level_ops erasure_ops = {.list = erasure_list,
                                                  .open = erasure_open,
                                                  .read = erasure_read,
                                                  .close = erasure_close,
                                                  .create = erasure_create,
                                                  .write = erasure_write,
                                                  .commit = erasure_commit,
                                                  .abort = erasure_abort,
                                                  .remove = erasure_remove,
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
static bool elect_header(struct erasure_level *set)
{
    struct vote votes[KEEL_ERASURE_NODES_MAX] = {0};
    uint32_t best = 0;
    for (uint32_t i = 0; i < KEEL_ERASURE_NODES_MAX; i++)
        for (uint32_t l = 0; l < set->level_count; l++) {
            struct keel_parity_header header;
            struct keel_level_source *source = set->parities[i][l].source;
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

static void find_footer(struct erasure_level *set)
{
    for (uint32_t i = 0; i < set->shape.node_count && !set->digests_known; i++)
        for (uint32_t l = 0; l < set->level_count && !set->digests_known; l++) {
            struct keel_level_source *source = set->parities[i][l].source;
            set->digests_known = source != NULL && keel_parity_read_footer(source, &set->footer) == KEEL_OK &&
                                 set->footer.set_check == set->set_check;
        }
}

/* A candidate with another size is none. */
static void open_candidate(struct keel_level *level, const struct keel_object *object, uint64_t wanted_bytes,
                           struct candidate *out)
{
    struct keel_level_source *source;
    if (keel_level_open(level, object, &source) != KEEL_OK)
        return;
    if (wanted_bytes == UINT64_MAX || source->info.bytes == wanted_bytes)
        out->source = source;
    else
        keel_level_close_source(source);
}

static enum keel_status open_candidates(struct erasure_level *set, uint64_t step, uint64_t attempt,
                                        uint32_t number)
{
    struct keel_object object = {.step = step, .attempt = attempt, .kind = KEEL_OBJECT_PARITY, .set = number};
    for (object.member = 0; object.member < KEEL_ERASURE_NODES_MAX; object.member++)
        for (uint32_t l = 0; l < set->level_count; l++)
            open_candidate(set->levels[l], &object, UINT64_MAX, &set->parities[object.member][l]);
    if (!elect_header(set))
        return keel_fail(KEEL_NOT_FOUND, "%s: no parity file of it with a sound header is there",
                         set->level.name);
    find_footer(set);
    object = (struct keel_object){.step = step, .attempt = attempt, .kind = KEEL_OBJECT_SHARD};
    for (uint32_t i = 0; i < set->shape.node_count; i++) {
        object.member = set->header.members[i].rank;
        for (uint32_t l = 0; l < set->level_count && object.member != KEEL_ERASURE_NO_SHARD; l++)
            open_candidate(set->levels[l], &object, set->header.members[i].shard_bytes, &set->shards[i][l]);
    }
    return KEEL_OK;
}

static enum keel_status prepare(struct erasure_level *set, uint64_t step, uint64_t attempt, uint32_t number)
{
    KEEL_TRY(open_candidates(set, step, attempt, number));
    KEEL_TRY(keel_erasure_code_init(&set->code, set->shape.node_count - set->shape.parity_count,
                                    set->shape.parity_count));
    KEEL_TRY(keel_alloc(KEEL_LEVEL_PIECE_BYTES, 1, &set->piece));
    return keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)set->shape.node_count * set->shape.cell_bytes,
                              &set->cells);
}

enum keel_status keel_level_erasure_open(struct keel_level *const *levels, uint32_t level_count,
                                         uint64_t step, uint64_t attempt, uint32_t set_number,
                                         struct keel_level **out)
{
    char name[KEEL_LEVEL_NAME_BYTES], step_name[KEEL_STEP_NAME_BYTES];
    struct erasure_level *set;
    if (level_count == 0 || level_count > KEEL_LEVEL_SOURCES_MAX)
        return keel_fail(KEEL_INVALID, "an erasure set is read from 1 to %d levels", KEEL_LEVEL_SOURCES_MAX);
    KEEL_TRY(keel_alloc(1, sizeof *set, &set));
    keel_step_name(step, attempt, step_name);
    snprintf(name, sizeof name, "erasure set %u of %s", set_number, step_name);
    enum keel_status status =
        keel_level_init(&set->level, &erasure_ops, KEEL_NEAR_ERASURE, levels[0]->run, name);
    if (status != KEEL_OK) {
        keel_free(set);
        return status;
    }
    set->levels = levels;
    set->level_count = level_count;
    set->stripe = UINT64_MAX;
    keel_mutex_init(&set->lock);
    status = prepare(set, step, attempt, set_number);
    if (status != KEEL_OK) {
        erasure_end(&set->level);
        return status;
    }
    *out = &set->level;
    return KEEL_OK;
}
