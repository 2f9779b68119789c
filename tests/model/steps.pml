/* steps.pml - how a step is committed and told, while members and leaders die: in Promela, for Spin.
 *
 * Takes from view.pml that there is one view of each number. A agents with a worker each, of which one leads; steps 1 to S.
 * Nothing that is sent has to come (whatever is not heard was lost), and it may come late: what is heard is what its sender
 * knows by then. A worker's state is a number: the steps that are in it; all have the same bits.
 *
 * Checked:
 *   S1 a step is done from the state before it, by sums to which every member of the view gave its part
 *   S2 a step that was delivered is never undone: with a survivor of its view a later view goes on at it, or does it again
 *   S3 steps are delivered in order, also where the leader moves
 *   S4 a record is given up only when nobody who lives has it, and it was delivered or all who had it died
 *   S5 when nothing can happen any more and somebody lives, all steps are delivered or given up, and the run is at its end
 *   S6 when a new leader has heard all who live it can rebuild what the last one knew: each step that one of them did it either passes
 *      over, as delivered, or somebody has its record
 * MUTANT=n seeds a defect that must be found. */
#ifndef A
#define A 3
#endif
#ifndef S
#define S 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define has(set, n) (((set) >> (n)) & 1)

byte epoch, members;      /* the newest view */
bool alive[A], told[A];   /* told: of it */
byte done[A];             /* steps in the worker's state */
byte record[A];           /* bit per step whose record the agent keeps */
byte wants[A];            /* the next step that a leader wanted, as the agent heard last */
bool synced;              /* all members were told, and agreed where to go on */
byte start;               /* there */
byte given[S + 1];        /* bit per member: its part of the step, in this view */
byte leader, next;        /* the present leader, and the step that it wants; A: nobody leads */
byte heard;               /* bit per agent whose report it has */
bool delivered[S + 1];
bool lost[S + 1];         /* the record was given up */
byte did[S + 1];          /* bit per agent that did it, and did not die since */
byte crashes, restarts, i, most;

#define is_member(a) (has(members, a) && told[a])
inline new_view(set)
{
    members = set;
    epoch++;
    synced = false;
    for (i : 0 .. A - 1) { told[i] = false }
    for (i : 1 .. S) { given[i] = 0 }
    i = 0
}
inline find_living() /* into most */
{
    most = 0;
    for (i : 0 .. A - 1) { most = most | (alive[i] -> 1 << i : 0) }
    i = 0
}

/* Those who live are the next view, by the leader alone. */
#define living(a) (alive[a] -> 1 << (a) : 0)
#define all_living (living(0) | living(1) | living(2))
#define can_change (leader < A && alive[leader] && all_living != members)
#define all_told ((has(members, 0) -> told[0] : true) && (has(members, 1) -> told[1] : true) && (has(members, 2) -> told[2] : true))
#define members_live ((members & ~all_living) == 0)

inline sync_view()
{
    most = 0;
    for (i : 0 .. A - 1) {
        if
        :: has(members, i) && done[i] > most -> most = done[i]
        :: else
        fi
    }
    /* S2: who did a step, or gave its part and lives, holds the state before it at least. */
    for (i : 1 .. S) { assert((did[i] & members) == 0 || most >= i) }
    i = 0;
    start = most;
    most = 0;
    synced = true
}

/* A step of the group: parts first, then each is done by itself. */
#define can_give(a, s) (synced && is_member(a) && alive[a] && done[a] == (s) - 1 && (s) > start && !has(given[s], a))
#if MUTANT == 1
#define can_do(a, s) (synced && is_member(a) && alive[a] && done[a] == (s) - 1 && (given[s] & members) != 0)
#else
#define can_do(a, s) (synced && is_member(a) && alive[a] && done[a] == (s) - 1 && given[s] == members)
#endif
inline do_step(a, s)
{
    assert(given[s] == members); /* S1 */
    done[a] = s;
    did[s] = did[s] | (1 << a);
    record[a] = record[a] | (1 << (s))
}
/* Who is behind gets the state of who is ahead; so does a newcomer. */
#define can_heal(a) (synced && is_member(a) && alive[a] && done[a] < start)

#define leads (leader < A && alive[leader])
#define can_deliver(a, s) (leads && alive[a] && has(record[a], s) && next == (s))
inline deliver(s)
{
    assert((s) == 1 || delivered[(s) - 1] || lost[(s) - 1]); /* S3 */
    delivered[s] = true;
    next++
}
#if MUTANT == 2
#define acknowledged(a) (done[a] + 1)
#else
#define acknowledged(a) next
#endif
#define can_ack(a) (leads && alive[a] && wants[a] < acknowledged(a))
inline ack(a)
{
    wants[a] = acknowledged(a);
    record[a] = (record[a] >> wants[a]) << wants[a]
}
/* Nobody who lives has it, as far as all have said, and the run is past it. */
#define kept(s) ((alive[0] && has(record[0], s)) || (alive[1] && has(record[1], s)) || (alive[2] && has(record[2], s)))
#define holds(a, s) (alive[a] && has(heard, a) && has(record[a], s))
#define kept_by_heard(s) (holds(0, s) || holds(1, s) || holds(2, s))
#if MUTANT == 4
#define all_heard true
#else
#define all_heard ((all_living & ~heard) == 0)
#endif
#define past(s) ((alive[0] && done[0] >= (s)) || (alive[1] && done[1] >= (s)) || (alive[2] && done[2] >= (s)))
#define can_skip(s) (leads && next == (s) && all_heard && !kept_by_heard(s) && past(s))
inline skip_hole(s)
{
    /* S4: who did it and lives keeps its record until it was delivered. */
    assert(delivered[s] || (did[s] & all_living) == 0);
    lost[s] = true;
    next++
}

/* A new leader rebuilds what the last one wanted of what agents say that they heard, itself first. */
inline take_over(a)
{
    leader = a;
    heard = 0;
    next = 1;
    hear(a)
}
#define can_hear(a) (leads && alive[a] && !has(heard, a))
#if MUTANT == 3
#define said(a) (done[a] + 1)
#elif MUTANT == 5
#define said(a) (a == leader -> wants[a] : 0)
#else
#define said(a) wants[a]
#endif
inline hear(a)
{
    heard = heard | (1 << a);
    next = (said(a) > next -> said(a) : next);
    for (i : 1 .. S) { assert((all_living & ~heard) != 0 || i < next || (did[i] & all_living) == 0 || kept(i)) } /* S6 */
    i = 0
}
inline crash(a)
{
    alive[a] = false;
    told[a] = false;
    done[a] = 0;
    record[a] = 0;
    wants[a] = 0;
    heard = heard & ~(1 << a);
    for (i : 1 .. S) { did[i] = did[i] & ~(1 << a) }
    i = 0;
    crashes++
}

#define STEP(s)                                                                                              \
    :: atomic { can_give(a, s) -> given[s] = given[s] | (1 << a) }                                           \
    :: atomic { can_do(a, s) -> do_step(a, s) }                                                              \
    :: atomic { can_deliver(a, s) -> deliver(s) }                                                            \
    :: atomic { leader == a && can_skip(s) -> skip_hole(s) }

proctype agent(byte a)
{
    do
    STEP(1)
    STEP(2)
#if S > 2
    STEP(3)
#endif
    :: atomic { alive[a] && has(members, a) && !told[a] -> told[a] = true }
    :: atomic { can_heal(a) -> done[a] = start }
    :: atomic { can_ack(a) -> ack(a) }
    :: atomic { leader == a && can_change -> find_living(); new_view(most); most = 0 }
    :: atomic { alive[a] && !leads -> take_over(a) }
    :: atomic { can_hear(a) -> hear(a) }
    :: atomic { alive[a] && crashes < CRASHES -> crash(a) }
    :: atomic { !alive[a] && restarts < RESTARTS -> alive[a] = true; restarts++ } /* with nothing */
    od
}

init {
    byte n;
    atomic {
        leader = 0;
        next = 1;
        for (n : 0 .. A - 1) {
            alive[n] = true;
            run agent(n)
        }
        n = 0
    }
    do
    :: atomic { !synced && epoch > 0 && all_told && members_live -> sync_view() }
    :: timeout -> /* S5 */
        assert(next == S + 1);
        assert(delivered[1] || lost[1]);
        assert(delivered[2] || lost[2]);
        assert(all_living == members && past(S));
        break
    od
}
