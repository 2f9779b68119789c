/* memcheck.cl - one pass over a piece of memory: compare every word with a pattern, write the next one.
 *
 * Shapes: words[count] of 32 bits; report[items][4] of (errors, index of the first, what was there, what
 * should have been). Work-item g of G does `span` words from g * span on, then those G * span further on, and
 * so forth, upwards or downwards: span 1 where neighbours read together (a GPU), the whole of its share where
 * each reads alone (a CPU). Global size G, any local size. A pattern is a function of the word's address on the board (base + index), so that a line of
 * addresses that is stuck shows wherever it folds the memory. Integers only: the same words on any device.
 * Patterns and their numbers are in memcheck.h. */

static inline uint memcheck_pattern(uint pattern, uint seed, ulong address)
{
    const uint kind = pattern & 7u, low = (uint)address, high = (uint)(address >> 32);
    uint word = seed;
    if (kind == 1u)
        word = low ^ (high * 0x9e3779b9u);
    else if (kind == 3u)
        word = 1u << ((low + seed) & 31u);
    else if (kind == 4u) {
        word = low * 0x9e3779b1u ^ high ^ seed;
        word = (word ^ (word >> 16)) * 0x85ebca6bu;
        word = (word ^ (word >> 13)) * 0xc2b2ae35u;
        word ^= word >> 16;
    }
    return (pattern & 8u) != 0 ? ~word : word;
}

__kernel void keel_memcheck_pass(__global uint *words, __global uint *report, ulong base, uint count,
                                 uint expect, uint expect_seed, uint write, uint write_seed, uint down, uint span)
{
    const uint items = (uint)get_global_size(0), item = (uint)get_global_id(0);
    uint errors = 0, first = 0, got = 0, wanted = 0;
    const ulong stride = (ulong)items * span, blocks = (count + stride - 1) / stride;
    for (ulong block = 0; block < blocks; block++) {
        const ulong start = (down != 0 ? blocks - 1 - block : block) * stride + (ulong)item * span;
        const uint turns = start < count ? (uint)min((ulong)span, count - start) : 0;
        for (uint turn = 0; turn < turns; turn++) {
            const uint index = (uint)start + (down != 0 ? turns - 1 - turn : turn);
            if (expect != 0) {
                const uint word = words[index], right = memcheck_pattern(expect, expect_seed, base + index);
                if (word != right) {
                    if (errors == 0) {
                        first = index;
                        got = word;
                        wanted = right;
                    }
                    errors++;
                }
            }
            if (write != 0)
                words[index] = memcheck_pattern(write, write_seed, base + index);
        }
    }
    report[item * 4] = errors;
    report[item * 4 + 1] = first;
    report[item * 4 + 2] = got;
    report[item * 4 + 3] = wanted;
}
