/* galois_plain.c - galois.h in C, where Keel is built with ISAL=no: the same bytes, a few times slower. */
#include "galois.h"
#include <string.h>

enum { POLYNOMIAL = 0x1d, NIBBLES = 16 };

uint8_t keel_galois_multiply(uint8_t a, uint8_t b)
{
    unsigned product = 0, shifted = a;
    for (unsigned bits = b; bits != 0; bits >>= 1) {
        if (bits & 1)
            product ^= shifted;
        shifted = (shifted << 1) ^ (shifted & 0x80 ? 0x100 | POLYNOMIAL : 0);
    }
    return (uint8_t)product;
}

/* a^254, since a^255 = 1. */
uint8_t keel_galois_inverse(uint8_t a)
{
    uint8_t power = 1;
    for (int i = 0; i < 254; i++)
        power = keel_galois_multiply(power, a);
    return power;
}

static void scale(uint8_t *row, uint8_t by, uint32_t k)
{
    for (uint32_t c = 0; c < k; c++)
        row[c] = keel_galois_multiply(row[c], by);
}

static void subtract(uint8_t *row, const uint8_t *other, uint8_t times, uint32_t k)
{
    for (uint32_t c = 0; c < k; c++)
        row[c] ^= keel_galois_multiply(other[c], times);
}

/* A row at or below `at` whose number in column `at` is not 0 comes to `at`: added to it, which swaps
 * nothing. */
static bool find_pivot(uint8_t *matrix, uint8_t *out, uint32_t at, uint32_t k)
{
    uint32_t r = at;
    while (r < k && matrix[r * k + at] == 0)
        r++;
    if (r == k)
        return false;
    if (r > at) {
        subtract(matrix + (size_t)at * k, matrix + (size_t)r * k, 1, k);
        subtract(out + (size_t)at * k, out + (size_t)r * k, 1, k);
    }
    return true;
}

/* Gauss and Jordan. */
bool keel_galois_invert(uint8_t *matrix, uint8_t *out, uint32_t k)
{
    memset(out, 0, (size_t)k * k);
    for (uint32_t i = 0; i < k; i++)
        out[(size_t)i * k + i] = 1;
    for (uint32_t i = 0; i < k; i++) {
        if (!find_pivot(matrix, out, i, k))
            return false;
        const uint8_t inverse = keel_galois_inverse(matrix[(size_t)i * k + i]);
        scale(matrix + (size_t)i * k, inverse, k);
        scale(out + (size_t)i * k, inverse, k);
        for (uint32_t r = 0; r < k; r++) {
            const uint8_t times = matrix[(size_t)r * k + i];
            if (r == i || times == 0)
                continue;
            subtract(matrix + (size_t)r * k, matrix + (size_t)i * k, times, k);
            subtract(out + (size_t)r * k, out + (size_t)i * k, times, k);
        }
    }
    return true;
}

void keel_galois_tables(const uint8_t *coefficients, uint32_t k, uint32_t rows, uint8_t *out)
{
    for (size_t i = 0; i < (size_t)rows * k; i++)
        for (unsigned nibble = 0; nibble < NIBBLES; nibble++) {
            uint8_t *table = out + i * KEEL_GALOIS_TABLE_BYTES;
            table[nibble] = keel_galois_multiply(coefficients[i], (uint8_t)nibble);
            table[NIBBLES + nibble] = keel_galois_multiply(coefficients[i], (uint8_t)(nibble << 4));
        }
}

static void add_product(const uint8_t *table, const uint8_t *source, uint8_t *out, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] ^= table[source[i] & 15] ^ table[NIBBLES + (source[i] >> 4)];
}

void keel_galois_combine(const uint8_t *tables, uint32_t k, uint32_t rows, uint8_t **sources, uint8_t **out,
                         uint32_t bytes)
{
    for (uint32_t r = 0; r < rows; r++) {
        memset(out[r], 0, bytes);
        for (uint32_t c = 0; c < k; c++)
            add_product(tables + ((size_t)r * k + c) * KEEL_GALOIS_TABLE_BYTES, sources[c], out[r], bytes);
    }
}
