/* ckpt_erasure_bench.c - figures of erasure sets, one JSON object a line (fields: see bench.sh).
 *
 * One core. Encoding: the parity of stripes of cells of 1 MiB, as keel_erasure_protect computes it, over more
 * data than caches hold; the figure is data bytes by time. Decoding: as many data cells as there are parity
 * cells are lost, and computed again; data bytes of the whole stripe by time, as all of them are read. The
 * peer is memcpy of the data cells, in turns; medians of ROUNDS. Whole: shards in memory levels to parity in
 * memory levels, with verifying, checks, digests and reading back, for which there is no goal. */
#include "erasure_code.h"
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 7, CELL = 1 << 20, STRIPES = 32, NODES_MAX = 16, SHARD = 64 << 20 };

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "ckpt_erasure_bench: %s: %s\n", keel_status_name(status), keel_detail());
    exit(keel_status_exit_code(status));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

/* GB/s; `goal` 0: none. */
static void print(const char *figure, double value, const char *peer, double peer_value, double goal)
{
    printf("{\"room\":\"ckpt\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"GB/s\",\"peer\":\"%s\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,",
           figure, value, peer, peer_value, value / peer_value);
    if (goal > 0)
        printf("\"goal\":%.4g,\"met\":%s}\n", goal, value >= goal ? "true" : "false");
    else
        printf("\"goal\":null,\"met\":null}\n");
    fflush(stdout);
}

static double rate(double bytes, uint64_t from_ns)
{
    return bytes / (double)(keel_now_ns() - from_ns);
}

/* ---- the code alone ------------------------------------------------------------------------------------ */

struct cells {
    uint32_t k, m;
    uint8_t *data, *parity, *spare; /* STRIPES x k, STRIPES x m, STRIPES x k cells */
};

static uint8_t *cells_alloc(uint32_t count)
{
    uint8_t *cells;
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)count * CELL, &cells));
    memset(cells, 0, (size_t)count * CELL);
    return cells;
}

static void encode_all(const struct keel_erasure_code *code, const struct cells *cells)
{
    for (uint32_t s = 0; s < STRIPES; s++) {
        uint8_t *data[NODES_MAX], *parity[NODES_MAX];
        for (uint32_t i = 0; i < cells->k; i++)
            data[i] = cells->data + ((size_t)s * cells->k + i) * CELL;
        for (uint32_t i = 0; i < cells->m; i++)
            parity[i] = cells->parity + ((size_t)s * cells->m + i) * CELL;
        keel_erasure_encode(code, data, parity, CELL);
    }
}

/* The first m data cells from the others and all of the parity, into `spare`. */
static void decode_all(const struct keel_erasure_code *code, const struct cells *cells)
{
    const uint32_t k = cells->k, m = cells->m;
    for (uint32_t s = 0; s < STRIPES; s++) {
        uint8_t *sources[NODES_MAX], *out[NODES_MAX];
        uint32_t rows[NODES_MAX], wanted[NODES_MAX];
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = m + i; /* data cells m .. k - 1, then parity */
            sources[i] = rows[i] < k ? cells->data + ((size_t)s * k + rows[i]) * CELL
                                     : cells->parity + ((size_t)s * m + rows[i] - k) * CELL;
        }
        for (uint32_t i = 0; i < m; i++) {
            wanted[i] = i;
            out[i] = cells->spare + ((size_t)s * k + i) * CELL;
        }
        keel_erasure_decode(code, rows, sources, wanted, m, out, CELL);
    }
}

static void bench_code(uint32_t k, uint32_t m)
{
    struct cells cells = {k, m, cells_alloc(STRIPES * k), cells_alloc(STRIPES * m), cells_alloc(STRIPES * k)};
    struct keel_erasure_code code;
    double encode[ROUNDS], decode[ROUNDS], copy[ROUNDS], bytes = (double)STRIPES * k * CELL;
    char figure[80];
    must(keel_erasure_code_init(&code, k, m));
    for (size_t i = 0; i < (size_t)STRIPES * k * CELL / 8; i++) {
        uint64_t word = i * UINT64_C(0x9e3779b97f4a7c15);
        memcpy(cells.data + 8 * i, &word, 8);
    }
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t from_ns = keel_now_ns();
        memcpy(cells.spare, cells.data, (size_t)STRIPES * k * CELL);
        copy[r] = rate(bytes, from_ns);
        from_ns = keel_now_ns();
        encode_all(&code, &cells);
        encode[r] = rate(bytes, from_ns);
        from_ns = keel_now_ns();
        decode_all(&code, &cells);
        decode[r] = rate(bytes, from_ns);
    }
    for (uint32_t s = 0; s < STRIPES; s++)
        KEEL_ASSERT(memcmp(cells.spare + (size_t)s * k * CELL, cells.data + (size_t)s * k * CELL,
                           (size_t)m * CELL) == 0);
    double copy_median = median(copy);
    snprintf(figure, sizeof figure, "erasure encode %u+%u, one core", k, m);
    print(figure, median(encode), "memcpy", copy_median, 10);
    snprintf(figure, sizeof figure, "erasure decode %u+%u, %u lost, one core", k, m, m);
    print(figure, median(decode), "memcpy", copy_median, 10);
    keel_erasure_code_fini(&code);
    keel_free(cells.data);
    keel_free(cells.parity);
    keel_free(cells.spare);
}

/* ---- a whole set --------------------------------------------------------------------------------------- */

static enum keel_status read_pattern(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    (void)context;
    (void)index;
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = (offset + i) * UINT64_C(0x9e3779b97f4a7c15);
        memcpy((uint8_t *)out + i, &word, 8);
    }
    return KEEL_OK;
}

static void save_shards(const char *root, uint32_t n, struct keel_tier **levels)
{
    struct keel_store *store;
    struct keel_tier *disk;
    struct keel_region region = {
        .name = "w", .dtype = KEEL_CKPT_U8, .dims = 1, .shape = {SHARD}, .extent = {SHARD}};
    must(keel_store_open(&(struct keel_store_config){.root = root, .run = "bench", .create = true}, &store));
    must(keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, NULL, &disk));
    for (uint32_t r = 0; r < n; r++) {
        struct keel_save *save;
        struct keel_shard_summary summary;
        struct keel_save_config config = {.step = 1,
                                          .attempt = 1,
                                          .rank = r,
                                          .rank_count = n,
                                          .codec = KEEL_CODEC_RAW,
                                          .regions = &region,
                                          .region_count = 1,
                                          .read = read_pattern};
        const struct keel_object object = {.step = 1, .attempt = 1, .kind = KEEL_OBJECT_SHARD, .member = r};
        must(keel_save_begin(store, &config, &save));
        must(keel_save_finish(save, KEEL_NEVER, &summary));
        must(keel_tier_memory_open("bench", 2 * (uint64_t)SHARD, NULL, &levels[r]));
        must(keel_tier_copy(disk, &object, levels[r]));
        must(keel_tier_remove(disk, &object));
    }
    keel_tier_end(disk);
    keel_store_close(store);
}

static void bench_whole(uint32_t k, uint32_t m)
{
    const char *base = getenv("TMPDIR");
    char root[KEEL_PATH_BYTES], figure[80];
    struct keel_tier *levels[NODES_MAX];
    uint32_t ranks[NODES_MAX];
    double whole[ROUNDS], bytes = (double)(k + m) * SHARD;
    snprintf(root, sizeof root, "%s/keel-bench-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(root) == NULL)
        exit(3);
    save_shards(root, k + m, levels);
    for (uint32_t i = 0; i < k + m; i++)
        ranks[i] = i;
    double copy[ROUNDS];
    uint8_t *from = cells_alloc(SHARD / CELL), *to = cells_alloc(SHARD / CELL);
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t from_ns = keel_now_ns();
        for (uint32_t i = 0; i < k + m; i++)
            memcpy(to, from, SHARD);
        copy[r] = rate(bytes, from_ns);
        from_ns = keel_now_ns();
        must(keel_erasure_protect(&(struct keel_erasure_config){.step = 1,
                                                                .attempt = 1,
                                                                .node_count = k + m,
                                                                .parity_count = m,
                                                                .ranks = ranks,
                                                                .from = levels,
                                                                .to = levels}));
        whole[r] = rate(bytes, from_ns);
    }
    snprintf(figure, sizeof figure, "erasure set %u+%u made and verified, one core", k, m);
    print(figure, median(whole), "memcpy", median(copy), 0);
    keel_free(from);
    keel_free(to);
    for (uint32_t i = 0; i < k + m; i++)
        keel_tier_end(levels[i]);
    (void)keel_remove_tree(root);
}

int main(void)
{
    bench_code(8, 2);
    bench_code(14, 2);
    bench_whole(6, 2);
    return 0;
}
