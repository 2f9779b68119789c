/* ckpt_cmd_diff.c - `keel ckpt diff`: what differs between two snapshots, tensor by tensor. */
#include "ckpt_cmd_tensors.h"
#include "float_convert.h"
#include "snapshot.h"
#include <float.h>
#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ELEMENTS = 1 << 20, WIDE_ELEMENTS = 1024, SIDES = 2, DIFFER_CODE = 1 };

/* Of one tensor that both have. */
struct difference {
    uint64_t elements, differing; /* differing: in any bit */
    uint64_t nonfinite;           /* of those, where either is NaN or infinite: not in the two below */
    double max_abs, max_relative; /* |a - b|, and that over the larger of |a| and |b| */
};

struct diff {
    const struct keel_command *cmd;
    const struct keel_cmd_place *places; /* of each side, as are */
    struct keel_snapshot *const *snapshots;
    uint8_t *blocks[SIDES];
    uint64_t done_bytes, total_bytes;
    struct keel_cmd_meter meter;
    FILE *text; /* kept until the end: a snapshot that is removed meanwhile makes it begin again */
    uint32_t equal, changed, different, only[SIDES];
    json_t *only_json[SIDES], *changed_json, *different_json; /* with --json */
};

/* ---- elements ----------------------------------------------------------------------------------------- */

/* Little-endian, `bytes` of them. */
static uint64_t whole_of(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}

/* Types without arithmetic here are numbers as their bits are: what differs is told, and by how many steps.
 */
static double real_of(enum keel_ckpt_dtype dtype, const uint8_t *at)
{
    float single;
    double real;
    int32_t small;
    int64_t large;
    switch (dtype) {
    case KEEL_CKPT_F64:
        memcpy(&real, at, sizeof real);
        return real;
    case KEEL_CKPT_I32:
        memcpy(&small, at, sizeof small);
        return small;
    case KEEL_CKPT_I64:
        memcpy(&large, at, sizeof large);
        return (double)large;
    case KEEL_CKPT_I8:
        return (int8_t)*at;
    case KEEL_CKPT_I16:
        return (int16_t)whole_of(at, 2);
    default:
        return (double)whole_of(at, keel_ckpt_dtype_bytes(dtype));
    case KEEL_CKPT_F32: /* the narrow ones were widened */
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
}

static double magnitude_of(double x)
{
    return x > 0 ? x : 0 - x; /* of -0 it is 0 */
}

static double larger_of(double x, double y)
{
    return x > y ? x : y;
}

static bool is_finite(double x)
{
    return magnitude_of(x) <= DBL_MAX; /* no comparison holds for NaN */
}

static double distance_of(enum keel_ckpt_dtype dtype, const uint8_t *a, const uint8_t *b)
{
    int64_t x, y;
    if (dtype == KEEL_CKPT_U64 || dtype == KEEL_CKPT_C64) {
        uint64_t u = whole_of(a, 8), v = whole_of(b, 8);
        return (double)(u > v ? u - v : v - u);
    }
    if (dtype != KEEL_CKPT_I64)
        return magnitude_of(real_of(dtype, a) - real_of(dtype, b));
    memcpy(&x, a, sizeof x); /* large ones that are neighbours are one and the same double */
    memcpy(&y, b, sizeof y);
    return (double)(x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x);
}

static void see_pair(struct difference *difference, enum keel_ckpt_dtype dtype, const uint8_t *a,
                     const uint8_t *b)
{
    double x = real_of(dtype, a), y = real_of(dtype, b);
    if (!is_finite(x) || !is_finite(y)) {
        difference->nonfinite++;
        return;
    }
    double distance = distance_of(dtype, a, b), larger = larger_of(magnitude_of(x), magnitude_of(y));
    distance = is_finite(distance) ? distance : DBL_MAX;
    difference->max_abs = larger_of(difference->max_abs, distance);
    if (larger > 0)
        difference->max_relative = larger_of(difference->max_relative, distance / larger);
}

static void see_block(struct difference *difference, enum keel_ckpt_dtype dtype, const uint8_t *a,
                      const uint8_t *b, size_t count)
{
    bool narrow = dtype == KEEL_CKPT_BF16 || dtype == KEEL_CKPT_F16;
    enum keel_ckpt_dtype wide_dtype = narrow ? KEEL_CKPT_F32 : dtype;
    size_t size = keel_ckpt_dtype_bytes(dtype), wide_size = keel_ckpt_dtype_bytes(wide_dtype);
    uint8_t wide[SIDES][WIDE_ELEMENTS * sizeof(float)];
    for (size_t from = 0; from < count; from += WIDE_ELEMENTS) {
        size_t here = count - from < WIDE_ELEMENTS ? count - from : WIDE_ELEMENTS;
        const uint8_t *x = a + from * size, *y = b + from * size;
        if (memcmp(x, y, here * size) == 0)
            continue;
        for (int side = 0; side < SIDES && narrow; side++)
            keel_float_convert(KEEL_CKPT_F32, dtype, side == 0 ? x : y, here, wide[side]);
        for (size_t i = 0; i < here; i++) {
            if (memcmp(x + i * size, y + i * size, size) == 0)
                continue;
            difference->differing++;
            see_pair(difference, wide_dtype, narrow ? wide[0] + i * wide_size : x + i * size,
                     narrow ? wide[1] + i * wide_size : y + i * size);
        }
    }
}

static enum keel_status compare_values(struct diff *d, const struct keel_region *tensor,
                                       struct difference *out)
{
    uint32_t size = keel_ckpt_dtype_bytes(tensor->dtype);
    *out = (struct difference){.elements = keel_region_bytes(tensor) / size};
    for (uint64_t first = 0; first < out->elements;) {
        uint64_t left = out->elements - first, here = left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
        for (int side = 0; side < SIDES; side++)
            KEEL_TRY(keel_snapshot_read_elements(d->snapshots[side], tensor, first, here, d->blocks[side]));
        see_block(out, tensor->dtype, d->blocks[0], d->blocks[1], keel_size(here));
        first += here;
        d->done_bytes += here * size;
        keel_cmd_meter_show(&d->meter, d->done_bytes, d->total_bytes);
    }
    return KEEL_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------- */

static bool same_kind(const struct keel_region *a, const struct keel_region *b)
{
    return a->dtype == b->dtype && a->dims == b->dims && memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

static void tell_only(struct diff *d, int side, const struct keel_region *tensor)
{
    d->only[side]++;
    keel_cmd_meter_hide(&d->meter);
    if (d->cmd->json)
        json_array_append_new(d->only_json[side], json_string(tensor->name));
    else
        fprintf(d->text, "only in %s: %s\n", d->places[side].path, tensor->name);
}

static void tell_changed(struct diff *d, const struct keel_region *a, const struct keel_region *b)
{
    d->changed++;
    keel_cmd_meter_hide(&d->meter);
    if (d->cmd->json) {
        json_array_append_new(d->changed_json,
                              json_pack("{s:s, s:[s, s], s:[o, o]}", "name", a->name, "dtype",
                                        keel_ckpt_dtype_name(a->dtype), keel_ckpt_dtype_name(b->dtype),
                                        "shape", keel_cmd_shape_json(a->shape, a->dims),
                                        keel_cmd_shape_json(b->shape, b->dims)));
        return;
    }
    char x[256], y[256];
    keel_cmd_format_shape(a, x, sizeof x);
    keel_cmd_format_shape(b, y, sizeof y);
    fprintf(d->text, "changed: %s: %s [%s], %s [%s]\n", a->name, keel_ckpt_dtype_name(a->dtype), x,
            keel_ckpt_dtype_name(b->dtype), y);
}

static void tell_different(struct diff *d, const struct keel_region *tensor,
                           const struct difference *difference)
{
    d->different++;
    keel_cmd_meter_hide(&d->meter);
    if (d->cmd->json) {
        json_array_append_new(d->different_json,
                              json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "name", tensor->name, "dtype",
                                        keel_ckpt_dtype_name(tensor->dtype), "elements",
                                        (json_int_t)difference->elements, "differing",
                                        (json_int_t)difference->differing, "nonfinite",
                                        (json_int_t)difference->nonfinite, "max_abs", difference->max_abs,
                                        "max_relative", difference->max_relative));
        return;
    }
    fprintf(d->text, "differs: %s: %" PRIu64 " of %" PRIu64 " elements, by at most %.9g, relative %.3g",
            tensor->name, difference->differing, difference->elements, difference->max_abs,
            difference->max_relative);
    if (difference->nonfinite > 0)
        fprintf(d->text, "; %" PRIu64 " not finite", difference->nonfinite);
    fprintf(d->text, "\n");
}

static enum keel_status see_both(struct diff *d, const struct keel_region *a, const struct keel_region *b)
{
    struct difference difference;
    if (!same_kind(a, b)) {
        tell_changed(d, a, b);
        return KEEL_OK;
    }
    KEEL_TRY(compare_values(d, a, &difference));
    if (difference.differing > 0)
        tell_different(d, a, &difference);
    else
        d->equal++;
    return KEEL_OK;
}

/* Both lists are ordered by name. Called twice: first to count the bytes that are to be read. */
static enum keel_status walk(struct diff *d, bool counting)
{
    uint32_t at[SIDES] = {0}, count[SIDES];
    for (int side = 0; side < SIDES; side++)
        count[side] = keel_snapshot_tensor_count(d->snapshots[side]);
    while (at[0] < count[0] || at[1] < count[1]) {
        struct keel_region tensors[SIDES];
        for (int side = 0; side < SIDES; side++)
            if (at[side] < count[side])
                KEEL_TRY(keel_snapshot_tensor(d->snapshots[side], at[side], &tensors[side]));
        int order = at[0] == count[0] ? 1 : at[1] == count[1] ? -1 : strcmp(tensors[0].name, tensors[1].name);
        at[0] += order <= 0;
        at[1] += order >= 0;
        if (counting)
            d->total_bytes +=
                order == 0 && same_kind(&tensors[0], &tensors[1]) ? keel_region_bytes(&tensors[0]) : 0;
        else if (order == 0)
            KEEL_TRY(see_both(d, &tensors[0], &tensors[1]));
        else
            tell_only(d, order < 0 ? 0 : 1, &tensors[order < 0 ? 0 : 1]);
    }
    return KEEL_OK;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static bool all_equal(const struct diff *d)
{
    return d->changed + d->different + d->only[0] + d->only[1] == 0;
}

static int print_end(struct diff *d)
{
    int code = all_equal(d) ? 0 : DIFFER_CODE;
    if (!d->cmd->json) {
        fprintf(d->text, "%u tensors equal, %u differ, %u of another type or shape, %u in one only\n",
                d->equal, d->different, d->changed, d->only[0] + d->only[1]);
        return code;
    }
    json_t *root = json_pack("{s:b, s:o, s:o, s:i, s:O, s:O, s:O, s:O}", "equal", all_equal(d), "a",
                             keel_cmd_info_json(keel_snapshot_info(d->snapshots[0])), "b",
                             keel_cmd_info_json(keel_snapshot_info(d->snapshots[1])), "equal_tensors",
                             (int)d->equal, "only_in_a", d->only_json[0], "only_in_b", d->only_json[1],
                             "changed", d->changed_json, "different", d->different_json);
    int printed = keel_cmd_print_json(root);
    return printed != 0 ? printed : code;
}

static enum keel_status read_both(struct diff *d)
{
    for (int side = 0; side < SIDES; side++)
        KEEL_TRY(keel_alloc((size_t)BLOCK_ELEMENTS * sizeof(double), 1, &d->blocks[side]));
    KEEL_TRY(walk(d, true));
    return walk(d, false);
}

struct compare {
    const struct keel_command *cmd;
    int code;
    char *text; /* what is told, of open_memstream: kept to the end, as it may begin again */
    size_t bytes;
};

static enum keel_status compare(void *context, const struct keel_cmd_place *places,
                                struct keel_snapshot *const *snapshots)
{
    struct compare *compare = context;
    free(compare->text);
    compare->text = NULL;
    struct diff d = {.cmd = compare->cmd,
                     .places = places,
                     .snapshots = snapshots,
                     .meter = keel_cmd_meter_of("diff"),
                     .text = open_memstream(&compare->text, &compare->bytes),
                     .only_json = {json_array(), json_array()},
                     .changed_json = json_array(),
                     .different_json = json_array()};
    enum keel_status status =
        d.text != NULL ? read_both(&d) : keel_fail(KEEL_NO_MEMORY, "no memory for the output");
    if (status == KEEL_OK)
        compare->code = print_end(&d);
    if (d.text != NULL)
        fclose(d.text);
    for (int side = 0; side < SIDES; side++) {
        keel_free(d.blocks[side]);
        json_decref(d.only_json[side]);
    }
    json_decref(d.changed_json);
    json_decref(d.different_json);
    return status;
}

static int run(const struct keel_command *cmd)
{
    struct compare what = {.cmd = cmd};
    enum keel_status status = keel_cmd_read(cmd, SIDES, compare, &what);
    if (what.text != NULL)
        fwrite(what.text, 1, what.bytes, stdout);
    free(what.text);
    return status == KEEL_OK ? what.code : keel_cmd_report(status);
}

const struct keel_command_kind keel_cmd_diff = {
    .name = "diff",
    .operands = "PATH PATH",
    .operands_min = 2,
    .operands_max = 2,
    .summary = "compare two snapshots, tensor by tensor",
    .details =
        "Prints nothing of tensors that have the same bits. Ends with 0 when all are equal, 1 when not.\n",
    .examples = "  keel ckpt diff out/ckpt/demo/step-80.1 out/ckpt/demo/step-120.3\n",
    .run = run};
