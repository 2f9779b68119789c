/* layer_identity.c - what the board says of itself: platform, devices, facts.
 *
 * One platform is shown, the one that EMULATED_OVER names. A fact is what EMULATED_INFO says, else what the
 * board's table says, else what the driver says. */
#include "layer.h"
#include <CL/cl_icd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PLATFORMS_MAX = 16, DEVICES_MAX = 32, TEXT_BYTES = 1024 };

enum fact_kind { FACT_TEXT, FACT_ULONG, FACT_UINT, FACT_SIZE, FACT_SIZES, FACT_BOOL, FACT_BYTES };

struct fact {
    const char *key; /* in EMULATED_INFO */
    cl_device_info param;
    enum fact_kind kind;
    const char *fpga, *npu; /* NULL: what the driver says. %s in a text is what the driver says */
};

static const struct fact facts[] = {
    {"name", CL_DEVICE_NAME, FACT_TEXT, "Emulated FPGA on %s", "Emulated NPU on %s"},
    {"vendor", CL_DEVICE_VENDOR, FACT_TEXT, "Emulated Boards", "Emulated Boards"},
    {"vendor_id", CL_DEVICE_VENDOR_ID, FACT_UINT, "0xe0001", "0xe0002"},
    {"version", CL_DEVICE_VERSION, FACT_TEXT, "OpenCL 1.2 emulated", "OpenCL 1.2 emulated"},
    {"driver", CL_DRIVER_VERSION, FACT_TEXT, "1.0 over %s", "1.0 over %s"},
    {"profile", CL_DEVICE_PROFILE, FACT_TEXT, "EMBEDDED_PROFILE", NULL},
    {"extensions", CL_DEVICE_EXTENSIONS, FACT_TEXT, "cl_khr_byte_addressable_store", NULL},
    {"type", CL_DEVICE_TYPE, FACT_ULONG, "8", "8"},
    {"compiler", CL_DEVICE_COMPILER_AVAILABLE, FACT_BOOL, "0", "0"},
    {"linker", CL_DEVICE_LINKER_AVAILABLE, FACT_BOOL, "0", "0"},
    {"unified", CL_DEVICE_HOST_UNIFIED_MEMORY, FACT_BOOL, "0", "0"},
    {"available", CL_DEVICE_AVAILABLE, FACT_BOOL, NULL, NULL},
    {"little_endian", CL_DEVICE_ENDIAN_LITTLE, FACT_BOOL, NULL, NULL},
    {"align_bits", CL_DEVICE_MEM_BASE_ADDR_ALIGN, FACT_UINT, "32768", "2048"},
    {"uuid", CL_DEVICE_UUID_KHR, FACT_BYTES, NULL, NULL},
    {"pci", CL_DEVICE_PCI_BUS_INFO_KHR, FACT_BYTES, NULL, NULL},
    {"pci_bus_nv", 0x4008, FACT_UINT, NULL, NULL},
    {"pci_slot_nv", 0x4009, FACT_UINT, NULL, NULL},
    {"topology_amd", CL_DEVICE_TOPOLOGY_AMD, FACT_BYTES, NULL, NULL},
    {"units", CL_DEVICE_MAX_COMPUTE_UNITS, FACT_UINT, NULL, NULL},
    {"group_items", CL_DEVICE_MAX_WORK_GROUP_SIZE, FACT_SIZE, NULL, NULL},
    {"item_sizes", CL_DEVICE_MAX_WORK_ITEM_SIZES, FACT_SIZES, NULL, NULL}, /* of each dimension */
    {"local", CL_DEVICE_LOCAL_MEM_SIZE, FACT_ULONG, NULL, NULL},
    {"local_type", CL_DEVICE_LOCAL_MEM_TYPE, FACT_UINT, NULL, NULL},
    {"lanes", CL_DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE, FACT_SIZE, NULL, NULL},
    {"private", CL_KERNEL_PRIVATE_MEM_SIZE, FACT_ULONG, NULL, NULL},      /* of each kernel */
    {"times_per_us", CL_PROFILING_COMMAND_START, FACT_ULONG, NULL, NULL}, /* 1000 by the standard */
    {"memory", CL_DEVICE_GLOBAL_MEM_SIZE, FACT_ULONG, NULL, NULL},
    {"buffer", CL_DEVICE_MAX_MEM_ALLOC_SIZE, FACT_ULONG, NULL, NULL},
    /* Round to nearest, infinities and not-a-numbers; neither denormals nor fma. */
    {"single_fp", CL_DEVICE_SINGLE_FP_CONFIG, FACT_ULONG, "6", NULL},
    {"double_fp", CL_DEVICE_DOUBLE_FP_CONFIG, FACT_ULONG, "0", "0"},
};
enum { FACTS = sizeof facts / sizeof facts[0] };

/* ---- answers in the manner of OpenCL ---- */

cl_int layer_answer(const void *data, size_t bytes, size_t value_bytes, void *value, size_t *value_bytes_ret)
{
    if (value != NULL && value_bytes < bytes)
        return CL_INVALID_VALUE;
    if (value != NULL)
        memcpy(value, data, bytes);
    if (value_bytes_ret != NULL)
        *value_bytes_ret = bytes;
    return CL_SUCCESS;
}

static cl_int answer_text(const char *text, size_t value_bytes, void *value, size_t *value_bytes_ret)
{
    return layer_answer(text, strlen(text) + 1, value_bytes, value, value_bytes_ret);
}

static cl_int answer_number(enum fact_kind kind, uint64_t number, size_t value_bytes, void *value,
                            size_t *value_bytes_ret)
{
    cl_uint narrow = (cl_uint)number; /* also cl_bool */
    size_t size = (size_t)number, sizes[] = {size, size, size};
    if (kind == FACT_UINT || kind == FACT_BOOL)
        return layer_answer(&narrow, sizeof narrow, value_bytes, value, value_bytes_ret);
    if (kind == FACT_SIZE)
        return layer_answer(&size, sizeof size, value_bytes, value, value_bytes_ret);
    if (kind == FACT_SIZES)
        return layer_answer(sizes, sizeof sizes, value_bytes, value, value_bytes_ret);
    return layer_answer(&number, sizeof number, value_bytes, value, value_bytes_ret);
}

/* ---- what the user says: "key=value;key=value" ---- */

static const char *said(const char *key, size_t *length)
{
    size_t key_length = strlen(key);
    for (const char *at = layer_settings.info; *at != '\0'; at += *at == ';') {
        size_t part = strcspn(at, ";");
        if (part > key_length && memcmp(at, key, key_length) == 0 && at[key_length] == '=') {
            *length = part - key_length - 1;
            return at + key_length + 1;
        }
        at += part;
    }
    return NULL;
}

void layer_info_check(void)
{
    for (const char *at = layer_settings.info; *at != '\0'; at += *at == ';') {
        size_t length = strcspn(at, "=;");
        bool known = false;
        for (int i = 0; i < FACTS && !known; i++)
            known = strlen(facts[i].key) == length && memcmp(facts[i].key, at, length) == 0;
        if (!known || at[length] != '=')
            layer_refuse("EMULATED_INFO", at);
        at += strcspn(at, ";");
    }
}

/* ---- devices ---- */

static cl_device_id devices[DEVICES_MAX];
static cl_uint device_count;

uint64_t layer_device_index(cl_device_id device)
{
    for (cl_uint i = 0; i < device_count; i++)
        if (devices[i] == device)
            return i;
    return 0;
}

/* Two hexadecimal digits for each byte. */
static cl_int answer_bytes(const char *text, size_t value_bytes, void *value, size_t *value_bytes_ret)
{
    unsigned char bytes[64];
    size_t count = 0;
    while (count < sizeof bytes && sscanf(text + 2 * count, "%2hhx", &bytes[count]) == 1)
        count++;
    return layer_answer(bytes, count, value_bytes, value, value_bytes_ret);
}

/* %s in a text stands for what the driver says. */
static cl_int answer_fact(cl_device_id device, const struct fact *fact, const char *text, size_t value_bytes,
                          void *value, size_t *value_bytes_ret)
{
    if (fact->kind == FACT_BYTES)
        return answer_bytes(text, value_bytes, value, value_bytes_ret);
    if (fact->kind != FACT_TEXT)
        return answer_number(fact->kind, layer_bytes(text), value_bytes, value, value_bytes_ret);
    char own[TEXT_BYTES] = "", all[2 * TEXT_BYTES];
    const char *place = strstr(text, "%s");
    if (place == NULL)
        return answer_text(text, value_bytes, value, value_bytes_ret);
    layer_next->clGetDeviceInfo(device, fact->param, sizeof own - 1, own, NULL);
    snprintf(all, sizeof all, "%.*s%s%s", (int)(place - text), text, own, place + 2);
    return answer_text(all, value_bytes, value, value_bytes_ret);
}

static cl_int CL_API_CALL get_device_info(cl_device_id device, cl_device_info param, size_t value_bytes,
                                          void *value, size_t *value_bytes_ret)
{
    const struct layer_settings *own = &layer_settings;
    if (param == CL_DEVICE_BUILT_IN_KERNELS && own->board == BOARD_NPU) {
        char *names = layer_built_in_names(device);
        cl_int error = answer_text(names != NULL ? names : "", value_bytes, value, value_bytes_ret);
        free(names);
        return error;
    }
    for (int i = 0; i < FACTS; i++) {
        const struct fact *fact = &facts[i];
        if (fact->param != param)
            continue;
        char text[TEXT_BYTES];
        size_t length = 0;
        const char *word = said(fact->key, &length), *table = own->board == BOARD_FPGA  ? fact->fpga
                                                              : own->board == BOARD_NPU ? fact->npu
                                                                                        : NULL;
        if (word != NULL)
            snprintf(text, sizeof text, "%.*s", (int)length, word);
        if (word != NULL || table != NULL)
            return answer_fact(device, fact, word != NULL ? text : table, value_bytes, value,
                               value_bytes_ret);
    }
    if (param == CL_DEVICE_GLOBAL_MEM_SIZE && own->memory_bytes > 0)
        return answer_number(FACT_ULONG, own->memory_bytes, value_bytes, value, value_bytes_ret);
    if (param == CL_DEVICE_MAX_MEM_ALLOC_SIZE && own->max_buffer_bytes > 0)
        return answer_number(FACT_ULONG, own->max_buffer_bytes, value_bytes, value, value_bytes_ret);
    return layer_next->clGetDeviceInfo(device, param, value_bytes, value, value_bytes_ret);
}

static cl_int CL_API_CALL get_device_ids(cl_platform_id platform, cl_device_type type, cl_uint capacity,
                                         cl_device_id *out, cl_uint *out_count)
{
    cl_device_id found[DEVICES_MAX];
    cl_uint count = 0;
    cl_int error = layer_next->clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, DEVICES_MAX, found, &count);
    if (error != CL_SUCCESS)
        return error;
    layer_lock();
    device_count = count;
    memcpy(devices, found, count * sizeof(cl_device_id));
    layer_unlock();
    cl_uint shown = 0;
    for (cl_uint i = 0; i < count; i++) {
        cl_device_type own = 0;
        get_device_info(found[i], CL_DEVICE_TYPE, sizeof own, &own, NULL);
        if (type != CL_DEVICE_TYPE_DEFAULT && (own & type) == 0)
            continue;
        if (out != NULL && shown < capacity)
            out[shown] = found[i];
        shown++;
    }
    if (out_count != NULL)
        *out_count = shown;
    return shown > 0 ? CL_SUCCESS : CL_DEVICE_NOT_FOUND;
}

/* ---- the platform ---- */

static bool is_wanted(cl_platform_id platform)
{
    char name[TEXT_BYTES] = "";
    layer_next->clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
    const char *over =
        strcasecmp(layer_settings.over, "pocl") == 0 ? "Portable Computing" : layer_settings.over;
    return strcasestr(name, over) != NULL;
}

static cl_int CL_API_CALL get_platform_ids(cl_uint capacity, cl_platform_id *out, cl_uint *out_count)
{
    cl_platform_id all[PLATFORMS_MAX];
    cl_uint count = 0, shown = 0;
    cl_int error = layer_next->clGetPlatformIDs(PLATFORMS_MAX, all, &count);
    for (cl_uint i = 0; error == CL_SUCCESS && i < count && i < PLATFORMS_MAX; i++) {
        if (!is_wanted(all[i]))
            continue;
        if (out != NULL && shown < capacity)
            out[shown] = all[i];
        shown++;
    }
    if (out_count != NULL)
        *out_count = shown;
    return error;
}

static cl_int CL_API_CALL get_platform_info(cl_platform_id platform, cl_platform_info param,
                                            size_t value_bytes, void *value, size_t *value_bytes_ret)
{
    const char *text = NULL;
    if (layer_settings.board != BOARD_PLAIN)
        text = param == CL_PLATFORM_NAME                                            ? "Emulated Boards"
               : param == CL_PLATFORM_VENDOR                                        ? "Emulated Boards"
               : param == CL_PLATFORM_VERSION                                       ? "OpenCL 1.2 emulated"
               : param == CL_PLATFORM_ICD_SUFFIX_KHR                                ? "EMULATED"
               : param == CL_PLATFORM_PROFILE && layer_settings.board == BOARD_FPGA ? "EMBEDDED_PROFILE"
                                                                                    : NULL;
    if (text != NULL)
        return answer_text(text, value_bytes, value, value_bytes_ret);
    return layer_next->clGetPlatformInfo(platform, param, value_bytes, value, value_bytes_ret);
}

static cl_int CL_API_CALL get_work_group_info(cl_kernel kernel, cl_device_id device,
                                              cl_kernel_work_group_info param, size_t value_bytes,
                                              void *value, size_t *value_bytes_ret)
{
    size_t length;
    const char *text = param == CL_KERNEL_PRIVATE_MEM_SIZE ? said("private", &length) : NULL;
    if (text != NULL)
        return answer_number(FACT_ULONG, strtoull(text, NULL, 10), value_bytes, value, value_bytes_ret);
    return layer_next->clGetKernelWorkGroupInfo(kernel, device, param, value_bytes, value, value_bytes_ret);
}

/* When a command began or ended, in the unit that was said. */
static cl_int CL_API_CALL get_event_times(cl_event event, cl_profiling_info param, size_t value_bytes,
                                          void *value, size_t *value_bytes_ret)
{
    enum { NS_PER_US = 1000 };
    size_t length;
    const char *text = said("times_per_us", &length);
    cl_ulong ns = 0;
    if (text == NULL)
        return layer_next->clGetEventProfilingInfo(event, param, value_bytes, value, value_bytes_ret);
    const cl_int error = layer_next->clGetEventProfilingInfo(event, param, sizeof ns, &ns, NULL);
    const uint64_t per_us = strtoull(text, NULL, 10);
    return error != CL_SUCCESS
               ? error
               : answer_number(FACT_ULONG, ns / NS_PER_US * per_us + ns % NS_PER_US * per_us / NS_PER_US,
                               value_bytes, value, value_bytes_ret);
}

void layer_identity_install(struct _cl_icd_dispatch *table)
{
    table->clGetPlatformIDs = get_platform_ids;
    table->clGetPlatformInfo = get_platform_info;
    table->clGetDeviceIDs = get_device_ids;
    table->clGetDeviceInfo = get_device_info;
    table->clGetKernelWorkGroupInfo = get_work_group_info;
    table->clGetEventProfilingInfo = get_event_times;
}
