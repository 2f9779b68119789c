/* golden_test.c - the golden cases on every OpenCL stack that is here, and with tunables of all kinds: the
 * same hashes; and that what a golden case must notice, it notices. Oclgrind has a test of its own
 * (oclgrind_test.sh), which runs this program with GOLDEN_DEVICE. */
#include "golden_internal.h"
#include "harness.h"
#include "planes_internal.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_NS patience_ns(120 * KEEL_NS_PER_S)
enum { LIMIT_S = 400, SETTINGS_MAX = 9 };

/* A stack is the environment that makes the driver show it, and a selector. */
struct stack {
    const char *name, *selector, *variable, *value;
    const char *needs; /* a file, without which it is not here; NULL: always here */
    bool short_lived;  /* its driver ends a kernel after 65535 turns of its loops */
};
static const struct stack stacks[] = {
    {"host", "host", NULL, NULL, NULL, false},
    {"PoCL, all threads", "pocl", NULL, NULL, NULL, false},
    {"PoCL, one thread", "pocl", "POCL_MAX_PTHREAD_COUNT", "1", NULL, false},
    {"PoCL, blocking", "pocl", "POCL_DEVICES", "basic", NULL, false},
    {"rusticl", "mesa", "RUSTICL_ENABLE", "llvmpipe", "/etc/OpenCL/vendors/rusticl.icd", true},
};
enum { STACKS = sizeof stacks / sizeof stacks[0] };

struct rig {
    struct keel_device *device;
    struct keel_kernels *kernels;
    struct keel_queue *queue;
};

/* Kernels of a class, which may use those dots of bytes that `dots` has of the device's own. */
static struct rig rig_open_class(const char *selector, enum keel_class numerics, uint32_t dots,
                                 const struct keel_setting *settings, uint32_t count)
{
    struct rig rig;
    ck_ok(keel_device_open(selector, NULL, &rig.device));
    struct keel_device_info target = *keel_device_info(rig.device);
    target.dots &= dots;
    const struct keel_kernels_options options = {
        .numerics = numerics, .settings = settings, .setting_count = count, .target = &target};
    ck_ok(keel_kernels_create_with(rig.device, &options, &rig.kernels));
    ck_ok(keel_queue_create(rig.device, &rig.queue));
    return rig;
}

static struct rig rig_open(const char *selector, const struct keel_setting *settings, uint32_t count)
{
    return rig_open_class(selector, KEEL_CANONICAL, UINT32_MAX, settings, count);
}

static void rig_close(struct rig *rig)
{
    keel_queue_destroy(rig->queue);
    keel_kernels_destroy(rig->kernels);
    ck_assert_uint_eq(keel_device_stats(rig->device).live_bytes, 0);
    keel_device_close(rig->device);
}

/* Cases that a driver is known to compute wrongly; a later one may not. rusticl ends long loops
 * (short_lived), and its fma(0, -y, +0) is -0, where IEEE 754 has +0: the gradient of token 0 is 0, and is
 * turned by an angle of -0. */
static bool is_known(const struct stack *stack, const char *name)
{
    return stack->short_lived && (strcmp(name, "bias_grad/70001x1") == 0 ||
                                  strcmp(name, "attention_grad/1x67x12x8-by-4-turned") == 0);
}

/* Those whose operation, or name, begins with `op`: some do. */
static void some_cases(const struct stack *stack, struct rig *rig, uint64_t guard_bytes, const char *op)
{
    const enum keel_class numerics = keel_kernels_class(rig->kernels);
    int wrong = 0, seen = 0;
    for (uint32_t i = 0; i < keel_golden_count(numerics); i++) {
        struct keel_golden_result result;
        const struct keel_golden golden = keel_golden_get(numerics, i);
        if (strncmp(golden.op, op, strlen(op)) != 0 && strncmp(golden.name, op, strlen(op)) != 0)
            continue;
        seen++;
        ck_ok(golden_run_guarded(rig->kernels, rig->queue, i, guard_bytes, keel_deadline_after_ns(LIMIT_NS),
                                 &result));
        const bool known = is_known(stack, golden.name);
        if (known)
            printf("note: %s: %s %s\n", stack->name, golden.name,
                   result.matches ? "is right, though it is known to differ" : "differs, as is known");
        else if (!result.matches)
            printf("%s: %s: 0x%016" PRIx64 ", expected 0x%016" PRIx64 "\n", stack->name, golden.name,
                   result.hash, result.expected);
        if (!result.intact)
            printf("%s: %s: %s was hit at %" PRId64 "\n", stack->name, golden.name, result.hit_buffer,
                   result.hit_offset_bytes);
        wrong += (!result.matches && !known) || !result.intact;
    }
    fflush(stdout);
    ck_assert_int_gt(seen, 0);
    ck_assert_int_eq(wrong, 0);
}

static void all_cases(const struct stack *stack, struct rig *rig, uint64_t guard_bytes)
{
    some_cases(stack, rig, guard_bytes, "");
}

/* OCL_ICD_VENDORS names the drivers that may be loaded instead. */
static bool is_here(const struct stack *stack)
{
    return stack->needs == NULL || (access(stack->needs, R_OK) == 0 && getenv("OCL_ICD_VENDORS") == NULL);
}

START_TEST(every_stack_gives_the_hashes_of_the_table)
{
    const struct stack *stack = &stacks[_i];
    if (stack->variable != NULL)
        setenv(stack->variable, stack->value, 1);
    struct rig rig = rig_open(stack->selector, NULL, 0);
    all_cases(stack, &rig, 256);
    rig_close(&rig);
}
END_TEST

/* Settings far from the defaults of a CPU, each tunable in at least two values. */
static const struct keel_setting samples[][SETTINGS_MAX] = {
    {{"launch.group_items", 64},
     {"launch.item_elements", 16},
     {"gemm.depth", 32},
     {"gemm.rows", 32},
     {"gemm.strips", 2},
     {"gemm.provider", 1},
     {"attention.block", 16},
     {"attention.kept", 64},
     {"launch.row_items", 1}},
    {{"launch.group_items", 8},
     {"launch.item_elements", 256},
     {"gemm.depth", 384},
     {"gemm.rows", 512},
     {"gemm.strips", 4},
     {"gemm.provider", 0},
     {"attention.kept", 16},
     {"canon.by_lane", 1}},
    {{"launch.item_elements", 64},
     {"gemm.depth", 512},
     {"gemm.rows", 64},
     {"gemm.strips", 1},
     {"attention.block", 32},
     {"attention.kept", 2048},
     {"gemm.provider", 1},
     {"canon.by_lane", 2}},
    {{"gemm.items", 128},
     {"gemm.item_rows", 8},
     {"gemm.item_columns", 4},
     {"gemm.item_depth", 8},
     {"launch.group_items", 16},
     {"launch.item_elements", 16},
     {"launch.row_items", 16},
     {"attention.items", 64},
     {"canon.by_lane", 2}},
    {{"launch.group_items", 128},
     {"launch.item_elements", 64},
     {"launch.row_items", 16},
     {"attention.items", 256}},
};

/* Samples may have fewer settings than there is room for. */
static uint32_t settings_of(const struct keel_setting settings[SETTINGS_MAX])
{
    uint32_t count = 0;
    while (count < SETTINGS_MAX && settings[count].name != NULL)
        count++;
    return count;
}

static uint32_t tunable_named(const char *name)
{
    uint32_t t = 0;
    while (strcmp(keel_tunable_get(t).name, name) != 0)
        t++;
    return t;
}

/* The next smaller value that a tunable has; false when there is none. */
static bool lower(struct keel_setting *setting)
{
    const struct keel_tunable tunable = keel_tunable_get(tunable_named(setting->name));
    for (uint32_t i = tunable.value_count; i-- > 0;) {
        if (tunable.values[i] < setting->value) {
            setting->value = tunable.values[i];
            return true;
        }
    }
    return false;
}

/* A sample as the device has room for it: what takes local memory is lowered in turns until it fits. */
static void fit(const struct keel_device_info *info, struct keel_setting settings[SETTINGS_MAX])
{
    const uint32_t count = settings_of(settings);
    bool lowered = true;
    while (lowered && keel_kernels_check(info, settings, count) == KEEL_LIMIT) {
        const bool of_gemm = strstr(keel_detail(), "gemm.") != NULL;
        lowered = false;
        for (uint32_t i = count; i-- > 0 && !lowered;)
            if (strncmp(settings[i].name, of_gemm ? "gemm." : "attention.", of_gemm ? 5 : 10) == 0 &&
                strcmp(settings[i].name, "gemm.provider") != 0)
                lowered = lower(&settings[i]);
    }
}

START_TEST(no_tunable_changes_a_bit)
{
    struct keel_setting settings[SETTINGS_MAX];
    struct keel_device *device;
    memcpy(settings, samples[_i], sizeof settings);
    ck_ok(keel_device_open("pocl", NULL, &device));
    fit(keel_device_info(device), settings);
    keel_device_close(device);
    struct rig rig = rig_open("pocl", settings, settings_of(settings));
    all_cases(&stacks[1], &rig, 256);
    rig_close(&rig);
}
END_TEST

/* What PoCL says is the second cache of the processor, and so it differs from machine to machine. */
static const struct {
    uint64_t local_bytes;
    uint32_t units;
} machines[] = {{16384, 1},  {32768, 2},  {49152, 4},   {65536, 8},  {262144, 1},
                {524288, 2}, {917504, 3}, {1048576, 4}, {2097152, 8}};

/* The kernels that take local memory, made for a device that has so much of it and so many processors, and
 * run where there is as much. That each fits is seen by keel_kernels_create. */
START_TEST(every_size_of_local_memory_gives_the_hashes)
{
    char threads[16];
    snprintf(threads, sizeof threads, "%u", machines[_i].units);
    setenv("POCL_MAX_PTHREAD_COUNT", threads, 1);
    struct rig rig = rig_open("pocl", NULL, 0);
    struct keel_device_info target = *keel_device_info(rig.device);
    if (machines[_i].local_bytes > target.local_bytes) {
        printf("note: %" PRIu64 " bytes of local memory: here are %" PRIu64 "\n", machines[_i].local_bytes,
               target.local_bytes);
    } else {
        target.local_bytes = machines[_i].local_bytes;
        target.compute_units = machines[_i].units;
        keel_kernels_destroy(rig.kernels);
        ck_ok(keel_kernels_create_with(rig.device, &(struct keel_kernels_options){.target = &target},
                                       &rig.kernels));
        some_cases(&stacks[1], &rig, 256, "gemm");
        some_cases(&stacks[1], &rig, 256, "conv2d");
        some_cases(&stacks[1], &rig, 256, "attention");
    }
    rig_close(&rig);
}
END_TEST

/* A device of each size from 16 KiB on has settings that fit, and none that does not passes. */
START_TEST(defaults_and_settings_fit_the_local_memory)
{
    struct keel_device *device;
    ck_ok(keel_device_open("pocl", NULL, &device));
    struct keel_device_info info = *keel_device_info(device);
    for (info.local_bytes = 16384; info.local_bytes <= 1 << 24; info.local_bytes += info.local_bytes / 8)
        ck_ok(keel_kernels_check(&info, NULL, 0));
    info.local_bytes = 8192;
    ck_status(keel_kernels_check(&info, NULL, 0), KEEL_LIMIT);
    info.local_bytes = 32768;
    ck_status(keel_kernels_check(&info, &(struct keel_setting){"gemm.rows", 512}, 1), KEEL_LIMIT);
    ck_status(keel_kernels_check(&info, &(struct keel_setting){"attention.kept", 8192}, 1), KEEL_LIMIT);
    keel_device_close(device);
}
END_TEST

START_TEST(every_tunable_is_in_a_sample)
{
    for (uint32_t t = 0; t < keel_tunable_count(); t++) {
        bool seen = false;
        for (size_t s = 0; s < sizeof samples / sizeof samples[0]; s++)
            for (int i = 0; i < SETTINGS_MAX; i++)
                seen = seen || (samples[s][i].name != NULL &&
                                strcmp(samples[s][i].name, keel_tunable_get(t).name) == 0);
        ck_assert_msg(seen, "%s is in no sample", keel_tunable_get(t).name);
    }
}
END_TEST

START_TEST(what_is_no_setting_is_refused_by_name)
{
    static const struct keel_setting wrong[] = {{"gemm.deph", 64}, {"gemm.depth", 65}};
    static const char *const said[] = {"gemm.deph: kernels have no such tunable",
                                       "gemm.depth = 65: not one of"};
    struct keel_device *device;
    struct keel_kernels *kernels;
    ck_ok(keel_device_open("host", NULL, &device));
    for (int i = 0; i < 2; i++) {
        const struct keel_kernels_options options = {.settings = &wrong[i], .setting_count = 1};
        ck_status(keel_kernels_create_with(device, &options, &kernels), KEEL_INVALID);
        ck_assert_msg(strstr(keel_detail(), said[i]) != NULL, "%s", keel_detail());
    }
    keel_device_close(device);
}
END_TEST

static bool launches(struct keel_kernels *kernels, uint32_t index, const struct keel_kernel *kernel)
{
    struct golden_run run = {.kernels = kernels};
    bool found = false;
    ck_ok(golden_build(&run, index));
    for (uint32_t i = 0; i < run.list.count; i++)
        found = found || run.list.items[i].kernel == kernel;
    golden_run_fini(&run);
    return found;
}

/* On processors, or where lanes are many. */
START_TEST(every_kernel_is_launched_by_the_cases)
{
    const struct keel_setting many = {"gemm.items", 64};
    struct rig rigs[] = {rig_open("host", NULL, 0), rig_open("host", &many, 1)};
    for (uint32_t p = 0; p < keel_kernels_part_count(rigs[0].kernels); p++) {
        const struct keel_module *module = keel_kernels_part(rigs[0].kernels, p).module;
        for (uint32_t k = 0; k < module->kernel_count; k++) {
            bool launched = false;
            for (uint32_t i = 0; i < 2 * keel_golden_count(KEEL_CANONICAL) && !launched; i++)
                launched = launches(rigs[i % 2].kernels, i / 2,
                                    keel_kernels_part(rigs[i % 2].kernels, p).kernels[k]);
            ck_assert_msg(launched, "no golden case launches %s", module->kernels[k].name);
        }
    }
    rig_close(&rigs[0]);
    rig_close(&rigs[1]);
}
END_TEST

START_TEST(names_are_unique_and_each_operation_has_three_shapes)
{
    for (uint32_t i = 0; i < keel_golden_count(KEEL_CANONICAL); i++) {
        const struct keel_golden golden = keel_golden_get(KEEL_CANONICAL, i);
        uint32_t same_op = 0;
        for (uint32_t j = 0; j < keel_golden_count(KEEL_CANONICAL); j++) {
            ck_assert(i == j || strcmp(golden.name, keel_golden_get(KEEL_CANONICAL, j).name) != 0);
            same_op += strcmp(golden.op, keel_golden_get(KEEL_CANONICAL, j).op) == 0;
        }
        ck_assert_msg(same_op >= 3, "%s: %u shapes", golden.op, same_op);
    }
    for (enum keel_class numerics = KEEL_CANONICAL; numerics < KEEL_CLASSES; numerics++)
        for (uint32_t i = 0; i < keel_golden_count(numerics); i++) {
            const struct keel_golden golden = keel_golden_get(numerics, i);
            ck_assert_uint_gt(golden.bytes, 0);
            ck_assert_msg(golden.bytes <= KEEL_GOLDEN_BYTES_MAX, "%s: %" PRIu64 " bytes", golden.name,
                          golden.bytes);
        }
}
END_TEST

/* ---- what a case must notice ---- */

static uint32_t case_named(const char *name)
{
    uint32_t i = 0;
    while (strcmp(keel_golden_get(KEEL_CANONICAL, i).name, name) != 0)
        i++;
    return i;
}

/* Where the kernels keep this one. */
static struct keel_kernel **place_of(struct keel_kernels *kernels, const struct keel_kernel *kernel)
{
    for (uint32_t m = 0; m < KEEL_MODULE_COUNT; m++)
        for (uint32_t k = 0;
             kernels->modules[m].kernels != NULL && k < kernels->modules[m].module->kernel_count; k++)
            if (kernels->modules[m].kernels[k] == kernel)
                return &kernels->modules[m].kernels[k];
    ck_abort_msg("no such kernel");
    return NULL;
}

/* add/67 again, whose kernel then does something that it must not. */
static struct keel_golden_result spoiled(void (*spoil)(void *const *, const struct keel_range *))
{
    struct rig rig = rig_open("host", NULL, 0);
    struct keel_golden_result result;
    const struct keel_module_kernel kernel = {"spoil", spoil};
    const struct keel_module module = {.name = "spoil", .source = "", .kernels = &kernel, .kernel_count = 1};
    struct keel_program *program;
    struct keel_kernel *spoiler;
    ck_ok(keel_program_create(rig.device, &module, "", &program));
    ck_ok(keel_kernel_create(program, "spoil", &spoiler));
    const uint32_t index = case_named("add/67");
    struct golden_run run = {.kernels = rig.kernels};
    ck_ok(golden_build(&run, index));
    ck_assert_uint_eq(run.list.count, 1);
    struct keel_kernel **place = place_of(rig.kernels, run.list.items[0].kernel), *own = *place;
    golden_run_fini(&run);
    *place = spoiler;
    ck_ok(keel_golden_run(rig.kernels, rig.queue, index, keel_deadline_after_ns(LIMIT_NS), &result));
    *place = own;
    keel_kernel_destroy(spoiler);
    keel_program_destroy(program);
    rig_close(&rig);
    return result;
}

static void write_behind(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    ((char *)arguments[2])[67 * 4 + 5] = 1;
}
static void write_before(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    ((char *)arguments[1])[-8] ^= 1;
}
static void write_input(void *const *arguments, const struct keel_range *range)
{
    (void)range;
    ((char *)arguments[0])[12] ^= 1;
}

START_TEST(a_write_beyond_a_buffer_is_named)
{
    static const struct {
        void (*spoil)(void *const *, const struct keel_range *);
        const char *buffer;
        int64_t offset;
    } hits[] = {{write_behind, "y", 67 * 4 + 5}, {write_before, "b", -8}, {write_input, "a", 12}};
    for (int i = 0; i < 3; i++) {
        const struct keel_golden_result result = spoiled(hits[i].spoil);
        ck_assert(!result.matches && !result.intact);
        ck_assert_str_eq(result.hit_buffer, hits[i].buffer);
        ck_assert_int_eq(result.hit_offset_bytes, hits[i].offset);
    }
}
END_TEST

/* An input or a result whose bit flips on its way to the host, once: no kernel did it. */
START_TEST(a_read_that_is_wrong_once_is_the_transfer_and_not_the_operation)
{
    struct rig rig = rig_open("pocl:0", NULL, 0);
    struct keel_golden_result result;
    char what[256], plan[32];
    bool inputs = false, results = false;
    for (uint32_t read = 1; read <= 3; read++) { /* a, b, c of 1 x 1, behind guards of 256 bytes */
        snprintf(plan, sizeof plan, "flip:read=%u,bit=2053", read);
        ck_ok(keel_device_inject(rig.device, plan));
        ck_ok(keel_golden_run(rig.kernels, rig.queue, 0, keel_deadline_after_ns(LIMIT_NS), &result));
        ck_assert(!result.matches || !result.intact);
        ck_assert(result.transfer);
        keel_golden_describe(&result, what, sizeof what);
        ck_assert_msg(strstr(what, "the transfer from the board") != NULL, "%s", what);
        inputs |= !result.intact;
        results |= !result.matches;
    }
    ck_assert(inputs && results);
    ck_ok(keel_device_inject(rig.device, "flip:read=*,bit=2053")); /* a wire that is always bad is not told */
    ck_ok(keel_golden_run(rig.kernels, rig.queue, 0, keel_deadline_after_ns(LIMIT_NS), &result));
    ck_assert(!result.transfer);
    ck_ok(keel_device_inject(rig.device, NULL));
    ck_ok(keel_golden_run(rig.kernels, rig.queue, 0, keel_deadline_after_ns(LIMIT_NS), &result));
    ck_assert(result.matches && result.intact && !result.transfer);
    rig_close(&rig);
}
END_TEST

/* ---- other classes ---- */

START_TEST(classes_with_planes_have_hashes_of_their_own)
{
    static const enum keel_class classes[] = {KEEL_EXACT8X2, KEEL_EXACT8X3, KEEL_CLASS_BF16};
    const enum keel_class numerics = classes[_i % 3];
    struct rig rig = rig_open_class(stacks[_i / 3].selector, numerics, UINT32_MAX, NULL, 0);
    ck_assert_uint_gt(keel_golden_count(numerics), keel_golden_count(KEEL_CANONICAL));
    ck_assert_uint_eq(keel_golden_count(KEEL_NATIVE), keel_golden_count(KEEL_CANONICAL));
    some_cases(&stacks[_i / 3], &rig, 256, "gemm");
    some_cases(&stacks[_i / 3], &rig, 256, "attention");
    some_cases(&stacks[_i / 3], &rig, 256, keel_class_name(numerics));
    rig_close(&rig);
}
END_TEST

/* ---- for oclgrind_test.sh ---- */

/* GOLDEN_DEVICE=selector: all cases on that device, with buffers of exactly their size, so that a simulator
 * sees each byte beyond them; GOLDEN_LANES sets canon.by_lane. GOLDEN_ITEMS=N: as where lanes are many,
 * gemm.items and attention.items = N. GOLDEN_ONLY=OPERATION: its cases alone. GOLDEN_CLASS: of kernels of
 * that class; GOLDEN_DOTS=N: with these dots of bytes, of those that the device has. */
START_TEST(the_device_that_was_named_gives_the_hashes)
{
    const char *lanes = getenv("GOLDEN_LANES");
    const char *items = getenv("GOLDEN_ITEMS");
    const char *only = getenv("GOLDEN_ONLY");
    const uint32_t count = items != NULL ? (uint32_t)atoi(items) : 1;
    const struct keel_setting settings[] = {{"canon.by_lane", lanes != NULL ? (uint32_t)atoi(lanes) : 0},
                                            {"gemm.item_depth", 8},
                                            {"gemm.items", count},
                                            {"attention.items", count},
                                            {"launch.group_items", 32},
                                            {"launch.item_elements", 16},
                                            {"launch.row_items", 16}};
    const char *class = getenv("GOLDEN_CLASS"), *dots = getenv("GOLDEN_DOTS");
    const struct stack stack = {.name = getenv("GOLDEN_DEVICE")};
    struct rig rig = rig_open_class(stack.name, class != NULL ? keel_class_find(class) : KEEL_CANONICAL,
                                    dots != NULL ? (uint32_t)atoi(dots) : UINT32_MAX, settings,
                                    items != NULL ? sizeof settings / sizeof settings[0] : 1);
    some_cases(&stack, &rig, 0, only != NULL ? only : "");
    rig_close(&rig);
}
END_TEST

/* ---- for gpu_code_test.sh ---- */

/* KERNELS_FOR_GPU=folder: every module as it is given to the compiler of a GPU, MODULE.cl, and what the
 * compiler is told at the default tunables, MODULE.options. The facts are those that drivers of such devices
 * tell. */
static void write_text(const char *folder, const char *module, const char *ending, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", folder, module, ending);
    FILE *file = fopen(path, "w");
    ck_assert_msg(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s cannot be written", path);
}

START_TEST(the_texts_for_a_gpu_are_written)
{
    const struct keel_device_info gpu = {.kind = KEEL_DEVICE_GPU,
                                         .compute_units = 108,
                                         .lanes = 32,
                                         .local_bytes = 49152,
                                         .local_dedicated = true,
                                         .max_group_items = 1024,
                                         .max_items = {1024, 1024, 64},
                                         .numerics = KEEL_NUMERICS_FMA};
    struct rig rig = rig_open_class("host", KEEL_EXACT8X2, UINT32_MAX, NULL, 0);
    struct keel_kernels there = {.info = gpu, .numerics = KEEL_EXACT8X2}; /* only options are asked of it */
    ck_ok(keel_tunables_apply(&gpu, NULL, 0, there.tuned));
    there.planes = keel_planes_way(&gpu, there.numerics, there.tuned);
    for (uint32_t p = 0; p < keel_kernels_part_count(rig.kernels); p++) {
        const struct keel_kernels_part part = keel_kernels_part(rig.kernels, p);
        const enum keel_module_id module = keel_kernels_part_module(rig.kernels, p);
        char options[KEEL_BUILD_OPTIONS_BYTES], *text;
        ck_ok(keel_module_source(part.module, &text));
        if (module == KEEL_MODULE_planes)
            keel_planes_build_options(&there, options);
        else
            keel_tunables_build_options(&gpu, module, there.tuned, options);
        write_text(getenv("KERNELS_FOR_GPU"), part.module->name, "cl", text);
        write_text(getenv("KERNELS_FOR_GPU"), part.module->name, "options", options);
        keel_free(text);
    }
    rig_close(&rig);
}
END_TEST

static void cases(TCase *tc)
{
    if (getenv("KERNELS_FOR_GPU") != NULL) {
        tcase_add_test(tc, the_texts_for_a_gpu_are_written);
        return;
    }
    if (getenv("GOLDEN_DEVICE") != NULL) {
        tcase_add_test(tc, the_device_that_was_named_gives_the_hashes);
        return;
    }
    for (int i = 0; i < STACKS; i++)
        if (is_here(&stacks[i]))
            tcase_add_loop_test(tc, every_stack_gives_the_hashes_of_the_table, i, i + 1);
        else
            printf("note: %s is not here\n0 passed, 0 failed, 1 skipped\n", stacks[i].name);
    tcase_add_loop_test(tc, no_tunable_changes_a_bit, 0, (int)(sizeof samples / sizeof samples[0]));
    tcase_add_loop_test(tc, every_size_of_local_memory_gives_the_hashes, 0,
                        (int)(sizeof machines / sizeof machines[0]));
    tcase_add_loop_test(tc, classes_with_planes_have_hashes_of_their_own, 0, 6);
    tcase_add_test(tc, defaults_and_settings_fit_the_local_memory);
    tcase_add_test(tc, every_tunable_is_in_a_sample);
    tcase_add_test(tc, what_is_no_setting_is_refused_by_name);
    tcase_add_test(tc, every_kernel_is_launched_by_the_cases);
    tcase_add_test(tc, names_are_unique_and_each_operation_has_three_shapes);
    tcase_add_test(tc, a_write_beyond_a_buffer_is_named);
    tcase_add_test(tc, a_read_that_is_wrong_once_is_the_transfer_and_not_the_operation);
}

KEEL_TEST_MAIN("golden", cases, LIMIT_S)
