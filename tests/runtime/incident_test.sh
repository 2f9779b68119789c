#!/bin/sh
# What a loss costs is told truly whoever caused it: processes of a run are killed or stopped from outside, and
# of each incident the parts add up to the time from the last commit before it to the first commit after it, and
# the lost ranks are named with node, host and board. Times are compared with one another, never with a limit.
set -u
here=$(dirname "$0")
. "$here/script.sh"
run=
trap '[ -z "$run" ] || kill_run "$out"; rm -rf "$root"' EXIT

explain() { grep -h '"recovery"\|"restarted"' "$out/events.jsonl"; }
start() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    "$KEEL" run "$here/../demo/drill.conf" --set "data.path=$root/text" --set cluster.device=host --out "$out" \
        --set train.steps=1000000 --set snapshot.every=20 --set snapshot.keep=3 "$@" >>"$out.log" 2>&1 &
    run=$!
}
alive() { kill -0 "$run" 2>/dev/null; }
lines() { [ -f "$out/metrics.jsonl" ] && wc -l <"$out/metrics.jsonl" || echo 0; }
after_steps() { # N more steps are committed, or the run is over
    want=$(($(lines) + $1))
    while [ "$(lines)" -lt $want ] && alive; do sleep 0.02; done
}
after_event() { # NAME
    while ! grep -q "\"event\":\"$1\"" "$out/events.jsonl" && alive; do sleep 0.02; done
}
stop() { kill -INT "$run" 2>/dev/null; wait "$run" 2>/dev/null; run=; }
pids() { # COMMAND [NODE]: of the run's processes
    for entry in /proc/[0-9]*; do
        words=$({ tr '\0' ' ' <"$entry/cmdline"; } 2>/dev/null)
        case $words in
        *" $1 $out/job.conf "*" --node ${2:-}"*) echo "${entry#/proc/}" ;;
        esac
    done
}
event() { grep "\"event\":\"$1\"" "$out/events.jsonl"; }
# The parts of each such event add up to its total, within 1 ms or 0.1%, and at least one is there.
sums() {
    event "$1" | tr ',{}' '\n\n\n' | awk -F: '
        /^"event"/ { n++ }
        /^"[a-z]*_s"/ { gsub(/"/, "", $1); if ($1 == "total_s") total[n] = $2; else { sum[n] += $2; bad += $2 < 0 } }
        END {
            for (i = 1; i <= n; i++) {
                d = sum[i] - total[i]
                d = d < 0 ? -d : d
                bad += total[i] <= 0 || (d > 0.001 && d > total[i] / 1000)
            }
            exit n == 0 || bad > 0
        }'
}
field() { event "$1" | tail -n 1 | sed -n "s/.*\"$2\":\([0-9.e-]*\).*/\1/p"; }
between() { # the wall time from the last commit before to the first after holds what the event says
    awk -v v="$1" -v low="$2" -v high="$3" 'BEGIN { exit !(v >= low && v <= high) }'
}
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { print b - a }'; }

# ---- a worker is killed ---- (again where the launcher heard of the last step after the loss, on a busy machine: then
# nothing was lost before it)
for try in 1 2 3 4 5; do
    rm -rf "$root/worker"
    start worker --ranks 3
    after_steps 40
    begun=$(now)
    kill -9 $(pids worker 2)
    after_event recovery
    elapsed=$(since "$begun")
    after_event board
    stop
    between "$(field recovery detect_s)" 1e-9 "$(field recovery total_s)" && break
done
check "the parts of a killed worker's loss add up" sums recovery
check "noticing it took time" between "$(field recovery detect_s)" 1e-9 "$(field recovery total_s)"
check "it took no longer than was waited for it" between "$(field recovery reconfigure_s)" 0 "$elapsed"
check "it is named: rank, node, host, board" [ -n "$(event recovery | grep '"lost":\[{"rank":1,"node":2,"local":0,"host":"'"$(uname -n)"'","board":"plain C')" ]
check "the boards are named when the run begins" [ "$(event board | grep -c '"host":"'"$(uname -n)"'"')" -ge 3 ]

# ---- a node's agent is killed ----
start agent --ranks 3 --nodes 3
after_steps 40
kill -9 $(pids agent 3)
after_event recovery
stop
check "the parts of a killed agent's loss add up" sums recovery
check "and name its rank" [ -n "$(event recovery | grep '"lost":\[{"rank":2,"node":3,')" ]

# ---- a worker is stopped: nobody says that it fails, so the silence is what it costs to notice ----
start silent --ranks 2
after_steps 40
frozen=$(pids worker 1)
begun=$(now)
kill -STOP $frozen
after_event recovery
elapsed=$(since "$begun")
stop
check "the parts of a silent worker's loss add up" sums recovery
check "noticing it took the greater part of the timeout, and no longer than it was silent" between "$(field recovery detect_s)" 0.5 "$elapsed"

# ---- all workers are killed: back to the newest snapshot, and steps are run again ----
start all --ranks 2 --set cluster.timeout_s=20 # nobody else is lost on a busy machine
after_steps 50
kill -9 $(pids worker)
after_event recovery
stop
check "the parts of the loss of all workers add up" sums recovery
check "and tell restoring" between "$(field recovery restore_s)" 1e-9 "$(field recovery total_s)"

# ---- all is killed, and the same command goes on ----
start everything --ranks 2
after_steps 50
begun=$(now)
kill_run "$out"
wait "$run" 2>/dev/null
sleep 1
start everything --ranks 2
after_event restarted
elapsed=$(since "$begun")
stop
check "the parts of a restart add up" sums restarted
check "the time that nothing ran is a part" between "$(field restarted down_s)" 1 "$elapsed"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
