/* pool_host.c - pool.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_pool;

struct geometry {
    uint32_t batch, height, width, channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h,
        out_w;
};

static struct geometry read_geometry(void *const *arguments)
{
    uint32_t v[12];
    for (int i = 0; i < 12; i++)
        v[i] = *(const uint32_t *)arguments[3 + i];
    return (struct geometry){v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11]};
}

/* The value that tap (i, j) of window (p, q) of image b sees in channel c; NULL: padding. */
static inline const float *value_of(const struct geometry *g, const float *x, const uint32_t at[4],
                                    uint32_t i, uint32_t j)
{
    const uint32_t u = at[1] * g->stride_h + i - g->pad_h, v = at[2] * g->stride_w + j - g->pad_w;
    if (u >= g->height || v >= g->width)
        return NULL;
    return x + (((uint64_t)at[0] * g->height + u) * g->width + v) * g->channels + at[3];
}

static float largest(const struct geometry *g, const float *x, const uint32_t at[4], int32_t *tap)
{
    float best = 0.0F;
    *tap = -1;
    for (uint32_t i = 0; i < g->kernel_h; i++)
        for (uint32_t j = 0; j < g->kernel_w; j++) {
            const float *a = value_of(g, x, at, i, j);
            if (a == NULL || !(*tap < 0 || *a > best || isnan(*a)))
                continue;
            best = *a;
            *tap = (int32_t)(i * g->kernel_w + j);
        }
    return best;
}

static float mean(const struct geometry *g, const float *x, const uint32_t at[4])
{
    float s = 0.0F;
    for (uint32_t i = 0; i < g->kernel_h; i++)
        for (uint32_t j = 0; j < g->kernel_w; j++) {
            const float *a = value_of(g, x, at, i, j);
            s = a != NULL ? s + *a : s;
        }
    return canon_divide(s, (float)(g->kernel_h * g->kernel_w));
}

/* All windows; taps NULL: means. */
static void windows(void *const *arguments, int32_t *taps)
{
    const struct geometry g = read_geometry(arguments);
    const float *x = arguments[0];
    float *y = arguments[1];
    uint32_t at[4];
    for (at[0] = 0; at[0] < g.batch; at[0]++)
        for (at[1] = 0; at[1] < g.out_h; at[1]++)
            for (at[2] = 0; at[2] < g.out_w; at[2]++)
                for (at[3] = 0; at[3] < g.channels; at[3]++)
                    *y++ = taps != NULL ? largest(&g, x, at, taps++) : mean(&g, x, at);
}
static void host_max_pool(KEEL_HOST_ARGUMENTS)
{
    windows(arguments, arguments[2]);
}
static void host_avg_pool(KEEL_HOST_ARGUMENTS)
{
    windows(arguments, NULL);
}

/* Whether window `at` of a row or column of windows holds a pixel. */
static inline bool holds(uint32_t pixel, uint32_t pad, uint32_t kernel_size, uint32_t stride, uint32_t at)
{
    const uint64_t from = (uint64_t)at * stride;
    return from <= (uint64_t)pixel + pad && (uint64_t)pixel + pad < from + kernel_size;
}

static float grad_pixel(const struct geometry *g, const float *dy, const int32_t *taps, const uint32_t at[4])
{
    float s = 0.0F;
    for (uint32_t p = 0; p < g->out_h; p++)
        for (uint32_t q = 0; q < g->out_w; q++) {
            if (!holds(at[1], g->pad_h, g->kernel_h, g->stride_h, p) ||
                !holds(at[2], g->pad_w, g->kernel_w, g->stride_w, q))
                continue;
            const uint64_t from = (((uint64_t)at[0] * g->out_h + p) * g->out_w + q) * g->channels + at[3];
            const uint32_t tap =
                (at[1] + g->pad_h - p * g->stride_h) * g->kernel_w + at[2] + g->pad_w - q * g->stride_w;
            if (taps == NULL || taps[from] == (int32_t)tap)
                s = s + dy[from];
        }
    return taps == NULL ? canon_divide(s, (float)(g->kernel_h * g->kernel_w)) : s;
}

static void grads(void *const *arguments, const int32_t *taps)
{
    const struct geometry g = read_geometry(arguments);
    const float *dy = arguments[0];
    float *dx = arguments[1];
    uint32_t at[4];
    for (at[0] = 0; at[0] < g.batch; at[0]++)
        for (at[1] = 0; at[1] < g.height; at[1]++)
            for (at[2] = 0; at[2] < g.width; at[2]++)
                for (at[3] = 0; at[3] < g.channels; at[3]++)
                    *dx++ = grad_pixel(&g, dy, taps, at);
}
static void host_max_pool_grad(KEEL_HOST_ARGUMENTS)
{
    grads(arguments, arguments[2]);
}
static void host_avg_pool_grad(KEEL_HOST_ARGUMENTS)
{
    grads(arguments, NULL);
}

static void host_global(KEEL_HOST_ARGUMENTS)
{
    const float *x = arguments[0];
    float *y = arguments[1];
    const uint32_t batch = u32_at(arguments, 2), pixels = u32_at(arguments, 3),
                   channels = u32_at(arguments, 4);
    for (uint32_t b = 0; b < batch; b++, x += (uint64_t)pixels * channels)
        for (uint32_t c = 0; c < channels; c++) {
            float s = 0.0F;
            for (uint32_t i = 0; i < pixels; i++)
                s += x[(uint64_t)i * channels + c];
            *y++ = canon_divide(s, (float)pixels);
        }
}

static void host_global_grad(KEEL_HOST_ARGUMENTS)
{
    const float *dy = arguments[0];
    float *dx = arguments[1];
    const uint32_t batch = u32_at(arguments, 2), pixels = u32_at(arguments, 3),
                   channels = u32_at(arguments, 4);
    for (uint32_t b = 0; b < batch; b++, dy += channels)
        for (uint32_t i = 0; i < pixels; i++)
            for (uint32_t c = 0; c < channels; c++)
                *dx++ = canon_divide(dy[c], (float)pixels);
}

static const struct keel_module_kernel pool_kernels[] = {
    {"keel_max_pool", host_max_pool},      {"keel_max_pool_grad", host_max_pool_grad},
    {"keel_avg_pool", host_avg_pool},      {"keel_avg_pool_grad", host_avg_pool_grad},
    {"keel_global_avg_pool", host_global}, {"keel_global_avg_pool_grad", host_global_grad},
};

const struct keel_module keel_module_pool = KEEL_MODULE("pool", keel_cl_pool, pool_kernels);
