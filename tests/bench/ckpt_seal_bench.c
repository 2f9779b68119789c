/* ckpt_seal_bench.c - figures of sealing, one JSON object a line (fields: see bench.sh).
 *
 * One core: chunks of 1 MiB sealed in place, as a save's drain thread does it after encoding, opened as a
 * reader does it before decoding, and the mac of a shard's index of 4096 chunks. More data than caches hold.
 * The peer is memcpy of the same bytes, in turns; medians of ROUNDS. There is no goal: it is what the key
 * costs. */
#include "chunk_seal.h"
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 7, CHUNK = 1 << 20, STRIDE = CHUNK + 4096, CHUNKS = 128, INDEX_CHUNKS = 4096 };

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "ckpt_seal_bench: %s: %s\n", keel_status_name(status), keel_detail());
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

static void print(const char *figure, double value, double copy)
{
    printf("{\"room\":\"ckpt\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"GB/s\",\"peer\":\"memcpy\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,\"goal\":null,\"met\":null}\n",
           figure, value, copy, value / copy);
    fflush(stdout);
}

static double rate(double bytes, uint64_t from_ns)
{
    return bytes / (double)(keel_now_ns() - from_ns);
}

/* A key file of its own, gone again. */
static struct keel_key *load_key(void)
{
    char path[] = "/tmp/keel-seal-bench-XXXXXX";
    struct keel_key *key;
    int fd = mkstemp(path);
    KEEL_ASSERT(fd >= 0);
    must(keel_pwrite_all(fd, "0123456789abcdef0123456789abcdef", KEEL_KEY_BYTES, 0, path));
    close(fd);
    must(keel_key_load(path, &key));
    unlink(path);
    return key;
}

struct bench {
    struct keel_key *key;
    struct keel_format_header header;
    struct keel_format_chunk entries[CHUNKS];
    uint8_t *stored, *spare; /* CHUNKS x STRIDE */
};

static double seal_all(struct bench *bench)
{
    uint64_t from_ns = keel_now_ns();
    for (uint32_t i = 0; i < CHUNKS; i++) {
        bench->entries[i] = (struct keel_format_chunk){
            .raw_bytes = CHUNK, .stored_bytes = CHUNK, .codec = KEEL_CODEC_RAW, .raw_check = i};
        keel_chunk_seal(bench->key, &bench->header, i, &bench->entries[i],
                        bench->stored + (size_t)i * STRIDE);
    }
    return rate((double)CHUNKS * CHUNK, from_ns);
}

static double open_all(struct bench *bench)
{
    uint64_t from_ns = keel_now_ns();
    for (uint32_t i = 0; i < CHUNKS; i++) {
        const uint8_t *bytes;
        must(keel_chunk_open(bench->key, &bench->header, i, &bench->entries[i],
                             bench->stored + (size_t)i * STRIDE, &bytes));
        KEEL_ASSERT(bench->entries[i].raw_check == i);
    }
    return rate((double)CHUNKS * CHUNK, from_ns);
}

static double copy_all(struct bench *bench)
{
    uint64_t from_ns = keel_now_ns();
    for (uint32_t i = 0; i < CHUNKS; i++)
        memcpy(bench->spare + (size_t)i * STRIDE, bench->stored + (size_t)i * STRIDE, CHUNK);
    return rate((double)CHUNKS * CHUNK, from_ns);
}

static double mac_index(struct bench *bench)
{
    struct keel_format_footer footer = {.index_bytes = INDEX_CHUNKS * sizeof(struct keel_format_chunk)};
    uint64_t from_ns = keel_now_ns();
    keel_shard_mac(bench->key, &bench->header, bench->stored, &footer);
    return rate((double)footer.index_bytes, from_ns);
}

int main(void)
{
    struct bench bench = {.header = {.step = 1, .rank_count = 1, .run = "bench"}};
    double seal[ROUNDS], open[ROUNDS], copy[ROUNDS], mac[ROUNDS];
    bench.key = load_key();
    keel_shard_begin_seal(bench.key, &bench.header);
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)CHUNKS * STRIDE, &bench.stored));
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, (size_t)CHUNKS * STRIDE, &bench.spare));
    memset(bench.stored, 1, (size_t)CHUNKS * STRIDE);
    memset(bench.spare, 2, (size_t)CHUNKS * STRIDE);
    for (int r = 0; r < ROUNDS; r++) {
        copy[r] = copy_all(&bench);
        seal[r] = seal_all(&bench);
        open[r] = open_all(&bench);
        mac[r] = mac_index(&bench);
    }
    double copy_median = median(copy);
    print("seal chunks, one core", median(seal), copy_median);
    print("open sealed chunks, one core", median(open), copy_median);
    print("mac of an index, one core", median(mac), copy_median);
    keel_free(bench.stored);
    keel_free(bench.spare);
    keel_key_release(bench.key);
    return 0;
}
