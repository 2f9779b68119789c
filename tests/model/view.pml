/* view.pml - how a view comes to be: the register (CASPaxos) with a leader that moves, in Promela for Spin.
 *
 * The network is the set of all that was ever sent: a receiver takes any of it, in any order, again or never. So loss,
 * reordering and repetition need no channel. A ballot is its rank among all (counter, nonce, node); a value is named by
 * the ballot that wrote it, since each write makes a new view. Acceptors' state outlives a crash, a proposer's does not.
 *
 * Checked of every reachable state:
 *   V1 no two views of one number (epoch) are ever chosen, and later ballots choose later numbers
 *   V2 a ballot is led by one node, and one node says that it is committed
 *   V3 what a leader says is committed was accepted by a majority
 *   V4 no snapshot is committed by one leader and dropped by another (rule 7 of a leader that moves)
 *   V5 (LIVE) a majority that lives, with messages that come at last, chooses a view whose leader lives
 * The holders are the same for all values; holders.pml has those that change, and replays traces of the C code.
 * Sizes: H holders, B ballots, CRASHES, WIPES (disks that are lost with their node; ABSTAINS as keel_node does then). MUTANT=n seeds a defect that must be
 * found. model.sh runs it all. */
#ifndef H
#define H 3
#endif
#ifndef B
#define B 4
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
#ifndef WIPES
#define WIPES 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define MAJORITY (H / 2 + 1)
#define ALL ((1 << H) - 1)

/* A ballot and its messages. */
typedef ballot {
    byte owner;          /* node + 1 that began it; 0: nobody */
    bool read, wrote, committed; /* the phases that are over */
    byte from;           /* the value that was read: the ballot that wrote it; 0: nothing was ever written */
    short epoch;         /* of the view that is written */
    byte promise[H];     /* of each acceptor: 0 none, else 1 + the ballot that it had accepted */
    byte accepted;       /* bit per acceptor that accepted it */
};
ballot at[B + 1];
/* acceptors, durable */
byte promised[H], accepted[H];
/* nodes */
bool alive[H];
byte current[H];         /* the ballot that it proposes or leads by; 0: none */
byte kept[B + 1];        /* of the snapshot of a view: bit 1 committed, bit 2 dropped */
int mine[H];             /* bit per ballot whose view this node made in this leadership */
byte crashes, wipes;
bool wiped[H];           /* it lost its disk: it is another process, which old messages do not reach */
byte i, count, grown;    /* of inlines, which are atomic */

#define has(set, n) (((set) >> (n)) & 1)
inline count_bits(set)
{
    count = 0;
    for (i : 0 .. H - 1) { count = count + has(set, i) }
    i = 0
}

/* ---- transitions ---- */

#define lives(b) (at[b].owner != 0 && alive[at[b].owner - 1] && current[at[b].owner - 1] == b)
#define led(b) (at[b].committed && lives(b))

/* What its proposer still repeats, or what was sent to this process. */
#define comes(n, b) (!wiped[n] || lives(b))
#ifdef ABSTAINS /* who lost its disk votes no more; it says so, which counts for "all" and for no majority */
#define votes(n) (!wiped[n])
#define abstainers (wiped[0] + 2 * wiped[1] + 4 * wiped[2])
#else
#define votes(n) true
#define abstainers 0
#endif
#define can_promise(n, b) (votes(n) && alive[n] && at[b].owner != 0 && (b) > promised[n] && comes(n, b) && (!wiped[n] || !at[b].read))
inline do_promise(n, b)
{
    promised[n] = b;
    at[b].promise[n] = accepted[n] + 1
}


#ifdef LIVE
/* The lease: nobody stands while the owner of the highest ballot lives. */
#if B == 3
#define nobody_leads (!lives(1) && !lives(2) && !lives(3))
#else
#define nobody_leads (!lives(1) && !lives(2) && !lives(3) && !lives(4))
#endif
#else
#define nobody_leads true
#endif

#ifdef LIVE
#define in_turn(b) (at[(b) - 1].owner != 0 || (b) == 1)
#else
#define in_turn(b) true
#endif
#ifdef ONE_PROPOSER
#define proposes(n) (n == 0)
#else
#define proposes(n) true
#endif
#define can_begin(n, b) (alive[n] && proposes(n) && at[b].owner == 0 && (b) > promised[n] && (b) > current[n] && nobody_leads && in_turn(b))
inline do_begin(n, b)
{
    at[b].owner = n + 1;
    current[n] = b;
    if
    :: votes(n) -> do_promise(n, b) /* it is a holder */
    :: else
    fi
}

/* The read phase is over when a majority of holders that had accepted something have answered, or all: a disk that was
 * lost answers like a new one. */
#define answered(b, n) (at[b].promise[n] > 0)
#define has_grown(b, n) (at[b].promise[n] > 1)
inline do_read(n, b, set)
{
    grown = 0;
    at[b].from = 0;
    for (i : 0 .. H - 1) {
        if
        :: has(set, i) && answered(b, i) ->
            grown = grown + (has_grown(b, i) -> 1 : 0);
#if MUTANT == 1
            at[b].from = at[b].promise[i] - 1
#else
            if
            :: at[b].promise[i] - 1 > at[b].from -> at[b].from = at[b].promise[i] - 1
            :: else
            fi
#endif
        :: has(set, i) && !answered(b, i) -> assert(false)
        :: else
        fi
    }
    i = 0;
    assert(!at[b].read && at[b].owner == n + 1); /* V2 */
    at[b].read = true
}
/* Whether so many answers end it: by `grown`, which do_read counts. */
#if MUTANT == 2
#define over(set) (grown >= MAJORITY || (set) == ALL || count >= MAJORITY)
#elif defined ABSTAINS
#define over(set) (grown >= MAJORITY || (count >= MAJORITY && ((set) | abstainers) == ALL))
#else
#define over(set) (grown >= MAJORITY || (set) == ALL)
#endif
#define can_read(n, b) (alive[n] && current[n] == (b) && (b) > 0 && !at[b].read)

#define can_write(n, b) (alive[n] && current[n] == (b) && at[b].read && !at[b].wrote)
inline do_write(n, b)
{
    at[b].wrote = true;
    at[b].epoch = at[at[b].from].epoch + 1
}

#if MUTANT == 3
#define can_accept(n, b) (alive[n] && at[b].wrote && accepted[n] < (b))
#else
#define can_accept(n, b) (votes(n) && alive[n] && at[b].wrote && (b) >= promised[n] && accepted[n] < (b) && comes(n, b))
#endif
inline do_accept(n, b)
{
    promised[n] = ((b) > promised[n] -> (b) : promised[n]);
    accepted[n] = b;
    at[b].accepted = at[b].accepted | (1 << (n));
    check_chosen(b)
}

byte others, other;
/* V1, whenever a ballot may have become chosen. */
inline check_chosen(b)
{
    count_bits(at[b].accepted);
    if
    :: count >= MAJORITY ->
        for (other : 1 .. B) {
            count_bits(at[other].accepted);
            if
            :: other != (b) && count >= MAJORITY ->
                assert(at[other].epoch != at[b].epoch);
                assert((other < (b)) == (at[other].epoch < at[b].epoch))
            :: else
            fi
        }
        other = 0
    :: else
    fi;
    count = 0
}

#define can_commit(n, b) (alive[n] && current[n] == (b) && at[b].wrote && !at[b].committed)
inline do_commit(n, b)
{
    count_bits(at[b].accepted);
    assert(count >= MAJORITY); /* V3 */
    count = 0;
    at[b].committed = true;
    mine[n] = mine[n] | (1 << (b))
}

/* A leader commits and drops snapshots of views that it made in this leadership alone. */
#define can_keep(n, b) (alive[n] && has(mine[n], b) && kept[b] == 0)
#if MUTANT == 4
#define can_drop(n, b) (alive[n] && mine[n] > (1 << (b)) && at[b].committed)
#else
#define can_drop(n, b) (alive[n] && mine[n] > (1 << (b)) && has(mine[n], b) && kept[b] == 0)
#endif
inline do_keep(n, b, how)
{
    kept[b] = kept[b] | (how);
    assert(kept[b] != 3) /* V4 */
}

/* A node that stays dead is one that does nothing more, which every run may have: so it is back at once, but for LIVE. */
#define can_wipe (wipes < WIPES)
#ifdef WINDOW
#define may_crash led(1)
#elif defined LIVE && H == 3
#define may_crash (accepted[0] > 0 && accepted[1] > 0 && accepted[2] > 0)
#elif defined LIVE
#define may_crash (accepted[0] > 0 && accepted[1] > 0 && accepted[2] > 0 && accepted[3] > 0 && accepted[4] > 0)
#else
#define may_crash (current[n] != 0 || can_wipe)
#endif
#define can_crash(n) (alive[n] && crashes < CRASHES && may_crash)

inline do_crash(n)
{
#ifdef LIVE
    alive[n] = false;
#endif
    current[n] = 0;
    mine[n] = 0;
    crashes++
}
inline do_wipe(n)
{
    promised[n] = 0;
    accepted[n] = 0;
    wiped[n] = true;
    wipes++
}

/* ---- all runs ---- */

inline read_phase(n, b)
{
    /* Any set of answers that ends it. */
    set = 0;
    count = 0;
    grown = 0;
    for (i : 0 .. H - 1) {
        if
        :: answered(b, i) -> set = set | (1 << i); count++; grown = grown + (has_grown(b, i) -> 1 : 0)
        :: true
        fi
    }
    i = 0;
    if
    :: over(set) -> do_read(n, b, set); do_write(n, b)
    :: else
    fi;
    set = 0;
    count = 0;
    grown = 0
}

#define BALLOT(b)                                                                                            \
    :: atomic { can_begin(n, b) -> do_begin(n, b) }                                                          \
    :: atomic { can_promise(n, b) -> do_promise(n, b) }                                                      \
    :: atomic { can_read(n, b) && enough(b) -> read_phase(n, b) }                                            \
    :: atomic { can_accept(n, b) && repeated(b) -> do_accept(n, b) }                                                        \
    COMMIT(b)
/* A leader repeats ACCEPT until a majority did. */
#ifdef WINDOW
#define repeated(b) (!at[b].committed)
#else
#define repeated(b) true
#endif
/* What a leader does when it knows is of no matter to V1. */
#if defined SNAPSHOTS
#define COMMIT(b)                                                                                            \
    :: atomic { can_commit(n, b) && is_chosen(b) -> do_commit(n, b) }                                        \
    :: atomic { can_keep(n, b) -> do_keep(n, b, 1) }                                                         \
    :: atomic { can_drop(n, b) -> do_keep(n, b, 2) }
#elif defined LIVE
#define COMMIT(b) :: atomic { can_commit(n, b) && is_chosen(b) -> do_commit(n, b) }
#else
#define COMMIT(b)
#endif

#if H == 3
#define bits(set) (has(set, 0) + has(set, 1) + has(set, 2))
#define answers(b) (answered(b, 0) + answered(b, 1) + answered(b, 2))
#define growns(b) (has_grown(b, 0) + has_grown(b, 1) + has_grown(b, 2))
#else
#define bits(set) (has(set, 0) + has(set, 1) + has(set, 2) + has(set, 3) + has(set, 4))
#define answers(b) (answered(b, 0) + answered(b, 1) + answered(b, 2) + answered(b, 3) + answered(b, 4))
#define growns(b) (has_grown(b, 0) + has_grown(b, 1) + has_grown(b, 2) + has_grown(b, 3) + has_grown(b, 4))
#endif
#define is_chosen(b) (bits(at[b].accepted) >= MAJORITY)
#if MUTANT == 2
#define enough(b) (answers(b) >= MAJORITY)
#elif defined ABSTAINS
#define told(b, n) (answered(b, n) || wiped[n])
#define enough(b) (growns(b) >= MAJORITY || (answers(b) >= MAJORITY && told(b, 0) && told(b, 1) && told(b, 2)))
#else
#define enough(b) (growns(b) >= MAJORITY || answers(b) == H)
#endif

proctype node(byte n)
{
    byte set;
    do
    BALLOT(1)
    BALLOT(2)
    BALLOT(3)
#if B > 3
    BALLOT(4)
#endif
#if B > 4
    BALLOT(5)
#endif
    :: atomic { can_crash(n) -> do_crash(n); if :: wipes < WIPES -> do_wipe(n) :: true fi }
    od
}

init {
    byte n;
    atomic {
        for (n : 0 .. H - 1) {
            alive[n] = true;
            run node(n)
        }
        n = 0
    }
#ifdef LIVE
    /* Nothing is left that can happen: some view was chosen whose leader lives. */
    timeout -> assert(led(1) || led(2) || led(3) || led(B))
#endif
}
