/* parity_file.c - a parity file read through a tier: its header, its footer, and all of it. */
#include "parity.h"
#include "tier.h"
#include "tier_digest.h"
#include <keel/memory.h>
#include <string.h>

enum keel_status keel_parity_read_header(struct keel_tier_source *source, struct keel_parity_header *out)
{
    const struct keel_object *object = &source->info.object;
    struct keel_parity_header header = {.version = 0};
    const struct keel_label label = keel_source_label(source);
    KEEL_TRY(keel_tier_read(source, 0, &header, sizeof header));
    KEEL_TRY(keel_parity_header_check(&header, label.text));
    if (strcmp(header.run, source->tier->run) != 0 || header.step != object->step ||
        header.attempt != object->attempt || header.set != object->set || header.member != object->member)
        return keel_fail(KEEL_MISMATCH,
                         "%s: holds member %u of set %u of %s/step-%llu.%llu; use another copy", label.text,
                         header.member, header.set, header.run, (unsigned long long)header.step,
                         (unsigned long long)header.attempt);
    *out = header;
    return KEEL_OK;
}

enum keel_status keel_parity_read_footer(struct keel_tier_source *source, struct keel_parity_footer *out)
{
    struct keel_parity_footer footer;
    const struct keel_label label = keel_source_label(source);
    if (source->info.bytes < sizeof footer)
        return keel_fail(KEEL_CORRUPT, "%s: is cut off; repair mends it", label.text);
    KEEL_TRY(keel_tier_read(source, source->info.bytes - sizeof footer, &footer, sizeof footer));
    KEEL_TRY(keel_parity_footer_check(&footer, label.text));
    *out = footer;
    return KEEL_OK;
}

static enum keel_status read_ends(struct keel_tier_source *source, struct keel_parity_header *out,
                                  struct keel_parity_footer *out_footer)
{
    KEEL_TRY(keel_parity_read_header(source, out));
    KEEL_TRY(keel_parity_read_footer(source, out_footer));
    if (source->info.bytes == out->file_bytes && out_footer->set_check == keel_parity_set_check(out) &&
        out_footer->member == out->member)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "%s: its parts do not belong together; repair mends it",
                     keel_source_label(source).text);
}

enum keel_status keel_parity_quick_check(struct keel_tier_source *source)
{
    struct keel_parity_header header = {.version = 0};
    struct keel_parity_footer footer = {.version = 0};
    return read_ends(source, &header, &footer);
}

/* One record: its block, and the cell that the block has a check of. */
static enum keel_status check_record(struct keel_tier_source *source, const struct keel_parity_header *header,
                                     uint64_t set_check, uint64_t cell, uint8_t *buffer)
{
    const struct keel_parity_shape shape = keel_parity_shape_of(header);
    const uint64_t stripe = keel_parity_stripe_of(&shape, header->member, false, cell);
    struct keel_parity_stripe block;
    KEEL_TRY(keel_tier_read(source, keel_parity_record_offset(&shape, cell), buffer,
                            sizeof block + shape.cell_bytes));
    memcpy(&block, buffer, sizeof block);
    const char *what = NULL;
    if (!keel_parity_stripe_sound(&block, set_check, stripe, header->member))
        what = "its checks";
    else if (keel_format_check(buffer + sizeof block, shape.cell_bytes) != block.checks[header->member])
        what = "its parity cell";
    if (what == NULL)
        return KEEL_OK;
    return keel_fail(KEEL_CORRUPT, "%s: stripe %llu: %s, at byte %llu, is damaged; repair mends it",
                     keel_source_label(source).text, (unsigned long long)stripe, what,
                     (unsigned long long)keel_parity_record_offset(&shape, cell));
}

enum keel_status keel_parity_verify(struct keel_tier_source *source)
{
    struct keel_parity_header header = {.version = 0};
    struct keel_parity_footer footer = {.version = 0};
    struct keel_digest_stream digest;
    uint8_t *buffer;
    KEEL_TRY(read_ends(source, &header, &footer));
    const struct keel_parity_shape shape = keel_parity_shape_of(&header);
    const uint64_t set_check = keel_parity_set_check(&header);
    const uint64_t cells =
        shape.stripe_count - keel_parity_data_before(&shape, shape.stripe_count, header.member);
    KEEL_TRY(keel_alloc_aligned(KEEL_PAGE_BYTES, KEEL_PARITY_BLOCK_BYTES + shape.cell_bytes, &buffer));
    enum keel_status status = KEEL_OK;
    keel_digest_begin(&digest);
    keel_digest_add(&digest, &header, sizeof header);
    for (uint64_t cell = 0; cell < cells && status == KEEL_OK; cell++) {
        status = check_record(source, &header, set_check, cell, buffer);
        if (status == KEEL_OK)
            keel_digest_add(&digest, buffer, KEEL_PARITY_BLOCK_BYTES + shape.cell_bytes);
    }
    keel_digest_add(&digest, &footer, sizeof footer);
    keel_free(buffer);
    if (status == KEEL_OK && !source->info.digest_known) {
        keel_digest_end(&digest, source->info.digest);
        source->info.digest_known = true;
    }
    return status;
}
