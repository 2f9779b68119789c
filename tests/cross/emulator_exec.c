/* emulator_exec.c - test equipment: lets a program that runs under a user-mode emulator start programs of its
 * own kind.
 *
 * The kernel cannot execute a foreign binary unless binfmt_misc is set up, which changes the whole machine.
 * Preloaded into the emulated program, this library turns execv(PATH, ARGV) into $KEEL_EMULATOR -0 ARGV[0]
 * PATH ARGV[1]...; the emulator finds its libraries by the environment (QEMU_LD_PREFIX). Async-signal-safe:
 * no allocation, as callers run it between fork and exec. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 64, PATH_BYTES = 1024 };

extern char **environ;

int execv(const char *path, char *const argv[])
{
    char *emulator = getenv("KEEL_EMULATOR"), own[PATH_BYTES] = "", flag[] = "-0";
    char *list[ARGUMENTS_MAX + 4] = {emulator, flag, argv[0], own};
    if (emulator == NULL || access(path, X_OK) != 0)
        return -1;
    if (strcmp(path, "/proc/self/exe") == 0) {
        if (readlink(path, own, sizeof own - 1) < 0)
            return -1;
    } else {
        strncpy(own, path, sizeof own - 1);
    }
    size_t count = 1;
    for (; argv[count] != NULL && count < ARGUMENTS_MAX; count++)
        list[3 + count] = argv[count];
    if (argv[count] != NULL) {
        errno = E2BIG;
        return -1;
    }
    return execve(emulator, list, environ);
}
