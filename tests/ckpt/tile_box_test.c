/* tile_box_test.c - boxes in index space, which pieces make up a box, and which chunks that takes: against
 * brute force where it is small, and without going quadratic where it is large. No disk. */
#include "harness.h"
#include "synthetic.h"

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
    return next_random(state) % below;
}

static struct keel_region tensor_of(const char *name, uint32_t dims, const uint64_t *shape)
{
    struct keel_region region = {.dtype = KEEL_CKPT_F32, .dims = dims};
    snprintf(region.name, sizeof region.name, "%s", name);
    memcpy(region.shape, shape, dims * sizeof *shape);
    memcpy(region.extent, shape, dims * sizeof *shape);
    return region;
}

static struct keel_region random_part(const struct keel_region *tensor, uint64_t *state)
{
    struct keel_region part = *tensor;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        part.offset[d] = draw(state, tensor->shape[d]);
        part.extent[d] = 1 + draw(state, tensor->shape[d] - part.offset[d]);
    }
    return part;
}

/* ---- boxes --------------------------------------------------------------------------------------------- */

static void position(const struct keel_box *box, uint32_t dims, uint64_t index, uint64_t *at)
{
    for (uint32_t d = dims; d-- > 0;) {
        at[d] = box->offset[d] + index % box->extent[d];
        index /= box->extent[d];
    }
}

static bool holds(const struct keel_box *box, uint32_t dims, const uint64_t *at)
{
    for (uint32_t d = 0; d < dims; d++)
        if (at[d] < box->offset[d] || at[d] >= box->offset[d] + box->extent[d])
            return false;
    return true;
}

START_TEST(the_next_element_of_a_part_is_the_one_that_counting_finds)
{
    uint64_t state = 1;
    for (int round = 0; round < 2000; round++) {
        uint32_t dims = (uint32_t)draw(&state, 5);
        uint64_t shape[4] = {1 + draw(&state, 5), 1 + draw(&state, 5), 1 + draw(&state, 5),
                             1 + draw(&state, 5)};
        struct keel_region tensor = tensor_of("t", dims, shape), outer = random_part(&tensor, &state);
        struct keel_box box = keel_box_of(&outer), part = box;
        for (uint32_t d = 0; d < dims; d++) {
            part.offset[d] += draw(&state, box.extent[d]);
            part.extent[d] = draw(&state, box.offset[d] + box.extent[d] - part.offset[d] + 1);
        }
        uint64_t elements = keel_box_elements(&box, dims), wanted = UINT64_MAX;
        for (uint64_t from = elements + 1; from-- > 0;) {
            uint64_t at[KEEL_TENSOR_DIMS_MAX], got[KEEL_TENSOR_DIMS_MAX];
            if (from < elements) {
                position(&box, dims, from, at);
                wanted = holds(&part, dims, at) ? from : wanted;
            }
            ck_assert_uint_eq(keel_box_next(&box, &part, dims, from, got), wanted);
            if (wanted != UINT64_MAX)
                ck_assert_uint_eq(keel_box_index(&box, got, dims), wanted);
        }
    }
}
END_TEST

START_TEST(a_range_of_elements_is_a_few_disjoint_boxes)
{
    uint64_t state = 2;
    for (int round = 0; round < 5000; round++) {
        uint32_t dims = (uint32_t)draw(&state, 5);
        uint64_t shape[4] = {1 + draw(&state, 5), 1 + draw(&state, 5), 1 + draw(&state, 5),
                             1 + draw(&state, 5)};
        struct keel_region tensor = tensor_of("t", dims, shape), outer = random_part(&tensor, &state);
        struct keel_box box = keel_box_of(&outer), out[KEEL_BOX_RANGE_MAX];
        uint64_t elements = keel_box_elements(&box, dims), from = draw(&state, elements);
        uint64_t to = from + 1 + draw(&state, elements - from);
        uint32_t count = keel_box_range(&box, dims, from, to, out);
        ck_assert_uint_le(count, KEEL_BOX_RANGE_MAX);
        for (uint64_t i = 0; i < elements; i++) {
            uint64_t at[KEEL_TENSOR_DIMS_MAX];
            uint32_t times = 0;
            position(&box, dims, i, at);
            for (uint32_t b = 0; b < count; b++)
                times += holds(&out[b], dims, at);
            ck_assert_uint_eq(times, i >= from && i < to);
        }
    }
}
END_TEST

/* ---- cover --------------------------------------------------------------------------------------------- */

struct seen {
    const struct keel_snapshot *snapshot;
    const struct keel_piece_chain *without;
    struct keel_box box;
    uint32_t dims, parts;
    uint64_t elements;
    uint8_t *times; /* of each element of the box; NULL: not counted */
    uint64_t of_shard[8];
};

static enum keel_status see_part(void *context, uint32_t piece, const struct keel_box *part)
{
    struct seen *seen = context;
    struct keel_region region;
    keel_record_region(keel_snapshot_record(seen->snapshot, piece), &region);
    struct keel_box held = keel_box_of(&region);
    for (uint32_t d = 0; d < seen->dims; d++) {
        ck_assert_uint_ge(part->offset[d], held.offset[d]);
        ck_assert_uint_le(part->offset[d] + part->extent[d], held.offset[d] + held.extent[d]);
    }
    ck_assert(!keel_box_empty(part, seen->dims));
    for (const struct keel_piece_chain *failed = seen->without; failed != NULL; failed = failed->next)
        ck_assert_uint_ne(piece, failed->piece);
    uint64_t count = keel_box_elements(part, seen->dims);
    seen->parts++;
    seen->elements += count;
    if (seen->snapshot->pieces[piece].shard < 8)
        seen->of_shard[seen->snapshot->pieces[piece].shard] += count;
    for (uint64_t i = 0; i < count && seen->times != NULL; i++) {
        uint64_t at[KEEL_TENSOR_DIMS_MAX];
        position(part, seen->dims, i, at);
        ck_assert(holds(&seen->box, seen->dims, at));
        seen->times[keel_box_index(&seen->box, at, seen->dims)]++;
    }
    return KEEL_OK;
}

static bool any_holds(const struct keel_snapshot *snapshot, uint32_t dims, const uint64_t *at,
                      uint32_t without)
{
    for (uint32_t p = 0; p < snapshot->piece_count; p++) {
        struct keel_region region;
        keel_record_region(keel_snapshot_record(snapshot, p), &region);
        struct keel_box held = keel_box_of(&region);
        if (p != without && holds(&held, dims, at))
            return true;
    }
    return false;
}

/* Each element of a covered box exactly once; and where brute force finds a hole, one is told. */
static void check_cover(const struct keel_snapshot *snapshot, const struct keel_region *wanted,
                        uint64_t *state, uint32_t *holes)
{
    struct keel_piece_chain chain = {(uint32_t)draw(state, snapshot->piece_count), NULL};
    const struct keel_piece_chain *without = draw(state, 2) ? &chain : NULL;
    struct seen seen = {
        .snapshot = snapshot, .without = without, .box = keel_box_of(wanted), .dims = wanted->dims};
    uint64_t elements = keel_box_elements(&seen.box, wanted->dims);
    bool whole = true;
    ck_ok(keel_alloc(elements, 1, &seen.times));
    for (uint64_t i = 0; i < elements && whole; i++) {
        uint64_t at[KEEL_TENSOR_DIMS_MAX];
        position(&seen.box, wanted->dims, i, at);
        whole = any_holds(snapshot, wanted->dims, at, without != NULL ? chain.piece : KEEL_PIECE_NONE);
    }
    enum keel_status status =
        keel_snapshot_cover(snapshot, &snapshot->tensors[0], &seen.box, without, see_part, &seen);
    ck_assert_int_eq(status, whole ? KEEL_OK : KEEL_CORRUPT);
    for (uint64_t i = 0; i < elements && whole; i++)
        ck_assert_uint_eq(seen.times[i], 1);
    *holes += !whole;
    keel_free(seen.times);
}

START_TEST(scattered_overlapping_pieces_cover_each_element_once_or_tell_the_hole)
{
    uint64_t state = 3;
    uint32_t holes = 0, rounds = 3000;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t dims = (uint32_t)draw(&state, 4), ranks = 1 + (uint32_t)draw(&state, 4);
        uint64_t shape[3] = {1 + draw(&state, 12), 1 + draw(&state, 8), 1 + draw(&state, 5)};
        struct keel_region tensor = tensor_of("t", dims, shape), regions[4][16];
        struct synthetic_rank all[4];
        for (uint32_t r = 0; r < ranks; r++) {
            all[r] = (struct synthetic_rank){regions[r], 1 + (uint32_t)draw(&state, 12)};
            for (uint32_t i = 0; i < all[r].count; i++)
                regions[r][i] = random_part(&tensor, &state);
            if (dims > 0 && draw(&state, 2))
                regions[r][0].extent[0] = 0;
        }
        struct keel_snapshot *snapshot = synthetic_snapshot(all, ranks);
        struct keel_region wanted = random_part(&tensor, &state);
        check_cover(snapshot, &wanted, &state, &holes);
        synthetic_free(snapshot);
    }
    ck_assert_uint_gt(holes, rounds / 10);
    ck_assert_uint_lt(holes, rounds - rounds / 10);
}
END_TEST

/* A grid of rows x columns pieces over the ranks, each piece of `height` x `width`. */
static struct keel_region *make_grid(uint64_t rows, uint64_t columns, uint64_t height, uint64_t width,
                                     struct keel_region *out_tensor)
{
    struct keel_region *regions,
        tensor = tensor_of("t", 2, (const uint64_t[]){rows * height, columns * width});
    ck_ok(keel_alloc(rows * columns, sizeof *regions, &regions));
    for (uint64_t i = 0; i < rows * columns; i++) {
        regions[i] = tensor;
        regions[i].offset[0] = i / columns * height;
        regions[i].offset[1] = i % columns * width;
        regions[i].extent[0] = height;
        regions[i].extent[1] = width;
    }
    *out_tensor = tensor;
    return regions;
}

/* Row stripes, column stripes, and a grid: each alone takes as many parts as it has pieces, and so does the
 * first one with the others beside it as replicas. */
START_TEST(a_hundred_thousand_pieces_take_no_more_parts_than_there_are_pieces)
{
    static const uint64_t grids[][2] = {{100000, 1}, {1, 100000}, {316, 316}, {4096, 3}};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        struct keel_region tensor;
        uint32_t count = (uint32_t)(grids[i][0] * grids[i][1]);
        struct keel_region *regions = make_grid(grids[i][0], grids[i][1], 3, 5, &tensor);
        struct synthetic_rank rank = {regions, count};
        struct keel_snapshot *snapshot = synthetic_snapshot(&rank, 1);
        struct seen seen = {.snapshot = snapshot, .box = keel_box_of(&tensor), .dims = 2};
        ck_ok(keel_snapshot_cover(snapshot, &snapshot->tensors[0], &seen.box, NULL, see_part, &seen));
        ck_assert_uint_eq(seen.parts, count);
        ck_assert_uint_eq(seen.elements, (uint64_t)count * 15);
        synthetic_free(snapshot);
        keel_free(regions);
    }
}
END_TEST

START_TEST(replicas_cut_the_other_way_make_no_fragments)
{
    struct keel_region tensor, other;
    struct keel_region *rows = make_grid(256, 1, 1, 256, &tensor),
                       *columns = make_grid(1, 256, 256, 1, &other);
    struct synthetic_rank ranks[2] = {{rows, 256}, {columns, 256}};
    struct keel_snapshot *snapshot = synthetic_snapshot(ranks, 2);
    struct seen seen = {.snapshot = snapshot, .box = keel_box_of(&tensor), .dims = 2};
    ck_ok(keel_snapshot_cover(snapshot, &snapshot->tensors[0], &seen.box, NULL, see_part, &seen));
    ck_assert_uint_eq(seen.parts, 256);
    synthetic_free(snapshot);
    keel_free(rows);
    keel_free(columns);
}
END_TEST

/* Fifty tensors that eight ranks hold whole. */
START_TEST(replicas_are_read_from_one_shard_for_a_tensor_and_from_all_for_many)
{
    struct keel_region tensors[50];
    struct synthetic_rank ranks[8];
    uint64_t of_shard[8] = {0};
    for (uint32_t i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%02u", i);
        tensors[i] = tensor_of(name, 2, (const uint64_t[]){64, 8});
    }
    for (uint32_t r = 0; r < 8; r++)
        ranks[r] = (struct synthetic_rank){tensors, 50};
    struct keel_snapshot *snapshot = synthetic_snapshot(ranks, 8);
    for (uint32_t t = 0; t < 50; t++) {
        struct seen seen = {.snapshot = snapshot, .dims = 2};
        for (uint64_t row = 0; row < 64; row += 4) {
            seen.box = (struct keel_box){.offset = {row}, .extent = {4, 8}};
            ck_ok(keel_snapshot_cover(snapshot, &snapshot->tensors[t], &seen.box, NULL, see_part, &seen));
        }
        uint32_t used = 0;
        for (uint32_t s = 0; s < 8; s++) {
            used += seen.of_shard[s] > 0;
            of_shard[s] += seen.of_shard[s];
        }
        ck_assert_uint_eq(used, 1);
    }
    for (uint32_t s = 0; s < 8; s++)
        ck_assert_uint_gt(of_shard[s], 0);
    synthetic_free(snapshot);
}
END_TEST

/* ---- plan ---------------------------------------------------------------------------------------------- */

/* 64 ranks x 125 tensors x 125 chunks; all of it is wanted, in the boxes of 48 ranks. */
START_TEST(a_plan_of_a_million_chunks_has_each_once_and_in_the_order_of_its_file)
{
    enum {
        RANKS = 64,
        TENSORS = 125,
        CHUNKS = 125,
        READERS = 48,
        COLUMNS = 1 << 15,
        ROWS = RANKS * CHUNKS * 8
    };
    struct keel_region *regions;
    struct synthetic_rank ranks[RANKS];
    struct keel_load *loads;
    ck_ok(keel_alloc((size_t)RANKS * TENSORS, sizeof *regions, &regions));
    ck_ok(keel_alloc((size_t)READERS * TENSORS, sizeof *loads, &loads));
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%u", t * 7919 % TENSORS); /* saved in another order than named */
        struct keel_region tensor = tensor_of(name, 2, (const uint64_t[]){ROWS, COLUMNS});
        for (uint32_t r = 0; r < RANKS; r++) {
            struct keel_region *region = &regions[r * TENSORS + t];
            *region = tensor;
            region->extent[0] = ROWS / RANKS;
            region->offset[0] = r * region->extent[0];
        }
        for (uint64_t r = 0; r < READERS; r++) {
            uint64_t from = ROWS * r / READERS, to = ROWS * (r + 1) / READERS;
            loads[r * TENSORS + t].box = tensor;
            loads[r * TENSORS + t].box.offset[0] = from;
            loads[r * TENSORS + t].box.extent[0] = to - from;
        }
    }
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r] = (struct synthetic_rank){regions + (size_t)r * TENSORS, TENSORS};
    struct keel_snapshot *snapshot = synthetic_snapshot(ranks, RANKS);
    struct keel_load_plan plan;
    ck_ok(keel_load_plan_make(snapshot, loads, READERS * TENSORS, &plan));
    uint64_t chunks = 0, elements = 0;
    const struct keel_load_use *before = NULL;
    for (size_t i = 0; i < plan.use_count;) {
        const struct keel_load_use *use = &plan.uses[i];
        if (before != NULL)
            ck_assert(before->shard < use->shard ||
                      (before->shard == use->shard && before->chunk < use->chunk));
        before = use;
        chunks++;
        size_t uses = keel_load_plan_uses(&plan, i);
        for (size_t u = i; u < i + uses; u++) {
            uint64_t from, to;
            struct keel_region region;
            struct keel_box boxes[KEEL_BOX_RANGE_MAX], both;
            const struct keel_load_part *part = &plan.parts[plan.uses[u].part];
            keel_load_use_range(&plan, &plan.uses[u], &from, &to);
            keel_record_region(keel_snapshot_record(snapshot, part->piece), &region);
            struct keel_box held = keel_box_of(&region);
            uint32_t count = keel_box_range(&held, 2, from, to, boxes);
            for (uint32_t b = 0; b < count; b++)
                if (keel_box_intersect(&boxes[b], &part->box, 2, &both))
                    elements += keel_box_elements(&both, 2);
        }
        i += uses;
    }
    ck_assert_uint_eq(chunks, 1000000);
    ck_assert_uint_eq(elements, (uint64_t)TENSORS * ROWS * COLUMNS);
    ck_assert_uint_eq(plan.needed_bytes, UINT64_C(1000000) << 20);
    ck_assert_uint_eq(plan.wanted_bytes, UINT64_C(1000000) << 20);
    keel_load_plan_fini(&plan);
    synthetic_free(snapshot);
    keel_free(regions);
    keel_free(loads);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, the_next_element_of_a_part_is_the_one_that_counting_finds);
    tcase_add_test(tc, a_range_of_elements_is_a_few_disjoint_boxes);
    tcase_add_test(tc, scattered_overlapping_pieces_cover_each_element_once_or_tell_the_hole);
    tcase_add_test(tc, a_hundred_thousand_pieces_take_no_more_parts_than_there_are_pieces);
    tcase_add_test(tc, replicas_cut_the_other_way_make_no_fragments);
    tcase_add_test(tc, replicas_are_read_from_one_shard_for_a_tensor_and_from_all_for_many);
    tcase_add_test(tc, a_plan_of_a_million_chunks_has_each_once_and_in_the_order_of_its_file);
}

KEEL_TEST_MAIN("cover", cases, 120)
