/* job_keys_test.c - every row of the table of job keys, by what the row says: its range and its choices are
 * those that are taken, its users those to whom it says something, its mark whether another value is another
 * run. A key that is added is tested by being there. */
#include "harness.h"
#include "job_keys.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = KEEL_INI_VALUE_BYTES + 64, CHOICE_BYTES = 64 };

static const struct keel_ini_key *row(int i)
{
    return &keel_job_keys.keys[i];
}

static void write_setting(const struct keel_ini_key *key, const char *value, char out[TEXT_BYTES])
{
    snprintf(out, TEXT_BYTES, "%s.%s=%s", key->section, key->name, value);
}

/* Into a job of all defaults, without what keys have to do with one another. */
static enum keel_status set(const struct keel_ini_key *key, const char *value, struct keel_job *out)
{
    char text[TEXT_BYTES];
    memset(out, 0, sizeof *out);
    keel_ini_defaults(&keel_job_keys, out);
    write_setting(key, value, text);
    return keel_ini_override(&keel_job_keys, text, out);
}

/* Is taken, and written as it was. */
static void takes(const struct keel_ini_key *key, const char *value, struct keel_job *out)
{
    char written[KEEL_INI_VALUE_BYTES], again[KEEL_INI_VALUE_BYTES];
    struct keel_job copy;
    ck_ok(set(key, value, out));
    keel_ini_format(key, out, written);
    ck_ok(set(key, written, &copy));
    keel_ini_format(key, &copy, again);
    ck_assert_str_eq(written, again);
}

static void refuses(const struct keel_ini_key *key, const char *value, const char *words)
{
    struct keel_job job;
    char text[TEXT_BYTES], wanted[2 * TEXT_BYTES];
    write_setting(key, value, text);
    const char *const overrides[] = {text};
    ck_assert_msg(keel_job_load("/dev/null", overrides, 1, &job) == KEEL_INVALID, "%s is taken", text);
    snprintf(wanted, sizeof wanted, "%s.%s = %s: %s", key->section, key->name, value, words);
    ck_assert_msg(strstr(keel_detail(), wanted) != NULL, "%s: \"%s\" does not say \"%s\"", text,
                  keel_detail(), wanted);
}

/* A choice by its number; false: there are fewer. */
static bool choice(const struct keel_ini_key *key, uint32_t number, char out[CHOICE_BYTES])
{
    const char *at = key->choices;
    for (; number > 0 && at != NULL; number--) {
        at = strchr(at, '|');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at != NULL)
        snprintf(out, CHOICE_BYTES, "%.*s", (int)strcspn(at, "|"), at);
    return at != NULL;
}

static bool is_whole(const struct keel_ini_key *key)
{
    return key->type == KEEL_INI_U32 || key->type == KEEL_INI_U64;
}

/* Another value than the default, which the row allows. */
static void other_value(const struct keel_ini_key *key, char out[CHOICE_BYTES])
{
    static const char *const texts[][2] = {/* whose form is looked at before who uses the key */
                                           {"gradients", "int8"},
                                           {"device", "host"}};
    const bool low = strtod(key->initial, NULL) > key->minimum;
    snprintf(out, CHOICE_BYTES, "x");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(key->name, texts[i][0]) == 0)
            snprintf(out, CHOICE_BYTES, "%s", texts[i][1]);
    if (key->type == KEEL_INI_BOOL)
        snprintf(out, CHOICE_BYTES, "%s", strcmp(key->initial, "true") == 0 ? "false" : "true");
    else if (key->type == KEEL_INI_CHOICE)
        ck_assert(choice(key, strncmp(key->initial, key->choices, strlen(key->initial)) == 0, out));
    else if (key->type != KEEL_INI_TEXT)
        snprintf(out, CHOICE_BYTES, is_whole(key) ? "%.0f" : "%.9g", low ? key->minimum : key->maximum);
}

/* ---- one row ------------------------------------------------------------------------------------------- */

START_TEST(a_row_is_whole)
{
    static const size_t sizes[] = {[KEEL_INI_U32] = 4,    [KEEL_INI_U64] = 8,  [KEEL_INI_FLOAT] = 4,
                                   [KEEL_INI_DOUBLE] = 8, [KEEL_INI_BOOL] = 1, [KEEL_INI_CHOICE] = 4};
    const struct keel_ini_key *key = row(_i);
    ck_assert_msg(key->help != NULL && strlen(key->help) > 1, "%s.%s has no help", key->section, key->name);
    ck_assert_msg(key->help[strlen(key->help) - 1] != '.', "%s.%s: no stop behind its help", key->section,
                  key->name);
    ck_assert_uint_le(key->offset + key->bytes, sizeof(struct keel_job));
    ck_assert(key->type == KEEL_INI_TEXT ? key->bytes > 1 : key->bytes == sizes[key->type]);
    ck_assert((key->type == KEEL_INI_CHOICE) == (key->choices != NULL));
    ck_assert((key->mark & LATER) == 0 || (key->mark & BITS) != 0);
    ck_assert((key->mark & OF_DATA) == 0 || strcmp(key->section, "model") == 0);
    for (int i = 0; i < _i; i++) { /* its name and its field are its own */
        const struct keel_ini_key *other = row(i);
        ck_assert_msg(
            key->offset >= other->offset + other->bytes || other->offset >= key->offset + key->bytes,
            "%s.%s and %s.%s have the same field", key->section, key->name, other->section, other->name);
        ck_assert(strcmp(key->section, other->section) != 0 || strcmp(key->name, other->name) != 0);
        ck_assert_msg(strcmp(key->section, other->section) != 0 || i + 1 == _i ||
                          strcmp(row(i + 1)->section, key->section) == 0,
                      "[%s] is in two places", key->section);
    }
}
END_TEST

static void check_numbers(const struct keel_ini_key *key)
{
    const bool whole = is_whole(key);
    char value[CHOICE_BYTES];
    struct keel_job job;
    snprintf(value, sizeof value, "%.17g", key->minimum);
    takes(key, value, &job);
    if (whole && key->maximum >= 18446744073709551615.0)
        snprintf(value, sizeof value, "18446744073709551615");
    else
        snprintf(value, sizeof value, whole ? "%.0f" : "%.17g", key->maximum);
    takes(key, value, &job);
    if (whole && key->maximum >= 18446744073709551615.0)
        snprintf(value, sizeof value, "18446744073709551616");
    else
        snprintf(value, sizeof value, whole ? "%.0f" : "%.9g", key->maximum + (whole ? 1 : key->maximum));
    refuses(key, value, "out of range");
    snprintf(value, sizeof value, whole ? "%.0f" : "%.9g", whole ? key->minimum - 1 : key->minimum / 2 - 1);
    refuses(key, value, whole && key->minimum < 1 ? "a whole number is wanted" : "out of range");
    refuses(key, "4x", whole ? "a whole number is wanted" : "a number is wanted");
    refuses(key, whole ? "-1" : "nan", whole ? "a whole number is wanted" : "a number is wanted");
}

static void check_choices(const struct keel_ini_key *key)
{
    char value[CHOICE_BYTES], words[256];
    struct keel_job job;
    uint32_t number = 0, kept;
    for (; choice(key, number, value); number++) {
        takes(key, value, &job);
        memcpy(&kept, (const char *)&job + key->offset, sizeof kept);
        ck_assert_uint_eq(kept, number);
    }
    ck_assert_uint_gt(number, 1);
    snprintf(words, sizeof words, "one of %s is wanted", key->choices);
    refuses(key, "another", words);
}

static void check_texts(const struct keel_ini_key *key)
{
    char longest[TEXT_BYTES];
    struct keel_job job;
    ck_assert_int_eq(set(key, "", &job), key->minimum > 0 ? KEEL_INVALID : KEEL_OK);
    memset(longest, 'x', key->bytes);
    longest[key->bytes] = '\0';
    ck_status(set(key, longest, &job), KEEL_INVALID);
}

START_TEST(a_value_is_taken_within_the_range_and_refused_outside_by_name)
{
    const struct keel_ini_key *key = row(_i);
    struct keel_job job;
    takes(key, key->initial, &job);
    if (key->type == KEEL_INI_CHOICE)
        check_choices(key);
    else if (key->type == KEEL_INI_TEXT)
        check_texts(key);
    else if (key->type == KEEL_INI_BOOL)
        refuses(key, "maybe", "true or false is wanted");
    else
        check_numbers(key);
}
END_TEST

/* ---- who uses it --------------------------------------------------------------------------------------- */

static const struct keel_ini_key *find(const char *section, const char *name)
{
    for (uint32_t i = 0; i < keel_job_keys.key_count; i++)
        if (strcmp(row((int)i)->section, section) == 0 && strcmp(row((int)i)->name, name) == 0)
            return row((int)i);
    ck_abort_msg("no key %s.%s", section, name);
    return NULL;
}

static void check_users(const struct keel_ini_key *key, const struct keel_key_chooser *chooser)
{
    const struct keel_ini_key *const by = find(chooser->section, chooser->name);
    const unsigned users = keel_key_users(key, chooser);
    char value[CHOICE_BYTES], chosen[CHOICE_BYTES], settings[2][TEXT_BYTES], wanted[3 * CHOICE_BYTES];
    const char *const overrides[] = {settings[0], settings[1]};
    other_value(key, value);
    write_setting(key, value, settings[1]);
    for (uint32_t i = 0; choice(by, i, chosen); i++) {
        struct keel_job job;
        write_setting(by, chosen, settings[0]);
        const bool said = keel_job_load("/dev/null", overrides, 2, &job) == KEEL_INVALID;
        snprintf(wanted, sizeof wanted, " says nothing to %s.%s = %s: leave it out; it is for ", by->section,
                 by->name, chosen);
        ck_assert_msg((said && strstr(keel_detail(), wanted) != NULL) == ((users & 1U << i) == 0),
                      "%s with %s: %s", settings[1], settings[0], said ? keel_detail() : "taken");
    }
}

START_TEST(a_key_is_an_error_where_it_says_nothing)
{
    for (int i = 0; i < KEEL_KEY_CHOOSERS; i++)
        if (keel_key_users(row(_i), &keel_key_choosers[i]) != 0)
            check_users(row(_i), &keel_key_choosers[i]);
}
END_TEST

/* ---- the run's identity -------------------------------------------------------------------------------- */

START_TEST(another_value_is_another_run_where_the_mark_says_so)
{
    const struct keel_ini_key *key = row(_i);
    struct keel_job job, other;
    char value[CHOICE_BYTES], one[KEEL_IDENTITY_BYTES], two[KEEL_IDENTITY_BYTES], text[512];
    other_value(key, value);
    ck_ok(set(key, key->initial, &job));
    ck_ok(set(key, value, &other));
    keel_job_identity(&job, 1, one);
    keel_job_identity(&other, 1, two);
    const bool bits = (key->mark & BITS) != 0;
    ck_assert_msg((strcmp(one, two) != 0) == bits, "%s.%s = %s: %s", key->section, key->name, value,
                  bits ? "the same run" : "another run");
    ck_assert_uint_eq(keel_job_difference(&job, &other, text, sizeof text), bits);
    snprintf(value, sizeof value, "%s.%s is ", key->section, key->name);
    ck_assert((strstr(text, value) != NULL) == bits);
}
END_TEST

static void cases(TCase *tc)
{
    const int rows = (int)keel_job_keys.key_count;
    tcase_add_loop_test(tc, a_row_is_whole, 0, rows);
    tcase_add_loop_test(tc, a_value_is_taken_within_the_range_and_refused_outside_by_name, 0, rows);
    tcase_add_loop_test(tc, a_key_is_an_error_where_it_says_nothing, 0, rows);
    tcase_add_loop_test(tc, another_value_is_another_run_where_the_mark_says_so, 0, rows);
}

KEEL_TEST_MAIN("job keys", cases, 10)
