/* costs.c - the figures of the cost model as a table of keys: read, written, compared.
 *
 * A file has a line `key = value` for every figure, in any order; what follows a # is a remark. Nothing is
 * left out and nothing may stand twice, so that a file means the same to all versions that take it. */
#include "costs.h"
#include "net_cmd.h"

#include <inttypes.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 * 1024 };
static const uint64_t figure_max = UINT64_C(1000000000000);

const struct keel_cost_model keel_costs_built_in = {
    .within = {3000, 1000, 200}, .between = {12000, 8000, 600}, .combine_picos_per_byte = 20};

static const struct {
    const char *name;
    size_t offset;
} figures[KEEL_COSTS] = {
    {"within.alpha_ns", offsetof(struct keel_cost_model, within.alpha_ns)},
    {"within.gap_ns", offsetof(struct keel_cost_model, within.gap_ns)},
    {"within.picos_per_byte", offsetof(struct keel_cost_model, within.picos_per_byte)},
    {"between.alpha_ns", offsetof(struct keel_cost_model, between.alpha_ns)},
    {"between.gap_ns", offsetof(struct keel_cost_model, between.gap_ns)},
    {"between.picos_per_byte", offsetof(struct keel_cost_model, between.picos_per_byte)},
    {"combine.picos_per_byte", offsetof(struct keel_cost_model, combine_picos_per_byte)},
    {"host.processors", offsetof(struct keel_cost_model, host_processors)},
};

const char *keel_costs_name(uint32_t number)
{
    return figures[number].name;
}

uint64_t *keel_costs_figure(struct keel_cost_model *costs, uint32_t number)
{
    return (uint64_t *)(void *)((uint8_t *)costs + figures[number].offset);
}

uint16_t keel_costs_hash(const struct keel_cost_model *costs)
{
    struct keel_cost_model copy = *costs;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t k = 0; k < KEEL_COSTS; k++)
        hash = (hash ^ *keel_costs_figure(&copy, k)) * UINT64_C(0x100000001b3) + (hash >> 29);
    return (uint16_t)(hash % UINT16_MAX + 1);
}

/* ---- files ---- */

static char *trim(char *text)
{
    static const char blanks[] = " \t\r";
    text += strspn(text, blanks);
    size_t length = strlen(text);
    while (length > 0 && strchr(blanks, text[length - 1]) != NULL)
        text[--length] = '\0';
    return text;
}

static bool parse_figure(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9' && value <= figure_max; at++)
        value = value * 10 + (uint64_t)(*at - '0');
    *out = value;
    return at != text && *at == '\0' && value <= figure_max;
}

static enum keel_status take_line(char *line, const char *path, unsigned number, struct keel_cost_model *out,
                                  uint32_t *given)
{
    uint32_t k = 0;
    line[strcspn(line, "#")] = '\0';
    line = trim(line);
    if (*line == '\0')
        return KEEL_OK;
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return keel_fail(KEEL_INVALID, "%s:%u: not `key = value`", path, number);
    *equals = '\0';
    const char *name = trim(line), *value = trim(equals + 1);
    while (k < KEEL_COSTS && strcmp(figures[k].name, name) != 0)
        k++;
    if (k == KEEL_COSTS)
        return keel_fail(KEEL_INVALID, "%s:%u: unknown figure `%s`; a file of costs has %s and so on", path,
                         number, name, figures[0].name);
    if ((*given >> k & 1) != 0)
        return keel_fail(KEEL_INVALID, "%s:%u: %s stands twice; keep one of them", path, number, name);
    *given |= UINT32_C(1) << k;
    if (!parse_figure(value, keel_costs_figure(out, k)))
        return keel_fail(KEEL_INVALID, "%s:%u: %s = %s: a whole number up to %" PRIu64 " is wanted", path,
                         number, name, value, figure_max);
    return KEEL_OK;
}

static enum keel_status parse(char *text, const char *path, struct keel_cost_model *out)
{
    uint32_t given = 0;
    unsigned number = 0;
    for (char *line = text, *next; line != NULL; line = next) {
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        KEEL_TRY(take_line(line, path, ++number, out, &given));
    }
    for (uint32_t k = 0; k < KEEL_COSTS; k++)
        if ((given >> k & 1) == 0)
            return keel_fail(KEEL_INVALID, "%s: %s is missing; `keel net tune` writes whole files", path,
                             figures[k].name);
    return KEEL_OK;
}

enum keel_status keel_costs_read(const char *path, struct keel_cost_model *out)
{
    char *text;
    size_t bytes;
    struct keel_cost_model read = {0};
    KEEL_TRY(keel_file_read(path, FILE_BYTES_MAX, &text, &bytes));
    enum keel_status status = KEEL_OK;
    if (strlen(text) != bytes)
        status = keel_fail(KEEL_INVALID, "%s: byte %zu is NUL; a file of costs is text", path, strlen(text));
    else
        status = parse(text, path, &read);
    keel_free(text);
    if (status == KEEL_OK)
        *out = read;
    return status;
}

enum keel_status keel_costs_write(const char *path, const struct keel_cost_model *costs, const char *remark)
{
    struct keel_cost_model copy = *costs;
    char text[2048];
    size_t used = (size_t)snprintf(text, sizeof text, "# %s\n", remark);
    for (uint32_t k = 0; k < KEEL_COSTS && used < sizeof text; k++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s = %" PRIu64 "\n", figures[k].name,
                                 *keel_costs_figure(&copy, k));
    if (used >= sizeof text)
        return keel_fail(KEEL_LIMIT, "%s: the remark is too long", path);
    return keel_command_write_file(path, text, used);
}
