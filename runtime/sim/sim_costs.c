/* sim_costs.c - see sim_costs.h. */
#include "sim_costs.h"

#include <keel/ini.h>
#include <math.h>
#include <string.h>

#define FIELD(name)      offsetof(struct keel_sim_costs, name), sizeof(((struct keel_sim_costs *)0)->name)
#define SECONDS(s, n, f) s, n, KEEL_INI_DOUBLE, FIELD(f)
#define TIER(n, f, tier) "snapshot", n, KEEL_INI_DOUBLE, FIELD(f[KEEL_GOODPUT_TIER_##tier])
enum { SET_NODES = 10, SET_PARITY = 2 }; /* where the job has no snapshot.erasure */
#define RATE_MAX 1e15

static const struct keel_ini_key keys[] = {
    {SECONDS("run", "step_s", step_s), "10", 1e-4, 1e5, NULL, 0, "a step, when nothing fails"},
    {SECONDS("run", "overhead", overhead), "0.0003", 0, 10, NULL, 0,
     "of a step, that beats, digests and records cost"},
    {"run", "state_bytes", KEEL_INI_U64, FIELD(state_bytes), "0", 0, 1e18, NULL, 0,
     "weights and what the optimizer keeps, once; 0: counted of the job's model"},
    {"run", "shards_per_node", KEEL_INI_U32, FIELD(shards_per_node), "0", 0, 65536, NULL, 0,
     "shards that a node carries, which others can share when it is lost; 0: job.shards by the nodes"},
    {SECONDS("detect", "exit_s", exit_s), "0.12", 0, 1e4, NULL, 0, "until a process that ended is noticed"},
    {SECONDS("detect", "silence_timeouts", silence_timeouts), "0.6", 0, 100, NULL, 0,
     "until a silent node is noticed, in cluster.timeout_s"},
    {SECONDS("detect", "hang_s", hang_s), "30", 0, 1e5, NULL, 0, "until a board that hangs is noticed"},
    {SECONDS("detect", "slow_s", slow_s), "0", 0, 1e7, NULL, 0,
     "until a slow node is exchanged; 0: never, all wait for it"},
    {SECONDS("recover", "reconfigure_s", reconfigure_s), "0.05", 0, 1e5, NULL, 0,
     "the new view, connections, agreement where to go on"},
    {SECONDS("recover", "heal_s", heal_s), "0.001", 0, 1e5, NULL, 0, "healing, beside the bytes"},
    {SECONDS("recover", "heal_bytes_s", heal_bytes_s), "5e8", 1, RATE_MAX, NULL, 0,
     "bytes a second that who takes over gets from live holders"},
    {SECONDS("recover", "redo", redo), "1", 0, 1, NULL, 0,
     "of an interrupted step: what is done again; who is left keeps what it added up"},
    {SECONDS("snapshot", "capture_s", capture_s), "0.001", 0, 1e5, NULL, 0,
     "that a step waits for a snapshot, beside the bytes"},
    {SECONDS("snapshot", "capture_bytes_s", capture_bytes_s), "5e9", 1, RATE_MAX, NULL, 0,
     "bytes a second that a node captures while its step waits"},
    {SECONDS("snapshot", "restore_s", restore_s), "2", 0, 1e6, NULL, 0,
     "a restart from a snapshot, beside the bytes"},
    {TIER("local_every_s", every_s, LOCAL), "0", 0, 1e9, NULL, 0,
     "a snapshot onto local disks; 0: every snapshot.every steps of the job"},
    {TIER("partner_every_s", every_s, PARTNER), "0", 0, 1e9, NULL, 0,
     "copies of them on partners; 0: likewise"},
    {TIER("erasure_every_s", every_s, ERASURE), "0", 0, 1e9, NULL, 0, "into erasure sets; 0: likewise"},
    {TIER("store_every_s", every_s, STORE), "0", 0, 1e9, NULL, 0,
     "into the shared store; 0: every snapshot.store_every steps, or snapshot.every"},
    {TIER("local_bytes_s", bytes_s, LOCAL), "3e8", 1, RATE_MAX, NULL, 0, "of each node, both ways"},
    {TIER("partner_bytes_s", bytes_s, PARTNER), "5e8", 1, RATE_MAX, NULL, 0, "of each node, both ways"},
    {TIER("erasure_bytes_s", bytes_s, ERASURE), "2e8", 1, RATE_MAX, NULL, 0, "of each node, both ways"},
    {TIER("store_bytes_s", bytes_s, STORE), "1e10", 1, RATE_MAX, NULL, 0, "of all nodes together, both ways"},
};
static const struct keel_ini_table table = {
    .keys = keys, .key_count = sizeof keys / sizeof keys[0], .what = "cost"};

enum keel_status keel_sim_costs_load(const char *path, const char *const *overrides, uint32_t override_count,
                                     struct keel_sim_costs *out)
{
    memset(out, 0, sizeof *out);
    keel_ini_defaults(&table, out);
    if (path != NULL)
        KEEL_TRY(keel_ini_read(&table, path, out));
    for (uint32_t i = 0; i < override_count; i++) {
        char text[KEEL_INI_VALUE_BYTES + 64];
        snprintf(text, sizeof text, "--cost %s", overrides[i]);
        KEEL_TRY(keel_ini_override(&table, text, out));
    }
    return KEEL_OK;
}

static uint64_t nanoseconds(double seconds)
{
    const double ns = seconds * 1e9 + 0.5;
    return ns < 0x1p62 ? (uint64_t)ns : UINT64_C(1) << 62;
}

/* Who holds the state of a node's places: itself, and others. */
static uint32_t copies_of(const struct keel_job *job, const struct keel_sim_cluster *cluster)
{
    const struct keel_parallel *plan = &job->parallel;
    const uint64_t ranks = (uint64_t)cluster->nodes * cluster->boards;
    const uint64_t positions = plan->tensor > 1 ? ranks / plan->tensor : ranks;
    uint64_t copies = positions / cluster->boards; /* replicas, one a node at most */
    if (plan->zero > KEEL_ZERO_NONE)
        copies = plan->zero_group > 0 && plan->zero_group < positions
                     ? positions / plan->zero_group / cluster->boards
                     : plan->holders;
    copies = copies < 1 ? 1 : copies;
    return copies < cluster->nodes ? (uint32_t)copies : cluster->nodes;
}

static double tier_bytes(const struct keel_goodput_model *model, uint32_t tier, double state_bytes)
{
    return tier == KEEL_GOODPUT_TIER_STORE ? state_bytes : state_bytes / model->nodes;
}

uint64_t keel_sim_interval_steps(const struct keel_goodput_model *model, enum keel_goodput_tier tier,
                                 double every_s)
{
    const uint64_t busy_ns = model->tiers[tier].drain_ns + model->stall_ns + 1;
    const uint64_t least = (busy_ns + model->step_ns - 1) / model->step_ns;
    const double steps = floor(every_s * 1e9 / (double)model->step_ns + 0.5);
    const uint64_t asked = steps < 1 ? 1 : steps < 0x1p60 ? (uint64_t)steps : UINT64_C(1) << 60;
    return asked > least ? asked : least;
}

uint32_t keel_sim_job_tiers(const struct keel_job *job)
{
    if (job->snapshot_local[0] == '\0')
        return UINT32_C(1) << KEEL_GOODPUT_TIER_STORE; /* DIR/ckpt, which all see */
    return UINT32_C(1) << KEEL_GOODPUT_TIER_LOCAL |
           (job->snapshot_partner ? UINT32_C(1) << KEEL_GOODPUT_TIER_PARTNER : 0) |
           (job->snapshot_erasure[0] != '\0' ? UINT32_C(1) << KEEL_GOODPUT_TIER_ERASURE : 0) |
           (job->snapshot_store[0] != '\0' ? UINT32_C(1) << KEEL_GOODPUT_TIER_STORE : 0);
}

static uint64_t job_every(const struct keel_job *job, uint32_t tier)
{
    return tier == KEEL_GOODPUT_TIER_STORE && job->snapshot_store_every > 0 ? job->snapshot_store_every
                                                                            : job->snapshot_every;
}

static void make_tiers(const struct keel_job *job, const struct keel_sim_costs *costs, uint32_t tiers,
                       double state_bytes, struct keel_goodput_model *out)
{
    for (uint32_t tier = 0; tier < KEEL_GOODPUT_TIER_COUNT; tier++) {
        struct keel_goodput_snapshots *to = &out->tiers[tier];
        const double seconds = tier_bytes(out, tier, state_bytes) / costs->bytes_s[tier];
        double every_s = costs->every_s[tier];
        if (every_s == 0)
            every_s = (double)job_every(job, tier) * costs->step_s;
        if ((tiers >> tier & 1) == 0 || every_s == 0)
            continue;
        to->drain_ns = nanoseconds(seconds);
        to->restore_ns = nanoseconds(costs->restore_s + seconds);
        to->every_steps = keel_sim_interval_steps(out, (enum keel_goodput_tier)tier, every_s);
    }
}

/* Of the job, or what is usual. */
static void find_set(const struct keel_job *job, uint32_t *out_nodes, uint32_t *out_lost)
{
    if (keel_job_erasure(job, out_nodes, out_lost))
        return;
    *out_nodes = SET_NODES;
    *out_lost = SET_PARITY;
}

enum keel_status keel_sim_check_tiers(const struct keel_job *job, const struct keel_sim_cluster *cluster)
{
    uint32_t nodes, lost;
    find_set(job, &nodes, &lost);
    if ((cluster->tiers >> KEEL_GOODPUT_TIER_PARTNER & 1) != 0 && cluster->nodes < 2)
        return keel_fail(KEEL_INVALID, "tier partner: one node has no other to keep its copies; give --nodes "
                                       "2 or more, or other --tiers");
    if ((cluster->tiers >> KEEL_GOODPUT_TIER_ERASURE & 1) != 0 && cluster->nodes < nodes)
        return keel_fail(KEEL_INVALID,
                         "tier erasure: a set of %u+%u has %u nodes, and the run %u; give more --nodes, a "
                         "smaller set (--set snapshot.erasure=K+M), or other --tiers",
                         nodes - lost, lost, nodes, cluster->nodes);
    return KEEL_OK;
}

enum keel_status keel_sim_model_make(const struct keel_job *job, const struct keel_sim_costs *costs,
                                     const struct keel_sim_cluster *cluster, uint64_t state_bytes,
                                     struct keel_goodput_model *out)
{
    const uint64_t ranks = (uint64_t)cluster->nodes * cluster->boards;
    if (cluster->fewest == 0 || cluster->fewest > cluster->nodes)
        return keel_fail(KEEL_INVALID, "--fewest %u: 1 to %u nodes, those of the run, are wanted",
                         cluster->fewest, cluster->nodes);
    if (job->parallel.tensor > ranks)
        return keel_fail(KEEL_INVALID,
                         "parallel.tensor = %u is more than the %llu ranks of %u nodes with %u "
                         "boards; give --nodes or --boards",
                         job->parallel.tensor, (unsigned long long)ranks, cluster->nodes, cluster->boards);
    KEEL_TRY(keel_sim_check_tiers(job, cluster));
    const uint32_t copies = copies_of(job, cluster);
    const double state = (double)state_bytes;
    const bool divided = job->parallel.zero > KEEL_ZERO_NONE;
    const uint32_t tensor = job->parallel.tensor > 1 ? job->parallel.tensor : 1;
    const double held = divided ? state * copies / cluster->nodes : state * cluster->boards / tensor;
    const uint32_t nodes = cluster->nodes;
    KEEL_ASSERT(nodes > 0);
    const uint32_t shards = costs->shards_per_node > 0 ? costs->shards_per_node : job->shards / nodes;
    *out = (struct keel_goodput_model){
        .duration_ns = cluster->duration_ns,
        .nodes = cluster->nodes,
        .spares = cluster->spares,
        .fewest = cluster->fewest,
        .copies = copies,
        .shards_per_node = shards > 0 ? shards : 1,
        .step_ns = nanoseconds(costs->step_s),
        .overhead_ns = nanoseconds(costs->step_s * costs->overhead),
        .exit_ns = nanoseconds(costs->exit_s),
        .silence_ns = nanoseconds(job->timeout_s * costs->silence_timeouts),
        .hang_ns = nanoseconds(costs->hang_s),
        .redo_ppm = (uint32_t)lround(costs->redo * KEEL_GOODPUT_REDO_ALL),
        .slow_ns = nanoseconds(costs->slow_s),
        .reconfigure_ns = nanoseconds(costs->reconfigure_s),
        .heal_ns = nanoseconds(costs->heal_s + held / costs->heal_bytes_s),
        .stall_ns = nanoseconds(costs->capture_s + state / cluster->nodes / costs->capture_bytes_s)};
    find_set(job, &out->set_nodes, &out->set_lost);
    make_tiers(job, costs, cluster->tiers, state, out);
    return KEEL_OK;
}
