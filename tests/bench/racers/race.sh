# What the races of whole training steps share; sourced by gpt2_race_bench.sh and resnet_race_bench.sh.
#   KEEL_PYTHON=python3     an interpreter that has torch; left out when it has not
#   RACE_ROUNDS=3           each program alone in turn, so often; figures are medians over rounds
#   RACE_THREADS=N          instead of all processors; with one thread times are the processor's, which
#                           other programs on the machine disturb less
#   RACE_COMPILE=1          0: not torch.compile, which takes a minute to compile each time
BUILD=${BUILD:-build}
PYTHON=${KEEL_PYTHON:-python3}
rounds=${RACE_ROUNDS:-3}
racers=$(dirname "$0")/racers
race=$(basename "$0" .sh)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
threads=${RACE_THREADS:-$(nproc)}
export OMP_NUM_THREADS="$threads"

left_out() { echo "$race: without $1: $2" >&2; }

has_torch() {
    "$PYTHON" -c 'import torch' 2>/dev/null || { left_out PyTorch "$PYTHON has no torch (KEEL_PYTHON names another)"; return 1; }
}

# step SHAPE: of Keel, "race seconds-of-a-step peak-KiB", as the racers of others print it
step() {
    "$BUILD"/bench/step_bench auto "$1" "$threads" >"$work/out" &&
        sed -n 's/.* step","value":\([0-9.e+]*\).*/\1/p; s/.*peak memory","value":\([0-9.e+]*\).*/\1/p' "$work/out" |
        awk '{ v[NR] = $1 } END { if (NR == 2) printf "race %f %d\n", v[1] / 1000, v[2] * 1024 }'
}

# run NAME CASE COMMAND...: appends "seconds KiB" to $work/NAME.CASE; what failed once is not asked again
run() {
    [ ! -e "$work/$1.$2.failed" ] || return
    to=$work/$1.$2
    name=$1
    shift 2
    "$@" 2>"$work/err" | sed -n 's/^race //p' >"$work/line"
    [ -s "$work/line" ] || { echo "$race: $name failed: $(tail -1 "$work/err")" >&2; : >"$to.failed"; return; }
    cat "$work/line" >>"$to"
}
all_raced() { ! ls "$work"/*.failed >/dev/null 2>&1; }

# spent COMMAND...: runs it; seconds of processor of it and its children, to descriptor 4
spent() {
    times >"$work/before"
    "$@" || return 1
    times >"$work/after"
    cat "$work/before" "$work/after" | tr 'ms' '  ' |
        awk '{ s[NR] = $1 * 60 + $2 + $3 * 60 + $4 } END { print s[4] - s[2] }' >&4
}

# median COLUMN FILE: 0 where nothing ran
median() {
    [ -s "$2" ] || { echo 0; return; }
    sort -g -k"$1","$1" "$2" | awk -v c="$1" '{ v[NR] = $c } END { print v[int((NR + 1) / 2)] }'
}

# line FIGURE OURS UNIT PEER THEIRS GOAL BETTER: ratio ours / theirs; BETTER is more or less
line() {
    awk -v figure="$1" -v ours="$2" -v unit="$3" -v peer="$4" -v theirs="$5" -v goal="$6" -v better="$7" 'BEGIN {
        printf "{\"room\":\"runtime\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, ours, unit
        if (theirs == 0) { print "\"peer\":null,\"peer_value\":null,\"ratio\":null,\"goal\":null,\"met\":null}"; exit }
        ratio = ours / theirs
        met = better == "more" ? ratio >= goal : ratio <= goal
        printf "\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3f,\"goal\":%s,\"met\":%s}\n", peer, theirs, ratio, goal, met ? "true" : "false" }'
}

# report MODEL CASE AMOUNT UNIT PEER GOAL: AMOUNT / seconds, and memory; nothing where ours or the peer failed
report() {
    [ -s "$work/keel.$2" ] || return 0
    [ "$5" = none ] || [ -s "$work/$5.$2" ] || return 0
    line "race, $1, $threads threads" "$(rate "$3" "$work/keel.$2")" "$4" "$5" "$(rate "$3" "$work/$5.$2")" "$6" more
    line "race, $1, peak memory" "$(($(median 2 "$work/keel.$2") / 1024))" MiB "$5" "$(($(median 2 "$work/$5.$2") / 1024))" 1 less
}
# rate AMOUNT FILE [COLUMN]
rate() { median "${3:-1}" "$2" | awk -v amount="$1" '{ print $1 == 0 ? 0 : amount / $1 }'; }
