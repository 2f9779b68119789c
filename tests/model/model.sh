#!/bin/sh
# The control plane's protocol: Promela models, of which Spin visits every state, models with a seeded defect, which it has
# to refuse, and traces of the C code (node_trace.c), which the same transitions replay; spoilt traces are refused.
# So are traces of C code with a defect. TRACES runs are traced (20), from SEED (1) on. LONG=1: larger models too, some by bit-state
# hashing.
set -u
BUILD=${BUILD:-build}
here=$(cd "$(dirname "$0")" && pwd)
work=$BUILD/model/work
rm -rf "$work"
mkdir -p "$work"
trace_program=$(cd "$BUILD/model" && pwd)/node_trace
library=$(cd "$BUILD" && pwd)/libkeel.a
cd "$work" || exit 1
passed=0 failed=0
say() { # say PASSED WORDS
    if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-6s %s\n' "$([ "$1" = 1 ] && echo ok || echo FAIL)" "$2"
}

# explore right|wrong MODEL DEFINES...: every state holds what the model asserts; or the defect is found. All state is shared:
# partial order reduction finds nothing to leave out.
explore() {
    wanted=$1 model=$2
    shift 2
    spin -a "$@" "${file:-$here/$model.pml}" >spin.log 2>&1 || { cat spin.log; say 0 "$model $*: spin does not read it"; return; }
    # What Spin generates is not ours to warn about.
    # shellcheck disable=SC2086
    ${CC:-gcc} -w "-O$([ "$wanted" = right ] && echo 2 || echo 0)" -DSAFETY -DNOREDUCE -DMEMLIM=6000 ${HASH:--DCOLLAPSE} -o pan pan.c ||
        { say 0 "$model $*: pan"; return; }
    ./pan -m1000000 -E >pan.log 2>&1
    states=$(awk '/states, stored/ { print $1; exit }' pan.log)
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
    whole=$(grep -cE 'max search depth too small|reached -DMEMLIM|Search not completed' pan.log)
    found=$(sed -n 's/^pan:1: \(.\{0,60\}\).*/\1/p' pan.log | head -n 1)
    if [ "$wanted" = right ]; then
        say $((${errors:-1} == 0 && whole == 0)) "$model $*: ${states:-no} states${HASH:+ (hashed)}, ${errors:-no} errors"
    else
        say $((${errors:-0} > 0)) "$model ${name:+$name }$*: refused (${found:-nothing was found})"
    fi
}

# seed NAME SED DEFINES...: holders.pml with that defect is refused.
seed() {
    name="'$1'" change=$2 file=defect.pml
    shift 2
    sed -E "$change" "$here/holders.pml" >$file
    if cmp -s $file "$here/holders.pml"; then
        say 0 "holders $name: there is no such line"
    else
        explore wrong holders "$@"
    fi
    unset name file
}

# list DEFINES...: the sets of messages that holders.pml reaches in any order are those that it reaches ballot by ballot.
list() {
    for order in BALLOTS ANY_ORDER; do
        explore right holders -DLIST -D$order "$@" >explored
        sed -n 's/^set//p' pan.log | sort -u >sets-$order
    done
    say "$(cmp -s sets-BALLOTS sets-ANY_ORDER && [ -s sets-BALLOTS ] && echo 1 || echo 0)" \
        "holders $*: in any order, and ballot by ballot, the same $(wc -l <sets-ANY_ORDER) sets of messages"
}

# replay TRACE: does the model do all of it? Its word in replay.log.
replay() {
    awk -f "$here/replay.awk" "$1" "$1" >numbers 2>replay.log || return 1
    ballots=$(awk '$3 > most { most = $3 } $1 == 9 && $4 > most { most = $4 } END { print most + 0 }' numbers)
    spin -DTRACE -DN=8 "-DH=$(sed -n 's/^wanted //p' "$1")" -DFIRST=1 "-DB=$ballots" "$here/holders.pml" <numbers >replay.log 2>&1
    grep -q accepted: replay.log
}

echo "== every state of the models"
explore right view -DB=3 -DCRASHES=2
explore right view -DB=3 -DCRASHES=2 -DWIPES=1 -DONE_PROPOSER
explore right view -DB=3 -DCRASHES=2 -DWIPES=1 -DABSTAINS
explore right view -DB=3 -DCRASHES=1 -DSNAPSHOTS -DONE_PROPOSER
explore right view -DB=3 -DCRASHES=1 -DLIVE
explore right view -DB=3 -DCRASHES=2 -DLIVE -DH=5
explore right holders -DN=4 -DH=3 -DB=3 -DOTHERS
explore right holders -DN=4 -DH=3 -DB=3 -DFIRST=7
explore right holders -DN=4 -DH=3 -DB=4
explore right holders -DN=5 -DH=3 -DB=3
explore right holders -DN=3 -DH=1 -DB=3 -DANY_ORDER
explore right holders -DN=4 -DH=3 -DB=2 -DANY_ORDER
list -DN=3 -DH=1 -DB=3
list -DN=3 -DH=3 -DB=2
explore right steps -DCRASHES=2
if [ -n "${LONG:-}" ]; then
    explore right steps -DCRASHES=2 -DRESTARTS=2 -DS=3
    HASH=-DBITSTATE explore right view -DB=3 -DCRASHES=1 -DSNAPSHOTS
    HASH=-DBITSTATE explore right view -DB=4 -DCRASHES=2
    HASH=-DBITSTATE explore right view -DB=3 -DCRASHES=2 -DH=5
    explore right holders -DN=3 -DH=3 -DB=5
    explore right holders -DN=6 -DH=5 -DB=3
    explore right holders -DN=3 -DH=3 -DB=3 -DANY_ORDER
    explore right holders -DN=5 -DH=3 -DB=4 # not seen to end: more than 25 million states
fi
echo "== seeded defects, and what is known not to hold"
explore wrong view -DB=3 -DCRASHES=1 -DMUTANT=1
explore wrong view -DB=3 -DCRASHES=2 -DWIPES=1 -DONE_PROPOSER -DMUTANT=2
explore wrong view -DB=3 -DMUTANT=3
explore wrong view -DB=3 -DCRASHES=1 -DSNAPSHOTS -DMUTANT=4
explore wrong view -DB=3 -DCRASHES=1 -DWIPES=1
explore wrong view -DB=3 -DCRASHES=1 -DLIVE -DWINDOW
# Of the register whose holders move: each rule of register.c and node_leader.c left out, or another in its place. What is none: half
# for more than half (sets are odd), and a majority that answered where all or a majority that grew has to (each disk is an
# acceptor here; view.pml has those that are lost).
moves="-DN=4 -DH=3 -DB=3" any="-DN=3 -DH=1 -DB=3 -DANY_ORDER"
# shellcheck disable=SC2086
{
    seed "committed without those before" '/^#define chosen/s/majority\(at\[b\].accepted, at\[b\].before\) && //' $moves
    seed "committed by those before alone" '/^#define chosen/s/ && majority\(at\[b\].accepted, at\[b\].holders\)//' $moves
    seed "committed by either set" '/^#define chosen/s/\) && majority/) || majority/' $moves
    seed "committed by a majority of both together" '/^#define chosen/s/wrote && .*/wrote \&\& majority(at[b].accepted, at[b].before | at[b].holders))/' $moves
    seed "one holder is a majority" '/^#define majority/s/ \(.*/ (((set) \& (of)) != 0)/;' $moves
    seed "who is not asked counts" '/^#define majority/s/\(\(set\) & \(of\)\)/(set)/' $moves -DOTHERS
    seed "read without those before" '/^#define over/s/answers\(b, set, lost, set_0\(b\)\) && //' $moves
    seed "read without its own holders" '/^#define over/s/ && answers\(b, set, lost, set_1\(b\)\)//' $moves
    seed "read by either set" '/^#define over/s/\) && answers/) || answers/' $moves
    seed "read by a majority of both together" '/^#define over/s/ \(answers.*/ answers(b, set, lost, set_0(b) | set_1(b))/' $moves
    seed "read by who is asked at first" '/^#define over/s/ \(answers.*/ answers(b, set, lost, at[at[b].known].holders)/' $moves
    seed "who lost a disk counts" '/^#define answers/s/majority\(set, of\)/majority((set) | (lost), of)/' $moves
    seed "whatever is found is known" '/^#define is_known/s/ && at.*/)/' -DN=3 -DH=1 -DB=4
    seed "what is known is not regarded" '/^#define is_known/s/ \(at.*/ false/' $moves
    seed "the oldest value is read" 's/:: i < \(b\) && \(at/:: at[b].from == 0 \&\& i < (b) \&\& (at/' $moves
    seed "no value is read" 's/-> at\[b\].from = i; grown/-> grown/' $moves
    seed "others are named over what may not be committed" '/^#define may_name/s/ \(set_0.*/ true/' $moves
    seed "others are named beside those before it" 's/(at\[b\].holders = \(anew) && may_name\(b\)/\1/;s/:: !may_name\(b\) -> do_write.*/:: false/;s/:: may_name\(b\) ->/:: true ->/' $moves
    seed "those before are let go" 's/(at\[b\].before = \(anew) && may_name\(b\)/\1/' $moves
    seed "those before are the first ones" 's/(at\[b\].before = .*-> )set_1\(b\)/\1FIRST/' $moves
    seed "those before are the new ones" 's/(at\[b\].before = .*-> )set_1\(b\)/\1(holds)/' $moves
    seed "what was left is made anew" 's/at\[b\].value = .*/at[b].value = b;/' $moves
    seed "what was left is passed over" 's/:: at\[b\].from > 0 && !is_known\(b\) -> do_write/:: at[b].from > 0 \&\& !is_known(b) -> at[b].from = at[b].known; do_write/' $moves
    seed "a number twice" 's/at\[b\].epoch = .*/at[b].epoch = at[at[b].from].epoch + (anew \&\& at[b].from == 0 -> 1 : 0);/' $moves
    seed "a promise is an acceptance" '/^#define chosen/s/at\[b\].accepted/(at[b].accepted | at[b].promised)/g' $any
    seed "an older ballot is accepted" '/^#define can_accept/s/\(b\) >= promised\[n\] && //' $any
    seed "an older ballot is promised" '/^#define can_promise/s/ && \(b\) > promised\[n\]//' $any
    seed "accepting promises nothing" '/^inline do_accept/,/^}/s/promised\[n\] = b;//;/^#define can_accept/s/ && accepted\[n\] < \(b\)//' $any
    seed "a promise that is not stored" 's/^#define BALLOT\(b\).*/&\n    :: atomic { promised[n] > accepted[n] -> promised[n] = accepted[n] } \\/' $any
    seed "an acceptance that is not stored" '/^#define chosen/s/at\[b\].accepted/(at[b].accepted | gone[b])/g;s/^byte i, other, grown;/byte gone[B + 1]; &/;s/^#define BALLOT\(b\).*/&\n    :: atomic { accepted[n] == b -> at[b].accepted = at[b].accepted \& ~(1 << n); gone[b] = gone[b] | (1 << n); accepted[n] = 0 } \\/' $any
}
for mutant in 1 2 3 4 5; do explore wrong steps -DCRASHES=1 -DMUTANT=$mutant; done

echo "== traces of the C code"
actions=0 moves=0 good=0
for seed in $(seq "${SEED:-1}" $((${SEED:-1} + ${TRACES:-20} - 1))); do
    if "$trace_program" "$seed" >"trace-$seed" 2>told && replay "trace-$seed"; then
        good=$((good + 1))
        actions=$((actions + $(sed -n 's/.*accepted: \([0-9]*\).*/\1/p' replay.log)))
        moves=$((moves + $(sed -n 's/.*, \([0-9]*\) moves.*/\1/p' told)))
    else
        cat told
        tail -n 3 replay.log
    fi
done
say $((good == ${TRACES:-20})) "$good of ${TRACES:-20} traces are runs of the model: $actions actions, the leader moved $moves times"

# spoil NAME AWK: a trace of the first seed, spoilt so, is refused.
spoil() {
    awk "$2" "trace-${SEED:-1}" "trace-${SEED:-1}" >spoilt
    cmp -s spoilt "trace-${SEED:-1}" && { say 0 "a spoilt trace: $1: it is not spoilt"; return; }
    replay spoilt
    say $(($? != 0)) "a spoilt trace: $1: refused ($(grep -hE 'replay:|does not|assert' replay.log | head -n 1 | cut -c1-90))"
}
first='NR != FNR &&'
spoil "a promise that was counted was never made" "$first"' $1 == "promise" && !gone++ { next } NR != FNR'
spoil "a read phase that one holder answered" "$first"' $1 == "read" && ++n == 2 { $4 = 1 } NR != FNR'
spoil "a view whose number is one too high" "$first"' $1 == "write" && ++n == 2 { $4++ } NR != FNR'
spoil "an older ballot is accepted at the end" "$first"' $1 == "accept" && !n++ { line = $0 } NR != FNR; END { print line }'
spoil "committed before a majority accepted" 'NR == FNR { if ($1 == "commit") last = $0; next } $0 == last { next } { print } $1 == "write" && ($2 " " $3) == substr(last, 8, length($2 " " $3)) { print last }'
spoil "committed twice" "$first"' $1 == "commit" { line = $0 } NR != FNR; END { print line }'
spoil "a ballot of another node" "$first"' $1 == "begin" && ++n == 2 { $2 = $2 == 1 ? 2 : 1 } NR != FNR'
spoil "holders that do not follow" "$first"' $1 == "holders" && ++n == 2 { $4 = 56 } NR != FNR'
spoil "another content of a view" "$first"' $1 == "accept" && ++n == 2 { $5 = "abc" } NR != FNR'
spoil "a view that nobody committed" "$first"' $1 == "view" && ++n == 4 { $3 += 7 } NR != FNR'
spoil "a step twice" "$first"' $1 == "deliver" && ++n == 5 { print } NR != FNR'
spoil "a step is passed over though an agent has it" "$first"' $1 == "deliver" && ++n == 5 { $1 = "skip" } NR != FNR'
spoil "a step that nobody did" "$first"' !($1 == "record" && $3 == 7) && NR != FNR'

echo "== the C code with defects"
# mutate NAME FILE SED: one of MUTANT_TRACES traces of the C code with that defect is refused, or an assertion of the code stops it.
work=$(pwd) root=$here/../..
compile() { (cd "$root" && eval "$CC_ALL -Itests/runtime -w -o $work/$*"); }
compile node_trace.o -c tests/model/node_trace.c && compile node_sim.o -c tests/runtime/node_sim.c || exit 1
mutate() {
    source=$(find "$root/runtime" -name "$2")
    sed -E "$3" "$source" >"$2"
    cmp -s "$2" "$source" && { say 0 "$2, $1: there is no such line"; return; }
    compile mutant.o "-c $work/$2" &&
        compile mutant_trace "$TRACE_WRAPS $work/node_trace.o $work/node_sim.o $work/mutant.o $library $LIBS_ALL" || { say 0 "$2, $1: it is not built"; return; }
    for seed in $(seq 1 "${MUTANT_TRACES:-300}"); do
        ./mutant_trace "$seed" >trace-mutant 2>told
        code=$?
        if ! replay trace-mutant; then
            found="trace $seed: $(grep -hE 'replay:|does not|assert' replay.log | head -n 1 | cut -c1-90)"
        elif [ $code -ne 0 ]; then
            found="run $seed: $(grep -v '^Aborted' told | tail -n 1 | cut -c1-110)"
        else
            continue
        fi
        say 1 "$2, $1: refused ($found)"
        return
    done
    say 0 "$2, $1: not refused in ${MUTANT_TRACES:-300} traces"
}
mutate "an older ballot is accepted" register.c 's/bool ok = (.*) && (keel_ballot_compare.*);/bool ok = \1 \&\& (!prepare || \2);/'
mutate "an older ballot is promised" register.c 's/bool ok = (.*) && (keel_ballot_compare.*);/bool ok = \1 \&\& (prepare || \2);/;/promised, promised\) >= 0/d'
mutate "accepting promises nothing" register.c 's/if \(ok && (keel_ballot_compare\(ask->head.ballot, reg->promised\) > 0)/if (ok \&\& prepare \&\& \1/;/^static bool fits_together/,/^}/s/keel_ballot_compare\(accepted, promised\) <= 0 && //'
mutate "what was accepted is not told" register.c 's/reply->head.accepted = reg->accepted;/reg->phase = reg->phase;/;s/copy_value\(&reply->value, &reg->value\)/(void)0/'
mutate "one holder is a majority" register.c 's/majority = count.yes \* 2 > set->count/majority = count.yes > 0/'
mutate "another disk is the same holder" register.c 's/same = answer != NULL && .*/same = answer != NULL;/'
mutate "those before are not asked" register.c 's/return suffices\(reg, &reg->sets\[0\]\) && /return /'
mutate "its own holders are not asked" register.c 's/ && suffices\(reg, &reg->sets\[1\]\);/;/'
mutate "either set suffices" register.c 's/(sets\[0\]\)) && (suffices)/\1 || \2/'
mutate "any value is the newest" register.c 's/keel_ballot_compare\(reply->head.accepted, reg->newest\) > 0/reply->head.accepted.counter > 0/'
mutate "who is asked at first suffices" register.c 's/        ask_these\(reg, &before, &holders\);/        (void)before;/'
mutate "those before are passed over" register.c 's/        ask_these\(reg, &before, &holders\);/        ask_these(reg, \&holders, \&holders);/'
mutate "its own holders are passed over" register.c 's/        ask_these\(reg, &before, &holders\);/        ask_these(reg, \&before, \&before);/'
mutate "whatever is found is known" register.c 's/reg->known_epoch > 0 && epoch <= reg->known_epoch/reg->known_epoch > 0/'
mutate "a promise is an acceptance" register.c '/^void keel_register_write/,/^}/s/reg->answer_count = 0;//'
mutate "an answer to an older ballot counts" register.c 's/ \|\| keel_ballot_compare\(reply->head.ballot, reg->ballot\) != 0//'
mutate "a refusal counts" register.c 's/if \(!late && !reply->head.ok\)/if (false)/'
mutate "others are named over what may not be committed" node_leader.c 's/if \(keel_view_holders_same\(&sets\[0\], &sets\[1\]\)\)/if (true)/'
mutate "those before are let go" node_leader.c 's/next->before = sets\[0\];/next->before = sets[1];/'
mutate "an answer is not stored" node.c 's/return \(!changed && !node->unstored\) \|\| store_register\(node\);/return true;/'
mutate "what was promised is forgotten at a start" register.c 's/reg->promised = promised;/reg->promised = accepted;/'
mutate "what was accepted is forgotten at a start" register.c 's/reg->accepted = accepted;/reg->accepted = (struct keel_ballot){0};/;s/reg->value.bytes = value_bytes;/reg->value.bytes = 0;/'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
