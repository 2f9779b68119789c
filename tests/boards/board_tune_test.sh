#!/bin/sh
# keel board tune: what it lists, what it writes, and that what it wrote is read when the board is opened.
set -u
keel=$(realpath "${BUILD:-build}/keel") || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1 # away from ./boards
passed=0 failed=0
verdict() { # verdict CLAIM: of the last command
    if [ $? -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; fi
}

"$keel" board tune --list | grep -q '^gemm.depth '
verdict "--list names the tunables"
KEEL_BOARDS=$scratch "$keel" board tune pocl:0 --seconds 1 >"$scratch/out" 2>&1
[ $? -eq 3 ] && grep -q -- '--out FILE' "$scratch/out"
verdict "a device without a folder is told what to do"

mkdir -p "$scratch/roots/test/board"
printf '[board]\nname = test\n[match]\nplatform = Portable*\n[kernels]\nlaunch.group_items = 1\n' \
    >"$scratch/roots/test/board/board.conf"
export KEEL_BOARDS="$scratch/roots"
"$keel" board tune pocl:0 --seconds 1 --json >"$scratch/out" 2>&1
verdict "a board is tuned within its time"
grep -q '^driver = ' "$scratch/roots/test/board/tune.conf" && grep -q '^\[kernels\]' "$scratch/roots/test/board/tune.conf"
verdict "tune.conf in its folder says the driver"
! grep -q 'launch.group_items' "$scratch/roots/test/board/tune.conf"
verdict "what board.conf sets is not looked for"
echo 'gemm.deph = 3' >>"$scratch/roots/test/board/tune.conf"
"$keel" board check test/board --level 0 >"$scratch/out" 2>&1
grep -q 'tune.conf' "$scratch/out" && grep -q 'gemm.depth' "$scratch/out"
verdict "tune.conf is read when the board is opened, and its mistakes are named"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
