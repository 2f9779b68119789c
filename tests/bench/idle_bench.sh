#!/bin/sh
# What a worker costs that waits for a stopped peer: processor time of its process over seconds of waiting.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-idle
rm -rf "$root"
mkdir -p "$root"
"$KEEL" run runtime/jobs/demo.conf --ranks 2 --out "$root/run" --set train.steps=20 --set train.eval_every=0 \
    --set cluster.timeout_s=12 --drill stop:rank=1,step=8 >"$root/log" 2>&1 &
launcher=$!
while kill -0 $launcher 2>/dev/null && [ ! -s "$root/run/drills.jsonl" ]; do sleep 0.2; done
sleep 1
# The worker of rank 0 runs under the agent of node 1, a child of the launcher.
ticks=$(getconf CLK_TCK)
worker=
for agent in $(cat /proc/$launcher/task/*/children); do
    tr '\0' ' ' <"/proc/$agent/cmdline" | grep -q -- '--node 1 ' && worker=$(cat "/proc/$agent/task/$agent/children" | awk '{ print $1 }')
done
cpu() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$worker/stat"; }
before=$(cpu)
sleep 6
after=$(cpu)
value=$(awk -v a="$before" -v b="$after" -v t="$ticks" 'BEGIN { printf "%.2f", (b - a) / t / 6 * 100 }')
wait $launcher
met=$(awk -v v="$value" 'BEGIN { print v < 5 ? "true" : "false" }')
printf '{"room":"runtime","figure":"a worker that waits for a peer","value":%s,"unit":"%% of a core","peer":null,"peer_value":null,"ratio":null,"goal":5,"met":%s}\n' "$value" "$met"
