/* owned_pieces.c - parallel.zero: which pieces of the flat buffers this rank holds for the optimizer, and the
 * actions of a tape that go by them.
 *
 * Of each bucket every position owns a run of pages, its share, and others have copies of it
 * (keel_has_share): they get the sums and update as the owner does, so they are never behind. Weights go
 * round in the group of owners that have all shares together (parallel.zero_group). A layout is who holds
 * what in one view; a new view's is made empty and filled (worker_owned.c), and the one before stays until
 * that is done, since others may need what is in it. */
#include "axes.h"
#include "trainer_internal.h"
#include <keel/clock.h>
#include <keel/memory.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t soon(const struct keel_trainer *trainer)
{
    return keel_deadline_after_ns(trainer->stall_ns);
}

/* ---- a layout ------------------------------------------------------------------------------------------ */

static void layout_destroy(struct keel_owned_layout *layout)
{
    keel_owned_digest_destroy(layout->digest);
    keel_engine_pieces_destroy(layout->pieces);
    keel_free(layout->second);
    keel_free(layout->held);
    keel_free(layout->empties);
    keel_free(layout->copies);
    keel_free(layout->shares);
    keel_free(layout->runs);
    keel_free(layout->counts);
    keel_free(layout->stripe_firsts);
    keel_free(layout->pages);
    keel_free(layout->page_first);
    keel_free(layout->page_counts);
    keel_free(layout->gathered);
    *layout = (struct keel_owned_layout){.pieces = NULL};
}

/* Pages of all positions, one behind the other, and how many elements each has of each bucket. */
static enum keel_status list_pages(struct keel_trainer *trainer, struct keel_owned_layout *layout)
{
    const uint32_t buckets = trainer->bucket_count, of = layout->owners.of.count;
    struct keel_engine_run *runs = NULL, *pages = NULL;
    uint32_t count = 0, capacity = 0;
    enum keel_status status = keel_alloc(buckets, sizeof *runs, &runs);
    for (uint32_t p = 0; p < of && status == KEEL_OK; p++) {
        uint32_t more = 0;
        layout->page_first[p] = count;
        status = keel_engine_share(trainer->engine, p, of, runs);
        for (uint32_t b = 0; status == KEEL_OK && b < buckets; b++)
            layout->counts[b * of + p] = runs[b].count;
        if (status == KEEL_OK)
            status = keel_engine_run_pages(trainer->engine, runs, buckets, &pages, &more);
        if (status == KEEL_OK)
            status = keel_realloc(&layout->pages, capacity, count + more, sizeof *pages);
        for (uint32_t i = 0; status == KEEL_OK && i < more; i++) {
            layout->pages[count++] = pages[i];
            layout->page_counts[p] += pages[i].count;
        }
        capacity = count;
        keel_free(pages);
        pages = NULL;
    }
    layout->page_first[of] = count;
    keel_free(runs);
    return status;
}

static enum keel_status list_stripes(const struct keel_trainer *trainer, struct keel_owned_layout *layout)
{
    const struct keel_owners_map *of = &layout->owners.of;
    const uint32_t stripes = of->count / of->group;
    KEEL_TRY(keel_alloc((uint64_t)trainer->bucket_count * stripes, sizeof *layout->stripe_firsts,
                        &layout->stripe_firsts));
    for (uint32_t b = 0; b < trainer->bucket_count; b++) {
        uint64_t elements = 0;
        for (uint32_t p = 0; p < of->count; p++) {
            if (p % of->group == 0)
                layout->stripe_firsts[(size_t)b * stripes + p / of->group] = elements;
            elements += layout->counts[(size_t)b * of->count + p];
        }
    }
    return KEEL_OK;
}

bool keel_owned_copies(const struct keel_owned_layout *layout, uint32_t holder, uint32_t owner)
{
    const struct keel_owners_map *of = &layout->owners.of;
    if (of->group < of->count)
        return holder != owner && keel_has_share(of, holder, owner);
    return layout->second[owner] == holder;
}

void keel_owned_sum_copies(const struct keel_owned_layout *layout, const struct keel_commit_record *records,
                           uint64_t *sums)
{
    const struct keel_owners_map *of = &layout->owners.of;
    uint64_t all[KEEL_MEMBERS_MAX]; /* groups: of the positions with the same number in each */
    memset(all, 0, of->group * sizeof *all);
    memset(sums, 0, of->count * sizeof *sums);
    for (uint32_t p = 0; p < of->count; p++) {
        all[p % of->group] += records[p].own;
        if (of->group == of->count && layout->second[p] != KEEL_SEAT_NONE)
            sums[layout->second[p]] += records[p].own;
    }
    for (uint32_t p = 0; p < of->count && of->group < of->count; p++)
        sums[p] = all[p % of->group] - records[p].own;
}

/* Who has copies of our share, and whose we have. */
static enum keel_status list_holders(const struct keel_owners_map *map, struct keel_owned_layout *layout)
{
    const uint32_t position = layout->owners.position;
    KEEL_TRY(keel_alloc(map->count, sizeof *layout->second, &layout->second));
    KEEL_TRY(keel_alloc(map->count, sizeof *layout->shares, &layout->shares));
    KEEL_TRY(keel_alloc(map->count, sizeof *layout->copies, &layout->copies));
    KEEL_TRY(keel_second_holders(map, layout->second));
    layout->shares[layout->share_count++] = position;
    for (uint32_t p = 0; p < map->count; p++) {
        if (keel_owned_copies(layout, position, p))
            layout->shares[layout->share_count++] = p;
        if (keel_owned_copies(layout, p, position))
            layout->copies[layout->copy_count++] = p;
    }
    return KEEL_OK;
}

static int compare_shares(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Whether a share has no element: then everybody has all of it. */
static bool is_empty(const struct keel_trainer *trainer, const struct keel_owned_layout *layout,
                     uint32_t share)
{
    uint64_t count = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++)
        count += layout->counts[(size_t)b * layout->owners.of.count + share];
    return count == 0;
}

/* What others are told of it. */
static enum keel_status list_held(const struct keel_trainer *trainer, struct keel_owned_layout *layout)
{
    const uint32_t of = layout->owners.of.count;
    uint32_t *list, count = 0;
    KEEL_TRY(keel_alloc(layout->share_count, sizeof *layout->held, &layout->held));
    KEEL_TRY(keel_alloc(of, sizeof *layout->empties, &layout->empties));
    KEEL_TRY(keel_alloc(of, sizeof *list, &list));
    memcpy(list, layout->shares, layout->share_count * sizeof *list);
    qsort(list, layout->share_count, sizeof *list, compare_shares);
    layout->held_count = keel_share_runs_make(list, layout->share_count, layout->held);
    for (uint32_t p = 0; p < of; p++)
        if (is_empty(trainer, layout, p))
            list[count++] = p;
    layout->empty_count = keel_share_runs_make(list, count, layout->empties);
    keel_free(list);
    return KEEL_OK;
}

/* Our own runs, then, one bucket after the other, those of each position of which we have a copy. */
static enum keel_status list_runs(struct keel_trainer *trainer, struct keel_owned_layout *layout)
{
    const uint32_t buckets = trainer->bucket_count;
    KEEL_TRY(keel_alloc((size_t)layout->share_count * buckets, sizeof *layout->runs, &layout->runs));
    for (uint32_t s = 0; s < layout->share_count; s++)
        KEEL_TRY(keel_engine_share(trainer->engine, layout->shares[s], layout->owners.of.count,
                                   layout->runs + (size_t)s * buckets));
    return KEEL_OK;
}

static enum keel_status layout_make(struct keel_trainer *trainer, const struct keel_owners *owners,
                                    struct keel_owned_layout *layout)
{
    const size_t of = owners->of.count;
    *layout = (struct keel_owned_layout){.owners = *owners};
    layout->owners.of.node = NULL; /* borrowed */
    KEEL_TRY(keel_alloc(trainer->bucket_count * of, sizeof *layout->counts, &layout->counts));
    KEEL_TRY(keel_alloc(of + 1, sizeof *layout->page_first, &layout->page_first));
    KEEL_TRY(keel_alloc(of, sizeof *layout->page_counts, &layout->page_counts));
    KEEL_TRY(keel_alloc(2 * keel_size(keel_engine_page_count(trainer->engine)), sizeof *layout->gathered,
                        &layout->gathered));
    KEEL_TRY(list_pages(trainer, layout));
    KEEL_TRY(list_stripes(trainer, layout));
    KEEL_TRY(list_holders(&owners->of, layout));
    KEEL_TRY(list_held(trainer, layout));
    KEEL_TRY(list_runs(trainer, layout));
    /* As those know who wait for its sums. */
    KEEL_ASSERT(owners->of.group < of || layout->copy_count == (owners->of.holders > 1 && of > 1 ? 1 : 0));
    KEEL_TRY(keel_engine_pieces_create(trainer->engine, layout->runs,
                                       layout->share_count * trainer->bucket_count, &layout->pieces));
    return keel_owned_digest_make(trainer, layout);
}

/* Runs of the layout's weights to the flat buffer, or from it. */
static enum keel_status copy_weights(struct keel_trainer *trainer, const struct keel_owned_layout *layout,
                                     uint32_t share_count, bool out)
{
    struct keel_buffer *flat = keel_engine_flat(trainer->engine, KEEL_FLAT_WEIGHTS),
                       *own = keel_engine_pieces_flat(layout->pieces, KEEL_FLAT_WEIGHTS);
    for (uint32_t r = 0; r < share_count * trainer->bucket_count; r++) {
        const uint64_t there = layout->runs[r].first * sizeof(float),
                       here = keel_engine_pieces_at(layout->pieces, r) * sizeof(float),
                       bytes = layout->runs[r].count * sizeof(float);
        if (bytes > 0)
            KEEL_TRY(keel_queue_copy(keel_engine_queue(trainer->engine), out ? own : flat, out ? here : there,
                                     out ? flat : own, out ? there : here, bytes, NULL, NULL));
    }
    return KEEL_OK;
}

/* Moments of a run of the new layout, or weights, as far as the one before has them. */
static enum keel_status carry_run(struct keel_trainer *trainer, uint32_t run, enum keel_engine_flat which)
{
    struct keel_owned_layout *now = &trainer->owned.now, *before = &trainer->owned.before;
    struct keel_buffer *from = keel_engine_pieces_flat(before->pieces, which),
                       *to = keel_engine_pieces_flat(now->pieces, which);
    const uint64_t first = now->runs[run].first, count = now->runs[run].count;
    for (uint64_t done = 0, at, here; to != NULL && done < count; done += here) {
        const bool held = keel_owned_find(before, trainer->bucket_count, first + done, &at, &here);
        here = here < count - done ? here : count - done;
        if (held)
            KEEL_TRY(keel_queue_copy(keel_engine_queue(trainer->engine), from, at * sizeof(float), to,
                                     (keel_engine_pieces_at(now->pieces, run) + done) * sizeof(float),
                                     here * sizeof(float), NULL, NULL));
    }
    return KEEL_OK;
}

/* What this rank has needs no other. */
static enum keel_status carry(struct keel_trainer *trainer)
{
    const struct keel_owned_layout *now = &trainer->owned.now, *before = &trainer->owned.before;
    if (!before->filled)
        return KEEL_OK;
    for (uint32_t r = 0; r < now->share_count * trainer->bucket_count; r++) {
        KEEL_TRY(carry_run(trainer, r, KEEL_FLAT_M));
        KEEL_TRY(carry_run(trainer, r, KEEL_FLAT_V));
        KEEL_TRY(carry_run(trainer, r, KEEL_FLAT_EMA));
        if (trainer->gathered.on)
            KEEL_TRY(carry_run(trainer, r, KEEL_FLAT_WEIGHTS));
    }
    if (!before->complete && !trainer->gathered.on)
        KEEL_TRY(copy_weights(trainer, before, before->share_count, true));
    return keel_queue_finish(keel_engine_queue(trainer->engine), soon(trainer));
}

enum keel_status keel_trainer_own(struct keel_trainer *trainer, const struct keel_owners *owners)
{
    struct keel_owned *owned = &trainer->owned;
    KEEL_ASSERT(owned->on && owners->position < owners->of.count);
    const bool alone =
        !owned->now.filled && !owned->before.filled; /* else two layouts are here for a while */
    if (owned->now.filled) {
        KEEL_ASSERT(!owned->before.filled);
        owned->before = owned->now;
        owned->now = (struct keel_owned_layout){.pieces = NULL};
    }
    layout_destroy(&owned->now);
    keel_hang_enter(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    enum keel_status status = layout_make(trainer, owners, &owned->now);
    if (status == KEEL_OK)
        status = carry(trainer);
    keel_hang_leave(trainer->hangs, KEEL_HANG_STATE, keel_now_ns());
    if (status == KEEL_OK && alone)
        status = keel_trainer_check_memory(trainer->job, trainer->engine);
    if (status != KEEL_OK)
        layout_destroy(&owned->now);
    return status;
}

enum keel_status keel_trainer_settle(struct keel_trainer *trainer, uint64_t step, uint64_t *out_digest)
{
    struct keel_owned *owned = &trainer->owned;
    KEEL_ASSERT(owned->on && owned->now.pieces != NULL);
    if (!trainer->gathered.on)
        KEEL_TRY(copy_weights(trainer, &owned->now, owned->now.share_count, false));
    KEEL_TRY(keel_queue_finish(keel_engine_queue(trainer->engine), soon(trainer)));
    owned->now.filled = owned->now.complete = true;
    owned->now.reduced = owned->now.has_norm = false;
    owned->now.step = step;
    return keel_trainer_digest(trainer, out_digest);
}

bool keel_trainer_unfinished(const struct keel_trainer *trainer, struct keel_trainer_result *out)
{
    const struct keel_owned_layout *now = &trainer->owned.now;
    const bool is = now->filled && now->has_norm && !now->complete;
    if (is)
        *out = now->result;
    return is;
}

void keel_trainer_forget_before(struct keel_trainer *trainer)
{
    layout_destroy(&trainer->owned.before);
}

void keel_trainer_keep(struct keel_trainer *trainer, uint64_t epoch)
{
    struct keel_owned *owned = &trainer->owned;
    if (!owned->now.filled || owned->now.owners.epoch != epoch)
        layout_destroy(&owned->now);
    if (!owned->before.filled || owned->before.owners.epoch != epoch)
        layout_destroy(&owned->before);
    if (owned->now.filled || !owned->before.filled)
        return;
    owned->now = owned->before;
    owned->before = (struct keel_owned_layout){.pieces = NULL};
}

void keel_owned_destroy(struct keel_trainer *trainer)
{
    layout_destroy(&trainer->owned.now);
    layout_destroy(&trainer->owned.before);
}

/* ---- state by element ---------------------------------------------------------------------------------- */

bool keel_owned_find(const struct keel_owned_layout *layout, uint32_t bucket_count, uint64_t element,
                     uint64_t *out_at, uint64_t *out_count)
{
    *out_count = UINT64_MAX;
    for (uint32_t r = 0; layout->pieces != NULL && r < layout->share_count * bucket_count; r++) {
        const struct keel_engine_run *run = &layout->runs[r];
        if (element < run->first && run->count > 0 && run->first - element < *out_count)
            *out_count = run->first - element;
        if (element < run->first || element - run->first >= run->count)
            continue;
        *out_at = keel_engine_pieces_at(layout->pieces, r) + (element - run->first);
        *out_count = run->count - (element - run->first);
        return true;
    }
    return false;
}

/* ---- actions ------------------------------------------------------------------------------------------- */

struct keel_device_place keel_owned_place(const struct keel_trainer *trainer, enum keel_engine_flat which,
                                          uint32_t share, uint32_t bucket)
{
    const struct keel_engine_pieces *pieces = trainer->owned.now.pieces;
    return (struct keel_device_place){keel_engine_pieces_flat(pieces, which),
                                      keel_engine_pieces_at(pieces, share * trainer->bucket_count + bucket) *
                                          sizeof(float)};
}

static const uint64_t *counts_of(const struct keel_trainer *trainer, uint32_t bucket)
{
    return trainer->owned.now.counts + (size_t)bucket * trainer->owned.now.owners.of.count;
}

enum keel_status keel_owned_reduce(struct keel_tape_run *run, uint32_t bucket,
                                   struct keel_device_collective *sum)
{
    struct keel_trainer *trainer = run->trainer;
    sum->result = keel_owned_place(trainer, KEEL_FLAT_GRADIENTS, 0, bucket);
    sum->what.kind = KEEL_REDUCE_SCATTER;
    sum->what.counts_out = counts_of(trainer, bucket);
    if (run->step->group != NULL)
        return KEEL_OK;
    KEEL_ASSERT(sum->what.part_count == 1);
    return keel_queue_copy(keel_engine_queue(trainer->engine), sum->parts->buffer, sum->parts->offset_bytes,
                           sum->result.buffer, sum->result.offset_bytes,
                           sum->what.counts_out[0] * sizeof(float), NULL, NULL);
}

/* Elements of a share, which lie side by side. */
static uint64_t share_elements(const struct keel_trainer *trainer, uint32_t share)
{
    uint64_t count = 0;
    for (uint32_t b = 0; b < trainer->bucket_count; b++)
        count += trainer->owned.now.runs[(size_t)share * trainer->bucket_count + b].count;
    return count;
}

/* Of a handle that is used again. */
static enum keel_status await_device(struct keel_trainer *trainer, struct keel_device_operation **at,
                                     uint64_t deadline_ns)
{
    struct keel_device_operation *operation = *at;
    if (operation == NULL)
        return KEEL_OK;
    *at = NULL;
    trainer->awaits = true;
    enum keel_status status = keel_device_operation_wait(operation, deadline_ns);
    trainer->awaits = false;
    return status;
}

/* The sums of a share: ours to `with`, or its to us. */
static enum keel_status begin_copy(struct keel_tape_run *run, uint32_t share, bool give, uint32_t with,
                                   uint32_t number)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_device_operation **at = &trainer->owned.copies[number % KEEL_COPIES_AT_ONCE];
    const struct keel_device_place place = keel_owned_place(trainer, KEEL_FLAT_GRADIENTS, share, 0);
    const struct keel_device_collective copy = {
        .what = {.kind = give ? KEEL_SEND : KEEL_RECEIVE,
                 .sequence = keel_tape_sequence(run, keel_piece_shadow(trainer->bucket_count)),
                 .element = KEEL_ELEMENT_F32,
                 .root = with,
                 .count = share_elements(trainer, share),
                 .part_count = give ? 1 : 0},
        .parts = &place,
        .result = {give ? NULL : place.buffer, place.offset_bytes}};
    if (copy.what.count == 0)
        return KEEL_OK;
    KEEL_TRY(await_device(trainer, at, soon(trainer)));
    return keel_device_collective_begin(trainer->collectives, run->step->group, &copy, at);
}

/* Which of the shares here is the owner's; share_count: none. Of groups they ascend behind our own. */
static uint32_t share_of(const struct keel_owned_layout *now, uint32_t owner)
{
    const struct keel_owners_map *of = &now->owners.of;
    const uint32_t number = owner / of->group, own = now->owners.position / of->group;
    uint32_t share = number == own ? 0 : number < own ? number + 1 : number;
    if (of->group == of->count)
        for (share = 0; share < now->share_count && now->shares[share] != owner; share++)
            ;
    KEEL_ASSERT(share >= now->share_count || now->shares[share] == owner);
    return share;
}

/* The next distance behind `last` to, or from, one who has a copy. */
static uint32_t next_distance(const struct keel_owned_layout *now, uint32_t last)
{
    const uint32_t count = now->owners.of.count, position = now->owners.position;
    uint32_t next = count;
    if (now->owners.of.group < count)
        return last + now->owners.of.group;
    for (uint32_t i = 0; i < now->copy_count + now->share_count; i++) {
        const uint32_t distance = i < now->copy_count
                                      ? (now->copies[i] + count - position) % count
                                      : (position + count - now->shares[i - now->copy_count]) % count;
        next = distance > last && distance < next ? distance : next;
    }
    return next;
}

/* To those who have copies of ours, and from those of whose we have: where several positions have the same,
 * in the order of their distances, which is one for all of them. */
enum keel_status keel_tape_shadow(struct keel_tape_run *run, const struct keel_action *action)
{
    const struct keel_owned_layout *now = &run->trainer->owned.now;
    const uint32_t count = now->owners.of.count, position = now->owners.position;
    uint32_t number = 0;
    (void)action;
    for (uint32_t distance = next_distance(now, 0); distance < count;
         distance = next_distance(now, distance)) {
        const uint32_t to = (position + distance) % count, from = (position + count - distance) % count;
        const uint32_t share = keel_owned_copies(now, position, from) ? share_of(now, from) : 0;
        if (keel_owned_copies(now, to, position))
            KEEL_TRY(begin_copy(run, 0, true, to, number++));
        if (share > 0)
            KEEL_TRY(begin_copy(run, share, false, from, number++));
    }
    return KEEL_OK;
}

enum keel_status keel_tape_square(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_owned_layout *now = &trainer->owned.now;
    (void)action;
    return keel_engine_pieces_squares(now->pieces, soon(trainer), trainer->owned.squares,
                                      now->page_counts[now->owners.position]);
}

enum keel_status keel_tape_commit(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_owned_layout *now = &trainer->owned.now;
    const void *parts[] = {trainer->owned.squares};
    const uint32_t piece = keel_piece_commit(trainer->bucket_count);
    (void)action;
    now->reduced = true;
    now->result = run->result;
    struct keel_collective gather = {.kind = KEEL_ALL_GATHER_V,
                                     .sequence = keel_tape_sequence(run, piece),
                                     .element = KEEL_ELEMENT_F32,
                                     .counts_out = now->page_counts,
                                     .parts = parts,
                                     .part_count = 1,
                                     .result = now->gathered};
    if (run->step->group != NULL)
        return keel_group_begin(run->step->group, &gather, &trainer->operations[piece]);
    memcpy(now->gathered, trainer->owned.squares, keel_size(now->page_counts[0] * sizeof(float)));
    return KEEL_OK;
}

/* As the norm wants them: by page. */
static const float *sort_squares(struct keel_trainer *trainer)
{
    struct keel_owned_layout *now = &trainer->owned.now;
    float *sorted = now->gathered + keel_engine_page_count(trainer->engine);
    const float *from = now->gathered;
    for (uint32_t i = 0; i < now->page_first[now->owners.of.count]; i++) {
        memcpy(sorted + now->pages[i].first, from, keel_size(now->pages[i].count * sizeof *sorted));
        from += now->pages[i].count;
    }
    return sorted;
}

enum keel_status keel_owned_sum(struct keel_trainer *trainer)
{
    return keel_engine_pieces_sum(trainer->owned.now.pieces, sort_squares(trainer));
}

static void step_on(struct keel_trainer *trainer, const struct keel_engine_update *request)
{
    struct keel_owned_layout *now = &trainer->owned.now;
    now->has_norm = true;
    now->reduced = now->complete = false;
    now->step++;
    now->result.learning_rate = request->learning_rate;
    now->result.grad_norm = now->norm.values[0];
}

enum keel_status keel_owned_update(struct keel_tape_run *run, const struct keel_engine_update *request,
                                   struct keel_engine_updated *out)
{
    struct keel_trainer *trainer = run->trainer;
    struct keel_owned_layout *now = &trainer->owned.now;
    KEEL_ASSERT(now->filled && now->reduced && now->step == run->step->step);
    if (trainer->tensor.count == 0) /* else NORM did, with those of all slices */
        KEEL_TRY(keel_owned_sum(trainer));
    KEEL_TRY(keel_engine_pieces_norm(now->pieces, request, soon(trainer), &now->norm, out));
    KEEL_TRY(keel_engine_pieces_update(now->pieces, request, &now->norm, soon(trainer)));
    step_on(trainer, request);
    now->result.loss_scale = out->loss_scale;
    return KEEL_OK;
}

enum keel_status keel_trainer_catch_up(struct keel_trainer *trainer, const struct keel_engine_norm *norm)
{
    struct keel_owned_layout *now = &trainer->owned.now;
    KEEL_ASSERT(now->filled && now->reduced);
    const struct keel_engine_update request = {.settings = trainer->job->update,
                                               .learning_rate =
                                                   keel_job_learning_rate(trainer->job, now->step),
                                               .step = (uint32_t)now->step};
    keel_hang_enter(trainer->hangs, KEEL_HANG_UPDATE, keel_now_ns());
    enum keel_status status = keel_engine_pieces_update(now->pieces, &request, norm, soon(trainer));
    keel_hang_leave(trainer->hangs, KEEL_HANG_UPDATE, keel_now_ns());
    if (status != KEEL_OK)
        return status;
    now->norm = *norm;
    step_on(trainer, &request);
    now->result.loss_scale = trainer->job->storage == KEEL_F16 ? norm->values[2] : 0.0F;
    return KEEL_OK;
}

uint32_t keel_owned_stripe_count(const struct keel_trainer *trainer)
{
    const struct keel_owners_map *of = &trainer->owned.now.owners.of;
    return of->count / of->group;
}

struct keel_owned_stripe keel_owned_stripe(const struct keel_trainer *trainer, uint32_t bucket,
                                           uint32_t stripe)
{
    const struct keel_owned_layout *now = &trainer->owned.now;
    const struct keel_owners_map *of = &now->owners.of;
    struct keel_owned_stripe out = {.counts = counts_of(trainer, bucket) + stripe * of->group};
    const uint32_t owner = stripe * of->group + now->owners.position % of->group;
    out.first = now->stripe_firsts[(size_t)bucket * keel_owned_stripe_count(trainer) + stripe];
    out.own = keel_owned_place(trainer, KEEL_FLAT_WEIGHTS, share_of(now, owner), bucket);
    return out;
}

static enum keel_status begin_gather(struct keel_tape_run *run, uint32_t bucket, uint32_t stripe)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_owned_stripe what = keel_owned_stripe(trainer, bucket, stripe);
    const uint32_t number = bucket * keel_owned_stripe_count(trainer) + stripe;
    struct keel_device_operation **at = &trainer->owned.gathers[number % KEEL_GATHERS_AT_ONCE];
    struct keel_group *group = run->step->sharers != NULL ? run->step->sharers : run->step->group;
    const uint64_t first = keel_engine_bucket(trainer->engine, bucket)->offset + what.first;
    const struct keel_device_collective gather = {
        .what = {.kind = KEEL_ALL_GATHER_V,
                 .sequence = keel_tape_sequence(run, keel_piece_weights(trainer->bucket_count, number)),
                 .element = KEEL_ELEMENT_F32,
                 .counts_out = what.counts,
                 .part_count = 1},
        .parts = &what.own,
        .result = {keel_engine_flat(trainer->engine, KEEL_FLAT_WEIGHTS), first * sizeof(float)}};
    KEEL_TRY(await_device(trainer, at, soon(trainer)));
    KEEL_TRY(keel_device_collective_begin(trainer->collectives, group, &gather, at));
    return keel_device_operation_start(*at, soon(trainer));
}

enum keel_status keel_tape_spread(struct keel_tape_run *run, const struct keel_action *action)
{
    struct keel_trainer *trainer = run->trainer;
    const struct keel_owned_layout *now = &trainer->owned.now;
    if (now->owners.of.group == 1) /* it has all shares itself */
        return action->piece == 0 ? copy_weights(trainer, now, now->share_count, true) : KEEL_OK;
    for (uint32_t s = 0; s < keel_owned_stripe_count(trainer); s++)
        KEEL_TRY(begin_gather(run, action->piece, s));
    return KEEL_OK;
}

/* The last weights: all of a step is here. */
static enum keel_status finish_weights(struct keel_tape_run *run)
{
    struct keel_trainer *trainer = run->trainer;
    KEEL_TRY(keel_engine_digest(trainer->engine, soon(trainer), &trainer->digest));
    run->result.digest = trainer->digest;
    trainer->tensor.shared = keel_engine_digest_shared(trainer->engine);
    trainer->owned.now.complete = true;
    return KEEL_OK;
}

enum keel_status keel_owned_await(struct keel_tape_run *run, uint32_t piece, uint64_t deadline_ns)
{
    struct keel_trainer *trainer = run->trainer;
    const uint32_t buckets = trainer->bucket_count;
    if (piece == keel_piece_commit(buckets)) {
        struct keel_operation *operation = trainer->operations[piece];
        trainer->operations[piece] = NULL;
        return keel_operation_wait(operation, deadline_ns);
    }
    if (piece == keel_piece_shadow(buckets)) {
        for (uint32_t i = 0; i < KEEL_COPIES_AT_ONCE; i++)
            KEEL_TRY(await_device(trainer, &trainer->owned.copies[i], deadline_ns));
        return KEEL_OK;
    }
    if (piece != keel_piece_weights(buckets, buckets - 1))
        return KEEL_OK; /* all are waited for together */
    for (uint32_t i = 0; i < KEEL_GATHERS_AT_ONCE; i++)
        KEEL_TRY(await_device(trainer, &trainer->owned.gathers[i], deadline_ns));
    return finish_weights(run);
}

/* ---- the warm-up --------------------------------------------------------------------------------------- */

/* What is final behind a segment of the probe, as far as it is the layout's. */
static enum keel_status take_bucket(struct keel_trainer *trainer, uint32_t bucket)
{
    struct keel_owned_layout *now = &trainer->owned.now;
    const struct keel_engine *engine = trainer->engine;
    if (bucket >= trainer->bucket_count || now->runs[bucket].count == 0)
        return KEEL_OK;
    const uint64_t from = keel_engine_gradient_at(engine, bucket) + now->runs[bucket].first -
                          keel_engine_bucket(engine, bucket)->offset;
    const struct keel_device_place to = keel_owned_place(trainer, KEEL_FLAT_GRADIENTS, 0, bucket);
    return keel_queue_copy(keel_engine_queue(trainer->engine),
                           keel_engine_flat(trainer->engine, KEEL_FLAT_GRADIENTS), from * sizeof(float),
                           to.buffer, to.offset_bytes, now->runs[bucket].count * sizeof(float), NULL, NULL);
}

/* A microbatch, whose gradients go to the layout's pieces as they become final. */
static enum keel_status probe_gradients(struct keel_trainer *trainer, const struct keel_engine_batch *batch)
{
    struct keel_engine *engine = trainer->engine;
    KEEL_TRY(keel_engine_feed(engine, batch));
    for (uint32_t s = 0; s < keel_engine_segment_count(engine); s++) {
        KEEL_TRY(keel_tensor_pretend_segment(trainer, s));
        KEEL_TRY(take_bucket(trainer, keel_engine_segment_bucket(engine, s)));
    }
    return KEEL_OK;
}

/* One update of the first share of so many as a column has ranks, whose squares are all there are. */
enum keel_status keel_owned_probe(struct keel_trainer *trainer, const struct keel_engine_batch *batch,
                                  const struct keel_engine_update *request)
{
    struct keel_owned *owned = &trainer->owned;
    const struct keel_job *job = trainer->job;
    const uint32_t ranks = job->ranks > 0 ? job->ranks : 1;
    const uint32_t column = ranks / keel_axes_tensor(ranks, job->parallel.tensor);
    const struct keel_owners owners = {.of = {.count = column, .group = column, .holders = 1}};
    struct keel_engine_updated updated;
    KEEL_TRY(keel_trainer_own(trainer, &owners));
    struct keel_owned_layout *now = &owned->now;
    struct keel_queue *queue = keel_engine_queue(trainer->engine);
    KEEL_TRY(trainer->gathered.on ? keel_gathered_initialize(trainer) : copy_weights(trainer, now, 1, false));
    KEEL_TRY(probe_gradients(trainer, batch));
    memset(now->gathered, 0, 2 * keel_size(keel_engine_page_count(trainer->engine)) * sizeof(float));
    KEEL_TRY(keel_engine_pieces_squares(now->pieces, soon(trainer), now->gathered, now->page_counts[0]));
    KEEL_TRY(keel_owned_sum(trainer));
    if (trainer->tensor.count > 0)
        KEEL_TRY(keel_tensor_pretend_norm(trainer));
    enum keel_status status =
        keel_engine_pieces_norm(now->pieces, request, soon(trainer), &now->norm, &updated);
    if (status == KEEL_OK) {
        KEEL_TRY(keel_engine_pieces_update(now->pieces, request, &now->norm, soon(trainer)));
        KEEL_TRY(trainer->gathered.on
                     ? keel_gathered_own_digest(trainer, &trainer->digest, &trainer->tensor.shared)
                     : copy_weights(trainer, now, 1, true));
        KEEL_TRY(keel_queue_finish(queue, soon(trainer)));
    }
    layout_destroy(now);
    return status;
}

void keel_trainer_owns(const struct keel_trainer *trainer, struct keel_owned_record out[2])
{
    const struct keel_owned_layout *layouts[2] = {&trainer->owned.now, &trainer->owned.before};
    for (uint32_t i = 0; i < 2; i++) {
        out[i] = (struct keel_owned_record){.of = 0};
        if (!layouts[i]->filled)
            continue;
        out[i] = (struct keel_owned_record){.epoch = layouts[i]->owners.epoch,
                                            .step = layouts[i]->step,
                                            .of = layouts[i]->owners.of.count,
                                            .position = layouts[i]->owners.position,
                                            .run_count = (uint16_t)layouts[i]->held_count,
                                            .empty_count = (uint16_t)layouts[i]->empty_count,
                                            .reduced = layouts[i]->reduced,
                                            .complete = layouts[i]->complete,
                                            .has_norm = layouts[i]->has_norm,
                                            .norm = layouts[i]->norm};
    }
}

void keel_trainer_owned_runs(const struct keel_trainer *trainer, uint32_t record,
                             const struct keel_share_run **out_runs,
                             const struct keel_share_run **out_empties)
{
    const struct keel_owned_layout *layout = record == 0 ? &trainer->owned.now : &trainer->owned.before;
    *out_runs = layout->held;
    *out_empties = layout->empties;
}
