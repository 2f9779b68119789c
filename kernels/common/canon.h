/* canon.h - canonical arithmetic for C files: see canon_math.h. */
#ifndef KEEL_CANON_H
#define KEEL_CANON_H

#include "canon_scalar.h"

#include "canon_math.h"

#include "canon_random.h"

#include "canon_tree.h"

#include "canon_half.h"

/* Put before a host kernel that multiplies and adds in one: it is built twice, and the loader takes the
 * build whose fma is an instruction where the processor has it; the other calls the library, with the
 * same bits. Sanitizers start too late for a loader's choice. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                          \
    !defined(__SANITIZE_THREAD__)
#define KEEL_HOST_KERNEL __attribute__((target_clones("fma", "default"), flatten))
#else
#define KEEL_HOST_KERNEL
#endif

#endif
