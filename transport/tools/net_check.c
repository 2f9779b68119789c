/* net_check.c - one rank of `keel net check`: runs every case and compares each byte that it can with the
 * oracle.
 *
 * What is looked at of each case: every element of the result (of large ones a few thousand, and a digest of
 * all, which must not depend on the algorithm), that nothing was written before or behind the result, and
 * that the parts are as they were. */
#include "net_check.h"
#include "net_oracle.h"

#include <inttypes.h>
#include <keel/clock.h>
#include <keel/memory.h>
#include <sodium.h>
#include <string.h>

enum { GUARD_BYTES = 64, GUARD = 0xa5, DIGEST_BYTES = 16, SAMPLES = 4096, WHOLE_MAX = 1 << 20 };
#define STEP_NS (KEEL_NS_PER_S / 5)

struct check {
    struct keel_net_rank *rank;
    struct keel_net_check_count count; /* of the kind under way */
    uint64_t begun_ns, told_ns, done, wrong_told;
    bool any;
    /* of the cases with one seed */
    uint64_t seed;
    uint8_t *part, *result; /* result: between two guards */
    uint64_t part_bytes, result_bytes;
    uint8_t part_digest[DIGEST_BYTES], digest[DIGEST_BYTES]; /* digest: of the first algorithm's result */
    bool has_digest;
    enum keel_algorithm digest_of;
    uint64_t *counts_in, *counts_out, *values; /* world each */
};

static void digest_of(const void *data, uint64_t bytes, uint8_t out[DIGEST_BYTES])
{
    crypto_generichash(out, DIGEST_BYTES, data, bytes, NULL, 0);
}

/* ---- telling ---- */

static enum keel_status tell_wrong(struct check *check, const struct keel_net_case *it, const char *why)
{
    char text[KEEL_NET_CHECK_TEXT_BYTES], name[160];
    check->count.wrong++;
    if (check->wrong_told++ >= KEEL_NET_CHECK_WRONG_MAX)
        return KEEL_OK;
    keel_net_case_name(it, name, sizeof name);
    snprintf(text, sizeof text, "%s: %s", name, why);
    return keel_net_rank_say(check->rank, KEEL_NET_CHECK_WRONG, text, (uint32_t)strlen(text) + 1);
}

static enum keel_status tell_count(struct check *check)
{
    if (!check->any)
        return KEEL_OK;
    check->count.took_ns = keel_now_ns() - check->begun_ns;
    return keel_net_rank_say(check->rank, KEEL_NET_CHECK_DONE, &check->count, sizeof check->count);
}

static enum keel_status tell_step(struct check *check)
{
    check->done++;
    if (check->rank->rank != 0 || keel_now_ns() - check->told_ns < STEP_NS)
        return KEEL_OK;
    check->told_ns = keel_now_ns();
    return keel_net_rank_say(check->rank, KEEL_NET_CHECK_STEP, &check->done, sizeof check->done);
}

/* ---- buffers ---- */

static void release(struct check *check)
{
    keel_free(check->part);
    keel_free(check->result);
    check->part = check->result = NULL;
}

/* Inputs are the same for all algorithms of a case. */
static enum keel_status prepare(struct check *check, const struct keel_net_case *it)
{
    const struct keel_net_rank *rank = check->rank;
    uint32_t element_bytes = keel_element_bytes(it->element);
    uint64_t given = keel_net_case_given(it, rank->rank, rank->world);
    if (check->part != NULL && check->seed == it->seed)
        return KEEL_OK;
    release(check);
    check->seed = it->seed;
    check->has_digest = false;
    check->part_bytes = given * element_bytes;
    check->result_bytes = keel_net_case_got(it, rank->rank, rank->world) * element_bytes;
    KEEL_TRY(keel_alloc_aligned(KEEL_CACHE_LINE_BYTES, check->part_bytes + 1, &check->part));
    KEEL_TRY(
        keel_alloc_aligned(KEEL_CACHE_LINE_BYTES, check->result_bytes + 2 * GUARD_BYTES, &check->result));
    for (uint64_t k = 0; k < given; k++)
        keel_oracle_store(it->element, check->part, k,
                          keel_oracle_input(it->element, it->reduction, it->seed, rank->rank, k));
    digest_of(check->part, check->part_bytes, check->part_digest);
    for (uint32_t k = 0; k < rank->world; k++) {
        check->counts_in[k] = keel_net_case_count(it, rank->rank, k);
        check->counts_out[k] = keel_net_case_count(it, k, rank->rank);
    }
    return KEEL_OK;
}

/* ---- running ---- */

static enum keel_status run(struct check *check, const struct keel_net_case *it)
{
    bool varies = it->kind == KEEL_ALL_GATHER_V || it->kind == KEEL_ALL_TO_ALL_V;
    struct keel_collective what = {.kind = it->kind,
                                   .element = it->element,
                                   .reduction = it->reduction,
                                   .order = it->order,
                                   .algorithm = it->algorithm,
                                   .root = it->root,
                                   .count = it->count,
                                   .counts_in = varies ? check->counts_in : NULL,
                                   .counts_out = varies ? check->counts_out : NULL};
    memset(check->result, GUARD, keel_size(check->result_bytes + 2 * GUARD_BYTES));
    return keel_net_rank_run(check->rank, what, check->part, check->result + GUARD_BYTES);
}

/* ---- looking ---- */

/* False, and why, when the element at `index` of the result is not right. */
static bool element_is_right(struct check *check, const struct keel_net_case *it, uint64_t index, char *why,
                             size_t why_bytes)
{
    const struct keel_net_rank *rank = check->rank;
    uint64_t got = keel_oracle_load(it->element, check->result + GUARD_BYTES, index), wanted;
    char got_text[64], wanted_text[64];
    bool right;
    if (keel_kind_reduces(it->kind)) {
        uint64_t at = keel_net_case_reduced(it, rank->rank, index);
        bool rounds =
            it->element <= KEEL_ELEMENT_BF16 && (it->reduction == KEEL_SUM || it->reduction == KEEL_AVERAGE);
        for (uint32_t k = 0; k < rank->world; k++)
            check->values[k] = keel_oracle_input(it->element, it->reduction, it->seed, k, at);
        right = it->order == KEEL_ORDER_NATIVE && rounds &&
                keel_oracle_is_close(it->element, it->reduction, check->values, rank->world, got);
        wanted = keel_oracle_tree(it->element, it->reduction, check->values, rank->world);
        right = right || keel_oracle_is_same(it->element, wanted, got);
    } else {
        uint32_t from;
        uint64_t at;
        keel_net_case_source(it, rank->rank, rank->world, index, &from, &at);
        wanted = keel_oracle_input(it->element, it->reduction, it->seed, from, at);
        right = wanted == got;
    }
    if (right)
        return true;
    keel_oracle_print(it->element, got, got_text, sizeof got_text);
    keel_oracle_print(it->element, wanted, wanted_text, sizeof wanted_text);
    snprintf(why, why_bytes, "element %" PRIu64 " is %s, not %s", index, got_text, wanted_text);
    return false;
}

static bool guards_stand(const struct check *check)
{
    const uint8_t *behind = check->result + GUARD_BYTES + check->result_bytes;
    for (uint32_t k = 0; k < GUARD_BYTES; k++)
        if (check->result[k] != GUARD || behind[k] != GUARD)
            return false;
    return true;
}

/* Bits that may not depend on the algorithm: all but those of native sums, and payloads of NaN. */
static bool bits_are_fixed(const struct keel_net_case *it)
{
    if (!keel_kind_reduces(it->kind) || it->element > KEEL_ELEMENT_BF16)
        return true;
    return it->order == KEEL_ORDER_EXACT && it->reduction != KEEL_MIN && it->reduction != KEEL_MAX;
}

/* Of large results a few thousand elements, and the last. */
static bool elements_are_right(struct check *check, const struct keel_net_case *it, char *why,
                               size_t why_bytes)
{
    uint64_t elements = check->result_bytes / keel_element_bytes(it->element), step = 1;
    uint64_t each = keel_kind_reduces(it->kind) ? check->rank->world : 1;
    if (elements * each > WHOLE_MAX)
        step = elements / SAMPLES + 1;
    for (uint64_t k = 0; k < elements; k += step)
        if (!element_is_right(check, it, k, why, why_bytes))
            return false;
    return elements == 0 || element_is_right(check, it, elements - 1, why, why_bytes);
}

/* What has the bits of a result that was found right is right. */
static bool result_is_right(struct check *check, const struct keel_net_case *it, char *why, size_t why_bytes)
{
    uint8_t digest[DIGEST_BYTES];
    bool fixed = bits_are_fixed(it);
    if (fixed)
        digest_of(check->result + GUARD_BYTES, check->result_bytes, digest);
    if (fixed && check->has_digest && memcmp(digest, check->digest, sizeof digest) == 0)
        return true;
    if (!elements_are_right(check, it, why, why_bytes))
        return false;
    if (fixed && check->has_digest) {
        snprintf(why, why_bytes, "other bits than by %s", keel_algorithm_name(check->digest_of));
        return false;
    }
    if (fixed) {
        memcpy(check->digest, digest, sizeof digest);
        check->digest_of = it->algorithm;
        check->has_digest = true;
    }
    return true;
}

static bool is_right(struct check *check, const struct keel_net_case *it, char *why, size_t why_bytes)
{
    uint8_t digest[DIGEST_BYTES];
    if (!result_is_right(check, it, why, why_bytes))
        return false;
    digest_of(check->part, check->part_bytes, digest);
    if (memcmp(digest, check->part_digest, sizeof digest) != 0)
        snprintf(why, why_bytes, "the part was written to");
    else if (!guards_stand(check))
        snprintf(why, why_bytes, "something was written outside of the result");
    else
        return true;
    return false;
}

/* ---- the cases ---- */

/* LIMIT: more connections than there may be, or more scratch. By any algorithm an all-to-all-v of n ranks
 * takes n - 1 connections, so that there is one only up to so many ranks. */
static bool cannot(const struct keel_net_case *it, enum keel_status status)
{
    if (it->algorithm == KEEL_ALGORITHM_AUTO && it->kind != KEEL_ALL_TO_ALL_V)
        return false;
    return status == KEEL_LIMIT || (status == KEEL_UNSUPPORTED && it->algorithm != KEEL_ALGORITHM_AUTO);
}

static enum keel_status visit(void *context, const struct keel_net_case *it)
{
    struct check *check = context;
    char why[256];
    if (!check->any || check->count.kind != (uint32_t)it->kind) {
        KEEL_TRY(tell_count(check));
        check->count = (struct keel_net_check_count){.kind = it->kind};
        check->begun_ns = keel_now_ns();
        check->any = true;
    }
    KEEL_TRY(prepare(check, it));
    enum keel_status status = run(check, it);
    check->count.cases++;
    KEEL_TRY(tell_step(check));
    if (cannot(it, status)) {
        check->count.cannot++;
        return KEEL_OK;
    }
    if (status != KEEL_OK) {
        char detail[KEEL_DETAIL_BYTES], name[160];
        snprintf(detail, sizeof detail, "%s", keel_detail());
        keel_net_case_name(it, name, sizeof name);
        return keel_fail(status, "%s: %s", name, detail);
    }
    return is_right(check, it, why, sizeof why) ? KEEL_OK : tell_wrong(check, it, why);
}

enum keel_status keel_net_check_rank(struct keel_net_rank *rank, const struct keel_net_case_filter *filter)
{
    struct check check = {.rank = rank};
    uint64_t *arrays;
    KEEL_TRY(keel_alloc(3 * (size_t)rank->world, sizeof *arrays, &arrays));
    check.counts_in = arrays;
    check.counts_out = arrays + rank->world;
    check.values = arrays + 2 * (size_t)rank->world;
    enum keel_status status = keel_net_cases_each(rank->world, filter, visit, &check);
    if (status == KEEL_OK)
        status = tell_count(&check);
    /* what a failed operation was lent stays lent until the group is closed, and the process ends then */
    if (status == KEEL_OK)
        release(&check);
    keel_free(arrays);
    return status;
}
