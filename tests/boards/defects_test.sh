#!/bin/sh
# Boards with a defect, one a row of defects.txt: each verdict of `keel board check` is the right one, and none is
# another's. A row passes when every check that it selects has the verdict that it names (pass where it names none),
# the exit code is right, and the output says what the row wants said.
# A row may copy $BUILT, the artifacts of a board that is right, and spoil them. DEFECT=name runs one row and shows what it printed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
BUILD=${BUILD:-build}
KEEL=${KEEL:-$BUILD/keel}
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
export KEEL BUILD

# boards FOLDER TEXT: board files from one text: '~' is a line's end, '&&' stands between two files.
boards() {
    n=0
    printf '%s\n' "$2" | sed 's/ *&& */\n/g' | while read -r file; do
        n=$((n + 1))
        mkdir -p "$1/test/board$n" && printf '%s\n' "$file" | tr '~' '\n' | sed 's/^ *//' >"$1/test/board$n/board.conf"
    done
}

# verdicts FILE: "ID=verdict" of each check, but for passes.
verdicts() {
    sed -n 's/^\(fail\|could-not-run\|waived\) *\([0-9]\.[0-9]*\) .*/\2=\1/p' "$1" | sort | tr '\n' ' '
}

# row FOLDER LINE: prints nothing when the row is right.
row() {
    folder=$1
    IFS='|' read -r name settings files checks code wanted said <<LINE
$2
LINE
    name=$(echo $name) checks=$(echo $checks) code=$(echo $code)
    wanted=$(printf '%s\n' $wanted | sed '/^$/d' | sort | tr '\n' ' ')
    said=$(echo "$said" | sed 's/^ *//; s/ *$//')
    settings=$(echo "$settings" | sed "s#@#$folder#g")
    mkdir -p "$folder"
    [ -n "$(echo $files)" ] && boards "$folder/boards" "$(echo "$files" | sed "s#@#$folder#g")"
    (
        export KEEL_STATE="$folder/state" KEEL_BOARDS="$folder/boards"
        export OPENCL_LAYERS="$BUILD/libkeel-emulated.so" EMULATED_BOARD=plain EMULATED_MEMORY=16m EMULATED_BUFFER=8m
        export POCL_DEVICES=basic BOARD=pocl:0
        eval "export $settings"
        cd "$folder" && "$KEEL" board check $BOARD --quick --seconds 0 --level "$checks" ${PEER:+--peer "$PEER"} ${LIMIT:+--timeout "$LIMIT"}
    ) >"$folder/out" 2>&1
    got_code=$? got=$(verdicts "$folder/out")
    count=$(grep -c '^\(pass\|fail\|could-not-run\|waived\) ' "$folder/out")
    if [ "$got_code" = "$code" ] && [ "$got" = "$wanted" ] && grep -q -e "$said" "$folder/out" && ! grep -q 'assertion failed' "$folder/out" && [ "$count" -gt 0 -o "$code" = 2 ]; then
        echo "right $name" && return
    fi
    echo "WRONG $name: exit code $got_code, wanted $code; verdicts: ${got:-all pass}, wanted: ${wanted:-all pass}; said: \"$said\""
    sed 's/^/    /' "$folder/out" | head -n 30
}

if [ "${1:-}" = --row ]; then
    row "$2/$3" "$(sed -n "$3p" "$2/rows")"
    exit 0
fi
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
grep -v '^ *#' "$here/defects.txt" | grep '|' >"$root/rows"
if [ -n "${SAN:-}" ]; then # a crash that a sanitizer catches is another exit, and a hang another time
    echo "note: defects of boards are not tried with a sanitizer"
    echo "0 passed, 0 failed, $(wc -l <"$root/rows") skipped"
    exit 0
fi
# What keel board build makes of a board that is right, for the rows that spoil it ($BUILT).
export BUILT="$root/built/test/board1"
(
    export KEEL_STATE="$root/state" KEEL_BOARDS="$root/built" POCL_DEVICES=basic EMULATED_BOARD=plain EMULATED_MEMORY=16m EMULATED_BUFFER=8m
    boards "$root/built" '[match]~platform = Portable*~[code]~form = artifacts'
    OPENCL_LAYERS="$BUILD/libkeel-emulated.so" "$KEEL" board build test/board1
) >"$root/build.log" 2>&1 || cat "$root/build.log"
if [ -n "${DEFECT:-}" ]; then
    number=$(grep -n "^ *$DEFECT *|" "$root/rows" | cut -d: -f1)
    row "$root/$number" "$(sed -n "${number}p" "$root/rows")"
    cat "$root/$number/out"
    exit 0
fi
seq "$(wc -l <"$root/rows")" | xargs -P 2 -n 1 sh "$0" --row "$root" >"$root/results"
grep -v '^right' "$root/results"
passed=$(grep -c '^right' "$root/results") failed=$(grep -c '^WRONG' "$root/results")
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -eq "$(wc -l <"$root/rows")" ]
