/* node_trace.c - runs the control plane in the world of node_sim.h, with three holders or five, faults and a
 * leader that moves, and writes what its register, views and steps do: one action a line, for replay.awk and
 * holders.pml.
 *
 * The functions of register.h are wrapped by the linker (--wrap), so that the code which is traced is the one
 * that runs:
 *
 *     wanted HOLDERS                       as many, at most
 *     begin NODE BALLOT KNOWN              a read phase; the epoch that it knows to be committed, or 0
 *     promise ACCEPTOR BALLOT              an acceptor's answer, when it is the first
 *     read NODE BALLOT ANSWERS LOST NEWEST    it is over: bit per acceptor, twice; and what it found
 *     write NODE BALLOT EPOCH DIGEST       what it proposes
 *     holders NODE BALLOT BEFORE HOLDERS   and whose majorities that wants: bit per acceptor
 *     accept ACCEPTOR BALLOT EPOCH DIGEST
 *     commit NODE BALLOT EPOCH             a majority accepted
 *     start NODE, load ACCEPTOR PROMISED ACCEPTED    another life, and what its disk held
 *     view NODE EPOCH DIGEST               a node has a newer view
 *     lead NODE STEP                       a node leads, and wants that step next
 *     record NODE STEP, dead NODE          an agent has the record of a step; it is gone
 *     deliver NODE STEP, skip NODE STEP    a leader tells of a step, or gives its record up
 *
 *     node_trace SEED >trace */
#include "node_sim.h"
#include "node_sim_gate.h"
#include "view_delta.h"
#pragma GCC diagnostic ignored "-Wunused-function"
#include "node_sim_queue.h" /* of which the time of the next event alone is used */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NODES = 6, ACCEPTORS = 8, FAULTS = 6 }; /* as model.sh says, and of a run */

static bool in_answer; /* node.c loads what it stores, to look at it: no other life */

/* ---- the register -------------------------------------------------------------------------------------- */

static unsigned node_of(const struct keel_register *reg)
{
    return (unsigned)(reg->identity & UINT16_MAX);
}

/* An acceptor is a node with its disk: that of the first disk has the node's number, others those above. */
static unsigned acceptor_of(uint16_t node, uint32_t disk)
{
    static struct keel_view_holder others[ACCEPTORS - NODES];
    static unsigned count;
    if (disk == 0)
        return node;
    for (unsigned i = 0; i < count; i++)
        if (others[i].node == node && others[i].disk == disk)
            return NODES + i;
    KEEL_ASSERT(count < ACCEPTORS - NODES);
    others[count++] = (struct keel_view_holder){.node = node, .disk = disk};
    return NODES + count - 1;
}

static void print_ballot(struct keel_ballot ballot)
{
    printf(" %" PRIu64 ".%" PRIu64, ballot.counter, ballot.node);
}

static void print_action(const char *what, const struct keel_register *reg, struct keel_ballot ballot)
{
    printf("%s %u", what, node_of(reg));
    print_ballot(ballot);
}

static void print_answer(const char *what, const struct keel_register *reg, struct keel_ballot ballot)
{
    printf("%s %u", what, acceptor_of((uint16_t)node_of(reg), reg->disk));
    print_ballot(ballot);
}

static void print_value(const uint8_t *data, uint32_t bytes)
{
    static struct keel_view view;
    KEEL_ASSERT(keel_view_decode(data, bytes, &view));
    printf(" %" PRIu64 " %" PRIx64 "\n", view.epoch, keel_view_digest(data, bytes));
}

void __real_keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holders, uint64_t nonce);
void __wrap_keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holders, uint64_t nonce);
void __wrap_keel_register_init(struct keel_register *reg, uint16_t node, uint16_t holders, uint64_t nonce)
{
    __real_keel_register_init(reg, node, holders, nonce);
    in_answer = false;
    printf("start %u\n", node);
}

enum keel_status __real_keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
enum keel_status __wrap_keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
enum keel_status __wrap_keel_register_load(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    const enum keel_status status = __real_keel_register_load(reg, data, bytes);
    if (status == KEEL_OK && !in_answer) {
        print_answer("load", reg, reg->promised);
        print_ballot(reg->accepted);
        printf("\n");
    }
    return status;
}

void __real_keel_register_begin(struct keel_register *reg, uint64_t epoch,
                                const struct keel_view_holders *known);
void __wrap_keel_register_begin(struct keel_register *reg, uint64_t epoch,
                                const struct keel_view_holders *known);
void __wrap_keel_register_begin(struct keel_register *reg, uint64_t epoch,
                                const struct keel_view_holders *known)
{
    __real_keel_register_begin(reg, epoch, known);
    print_action("begin", reg, reg->ballot);
    printf(" %" PRIu64 "\n", epoch);
}

static unsigned bits_of(const struct keel_view_holders *holders)
{
    unsigned bits = 0;
    for (uint8_t i = 0; i < holders->count; i++)
        bits |= 1U << acceptor_of(holders->at[i].node, holders->at[i].disk);
    return bits;
}

void __real_keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
void __wrap_keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes);
void __wrap_keel_register_write(struct keel_register *reg, const uint8_t *data, uint32_t bytes)
{
    __real_keel_register_write(reg, data, bytes);
    print_action("write", reg, reg->ballot);
    print_value(data, bytes);
    printf("holders %u", node_of(reg));
    print_ballot(reg->ballot);
    printf(" %u %u\n", bits_of(&reg->sets[0]), bits_of(&reg->sets[1]));
}

void __real_keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                                 struct keel_register_message *reply, bool *out_changed);
void __wrap_keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                                 struct keel_register_message *reply, bool *out_changed);
void __wrap_keel_register_answer(struct keel_register *reg, const struct keel_register_message *ask,
                                 struct keel_register_message *reply, bool *out_changed)
{
    const struct keel_ballot promised = reg->promised, accepted = reg->accepted;
    __real_keel_register_answer(reg, ask, reply, out_changed);
    in_answer = true; /* until something else is asked of it */
    if (keel_ballot_compare(accepted, reg->accepted) != 0) {
        print_answer("accept", reg, reg->accepted);
        print_value(reg->value.data, reg->value.bytes);
    } else if (keel_ballot_compare(promised, reg->promised) != 0) {
        print_answer("promise", reg, reg->promised);
        printf("\n");
    }
}

enum keel_register_outcome __real_keel_register_hear(struct keel_register *reg, uint16_t from,
                                                     const struct keel_register_message *reply);
enum keel_register_outcome __wrap_keel_register_hear(struct keel_register *reg, uint16_t from,
                                                     const struct keel_register_message *reply);
enum keel_register_outcome __wrap_keel_register_hear(struct keel_register *reg, uint16_t from,
                                                     const struct keel_register_message *reply)
{
    static struct keel_view view;
    const enum keel_register_outcome outcome = __real_keel_register_hear(reg, from, reply);
    if (outcome == KEEL_REGISTER_HAVE) {
        unsigned answers = 0, lost = 0;
        for (uint32_t i = 0; i < reg->answer_count; i++) {
            const unsigned which = acceptor_of(reg->answers[i].node, reg->answers[i].disk);
            answers |= 1U << which;
            lost |= which != reg->answers[i].node ? 1U << reg->answers[i].node : 0;
        }
        print_action("read", reg, reg->ballot);
        printf(" %u %u", answers, lost);
        print_ballot(reg->newest);
        printf("\n");
    } else if (outcome == KEEL_REGISTER_COMMITTED) {
        KEEL_ASSERT(keel_view_decode(reg->proposal.data, reg->proposal.bytes, &view));
        print_action("commit", reg, reg->ballot);
        printf(" %" PRIu64 "\n", view.epoch);
    }
    return outcome;
}

/* ---- views and steps: what is other after an event ----------------------------------------------------- */

struct seen {
    uint64_t epoch, next_step;
    uint32_t life;
    bool leads;
    uint8_t held[SIM_STEPS_MAX];
};
static struct seen seen[8];

static void look_at_leader(const struct sim *sim, uint16_t node, struct seen *was)
{
    const struct sim_node *now = &sim->nodes[node];
    const bool leads = now->running && now->state->leader != NULL && keel_node_leads(now->state);
    if (leads && !was->leads) {
        was->next_step = now->state->leader->next_step;
        printf("lead %u %" PRIu64 "\n", node, was->next_step);
    }
    was->leads = leads;
}

static void look_at_node(const struct sim *sim, uint16_t node)
{
    static uint8_t bytes[KEEL_VIEW_BYTES_MAX];
    const struct sim_node *now = &sim->nodes[node];
    struct seen *was = &seen[node];
    if (was->life != now->life || !now->running) {
        if (was->life != 0 && was->epoch != UINT64_MAX)
            printf("dead %u\n", node);
        *was = (struct seen){.life = now->life, .epoch = now->running ? 0 : UINT64_MAX};
    }
    if (!now->running)
        return;
    for (uint32_t step = 1; step < SIM_STEPS_MAX; step++)
        if (now->held[step] && !was->held[step]) {
            was->held[step] = 1;
            printf("record %u %u\n", node, step);
        }
    if (now->state->view.epoch > was->epoch) {
        was->epoch = now->state->view.epoch;
        const uint32_t length = keel_view_encode(&now->state->view, bytes);
        printf("view %u %" PRIu64 " %" PRIx64 "\n", node, was->epoch, keel_view_digest(bytes, length));
    }
    look_at_leader(sim, node, was);
}

/* An event is of one node: what it delivered is counted, and what it passed over comes before that. */
static void look(struct sim *sim)
{
    static uint64_t delivered;
    const uint64_t now = sim->delivered_count + sim->delivered_again;
    for (uint16_t node = 0; node < sim->config.nodes; node++)
        look_at_node(sim, node);
    for (uint16_t node = 0; node < sim->config.nodes; node++) {
        struct seen *was = &seen[node];
        const uint64_t next = was->leads ? sim->nodes[node].state->leader->next_step : was->next_step;
        for (; was->next_step < next; was->next_step++)
            printf("%s %u %" PRIu64 "\n", next - was->next_step <= now - delivered ? "deliver" : "skip", node,
                   was->next_step);
    }
    delivered = now;
}

/* ---- a run with faults --------------------------------------------------------------------------------- */

static unsigned wipes; /* disks that were lost */

/* Every second fault hits who leads. A launcher that is killed stays away. */
static void strike(struct sim *sim)
{
    const uint16_t any = (uint16_t)sim_random(sim, sim->config.nodes);
    const uint16_t node = sim_random(sim, 2) == 0 ? sim->leader : any;
    switch (sim_random(sim, 7)) {
    case 0:
        sim_kill_worker(sim, (uint16_t)(node == 0 ? 1 : node), 0);
        break;
    case 1:
        sim_kill_node(sim, node);
        break;
    case 2:
        sim_stop_node(sim, node);
        break;
    case 3:
        for (uint16_t other = 0; other < sim->config.nodes; other++)
            if (other != node)
                sim_partition(sim, node, other, true);
        break;
    case 4: /* with its disk, but not for a third time */
        sim_kill_node(sim, node);
        if (node != 0 && wipes < ACCEPTORS - NODES) {
            wipes++;
            sim->nodes[node].disk_bytes = 0;
        }
        break;
    case 5:
        sim_gray(sim,
                 &(struct sim_gray){.a = node, .b = SIM_ANY, .loss_ppm = 100000, .late_ns = 400 * SIM_MS});
        break;
    default:
        sim->loss_ppm = 300000;
        break;
    }
}

static void mend(struct sim *sim)
{
    sim->loss_ppm = 20000;
    sim->gray_count = 0;
    for (uint16_t a = 0; a < sim->config.nodes; a++) {
        if (sim->nodes[a].stopped)
            sim_wake_node(sim, a);
        for (uint16_t b = 0; b < sim->config.nodes; b++)
            sim_partition(sim, a, b, false);
    }
}

/* Who writes a view that so many have accepted; NODES: nobody. */
static uint16_t find_writer(const struct sim *sim, uint32_t answers)
{
    for (uint16_t node = 0; node < NODES; node++) {
        const struct keel_register *reg = &sim->nodes[node].state->reg;
        if (sim->nodes[node].running && reg->phase == KEEL_REGISTER_WRITING && reg->answer_count >= answers)
            return node;
    }
    return NODES;
}

/* One event at a time; to the first write of a view, if that is asked for. */
static bool run_to(struct sim *sim, uint64_t until_ns, const uint32_t *answers)
{
    while (sim->violation[0] == '\0' && !sim->over && sim->now_ns < until_ns &&
           (answers == NULL || find_writer(sim, *answers) == NODES)) {
        const uint64_t next_ns =
            sim->queue_count > 0 && sim->queue[0].at_ns < until_ns ? sim->queue[0].at_ns : until_ns;
        (void)sim_run(sim, next_ns);
        look(sim);
    }
    return sim->over;
}

/* Who makes the view that the last fault wants is cut off when few have it: others find what it wrote. */
static void strike_writer(struct sim *sim)
{
    const uint32_t answers = (uint32_t)sim_random(sim, 3);
    sim->loss_ppm = 400000;
    (void)run_to(sim, sim->now_ns + 3000 * SIM_MS, &answers);
    const uint16_t writer = find_writer(sim, answers);
    if (writer == NODES)
        return;
    for (uint16_t other = 0; other < NODES; other++)
        sim_partition(sim, writer, other, other != writer);
}

int main(int argc, char **argv)
{
    const uint64_t number = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    struct sim_config config = sim_default(number);
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* a run that an assertion stops leaves its trace */
    config.holders = number % 2 == 0 ? 3 : 5;
    config.nodes = NODES;
    config.ranks = NODES - 1;
    config.last_step = SIM_STEPS_MAX - 24;
    config.loss_ppm = 20000;
    config.duplicate_ppm = 20000;
    struct sim *sim = sim_create(&config);
    printf("wanted %u\n", config.holders);
    sim_start_all(sim);
    look(sim);
    for (int fault = 0; fault < FAULTS && !sim->over; fault++) {
        (void)run_to(sim, sim->now_ns + 200 * SIM_MS + sim_random(sim, 2000 * SIM_MS), NULL);
        strike(sim);
        look(sim);
        if (fault % 2 == 1)
            strike_writer(sim);
        (void)run_to(sim, sim->now_ns + 500 * SIM_MS + sim_random(sim, 2000 * SIM_MS), NULL);
        mend(sim);
    }
    (void)run_to(sim, sim->now_ns + 120000 * SIM_MS, NULL);
    const bool well = sim->violation[0] == '\0';
    fprintf(stderr, "seed %" PRIu64 ": %u views, %u moves of the leader, %" PRIu64 " steps%s%s\n", number,
            sim->view_changes, sim->moves, sim->delivered_count, well ? "" : ": ", sim->violation);
    sim_destroy(sim);
    return well ? 0 : 1;
}
