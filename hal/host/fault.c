/* fault.c - plans of faults from text, by tables; and when a fault is due. Of libc alone, since the emulated
 * boards' driver takes this file too. */
#include <inttypes.h>
#include <keel/fault.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 256, LIST_BYTES = 96 };

/* What is left of a plan's text. */
struct reader {
    const struct keel_fault_language *language;
    const char *rest;
    char word[WORD_BYTES]; /* the last one read */
    char *why;
};

bool keel_fault_is_due(struct keel_fault_when *when)
{
    const uint64_t time = ++when->seen;
    return time == when->first ||
           (time > when->first && when->every > 0 && (time - when->first) % when->every == 0);
}

/* Read a word and the mark that ends it, or NUL. Too long a word is cut, and so no known one. */
static char next_word(struct reader *reader, const char *marks)
{
    size_t length = strcspn(reader->rest, marks);
    snprintf(reader->word, sizeof reader->word, "%.*s", (int)(length < WORD_BYTES ? length : WORD_BYTES),
             reader->rest);
    char mark = reader->rest[length];
    reader->rest += length + (mark != '\0');
    return mark;
}

static bool wrong(struct reader *reader, const char *wanted, const char *what)
{
    snprintf(reader->why, KEEL_FAULT_WHY_BYTES, "\"%.80s\": wanted %s%s", reader->word, wanted, what);
    return false;
}

/* Another word of a list; one that is full ends where it does. */
static void add_to(char list[LIST_BYTES], const char *name, const char *behind)
{
    size_t length = strlen(list);
    snprintf(list + length, LIST_BYTES - length, "%s%s%s", length > 0 ? ", " : "", name, behind);
}

/* ---- values ---- */

/* At most 18 digits, so that nothing overflows; of hexadecimal ones 16. */
static bool number(const char *text, const char **out_rest, uint64_t *out)
{
    const bool hexadecimal = strncmp(text, "0x", 2) == 0;
    text += 2 * hexadecimal;
    size_t digits = strspn(text, hexadecimal ? "0123456789abcdefABCDEF" : "0123456789");
    *out_rest = text + digits;
    *out = strtoull(text, NULL, hexadecimal ? 16 : 10);
    return digits > 0 && digits <= (hexadecimal ? 16 : 18);
}

static bool read_number(struct reader *reader, const struct keel_fault_key *key, uint64_t *out)
{
    static const char units[] = "kmg";
    const bool negative = reader->word[0] == '-';
    const char *rest;
    char range[64];
    bool good = number(reader->word + negative, &rest, out);
    const char *unit = good && *rest != '\0' ? strchr(units, *rest) : NULL;
    *out <<= unit != NULL ? 10 * (unit - units + 1) : 0;
    *out = negative ? (uint64_t)0 - *out : *out;
    if (good && rest[unit != NULL] == '\0' && *out >= key->least && *out <= key->most)
        return true;
    snprintf(range, sizeof range, "%" PRIu64 " to %" PRIu64, key->least, key->most);
    return wrong(reader, "a number, ", range);
}

static bool read_when(const char *text, struct keel_fault_when *out)
{
    const char *rest;
    *out = (struct keel_fault_when){.first = 1, .every = 1};
    if (strcmp(text, "*") == 0)
        return true;
    if (!number(text, &rest, &out->first) || out->first == 0)
        return false;
    if (*rest == '/')
        return number(rest + 1, &rest, &out->every) && out->every > 0 && *rest == '\0';
    out->every = *rest == '+';
    return rest[out->every] == '\0';
}

/* The number of `name` among others, NULL for those that are none; with the list of all of them in `why`
 * where it is not found. */
static bool find_name(struct reader *reader, const char *const *names, uint64_t count, uint32_t *out)
{
    char list[LIST_BYTES] = "";
    for (uint32_t i = 0; i < count; i++) {
        if (names[i] == NULL)
            continue;
        *out = i;
        if (strcmp(names[i], reader->word) == 0)
            return true;
        add_to(list, names[i], "");
    }
    return wrong(reader, "one of ", list);
}

static bool read_value(struct reader *reader, const struct keel_fault_key *key, void *out)
{
    switch (key->type) {
    case KEEL_FAULT_ALONE:
        break;
    case KEEL_FAULT_NUMBER:
        return read_number(reader, key, out);
    case KEEL_FAULT_WHEN:
        return read_when(reader->word, out) || wrong(reader, "N, N+, N/M or *", "");
    case KEEL_FAULT_NAME:
        return find_name(reader, key->names, key->most, out);
    case KEEL_FAULT_TEXT:
        if (reader->word[0] == '\0' || strlen(reader->word) >= key->most)
            return wrong(reader, "a text, not too long", "");
        memcpy(out, reader->word, strlen(reader->word) + 1);
    }
    return true;
}

/* ---- faults ---- */

/* The key of that name that the kind has; key_count: none. A key may be called as a target is: it is meant
 * when the fault has its target. */
static uint32_t find_key(const struct keel_fault_language *language, uint32_t kind, const char *name,
                         bool has_target)
{
    uint32_t found = language->key_count;
    for (uint32_t i = 0; i < language->key_count; i++) {
        if (strcmp(language->keys[i].name, name) != 0 || (language->keys[i].kinds >> kind & 1) == 0)
            continue;
        found = i;
        if (!has_target || i >= language->target_count)
            break;
    }
    return found;
}

/* Names the fault's kind, and the keys of numbers `from` to before `to` that it has, or those it cannot do
 * without. */
static bool lacks(struct reader *reader, uint32_t kind, const char *wanted, uint32_t from, uint32_t to,
                  bool needed)
{
    char list[LIST_BYTES] = "";
    for (uint32_t i = from; i < to; i++) {
        const struct keel_fault_key *key = &reader->language->keys[i];
        if (((needed ? key->needed : key->kinds) >> kind & 1) != 0)
            add_to(list, key->name, key->type == KEEL_FAULT_ALONE ? "" : "=");
    }
    return wrong(reader, wanted, list);
}

/* "key=value" or "key", and what ended it. */
static bool read_key(struct reader *reader, struct keel_fault_head *fault, uint64_t *given, char *mark)
{
    const struct keel_fault_language *language = reader->language;
    const uint64_t targets = (UINT64_C(1) << language->target_count) - 1;
    *mark = next_word(reader, "=,;");
    const uint32_t number = find_key(language, fault->kind, reader->word, (*given & targets) != 0);
    if (number == language->key_count)
        return lacks(reader, fault->kind, "one of ", 0, language->key_count, false);
    const struct keel_fault_key *key = &language->keys[number];
    const uint64_t bit = UINT64_C(1) << number;
    if ((*given & ((bit & targets) != 0 ? targets : bit)) != 0)
        return wrong(reader, (bit & targets) != 0 ? "one target" : "each key once", "");
    if ((*mark == '=') == (key->type == KEEL_FAULT_ALONE))
        return wrong(reader, *mark == '=' ? "no value of it" : "a value of it", "");
    *given |= bit;
    if ((bit & targets) != 0)
        fault->target = number;
    if (*mark == '=')
        *mark = next_word(reader, ",;");
    return read_value(reader, key, (char *)fault + key->offset);
}

static bool read_fault(struct reader *reader, struct keel_fault_head *fault, char *mark)
{
    const struct keel_fault_language *language = reader->language;
    uint64_t given = 0, needed = 0;
    memcpy(fault, language->blank, language->fault_bytes);
    reader->rest += strspn(reader->rest, " \t\n");
    *mark = next_word(reader, ":,;=");
    if (!find_name(reader, language->kinds, language->kind_count, &fault->kind))
        return false;
    if (*mark != ':')
        return wrong(reader, "KIND:KEY=VALUE", "");
    for (*mark = ','; *mark == ',';)
        if (!read_key(reader, fault, &given, mark))
            return false;
    snprintf(reader->word, sizeof reader->word, "%s", language->kinds[fault->kind]);
    if ((given & ((UINT64_C(1) << language->target_count) - 1)) == 0)
        return lacks(reader, fault->kind, "one of ", 0, language->target_count, false);
    for (uint32_t i = 0; i < language->key_count; i++) {
        const struct keel_fault_key *key = &language->keys[i];
        needed |= (key->needed >> fault->kind & 1) << i;
        if ((given >> i & 1) == 0 || key->targets == 0 || (key->targets >> fault->target & 1) != 0)
            continue;
        snprintf(reader->word, sizeof reader->word, "%s", key->name);
        return wrong(reader, "no such key with ", language->keys[fault->target].name);
    }
    return (needed & ~given) == 0 || lacks(reader, fault->kind, "also ", 0, language->key_count, true);
}

bool keel_faults_read(const struct keel_fault_language *language, const char *text, void *out, uint32_t most,
                      uint32_t *out_count, char why[KEEL_FAULT_WHY_BYTES])
{
    struct reader reader = {.language = language, .rest = text, .why = why};
    char mark = text[0] != '\0' ? ';' : '\0', *faults = out;
    uint32_t count = 0;
    for (; mark == ';'; count++) {
        if (count == most) {
            snprintf(why, KEEL_FAULT_WHY_BYTES, "\"%.40s\": at most %u faults", reader.rest, most);
            return false;
        }
        if (!read_fault(&reader, (struct keel_fault_head *)(void *)(faults + count * language->fault_bytes),
                        &mark))
            return false;
    }
    *out_count = count;
    return true;
}
