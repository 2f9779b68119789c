/* health.h - the health state of a device, fault injection, and a trace of its commands.
 *
 * Health.  Each open device is in one state:
 *
 *     OK           nothing is known against it
 *     DEGRADED     it works, and something happened: a command failed, or one came back after it was HUNG
 *     SUSPECT      a wait passed its deadline, and nothing has come back since
 *     HUNG         the same for options.hung_after_ns (1 s unless told): it may be stuck for good
 *     LOST         the driver says that it is gone, or somebody reported it
 *     QUARANTINED  somebody reported that it is not to be trusted (wrong results ...)
 *
 * Automatic transitions: OK, DEGRADED -> SUSPECT -> HUNG when waits pass their deadline (a wait with a
 * deadline of now, and keel_event_look, do not count). SUSPECT -> its earlier state, and HUNG -> DEGRADED,
 * once every queue on which a wait timed out has completed that command or a later one, or was destroyed. OK
 * -> DEGRADED when a command fails (a SUSPECT device then returns to DEGRADED); any -> LOST when the driver
 * reports it. By keel_device_report: any state but LOST -> any but HUNG, but HUNG -> OK, DEGRADED or SUSPECT
 * only by a command that comes back; LOST -> QUARANTINED, and no way back while the device is open.
 *
 * A device that is LOST or QUARANTINED refuses every new command and every new object with DEVICE_LOST and
 * the evidence; one that is HUNG refuses new buffers, queues and programs, and takes commands, which wait
 * their turn. Destroying an object of a HUNG or LOST device does not wait: a queue that cannot finish is
 * leaked, with a line in the log. Other devices of the process are not affected.
 *
 * Failure travels. A command that fails fails its queue: every later command and wait of that queue returns
 * DEVICE_LOST with the first failure's text, and so does a command of another queue that waits for an event
 * that failed, and from then on its queue. Events that were complete before stay complete; queues that wait
 * for nothing that failed go on. */
#ifndef KEEL_HEALTH_H
#define KEEL_HEALTH_H

#include <keel/api.h>
#include <keel/device.h>

KEEL_API_BEGIN

enum keel_health {
    KEEL_HEALTH_OK,
    KEEL_HEALTH_DEGRADED,
    KEEL_HEALTH_SUSPECT,
    KEEL_HEALTH_HUNG,
    KEEL_HEALTH_LOST,
    KEEL_HEALTH_QUARANTINED
};

enum { KEEL_EVIDENCE_BYTES = 320 };

struct keel_health_report {
    enum keel_health health;
    uint64_t since_ns;                  /* keel_now_ns when it became so */
    char evidence[KEEL_EVIDENCE_BYTES]; /* what happened: command, queue, last commands; "" while OK */
};

/* "ok", "degraded", "suspect", "hung", "lost", "quarantined". A static string. */
const char *keel_health_name(enum keel_health health);

/* How the device is. Any thread; never blocks on the device. */
void keel_device_health(struct keel_device *device, struct keel_health_report *out);
/* Something of it hangs, was lost, or was left behind, and may still write host memory that it was given:
 * keep such memory until the process ends. Any thread. */
bool keel_device_may_write(struct keel_device *device);

/* Say how a device is, with the evidence (a copy is kept): a check that found wrong results quarantines, a
 * person who looked into it reports OK. INVALID, and nothing changes, for a transition that the head of this
 * file does not have, or without evidence for anything but OK. Any thread. */
enum keel_status keel_device_report(struct keel_device *device, enum keel_health health,
                                    const char *evidence);

/* The last commands that were enqueued, the newest first, as many as fit: "launch gemm, write". Any thread.
 */
void keel_queue_last(struct keel_queue *queue, char *out, size_t out_bytes);

/* Faults on demand, in front of any backend. A plan is a list of faults in the language of keel/fault.h, each
 *
 *     FAULT:COMMAND=WHEN[,key=value]...
 *
 *     FAULT    error   the command is not run, its event fails, and so its queue
 *              hang    neither this command nor any later one of its queue is run or ever completes
 *              slow    it and what follows on its queue completes ms=N milliseconds late (1 to 600000)
 *              flip    one bit of what it wrote is wrong: of the target buffer, of the host memory of a read
 *              lose    as error, and the device is LOST
 *     COMMAND  launch, read, write, copy, fill, map, unmap, or any; error also has buffer (NO_MEMORY) and
 *              program (UNSUPPORTED)
 *     WHEN     as in keel/fault.h: of such commands of the device since the plan was given
 *     keys     ms=N       of slow, which needs it
 *              kernel=NAME  of launch: counts launches of this kernel alone
 *              bit=N      of flip: which bit (default: chosen by WHEN, the same every time)
 *              arg=N      of flip:launch: which argument's buffer, from 0 (default: the last buffer)
 *
 * for instance "error:launch=12", "hang:launch=3,kernel=gemm", "flip:read=2;slow:launch=*,ms=5". The
 * environment variable KEEL_DEVICE_FAULTS is a plan for every device that the process opens. INVALID names
 * the word that is wrong, and changes nothing. NULL or "" ends the plan in force; what has failed or hangs
 * stays so. Between commands of one device, not beside them. A flip blocks until the command is done (at most
 * 60 s). Costs nothing on a device that was never given a plan. */
enum keel_status keel_device_inject(struct keel_device *device, const char *plan);

/* True if the device was ever given a fault plan: failures found since then may be injected ones. Any thread.
 */
bool keel_device_has_faults(const struct keel_device *device);

/* Keep the last `commands` commands (1 to 16384) of all queues of the device, from now on: which queue, what,
 * kernel, bytes, when enqueued, and when it began and ended: as the driver tells for queues that are made
 * while the trace runs, else when it was seen to be done. Replayed lists are kept command by command. BUSY
 * when a trace runs. start, stop and write: one thread at a time, not beside commands. */
enum keel_status keel_device_trace_start(struct keel_device *device, uint32_t commands);
/* Write what is kept as JSON in the Trace Event Format (Perfetto, chrome://tracing), a row for each queue,
 * times in microseconds of keel_now_ns; replaces the file. Commands that still run have no end. INVALID
 * without a trace; else as keel_file_replace. */
enum keel_status keel_device_trace_write(struct keel_device *device, const char *path);
/* Drop the trace; nothing happens where none runs. keel_device_close does it too. */
void keel_device_trace_stop(struct keel_device *device);
/* When a command began and ended, as the driver tells, in nanoseconds since it took the command. False where
 * it does not tell: while the command runs, of a queue that was made while no trace ran, or at all
 * (queue_profiling). Any thread. */
bool keel_event_times(struct keel_event *event, uint64_t *out_began_ns, uint64_t *out_ended_ns);

KEEL_API_END

#endif
