#!/bin/sh
# gather_drills_test.sh - parallel.zero = 3 in whole runs: ranks that keep the weights that they own alone, and gather
# the others when they are read, have the bits of a run that splits nothing: through kills in each phase of a step, with
# fewer ranks and more, more ranks than shards, several shards and microbatches, 16-bit storage, and from snapshots of
# any plan. What no rank holds any more costs the steps since then.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set train.steps=8 --set job.shards=6 --set cluster.device=host --set data.path=$text --set snapshot.every=3"
small="$small --set parallel.bucket=16384"
one="$small --set train.microbatches=1"
three="--set parallel.zero=3"

drill whole $small --set parallel.zero=0 --ranks 1
check "a run that splits nothing" [ $? -eq 0 ]
drill one $one --set parallel.zero=0 --ranks 1
for ranks in 1 2 3 4 7; do
    drill "zero-$ranks" $small $three --ranks $ranks
    check "$ranks ranks" [ $? -eq 0 ]
    check "$ranks ranks: the same bits" same_bits "$root/whole" "$out"
    drill "one-$ranks" $one $three --ranks $ranks
    check "$ranks ranks, one microbatch a shard: the same bits" same_bits "$root/one" "$out"
done
for ahead in 0 3; do
    drill "ahead-$ahead" $one $three --set parallel.ahead=$ahead --ranks 3
    check "gathered $ahead ahead: the same bits" same_bits "$root/one" "$out"
done

# A rank is lost in each phase, and another later; with two holders nothing is.
for at in forward gather reduce commit spread snapshot; do
    second=5
    [ $at != snapshot ] || second=6 # which takes one, as step 3 does
    for kind in one whole; do
        [ $kind = one ] && job="$one" || job="$small"
        strike "$kind-$at" $job $three --ranks 4 --drill "kill:rank=1,step=3,at=$at" \
            --drill "kill:rank=2,step=$second,at=$at"
        check "$kind: ranks are lost at $at" [ $? -eq 0 ]
        check "$kind: ranks are lost at $at: the same bits" same_bits "$root/$kind" "$out"
        check "$kind: ranks are lost at $at: no third ($(lost))" [ "$(lost)" -eq 2 ]
        grep -q state-lost "$out/events.jsonl"
        check "$kind: ranks are lost at $at: nothing is lost" [ $? -ne 0 ]
    done
done
for rank in 0 2; do
    drill "two-$rank" $one $three --ranks 2 --drill "kill:rank=$((rank / 2)),step=4,at=reduce"
    check "rank $((rank / 2)) of two is lost: the same bits" same_bits "$root/one" "$out"
done

# Shards that were stored are kept: of three ranks with two each, the two that are left compute their last ones again and
# one of the lost each, in rounds that they agreed on.
drill redo $one $three --ranks 3 --drill "kill:rank=1,step=3,at=reduce"
redone=$(sed -n 's/.*"redo_microbatches": *\([0-9]*\).*/\1/p' "$out/events.jsonl" | head -n 1)
check "what was stored is not computed again ($redone microbatches are)" [ "$redone" -eq 2 ]
check "what was stored is not computed again: the same bits" same_bits "$root/one" "$out"

# An evaluation gathers, too: who is lost behind a step that is evaluated leaves it to the next view.
drill eval $one --set train.eval_every=2 --set train.eval_batches=3 --set parallel.zero=0 --ranks 1
drill eval-three $one --set train.eval_every=2 --set train.eval_batches=3 $three --ranks 3 \
    --drill "kill:rank=1,step=4,at=commit" --drill "kill:rank=2,step=6,at=spread"
check "evaluations through losses" [ $? -eq 0 ]
check "evaluations through losses: the same bits" same_bits "$root/eval" "$out"
vals() { sed -n 's/.*"step": *\([0-9]*\).*"val_loss": *\([-0-9.e]*\).*/\1 \2/p' "$root/$1/metrics.jsonl" | sort -n; }
check "evaluations through losses: the same values" [ "$(vals eval)" = "$(vals eval-three)" ]
check "evaluations through losses: each of the four" [ "$(vals eval-three | wc -l)" -eq 4 ]

# Generated text takes all ranks.
drill said $one --set parallel.zero=0 --ranks 1 --sample 24
drill said-three $one $three --ranks 3 --sample 24
check "generated text is the same" cmp -s "$root/said/sample.txt" "$out/sample.txt"

# As many holders as there are die in one step: back to the newest snapshot, or to the beginning.
for step in 2 5; do
    lose "lost-$step" $one $three --ranks 4 --drill "kill:rank=1,step=$step,at=reduce" \
        --drill "kill:rank=2,step=$step,at=reduce"
    check "both holders die in step $step" [ $? -eq 0 ]
    check "both holders die in step $step: the same bits" same_bits "$root/one" "$out"
    check "both holders die in step $step: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
    drill "alone-$step" $one $three --set parallel.holders=1 --ranks 3 --drill "kill:rank=1,step=$step"
    check "the only holder dies in step $step" [ $? -eq 0 ]
    check "the only holder dies in step $step: the same bits" same_bits "$root/one" "$out"
    check "the only holder dies in step $step: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
done

# A newcomer gets its own piece and the one that it shadows, of weights and moments, and nothing else.
healed() { sed -n 's/.*"event":"recovery".*"heal_bytes":\([0-9]*\),.*/\1/p' "$out/events.jsonl"; }
weights=$((4 * $(sed -n 's/.*"parameters":\([0-9]*\).*/\1/p' "$root/one/events.jsonl" | head -n 1)))
bytes=0
for rank in 0 1 2 3; do
    drill "newcomer-$rank" $one $three --ranks 4 --spares 1 --drill "kill:rank=$rank,step=3"
    check "rank $rank is replaced: the same bits" same_bits "$root/one" "$out"
    check "rank $rank is replaced: one alone is given something" grep -q "ranks to 1\"" "$out/events.jsonl"
    bytes=$((bytes + $(healed)))
done
check "newcomers get pieces of $bytes bytes, twice $((3 * weights))" [ "$bytes" -eq $((6 * weights)) ]

# A snapshot of one plan goes on with another.
first=1
for next in "3 3" "0 2" "3 2" "1 3" "3 1" "2 4" "3 4"; do
    set -- $next
    drill plans $one --set parallel.zero=$1 --ranks $2 --drill "kill:all,step=$((first + 1))"
    first=$((first + 1))
done
drill plans $one --set parallel.zero=0 --ranks 1
check "a run goes on with other ranks, with all weights and without" [ $? -eq 0 ]
check "a run goes on with other ranks: the same bits" same_bits "$root/one" "$out"
for kind in kept mixed; do
    drill "$kind" $one $three --set train.steps=5 --set train.decay_steps=8 --ranks 3
    [ $kind = kept ] && next="$three --ranks 4" || next="--set parallel.zero=1 --ranks 2"
    drill "$kind" $one --set train.decay_steps=8 $next
    check "a run of three ranks ends with $next: the same bits" same_bits "$root/one" "$out"
done

# Slices of the tensor axis on each rank, a scaled loss, another optimizer.
for more in "--set job.tensor=2" "--set train.storage=f16" "--set train.storage=bf16" "--set train.optimizer=sgd"; do
    drill more-whole $small $more --ranks 1
    drill more-three $small $three $more --ranks 4 --drill "kill:rank=3,step=4,at=commit"
    check "with $more" [ $? -eq 0 ]
    check "with $more: the same bits" same_bits "$root/more-whole" "$out"
    rm -rf "$root/more-whole" "$root/more-three"
done

# A bit of the weights that a rank owns, or of a moment: it begins again; owner and shadow differ.
drill flip $one $three --ranks 3 --drill flip:rank=1,step=4
check "a rank whose weights change in memory begins again" [ $? -eq 0 ]
check "a rank whose weights change in memory: the same bits" same_bits "$root/one" "$out"
check "a rank whose weights change in memory: it is said" grep -q "in step 4, which began with" "$out.log" "$out/events.jsonl"
drill moment $one $three --ranks 3 --drill flip:rank=1,step=5,at=reduce
check "a moment changes: the same bits" same_bits "$root/one" "$out"
check "a moment changes: it is said whose" grep -q "has other pieces of the state" "$out/events.jsonl"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
