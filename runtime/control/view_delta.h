/* view_delta.h - what of a view is another than in the one before, as bytes.
 *
 * Most changes touch few members of many: a rack of 64 among 4,096 is some hundred bytes where the view has
 * 300,000. Pure; says nothing of who is told what (node_views.c). */
#ifndef KEEL_VIEW_DELTA_H
#define KEEL_VIEW_DELTA_H

#include "view.h"

/* Bytes that keel_view_apply makes `next` from, with `old`; 0: they would be more than `capacity`. */
uint32_t keel_view_delta(const struct keel_view *old, const struct keel_view *next, uint8_t *out,
                         uint32_t capacity);

/* False: these bytes are no delta, or not one to `old`, or what comes out is no view of a later epoch; *out
 * is undefined then. `out` is not `old`. */
bool keel_view_apply(const struct keel_view *old, const uint8_t *data, uint32_t bytes, struct keel_view *out);

#endif
