/* device_stacks.h - the stacks that a suite runs over: a driver each, with the environment that it needs.
 *
 * Each stack has processes of its own, because drivers read their environment once and do not live through a
 * fork: one that asks whether its device is there, and one that runs the suite. A stack that is not there
 * says so and counts for nothing. */
#ifndef KEEL_TESTS_DEVICE_STACKS_H
#define KEEL_TESTS_DEVICE_STACKS_H

#include <keel/clock.h>
#include <keel/device.h>
#include <keel/file.h>
#include <keel/process.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stack {
    const char *name;
    const char *selector;
    const char *variable, *value; /* of the environment; NULL for none */
    const char *launcher;         /* a program that starts ours; NULL for none */
    enum keel_code_form form;     /* that its kernels come in: SOURCE, or from the store (BINARY, BUILTIN) */
    uint64_t spin_rounds; /* of 256 steps: some tenths of a second. Mesa 22 ends every loop after 65,535 */
    bool asynchronous;    /* commands run beside the thread that enqueues and flushes them */
    bool computes;        /* kernels do what they say */
    bool fragile;         /* bears neither two threads nor a second discovery in a process */
};

static const struct stack stacks[] = {
    {"host", "host", NULL, NULL, NULL, KEEL_CODE_SOURCE, 1000000, false, true, false},
    {"null", "null", NULL, NULL, NULL, KEEL_CODE_SOURCE, 1000000, false, false, false},
    {"PoCL threads", "pocl:0", NULL, NULL, NULL, KEEL_CODE_SOURCE, 1000000, true, true, false},
    {"PoCL basic", "pocl:0", "POCL_DEVICES", "basic", NULL, KEEL_CODE_SOURCE, 1000000, false, true, false},
    {"rusticl", "mesa:0", "RUSTICL_ENABLE", "llvmpipe", NULL, KEEL_CODE_SOURCE, 60000, false, true, false},
    {"Oclgrind", "oclg:0", NULL, NULL, "/usr/bin/oclgrind", KEEL_CODE_SOURCE, 60, false, true, true},
    {"emulated FPGA", "emulated:0", "EMULATED_BOARD", "fpga", NULL, KEEL_CODE_BINARY, 1000000, true, true,
     false},
    {"emulated NPU", "emulated:0", "EMULATED_BOARD", "npu", NULL, KEEL_CODE_BUILTIN, 1000000, true, true,
     false},
};
enum { STACK_COUNT = sizeof stacks / sizeof stacks[0] };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif
#define STACK_LIMIT_NS (600 * KEEL_NS_PER_S)

/* Where the store is that boards without a compiler take their kernels from. */
static const char stack_store[] = "EMULATED_STORE";

static int stack_probe(const struct stack *one)
{
    struct keel_device *found = NULL;
    enum keel_status status = keel_device_open(one->selector, NULL, &found);
    if (status == KEEL_OK)
        keel_device_close(found);
    else
        printf("note: %s: not tested: %s\n", one->name, keel_detail());
    return keel_status_exit_code(status);
}

/* This program again in the environment of a stack: its exit code. */
static int stack_start(char *self, const struct stack *one, char *what)
{
    fflush(NULL);
    char *argv[] = {(char *)one->launcher, self, what, (char *)one->name, NULL};
    struct keel_process child;
    struct keel_process_end end = {.code = EXIT_FAILURE};
    if (keel_process_spawn(one->launcher != NULL ? argv : argv + 1, NULL, 0, -1, &child) != KEEL_OK) {
        printf("%s: %s\n", one->name, keel_detail());
        return EXIT_FAILURE;
    }
    if (keel_process_wait(&child, keel_deadline_after_ns(STACK_LIMIT_NS), &end) != KEEL_OK)
        keel_process_signal(&child, 9);
    keel_process_close(&child);
    return end.signaled ? EXIT_FAILURE : end.code;
}

/* The layer of the emulated boards lies in the folder of what was built, two above ours. */
static void stack_layer(const char *self, bool on)
{
    char path[KEEL_PATH_BYTES + 64];
    const char *slash = strrchr(self, '/');
    snprintf(path, sizeof path, "%.*s/../../libkeel-emulated.so", slash != NULL ? (int)(slash - self) : 1,
             slash != NULL ? self : ".");
    if (on)
        setenv("OPENCL_LAYERS", path, 1);
    else
        unsetenv("OPENCL_LAYERS");
}

/* Ask for a stack, and run the suite on it; false when that failed. */
static bool stack_try(char *self, const struct stack *one)
{
    if (one->launcher != NULL && !keel_path_is_file(one->launcher)) {
        printf("note: %s: not tested: there is no %s\n", one->name, one->launcher);
        return true;
    }
    if (one->launcher != NULL && SANITIZED) {
        printf("note: %s: not tested: a sanitizer wants to be loaded first, and so does it\n", one->name);
        return true;
    }
    if (one->variable != NULL)
        setenv(one->variable, one->value, 1);
    stack_layer(self, one->form != KEEL_CODE_SOURCE);
    int code = stack_start(self, one, (char[]){"probe"});
    if (code == EXIT_SUCCESS)
        code = stack_start(self, one, (char[]){"run"});
    else if (code == keel_status_exit_code(KEEL_NOT_FOUND))
        code = EXIT_SUCCESS; /* it has said so */
    if (one->variable != NULL)
        unsetenv(one->variable);
    stack_layer(self, false);
    return code == EXIT_SUCCESS;
}

/* The program's main. Without arguments all stacks; `run NAME` and `probe NAME` are for one, in an
 * environment that is ready; `capture` fills the store by PoCL's compiler. */
static int stacks_main(int argc, char **argv, int (*run)(const struct stack *one), int (*capture)(void))
{
    char store[] = "/tmp/keel-stacks-XXXXXX";
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "capture") == 0)
        return capture();
    for (int i = 0; argc == 3 && i < STACK_COUNT; i++)
        if (strcmp(argv[2], stacks[i].name) == 0)
            return strcmp(what, "probe") == 0 ? stack_probe(&stacks[i]) : run(&stacks[i]);
    if (argc != 1 || mkdtemp(store) == NULL)
        return EXIT_FAILURE;
    setenv(stack_store, store, 1);
    int captured = stack_start(argv[0], &stacks[2], (char[]){"capture"});
    bool good = captured == EXIT_SUCCESS || captured == keel_status_exit_code(KEEL_NOT_FOUND);
    for (int i = 0; i < STACK_COUNT; i++)
        good = stack_try(argv[0], &stacks[i]) && good;
    return keel_remove_tree(store) == KEEL_OK && good ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
