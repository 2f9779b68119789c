#!/bin/sh
# What snapshots on nodes cost beside training: bytes that a snapshot takes on all disks, over those of the state, and
# processor seconds of all processes for each snapshot, over those of a step without any; by tier. Each mix in turn,
# medians of three rounds. Goal (issue 16): 2% for copies and parity where a snapshot is taken every 50 steps.
#   TIERS_SHAPE="2 4 128 32 1024"   layers, heads, width, tokens of a sample, vocabulary
#   TIERS_STEPS="40 4"              steps of a run, and of them one in so many with a snapshot; TIERS_ROUNDS=3
#   TIERS_DEVICE=host               what computes a step; auto: the fastest there is, beside which a snapshot is dear
# GPT-2 124M, whose steps are long: TIERS_SHAPE="12 12 768 128 50257" TIERS_STEPS="8 4" TIERS_ROUNDS=1 TIERS_DEVICE=auto
# room: runtime
set -u
. "$(dirname "$0")/../demo/lib.sh"
# shellcheck disable=SC2086 # words
set -- ${TIERS_SHAPE:-2 4 128 32 1024}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
gpt_job tiers $1 $2 $3 $4 $5 2 1 >"$work/job.conf"
set -- ${TIERS_STEPS:-40 4}
steps=$1 every=$2 rounds=${TIERS_ROUNDS:-3}
# run NAME WORDS...: user and system seconds of the run's processes
run() {
    name=$1
    shift
    rm -rf "$work/$name" "$work/nodes"
    python3 - "$work/log" "$KEEL" run "$work/job.conf" --ranks 3 --out "$work/$name" --set job.shards=3 --set train.steps=$steps \
        --set train.eval_every=0 --set "cluster.device=${TIERS_DEVICE:-host}" "$@" <<'END' || { tail -1 "$work/log" >&2; exit 1; }
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stdout=open(sys.argv[1], "w"), stderr=subprocess.STDOUT)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime)
sys.exit(code)
END
}
local="--set snapshot.every=$every --set snapshot.local=$work/nodes"
for round in $(seq "$rounds"); do
    run none --set snapshot.every=0 >>"$work/none.s"
    run one --set snapshot.every=0 --set train.steps=1 >>"$work/one.s"
    run common --set snapshot.every=$every >>"$work/common.s"
    run local $local >>"$work/local.s"
    run partner $local --set snapshot.partner=yes >>"$work/partner.s"
    du -cb "$work"/nodes/*/*/step-$steps.*/* | tail -n 1 | cut -f 1 >"$work/partner.bytes"
    run erasure $local --set snapshot.erasure=2+1 >>"$work/erasure.s"
    du -cb "$work"/nodes/*/*/step-$steps.*/* | tail -n 1 | cut -f 1 >"$work/erasure.bytes"
done
du -cb "$work"/common/ckpt/*/step-$steps.*/* | tail -n 1 | cut -f 1 >"$work/common.bytes"
median() { sort -n "$work/$1.s" | sed -n $(((rounds + 1) / 2))p; }
for kind in common local partner erasure; do
    awk -v kind="$kind" -v none="$(median none)" -v one="$(median one)" -v with="$(median $kind)" -v steps="$steps" -v every="$every" 'BEGIN {
        step = (none - one) / (steps - 1); snapshot = (with - none) / (steps / every)
        printf "{\"room\":\"runtime\",\"figure\":\"processor of a snapshot, %s\",\"value\":%.4f,\"unit\":\"s\",\"peer\":\"a step\",\"peer_value\":%.4f,\"ratio\":%.3f,\"goal\":1,\"met\":%s}\n",
            kind, snapshot, step, snapshot / step, (snapshot <= step) ? "true" : "false" }'
done
for kind in partner erasure; do
    awk -v kind="$kind" -v bytes="$(cat "$work/$kind.bytes")" -v plain="$(cat "$work/common.bytes")" 'BEGIN {
        goal = kind == "partner" ? 2.01 : 1.6
        printf "{\"room\":\"runtime\",\"figure\":\"bytes of a snapshot, %s\",\"value\":%d,\"unit\":\"B\",\"peer\":\"one directory\",\"peer_value\":%d,\"ratio\":%.3f,\"goal\":%.2f,\"met\":%s}\n",
            kind, bytes, plain, bytes / plain, goal, (bytes / plain <= goal) ? "true" : "false" }'
done
