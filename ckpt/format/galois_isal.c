/* galois_isal.c - galois.h by ISA-L, whose arguments are not const although it only reads them. */
#include "galois.h"
#include <isa-l/erasure_code.h>
#include <string.h>

uint8_t keel_galois_multiply(uint8_t a, uint8_t b)
{
    return gf_mul(a, b);
}

uint8_t keel_galois_inverse(uint8_t a)
{
    return gf_inv(a);
}

bool keel_galois_invert(uint8_t *matrix, uint8_t *out, uint32_t k)
{
    return gf_invert_matrix(matrix, out, (int)k) == 0;
}

void keel_galois_tables(const uint8_t *coefficients, uint32_t k, uint32_t rows, uint8_t *out)
{
    uint8_t *read;
    memcpy(&read, &coefficients, sizeof read);
    ec_init_tables((int)k, (int)rows, read, out);
}

void keel_galois_combine(const uint8_t *tables, uint32_t k, uint32_t rows, uint8_t **sources, uint8_t **out,
                         uint32_t bytes)
{
    uint8_t *read;
    memcpy(&read, &tables, sizeof read);
    ec_encode_data((int)bytes, (int)k, (int)rows, read, sources, out);
}
