/* erasure_code.c - the Cauchy matrix, its inverses and products. */
#include "erasure_code.h"
#include "galois.h"
#include <keel/memory.h>
#include <string.h>

/* Identity, then 1 / ((k + i) xor c). */
static void cauchy(uint8_t *matrix, uint32_t n, uint32_t k)
{
    for (uint32_t row = 0; row < n; row++)
        for (uint32_t c = 0; c < k; c++)
            matrix[(size_t)row * k + c] = row < k ? row == c : keel_galois_inverse((uint8_t)(row ^ c));
}

enum keel_status keel_erasure_code_init(struct keel_erasure_code *code, uint32_t data_count,
                                        uint32_t parity_count)
{
    const uint32_t k = data_count, n = data_count + parity_count;
    struct keel_erasure_code made = {.data_count = k, .parity_count = parity_count};
    KEEL_ASSERT(k > 0 && parity_count > 0 && n <= KEEL_ERASURE_NODES_MAX);
    enum keel_status status = keel_alloc((size_t)n * k, 1, &made.matrix);
    if (status == KEEL_OK)
        status = keel_alloc((size_t)parity_count * k, KEEL_GALOIS_TABLE_BYTES, &made.tables);
    if (status == KEEL_OK) /* two k x k, then up to n x k and its tables */
        status =
            keel_alloc(2 * (size_t)k * k + (size_t)n * k * (1 + KEEL_GALOIS_TABLE_BYTES), 1, &made.scratch);
    if (status != KEEL_OK) {
        keel_erasure_code_fini(&made);
        return status;
    }
    cauchy(made.matrix, n, k);
    keel_galois_tables(made.matrix + (size_t)k * k, k, parity_count, made.tables);
    *code = made;
    return KEEL_OK;
}

void keel_erasure_code_fini(struct keel_erasure_code *code)
{
    keel_free(code->matrix);
    keel_free(code->tables);
    keel_free(code->scratch);
    *code = (struct keel_erasure_code){0};
}

void keel_erasure_encode(const struct keel_erasure_code *code, uint8_t **data, uint8_t **parity,
                         uint32_t bytes)
{
    keel_galois_combine(code->tables, code->data_count, code->parity_count, data, parity, bytes);
}

/* out = row x matrix, 1 x k by k x k. */
static void product(const uint8_t *row, const uint8_t *matrix, uint32_t k, uint8_t *out)
{
    for (uint32_t column = 0; column < k; column++) {
        uint8_t sum = 0;
        for (uint32_t i = 0; i < k; i++)
            sum ^= keel_galois_multiply(row[i], matrix[(size_t)i * k + column]);
        out[column] = sum;
    }
}

/* With D the data and S the sources: S = A D for the rows A of the matrix, so row w of the code is
 * (matrix row w) A^-1 S. */
void keel_erasure_decode(const struct keel_erasure_code *code, const uint32_t *rows, uint8_t **sources,
                         const uint32_t *wanted, uint32_t wanted_count, uint8_t **out, uint32_t bytes)
{
    const size_t k = code->data_count;
    uint8_t *part = code->scratch, *inverse = part + k * k, *wanted_rows = inverse + k * k;
    uint8_t *tables = wanted_rows + (k + code->parity_count) * k;
    KEEL_ASSERT(wanted_count <= k + code->parity_count);
    for (size_t i = 0; i < k; i++)
        memcpy(part + i * k, code->matrix + rows[i] * k, k);
    bool inverted = keel_galois_invert(part, inverse, code->data_count);
    KEEL_ASSERT(inverted);
    for (uint32_t i = 0; i < wanted_count; i++)
        product(code->matrix + wanted[i] * k, inverse, (uint32_t)k, wanted_rows + i * k);
    if (wanted_count == 0)
        return;
    keel_galois_tables(wanted_rows, code->data_count, wanted_count, tables);
    keel_galois_combine(tables, code->data_count, wanted_count, sources, out, bytes);
}
