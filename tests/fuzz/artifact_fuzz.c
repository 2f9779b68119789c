/* artifact_fuzz.c - any text as manifest.json, with the sum that belongs to it, beside one file of code:
 * refused with a reason, or what is given to the driver is that file, whole, under a hash that is its own. */
#include "artifact.h"
#include "fuzz.h"

static const uint8_t code[] = "code of a kernel";
static const struct keel_module module = {.name = "add",
                                          .source = "kernel void add() {}",
                                          .kernels = (const struct keel_module_kernel[]){{"add", NULL}},
                                          .kernel_count = 1};
static const struct keel_device_info info = {
    .platform = "Acme", .name = "One", .driver_version = "1.2", .memory_banks = 1};

static void write_in(const char *name, const void *data, size_t bytes)
{
    char path[KEEL_PATH_BYTES];
    KEEL_ASSERT(keel_path_join(path, fuzz_directory(), name) == KEEL_OK);
    fuzz_write(path, data, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char hash[KEEL_ARTIFACT_HEX_BYTES], sum[KEEL_ARTIFACT_HEX_BYTES + 32];
    struct keel_artifacts *artifacts;
    struct keel_code found;
    keel_artifact_hash(data, bytes, hash);
    write_in("manifest.json", data, bytes);
    write_in("manifest.sum", sum, (size_t)snprintf(sum, sizeof sum, "%s  manifest.json\n", hash));
    write_in("add.bin", code, sizeof code);
    if (keel_artifacts_open(fuzz_directory(), &info, &artifacts) != KEEL_OK) {
        KEEL_ASSERT(keel_detail()[0] != '\0');
        return 0;
    }
    if (keel_artifacts_find(artifacts, &module, "", &found) == KEEL_OK) {
        KEEL_ASSERT(found.kernel_count > 0 && found.kernels[0].name != NULL);
        KEEL_ASSERT(found.form == KEEL_CODE_BUILTIN ||
                    (found.size == sizeof code && memcmp(found.bytes, code, sizeof code) == 0));
    }
    keel_artifacts_close(artifacts);
    return 0;
}
