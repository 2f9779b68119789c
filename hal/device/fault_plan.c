/* fault_plan.c - plans of faults from text, and which fault the next command meets. Pure.
 *
 * A word is what lies between two of the marks `:;,=`; the first word that is wrong is what a refusal names.
 */
#include "device_fault.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <stdlib.h>
#include <string.h>

static const char *const what_names[] = {"error", "hang", "slow", "flip", "lose"};
static const char *const on_names[] = {
    [KEEL_COMMAND_LAUNCH] = "launch",   [KEEL_COMMAND_READ] = "read", [KEEL_COMMAND_WRITE] = "write",
    [KEEL_COMMAND_COPY] = "copy",       [KEEL_COMMAND_FILL] = "fill", [KEEL_COMMAND_MAP] = "map",
    [KEEL_COMMAND_UNMAP] = "unmap",     [KEEL_FAULT_ON_ANY] = "any",  [KEEL_FAULT_ON_BUFFER] = "buffer",
    [KEEL_FAULT_ON_PROGRAM] = "program"};

enum { WORD_BYTES = KEEL_FAULT_NAME_BYTES };

/* What is left of a plan's text. */
struct reader {
    const char *rest;
    char word[WORD_BYTES]; /* the last one read */
};

/* Read a word and what ends it: one of the marks, or NUL. Too long a word is cut, and so no known one. */
static char next_word(struct reader *reader)
{
    size_t length = strcspn(reader->rest, ":;,=");
    size_t kept = length < WORD_BYTES ? length : WORD_BYTES - 1;
    memcpy(reader->word, reader->rest, kept);
    reader->word[kept] = '\0';
    char mark = reader->rest[length];
    reader->rest += length + (mark != '\0');
    return mark;
}

static enum keel_status wrong(const struct reader *reader, const char *wanted)
{
    return keel_fail(KEEL_INVALID, "fault plan: \"%s\": wanted %s; see keel/health.h for the grammar",
                     reader->word, wanted);
}

static bool find(const char *const *names, uint32_t count, const char *word, uint32_t *out)
{
    for (uint32_t i = 0; i < count; i++)
        if (names[i] != NULL && strcmp(names[i], word) == 0) {
            *out = i;
            return true;
        }
    return false;
}

/* Decimal digits alone, at most 18, so that nothing overflows; the rest of the word goes to *out_end. */
static bool number(const char *word, uint64_t *out, const char **out_end)
{
    size_t digits = strspn(word, "0123456789");
    if (digits == 0 || digits > 18)
        return false;
    *out = strtoull(word, NULL, 10);
    *out_end = word + digits;
    return true;
}

static bool read_when(const char *word, struct keel_fault *fault)
{
    const char *end;
    fault->first = 1;
    fault->last = UINT64_MAX;
    if (strcmp(word, "*") == 0)
        return true;
    if (!number(word, &fault->first, &end) || fault->first == 0)
        return false;
    if (strcmp(end, "+") == 0)
        return true;
    fault->last = fault->first;
    return end[0] == '\0';
}

static enum keel_status read_value(struct reader *reader, uint64_t most, uint64_t *out)
{
    const char *end;
    if (!number(reader->word, out, &end) || end[0] != '\0' || *out > most)
        return wrong(reader, "a number, not too large");
    return KEEL_OK;
}

/* "key=value", where the fault can have that key; *mark is what ended it. */
static enum keel_status read_key(struct reader *reader, struct keel_fault *fault, char *mark)
{
    static const char *const keys[] = {"ms", "bit", "arg", "kernel"};
    uint32_t key;
    bool flip = fault->what == KEEL_FAULT_FLIP, launch = fault->on == KEEL_COMMAND_LAUNCH;
    *mark = next_word(reader);
    if (!find(keys, 4, reader->word, &key) || *mark != '=')
        return wrong(reader, "ms=, bit=, arg= or kernel=");
    const bool fits[] = {fault->what == KEEL_FAULT_SLOW, flip, flip && launch, launch};
    if (!fits[key])
        return wrong(reader, "a key that this fault has");
    *mark = next_word(reader);
    if (key == 0)
        return read_value(reader, KEEL_FAULT_LATE_MAX_MS, &fault->ms);
    if (key == 1)
        return read_value(reader, UINT64_MAX - 1, &fault->bit);
    if (key == 2)
        return read_value(reader, KEEL_ARG_MAX - 1, &fault->arg);
    if (reader->word[0] == '\0')
        return wrong(reader, "the name of a kernel");
    memcpy(fault->kernel, reader->word, sizeof fault->kernel);
    return KEEL_OK;
}

static bool can_be_on(enum keel_fault_what what, uint32_t on)
{
    if (what == KEEL_FAULT_FLIP)
        return on <= KEEL_COMMAND_FILL;
    return what == KEEL_FAULT_ERROR || on <= KEEL_FAULT_ON_ANY;
}

static enum keel_status read_fault(struct reader *reader, struct keel_fault *fault, char *mark)
{
    uint32_t what;
    *fault = (struct keel_fault){.ms = KEEL_FAULT_UNSET, .bit = KEEL_FAULT_UNSET, .arg = KEEL_FAULT_UNSET};
    *mark = next_word(reader);
    if (!find(what_names, 5, reader->word, &what) || *mark != ':')
        return wrong(reader, "error:, hang:, slow:, flip: or lose:");
    fault->what = (enum keel_fault_what)what;
    *mark = next_word(reader);
    if (!find(on_names, sizeof on_names / sizeof on_names[0], reader->word, &fault->on) || *mark != '=' ||
        !can_be_on(fault->what, fault->on))
        return wrong(reader, "COMMAND=, of those that this fault can be put on");
    *mark = next_word(reader);
    if (!read_when(reader->word, fault))
        return wrong(reader, "N, N+ or *");
    while (*mark == ',')
        KEEL_TRY(read_key(reader, fault, mark));
    if (fault->what == KEEL_FAULT_SLOW && (fault->ms == KEEL_FAULT_UNSET || fault->ms == 0))
        return wrong(reader, "ms= of at least 1 for slow");
    if (*mark != ';' && *mark != '\0')
        return wrong(reader, "`,` or `;` after it");
    return KEEL_OK;
}

enum keel_status keel_fault_plan_read(const char *text, struct keel_fault_plan *out)
{
    struct keel_fault_plan plan = {0};
    struct reader reader = {.rest = text};
    char mark = text[0] != '\0' ? ';' : '\0';
    while (mark == ';') {
        if (plan.count == KEEL_FAULTS_MAX)
            return keel_fail(KEEL_INVALID, "fault plan: \"%.40s\": at most %d faults", reader.rest,
                             KEEL_FAULTS_MAX);
        KEEL_TRY(read_fault(&reader, &plan.faults[plan.count], &mark));
        plan.count++;
    }
    *out = plan;
    return KEEL_OK;
}

struct keel_fault_hit keel_fault_plan_meet(struct keel_fault_plan *plan, uint32_t on, const char *kernel)
{
    struct keel_fault_hit hit = {0};
    for (uint32_t i = 0; i < plan->count; i++) {
        struct keel_fault *fault = &plan->faults[i];
        bool counted = fault->on == on || (fault->on == KEEL_FAULT_ON_ANY && on <= KEEL_COMMAND_UNMAP);
        if (!counted || (fault->kernel[0] != '\0' && (kernel == NULL || strcmp(fault->kernel, kernel) != 0)))
            continue;
        fault->seen++;
        if (fault->seen < fault->first || fault->seen > fault->last)
            continue;
        hit.number = fault->seen;
        hit.error = hit.error || fault->what == KEEL_FAULT_ERROR;
        hit.lose = hit.lose || fault->what == KEEL_FAULT_LOSE;
        hit.hang = hit.hang || fault->what == KEEL_FAULT_HANG;
        if (fault->what == KEEL_FAULT_SLOW)
            hit.late_ns += fault->ms * KEEL_NS_PER_MS;
        if (fault->what == KEEL_FAULT_FLIP)
            hit.flip = fault;
    }
    return hit;
}
