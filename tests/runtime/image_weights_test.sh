#!/bin/sh
# Models of images: a residual network of a depth and a vision transformer train, through a kill and cut into slices
# with the same bits; their weights go out and come in as torchvision and Hugging Face have them, and they go out as ONNX.
# Where KEEL_PYTHON names a Python with torchvision and transformers, logits of random models are compared both ways, and
# where it has onnxruntime those of the .onnx files.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
names=torch
. "$here/weights.sh"
data=$PWD/build/data/fashion

{ job deep "$data"; printf 'kind = resnet\ndepth = 50\nwidth = 4\n'; } >"$root/deep.conf"
{ job vit "$data"; printf 'kind = vit\nlayers = 2\nheads = 4\nwidth = 16\npatch = 7\n'; } >"$root/vit.conf"
there_and_back() { # JOB DIR ARGUMENTS...: its weights, as torch has them, into a new run
    job=$1 from=$2
    shift 2
    "$KEEL" ckpt export "$root/$from" "$root/$from-torch/" --names torch >"$root/log" 2>"$root/errors"
    check "$job: goes out" [ $? -eq 0 ]
    train "$job" "$from-in" --prepare "$@"
    "$KEEL" ckpt import "$root/$from-torch" "$root/$from-in" --names torch --for-training >"$root/log" 2>"$root/errors"
    check "$job: comes in again" [ $? -eq 0 ]
    was=$(told "$from")
    check "$job: with the same loss" [ -n "$was" -a "$(told "$from-in")" = "$was" ]
}

train deep deep
check "a network of a depth is trained" [ $? -eq 0 ]
there_and_back deep deep
check "a bottleneck has torchvision's convolutions" header deep '"layer2.0.conv2.weight":{"dtype":"F32","shape":[8,8,3,3]'
check "and its shortcut" header deep '"layer1.0.downsample.0.weight":{"dtype":"F32","shape":[16,4,1,1]'
check "as many blocks as the table says" header deep '"layer3.5.bn3.running_var"'
check "and the classes" header deep '"fc.weight":{"dtype":"F32","shape":[10,128]'

train vit vit --set job.tensor=2
check "a vision transformer is trained" [ $? -eq 0 ]
train vit killed --set job.tensor=2 --set parallel.tensor=2 --ranks 4 --drill kill:rank=1,step=3
check "through a kill, cut into slices" [ $? -eq 0 ]
check "with the same bits" same_bits "$root/vit" "$root/killed"
there_and_back vit vit --set job.tensor=2
check "a layer has Hugging Face's names" header vit '"vit.encoder.layer.1.attention.attention.query.weight":{"dtype":"F32","shape":[16,16]'
check "and matrices [out, in]" header vit '"vit.encoder.layer.0.intermediate.dense.weight":{"dtype":"F32","shape":[64,16]'
check "and patches" header vit '"vit.embeddings.patch_embeddings.projection.weight":{"dtype":"F32","shape":[16,1,7,7]'
"$KEEL" plan "$root/vit/job.conf" --config-json >"$root/vit-torch/config.json" 2>"$root/errors"
check "and a config.json" grep -q '"ViTForImageClassification".*"intermediate_size":64,.*"image_size":\[28,28\],.*"patch_size":7,' "$root/vit-torch/config.json"

{ job alexnet "$root/large"; printf 'kind = alexnet\nwidth = 4\ndropout = 0.5\n'; } >"$root/alexnet.conf"
python3 - "$root/large" <<'END'
import os, random, struct, sys
random.seed(3)
os.makedirs(sys.argv[1])
for part, count in (("train", 12), ("t10k", 6)):
    with open(f"{sys.argv[1]}/{part}-images-idx3-ubyte", "wb") as out:
        out.write(bytes([0, 0, 8, 4]) + struct.pack(">IIII", count, 70, 80, 3) + bytes(random.randrange(256) for _ in range(count * 70 * 80 * 3)))
    with open(f"{sys.argv[1]}/{part}-labels-idx1-ubyte", "wb") as out:
        out.write(bytes([0, 0, 8, 1]) + struct.pack(">I", count) + bytes(i % 5 for i in range(count)))
END
train alexnet alexnet
check "an AlexNet is trained" [ $? -eq 0 ]
train alexnet alexnet-killed --set parallel.zero=2 --ranks 3 --drill kill:rank=1,step=3
check "over owners through a kill, dropout and all" same_bits "$root/alexnet" "$root/alexnet-killed"
there_and_back alexnet alexnet
check "an AlexNet has torchvision's convolutions" header alexnet '"features.3.weight":{"dtype":"F32","shape":[12,4,5,5]'
check "and its perceptron" header alexnet '"classifier.1.weight":{"dtype":"F32","shape":[256,576]'
train alexnet mixed --set data.mixup=0.5
check "its labels may be soft" [ $? -eq 0 ]
train alexnet mixed-killed --set data.mixup=0.5 --ranks 2 --drill kill:rank=1,step=3
check "with the same bits through a kill" same_bits "$root/mixed" "$root/mixed-killed"
"$KEEL" export "$root/mixed" "$root/mixed.onnx" --format onnx --no-eval >"$root/log" 2>"$root/errors"
check "and goes out as ONNX without them" grep -q 'nodes, .*mixed.onnx' "$root/log"

# ---- ONNX ----
"$KEEL" export "$root/deep" "$root/deep.onnx" --format onnx --no-eval >"$root/log" 2>"$root/errors"
check "an .onnx file is written" grep -q 'nodes, .*deep.onnx' "$root/log"
"$KEEL" import-model "$root/deep.onnx" --json >"$root/log" 2>"$root/errors"
check "which is a model to import" grep -q '"data": *"images", *"classes": *10' "$root/log"
nodes=$(sed -n 's/.*"nodes":\([0-9]*\).*/\1/p' "$root/log")
if command -v protoc >/dev/null; then # Debian's protobuf-compiler: another reader, which knows no ONNX
    protoc --decode_raw <"$root/deep.onnx" >"$root/raw"
    check "protoc reads it too, with as many nodes" '[ $was -eq 0 ] && [ "$(sed -n "/^7 {/,/^}/p" "$root/raw" | grep -c "^  1 {")" -eq "$nodes" ]'
else
    echo "note: no protoc here (protobuf-compiler)"
fi
{ job onnx "$data" | sed 's/^steps = .*/steps = 0/'; printf 'kind = %s\nvocab = 10\n' "$root/deep.onnx"; } >"$root/onnx.conf"
train onnx onnx
check "and has its loss" awk -v a="$(sed -n 's/.*validation \([0-9.]*\).*/\1/p' "$root/log")" \
    -v b="$("$KEEL" eval "$root/deep" --json | sed -n 's/.*"loss":\([0-9.]*\).*/\1/p')" 'BEGIN { d = a - b; exit !(b > 0 && d * d < 1e-8) }'

# ---- what cannot be ----
refused() { # CLAIM CODE WORDS COMMAND...
    claim=$1 wanted=$2 words=$3
    shift 3
    timeout 60 "$KEEL" "$@" >"$root/log" 2>"$root/errors"
    code=$?
    check "$claim" [ "$code" -eq "$wanted" ]
    check "$claim, and says so" grep -qF -- "$words" "$root/errors"
    code=
}
refused "a depth that is none" 2 "model.depth = 42: one of 18, 34, 50, 101, 152 is known" run "$root/deep.conf" --out "$root/bad" --set model.depth=42
refused "stages beside a depth" 2 "model.stages = 2 says nothing beside model.depth = 50" run "$root/deep.conf" --out "$root/bad" --set model.stages=2
refused "images too small for an AlexNet" 2 "alexnet: images of 28x28 are too small: it takes 63x63 at least" run "$root/alexnet.conf" --out "$root/bad" --set "data.path=$data"
refused "patches that do not divide" 2 "images of 28x28 do not divide into patches of model.patch = 5" run "$root/vit.conf" --out "$root/bad" --set model.patch=5
refused "torch's layouts of a text" 4 "no tensor is a convolution's" ckpt import "$here/../golden/safetensors/gpt2.safetensors" "$root/none/run" --names torch
refused "names that there are not" 2 "keel, gpt2, torch, bert or mixtral is wanted" ckpt export "$root/deep" "$root/x/" --names tensorflow
refused "another ending" 2 "a name that ends in .onnx is wanted" export "$root/deep" "$root/deep.bin" --format onnx --no-eval
refused "a file that is there" 2 "is there already; --force replaces it" export "$root/deep" "$root/deep.onnx" --format onnx --no-eval
refused "a folder that is not there" 3 "none/deep.onnx: its directory is not there: make it first" export "$root/deep" "$root/none/deep.onnx" --format onnx --no-eval
refused "the same of weights" 3 "none/: no such directory, for deep.safetensors: make it first" export "$root/deep" "$root/none/deep.safetensors" --no-eval
refused "few bits" 2 "leave out --weights" export "$root/deep" "$root/few.onnx" --format onnx --weights int8

if [ -n "${KEEL_PYTHON:-}" ] && "$KEEL_PYTHON" -c 'import torchvision, transformers, safetensors' 2>/dev/null; then
    "$KEEL_PYTHON" "$here/image_weights.py" "$root" "$KEEL" "$text" >"$root/log" 2>"$root/errors"
    check "torchvision's and Hugging Face's models have the same logits, both ways" [ $? -eq 0 ]
    sed 's/^/note: /' "$root/log"
else
    echo "note: KEEL_PYTHON names no Python with torchvision and transformers: logits are not compared"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
