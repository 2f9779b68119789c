#!/bin/sh
# Many faults: tests/transport/faults.sh [--count N] [--seed S]. `make test` makes some 180 of them.
set -eu
count=10000 seed=$(date +%s)
while [ $# -gt 1 ]; do
    case $1 in
    --count) count=$2 ;;
    --seed) seed=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -gt 0 ]; then
    echo "usage: $0 [--count N] [--seed S]" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
make -s "${BUILD:-build}/tests/transport/faults_test"
FAULTS=$count CYCLES=1000 SEED=$seed exec "${BUILD:-build}/tests/transport/faults_test"
