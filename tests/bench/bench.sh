#!/bin/sh
# Run the benches (ROOM narrows), print a table, write build/bench.json: a list of
# {room, figure, value, unit, peer, peer_value, ratio, goal, met}. What a bench that failed had printed stays in it;
# then the status is 1.
set -u
BUILD=${BUILD:-build}
out=$BUILD/bench.json
lines=$(mktemp) || exit 1
printed=$(mktemp) || exit 1
trap 'rm -f "$lines" "$printed"' EXIT
failed=0
for program in "$BUILD"/bench/*_bench tests/bench/*_bench.sh; do
    [ -e "$program" ] || continue
    case $program in *.sh) set -- sh "$program" ;; *) set -- "$program" ;; esac
    # A bench says its room in the lines that it prints, so its source does.
    name=$(basename "$program" .sh)
    [ -e tests/bench/"$name".c ] || [ -e tests/bench/"$name".sh ] || continue # built once, and gone since
    [ -z "${ROOM:-}" ] || grep -q "room.*$ROOM" tests/bench/"$name".* || continue
    echo "bench: $(basename "$program")" >&2
    BUILD=$BUILD "$@" >"$printed" || { echo "bench: $name failed ($?)" >&2; failed=1; }
    grep '^{' "$printed" >>"$lines"
done
{ echo '['; sed '$!s/$/,/' "$lines"; echo ']'; } >"$out"
awk '
    function field(key,   rest) {
        if (!match($0, "\"" key "\": *")) return ""
        rest = substr($0, RSTART + RLENGTH)
        if (substr(rest, 1, 1) == "\"") { rest = substr(rest, 2); sub(/".*/, "", rest) } else sub(/[,}].*/, "", rest)
        return rest == "null" ? "-" : rest
    }
    BEGIN { printf "%-10s %-58s %12s %-10s %-14s %10s %7s %7s %s\n", "room", "figure", "value", "unit", "peer", "peer", "ratio", "goal", "met" }
    { printf "%-10s %-58s %12s %-10s %-14s %10s %7s %7s %s\n", field("room"), field("figure"), field("value"), field("unit"), field("peer"), field("peer_value"), field("ratio"), field("goal"), field("met") }' "$lines"
echo "written: $out"
exit $failed
