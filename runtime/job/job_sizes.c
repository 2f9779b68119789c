/* job_sizes.c - sizes that a job gives as a list, as a recommendation model's: "512-256-64". */
#include "job_internal.h"
#include <string.h>

enum { SIZE_MAX_LOG2 = 24, DIGITS_MAX = 8 };

uint32_t keel_job_read_sizes(const char *text, uint32_t *out, uint32_t capacity)
{
    uint32_t count = 0;
    for (;; text++) {
        const size_t digits = strspn(text, "0123456789");
        uint32_t size = 0;
        if (digits == 0 || digits > DIGITS_MAX || count == capacity)
            return 0;
        for (size_t i = 0; i < digits; i++)
            size = 10 * size + (uint32_t)(text[i] - '0');
        if (size == 0 || size > 1U << SIZE_MAX_LOG2)
            return 0;
        out[count++] = size;
        text += digits;
        if (*text != '-')
            return *text == '\0' ? count : 0;
    }
}

void keel_job_tables(const struct keel_job *job, uint32_t out[KEEL_JOB_TABLES_MAX])
{
    if (job->table_rows[0] != '\0') {
        const uint32_t count = keel_job_read_sizes(job->table_rows, out, KEEL_JOB_TABLES_MAX);
        KEEL_ASSERT(count == job->tables);
        return;
    }
    for (uint32_t t = 0; t < job->tables; t++)
        out[t] = job->categories;
}

/* `first` and `last` are what a perceptron is given, and gives; 0: whatever it is. */
static enum keel_status check_layers(const char *key, const char *text, uint32_t first, uint32_t last)
{
    uint32_t sizes[KEEL_JOB_MLP_MAX];
    const uint32_t count = text[0] != '\0' ? keel_job_read_sizes(text, sizes, KEEL_JOB_MLP_MAX) : 1;
    if (text[0] == '\0')
        return KEEL_OK;
    if (count == 0)
        return keel_fail(KEEL_INVALID, "model.%s = %s: up to %d sizes above 0, with - between, are wanted",
                         key, text, KEEL_JOB_MLP_MAX);
    if (first > 0 && (sizes[0] != first || count < 2))
        return keel_fail(KEEL_INVALID,
                         "model.%s = %s: begins with model.dense, which is %u, and layers follow", key, text,
                         first);
    return sizes[count - 1] == last ? KEEL_OK
                                    : keel_fail(KEEL_INVALID, "model.%s = %s: ends with %u, %s", key, text,
                                                last, first > 0 ? "which is model.width" : "for one click");
}

enum keel_status keel_job_check_sizes(const struct keel_job *job)
{
    uint32_t rows[KEEL_JOB_TABLES_MAX];
    const uint32_t count =
        job->table_rows[0] != '\0' ? keel_job_read_sizes(job->table_rows, rows, KEEL_JOB_TABLES_MAX) : 0;
    if (job->table_rows[0] != '\0' && count != job->tables)
        return keel_fail(
            KEEL_INVALID,
            "model.table_rows = %s: model.tables = %u sizes of up to 2^%d, with - between, are wanted",
            job->table_rows, job->tables, SIZE_MAX_LOG2);
    KEEL_TRY(check_layers("mlp_bot", job->mlp_bot, job->dense, job->width));
    return check_layers("mlp_top", job->mlp_top, 0, 1);
}
