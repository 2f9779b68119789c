/* registry.c - all modules of operations, and the built programs of one device.
 *
 * Owns every keel_program and keel_kernel of a device: all modules of KEEL_MODULE_TABLE are built at
 * creation (those of a class for kernels of it alone), so that no operation compiles in the middle of a run.
 * Leaves to others: how an operation finds its kernels and appends launches (kernels.c). */
#include "clblast.h"
#include "kernels_internal.h"
#include "planes_internal.h"

#include <inttypes.h>
#include <keel/bits.h>
#include <keel/log.h>
#include <stdio.h>
#include <string.h>

static const struct keel_module *const module_table[KEEL_MODULE_COUNT] = {
#define KEEL_MODULE_ADDRESS(name) &keel_module_##name,
    KEEL_MODULE_TABLE(KEEL_MODULE_ADDRESS) KEEL_NATIVE_MODULE_TABLE(KEEL_MODULE_ADDRESS)
        KEEL_PLANES_MODULE_TABLE(KEEL_MODULE_ADDRESS)
#undef KEEL_MODULE_ADDRESS
};

/* What does not fit is refused by what the sources take (tunables.c), not by what a driver counts: rusticl
 * counts 45,312 bytes where the arrays of keel_gemm take 28,800, has 32,768, and computes right. So its count
 * is only told. */
static void note_local(const struct keel_kernels *kernels, const struct keel_kernel *kernel)
{
    const uint64_t takes = keel_kernel_info(kernel).local_bytes;
    if (kernels->info.kind != KEEL_DEVICE_HOST && takes > kernels->info.local_bytes)
        keel_log(KEEL_LOG_INFO,
                 "kernel %s takes %" PRIu64 " bytes of local memory by the driver's count, %s has %" PRIu64,
                 keel_kernel_name(kernel), takes, kernels->info.selector, kernels->info.local_bytes);
}

/* A kernel by many work-items whose registers do not hold its sums is slower than one with fewer of them: who
 * chose so is told. What the defaults spill is the compiler's doing, and goes on. */
static enum keel_status check_spill(const struct keel_kernels *kernels, enum keel_module_id id,
                                    const struct keel_kernel *kernel)
{
    const struct keel_kernel_info info = keel_kernel_info(kernel);
    const bool attention = id == KEEL_MODULE_attention;
    if (!kernels->chosen || kernels->info.kind != KEEL_DEVICE_GPU || (id != KEEL_MODULE_gemm && !attention) ||
        info.local[0] <= 1 || info.private_bytes == 0)
        return KEEL_OK;
    return keel_fail(
        KEEL_LIMIT,
        "%s: kernel %s spills %" PRIu64 " bytes of a work-item's registers on %s: set smaller ones",
        attention ? "attention.items" : "gemm.items, gemm.item_rows, gemm.item_columns and gemm.item_depth",
        keel_kernel_name(kernel), info.private_bytes, kernels->info.selector);
}

static enum keel_status build_module(const struct keel_kernels *kernels, enum keel_module_id id,
                                     struct keel_built_module *out)
{
    const struct keel_module *module = module_table[id];
    KEEL_ASSERT(module->kernel_count > 0 && module->packed != NULL && out->program == NULL);
    out->module = module;
    if (id == KEEL_MODULE_planes)
        keel_planes_build_options(kernels, out->options);
    else
        keel_tunables_build_options(&kernels->info, id, kernels->tuned, out->options);
    KEEL_TRY(keel_alloc(module->kernel_count, sizeof(struct keel_kernel *), &out->kernels));
    KEEL_TRY(keel_program_create(kernels->device, module, out->options, &out->program));
    for (uint32_t i = 0; i < module->kernel_count; i++) {
        KEEL_TRY(keel_kernel_create(out->program, module->kernels[i].name, &out->kernels[i]));
        KEEL_ASSERT(strcmp(keel_kernel_name(out->kernels[i]), module->kernels[i].name) == 0);
        note_local(kernels, out->kernels[i]);
        KEEL_TRY(check_spill(kernels, id, out->kernels[i]));
    }
    return KEEL_OK;
}

static void destroy_module(struct keel_built_module *built)
{
    for (uint32_t k = 0; built->kernels != NULL && k < built->module->kernel_count; k++)
        if (built->kernels[k] != NULL)
            keel_kernel_destroy(built->kernels[k]);
    if (built->program != NULL)
        keel_program_destroy(built->program);
    keel_free(built->kernels);
    *built = (struct keel_built_module){0};
}

/* The module of a class could not be had on a device that has all others: which classes it can do. */
static enum keel_status name_classes(struct keel_kernels *kernels, enum keel_status status)
{
    char why[KEEL_DETAIL_BYTES], can[KEEL_CLASSES * 16] = "canonical";
    const enum keel_class wanted = kernels->numerics;
    snprintf(why, sizeof why, "%s", keel_detail());
    for (enum keel_class other = KEEL_NATIVE; other < KEEL_CLASSES; other++) {
        struct keel_built_module built = {0};
        kernels->numerics = other;
        kernels->planes = keel_planes_way(&kernels->info, other, kernels->tuned);
        const enum keel_module_id module = keel_kernels_part_module(kernels, KEEL_MODULE_CANONICAL_COUNT);
        if (other != wanted && build_module(kernels, module, &built) == KEEL_OK)
            snprintf(can + strlen(can), sizeof can - strlen(can), ", %s", keel_class_name(other));
        destroy_module(&built);
    }
    kernels->numerics = wanted;
    return keel_fail(status, "%s cannot do numerics %s: %.300s; it can do: %s", kernels->info.selector,
                     keel_class_name(wanted), why, can);
}

enum keel_status keel_kernels_create(struct keel_device *device, struct keel_kernels **out)
{
    return keel_kernels_create_with(device, &(struct keel_kernels_options){0}, out);
}

/* Of a text with its zero, so that two that follow each other are not one. */
static uint64_t mix_text(uint64_t digest, const char *text)
{
    return keel_fnv1a(digest, text, strlen(text) + 1);
}

static uint64_t parameter_digest(const struct keel_kernels_options *options)
{
    uint64_t digest = options->provider_parameter_count > 0 ? KEEL_FNV1A_BEGIN : 0;
    for (uint32_t i = 0; i < options->provider_parameter_count; i++) {
        const struct keel_provider_parameters *of = &options->provider_parameters[i];
        digest = mix_text(digest, of->kernel);
        for (uint32_t v = 0; v < of->count; v++) {
            char value[24];
            snprintf(value, sizeof value, "%zu", of->values[v]);
            digest = mix_text(mix_text(digest, of->names[v]), value);
        }
    }
    return digest;
}

enum keel_status keel_kernels_create_with(struct keel_device *device,
                                          const struct keel_kernels_options *options,
                                          struct keel_kernels **out)
{
    struct keel_kernels *kernels;
    if (options->numerics >= KEEL_CLASSES)
        return keel_fail(KEEL_INVALID,
                         "class of numerics %d: canonical, native, exact8x2, exact8x3 and bf16 are known",
                         (int)options->numerics);
    KEEL_TRY(keel_alloc(1, sizeof *kernels, &kernels));
    kernels->device = device;
    kernels->numerics = options->numerics;
    kernels->chosen = options->setting_count > 0 && options->target == NULL;
    kernels->provider_digest = parameter_digest(options);
    kernels->info = options->target != NULL ? *options->target : *keel_device_info(device);
    if (kernels->info.compute_units == 0) /* some driver's word; work is divided by it */
        kernels->info.compute_units = 1;
    enum keel_status status =
        keel_tunables_apply(&kernels->info, options->settings, options->setting_count, kernels->tuned);
    const bool here = options->numerics == KEEL_NATIVE && options->target == NULL;
    if (status == KEEL_OK && here && kernels->tuned[KEEL_TUNABLE_GEMM_PROVIDER] == 1)
        status = keel_clblast_create(device, options, &kernels->clblast);
    kernels->planes = keel_planes_way(&kernels->info, kernels->numerics, kernels->tuned);
    for (uint32_t i = 0; i < keel_kernels_part_count(kernels) && status == KEEL_OK; i++) {
        const enum keel_module_id module = keel_kernels_part_module(kernels, i);
        status = build_module(kernels, module, &kernels->modules[module]);
        if (status != KEEL_OK && module >= KEEL_MODULE_CANONICAL_COUNT)
            status = name_classes(kernels, status);
    }
    if (status != KEEL_OK) {
        keel_kernels_destroy(kernels);
        return status;
    }
    *out = kernels;
    return KEEL_OK;
}

void keel_kernels_destroy(struct keel_kernels *kernels)
{
    if (kernels == NULL)
        return;
    for (uint32_t i = 0; i < KEEL_MODULE_COUNT; i++)
        destroy_module(&kernels->modules[i]);
    keel_clblast_destroy(kernels->clblast);
    keel_free(kernels);
}

const char *keel_kernels_module_name(enum keel_module_id module)
{
    return module_table[module]->name;
}

void keel_kernels_provider(const struct keel_kernels *kernels, char out[KEEL_PROVIDER_TEXT_BYTES])
{
    if (kernels->clblast == NULL)
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "Keel");
    else if (kernels->provider_digest == 0)
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "CLBlast with its own parameters");
    else
        snprintf(out, KEEL_PROVIDER_TEXT_BYTES, "CLBlast with parameters %016" PRIx64,
                 kernels->provider_digest);
}
