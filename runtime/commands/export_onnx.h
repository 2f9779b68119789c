/* export_onnx.h - a trained model as an .onnx file, for `keel export --format onnx`. */
#ifndef KEEL_EXPORT_ONNX_H
#define KEEL_EXPORT_ONNX_H

#include "trained.h"

struct keel_export_onnx {
    char path[KEEL_PATH_BYTES]; /* that was written */
    uint64_t bytes;
    uint32_t nodes;
};
/* The opened model, adapters merged, to `path`, which ends in .onnx; `replace`: what is there. Blocks.
 * INVALID: another name, or something is there. UNSUPPORTED: a plug-in, or an operation without an operator.
 */
enum keel_status keel_export_onnx(const struct keel_trained *trained, const char *path, bool replace,
                                  struct keel_export_onnx *out);

#endif
