/* no_memory_test.c - every allocation of every stage of a snapshot's life fails once: the stage says
 * NO_MEMORY, and never that something is damaged or lost; nothing leaks, neither memory nor files; and done
 * again it works. */
#include "generations.h"
#include "tier_rig.h"
#include <dlfcn.h>
#include <errno.h>
#include <keel/log.h>
#include <stdatomic.h>

enum { ELEMENTS = 300000, COPY_BYTES = 16 << 20, ALLOCATIONS_MAX = 4000 };

/* ---- an allocator that fails --------------------------------------------------------------------------- */

static atomic_long until_failure = -1; /* allocations; -1: never */

/* Of this program, which Keel is part of; a sanitizer's own threads cannot do without memory. */
static bool is_ours(const void *caller)
{
    Dl_info of_caller, of_us;
    return dladdr(caller, &of_caller) != 0 && dladdr(&until_failure, &of_us) != 0 &&
           of_caller.dli_fbase == of_us.dli_fbase;
}

static bool fails_now(const void *caller)
{
    long left = atomic_load(&until_failure);
    if (left < 0 || !is_ours(caller))
        return false;
    while (left >= 0 && !atomic_compare_exchange_weak(&until_failure, &left, left - 1)) {
    }
    return left == 0;
}

/* As much as is asked for, or the next multiple. */
static void *take(size_t alignment, size_t bytes)
{
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

/* In the place of the C library's, for all that this program is linked with. Not made of malloc: a compiler
 * makes calloc of that and memset. */
void *failing_calloc(size_t count, size_t item_bytes) __asm__("calloc");
int failing_memalign(void **out, size_t alignment, size_t bytes) __asm__("posix_memalign");

void *failing_calloc(size_t count, size_t item_bytes)
{
    bool fits = item_bytes == 0 || count <= SIZE_MAX / 2 / item_bytes;
    bool fails = !fits || fails_now(__builtin_return_address(0));
    void *memory = fails ? NULL : take(_Alignof(max_align_t), count * item_bytes);
    if (memory == NULL) {
        errno = ENOMEM;
        return NULL;
    }
    return memset(memory, 0, count * item_bytes);
}

int failing_memalign(void **out, size_t alignment, size_t bytes)
{
    void *memory = fails_now(__builtin_return_address(0)) ? NULL : take(alignment, bytes);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}

/* ---- the stages ---------------------------------------------------------------------------------------- */

struct life {
    struct origin origin;
    struct keel_tier *copy;
    struct state state;
    uint64_t step, attempt;
    struct keel_shard_summary shard;
};

static enum keel_status stage_open(struct life *life)
{
    struct keel_store *store;
    struct keel_store_config config = {.root = life->origin.root, .run = "sample", .create = true};
    KEEL_TRY(keel_store_open(&config, &store));
    keel_store_close(store);
    return KEEL_OK;
}

static enum keel_status stage_save(struct life *life)
{
    struct keel_save_config config = state_config(&life->state, life->step, KEEL_CODEC_DELTA);
    config.attempt = ++life->attempt;
    return save_state(life->origin.store, &config, &life->shard);
}

static enum keel_status stage_commit(struct life *life)
{
    return commit_all(life->origin.store, life->step, life->attempt, &life->shard, 1);
}

static enum keel_status stage_list(struct life *life)
{
    struct keel_snapshot_info infos[4];
    uint32_t count, damaged = 0;
    KEEL_TRY(keel_store_list(life->origin.store, infos, 4, &count, &damaged));
    ck_assert_uint_eq(damaged, 0);
    return KEEL_OK;
}

static enum keel_status stage_load(struct life *life)
{
    struct keel_snapshot *snapshot;
    struct keel_load load = {.box = life->state.regions[0]};
    KEEL_TRY(keel_snapshot_open(life->origin.store, life->step, 0, &snapshot));
    load.out = malloc(ELEMENTS * 4);
    enum keel_status status =
        keel_snapshot_load(snapshot, &load, 1, &(struct keel_load_config){.threads = 2}, NULL);
    if (status == KEEL_OK)
        ck_assert_mem_eq(load.out, life->state.bytes[0], ELEMENTS * 4);
    if (status == KEEL_OK)
        status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    free(load.out);
    keel_snapshot_close(snapshot);
    return status;
}

static enum keel_status stage_copy(struct life *life)
{
    struct keel_object shard = shard_object(life->step, life->attempt, 0);
    struct keel_object manifest = manifest_object(life->step, life->attempt);
    KEEL_TRY(keel_tier_copy(life->origin.tier, &shard, life->copy));
    return keel_tier_copy(life->origin.tier, &manifest, life->copy);
}

static enum keel_status stage_protect(struct life *life)
{
    struct keel_tier *from[2] = {life->origin.tier, life->origin.tier}, *to[2] = {life->copy, life->copy};
    const uint32_t ranks[2] = {0, KEEL_ERASURE_NO_SHARD};
    return keel_erasure_protect(&(struct keel_erasure_config){.step = life->step,
                                                              .attempt = life->attempt,
                                                              .node_count = 2,
                                                              .parity_count = 1,
                                                              .ranks = ranks,
                                                              .from = from,
                                                              .to = to});
}

static enum keel_status stage_offers(struct life *life)
{
    struct keel_tier *tiers[2] = {life->origin.tier, life->copy};
    struct keel_offer offers[4];
    uint32_t count = 0;
    KEEL_TRY(keel_tier_inventory(tiers, 2, 0, offers, 4, &count));
    ck_assert_uint_eq(count, life->step);
    return KEEL_OK;
}

/* From the copy, while that has the shard, and then from the parity there. */
static enum keel_status stage_repair(struct life *life)
{
    struct keel_object shard = shard_object(life->step, life->attempt, 0);
    struct keel_repair_config config = {
        .step = life->step, .attempt = life->attempt, .sources = &life->copy, .source_count = 1};
    char name[KEEL_OBJECT_NAME_BYTES], path[KEEL_PATH_BYTES];
    keel_object_name(&shard, name);
    snprintf(path, sizeof path, "%.800s/sample/%s", life->origin.root, name);
    ck_assert_int_eq(truncate(path, 5000), 0);
    return keel_store_repair(life->origin.store, &config, NULL);
}

static enum keel_status stage_retain(struct life *life)
{
    return keel_store_retain(life->origin.store, &(struct keel_retention){.keep_last = 2}, NULL);
}

/* ---- all allocations ----------------------------------------------------------------------------------- */

static uint32_t count_open_files(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Fail one allocation after the other, until none is left to fail. What the stage is to leave behind in
 * memory (a base, an object of the copy) it may leave when it fails as well. */
static uint32_t fail_all(struct life *life, const char *name, enum keel_status (*stage)(struct life *),
                         bool leaves)
{
    for (long number = 0; number < ALLOCATIONS_MAX; number++) {
        uint64_t before_bytes = keel_memory_stats().live_bytes;
        uint32_t before_files = count_open_files();
        atomic_store(&until_failure, number);
        enum keel_status status = stage(life);
        bool struck = atomic_exchange(&until_failure, -1) < 0;
        if (!struck) {
            ck_assert_msg(status == KEEL_OK, "%s: %s", name, keel_detail());
            return (uint32_t)number;
        }
        ck_assert_msg(status == KEEL_NO_MEMORY || (status == KEEL_OK && leaves), "%s, allocation %ld: %s: %s",
                      name, number, keel_status_name(status), keel_detail());
        ck_assert_msg(leaves || keel_memory_stats().live_bytes == before_bytes, "%s, allocation %ld: leaks",
                      name, number);
        ck_assert_uint_eq(count_open_files(), before_files);
    }
    ck_abort_msg("%s: does not end", name);
}

START_TEST(without_memory_nothing_is_lost_leaked_or_slandered)
{
    struct life life = {.origin = make_empty_origin()};
    uint64_t before_bytes = keel_memory_stats().live_bytes;
    uint32_t failed = 0;
    keel_log_set_level(KEEL_LOG_ERROR); /* each save says that it failed */
    state_add(&life.state, "w", KEEL_CKPT_F32, ELEMENTS);
    fill_f32(&life.state, 0, 1);
    ck_ok(keel_tier_memory_open("sample", COPY_BYTES, "a copy", &life.copy));
    failed += fail_all(&life, "open", stage_open, false);
    for (life.step = 1; life.step <= 2; life.step++) {
        step_f32(&life.state, 0, life.step);
        failed += fail_all(&life, "save", stage_save, true);
        failed += fail_all(&life, "commit", stage_commit, false);
        failed += fail_all(&life, "list", stage_list, false);
        failed += fail_all(&life, "load", stage_load, false);
        failed += fail_all(&life, "copy", stage_copy, true);
        failed += fail_all(&life, "protect", stage_protect, true);
        failed += fail_all(&life, "offers", stage_offers, false);
        failed += fail_all(&life, "repair", stage_repair, false);
        struct keel_object shard = shard_object(life.step, life.attempt, 0);
        ck_ok(keel_tier_remove(life.copy, &shard));
        failed += fail_all(&life, "repair from parity", stage_repair, false);
        ck_ok(stage_load(&life));
        failed += fail_all(&life, "retain", stage_retain, false);
    }
    printf("note: %u allocations failed\n", failed);
    ck_assert_uint_gt(failed, 1000); /* so ours is the one that is called */
    keel_tier_end(life.copy);
    state_free(&life.state);
    keel_tier_end(life.origin.tier);
    keel_store_close(life.origin.store);
    ck_assert_uint_lt(keel_memory_stats().live_bytes, before_bytes);
    ck_ok(keel_remove_tree(life.origin.root));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, without_memory_nothing_is_lost_leaked_or_slandered);
}

KEEL_TEST_MAIN("no_memory", cases, 300)
