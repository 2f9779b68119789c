#!/bin/sh
# An upgrade replaces the program of a run that goes on: workers, agents and leaders that are started since are of the
# program that the run began with.
set -u
here=$(dirname "$0")
. "$here/script.sh"
trap 'kill_run "$root/run"; rm -rf "$root"' EXIT
explain() { tail -n 20 "$root/run.log"; }
begin() { # PROGRAM NAME
    out=$root/$2
    "$1" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --set cluster.device=host --out "$out" \
        --set train.steps=300 --set cluster.timeout_s=3 --ranks 3 >"$out.log" 2>&1 &
    run=$!
}
lines() { { cat "$out/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
goes_on() { kill -0 $run 2>/dev/null || ! flock -n "$out/run.lock" true; }
after() { # N more steps
    wanted=$(($(lines) + $1))
    while [ "$(lines)" -lt $wanted ] && goes_on; do sleep 0.02; done
}
members() { grep '"event":"view"' "$out/events.jsonl" | tail -n 1 | grep -o '"ranks":[^]]*' | tr -cd ',' | wc -c; }
whole() { after 1; while [ "$(members)" -ne 2 ] && goes_on; do sleep 0.02; done; } # two commas: three ranks

begin "$KEEL" calm
wait $run
calm=$out
cp "$KEEL" "$root/keel"
begin "$root/keel" run
after 20
rm "$root/keel"
printf '#!/bin/sh\nexit 1\n' >"$root/keel"
chmod +x "$root/keel"
agent=$(lock_holders "$out/agent-2.lock")
kill -KILL "$agent"
whole
check "an agent that is killed comes back, and its worker" [ "$(members)" -eq 2 ]
check "by the program of the run" [ "$(ps -o comm= -p "$(lock_holders "$out/agent-2.lock")")" = keel ]
kill -KILL "$(lock_holders "$out/run.lock")"
wait $run
while goes_on && [ "$(lines)" -lt 300 ]; do sleep 0.05; done
while goes_on; do sleep 0.05; done
check "another leads to the end" [ "$(lines)" -eq 300 ]
check "with the same bits" same_bits "$calm" "$out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
