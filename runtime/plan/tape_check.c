/* tape_check.c - refuses a tape that breaks an invariant of tape.h, by playing it with counters in place of
 * data.
 *
 * It shares no code with what makes tapes but the bookkeeping of nodes: what it knows of a right tape is what
 * each action needs to have happened before. A NULL is no complaint. */
#include "tape.h"
#include <stdio.h>
#include <string.h>

struct play {
    const struct keel_tape_config *config;
    struct keel_partial_sums hold, next; /* next: when the shard under way is done */
    uint32_t missing;                    /* shards of this rank that neither is held nor under way */
    uint32_t computed;
    /* the shard under way */
    bool zeroed, begun;
    uint32_t shard, microbatch, segments, pieces, chain_count, added; /* pieces: whose segments have run */
    int chain[KEEL_HOLD_LEVELS_MAX];
    uint32_t marked; /* buckets that have a mark */
    /* the sums */
    bool finished, recorded, compared, drilled, loss_read, settled, screened;
    int sum;                   /* where the first bucket is summed to, and so all */
    uint32_t reduced, awaited; /* pieces, ascending */
    /* the end */
    bool checked, decoded, captured, updated;
    /* pieces of owners */
    bool squared, committed, drilled_again;
    bool shadowed, shadow_awaited;
    uint32_t spread, weights_awaited; /* buckets, ascending */
    bool commit_awaited;
    /* ranks with some slices */
    bool exchanged; /* what is exchanged behind the segment that ran last */
    bool normed, agreed, digested;
    /* windows: pieces of the shard under way that its slot has; the last shard is what the sums are of */
    uint32_t stored;
    int slot;
    bool summing;
    /* weights that are gathered */
    uint32_t own_rounds;                            /* of the last ones: that this rank computes in */
    uint32_t round, gathers_begun, gathers_awaited; /* of the round under way, or of the one that was last */
};

static bool windowed(const struct play *play)
{
    return play->config->waits != NULL;
}

static bool carries(const struct play *play, uint32_t shard)
{
    return shard < play->config->shard_count && play->config->shard_position[shard] == play->config->position;
}

static bool in_slot(const struct keel_partial_sums *hold, int slot)
{
    for (uint32_t i = 0; i < hold->count; i++)
        if (hold->held[i].slot == slot)
            return true;
    return false;
}

/* ---- a shard ------------------------------------------------------------------------------------------- */

static uint32_t count_segments(const struct play *play)
{
    return play->config->segments != NULL ? play->config->segment_count : play->config->bucket_count + 1;
}

/* The piece that is final behind the segment that ran last; UINT32_MAX: none is. */
static uint32_t final_piece(const struct play *play)
{
    const struct keel_tape_config *config = play->config;
    if (play->segments == 0 || play->microbatch + 1 != config->microbatches)
        return UINT32_MAX;
    if (play->segments == count_segments(play))
        return config->bucket_count;
    return config->segments != NULL ? config->segments[play->segments - 1].bucket : play->segments - 1;
}

/* Whether something is exchanged behind the segment that ran last. */
static bool exchanges(const struct play *play)
{
    if (play->segments == 0 || play->config->segments == NULL)
        return false;
    const struct keel_tape_segment *segment = &play->config->segments[play->segments - 1];
    return segment->exchanges ||
           (segment->exchanges_last && play->microbatch + 1 == play->config->microbatches);
}

static void end_segment(struct play *play)
{
    const struct keel_tape_config *config = play->config;
    play->segments++;
    play->pieces += config->segments == NULL ||
                    config->segments[play->segments - 1].bucket < config->bucket_count ||
                    play->segments == config->segment_count;
    play->added = 0;
    play->exchanged = false;
}

/* With windows: a piece of the shard under way, which is not the last. */
static const char *store_piece(struct play *play, const struct keel_action *action)
{
    if (!play->begun || play->missing == 0 || action->piece != final_piece(play) ||
        action->piece > play->config->bucket_count || play->stored != action->piece ||
        play->added != play->chain_count || exchanges(play) != play->exchanged)
        return "the piece is not final, or goes to the sums";
    if (action->piece > 0 && action->slot != play->slot)
        return "pieces of a node go to one slot";
    if (action->slot < 0 || action->slot >= KEEL_HOLD_NODES_MAX || in_slot(&play->hold, action->slot))
        return "the slot holds a node";
    play->slot = action->slot;
    play->stored++;
    return NULL;
}

static const char *begin_shard(struct play *play, const struct keel_action *action)
{
    if (!carries(play, action->shard) || keel_hold_covers(&play->hold, action->shard))
        return "the shard is not missing here";
    play->begun = true;
    play->shard = action->shard;
    play->missing--;
    play->computed++;
    play->microbatch = play->segments = play->pieces = play->marked = play->stored = 0;
    play->exchanged = false;
    play->next = play->hold;
    play->chain_count = play->added = keel_hold_add(&play->next, action->shard, play->chain);
    return NULL;
}

/* All that is owed to the segment that ran last: an exchange, additions, and a mark where its sum may begin.
 */
static bool segment_done(const struct play *play)
{
    if (exchanges(play) != play->exchanged)
        return false;
    if (play->segments == 0 || play->config->compressed)
        return true;
    const uint32_t piece = final_piece(play);
    if (piece > play->config->bucket_count)
        return true;
    const bool marks = play->missing == 0 && piece < play->config->bucket_count;
    if (windowed(play) && (marks ? play->reduced : play->missing > 0 ? play->stored : piece + 1) != piece + 1)
        return false;
    return play->added == play->chain_count && (!marks || play->marked == piece + 1);
}

/* This rank computes nothing, and gives to the sums what it holds. */
static bool gives_alone(const struct play *play)
{
    return play->recorded && play->computed == 0 && play->missing == 0;
}

/* With windows: how many sums are under way, or over, before the next segment here, or where others compute
 * it: those of the pieces that are final.
 */
static uint32_t count_begun_sums(const struct play *play)
{
    return gives_alone(play) ? play->reduced : play->pieces;
}

/* With windows: the sum of a bucket still reads what the next segment needs, here or there. */
static bool is_crowded(const struct play *play)
{
    const uint32_t begun = count_begun_sums(play);
    return windowed(play) && play->missing == 0 && begun <= play->config->bucket_count &&
           play->awaited < play->config->waits[begun];
}

/* ---- rounds of gathers --------------------------------------------------------------------------------- */

static bool is_idle(const struct play *play)
{
    return play->round + play->own_rounds < play->config->rounds;
}

/* The segment that comes next, of the round under way. */
static uint32_t next_segment(const struct play *play)
{
    return !play->begun || play->segments == count_segments(play) ? 0 : play->segments;
}

/* How many gathers of a round have begun when a segment runs, or are waited for: they ascend by both. */
static uint32_t count_up_to(const struct play *play, uint32_t segment, bool begins)
{
    const struct keel_engine_gather *gathers = play->config->gathers;
    uint32_t low = 0, high = play->config->gather_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if ((begins ? gathers[middle].begin : gathers[middle].first) <= segment)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
static uint32_t count_begun(const struct play *play, uint32_t segment)
{
    return count_up_to(play, segment, true);
}
static uint32_t count_awaited(const struct play *play, uint32_t segment)
{
    return count_up_to(play, segment, false);
}

/* How many rounds are over; UINT32_MAX: one is under way. */
static uint32_t count_rounds(const struct play *play)
{
    const uint32_t all = play->config->gather_count;
    if (play->round == 0 && play->gathers_begun == 0)
        return 0;
    const bool over = play->gathers_begun == all && play->gathers_awaited == all &&
                      (is_idle(play) || (play->begun ? play->segments == count_segments(play) : true));
    return over ? play->round + 1 : UINT32_MAX;
}

/* Whether so many rounds are over; there are none where weights are not gathered. */
static bool has_rounds(const struct play *play, uint32_t count)
{
    return play->config->gathers == NULL || count_rounds(play) == count;
}

/* The bucket whose sum begins next, where this rank only gives: it is final behind which segment. */
static uint32_t end_of_piece(const struct play *play, uint32_t piece)
{
    uint32_t s = 0;
    while (s + 1 < play->config->segment_count && play->config->segments[s].bucket != piece)
        s++;
    return s;
}

/* In a round in which this rank only gives: the sums of what is final before the segment are under way. */
static bool sums_before(const struct play *play, uint32_t segment)
{
    uint32_t count = 0;
    if (!windowed(play) || !play->recorded || play->own_rounds > 0)
        return true;
    for (uint32_t s = 0; s < segment; s++)
        count += play->config->segments[s].bucket < play->config->bucket_count;
    return play->reduced == count;
}

/* In the round's place: which segment comes next. */
static const char *in_place(const struct play *play, uint32_t segment)
{
    const uint32_t rounds = play->config->rounds;
    if (play->round >= rounds || play->recorded != (windowed(play) && play->round + 1 == rounds))
        return "all rounds are over, or the last one";
    if (is_idle(play))
        return play->zeroed || !sums_before(play, segment) || is_crowded(play)
                   ? "a sum is not begun, or is waited for first, or a shard is begun"
                   : NULL;
    if (!play->zeroed || next_segment(play) != segment || is_crowded(play) ||
        (play->begun && !segment_done(play)))
        return "another segment comes next, or the one before is not done, or a sum reads its memory";
    return NULL;
}

static const char *weights(struct play *play, const struct keel_action *action)
{
    const struct keel_tape_config *config = play->config;
    if (config->gathers == NULL)
        return "all weights are here";
    if (play->gathers_begun == config->gather_count) {
        if (count_rounds(play) == UINT32_MAX)
            return "the round before is not over";
        play->round++;
        play->gathers_begun = play->gathers_awaited = 0;
    }
    const struct keel_engine_gather *next = &config->gathers[play->gathers_begun];
    if (action->piece != next->bucket || action->slot != (int)next->window)
        return "gathers begin in one order, each once, to its window";
    for (uint32_t g = 0; g < play->gathers_begun; g++)
        if (config->gathers[g].window == next->window && config->gathers[g].last >= next->begin)
            return "segments still read what is in the window";
    if (play->gathers_awaited != (next->begin > 0 ? count_awaited(play, next->begin - 1) : 0))
        return "gathers before are waited for first";
    play->gathers_begun++;
    return in_place(play, next->begin);
}

static const char *await_weights(struct play *play, uint32_t piece)
{
    const struct keel_tape_config *config = play->config;
    if (play->gathers_awaited >= play->gathers_begun)
        return "no gather is under way";
    const struct keel_engine_gather *next = &config->gathers[play->gathers_awaited];
    if (piece != keel_piece_weights(config->bucket_count, next->bucket) ||
        play->gathers_begun != count_begun(play, next->first))
        return "gathers are waited for in order, each once, when those that go with it are begun";
    play->gathers_awaited++;
    return in_place(play, next->first);
}

/* The weights that the segment reads are here, and others are on their way. */
static bool has_gathered(const struct play *play, uint32_t segment)
{
    return play->gathers_begun == count_begun(play, segment) &&
           play->gathers_awaited == count_awaited(play, segment);
}

/* ---- segments ------------------------------------------------------------------------------------------ */

/* Rounds in which this rank only gives weights are not over, or one of its own is not. */
static bool are_others_first(const struct play *play)
{
    const uint32_t rounds = count_rounds(play);
    return play->config->gathers != NULL &&
           (rounds == UINT32_MAX || rounds + play->own_rounds < play->config->rounds);
}

static const char *store(struct play *play, const struct keel_action *action)
{
    if (windowed(play))
        return store_piece(play, action);
    struct keel_held_node *node = keel_hold_in_gradients(&play->hold);
    if (are_others_first(play))
        return "rounds in which others compute come first";
    if (node == NULL || play->recorded)
        return "the gradient buffer holds no node that has to make room";
    if (action->slot < 0 || action->slot >= KEEL_HOLD_NODES_MAX || in_slot(&play->hold, action->slot))
        return "the slot holds a node";
    if (play->missing == 0)
        return "no shard comes that needs the room";
    node->slot = action->slot;
    return NULL;
}

static const char *zero(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (keel_hold_in_gradients(&play->hold) != NULL)
        return "a held node lies in the gradient buffer";
    if (play->zeroed || (windowed(play) ? play->recorded != (play->missing == 1) : play->recorded))
        return "the gradient buffer is in use";
    if (are_others_first(play))
        return "rounds in which others compute come first";
    play->zeroed = true;
    play->begun = false;
    return NULL;
}

/* A segment of a rank with some slices, or of one that gathers weights: of each microbatch one after the
 * other. */
static const char *compute_cut(struct play *play, const struct keel_action *action)
{
    if (!segment_done(play))
        return "the piece before is not final, or has no mark, or is not exchanged";
    if (play->segments == count_segments(play)) {
        play->segments = play->pieces = 0;
        play->microbatch++;
    }
    if (action->microbatch != play->microbatch || action->microbatch >= play->config->microbatches)
        return "the microbatches of a shard do not ascend";
    if (action->piece != play->segments || action->microbatch_count != 1)
        return "segments do not ascend";
    if (is_crowded(play))
        return "the sum of a bucket still reads the memory that it needs";
    if (play->config->gathers != NULL && (is_idle(play) || !has_gathered(play, action->piece)))
        return "weights that it reads are not here, or later ones do not come";
    end_segment(play);
    return NULL;
}

static const char *exchange(struct play *play, const struct keel_action *action)
{
    if (!play->begun || play->exchanged || !exchanges(play) || action->piece + 1 != play->segments ||
        action->shard != play->shard || action->microbatch != play->microbatch)
        return "it is not what is exchanged behind the segment before";
    if (play->added > 0)
        return "siblings are added before";
    play->exchanged = true;
    return NULL;
}

static const char *compute(struct play *play, const struct keel_action *action)
{
    const uint32_t last = play->config->microbatches - 1;
    const char *why = NULL;
    if (!play->zeroed)
        return "the gradient buffer was not zeroed";
    if (!play->begun && (why = begin_shard(play, action)) != NULL)
        return why;
    if (play->config->segments != NULL)
        return action->shard != play->shard ? "the shard is not under way" : compute_cut(play, action);
    if (action->shard != play->shard || action->microbatch != play->microbatch ||
        action->microbatch_count == 0)
        return "the microbatches of a shard do not ascend";
    if (action->piece == KEEL_PIECE_ALL) {
        if (play->segments > 0 || action->microbatch_count > last - play->microbatch)
            return "the last microbatch runs by segments";
        play->microbatch += action->microbatch_count;
        return NULL;
    }
    if (play->microbatch != last || action->microbatch_count != 1)
        return "a microbatch before is left out";
    if (action->piece != play->segments || action->piece > play->config->bucket_count)
        return "segments do not ascend";
    if (!segment_done(play))
        return "the piece before is not final, has no mark, or lies nowhere else";
    if (is_crowded(play))
        return "the sum of a bucket still reads the memory that it needs";
    end_segment(play);
    return NULL;
}

static const char *add(struct play *play, const struct keel_action *action)
{
    if (!play->begun || final_piece(play) > play->config->bucket_count || action->piece != final_piece(play))
        return "the piece is not that of the segment before";
    if (exchanges(play) != play->exchanged)
        return "what is exchanged behind the segment is not there";
    if (play->added == play->chain_count || action->slot != play->chain[play->added])
        return "the slot holds no node that is a sibling now";
    play->added++;
    return NULL;
}

static const char *mark(struct play *play, const struct keel_action *action)
{
    if (!play->begun || play->missing > 0 || action->piece != final_piece(play) ||
        action->piece >= play->config->bucket_count || play->marked != action->piece)
        return "the bucket does not become final here";
    if (play->added != play->chain_count || exchanges(play) != play->exchanged)
        return "siblings are not added yet, or others' slices";
    play->marked++;
    return NULL;
}

/* With windows the last shard is summed while it is computed. */
static const char *hold_last(struct play *play, const struct keel_action *action)
{
    if (play->summing || final_piece(play) != 0 || play->added != play->chain_count || play->marked != 1 ||
        action->slot != KEEL_HOLD_GRADIENTS)
        return "the shard goes to the sums when its first piece is final";
    play->hold = play->next;
    play->summing = true;
    return NULL;
}

static const char *hold(struct play *play, const struct keel_action *action)
{
    if (!play->begun || action->shard != play->shard)
        return "the shard is not under way";
    if (windowed(play) && play->missing == 0)
        return hold_last(play, action);
    if (windowed(play) && action->slot != play->slot)
        return "the node lies in another slot";
    if (play->segments != count_segments(play) || final_piece(play) != play->config->bucket_count ||
        !segment_done(play))
        return "the shard is not done";
    play->hold = play->next;
    play->zeroed = play->begun = false;
    if (windowed(play))
        keel_hold_in_gradients(&play->hold)->slot = play->slot;
    return NULL;
}

static const char *encode(struct play *play, const struct keel_action *action)
{
    if (action->slot < 0 || action->slot >= KEEL_HOLD_NODES_MAX || in_slot(&play->hold, action->slot))
        return "the slot holds a node";
    const char *why = hold(play, action);
    if (why == NULL)
        keel_hold_in_gradients(&play->hold)->slot = action->slot;
    return why;
}

/* ---- the sums ------------------------------------------------------------------------------------------ */

/* Rounds before there is a record: with windows the last one is that of the sums. */
static uint32_t rounds_before(const struct play *play)
{
    return windowed(play) ? play->config->rounds - 1 : play->config->rounds;
}

static const char *finish(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->finished || play->computed > 0 || play->missing > 0 || play->recorded)
        return "only what an earlier attempt computed is waited for, once";
    if (!has_rounds(play, rounds_before(play)))
        return "others still compute";
    play->finished = true;
    return NULL;
}

static const char *record(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->recorded || play->missing > (windowed(play) ? 1 : 0) || play->zeroed)
        return "shards of this rank are not computed, or there is a record";
    if (play->computed == 0 && play->missing == 0 && !play->finished)
        return "what an earlier attempt gave the device may still run";
    if (!play->config->grouped && play->hold.count != 1)
        return "a rank alone holds more than one node";
    if (!has_rounds(play, rounds_before(play)))
        return "rounds in which others compute come first";
    play->recorded = true;
    return NULL;
}

static const char *compare(struct play *play, const struct keel_action *action)
{
    if (!play->config->grouped || !play->recorded || !play->screened || play->compared ||
        action->piece != play->config->bucket_count + 1)
        return "there is no record, no group, gradients come still, or it is gathered already";
    play->compared = true;
    return NULL;
}

static const char *reduce_bucket(struct play *play, const struct keel_action *action)
{
    if (play->drilled != (play->reduced > 0))
        return "faults are injected when one sum is under way";
    if (play->config->compressed)
        return action->slot == KEEL_SUM_ON_HOST ? NULL : "what is compressed is summed on the host";
    if (play->computed > 0 ? play->marked <= action->piece : !play->finished)
        return "the bucket is not final";
    if (play->config->in_pieces) {
        play->sum = action->slot;
        if (windowed(play) && play->computed > 0 && !play->summing)
            return "what is summed is not said";
        if (windowed(play) && play->own_rounds == 0 && !has_gathered(play, end_of_piece(play, action->piece)))
            return "others cannot have computed it yet";
        if (gives_alone(play) && is_crowded(play))
            return "others wait for a sum before they compute it";
        return action->slot == KEEL_SUM_IN_PIECES ? NULL : "the sum goes to its owners";
    }
    if (action->slot < KEEL_HOLD_GRADIENTS || action->slot >= KEEL_HOLD_NODES_MAX ||
        in_slot(&play->hold, action->slot))
        return "a held node lies where the sum is to go";
    if (action->piece > 0 && action->slot != play->sum)
        return "the buckets go to one place";
    play->sum = action->slot;
    return NULL;
}

static const char *reduce(struct play *play, const struct keel_action *action)
{
    const uint32_t loss = play->config->bucket_count;
    if (!play->recorded || action->piece != play->reduced || action->piece > loss)
        return "pieces are summed one after the other, each once";
    if (action->piece == loss && (!play->compared || action->slot != KEEL_SUM_ON_HOST))
        return "the last sum begins before the board is found good, or goes elsewhere than to the host";
    const char *why = action->piece < loss ? reduce_bucket(play, action) : NULL;
    play->reduced += why == NULL;
    return why;
}

static const char *drill(struct play *play, const struct keel_action *action)
{
    (void)action;
    const bool here = play->config->grouped ? play->reduced == 1 : play->recorded;
    if (action->piece == 1) {
        if (!play->config->in_pieces || play->drilled_again || !play->updated || play->spread > 0)
            return "faults are injected once between update and weights";
        play->drilled_again = true;
        return NULL;
    }
    if (action->piece != 0 || play->drilled || !here || play->loss_read)
        return "faults are injected when one sum is under way";
    play->drilled = true;
    return NULL;
}

static const char *loss(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (!play->drilled || play->loss_read)
        return "the loss is read once, behind the drill";
    if (play->config->grouped && play->reduced != play->config->bucket_count)
        return "the sum of a bucket is not begun";
    if (windowed(play) && play->begun && (play->segments != count_segments(play) || !segment_done(play)))
        return "the last shard is not done";
    if (gives_alone(play) && is_crowded(play))
        return "others wait for a sum first";
    if (!has_rounds(play, play->config->rounds))
        return "others still gather weights";
    play->loss_read = true;
    return NULL;
}

static const char *settle(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->settled || !play->loss_read)
        return "gradients are waited for once, when all sums but the last are begun";
    play->settled = true;
    return NULL;
}

static const char *screen(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->screened || !play->settled)
        return "a board is screened once, when the gradients are there";
    play->screened = true;
    return NULL;
}

/* Of the collectives that are of pieces alone. */
static const char *await_more(struct play *play, uint32_t piece)
{
    const uint32_t buckets = play->config->bucket_count;
    if (piece == keel_piece_commit(buckets)) {
        if (!play->committed || play->commit_awaited)
            return "the squares are not under way";
        play->commit_awaited = true;
    } else if (piece == keel_piece_shadow(buckets)) {
        if (!play->squared || !play->shadowed || play->shadow_awaited)
            return "copies are waited for once, behind the squares";
        play->shadow_awaited = true;
    } else if (play->config->gathers != NULL) {
        return await_weights(play, piece);
    } else {
        if (play->spread < buckets || piece != keel_piece_weights(buckets, play->weights_awaited) ||
            play->weights_awaited == buckets)
            return "weights are waited for in order, each once, when all are under way";
        play->weights_awaited++;
    }
    return NULL;
}

/* With windows, before a segment that needs the memory; a rank that computes nothing does as the others. */
static bool await_early(struct play *play, const struct keel_action *action)
{
    const uint32_t under_way = count_begun_sums(play);
    if (!windowed(play) || (!play->summing && !gives_alone(play)) || under_way > play->config->bucket_count ||
        play->reduced != under_way || action->piece != play->awaited ||
        action->piece >= play->config->waits[under_way])
        return false;
    play->awaited++;
    return true;
}

static const char *await(struct play *play, const struct keel_action *action)
{
    if (await_early(play, action))
        return NULL;
    if (play->config->in_pieces && action->piece > play->config->bucket_count + 1)
        return await_more(play, action->piece);
    if (play->config->shadowed && play->shadowed != (play->awaited >= play->config->bucket_count))
        return "what is there is not on its way to the second holder";
    if (play->reduced != play->config->bucket_count + 1)
        return "not all collectives are begun";
    if (action->piece != play->awaited || action->piece > play->config->bucket_count + 1)
        return "collectives are waited for in order, each once";
    play->awaited++;
    return NULL;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static const char *check(struct play *play, const struct keel_action *action)
{
    (void)action;
    const bool known =
        play->config->grouped ? play->awaited == play->config->bucket_count + 2 : play->screened;
    if (play->checked || !known)
        return "the records are not here, or were compared";
    play->checked = true;
    return NULL;
}

static const char *decode(struct play *play, const struct keel_action *action)
{
    if (play->decoded || !play->checked)
        return "the sum is decoded once, when the step stands";
    if (action->slot != (play->config->grouped ? KEEL_SUM_ON_HOST : play->hold.held[0].slot))
        return "the sum lies elsewhere";
    play->decoded = true;
    return NULL;
}

static const char *capture(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->commit_awaited != play->config->in_pieces)
        return "not all squares are here";
    if (play->agreed != play->config->sharing)
        return "not all ranks have all sums";
    if (play->captured || !play->checked || play->decoded != play->config->compressed)
        return "the snapshot is waited for once, when the step stands";
    play->captured = true;
    return NULL;
}

/* Where the update reads the sum. */
static int applied(const struct play *play)
{
    if (play->config->compressed)
        return KEEL_HOLD_GRADIENTS;
    return play->config->grouped ? play->sum : play->hold.held[0].slot;
}

static const char *norm(struct play *play, const struct keel_action *action)
{
    if (play->normed || !play->checked || play->decoded != play->config->compressed ||
        play->commit_awaited != play->config->in_pieces)
        return "squares are exchanged once, when the records agree and all of this rank's slices are here";
    if (action->slot != applied(play))
        return "the sum lies elsewhere";
    play->normed = true;
    return NULL;
}

static const char *agree(struct play *play, const struct keel_action *action)
{
    if (play->agreed || !play->normed)
        return "ranks agree once, when each has the squares of all slices";
    if (action->slot != applied(play))
        return "the sum lies elsewhere";
    play->agreed = true;
    return NULL;
}

/* All that follows the update, but the digests. */
static bool has_weights(const struct play *play)
{
    return play->config->gathers != NULL ? play->drilled_again
                                         : play->weights_awaited == play->config->bucket_count;
}

static bool has_digests(const struct play *play)
{
    return play->config->sharing || play->config->gathers != NULL;
}

static const char *digest(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->digested || !play->updated || (play->config->in_pieces && !has_weights(play)))
        return "digests are exchanged once, behind the update, when all weights are here";
    play->digested = true;
    return NULL;
}

static const char *shadow(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (!play->config->shadowed || play->shadowed || play->awaited != play->config->bucket_count)
        return "the sums are not here, are copied already, or nobody wants them";
    play->shadowed = true;
    return NULL;
}

static const char *square(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->squared || !play->checked)
        return "squares are summed once, when the records agree";
    play->squared = true;
    return NULL;
}

static const char *commit(struct play *play, const struct keel_action *action)
{
    (void)action;
    if (play->committed || !play->squared || play->shadow_awaited != play->config->shadowed)
        return "a holder has no sum yet, or there are no squares";
    play->committed = true;
    return NULL;
}

static const char *spread(struct play *play, const struct keel_action *action)
{
    if (play->config->gathers != NULL)
        return "weights stay with their owners";
    if (!play->drilled_again || action->piece != play->spread || action->piece >= play->config->bucket_count)
        return "weights leave their owners in order, each once, behind the update";
    play->spread++;
    return NULL;
}

static const char *update(struct play *play, const struct keel_action *action)
{
    if (play->updated || !play->captured)
        return "there is no sum that may be applied";
    if (action->slot != applied(play))
        return "the sum lies elsewhere";
    play->updated = true;
    return NULL;
}

static const char *(*const plays[KEEL_ACTION_COUNT])(struct play *, const struct keel_action *) = {
    [KEEL_ACTION_ZERO] = zero,         [KEEL_ACTION_COMPUTE] = compute, [KEEL_ACTION_ADD] = add,
    [KEEL_ACTION_UPDATE] = update,     [KEEL_ACTION_STORE] = store,     [KEEL_ACTION_LOSS] = loss,
    [KEEL_ACTION_COMPARE] = compare,   [KEEL_ACTION_REDUCE] = reduce,   [KEEL_ACTION_FINISH] = finish,
    [KEEL_ACTION_SETTLE] = settle,     [KEEL_ACTION_AWAIT] = await,     [KEEL_ACTION_CAPTURE] = capture,
    [KEEL_ACTION_MARK] = mark,         [KEEL_ACTION_HOLD] = hold,       [KEEL_ACTION_RECORD] = record,
    [KEEL_ACTION_DRILL] = drill,       [KEEL_ACTION_SCREEN] = screen,   [KEEL_ACTION_CHECK] = check,
    [KEEL_ACTION_ENCODE] = encode,     [KEEL_ACTION_DECODE] = decode,   [KEEL_ACTION_SHADOW] = shadow,
    [KEEL_ACTION_SQUARE] = square,     [KEEL_ACTION_COMMIT] = commit,   [KEEL_ACTION_SPREAD] = spread,
    [KEEL_ACTION_EXCHANGE] = exchange, [KEEL_ACTION_NORM] = norm,       [KEEL_ACTION_AGREE] = agree,
    [KEEL_ACTION_DIGEST] = digest,     [KEEL_ACTION_WEIGHTS] = weights,
};

static bool of_exact(uint32_t kind)
{
    return kind == KEEL_ACTION_STORE || kind == KEEL_ACTION_ADD || kind == KEEL_ACTION_MARK ||
           kind == KEEL_ACTION_HOLD;
}

static bool of_pieces(uint32_t kind)
{
    return kind == KEEL_ACTION_SHADOW || kind == KEEL_ACTION_SQUARE || kind == KEEL_ACTION_COMMIT ||
           kind == KEEL_ACTION_SPREAD || kind == KEEL_ACTION_WEIGHTS;
}

static bool of_slices(uint32_t kind)
{
    return kind == KEEL_ACTION_EXCHANGE || kind == KEEL_ACTION_NORM || kind == KEEL_ACTION_AGREE;
}

static bool of_compressed(uint32_t kind)
{
    return kind == KEEL_ACTION_ENCODE || kind == KEEL_ACTION_DECODE;
}

enum keel_status keel_tape_check(const struct keel_tape *tape, const struct keel_tape_config *config)
{
    struct play play = {.config = config, .hold = *config->held};
    for (uint32_t s = 0; s < config->shard_count; s++)
        play.missing += carries(&play, s) && !keel_hold_covers(&play.hold, s);
    play.own_rounds = play.missing * config->microbatches;
    for (uint32_t i = 0; i < tape->count; i++) {
        const struct keel_action *action = &tape->actions[i];
        const bool drills = !windowed(&play) || play.reduced != 1 || play.drilled;
        const char *why =
            action->kind < KEEL_ACTION_COUNT ? plays[action->kind](&play, action) : "no such kind";
        if (why == NULL && (of_exact(action->kind) ? config->compressed
                                                   : of_compressed(action->kind) && !config->compressed))
            why = "it belongs to gradients of the other kind";
        if (why == NULL && !drills && !play.drilled)
            why = "faults are injected when one sum is under way";
        if (why == NULL && of_pieces(action->kind) && !config->in_pieces)
            why = "ranks own no pieces";
        if (why == NULL && of_slices(action->kind) && !config->sharing)
            why = "ranks have all slices";
        if (why == NULL && action->kind == KEEL_ACTION_DIGEST && !has_digests(&play))
            why = "the digest of the model is here";
        const bool last = has_digests(&play)  ? play.digested
                          : config->in_pieces ? has_weights(&play)
                                              : play.updated;
        if (why == NULL && last && i + 1 != tape->count)
            why = "something follows the end";
        if (why != NULL)
            return keel_fail(KEEL_INVALID, "tape: action %u, %s: %s", i,
                             action->kind < KEEL_ACTION_COUNT
                                 ? keel_action_name((enum keel_action_kind)action->kind)
                                 : "?",
                             why);
    }
    if (!play.updated || (config->in_pieces && !has_weights(&play)) || play.digested != has_digests(&play))
        return keel_fail(KEEL_INVALID, "tape: ends without an update, or without its weights");
    if (tape->part_count != play.hold.count || tape->shards_computed != play.computed)
        return keel_fail(KEEL_INVALID, "tape: %u nodes of %u shards computed are announced, %u of %u come",
                         tape->part_count, tape->shards_computed, play.hold.count, play.computed);
    return KEEL_OK;
}
