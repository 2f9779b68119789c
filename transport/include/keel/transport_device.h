/* transport_device.h - collectives on device memory: parts and results are ranges of hal's buffers.
 *
 * A layer above keel_group_begin with two ways, which give the same bits:
 *
 *   in place   where host and device share memory (keel_device_info: unified_memory) the ranges are mapped
 *              and the collective runs on them where they lie. A buffer that wraps keel_transport_alloc
 * memory (keel_buffer_wrap) is so read in place even by other ranks of the host. staged     elsewhere the
 * vector is cut into chunks. Each is read from the device into a slot of memory that is made once, is an
 * ordinary collective there, and is written to the device from there. With four slots one chunk is read while
 * others are reduced and another is written.
 *
 * An object, the stager, owns slots and queues. Its calls form one stream of chunks, in the order of their
 * begins; whoever waits for a call drives the stream, and the device and the transport's own thread work
 * meanwhile. So all ranks begin their calls in the same order, all wait for them, and take the same way:
 * where some devices of a group can map and others cannot, set `staged` everywhere (MISMATCH otherwise,
 * unless all fits one chunk).
 *
 * Threads. A stager is used by one thread at a time. Memory. Everything is allocated at creation; calls take
 * none but what a group keeps for its operations. Failure. Any failure, of the device or of the group, ends
 * all calls of the stager with the same status. Then: close the group, keel_stager_reset, and go on in the
 * next epoch. Until the reset, slots, parts and results may still be read and written. */
#ifndef KEEL_TRANSPORT_DEVICE_H
#define KEEL_TRANSPORT_DEVICE_H

#include <keel/api.h>
#include <keel/device.h>
#include <keel/transport.h>

KEEL_API_BEGIN

enum {
    KEEL_STAGER_SLOTS = 4,
    KEEL_STAGER_CALLS = 32,         /* begun and not yet waited for */
    KEEL_STAGER_COMMANDS_MAX = 8192 /* parts x blocks of one chunk */
};

struct keel_stager;
struct keel_staged_call;

struct keel_stager_config {
    struct keel_device *device; /* outlives the stager */
    uint32_t ranks_max;         /* of the groups that it is used with */
    uint32_t parts_max;         /* that one call gives */
    uint64_t chunk_bytes;       /* 64 x ranks_max at least; 0 is 1 MiB. The same on all ranks */
    bool staged;                /* never in place */
};

/* Memory: 4 x (parts_max + 1) chunks where it stages. INVALID, LIMIT say what is wrong; NO_MEMORY. */
enum keel_status keel_stager_create(const struct keel_stager_config *config, struct keel_stager **out);
/* Resets, and waits for the device for at most 30 s: what does not end by then is left behind, with its
 * memory, and logged. The groups that it was used with are closed. NULL is fine. */
void keel_stager_free(struct keel_stager *stager);

/* Where a part or a result begins. */
struct keel_device_place {
    struct keel_buffer *buffer;
    uint64_t offset_bytes;
};

struct keel_device_collective {
    /* As for keel_group_begin, but for parts and result, which are NULL. All kinds but the barrier and those
     * with tables of counts. */
    struct keel_collective what;
    const struct keel_device_place *parts; /* what.part_count; copied */
    struct keel_device_place result;       /* buffer NULL where there is none */
    /* Events of the device that parts and result wait for; alive until the call has been waited for. */
    struct keel_wait_list after;
};

/* How many numbers of the group, from what.sequence on, a call uses: a function of sizes alone. */
uint64_t keel_stager_numbers(const struct keel_stager *stager, const struct keel_group *group,
                             const struct keel_collective *what);

/* Begin: what can go without waiting does. INVALID, UNSUPPORTED, LIMIT: nothing was begun. What goes wrong
 * later the wait tells. Parts are not written, and neither parts nor result used by others, until the wait
 * returned OK or after a reset; the result must not lie on a part. */
enum keel_status keel_stager_begin(struct keel_stager *stager, struct keel_group *group,
                                   const struct keel_device_collective *collective,
                                   struct keel_staged_call **out);
/* Wait until the result is on the device. OK consumes the handle; any other status is final for all calls
 * until keel_stager_reset: those of keel_operation_wait, and DEVICE_LOST; TIMEOUT also where the device does
 * not end in time. */
enum keel_status keel_stager_wait(struct keel_staged_call *call, uint64_t deadline_ns);
enum keel_status keel_stager_run(struct keel_stager *stager, struct keel_group *group,
                                 const struct keel_device_collective *collective, uint64_t deadline_ns);
/* Move on whatever can move; never blocks on the device or the group. For a thread that computes between
 * begin and wait. */
void keel_stager_advance(struct keel_stager *stager);

/* Forget all calls, after the groups of their operations were closed: returns when no command of the device
 * touches a slot, a part or a result any more. TIMEOUT: some still may; try again. */
enum keel_status keel_stager_reset(struct keel_stager *stager, uint64_t deadline_ns);

struct keel_stager_stats {
    uint64_t calls, chunks; /* that were completed; a call in place is one chunk */
    uint64_t staged_bytes;  /* copied from and to the device */
    uint64_t overlaps;      /* chunks whose copy from or to the device began while others were reduced */
    uint32_t slots_high;    /* most slots in use at once */
};
void keel_stager_stats(const struct keel_stager *stager, struct keel_stager_stats *out);

KEEL_API_END

#endif
