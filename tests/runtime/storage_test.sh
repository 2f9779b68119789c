#!/bin/sh
# Runs whose activations wait in 16 bits, and runs with other optimizers: the same bits on one rank and on four, on
# plain C and on PoCL, when a rank is lost, when a run is resumed and when all ranks are lost. The loss scale of f16 begins as large as it may be, so the
# first steps overflow and are skipped: what is lost and resumed below lies among them.
set -u
here=$(dirname "$0")
. "$here/script.sh"

# run NAME WORDS...
run() {
    name=$1
    shift
    timeout 600 "$KEEL" run "$here/../demo/drill.conf" --out "$root/$name" --set "data.path=$text" \
        --set snapshot.every=1 --set train.decay_steps=12 "$@" >"$root/$name.log" 2>&1
}
# The same in two lives, the first of which ends with a snapshot, so that there is one whatever the disk's haste; in
# the second all ranks are killed at once, and begin from there or from a newer one.
two_lives() {
    run "$@" --set train.steps=5 && run "$@" --drill kill:rank=0,step=8 --drill kill:rank=1,step=8
}
explain() { tail -n 4 "$root"/*.log; }
same() { same_bits "$root/$1" "$root/$2"; }
events() { [ "$(grep -c "\"event\":\"$2\"" "$root/$1/events.jsonl")" -ge "$3" ]; }

f16="--set train.storage=f16 --set train.batch=1 --set train.microbatches=1 --set model.block=4"
run plain $f16 --set cluster.device=host --ranks 1
check "the first steps overflow and are skipped" events plain step-skipped 5
skipped() { sed -n 's/.*"event":"step-skipped".*"step":\([0-9]*\).*/\1/p' "$root/$1/events.jsonl" | tail -n 1; }
check "and the others are not" [ "$(skipped plain)" -lt 12 ]
run four $f16 --ranks 4
check "four ranks on PoCL have the bits of one on plain C" same plain four
run killed $f16 --set cluster.device=host --ranks 2 --drill kill:rank=1,step=3
check "a rank that is lost between two skipped steps changes no bit" same plain killed
two_lives all $f16 --set cluster.device=host --ranks 2
check "a run goes on from its snapshot among skipped steps, and again when all its ranks are killed" events all resumed 2
check "which they were" [ "$(grep -c '"drill":"kill' "$root/all/drills.jsonl")" -eq 2 ]
check "with the scale that it had" same plain all

run bf16 --set train.storage=bf16 --set cluster.device=host --ranks 1
run bf16-two --set train.storage=bf16 --ranks 2 --drill kill:rank=0,step=5
check "bf16 has the same bits on plain C and on PoCL, one rank lost" same bf16 bf16-two
for optimizer in sgd lamb; do
    run $optimizer --set train.optimizer=$optimizer --set cluster.device=host --ranks 1
    two_lives $optimizer-all --set train.optimizer=$optimizer --ranks 2
    check "$optimizer goes on from a snapshot with the same bits" same $optimizer $optimizer-all
    check "which it did twice" events $optimizer-all resumed 2
done
check "and they are the bits of that optimizer" sh -c "! cmp -s '$root/sgd/bits.txt' '$root/lamb/bits.txt'"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
