#!/bin/sh
# Whole steps of GPT training have the same bits on every stack: host C, PoCL with one and with all threads,
# PoCL's basic device, rusticl, and both emulated boards. Two steps of two layers with dropout, on two ranks: forward,
# backward, reduction, clip and AdamW; the loss of each step and the digest of all weights after it.
# STACKS=word narrows to the stacks whose name holds the word (host is always run: it is what is compared with).
build=${BUILD:-build}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0

check() { # check NAME STATUS: one claim
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "failed: $1"
        tail -n 5 "$scratch/log"
    fi
}

# train NAME DEVICE [VARIABLE=VALUE]...: a run, and its bits in NAME.bits
train() {
    name=$1 device=$2
    shift 2
    case $name in host | *"${STACKS:-}"*) ;; *) return ;; esac
    env "$@" "$build/keel" run runtime/jobs/demo.conf --ranks 2 --out "$scratch/$name" \
        --set job.shards=2 --set model.layers=2 --set model.heads=2 --set model.width=64 \
        --set model.block=32 --set model.dropout=0.1 --set train.batch=2 --set train.steps=2 \
        --set train.eval_every=0 --set snapshot.every=0 --set cluster.timeout_s=10 \
        --set cluster.device="$device" >"$scratch/log" 2>&1
    check "$name trains" $?
    sed 's/.*"step":\([0-9]*\).*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/' \
        "$scratch/$name/metrics.jsonl" >"$scratch/$name.bits"
    [ "$(wc -l <"$scratch/$name.bits")" -eq 2 ] && cmp -s "$scratch/host.bits" "$scratch/$name.bits"
    check "$name has the bits of host C" $?
    printf 'note: %-16s %s\n' "$name" "$(tr '\n' ' ' <"$scratch/$name.bits")"
}

# emulated NAME: its board folder, with artifacts
emulated() {
    mkdir -p "$scratch/boards/emulated/$1"
    cp "boards/emulated/$1/board.conf" "$scratch/boards/emulated/$1/"
    EMULATED_BOARD=$1 "$build/keel" board build "emulated/$1" >"$scratch/log" 2>&1
    check "emulated/$1 has artifacts" $?
}

train host host
train pocl-1-thread pocl:0 POCL_MAX_PTHREAD_COUNT=1
train pocl-all-threads pocl:0
train pocl-basic pocl:0 POCL_DEVICES=basic
[ -n "${SAN:-}" ] || train rusticl mesa:0 RUSTICL_ENABLE=llvmpipe # it does not load beside a sanitizer
export OPENCL_LAYERS="$build/libkeel-emulated.so" KEEL_BOARDS="$scratch/boards"
export EMULATED_STORE="$scratch/boards/emulated/fpga/artifacts"
emulated fpga
emulated npu
train emulated-fpga emulated/fpga EMULATED_BOARD=fpga
train emulated-npu emulated/npu EMULATED_BOARD=npu
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
