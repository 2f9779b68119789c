/* gpt2_names.c - the table of GPT-2's tensors, and what follows from it. */
#include "gpt2_names.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum extent { NONE, VOCAB, POSITIONS, WIDTH, WIDTH_3, WIDTH_4 };
enum need { ALWAYS, BIAS, SOMETIMES, BUFFER };

/* '#' is the number of a layer. */
static const struct row {
    const char *name;
    enum extent extents[2];
    enum need need;
} rows[] = {
    {"wte.weight", {VOCAB, WIDTH}, ALWAYS},
    {"wpe.weight", {POSITIONS, WIDTH}, ALWAYS},
    {"h.#.ln_1.weight", {WIDTH, NONE}, ALWAYS},
    {"h.#.ln_1.bias", {WIDTH, NONE}, BIAS},
    {"h.#.attn.c_attn.weight", {WIDTH, WIDTH_3}, ALWAYS},
    {"h.#.attn.c_attn.bias", {WIDTH_3, NONE}, BIAS},
    {"h.#.attn.c_proj.weight", {WIDTH, WIDTH}, ALWAYS},
    {"h.#.attn.c_proj.bias", {WIDTH, NONE}, BIAS},
    {"h.#.ln_2.weight", {WIDTH, NONE}, ALWAYS},
    {"h.#.ln_2.bias", {WIDTH, NONE}, BIAS},
    {"h.#.mlp.c_fc.weight", {WIDTH, WIDTH_4}, ALWAYS},
    {"h.#.mlp.c_fc.bias", {WIDTH_4, NONE}, BIAS},
    {"h.#.mlp.c_proj.weight", {WIDTH_4, WIDTH}, ALWAYS},
    {"h.#.mlp.c_proj.bias", {WIDTH, NONE}, BIAS},
    {"ln_f.weight", {WIDTH, NONE}, ALWAYS},
    {"ln_f.bias", {WIDTH, NONE}, BIAS},
    {"lm_head.weight", {VOCAB, WIDTH}, SOMETIMES},
    {"h.#.attn.bias", {NONE, NONE}, BUFFER},
    {"h.#.attn.masked_bias", {NONE, NONE}, BUFFER},
};
enum { ROWS = sizeof rows / sizeof rows[0], NO_ROW = ROWS };

static bool of_layer(const struct row *row)
{
    return row->name[0] == 'h' && row->name[1] == '.';
}

/* Does `name` fit the pattern? Then *out_layer is what stands for '#'. */
static bool fits(const char *pattern, const char *name, uint32_t *out_layer)
{
    uint32_t layer = 0;
    for (; *pattern != '\0'; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern)
                return false;
            continue;
        }
        if (*name < '0' || *name > '9' || (name[0] == '0' && name[1] >= '0' && name[1] <= '9'))
            return false;
        for (; *name >= '0' && *name <= '9'; name++) {
            if (layer > KEEL_GPT2_LAYERS_MAX)
                return false;
            layer = layer * 10 + (uint32_t)(*name - '0');
        }
    }
    *out_layer = layer;
    return *name == '\0';
}

static uint32_t find(const char *name, uint32_t *out_layer)
{
    uint32_t i = 0;
    while (i < ROWS && !fits(rows[i].name, name, out_layer))
        i++;
    return i;
}

enum keel_gpt2_kind keel_gpt2_name(const char *name, const char **out_name)
{
    uint32_t layer;
    size_t prefix = strlen(KEEL_GPT2_PREFIX);
    if (strncmp(name, KEEL_GPT2_PREFIX, prefix) == 0)
        name += prefix;
    uint32_t row = find(name, &layer);
    if (row == NO_ROW)
        return KEEL_GPT2_STRANGER;
    *out_name = name;
    return rows[row].need == BUFFER ? KEEL_GPT2_BUFFER : KEEL_GPT2_PARAMETER;
}

/* The extent that the model has there so far, or takes from this tensor. */
static bool agree(struct keel_gpt2 *model, enum extent extent, uint64_t size)
{
    uint64_t times = extent == WIDTH_3 ? 3 : extent == WIDTH_4 ? 4 : 1;
    uint64_t *known = &model->extents[extent >= WIDTH ? WIDTH : extent];
    if (size % times != 0 || size == 0)
        return false;
    if (*known == 0)
        *known = size / times;
    return *known == size / times;
}

enum keel_status keel_gpt2_add(struct keel_gpt2 *model, const char *name, uint32_t dims,
                               const uint64_t *shape)
{
    uint32_t layer = 0, row = find(name, &layer);
    KEEL_ASSERT(row != NO_ROW && rows[row].need != BUFFER);
    uint32_t wanted = rows[row].extents[1] == NONE ? 1 : 2;
    if (layer >= KEEL_GPT2_LAYERS_MAX)
        return keel_fail(KEEL_LIMIT, "tensor %s: more than %d layers", name, KEEL_GPT2_LAYERS_MAX);
    bool good = dims == wanted;
    for (uint32_t d = 0; d < wanted && good; d++)
        good = agree(model, rows[row].extents[d], shape[d]);
    if (!good)
        return keel_fail(KEEL_MISMATCH,
                         "tensor %s: its shape does not fit GPT-2 of width %" PRIu64
                         " (matrices are [in, out]); import it with --names keel if it is another model",
                         name, model->extents[WIDTH]);
    if (of_layer(&rows[row]) && layer >= model->layers)
        model->layers = layer + 1;
    model->seen[of_layer(&rows[row]) ? layer : KEEL_GPT2_LAYERS_MAX] |= 1U << row;
    return KEEL_OK;
}

static bool any_bias(const struct keel_gpt2 *model)
{
    uint32_t all = 0;
    for (uint32_t i = 0; i <= KEEL_GPT2_LAYERS_MAX; i++)
        all |= model->seen[i];
    for (uint32_t row = 0; row < ROWS; row++)
        if (rows[row].need == BIAS && (all & 1U << row) != 0)
            return true;
    return false;
}

/* Of one layer, or of the model (`layer` is KEEL_GPT2_LAYERS_MAX). */
static enum keel_status check_rows(const struct keel_gpt2 *model, uint32_t layer, bool bias)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        bool needed = rows[row].need == ALWAYS || (rows[row].need == BIAS && bias);
        bool here = of_layer(&rows[row]) == (layer < KEEL_GPT2_LAYERS_MAX);
        if (!needed || !here || (model->seen[layer] & 1U << row) != 0)
            continue;
        if (layer < KEEL_GPT2_LAYERS_MAX)
            return keel_fail(KEEL_NOT_FOUND, "no tensor h.%" PRIu32 "%s: not a whole GPT-2", layer,
                             rows[row].name + strlen("h.#"));
        return keel_fail(KEEL_NOT_FOUND, "no tensor %s: not a whole GPT-2", rows[row].name);
    }
    return KEEL_OK;
}

enum keel_status keel_gpt2_check(const struct keel_gpt2 *model)
{
    bool bias = any_bias(model);
    KEEL_TRY(check_rows(model, KEEL_GPT2_LAYERS_MAX, bias));
    if (model->layers == 0)
        return keel_fail(KEEL_NOT_FOUND, "no tensor h.0.ln_1.weight: not a whole GPT-2");
    for (uint32_t layer = 0; layer < model->layers; layer++)
        KEEL_TRY(check_rows(model, layer, bias));
    return KEEL_OK;
}
