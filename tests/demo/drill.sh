#!/bin/sh
# Same bits under faults: for each seed, an undisturbed run on one rank is the reference; then 2, 3 and 4
# ranks undisturbed, and one kill at each phase with a victim, a step and a world drawn from the seed.
# SEEDS="1 2 3" chooses the seeds (1 to 20 by default), DEVICE the device (that of the job by default).
set -u
. "$(dirname "$0")/lib.sh"
job=$(dirname "$0")/drill.conf
root=${ROOT:-${BUILD:-build}/drill}
device=${DEVICE:-auto}
seeds=${SEEDS:-$(seq 1 20)}
passed=0 failed=0 schedules=0
rm -rf "$root"

# A small generator, so that a seed names the same schedules everywhere.
state=0
draw() { # draw N: a number in [0, N) into $drawn
    state=$(((state * 1103515245 + 12345) % 2147483648))
    drawn=$((state / 65536 % $1))
}

# run NAME ARGS...: run to the end, with the same command again when everything was killed.
run() {
    name=$1
    shift
    for life in 1 2 3; do
        sh -c '"$@"; exit $?' sh "$KEEL" run "$job" --set "job.seed=$seed" --set "cluster.device=$device" --out "$root/$seed/$name" "$@" \
            >>"$root/$seed/$name.log" 2>&1
        code=$?
        [ $code -eq 137 ] || return $code
    done
    return $code
}

# Whether the kill did not come because the machine was too busy: its snapshot was not begun, since the one before
# was not written yet; or its victim had no rank in some view, since it was not ready in time. Then it is drilled
# again, with more time for everybody; but only if the bits were right.
missed() { # missed NAME RANKS
    [ ! -s "$fired" ] && same_bits "$root/$seed/reference" "$root/$seed/$1" &&
        awk -v ranks="$2" '/"event":"snapshot-skipped"/ { busy = 1 }
            /"event":"view"/ { match($0, /"ranks":[[][0-9,]*/); if (split(substr($0, RSTART, RLENGTH), there, ",") < ranks) busy = 1 }
            END { exit !busy }' "$root/$seed/$1/events.jsonl"
}

check() { # check NAME ARGS...: run it and compare with the reference
    case "$*" in *--drill*) fired=$root/$seed/$1/drills.jsonl ;; *) fired=$0 ;; esac # a kill that did not come proves nothing
    for try in 1 2 3 4 5; do
        run "$@" --set "cluster.timeout_s=$try"
        code=$?
        { [ $try -lt 5 ] && [ $code -eq 0 ] && missed "$1" "$3"; } || break
        echo "seed $seed $*: the kill did not come, since the machine is busy: again"
        rm -rf "${root:?}/$seed/$1"
    done
    schedules=$((schedules + 1))
    if [ $code -eq 0 ] && [ -s "$fired" ] && same_bits "$root/$seed/reference" "$root/$seed/$1"; then
        passed=$((passed + 1))
        rm -rf "${root:?}/$seed/$1" # what passed is not needed any more
    else
        failed=$((failed + 1))
        echo "FAIL seed $seed $* (exit $code); see $root/$seed/$1.log"
    fi
}

for seed in $seeds; do
    state=$seed
    mkdir -p "$root/$seed"
    if ! run reference --ranks 1; then
        echo "FAIL seed $seed: the reference did not finish; see $root/$seed/reference.log"
        failed=$((failed + 1))
        continue
    fi
    for ranks in 2 3 4; do
        check "calm-$ranks" --ranks $ranks
    done
    for phase in forward reduce commit snapshot; do
        draw 4; ranks=$((drawn + 1))
        draw $ranks; rank=$drawn
        draw 10; step=$((drawn + 2))
        [ $phase = snapshot ] && { draw 2; step=$((drawn * 4 + 4)); }
        draw 5
        case $drawn in
        0) check "$phase" --ranks $ranks --drill "kill:all,step=$step,at=$phase" ;;
        1) check "$phase" --ranks $ranks --drill "kill:node=$((rank + 1)),step=$step,at=$phase" ;;
        2) check "$phase" --ranks $ranks --spares 1 --drill "kill:rank=$rank,step=$step,at=$phase" ;;
        *) check "$phase" --ranks $ranks --drill "kill:rank=$rank,step=$step,at=$phase" ;;
        esac
    done
    echo "seed $seed: $schedules schedules so far, $failed failed"
done
echo "$schedules schedules tried"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
