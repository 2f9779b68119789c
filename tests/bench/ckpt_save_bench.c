/* ckpt_save_bench.c - what saving costs, one JSON object a line (fields: see bench.sh), room ckpt.
 *
 * The state is trained (bench_data.h), repeated to the size that is stated: float32 weights, their bfloat16
 * copy, Adam's m and v. Ours and the peer run by turns; medians of ROUNDS.
 * Training is modelled by threads that compute in registers, a step being a fixed number of their rounds. */
#include "bench_data.h"
#include <fcntl.h>
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <keel/disk.h>
#include <keel/file.h>
#include <keel/thread.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    ROUNDS = 5,
    WINDOWS = 15,
    KINDS = 4,
    HALF = 1,
    REPEAT_MAX = 128,
    THREADS_MAX = 64,
    MIB = 1 << 20,
    DIRECT_BYTES = 16 << 20
};

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

static double seconds_since(uint64_t from_ns)
{
    return (double)(keel_now_ns() - from_ns) * 1e-9;
}

static uint64_t in_a_while(void)
{
    return keel_deadline_after_ns(600 * KEEL_NS_PER_S);
}

struct figure {
    const char *name, *unit, *peer;
    double value, peer_value, ratio, goal;
    bool met;
};

static void print(struct figure f)
{
    printf("{\"room\":\"ckpt\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"%s\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,\"goal\":%.4g,\"met\":%s}\n",
           f.name, f.value, f.unit, f.peer, f.peer_value, f.ratio, f.goal, f.met ? "true" : "false");
    fflush(stdout);
}

/* ---- the state ----------------------------------------------------------------------------------------- */

struct source {
    uint32_t region_count;
    uint64_t bytes; /* of all regions */
    struct keel_region regions[KINDS * REPEAT_MAX];
    uint32_t same_as[KINDS * REPEAT_MAX];
    uint8_t *memory[KINDS * REPEAT_MAX]; /* of each region: its own, or the trained state's when virtual */
    uint8_t *all;                        /* owned; NULL when virtual */
};

static enum keel_status read_source(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    const struct source *source = context;
    memcpy(out, source->memory[index] + offset, bytes);
    return KEEL_OK;
}

/* A region of `elements` of a kind; the kinds take turns. */
static void add_region(struct source *source, uint64_t elements, uint8_t *memory)
{
    static const char *const names[KINDS] = {"w", "half", "m", "v"};
    uint32_t i = source->region_count++, kind = i % KINDS;
    struct keel_region *region = &source->regions[i];
    *region = (struct keel_region){.dtype = kind == HALF ? KEEL_CKPT_BF16 : KEEL_CKPT_F32,
                                   .dims = 1,
                                   .shape = {elements},
                                   .extent = {elements}};
    snprintf(region->name, sizeof region->name, "%s.%u", names[kind], i / KINDS);
    source->same_as[i] = kind == HALF ? i - 1 : KEEL_SAME_AS_NONE;
    source->memory[i] = memory;
    source->bytes += keel_region_bytes(region);
}

/* At least so many bytes, in memory: each kind a flat buffer, as sharded optimizers hold it; or all
 * repetitions read from the same memory, each a region. */
static struct source *make_source(const struct bench_state *state, uint64_t bytes, bool is_virtual)
{
    const void *kinds[KINDS] = {state->weights, state->half, state->m, state->v};
    struct source *source;
    bench_must(keel_alloc(1, sizeof *source, (void *)&source));
    uint64_t one = (uint64_t)state->count * 14;
    uint32_t repeat = (uint32_t)((bytes + one - 1) / one);
    KEEL_ASSERT(repeat <= REPEAT_MAX);
    for (uint32_t i = 0; is_virtual && i < KINDS * repeat; i++)
        add_region(source, state->count, (uint8_t *)(uintptr_t)kinds[i % KINDS]);
    if (is_virtual)
        return source;
    bench_must(keel_alloc(one * repeat, 1, (void *)&source->all));
    uint8_t *at = source->all;
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        size_t size = state->count * (kind == HALF ? 2 : 4);
        add_region(source, (uint64_t)state->count * repeat, at);
        for (uint32_t i = 0; i < repeat; i++, at += size)
            memcpy(at, kinds[kind], size);
    }
    return source;
}

static void free_source(struct source *source)
{
    keel_free(source->all);
    keel_free(source);
}

static struct keel_save_config config_of(struct source *source, uint64_t step)
{
    return (struct keel_save_config){.step = step,
                                     .attempt = 1,
                                     .rank_count = 1,
                                     .codec = KEEL_CODEC_PLANES,
                                     .regions = source->regions,
                                     .region_count = source->region_count,
                                     .same_as = source->same_as,
                                     .read = read_source,
                                     .context = source,
                                     .capture_threads = keel_cpu_count() < 4 ? keel_cpu_count() : 4,
                                     .drain_threads = 1,
                                     .background = true};
}

static struct keel_shard_summary finish_and_commit(struct keel_store *store, struct keel_save *save,
                                                   uint64_t step)
{
    struct keel_shard_summary shard;
    bench_must(keel_save_finish(save, in_a_while(), &shard));
    struct keel_commit commit = {.step = step, .attempt = 1, .shards = &shard, .shard_count = 1};
    bench_must(keel_store_commit(store, &commit));
    bench_must(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    return shard;
}

/* A run of its own, as each begins with the first step. */
static struct keel_store *open_store(const char *root, const char *run)
{
    struct keel_store_config config = {.root = root, .run = run, .create = true};
    struct keel_store *store;
    bench_must(keel_store_open(&config, &store));
    return store;
}

/* ---- the stop ------------------------------------------------------------------------------------------ */

/* A step loop that stands still from begin until everything is captured; the drain is over before the next
 * round, as one that is under way would be another bench. */
static void bench_stop(const char *root, const struct bench_state *state)
{
    struct source *source = make_source(state, UINT64_C(1) << 30, false);
    struct keel_store *store = open_store(root, "stop");
    uint8_t *copy;
    bench_must(keel_alloc(source->bytes, 1, (void *)&copy));
    memset(copy, 1, source->bytes);
    double stops[2][ROUNDS], copies[ROUNDS], ratio = 0;
    for (int i = -1; i < ROUNDS; i++) { /* the first one touches fresh pages */
        uint64_t from_ns = keel_now_ns();
        memcpy(copy, source->all, source->bytes);
        if (i >= 0)
            copies[i] = seconds_since(from_ns);
        for (uint64_t j = 0; j < 2; j++) {
            uint64_t step = (uint64_t)(i + 2) * 2 + j;
            struct keel_save_config config = config_of(source, step);
            struct keel_save *save;
            config.capture_threads = j == 0 ? 1 : config.capture_threads;
            from_ns = keel_now_ns();
            bench_must(keel_save_begin(store, &config, &save));
            bench_must(keel_save_wait_captured(save, in_a_while()));
            if (i >= 0)
                stops[j][i] = seconds_since(from_ns);
            struct keel_shard_summary shard = finish_and_commit(store, save, step);
            ratio = (double)shard.raw_bytes / (double)shard.stored_bytes;
        }
    }
    double one = median(stops[0], ROUNDS) * 1e3, several = median(stops[1], ROUNDS) * 1e3,
           peer = median(copies, ROUNDS) * 1e3;
    print((struct figure){"stop of the step loop, 1 GiB, one capture thread", "ms", "memcpy", one, peer,
                          one / peer, 1.1, one / peer <= 1.1});
    print((struct figure){"stop of the step loop, 1 GiB, up to four capture threads", "ms", "memcpy", several,
                          peer, several / peer, 1.1, several / peer <= 1.1});
    print((struct figure){"whole state, bfloat16 copy elided", "raw/stored", "raw", ratio, 1, ratio, 1.4,
                          ratio >= 1.4});
    keel_free(copy);
    keel_store_close(store);
    free_source(source);
}

enum { AS_IT_COMES, PREPARED, LATER, STOPS };

/* The stop of a store's first save, of its first after keel_save_prepare, and of the one behind that. */
static void bench_first_stop(const char *root, const struct bench_state *state)
{
    static const char *const names[STOPS] = {"stop of the first save, 256 MiB, memory not touched",
                                             "stop of the first save, 256 MiB, prepared",
                                             "stop of the save behind it, 256 MiB"};
    struct source *source = make_source(state, UINT64_C(256) << 20, false);
    double stops[STOPS][ROUNDS], copies[ROUNDS];
    uint8_t *copy;
    bench_must(keel_alloc(source->bytes, 1, (void *)&copy));
    memset(copy, 1, source->bytes);
    for (int i = 0; i < ROUNDS; i++) {
        struct keel_store *store = NULL;
        uint64_t from_ns = keel_now_ns();
        memcpy(copy, source->all, source->bytes);
        copies[i] = seconds_since(from_ns);
        for (uint64_t stop = 0; stop < STOPS; stop++) {
            struct keel_save_config config = config_of(source, stop + 1);
            struct keel_save *save;
            config.capture_threads = 1;
            if (stop != LATER)
                store = open_store(root, stop == PREPARED ? "prepared" : "first");
            if (stop == PREPARED)
                bench_must(keel_save_prepare(store, &config));
            from_ns = keel_now_ns();
            bench_must(keel_save_begin(store, &config, &save));
            bench_must(keel_save_wait_captured(save, in_a_while()));
            stops[stop][i] = seconds_since(from_ns);
            keel_save_cancel(save);
            if (stop != PREPARED)
                keel_store_close(store);
        }
    }
    double peer = median(copies, ROUNDS) * 1e3;
    for (int stop = 0; stop < STOPS; stop++) {
        double ms = median(stops[stop], ROUNDS) * 1e3, goal = stop == AS_IT_COMES ? 0 : 2;
        print((struct figure){names[stop], "ms", "memcpy", ms, peer, ms / peer, goal,
                              stop == AS_IT_COMES || ms / peer <= goal});
    }
    keel_free(copy);
    free_source(source);
}

/* ---- training beside ----------------------------------------------------------------------------------- */

struct trainer {
    struct keel_thread thread;
    _Atomic uint64_t rounds;
    atomic_bool *stop;
};

/* A round: some 50 us of multiplying and adding in registers. */
static float compute_round(float seed)
{
    float lanes[16];
    for (int i = 0; i < 16; i++)
        lanes[i] = seed + (float)i;
    for (int n = 0; n < 10000; n++)
        for (int i = 0; i < 16; i++)
            lanes[i] = lanes[i] * 0.999f + 0.5f;
    float sum = 0;
    for (int i = 0; i < 16; i++)
        sum += lanes[i];
    return sum;
}

static void *train(void *argument)
{
    struct trainer *trainer = argument;
    float value = 1;
    while (!atomic_load(trainer->stop)) {
        value = compute_round(value * 1e-6f);
        atomic_fetch_add(&trainer->rounds, 1);
    }
    return value > 1e30f ? trainer : NULL;
}

static uint64_t rounds_of(struct trainer *trainers, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += atomic_load(&trainers[i].rounds);
    return sum;
}

/* Rounds a second, of all threads together, during a window. */
static double training_rate(struct trainer *trainers, uint32_t count)
{
    uint64_t from_ns = keel_now_ns(), before = rounds_of(trainers, count);
    keel_sleep_until_ns(keel_deadline_after_ns(300 * KEEL_NS_PER_MS));
    return (double)(rounds_of(trainers, count) - before) / seconds_since(from_ns);
}

/* How much slower training is while a drain runs in the background: each window with it against those before
 * and after it. */
static void bench_slow_down(const char *root, const struct bench_state *state, uint32_t threads,
                            const char *run, const char *name)
{
    struct source *source = make_source(state, UINT64_C(4) << 30, true);
    struct keel_store *store = open_store(root, run);
    struct trainer trainers[THREADS_MAX];
    atomic_bool stop = false;
    for (uint32_t i = 0; i < threads; i++) {
        trainers[i].stop = &stop;
        atomic_init(&trainers[i].rounds, 0);
        bench_must(keel_thread_create(&trainers[i].thread, "train", train, &trainers[i]));
    }
    double losses[WINDOWS], moved = 0;
    double before = training_rate(trainers, threads);
    for (int i = 0; i < WINDOWS; i++) {
        struct keel_save_config config = config_of(source, (uint64_t)i + 1);
        struct keel_save *save;
        config.arena_bytes = 64 << 20; /* it goes on and on: the capture is part of the drain here */
        bench_must(keel_save_begin(store, &config, &save));
        keel_sleep_until_ns(keel_deadline_after_ns(100 * KEEL_NS_PER_MS));
        uint64_t from = keel_save_progress_bytes(save);
        double beside = training_rate(trainers, threads);
        moved += (double)(keel_save_progress_bytes(save) - from) / 0.3 / WINDOWS;
        KEEL_ASSERT(!keel_save_done(save));
        keel_save_cancel(save);
        double after = training_rate(trainers, threads);
        losses[i] = (1 - 2 * beside / (before + after)) * 100;
        before = after;
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < threads; i++)
        keel_thread_join(&trainers[i].thread);
    double loss = median(losses, WINDOWS);
    fprintf(stderr, "bench: beside it the drain moved %.2f GB/s\n", moved * 1e-9);
    print((struct figure){name, "%", "training alone", loss, 0, loss, 2, loss <= 2});
    keel_store_close(store);
    free_source(source);
}

/* Steps of a fixed number of rounds by all processors but one. Every step begins a save of a state that can
 * be drained in that time; the weights are read-only until the step's end, where the loop waits for the
 * capture.
 */
static void bench_hidden(const char *root, const struct bench_state *state)
{
    enum { STEPS = 12 };
    const uint64_t step_ns = 800 * KEEL_NS_PER_MS;
    struct source *source = make_source(state, UINT64_C(256) << 20, false);
    struct keel_store *store = open_store(root, "hidden");
    struct keel_save *save = NULL;
    double stopped[STEPS], late = 0;
    for (uint64_t step = 0; step <= STEPS; step++) { /* step 0 touches fresh pages */
        struct keel_save_config config = config_of(source, step + 1);
        config.capture_threads = 1;
        config.drain_threads = 2;
        uint64_t from_ns = keel_now_ns();
        bench_must(keel_save_begin(store, &config, &save));
        double begin_s = seconds_since(from_ns);
        keel_sleep_until_ns(from_ns + step_ns); /* forward and backward, on a device */
        from_ns = keel_now_ns();
        bench_must(keel_save_wait_captured(save, in_a_while()));
        if (step > 0)
            stopped[step - 1] = (begin_s + seconds_since(from_ns)) / ((double)step_ns * 1e-9) * 100;
        from_ns = keel_now_ns();
        finish_and_commit(store, save, step + 1);
        late += seconds_since(from_ns) / (STEPS + 1);
    }
    fprintf(stderr, "bench: 256 MiB a step of 0.8 s; the drain was over %.3f s after the step\n", late);
    double value = median(stopped, STEPS);
    print((struct figure){"stop with capture hidden behind a step of 0.8 s, each saved", "% of step",
                          "no save", value, 0, value, 1, value <= 1});
    keel_store_close(store);
    free_source(source);
}

/* ---- the disk ------------------------------------------------------------------------------------------ */

static void bench_cap(const char *root, const struct bench_state *state)
{
    const double cap = 150e6;
    struct source *source = make_source(state, 300 << 20, true);
    struct keel_store *store = open_store(root, "cap");
    double rates[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct keel_save_config config = config_of(source, i + 1);
        struct keel_save *save;
        config.codec = KEEL_CODEC_RAW;
        config.bandwidth_bytes_s = (uint64_t)cap;
        config.background = false; /* a processor that others have keeps it under the cap, too */
        uint64_t from_ns = keel_now_ns();
        bench_must(keel_save_begin(store, &config, &save));
        while (!keel_save_done(save))
            keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
        double spent = seconds_since(from_ns);
        rates[i] = (double)finish_and_commit(store, save, i + 1).file_bytes / spent;
    }
    double rate = median(rates, 3);
    print((struct figure){"rate under a cap of 150 MB/s, 5% off at most", "MB/s", "cap", rate * 1e-6,
                          cap * 1e-6, rate / cap, 0.95, rate / cap >= 0.95 && rate / cap <= 1.05});
    keel_store_close(store);
    free_source(source);
}

/* What the disk takes: aligned writes of 16 MiB past the cache, and a sync. */
static double write_direct(const char *root, uint64_t bytes)
{
    char path[KEEL_PATH_BYTES];
    uint8_t *block;
    bench_must(keel_path_join(path, root, "direct"));
    bench_must(keel_alloc_aligned(KEEL_PAGE_BYTES, DIRECT_BYTES, (void *)&block));
    memset(block, 0x5a, DIRECT_BYTES);
    uint64_t from_ns = keel_now_ns();
    int fd = keel_disk_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666);
    KEEL_ASSERT(fd >= 0);
    for (uint64_t at = 0; at < bytes; at += DIRECT_BYTES)
        bench_must(keel_pwrite_all(fd, block, DIRECT_BYTES, at, path));
    KEEL_ASSERT(keel_disk_fsync(fd) == 0);
    double spent = seconds_since(from_ns);
    keel_disk_close(fd);
    keel_disk_unlink(AT_FDCWD, path, 0);
    keel_free(block);
    return (double)bytes / spent;
}

static void bench_disk(const char *root, const struct bench_state *state)
{
    struct source *source = make_source(state, UINT64_C(4) << 30, true);
    struct keel_store *store = open_store(root, "disk");
    double raw[3], direct[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct keel_save_config config = config_of(source, i + 1);
        struct keel_save *save;
        direct[i] = write_direct(root, source->bytes);
        config.codec = KEEL_CODEC_RAW;
        config.background = false;
        config.same_as = NULL;
        config.arena_bytes = 128 << 20;
        config.drain_threads = 3;
        config.capture_threads = 2;
        uint64_t from_ns = keel_now_ns();
        bench_must(keel_save_begin(store, &config, &save));
        while (!keel_save_done(save))
            keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
        raw[i] = (double)source->bytes / seconds_since(from_ns);
        finish_and_commit(store, save, i + 1);
    }
    double peer = median(direct, 3) * 1e-9, a = median(raw, 3) * 1e-9;
    print((struct figure){"save of 4 GiB, streamed, raw", "GB/s", "direct I/O", a, peer, a / peer, 0.85,
                          a / peer >= 0.85});
    keel_store_close(store);
    free_source(source);
}

int main(void)
{
    char root[] = "build/ckpt-save-bench-XXXXXX";
    if (mkdtemp(root) == NULL)
        return 1;
    struct bench_state state = bench_state_load(BENCH_STEP_LAST);
    uint32_t cores = keel_cpu_count();
    cores = cores < THREADS_MAX ? cores : THREADS_MAX;
    bench_stop(root, &state);
    bench_first_stop(root, &state);
    bench_hidden(root, &state);
    bench_slow_down(root, &state, cores, "busy", "slow-down while a drain runs, training on every core");
    bench_slow_down(root, &state, cores > 1 ? cores - 1 : 1, "spare",
                    "slow-down while a drain runs, one core to spare");
    bench_cap(root, &state);
    bench_disk(root, &state);
    bench_state_free(&state);
    bench_must(keel_remove_tree(root));
    return 0;
}
