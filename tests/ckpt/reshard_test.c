/* reshard_test.c - any layout of ranks reads what any other wrote, bit for bit: ten thousand pairs.
 *
 * 500 snapshots are written, each by ranks and boxes drawn at random, and each is read by 20 layouts drawn at
 * random; every byte is compared with the tensors, which lie in memory whole. Drawn are: 1 to 6 ranks;
 * tensors of 0 to 4 dimensions and every dtype, some of several chunks; boxes cut anywhere, some held by two
 * ranks, some overlapping others, some empty; all codecs, deltas on up to two others, and rounded copies,
 * some of which are not quite that; every fifth is sealed. What was drawn how often is counted, and must have
 * occurred. */
#include "codec.h"
#include "sample.h"
#include "snapshot.h"
#include <keel/disk.h>

enum {
    WRITTEN = 500,
    READERS = 20,
    RANKS_MAX = 6,
    TENSORS_MAX = 5,
    BOXES_MAX = 32,
    LARGE_EVERY = 40,
    SEALED_EVERY = 5,
    LOADS_MAX = TENSORS_MAX * BOXES_MAX
};

struct tensor {
    struct keel_region region;
    uint8_t *bytes;  /* owned; all of it, dense */
    uint32_t master; /* of which it is a copy, or KEEL_SAME_AS_NONE */
};

struct world {
    struct tensor tensors[TENSORS_MAX];
    uint32_t tensor_count, rank_count;
    struct keel_region regions[RANKS_MAX][LOADS_MAX];
    uint32_t same_as[RANKS_MAX][LOADS_MAX], tensor_of[RANKS_MAX][LOADS_MAX];
    uint32_t region_counts[RANKS_MAX];
};

struct tally {
    uint64_t pairs, boxes, bytes, sealed, replicas, empty, scalars, dtypes[8], chunks[KEEL_CODEC_COUNT];
    uint32_t longest_chain;
};

/* ---- truth --------------------------------------------------------------------------------------------- */

/* Element `number` of the region's dense data lies at this element of the whole tensor. */
static uint64_t place_in_whole(const struct keel_region *region, uint64_t number)
{
    uint64_t global = 0, stride = 1;
    for (uint32_t d = region->dims; d-- > 0;) {
        global += (region->offset[d] + number % region->extent[d]) * stride;
        number /= region->extent[d];
        stride *= region->shape[d];
    }
    return global;
}

static void cut_out(const struct tensor *tensor, const struct keel_region *region, uint64_t offset,
                    uint64_t bytes, uint8_t *out)
{
    uint32_t size = keel_ckpt_dtype_bytes(region->dtype);
    uint64_t row = region->dims > 0 ? region->extent[region->dims - 1] : 1, end = (offset + bytes) / size;
    for (uint64_t e = offset / size; e < end;) {
        uint64_t run = row - e % row; /* up to the row's end */
        run = run < end - e ? run : end - e;
        memcpy(out, tensor->bytes + place_in_whole(region, e) * size, run * size);
        out += run * size;
        e += run;
    }
}

static void fill(struct tensor *tensor, uint64_t seed)
{
    uint64_t bytes = keel_region_bytes(&tensor->region);
    uint32_t size = keel_ckpt_dtype_bytes(tensor->region.dtype);
    for (uint64_t i = 0; i < bytes; i += size) {
        uint64_t x = mix(seed ^ i);
        memcpy(tensor->bytes + i, &x, size);
        tensor->bytes[i + size - 1] = (uint8_t)(0x38 + (x >> 61));
    }
}

/* As training does: the low bits of most elements, and of copies what follows. */
static void change(struct world *world, uint64_t seed)
{
    for (uint32_t t = 0; t < world->tensor_count; t++) {
        struct tensor *tensor = &world->tensors[t];
        uint64_t bytes = keel_region_bytes(&tensor->region);
        uint32_t size = keel_ckpt_dtype_bytes(tensor->region.dtype);
        if (tensor->master != KEEL_SAME_AS_NONE)
            keel_codec_round(tensor->region.dtype, world->tensors[tensor->master].region.dtype,
                             world->tensors[tensor->master].bytes, bytes / size, tensor->bytes);
        else
            for (uint64_t i = 0; i < bytes; i += size)
                tensor->bytes[i] ^= (uint8_t)(mix(seed ^ i) & 7);
    }
}

/* ---- drawing ------------------------------------------------------------------------------------------- */

static void add_tensor(struct world *world, enum keel_ckpt_dtype dtype, uint32_t dims, const uint64_t *shape,
                       uint32_t master)
{
    struct tensor *tensor = &world->tensors[world->tensor_count];
    char name[32];
    snprintf(name, sizeof name, "t%u.%c", world->tensor_count, 'z' - (int)world->tensor_count);
    tensor->region = whole(name, dtype, dims, shape);
    tensor->master = master;
    ck_ok(keel_alloc(keel_region_bytes(&tensor->region) + 1, 1, &tensor->bytes));
    world->tensor_count++;
}

static void draw_tensors(struct world *world, bool large, uint64_t *state, struct tally *tally)
{
    static const enum keel_ckpt_dtype copies[] = {KEEL_CKPT_BF16, KEEL_CKPT_F16, KEEL_CKPT_F32};
    uint32_t wanted = 1 + (uint32_t)draw(state, 3);
    for (uint32_t t = 0; t < wanted; t++) {
        enum keel_ckpt_dtype dtype = 1 + (enum keel_ckpt_dtype)draw(state, 7);
        uint32_t dims = large && t == 0 ? 2 : (uint32_t)draw(state, 5);
        uint64_t shape[4], below = dims == 1 ? 3000 : dims == 2 ? 60 : dims == 3 ? 16 : 9;
        for (uint32_t d = 0; d < 4; d++)
            shape[d] = 1 + draw(state, below);
        if (large && t == 0) {
            dtype = draw(state, 2) ? KEEL_CKPT_F32 : KEEL_CKPT_F64;
            shape[0] = 600 + draw(state, 300);
            shape[1] = 700 + draw(state, 300);
        }
        add_tensor(world, dtype, dims, shape, KEEL_SAME_AS_NONE);
        fill(&world->tensors[world->tensor_count - 1], draw(state, UINT64_MAX));
        tally->dtypes[dtype]++;
        tally->scalars += dims == 0;
    }
    for (uint32_t t = 0; t < wanted && world->tensor_count < TENSORS_MAX; t++) {
        enum keel_ckpt_dtype master = world->tensors[t].region.dtype;
        enum keel_ckpt_dtype copy = copies[draw(state, 3)];
        if ((master != KEEL_CKPT_F32 && master != KEEL_CKPT_F64) || copy == master || draw(state, 3) == 0)
            continue;
        add_tensor(world, copy, world->tensors[t].region.dims, world->tensors[t].region.shape, t);
    }
    change(world, draw(state, UINT64_MAX));
}

static void give(struct world *world, uint32_t rank, uint32_t tensor, const struct keel_region *region,
                 uint32_t same_as)
{
    uint32_t number = world->region_counts[rank]++;
    ck_assert_uint_lt(number, LOADS_MAX);
    world->regions[rank][number] = *region;
    world->tensor_of[rank][number] = tensor;
    world->same_as[rank][number] = same_as;
}

/* A box of a tensor to a rank, and in most cases the copies of that box with it. */
static void give_family(struct world *world, uint32_t rank, uint32_t tensor, const struct keel_region *region,
                        uint64_t *state)
{
    uint32_t master = world->region_counts[rank];
    give(world, rank, tensor, region, KEEL_SAME_AS_NONE);
    for (uint32_t t = 0; t < world->tensor_count; t++) {
        if (world->tensors[t].master != tensor)
            continue;
        struct keel_region copy = world->tensors[t].region;
        memcpy(copy.offset, region->offset, sizeof copy.offset);
        memcpy(copy.extent, region->extent, sizeof copy.extent);
        give(world, rank, t, &copy, draw(state, 5) == 0 ? KEEL_SAME_AS_NONE : master);
    }
}

static void draw_layout(struct world *world, uint64_t *state, struct tally *tally)
{
    world->rank_count = 1 + (uint32_t)draw(state, RANKS_MAX);
    for (uint32_t t = 0; t < world->tensor_count; t++) {
        struct keel_region boxes[BOXES_MAX];
        if (world->tensors[t].master != KEEL_SAME_AS_NONE)
            continue;
        uint32_t count = cut_boxes(&world->tensors[t].region, 1 + (uint32_t)draw(state, 8), state, boxes),
                 extra = 0;
        if (draw(state, 3) == 0)
            boxes[count + extra++] = random_box(&world->tensors[t].region, state);
        if (draw(state, 4) == 0)
            boxes[count + extra++] = world->tensors[t].region;
        if (draw(state, 3) == 0 && world->tensors[t].region.dims > 0) {
            boxes[count + extra] = random_box(&world->tensors[t].region, state);
            boxes[count + extra++].extent[0] = 0;
            tally->empty++;
        }
        for (uint32_t i = 0; i < count + extra; i++) {
            uint32_t rank = (uint32_t)draw(state, world->rank_count);
            give_family(world, rank, t, &boxes[i], state);
            if (i >= count)
                tally->replicas++;
            if (world->rank_count == 1 || draw(state, 4) != 0)
                continue;
            give_family(world, (rank + 1) % world->rank_count, t, &boxes[i], state);
            tally->replicas++;
        }
    }
}

/* ---- writing ------------------------------------------------------------------------------------------- */

struct source {
    const struct world *world;
    uint32_t rank;
};

static enum keel_status read_source(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    const struct source *source = context;
    const struct world *world = source->world;
    cut_out(&world->tensors[world->tensor_of[source->rank][index]], &world->regions[source->rank][index],
            offset, bytes, out);
    return KEEL_OK;
}

static void write_snapshot(struct keel_store *store, const struct world *world, uint64_t step,
                           enum keel_codec codec, uint64_t *state)
{
    struct keel_shard_summary shards[RANKS_MAX];
    for (uint32_t r = 0; r < world->rank_count; r++) {
        struct source source = {world, r};
        struct keel_save *save;
        struct keel_save_config config = {.step = step,
                                          .attempt = 1,
                                          .rank = r,
                                          .rank_count = world->rank_count,
                                          .codec = codec,
                                          .regions = world->regions[r],
                                          .region_count = world->region_counts[r],
                                          .same_as = world->same_as[r],
                                          .read = read_source,
                                          .context = &source,
                                          .drain_threads = 1 + (uint32_t)draw(state, 2)};
        ck_ok(keel_save_begin(store, &config, &save));
        ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shards[r]));
    }
    ck_ok(commit_all(store, step, 1, shards, world->rank_count));
}

static void count_chunks(const struct keel_snapshot *snapshot, struct tally *tally)
{
    for (uint32_t s = 0; s < snapshot->manifest.info.shard_count; s++)
        for (uint32_t c = 0; c < snapshot->shards[s].footer.chunk_count; c++) {
            const struct keel_format_chunk *chunk = &snapshot->shards[s].chunks[c];
            tally->chunks[chunk->codec]++;
            tally->sealed += (chunk->flags & KEEL_CHUNK_SEALED) != 0;
            if (chunk->chain > tally->longest_chain)
                tally->longest_chain = chunk->chain;
        }
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* One rank of the reading layout: all of its boxes in one load. */
static void load_and_compare(struct keel_snapshot *snapshot, const struct world *world,
                             const uint32_t *tensor_of, struct keel_load *loads, uint32_t count,
                             uint32_t threads, struct tally *tally)
{
    struct keel_load_stats stats;
    struct keel_load_config config = {.threads = threads};
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = keel_region_bytes(&loads[i].box);
        ck_ok(keel_alloc(bytes, 1, &loads[i].out));
        memset(loads[i].out, 0xa5, bytes);
        wanted += bytes;
    }
    ck_ok(keel_snapshot_load(snapshot, loads, count, &config, &stats));
    ck_assert_uint_eq(stats.wanted_bytes, wanted);
    ck_assert_uint_ge(stats.read_bytes, stats.needed_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = keel_region_bytes(&loads[i].box);
        uint8_t *truth;
        ck_ok(keel_alloc(bytes, 1, &truth));
        cut_out(&world->tensors[tensor_of[i]], &loads[i].box, 0, bytes, truth);
        ck_assert_mem_eq(loads[i].out, truth, bytes);
        keel_free(truth);
        keel_free(loads[i].out);
        tally->bytes += bytes;
    }
    tally->boxes += count;
}

static void read_layout(struct keel_snapshot *snapshot, const struct world *world, uint64_t *state,
                        struct tally *tally)
{
    struct keel_load loads[RANKS_MAX][LOADS_MAX];
    uint32_t tensor_of[RANKS_MAX][LOADS_MAX], counts[RANKS_MAX] = {0};
    uint32_t ranks = 1 + (uint32_t)draw(state, RANKS_MAX);
    for (uint32_t t = 0; t < world->tensor_count; t++) {
        struct keel_region boxes[BOXES_MAX];
        uint32_t made = cut_boxes(&world->tensors[t].region, 1 + (uint32_t)draw(state, 6), state, boxes);
        if (draw(state, 5) == 0 && world->tensors[t].region.dims > 0) {
            boxes[made] = boxes[0];
            boxes[made++].extent[0] = 0;
        }
        for (uint32_t i = 0; i < made; i++) {
            uint32_t rank = (uint32_t)draw(state, ranks);
            tensor_of[rank][counts[rank]] = t;
            loads[rank][counts[rank]++] = (struct keel_load){.box = boxes[i]};
        }
    }
    for (uint32_t r = 0; r < ranks; r++)
        load_and_compare(snapshot, world, tensor_of[r], loads[r], counts[r], 1 + (uint32_t)draw(state, 3),
                         tally);
    tally->pairs++;
}

static int no_fsync(int fd)
{
    (void)fd;
    return 0;
}

/* Another run in that root, with a key. */
static struct keel_store *open_sealed(const char *root)
{
    char path[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct keel_store_config config = {.root = root, .run = "sealed", .create = true, .key_file = path};
    ck_ok(keel_path_join(path, root, "key"));
    ck_ok(keel_file_replace(path, "0123456789abcdef0123456789abcdef", 32, 0600));
    ck_ok(keel_store_open(&config, &store));
    return store;
}

/* One written layout: a snapshot, or two or three of which the last ones are deltas. */
static void one_layout(struct keel_store *store, uint64_t number, uint64_t *state, struct tally *tally)
{
    static const enum keel_codec codecs[] = {KEEL_CODEC_RAW, KEEL_CODEC_PLANES, KEEL_CODEC_DELTA};
    struct world *world;
    ck_ok(keel_alloc(1, sizeof *world, &world));
    enum keel_codec codec = codecs[draw(state, 3)];
    uint64_t step = number * 3, last = step + (codec == KEEL_CODEC_DELTA ? 1 + draw(state, 2) : 0);
    draw_tensors(world, number % LARGE_EVERY == 0, state, tally);
    draw_layout(world, state, tally);
    for (; step <= last; step++) {
        write_snapshot(store, world, step, codec, state);
        if (step < last)
            change(world, draw(state, UINT64_MAX));
    }
    struct keel_snapshot *snapshot;
    ck_ok(keel_snapshot_open(store, last, 0, &snapshot));
    count_chunks(snapshot, tally);
    for (uint32_t i = 0; i < READERS; i++)
        read_layout(snapshot, world, state, tally);
    keel_snapshot_close(snapshot);
    for (uint32_t t = 0; t < world->tensor_count; t++)
        keel_free(world->tensors[t].bytes);
    keel_free(world);
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
}

START_TEST(ten_thousand_pairs_of_layouts_agree_bit_for_bit)
{
    char root[KEEL_PATH_BYTES];
    struct tally tally = {0};
    uint64_t state = 20240611;
    struct keel_disk_ops ops = keel_disk_posix; /* no crash here: nothing need be durable */
    ops.fsync = no_fsync;
    keel_disk_use(&ops);
    make_directory(root);
    struct keel_store *stores[2] = {open_store(root, true), open_sealed(root)};
    for (uint64_t i = 1; i <= WRITTEN; i++)
        one_layout(stores[i % SEALED_EVERY == 0], i, &state, &tally);
    keel_store_close(stores[0]);
    keel_store_close(stores[1]);
    ck_ok(keel_remove_tree(root));
    keel_disk_use(NULL);
    printf("note: %llu pairs of layouts (%d written, %d readers each): %llu boxes, %llu MiB compared\n",
           (unsigned long long)tally.pairs, WRITTEN, READERS, (unsigned long long)tally.boxes,
           (unsigned long long)(tally.bytes >> 20));
    printf("note: chunks raw %llu, planes %llu, delta %llu (up to %u bases), same %llu; %llu sealed; %llu "
           "replicas\n",
           (unsigned long long)tally.chunks[KEEL_CODEC_RAW],
           (unsigned long long)tally.chunks[KEEL_CODEC_PLANES],
           (unsigned long long)tally.chunks[KEEL_CODEC_DELTA], tally.longest_chain,
           (unsigned long long)tally.chunks[KEEL_CODEC_SAME], (unsigned long long)tally.sealed,
           (unsigned long long)tally.replicas);
    ck_assert_uint_eq(tally.pairs, 10000);
    for (uint32_t i = 0; i < KEEL_CODEC_COUNT; i++)
        ck_assert_uint_gt(tally.chunks[i], 100);
    for (uint32_t i = KEEL_CKPT_F32; i <= KEEL_CKPT_U8; i++)
        ck_assert_uint_gt(tally.dtypes[i], 10);
    ck_assert_uint_eq(tally.longest_chain, 2);
    ck_assert_uint_gt(tally.sealed, 100);
    ck_assert_uint_gt(tally.replicas, 100);
    ck_assert_uint_gt(tally.empty, 10);
    ck_assert_uint_gt(tally.scalars, 10);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, ten_thousand_pairs_of_layouts_agree_bit_for_bit);
}

KEEL_TEST_MAIN("reshard", cases, 1800)
