/* node_costs_test.c - a large run in a world in which processors, networks and sockets cost what they do
 * (node_costs.h): a rack of 64 nodes is cut, and the others go on in one view.
 *
 * 1,024 nodes; `make test-long` takes 4,096, in 3 GB. COSTS_NODES=n and COSTS_WORKERS=m (up to 8 a node) in
 * the environment take others. */
#include "node_cases.h"

#include <stdio.h>

enum { RACK = 64, FIRST_CUT = 301 };

static uint32_t from_environment(const char *name, uint32_t else_)
{
    const char *text = getenv(name);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : else_;
}

static struct sim_config charged(void)
{
    struct sim_config config = sim_default(1);
    const uint32_t nodes = from_environment("COSTS_NODES", 4096 / thinned(4));
    config.nodes = (uint16_t)(nodes + 1);
    config.workers_per_node = (uint16_t)from_environment("COSTS_WORKERS", 1);
    ck_assert_uint_le(config.workers_per_node, SIM_LOCALS);
    config.ranks = (uint16_t)(nodes * config.workers_per_node);
    config.fewest = 1;
    config.shards = KEEL_SHARDS_MAX;
    config.timeout_ns = 5 * SECONDS; /* as cluster.timeout_s is */
    config.step_ns = SECONDS;
    config.ready_ns = SECONDS;
    config.last_step = 1000;
    config.snapshot_every = 500;
    config.costs = sim_measured_costs();
    return config;
}

static bool is_cut(uint16_t node)
{
    return node >= FIRST_CUT && node < FIRST_CUT + RACK;
}

/* All nodes that are not cut have it. */
static bool have_view(const struct sim *sim, uint64_t epoch)
{
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        if (!is_cut(node) && sim->nodes[node].state->view.epoch < epoch)
            return false;
    return true;
}

static void clear_meters(struct sim *sim)
{
    memset(sim->sent_by, 0, sizeof sim->sent_by);
    memset(sim->view_bytes_by, 0, sizeof sim->view_bytes_by);
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        sim->nodes[node].meter.worked_ns = sim->nodes[node].meter.overflows = 0;
}

/* What one node has sent, the launcher (0) or the agent that sent most. */
static uint64_t most_of(const struct sim *sim, const uint64_t *by_node)
{
    uint64_t most = 0;
    for (uint16_t node = 1; node < sim->config.nodes; node++)
        most = by_node[node] > most ? by_node[node] : most;
    return most;
}

static uint64_t overflows(const struct sim *sim)
{
    uint64_t count = 0;
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        count += sim->nodes[node].meter.overflows;
    return count;
}

/* Ten beats in which nothing happens but steps. */
static void check_steady(struct sim *sim)
{
    clear_meters(sim);
    (void)sim_run(sim, sim->now_ns + sim->config.timeout_ns);
    const double seconds = (double)sim->config.timeout_ns / 1e9;
    const double cores = (double)sim->nodes[0].meter.worked_ns / 1e9 / seconds;
    printf("steady, %u nodes, %u ranks: launcher %.3f cores, %.0f bytes/s out; an agent %.0f bytes/s out at "
           "most\n",
           sim->config.nodes, sim->config.ranks, cores, (double)sim->sent_by[0] / seconds,
           (double)most_of(sim, sim->sent_by) / seconds);
    (void)fflush(stdout);
    ck_assert_uint_eq(overflows(sim), 0);
    ck_assert(cores < 0.2);
    ck_assert((double)sim->sent_by[0] / seconds < 2e6);
    ck_assert((double)most_of(sim, sim->sent_by) / seconds < 20e3);
}

/* All have the view that was committed at `since_ns`; meters were cleared before. */
static void check_change(struct sim *sim, const char *what, uint64_t since_ns)
{
    const uint64_t ours = sim->view_bytes_by[0], theirs = most_of(sim, sim->view_bytes_by);
    printf("%s, %u nodes: all have it %.3f s later, the launcher sent %" PRIu64
           " bytes of it, an agent %" PRIu64 " at most; %" PRIu64 " datagrams found no room\n",
           what, sim->config.nodes, (double)(sim->now_ns - since_ns) / 1e9, ours, theirs, overflows(sim));
    (void)fflush(stdout);
    ck_assert_uint_le(sim->now_ns - since_ns, SECONDS / 2);
    ck_assert_uint_le(ours, 1 << 20);
    ck_assert_uint_le(theirs, 1 << 20);
    ck_assert_uint_le(sim->largest, KEEL_MESSAGE_BYTES);
}

static void cut_rack(const struct sim_config config)
{
    struct sim *sim = begin(config);
    ck_assert(sim_run_until(sim, 60 * SECONDS, views, 1));
    const uint64_t first_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, 60 * SECONDS, have_view, 1));
    check_change(sim, "first view", first_ns);
    ck_assert(sim_run_until(sim, 60 * SECONDS, delivered, 3));
    check_steady(sim);
    for (uint16_t node = FIRST_CUT; node < FIRST_CUT + RACK; node++)
        for (uint16_t other = 0; other < config.nodes; other++)
            if (!is_cut(other))
                sim_partition(sim, node, other, true);
    const uint64_t cut_ns = sim->now_ns;
    clear_meters(sim);
    ck_assert(sim_run_until(sim, cut_ns + 2 * config.timeout_ns, views, 2));
    const uint64_t told_ns = sim->now_ns;
    ck_assert(sim_run_until(sim, cut_ns + 2 * config.timeout_ns, have_view, 2));
    printf("rack of %d cut: its silence is noticed after %.3f s\n", RACK, (double)(told_ns - cut_ns) / 1e9);
    check_change(sim, "rack cut", told_ns);
    ck_assert_uint_eq(active(sim), (uint32_t)(config.ranks - RACK * config.workers_per_node));
    (void)sim_run(sim, sim->now_ns + config.timeout_ns);
    ck_assert_uint_eq(sim->view_changes, 2); /* one for the rack */
    ck_assert(sim->delivered_next > 4);
    ck_fine(sim);
    sim_destroy(sim);
}

START_TEST(a_rack_that_is_cut_costs_one_view_and_half_a_second)
{
    cut_rack(charged());
}
END_TEST

/* As long as they may be: IPv6 and a name. A view is 2.8 times as large. */
START_TEST(with_the_longest_addresses_too)
{
    struct sim_config config = charged();
    config.address_bytes = KEEL_ADDRESS_BYTES;
    cut_rack(config);
}
END_TEST

static void cases(TCase *tc)
{
    tcase_add_test(tc, a_rack_that_is_cut_costs_one_view_and_half_a_second);
    tcase_add_test(tc, with_the_longest_addresses_too);
}

KEEL_TEST_MAIN("node_costs", cases, 300)
