/* pool.cl - the largest or the mean of windows, and the gradients, in gather form.
 *
 *     max_pool       y = the first largest of the window, padding left out; tap = its number i kernel_w + j
 *     max_pool_grad  dx = sum of dy over the windows, p then q ascending from +0, whose tap is the pixel
 *     avg_pool       y = (sum of the window, i then j ascending from +0) / (kernel_h kernel_w)
 *     avg_pool_grad  dx = (sum of dy over the windows of the pixel, p then q ascending from +0) / the same
 *     global_avg     y[b, c] = (sum of x[b, :, c] ascending from +0) / pixels;  dx = dy / pixels
 *
 * Shapes: x, dx [batch, height, width, channels]; y, dy, taps [batch, out_h, out_w, channels]. A work-item takes
 * a row of pixels and 16 channels after 16, or, of the global mean, all pixels of 16 channels. No tunables. */

#define GEOMETRY                                                                                             \
    uint batch, uint height, uint width, uint channels, uint kernel_h, uint kernel_w, uint stride_h,         \
        uint stride_w, uint pad_h, uint pad_w, uint out_h, uint out_w

static inline void store_taps(int16 v, __global int *taps, uint n)
{
    if (n >= 16) {
        vstore16(v, 0, taps);
        return;
    }
    int lanes[16];
    vstore16(v, 0, lanes);
    for (uint l = 0; l < n; l++)
        taps[l] = lanes[l];
}
static inline int16 load_taps(__global const int *taps, uint n)
{
    if (n >= 16)
        return vload16(0, taps);
    int lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? taps[l] : -1;
    return vload16(0, lanes);
}

__kernel void keel_max_pool(__global const float *x, __global float *y, __global int *taps, GEOMETRY)
{
    const uint row = get_global_id(0);
    if (row >= batch * out_h)
        return;
    x += (ulong)(row / out_h) * height * width * channels;
    const uint top = row % out_h * stride_h;
    for (uint q = 0; q < out_w; q++)
        for (uint c = 0; c < channels; c += 16) {
            const uint n = channels - c;
            float16 best = (float16)(0.0f);
            int16 tap = (int16)(-1);
            for (uint i = 0; i < kernel_h; i++)
                for (uint j = 0; j < kernel_w; j++) {
                    const uint u = top + i - pad_h, v = q * stride_w + j - pad_w;
                    if (u >= height || v >= width)
                        continue;
                    const float16 a = canon_load(x + ((ulong)u * width + v) * channels + c, n);
                    const int16 larger = tap < (int16)(0) | a > best | a != a;
                    best = select(best, a, larger);
                    tap = select(tap, (int16)((int)(i * kernel_w + j)), larger);
                }
            const ulong at = ((ulong)row * out_w + q) * channels + c;
            canon_store(best, y + at, n);
            store_taps(tap, taps + at, n);
        }
}

/* The windows that hold a pixel: from first to before last, of `size`. */
static inline uint first_window(uint pixel, uint pad, uint kernel_size, uint stride)
{
    return pixel + pad < kernel_size ? 0 : (pixel + pad - kernel_size) / stride + 1;
}
static inline uint last_window(uint pixel, uint pad, uint stride, uint size)
{
    return min((pixel + pad) / stride + 1, size);
}

/* One row of pixels: largest: dy where the tap is the pixel's, else all dy over `count`. */
static inline void grad_row(__global const float *dy, __global const int *taps, __global float *dx, uint row,
                            bool largest, GEOMETRY)
{
    const uint u = row % height;
    const ulong image = (ulong)(row / height) * out_h * out_w * channels;
    const uint p0 = first_window(u, pad_h, kernel_h, stride_h), p1 = last_window(u, pad_h, stride_h, out_h);
    const float16 count = (float16)(convert_float(kernel_h * kernel_w));
    for (uint v = 0; v < width; v++) {
        const uint q0 = first_window(v, pad_w, kernel_w, stride_w);
        const uint q1 = last_window(v, pad_w, stride_w, out_w);
        for (uint c = 0; c < channels; c += 16) {
            const uint n = channels - c;
            float16 s = (float16)(0.0f);
            for (uint p = p0; p < p1; p++)
                for (uint q = q0; q < q1; q++) {
                    const ulong at = image + ((ulong)p * out_w + q) * channels + c;
                    const float16 g = canon_load(dy + at, n);
                    if (!largest) {
                        s += g;
                        continue;
                    }
                    const uint tap = (u + pad_h - p * stride_h) * kernel_w + v + pad_w - q * stride_w;
                    s = select(s, s + g, load_taps(taps + at, n) == (int16)((int)tap));
                }
            canon_store(largest ? s : canon_divide(s, count), dx + ((ulong)row * width + v) * channels + c,
                        n);
        }
    }
}
#define GEOMETRY_PASSED                                                                                      \
    batch, height, width, channels, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, out_h, out_w

__kernel void keel_max_pool_grad(__global const float *dy, __global float *dx, __global const int *taps,
                                 GEOMETRY)
{
    const uint row = get_global_id(0);
    if (row < batch * height)
        grad_row(dy, taps, dx, row, true, GEOMETRY_PASSED);
}

__kernel void keel_avg_pool_grad(__global const float *dy, __global float *dx, __global const int *unused,
                                 GEOMETRY)
{
    const uint row = get_global_id(0);
    if (row < batch * height)
        grad_row(dy, unused, dx, row, false, GEOMETRY_PASSED);
}

__kernel void keel_avg_pool(__global const float *x, __global float *y, __global int *unused, GEOMETRY)
{
    const uint row = get_global_id(0);
    if (row >= batch * out_h)
        return;
    x += (ulong)(row / out_h) * height * width * channels;
    const uint top = row % out_h * stride_h;
    const float16 count = (float16)(convert_float(kernel_h * kernel_w));
    for (uint q = 0; q < out_w; q++)
        for (uint c = 0; c < channels; c += 16) {
            const uint n = channels - c;
            float16 s = (float16)(0.0f);
            for (uint i = 0; i < kernel_h; i++)
                for (uint j = 0; j < kernel_w; j++) {
                    const uint u = top + i - pad_h, v = q * stride_w + j - pad_w;
                    if (u < height && v < width)
                        s += canon_load(x + ((ulong)u * width + v) * channels + c, n);
                }
            canon_store(canon_divide(s, count), y + ((ulong)row * out_w + q) * channels + c, n);
        }
}

__kernel void keel_global_avg_pool(__global const float *x, __global float *y, uint batch, uint pixels,
                                   uint channels)
{
    const uint b = get_global_id(0), c = get_global_id(1) * 16;
    if (b >= batch)
        return;
    float16 s = (float16)(0.0f);
    x += (ulong)b * pixels * channels + c;
    for (uint i = 0; i < pixels; i++)
        s += canon_load(x + (ulong)i * channels, channels - c);
    canon_store(canon_divide(s, (float16)(convert_float(pixels))), y + (ulong)b * channels + c,
                channels - c);
}

__kernel void keel_global_avg_pool_grad(__global const float *dy, __global float *dx, uint batch, uint pixels,
                                        uint channels)
{
    const uint b = get_global_id(0), c = get_global_id(1) * 16;
    if (b >= batch)
        return;
    const float16 d = canon_divide(canon_load(dy + (ulong)b * channels + c, channels - c),
                                       (float16)(convert_float(pixels)));
    dx += (ulong)b * pixels * channels + c;
    for (uint i = 0; i < pixels; i++)
        canon_store(d, dx + (ulong)i * channels, channels - c);
}
