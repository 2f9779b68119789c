#!/bin/sh
# The launcher is a process like any other: it is killed, at all times, and one of its agents has another take its
# place. No step is lost, no worker is started again, the bits are the same, and who asks sees one run.
set -u
here=$(dirname "$0")
. "$here/script.sh"
trap 'kill_run "$root/hunted"; kill_run "$root/stopped"; rm -rf "$root"' EXIT
explain() { grep -E '"(leader|view|end|agent-exit)"' "$out/events.jsonl"; tail -n 3 "$out.log" "$root/attached"; }
begin() { # begin NAME: on three ranks, as $run
    out=$root/$1
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --set cluster.device=host --out "$out" \
        --set train.steps=300 --set snapshot.every=20 --set cluster.timeout_s=3 --ranks 3 \
        >>"$out.log" 2>&1 &
    run=$!
}
lines() { { cat "$out/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
leads() { lock_holders "$out/run.lock"; }
led() { grep -c '"event":"leader"' "$out/events.jsonl"; } # how many took over
goes_on() { kill -0 $run 2>/dev/null || ! flock -n "$out/run.lock" true; } # also before it has its lock
after() { # after N: more steps are there, or the run is over
    wanted=$(($(lines) + $1))
    while [ "$(lines)" -lt $wanted ] && goes_on; do sleep 0.02; done
}
until_led() { until [ "$(led)" -ge "$1" ] || ! goes_on; do sleep 0.02; done; }
lost() { grep -c '"lost_ranks":[1-9]' "$out/events.jsonl"; }
agents() { lock_holders "$out"/agent-*.lock; }

begin calm
wait $run
calm=$out

# Before there is a view; then each that leads; one together with an agent; and when the last step is there.
begin hunted
until [ "$(agents 2>/dev/null | wc -l)" -eq 3 ]; do sleep 0.01; done
"$KEEL" job attach "$out" --json >"$root/attached" 2>&1 &
watcher=$!
kill -KILL "$(leads)"
wait $run
check "a launcher that is killed is gone" [ $? -eq 137 ]
until_led 1
first=$(agents)
for count in 2 3 4; do
    after 20
    kill -KILL "$(leads)"
    until_led $count
done
check "four were killed, and replaced" [ "$(led)" -eq 4 ]
check "no agent was started again" [ "$(agents)" = "$first" ]
check "no rank was lost" [ "$(lost)" -eq 0 ]
"$KEEL" job status "$out" --json >"$root/log"
check "who asks is told who leads" grep -q "\"pid\": *$(leads)" "$root/log"
"$KEEL" run "$here/../demo/drill.conf" --out "$out" >"$root/log" 2>&1
check "another run there is refused" [ $? -ne 0 ]
check "and told how to watch or end this one" grep -q "led by process .* (keel job attach), end it (keel job stop)" "$root/log"
kill -KILL "$(agents | head -n 1)" "$(leads)"
until_led 5
while [ "$(lines)" -lt 300 ] && goes_on; do sleep 0.01; done
last=$(leads)
kill -KILL $last 2>/dev/null
while grep -qs '^State:[[:space:]]*[^XZ]' "/proc/${last:-none}/status"; do sleep 0.01; done
left=$(agents) # if the end is no event yet, one of them has another make it so
wait $watcher
watched=$?
# Killed when no agent was left, or after the end was an event: the same command makes what lacks.
[ -s "$out/report.html" ] || begin hunted
wait $run
[ -n "$left" ] || [ $watched -eq 0 ] || { "$KEEL" job attach "$out" --json >"$root/attached" 2>&1; watched=$?; }
check "who watches all the time sees it end well" [ $watched -eq 0 ]
check "all steps have the bits of an undisturbed run" same_bits "$calm" "$out"
check "and their snapshot is there" '"$KEEL" ckpt ls "$out" | grep -q 300'
check "and the report" [ -s "$out/report.html" ]

# It is stopped from elsewhere, and the same command goes on.
begin stopped
after 20
kill -KILL "$(leads)"
wait $run
"$KEEL" job stop "$out" >"$root/log" 2>&1
check "a run whose launcher is gone is stopped" '[ $? -eq 0 ] && grep -q "stopped (INTERRUPTED)" "$root/log"'
check "nothing of it is left" '! goes_on'
begin stopped
after 20
kill_run "$out"
wait $run
# As an agent has it said that was told the end by a leader that died then: here of a run that is not whole, so that its end
# is made once more.
python3 - "$KEEL" "$out" >"$root/log" 2>&1 <<'END'
import fcntl, os, socket, sys
kept = [os.open(sys.argv[2] + "/run.lock", os.O_RDWR), os.open(sys.argv[2] + "/leader.lock", os.O_RDWR)]
for lock in kept:
    fcntl.flock(lock, fcntl.LOCK_EX)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
apart = [fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in kept + [datagrams.fileno()]]
for i, fd in enumerate(apart):
    os.dup2(fd, 3 + i, inheritable=True)
words = "--run aa --incarnation 2 --heard 1 --ended OK --detail".split()
os.execv(sys.argv[1], [sys.argv[1], "lead", sys.argv[2]] + words + [""])
END
check "an end that was told is kept" [ $? -eq 0 ]
check "and is that of the whole run" same_bits "$calm" "$out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
