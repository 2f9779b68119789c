/* clock.h - time. Deadlines are absolute monotonic nanoseconds, never durations, so that
 * a deadline given to an outer call can be handed unchanged to every inner one. Any thread. */
#ifndef KEEL_CLOCK_H
#define KEEL_CLOCK_H

#include <keel/api.h>
#include <stdint.h>

KEEL_API_BEGIN

#define KEEL_NS_PER_US UINT64_C(1000)
#define KEEL_NS_PER_MS UINT64_C(1000000)
#define KEEL_NS_PER_S  UINT64_C(1000000000)

/* A deadline that never comes. For tools only; the runtime always gives a real one. */
#define KEEL_NEVER UINT64_MAX

/* CLOCK_MONOTONIC in ns: for durations and deadlines. Equal for all processes of one machine. */
uint64_t keel_now_ns(void);

/* CLOCK_REALTIME in ns since 1970: for people and files only, never for decisions. */
uint64_t keel_wall_ns(void);

/* The same as text, in UTC: "2026-11-21T13:02:11Z"; its first KEEL_DAY_BYTES - 1 letters are the day. */
enum { KEEL_WALL_TEXT_BYTES = 32, KEEL_DAY_BYTES = sizeof "2026-11-21" };
void keel_wall_text(uint64_t wall_ns, char out[KEEL_WALL_TEXT_BYTES]);

/* now + duration, saturating at KEEL_NEVER. */
uint64_t keel_deadline_after_ns(uint64_t duration_ns);

/* Time left until a deadline, 0 when it has passed; as poll(2) milliseconds (rounded up,
 * -1 for KEEL_NEVER) in the second form. */
uint64_t keel_remaining_ns(uint64_t deadline_ns);
int keel_remaining_poll_ms(uint64_t deadline_ns);

/* Sleep; returns early only at the deadline. */
void keel_sleep_until_ns(uint64_t deadline_ns);

KEEL_API_END

#endif
