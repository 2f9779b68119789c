/* drill_rank.h - one rank of a drill: a process that runs operations in a row until one fails, and reports.
 *
 * It takes orders from a pipe: open a group, run, end the epoch and compute with those that are left, close.
 * What it computes it checks against the oracle of keel net check, on elements spread over the result. */
#ifndef KEEL_TESTS_DRILL_RANK_H
#define KEEL_TESTS_DRILL_RANK_H

#include "hosts.h"
#include "net_cases.h"
#include "net_oracle.h"
#include "ranks.h"

#include <dirent.h>
#include <keel/memory.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { DRILL_RANKS = 5, DRILL_FLOATS = 1 << 20, DRILL_SAMPLES = 128, DRILL_SEED = 77 };

enum drill_verb { DRILL_OPEN, DRILL_RUN, DRILL_RECOVER, DRILL_CLOSE, DRILL_COUNT };

struct drill_order {
    enum drill_verb verb;
    uint64_t epoch;
    uint32_t member_count, members[DRILL_RANKS]; /* which processes, ascending */
    struct keel_address addresses[DRILL_RANKS];  /* of all processes */
    struct keel_net_case it;                     /* its root is a rank of the group */
    bool warm;                                   /* OPEN: run it once, so that all are connected */
    uint64_t start_ns, timeout_ns;               /* RUN: begin then; each operation has so long */
    uint64_t silence_ns;                         /* OPEN, RECOVER: of the group */
    uint64_t operations;                         /* RUN: so many at most */
    uint64_t harm_after;                         /* RUN: operations before it sends itself */
    int harm;                                    /* this signal; 0: none */
};

struct drill_report {
    enum keel_status status;
    bool named;
    uint32_t lost;                     /* which process */
    uint64_t operations, wrong;        /* that ended well; that ended well with a wrong result */
    uint64_t returned_ns, deadline_ns; /* of the last */
    uint64_t queued_ns;                /* the last stood so long in the queue of a processor, ready to run */
    uint64_t worked_ns;                /* the last that ended well took so long */
    uint32_t descriptors, threads, memfds;
    uint64_t resident_bytes, heap_blocks, heap_bytes;
    char detail[200];
};

struct drill_rank {
    uint32_t slot;
    int orders, reports;
    struct keel_endpoint *endpoint;
    struct keel_group *group;
    struct drill_order order;
    struct keel_address own;
    uint32_t position; /* in the group */
    uint64_t sequence;
    float *part, *result;
    _Atomic uint64_t *harmed_ns; /* shared with the parent */
};

/* ---- one operation ---- */

static inline float drill_wanted(const struct drill_rank *me, uint64_t index)
{
    const struct drill_order *order = &me->order;
    const struct keel_net_case *it = &order->it;
    uint64_t values[DRILL_RANKS], at, bits;
    uint32_t from;
    if (keel_kind_reduces(it->kind)) {
        at = keel_net_case_reduced(it, me->position, index);
        for (uint32_t k = 0; k < order->member_count; k++)
            values[k] = keel_oracle_input(it->element, it->reduction, DRILL_SEED, order->members[k], at);
        bits = keel_oracle_tree(it->element, it->reduction, values, order->member_count);
    } else {
        keel_net_case_source(it, me->position, order->member_count, index, &from, &at);
        bits = keel_oracle_input(it->element, it->reduction, DRILL_SEED, order->members[from], at);
    }
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return value;
}

static inline uint64_t drill_got(const struct drill_rank *me)
{
    bool root = me->position == me->order.it.root;
    if (me->order.it.kind == KEEL_BARRIER || (me->order.it.kind == KEEL_BROADCAST && root))
        return 0;
    return keel_net_case_got(&me->order.it, me->position, me->order.member_count);
}

static inline uint64_t drill_sample(uint64_t k, uint64_t elements)
{
    return elements <= DRILL_SAMPLES ? k : k * (elements - 1) / (DRILL_SAMPLES - 1);
}

static inline uint64_t drill_samples(uint64_t elements)
{
    return elements < DRILL_SAMPLES ? elements : DRILL_SAMPLES;
}

static inline bool drill_is_right(const struct drill_rank *me)
{
    uint64_t elements = drill_got(me);
    for (uint64_t k = 0; k < drill_samples(elements); k++) {
        uint64_t at = drill_sample(k, elements);
        float wanted = drill_wanted(me, at);
        if (memcmp(&wanted, &me->result[at], sizeof wanted) != 0)
            return false;
    }
    return true;
}

static inline enum keel_status drill_pass_on(struct drill_rank *me, struct keel_collective what,
                                             uint64_t deadline_ns)
{
    uint32_t world = me->order.member_count, before = (me->position + world - 1) % world;
    struct keel_operation *sending, *receiving;
    struct keel_collective send = what, receive = what;
    send.root = (me->position + 1) % world;
    send.sequence += me->position;
    send.result = NULL;
    receive.kind = KEEL_RECEIVE;
    receive.root = before;
    receive.sequence += before;
    receive.part_count = 0;
    me->sequence += world;
    KEEL_TRY(keel_group_begin(me->group, &receive, &receiving));
    KEEL_TRY(keel_group_begin(me->group, &send, &sending));
    enum keel_status status = keel_operation_wait(receiving, deadline_ns);
    enum keel_status sent = keel_operation_wait(sending, deadline_ns);
    return status != KEEL_OK ? status : sent;
}

static inline enum keel_status drill_operation(struct drill_rank *me, uint64_t deadline_ns)
{
    const struct keel_net_case *it = &me->order.it;
    const void *parts[] = {me->part};
    bool root = me->position == it->root;
    bool gives =
        it->kind != KEEL_BARRIER && ((it->kind != KEEL_BROADCAST && it->kind != KEEL_SCATTER) || root);
    uint64_t elements = drill_got(me);
    for (uint64_t k = 0; k < drill_samples(elements); k++)
        me->result[drill_sample(k, elements)] = -1.0F;
    struct keel_collective what = {.kind = it->kind,
                                   .sequence = me->sequence++,
                                   .element = it->element,
                                   .reduction = it->reduction,
                                   .order = it->order,
                                   .algorithm = it->algorithm,
                                   .root = it->root,
                                   .count = it->count,
                                   .parts = parts,
                                   .part_count = gives ? 1 : 0,
                                   .result = elements > 0 ? me->result : NULL};
    uint64_t in[DRILL_RANKS], out[DRILL_RANKS];
    for (uint32_t k = 0; k < me->order.member_count; k++) {
        in[k] = keel_net_case_count(it, me->position, k);
        out[k] = keel_net_case_count(it, k, me->position);
    }
    if (it->kind == KEEL_ALL_GATHER_V || it->kind == KEEL_ALL_TO_ALL_V) {
        what.counts_in = in;
        what.counts_out = out;
    }
    if (it->kind == KEEL_SEND)
        return drill_pass_on(me, what, deadline_ns);
    enum keel_status status = keel_group_run(me->group, &what, deadline_ns);
    if (status != KEEL_UNSUPPORTED)
        return status;
    what.algorithm = KEEL_ALGORITHM_AUTO;
    return keel_group_run(me->group, &what, deadline_ns);
}

/* ---- orders ---- */

static inline void drill_harm(struct drill_rank *me)
{
    atomic_store(me->harmed_ns, keel_now_ns());
    raise(me->order.harm);
}

/* How long this thread has been ready to run and did not. */
static inline uint64_t drill_queued_ns(void)
{
    unsigned long long ran = 0, queued = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%llu %llu", &ran, &queued) != 2)
        queued = 0;
    fclose(file);
    return queued;
}

/* Operations in a row, until one fails. */
static inline void drill_run(struct drill_rank *me, uint64_t operations, struct drill_report *report)
{
    uint32_t position;
    while (report->status == KEEL_OK && report->operations < operations) {
        if (me->order.harm != 0 && report->operations == me->order.harm_after)
            drill_harm(me);
        uint64_t queued = drill_queued_ns(), begun = keel_now_ns();
        report->deadline_ns = begun + me->order.timeout_ns;
        report->status = drill_operation(me, report->deadline_ns);
        report->returned_ns = keel_now_ns();
        report->queued_ns = drill_queued_ns() - queued;
        if (report->status != KEEL_OK)
            break;
        report->worked_ns = report->returned_ns - begun;
        report->operations++;
        report->wrong += !drill_is_right(me);
    }
    if (report->status == KEEL_OK)
        return;
    snprintf(report->detail, sizeof report->detail, "%s", keel_detail());
    report->named = keel_group_lost(me->group, &position);
    if (report->named)
        report->lost = me->order.members[position];
}

static inline enum keel_status drill_open(struct drill_rank *me)
{
    const struct drill_order *order = &me->order;
    struct keel_address addresses[DRILL_RANKS];
    uint16_t shard_rank[DRILL_RANKS];
    struct keel_group_config config = {.epoch = order->epoch,
                                       .rank_count = order->member_count,
                                       .addresses = addresses,
                                       .shard_count = order->member_count,
                                       .shard_rank = shard_rank,
                                       .silence_ns = order->silence_ns};
    for (uint32_t k = 0; k < order->member_count; k++) {
        addresses[k] = order->addresses[order->members[k]];
        shard_rank[k] = (uint16_t)k;
        if (order->members[k] == me->slot)
            config.rank = k;
    }
    me->position = config.rank;
    me->sequence = 1;
    return keel_group_open(me->endpoint, &config, &me->group);
}

static inline uint32_t drill_entries(const char *path, const char *holding)
{
    uint32_t count = 0;
    DIR *directory = opendir(path);
    for (struct dirent *at; directory != NULL && (at = readdir(directory)) != NULL;) {
        char target[256], name[512];
        snprintf(name, sizeof name, "%s/%s", path, at->d_name);
        ssize_t length = holding != NULL ? readlink(name, target, sizeof target - 1) : 0;
        target[length > 0 ? length : 0] = '\0';
        count += holding == NULL || strstr(target, holding) != NULL;
    }
    if (directory != NULL)
        closedir(directory);
    return count;
}

static inline void drill_count(struct drill_report *report)
{
    unsigned long size = 0, resident = 0;
    malloc_trim(0); /* freed pages that the C library keeps are nobody's */
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL && fscanf(file, "%lu %lu", &size, &resident) == 2)
        report->resident_bytes = (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
    if (file != NULL)
        fclose(file);
    report->descriptors = drill_entries("/proc/self/fd", NULL);
    report->threads = drill_entries("/proc/self/task", NULL);
    report->memfds =
        drill_entries("/proc/self/fd", "memfd:") + drill_entries("/proc/self/map_files", "memfd:");
    report->heap_blocks = keel_memory_stats().live_blocks;
    report->heap_bytes = keel_memory_stats().live_bytes;
}

static inline void drill_obey(struct drill_rank *me, struct drill_report *report)
{
    switch (me->order.verb) {
    case DRILL_RECOVER:
        keel_group_close(me->group);
        report->status = drill_open(me);
        if (report->status == KEEL_OK)
            drill_run(me, me->order.operations, report);
        break;
    case DRILL_OPEN:
        if (me->group != NULL)
            keel_group_close(me->group);
        report->status = drill_open(me);
        if (report->status == KEEL_OK && me->order.warm)
            drill_run(me, 1, report);
        break;
    case DRILL_RUN:
        keel_sleep_until_ns(me->order.start_ns);
        drill_run(me, me->order.operations, report);
        break;
    case DRILL_CLOSE:
        if (me->group != NULL)
            keel_group_close(me->group);
        me->group = NULL;
        break;
    case DRILL_COUNT:
        drill_count(report);
        break;
    }
}

/* Half of the processes have memory that the others may read in place. */
static inline enum keel_status drill_alloc(bool shared, void *out_pointer_address)
{
    if (shared)
        return keel_transport_alloc(DRILL_FLOATS * sizeof(float), out_pointer_address);
    return keel_alloc(DRILL_FLOATS, sizeof(float), out_pointer_address);
}

/* Never returns. The first report is the address. */
static inline void drill_rank_main(struct drill_rank *me, const char *node)
{
    struct keel_endpoint_config config = {
        .provider = getenv("KEEL_TEST_PROVIDER"), .node = node, .fabric_only = node != NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (keel_endpoint_open(&config, &me->endpoint) != KEEL_OK ||
        drill_alloc(me->slot % 2 == 0, &me->part) != KEEL_OK ||
        drill_alloc(me->slot % 2 == 0, &me->result) != KEEL_OK) {
        fprintf(stderr, "process %u: %s\n", me->slot, keel_detail());
        _exit(1);
    }
    for (uint64_t k = 0; k < DRILL_FLOATS; k++)
        keel_oracle_store(KEEL_ELEMENT_F32, me->part, k,
                          keel_oracle_input(KEEL_ELEMENT_F32, KEEL_SUM, DRILL_SEED, me->slot, k));
    keel_endpoint_address(me->endpoint, &me->own);
    ranks_move(me->reports, &me->own, sizeof me->own, true);
    for (;;) {
        struct drill_report report = {0};
        ranks_move(me->orders, &me->order, sizeof me->order, false);
        drill_obey(me, &report);
        ranks_move(me->reports, &report, sizeof report, true);
    }
}

#endif
