/* log.c - one write(2) per line on stderr. */
#include <keel/clock.h>
#include <keel/log.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 2048, NAME_BYTES = 32 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static atomic_int current_level = -1; /* -1: ask the environment first */
static char speaker[NAME_BYTES];

static int level_from_environment(void)
{
    const char *wanted = getenv("KEEL_LOG");
    for (int i = 0; wanted != NULL && i <= KEEL_LOG_DEBUG; i++)
        if (strcmp(wanted, level_names[i]) == 0)
            return i;
    return KEEL_LOG_WARN;
}

void keel_log_set_level(enum keel_log_level level)
{
    atomic_store(&current_level, (int)level);
}

enum keel_log_level keel_log_get_level(void)
{
    int level = atomic_load(&current_level);
    if (level < 0) {
        level = level_from_environment();
        atomic_store(&current_level, level);
    }
    return (enum keel_log_level)level;
}

void keel_log_set_name(const char *name)
{
    snprintf(speaker, sizeof speaker, "%s", name);
}

void keel_log(enum keel_log_level level, const char *format, ...)
{
    if (level > keel_log_get_level())
        return;
    char line[LINE_BYTES];
    uint64_t ms = keel_now_ns() / KEEL_NS_PER_MS;
    const char *clear = isatty(STDERR_FILENO) ? "\r\033[K" : ""; /* over a progress bar */
    int used =
        snprintf(line, sizeof line, "%skeel%s%s [%llu.%03llu] %s: ", clear, speaker[0] ? " " : "", speaker,
                 (unsigned long long)(ms / 1000), (unsigned long long)(ms % 1000), level_names[level]);
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    size_t length = (size_t)used + (more > 0 ? (size_t)more : 0);
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length);
    (void)ignored; /* nothing better can be done when stderr is gone */
}
