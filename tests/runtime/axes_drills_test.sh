#!/bin/sh
# axes_drills_test.sh - parallel.tensor in whole runs: ranks with some of the job's tensor slices have the losses and
# digests of one rank with all of them at every step, with data positions beside them, uneven cuts, and through kills
# in each phase of a step; what no rank holds any more is said.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set model.heads=8 --set train.steps=8 --set cluster.device=host --set data.path=$text --set snapshot.every=0 --set train.eval_every=4"
slices() { echo "$small --set job.tensor=$1"; }

# Slices are exchanged while nothing is computed: all steps of the last drill waited, and not for longer than they took.
waited() {
    sed -n 's/.*"seconds":\([0-9.e-]*\).*"exposed_comm_s":\([0-9.e-]*\).*/\1 \2/p' "$out/metrics.jsonl" |
        awk '{ wrong += $2 <= 0 || $2 >= $1 } END { exit wrong > 0 || NR != 8 }'
}

# Each shape of the grid: job.tensor, parallel.tensor, ranks.
for tensor in 2 4; do
    drill "whole-$tensor" $(slices $tensor) --ranks 1
    check "job.tensor = $tensor on one rank" [ $? -eq 0 ]
done
for grid in "2 2 2" "2 2 4" "4 2 2" "4 2 4" "4 3 3" "4 4 4"; do
    set -- $grid
    drill grid $(slices $1) --set parallel.tensor=$2 --ranks $3
    check "job.tensor = $1: $3 ranks, $2 of them a data position" [ $? -eq 0 ]
    check "job.tensor = $1: $3 ranks, $2 of them a data position: the same bits" same_bits "$root/whole-$1" "$out"
    check "job.tensor = $1: $3 ranks, $2 of them a data position: each step says how long it waited for others" waited
    rm -rf "$out"
done
for kind in bert moe; do
    drill "$kind-1" $(slices 2) --set model.kind=$kind --ranks 1
    drill "$kind-2" $(slices 2) --set model.kind=$kind --set parallel.tensor=2 --ranks 2
    check "$kind with shared slices" [ $? -eq 0 ]
    check "$kind with shared slices: the same bits" same_bits "$root/$kind-1" "$root/$kind-2"
done

# Any rank of 2 x 2 is lost in each phase: its slices are somewhere else, so nothing is.
for at in forward reduce commit; do
    for rank in 0 1 2 3; do
        drill kill $(slices 4) --set parallel.tensor=2 --ranks 4 --drill "kill:rank=$rank,step=3,at=$at"
        survived "rank $rank is lost at $at" "$root/whole-4"
    done
done
drill spare $(slices 4) --set parallel.tensor=2 --ranks 4 --spares 1 --drill kill:rank=2,step=4,at=reduce --drill kill:rank=1,step=6
check "a spare takes any place" [ $? -eq 0 ]
check "a spare takes any place: the same bits" same_bits "$root/whole-4" "$out"
check "a spare takes any place: two are lost ($(lost))" [ "$(lost)" -eq 2 ]

# What moves to a newcomer is told, also where the rank that tells it has other slices.
for rank in 1 2; do
    drill told $(slices 4) --set parallel.tensor=2 --ranks 4 --spares 1 --drill kill:rank=$rank,step=4
    check "what moves to the place of rank $rank is told" grep -q '"event":"healed".*bytes from 1 ranks to 1"' "$out/events.jsonl"
    check "what moves to the place of rank $rank is a figure" grep -q '"event":"recovery".*"heal_bytes":[1-9]' "$out/events.jsonl"
    rm -rf "$out"
done

# Positions with more shards than others, and a rank with none, which learns what the others evaluated to: also after a
# view in which a newcomer has evaluated nothing yet.
drill uneven $(slices 4) --set parallel.tensor=2 --ranks 6
check "four shards over three positions: the same bits" same_bits "$root/whole-4" "$out"
drill idle $(slices 4) --set parallel.tensor=2 --ranks 4 --drill kill:rank=0,step=3 --drill slow:rank=2,step=6,ms=3000 \
    --drill kill:rank=3,step=8
check "evaluations with a newcomer and a rank that computes nothing: the same bits" same_bits "$root/whole-4" "$out"

# Two at once, in each of the ways that two of four ranks lie on the grid.
for pair in "0 1" "0 3" "0 2"; do
    set -- $pair
    drill pair $(slices 4) --set parallel.tensor=2 --ranks 4 --drill kill:rank=$1,step=3,at=reduce --drill kill:rank=$2,step=3,at=reduce
    check "ranks $1 and $2 are lost" [ $? -eq 0 ]
    check "ranks $1 and $2 are lost: the same bits" same_bits "$root/whole-4" "$out"
    check "ranks $1 and $2 are lost: and no other ($(lost))" [ "$(lost)" -eq 2 ]
    rm -rf "$out"
done

drill flip $(slices 4) --set parallel.tensor=2 --ranks 4 --drill flip:rank=1,step=4
check "a rank whose weights change in memory is left out" [ $? -eq 0 ]
check "a rank whose weights change in memory: the same bits" same_bits "$root/whole-4" "$out"

# The only holder of some slices dies.
KEEL_LOG=info drill alone $(slices 4) --set parallel.tensor=2 --ranks 2 --drill kill:rank=1,step=5
check "the only holder of slices dies" [ $? -eq 0 ]
check "the only holder of slices dies: the same bits" same_bits "$root/whole-4" "$out"
check "the only holder of slices dies: one with all slices is made" grep -q "the engine is made again" "$out.log"
check "the only holder of slices dies: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"

# Bytes that a rank of two sends for one layer more, in 4 shards of 2 microbatches of 2 x 16 tokens: of each microbatch
# four sums of all activations, half as they are scattered and half as they are gathered; of each shard six vectors that
# are summed over tokens, a page each; and a square for each of 18 tiles.
sent() { tail -n 1 "$root/$1/metrics.jsonl" | sed 's/.*"sent_bytes": *\([0-9]*\).*/\1/'; }
for layers in 2 3 4; do
    drill "layers-$layers" $(slices 2) --set train.steps=2 --set model.layers=$layers --set parallel.tensor=2 --ranks 2
done
layer=$((8 * 4 * 2 * 16 * 32 * 4 + 4 * 6 * 4096 + 18 * 4))
for layers in 2 3; do
    more=$(($(sent "layers-$((layers + 1))") - $(sent "layers-$layers")))
    check "a layer more is $more bytes of $layer" [ "$more" -eq "$layer" ]
done

# What cannot be is refused by name, with what could be.
drill product $(slices 2) --set parallel.tensor=2 --ranks 3
check "ranks that are no product of the axes" grep -q "cluster.ranks = 3 is no product of .*; .*no data will do, and tensor could be 1" "$out.log"
drill above $(slices 2) --set parallel.tensor=4 --ranks 4
check "more ranks than slices" grep -q "parallel.tensor = 4 is above job.tensor = 2" "$out.log"

# Compressed gradients: blocks are of a slice, whoever has it.
for how in int8 topk:0.1; do
    drill whole $(slices 4) --set train.gradients=$how --ranks 1
    for grid in "2 2" "2 6" "3 3"; do
        set -- $grid
        drill coarse $(slices 4) --set train.gradients=$how --set parallel.tensor=$1 --ranks $2
        check "gradients as $how: $1 of $2 ranks a data position" [ $? -eq 0 ]
        check "gradients as $how: $1 of $2 ranks a data position: the same bits" same_bits "$root/whole" "$out"
        rm -rf "$out"
    done
    for at in forward reduce commit; do
        drill kill $(slices 4) --set train.gradients=$how --set parallel.tensor=2 --ranks 4 --drill "kill:rank=1,step=3,at=$at"
        survived "gradients as $how: rank 1 is lost at $at" "$root/whole"
    done
    rm -rf "$root/whole"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
