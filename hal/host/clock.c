/* clock.c - monotonic and wall time. */
#include <errno.h>
#include <keel/clock.h>
#include <limits.h>
#include <time.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * KEEL_NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t keel_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t keel_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

void keel_wall_text(uint64_t wall_ns, char out[KEEL_WALL_TEXT_BYTES])
{
    const time_t seconds = (time_t)(wall_ns / KEEL_NS_PER_S);
    struct tm utc;
    if (gmtime_r(&seconds, &utc) == NULL ||
        strftime(out, KEEL_WALL_TEXT_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        out[0] = '\0';
}

uint64_t keel_deadline_after_ns(uint64_t duration_ns)
{
    uint64_t now = keel_now_ns();
    return duration_ns > KEEL_NEVER - now ? KEEL_NEVER : now + duration_ns;
}

uint64_t keel_remaining_ns(uint64_t deadline_ns)
{
    uint64_t now = keel_now_ns();
    return deadline_ns > now ? deadline_ns - now : 0;
}

int keel_remaining_poll_ms(uint64_t deadline_ns)
{
    if (deadline_ns == KEEL_NEVER)
        return -1;
    uint64_t ms = (keel_remaining_ns(deadline_ns) + KEEL_NS_PER_MS - 1) / KEEL_NS_PER_MS;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

void keel_sleep_until_ns(uint64_t deadline_ns)
{
    struct timespec t = {.tv_sec = (time_t)(deadline_ns / KEEL_NS_PER_S),
                         .tv_nsec = (long)(deadline_ns % KEEL_NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}
