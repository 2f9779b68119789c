/* canon.h - canonical arithmetic for C files: see canon_math.h. */
#ifndef KEEL_CANON_H
#define KEEL_CANON_H

#include "canon_scalar.h"

#include "canon_math.h"

#include "canon_random.h"

#include "canon_tree.h"

#endif
