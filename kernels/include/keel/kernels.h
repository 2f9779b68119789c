/* kernels.h - the operations, as lists of launches.
 *
 * Each operation has a descriptor (shapes, buffers, attributes) and a function that appends the
 * launches which compute it to a list. A list is built once and replayed many times, with no
 * allocation: what changes from step to step lies in a small control buffer that kernels read.
 *
 * Arithmetic is canonical (P1 in README.md): float32, FP_CONTRACT OFF, explicit fma, contraction
 * over k strictly ascending, fixed-shape trees, own exp/log/tanh/rsqrt (canon_math.h), no float
 * atomics: so that the bits are the same on every device, at every tiling. The exact order of each
 * operation is stated at its descriptor, and each .cl file has a host reference in C beside it, with
 * the same arguments, that the `host` device runs. The guarantee covers finite results and infinities. A
 * result that is NaN is NaN on every device, but its sign and payload depend on the processor (IEEE
 * 754-2019, 6.2 leaves them open): making them equal would cost a select in each kernel, for values that end
 * the step anyway. Compare NaNs with isnan, not by bits; a digest over a NaN differs between devices.
 *
 * All tensors are dense row-major float32 unless said otherwise; token ids are int32. Buffers are
 * borrowed: they must outlive the list. Building lists is not thread-safe per keel_kernels object.
 * Errors: INVALID names the operation and the shapes: a size overflows 64 bits, an output overlaps an operand
 * that the descriptor does not let it alias, or epsilon or scale is not finite; correct the descriptor.
 * NO_MEMORY. Errors of the device are passed on. */
#ifndef KEEL_KERNELS_H
#define KEEL_KERNELS_H

#include <assert.h>
#include <keel/activation_table.h>
#include <keel/api.h>
#include <keel/device.h>

KEEL_API_BEGIN

/* Classes of numerics: which bits products have (README.md, "Classes of numerics"). Canonical, exact8x2,
 * exact8x3 and bf16 are the same on every device; native ones within one type of board. */
enum keel_class { KEEL_CANONICAL, KEEL_NATIVE, KEEL_EXACT8X2, KEEL_EXACT8X3, KEEL_CLASS_BF16, KEEL_CLASSES };
/* "exact8x2". Any thread. */
const char *keel_class_name(enum keel_class numerics);
/* The class of that name, KEEL_CLASSES if there is none. */
enum keel_class keel_class_find(const char *name);

struct keel_kernels; /* the built programs of one device, and which variant it uses for each op */

/* Build all modules for a device; the first build on a device compiles (seconds), later ones come
 * from the driver's cache. The device outlives the kernels. */
enum keel_status keel_kernels_create(struct keel_device *device, struct keel_kernels **out);

/* Tunables choose how a kernel is compiled and how its work is divided. They never change a result (except
 * `native` ones of native kernels, within the tolerance stated there). Each device has defaults; `keel board
 * tune` searches for better ones. index < keel_tunable_count(). */
struct keel_tunable {
    const char *name;       /* "gemm.depth" */
    const char *changes;    /* one line of help */
    const uint32_t *values; /* the allowed values, ascending */
    uint32_t value_count;
    bool native; /* only for native kernels, where it may change bits within the tolerance */
};
uint32_t keel_tunable_count(void);
struct keel_tunable keel_tunable_get(uint32_t index);

struct keel_setting {
    const char *name; /* of a tunable */
    uint32_t value;
};

/* What a library that provides operations was tuned to on a device: all parameters of one of its kernels. */
struct keel_provider_parameters {
    const char *kernel;       /* "Xgemm" */
    const char *const *names; /* "KWG", ... */
    const size_t *values;
    uint32_t count;
};

/* All zero: as keel_kernels_create. */
struct keel_kernels_options {
    enum keel_class numerics; /* native: where a variant of an operation is faster on this device, take it:
                                 within the tolerance that is stated where it is made. exact8x2, exact8x3,
                                 bf16: products that have planes are of that class. Else all is canonical. */
    const struct keel_setting *settings; /* instead of the defaults; borrowed for the call. INVALID names what
                                            is no tunable, or none of its values; LIMIT what the device has
                                            not. */
    uint32_t setting_count;
    const struct keel_device_info *target; /* NULL, or cross-compilation: build options and group sizes are
                                              those of this device, and the open one only compiles. Copied. */
    const struct keel_provider_parameters
        *provider_parameters; /* CLBlast's, for fp32, where it computes products (gemm.provider); borrowed for
                                 the call. They hold for the device and the process, until they are given
                                 anew. INVALID names what it refuses. */
    uint32_t provider_parameter_count;
    const char *provider_file; /* the file they were read from, for error messages, or NULL */
    bool only_artifacts;       /* compile nothing on the device: CLBlast is then not used */
};
enum keel_status keel_kernels_create_with(struct keel_device *device,
                                          const struct keel_kernels_options *options,
                                          struct keel_kernels **out);
/* Whether the kernels fit a device with these properties: its local memory must hold the tiles of the given
 * settings; the defaults adapt to it, and 16 KiB are enough. Pure; any thread. LIMIT names the setting to
 * lower, INVALID an unknown one. */
enum keel_status keel_kernels_check(const struct keel_device_info *info, const struct keel_setting *settings,
                                    uint32_t setting_count);
void keel_kernels_destroy(struct keel_kernels *kernels);
enum keel_class keel_kernels_class(const struct keel_kernels *kernels);
/* Who computes products of native kernels: "Keel", or "CLBlast" with the digest of the parameters that it was
 * given. Native runs on boards of one kind have the same bits where this is the same. */
enum { KEEL_PROVIDER_TEXT_BYTES = 64 };
void keel_kernels_provider(const struct keel_kernels *kernels, char out[KEEL_PROVIDER_TEXT_BYTES]);
/* The value of a tunable that these kernels were built with. */
uint32_t keel_kernels_setting(const struct keel_kernels *kernels, uint32_t tunable_index);

/* The built programs, for `keel board build`, which stores their code; index < keel_kernels_part_count. Owned
 * by the kernels. */
struct keel_kernels_part {
    const struct keel_module *module;
    const char *options; /* build options */
    const struct keel_program *program;
    struct keel_kernel *const *kernels; /* in the order of module->kernels */
};
uint32_t keel_kernels_part_count(const struct keel_kernels *kernels);
struct keel_kernels_part keel_kernels_part(const struct keel_kernels *kernels, uint32_t index);

struct keel_launch {
    struct keel_kernel *kernel; /* owned by keel_kernels */
    struct keel_range range;
    uint32_t arg_count;
    struct keel_arg args[KEEL_ARG_MAX];
};

struct keel_launch_list {
    struct keel_launch *items; /* heap, owned */
    uint32_t count;
    uint32_t capacity;
    struct keel_commands *commands; /* owned; NULL until it is sealed */
};
/* Call it before destroying the buffers that its launches use. */
void keel_launch_list_fini(struct keel_launch_list *list);
/* Close the list: appending to it asserts from now on, and running it replays recorded commands
 * (keel/device.h), which sets and checks no arguments and allocates nothing. For lists that run often; an
 * empty list is allowed. Errors: those of the device. */
enum keel_status keel_launch_list_seal(struct keel_launch_list *list, const struct keel_kernels *kernels);
/* Enqueue all launches in order; sealed or not. */
enum keel_status keel_launch_list_run(const struct keel_launch_list *list, struct keel_queue *queue);

/* ---- control buffer: what changes between replays ------------------------------------------ */

/* Written by the host before a replay, read by kernels; the same layout in C and OpenCL C. */
struct keel_control {
    uint32_t seed_lo, seed_hi;
    uint32_t step;       /* optimizer step, from 0 */
    uint32_t microbatch; /* number within the whole step: shard * microbatches + index */
    float learning_rate;
    float beta1, beta2; /* Adam */
    float bias1, bias2; /* 1 - beta^t, computed by keel_adam_bias */
    float epsilon;
    float max_norm; /* gradient clipping, 0: none */
    float momentum; /* SGD, LARS */
    float weight_decay;
    float trust; /* LARS */
    float reserved[2];
};
static_assert(sizeof(struct keel_control) == 64, "control block is 64 bytes");

/* ---- random numbers -------------------------------------------------------------------------- */

/* Philox 4x32-10 (Salmon et al., SC 2011), keyed by (seed_lo, seed_hi), counter = (element / 4,
 * stream, microbatch, step): element i takes word i % 4. `stream` numbers the random tensor. */
uint32_t keel_random_u32(const struct keel_control *control, uint32_t stream, uint64_t element);
/* Uniform in [0, 1) with 24 bits; standard normal by 12-uniform sum or polynomial Box-Muller in
 * canonical arithmetic: same bits on every host. */
float keel_random_uniform(const struct keel_control *control, uint32_t stream, uint64_t element);
float keel_random_normal(const struct keel_control *control, uint32_t stream, uint64_t element);

/* Which elements of a random tensor an operation has, so that a slice draws what the whole would: its element
 * e is number first + e / row * stride + e % row of the tensor. A run of rows, or of a whole batch, is
 * `first` alone (row and stride 0: all lies together); `row` columns of `stride` are a slice of columns.
 * INVALID where two elements would be one of the tensor (stride below row); LIMIT where a number has no
 * counter of its own. */
struct keel_random_slice {
    uint64_t first, row, stride;
};

/* ---- slices of a dimension --------------------------------------------------------------------- */

/* A dimension of units * unit elements is cut into `of` slices, of which a call has `count`, from `first` on.
 * Slice s begins at unit keel_slice_begin(units, of, s): slices differ by one unit at most, and none is empty
 * (units >= of). The call's own size of the dimension is that of its slices, in elements. Which slices a call
 * has changes no slice's bits. All zero: the dimension is not cut.
 * INVALID, naming the operation, where the slices are none of the dimension, or have another size than the
 * operation; correct the descriptor. An operation that adds its slices in the tree over slice numbers (pairs
 * of neighbours, and again; who has no partner goes up as it is) wants those of one node of that tree, or of
 * all: first a multiple of 2^l, and 2^l of them, or as many as there are from there on. */
enum { KEEL_SLICES_MAX = 64 };
struct keel_slices {
    uint32_t first, count, of, units, unit; /* of is at most KEEL_SLICES_MAX */
};
/* floor(slice * units / of): the unit with which a slice begins; slice may be `of`, the end of all. of > 0.
 */
uint32_t keel_slice_begin(uint32_t units, uint32_t of, uint32_t slice);

/* How elements are stored; arithmetic is fp32 everywhere. */
enum keel_dtype { KEEL_F32, KEEL_BF16, KEEL_F16, KEEL_I32, KEEL_DTYPE_COUNT };

/* ---- matrix product --------------------------------------------------------------------------- */

/* C[b] = op(A[b]) op(B[b]) for b in [0, batch): op(A) is m x k, op(B) is k x n, C is m x n.
 * Element order: s = fma(a_0, b_0, 0), then s = fma(a_i, b_i, s) for i ascending; then bias:
 * s = s + bias[n]; then, if `accumulate`, s = C_old + s, or, with a residual, s = residual + s; then, if
 * pre != NULL, pre = s and C = gelu(s). Strides in elements. lda is the row length of A as it is stored.
 *
 * A, B, and C with pre and residual may be stored in 16 bits: what is read becomes floats exactly, results
 * are rounded to nearest even, and gelu is that of pre as it was stored. The bias is fp32.
 *
 * `chain` begins with s = C_old instead of 0 (without `accumulate`): so k may be cut into pieces, each a
 * product of its own in ascending order, with the bits of one product of the whole k, where the first piece
 * is without `chain`, and only the last has bias, pre and residual.
 *
 * `fresh`, with `accumulate`: C_old counts as +0, and is not read: what a first of several sums begins with.
 *
 * k_slices: k consists of slices. Each is a chain of its own, begun at 0, and their sums are added in the
 * tree over slices; bias and all that follows as above. Not with `chain`, nor in a grouped product.
 *
 * Where kernels are native and gemm.provider is 1, CLBlast computes products in its own order: then s differs
 * from the exact sum by at most e / (1 - e) times (the sum of |a_i b_i| and of what is added to it, without
 * signs), where e = (k + 4) 2^-24: the bound of a sum of k products in any order (Higham 2002, section 3.1).
 * GELU is that of s as ever. Products with checksums, slices or 16-bit operands, groups, and those whose
 * bias, residual or pre goes with a C that has gaps stay canonical. */
struct keel_gemm {
    uint32_t m, n, k, batch;
    bool transpose_a, transpose_b, accumulate, fresh, chain;
    bool b_unit; /* with planes of an exact class: B is below 127/128, and its lines have exponent 0 whatever
                    they hold; a line that is not so makes NaN */
    struct keel_slices k_slices;
    enum keel_dtype a_type, b_type, c_type; /* KEEL_F32 (which is 0), KEEL_BF16 or KEEL_F16 */
    uint32_t lda, ldb, ldc;
    uint64_t stride_a, stride_b, stride_c;
    struct keel_buffer *a, *b, *c;
    struct keel_buffer *bias;      /* n, or NULL */
    struct keel_buffer *pre;       /* m x n like C, or NULL: the input of GELU, kept for backward */
    struct keel_buffer *residual;  /* m x n like C, which it may be, or NULL; not with pre or accumulate */
    struct keel_buffer *checksums; /* keel_gemm_checksum_bytes, or NULL: of C's bits as they leave the
                                      registers, for keel_op_gemm_check */
    struct keel_buffer *planes; /* keel_gemm_planes_bytes: scratch, with which a product of kernels of class
                                   exact8x2, exact8x3 or bf16 is of that class: s is then what README.md,
                                   "Exact products", defines, and `chain` adds it to C block by block of 1,024
                                   of k. NULL: canonical. Others do not look at it. */
};
/* What a product of these kernels needs of planes; 0 where their class has none. */
uint64_t keel_gemm_planes_bytes(const struct keel_kernels *kernels, const struct keel_gemm *op);
enum keel_status keel_op_gemm(struct keel_kernels *kernels, const struct keel_gemm *op,
                              struct keel_launch_list *list);

/* C = A W' (+ bias), where W is k x n in few bits: an integer q for each element, and a scale for each
 * `group` of k of a column, of which the last may be shorter (Dettmers et al. 2022; Frantar et al. 2023). w'
 * = (float)q * scale, rounded once; C has the bits that keel_op_gemm gives for w'. A is m x k and C m x n,
 * rows behind each other. For evaluation: there is no gradient. INVALID: other bits; a group that 32 / bits
 * does not divide. */
struct keel_gemm_quantised {
    uint32_t m, n, k;
    uint32_t bits;                       /* 4 or 8 */
    uint32_t group;                      /* 0: a scale for each column */
    struct keel_buffer *a, *weights, *c; /* weights: keel_quantised_words of 32 bits, as keel_quantised_pack
                                            lays them out */
    struct keel_buffer *bias;            /* n, or NULL */
    struct keel_buffer *workspace;       /* of that many bytes; may be NULL where they are 0 */
};
uint64_t keel_gemm_quantised_workspace_bytes(const struct keel_gemm_quantised *op);
enum keel_status keel_op_gemm_quantised(struct keel_kernels *kernels, const struct keel_gemm_quantised *op,
                                        struct keel_launch_list *list);
/* How many words the weights take, of n, k, bits and group. INVALID as above. Pure. */
enum keel_status keel_quantised_words(const struct keel_gemm_quantised *op, uint64_t *out);
/* Integers [n, k], of `bits` each, and scales [n, groups] as so many words. The op is one that has them.
 * Pure. */
void keel_quantised_pack(const struct keel_gemm_quantised *of, const int8_t *integers, const float *scales,
                         uint32_t *out);

/* Products of a mixture of experts: rows are sorted by group, and offsets (int32, groups + 1, ascending from
 * 0, on the device) says that rows offsets[g] to offsets[g + 1] - 1 belong to group g. Groups may be empty;
 * offsets beyond the rows are cut there. In element order as keel_gemm. Rows of C (over_k false): y = x W_g
 * (+ bias), or dx = dy W_g^T. m is the number of rows of A and C; B is [groups, .., ..] and the bias [groups,
 * n], stride_b apart and n. Rows from offsets[groups] on, which belong to nobody, become 0 (before pre); with
 * `accumulate` they stay as they are. over_k: dW_g = x_g^T dy_g. k is the number of rows of A and B as
 * stored; C is [groups, m, n], stride_c apart. An empty group gives 0; with `accumulate` its C stays as it
 * is. product.batch is 1, and there are no checksums. INVALID as keel_op_gemm. */
struct keel_gemm_grouped {
    struct keel_gemm product;
    uint32_t groups;
    bool over_k;
    struct keel_buffer *offsets;
};
enum keel_status keel_op_gemm_grouped(struct keel_kernels *kernels, const struct keel_gemm_grouped *op,
                                      struct keel_launch_list *list);

/* Is C still what the product wrote? Reads C once and compares the checksums that keel_op_gemm left. Any
 * change within one column of a tile of 8 x 48 is detected with certainty, changes in several columns with
 * probability 1 - 2^-32. Errors of the arithmetic itself are not detected (golden cases are for that). `pre`
 * is not covered. report[0] += tiles that differ; report[1] = the lowest of their numbers, batch after batch,
 * row after row of tiles; put {0, UINT32_MAX} there before. `report` holds one of these for each
 * report_index. */
enum { KEEL_GEMM_REPORT_BYTES = 8 };
struct keel_gemm_check {
    const struct keel_gemm *product; /* as it was computed; A and B are not looked at */
    struct keel_buffer *report;
    uint32_t report_index;
};
uint64_t keel_gemm_checksum_bytes(const struct keel_gemm *op);
enum keel_status keel_op_gemm_check(struct keel_kernels *kernels, const struct keel_gemm_check *op,
                                    struct keel_launch_list *list);

/* ---- element-wise and reductions ------------------------------------------------------------- */

/* y[r, :] = x[r, :] + bias[:]; y may alias x. */
struct keel_bias {
    uint64_t rows;
    uint32_t n;
    struct keel_buffer *x, *bias, *y;
};
enum keel_status keel_op_bias(struct keel_kernels *, const struct keel_bias *, struct keel_launch_list *);

/* out[n] += sum over rows, strictly ascending, of x[rows x n]: s = x_0; s = s + x_i; out = out + s.
 * row_slices: the rows consist of slices, and out is [count, n]: slice j of these adds its rows to row j. No
 * tree: whoever has all microbatches adds the rows of out. */
struct keel_bias_grad {
    uint32_t rows, n;
    struct keel_slices row_slices;
    struct keel_buffer *x, *out;
};
enum keel_status keel_op_bias_grad(struct keel_kernels *, const struct keel_bias_grad *,
                                   struct keel_launch_list *);

/* y = (x - mean) * rstd * gamma + beta per row of n; keeps mean and rstd (rows each). beta may be
 * NULL, or both: then y = (x - mean) * rstd. Sums in the fixed-shape tree of canon_tree (kernels/README.md).
 * mean NULL: RMS norm (Zhang and Sennrich 2019), the same with a mean of 0; then it is NULL in the gradient
 * too. */
struct keel_layernorm {
    uint32_t rows, n;
    float epsilon;
    struct keel_buffer *x, *gamma, *beta, *y, *mean, *rstd;
};
enum keel_status keel_op_layernorm(struct keel_kernels *, const struct keel_layernorm *,
                                   struct keel_launch_list *);

/* dx = gradient (+ residual, when not NULL: dx = residual + d, the gradient that by-passes the norm);
 * dgamma += , dbeta += (both may be NULL, or dbeta; they are where gamma is), rows strictly ascending; with
 * row_slices they are [count, n], as out of keel_bias_grad is. dx may alias residual. */
struct keel_layernorm_grad {
    uint32_t rows, n;
    struct keel_slices row_slices;
    struct keel_buffer *x, *gamma, *mean, *rstd, *dy, *residual, *dx, *dgamma, *dbeta;
};
enum keel_status keel_op_layernorm_grad(struct keel_kernels *, const struct keel_layernorm_grad *,
                                        struct keel_launch_list *);

/* y = f(x), and dx = dy * f'(x), of the functions of keel/activation_table.h; dx may alias dy, y may alias x.
 * At a corner the slope is one of its sides', of ReLU 0. */
enum keel_activation_kind {
#define KEEL_ACTIVATION_KIND(kind, ...) kind,
    KEEL_ACTIVATION_TABLE(KEEL_ACTIVATION_KIND)
#undef KEEL_ACTIVATION_KIND
        KEEL_ACTIVATION_COUNT
};
/* Its name, as "relu"; NULL: there is none of this number. Any thread. */
const char *keel_activation_name(enum keel_activation_kind kind);
/* Whether the gradient may be given y in the place of x, with the same bits: then x need not be kept. */
enum { KEEL_GRADIENT_OF_X, KEEL_GRADIENT_OF_Y };
bool keel_activation_gradient_of_y(enum keel_activation_kind kind);
struct keel_activation {
    uint64_t count;
    enum keel_activation_kind kind;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_activation(struct keel_kernels *, const struct keel_activation *,
                                    struct keel_launch_list *);
struct keel_activation_grad {
    uint64_t count;
    enum keel_activation_kind kind;
    struct keel_buffer *x, *dy, *dx;
};
enum keel_status keel_op_activation_grad(struct keel_kernels *, const struct keel_activation_grad *,
                                         struct keel_launch_list *);

/* SwiGLU (Shazeer 2020): y = silu(a) * b; da = (dy * b) * silu'(a), db = dy * silu(a). y may alias a or b, da
 * and db any of a, b, dy, each its own. */
struct keel_swiglu {
    uint64_t count;
    struct keel_buffer *a, *b, *y;
};
enum keel_status keel_op_swiglu(struct keel_kernels *, const struct keel_swiglu *, struct keel_launch_list *);
struct keel_swiglu_grad {
    uint64_t count;
    struct keel_buffer *a, *b, *dy, *da, *db;
};
enum keel_status keel_op_swiglu_grad(struct keel_kernels *, const struct keel_swiglu_grad *,
                                     struct keel_launch_list *);

/* y = a + b; y may alias either. */
struct keel_add {
    uint64_t count;
    struct keel_buffer *a, *b, *y;
};
enum keel_status keel_op_add(struct keel_kernels *, const struct keel_add *, struct keel_launch_list *);

/* y = base + mask(x) with base NULL for 0. Element i is kept when its uniform >= rate, then scaled
 * by 1 / (1 - rate) (one rounded float). The backward pass is the same op on the gradient (base
 * NULL). y may alias x or base. rate in [0, 1). */
struct keel_dropout {
    uint64_t count;
    float rate;
    uint32_t stream;
    struct keel_random_slice slice; /* numbers below 2^34 */
    struct keel_buffer *x, *base, *y, *control;
};
enum keel_status keel_op_dropout(struct keel_kernels *, const struct keel_dropout *,
                                 struct keel_launch_list *);

/* y_i = deviation * normal(stream, i), the numbers of keel_random_normal: first weights. */
struct keel_normal {
    uint64_t count;
    float deviation;
    uint32_t stream;
    struct keel_random_slice slice; /* numbers below 2^33 */
    struct keel_buffer *y, *control;
};
enum keel_status keel_op_normal(struct keel_kernels *, const struct keel_normal *, struct keel_launch_list *);

/* Element type conversion, round to nearest even; f32 <-> bf16 and f32 <-> f16. */
struct keel_cast {
    uint64_t count;
    enum keel_dtype from, to;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_cast(struct keel_kernels *, const struct keel_cast *, struct keel_launch_list *);

struct keel_fill {
    uint64_t count;
    float value;
    struct keel_buffer *y;
};
enum keel_status keel_op_fill(struct keel_kernels *, const struct keel_fill *, struct keel_launch_list *);
struct keel_copy {
    uint64_t count;
    struct keel_buffer *x, *y;
};
enum keel_status keel_op_copy(struct keel_kernels *, const struct keel_copy *, struct keel_launch_list *);

/* ---- what a transformer needs ------------------------------------------------------------------ */

/* y[b, t, :] = table[ids[b, t] - first, :] + positions[t, :]. positions may be NULL. The row of an id
 * outside [first, first + vocab) counts as +0; the host checks data as it loads them. A table that is cut by
 * rows is given part by part: of all parts' y (without positions) one has the row and the others have zero
 * bits, so that a sum of their bits as int32 is exact. INVALID where first + vocab is more than 2^31 (first
 * above 0). */
struct keel_embedding {
    uint32_t batch, tokens, width, vocab;
    uint32_t first; /* the id of the table's first row */
    struct keel_buffer *ids, *table, *positions, *y;
};
enum keel_status keel_op_embedding(struct keel_kernels *, const struct keel_embedding *,
                                   struct keel_launch_list *);
/* dtable[v, :] += sum over the rows with id first + v, rows ascending (s = 0 + ..; dtable = dtable + s; rows
 * of the table that do not occur are left untouched, ids outside [first, first + vocab) add nothing);
 * dpositions[t, :] += sum over b ascending. Either may be NULL. */
struct keel_embedding_grad {
    uint32_t batch, tokens, width, vocab;
    uint32_t first; /* as in keel_embedding */
    struct keel_buffer *ids, *dy, *dtable, *dpositions;
};
enum keel_status keel_op_embedding_grad(struct keel_kernels *, const struct keel_embedding_grad *,
                                        struct keel_launch_list *);

/* Mean cross-entropy over rows of softmax(logits[rows x vocab]) against targets[rows]:
 * loss[0] += scale * (sum of row losses in the fixed tree). When dlogits is not NULL it gets
 * (softmax - onehot) * scale and may alias logits. A target outside [0, vocab) makes its row of dlogits and
 * its loss NaN, so that the norm refuses the step. row_loss is scratch of `rows`. Rows may be taken in
 * pieces, with the bits of one: loss NULL leaves the losses of these rows in row_loss;
 * keel_op_cross_entropy_sum adds all of them at the end, and uses row_loss up. vocab_slices: the exponentials
 * of a row are summed slice by slice, each a run of its own, and the sums of slices in the tree over them.
 * `smoothing`: of a row so much is of all of the vocabulary alike, and the rest of its target (Szegedy et al.
 * 2016); not where the vocabulary is in slices. */
struct keel_cross_entropy {
    uint32_t rows, vocab;
    float smoothing; /* 0 to below 1 */
    struct keel_slices vocab_slices;
    float scale; /* usually 1 / (rows of the whole step) */
    struct keel_buffer *logits, *targets, *row_loss, *loss, *dlogits;
    struct keel_buffer *loss_scale; /* NULL, or one float: its power of two multiplies dlogits, not the loss
                                       (keel/optimizer_ops.h) */
};
enum keel_status keel_op_cross_entropy(struct keel_kernels *, const struct keel_cross_entropy *,
                                       struct keel_launch_list *);

/* The same where ranks have slices of the vocabulary each: columns [first_column, first_column + columns) of
 * it. Whatever slices a rank has, all have the bits that keel_op_cross_entropy with all slices gives.
 *
 * 1. keel_op_cross_entropy_max: maxima[r] is the largest of the rank's columns; target_bits[r] the bits of
 *    the target's logit, 0 where it is not among them. Between ranks: the largest of maxima, the sum of
 *    target_bits as int32.
 * 2. keel_op_cross_entropy_part, for each node of the tree over slices that the rank has whole: sums[r] of
 *    exp(logit - maxima[r]) of the node's `count` columns, which begin with the rank's column `at`. Where
 *    exponentials is not NULL it gets them; it may be logits. Between ranks: the sum of sums in the tree,
 *    nodes by nodes.
 * 3. keel_op_cross_entropy_end: with those of all ranks, row_loss and loss (NULL as above), the same on
 *    each rank, and dlogits of the rank's columns, which hold the exponentials before. Targets are numbers
 *    in the whole vocabulary. INVALID also where a rank's columns are not all in it. */
struct keel_cross_entropy_max {
    uint32_t rows, columns, first_column, vocab;
    struct keel_buffer *logits, *targets, *maxima, *target_bits; /* the last three: rows */
};
enum keel_status keel_op_cross_entropy_max(struct keel_kernels *, const struct keel_cross_entropy_max *,
                                           struct keel_launch_list *);
struct keel_cross_entropy_part {
    uint32_t rows, columns, at, count;
    struct keel_slices vocab_slices;
    struct keel_buffer *logits, *maxima, *sums, *exponentials;
};
enum keel_status keel_op_cross_entropy_part(struct keel_kernels *, const struct keel_cross_entropy_part *,
                                            struct keel_launch_list *);
struct keel_cross_entropy_end {
    uint32_t rows, columns, first_column, vocab;
    float scale; /* as in keel_cross_entropy, as are the last four */
    struct keel_buffer *maxima, *sums, *target_bits, *targets;
    struct keel_buffer *row_loss, *loss, *dlogits, *loss_scale;
};
enum keel_status keel_op_cross_entropy_end(struct keel_kernels *, const struct keel_cross_entropy_end *,
                                           struct keel_launch_list *);

struct keel_cross_entropy_sum {
    uint32_t rows; /* of all pieces */
    float scale;
    struct keel_buffer *row_loss, *loss;
};
enum keel_status keel_op_cross_entropy_sum(struct keel_kernels *, const struct keel_cross_entropy_sum *,
                                           struct keel_launch_list *);

/* A loss of each value against its target: loss[0] += scale * (sum over all in the fixed tree). When dx is
 * not NULL it gets the gradient times scale. BCE: x is a logit, the target a probability, l = max(x, 0) - x t
 * + log(1 + exp(-|x|)). MSE: l = (x - t)^2. PRODUCT: l = x t. dx may alias x. */
enum keel_loss_kind { KEEL_LOSS_BCE, KEEL_LOSS_MSE, KEEL_LOSS_PRODUCT, KEEL_LOSS_COUNT };
struct keel_loss {
    uint64_t count;
    enum keel_loss_kind kind;
    float scale;
    struct keel_buffer *x, *targets, *scratch, *loss, *dx; /* scratch: keel_loss_scratch_bytes(count) */
    struct keel_buffer *loss_scale;                        /* as in keel_cross_entropy */
};
uint64_t keel_loss_scratch_bytes(uint64_t count);
enum keel_status keel_op_loss(struct keel_kernels *, const struct keel_loss *, struct keel_launch_list *);

/* ---- digest ------------------------------------------------------------------------------------ */

/* digest[0] (uint64) += sum over i, modulo 2^64, of mix(bits(x_i), first_element + i): order-free, so
 * any split of a tensor gives the same sum. digest must be zeroed before the first tensor. A box of a tensor,
 * in one piece here, has row and stride as in keel_random_slice: the number of x_i is first_element + i / row
 * * stride
 * + i % row. INVALID and LIMIT as there. */
struct keel_digest {
    uint64_t count, first_element;
    uint64_t row, stride;                     /* 0: numbers ascend */
    struct keel_buffer *x, *digest, *scratch; /* scratch: keel_digest_scratch_bytes(count) */
};
uint64_t keel_digest_scratch_bytes(uint64_t count);
enum keel_status keel_op_digest(struct keel_kernels *, const struct keel_digest *, struct keel_launch_list *);
/* The same on the host, for tools and tests. */
uint64_t keel_digest_host(const void *words, uint64_t count, uint64_t first_element);

/* ---- canonical scalar functions on the host (same bits as in kernels) ------------------------- */
float keel_canon_exp(float x);
float keel_canon_sqrt(float x);
float keel_canon_divide(float a, float b);
/* cos on [0, pi], for schedules; 1 - beta^t by repeated squaring in double. */
float keel_canon_cos(float x);
float keel_canon_log(float x); /* natural; x > 0 */
float keel_adam_bias(float beta, uint32_t t);

KEEL_API_END

#endif
