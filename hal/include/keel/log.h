/* log.h - one line per event on stderr, for people.
 *
 * Owns the level and the prefix. Machine-readable events belong in events.jsonl,
 * which `runtime` writes. Each line is one write(2), so lines of several processes
 * that share a terminal do not mix. Any thread. */
#ifndef KEEL_LOG_H
#define KEEL_LOG_H

#include <keel/api.h>

KEEL_API_BEGIN

enum keel_log_level { KEEL_LOG_ERROR, KEEL_LOG_WARN, KEEL_LOG_INFO, KEEL_LOG_DEBUG };

/* Lines above `level` are dropped. The default is WARN; KEEL_LOG=error|warn|info|debug overrides. */
void keel_log_set_level(enum keel_log_level level);
enum keel_log_level keel_log_get_level(void);

/* Who speaks ("agent 2", "rank 3"); copied, at most 31 bytes; set once at start. */
void keel_log_set_name(const char *name);

void keel_log(enum keel_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

KEEL_API_END

#endif
