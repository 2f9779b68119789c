#!/bin/sh
# The job files of all models, made small: one rank, two ranks, and a run that was cut in two and resumed commit the
# same bits at every step; data that a model cannot be trained on are refused by name.
set -u
here=$(dirname "$0")
. "$here/script.sh"
jobs=$here/../../runtime/jobs

small() { # KIND: what makes its job small
    case $1 in
    fashion) echo "model.width=4 model.layers=1 model.stages=2 train.batch=4" ;;
    dlrm-demo) echo "model.width=4 model.layers=1 model.tables=3 model.categories=50 train.batch=16 data.samples=200" ;;
    moe-demo) echo "model.width=16 model.heads=2 model.layers=2 model.block=16 model.experts=4 train.batch=2" ;;
    *) echo "model.width=16 model.heads=2 model.layers=2 model.block=16 train.batch=2" ;;
    esac
}
train() { # KIND DIR ARGUMENTS...: they win over what is set here
    kind=$1 out=$2
    shift 2
    for setting in $(small "$kind") train.decay_steps=6 train.warmup_steps=2 train.eval_every=3 train.eval_batches=2 \
        snapshot.every=3 job.shards=4 cluster.device=host; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$jobs/$kind.conf" --out "$root/$out" "$@" >"$root/log" 2>&1
}

for kind in fashion bert-demo moe-demo dlrm-demo llama-demo; do
    train "$kind" "$kind-1" --set train.steps=6
    check "$kind: a run of one rank" [ "$(steps "$root/$kind-1" | wc -l)" -eq 6 ]
    train "$kind" "$kind-2" --set train.steps=6 --ranks 2
    check "$kind: two ranks commit the same bits" same_bits "$root/$kind-1" "$root/$kind-2"
    train "$kind" "$kind-3" --set train.steps=3
    train "$kind" "$kind-3" --set train.steps=6 --ranks 3
    check "$kind: so does a run that is resumed by three" same_bits "$root/$kind-1" "$root/$kind-3"
done
train fashion killed --set train.steps=6 --ranks 2 --drill kill:rank=1,step=4 --set cluster.timeout_s=1
check "running statistics survive a rank that is killed" same_bits "$root/fashion-1" "$root/killed"
train fashion pieces --set train.steps=6 --set parallel.zero=1 --ranks 3 --drill kill:rank=1,step=4,at=spread --set cluster.timeout_s=1
check "running statistics belong to all where ranks own pieces" same_bits "$root/fashion-1" "$root/pieces"
check "which was killed" grep -q '"event":"recovery"' "$root/killed/events.jsonl"
for kind in fashion dlrm-demo; do
    check "$kind: accuracy is told" grep -q '"val_accuracy":0\.[0-9]' "$root/$kind-1/metrics.jsonl"
done
train dlrm-demo drawn --set train.steps=1
check "a set that is drawn counts what a validation asks for" grep -q '^data: 200 samples to train on, [0-9]\{1,5\} to validate with' "$root/log"
train fashion native --set train.steps=1 --set job.numerics=native
check "a native run says who computes its products" grep -q '"event":"native".*products by Keel"' "$root/native/events.jsonl"
check "samples are counted, one token each" grep -q '^{"step":6,.*"tokens":96,.*"samples":96[,}]' "$root/fashion-1/metrics.jsonl"

refused() { # NAME CODE WORDS KIND ARGUMENTS...
    name=$1 wanted=$2 words=$3 kind=$4
    shift 4
    train "$kind" bad --set train.steps=6 "$@"
    code=$?
    check "$name" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$root/log"
}
mkdir "$root/images"
refused "images that are not there" 3 "$root/images: no file train-images-idx3-ubyte there" fashion --set "data.path=$root/images"
cp build/data/fashion/* "$root/images" && head -c 1000000 build/data/fashion/t10k-images-idx3-ubyte >"$root/images/t10k-images-idx3-ubyte"
refused "images cut short" 4 "t10k-images-idx3-ubyte: is cut short" fashion --set "data.path=$root/images"
refused "classes that labels exceed" 2 "out of range: there are 7 classes" fashion --set model.vocab=7
train fashion bad --set train.steps=1 --set model.vocab=12
check "classes that no image has are told" grep -qF "2 of the 12 classes have no image to train on" "$root/log"
check "and how many there are" grep -qF "data: 60000 samples to train on, 10000 to validate with, 12 classes" "$root/log"
rm -rf "$root/bad"
refused "stages that leave nothing" 2 "keel run: an argument or a setting is wrong: resnet: images of 28x28 are too small for model.stages = 5 with model.stem = large" fashion --set model.stages=5 --set model.stem=large
refused "a key of another model" 2 "model.experts = 3 says nothing to model.kind = resnet" fashion --set model.experts=3
refused "heads that share nothing" 2 "llama: model.kv_heads = 2 does not divide model.heads = 3" llama-demo --set model.heads=3 --set model.width=18
refused "more keys than queries" 2 "llama: model.kv_heads = 4 is out of range: 1 to 2" llama-demo --set model.kv_heads=4
refused "heads that are no pairs" 2 "llama: heads of 3 elements, which cannot be turned in pairs" llama-demo --set model.width=6
refused "a bias of a llama" 2 "model.bias = false says nothing to model.kind = llama" llama-demo --set model.bias=false
refused "keys that a gpt shares" 2 "model.kv_heads = 2 says nothing to model.kind = moe" moe-demo --set model.kv_heads=2
train llama-demo sliced --set train.steps=6 --set job.tensor=2 --ranks 1
train llama-demo cut --set train.steps=6 --set job.tensor=2 --ranks 4 --set parallel.tensor=2 --drill kill:rank=3,step=4 --set cluster.timeout_s=1
check "a llama's slices are shared by ranks, of which one is killed" same_bits "$root/sliced" "$root/cut"
cuts() { # NAME DIR ARGUMENTS...: the same bits as one rank whose attention is cut by its heads of keys
    name=$1 out=$2
    shift 2
    train llama-demo "$out" --set train.steps=6 --set job.tensor=2 --set model.cut_heads=true "$@"
    check "$name" same_bits "$root/heads" "$root/$out"
}
train llama-demo heads --set train.steps=6 --set job.tensor=2 --set model.cut_heads=true --ranks 1
cuts "so are its heads of keys, where a rank is killed" heads-killed --ranks 4 --set parallel.tensor=2 --drill kill:rank=3,step=4 --set cluster.timeout_s=1
cuts "or each slice has owners" heads-owned --ranks 4 --set parallel.tensor=2 --set parallel.zero=2 --drill kill:rank=1,step=4,at=reduce --set cluster.timeout_s=1
cuts "or its weights are gathered, too" heads-gathered --ranks 4 --set parallel.tensor=2 --set parallel.zero=3
train llama-demo heads-resumed --set train.steps=3 --set job.tensor=2 --set model.cut_heads=true --ranks 2 --set parallel.tensor=2
cuts "or one rank goes on with what two saved" heads-resumed --ranks 1
experts="--set model.kind=mixtral --set model.experts=3"
train llama-demo mixtral --set train.steps=6 --set job.tensor=2 --set model.cut_heads=true $experts --ranks 1
mixes() { # NAME DIR ARGUMENTS...: the same of a llama of experts, which every rank has whole
    name=$1 out=$2
    shift 2
    train llama-demo "$out" --set train.steps=6 --set job.tensor=2 --set model.cut_heads=true $experts "$@"
    check "$name" same_bits "$root/mixtral" "$root/$out"
}
mixes "beside experts, where a rank is killed" mixtral-killed --ranks 4 --set parallel.tensor=2 --drill kill:rank=2,step=4,at=reduce --set cluster.timeout_s=1
check "which is lost" grep -q '"event":"recovery"' "$root/mixtral-killed/events.jsonl"
mixes "and where weights are gathered" mixtral-gathered --ranks 4 --set parallel.tensor=2 --set parallel.zero=3 --drill kill:rank=1,step=4 --set cluster.timeout_s=1
check "in which a rank was lost" grep -q '"event":"recovery"' "$root/mixtral-gathered/events.jsonl"
train llama-demo sliced --set train.steps=6 --set job.tensor=2 --set model.cut_heads=true --ranks 1
check "a run whose attention is whole does not go on with heads cut" grep -q 'holds a run of another job: model.cut_heads is false there and true here' "$root/log"
train llama-demo few --set train.steps=6 --set job.tensor=2 --set model.kv_heads=1 --set model.cut_heads=true --ranks 2 --set parallel.tensor=2
whole="model.cut_heads = true has no effect: there are fewer heads of keys (1) than slices (job.tensor = 2)"
check "which is told" grep -qF "$whole" "$root/log"
"$KEEL" plan "$jobs/llama-demo.conf" --set job.tensor=2 --set model.kv_heads=1 --set model.cut_heads=true >"$root/log" 2>&1
check "by a plan, too" grep -qF "$whole" "$root/log"
"$KEEL" plan "$jobs/llama-demo.conf" --set job.tensor=2 --set model.cut_heads=true >"$root/log" 2>&1
check "and not where there are enough" [ "$(grep -c cut_heads "$root/log")" -eq 0 ]
train llama-demo few-whole --set train.steps=6 --set job.tensor=2 --set model.kv_heads=1 --ranks 1
check "one head of keys for two slices is whole on both" same_bits "$root/few" "$root/few-whole"
train llama-demo gathered --set train.steps=6 --ranks 3 --set parallel.zero=3
check "or its weights are gathered" same_bits "$root/llama-demo-1" "$root/gathered"
names() { "$KEEL" ckpt show "$1" | sed -n 's/.* f32 *\([^ ]*\) .*/\1/p' | grep -v '^adam' | sort; }
names "$root/llama-demo-1" >"$root/names"
{ echo lm_head.weight; echo model.embed_tokens.weight; for n in 0 1; do for p in input_layernorm mlp.down_proj mlp.gate_proj mlp.up_proj \
    post_attention_layernorm self_attn.k_proj self_attn.o_proj self_attn.q_proj self_attn.v_proj; do echo "model.layers.$n.$p.weight"; done; done
    echo model.norm.weight; } | sort >"$root/wanted"
check "its names are those of LlamaForCausalLM" cmp -s "$root/names" "$root/wanted"
refused "one expert" 2 "model.experts = 1: out of range" moe-demo --set model.experts=1

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
