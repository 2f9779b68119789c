/* sim_print.h - what keel sim found, as text, JSON and SVG. */
#ifndef KEEL_SIM_PRINT_H
#define KEEL_SIM_PRINT_H

#include "sim_costs.h"
#include <keel/json.h>

enum { KEEL_SIM_CHOICES_MAX = 96, KEEL_SIM_LABEL_BYTES = 48 };

/* Another interval, number of spares or set of tiers, tried with some of the seeds. */
struct keel_sim_choice {
    char label[KEEL_SIM_LABEL_BYTES];
    double value;     /* the interval in seconds, the number of spares */
    double mean, low; /* goodput; low: at the 5th percentile */
    bool best;
};

struct keel_sim_choices {
    struct keel_sim_choice at[KEEL_SIM_CHOICES_MAX];
    uint32_t count;
};

struct keel_sim_findings {
    const char *job, *failures; /* names; borrowed */
    struct keel_goodput_model model;
    uint32_t boards;
    uint64_t state_bytes, first_seed;
    uint32_t seed_count, tried_seeds;       /* tried: those of choices */
    struct keel_goodput *runs;              /* of each seed, in order; owned by keel sim */
    uint32_t *by_goodput;                   /* numbers of runs, the least goodput first; likewise */
    struct keel_sim_choices near_intervals; /* of all tiers but the store, together */
    struct keel_sim_choices store_intervals, spares, tiers;
};

/* Goodput of a run: the share of the time that was work. */
double keel_sim_goodput(const struct keel_sim_findings *found, uint32_t run);
/* Goodput at a quantile (nearest rank), 0 < q <= 1. */
double keel_sim_quantile(const struct keel_sim_findings *found, double q);

void keel_sim_print_text(const struct keel_sim_findings *found, FILE *out);
void keel_sim_print_json(const struct keel_sim_findings *found, struct keel_json *json);
/* A picture of one column a seed, what was lost by cause. */
void keel_sim_print_svg(const struct keel_sim_findings *found, FILE *out);

#endif
