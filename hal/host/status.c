/* status.c - the table of statuses and this thread's detail string. */
#include <errno.h>
#include <keel/status.h>
#include <keel/text.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_BYTES = 96 };

struct row {
    const char *name, *text;
    enum keel_next next;
    int exit_code;
};

static const struct row rows[KEEL_STATUS_COUNT] = {
#define ROW(name, value, next, code, text) [value] = {#name, text, KEEL_NEXT_##next, code},
    KEEL_STATUS_TABLE(ROW)
#undef ROW
};

static _Thread_local char detail[KEEL_DETAIL_BYTES];

static const struct row *find(enum keel_status status)
{
    static const struct row unknown = {"UNKNOWN", "an unknown status", KEEL_NEXT_FATAL, 1};
    unsigned index = (unsigned)status;
    return index < KEEL_STATUS_COUNT ? &rows[index] : &unknown;
}

const char *keel_status_name(enum keel_status status)
{
    return find(status)->name;
}

const char *keel_status_text(enum keel_status status)
{
    return find(status)->text;
}

enum keel_next keel_status_next(enum keel_status status)
{
    return find(status)->next;
}

int keel_status_exit_code(enum keel_status status)
{
    return find(status)->exit_code;
}

enum keel_status keel_fail(enum keel_status status, const char *format, ...)
{
    KEEL_ASSERT(status != KEEL_OK);
    char text[KEEL_DETAIL_BYTES] = ""; /* the arguments may hold the old detail */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    keel_utf8_clean(text);
    memcpy(detail, text, sizeof detail);
    return status;
}

static enum keel_status status_of_errno(int error_number)
{
    switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
    case ELOOP:
        return KEEL_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return KEEL_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return KEEL_NO_SPACE;
    case ENOMEM:
        return KEEL_NO_MEMORY;
    case EINTR:
        return KEEL_INTERRUPTED;
    case ENAMETOOLONG:
        return KEEL_LIMIT;
    case EMFILE:
    case ENFILE:
        return KEEL_EXHAUSTED;
    default:
        return KEEL_IO;
    }
}

enum keel_status keel_fail_errno(int error_number, const char *format, ...)
{
    char text[KEEL_DETAIL_BYTES - REASON_BYTES] = ""; /* so that the reason is never cut off */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return keel_fail(status_of_errno(error_number), "%s: %s%s", text, strerror(error_number),
                     error_number == EMFILE ? "; raise the limit (ulimit -n)" : "");
}

const char *keel_detail(void)
{
    return detail;
}

void keel_detail_set(const char *new_detail)
{
    size_t length = strnlen(new_detail, sizeof detail - 1);
    memmove(detail, new_detail, length); /* it may be our own detail */
    detail[length] = '\0';
    keel_utf8_clean(detail);
}

void keel_assert_failed(const char *expression, const char *file, int line)
{
    fprintf(stderr, "keel: %s:%d: assertion failed: %s\n", file, line, expression);
    abort();
}
