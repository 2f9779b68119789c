/* run_gates.h - DIR/gates: where who leads a run is asked, wherever it is, as the launcher knew it last.
 *
 * A line: the run's number, and places HOST:PORT,... of who leads, of those who may lead next, and of some
 * more, each of which says who leads (gate.h). It is the launcher's host's own: whoever asks needs no common
 * store. What it says may be old: a place there may be nobody's by now, or another run's, which the number
 * tells. Blocks for a moment; any thread. */
#ifndef KEEL_RUN_GATES_H
#define KEEL_RUN_GATES_H

#include "net_place.h"
#include <keel/file.h>
#include <stdbool.h>
#include <stdint.h>

enum { KEEL_GATES_MAX = 16, KEEL_GATES_BYTES = KEEL_GATES_MAX * KEEL_PLACE_BYTES };

struct keel_run_gates {
    uint64_t run;
    char places[KEEL_GATES_BYTES]; /* at most KEEL_GATES_MAX */
};

/* One more, as far as there is room. */
void keel_run_gates_add(struct keel_run_gates *gates, const char *place);
enum keel_status keel_run_gates_write(const char *directory, const struct keel_run_gates *gates);
/* NOT_FOUND: no run goes on there, or it has only just begun. CORRUPT. */
enum keel_status keel_run_gates_read(const char *directory, struct keel_run_gates *out);
bool keel_run_gates_are_there(const char *directory);
/* The run is over. */
void keel_run_gates_remove(const char *directory);

#endif
