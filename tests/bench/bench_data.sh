#!/bin/sh
# Train the model whose state the benches measure on, once, into $1 (build/bench-data): a GPT of 3.2 million
# parameters (38 MB of weights and Adam moments) on the demo's text, with GPT-2's learning rates. Committed
# are steps 150 to 160, half-way down the schedule, so that a delta of one step is neither one of the first,
# which are large, nor one of the last, which are small. About a minute on four cores.
#
# The demo's own model (0.8 million parameters, tensors of a chunk or less) would measure the ends of chunks.
set -eu
out=$1 build=${BUILD:-build}
ls "$out"/ckpt/demo/step-160.*/manifest.json >/dev/null 2>&1 && exit 0
echo "bench: training the state to measure on, about a minute" >&2
rm -rf "$out"
train() {
    "$build/keel" run runtime/jobs/demo.conf --set model.width=256 --set train.lr=6e-4 --set train.min_lr=6e-5 \
        --set train.warmup_steps=20 --set train.decay_steps=300 --set train.eval_every=0 --set snapshot.keep=11 \
        --out "$out" "$@" >/dev/null
}
train --set train.steps=150 --set snapshot.every=150
# One run a step: within a run a step whose predecessor is still being written goes without a snapshot.
for step in 151 152 153 154 155 156 157 158 159 160; do
    train --set train.steps=$step --set snapshot.every=1
done
