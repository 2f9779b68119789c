/* opencl_commands.c - command lists on OpenCL: a kernel object for each launch, with its arguments set for
 * good.
 *
 * So a replay is the enqueueing alone. cl_khr_command_buffer is not used: where it is there it was not
 * faster. */
#include "opencl_backend.h"
#include <keel/memory.h>

/* Beside each step of the list; empty for calls. */
struct prepared {
    cl_kernel native;
    const struct opencl_image *image;
    const char *name;
};

static void release(struct prepared *prepared, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (prepared[i].native != NULL)
            clReleaseKernel(prepared[i].native);
    keel_free(prepared);
}

static bool is_kernel(const struct keel_list_step *step)
{
    return step->kernel->call.enqueue == NULL;
}

static enum keel_status prepare(const struct keel_commands *commands, const struct keel_list_step *step,
                                struct prepared *out)
{
    if (!is_kernel(step))
        return KEEL_OK;
    const struct keel_kernel *kernel = step->kernel;
    const struct opencl_program *program = (const struct opencl_program *)kernel->program;
    cl_int error;
    out->image = program->image;
    out->name = kernel->entry->name;
    out->native = clCreateKernel(program->image->native, out->name, &error);
    if (error != CL_SUCCESS) {
        out->native = NULL;
        return keel_opencl_fail(error, commands->device->info.selector, "clCreateKernel");
    }
    for (uint32_t i = 0; i < step->arg_count; i++)
        KEEL_TRY(keel_opencl_set_arg(out->native, out->name, i, &commands->args[step->first_arg + i]));
    return KEEL_OK;
}

enum keel_status keel_opencl_commands_seal(struct keel_commands *commands)
{
    struct prepared *prepared = NULL;
    KEEL_TRY(keel_alloc(commands->count, sizeof *prepared, &prepared));
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < commands->count && status == KEEL_OK; i++)
        status = prepare(commands, &commands->steps[i], &prepared[i]);
    if (status != KEEL_OK) {
        release(prepared, commands->count);
        return status;
    }
    commands->prepared = prepared;
    return KEEL_OK;
}

void keel_opencl_commands_unseal(struct keel_commands *commands)
{
    release(commands->prepared, commands->count);
}

enum keel_status keel_opencl_replay(const struct keel_device_command *command,
                                    const struct keel_commands *commands, uint32_t number)
{
    const struct prepared *prepared = (const struct prepared *)commands->prepared + number;
    if (prepared->native == NULL)
        return keel_opencl_enqueue(command);
    if (!atomic_load(&prepared->image->loaded))
        KEEL_TRY(keel_opencl_image_check(command->queue, prepared->image, prepared->name));
    struct opencl_launch launch;
    KEEL_TRY(keel_opencl_begin(command, &launch));
    cl_int error = clEnqueueNDRangeKernel(((struct opencl_queue *)command->queue)->native, prepared->native,
                                          3, NULL, command->range->global, command->range->local,
                                          command->wait_count, launch.wait_list, launch.native_address);
    return keel_opencl_end(command, &launch, error, prepared->name);
}
