/* clblast.h - CLBlast as a provider of matrix products; private to kernels. */
#ifndef KEEL_KERNELS_CLBLAST_H
#define KEEL_KERNELS_CLBLAST_H

#include <keel/kernels.h>

struct keel_clblast;

/* For a device that has a compiler, with CLBlast's parameters set and its programs built (seconds). NULL is
 * put into *out, and OK returned, where there is no compiler, or none may be used, or no OpenCL, and with a
 * line in the log where CLBlast cannot compute with its own parameters: then our own kernels do. INVALID:
 * parameters that it refuses, by the name of the kernel; UNSUPPORTED: given ones that its kernels do not
 * build or run with. */
enum keel_status keel_clblast_create(struct keel_device *device, const struct keel_kernels_options *options,
                                     struct keel_clblast **out);
void keel_clblast_destroy(struct keel_clblast *clblast); /* NULL is accepted; nothing of it may run */

/* A product that it computes, with what Keel's own kernels do behind it. */
bool keel_clblast_takes(const struct keel_clblast *clblast, const struct keel_gemm *op);
/* Append it; checked before. */
enum keel_status keel_clblast_append(const struct keel_clblast *clblast, struct keel_kernels *kernels,
                                     const struct keel_gemm *op, struct keel_launch_list *list);

#endif
