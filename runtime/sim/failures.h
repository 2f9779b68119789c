/* failures.h - what fails when: traces, and rates from which traces are drawn.
 *
 * A file has two kinds of lines; # begins a comment:
 *     TIME NODE[-NODE] KIND REPAIR [factor=F]        a failure, in order of time
 *     rate R KIND REPAIR [mean=REPAIR] [nodes=N] [shape=K] [factor=F]
 * A time is a number of seconds, or has a unit: 250ms, 90s, 30m, 12.5h, 7d. NODE is a place in the run, from
 * 0 on: whoever carries it is hit. R is failures per 1,000 node-days, or COUNT/THOUSAND_NODE_DAYS as it was
 * counted. Gaps of a rate are exponential, or of Weibull's shape; repairs are as long as REPAIR, or lognormal
 * with that median and the mean given (Schroeder and Gibson, DSN 2006, found both).
 *
 * Drawn from the counter-based generator by + - * / and sqrt alone: a seed is one trace on every machine. Any
 * thread. */
#ifndef KEEL_FAILURES_H
#define KEEL_FAILURES_H

#include <keel/status.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KEEL_FAILURE_SECOND_NS UINT64_C(1000000000)
#define KEEL_FAILURE_DAY_NS    (86400 * KEEL_FAILURE_SECOND_NS)
enum { KEEL_FAILURE_RATES_MAX = 64, KEEL_FAILURES_MAX = 1 << 20, KEEL_FAILURE_FACTOR_PPM = 1000000 };

/* X(name, word, what happens) */
#define KEEL_FAILURE_KIND_TABLE(X)                                                                           \
    X(PROCESS, "process", "a worker ends; its host lives and tells at once")                                 \
    X(HANG, "hang", "a board hangs; its worker's watchdog tells")                                            \
    X(NODE, "node", "a host falls silent, and what its disk holds is away")                                  \
    X(STOP, "stop", "a host stands still that long, then goes on; beyond the timeout it is a lost one")      \
    X(SLOW, "slow", "a host computes slower by factor=F, and all wait for it")                               \
    X(CORRUPT, "corrupt", "a wrong bit that digests find: the run goes back to a snapshot")                  \
    X(RUN, "run", "all of the run ends (power, network, launcher) and is begun again that much later")
enum keel_failure_kind {
#define KEEL_FAILURE_ENUM(name, word, help) KEEL_FAILURE_##name,
    KEEL_FAILURE_KIND_TABLE(KEEL_FAILURE_ENUM)
#undef KEEL_FAILURE_ENUM
        KEEL_FAILURE_KIND_COUNT
};

struct keel_failure {
    uint64_t at_ns, repair_ns;
    uint32_t first, count; /* places that are hit together */
    enum keel_failure_kind kind;
    uint32_t factor_ppm; /* SLOW: of the time of a step */
};

struct keel_failure_rate {
    double per_node_ns; /* failures */
    double shape;       /* of Weibull's; 1: exponential */
    enum keel_failure_kind kind;
    uint64_t median_ns, mean_ns; /* of repairs; the same: all are that long */
    uint32_t count, factor_ppm;
};

struct keel_failures {
    struct keel_failure *at; /* owned, by time */
    size_t count, capacity;
    struct keel_failure_rate rates[KEEL_FAILURE_RATES_MAX];
    uint32_t rate_count;
};

/* The name of a mix that is built in, failures per 1,000 node-days as a number, or a file. INVALID names
 * file, line and the next move; NOT_FOUND, IO of the file. */
enum keel_status keel_failures_read(const char *source, uint32_t nodes, struct keel_failures *out);
/* As keel_failures_read of a file of that text; `name` is for messages. */
enum keel_status keel_failures_parse(const char *text, const char *name, uint32_t nodes,
                                     struct keel_failures *out);
void keel_failures_fini(struct keel_failures *failures);

/* What happens in `duration_ns` by the source's failures and rates, in one list. LIMIT: too many. */
enum keel_status keel_failures_draw(const struct keel_failures *source, uint32_t nodes, uint64_t duration_ns,
                                    uint64_t seed, struct keel_failures *out);

/* As a file that reads back the same. */
void keel_failures_write(const struct keel_failures *failures, FILE *out);

/* The text of a mix that is built in; NULL: there is none of that name. */
const char *keel_failures_mix(const char *name);

/* "30m" in nanoseconds, a bare number in `unit_ns`; fractions are exact to the nanosecond. INVALID without a
 * detail: it is none, or longer than a hundred years. */
enum keel_status keel_failure_time(const char *text, uint64_t unit_ns, uint64_t *out_ns);

#endif
