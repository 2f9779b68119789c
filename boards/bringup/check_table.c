/* check_table.c - all checks there are, and choosing among them. */
#include "check_runner.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct keel_check *const tables[] = {
    keel_checks_identity, keel_checks_api,      keel_checks_code,  keel_checks_order,
    keel_checks_memory,   keel_checks_numerics, keel_checks_speed, keel_checks_rates,
    keel_checks_soak,     keel_checks_faults,   keel_checks_pair,
};
enum { TABLE_COUNT = sizeof tables / sizeof tables[0] };

const struct keel_check *keel_check_at(uint32_t index)
{
    for (uint32_t t = 0; t < TABLE_COUNT; t++)
        for (const struct keel_check *check = tables[t]; check->id != NULL; check++)
            if (index-- == 0)
                return check;
    return NULL;
}

uint32_t keel_check_count(void)
{
    uint32_t count = 0;
    while (keel_check_at(count) != NULL)
        count++;
    KEEL_ASSERT(count <= KEEL_CHECKS_MAX);
    return count;
}

const struct keel_check *keel_check_find(const char *word)
{
    const struct keel_check *check;
    for (uint32_t i = 0; (check = keel_check_at(i)) != NULL; i++)
        if (strcmp(check->id, word) == 0 || strcmp(check->name, word) == 0)
            return check;
    return NULL;
}

uint64_t keel_check_limit_s(const struct keel_check *check, const struct keel_check_options *options)
{
    return (options->timeout_s > 0 ? options->timeout_s : check->limit_s) +
           (check->id[0] == '6' ? options->seconds : 0);
}

static enum keel_status select_levels(const char *word, int low, int high, bool *selected)
{
    bool any = false;
    for (uint32_t i = 0; i < keel_check_count(); i++) {
        int level = atoi(keel_check_at(i)->id);
        if (level >= low && level <= high)
            any = selected[i] = true;
    }
    return any ? KEEL_OK
               : keel_fail(KEEL_INVALID, "`%s`: no checks of such a level; levels are 0 to 8", word);
}

/* "4", "0-5", "4.1", "all". */
static enum keel_status select_word(const char *word, bool *selected)
{
    if (strcmp(word, "all") == 0)
        return select_levels(word, 0, KEEL_CHECK_LEVELS - 1, selected);
    if (isdigit((unsigned char)word[0]) && word[1] == '\0')
        return select_levels(word, word[0] - '0', word[0] - '0', selected);
    if (strlen(word) == 3 && word[1] == '-' && isdigit((unsigned char)word[0]) &&
        isdigit((unsigned char)word[2]))
        return select_levels(word, word[0] - '0', word[2] - '0', selected);
    const struct keel_check *named = keel_check_find(word);
    for (uint32_t i = 0; named != NULL && i < keel_check_count(); i++)
        selected[i] |= keel_check_at(i) == named;
    if (named != NULL)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "`%s` is no level, range of levels or check; see keel board check --list",
                     word);
}

enum keel_status keel_check_select(const char *words, bool selected[KEEL_CHECKS_MAX])
{
    char text[256], *rest = NULL;
    memset(selected, 0, KEEL_CHECKS_MAX * sizeof selected[0]);
    if (words[0] == '\0' || strlen(words) >= sizeof text)
        return keel_fail(KEEL_INVALID, "`%.20s` is no choice of checks; write 0-5, or 0,2,4.1", words);
    memcpy(text, words, strlen(words) + 1);
    for (char *word = text; word != NULL; word = rest) {
        rest = strchr(word, ',');
        if (rest != NULL)
            *rest++ = '\0';
        KEEL_TRY(select_word(word, selected));
    }
    return KEEL_OK;
}
