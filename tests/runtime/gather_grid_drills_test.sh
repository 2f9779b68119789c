#!/bin/sh
# gather_grid_drills_test.sh - parallel.zero = 3 with parallel.tensor and parallel.zero_group in whole runs: ranks that
# keep some slices of the weights that they own, and gather the others from their column, or from their group of owners
# there, have the bits of one rank with all; through the loss of any rank in each phase of a step, of all holders of a
# piece, and from life to life on other plans. Each phase is tried with each plan, and with each rank on one of the two,
# and not again what a drill below holds as well; make test-long tries all of it.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set model.heads=8 --set job.tensor=4 --set train.steps=8 --set cluster.device=host --set data.path=$text"
small="$small --set snapshot.every=3 --set train.eval_every=4 --set train.microbatches=1 --set parallel.bucket=16384"
grid() { echo "$small --set parallel.tensor=$1 --set parallel.zero=$2"; }
nothing_lost() {
    grep -q '"state-lost"' "$out/events.jsonl"
    check "$1: nothing is lost" [ $? -ne 0 ]
}
vals() { sed -n 's/.*"step": *\([0-9]*\).*"val_loss": *\([-0-9.e]*\).*/\1 \2/p' "$root/$1/metrics.jsonl" | sort -n; }

drill whole $small --ranks 1 --sample 40
check "one rank with all slices" [ $? -eq 0 ]
# parallel.tensor, ranks, parallel.zero_group (0: all owners): with one data position, with columns of unequal cuts, with
# four shards over three positions, with a bucket in one stripe, in two and in three, or all in each rank.
shape() { # shape TENSOR RANKS GROUP
    drill shape $(grid $1 3) --ranks $2 --set parallel.zero_group=$3
    check "tensor $1 on $2 ranks, groups of $3" [ $? -eq 0 ]
    check "tensor $1 on $2 ranks, groups of $3: the same bits" same_bits "$root/whole" "$out"
    rm -rf "$out"
}
for shape in "2 2 0" "4 4 0" "1 4 1" "1 6 2" "2 4 1"; do shape $shape; done
if long; then
    for shape in "2 4 0" "2 6 0" "4 8 0" "1 4 2" "2 8 2"; do shape $shape; done
fi
drill words $(grid 3 3) --ranks 6 --sample 40
check "tensor 3 on 6 ranks: the same bits" same_bits "$root/whole" "$out"
check "text is that of one rank with all slices" cmp -s "$root/whole/sample.txt" "$out/sample.txt"
# Of these each is tried with slices, with groups, or with both.
more() { # more PLANS ARGS...
    plans=$1
    shift
    long && plans="slices groups"
    drill more-whole $small "$@" --ranks 1
    for plan in $plans; do
        case $plan in
        slices) drill more $(grid 2 3) "$@" --ranks 4 --drill "kill:rank=3,step=4,at=commit" ;;
        groups) drill more $(grid 1 3) "$@" --ranks 4 --set parallel.zero_group=2 --drill "kill:rank=3,step=4,at=commit" ;;
        esac
        check "$plan, with $*: the same bits" same_bits "$root/more-whole" "$out"
        rm -rf "$out"
    done
    rm -rf "$root/more-whole"
}
more slices --set train.storage=f16
more groups --set train.storage=bf16
more groups --set train.optimizer=sgd
more slices --set model.kind=moe
more "slices groups" --set train.microbatches=2
more "slices groups" --set parallel.ahead=3

# Any rank is lost in each phase: what it had has another holder, of its column or of another group.
lost_at() { # lost_at PHASE RANK CLAIM ARGS...
    claim="$3rank $2 is lost at $1" drill_kill="kill:rank=$2,step=3,at=$1"
    shift 3
    drill kill "$@" --ranks 4 --drill "$drill_kill"
    survived "$claim" "$root/whole"
}
turn=0
for at in forward gather reduce commit spread snapshot; do
    turn=$(((turn + 1) % 2))
    for rank in 0 1 2 3; do
        odd=$(((rank + turn) % 2))
        if long || [ $odd -eq 0 ]; then lost_at $at $rank "" $(grid 2 3); fi
        if long || [ $odd -eq 1 ]; then
            lost_at $at $rank "groups: " $(grid 1 3) --set parallel.zero_group=2 --set parallel.holders=1
        fi
    done
done
drill kill $(grid 2 3) --set parallel.zero_group=2 --ranks 8 --drill kill:rank=1,step=3,at=reduce --drill kill:rank=6,step=6,at=reduce
check "groups with slices: two are lost" [ $? -eq 0 ]
check "groups with slices: two are lost: the same bits" same_bits "$root/whole" "$out"
# Nobody comes back: columns of unequal numbers, the larger of which has a rank without shards. It owns weights, which it
# gives when the others evaluate and write.
drill shrink $(grid 2 3) --ranks 6 --set cluster.respawn=no --sample 40 --drill kill:rank=4,step=3,at=reduce \
    --drill kill:rank=1,step=5,at=spread --drill kill:rank=2,step=6
check "three of six are lost" [ $? -eq 0 ]
check "three of six are lost: the same bits" same_bits "$root/whole" "$out"
check "three of six are lost: three ($(lost))" [ "$(lost)" -eq 3 ]
nothing_lost "three of six are lost"
check "three of six are lost: the same evaluations" [ "$(vals shrink)" = "$(vals whole)" ]
check "three of six are lost: each evaluation once" [ "$(vals shrink | wc -l)" -eq 2 ]
check "three of six are lost: the same text" cmp -s "$root/whole/sample.txt" "$out/sample.txt"
drill spare $(grid 2 3) --ranks 6 --spares 1 --drill kill:rank=2,step=4,at=reduce --drill kill:rank=1,step=6
check "a spare takes any place: the same bits" same_bits "$root/whole" "$out"

# Both holders of a piece, which are the ranks of one column of two: 0 and 1 as places are given at the beginning. In
# groups of two of four the holders of a piece are 0 and 2.
lose holders $(grid 2 3) --ranks 4 --drill slow:rank=2,step=5,ms=2000 --drill kill:rank=0,step=6,at=forward \
    --drill kill:rank=1,step=6,at=forward
check "both holders of a piece die: the same bits" same_bits "$root/whole" "$out"
check "both holders of a piece die: it is said" grep -q '"state-lost".*pieces of the state.*to the newest snapshot' "$out/events.jsonl"
check "both holders of a piece die: from there" grep -q '"event": *"resumed".*"step": *3' "$out/events.jsonl"
lose replicas $(grid 1 3) --ranks 4 --set parallel.zero_group=2 --drill kill:rank=0,step=6,at=reduce \
    --drill kill:rank=2,step=6,at=reduce
check "groups: all holders of a piece die: the same bits" same_bits "$root/whole" "$out"
check "groups: all holders of a piece die: it is said" grep -q '"state-lost"' "$out/events.jsonl"
drill only $(grid 2 3) --set parallel.holders=1 --ranks 4 --drill kill:rank=1,step=5
check "the only holder of a piece dies: the same bits" same_bits "$root/whole" "$out"
check "the only holder of a piece dies: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
drill flip $(grid 2 3) --ranks 6 --drill flip:rank=1,step=4
check "weights that change in memory: the same bits" same_bits "$root/whole" "$out"
check "weights that change in memory: it is said" grep -q "in step 4, which began with" "$out.log" "$out/events.jsonl"
for more in "2 6 0" "1 4 2"; do
    set -- $more
    drill moment $(grid $1 3) --ranks $2 --set parallel.zero_group=$3 --drill flip:rank=1,step=5,at=reduce
    check "groups of $3: a moment that changes: the same bits" same_bits "$root/whole" "$out"
    check "groups of $3: a moment that changes: it is said whose" grep -q "has other pieces of the state of rank" "$out/events.jsonl"
done

# Snapshots are of whole parameters, each piece once, whoever owns it.
same_state() { "$KEEL" ckpt diff "$1/ckpt" "$2/ckpt" >"$root/log" 2>&1; }
saved() { "$KEEL" ckpt show --json "$1/ckpt" | tr ',{}' '\n\n\n' | sed -n 's/.*"raw_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
half="--set train.steps=3 --set train.decay_steps=8 --set snapshot.codec=raw"
drill half-whole $small $half --ranks 1
for shape in "2 4 0" "1 4 2" $(long && echo "3,6,0"); do
    set -- $(echo "$shape" | tr , ' ')
    drill half $(grid $1 3) $half --ranks $2 --set parallel.zero_group=$3
    check "the snapshot of tensor $1 on $2 ranks, groups of $3, holds what one rank's does" same_state "$root/half-whole" "$out"
    check "the snapshot of tensor $1 on $2 ranks, groups of $3: each piece once" [ "$(saved "$out")" = "$(saved "$root/half-whole")" ]
    rm -rf "$out"
done
# One job on 8, 7, 2 and 5 ranks in turn, each life another mix: parallel.tensor, zero, ranks, group, holders; and in which
# step all are killed.
all="2,3,8,2,2,2 1,3,7,0,1,3 2,3,2,0,2,4 1,2,5,0,2,5 2,3,4,0,1,6 1,0,5,0,2,7 2,1,8,0,2,8 1,3,8,4,1,8"
lives() { # lives NAME REFERENCE PLANS ARGS...
    name=$1 reference=$2 plans=$3
    shift 3
    for next in $plans; do drill_life "$next" "$@" --drill "kill:all,step=${next##*,}"; done
    drill_life 2,3,4,0,2 "$@"
    check "$name: a run goes on from life to life" [ $? -eq 0 ]
    check "$name: a run goes on from life to life: the same bits" same_bits "$reference" "$out"
    # On a busy machine a life may be over before its first snapshot is written.
    found=$(awk '/"event": *"snapshot"/ { some = 1 } /"event": *"start"/ { lives += some } END { print lives + 0 }' "$out/events.jsonl")
    check "$name: a run goes on from life to life: all $found lives that found a snapshot go on from one" \
        [ "$(grep -c '"event": *"resumed"' "$out/events.jsonl")" -ge "$found" ]
}
drill_life() { # drill_life TENSOR,ZERO,RANKS,GROUP,HOLDERS[,STEP] ARGS...
    IFS=, read -r tensor zero ranks group holders rest <<END
$1
END
    shift
    drill "$name" $(grid $tensor $zero) --ranks $ranks --set parallel.zero_group=$group --set parallel.holders=$holders \
        --set snapshot.every=1 "$@"
}
lives exact "$root/whole" "$all"
check "exact: of so many lives one found a snapshot" [ "$found" -ge 1 ]
for storage in "f16 2,3,5,0,2,4 1,3,4,2,1,6 2,1,2,0,2,8" "bf16 1,3,5,0,1,4 2,3,4,2,2,6 1,0,2,0,2,8"; do
    half=${storage#* } storage=${storage%% *}
    drill "$storage-whole" $small --set train.storage=$storage --ranks 1
    lives $storage "$root/$storage-whole" "$(long && echo "$all" || echo "$half")" --set train.storage=$storage
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
