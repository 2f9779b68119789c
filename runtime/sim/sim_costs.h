/* sim_costs.h - what things cost, as keel sim takes it: a settings file, whose defaults were measured.
 *
 * Where each default is from: README.md. tests/bench/sim_costs.sh writes such a file of what it measures. */
#ifndef KEEL_SIM_COSTS_H
#define KEEL_SIM_COSTS_H

#include "goodput.h"
#include <keel/job.h>

struct keel_sim_costs {
    /* [run] */
    double step_s, overhead;
    uint64_t state_bytes; /* weights and what the optimizer keeps; 0: counted */
    uint32_t shards_per_node;
    /* [detect] */
    double exit_s, silence_timeouts, hang_s, slow_s;
    /* [recover] */
    double reconfigure_s, heal_s, heal_bytes_s, redo;
    /* [snapshot] */
    double capture_s, capture_bytes_s, restore_s;
    double every_s[KEEL_GOODPUT_TIER_COUNT]; /* 0: as the job says, in steps */
    double bytes_s[KEEL_GOODPUT_TIER_COUNT]; /* of a node; of the store for all together */
};

/* Defaults, then the file (NULL: none), then each "section.key=value". INVALID, NOT_FOUND, as keel/ini.h. */
enum keel_status keel_sim_costs_load(const char *path, const char *const *overrides, uint32_t override_count,
                                     struct keel_sim_costs *out);

/* The cluster on which the job runs. */
struct keel_sim_cluster {
    uint64_t duration_ns;
    uint32_t nodes, boards; /* boards of each node: a rank each */
    uint32_t spares, fewest;
    uint32_t tiers; /* bit per enum keel_goodput_tier: it is used */
};

/* Those that the job's own snapshots go to, as bits. */
uint32_t keel_sim_job_tiers(const struct keel_job *job);

/* Whether nodes of so few make up its tiers: a partner is another node, and an erasure set has as many as
 * the job's snapshot.erasure says, or by default. INVALID. */
enum keel_status keel_sim_check_tiers(const struct keel_job *job, const struct keel_sim_cluster *cluster);

/* The model that goodput.h runs. `state_bytes` of all ranks together, each piece once. INVALID: the job and
 * the cluster do not fit together. */
enum keel_status keel_sim_model_make(const struct keel_job *job, const struct keel_sim_costs *costs,
                                     const struct keel_sim_cluster *cluster, uint64_t state_bytes,
                                     struct keel_goodput_model *out);
/* A tier's interval of so many seconds, in steps; never so short that the one before is not durable yet. */
uint64_t keel_sim_interval_steps(const struct keel_goodput_model *model, enum keel_goodput_tier tier,
                                 double every_s);

#endif
