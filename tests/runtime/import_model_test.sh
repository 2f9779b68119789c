#!/bin/sh
# A model from an .onnx file is looked at, trained from the file's weights, killed and healed with the same bits, and evaluated;
# its file belongs to the run; what the data do not fit is told.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
golden=$here/../golden/onnx
explain() { tail -n 5 "$root/log"; }
cp "$golden/text.onnx" "$golden/images.onnx" "$root"
cd "$root" || exit 1

check "the operators are listed" sh -c "'$KEEL' import-model --operators >log && grep -qx Softmax log"
check "as JSON too" sh -c "'$KEEL' import-model --operators --json | python3 -c 'import json, sys; assert \"Softmax\" in json.load(sys.stdin)[\"operators\"]'"
check "what is in a file as well" sh -c "'$KEEL' import-model text.onnx --json | python3 -c 'import json, sys; m = json.load(sys.stdin); assert (m[\"nodes\"], m[\"numbers\"], m[\"block\"]) == (86, 2896, 8)'"
"$KEEL" import-model --operators text.onnx >log 2>&1
check "a file beside --operators is refused" [ $? -eq 2 ]
"$KEEL" import-model text.onnx >job.conf 2>log
check "a job comes of the file" grep -q '^kind = ./text.onnx' job.conf
check "which says what is in it" grep -q '86 nodes, 16 parameters of 2896 numbers' job.conf
check "and what it reads" grep -q '^block = 8' job.conf
check "an image model too" sh -c "'$KEEL' import-model images.onnx | grep -q 'Images of 10 x 10 with 1 channels, 5 classes'"
"$KEEL" import-model job.conf >log 2>&1
check "another file is none" grep -q 'job.conf: is no ONNX model' log
# x [1, 1, 2, 2] to Flatten to y [1, 4], by opset 17: nothing in it has weights
printf '\072\103\012\017\012\001x\022\001y\042\007Flatten\132\033\012\001x\022\026\012\024\010\001\022\020\012\002\010\001\012\002\010\001\012\002\010\002\012\002\010\002' >bare.onnx
printf '\142\023\012\001y\022\016\012\014\010\001\022\010\012\002\010\001\012\002\010\004\102\002\020\021' >>bare.onnx
"$KEEL" import-model bare.onnx >log 2>&1
check "a model without weights is none to train" [ $? -eq 2 ]
check "which is said" grep -q 'bare.onnx: has no parameter to train' log

train() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run job.conf --out "$out" --set "data.path=$text" --set data.vocab=char --set cluster.device=host \
        --set cluster.timeout_s=1 --set train.steps=9 --set train.lr=1e-2 --set train.eval_every=3 --set snapshot.every=4 \
        --set snapshot.first=true "$@" >log 2>&1
    code=$?
}
train one --ranks 1
check "it is trained" [ "$code" -eq 0 -a "$(steps "$out" | wc -l)" -eq 9 ]
train three --ranks 3 --drill kill:rank=1,step=4,at=reduce
check "three ranks, of which one dies, commit the same bits" same_bits "$root/one" "$root/three"
train pieces --ranks 2 --set parallel.zero=3 --drill kill:rank=0,step=6
check "so do ranks that gather their weights" same_bits "$root/one" "$root/pieces"
mkdir pictures
python3 -c 'import random, struct
for part, n in (("train", 40), ("t10k", 8)):
    draw = random.Random(part)
    for name, sizes in ((part + "-images-idx3-ubyte", (n, 10, 10)), (part + "-labels-idx1-ubyte", (n,))):
        bytes_ = draw.randbytes(n * 100) if len(sizes) == 3 else bytes(i % 4 for i in range(n))
        open("pictures/" + name, "wb").write(bytes([0, 0, 8, len(sizes)]) + struct.pack(">%dI" % len(sizes), *sizes) + bytes_)'
"$KEEL" import-model images.onnx >images.conf 2>log
pictures() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run images.conf --out "$out" --set data.path=pictures --set cluster.device=host --set cluster.timeout_s=1 --set train.steps=6 \
        --set train.eval_every=3 --set snapshot.every=4 --set snapshot.first=true "$@" >log 2>&1
    code=$?
}
pictures shown --ranks 1
check "a model of images, of which the data lack a class, is trained" [ "$code" -eq 0 ]
pictures again --ranks 3 --drill kill:rank=2,step=4,at=reduce
check "and healed with the same bits" same_bits "$root/shown" "$root/again"
"$KEEL" eval one >log 2>&1
check "its snapshot is evaluated" grep -q 'perplexity' log
"$KEEL" ckpt export one first.safetensors --step 0 --only weights >log 2>&1
check "the first weights are the file's, with their names" sh -c "grep -qa '\"block.ln_1.weight\"' first.safetensors"
sed 's|block.up.|block.ap.|g' text.onnx >other.onnx
train one --ranks 1 --set model.kind=./other.onnx
check "another file is another job" grep -q 'model.kind is .*text.onnx there and .*other.onnx here' log
train wide --ranks 1 --set train.batch=3
check "a batch that the file has not is refused" grep -q 'input has size 2 in dimension 0, train.batch and the data give 3' log
train small --ranks 1 --set model.vocab=40
check "and classes that it has not" grep -q '32 in a row: its data want' log

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
