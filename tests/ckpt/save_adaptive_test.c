/* save_adaptive_test.c - an adaptive save encodes where that costs no time, by what it knows of the rates;
 * the choice is seen in the file, never on a clock. */
#include "generations.h"
#include "save_rate.h"

enum { STATE_MIB = 24 };

/* ---- the rule ------------------------------------------------------------------------------------------ */

START_TEST(averages_move_by_an_eighth)
{
    keel_rate rate = 0;
    keel_rate_add(&rate, 0, 5);
    ck_assert_uint_eq(rate, 0);
    keel_rate_add(&rate, MIB / 2, 1000);
    ck_assert_uint_eq(rate, 2000);
    keel_rate_add(&rate, MIB, 10000);
    ck_assert_uint_eq(rate, 2000 - 2000 / 8 + 10000 / 8);
    for (int i = 0; i < 200; i++)
        keel_rate_add(&rate, MIB, 80000);
    ck_assert_uint_ge(rate, 79900);
    ck_assert_uint_le(rate, 80000);
    for (int i = 0; i < 2000; i++)
        keel_rate_add(&rate, UINT64_C(1) << 62, 0); /* known, however fast */
    ck_assert_uint_ge(rate, 1);
    ck_assert_uint_le(rate, 8);
    for (int i = 0; i < 2000; i++)
        keel_rate_add(&rate, 1, UINT64_MAX);
    ck_assert_uint_le(rate, UINT64_C(1) << 40);
}
END_TEST

START_TEST(every_kind_of_element_has_a_rate_of_its_own)
{
    struct keel_save_rates rates = {.write = 0};
    uint64_t number = 0;
    for (uint32_t width = 1; width <= 8; width *= 2)
        for (int delta = 0; delta < 2; delta++)
            *keel_rate_of(&rates, delta != 0, width) = ++number;
    number = 0;
    for (uint32_t width = 1; width <= 8; width *= 2)
        for (int delta = 0; delta < 2; delta++)
            ck_assert_uint_eq(*keel_rate_of(&rates, delta != 0, width), ++number);
    ck_assert_uint_eq(rates.write, 0);
}
END_TEST

START_TEST(a_cap_counts_as_the_rate_of_writing)
{
    struct keel_save_rates rates = {.write = 500};
    ck_assert_uint_eq(keel_rate_write_ns(&rates, 0), 500);
    ck_assert_uint_eq(keel_rate_write_ns(&rates, MIB), KEEL_NS_PER_S);
    ck_assert_uint_eq(keel_rate_write_ns(&rates, UINT64_C(1) << 60), 500);
}
END_TEST

START_TEST(encoding_pays_while_the_writer_is_busy_for_longer)
{
    ck_assert(!keel_rate_pays(700000, MIB, 400000, 0));   /* nothing waits */
    ck_assert(!keel_rate_pays(700000, MIB, 0, 12 * MIB)); /* nothing is known of writing */
    ck_assert(!keel_rate_pays(700000, MIB, 400000, MIB));
    ck_assert(keel_rate_pays(700000, MIB, 400000, 4 * MIB));
    ck_assert(keel_rate_pays(700000, MIB / 8, 400000, MIB));
    ck_assert(keel_rate_pays(UINT64_MAX, MIB, UINT64_MAX, 2 * MIB));
    ck_assert(!keel_rate_pays(UINT64_MAX, MIB, 1, 12 * MIB));
}
END_TEST

/* ---- in the file --------------------------------------------------------------------------------------- */

static struct census save_with_rate(uint64_t encode_ns, uint64_t cap_bytes_s, enum keel_codec codec)
{
    char root[KEEL_PATH_BYTES];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    struct state state = {0};
    state_add(&state, "w", KEEL_CKPT_F32, (uint64_t)STATE_MIB * MIB / 4);
    fill_f32(&state, 0, 1);
    if (codec == KEEL_CODEC_DELTA) {
        struct keel_save_config config = state_config(&state, 1, KEEL_CODEC_DELTA);
        save_and_commit(store, &config);
        step_f32(&state, 0, 1);
    }
    *keel_rate_of(&store->rates, codec == KEEL_CODEC_DELTA, 4) = encode_ns;
    struct keel_save_config config = state_config(&state, 2, codec);
    config.adaptive = true;
    config.bandwidth_bytes_s = cap_bytes_s;
    save_and_commit(store, &config);
    check_state(store, 2, &state);
    struct census census = count_codecs(store, 2, 1);
    keel_store_close(store);
    state_free(&state);
    ck_ok(keel_remove_tree(root));
    return census;
}

static const enum keel_codec codecs[] = {KEEL_CODEC_PLANES, KEEL_CODEC_DELTA};

/* The first chunk is encoded to see how long that takes; that moves the average by an eighth. */
START_TEST(where_encoding_is_slow_a_fast_disk_gets_raw_chunks)
{
    struct census census = save_with_rate(UINT64_C(1) << 40, 0, codecs[_i]);
    ck_assert_uint_eq(census.chunks[codecs[_i]], 1);
    ck_assert_uint_eq(census.chunks[KEEL_CODEC_RAW], STATE_MIB - 1);
}
END_TEST

/* Raw are those that fill the first blocks, when nothing waits yet; 8 MiB that wait are a second's work. More
 * than the one that is encoded in any case: how many more depends on what encoding takes, as it should. */
START_TEST(where_the_disk_is_slow_chunks_are_encoded)
{
    struct census census = save_with_rate(50 * KEEL_NS_PER_MS, 8 * MIB, codecs[_i]);
    ck_assert_uint_ge(census.chunks[codecs[_i]], STATE_MIB / 6);
    ck_assert_uint_eq(census.chunks[codecs[_i]] + census.chunks[KEEL_CODEC_RAW], STATE_MIB);
}
END_TEST

START_TEST(what_is_not_known_is_found_out)
{
    struct census census = save_with_rate(0, 64 * MIB, KEEL_CODEC_PLANES);
    ck_assert_uint_ge(census.chunks[KEEL_CODEC_PLANES], 1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, averages_move_by_an_eighth);
    tcase_add_test(tc, every_kind_of_element_has_a_rate_of_its_own);
    tcase_add_test(tc, a_cap_counts_as_the_rate_of_writing);
    tcase_add_test(tc, encoding_pays_while_the_writer_is_busy_for_longer);
    tcase_add_loop_test(tc, where_encoding_is_slow_a_fast_disk_gets_raw_chunks, 0, 2);
    tcase_add_loop_test(tc, where_the_disk_is_slow_chunks_are_encoded, 0, 2);
    tcase_add_test(tc, what_is_not_known_is_found_out);
}

KEEL_TEST_MAIN("save_adaptive", cases, 120)
