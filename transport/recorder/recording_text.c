/* recording_text.c - what a recording says, in words. */
#include "recording.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void keel_format_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    uint32_t unit = 0;
    uint64_t whole = bytes, rest = 0;
    while (whole >= 1024) {
        rest = whole % 1024;
        whole /= 1024;
        unit++;
    }
    if (rest == 0)
        snprintf(out, 32, "%" PRIu64 " %s", whole, units[unit]);
    else
        snprintf(out, 32, "%" PRIu64 ".%" PRIu64 " %s", whole, rest * 10 / 1024, units[unit]);
}

void keel_format_ns(uint64_t duration_ns, char out[32])
{
    if (duration_ns >= KEEL_NS_PER_S)
        snprintf(out, 32, "%" PRIu64 ".%" PRIu64 " s", duration_ns / KEEL_NS_PER_S,
                 duration_ns % KEEL_NS_PER_S / (KEEL_NS_PER_S / 10));
    else if (duration_ns >= KEEL_NS_PER_MS)
        snprintf(out, 32, "%" PRIu64 " ms", duration_ns / KEEL_NS_PER_MS);
    else
        snprintf(out, 32, "%" PRIu64 " us", duration_ns / KEEL_NS_PER_US);
}

/* Text that grows in a buffer, and is cut where that ends. */
struct line {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line->at, line->left, format, arguments);
    va_end(arguments);
    if (length <= 0 || line->left == 0)
        return;
    size_t taken = (size_t)length < line->left ? (size_t)length : line->left - 1;
    line->at += taken;
    line->left -= taken;
}

static void add_name(struct line *line, const struct keel_record_operation *operation)
{
    char bytes[32];
    keel_format_bytes(operation->bytes, bytes);
    add(line, "%s %" PRIu64, keel_collective_name(operation->kind), operation->sequence);
    if (operation->bytes > 0)
        add(line, " (%s of %s%s%s)", bytes, keel_element_name(operation->element),
            operation->algorithm != KEEL_ALGORITHM_AUTO ? ", " : "",
            operation->algorithm != KEEL_ALGORITHM_AUTO ? keel_algorithm_name(operation->algorithm) : "");
}

static void add_awaited(struct line *line, const struct keel_record_operation *operation)
{
    uint32_t named = operation->awaited_count;
    if (operation->want == KEEL_RECORD_WANT_NOTHING)
        return;
    if (named > KEEL_RECORD_AWAITED)
        named = KEEL_RECORD_AWAITED;
    add(line, ", wants %s", keel_record_want_text(operation->want));
    for (uint32_t k = 0; k < named; k++)
        add(line, "%s%u", k > 0 ? ", " : named == 1 ? " of rank " : " of ranks ", operation->awaited[k]);
    if (operation->awaited_count > named)
        add(line, " and %u more", operation->awaited_count - named);
}

void keel_record_operation_name(const struct keel_record_operation *operation, char *out, size_t out_bytes)
{
    struct line line = {out, out_bytes};
    out[0] = '\0';
    add_name(&line, operation);
}

void keel_record_operation_text(const struct keel_record_operation *operation, uint64_t now_ns, char *out,
                                size_t out_bytes)
{
    struct line line = {out, out_bytes};
    char age[32], still[32];
    out[0] = '\0';
    add_name(&line, operation);
    if (operation->segments > 1)
        add(&line, ", segment %u of %u", operation->segment, operation->segments);
    add_awaited(&line, operation);
    keel_format_ns(now_ns - operation->begun_ns, age);
    keel_format_ns(now_ns - operation->changed_ns, still);
    add(&line, "; begun %s ago, nothing new for %s", age, still);
}
