/* check_steps.c - resources of a check, transfers that are waited for, comparisons, growth of memory. */
#include "check_steps.h"
#include <inttypes.h>
#include <keel/memory.h>
#include <stdarg.h>
#include <unistd.h>

/* ---- what ends with the check ---- */

static void own(struct keel_check_run *run, enum keel_check_owned_kind kind, void *what)
{
    KEEL_ASSERT(run->owned_count < KEEL_CHECK_OWNED_MAX && what != NULL);
    run->owned[run->owned_count++] = (struct keel_check_owned){.kind = kind, .what = what};
}

enum keel_status keel_check_new_queue(struct keel_check_run *run, struct keel_queue **out)
{
    KEEL_TRY(keel_queue_create(run->on.device, out));
    own(run, KEEL_OWNED_QUEUE, *out);
    return KEEL_OK;
}

enum keel_status keel_check_new_buffer(struct keel_check_run *run, uint64_t bytes, struct keel_buffer **out)
{
    KEEL_TRY(keel_buffer_create(run->on.device, bytes, out));
    own(run, KEEL_OWNED_BUFFER, *out);
    return KEEL_OK;
}

enum keel_status keel_check_new_kernels(struct keel_check_run *run, const struct keel_module *module,
                                        const char *options, struct keel_kernel **out)
{
    struct keel_program *program;
    KEEL_TRY(keel_program_create(run->on.device, module, options, &program));
    own(run, KEEL_OWNED_PROGRAM, program);
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        KEEL_TRY(keel_kernel_create(program, module->kernels[i].name, &out[i]));
        own(run, KEEL_OWNED_KERNEL, out[i]);
    }
    return KEEL_OK;
}

enum keel_status keel_check_new_memory(struct keel_check_run *run, uint64_t bytes, void *out_pointer_address)
{
    void *memory;
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &memory));
    own(run, KEEL_OWNED_MEMORY, memory);
    *(void **)out_pointer_address = memory;
    return KEEL_OK;
}

static void give_back(const struct keel_check_owned *owned)
{
    switch (owned->kind) {
    case KEEL_OWNED_QUEUE:
        keel_queue_destroy(owned->what);
        break;
    case KEEL_OWNED_KERNEL:
        keel_kernel_destroy(owned->what);
        break;
    case KEEL_OWNED_PROGRAM:
        keel_program_destroy(owned->what);
        break;
    case KEEL_OWNED_BUFFER:
        keel_buffer_destroy(owned->what);
        break;
    case KEEL_OWNED_MEMORY:
        keel_free(owned->what);
        break;
    }
}

void keel_check_give_back(struct keel_check_run *run)
{
    for (uint32_t i = 0; i < KEEL_CHECK_LISTS; i++)
        keel_launch_list_fini(&run->lists[i]);
    for (int kind = KEEL_OWNED_QUEUE; kind <= KEEL_OWNED_MEMORY; kind++) {
        if (run->on.device != NULL && keel_device_fixture_is_left(run->on.device))
            break;
        for (uint32_t i = run->owned_count; i-- > 0;)
            if (run->owned[i].kind == (enum keel_check_owned_kind)kind)
                give_back(&run->owned[i]);
        if (kind == KEEL_OWNED_QUEUE) {
            keel_queue_destroy(run->on.queue);
            run->on.queue = NULL;
        }
    }
    run->owned_count = 0;
}

/* ---- steps ---- */

bool keel_step_finish(struct keel_check_run *run, struct keel_queue *queue, const char *what)
{
    return keel_check_ok(run, keel_queue_finish(queue, run->deadline_ns), what);
}

bool keel_step_write(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset,
                     const void *data, uint64_t bytes)
{
    return keel_check_ok(run, keel_queue_write(run->on.queue, buffer, offset, data, bytes, NULL, NULL),
                         "a write") &&
           keel_step_finish(run, run->on.queue, "a write");
}

bool keel_step_read(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, void *data,
                    uint64_t bytes)
{
    return keel_check_ok(run, keel_queue_read(run->on.queue, buffer, offset, data, bytes, NULL, NULL),
                         "a read") &&
           keel_step_finish(run, run->on.queue, "a read");
}

bool keel_step_fill(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                    uint32_t word)
{
    return keel_check_ok(run, keel_queue_fill(run->on.queue, buffer, offset, bytes, word, NULL, NULL),
                         "a fill") &&
           keel_step_finish(run, run->on.queue, "a fill");
}

bool keel_step_launch(struct keel_check_run *run, struct keel_launch_list *list, enum keel_status appended,
                      const char *what)
{
    bool done = keel_check_ok(run, appended, what) &&
                keel_check_ok(run, keel_launch_list_run(list, run->on.queue), what) &&
                keel_step_finish(run, run->on.queue, what);
    list->count = 0;
    return done;
}

bool keel_step_same(struct keel_check_run *run, const uint8_t *got, const uint8_t *wanted, uint64_t bytes,
                    const char *format, ...)
{
    uint64_t i = 0;
    while (i < bytes && got[i] == wanted[i])
        i++;
    if (i == bytes)
        return true;
    char what[KEEL_CHECK_TEXT_BYTES / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    keel_check_fail(run, "%s: byte %" PRIu64 " of %" PRIu64 " is %02x, not %02x", what, i, bytes, got[i],
                    wanted[i]);
    return false;
}

/* ---- memory of the process ---- */

uint64_t keel_check_resident_bytes(void)
{
    unsigned long long size = 0, resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    int read = fscanf(file, "%llu %llu %llu", &size, &resident, &shared);
    fclose(file);
    return read == 3 && resident > shared ? (uint64_t)(resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE)
                                          : 0;
}

uint64_t keel_check_queued_ns(void)
{
    unsigned long long ran_ns = 0, queued_ns = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file == NULL)
        return 0;
    int read = fscanf(file, "%llu %llu", &ran_ns, &queued_ns);
    fclose(file);
    return read == 2 ? queued_ns : 0;
}

void keel_check_stages(struct keel_check_run *run, const char *doing, const char *what,
                       bool (*stage)(struct keel_check_run *run, void *context, uint32_t number),
                       void *context)
{
    uint64_t least = UINT64_MAX, before = keel_check_resident_bytes();
    for (uint32_t i = 1; i <= KEEL_CHECK_STAGES; i++) {
        keel_check_progress(run, i, KEEL_CHECK_STAGES, doing);
        if (!stage(run, context, i))
            return;
        const uint64_t now = keel_check_resident_bytes(), grown = now > before ? now - before : 0;
        if (i > 1 && grown < least)
            least = grown;
        before = now;
    }
    if (least > KEEL_CHECK_STAGE_BYTES)
        keel_check_fail(run, "memory of the process is lost: at least %" PRIu64 " KiB with every %s",
                        least >> 10, what);
}

uint32_t keel_check_mix(uint32_t x)
{
    x = (x ^ (x >> 16)) * 0x7feb352dU;
    x = (x ^ (x >> 15)) * 0x846ca68bU;
    return x ^ (x >> 16);
}
