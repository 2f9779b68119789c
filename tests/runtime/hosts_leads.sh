# hosts_leads.sh - part of hosts_test.sh: the launcher of agents on other hosts is killed, or cut off, and a node leads
# (cluster.holders). Sourced.
led_file() { ls -d "$out"/ckpt/.leader/*/"$1" 2>/dev/null | tail -n 1; }
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
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=none --set cluster.bind=127.0.0.1 \
    --set cluster.holders=5 --set train.steps=140 --set cluster.timeout_s=2 --set snapshot.every=10 >"$out.again.log" 2>&1 &
again=$!
check "and a node leads" await_led events.jsonl '"event":"leader"' 1
awk -v since="$since" -v now="$(date +%s.%N)" 'BEGIN { printf "note: a node led after %.1f timeouts\n", (now - since) / 2 }'
check "whose snapshots are committed" await_led events.jsonl '"event":"snapshot"' 1
check "no rank was lost" [ "$(lost_led)" -eq 0 ]
check "who asks is told who leads, and where" says 0 "led: running, process $(leads) of $(hostname)" "$KEEL" job status "$out"
kill -KILL "$(leads)"
"$KEEL" job attach "$out" >"$root/attached" 2>&1
check "who leads is killed too, and who watches sees the run end well" [ $? -eq 0 ]
check "it was told that three ranks are left" grep -q 'view [0-9]*: 3 ranks' "$root/attached"
left=0
for pid in $agents; do wait "$pid"; [ $? -eq 0 ] && left=$((left + 1)); done
check "the three others end with the run" [ $left -eq 3 ]
wait $again
check "the same command, given again at once, followed the run" '[ $? -eq 0 ] && grep -q "led by node 1" "$out.again.log"'
check "and has all lines then, and nothing is left to do" grep -q 'done before: 140 steps' "$out.again.log"
reference 140
check "with the bits of one rank" same_bits "$root/reference-140" "$out"
check "the report is there" [ -s "$out/report.html" ]

# shellcheck disable=SC2086
begin asked --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=100000 $holders
place
agents=
for k in 1 2 3 4; do join $k --address 127.0.0.$k; agents="$agents $agent"; done
await "$out/metrics.jsonl" '"step":5,'
kill -KILL "$launcher"
finish
await_led metrics.jsonl '"step"' 20
check "no node is drained there" says 3 'a node leads the run' "$KEEL" job drain "$out" 2
check "nor is one asked for" [ ! -e "$out/drained/2" ]
check "a run that a node leads is stopped from where it began" says 0 'stopped (INTERRUPTED)' "$KEEL" job stop "$out"
check "and its agents end so" agents_end 5
