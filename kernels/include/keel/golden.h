/* golden.h - does this device compute what Keel computes? Every operation of kernels.h on small seeded
 * inputs, with the hash that its results must have.
 *
 * A golden case is one operation in one shape. Its inputs come from its name, its launches from the same
 * keel_op_ call that training uses, and the hash over all that it writes is a number in the source
 * (kernels/golden), proved against the host's C reference by the tests. One case therefore tests compiler,
 * driver and board together, without a second device to compare with: at bring-up, between the steps of a
 * training run, and before a spare is admitted.
 *
 * Around every buffer of a case lie guard words, which are read back afterwards; inputs are read back too. A
 * stray write of a kernel or a driver is reported with the buffer's name and the offset.
 *
 * Threads: as keel_kernels and keel_queue, one at a time. Memory: allocated and freed within each call; no
 * case needs more than KEEL_GOLDEN_BYTES_MAX of the device. */
#ifndef KEEL_GOLDEN_H
#define KEEL_GOLDEN_H

#include <keel/api.h>
#include <keel/kernels.h>

KEEL_API_BEGIN

enum { KEEL_GOLDEN_BYTES_MAX = 4 << 20 };

/* What a case is. Static strings. */
struct keel_golden {
    const char *name;   /* "gemm/67x97x101-tn": unique */
    const char *op;     /* "gemm": keel_op_gemm of kernels.h */
    const char *module; /* "gemm": the .cl file whose kernels it launches */
    uint64_t bytes;     /* of its buffers, without guards */
    uint64_t expected;  /* hash of its results: 64-bit FNV-1a over the bytes of all that it writes */
};

/* How many cases kernels of a class have, and one of them; index < keel_golden_count(numerics). Those of
 * canonical kernels come first, and are all that native ones have; kernels of another class have its own
 * behind them. Any thread. */
uint32_t keel_golden_count(enum keel_class numerics);
struct keel_golden keel_golden_get(enum keel_class numerics, uint32_t index);

struct keel_golden_result {
    uint64_t hash, expected;
    bool matches;           /* hash == expected */
    bool intact;            /* every guard word and every input is as it was */
    const char *hit_buffer; /* where not intact: the first buffer that was hit (static string), */
    int64_t
        hit_offset_bytes; /* and the first byte: negative or beyond its end in the guards, else in an input */
    bool transfer; /* wrong above, but right when read again: the transfer from the device was at fault */
};

/* Run one case of the kernels' class and look at what it left. Blocks until deadline_ns (keel/clock.h), for
 * the build of the kernels has been done before. OK means that it ran; whether it is right is in matches and
 * intact. Errors: TIMEOUT (the device is still running), NO_MEMORY, those of the device. Memory that a
 * running, hung or lost device may still write to is leaked on purpose. After an error this process must not
 * use the device again, and should end. */
enum keel_status keel_golden_run(struct keel_kernels *kernels, struct keel_queue *queue, uint32_t index,
                                 uint64_t deadline_ns, struct keel_golden_result *out);

/* What was wrong, to stand behind the name of the case: "has byte 138 of a changed, which it may not write",
 * "has hash ..., and ... is right", or that it was the transfer. Cut to out_bytes. */
void keel_golden_describe(const struct keel_golden_result *result, char *out, size_t out_bytes);

/* Launch every kernel once, at every local size that is in use, whatever the results: so that drivers
 * which compile at the first launch have done so (and put native code into keel_program_binary). All cases
 * are run, milliseconds once compiled. Errors as above. */
enum keel_status keel_golden_warm(struct keel_kernels *kernels, struct keel_queue *queue,
                                  uint64_t deadline_ns);

KEEL_API_END

#endif
