/* memory_limit.c - what this process may have at most, as the kernel says it. */
#include <inttypes.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Of the group and those above it; "max", or no such file, is none. `path` is cut to the mount. */
static uint64_t group_limit(char *path, size_t mount_bytes)
{
    uint64_t limit = UINT64_MAX;
    for (;;) {
        char file[2 * KEEL_PATH_BYTES];
        snprintf(file, sizeof file, "%s/memory.max", path);
        FILE *stream = fopen(file, "re");
        uint64_t value;
        if (stream != NULL && fscanf(stream, "%" SCNu64, &value) == 1)
            limit = least(limit, value);
        if (stream != NULL)
            fclose(stream);
        char *last = strrchr(path, '/');
        if (last == NULL || last < path + mount_bytes)
            return limit;
        *last = '\0';
    }
}

/* /proc/self/cgroup names the group of version 2 as "0::/path". */
static uint64_t control_group_limit(void)
{
    static const char mount[] = "/sys/fs/cgroup";
    char line[KEEL_PATH_BYTES], path[sizeof mount + sizeof line];
    uint64_t limit = UINT64_MAX;
    FILE *stream = fopen("/proc/self/cgroup", "re");
    if (stream == NULL)
        return limit;
    while (limit == UINT64_MAX && fgets(line, sizeof line, stream) != NULL) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, sizeof path, "%s%s", mount, line[4] == '\0' ? "" : line + 3);
        limit = group_limit(path, sizeof mount - 1);
    }
    fclose(stream);
    return limit;
}

uint64_t keel_memory_limit_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t limit = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT32_MAX;
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
        limit = least(limit, space.rlim_cur);
    return least(limit, control_group_limit());
}
