/* disk_run.h - a small run on a simulated disk, for the tests that cut the power or make calls fail: its
 * state after each step, saving it, and looking whether a store has it right. */
#ifndef KEEL_TESTS_CKPT_DISK_RUN_H
#define KEEL_TESTS_CKPT_DISK_RUN_H

#include "disk_sim.h"
#include "sample.h"
#include <keel/thread.h>
#include <malloc.h>

enum { RANKS = 2, KEEP = 2, LISTED_MAX = 64, TENSORS = 5, TENSOR_BYTES_MAX = 4096 };

/* Where the store is: on the simulated disk, or another place. */
static const char *run_root = "/data/store";

struct attempt_id {
    uint64_t step, attempt;
};

static inline bool same_attempt(struct attempt_id a, struct attempt_id b)
{
    return a.step == b.step && a.attempt == b.attempt;
}

/* ---- the state ----------------------------------------------------------------------------------------- */

/* Tensor 2 is tensor 0, rounded. Rank r of n has those whose number leaves r when divided by n. */
static inline void run_tensors(struct keel_region out[TENSORS])
{
    out[0] = whole("wte", KEEL_CKPT_F32, 2, (const uint64_t[]){37, 24});
    out[1] = whole("blocks.0.attn", KEEL_CKPT_BF16, 3, (const uint64_t[]){5, 7, 16});
    out[2] = whole("wte.rounded", KEEL_CKPT_BF16, 2, (const uint64_t[]){37, 24});
    out[3] = whole("mask", KEEL_CKPT_U8, 1, (const uint64_t[]){133});
    out[4] = whole("step", KEEL_CKPT_I64, 0, NULL);
}

static inline uint32_t run_tensor_number(const char *name)
{
    struct keel_region tensors[TENSORS];
    run_tensors(tensors);
    for (uint32_t i = 0; i < TENSORS; i++)
        if (strcmp(tensors[i].name, name) == 0)
            return i;
    return TENSORS;
}

/* All of a tensor after a step: what it was at first, and every sixteenth byte of another value. So deltas
 * are small, and each attempt holds something else. */
static inline void run_state(uint32_t number, struct attempt_id id, uint8_t out[TENSOR_BYTES_MAX])
{
    static uint8_t first[TENSORS][TENSOR_BYTES_MAX]; /* made once, before there are threads */
    static bool made;
    struct keel_region tensors[TENSORS];
    if (!made) {
        run_tensors(tensors);
        for (uint32_t i = 0; i < TENSORS; i++) {
            ck_assert_uint_le(keel_region_bytes(&tensors[i]), TENSOR_BYTES_MAX);
            sample_bytes(&tensors[i], 1, 0, keel_region_bytes(&tensors[i]), first[i]);
        }
        made = true;
    }
    if (number != 2) {
        memcpy(out, first[number], TENSOR_BYTES_MAX);
        uint64_t x = mix(id.step * 1000 + id.attempt);
        for (uint32_t i = 0; i < TENSOR_BYTES_MAX; i += 16)
            out[i] = (uint8_t)(x >> (i / 16 % 8 * 8));
        return;
    }
    uint8_t master[TENSOR_BYTES_MAX];
    run_state(0, id, master);
    for (uint32_t i = 0; i < TENSOR_BYTES_MAX / 4; i++) {
        uint32_t bits;
        memcpy(&bits, master + 4 * i, sizeof bits);
        uint16_t rounded = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy(out + 2 * i, &rounded, sizeof rounded);
    }
}

/* ---- looking ------------------------------------------------------------------------------------------- */

/* Why a state is wrong; "" when it is right. */
static char complaint[1024];

static inline bool complain(const char *what, struct attempt_id id)
{
    if (complaint[0] == '\0')
        snprintf(complaint, sizeof complaint, "%s (step %llu, attempt %llu): %s", what,
                 (unsigned long long)id.step, (unsigned long long)id.attempt, keel_detail());
    return false;
}

static inline bool worked(enum keel_status status, const char *what, struct attempt_id id)
{
    return status == KEEL_OK || complain(what, id);
}

static inline enum keel_status run_open(bool create, struct keel_store **out)
{
    struct keel_store_config config = {
        .root = run_root, .run = "sample", .create = create, .read_only = !create};
    return keel_store_open(&config, out);
}

static inline enum keel_status compare_all(struct keel_snapshot *snapshot, struct attempt_id id,
                                           bool *out_right)
{
    *out_right = keel_snapshot_tensor_count(snapshot) == TENSORS;
    for (uint32_t i = 0; i < keel_snapshot_tensor_count(snapshot) && *out_right; i++) {
        struct keel_region tensor;
        uint8_t got[TENSOR_BYTES_MAX], wanted[TENSOR_BYTES_MAX];
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &tensor));
        uint64_t bytes = keel_region_bytes(&tensor);
        uint32_t number = run_tensor_number(tensor.name);
        *out_right = number < TENSORS && bytes <= sizeof got;
        if (!*out_right)
            break;
        KEEL_TRY(keel_snapshot_read(snapshot, &tensor, got, bytes));
        run_state(number, id, wanted);
        *out_right = memcmp(got, wanted, bytes) == 0;
    }
    return KEEL_OK;
}

/* `twice`: by the store's own verification too, not only by what it reads. */
static inline bool check_snapshot(struct keel_store *store, struct attempt_id id, bool twice)
{
    struct keel_snapshot *snapshot;
    uint32_t damaged = 0;
    bool right = false;
    if (!worked(keel_snapshot_open(store, id.step, id.attempt, &snapshot), "listed, cannot be opened", id))
        return false;
    bool fine =
        !twice || worked(keel_snapshot_verify(snapshot, NULL, NULL, &damaged), "listed, is damaged", id);
    fine = fine && worked(compare_all(snapshot, id, &right), "listed, cannot be read", id) &&
           (right || complain("listed, holds something else", id));
    keel_snapshot_close(snapshot);
    return fine;
}

/* One that was damaged on purpose, and may be found so; step 0: none. */
static struct attempt_id run_damaged;

static inline bool found_damaged(struct keel_store *store, struct attempt_id id)
{
    struct keel_snapshot *snapshot;
    if (!same_attempt(id, run_damaged))
        return false;
    enum keel_status status = keel_snapshot_open(store, id.step, id.attempt, &snapshot);
    if (status == KEEL_OK) {
        status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
        keel_snapshot_close(snapshot);
    }
    return status == KEEL_CORRUPT;
}

/* Everything that is listed is right; what it is. */
static inline bool check_listed(struct keel_store *store, bool twice, struct attempt_id out[LISTED_MAX],
                                uint32_t *out_count)
{
    struct keel_snapshot_info infos[LISTED_MAX];
    uint32_t count = 0, damaged = 0, found = 0;
    struct attempt_id none = {0};
    if (!worked(keel_store_list(store, infos, LISTED_MAX, &count, &damaged), "cannot be listed", none))
        return false;
    if (damaged > 0)
        return complain("a manifest is damaged", none);
    for (uint32_t i = 0; i < count; i++) {
        struct attempt_id id = {infos[i].step, infos[i].attempt};
        if (found_damaged(store, id))
            continue;
        if (!check_snapshot(store, id, twice))
            return false;
        out[found++] = id;
    }
    *out_count = found;
    return true;
}

static inline bool among(const struct attempt_id *ids, uint32_t count, struct attempt_id id)
{
    for (uint32_t i = 0; i < count; i++)
        if (same_attempt(ids[i], id))
            return true;
    return false;
}

/* ---- saving -------------------------------------------------------------------------------------------- */

/* A source that holds its regions back until it is opened, so that changes have one order. */
struct gate {
    struct attempt_id id;
    uint32_t rank, ranks;
    struct keel_mutex lock;
    struct keel_cond moved;
    bool open; /* under the lock */
};

static inline enum keel_status gate_read(void *context, uint32_t index, uint64_t offset, uint64_t bytes,
                                         void *out)
{
    struct gate *gate = context;
    uint8_t state[TENSOR_BYTES_MAX];
    keel_mutex_lock(&gate->lock);
    while (!gate->open)
        keel_cond_wait(&gate->moved, &gate->lock, KEEL_NEVER);
    keel_mutex_unlock(&gate->lock);
    run_state(index * gate->ranks + gate->rank, gate->id, state);
    memcpy(out, state + offset, bytes);
    return KEEL_OK;
}

/* For tests of retrying. */
static uint32_t run_retry_max;

struct rank_save {
    struct gate gate;
    struct keel_save *save;
};

static inline void gate_fini(struct gate *gate)
{
    keel_cond_fini(&gate->moved);
    keel_mutex_fini(&gate->lock);
}

/* A delta where there is a base, and now and then planes or raw. */
static inline enum keel_status rank_begin(struct keel_store *store, struct attempt_id id, uint32_t rank,
                                          uint32_t ranks, struct rank_save *out)
{
    static const enum keel_codec codecs[] = {KEEL_CODEC_DELTA, KEEL_CODEC_DELTA, KEEL_CODEC_DELTA,
                                             KEEL_CODEC_PLANES, KEEL_CODEC_RAW};
    struct keel_region all[TENSORS], mine[TENSORS];
    uint32_t count = 0, same_as[TENSORS];
    run_tensors(all);
    for (uint32_t i = rank; i < TENSORS; i += ranks) {
        same_as[count] = i == 2 ? 0 : KEEL_SAME_AS_NONE;
        mine[count++] = all[i];
    }
    out->gate = (struct gate){.id = id, .rank = rank, .ranks = ranks};
    keel_mutex_init(&out->gate.lock);
    keel_cond_init(&out->gate.moved);
    struct keel_save_config config = {.step = id.step,
                                      .attempt = id.attempt,
                                      .rank = rank,
                                      .rank_count = ranks,
                                      .codec = codecs[id.step % 5],
                                      .regions = mine,
                                      .region_count = count,
                                      .same_as = same_as,
                                      .retry_max = run_retry_max,
                                      .read = gate_read,
                                      .context = &out->gate};
    enum keel_status status = keel_save_begin(store, &config, &out->save);
    if (status != KEEL_OK)
        gate_fini(&out->gate);
    return status;
}

static inline void gate_open(struct gate *gate)
{
    keel_mutex_lock(&gate->lock);
    gate->open = true;
    keel_cond_broadcast(&gate->moved);
    keel_mutex_unlock(&gate->lock);
}

static inline enum keel_status rank_finish(struct rank_save *rank, struct keel_shard_summary *out)
{
    gate_open(&rank->gate);
    enum keel_status status = keel_save_finish(rank->save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), out);
    gate_fini(&rank->gate);
    return status;
}

static inline enum keel_status save_all(struct keel_store *store, struct attempt_id id, uint32_t ranks,
                                        struct keel_shard_summary out[RANKS])
{
    for (uint32_t r = 0; r < ranks; r++) {
        struct rank_save rank;
        KEEL_TRY(rank_begin(store, id, r, ranks, &rank));
        KEEL_TRY(rank_finish(&rank, &out[r]));
    }
    return KEEL_OK;
}

#endif
