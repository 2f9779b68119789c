/* snapshot_load.c - reading boxes: threads take batches of the plan in order, and each chunk's rows go from
 * where it was decoded to where they are wanted.
 *
 * A chunk that is damaged ends nothing yet: what it should have brought is planned again from other pieces
 * that hold it, round after round, until all is there or nobody has it. Anything else that fails ends all.
 *
 * Memory: the plan (load_plan.h), and 10 MiB a thread (chunk_batch.h). */
#include "chunk_batch.h"
#include "codec.h"
#include "load_plan.h"
#include <keel/log.h>
#include <keel/memory.h>
#include <stdio.h>
#include <string.h>

enum { THREADS_MAX = 64, DEFAULT_THREADS_MAX = 16, FAILURES_MAX = 1 << 16, REASONS_MAX = 256 };
/* Less than this is better read through the page cache, which may hold it. */
static const uint64_t direct_from_bytes = UINT64_C(16) << 20;

/* What was wrong with a chunk, and what it should have brought. */
struct reason {
    enum keel_status status;
    char detail[KEEL_DETAIL_BYTES];
};
struct failure {
    struct keel_load_use use;
    uint32_t reason;
};

struct run {
    struct keel_snapshot *snapshot;
    struct keel_load_plan plan; /* owned; constant while threads run */
    const struct keel_load_config *config;
    bool direct;
    uint64_t room_bytes; /* of a thread's batch */

    struct keel_mutex lock; /* guards: */
    size_t next_use;
    bool stopping;
    enum keel_status error; /* the first one */
    char error_detail[KEEL_DETAIL_BYTES];
    struct failure *failures; /* owned */
    struct reason *reasons;   /* owned */
    size_t failure_count, reason_count;
    uint64_t done_bytes, read_bytes, base_bytes;
};

/* One thread's. */
struct worker {
    struct run *run;
    struct keel_batch_reader reader;
    uint32_t chunks[KEEL_BATCH_CHUNKS_MAX];
    size_t first_use[KEEL_BATCH_CHUNKS_MAX + 1]; /* of each chunk of the batch */
    uint64_t done_bytes;                         /* of this batch */
    struct keel_thread thread;
    bool started;
};

/* ---- scatter ------------------------------------------------------------------------------------------- */

/* How many leading dimensions must be walked: the others are contiguous in both boxes. */
static uint32_t outer_dims(const struct keel_box *part, const struct keel_box *a, const struct keel_box *b,
                           uint32_t dims, uint64_t *out_row_elements)
{
    uint64_t row = 1;
    uint32_t outer = dims;
    while (outer > 0) {
        outer--;
        row *= part->extent[outer];
        if (part->extent[outer] != a->extent[outer] || part->extent[outer] != b->extent[outer])
            break;
    }
    *out_row_elements = row;
    return outer;
}

/* Elements [from, to) of a piece, as they are or to be rounded. */
struct elements {
    const uint8_t *data; /* of element data_from */
    uint64_t data_from, from, to;
    enum keel_ckpt_dtype dtype, wanted_dtype;
};

static void put(const struct elements *elements, uint64_t index, uint64_t count, uint8_t *out)
{
    const uint8_t *data =
        elements->data + (index - elements->data_from) * keel_ckpt_dtype_bytes(elements->dtype);
    if (elements->dtype == elements->wanted_dtype)
        memcpy(out, data, keel_size(count * keel_ckpt_dtype_bytes(elements->dtype)));
    else
        keel_codec_round(elements->wanted_dtype, elements->dtype, data, keel_size(count), out);
}

/* Row by row, those of the elements that are in `part`, into the dense box `into`. Returns how many bytes. */
static uint64_t scatter(const struct elements *elements, const struct keel_box *held,
                        const struct keel_box *part, const struct keel_box *into, uint32_t dims, uint8_t *out)
{
    uint64_t at[KEEL_TENSOR_DIMS_MAX], row, done = 0, size = keel_ckpt_dtype_bytes(elements->wanted_dtype);
    uint32_t outer = outer_dims(part, held, into, dims, &row);
    if (keel_box_next(held, part, dims, elements->from, at) >= elements->to)
        return 0;
    for (uint32_t i = outer; i < dims; i++)
        at[i] = part->offset[i]; /* to the begin of its row */
    do {
        uint64_t begin = keel_box_index(held, at, dims);
        uint64_t from = begin > elements->from ? begin : elements->from;
        uint64_t to = begin + row < elements->to ? begin + row : elements->to;
        if (begin >= elements->to)
            break;
        put(elements, from, to - from, out + (keel_box_index(into, at, dims) + (from - begin)) * size);
        done += (to - from) * size;
    } while (keel_box_step(part, dims, outer, at));
    return done;
}

static uint64_t scatter_use(const struct keel_load_plan *plan, const struct keel_load_use *use,
                            const uint8_t *raw)
{
    const struct keel_load_part *part = &plan->parts[use->part];
    const struct keel_load *load = &plan->loads[part->load];
    const struct keel_shard *shard = &plan->snapshot->shards[use->shard];
    const struct keel_format_record *stored = keel_shard_record_of(shard, use->chunk);
    struct elements elements = {
        .data = raw, .dtype = (enum keel_ckpt_dtype)stored->dtype, .wanted_dtype = load->box.dtype};
    elements.data_from =
        (use->chunk - stored->first_chunk) * (stored->chunk_bytes / keel_ckpt_dtype_bytes(elements.dtype));
    keel_load_use_range(plan, use, &elements.from, &elements.to);
    struct keel_box held = keel_record_box(&plan->snapshot->shards[part->shard].records[part->record]);
    struct keel_box into = keel_box_of(&load->box);
    return scatter(&elements, &held, &part->box, &into, load->box.dims, load->out);
}

/* ---- batches ------------------------------------------------------------------------------------------- */

/* Another copy may have it: what is wrong is with this one's file. */
static bool may_be_elsewhere(enum keel_status status)
{
    return status == KEEL_CORRUPT || status == KEEL_FORGED || status == KEEL_IO;
}

static enum keel_status note_failure(struct run *run, enum keel_status reason, size_t first, size_t behind)
{
    size_t count = behind - first;
    enum keel_status status = KEEL_OK;
    keel_mutex_lock(&run->lock);
    if (run->failure_count + count > FAILURES_MAX || run->reason_count == REASONS_MAX)
        status = reason; /* too many: this one ends all */
    if (status == KEEL_OK && run->reasons == NULL)
        status = keel_alloc(REASONS_MAX, sizeof *run->reasons, &run->reasons);
    if (status == KEEL_OK)
        status = keel_realloc(&run->failures, run->failure_count, run->failure_count + count,
                              sizeof *run->failures);
    if (status == KEEL_OK) {
        for (size_t i = first; i < behind; i++)
            run->failures[run->failure_count++] =
                (struct failure){run->plan.uses[i], (uint32_t)run->reason_count};
        run->reasons[run->reason_count].status = reason;
        snprintf(run->reasons[run->reason_count++].detail, KEEL_DETAIL_BYTES, "%s", keel_detail());
    }
    keel_mutex_unlock(&run->lock);
    return status;
}

static enum keel_status take_chunk(void *context, uint32_t index, enum keel_status status, const uint8_t *raw)
{
    struct worker *worker = context;
    size_t first = worker->first_use[index], behind = worker->first_use[index + 1];
    if (status != KEEL_OK)
        return may_be_elsewhere(status) ? note_failure(worker->run, status, first, behind) : status;
    for (size_t i = first; i < behind; i++)
        worker->done_bytes += scatter_use(&worker->run->plan, &worker->run->plan.uses[i], raw);
    return KEEL_OK;
}

/* The next chunks of the plan, all of one shard; 0 when there are none left, or all is to end. */
static uint32_t take_batch(struct worker *worker)
{
    struct run *run = worker->run;
    const struct keel_load_plan *plan = &run->plan;
    uint32_t count = 0;
    keel_mutex_lock(&run->lock);
    size_t use = run->stopping ? plan->use_count : run->next_use;
    while (use < plan->use_count && count < KEEL_BATCH_CHUNKS_MAX &&
           (count == 0 || plan->uses[use].shard == plan->uses[run->next_use].shard)) {
        worker->first_use[count] = use;
        worker->chunks[count++] = plan->uses[use].chunk;
        use += keel_load_plan_uses(plan, use);
    }
    worker->first_use[count] = use;
    if (count > 0) {
        count =
            keel_batch_fit(&run->snapshot->shards[plan->uses[run->next_use].shard], worker->chunks, count);
        run->next_use = worker->first_use[count];
    }
    keel_mutex_unlock(&run->lock);
    return count;
}

static void end_batch(struct worker *worker, enum keel_status status)
{
    struct run *run = worker->run;
    const struct keel_load_config *config = run->config;
    keel_mutex_lock(&run->lock);
    run->done_bytes += worker->done_bytes;
    if (status != KEEL_OK && run->error == KEEL_OK) {
        run->error = status;
        snprintf(run->error_detail, sizeof run->error_detail, "%s", keel_detail());
    }
    run->stopping = run->stopping || status != KEEL_OK;
    if (status == KEEL_OK && worker->done_bytes > 0 && config != NULL && config->progress != NULL)
        config->progress(config->context, run->done_bytes, run->plan.wanted_bytes);
    keel_mutex_unlock(&run->lock);
    worker->done_bytes = 0;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct run *run = worker->run;
    enum keel_status status = keel_batch_reader_init(&worker->reader, run->snapshot, run->direct,
                                                     run->room_bytes, run->plan.use_count);
    if (status != KEEL_OK) {
        end_batch(worker, status);
        return NULL;
    }
    uint32_t count;
    while ((count = take_batch(worker)) > 0) {
        const struct keel_shard *shard = &run->snapshot->shards[run->plan.uses[worker->first_use[0]].shard];
        end_batch(worker, keel_batch_read(&worker->reader, shard, worker->chunks, count, take_chunk, worker));
    }
    keel_mutex_lock(&run->lock);
    run->read_bytes += worker->reader.read_bytes;
    run->base_bytes += worker->reader.base_bytes;
    keel_mutex_unlock(&run->lock);
    keel_batch_reader_fini(&worker->reader);
    return NULL;
}

/* ---- rounds -------------------------------------------------------------------------------------------- */

static uint32_t thread_count(const struct run *run)
{
    uint32_t count = run->config != NULL ? run->config->threads : 0;
    uint64_t batches = run->plan.needed_bytes / KEEL_BATCH_BYTES_MAX + 1; /* more have nothing to do */
    if (count == 0) {
        count = keel_cpu_count();
        count = count < DEFAULT_THREADS_MAX ? count : DEFAULT_THREADS_MAX;
    }
    count = count < THREADS_MAX ? count : THREADS_MAX;
    return count < batches ? count : (uint32_t)batches;
}

/* Of the whole plan, or as much as a batch ever needs. */
static uint64_t batch_room(const struct run *run)
{
    uint64_t bytes = 0;
    const struct keel_load_plan *plan = &run->plan;
    for (size_t i = 0; i < plan->use_count && bytes < KEEL_BATCH_BYTES_MAX; i += keel_load_plan_uses(plan, i))
        bytes += keel_batch_room(&run->snapshot->shards[plan->uses[i].shard].chunks[plan->uses[i].chunk]);
    return bytes;
}

/* The caller is one of the threads; those that the system refuses are done without. */
static enum keel_status run_round(struct run *run, struct worker *workers, uint32_t count)
{
    run->next_use = 0;
    run->room_bytes = batch_room(run);
    for (uint32_t i = 0; i < count; i++)
        workers[i] = (struct worker){.run = run};
    for (uint32_t i = 1; i < count; i++)
        workers[i].started =
            keel_thread_create(&workers[i].thread, "keel-load", work, &workers[i]) == KEEL_OK;
    work(&workers[0]);
    for (uint32_t i = 1; i < count; i++)
        if (workers[i].started)
            keel_thread_join(&workers[i].thread);
    if (run->error != KEEL_OK)
        keel_detail_set(run->error_detail);
    return run->error;
}

/* Plan again what failed. When nobody else has it, what was wrong with it first is the error. */
static enum keel_status plan_again(struct run *run)
{
    struct keel_load_use *uses;
    size_t count = run->failure_count, index = 0;
    KEEL_TRY(keel_alloc(count, sizeof *uses, &uses));
    for (size_t i = 0; i < count; i++)
        uses[i] = run->failures[i].use;
    enum keel_status status = keel_load_plan_again(&run->plan, uses, count, &index);
    keel_free(uses);
    if (status == KEEL_CORRUPT) {
        const struct reason *reason = &run->reasons[run->failures[index].reason];
        keel_detail_set(reason->detail);
        return reason->status;
    }
    KEEL_TRY(status);
    for (size_t i = 0; i < run->reason_count; i++) {
        const char *detail = run->reasons[i].detail, *end = strstr(detail, "; use another");
        keel_log(KEEL_LOG_WARN, "%.*s; another copy of it is read",
                 (int)(end != NULL ? (size_t)(end - detail) : strlen(detail)), detail);
    }
    keel_free(run->failures);
    run->failures = NULL;
    run->failure_count = run->reason_count = 0;
    return KEEL_OK;
}

static enum keel_status run_all(struct run *run, uint32_t threads)
{
    struct worker *workers;
    KEEL_TRY(keel_alloc(threads, sizeof *workers, &workers));
    enum keel_status status = run_round(run, workers, threads);
    while (status == KEEL_OK && run->failure_count > 0) {
        status = plan_again(run);
        if (status == KEEL_OK)
            status = run_round(run, workers, threads);
    }
    keel_free(workers);
    return status;
}

/* The merged index led nowhere, or a shard is damaged: all indexes say which. */
static enum keel_status load_whole(struct keel_snapshot *snapshot, const struct keel_load *loads,
                                   uint32_t count, const struct keel_load_config *config,
                                   struct keel_load_stats *out_stats)
{
    struct keel_snapshot *whole;
    if (!keel_snapshot_is_whole(snapshot)) /* said once */
        keel_log(KEEL_LOG_WARN, "%s (the indexes of all shards are read instead)", keel_detail());
    KEEL_TRY(keel_snapshot_whole(snapshot, &whole));
    return keel_snapshot_load(whole, loads, count, config, out_stats);
}

enum keel_status keel_snapshot_load(struct keel_snapshot *snapshot, const struct keel_load *loads,
                                    uint32_t count, const struct keel_load_config *config,
                                    struct keel_load_stats *out_stats)
{
    struct run run = {.snapshot = snapshot, .config = config};
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(loads != NULL || count == 0);
    for (uint32_t i = 0; i < count; i++)
        KEEL_ASSERT(loads[i].out != NULL || keel_region_bytes(&loads[i].box) == 0);
    const enum keel_status planned = keel_load_plan_make(snapshot, loads, count, &run.plan);
    if (planned == KEEL_CORRUPT && snapshot->merged != NULL)
        return load_whole(snapshot, loads, count, config, out_stats);
    KEEL_TRY(planned);
    struct keel_load_stats stats = {.wanted_bytes = run.plan.wanted_bytes};
    run.direct = run.plan.needed_bytes >= direct_from_bytes;
    keel_mutex_init(&run.lock);
    enum keel_status status = run.plan.use_count > 0 ? run_all(&run, thread_count(&run)) : KEEL_OK;
    keel_mutex_fini(&run.lock);
    stats.needed_bytes = run.plan.needed_bytes + run.base_bytes;
    stats.read_bytes = run.read_bytes;
    keel_free(run.failures);
    keel_free(run.reasons);
    keel_load_plan_fini(&run.plan);
    if (status == KEEL_OK && out_stats != NULL)
        *out_stats = stats;
    return status;
}

enum keel_status keel_snapshot_read(struct keel_snapshot *snapshot, const struct keel_region *box, void *out,
                                    uint64_t out_bytes)
{
    KEEL_ASSERT(snapshot != NULL && snapshot->handle == KEEL_HANDLE_OPEN);
    KEEL_ASSERT(box != NULL && (out != NULL || out_bytes == 0));
    KEEL_TRY(keel_region_check(box));
    if (keel_region_bytes(box) != out_bytes)
        return keel_fail(KEEL_INVALID, "tensor %s: the box has %llu bytes, the memory %llu", box->name,
                         (unsigned long long)keel_region_bytes(box), (unsigned long long)out_bytes);
    struct keel_load load = {.box = *box, .out = out};
    struct keel_load_config config = {.threads = 1};
    return keel_snapshot_load(snapshot, &load, 1, &config, NULL);
}

enum keel_status keel_snapshot_read_elements(struct keel_snapshot *snapshot, const struct keel_region *box,
                                             uint64_t first, uint64_t count, void *out)
{
    struct keel_box parts[KEEL_BOX_RANGE_MAX];
    struct keel_load loads[KEEL_BOX_RANGE_MAX];
    const struct keel_box whole = keel_box_of(box);
    const uint64_t size = keel_ckpt_dtype_bytes(box->dtype);
    KEEL_ASSERT(count > 0);
    uint32_t part_count = keel_box_range(&whole, box->dims, first, first + count, parts);
    for (uint32_t i = 0; i < part_count; i++) { /* each lies dense in the run, in any order */
        uint64_t at = keel_box_index(&whole, parts[i].offset, box->dims) - first;
        loads[i] = (struct keel_load){.box = *box, .out = (uint8_t *)out + at * size};
        memcpy(loads[i].box.offset, parts[i].offset, sizeof parts[i].offset);
        memcpy(loads[i].box.extent, parts[i].extent, sizeof parts[i].extent);
    }
    return keel_snapshot_load(snapshot, loads, part_count, NULL, NULL);
}
