/* holders.pml - the register (CASPaxos) whose value names its holders, and the next value others: register.h, in Promela for
 * Spin.
 *
 * The network is the set of all that was ever sent, as in view.pml: loss, reordering and repetition need no channel. A ballot is
 * its rank among all (counter, nonce, node), and each has a proposer of its own, which knows of one value, or of none,
 * that it is committed; one that is dead is one that does nothing more. Acceptors are nodes with their disks: one that lost its
 * disk is another, and the one before does nothing more. So neither crashes nor lost disks need a transition, and there may be
 * as many as there are ballots and acceptors.
 *
 * Checked of every reachable state:
 *   R1 no two values of one number (epoch) are ever chosen, and later ballots choose later numbers
 *   R2 a read phase that is over has found what its proposer knows to be committed, or what was made from it
 *   R3 and whatever was chosen by an earlier ballot, or what was made from it, whether its proposer knows of that or not: who
 *      takes over finds each view that was ever committed
 *   R4 who knows what is committed needs nobody but a majority of its holders, where nothing newer is found: those before may be lost
 * Each transition is a pair of can_X and do_X; a trace of the C code is replayed by the same ones (TRACE, replay.awk).
 *
 * Ballots may be visited one after the other. An acceptor promises and accepts in ascending ballots; what a ballot reads are
 * earlier ones, and what its proposer knows to be committed was chosen by an earlier one (if by a later one, a majority that it
 * needs refuses it). So each event follows from events of the same and of earlier ballots, a run may be arranged by
 * ballots without another order at any node, and as many messages are sent as before; what is checked is of the set of
 * messages. That leaves out interleavings and no set: ANY_ORDER has them all (and later values that are known), for small sizes,
 * and LIST has either print each set that it reaches: they are the same ones (model.sh). Guards of acceptors say something with ANY_ORDER alone.
 *
 * Sizes: N acceptors, of which at most H hold a value (FIRST: who holds nothing), B ballots. model.sh runs it all, and seeds defects. */
#ifndef N
#define N 4
#endif
#ifndef H
#define H 3
#endif
#ifndef B
#define B 3
#endif

#define has(set, n) (((set) >> (n)) & 1)
#define bits(set) (has(set, 0) + has(set, 1) + has(set, 2) + has(set, 3) + has(set, 4) + has(set, 5) + has(set, 6) + has(set, 7))
#define majority(set, of) (2 * bits((set) & (of)) > bits(of))
#ifndef FIRST /* who holds what was never written: bit per acceptor */
#define FIRST 1
#endif

typedef ballot {
    bool begun, read, wrote;
    byte owner;          /* TRACE: node + 1 */
    bool committed;      /* TRACE: its proposer said so */
    byte known;          /* a value that it knows to be committed: the ballot that wrote it; 0: none */
    byte from;           /* the value that was read; 0: nothing was ever written */
    byte value;          /* that is written: by the ballot that wrote it first; TRACE: by number */
    byte epoch;          /* of it */
    int past;            /* bit per value: this one, and all from which it was made */
    byte before, holders; /* whose majorities it needs: bit per acceptor */
    byte promised;       /* bit per acceptor that promised it, with what it had accepted: since nothing earlier is accepted
                            after that, the newest of the earlier ballots that it ever accepts */
    byte accepted;       /* bit per acceptor that accepted it */
};
ballot at[B + 1];        /* at[0]: nothing, held by the first */
byte promised[N], accepted[N];
byte i, other, grown;    /* of inlines, which are atomic */

/* ---- transitions ---- */

#define can_begin(b) (!at[b].begun)
inline do_begin(b, k)
{
    at[b].begun = true;
    at[b].known = k
}

#define can_promise(n, b) (at[b].begun && (b) > promised[n])
inline do_promise(n, b)
{
    promised[n] = b;
    at[b].promised = at[b].promised | (1 << (n))
}

#define chosen(b) (at[b].wrote && majority(at[b].accepted, at[b].before) && majority(at[b].accepted, at[b].holders))

/* The newest value among these answers, and which of them had accepted any. */
inline find_newest(b, set)
{
    at[b].from = 0;
    grown = 0;
    for (i : 1 .. B) {
        if
        :: i < (b) && (at[i].accepted & (set)) != 0 -> at[b].from = i; grown = grown | (at[i].accepted & (set))
        :: else
        fi
    }
    i = 0
}
/* What was read is known to be committed, or older. */
#define is_known(b) (at[b].known > 0 && at[at[b].from].epoch <= at[at[b].known].epoch)
#define set_0(b) (is_known(b) -> at[at[b].known].holders : at[at[b].from].before)
#define set_1(b) (is_known(b) -> at[at[b].known].holders : at[at[b].from].holders)

/* Where nothing is known to be committed: a majority that had accepted something, or all, but who lost the disk that is named. */
#define answers(b, set, lost, of) (majority(set, of) && (at[b].known > 0 || majority(grown, of) || (((set) | (lost)) & (of)) == (of)))
#define over(b, set, lost) (answers(b, set, lost, set_0(b)) && answers(b, set, lost, set_1(b)))
/* What was found by this ballot is what that one wrote, or was made from it. */
#define is_seen(b, by) (at[at[by].from].epoch >= at[b].epoch && has(at[at[by].from].past, at[b].value))
#define can_read(b) (at[b].begun && !at[b].read)
inline do_read(b)
{
    assert(at[at[b].from].epoch >= at[at[b].known].epoch); /* R2 */
    at[b].read = true;
    for (other : 1 .. B) { assert(other >= (b) || !chosen(other) || is_seen(other, b)) } /* R3 */
    other = 0
}

/* By the rules of register.h: other holders than now only where that is known to be committed, or needs no others. */
#define may_name(b) (set_0(b) == set_1(b))
#ifdef TRACE
byte values; /* so far: fewer than bits in `past` */
#define name_of(b) values
#else
#define name_of(b) b
#endif
#define can_write(b) (at[b].read && !at[b].wrote)
inline do_write(b, anew, holds)
{
    at[b].wrote = true;
    at[b].value = (anew -> name_of(b) : at[at[b].from].value);
    at[b].epoch = at[at[b].from].epoch + (anew -> 1 : 0);
    at[b].past = at[at[b].from].past | (1 << at[b].value);
    at[b].before = (anew && may_name(b) -> set_1(b) : set_0(b));
    at[b].holders = (anew && may_name(b) -> (holds) : set_1(b))
}

/* Who has another disk than the one by which it is named accepts as well; that counts for nobody. */
#if defined TRACE || defined OTHERS
#define is_asked(n, b) true
#else
#define is_asked(n, b) has(at[b].before | at[b].holders, n)
#endif
#define can_accept(n, b) (at[b].wrote && is_asked(n, b) && (b) >= promised[n] && accepted[n] < (b))
inline do_accept(n, b)
{
    promised[n] = b;
    accepted[n] = b;
    at[b].accepted = at[b].accepted | (1 << (n));
    check_chosen(b)
}

/* R1 and R3, whenever a ballot may have become chosen. */
inline check_chosen(b)
{
    if
    :: chosen(b) ->
        for (other : 1 .. B) {
            if
            :: other != (b) && chosen(other) ->
                assert(at[other].epoch != at[b].epoch || at[other].value == at[b].value);
                assert(at[other].epoch == at[b].epoch || (other < (b)) == (at[other].epoch < at[b].epoch))
            :: else
            fi;
            assert(other <= (b) || !at[other].read || is_seen(b, other))
        }
        other = 0
    :: else
    fi
}

/* ---- all runs ---- */

#ifndef TRACE
#define ALL ((1 << N) - 1)
#if defined LIST
/* The set of messages, as far as it says what is chosen: who accepted what. */
#define list_one(b) printf(" %d:%d.%x.%d.%d.%d", b, now.at[b].value, now.at[b].past, now.at[b].before, now.at[b].holders, now.at[b].accepted)
#define list_it c_code { printf("set"); { int b; for (b = 1; b <= B; b++) if (now.at[b].accepted) list_one(b); } printf("\n"); }
#else
#define list_it skip
#endif

/* Acceptors that hold the same, and are named by the same, are as good as one another: of those the first are taken. */
int kind[8];
#if defined ANY_ORDER || defined LIST
#define find_kinds skip
#define forget_kinds skip
#define may_take(n, set) true
#else
#define find_kinds                                                                                           \
    for (i : 0 .. N - 1) {                                                                                   \
        kind[i] = accepted[i];                                                                               \
        for (other : 0 .. B) { kind[i] = kind[i] * 4 + 2 * has(at[other].before, i) + has(at[other].holders, i) } \
    }                                                                                                        \
    i = 0;                                                                                                   \
    other = 0
#define forget_kinds                                                                                         \
    for (i : 0 .. N - 1) { kind[i] = 0 }                                                                     \
    i = 0
#define differs(m, n, set) ((m) >= (n) || kind[m] != kind[n] || has(set, m))
#define may_take(n, set) (differs(0, n, set) && differs(1, n, set) && differs(2, n, set) && differs(3, n, set) && differs(4, n, set) && differs(5, n, set))
#endif

/* Any of these, but no more than so many. */
inline choose(set, these, most)
{
    d_step { find_kinds; i = 0 }
    do
    :: i < N ->
        if
        :: has(these, i) && bits(set) < most && may_take(i, set) -> set = set | (1 << i); i++
        :: true -> i++
        fi
    :: else -> break
    od;
    true;
    d_step { i = 0; forget_kinds }
}
#ifdef ANY_ORDER
#define may_know(k, b) (k != b && chosen(k))
#else
#define may_know(k, b) (k < b && chosen(k))
#endif
inline begin_phase(b)
{
    other = 1;
    do
    :: other <= B ->
        if
        :: may_know(other, b) -> set = other; break
        :: true -> other++
        fi
    :: else -> break
    od;
    true;
    d_step { other = 0; do_begin(b, set); set = 0 }
}
/* By any answers that end it: all that are there, or without some. */
inline read_phase(b, answering)
{
    choose(set, answering, N);
    d_step {
        for (i : 0 .. N - 1) {
            if
            :: has(set, i) && !has(at[b].promised, i) -> assert(can_promise(i, b)); do_promise(i, b)
            :: else
            fi
        }
        i = 0;
        find_newest(b, set);
        /* R4 */
        assert(at[b].known == 0 || at[at[b].from].epoch > at[at[b].known].epoch || !majority(set, at[at[b].known].holders) ||
            (over(b, set, 0) && may_name(b)));
        if
        :: over(b, set, ~set) -> do_read(b)
        :: else -> at[b].from = 0
        fi;
        set = 0;
        grown = 0
    }
}
/* Any holders, in any number that is odd: instead of another number, one. */
inline write_phase(b)
{
    if
    :: at[b].from > 0 && !is_known(b) -> do_write(b, false, 0)
    :: !may_name(b) -> do_write(b, true, 0)
    :: may_name(b) ->
        choose(set, ALL, H);
        set = (bits(set) % 2 == 1 -> set : 1);
        do_write(b, true, set);
        set = 0
    fi
}

#ifdef ANY_ORDER
/* Nobody asks who is named by no value: that only makes fewer answer. */
byte named = FIRST;
#define BALLOT(b)                                                                                            \
    :: atomic { has(named, n) && can_promise(n, b) -> do_promise(n, b) }                                     \
    :: atomic { can_accept(n, b) -> d_step { do_accept(n, b); list_it } }

proctype acceptor(byte n)
{
    do
    BALLOT(1)
    BALLOT(2)
#if B > 2
    BALLOT(3)
#endif
#if B > 3
    BALLOT(4)
#endif
    od
}

proctype proposer(byte b)
{
    byte set;
    atomic { begin_phase(b) }
    do
    :: atomic { can_read(b) && at[b].promised != 0 -> read_phase(b, at[b].promised); if :: at[b].read -> break :: else fi }
    od;
    atomic { write_phase(b); named = named | at[b].holders }
}

init {
    byte n;
    atomic {
        at[0].before = FIRST;
        at[0].holders = FIRST;
        list_it;
        for (n : 0 .. N - 1) { run acceptor(n) }
        for (n : 1 .. B) { run proposer(n) }
        n = 0
    }
}
#else

/* Nothing more happens in the ballots up to this one. What no later one can tell apart becomes the same: of a value that was chosen it
 * is of no matter whether who accepted a newer one had accepted it; one that was not, and that nobody holds any more, is gone. */
inline settle(b)
{
    for (i : 0 .. N - 1) { promised[i] = b }
    i = 0;
    at[b].known = 0;
    at[b].from = 0;
    at[b].promised = 0;
#ifndef LIST
    set = 0; /* values that are left */
    for (other : 1 .. b) {
        for (i : 0 .. N - 1) {
            if
            :: accepted[i] > other && chosen(other) && has(at[other].before | at[other].holders, i) -> at[other].accepted = at[other].accepted | 1 << i
            :: accepted[i] > other && !(chosen(other) && has(at[other].before | at[other].holders, i)) -> at[other].accepted = at[other].accepted & ~(1 << i)
            :: else
            fi
        }
        if
        :: at[other].accepted == 0 -> at[other].value = 0; at[other].epoch = 0; at[other].past = 0; at[other].before = 0; at[other].holders = 0
        :: else -> set = set | (1 << at[other].value)
        fi
    }
    i = 0;
    for (other : 1 .. b) { at[other].past = at[other].past & set }
    other = 0;
    set = 0
#endif
}

init {
    byte b = 1;
    short set;
    d_step {
        at[0].before = FIRST;
        at[0].holders = FIRST;
        list_it
    }
    do
    :: b <= B ->
        atomic {
            begin_phase(b);
            read_phase(b, ALL);
            if
            :: at[b].read
            :: else -> goto unread
            fi
        }
        atomic { write_phase(b); at[b].known = 0; at[b].from = 0 }
        atomic {
#ifdef OTHERS
            choose(set, ALL, N);
#else
            choose(set, at[b].before | at[b].holders, N);
#endif
#ifndef LIST
            set != 0; /* else it did nothing, and there were fewer ballots */
#endif
            d_step {
                for (i : 0 .. N - 1) {
                    if
                    :: has(set, i) -> assert(can_accept(i, b)); do_accept(i, b)
                    :: else
                    fi
                }
                i = 0;
                set = 0;
                settle(b);
                list_it;
                b++
            }
        }
    :: else -> break
    od;
unread:
    skip
}
#endif
#else

/* ---- one run of the C code: replay.awk says it as numbers, on the standard input ---- */

chan STDIN;
int c, word;
inline read_word()
{
    word = 0;
    do
    :: STDIN?c;
       if
       :: c >= '0' && c <= '9' -> word = 10 * word + c - '0'
       :: else -> break
       fi
    od
}
/* A view that some node was told is one that was committed. */
inline find_committed(e)
{
    other = 0;
    for (i : 1 .. B) { other = (at[i].committed && at[i].epoch == (e) -> i : other) }
    i = 0
}

init {
    byte what, n, b, before, holds;
    int x, line = 0;
    at[0].before = FIRST;
    at[0].holders = FIRST;
    do
    :: read_word(); what = word;
       if
       :: what == 0 -> break
       :: else
       fi;
       read_word(); n = word;
       read_word(); b = word;
       read_word(); x = word;
       read_word(); before = word;
       read_word(); holds = word;
       line++;
       if
       :: what == 1 && can_begin(b) ->
          find_committed(x);
          assert(x == 0 || other != 0);
          do_begin(b, other);
          at[b].owner = n + 1
       :: what == 2 && can_promise(n, b) -> do_promise(n, b)
       :: what == 3 && can_read(b) && at[b].owner == n + 1 ->
          assert((x & at[b].promised) == x);
          find_newest(b, x);
          /* `before`: what it found, by these, or by one who is not asked any more. */
          assert(before >= at[b].from && (before == 0 || (at[before].accepted & at[b].promised) != 0));
          at[b].from = before;
          assert(over(b, x, holds)); /* whose disk is lost */
          grown = 0;
          do_read(b)
       :: what == 4 && can_write(b) && at[b].owner == n + 1 ->
          values = values + (at[at[b].from].epoch < x -> 1 : 0);
          assert(values < 31);
          do_write(b, at[at[b].from].epoch < x, holds);
          assert(at[b].epoch == x && at[b].before == before && at[b].holders == holds)
       :: what == 5 && can_accept(n, b) && at[b].epoch == x -> do_accept(n, b)
       :: what == 6 && at[b].owner == n + 1 && !at[b].committed && chosen(b) -> at[b].committed = true
       :: what == 7 -> find_committed(x); assert(other != 0); other = 0
       :: what == 8 -> skip /* another life of the process */
       :: what == 9 && promised[n] == b && accepted[n] == x -> skip /* what its disk held */
       :: else -> printf("line %d: the model does not do this\n", line); assert(false)
       fi
    od;
    printf("accepted: %d actions\n", line)
}
#endif
