/* owned_digest.c - parallel.zero: digests of what a rank owns and of what it shadows, by which owner and
 * shadow compare: weights of pieces and moments, so that no bit changes there unseen.
 *
 * The digest of all that several owners have is the sum of theirs, so a rank says two numbers, however many
 * it shadows. What is numbered are the elements of a share as they lie, one part behind the other: the same
 * with its owner and with its shadow. */
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>

enum { OWN, COPIES, DIGESTS, PART_SHIFT = 48 };

struct keel_owned_digest {
    struct keel_launch_list list;
    struct keel_buffer *sums[DIGESTS], *scratch;
    struct keel_buffer **slices; /* of the pieces: by share and part; NULL where there is nothing */
    uint32_t slice_count;
    uint64_t values[DIGESTS]; /* where the device writes them */
};

static const enum keel_engine_flat parts[KEEL_STATE_PARTS] = {KEEL_FLAT_WEIGHTS, KEEL_FLAT_M, KEEL_FLAT_V,
                                                              KEEL_FLAT_EMA};

static uint64_t share_begin(const struct keel_trainer *trainer, const struct keel_owned_layout *layout,
                            uint32_t share)
{
    return keel_engine_pieces_at(layout->pieces, share * trainer->bucket_count);
}

static uint64_t share_count(const struct keel_trainer *trainer, const struct keel_owned_layout *layout,
                            uint32_t share)
{
    uint64_t count = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++)
        count += layout->runs[(size_t)share * trainer->bucket_count + b].count;
    return count;
}

/* Parts of one share, to a sum. */
static enum keel_status list_share(struct keel_trainer *trainer, const struct keel_owned_layout *layout,
                                   uint32_t share)
{
    struct keel_owned_digest *digest = layout->digest;
    const uint64_t count = share_count(trainer, layout, share);
    for (uint32_t part = 0; part < KEEL_STATE_PARTS && count > 0; part++) {
        struct keel_buffer *flat = keel_engine_pieces_flat(layout->pieces, parts[part]),
                           **slice = &digest->slices[share * KEEL_STATE_PARTS + part];
        if (flat == NULL)
            continue;
        KEEL_TRY(keel_buffer_slice(flat, share_begin(trainer, layout, share) * sizeof(float),
                                   count * sizeof(float), slice));
        const struct keel_digest what = {.count = count,
                                         .first_element = (uint64_t)part << PART_SHIFT,
                                         .x = *slice,
                                         .digest = digest->sums[share == 0 ? OWN : COPIES],
                                         .scratch = digest->scratch};
        KEEL_TRY(keel_op_digest(trainer->kernels, &what, &digest->list));
    }
    return KEEL_OK;
}

uint64_t keel_owned_digest_bytes(const struct keel_owned_digest *digest)
{
    return digest == NULL ? 0 : keel_buffer_bytes(digest->scratch) + DIGESTS * sizeof(uint64_t);
}

enum keel_status keel_owned_digest_make(struct keel_trainer *trainer, struct keel_owned_layout *layout)
{
    uint64_t most = 1;
    struct keel_owned_digest *digest;
    for (uint32_t s = 0; s < layout->share_count; s++)
        most = share_count(trainer, layout, s) > most ? share_count(trainer, layout, s) : most;
    KEEL_TRY(keel_alloc(1, sizeof *digest, &digest));
    layout->digest = digest;
    digest->slice_count = layout->share_count * KEEL_STATE_PARTS;
    KEEL_TRY(keel_alloc(digest->slice_count, sizeof(struct keel_buffer *), (void *)&digest->slices));
    KEEL_TRY(keel_buffer_create(trainer->device, keel_digest_scratch_bytes(most), &digest->scratch));
    for (uint32_t i = 0; i < DIGESTS; i++)
        KEEL_TRY(keel_buffer_create(trainer->device, sizeof(uint64_t), &digest->sums[i]));
    for (uint32_t s = layout->copy_count == 0 ? 1 : 0; s < layout->share_count; s++)
        KEEL_TRY(list_share(trainer, layout, s)); /* what nobody has a copy of is compared with nothing */
    return keel_launch_list_seal(&digest->list, trainer->kernels);
}

void keel_owned_digest_destroy(struct keel_owned_digest *digest)
{
    if (digest == NULL)
        return;
    keel_launch_list_fini(&digest->list);
    for (uint32_t i = 0; digest->slices != NULL && i < digest->slice_count; i++)
        keel_buffer_destroy(digest->slices[i]);
    for (uint32_t i = 0; i < DIGESTS; i++)
        keel_buffer_destroy(digest->sums[i]);
    keel_buffer_destroy(digest->scratch);
    keel_free(digest->slices);
    keel_free(digest);
}

enum keel_status keel_owned_look(struct keel_trainer *trainer, uint64_t *out_own, uint64_t *out_copies)
{
    struct keel_owned_digest *digest = trainer->owned.now.digest;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    for (uint32_t i = 0; i < DIGESTS; i++)
        KEEL_TRY(keel_queue_fill(queue, digest->sums[i], 0, sizeof(uint64_t), 0, NULL, NULL));
    KEEL_TRY(keel_launch_list_run(&digest->list, queue));
    for (uint32_t i = 0; i < DIGESTS; i++)
        KEEL_TRY(
            keel_queue_read(queue, digest->sums[i], 0, &digest->values[i], sizeof(uint64_t), NULL, NULL));
    KEEL_TRY(keel_queue_finish(queue, keel_deadline_after_ns(trainer->stall_ns)));
    *out_own = digest->values[OWN];
    *out_copies = digest->values[COPIES];
    return KEEL_OK;
}
