#!/bin/sh
# The control plane's protocol: Promela models, of which Spin visits every state, models with a seeded defect, which it has
# to refuse, and traces of the C code (node_trace.c), which the same transitions replay; spoilt traces are refused.
# TRACES runs are traced (20), from SEED (1) on. LONG=1: larger models too, some by bit-state hashing.
set -u
BUILD=${BUILD:-build}
here=$(cd "$(dirname "$0")" && pwd)
work=$BUILD/model/work
rm -rf "$work"
mkdir -p "$work"
trace_program=$(cd "$BUILD/model" && pwd)/node_trace
cd "$work" || exit 1
passed=0 failed=0
say() { # say PASSED WORDS
    if [ "$1" = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%-6s %s\n' "$([ "$1" = 1 ] && echo ok || echo FAIL)" "$2"
}

# explore right|wrong MODEL DEFINES...: every state holds what the model asserts; or the defect is found.
explore() {
    wanted=$1 model=$2
    shift 2
    spin -a "$@" "$here/$model.pml" >spin.log 2>&1 || { cat spin.log; say 0 "$model $*: spin does not read it"; return; }
    # What Spin generates is not ours to warn about.
    # shellcheck disable=SC2086
    ${CC:-gcc} -w -O2 -DSAFETY -DNOREDUCE -DMEMLIM=6000 ${HASH:--DCOLLAPSE} -o pan pan.c || { say 0 "$model $*: pan"; return; }
    rm -f "$model.pml.trail"
    ./pan -m1000000 -E >pan.log 2>&1
    states=$(awk '/states, stored/ { print $1; exit }' pan.log)
    errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' pan.log)
    whole=$(grep -cE 'max search depth too small|reached -DMEMLIM|Search not completed' pan.log)
    found=$(sed -n 's/^pan:1: \(.\{0,60\}\).*/\1/p' pan.log | head -n 1)
    if [ "$wanted" = right ]; then
        say $((${errors:-1} == 0 && whole == 0)) "$model $*: ${states:-no} states${HASH:+ (hashed)}, ${errors:-no} errors"
    else
        say $((${errors:-0} > 0)) "$model $*: refused (${found:-nothing was found})"
    fi
}

# replay TRACE: does the model do all of it? Its word in replay.log.
replay() {
    awk -f "$here/replay.awk" "$1" "$1" >numbers 2>replay.log || return 1
    ballots=$(awk '$3 > most { most = $3 } $1 == 9 && $4 > most { most = $4 } END { print most + 0 }' numbers)
    spin -DTRACE "-DH=$(sed -n 's/^holders //p' "$1")" "-DB=$ballots" "$here/view.pml" <numbers >replay.log 2>&1
    grep -q accepted: replay.log
}

echo "== every state of the models"
explore right view -DB=3 -DCRASHES=2
explore right view -DB=3 -DCRASHES=2 -DWIPES=1 -DONE_PROPOSER
explore right view -DB=3 -DCRASHES=2 -DWIPES=1 -DABSTAINS
explore right view -DB=3 -DCRASHES=1 -DSNAPSHOTS -DONE_PROPOSER
explore right view -DB=3 -DCRASHES=1 -DLIVE
explore right view -DB=3 -DCRASHES=2 -DLIVE -DH=5
explore right steps -DCRASHES=2
if [ -n "${LONG:-}" ]; then
    explore right steps -DCRASHES=2 -DRESTARTS=2 -DS=3
    HASH=-DBITSTATE explore right view -DB=3 -DCRASHES=1 -DSNAPSHOTS
    HASH=-DBITSTATE explore right view -DB=4 -DCRASHES=2
    HASH=-DBITSTATE explore right view -DB=3 -DCRASHES=2 -DH=5
fi
echo "== seeded defects, and what is known not to hold"
explore wrong view -DB=3 -DCRASHES=1 -DMUTANT=1
explore wrong view -DB=3 -DCRASHES=2 -DWIPES=1 -DONE_PROPOSER -DMUTANT=2
explore wrong view -DB=3 -DMUTANT=3
explore wrong view -DB=3 -DCRASHES=1 -DSNAPSHOTS -DMUTANT=4
explore wrong view -DB=3 -DCRASHES=1 -DWIPES=1
explore wrong view -DB=3 -DCRASHES=1 -DLIVE -DWINDOW
for mutant in 1 2 3; do explore wrong steps -DCRASHES=1 -DMUTANT=$mutant; done

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
spoil "another content of a view" "$first"' $1 == "accept" && ++n == 2 { $5 = "abc" } NR != FNR'
spoil "a view that nobody committed" "$first"' $1 == "view" && ++n == 4 { $3 += 7 } NR != FNR'
spoil "a step twice" "$first"' $1 == "deliver" && ++n == 5 { print } NR != FNR'
spoil "a step is passed over though an agent has it" "$first"' $1 == "deliver" && ++n == 5 { $1 = "skip" } NR != FNR'
spoil "a step that nobody did" "$first"' !($1 == "record" && $3 == 7) && NR != FNR'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
