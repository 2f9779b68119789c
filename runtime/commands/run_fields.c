/* run_fields.c - see run_fields.h. */
#include "run_fields.h"
#include <inttypes.h>
#include <keel/bits.h>
#include <keel/clock.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

double keel_seconds_of(uint64_t ns)
{
    return (double)ns / 1e9;
}

bool keel_step_skipped(const struct keel_step_record *record)
{
    return !isfinite(keel_float_of(record->grad_norm_bits));
}

/* JSON has no words for what is no number, and null is one of its. */
static json_t *real_of(uint32_t bits)
{
    const float value = keel_float_of(bits);
    return isfinite(value) ? json_real((double)value) : json_null();
}

json_t *keel_metric_of(const struct keel_job *job, const struct keel_step_record *record)
{
    char loss_bits[16], digest[24];
    snprintf(loss_bits, sizeof loss_bits, "%08" PRIx32, record->loss_bits);
    snprintf(digest, sizeof digest, "%016" PRIx64, record->digest);
    json_t *line = json_pack(
        "{s:I, s:f, s:s, s:o, s:f, s:I, s:f, s:I, s:s, s:f, s:f, s:I}", "step", (json_int_t)record->step,
        "loss", (double)keel_float_of(record->loss_bits), "loss_bits", loss_bits, "grad_norm",
        real_of(record->grad_norm_bits), "lr", (double)keel_float_of(record->learning_rate_bits), "tokens",
        (json_int_t)record->tokens, "seconds", keel_seconds_of(record->duration_ns), "view",
        (json_int_t)record->epoch, "digest", digest, "exposed_comm_s",
        keel_seconds_of(record->exposed_comm_ns), "snapshot_stall_s",
        keel_seconds_of(record->snapshot_stall_ns), "sent_bytes", (json_int_t)record->sent_bytes);
    if (line != NULL && strcmp(keel_job_unit(job), "tokens") != 0) /* a sample counts as one token */
        json_object_set_new(line, keel_job_unit(job), json_integer((json_int_t)record->tokens));
    if (line != NULL && record->loss_scale_bits != 0)
        json_object_set_new(line, "loss_scale", json_real((double)keel_float_of(record->loss_scale_bits)));
    if (line != NULL && record->has_val_loss)
        json_object_set_new(line, "val_loss", real_of(record->val_loss_bits));
    if (line != NULL && record->has_val_accuracy)
        json_object_set_new(line, "val_accuracy",
                            json_real((double)keel_float_of(record->val_accuracy_bits)));
    if (line != NULL && job->ema > 0.0F && (record->has_val_loss || record->has_val_accuracy))
        json_object_set_new(line, "val_of", json_string("ema"));
    return line;
}

void keel_put_parts(json_t *event, const uint64_t part_ns[KEEL_INCIDENT_PART_COUNT], char *words,
                    size_t bytes)
{
    size_t used = 0;
    words[0] = '\0';
    for (unsigned p = 0; p < KEEL_INCIDENT_PART_COUNT; p++) {
        const char *name = keel_incident_part_name((enum keel_incident_part)p);
        json_object_set_new(event, name, json_real(keel_seconds_of(part_ns[p])));
        if (part_ns[p] < KEEL_NS_PER_MS / 2 || used >= bytes)
            continue;
        used += (size_t)snprintf(words + used, bytes - used, "%s%.*s %.3f", used > 0 ? ", " : "",
                                 (int)strlen(name) - 2, name, keel_seconds_of(part_ns[p]));
    }
}

json_t *keel_plans_event(const struct keel_plan_table *table)
{
    const struct keel_job_plan *all = &table->plans[table->ranks], *instead_of = &table->instead_of;
    char numbers[160], number[20];
    keel_plan_table_describe(table, numbers, sizeof numbers);
    snprintf(number, sizeof number, "%016" PRIx64, table->numbers[table->ranks]);
    json_t *event = json_pack(
        "{s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:i, s:s}", "ranks", (int)table->ranks, "plan", number, "data",
        (int)all->data, "tensor", (int)all->tensor, "zero", (int)all->zero, "holders", (int)all->holders,
        "bytes", (json_int_t)all->total_bytes, "fewest", (int)table->fewest, "goes_on_with", numbers);
    if (event != NULL && instead_of->seats > 0)
        json_object_set_new(event, "instead_of",
                            json_pack("{s:i, s:i, s:I}", "tensor", (int)instead_of->tensor, "zero",
                                      (int)instead_of->zero, "bytes", (json_int_t)instead_of->total_bytes));
    return event;
}

void keel_plans_describe(const struct keel_plan_table *table, char *out, size_t bytes)
{
    const struct keel_job_plan *all = &table->plans[table->ranks], *instead_of = &table->instead_of;
    char numbers[160], why[128] = "";
    if (instead_of->seats > 0)
        snprintf(why, sizeof why,
                 ", since parallel.memory does not suffice for tensor %" PRIu32 " and zero %" PRIu32
                 " (%.2f MiB)",
                 instead_of->tensor, instead_of->zero, (double)instead_of->total_bytes / 1048576.0);
    keel_plan_table_describe(table, numbers, sizeof numbers);
    snprintf(out, bytes,
             "plan of %" PRIu32 " ranks: data %" PRIu32 ", tensor %" PRIu32 ", zero %" PRIu32
             ", %.2f MiB each%s; the run goes on with %s",
             table->ranks, all->data, all->tensor, all->zero, (double)all->total_bytes / 1048576.0, why,
             numbers);
}
