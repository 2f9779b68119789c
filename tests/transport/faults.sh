#!/bin/sh
# Many faults: tests/transport/faults.sh [--count N] [--seed S]. `make test` makes some 180 of them.
# Or a crowd: tests/transport/faults.sh --seconds N has four busy loops a processor run beside four ranks, on the
# processors that it may use (taskset gives it fewer), and nobody may be taken for dead in that time.
set -eu
count=10000 seed=$(date +%s) seconds=
while [ $# -gt 1 ]; do
    case $1 in
    --count) count=$2 ;;
    --seed) seed=$2 ;;
    --seconds) seconds=$2 ;;
    *) break ;;
    esac
    shift 2
done
if [ $# -gt 0 ]; then
    echo "usage: $0 [--count N] [--seed S] | --seconds N" >&2
    exit 2
fi
cd "$(dirname "$0")/../.."
programs=${BUILD:-build}/tests/transport
make -s "$programs/faults_test" "$programs/silence_test"
if [ -n "$seconds" ]; then
    while [ "$seconds" -gt 0 ]; do # the test library counts a test's microseconds in an int
        piece=$((seconds < 1800 ? seconds : 1800))
        CROWD=$piece "$programs/silence_test"
        seconds=$((seconds - piece))
    done
    exit
fi
FAULTS=$count CYCLES=1000 SEED=$seed exec "$programs/faults_test"
