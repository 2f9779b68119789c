#!/bin/sh
# zero_drills_test.sh - parallel.zero in whole runs: the bits of a run that splits nothing, through kills in each phase
# of a step, with fewer ranks and more, and from a snapshot; what no rank holds any more costs the steps since then.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set train.steps=8 --set job.shards=6 --set cluster.device=host --set data.path=$text --set snapshot.every=3"
zero="$small --set parallel.zero=1"

drill whole $small --set parallel.zero=0 --ranks 1
check "a run that splits nothing" [ $? -eq 0 ]
for ranks in 1 2 3 4; do
    drill "zero-$ranks" $zero --ranks $ranks
    check "$ranks ranks with pieces" [ $? -eq 0 ]
    check "$ranks ranks: the same bits" same_bits "$root/whole" "$root/zero-$ranks"
done
for at in forward reduce commit spread snapshot; do
    second=5
    [ $at != snapshot ] || second=6 # which takes one, as step 3 does
    strike "kill-$at" $zero --ranks 4 --drill "kill:rank=1,step=3,at=$at" --drill "kill:rank=2,step=$second,at=$at"
    check "ranks are lost at $at" [ $? -eq 0 ]
    check "ranks are lost at $at: the same bits" same_bits "$root/whole" "$root/kill-$at"
    check "ranks are lost at $at: no third ($(lost))" [ "$(lost)" -eq 2 ]
    grep -q state-lost "$out/events.jsonl"
    check "ranks are lost at $at: nothing is lost" [ $? -ne 0 ]
done

# As many holders as there are die in one step: back to the newest snapshot, or to the beginning. On a busy machine the
# second may die so late that others hold what the first had: then once more.
for step in 2 5; do
    lose "lost-$step" $zero --ranks 4 --drill "kill:rank=1,step=$step,at=reduce" \
        --drill "kill:rank=2,step=$step,at=reduce"
    check "both holders die in step $step" [ $? -eq 0 ]
    check "both holders die in step $step: the same bits" same_bits "$root/whole" "$out"
    check "both holders die in step $step: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
    drill "alone-$step" $zero --set parallel.holders=1 --ranks 3 --drill "kill:rank=1,step=$step"
    check "the only holder dies in step $step" [ $? -eq 0 ]
    check "the only holder dies in step $step: the same bits" same_bits "$root/whole" "$out"
    check "the only holder dies in step $step: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
done
drill spare $zero --ranks 3 --spares 1 --drill "kill:rank=1,step=4,at=spread" --drill "kill:rank=0,step=6"
check "a spare takes a place" [ $? -eq 0 ]
check "a spare takes a place: the same bits" same_bits "$root/whole" "$out"

# What is moved is what is missing: a newcomer's weights and its pieces, of which each has two holders; others get
# nothing, and the sum over all ranks that may be lost is twice the moments.
healed() { sed -n 's/.*"event":"recovery".*"heal_bytes":\([0-9]*\),.*/\1/p' "$out/events.jsonl"; }
drill newcomer $small --ranks 4 --spares 1 --drill kill:rank=1,step=3
weights=$((4 * $(sed -n 's/.*"parameters":\([0-9]*\).*/\1/p' "$out/events.jsonl" | head -n 1)))
check "a newcomer gets weights and moments ($(healed) bytes of $weights weights)" [ "$(healed)" -eq $((3 * weights)) ]
check "from all who have them" grep -q "bytes from 3 ranks to 1\"" "$out/events.jsonl"
moments=0
for rank in 0 1 2 3; do
    drill "newcomer-$rank" $zero --ranks 4 --spares 1 --drill "kill:rank=$rank,step=3"
    check "rank $rank is replaced: the same bits" same_bits "$root/whole" "$out"
    check "rank $rank is replaced: one alone is given something" grep -q "ranks to 1\"" "$out/events.jsonl"
    moments=$((moments + $(healed) - weights))
done
check "newcomers get pieces of $moments bytes, twice $((2 * weights))" [ "$moments" -eq $((4 * weights)) ]

# A snapshot of one plan goes on with another.
first=1
for next in "1 3" "0 2" "1 2" "1 1" "0 4"; do
    set -- $next
    drill plans $small --set parallel.zero=$1 --ranks $2 --drill "kill:all,step=$((first + 1))"
    first=$((first + 1))
done
drill plans $zero --ranks 2
check "a run goes on with other ranks, with pieces and without" [ $? -eq 0 ]
check "a run goes on with other ranks: the same bits" same_bits "$root/whole" "$out"

# Slices of the tensor axis, a scaled loss, a model with statistics and tensors of four dimensions.
for more in "--set job.tensor=2" "--set train.storage=f16" "--set train.optimizer=sgd"; do
    drill "more-whole" $small $more --ranks 1
    drill "more-zero" $zero $more --ranks 4 --drill "kill:rank=3,step=4,at=commit"
    check "with $more" [ $? -eq 0 ]
    check "with $more: the same bits" same_bits "$root/more-whole" "$out"
    rm -rf "$root/more-whole" "$root/more-zero"
done
# Bytes that a rank sends in a step, where each has one node of the tree of sums: sums to their owners, copies of them,
# weights to all; squares and records beside. Of most steps: now and then a step is told by a rank with other pieces.
sent() { sed 's/.*"sent_bytes": *\([0-9]*\).*/\1/' "$root/$1/metrics.jsonl" | sort | uniq -c | sort -rn | awk 'NR == 1 { print $2 }'; }
# A run that lost a rank, as where others keep the machine from it for a timeout, has steps of another plan: once more.
calm() {
    for try in 1 2 3 4 5; do
        rm -rf "$root/$1"
        drill "$@"
        [ "$(lost)" -ne 0 ] || break
    done
}
even="$small --set job.shards=4"
calm sum-2 $even --set parallel.zero=0 --ranks 2
flat=$(($(sent sum-2) / 4096 * 4096)) # of two ranks each sends all that it has, once
for ranks in 2 4; do
    calm "sent-$ranks" $even --set parallel.zero=1 --ranks $ranks
    rest=$(($(sent "sent-$ranks") - flat * (2 * ranks - 1) / ranks))
    check "each of $ranks ranks sends 4 P (2 (n - 1) / n + 1 / n), and $rest bytes" [ "$rest" -ge 0 -a "$rest" -le 512 ]
    calm "sent-$ranks-1" $even --set parallel.zero=1 --set parallel.holders=1 --ranks $ranks
    rest=$(($(sent "sent-$ranks-1") - flat * 2 * (ranks - 1) / ranks))
    check "without copies 4 P 2 (n - 1) / n, and $rest bytes" [ "$rest" -ge 0 -a "$rest" -le 512 ]
done

# Gradients in windows: many buckets, one shard a rank and several, one microbatch in each.
one="$small --set train.microbatches=1 --set parallel.bucket=16384"
two="$one --set parallel.zero=2"
drill one $one --set parallel.zero=0 --ranks 1
for ranks in 1 2 4 6 7; do
    drill "two-$ranks" $two --ranks $ranks
    check "$ranks ranks with windows" [ $? -eq 0 ]
    check "$ranks ranks with windows: the same bits" same_bits "$root/one" "$root/two-$ranks"
done
for at in forward reduce commit spread snapshot; do
    second=5
    [ $at != snapshot ] || second=6 # which takes one, as step 3 does
    strike "two-kill-$at" $two --ranks 4 --drill "kill:rank=1,step=3,at=$at" --drill "kill:rank=2,step=$second,at=$at"
    check "with windows ranks are lost at $at" [ $? -eq 0 ]
    check "with windows ranks are lost at $at: the same bits" same_bits "$root/one" "$out"
    check "with windows ranks are lost at $at: no third ($(lost))" [ "$(lost)" -eq 2 ]
    grep -q state-lost "$out/events.jsonl"
    check "with windows ranks are lost at $at: nothing is lost" [ $? -ne 0 ]
done
lose two-lost $two --ranks 4 --drill "kill:rank=1,step=5,at=reduce" --drill "kill:rank=2,step=5,at=reduce"
check "with windows both holders die" same_bits "$root/one" "$out"
check "with windows both holders die: it is said" grep -q '"event": *"state-lost"' "$out/events.jsonl"
drill two-more $two --set train.microbatches=2 --ranks 4 --drill "kill:rank=1,step=3,at=reduce"
check "shards of several microbatches are whole, and as right" same_bits "$root/whole" "$out"
# What is interrupted is computed again, where sums that are kept would not be. The event has the number of the rank that
# was heard first: with windows each has its shard once more; without, only the one that has the place of who was lost, so
# of several tries another comes first in one.
redone() { sed -n 's/.*"redo_microbatches": *\([0-9]*\).*/\1/p' "$out/events.jsonl" | awk '{ n += $1 } END { print n + 0 }'; }
redo() { drill "redo-$1-$2" $one --set "parallel.zero=$1" --ranks 6 --spares 1 --drill "kill:rank=1,step=3,at=reduce"; }
for try in 1 2 3 4 5 6 7 8; do
    redo 1 $try
    [ "$(redone)" -ne 0 ] || break
done
check "without windows no rank but one computes a shard again" [ "$(redone)" -eq 0 ]
check "a step is done again with zero = 1: the same bits" same_bits "$root/one" "$out"
redo 2 1
check "with windows each does" [ "$(redone)" -ge 1 ]
check "a step is done again with zero = 2: the same bits" same_bits "$root/one" "$out"
for ranks in 2 6; do
    calm "two-sum-$ranks" $one --set job.shards=$ranks --set parallel.zero=1 --ranks $ranks
    calm "two-sent-$ranks" $two --set job.shards=$ranks --ranks $ranks
    check "$ranks ranks send with windows what they send without" [ "$(sent "two-sum-$ranks")" = "$(sent "two-sent-$ranks")" ]
done
drill flip $zero --ranks 3 --drill flip:rank=1,step=4
check "a rank whose weights change in memory begins again" [ $? -eq 0 ]
check "a rank whose weights change in memory: the same bits" same_bits "$root/whole" "$out"
check "a rank whose weights change in memory: it is said" grep -q "in step 4, which began with" "$out.log" "$out/events.jsonl"
# Owner and shadow compare what they hold: a moment that changes in memory costs the steps since the newest snapshot.
for ranks in 2 3; do
    drill "moment-$ranks" $zero --ranks $ranks --drill flip:rank=1,step=5,at=reduce
    check "a moment changes, $ranks ranks: the run goes on" [ $? -eq 0 ]
    check "a moment changes, $ranks ranks: the same bits" same_bits "$root/whole" "$out"
    check "a moment changes, $ranks ranks: it is said whose" grep -q "has other pieces of the state of rank 1 than" "$out/events.jsonl"
done
# One rank has copies of what two own, so it knows of neither that its moment changed.
drill moment-uneven $zero --ranks 4 --nodes 2 --set cluster.respawn=false --drill kill:rank=3,step=2 \
    --drill flip:rank=0,step=5,at=reduce
check "a moment changes where one has copies of two: the same bits" same_bits "$root/whole" "$out"
check "a moment changes where one has copies of two: both are named" grep -q \
    "rank 2 has other pieces of the state of ranks 0, 1 than those have" "$out/events.jsonl"
# One rank's share of the newest snapshot cannot be read: all go on from the one before.
for how in cut changed gone; do
    drill "share-$how" $zero --set train.steps=6 --set train.decay_steps=8 --ranks 3
    share=$(ls -d "$out"/ckpt/*/step-6.*/rank-1.keel)
    case $how in
    cut) head -c 9000 "$share" >"$root/cut" && cp "$root/cut" "$share" ;;
    changed) printf damaged | dd of="$share" bs=1 seek=9000 conv=notrunc 2>"$root/log" ;;
    gone) rm "$share" ;;
    esac
    drill "share-$how" $zero --set train.decay_steps=8 --ranks 4
    check "a share that is $how: the run goes on" [ $? -eq 0 ]
    check "a share that is $how: the same bits" same_bits "$root/whole" "$out"
    check "a share that is $how: it is said" grep -q '"event":"snapshot-refused".*"step":6' "$out/events.jsonl"
done
drill refused $zero --set train.optimizer=lamb
check "an optimizer of whole tensors is refused" grep -q "parallel.zero = 1: train.optimizer" "$out.log"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
