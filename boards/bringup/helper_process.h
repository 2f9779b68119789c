/* helper_process.h - the second process of a check: one that works and is killed, one that is a pair's other
 * half.
 *
 * `keel board helper golden|once|pair|outlive BOARD [RANK]` is started by checks, never by hand, with a
 * socket on descriptor 3. It sends one struct keel_helper_word per packet and exits when the socket closes.
 */
#ifndef KEEL_HELPER_H
#define KEEL_HELPER_H

#include <keel/process.h>
#include <keel/transport.h>

enum keel_helper_kind {
    KEEL_HELPER_WORKS = 1, /* golden, outlive: the board is open, and works from now on */
    KEEL_HELPER_ADDRESS,   /* pair: where I am (to the check); where both are (from it) */
    KEEL_HELPER_DONE,  /* once, pair, outlive: all that was to be done is right; value: hash of the results */
    KEEL_HELPER_FAILED /* value: enum keel_status, and why */
};

struct keel_helper_word {
    uint32_t kind;
    uint64_t value;
    struct keel_address addresses[2];
    char text[256];
};

struct keel_helper_process {
    struct keel_process process;
    int fd; /* of the check; the process has the other end */
};

/* Start one: `rank` NULL for golden and once. Blocks for no board. */
enum keel_status keel_helper_start(const char *what, const char *board, const char *rank,
                                   struct keel_helper_process *out);
enum keel_status keel_helper_hear(struct keel_helper_process *helper, uint64_t deadline_ns,
                                  struct keel_helper_word *out);
enum keel_status keel_helper_tell(struct keel_helper_process *helper, const struct keel_helper_word *word);
/* Kill it if it is still there, and reap it. */
void keel_helper_end(struct keel_helper_process *helper);

/* The other side. The exit code. */
int keel_board_helper_main(int argc, char **argv);

#endif
