/* disk_test.c - power goes, or the process is killed, after every change that a store makes to its disk: what
 * was committed is there and right, nothing damaged looks committed, and the run goes on.
 *
 * A story is a run of saves, commits and removals, recorded change by change on the disk of disk_sim.h. After
 * each change many crashes are tried: everything uncertain lost, everything kept, each combination or a
 * random choice of it with torn writes; and a kill, which loses nothing but leaves all of it uncertain. In
 * each state the store's own code is run as after a restart: it finds, verifies and compares, saves and
 * commits a new snapshot, removes old ones. Some of these restarts are stories themselves, with crashes in
 * them. Mutants, tables of disk calls that forget one sync each, must be caught by the same crashes. */
#include "disk_run.h"
#include "generation_index.h"
#include <keel/ckpt_tier.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { EVENTS_MAX = 128, SEEN_SLOTS = 8192, WORKERS = 4 };
/* What is not `make test-long` looks at a part of the states, and goes deeper in as few. */
#if defined(__SANITIZE_THREAD__)
enum { THINNER = 16 };
#elif defined(__SANITIZE_ADDRESS__)
enum { THINNER = 8 };
#else
enum { THINNER = 4 };
#endif

/* ---- stories ------------------------------------------------------------------------------------------- */

/* From change number `at` on, an attempt must be there, or may go. */
struct event {
    uint32_t at;
    bool committed;
    struct attempt_id id;
};

struct story {
    const char *name;
    struct disk *start;       /* owned */
    struct disk_trace *trace; /* owned */
    struct event events[EVENTS_MAX];
    uint32_t event_count;
};

static void note(struct story *story, uint32_t at, bool committed, struct attempt_id id)
{
    ck_assert_uint_lt(story->event_count, EVENTS_MAX);
    story->events[story->event_count++] = (struct event){at, committed, id};
}

/* What must be there when the first `prefix` changes were made; a removal excuses only what follows it. */
static uint32_t promised(const struct story *story, uint32_t prefix, struct attempt_id out[LISTED_MAX],
                         bool *out_two)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < story->event_count; e++) {
        const struct event *event = &story->events[e];
        if (event->committed && event->at <= prefix) {
            ck_assert_uint_lt(count, LISTED_MAX);
            out[count++] = event->id;
            *out_two = *out_two || count >= 2;
        }
        for (uint32_t i = 0; !event->committed && event->at < prefix && i < count; i++)
            if (same_attempt(out[i], event->id))
                out[i--] = out[--count];
    }
    return count;
}

/* ---- what a restart does ------------------------------------------------------------------------------- */

static bool check_promised(const struct story *story, uint32_t prefix, const struct attempt_id *found,
                           uint32_t found_count)
{
    struct attempt_id wanted[LISTED_MAX];
    bool two = false;
    uint32_t count = promised(story, prefix, wanted, &two);
    for (uint32_t i = 0; i < count; i++)
        if (!among(found, found_count, wanted[i]))
            return complain("was committed and is lost", wanted[i]);
    if (two && found_count < 2 && run_damaged.step == 0)
        return complain("fewer than two are left", (struct attempt_id){0});
    return true;
}

/* ---- turns --------------------------------------------------------------------------------------------- */

static uint32_t changes_so_far(const struct story *story)
{
    return story != NULL ? disk_trace_count(story->trace) : 0;
}

/* Commit, and note when it was promised. */
static bool commit_turn(struct story *story, struct keel_store *store, struct attempt_id id,
                        const struct keel_shard_summary shards[RANKS], uint32_t ranks)
{
    if (!worked(commit_all(store, id.step, id.attempt, shards, ranks), "commit failed", id))
        return false;
    if (story != NULL)
        note(story, changes_so_far(story), true, id);
    return true;
}

static bool list_only(struct keel_store *store, struct attempt_id out[LISTED_MAX], uint32_t *out_count)
{
    struct keel_snapshot_info infos[LISTED_MAX];
    if (!worked(keel_store_list(store, infos, LISTED_MAX, out_count, NULL), "cannot be listed",
                (struct attempt_id){0}))
        return false;
    for (uint32_t i = 0; i < *out_count; i++)
        out[i] = (struct attempt_id){infos[i].step, infos[i].attempt};
    return true;
}

/* Remove old ones, and note which might go from when on. */
static bool retain_turn(struct story *story, struct keel_store *store)
{
    struct attempt_id before[LISTED_MAX], after[LISTED_MAX], none = {0};
    uint32_t before_count = 0, after_count = 0, at = changes_so_far(story);
    if (!list_only(store, before, &before_count))
        return false;
    struct keel_retention retention = {.keep_last = KEEP};
    if (!worked(keel_store_retain(store, &retention, NULL), "retention failed", none) ||
        !list_only(store, after, &after_count))
        return false;
    if (after_count < (before_count < KEEP ? before_count : KEEP) ||
        (before_count > 0 && !same_attempt(before[0], after[0])))
        return complain("retention removed too much", before[0]);
    for (uint32_t i = 0; story != NULL && i < before_count; i++)
        if (!among(after, after_count, before[i]))
            note(story, at, false, before[i]);
    return true;
}

static bool turn(struct story *story, struct keel_store *store, struct attempt_id id, uint32_t ranks)
{
    struct keel_shard_summary shards[RANKS];
    return worked(save_all(store, id, ranks, shards), "save failed", id) &&
           commit_turn(story, store, id, shards, ranks) && retain_turn(story, store);
}

/* A copy of `mendable` and its bases elsewhere, for the stories of repair; NULL: none. */
static struct keel_tier *spare;
static const struct attempt_id mendable = {2, 1};

static enum keel_status repair(struct keel_store *store)
{
    struct keel_repair_config config = {
        .step = mendable.step, .attempt = mendable.attempt, .sources = &spare, .source_count = 1};
    return keel_store_repair(store, &config, NULL);
}

static bool repair_turn(struct story *story, struct keel_store *store)
{
    if (!worked(repair(store), "repair failed", mendable) || !check_snapshot(store, mendable, true))
        return false;
    note(story, changes_so_far(story), true, mendable);
    return true;
}

static void story_begin(struct story *story, const char *name, struct disk *disk,
                        const struct keel_disk_ops *ops)
{
    *story = (struct story){.name = name, .start = disk_copy(disk), .trace = disk_trace_create()};
    keel_disk_use(ops);
    disk_mount(disk);
    disk_record(story->trace);
}

static void story_end(void)
{
    ck_assert_uint_eq(disk_open_descriptors(), 0);
    disk_record(NULL);
    disk_mount(NULL);
    keel_disk_use(NULL);
}

static void story_fini(struct story *story)
{
    disk_destroy(story->start);
    disk_trace_destroy(story->trace);
}

/* ---- exploring ----------------------------------------------------------------------------------------- */

struct search {
    uint32_t states_per_change; /* of each kind, at most */
    uint32_t go_on_every; /* of so many restarts one goes on: saves, commits, removes; and power goes again */
    uint32_t deeper_per_change; /* of those that do, so many are stories themselves */
    uint32_t deeper_every;      /* after one of so many changes; 0: after none */
    uint32_t depth;
    bool stop_at_first;
    uint32_t slice, slices; /* of the changes; the others are another process's */
    uint64_t states, restarts, stories, violations;
    char first[2048]; /* the first violation */
};

static void explore(struct search *search, const struct story *story);

static void blame(struct search *search, const struct story *story, uint32_t prefix, const char *crash)
{
    if (search->violations++ > 0)
        return;
    snprintf(search->first, sizeof search->first, "%s, after change %u (%s), %s: %s", story->name, prefix,
             prefix > 0 ? disk_trace_text(story->trace, prefix - 1) : "none", crash, complaint);
}

/* As a program would after a restart, looking only, or going on too. */
static bool restart(const struct story *story, uint32_t prefix, struct story *again, uint64_t attempt,
                    bool go_on)
{
    struct keel_store *store;
    struct attempt_id found[LISTED_MAX], next = {1, attempt};
    uint32_t count = 0;
    complaint[0] = '\0';
    if (!worked(run_open(true, &store), "the store cannot be opened", next))
        return false;
    bool fine = check_listed(store, go_on, found, &count) && check_promised(story, prefix, found, count);
    if (go_on && spare != NULL)
        fine = fine && repair_turn(again, store) && list_only(store, found, &count);
    if (count > 0)
        next.step = found[0].step + 1;
    if (go_on)
        fine = fine && turn(again, store, next, 1) && check_snapshot(store, next, true);
    keel_store_close(store);
    return fine;
}

/* Power goes once more, right after the restart's commit: all of that must be certain. */
static bool still_there(const struct disk *disk, const struct story *again)
{
    struct disk_choice none = {.mode = DISK_KEEP_NONE};
    struct attempt_id found[LISTED_MAX];
    uint32_t count = 0;
    struct keel_store *store;
    struct disk *image = disk_crash(disk, &none);
    disk_mount(image);
    bool fine = worked(run_open(false, &store), "the store is gone", (struct attempt_id){0});
    if (fine) {
        fine = check_listed(store, false, found, &count) && check_promised(again, UINT32_MAX, found, count);
        keel_store_close(store);
    }
    disk_mount(NULL);
    disk_destroy(image);
    return fine;
}

/* Crash within a restart. */
static void explore_deeper(struct search *search, const struct story *story, uint32_t prefix,
                           const struct story *again)
{
    struct search below = {.states_per_change = search->states_per_change / 16 + 1,
                           .go_on_every = search->go_on_every,
                           .depth = search->depth + 1,
                           .slices = 1,
                           .stop_at_first = search->stop_at_first};
    explore(&below, again);
    search->states += below.states;
    search->restarts += below.restarts;
    search->stories += 1 + below.stories;
    search->violations += below.violations;
    if (below.violations > 0 && search->first[0] == '\0')
        snprintf(search->first, sizeof search->first, "%.500s, after change %u, %.1400s", story->name, prefix,
                 below.first);
}

enum thoroughness { LOOK, GO_ON, DEEPER };

/* Run a restart on a disk, which goes; then crash within it, when there is depth for that. */
static void try_state(struct search *search, const struct story *story, uint32_t prefix, struct disk *image,
                      const char *crash, enum thoroughness how)
{
    struct story again;
    bool two = false;
    struct attempt_id owed[LISTED_MAX];
    story_begin(&again, crash, image, &disk_sim_ops);
    uint32_t count = promised(story, prefix, owed, &two);
    for (uint32_t i = 0; i < count; i++)
        note(&again, 0, true, owed[i]);
    search->states++;
    search->restarts += how >= GO_ON;
    bool fine = restart(story, prefix, &again, 100 + search->depth, how >= GO_ON);
    disk_record(NULL);
    if (how >= GO_ON)
        fine = fine && still_there(image, &again);
    story_end();
    disk_destroy(image);
    if (!fine)
        blame(search, story, prefix, crash);
    if (fine && how == DEEPER)
        explore_deeper(search, story, prefix, &again);
    story_fini(&again);
}

/* Crashes of one disk that were tried already. */
struct seen {
    uint64_t slots[SEEN_SLOTS];
};

static bool seen_before(struct seen *seen, uint64_t digest)
{
    digest += digest == 0;
    uint32_t at = (uint32_t)(digest % SEEN_SLOTS);
    while (seen->slots[at] != 0 && seen->slots[at] != digest)
        at = (at + 1) % SEEN_SLOTS;
    bool known = seen->slots[at] == digest;
    seen->slots[at] = digest;
    return known;
}

/* Crashes after one change. */
struct moment {
    const struct story *story;
    uint32_t prefix;
    const struct disk *disk;
    struct seen seen;
    uint32_t states;
};

static bool goes_deeper(const struct search *search, uint32_t prefix)
{
    return search->deeper_every > 0 && prefix / search->slices % search->deeper_every == 0;
}

static void crash_once(struct search *search, struct moment *moment, struct disk_choice *choice)
{
    static const char *const names[] = {"all lost", "all kept", "a random crash", "a combination"};
    struct disk *image = disk_crash(moment->disk, choice);
    if (seen_before(&moment->seen, choice->digest)) {
        disk_destroy(image);
        return;
    }
    enum thoroughness how = search->states % search->go_on_every == 0 ? GO_ON : LOOK;
    if (goes_deeper(search, moment->prefix) && moment->states < search->deeper_per_change)
        how = DEEPER;
    moment->states++;
    try_state(search, moment->story, moment->prefix, image, names[choice->mode], how);
}

static bool enough(const struct search *search)
{
    return search->stop_at_first && search->violations > 0;
}

/* All that may be on the disk after one change, or a fair part of it. */
static void explore_change(struct search *search, struct moment *moment)
{
    struct disk_choice none = {.mode = DISK_KEEP_NONE}, all = {.mode = DISK_KEEP_ALL};
    crash_once(search, moment, &none);
    crash_once(search, moment, &all);
    bool deeper = goes_deeper(search, moment->prefix);
    if (deeper || moment->prefix % 4 == 1)
        try_state(search, moment->story, moment->prefix, disk_copy(moment->disk), "killed",
                  deeper ? DEEPER : GO_ON);
    struct disk_choice each = {.mode = DISK_KEEP_EACH};
    bool more = true;
    for (uint32_t i = 0; more && i < search->states_per_change && !enough(search); i++) {
        crash_once(search, moment, &each);
        more = disk_choice_next(&each);
    }
    more = more || each.count > DISK_CHOICES_MAX;
    for (uint32_t i = 0; more && i < search->states_per_change && !enough(search); i++) {
        struct disk_choice random = disk_choice_random(mix(moment->prefix * UINT64_C(7919) + i));
        crash_once(search, moment, &random);
    }
}

static void explore(struct search *search, const struct story *story)
{
    struct disk *disk = disk_copy(story->start);
    struct moment *moment;
    uint32_t count = disk_trace_count(story->trace);
    for (uint32_t prefix = 0; prefix <= count && !enough(search); prefix++) {
        if (prefix % search->slices == search->slice) {
            ck_ok(keel_alloc(1, sizeof *moment, &moment));
            moment->story = story;
            moment->prefix = prefix;
            moment->disk = disk;
            explore_change(search, moment);
            keel_free(moment);
        }
        if (prefix < count)
            disk_trace_apply(story->trace, prefix, disk);
    }
    disk_destroy(disk);
}

/* ---- the stories told ---------------------------------------------------------------------------------- */

/* Saves that overlap: the next one has begun when this one is committed and old ones go; one is cancelled. */
static bool tell_steps(struct story *story, struct keel_store *store)
{
    struct keel_shard_summary shards[RANKS], next[RANKS];
    struct rank_save cancelled;
    for (uint64_t step = 1; step <= 4; step++)
        if (!turn(story, store, (struct attempt_id){step, 1}, RANKS))
            return false;
    struct attempt_id five = {5, 1}, six = {6, 1}, seven = {7, 1};
    struct rank_save early;
    ck_ok(save_all(store, five, RANKS, shards));
    ck_ok(rank_begin(store, six, 0, RANKS, &early));
    if (!commit_turn(story, store, five, shards, RANKS) || !retain_turn(story, store))
        return false;
    ck_ok(rank_finish(&early, &next[0]));
    ck_ok(rank_begin(store, six, 1, RANKS, &early));
    ck_ok(rank_finish(&early, &next[1]));
    ck_ok(rank_begin(store, seven, 0, RANKS, &cancelled));
    gate_open(&cancelled.gate);
    while (!keel_save_done(cancelled.save))
        keel_sleep_until_ns(keel_deadline_after_ns(KEEL_NS_PER_MS));
    keel_save_cancel(cancelled.save);
    gate_fini(&cancelled.gate);
    return commit_turn(story, store, six, next, RANKS) && retain_turn(story, store);
}

/* A run that was begun anew behind what is there. */
static bool tell_anew(struct story *story, struct keel_store *store)
{
    static const struct attempt_id ids[] = {{10, 1}, {20, 1}, {30, 1}, {5, 2}, {13, 2}, {25, 2}, {35, 2}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        if (!turn(story, store, ids[i], RANKS))
            return false;
    return true;
}

static enum keel_status copy_spare(void *context, const struct keel_object_info *info)
{
    return keel_tier_copy(context, &info->object, spare);
}

/* One shard is overwritten, another one goes. Between these, and not of our doing, anything may be found. */
static void damage(struct story *story, struct keel_store *store)
{
    struct keel_step_place place;
    ck_ok(keel_step_open(store, mendable.step, mendable.attempt, false, &place));
    note(story, changes_so_far(story), false, mendable);
    int fd = keel_disk_open(place.fd, "rank-0.keel", O_RDWR, 0);
    ck_assert_int_eq(keel_disk_pwrite(fd, "damaged", 7, 4096), 7);
    ck_assert_int_eq(keel_disk_fsync(fd), 0);
    keel_disk_close(fd);
    ck_assert_int_eq(keel_disk_unlink(place.fd, "rank-1.keel", 0), 0);
    ck_assert_int_eq(keel_disk_fsync(place.fd), 0);
    keel_step_close(&place);
    ck_assert(found_damaged(store, mendable));
}

static bool tell_repair(struct story *story, struct keel_store *store)
{
    struct keel_tier *self;
    for (uint64_t step = 1; step <= 2; step++)
        if (!turn(story, store, (struct attempt_id){step, 1}, RANKS))
            return false;
    ck_ok(keel_tier_memory_open("sample", 64 << 20, "spare", &spare));
    ck_ok(keel_tier_directory_open(store, KEEL_LATENCY_LOCAL, "store", &self));
    ck_ok(keel_tier_list(self, copy_spare, self));
    keel_tier_end(self);
    run_damaged = mendable;
    damage(story, store);
    return repair_turn(story, store) && turn(story, store, (struct attempt_id){3, 1}, RANKS);
}

/* Into an empty store, from what the story before this one left. */
static bool tell_restore(struct story *story, struct keel_store *store)
{
    run_damaged = (struct attempt_id){0};
    return repair_turn(story, store) && check_snapshot(store, (struct attempt_id){1, 1}, true);
}

static void tell(struct story *story, const char *name, const struct keel_disk_ops *ops,
                 bool (*body)(struct story *story, struct keel_store *store))
{
    struct keel_store *store;
    struct disk *disk = disk_create();
    story_begin(story, name, disk, ops);
    complaint[0] = '\0';
    ck_ok(run_open(true, &store));
    ck_assert_msg(body(story, store), "%s: %s", name, complaint);
    struct keel_generation_index attempts;
    uint32_t bases = 0;
    ck_ok(keel_generation_index_scan(store, false, &attempts));
    for (size_t i = 0; i < attempts.count; i++)
        bases += attempts.at[i].base_count;
    keel_generation_index_fini(&attempts);
    ck_assert_uint_gt(bases, 0); /* there are deltas in it */
    keel_store_close(store);
    story_end();
    disk_destroy(disk);
}

/* Several processes share the changes of a story; only counts and the first violation come back. */
static void explore_shared(const struct story *story, const struct search *how, struct search *total)
{
    struct search *slices =
        mmap(NULL, WORKERS * sizeof *slices, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t workers[WORKERS];
    ck_assert_ptr_ne(slices, MAP_FAILED);
    for (uint32_t w = 0; w < WORKERS; w++) {
        slices[w] = *how;
        slices[w].slice = w;
        slices[w].slices = WORKERS;
        workers[w] = fork();
        if (workers[w] == 0) {
            explore(&slices[w], story);
            _exit(0);
        }
        ck_assert_int_gt(workers[w], 0);
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        int result;
        ck_assert_int_eq(waitpid(workers[w], &result, 0), workers[w]);
        ck_assert_msg(WIFEXITED(result) && WEXITSTATUS(result) == 0, "a worker died: %d", result);
        total->states += slices[w].states;
        total->restarts += slices[w].restarts;
        total->stories += slices[w].stories;
        total->violations += slices[w].violations;
        if (slices[w].violations > 0 && total->first[0] == '\0')
            memcpy(total->first, slices[w].first, sizeof total->first);
    }
    munmap(slices, WORKERS * sizeof *slices);
}

static const struct {
    const char *name;
    bool (*body)(struct story *story, struct keel_store *store);
    uint32_t deeper_per_change;
} stories[] = {{"steps", tell_steps, 2},
               {"a run begun anew", tell_anew, 1},
               {"repair", tell_repair, 1},
               {"restore", tell_restore, 1}};

START_TEST(after_any_crash_what_was_committed_is_there_and_right)
{
    uint32_t thinner = thinned(THINNER);
    struct search how = {.states_per_change = 400 / thinner, .go_on_every = 8, .deeper_every = thinner},
                  total = {0};
    uint32_t changes = 0;
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        struct story story;
        tell(&story, stories[i].name, &disk_sim_ops, stories[i].body);
        how.deeper_per_change = stories[i].deeper_per_change;
        explore_shared(&story, &how, &total);
        changes += disk_trace_count(story.trace);
        story_fini(&story);
    }
    keel_tier_end(spare);
    spare = NULL;
    printf("note: %u changes, %llu stories, %llu states of the disk, %llu restarts that went on\n", changes,
           (unsigned long long)total.stories, (unsigned long long)total.states,
           (unsigned long long)total.restarts);
    ck_assert_msg(total.violations == 0, "%llu of them wrong; %s", (unsigned long long)total.violations,
                  total.first);
    ck_assert_uint_ge(total.states, 100000 / thinner);
}
END_TEST

/* ---- mutants ------------------------------------------------------------------------------------------- */

/* Each is a disk on which one of the store's precautions has no effect; the same crashes must show it. */

enum mutant {
    NO_SYNC_OF_SHARDS,
    NO_SYNC_OF_MANIFEST,
    RENAME_BEFORE_SYNC,
    NO_SYNC_OF_ROOT,
    NO_SYNC_OF_RUN,
    NO_SYNC_OF_STEP,
    NO_SYNC_AFTER_RENAME,
    NO_SYNC_AFTER_REMOVAL,
    MUTANT_COUNT
};

static enum mutant mutant;
static bool manifest_renamed, manifest_removed; /* and its directory not synced since */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static int mutant_fsync(int fd)
{
    const char *path = disk_sim_path(fd);
    bool directory = disk_sim_is_directory(fd), step = directory && strstr(path, "/step-") != NULL;
    bool temporary = ends_with(path, ".tmp"), renamed = step && manifest_renamed;
    bool removed = step && manifest_removed;
    manifest_renamed = manifest_renamed && !step;
    manifest_removed = manifest_removed && !step;
    if ((mutant == NO_SYNC_OF_SHARDS && ends_with(path, ".keel")) ||
        ((mutant == NO_SYNC_OF_MANIFEST || mutant == RENAME_BEFORE_SYNC) && temporary) ||
        (mutant == NO_SYNC_OF_ROOT && directory && ends_with(run_root, path)) ||
        (mutant == NO_SYNC_OF_RUN && directory && ends_with(path, "/sample")) ||
        (mutant == NO_SYNC_OF_STEP && step) || (mutant == NO_SYNC_AFTER_RENAME && renamed) ||
        (mutant == NO_SYNC_AFTER_REMOVAL && removed))
        return 0;
    return disk_sim_ops.fsync(fd);
}

static int mutant_rename(int from_at, const char *from, int to_at, const char *to)
{
    int result = disk_sim_ops.rename(from_at, from, to_at, to);
    manifest_renamed = true;
    if (mutant == RENAME_BEFORE_SYNC) {
        int fd = disk_sim_ops.open(to_at, to, O_RDONLY, 0);
        disk_sim_ops.fsync(fd);
        disk_sim_ops.close(fd);
    }
    return result;
}

static int mutant_unlink(int at, const char *path, int flags)
{
    manifest_removed = manifest_removed || ends_with(path, KEEL_MANIFEST_NAME);
    return disk_sim_ops.unlink(at, path, flags);
}

START_TEST(a_disk_on_which_a_precaution_has_no_effect_is_found_out)
{
    static const char *const names[] = {"shards are not synced",
                                        "the manifest is not synced",
                                        "the manifest is renamed before it is synced",
                                        "the root's names are not synced",
                                        "the run's directory is not synced",
                                        "the step's directory is never synced",
                                        "the step's directory is not synced after the rename",
                                        "the step's directory is not synced after the manifest went"};
    struct keel_disk_ops ops = disk_sim_ops;
    ops.fsync = mutant_fsync;
    ops.rename = mutant_rename;
    ops.unlink = mutant_unlink;
    struct search how = {.states_per_change = 64, .go_on_every = 1000, .slices = 1, .stop_at_first = true};
    mutant = (enum mutant)_i;
    manifest_renamed = manifest_removed = false;
    struct story story;
    tell(&story, names[_i], &ops, tell_anew);
    explore(&how, &story);
    story_fini(&story);
    ck_assert_msg(how.violations > 0, "%s: nobody noticed in %llu states", names[_i],
                  (unsigned long long)how.states);
    printf("note: after %llu states: %.180s\n", (unsigned long long)how.states, how.first);
}
END_TEST

static void cases(TCase *tc)
{
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* or every store's arena were cleared, not mapped */
    tcase_add_loop_test(tc, a_disk_on_which_a_precaution_has_no_effect_is_found_out, 0, MUTANT_COUNT);
    tcase_add_test(tc, after_any_crash_what_was_committed_is_there_and_right);
}

KEEL_TEST_MAIN("disk", cases, 880)
