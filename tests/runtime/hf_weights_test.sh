#!/bin/sh
# Weights of a BERT and of a Mixtral go out and come in under the names of Hugging Face's programs, bit for bit; both train
# through a kill, cut into slices and over owners with the same bits. Where KEEL_PYTHON names a Python with transformers,
# random models of GPT-2, Llama, Mixtral and BERT are compared both ways by their logits.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
names=hf
. "$here/weights.sh"

text_job() { job "$1" "$text" && printf 'layers = 2\nheads = 4\nwidth = 16\nblock = 16\n[data]\nvocab = byte\n[model]\n'; }
{ text_job bert; printf 'kind = bert\ndropout = 0.1\n'; } >"$root/bert.conf"
{ text_job mixtral; printf 'kind = mixtral\nkv_heads = 2\nhidden = 24\nexperts = 3\ntied = false\n'; } >"$root/mixtral.conf"

for name in bert mixtral; do
    train $name $name --set job.tensor=2
    check "$name: is trained" [ $? -eq 0 ]
    train $name $name-killed --set job.tensor=2 --set parallel.tensor=2 --ranks 4 --drill kill:rank=1,step=3
    check "$name: through a kill, cut into slices" [ $? -eq 0 ]
    check "$name: with the same bits" same_bits "$root/$name" "$root/$name-killed"
    train $name $name-owned --set job.tensor=2 --set parallel.zero=3 --ranks 3 --drill kill:rank=2,step=3
    check "$name: and over owners, through another" same_bits "$root/$name" "$root/$name-owned"
    "$KEEL" ckpt export "$root/$name" "$root/$name-hf/" --names $name >"$root/log" 2>"$root/errors"
    check "$name: goes out" [ $? -eq 0 ]
    "$KEEL" plan "$root/$name/job.conf" --config-json >"$root/$name-hf/config.json" 2>"$root/errors"
    check "$name: with a config.json" [ $? -eq 0 ]
    train $name $name-in --prepare --set job.tensor=2
    "$KEEL" ckpt import "$root/$name-hf" "$root/$name-in" --names $name --for-training >"$root/log" 2>"$root/errors"
    check "$name: comes in again" [ $? -eq 0 ]
    was=$(told $name)
    check "$name: with the same loss" [ -n "$was" -a "$(told $name-in)" = "$was" ]
done
check "a layer of BERT has Hugging Face's names" header bert '"bert.encoder.layer.1.attention.self.query.weight":{"dtype":"F32","shape":[16,16]'
check "and matrices [out, in]" header bert '"bert.encoder.layer.0.intermediate.dense.weight":{"dtype":"F32","shape":[64,16]'
check "and tables as they are" header bert '"bert.embeddings.word_embeddings.weight":{"dtype":"F32","shape":[257,16]'
check "and the segments'" header bert '"bert.embeddings.token_type_embeddings.weight":{"dtype":"F32","shape":[2,16]'
check "and the bias of its tied decoder" header bert '"cls.predictions.bias":{"dtype":"F32","shape":[257]'
check "and its configuration" grep -q '"BertForMaskedLM".*"type_vocab_size":2,.*"layer_norm_eps":0.00000000000100,.*"tie_word_embeddings":true' "$root/bert-hf/config.json"
check "experts are apart" header mixtral '"model.layers.1.block_sparse_moe.experts.2.w2.weight":{"dtype":"F32","shape":[16,24]'
check "and so is the router" header mixtral '"model.layers.0.block_sparse_moe.gate.weight":{"dtype":"F32","shape":[3,16]'
check "of so many, and two to a token" grep -q '"MixtralForCausalLM".*"num_local_experts":3,"num_experts_per_tok":2' "$root/mixtral-hf/config.json"
train mixtral plain
"$KEEL" sample "$root/plain" --prompt 'the quick ' --tokens 8 --temperature 0 --json >"$root/text" 2>"$root/errors"
check "a mixtral keeps keys and values" grep -q '"cache": *true' "$root/text"
"$KEEL" sample "$root/plain" --prompt 'the quick ' --tokens 8 --temperature 0 --no-cache --json >"$root/log" 2>"$root/errors"
for file in text log; do grep -o '"tokens": *\[[^]]*\]' "$root/$file" >"$root/$file.tokens"; done
check "and writes what it writes without" '[ -s "$root/text.tokens" ] && cmp -s "$root/text.tokens" "$root/log.tokens"'
train mixtral one --set model.top_k=1
check "a token may go to one expert alone" [ $? -eq 0 ]

refused() { # CLAIM CODE WORDS COMMAND...
    claim=$1 wanted=$2 words=$3
    shift 3
    timeout 60 "$KEEL" "$@" >"$root/log" 2>"$root/errors"
    code=$?
    check "$claim" [ "$code" -eq "$wanted" ]
    check "$claim, and says so" grep -qF -- "$words" "$root/errors"
    code=
}
refused "BERT's names of another model" 4 "is none of BERT's" ckpt export "$root/mixtral" "$root/x/" --names bert
refused "experts of a model without" 4 "no tensor is of experts" ckpt export "$root/bert" "$root/x/" --names mixtral
refused "weights of another model as BERT's" 4 "is none of BERT's" ckpt import "$root/mixtral-hf" "$root/none/run" --names bert
refused "weights without experts as a mixtral's" 4 "no tensor is of experts" ckpt import "$root/bert-hf" "$root/none/run" --names mixtral
refused "more experts to a token than there are" 2 "model.top_k = 4 is out of range: 1 to 3" run "$root/mixtral.conf" --out "$root/bad" --set model.top_k=4
refused "a bias of a BERT" 2 "model.bias = false says nothing to model.kind = bert" run "$root/bert.conf" --out "$root/bad" --set model.bias=false
refused "a capacity of a mixtral" 2 "model.capacity = 2 says nothing to model.kind = mixtral" run "$root/mixtral.conf" --out "$root/bad" --set model.capacity=2

if [ -n "${KEEL_PYTHON:-}" ] && "$KEEL_PYTHON" -c 'import transformers, torch' 2>/dev/null; then
    mkdir "$root/python"
    "$KEEL_PYTHON" "$here/hf_weights.py" "$root/python" "$KEEL" "$text" >"$root/log" 2>"$root/errors"
    check "Hugging Face's models have the same logits, both ways" [ $? -eq 0 ]
    sed 's/^/note: /' "$root/log"
else
    echo "note: KEEL_PYTHON names no Python with transformers: logits are not compared"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
