/* merged_index.c - see merged_index.h. */
#include "merged_index.h"
#include <keel/memory.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = {'K', 'E', 'E', 'L', 'I', 'N', 'D', 'X'};

static size_t piece_bytes(uint32_t dims)
{
    return 8 + (size_t)dims * 16;
}

static enum keel_status damaged(const char *label, const char *what)
{
    return keel_fail(KEEL_CORRUPT, "%s: its %s is damaged; remove the file, which follows from the shards",
                     label, what);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

enum keel_status keel_merged_add_tensor(struct keel_merged_writer *writer, const char *name, uint32_t dtype,
                                        uint32_t dims, const uint64_t *shape, uint32_t axis)
{
    struct keel_merged_header *header = &writer->header;
    KEEL_ASSERT(dims <= KEEL_TENSOR_DIMS_MAX && strlen(name) < KEEL_TENSOR_NAME_BYTES);
    KEEL_TRY(keel_grow(&writer->tensors, &writer->tensor_capacity, header->tensor_count + 1,
                       sizeof *writer->tensors));
    struct keel_merged_tensor *tensor = &writer->tensors[header->tensor_count++];
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, name, strlen(name));
    tensor->dtype = dtype;
    tensor->dims = dims;
    if (dims > 0)
        memcpy(tensor->shape, shape, dims * sizeof shape[0]);
    tensor->first_piece = header->piece_count;
    tensor->first_block = header->block_count;
    tensor->axis = axis;
    return KEEL_OK;
}

static enum keel_status begin_block(struct keel_merged_writer *writer, struct keel_merged_tensor *tensor)
{
    struct keel_merged_header *header = &writer->header;
    KEEL_TRY(
        keel_grow(&writer->blocks, &writer->block_capacity, header->block_count + 1, sizeof *writer->blocks));
    const uint64_t reach = tensor->block_count > 0 ? writer->blocks[header->block_count - 1].reach : 0;
    writer->blocks[header->block_count++] =
        (struct keel_merged_block){.offset = writer->piece_bytes, .reach = reach};
    tensor->block_count++;
    return KEEL_OK;
}

enum keel_status keel_merged_add_piece(struct keel_merged_writer *writer,
                                       const struct keel_merged_piece *piece)
{
    struct keel_merged_header *header = &writer->header;
    KEEL_ASSERT(header->tensor_count > 0 && header->piece_count < UINT32_MAX);
    struct keel_merged_tensor *tensor = &writer->tensors[header->tensor_count - 1];
    const size_t bytes = piece_bytes(tensor->dims);
    if (tensor->piece_count % KEEL_MERGED_BLOCK_PIECES == 0)
        KEEL_TRY(begin_block(writer, tensor));
    KEEL_TRY(keel_grow(&writer->pieces, &writer->piece_capacity, writer->piece_bytes + bytes, 1));
    uint8_t *at = writer->pieces + writer->piece_bytes;
    memcpy(at, &piece->shard, 4);
    memcpy(at + 4, &piece->record, 4);
    for (uint32_t d = 0; d < tensor->dims; d++) {
        memcpy(at + 8 + 16 * d, &piece->box.offset[d], 8);
        memcpy(at + 16 + 16 * d, &piece->box.extent[d], 8);
    }
    struct keel_merged_block *block = &writer->blocks[header->block_count - 1];
    const uint64_t end =
        tensor->dims > 0 ? piece->box.offset[tensor->axis] + piece->box.extent[tensor->axis] : 0;
    block->reach = end > block->reach ? end : block->reach;
    block->bytes += (uint32_t)bytes;
    block->piece_count++;
    writer->piece_bytes += bytes;
    tensor->piece_count++;
    header->piece_count++;
    return KEEL_OK;
}

enum keel_status keel_merged_encode(struct keel_merged_writer *writer, uint8_t **out, size_t *out_bytes)
{
    struct keel_merged_header *header = &writer->header;
    const size_t tensors = header->tensor_count * sizeof *writer->tensors;
    const size_t blocks = header->block_count * sizeof *writer->blocks;
    const size_t begin = KEEL_FORMAT_BLOCK_BYTES + tensors + blocks;
    uint8_t *file;
    KEEL_TRY(keel_alloc(begin + writer->piece_bytes, 1, &file));
    for (uint32_t b = 0; b < header->block_count; b++) {
        struct keel_merged_block *block = &writer->blocks[b];
        block->check = keel_format_check(writer->pieces + block->offset, block->bytes);
        block->offset += begin;
    }
    if (tensors > 0)
        memcpy(file + KEEL_FORMAT_BLOCK_BYTES, writer->tensors, tensors);
    if (blocks > 0)
        memcpy(file + KEEL_FORMAT_BLOCK_BYTES + tensors, writer->blocks, blocks);
    if (writer->piece_bytes > 0)
        memcpy(file + begin, writer->pieces, writer->piece_bytes);
    memcpy(header->magic, magic, sizeof magic);
    header->version = KEEL_MERGED_VERSION;
    header->header_bytes = KEEL_FORMAT_BLOCK_BYTES;
    header->directory_bytes = tensors + blocks;
    header->file_bytes = begin + writer->piece_bytes;
    keel_format_digest(file + KEEL_FORMAT_BLOCK_BYTES, header->directory_bytes, header->directory_digest);
    header->check = 0;
    memcpy(file, header, sizeof *header);
    header->check = keel_format_check(file, KEEL_FORMAT_BLOCK_BYTES);
    memcpy(file, header, sizeof *header);
    *out = file;
    *out_bytes = begin + writer->piece_bytes;
    return KEEL_OK;
}

void keel_merged_writer_fini(struct keel_merged_writer *writer)
{
    keel_free(writer->tensors);
    keel_free(writer->blocks);
    keel_free(writer->pieces);
    *writer = (struct keel_merged_writer){.tensors = NULL};
}

enum keel_status keel_merged_shards_digest(const struct keel_shard_summary *shards, uint32_t count,
                                           uint8_t out[KEEL_DIGEST_BYTES])
{
    uint8_t *all;
    KEEL_TRY(keel_alloc(count, KEEL_DIGEST_BYTES, &all));
    for (uint32_t i = 0; i < count; i++)
        memcpy(all + (size_t)i * KEEL_DIGEST_BYTES, shards[i].index_digest, KEEL_DIGEST_BYTES);
    keel_format_digest(all, (uint64_t)count * KEEL_DIGEST_BYTES, out);
    keel_free(all);
    return KEEL_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

enum keel_status keel_merged_header_open(const uint8_t *block, uint64_t file_bytes, const char *label,
                                         struct keel_merged_header *out)
{
    uint8_t copy[KEEL_FORMAT_BLOCK_BYTES];
    struct keel_merged_header header;
    memcpy(copy, block, sizeof copy);
    memcpy(&header, copy, sizeof header);
    memset(copy + offsetof(struct keel_merged_header, check), 0, sizeof header.check);
    if (memcmp(header.magic, magic, sizeof magic) != 0 ||
        header.check != keel_format_check(copy, sizeof copy))
        return damaged(label, "header");
    if (header.version != KEEL_MERGED_VERSION || header.header_bytes != KEEL_FORMAT_BLOCK_BYTES ||
        !keel_format_all_zero(header.reserved, sizeof header.reserved) ||
        !keel_format_all_zero(copy + sizeof header, sizeof copy - sizeof header))
        return keel_fail(KEEL_VERSION, "%s: is of a newer version, and not used", label);
    if (memchr(header.run, '\0', sizeof header.run) == NULL || header.file_bytes != file_bytes ||
        header.shard_count == 0 || header.shard_count > KEEL_SNAPSHOT_RANKS_MAX ||
        header.chain > KEEL_FORMAT_CHAIN_MAX ||
        header.directory_bytes != header.tensor_count * (uint64_t)sizeof(struct keel_merged_tensor) +
                                      header.block_count * (uint64_t)sizeof(struct keel_merged_block) ||
        header.directory_bytes > file_bytes - KEEL_FORMAT_BLOCK_BYTES)
        return damaged(label, "header");
    *out = header;
    return KEEL_OK;
}

static bool tensor_makes_sense(const struct keel_merged_tensor *tensor)
{
    if (memchr(tensor->name, '\0', sizeof tensor->name) == NULL || !keel_tensor_name_valid(tensor->name) ||
        tensor->dims > KEEL_TENSOR_DIMS_MAX || tensor->piece_count == 0 || tensor->zero != 0 ||
        tensor->axis >= (tensor->dims > 0 ? tensor->dims : 1) ||
        tensor->block_count !=
            (tensor->piece_count + (uint64_t)KEEL_MERGED_BLOCK_PIECES - 1) / KEEL_MERGED_BLOCK_PIECES)
        return false;
    struct keel_region region = {.dtype = (enum keel_ckpt_dtype)tensor->dtype, .dims = tensor->dims};
    memcpy(region.name, tensor->name, sizeof region.name);
    memcpy(region.shape, tensor->shape, sizeof region.shape);
    memcpy(region.extent, tensor->shape, sizeof region.extent);
    return keel_region_check(&region) == KEEL_OK;
}

/* Blocks follow each other, in the order of the tensors, each as large as its pieces. */
static bool blocks_make_sense(const struct keel_merged_header *header,
                              const struct keel_merged_tensor *tensor, const struct keel_merged_block *blocks,
                              uint64_t *at)
{
    uint32_t left = tensor->piece_count;
    for (uint32_t b = 0; b < tensor->block_count; b++) {
        const struct keel_merged_block *block = &blocks[tensor->first_block + b];
        const uint32_t count = left < KEEL_MERGED_BLOCK_PIECES ? left : KEEL_MERGED_BLOCK_PIECES;
        if (block->offset != *at || block->piece_count != count ||
            block->bytes != count * piece_bytes(tensor->dims) ||
            (b > 0 && block->reach < blocks[tensor->first_block + b - 1].reach) ||
            block->bytes > header->file_bytes - *at)
            return false;
        *at += block->bytes;
        left -= count;
    }
    return left == 0;
}

enum keel_status keel_merged_directory_check(const struct keel_merged_header *header,
                                             const uint8_t *directory, const char *label)
{
    const struct keel_merged_tensor *tensors = keel_merged_tensors(directory);
    const struct keel_merged_block *blocks = keel_merged_blocks(header, directory);
    uint8_t digest[KEEL_DIGEST_BYTES];
    uint64_t at = KEEL_FORMAT_BLOCK_BYTES + header->directory_bytes;
    uint32_t pieces = 0, block = 0;
    keel_format_digest(directory, header->directory_bytes, digest);
    if (memcmp(digest, header->directory_digest, sizeof digest) != 0)
        return damaged(label, "directory");
    for (uint32_t t = 0; t < header->tensor_count; t++) {
        const struct keel_merged_tensor *tensor = &tensors[t];
        if (!tensor_makes_sense(tensor) || tensor->first_piece != pieces || tensor->first_block != block ||
            tensor->piece_count > header->piece_count - pieces ||
            tensor->block_count > header->block_count - block ||
            (t > 0 && strcmp(tensors[t - 1].name, tensor->name) >= 0) ||
            !blocks_make_sense(header, tensor, blocks, &at))
            return damaged(label, "directory");
        pieces += tensor->piece_count;
        block += tensor->block_count;
    }
    if (pieces != header->piece_count || block != header->block_count || at != header->file_bytes)
        return damaged(label, "directory");
    return KEEL_OK;
}

void keel_merged_piece_at(const struct keel_merged_tensor *tensor, const uint8_t *bytes, uint32_t index,
                          struct keel_merged_piece *out)
{
    const uint8_t *at = bytes + index * piece_bytes(tensor->dims);
    *out = (struct keel_merged_piece){.shard = 0};
    memcpy(&out->shard, at, 4);
    memcpy(&out->record, at + 4, 4);
    for (uint32_t d = 0; d < tensor->dims; d++) {
        memcpy(&out->box.offset[d], at + 8 + 16 * d, 8);
        memcpy(&out->box.extent[d], at + 16 + 16 * d, 8);
    }
}

enum keel_status keel_merged_block_check(const struct keel_merged_header *header,
                                         const struct keel_merged_tensor *tensor,
                                         const struct keel_merged_block *block, const uint8_t *bytes,
                                         const char *label)
{
    if (keel_format_check(bytes, block->bytes) != block->check)
        return damaged(label, "part");
    for (uint32_t i = 0; i < block->piece_count; i++) {
        struct keel_merged_piece piece;
        keel_merged_piece_at(tensor, bytes, i, &piece);
        bool fine = piece.shard < header->shard_count && piece.record < KEEL_FORMAT_RECORDS_MAX;
        for (uint32_t d = 0; d < tensor->dims && fine; d++)
            fine = piece.box.offset[d] <= tensor->shape[d] &&
                   piece.box.extent[d] <= tensor->shape[d] - piece.box.offset[d];
        if (fine && tensor->dims > 0)
            fine = piece.box.offset[tensor->axis] + piece.box.extent[tensor->axis] <= block->reach;
        if (!fine)
            return damaged(label, "part");
    }
    return KEEL_OK;
}
