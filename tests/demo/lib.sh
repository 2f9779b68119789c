# lib.sh - what demo, drills and script tests share. Sourced; expects KEEL, the binary.
KEEL=${KEEL:-${BUILD:-build}/keel}

# steps DIR: step, loss bits and weights digest of every committed step, a line each.
steps() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl"
}

# same_bits A B: do two run directories hold the same bits, for every step?
same_bits() {
    steps "$1" >"$1/bits.txt" && steps "$2" >"$2/bits.txt" && [ -s "$1/bits.txt" ] && cmp -s "$1/bits.txt" "$2/bits.txt"
}

# last_field DIR KEY: value of a key in the last line of the metrics.
last_field() {
    tail -n 1 "$1/metrics.jsonl" | sed -n "s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}
