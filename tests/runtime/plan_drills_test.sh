#!/bin/sh
# plan_drills_test.sh - the plans of a run in whole runs: no view has fewer ranks than the smallest plan, and the run
# waits for others, with the same bits; when none can come it ends resumable, and says how many are needed; a worker
# that would work by another plan never joins.
set -u
here=$(dirname "$0")
. "$here/script.sh"
base="--set model.heads=8 --set cluster.device=host --set data.path=$text"
# Two ranks fit, or three, or four; one with all slices does not.
slices="$base --set job.tensor=2 --set parallel.tensor=2 --set parallel.memory=1200000"
# Three of four fit, by what ranks have of gradients and optimizer.
pieces="$base --set train.microbatches=1 --set parallel.zero=2 --set parallel.bucket=16384 --set parallel.memory=1200000"

# of FIELD EVENT: that field of all such events, a line each.
of() { grep "\"event\": *\"$2\"" "$out/events.jsonl" | sed "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/"; }
# The fewest ranks that any view had.
least() { grep '"event": *"view"' "$out/events.jsonl" | sed 's/.*"ranks": *\[\([^]]*\)\].*/\1/' | awk -F, '{ if (n == 0 || NF < n) n = NF } END { print n }'; }
waited() { [ "$(of fewest ranks-awaited | sort -u)" = "$1" ]; }
ends_short() { [ $code -eq 5 ] && grep -q "$1 of the $2 ranks that the smallest plan needs are left" "$out.log"; }

drill whole $base --set job.tensor=2 --ranks 1
check "one rank with all of it" [ $? -eq 0 ]

# Two of two.
KEEL_LOG=info drill two $slices --ranks 2 --drill kill:rank=1,step=6
check "a rank of two is lost, and one does not fit" [ $? -eq 0 ]
check "a rank of two is lost: nobody waits in a view for an engine" '! grep -q "the engine is made again" "$out.log"'
check "a rank of two is lost: the other waits for it" waited 2
check "a rank of two is lost: no view is of one" [ "$(least)" -eq 2 ]
check "a rank of two is lost: no worker fails" '! grep -q worker-failed "$out/events.jsonl"'
check "a rank of two is lost: the same bits" same_bits "$root/whole" "$out"
drill spare $slices --ranks 2 --spares 1 --set cluster.timeout_s=20 --drill kill:rank=0,step=6
check "a spare takes the place at once" '[ $? -eq 0 ] && ! grep -q ranks-awaited "$out/events.jsonl"'
check "a spare takes the place at once: the same bits" same_bits "$root/whole" "$out"

# Two of four: down to two the run goes on, with one it waits.
# kill_workers NODES: those of the run in $out, on these nodes, at once.
kill_workers() {
    pids=
    for of in $(grep -lF -- "$out/job.conf" /proc/[0-9]*/cmdline 2>/dev/null); do
        for node in $1; do
            case $(cat "$of" 2>/dev/null | tr '\0' ' ') in
                *" worker $out/job.conf "*" --node $node "*) of=${of%/cmdline} pids="$pids ${of#/proc/}" ;;
            esac
        done
    done
    kill -9 $pids
}
# begin DIR ARGUMENTS...: in the background, as $run.
begin() {
    out=$root/$1
    shift
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --out "$out" "$@" >"$out.log" 2>&1 &
    run=$!
}
# until_has FILE TEXT: that is written, or the run is over.
until_has() { until grep -q "$2" "$out/$1" 2>/dev/null || ! kill -0 "$run" 2>/dev/null; do sleep 0.05; done; }
for ms in 3000 12000 48000; do # longer where finding them took longer than the step
    rm -rf "$root/four"
    begin four $slices --ranks 4 --drill slow:rank=0,step=6,ms=$ms,steps=1
    until_has drills.jsonl slow
    kill_workers "2 3 4"
    late=$(grep -c '"step":6,' "$out/metrics.jsonl" 2>/dev/null)
    wait $run
    code=$?
    [ "${late:-0}" -ne 0 ] || break
done
check "three of four are lost" [ $code -eq 0 ]
code=
check "three of four are lost: the last waits" waited 2
check "three of four are lost: no view is of one" [ "$(least)" -ge 2 ]
check "three of four are lost: the same bits" same_bits "$root/whole" "$out"

# The same number is in the event before the run, in its views, and in what keel plan says.
"$KEEL" plan "$here/../demo/drill.conf" --set job.seed=1 $slices --ranks 4 --json >"$root/plan.json"
run_of() { sed 's/.*"run":\[//' "$root/plan.json" | sed "s/.*{\"left\":$1,\"plan\":\"\([0-9a-f]*\)\".*/\1/"; }
check "the run says which plan it has" [ "$(of plan plans)" = "$(run_of 4)" ]
check "its first view has that plan" [ "$(of plan view | head -n 1)" = "$(run_of 4)" ]
check "each view has the plan of its ranks" \
    '[ -z "$(of plan view | grep -v "$(run_of 4)\|$(run_of 3)\|$(run_of 2)")" ]'
check "one rank has no plan" grep -q '{"left":1,"ranks":1,' "$root/plan.json"

# Nobody comes back.
stay="--set cluster.respawn=no"
kills="--drill kill:rank=1,step=6 --drill kill:rank=2,step=6 --drill kill:rank=3,step=6"
drill none $slices --ranks 4 $stay $kills
code=$?
check "nobody can come: the run ends resumable, and says how many it needs" ends_short 1 2
drill none $slices --ranks 4 $stay
check "the same command goes on" [ $? -eq 0 ]
check "the same command goes on: the same bits" same_bits "$root/whole" "$out"
drill more $slices --ranks 2 $stay --drill kill:rank=0,step=6
code=$?
check "nobody can come, of two" ends_short 1 2
drill more $slices --ranks 4 $stay
check "more ranks go on" [ $? -eq 0 ]
check "more ranks go on: the same bits" same_bits "$root/whole" "$out"

# Restarts are used up: six deaths of one worker.
again=
for step in 5 6 7 8 9 10; do again="$again --drill kill:rank=1,step=$step"; done
drill used $slices --ranks 2 $again
code=$?
check "restarts are used up" ends_short 1 2
check "restarts are used up: it waited for each of them" '[ "$(of fewest ranks-awaited | wc -l)" -ge 5 ]'
drill used $slices --ranks 2
check "and the same command goes on" [ $? -eq 0 ]
check "and the same command goes on: the same bits" same_bits "$root/whole" "$out"

# Three of four, with owners.
drill pieces-1 $base --set train.microbatches=1 --ranks 1
drill pieces $pieces --ranks 4 --drill kill:rank=3,step=4
check "three ranks of pieces go on" '[ $? -eq 0 ] && ! grep -q ranks-awaited "$out/events.jsonl"'
check "three ranks of pieces: the same bits" same_bits "$root/pieces-1" "$out"
drill pieces-2 $pieces --ranks 4 --nodes 2 --drill kill:node=2,step=6
check "two wait" [ $? -eq 0 ]
fewest=$(of fewest plans)
check "two wait, for enough owners" '[ "$fewest" -ge 3 ] && waited "$fewest"'
check "two wait, and no view is of fewer" [ "$(least)" -ge "$fewest" ]
check "two wait: the same bits" same_bits "$root/pieces-1" "$out"

# Who joins a run by another plan: the job file was changed in between.
begin other $base --set train.steps=100000 --ranks 2
until_has metrics.jsonl step
sed 's/^holders = .*/holders = 1/' "$out/job.conf" >"$root/job.conf" && mv "$root/job.conf" "$out/job.conf"
kill_workers 2
until_has events.jsonl worker-failed
until_has events.jsonl '"event": *"view".*"ranks": *\[0\]'
check "a worker with another plan fails" grep -q 'this worker would by [0-9a-f]*, of other keys of the job' "$out/events.jsonl"
kill -TERM $run
wait $run
code=$?
check "and the run went on without it" '[ $code -eq 5 ] && [ "$(least)" -eq 1 ]'

# Not even all of them fit.
drill refused $slices --ranks 4 --set parallel.memory=900000
code=$?
check "too little memory is refused before the run" '[ $code -eq 3 ] && [ ! -e "$out" ]'
check "by kind" grep -q "needs [0-9]* bytes: weights [0-9]*, gradients [0-9]*, optimizer" "$out.log"
check "with what fits" grep -q "; 8 with parallel.tensor = 2 and parallel.zero = [0-3] fit" "$out.log"
drill refused $base --set train.microbatches=1 --set parallel.bucket=16384 --ranks 4 --set parallel.memory=1000000 \
    --set parallel.tensor=1 --set parallel.zero=0
check "or by which keys it fits" grep -q "; 4 with parallel.tensor = 1 and parallel.zero = [123] fit" "$out.log"

# Axes that the job leaves open are those of the nearest plan that fits, and it is said which.
open="$base --set job.tensor=2 --set train.microbatches=1 --set parallel.bucket=16384 --ranks 4"
drill open-1 $open --ranks 1
for memory in 1200000:0 1100000:1 950000:2 900000:3; do
    zero=${memory#*:}
    drill "open-$memory" $open --set parallel.memory=${memory%:*} --drill kill:rank=2,step=5
    check "open axes in ${memory%:*} bytes" [ $? -eq 0 ]
    check "open axes in ${memory%:*} bytes: zero $zero" grep -q "\"plans\".*\"zero\":$zero,\"holders\"" "$out/events.jsonl"
    check "open axes in ${memory%:*} bytes: said where it is a choice" \
        '[ $zero -eq 0 ] || { grep -q "\"plans\".*\"instead_of\":{\"tensor\":1,\"zero\":0," "$out/events.jsonl" && grep -q "zero $zero,.*does not suffice for tensor 1 and zero 0" "$out.log"; }'
    check "open axes in ${memory%:*} bytes: the same bits" same_bits "$root/open-1" "$out"
    "$KEEL" plan "$here/../demo/drill.conf" --set job.seed=1 $open --memory ${memory%:*} --json >"$root/plan.json"
    check "open axes in ${memory%:*} bytes: keel plan says the same" [ "$(of plan plans)" = "$(run_of 4)" ]
done
drill one $open --set parallel.zero=0 --set parallel.memory=930000
check "one given axis leaves the other open" '[ $? -eq 0 ] && grep -q "\"plans\".*\"tensor\":2,\"zero\":0,\"holders\"" "$out/events.jsonl"'
check "one given axis leaves the other open: the same bits" same_bits "$root/open-1" "$out"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
