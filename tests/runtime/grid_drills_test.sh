#!/bin/sh
# grid_drills_test.sh - parallel.tensor with parallel.zero in whole runs: ranks with some of the job's tensor slices,
# each of which owns pieces of what its column has, have the bits of one rank with all; through the loss of any rank in
# each phase of a step, of all holders of a piece, and from life to life on other plans.
set -u
here=$(dirname "$0")
. "$here/script.sh"
# Many buckets, so that gradients lie in windows with zero = 2.
small="--set model.heads=8 --set job.tensor=4 --set train.steps=8 --set cluster.device=host --set data.path=$text"
small="$small --set snapshot.every=3 --set train.eval_every=4 --set train.microbatches=1 --set parallel.bucket=16384"
grid() { echo "$small --set parallel.tensor=$1 --set parallel.zero=$2"; }

drill whole $small --ranks 1
check "one rank with all slices" [ $? -eq 0 ]
# parallel.tensor, parallel.zero, ranks: with one data position, with columns of unequal cuts, with four shards over
# three positions.
for shape in "2 1 2" "2 2 4" "4 1 4" "3 2 6" "2 1 6" "4 2 8"; do
    set -- $shape
    drill shape $(grid $1 $2) --ranks $3
    check "tensor $1, zero $2 on $3 ranks" [ $? -eq 0 ]
    check "tensor $1, zero $2 on $3 ranks: the same bits" same_bits "$root/whole" "$out"
    rm -rf "$out"
done
drill shards $(grid 2 0) --ranks 6
check "four shards over three positions that own nothing: the same bits" same_bits "$root/whole" "$out"
drill words $(grid 3 2) --ranks 6 --sample 40
drill words-whole $small --ranks 1 --sample 40
check "text is that of one rank with all slices" cmp -s "$root/words-whole/sample.txt" "$root/words/sample.txt"
for more in "--set train.storage=f16" "--set train.optimizer=sgd" "--set model.kind=moe" "--set train.microbatches=2"; do
    drill more-whole $small $more --ranks 1
    drill more $(grid 2 2) $more --ranks 4 --drill "kill:rank=3,step=4,at=commit"
    check "with $more: the same bits" same_bits "$root/more-whole" "$out"
    rm -rf "$root/more-whole" "$out"
done

# Any rank is lost in each phase: what it had has another holder.
for at in forward reduce commit spread snapshot; do
    for rank in 0 1 2 3; do
        drill kill $(grid 2 $((1 + rank % 2))) --ranks 4 --drill "kill:rank=$rank,step=3,at=$at"
        survived "rank $rank is lost at $at" "$root/whole"
    done
done
# Nobody comes back: columns of unequal numbers, the larger of which has a rank without shards.
for zero in 1 2; do
    drill shrink $(grid 2 $zero) --ranks 6 --set cluster.respawn=no --drill kill:rank=4,step=3,at=reduce \
        --drill kill:rank=1,step=5,at=spread
    check "two of six are lost, zero = $zero" [ $? -eq 0 ]
    check "two of six are lost, zero = $zero: the same bits" same_bits "$root/whole" "$out"
    check "two of six are lost, zero = $zero: two ($(lost))" [ "$(lost)" -eq 2 ]
    grep -q state-lost "$out/events.jsonl"
    check "two of six are lost, zero = $zero: nothing is lost" [ $? -ne 0 ]
done
drill spare $(grid 2 2) --ranks 6 --spares 1 --drill kill:rank=2,step=4,at=reduce --drill kill:rank=1,step=6
check "a spare takes any place: the same bits" same_bits "$root/whole" "$out"
# A shard that was interrupted is computed again: one microbatch of each of the others at most.
redone() { sed -n 's/.*"redo_microbatches": *\([0-9]*\).*/\1/p' "$out/events.jsonl" | awk '{ n += $1 } END { print n + 0 }'; }
drill redo $(grid 2 2) --ranks 4 --spares 1 --drill kill:rank=3,step=3,at=reduce
check "what is computed again is counted ($(redone))" [ "$(redone)" -ge 1 -a "$(redone)" -le 4 ]

# Both holders of a piece, which are the ranks of one column of two: 0 and 1 as places are given at the beginning.
for zero in 1 2; do
    for try in 1 2 3 4 5; do
        rm -rf "$root/holders"
        drill holders $(grid 2 $zero) --ranks 4 --drill slow:rank=2,step=5,ms=500 --drill kill:rank=0,step=6,at=forward \
            --drill kill:rank=1,step=6,at=forward
        code=$?
        ! grep -q '"state-lost"' "$out/events.jsonl" || break
    done
    check "both holders of a piece die, zero = $zero" [ $code -eq 0 ]
    code=
    check "both holders die, zero = $zero: the same bits" same_bits "$root/whole" "$out"
    check "both holders die, zero = $zero: it is said" grep -q '"state-lost".*pieces of the state.*to the newest snapshot' "$out/events.jsonl"
    check "both holders die, zero = $zero: from there" grep -q '"event": *"resumed".*"step": *3' "$out/events.jsonl"
done
drill only $(grid 2 1) --set parallel.holders=1 --ranks 4 --drill kill:rank=1,step=5
check "the only holder of a piece dies: the same bits" same_bits "$root/whole" "$out"
check "the only holder of a piece dies: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
drill flip $(grid 2 1) --ranks 6 --drill flip:rank=1,step=4
check "weights that change in memory: the same bits" same_bits "$root/whole" "$out"
drill moment $(grid 2 2) --ranks 6 --drill flip:rank=1,step=5,at=reduce
check "a moment that changes: the same bits" same_bits "$root/whole" "$out"
check "a moment that changes: it is said whose" grep -q "has other pieces of the state of rank" "$out/events.jsonl"

# Snapshots are of whole parameters, each piece once, whoever owns it; each rank reads its share of another plan's.
same_state() { "$KEEL" ckpt diff "$1/ckpt" "$2/ckpt" >"$root/log" 2>&1; }
saved() { "$KEEL" ckpt show --json "$1/ckpt" | tr ',{}' '\n\n\n' | sed -n 's/.*"raw_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
half="--set train.steps=3 --set train.decay_steps=8 --set snapshot.codec=raw"
drill half-whole $small $half --ranks 1
for shape in "2 1 4" "3 2 6" "2 2 5"; do
    set -- $shape
    drill half $(grid $1 $2) $half --ranks $3 --set parallel.data=0
    [ $3 -ne 5 ] || continue # no product of the axes
    check "the snapshot of tensor $1, zero $2 on $3 ranks holds what one rank's does" same_state "$root/half-whole" "$out"
    check "the snapshot of tensor $1, zero $2: each piece once" [ "$(saved "$out")" = "$(saved "$root/half-whole")" ]
    rm -rf "$out"
done
# One job on 8, 7, 2 and 5 ranks in turn, each life another mix.
first=1
for next in "2 2 8" "1 1 7" "2 1 2" "1 2 5" "3 2 6" "4 1 8" "2 0 4"; do
    set -- $next
    first=$((first + 1)) # with time to commit what is written
    drill lives $(grid $1 $2) --set snapshot.every=1 --ranks $3 --drill "slow:rank=0,step=$first,ms=200" --drill "kill:all,step=$first"
done
drill lives $(grid 2 2) --set snapshot.every=1 --ranks 4
check "a run goes on from life to life" [ $? -eq 0 ]
check "a run goes on from life to life: the same bits" same_bits "$root/whole" "$out"
check "a run goes on from life to life: more than once from a snapshot" [ "$(grep -c '"event": *"resumed"' "$out/events.jsonl")" -ge 2 ]

# Groups of owners: parallel.tensor, parallel.zero, ranks, parallel.zero_group.
for shape in "1 1 4 2" "1 2 6 3" "1 1 4 1" "2 2 8 2"; do
    set -- $shape
    drill shape $(grid $1 $2) --ranks $3 --set parallel.zero_group=$4
    check "groups of $4: tensor $1, zero $2 on $3 ranks" [ $? -eq 0 ]
    check "groups of $4: tensor $1, zero $2 on $3 ranks: the same bits" same_bits "$root/whole" "$out"
    rm -rf "$out"
done
# Replicas are the second holders; with three or seven ranks there is one group, which has others.
for at in forward reduce commit spread snapshot; do
    drill kill $(grid 1 2) --set parallel.zero_group=2 --ranks 4 --drill "kill:rank=1,step=3,at=$at"
    check "groups: a rank is lost at $at: the same bits" same_bits "$root/whole" "$out"
    grep -q state-lost "$out/events.jsonl"
    check "groups: a rank is lost at $at: nothing is lost" [ $? -ne 0 ]
done
drill kill $(grid 2 1) --set parallel.zero_group=2 --ranks 8 --drill kill:rank=1,step=3,at=reduce --drill kill:rank=6,step=6,at=reduce
check "groups with slices: two are lost" [ $? -eq 0 ]
check "groups with slices: two are lost: the same bits" same_bits "$root/whole" "$out"
drill replica $(grid 1 1) --set parallel.zero_group=2 --ranks 4 --set parallel.holders=1 --drill kill:rank=0,step=5
check "a replica is a holder, whatever parallel.holders says: the same bits" same_bits "$root/whole" "$out"
grep -q state-lost "$out/events.jsonl"
check "a replica is a holder: nothing is lost" [ $? -ne 0 ]
drill moment $(grid 1 1) --set parallel.zero_group=2 --ranks 4 --drill flip:rank=1,step=5,at=reduce
check "groups: a moment that changes: the same bits" same_bits "$root/whole" "$out"
check "groups: a moment that changes: it is said whose" grep -q "has other pieces of the state of rank" "$out/events.jsonl"

# What cannot be is refused by name, with what could be.
drill refused $(grid 2 1) --set parallel.zero_group=2 --ranks 6
check "a group that does not divide the positions" grep -q "parallel.zero_group = 2 does not divide the 3 data positions of 6 ranks; it could be 1, 3" "$out.log"
drill refused $(grid 2 0) --set parallel.zero_group=2 --ranks 4
check "groups of nothing" grep -q "parallel.zero_group = 2: parallel.zero = 0 splits nothing" "$out.log"

# Bytes that a rank sends in a step, of rank 0, which tells of it: those of its column, which has half of the weights, as
# without slices; and those of its data position, as without owners. f: the flat buffer of a rank. Without owners two send
# f each; owners send f for sums and weights, and to who has copies what they own, to the byte as keel plan has it.
sent() { sed 's/.*"sent_bytes": *\([0-9]*\).*/\1/' "$root/$1/metrics.jsonl" | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }'; }
even="--set train.steps=3 --set train.eval_every=0 --set snapshot.every=0 --set model.width=128 --set parallel.bucket=4194304"
# counted DIR ARGUMENTS...: a run, and what keel plan says of it in $root/plan.
counted() {
    drill "$@"
    shift
    "$KEEL" plan "$here/../demo/drill.conf" "$@" --json >"$root/plan"
}
seat() { sed "s/.*\"seats\":\[{[^}]*\"$1\":\([0-9]*\).*/\1/" "$root/plan"; } # of rank 0
for shards in 1 2; do
    counted "tensor-$shards" $(grid 2 0) $even --set job.shards=$shards --ranks $((2 * shards))
done
between=$(sent tensor-1)
flat=$(seat flat_bytes)
rest=$(($(sent tensor-2) - between - flat))
check "two columns of two: a flat buffer of $flat bytes, and $rest" [ "$flat" -gt 400000 -a "$rest" -ge 0 -a "$rest" -le 256 ]
for zero in 1 2; do
    drill "alone-$zero" $(grid 2 $zero) $even --set parallel.holders=1 --set job.shards=2 --ranks 4
    rest=$(($(sent "alone-$zero") - between - flat))
    check "zero = $zero, columns of two: f beside what slices exchange, and $rest bytes" [ "$rest" -ge 0 -a "$rest" -le 1024 ]
    counted "sent-$zero" $(grid 2 $zero) $even --set job.shards=2 --ranks 4
    copies=$(($(sent "sent-$zero") - $(sent "alone-$zero")))
    check "zero = $zero, columns of two: copies are the $copies bytes that it owns" [ "$copies" -eq "$(seat owned_bytes)" ]
done
# Groups of g of four: sums of what others own; what it owns to each replica, or shadow; and to each other of its group
# what it has of the stripe, its own and what came from replicas. Beside that the squares of its pages to three others.
for group in 2 4; do
    counted "group-$group" $(grid 1 1) $even --set job.shards=4 --set parallel.zero_group=$group --ranks 4
    own=$(seat owned_bytes) stripe=$(seat owned_bytes)
    [ $group -eq 4 ] || stripe=$(seat held_bytes)
    rest=$(($(sent "group-$group") - ($(seat flat_bytes) - own) - own - stripe * (group - 1) - 3 * own / 1024))
    check "groups of $group of four send what shares say, and $rest bytes of records" [ "$rest" -ge 0 -a "$rest" -le 256 ]
done

# Memory of the rank that has most, as keel plan has it and as the ranks of a run do, to the byte: all but inputs, tables and
# workspace of kernels (event memory).
memory() { sed -n 's/.*"event":"memory".*"device_bytes":\([0-9]*\),"shared_bytes":\([0-9]*\),"table_bytes":\([0-9]*\).*/\1 \2 \3/p' "$out/events.jsonl" | awk '{ n = $1 + $2 - $3; if (n > most) most = n } END { print most }'; }
planned() { sed 's/.*"plans":\[{[^}]*}[^}]*"total_bytes":\([0-9]*\).*/\1/' "$root/plan"; }
for shape in "1 0 1 0" "1 0 3 0" "1 1 3 0" "1 1 4 2" "1 2 4 0" "1 3 4 0" "3 0 3 0" "4 0 8 0" "4 1 8 0" "3 2 6 0" "2 3 8 2"; do
    set -- $shape
    counted memory $(grid $1 $2) --set train.steps=2 --set train.eval_every=0 --set snapshot.every=0 --set parallel.zero_group=$4 --ranks $3
    check "tensor $1, zero $2 on $3 ranks, groups of $4: $(planned) bytes are planned and seen" [ "$(planned)" = "$(memory)" ]
    rm -rf "$out"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
