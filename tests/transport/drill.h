/* drill.h - many faults, one after the other, among the same few processes; each has a kind, a phase and an
 * operation, all from the seed.
 *
 * Where the fault is silence (stopped, black hole, one way), half of the rounds leave it to the deadline to
 * end the wait, and half to the group's silence, with a deadline far behind it.
 *
 * A round: a group is opened (and connected, unless the fault is to come before that), all run operations in
 * a row, the fault comes, everybody reports; then the survivors, the fault still in force, compute in the
 * next epoch. Then the fault is undone, whoever was killed is started again, and the next round begins.
 *
 * The parent plays the view change: it alone decides who is in the next epoch. */
#ifndef KEEL_TESTS_DRILL_H
#define KEEL_TESTS_DRILL_H

#include "drill_rank.h"

#include <poll.h>

#define FAULTS                                                                                               \
    X(KILL, "killed")                                                                                        \
    X(STOP, "stopped")                                                                                       \
    X(PAUSE, "stopped and continued")                                                                        \
    X(RESET, "connection reset")                                                                             \
    X(BLACK, "black hole")                                                                                   \
    X(ONE_WAY, "one-way partition")                                                                          \
    X(SLOW, "slow link")
#define PHASES                                                                                               \
    X(BEFORE, "before connecting")                                                                           \
    X(HANDSHAKE, "in the handshake")                                                                         \
    X(FIRST, "at the first message")                                                                         \
    X(MIDDLE, "in the middle")                                                                               \
    X(END, "at the end")

#define X(name, text) FAULT_##name,
enum fault { FAULTS FAULT_KINDS };
#undef X
#define X(name, text) PHASE_##name,
enum phase { PHASES PHASE_KINDS };
#undef X
#define X(name, text) text,
static const char *const fault_names[] = {FAULTS};
static const char *const phase_names[] = {PHASES};
#undef X

enum { DRILL_HISTOGRAM = 4096, DRILL_HANG_MS = 30000 };
#define DRILL_SILENCE_NS      (500 * KEEL_NS_PER_MS)
#define DRILL_LONG_SILENCE_NS (10 * KEEL_NS_PER_S) /* longer than any round's fault */

struct times {
    uint64_t at[DRILL_HISTOGRAM]; /* a ring of the last ones */
    uint64_t count;
};

struct drill {
    struct hosts *hosts; /* NULL: all on this one, in shared memory */
    uint32_t count;
    uint64_t seed, epoch, done;
    pid_t pids[DRILL_RANKS];
    int orders[DRILL_RANKS], reports[DRILL_RANKS];
    struct keel_address addresses[DRILL_RANKS];
    _Atomic uint64_t *harmed_ns;
    struct drill_order order;
    struct drill_report report[DRILL_RANKS];
    /* the round */
    enum fault fault;
    enum phase phase;
    uint32_t victim, other;
    uint64_t struck_ns;
    bool by_silence; /* a silent victim is to be found by that, not by the deadline */
    /* counts */
    uint64_t faults[FAULT_KINDS], phases[PHASE_KINDS], kinds[KEEL_COLLECTIVE_COUNT];
    uint64_t calls, bad, no_fault, latest_ns;
    struct times noticed[FAULT_KINDS];
    struct times missed; /* silent ones, found by their silence */
};

/* ---- processes ---- */

static inline void drill_spawn(struct drill *drill, uint32_t slot)
{
    int down[2], up[2];
    char node[32];
    ck_assert_int_eq(pipe2(down, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(up, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct drill_rank me = {
            .slot = slot, .orders = down[0], .reports = up[1], .harmed_ns = drill->harmed_ns};
        hosts_address(slot, node, sizeof node);
        if (drill->hosts != NULL && !hosts_enter(drill->hosts, slot))
            _exit(2);
        close(down[1]);
        close(up[0]);
        drill_rank_main(&me, drill->hosts != NULL ? node : NULL);
    }
    close(down[0]);
    close(up[1]);
    drill->pids[slot] = pid;
    drill->orders[slot] = down[1];
    drill->reports[slot] = up[0];
    ranks_move(up[0], &drill->addresses[slot], sizeof drill->addresses[slot], false);
}

static inline void drill_reap(struct drill *drill, uint32_t slot)
{
    kill(drill->pids[slot], SIGKILL);
    waitpid(drill->pids[slot], NULL, 0);
    close(drill->orders[slot]);
    close(drill->reports[slot]);
}

static inline void drill_start(struct drill *drill, struct hosts *hosts, uint32_t count, uint64_t seed)
{
    *drill = (struct drill){.hosts = hosts, .count = count, .seed = seed};
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    drill->harmed_ns = page;
    for (uint32_t slot = 0; slot < count; slot++)
        drill_spawn(drill, slot);
}

static inline void drill_end(struct drill *drill)
{
    for (uint32_t slot = 0; slot < drill->count; slot++)
        drill_reap(drill, slot);
    munmap((void *)drill->harmed_ns, 4096);
}

/* ---- orders and reports ---- */

static inline void drill_order_to(struct drill *drill, uint32_t slot, enum drill_verb verb)
{
    drill->order.verb = verb;
    ranks_move(drill->orders[slot], &drill->order, sizeof drill->order, true);
}

/* False when it does not answer: that is the hang that must not be. */
static inline bool drill_hears(struct drill *drill, uint32_t slot, int timeout_ms)
{
    struct pollfd fd = {.fd = drill->reports[slot], .events = POLLIN};
    int status = 0;
    if (poll(&fd, 1, timeout_ms) != 1)
        return false;
    if ((fd.revents & POLLIN) == 0) {
        char name[160];
        waitpid(drill->pids[slot], &status, 0);
        keel_net_case_name(&drill->order.it, name, sizeof name);
        ck_abort_msg("round %llu: process %u died with status 0x%x: %s %s, %u ranks, %s",
                     (unsigned long long)drill->done, slot, (unsigned)status, fault_names[drill->fault],
                     phase_names[drill->phase], drill->order.member_count, name);
    }
    ranks_move(drill->reports[slot], &drill->report[slot], sizeof drill->report[slot], false);
    return true;
}

static inline bool drill_member(const struct drill_order *order, uint32_t slot)
{
    for (uint32_t k = 0; k < order->member_count; k++)
        if (order->members[k] == slot)
            return true;
    return false;
}

static inline void drill_members(struct drill *drill, uint32_t count, int without)
{
    drill->order.member_count = 0;
    for (uint32_t slot = 0; slot < count; slot++)
        if ((int)slot != without)
            drill->order.members[drill->order.member_count++] = slot;
    memcpy(drill->order.addresses, drill->addresses, sizeof drill->addresses);
}

static inline void drill_complain(struct drill *drill, uint32_t slot, const char *why)
{
    const struct drill_report *report = &drill->report[slot];
    char name[160];
    keel_net_case_name(&drill->order.it, name, sizeof name);
    drill->bad++;
    printf("round %llu: process %u: %s; %s %s, %u %s; %u ranks, %s; status %s, names %d, after %llu: %s\n",
           (unsigned long long)drill->done, slot, why, fault_names[drill->fault], phase_names[drill->phase],
           drill->victim, drill->hosts != NULL ? "over TCP" : "in shared memory", drill->order.member_count,
           name, keel_status_name(report->status), report->named ? (int)report->lost : -1,
           (unsigned long long)report->operations, report->detail);
}

/* All members do it, and all must say OK with right results. */
static inline void drill_together(struct drill *drill, enum drill_verb verb)
{
    for (uint32_t k = 0; k < drill->order.member_count; k++)
        drill_order_to(drill, drill->order.members[k], verb);
    for (uint32_t k = 0; k < drill->order.member_count; k++) {
        uint32_t slot = drill->order.members[k];
        ck_assert_msg(drill_hears(drill, slot, DRILL_HANG_MS), "round %llu: process %u hangs in order %d",
                      (unsigned long long)drill->done, slot, (int)verb);
        const struct drill_report *report = &drill->report[slot];
        if (report->status != KEEL_OK || report->wrong != 0)
            drill_complain(drill, slot, report->wrong != 0 ? "wrong result" : "fails without a fault");
    }
}

/* ---- choosing ---- */

static inline uint64_t drill_dice(struct drill *drill, uint64_t sides)
{
    return test_random(&drill->seed) % sides;
}

static inline struct keel_net_case drill_case(struct drill *drill, uint32_t members)
{
    static const uint64_t counts[] = {1, 17, 1000, 20011, 100003};
    struct keel_net_case it = {.kind = (enum keel_collective_kind)drill_dice(drill, KEEL_RECEIVE),
                               .element = KEEL_ELEMENT_F32,
                               .reduction = KEEL_SUM,
                               .order = KEEL_ORDER_EXACT,
                               .root = (uint32_t)drill_dice(drill, members)};
    bool one_vector = it.kind == KEEL_ALL_REDUCE || it.kind == KEEL_REDUCE || it.kind == KEEL_BROADCAST ||
                      it.kind == KEEL_SEND;
    uint64_t least = drill->phase == PHASE_MIDDLE ? 3 : 0;
    it.count =
        counts[least + drill_dice(drill, 5 - least)] * (one_vector && drill->phase == PHASE_MIDDLE ? 8 : 1);
    if (it.kind != KEEL_SEND && drill_dice(drill, 2) == 0)
        it.algorithm = (enum keel_algorithm)drill_dice(drill, KEEL_ALGORITHM_COUNT);
    return it;
}

static inline enum fault drill_fault(struct drill *drill)
{
    static const struct {
        enum fault fault;
        uint32_t weight;
    } over_tcp[] = {{FAULT_KILL, 40}, {FAULT_STOP, 10},   {FAULT_PAUSE, 8}, {FAULT_RESET, 22},
                    {FAULT_BLACK, 8}, {FAULT_ONE_WAY, 8}, {FAULT_SLOW, 4}},
      here[] = {{FAULT_KILL, 70}, {FAULT_STOP, 15}, {FAULT_PAUSE, 15}};
    uint64_t dice = drill_dice(drill, 100);
    for (uint32_t k = 0;; k++) {
        uint32_t weight = drill->hosts != NULL ? over_tcp[k].weight : here[k].weight;
        if (dice < weight)
            return drill->hosts != NULL ? over_tcp[k].fault : here[k].fault;
        dice -= weight;
    }
}

static inline void drill_choose(struct drill *drill)
{
    uint32_t members = 3 + (uint32_t)drill_dice(drill, drill->count - 2);
    drill->fault = drill_fault(drill);
    drill->phase = (enum phase)drill_dice(drill, PHASE_KINDS);
    drill_members(drill, members, -1);
    drill->victim = (uint32_t)drill_dice(drill, members);
    drill->other = (drill->victim + 1 + (uint32_t)drill_dice(drill, members - 1)) % members;
    drill->order.it = drill_case(drill, members);
    drill->faults[drill->fault]++;
    drill->phases[drill->phase]++;
    drill->kinds[drill->order.it.kind]++;
}

/* ---- striking ---- */

/* The fault lasts until it is undone, and ends operations; else they must all end well. */
static inline bool drill_is_deadly(enum fault fault)
{
    return fault != FAULT_PAUSE && fault != FAULT_SLOW;
}

static inline uint64_t drill_delay_ns(struct drill *drill)
{
    static const uint64_t most_us[PHASE_KINDS] = {0, 2000, 400, 10000, 20000};
    uint64_t most = most_us[drill->phase];
    return most == 0 ? 0 : drill_dice(drill, most) * KEEL_NS_PER_US;
}

static inline void drill_strike(struct drill *drill)
{
    pid_t pid = drill->pids[drill->victim];
    bool unheard = drill->fault == FAULT_BLACK || drill_dice(drill, 2) == 0, done = true;
    drill->struck_ns = keel_now_ns();
    switch (drill->fault) {
    case FAULT_KILL:
        kill(pid, SIGKILL);
        break;
    case FAULT_STOP:
        kill(pid, SIGSTOP);
        break;
    case FAULT_PAUSE:
        kill(pid, SIGSTOP);
        keel_sleep_until_ns(keel_deadline_after_ns((10 + drill_dice(drill, 200)) * KEEL_NS_PER_MS));
        kill(pid, SIGCONT);
        break;
    case FAULT_RESET:
        hosts_reset(drill->hosts, drill->victim, drill->other);
        break;
    case FAULT_BLACK:
    case FAULT_ONE_WAY:
        done = hosts_silence(drill->hosts, drill->victim, unheard, drill->fault == FAULT_BLACK || !unheard);
        break;
    case FAULT_SLOW:
        done = hosts_slow(drill->hosts, drill->victim);
        break;
    case FAULT_KINDS:
        break;
    }
    ck_assert_msg(done, "the fault could not be made: %s", fault_names[drill->fault]);
}

/* Make the fault at its time, then hear all who can speak. A reset finds nothing where no connection is:
 * again. */
static inline void drill_run_round(struct drill *drill)
{
    bool before = drill->phase == PHASE_BEFORE || drill->fault == FAULT_SLOW;
    bool by_itself = drill->phase == PHASE_END && (drill->fault == FAULT_KILL || drill->fault == FAULT_STOP);
    drill->order.harm = 0;
    if (before)
        drill_strike(drill);
    drill->order.start_ns = keel_now_ns() + KEEL_NS_PER_MS;
    for (uint32_t k = 0; k < drill->order.member_count; k++) {
        uint32_t slot = drill->order.members[k];
        bool harms = by_itself && slot == drill->victim;
        drill->order.harm = harms ? (drill->fault == FAULT_KILL ? SIGKILL : SIGSTOP) : 0;
        drill->order.harm_after = harms ? 1 + drill_dice(drill, 3) : 0;
        if (!(before && drill->fault == FAULT_KILL && slot == drill->victim))
            drill_order_to(drill, slot, DRILL_RUN);
    }
    if (!before && !by_itself) {
        keel_sleep_until_ns(drill->order.start_ns + drill_delay_ns(drill));
        drill_strike(drill);
    }
}

static inline bool drill_is_mute(const struct drill *drill, uint32_t slot)
{
    return slot == drill->victim && (drill->fault == FAULT_KILL || drill->fault == FAULT_STOP);
}

static inline void drill_hear_all(struct drill *drill)
{
    for (uint32_t k = 0; k < drill->order.member_count; k++) {
        uint32_t slot = drill->order.members[k];
        if (drill_is_mute(drill, slot))
            continue;
        bool heard = drill->fault == FAULT_RESET && drill_hears(drill, slot, 40);
        for (uint32_t again = 0; drill->fault == FAULT_RESET && !heard && again < 40; again++) {
            uint32_t to = again < 5 ? drill->other : drill->order.members[again % drill->order.member_count];
            hosts_reset(drill->hosts, drill->victim, to);
            heard = drill_hears(drill, slot, 40);
        }
        ck_assert_msg(heard || drill_hears(drill, slot, DRILL_HANG_MS),
                      "round %llu: process %u hangs: %s %s, %u", (unsigned long long)drill->done, slot,
                      fault_names[drill->fault], phase_names[drill->phase], drill->victim);
    }
    if (drill->phase == PHASE_END && (drill->fault == FAULT_KILL || drill->fault == FAULT_STOP))
        drill->struck_ns = atomic_load(drill->harmed_ns);
}

/* ---- judging ---- */

/* Beyond the time in which the caller was ready to run and was not let: what else a full machine may add. */
#define DRILL_LATE_NS (500 * KEEL_NS_PER_MS)

static inline void drill_note_time(struct times *times, uint64_t ns)
{
    times->at[times->count++ % DRILL_HISTOGRAM] = ns;
}

/* What every call must keep, whatever the fault. */
static inline void drill_judge_call(struct drill *drill, uint32_t slot)
{
    const struct drill_report *report = &drill->report[slot];
    drill->calls += report->operations + (report->status != KEEL_OK);
    if (report->wrong != 0)
        drill_complain(drill, slot, "wrong result");
    if (report->status == KEEL_OK)
        return;
    if (report->returned_ns > report->deadline_ns &&
        report->returned_ns - report->deadline_ns > drill->latest_ns)
        drill->latest_ns = report->returned_ns - report->deadline_ns;
    if (report->returned_ns > report->deadline_ns + report->queued_ns + DRILL_LATE_NS)
        drill_complain(drill, slot, "late");
    if (report->status != KEEL_PEER_LOST && report->status != KEEL_TIMEOUT)
        drill_complain(drill, slot, "neither lost nor late");
    else if (!report->named || report->lost == slot)
        drill_complain(drill, slot, "names nobody");
}

static inline void drill_judge(struct drill *drill)
{
    uint32_t named = 0;
    bool pairs = drill->order.it.kind == KEEL_SEND; /* between two survivors it need not end with a loss */
    for (uint32_t k = 0; k < drill->order.member_count; k++) {
        uint32_t slot = drill->order.members[k];
        const struct drill_report *report = &drill->report[slot];
        if (drill_is_mute(drill, slot))
            continue;
        drill_judge_call(drill, slot);
        if (!drill_is_deadly(drill->fault) && report->status != KEEL_OK)
            drill_complain(drill, slot, "fails for a peer that is only slow");
        if (drill_is_deadly(drill->fault) && report->status == KEEL_OK)
            drill_complain(drill, slot, "ends well without the victim");
        if (slot == drill->victim || report->status == KEEL_OK)
            continue;
        named += report->named && report->lost == drill->victim;
        if (drill->fault == FAULT_KILL && !pairs &&
            (report->status != KEEL_PEER_LOST || report->lost != drill->victim))
            drill_complain(drill, slot, "does not name who was killed");
        bool chained = pairs && report->status == KEEL_TIMEOUT; /* waited for a survivor */
        struct times *times = drill->by_silence ? &drill->missed : &drill->noticed[drill->fault];
        if (!chained && report->returned_ns > drill->struck_ns)
            drill_note_time(times, report->returned_ns - drill->struck_ns);
        if (!pairs && report->status == KEEL_TIMEOUT && (drill->by_silence || drill->fault == FAULT_RESET))
            drill_complain(drill, slot, "only its deadline ends it");
    }
    if (drill_is_deadly(drill->fault) && drill->fault != FAULT_RESET && named == 0)
        drill_complain(drill, drill->victim, "nobody names the victim");
}

/* ---- a round ---- */

static inline void drill_recover(struct drill *drill)
{
    bool all = drill->fault == FAULT_PAUSE || drill->fault == FAULT_RESET || drill->fault == FAULT_SLOW;
    drill_members(drill, drill->order.member_count, all ? -1 : (int)drill->victim);
    drill->order.epoch = ++drill->epoch;
    drill->order.it = (struct keel_net_case){
        .kind = KEEL_ALL_REDUCE, .order = KEEL_ORDER_EXACT, .count = 1 + drill_dice(drill, 30000)};
    drill->order.timeout_ns = 20 * KEEL_NS_PER_S;
    drill->order.silence_ns = DRILL_LONG_SILENCE_NS;
    drill->order.operations = 2;
    drill->order.harm = 0;
    drill_together(drill, DRILL_RECOVER);
}

static inline void drill_undo(struct drill *drill)
{
    if (drill->fault == FAULT_BLACK || drill->fault == FAULT_ONE_WAY || drill->fault == FAULT_SLOW)
        hosts_heal(drill->hosts, drill->victim);
    if (drill->fault == FAULT_KILL) {
        drill_reap(drill, drill->victim);
        drill_spawn(drill, drill->victim);
    }
    if (drill->fault != FAULT_STOP)
        return;
    kill(drill->pids[drill->victim], SIGCONT);
    ck_assert_msg(drill_hears(drill, drill->victim, DRILL_HANG_MS),
                  "round %llu: process %u hangs after a stop", (unsigned long long)drill->done,
                  drill->victim);
}

static inline void drill_round(struct drill *drill)
{
    drill_choose(drill);
    bool deadly = drill_is_deadly(drill->fault);
    bool silent = drill->fault == FAULT_STOP || drill->fault == FAULT_BLACK || drill->fault == FAULT_ONE_WAY;
    drill->by_silence = silent && drill->order.it.kind != KEEL_SEND && drill_dice(drill, 2) == 0;
    drill->order.epoch = ++drill->epoch;
    drill->order.timeout_ns = 20 * KEEL_NS_PER_S;
    drill->order.silence_ns = drill->by_silence ? DRILL_SILENCE_NS : DRILL_LONG_SILENCE_NS;
    drill->order.warm = drill->phase > PHASE_HANDSHAKE;
    drill_together(drill, DRILL_OPEN);
    if ((silent && !drill->by_silence) || (deadly && drill->order.it.kind == KEEL_SEND))
        drill->order.timeout_ns = (350 + drill_dice(drill, 200)) * KEEL_NS_PER_MS;
    drill->order.operations = deadly ? UINT64_MAX : 1 + drill_dice(drill, 4);
    drill_run_round(drill);
    drill_hear_all(drill);
    drill_judge(drill);
    drill_recover(drill);
    drill_undo(drill);
    drill->done++;
}

static inline int drill_by_time(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static inline void drill_tell_times(const char *what, struct times *times)
{
    uint64_t count = times->count < DRILL_HISTOGRAM ? times->count : DRILL_HISTOGRAM;
    if (count == 0)
        return;
    qsort(times->at, count, sizeof times->at[0], drill_by_time);
    uint64_t middle = times->at[count / 2], late = times->at[count * 99 / 100], last = times->at[count - 1];
    printf("note:   %-22s %6llu returns after it: p50 %.1f ms, p99 %.1f ms, most %.1f ms\n", what,
           (unsigned long long)times->count, (double)middle / 1e6, (double)late / 1e6, (double)last / 1e6);
}

static inline void drill_tell(struct drill *drill, uint64_t seed)
{
    printf("note: %llu faults %s, seed %llu: %llu calls, %llu complaints; latest return %.1f ms after its "
           "deadline\n",
           (unsigned long long)drill->done, drill->hosts != NULL ? "over TCP" : "in shared memory",
           (unsigned long long)seed, (unsigned long long)drill->calls, (unsigned long long)drill->bad,
           (double)drill->latest_ns / 1e6);
    printf("note:  ");
    for (uint32_t k = 0; k < FAULT_KINDS; k++)
        printf(" %s %llu%s", fault_names[k], (unsigned long long)drill->faults[k],
               k + 1 < FAULT_KINDS ? "," : "\n");
    printf("note:  ");
    for (uint32_t k = 0; k < PHASE_KINDS; k++)
        printf(" %s %llu%s", phase_names[k], (unsigned long long)drill->phases[k],
               k + 1 < PHASE_KINDS ? "," : "\n");
    printf("note:  ");
    for (uint32_t k = 0; k < KEEL_RECEIVE; k++)
        printf(" %s %llu%s", keel_collective_name((enum keel_collective_kind)k),
               (unsigned long long)drill->kinds[k], k + 1 < KEEL_RECEIVE ? "," : "\n");
    for (uint32_t k = 0; k < FAULT_KINDS; k++)
        drill_tell_times(fault_names[k], &drill->noticed[k]);
    drill_tell_times("by silence of 500 ms", &drill->missed);
}

#endif
