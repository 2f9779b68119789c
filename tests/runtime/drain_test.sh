#!/bin/sh
# keel job drain and add: a node leaves a run in order, others take its ranks, it comes back, and the bits are those of
# an undisturbed run; on one host, and where agents dial in.
set -u
here=$(dirname "$0")
. "$here/script.sh"
export KEEL_LOG=warn TMPDIR="$root"
trap 'kill_run "$root/drained"; kill -KILL $dialled 2>/dev/null; rm -rf "$root"' EXIT
dialled=
explain() { grep -E '"(leader|view|end|agent-exit|drain.*|recovery|state-lost)"' "$out/events.jsonl"; tail -n 3 "$out.log" "$root/log"; }
begin() { # begin NAME WORDS...: in the background, as $run; longer than the test needs
    out=$root/$1
    shift
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --set cluster.device=host --out "$out" \
        --set train.decay_steps=1000 --set snapshot.every=50 --set cluster.timeout_s=3 --ranks 3 "$@" >>"$out.log" 2>&1 &
    run=$!
}
lines() { { cat "$out/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
goes_on() { kill -0 $run 2>/dev/null || ! flock -n "$out/run.lock" true; } # also before it has its lock
after() { # after N: more steps are there, or the run is over
    wanted=$(($(lines) + $1))
    while [ "$(lines)" -lt $wanted ] && goes_on; do sleep 0.02; done
}
count() { grep -c "\"event\":\"$1\"" "$out/events.jsonl"; }
job() { # job WORDS...: keel job, its exit code in $code
    "$KEEL" job "$@" >"$root/log" 2>&1
    code=$?
}
prefix_of() { # prefix_of REFERENCE: the steps of $out are the first of its
    steps "$out" >"$root/its" && steps "$1" | head -n "$(wc -l <"$root/its")" | cmp -s - "$root/its" && [ "$(wc -l <"$root/its")" -gt 0 ]
}

begin drained --set train.steps=1000000 --spares 1
until [ "$(lines)" -ge 10 ] || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
job drain "$out" 2
check "a node leaves where a spare is" [ $code -eq 0 ]
check "and that is said" grep -q "node 2 has left the run" "$root/log"
check "the spare has its rank, and nobody else went" grep -q '"cause":"drained","lost_ranks":1,"ranks":\[0,1,2\],"spares":\[\]' "$out/events.jsonl"
check "its agent says why it ended" grep -q "agent 2.*this node was drained" "$out.log"
check "which is no failure" [ "$(count agent-exit)" -eq 0 ]
job drain "$out" 2
check "it is asked for twice, and has left" [ $code -eq 0 ]
after 5
check "the next step tells of a leave, and of no loss" '! grep -q "before the loss of" "$out.log" && grep -q "committed .* before the leave of rank 1 (node 2" "$out.log"'
job drain "$out" 3
check "another leaves where none is" [ $code -eq 0 ]
check "and the plan shrinks" grep -q '"cause":"drained","lost_ranks":1,"ranks":\[0,[12]\]' "$out/events.jsonl"
after 5
kill -KILL "$(lock_holders "$out/run.lock")"
wait $run
until [ "$(count leader)" -ge 1 ] || ! goes_on; do sleep 0.02; done
after 5
check "who takes the run over starts none of them" [ -z "$(lock_holders "$out/agent-2.lock" "$out/agent-3.lock")" ]
job add "$out" 3
check "one comes back" [ $code -eq 0 ]
joined=$(count view)
until [ "$(count view)" -gt "$joined" ] || grep -q '"cause":"join"' "$out/events.jsonl" || ! goes_on; do sleep 0.02; done
after 5
job add "$out" 3
check "one that is there is not added" '[ $code -eq 2 ] && grep -q "was not drained" "$root/log"'
job drain "$out" 9
check "nor one drained that there is not" '[ $code -eq 2 ] && grep -q "NODE 9: the run has nodes 1 to 4" "$root/log"'
for node in 1 3; do job drain "$out" $node; done
after 5
for wait in 1s 5s 20s; do # until who leads has come to it
    job drain "$out" 4 --wait $wait
    ! grep -q "stays for now" "$root/log" || break
done
check "the last one stays" '[ $code -eq 1 ] && grep -q "node 4 stays for now: without it 0 ranks are left, and the smallest plan needs 1" "$root/log"'
check "and is asked for all the same, which is said" grep -q "nothing came of it in time; it is still asked for" "$root/log"
after 5
# Who leads dies: the next one knows who is away, and who is to be, by the agents alone.
led=$(count leader)
kill -KILL "$(lock_holders "$out/run.lock")"
"$KEEL" job drain "$out" 4 --wait 2m >"$root/again" 2>&1 &
again=$!
until [ "$(count leader)" -gt "$led" ] || ! goes_on; do sleep 0.02; done
until grep -q "node 4 stays for now" "$root/again" || ! kill -0 $again 2>/dev/null; do sleep 0.05; done
check "who is asked as the leader dies has it from the next one" 'grep -q "node 4 stays for now" "$root/again"'
check "which starts none of those that are away" [ -z "$(lock_holders "$out/agent-1.lock" "$out/agent-2.lock" "$out/agent-3.lock")" ]
job add "$out" 1
check "another comes back" [ $code -eq 0 ]
wait $again
code=$?
check "and it leaves then" '[ $code -eq 0 ] && grep -q "node 4 has left the run" "$root/again"'
job add "$out" 4
check "and may come back" [ $code -eq 0 ]
after 5
# What is no member of the run is not heard.
for other in forged earlier; do
    mkdir "$root/$other"
    cp -p "$out/gates" "$out/job.conf" "$out/job.key" "$out/run.lock" "$out/events.jsonl" "$root/$other"
done
awk 'BEGIN { for (i = 0; i < 64; i++) printf "%x", i % 16; print "" }' >"$root/forged/job.key"
sed -i 's/^[0-9a-f]*/00000000000000aa/' "$root/earlier/gates"
job stop "$root/forged"
check "of a run of this host that was killed nobody is asked: another may listen there now" '[ $code -eq 0 ] && grep -q ": killed" "$root/log"'
exec 9<"$root/forged/run.lock" 8<"$root/earlier/run.lock" # as if a run went on there
flock -x 9 && flock -x 8
job drain "$root/forged" 1
check "without the key of the run nobody is drained" '[ $code -eq 3 ] && grep -q "does not know the key that this directory has" "$root/log"'
job drain "$root/earlier" 1
check "nor by who means another run" '[ $code -eq 4 ] && grep -q "asks for it of another run than goes on there" "$root/log"'
exec 9<&- 8<&-
"$KEEL" agent --join "$(sed 's/^[^ ]* //' "$out/gates")" --key-file "$out/job.key" --wait 5 >"$root/log" 2>&1
check "and an agent of another host is refused" '[ $? -eq 2 ] && grep -q "has all its agents on its own host" "$root/log"'
check "no file says who is away" [ ! -e "$out/drained" ]
job stop "$out"
check "the run is stopped" '[ $code -eq 0 ] && grep -q "stopped (INTERRUPTED)" "$root/log"'
check "no state was lost" '[ "$(count state-lost)" -eq 0 ] && [ "$(count resumed)" -eq 0 ]'
taken=$(lines)
job drain "$out" 1
check "of a run that has ended none leaves" '[ $code -eq 3 ] && grep -q "no run goes on there" "$root/log"'
check "where nobody is asked any more" [ ! -e "$out/gates" ]
drained=$out

join() { # join N: the agent of a node, as $agent
    "$KEEL" agent --join "$place" --key-file "$out/job.key" --node "$1" --address "127.0.0.$1" >>"$out.agent$1.log" 2>&1 &
    agent=$!
    dialled="$dialled $agent"
}
# With twice as many steps where the run was over before the node was back.
length=$((taken > 200 ? taken : 200))
for try in 1 2 3 4 5 6; do
    rm -rf "$root"/dialled*
    begin dialled --set train.steps=$length --set cluster.launch=none --set cluster.bind=127.0.0.1
    until grep -q 'agents dial in at' "$out.log" || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
    place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
    for node in 1 2 3; do join $node; [ $node -ne 2 ] || leaver=$agent; done
    until [ "$(lines)" -ge 5 ] || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
    job drain "$out" 2
    left=$code
    wait $leaver
    ended=$?
    [ $left -eq 0 ] && [ $ended -eq 0 ] || break
    job add "$out" 2
    join 2
    until grep -q '"cause":"join"' "$out/events.jsonl" || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
    ! grep -q '"cause":"join"' "$out/events.jsonl" || break
    wait $run || break
    length=$((2 * length))
done
check "a node that dialled in leaves" [ $left -eq 0 ]
check "its agent ends, and does not dial again" '[ $ended -eq 0 ] && grep -q "this node was drained" "$out.agent2.log"'
check "it dials in again" grep -q '"cause":"join"' "$out/events.jsonl"
wait $run
code=$?
check "and the run is done" [ $code -eq 0 ]
check "no step was done again from a snapshot" [ "$(count resumed)" -eq 0 ]
calm=$out
out=$drained
check "both have the same bits" prefix_of "$calm"

begin undisturbed --set train.steps=200
wait $run
check "and those of a run that nobody left" prefix_of "$calm"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
