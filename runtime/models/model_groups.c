/* model_groups.c - which parameters of a model are trained, and how, by the patterns of a job: a pattern is a
 * name, or a glob of names. One that no parameter has is an error, as a key is that nothing reads. */
#include "ir.h"
#include "model.h"
#include <fnmatch.h>

/* What a list does to a parameter that it names. */
typedef void rule_of(struct keel_ir_param *param, float factor);

static void freeze(struct keel_ir_param *param, float factor)
{
    (void)factor;
    param->frozen = true;
}

static void stop_decay(struct keel_ir_param *param, float factor)
{
    (void)factor;
    param->decay = false;
}

static void scale_rate(struct keel_ir_param *param, float factor)
{
    param->rate = factor;
}

/* All parameters that one pattern names; how many. */
static uint32_t apply(struct keel_graph *graph, const char *pattern, rule_of *rule, float factor)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->param_count; i++) {
        struct keel_ir_param *param = &graph->params[i];
        if (param->statistic || fnmatch(pattern, param->name, 0) != 0)
            continue;
        rule(param, factor);
        count++;
    }
    return count;
}

static enum keel_status apply_list(struct keel_graph *graph, const char *key, const char *list, rule_of *rule)
{
    char pattern[KEEL_JOB_PATTERNS_BYTES];
    for (const char *at = list; (at = keel_job_next_pattern(at, pattern)) != NULL;) {
        float factor = 1.0F;
        if (rule == scale_rate)
            keel_job_read_factor(pattern, &factor);
        if (apply(graph, pattern, rule, factor) == 0)
            return keel_fail(
                KEEL_INVALID,
                "train.%s: %.200s names no parameter of the model; keel plan JOB --dump lists them "
                "(the first is %s)",
                key, pattern, graph->param_count > 0 ? graph->params[0].name : "none");
    }
    return KEEL_OK;
}

enum keel_status keel_model_group(struct keel_graph *graph, const struct keel_job *job)
{
    KEEL_TRY(apply_list(graph, "freeze", job->freeze, freeze));
    KEEL_TRY(apply_list(graph, "no_decay", job->no_decay, stop_decay));
    return apply_list(graph, "lr_scale", job->lr_scale, scale_rate);
}
