#!/bin/sh
# libfabric_test.sh - libfabric, and what its providers pull in, is mapped where ranks talk and nowhere else; where
# it cannot be opened the command says so and ends with 3.
keel=${BUILD:-build}/keel
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
claim() { # claim WORDS COMMAND...
    words=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL: $words"
    fi
}
# How many processes of the command, workers too, have opened libfabric, by the loader's own account.
maps() {
    rm -f "$work"/loaded.*
    LD_DEBUG=files LD_DEBUG_OUTPUT=$work/loaded "$keel" "$@" >"$work/out" 2>&1
    grep -l 'file=libfabric\.so' "$work"/loaded.* 2>/dev/null | wc -l
}
lacks() { [ "$(maps "$@")" -eq 0 ]; }
mkdir "$work/empty"
claim "keel --version opens it" lacks --version
claim "keel --help opens it" lacks --help
claim "keel ckpt opens it" lacks ckpt ls "$work/empty"
claim "keel board list opens it" lacks board list
claim "keel plan opens it" lacks plan runtime/jobs/demo.conf
claim "keel net check: not every rank opened it" test "$(maps net check --ranks 2 --op barrier)" -ge 2
awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c", 97 + i % 26 }' >"$work/text"
run() { maps run tests/demo/drill.conf --set "data.path=$work/text" --set cluster.device=host --out "$work/run-$1" --ranks "$1"; }
claim "a run of one rank opens it" test "$(run 1)" -eq 0
claim "that run failed: $(tail -n 1 "$work/out")" grep -q 'done: 12 steps' "$work/out"
claim "a run of two ranks: not each worker opened it" test "$(run 2)" -eq 2

mkdir "$work/broken"
: >"$work/broken/libfabric.so.1"
LD_LIBRARY_PATH=$work/broken "$keel" net check --ranks 2 --op barrier >"$work/out" 2>&1
code=$?
claim "exit code $code where it cannot be opened" test "$code" -eq 3
claim "the words where it cannot be opened: $(cat "$work/out")" grep -q 'cannot be opened .*install it' "$work/out"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
