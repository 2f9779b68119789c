/* opencl_discover.c - what OpenCL devices there are, and why some cannot be used.
 *
 * Asks every platform, trusts none: a platform or a device that answers with an error becomes a
 * candidate that says so. Opens nothing. */
#include "opencl_backend.h"
#include <ctype.h>
#include <dlfcn.h>
#include <keel/file.h>
#include <stdio.h>
#include <string.h>

enum { PLATFORMS_MAX = 16, DEVICES_MAX = 32, TEXT_BYTES = 1024 };
#define SUFFIX_QUERY 0x0920 /* CL_PLATFORM_ICD_SUFFIX_KHR */

void keel_opencl_loader(char out[KEEL_DEVICE_NAME_BYTES])
{
    Dl_info place;
    cl_int (*function)(cl_uint, cl_platform_id *, cl_uint *) = clGetPlatformIDs;
    void *address;
    memcpy(&address, &function, sizeof address);
    const char *path = dladdr(address, &place) != 0 && place.dli_fname != NULL ? place.dli_fname : "";
    snprintf(out, KEEL_DEVICE_NAME_BYTES, "%s", path);
}

/* Drivers and files say what they like; people and JSON get printable ASCII. */
static void keep_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
            *text = '?';
}

/* The name in selectors: the ICD suffix in lower case, else the platform's first word. */
static void short_name(cl_platform_id platform, const char *platform_name, char out[32])
{
    char text[64] = "";
    if (clGetPlatformInfo(platform, SUFFIX_QUERY, sizeof text, text, NULL) != CL_SUCCESS || text[0] == '\0')
        snprintf(text, sizeof text, "%.63s", platform_name);
    size_t used = 0;
    for (const char *at = text; *at != '\0' && *at != ' ' && used < 31; at++)
        if (isalnum((unsigned char)*at))
            out[used++] = (char)tolower((unsigned char)*at);
    out[used] = '\0';
    if (used == 0)
        snprintf(out, 32, "opencl");
}

static cl_int ask(cl_device_id id, cl_device_info what, void *value, size_t bytes)
{
    return clGetDeviceInfo(id, what, bytes, value, NULL);
}

static enum keel_device_kind kind_of(cl_device_id id)
{
    cl_device_type type = 0;
    ask(id, CL_DEVICE_TYPE, &type, sizeof type);
    if (type & CL_DEVICE_TYPE_GPU)
        return KEEL_DEVICE_GPU;
    return type & CL_DEVICE_TYPE_CPU ? KEEL_DEVICE_CPU : KEEL_DEVICE_ACCELERATOR;
}

/* Text of any length, cut to fit: a driver refuses a query whose answer is longer than its place. */
static cl_int ask_text(cl_device_id id, cl_device_info what, char *out, size_t out_bytes)
{
    char text[TEXT_BYTES] = "";
    cl_int error = clGetDeviceInfo(id, what, sizeof text, text, NULL);
    text[sizeof text - 1] = '\0';
    keep_printable(text);
    snprintf(out, out_bytes, "%s", error == CL_SUCCESS ? text : "");
    return error;
}

static void ask_names(cl_device_id id, struct keel_device_info *info)
{
    char api[64];
    ask_text(id, CL_DEVICE_VERSION, api, sizeof api);
    ask_text(id, CL_DRIVER_VERSION, info->driver_version, sizeof info->driver_version);
    ask_text(id, CL_DEVICE_VENDOR, info->vendor, sizeof info->vendor);
    snprintf(info->version, sizeof info->version, "%s, driver %.55s", api, info->driver_version);
    char profile[64];
    ask_text(id, CL_DEVICE_PROFILE, profile, sizeof profile);
    info->embedded_profile = strcmp(profile, "EMBEDDED_PROFILE") == 0;
}

static bool ask_flag(cl_device_id id, cl_device_info what)
{
    cl_bool value = CL_FALSE;
    ask(id, what, &value, sizeof value);
    return value == CL_TRUE;
}

static uint32_t ask_number(cl_device_id id, cl_device_info what)
{
    cl_uint value = 0;
    ask(id, what, &value, sizeof value);
    return value;
}

static uint64_t ask_bytes(cl_device_id id, cl_device_info what)
{
    cl_ulong value = 0;
    ask(id, what, &value, sizeof value);
    return value;
}

static uint32_t ask_size(cl_device_id id, cl_device_info what)
{
    size_t value = 0;
    ask(id, what, &value, sizeof value);
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static uint32_t code_forms_of(cl_device_id id)
{
    size_t names_bytes = 0;
    cl_int error = clGetDeviceInfo(id, CL_DEVICE_BUILT_IN_KERNELS, 0, NULL, &names_bytes);
    uint32_t forms = KEEL_CODE_BINARY;
    if (ask_flag(id, CL_DEVICE_COMPILER_AVAILABLE))
        forms |= KEEL_CODE_SOURCE;
    if (error == CL_SUCCESS && names_bytes > 1)
        forms |= KEEL_CODE_BUILTIN;
    return forms;
}

static uint32_t numerics_of(cl_device_id id)
{
    static const struct {
        cl_device_fp_config theirs;
        enum keel_numerics ours;
    } table[] = {{CL_FP_DENORM, KEEL_NUMERICS_DENORMALS},
                 {CL_FP_INF_NAN, KEEL_NUMERICS_INF_NAN},
                 {CL_FP_ROUND_TO_NEAREST, KEEL_NUMERICS_NEAREST},
                 {CL_FP_ROUND_TO_ZERO, KEEL_NUMERICS_ZERO},
                 {CL_FP_ROUND_TO_INF, KEEL_NUMERICS_INFINITY},
                 {CL_FP_FMA, KEEL_NUMERICS_FMA},
                 {CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, KEEL_NUMERICS_DIVIDE_SQRT},
                 {CL_FP_SOFT_FLOAT, KEEL_NUMERICS_SOFT}};
    cl_device_fp_config config = 0;
    uint32_t numerics = 0;
    ask(id, CL_DEVICE_SINGLE_FP_CONFIG, &config, sizeof config);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (config & table[i].theirs)
            numerics |= (uint32_t)table[i].ours;
    return numerics;
}

/* Of OpenCL 3.0, and of the extensions cl_nv_device_attribute_query and cl_amd_device_attribute_query. */
static uint32_t lanes_of(cl_device_id id)
{
    enum { GROUP_MULTIPLE = 0x1067, WARP_NV = 0x4003, WAVEFRONT_AMD = 0x4043 };
    uint32_t lanes = ask_size(id, GROUP_MULTIPLE);
    if (lanes == 0)
        lanes = ask_number(id, WARP_NV);
    return lanes != 0 ? lanes : ask_number(id, WAVEFRONT_AMD);
}

/* Of the processor itself: a CPU device is this machine's. */
static uint32_t processor_dots(cl_device_id id)
{
    cl_device_type type = 0;
    ask(id, CL_DEVICE_TYPE, &type, sizeof type);
#ifdef __x86_64__
    if (type & CL_DEVICE_TYPE_CPU)
        return (__builtin_cpu_supports("avx512vnni") ? KEEL_DOT_VNNI : 0U) |
               (__builtin_cpu_supports("avx512bf16") ? KEEL_DOT_BF16 : 0U);
#endif
    return 0;
}

/* Of processors, of cl_khr_integer_dot_product, and of NVIDIA's cards by their compute capability, which
 * cl_nv_device_attribute_query tells. */
static uint32_t dots_of(cl_device_id id)
{
    enum { MAJOR_NV = 0x4000, MINOR_NV = 0x4001, HAS_DP4A = 61, HAS_MMA = 80 };
    char extensions[8192] = "";
    ask(id, CL_DEVICE_EXTENSIONS, extensions, sizeof extensions - 1);
    uint32_t dots = processor_dots(id);
    if (strstr(extensions, "cl_khr_integer_dot_product") != NULL)
        dots |= KEEL_DOT_KHR;
    if (strstr(extensions, "cl_nv_device_attribute_query") == NULL)
        return dots;
    const uint32_t capability = 10 * ask_number(id, MAJOR_NV) + ask_number(id, MINOR_NV);
    return dots | (capability >= HAS_DP4A ? KEEL_DOT_DP4A : 0U) | (capability >= HAS_MMA ? KEEL_DOT_MMA : 0U);
}

/* What the device can be used without knowing. */
static void ask_more(cl_device_id id, struct keel_device_info *info)
{
    cl_command_queue_properties queues = 0;
    cl_device_local_mem_type local = CL_GLOBAL;
    size_t items[3] = {0};
    ask(id, CL_DEVICE_QUEUE_PROPERTIES, &queues, sizeof queues);
    ask(id, CL_DEVICE_LOCAL_MEM_TYPE, &local, sizeof local);
    ask(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, items, sizeof items);
    for (int i = 0; i < 3; i++)
        info->max_items[i] = items[i] > UINT32_MAX ? UINT32_MAX : (uint32_t)items[i];
    info->queue_out_of_order = (queues & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
    info->queue_profiling = (queues & CL_QUEUE_PROFILING_ENABLE) != 0;
    info->local_dedicated = local == CL_LOCAL;
    info->unified_memory = ask_flag(id, CL_DEVICE_HOST_UNIFIED_MEMORY); /* deprecated: may be absent */
    info->error_correction = ask_flag(id, CL_DEVICE_ERROR_CORRECTION_SUPPORT);
    info->constant_bytes = ask_bytes(id, CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE);
    info->cache_bytes = ask_bytes(id, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE);
    info->cache_line_bytes = ask_number(id, CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE);
    info->lanes = lanes_of(id);
    info->max_arg_bytes = ask_size(id, CL_DEVICE_MAX_PARAMETER_SIZE);
    info->float_width = ask_number(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
    info->clock_mhz = ask_number(id, CL_DEVICE_MAX_CLOCK_FREQUENCY);
    info->timer_resolution_ns = ask_size(id, CL_DEVICE_PROFILING_TIMER_RESOLUTION);
    info->vendor_id = ask_number(id, CL_DEVICE_VENDOR_ID);
    info->numerics = numerics_of(id);
    info->dots = dots_of(id);
    info->memory_banks = 1;
}

/* Numbers of the extensions, which old headers do not have: cl_khr_device_uuid, cl_khr_pci_bus_info,
 * cl_nv_device_attribute_query, cl_amd_device_attribute_query. */
enum {
    QUERY_UUID = 0x106a,
    QUERY_PCI = 0x410f,
    QUERY_PCI_BUS_NV = 0x4008,
    QUERY_PCI_SLOT_NV = 0x4009, /* device and function: 5 and 3 bits */
    QUERY_PCI_DOMAIN_NV = 0x400a,
    QUERY_TOPOLOGY_AMD = 0x4037,
    VENDOR_NV = 0x10de,
    VENDOR_AMD = 0x1002
};
struct pci_place {
    cl_uint domain, bus, device, function;
};

static bool ask_pci(cl_device_id id, uint32_t vendor_id, struct pci_place *place)
{
    enum {
        AMD_BYTES = 24,
        AMD_IS_PCI = 1,
        AMD_BUS = 21
    }; /* a type of 32 bits; at the end bus, device, function */
    unsigned char topology[AMD_BYTES] = {0};
    cl_uint slot = 0;
    if (ask(id, QUERY_PCI, place, sizeof *place) == CL_SUCCESS)
        return true;
    *place = (struct pci_place){0};
    if (vendor_id == VENDOR_NV && ask(id, QUERY_PCI_BUS_NV, &place->bus, sizeof place->bus) == CL_SUCCESS &&
        ask(id, QUERY_PCI_SLOT_NV, &slot, sizeof slot) == CL_SUCCESS) {
        ask(id, QUERY_PCI_DOMAIN_NV, &place->domain, sizeof place->domain);
        place->device = slot >> 3;
        place->function = slot & 7;
        return true;
    }
    if (vendor_id != VENDOR_AMD || ask(id, QUERY_TOPOLOGY_AMD, topology, sizeof topology) != CL_SUCCESS ||
        topology[0] != AMD_IS_PCI)
        return false;
    *place = (struct pci_place){0, topology[AMD_BUS], topology[AMD_BUS + 1], topology[AMD_BUS + 2]};
    return true;
}

/* A UUID goes with the card; its place on the bus at least does not change with the order of devices. An
 * answer of zeros is none. */
static void ask_identity(cl_device_id id, struct keel_device_info *info)
{
    static const unsigned char none[16] = {0};
    unsigned char uuid[16] = {0};
    struct pci_place place = {0};
    if (ask(id, QUERY_UUID, uuid, sizeof uuid) == CL_SUCCESS && memcmp(uuid, none, sizeof uuid) != 0) {
        int used = snprintf(info->identity, sizeof info->identity, "uuid ");
        for (size_t i = 0; i < sizeof uuid; i++)
            used += snprintf(info->identity + used, sizeof info->identity - (size_t)used, "%02x", uuid[i]);
    } else if (ask_pci(id, info->vendor_id, &place) &&
               (place.domain | place.bus | place.device | place.function) != 0) {
        snprintf(info->identity, sizeof info->identity, "pci %04x:%02x:%02x.%x", place.domain, place.bus,
                 place.device, place.function);
    }
}

/* False when the device does not answer. */
static bool ask_facts(cl_device_id id, struct keel_device_info *info)
{
    cl_uint align_bits = 0;
    cl_ulong memory_bytes = 0, max_buffer_bytes = 0, local_bytes = 0;
    size_t group_items = 0;
    cl_int errors = ask_text(id, CL_DEVICE_NAME, info->name, sizeof info->name);
    errors |= ask(id, CL_DEVICE_MAX_COMPUTE_UNITS, &info->compute_units, sizeof info->compute_units);
    errors |= ask(id, CL_DEVICE_MEM_BASE_ADDR_ALIGN, &align_bits, sizeof align_bits);
    errors |= ask(id, CL_DEVICE_GLOBAL_MEM_SIZE, &memory_bytes, sizeof memory_bytes);
    errors |= ask(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, &max_buffer_bytes, sizeof max_buffer_bytes);
    errors |= ask(id, CL_DEVICE_LOCAL_MEM_SIZE, &local_bytes, sizeof local_bytes);
    errors |= ask(id, CL_DEVICE_MAX_WORK_GROUP_SIZE, &group_items, sizeof group_items);
    ask_names(id, info);
    ask_more(id, info);
    ask_identity(id, info);
    info->kind = kind_of(id);
    info->code_forms = code_forms_of(id);
    info->base_align_bytes = align_bits >= 8 ? align_bits / 8 : 1;
    info->memory_bytes = memory_bytes;
    info->max_buffer_bytes = max_buffer_bytes;
    info->local_bytes = local_bytes;
    info->max_group_items = group_items > UINT32_MAX ? UINT32_MAX : (uint32_t)group_items;
    return errors == CL_SUCCESS;
}

/* "" when the device can be used. */
static const char *reason_against(cl_device_id id, const struct keel_device_info *info, bool answers)
{
    cl_bool available = CL_FALSE, little = CL_FALSE;
    unsigned major = 0, minor = 0;
    ask(id, CL_DEVICE_AVAILABLE, &available, sizeof available);
    ask(id, CL_DEVICE_ENDIAN_LITTLE, &little, sizeof little);
    if (!answers)
        return "the driver does not answer queries about it";
    if (available != CL_TRUE)
        return "the driver says that it is not available";
    if (sscanf(info->version, "OpenCL %u.%u", &major, &minor) != 2 || major < 1 || (major == 1 && minor < 2))
        return "its OpenCL is older than 1.2";
    if (little != CL_TRUE)
        return "it is big-endian";
    if (info->memory_bytes == 0 || info->max_buffer_bytes == 0 || info->max_group_items == 0)
        return "it reports no memory or no work-items";
    return "";
}

void keel_opencl_add_failure(struct keel_candidate *out, uint32_t capacity, uint32_t *count,
                             const char *platform, const char *reason)
{
    if (*count == capacity)
        return;
    struct keel_device_info *info = &out[(*count)++].info;
    *info = (struct keel_device_info){.kind = KEEL_DEVICE_ACCELERATOR};
    snprintf(info->platform, sizeof info->platform, "%s", platform);
    snprintf(info->passed_over, sizeof info->passed_over, "%s", reason);
    keep_printable(info->platform);
    keep_printable(info->passed_over);
}

/* How many devices already bear this short name: two platforms may share one. */
static uint32_t next_index(const struct keel_candidate *out, uint32_t count, const char *name)
{
    uint32_t index = 0;
    size_t length = strlen(name);
    for (uint32_t i = 0; i < count; i++)
        index += strncmp(out[i].info.selector, name, length) == 0 && out[i].info.selector[length] == ':';
    return index;
}

static void add_platform(cl_platform_id platform, struct keel_candidate *out, uint32_t capacity,
                         uint32_t *count)
{
    char name[TEXT_BYTES] = "", word[32];
    if (clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL) != CL_SUCCESS) {
        keel_opencl_add_failure(out, capacity, count, "OpenCL platform", "it does not tell its name");
        return;
    }
    keep_printable(name);
    short_name(platform, name, word);
    cl_device_id ids[DEVICES_MAX];
    cl_uint found = 0;
    cl_int error = clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, DEVICES_MAX, ids, &found);
    if (error != CL_SUCCESS || found == 0) {
        char reason[KEEL_DEVICE_NAME_BYTES];
        snprintf(reason, sizeof reason, "no device (OpenCL error %d)%s", error,
                 strcmp(word, "pocl") == 0 ? "; it needs a writable directory for its cache: name one by "
                                             "POCL_CACHE_DIR or XDG_CACHE_HOME"
                                           : "");
        keel_opencl_add_failure(out, capacity, count, name, reason);
        return;
    }
    for (cl_uint i = 0; i < found && i < DEVICES_MAX && *count < capacity; i++) {
        struct keel_candidate *candidate = &out[*count];
        struct keel_device_info *info = &candidate->info;
        memset(candidate, 0, sizeof *candidate);
        snprintf(info->selector, sizeof info->selector, "%s:%u", word, next_index(out, *count, word));
        snprintf(info->platform, sizeof info->platform, "%.127s", name);
        bool answers = ask_facts(ids[i], info);
        snprintf(info->passed_over, sizeof info->passed_over, "%s", reason_against(ids[i], info, answers));
        candidate->native[0] = platform;
        candidate->native[1] = ids[i];
        (*count)++;
    }
}

void keel_opencl_discover(struct keel_candidate *out, uint32_t capacity, uint32_t *count)
{
    /* PoCL 3.1 learns the processors from sysfs, and aborts the process where there is none (a bare chroot).
     */
    if (!keel_path_exists("/sys/devices/system/cpu")) {
        keel_opencl_add_failure(out, capacity, count, "OpenCL",
                                "not asked: /sys is not mounted; run mount -t sysfs sysfs /sys");
        return;
    }
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_uint found = 0;
    cl_int error = clGetPlatformIDs(PLATFORMS_MAX, platforms, &found);
    for (cl_uint i = 0; error == CL_SUCCESS && i < found && i < PLATFORMS_MAX; i++)
        add_platform(platforms[i], out, capacity, count);
    if (error != CL_SUCCESS || found == 0)
        keel_opencl_add_failure(out, capacity, count, "OpenCL",
                                "no driver; install pocl-opencl-icd, or the driver of the board");
    keel_opencl_report_unloaded(out, capacity, count);
}
