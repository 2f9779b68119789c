/* conv.cl - convolution and its two gradients, any stride, padding, dilation and groups.
 *
 *     forward      s = fma(x, w, s) over taps i, j and channels c of the group, ascending from +0; y = s (+ bias)
 *     grad_data    s = fma(dy, w, s) over taps i, j that meet the pixel's stride, and outputs o of the group
 *     grad_weight  s = fma(x, dy, s) over batch, p, q; dw = dw + s
 *     unfold       rows of the product that a convolution is: what taps and channels of a group say to a pixel
 *
 * Shapes: x, dx [batch, height, width, channels]; y, dy [batch, out_h, out_w, out_channels]; w, dw [kernel_h,
 * kernel_w, channels / groups, out_channels]. A pixel outside of the image, or of dy, counts as 0. Each s ends with
 * + 0 (canon_plus_zero), so that a device that skips those, or begins with a product, agrees.
 *
 * The plain kernels: a work-item takes one row of an image, or one row of dw, and 16 neighbouring channels in
 * the lanes. For groups of few channels: depthwise reads whole vectors.
 *
 * Tolerance against the host: none, equal bits. */

#define GEOMETRY                                                                                             \
    uint batch, uint height, uint width, uint channels, uint out_channels, uint kernel_h, uint kernel_w,     \
        uint stride_h, uint stride_w, uint pad_h, uint pad_w, uint dilation_h, uint dilation_w, uint groups, \
        uint out_h, uint out_w

/* v[at + lane * step] for n lanes, each of the group of its channel: channel k of groups of `from` sees the
 * `to` values of its group, of which this is number `at`. */
static inline float16 load_of_group(__global const float *v, uint first, uint n, uint from, uint to, uint at)
{
    if (from == 1 && to == 1)
        return canon_load(v + first, n);
    if (first / from == (first + n - 1) / from)
        return (float16)(v[first / from * to + at]);
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? v[(first + l) / from * to + at] : 0.0f;
    return vload16(0, lanes);
}

__kernel void keel_conv2d_plain(__global const float *x, __global const float *w, __global const float *bias,
                                __global float *y, GEOMETRY, uint has_bias)
{
    const uint row = get_global_id(0), o = get_global_id(1) * 16;
    if (row >= batch * out_h)
        return;
    const uint n = min(out_channels - o, 16u), in = channels / groups, out = out_channels / groups;
    x += (ulong)(row / out_h) * height * width * channels;
    for (uint q = 0; q < out_w; q++) {
        float16 s = (float16)(0.0f);
        __global const float *from = w + o;
        for (uint i = 0; i < kernel_h; i++)
            for (uint j = 0; j < kernel_w; j++) {
                const uint u = row % out_h * stride_h + i * dilation_h - pad_h;
                const uint v = q * stride_w + j * dilation_w - pad_w;
                const bool inside = u < height && v < width;
                __global const float *pixel = x + (inside ? ((ulong)u * width + v) * channels : 0);
                for (uint c = 0; c < in; c++) {
                    const float16 a = load_of_group(pixel, o, n, out, in, c);
                    s = fma(inside ? a : (float16)(0.0f), canon_load(from, n), s);
                    from += out_channels;
                }
            }
        s = canon_plus_zero(s);
        if (has_bias)
            s = s + canon_load(bias + o, n);
        canon_store(s, y + ((ulong)row * out_w + q) * out_channels + o, n);
    }
}

/* Weights of 16 neighbouring channels, to one output of the group of each. */
static inline float16 load_weights(__global const float *w, uint c, uint n, uint in, uint out, uint outs, uint at)
{
    if (in == 1 && out == 1)
        return canon_load(w + c, n);
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? w[(ulong)((c + l) % in) * outs + (c + l) / in * out + at] : 0.0f;
    return vload16(0, lanes);
}

static inline uint apart(uint a, uint b)
{
    return a > b ? a - b : b - a;
}

__kernel void keel_conv2d_grad_data_plain(__global const float *dy, __global const float *w,
                                          __global const float *unused, __global float *dx, GEOMETRY,
                                          uint has_bias)
{
    const uint row = get_global_id(0), c = get_global_id(1) * 16;
    if (row >= batch * height)
        return;
    const uint n = min(channels - c, 16u), in = channels / groups, out = out_channels / groups;
    const uint top = row % height + pad_h;
    dy += (ulong)(row / height) * out_h * out_w * out_channels;
    for (uint v = 0; v < width; v++) {
        float16 s = (float16)(0.0f);
        for (uint i = 0; i < kernel_h; i++)
            for (uint j = 0; j < kernel_w; j++) {
                const uint left = v + pad_w, down = i * dilation_h, across = j * dilation_w;
                if (apart(top, down) % stride_h != 0 || apart(left, across) % stride_w != 0)
                    continue;
                const uint p = (top - down) / stride_h, q = (left - across) / stride_w;
                const bool inside = top >= down && left >= across && p < out_h && q < out_w;
                __global const float *at = dy + (inside ? ((ulong)p * out_w + q) * out_channels : 0);
                __global const float *from = w + (ulong)(i * kernel_w + j) * in * out_channels;
                for (uint o = 0; o < out; o++) {
                    const float16 a = load_of_group(at, c, n, in, out, o);
                    s = fma(inside ? a : (float16)(0.0f), load_weights(from, c, n, in, out, out_channels, o),
                            s);
                }
            }
        canon_store(canon_plus_zero(s), dx + ((ulong)row * width + v) * channels + c, n);
    }
}

__kernel void keel_conv2d_grad_weight_plain(__global const float *x, __global const float *dy,
                                            __global const float *unused, __global float *dw, GEOMETRY,
                                            uint has_bias)
{
    const uint row = get_global_id(0), o = get_global_id(1) * 16;
    const uint in = channels / groups, out = out_channels / groups;
    if (row >= kernel_h * kernel_w * in)
        return;
    const uint n = min(out_channels - o, 16u), c = row % in, tap = row / in;
    const uint i = tap / kernel_w, j = tap % kernel_w;
    float16 s = (float16)(0.0f);
    for (uint b = 0; b < batch; b++)
        for (uint p = 0; p < out_h; p++)
            for (uint q = 0; q < out_w; q++) {
                const uint u = p * stride_h + i * dilation_h - pad_h;
                const uint v = q * stride_w + j * dilation_w - pad_w;
                const bool inside = u < height && v < width;
                __global const float *pixel =
                    x + (inside ? (((ulong)b * height + u) * width + v) * channels : 0);
                const float16 a = load_of_group(pixel, o, n, out, in, c);
                s = fma(inside ? a : (float16)(0.0f), canon_load(dy + o, n), s);
                dy += out_channels;
            }
    dw += (ulong)row * out_channels + o;
    canon_store(canon_load(dw, n) + canon_plus_zero(s), dw, n);
}

/* ---- unfold ---- */

/* Along one axis: what tap `tap` of output `at` sees, or, `back`, which output is seen by tap `tap` of pixel `at`;
 * UINT_MAX: none. `size` is that of the image, or of the output. */
static inline uint unfold_from(uint at, uint tap, uint stride, uint pad, uint dilation, uint size, uint back)
{
    const uint reach = tap * dilation;
    const uint from = back ? at + pad - reach : at * stride + reach - pad;
    const bool outside = back ? at + pad < reach || from % stride != 0 : at * stride + reach < pad;
    const uint found = back ? from / stride : from;
    return outside || found >= size ? UINT_MAX : found;
}

/* to[g, r, tap, c], flat: pixels first + r of all images, each of `out` of them; channels of a group side by side. A
 * work-item takes `block` elements, runs of channels at a time; or, where lanes are many, every element of its group's
 * that its number comes to. */
__kernel void keel_conv2d_unfold(__global const float *x, __global const float *unused, __global const float *bias,
                                 __global float *to, GEOMETRY, uint back, uint first, uint rows, ulong count,
                                 uint block)
{
    const uint each = (back ? out_channels : channels) / groups, taps = kernel_h * kernel_w;
    const uint high = back ? height : out_h, wide = back ? width : out_w;
    const uint from_high = back ? out_h : height, from_wide = back ? out_w : width;
#if KEEL_ROW_ITEMS > 1
    const uint step = get_local_size(0);
    const ulong begin = (ulong)get_group_id(0) * step * block, end = min(begin + (ulong)step * block, count);
    ulong at = begin + get_local_id(0);
#else
    ulong at = (ulong)get_global_id(0) * block;
    const ulong end = min(at + block, count);
#endif
    while (at < end) {
        const ulong line = at / each, row = line / taps;
        const uint c = (uint)(at % each), tap = (uint)(line % taps), g = (uint)(row / rows);
        const uint pixel = first + (uint)(row % rows);
        const uint u = unfold_from(pixel / wide % high, tap / kernel_w, stride_h, pad_h, dilation_h, from_high, back);
        const uint v = unfold_from(pixel % wide, tap % kernel_w, stride_w, pad_w, dilation_w, from_wide, back);
        const bool inside = u != UINT_MAX && v != UINT_MAX;
        const ulong from = ((ulong)(pixel / wide / high) * from_high + u) * from_wide + v;
        __global const float *seen = x + (inside ? (from * groups + g) * each : 0);
#if KEEL_ROW_ITEMS > 1
        to[at] = inside ? seen[c] : 0.0f;
        at += step;
#else
        const uint n = (uint)min((ulong)(each - c), end - at);
        for (uint l = 0; l < n; l += 16) {
            const float16 values = inside ? canon_load(seen + c + l, n - l) : (float16)(0.0f);
            canon_store(values, to + at + l, n - l);
        }
        at += n;
#endif
    }
}
