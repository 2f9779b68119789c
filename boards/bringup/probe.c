/* probe.c - the host's part of probe.cl, and its launches. */
#include "probe.h"
#include "check_steps.h"
#include <math.h>
#include <string.h>

static uint32_t grid_word(const size_t group[3], const size_t local[3], const size_t size[3])
{
    uint32_t word = 0;
    for (uint32_t d = 0; d < 3; d++) {
        word = keel_check_mix(word + (uint32_t)group[d]);
        word = keel_check_mix(word + (uint32_t)local[d]);
        word = keel_check_mix(word + (uint32_t)size[d]);
    }
    return word;
}

/* ---- on the host ---- */

static uint32_t scalar(const void *argument)
{
    uint32_t value;
    memcpy(&value, argument, sizeof value);
    return value;
}

static void host_slow(void *const *arguments, const struct keel_range *range)
{
    uint32_t *words = arguments[0], at = scalar(arguments[1]), count = scalar(arguments[2]);
    uint32_t steps = scalar(arguments[3]), value = scalar(arguments[4]), x = value | 1;
    (void)range;
    for (uint32_t i = 0; i < steps; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    value += x == 0;
    for (uint32_t i = 0; i < count; i++)
        words[at + i] = value + i;
}

static void host_copy(void *const *arguments, const struct keel_range *range)
{
    memcpy(arguments[1], arguments[0], range->global[0] * sizeof(uint32_t));
}

void keel_probe_grid(uint32_t *words, const struct keel_range *range)
{
    const size_t *size = range->local;
    for (size_t z = 0; z < range->global[2]; z++)
        for (size_t y = 0; y < range->global[1]; y++)
            for (size_t x = 0; x < range->global[0]; x++) {
                const size_t group[] = {x / size[0], y / size[1], z / size[2]};
                const size_t local[] = {x % size[0], y % size[1], z % size[2]};
                *words++ += grid_word(group, local, size);
            }
}

static void host_grid(void *const *arguments, const struct keel_range *range)
{
    keel_probe_grid(arguments[0], range);
}

static void host_step(void *const *arguments, const struct keel_range *range)
{
    uint32_t *words = arguments[0], at = scalar(arguments[1]);
    (void)range;
    words[at] = words[at] * 3 + scalar(arguments[2]);
}

static void host_class(void *const *arguments, const struct keel_range *range)
{
    const float *from = arguments[0];
    uint32_t *to = arguments[1];
    for (size_t i = 0; i < range->global[0]; i++)
        to[i] = isnan(from[i]) ? 1 : isinf(from[i]) ? 2 : 0;
}

extern const struct keel_packed_text keel_cl_probe;
static const struct keel_module_kernel kernels[KEEL_PROBE_KERNELS] = {
    [KEEL_PROBE_SLOW] = {"keel_probe_slow", host_slow},
    [KEEL_PROBE_COPY] = {"keel_probe_copy", host_copy},
    [KEEL_PROBE_GRID] = {"keel_probe_grid", host_grid},
    [KEEL_PROBE_STEP] = {"keel_probe_step", host_step},
    [KEEL_PROBE_CLASS] = {"keel_probe_class", host_class}};
static const struct keel_module module = {
    .name = "probe", .packed = &keel_cl_probe, .kernels = kernels, .kernel_count = KEEL_PROBE_KERNELS};

/* ---- opened for a check ---- */

bool keel_probe_init(struct keel_probe *probe, struct keel_check_run *run)
{
    const struct keel_device_info *info = run->on.info;
    if (info->kind != KEEL_DEVICE_HOST && (info->code_forms & KEEL_CODE_SOURCE) == 0) {
        keel_check_note(run, "not tried with kernels: the board does not compile");
        return false;
    }
    keel_check_progress(run, 0, 0, "building the probe's kernels");
    return keel_check_ok(run, keel_check_new_kernels(run, &module, "", probe->kernels), "plain kernels");
}

static struct keel_arg word(uint32_t value)
{
    return (struct keel_arg){.kind = KEEL_ARG_U32, .as.u32 = value};
}

static struct keel_arg memory(struct keel_buffer *buffer)
{
    return (struct keel_arg){.kind = KEEL_ARG_BUFFER, .as.buffer = buffer};
}

static const struct keel_range one = {.global = {1, 1, 1}, .local = {1, 1, 1}};

enum keel_status keel_probe_slow(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *words, uint32_t at, uint32_t count, uint32_t steps,
                                 uint32_t value, const struct keel_wait_list *waits,
                                 struct keel_event **event)
{
    const struct keel_arg args[] = {memory(words), word(at), word(count), word(steps), word(value)};
    return keel_queue_launch(queue, probe->kernels[KEEL_PROBE_SLOW], args, 5, &one, waits, event);
}

enum keel_status keel_probe_copy(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *from, struct keel_buffer *to, uint32_t count,
                                 const struct keel_wait_list *waits, struct keel_event **event)
{
    const struct keel_arg args[] = {memory(from), memory(to)};
    const struct keel_range range = {.global = {count, 1, 1}, .local = {1, 1, 1}};
    return keel_queue_launch(queue, probe->kernels[KEEL_PROBE_COPY], args, 2, &range, waits, event);
}

enum keel_status keel_probe_step(const struct keel_probe *probe, struct keel_queue *queue,
                                 struct keel_buffer *words, uint32_t at, uint32_t value)
{
    const struct keel_arg args[] = {memory(words), word(at), word(value)};
    return keel_queue_launch(queue, probe->kernels[KEEL_PROBE_STEP], args, 3, &one, NULL, NULL);
}

enum keel_status keel_probe_class(const struct keel_probe *probe, struct keel_queue *queue,
                                  struct keel_buffer *from, struct keel_buffer *to, uint32_t count)
{
    const struct keel_arg args[] = {memory(from), memory(to)};
    const struct keel_range range = {.global = {count, 1, 1}, .local = {1, 1, 1}};
    return keel_queue_launch(queue, probe->kernels[KEEL_PROBE_CLASS], args, 2, &range, NULL, NULL);
}
