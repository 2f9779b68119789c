/* winograd.cl - what goes around the products of Winograd's F(4 x 4, 3 x 3): an output tile of 4 x 4 pixels is made of
 * 6 x 6 of the image, by one product of matrices for each of 36 positions instead of nine for each of 16 pixels.
 *
 *     weights   u[c][position][o] = G g G', g the 3 x 3 weights of (c, o); `turned`: u[o][position][c], of g after half
 *               a turn, for the gradient to data
 *     input     v[tile][position][c] = B' d B, d the 6 x 6 pixels that the tile sees; outside of the image 0
 *     output    y = A' m A (+ bias), of m[tile][position][o]; what lies outside of the output is left out
 *
 * The transform down the columns comes first. Tiles are numbered by image, down, across; these are `count` of them from
 * `first`, TILES to a work-item. Channels lie in the lanes.
 *
 * Tolerance against the host: none, equal bits. Against the convolution of conv.cl: see image_ops.h. */

enum { TILES = 4, POSITIONS = 36 };

#define EACH_6 _Pragma("unroll") for (uint e = 0; e < 6; e++)

/* One tap of 16 neighbouring inputs of output o. */
static inline float16 load_inputs(__global const float *w, uint outs, uint n)
{
    float lanes[16];
    for (uint l = 0; l < 16; l++)
        lanes[l] = l < n ? w[(ulong)l * outs] : 0.0f;
    return vload16(0, lanes);
}

__kernel void keel_winograd_weights(__global const float *w, __global float *u, uint channels, uint outs,
                                    uint turned)
{
    const uint row = get_global_id(0), lanes = turned ? channels : outs;
    if (row >= (turned ? outs : channels))
        return;
    for (uint l = 0; l < lanes; l += 16) {
        const uint n = min(lanes - l, 16u);
        float16 g[3], t[6], down[3][6], across[6];
        _Pragma("unroll") for (uint j = 0; j < 3; j++)
        {
            _Pragma("unroll") for (uint i = 0; i < 3; i++)
            {
                const ulong tap = turned ? 8 - (i * 3 + j) : i * 3 + j;
                g[i] = turned ? load_inputs(w + (tap * channels + l) * outs + row, outs, n)
                              : canon_load(w + (tap * channels + row) * outs + l, n);
            }
            winograd_weights(g, t);
            EACH_6 down[j][e] = t[e];
        }
        _Pragma("unroll") for (uint i = 0; i < 6; i++)
        {
            const float16 one[3] = {down[0][i], down[1][i], down[2][i]};
            winograd_weights(one, across);
            EACH_6 canon_store(across[e], u + ((ulong)row * POSITIONS + i * 6 + e) * lanes + l, n);
        }
    }
}

__kernel void keel_winograd_input(__global const float *x, __global float *v, uint first, uint count, uint height,
                                  uint width, uint channels, uint pad_h, uint pad_w, uint down, uint across)
{
    const uint begin = get_global_id(0) * TILES;
    for (uint tile = begin; tile < min(begin + TILES, count); tile++) {
        const uint number = first + tile, image = number / across / down;
        const uint top = number / across % down * 4 - pad_h, left = number % across * 4 - pad_w;
        __global const float *from = x + (ulong)image * height * width * channels;
        for (uint c = 0; c < channels; c += 16) {
            const uint n = min(channels - c, 16u);
            float16 d[6], t[6], columns[6][6];
            _Pragma("unroll") for (uint j = 0; j < 6; j++)
            {
                EACH_6
                {
                    const bool inside = top + e < height && left + j < width;
                    d[e] = inside ? canon_load(from + ((ulong)(top + e) * width + (left + j)) * channels + c, n)
                                  : (float16)(0.0f);
                }
                winograd_in(d, t);
                EACH_6 columns[e][j] = t[e];
            }
            _Pragma("unroll") for (uint i = 0; i < 6; i++)
            {
                winograd_in(columns[i], t);
                EACH_6 canon_store(t[e], v + ((ulong)tile * POSITIONS + i * 6 + e) * channels + c, n);
            }
        }
    }
}

__kernel void keel_winograd_output(__global const float *m, __global const float *bias, __global float *y,
                                   uint first, uint count, uint out_h, uint out_w, uint outs, uint down,
                                   uint across, uint has_bias)
{
    const uint begin = get_global_id(0) * TILES;
    for (uint tile = begin; tile < min(begin + TILES, count); tile++) {
        const uint number = first + tile, image = number / across / down;
        const uint top = number / across % down * 4, left = number % across * 4;
        __global float *to = y + ((ulong)image * out_h * out_w + (ulong)top * out_w + left) * outs;
        for (uint o = 0; o < outs; o += 16) {
            const uint n = min(outs - o, 16u);
            const float16 more = has_bias ? canon_load(bias + o, n) : (float16)(0.0f);
            float16 column[6], t[4], rows[4][6];
            _Pragma("unroll") for (uint j = 0; j < 6; j++)
            {
                EACH_6 column[e] = canon_load(m + ((ulong)tile * POSITIONS + e * 6 + j) * outs + o, n);
                winograd_out(column, t);
                _Pragma("unroll") for (uint i = 0; i < 4; i++) rows[i][j] = t[i];
            }
            _Pragma("unroll") for (uint i = 0; i < 4; i++)
            {
                winograd_out(rows[i], t);
                _Pragma("unroll") for (uint j = 0; j < 4; j++) if (top + i < out_h && left + j < out_w)
                    canon_store(t[j] + more, to + ((ulong)i * out_w + j) * outs + o, n);
            }
        }
    }
}
