#!/bin/sh
# An upgrade replaces the program of a run that goes on: workers, agents and leaders that are started since are of the
# program that the run began with.
set -u
here=$(dirname "$0")
. "$here/script.sh"
trap 'kill_run "$root/run"; rm -rf "$root"' EXIT
explain() { tail -n 20 "$root/run.log"; }
begin() { # PROGRAM NAME STEPS
    out=$root/$2
    "$1" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --set cluster.device=host --out "$out" \
        --set "train.steps=$3" --set train.decay_steps=1000 --set cluster.timeout_s=3 --ranks 3 >"$out.log" 2>&1 &
    run=$!
}
lines() { { cat "$out/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
goes_on() { kill -0 $run 2>/dev/null || ! flock -n "$out/run.lock" true; }
after() { # N more steps
    wanted=$(($(lines) + $1))
    while [ "$(lines)" -lt $wanted ] && goes_on; do sleep 0.02; done
}
whole() { # a rank was lost, and all are there since
    grep '"event":"view"' "$out/events.jsonl" | sed '1,/"lost_ranks":[1-9]/d' | grep -q '"ranks":\[0,1,2\]'
}

# Longer than the test, so that all of it comes while the run goes on.
cp "$KEEL" "$root/keel"
begin "$root/keel" run 1000000
after 20
rm "$root/keel"
printf '#!/bin/sh\nexit 1\n' >"$root/keel"
chmod +x "$root/keel"
kill -KILL "$(lock_holders "$out/agent-2.lock")"
until whole || ! goes_on; do sleep 0.02; done
check "an agent that is killed comes back, and its worker" whole
check "by the program of the run" [ "$(ps -o comm= -p "$(lock_holders "$out/agent-2.lock")")" = keel ]
kill -KILL "$(lock_holders "$out/run.lock")"
wait $run
until grep -q '"event":"leader"' "$out/events.jsonl" || ! goes_on; do sleep 0.02; done
after 5
check "another leads" grep -q '"event":"leader"' "$out/events.jsonl"
check "to an end in order" says 0 "stopped (INTERRUPTED)" "$KEEL" job stop "$out"
begin "$KEEL" calm "$(lines)"
wait $run
check "with the same bits" same_bits "$root/run" "$out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
