/* kernels.c - what every operation is made with: checks of sizes and buffers, kernels by name, lists of
 * launches.
 *
 * Leaves to others: which modules there are and that they are built (registry.c), what a launch means (the
 * file of each operation), and how it runs (hal). */
#include "kernels_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct keel_device *keel_kernels_device(const struct keel_kernels *kernels)
{
    return kernels->device;
}

const struct keel_clblast *keel_kernels_clblast(const struct keel_kernels *kernels)
{
    return kernels->clblast;
}

enum keel_class keel_kernels_class(const struct keel_kernels *kernels)
{
    return kernels->numerics;
}

static const char *const class_names[KEEL_CLASSES] = {"canonical", "native", "exact8x2", "exact8x3", "bf16"};

const char *keel_class_name(enum keel_class numerics)
{
    return class_names[numerics];
}

enum keel_class keel_class_find(const char *name)
{
    enum keel_class found = KEEL_CANONICAL;
    while (found < KEEL_CLASSES && strcmp(class_names[found], name) != 0)
        found++;
    return found;
}

const struct keel_device_info *keel_kernels_info(const struct keel_kernels *kernels)
{
    return &kernels->info;
}

uint32_t keel_planes_class_digits(enum keel_class numerics)
{
    static const uint32_t digits[KEEL_CLASSES] = {
        [KEEL_EXACT8X2] = 2, [KEEL_EXACT8X3] = 3, [KEEL_CLASS_BF16] = 1};
    return digits[numerics];
}

uint32_t keel_planes_digits(const struct keel_kernels *kernels)
{
    return keel_planes_class_digits(kernels->numerics);
}

uint32_t keel_kernels_part_count(const struct keel_kernels *kernels)
{
    const uint32_t own = keel_planes_digits(kernels) > 0 ? KEEL_MODULE_COUNT - KEEL_MODULE_planes
                                                         : kernels->numerics == KEEL_NATIVE;
    return KEEL_MODULE_CANONICAL_COUNT + own;
}

enum keel_module_id keel_kernels_part_module(const struct keel_kernels *kernels, uint32_t index)
{
    KEEL_ASSERT(index < keel_kernels_part_count(kernels));
    if (index < KEEL_MODULE_CANONICAL_COUNT)
        return (enum keel_module_id)index;
    return kernels->numerics == KEEL_NATIVE
               ? KEEL_MODULE_winograd
               : (enum keel_module_id)(index - KEEL_MODULE_CANONICAL_COUNT + KEEL_MODULE_planes);
}

struct keel_kernels_part keel_kernels_part(const struct keel_kernels *kernels, uint32_t index)
{
    const struct keel_built_module *built = &kernels->modules[keel_kernels_part_module(kernels, index)];
    return (struct keel_kernels_part){.module = built->module,
                                      .options = built->options,
                                      .program = built->program,
                                      .kernels = built->kernels};
}

uint32_t keel_kernels_setting(const struct keel_kernels *kernels, uint32_t tunable_index)
{
    KEEL_ASSERT(tunable_index < KEEL_TUNABLE_COUNT);
    return kernels->tuned[tunable_index];
}

enum keel_local_size keel_device_local_size(const struct keel_device_info *info)
{
    return info->kind == KEEL_DEVICE_HOST || info->local_bytes >= KEEL_LOCAL_LARGE_BYTES ? KEEL_LOCAL_LARGE
           : info->local_bytes >= KEEL_LOCAL_SMALL_BYTES                                 ? KEEL_LOCAL_SMALL
                                                                                         : KEEL_LOCAL_TINY;
}

enum keel_status keel_kernels_find(struct keel_kernels *kernels, enum keel_module_id module, const char *name,
                                   struct keel_kernel **out)
{
    const struct keel_built_module *built = &kernels->modules[module];
    KEEL_ASSERT(built->kernels != NULL);
    for (uint32_t i = 0; i < built->module->kernel_count; i++) {
        if (strcmp(built->module->kernels[i].name, name) == 0) {
            *out = built->kernels[i];
            return KEEL_OK;
        }
    }
    return keel_fail(KEEL_INTERNAL, "module %s has no kernel %s", built->module->name, name);
}

enum keel_status keel_launch_list_append(struct keel_launch_list *list, struct keel_kernel *kernel,
                                         const struct keel_range *range, const struct keel_arg *args,
                                         uint32_t arg_count)
{
    KEEL_ASSERT(kernel != NULL && arg_count <= KEEL_ARG_MAX && list->commands == NULL);
    for (uint32_t i = 0; i < arg_count; i++)
        KEEL_ASSERT(args[i].kind != KEEL_ARG_BUFFER || args[i].as.buffer != NULL);
    for (int axis = 0; axis < 3; axis++)
        KEEL_ASSERT(range->local[axis] > 0 && range->global[axis] % range->local[axis] == 0);
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity == 0 ? 64 : list->capacity * 2;
        KEEL_TRY(keel_realloc(&list->items, list->capacity, capacity, sizeof *list->items));
        list->capacity = capacity;
    }
    struct keel_launch *launch = &list->items[list->count++];
    launch->kernel = kernel;
    launch->range = *range;
    launch->arg_count = arg_count;
    memcpy(launch->args, args, arg_count * sizeof *args);
    return KEEL_OK;
}

enum keel_status keel_kernels_launch(struct keel_kernels *kernels, struct keel_launch_list *list,
                                     enum keel_module_id module, const char *name,
                                     const struct keel_range *range, const struct keel_arg *args,
                                     uint32_t arg_count)
{
    struct keel_kernel *kernel = NULL;
    KEEL_TRY(keel_kernels_find(kernels, module, name, &kernel));
    return keel_launch_list_append(list, kernel, range, args, arg_count);
}

struct keel_range keel_kernels_range(const struct keel_kernels *kernels, uint64_t items)
{
    const uint64_t group = kernels->tuned[KEEL_TUNABLE_GROUP_ITEMS];
    uint64_t groups = (items + group - 1) / group;
    if (groups == 0)
        groups = 1;
    return (struct keel_range){.global = {keel_size(groups * group), 1, 1},
                               .local = {keel_size(group), 1, 1}};
}

bool keel_kernels_share_rows(const struct keel_kernels *kernels)
{
    return kernels->tuned[KEEL_TUNABLE_ROW_ITEMS] > 1;
}

struct keel_range keel_kernels_rows(const struct keel_kernels *kernels, uint64_t rows)
{
    return keel_kernels_range(kernels, rows * kernels->tuned[KEEL_TUNABLE_ROW_ITEMS]);
}

struct keel_range keel_kernels_lone_rows(const struct keel_kernels *kernels, uint64_t rows)
{
    if (!keel_kernels_share_rows(kernels))
        return keel_kernels_range(kernels, rows);
    const size_t items = kernels->tuned[KEEL_TUNABLE_ROW_ITEMS];
    return (struct keel_range){.global = {keel_size(rows * items), 1, 1}, .local = {items, 1, 1}};
}

struct keel_range keel_kernels_groups(const struct keel_kernels *kernels, uint64_t units)
{
    if (!keel_kernels_share_rows(kernels))
        return keel_kernels_range(kernels, units);
    size_t group = KEEL_GROUP_ITEMS_MOST;
    while (group > keel_device_line_items(&kernels->info))
        group /= 2;
    return (struct keel_range){.global = {keel_size(units * group), 1, 1}, .local = {group, 1, 1}};
}

uint32_t keel_kernels_item_elements(const struct keel_kernels *kernels)
{
    return kernels->tuned[KEEL_TUNABLE_ITEM_ELEMENTS];
}

uint32_t keel_kernels_item_rows(const struct keel_kernels *kernels, uint32_t n)
{
    const uint32_t elements = keel_kernels_item_elements(kernels);
    return n < elements ? elements / n : 1;
}

enum keel_status keel_kernels_launch_flat(struct keel_kernels *kernels, struct keel_launch_list *list,
                                          enum keel_module_id module, const char *name, uint64_t count,
                                          const struct keel_arg *args, uint32_t arg_count)
{
    uint32_t block = keel_kernels_item_elements(kernels);
    struct keel_range range = keel_kernels_range(kernels, (count + block - 1) / block);
    return keel_kernels_launch(kernels, list, module, name, &range, args, arg_count);
}

enum keel_status keel_kernels_launch_rows(struct keel_kernels *kernels, struct keel_launch_list *list,
                                          enum keel_module_id module, const char *name, uint64_t rows,
                                          const struct keel_arg *args, uint32_t arg_count)
{
    const uint32_t item_rows = args[arg_count - 1].as.u32;
    const struct keel_range range = keel_kernels_range(kernels, (rows + item_rows - 1) / item_rows);
    return keel_kernels_launch(kernels, list, module, name, &range, args, arg_count);
}

uint64_t keel_product(const uint64_t *factors, size_t count)
{
    uint64_t product = 1;
    for (size_t i = 0; i < count; i++) {
        if (factors[i] != 0 && product > UINT64_MAX / factors[i])
            product = UINT64_MAX;
        else
            product *= factors[i];
    }
    return product;
}

enum keel_status keel_check_buffer(const char *op, const char *what, const struct keel_buffer *buffer,
                                   uint64_t bytes)
{
    if (buffer == NULL)
        return keel_fail(KEEL_INVALID, "%s: no buffer for %s", op, what);
    if (keel_buffer_bytes(buffer) < bytes)
        return keel_fail(KEEL_INVALID, "%s: %s holds %llu bytes, needs %llu", op, what,
                         (unsigned long long)keel_buffer_bytes(buffer), (unsigned long long)bytes);
    return KEEL_OK;
}

enum keel_status keel_check_random(const char *op, uint64_t count, uint64_t limit,
                                   struct keel_random_slice *slice)
{
    if (slice->row == 0 || slice->row >= count) /* one row */
        slice->row = slice->stride = count > 0 ? count : 1;
    if (slice->stride < slice->row)
        return keel_fail(KEEL_INVALID, "%s: rows of %llu that begin %llu behind one another", op,
                         (unsigned long long)slice->row, (unsigned long long)slice->stride);
    const uint64_t rows = count == 0 ? 0 : (count - 1) / slice->row,
                   rest = count == 0 ? 0 : (count - 1) % slice->row;
    const uint64_t last_row = keel_plus(slice->first, KEEL_BYTES(rows, slice->stride));
    const uint64_t last = keel_plus(last_row, rows > 0 ? slice->row - 1 : rest);
    if (last < limit)
        return KEEL_OK;
    return keel_fail(KEEL_LIMIT,
                     "%s: %llu elements from number %llu: only %llu numbers have a counter of their own", op,
                     (unsigned long long)count, (unsigned long long)slice->first, (unsigned long long)limit);
}

uint32_t keel_slice_begin(uint32_t units, uint32_t of, uint32_t slice)
{
    KEEL_ASSERT(of > 0 && slice <= of);
    return (uint32_t)((uint64_t)units * slice / of);
}

/* The least node that holds the first of the slices and as many; where all come to an end it has fewer. */
static bool are_node(const struct keel_slices *slices)
{
    uint32_t whole = 1;
    while (whole < slices->count)
        whole *= 2;
    return slices->first % whole == 0 &&
           (slices->count == whole || slices->first + slices->count == slices->of);
}

enum keel_status keel_check_slices(const char *op, const char *what, const struct keel_slices *slices,
                                   uint64_t size, bool node)
{
    const struct keel_slices s = *slices;
    if (s.count == 0 && (s.first | s.of | s.units | s.unit) == 0)
        return KEEL_OK;
    if (s.count == 0 || s.of > KEEL_SLICES_MAX || s.count > s.of || s.first > s.of - s.count ||
        s.units < s.of || s.unit == 0)
        return keel_fail(KEEL_INVALID,
                         "%s: %s: %u slices from %u on, of %u of %u units of %u: there are none such", op,
                         what, s.count, s.first, s.of, s.units, s.unit);
    const uint32_t units =
        keel_slice_begin(s.units, s.of, s.first + s.count) - keel_slice_begin(s.units, s.of, s.first);
    if ((uint64_t)units * s.unit != size)
        return keel_fail(KEEL_INVALID, "%s: %s: slices %u to %u of %u have %u units of %u, not %llu elements",
                         op, what, s.first, s.first + s.count - 1, s.of, units, s.unit,
                         (unsigned long long)size);
    if (node && !are_node(&s))
        return keel_fail(KEEL_INVALID, "%s: %s: slices %u to %u of %u are no node of the tree over them", op,
                         what, s.first, s.first + s.count - 1, s.of);
    return KEEL_OK;
}

enum keel_status keel_check_operands(const char *op, const struct keel_op_operand *operands, uint32_t count)
{
    bool writes = false;
    for (uint32_t i = 0; i < count; i++) {
        KEEL_ASSERT(operands[i].name != NULL);
        writes = writes || (operands[i].use & KEEL_WRITTEN);
        if (operands[i].buffer != NULL || !(operands[i].use & KEEL_OPTIONAL))
            KEEL_TRY(keel_check_buffer(op, operands[i].name, operands[i].buffer, operands[i].bytes));
    }
    KEEL_ASSERT(writes); /* or the table lacks a result */
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct keel_op_operand *a = &operands[i], *b = &operands[j];
            const bool in_place = (a->use & b->use & ~KEEL_OPTIONAL) == KEEL_IN_PLACE;
            if (a->buffer == NULL || b->buffer == NULL || !((a->use | b->use) & KEEL_WRITTEN) ||
                !keel_buffer_overlaps(a->buffer, b->buffer))
                continue;
            if (!in_place || !keel_buffer_begins_at(a->buffer, b->buffer))
                return keel_fail(KEEL_INVALID, "%s: %s overlaps %s; it needs memory of its own", op, a->name,
                                 b->name);
        }
    return KEEL_OK;
}

enum keel_status keel_check_finite(const char *op, const char *what, float value)
{
    if (isfinite(value))
        return KEEL_OK;
    return keel_fail(KEEL_INVALID, "%s: %s is %g", op, what, (double)value);
}

void keel_launch_list_fini(struct keel_launch_list *list)
{
    keel_commands_destroy(list->commands);
    keel_free(list->items);
    *list = (struct keel_launch_list){0};
}

enum keel_status keel_launch_list_seal(struct keel_launch_list *list, const struct keel_kernels *kernels)
{
    if (list->count == 0)
        return KEEL_OK;
    struct keel_commands *commands = NULL;
    KEEL_TRY(keel_commands_create(kernels->device, &commands));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < list->count && status == KEEL_OK; i++) {
        const struct keel_launch *launch = &list->items[i];
        status =
            keel_commands_launch(commands, launch->kernel, launch->args, launch->arg_count, &launch->range);
    }
    if (status == KEEL_OK)
        status = keel_commands_seal(commands);
    if (status != KEEL_OK) {
        keel_commands_destroy(commands);
        return status;
    }
    list->commands = commands;
    return KEEL_OK;
}

enum keel_status keel_launch_list_run(const struct keel_launch_list *list, struct keel_queue *queue)
{
    if (list->commands != NULL)
        return keel_queue_replay(queue, list->commands, NULL, NULL);
    for (uint32_t i = 0; i < list->count; i++) {
        const struct keel_launch *launch = &list->items[i];
        KEEL_TRY(keel_queue_launch(queue, launch->kernel, launch->args, launch->arg_count, &launch->range,
                                   NULL, NULL));
    }
    return KEEL_OK;
}
