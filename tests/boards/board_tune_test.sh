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

# All tunables but one are set, so that the search is over soon.
conf() { # conf MORE: board.conf of test/board
    mkdir -p "$scratch/roots/test/board"
    rm -f "$scratch/roots/test/board/tune.conf"
    printf '[board]\nname = test\n[match]\nplatform = Portable*\n%b[kernels]\ncanon.by_lane = 0\nlaunch.group_items = 1
launch.item_elements = 4096\ngemm.items = 1\ngemm.item_rows = 8\ngemm.item_columns = 8\ngemm.item_depth = 16\ngemm.depth = 32\ngemm.rows = 32\ngemm.strips = 1\nattention.block = 16\n' "$1" \
        >"$scratch/roots/test/board/board.conf"
}
conf ''
export KEEL_BOARDS="$scratch/roots" POCL_DEVICES=basic
printf '[tune]\ndri' >"$scratch/roots/test/board/tune.conf" # it is made anew, so its damage does not matter
"$keel" board tune test/board --seconds 3600 --json >"$scratch/out" 2>"$scratch/err"
verdict "a board is tuned: $(cat "$scratch/err")"
! grep -e 'attention.kept = ' -e overlaps "$scratch/err"
verdict "each value that the board can have is measured"
grep -q '"settings"' "$scratch/out"
verdict "it says what it found"
grep -q '^driver = ' "$scratch/roots/test/board/tune.conf" && grep -q '^\[kernels\]' "$scratch/roots/test/board/tune.conf"
verdict "tune.conf in its folder says the driver"
! grep -q 'launch.group_items' "$scratch/roots/test/board/tune.conf"
verdict "what board.conf sets is not looked for"
echo 'gemm.depth = deep' >>"$scratch/roots/test/board/tune.conf"
"$keel" board check test/board --level 0 >"$scratch/out" 2>&1
grep -q 'tune.conf' "$scratch/out" && grep -q 'gemm.depth' "$scratch/out" && grep -q 'make it anew: keel board tune' "$scratch/out"
verdict "tune.conf is read when the board is opened, and its mistakes are named, with the remedy"

# what CLBlast's tuners found: files of theirs, cut down
name=$("$keel" board list --json | grep -o '"name":"[^"]*"' | head -n 1 | cut -d '"' -f 4)
result() { # result NAME TIME PARAMETERS
    printf '{"device": "%s", "best_time": "%s", "best_parameters": "PRECISION=32 %s"}\n' "$name" "$2" "$3" >"$scratch/tuned/clblast_$1_32.json"
}
mkdir "$scratch/tuned"
conf ''
"$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1
[ $? -ne 0 ] && grep -q 'holds no clblast_NAME_32.json' "$scratch/out"
verdict "a folder without results is told: $(cat "$scratch/out")"
result transpose 0.06 "TRA_DIM=4 TRA_PAD=1 TRA_SHUFFLE=0 TRA_WPT=1"
result xgemm_direct_1 0.5 "WGD=8"
result xgemm_direct_2 0.4 "WGD=16"
"$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1
verdict "results of CLBlast's tuners are taken: $(cat "$scratch/out")"
file=$scratch/roots/test/board/clblast.conf
[ "$(sed -n '3,$p' "$file" | tr '\n' ' ')" = "[Transpose] TRA_DIM = 4 TRA_PAD = 1 TRA_SHUFFLE = 0 TRA_WPT = 1 [XgemmDirect] WGD = 16 " ]
verdict "by kernel, the fastest of several, without the precision: $(cat "$file")"
rm -f "$scratch"/tuned/clblast_xgemm*
"$keel" board tune test/board --clblast "$scratch/tuned" >/dev/null 2>&1 && "$keel" board check test/board --level 0 >"$scratch/out" 2>&1
verdict "the board opens with them: $(cat "$scratch/out")"
result transpose 0.06 "TRA_DIM=4;[kernels]"
! "$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1 && grep -q 'no list of NAME=NUMBER' "$scratch/out"
verdict "what is no result is refused: $(cat "$scratch/out")"
for twist in "TRA_DIM=4 TRA_DIM=8" "TRA_DIM=4 PRECISION=32"; do
    result transpose 0.06 "$twist"
    ! "$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1 && grep -q 'clblast_transpose_32.json: .*each name once' "$scratch/out"
    verdict "a parameter that comes twice is refused ($twist): $(cat "$scratch/out")"
done
for precision in 16 3232; do
    result transpose 0.06 "TRA_DIM=4"
    sed -i "s/PRECISION=32/PRECISION=$precision/" "$scratch/tuned/clblast_transpose_32.json"
    ! "$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1 && grep -q 'clblast_transpose_32.json: .*with PRECISION=32' "$scratch/out"
    verdict "and of another precision ($precision): $(cat "$scratch/out")"
done
for best in 0 -1 nan inf 1e999 '' fast '0.5 ms'; do
    result transpose "$best" "TRA_DIM=4"
    ! "$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1 && grep -q 'clblast_transpose_32.json: its best_time' "$scratch/out"
    verdict "a best_time that is none does not win ($best): $(cat "$scratch/out")"
done
name=other
result transpose 0.06 "TRA_DIM=4"
! "$keel" board tune test/board --clblast "$scratch/tuned" >"$scratch/out" 2>&1 && grep -q 'is of "other"' "$scratch/out"
verdict "and one of another device: $(cat "$scratch/out")"
rm "$file"

# nothing is written where nothing was measured: could-not-run is told with the reason
says() { # says SECONDS CLAIM WORDS: of a search that measures nothing
    "$keel" board tune test/board --seconds "$1" >"$scratch/out" 2>&1
    [ $? -eq 3 ] && grep -q "$3" "$scratch/out" && ! [ -e "$scratch/roots/test/board/tune.conf" ]
    verdict "$2: $(cat "$scratch/out")"
}
conf ''
says 0 "a search that has no time" "the time was up before"
conf '[code]\nform = artifacts\n'
says 3600 "a board whose artifacts are missing" "keel board build"
conf ''
if [ -z "${SAN:-}" ]; then # a crash that a sanitizer catches is another exit
    export OPENCL_LAYERS="$(dirname "$keel")/libkeel-emulated.so" EMULATED_BOARD=plain EMULATED_MEMORY=128m EMULATED_BUFFER=32m
    EMULATED_FAULTS=crash:launch=3 says 3600 "a value that kills the driver" "attention.kept.*died of signal 11"
    EMULATED_FAULTS=block:launch=3 says 4 "a value that never ends" "not done in time"
    # it dies in some processes only: what the others found is kept
    EMULATED_FAULTS="crash:launch=3,once=$scratch/sick" "$keel" board tune test/board --seconds 3600 >"$scratch/out" 2>&1 &&
        grep -q 'died of signal' "$scratch/out" && [ -e "$scratch/roots/test/board/tune.conf" ]
    verdict "what was measured outlives a value that kills the driver: $(cat "$scratch/out")"
    # what spills, or does not fit local memory, is refused when the board is opened, with the figure
    chosen() { # chosen SED-SCRIPT FACTS WORDS
        conf ''
        sed -i "$1" "$scratch/roots/test/board/board.conf"
        EMULATED_INFO=$2 "$keel" board check test/board --level 4.1 >"$scratch/out" 2>&1
        [ $? -ne 0 ] && grep -q "$3" "$scratch/out"
        verdict "$3: $(cat "$scratch/out")"
    }
    chosen 's/gemm.items = 1/gemm.items = 64/' 'type=4;private=48' "kernel keel_gemm[a-z_]* spills 48 bytes of a work-item's registers"
    chosen 's/gemm.rows = 32/gemm.rows = 512/' local=16384 "gemm.rows and gemm.strips: take [0-9]* bytes of local memory, .* has 16384"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
