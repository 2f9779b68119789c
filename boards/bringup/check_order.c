/* check_order.c - level 2: what waits does wait, what is done is done, and every work-item runs once.
 *
 * Each question is put while a gate is shut: a launch that takes GATE_NS and writes its words at its end. A
 * command that does not wait for it sees the words of before; one whose event comes too early is asked too
 * early. Where the board does not compile, a chain of copies that takes as long is the gate, and no launch is
 * tried. */
#include "check_steps.h"
#include "probe.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/health.h>
#include <string.h>

enum {
    WORDS = 1024,
    BYTES = WORDS * 4,
    ROUNDS = 8,
    ROUNDS_QUICK = 4,
    SETTLES = 6,
    STEPS_MAX = 1 << 30,
    OLD = 0x01d00000
};
#define GATE_NS (40 * KEEL_NS_PER_MS)

struct gate {
    struct keel_check_run *run;
    struct keel_probe probe;
    struct keel_queue *first, *second;
    struct keel_buffer *words, *copy; /* of WORDS */
    bool kernels;
    uint32_t steps; /* turns of the kernel, or copies, that take GATE_NS */
    uint32_t round;
};

static bool ok(struct gate *gate, enum keel_status status, const char *what)
{
    return keel_check_ok(gate->run, status, what);
}

static bool finish_both(struct gate *gate)
{
    return keel_step_finish(gate->run, gate->first, "a gated command") &&
           keel_step_finish(gate->run, gate->second, "a gated command");
}

static uint32_t new_word(const struct gate *gate, uint32_t i)
{
    return 0x3e000000 + (gate->round << 12) + (gate->kernels ? i : 0);
}

/* The gate on a queue, begun: `words` become new_word at its end. A chain of copies has the second half of
 * the two buffers for itself: the first is for what is tried on another queue meanwhile. */
static bool shut(struct gate *gate, struct keel_queue *queue, struct keel_event **event)
{
    const uint64_t half = KEEL_CHECK_BYTES / 2;
    enum keel_status status = KEEL_OK;
    if (gate->kernels)
        return ok(gate,
                  keel_probe_slow(&gate->probe, queue, gate->words, 0, WORDS, gate->steps, new_word(gate, 0),
                                  NULL, event),
                  "a slow launch") &&
               ok(gate, keel_queue_flush(queue), "a flush");
    for (uint32_t i = 0; i < gate->steps && status == KEEL_OK; i++)
        status = keel_queue_copy(queue, gate->run->buffer, half, gate->run->other, half, half, NULL, NULL);
    if (status == KEEL_OK)
        status = keel_queue_fill(queue, gate->words, 0, BYTES, new_word(gate, 0), NULL, event);
    return ok(gate, status, "a chain of copies") && ok(gate, keel_queue_flush(queue), "a flush");
}

/* How many turns take GATE_NS: doubled until they do, the shortest of some times, since others may have the
 * machine meanwhile: a gate that is open too early shows nothing. */
static bool settle(struct gate *gate)
{
    for (gate->steps = gate->kernels ? 1 << 16 : 1; gate->steps < STEPS_MAX; gate->steps *= 2) {
        uint64_t least_ns = UINT64_MAX;
        for (int i = 0; i < SETTLES && least_ns >= GATE_NS; i++) {
            uint64_t begun_ns = keel_now_ns();
            if (!shut(gate, gate->first, NULL) || !keel_step_finish(gate->run, gate->first, "a slow command"))
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
    *gate = (struct gate){.run = run};
    if (!ok(gate, keel_check_new_queue(run, &gate->first), "a queue") ||
        !ok(gate, keel_check_new_queue(run, &gate->second), "a second queue") ||
        !ok(gate, keel_check_new_buffer(run, BYTES, &gate->words), "a buffer") ||
        !ok(gate, keel_check_new_buffer(run, BYTES, &gate->copy), "a buffer"))
        return false;
    gate->kernels = keel_probe_init(&gate->probe, run);
    keel_check_progress(run, 0, 0, "a command that takes its time");
    return !keel_check_failed(run) && settle(gate);
}

/* Both buffers hold old words again, and nothing runs. */
static bool reset(struct gate *gate)
{
    gate->round++;
    memset(gate->run->got, 0, BYTES);
    return keel_step_fill(gate->run, gate->words, 0, BYTES, OLD) &&
           keel_step_fill(gate->run, gate->copy, 0, BYTES, OLD);
}

/* `try` a number of times behind a gate, until it returns false. */
static void repeat(struct keel_check_run *run, uint32_t times, const char *what,
                   bool (*try)(struct gate *gate, uint32_t number))
{
    struct gate gate;
    const uint32_t count = times * (run->options->quick ? ROUNDS_QUICK : ROUNDS);
    bool going = gate_begin(&gate, run);
    for (uint32_t i = 0; going && i < count; i++) {
        keel_check_progress(run, i, count, what);
        going = reset(&gate) && try(&gate, i);
    }
}

/* ---- the command behind the gate ---- */

enum behind { BEHIND_READ, BEHIND_COPY, BEHIND_MAP, BEHIND_LAUNCH, BEHIND_WRITE, BEHIND_FILL, BEHINDS };

static const char *const behind_names[BEHINDS] = {"read", "copy", "map", "launch", "write", "fill"};

/* What those that write put in place of the gate's words. */
static uint32_t last_word(const struct gate *gate)
{
    return 0x7a000000 + gate->round;
}

static enum keel_status go_behind(struct gate *gate, struct keel_queue *queue, enum behind behind,
                                  const struct keel_wait_list *waits, void **mapped,
                                  struct keel_event **event)
{
    uint32_t *host = (uint32_t *)(void *)gate->run->got;
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
            host[i] = last_word(gate);
        return keel_queue_write(queue, gate->words, 0, host, BYTES, waits, event);
    case BEHIND_FILL:
        return keel_queue_fill(queue, gate->words, 0, BYTES, last_word(gate), waits, event);
    case BEHINDS:
        break;
    }
    return KEEL_INVALID;
}

/* Are these WORDS what the gate, or a command that `writes`, left? */
static bool compare(struct gate *gate, const void *words, bool writes, enum behind behind, const char *fault)
{
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t seen, wanted = writes ? last_word(gate) : new_word(gate, i);
        memcpy(&seen, (const uint8_t *)words + (size_t)i * 4, sizeof seen);
        if (seen == wanted)
            continue;
        keel_check_fail(gate->run, "a %s %s: word %" PRIu32 " is %08" PRIx32 ", not %08" PRIx32,
                        behind_names[behind], fault, i, seen, wanted);
        return false;
    }
    return true;
}

/* What it saw, or left, at its end; then both queues are finished. */
static bool look_behind(struct gate *gate, enum behind behind, void *mapped, struct keel_queue *queue,
                        const char *fault)
{
    const bool writes = behind == BEHIND_WRITE || behind == BEHIND_FILL;
    uint8_t *got = gate->run->got;
    if (behind == BEHIND_MAP) {
        memcpy(got, mapped, BYTES);
        if (!ok(gate, keel_queue_unmap(queue, gate->words, mapped, NULL, NULL), "an unmap"))
            return false;
    }
    if (!finish_both(gate))
        return false;
    if ((behind == BEHIND_COPY || behind == BEHIND_LAUNCH || writes) &&
        !keel_step_read(gate->run, writes ? gate->words : gate->copy, 0, got, BYTES))
        return false;
    return compare(gate, got, writes, behind, fault);
}

/* A command behind the gate, on `queue` and waiting for `waits`; its event, and what it saw or left. */
static bool try_behind(struct gate *gate, struct keel_queue *queue, enum behind behind,
                       const struct keel_wait_list *waits, const char *what, const char *fault)
{
    struct keel_event *done = NULL;
    void *mapped = NULL;
    bool going = ok(gate, go_behind(gate, queue, behind, waits, &mapped, &done), what) &&
                 ok(gate, keel_event_wait(done, gate->run->deadline_ns), what) &&
                 look_behind(gate, behind, mapped, queue, fault);
    keel_event_destroy(done);
    return going;
}

static bool is_left_out(const struct gate *gate, enum behind behind)
{
    return behind == BEHIND_LAUNCH && !gate->kernels;
}

/* ---- the list of events of another queue ---- */

/* In every second round the gate's event is the second one of the list, behind one that is done. */
static bool try_wait(struct gate *gate, uint32_t number)
{
    struct keel_event *events[2] = {NULL};
    const enum behind behind = (enum behind)(number % BEHINDS);
    const bool late = number / BEHINDS % 2 == 1;
    const struct keel_wait_list waits = {.events = events, .count = late ? 2 : 1};
    if (is_left_out(gate, behind))
        return true;
    bool going = (!late || (ok(gate, keel_queue_mark(gate->second, &events[0]), "a mark") &&
                            keel_step_finish(gate->run, gate->second, "a mark"))) &&
                 shut(gate, gate->first, &events[late]) &&
                 try_behind(gate, gate->second, behind, &waits, "a command that waits",
                            late ? "did not wait for the second of two events"
                                 : "did not wait for the event of another queue");
    keel_event_destroy(events[0]);
    keel_event_destroy(events[1]);
    return going;
}

static void check_waits(struct keel_check_run *run)
{
    repeat(run, BEHINDS, "commands that wait for another queue", try_wait);
}

/* ---- the order of one queue ---- */

static bool try_in_order(struct gate *gate, uint32_t number)
{
    const enum behind behind = (enum behind)(number % BEHINDS);
    return is_left_out(gate, behind) ||
           (shut(gate, gate->first, NULL) &&
            try_behind(gate, gate->first, behind, NULL, "a command behind another",
                       "overtook the command before it in its queue"));
}

static void check_in_order(struct keel_check_run *run)
{
    repeat(run, BEHINDS, "commands behind another", try_in_order);
}

/* ---- events that come when it is done, and not before ---- */

/* The event of the gate, waited for or asked: what the gate wrote is there for another queue. */
static bool try_completion(struct gate *gate, bool ask)
{
    struct keel_event *event = NULL;
    const uint64_t deadline_ns = gate->run->deadline_ns;
    bool going = reset(gate) && shut(gate, gate->first, &event);
    while (going && ask && !keel_event_done(event) && keel_remaining_ns(deadline_ns) > 0)
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS / 4));
    going = going && ok(gate, keel_event_wait(event, deadline_ns), "the event of a slow command") &&
            ok(gate, keel_queue_read(gate->second, gate->words, 0, gate->run->got, BYTES, NULL, NULL),
               "a read") &&
            keel_step_finish(gate->run, gate->second, "a read") && finish_both(gate) &&
            compare(gate, gate->run->got, false, BEHIND_READ,
                    ask ? "behind an event that says it is done shows that it is not"
                        : "behind an event that was waited for shows that it was not done");
    keel_event_destroy(event);
    return going;
}

/* The event of a transfer to the host: the data are there. */
static bool try_arrival(struct gate *gate)
{
    struct keel_event *event = NULL;
    uint8_t at_event[BYTES];
    bool going = reset(gate) && shut(gate, gate->first, NULL) &&
                 ok(gate, keel_queue_read(gate->first, gate->words, 0, gate->run->got, BYTES, NULL, &event),
                    "a read") &&
                 ok(gate, keel_event_wait(event, gate->run->deadline_ns), "the event of a read");
    memcpy(at_event, gate->run->got, BYTES); /* as it is now */
    going = going && finish_both(gate) &&
            compare(gate, at_event, false, BEHIND_READ, "whose event was waited for has not arrived");
    keel_event_destroy(event);
    return going;
}

static bool try_events(struct gate *gate, uint32_t number)
{
    (void)number;
    return try_completion(gate, false) && try_completion(gate, true) && try_arrival(gate);
}

static void check_completion(struct keel_check_run *run)
{
    repeat(run, 1, "events of slow commands", try_events);
}

/* ---- two queues at work ---- */

static bool enqueue_steps(struct gate *gate, struct keel_queue *queue, uint32_t count, uint32_t seed)
{
    for (uint32_t i = 0; i < count; i++)
        if (!ok(gate, keel_probe_step(&gate->probe, queue, gate->copy, i % 16, seed + i), "a launch"))
            return false;
    return ok(gate, keel_queue_flush(queue), "a flush");
}

static bool compare_steps(struct gate *gate, uint32_t count, uint32_t seed, const char *what)
{
    uint32_t got[16], wanted[16];
    for (uint32_t i = 0; i < 16; i++)
        wanted[i] = OLD;
    for (uint32_t i = 0; i < count; i++)
        wanted[i % 16] = wanted[i % 16] * 3 + seed + i;
    if (!keel_step_read(gate->run, gate->copy, 0, got, sizeof got))
        return false;
    if (memcmp(got, wanted, sizeof got) == 0)
        return true;
    keel_check_fail(gate->run, "%s: a launch was lost, done twice, or with another's arguments", what);
    return false;
}

/* While the gate is shut on one queue: launches on the other, and transfers of other memory. */
static bool try_two_queues(struct gate *gate, uint32_t number)
{
    enum { LAUNCHES = 64, PARTS = 16, PART = 4096 };
    struct keel_check_run *run = gate->run;
    struct keel_queue *queue = gate->second;
    _Static_assert(PARTS * PART <= KEEL_CHECK_BYTES / 2, "beside the gate's chain of copies");
    if (!shut(gate, gate->first, NULL) ||
        (gate->kernels && !enqueue_steps(gate, queue, LAUNCHES, gate->round)))
        return false;
    for (uint32_t i = 0; i < PART * PARTS; i++)
        run->wanted[i] = (uint8_t)keel_check_mix(i + number);
    for (uint32_t at = 0; at < PART * PARTS; at += PART)
        if (!ok(gate, keel_queue_write(queue, run->buffer, at, run->wanted + at, PART, NULL, NULL),
                "a write") ||
            !ok(gate, keel_queue_copy(queue, run->buffer, at, run->other, at, PART, NULL, NULL), "a copy"))
            return false;
    memset(run->got, 0, (size_t)PART * PARTS);
    return ok(gate, keel_queue_read(queue, run->other, 0, run->got, PART * PARTS, NULL, NULL), "a read") &&
           keel_step_finish(run, queue, "the second of two queues") &&
           keel_step_finish(run, gate->first, "the first of two queues") &&
           keel_step_same(run, run->got, run->wanted, (uint64_t)PART * PARTS,
                          "transfers of one queue while a kernel runs in another") &&
           (!gate->kernels ||
            compare_steps(gate, LAUNCHES, gate->round, "kernels of one queue while one runs in another")) &&
           keel_step_read(run, gate->words, 0, run->got, BYTES) &&
           compare(gate, run->got, false, BEHIND_READ, "of what a kernel wrote while another queue worked");
}

static void check_two_queues(struct keel_check_run *run)
{
    repeat(run, 2, "two queues at work", try_two_queues);
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
        enqueue_steps(&gate, gate.first, LAUNCHES, 5) && keel_step_finish(run, gate.first, "3000 launches"))
        compare_steps(&gate, LAUNCHES, 5, "3000 launches in one queue");
}

/* The same launches again and again: the process does not grow with them. */
static bool launch_stage(struct keel_check_run *run, void *context, uint32_t number)
{
    enum { LAUNCHES = 1000 };
    struct gate *gate = context;
    return enqueue_steps(gate, gate->first, LAUNCHES, number) &&
           keel_step_finish(run, gate->first, "1000 launches");
}

static void check_steady_launches(struct keel_check_run *run)
{
    struct gate gate;
    if (begin_with_kernels(&gate, run))
        keel_check_stages(run, "launches again and again", "1000 launches", launch_stage, &gate);
}

/* ---- grids and groups ---- */

static bool try_grid(struct gate *gate, const struct keel_range *range)
{
    const size_t *all = range->global, *group = range->local, items = all[0] * all[1] * all[2];
    struct keel_check_run *run = gate->run;
    const struct keel_arg arg = {.kind = KEEL_ARG_BUFFER, .as.buffer = run->buffer};
    char what[KEEL_CHECK_TEXT_BYTES];
    snprintf(what, sizeof what, "a grid of %zu x %zu x %zu items in groups of %zu x %zu x %zu", all[0],
             all[1], all[2], group[0], group[1], group[2]);
    keel_check_progress(run, 0, 0, what);
    memset(run->wanted, 0, items * 4);
    keel_probe_grid((uint32_t *)(void *)run->wanted, range);
    return keel_step_fill(run, run->buffer, 0, KEEL_CHECK_BYTES, 0) &&
           ok(gate,
              keel_queue_launch(run->on.queue, gate->probe.kernels[KEEL_PROBE_GRID], &arg, 1, range, NULL,
                                NULL),
              what) &&
           keel_step_finish(run, run->on.queue, what) &&
           keel_step_read(run, run->buffer, 0, run->got, items * 4) &&
           keel_step_same(run, run->got, run->wanted, items * 4, "%s", what);
}

/* The largest group that the board and the kernel claim, in all. */
static size_t claimed_items(const struct gate *gate)
{
    size_t items = gate->run->on.info->max_group_items;
    const struct keel_kernel_info info = keel_kernel_info(gate->probe.kernels[KEEL_PROBE_GRID]);
    if (info.max_group_items > 0 && info.max_group_items < items)
        items = info.max_group_items;
    return items < KEEL_CHECK_BYTES / 8 ? items : KEEL_CHECK_BYTES / 8;
}

/* Whether the board claims groups of that shape: what it does not claim is no defect. */
static bool claims(const struct gate *gate, const size_t local[3])
{
    const uint32_t *most = gate->run->on.info->max_items;
    return local[0] <= most[0] && local[1] <= most[1] && local[2] <= most[2] &&
           local[0] * local[1] * local[2] <= claimed_items(gate);
}

static void check_grids(struct keel_check_run *run)
{
    static const struct keel_range ranges[] = {
        {{5000, 1, 1}, {1, 1, 1}},  {{70000, 1, 1}, {10, 1, 1}},  {{65550, 1, 1}, {1, 1, 1}},
        {{1, 65550, 1}, {1, 1, 1}}, {{3, 700, 1}, {1, 1, 1}},     {{2, 3, 200}, {1, 1, 1}},
        {{8, 66, 24}, {8, 3, 2}},   {{131072, 2, 1}, {32, 1, 1}}, {{70, 70, 1}, {1, 1, 1}}};
    struct gate gate;
    bool going = begin_with_kernels(&gate, run);
    for (size_t i = 0; going && i < sizeof ranges / sizeof ranges[0]; i++)
        if (claims(&gate, ranges[i].local))
            going = try_grid(&gate, &ranges[i]);
    const size_t line = keel_device_line_items(run->on.info);
    for (size_t size = !going                        ? 0
                       : line < claimed_items(&gate) ? line
                                                     : claimed_items(&gate);
         going && size > 1; size = size > 64 ? size / 4 : 1) {
        const struct keel_range range = {{2 * size, 1, 1}, {size, 1, 1}};
        going = try_grid(&gate, &range);
    }
}

/* ---- times that the driver tells ---- */

/* A gate that is shut and opened: how long, as the host saw it from before until after, and as the driver
 * tells, since it took the command and since it began with it. False after a verdict, and where it does not
 * tell. */
struct told_times {
    uint64_t seen_ns, in_all_ns, launch_ns;
};

static bool time_gate(struct gate *gate, struct told_times *out)
{
    struct keel_event *event = NULL;
    uint64_t began_ns = 0;
    const uint64_t begun_ns = keel_now_ns();
    bool going = shut(gate, gate->first, &event) &&
                 ok(gate, keel_event_wait(event, gate->run->deadline_ns), "the event of a slow command");
    out->seen_ns = keel_now_ns() - begun_ns;
    if (going && !keel_event_times(event, &began_ns, &out->in_all_ns)) {
        keel_check_note(gate->run, "it does not tell when a launch began and ended, or not in this order");
        going = false;
    }
    out->launch_ns = out->in_all_ns - began_ns;
    keel_event_destroy(event);
    return going;
}

/* A command takes no longer than the host sees, whatever else the machine does; an answer that is far too
 * short is asked for again of longer launches, of which what comes before and after is a smaller part. False
 * where nothing more is to be found out. */
static bool try_times(struct gate *gate)
{
    enum { TOO_LONG = 2, TOO_SHORT = 20, LONGER = 4, LENGTHS = 3 };
    const uint32_t steps = gate->steps;
    struct told_times told = {0};
    bool going = true;
    for (int i = 0; going && i < LENGTHS; i++) {
        going = time_gate(gate, &told);
        if (going && told.in_all_ns > TOO_LONG * told.seen_ns + GATE_NS / 4) {
            keel_check_fail(gate->run,
                            "the driver tells that a command was over after %.3f ms, which was over after "
                            "%.3f ms: its times are not nanoseconds",
                            (double)told.in_all_ns / 1e6, (double)told.seen_ns / 1e6);
            return false;
        }
        if (going && told.launch_ns >= told.seen_ns / TOO_SHORT)
            break;
        gate->steps *= gate->steps <= UINT32_MAX / LONGER ? LONGER : 1;
    }
    if (going && told.launch_ns < told.seen_ns / TOO_SHORT)
        keel_check_fail(gate->run,
                        "the driver tells that a launch of about %.3f ms took %.6f ms: its times are not "
                        "nanoseconds",
                        (double)told.seen_ns / 1e6, (double)told.launch_ns / 1e6);
    gate->steps = steps;
    return going && !keel_check_failed(gate->run);
}

static void check_times(struct keel_check_run *run)
{
    enum { TRACED = 64 };
    struct gate gate;
    if (!run->on.info->queue_profiling) {
        keel_check_note(run, "it does not claim to tell when commands began and ended");
        return;
    }
    if (!keel_check_ok(run, keel_device_trace_start(run->on.device, TRACED), "a trace"))
        return;
    bool going = begin_with_kernels(&gate, run);
    if (going && gate.steps >= STEPS_MAX) {
        keel_check_note(run, "nothing was tried: no launch of it takes long enough");
        going = false;
    }
    for (uint32_t i = 0; going && i < (run->options->quick ? ROUNDS_QUICK : ROUNDS); i++)
        going = reset(&gate) && try_times(&gate);
    keel_device_trace_stop(run->on.device);
}

/* A queue out of order breaks all the others, an event too early the waits, a lost launch what two queues do.
 */
#define BUFFERS KEEL_OPENS_BUFFERS
const struct keel_check keel_checks_order[] = {
    {"2.6", "in-order", "no command overtakes the one before it in its queue", "1.2", 120, BUFFERS,
     check_in_order},
    {"2.7", "completion", "an event comes when its command is done, and not before", "2.6", 120, BUFFERS,
     check_completion},
    {"2.8", "many-launches",
     "of thousands of launches on their way each runs once, in order, with its arguments", "2.7", 120,
     BUFFERS, check_many_launches},
    {"2.9", "two-queues", "kernels and transfers of two queues at a time do not harm each other", "2.8", 120,
     BUFFERS, check_two_queues},
    {"2.10", "waits", "every kind of command waits for all events of its list", "2.9", 120, BUFFERS,
     check_waits},
    {"2.11", "grids", "every work-item of a large grid and of the largest group runs once, in its place",
     "1.2", 120, BUFFERS, check_grids},
    {"2.12", "steady-launches", "launches that are done leave no memory behind in the process", "2.8", 120,
     BUFFERS, check_steady_launches},
    {"2.13", "times", "when a command began and ended is told in nanoseconds", "2.7", 120, BUFFERS,
     check_times},
    {.id = NULL}};
