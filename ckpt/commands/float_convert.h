/* float_convert.h - floating-point elements of one type as those of another: widened exactly, or rounded to
 * nearest even as codec.h does. */
#ifndef KEEL_CKPT_FLOAT_CONVERT_H
#define KEEL_CKPT_FLOAT_CONVERT_H

#include <keel/ckpt.h>

bool keel_is_float(enum keel_ckpt_dtype dtype);
/* `from` is a floating-point type; `to` is the same, or float32, bfloat16 or float16. Nothing needs to be
 * aligned, and the two do not overlap. Returns how many finite elements became infinite. */
uint64_t keel_float_convert(enum keel_ckpt_dtype to, enum keel_ckpt_dtype from, const void *in, size_t count,
                            void *out);

#endif
