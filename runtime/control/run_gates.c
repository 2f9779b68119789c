/* run_gates.c - see run_gates.h. */
#include "run_gates.h"

#include <inttypes.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char file_name[] = "gates";

void keel_run_gates_add(struct keel_run_gates *gates, const char *place)
{
    const size_t used = strlen(gates->places), bytes = strlen(place) + (used > 0 ? 1 : 0);
    if (bytes < sizeof gates->places - used)
        (void)snprintf(gates->places + used, sizeof gates->places - used, "%s%s", used > 0 ? "," : "", place);
}

enum keel_status keel_run_gates_write(const char *directory, const struct keel_run_gates *gates)
{
    char path[KEEL_PATH_BYTES], text[KEEL_GATES_BYTES + 32];
    KEEL_TRY(keel_path_join(path, directory, file_name));
    const int bytes = snprintf(text, sizeof text, "%016" PRIx64 " %s\n", gates->run, gates->places);
    return keel_file_replace(path, text, (uint64_t)bytes, 0644);
}

enum keel_status keel_run_gates_read(const char *directory, struct keel_run_gates *out)
{
    char path[KEEL_PATH_BYTES], format[32], *text;
    size_t bytes;
    struct keel_run_gates gates = {.run = 0};
    KEEL_TRY(keel_path_join(path, directory, file_name));
    KEEL_TRY(keel_file_read(path, KEEL_GATES_BYTES + 32, &text, &bytes));
    (void)snprintf(format, sizeof format, "%%16" SCNx64 " %%%ds", (int)KEEL_GATES_BYTES - 1);
    const bool whole = sscanf(text, format, &gates.run, gates.places) == 2 && gates.run != 0;
    keel_free(text);
    if (!whole)
        return keel_fail(KEEL_CORRUPT, "%s: does not say where who leads is asked; remove it", path);
    *out = gates;
    return KEEL_OK;
}

bool keel_run_gates_are_there(const char *directory)
{
    char path[KEEL_PATH_BYTES];
    return keel_path_join(path, directory, file_name) == KEEL_OK && keel_path_exists(path);
}

void keel_run_gates_remove(const char *directory)
{
    char path[KEEL_PATH_BYTES];
    if (keel_path_join(path, directory, file_name) == KEEL_OK)
        unlink(path);
}
