/* emit.c - parts of values, for operations that are launched in pieces. */
#include "emit.h"

#include <keel/memory.h>

enum keel_status keel_parts_slice(struct keel_parts *parts, struct keel_buffer *whole, uint64_t offset,
                                  uint64_t bytes, struct keel_buffer **out)
{
    KEEL_ASSERT(offset % KEEL_PART_ALIGN == 0);
    if (parts->count == parts->capacity) {
        uint32_t capacity = parts->capacity == 0 ? 32 : parts->capacity * 2;
        KEEL_TRY(
            keel_realloc((void *)&parts->items, parts->capacity, capacity, sizeof(struct keel_buffer *)));
        parts->capacity = capacity;
    }
    KEEL_TRY(keel_buffer_slice(whole, offset, bytes, &parts->items[parts->count]));
    *out = parts->items[parts->count++];
    return KEEL_OK;
}

enum keel_status keel_emit_part(struct keel_emit *emit, keel_value value, uint64_t offset, uint64_t bytes,
                                struct keel_buffer **out)
{
    const struct keel_place *place = &emit->place[value];
    KEEL_ASSERT(!emit->measure);
    return keel_parts_slice(emit->parts, place->whole, place->offset + offset, bytes, out);
}

enum keel_status keel_emit_workspace_part(struct keel_emit *emit, uint64_t offset, uint64_t bytes,
                                          struct keel_buffer **out)
{
    KEEL_ASSERT(!emit->measure);
    return keel_parts_slice(emit->parts, emit->workspace, offset, bytes, out);
}

void keel_parts_fini(struct keel_parts *parts)
{
    for (uint32_t i = 0; i < parts->count; i++)
        keel_buffer_destroy(parts->items[i]);
    keel_free(parts->items);
    *parts = (struct keel_parts){.count = 0};
}
