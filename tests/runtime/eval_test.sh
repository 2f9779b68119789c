#!/bin/sh
# keel eval: the figures of a snapshot are those of its run at that step, to the bit, whatever plan has trained it and
# whichever device evaluates; other data are evaluated on; what cannot be evaluated is refused by name.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
jobs=$here/../../runtime/jobs
data=$PWD/build/data
golden=$here/../golden/bpe
mkdir "$root/tmp" # of no other test that evaluates beside this one
export TMPDIR="$root/tmp"

small() { # KIND: what makes its job small
    case $1 in
    fashion) echo "model.width=4 model.layers=1 model.stages=2 train.batch=4" ;;
    dlrm-demo) echo "model.width=4 model.layers=1 model.tables=3 model.categories=50 train.batch=16 data.samples=200" ;;
    moe-demo) echo "model.width=16 model.heads=2 model.layers=2 model.block=16 model.experts=4 train.batch=2" ;;
    *) echo "model.width=16 model.heads=2 model.layers=2 model.block=16 train.batch=2" ;;
    esac
}
train() { # KIND DIR ARGUMENTS...: they win over what is set here
    kind=$1 out=$root/$2
    shift 2
    for setting in $(small "$kind") train.steps=6 train.decay_steps=6 train.warmup_steps=2 train.eval_every=3 \
        train.eval_batches=3 snapshot.every=3 job.shards=4 cluster.device=host cluster.timeout_s=2; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$jobs/$kind.conf" --out "$out" "$@" >"$out.log" 2>&1
}
evaluate() { timeout 300 "$KEEL" eval "$@" >"$root/log" 2>"$root/errors"; }
explain() { tail -n 3 "$root/log" "$root/errors" "$out.log"; }
figure() { sed -n "s/.*\"$2\":\([-0-9.e]*\).*/\1/p" "$1" | head -n 1; } # FILE KEY
# A float is told by nine digits.
same() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a != "" && sprintf("%.9g", a) == sprintf("%.9g", b)) }'; }
# CLAIM KEY KEY-OF-METRICS: of both snapshots of the last run
agrees() {
    for step in 3 6; do
        grep "^{\"step\":$step," "$out/metrics.jsonl" >"$root/line"
        evaluate "$out" --step $step --json
        check "$1, step $step" same "$(figure "$root/log" "$2")" "$(figure "$root/line" "$3")"
    done
}

train demo one --ranks 1
agrees "a run of one rank" loss val_loss
train demo replicas --ranks 3 --set job.tensor=2 --set train.steps=6
agrees "replicas" loss val_loss
train demo tensor --ranks 4 --set job.tensor=2 --set parallel.tensor=2
agrees "ranks that share slices" loss val_loss
evaluate "$root/replicas" --json && cp "$root/log" "$root/first"
evaluate "$root/tensor" --json
check "and have the loss of replicas" [ "$(grep -o '"loss_bits":"[0-9a-f]*"' "$root/log")" = "$(grep -o '"loss_bits":"[0-9a-f]*"' "$root/first")" ]
train demo owners --ranks 3 --set parallel.zero=3
agrees "owners of weights" loss val_loss
evaluate "$root/owners" --step 6 --json --device pocl:0
check "another device" same "$(figure "$root/log" loss)" "$(figure "$root/line" val_loss)"
for kind in fashion dlrm-demo; do
    train $kind $kind --ranks 2
    agrees "$kind" loss val_loss
    agrees "$kind: its accuracy" accuracy val_accuracy
done
for kind in bert-demo moe-demo llama-demo; do
    train $kind $kind --ranks 1
    agrees "$kind" loss val_loss
done
evaluate "$root/moe-demo"
check "a mixture with a balance loss has no perplexity" '[ $was -eq 0 ] && ! grep -q perplexity "$root/log"'
for balance in 0.5 0; do
    train llama-demo mixtral-$balance --ranks 1 --set model.kind=mixtral --set model.balance=$balance
    evaluate "$out"
    check "a mixtral has perplexity where its balance loss has no weight ($balance)" \
        '[ $was -eq 0 ] && [ "$(grep -c perplexity "$root/log")" = $([ $balance = 0 ] && echo 1 || echo 0) ]'
done
template mymodel
make -s -C "$template" "KEEL_CFLAGS=$include"
out=$root/plugin
(cd "$root/mymodel" && timeout 600 "$KEEL" run mymodel.conf --out "$out" --ranks 1 --set "data.path=$text" --set cluster.device=host --set model.width=16 \
    --set model.blocks=1 --set model.heads=2 --set model.block=16 --set train.steps=6 --set train.decay_steps=6 --set train.batch=2 \
    --set train.eval_every=3 --set snapshot.every=3 >"$out.log" 2>&1)
agrees "a plug-in" loss val_loss

# ---- weights in few bits ----
few() { # CLAIM DIR TYPE BITS GROUP WAY MATRICES [OUT]: integers and scales by the definition, and what they are worth
    claim=$1 from=$root/$2 type=$3
    shift 3
    timeout 300 "$KEEL" export "$from" "$root/plain.safetensors" --force --no-eval >"$root/log" 2>"$root/errors"
    timeout 300 "$KEEL" export "$from" "$root/few.safetensors" --force --weights $type --json >"$root/log" 2>"$root/errors"
    check "$claim: integers and scales" [ "$(python3 "$here/few_bits.py" "$root/plain.safetensors" "$root/few.safetensors" "$1" "$2" "$3" ${5:-} 2>>"$root/errors")" = "$4" ]
    told=$(figure "$root/log" loss_quantised) whole=$(figure "$root/log" loss)
    evaluate "$from" --json --weights $type --device pocl:0
    check "$claim: their loss is told" same "$(figure "$root/log" loss)" "$told"
    evaluate "$from" --json
    check "$claim: beside that of all bits" same "$(figure "$root/log" loss)" "$whole"
    rm -rf "$root/back"
    timeout 60 "$KEEL" ckpt import "$root/few.safetensors" "$root/back" >"$root/log" 2>"$root/errors"
    evaluate "$root/back" --job "$from/job.conf" --json
    check "$claim: what was written is loaded again" same "$(figure "$root/log" loss)" "$told"
}
few "a gpt in 8 bits" one int8 8 0 across 8 "$root/rounded.safetensors"
few "in 4 bits" one int4 4 32 across 8
few "a llama in 4 bits, an output's together" llama-demo int4:all 4 0 down 15
few "images, by 64 inputs" fashion int8:64 8 64 across 7
few "experts" moe-demo int8:32 8 32 across 9
timeout 60 "$KEEL" ckpt import "$root/rounded.safetensors" "$root/rounded" >"$root/log" 2>&1
evaluate "$root/rounded" --job "$root/one/job.conf" --json && cp "$root/log" "$root/first"
evaluate "$root/one" --weights int8 --json
check "they are those of the weights that they stand for, to the bit" '[ $was -eq 0 ] && [ "$(grep -o "\"loss_bits\":\"[0-9a-f]*\"" "$root/log")" = "$(grep -o "\"loss_bits\":\"[0-9a-f]*\"" "$root/first")" ]'
check "in the memory of integers, but for a table that is an embedding too" [ "$(figure "$root/log" weight_bytes)" -lt "$(($(figure "$root/first" weight_bytes) * 2 / 3))" ]
timeout 60 "$KEEL" sample "$root/one" --weights int4 --tokens 40 --temperature 0 --json >"$root/log" 2>"$root/errors"
timeout 60 "$KEEL" sample "$root/one" --weights int4 --tokens 40 --temperature 0 --no-cache --json >"$root/first" 2>>"$root/errors"
check "text is written by them" '[ $was -eq 0 ] && [ "$(sed "s/.*\"text\"//; s/\"cache.*//" "$root/log")" = "$(sed "s/.*\"text\"//; s/\"cache.*//" "$root/first")" ]'

# ---- what is told ----
evaluate "$root/one"
check "text for people" grep -q '^perplexity  [0-9.]*$' "$root/log"
check "names step and counts" grep -q 'one, step 6, on its validation data: 3 batches, 6 samples, 96 tokens' "$root/log"
evaluate "$root/fashion" --per-class --json --batches 25
check "classes are counted" grep -q '"samples":100,.*"classes":\[{"class":0,"right":[0-9]*,"samples":[0-9]*},' "$root/log"
evaluate "$root/fashion" --batches 25 --logits "$root/logits.npy"
check "the scores of all classes are written" [ "$(wc -c <"$root/logits.npy")" -eq $((128 + 100 * 10 * 4)) ]
check "as NumPy reads them" grep -aq "'descr': '<f4', 'fortran_order': False, 'shape': (100, 10), }" "$root/logits.npy"
mkfifo "$root/pipe"
cat "$root/pipe" >"$root/piped.npy" &
reader=$!
evaluate "$root/fashion" --batches 25 --logits "$root/pipe"
check "what is no regular file is written to, and not replaced" [ -p "$root/pipe" ]
[ -p "$root/pipe" ] && wait $reader || kill $reader
check "with the same bytes" cmp -s "$root/logits.npy" "$root/piped.npy"
evaluate "$root/fashion" --per-class --json --batches 25
check "each sample once" [ "$(sed 's/.*"classes"//' "$root/log" | grep -o '"samples":[0-9]*' | awk -F: '{ n += $2 } END { print n }')" -eq 100 ]
right=$(sed 's/.*"classes"//' "$root/log" | grep -o '"right":[0-9]*' | awk -F: '{ n += $2 } END { print n / 100 }')
check "and their right ones are the accuracy" same "$(awk -v x="$right" 'BEGIN { printf "%.6g", x }')" "$(awk -v x="$(figure "$root/log" accuracy)" 'BEGIN { printf "%.6g", x }')"

# ---- other data ----
head -c 3000 "$data/english.txt" >"$root/other.txt"
evaluate "$root/one" --data "$root/other.txt" --all --json
check "another text is evaluated, whole" grep -q '"tokens":3[0-9]*,' "$root/log"
train demo other --ranks 1 --set data.vocab=byte
mv "$root/other.txt" "$root/moved.txt"
evaluate "$root/other" --data "$root/moved.txt" --batches 2
check "of bytes no other text is wanted" [ $? -eq 0 ]
train bpe-demo bpe --ranks 1 --set "data.path=$root/moved.txt" --set "data.vocab=bpe:$golden/tokenizer.json" --set data.val_fraction=0.4
agrees "tokens of a tokenizer" loss val_loss
evaluate "$out" --data "$root/moved.txt" --all --json && cp "$root/log" "$root/first"
check "a text is encoded by the tokenizer" same "$(figure "$root/first" loss)" "$(figure "$root/first" loss)"
evaluate "$out" --data "$(ls "$out"/tokens-*.bin)" --all --json
check "and has the loss of its token file" same "$(figure "$root/log" loss)" "$(figure "$root/first" loss)"
check "no file of it stays" [ -z "$(ls -d "$root/tmp"/keel-eval-* 2>/dev/null)" ]
mkdir "$root/images" && for f in images-idx3 labels-idx1; do cp "$data/fashion/t10k-$f-ubyte" "$root/images"; done
evaluate "$root/fashion" --data "$root/images" --json && cp "$root/log" "$root/first"
evaluate "$root/fashion" --json
check "the same images from another folder" same "$(figure "$root/log" loss)" "$(figure "$root/first" loss)"

# ---- places ----
evaluate "$jobs/demo.conf" --out "$root/one" --json
check "a job file names the run" same "$(figure "$root/log" loss)" "$(sed -n 's/^{"step":6,.*"val_loss":\([0-9.]*\).*/\1/p' "$root/one/metrics.jsonl")"
check "whose own job counts, and it is told" grep -q 'holds a run of another job, which is taken: ' "$root/errors"
evaluate "$root/one"/ckpt/*/step-3.* --json
check "a snapshot's directory" grep -q '"step":3,' "$root/log"
cp -r "$root/one/ckpt" "$root/alone"
evaluate "$root/alone" --job "$root/one/job.conf" --json
check "a store elsewhere, with the job's file" [ $? -eq 0 ]

# ---- what cannot be ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    evaluate "$@"
    code=$?
    check "$name" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$root/errors"
    code=
}
refused "nothing there" 3 "$root/none: is not there" "$root/none"
refused "a step without a snapshot" 3 "keel ckpt ls $root/one says which there are" "$root/one" --step 4
refused "a step that a snapshot is not of" 2 "is not of step 6" "$root/one"/ckpt/*/step-3.* --step 6
refused "a store without its job" 3 "name the job's file by --job" "$root/alone"
refused "a job that was never run" 3 "no run of" "$jobs/demo.conf" --out "$root/never"
mkdir "$root/empty" && cp "$root/one/job.conf" "$root/empty"
refused "a run without snapshots" 3 "holds no snapshots of demo" "$root/empty"
mkdir "$root/nodes" && sed 's|^local = *$|local = /here|' "$root/one/job.conf" >"$root/nodes/job.conf"
refused "a run whose nodes keep its snapshots" 3 "one of /here/node-N, and --job $root/nodes/job.conf" "$root/nodes"
refused "another model" 4 "belongs to another job" "$root/one" --set model.layers=3
refused "another model, on other data" 4 "the snapshot holds no tensor h.2.ln_1.weight of this job's model" "$root/other" --set model.layers=3 --data "$root/moved.txt"
refused "a smaller model" 4 "tensor h.1.attn.c_attn.bias of the snapshot is none of this job's model" "$root/other" --set model.layers=1 --data "$root/moved.txt"
refused "another width" 4 "wte.weight" "$root/other" --set model.width=32 --data "$root/moved.txt"
refused "other data in the place of the job's" 4 "belongs to another job" "$root/one" --set "data.path=$root/moved.txt" --set data.vocab=byte
refused "an option that says nothing" 2 "--format: says nothing without --data" "$root/one" --format text
refused "a format that there is not" 2 "--format words: one of auto, text" "$root/one" --format words --data "$root/moved.txt"
refused "weights of three bits" 2 "--weights int3: int8 (a scale for each output) or int4" "$root/one" --weights int3
refused "two counts" 2 "--all and --batches" "$root/one" --all --batches 2
refused "scores over a file that is there" 2 "logits.npy: something is there; name another file, or give --force" \
    "$root/fashion" --batches 25 --logits "$root/logits.npy"
evaluate "$root/fashion" --batches 25 --logits "$root/logits.npy" --force
check "are written if that is asked for" '[ $was -eq 0 ]'
"$KEEL" eval "$root/one" --logits "$root/x.npy" >"$root/log" 2>"$root/errors" &&
    columns=$(head -c 128 "$root/x.npy" | grep -ao "(96, [0-9]*)" | tr -cd '0-9 ' | cut -d ' ' -f 2)
check "logits of a text are written, a row for each token" '[ $was -eq 0 ] && [ "$(wc -c <"$root/x.npy")" -eq $((128 + 96 * columns * 4)) ]'
refused "logits into a directory" 2 "$root: is a directory; name a file" "$root/fashion" --logits "$root"
refused "logits to a file without a name" 2 "whose name is empty; name one" "$root/fashion" --logits ""
refused "classes of a text" 2 "--per-class: the model of this job names no classes" "$root/one" --per-class
refused "all of what has no end" 2 "--all: samples are drawn" "$root/dlrm-demo" --all
refused "data for a model that reads none" 3 "dlrm reads no file" "$root/dlrm-demo" --data "$root/moved.txt"
refused "data that are not there" 3 "--data: the data = $root/other.txt: no such file" "$root/one" --data "$root/other.txt"
printf 'caf\303\251 is a word, and more of it' >"$root/foreign.txt"
refused "bytes that no training text had" 2 "foreign.txt: byte 195 at offset 3 is none of the job's vocabulary" "$root/one" --data "$root/foreign.txt"
printf 'short' >"$root/short.txt"
refused "a text shorter than the block" 2 "short.txt: 5 bytes, at least model.block + 1 = 17 are needed" "$root/one" --data "$root/short.txt"
awk 'BEGIN { for (i = 0; i < 40; i++) printf "%c%c", 1, i == 30 ? 2 : 0 }' >"$root/tokens.bin"
refused "a token beyond the vocabulary" 2 "tokens.bin" "$root/bpe" --data "$root/tokens.bin"
check "at its offset" grep -q 'token 513.*60\|60.*token 513' "$root/errors"
refused "tokens for a model of bytes" 2 "is a token file, and the job's tokens are bytes of a text" "$root/one" --data "$root/tokens.bin"
refused "images that are not there" 3 "no file t10k-images-idx3-ubyte there" "$root/fashion" --data "$root/mymodel"
refused "no place at all" 2 "PATH" 
shard=$(ls "$root/alone"/*/step-6.*/rank-0.keel)
printf '\377' | dd of="$shard" bs=1 seek=4200 conv=notrunc 2>/dev/null
refused "a snapshot that is damaged" 4 "rank-0.keel" "$root/alone" --job "$root/one/job.conf"
head -c 6000 "$shard" >"$root/cut" && cp "$root/cut" "$shard"
refused "a snapshot that is cut" 4 "rank-0.keel" "$root/alone" --job "$root/one/job.conf"
evaluate "$root/alone" --job "$root/one/job.conf" --step 3
check "the one before is whole" [ $? -eq 0 ]
rm "$root/mymodel/mymodel.so"
refused "a plug-in that is gone" 3 "mymodel.so: no such file" "$root/plugin"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
