#!/bin/sh
# A few of the schedules of `make chaos`: kills and pauses on real processes, and the bits of an undisturbed run.
set -u
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
ROOT=$root/chaos RUNS=${RUNS:-4} SEED=${SEED:-11} JOBS=2 T=2 STEPS=200 LIMIT=900 sh "$(dirname "$0")/../demo/chaos.sh" 2>/dev/null
