/* layer_objects.c - what the application made through the layer, and where buffers lie on the board.
 *
 * The board's memory is a line of bytes, cut into banks of one size; a buffer takes the first gap that is
 * wide enough, whole pages. All under the layer's lock. */
#include "layer.h"
#include <stdlib.h>
#include <string.h>

#define UNBOUNDED (UINT64_C(1) << 46) /* where the driver's own limit is the only one */
enum { BUCKETS = 4096, PAGE = 4096 };

static struct layer_object *buckets[BUCKETS];
static struct layer_object *lowest; /* of the buffers that were placed, by address */

static size_t bucket_of(const void *handle)
{
    uint64_t mixed = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 52);
}

static struct layer_object **link_of(enum layer_kind kind, const void *handle)
{
    struct layer_object **link = &buckets[bucket_of(handle)];
    while (*link != NULL && ((*link)->handle != handle || (*link)->kind != kind))
        link = &(*link)->next;
    return link;
}

struct layer_object *layer_find(enum layer_kind kind, const void *handle)
{
    return *link_of(kind, handle);
}

static void unplace(struct layer_object *object)
{
    struct layer_object **link = &lowest;
    while (*link != NULL && *link != object)
        link = &(*link)->above;
    if (*link != NULL)
        *link = object->above;
}

static void empty(struct layer_object *object)
{
    free(object->names);
    free(object->stored);
    free(object->sizes);
}

struct layer_object *layer_add(enum layer_kind kind, void *handle)
{
    struct layer_object **link = link_of(kind, handle), *object = *link;
    struct layer_object *next = NULL;
    if (object == NULL) {
        object = malloc(sizeof *object);
        if (object == NULL)
            abort(); /* a test's driver without memory has nothing to say */
        *link = object;
    } else {
        next = object->next;
        unplace(object);
        empty(object);
    }
    memset(object, 0, sizeof *object);
    object->next = next;
    object->handle = handle;
    object->kind = kind;
    object->uses = 1;
    return object;
}

void layer_keep(enum layer_kind kind, const void *handle)
{
    struct layer_object *object = layer_find(kind, handle);
    if (object != NULL)
        object->uses++;
}

void layer_drop(enum layer_kind kind, void *handle)
{
    struct layer_object **link = link_of(kind, handle), *object = *link;
    if (object == NULL || --object->uses > 0)
        return;
    *link = object->next;
    unplace(object);
    empty(object);
    free(object);
}

void layer_each(enum layer_kind kind, void (*visit)(struct layer_object *, void *), void *context)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct layer_object *object = buckets[i]; object != NULL; object = object->next)
            if (object->kind == kind)
                visit(object, context);
}

bool layer_place(struct layer_object *buffer, uint64_t bytes, uint64_t bank)
{
    uint64_t memory_bytes = layer_settings.memory_bytes > 0 ? layer_settings.memory_bytes : UNBOUNDED;
    uint64_t banks = layer_settings.banks, bank_bytes = memory_bytes / banks;
    for (uint64_t i = bank == LAYER_UNSET ? 0 : bank; i < banks; i++) {
        uint64_t address = i * bank_bytes;
        struct layer_object **link = &lowest;
        while (*link != NULL && (*link)->address < address + bytes) {
            uint64_t end = ((*link)->address + (*link)->bytes + PAGE - 1) / PAGE * PAGE;
            address = end > address ? end : address;
            link = &(*link)->above;
        }
        if (address + bytes <= (i + 1) * bank_bytes) {
            buffer->address = address;
            buffer->bytes = bytes;
            buffer->bank = i;
            buffer->above = *link;
            *link = buffer;
            return true;
        }
        if (bank != LAYER_UNSET)
            break;
    }
    return false;
}

struct layer_object *layer_at(uint64_t address)
{
    for (struct layer_object *buffer = lowest; buffer != NULL; buffer = buffer->above)
        if (address >= buffer->address && address < buffer->address + buffer->bytes)
            return buffer;
    return NULL;
}
