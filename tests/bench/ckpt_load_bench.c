/* ckpt_load_bench.c - figures of reading snapshots, one JSON object a line (fields: see bench.sh).
 *
 * Loading: 4 GiB (KEEL_BENCH_LOAD_MIB) saved by two ranks are loaded into memory that has been touched, in
 * turns with the peer: the same bytes of the same files, read with direct I/O in blocks of 4 MiB by as many
 * threads as gave the most beforehand. Both pass by the page cache of this machine; medians of ROUNDS. Data
 * looks like trained weights, saved as they are and as planes.
 * Resharding: weights of a transformer saved by 8 ranks, read by 6, in rows and in columns; "needed" are the
 * stored bytes of the chunks that hold what is wanted.
 * Planning: a million chunks that exist only as an index. */
#include "../ckpt/synthetic.h"
#include <fcntl.h>
#include <keel/clock.h>
#include <keel/thread.h>
#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    ROUNDS = 5,
    RANKS = 2,
    MIB = 1 << 20,
    BLOCK = 4 << 20,
    PATTERN = 16 << 20,
    ROW = 768,
    THREADS_MAX = 16
};
static const char run_name[] = "bench";

static void must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "ckpt_load_bench: %s: %s\n", keel_status_name(status), keel_detail());
    exit(keel_status_exit_code(status));
}

static double random_unit(void)
{
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
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

static void print(const char *figure, double value, const char *unit, const char *peer, double peer_value,
                  double goal, bool less)
{
    double ratio = value / peer_value;
    printf("{\"room\":\"ckpt\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"%s\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,\"goal\":%.4g,\"met\":%s}\n",
           figure, value, unit, peer, peer_value, ratio, goal,
           (less ? ratio <= goal : ratio >= goal) ? "true" : "false");
    fflush(stdout);
}

/* ---- saving -------------------------------------------------------------------------------------------- */

static float *pattern; /* PATTERN bytes that look trained */

static void make_pattern(void)
{
    double deviation = 0.02;
    must(keel_alloc(1, PATTERN, &pattern));
    for (size_t i = 0; i < PATTERN / sizeof *pattern; i++) {
        double normal = sqrt(-2 * log(random_unit())) * cos(2 * 3.14159265358979 * random_unit());
        if (i % ROW == 0)
            deviation = 0.02 * exp(0.3 * normal);
        pattern[i] = (float)(normal * deviation);
    }
}

static enum keel_status read_pattern(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                     void *out)
{
    uint64_t at = (offset + index * (uint64_t)ROW * sizeof *pattern) % PATTERN;
    (void)context;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part = PATTERN - at < bytes - done ? PATTERN - at : bytes - done;
        memcpy((uint8_t *)out + done, (uint8_t *)pattern + at, part);
        done += part;
        at = 0;
    }
    return KEEL_OK;
}

static struct keel_region matrix(const char *name, uint64_t rows, uint64_t columns)
{
    struct keel_region region = {
        .dtype = KEEL_CKPT_F32, .dims = 2, .shape = {rows, columns}, .extent = {rows, columns}};
    snprintf(region.name, sizeof region.name, "%s", name);
    return region;
}

/* Rank r of n gets its share of dimension d of each tensor, as even as it goes. */
static void share(const struct keel_region *tensors, uint32_t count, uint32_t dim, uint32_t rank,
                  uint32_t rank_count, struct keel_region *out)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t from = tensors[i].shape[dim] * rank / rank_count;
        uint64_t to = tensors[i].shape[dim] * (rank + 1) / rank_count;
        out[i] = tensors[i];
        out[i].offset[dim] = from;
        out[i].extent[dim] = to - from;
    }
}

static struct keel_snapshot *save(struct keel_store *store, uint64_t step, enum keel_codec codec,
                                  const struct keel_region *tensors, uint32_t count, uint32_t dim,
                                  uint32_t rank_count)
{
    struct keel_shard_summary shards[8];
    struct keel_region *mine;
    must(keel_alloc(count, sizeof *mine, &mine));
    for (uint32_t r = 0; r < rank_count; r++) {
        share(tensors, count, dim, r, rank_count, mine);
        struct keel_save *saving;
        struct keel_save_config config = {.step = step,
                                          .attempt = 1,
                                          .rank = r,
                                          .rank_count = rank_count,
                                          .codec = codec,
                                          .regions = mine,
                                          .region_count = count,
                                          .read = read_pattern,
                                          .arena_bytes = 64 * MIB,
                                          .drain_threads = 4};
        must(keel_save_begin(store, &config, &saving));
        must(keel_save_finish(saving, keel_deadline_after_ns(1200 * KEEL_NS_PER_S), &shards[r]));
    }
    struct keel_commit commit = {.step = step, .attempt = 1, .shards = shards, .shard_count = rank_count};
    must(keel_store_commit(store, &commit));
    keel_free(mine);
    struct keel_snapshot *snapshot;
    must(keel_snapshot_open(store, step, 1, &snapshot));
    return snapshot;
}

/* ---- the peer ------------------------------------------------------------------------------------------ */

struct plain_read {
    int fds[RANKS];
    uint64_t file_bytes[RANKS];
    atomic_ullong next; /* block, over all files */
    atomic_bool failed;
};

static void *read_plain(void *argument)
{
    struct plain_read *plain = argument;
    uint8_t *buffer;
    must(keel_alloc_aligned(KEEL_PAGE_BYTES, BLOCK, &buffer));
    for (;;) {
        uint64_t block = atomic_fetch_add(&plain->next, 1), file = 0, blocks = 0;
        while (file < RANKS && block >= (blocks = (plain->file_bytes[file] + BLOCK - 1) / BLOCK)) {
            block -= blocks;
            file++;
        }
        if (file == RANKS)
            break;
        uint64_t left = plain->file_bytes[file] - block * BLOCK;
        size_t bytes = left < BLOCK ? left : BLOCK;
        if (pread(plain->fds[file], buffer, bytes, (off_t)(block * BLOCK)) != (ssize_t)bytes)
            atomic_store(&plain->failed, true);
    }
    keel_free(buffer);
    return NULL;
}

/* GB/s. */
static double direct_rate(const char *step_path, uint32_t threads)
{
    struct plain_read plain = {0};
    struct keel_thread all[THREADS_MAX];
    uint64_t bytes = 0;
    for (int r = 0; r < RANKS; r++) {
        char path[KEEL_PATH_BYTES];
        snprintf(path, sizeof path, "%s/rank-%d.keel", step_path, r);
        plain.fds[r] = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (plain.fds[r] < 0) {
            fprintf(stderr, "ckpt_load_bench: %s: no direct I/O here\n", path);
            exit(3);
        }
        plain.file_bytes[r] = (uint64_t)lseek(plain.fds[r], 0, SEEK_END);
        bytes += plain.file_bytes[r];
    }
    uint64_t from_ns = keel_now_ns();
    for (uint32_t i = 0; i < threads; i++)
        must(keel_thread_create(&all[i], "plain", read_plain, &plain));
    for (uint32_t i = 0; i < threads; i++)
        keel_thread_join(&all[i]);
    double rate = (double)bytes / (double)(keel_now_ns() - from_ns);
    for (int r = 0; r < RANKS; r++)
        close(plain.fds[r]);
    if (atomic_load(&plain.failed))
        exit(1);
    return rate;
}

static uint32_t best_thread_count(const char *step_path)
{
    static const uint32_t counts[] = {1, 2, 4, 8, 16};
    uint32_t best = 1;
    double best_rate = 0;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        double rate = direct_rate(step_path, counts[i]);
        if (rate > best_rate) {
            best_rate = rate;
            best = counts[i];
        }
    }
    return best;
}

/* ---- loading ------------------------------------------------------------------------------------------- */

static double load_rate(struct keel_snapshot *snapshot, const struct keel_load *loads, uint32_t count,
                        uint64_t bytes)
{
    struct keel_load_stats stats;
    uint64_t from_ns = keel_now_ns();
    must(keel_snapshot_load(snapshot, loads, count, NULL, &stats));
    if (stats.wanted_bytes != bytes)
        exit(1);
    return (double)bytes / (double)(keel_now_ns() - from_ns);
}

static void bench_load(struct keel_store *store, const char *root, enum keel_codec codec, const char *name,
                       uint64_t mib)
{
    enum { TENSORS = 32 };
    struct keel_region tensors[TENSORS];
    struct keel_load loads[TENSORS];
    uint64_t rows = mib * MIB / TENSORS / (ROW * sizeof(float)) / RANKS * RANKS, bytes = 0;
    double ours[ROUNDS], peers[ROUNDS];
    char step_path[KEEL_PATH_BYTES], figure[96];
    for (uint32_t i = 0; i < TENSORS; i++) {
        char tensor[16];
        snprintf(tensor, sizeof tensor, "layer%02u", i);
        tensors[i] = matrix(tensor, rows, ROW);
        loads[i].box = tensors[i];
        must(keel_alloc(keel_region_bytes(&tensors[i]), 1, &loads[i].out));
        memset(loads[i].out, 1, keel_region_bytes(&tensors[i]));
        bytes += keel_region_bytes(&tensors[i]);
    }
    struct keel_snapshot *snapshot = save(store, (uint64_t)codec + 1, codec, tensors, TENSORS, 0, RANKS);
    snprintf(step_path, sizeof step_path, "%s/%s/step-%d.1", root, run_name, (int)codec + 1);
    uint32_t threads = best_thread_count(step_path);
    for (int i = 0; i < ROUNDS; i++) {
        peers[i] = direct_rate(step_path, threads);
        ours[i] = load_rate(snapshot, loads, TENSORS, bytes);
    }
    snprintf(figure, sizeof figure, "load %llu MiB, %s", (unsigned long long)mib, name);
    print(figure, median(ours, ROUNDS), "GB/s", "direct reads", median(peers, ROUNDS), 0.85, false);
    keel_snapshot_close(snapshot);
    for (uint32_t i = 0; i < TENSORS; i++)
        keel_free(loads[i].out);
}

/* ---- resharding ---------------------------------------------------------------------------------------- */

/* What all ranks of the new layout read, over what they need. */
static void bench_reshard(struct keel_store *store, uint64_t step, const char *name, uint32_t from_dim,
                          uint32_t from_ranks, uint32_t to_dim, uint32_t to_ranks)
{
    static const uint64_t shapes[][2] = {{50304, 768}, {2304, 768}, {768, 768}, {3072, 768}, {768, 3072},
                                         {1, 768},     {2304, 768}, {768, 768}, {3072, 768}, {768, 3072}};
    enum { TENSORS = sizeof shapes / sizeof shapes[0] };
    struct keel_region tensors[TENSORS], mine[TENSORS];
    struct keel_load loads[TENSORS];
    uint64_t needed = 0, read = 0;
    char figure[96];
    for (uint32_t i = 0; i < TENSORS; i++) {
        char tensor[16];
        snprintf(tensor, sizeof tensor, "w%02u", i);
        tensors[i] = matrix(tensor, shapes[i][0], shapes[i][1]);
    }
    struct keel_snapshot *snapshot =
        save(store, step, KEEL_CODEC_PLANES, tensors, TENSORS, from_dim, from_ranks);
    for (uint32_t r = 0; r < to_ranks; r++) {
        struct keel_load_stats stats;
        share(tensors, TENSORS, to_dim, r, to_ranks, mine);
        for (uint32_t i = 0; i < TENSORS; i++) {
            loads[i].box = mine[i];
            must(keel_alloc(keel_region_bytes(&mine[i]), 1, &loads[i].out));
        }
        must(keel_snapshot_load(snapshot, loads, TENSORS, NULL, &stats));
        needed += stats.needed_bytes;
        read += stats.read_bytes;
        for (uint32_t i = 0; i < TENSORS; i++)
            keel_free(loads[i].out);
    }
    snprintf(figure, sizeof figure, "reshard %s: bytes read", name);
    print(figure, (double)read, "bytes", "bytes needed", (double)needed, 1.05, true);
    keel_snapshot_close(snapshot);
}

/* ---- planning ------------------------------------------------------------------------------------------ */

/* 64 ranks with 125 tensors of 125 chunks each; a new layout of 48 ranks wants them all. */
static void bench_plan(void)
{
    enum { WRITERS = 64, TENSORS = 125, CHUNKS = 125, READERS = 48, ROWS = WRITERS * CHUNKS * 8 };
    struct keel_region *regions, tensors[TENSORS];
    struct synthetic_rank ranks[WRITERS];
    struct keel_load *loads;
    double plan_s[ROUNDS], table_s[ROUNDS];
    must(keel_alloc((size_t)WRITERS * TENSORS, sizeof *regions, &regions));
    must(keel_alloc((size_t)READERS * TENSORS, sizeof *loads, &loads));
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        snprintf(name, sizeof name, "layer.%u", t * 7919 % TENSORS);
        tensors[t] = matrix(name, ROWS, 1 << 15);
    }
    for (uint32_t r = 0; r < WRITERS; r++) {
        share(tensors, TENSORS, 0, r, WRITERS, regions + (size_t)r * TENSORS);
        ranks[r] = (struct synthetic_rank){regions + (size_t)r * TENSORS, TENSORS};
    }
    struct keel_region mine[TENSORS];
    for (uint32_t r = 0; r < READERS; r++) {
        share(tensors, TENSORS, 0, r, READERS, mine);
        for (uint32_t t = 0; t < TENSORS; t++)
            loads[r * TENSORS + t].box = mine[t];
    }
    struct keel_snapshot *snapshot = synthetic_snapshot(ranks, WRITERS);
    for (int i = 0; i < ROUNDS; i++) {
        struct keel_load_plan plan;
        uint64_t from_ns = keel_now_ns();
        must(keel_load_plan_make(snapshot, loads, READERS * TENSORS, &plan));
        plan_s[i] = (double)(keel_now_ns() - from_ns) / 1e9;
        if (plan.needed_bytes != (uint64_t)MIB * 1000000)
            exit(1);
        keel_load_plan_fini(&plan);
    }
    synthetic_free(snapshot);
    print("plan the loading of 1,000,000 chunks", median(plan_s, ROUNDS), "s", "one second", 1, 1, true);
    keel_free(regions);
    keel_free(loads);

    /* one tensor in 100,000 records: 316 x 316 boxes */
    struct keel_region tensor = matrix("grid", 316 * 4, 316 * 4), *grid;
    must(keel_alloc(316 * 316, sizeof *grid, &grid));
    for (uint32_t i = 0; i < 316 * 316; i++) {
        grid[i] = tensor;
        grid[i].offset[0] = i / 316 * 4;
        grid[i].offset[1] = i % 316 * 4;
        grid[i].extent[0] = grid[i].extent[1] = 4;
    }
    struct synthetic_rank rank = {grid, 316 * 316};
    for (int i = 0; i < ROUNDS; i++) {
        struct keel_load load = {.box = tensor};
        struct keel_load_plan plan;
        uint64_t from_ns = keel_now_ns();
        snapshot = synthetic_snapshot(&rank, 1);
        must(keel_load_plan_make(snapshot, &load, 1, &plan));
        table_s[i] = (double)(keel_now_ns() - from_ns) / 1e9;
        keel_load_plan_fini(&plan);
        synthetic_free(snapshot);
    }
    print("table and plan of one tensor in 99,856 boxes", median(table_s, ROUNDS), "s", "one second", 1, 1,
          true);
    keel_free(grid);
}

int main(void)
{
    const char *wanted = getenv("KEEL_BENCH_LOAD_MIB");
    uint64_t mib = wanted != NULL ? strtoull(wanted, NULL, 10) : 4096;
    char root[] = "build/ckpt-load-bench-XXXXXX";
    struct keel_store *store;
    if (mib < 64 || mib > (1 << 20) || mkdtemp(root) == NULL)
        return 2;
    make_pattern();
    struct keel_store_config config = {.root = root, .run = run_name, .create = true};
    must(keel_store_open(&config, &store));
    bench_plan();
    bench_reshard(store, 11, "rows of 8 ranks to rows of 6", 0, 8, 0, 6);
    bench_reshard(store, 12, "columns of 8 ranks to columns of 6", 1, 8, 1, 6);
    bench_reshard(store, 13, "rows of 8 ranks to columns of 6", 0, 8, 1, 6);
    bench_reshard(store, 14, "rows of 2 ranks to rows of 8", 0, 2, 0, 8);
    bench_load(store, root, KEEL_CODEC_RAW, "raw", mib);
    bench_load(store, root, KEEL_CODEC_PLANES, "planes", mib);
    keel_store_close(store);
    must(keel_remove_tree(root));
    keel_free(pattern);
    return 0;
}
