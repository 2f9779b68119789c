#!/bin/sh
# The three stories on real text: a calm run, and the same run through the loss of a node and of everything.
set -eu
. "$(dirname "$0")/lib.sh"
BUILD=${BUILD:-build}
job=runtime/jobs/demo.conf
calm=$BUILD/demo/calm storm=$BUILD/demo/storm
rm -rf "$calm" "$storm"

rule() { printf '\n== %s ==\n' "$1"; }

rule "1. four nodes, nothing fails"
"$KEEL" run $job --ranks 4 --out "$calm" --sample 400

rule "2. the same, but node 2 is killed in the middle of step 100, and everything in step 220"
set -- run $job --ranks 4 --out "$storm" --sample 400 \
    --drill kill:node=2,step=100,at=reduce --drill kill:all,step=220
code=0
# A shell of its own, so that the message of the kill is ours to word.
sh -c '"$@"; exit $?' sh "$KEEL" "$@" 2>&1 || code=$?
[ "$code" -eq 137 ] || { echo "demo: the run should have been killed, but ended with $code"; exit 1; }
printf '\nevery process of the run was killed\n'

rule "3. the same command again"
"$KEEL" "$@"

rule "side by side"
printf '%6s  %-10s %-10s  %-18s %-18s\n' step "loss calm" "loss storm" "weights calm" "weights storm"
equal=yes
same_bits "$calm" "$storm" || equal=no
paste -d ' ' "$calm/bits.txt" "$storm/bits.txt" |
    awk '$1 == 1 || $1 % 50 == 0 || $1 == 220 { printf "%6d  %-10s %-10s  %-18s %-18s\n", $1, $2, $5, $3, $6 }'
echo "(losses are printed as the bits of the float)"
if [ $equal = no ]; then
    echo "demo: THE BITS DIFFER"
    exit 1
fi
printf '\nall %d losses and weights are equal, bit for bit; final weights %s\n' \
    "$(wc -l <"$calm/bits.txt")" "$(last_field "$storm" digest)"
printf 'what the incidents cost:\n'
# field EVENT KEY...: the values of some keys of the first such event, blanks between.
field() {
    line=$(grep "\"event\":\"$1\"" "$storm/events.jsonl" | head -n 1)
    shift
    for key in "$@"; do printf '%s ' "$(printf '%s' "$line" | sed -n "s/.*\"$key\":\([0-9.e-]*\).*/\1/p")"; done
}
field recovery step total_s before_s detect_s reconfigure_s sync_s heal_s redo_s wait_s other_s | awk '{ printf \
    "  loss of a node: step %d committed %.3f s after the commit before (work before the kill %.3f, detect %.3f, reconfigure %.3f, agree %.3f, heal %.3f, compute %.3f, wait for others %.3f, other %.3f)\n",
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10 }'
field restarted snapshot steps_again seconds | awk '{ printf \
    "  loss of everything: resumed from the snapshot of step %d, %d steps again, %.1f s from the command to the next new step\n",
    $1, $2, $3 }'
printf '\nreports: %s/report.html  %s/report.html\n' "$calm" "$storm"
