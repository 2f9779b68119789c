/* check_steps.h - what the functions of checks are made of: queues, buffers and memory that end with the
 * check, transfers that are waited for, comparisons, and memory that must not grow.
 *
 * A step returns false after a verdict, so that steps are joined by && and the function then returns. */
#ifndef KEEL_CHECK_STEPS_H
#define KEEL_CHECK_STEPS_H

#include "board_check.h"

/* Made for the check, and given back after it: queues first, which waits for what they do. */
enum keel_status keel_check_new_queue(struct keel_check_run *run, struct keel_queue **out);
enum keel_status keel_check_new_buffer(struct keel_check_run *run, uint64_t bytes, struct keel_buffer **out);
/* A module's kernels, built for the check with these options. */
enum keel_status keel_check_new_kernels(struct keel_check_run *run, const struct keel_module *module,
                                        const char *options, struct keel_kernel **out);
/* Zeroed, of whole pages. */
enum keel_status keel_check_new_memory(struct keel_check_run *run, uint64_t bytes, void *out_pointer_address);
/* Give all of that back. Nothing where the device hangs or is gone: what it does may still write to it. */
void keel_check_give_back(struct keel_check_run *run);

/* Wait for a queue of the check; for the fixture's. */
bool keel_step_finish(struct keel_check_run *run, struct keel_queue *queue, const char *what);
/* Enqueue on the fixture's queue, and wait. */
bool keel_step_write(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset,
                     const void *data, uint64_t bytes);
bool keel_step_read(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, void *data,
                    uint64_t bytes);
bool keel_step_fill(struct keel_check_run *run, struct keel_buffer *buffer, uint64_t offset, uint64_t bytes,
                    uint32_t word);
/* Run what was appended to a list of the check, wait, and empty the list. `appended`: the status of that. */
bool keel_step_launch(struct keel_check_run *run, struct keel_launch_list *list, enum keel_status appended,
                      const char *what);

/* Fails with the first byte of `got` that is not as wanted: "FORMAT...: byte 3 of 8 is 00, not ff". */
bool keel_step_same(struct keel_check_run *run, const uint8_t *got, const uint8_t *wanted, uint64_t bytes,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Resident memory of the process that no file is behind; 0 where the system does not tell. */
uint64_t keel_check_resident_bytes(void);
/* So long the calling thread was ready and had no processor, since it began: what the machine's other work
 * took, and not the board. 0 where the system does not tell. */
uint64_t keel_check_queued_ns(void);
/* Do a step KEEL_CHECK_STAGES times. Fails where each time but the first, which may leave caches behind, left
 * memory behind: "memory of the process is lost: ... with every WHAT". */
enum { KEEL_CHECK_STAGES = 4, KEEL_CHECK_STAGE_BYTES = 8 << 20 /* more is a leak */ };
void keel_check_stages(struct keel_check_run *run, const char *doing, const char *what,
                       bool (*stage)(struct keel_check_run *run, void *context, uint32_t number),
                       void *context);

/* A word that has nothing to do with its neighbours'. */
uint32_t keel_check_mix(uint32_t x);

#endif
