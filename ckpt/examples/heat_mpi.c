/* heat_mpi.c - the plate of heat.c, its rows dealt out to the ranks of MPI; any number of ranks goes on from
 * what any other number has saved.
 *
 * An example for libkeel-ckpt, to be copied from. Each rank saves its rows into a shard of its own; the
 * summaries reach rank 0, which commits, through the two MPI calls in struct keel_ranks. All ranks take the
 * same decisions, so no rank ever waits in a collective call that another one does not make.
 *
 *     mpicc heat_mpi.c $(pkg-config --cflags --libs keel-ckpt) -o heat_mpi
 *     mpirun -n 4 ./heat_mpi STORE STEPS EVERY       # STORE: a directory that all ranks see */
#include <errno.h>
#include <keel/ckpt.h>
#include <keel/clock.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 384, LISTED = 16 };
#define IDENTITY "heat-384"           /* the job is that of heat.c: either goes on with the other's store */
#define LIMIT_NS (60 * KEEL_NS_PER_S) /* nothing waits longer */

struct heat {
    int rank, ranks;
    int first, rows;    /* of the plate, those of this rank */
    double *now, *next; /* rows + 2 rows each: the neighbours' outermost rows before and behind ours */
    uint64_t step;
    struct keel_store *store;
    struct keel_region region; /* our rows in the whole plate */
    struct keel_save *save;
    bool saving; /* on all ranks, though on some it may have failed to begin */
    struct keel_commit saved;
    const double *captured; /* our rows that the save reads */
};

/* ---- physics ------------------------------------------------------------------------------------------- */

static void set_hot_spot(struct heat *heat)
{
    for (int row = 0; row < heat->rows; row++)
        for (int column = 0; column < SIDE; column++) {
            int x = column - SIDE / 3, y = heat->first + row - SIDE / 4;
            heat->now[(row + 1) * SIDE + column] = x * x + y * y < SIDE ? 1000.0 : 20.0;
        }
}

static void exchange_rims(struct heat *heat)
{
    double *first = heat->now + SIDE, *last = heat->now + heat->rows * SIDE;
    int before = heat->rank > 0 ? heat->rank - 1 : MPI_PROC_NULL;
    int behind = heat->rank + 1 < heat->ranks ? heat->rank + 1 : MPI_PROC_NULL;
    MPI_Sendrecv(first, SIDE, MPI_DOUBLE, before, 0, last + SIDE, SIDE, MPI_DOUBLE, behind, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(last, SIDE, MPI_DOUBLE, behind, 1, heat->now, SIDE, MPI_DOUBLE, before, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
}

static void spread(const struct heat *heat)
{
    for (int row = 1; row <= heat->rows; row++)
        for (int x = 0; x < SIDE; x++) {
            const double *from = heat->now + row * SIDE + x;
            int y = heat->first + row - 1;
            if (x == 0 || y == 0 || x == SIDE - 1 || y == SIDE - 1)
                heat->next[row * SIDE + x] = *from; /* the rim keeps its temperature */
            else
                heat->next[row * SIDE + x] =
                    *from + 0.2 * (((from[-SIDE] + from[SIDE]) + (from[-1] + from[1])) - 4 * *from);
        }
}

/* ---- snapshots ----------------------------------------------------------------------------------------- */

static enum keel_status gather(void *context, const void *mine, size_t bytes, void *all)
{
    (void)context;
    int count = (int)bytes,
        result = MPI_Gather(mine, count, MPI_BYTE, all, count, MPI_BYTE, 0, MPI_COMM_WORLD);
    return result == MPI_SUCCESS ? KEEL_OK : keel_fail(KEEL_PEER_LOST, "MPI_Gather: error %d", result);
}

static enum keel_status broadcast(void *context, void *data, size_t bytes)
{
    (void)context;
    int result = MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    return result == MPI_SUCCESS ? KEEL_OK : keel_fail(KEEL_PEER_LOST, "MPI_Bcast: error %d", result);
}

static void complain(const struct heat *heat, const char *what, enum keel_status status)
{
    fprintf(stderr, "heat: rank %d: %s: %s: %s\n", heat->rank, what, keel_status_text(status), keel_detail());
}

/* True when it is on all ranks. */
static bool all_agree(bool mine)
{
    int agreed = mine;
    MPI_Allreduce(MPI_IN_PLACE, &agreed, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    return agreed != 0;
}

static enum keel_status read_rows(void *context, uint32_t index, uint64_t offset, uint64_t bytes, void *out)
{
    const struct heat *heat = context;
    (void)index; /* there is one region */
    memcpy(out, (const char *)heat->captured + offset, bytes);
    return KEEL_OK;
}

static void begin_save(struct heat *heat)
{
    uint64_t attempt = keel_wall_ns(); /* never the same twice, and on all ranks the same */
    MPI_Bcast(&attempt, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    const struct keel_save_config config = {.step = heat->step,
                                            .attempt = attempt,
                                            .rank = (uint32_t)heat->rank,
                                            .rank_count = (uint32_t)heat->ranks,
                                            .codec = KEEL_CODEC_PLANES,
                                            .regions = &heat->region,
                                            .region_count = 1,
                                            .read = read_rows,
                                            .context = heat};
    heat->captured = heat->now + SIDE;
    heat->saved = (struct keel_commit){.step = heat->step, .attempt = attempt, .identity = IDENTITY};
    heat->saving = true;
    enum keel_status status = keel_save_begin(heat->store, &config, &heat->save);
    if (status != KEEL_OK)
        complain(heat, "cannot save, going on", status);
}

/* Before the rows that the save reads are written over. */
static void let_capture(struct heat *heat)
{
    if (heat->save == NULL ||
        keel_save_wait_captured(heat->save, keel_deadline_after_ns(LIMIT_NS)) == KEEL_OK)
        return;
    complain(heat, "a save failed, going on", KEEL_INTERRUPTED);
    keel_save_cancel(heat->save);
    heat->save = NULL;
}

/* Collective. */
static void end_save(struct heat *heat)
{
    if (!heat->saving)
        return;
    const struct keel_retention retention = {.keep_last = 2};
    const struct keel_ranks ranks = {.rank = (uint32_t)heat->rank,
                                     .rank_count = (uint32_t)heat->ranks,
                                     .gather = gather,
                                     .broadcast = broadcast};
    enum keel_status status =
        keel_save_commit(heat->store, heat->save, &heat->saved, &ranks, keel_deadline_after_ns(LIMIT_NS));
    if (status == KEEL_OK && heat->rank == 0)
        status = keel_store_retain(heat->store, &retention, NULL);
    if (status != KEEL_OK && heat->rank == 0)
        complain(heat, "a save failed, going on", status);
    heat->save = NULL;
    heat->saving = false;
}

static enum keel_status load(struct heat *heat, const struct keel_snapshot_info *info)
{
    struct keel_snapshot *snapshot;
    if (strcmp(info->identity, IDENTITY) != 0)
        return keel_fail(KEEL_MISMATCH, "step %llu is of another job", (unsigned long long)info->step);
    KEEL_TRY(keel_snapshot_open(heat->store, info->step, info->attempt, &snapshot));
    enum keel_status status = /* our rows, whoever has saved them */
        keel_snapshot_read(snapshot, &heat->region, heat->now + SIDE, keel_region_bytes(&heat->region));
    keel_snapshot_close(snapshot);
    return status;
}

/* Rank 0 says which snapshots there are; the newest one that all ranks can read is taken. What is not damage,
 * a disk that does not answer or a store of another job, ends the program: beginning anew would be no help.
 */
static enum keel_status resume(struct heat *heat)
{
    struct keel_snapshot_info infos[LISTED];
    uint32_t counts[2] = {0, 0}; /* sound manifests, damaged ones */
    enum keel_status status = KEEL_OK;
    if (heat->rank == 0)
        status = keel_store_list(heat->store, infos, LISTED, &counts[0], &counts[1]);
    if (!all_agree(status == KEEL_OK))
        return status == KEEL_OK ? keel_fail(KEEL_PEER_LOST, "rank 0 cannot list the store") : status;
    MPI_Bcast(counts, 2, MPI_UINT32_T, 0, MPI_COMM_WORLD);
    MPI_Bcast(infos, (int)sizeof infos, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (uint32_t i = 0; i < counts[0]; i++) {
        status = load(heat, &infos[i]);
        if (all_agree(status == KEEL_OK)) {
            heat->step = infos[i].step;
            if (heat->rank == 0)
                fprintf(stderr, "heat: going on from step %llu, saved by %u ranks, with %d\n",
                        (unsigned long long)heat->step, infos[i].shard_count, heat->ranks);
            return KEEL_OK;
        }
        if (!all_agree(status == KEEL_OK || status == KEEL_CORRUPT))
            return status == KEEL_OK ? keel_fail(KEEL_PEER_LOST, "another rank cannot read the store")
                                     : status;
        if (status == KEEL_CORRUPT)
            complain(heat, "a snapshot is damaged, trying an older one", status);
    }
    if (counts[0] + counts[1] > 0)
        return keel_fail(KEEL_CORRUPT, "no snapshot is sound; see keel ckpt repair, or give another STORE");
    set_hot_spot(heat);
    return KEEL_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------- */

static void run(struct heat *heat, uint64_t steps, uint64_t every)
{
    while (heat->step < steps) {
        exchange_rims(heat);
        spread(heat);
        let_capture(heat);
        double *other = heat->now;
        heat->now = heat->next;
        heat->next = other;
        heat->step++;
        if (heat->step % every == 0 || heat->step == steps) {
            end_save(heat); /* the one before, which had `every` steps of time */
            begin_save(heat);
        }
    }
    let_capture(heat);
    end_save(heat);
}

/* Rows as even as can be. */
static void take_part(struct heat *heat)
{
    static double plates[2][(SIDE + 2) * SIDE]; /* enough for one rank that has all rows */
    MPI_Comm_rank(MPI_COMM_WORLD, &heat->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &heat->ranks);
    heat->first = SIDE * heat->rank / heat->ranks;
    heat->rows = SIDE * (heat->rank + 1) / heat->ranks - heat->first;
    heat->now = plates[0];
    heat->next = plates[1];
    heat->region = (struct keel_region){.name = "plate",
                                        .dtype = KEEL_CKPT_F64,
                                        .dims = 2,
                                        .shape = {SIDE, SIDE},
                                        .offset = {(uint64_t)heat->first, 0},
                                        .extent = {(uint64_t)heat->rows, SIDE}};
}

static int give_up(const struct heat *heat, enum keel_status status)
{
    if (status != KEEL_OK)
        complain(heat, "cannot start", status);
    int code = status != KEEL_OK ? keel_status_exit_code(status) : 1; /* another rank failed, and says why */
    MPI_Abort(MPI_COMM_WORLD, code);
    return code;
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
    struct heat heat = {0};
    MPI_Init(&argc, &argv);
    uint64_t steps = 0, every = 0;
    bool understood = argc == 4 && parse(argv[2], &steps) && parse(argv[3], &every) && every > 0;
    take_part(&heat);
    if (!understood || heat.ranks > SIDE)
        return give_up(&heat, keel_fail(KEEL_INVALID,
                                        "usage: mpirun -n RANKS heat_mpi STORE STEPS EVERY; at "
                                        "most %d ranks",
                                        SIDE));
    const struct keel_store_config config = {.root = argv[1], .run = "heat", .create = true};
    enum keel_status status = keel_store_open(&config, &heat.store);
    if (!all_agree(status == KEEL_OK) || (status = resume(&heat)) != KEEL_OK)
        return give_up(&heat, status);
    run(&heat, steps, every);
    keel_store_close(heat.store);
    MPI_Finalize();
    return 0;
}
