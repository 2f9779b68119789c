#!/bin/sh
# The sample run of Facebook's DLRM (its README: dlrm_s_pytorch.py --mini-batch-size=2 --data-size=6; arch-mlp-bot 4-3-2,
# arch-mlp-top 4-2-1, tables of 4, 3 and 2 rows of 2, squared error) has its losses, also on three ranks of which one is
# killed. Samples and first weights are those that NumPy draws there from seed 123; lines of clicks.csv stand so that this
# seed's order of samples is theirs. And what makes no such model is refused.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
golden=$here/../golden/dlrm
explain() { tail -n 5 "$root/log"; }
cat >"$root/dlrm.conf" <<END
[job]
name = dlrm
seed = 1337
shards = 2
[model]
kind = dlrm
dense = 4
tables = 3
width = 2
bag = 3
table_rows = 4-3-2
mlp_bot = 4-3-2
mlp_top = 4-2-1
loss = mse
[data]
format = csv
path = $golden/clicks.csv
val_fraction = 0
[train]
steps = 3
batch = 1
optimizer = sgd
momentum = 0
lr = 0.01
decay = constant
warmup_steps = 0
weight_decay = 0
clip = 0
eval_every = 0
[snapshot]
every = 1
[cluster]
device = host
timeout_s = 2
END
run() { # DIR ARGUMENTS...: from the weights of the sample run
    out=$root/$1
    shift
    "$KEEL" run "$root/dlrm.conf" --out "$out" --prepare >"$root/log" 2>&1 &&
        "$KEEL" ckpt import "$golden/weights.safetensors" "$out" --for-training >"$root/log" 2>&1 &&
        "$KEEL" run "$root/dlrm.conf" --out "$out" "$@" >"$root/log" 2>&1
}
losses() { sed -n 's/.*"loss":\([0-9.]*\).*/\1/p' "$1/metrics.jsonl" | tr '\n' ' '; }
as_published() { # DIR
    losses "$1" | awk '{ d = $1 - 0.451893; e = $2 - 0.402002; f = $3 - 0.275460; m = d * d + e * e + f * f; exit !(NF == 3 && m < 1e-10) }'
}
run one
check "the sample run is trained" [ $? -eq 0 ]
check "and has the published losses" as_published "$root/one"
echo "note: losses $(losses "$root/one"), published 0.451893 0.402002 0.275460"
run three --ranks 3 --drill kill:rank=1,step=2
check "so it is on three ranks, one of which is killed" [ $? -eq 0 ]
check "which was" grep -q '"event":"recovery"' "$root/three/events.jsonl"
check "with the published losses" as_published "$root/three"
check "and the bits of the one" same_bits "$root/one" "$root/three"

refused() { # CLAIM WORDS SETTING
    "$KEEL" run "$root/dlrm.conf" --out "$root/bad" --set "$3" >"$root/log" 2>&1
    code=$?
    check "$1" [ "$code" -eq 2 ]
    check "$1, and says so" grep -qF -- "$2" "$root/log"
    code=
}
refused "rows of fewer tables" "model.table_rows = 4-3: model.tables = 3 sizes" model.table_rows=4-3
refused "a table of none" "model.table_rows = 4-3-0: model.tables = 3 sizes" model.table_rows=4-3-0
refused "layers that are no sizes" "model.mlp_bot = 4--2: up to 16 sizes above 0" model.mlp_bot=4--2
refused "layers of other numbers" "model.mlp_bot = 5-3-2: begins with model.dense, which is 4" model.mlp_bot=5-3-2
refused "layers that end elsewhere" "model.mlp_bot = 4-3: ends with 2, which is model.width" model.mlp_bot=4-3
refused "two clicks" "model.mlp_top = 4-2: ends with 1, for one click" model.mlp_top=4-2
refused "rows twice" "model.categories = 7 says nothing beside model.table_rows" model.categories=7
refused "labels that are no clicks" "clicks.csv:1: field 1 is no label, which is 0 or 1" model.loss=bce
refused "more categories than a bag has" "has more than model.bag = 2 categories" model.bag=2
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
