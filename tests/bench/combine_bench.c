/* combine_bench.c - arithmetic on blocks against memcpy: what a reduction costs beyond moving its bytes.
 *
 * Blocks of a chunk (64 KiB, in cache) and of 16 MiB (out of it). The peer moves as many bytes: a combine of
 * k leaves reads k and writes one, so memcpy copies (k + 1) / 2 times the block. Rounds alternate; medians.
 * One JSON object a line. */
#include "combine.h"
#include "tree.h"

#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, LEAVES = 4 };

static const uint16_t two[] = {0, 1, KEEL_TREE_ADD};
static const uint16_t four[] = {0, 1, KEEL_TREE_ADD, 2, 3, KEEL_TREE_ADD, KEEL_TREE_ADD};

static uint8_t *leaves[LEAVES], *out, *from, *into;

static int by_value(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static uint64_t median(uint64_t *times)
{
    qsort(times, ROUNDS, sizeof *times, by_value);
    return times[ROUNDS / 2];
}

static void race(enum keel_element element, const uint16_t *program, uint32_t program_count, uint32_t inputs,
                 uint64_t block_bytes, uint32_t turns)
{
    uint64_t ours[ROUNDS], copies[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = keel_now_ns();
        for (uint32_t turn = 0; turn < turns; turn++)
            keel_combine(element, KEEL_SUM, (const void *const *)leaves, program, program_count, out,
                         block_bytes / keel_element_bytes(element));
        ours[round] = keel_now_ns() - start;
        start = keel_now_ns();
        for (uint32_t turn = 0; turn < turns; turn++)
            memcpy(into, from, block_bytes * (inputs + 1) / 2);
        copies[round] = keel_now_ns() - start;
    }
    double bytes = (double)block_bytes * (inputs + 1) * turns;
    double mine = bytes / (double)median(ours), theirs = bytes / (double)median(copies);
    printf("{\"room\": \"transport\", \"figure\": \"sum of %u leaves, %s, %lu KiB blocks\", \"value\": %.1f, "
           "\"unit\": \"GB/s\", \"peer\": \"memcpy\", \"peer_value\": %.1f, \"ratio\": %.2f, \"goal\": null, "
           "\"met\": null}\n",
           inputs, keel_element_name(element), (unsigned long)(block_bytes >> 10), mine, theirs,
           mine / theirs);
}

int main(void)
{
    const uint64_t most = UINT64_C(16) << 20;
    const enum keel_element elements[] = {KEEL_ELEMENT_F32, KEEL_ELEMENT_F16, KEEL_ELEMENT_BF16};
    enum keel_status status = KEEL_OK;
    for (int leaf = 0; leaf < LEAVES && status == KEEL_OK; leaf++)
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, most, (void *)&leaves[leaf]);
    if (status == KEEL_OK)
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, most, (void *)&out);
    if (status == KEEL_OK)
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, 3 * most, (void *)&from);
    if (status == KEEL_OK)
        status = keel_alloc_aligned(KEEL_PAGE_BYTES, 3 * most, (void *)&into);
    if (status != KEEL_OK) {
        fprintf(stderr, "combine_bench: %s\n", keel_detail());
        return EXIT_FAILURE;
    }
    for (int leaf = 0; leaf < LEAVES; leaf++) /* halves and floats of moderate size */
        memset(leaves[leaf], 0x3c + leaf, most);
    memset(from, 1, 3 * most);
    for (uint32_t k = 0; k < sizeof elements / sizeof elements[0]; k++) {
        race(elements[k], two, 3, 2, UINT64_C(64) << 10, 400);
        race(elements[k], four, 7, 4, UINT64_C(64) << 10, 400);
        race(elements[k], two, 3, 2, most, 1);
        race(elements[k], four, 7, 4, most, 1);
    }
    for (int leaf = 0; leaf < LEAVES; leaf++)
        keel_free(leaves[leaf]);
    keel_free(out);
    keel_free(from);
    keel_free(into);
    return EXIT_SUCCESS;
}
