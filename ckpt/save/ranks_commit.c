/* ranks_commit.c - finish and commit as one collective call, so that a rank that fails leaves no other one
 * waiting in a gather. How the ranks talk is the caller's (struct keel_ranks). */
#include <keel/ckpt.h>
#include <keel/memory.h>
#include <stdio.h>

/* What each rank tells rank 0, and rank 0 tells all. */
struct word {
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
    struct keel_shard_summary summary;
};

static void set_word(struct word *word, enum keel_status status)
{
    word->status = status;
    if (status != KEEL_OK)
        snprintf(word->detail, sizeof word->detail, "%s", keel_detail());
}

static struct word finish(struct keel_save *save, uint64_t deadline_ns)
{
    struct word word = {0};
    if (save == NULL) {
        set_word(&word, KEEL_INTERRUPTED);
        return word;
    }
    set_word(&word, keel_save_finish(save, deadline_ns, &word.summary));
    if (word.status == KEEL_TIMEOUT)
        keel_save_cancel(save);
    return word;
}

/* All saves of the attempt are over, so what they wrote is of no use any more. It was made by them: a rank
 * that could not begin may have met a directory that is another program's. */
static void discard(struct keel_store *store, const struct keel_commit *commit, const struct word *words,
                    uint32_t count)
{
    char detail[KEEL_DETAIL_BYTES]; /* of the failure, which is what is told */
    snprintf(detail, sizeof detail, "%s", keel_detail());
    for (uint32_t i = 0; i < count; i++)
        if (words[i].status == KEEL_OK)
            (void)keel_save_discard(store, commit->step, commit->attempt, i);
    keel_detail_set(detail);
}

static enum keel_status try_commit(struct keel_store *store, const struct keel_commit *commit,
                                   const struct word *words, uint32_t count)
{
    struct keel_shard_summary *shards;
    struct keel_commit complete = *commit;
    for (uint32_t i = 0; i < count; i++)
        if (words[i].status != KEEL_OK)
            return keel_fail(words[i].status, "step %llu is not saved: rank %u: %s",
                             (unsigned long long)commit->step, i, words[i].detail);
    KEEL_TRY(keel_alloc(count, sizeof *shards, &shards));
    for (uint32_t i = 0; i < count; i++)
        shards[i] = words[i].summary;
    complete.shards = shards;
    complete.shard_count = count;
    enum keel_status status = keel_store_commit(store, &complete);
    keel_free(shards);
    return status;
}

static enum keel_status commit_words(struct keel_store *store, const struct keel_commit *commit,
                                     const struct word *words, uint32_t count)
{
    enum keel_status status = try_commit(store, commit, words, count);
    if (status != KEEL_OK)
        discard(store, commit, words, count);
    return status;
}

enum keel_status keel_save_commit(struct keel_store *store, struct keel_save *save,
                                  const struct keel_commit *commit, const struct keel_ranks *ranks,
                                  uint64_t deadline_ns)
{
    KEEL_ASSERT(commit != NULL && (ranks == NULL || (ranks->gather != NULL && ranks->broadcast != NULL &&
                                                     ranks->rank < ranks->rank_count)));
    struct word mine = finish(save, deadline_ns), *all = NULL;
    if (ranks == NULL)
        return commit_words(store, commit, &mine, 1);
    enum keel_status status = KEEL_OK;
    if (ranks->rank == 0)
        status = keel_alloc(ranks->rank_count, sizeof *all, &all);
    if (status != KEEL_OK) /* without it no gather: the program's ranks are stuck with or without us */
        return status;
    status = ranks->gather(ranks->context, &mine, sizeof mine, all);
    if (status == KEEL_OK && ranks->rank == 0)
        set_word(&mine, commit_words(store, commit, all, ranks->rank_count));
    keel_free(all);
    if (status == KEEL_OK)
        status = ranks->broadcast(ranks->context, &mine, sizeof mine);
    KEEL_TRY(status);
    if (mine.status != KEEL_OK)
        keel_detail_set(mine.detail);
    return mine.status;
}
