/* peer.h - a bench's peer that is a script for Python with PyTorch: whether there is one, and a pipe from it.
 *
 * The interpreter is ${KEEL_PYTHON:-python3}. Scripts lie in tests/bench of the tree that the bench was built
 * in: above its program, wherever it is run. */
#ifndef KEEL_BENCH_PEER_H
#define KEEL_BENCH_PEER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* False, and said: there is no PyTorch. */
static bool peer_exists(const char *bench)
{
    const int status = system("${KEEL_PYTHON:-python3} -c 'import torch' 2>/dev/null");
    if (status != 0)
        fprintf(stderr, "%s: without PyTorch: ${KEEL_PYTHON:-python3} has no torch\n", bench);
    return status == 0;
}

/* The path of a script; "" where no folder above this program has it. */
static void peer_script(const char *name, char *path, size_t path_bytes)
{
    char folder[2048];
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    folder[length > 0 ? length : 0] = '\0';
    for (char *slash = strrchr(folder, '/'); slash != NULL; slash = strrchr(folder, '/')) {
        *slash = '\0';
        snprintf(path, path_bytes, "%s/tests/bench/%s", folder, name);
        if (access(path, R_OK) == 0)
            return;
    }
    path[0] = '\0';
}

/* To be closed by pclose. */
static FILE *peer_open(const char *name, const char *arguments)
{
    char path[2200], command[4096];
    peer_script(name, path, sizeof path);
    snprintf(command, sizeof command, "${KEEL_PYTHON:-python3} '%s' %s", path, arguments);
    return popen(command, "r");
}

#endif
