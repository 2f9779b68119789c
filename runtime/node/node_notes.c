/* node_notes.c - see node_notes.h. */
#include "node_notes.h"

#include <string.h>

bool keel_notes_put(struct keel_notes *notes, uint64_t number, uint8_t local, const uint8_t *data,
                    uint32_t bytes)
{
    KEEL_ASSERT(bytes <= KEEL_WIRE_NOTE_BYTES);
    if (notes->count == KEEL_NOTES_PENDING || bytes > KEEL_NOTE_TEXT_BYTES - notes->text_bytes)
        return false;
    notes->heads[notes->count].number = number;
    notes->heads[notes->count].local = local;
    notes->heads[notes->count].bytes = (uint16_t)bytes;
    if (bytes > 0)
        memcpy(notes->text + notes->text_bytes, data, bytes);
    notes->text_bytes += bytes;
    notes->count++;
    return true;
}

void keel_notes_first(const struct keel_notes *notes, struct keel_wire_note *out)
{
    KEEL_ASSERT(notes->count > 0);
    out->number = notes->heads[0].number;
    out->local = notes->heads[0].local;
    out->bytes = notes->heads[0].bytes;
    memcpy(out->data, notes->text, out->bytes);
}

void keel_notes_drop_first(struct keel_notes *notes)
{
    KEEL_ASSERT(notes->count > 0 && notes->heads[0].bytes <= notes->text_bytes);
    notes->text_bytes -= notes->heads[0].bytes;
    memmove(notes->text, notes->text + notes->heads[0].bytes, notes->text_bytes);
    memmove(notes->heads, notes->heads + 1, --notes->count * sizeof notes->heads[0]);
}

bool keel_notes_has(const struct keel_notes *notes, uint8_t local)
{
    for (uint32_t i = 0; i < notes->count; i++)
        if (notes->heads[i].local == local)
            return true;
    return false;
}
