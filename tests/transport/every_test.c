/* every_test.c - every kind of collective, by every algorithm that can do it, on every element and reduction,
 * for odd counts and 1 to 9 ranks: compared, element by element, with what one line of arithmetic says.
 *
 * Values are small whole numbers, so that a sum has one value in whatever order; that exact sums have the
 * same bits by all algorithms is shown with values that round. */
#include "ranks.h"
#include "schedule.h"
#include "sums.h"

#include "message.h"

/* ---- elements ------------------------------------------------------------------------------------------ */

/* A small whole number in 16 bits, as IEEE 754 has it. */
static uint16_t half_of(int value)
{
    uint32_t size = (uint32_t)(value < 0 ? -value : value), exponent = 0;
    if (size == 0)
        return 0;
    while (size >> (exponent + 1) != 0)
        exponent++;
    uint32_t fraction = (size << 10 >> exponent) & 0x3ff;
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (exponent + 15) << 10 | fraction);
}

static void store(enum keel_element element, void *place, int value)
{
    float f = (float)value;
    double d = value;
    uint16_t h = half_of(value);
    int32_t i32 = value;
    int64_t i64 = value;
    uint8_t u8 = (uint8_t)value;
    uint32_t bits;
    uint16_t high;
    memcpy(&bits, &f, sizeof bits);
    high = (uint16_t)(bits >> 16); /* exact: few significant bits */
    const void *from[KEEL_ELEMENT_COUNT] = {&f, &d, &h, &high, &u8, &i32, &i64, &u8};
    memcpy(place, from[element], keel_element_bytes(element));
}

static uint8_t *element_at(void *data, enum keel_element element, uint64_t index)
{
    return (uint8_t *)data + index * keel_element_bytes(element);
}

/* ---- what goes in, and what must come out -------------------------------------------------------------- */

struct trial {
    struct keel_collective what;
    uint32_t rank, rank_count;
};

/* Averages are of multiples of the ranks, so that they are whole too. */
static int part_value(const struct trial *trial, uint32_t rank, uint64_t index)
{
    uint64_t mixed = (index * 31 + rank * 17 + trial->what.sequence) % 101;
    if (trial->what.reduction == KEEL_AVERAGE)
        return (int)(mixed % 2 * trial->rank_count);
    return (int)(mixed % 5) - (trial->what.element == KEEL_ELEMENT_U8 ? 0 : 2);
}

static int reduced(const struct trial *trial, uint64_t index)
{
    int value = part_value(trial, 0, index);
    for (uint32_t rank = 1; rank < trial->rank_count; rank++) {
        int other = part_value(trial, rank, index);
        if (trial->what.reduction == KEEL_MIN)
            value = other < value ? other : value;
        else if (trial->what.reduction == KEEL_MAX)
            value = other > value ? other : value;
        else
            value += other;
    }
    return trial->what.reduction == KEEL_AVERAGE ? value / (int)trial->rank_count : value;
}

/* From one rank to another, of those collectives where everybody gives differently. */
static uint64_t uneven(const struct trial *trial, uint32_t from, uint32_t to)
{
    return (trial->what.count + 3 * from + 5 * to) % (trial->what.count + 2);
}

static uint64_t uneven_before(const struct trial *trial, uint32_t from, uint32_t to)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < to; rank++)
        total += uneven(trial, from, rank);
    return total;
}

static uint64_t gathered_before(const struct trial *trial, uint32_t rank)
{
    uint64_t total = 0;
    for (uint32_t r = 0; r < rank; r++)
        total += uneven(trial, r, 0);
    return total;
}

/* Asked for by any table of counts: slices differ, as contributions to a gather do. */
static bool scatters_uneven(const struct trial *trial)
{
    return trial->what.kind == KEEL_REDUCE_SCATTER && trial->what.counts_out != NULL;
}

static uint64_t part_elements(const struct trial *trial)
{
    const struct keel_collective *what = &trial->what;
    if (scatters_uneven(trial))
        return gathered_before(trial, trial->rank_count);
    switch (what->kind) {
    case KEEL_REDUCE_SCATTER:
    case KEEL_ALL_TO_ALL:
    case KEEL_SCATTER:
        return what->count * trial->rank_count;
    case KEEL_ALL_GATHER_V:
        return uneven(trial, trial->rank, 0);
    case KEEL_ALL_TO_ALL_V:
        return uneven_before(trial, trial->rank, trial->rank_count);
    case KEEL_BARRIER:
        return 0;
    default:
        return what->count;
    }
}

static uint64_t result_elements(const struct trial *trial)
{
    const struct keel_collective *what = &trial->what;
    bool root = what->root == trial->rank;
    uint64_t total = 0;
    if (scatters_uneven(trial))
        return uneven(trial, trial->rank, 0);
    switch (what->kind) {
    case KEEL_REDUCE:
        return root ? what->count : 0;
    case KEEL_GATHER:
        return root ? what->count * trial->rank_count : 0;
    case KEEL_ALL_GATHER:
    case KEEL_ALL_TO_ALL:
        return what->count * trial->rank_count;
    case KEEL_ALL_GATHER_V:
        return gathered_before(trial, trial->rank_count);
    case KEEL_ALL_TO_ALL_V:
        for (uint32_t rank = 0; rank < trial->rank_count; rank++)
            total += uneven(trial, rank, trial->rank);
        return total;
    case KEEL_BARRIER:
        return 0;
    default:
        return what->count;
    }
}

static int wanted(const struct trial *trial, uint64_t index)
{
    const struct keel_collective *what = &trial->what;
    uint64_t count = what->count;
    uint32_t from = 0;
    switch (what->kind) {
    case KEEL_REDUCE_SCATTER:
        return reduced(trial, scatters_uneven(trial) ? gathered_before(trial, trial->rank) + index
                                                     : trial->rank * count + index);
    case KEEL_ALL_REDUCE:
    case KEEL_REDUCE:
        return reduced(trial, index);
    case KEEL_ALL_GATHER:
    case KEEL_GATHER:
        return part_value(trial, (uint32_t)(index / count), index % count);
    case KEEL_ALL_TO_ALL:
        return part_value(trial, (uint32_t)(index / count), trial->rank * count + index % count);
    case KEEL_SCATTER:
        return part_value(trial, what->root, trial->rank * count + index);
    case KEEL_ALL_GATHER_V:
        while (index >= uneven(trial, from, 0))
            index -= uneven(trial, from++, 0);
        return part_value(trial, from, index);
    case KEEL_ALL_TO_ALL_V:
        while (index >= uneven(trial, from, trial->rank))
            index -= uneven(trial, from++, trial->rank);
        return part_value(trial, from, uneven_before(trial, from, trial->rank) + index);
    default:
        return part_value(trial, what->root, index);
    }
}

/* ---- one trial ----------------------------------------------------------------------------------------- */

static uint32_t parts_of(const struct trial *trial)
{
    const struct keel_collective *what = &trial->what;
    if (what->kind == KEEL_BARRIER)
        return 0;
    return (what->kind != KEEL_BROADCAST && what->kind != KEEL_SCATTER) || what->root == trial->rank ? 1 : 0;
}

static void judge(struct rank *me, const struct trial *trial, uint8_t *result, const uint8_t *kept,
                  uint8_t *part)
{
    const struct keel_collective *what = &trial->what;
    uint64_t out = result_elements(trial), in = part_elements(trial);
    uint32_t bytes = keel_element_bytes(what->element);
    for (uint64_t k = 0; k < out; k++) {
        uint8_t right[8];
        store(what->element, right, wanted(trial, k));
        if (memcmp(right, element_at(result, what->element, k), bytes) != 0) {
            fprintf(
                stderr, "rank %u of %u: %s by %s, %s, %s, %s, count %llu, root %u: element %llu is wrong\n",
                me->rank, me->rank_count, keel_collective_name(what->kind),
                keel_algorithm_name(what->algorithm), keel_element_name(what->element),
                keel_reduction_name(what->reduction), what->order == KEEL_ORDER_EXACT ? "exact" : "native",
                (unsigned long long)what->count, what->root, (unsigned long long)k);
            _exit(1);
        }
    }
    for (uint32_t k = 0; k < 64; k++)
        rank_check(me, result[out * bytes + k] == 0xa5);
    rank_check(me, in == 0 || memcmp(part, kept, in * bytes) == 0);
}

static uint8_t *take(struct rank *me, uint64_t bytes, bool shared)
{
    uint8_t *memory = shared ? NULL : malloc(bytes);
    if (shared)
        rank_ok(me, keel_transport_alloc(bytes, &memory));
    return memory;
}

static void give_back(uint8_t *memory, bool shared)
{
    if (shared)
        keel_transport_free(memory);
    else
        free(memory);
}

/* False when the algorithm cannot do it: then it cannot on any rank, or somebody would wait in vain. */
static bool try_it(struct rank *me, struct keel_group *group, struct keel_collective what)
{
    struct trial trial = {what, me->rank, me->rank_count};
    uint64_t counts_in[RANKS_MAX], counts_out[RANKS_MAX];
    for (uint32_t r = 0; r < me->rank_count; r++) {
        counts_in[r] = uneven(&trial, me->rank, r);
        counts_out[r] = what.kind == KEEL_ALL_TO_ALL_V ? uneven(&trial, r, me->rank) : uneven(&trial, r, 0);
    }
    uint64_t in = part_elements(&trial), out = result_elements(&trial);
    uint32_t bytes = keel_element_bytes(what.element);
    bool shared = what.sequence % 2 == 0; /* memory that the others may read in place */
    uint8_t *part = take(me, in * bytes + 1, shared), *kept = malloc(in * bytes + 1),
            *result = take(me, out * bytes + 64, shared);
    for (uint64_t k = 0; k < in; k++)
        store(what.element, element_at(part, what.element, k), part_value(&trial, me->rank, k));
    memcpy(kept, part, in * bytes);
    memset(result, 0xa5, out * bytes + 64);
    const void *parts[] = {part};
    what.parts = parts;
    what.part_count = parts_of(&trial);
    what.result = result;
    what.counts_in = counts_in;
    what.counts_out = what.kind != KEEL_REDUCE_SCATTER || scatters_uneven(&trial) ? counts_out : NULL;
    enum keel_status status = keel_group_run(group, &what, in_seconds(30));
    if (status == KEEL_OK)
        judge(me, &trial, result, kept, part);
    rank_check(me, status == KEEL_OK || status == KEEL_UNSUPPORTED);
    memset(part, 0xff, in * bytes); /* nobody may read it any more */
    memset(result, 0xff, out * bytes);
    give_back(part, shared);
    give_back(result, shared);
    free(kept);
    return status == KEEL_OK;
}

static struct keel_group *even_group(struct rank *me, uint64_t epoch)
{
    const uint16_t own[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    return rank_group(me, epoch, me->rank_count, own);
}

static bool sums_up(enum keel_collective_kind kind)
{
    return kind == KEEL_ALL_REDUCE || kind == KEEL_REDUCE || kind == KEEL_REDUCE_SCATTER;
}

/* Every element with every reduction in both orders; other kinds, every element. Counts and roots take turns.
 */
static uint32_t try_elements(struct rank *me, struct keel_group *group, struct keel_collective what,
                             const uint64_t *counts, uint32_t count_count, uint64_t *sequence)
{
    uint32_t done = 0;
    uint32_t reductions = sums_up(what.kind) ? KEEL_REDUCTION_COUNT : 1, orders = sums_up(what.kind) ? 2 : 1;
    for (uint32_t e = 0; e < KEEL_ELEMENT_COUNT; e++)
        for (uint32_t r = 0; r < reductions; r++)
            for (uint32_t o = 0; o < orders; o++) {
                what.element = (enum keel_element)e;
                what.reduction = (enum keel_reduction)r;
                what.order = (enum keel_order)o;
                what.count = counts[*sequence % count_count];
                what.root = (uint32_t)(*sequence / 3 % me->rank_count);
                what.sequence = (*sequence)++;
                what.counts_out = what.sequence / 7 % 2 == 0 ? counts : NULL;
                if (me->rank_count <= 3 || what.sequence % 7 == 0) /* of more ranks a sample */
                    done += try_it(me, group, what);
            }
    return done;
}

static int every_body(struct rank *me)
{
    const uint64_t counts[] = {0, 1, 2, 7, 31, 127, 1009, 12289};
    uint64_t sequence = me->seed;
    uint32_t algorithms[KEEL_COLLECTIVE_COUNT] = {0};
    struct keel_group *group = even_group(me, 1);
    for (uint32_t kind = 0; kind < KEEL_SEND; kind++)
        for (uint32_t a = 0; a < KEEL_ALGORITHM_COUNT; a++) {
            struct keel_collective what = {.kind = (enum keel_collective_kind)kind,
                                           .algorithm = (enum keel_algorithm)a};
            algorithms[kind] += try_elements(me, group, what, counts, 8, &sequence) > 0;
        }
    for (uint32_t kind = 0; kind < KEEL_SEND; kind++)
        rank_check(me, algorithms[kind] >= 2); /* that is, AUTO and another */
    keel_group_close(group);
    return 0;
}

START_TEST(every_collective_has_the_value_that_arithmetic_says)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i, (uint64_t)_i * 1000, NULL, every_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* Long enough for many segments, and not a multiple of anything. */
static int long_body(struct rank *me)
{
    uint64_t sequence = 1;
    struct keel_group *group = even_group(me, 1);
    for (uint32_t kind = 0; kind < KEEL_BARRIER; kind++)
        for (uint32_t a = 0; a < KEEL_ALGORITHM_COUNT; a++) {
            struct keel_collective what = {.kind = (enum keel_collective_kind)kind,
                                           .algorithm = (enum keel_algorithm)a,
                                           .element =
                                               sequence % 2 == 0 ? KEEL_ELEMENT_F32 : KEEL_ELEMENT_BF16,
                                           .order = sequence % 3 == 0 ? KEEL_ORDER_NATIVE : KEEL_ORDER_EXACT,
                                           .count = 200003,
                                           .root = (uint32_t)(sequence % me->rank_count)};
            what.sequence = sequence++;
            try_it(me, group, what);
            what.counts_out = &what.count;
            what.sequence = sequence++;
            if (kind == KEEL_REDUCE_SCATTER)
                try_it(me, group, what);
        }
    keel_group_close(group);
    return 0;
}

START_TEST(collectives_of_many_segments_are_right)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i, 1, NULL, long_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- the same bits ------------------------------------------------------------------------------------- */

/* A sum of shards spread anyhow, by every algorithm that can keep the order: the oracle's bits. */
static uint32_t same_bits(struct rank *me, uint64_t epoch, uint32_t shard_count, const uint16_t *shard_rank,
                          uint64_t count)
{
    float *parts[64], *result = malloc((count + 1) * sizeof *result);
    uint32_t part_count = make_parts(shard_count, shard_rank, me->rank, count, parts), done = 0;
    struct keel_group *group = rank_group(me, epoch, shard_count, shard_rank);
    for (uint32_t a = 0; a < KEEL_ALGORITHM_COUNT; a++) {
        struct keel_collective what = {.kind = KEEL_ALL_REDUCE,
                                       .sequence = a,
                                       .element = KEEL_ELEMENT_F32,
                                       .algorithm = (enum keel_algorithm)a,
                                       .count = count,
                                       .parts = (const void *const *)parts,
                                       .part_count = part_count,
                                       .result = result};
        memset(result, 0, count * sizeof *result);
        enum keel_status status = keel_group_run(group, &what, in_seconds(30));
        rank_check(me, status == KEEL_OK || status == KEEL_UNSUPPORTED);
        rank_check(me, status != KEEL_OK || first_wrong(result, shard_count, count) == count);
        done += status == KEEL_OK;
    }
    keel_group_close(group);
    free_parts(parts, part_count);
    free(result);
    return done;
}

static int bits_body(struct rank *me)
{
    uint64_t seed = me->seed, epoch = 1;
    const uint32_t shard_counts[] = {1, 3, 8, 16, 29};
    for (uint32_t k = 0; k < 5; k++)
        for (uint32_t way = 0; way < 2; way++) {
            uint16_t shard_rank[32];
            for (uint32_t s = 0; s < shard_counts[k]; s++) {
                uint32_t anywhere = (uint32_t)(test_random(&seed) % me->rank_count);
                uint32_t in_order = s * me->rank_count / shard_counts[k];
                shard_rank[s] = (uint16_t)(way == 0 ? anywhere : in_order);
            }
            rank_check(me,
                       same_bits(me, epoch++, shard_counts[k], shard_rank, k % 2 == 0 ? 4099 : 50021) >= 3);
        }
    return 0;
}

START_TEST(exact_sums_have_the_same_bits_by_every_algorithm_and_placement)
{
    struct ranks ranks;
    ranks_start(&ranks, (uint32_t)_i, (uint64_t)_i, NULL, bits_body);
    ranks_end(&ranks, -1);
}
END_TEST

/* ---- bytes on the wire --------------------------------------------------------------------------------- */

/* What this rank has sent so far but headers; what is under way is waited for. */
static int64_t payload_sent(struct rank *me)
{
    struct keel_transport_stats stats, before = {0};
    for (;;) {
        keel_endpoint_stats(me->endpoint, &stats);
        if (stats.messages_sent == before.messages_sent)
            break;
        before = stats;
        keel_sleep_until_ns(keel_deadline_after_ns(20 * KEEL_NS_PER_MS));
    }
    return (int64_t)(stats.bytes_sent - stats.messages_sent * header_bytes());
}

/* All ranks' bytes for one operation of that many elements, the signatures of the first messages included. */
static int64_t wire_bytes(struct rank *me, struct keel_group *group, struct keel_collective what)
{
    int64_t mine = -payload_sent(me), all = 0;
    rank_check(me, try_it(me, group, what));
    mine += payload_sent(me);
    const void *parts[] = {&mine};
    struct keel_collective sum = {.kind = KEEL_ALL_REDUCE,
                                  .sequence = what.sequence + 1,
                                  .element = KEEL_ELEMENT_I64,
                                  .count = 1,
                                  .parts = parts,
                                  .part_count = 1,
                                  .result = &all};
    rank_ok(me, keel_group_run(group, &sum, in_seconds(20)));
    rank_ok(me, barrier(group, what.sequence + 2, in_seconds(20))); /* nobody is ahead */
    return all;
}

static int wire_body(struct rank *me)
{
    struct keel_group *group = even_group(me, 1);
    uint64_t sequence = 0, count = 16 * 8 * 1009; /* even shares for any of the ranks tried */
    uint32_t done = 0;
    rank_ok(me, barrier(group, sequence++, in_seconds(20)));
    for (uint32_t kind = 0; kind < KEEL_BARRIER; kind++)
        for (uint32_t a = 1; a < KEEL_ALGORITHM_COUNT; a++) {
            struct keel_collective what = {.kind = (enum keel_collective_kind)kind,
                                           .element = KEEL_ELEMENT_F32,
                                           .order = KEEL_ORDER_NATIVE,
                                           .algorithm = (enum keel_algorithm)a,
                                           .sequence = sequence};
            struct keel_collective_key key = {.kind = what.kind,
                                              .algorithm = what.algorithm,
                                              .rank = me->rank,
                                              .rank_count = me->rank_count,
                                              .shard_count = me->rank_count};
            struct keel_schedule *schedule;
            if (kind == KEEL_ALL_GATHER_V || kind == KEEL_ALL_TO_ALL_V ||
                keel_schedule_make(&key, &schedule) != KEEL_OK)
                continue;
            keel_schedule_free(schedule);
            uint64_t bytes = count * sizeof(float);
            if (kind == KEEL_ALL_GATHER || kind == KEEL_GATHER || kind == KEEL_ALL_TO_ALL)
                bytes *= me->rank_count;
            int64_t right = (int64_t)keel_schedule_wire_bytes(&key, bytes), moved = -1;
            for (uint32_t tries = 0; moved != right && tries < 4; tries++) { /* a send may be counted late */
                what.count = 0;
                moved = -wire_bytes(me, group, what);
                what.sequence += 3;
                what.count = count;
                moved += wire_bytes(me, group, what);
                what.sequence += 3;
            }
            if (moved != right)
                fprintf(stderr, "%s by %s: %lld bytes, the formula says %lld\n",
                        keel_collective_name(what.kind), keel_algorithm_name(what.algorithm),
                        (long long)moved, (long long)right);
            rank_check(me, moved == right);
            sequence = what.sequence;
            done++;
        }
    rank_check(me, done > 20);
    keel_group_close(group);
    return 0;
}

START_TEST(the_bytes_on_the_wire_are_those_of_the_formula)
{
    struct ranks ranks;
    ranks_start(&ranks, 4, 1, NULL, wire_body);
    ranks_end(&ranks, -1);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, every_collective_has_the_value_that_arithmetic_says, 1, RANKS_MAX + 1);
    tcase_add_loop_test(tc, collectives_of_many_segments_are_right, 1, 6);
    tcase_add_test(tc, the_bytes_on_the_wire_are_those_of_the_formula);
    tcase_add_loop_test(tc, exact_sums_have_the_same_bits_by_every_algorithm_and_placement, 1, RANKS_MAX + 1);
}
KEEL_TEST_MAIN("transport every collective", cases, 120)
