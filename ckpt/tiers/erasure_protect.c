/* erasure_protect.c - making an erasure set: shards in, parity out, stripe by stripe.
 * Nothing of it counts before the parity of a node has been read back and committed by its tier. */
#include "erasure_code.h"
#include "parity.h"
#include "tier.h"
#include "tier_digest.h"
#include <keel/memory.h>

struct protection {
    const struct keel_erasure_config *config;
    struct keel_parity_shape shape;
    struct keel_parity_header header; /* without member and size */
    uint64_t set_check;
    struct keel_erasure_code code;
    struct keel_tier_source *sources[KEEL_ERASURE_NODES_MAX]; /* NULL without a shard */
    struct keel_tier_sink *sinks[KEEL_ERASURE_NODES_MAX];     /* NULL once committed */
    struct keel_digest_stream shard_digests[KEEL_ERASURE_NODES_MAX];
    struct keel_digest_stream parity_digests[KEEL_ERASURE_NODES_MAX];
    uint8_t *cells; /* owned; one a node, its data or its parity */
};

static enum keel_status check_config(const struct keel_erasure_config *config)
{
    const uint32_t n = config->node_count, m = config->parity_count, cell = config->cell_bytes;
    if (n < 2 || n > KEEL_ERASURE_NODES_MAX || m == 0 || m >= n)
        return keel_fail(KEEL_INVALID, "an erasure set has 2 to %d nodes, and parity of 1 to all but one",
                         KEEL_ERASURE_NODES_MAX);
    if (cell != 0 &&
        (cell < KEEL_PARITY_CELL_BYTES_MIN || cell > KEEL_PARITY_CELL_BYTES_MAX || (cell & (cell - 1)) != 0))
        return keel_fail(KEEL_INVALID, "a cell of an erasure set is a power of two from %d to %d bytes",
                         KEEL_PARITY_CELL_BYTES_MIN, KEEL_PARITY_CELL_BYTES_MAX);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (config->ranks[i] != KEEL_ERASURE_NO_SHARD && config->ranks[i] == config->ranks[j])
                return keel_fail(KEEL_INVALID, "an erasure set holds rank %u twice", config->ranks[i]);
    return KEEL_OK;
}

/* ---- set-up -------------------------------------------------------------------------------------------- */

static enum keel_status open_shards(struct protection *set)
{
    const struct keel_erasure_config *config = set->config;
    for (uint32_t i = 0; i < config->node_count; i++) {
        set->header.members[i].rank = config->ranks[i];
        if (config->ranks[i] == KEEL_ERASURE_NO_SHARD)
            continue;
        struct keel_object object = {.step = config->step,
                                     .attempt = config->attempt,
                                     .kind = KEEL_OBJECT_SHARD,
                                     .member = config->ranks[i]};
        KEEL_TRY(keel_tier_open(config->from[i], &object, &set->sources[i]));
        /* With a digest of it the whole is compared while it is read; without, it is looked through first. */
        KEEL_TRY(set->sources[i]->info.digest_known ? keel_source_quick_check(set->sources[i])
                                                    : keel_source_verify(set->sources[i]));
        set->header.members[i].shard_bytes = set->sources[i]->info.bytes;
    }
    return KEEL_OK;
}

/* Small shards get small cells, lest their parity be larger than they are. */
static uint32_t choose_cell_bytes(const struct protection *set)
{
    uint32_t cell = KEEL_PARITY_CELL_BYTES_MIN, k = set->config->node_count - set->config->parity_count;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < set->config->node_count; i++)
        if (set->header.members[i].shard_bytes > largest)
            largest = set->header.members[i].shard_bytes;
    while (cell < KEEL_PARITY_CELL_BYTES_MAX && cell < largest / k)
        cell *= 2;
    return cell;
}

static const char *run_of(const struct keel_erasure_config *config)
{
    return config->to[0]->run;
}

static void draft_header(struct protection *set)
{
    const struct keel_erasure_config *config = set->config;
    struct keel_parity_header *header = &set->header;
    header->step = config->step;
    header->attempt = config->attempt;
    header->set = config->set;
    memcpy(header->run, run_of(config), sizeof header->run);
    header->node_count = config->node_count;
    header->parity_count = config->parity_count;
    header->cell_bytes = config->cell_bytes != 0 ? config->cell_bytes : choose_cell_bytes(set);
    set->shape = keel_parity_shape_of(header);
    header->stripe_count = keel_parity_stripes_needed(&set->shape, header->members);
    set->shape.stripe_count = header->stripe_count;
    keel_parity_header_seal(header);
    set->set_check = keel_parity_set_check(header);
}

/* Append to a node's parity. */
static enum keel_status put(struct protection *set, uint32_t node, const void *data, size_t bytes)
{
    keel_digest_add(&set->parity_digests[node], data, bytes);
    return keel_tier_write(set->sinks[node], data, bytes);
}

static enum keel_status open_parities(struct protection *set)
{
    const struct keel_erasure_config *config = set->config;
    for (uint32_t i = 0; i < config->node_count; i++) {
        struct keel_parity_header header = set->header;
        struct keel_object object = {.step = config->step,
                                     .attempt = config->attempt,
                                     .kind = KEEL_OBJECT_PARITY,
                                     .set = config->set,
                                     .member = i};
        header.member = i;
        header.file_bytes = keel_parity_file_bytes(&set->shape, i);
        keel_parity_header_seal(&header);
        KEEL_TRY(keel_tier_create(config->to[i], &object, header.file_bytes, &set->sinks[i]));
        keel_digest_begin(&set->shard_digests[i]);
        keel_digest_begin(&set->parity_digests[i]);
        KEEL_TRY(put(set, i, &header, sizeof header));
    }
    return KEEL_OK;
}

/* ---- stripes ------------------------------------------------------------------------------------------- */

/* The cell with which a node takes part in that stripe; zeros behind the shard's end. */
static enum keel_status read_data_cell(struct protection *set, uint64_t stripe, uint32_t node)
{
    const uint32_t cell_bytes = set->shape.cell_bytes;
    const uint64_t offset = keel_parity_data_before(&set->shape, stripe, node) * cell_bytes;
    const uint64_t shard_bytes = set->header.members[node].shard_bytes;
    uint64_t left = offset < shard_bytes ? shard_bytes - offset : 0;
    size_t bytes = left < cell_bytes ? (size_t)left : cell_bytes;
    uint8_t *cell = set->cells + (size_t)node * cell_bytes;
    if (bytes > 0) {
        KEEL_TRY(keel_tier_read(set->sources[node], offset, cell, bytes));
        keel_digest_add(&set->shard_digests[node], cell, bytes);
    }
    memset(cell + bytes, 0, cell_bytes - bytes);
    return KEEL_OK;
}

static enum keel_status protect_stripe(struct protection *set, uint64_t stripe)
{
    const uint32_t n = set->shape.node_count, m = set->shape.parity_count, cell_bytes = set->shape.cell_bytes;
    struct keel_parity_stripe block = {.set_check = set->set_check, .stripe = stripe};
    uint8_t *data[KEEL_ERASURE_NODES_MAX], *parity[KEEL_ERASURE_NODES_MAX];
    uint32_t data_count = 0;
    KEEL_ASSERT(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = keel_parity_row(&set->shape, stripe, i);
        uint8_t *cell = set->cells + (size_t)i * cell_bytes;
        if (row < m) {
            parity[row] = cell;
            continue;
        }
        KEEL_TRY(read_data_cell(set, stripe, i));
        data[data_count++] = cell;
    }
    keel_erasure_encode(&set->code, data, parity, cell_bytes);
    for (uint32_t i = 0; i < n; i++)
        block.checks[i] = keel_format_check(set->cells + (size_t)i * cell_bytes, cell_bytes);
    for (uint32_t row = 0; row < m; row++) {
        uint32_t node = (uint32_t)((stripe + row) % n);
        block.member = node;
        block.check = 0;
        keel_parity_stripe_seal(&block);
        KEEL_TRY(put(set, node, &block, sizeof block));
        KEEL_TRY(put(set, node, parity[row], cell_bytes));
    }
    return KEEL_OK;
}

static enum keel_status write_footers(struct protection *set)
{
    struct keel_parity_footer footer = {.set_check = set->set_check};
    for (uint32_t i = 0; i < set->shape.node_count; i++) {
        if (set->sources[i] == NULL)
            continue;
        keel_digest_end(&set->shard_digests[i], footer.digests[i]);
        KEEL_TRY(keel_source_compare(set->sources[i], footer.digests[i]));
    }
    for (uint32_t i = 0; i < set->shape.node_count; i++) {
        footer.member = i;
        keel_parity_footer_seal(&footer);
        KEEL_TRY(put(set, i, &footer, sizeof footer));
    }
    return KEEL_OK;
}

static enum keel_status commit_parities(struct protection *set)
{
    for (uint32_t i = 0; i < set->shape.node_count; i++) {
        uint8_t digest[KEEL_DIGEST_BYTES];
        struct keel_tier_sink *sink = set->sinks[i];
        keel_digest_end(&set->parity_digests[i], digest);
        set->sinks[i] = NULL;
        KEEL_TRY(keel_tier_commit(sink, digest));
    }
    return KEEL_OK;
}

static enum keel_status protect(struct protection *set)
{
    const uint32_t n = set->config->node_count, m = set->config->parity_count;
    KEEL_TRY(keel_erasure_code_init(&set->code, n - m, m));
    KEEL_TRY(open_shards(set));
    draft_header(set);
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)n * set->shape.cell_bytes, &set->cells));
    KEEL_TRY(open_parities(set));
    for (uint64_t stripe = 0; stripe < set->shape.stripe_count; stripe++)
        KEEL_TRY(protect_stripe(set, stripe));
    KEEL_TRY(write_footers(set));
    return commit_parities(set);
}

enum keel_status keel_erasure_protect(const struct keel_erasure_config *config)
{
    struct protection *set;
    KEEL_TRY(check_config(config));
    for (uint32_t i = 0; i < config->node_count; i++)
        if (strcmp(config->to[i]->run, run_of(config)) != 0 ||
            (config->ranks[i] != KEEL_ERASURE_NO_SHARD && strcmp(config->from[i]->run, run_of(config)) != 0))
            return keel_fail(KEEL_MISMATCH, "the tiers of an erasure set are of several runs");
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, sizeof *set, &set));
    memset(set, 0, sizeof *set);
    set->config = config;
    enum keel_status status = protect(set);
    for (uint32_t i = 0; i < config->node_count; i++) {
        keel_tier_abort(set->sinks[i]);
        keel_tier_close_source(set->sources[i]);
    }
    keel_free(set->cells);
    keel_erasure_code_fini(&set->code);
    keel_free(set);
    return status;
}
