/* golden.c - runs golden cases: operands with guards around them, launches, what came of it.
 *
 * Owns the memory of a run. Leaves to golden_NAME.c which cases there are. */
#include "golden_internal.h"

#include <inttypes.h>
#include <keel/bits.h>
#include <keel/health.h>
#include <stdio.h>
#include <string.h>

enum { GUARD_BYTES = 256 };

/* ---- numbers ---- */

static uint64_t mix(uint64_t z) /* the finaliser of splitmix64 */
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint32_t next_word(struct golden_run *run)
{
    run->random += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mix(run->random) >> 32);
}

/* What lies at byte `at` of operand `operand`, where that is a guard: neighbours differ, so that what is
 * copied from guard to guard shows as well. */
static uint8_t guard_byte(uint32_t operand, uint64_t at)
{
    return (uint8_t)(mix(((uint64_t)operand << 32) + at + 1) >> 56);
}

/* ---- operands ---- */

static uint64_t image_bytes(const struct golden_run *run, const struct golden_operand *operand)
{
    return operand->bytes + 2 * run->guard_bytes;
}

static void fill_guards(const struct golden_run *run, const struct golden_operand *operand)
{
    const uint32_t number = (uint32_t)(operand - run->operands);
    const uint64_t behind = run->guard_bytes + operand->bytes;
    for (uint64_t i = 0; i < run->guard_bytes; i++) {
        operand->sent[i] = guard_byte(number, i);
        operand->sent[behind + i] = guard_byte(number, behind + i);
    }
}

static enum keel_status create_operand(struct golden_run *run, struct golden_operand *operand)
{
    struct keel_device *device = keel_kernels_device(run->kernels);
    KEEL_TRY(keel_alloc(image_bytes(run, operand), 1, &operand->sent));
    KEEL_TRY(keel_alloc(image_bytes(run, operand), 1, &operand->back));
    KEEL_TRY(keel_buffer_create(device, image_bytes(run, operand), &operand->whole));
    if (run->guard_bytes == 0)
        operand->middle = operand->whole;
    else
        KEEL_TRY(keel_buffer_slice(operand->whole, run->guard_bytes, operand->bytes, &operand->middle));
    fill_guards(run, operand);
    return KEEL_OK;
}

/* The next operand of a run, its data still zero; NULL while measuring, and after an error. */
static struct golden_operand *add_operand(struct golden_run *run, const char *name, enum golden_role role,
                                          uint64_t bytes)
{
    KEEL_ASSERT(run->operand_count < GOLDEN_OPERANDS_MAX);
    struct golden_operand *operand = &run->operands[run->operand_count++];
    *operand = (struct golden_operand){.name = name, .role = role, .bytes = bytes};
    if (run->status == KEEL_OK && !run->measuring)
        run->status = create_operand(run, operand);
    return golden_ready(run) ? operand : NULL;
}

struct keel_buffer *golden_floats(struct golden_run *run, const char *name, enum golden_role role,
                                  uint64_t count, float low, float high)
{
    struct golden_operand *operand = add_operand(run, name, role, count * sizeof(float));
    if (operand == NULL)
        return NULL;
    for (uint64_t i = 0; i < count; i++) {
        const float unit = (float)(next_word(run) >> 8) * 0x1p-24F;
        const float value = low + (high - low) * unit;
        memcpy(operand->sent + run->guard_bytes + i * sizeof value, &value, sizeof value);
    }
    return operand->middle;
}

struct keel_buffer *golden_ids(struct golden_run *run, const char *name, uint64_t count, uint32_t below)
{
    struct golden_operand *operand = add_operand(run, name, GOLDEN_INPUT, count * sizeof(int32_t));
    if (operand == NULL)
        return NULL;
    for (uint64_t i = 0; i < count; i++) {
        const int32_t id = (int32_t)(next_word(run) % below);
        memcpy(operand->sent + run->guard_bytes + i * sizeof id, &id, sizeof id);
    }
    return operand->middle;
}

struct keel_buffer *golden_bits(struct golden_run *run, const char *name, uint64_t bytes)
{
    struct golden_operand *operand = add_operand(run, name, GOLDEN_INPUT, bytes);
    if (operand == NULL)
        return NULL;
    for (uint64_t i = 0; i < bytes; i++)
        operand->sent[run->guard_bytes + i] = (uint8_t)(next_word(run) >> 24);
    return operand->middle;
}

struct keel_buffer *golden_bytes(struct golden_run *run, const char *name, enum golden_role role,
                                 const void *data, uint64_t bytes)
{
    struct golden_operand *operand = add_operand(run, name, role, bytes);
    if (operand == NULL)
        return NULL;
    memcpy(operand->sent + run->guard_bytes, data, keel_size(bytes));
    return operand->middle;
}

struct keel_buffer *golden_written(struct golden_run *run, const char *name, enum golden_role role,
                                   uint64_t bytes)
{
    struct golden_operand *operand = add_operand(run, name, role, bytes);
    if (operand == NULL)
        return NULL;
    memset(operand->sent + run->guard_bytes, 0xff, keel_size(bytes)); /* NaN, where it is read as floats */
    return operand->middle;
}

/* ---- a run ---- */

void golden_run_fini(struct golden_run *run)
{
    keel_launch_list_fini(&run->list);
    for (uint32_t i = 0; i < run->operand_count; i++) {
        struct golden_operand *operand = &run->operands[i];
        if (operand->middle != NULL && operand->middle != operand->whole)
            keel_buffer_destroy(operand->middle);
        if (operand->whole != NULL)
            keel_buffer_destroy(operand->whole);
        keel_free(operand->sent);
        keel_free(operand->back);
    }
}

struct keel_buffer *golden_control(struct golden_run *run, float max_norm)
{
    const struct keel_control block = {
        .seed_lo = 0x243f6a88U,
        .seed_hi = 0x85a308d3U,
        .step = 13,
        .microbatch = 5,
        .learning_rate = 0x1.3a92a3p-10F,
        .beta1 = 0x1.cccccdp-1F,
        .beta2 = 0x1.fbe76cp-1F,
        .bias1 = keel_adam_bias(0x1.cccccdp-1F, 14),
        .bias2 = keel_adam_bias(0x1.fbe76cp-1F, 14),
        .epsilon = 0x1.5798eep-27F,
        .max_norm = max_norm,
        .momentum = 0x1.cccccdp-1F,
        .weight_decay = 0x1.99999ap-4F,
        .trust = 0x1.0624dep-10F,
    };
    return golden_bytes(run, "control", GOLDEN_INPUT, &block, sizeof block);
}

/* All operands to the device, or all back; enqueued. */
static enum keel_status transfer(const struct golden_run *run, struct keel_queue *queue, bool back)
{
    for (uint32_t i = 0; i < run->operand_count; i++) {
        const struct golden_operand *operand = &run->operands[i];
        const uint64_t bytes = image_bytes(run, operand);
        if (back)
            KEEL_TRY(keel_queue_read(queue, operand->whole, 0, operand->back, bytes, NULL, NULL));
        else
            KEEL_TRY(keel_queue_write(queue, operand->whole, 0, operand->sent, bytes, NULL, NULL));
    }
    return KEEL_OK;
}

/* A device that is HUNG or LOST is not waited for. */
static bool waits(const struct golden_run *run)
{
    struct keel_health_report report;
    keel_device_health(keel_kernels_device(run->kernels), &report);
    return report.health != KEEL_HEALTH_HUNG && report.health != KEEL_HEALTH_LOST;
}

/* Launches between the two transfers. Whatever fails, the queue is waited for; *out_runs: it may still touch
 * the memory of the run, for it was in vain, or the device is not waited for. */
static enum keel_status execute(const struct golden_run *run, struct keel_queue *queue, uint64_t deadline_ns,
                                bool *out_runs)
{
    enum keel_status status = transfer(run, queue, false);
    if (status == KEEL_OK)
        status = keel_launch_list_run(&run->list, queue);
    if (status == KEEL_OK)
        status = transfer(run, queue, true);
    if (status == KEEL_OK) {
        status = keel_queue_finish(queue, deadline_ns);
        *out_runs = status == KEEL_TIMEOUT || (status != KEEL_OK && !waits(run));
        return status;
    }
    char why[KEEL_DETAIL_BYTES];
    snprintf(why, sizeof why, "%s", keel_detail());
    *out_runs = keel_queue_finish(queue, deadline_ns) == KEEL_TIMEOUT || !waits(run);
    keel_detail_set(why);
    return status;
}

/* ---- what came of it ---- */

static uint64_t hash_written(const struct golden_run *run)
{
    uint64_t hash = KEEL_FNV1A_BEGIN;
    for (uint32_t i = 0; i < run->operand_count; i++) {
        const struct golden_operand *operand = &run->operands[i];
        if (operand->role == GOLDEN_OUTPUT || operand->role == GOLDEN_UPDATED)
            hash = keel_fnv1a(hash, operand->back + run->guard_bytes, keel_size(operand->bytes));
    }
    return hash;
}

/* The first byte of an operand that is not as it was though nobody may write it; false when there is none. */
static bool find_hit(const struct golden_run *run, const struct golden_operand *operand, uint64_t *out_at)
{
    const uint64_t behind = run->guard_bytes + operand->bytes;
    for (uint64_t at = 0; at < image_bytes(run, operand); at++) {
        const bool guard = at < run->guard_bytes || at >= behind;
        if ((guard || operand->role == GOLDEN_INPUT) && operand->back[at] != operand->sent[at]) {
            *out_at = at;
            return true;
        }
    }
    return false;
}

static struct keel_golden_result judge(const struct golden_run *run, uint64_t expected)
{
    struct keel_golden_result result = {.hash = hash_written(run), .expected = expected, .intact = true};
    result.matches = result.hash == expected;
    for (uint32_t i = 0; i < run->operand_count && result.intact; i++) {
        uint64_t at = 0;
        if (!find_hit(run, &run->operands[i], &at))
            continue;
        result.intact = false;
        result.hit_buffer = run->operands[i].name;
        result.hit_offset_bytes = (int64_t)at - (int64_t)run->guard_bytes;
    }
    return result;
}

/* What is wrong is read once more: a flip on the way from the device is none of the operation's. */
static enum keel_status judge_again(const struct golden_run *run, struct keel_queue *queue,
                                    uint64_t deadline_ns, struct keel_golden_result *result)
{
    enum keel_status status = transfer(run, queue, true);
    if (status == KEEL_OK)
        status = keel_queue_finish(queue, deadline_ns);
    else if (keel_queue_finish(queue, deadline_ns) == KEEL_TIMEOUT)
        status = KEEL_TIMEOUT;
    KEEL_TRY(status);
    const struct keel_golden_result again = judge(run, result->expected);
    result->transfer = again.matches && again.intact;
    return KEEL_OK;
}

/* Guards are a multiple of what slices are aligned to. */
static uint64_t guard_bytes_on(const struct keel_kernels *kernels, uint64_t least)
{
    const uint64_t align = keel_device_info(keel_kernels_device(kernels))->base_align_bytes;
    return align > 1 ? (least + align - 1) / align * align : least;
}

static const struct golden_family *const families[] = {
#define FAMILY_ADDRESS(name) &golden_##name,
    GOLDEN_FAMILIES(FAMILY_ADDRESS)
#undef FAMILY_ADDRESS
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* How many of a family's cases kernels of a class have. */
static uint32_t count_of(const struct golden_family *family, enum keel_class numerics)
{
    return family->numerics == KEEL_CANONICAL || family->numerics == numerics ? family->count : 0;
}

static const struct golden_case *find_case(enum keel_class numerics, uint32_t index)
{
    uint32_t family = 0;
    for (; family < FAMILIES && index >= count_of(families[family], numerics); family++)
        index -= count_of(families[family], numerics);
    KEEL_ASSERT(family < FAMILIES);
    return &families[family]->cases[index];
}

enum keel_status golden_build(struct golden_run *run, uint32_t index)
{
    const struct golden_case *golden = find_case(run->numerics, index);
    run->random = keel_fnv1a(KEEL_FNV1A_BEGIN, golden->name, strlen(golden->name));
    enum keel_status status = golden->build(run, golden->shape);
    return run->status != KEEL_OK ? run->status : status;
}

enum keel_status golden_run_guarded(struct keel_kernels *kernels, struct keel_queue *queue, uint32_t index,
                                    uint64_t guard_bytes, uint64_t deadline_ns,
                                    struct keel_golden_result *out)
{
    struct golden_run run = {.kernels = kernels,
                             .numerics = keel_kernels_class(kernels),
                             .guard_bytes = guard_bytes_on(kernels, guard_bytes)};
    bool runs = false;
    enum keel_status status = golden_build(&run, index);
    if (status == KEEL_OK)
        status = execute(&run, queue, deadline_ns, &runs);
    if (status == KEEL_OK)
        *out = judge(&run, find_case(run.numerics, index)->expected);
    if (status == KEEL_OK && !(out->matches && out->intact))
        status = judge_again(&run, queue, deadline_ns, out);
    if (!runs && (status == KEEL_OK || (status != KEEL_TIMEOUT && waits(&run))))
        golden_run_fini(&run);
    return status;
}

/* ---- keel/golden.h ---- */

uint32_t keel_golden_count(enum keel_class numerics)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < FAMILIES; i++)
        count += count_of(families[i], numerics);
    return count;
}

struct keel_golden keel_golden_get(enum keel_class numerics, uint32_t index)
{
    const struct golden_case *golden = find_case(numerics, index);
    struct golden_run run = {.numerics = numerics, .measuring = true};
    uint64_t bytes = 0;
    (void)golden_build(&run, index); /* measuring cannot fail */
    for (uint32_t i = 0; i < run.operand_count; i++)
        bytes += run.operands[i].bytes;
    return (struct keel_golden){
        .name = golden->name,
        .op = golden->op,
        .module = keel_kernels_module_name(golden->module),
        .bytes = bytes,
        .expected = golden->expected,
    };
}

void keel_golden_describe(const struct keel_golden_result *result, char *out, size_t out_bytes)
{
    if (result->transfer && !result->intact)
        snprintf(out, out_bytes,
                 "had byte %" PRId64 " of %s wrong as it was read, and right when it was read again: the "
                 "transfer from the board",
                 result->hit_offset_bytes, result->hit_buffer);
    else if (result->transfer)
        snprintf(out, out_bytes,
                 "had hash %016" PRIx64 " as it was read, and %016" PRIx64
                 ", which is right, when it was read again: the transfer from the board",
                 result->hash, result->expected);
    else if (!result->intact)
        snprintf(out, out_bytes, "has byte %" PRId64 " of %s changed, which it may not write",
                 result->hit_offset_bytes, result->hit_buffer);
    else
        snprintf(out, out_bytes, "has hash %016" PRIx64 ", and %016" PRIx64 " is right", result->hash,
                 result->expected);
}

enum keel_status keel_golden_run(struct keel_kernels *kernels, struct keel_queue *queue, uint32_t index,
                                 uint64_t deadline_ns, struct keel_golden_result *out)
{
    return golden_run_guarded(kernels, queue, index, GUARD_BYTES, deadline_ns, out);
}

enum keel_status keel_golden_warm(struct keel_kernels *kernels, struct keel_queue *queue,
                                  uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < keel_golden_count(keel_kernels_class(kernels)); i++) {
        struct keel_golden_result ignored;
        KEEL_TRY(keel_golden_run(kernels, queue, i, deadline_ns, &ignored));
    }
    return KEEL_OK;
}
