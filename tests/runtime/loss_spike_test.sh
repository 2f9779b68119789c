#!/bin/sh
# A loss that explodes without being infinite is told, and train.spike says what follows: the run goes on, ends at
# the snapshot before, or goes back there once, and ends when the same bits come again.
set -u
here=$(dirname "$0")
. "$here/script.sh"

run() { # DIR ARGUMENTS...: a learning rate that is far too high in the end
    out=$root/$1
    shift
    timeout 600 "$KEEL" run "$here/../demo/drill.conf" --set "data.path=$root/text" --set cluster.device=host --out "$out" \
        --set train.steps=60 --set train.warmup_steps=100 --set train.lr=4 --set train.min_lr=0 --set train.clip=0 \
        --set snapshot.every=10 --ranks 2 "$@" >"$root/log" 2>&1
    code=$?
}
first_spike() { grep '"event":"loss-spike"' "$1/events.jsonl" | head -n 1 | sed -n 's/.*"step":\([0-9]*\).*/\1/p'; }
newest() { "$KEEL" ckpt ls "$out" --json | sed -n 's/.*"step": \([0-9]*\),.*/\1/p' | sort -n | tail -n 1; }

run warned
step=$(first_spike "$out")
check "a loss that explodes is told" [ "${step:-0}" -gt 16 ]
check "and the run goes on" [ "$code" -eq 0 ]
run stopped --set train.spike=stop
check "or it ends with code 1" [ "$code" -eq 1 ]
check "with the step and the move" grep -q "the loss exploded at step $step to .*a lower train.lr" "$root/log"
check "the same step" [ "$(first_spike "$out")" = "$step" ]
check "whose line is withdrawn, and those behind it" [ "$(last_field "$out" step)" -eq $((step - 1)) ]
check "and which no snapshot holds" [ "$(newest)" -lt "$step" ]
run stopped --set train.spike=stop
check "the same command ends there again" grep -q "the loss exploded at step $step " "$root/log"
run stopped
check "unless it is only to warn" [ "$code" -eq 0 ]
check "and then has the bits of the run that was warned" same_bits "$root/warned" "$out"
run back --set train.spike=back
check "a run that goes back ends when the same bits come again" grep -q "exploded at step $step .*twice with the same bits" "$root/log"
check "with code 1" [ "$code" -eq 1 ]
from=$(sed -n 's/.*"event":"resumed".*"step":\([0-9]*\).*/\1/p' "$out/events.jsonl" | tail -n 1)
check "from a snapshot before" '[ "${from:-0}" -gt 0 ] && [ "$from" -lt "$step" ]'

# A signal while the run ends for the explosion: the step behind that takes three seconds, and its drill says when it began.
# Where the signal did not come in the first half of them, as from a machine that is busy, it is tried again.
for try in 1 2 3 4 5; do
    (
        run "asked$try" --set train.spike=back --drill "slow:rank=1,step=$((step + 1)),ms=3000,steps=9"
        exit "$code"
    ) &
    waiter=$!
    until grep -q '"event":"loss-spike"' "$root/asked$try/events.jsonl" 2>/dev/null || ! kill -0 "$waiter" 2>/dev/null; do sleep 0.05; done
    kill -TERM "$(cat "$root/asked$try/run.lock")" 2>/dev/null
    asked_ns=$(date +%s%N)
    wait "$waiter"
    code=$?
    slow_ns=$(sed -n 's/.*"wall_ns":\([0-9]*\).*/\1/p' "$root/asked$try/drills.jsonl" 2>/dev/null)
    [ $((asked_ns - ${slow_ns:-asked_ns})) -gt 1500000000 ] || break
done
check "who asks it to end meanwhile is heard: code 5" [ "$code" -eq 5 ]
check "and it does not go back" [ -z "$(grep '"event":"resumed"' "$root/asked$try/events.jsonl")" ]

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
