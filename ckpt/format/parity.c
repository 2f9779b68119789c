/* parity.c - the geometry of an erasure set, and sealing and checking the blocks of a parity file. */
#include "parity.h"
#include <string.h>

static const char header_magic[8] = {'K', 'E', 'E', 'L', 'P', 'R', 'T', 'Y'};
static const char stripe_magic[8] = {'K', 'E', 'E', 'L', 'S', 'T', 'R', 'P'};
static const char footer_magic[8] = {'K', 'E', 'E', 'L', 'P', 'E', 'N', 'D'};

/* ---- geometry --------------------------------------------------------------------------------------- */

uint32_t keel_parity_row(const struct keel_parity_shape *shape, uint64_t stripe, uint32_t node)
{
    uint32_t n = shape->node_count, turn = (uint32_t)(stripe % n), row = (node + n - turn) % n;
    return row < shape->parity_count ? row : shape->parity_count;
}

/* In n stripes each node has k data cells, so only the last, unfinished turn is counted. */
uint64_t keel_parity_data_before(const struct keel_parity_shape *shape, uint64_t stripe, uint32_t node)
{
    uint32_t n = shape->node_count, m = shape->parity_count;
    uint64_t turns = stripe / n, count = turns * (n - m);
    for (uint64_t j = turns * n; j < stripe; j++)
        count += keel_parity_row(shape, j, node) == m;
    return count;
}

uint64_t keel_parity_stripe_of(const struct keel_parity_shape *shape, uint32_t node, bool data, uint64_t cell)
{
    uint32_t n = shape->node_count, m = shape->parity_count, a_turn = data ? n - m : m;
    uint64_t stripe = cell / a_turn * n, left = cell % a_turn;
    for (;; stripe++) {
        if ((keel_parity_row(shape, stripe, node) == m) != data)
            continue;
        if (left-- == 0)
            return stripe;
    }
}

static uint64_t cells_of(uint64_t bytes, uint32_t cell_bytes)
{
    return bytes / cell_bytes + (bytes % cell_bytes != 0);
}

uint64_t keel_parity_stripes_needed(const struct keel_parity_shape *shape,
                                    const struct keel_parity_member *members)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < shape->node_count; i++) {
        uint64_t cells = cells_of(members[i].shard_bytes, shape->cell_bytes);
        uint64_t needed = cells > 0 ? keel_parity_stripe_of(shape, i, true, cells - 1) + 1 : 0;
        most = needed > most ? needed : most;
    }
    return most;
}

uint64_t keel_parity_record_offset(const struct keel_parity_shape *shape, uint64_t cell)
{
    return KEEL_PARITY_BLOCK_BYTES + cell * ((uint64_t)KEEL_PARITY_BLOCK_BYTES + shape->cell_bytes);
}

uint64_t keel_parity_file_bytes(const struct keel_parity_shape *shape, uint32_t node)
{
    uint64_t cells = shape->stripe_count - keel_parity_data_before(shape, shape->stripe_count, node);
    return keel_parity_record_offset(shape, cells) + KEEL_PARITY_BLOCK_BYTES;
}

/* ---- header ----------------------------------------------------------------------------------------- */

struct keel_parity_shape keel_parity_shape_of(const struct keel_parity_header *header)
{
    return (struct keel_parity_shape){.node_count = header->node_count,
                                      .parity_count = header->parity_count,
                                      .cell_bytes = header->cell_bytes,
                                      .stripe_count = header->stripe_count};
}

uint64_t keel_parity_set_check(const struct keel_parity_header *header)
{
    struct keel_parity_header common = *header;
    common.member = 0;
    common.file_bytes = 0;
    common.check = 0;
    return keel_format_check(&common, sizeof common);
}

static uint64_t header_check(const struct keel_parity_header *header)
{
    struct keel_parity_header copy = *header;
    copy.check = 0;
    return keel_format_check(&copy, sizeof copy);
}

void keel_parity_header_seal(struct keel_parity_header *header)
{
    memcpy(header->magic, header_magic, sizeof header->magic);
    header->version = KEEL_FORMAT_VERSION;
    header->header_bytes = KEEL_PARITY_BLOCK_BYTES;
    header->check = header_check(header);
}

static enum keel_status newer(const char *label)
{
    return keel_fail(KEEL_VERSION, "%s: uses what version 1 of parity files does not have; use a newer Keel",
                     label);
}

static enum keel_status damaged(const char *label, const char *what)
{
    return keel_fail(KEEL_CORRUPT, "%s: %s; repair mends it from the other nodes of its set", label, what);
}

/* Every rank at most once; sizes that no sum of theirs overflows. */
static bool members_make_sense(const struct keel_parity_header *header)
{
    const struct keel_parity_member *members = header->members;
    for (uint32_t i = 0; i < header->node_count; i++) {
        bool none = members[i].rank == KEEL_ERASURE_NO_SHARD;
        if ((none && members[i].shard_bytes != 0) || (!none && members[i].rank >= KEEL_SNAPSHOT_RANKS_MAX) ||
            members[i].shard_bytes > INT64_MAX / 256 || members[i].zero != 0)
            return false;
        for (uint32_t j = 0; j < i; j++)
            if (!none && members[j].rank == members[i].rank)
                return false;
    }
    return keel_format_all_zero(&members[header->node_count],
                                (KEEL_ERASURE_NODES_MAX - header->node_count) * sizeof *members);
}

static bool header_makes_sense(const struct keel_parity_header *header)
{
    const uint32_t n = header->node_count, m = header->parity_count, cell = header->cell_bytes;
    if (n < 2 || n > KEEL_ERASURE_NODES_MAX || m == 0 || m >= n || header->member >= n ||
        header->set >= KEEL_SNAPSHOT_RANKS_MAX || cell < KEEL_PARITY_CELL_BYTES_MIN ||
        cell > KEEL_PARITY_CELL_BYTES_MAX || (cell & (cell - 1)) != 0)
        return false;
    size_t length = strnlen(header->run, sizeof header->run);
    if (!keel_run_name_valid(header->run) ||
        !keel_format_all_zero(header->run + length, sizeof header->run - length) ||
        !members_make_sense(header))
        return false;
    struct keel_parity_shape shape = keel_parity_shape_of(header);
    return header->stripe_count == keel_parity_stripes_needed(&shape, header->members) &&
           header->file_bytes == keel_parity_file_bytes(&shape, header->member);
}

enum keel_status keel_parity_header_check(const struct keel_parity_header *header, const char *label)
{
    if (memcmp(header->magic, header_magic, sizeof header_magic) != 0)
        return damaged(label, "is no parity file, or its header is damaged");
    if (header->check != header_check(header))
        return damaged(label, "its header is damaged");
    if (header->version != KEEL_FORMAT_VERSION || header->header_bytes != KEEL_PARITY_BLOCK_BYTES ||
        header->zero != 0 || !keel_format_all_zero(header->reserved, sizeof header->reserved) ||
        !keel_format_all_zero(header->rest, sizeof header->rest))
        return newer(label);
    return header_makes_sense(header) ? KEEL_OK : damaged(label, "its header contradicts itself");
}

/* ---- stripes ---------------------------------------------------------------------------------------- */

static uint64_t stripe_check(const struct keel_parity_stripe *stripe)
{
    struct keel_parity_stripe copy = *stripe;
    copy.check = 0;
    return keel_format_check(&copy, sizeof copy);
}

void keel_parity_stripe_seal(struct keel_parity_stripe *stripe)
{
    memcpy(stripe->magic, stripe_magic, sizeof stripe->magic);
    stripe->check = stripe_check(stripe);
}

bool keel_parity_stripe_sound(const struct keel_parity_stripe *block, uint64_t set_check, uint64_t stripe,
                              uint32_t member)
{
    return memcmp(block->magic, stripe_magic, sizeof stripe_magic) == 0 &&
           block->check == stripe_check(block) && block->set_check == set_check && block->stripe == stripe &&
           block->member == member;
}

/* ---- footer ----------------------------------------------------------------------------------------- */

void keel_parity_footer_seal(struct keel_parity_footer *footer)
{
    memcpy(footer->magic, footer_magic, sizeof footer->magic);
    footer->version = KEEL_FORMAT_VERSION;
    footer->footer_bytes = KEEL_PARITY_BLOCK_BYTES;
    footer->check = keel_format_check(footer, offsetof(struct keel_parity_footer, check));
}

enum keel_status keel_parity_footer_check(const struct keel_parity_footer *footer, const char *label)
{
    if (memcmp(footer->magic, footer_magic, sizeof footer_magic) != 0)
        return damaged(label, "has no footer: it is cut off, or damaged at its end");
    if (footer->check != keel_format_check(footer, offsetof(struct keel_parity_footer, check)))
        return damaged(label, "its footer is damaged");
    if (footer->version != KEEL_FORMAT_VERSION || footer->footer_bytes != KEEL_PARITY_BLOCK_BYTES ||
        footer->zero != 0 || !keel_format_all_zero(footer->reserved, sizeof footer->reserved) ||
        !keel_format_all_zero(footer->rest, sizeof footer->rest))
        return newer(label);
    return KEEL_OK;
}
