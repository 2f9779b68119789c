/* retain_test.c - what goes and what stays: the decision against an oracle that follows the words of the
 * rules, over random histories; and the removal, on directories whose manifests are written here. */
#include "retain.h"
#include "sample.h"
#include <errno.h>
#include <keel/ckpt_tier.h>
#include <keel/disk.h>

/* ---- random histories ---------------------------------------------------------------------------------- */

enum { HISTORIES = 20000, ATTEMPTS_MAX = 40, BASES_MAX = 3 };

struct history {
    struct keel_generation_entry at[ATTEMPTS_MAX];
    struct keel_generation bases[ATTEMPTS_MAX][BASES_MAX];
    uint32_t count;
    uint64_t now_ns;
};

static int newest_first(const void *a, const void *b)
{
    const struct keel_snapshot_info *x = &((const struct keel_generation_entry *)a)->info;
    const struct keel_snapshot_info *y = &((const struct keel_generation_entry *)b)->info;
    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return x->attempt > y->attempt ? -1 : x->attempt < y->attempt;
}

static enum keel_generation_state draw_state(uint64_t *state)
{
    uint64_t dice = draw(state, 10);
    if (dice < 8)
        return KEEL_GENERATION_COMMITTED;
    return dice == 8 ? KEEL_GENERATION_DAMAGED : KEEL_GENERATION_UNCOMMITTED;
}

/* A run saves, sometimes as a delta of one, or two, before; it is begun anew, goes back, loses its clock. */
static void live(struct history *history, uint64_t *state)
{
    uint64_t step = 0, wall = 1000 + draw(state, 1000), pace = 1 + draw(state, 4);
    *history = (struct history){.count = (uint32_t)draw(state, ATTEMPTS_MAX + 1)};
    for (uint32_t i = 0; i < history->count; i++) {
        uint64_t event = draw(state, 20);
        if (event == 0)
            step = 0;
        else if (event == 1)
            step -= draw(state, step + 1);
        wall = event == 2 ? wall - draw(state, wall) : wall + draw(state, 60);
        step += pace * draw(state, 3);
        struct keel_generation_entry *attempt = &history->at[i];
        attempt->info =
            (struct keel_snapshot_info){.step = step, .attempt = i * 919 % 1000, .created_wall_ns = wall};
        attempt->state = draw_state(state);
        attempt->bases = history->bases[i];
        attempt->bases_unknown = attempt->state != KEEL_GENERATION_COMMITTED && draw(state, 30) == 0;
        for (uint32_t b = draw(state, 2) == 0 && i > 0 ? (uint32_t)draw(state, BASES_MAX + 1) : 0; b > 0;
             b--) {
            const struct keel_generation_entry *base = &history->at[i - 1 - draw(state, i < 4 ? i : 4)];
            attempt->bases[attempt->base_count++] =
                (struct keel_generation){base->info.step, base->info.attempt};
        }
    }
    history->now_ns = wall + draw(state, 100);
    qsort(history->at, history->count, sizeof history->at[0], newest_first);
}

static struct keel_retention draw_rules(uint64_t *state)
{
    struct keel_retention rules = {.keep_last = 2 + (uint32_t)draw(state, 5)};
    if (draw(state, 2) == 0)
        rules.keep_every_steps = 1 + draw(state, 12);
    if (draw(state, 2) == 0)
        rules.keep_within_ns = 1 + draw(state, 200);
    if (draw(state, 2) == 0)
        rules.keep_spaced_ns = 1 + draw(state, 300);
    return rules;
}

/* ---- the oracle ---------------------------------------------------------------------------------------- */

static bool is_base(const struct keel_generation_entry *base, const struct keel_generation_entry *of)
{
    for (uint32_t i = 0; i < of->base_count; i++)
        if (of->bases[i].step == base->info.step && of->bases[i].attempt == base->info.attempt)
            return true;
    return false;
}

static bool held_by_a_rule(const struct history *h, uint32_t i, const struct keel_retention *rules)
{
    const struct keel_snapshot_info *mine = &h->at[i].info;
    uint32_t further = 0, later = 0;
    bool first = true;
    for (uint32_t j = 0; j < h->count; j++) {
        const struct keel_snapshot_info *other = &h->at[j].info;
        if (j == i || h->at[j].state != KEEL_GENERATION_COMMITTED)
            continue;
        bool ahead =
            other->step > mine->step || (other->step == mine->step && other->attempt > mine->attempt);
        further += ahead;
        later += other->created_wall_ns > mine->created_wall_ns;
        if (rules->keep_spaced_ns > 0 &&
            other->created_wall_ns / rules->keep_spaced_ns == mine->created_wall_ns / rules->keep_spaced_ns &&
            (other->created_wall_ns < mine->created_wall_ns ||
             (other->created_wall_ns == mine->created_wall_ns && ahead)))
            first = false;
    }
    bool young =
        mine->created_wall_ns + rules->keep_within_ns > h->now_ns || mine->created_wall_ns >= h->now_ns;
    return further < rules->keep_last || later < rules->keep_last || young ||
           (rules->keep_every_steps > 0 && mine->step % rules->keep_every_steps == 0) ||
           (rules->keep_spaced_ns > 0 && first);
}

static bool may_be_on_its_way(const struct history *h, uint32_t i)
{
    uint64_t last_ns = 0, last_step = 0;
    for (uint32_t j = 0; j < h->count; j++) {
        const struct keel_snapshot_info *info = &h->at[j].info;
        if (h->at[j].state != KEEL_GENERATION_COMMITTED || info->created_wall_ns < last_ns)
            continue;
        last_step = info->created_wall_ns > last_ns || info->step < last_step ? info->step : last_step;
        last_ns = info->created_wall_ns;
    }
    return h->at[i].info.step >= last_step;
}

static void judge(const struct history *h, const struct keel_retention *rules, bool stays[ATTEMPTS_MAX])
{
    bool unknown = false, changed = true;
    for (uint32_t i = 0; i < h->count; i++) {
        stays[i] = h->at[i].state == KEEL_GENERATION_DAMAGED ||
                   (h->at[i].state == KEEL_GENERATION_UNCOMMITTED && may_be_on_its_way(h, i));
        unknown = unknown || (stays[i] && h->at[i].bases_unknown);
    }
    for (uint32_t i = 0; i < h->count; i++)
        if (h->at[i].state == KEEL_GENERATION_COMMITTED)
            stays[i] = unknown || held_by_a_rule(h, i, rules);
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < h->count; i++)
            for (uint32_t j = 0; j < h->count && stays[i]; j++)
                if (!stays[j] && is_base(&h->at[j], &h->at[i]))
                    stays[j] = changed = true;
    }
}

static struct keel_retain_plan decide(const struct history *h, const struct keel_retention *rules)
{
    struct keel_generation_index attempts = {.at = (struct keel_generation_entry *)h->at, .count = h->count};
    struct keel_retain_plan plan;
    ck_ok(keel_retain_decide(&attempts, rules, h->now_ns, &plan));
    return plan;
}

START_TEST(decision_equals_the_words_of_the_rules_for_random_histories)
{
    uint64_t state = 11, going = 0, chained = 0;
    for (uint32_t round = 0; round < HISTORIES; round++) {
        struct history history;
        bool stays[ATTEMPTS_MAX], listed[ATTEMPTS_MAX] = {false};
        live(&history, &state);
        struct keel_retention rules = draw_rules(&state);
        struct keel_retain_plan plan = decide(&history, &rules);
        judge(&history, &rules, stays);
        for (uint32_t i = 0; i < plan.count; i++) {
            ck_assert_uint_lt(plan.goes[i], history.count);
            ck_assert(!listed[plan.goes[i]]);
            listed[plan.goes[i]] = true;
        }
        for (uint32_t i = 0; i < history.count; i++) {
            ck_assert_msg(stays[i] == !listed[i] && stays[i] == plan.stays[i],
                          "history %u: step %llu should %s", round,
                          (unsigned long long)history.at[i].info.step, stays[i] ? "stay" : "go");
            chained +=
                stays[i] && history.at[i].state == KEEL_GENERATION_COMMITTED && history.at[i].base_count > 0;
        }
        going += plan.count;
        keel_retain_plan_fini(&plan);
    }
    ck_assert_uint_gt(going, HISTORIES); /* the histories are not idle */
    ck_assert_uint_gt(chained, HISTORIES);
}
END_TEST

/* Wherever the removal ends, who is still there has its bases, as far as they were there before. */
START_TEST(every_prefix_of_the_removal_leaves_the_bases_of_what_is_there)
{
    uint64_t state = 12, checked = 0;
    for (uint32_t round = 0; round < HISTORIES / 10; round++) {
        struct history history;
        bool there[ATTEMPTS_MAX];
        memset(there, true, sizeof there);
        live(&history, &state);
        struct keel_retention rules = draw_rules(&state);
        struct keel_retain_plan plan = decide(&history, &rules);
        for (uint32_t removed = 0; removed < plan.count; removed++) {
            const struct keel_generation_entry *gone = &history.at[plan.goes[removed]];
            there[plan.goes[removed]] = false;
            for (uint32_t i = 0; i < history.count; i++, checked++)
                ck_assert(!there[i] || !is_base(gone, &history.at[i]));
        }
        keel_retain_plan_fini(&plan);
    }
    ck_assert_uint_gt(checked, 0);
}
END_TEST

START_TEST(deciding_again_about_what_stayed_removes_no_more)
{
    uint64_t state = 13;
    for (uint32_t round = 0; round < HISTORIES / 10; round++) {
        struct history history, rest;
        live(&history, &state);
        struct keel_retention rules = draw_rules(&state);
        struct keel_retain_plan plan = decide(&history, &rules);
        rest = history;
        rest.count = 0;
        for (uint32_t i = 0; i < history.count; i++)
            if (plan.stays[i])
                rest.at[rest.count++] = history.at[i];
        struct keel_retain_plan again = decide(&rest, &rules);
        ck_assert_uint_eq(again.count, 0);
        keel_retain_plan_fini(&plan);
        keel_retain_plan_fini(&again);
    }
}
END_TEST

/* ---- on a disk ----------------------------------------------------------------------------------------- */

static void put_file(const char *directory, const char *name, size_t bytes)
{
    char path[KEEL_PATH_BYTES], *text;
    ck_ok(keel_path_join(path, directory, name));
    ck_ok(keel_alloc(bytes, 1, &text));
    ck_ok(keel_file_append(path, text, bytes, false));
    keel_free(text);
}

static bool is_there(const struct keel_store *store, const char *name)
{
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, store->path, name));
    return keel_path_exists(path);
}

/* A directory with a shard of 1000 bytes, and a manifest unless created_ns is 0. */
static void put(struct keel_store *store, uint64_t step, uint64_t created_ns, uint64_t base_step)
{
    struct keel_step_place place;
    struct keel_shard_summary shard = {0};
    struct keel_generation base = {base_step, 1};
    char path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    ck_ok(keel_step_open(store, step, 1, true, &place));
    put_file(place.path, "rank-0.keel", 1000);
    struct keel_manifest manifest = {
        .info = {.step = step, .attempt = 1, .created_wall_ns = created_ns, .shard_count = 1},
        .shards = &shard,
        .bases = &base,
        .base_count = base_step > 0,
        .metadata = "{}"};
    memcpy(manifest.run, store->run, sizeof manifest.run);
    ck_ok(keel_path_join(path, place.path, KEEL_MANIFEST_NAME));
    if (created_ns > 0) {
        ck_ok(keel_manifest_encode(&manifest, &text, &bytes));
        ck_ok(keel_file_replace(path, text, bytes, 0666));
        keel_free(text);
    }
    keel_step_close(&place);
}

struct told {
    uint32_t snapshots, leftovers, temporaries;
    uint64_t bytes, steps[16];
};

static void take_note(void *context, const struct keel_removed *what)
{
    struct told *told = context;
    ck_assert_uint_lt(told->snapshots + told->leftovers, 16);
    if (what->kind != KEEL_REMOVED_TEMPORARY)
        told->steps[told->snapshots + told->leftovers] = what->step;
    told->snapshots += what->kind == KEEL_REMOVED_SNAPSHOT;
    told->leftovers += what->kind == KEEL_REMOVED_LEFTOVER;
    told->temporaries += what->kind == KEEL_REMOVED_TEMPORARY;
    told->bytes += what->bytes;
}

static struct keel_store *begin(char root[KEEL_PATH_BYTES])
{
    make_directory(root);
    return open_store(root, true);
}

static void end(struct keel_store *store, const char *root)
{
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}

START_TEST(dependents_go_before_their_base_and_the_base_of_one_that_stays_never)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct told told = {0};
    struct keel_retention rules = {.keep_last = 2, .removed = take_note, .context = &told};
    uint32_t removed = 0;
    put(store, 10, 1, 0);
    put(store, 20, 2, 10);
    put(store, 30, 3, 20);
    put(store, 40, 4, 0);
    put(store, 50, 5, 40);
    put(store, 60, 6, 50);
    put(store, 70, 7, 60);
    ck_ok(keel_store_retain(store, &rules, &removed));
    ck_assert_uint_eq(removed, 3);
    ck_assert_uint_eq(told.snapshots, 3);
    ck_assert_uint_eq(told.steps[0], 30);
    ck_assert_uint_eq(told.steps[1], 20);
    ck_assert_uint_eq(told.steps[2], 10);
    ck_assert_uint_gt(told.bytes, 3000);
    ck_assert(is_there(store, "step-40.1") && is_there(store, "step-70.1") && !is_there(store, "step-30.1"));
    end(store, root);
}
END_TEST

START_TEST(dry_run_tells_the_same_and_removes_nothing)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct told would = {0}, did = {0};
    uint32_t removed = 0;
    for (uint64_t step = 1; step <= 6; step++)
        put(store, step, step == 2 ? 0 : step, step == 4 ? 3 : 0);
    put_file(store->path, "step-5.1/manifest.json.77.0.tmp", 10);
    struct keel_store_config config = {.root = root, .run = "sample", .read_only = true};
    struct keel_store *looking;
    ck_ok(keel_store_open(&config, &looking));
    struct keel_retention rules = {.keep_last = 2, .dry_run = true, .removed = take_note, .context = &would};
    ck_ok(keel_store_retain(looking, &rules, &removed));
    keel_store_close(looking);
    ck_assert_uint_eq(removed, 4);
    ck_assert(is_there(store, "step-1.1/manifest.json") && is_there(store, "step-2.1/rank-0.keel") &&
              is_there(store, "step-5.1/manifest.json.77.0.tmp"));
    rules.dry_run = false;
    rules.context = &did;
    ck_ok(keel_store_retain(store, &rules, &removed));
    ck_assert_uint_eq(removed, 4);
    ck_assert_mem_eq(&would, &did, sizeof did);
    ck_assert_uint_eq(did.leftovers, 1);
    ck_assert_uint_eq(did.temporaries, 1);
    ck_assert(!is_there(store, "step-1.1") && !is_there(store, "step-2.1") && is_there(store, "step-5.1") &&
              !is_there(store, "step-5.1/manifest.json.77.0.tmp"));
    end(store, root);
}
END_TEST

/* Copies and parity are made of what is committed, while the run, and its retention, go on. */
START_TEST(what_is_being_written_into_the_newest_snapshot_is_let_be)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct keel_tier *tier;
    struct keel_tier_sink *sink;
    const struct keel_object object = {
        .step = 4, .attempt = 1, .kind = KEEL_OBJECT_PARITY, .set = 0, .member = 1};
    uint8_t digest[KEEL_OBJECT_DIGEST_BYTES];
    for (uint64_t step = 1; step <= 4; step++)
        put(store, step, step, 0);
    ck_ok(keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, NULL, &tier));
    ck_ok(keel_tier_create(tier, &object, 5, &sink));
    ck_ok(keel_tier_write(sink, "parity", 5));
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 2}, NULL));
    keel_format_digest("parity", 5, digest);
    ck_ok(keel_tier_commit(sink, digest));
    ck_assert(is_there(store, "step-4.1/parity-0.1.keel"));
    keel_tier_end(tier);
    end(store, root);
}
END_TEST

START_TEST(temporary_files_of_killed_writers_go_and_foreign_files_stay)
{
    static const char *const foreign[] = {"notes.txt",    "rank-x.keel",       "rank-1.keel.tmp",
                                          "rank-01.keel", "manifest.json.bak", "rank-1.keel.1.2.tmp.old",
                                          "parity-1.keel"};
    char root[KEEL_PATH_BYTES], name[128];
    struct keel_store *store = begin(root);
    struct told told = {0};
    struct keel_retention rules = {.keep_last = 2, .removed = take_note, .context = &told};
    uint32_t removed = 0;
    for (uint64_t step = 1; step <= 4; step++)
        put(store, step, step, 0);
    put_file(store->path, "step-3.1/rank-0.keel.123.4.tmp", 50);
    put_file(store->path, "step-3.1/parity-0.2.keel.9.0.tmp", 50);
    put_file(store->path, "step-4.1/parity-0.2.keel.9.0.tmp", 50); /* may be on its way */
    put_file(store->path, "notes.txt", 5);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        for (uint64_t step = 1; step <= 4; step += 3) {
            snprintf(name, sizeof name, "step-%d.1/%s", (int)step, foreign[i]);
            put_file(store->path, name, 5);
        }
    for (int round = 0; round < 2; round++) { /* also when what is left was a leftover */
        ck_ok(keel_store_retain(store, &rules, &removed));
        ck_assert_uint_eq(removed, round == 0 ? 1 : 0);
        ck_assert_uint_eq(told.snapshots, 2);
        ck_assert_uint_eq(told.temporaries, 2);
        ck_assert_uint_eq(told.leftovers, 0);
    }
    ck_assert(!is_there(store, "step-1.1/manifest.json") && !is_there(store, "step-1.1/rank-0.keel"));
    ck_assert(!is_there(store, "step-2.1") && is_there(store, "notes.txt"));
    ck_assert(is_there(store, "step-4.1/rank-0.keel") && is_there(store, "step-4.1/manifest.json"));
    ck_assert(is_there(store, "step-4.1/parity-0.2.keel.9.0.tmp"));
    put(store, 5, 5, 0);
    ck_ok(keel_store_retain(store, &rules, &removed));
    ck_assert(is_there(store, "step-4.1") && !is_there(store, "step-4.1/parity-0.2.keel.9.0.tmp"));
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        for (uint64_t step = 1; step <= 4; step += 3) {
            snprintf(name, sizeof name, "step-%d.1/%s", (int)step, foreign[i]);
            ck_assert_msg(is_there(store, name), "%s", name);
        }
    end(store, root);
}
END_TEST

START_TEST(bases_of_a_damaged_snapshot_stay_by_its_headers)
{
    char root[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct keel_retention rules = {.keep_last = 2};
    uint8_t block[KEEL_FORMAT_BLOCK_BYTES];
    struct keel_format_header header = {.step = 2,
                                        .attempt = 1,
                                        .rank_count = 1,
                                        .flags = KEEL_HEADER_BASE,
                                        .base_step = 1,
                                        .base_attempt = 1};
    for (uint64_t step = 1; step <= 6; step++)
        put(store, step, step, 0);
    memcpy(header.run, store->run, sizeof header.run);
    keel_format_header_seal(&header, block);
    ck_ok(keel_path_join(path, store->path, "step-2.1/rank-0.keel"));
    ck_ok(keel_file_replace(path, block, sizeof block, 0666));
    ck_ok(keel_path_join(path, store->path, "step-2.1/manifest.json"));
    ck_ok(keel_file_replace(path, "{}", 2, 0666));
    ck_ok(keel_store_retain(store, &rules, NULL));
    ck_assert(is_there(store, "step-1.1/manifest.json") && is_there(store, "step-2.1/rank-0.keel"));
    ck_assert(!is_there(store, "step-3.1") && !is_there(store, "step-4.1") && is_there(store, "step-5.1"));
    end(store, root);
}
END_TEST

START_TEST(a_link_in_place_of_an_attempt_or_a_file_is_never_followed)
{
    char root[KEEL_PATH_BYTES], outside[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct keel_retention rules = {.keep_last = 2};
    make_directory(outside);
    put_file(outside, "rank-0.keel", 10);
    put_file(outside, "manifest.json", 10);
    for (uint64_t step = 2; step <= 5; step++)
        put(store, step, step, 0);
    ck_ok(keel_path_join(path, store->path, "step-1.1"));
    ck_assert_int_eq(symlink(outside, path), 0);
    ck_ok(keel_path_join(path, store->path, "step-2.1/rank-1.keel"));
    ck_assert_int_eq(symlink(outside, path), 0);
    ck_ok(keel_store_retain(store, &rules, NULL));
    ck_assert(is_there(store, "step-1.1") && is_there(store, "step-2.1/rank-1.keel"));
    ck_assert(!is_there(store, "step-2.1/rank-0.keel") && !is_there(store, "step-3.1"));
    ck_ok(keel_path_join(path, outside, "rank-0.keel"));
    ck_assert(keel_path_exists(path));
    ck_ok(keel_remove_tree(outside));
    end(store, root);
}
END_TEST

static char watched[KEEL_PATH_BYTES];

/* The first look at the manifest of the watched directory finds none: it is committed right after. */
static bool hidden;
static int open_too_early(int at, const char *path, int flags, unsigned mode)
{
    struct stat here, wanted;
    if (!hidden && strcmp(path, "manifest.json") == 0 && fstat(at, &here) == 0 &&
        stat(watched, &wanted) == 0 && here.st_ino == wanted.st_ino) {
        hidden = true;
        errno = ENOENT;
        return -1;
    }
    return keel_disk_posix.open(at, path, flags, mode);
}

START_TEST(what_is_committed_while_others_are_looked_at_is_no_leftover)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 7;
    uint32_t removed = 9, count;
    struct keel_snapshot_info infos[8];
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 400; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = 1, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    }
    ck_ok(keel_path_join(watched, root, "sample/step-200.3"));
    struct keel_disk_ops ops = keel_disk_posix;
    ops.open = open_too_early;
    hidden = false;
    keel_disk_use(&ops);
    enum keel_status status = keel_store_retain(store, &(struct keel_retention){.keep_last = 4}, &removed);
    keel_disk_use(NULL);
    ck_assert_msg(status == KEEL_OK, "%s", keel_detail());
    ck_assert(hidden);
    ck_assert_uint_eq(removed, 0);
    ck_ok(keel_store_list(store, infos, 8, &count, NULL));
    ck_assert_uint_eq(count, 4);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static uint32_t opens_left; /* before one fails, */
static int open_error;      /* so */

static int open_that_fails(int at, const char *path, int flags, unsigned mode)
{
    if (opens_left-- != 0)
        return keel_disk_posix.open(at, path, flags, mode);
    errno = open_error;
    return -1;
}

/* From here on open number `number` fails; afterwards whether it did. */
static void break_open(uint32_t number, int error)
{
    static struct keel_disk_ops ops;
    ops = keel_disk_posix;
    ops.open = open_that_fails;
    opens_left = number;
    open_error = error;
    keel_disk_use(&ops);
}

static bool mend_open(void)
{
    keel_disk_use(NULL);
    return opens_left > UINT32_MAX / 2;
}

/* Two committed snapshots, and a later one whose shards are sound and whose manifest is lost. */
static struct keel_store *begin_with_a_lost_manifest(char root[KEEL_PATH_BYTES])
{
    struct keel_region tensors[4];
    uint64_t state = 7;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 300; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = 1, .rank_count = 2, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 2, &state));
    }
    char path[KEEL_PATH_BYTES];
    ck_ok(keel_path_join(path, root, "sample/step-300.3/manifest.json"));
    ck_assert_int_eq(unlink(path), 0);
    return store;
}

START_TEST(a_snapshot_that_cannot_be_looked_at_for_want_of_descriptors_is_not_passed_over)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin_with_a_lost_manifest(root);
    uint32_t struck = 0;
    for (bool more = true; more; struck += more) {
        struct keel_snapshot_info infos[4];
        uint32_t count = 0, damaged = 0;
        break_open(struck, EMFILE);
        enum keel_status status = keel_store_list(store, infos, 4, &count, &damaged);
        more = mend_open();
        ck_assert_msg(status == (more ? KEEL_EXHAUSTED : KEEL_OK), "open %u: %s, %u listed, %u damaged",
                      struck, keel_status_name(status), count, damaged);
        ck_assert_uint_eq(count, more ? 0 : 2);
    }
    ck_assert_uint_ge(struck, 6);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

START_TEST(an_attempt_of_which_nobody_can_tell_whether_it_is_whole_stays)
{
    static const int errors[] = {EMFILE, EACCES, EIO};
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin_with_a_lost_manifest(root);
    const struct keel_retention rules = {.keep_last = 2, .idle = true};
    for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
        uint32_t struck = 0;
        for (bool more = true; more; struck += more) {
            break_open(struck, errors[e]);
            (void)keel_store_retain(store, &rules, NULL);
            more = mend_open();
            ck_assert_msg(is_there(store, "step-300.3/rank-0.keel") &&
                              is_there(store, "step-300.3/rank-1.keel"),
                          "open %u: %s", struck, strerror(errors[e]));
        }
        ck_assert_uint_ge(struck, 8);
    }
    ck_assert(is_there(store, "step-100.3") && is_there(store, "step-200.3"));
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
}
END_TEST

static uint64_t room; /* of the disk, in bytes */

static int room_of(int fd, uint64_t *out_bytes)
{
    (void)fd;
    *out_bytes = room;
    return 0;
}

/* Steps 10 to 40 of two kilobytes each lie there. How many go when `free` bytes are, for a save of `bytes`?
 */
static uint32_t made_room(struct keel_store *store, uint32_t keep_last, uint64_t free, uint64_t bytes)
{
    struct keel_disk_ops ops = keel_disk_posix;
    uint32_t removed = 99;
    ops.room = room_of;
    room = free;
    keel_disk_use(&ops);
    enum keel_status status =
        keel_store_make_room(store, &(struct keel_retention){.keep_last = keep_last}, bytes, &removed);
    keel_disk_use(NULL);
    ck_assert_msg(status == KEEL_OK, "%s", keel_detail());
    return removed;
}

START_TEST(room_is_made_before_a_save_by_what_would_go_behind_it_and_no_more)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    ck_assert_uint_eq(made_room(store, 2, 0, 5000), 0); /* nothing is there */
    for (uint64_t step = 10; step <= 40; step += 10)
        put(store, step, step, 0);
    put(store, 50, 0, 0);                                  /* somebody may still write it */
    ck_assert_uint_eq(made_room(store, 2, 5000, 5000), 0); /* enough */
    ck_assert_uint_eq(made_room(store, 5, 0, 5000), 0);    /* the rules allow none */
    ck_assert_uint_eq(made_room(store, 2, 4999, 5000), 1); /* the oldest is enough */
    ck_assert(!is_there(store, "step-10.1") && is_there(store, "step-20.1"));
    ck_assert_uint_eq(made_room(store, 3, 0, UINT64_MAX), 1);
    ck_assert(!is_there(store, "step-20.1") && is_there(store, "step-30.1"));
    ck_assert_uint_eq(made_room(store, 2, 0, UINT64_MAX), 1);
    ck_assert_uint_eq(made_room(store, 2, 0, UINT64_MAX), 0); /* never the newest */
    ck_assert(!is_there(store, "step-30.1") && is_there(store, "step-40.1") && is_there(store, "step-50.1"));
    end(store, root);
}
END_TEST

START_TEST(room_is_made_by_the_size_of_the_snapshot_before_and_never_of_what_it_needs)
{
    char root[KEEL_PATH_BYTES];
    struct keel_region tensors[4];
    uint64_t state = 11;
    make_directory(root);
    struct keel_store *store = open_store(root, true);
    for (uint64_t step = 100; step <= 300; step += 100) {
        struct sample_save how = {
            .step = step, .attempt = 3, .salt = 1, .rank_count = 1, .codec = KEEL_CODEC_PLANES};
        ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 1, &state));
    }
    char path[KEEL_PATH_BYTES];
    struct stat shard;
    ck_ok(keel_path_join(path, root, "sample/step-300.3/rank-0.keel"));
    ck_assert_int_eq(stat(path, &shard), 0);
    const uint64_t bytes = (uint64_t)shard.st_size; /* each chunk fills its pages, and there is an index */
    ck_assert_uint_eq(made_room(store, 2, bytes + bytes / 8, 0), 0);
    ck_assert_uint_eq(made_room(store, 2, bytes, 0), 1);
    keel_store_close(store);
    ck_ok(keel_remove_tree(root));
    store = begin(root);
    put(store, 10, 1, 0);
    put(store, 20, 2, 0);
    put(store, 30, 3, 20);
    ck_assert_uint_eq(made_room(store, 2, 0, UINT64_MAX), 1);
    ck_assert(!is_there(store, "step-10.1") && is_there(store, "step-20.1") && is_there(store, "step-30.1"));
    end(store, root);
}
END_TEST

START_TEST(fewer_than_two_is_refused_and_so_is_a_store_opened_to_read)
{
    char root[KEEL_PATH_BYTES];
    struct keel_store *store = begin(root);
    struct keel_retention rules = {.keep_last = 1};
    ck_assert_int_eq(keel_store_retain(store, &rules, NULL), KEEL_INVALID);
    struct keel_store_config config = {.root = root, .run = "sample", .read_only = true};
    struct keel_store *looking;
    ck_ok(keel_store_open(&config, &looking));
    rules.keep_last = 2;
    ck_assert_int_eq(keel_store_retain(looking, &rules, NULL), KEEL_INVALID);
    keel_store_close(looking);
    end(store, root);
}
END_TEST

/* ---- what retention reads ------------------------------------------------------------------------------ */

static uint64_t opened, read_bytes;

static int counting_open(int at, const char *path, int flags, unsigned mode)
{
    opened++;
    return keel_disk_posix.open(at, path, flags, mode);
}

static ssize_t counting_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    const ssize_t got = keel_disk_posix.pread(fd, data, bytes, offset);
    read_bytes += got > 0 ? (uint64_t)got : 0;
    return got;
}

/* All files are an hour old. */
static int older_stat(int at, const char *path, struct stat *out, int flags)
{
    const int failed = keel_disk_posix.stat(at, path, out, flags);
    out->st_ctim.tv_sec -= failed == 0 ? 3600 : 0;
    return failed;
}

static void commit_and_retain(struct keel_store *store, uint64_t step)
{
    const struct sample_save how = {.step = step, .attempt = 1, .salt = step, .rank_count = 2};
    struct keel_region tensors[4];
    uint64_t state = step;
    uint32_t removed;
    ck_ok(save_snapshot(store, &how, tensors, small_tensors(tensors), 2, &state));
    opened = read_bytes = 0;
    ck_ok(keel_store_retain(store, &(struct keel_retention){.keep_last = 1000}, &removed));
    ck_assert_uint_eq(removed, 0);
}

static enum keel_generation_state state_of(struct keel_store *store, uint64_t step)
{
    struct keel_generation_index all;
    enum keel_generation_state found = KEEL_GENERATION_UNCOMMITTED;
    ck_ok(keel_generation_index_scan(store, true, &all));
    for (size_t i = 0; i < all.count; i++)
        found = all.at[i].info.step == step ? all.at[i].state : found;
    keel_generation_index_fini(&all);
    return found;
}

START_TEST(what_a_commit_reads_does_not_grow_with_the_snapshots_that_stay)
{
    enum { FEW = 20, MANY = 60 };
    struct keel_disk_ops ops = keel_disk_posix;
    char top[KEEL_PATH_BYTES], path[KEEL_PATH_BYTES], *text;
    size_t bytes;
    ops.open = counting_open;
    ops.pread = counting_pread;
    ops.stat = older_stat;
    make_directory(top);
    keel_disk_use(&ops);
    struct keel_store *store = open_store(top, true);
    uint64_t few_opened = 0, few_bytes = 0;
    for (uint64_t step = 1; step <= MANY; step++) {
        commit_and_retain(store, 100 + step);
        few_opened = step == FEW ? opened : few_opened;
        few_bytes = step == FEW ? read_bytes : few_bytes;
    }
    ck_assert_uint_eq(opened, few_opened);
    ck_assert_uint_lt(read_bytes, few_bytes + 64); /* numbers have more digits; a manifest has hundreds */
    /* What was changed is read again, and what was left behind goes, in the oldest too. */
    ck_ok(keel_path_join(path, top, "sample/step-101.1/rank-0.keel.1.2.tmp"));
    ck_ok(keel_file_append(path, "half", 4, false));
    ck_ok(keel_path_join(path, top, "sample/step-102.1/manifest.json"));
    ck_ok(keel_file_read(path, 1 << 20, &text, &bytes));
    text[bytes / 2] ^= 1;
    const int fd = open(path, O_WRONLY);
    ck_assert(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
    keel_free(text);
    ck_assert_int_eq(state_of(store, 102), KEEL_GENERATION_DAMAGED);
    ck_assert_int_eq(state_of(store, 101), KEEL_GENERATION_COMMITTED);
    commit_and_retain(store, 100 + MANY + 1);
    ck_ok(keel_path_join(path, top, "sample/step-101.1/rank-0.keel.1.2.tmp"));
    ck_assert(!keel_path_exists(path));
    keel_store_close(store);
    keel_disk_use(&keel_disk_posix);
    ck_ok(keel_remove_tree(top));
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, decision_equals_the_words_of_the_rules_for_random_histories);
    tcase_add_test(tc, every_prefix_of_the_removal_leaves_the_bases_of_what_is_there);
    tcase_add_test(tc, deciding_again_about_what_stayed_removes_no_more);
    tcase_add_test(tc, dependents_go_before_their_base_and_the_base_of_one_that_stays_never);
    tcase_add_test(tc, dry_run_tells_the_same_and_removes_nothing);
    tcase_add_test(tc, what_is_being_written_into_the_newest_snapshot_is_let_be);
    tcase_add_test(tc, temporary_files_of_killed_writers_go_and_foreign_files_stay);
    tcase_add_test(tc, bases_of_a_damaged_snapshot_stay_by_its_headers);
    tcase_add_test(tc, a_link_in_place_of_an_attempt_or_a_file_is_never_followed);
    tcase_add_test(tc, what_is_committed_while_others_are_looked_at_is_no_leftover);
    tcase_add_test(tc, a_snapshot_that_cannot_be_looked_at_for_want_of_descriptors_is_not_passed_over);
    tcase_add_test(tc, an_attempt_of_which_nobody_can_tell_whether_it_is_whole_stays);
    tcase_add_test(tc, room_is_made_before_a_save_by_what_would_go_behind_it_and_no_more);
    tcase_add_test(tc, room_is_made_by_the_size_of_the_snapshot_before_and_never_of_what_it_needs);
    tcase_add_test(tc, what_a_commit_reads_does_not_grow_with_the_snapshots_that_stay);
    tcase_add_test(tc, fewer_than_two_is_refused_and_so_is_a_store_opened_to_read);
}

KEEL_TEST_MAIN("retain", cases, 60)
