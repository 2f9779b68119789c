/* goodput.c - see goodput.h. */
#include "goodput.h"

#include <keel/memory.h>
#include <string.h>

const char *keel_goodput_word(enum keel_goodput_cause cause)
{
    static const char *const words[] = {
#define KEEL_GOODPUT_NAME(name, word, help) word,
        KEEL_GOODPUT_CAUSE_TABLE(KEEL_GOODPUT_NAME)
#undef KEEL_GOODPUT_NAME
    };
    KEEL_ASSERT((unsigned)cause < KEEL_GOODPUT_CAUSE_COUNT);
    return words[cause];
}

const char *keel_goodput_help(enum keel_goodput_cause cause)
{
    static const char *const helps[] = {
#define KEEL_GOODPUT_HELP(name, word, help) help,
        KEEL_GOODPUT_CAUSE_TABLE(KEEL_GOODPUT_HELP)
#undef KEEL_GOODPUT_HELP
    };
    KEEL_ASSERT((unsigned)cause < KEEL_GOODPUT_CAUSE_COUNT);
    return helps[cause];
}

const char *keel_goodput_tier_word(enum keel_goodput_tier tier)
{
    return keel_goodput_word((enum keel_goodput_cause)(KEEL_GOODPUT_LOCAL + (int)tier)) + strlen("restore_");
}

/* Nodes that come back from repair together. */
struct back {
    uint64_t at_ns;
    uint32_t count;
};

struct slow_nodes {
    uint64_t until_ns, evicted_ns; /* evicted_ns: UINT64_MAX for never */
    uint32_t factor_ppm, count;    /* nodes that are slow together */
};

struct hit {
    uint32_t first, count;
    bool silent; /* the disks of the hosts are away, too */
};

/* Failures between two steps that were committed. */
struct incident {
    bool open;
    bool breaks;                   /* a view without somebody is to be made */
    bool goes_back;                /* no state is left that counts */
    uint64_t noticed_ns, begun_ns; /* the last is; and the run is begun again */
};

struct tier {
    uint64_t durable_step;          /* the newest that can be read */
    uint64_t pending_step, done_ns; /* being drained until then; done_ns 0: none */
};

struct world {
    const struct keel_goodput_model *model;
    struct keel_goodput *out;
    const struct keel_failure *failures;
    size_t count, next;
    uint64_t now_ns, steps;
    uint64_t into_ns;   /* of the step under way */
    bool snapshot_due;  /* of this number of steps */
    struct back *backs; /* the next one last; owned */
    size_t back_count;
    uint64_t out_count; /* nodes in repair */
    struct slow_nodes *slows;
    size_t slow_count;
    struct hit *hits; /* of the incident */
    size_t hit_count;
    struct incident incident;
    struct tier tiers[KEEL_GOODPUT_TIER_COUNT];
};

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A time that is never reached, rather than one that wraps. */
static uint64_t after(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void lose(struct world *world, enum keel_goodput_cause cause, uint64_t ns)
{
    world->out->ns[cause] += ns;
}

/* ---- nodes --------------------------------------------------------------------------------------------- */

static uint64_t vacant(const struct world *world)
{
    const uint64_t spares = world->model->spares;
    return world->out_count > spares ? world->out_count - spares : 0;
}

static uint64_t alive(const struct world *world)
{
    const uint64_t gone = vacant(world);
    return gone < world->model->nodes ? world->model->nodes - gone : 0;
}

static void send_to_repair(struct world *world, uint64_t until_ns, uint32_t count)
{
    size_t at = world->back_count++;
    for (; at > 0 && world->backs[at - 1].at_ns < until_ns; at--)
        world->backs[at] = world->backs[at - 1];
    world->backs[at] = (struct back){until_ns, count};
    world->out_count += count;
}

static uint64_t next_back(const struct world *world)
{
    return world->back_count > 0 ? world->backs[world->back_count - 1].at_ns : UINT64_MAX;
}

static void take_back(struct world *world)
{
    while (next_back(world) <= world->now_ns)
        world->out_count -= world->backs[--world->back_count].count;
}

/* ---- snapshots ----------------------------------------------------------------------------------------- */

static bool used(const struct world *world, uint32_t tier)
{
    return world->model->tiers[tier].every_steps != 0;
}

/* Snapshots that are drained by now count. */
static void settle_tiers(struct world *world)
{
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++) {
        struct tier *tier = &world->tiers[i];
        if (tier->done_ns == 0 || tier->done_ns > world->now_ns)
            continue;
        tier->durable_step = later(tier->durable_step, tier->pending_step);
        tier->done_ns = 0;
    }
}

/* What is not durable lacks the share of who was lost. */
static void drop_pending(struct world *world)
{
    settle_tiers(world);
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++)
        world->tiers[i].done_ns = 0;
}

static bool is_due(const struct world *world, uint32_t tier)
{
    return used(world, tier) && world->steps % world->model->tiers[tier].every_steps == 0;
}

static uint64_t steps_to_snapshot(const struct world *world)
{
    uint64_t steps = UINT64_MAX;
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++)
        if (used(world, i))
            steps = earlier(steps, world->model->tiers[i].every_steps -
                                       world->steps % world->model->tiers[i].every_steps);
    return steps;
}

static bool was_hit(const struct world *world, uint64_t place, bool silent)
{
    for (size_t i = 0; i < world->hit_count; i++) {
        const struct hit *hit = &world->hits[i];
        if (place >= hit->first && place - hit->first < hit->count && (hit->silent || !silent))
            return true;
    }
    return false;
}

/* All who held the state of some place are lost. */
static bool is_state_lost(const struct world *world)
{
    const uint64_t nodes = world->model->nodes, copies = world->model->copies;
    for (size_t i = 0; i < world->hit_count; i++)
        for (uint64_t place = world->hits[i].first;
             place < (uint64_t)world->hits[i].first + world->hits[i].count; place++) {
            uint64_t lost = 1;
            while (lost < copies && was_hit(world, (place + lost * (nodes / copies)) % nodes, false))
                lost++;
            if (lost == copies)
                return true;
        }
    return false;
}

static bool partners_have_it(const struct world *world)
{
    const uint64_t nodes = world->model->nodes;
    for (size_t i = 0; i < world->hit_count; i++)
        for (uint64_t n = 0; n < world->hits[i].count && world->hits[i].silent; n++)
            if (was_hit(world, (world->hits[i].first + n + nodes / 3 + 1) % nodes, true))
                return false;
    return nodes > 1;
}

static bool disks_are_there(const struct world *world)
{
    for (size_t i = 0; i < world->hit_count; i++)
        if (world->hits[i].silent)
            return false;
    return true;
}

/* Members of a set lie far from one another: place modulo the number of sets. */
static bool sets_are_whole(const struct world *world)
{
    const uint64_t sets = later(world->model->nodes / world->model->set_nodes, 1);
    for (size_t i = 0; i < world->hit_count; i++)
        for (uint64_t n = 0; n < world->hits[i].count && world->hits[i].silent; n++) {
            const uint64_t set = (world->hits[i].first + n) % sets;
            uint64_t lost = 0;
            for (uint64_t place = set; place < world->model->nodes; place += sets)
                lost += was_hit(world, place, true);
            if (lost > world->model->set_lost)
                return false;
        }
    return true;
}

static bool is_whole(const struct world *world, uint32_t tier)
{
    switch (tier) {
    case KEEL_GOODPUT_TIER_PARTNER:
        return partners_have_it(world);
    case KEEL_GOODPUT_TIER_LOCAL:
        return disks_are_there(world);
    case KEEL_GOODPUT_TIER_ERASURE:
        return sets_are_whole(world);
    default:
        return true;
    }
}

/* The tier of the newest snapshot, the nearest of several; KEEL_GOODPUT_TIER_COUNT: there is none. */
static uint32_t find_snapshot(const struct world *world)
{
    uint32_t best = KEEL_GOODPUT_TIER_COUNT;
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++)
        if (used(world, i) && world->tiers[i].durable_step > 0 && is_whole(world, i) &&
            (best == KEEL_GOODPUT_TIER_COUNT ||
             world->tiers[i].durable_step > world->tiers[best].durable_step))
            best = i;
    return best;
}

/* To the state of so many steps: those behind it are to be done again. */
static void go_back(struct world *world, uint64_t step)
{
    const uint64_t again_ns = (world->steps - step) * world->model->step_ns;
    world->out->ns[KEEL_GOODPUT_WORK] -= again_ns;
    world->out->ns[KEEL_GOODPUT_AGAIN] += again_ns;
    world->steps = step;
    world->snapshot_due = false;
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++)
        world->tiers[i].durable_step = earlier(world->tiers[i].durable_step, step);
}

/* value * ppm / 1e6, without wrapping on the way. */
static uint64_t part_of(uint64_t value, uint64_t ppm)
{
    return value / 1000000 * ppm + value % 1000000 * ppm / 1000000;
}

/* ---- failures ------------------------------------------------------------------------------------------ */

static uint64_t noticed_after(const struct world *world, const struct keel_failure *failure)
{
    const struct keel_goodput_model *model = world->model;
    switch (failure->kind) {
    case KEEL_FAILURE_PROCESS:
        return model->exit_ns;
    case KEEL_FAILURE_HANG:
        return model->hang_ns;
    case KEEL_FAILURE_CORRUPT:
        return model->step_ns; /* its digest comes with the next sum */
    case KEEL_FAILURE_RUN:
        return 0;
    case KEEL_FAILURE_STOP:
        return earlier(failure->repair_ns, model->silence_ns);
    default:
        return model->silence_ns;
    }
}

static void add_slow(struct world *world, const struct keel_failure *failure)
{
    const uint64_t evicted_ns =
        world->model->slow_ns == 0 ? UINT64_MAX : after(world->now_ns, world->model->slow_ns);
    world->slows[world->slow_count++] = (struct slow_nodes){.until_ns = world->now_ns + failure->repair_ns,
                                                            .evicted_ns = evicted_ns,
                                                            .factor_ppm = failure->factor_ppm,
                                                            .count = failure->count};
}

/* The next one comes, now. */
static void take_failure(struct world *world)
{
    const struct keel_failure *failure = &world->failures[world->next++];
    struct incident *incident = &world->incident;
    KEEL_ASSERT(failure->at_ns == world->now_ns);
    world->out->failures++;
    if (failure->kind == KEEL_FAILURE_SLOW) {
        add_slow(world, failure);
        return;
    }
    if (!incident->open) {
        *incident = (struct incident){.open = true};
        world->hit_count = 0;
    }
    const uint64_t noticed_ns = after(world->now_ns, noticed_after(world, failure));
    incident->noticed_ns = later(incident->noticed_ns, noticed_ns);
    if (failure->kind == KEEL_FAILURE_STOP && failure->repair_ns <= world->model->silence_ns)
        return; /* it was waited for */
    incident->breaks = true;
    drop_pending(world);
    if (failure->kind == KEEL_FAILURE_RUN) {
        incident->goes_back = true;
        incident->begun_ns = later(incident->begun_ns, after(world->now_ns, failure->repair_ns));
        return;
    }
    incident->goes_back |= failure->kind == KEEL_FAILURE_CORRUPT;
    const bool silent = failure->kind == KEEL_FAILURE_NODE || failure->kind == KEEL_FAILURE_STOP;
    world->hits[world->hit_count++] = (struct hit){failure->first, failure->count, silent};
    send_to_repair(world, after(world->now_ns, failure->repair_ns), failure->count);
}

static uint64_t next_failure(const struct world *world)
{
    return world->next < world->count ? world->failures[world->next].at_ns : UINT64_MAX;
}

/* The time until then goes into `cause`. False: something failed before, or the end came. A node that becomes
 * slow interrupts nothing. */
static bool spend(struct world *world, enum keel_goodput_cause cause, uint64_t until_ns)
{
    const uint64_t end_ns = world->model->duration_ns;
    for (;;) {
        const uint64_t fails_ns = next_failure(world);
        const uint64_t to_ns = later(world->now_ns, earlier(until_ns, earlier(end_ns, fails_ns)));
        const bool fails = fails_ns == to_ns && fails_ns < until_ns && fails_ns < end_ns;
        lose(world, cause, to_ns - world->now_ns);
        world->now_ns = to_ns;
        if (!fails)
            return to_ns < end_ns;
        const bool interrupts = world->failures[world->next].kind != KEEL_FAILURE_SLOW;
        take_failure(world);
        if (interrupts)
            return false;
    }
}

/* Of the step that is under way so much is to be done again. */
static void lose_step(struct world *world, uint64_t ppm)
{
    const uint64_t lost_ns = part_of(world->into_ns, ppm);
    lose(world, KEEL_GOODPUT_REDO, lost_ns);
    world->into_ns -= lost_ns;
}

static bool mend(struct world *world)
{
    const struct keel_goodput_model *model = world->model;
    uint32_t tier = KEEL_GOODPUT_TIER_COUNT;
    world->incident.goes_back = world->incident.goes_back || is_state_lost(world);
    if (world->incident.goes_back) {
        lose_step(world, KEEL_GOODPUT_REDO_ALL);
        tier = find_snapshot(world);
        if (tier == KEEL_GOODPUT_TIER_COUNT)
            go_back(world, 0);
    }
    if (tier == KEEL_GOODPUT_TIER_COUNT) { /* first weights are spread as others are */
        const bool mended = spend(world, KEEL_GOODPUT_HEAL, after(world->now_ns, model->heal_ns));
        world->out->from_nothing += mended && world->incident.goes_back;
        return mended;
    }
    go_back(world, world->tiers[tier].durable_step);
    if (!spend(world, (enum keel_goodput_cause)(KEEL_GOODPUT_LOCAL + (int)tier),
               after(world->now_ns, model->tiers[tier].restore_ns)))
        return false;
    world->out->restores[tier]++;
    return true;
}

/* What is left to do about the incident. Returns when it is over, or when something else failed. */
static void recover(struct world *world)
{
    struct incident *incident = &world->incident;
    if (incident->breaks)
        lose_step(world, world->model->redo_ppm);
    if (!spend(world, KEEL_GOODPUT_DETECT, incident->noticed_ns) ||
        !spend(world, KEEL_GOODPUT_IDLE, incident->begun_ns))
        return;
    take_back(world);
    while (incident->breaks && alive(world) < world->model->fewest) {
        if (!spend(world, KEEL_GOODPUT_SPARES, next_back(world)))
            return;
        take_back(world);
    }
    if (incident->breaks &&
        (!spend(world, KEEL_GOODPUT_RECONFIGURE, after(world->now_ns, world->model->reconfigure_ns)) ||
         !mend(world)))
        return;
    incident->open = false;
    world->out->incidents += incident->breaks;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

struct step {
    uint64_t slow_ns, fewer_ns, wall_ns;
};

/* What a step takes now. Who has most shards sets the pace; so does the slowest node. */
static struct step step_now(const struct world *world)
{
    const struct keel_goodput_model *model = world->model;
    const uint64_t each = model->shards_per_node, nodes = later(alive(world), 1);
    const uint64_t most = (each * model->nodes + nodes - 1) / nodes;
    uint32_t factor_ppm = KEEL_FAILURE_FACTOR_PPM;
    for (size_t i = 0; i < world->slow_count; i++)
        if (world->slows[i].factor_ppm > factor_ppm)
            factor_ppm = world->slows[i].factor_ppm;
    struct step step = {.slow_ns = part_of(model->step_ns, factor_ppm - KEEL_FAILURE_FACTOR_PPM),
                        .fewer_ns = model->step_ns / each * (most - each)};
    step.wall_ns = model->step_ns + model->overhead_ns + step.slow_ns + step.fewer_ns;
    return step;
}

/* When something changes that counts from the next step on. */
static uint64_t next_change(const struct world *world)
{
    uint64_t at_ns = vacant(world) > 0 ? next_back(world) : UINT64_MAX;
    for (size_t i = 0; i < world->slow_count; i++)
        at_ns = earlier(at_ns, earlier(world->slows[i].until_ns, world->slows[i].evicted_ns));
    return at_ns;
}

/* A planned change of the view: somebody takes a place, and gets its state from who holds it. */
static void change_view(struct world *world)
{
    world->incident = (struct incident){.open = true, .breaks = true, .noticed_ns = world->now_ns};
    world->hit_count = 0;
    world->out->joins++;
}

/* Between two steps: who is back takes a vacant place; who is slow no more, or too long, is so no more. */
static void settle_changes(struct world *world)
{
    const uint64_t were_vacant = vacant(world);
    take_back(world);
    bool changes = vacant(world) < were_vacant;
    for (size_t i = 0; i < world->slow_count;) {
        const struct slow_nodes slow = world->slows[i];
        if (earlier(slow.until_ns, slow.evicted_ns) > world->now_ns) {
            i++;
            continue;
        }
        world->slows[i] = world->slows[--world->slow_count];
        if (slow.evicted_ns < slow.until_ns && slow.until_ns > world->now_ns) {
            send_to_repair(world, slow.until_ns, slow.count);
            changes = true;
        }
    }
    if (changes)
        change_view(world);
}

static void take_snapshot(struct world *world)
{
    if (!spend(world, KEEL_GOODPUT_STALL, after(world->now_ns, world->model->stall_ns)))
        return; /* it is tried again */
    world->snapshot_due = false;
    settle_tiers(world);
    for (uint32_t i = 0; i < KEEL_GOODPUT_TIER_COUNT; i++)
        if (is_due(world, i) && world->tiers[i].done_ns == 0) {
            world->tiers[i].pending_step = world->steps;
            world->tiers[i].done_ns = after(world->now_ns, later(world->model->tiers[i].drain_ns, 1));
        }
}

/* As many steps as nothing comes between; or a part of one, and what does. */
static void run_steps(struct world *world)
{
    const struct keel_goodput_model *model = world->model;
    const struct step step = step_now(world);
    /* What changed while an interrupted step was kept counts behind that step. */
    const uint64_t fails_ns = next_failure(world), change_ns = later(next_change(world), world->now_ns);
    const uint64_t kept_ns = earlier(world->into_ns, step.wall_ns); /* steps may be shorter now */
    lose(world, KEEL_GOODPUT_REDO, world->into_ns - kept_ns);
    world->into_ns = kept_ns;
    const uint64_t stop_ns = earlier(fails_ns, model->duration_ns);
    uint64_t steps = (stop_ns - world->now_ns + world->into_ns) / step.wall_ns;
    steps = earlier(steps, steps_to_snapshot(world));
    if (change_ns < stop_ns)
        steps =
            earlier(steps, (change_ns - world->now_ns + world->into_ns + step.wall_ns - 1) / step.wall_ns);
    if (steps == 0) {
        world->into_ns += stop_ns - world->now_ns;
        world->now_ns = stop_ns;
        if (fails_ns < model->duration_ns)
            take_failure(world);
        return;
    }
    lose(world, KEEL_GOODPUT_WORK, steps * model->step_ns);
    lose(world, KEEL_GOODPUT_OVERHEAD, steps * model->overhead_ns);
    lose(world, KEEL_GOODPUT_SLOW, steps * step.slow_ns);
    lose(world, KEEL_GOODPUT_FEWER, steps * step.fewer_ns);
    world->snapshot_due = steps == steps_to_snapshot(world);
    world->now_ns += steps * step.wall_ns - world->into_ns;
    world->steps += steps;
    world->into_ns = 0;
}

static void run(struct world *world)
{
    while (world->now_ns < world->model->duration_ns) {
        if (!world->incident.open && world->into_ns == 0)
            settle_changes(world);
        if (world->incident.open)
            recover(world);
        else if (world->snapshot_due)
            take_snapshot(world);
        else
            run_steps(world);
    }
    lose(world, KEEL_GOODPUT_END, world->into_ns);
}

enum keel_status keel_goodput_run(const struct keel_goodput_model *model,
                                  const struct keel_failures *failures, struct keel_goodput *out)
{
    struct keel_goodput result = {.steps = 0};
    struct world world = {.model = model, .out = &result, .failures = failures->at, .count = failures->count};
    KEEL_ASSERT(model->nodes > 0 && model->step_ns > 0 && model->shards_per_node > 0);
    KEEL_ASSERT(model->copies > 0 && model->copies <= model->nodes && model->fewest > 0);
    KEEL_ASSERT(model->fewest <= model->nodes && model->set_nodes > 0);
    enum keel_status status = keel_alloc(2 * failures->count + 1, sizeof *world.backs, &world.backs);
    if (status == KEEL_OK)
        status = keel_alloc(failures->count + 1, sizeof *world.slows, &world.slows);
    if (status == KEEL_OK)
        status = keel_alloc(failures->count + 1, sizeof *world.hits, &world.hits);
    if (status == KEEL_OK) {
        run(&world);
        result.steps = world.steps;
        uint64_t sum_ns = 0;
        for (uint32_t cause = 0; cause < KEEL_GOODPUT_CAUSE_COUNT; cause++)
            sum_ns += result.ns[cause];
        KEEL_ASSERT(sum_ns == model->duration_ns && world.now_ns == model->duration_ns);
        KEEL_ASSERT(result.ns[KEEL_GOODPUT_WORK] == world.steps * model->step_ns);
        *out = result;
    }
    keel_free(world.backs);
    keel_free(world.slows);
    keel_free(world.hits);
    return status;
}
