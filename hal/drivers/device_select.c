/* device_select.c - from a selector to one candidate, and the words for why there is none.
 *
 * Works on candidates alone, so it is the same for all backends. Does not discover and does not open. */
#include "device_backend.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LIST_TEXT_BYTES = 360 };

static bool usable(const struct keel_candidate *candidate)
{
    return candidate->info.passed_over[0] == '\0';
}

static bool matches_part(const struct keel_device_info *info, const char *word)
{
    return strcasestr(info->selector, word) != NULL || strcasestr(info->platform, word) != NULL ||
           strcasestr(info->name, word) != NULL;
}

/* The better, the higher; 0 for what cannot be used. */
static int preference(const struct keel_candidate *candidate, bool code_provided)
{
    static const int of_kind[] = {
        [KEEL_DEVICE_HOST] = 1, [KEEL_DEVICE_CPU] = 2, [KEEL_DEVICE_ACCELERATOR] = 3, [KEEL_DEVICE_GPU] = 4};
    bool lacks_code = candidate->info.kind != KEEL_DEVICE_HOST && !code_provided &&
                      (candidate->info.code_forms & KEEL_CODE_SOURCE) == 0;
    return usable(candidate) && !lacks_code ? of_kind[candidate->info.kind] : 0;
}

static void append(char text[LIST_TEXT_BYTES], const char *separator, const char *a, const char *b)
{
    size_t used = strlen(text);
    snprintf(text + used, LIST_TEXT_BYTES - used, "%s%s%s%s%s", used > 0 ? separator : "", a,
             b[0] != '\0' ? " (" : "", b, b[0] != '\0' ? ")" : "");
}

static const char *label(const struct keel_device_info *info)
{
    if (info->selector[0] != '\0')
        return info->selector;
    return info->platform[0] != '\0' ? info->platform : info->name;
}

static enum keel_status none_matches(const struct keel_candidate *candidates, uint32_t count,
                                     const char *selector)
{
    char there[LIST_TEXT_BYTES] = "", passed[LIST_TEXT_BYTES] = "";
    const char *absent = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const struct keel_device_info *info = &candidates[i].info;
        if (candidates[i].backend != NULL && candidates[i].backend->absent != NULL)
            absent = candidates[i].backend->absent;
        if (usable(&candidates[i]))
            append(there, ", ", info->selector, "");
        else
            append(passed, ", ", label(info), info->passed_over);
    }
    return keel_fail(absent != NULL ? KEEL_UNSUPPORTED : KEEL_NOT_FOUND,
                     "device \"%s\": none like it; there is: %s%s%.150s; %s", selector, there,
                     passed[0] != '\0' ? "; passed over: " : "", passed,
                     absent != NULL ? absent
                                    : "use one of these, or install an OpenCL driver (pocl-opencl-icd is one "
                                      "for CPUs)");
}

static enum keel_status several_match(const struct keel_candidate *candidates, uint32_t count,
                                      const char *selector)
{
    char which[LIST_TEXT_BYTES] = "";
    for (uint32_t i = 0; i < count; i++)
        if (usable(&candidates[i]) && matches_part(&candidates[i].info, selector))
            append(which, ", ", candidates[i].info.selector, "");
    return keel_fail(KEEL_INVALID, "device \"%s\" may be any of %s; name one", selector, which);
}

static uint32_t best_of(const struct keel_candidate *candidates, uint32_t count, bool code_provided)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        if (preference(&candidates[i], code_provided) > preference(&candidates[best], code_provided))
            best = i;
    return best;
}

enum keel_status keel_candidate_pick(const struct keel_candidate *candidates, uint32_t count,
                                     const char *selector, bool code_provided, uint32_t *out_index)
{
    if (strcasecmp(selector, "auto") == 0) {
        uint32_t best = best_of(candidates, count, code_provided);
        if (count == 0 || preference(&candidates[best], code_provided) == 0)
            return none_matches(candidates, count, selector);
        *out_index = best;
        return KEEL_OK;
    }
    uint32_t found = 0, index = 0;
    for (uint32_t i = 0; i < count && selector[0] != '\0'; i++) {
        if (!usable(&candidates[i]))
            continue;
        if (strcasecmp(candidates[i].info.selector, selector) == 0) {
            *out_index = i;
            return KEEL_OK;
        }
        if (matches_part(&candidates[i].info, selector)) {
            index = i;
            found++;
        }
    }
    if (found == 0)
        return none_matches(candidates, count, selector);
    if (found > 1)
        return several_match(candidates, count, selector);
    *out_index = index;
    return KEEL_OK;
}
