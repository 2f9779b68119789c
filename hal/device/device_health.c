/* device_health.c - the health of an open device: who noticed what, in words; and failures of queues.
 *
 * health_machine.c decides; here are the lock, the evidence and the flags that the hot paths look at:
 * `health` before a command, `doubted` after a wait. A queue's failure is written once, under the device's
 * lock, before its `lost` flag is set: who sees the flag may read the text. */
#include "device_backend.h"
#include <inttypes.h>
#include <keel/clock.h>
#include <keel/log.h>
#include <keel/memory.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *keel_health_name(enum keel_health health)
{
    static const char *const names[] = {
        [KEEL_HEALTH_OK] = "ok",           [KEEL_HEALTH_DEGRADED] = "degraded",
        [KEEL_HEALTH_SUSPECT] = "suspect", [KEEL_HEALTH_HUNG] = "hung",
        [KEEL_HEALTH_LOST] = "lost",       [KEEL_HEALTH_QUARANTINED] = "quarantined"};
    return names[health];
}

void keel_watch_init(struct keel_watch *watch, uint64_t hung_after_ns)
{
    keel_mutex_init(&watch->lock);
    watch->hung_after_ns = hung_after_ns;
    watch->since_ns = keel_now_ns();
}

void keel_device_free(struct keel_device *device)
{
    if (device->watch.since_ns != 0) /* it was opened to the end */
        keel_mutex_fini(&device->watch.lock);
    keel_free(device);
}

/* Caller holds the lock; the machine has just changed. */
static void changed(struct keel_watch *watch, const char *evidence)
{
    snprintf(watch->evidence, sizeof watch->evidence, "%s", evidence);
    watch->since_ns = keel_now_ns();
    atomic_store_explicit(&watch->health, watch->machine.health, memory_order_relaxed);
}

/* Caller holds the lock. */
static void note_doubt(struct keel_watch *watch)
{
    atomic_store_explicit(&watch->doubted, watch->machine.doubts > 0, memory_order_relaxed);
}

void keel_device_health(struct keel_device *device, struct keel_health_report *out)
{
    struct keel_watch *watch = &device->watch;
    keel_mutex_lock(&watch->lock);
    out->health = watch->machine.health;
    out->since_ns = watch->since_ns;
    memcpy(out->evidence, watch->evidence, sizeof out->evidence);
    keel_mutex_unlock(&watch->lock);
}

bool keel_device_answers(struct keel_device *device)
{
    enum keel_health health = atomic_load_explicit(&device->watch.health, memory_order_relaxed);
    return health != KEEL_HEALTH_HUNG && health != KEEL_HEALTH_LOST;
}

bool keel_device_may_write(struct keel_device *device)
{
    return !keel_device_answers(device) || atomic_load(&device->left_behind);
}

enum keel_status keel_device_report(struct keel_device *device, enum keel_health health, const char *evidence)
{
    struct keel_watch *watch = &device->watch;
    const char *words = evidence != NULL ? evidence : "";
    if (words[0] == '\0' && health != KEEL_HEALTH_OK)
        return keel_fail(KEEL_INVALID, "%s: reported as %s without evidence; say what happened",
                         device->info.selector, keel_health_name(health));
    bool allowed = false;
    keel_mutex_lock(&watch->lock);
    enum keel_health before = watch->machine.health;
    if (keel_health_say(&watch->machine, health, &allowed))
        changed(watch, words);
    note_doubt(watch);
    keel_mutex_unlock(&watch->lock);
    if (!allowed)
        return keel_fail(KEEL_INVALID, "%s: it is %s and cannot be reported as %s; see keel/health.h",
                         device->info.selector, keel_health_name(before), keel_health_name(health));
    return KEEL_OK;
}

enum keel_status keel_device_refuse(struct keel_device *device)
{
    struct keel_health_report report;
    keel_device_health(device, &report);
    return keel_fail(KEEL_DEVICE_LOST, "%s is %s: %s", device->info.selector, keel_health_name(report.health),
                     report.evidence);
}

enum keel_status keel_device_check_usable(struct keel_device *device)
{
    bool usable = atomic_load_explicit(&device->watch.health, memory_order_relaxed) < KEEL_HEALTH_HUNG;
    return usable ? KEEL_OK : keel_device_refuse(device);
}

/* ---- what commands say of themselves ------------------------------------------------------------------ */

const char *keel_command_kind_name(enum keel_command_kind kind)
{
    static const char *const names[] = {"launch", "read", "write", "copy", "fill", "map", "unmap", "mark"};
    return names[kind];
}

static uint64_t last_sequence(const struct keel_queue *queue)
{
    return atomic_load_explicit(&queue->sequence, memory_order_relaxed);
}

void keel_queue_note(struct keel_queue *queue, enum keel_command_kind kind, const char *name)
{
    uint64_t sequence = last_sequence(queue) + 1;
    struct keel_note *note = &queue->notes[sequence % KEEL_NOTES];
    atomic_store_explicit(&note->kind, (uint8_t)kind, memory_order_relaxed);
    atomic_store_explicit(&note->name, name, memory_order_relaxed);
    atomic_store_explicit(&queue->sequence, sequence, memory_order_relaxed);
}

/* "launch gemm": a command that is still noted; "" for one that is not. */
static void name_command(struct keel_queue *queue, uint64_t sequence, char *out, size_t out_bytes)
{
    uint64_t last = last_sequence(queue);
    out[0] = '\0';
    if (sequence == 0 || sequence > last || last - sequence >= KEEL_NOTES)
        return;
    struct keel_note *note = &queue->notes[sequence % KEEL_NOTES];
    const char *name = atomic_load_explicit(&note->name, memory_order_relaxed);
    enum keel_command_kind kind = atomic_load_explicit(&note->kind, memory_order_relaxed);
    snprintf(out, out_bytes, "%s%s%s", keel_command_kind_name(kind), name != NULL ? " " : "",
             name != NULL ? name : "");
}

void keel_queue_last(struct keel_queue *queue, char *out, size_t out_bytes)
{
    uint64_t last = last_sequence(queue);
    size_t used = 0;
    out[0] = '\0';
    for (uint64_t i = 0; i < KEEL_NOTES && i < last; i++) {
        char one[64];
        name_command(queue, last - i, one, sizeof one);
        if (used + strlen(one) + 3 > out_bytes)
            return;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i == 0 ? "" : ", ", one);
    }
}

/* The same behind a text, where there is room. */
static void append_last(struct keel_queue *queue, char *text, size_t text_bytes)
{
    static const char words[] = "; last: ";
    size_t used = strlen(text), wanted = used + sizeof words - 1;
    if (last_sequence(queue) == 0 || wanted + 20 > text_bytes)
        return;
    keel_queue_last(queue, text + wanted, text_bytes - wanted);
    if (text[wanted] != '\0')
        memcpy(text + used, words, sizeof words - 1);
    else
        text[used] = '\0';
}

/* ---- failures ----------------------------------------------------------------------------------------- */

enum keel_status keel_queue_failed(struct keel_queue *queue)
{
    return keel_fail(KEEL_DEVICE_LOST,
                     "%s: queue %" PRIu32 " failed: %s; end this process and start a new one",
                     queue->device->info.selector, queue->number, queue->failure);
}

/* The first failure stays, of command `sequence`; the device hears of it. */
static void fail_queue(struct keel_queue *queue, uint64_t sequence, const char *failure)
{
    struct keel_watch *watch = &queue->device->watch;
    keel_mutex_lock(&watch->lock);
    if (!atomic_load_explicit(&queue->lost, memory_order_relaxed)) {
        snprintf(queue->failure, sizeof queue->failure, "%s", failure);
        struct keel_queue_failure *kept = &watch->failures[watch->failure_count++ % KEEL_FAILURES];
        kept->queue = queue->number;
        kept->sequence = sequence;
        memcpy(kept->text, queue->failure, sizeof kept->text);
        atomic_store_explicit(&queue->lost, true, memory_order_release);
        if (keel_health_fail(&watch->machine))
            changed(watch, failure);
    }
    keel_mutex_unlock(&watch->lock);
}

void keel_queue_note_wait(struct keel_queue *queue, struct keel_event *event)
{
    struct keel_watch *watch = &queue->device->watch;
    uint64_t sequence = atomic_load_explicit(&event->sequence, memory_order_relaxed);
    uint32_t known = queue->upstream_count < KEEL_UPSTREAMS ? queue->upstream_count : KEEL_UPSTREAMS, i = 0;
    while (i < known && queue->upstreams[i].queue != event->queue->number)
        i++;
    keel_mutex_lock(&watch->lock);
    if (i == known)
        queue->upstreams[i = queue->upstream_count++ % KEEL_UPSTREAMS] = (struct keel_upstream){0};
    struct keel_upstream *upstream = &queue->upstreams[i];
    upstream->queue = event->queue->number;
    if (sequence > upstream->sequence)
        upstream->sequence = sequence;
    upstream->at = last_sequence(queue) + 1;
    keel_mutex_unlock(&watch->lock);
}

void keel_queue_forget_waits(struct keel_queue *queue)
{
    if (queue->upstream_count == 0)
        return;
    keel_mutex_lock(&queue->device->watch.lock);
    queue->upstream_count = 0;
    keel_mutex_unlock(&queue->device->watch.lock);
}

/* Caller holds the lock. The failure that a wait has met; NULL when it met none. */
static const struct keel_queue_failure *failure_met(const struct keel_watch *watch,
                                                    const struct keel_upstream *upstream)
{
    for (int i = 0; i < KEEL_FAILURES; i++) {
        const struct keel_queue_failure *failure = &watch->failures[i];
        if (failure->queue == upstream->queue && failure->sequence <= upstream->sequence)
            return failure;
    }
    return NULL;
}

/* Why commands of the queue that wait for others fail, as far as it is known. */
struct cause {
    uint32_t upstreams; /* queues that it waited for */
    uint32_t queue;     /* the first of them */
    uint64_t at;        /* the queue's own command that cannot be; 0: none is known */
    char text[KEEL_EVIDENCE_BYTES];
};

static struct cause find_cause(struct keel_queue *queue)
{
    struct keel_watch *watch = &queue->device->watch;
    struct cause cause = {.at = 0};
    keel_mutex_lock(&watch->lock);
    cause.upstreams = queue->upstream_count;
    cause.queue = queue->upstreams[0].queue;
    for (uint32_t i = 0; i < KEEL_UPSTREAMS && i < queue->upstream_count && cause.at == 0; i++) {
        const struct keel_queue_failure *failure = failure_met(watch, &queue->upstreams[i]);
        if (failure == NULL)
            continue;
        cause.at = queue->upstreams[i].at;
        memcpy(cause.text, failure->text, sizeof cause.text);
    }
    keel_mutex_unlock(&watch->lock);
    return cause;
}

/* Of command `sequence`, in words, and the last commands behind them. */
static enum keel_status fail_at(struct keel_queue *queue, uint64_t sequence,
                                char failure[KEEL_EVIDENCE_BYTES])
{
    append_last(queue, failure, KEEL_EVIDENCE_BYTES);
    fail_queue(queue, sequence, failure);
    return keel_queue_failed(queue);
}

enum keel_status keel_queue_fail(struct keel_queue *queue, const char *format, ...)
{
    char failure[KEEL_EVIDENCE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    return fail_at(queue, last_sequence(queue), failure);
}

enum keel_status keel_queue_lose(struct keel_queue *queue, const char *what, int native_error)
{
    return keel_queue_fail(queue, "%s failed (error %d)", what, native_error);
}

enum keel_status keel_event_lose(struct keel_event *event, int native_error, bool by_wait)
{
    struct keel_queue *queue = event->queue;
    struct cause cause = find_cause(queue);
    uint64_t sequence = atomic_load_explicit(&event->sequence, memory_order_relaxed);
    char what[64], where[32] = "another queue", failure[KEEL_EVIDENCE_BYTES];
    name_command(queue, sequence, what, sizeof what);
    if (cause.upstreams == 1)
        snprintf(where, sizeof where, "queue %" PRIu32, cause.queue);
    if (by_wait && cause.at != 0) {
        fail_queue(queue, cause.at < sequence ? cause.at : sequence, cause.text);
        return keel_queue_failed(queue);
    }
    int used = snprintf(failure, sizeof failure, "%s ", what[0] != '\0' ? what : "a command");
    if (by_wait && cause.upstreams > 0)
        used += snprintf(failure + used, sizeof failure - (size_t)used,
                         "was not run: what it waits for on %s ", where);
    snprintf(failure + used, sizeof failure - (size_t)used, "failed (error %d)", native_error);
    return fail_at(queue, sequence, failure);
}

enum keel_status keel_queue_inherit(struct keel_queue *queue, struct keel_queue *cause)
{
    fail_queue(queue, last_sequence(queue) + 1, cause->failure);
    return keel_queue_failed(queue);
}

enum keel_status keel_device_lose(struct keel_queue *queue, const char *what, int native_error)
{
    enum keel_status status = keel_queue_lose(queue, what, native_error);
    (void)keel_device_report(queue->device, KEEL_HEALTH_LOST, queue->failure);
    return status;
}

/* ---- waits -------------------------------------------------------------------------------------------- */

/* The device hears of a wait in vain, and the caller in words: TIMEOUT. */
static enum keel_status doubt(struct keel_queue *queue, uint64_t sequence, uint64_t began_ns)
{
    struct keel_device *device = queue->device;
    struct keel_watch *watch = &device->watch;
    uint64_t now_ns = keel_now_ns();
    char what[64], evidence[KEEL_EVIDENCE_BYTES];
    name_command(queue, sequence, what, sizeof what);
    snprintf(evidence, sizeof evidence,
             "queue %" PRIu32 ": command %" PRIu64 "%s%s%s still ran after a wait of %" PRIu64 " ms",
             queue->number, sequence, what[0] != '\0' ? " (" : "", what, what[0] != '\0' ? ")" : "",
             (now_ns - began_ns) / KEEL_NS_PER_MS);
    append_last(queue, evidence, sizeof evidence);
    keel_mutex_lock(&watch->lock);
    bool news =
        keel_health_late(&watch->machine, &queue->doubt, sequence, began_ns, now_ns, watch->hung_after_ns);
    enum keel_health health = watch->machine.health;
    if (news)
        changed(watch, evidence);
    else if (watch->machine.doubts > 0) /* the latest is what counts: others may have come back */
        snprintf(watch->evidence, sizeof watch->evidence, "%s", evidence);
    note_doubt(watch);
    keel_mutex_unlock(&watch->lock);
    if (news && health == KEEL_HEALTH_HUNG)
        keel_log(KEEL_LOG_WARN, "%s is hung: %s", device->info.selector, evidence);
    return keel_fail(KEEL_TIMEOUT, "%s (now %s): %s; wait on, or end this process", device->info.selector,
                     keel_health_name(health), evidence);
}

enum keel_status keel_queue_late(struct keel_queue *queue, uint64_t sequence, uint64_t began_ns)
{
    struct cause cause = find_cause(queue);
    /* What waits for what failed fails, also where the driver never ends it. */
    if (cause.at != 0 && !atomic_load_explicit(&queue->lost, memory_order_acquire)) {
        fail_queue(queue, cause.at, cause.text);
        return keel_queue_failed(queue);
    }
    return doubt(queue, sequence, began_ns);
}

void keel_queue_leave_behind(struct keel_queue *queue, uint64_t began_ns)
{
    (void)doubt(queue, last_sequence(queue), began_ns);
    keel_log(KEEL_LOG_ERROR, "%s: queue %" PRIu32 " was left behind: it does not end",
             queue->device->info.selector, queue->number);
    atomic_store(&queue->device->left_behind, true);
}

void keel_queue_progress(struct keel_queue *queue, uint64_t sequence)
{
    struct keel_watch *watch = &queue->device->watch;
    keel_mutex_lock(&watch->lock);
    if (keel_health_progress(&watch->machine, &queue->doubt, sequence)) {
        char evidence[KEEL_EVIDENCE_BYTES] = "";
        if (watch->machine.health == KEEL_HEALTH_DEGRADED)
            snprintf(evidence, sizeof evidence, "came back: %.300s", watch->evidence);
        changed(watch, evidence);
    }
    note_doubt(watch);
    keel_mutex_unlock(&watch->lock);
}

void keel_queue_ended(struct keel_queue *queue)
{
    bool hangs =
        queue->ready_ns == KEEL_NEVER; /* for device_fault.c alone, which the driver knows nothing of */
    if (!hangs && atomic_load_explicit(&queue->device->watch.doubted, memory_order_relaxed))
        keel_queue_progress(queue, UINT64_MAX);
}
