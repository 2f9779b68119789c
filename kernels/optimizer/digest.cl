/* digest.cl - digest[0] += sum over i, modulo 2^64, of mix(word_i, first + i / row * stride + i % row).
 *
 * Shapes: `count` 32-bit words of any type. mix is the finaliser of splitmix64 (Steele, Lea, Flood 2014)
 * of word + index * golden ratio. Integers only, and addition modulo 2^64 has no order: any split of a
 * tensor, any block and any device give the same sum. digest_blocks leaves one partial sum for each
 * 4096 words in scratch; digest_sum adds them up. Where lanes are many a group has a block, or all sums, together. */

#if KEEL_ROW_ITEMS > 1
static inline ulong mix_1(ulong z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

__kernel void keel_digest_blocks(__global const uint *x, __global ulong *scratch, ulong count, ulong first, ulong row,
                                 ulong stride)
{
    __local ulong totals[ROW_GROUP];
    const ulong start = (ulong)get_group_id(0) * 4096;
    const uint n = (uint)min(count - start, (ulong)4096);
    ulong sum = 0;
    first += start / row * stride;
    _Pragma("unroll 8") for (uint i = get_local_id(0); i < n; i += get_local_size(0))
    {
        const ulong column = start % row + i;
        const ulong rows = column < row ? 0 : column < 2 * row ? 1 : (uint)column / (uint)row; /* row < 4096 */
        sum += mix_1(x[start + i] + (first + rows * stride + (column - rows * row)) * 0x9e3779b97f4a7c15UL);
    }
    sum = group_total(sum, totals);
    if (get_local_id(0) == 0)
        scratch[get_group_id(0)] = sum;
}

__kernel void keel_digest_sum(__global const ulong *scratch, __global ulong *digest, ulong blocks)
{
    __local ulong totals[ROW_GROUP];
    ulong sum = 0;
    _Pragma("unroll 8") for (ulong b = get_local_id(0); b < blocks; b += get_local_size(0)) sum += scratch[b];
    sum = group_total(sum, totals);
    if (get_local_id(0) == 0)
        digest[0] += sum;
}
#else

static inline ulong8 mix_8(ulong8 z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

/* Of n words that lie together, of which the first has number `first`. */
static inline ulong8 mix_run(__global const uint *x, ulong n, ulong first)
{
    const ulong golden = 0x9e3779b97f4a7c15UL;
    const ulong8 lane = (ulong8)(0, 1, 2, 3, 4, 5, 6, 7);
    ulong8 sum = (ulong8)(0);
    ulong8 index = ((ulong8)(first) + lane) * golden;
    ulong i = 0;
    for (; i + 8 <= n; i += 8) {
        sum += mix_8(convert_ulong8(vload8(0, x + i)) + index);
        index += (ulong8)(8 * golden);
    }
    ulong8 tail = (ulong8)(0);
    for (; i < n; i++) {
        ulong z = x[i] + (first + i) * golden;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
        tail.s0 += z ^ (z >> 31);
    }
    return sum + tail;
}

__kernel void keel_digest_blocks(__global const uint *x, __global ulong *scratch, ulong count, ulong first, ulong row,
                                 ulong stride)
{
    const ulong start = (ulong)get_global_id(0) * 4096, end = min(start + 4096, count);
    if (start >= count)
        return;
    ulong8 sum = (ulong8)(0);
    ulong at_row = start / row, column = start % row;
    for (ulong i = start; i < end; at_row++, column = 0) {
        const ulong n = min(end - i, row - column);
        sum += mix_run(x + i, n, first + at_row * stride + column);
        i += n;
    }
    scratch[get_global_id(0)] = sum.s0 + sum.s1 + sum.s2 + sum.s3 + sum.s4 + sum.s5 + sum.s6 + sum.s7;
}

__kernel void keel_digest_sum(__global const ulong *scratch, __global ulong *digest, ulong blocks)
{
    if (get_global_id(0) != 0)
        return;
    ulong sum = digest[0];
    for (ulong b = 0; b < blocks; b++)
        sum += scratch[b];
    digest[0] = sum;
}
#endif
