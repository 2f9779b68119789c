/* check_code.c - level 2: the board gets its code, from source or from its artifacts, and refuses what is
 * none. */
#include "check_tables.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/golden.h>
#include <string.h>

static void builds(struct keel_check_run *run)
{
    if (keel_check_device(run) == NULL)
        return;
    uint64_t begun_ns = keel_now_ns();
    if (keel_check_kernels(run) != NULL)
        keel_check_note(run, "all modules after %.2f s", (double)(keel_now_ns() - begun_ns) / 1e9);
}

/* Drivers that compile at the first launch may do so wrong, or die of it. */
static void warms(struct keel_check_run *run)
{
    struct keel_kernels *kernels = keel_check_kernels(run);
    struct keel_queue *queue = NULL;
    if (kernels == NULL || !keel_check_ok(run, keel_queue_create(keel_check_device(run), &queue), "a queue"))
        return;
    uint64_t begun_ns = keel_now_ns();
    keel_check_progress(run, 0, 0, "launching every kernel once");
    if (keel_check_ok(run, keel_golden_warm(kernels, queue, keel_check_deadline_ns(run)), "a first launch"))
        keel_check_note(run, "every kernel launched after %.2f s", (double)(keel_now_ns() - begun_ns) / 1e9);
    keel_queue_destroy(queue);
}

/* Broken source, and a kernel that is not there: refused with a reason, and the board goes on. */
static void refuses(struct keel_check_run *run)
{
    static const struct keel_module_kernel kernels[] = {{.name = "broken", .host = NULL}};
    static const struct keel_module module = {.name = "broken",
                                              .source =
                                                  "__kernel void broken(__global float *x) { x[0] = ; }\n",
                                              .kernels = kernels,
                                              .kernel_count = 1};
    struct keel_device *device = keel_check_device(run);
    struct keel_program *program = NULL;
    struct keel_kernels *good = NULL;
    if (device == NULL)
        return;
    if (keel_device_info(device)->kind == KEEL_DEVICE_HOST) {
        keel_check_note(run, "the host compiles nothing");
        return;
    }
    keel_check_progress(run, 0, 2, "compiling source that is none");
    enum keel_status status = keel_program_create(device, &module, "", &program);
    if (status == KEEL_OK) {
        keel_program_destroy(program);
        keel_check_fail(run, "source that does not compile is taken for a program");
        return;
    }
    if (status != KEEL_UNSUPPORTED)
        keel_check_fail(run, "source that does not compile is answered by %s: %s", keel_status_name(status),
                        keel_detail());
    keel_check_progress(run, 1, 2, "building the kernels after it");
    if (keel_check_able(run, keel_kernels_create(device, &good), "right code after wrong code"))
        keel_kernels_destroy(good);
}

/* Compiled before, kernels come from the driver's cache, or from artifacts. */
static void ready(struct keel_check_run *run)
{
    enum { TIMES = 3 };
    double samples[TIMES];
    struct keel_device *device = keel_check_device(run);
    for (uint32_t i = 0; i < TIMES && device != NULL; i++) {
        struct keel_kernels *kernels = NULL;
        uint64_t begun_ns = keel_now_ns();
        if (!keel_check_able(run, keel_kernels_create(device, &kernels), "the kernels"))
            return;
        samples[i] = (double)(keel_now_ns() - begun_ns) / 1e6;
        keel_kernels_destroy(kernels);
    }
    if (device != NULL)
        keel_check_figure(run, "ready_ms", "ms", KEEL_BETTER_LESS, samples, TIMES);
}

const struct keel_check keel_checks_code[] = {
    {"2.1", "builds", "all modules become programs of the board", "0.2", 300, false, builds},
    {"2.2", "warms", "every kernel launches and ends", "2.1", 300, false, warms},
    {"2.3", "refuses", "source that does not compile is refused, and the board goes on", "0.2", 300, false,
     refuses},
    {"2.4", "ready", "programs that were made before are ready again", "2.1", 120, false, ready},
    {.id = NULL}};
