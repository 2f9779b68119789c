/* teller.h - what a node that leads tells of the run is written by a thread, never by its loop.
 *
 * For an agent that leads: its lines go into the common store, which may be slow, or hang. The callbacks that
 * it hands out copy what they are told and return; the thread opens the real ones first, hands everything on
 * in its order, and looks at the store now and then. Steps wait in KEEL_TELLER_BYTES at most: the lines of
 * more are lost, and which those are is told in their place (`hole`); what is rare, a view, a note, a
 * snapshot, waits whatever there is. Private to node/. */
#ifndef KEEL_TELLER_H
#define KEEL_TELLER_H

#include "launcher.h"

enum { KEEL_TELLER_BYTES = 64 << 20 };

struct keel_teller_config {
    void *context; /* of all three, which are called on the thread alone */
    /* Before anything is told. Not OK: nothing ever is (keel_teller_failure). */
    enum keel_status (*open)(void *context, struct keel_launch_report *out);
    /* At once, and then at least every `look_ns`. Not OK: as for `open`. */
    enum keel_status (*look)(void *context);
    uint64_t look_ns;
};

struct keel_teller;

/* NO_MEMORY, and what a thread may fail with. */
enum keel_status keel_teller_open(const struct keel_teller_config *config, struct keel_teller **out);
/* Callbacks of who leads (leading.h), for any thread; others are NULL. `settle` waits until all that was told
 * is handed on, and which lines up to its step are lost: a snapshot is committed behind that. */
struct keel_launch_report keel_teller_report(struct keel_teller *teller);
/* What the real callbacks `stop` and `past` say, once all before was handed on. */
struct keel_teller_words {
    bool stop;
    uint64_t past_step;
    uint32_t past_bytes;
    uint8_t past[KEEL_PAST_BYTES_MAX];
};
/* False: nothing new since it was taken last. Does not wait. */
bool keel_teller_take(struct keel_teller *teller, struct keel_teller_words *out);
/* Why nothing is told any more, with the detail; OK as long as all is. */
enum keel_status keel_teller_failure(struct keel_teller *teller);
/* Wait until all is handed on, and what the thread does is over: it ends, and nothing is told any more. False
 * when the deadline passed: the store hangs, and the teller and what `context` points to are the thread's
 * until the process ends. */
bool keel_teller_drain(struct keel_teller *teller, uint64_t deadline_ns);
/* What `open` gave; after keel_teller_drain. NULL context: it gave nothing. */
const struct keel_launch_report *keel_teller_opened(const struct keel_teller *teller);
/* End the thread, behind what it is doing now, as long as that takes (keel_teller_drain first); what waits is
 * forgotten. */
void keel_teller_close(struct keel_teller *teller);

#endif
