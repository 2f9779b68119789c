/* conv_host.c - conv.cl in C: the reference, and what the host device runs. */
#include "canon.h"
#include "kernels_internal.h"

extern const struct keel_packed_text keel_cl_conv, keel_cl_conv_tiles;

struct geometry {
    uint32_t batch, height, width, channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, pad_h,
        pad_w, dilation_h, dilation_w, groups, out_h, out_w;
};

static struct geometry read_geometry(void *const *arguments)
{
    uint32_t v[16];
    for (int i = 0; i < 16; i++)
        v[i] = *(const uint32_t *)arguments[4 + i];
    return (struct geometry){v[0], v[1], v[2],  v[3],  v[4],  v[5],  v[6],  v[7],
                             v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]};
}

/* The pixel that tap (i, j) of output (p, q) sees; NULL: padding. */
static inline const float *pixel_of(const struct geometry *g, const float *x, uint32_t b, uint32_t p,
                                    uint32_t q, uint32_t i, uint32_t j)
{
    const uint32_t u =
        p * g->stride_h + i * g->dilation_h - g->pad_h; /* above the image: larger than height */
    const uint32_t v = q * g->stride_w + j * g->dilation_w - g->pad_w;
    if (u >= g->height || v >= g->width)
        return NULL;
    return x + (((uint64_t)b * g->height + u) * g->width + v) * g->channels;
}

/* All outputs of one pixel. */
static inline void forward_pixel(const struct geometry *g, const float *x, const float *w, uint32_t b,
                                 uint32_t p, uint32_t q, float *y)
{
    const uint32_t in = g->channels / g->groups, out = g->out_channels / g->groups;
    for (uint32_t o = 0; o < g->out_channels; o++)
        y[o] = 0.0F;
    for (uint32_t i = 0; i < g->kernel_h; i++)
        for (uint32_t j = 0; j < g->kernel_w; j++) {
            const float *pixel = pixel_of(g, x, b, p, q, i, j);
            for (uint32_t c = 0; c < in; c++, w += g->out_channels)
                for (uint32_t o = 0; o < g->out_channels; o++)
                    y[o] = canon_fma(pixel != NULL ? pixel[o / out * in + c] : 0.0F, w[o], y[o]);
        }
}

KEEL_HOST_KERNEL static void host_forward(KEEL_HOST_ARGUMENTS)
{
    const struct geometry g = read_geometry(arguments);
    const float *x = arguments[0], *w = arguments[1], *bias = arguments[2];
    float *y = arguments[3];
    const bool has_bias = u32_at(arguments, 20) != 0;
    for (uint32_t b = 0; b < g.batch; b++)
        for (uint32_t p = 0; p < g.out_h; p++)
            for (uint32_t q = 0; q < g.out_w; q++, y += g.out_channels) {
                forward_pixel(&g, x, w, b, p, q, y);
                for (uint32_t o = 0; o < g.out_channels; o++)
                    y[o] = has_bias ? canon_plus_zero(y[o]) + bias[o] : canon_plus_zero(y[o]);
            }
}

/* The output position across or down that a tap leads to from a pixel. */
struct reach {
    bool counts; /* whether the tap meets the stride */
    bool inside;
    uint32_t at;
};
static inline struct reach reach_of(uint32_t pixel, uint32_t pad, uint32_t tap, uint32_t stride,
                                    uint32_t size)
{
    const int64_t distance = (int64_t)pixel + pad - tap;
    const int64_t at = distance / stride;
    return (struct reach){distance % stride == 0, distance >= 0 && at < size,
                          distance >= 0 ? (uint32_t)at : 0};
}

static inline void grad_data_pixel(const struct geometry *g, const float *dy, const float *w, uint32_t u,
                                   uint32_t v, float *dx)
{
    const uint32_t in = g->channels / g->groups, out = g->out_channels / g->groups;
    for (uint32_t c = 0; c < g->channels; c++)
        dx[c] = 0.0F;
    for (uint32_t i = 0; i < g->kernel_h; i++)
        for (uint32_t j = 0; j < g->kernel_w; j++) {
            const struct reach p = reach_of(u, g->pad_h, i * g->dilation_h, g->stride_h, g->out_h);
            const struct reach q = reach_of(v, g->pad_w, j * g->dilation_w, g->stride_w, g->out_w);
            if (!p.counts || !q.counts)
                continue;
            const float *at =
                p.inside && q.inside ? dy + ((uint64_t)p.at * g->out_w + q.at) * g->out_channels : NULL;
            const float *from = w + (uint64_t)(i * g->kernel_w + j) * in * g->out_channels;
            for (uint32_t c = 0; c < g->channels; c++)
                for (uint32_t o = c / in * out; o < c / in * out + out; o++)
                    dx[c] = canon_fma(at != NULL ? at[o] : 0.0F,
                                      from[(uint64_t)(c % in) * g->out_channels + o], dx[c]);
        }
    for (uint32_t c = 0; c < g->channels; c++)
        dx[c] = canon_plus_zero(dx[c]);
}

KEEL_HOST_KERNEL static void host_grad_data(KEEL_HOST_ARGUMENTS)
{
    const struct geometry g = read_geometry(arguments);
    const float *dy = arguments[0], *w = arguments[1];
    float *dx = arguments[3];
    for (uint32_t b = 0; b < g.batch; b++)
        for (uint32_t u = 0; u < g.height; u++)
            for (uint32_t v = 0; v < g.width; v++, dx += g.channels)
                grad_data_pixel(&g, dy + (uint64_t)b * g.out_h * g.out_w * g.out_channels, w, u, v, dx);
}

KEEL_HOST_KERNEL static void host_grad_weight(KEEL_HOST_ARGUMENTS)
{
    const struct geometry g = read_geometry(arguments);
    const uint32_t in = g.channels / g.groups, out = g.out_channels / g.groups;
    const float *x = arguments[0], *all = arguments[1];
    float *dw = arguments[3];
    for (uint32_t row = 0; row < g.kernel_h * g.kernel_w * in; row++)
        for (uint32_t o = 0; o < g.out_channels; o++, dw++) {
            const uint32_t tap = row / in, c = o / out * in + row % in;
            const float *dy = all + o;
            float s = 0.0F;
            for (uint32_t b = 0; b < g.batch; b++)
                for (uint32_t p = 0; p < g.out_h; p++)
                    for (uint32_t q = 0; q < g.out_w; q++, dy += g.out_channels) {
                        const float *pixel = pixel_of(&g, x, b, p, q, tap / g.kernel_w, tap % g.kernel_w);
                        s = canon_fma(pixel != NULL ? pixel[c] : 0.0F, *dy, s);
                    }
            *dw = *dw + canon_plus_zero(s);
        }
}

/* The number of a pixel along an axis that a row has from a tap; false: none. */
static bool unfold_from(uint32_t at, uint32_t tap, uint32_t stride, uint32_t pad, uint32_t dilation,
                        uint32_t size, bool back, uint32_t *out)
{
    const int64_t reach = (int64_t)tap * dilation;
    const int64_t from = back ? (int64_t)at + pad - reach : (int64_t)at * stride + reach - pad;
    if (from < 0 || (back && from % stride != 0))
        return false;
    *out = (uint32_t)(back ? from / stride : from);
    return (back ? from / stride : from) < size;
}

static void host_unfold(KEEL_HOST_ARGUMENTS)
{
    const struct geometry g = read_geometry(arguments);
    const bool back = u32_at(arguments, 20) != 0;
    const uint32_t first = u32_at(arguments, 21), rows = u32_at(arguments, 22);
    const uint32_t high = back ? g.height : g.out_h, wide = back ? g.width : g.out_w;
    const uint32_t from_high = back ? g.out_h : g.height, from_wide = back ? g.out_w : g.width;
    const uint32_t each = (back ? g.out_channels : g.channels) / g.groups, taps = g.kernel_h * g.kernel_w;
    const float *x = arguments[0];
    float *to = arguments[3];
    for (uint64_t line = 0; line < (uint64_t)g.groups * rows * taps; line++, to += each) {
        const uint32_t tap = (uint32_t)(line % taps), group = (uint32_t)(line / taps / rows);
        const uint32_t pixel = first + (uint32_t)(line / taps % rows);
        uint32_t u = 0, v = 0;
        const bool inside = unfold_from(pixel / wide % high, tap / g.kernel_w, g.stride_h, g.pad_h,
                                        g.dilation_h, from_high, back, &u) &&
                            unfold_from(pixel % wide, tap % g.kernel_w, g.stride_w, g.pad_w, g.dilation_w,
                                        from_wide, back, &v);
        const uint64_t from = ((uint64_t)(pixel / wide / high) * from_high + u) * from_wide + v;
        for (uint32_t c = 0; c < each; c++)
            to[c] = inside ? x[(from * g.groups + group) * each + c] : 0.0F;
    }
}

static const struct keel_module_kernel conv_kernels[] = {
    {"keel_conv2d_plain", host_forward},
    {"keel_conv2d_grad_data_plain", host_grad_data},
    {"keel_conv2d_grad_weight_plain", host_grad_weight},
    {"keel_conv2d_unfold", host_unfold},
};

const struct keel_module keel_module_conv = KEEL_MODULE("conv", keel_cl_conv, conv_kernels);

/* The tiles are the same sums: only a device cuts them. */
static const struct keel_module_kernel tiles_kernels[] = {
    {"keel_conv2d_tiles", host_forward},
    {"keel_conv2d_grad_data_tiles", host_grad_data},
    {"keel_conv2d_grad_weight_tiles", host_grad_weight},
};

const struct keel_module keel_module_conv_tiles =
    KEEL_MODULE("conv_tiles", keel_cl_conv_tiles, tiles_kernels);
