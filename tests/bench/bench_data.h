/* bench_data.h - trained state for the benches: what bench_data.sh left in build/bench-data (`make
 * bench-data`).
 *
 * All tensors of one kind lie one behind the other in one array, in the order of their names: weights, first
 * and second moments of Adam, and the weights rounded to bfloat16. */
#ifndef KEEL_TESTS_BENCH_DATA_H
#define KEEL_TESTS_BENCH_DATA_H

#include <keel/ckpt.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Snapshots of every step from the first to the last are there. */
enum { BENCH_STEP_FIRST = 150, BENCH_STEP_LAST = 160, BENCH_TENSORS_MAX = 256 };

struct bench_state {
    size_t count; /* elements of each */
    uint32_t tensor_count;
    size_t starts[BENCH_TENSORS_MAX + 1]; /* where each tensor begins, in elements; and `count` */
    float *weights, *m, *v;
    uint16_t *half; /* bfloat16 */
};

static inline void bench_must(enum keel_status status)
{
    if (status == KEEL_OK)
        return;
    fprintf(stderr, "bench: %s: %s\n", keel_status_name(status), keel_detail());
    exit(keel_status_exit_code(status));
}

static inline struct keel_store *bench_data_open(void)
{
    struct keel_store *store;
    struct keel_store_config config = {.root = "build/bench-data/ckpt", .run = "demo", .read_only = true};
    if (keel_store_open(&config, &store) == KEEL_OK)
        return store;
    fprintf(stderr, "bench: %s; make it with: make bench-data\n", keel_detail());
    exit(3);
}

/* Behind the elements lie this many bytes that may be read. */
enum { BENCH_SLACK_BYTES = 4096 };

static inline void bench_state_take(struct bench_state *state, struct keel_snapshot *snapshot,
                                    const char *prefix, float **out)
{
    struct keel_region tensor;
    size_t at = 0;
    state->tensor_count = 0;
    bench_must(keel_alloc(state->count * sizeof **out + BENCH_SLACK_BYTES, 1, (void *)out));
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot); i++) {
        bench_must(keel_snapshot_tensor(snapshot, i, &tensor));
        const char *slash = strchr(tensor.name, '/');
        size_t length = slash == NULL ? 0 : (size_t)(slash - tensor.name) + 1;
        if (length != strlen(prefix) || memcmp(tensor.name, prefix, length) != 0)
            continue;
        uint64_t bytes = keel_region_bytes(&tensor);
        bench_must(keel_snapshot_read(snapshot, &tensor, *out + at, bytes));
        KEEL_ASSERT(state->tensor_count < BENCH_TENSORS_MAX);
        state->starts[state->tensor_count++] = at;
        at += bytes / sizeof **out;
    }
    KEEL_ASSERT(at == state->count);
    state->starts[state->tensor_count] = at;
}

static inline uint16_t *bench_round_bf16(const float *in, size_t count)
{
    uint16_t *out;
    bench_must(keel_alloc(count * sizeof *out + BENCH_SLACK_BYTES, 1, (void *)&out));
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        out[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
    return out;
}

static inline struct bench_state bench_state_load(uint64_t step)
{
    struct keel_store *store = bench_data_open();
    struct keel_snapshot *snapshot;
    struct bench_state state = {0};
    bench_must(keel_snapshot_open(store, step, 0, &snapshot));
    state.count = (size_t)keel_snapshot_info(snapshot)->raw_bytes / (3 * sizeof(float));
    bench_state_take(&state, snapshot, "", &state.weights);
    bench_state_take(&state, snapshot, "adam.m/", &state.m);
    bench_state_take(&state, snapshot, "adam.v/", &state.v);
    state.half = bench_round_bf16(state.weights, state.count);
    keel_snapshot_close(snapshot);
    keel_store_close(store);
    return state;
}

static inline void bench_state_free(struct bench_state *state)
{
    keel_free(state->weights);
    keel_free(state->m);
    keel_free(state->v);
    keel_free(state->half);
}

#endif
