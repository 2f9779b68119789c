/* data_teacher.c - a recommendation set that needs no file: features are drawn, and a fixed random teacher
 * says how likely a click is.
 *
 * A sample has `dense` numbers, about normal, and for each of `tables` features one to `bag` categories, the
 * first ones far more popular than the last (id = categories x u^3 of a uniform u); absent ones are -1. The
 * teacher's logit is linear in the numbers, has a weight for each category, and a product between
 * neighbouring features, which a model without interactions cannot learn. The label is drawn by the sigmoid
 * of it. All by the counter-based generator and canonical functions: the same on every machine. */
#include "data_reader.h"
#include <keel/kernels.h>
#include <keel/memory.h>

enum { DENSE_STREAM = 4, CATEGORY_STREAM, LABEL_STREAM, TEACHER_STREAM, TEACHER_VERSION = 1 };
#define VALIDATION_ITEM (UINT64_C(1) << 40) /* items from here on are validated with */

struct teacher {
    uint32_t dense, tables, bag;
    uint32_t rows[KEEL_JOB_TABLES_MAX],
        first[KEEL_JOB_TABLES_MAX]; /* of each table: how many, and from where */
    float *weights;                 /* of the numbers; owned */
};

/* About standard normal: four uniform numbers of 16 bits, scaled to variance 1 (their sum's is 1/3). */
static float normal(uint64_t draw)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 4; i++)
        sum += (uint32_t)(draw >> (16 * i)) & 0xffff;
    return ((float)sum - 131070.0f) * (1.7320508f / 65536.0f);
}

enum keel_status keel_click_check_rows(const struct keel_job *job)
{
    uint32_t rows[KEEL_JOB_TABLES_MAX];
    uint64_t all = 0;
    keel_job_tables(job, rows);
    for (uint32_t t = 0; t < job->tables; t++)
        all += rows[t];
    if (all <= INT32_MAX)
        return KEEL_OK;
    return keel_fail(KEEL_INVALID,
                     "model.tables = %u of model.categories = %u: more rows than an id counts; use fewer",
                     job->tables, job->categories);
}

void keel_click_declare(struct keel_data *data, const struct keel_job *job)
{
    const uint64_t dense = job->dense, bag = job->bag, one = 1;
    keel_data_add_input(data, "dense", KEEL_F32, 1, 1, &dense);
    keel_data_add_input(data, "ids", KEEL_I32, job->tables, 1, &bag);
    keel_data_add_input(data, "labels", KEEL_F32, 1, 1, &one);
}

static enum keel_status open_teacher(struct keel_data *data, const struct keel_job *job)
{
    struct teacher *teacher;
    KEEL_TRY(keel_alloc(1, sizeof *teacher, &teacher));
    data->own = teacher;
    *teacher = (struct teacher){.dense = job->dense, .tables = job->tables, .bag = job->bag};
    KEEL_TRY(keel_alloc(job->dense, sizeof(float), &teacher->weights));
    for (uint32_t d = 0; d < job->dense; d++)
        teacher->weights[d] = normal(keel_data_draw(0, TEACHER_STREAM, d));
    data->train_count = job->samples;
    data->val_count = KEEL_DATA_DRAWN;
    data->digest = TEACHER_VERSION;
    if (data->use != NULL && data->use->val_path != NULL)
        return keel_fail(KEEL_UNSUPPORTED,
                         "%s: this dlrm reads no file: its samples are drawn (data.format = criteo, csv do)",
                         data->use->val_path);
    KEEL_TRY(keel_click_check_rows(job));
    keel_job_tables(job, teacher->rows);
    for (uint32_t t = 1; t < job->tables; t++)
        teacher->first[t] = teacher->first[t - 1] + teacher->rows[t - 1];
    keel_click_declare(data, job);
    return KEEL_OK;
}

static void close_teacher(struct keel_data *data)
{
    struct teacher *teacher = data->own;
    if (teacher != NULL)
        keel_free(teacher->weights);
    keel_free(teacher);
}

/* Rows of all tables are numbered through. */
static uint32_t draw_id(const struct teacher *teacher, uint32_t table, uint64_t draw)
{
    uint64_t u = draw >> 43; /* 21 bits, so that the cube fits */
    uint32_t id = (uint32_t)(((u * u >> 21) * u >> 21) * teacher->rows[table] >> 21);
    return teacher->first[table] + id;
}

/* Ids of one feature; returns the means of the teacher's weight and factor over them. */
static void fill_bag(const struct teacher *teacher, uint64_t key, uint32_t table, int32_t *ids, float out[2])
{
    uint32_t count = 1 + keel_data_below(keel_data_draw(key, table, teacher->bag), teacher->bag);
    out[0] = out[1] = 0.0f;
    for (uint32_t i = 0; i < teacher->bag; i++) {
        ids[i] = i < count ? (int32_t)draw_id(teacher, table, keel_data_draw(key, table, i)) : -1;
        if (i >= count)
            continue;
        uint64_t of_row = keel_data_draw(1, TEACHER_STREAM, (uint64_t)ids[i]);
        out[0] += normal(of_row) / (float)count;
        out[1] += normal(keel_data_draw(of_row, 0, 0)) / (float)count;
    }
}

static enum keel_status fill_sample(const struct keel_data *data, const struct keel_sample *sample,
                                    uint32_t slot, void *const *inputs)
{
    const struct teacher *teacher = data->own;
    float *dense = (float *)inputs[0] + (size_t)slot * teacher->dense;
    int32_t *ids = (int32_t *)inputs[1] + (size_t)slot * teacher->tables * teacher->bag;
    uint64_t item = sample->item + (sample->validation ? VALIDATION_ITEM : 0);
    uint64_t key = keel_data_draw(data->seed, DENSE_STREAM, item);
    float logit = 0.0f, before = 0.0f;
    for (uint32_t d = 0; d < teacher->dense; d++) {
        dense[d] = normal(keel_data_draw(key, 0, d));
        logit += dense[d] * teacher->weights[d] * 0.5f;
    }
    key = keel_data_draw(data->seed, CATEGORY_STREAM, item);
    for (uint32_t t = 0; t < teacher->tables; t++) {
        float part[2];
        fill_bag(teacher, key, t, ids + (size_t)t * teacher->bag, part);
        logit += part[0] + before * part[1];
        before = part[1];
    }
    float uniform = (float)(keel_data_draw(data->seed, LABEL_STREAM, item) >> 40) / 16777216.0f;
    ((float *)inputs[2])[slot] = uniform < 1.0f / (1.0f + keel_canon_exp(-logit)) ? 1.0f : 0.0f;
    return KEEL_OK;
}

uint32_t keel_click_class_of(void *const *inputs, uint32_t row)
{
    return ((const float *)inputs[2])[row] > 0.5f;
}

bool keel_click_is_right(void *const *inputs, uint32_t row, const float *logits, uint32_t classes)
{
    (void)classes;
    return (logits[0] > 0.0f) == (keel_click_class_of(inputs, row) != 0);
}

const struct keel_reader keel_teacher_reader = {.open = open_teacher,
                                                .close = close_teacher,
                                                .fill = fill_sample,
                                                .is_right = keel_click_is_right,
                                                .class_of = keel_click_class_of};
