/* probe.cl - kernels whose results show what a driver did with their launch: when, how often, over which grid.
 *
 * Shapes: words[...] of 32 bits. Integers, and comparisons of floats: the same words on any device. Tunables: none. */

static inline uint probe_mix(uint x)
{
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* words[at + i] = value + i for i < count, after `steps` turns that depend on each other: a launch that takes as
 * long as one likes. Global size 1. */
__kernel void keel_probe_slow(__global uint *words, uint at, uint count, uint steps, uint value)
{
    uint x = value | 1u;
    for (uint i = 0; i < steps; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    value += x == 0u ? 1u : 0u; /* never: but the compiler does not know */
    for (uint i = 0; i < count; i++)
        words[at + i] = value + i;
}

/* to[i] = from[i]. Global size: the words. */
__kernel void keel_probe_copy(__global const uint *from, __global uint *to)
{
    to[get_global_id(0)] = from[get_global_id(0)];
}

/* words[linear id] += a word made of group, place in the group and size of the group in each dimension. */
__kernel void keel_probe_grid(__global uint *words)
{
    uint word = 0;
    for (uint d = 0; d < 3; d++) {
        word = probe_mix(word + (uint)get_group_id(d));
        word = probe_mix(word + (uint)get_local_id(d));
        word = probe_mix(word + (uint)get_local_size(d));
    }
    words[(get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)] += word;
}

/* words[at] = 3 words[at] + value: each launch counts, once, and in its order. Global size 1. */
__kernel void keel_probe_step(__global uint *words, uint at, uint value)
{
    words[at] = words[at] * 3u + value;
}

/* to[i] = 1 where from[i] is not a number, 2 where it is infinite, else 0. Global size: the words. */
__kernel void keel_probe_class(__global const float *from, __global uint *to)
{
    const float x = from[get_global_id(0)];
    to[get_global_id(0)] = x != x ? 1u : fabs(x) == INFINITY ? 2u : 0u;
}
