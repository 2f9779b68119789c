/* kernels_internal.h - what the files of this room share: the table of modules, and how an operation
 * appends its launches.
 *
 * To add an operation: NAME.cl (device source), NAME_host.c (the same kernels in C and the
 * keel_module that joins the two), NAME.c (descriptor -> launches), one line in KEEL_MODULE_TABLE,
 * what is put before its .cl in sources.mk, if anything. */
#ifndef KEEL_KERNELS_INTERNAL_H
#define KEEL_KERNELS_INTERNAL_H

#include <keel/kernels.h>
#include <keel/memory.h>

/* One module per line: the name of its .cl file, and of its keel_module, keel_module_<name>. */
#define KEEL_MODULE_TABLE(X)                                                                                 \
    X(elementwise)                                                                                           \
    X(gemm)                                                                                                  \
    X(quantised)                                                                                             \
    X(attention)                                                                                             \
    X(rotary)                                                                                                \
    X(dropout)                                                                                               \
    X(normal)                                                                                                \
    X(digest)                                                                                                \
    X(layernorm)                                                                                             \
    X(optimizer)                                                                                             \
    X(cast)                                                                                                  \
    X(embedding)                                                                                             \
    X(cross_entropy)                                                                                         \
    X(loss)                                                                                                  \
    X(shape)                                                                                                 \
    X(row)                                                                                                   \
    X(conv_tiles)                                                                                            \
    X(conv)                                                                                                  \
    X(batch_norm)                                                                                            \
    X(pool)                                                                                                  \
    X(table)                                                                                                 \
    X(expert)                                                                                                \
    X(decode)                                                                                                \
    X(tensor)
/* Those that only native kernels have: their results are not canonical. */
#define KEEL_NATIVE_MODULE_TABLE(X) X(winograd)
/* Those of the exact classes and of bf16 alone. */
#define KEEL_PLANES_MODULE_TABLE(X) X(planes) X(attention_class)

enum keel_module_id {
#define KEEL_MODULE_ENUM(name) KEEL_MODULE_##name,
    KEEL_MODULE_TABLE(KEEL_MODULE_ENUM) KEEL_NATIVE_MODULE_TABLE(KEEL_MODULE_ENUM)
        KEEL_PLANES_MODULE_TABLE(KEEL_MODULE_ENUM)
#undef KEEL_MODULE_ENUM
            KEEL_MODULE_COUNT,
    KEEL_MODULE_CANONICAL_COUNT = KEEL_MODULE_winograd /* those of one class come after them */
};
#define KEEL_MODULE_EXTERN(name) extern const struct keel_module keel_module_##name;
KEEL_MODULE_TABLE(KEEL_MODULE_EXTERN)
KEEL_NATIVE_MODULE_TABLE(KEEL_MODULE_EXTERN)
KEEL_PLANES_MODULE_TABLE(KEEL_MODULE_EXTERN)
#undef KEEL_MODULE_EXTERN

enum {
    KEEL_LANES = 16,               /* width of canonical sums and of vector code */
    KEEL_BLOCK_ELEMENTS = 4096,    /* one leaf of the tree over a whole tensor */
    KEEL_GROUP_ITEMS_MANY = 64,    /* work-items per group on devices with many narrow lanes */
    KEEL_GROUP_ITEMS_MOST = 256,   /* that share a unit of work there (canon_row.h) */
    KEEL_ITEM_ELEMENTS_WIDE = 4096 /* elements per work-item on a CPU: amortises a group's start */
};

/* The tunables, in the order of keel_tunable_get. */
enum keel_tunable_id {
    KEEL_TUNABLE_BY_LANE,
    KEEL_TUNABLE_GROUP_ITEMS,
    KEEL_TUNABLE_ITEM_ELEMENTS,
    KEEL_TUNABLE_ROW_ITEMS,
    KEEL_TUNABLE_GEMM_ITEMS,
    KEEL_TUNABLE_GEMM_ITEM_ROWS,
    KEEL_TUNABLE_GEMM_ITEM_COLUMNS,
    KEEL_TUNABLE_GEMM_ITEM_DEPTH,
    KEEL_TUNABLE_GEMM_DEPTH,
    KEEL_TUNABLE_GEMM_ROWS,
    KEEL_TUNABLE_GEMM_STRIPS,
    KEEL_TUNABLE_GEMM_PROVIDER,
    KEEL_TUNABLE_ATTENTION_ITEMS,
    KEEL_TUNABLE_ATTENTION_BLOCK,
    KEEL_TUNABLE_ATTENTION_KEPT,
    KEEL_TUNABLE_COUNT
};
enum { KEEL_BUILD_OPTIONS_BYTES = 384 };
/* Defaults of the device, then the settings; errors as keel_kernels_create_with. */
enum keel_status keel_tunables_apply(const struct keel_device_info *info, const struct keel_setting *settings,
                                     uint32_t setting_count, uint32_t values[KEEL_TUNABLE_COUNT]);
/* Floats of the local memory that a product may use: more than its tiles take, where there is more. */
uint32_t keel_gemm_arena_floats(const struct keel_device_info *info,
                                const uint32_t values[KEEL_TUNABLE_COUNT]);
/* The tiles of C that groups of many work-items have: the shapes of gemm_lanes.h, of which the last takes
 * slices. */
enum { KEEL_GEMM_SHAPE_OWN, KEEL_GEMM_SHAPE_SMALL, KEEL_GEMM_SHAPE_SLICED, KEEL_GEMM_SHAPES };
struct keel_gemm_shape {
    uint32_t rows, columns, items, depth;
};
struct keel_gemm_shape keel_gemm_shape(const uint32_t values[KEEL_TUNABLE_COUNT], uint32_t shape);
/* What the compiler is told for a module. */
void keel_tunables_build_options(const struct keel_device_info *info, enum keel_module_id module,
                                 const uint32_t values[KEEL_TUNABLE_COUNT],
                                 char out[KEEL_BUILD_OPTIONS_BYTES]);

/* How products with planes are computed: by groups of so many work-items, dots by `dot`, a
 * bit of enum keel_dots, or 0: plain C. Facts of the device say; no bit depends on it. */
struct keel_planes_way {
    uint32_t items, dot;
};
/* Digits of a product of a class, or of these kernels, whose `planes` are given: 1, it is of bf16; 0,
 * canonical. */
uint32_t keel_planes_class_digits(enum keel_class numerics);
uint32_t keel_planes_digits(const struct keel_kernels *kernels);
struct keel_planes_way keel_planes_way(const struct keel_device_info *info, enum keel_class numerics,
                                       const uint32_t values[KEEL_TUNABLE_COUNT]);

/* A random tensor has one Philox counter word for every four elements. */
#define KEEL_RANDOM_ELEMENTS_MAX (UINT64_C(1) << 34)

struct keel_clblast;
/* One module, built for the device. */
struct keel_built_module {
    const struct keel_module *module;
    struct keel_program *program;
    struct keel_kernel **kernels; /* module->kernel_count, in the order of module->kernels */
    char options[KEEL_BUILD_OPTIONS_BYTES];
};

struct keel_kernels {
    struct keel_device *device;   /* borrowed */
    struct keel_device_info info; /* of the device that they are for */
    enum keel_class numerics;
    bool chosen; /* tunables are not all the defaults, and are those of the open device */
    struct keel_planes_way planes;
    uint64_t provider_digest;     /* of CLBlast's parameters; 0: none were given */
    struct keel_clblast *clblast; /* NULL: products are our own */
    uint32_t tuned[KEEL_TUNABLE_COUNT];
    struct keel_built_module modules[KEEL_MODULE_COUNT];
};

/* The device that the kernels were built for, and its facts. */
struct keel_device *keel_kernels_device(const struct keel_kernels *kernels);
const struct keel_device_info *keel_kernels_info(const struct keel_kernels *kernels);
/* NULL where products are our own. */
const struct keel_clblast *keel_kernels_clblast(const struct keel_kernels *kernels);
const char *keel_kernels_module_name(enum keel_module_id module);
/* The module of part `index` of these kernels. */
enum keel_module_id keel_kernels_part_module(const struct keel_kernels *kernels, uint32_t index);
/* How much local memory a group has, in three sizes: LARGE for arrays of some 200 KiB (caches of a CPU,
 * mostly), TINY below the 32 KiB that OpenCL asks of a full profile. The .cl files see KEEL_LARGE_LOCAL and
 * KEEL_TINY_LOCAL. Changes sizes of blocks, never bits. The host device is LARGE. */
enum keel_local_size { KEEL_LOCAL_TINY, KEEL_LOCAL_SMALL, KEEL_LOCAL_LARGE, KEEL_LOCAL_SIZES };
enum { KEEL_LOCAL_SMALL_BYTES = 32768, KEEL_LOCAL_LARGE_BYTES = 262144 };
enum keel_local_size keel_device_local_size(const struct keel_device_info *info);

/* The kernel object `name` of a module; INTERNAL when there is none (a bug of this room). */
enum keel_status keel_kernels_find(struct keel_kernels *kernels, enum keel_module_id module, const char *name,
                                   struct keel_kernel **out);

/* Append one launch; args are copied. NO_MEMORY. */
enum keel_status keel_launch_list_append(struct keel_launch_list *list, struct keel_kernel *kernel,
                                         const struct keel_range *range, const struct keel_arg *args,
                                         uint32_t arg_count);
/* find + append. */
enum keel_status keel_kernels_launch(struct keel_kernels *kernels, struct keel_launch_list *list,
                                     enum keel_module_id module, const char *name,
                                     const struct keel_range *range, const struct keel_arg *args,
                                     uint32_t arg_count);

/* A one-dimensional range of at least `items` work-items, in groups of launch.group_items. Kernels check
 * their index: the range may be larger. */
struct keel_range keel_kernels_range(const struct keel_kernels *kernels, uint64_t items);
/* How many consecutive elements (a multiple of KEEL_LANES) one work-item of an element-wise kernel takes. */
uint32_t keel_kernels_item_elements(const struct keel_kernels *kernels);

/* How many rows of n one work-item takes, where a row is a unit of work: so many that they have about as many
 * elements. */
uint32_t keel_kernels_item_rows(const struct keel_kernels *kernels, uint32_t n);

/* A range of `rows` rows at least, each of launch.row_items work-items, in groups of launch.group_items. */
struct keel_range keel_kernels_rows(const struct keel_kernels *kernels, uint64_t rows);
/* The same, but a group has one row where rows are shared. */
struct keel_range keel_kernels_lone_rows(const struct keel_kernels *kernels, uint64_t rows);
/* A range of a group for each of `units`, of KEEL_GROUP_ITEMS_MOST work-items or as many as the device's
 * groups hold, a power of two; of a work-item for each, in groups of launch.group_items, where rows are not
 * shared. */
struct keel_range keel_kernels_groups(const struct keel_kernels *kernels, uint64_t units);
/* Whether sixteen work-items share a row, and a group what one work-item does elsewhere: launch.row_items. */
bool keel_kernels_share_rows(const struct keel_kernels *kernels);

/* Launch a kernel over `count` elements, keel_kernels_item_elements (its last argument) to a work-item. */
enum keel_status keel_kernels_launch_flat(struct keel_kernels *kernels, struct keel_launch_list *list,
                                          enum keel_module_id module, const char *name, uint64_t count,
                                          const struct keel_arg *args, uint32_t arg_count);

/* Launch a kernel over `rows`, item_rows of them, its last argument, to a work-item. */
enum keel_status keel_kernels_launch_rows(struct keel_kernels *kernels, struct keel_launch_list *list,
                                          enum keel_module_id module, const char *name, uint64_t rows,
                                          const struct keel_arg *args, uint32_t arg_count);

/* Sizes of what a caller describes. A product or a sum that 64 bits do not hold is UINT64_MAX, and stays so
 * through further factors above 0: no buffer has that many bytes, and keel_check_buffer refuses it. */
uint64_t keel_product(const uint64_t *factors, size_t count);
#define KEEL_BYTES(...)                                                                                      \
    keel_product((const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
static inline uint64_t keel_plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* How many of b it takes to hold a. */
static inline uint32_t divide_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* An operand of an operation, by the name that its descriptor gives it. IN_PLACE: one that is written may be
 * one that is read, element for element. OPTIONAL: it may be absent, that is NULL. */
enum { KEEL_READ = 0, KEEL_WRITTEN = 1, KEEL_IN_PLACE = 2, KEEL_OPTIONAL = 4 };
struct keel_op_operand {
    const char *name;
    struct keel_buffer *buffer;
    uint64_t bytes; /* that it holds, at least */
    int use;
};
/* INVALID, naming the operation and the operand, unless each is there and large enough; and, naming both,
 * when one that is written overlaps another, but not when both are IN_PLACE, begin at one place, and one is
 * only read. Every operation lists its operands once, in one such table. */
enum keel_status keel_check_operands(const char *op, const struct keel_op_operand *operands, uint32_t count);
#define KEEL_CHECK_OPERANDS(op, ...)                                                                         \
    keel_check_operands(op, (const struct keel_op_operand[]){__VA_ARGS__},                                   \
                        sizeof((const struct keel_op_operand[]){__VA_ARGS__}) /                              \
                            sizeof(struct keel_op_operand))
/* The same of one buffer's size alone. */
enum keel_status keel_check_buffer(const char *op, const char *what, const struct keel_buffer *buffer,
                                   uint64_t bytes);

/* Sets row and stride of a slice of `count` elements that has none, and checks that all its numbers are below
 * `limit`. */
enum keel_status keel_check_random(const char *op, uint64_t count, uint64_t limit,
                                   struct keel_random_slice *slice);

/* INVALID unless slices are none, or some of a dimension whose elements are `size`; with `node`, those of one
 * node of the tree over slices. */
enum keel_status keel_check_slices(const char *op, const char *what, const struct keel_slices *slices,
                                   uint64_t size, bool node);
/* Three arguments of a kernel: first, count and of in one word; units; unit. */
static inline uint32_t keel_pack_slices(const struct keel_slices *slices)
{
    return slices->first << 16 | slices->of << 8 | slices->count;
}

/* The digest of `count` words, the first of which is element `start` of those whose numbers are given: row is
 * above 0. */
uint64_t keel_digest_rows(const void *words, uint64_t count, uint64_t start,
                          const struct keel_random_slice *numbers);

/* INVALID when a number of a descriptor is infinite or NaN. */
enum keel_status keel_check_finite(const char *op, const char *what, float value);

/* ---- kernels on the host ----------------------------------------------------------------------------- */

/* What one is given: its arguments as the .cl file declares them, buffers and addresses of numbers; and the
 * range, which most do not look at, since they loop over all that a device gives to many work-items. */
#define KEEL_HOST_ARGUMENTS void *const *arguments, __attribute__((unused)) const struct keel_range *range
static inline uint32_t u32_at(void *const *arguments, int index)
{
    return *(const uint32_t *)arguments[index];
}
static inline uint64_t u64_at(void *const *arguments, int index)
{
    return *(const uint64_t *)arguments[index];
}
static inline float f32_at(void *const *arguments, int index)
{
    return *(const float *)arguments[index];
}

/* A module: the name of its .cl file, that file's text, and its kernels with their form on the host. */
#define KEEL_MODULE(module_name, text, table)                                                                \
    {                                                                                                        \
        .name = (module_name), .packed = &(text), .kernels = (table),                                        \
        .kernel_count = sizeof(table) / sizeof(table)[0]                                                     \
    }

/* ---- arguments of launches ---------------------------------------------------------------------------- */

static inline struct keel_arg keel_arg_buffer(struct keel_buffer *buffer)
{
    return (struct keel_arg){.kind = KEEL_ARG_BUFFER, .as.buffer = buffer};
}
static inline struct keel_arg keel_arg_u32(uint32_t value)
{
    return (struct keel_arg){.kind = KEEL_ARG_U32, .as.u32 = value};
}
static inline struct keel_arg keel_arg_u64(uint64_t value)
{
    return (struct keel_arg){.kind = KEEL_ARG_U64, .as.u64 = value};
}
static inline struct keel_arg keel_arg_f32(float value)
{
    return (struct keel_arg){.kind = KEEL_ARG_F32, .as.f32 = value};
}
/* A buffer that may be absent; then `other`, which the kernel is told not to look at. */
static inline struct keel_arg keel_arg_either(struct keel_buffer *buffer, struct keel_buffer *other)
{
    return keel_arg_buffer(buffer != NULL ? buffer : other);
}
/* Length of a local array of arguments, as arg_count. */
#define KEEL_ARG_COUNT(args) ((uint32_t)(sizeof(args) / sizeof((args)[0])))
/* The last two parameters of what launches: the arguments in the order of the .cl file, and how many. */
#define KEEL_ARGS(...)                                                                                       \
    (const struct keel_arg[]){__VA_ARGS__}, KEEL_ARG_COUNT(((const struct keel_arg[]){__VA_ARGS__}))

#endif
