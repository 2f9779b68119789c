/* clblast_absent.c - in the place of clblast.c where Keel is built with CLBLAST=no: products are our own. */
#include "clblast.h"
#include <keel/log.h>
#include <string.h>

#define ABSENT "built with CLBLAST=no"

/* Who asks for CLBlast by name is refused: other products would come out. Where it is a device's default it
 * is told in the log. */
static enum keel_status refuse(const struct keel_kernels_options *options)
{
    const char *file = options->provider_file != NULL ? options->provider_file : "parameters of CLBlast";
    for (uint32_t i = 0; i < options->setting_count; i++)
        if (strcmp(options->settings[i].name, "gemm.provider") == 0)
            return keel_fail(KEEL_UNSUPPORTED,
                             "gemm.provider = 1: " ABSENT "; set it to 0, or build with CLBLAST=yes");
    if (options->provider_parameter_count > 0)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%.200s: " ABSENT "; set gemm.provider = 0 in tune.conf, or build with CLBLAST=yes",
                         file);
    return KEEL_OK;
}

enum keel_status keel_clblast_create(struct keel_device *device, const struct keel_kernels_options *options,
                                     struct keel_clblast **out)
{
    *out = NULL;
    if (options->only_artifacts || (keel_device_info(device)->code_forms & KEEL_CODE_SOURCE) == 0)
        return KEEL_OK;
    KEEL_TRY(refuse(options));
    keel_log(KEEL_LOG_WARN, "%s: products by our own kernels: " ABSENT, keel_device_info(device)->selector);
    return KEEL_OK;
}

void keel_clblast_destroy(struct keel_clblast *clblast)
{
    KEEL_ASSERT(clblast == NULL);
}

bool keel_clblast_takes(const struct keel_clblast *clblast, const struct keel_gemm *op)
{
    (void)clblast;
    (void)op;
    return false;
}

enum keel_status keel_clblast_append(const struct keel_clblast *clblast, struct keel_kernels *kernels,
                                     const struct keel_gemm *op, struct keel_launch_list *list)
{
    (void)clblast;
    (void)kernels;
    (void)op;
    (void)list;
    return keel_fail(KEEL_UNSUPPORTED, ABSENT);
}
