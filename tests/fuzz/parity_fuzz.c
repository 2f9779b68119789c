/* parity_fuzz.c - any bytes as a parity file: alone, with the shards, and as one of a set that is otherwise
 * sound. Whatever it says, reading it stays within its bounds; and a shard that is computed with its help and
 * passes the check of shards is the shard that was lost. */
#include "fuzz.h"
#include "parity.h"
#include "tier.h"
#include <keel/clock.h>
#include <keel/memory.h>

enum { NODES = 4, PARITY = 2, TIER_BYTES = 8 << 20, LOST = 1, SET = 7 }; /* as the golden ones */

struct blob {
    uint8_t *data;
    uint64_t bytes;
};

static struct keel_tier *shards, *parities;
static struct blob lost;

static struct keel_object object_of(enum keel_object_kind kind, uint32_t member)
{
    return (struct keel_object){
        .step = 5, .attempt = 2, .kind = kind, .set = kind == KEEL_OBJECT_PARITY ? SET : 0, .member = member};
}

static enum keel_status read_all(struct keel_tier *tier, const struct keel_object *object, struct blob *out)
{
    struct keel_tier_source *source;
    KEEL_TRY(keel_tier_open(tier, object, &source));
    out->data = NULL;
    out->bytes = source->info.bytes;
    enum keel_status status = out->bytes <= TIER_BYTES ? keel_alloc(out->bytes, 1, &out->data) : KEEL_LIMIT;
    if (status == KEEL_OK)
        status = keel_tier_read(source, 0, out->data, out->bytes);
    keel_tier_close_source(source);
    if (status != KEEL_OK)
        keel_free(out->data);
    return status;
}

static enum keel_status read_pattern(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    const uint32_t *rank = context;
    (void)index;
    for (uint64_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)((offset + i) * (*rank + 3) >> 3);
    return KEEL_OK;
}

static void save_rank(struct keel_store *store, uint32_t rank)
{
    struct keel_region region = {.name = "w", .dtype = KEEL_CKPT_U8, .dims = 1, .shape = {15000}};
    struct keel_save *save;
    struct keel_shard_summary summary;
    region.offset[0] = 5000 * (uint64_t)rank;
    region.extent[0] = 5000;
    struct keel_save_config config = {.step = 5,
                                      .attempt = 2,
                                      .rank = rank,
                                      .rank_count = 3,
                                      .regions = &region,
                                      .region_count = 1,
                                      .read = read_pattern,
                                      .context = &rank};
    KEEL_ASSERT(keel_save_begin(store, &config, &save) == KEEL_OK);
    KEEL_ASSERT(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &summary) == KEEL_OK);
}

/* Three shards, one of them lost, and the parity of four nodes. */
static void make_set(void)
{
    struct keel_store *store;
    struct keel_tier *disk;
    uint32_t ranks[NODES] = {0, KEEL_ERASURE_NO_SHARD, 1, 2};
    struct keel_store_config config = {.root = fuzz_directory(), .run = "parity", .create = true};
    KEEL_ASSERT(keel_store_open(&config, &store) == KEEL_OK);
    KEEL_ASSERT(keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, NULL, &disk) == KEEL_OK);
    KEEL_ASSERT(keel_tier_memory_open("parity", TIER_BYTES, NULL, &shards) == KEEL_OK);
    KEEL_ASSERT(keel_tier_memory_open("parity", TIER_BYTES, NULL, &parities) == KEEL_OK);
    struct keel_tier *from[NODES] = {disk, disk, disk, disk},
                     *to[NODES] = {parities, parities, parities, parities};
    for (uint32_t rank = 0; rank < 3; rank++) {
        struct keel_object shard = object_of(KEEL_OBJECT_SHARD, rank);
        save_rank(store, rank);
        if (rank != LOST)
            KEEL_ASSERT(keel_tier_copy(disk, &shard, shards) == KEEL_OK);
        else
            KEEL_ASSERT(read_all(disk, &shard, &lost) == KEEL_OK);
    }
    KEEL_ASSERT(keel_erasure_protect(&(struct keel_erasure_config){.step = 5,
                                                                   .attempt = 2,
                                                                   .set = SET,
                                                                   .node_count = NODES,
                                                                   .parity_count = PARITY,
                                                                   .cell_bytes = KEEL_PARITY_CELL_BYTES_MIN,
                                                                   .ranks = ranks,
                                                                   .from = from,
                                                                   .to = to}) == KEEL_OK);
    keel_tier_end(disk);
    keel_store_close(store);
}

/* Read every object of the set that is not larger than this program likes; LOST must be itself. */
static void read_set(struct keel_tier *const *tiers, uint32_t count)
{
    struct keel_tier *set;
    const struct keel_object wanted = object_of(KEEL_OBJECT_SHARD, LOST);
    if (keel_tier_erasure_open(tiers, count, 5, 2, SET, &set) != KEEL_OK)
        return;
    for (uint32_t i = 0; i < NODES; i++) {
        const struct keel_object objects[2] = {object_of(KEEL_OBJECT_SHARD, i),
                                               object_of(KEEL_OBJECT_PARITY, i)};
        struct blob blob;
        for (uint32_t o = 0; o < 2; o++)
            if (read_all(set, &objects[o], &blob) == KEEL_OK)
                keel_free(blob.data);
    }
    struct blob blob;
    if (keel_tier_verify(set, &wanted) == KEEL_OK && read_all(set, &wanted, &blob) == KEEL_OK) {
        KEEL_ASSERT(blob.bytes == lost.bytes && memcmp(blob.data, lost.data, lost.bytes) == 0);
        keel_free(blob.data);
    }
    keel_tier_end(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct keel_object object = object_of(KEEL_OBJECT_PARITY, bytes > 36 ? data[36] % NODES : 0);
    struct keel_tier *alone;
    struct keel_tier_sink *sink;
    uint8_t digest[KEEL_DIGEST_BYTES];
    if (shards == NULL)
        make_set();
    KEEL_ASSERT(keel_tier_memory_open("parity", TIER_BYTES, NULL, &alone) == KEEL_OK);
    keel_format_digest(data, bytes, digest);
    if (keel_tier_create(alone, &object, bytes, &sink) == KEEL_OK) {
        KEEL_ASSERT(keel_tier_write(sink, data, bytes) == KEEL_OK);
        KEEL_ASSERT(keel_tier_commit(sink, digest) == KEEL_OK);
        (void)keel_tier_verify(alone, &object);
        struct keel_tier *tiers[3] = {alone, shards, parities};
        read_set(tiers, 1);
        read_set(tiers, 2);
        read_set(tiers, 3);
    }
    keel_tier_end(alone);
    return 0;
}

/* ---- mutator ------------------------------------------------------------------------------------------- */

/* Make every check right that the header's own geometry leads to. */
static void mend_checks(uint8_t *data, size_t bytes)
{
    struct keel_parity_header header;
    struct keel_parity_footer footer;
    if (bytes < sizeof header + sizeof footer)
        return;
    memcpy(&header, data, sizeof header);
    keel_parity_header_seal(&header);
    memcpy(data, &header, sizeof header);
    const uint64_t set_check = keel_parity_set_check(&header);
    memcpy(&footer, data + bytes - sizeof footer, sizeof footer);
    footer.set_check = set_check;
    footer.member = header.member;
    keel_parity_footer_seal(&footer);
    memcpy(data + bytes - sizeof footer, &footer, sizeof footer);
    const size_t cell_bytes = header.cell_bytes;
    if (cell_bytes < KEEL_PARITY_CELL_BYTES_MIN || cell_bytes > KEEL_PARITY_CELL_BYTES_MAX)
        return;
    for (size_t at = sizeof header; at + KEEL_PARITY_BLOCK_BYTES + cell_bytes + sizeof footer <= bytes;
         at += KEEL_PARITY_BLOCK_BYTES + cell_bytes) {
        struct keel_parity_stripe block;
        memcpy(&block, data + at, sizeof block);
        block.set_check = set_check;
        block.member = header.member;
        if (header.member < KEEL_ERASURE_NODES_MAX)
            block.checks[header.member] = keel_format_check(data + at + sizeof block, cell_bytes);
        block.check = 0;
        keel_parity_stripe_seal(&block);
        memcpy(data + at, &block, sizeof block);
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    if (seed % 4 == 0 || bytes < KEEL_PARITY_BLOCK_BYTES) {
        bytes = LLVMFuzzerMutate(data, bytes, max_bytes);
    } else { /* what means something in a block */
        size_t block = seed / 4 % (bytes / KEEL_PARITY_BLOCK_BYTES) * KEEL_PARITY_BLOCK_BYTES;
        (void)LLVMFuzzerMutate(data + block, 512, 512);
    }
    if (seed % 8 != 1)
        mend_checks(data, bytes);
    return bytes;
}
