/* snapshot_read.c - reading boxes of tensors from whichever shards hold them, and verifying all chunks.
 *
 * A box is covered greedily: take the first piece that intersects it, read that part, cut it out, and go on
 * with what is left and the pieces behind. So replicas that overlap are read once, and a hole is found, not
 * filled with what happened to be in memory. */
#include "snapshot.h"
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

/* ---- cover
 * ----------------------------------------------------------------------------------------------------- */

enum { COVER_STACK_MAX = 1 << 16 };

struct cover_item {
    struct keel_box box;
    uint32_t next_piece; /* those before do not intersect it */
};

static enum keel_status grow(struct cover_item **stack, uint32_t *capacity, const char *name)
{
    if (*capacity >= COVER_STACK_MAX)
        return keel_fail(KEEL_LIMIT, "tensor %s: its pieces are too scattered to be put together", name);
    KEEL_TRY(keel_realloc(stack, *capacity, *capacity * 2, sizeof **stack));
    *capacity *= 2;
    return KEEL_OK;
}

/* The first piece from `next` on that intersects `box`; end when there is none. */
static uint32_t find_piece(const struct keel_snapshot *snapshot, const struct keel_box *box, uint32_t next,
                           uint32_t end, struct keel_box *out_part)
{
    for (; next < end; next++) {
        struct keel_region region;
        const struct keel_format_record *record = keel_snapshot_record(snapshot, next);
        keel_record_region(record, &region);
        struct keel_box held = keel_box_of(&region);
        if (keel_box_intersect(box, &held, record->dims, out_part))
            break;
    }
    return next;
}

static enum keel_status hole(const struct keel_snapshot *snapshot, const struct keel_format_record *record,
                             const struct keel_box *box)
{
    char at[KEEL_TENSOR_DIMS_MAX * 24] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < record->dims; i++)
        used += (size_t)snprintf(at + used, sizeof at - used, "%s%llu", i > 0 ? "," : "",
                                 (unsigned long long)box->offset[i]);
    return keel_fail(KEEL_CORRUPT, "%s: tensor %s: no shard holds its part at [%s]; use another snapshot",
                     snapshot->place.path, record->name, at);
}

enum keel_status keel_snapshot_cover(
    const struct keel_snapshot *snapshot, const struct keel_tensor *tensor, const struct keel_box *box,
    enum keel_status (*visit)(void *context, uint32_t piece, const struct keel_box *part), void *context)
{
    const struct keel_format_record *first = keel_snapshot_record(snapshot, tensor->first_piece);
    uint32_t end = tensor->first_piece + tensor->piece_count, capacity = 64, count = 1;
    struct cover_item *stack;
    if (keel_box_empty(box, first->dims))
        return KEEL_OK;
    KEEL_TRY(keel_alloc(capacity, sizeof *stack, &stack));
    stack[0] = (struct cover_item){*box, tensor->first_piece};
    enum keel_status status = KEEL_OK;
    while (count > 0 && status == KEEL_OK) {
        struct cover_item item = stack[--count];
        struct keel_box part, left[2 * KEEL_TENSOR_DIMS_MAX];
        uint32_t piece = find_piece(snapshot, &item.box, item.next_piece, end, &part);
        if (piece == end) {
            status = hole(snapshot, first, &item.box);
            break;
        }
        if (visit != NULL)
            status = visit(context, piece, &part);
        uint32_t left_count = keel_box_subtract(&item.box, &part, first->dims, left);
        while (count + left_count > capacity && status == KEEL_OK)
            status = grow(&stack, &capacity, first->name);
        for (uint32_t i = left_count; i-- > 0 && status == KEEL_OK;)
            stack[count++] = (struct cover_item){left[i], piece + 1};
    }
    keel_free(stack);
    return status;
}

/* ---- read
 * ------------------------------------------------------------------------------------------------------ */

struct box_read {
    const struct keel_snapshot *snapshot;
    struct keel_box box; /* what `out` holds, dense */
    uint8_t *out;
};

/* Bytes [at, at + bytes) of a record's dense data, chunk by chunk. */
static enum keel_status copy_bytes(struct keel_chunk_reader *reader, const struct keel_format_record *record,
                                   uint64_t at, uint64_t bytes, uint8_t *out)
{
    while (bytes > 0) {
        uint64_t within = at % record->chunk_bytes, part = record->chunk_bytes - within;
        part = part < bytes ? part : bytes;
        KEEL_TRY(keel_chunk_reader_load(reader, record, (uint32_t)(at / record->chunk_bytes)));
        memcpy(out, reader->raw + within, part);
        out += part;
        at += part;
        bytes -= part;
    }
    return KEEL_OK;
}

/* Step `at` to the next row of `part`: the last `inner` dimensions stay. False behind the last row. */
static bool next_row(const struct keel_box *part, uint32_t outer, uint64_t *at)
{
    for (uint32_t i = outer; i-- > 0;) {
        if (++at[i] < part->offset[i] + part->extent[i])
            return true;
        at[i] = part->offset[i];
    }
    return false;
}

/* How many leading dimensions must be walked: the others are contiguous in both boxes. */
static uint32_t outer_dims(const struct keel_box *part, const struct keel_box *a, const struct keel_box *b,
                           uint32_t dims, uint64_t *out_row_elements)
{
    uint64_t row = 1;
    uint32_t outer = dims;
    while (outer > 0) {
        outer--;
        row *= part->extent[outer];
        if (part->extent[outer] != a->extent[outer] || part->extent[outer] != b->extent[outer])
            break;
    }
    *out_row_elements = row;
    return outer;
}

static enum keel_status read_part(void *context, uint32_t piece, const struct keel_box *part)
{
    const struct box_read *read = context;
    const struct keel_snapshot *snapshot = read->snapshot;
    const struct keel_format_record *record = keel_snapshot_record(snapshot, piece);
    struct keel_region region;
    keel_record_region(record, &region);
    struct keel_box held = keel_box_of(&region);
    uint64_t element = keel_ckpt_dtype_bytes(region.dtype), row;
    uint32_t outer = outer_dims(part, &held, &read->box, record->dims, &row);
    uint64_t at[KEEL_TENSOR_DIMS_MAX];
    memcpy(at, part->offset, sizeof at);

    uint64_t largest = record->raw_bytes < record->chunk_bytes ? record->raw_bytes : record->chunk_bytes;
    struct keel_chunk_reader reader;
    KEEL_TRY(keel_chunk_reader_open(&snapshot->place, &snapshot->shards[snapshot->pieces[piece].shard],
                                    largest, &reader));
    enum keel_status status;
    do
        status = copy_bytes(&reader, record, keel_box_index(&held, at, record->dims) * element, row * element,
                            read->out + keel_box_index(&read->box, at, record->dims) * element);
    while (status == KEEL_OK && next_row(part, outer, at));
    keel_chunk_reader_close(&reader);
    return status;
}

static const struct keel_tensor *find_tensor(const struct keel_snapshot *snapshot, const char *name)
{
    uint32_t low = 0, high = snapshot->tensor_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct keel_tensor *tensor = &snapshot->tensors[middle];
        int order = strcmp(name, keel_snapshot_record(snapshot, tensor->first_piece)->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

enum keel_status keel_snapshot_read(struct keel_snapshot *snapshot, const struct keel_region *box, void *out,
                                    uint64_t out_bytes)
{
    KEEL_TRY(keel_region_check(box));
    const struct keel_tensor *tensor = find_tensor(snapshot, box->name);
    if (tensor == NULL)
        return keel_fail(KEEL_NOT_FOUND, "%s: holds no tensor %s", snapshot->place.path, box->name);
    const struct keel_format_record *record = keel_snapshot_record(snapshot, tensor->first_piece);
    if (record->dtype != (uint32_t)box->dtype || record->dims != box->dims ||
        memcmp(record->shape, box->shape, box->dims * sizeof box->shape[0]) != 0)
        return keel_fail(KEEL_MISMATCH, "%s: tensor %s is stored with another shape or dtype",
                         snapshot->place.path, box->name);
    if (keel_region_bytes(box) != out_bytes)
        return keel_fail(KEEL_INVALID, "tensor %s: the box has %llu bytes, the memory %llu", box->name,
                         (unsigned long long)keel_region_bytes(box), (unsigned long long)out_bytes);
    struct box_read read = {.snapshot = snapshot, .box = keel_box_of(box), .out = out};
    return keel_snapshot_cover(snapshot, tensor, &read.box, read_part, &read);
}

/* ---- verify
 * ---------------------------------------------------------------------------------------------------- */

struct verify {
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
    uint64_t done_bytes, total_bytes;
    uint32_t damaged;
    enum keel_status first;
    char first_detail[KEEL_DETAIL_BYTES];
};

static void note_damage(struct verify *verify, enum keel_status status)
{
    verify->damaged++;
    if (verify->first != KEEL_OK)
        return;
    verify->first = status;
    snprintf(verify->first_detail, sizeof verify->first_detail, "%s", keel_detail());
}

/* Damage is counted; what makes further reading pointless (no memory, no descriptor) is returned. */
static enum keel_status verify_shard(const struct keel_snapshot *snapshot, const struct keel_shard *shard,
                                     struct verify *verify)
{
    struct keel_chunk_reader reader;
    enum keel_status status =
        keel_chunk_reader_open(&snapshot->place, shard, KEEL_FORMAT_CHUNK_BYTES, &reader);
    if (status == KEEL_CORRUPT) {
        note_damage(verify, status);
        return KEEL_OK;
    }
    for (uint32_t r = 0; r < shard->footer.record_count && status == KEEL_OK; r++) {
        const struct keel_format_record *record = &shard->records[r];
        for (uint32_t c = 0; c < record->chunk_count && status == KEEL_OK; c++) {
            status = keel_chunk_reader_load(&reader, record, c);
            if (status == KEEL_CORRUPT || status == KEEL_IO) {
                note_damage(verify, status);
                status = KEEL_OK;
            }
            verify->done_bytes += shard->chunks[record->first_chunk + c].raw_bytes;
            if (verify->progress != NULL)
                verify->progress(verify->context, verify->done_bytes, verify->total_bytes);
        }
    }
    if (reader.fd >= 0)
        keel_chunk_reader_close(&reader);
    return status;
}

enum keel_status keel_snapshot_verify(struct keel_snapshot *snapshot,
                                      void (*progress)(void *context, uint64_t done_bytes,
                                                       uint64_t total_bytes),
                                      void *context, uint32_t *out_damaged)
{
    struct verify verify = {
        .progress = progress, .context = context, .total_bytes = snapshot->manifest.info.raw_bytes};
    for (uint32_t i = 0; i < snapshot->manifest.info.shard_count; i++)
        KEEL_TRY(verify_shard(snapshot, &snapshot->shards[i], &verify));
    for (uint32_t i = 0; i < snapshot->tensor_count; i++) {
        struct keel_region whole;
        KEEL_TRY(keel_snapshot_tensor(snapshot, i, &whole));
        struct keel_box box = keel_box_of(&whole);
        enum keel_status status = keel_snapshot_cover(snapshot, &snapshot->tensors[i], &box, NULL, NULL);
        if (status != KEEL_OK)
            note_damage(&verify, status);
    }
    if (out_damaged != NULL)
        *out_damaged = verify.damaged;
    if (verify.damaged == 0)
        return KEEL_OK;
    keel_detail_set(verify.first_detail);
    return KEEL_CORRUPT;
}
