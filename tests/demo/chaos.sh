#!/bin/sh
# Same bits under chaos: real runs of up to 8 ranks whose processes are killed and paused by a schedule drawn from a
# seed: workers, agents, all agents together, the launcher and whoever leads after it, everything. A run that was killed
# as a whole is begun again with the same command; any other end than a good one is a failure, and so is a step with
# other bits than in an undisturbed run of one rank. Two of three schedules change the plan as well: all is killed so that
# the job goes on with 8, 7, 2 and 5 ranks in turn, each time on another mix of data positions, shared slices, pieces of
# the optimizer's state, of gradients and of weights, groups of owners and holders. All of them evaluate now and then.
# RUNS schedules (200) from SEED (1) on, JOBS (1) at a time; T is the run's timeout in seconds. With TIERS=1 snapshots lie
# in directories of nodes, with partners' copies and a store behind them.
set -u
. "$(dirname "$0")/lib.sh"
job=$(dirname "$0")/drill.conf
root=${ROOT:-${BUILD:-build}/chaos}
first=${SEED:-1} runs=${RUNS:-200} jobs=${JOBS:-1} timeout=${T:-1}
limit=${LIMIT:-300} # seconds for a life of a run

state=0
draw() { # draw N: a number in [0, N) into $drawn
    state=$(((state * 1103515245 + 12345) % 2147483648))
    drawn=$((state / 65536 % $1))
}

# Processes that a process has started, as far as they still run.
children() { for parent; do cat "/proc/$parent/task/$parent/children" 2>/dev/null; done; }

pick() { # pick PID...: one of them into $picked
    picked=
    [ $# -gt 0 ] || return
    draw $#
    shift "$drawn"
    picked=$1
}

keel_run() { # keel_run NAME ARGS...
    name=$1 tiers=
    shift
    if [ -n "${TIERS:-}" ]; then
        tiers="--set snapshot.local=$root/$name-nodes --set snapshot.store=$root/$name-store"
        case " $* " in *" --ranks 1 "*) ;; *) tiers="$tiers --set snapshot.partner=yes" ;; esac
    fi
    # shellcheck disable=SC2086 # words
    exec "$KEEL" run "$job" --out "$root/$name" --set "data.path=$root/text" --set cluster.device=host \
        --set model.layers=1 --set model.width=16 --set model.block=8 --set train.microbatches=1 \
        --set model.heads=4 --set "train.steps=${STEPS:-400}" --set snapshot.every=20 --set train.eval_every=10 \
        --set train.eval_batches=2 --set parallel.bucket=4096 --set "cluster.timeout_s=$timeout" $tiers "$@"
}

# pause PID...: for a tenth to four timeouts, while the schedule goes on
pause() {
    draw 40
    log "pause $* for $drawn tenths of a timeout"
    # shellcheck disable=SC2086
    kill -STOP "$@" 2>/dev/null
    (
        sleep "$(awk "BEGIN { print ($drawn + 1) * $timeout / 10 }")"
        kill -CONT "$@" 2>/dev/null
    ) &
}

log() { echo "$name: $*" >>"$root/$name.schedule"; }

# Something of the run lives. A launcher that is beginning has no lock yet.
goes_on() { kill -0 "$launcher" 2>/dev/null || { [ -f "$root/$name/run.lock" ] && ! flock -n "$root/$name/run.lock" true; }; }

# One fault, somewhere among the run's processes.
strike() {
    agents=$(lock_holders "$root/$name"/agent-*.lock)
    leader=$(lock_holders "$root/$name/run.lock")
    # shellcheck disable=SC2086
    workers=$(children $agents)
    draw 14
    # shellcheck disable=SC2086
    case $drawn in
    0 | 1 | 2) pick $workers && [ -n "$picked" ] && log "kill worker $picked" && kill -KILL "$picked" ;;
    3) pick $agents && [ -n "$picked" ] && log "kill agent $picked" && kill -KILL "$picked" ;;
    4) log "kill everything" && killed=1 && { kill_run "$root/$name"; kill -KILL "$launcher"; } ;;
    5) pick $workers && [ -n "$picked" ] && pause "$picked" ;;
    6) pick $agents && [ -n "$picked" ] && pause "$picked" ;;
    7 | 8 | 9) [ -n "$agents" ] && pause $agents ;;
    10) [ -n "$leader" ] && pause $leader ;;
    11) [ -n "$leader" ] && pause $leader $agents $workers ;;
    12) [ -n "$leader" ] && log "kill leader $leader" && kill -KILL $leader ;;
    13) pick $agents && [ -n "$picked$leader" ] && log "kill leader $leader and agent $picked" && kill -KILL $picked $leader ;;
    esac 2>/dev/null
}

# The plan of this life into $plan: ranks are next in turn, the rest is drawn of what they can have.
draw_plan() {
    ranks=${turn%% *} turn="${turn#* } ${turn%% *}"
    set --
    for tensor in 1 2 4; do [ $tensor -le "$slices" ] && [ $((ranks % tensor)) -eq 0 ] && set -- "$@" $tensor; done
    pick "$@"; tensor=$picked
    draw 4; zero=$drawn
    set -- 0
    for group in 1 2 4; do [ $zero -gt 0 ] && [ $((ranks / tensor % group)) -eq 0 ] && set -- "$@" $group; done
    pick "$@"; group=$picked
    draw 2; holders=$((drawn + 1))
    draw 3; faults=$drawn
    plan="--set job.shards=8 --set job.tensor=$slices --set parallel.tensor=$tensor --set parallel.zero=$zero --set parallel.holders=$holders --set parallel.zero_group=$group"
    log "plan: $ranks ranks, $tensor of $slices, zero $zero in groups of $group, $holders holders, $faults faults"
}

# Until this life has committed a step, or has ended.
until_it_trains() {
    for try in $(seq 200); do
        [ "$(lines_of)" -gt "$before" ] && break
        goes_on || break
        sleep 0.05
    done
}
lines_of() { cat "$root/$name/metrics.jsonl" 2>/dev/null | wc -l; }

# Each line of the run is that of the undisturbed one. A step may have none only where all who had its record were
# killed and the run says so (metrics-hole); such steps are counted.
same_but_holes() {
    sed -n 's/.*"metrics-hole".*"first":\([0-9]*\),"last":\([0-9]*\).*/\1 \2/p' "$root/$name/events.jsonl" >"$root/$name/holes.txt"
    missing=$(awk -v holes="$root/$name/holes.txt" -v bits="$root/$name/bits.txt" '
        BEGIN {
            while ((getline line <holes) > 0) { split(line, at, " "); for (s = at[1]; s <= at[2]; s++) told[s] = 1 }
            while ((getline line <bits) > 0) { split(line, at, " "); if (at[1] in run) wrong++; run[at[1]] = line; extra++ }
        }
        { if ($1 in run) { wrong += run[$1] != $0; extra-- } else if ($1 in told) missing++; else wrong++ }
        END { print missing + 0; exit wrong + extra > 0 }' "$root/$reference.bits") || return 1
    [ "$missing" -eq 0 ] || log "$missing steps without a line, as metrics-hole says"
}

# One schedule; its word on the last line: passed, differs, or ended.
schedule() {
    name=run-$1 state=$1 life=0
    draw 4; ranks=$((drawn + 1))
    draw 2; spares=$drawn
    draw 5; faults=$((drawn + 1))
    draw 3; plans=$drawn plan= reference=reference-0
    if [ "$plans" -gt 0 ]; then
        draw 3; slices=$((1 << drawn)) reference=reference-$slices
        draw 4; turn=$(echo "8 7 2 5 8 7 2" | cut -d' ' -f$((drawn + 1))-$((drawn + 4)))
    fi
    log "$ranks ranks, $spares spares, $faults faults"
    while [ $life -lt 8 ]; do
        life=$((life + 1)) killed=0 before=0
        [ "$plans" -eq 0 ] || { before=$(lines_of) && draw_plan; }
        # shellcheck disable=SC2086
        (keel_run "$name" --ranks "$ranks" --spares "$spares" $plan >>"$root/$name.log" 2>&1) &
        launcher=$!
        until_it_trains
        while [ $faults -gt 0 ] && [ $killed -eq 0 ] && goes_on; do
            draw 10
            sleep "$(awk "BEGIN { print $drawn * $timeout / 10 }")"
            strike
            faults=$((faults - 1))
        done
        if [ "$plans" -gt 0 ] && [ $life -lt 4 ] && [ $killed -eq 0 ] && goes_on; then
            log "kill everything, for another plan"
            killed=1
            kill_run "$root/$name"
            kill -KILL $launcher 2>/dev/null
        fi
        (trap 'kill $!; exit' TERM; sleep "$limit" & wait $! && kill_run "$root/$name") >/dev/null 2>&1 &
        guard=$!
        wait $launcher
        code=$?
        [ $killed -eq 0 ] && [ $code -eq 137 ] && { "$KEEL" job attach "$root/$name" >/dev/null 2>&1; code=$?; }
        kill $guard 2>/dev/null
        log "life $life ended with code $code"
        [ $killed -eq 1 ] || break
    done
    if [ $code -ne 0 ]; then
        log ended
    elif ! { steps "$root/$name" >"$root/$name/bits.txt" && same_but_holes; }; then
        log differs
    else
        log passed
        rm -rf "${root:?}/$name" "$root/$name.log"
    fi
}

rm -rf "$root"
mkdir -p "$root"
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$root/text"
undisturbed() { # undisturbed NAME ARGS...
    (keel_run "$@" --ranks 1 >"$root/$1.log" 2>&1) || { echo "FAIL: the undisturbed run did not end well; see $root/$1.log"; exit 1; }
    steps "$root/$1" >"$root/$1.bits"
}
undisturbed reference-0
for slices in 1 2 4; do undisturbed reference-$slices --set job.shards=8 --set job.tensor=$slices; done
for worker in $(seq "$jobs"); do
    for number in $(seq $((first + worker - 1)) "$jobs" $((first + runs - 1))); do schedule "$number"; done &
done
wait
count() { grep -lx "run-[0-9]*: $1" "$root"/run-*.schedule 2>/dev/null | wc -l; }
for bad in $(grep -lxE "run-[0-9]*: (ended|differs)" "$root"/run-*.schedule 2>/dev/null); do
    echo "FAIL ${bad%.schedule}:"
    cat "$bad"
    tail -n 3 "${bad%.schedule}.log" | cut -c1-300
done
passed=$(count passed) differ=$(count differs) ended=$(count ended)
holes=$(sed -n 's/.*: \([0-9]*\) steps without a line.*/\1/p' "$root"/run-*.schedule | awk '{ sum += $1 } END { print sum + 0 }')
echo "$((passed + differ + ended)) schedules, $(cat "$root"/run-*.schedule | grep -cE ': (kill|pause)') faults: $differ differ, $ended ended though nobody asked; $holes steps whose records were lost, as the runs say"
echo "$passed passed, $((differ + ended)) failed"
[ "$passed" -eq "$runs" ]
