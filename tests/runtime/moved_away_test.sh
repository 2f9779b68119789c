#!/bin/sh
# The directory of a run is moved away under it: the run goes on, its agents say so once, what a person does, and again
# ever more seldom; when it is back the run can be taken over, and stopped where it is.
set -u
here=$(dirname "$0")
. "$here/script.sh"
out=$root/moved
trap 'kill_run "$out"; kill_run "$root/away"; rm -rf "$root"' EXIT
explain() { tail -n 5 "$out.log"; }
"$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --set cluster.device=host --out "$out" \
    --set train.steps=1000000 --set train.decay_steps=1000 --set snapshot.every=0 --set cluster.timeout_s=2 --ranks 2 >"$out.log" 2>&1 &
run=$!
lines() { { cat "$1/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
after() { # after DIR N: more steps are there, or the run is over
    wanted=$(($(lines "$1") + $2))
    while [ "$(lines "$1")" -lt $wanted ] && ! flock -n "$1/run.lock" true; do sleep 0.05; done
}
until [ "$(lines "$out")" -ge 3 ] || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
said() { grep -c 'agent 1.*agent-1.lock: cannot be opened' "$out.log"; }
mv "$out" "$root/away"
for try in 1 2 3 4 5 6 7 8 9 10; do [ "$(said)" -ge 1 ] && break || sleep 0.5; done
check "an agent says so" [ "$(said)" -ge 1 ]
check "and what a person does" grep -q 'moved away or removed; .*: bring it back under that name, or end the run (keel job stop' "$out.log"
sleep 6 # 30 beats
count=$(said)
check "no more than thrice in six seconds, or a fourth time ($count)" [ "$count" -le 4 ]
before=$(lines "$root/away")
after "$root/away" 3
check "the run goes on" [ "$(lines "$root/away")" -gt "$before" ]
mv "$root/away" "$out"
sleep 1 # 5 beats: it sees that it is back
kill -KILL "$(lock_holders "$out/run.lock")"
wait $run
after "$out" 5
check "when it is back who is killed is replaced" grep -q '"event":"leader"' "$out/events.jsonl"
count=$(said)
mv "$out" "$root/away"
for _ in $(seq 20); do [ "$(said)" -gt "$count" ] && break || sleep 0.2; done # as old news it is due 15 s after the first time
check "when it is away again that is news" [ "$(said)" -gt "$count" ]
"$KEEL" job stop "$root/away" >"$root/log" 2>&1
check "it is stopped where it is" '[ $? -eq 0 ] && grep -q "stopped (INTERRUPTED)" "$root/log"'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
