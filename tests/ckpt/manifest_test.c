/* manifest_test.c - a manifest's members, above all its list of bases: written as they are read, and nothing
 * else is taken for them. */
#include "format.h"
#include "harness.h"
#include "manifest.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { TAIL = 36, TEXT_MAX = 8192 };

static enum keel_status decode(const char *text, struct keel_manifest *out)
{
    return keel_manifest_decode(text, strlen(text), "manifest", out);
}

/* `text` with `from` replaced, under a right check. */
static void rewrite(const char *text, const char *from, const char *to, char out[TEXT_MAX])
{
    const char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "%s is not in %s", from, text);
    int before = (int)(at - text);
    snprintf(out, TEXT_MAX, "%.*s%s%s", before, text, to, at + strlen(from));
    size_t covered = strlen(out) - TAIL;
    uint8_t digest[KEEL_DIGEST_BYTES];
    keel_format_digest(out, covered, digest);
    for (size_t i = 0; i < sizeof digest; i++) {
        char hex[3];
        snprintf(hex, sizeof hex, "%02x", digest[i]);
        memcpy(out + covered + 2 * i, hex, 2);
    }
}

static void encode(struct keel_generation *bases, uint32_t count, char out[TEXT_MAX])
{
    static char no_metadata[] = "{}";
    struct keel_shard_summary shards[3] = {
        {.rank = 0, .file_bytes = 4096}, {.rank = 1, .file_bytes = 4096}, {.rank = 2, .file_bytes = 4096}};
    struct keel_manifest manifest = {.run = "sample",
                                     .info = {.step = 9, .attempt = 4, .shard_count = 3},
                                     .shards = shards,
                                     .bases = bases,
                                     .base_count = count,
                                     .metadata = no_metadata};
    char *text;
    size_t bytes;
    ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
    ck_assert_uint_lt(bytes, TEXT_MAX);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    keel_free(text);
}

START_TEST(bases_come_back_as_they_were_written)
{
    struct keel_generation bases[2] = {{7, UINT64_MAX}, {8, 1}};
    char text[TEXT_MAX];
    for (uint32_t count = 0; count <= 2; count++) {
        struct keel_manifest back;
        encode(bases, count, text);
        ck_assert_int_eq(strstr(text, "\"bases\"") != NULL, count > 0);
        ck_ok(decode(text, &back));
        ck_assert_uint_eq(back.base_count, count);
        for (uint32_t i = 0; i < count; i++) {
            ck_assert_uint_eq(back.bases[i].step, bases[i].step);
            ck_assert_uint_eq(back.bases[i].attempt, bases[i].attempt);
        }
        keel_manifest_fini(&back);
    }
}
END_TEST

static const struct {
    const char *from, *to;
    enum keel_status wanted;
} refused[] = {
    {"\"step\": \"7\"", "\"step\": \"07\"", KEEL_CORRUPT},
    {"\"step\": \"7\"", "\"step\": 7", KEEL_CORRUPT},
    {"\"step\": \"7\"", "\"stop\": \"7\"", KEEL_CORRUPT},
    {"\"step\": \"7\"", "\"step\": \"8\"", KEEL_CORRUPT}, /* the second one's step, and a later attempt */
    {"\"attempt\": \"5\"", "\"attempt\": \"18446744073709551616\"", KEEL_CORRUPT},
    {"\"step\": \"8\",\n   \"attempt\": \"1\"", "\"step\": \"7\",\n   \"attempt\": \"5\"", KEEL_CORRUPT},
    {"\"step\": \"8\",\n   \"attempt\": \"1\"", "\"step\": \"9\",\n   \"attempt\": \"4\"", KEEL_CORRUPT},
    {"\"attempt\": \"5\"", "\"attempt\": \"5\", \"more\": 1", KEEL_VERSION},
    {"\"bases\"", "\"roots\"", KEEL_VERSION},
    {"\"index_digest\"", "\"more\": 1, \"index_digest\"", KEEL_VERSION}, /* of a shard */
    {"\"records\"", "\"recalls\"", KEEL_CORRUPT},
    {"\"metadata\": {}", "\"metadata\": {\"a\": \"\xc3\xa9\"}", KEEL_CORRUPT}, /* UTF-8 */
    {"\"metadata\": {}", "\"metadata\": []", KEEL_CORRUPT},
    {"\n \"check\"", "\n\"check\"", KEEL_CORRUPT},
    {"\n \"check\"", "\n \"check\": \"\",\n \"last\"", KEEL_CORRUPT},
    {"\"bases\": [", "\"bases\": [1, ", KEEL_CORRUPT},
    {"\"bases\": [",
     "\"bases\": [{\"step\": \"1\", \"attempt\": \"1\"}, {\"step\": \"2\", \"attempt\": \"1\"}, ",
     KEEL_CORRUPT}, /* more bases than shards */
};

START_TEST(other_lists_of_bases_are_refused_even_with_a_right_check)
{
    struct keel_generation bases[2] = {{7, 5}, {8, 1}};
    char text[TEXT_MAX], changed[TEXT_MAX];
    struct keel_manifest back;
    encode(bases, 2, text);
    rewrite(text, refused[_i].from, refused[_i].to, changed);
    ck_status(decode(changed, &back), refused[_i].wanted);
}
END_TEST

START_TEST(a_member_that_is_missing_is_named)
{
    static const char *const members[] = {"run",      "step",    "attempt", "created_wall_ns",
                                          "identity", "metadata"};
    char text[TEXT_MAX], changed[TEXT_MAX], member[64];
    struct keel_manifest back;
    encode(NULL, 0, text);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        snprintf(member, sizeof member, "\n \"%s\": ", members[i]);
        const char *at = strstr(text, member);
        ck_assert_ptr_nonnull(at);
        snprintf(member, sizeof member, "%.*s", (int)(strchr(at + 1, '\n') - at), at);
        rewrite(text, member, "", changed);
        ck_status(decode(changed, &back), KEEL_CORRUPT);
        snprintf(member, sizeof member, "left out its member %s;", members[i]);
        ck_assert_msg(strstr(keel_detail(), member) != NULL, "%s", keel_detail());
    }
}
END_TEST

START_TEST(an_empty_list_of_bases_is_refused)
{
    char text[TEXT_MAX], changed[TEXT_MAX];
    struct keel_manifest back;
    encode(NULL, 0, text);
    rewrite(text, "\"metadata\"", "\"bases\": [], \"metadata\"", changed);
    ck_status(decode(changed, &back), KEEL_CORRUPT);
    rewrite(text, "\"metadata\"", "\"bases\": {}, \"metadata\"", changed);
    ck_status(decode(changed, &back), KEEL_CORRUPT);
}
END_TEST

START_TEST(sizes_whose_sum_nobody_can_tell_are_refused)
{
    char text[TEXT_MAX], once[TEXT_MAX], twice[TEXT_MAX];
    struct keel_manifest back;
    encode(NULL, 0, text);
    rewrite(text, "\"raw_bytes\": 0", "\"raw_bytes\": 9223372036854775807", once);
    ck_ok(decode(once, &back));
    ck_assert_uint_eq(back.info.raw_bytes, INT64_MAX);
    keel_manifest_fini(&back);
    rewrite(once, "\"raw_bytes\": 0", "\"raw_bytes\": 1", twice);
    ck_status(decode(twice, &back), KEEL_CORRUPT);
}
END_TEST

START_TEST(names_that_would_speak_to_a_terminal_are_damage)
{
    char text[TEXT_MAX], changed[TEXT_MAX];
    struct keel_manifest back;
    encode(NULL, 0, text);
    rewrite(text, "\"identity\": \"\"", "\"identity\": \"c0ffee\"", changed);
    ck_ok(decode(changed, &back));
    keel_manifest_fini(&back);
    rewrite(text, "\"identity\": \"\"", "\"identity\": \"\\u001b[31m\"", changed);
    ck_status(decode(changed, &back), KEEL_CORRUPT);
    rewrite(text, "\"run\": \"sample\"", "\"run\": \"\\u001b[31m\"", changed);
    ck_status(decode(changed, &back), KEEL_CORRUPT);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, bases_come_back_as_they_were_written);
    tcase_add_loop_test(tc, other_lists_of_bases_are_refused_even_with_a_right_check, 0,
                        (int)(sizeof refused / sizeof refused[0]));
    tcase_add_test(tc, a_member_that_is_missing_is_named);
    tcase_add_test(tc, an_empty_list_of_bases_is_refused);
    tcase_add_test(tc, sizes_whose_sum_nobody_can_tell_are_refused);
    tcase_add_test(tc, names_that_would_speak_to_a_terminal_are_damage);
}

KEEL_TEST_MAIN("manifest", cases, 60)
