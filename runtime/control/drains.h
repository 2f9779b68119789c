/* drains.h - which nodes of a run are to be away: files DIR/drained/NODE, which keel job makes and removes.
 *
 * They are a state and no messages: who leads the run looks at its beats, and who takes it over finds them.
 * One file a node, so that two who ask at once do not undo each other. Blocks for a moment; any thread. */
#ifndef KEEL_DRAINS_H
#define KEEL_DRAINS_H

#include "bitset.h"
#include <keel/status.h>

enum keel_status keel_drain_add(const char *directory, uint16_t node);
bool keel_drain_is_asked(const char *directory, uint16_t node);
/* OK also where it is not there. */
enum keel_status keel_drain_remove(const char *directory, uint16_t node);
/* All of them; what has no name of a node is passed over. */
enum keel_status keel_drains_read(const char *directory, struct keel_bitset *out);
/* A run that begins has all its nodes. */
enum keel_status keel_drains_clear(const char *directory);

#endif
