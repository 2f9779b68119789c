#!/bin/sh
# Weights of other programs train here, and a job's state may take the way through safetensors: what comes back
# has the same bits, and the run goes on as if it had never been away.
set -u
here=$(dirname "$0")
. "$here/script.sh"

train() { # DIR ARGUMENTS...: the same small model
    out=$1
    shift
    timeout 600 "$KEEL" run "$here/../demo/drill.conf" --out "$root/$out" --set "data.path=$text" --set cluster.device=host \
        --set train.decay_steps=20 --set train.eval_every=0 "$@" >"$root/log" 2>&1
}
ckpt() { timeout 600 "$KEEL" ckpt "$@" >"$root/log" 2>&1; }
digest() { sed -n "s/^{\"step\":$2,.*\"digest\":\"\([0-9a-f]*\)\".*/\1/p" "$root/$1/metrics.jsonl"; }

train whole --set train.steps=12 --set snapshot.every=8
check "a run to compare with" [ -n "$(digest whole 12)" ]

# ---- a job's whole state goes out and comes back ----
ckpt export "$root/whole" "$root/state/" --step 8 --shard-size 64KB
check "the state is exported in shards" [ -f "$root/state/model.safetensors.index.json" ]
train back --prepare --set train.steps=12
check "a directory is prepared" [ -f "$root/back/identity" ]
check "and nothing was trained" [ ! -e "$root/back/metrics.jsonl" ]
check "the state is imported" ckpt import "$root/state" "$root/back"
check "and equals what it was" ckpt diff "$root/back" "$root/whole/ckpt/$(ls "$root/whole/ckpt")/step-8.1"
train back --set train.steps=12
check "the run goes on at step 9" [ -z "$(digest back 8)" ]
check "with the same bits" [ "$(digest back 12)" = "$(digest whole 12)" ]

# ---- a model's weights begin another job ----
ckpt export "$root/whole" "$root/hub/" --names gpt2
train other --prepare --set job.seed=7 --set train.lr=0 --set train.min_lr=0
ckpt import "$root/hub" "$root/other"
check "another job does not go on from weights" grep -q -- "--for-training begins that job" "$root/log"
check "but begins from them" ckpt import "$root/hub" "$root/other" --names gpt2 --for-training
train other --set job.seed=7 --set train.lr=0 --set train.min_lr=0 --set train.steps=20 --ranks 2
check "it takes the imported step 0" grep -q '"resumed".*"step":0' "$root/other/events.jsonl"
check "and a step that learns nothing leaves the weights" [ "$(digest other 1)" = "$(digest whole 12)" ]
train fresh --set job.seed=7 --set train.lr=0 --set train.min_lr=0 --set train.steps=20
check "which another job does not have by itself" [ "$(digest fresh 1)" != "$(digest whole 12)" ]
train other --set job.seed=7 --set train.lr=0 --set train.min_lr=0 --prepare
check "weights do not go where a run is" [ -n "$(! ckpt import "$root/hub" "$root/other" --names gpt2 --for-training && grep "a new --out" "$root/log")" ]
check "preparing again harms nothing" [ "$(digest other 1)" = "$(digest whole 12)" ]

# ---- a run of an earlier arithmetic ends, and its weights begin another ----
# What such a Keel left behind: its snapshots and its directory bear an identity without the version at its end.
train old --prepare --set train.steps=12
printf %s 0764284c8245bf02c1ae6b61b4fb35d4936f6a27834eb37dd34738c058028cdf >"$root/old/identity"
check "weights as an earlier Keel kept them" ckpt import "$root/state" "$root/old" --for-training
train old --set train.steps=12
code=$?
check "the run is not gone on with" [ "$code" -eq 4 ]
check "for the reason" grep -q "holds a run of another version of Keel's arithmetic, which cannot go on to the bit" "$root/log"
check "with the move" grep -q "keel ckpt import W.safetensors NEW --for-training" "$root/log"
check "nothing was trained" [ ! -e "$root/old/metrics.jsonl" ]
check "its weights go out" ckpt export "$root/old" "$root/w.safetensors" --only weights
train new --prepare --set train.lr=0 --set train.min_lr=0
check "and into a new run" ckpt import "$root/w.safetensors" "$root/new" --for-training
train new --set train.lr=0 --set train.min_lr=0
check "which begins from them, to the bit" [ "$(digest new 1)" = "$(digest whole 8)" ]
rm "$root/old/identity"
train old --set train.steps=12
check "snapshots alone are told as well" grep -q "is of another version of Keel's arithmetic" "$root/log"
rm -r "$root/old/ckpt"
printf %s 0764284c8245bf02c1ae6b61b4fb35d4936f6a27834eb37dd34738c058028cdf >"$root/old/identity"
train old --set train.steps=12
check "and a directory without any" grep -q "another version of the arithmetic, and has no snapshot of it" "$root/log"

# ---- and a job that waits in 16 bits, whose loss scale no model has ----
train f16 --prepare --set train.storage=f16
check "weights are imported for f16" ckpt import "$root/hub" "$root/f16" --names gpt2 --for-training
train f16 --set train.storage=f16 --set train.steps=20 --ranks 2
check "the run takes them" grep -q '"resumed".*"step":0' "$root/f16/events.jsonl"
check "and its loss scale begins as large as it may be" grep -q '^{"step":1,.*"loss_scale":16777216.0[,}]' "$root/f16/metrics.jsonl"
check "to the end" [ -n "$(digest f16 20)" ]
ckpt show "$root/f16"
check "a snapshot keeps of a loss scale what there is, and no moments" [ "$(grep -c loss_scale "$root/log")" -eq 1 ]
check "weights of such a run are a GPT-2" ckpt export "$root/f16" "$root/hub16/" --names gpt2
ckpt export "$root/f16" "$root/scaled.safetensors" --only weights
check "and no loss scale is among them" [ "$(head -c 8000 "$root/scaled.safetensors" | grep -ac loss_scale)" -eq 0 ]
check "nor in a job of float32 that begins from all of it" [ -n "$(ckpt export "$root/f16" "$root/all16/" && train wide --prepare &&
    ckpt import "$root/all16" "$root/wide" --for-training && train wide --set train.steps=2 && digest wide 2)" ]

# ---- weights of another model are refused by the tensor ----
other_model() { # WORDS ARGUMENTS...
    words=$1
    shift
    rm -rf "$root/model"
    train model --prepare "$@" && ckpt import "$root/hub" "$root/model" --names gpt2 --for-training || return 1
    ! train model "$@" && grep -qF -- "$words" "$root/log"
}
check "of more layers" other_model "tensor h.1.attn.c_attn.bias of the snapshot is none of this job's model" --set model.layers=1
check "of fewer" other_model "holds no tensor h.2." --set model.layers=3
check "of another width" other_model "tensor wte.weight is stored as f32 [28,32], but f32 [28,16]" --set model.width=16
train part --prepare
check "some of the weights are imported" ckpt import "$root/state" "$root/part" --for-training --only wte
train part
code=$?
check "and are refused as a model, with the move" [ "$code" -eq 4 ]
check "that cures it" grep -q "holds no tensor .* of this job's model: import all of the weights (without --only)" "$root/log"
train whole --set train.steps=14 --set train.storage=f16
check "a run of float32 does not go on in f16" grep -q "another job" "$root/log"
check "nor a step further" [ -z "$(digest whole 13)" ]

# ---- a GPT-2 of others computes what it computed there ----
# golden/safetensors/gpt2.safetensors was written by the reference package (Python, safetensors 0.8.0) in the layout of
# the Hugging Face programs; the loss on a text of one letter is that of their formulas in numpy, in double precision.
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "a" }' >"$text"
gpt2() {
    train gpt2 --set model.width=8 --set model.block=6 --set model.vocab=11 --set model.dropout=0 --set train.lr=0 \
        --set train.min_lr=0 --set train.steps=20 "$@"
}
gpt2 --prepare
check "a GPT-2 file is imported" ckpt import "$here/../golden/safetensors/gpt2.safetensors" "$root/gpt2" --names gpt2 --for-training
gpt2
check "its loss is that of the formulas" awk -v loss="$(sed -n 's/^{"step":1,"loss":\([0-9.]*\),.*/\1/p' "$root/gpt2/metrics.jsonl")" \
    'BEGIN { d = loss - 2.1980077265664737; exit !(d < 2e-6 && d > -2e-6) }'

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
