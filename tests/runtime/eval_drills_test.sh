#!/bin/sh
# eval_drills_test.sh - ranks that are lost in the middle of an evaluation, or while text is generated, with each kind of
# plan: the bits, the values of all evaluations and the text are those of one rank that nothing happened to. Nothing
# hangs, nobody ends but who was killed, and the snapshot of the end is kept, once.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set model.heads=4 --set job.tensor=2 --set train.steps=8 --set cluster.device=host --set data.path=$text"
small="$small --set snapshot.every=4 --set train.eval_every=2 --set train.eval_batches=2 --set train.microbatches=1"
small="$small --set parallel.bucket=16384 --sample 12"
vals() { sed -n 's/.*"step": *\([0-9]*\).*"val_loss": *\([-0-9.e]*\).*/\1 \2/p' "$1/metrics.jsonl"; }
ends() { "$KEEL" ckpt ls "$out/ckpt" | awk '$1 == 8' | wc -l; } # how many snapshots of the last step are committed

drill whole $small --ranks 1
check "one rank" [ $? -eq 0 ]
check "it evaluates four times" [ "$(vals "$root/whole" | wc -l)" -eq 4 ]
same_end() { # same_end CLAIM
    check "$1: the same values" [ "$(vals "$root/whole")" = "$(vals "$out")" ]
    check "$1: the same text" cmp -s "$root/whole/sample.txt" "$out/sample.txt"
    check "$1: the end is kept once ($(ends))" [ "$(ends)" -eq 1 ]
}
# Axes tensor and zero, ranks. Where weights and slices are whole, text is the first rank's, and with pieces all evaluate as
# without. With each plan one rank is lost in each place, the first of them or the last, in turn; make test-long takes both,
# and more ranks.
turn=0
for plan in "1 0 3" "1 1 3" "1 2 3" "1 3 3" "2 0 4" "2 2 4" "2 1 4" "2 3 4" $(long && echo "2,1,6"); do
    set -- $(echo "$plan" | tr , ' ')
    for at in 4,at=eval 8,at=eval 8,at=text; do
        turn=$(((turn + 1) % 2)) last=$(($3 - 1)) alone=no
        case "$1 $2 $at" in "1 "[012]*text) alone=yes ;; esac
        case "$1 $2 $at" in "1 "[12]" 8,at=eval") ;; "1 "[12]*) long || continue ;; esac
        for rank in 0 $last; do
            [ $alone = no ] || [ $rank -eq 0 ] || continue
            [ $alone = yes ] || long || [ $rank -eq $((turn * last)) ] || continue
            claim="tensor $1, zero $2 on $3 ranks: rank $rank is lost at $at"
            drill kill $small --set parallel.tensor=$1 --set parallel.zero=$2 --ranks $3 --drill "kill:rank=$rank,step=$at"
            code=$?
            same_end "$claim"
            (exit $code)
            survived "$claim" "$root/whole"
        done
    done
done
# Ranks of no complete data position are told what others evaluate, and write no text: one is lost, one is late.
idle="$small --set parallel.tensor=2 --ranks 6 --set cluster.respawn=no --drill kill:rank=5,step=3"
drill late $idle --drill slow:rank=4,step=8,at=commit,ms=300
check "an idle rank comes late to the end" [ $? -eq 0 ]
check "an idle rank comes late to the end: the same bits" same_bits "$root/whole" "$out"
same_end "an idle rank comes late to the end"
# With zero = 3 they own weights, and give them: the one that is left so is lost in that, or another is.
for kind in kill:rank=4,step=6,at=eval kill:rank=4,step=8,at=text kill:rank=0,step=6,at=eval slow:rank=4,step=6,at=eval,ms=300; do
    drill gives $idle --set parallel.zero=3 --drill $kind
    check "a rank gives weights, $kind" [ $? -eq 0 ]
    check "a rank gives weights, $kind: the same bits" same_bits "$root/whole" "$out"
    check "a rank gives weights, $kind: it fires" grep -q "$kind" "$out/drills.jsonl"
    same_end "a rank gives weights, $kind"
    rm -rf "$out"
done
drill both $small --set parallel.tensor=2 --ranks 6 --drill kill:rank=1,step=6,at=eval --drill kill:rank=4,step=8,at=text
check "one in an evaluation, and one in the text" [ $? -eq 0 ]
check "one in an evaluation, and one in the text: the same bits" same_bits "$root/whole" "$out"
check "one in an evaluation, and one in the text: two ($(lost))" [ "$(lost)" -eq 2 ]
same_end "one in an evaluation, and one in the text"
for kind in "slow:rank=1,step=6,at=eval,ms=300" "stop:rank=1,step=8,at=eval" "kill:all,step=6,at=eval" "kill:all,step=8,at=text"; do
    drill other $small --set parallel.tensor=2 --set parallel.zero=1 --ranks 4 --drill "$kind"
    [ $? -ne 137 ] || drill other $small --set parallel.tensor=2 --set parallel.zero=1 --ranks 4
    check "$kind: the run ends well" [ $? -eq 0 ]
    check "$kind: the same bits" same_bits "$root/whole" "$out"
    same_end "$kind"
    rm -rf "$out"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
