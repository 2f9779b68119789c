/* save_delta_test.c - when a save makes deltas, of what, and when it does not. */
#include "generations.h"
#include <keel/ckpt_tier.h>

enum { ELEMENTS = 700000 }; /* three chunks of float32, the last one short */

struct fixture {
    char root[KEEL_PATH_BYTES];
    struct keel_store *store;
    struct state state;
};

static struct fixture make_fixture(void)
{
    struct fixture f = {0};
    make_directory(f.root);
    f.store = open_store(f.root, true);
    state_add(&f.state, "w", KEEL_CKPT_F32, ELEMENTS);
    state_add(&f.state, "step", KEEL_CKPT_I64, 1);
    fill_f32(&f.state, 0, 1);
    return f;
}

static void end_fixture(struct fixture *f)
{
    keel_store_close(f->store);
    state_free(&f->state);
    ck_ok(keel_remove_tree(f->root));
}

static struct census save_step(struct fixture *f, uint64_t step)
{
    step_f32(&f->state, 0, step);
    struct keel_save_config config = state_config(&f->state, step, KEEL_CODEC_DELTA);
    save_and_commit(f->store, &config);
    check_state(f->store, step, &f->state);
    return count_codecs(f->store, step, 1);
}

START_TEST(deltas_refer_to_the_committed_snapshot_before)
{
    struct fixture f = make_fixture();
    struct census first = save_step(&f, 1), second = save_step(&f, 2);
    ck_assert_uint_eq(first.flags, 0);
    ck_assert_uint_eq(first.chunks[KEEL_CODEC_DELTA], 0);
    ck_assert_uint_eq(second.flags, KEEL_HEADER_BASE);
    ck_assert_uint_eq(second.chunks[KEEL_CODEC_DELTA], 3);
    struct keel_step_place place;
    struct keel_shard base, delta;
    struct keel_manifest manifest;
    ck_ok(keel_step_open(f.store, 1, 1, false, &place));
    ck_ok(keel_shard_load(&place, 0, &base));
    keel_step_close(&place);
    ck_ok(keel_step_open(f.store, 2, 1, false, &place));
    ck_ok(keel_shard_load(&place, 0, &delta));
    ck_ok(keel_manifest_read(f.store, &place, &manifest));
    keel_step_close(&place);
    ck_assert_uint_eq(delta.header.base_step, 1);
    ck_assert_uint_eq(delta.header.base_attempt, 1);
    for (uint32_t i = 0; i < 3; i++) {
        ck_assert_uint_eq(delta.chunks[i].base_rank, 0);
        ck_assert_uint_eq(delta.chunks[i].base_chunk, i);
        ck_assert_uint_eq(delta.chunks[i].chain, 1);
        ck_assert_uint_eq(delta.chunks[i].base_check, base.chunks[i].raw_check);
    }
    ck_assert_uint_eq(manifest.base_count, 1);
    ck_assert_uint_eq(manifest.bases[0].step, 1);
    ck_assert_uint_eq(manifest.bases[0].attempt, 1);
    keel_manifest_fini(&manifest);
    keel_shard_unload(&base);
    keel_shard_unload(&delta);
    end_fixture(&f);
}
END_TEST

START_TEST(a_chain_ends_in_a_keyframe_at_its_bound)
{
    static const uint32_t bounds[] = {0, 1, 3, 16}, lengths[] = {4, 1, 3, 16};
    struct fixture f = make_fixture();
    f.state.regions[0].shape[0] = f.state.regions[0].extent[0] = 50000; /* of the elements: one chunk */
    for (uint64_t step = 1; step <= 2 * lengths[_i] + 3; step++) {
        struct keel_save_config config = state_config(&f.state, step, KEEL_CODEC_DELTA);
        config.chain_max = bounds[_i];
        step_f32(&f.state, 0, step);
        save_and_commit(f.store, &config);
        struct census census = count_codecs(f.store, step, 1);
        uint32_t wanted = (uint32_t)((step - 1) % (lengths[_i] + 1));
        ck_assert_uint_eq(census.chain, wanted);
        ck_assert_uint_eq(census.flags, wanted > 0 ? KEEL_HEADER_BASE : 0);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_DELTA], wanted > 0 ? 1 : 0);
        if (wanted == lengths[_i] || wanted == 0)
            check_state(f.store, step, &f.state);
    }
    end_fixture(&f);
}
END_TEST

START_TEST(a_base_that_is_not_committed_yet_is_none)
{
    struct fixture f = make_fixture();
    struct keel_save_config config = state_config(&f.state, 1, KEEL_CODEC_DELTA);
    struct keel_shard_summary shard;
    ck_ok(save_state(f.store, &config, &shard));
    ck_assert_uint_eq(save_step(&f, 2).chunks[KEEL_CODEC_DELTA], 0);
    ck_assert_uint_eq(save_step(&f, 3).chunks[KEEL_CODEC_DELTA], 3);
    end_fixture(&f);
}
END_TEST

/* A run that went back: whoever chooses a generation goes from the oldest on. */
START_TEST(a_snapshot_of_a_later_step_is_no_base)
{
    struct fixture f = make_fixture();
    struct keel_tier *tier;
    struct keel_offer offers[4];
    uint32_t count = 0;
    save_step(&f, 9);
    ck_assert_uint_eq(save_step(&f, 5).flags, 0);
    ck_assert_uint_eq(save_step(&f, 6).chunks[KEEL_CODEC_DELTA], 3);
    ck_ok(keel_tier_directory_open(f.store, KEEL_LATENCY_LOCAL, NULL, &tier));
    ck_ok(keel_tier_inventory(&tier, 1, 0, offers, 4, &count));
    ck_assert_uint_eq(count, 3);
    keel_tier_end(tier);
    end_fixture(&f);
}
END_TEST

START_TEST(other_regions_have_no_base)
{
    struct fixture f = make_fixture();
    save_step(&f, 1);
    struct keel_region swapped = f.state.regions[0];
    uint8_t *bytes = f.state.bytes[0];
    f.state.regions[0] = f.state.regions[1];
    f.state.bytes[0] = f.state.bytes[1];
    f.state.regions[1] = swapped;
    f.state.bytes[1] = bytes;
    struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
    save_and_commit(f.store, &config);
    ck_assert_uint_eq(count_codecs(f.store, 2, 1).chunks[KEEL_CODEC_DELTA], 0);
    config.step = 3;
    step_f32(&f.state, 1, 3);
    save_and_commit(f.store, &config);
    ck_assert_uint_eq(count_codecs(f.store, 3, 1).chunks[KEEL_CODEC_DELTA], 3);
    f.state.regions[1].shape[0]++; /* the same box of a larger tensor */
    config = state_config(&f.state, 4, KEEL_CODEC_DELTA);
    ck_ok(save_state(f.store, &config, &(struct keel_shard_summary){0}));
    ck_assert_uint_eq(count_codecs(f.store, 4, 1).chunks[KEEL_CODEC_DELTA], 0);
    end_fixture(&f);
}
END_TEST

START_TEST(a_bounded_arena_and_other_codecs_leave_no_base)
{
    struct fixture f = make_fixture();
    save_step(&f, 1);
    struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
    config.arena_bytes = 2 * MIB;
    save_and_commit(f.store, &config);
    ck_assert_uint_eq(count_codecs(f.store, 2, 1).flags, 0);
    ck_assert_uint_eq(save_step(&f, 3).flags, 0);
    ck_assert_uint_eq(save_step(&f, 4).flags, KEEL_HEADER_BASE);
    uint64_t with_base = keel_memory_stats().live_bytes;
    config = state_config(&f.state, 5, KEEL_CODEC_PLANES);
    save_and_commit(f.store, &config);
    ck_assert_uint_eq(count_codecs(f.store, 5, 1).flags, 0);
    ck_assert_uint_lt(keel_memory_stats().live_bytes, with_base - 4 * (uint64_t)ELEMENTS);
    ck_assert_uint_eq(save_step(&f, 6).flags, 0);
    end_fixture(&f);
}
END_TEST

START_TEST(what_gets_no_smaller_is_no_delta_and_needs_no_base)
{
    struct fixture f = make_fixture();
    save_step(&f, 1);
    fill_f32(&f.state, 0, 99); /* nothing in common with the step before */
    struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
    save_and_commit(f.store, &config);
    struct census census = count_codecs(f.store, 2, 1);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_DELTA], 0);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_PLANES], 3);
    struct keel_step_place place;
    struct keel_manifest manifest;
    ck_ok(keel_step_open(f.store, 2, 1, false, &place));
    ck_ok(keel_manifest_read(f.store, &place, &manifest));
    ck_assert_uint_eq(manifest.base_count, 0);
    keel_manifest_fini(&manifest);
    keel_step_close(&place);
    check_state(f.store, 2, &f.state);
    end_fixture(&f);
}
END_TEST

START_TEST(a_commit_without_its_base_is_refused)
{
    struct fixture f = make_fixture();
    char path[KEEL_PATH_BYTES];
    save_step(&f, 1);
    step_f32(&f.state, 0, 2);
    struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
    struct keel_shard_summary shard;
    ck_ok(save_state(f.store, &config, &shard));
    ck_ok(keel_path_join(path, f.root, "sample/step-1.1/manifest.json"));
    ck_assert_int_eq(unlink(path), 0);
    ck_status(commit_all(f.store, 2, 1, &shard, 1), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "base"));
    ck_assert_uint_eq(save_step(&f, 3).flags, 0);
    end_fixture(&f);
}
END_TEST

START_TEST(a_save_that_is_cancelled_leaves_the_base_to_the_next)
{
    struct fixture f = make_fixture();
    save_step(&f, 1);
    for (uint64_t attempt = 1; attempt <= 3; attempt++) {
        struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
        struct keel_save *save;
        config.attempt = attempt;
        ck_ok(keel_save_begin(f.store, &config, &save));
        keel_save_cancel(save);
    }
    struct keel_save_config config = state_config(&f.state, 2, KEEL_CODEC_DELTA);
    struct keel_save *save;
    config.rank = 1;
    ck_status(keel_save_begin(f.store, &config, &save), KEEL_INVALID);
    ck_assert_uint_eq(save_step(&f, 3).chunks[KEEL_CODEC_DELTA], 3);
    end_fixture(&f);
}
END_TEST

/* The state that was captured last is held, and the save that runs has its arena: two copies. */
START_TEST(deltas_take_one_more_copy_of_the_state)
{
    struct fixture f = make_fixture();
    uint64_t state_bytes = 4 * (uint64_t)ELEMENTS, before = keel_memory_stats().live_bytes;
    for (uint64_t step = 1; step <= 12; step++) {
        struct keel_save_config config = state_config(&f.state, step, KEEL_CODEC_DELTA);
        step_f32(&f.state, 0, step);
        save_and_commit(f.store, &config);
    }
    uint64_t overhead = 2 * 16 * MIB + 8 * MIB; /* two times the stream's blocks, and the threads' buffers */
    ck_assert_uint_le(keel_memory_stats().live_bytes - before, 2 * state_bytes + overhead);
    end_fixture(&f);
}
END_TEST

/* Ranks are numbered anew when one is lost or comes back: a worker is another one then. */
START_TEST(a_process_that_becomes_another_rank_holds_no_more)
{
    enum { RANKS = 8 };
    struct fixture f = make_fixture();
    struct keel_shard_summary shard;
    uint64_t state_bytes = 4 * (uint64_t)ELEMENTS, before = keel_memory_stats().live_bytes, step = 0;
    for (uint32_t i = 0; i < 2 * RANKS; i++) {
        struct keel_save_config config = state_config(&f.state, ++step, KEEL_CODEC_DELTA);
        config.rank = i / 2; /* twice each */
        config.rank_count = RANKS;
        ck_ok(save_state(f.store, &config, &shard));
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        struct keel_save_config config = state_config(&f.state, ++step, KEEL_CODEC_DELTA);
        config.rank = i;
        config.rank_count = RANKS;
        ck_ok(save_state(f.store, &config, &shard));
    }
    uint64_t overhead = 3 * 16 * MIB + 8 * MIB;
    ck_assert_uint_le(keel_memory_stats().live_bytes - before, 3 * state_bytes + overhead);
    end_fixture(&f);
}
END_TEST

START_TEST(ranks_of_one_store_hold_a_base_each)
{
    enum { RANKS = 3 };
    struct fixture f = make_fixture();
    struct keel_region regions[RANKS];
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_save *saves[RANKS];
        struct keel_shard_summary shards[RANKS];
        struct state parts[RANKS];
        for (uint32_t r = 0; r < RANKS; r++) {
            parts[r] = f.state;
            parts[r].count = 1;
            regions[r] = f.state.regions[0];
            snprintf(regions[r].name, sizeof regions[r].name, "w%u", r);
            struct keel_save_config config = state_config(&parts[r], step, KEEL_CODEC_DELTA);
            config.rank = r;
            config.rank_count = RANKS;
            config.regions = &regions[r];
            ck_ok(keel_save_begin(f.store, &config, &saves[r]));
        }
        for (uint32_t r = 0; r < RANKS; r++)
            ck_ok(keel_save_finish(saves[r], keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shards[r]));
        ck_ok(commit_all(f.store, step, 1, shards, RANKS));
        ck_assert_uint_eq(count_codecs(f.store, step, 1).chain, step - 1);
        step_f32(&f.state, 0, step);
    }
    end_fixture(&f);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, deltas_refer_to_the_committed_snapshot_before);
    tcase_add_loop_test(tc, a_chain_ends_in_a_keyframe_at_its_bound, 0, 4);
    tcase_add_test(tc, a_base_that_is_not_committed_yet_is_none);
    tcase_add_test(tc, a_snapshot_of_a_later_step_is_no_base);
    tcase_add_test(tc, other_regions_have_no_base);
    tcase_add_test(tc, a_bounded_arena_and_other_codecs_leave_no_base);
    tcase_add_test(tc, what_gets_no_smaller_is_no_delta_and_needs_no_base);
    tcase_add_test(tc, a_commit_without_its_base_is_refused);
    tcase_add_test(tc, a_save_that_is_cancelled_leaves_the_base_to_the_next);
    tcase_add_test(tc, deltas_take_one_more_copy_of_the_state);
    tcase_add_test(tc, a_process_that_becomes_another_rank_holds_no_more);
    tcase_add_test(tc, ranks_of_one_store_hold_a_base_each);
}

KEEL_TEST_MAIN("save_delta", cases, 120)
