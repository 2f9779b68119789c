#!/bin/sh
# tensor_drills_test.sh - job.tensor in whole runs: the bits follow from it alone, on one rank and on three, through
# kills; more slices than a model has heads are refused with what could be; another logical mesh does not resume.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set model.heads=8 --set train.steps=8 --set cluster.device=host --set data.path=$text --set snapshot.every=3"
for tensor in 1 2 3 8; do
    drill "one-$tensor" $small --set job.tensor=$tensor --ranks 1
    check "job.tensor = $tensor runs" [ $? -eq 0 ]
    drill "three-$tensor" $small --set job.tensor=$tensor --ranks 3 --spares 1 --drill kill:rank=1,step=4
    check "job.tensor = $tensor runs on three ranks through a kill" [ $? -eq 0 ]
    check "job.tensor = $tensor: the same bits" same_bits "$root/one-$tensor" "$root/three-$tensor"
done
for tensor in 2 3 8; do
    [ -s "$root/one-$tensor/bits.txt" ] && same_bits "$root/one-1" "$root/one-$tensor"
    check "job.tensor = $tensor sums in another order than 1" [ $? -ne 0 ]
done
drill board-3 $small --set job.tensor=3 --set cluster.device=auto --ranks 1
check "whichever device computes" same_bits "$root/one-3" "$root/board-3"

for kind in bert moe; do
    drill "$kind-1" $small --set model.kind=$kind --set job.tensor=3 --ranks 1
    check "$kind with three slices runs" [ $? -eq 0 ]
    drill "$kind-2" $small --set model.kind=$kind --set job.tensor=3 --ranks 2 --set cluster.device=host,host
    check "$kind: the same bits on two ranks" same_bits "$root/$kind-1" "$root/$kind-2"
done

drill many $small --set job.tensor=9 --ranks 1
code=$?
check "more slices than heads are refused" [ $code -ne 0 ]
check "what could be is said" grep -q "job.tensor can be 1 to 8" "$out.log"
drill one-2 $small --set job.tensor=3 --ranks 1
check "another mesh does not go on with a run" [ $? -ne 0 ]
drill images --set model.kind=resnet --set job.tensor=2
check "a model that splits nothing is refused" grep -q "job.tensor" "$out.log"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
