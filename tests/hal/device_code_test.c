/* device_code_test.c - code in every form: from a provider or from source, images that programs share and
 * that take each other's place, groups that are fixed. On PoCL, with calls of the compiler counted in front
 * of it, and built-in kernels put there. */
#include "compile_count.h"
#include "device_backend.h"
#include "harness.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_NS (60 * KEEL_NS_PER_S)
enum { ITEMS = 64, BYTES = ITEMS * (int)sizeof(uint32_t) };

/* A board with two kernels built in; other names are for the driver to refuse. */
static char built_in_names[64];
cl_program clCreateProgramWithBuiltInKernels(cl_context context, cl_uint num_devices,
                                             const cl_device_id *device_list, const char *kernel_names,
                                             cl_int *errcode_ret)
{
    static const char *text = "kernel void add(global uint *x, uint y) { x[get_global_id(0)] += y; }\n"
                              "kernel void times(global uint *x, uint y) { x[get_global_id(0)] *= y; }";
    cl_program (*next)(cl_context, cl_uint, const cl_device_id *, const char *, cl_int *);
    cl_program (*next_source)(cl_context, cl_uint, const char **, const size_t *, cl_int *);
    void *found = next_of("clCreateProgramWithBuiltInKernels"),
         *source = next_of("clCreateProgramWithSource");
    memcpy(&next, &found, sizeof next);
    memcpy(&next_source, &source, sizeof next_source);
    if (strstr(kernel_names, "add") == NULL)
        return next(context, num_devices, device_list, kernel_names, errcode_ret);
    snprintf(built_in_names, sizeof built_in_names, "%s", kernel_names);
    return next_source(context, 1, &text, NULL, errcode_ret);
}

static void no_host(void *const *arguments, const struct keel_range *range)
{
    (void)arguments, (void)range;
}

static const struct keel_module_kernel add_table[] = {{"add", no_host}};
static const struct keel_module add_module = {
    "adding", "kernel void add(global uint *x, uint y) { x[get_global_id(0)] += y; }", .kernels = add_table,
    .kernel_count = 1};
static const struct keel_module_kernel times_table[] = {{"times", no_host}};
static const struct keel_module times_module = {
    "multiplying", "kernel void times(global uint *x, uint y) { x[get_global_id(0)] *= y; }",
    .kernels = times_table, .kernel_count = 1};
static const struct keel_range groups_of_8 = {.global = {ITEMS, 1, 1}, .local = {8, 1, 1}};
static const struct keel_range groups_of_16 = {.global = {ITEMS, 1, 1}, .local = {16, 1, 1}};

/* What the provider gives; the module whose code is not here is NOT_FOUND. */
static struct shelf {
    const struct keel_module *module;
    struct keel_code code;
    struct keel_code_kernel kernels[2];
} shelf[2];
static uint32_t asked;
static enum keel_status answer; /* when it is not OK */

static enum keel_status find(void *context, const struct keel_module *module, const char *options,
                             struct keel_code *out)
{
    ck_assert_ptr_eq(context, shelf);
    ck_assert_ptr_nonnull(options);
    asked++;
    if (answer != KEEL_OK)
        return keel_fail(answer, "the shelf fell over");
    for (int i = 0; i < 2; i++)
        if (shelf[i].module == module) {
            *out = shelf[i].code;
            return KEEL_OK;
        }
    return keel_fail(KEEL_NOT_FOUND, "not on the shelf");
}
static const struct keel_code_provider provider = {find, shelf};

static struct keel_device *device;
static struct keel_queue *queue;
static struct keel_buffer *buffer;

static uint64_t blocks_before; /* what is made is given back */

static void open_with(const struct keel_device_options *options)
{
    blocks_before = keel_memory_stats().live_blocks;
    ck_ok(keel_device_open("pocl:0", options, &device));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_buffer_create(device, BYTES, &buffer));
}

static void close_all(void)
{
    keel_buffer_destroy(buffer);
    keel_queue_destroy(queue);
    keel_device_close(device);
    ck_assert_uint_eq(keel_memory_stats().live_blocks, blocks_before);
}

static void finish(void)
{
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(LIMIT_NS)));
}

static enum keel_status launch(struct keel_kernel *kernel, uint32_t value, const struct keel_range *range)
{
    struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = buffer}}, {KEEL_ARG_U32, {.u32 = value}}};
    return keel_queue_launch(queue, kernel, args, 2, range, NULL, NULL);
}

static uint32_t last_item(void)
{
    uint32_t out = 0;
    ck_ok(keel_queue_read(queue, buffer, BYTES - 4, &out, 4, NULL, NULL));
    finish();
    return out;
}

struct built {
    struct keel_program *program;
    struct keel_kernel *kernel;
};

static struct built build_of(const struct keel_module *module)
{
    struct built built = {0};
    ck_ok(keel_program_create(device, module, "-DUNUSED=1", &built.program));
    ck_ok(keel_kernel_create(built.program, module->kernels[0].name, &built.kernel));
    return built;
}

static void drop(struct built *built)
{
    keel_kernel_destroy(built->kernel);
    keel_program_destroy(built->program);
    *built = (struct built){0};
}

/* Put a module's binary, made here, on the shelf. */
static void shelve(int place, const struct keel_module *module, void *bytes, uint64_t size, uint64_t image)
{
    shelf[place] = (struct shelf){.module = module};
    shelf[place].kernels[0] = (struct keel_code_kernel){.name = module->kernels[0].name, .arg_count = 2};
    shelf[place].code = (struct keel_code){.form = KEEL_CODE_BINARY,
                                           .bytes = bytes,
                                           .size = size,
                                           .image = image,
                                           .kernels = shelf[place].kernels,
                                           .kernel_count = 1};
}

static void make_binary(int place, const struct keel_module *module, uint64_t image)
{
    void *bytes = NULL;
    uint64_t size = 0;
    struct built built = build_of(module);
    ck_ok(launch(built.kernel, 0, &groups_of_8)); /* warm */
    finish();
    ck_ok(keel_program_binary(built.program, &bytes, &size));
    blocks_before++; /* stays on the shelf */
    ck_assert_uint_gt(size, 0);
    drop(&built);
    shelve(place, module, bytes, size, image);
}

/* Both modules on the shelf, each an image of its own, as made by a device of their kind. */
static void fill_shelf(void)
{
    open_with(NULL);
    make_binary(0, &add_module, 11);
    make_binary(1, &times_module, 22);
    close_all();
    from_source = from_binary = 0;
}

static void clear_shelf(void)
{
    for (int i = 0; i < 2; i++)
        keel_free((void *)shelf[i].code.bytes);
}

START_TEST(provided_code_is_run_and_nothing_is_compiled)
{
    fill_shelf();
    open_with(&(struct keel_device_options){.code = &provider});
    struct built add = build_of(&add_module), times = build_of(&times_module);
    ck_ok(launch(add.kernel, 5, &groups_of_8));
    ck_ok(launch(times.kernel, 7, &groups_of_16));
    ck_assert_uint_eq(last_item(), 35);
    ck_assert_uint_eq(asked, 2);
    ck_assert_uint_eq(from_source, 0);
    ck_assert_uint_eq(from_binary, 2);
    drop(&add);
    drop(&times);
    close_all();
    clear_shelf();
}
END_TEST

START_TEST(what_is_not_provided_comes_from_source)
{
    fill_shelf();
    shelf[1].module = NULL;
    open_with(NULL);
    keel_device_use_code(device, &provider);
    struct built add = build_of(&add_module), times = build_of(&times_module);
    ck_assert_uint_eq(from_source, 1);
    ck_assert_uint_eq(from_binary, 1);
    drop(&add);
    drop(&times);
    struct keel_program *program = NULL;
    answer = KEEL_CORRUPT; /* any other failure is the program's */
    ck_status(keel_program_create(device, &times_module, NULL, &program), KEEL_CORRUPT);
    ck_assert_ptr_null(program);
    close_all();
    clear_shelf();
}
END_TEST

START_TEST(without_a_compiler_what_is_missing_is_named)
{
    open_with(NULL);
    device->info.code_forms &= ~(uint32_t)KEEL_CODE_SOURCE;
    struct keel_program *program = NULL;
    ck_status(keel_program_create(device, &add_module, "-DA=3", &program), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "adding"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "-DA=3"));
    ck_assert_ptr_nonnull(strstr(keel_detail(), "keel board build"));
    const struct keel_module *modules[] = {&add_module};
    const char *options[] = {""};
    ck_status(keel_image_load(device, modules, options, 1, 1), KEEL_UNSUPPORTED);
    close_all();
}
END_TEST

START_TEST(auto_takes_what_has_no_compiler_only_with_code)
{
    struct keel_candidate candidates[2] = {
        {.info = {.selector = "fpga:0", .kind = KEEL_DEVICE_ACCELERATOR, .code_forms = KEEL_CODE_BINARY}},
        {.info = {.selector = "host", .kind = KEEL_DEVICE_HOST, .code_forms = KEEL_CODE_BUILTIN}}};
    uint32_t picked = 9;
    ck_ok(keel_candidate_pick(candidates, 2, "auto", false, &picked));
    ck_assert_uint_eq(picked, 1);
    ck_ok(keel_candidate_pick(candidates, 2, "auto", true, &picked));
    ck_assert_uint_eq(picked, 0);
    ck_ok(keel_candidate_pick(candidates, 2, "fpga", false, &picked));
    ck_assert_uint_eq(picked, 0);
}
END_TEST

/* What can be said of code before the driver sees it. */
START_TEST(code_that_cannot_be_right_never_reaches_the_driver)
{
    struct keel_program *program = NULL;
    fill_shelf();
    open_with(&(struct keel_device_options){.code = &provider});
    uint64_t size = shelf[0].code.size;
    shelf[0].code.size = 0;
    ck_status(keel_program_create(device, &add_module, NULL, &program), KEEL_CORRUPT);
    shelf[0].code.size = size;
    shelf[0].code.form = KEEL_CODE_SOURCE;
    ck_status(keel_program_create(device, &add_module, NULL, &program), KEEL_MISMATCH);
    shelf[0].code.form = (enum keel_code_form)8;
    ck_status(keel_program_create(device, &add_module, NULL, &program), KEEL_MISMATCH);
    shelf[0].code.form = KEEL_CODE_BINARY;
    device->info.code_forms &= ~(uint32_t)KEEL_CODE_BINARY;
    ck_status(keel_program_create(device, &add_module, NULL, &program), KEEL_MISMATCH);
    device->info.code_forms |= KEEL_CODE_BINARY;
    shelf[0].kernels[0].name = "subtract";
    ck_status(keel_program_create(device, &add_module, NULL, &program), KEEL_MISMATCH);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "no kernel add"));
    ck_assert_uint_eq(from_binary + from_source, 0);
    ck_assert_ptr_null(program);
    close_all();
    clear_shelf();
}
END_TEST

START_TEST(code_that_was_described_wrong_is_refused)
{
    struct keel_program *program = NULL;
    struct keel_kernel *kernel = NULL;
    fill_shelf();
    shelf[0].kernels[0].arg_count = 3;
    open_with(&(struct keel_device_options){.code = &provider});
    ck_ok(keel_program_create(device, &add_module, NULL, &program));
    ck_status(keel_kernel_create(program, "add", &kernel), KEEL_MISMATCH);
    ck_assert_ptr_null(kernel);
    keel_program_destroy(program);
    close_all();
    clear_shelf();
}
END_TEST

START_TEST(a_fixed_group_is_kept_to)
{
    fill_shelf();
    memcpy(shelf[0].kernels[0].local, (uint32_t[]){8, 1, 1}, sizeof shelf[0].kernels[0].local);
    open_with(&(struct keel_device_options){.code = &provider});
    struct built add = build_of(&add_module), times = build_of(&times_module);
    ck_assert_uint_eq(keel_kernel_info(add.kernel).arg_count, 2);
    ck_assert_uint_eq(keel_kernel_info(add.kernel).local[0], 8);
    ck_assert_uint_eq(keel_kernel_info(times.kernel).local[0], 0);
    ck_status(launch(add.kernel, 1, &groups_of_16), KEEL_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "8 x 1 x 1"));
    ck_ok(launch(add.kernel, 1, &groups_of_8));
    ck_ok(launch(times.kernel, 3, &groups_of_16));
    ck_assert_uint_eq(last_item(), 3);
    drop(&add);
    drop(&times);
    close_all();
    clear_shelf();
}
END_TEST

/* Also where the source says so. */
START_TEST(a_group_fixed_in_the_source_is_known)
{
    static const struct keel_module fixed = {"fixed",
                                             "__attribute__((reqd_work_group_size(16, 1, 1)))\n"
                                             "kernel void add(global uint *x, uint y)\n"
                                             "{ x[get_global_id(0)] += y; }",
                                             .kernels = add_table, .kernel_count = 1};
    open_with(NULL);
    struct built add = build_of(&fixed);
    ck_assert_uint_eq(keel_kernel_info(add.kernel).local[0], 16);
    ck_status(launch(add.kernel, 1, &groups_of_8), KEEL_UNSUPPORTED);
    ck_ok(launch(add.kernel, 4, &groups_of_16));
    ck_assert_uint_eq(last_item(), 4);
    drop(&add);
    close_all();
}
END_TEST

/* Both modules linked as image 5, warm; its binary stands on the shelf for both. */
static void shelve_linked(void)
{
    const struct keel_module *modules[] = {&add_module, &times_module};
    const char *options[] = {"", "-DUNUSED"};
    void *bytes = NULL;
    uint64_t size = 0;
    open_with(&(struct keel_device_options){.code = &provider});
    ck_ok(keel_image_load(device, modules, options, 2, 5));
    shelve(0, &add_module, NULL, 0, 5);
    shelve(1, &times_module, NULL, 0, 5);
    struct built add = build_of(&add_module), times = build_of(&times_module);
    ck_ok(launch(add.kernel, 6, &groups_of_8));
    ck_ok(launch(times.kernel, 2, &groups_of_8));
    ck_assert_uint_eq(last_item(), 12);
    ck_assert_uint_eq(from_binary, 0);
    ck_ok(keel_program_binary(times.program, &bytes, &size));
    blocks_before++;
    drop(&add);
    drop(&times);
    close_all();
    shelve(0, &add_module, bytes, size, 5);
    shelve(1, &times_module, bytes, size, 5);
    from_source = 0;
}

START_TEST(modules_of_one_image_are_one_native_program)
{
    shelve_linked();
    open_with(&(struct keel_device_options){.code = &provider, .image_limit = 1});
    struct built add = build_of(&add_module), times = build_of(&times_module), again = build_of(&add_module);
    ck_assert_uint_eq(from_binary, 1);
    ck_assert_uint_eq(from_source, 0);
    drop(&again);
    ck_ok(launch(add.kernel, 6, &groups_of_8));
    ck_ok(launch(times.kernel, 2, &groups_of_8));
    ck_assert_uint_eq(last_item(), 12);
    drop(&add);
    drop(&times);
    struct built anew = build_of(&times_module); /* nobody held it any more: it is loaded again */
    ck_assert_uint_eq(from_binary, 2);
    drop(&anew);
    close_all();
    keel_free((void *)shelf[0].code.bytes);
}
END_TEST

START_TEST(a_linked_image_takes_a_place_like_any_other)
{
    const struct keel_module *modules[] = {&times_module};
    const char *options[] = {""};
    open_with(&(struct keel_device_options){.image_limit = 1});
    struct built add = build_of(&add_module);
    ck_ok(launch(add.kernel, 1, &groups_of_8));
    ck_status(keel_image_load(device, modules, options, 1, 7), KEEL_BUSY);
    finish();
    ck_ok(keel_image_load(device, modules, options, 1, 7));
    ck_status(launch(add.kernel, 1, &groups_of_8), KEEL_NOT_FOUND);
    drop(&add);
    close_all(); /* nobody took the image: it goes with the device */
}
END_TEST

START_TEST(an_image_takes_anothers_place_only_when_idle)
{
    fill_shelf();
    open_with(&(struct keel_device_options){.code = &provider, .image_limit = 1});
    struct built add = build_of(&add_module), times = {0};
    ck_ok(launch(add.kernel, 9, &groups_of_8));
    ck_status(keel_program_create(device, &times_module, NULL, &times.program), KEEL_BUSY);
    ck_ok(launch(add.kernel, 1, &groups_of_8)); /* it is still there */
    ck_assert_uint_eq(last_item(), 10);
    times = build_of(&times_module);
    ck_status(launch(add.kernel, 1, &groups_of_8), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "kernel add"));
    ck_ok(launch(times.kernel, 4, &groups_of_8)); /* the queue is none the worse */
    ck_assert_uint_eq(last_item(), 40);
    struct built back = build_of(&add_module);
    ck_status(launch(times.kernel, 1, &groups_of_8), KEEL_NOT_FOUND);
    ck_status(launch(add.kernel, 1, &groups_of_8), KEEL_NOT_FOUND); /* of the image that went */
    ck_ok(launch(back.kernel, 2, &groups_of_8));
    ck_assert_uint_eq(last_item(), 42);
    drop(&back);
    drop(&add);
    drop(&times);
    close_all();
    clear_shelf();
}
END_TEST

/* A source that does not build, and a binary of no bytes. */
START_TEST(an_image_stays_where_the_next_one_cannot_be_had)
{
    static const struct keel_module broken = {"broken",
                                              "kernel void add(global uint *x, uint y) { x = y +; }",
                                              .kernels = add_table, .kernel_count = 1};
    struct keel_program *none = NULL;
    open_with(&(struct keel_device_options){.code = &provider, .image_limit = 1});
    struct built add = build_of(&add_module);
    ck_status(keel_program_create(device, &broken, NULL, &none), KEEL_UNSUPPORTED);
    ck_ok(launch(add.kernel, 7, &groups_of_8));
    ck_status(keel_program_create(device, &times_module, NULL, &none), KEEL_BUSY);
    ck_assert_uint_eq(last_item(), 7);
    shelve(1, &times_module, "", 0, 22);
    ck_status(keel_program_create(device, &times_module, NULL, &none), KEEL_CORRUPT);
    ck_ok(launch(add.kernel, 2, &groups_of_8));
    ck_assert_uint_eq(last_item(), 9);
    drop(&add);
    close_all();
}
END_TEST

START_TEST(a_list_of_an_image_that_is_gone_is_refused)
{
    fill_shelf();
    open_with(&(struct keel_device_options){.code = &provider, .image_limit = 1});
    struct built add = build_of(&add_module);
    struct keel_commands *list = NULL;
    struct keel_arg args[] = {{KEEL_ARG_BUFFER, {.buffer = buffer}}, {KEEL_ARG_U32, {.u32 = 3}}};
    ck_ok(keel_commands_create(device, &list));
    ck_ok(keel_commands_launch(list, add.kernel, args, 2, &groups_of_8));
    ck_ok(keel_commands_seal(list));
    ck_ok(keel_queue_replay(queue, list, NULL, NULL));
    ck_assert_uint_eq(last_item(), 3);
    struct built times = build_of(&times_module);
    ck_status(keel_queue_replay(queue, list, NULL, NULL), KEEL_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(keel_detail(), "kernel add"));
    keel_commands_destroy(list);
    drop(&add);
    drop(&times);
    close_all();
    clear_shelf();
}
END_TEST

/* While one thread keeps the board busy another one asks for its place, in vain. */
enum { ASKED = 20000 };
static atomic_bool enough;
static void *ask_for_the_place(void *told_busy)
{
    for (int i = 0; i < ASKED; i++) {
        struct keel_program *program = NULL;
        *(int *)told_busy += keel_program_create(device, &times_module, NULL, &program) == KEEL_BUSY;
    }
    atomic_store(&enough, true);
    return NULL;
}

START_TEST(a_launch_is_not_refused_for_an_image_that_stays)
{
    fill_shelf();
    open_with(&(struct keel_device_options){.code = &provider, .image_limit = 1});
    struct built add = build_of(&add_module);
    struct keel_thread other;
    uint32_t launched = 1;
    int told_busy = 0;
    ck_ok(launch(add.kernel, 1, &groups_of_8));
    ck_ok(keel_thread_create(&other, "other", ask_for_the_place, &told_busy));
    for (; !atomic_load(&enough); launched++) {
        struct keel_event *event = NULL;
        ck_ok(launch(add.kernel, 1, &groups_of_8));
        if (launched % 64 != 0)
            continue;
        ck_ok(keel_queue_mark(queue, &event)); /* waited for, and not finished: the queue stays busy */
        ck_ok(keel_event_wait(event, keel_deadline_after_ns(LIMIT_NS)));
        keel_event_destroy(event);
    }
    keel_thread_join(&other);
    ck_assert_int_eq(told_busy, ASKED);
    ck_assert_uint_eq(last_item(), launched);
    drop(&add);
    close_all();
    clear_shelf();
}
END_TEST

/* With room for two, the one that was loaded first goes. */
START_TEST(the_oldest_image_goes_first)
{
    static const struct keel_module third = {
        "third", "kernel void add(global uint *x, uint y) { x[get_global_id(0)] += 2 * y; }",
        .kernels = add_table, .kernel_count = 1};
    open_with(&(struct keel_device_options){.image_limit = 2});
    struct built add = build_of(&add_module), times = build_of(&times_module), twice = build_of(&third);
    ck_status(launch(add.kernel, 1, &groups_of_8), KEEL_NOT_FOUND);
    ck_ok(launch(twice.kernel, 5, &groups_of_8));
    ck_ok(launch(times.kernel, 3, &groups_of_8));
    ck_assert_uint_eq(last_item(), 30);
    drop(&add);
    drop(&times);
    drop(&twice);
    close_all();
}
END_TEST

START_TEST(built_in_kernels_are_had_by_name)
{
    shelf[0] =
        (struct shelf){.module = &add_module,
                       .kernels = {{.name = "add", .arg_count = 2}, {.name = "times", .arg_count = 2}}};
    shelf[0].code = (struct keel_code){
        .form = KEEL_CODE_BUILTIN, .image = 3, .kernels = shelf[0].kernels, .kernel_count = 2};
    shelf[1] = shelf[0];
    shelf[1].module = &times_module;
    open_with(&(struct keel_device_options){.code = &provider});
    device->info.code_forms = KEEL_CODE_BUILTIN;
    struct built add = build_of(&add_module), times = build_of(&times_module);
    ck_assert_str_eq(built_in_names, "add;times");
    ck_assert_uint_eq(from_source, 0);
    ck_ok(launch(add.kernel, 6, &groups_of_8));
    ck_ok(launch(times.kernel, 3, &groups_of_8));
    ck_assert_uint_eq(last_item(), 18);
    drop(&add);
    drop(&times);
    close_all();
}
END_TEST

START_TEST(a_built_in_kernel_that_is_not_there_is_refused)
{
    static const struct keel_module_kernel names[] = {{"no.such.kernel", no_host}};
    static const struct keel_module missing = {"missing", "", .kernels = names, .kernel_count = 1};
    shelf[0] = (struct shelf){.module = &missing, .kernels = {{.name = "no.such.kernel"}}};
    shelf[0].code =
        (struct keel_code){.form = KEEL_CODE_BUILTIN, .kernels = shelf[0].kernels, .kernel_count = 1};
    open_with(&(struct keel_device_options){.code = &provider});
    device->info.code_forms |= KEEL_CODE_BUILTIN;
    struct keel_program *program = NULL;
    ck_status(keel_program_create(device, &missing, NULL, &program), KEEL_MISMATCH);
    ck_assert_ptr_null(program);
    close_all();
}
END_TEST

START_TEST(the_host_device_has_its_own_code)
{
    struct keel_program *program = NULL;
    void *bytes = NULL;
    uint64_t size = 0;
    ck_ok(keel_device_open("host", &(struct keel_device_options){.code = &provider}, &device));
    ck_ok(keel_program_create(device, &add_module, NULL, &program));
    ck_assert_uint_eq(asked, 0);
    ck_status(keel_program_binary(program, &bytes, &size), KEEL_UNSUPPORTED);
    keel_program_destroy(program);
    keel_device_close(device);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, provided_code_is_run_and_nothing_is_compiled);
    tcase_add_test(tc, what_is_not_provided_comes_from_source);
    tcase_add_test(tc, without_a_compiler_what_is_missing_is_named);
    tcase_add_test(tc, auto_takes_what_has_no_compiler_only_with_code);
    tcase_add_test(tc, code_that_cannot_be_right_never_reaches_the_driver);
    tcase_add_test(tc, code_that_was_described_wrong_is_refused);
    tcase_add_test(tc, a_fixed_group_is_kept_to);
    tcase_add_test(tc, a_group_fixed_in_the_source_is_known);
    tcase_add_test(tc, modules_of_one_image_are_one_native_program);
    tcase_add_test(tc, a_linked_image_takes_a_place_like_any_other);
    tcase_add_test(tc, an_image_takes_anothers_place_only_when_idle);
    tcase_add_test(tc, an_image_stays_where_the_next_one_cannot_be_had);
    tcase_add_test(tc, a_list_of_an_image_that_is_gone_is_refused);
    tcase_add_test(tc, a_launch_is_not_refused_for_an_image_that_stays);
    tcase_add_test(tc, the_oldest_image_goes_first);
    tcase_add_test(tc, built_in_kernels_are_had_by_name);
    tcase_add_test(tc, a_built_in_kernel_that_is_not_there_is_refused);
    tcase_add_test(tc, the_host_device_has_its_own_code);
}

KEEL_TEST_MAIN("device code", cases, 60)
