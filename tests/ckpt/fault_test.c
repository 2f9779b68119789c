/* fault_test.c - every disk call of a run fails once, or from then on until it is healed: what was committed
 * stays, what fails says where, nothing leaks, and the same store goes on when the fault is over.
 *
 * The run: open a store, three saves with their commits, retention, reading all of the newest back. A stage
 * that fails is done again, under a new attempt, after the disk has been healed. */
#include "disk_run.h"
#include <errno.h>

enum { STEPS = 3, COMMITTED_MAX = 2 * STEPS + 2 };

enum fault_kind { FAIL_IO, FAIL_NO_SPACE, INTERRUPT, CUT_SHORT, FAULT_COUNT };

/* ---- the faulty disk ----------------------------------------------------------------------------------- */

static struct {
    enum fault_kind kind;
    bool lasting, only_writes;
    uint32_t at; /* number of the call */
    _Atomic uint32_t calls;
    _Atomic bool healed, struck, vital; /* vital: it struck what the promise rests on */
} fault;

/* Does it strike this call? `changes`: one that may need space. `moves`: one that moves bytes. */
static bool strikes(bool changes, bool moves)
{
    if (fault.only_writes && !(changes && moves))
        return false;
    uint32_t number = fault.calls++;
    bool now = fault.lasting ? number >= fault.at : number == fault.at;
    if (fault.healed || !now || (fault.kind == FAIL_NO_SPACE && !changes) ||
        (fault.kind == CUT_SHORT && !moves))
        return false;
    fault.struck = true;
    return true;
}

static bool strikes_vital(bool moves)
{
    bool now = strikes(true, moves);
    if (now)
        fault.vital = true;
    return now;
}

static int error_of(void)
{
    errno = fault.kind == FAIL_IO ? EIO : fault.kind == FAIL_NO_SPACE ? ENOSPC : EINTR;
    return -1;
}

static int faulty_open(int at, const char *path, int flags, unsigned mode)
{
    return strikes((flags & O_CREAT) != 0, false) ? error_of() : disk_sim_ops.open(at, path, flags, mode);
}

/* Closed in any case. */
static int faulty_close(int fd)
{
    bool fails = strikes(false, false);
    disk_sim_ops.close(fd);
    return fails ? error_of() : 0;
}

static ssize_t faulty_pread(int fd, void *data, size_t bytes, uint64_t offset)
{
    bool now = strikes(false, true);
    if (now && fault.kind != CUT_SHORT)
        return error_of();
    return disk_sim_ops.pread(fd, data, now ? (bytes + 1) / 2 : bytes, offset);
}

/* One that fails has written a part, too. */
static ssize_t faulty_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    bool now = strikes_vital(true);
    if (!now)
        return disk_sim_ops.pwrite(fd, data, bytes, offset);
    ssize_t put = fault.kind == INTERRUPT ? 0 : disk_sim_ops.pwrite(fd, data, (bytes + 1) / 2, offset);
    return fault.kind == CUT_SHORT ? put : error_of();
}

static int faulty_fsync(int fd)
{
    if (!strikes_vital(false))
        return disk_sim_ops.fsync(fd);
    if (fault.kind != INTERRUPT)
        disk_sim_lose(fd);
    return error_of();
}

static int faulty_rename(int from_at, const char *from, int to_at, const char *to)
{
    return strikes_vital(false) ? error_of() : disk_sim_ops.rename(from_at, from, to_at, to);
}

static int faulty_unlink(int at, const char *path, int flags)
{
    return strikes(true, false) ? error_of() : disk_sim_ops.unlink(at, path, flags);
}

static int faulty_mkdir(int at, const char *path, unsigned mode)
{
    return strikes(true, false) ? error_of() : disk_sim_ops.mkdir(at, path, mode);
}

static int faulty_stat(int at, const char *path, struct stat *out, int flags)
{
    return strikes(false, false) ? error_of() : disk_sim_ops.stat(at, path, out, flags);
}

static int faulty_get_flags(int fd)
{
    return strikes(false, false) ? error_of() : disk_sim_ops.get_flags(fd);
}

static int faulty_set_flags(int fd, int flags)
{
    return strikes(false, false) ? error_of() : disk_sim_ops.set_flags(fd, flags);
}

static int faulty_list(int fd, int (*visit)(void *context, const char *name), void *context)
{
    return strikes(false, false) ? error_of() : disk_sim_ops.list(fd, visit, context);
}

static struct keel_disk_ops faulty_ops(void)
{
    struct keel_disk_ops ops = disk_sim_ops;
    ops.open = faulty_open;
    ops.close = faulty_close;
    ops.pread = faulty_pread;
    ops.pwrite = faulty_pwrite;
    ops.fsync = faulty_fsync;
    ops.rename = faulty_rename;
    ops.unlink = faulty_unlink;
    ops.mkdir = faulty_mkdir;
    ops.stat = faulty_stat;
    ops.get_flags = faulty_get_flags;
    ops.set_flags = faulty_set_flags;
    ops.list = faulty_list;
    return ops;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

struct run {
    struct keel_store *store;
    struct attempt_id committed[COMMITTED_MAX];
    uint32_t committed_count, failures;
    char first[KEEL_DETAIL_BYTES]; /* what the first failure said */
};

static void describe(char out[256])
{
    static const char *const kinds[] = {"EIO", "ENOSPC", "EINTR", "short"};
    snprintf(out, 256, "%s at call %u%s", kinds[fault.kind], fault.at, fault.lasting ? " and on" : "");
}

/* A failure may be the fault's, names a file, and is the last: then the disk works again. */
static bool stage_ok(struct run *run, enum keel_status status)
{
    char what[256];
    if (status == KEEL_OK)
        return true;
    describe(what);
    ck_assert_msg(!fault.healed, "%s: fails after that, too: %s, then %s", what, run->first, keel_detail());
    ck_assert_msg(fault.struck, "%s: fails before that: %s", what, keel_detail());
    ck_assert_msg(keel_detail()[0] == '/', "%s: names no file: %s", what, keel_detail());
    snprintf(run->first, sizeof run->first, "%s", keel_detail());
    run->failures++;
    fault.healed = true;
    return false;
}

static enum keel_status save_and_commit(struct run *run, struct attempt_id id)
{
    struct keel_shard_summary shards[RANKS];
    KEEL_TRY(save_all(run->store, id, RANKS, shards));
    KEEL_TRY(commit_all(run->store, id.step, id.attempt, shards, RANKS));
    run->committed[run->committed_count++] = id;
    return KEEL_OK;
}

static enum keel_status read_newest(struct run *run)
{
    struct attempt_id id = run->committed[run->committed_count - 1];
    struct keel_snapshot *snapshot;
    bool right = false;
    KEEL_TRY(keel_snapshot_open(run->store, id.step, 0, &snapshot));
    id.attempt = keel_snapshot_info(snapshot)->attempt;
    enum keel_status status = keel_snapshot_verify(snapshot, NULL, NULL, NULL);
    if (status == KEEL_OK)
        status = compare_all(snapshot, id, &right);
    keel_snapshot_close(snapshot);
    ck_assert_msg(status != KEEL_OK || right, "read well, holds something else");
    return status;
}

static void run_once(struct run *run)
{
    const struct keel_retention retention = {.keep_last = KEEP};
    *run = (struct run){0};
    while (!stage_ok(run, run_open(true, &run->store)))
        ;
    for (uint64_t step = 1; step <= STEPS; step++)
        for (uint64_t attempt = 1; !stage_ok(run, save_and_commit(run, (struct attempt_id){step, attempt}));)
            attempt++;
    while (!stage_ok(run, keel_store_retain(run->store, &retention, NULL)))
        ;
    while (!stage_ok(run, read_newest(run)))
        ;
    keel_store_close(run->store);
}

/* The two newest of those that were committed are in the store, and whatever else is there is right. */
static void check_kept(const struct run *run, const char *when)
{
    struct keel_store *store;
    struct attempt_id found[LISTED_MAX], next = {STEPS + 1, 1};
    char what[256];
    uint32_t count = 0;
    describe(what);
    complaint[0] = '\0';
    ck_assert_msg(worked(run_open(true, &store), "cannot be opened", next) &&
                      check_listed(store, true, found, &count),
                  "%s, %s: %s", what, when, complaint);
    ck_assert_msg(count >= KEEP, "%s, %s: only %u are left", what, when, count);
    ck_assert_msg(found[0].step == STEPS && found[count - 1].step <= STEPS, "%s, %s: the newest is lost",
                  what, when);
    struct attempt_id newest = run->committed[run->committed_count - 1];
    bool there = false;
    for (uint32_t i = 0; i < count; i++)
        there = there || same_attempt(found[i], newest);
    ck_assert_msg(there, "%s, %s: the newest is lost", what, when);
    keel_store_close(store);
}

static void check_after(const struct run *run, struct disk *disk)
{
    struct disk_choice none = {.mode = DISK_KEEP_NONE};
    ck_assert_uint_eq(disk_open_descriptors(), 0);
    check_kept(run, "afterwards");
    struct disk *image = disk_crash(disk, &none);
    disk_mount(image);
    check_kept(run, "after a power cut");
    disk_mount(NULL);
    disk_destroy(image);
}

/* One run with the fault at one call; false when the run is shorter. */
static bool strike(enum fault_kind kind, bool lasting, uint32_t at, struct run *out)
{
    struct keel_disk_ops ops = faulty_ops();
    struct disk *disk = disk_create();
    uint64_t live_bytes = keel_memory_stats().live_bytes;
    fault.kind = kind;
    fault.lasting = lasting;
    fault.at = at;
    fault.calls = 0;
    fault.healed = fault.struck = fault.vital = false;
    keel_disk_use(&ops);
    disk_mount(disk);
    run_once(out);
    bool within = fault.calls > at;
    fault.healed = true;
    disk_destroy(disk_copy(disk)); /* counts what the disk itself holds below */
    check_after(out, disk);
    keel_disk_use(NULL);
    disk_destroy(disk);
    ck_assert_msg(keel_memory_stats().live_bytes <= live_bytes, "memory leaked");
    return within;
}

START_TEST(a_call_that_fails_loses_nothing_and_says_where)
{
    static const char *const names[] = {"EIO", "ENOSPC", "EINTR", "short"};
    enum fault_kind kind = (enum fault_kind)(_i / 2);
    bool lasting = _i % 2 == 1;
    uint32_t calls = 0, struck = 0, failures = 0;
    struct run run;
    while (strike(kind, lasting, calls, &run)) {
        char what[256];
        describe(what);
        /* What is interrupted or cut short once goes on by itself; so does what is always cut short. */
        if (kind == CUT_SHORT || (kind == INTERRUPT && !lasting))
            ck_assert_msg(run.failures == 0, "%s: %s", what, run.first);
        else
            ck_assert_msg(run.failures > 0 || !fault.vital, "%s: nobody was told", what);
        struck += fault.struck;
        failures += run.failures;
        calls++;
    }
    ck_assert_uint_gt(struck, 10);
    ck_assert(kind == CUT_SHORT || kind == INTERRUPT || failures > struck / 4);
    printf("note: %s %s: %u calls of a run, struck in %u, %u runs were told of it\n", names[kind],
           lasting ? "from then on" : "once", calls, struck, failures);
}
END_TEST

START_TEST(a_write_that_fails_is_tried_again_as_often_as_was_asked_for)
{
    struct run run;
    uint32_t writes = 0;
    run_retry_max = 1;
    fault.only_writes = true;
    for (; strike(FAIL_IO, false, writes, &run); writes++)
        if (run.failures > 0) /* the manifest's, which commit writes itself */
            ck_assert_msg(strstr(run.first, "manifest") != NULL, "write %u: %s", writes, run.first);
    ck_assert_uint_ge(writes, STEPS * RANKS);
}
END_TEST

static void cases(TCase *tc)
{
    mallopt(M_MMAP_THRESHOLD, 128 << 10); /* or every store's arena were cleared, not mapped */
    tcase_add_loop_test(tc, a_call_that_fails_loses_nothing_and_says_where, 0, 2 * FAULT_COUNT);
    tcase_add_test(tc, a_write_that_fails_is_tried_again_as_often_as_was_asked_for);
}

KEEL_TEST_MAIN("fault", cases, 300)
