/* rotary.c - rotary position embedding: descriptor to launches, and the ratio from one angle to the next. The
 * arithmetic of angles is in rotary.cl. */
#include "attention_internal.h"
#include "kernels_internal.h"

enum { WIDTH_MAX = 256, ANGLE_SCALARS = 6 }; /* of rotary.cl */

static const double ln_2 = 0x1.62e42fefa39efp-1;

/* The natural logarithm of x > 1: x = m 2^n, m in [2/3, 4/3), ln(m) = 2 artanh((m - 1) / (m + 1)). Only
 * + - * / of double, so that every host has the same bits. */
static double logarithm(double x)
{
    double n = 0;
    for (; x >= 4.0 / 3.0; n++)
        x *= 0.5;
    const double z = (x - 1) / (x + 1), square = z * z;
    double sum = 0;
    for (int k = 25; k > 0; k -= 2)
        sum = sum * square + 1.0 / k;
    return n * ln_2 + 2 * z * sum;
}

/* e^-y, y >= 0, by e^-y = 2^-n e^-f and the series of e^-f, f < ln 2. */
static double exponential(double y)
{
    const int n = (int)(y / ln_2); /* below 30 */
    const double f = y - n * ln_2;
    double scale = 1, sum = 1;
    for (int i = 0; i < n; i++)
        scale *= 0.5;
    for (int k = 20; k > 0; k--)
        sum = 1 - sum * f / k;
    return scale * sum;
}

/* What kernels end with. */
static void set_angles(const struct keel_rotary_turn *turn, uint32_t head_width,
                       struct keel_arg args[ANGLE_SCALARS])
{
    const double ratio = exponential(logarithm((double)turn->base) * 2 / head_width);
    const struct keel_rotary_scaling *scaling = &turn->scaling;
    const double span = (double)scaling->high - (double)scaling->low;
    const bool scaled = scaling->factor > 1.0F, mixed = scaled && scaling->context > 0;
    args[0] = keel_arg_u64((uint64_t)(ratio * 0x1p64));
    args[1] = keel_arg_u64(scaled ? (uint64_t)(0x1p64 / (double)scaling->factor) : 0);
    args[2] = keel_arg_u32(mixed ? scaling->context : 0);
    args[3] = keel_arg_u64(mixed ? (uint64_t)((double)scaling->low * 0x1p32) : 0);
    args[4] = keel_arg_u64(mixed ? (uint64_t)(span * 0x1p32) : 0);
    args[5] = keel_arg_u64(mixed ? (uint64_t)(0x1p32 / span) : 0);
}

static enum keel_status check_scaling(const struct keel_rotary_scaling *scaling)
{
    const float factor = scaling->factor, span = scaling->high - scaling->low;
    if (factor != 0.0F && !(factor >= 1.0F && factor <= 0x1p16F))
        return keel_fail(KEEL_INVALID, "rotary: scaling by %g, which is not in [1, 65536]", (double)factor);
    if (scaling->context > 0 && !(scaling->low >= 0.0F && scaling->high <= 0x1p10F && span >= 0x1p-10F))
        return keel_fail(KEEL_INVALID,
                         "rotary: scaling between %g and %g turns, which are no two in [0, 1024]",
                         (double)scaling->low, (double)scaling->high);
    return KEEL_OK;
}

enum keel_status keel_check_rotary_turn(const struct keel_rotary_turn *turn, uint32_t head_width)
{
    if (head_width % 2 != 0)
        return keel_fail(KEEL_INVALID, "rotary: heads of %u, which cannot be turned in pairs", head_width);
    if (head_width > WIDTH_MAX)
        return keel_fail(KEEL_LIMIT, "rotary: heads of %u, at most %d: use more heads", head_width,
                         WIDTH_MAX);
    if (!(turn->base > 1.0F && turn->base <= 1e9F))
        return keel_fail(KEEL_INVALID, "rotary: base %g is not in (1, 1e9]", (double)turn->base);
    return check_scaling(&turn->scaling);
}

static enum keel_status check_rotary(const struct keel_rotary *op)
{
    if (op->batch == 0 || op->tokens == 0 || op->heads == 0 || op->kv_heads == 0 || op->head_width == 0)
        return keel_fail(KEEL_INVALID,
                         "rotary: batch %u, %u tokens, %u and %u heads of %u: nothing to compute", op->batch,
                         op->tokens, op->heads, op->kv_heads, op->head_width);
    if (op->position != NULL && op->tokens != 1)
        return keel_fail(KEEL_INVALID, "rotary: positions of %u tokens: they are of one a sequence",
                         op->tokens);
    KEEL_TRY(keel_check_rotary_turn(&(struct keel_rotary_turn){op->base, op->scaling}, op->head_width));
    const uint64_t heads = op->heads + 2 * (uint64_t)op->kv_heads;
    const uint64_t bytes = KEEL_BYTES(op->batch, op->tokens, heads, op->head_width, sizeof(float));
    return KEEL_CHECK_OPERANDS(
        "rotary", {"qkv", op->qkv, bytes, KEEL_IN_PLACE},
        {"out", op->out, bytes, KEEL_WRITTEN | KEEL_IN_PLACE},
        {"position", op->position, KEEL_BYTES(op->batch, sizeof(int32_t)), KEEL_OPTIONAL});
}

enum keel_status keel_op_rotary(struct keel_kernels *kernels, const struct keel_rotary *op,
                                struct keel_launch_list *list)
{
    enum { OWN = 10 };
    KEEL_TRY(check_rotary(op));
    const bool given = op->position != NULL;
    const struct keel_range range = {.global = {given ? op->batch : op->tokens, 1, 1}, .local = {1, 1, 1}};
    struct keel_arg args[OWN + ANGLE_SCALARS] = {keel_arg_buffer(op->qkv),
                                                 keel_arg_buffer(op->out),
                                                 keel_arg_either(op->position, op->qkv),
                                                 keel_arg_u32(given),
                                                 keel_arg_u32(op->batch),
                                                 keel_arg_u32(op->tokens),
                                                 keel_arg_u32(op->heads + op->kv_heads),
                                                 keel_arg_u32(op->kv_heads),
                                                 keel_arg_u32(op->head_width),
                                                 keel_arg_f32(op->inverse ? -1.0F : 1.0F)};
    set_angles(&(struct keel_rotary_turn){op->base, op->scaling}, op->head_width, args + OWN);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_rotary, "keel_rotary", &range, args,
                               KEEL_ARG_COUNT(args));
}

enum keel_status keel_rotary_share_append(struct keel_kernels *kernels, const struct keel_rotary_share *share,
                                          struct keel_launch_list *list)
{
    enum { OWN = 11 };
    const bool turns = share->turned.base != 0.0F;
    const struct keel_range range = {.global = {share->tokens, 1, 1}, .local = {1, 1, 1}};
    struct keel_arg args[OWN + ANGLE_SCALARS] = {
        keel_arg_buffer(share->shares),  keel_arg_buffer(share->y),  keel_arg_u32(share->batch),
        keel_arg_u32(share->tokens),     keel_arg_u32(share->heads), keel_arg_u32(share->kv_heads),
        keel_arg_u32(share->head_width), keel_arg_u32(share->front), keel_arg_u32(share->first_head),
        keel_arg_u64(share->at),         keel_arg_u32(turns)};
    const struct keel_rotary_turn none = {.base = 2.0F};
    set_angles(turns ? &share->turned : &none, share->head_width, args + OWN);
    return keel_kernels_launch(kernels, list, KEEL_MODULE_rotary, "keel_rotary_share", &range, args,
                               KEEL_ARG_COUNT(args));
}
