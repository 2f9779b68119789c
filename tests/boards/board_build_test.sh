#!/bin/sh
# keel board build: where artifacts may go, and what they never take the place of. keel board tune: what needs other
# code cannot be measured on a board that takes only artifacts.
set -u
build=$(realpath "${BUILD:-build}") || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
boards=$PWD/boards
cd "$scratch" || exit 1
passed=0 failed=0
verdict() { # verdict CLAIM: of the last command
    if [ $? -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; fi
}

export KEEL_BOARDS="$boards" OPENCL_LAYERS="$build/libkeel-emulated.so" EMULATED_BOARD=fpga POCL_DEVICES=basic
"$build/keel" board build emulated/fpga --out "$scratch/new/a/b/" >log 2>&1 && [ -s new/a/b/manifest.sum ]
verdict "a folder that is not there is made, for a board that another device compiles for too: $(tail -n 1 log)"
[ "$(ls new/a)" = b ]
verdict "nothing is left beside it: $(ls new/a)"
mkdir -p boards/emulated/fpga
cp "$boards/emulated/fpga/board.conf" boards/emulated/fpga/
printf '\n[kernels]\nlaunch.group_items = 1\nlaunch.item_elements = 4096\ngemm.depth = 32\ngemm.rows = 32\ngemm.strips = 1\n' \
    >>boards/emulated/fpga/board.conf # of these the code knows nothing
ln -s "$scratch/new/a/b" boards/emulated/fpga/artifacts
for seconds in 4 16 64; do # more where others have the machine, so that the time is up before anything was tried
    KEEL_BOARDS=$scratch/boards "$build/keel" board tune emulated/fpga --seconds $seconds >log 2>&1
    code=$?
    grep -q 'the time was up before the first' log || break
done
[ $code -eq 3 ] && grep -q 'nothing of module' log && ! [ -e boards/emulated/fpga/tune.conf ]
verdict "what was not measured is told, and no empty tune.conf is written: $(tail -n 1 log)"
mkdir step-100.0
echo '{"format": "keel-snapshot", "step": 100}' >step-100.0/manifest.json
echo weights >step-100.0/rank-0.keel
cp -r step-100.0 before
"$build/keel" board build emulated/fpga --out step-100.0 >log 2>&1
[ $? -eq 2 ] && diff -r before step-100.0 >/dev/null && grep -q 'step-100.0' log
verdict "a snapshot stays as it is: $(tail -n 1 log)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
