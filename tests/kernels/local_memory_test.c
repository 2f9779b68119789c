/* local_memory_test.c - local memory that a function is given by its kernel: the shortest kernel that
 * PoCL 3.1 gets wrong (canon_vector.h says why), and that the way in which our kernels are written is right
 * where it is wrong.
 *
 * A group fills an array of its own, a function reads it. A function that is not part of the kernel reads
 * another array on PoCL 3.1 with LLVM 15, on any processor; that is noted, not failed, since no kernel of
 * ours has one. */
#include "harness.h"
#include <keel/clock.h>
#include <keel/device.h>
#include <stdio.h>

enum { WORDS = 16, GROUPS = 64, TIMEOUT_S = 60 };

#define KERNEL(attribute)                                                                                    \
    "__attribute__((" attribute ")) static uint get(__local const uint *x, uint i) { return x[i]; }\n"       \
    "__kernel void local_memory(__global uint *out) {\n"                                                     \
    "    __local uint x[16];\n"                                                                              \
    "    const uint group = (uint)get_group_id(0);\n"                                                        \
    "    for (uint i = 0; i < 16; i++) x[i] = out[16 * group + i] + group;\n"                                \
    "    for (uint i = 0; i < 16; i++) out[16 * group + i] = get(x, 15 - i);\n"                              \
    "}\n"

static void do_nothing(void *const *arguments, const struct keel_range *range)
{
    (void)arguments;
    (void)range;
}
static const struct keel_module_kernel kernels[] = {{"local_memory", do_nothing}};
static const struct keel_module is_part = {"local_memory", KERNEL("always_inline"), .kernels = kernels,
                                           .kernel_count = 1};
static const struct keel_module is_called = {"local_memory", KERNEL("noinline"), .kernels = kernels,
                                             .kernel_count = 1};

/* Words that are not what the group filled in. */
static uint32_t wrong_words(const struct keel_module *module)
{
    static uint32_t words[GROUPS * WORDS];
    struct keel_device *device;
    struct keel_program *program;
    struct keel_kernel *kernel;
    struct keel_queue *queue;
    struct keel_buffer *out;
    ck_ok(keel_device_open("pocl", NULL, &device));
    ck_ok(keel_program_create(device, module, "", &program));
    ck_ok(keel_kernel_create(program, "local_memory", &kernel));
    ck_ok(keel_queue_create(device, &queue));
    ck_ok(keel_buffer_create(device, sizeof words, &out));
    for (uint32_t i = 0; i < GROUPS * WORDS; i++)
        words[i] = 1000 + i % WORDS;
    const struct keel_arg arg = {.kind = KEEL_ARG_BUFFER, .as.buffer = out};
    const struct keel_range range = {.global = {GROUPS, 1, 1}, .local = {1, 1, 1}};
    ck_ok(keel_queue_write(queue, out, 0, words, sizeof words, NULL, NULL));
    ck_ok(keel_queue_launch(queue, kernel, &arg, 1, &range, NULL, NULL));
    ck_ok(keel_queue_read(queue, out, 0, words, sizeof words, NULL, NULL));
    ck_ok(keel_queue_finish(queue, keel_deadline_after_ns(TIMEOUT_S * KEEL_NS_PER_S)));
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < GROUPS * WORDS; i++)
        wrong += words[i] != 1000 + WORDS - 1 - i % WORDS + i / WORDS;
    keel_buffer_destroy(out);
    keel_queue_destroy(queue);
    keel_kernel_destroy(kernel);
    keel_program_destroy(program);
    keel_device_close(device);
    return wrong;
}

START_TEST(a_function_that_is_part_of_its_kernel_sees_the_local_memory_of_its_group)
{
    ck_assert_uint_eq(wrong_words(&is_part), 0);
}
END_TEST

START_TEST(a_function_that_is_called_sees_it_where_the_driver_is_right)
{
    const uint32_t wrong = wrong_words(&is_called);
    if (wrong == 0)
        printf("note: this driver is not affected\n");
    else
        printf("note: this driver is affected: %u of %d words are not the group's\n", wrong, GROUPS * WORDS);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_function_that_is_part_of_its_kernel_sees_the_local_memory_of_its_group);
    tcase_add_test(tc, a_function_that_is_called_sees_it_where_the_driver_is_right);
}

KEEL_TEST_MAIN("local_memory", cases, 2 * TIMEOUT_S)
