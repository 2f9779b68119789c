/* merged_fuzz.c - any bytes as index.keel: refused, or all that it says lies within its tensors and its
 * shards. The mutator keeps the checks right, else nothing would get past them. */
#include "fuzz.h"
#include "merged_index.h"
#include <keel/memory.h>

enum { HEAD = KEEL_FORMAT_BLOCK_BYTES };

static void read_tensor(const struct keel_merged_header *header, const uint8_t *file,
                        const struct keel_merged_tensor *tensor)
{
    const struct keel_merged_block *blocks = keel_merged_blocks(header, file + HEAD);
    uint32_t pieces = 0;
    for (uint32_t b = tensor->first_block; b < tensor->first_block + tensor->block_count; b++) {
        KEEL_ASSERT(blocks[b].offset <= header->file_bytes &&
                    blocks[b].bytes <= header->file_bytes - blocks[b].offset);
        pieces += blocks[b].piece_count;
        if (keel_merged_block_check(header, tensor, &blocks[b], file + blocks[b].offset, "input") != KEEL_OK)
            continue;
        for (uint32_t i = 0; i < blocks[b].piece_count; i++) {
            struct keel_merged_piece piece;
            keel_merged_piece_at(tensor, file + blocks[b].offset, i, &piece);
            KEEL_ASSERT(piece.shard < header->shard_count);
            for (uint32_t d = 0; d < tensor->dims; d++)
                KEEL_ASSERT(piece.box.offset[d] + piece.box.extent[d] <= tensor->shape[d]);
        }
    }
    KEEL_ASSERT(pieces == tensor->piece_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct keel_merged_header header;
    uint8_t *file;
    if (bytes < HEAD || keel_merged_header_open(data, bytes, "input", &header) != KEEL_OK)
        return 0;
    KEEL_ASSERT(keel_alloc_aligned(KEEL_PAGE_BYTES, bytes, &file) == KEEL_OK);
    memcpy(file, data, bytes);
    if (keel_merged_directory_check(&header, file + HEAD, "input") == KEEL_OK)
        for (uint32_t t = 0; t < header.tensor_count; t++)
            read_tensor(&header, file, &keel_merged_tensors(file + HEAD)[t]);
    keel_free(file);
    return 0;
}

/* Checks of blocks, of the directory, of the header, in that order, as far as they lie in the file. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t max_bytes, unsigned seed)
{
    struct keel_merged_header header;
    bytes = LLVMFuzzerMutate(data, bytes, max_bytes);
    if (bytes < HEAD || seed % 16 == 0)
        return bytes;
    memcpy(&header, data, sizeof header);
    const uint64_t tensors = header.tensor_count * (uint64_t)sizeof(struct keel_merged_tensor);
    const uint64_t blocks = header.block_count * (uint64_t)sizeof(struct keel_merged_block);
    if (tensors + blocks <= bytes - HEAD) {
        for (uint32_t b = 0; b < header.block_count; b++) {
            struct keel_merged_block block;
            uint8_t *at = data + HEAD + tensors + b * sizeof block;
            memcpy(&block, at, sizeof block);
            if (block.offset <= bytes && block.bytes <= bytes - block.offset)
                block.check = keel_format_check(data + block.offset, block.bytes);
            memcpy(at, &block, sizeof block);
        }
        keel_format_digest(data + HEAD, tensors + blocks, header.directory_digest);
        header.directory_bytes = tensors + blocks;
    }
    header.file_bytes = bytes;
    header.check = 0;
    memcpy(data, &header, sizeof header);
    header.check = keel_format_check(data, HEAD);
    memcpy(data, &header, sizeof header);
    return bytes;
}
