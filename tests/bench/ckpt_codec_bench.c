/* ckpt_codec_bench.c - the codecs of the snapshots room on trained state, one JSON object a line (fields: see
 * bench.sh), room ckpt.
 *
 * Each tensor is cut into chunks as a save cuts it; every rate is of one core, raw bytes a second. Ours, the
 * peers and memcpy run by turns over all chunks; medians of ROUNDS. A line's `goal` is for its value where
 * the figure is an amount (ratio, GB/s), and for value / peer where it is a comparison. */
#include "bench_data.h"
#include "codec.h"
#include <time.h>
#include <zlib.h>
#if __has_include(<zstd.h>)
#include <zstd.h>
#define HAVE_ZSTD 1
#else
#define HAVE_ZSTD 0
#endif

enum { CHUNK = 1 << 20, ROOM = CHUNK + (CHUNK >> 4), ROUNDS = 5, PEERS = 4, CHUNKS_MAX = 1024 };

enum { ZLIB_1, ZLIB_6, ZSTD_1, ZSTD_3 };
static const int levels[PEERS] = {1, 6, 1, 3};
static const int peer_count = HAVE_ZSTD ? PEERS : 2;
static const char *const peer_names = HAVE_ZSTD ? "best of zlib -1 -6, zstd -1 -3" : "best of zlib -1 -6";

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint64_t core_ns(void)
{
    struct timespec now;
    KEEL_ASSERT(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double median(const double *values)
{
    double sorted[ROUNDS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, ROUNDS, sizeof sorted[0], compare);
    return sorted[ROUNDS / 2];
}

static void print(const char *figure, const char *name, double value, const char *unit, const char *peer,
                  double peer_value, double goal, bool met)
{
    printf("{\"room\":\"ckpt\",\"figure\":\"%s, %s\",\"value\":%.4g,\"unit\":\"%s\",\"peer\":\"%s\","
           "\"peer_value\":%.4g,\"ratio\":%.4g,\"goal\":%.4g,\"met\":%s}\n",
           figure, name, value, unit, peer, peer_value, value / peer_value, goal, met ? "true" : "false");
    fflush(stdout);
}

static void print_amount(const char *figure, const char *name, double value, const char *unit,
                         const char *peer, double peer_value, double goal)
{
    print(figure, name, value, unit, peer, peer_value, goal, value >= goal);
}

static void print_comparison(const char *figure, const char *name, double value, const char *unit,
                             const char *peer, double peer_value, double goal)
{
    print(figure, name, value, unit, peer, peer_value, goal, value / peer_value >= goal);
}

/* ---- one set of tensors -------------------------------------------------------------------------------- */

struct chunk {
    size_t at;
    uint32_t bytes;
    uint32_t ours, peer[PEERS]; /* stored */
    enum keel_codec codec;
};

struct set {
    const char *name;
    const uint8_t *raw, *base; /* base: NULL for planes */
    uint32_t element_bytes, chunk_count;
    size_t bytes;
    struct chunk chunks[CHUNKS_MAX];
    uint8_t *stored, *back, *scratch; /* stored: ROOM for each chunk */
};

struct rates {
    double ours, peer[PEERS], copy;
};

static void set_cut(struct set *set, const struct bench_state *state)
{
    for (uint32_t t = 0; t < state->tensor_count; t++) {
        size_t end = state->starts[t + 1] * set->element_bytes;
        for (size_t at = state->starts[t] * set->element_bytes; at < end; at += CHUNK) {
            KEEL_ASSERT(set->chunk_count < CHUNKS_MAX);
            set->chunks[set->chunk_count++] =
                (struct chunk){.at = at, .bytes = (uint32_t)(end - at < CHUNK ? end - at : CHUNK)};
        }
    }
    set->bytes = state->count * set->element_bytes;
    bench_must(keel_alloc(set->chunk_count, ROOM, &set->stored));
    bench_must(keel_alloc(set->bytes, 1, &set->back));
    bench_must(keel_alloc(1, ROOM, &set->scratch));
}

static void set_free(struct set *set)
{
    keel_free(set->stored);
    keel_free(set->back);
    keel_free(set->scratch);
}

static const uint8_t *base_of(const struct set *set, const struct chunk *chunk)
{
    return set->base != NULL ? set->base + chunk->at : NULL;
}

static void ours_encode(struct set *set, uint32_t i)
{
    struct chunk *chunk = &set->chunks[i];
    chunk->ours = keel_codec_encode(
        set->base != NULL ? KEEL_CODEC_DELTA : KEEL_CODEC_PLANES, set->element_bytes, set->raw + chunk->at,
        base_of(set, chunk), chunk->bytes, set->stored + (size_t)i * ROOM, set->scratch, &chunk->codec);
}

static void ours_decode(struct set *set, uint32_t i)
{
    struct chunk *chunk = &set->chunks[i];
    bench_must(keel_codec_decode(chunk->codec, set->element_bytes, set->stored + (size_t)i * ROOM,
                                 chunk->ours, base_of(set, chunk), set->back + chunk->at, chunk->bytes,
                                 set->scratch));
}

static void peer_encode(struct set *set, uint32_t i, int peer)
{
    struct chunk *chunk = &set->chunks[i];
    uLongf bytes = ROOM;
    if (peer <= ZLIB_6)
        KEEL_ASSERT(compress2(set->stored + (size_t)i * ROOM, &bytes, set->raw + chunk->at, chunk->bytes,
                              levels[peer]) == Z_OK);
#if HAVE_ZSTD
    else
        bytes = ZSTD_compress(set->stored + (size_t)i * ROOM, ROOM, set->raw + chunk->at, chunk->bytes,
                              levels[peer]);
    KEEL_ASSERT(peer <= ZLIB_6 || !ZSTD_isError(bytes));
#endif
    chunk->peer[peer] = (uint32_t)bytes;
}

static void peer_decode(struct set *set, uint32_t i, int peer)
{
    struct chunk *chunk = &set->chunks[i];
    uLongf bytes = chunk->bytes;
    if (peer <= ZLIB_6)
        KEEL_ASSERT(uncompress(set->back + chunk->at, &bytes, set->stored + (size_t)i * ROOM,
                               chunk->peer[peer]) == Z_OK);
#if HAVE_ZSTD
    else
        bytes = ZSTD_decompress(set->back + chunk->at, chunk->bytes, set->stored + (size_t)i * ROOM,
                                chunk->peer[peer]);
#endif
    KEEL_ASSERT(bytes == chunk->bytes);
}

enum { OURS = -1 };
static void run_all(struct set *set, int which, double *out_encode, double *out_decode)
{
    uint64_t from_ns = core_ns();
    for (uint32_t i = 0; i < set->chunk_count; i++)
        which == OURS ? ours_encode(set, i) : peer_encode(set, i, which);
    uint64_t between_ns = core_ns();
    for (uint32_t i = 0; i < set->chunk_count; i++)
        which == OURS ? ours_decode(set, i) : peer_decode(set, i, which);
    uint64_t end_ns = core_ns();
    KEEL_ASSERT(memcmp(set->back, set->raw, set->bytes) == 0);
    *out_encode = (double)set->bytes / (double)(between_ns - from_ns);
    *out_decode = (double)set->bytes / (double)(end_ns - between_ns);
}

static double copy_all(struct set *set)
{
    uint64_t from_ns = core_ns();
    for (uint32_t i = 0; i < set->chunk_count; i++)
        memcpy(set->back + set->chunks[i].at, set->raw + set->chunks[i].at, set->chunks[i].bytes);
    return (double)set->bytes / (double)(core_ns() - from_ns);
}

static void measure(struct set *set, int peers, struct rates *out_encode, struct rates *out_decode)
{
    double encode[PEERS + 1][ROUNDS], decode[PEERS + 1][ROUNDS], copy[ROUNDS];
    run_all(set, OURS, &encode[0][0], &decode[0][0]); /* pages in */
    for (int r = 0; r < ROUNDS; r++) {
        copy[r] = copy_all(set);
        for (int peer = OURS; peer < peers; peer++)
            run_all(set, peer, &encode[peer + 1][r], &decode[peer + 1][r]);
    }
    out_encode->copy = out_decode->copy = median(copy);
    out_encode->ours = median(encode[0]);
    out_decode->ours = median(decode[0]);
    for (int peer = 0; peer < peers; peer++) {
        out_encode->peer[peer] = median(encode[peer + 1]);
        out_decode->peer[peer] = median(decode[peer + 1]);
    }
}

static double our_ratio(const struct set *set)
{
    double stored = 0;
    for (uint32_t i = 0; i < set->chunk_count; i++)
        stored += set->chunks[i].ours;
    return (double)set->bytes / stored;
}

static double peer_ratio(const struct set *set, int peer)
{
    double stored = 0;
    for (uint32_t i = 0; i < set->chunk_count; i++)
        stored += set->chunks[i].peer[peer];
    return (double)set->bytes / stored;
}

static double largest(const double *values, int count)
{
    double most = values[0];
    for (int i = 1; i < count; i++)
        most = values[i] > most ? values[i] : most;
    return most;
}

/* ---- figures ------------------------------------------------------------------------------------------- */

struct goals {
    double ratio, encode, decode; /* GB/s; 0: the peers' */
};

/* Against every peer: smaller than the smallest, faster than the fastest. Returns our ratio. */
static double bench_planes(const char *name, const void *raw, uint32_t element_bytes,
                           const struct bench_state *state, struct goals goals)
{
    struct set set = {.name = name, .raw = raw, .element_bytes = element_bytes};
    struct rates encode, decode;
    double ratios[PEERS];
    set_cut(&set, state);
    measure(&set, peer_count, &encode, &decode);
    for (int peer = 0; peer < peer_count; peer++)
        ratios[peer] = peer_ratio(&set, peer);
    double ratio = our_ratio(&set), best = largest(ratios, peer_count);
    print("planes ratio", name, ratio, "raw/stored", peer_names, best, goals.ratio,
          ratio >= goals.ratio && ratio > best);
    print_comparison("planes encode against the fastest peer", name, encode.ours, "GB/s", peer_names,
                     largest(encode.peer, peer_count), 1);
    print_comparison("planes encode against zlib -1", name, encode.ours, "GB/s", "zlib -1",
                     encode.peer[ZLIB_1], 20);
    print_comparison("planes decode against the fastest peer", name, decode.ours, "GB/s", peer_names,
                     largest(decode.peer, peer_count), 1);
    if (goals.encode > 0) {
        print_amount("planes encode, one core", name, encode.ours, "GB/s", "memcpy", encode.copy,
                     goals.encode);
        print_amount("planes decode, one core", name, decode.ours, "GB/s", "memcpy", decode.copy,
                     goals.decode);
    }
    set_free(&set);
    return ratio;
}

static void bench_delta(const char *name, const void *raw, const void *base, uint32_t element_bytes,
                        const struct bench_state *state, double planes_ratio, double goal)
{
    struct set set = {.name = name, .raw = raw, .base = base, .element_bytes = element_bytes};
    struct rates encode, decode;
    set_cut(&set, state);
    measure(&set, 0, &encode, &decode);
    print_amount("delta ratio", name, our_ratio(&set), "raw/stored", "planes", planes_ratio, goal);
    print_amount("delta encode, one core", name, encode.ours, "GB/s", "memcpy", encode.copy, 0.5);
    print_amount("delta decode, one core", name, decode.ours, "GB/s", "memcpy", decode.copy, 1);
    set_free(&set);
}

/* What capture asks of every chunk: is a copy the rounding of its master, and is anything not finite. */
static void bench_floats(const struct bench_state *state)
{
    double same[ROUNDS], finite[ROUNDS], copy[ROUNDS];
    size_t bytes = state->count * sizeof(float);
    uint8_t *to;
    bench_must(keel_alloc(bytes, 1, &to));
    memset(to, 1, bytes);
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t from_ns = core_ns();
        memcpy(to, state->weights, bytes);
        copy[r] = (double)bytes / (double)(core_ns() - from_ns);
        from_ns = core_ns();
        KEEL_ASSERT(
            keel_codec_rounds_same(KEEL_CKPT_BF16, KEEL_CKPT_F32, state->half, state->weights, state->count));
        same[r] = (double)bytes / (double)(core_ns() - from_ns);
        from_ns = core_ns();
        KEEL_ASSERT(keel_codec_nonfinite(KEEL_CKPT_F32, state->weights, bytes) == 0);
        finite[r] = (double)bytes / (double)(core_ns() - from_ns);
    }
    print_comparison("is a copy its rounded master", "bf16 of fp32", median(same), "GB/s", "memcpy",
                     median(copy), 0.25);
    print_comparison("is nothing NaN or infinite", "fp32", median(finite), "GB/s", "memcpy", median(copy),
                     0.5);
    keel_free(to);
}

/* All that Adam holds: master weights, their bfloat16 copy, both moments; the copy is not stored. */
static void print_whole_state(double weights, double m, double v)
{
    double raw = 4 + 2 + 4 + 4, stored = 4 / weights + 4 / m + 4 / v;
    print_amount("planes and same", "whole Adam state with its bf16 copy", raw / stored, "raw/stored", "raw",
                 1, 1.4);
}

int main(void)
{
    struct bench_state now = bench_state_load(BENCH_STEP_LAST),
                       before = bench_state_load(BENCH_STEP_LAST - 1);
    struct bench_state first = bench_state_load(BENCH_STEP_FIRST);
    const struct goals fp32 = {1.2, 1.5, 2}, bf16 = {1.5, 0, 0}, m = {1.17, 1.5, 2}, v = {1.23, 1.5, 2};
    double w_ratio = bench_planes("fp32 weights", now.weights, 4, &now, fp32);
    double h_ratio = bench_planes("bf16 weights", now.half, 2, &now, bf16);
    double m_ratio = bench_planes("Adam m", now.m, 4, &now, m);
    double v_ratio = bench_planes("Adam v", now.v, 4, &now, v);
    print_whole_state(w_ratio, m_ratio, v_ratio);
    bench_delta("fp32 weights, one step", now.weights, before.weights, 4, &now, w_ratio, 1.6);
    bench_delta("bf16 weights, one step", now.half, before.half, 2, &now, h_ratio, 4);
    bench_delta("Adam v, one step", now.v, before.v, 4, &now, v_ratio, v_ratio);
    bench_delta("fp32 weights, ten steps", now.weights, first.weights, 4, &now, w_ratio, w_ratio);
    bench_floats(&now);
    bench_state_free(&now);
    bench_state_free(&before);
    bench_state_free(&first);
    return 0;
}
