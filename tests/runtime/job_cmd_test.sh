#!/bin/sh
# keel job: a run asked and stopped from outside, by its directory alone.
set -u
here=$(dirname "$0")
. "$here/script.sh"
out=$root/run
status() { "$KEEL" job status "$@" >"$root/log" 2>&1; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$root/log"; }

status "$root"
code=$?
check "a directory without a run is refused" [ $code -eq 3 ]
check "and named" grep -q "$root: no run began there" "$root/log"
status "$text"
code=$?
check "a file is refused" '[ $code -eq 2 ] && grep -q "$text: is a file; give the directory of a run" "$root/log"'
"$KEEL" job >"$root/log" 2>&1
code=$?
check "no command is wrong use" [ $code -eq 2 ]

# What --json may say is on the page.
keys=$(sed -n 's/.*keel_json_[a-z]*(&json, "\([a-z_]*\)".*/\1/p' "$here/../../runtime/commands/job_cmd.c" | sort -u)
explained() { sed -n '/^\.It Fl -json/,/^\.El/p' "$here/../../runtime/man/keel-job.1" | tr -s ' ,\n' '\n' | grep -qx "$1"; }
missing=$(for key in $keys; do explained "$key" || echo "$key"; done)
check "all of them, but for: $missing" '[ -n "$keys" ] && [ -z "$missing" ]'

# Longer than the test, so that it is stopped on its way.
"$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --out "$out" --set cluster.device=host --ranks 2 \
    --set train.steps=100000 --set train.eval_every=0 --set snapshot.every=5 >"$out.log" 2>&1 &
run=$!
steps() { [ -f "$out/metrics.jsonl" ] && [ "$(wc -l <"$out/metrics.jsonl")" -ge 20 ]; }
until steps || ! kill -0 $run 2>/dev/null; do sleep 0.2; done
status "$out" --json
code=$?
check "a run that goes on is looked at" [ $code -eq 0 ]
check "it runs" [ "$(field state)" = running ]
check "its process is known" [ "$(field pid)" = $run ]
check "and how far it is" [ "$(field step)" -ge 20 ]
check "of how many steps" [ "$(field steps)" = 100000 ]
check "by how many ranks" [ "$(field ranks)" = 2 ]
status "$out"
check "in words" grep -q "running, process $run" "$root/log"
"$KEEL" run "$here/../demo/drill.conf" --out "$out" >"$root/log" 2>&1
code=$?
check "another run there is refused, which is nothing to those who look" [ $code -ne 0 ]
"$KEEL" job attach "$out" >"$root/attached" 2>&1 &
watcher=$!
until grep -q snapshot "$root/attached" || ! kill -0 $watcher 2>/dev/null; do sleep 0.2; done
"$KEEL" job attach "$out" >"$root/left" 2>&1 &
watcher_2=$!
until grep -q running "$root/left" || ! kill -0 $watcher_2 2>/dev/null; do sleep 0.2; done
kill -TERM $watcher_2
wait $watcher_2
code=$?
check "one who watches may go" [ $code -eq 5 ]
check "and the run goes on" kill -0 $run
"$KEEL" job stop "$out" >"$root/log" 2>&1
code=$?
wait $run
ended=$?
wait $watcher
watched=$?
check "it is stopped" [ $code -eq 0 ]
check "in order" [ $ended -eq 5 ]
check "who watches sees it" grep -q "stopped (INTERRUPTED)" "$root/attached"
check "and what happens before" grep -q "] snapshot of step" "$root/attached"
check "and ends as it does" [ $watched -eq 5 ]
check "which is said" grep -q "stopped (INTERRUPTED)" "$root/log"
check "with the newest snapshot" grep -q "newest snapshot: step" "$root/log"
"$KEEL" job stop "$out" >"$root/log" 2>&1
code=$?
check "a run that has ended is not stopped again" [ $code -eq 0 ]
check "but told of" grep -q "stopped (INTERRUPTED)" "$root/log"

"$KEEL" job attach "$out" >"$root/log" 2>&1
code=$?
check "a run that has ended is watched no longer, and ends as it did" [ $code -eq 5 ]
check "told once" [ "$(grep -c "stopped (INTERRUPTED)" "$root/log")" -eq 1 ]

# Where each step's snapshot is due, and passed over while the first is still written, the last is made as it stops.
"$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --out "$root/passed" --set cluster.device=host \
    --ranks 2 --set train.steps=100000 --set snapshot.every=1 --set snapshot.bandwidth_bytes_s=100000 >"$root/passed.log" 2>&1 &
run=$!
until grep -qs '"event":"snapshot-skipped"' "$root/passed/events.jsonl" || ! kill -0 $run 2>/dev/null; do sleep 0.05; done
"$KEEL" job stop "$root/passed" >"$root/log" 2>&1
code=$?
wait $run
check "a run is stopped at a step whose snapshot was passed over" [ $code -eq 0 ]
check "and keeps that step" grep -q "newest snapshot: step $(sed -n 's/^step \([0-9]*\) of .*/\1/p' "$root/log")\$" "$root/log"

# Nobody has dialled in yet; a launcher that was killed left a file of its gates.
waits() {
    "$KEEL" run "$here/../demo/drill.conf" --set data.path="$text" --out "$root/waits" --set cluster.launch=none --set cluster.bind=127.0.0.1 >"$root/waits.log" 2>&1 &
    waits=$!
    until grep -qs "agents dial in at" "$root/waits.log" || ! kill -0 $waits 2>/dev/null; do sleep 0.1; done
}
waits
kill -KILL $waits
wait $waits
cp "$out/gates" "$root/waits/gates" 2>/dev/null || echo "1 127.0.0.1:1" >"$root/waits/gates"
waits
status "$root/waits"
"$KEEL" job drain "$root/waits" 1 --wait 1s >"$root/drained" 2>&1
check "and who asks it is not sent to a launcher that was killed" '[ $? -eq 1 ] && grep -q "waits for its agents" "$root/drained"'
check "a run that waits for its agents says so" grep -q "^no view yet: its ranks, or their agents, are still to come; no snapshot yet" "$root/log"
kill -TERM $waits
wait $waits
status "$root/waits"
check "and not when it has ended" '! grep -q "still to come" "$root/log"'

# A run of months: its view and its newest snapshot are far from the end of its events.
cp "$out/events.jsonl" "$root/events"
grep -v '"event":"end"' "$root/events" >"$out/events.jsonl"
python3 -c 'for i in range(60000): print("{\"event\":\"stored\",\"step\":%d,\"detail\":\"%s\"}" % (i, "x" * 60))' >>"$out/events.jsonl"
status "$out"
check "4 MiB of other events hide neither snapshot nor view" grep -q "^view .*; newest snapshot: step" "$root/log"
cp "$root/events" "$out/events.jsonl"

# Lines that are not there, by whoever's doing, and a step that nobody did.
cp "$out/metrics.jsonl" "$root/metrics"
sed '5,8d;12,15d' "$root/metrics" >"$out/metrics.jsonl"
status "$out"
check "steps without lines are told" grep -q "run/metrics.jsonl lacks 8 steps (5 to 8, 12 to 15)" "$root/log"
status "$out" --json
check "in numbers too" [ "$(field steps_lacking)" = 8 ]
sed '$s/"step":[0-9]*/"step":90000/' "$root/metrics" >"$out/metrics.jsonl"
status "$out"
check "a step that its tokens belie is not believed" '! grep -q 90000 "$root/log"'
bytes=$(sed -n 's/.*begins at byte \([0-9]*\) is not a metric.*/\1/p' "$root/log")
check "and where it is is said" [ "$bytes" = "$(sed '$d' "$root/metrics" | wc -c)" ]
status "$out" --json
check "in numbers too" [ "$(field damaged_at)" = "$bytes" ]
cp "$root/metrics" "$out/metrics.jsonl"

# The lock names a process that does not hold it: a number that is another's by now, or of another host.
sleep 60 &
other=$!
(
    flock 9
    echo $other >"$out/run.lock"
    "$KEEL" job stop "$out" >"$root/log" 2>&1
    echo $? >"$root/code"
) 9<>"$out/run.lock"
code=$(cat "$root/code")
check "a process that does not hold the directory is not signalled" kill -0 $other
check "and that is an error" [ "$code" -eq 3 ]
check "which says where to ask" grep -q "ask on its host" "$root/log"
kill $other

# Killed: nothing says that it ended.
sed -i '$d' "$out/events.jsonl"
status "$out" --json
check "a run that ended without a word was killed" [ "$(field state)" = killed ]

# A run that is done, and whose lines are gone, in part or all: who asks is told, who repeats the command too, and the
# next move that both name helps.
again() {
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set data.path="$text" --out "$root/done" \
        --set cluster.device=host --ranks 2 "$@" >"$root/log" 2>&1
}
lines=$root/done/metrics.jsonl
again
cut -d, -f1-3 "$lines" >"$root/whole"
sed -i 5,7d "$lines"
again
code=$?
check "a run that is done stays done" [ $code -eq 0 ]
check "and says that lines lack" grep -q "^$lines lacks 3 steps (5 to 7)" "$root/log"
check "beside what is there" grep -q "^done before: 12 steps" "$root/log"
rm "$lines"
status "$root/done"
check "where no line is left, the steps count all the same" grep -q "^step 12 of 12$" "$root/log"
check "and all lack" grep -q "^$lines lacks 12 steps (1 to 12), which were done" "$root/log"
for time in first second; do
    again
    code=$?
    check "without lines it is done, the $time time" [ $code -eq 0 ]
    check "which is said with the step" grep -q "done before: the newest snapshot is of the last step, 12" "$root/log"
    check "and that all lines lack" grep -q "$lines lacks 12 steps (1 to 12)" "$root/log"
done
again --resume none
check "they are computed again" '[ $? -eq 0 ] && cut -d, -f1-3 "$lines" | cmp -s - "$root/whole"'
status "$root/done"
check "and lack no more" '! grep -q lacks "$root/log"'
# A process of the run before still dies, as one that a disk keeps: it shares run.lock, and nobody leads.
(
    flock 9
    echo >"$root/holds"
    for _ in $(seq 600); do grep -q 'have not ended yet' "$root/log" && break || sleep 0.1; done
) 9<>"$root/done/run.lock" &
until [ -e "$root/holds" ]; do sleep 0.1; done
status "$root/done"
check "a run whose last process still dies has ended" grep -q "done: done" "$root/log"
again
code=$?
check "the same command waits for it" [ $code -eq 0 ]
check "and says so" grep -q "run.lock: processes of the run before have not ended yet" "$root/log"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
