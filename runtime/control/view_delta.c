/* view_delta.c - see view_delta.h.
 *
 * Epoch 8, plan 8, shards 2, holders before and now as in a view; then three lists, each with its length in 2
 * bytes, ascending: ranks of the old view that are not in the new one, 2 each; members that are new or
 * another than before, as in a view, each as other than the last; shards that another rank carries, and who,
 * 2 and 2. */
#include "view_delta.h"

#include <string.h>

static bool same_member(const struct keel_member *a, const struct keel_member *b)
{
    return a->rank == b->rank && a->node == b->node && a->local == b->local && a->spare == b->spare &&
           a->incarnation == b->incarnation && a->data.bytes == b->data.bytes &&
           memcmp(a->data.data, b->data.data, a->data.bytes) == 0;
}

/* Write the length of a list, of which the writer stands at the end, to its begin. */
static void close_list(struct keel_writer *w, uint32_t begin, uint32_t count)
{
    if (w->failed)
        return;
    struct keel_writer length = {.data = w->data + begin, .capacity = 2};
    keel_writer_number(&length, count, 2);
}

static uint32_t open_list(struct keel_writer *w)
{
    keel_writer_number(w, 0, 2);
    return w->bytes - (w->failed ? 0 : 2);
}

static void write_gone(struct keel_writer *w, const struct keel_view *old, const struct keel_view *next)
{
    uint32_t count = 0;
    const uint32_t begin = open_list(w);
    for (uint16_t i = 0, at = 0; i < old->member_count && !w->failed; i++) {
        while (at < next->member_count && next->members[at].rank < old->members[i].rank)
            at++;
        if (at < next->member_count && next->members[at].rank == old->members[i].rank)
            continue;
        keel_writer_number(w, old->members[i].rank, 2);
        count++;
    }
    close_list(w, begin, count);
}

static void write_others(struct keel_writer *w, const struct keel_view *old, const struct keel_view *next)
{
    const struct keel_member *last = NULL;
    uint32_t count = 0;
    const uint32_t begin = open_list(w);
    for (uint16_t i = 0, at = 0; i < next->member_count && !w->failed; i++) {
        while (at < old->member_count && old->members[at].rank < next->members[i].rank)
            at++;
        if (at < old->member_count && same_member(&old->members[at], &next->members[i]))
            continue;
        keel_view_write_member(w, last, &next->members[i]);
        last = &next->members[i];
        count++;
    }
    close_list(w, begin, count);
}

static void write_shards(struct keel_writer *w, const struct keel_view *old, const struct keel_view *next)
{
    uint32_t count = 0;
    const uint32_t begin = open_list(w);
    for (uint16_t s = 0; s < next->shard_count && !w->failed; s++) {
        if (s < old->shard_count && old->shard_rank[s] == next->shard_rank[s])
            continue;
        keel_writer_number(w, s, 2);
        keel_writer_number(w, next->shard_rank[s], 2);
        count++;
    }
    close_list(w, begin, count);
}

uint32_t keel_view_delta(const struct keel_view *old, const struct keel_view *next, uint8_t *out,
                         uint32_t capacity)
{
    struct keel_writer w = {.data = out, .capacity = capacity};
    keel_writer_number(&w, next->epoch, 8);
    keel_writer_number(&w, next->plan, 8);
    keel_writer_number(&w, next->shard_count, 2);
    keel_view_holders_write(&w, &next->before);
    keel_view_holders_write(&w, &next->holders);
    write_gone(&w, old, next);
    write_others(&w, old, next);
    write_shards(&w, old, next);
    return w.failed ? 0 : w.bytes;
}

/* The members of `old` without those that are gone. */
static void read_gone(struct keel_wire_reader *r, const struct keel_view *old, struct keel_view *out)
{
    uint32_t left = (uint32_t)keel_reader_number(r, 2);
    uint32_t gone = left > 0 ? (uint32_t)keel_reader_number(r, 2) : KEEL_RANK_NONE;
    out->member_count = 0;
    for (uint16_t i = 0; i < old->member_count && !r->failed; i++) {
        if (left == 0 || old->members[i].rank != gone) {
            out->members[out->member_count++] = old->members[i];
            continue;
        }
        if (--left > 0)
            gone = (uint32_t)keel_reader_number(r, 2);
    }
    r->failed = r->failed || left > 0; /* of nobody, or not ascending */
}

/* Put those that are new or other among the members, which are moved as far behind as there may be of these:
 * so what is read never comes before who is to be taken yet. */
static void read_others(struct keel_wire_reader *r, struct keel_view *out)
{
    const uint32_t count = (uint32_t)keel_reader_number(r, 2), kept = out->member_count;
    const uint32_t room = kept + count < KEEL_MEMBERS_MAX ? kept + count : KEEL_MEMBERS_MAX;
    struct keel_member *const members = out->members;
    struct keel_member other = {.rank = 0};
    uint32_t from = room - kept, at = 0;
    if (count > KEEL_MEMBERS_MAX) {
        r->failed = true;
        return;
    }
    memmove(members + from, members, kept * sizeof *members);
    for (uint32_t i = 0; i < count && !r->failed; i++) {
        const struct keel_member before = other;
        keel_view_read_member(r, i > 0 ? &before : NULL, &other);
        r->failed = r->failed || (i > 0 && other.rank <= before.rank);
        while (!r->failed && from < room && members[from].rank < other.rank)
            members[at++] = members[from++];
        from += !r->failed && from < room && members[from].rank == other.rank ? 1 : 0;
        r->failed = r->failed || at >= from; /* more than there may be */
        if (!r->failed)
            members[at++] = other;
    }
    while (!r->failed && from < room)
        members[at++] = members[from++];
    out->member_count = (uint16_t)at;
}

static void read_shards(struct keel_wire_reader *r, const struct keel_view *old, struct keel_view *out)
{
    for (uint16_t s = 0; s < out->shard_count; s++)
        out->shard_rank[s] = s < old->shard_count ? old->shard_rank[s] : KEEL_RANK_NONE;
    for (uint64_t left = keel_reader_number(r, 2); left > 0 && !r->failed; left--) {
        const uint64_t shard = keel_reader_number(r, 2);
        const uint16_t rank = (uint16_t)keel_reader_number(r, 2);
        if (shard < out->shard_count)
            out->shard_rank[shard] = rank;
        else
            r->failed = true;
    }
}

bool keel_view_apply(const struct keel_view *old, const uint8_t *data, uint32_t bytes, struct keel_view *out)
{
    struct keel_wire_reader r = {.data = data, .bytes = bytes};
    KEEL_ASSERT(out != old);
    out->epoch = keel_reader_number(&r, 8);
    out->plan = keel_reader_number(&r, 8);
    out->shard_count = (uint16_t)keel_reader_number(&r, 2);
    keel_view_holders_read(&r, &out->before);
    keel_view_holders_read(&r, &out->holders);
    if (r.failed || out->shard_count > KEEL_SHARDS_MAX)
        return false;
    read_gone(&r, old, out);
    read_others(&r, out);
    read_shards(&r, old, out);
    return keel_reader_complete(&r) && out->epoch > old->epoch && keel_view_valid(out);
}
