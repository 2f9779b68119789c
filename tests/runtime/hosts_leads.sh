# hosts_leads.sh - part of hosts_test.sh: the launcher of agents on other hosts is killed, or cut off, and a node leads
# (cluster.holders). Sourced.
leaders= # where they write, if not into the run's store
led_file() { ls -d "${leaders:-$out/ckpt/.leader}"/*/"$1" 2>/dev/null | tail -n 1; }
# Until who leads elsewhere has written so many lines that match.
await_led() { # await_led FILE PATTERN COUNT
    for _ in $(seq 1200); do
        file=$(led_file "$1")
        [ -n "$file" ] && [ "$(grep -c -e "$2" "$file")" -ge "$3" ] && return 0
        sleep 0.05
    done
    echo "FAIL no $2 of a node that leads"
    return 1
}
# Of all who lead: no rank is lost, which is no worker that was started again.
lost_led() { cat "$out/events.jsonl" "$out"/ckpt/.leader/*/events.jsonl 2>/dev/null | grep -c '"lost_ranks":[1-9]'; }
leads() { sed 's/^[^ ]* [^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader"; } # its process

holders="--set cluster.timeout_s=2 --set snapshot.every=10 --drill slow:rank=0,step=1,ms=80,steps=1000"
# shellcheck disable=SC2086
begin led --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=5 --set train.steps=140 $holders
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":20,'
since=$(date +%s.%N)
kill -KILL "$launcher"
finish
check "a launcher of other hosts is killed" [ $code -eq 137 ]
check "who asks before a node leads is told that the run goes on" says 0 "led: running" "$KEEL" job status "$out"
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=5 --set train.steps=140 --set cluster.timeout_s=2 --set snapshot.every=10 >"$out.again.log" 2>&1 &
again=$!
check "and a node leads" await_led events.jsonl '"event":"leader"' 1
awk -v since="$since" -v now="$(date +%s.%N)" 'BEGIN { printf "note: a node led after %.1f timeouts\n", (now - since) / 2 }'
check "whose snapshots are committed" await_led events.jsonl '"event":"snapshot"' 1
check "no rank was lost" [ "$(lost_led)" -eq 0 ]
check "who asks is told who leads, and where" says 0 "led: running, process $(leads) of $(hostname)" "$KEEL" job status "$out"
mkdir "$root/kept"
folder=$(dirname "$(led_file events.jsonl)")
cp -r "$folder" "$root/kept"
kill -KILL "$(leads)"
"$KEEL" job attach "$out" >"$root/attached" 2>&1
check "who leads is killed too, and who watches sees the run end well" [ $? -eq 0 ]
check "it was told that three ranks are left" grep -q 'view [0-9]*: 3 ranks' "$root/attached"
left=0
for pid in $agents; do wait "$pid"; [ $? -eq 0 ] && left=$((left + 1)); done
check "the three others end with the run" [ $left -eq 3 ]
wait $again
check "the same command, given again at once, followed the run" '[ $? -eq 0 ] && grep -q "led by node ${folder##*-} " "$out.again.log"'
check "and has all lines then, and nothing is left to do" grep -q 'done before: 140 steps' "$out.again.log"
reference 140
check "with the bits of one rank" same_bits "$root/reference-140" "$out"
check "the report is there" [ -s "$out/report.html" ]
# As if who took the lines in had been killed before their folder was gone.
led_by() { grep -c '"led_by":' "$out/events.jsonl"; }
taken=$(led_by)
cp -r "$root"/kept/* "$out/ckpt/.leader"
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=5 --set train.steps=140 --set cluster.timeout_s=2 --set snapshot.every=10 >"$root/log" 2>&1
check "lines that come again are taken once" '[ $? -eq 0 ] && [ "$taken" -gt 0 ] && [ "$(led_by)" -eq "$taken" ]'
check "and are gone then" [ -z "$(led_file events.jsonl)" ]

# shellcheck disable=SC2086
begin asked --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=100000 $holders
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":5,'
kill -KILL "$launcher"
finish
await_led metrics.jsonl '"step"' 20
check "a node is drained there too" says 0 'node 4 has left the run' "$KEEL" job drain "$out" 4
check "by who leads, whose lines say so" await_led events.jsonl '"event":"drained"' 1
check "a run that a node leads is stopped from where it began" says 0 'stopped (INTERRUPTED)' "$KEEL" job stop "$out"
left=0 ended=0
for pid in $agents; do wait "$pid"; case $? in 0) left=$((left + 1)) ;; 5) ended=$((ended + 1)) ;; esac; done
check "and its agents end so, but for the one that had left" [ "$left$ended" = 13 ]

# Where a run ends, or goes back, follows from its losses, whoever leads: of evaluations at 10, 20, ... none is better by 10
# than the first, so it ends at 70.
early="--set train.patience=6 --set train.min_delta=10 --set train.eval_every=10 --set train.eval_batches=1 --set train.steps=140"
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job $early --set snapshot.every=10 --out "$root/early" >"$root/log" 2>&1
check "undisturbed it ends at step 70" [ "$(last_field "$root/early" step)" = 70 ]
# shellcheck disable=SC2086
begin patient --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 $holders $early
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":22,'
kill -KILL "$launcher"
finish
check "the launcher is killed with some evaluations, and a node leads" await_led events.jsonl '"event":"leader"' 1
check "which ends the run" await_led events.jsonl '"event":"early-stop","monotonic_ns":[0-9]*,"wall_ns":[0-9]*,"step":70,"best_step":10' 1
# shellcheck disable=SC2086
timeout 600 "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=3 --set cluster.timeout_s=2 --set snapshot.every=10 $early >"$root/log" 2>&1
check "the same command finds it ended early" '[ $? -eq 0 ] && grep -q "ended early, at step 70: validation was best at step 10" "$root/log"'
check "at the same step, with the same bits" same_bits "$root/early" "$out"
for pid in $agents; do wait "$pid"; done

# A launcher that is stopped for a while follows then, and goes back with the others: with the same bits it ends.
spikes="--set train.spike=back --set train.steps=60 --set train.warmup_steps=100 --set train.lr=4 --set train.min_lr=0 --set train.clip=0"
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job $spikes --set snapshot.every=10 --out "$root/spiked" >"$root/log" 2>&1
check "undisturbed the loss explodes twice" '[ $? -eq 1 ] && grep -q "twice with the same bits" "$root/log"'
at=$(sed -n 's/.*"event":"loss-spike",.*"step":\([0-9]*\),.*/\1/p' "$root/spiked/events.jsonl" | head -n 1)
# shellcheck disable=SC2086
begin back --set cluster.launch=ssh --set "cluster.shell=sh $root/local %h" --set cluster.hosts=127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4 \
    --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set cluster.timeout_s=2 --set snapshot.every=10 $spikes --drill slow:rank=0,step=1,ms=300,steps=30
await "$out/metrics.jsonl" '"step":5,'
kill -STOP "$launcher"
check "the launcher is stopped, and a node leads" await_led events.jsonl '"event":"leader"' 1
kill -CONT "$launcher"
finish
check "the loss explodes while a node leads, all go back, and it ends when it does again" '[ $code -eq 1 ] && grep -q "exploded at step $at to .*twice with the same bits" "$out.log"'
check "the node's lines say so" grep -q '"event":"loss-spike",.*"step":'"$at"',.*"led_by":' "$out/events.jsonl"
check "and its losses were known" [ "$(events losses-unknown)" -eq 0 ]
check "with the same bits" same_bits "$root/spiked" "$out"

# It is killed: who gave the same command meanwhile begins the next life.
hosts="--set cluster.launch=ssh --set cluster.hosts=127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4 --set cluster.bind=127.0.0.1"
# shellcheck disable=SC2086
begin watches $hosts --set "cluster.shell=sh $root/local %h" --set cluster.holders=3 --set cluster.timeout_s=2 --set snapshot.every=10 $spikes \
    --drill slow:rank=0,step=1,ms=300,steps=30
await "$out/metrics.jsonl" '"step":5,'
kill -KILL "$launcher"
finish
# shellcheck disable=SC2086
timeout 600 "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" $hosts --set "cluster.shell=sh $root/local %h" --set cluster.holders=3 \
    --set cluster.timeout_s=2 --set snapshot.every=10 $spikes >"$root/log" 2>&1
check "the loss explodes while a node leads and the launcher is dead: who watches goes back" '[ $? -eq 1 ] && grep -q "exploded at step $at to .*twice with the same bits" "$root/log"'
check "the node had said who is to begin the next life" grep -q '"event":"end",.*"status":"DIVERGED","detail":"the loss exploded at step '"$at"' .*give the same command' "$out/events.jsonl"
check "with the same bits" same_bits "$root/spiked" "$out"

# Nodes that keep snapshots by themselves: a node that leads tells of what they commit, and writes beside the store.
tiers="--set snapshot.local=$root/tier-nodes --set snapshot.partner=yes --set snapshot.store=$root/tier-store --set train.steps=100"
leaders=$root/tier-store/.leader
# shellcheck disable=SC2086
begin tiers --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 $holders $tiers
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":22,'
kill -KILL "$launcher"
finish
check "the launcher is killed, nodes have snapshots of their own, and one leads" await_led events.jsonl '"event":"leader"' 1
check "it tells of their snapshots" await_led events.jsonl '"event":"snapshot","monotonic_ns":[0-9]*,"wall_ns":[0-9]*,"step":[3-9]0' 1
agent=${agents##* }
kill -KILL "$agent" # what its partner has of it is needed by who goes on
# shellcheck disable=SC2086
timeout 600 "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=3 --set cluster.timeout_s=2 --set snapshot.every=10 $tiers >"$root/log" 2>&1
check "the same command has all lines, and nothing is left to do" '[ $? -eq 0 ] && grep -q "done before: 100 steps" "$root/log"'
reference 100
check "with the bits of one rank" same_bits "$root/reference-100" "$out"
leaders=
for pid in $agents; do wait "$pid"; done
