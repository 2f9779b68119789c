#!/bin/sh
# large_job_test.sh - a job that does not fit one device: its weights are 276 MiB, and a device of 1 GiB has no buffer above
# 256. One rank is refused for that, by name; ranks that divide the model train it, with the bits of a large device. PoCL
# makes devices of a size (POCL_MEMORY_LIMIT, in GiB). Tables are divided over the tensor axis; layers, 289 MiB of another
# model, over owners from whom they are gathered, two of each: where gradients alone are divided the weights do not fit.
# Two tables of 264 MiB fit no window whole, nor both together cut in two: they take slices and owners at once.
set -u
here=$(dirname "$0")
. "$here/script.sh"
cat >"$root/job.conf" <<EOF
[job]
name = large
tensor = 2
[model]
layers = 1
heads = 2
width = 256
block = 16
vocab = 140000
tied = false
[data]
path = $text
[train]
steps = 2
batch = 1
eval_every = 0
[snapshot]
every = 0
[cluster]
device = pocl:0
timeout_s = 20
EOF
# train DIR ARGUMENTS...
train() {
    out=$root/$1
    shift
    "$KEEL" run "$root/job.conf" --out "$out" "$@" >"$out.log" 2>&1
}
small() { POCL_MEMORY_LIMIT=1 train "$@"; }

# The memory of both ranks' devices, as the last run told it: as planned, but for tables of a few KiB.
fits() {
    sed -n 's/.*"event":"memory".*"planned_bytes":\([0-9]*\),"device_bytes":\([0-9]*\).*/\1 \2/p' "$out/events.jsonl" |
        awk '{ wrong += $2 < $1 || $2 > $1 + 4096 || $2 > 1073741824 } END { exit NR != 2 || wrong > 0 }'
}

train whole --ranks 1
check "a large device trains it" [ $? -eq 0 ]
small refused --ranks 1
code=$?
check "a small device alone does not" [ $code -eq 3 ]
check "what is too large is named, and what to do" \
    'grep -q "not enough memory: the step does not fit: 276 MiB for each of weights.*wte.weight \[140000,256\].*parallel.tensor.*limit for one is 268435456" "$out.log"'
for plan in tensor=2; do
    small "$plan" --ranks 2 --set "parallel.$plan"
    check "two small devices do with parallel.$plan" [ $? -eq 0 ]
    check "parallel.$plan: the bits of the large device" same_bits "$root/whole" "$root/$plan"
    check "parallel.$plan: what lies in both devices is what was planned, and fits" fits
done

deep="--set model.layers=6 --set model.heads=8 --set model.width=1024 --set model.vocab=0 --set job.tensor=1"
train deep $deep --ranks 1
check "a large device trains a deep model" [ $? -eq 0 ]
for plan in "1 0" "4 2"; do
    set -- $plan
    small "deep-$1" $deep --ranks $1 --set parallel.zero=$2
    code=$?
    check "$1 small devices with all weights each do not" [ $code -eq 3 ]
    check "$1 small devices with all weights each: what is too large is named" \
        grep -q "not enough memory: the step does not fit: 289 MiB for each of weights.*limit for one is 268435456" "$out.log"
done
small deep-zero $deep --ranks 4 --set parallel.zero=3
check "four small devices do with parallel.zero = 3" [ $? -eq 0 ]
check "parallel.zero = 3: the bits of the large device" same_bits "$root/deep" "$out"

wide="--set model.layers=4 --set model.vocab=270000 --set train.microbatches=1 --set job.shards=2"
train wide $wide --ranks 1
check "a large device trains two large tables" [ $? -eq 0 ]
for plan in "2 1" "1 3"; do
    set -- $plan
    small "wide-$1-$2" $wide --ranks 4 --set parallel.tensor=$1 --set parallel.zero=$2 --set parallel.holders=1
    check "four small devices do not, tensor = $1 and zero = $2" [ $? -eq 3 ]
done
small wide-both $wide --ranks 4 --set parallel.tensor=2 --set parallel.zero=3 --set parallel.holders=1
check "they do with tensor = 2 and zero = 3" [ $? -eq 0 ]
check "tensor = 2 and zero = 3: the bits of the large device" same_bits "$root/wide" "$out"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
