/* check_order.c - level 2: what waits does wait, what is done is done, and every work-item runs once.
 *
 * Each question is put while a gate is shut: a launch that takes GATE_NS and writes its words at its end. A
 * command that does not wait for it sees the words of before; one whose event comes too early is asked too
 * early. Where the board does not compile, a chain of copies that takes as long is the gate, and no launch is
 * tried. */
#include "check_bench.h"
#include "check_tables.h"
#include "probe.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { WORDS = 1024, BYTES = WORDS * 4, ROUNDS = 8, ROUNDS_QUICK = 4, STEPS_MAX = 1 << 30, OLD = 0x01d00000 };
#define GATE_NS (40 * KEEL_NS_PER_MS)

struct gate {
    struct keel_bench bench;
    struct keel_probe probe;
    struct keel_queue *first, *second;
    struct keel_buffer *words, *copy; /* of WORDS */
    bool kernels;
    uint32_t steps; /* turns of the kernel, or copies, that take GATE_NS */
    uint32_t round;
};

static bool ok(struct gate *gate, enum keel_status status, const char *what)
{
    return keel_bench_ok(&gate->bench, status, what);
}

static uint32_t new_word(const struct gate *gate, uint32_t i)
{
    return 0x3e000000 + (gate->round << 12) + (gate->kernels ? i : 0);
}

/* The gate on a queue: `words` become new_word at its end. */
static bool shut(struct gate *gate, struct keel_queue *queue, struct keel_event **event)
{
    if (gate->kernels)
        return ok(gate,
                  keel_probe_slow(&gate->probe, queue, gate->words, 0, WORDS, gate->steps, new_word(gate, 0),
                                  NULL, event),
                  "a slow launch");
    enum keel_status status = KEEL_OK;
    for (uint32_t i = 0; i < gate->steps && status == KEEL_OK; i++)
        status =
            keel_queue_copy(queue, gate->bench.buffer, 0, gate->bench.other, 0, KEEL_BENCH_BYTES, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_fill(queue, gate->words, 0, BYTES, new_word(gate, 0), NULL, event);
    return ok(gate, status, "a chain of copies") && ok(gate, keel_queue_flush(queue), "a flush");
}

/* How many turns take GATE_NS: doubled until they do, the shorter of two times. */
static bool settle(struct gate *gate)
{
    for (gate->steps = gate->kernels ? 1 << 16 : 1; gate->steps < STEPS_MAX; gate->steps *= 2) {
        uint64_t least_ns = UINT64_MAX;
        for (int i = 0; i < 2; i++) {
            uint64_t begun_ns = keel_now_ns();
            if (!shut(gate, gate->first, NULL) ||
                !keel_bench_finish(&gate->bench, gate->first, "a slow command"))
                return false;
            uint64_t took_ns = keel_now_ns() - begun_ns;
            least_ns = took_ns < least_ns ? took_ns : least_ns;
        }
        if (least_ns >= GATE_NS)
            return true;
    }
    return true;
}

static bool gate_begin(struct gate *gate, struct keel_check_run *run)
{
    memset(gate, 0, sizeof *gate);
    if (!keel_bench_begin(&gate->bench, run) ||
        !ok(gate, keel_queue_create(gate->bench.device, &gate->first), "a queue") ||
        !ok(gate, keel_queue_create(gate->bench.device, &gate->second), "a second queue") ||
        !ok(gate, keel_buffer_create(gate->bench.device, BYTES, &gate->words), "a buffer") ||
        !ok(gate, keel_buffer_create(gate->bench.device, BYTES, &gate->copy), "a buffer"))
        return false;
    gate->kernels = keel_probe_init(&gate->probe, run);
    keel_check_progress(run, 0, 0, "a command that takes its time");
    return !keel_check_failed(run) && settle(gate);
}

static void gate_end(struct gate *gate)
{
    if (keel_check_failed(gate->bench.run))
        return; /* what may still run keeps its memory to the end of the process */
    if (gate->first != NULL)
        keel_queue_destroy(gate->first);
    if (gate->second != NULL)
        keel_queue_destroy(gate->second);
    if (gate->words != NULL)
        keel_buffer_destroy(gate->words);
    if (gate->copy != NULL)
        keel_buffer_destroy(gate->copy);
    keel_probe_fini(&gate->probe);
    keel_bench_end(&gate->bench);
}

/* Both buffers hold old words again, and nothing runs. */
static bool reset(struct gate *gate)
{
    gate->round++;
    memset(gate->bench.got, 0, BYTES);
    return keel_bench_fill(&gate->bench, gate->words, 0, BYTES, OLD) &&
           keel_bench_fill(&gate->bench, gate->copy, 0, BYTES, OLD);
}

/* ---- the command behind the gate ---- */

enum behind { BEHIND_READ, BEHIND_COPY, BEHIND_MAP, BEHIND_LAUNCH, BEHIND_WRITE, BEHIND_FILL, BEHINDS };

static const char *const behind_names[BEHINDS] = {"read", "copy", "map", "launch", "write", "fill"};

/* Those that write put these words in place of the gate's. */
static uint32_t last_word(const struct gate *gate, uint32_t i)
{
    (void)i;
    return 0x7a000000 + gate->round;
}

static enum keel_status go_behind(struct gate *gate, struct keel_queue *queue, enum behind behind,
                                  const struct keel_wait_list *waits, void **mapped,
                                  struct keel_event **event)
{
    uint32_t *host = (uint32_t *)(void *)gate->bench.got;
    switch (behind) {
    case BEHIND_READ:
        return keel_queue_read(queue, gate->words, 0, host, BYTES, waits, event);
    case BEHIND_COPY:
        return keel_queue_copy(queue, gate->words, 0, gate->copy, 0, BYTES, waits, event);
    case BEHIND_MAP:
        return keel_queue_map(queue, gate->words, 0, BYTES, KEEL_MAP_READ, mapped, waits, event);
    case BEHIND_LAUNCH:
        return keel_probe_copy(&gate->probe, queue, gate->words, gate->copy, WORDS, waits, event);
    case BEHIND_WRITE:
        for (uint32_t i = 0; i < WORDS; i++)
            host[i] = last_word(gate, i);
        return keel_queue_write(queue, gate->words, 0, host, BYTES, waits, event);
    case BEHIND_FILL:
        return keel_queue_fill(queue, gate->words, 0, BYTES, last_word(gate, 0), waits, event);
    case BEHINDS:
        break;
    }
    return KEEL_INVALID;
}

/* What it saw, or left, at its end; then both queues are finished. */
static bool look_behind(struct gate *gate, enum behind behind, void *mapped, struct keel_queue *queue,
                        const char *fault)
{
    const uint32_t *seen = (const uint32_t *)(const void *)gate->bench.got;
    uint32_t at_map[WORDS];
    const bool writes = behind == BEHIND_WRITE || behind == BEHIND_FILL;
    if (behind == BEHIND_MAP) {
        memcpy(at_map, mapped, BYTES);
        seen = at_map;
        if (!ok(gate, keel_queue_unmap(queue, gate->words, mapped, NULL, NULL), "an unmap"))
            return false;
    }
    if (!keel_bench_finish(&gate->bench, gate->first, "a gated command") ||
        !keel_bench_finish(&gate->bench, gate->second, "a gated command"))
        return false;
    if ((behind == BEHIND_COPY || behind == BEHIND_LAUNCH || writes) &&
        !keel_bench_read(&gate->bench, writes ? gate->words : gate->copy, 0, gate->bench.got, BYTES))
        return false;
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t wanted = writes ? last_word(gate, i) : new_word(gate, i);
        if (seen[i] != wanted) {
            keel_check_fail(gate->bench.run, "a %s %s: word %" PRIu32 " is %08" PRIx32 ", not %08" PRIx32,
                            behind_names[behind], fault, i, seen[i], wanted);
            return false;
        }
    }
    return true;
}

static uint32_t rounds(const struct gate *gate)
{
    return keel_check_options(gate->bench.run)->quick ? ROUNDS_QUICK : ROUNDS;
}

/* ---- the list of events of another queue ---- */

/* `late`: the gate's event is the second one of the list, behind one that is done. */
static bool try_wait(struct gate *gate, enum behind behind, bool late)
{
    struct keel_event *events[2] = {NULL}, *done = NULL;
    void *mapped = NULL;
    bool going = reset(gate) && (!late || (ok(gate, keel_queue_mark(gate->second, &events[0]), "a mark") &&
                                           keel_bench_finish(&gate->bench, gate->second, "a mark")));
    going =
        going && shut(gate, gate->first, &events[late]) && ok(gate, keel_queue_flush(gate->first), "a flush");
    const struct keel_wait_list waits = {.events = events, .count = late ? 2 : 1};
    going =
        going &&
        ok(gate, go_behind(gate, gate->second, behind, &waits, &mapped, &done), "a command that waits") &&
        ok(gate, keel_event_wait(done, keel_check_deadline_ns(gate->bench.run)), "a command that waits") &&
        look_behind(gate, behind, mapped, gate->second,
                    late ? "did not wait for the second of two events"
                         : "did not wait for the event of another queue");
    keel_event_destroy(done);
    keel_event_destroy(events[0]);
    keel_event_destroy(events[1]);
    return going;
}

static void check_waits(struct keel_check_run *run)
{
    struct gate gate;
    bool going = gate_begin(&gate, run);
    for (uint32_t i = 0; going && i < rounds(&gate) * BEHINDS; i++) {
        enum behind behind = (enum behind)(i % BEHINDS);
        keel_check_progress(run, i, rounds(&gate) * BEHINDS, behind_names[behind]);
        if (behind != BEHIND_LAUNCH || gate.kernels)
            going = try_wait(&gate, behind, i / BEHINDS % 2 == 1);
    }
    gate_end(&gate);
}

/* ---- the order of one queue ---- */

static void check_in_order(struct keel_check_run *run)
{
    struct gate gate;
    bool going = gate_begin(&gate, run);
    for (uint32_t i = 0; going && i < rounds(&gate) * BEHINDS; i++) {
        enum behind behind = (enum behind)(i % BEHINDS);
        struct keel_event *done = NULL;
        void *mapped = NULL;
        keel_check_progress(run, i, rounds(&gate) * BEHINDS, behind_names[behind]);
        if (behind == BEHIND_LAUNCH && !gate.kernels)
            continue;
        going = reset(&gate) && shut(&gate, gate.first, NULL) &&
                ok(&gate, go_behind(&gate, gate.first, behind, NULL, &mapped, &done),
                   "a command behind another") &&
                ok(&gate, keel_event_wait(done, keel_check_deadline_ns(run)), "a command behind another") &&
                look_behind(&gate, behind, mapped, gate.first, "overtook the command before it in its queue");
        keel_event_destroy(done);
    }
    gate_end(&gate);
}

/* ---- events that come when it is done, and not before ---- */

/* The event of the gate, waited for or asked: what the gate wrote is there for another queue. */
static bool try_completion(struct gate *gate, bool ask)
{
    struct keel_event *event = NULL;
    const uint64_t deadline_ns = keel_check_deadline_ns(gate->bench.run);
    bool going =
        reset(gate) && shut(gate, gate->first, &event) && ok(gate, keel_queue_flush(gate->first), "a flush");
    while (going && ask && !keel_event_done(event) && keel_remaining_ns(deadline_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS / 4));
    going = going && ok(gate, keel_event_wait(event, deadline_ns), "the event of a slow command") &&
            ok(gate, keel_queue_read(gate->second, gate->words, 0, gate->bench.got, BYTES, NULL, NULL),
               "a read") &&
            keel_bench_finish(&gate->bench, gate->second, "a read") &&
            look_behind(gate, BEHIND_READ, NULL, gate->second,
                        ask ? "behind an event that says it is done shows that it is not"
                            : "behind an event that was waited for shows that it was not done");
    keel_event_destroy(event);
    return going;
}

/* The event of a transfer to the host: the data are there. */
static bool try_arrival(struct gate *gate)
{
    struct keel_event *event = NULL;
    bool going =
        reset(gate) && shut(gate, gate->first, NULL) &&
        ok(gate, keel_queue_read(gate->first, gate->words, 0, gate->bench.got, BYTES, NULL, &event),
           "a read") &&
        ok(gate, keel_event_wait(event, keel_check_deadline_ns(gate->bench.run)), "the event of a read");
    if (going) /* as it is now */
        memcpy(gate->bench.wanted, gate->bench.got, BYTES);
    going = going && keel_bench_finish(&gate->bench, gate->first, "a read");
    if (going)
        memcpy(gate->bench.got, gate->bench.wanted, BYTES);
    going = going &&
            look_behind(gate, BEHIND_READ, NULL, gate->first, "whose event was waited for has not arrived");
    keel_event_destroy(event);
    return going;
}

static void check_completion(struct keel_check_run *run)
{
    struct gate gate;
    bool going = gate_begin(&gate, run);
    for (uint32_t i = 0; going && i < rounds(&gate); i++) {
        keel_check_progress(run, i, rounds(&gate), "events of slow commands");
        going = try_completion(&gate, false) && try_completion(&gate, true) && try_arrival(&gate);
    }
    gate_end(&gate);
}

/* ---- two queues at work ---- */

static void expect_steps(uint32_t *words, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        words[i % 16] = words[i % 16] * 3 + seed + i;
}

static bool enqueue_steps(struct gate *gate, struct keel_queue *queue, struct keel_buffer *buffer,
                          uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        if (!ok(gate, keel_probe_step(&gate->probe, queue, buffer, i % 16, seed + i), "a launch"))
            return false;
    return ok(gate, keel_queue_flush(queue), "a flush");
}

static bool compare_steps(struct gate *gate, struct keel_buffer *buffer, uint32_t count, uint32_t seed,
                          const char *what)
{
    uint32_t got[16], wanted[16];
    for (uint32_t i = 0; i < 16; i++)
        wanted[i] = OLD;
    expect_steps(wanted, count, seed);
    if (!keel_bench_read(&gate->bench, buffer, 0, got, sizeof got))
        return false;
    for (uint32_t i = 0; i < 16; i++)
        if (got[i] != wanted[i]) {
            keel_check_fail(gate->bench.run, "%s: a launch was lost, done twice, or with another's arguments",
                            what);
            return false;
        }
    return true;
}

/* While the gate is shut on one queue: launches on the other, and transfers of other memory. */
static bool try_two_queues(struct gate *gate)
{
    enum { LAUNCHES = 64, PARTS = 16, PART = 4096 };
    struct keel_bench *bench = &gate->bench;
    if (!reset(gate) || !shut(gate, gate->first, NULL) || !ok(gate, keel_queue_flush(gate->first), "a flush"))
        return false;
    for (uint32_t i = 0; i < PART * PARTS; i++)
        bench->wanted[i] = (uint8_t)keel_bench_mix(i + gate->round);
    if (gate->kernels && !enqueue_steps(gate, gate->second, gate->copy, LAUNCHES, gate->round))
        return false;
    for (uint32_t i = 0; i < PARTS; i++)
        if (!ok(gate,
                keel_queue_write(gate->second, bench->buffer, (uint64_t)i * PART,
                                 bench->wanted + (size_t)i * PART, PART, NULL, NULL),
                "a write") ||
            !ok(gate,
                keel_queue_copy(gate->second, bench->buffer, (uint64_t)i * PART, bench->other,
                                (uint64_t)i * PART, PART, NULL, NULL),
                "a copy"))
            return false;
    memset(bench->got, 0, (size_t)PART * PARTS);
    if (!ok(gate, keel_queue_read(gate->second, bench->other, 0, bench->got, PART * PARTS, NULL, NULL),
            "a read") ||
        !keel_bench_finish(bench, gate->second, "the second of two queues") ||
        !keel_bench_finish(bench, gate->first, "the first of two queues") ||
        !keel_bench_same(bench, bench->got, bench->wanted, (uint64_t)PART * PARTS,
                         "transfers of one queue while a kernel runs in another"))
        return false;
    if (gate->kernels && !compare_steps(gate, gate->copy, LAUNCHES, gate->round,
                                        "kernels of one queue while one runs in another"))
        return false;
    memset(bench->got, 0, BYTES);
    return keel_bench_read(bench, gate->words, 0, bench->got, BYTES) &&
           look_behind(gate, BEHIND_READ, NULL, gate->first,
                       "of what a kernel wrote while another queue worked");
}

static void check_two_queues(struct keel_check_run *run)
{
    struct gate gate;
    bool going = gate_begin(&gate, run);
    for (uint32_t i = 0; going && i < 2 * rounds(&gate); i++) {
        keel_check_progress(run, i, 2 * rounds(&gate), "two queues at work");
        going = try_two_queues(&gate);
    }
    gate_end(&gate);
}

/* For checks that are all kernels. False after a verdict, and where the board has no compiler for them. */
static bool begin_with_kernels(struct gate *gate, struct keel_check_run *run)
{
    bool going = gate_begin(gate, run);
    if (going && !gate->kernels)
        keel_check_note(run,
                        "nothing was tried: its kernels are compiled on the board, which has no compiler");
    return going && gate->kernels;
}

/* ---- many launches on their way ---- */

static void check_many_launches(struct keel_check_run *run)
{
    enum { LAUNCHES = 3000 };
    struct gate gate;
    if (begin_with_kernels(&gate, run) && reset(&gate) && shut(&gate, gate.first, NULL) &&
        enqueue_steps(&gate, gate.first, gate.copy, LAUNCHES, 5) &&
        keel_bench_finish(&gate.bench, gate.first, "3000 launches"))
        compare_steps(&gate, gate.copy, LAUNCHES, 5, "3000 launches in one queue");
    gate_end(&gate);
}

/* The same launches again and again: the process does not grow with them. */
static void check_steady_launches(struct keel_check_run *run)
{
    enum { LAUNCHES = 1000 };
    struct gate gate;
    bool going = begin_with_kernels(&gate, run);
    uint64_t resident[KEEL_BENCH_STAGES + 1] = {keel_bench_resident_bytes()};
    for (uint32_t i = 1; going && i <= KEEL_BENCH_STAGES; i++) {
        keel_check_progress(run, i, KEEL_BENCH_STAGES, "launches again and again");
        going = enqueue_steps(&gate, gate.first, gate.copy, LAUNCHES, i) &&
                keel_bench_finish(&gate.bench, gate.first, "1000 launches");
        resident[i] = keel_bench_resident_bytes();
    }
    if (going)
        keel_bench_judge_stages(run, resident, "1000 launches");
    gate_end(&gate);
}

/* ---- grids and groups ---- */

static void expect_grid(uint32_t *words, const struct keel_range *range)
{
    const size_t *size = range->local;
    for (size_t z = 0; z < range->global[2]; z++)
        for (size_t y = 0; y < range->global[1]; y++)
            for (size_t x = 0; x < range->global[0]; x++) {
                const size_t group[] = {x / size[0], y / size[1], z / size[2]};
                const size_t local[] = {x % size[0], y % size[1], z % size[2]};
                *words++ = keel_probe_grid_word(group, local, size);
            }
}

static bool try_grid(struct gate *gate, struct keel_buffer *buffer, const struct keel_range *range)
{
    const size_t items = range->global[0] * range->global[1] * range->global[2];
    struct keel_bench *bench = &gate->bench;
    const struct keel_arg arg = {.kind = KEEL_ARG_BUFFER, .as.buffer = buffer};
    char what[KEEL_CHECK_TEXT_BYTES];
    snprintf(what, sizeof what, "a grid of %zu x %zu x %zu items in groups of %zu x %zu x %zu",
             range->global[0], range->global[1], range->global[2], range->local[0], range->local[1],
             range->local[2]);
    keel_check_progress(bench->run, 0, 0, what);
    expect_grid((uint32_t *)(void *)bench->wanted, range);
    return keel_bench_fill(bench, buffer, 0, KEEL_BENCH_BYTES, 0) &&
           ok(gate,
              keel_queue_launch(bench->queue, gate->probe.kernels[KEEL_PROBE_GRID], &arg, 1, range, NULL,
                                NULL),
              what) &&
           keel_bench_finish(bench, bench->queue, what) &&
           keel_bench_read(bench, buffer, 0, bench->got, items * 4) &&
           keel_bench_same(bench, bench->got, bench->wanted, items * 4, what);
}

/* The largest group that the board and the kernel claim. */
static size_t claimed_items(const struct gate *gate)
{
    size_t items = keel_device_info(gate->bench.device)->max_group_items;
    const struct keel_kernel_info info = keel_kernel_info(gate->probe.kernels[KEEL_PROBE_GRID]);
    if (info.max_group_items > 0 && info.max_group_items < items)
        items = info.max_group_items;
    return items < KEEL_BENCH_BYTES / 8 ? items : KEEL_BENCH_BYTES / 8;
}

static void check_grids(struct keel_check_run *run)
{
    static const struct keel_range ranges[] = {{{5000, 1, 1}, {1, 1, 1}},    {{70000, 1, 1}, {10, 1, 1}},
                                               {{1, 65550, 1}, {1, 1, 1}},   {{3, 700, 1}, {1, 1, 1}},
                                               {{2, 3, 200}, {1, 1, 1}},     {{8, 66, 24}, {8, 3, 2}},
                                               {{131072, 2, 1}, {32, 1, 1}}, {{70, 70, 1}, {1, 1, 1}}};
    struct gate gate;
    bool going = begin_with_kernels(&gate, run);
    for (size_t i = 0; going && i < sizeof ranges / sizeof ranges[0]; i++) {
        const size_t items = ranges[i].local[0] * ranges[i].local[1] * ranges[i].local[2];
        if (items <= claimed_items(&gate))
            going = try_grid(&gate, gate.bench.buffer, &ranges[i]);
    }
    const size_t most = going ? claimed_items(&gate) : 0;
    for (size_t size = most; going && size > 1; size = size > 64 ? size / 4 : 1) {
        const struct keel_range range = {{2 * size, 1, 1}, {size, 1, 1}};
        going = try_grid(&gate, gate.bench.buffer, &range);
    }
    gate_end(&gate);
}

/* A queue out of order breaks all the others, an event too early the waits, a lost launch what two queues do.
 */
const struct keel_check keel_checks_order[] = {
    {"2.6", "in-order", "no command overtakes the one before it in its queue", "1.2", 120, false,
     check_in_order},
    {"2.7", "completion", "an event comes when its command is done, and not before", "2.6", 120, false,
     check_completion},
    {"2.8", "many-launches",
     "of thousands of launches on their way each runs once, in order, with its arguments", "2.7", 120, false,
     check_many_launches},
    {"2.9", "two-queues", "kernels and transfers of two queues at a time do not harm each other", "2.8", 120,
     false, check_two_queues},
    {"2.10", "waits", "every kind of command waits for all events of its list", "2.9", 120, false,
     check_waits},
    {"2.11", "grids", "every work-item of a large grid and of the largest group runs once, in its place",
     "1.2", 120, false, check_grids},
    {"2.12", "steady-launches", "launches that are done leave no memory behind in the process", "2.8", 120,
     false, check_steady_launches},
    {.id = NULL}};
