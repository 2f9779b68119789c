/* node_notes.h - what workers said for events.jsonl and the launcher lacks, in order.
 *
 * Bounded by number and by bytes: what finds no room is not taken. Owns no time and sends nothing. */
#ifndef KEEL_NODE_NOTES_H
#define KEEL_NODE_NOTES_H

#include "node_wire.h"

enum { KEEL_NOTES_PENDING = 64, KEEL_NOTE_TEXT_BYTES = 8192 }; /* of an agent */

struct keel_notes {
    struct {
        uint64_t number;
        uint16_t bytes;
        uint8_t local;
    } heads[KEEL_NOTES_PENDING]; /* oldest first */
    uint32_t count, text_bytes;
    uint8_t text[KEEL_NOTE_TEXT_BYTES]; /* of all of them, one behind the other */
};

/* False: too many or too much waits, since the launcher has answered nothing for long. */
bool keel_notes_put(struct keel_notes *notes, uint64_t number, uint8_t local, const uint8_t *data,
                    uint32_t bytes);
/* The oldest; there is one. */
void keel_notes_first(const struct keel_notes *notes, struct keel_wire_note *out);
/* The oldest is known to the launcher: it goes. */
void keel_notes_drop_first(struct keel_notes *notes);
bool keel_notes_has(const struct keel_notes *notes, uint8_t local);

#endif
