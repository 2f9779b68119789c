/* run_asks.h - nodes that are to leave a run, or to come back (keel job drain, add), asked of who leads at
 * its gate: of the launcher, or of an agent.
 *
 * What is asked for is a state, which the control plane keeps and tells all nodes (node_away.c): so a wish is
 * looked at until it has come to be, and asked for again where who took over does not know of it. One thread;
 * never blocks. */
#ifndef KEEL_RUN_ASKS_H
#define KEEL_RUN_ASKS_H

#include "control.h"
#include "handover.h"

enum { KEEL_DRAIN_TEXT_BYTES = 160 };

/* What became of a node that is to leave, or why it stays, for people; arguments as keel_env.drain has them.
 */
void keel_drain_text(uint16_t node, enum keel_drain_news news, uint16_t ranks, uint16_t fewest,
                     char out[KEEL_DRAIN_TEXT_BYTES]);

/* A DRAIN or an ADD of a node of the run. INVALID: to come back is a node that never was to leave. */
enum keel_status keel_run_asks_take(struct keel_control_plane *control, const struct keel_handover_ask *ask);
/* Has it come to be, and do all nodes know it that live? Else `why` says why it stays for now; "": it does
 * not. */
bool keel_run_asks_look(struct keel_control_plane *control, const struct keel_handover_ask *ask,
                        char why[KEEL_DRAIN_TEXT_BYTES]);

#endif
