/* transport_device.h - collectives on device memory: parts and results are ranges of hal's buffers.
 *
 * A layer above keel_group_begin. Each operation is one collective of the group under its own sequence, so a
 * rank with a device and a rank with host memory may take part in the same one. Two ways, the same bits:
 *
 *   in place   where the device's memory is the host's (keel_device_info: unified_memory): parts and result
 *              are mapped and the collective runs on them where they lie. Nothing is copied to or from the
 *              device. A keel_shared_buffer is read in place by the other ranks of the host, too.
 *   staged     elsewhere: each part is read once into host memory that was allocated at creation, the
 *              collective runs there, and the result is written back once, as soon as it is there.
 *
 * For gradients: one operation per bucket. Parts are the tree nodes that the rank holds (keel_tree_nodes;
 * none for a rank without shards), at the bucket's range of their buffers; the result is the same range of
 * the buffer that the update reads. Parts stay as they are until the group is closed, since they are what a
 * redo begins with: so the result may not lie on a part. The update's buffer is one that holds no node, and a
 * node that lies in the buffer of the backward pass stays there.
 *
 * Who drives. Device and transport work by themselves; going from one to the other takes a call of
 * keel_device_collectives_advance, _begin or _wait. A thread that computes between begin and wait calls
 * advance now and then.
 *
 * Order. All ranks begin operations in the same order: staging memory is given out in the order of begins,
 * and an operation that waits for some holds up those behind it.
 *
 * Threads. One thread at a time uses an object and its operations. Memory. All is allocated at creation.
 * Failure. Any failure, of the device or of the group, ends all operations of the object with the same
 * status. Then: close the group, keel_device_collectives_reset, and go on in the next epoch. Until the reset
 * staging memory, parts and results may still be read and written. */
#ifndef KEEL_TRANSPORT_DEVICE_H
#define KEEL_TRANSPORT_DEVICE_H

#include <keel/api.h>
#include <keel/device.h>
#include <keel/transport.h>

KEEL_API_BEGIN

struct keel_device_collectives;
struct keel_device_operation;

enum { KEEL_DEVICE_OPERATIONS_MAX = 256 };

struct keel_device_collectives_config {
    struct keel_device *device; /* outlives the object */
    uint32_t parts_max;         /* that one operation gives: at least 1 */
    uint32_t operations_max;    /* begun and not waited for: 1 .. KEEL_DEVICE_OPERATIONS_MAX */
    uint64_t staging_bytes;     /* for parts and results of all operations under way; none is taken in place.
                                   What the largest operation needs suffices; twice that lets the copies of
                                   one overlap with the sum of another */
    bool staged;                /* copy even where the device's memory is the host's */
    /* Told, by the thread that calls, that it is about to call the driver or to wait for the device, and that
     * it is back, or waits for other ranks: for whoever watches that drivers come back. NULL: nobody. */
    void (*on_device)(void *context, bool inside);
    void *context;
};

/* INVALID says what is wrong; NO_MEMORY. */
enum keel_status keel_device_collectives_create(const struct keel_device_collectives_config *config,
                                                struct keel_device_collectives **out);
/* Resets, and waits for the device for at most 30 s: what does not end by then is left behind, with its
 * memory, and logged. The groups that it was used with are closed. NULL is fine. */
void keel_device_collectives_free(struct keel_device_collectives *all);

/* Where a part or a result begins. */
struct keel_device_place {
    struct keel_buffer *buffer;
    uint64_t offset_bytes;
};

struct keel_device_collective {
    /* As for keel_group_begin, but for parts and result, which are NULL, and tables of counts, which are not
     * copied: they stay until the operation was waited for. All kinds but the barrier and all-to-all-v. */
    struct keel_collective what;
    const struct keel_device_place *parts; /* what.part_count; copied */
    struct keel_device_place result;       /* buffer NULL where there is none */
    /* Events of the device that parts and result wait for; alive until the operation was waited for. */
    struct keel_wait_list after;
};

/* Begin: what can go without waiting does. Never blocks. INVALID, UNSUPPORTED, LIMIT (more parts, operations
 * or bytes than the object was made for): nothing was begun. What goes wrong later the wait tells. Parts are
 * not written, and neither parts nor result used by others, until the wait returned OK or after a reset. */
enum keel_status keel_device_collective_begin(struct keel_device_collectives *all, struct keel_group *group,
                                              const struct keel_device_collective *collective,
                                              struct keel_device_operation **out);
/* Wait until the parts are where the collective reads them and it is begun between the ranks, so that it goes
 * on while the caller is busy elsewhere; at once where it waits for the staging memory of others. Waits for
 * the device alone. Statuses as of the wait, but that OK leaves the handle. */
enum keel_status keel_device_operation_start(struct keel_device_operation *operation, uint64_t deadline_ns);
/* Wait until the result is on the device. OK consumes the handle; any other status is final for all
 * operations until the reset: those of keel_operation_wait, and DEVICE_LOST; TIMEOUT also where the device
 * does not end in time. */
enum keel_status keel_device_operation_wait(struct keel_device_operation *operation, uint64_t deadline_ns);
enum keel_status keel_device_collective_run(struct keel_device_collectives *all, struct keel_group *group,
                                            const struct keel_device_collective *collective,
                                            uint64_t deadline_ns);
/* Move on whatever can move; never blocks on the device or the group. */
void keel_device_collectives_advance(struct keel_device_collectives *all);

/* Forget all operations, after their groups were closed: returns when no command of the device touches
 * staging memory, a part or a result any more. TIMEOUT: some still may; try again. */
enum keel_status keel_device_collectives_reset(struct keel_device_collectives *all, uint64_t deadline_ns);

/* What moved between device and host since creation. Copies from host memory to host memory are the
 * transport's: keel_transport_stats.data_copied. */
struct keel_device_collectives_facts {
    uint64_t operations;           /* completed */
    uint64_t mapped_bytes;         /* parts and results that were used where they lie */
    uint64_t device_to_host_bytes; /* read by commands of the device, */
    uint64_t host_to_device_bytes; /*   and written */
    uint64_t overlaps;             /* times that a copy or a map began while another operation was reduced */
    uint32_t under_way_high;       /* most operations between begin and completion at once */
};
void keel_device_collectives_facts(const struct keel_device_collectives *all,
                                   struct keel_device_collectives_facts *out);

/* A buffer whose memory the other ranks of this host read in place: keel_transport_alloc memory that the
 * device wraps, where its memory is the host's. Elsewhere, and where no such memory is left (1,024 regions a
 * process), an ordinary buffer. Zeroed. Without it a collective
 * in place still copies once, into the ring between two ranks; so do messages under 8 KiB, and what lies in
 * more than 32 such buffers for one pair of ranks. Freed when no group in which it was used is open. */
struct keel_shared_buffer {
    struct keel_buffer *buffer;
    void *memory; /* NULL: an ordinary buffer */
    struct keel_device *device;
};
enum keel_status keel_shared_buffer_create(struct keel_device *device, uint64_t bytes,
                                           struct keel_shared_buffer *out);
/* All zero is fine. The memory is kept where the device may still write it (keel_device_may_write). */
void keel_shared_buffer_destroy(struct keel_shared_buffer *shared);

KEEL_API_END

#endif
