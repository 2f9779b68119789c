/* ckpt_cmd_out.c - what `keel ckpt` writes: JSON, sizes and times for people, errors, progress. */
#include "ckpt_subcommand.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/command.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

int keel_cmd_report(enum keel_status status)
{
    return keel_command_report(&keel_ckpt_commands, status);
}

int keel_cmd_print_json(json_t *value)
{
    char *text = value == NULL ? NULL : json_dumps(value, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    json_decref(value);
    if (text == NULL)
        return keel_cmd_report(keel_fail(KEEL_NO_MEMORY, "no memory for the output"));
    keel_command_print_object(text);
    putchar('\n');
    free(text);
    return 0;
}

json_t *keel_cmd_u64_json(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

json_t *keel_cmd_step_json(uint64_t step)
{
    return step <= INT64_MAX ? json_integer((json_int_t)step) : keel_cmd_u64_json(step);
}

json_t *keel_cmd_info_json(const struct keel_snapshot_info *info)
{
    return json_pack("{s:o, s:o, s:o, s:s, s:I, s:I, s:i, s:b}", "step", keel_cmd_step_json(info->step),
                     "attempt", keel_cmd_u64_json(info->attempt), "created_wall_ns",
                     keel_cmd_u64_json(info->created_wall_ns), "identity", info->identity, "raw_bytes",
                     (json_int_t)info->raw_bytes, "stored_bytes", (json_int_t)info->stored_bytes, "shards",
                     (int)info->shard_count, "sealed", (int)info->sealed);
}

json_t *keel_cmd_bases_json(const struct keel_generation *bases, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(array, json_pack("{s:o, s:o}", "step", keel_cmd_step_json(bases[i].step),
                                               "attempt", keel_cmd_u64_json(bases[i].attempt)));
    return array;
}

static void format_time(uint64_t wall_ns, char out[KEEL_CMD_WORD_BYTES])
{
    time_t seconds = (time_t)(wall_ns / KEEL_NS_PER_S);
    struct tm parts;
    if (gmtime_r(&seconds, &parts) == NULL ||
        strftime(out, KEEL_CMD_WORD_BYTES, "%Y-%m-%d %H:%M:%SZ", &parts) == 0)
        snprintf(out, KEEL_CMD_WORD_BYTES, "?");
}

void keel_cmd_format_bytes(uint64_t bytes, char out[KEEL_CMD_WORD_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    uint32_t unit = 0;
    uint64_t tenths = bytes * 10;
    for (; tenths >= 10240 && unit < 5 && bytes < UINT64_C(1) << 60; unit++)
        tenths /= 1024;
    if (unit == 0)
        snprintf(out, KEEL_CMD_WORD_BYTES, "%" PRIu64 " B", bytes);
    else
        snprintf(out, KEEL_CMD_WORD_BYTES, "%" PRIu64 ".%" PRIu64 " %s", tenths / 10, tenths % 10,
                 units[unit]);
}

void keel_cmd_format_ratio(uint64_t raw_bytes, uint64_t stored_bytes, char out[KEEL_CMD_WORD_BYTES])
{
    while (raw_bytes > UINT64_MAX / 100) { /* hundredths need room; nobody sees the digits lost */
        raw_bytes /= 2;
        stored_bytes /= 2;
    }
    if (stored_bytes == 0) {
        snprintf(out, KEEL_CMD_WORD_BYTES, "-");
        return;
    }
    uint64_t hundredths = raw_bytes * 100 / stored_bytes;
    snprintf(out, KEEL_CMD_WORD_BYTES, "%" PRIu64 ".%02" PRIu64 "x", hundredths / 100, hundredths % 100);
}

struct keel_cmd_words keel_cmd_words_of(const struct keel_snapshot_info *info)
{
    struct keel_cmd_words words;
    keel_cmd_format_bytes(info->raw_bytes, words.raw);
    keel_cmd_format_bytes(info->stored_bytes, words.stored);
    keel_cmd_format_ratio(info->raw_bytes, info->stored_bytes, words.ratio);
    format_time(info->created_wall_ns, words.created);
    return words;
}

struct keel_cmd_meter keel_cmd_meter_of(const char *verb)
{
    return (struct keel_cmd_meter){.verb = verb, .terminal = isatty(STDERR_FILENO) == 1};
}

void keel_cmd_meter_show(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct keel_cmd_meter *meter = context;
    if (!meter->terminal ||
        (keel_now_ns() - meter->shown_ns < 100 * KEEL_NS_PER_MS && done_bytes < total_bytes))
        return;
    char done[KEEL_CMD_WORD_BYTES], total[KEEL_CMD_WORD_BYTES];
    keel_cmd_format_bytes(done_bytes, done);
    keel_cmd_format_bytes(total_bytes, total);
    meter->shown_ns = keel_now_ns();
    char line[3 * KEEL_CMD_WORD_BYTES];
    struct winsize window = {0}; /* a line that wraps would not be written over */
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1 ? window.ws_col : 80;
    snprintf(line, sizeof line, "%s: %s of %s", meter->verb, done, total);
    fprintf(stderr, "\r%.*s\033[K%s", columns - 1, line, done_bytes == total_bytes ? "\n" : "");
}

void keel_cmd_meter_hide(const struct keel_cmd_meter *meter)
{
    if (meter->terminal && meter->shown_ns > 0)
        fputs("\r\033[K", stderr);
}
