#!/bin/sh
# A model of GPT-2's shape (124 million parameters, LAYERS=12) whose weights come from a file by GPT-2's names is tuned on a
# text in tokens of a BPE, on one rank and on two of which one is killed in the second of STEPS=4: the same bits of all
# losses and weights. The tokenizer is that of tokenizer_bench.sh where it has run (50,257 tokens), else a small one.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-finetune steps=${STEPS:-4}
tokenizer=$BUILD/bench-tokenizer/tokenizer.json
[ -f "$tokenizer" ] || tokenizer=tests/golden/bpe/tokenizer.json
rm -rf "$root"
mkdir -p "$root"
run() { # DIR ARGUMENTS...
    dir=$1
    shift
    "$KEEL" run runtime/jobs/gpt2-124m.conf --out "$root/$dir" --set data.path=build/data/english.txt --set "data.vocab=bpe:$tokenizer" \
        --set model.vocab=0 --set "model.layers=${LAYERS:-12}" --set model.block=128 --set train.batch=1 --set train.microbatches=1 \
        --set job.shards=2 --set "train.steps=$steps" --set train.eval_every=0 --set snapshot.every="$steps" \
        --set cluster.timeout_s=60 --sample 0 "$@" >>"$root/log" 2>&1 || { echo "finetune_bench: failed; see $root/log" >&2; exit 1; }
}
run other --ranks 1 --set job.seed=99 --set train.steps=1 --set train.lr=1e-9 --set train.min_lr=0 --set snapshot.every=1
"$KEEL" ckpt export "$root/other" "$root/weights/" --names gpt2 >>"$root/log" 2>&1 || exit 1
for dir in one two; do
    run "$dir" --prepare
    "$KEEL" ckpt import "$root/weights/" "$root/$dir" --names gpt2 --for-training >>"$root/log" 2>&1 || exit 1
done
run one --ranks 1
run two --ranks 2 --drill kill:rank=1,step=2,at=reduce
same_bits "$root/one" "$root/two" && differ=0 || differ=1
printf '{"room":"runtime","figure":"GPT-2 of %s tensors by its names, tuned on tokens of a BPE, a rank killed: steps with other bits","value":%s,"unit":"steps","peer":null,"peer_value":null,"ratio":null,"goal":0,"met":%s}\n' \
    "$(sed -n 's/^step 0: \([0-9]*\) tensors.*/\1/p' "$root/log" | head -n 1)" "$differ" "$([ $differ -eq 0 ] && echo true || echo false)"
grep -q '"event":"recovery"' "$root/two/events.jsonl" || { echo "finetune_bench: nothing was killed" >&2; exit 1; }
steps "$root/two" | sed 's/^/# step, loss bits, weights: /'
exit $differ
