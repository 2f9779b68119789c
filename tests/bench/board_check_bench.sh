#!/bin/sh
# Twenty runs of levels 0 to 5 on one board: the same verdict of every check each time, and how far each figure
# of level 5 moves: the width that holds all twenty medians, over their median. The goal is for a quiet machine.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build} RUNS=${RUNS:-20} BOARD=${BOARD:-auto} OPTIONS=${OPTIONS:-} # OPTIONS=--quick
root=$BUILD/bench-board-check
rm -rf "$root"
mkdir -p "$root"
for run in $(seq "$RUNS"); do
    "$KEEL" board check "$BOARD" --level 0-5 $OPTIONS --json >"$root/$run.json"
    tr '{' '\n' <"$root/$run.json" | sed -n 's/^"id":"\([^"]*\)".*"verdict":"\([^"]*\)".*/\1 \2/p' >"$root/$run.verdicts"
    tr '{' '\n' <"$root/$run.json" | sed -n 's/^"name":"\([a-z_]*\)","unit":"\([^"]*\)".*"value":\([0-9.]*\),.*/\1 \2 \3/p' |
        grep -E '^(launch_us|write_gbs|read_gbs|copy_gbs|memory_gbs|gemm_gflops) ' >>"$root/figures"
done
same=0
for run in $(seq "$RUNS"); do cmp -s "$root/1.verdicts" "$root/$run.verdicts" && same=$((same + 1)); done
[ -s "$root/1.verdicts" ] || same=0
line='{"room":"boards","figure":"%s","value":%s,"unit":"%s","peer":null,"peer_value":null,"ratio":null,"goal":%s,"met":%s}\n'
# shellcheck disable=SC2059
printf "$line" "runs of levels 0-5 with the verdicts of the first, of $RUNS" "$same" "" "$RUNS" \
    "$([ "$same" -eq "$RUNS" ] && echo true || echo false)"
sort -k1,1 -k3,3g "$root/figures" | awk -v line="$line" '
    function tell(   median, width) {
        if (count == 0) return
        median = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
        width = (values[count] - values[1]) / median * 100
        printf line, name " over " count " runs, median " sprintf("%.3f", median) " " unit ": width of all", \
            sprintf("%.1f", width), "%", 3, width <= 3 ? "true" : "false"
    }
    $1 != name { tell(); count = 0 }
    { name = $1; unit = $2; values[++count] = $3 }
    END { tell() }'
