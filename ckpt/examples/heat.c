/* heat.c - heat spreads over a square plate; a kill costs the steps since the last snapshot, nothing else.
 *
 * An example for libkeel-ckpt, to be copied from. It goes on from what its store holds, saves every so many
 * steps while it computes, and never ends because of a save that failed.
 *
 *     cc heat.c $(pkg-config --cflags --libs keel-ckpt) -o heat
 *     ./heat STORE STEPS EVERY [FILE]     # FILE: where the plate is written at the end, as raw doubles */
#include <errno.h>
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 384, CELLS = SIDE * SIDE, LISTED = 16 };
#define IDENTITY "heat-384"           /* changes when older snapshots are of no use any more */
#define LIMIT_NS (60 * KEEL_NS_PER_S) /* nothing waits longer */

struct heat {
    double *now, *next; /* the plate after `step` steps, and the one that is computed */
    uint64_t step;
    struct keel_store *store;
    struct keel_save *save;   /* under way, or NULL */
    struct keel_commit saved; /* what it will be */
    const double *captured;   /* the plate that it reads */
};

/* ---- physics ------------------------------------------------------------------------------------------- */

static void set_hot_spot(double *plate)
{
    for (int i = 0; i < CELLS; i++) {
        int x = i % SIDE - SIDE / 3, y = i / SIDE - SIDE / 4;
        plate[i] = x * x + y * y < SIDE ? 1000.0 : 20.0;
    }
}

static void spread(const double *from, double *to)
{
    for (int i = 0; i < CELLS; i++) {
        int x = i % SIDE, y = i / SIDE;
        if (x == 0 || y == 0 || x == SIDE - 1 || y == SIDE - 1)
            to[i] = from[i]; /* the rim keeps its temperature */
        else
            to[i] = from[i] +
                    0.2 * (((from[i - SIDE] + from[i + SIDE]) + (from[i - 1] + from[i + 1])) - 4 * from[i]);
    }
}

/* ---- snapshots ----------------------------------------------------------------------------------------- */

static const struct keel_region plate_region = {
    .name = "plate", .dtype = KEEL_CKPT_F64, .dims = 2, .shape = {SIDE, SIDE}, .extent = {SIDE, SIDE}};

/* Called by the capture thread while the main thread computes the next plate from this one. */
static enum keel_status read_plate(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    const struct heat *heat = context;
    (void)index; /* there is one region */
    memcpy(out, (const char *)heat->captured + offset, bytes);
    return KEEL_OK;
}

static void complain(const char *what, enum keel_status status)
{
    fprintf(stderr, "heat: %s: %s: %s\n", what, keel_status_text(status), keel_detail());
}

static void begin_save(struct heat *heat)
{
    const struct keel_save_config config = {.step = heat->step,
                                            .attempt = keel_wall_ns(), /* never the same twice */
                                            .rank_count = 1,
                                            .codec = KEEL_CODEC_PLANES,
                                            .regions = &plate_region,
                                            .region_count = 1,
                                            .read = read_plate,
                                            .context = heat};
    heat->captured = heat->now;
    heat->saved = (struct keel_commit){.step = config.step, .attempt = config.attempt, .identity = IDENTITY};
    enum keel_status status = keel_save_begin(heat->store, &config, &heat->save);
    if (status != KEEL_OK)
        complain("cannot save, going on", status);
}

/* Before the plate that the save reads is written over. */
static void let_capture(struct heat *heat)
{
    if (heat->save == NULL)
        return;
    enum keel_status status = keel_save_wait_captured(heat->save, keel_deadline_after_ns(LIMIT_NS));
    if (status == KEEL_OK)
        return;
    complain("a save failed, going on", status);
    keel_save_cancel(heat->save);
    heat->save = NULL;
}

/* Wait for the save under way, commit it, and let older snapshots go. */
static void end_save(struct heat *heat)
{
    if (heat->save == NULL)
        return;
    const struct keel_retention retention = {.keep_last = 2};
    enum keel_status status =
        keel_save_commit(heat->store, heat->save, &heat->saved, NULL, keel_deadline_after_ns(LIMIT_NS));
    if (status == KEEL_OK)
        status = keel_store_retain(heat->store, &retention, NULL);
    if (status != KEEL_OK)
        complain("a save failed, going on", status);
    heat->save = NULL;
}

static enum keel_status load(struct heat *heat, const struct keel_snapshot_info *info)
{
    struct keel_snapshot *snapshot;
    if (strcmp(info->identity, IDENTITY) != 0)
        return keel_fail(KEEL_MISMATCH, "step %llu is of another job", (unsigned long long)info->step);
    KEEL_TRY(keel_snapshot_open(heat->store, info->step, info->attempt, &snapshot));
    enum keel_status status =
        keel_snapshot_read(snapshot, &plate_region, heat->now, CELLS * sizeof *heat->now);
    keel_snapshot_close(snapshot);
    return status;
}

/* From the newest snapshot that is sound; from the beginning when there is none at all. What is not damage, a
 * disk that does not answer or a store of another job, ends the program: beginning anew would be no help. */
static enum keel_status resume(struct heat *heat)
{
    struct keel_snapshot_info infos[LISTED];
    uint32_t count = 0, damaged = 0;
    KEEL_TRY(keel_store_list(heat->store, infos, LISTED, &count, &damaged));
    for (uint32_t i = 0; i < count; i++) {
        enum keel_status status = load(heat, &infos[i]);
        if (status == KEEL_OK) {
            heat->step = infos[i].step;
            fprintf(stderr, "heat: going on from step %llu\n", (unsigned long long)heat->step);
            return KEEL_OK;
        }
        if (status != KEEL_CORRUPT)
            return status;
        complain("a snapshot is damaged, trying an older one", status);
    }
    if (count + damaged > 0)
        return keel_fail(KEEL_CORRUPT, "no snapshot is sound; see keel ckpt repair, or give another STORE");
    set_hot_spot(heat->now);
    return KEEL_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void run(struct heat *heat, uint64_t steps, uint64_t every)
{
    while (heat->step < steps) {
        spread(heat->now, heat->next);
        let_capture(heat);
        double *other = heat->now;
        heat->now = heat->next;
        heat->next = other;
        heat->step++;
        if (heat->save != NULL && keel_save_done(heat->save))
            end_save(heat);
        if (heat->step % every == 0 || heat->step == steps) {
            end_save(heat);
            begin_save(heat);
        }
    }
    end_save(heat);
}

static int write_plate(const char *path, const double *plate)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(plate, sizeof *plate, CELLS, file) != CELLS || fclose(file) != 0) {
        perror(path);
        return 1;
    }
    return 0;
}

/* A whole number, and nothing else. */
static bool parse(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

int main(int argc, char **argv)
{
    uint64_t steps = 0, every = 0;
    if (argc < 4 || argc > 5 || !parse(argv[2], &steps) || !parse(argv[3], &every) || every == 0) {
        fprintf(stderr, "usage: heat STORE STEPS EVERY [FILE]\n");
        return 2;
    }
    static double plates[2][CELLS];
    struct heat heat = {.now = plates[0], .next = plates[1]};
    const struct keel_store_config config = {.root = argv[1], .run = "heat", .create = true};
    enum keel_status status = keel_store_open(&config, &heat.store);
    if (status == KEEL_OK)
        status = resume(&heat);
    if (status != KEEL_OK) {
        complain("cannot start", status);
        return keel_status_exit_code(status);
    }
    run(&heat, steps, every);
    keel_store_close(heat.store);
    return argc > 4 ? write_plate(argv[4], heat.now) : 0;
}
