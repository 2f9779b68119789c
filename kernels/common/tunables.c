/* tunables.c - the knobs of the kernels: which there are, what a device gets, what the compiler is told.
 *
 * Owns names, values and defaults. Leaves to others what a value does: the .cl files read the macros, the
 * descriptors ask keel_kernels_setting. No value of any changes a bit of canonical kernels (golden_test.c).
 */
#include "kernels_internal.h"

#include <stdio.h>
#include <string.h>

struct row {
    struct keel_tunable tunable;
    const char *macro;          /* NULL: the compiler need not know */
    enum keel_module_id module; /* KEEL_MODULE_COUNT: all */
};

static const uint32_t lane_values[] = {0, 1, 2};
static const uint32_t group_values[] = {1, 8, 16, 32, 64, 128, 256};
static const uint32_t element_values[] = {16, 64, 256, 1024, 4096, 16384};
static const uint32_t row_values[] = {1, KEEL_LANES};
static const uint32_t depth_values[] = {32, 64, 128, 256, 384, 512};
static const uint32_t rows_values[] = {32, 64, 128, 256, 512};
static const uint32_t strip_values[] = {1, 2, 4, 8, 16};
static const uint32_t items_values[] = {1, 64, 128, 256};
static const uint32_t sums_values[] = {4, 8};
static const uint32_t item_depth_values[] = {8, 16, 32};
static const uint32_t attention_items_values[] = {1, 64, 256};
static const uint32_t provider_values[] = {0, 1};
static const uint32_t block_values[] = {16, 32, 64, 128, 256};
static const uint32_t kept_values[] = {16, 64, 256, 1024, 2048, 4096, 8192};
#define VALUES(array) array, (uint32_t)(sizeof(array) / sizeof(array)[0])

static const struct row rows[KEEL_TUNABLE_COUNT] = {
    [KEEL_TUNABLE_BY_LANE] = {{"canon.by_lane",
                               "0 vectors of 16, 1 folds lane by lane, 2 all lane by lane: a "
                               "sixteenth of the code, where a device has no vectors and no fma",
                               VALUES(lane_values), false},
                              "KEEL_BY_LANE",
                              KEEL_MODULE_COUNT},
    [KEEL_TUNABLE_GROUP_ITEMS] = {{"launch.group_items",
                                   "work-items to a group of kernels that go by rows, "
                                   "columns or elements",
                                   VALUES(group_values), false},
                                  NULL,
                                  KEEL_MODULE_COUNT},
    [KEEL_TUNABLE_ITEM_ELEMENTS] = {{"launch.item_elements",
                                     "elements to a work-item of kernels that go by elements",
                                     VALUES(element_values), false},
                                    NULL,
                                    KEEL_MODULE_COUNT},
    [KEEL_TUNABLE_ROW_ITEMS] = {{"launch.row_items",
                                 "work-items that share a row: 1 with vectors of 16, 16 with a lane each",
                                 VALUES(row_values), false},
                                "KEEL_ROW_ITEMS",
                                KEEL_MODULE_COUNT},
    [KEEL_TUNABLE_GEMM_ITEMS] = {{"gemm.items",
                                  "work-items to a group: 1 with vectors, for processors; more with a tile "
                                  "of C in their registers",
                                  VALUES(items_values), false},
                                 "KEEL_GEMM_ITEMS",
                                 KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_ITEM_ROWS] = {{"gemm.item_rows", "rows of C to a work-item of many",
                                      VALUES(sums_values), false},
                                     "KEEL_GEMM_ITEM_ROWS",
                                     KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_ITEM_COLUMNS] = {{"gemm.item_columns", "columns of C to a work-item of many",
                                         VALUES(sums_values), false},
                                        "KEEL_GEMM_ITEM_COLUMNS",
                                        KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_ITEM_DEPTH] = {{"gemm.item_depth",
                                       "k of A and B that many work-items have in local memory",
                                       VALUES(item_depth_values), false},
                                      "KEEL_GEMM_ITEM_DEPTH",
                                      KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_DEPTH] = {{"gemm.depth", "k of B that lies in local memory, times 48 columns",
                                  VALUES(depth_values), false},
                                 "KEEL_GEMM_DEPTH",
                                 KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_ROWS] = {{"gemm.rows",
                                 "rows of C to a group at most, in local memory, times 48 columns",
                                 VALUES(rows_values), false},
                                "KEEL_GEMM_ROWS",
                                KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_STRIPS] = {{"gemm.strips",
                                   "strips of 48 columns to a group at most, whose sums lie in local "
                                   "memory, times the rows",
                                   VALUES(strip_values), false},
                                  "KEEL_GEMM_STRIPS",
                                  KEEL_MODULE_gemm},
    [KEEL_TUNABLE_GEMM_PROVIDER] = {{"gemm.provider",
                                     "who computes products of native kernels: 0 our own, 1 CLBlast",
                                     VALUES(provider_values), true},
                                    NULL,
                                    KEEL_MODULE_gemm},
    [KEEL_TUNABLE_ATTENTION_ITEMS] = {{"attention.items",
                                       "work-items to a group: 1 with vectors, for processors; more with "
                                       "4 x 4 of a block of queries and keys each",
                                       VALUES(attention_items_values), false},
                                      "KEEL_ATTENTION_ITEMS",
                                      KEEL_MODULE_attention},
    [KEEL_TUNABLE_ATTENTION_BLOCK] = {{"attention.block", "keys, or queries, that are taken at a time",
                                       VALUES(block_values), false},
                                      "KEEL_ATTENTION_BLOCK",
                                      KEEL_MODULE_attention},
    [KEEL_TUNABLE_ATTENTION_KEPT] = {{"attention.kept",
                                      "keys whose scores wait in local memory for the largest, others "
                                      "are computed twice",
                                      VALUES(kept_values), false},
                                     "KEEL_ATTENTION_KEPT",
                                     KEEL_MODULE_attention},
};

uint32_t keel_tunable_count(void)
{
    return KEEL_TUNABLE_COUNT;
}

struct keel_tunable keel_tunable_get(uint32_t index)
{
    KEEL_ASSERT(index < KEEL_TUNABLE_COUNT);
    return rows[index].tunable;
}

/* ---- what fits a device ---- */

struct keel_gemm_shape keel_gemm_shape(const uint32_t values[KEEL_TUNABLE_COUNT], uint32_t shape)
{
    enum { ITEMS_LEAST = 64, SUMS = 4 };
    const bool own = shape == KEEL_GEMM_SHAPE_OWN;
    const uint32_t all = values[KEEL_TUNABLE_GEMM_ITEMS], depth = values[KEEL_TUNABLE_GEMM_ITEM_DEPTH];
    const uint32_t items = own ? all : all > ITEMS_LEAST ? all / 2 : ITEMS_LEAST;
    const uint32_t across = items > ITEMS_LEAST ? 16 : 8;
    return (struct keel_gemm_shape){
        .rows = items / across * (own ? values[KEEL_TUNABLE_GEMM_ITEM_ROWS] : SUMS),
        .columns = across * (own ? values[KEEL_TUNABLE_GEMM_ITEM_COLUMNS] : SUMS),
        .items = items,
        .depth = own ? depth : 2 * depth,
    };
}

/* The largest local arrays of a module's kernels: those of gemm.cl (gemm_lanes.h, gemm_strips.h) and
 * attention.cl. */
static uint64_t gemm_lanes_bytes(const uint32_t values[KEEL_TUNABLE_COUNT])
{
    enum { STAGE_ROWS = 8, ROW_PAD = 4, BUFFERS = 2 };
    uint64_t most = 0;
    for (uint32_t i = 0; i < KEEL_GEMM_SHAPES; i++) {
        const struct keel_gemm_shape shape = keel_gemm_shape(values, i);
        const uint64_t stage = KEEL_BYTES(shape.items, STAGE_ROWS, sizeof(float));
        const uint64_t tiles =
            KEEL_BYTES(BUFFERS, shape.depth, shape.rows + shape.columns + 2 * ROW_PAD, sizeof(float));
        most = tiles > most ? tiles : most;
        most = stage > most ? stage : most;
    }
    return most;
}

static uint64_t gemm_strips_bytes(const struct keel_device_info *info,
                                  const uint32_t values[KEEL_TUNABLE_COUNT])
{
    const uint64_t depth = values[KEEL_TUNABLE_GEMM_DEPTH], rows_max = values[KEEL_TUNABLE_GEMM_ROWS];
    const uint64_t packed = keel_device_local_size(info) == KEEL_LOCAL_LARGE ? rows_max : 16;
    return KEEL_BYTES(48 * (depth + rows_max * values[KEEL_TUNABLE_GEMM_STRIPS]) +
                          packed / 8 * (8 * depth + 16),
                      sizeof(float));
}

static uint64_t gemm_local_bytes(const struct keel_device_info *info,
                                 const uint32_t values[KEEL_TUNABLE_COUNT])
{
    return values[KEEL_TUNABLE_GEMM_ITEMS] > 1 ? gemm_lanes_bytes(values) : gemm_strips_bytes(info, values);
}

/* Partial sums of slices of k wait beside the tiles: of eight slices where all strips have four tiles. A
 * cache lends that much without cost to other products; where local memory is apart, groups share it. */
enum { GEMM_TILES_WAITING = 3 };
uint32_t keel_gemm_arena_floats(const struct keel_device_info *info,
                                const uint32_t values[KEEL_TUNABLE_COUNT])
{
    const uint64_t tiles = gemm_local_bytes(info, values);
    if (keel_device_local_size(info) != KEEL_LOCAL_LARGE || values[KEEL_TUNABLE_GEMM_ITEMS] > 1)
        return (uint32_t)(tiles / sizeof(float));
    const uint64_t more = KEEL_BYTES(48 * GEMM_TILES_WAITING, values[KEEL_TUNABLE_GEMM_ROWS],
                                     values[KEEL_TUNABLE_GEMM_STRIPS], sizeof(float));
    const uint64_t limit = info->kind == KEEL_DEVICE_HOST ? UINT64_MAX : info->local_bytes;
    return (uint32_t)((tiles + more < limit ? tiles + more : limit) / sizeof(float));
}

/* Of attention_lanes.h: operands, weights and sums. */
static uint64_t attention_lanes_bytes(uint32_t items)
{
    enum { DEPTH = 16, ROW_PAD = 4 };
    const uint64_t block = items > 64 ? 64 : 32;
    return KEEL_BYTES((2 * DEPTH + block) * (block + ROW_PAD) + block, sizeof(float));
}

static uint64_t attention_local_bytes(const struct keel_device_info *info,
                                      const uint32_t values[KEEL_TUNABLE_COUNT])
{
    if (values[KEEL_TUNABLE_ATTENTION_ITEMS] > 1)
        return attention_lanes_bytes(values[KEEL_TUNABLE_ATTENTION_ITEMS]);
    const bool large = keel_device_local_size(info) == KEEL_LOCAL_LARGE;
    const uint32_t width = large ? 256 : 128, block = values[KEEL_TUNABLE_ATTENTION_BLOCK];
    const uint32_t kept = values[KEEL_TUNABLE_ATTENTION_KEPT], copy = large ? 128 : 64; /* rows of lanes */
    const uint64_t forward = 2 * width + (kept > block ? kept : block) + block + copy;
    const uint64_t backward = 5 * width + 8 + 2 * block + copy;
    return KEEL_BYTES(forward > backward ? forward : backward, KEEL_LANES, large ? 2 : 1, sizeof(float));
}

/* Attention's arrays lie in private memory where local memory does not hold the least of them. No driver
 * tells how much of that there is. */
enum { ATTENTION_LOCAL_BYTES = 49152, ATTENTION_PRIVATE_BYTES = 65536 };
static bool attention_is_private(const struct keel_device_info *info,
                                 const uint32_t values[KEEL_TUNABLE_COUNT])
{
    return values[KEEL_TUNABLE_ATTENTION_ITEMS] == 1 && info->kind != KEEL_DEVICE_HOST &&
           info->local_bytes < ATTENTION_LOCAL_BYTES;
}

static enum keel_status check_device(const struct keel_device_info *info,
                                     const uint32_t values[KEEL_TUNABLE_COUNT])
{
    if (info->kind == KEEL_DEVICE_HOST)
        return KEEL_OK;
    const uint64_t gemm = gemm_local_bytes(info, values), attention = attention_local_bytes(info, values);
    const bool private = attention_is_private(info, values);
    const uint64_t room = private ? ATTENTION_PRIVATE_BYTES : info->local_bytes;
    const uint32_t most = keel_device_line_items(info);
    if (values[KEEL_TUNABLE_GROUP_ITEMS] > most && values[KEEL_TUNABLE_GROUP_ITEMS] > 1)
        return keel_fail(KEEL_LIMIT, "launch.group_items = %u: groups of %s hold %u",
                         values[KEEL_TUNABLE_GROUP_ITEMS], info->selector, most);
    if (values[KEEL_TUNABLE_GROUP_ITEMS] % values[KEEL_TUNABLE_ROW_ITEMS] != 0)
        return keel_fail(KEEL_LIMIT, "launch.row_items = %u: no whole rows in launch.group_items = %u",
                         values[KEEL_TUNABLE_ROW_ITEMS], values[KEEL_TUNABLE_GROUP_ITEMS]);
    if (values[KEEL_TUNABLE_GEMM_ITEMS] > most && values[KEEL_TUNABLE_GEMM_ITEMS] > 1)
        return keel_fail(KEEL_LIMIT, "gemm.items = %u: groups of %s hold %u", values[KEEL_TUNABLE_GEMM_ITEMS],
                         info->selector, most);
    if (values[KEEL_TUNABLE_ATTENTION_ITEMS] > most && values[KEEL_TUNABLE_ATTENTION_ITEMS] > 1)
        return keel_fail(KEEL_LIMIT, "attention.items = %u: groups of %s hold %u",
                         values[KEEL_TUNABLE_ATTENTION_ITEMS], info->selector, most);
    if (gemm > info->local_bytes)
        return keel_fail(KEEL_LIMIT,
                         "%s: take %llu bytes of local memory, %s has %llu: "
                         "set a smaller one",
                         values[KEEL_TUNABLE_GEMM_ITEMS] > 1
                             ? "gemm.item_depth, gemm.item_rows, gemm.item_columns and gemm.items"
                             : "gemm.depth, gemm.rows and gemm.strips",
                         (unsigned long long)gemm, info->selector, (unsigned long long)info->local_bytes);
    if (attention > room)
        return keel_fail(KEEL_LIMIT,
                         "attention.items, attention.block and attention.kept: take %llu bytes of %s memory, "
                         "%s has %llu for "
                         "them: set a smaller one",
                         (unsigned long long)attention, private ? "private" : "local", info->selector,
                         (unsigned long long)room);
    return KEEL_OK;
}

/* The next smaller value; false when there is none. */
static bool shrink(uint32_t index, uint32_t values[KEEL_TUNABLE_COUNT])
{
    const struct keel_tunable *tunable = &rows[index].tunable;
    for (uint32_t i = tunable->value_count; i-- > 0;) {
        if (tunable->values[i] < values[index]) {
            values[index] = tunable->values[i];
            return true;
        }
    }
    return false;
}

/* Values as large as the device has room for, and at most what they are. */
static void fit(const struct keel_device_info *info, uint32_t values[KEEL_TUNABLE_COUNT])
{
    while (gemm_lanes_bytes(values) > info->local_bytes &&
           (shrink(KEEL_TUNABLE_GEMM_ITEM_DEPTH, values) || shrink(KEEL_TUNABLE_GEMM_ITEM_ROWS, values) ||
            shrink(KEEL_TUNABLE_GEMM_ITEM_COLUMNS, values) || shrink(KEEL_TUNABLE_GEMM_ITEMS, values)))
        continue;
    while (gemm_strips_bytes(info, values) > info->local_bytes &&
           (shrink(KEEL_TUNABLE_GEMM_STRIPS, values) || shrink(KEEL_TUNABLE_GEMM_ROWS, values) ||
            shrink(KEEL_TUNABLE_GEMM_DEPTH, values)))
        continue;
    while (attention_local_bytes(info, values) >
               (attention_is_private(info, values) ? ATTENTION_PRIVATE_BYTES : info->local_bytes) &&
           (shrink(KEEL_TUNABLE_ATTENTION_ITEMS, values) || shrink(KEEL_TUNABLE_ATTENTION_KEPT, values) ||
            shrink(KEEL_TUNABLE_ATTENTION_BLOCK, values)))
        continue;
}

/* ---- settings ---- */

/* From here on the scores of 4096 keys or more, 128 bytes each, may wait in local memory. */
enum { KEPT_MANY_BYTES = 1 << 20 };

/* The largest value of a tunable that is no more than `limit`, or its smallest. */
static uint32_t most_of(uint32_t index, uint32_t limit)
{
    uint32_t best = rows[index].tunable.values[0];
    for (uint32_t i = 0; i < rows[index].tunable.value_count; i++)
        best = rows[index].tunable.values[i] <= limit ? rows[index].tunable.values[i] : best;
    return best;
}

/* Two groups of 128 on a unit wait for memory in turn: faster than one of 256 at every large product on an
 * H100. */
enum { GEMM_ITEMS_BEST = 128 };

static void defaults(const struct keel_device_info *info, uint32_t values[KEEL_TUNABLE_COUNT])
{
    const bool many = keel_device_many_lanes(info);
    const bool few_wide = info->kind == KEEL_DEVICE_HOST || (info->kind == KEEL_DEVICE_CPU && !many);
    const bool large = keel_device_local_size(info) == KEEL_LOCAL_LARGE;
    const uint32_t most = keel_device_line_items(info), limit = most != 0 ? most : 1;
    const bool fused = info->kind == KEEL_DEVICE_HOST || (info->numerics & KEEL_NUMERICS_FMA) != 0;
    values[KEEL_TUNABLE_BY_LANE] = fused ? 0 : 2;
    values[KEEL_TUNABLE_GROUP_ITEMS] =
        few_wide ? 1
                 : most_of(KEEL_TUNABLE_GROUP_ITEMS,
                           limit < KEEL_GROUP_ITEMS_MANY ? limit : KEEL_GROUP_ITEMS_MANY);
    values[KEEL_TUNABLE_ITEM_ELEMENTS] = !few_wide ? KEEL_LANES : fused ? KEEL_ITEM_ELEMENTS_WIDE : 256;
    values[KEEL_TUNABLE_ROW_ITEMS] =
        many && values[KEEL_TUNABLE_GROUP_ITEMS] % KEEL_LANES == 0 ? KEEL_LANES : 1;
    values[KEEL_TUNABLE_GEMM_DEPTH] = large ? 128 : 64;
    values[KEEL_TUNABLE_GEMM_ROWS] = large ? 256 : fused ? 64 : 32;
    values[KEEL_TUNABLE_GEMM_STRIPS] = large ? 8 : 1;
    values[KEEL_TUNABLE_GEMM_ITEMS] =
        many ? most_of(KEEL_TUNABLE_GEMM_ITEMS, limit < GEMM_ITEMS_BEST ? limit : GEMM_ITEMS_BEST) : 1;
    values[KEEL_TUNABLE_GEMM_ITEM_ROWS] = values[KEEL_TUNABLE_GEMM_ITEM_COLUMNS] = 8;
    values[KEEL_TUNABLE_GEMM_ITEM_DEPTH] = values[KEEL_TUNABLE_GEMM_ITEMS] == 64 ? 8 : 16;
    values[KEEL_TUNABLE_GEMM_PROVIDER] = info->kind == KEEL_DEVICE_GPU ? 1 : 0;
    values[KEEL_TUNABLE_ATTENTION_ITEMS] = many ? most_of(KEEL_TUNABLE_ATTENTION_ITEMS, limit) : 1;
    values[KEEL_TUNABLE_ATTENTION_BLOCK] = large ? 128 : 64;
    values[KEEL_TUNABLE_ATTENTION_KEPT] = !large ? 64 : info->local_bytes >= KEPT_MANY_BYTES ? 8192 : 1024;
    if (info->kind != KEEL_DEVICE_HOST)
        fit(info, values);
}

static enum keel_status find(const char *name, uint32_t *out)
{
    for (uint32_t i = 0; i < KEEL_TUNABLE_COUNT; i++) {
        if (strcmp(rows[i].tunable.name, name) == 0) {
            *out = i;
            return KEEL_OK;
        }
    }
    return keel_fail(KEEL_INVALID, "%s: kernels have no such tunable; keel board tune --list names them",
                     name);
}

static enum keel_status apply(const struct keel_setting *setting, uint32_t values[KEEL_TUNABLE_COUNT])
{
    uint32_t index = 0;
    KEEL_TRY(find(setting->name, &index));
    const struct keel_tunable *tunable = &rows[index].tunable;
    for (uint32_t i = 0; i < tunable->value_count; i++) {
        if (tunable->values[i] == setting->value) {
            values[index] = setting->value;
            return KEEL_OK;
        }
    }
    return keel_fail(
        KEEL_INVALID, "%s = %u: not one of its values, which are %u to %u; see keel board tune --list",
        setting->name, setting->value, tunable->values[0], tunable->values[tunable->value_count - 1]);
}

enum keel_status keel_tunables_apply(const struct keel_device_info *info, const struct keel_setting *settings,
                                     uint32_t setting_count, uint32_t values[KEEL_TUNABLE_COUNT])
{
    defaults(info, values);
    for (uint32_t i = 0; i < setting_count; i++)
        KEEL_TRY(apply(&settings[i], values));
    return check_device(info, values);
}

enum keel_status keel_kernels_check(const struct keel_device_info *info, const struct keel_setting *settings,
                                    uint32_t setting_count)
{
    uint32_t values[KEEL_TUNABLE_COUNT];
    return keel_tunables_apply(info, settings, setting_count, values);
}

void keel_tunables_build_options(const struct keel_device_info *info, enum keel_module_id module,
                                 const uint32_t values[KEEL_TUNABLE_COUNT],
                                 char out[KEEL_BUILD_OPTIONS_BYTES])
{
    static const char *const sizes[KEEL_LOCAL_SIZES] = {"-DKEEL_TINY_LOCAL", "", "-DKEEL_LARGE_LOCAL"};
    const bool private = module == KEEL_MODULE_attention && attention_is_private(info, values);
    const char *size = sizes[keel_device_local_size(info)];
    int length = snprintf(out, KEEL_BUILD_OPTIONS_BYTES, "%s%s%s", size, private && *size != '\0' ? " " : "",
                          private ? "-DKEEL_ATTENTION_PRIVATE" : "");
    for (uint32_t i = 0; i < KEEL_TUNABLE_COUNT; i++) {
        if (rows[i].macro == NULL || (rows[i].module != module && rows[i].module != KEEL_MODULE_COUNT))
            continue;
        length += snprintf(out + length, KEEL_BUILD_OPTIONS_BYTES - (size_t)length, "%s-D%s=%u",
                           length > 0 ? " " : "", rows[i].macro, values[i]);
        KEEL_ASSERT(length < KEEL_BUILD_OPTIONS_BYTES);
    }
    if (module == KEEL_MODULE_gemm)
        length += snprintf(out + length, KEEL_BUILD_OPTIONS_BYTES - (size_t)length, " -DKEEL_GEMM_ARENA=%u",
                           keel_gemm_arena_floats(info, values));
    KEEL_ASSERT(length < KEEL_BUILD_OPTIONS_BYTES);
}
