/* memcheck.h - the memory test of a board: address aliasing, stuck and coupled bits, slow banks.
 *
 * Owns the patterns and the passes (address in address, moving inversions, walking bits, random), and what
 * they found. Allocates all that it tests at once, in pieces, so that two addresses which share a cell show;
 * leaves the verdict to the caller. The passes run as a kernel of the board where its code can be had, and
 * by copies from and to the host elsewhere. */
#ifndef KEEL_MEMCHECK_H
#define KEEL_MEMCHECK_H

#include <keel/device.h>

extern const struct keel_module keel_memcheck_module; /* for who builds artifacts ahead of time */

struct keel_memcheck_options {
    uint64_t bytes;       /* to be tested, of each bank its share */
    uint64_t piece_bytes; /* 0: the device's largest buffer */
    uint64_t deadline_ns; /* of all of it (keel_now_ns) */
    void (*progress)(void *context, uint32_t done, uint32_t total, const char *pass); /* may be NULL */
    void *context;
};

struct keel_memcheck_result {
    uint64_t wanted_bytes, tested_bytes; /* fewer where the device gave no more */
    uint32_t pieces, banks;
    bool by_copies; /* no kernel: patterns came from the host */
    uint64_t faults;
    /* the first of them */
    char pass[32];
    uint64_t address_bytes; /* from the start of what was tested */
    uint32_t got, wanted;
    /* bytes read and written a second, of each piece in its best pass: of the piece in the middle, and of the
     * slowest one, which lies there */
    double bytes_per_s, slowest_bytes_per_s;
    uint64_t slowest_address_bytes;
    uint32_t slowest_bank;
};

/* OK: it ran to its end, and *out says what was found. TIMEOUT, DEVICE_LOST, NO_MEMORY (not one piece), and
 * what else the device says: it could not be run. Blocks; frees all that it took, but for the
 * host memory of a device that is then HUNG or LOST, which may yet be written. */
enum keel_status keel_memcheck_run(struct keel_device *device, const struct keel_memcheck_options *options,
                                   struct keel_memcheck_result *out);

#endif
