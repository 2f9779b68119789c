#!/bin/sh
# Training as people do it: what is frozen, groups with rules of their own, and schedules have the same bits on any
# plan, through ranks that are killed and runs that are cut in two.
set -u
here=$(dirname "$0")
. "$here/script.sh"

train() { # DIR ARGUMENTS...: a small llama; they win over what is set here
    out=$1
    shift
    for setting in model.width=16 model.heads=2 model.layers=2 model.block=16 train.batch=2 train.decay_steps=6 \
        train.warmup_steps=2 train.eval_every=3 train.eval_batches=2 snapshot.every=3 job.shards=4 job.tensor=2 \
        cluster.device=host cluster.timeout_s=1 parallel.bucket=4096; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/llama-demo.conf" --out "$root/$out" "$@" >"$root/log" 2>&1
}
grouped() { # DIR ARGUMENTS...
    out=$1
    shift
    train "$out" --set 'train.freeze=model.layers.0.*,model.embed_tokens.weight' --set 'train.lr_scale=*norm.weight:2' \
        --set 'train.no_decay=*.o_proj.weight' --set train.decay=wsd --set train.cooldown_steps=2 --set train.steps=6 \
        --set train.ema=0.9 "$@"
}
same_state() { "$KEEL" ckpt diff "$root/one" "$root/$1" >"$root/log" 2>&1; } # averages and moments are in no digest

grouped one
check "a run of one rank" [ "$(steps "$root/one" | wc -l)" -eq 6 ]
names() { "$KEEL" ckpt show "$root/one" | sed -n 's/.* f32 *\([^ ]*\) .*/\1/p'; }
check "weights that are frozen are in its snapshots" [ "$(names | grep -c '^model.layers.0')" -eq 9 ]
check "without moments" [ "$(names | grep -c '^adam.*\(layers.0\|embed_tokens\)')" -eq 0 ]
check "which others have" [ "$(names | grep -c '^adam.m/model.layers.1')" -eq 9 ]
check "and an average" [ "$(names | grep -c '^ema/')" -eq "$(names | grep -c '^adam.m/')" ]
grouped killed --ranks 3 --drill kill:rank=1,step=4
check "three ranks, of which one is killed, have the same bits" same_bits "$root/one" "$root/killed"
check "of all of the state" same_state killed
check "as well as its loss" grep -q '"event":"recovery"' "$root/killed/events.jsonl"
grouped owned --ranks 3 --set parallel.zero=1 --drill kill:rank=1,step=4,at=spread
check "or own pieces" same_bits "$root/one" "$root/owned"
check "of all of the state too" same_state owned
grouped gathered --ranks 2 --set parallel.zero=3
check "or gather weights" same_bits "$root/one" "$root/gathered"
check "of all of the state likewise" same_state gathered
grouped sliced --ranks 4 --set parallel.tensor=2 --set parallel.data=2 --drill kill:rank=3,step=5
check "or share slices" same_bits "$root/one" "$root/sliced"
check "of all that they share" same_state sliced
grouped cut --set train.steps=4
grouped cut --set train.steps=6 --ranks 2
check "a run that was cut in two has them too" same_bits "$root/one" "$root/cut"
check "and all of its state" same_state cut
grouped other --set train.freeze=model.layers.0.mlp.up_proj.weight --resume none
check "what is frozen belongs to the run" [ "$(steps "$root/one" | tail -1)" != "$(steps "$root/other" | tail -1)" ]
sent() { sed -n 's/^{"step":6,.*"sent_bytes":\([0-9]*\).*/\1/p' "$root/$1/metrics.jsonl"; }
grouped both --ranks 2
train whole --ranks 2 --set train.steps=6
check "gradients of what is frozen are not sent" [ "$(sent both)" -lt $(($(sent whole) * 6 / 10)) ]
# The average of the weights, in their place.
loss() { of=$1; shift; "$KEEL" eval "$root/$of" --json "$@" | sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p'; }
check "an average has a loss of its own" [ "$(loss one --ema)" != "$(loss one)" ]
check "which is that of any plan" [ "$(loss one --ema)" = "$(loss sliced --ema)" ]
# The run evaluates the average, where all ranks have all of it, slices or pieces, and through a loss in the middle of it.
told() { sed -n 's/^{"step":'"$2"',.*"val_loss":\([0-9.]*\).*"val_of":"ema".*/\1/p' "$root/$1/metrics.jsonl"; }
near() { awk "BEGIN { d = $1 - $2; exit !(d < 1e-6 && d > -1e-6) }"; }
check "the run's own validation is of the average" near "$(told one 6)" "$(loss one --ema)"
check "at each of them" near "$(told one 3)" "$(loss one --ema --step 3)"
for zero in 1 2 3; do
    grouped "eval-$zero" --ranks 3 --set "parallel.zero=$zero" --drill kill:rank=1,step=3,at=eval
    check "a rank that is lost in an evaluation of pieces, zero = $zero, costs no bit" same_bits "$root/one" "$root/eval-$zero"
    check "of the state" same_state "eval-$zero"
    check "and no digit of what comes out" [ "$(told "eval-$zero" 3) $(told "eval-$zero" 6)" = "$(told one 3) $(told one 6)" ]
done
check "or of slices" [ "$(told sliced 3) $(told sliced 6)" = "$(told one 3) $(told one 6)" ]
"$KEEL" export "$root/one" "$root/average.safetensors" --ema --no-eval >"$root/log" 2>&1
train average --prepare
"$KEEL" ckpt import "$root/average.safetensors" "$root/average" --for-training >"$root/log" 2>&1
check "it goes out as weights" [ "$(loss one --ema)" = "$(loss average)" ]
"$KEEL" eval "$root/whole" --ema >"$root/log" 2>&1
check "where there is none it is refused" grep -qF "keeps no average of its weights (train.ema)" "$root/log"
# Fine-tuning: weights of another run, of which most stay.
"$KEEL" ckpt export "$root/whole" "$root/w.safetensors" --only weights >"$root/log" 2>&1
tune() { train tuned --set 'train.freeze=model.layers.*,model.embed_tokens.weight' --set train.steps=6 "$@"; }
tune --prepare
"$KEEL" ckpt import "$root/w.safetensors" "$root/tuned" --for-training >"$root/log" 2>&1
tune --ranks 2 --drill kill:rank=1,step=3
check "imported weights are tuned through a kill" [ "$(steps "$root/tuned" | wc -l)" -eq 6 ]
"$KEEL" ckpt diff "$root/whole" "$root/tuned" | grep -v adam >"$root/log" 2>&1
check "what is tuned moves" grep -q 'model.norm.weight' "$root/log"
check "and nothing else does" [ "$(grep -c 'layers\|embed' "$root/log")" -eq 0 ]
# LoRA: the same from imported weights, with dropout, and rates of their own as LoRA+ has them (Hayou et al. 2024).
lora() { # DIR ARGUMENTS...
    out=$1
    shift
    set -- --set train.lora_rank=4 --set train.lora_alpha=8 --set train.lora_dropout=0.1 --set 'train.lora_targets=*self_attn*' \
        --set 'train.lr_scale=*.lora_B.weight:4' --set train.steps=6 "$@"
    train "$out" --prepare "$@"
    "$KEEL" ckpt import "$root/w.safetensors" "$root/$out" --for-training >"$root/log" 2>&1
    train "$out" "$@"
}
lora lora-1
check "adapters are trained beside imported weights" [ "$(steps "$root/lora-1" | wc -l)" -eq 6 ]
lora lora-3 --ranks 3 --drill kill:rank=1,step=4
check "they have the same bits on three ranks, of which one is killed" same_bits "$root/lora-1" "$root/lora-3"
lora lora-owned --ranks 2 --set parallel.zero=1
check "or own pieces" same_bits "$root/lora-1" "$root/lora-owned"
lora lora-gathered --ranks 2 --set parallel.zero=3
check "or gather weights" same_bits "$root/lora-1" "$root/lora-gathered"
lora lora-sliced --ranks 2 --set parallel.tensor=2
check "or share slices" same_bits "$root/lora-1" "$root/lora-sliced"
"$KEEL" ckpt diff "$root/whole" "$root/lora-1" | grep -v adam >"$root/log" 2>&1
check "adapters are in the snapshots" [ "$(grep -c 'self_attn.[qkvo]_proj.lora_[AB].weight' "$root/log")" -eq 16 ]
check "beside weights that stay" [ "$(grep -v lora_ "$root/log" | grep -c 'weight')" -eq 0 ]
# Out: merged, what they say in the model is in its weights; or alone, by PEFT's names.
"$KEEL" export "$root/lora-1" "$root/merged.safetensors" --no-eval >"$root/log" 2>&1
check "merged weights go out" grep -q ': 21 tensors' "$root/log"
train merged --prepare
"$KEEL" ckpt import "$root/merged.safetensors" "$root/merged" --for-training >"$root/log" 2>&1
check "and are worth what the adapters were" awk "BEGIN { d = $(loss merged) - $(loss lora-1); exit !(d < 1e-5 && d > -1e-5) }"
check "which is not what was before" awk "BEGIN { d = $(loss whole) - $(loss lora-1); exit !(d > 1e-5 || d < -1e-5) }"
mkdir "$root/peft"
"$KEEL" export "$root/lora-1" "$root/peft/adapter_model.safetensors" --adapters --no-eval >"$root/log" 2>&1
check "adapters go out alone" grep -q ': 16 tensors' "$root/log"
check "by PEFT's names" grep -qa '"base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight":{"dtype":"F32","shape":\[[0-9]*,4\]' "$root/peft/adapter_model.safetensors"
tr -d ' \n' <"$root/peft/adapter_config.json" >"$root/peft.txt"
check "with their configuration" grep -q '"r":4,"lora_alpha":8.*"target_modules":\["q_proj","k_proj","v_proj","o_proj"\]' "$root/peft.txt"
smooth() { # DIR ARGUMENTS...: labels that are smoothed, two microbatches a shard
    out=$1
    shift
    train "$out" --set job.tensor=1 --set train.label_smoothing=0.1 --set train.total_batch=16 --set train.steps=6 "$@"
}
smooth smooth-1
smooth smooth-2 --ranks 2 --set parallel.zero=1 --drill kill:rank=1,step=4
check "smoothed labels have the same bits through a kill" same_bits "$root/smooth-1" "$root/smooth-2"
check "in steps of so many samples" grep -q '^{"step":6,.*"tokens":1536' "$root/smooth-1/metrics.jsonl"
validation() { sed -n 's/^{"step":6,.*"val_loss":\([0-9.]*\).*/\1/p' "$root/$1/metrics.jsonl"; }
check "validation has labels as they are" awk "BEGIN { d = $(validation smooth-1) - $(loss smooth-1); exit !(d < 1e-6 && d > -1e-6) }"
train bad --set train.steps=6 --set 'train.freeze=h.0.*'
code=$?
check "a pattern that names nothing is refused" [ "$code" -eq 2 ]
check "by name" grep -qF "train.freeze: h.0.* names no parameter of the model" "$root/log"
train bad --set train.steps=6 --set 'train.freeze=*'
check "so is a model of which nothing is trained" grep -qF "the graph has no parameter to train: all are frozen" "$root/log"
"$KEEL" plan "$root/one/job.conf" --ranks 2 --dump >"$root/plan" 2>&1
check "keel plan says what is frozen" [ "$(grep -c '  frozen$' "$root/plan")" -eq 10 ]
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
