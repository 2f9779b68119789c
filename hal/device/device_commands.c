/* device_commands.c - command lists: what is added, checked once; how a list is replayed.
 *
 * Owns the recipe (keel_step), from which a backend prepares its own form at the seal. A backend without one
 * is given the steps one by one. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <string.h>

enum keel_status keel_commands_create(struct keel_device *device, struct keel_commands **out)
{
    struct keel_commands *commands = NULL;
    KEEL_TRY(keel_alloc(1, sizeof *commands, &commands));
    commands->device = device;
    *out = commands;
    return KEEL_OK;
}

void keel_commands_destroy(struct keel_commands *commands)
{
    if (commands == NULL)
        return;
    if (commands->sealed && commands->device->ops->commands_unseal != NULL)
        commands->device->ops->commands_unseal(commands);
    keel_free(commands->steps);
    keel_free(commands->args);
    keel_free(commands);
}

static enum keel_status check_open(const struct keel_commands *commands)
{
    if (commands->sealed)
        return keel_fail(KEEL_INVALID, "a list of %" PRIu32 " commands is sealed; make a new one to add to",
                         commands->count);
    if (commands->count == KEEL_COMMANDS_MAX)
        return keel_fail(KEEL_LIMIT, "a list of more than %d commands; make two", (int)KEEL_COMMANDS_MAX);
    return KEEL_OK;
}

static enum keel_status add(struct keel_commands *commands, const struct keel_list_step *step)
{
    KEEL_TRY(keel_grow(&commands->steps, &commands->capacity, commands->count + 1, sizeof *step));
    KEEL_ASSERT(commands->count < commands->capacity && !commands->sealed);
    commands->steps[commands->count++] = *step;
    return KEEL_OK;
}

static enum keel_status keep_args(struct keel_commands *commands, const struct keel_arg *args,
                                  uint32_t arg_count, uint32_t *out_first)
{
    uint32_t end = commands->arg_count + arg_count;
    KEEL_TRY(keel_grow(&commands->args, &commands->arg_capacity, end, sizeof *args));
    if (arg_count > 0)
        memcpy(commands->args + commands->arg_count, args, arg_count * sizeof *args);
    *out_first = commands->arg_count;
    commands->arg_count = end;
    return KEEL_OK;
}

enum keel_status keel_commands_launch(struct keel_commands *commands, struct keel_kernel *kernel,
                                      const struct keel_arg *args, uint32_t arg_count,
                                      const struct keel_range *range)
{
    KEEL_TRY(check_open(commands));
    KEEL_TRY(keel_check_launch(commands->device, kernel, args, arg_count, range));
    struct keel_list_step step = {.kernel = kernel, .range = *range, .arg_count = arg_count};
    KEEL_TRY(keep_args(commands, args, arg_count, &step.first_arg));
    return add(commands, &step);
}

enum keel_status keel_commands_seal(struct keel_commands *commands)
{
    KEEL_TRY(check_open(commands));
    if (commands->count == 0)
        return keel_fail(KEEL_INVALID, "a list of no commands; add one, or do not replay it");
    if (commands->device->ops->commands_seal != NULL)
        KEEL_TRY(commands->device->ops->commands_seal(commands));
    for (uint32_t i = 0; i < commands->count; i++) /* what was added is what will be replayed */
        KEEL_ASSERT(commands->steps[i].kernel->program->device == commands->device &&
                    commands->steps[i].first_arg + commands->steps[i].arg_count <= commands->arg_count);
    commands->sealed = true;
    return KEEL_OK;
}

/* Half a list is neither done nor not: the queue fails with it, but for the first step, before which nothing
 * was enqueued. */
static enum keel_status stopped(struct keel_queue *queue, const struct keel_commands *commands, uint32_t step,
                                enum keel_status status)
{
    if (step == 0 || atomic_load_explicit(&queue->lost, memory_order_acquire))
        return status;
    return keel_queue_fail(queue, "a list stopped at its command %" PRIu32 " of %" PRIu32 ": %.200s",
                           step + 1, commands->count, keel_detail());
}

enum keel_status keel_commands_run(const struct keel_device_command *command,
                                   const struct keel_commands *commands)
{
    KEEL_ASSERT(commands->sealed && commands->count > 0);
    const struct keel_device_ops *ops = commands->device->ops;
    bool traced = command->queue->device->trace != NULL;
    for (uint32_t i = 0; i < commands->count; i++) {
        const struct keel_list_step *step = &commands->steps[i];
        struct keel_device_command one = {.queue = command->queue,
                                          .kind = KEEL_COMMAND_LAUNCH,
                                          .arg_count = step->arg_count,
                                          .kernel = step->kernel,
                                          .args = commands->args + step->first_arg,
                                          .range = &step->range};
        if (i == 0)
            one.waits = command->waits, one.wait_count = command->wait_count;
        if (i + 1 == commands->count)
            one.out_event = command->out_event;
        keel_queue_note(command->queue, KEEL_COMMAND_LAUNCH, step->kernel->entry->name);
        if (traced)
            keel_trace_begin(&one);
        enum keel_status status = ops->replay != NULL ? ops->replay(&one, commands, i) : ops->enqueue(&one);
        if (traced)
            keel_trace_add(&one, status);
        if (status != KEEL_OK)
            return stopped(command->queue, commands, i, status);
        if (atomic_load_explicit(&command->queue->lost, memory_order_acquire))
            return i + 1 < commands->count ? keel_queue_failed(command->queue) : KEEL_OK;
    }
    return KEEL_OK;
}
