/* device_trace.c - a ring of the last commands of a device, written as a trace for people to look at.
 *
 * While a trace runs every command has an event: the caller's, or one of ours. An entry is settled, which
 * means that its times are taken and our event is given back, when its place in the ring is needed, when the
 * caller destroys the event, when its queue is destroyed, and when the trace is written. Times of the driver
 * count from the moment when it took the command, so they need no clock in common with us.
 *
 * Lock order: trace.lock, then what a backend's event calls lock. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/file.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { ENTRY_TEXT_BYTES = 320, COMMANDS_MAX = 16384 };

struct entry {
    const char *name;         /* of a kernel; NULL for others */
    struct keel_event *event; /* NULL once settled */
    uint64_t sequence, bytes;
    uint64_t enqueued_ns, began_ns, ended_ns; /* 0: not known */
    enum keel_command_kind kind;
    uint32_t queue;
    bool own;   /* the event is ours alone */
    bool timed; /* the driver said when it began and ended */
    bool failed;
};

struct keel_trace {
    struct keel_mutex lock; /* guards what follows */
    uint64_t count;         /* commands seen: the next one's place is count % capacity */
    uint32_t capacity;
    struct entry entries[];
};

bool keel_event_times(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns)
{
    const struct keel_device_ops *ops = event->queue->device->ops;
    return ops->event_times != NULL && ops->event_times(event, out_began_ns, out_ended_ns);
}

/* Caller holds the lock. A command that still runs stays without an end. */
static void settle(struct keel_device *device, struct entry *entry)
{
    const struct keel_device_ops *ops = device->ops;
    struct keel_event *event = entry->event;
    if (event == NULL)
        return;
    uint64_t began_ns = 0, ended_ns = 0; /* since the driver took it */
    if (ops->event_done(event)) {
        entry->timed = keel_event_times(event, &began_ns, &ended_ns);
        entry->began_ns = entry->timed ? entry->enqueued_ns + began_ns : 0;
        entry->ended_ns = entry->timed ? entry->enqueued_ns + ended_ns : keel_now_ns();
    }
    if (entry->own)
        ops->event_destroy(event);
    entry->event = NULL;
}

void keel_trace_begin(struct keel_device_command *command)
{
    command->enqueued_ns = keel_now_ns();
    if (command->out_event == NULL)
        command->out_event = &command->traced;
}

void keel_trace_add(const struct keel_device_command *command, enum keel_status status)
{
    struct keel_queue *queue = command->queue;
    struct keel_trace *trace = queue->device->trace;
    uint64_t sequence = atomic_load_explicit(&queue->sequence, memory_order_relaxed);
    keel_mutex_lock(&trace->lock);
    struct entry *entry = &trace->entries[trace->count++ % trace->capacity];
    settle(queue->device, entry);
    *entry = (struct entry){.name = command->kernel != NULL ? command->kernel->entry->name : NULL,
                            .event = status == KEEL_OK ? *command->out_event : NULL,
                            .sequence = sequence,
                            .bytes = command->bytes,
                            .enqueued_ns = command->enqueued_ns,
                            .kind = command->kind,
                            .queue = queue->number,
                            .own = command->out_event == &command->traced,
                            .failed = status != KEEL_OK};
    if (entry->event != NULL)
        entry->event->trace_place = (uint32_t)(entry - trace->entries);
    if (entry->event != NULL && queue->device->ops->event_times == NULL &&
        queue->device->ops->event_done(entry->event))
        settle(queue->device, entry); /* nobody will tell more exactly */
    keel_mutex_unlock(&trace->lock);
}

void keel_trace_let_go(struct keel_event *event)
{
    struct keel_trace *trace = event->queue->device->trace;
    keel_mutex_lock(&trace->lock);
    struct entry *entry = &trace->entries[event->trace_place % trace->capacity];
    if (entry->event == event && !entry->own)
        settle(event->queue->device, entry);
    keel_mutex_unlock(&trace->lock);
}

void keel_trace_end_queue(struct keel_queue *queue)
{
    struct keel_trace *trace = queue->device->trace;
    keel_mutex_lock(&trace->lock);
    uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
    for (uint64_t i = 0; i < kept; i++)
        if (trace->entries[i].queue == queue->number)
            settle(queue->device, &trace->entries[i]);
    keel_mutex_unlock(&trace->lock);
}

enum keel_status keel_device_trace_start(struct keel_device *device, uint32_t commands)
{
    struct keel_trace *trace = NULL;
    if (device->trace != NULL)
        return keel_fail(KEEL_BUSY, "%s: a trace runs; stop it first", device->info.selector);
    if (commands == 0 || commands > COMMANDS_MAX)
        return keel_fail(KEEL_INVALID, "%s: a trace of %" PRIu32 " commands; 1 to %d", device->info.selector,
                         commands, COMMANDS_MAX);
    KEEL_TRY(keel_alloc(1, sizeof *trace + commands * sizeof trace->entries[0], &trace));
    keel_mutex_init(&trace->lock);
    trace->capacity = commands;
    device->trace = trace;
    return KEEL_OK;
}

void keel_device_trace_stop(struct keel_device *device)
{
    struct keel_trace *trace = device->trace;
    if (trace == NULL)
        return;
    for (uint32_t i = 0; i < trace->capacity; i++)
        settle(device, &trace->entries[i]);
    device->trace = NULL;
    keel_mutex_fini(&trace->lock);
    keel_free(trace);
}

/* Microseconds with the three digits that make them nanoseconds. */
#define US_FORMAT    "%" PRIu64 ".%03" PRIu64
#define US_VALUE(ns) (ns) / KEEL_NS_PER_US, (ns) % KEEL_NS_PER_US

/* One line of the file; the text has room. */
static size_t print_entry(const struct entry *entry, char text[ENTRY_TEXT_BYTES])
{
    uint64_t began_ns = entry->began_ns != 0 ? entry->began_ns : entry->enqueued_ns;
    bool ended = entry->ended_ns != 0;
    char length[48] = "";
    if (ended)
        snprintf(length, sizeof length, "\"dur\":" US_FORMAT ",",
                 US_VALUE(entry->ended_ns > began_ns ? entry->ended_ns - began_ns : 0));
    const char *known = entry->timed ? "driver" : ended ? "seen" : entry->failed ? "failed" : "runs";
    int bytes = snprintf(text, ENTRY_TEXT_BYTES,
                         ",\n{\"ph\":\"%s\",\"pid\":1,\"tid\":%" PRIu32 ",\"ts\":" US_FORMAT
                         ",%s\"name\":\"%s%s%.100s\",\"args\":{\"bytes\":%" PRIu64 ",\"sequence\":%" PRIu64
                         ",\"enqueued\":" US_FORMAT ",\"end\":\"%s\"}}",
                         ended           ? "X"
                         : entry->failed ? "i"
                                         : "B",
                         entry->queue, US_VALUE(began_ns), length, keel_command_kind_name(entry->kind),
                         entry->name != NULL ? " " : "", entry->name != NULL ? entry->name : "", entry->bytes,
                         entry->sequence, US_VALUE(entry->enqueued_ns), known);
    KEEL_ASSERT(bytes > 0 && bytes < ENTRY_TEXT_BYTES);
    return (size_t)bytes;
}

enum keel_status keel_device_trace_write(struct keel_device *device, const char *path)
{
    struct keel_trace *trace = device->trace;
    if (trace == NULL)
        return keel_fail(KEEL_INVALID, "%s: no trace runs; start one first", device->info.selector);
    char *text = NULL;
    keel_mutex_lock(&trace->lock);
    uint64_t kept = trace->count < trace->capacity ? trace->count : trace->capacity;
    enum keel_status status = keel_alloc(kept + 2, ENTRY_TEXT_BYTES, &text);
    if (status == KEEL_OK) {
        size_t used =
            (size_t)snprintf(text, ENTRY_TEXT_BYTES,
                             "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,"
                             "\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}}",
                             device->info.selector);
        for (uint64_t i = trace->count - kept; i < trace->count; i++) {
            struct entry *entry = &trace->entries[i % trace->capacity];
            if (entry->event != NULL && device->ops->event_done(entry->event))
                settle(device, entry);
            used += print_entry(entry, text + used);
        }
        used += (size_t)snprintf(text + used, ENTRY_TEXT_BYTES, "\n]}\n");
        status = keel_file_replace(path, text, used, 0644);
    }
    keel_mutex_unlock(&trace->lock);
    keel_free(text);
    return status;
}
