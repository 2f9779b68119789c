#!/bin/sh
# What a failure costs on this machine, as settings for `keel sim --costs`: medians of recovery_bench.sh, run anew, or
# of the bench.json that is named.
#     sh tests/bench/sim_costs.sh [build/bench.json] >costs.conf
set -u
lines=$(mktemp) || exit 1
trap 'rm -f "$lines"' EXIT
if [ $# -gt 0 ]; then
    cat "$1" >"$lines" || exit 3
else
    sh "$(dirname "$0")/recovery_bench.sh" >"$lines" || exit 1
fi
median() { sed -n "s/.*\"figure\": *\"loss of one rank of four, commit to commit: $1\",\"value\": *\([0-9.e-]*\).*/\1/p" "$lines" | head -n 1; }
for part in detect reconfigure sync heal; do
    value=$(median $part)
    [ -n "$value" ] || { echo "sim_costs: no figure of recovery_bench for $part; run make bench ROOM=runtime first, or name no file" >&2; exit 3; }
    eval "$part=$value"
done
# shellcheck disable=SC2154
awk -v detect="$detect" -v view="$reconfigure" -v sync="$sync" -v heal="$heal" 'BEGIN {
    print "# measured by tests/bench/recovery_bench.sh: four ranks of one host"
    printf "[detect]\nexit_s = %.6f\n[recover]\nreconfigure_s = %.6f\nheal_s = %.6f\n", detect, view + sync, heal
}'
