/* torch_layout_test.c - convolutions and matrices as torch.nn lays them out, element by element, and back. */
#include "harness.h"
#include "torch_layout.h"
#include <string.h>

enum { H = 2, W = 3, IN = 4, OUT = 5, COUNT = H * W * IN * OUT };

static uint32_t keel[COUNT], torch[COUNT];
static uint32_t fetches;

static enum keel_status fetch(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    (void)index;
    fetches++;
    memcpy(out, (const uint8_t *)context + offset, bytes);
    return KEEL_OK;
}

/* In pieces that divide no dimension, as the writer asks for them. */
static void turned(bool to_torch, const struct keel_region *region, void *from, uint32_t *out, uint32_t count)
{
    enum { PIECE = 7 };
    struct keel_torch_turned state = {.bytes = NULL};
    fetches = 0;
    for (uint32_t i = 0; i < count; i += PIECE) {
        const uint32_t here = count - i < PIECE ? count - i : PIECE;
        ck_ok(keel_torch_read(&state, to_torch, region, 0, i * sizeof *out, here * sizeof *out, out + i,
                              fetch, from));
    }
    keel_torch_forget(&state);
}

static struct keel_region region_of(uint32_t dims, const uint64_t *shape)
{
    struct keel_region region = {.dtype = KEEL_CKPT_F32, .dims = dims};
    memcpy(region.shape, shape, dims * sizeof *shape);
    memcpy(region.extent, shape, dims * sizeof *shape);
    return region;
}

START_TEST(a_convolution_has_its_elements_where_torch_has_them)
{
    static const uint64_t shape[] = {H, W, IN, OUT}, wanted[] = {OUT, IN, H, W};
    struct keel_region region = region_of(4, shape);
    uint64_t found[4];
    uint32_t back[COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        keel[i] = i;
    keel_torch_shape(true, 4, shape, found);
    ck_assert_mem_eq(found, wanted, sizeof wanted);
    turned(true, &region, keel, torch, COUNT);
    ck_assert_uint_eq(fetches, 1);
    for (uint32_t y = 0; y < H; y++)
        for (uint32_t x = 0; x < W; x++)
            for (uint32_t i = 0; i < IN; i++)
                for (uint32_t o = 0; o < OUT; o++)
                    ck_assert_uint_eq(torch[((o * IN + i) * H + y) * W + x],
                                      keel[((y * W + x) * IN + i) * OUT + o]);
    region = region_of(4, wanted);
    keel_torch_shape(false, 4, wanted, found);
    ck_assert_mem_eq(found, shape, sizeof shape);
    turned(false, &region, torch, back, COUNT);
    ck_assert_mem_eq(back, keel, sizeof keel);
}
END_TEST

START_TEST(a_matrix_is_transposed_and_all_else_lies_as_it_is)
{
    static const uint64_t shape[] = {IN, OUT};
    struct keel_region matrix = region_of(2, shape);
    uint32_t out[IN * OUT];
    for (uint32_t i = 0; i < IN * OUT; i++)
        keel[i] = i;
    turned(true, &matrix, keel, out, IN * OUT);
    for (uint32_t i = 0; i < IN; i++)
        for (uint32_t o = 0; o < OUT; o++)
            ck_assert_uint_eq(out[o * IN + i], keel[i * OUT + o]);
    ck_assert(keel_torch_turns(2) && keel_torch_turns(4) && !keel_torch_turns(1));
    ck_assert(keel_torch_is_counter("layer1.0.bn1.num_batches_tracked") &&
              !keel_torch_is_counter("layer1.0.bn1.running_mean"));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_convolution_has_its_elements_where_torch_has_them);
    tcase_add_test(tc, a_matrix_is_transposed_and_all_else_lies_as_it_is);
}

KEEL_TEST_MAIN("torch_layout", cases, 30)
