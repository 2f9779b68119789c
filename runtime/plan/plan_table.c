/* plan_table.c - see plan_table.h. */
#include "plan_table.h"
#include "axes.h"
#include "plan_internal.h"
#include <inttypes.h>
#include <keel/bits.h>
#include <stdio.h>
#include <string.h>

/* Bits of a number: the model's lowest, then the keys, then the release. */
enum { MODEL_BITS = 24, KEY_BITS = 24 };

/* Data positions of so many ranks. */
static uint32_t data_of(const struct keel_plan_model *model, uint32_t ranks, uint32_t tensor)
{
    const uint32_t most = ranks / tensor;
    return most < model->shards ? most : model->shards;
}

void keel_plan_of_run(const struct keel_plan_model *model, const struct keel_parallel *asked, uint32_t ranks,
                      struct keel_job_plan *out)
{
    const uint32_t tensor = keel_axes_tensor(ranks, asked->tensor), data = data_of(model, ranks, tensor);
    keel_plan_make(model, data, tensor, asked->zero > KEEL_ZERO_NONE ? asked->zero - KEEL_ZERO_NONE : 0,
                   asked->holders, asked->zero_group, out);
    out->spares = ranks - out->seats;
    out->fits = asked->memory_bytes == 0 || out->total_bytes <= asked->memory_bytes;
}

bool keel_plan_settle(const struct keel_plan_model *model, uint32_t ranks, struct keel_parallel *asked,
                      struct keel_job_plan *instead_of)
{
    struct keel_job_plan best;
    if (asked->memory_bytes == 0 || (asked->tensor != 0 && asked->zero != KEEL_ZERO_CHOSEN))
        return false;
    keel_plan_of_run(model, asked, ranks, instead_of);
    if (instead_of->fits || keel_plan_choose(model, asked, ranks, &best) != KEEL_OK)
        return false;
    asked->tensor = best.tensor;
    asked->zero = KEEL_ZERO_NONE + best.zero;
    return true;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

/* Its high bits are the better mixed ones. */
static uint64_t fold(uint64_t hash, uint32_t bits)
{
    return (hash ^ hash >> 32) >> 4 & ((UINT64_C(1) << bits) - 1);
}

uint64_t keel_plan_layout(const struct keel_engine *engine)
{
    uint64_t hash = KEEL_FNV1A_BEGIN;
    for (uint32_t i = 0; i < keel_engine_param_count(engine); i++) {
        const struct keel_engine_param *param = keel_engine_param(engine, i);
        hash = keel_fnv1a(hash, param->name, strlen(param->name) + 1);
        hash = keel_fnv1a(hash, param->whole, param->dims * sizeof param->whole[0]);
        hash = keel_fnv1a(hash, &param->statistic, sizeof param->statistic);
    }
    return hash;
}

/* `keys`: a digest of those that plans follow from. */
static uint64_t number_of(uint64_t keys, uint64_t layout, uint32_t ranks)
{
    const uint32_t release_bits = 64 - MODEL_BITS - KEY_BITS;
    const uint64_t release =
        fold(keel_fnv1a(KEEL_FNV1A_BEGIN, KEEL_RELEASE, sizeof KEEL_RELEASE), release_bits);
    uint64_t hash = keel_fnv1a(KEEL_FNV1A_BEGIN, &keys, sizeof keys);
    hash = keel_fnv1a(hash, &ranks, sizeof ranks);
    return (release | 1) << (MODEL_BITS + KEY_BITS) | fold(hash, KEY_BITS) << MODEL_BITS |
           fold(layout, MODEL_BITS);
}

uint64_t keel_plan_number(const struct keel_job *job, uint64_t layout, uint32_t ranks)
{
    return number_of(keel_job_plan_keys(job), layout, ranks);
}

const char *keel_plan_difference(uint64_t one, uint64_t other)
{
    const uint64_t differ = one ^ other;
    if (differ >> (MODEL_BITS + KEY_BITS) != 0)
        return "another release of Keel: end the run, and give its command again with one release";
    if (differ >> MODEL_BITS != 0)
        return "other keys of the job: DIR/job.conf was changed since the run began; end it, and give its "
               "command again";
    return "a model of another layout: end the run, and give its command again";
}

/* ---- the table ----------------------------------------------------------------------------------------- */

void keel_plan_table_make(const struct keel_plan_model *model, const struct keel_job *job, uint64_t layout,
                          uint32_t ranks, struct keel_plan_table *out)
{
    const uint64_t keys = keel_job_plan_keys(job);
    KEEL_ASSERT(ranks > 0 && ranks <= KEEL_MEMBERS_MAX);
    out->ranks = ranks;
    out->fewest = 0;
    memset(&out->instead_of, 0, sizeof out->instead_of);
    memset(out->numbers, 0, (ranks + 1) * sizeof out->numbers[0]);
    memset(&out->plans[0], 0, sizeof out->plans[0]);
    for (uint32_t n = ranks; n > 0; n--) {
        const uint32_t tensor = keel_axes_tensor(n, job->parallel.tensor);
        const struct keel_job_plan *above = n < ranks ? &out->plans[n + 1] : NULL;
        if (above != NULL && above->tensor == tensor && above->data == data_of(model, n, tensor)) {
            out->plans[n] = *above; /* with one fewer that carries no shard */
            out->plans[n].spares = n - above->seats;
        } else {
            keel_plan_of_run(model, &job->parallel, n, &out->plans[n]);
        }
        if (!out->plans[n].fits)
            continue;
        out->numbers[n] = number_of(keys, layout, n);
        out->fewest = n;
    }
}

enum keel_status keel_plan_table_check(const struct keel_plan_table *table,
                                       const struct keel_plan_model *model, const struct keel_parallel *asked)
{
    const struct keel_job_plan *plan = &table->plans[table->ranks];
    char kinds[160], nearest[96] = "";
    if (plan->fits)
        return KEEL_OK;
    keel_plan_describe_bytes(plan, kinds, sizeof kinds);
    keel_plan_name_nearest(model, asked, table->ranks, nearest, sizeof nearest);
    return keel_fail(KEEL_NO_MEMORY,
                     "parallel.memory = %" PRIu64 ": each of %" PRIu32 " ranks (data %" PRIu32
                     ", tensor %" PRIu32 ", zero %" PRIu32 ") needs %" PRIu64
                     " bytes: %s; %s (keel plan lists all that there are)",
                     asked->memory_bytes, table->ranks, plan->data, plan->tensor, plan->zero,
                     plan->total_bytes, kinds, nearest);
}
