/* device_fixture.h - an open board with its kernels and a queue, ready for golden operations: what the checks
 * that stress a board (levels 6 to 8) have in common.
 *
 * Leaves to others: verdicts (board_check.h) and golden cases (keel/golden.h). One thread. */
#ifndef KEEL_DEVICE_FIXTURE_H
#define KEEL_DEVICE_FIXTURE_H

#include <keel/board.h>
#include <keel/golden.h>

struct keel_device_fixture {
    struct keel_board *board;
    struct keel_device *device;
    const struct keel_device_info *info; /* of the device */
    struct keel_kernels *kernels;
    struct keel_queue *queue;
};

/* Open a board by name. After a failure *out is all NULL. */
enum keel_status keel_device_fixture_open(const char *board, struct keel_device_fixture *out);
/* Members that are NULL are passed over. A device that hangs or is lost stays open, and its buffers
 * allocated, until the process ends: its commands may still access them. */
void keel_device_fixture_close(struct keel_device_fixture *fixture);
/* True when the device is suspect, hung or lost: its commands were not waited for, so nothing may be freed.
 */
bool keel_device_fixture_is_left(struct keel_device *device);
/* Another queue in place of one that failed. */
enum keel_status keel_device_fixture_renew(struct keel_device_fixture *fixture);

/* One golden operation. OK: it ran and is right. MISMATCH: it is not, and the detail names operation, hash
 * and expected hash. What else the device says, TIMEOUT included. */
enum keel_status keel_device_fixture_golden(struct keel_device_fixture *fixture, uint32_t index,
                                            uint64_t deadline_ns);
/* All of them, or the first that is not right. */
enum keel_status keel_device_fixture_goldens(struct keel_device_fixture *fixture, uint64_t deadline_ns);

/* The product of two square matrices, of which nothing is transposed: buffers[2] = buffers[0] * buffers[1].
 */
struct keel_gemm keel_device_fixture_square(uint32_t side, struct keel_buffer *const buffers[3]);

#endif
