#!/bin/sh
# The weights before the first step can be kept (snapshot.first), and what there is can be evaluated without a step
# of training (train.steps = 0); neither changes a bit of the run.
set -u
here=$(dirname "$0")
. "$here/script.sh"

run() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run "$here/../demo/drill.conf" --set "data.path=$root/text" --set cluster.device=host \
        --set snapshot.every=4 --set train.eval_every=4 --out "$out" "$@" >"$root/log" 2>&1
    code=$?
}
snapshots() { "$KEEL" ckpt ls "$out" --json | sed -n 's/.*"step": \([0-9]*\),.*/\1/p' | sort -n | tr '\n' ' '; }
evaluated() { grep '"event":"evaluated"' "$out/events.jsonl" | tail -n 1 | sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p"; }
validation() { sed -n "s/^{\"step\":$1,.*\"val_loss\":\([0-9.e-]*\).*/\1/p" "$out/metrics.jsonl"; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }

run plain
check "a run to compare with" [ "$code" -eq 0 ]
# Of a step that comes while a snapshot is still written there is none: then once more.
for try in 1 2 3 4 5 6 7 8; do
    rm -rf "$root/first"
    run first --set snapshot.first=true --set snapshot.keep=9 --ranks 2
    grep -q '"snapshot-skipped"' "$out/events.jsonl" || break
done
check "a run that keeps its first weights ends well" [ "$code" -eq 0 ]
check "and has them beside the others" same "$(snapshots)" "0 4 8 12 "
check "they are whole" "$KEEL" ckpt verify "$out" --all
check "and cost no bit" same_bits "$root/plain" "$out"

run none --set train.steps=0
check "evaluating needs no step" [ "$code" -eq 0 ]
check "it is of step 0" same "$(evaluated step)" 0
check "and tells a loss" [ -n "$(evaluated val_loss)" ]
check "on the terminal too" grep -q "step 0  validation [0-9]" "$root/log"
check "and no step is on record" [ ! -s "$out/metrics.jsonl" ]
none=$(evaluated val_loss)
run none
check "the same directory can be trained in then" [ "$code" -eq 0 ]
check "with the same bits" same_bits "$root/plain" "$out"
run none --set train.steps=0
check "what was trained can be evaluated again" same "$(evaluated step)" 12
check "and is worth what it was worth when it was trained" same "$(evaluated val_loss)" "$(validation 12)"
earlier=$(snapshots) earlier=${earlier%% *} # of two that are kept
run none --set train.steps=0 --resume "$earlier" --ranks 2
check "so can an earlier snapshot, of step $earlier, on other ranks" same "$(evaluated val_loss)" "$(validation "$earlier")"
check "and was another one" [ "$earlier" -lt 12 ]

run weights --set train.steps=0 --set snapshot.first=true --set snapshot.every=0
check "weights can be made without a step" same "$(snapshots)" "0 "
check "and are those that every run begins with" same "$(evaluated val_loss)" "$none"
run weights --ranks 3
check "a run begins from them" grep -q '"resumed".*"step":0' "$out/events.jsonl"
check "to the same bits" same_bits "$root/plain" "$out"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
