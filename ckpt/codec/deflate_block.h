/* deflate_block.h - inside of deflate_decode.c: the one block of a stream, its codes and the table that looks
 * them up. Made from the stream's first bytes, which are a stranger's; constant from then on. Pure. */
#ifndef KEEL_CKPT_DEFLATE_BLOCK_H
#define KEEL_CKPT_DEFLATE_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    KEEL_DEFLATE_LITERALS = 256,
    KEEL_DEFLATE_END_OF_BLOCK = 256,
    KEEL_DEFLATE_LENGTH_CODES_MAX = 286, /* literals, end of block, 29 lengths of repetitions */
    KEEL_DEFLATE_DISTANCE_CODES_MAX = 30,
    KEEL_DEFLATE_CODE_BITS_MAX = 15,
    KEEL_DEFLATE_TABLE_BITS = 11,
    KEEL_DEFLATE_ENTRY_LITERALS_MAX = 6
};

/* Table entries.
 *   literals   bits used (8 bits), how many (8 bits), the literals, first lowest (6 x 8 bits)
 *   special    16 bits of zero, symbol (16 bits), bits used (8 bits): end of block or a repetition
 *   0          a code of more than 11 bits
 * The low 16 bits of the last two move a lane neither in the stream nor in the output. */
struct keel_deflate_block {
    const uint8_t *stream;
    size_t stream_bytes;
    uint64_t end;  /* in bits */
    uint64_t safe; /* a load of eight bytes may begin below this bit */
    bool repeats;  /* there is a distance code: 1, of one bit */
    uint8_t lengths[KEEL_DEFLATE_LENGTH_CODES_MAX + KEEL_DEFLATE_DISTANCE_CODES_MAX];
    uint16_t per_length[KEEL_DEFLATE_CODE_BITS_MAX + 1],
        sorted[KEEL_DEFLATE_LENGTH_CODES_MAX]; /* symbols in the order of their codes */
    uint64_t
        tables[2 << KEEL_DEFLATE_TABLE_BITS]; /* that of b bits is at 1 << b; only the last is looked up */
};

/* Make it of a stream's header; *out_at is the bit behind that. False: damaged, or of a kind that is not
 * taken (deflate_decode.h). */
bool keel_deflate_block_open(struct keel_deflate_block *block, const uint8_t *stream, size_t stream_bytes,
                             uint64_t *out_at);
/* The symbol whose code begins `bits`, when the table does not know it. */
uint32_t keel_deflate_long_symbol(const struct keel_deflate_block *block, uint64_t bits);

/* At least 57 bits from bit `at` on; zeros behind the end. */
static inline uint64_t keel_deflate_peek(const struct keel_deflate_block *block, uint64_t at)
{
    uint64_t word = 0;
    size_t byte = (size_t)(at >> 3);
    if (at < block->safe)
        memcpy(&word, block->stream + byte, sizeof word);
    else
        for (size_t i = 0; i < sizeof word && byte + i < block->stream_bytes; i++)
            word |= (uint64_t)block->stream[byte + i] << (8 * i);
    return word >> (at & 7);
}

static inline uint64_t keel_deflate_entry(const uint64_t *table, uint64_t bits)
{
    return table[bits & ((1U << KEEL_DEFLATE_TABLE_BITS) - 1)];
}

static inline const uint64_t *keel_deflate_table(const struct keel_deflate_block *block)
{
    return block->tables + (1U << KEEL_DEFLATE_TABLE_BITS);
}

#endif
