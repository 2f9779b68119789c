/* save_same_test.c - copies that are the rounding of their master are stored as nothing, and nothing else is;
 * elements that are NaN or infinite are counted, and keep a snapshot from being committed. */
#include "generations.h"

enum { ELEMENTS = 1400000 }; /* bfloat16: two full chunks and a part; float32: five and a part */

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
    return f;
}

static void end_fixture(struct fixture *f)
{
    keel_store_close(f->store);
    state_free(&f->state);
    ck_ok(keel_remove_tree(f->root));
}

static void fill_f64(struct state *state, uint32_t region)
{
    uint64_t count = keel_region_bytes(&state->regions[region]) / 8;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = (mix(i) & UINT64_C(0x800fffffffffffff)) | (1000 + (mix(i) >> 32) % 30) << 52;
        memcpy(state->bytes[region] + 8 * i, &bits, 8);
    }
}

static void make_copy(struct state *state, uint32_t copy, uint32_t master)
{
    keel_codec_round(state->regions[copy].dtype, state->regions[master].dtype, state->bytes[master],
                     state->regions[copy].extent[0], state->bytes[copy]);
}

/* Two masters and a copy of each kind, one of them before its master. */
static void add_family(struct fixture *f, uint32_t same_as[7])
{
    static const uint32_t masters[7] = {1, KEEL_SAME_AS_NONE, 1, KEEL_SAME_AS_NONE, 3, 3, 3};
    state_add(&f->state, "early.bf16", KEEL_CKPT_BF16, ELEMENTS);
    state_add(&f->state, "w", KEEL_CKPT_F32, ELEMENTS);
    state_add(&f->state, "w.f16", KEEL_CKPT_F16, ELEMENTS);
    state_add(&f->state, "d", KEEL_CKPT_F64, ELEMENTS / 4);
    state_add(&f->state, "d.bf16", KEEL_CKPT_BF16, ELEMENTS / 4);
    state_add(&f->state, "d.f16", KEEL_CKPT_F16, ELEMENTS / 4);
    state_add(&f->state, "d.f32", KEEL_CKPT_F32, ELEMENTS / 4);
    fill_f32(&f->state, 1, 5);
    fill_f64(&f->state, 3);
    memcpy(same_as, masters, sizeof masters);
    for (uint32_t i = 0; i < 7; i++)
        if (masters[i] != KEEL_SAME_AS_NONE)
            make_copy(&f->state, i, masters[i]);
}

START_TEST(copies_of_all_kinds_take_no_bytes_in_any_arena)
{
    static const uint64_t arenas[] = {0, 1, 3 * MIB, 0, 5 * MIB};
    static const uint32_t capture_threads[] = {1, 1, 1, 4, 3};
    struct fixture f = make_fixture();
    uint32_t same_as[7];
    add_family(&f, same_as);
    uint8_t first[16];
    for (uint32_t i = 0; i < 5; i++) {
        struct keel_save_config config = state_config(&f.state, 1, KEEL_CODEC_PLANES);
        struct keel_shard_summary shard;
        struct keel_save *save;
        config.attempt = i + 1;
        config.same_as = same_as;
        config.arena_bytes = arenas[i];
        config.capture_threads = capture_threads[i];
        ck_ok(keel_save_begin(f.store, &config, &save));
        while (!keel_save_done(save))
            keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
        uint64_t progress = keel_save_progress_bytes(save);
        ck_ok(keel_save_finish(save, keel_deadline_after_ns(60 * KEEL_NS_PER_S), &shard));
        ck_assert_uint_eq(progress, shard.raw_bytes);
        if (i == 0)
            memcpy(first, shard.index_digest, sizeof first);
        ck_assert_mem_eq(first, shard.index_digest, sizeof first);
        ck_ok(commit_all(f.store, 1, i + 1, &shard, 1));
        struct census census = count_codecs(f.store, 1, i + 1);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_SAME], 3 + 3 + 1 + 1 + 2);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_PLANES], 6 + 3);
    }
    check_state(f.store, 1, &f.state);
    end_fixture(&f);
}
END_TEST

static void save_family(struct fixture *f, uint64_t step, const uint32_t *same_as, uint64_t arena_bytes)
{
    struct keel_save_config config = state_config(&f->state, step, KEEL_CODEC_PLANES);
    config.same_as = same_as;
    config.arena_bytes = arena_bytes;
    save_and_commit(f->store, &config);
}

START_TEST(a_chunk_with_one_other_element_is_stored)
{
    struct fixture f = make_fixture();
    uint32_t same_as[7];
    add_family(&f, same_as);
    static const uint64_t at[] = {0, ELEMENTS / 2, ELEMENTS - 1};
    for (uint64_t step = 1; step <= 3; step++) {
        f.state.bytes[2][2 * at[step - 1]] ^= 1;
        save_family(&f, step, same_as, step == 3 ? 4 * MIB : 0);
        ck_assert_uint_eq(count_codecs(f.store, step, 1).chunks[KEEL_CODEC_SAME], 9);
        check_state(f.store, step, &f.state);
        f.state.bytes[2][2 * at[step - 1]] ^= 1;
    }
    end_fixture(&f);
}
END_TEST

START_TEST(a_copy_that_is_none_anywhere_refers_to_nobody)
{
    struct fixture f = make_fixture();
    uint32_t same_as[2] = {KEEL_SAME_AS_NONE, 0};
    state_add(&f.state, "w", KEEL_CKPT_F32, 3000);
    state_add(&f.state, "half", KEEL_CKPT_BF16, 3000);
    fill_f32(&f.state, 0, 1);
    save_family(&f, 1, same_as, 0); /* the copy is all zeros */
    struct keel_step_place place;
    struct keel_shard shard;
    ck_ok(keel_step_open(f.store, 1, 1, false, &place));
    ck_ok(keel_shard_load(&place, 0, &shard));
    ck_assert_uint_eq(shard.records[1].same_record, 0);
    keel_shard_unload(&shard);
    keel_step_close(&place);
    check_state(f.store, 1, &f.state);
    make_copy(&f.state, 1, 0);
    save_family(&f, 2, same_as, 0);
    ck_assert_uint_eq(count_codecs(f.store, 2, 1).chunks[KEEL_CODEC_SAME], 1);
    end_fixture(&f);
}
END_TEST

START_TEST(copies_and_deltas_go_together)
{
    struct fixture f = make_fixture();
    uint32_t same_as[7];
    add_family(&f, same_as);
    for (uint64_t step = 1; step <= 4; step++) {
        step_f32(&f.state, 1, step);
        make_copy(&f.state, 0, 1);
        make_copy(&f.state, 2, 1);
        if (step == 3) /* a copy that is none for once: it has no base, as none was stored */
            f.state.bytes[0][7] ^= 1;
        struct keel_save_config config = state_config(&f.state, step, KEEL_CODEC_DELTA);
        config.same_as = same_as;
        save_and_commit(f.store, &config);
        check_state(f.store, step, &f.state);
        struct census census = count_codecs(f.store, step, 1);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_SAME], step == 3 ? 9 : 10);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_DELTA], step > 1 ? 6 + 3 : 0);
    }
    end_fixture(&f);
}
END_TEST

START_TEST(a_master_that_cannot_be_one_is_refused)
{
    struct fixture f = make_fixture();
    uint32_t same_as[7];
    add_family(&f, same_as);
    static const struct {
        uint32_t copy, master;
    } wrong[] = {{0, 7}, {0, 2}, {0, 3}, {1, 3}, {0, 0}, {3, 6}, {6, 1}};
    for (uint32_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t changed[7];
        struct keel_save *save;
        memcpy(changed, same_as, sizeof changed);
        changed[wrong[i].copy] = wrong[i].master;
        struct keel_save_config config = state_config(&f.state, 1, KEEL_CODEC_PLANES);
        config.same_as = changed;
        ck_status(keel_save_begin(f.store, &config, &save), KEEL_INVALID);
        ck_assert_ptr_nonnull(strstr(keel_detail(), f.state.regions[wrong[i].copy].name));
    }
    end_fixture(&f);
}
END_TEST

/* ---- NaN and infinity ---------------------------------------------------------------------------------- */

START_TEST(a_snapshot_with_nan_or_infinity_is_committed_only_when_told_so)
{
    struct fixture f = make_fixture();
    static const uint32_t not_finite[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001};
    struct keel_shard_summary shard;
    state_add(&f.state, "fine", KEEL_CKPT_F32, 1000);
    state_add(&f.state, "moment", KEEL_CKPT_F32, ELEMENTS);
    state_add(&f.state, "bits", KEEL_CKPT_I32, 100);
    memset(f.state.bytes[2], 0xff, 400);
    for (uint32_t i = 0; i < 4; i++)
        memcpy(f.state.bytes[1] + 4 * (size_t)i * (ELEMENTS / 4), &not_finite[i], 4);
    struct keel_save_config config = state_config(&f.state, 1, KEEL_CODEC_PLANES);
    ck_ok(save_state(f.store, &config, &shard));
    ck_status(commit_all(f.store, 1, 1, &shard, 1), KEEL_DIVERGED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "tensor moment holds 4 "));
    struct keel_snapshot *snapshot;
    ck_status(keel_snapshot_open(f.store, 1, 1, &snapshot), KEEL_NOT_FOUND);
    struct keel_commit commit = {
        .step = 1, .attempt = 1, .shards = &shard, .shard_count = 1, .allow_nonfinite = true};
    ck_ok(keel_store_commit(f.store, &commit));
    ck_assert_uint_eq(count_codecs(f.store, 1, 1).nonfinite, 4);
    check_state(f.store, 1, &f.state);
    end_fixture(&f);
}
END_TEST

START_TEST(nan_is_counted_in_copies_deltas_and_raw_chunks_too)
{
    struct fixture f = make_fixture();
    static const uint32_t nan_bits = 0x7fc12345;
    uint32_t same_as[2] = {KEEL_SAME_AS_NONE, 0};
    state_add(&f.state, "w", KEEL_CKPT_F32, ELEMENTS);
    state_add(&f.state, "half", KEEL_CKPT_BF16, ELEMENTS);
    fill_f32(&f.state, 0, 3);
    memcpy(f.state.bytes[0] + 4 * (size_t)(ELEMENTS - 1), &nan_bits, 4);
    make_copy(&f.state, 1, 0);
    for (uint64_t step = 1; step <= 3; step++) {
        struct keel_shard_summary shard;
        struct keel_save_config config =
            state_config(&f.state, step, step == 3 ? KEEL_CODEC_RAW : KEEL_CODEC_DELTA);
        config.same_as = same_as;
        ck_ok(save_state(f.store, &config, &shard));
        struct keel_commit commit = {
            .step = step, .attempt = 1, .shards = &shard, .shard_count = 1, .allow_nonfinite = true};
        ck_ok(keel_store_commit(f.store, &commit));
        struct census census = count_codecs(f.store, step, 1);
        ck_assert_uint_eq(census.nonfinite, 2);
        ck_assert_uint_eq(census.chunks[KEEL_CODEC_SAME], 3);
        ck_assert_uint_eq(census.chunks[step == 1   ? KEEL_CODEC_PLANES
                                        : step == 2 ? KEEL_CODEC_DELTA
                                                    : KEEL_CODEC_RAW],
                          6);
    }
    end_fixture(&f);
}
END_TEST

/* Record `record` of the shard of step 1 tells another count, under right checks, also in the summary. */
static void tell_nonfinite(struct fixture *f, uint32_t record, uint64_t count,
                           struct keel_shard_summary *summary)
{
    char path[KEEL_PATH_BYTES], *bytes;
    size_t size;
    struct keel_format_footer footer;
    ck_ok(keel_path_join(path, f->root, "sample/step-1.1/rank-0.keel"));
    ck_ok(keel_file_read(path, 1 << 26, &bytes, &size));
    memcpy(&footer, bytes + size - sizeof footer, sizeof footer);
    char *index = bytes + footer.index_offset;
    memcpy(index + record * sizeof(struct keel_format_record) +
               offsetof(struct keel_format_record, nonfinite),
           &count, sizeof count);
    keel_format_digest(index, footer.index_bytes, footer.index_digest);
    memcpy(summary->index_digest, footer.index_digest, sizeof footer.index_digest);
    keel_format_footer_seal(&footer);
    memcpy(bytes + size - sizeof footer, &footer, sizeof footer);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ck_ok(keel_pwrite_all(fd, bytes, size, 0, path));
    close(fd);
    keel_free(bytes);
}

/* In what is stored, and in what is a rounding of that. */
START_TEST(another_count_of_nan_than_there_are_is_found_by_verify)
{
    struct fixture f = make_fixture();
    static const uint32_t nan_bits = 0x7fc12345;
    uint32_t same_as[2] = {KEEL_SAME_AS_NONE, 0}, damaged = 0;
    struct keel_shard_summary shard;
    struct keel_snapshot *snapshot;
    state_add(&f.state, "w", KEEL_CKPT_F32, ELEMENTS);
    state_add(&f.state, "half", KEEL_CKPT_BF16, ELEMENTS);
    fill_f32(&f.state, 0, 3);
    memcpy(f.state.bytes[0] + 4 * (size_t)(ELEMENTS - 1), &nan_bits, 4);
    make_copy(&f.state, 1, 0);
    struct keel_save_config config = state_config(&f.state, 1, KEEL_CODEC_PLANES);
    config.same_as = same_as;
    ck_ok(save_state(f.store, &config, &shard));
    tell_nonfinite(&f, 0, 0, &shard);
    tell_nonfinite(&f, 1, 0, &shard);
    ck_ok(commit_all(f.store, 1, 1, &shard, 1)); /* commit reads no chunks */
    ck_ok(keel_snapshot_open(f.store, 1, 1, &snapshot));
    ck_status(keel_snapshot_verify(snapshot, NULL, NULL, &damaged), KEEL_CORRUPT);
    ck_assert_uint_eq(damaged, 2);
    ck_assert_ptr_nonnull(
        strstr(keel_detail(), "tensor w: 1 elements are NaN or infinite, and its record says 0"));
    keel_snapshot_close(snapshot);
    end_fixture(&f);
}
END_TEST

START_TEST(a_chunk_of_which_nothing_is_stored_has_the_check_of_nothing)
{
    struct fixture f = make_fixture();
    uint32_t same_as[7], number = 0;
    struct keel_step_place place;
    struct keel_shard shard;
    add_family(&f, same_as);
    save_family(&f, 1, same_as, 0);
    ck_ok(keel_step_open(f.store, 1, 1, false, &place));
    ck_ok(keel_shard_load(&place, 0, &shard));
    while (shard.chunks[number].codec != KEEL_CODEC_SAME)
        number++;
    ck_assert_uint_eq(shard.chunks[number].stored_check, UINT64_C(0x2d06800538d394c2));
    uint64_t zero = 0;
    memcpy(shard.index + ((const uint8_t *)&shard.chunks[number] - shard.index) +
               offsetof(struct keel_format_chunk, stored_check),
           &zero, sizeof zero);
    keel_format_digest(shard.index, shard.footer.index_bytes, shard.footer.index_digest);
    ck_status(keel_format_index_check(shard.index, &shard.header, &shard.footer, "index"), KEEL_CORRUPT);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "a chunk's entry makes no sense"));
    keel_shard_unload(&shard);
    keel_step_close(&place);
    end_fixture(&f);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, copies_of_all_kinds_take_no_bytes_in_any_arena);
    tcase_add_test(tc, a_chunk_with_one_other_element_is_stored);
    tcase_add_test(tc, a_copy_that_is_none_anywhere_refers_to_nobody);
    tcase_add_test(tc, copies_and_deltas_go_together);
    tcase_add_test(tc, a_master_that_cannot_be_one_is_refused);
    tcase_add_test(tc, a_snapshot_with_nan_or_infinity_is_committed_only_when_told_so);
    tcase_add_test(tc, nan_is_counted_in_copies_deltas_and_raw_chunks_too);
    tcase_add_test(tc, another_count_of_nan_than_there_are_is_found_by_verify);
    tcase_add_test(tc, a_chunk_of_which_nothing_is_stored_has_the_check_of_nothing);
}

KEEL_TEST_MAIN("save_same", cases, 120)
