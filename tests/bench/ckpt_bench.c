/* ckpt_bench.c - figures of the snapshots room, one JSON object a line (fields: see DESIGN, make bench).
 *
 * Data is made to look like trained weights: each row of 768 normally distributed with a deviation of its
 * own. Ours and the peer run by turns on the same data; medians of ROUNDS. Codec figures are of one core. */
#include "../../ckpt/codec.h"
#include <fcntl.h>
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { CHUNK = 1 << 20, CHUNKS = 32, ROUNDS = 5, SAVE_MIB = 256, ROW = 768 };
static const char run_name[] = "bench";

static uint64_t random_state = 88172645463325252ULL;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(2 * 3.14159265358979 * uniform());
}

static void trained_f32(float *out, size_t count)
{
    double deviation = 0.02;
    for (size_t i = 0; i < count; i++) {
        if (i % ROW == 0)
            deviation = 0.02 * exp(0.3 * normal());
        out[i] = (float)(normal() * deviation);
    }
}

static void to_bf16(const float *in, uint16_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        out[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static double gb_s(uint64_t bytes, uint64_t from_ns)
{
    return (double)bytes / (double)(keel_now_ns() - from_ns);
}

/* The goal is one for the ratio to the peer: absolute figures move with the machine. */
static void print(const char *figure, double value, const char *unit, const char *peer, double peer_value,
                  double goal)
{
    printf("{\"room\":\"ckpt\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"%s\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,\"goal\":%.4g,\"met\":%s}\n",
           figure, value, unit, peer, peer_value, value / peer_value, goal,
           value / peer_value >= goal ? "true" : "false");
    fflush(stdout);
}

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "ckpt_bench: %s: %s\n", keel_status_name(status), keel_detail());
    exit(keel_status_exit_code(status));
}

/* ---- codecs
 * ---------------------------------------------------------------------------------------------------- */

struct codec_bench {
    uint8_t *raw, *ours, *peers, *back, *scratch; /* CHUNKS chunks, each with room to spare */
    uint32_t element_bytes;
    uint32_t our_bytes[CHUNKS];
    enum keel_codec codec[CHUNKS];
    uLongf peer_bytes[CHUNKS];
};
enum { ROOM = CHUNK + 4096 };

static double our_encode(struct codec_bench *b)
{
    uint64_t from_ns = keel_now_ns();
    for (size_t i = 0; i < CHUNKS; i++)
        b->our_bytes[i] = keel_codec_encode(KEEL_CODEC_PLANES, b->element_bytes, b->raw + i * CHUNK, NULL,
                                            CHUNK, b->ours + i * ROOM, b->scratch, &b->codec[i]);
    return gb_s((uint64_t)CHUNKS * CHUNK, from_ns);
}

static double our_decode(struct codec_bench *b)
{
    uint64_t from_ns = keel_now_ns();
    for (size_t i = 0; i < CHUNKS; i++)
        must(keel_codec_decode(b->codec[i], b->element_bytes, b->ours + i * ROOM, b->our_bytes[i], NULL,
                               b->back + i * CHUNK, CHUNK, b->scratch));
    return gb_s((uint64_t)CHUNKS * CHUNK, from_ns);
}

static double peer_encode(struct codec_bench *b)
{
    uint64_t from_ns = keel_now_ns();
    for (size_t i = 0; i < CHUNKS; i++) {
        b->peer_bytes[i] = ROOM;
        if (compress2(b->peers + i * ROOM, &b->peer_bytes[i], b->raw + i * CHUNK, CHUNK, 1) != Z_OK)
            exit(1);
    }
    return gb_s((uint64_t)CHUNKS * CHUNK, from_ns);
}

static double peer_decode(struct codec_bench *b)
{
    uint64_t from_ns = keel_now_ns();
    for (size_t i = 0; i < CHUNKS; i++) {
        uLongf bytes = CHUNK;
        if (uncompress(b->back + i * CHUNK, &bytes, b->peers + i * ROOM, b->peer_bytes[i]) != Z_OK)
            exit(1);
    }
    return gb_s((uint64_t)CHUNKS * CHUNK, from_ns);
}

static void bench_codec(const char *name, const void *data, uint32_t element_bytes, double encode_goal,
                        double decode_goal, double ratio_goal)
{
    struct codec_bench b = {.element_bytes = element_bytes};
    must(keel_alloc(CHUNKS, CHUNK, &b.raw));
    must(keel_alloc(CHUNKS, ROOM, &b.ours));
    must(keel_alloc(CHUNKS, ROOM, &b.peers));
    must(keel_alloc(CHUNKS, CHUNK, &b.back));
    must(keel_alloc(1, ROOM, &b.scratch));
    memcpy(b.raw, data, (size_t)CHUNKS * CHUNK);
    double encode[ROUNDS], decode[ROUNDS], zlib_encode[ROUNDS], zlib_decode[ROUNDS];
    our_encode(&b); /* pages in */
    for (int i = 0; i < ROUNDS; i++) {
        zlib_encode[i] = peer_encode(&b);
        encode[i] = our_encode(&b);
        zlib_decode[i] = peer_decode(&b);
        decode[i] = our_decode(&b);
        if (memcmp(b.back, b.raw, (size_t)CHUNKS * CHUNK) != 0)
            exit(1);
    }
    double ours = 0, peers = 0;
    for (int i = 0; i < CHUNKS; i++) {
        ours += b.our_bytes[i];
        peers += (double)b.peer_bytes[i];
    }
    char figure[64];
    snprintf(figure, sizeof figure, "planes encode %s, one core", name);
    print(figure, median(encode, ROUNDS), "GB/s", "zlib -1", median(zlib_encode, ROUNDS), encode_goal);
    snprintf(figure, sizeof figure, "planes decode %s, one core", name);
    print(figure, median(decode, ROUNDS), "GB/s", "zlib -1", median(zlib_decode, ROUNDS), decode_goal);
    snprintf(figure, sizeof figure, "planes size %s", name);
    print(figure, (double)CHUNKS * CHUNK / ours, "raw/stored", "zlib -1", (double)CHUNKS * CHUNK / peers,
          ratio_goal);
    keel_free(b.raw);
    keel_free(b.ours);
    keel_free(b.peers);
    keel_free(b.back);
    keel_free(b.scratch);
}

/* ---- save
 * ------------------------------------------------------------------------------------------------------ */

static enum keel_status read_memory(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    (void)index;
    memcpy(out, (const uint8_t *)context + offset, bytes);
    return KEEL_OK;
}

struct save_times {
    double captured, durable; /* GB/s from begin on */
};

static struct save_times save_once(struct keel_store *store, uint8_t *data, uint64_t bytes, uint64_t step)
{
    struct keel_region region = {
        .name = "w", .dtype = KEEL_CKPT_F32, .dims = 1, .shape = {bytes / 4}, .extent = {bytes / 4}};
    struct keel_save_config config = {.step = step,
                                      .attempt = 1,
                                      .rank_count = 1,
                                      .codec = KEEL_CODEC_PLANES,
                                      .regions = &region,
                                      .region_count = 1,
                                      .read = read_memory,
                                      .context = data,
                                      .drain_threads = 2};
    struct keel_save *save;
    struct keel_shard_summary shard;
    struct save_times times;
    uint64_t from_ns = keel_now_ns();
    must(keel_save_begin(store, &config, &save));
    must(keel_save_wait_captured(save, keel_deadline_after_ns(600 * KEEL_NS_PER_S)));
    times.captured = gb_s(bytes, from_ns);
    must(keel_save_finish(save, keel_deadline_after_ns(600 * KEEL_NS_PER_S), &shard));
    struct keel_commit commit = {.step = step, .attempt = 1, .shards = &shard, .shard_count = 1};
    must(keel_store_commit(store, &commit));
    times.durable = gb_s(bytes, from_ns);
    must(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    return times;
}

static double write_and_sync(const char *path, const uint8_t *data, uint64_t bytes)
{
    uint64_t from_ns = keel_now_ns();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        exit(1);
    must(keel_pwrite_all(fd, data, bytes, 0, path));
    if (fsync(fd) != 0 || close(fd) != 0)
        exit(1);
    return gb_s(bytes, from_ns);
}

static void bench_save(void)
{
    uint64_t bytes = (uint64_t)SAVE_MIB << 20;
    uint8_t *data, *copy;
    char root[] = "build/ckpt-bench-XXXXXX", plain[KEEL_PATH_BYTES];
    must(keel_alloc(bytes, 1, &data));
    must(keel_alloc(bytes, 1, &copy));
    trained_f32((float *)(void *)data, CHUNK);
    for (uint64_t at = 4 * (uint64_t)CHUNK; at < bytes; at += 4 * (uint64_t)CHUNK)
        memcpy(data + at, data, 4 * (size_t)CHUNK);
    if (mkdtemp(root) == NULL)
        exit(1);
    must(keel_path_join(plain, root, "plain"));
    struct keel_store_config config = {.root = root, .run = run_name, .create = true};
    struct keel_store *store;
    must(keel_store_open(&config, &store));
    double captured[ROUNDS], durable[ROUNDS], copied[ROUNDS], written[ROUNDS];
    memcpy(copy, data, bytes);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t from_ns = keel_now_ns();
        memcpy(copy, data, bytes);
        copied[i] = gb_s(bytes, from_ns);
        struct save_times times = save_once(store, data, bytes, (uint64_t)i + 1);
        captured[i] = times.captured;
        durable[i] = times.durable;
        written[i] = write_and_sync(plain, data, bytes);
    }
    print("save 256 MiB until sources are free", median(captured, ROUNDS), "GB/s", "memcpy",
          median(copied, ROUNDS), 0.5);
    print("save 256 MiB until committed, two drain threads", median(durable, ROUNDS), "GB/s", "write + fsync",
          median(written, ROUNDS), 1);
    keel_store_close(store);
    must(keel_remove_tree(root));
    keel_free(data);
    keel_free(copy);
}

int main(void)
{
    size_t count = (size_t)CHUNKS * CHUNK / 4;
    float *weights;
    uint16_t *halves;
    must(keel_alloc(2 * count, sizeof *weights, &weights));
    must(keel_alloc(2 * count, sizeof *halves, &halves));
    trained_f32(weights, 2 * count);
    to_bf16(weights, halves, 2 * count);
    bench_codec("fp32", weights, 4, 20, 3, 1.1);
    bench_codec("bf16", halves, 2, 20, 3, 1.15);
    keel_free(weights);
    keel_free(halves);
    bench_save();
    return 0;
}
