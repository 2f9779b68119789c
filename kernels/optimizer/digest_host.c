/* digest_host.c - digest.cl in C: the reference, what the host device runs, and what tools call. */
#include "kernels_internal.h"

#include <string.h>

extern const struct keel_packed_text keel_cl_digest;

uint64_t keel_digest_host(const void *words, uint64_t count, uint64_t first_element)
{
    const unsigned char *bytes = words;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, bytes + 4 * i, sizeof word);
        uint64_t z = word + (first_element + i) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        sum += z ^ (z >> 31);
    }
    return sum;
}

uint64_t keel_digest_rows(const void *words, uint64_t count, uint64_t start,
                          const struct keel_random_slice *numbers)
{
    const uint32_t *x = words;
    if (count == 0)
        return 0;
    uint64_t sum = 0, row = start / numbers->row, column = start % numbers->row, n;
    for (uint64_t i = 0; i < count; i += n, row++, column = 0) {
        n = count - i < numbers->row - column ? count - i : numbers->row - column;
        sum += keel_digest_host(x + i, n, numbers->first + row * numbers->stride + column);
    }
    return sum;
}

static void host_digest_blocks(KEEL_HOST_ARGUMENTS)
{
    const uint32_t *x = arguments[0];
    uint64_t *scratch = arguments[1];
    const uint64_t count = u64_at(arguments, 2);
    const struct keel_random_slice numbers = {u64_at(arguments, 3), u64_at(arguments, 4),
                                              u64_at(arguments, 5)};
    for (uint64_t start = 0; start < count; start += KEEL_BLOCK_ELEMENTS) {
        uint64_t length = count - start < KEEL_BLOCK_ELEMENTS ? count - start : KEEL_BLOCK_ELEMENTS;
        scratch[start / KEEL_BLOCK_ELEMENTS] = keel_digest_rows(x + start, length, start, &numbers);
    }
}

static void host_digest_sum(KEEL_HOST_ARGUMENTS)
{
    const uint64_t *scratch = arguments[0];
    uint64_t *digest = arguments[1];
    uint64_t blocks = u64_at(arguments, 2);
    for (uint64_t b = 0; b < blocks; b++)
        digest[0] += scratch[b];
}

static const struct keel_module_kernel digest_kernels[] = {
    {"keel_digest_blocks", host_digest_blocks},
    {"keel_digest_sum", host_digest_sum},
};

const struct keel_module keel_module_digest = KEEL_MODULE("digest", keel_cl_digest, digest_kernels);
