/* opencl_absent.c - in the place of `opencl/` where Keel is built with OPENCL=no: there are the host and
 * null. */
#include "device_backend.h"
#include <stdio.h>

#define ABSENT "built with OPENCL=no"

static void discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count)
{
    if (*count == capacity)
        return;
    struct keel_device_info *info = &out[(*count)++].info;
    snprintf(info->platform, sizeof info->platform, "OpenCL");
    snprintf(info->passed_over, sizeof info->passed_over, ABSENT);
}

const struct keel_backend keel_opencl_backend = {.discover = discover,
                                                 .absent = "use one of these, or build with OPENCL=yes"};

void keel_opencl_loader(char out[KEEL_DEVICE_NAME_BYTES])
{
    snprintf(out, KEEL_DEVICE_NAME_BYTES, "none: " ABSENT);
}
