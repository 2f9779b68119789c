/* safetensors_disk_test.c - power goes after every change that writing safetensors makes to its disk, and
 * every call to the disk fails once: what can be opened then is the old model or the new one, whole.
 *
 * The disk is that of disk_sim.h. */
#include "disk_sim.h"
#include "sample.h"
#include <errno.h>
#include <keel/safetensors.h>

enum { TENSORS = 6, ELEMENTS = 700, RANDOM_CRASHES = 40 };

static const char single_path[] = "/out/model.safetensors",
                  index_path[] = "/out/model.safetensors.index.json";

/* ---- two models ---------------------------------------------------------------------------------------- */

static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};

struct model {
    uint64_t salt;
    uint64_t shard_bytes; /* 0: one file */
};
static const struct model one = {1, 0}, three = {2, 6000}, three_again = {3, 6000}, six = {4, 100};

static void fill(uint64_t salt, uint32_t tensor, uint64_t offset, uint64_t bytes, uint8_t *out)
{
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)mix(salt * 100 + tensor + 1000 * (offset + i));
}

static enum keel_status read_model(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    fill(((const struct model *)context)->salt, index, offset, bytes, out);
    return KEEL_OK;
}

static enum keel_status write_model(const struct model *model, bool replace)
{
    struct keel_safetensors_tensor tensors[TENSORS];
    struct keel_safetensors_written written;
    struct model context = *model;
    for (uint32_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct keel_safetensors_tensor){
            .name = names[i], .dtype = KEEL_SAFETENSORS_F32, .dims = 1, .shape = {ELEMENTS}};
    struct keel_safetensors_write what = {.path = "/out",
                                          .tensors = tensors,
                                          .tensor_count = TENSORS,
                                          .shard_bytes = model->shard_bytes,
                                          .replace = replace,
                                          .read = read_model,
                                          .context = &context};
    return keel_safetensors_write(&what, &written);
}

/* The salt of the model that lies at `path`, whole; 0 when nothing is there. Fails the test for anything
 * else. */
static uint64_t model_at(const char *path, const char *when)
{
    struct keel_safetensors *file;
    uint64_t found = 0;
    enum keel_status status = keel_safetensors_open(path, &file);
    if (status == KEEL_NOT_FOUND && !keel_path_exists(path))
        return 0;
    ck_assert_msg(status == KEEL_OK, "%s: %s", when, keel_detail());
    ck_assert_uint_eq(keel_safetensors_count(file), TENSORS);
    for (uint64_t salt = 1; salt <= 4; salt++) {
        uint32_t same = 0;
        for (uint32_t i = 0; i < TENSORS; i++) {
            uint8_t got[4 * ELEMENTS], wanted[4 * ELEMENTS];
            ck_ok(keel_safetensors_read(file, i, 0, sizeof got, got));
            fill(salt, i, 0, sizeof wanted, wanted);
            same += memcmp(got, wanted, sizeof got) == 0;
        }
        ck_assert_msg(same == 0 || same == TENSORS, "%s: %s mixes models", when, path);
        found = same > 0 ? salt : found;
    }
    ck_assert_msg(found != 0, "%s: %s holds something else", when, path);
    keel_safetensors_close(file);
    return found;
}

/* Whatever can be opened is the old or the new. */
static void check_disk(const struct model *old, const struct model *new, bool ended, const char *when)
{
    uint64_t at_single = model_at(single_path, when), at_index = model_at(index_path, when);
    uint64_t old_salt = old == NULL ? 0 : old->salt;
    ck_assert_msg(at_single == 0 || at_single == old_salt || at_single == new->salt, "%s", when);
    ck_assert_msg(at_index == 0 || at_index == old_salt || at_index == new->salt, "%s", when);
    uint64_t wanted = new->shard_bytes == 0 ? at_single : at_index;
    uint64_t other = new->shard_bytes == 0 ? at_index : at_single;
    if (ended)
        ck_assert_msg(wanted == new->salt &&other == 0, "%s: the new model is not there alone", when);
    /* Only while the files of an index change under their own names may neither be there. */
    if (old != NULL && (old->shard_bytes == 0 || new->shard_bytes == 0))
        ck_assert_msg(at_single + at_index != 0, "%s: neither model is there", when);
}

/* ---- the disk ------------------------------------------------------------------------------------------ */

static struct disk *make_disk(const struct model *old)
{
    struct disk *disk = disk_create();
    disk_mount(disk);
    ck_assert_int_eq(keel_disk_mkdir(AT_FDCWD, "/out", 0777), 0);
    ck_ok(keel_sync_path("/"));
    if (old != NULL)
        ck_ok(write_model(old, false));
    return disk;
}

struct change {
    const struct model *old, *new;
};
static const struct change changes[] = {{NULL, &one},   {NULL, &three}, {&one, &one},
                                        {&one, &three}, {&three, &one}, {&three, &three_again},
                                        {&three, &six}, {&six, &three}};
enum { CHANGES = sizeof changes / sizeof changes[0] };

START_TEST(power_may_go_at_any_moment)
{
    const struct change *change = &changes[_i];
    const struct keel_disk_ops *before = keel_disk_use(&disk_sim_ops);
    struct disk *disk = make_disk(change->old), *replay = disk_copy(disk);
    struct disk_trace *trace = disk_trace_create();
    uint32_t states = 0;
    disk_record(trace);
    ck_ok(write_model(change->new, change->old != NULL));
    disk_record(NULL);
    ck_assert_uint_gt(disk_trace_count(trace), 3);
    for (uint32_t done = 0; done <= disk_trace_count(trace); done++) {
        char when[256];
        snprintf(when, sizeof when, "after %u changes, %s", done,
                 done > 0 ? disk_trace_text(trace, done - 1) : "none");
        for (uint32_t round = 0; round < RANDOM_CRASHES + 2; round++) {
            struct disk_choice choice = disk_choice_random(mix(round) ^ mix(done));
            if (round < 2)
                choice = (struct disk_choice){.mode = round == 0 ? DISK_KEEP_NONE : DISK_KEEP_ALL};
            struct disk *crashed = disk_crash(replay, &choice);
            disk_mount(crashed);
            check_disk(change->old, change->new, done == disk_trace_count(trace), when);
            ck_assert_uint_eq(disk_open_descriptors(), 0);
            disk_mount(NULL);
            disk_destroy(crashed);
            states++;
        }
        if (done < disk_trace_count(trace))
            disk_trace_apply(trace, done, replay);
    }
    printf("%u states\n", states);
    disk_trace_destroy(trace);
    disk_destroy(replay);
    disk_mount(NULL);
    disk_destroy(disk);
    keel_disk_use(before);
}
END_TEST

/* ---- calls that fail ----------------------------------------------------------------------------------- */

static struct keel_disk_ops failing; /* disk_sim_ops, but call number `fails_at` of these does not work */
static uint64_t calls, fails_at;
static int fails_with;

static bool fails(void)
{
    if (++calls != fails_at)
        return false;
    errno = fails_with;
    return true;
}

static int fail_open(int at, const char *path, int flags, unsigned mode)
{
    return fails() ? -1 : disk_sim_ops.open(at, path, flags, mode);
}

static ssize_t fail_pwrite(int fd, const void *data, size_t bytes, uint64_t offset)
{
    return fails() ? -1 : disk_sim_ops.pwrite(fd, data, bytes, offset);
}

static int fail_fsync(int fd)
{
    if (!fails())
        return disk_sim_ops.fsync(fd);
    disk_sim_lose(fd);
    errno = fails_with; /* the loss may have set another */
    return -1;
}

static int fail_rename(int from_at, const char *from, int to_at, const char *to)
{
    return fails() ? -1 : disk_sim_ops.rename(from_at, from, to_at, to);
}

static int fail_close(int fd)
{
    int closed = disk_sim_ops.close(fd);
    return fails() ? -1 : closed;
}

static int count_name(void *context, const char *name)
{
    (void)name;
    ++*(uint32_t *)context;
    return 0;
}

static uint32_t names_in_out(void)
{
    uint32_t count = 0;
    int fd = keel_disk_open(AT_FDCWD, "/out", O_RDONLY | O_DIRECTORY, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(keel_disk_list(fd, count_name, &count), 0);
    keel_disk_close(fd);
    return count;
}

START_TEST(any_call_may_fail)
{
    const struct change *change = &changes[_i];
    static const int errors[] = {EIO, ENOSPC};
    const struct keel_disk_ops *before = keel_disk_use(&disk_sim_ops);
    failing = disk_sim_ops;
    failing.open = fail_open;
    failing.pwrite = fail_pwrite;
    failing.fsync = fail_fsync;
    failing.rename = fail_rename;
    failing.close = fail_close;
    bool failed = true;
    for (uint64_t at = 1; failed; at++) {
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
            struct disk *disk = make_disk(change->old);
            uint32_t names_before = names_in_out();
            char when[64];
            snprintf(when, sizeof when, "call %llu fails", (unsigned long long)at);
            calls = 0;
            fails_at = at;
            fails_with = errors[e];
            keel_disk_use(&failing);
            enum keel_status status = write_model(change->new, change->old != NULL);
            fails_at = 0;
            keel_disk_use(&disk_sim_ops);
            failed = status != KEEL_OK || calls >= at;
            ck_assert_uint_eq(disk_open_descriptors(), 0);
            check_disk(change->old, change->new, status == KEEL_OK, when);
            if (status != KEEL_OK && change->old == NULL)
                ck_assert_uint_eq(names_in_out(), names_before); /* nothing is left behind */
            disk_mount(NULL);
            disk_destroy(disk);
        }
    }
    keel_disk_use(before);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_loop_test(tc, power_may_go_at_any_moment, 0, CHANGES);
    tcase_add_loop_test(tc, any_call_may_fail, 0, CHANGES);
}

KEEL_TEST_MAIN("safetensors_disk", cases, 120)
