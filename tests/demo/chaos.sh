#!/bin/sh
# Same bits under chaos: real runs of up to 8 ranks that a schedule drawn from a seed disturbs. Workers, agents, all agents
# together, the launcher and whoever leads after it, everything is killed or paused; the run is stopped in order; nodes are
# drained and come back. A run that was killed as a whole, or stopped, is begun again with the same command; any other end
# than a good one is a failure, and so is a step with other bits than in an undisturbed run of one rank. Two of three
# schedules change the plan as well: all is killed so that the job goes on with 8, 7, 2 and 5 ranks in turn, each time on
# another mix of data positions, shared slices, pieces of the optimizer's state, of gradients and of weights, groups of
# owners and holders. All of them evaluate now and then.
# A schedule's world is one of WORLDS ("local tiers hosts"): one host; one host whose nodes keep snapshots in directories of
# their own, with partners' copies and a store behind them, and lose them; four hosts, network namespaces whose links are
# cut and heal, which other agents join, in half of them with three holders of the register, else in half with the tiers.
# RUNS schedules (300) from SEED (1) on, JOBS (1) at a time; T is the run's timeout in seconds.
set -u
here=$(dirname "$0")
if [ -z "${CHAOS_INSIDE:-}" ] && command -v ip >/dev/null && command -v unshare >/dev/null; then
    user=$([ "$(id -u)" -eq 0 ] || echo -r)
    # shellcheck disable=SC2086
    unshare $user -nm sh -c 'mount -t tmpfs tmpfs /run && ip netns add try && ip link set lo up' 2>/dev/null &&
        CHAOS_INSIDE=1 exec unshare $user -nm sh "$0"
fi
. "$here/lib.sh"
. "$here/chaos_hosts.sh"
job=$here/drill.conf
root=${ROOT:-${BUILD:-build}/chaos}
case $root in /*) ;; *) root=$PWD/$root ;; esac # on other hosts snapshot.local is found by its whole path
worlds=${WORLDS:-local tiers hosts}
if [ -n "${CHAOS_INSIDE:-}" ]; then
    mount -t tmpfs tmpfs /run && ip link set lo up || exit 1
elif [ "$worlds" = "${worlds#*hosts}" ]; then
    :
else
    echo "note: network namespaces are not allowed here, or ip is not installed: no schedule has hosts"
    worlds=$(echo "$worlds" | sed 's/hosts//')
fi
first=${SEED:-1} runs=${RUNS:-300} jobs=${JOBS:-1} timeout=${T:-1}
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
    name=$1 words=
    shift
    if [ "$tiers" -eq 1 ]; then
        words="--set snapshot.local=$root/$name-nodes --set snapshot.store=$root/$name-store"
        case " $* " in *" --ranks 1 "*) ;; *) words="$words --set snapshot.partner=yes" ;; esac
    fi
    its=$job
    [ "$world" != hosts ] || { its=$root/hosts-$seat.conf && words="$words --set cluster.holders=$register"; }
    # shellcheck disable=SC2086 # words
    exec "$KEEL" run "$its" --out "$root/$name" --set "data.path=$root/text" --set cluster.device=host \
        --set model.layers=1 --set model.width=16 --set model.block=8 --set train.microbatches=1 \
        --set model.heads=4 --set "train.steps=${STEPS:-400}" --set snapshot.every=20 --set train.eval_every=10 \
        --set train.eval_batches=2 --set parallel.bucket=4096 --set "cluster.timeout_s=$timeout" $words "$@"
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
goes_on() {
    kill -0 "$launcher" 2>/dev/null && return 0
    [ "$world" != hosts ] && [ -f "$root/$name/run.lock" ] && ! flock -n "$root/$name/run.lock" true
}

# The run was begun again, and is refused: an agent that nobody saw just then, because it was starting, leads the one before.
refusals() { cat "$root/$name.log" 2>/dev/null | grep -c "a run goes on in this directory"; }

# All processes of the run at once, as by a power failure.
kill_everything() {
    kill -KILL "$launcher" 2>/dev/null
    if [ "$world" = hosts ]; then kill_hosts; else kill_run "$root/$name"; fi
    kill -KILL "$launcher" 2>/dev/null
    killed=1 everything=1
}

# A launcher of other hosts is the run, or a node leads on: either way the same command goes on with it.
kill_leader() {
    log "kill leader $leader${1:+ and agent $1}"
    # shellcheck disable=SC2086
    kill -KILL ${1:-} $leader
    [ "$world" != hosts ] && [ -n "$(agents_now)" ] || killed=1 # who had no agent just then is nobody
}

# A node leaves the run in order, or one that did comes back.
drain() {
    if [ -n "$drained" ]; then
        log "add $drained"
        "$KEEL" job add "$root/$name" "$drained" >/dev/null 2>&1
        drained=
    else
        draw $((ranks + spares)); drained=$((drawn + 1))
        log "drain $drained"
        "$KEEL" job drain "$root/$name" "$drained" --wait 5s >/dev/null 2>&1 &
    fi
}

# A node's directory is gone, in half of the cases with its processes. What is beyond the redundancy is no fault of the
# run: the next is wiped when there is a newer snapshot, with copies.
wipe() {
    newest=$(grep -c "\"event\":\"$([ "$ranks" -eq 1 ] && echo stored || echo snapshot)\"" "$root/$name/events.jsonl" 2>/dev/null)
    [ "$newest" -gt "${wiped:-0}" ] || return
    wiped=$newest
    draw $((ranks + spares)); node=$((drawn + 1))
    draw 2
    log "wipe $node$([ "$drawn" -eq 0 ] || echo ', and kill its agent')"
    rm -rf "$root/$name-nodes/node-$node"
    # shellcheck disable=SC2046
    [ "$drawn" -eq 0 ] || kill -KILL $(agents_now "$node") 2>/dev/null
}

# agents_now [NODE]: the agents of the run, or that of a node.
agents_now() {
    # shellcheck disable=SC2086 # a pattern
    if [ "$world" = hosts ]; then agents_of_hosts "$@"; else lock_holders "$root/$name"/agent-${1:-*}.lock; fi
}

# One fault, somewhere among the run's processes.
strike() {
    agents=$(agents_now)
    leader=$(if [ "$world" = hosts ]; then kill -0 "$launcher" 2>/dev/null && echo "$launcher"; else lock_holders "$root/$name/run.lock"; fi)
    # shellcheck disable=SC2086
    workers=$(children $agents)
    case $world$tiers in hosts1) draw 25 ;; hosts0) draw 24 ;; *1) draw 20 ;; *) draw 18 ;; esac
    # shellcheck disable=SC2086
    case $world$drawn in
    local[01] | tiers[01] | hosts[01]) pick $agents && [ -n "$picked" ] && log "kill agent $picked" && kill -KILL "$picked" ;;
    ?????2) log "kill everything" && kill_everything ;;
    ?????3) pick $agents && [ -n "$picked$leader" ] && kill_leader "$picked" ;;
    ?????4) [ -n "$leader" ] && kill_leader ;;
    ?????[567]) pick $workers && [ -n "$picked" ] && log "kill worker $picked" && kill -KILL "$picked" ;;
    ?????8) pick $workers && [ -n "$picked" ] && pause "$picked" ;;
    ?????9) pick $agents && [ -n "$picked" ] && pause "$picked" ;;
    ?????10 | ?????11) [ -n "$agents" ] && pause $agents ;;
    ?????12) [ -n "$leader" ] && pause $leader ;;
    ?????13) [ -n "$leader" ] && pause $leader $agents $workers ;;
    ?????14) log "stop" && killed=1 && timeout "$limit" "$KEEL" job stop "$root/$name" ;;
    ?????15 | ?????16 | ?????17) drain ;;
    local* | tiers*) wipe ;;
    hosts18 | hosts19) draw 4 && cut_hosts $((drawn + 1)) ;;
    hosts20) cut_hosts 1 2 3 4 ;;
    hosts21) draw 4 && cut_hosts $((drawn + 1)) $(((drawn + 1) % 4 + 1)) ;;
    hosts22 | hosts23) join_host ;;
    hosts24) wipe ;;
    esac >/dev/null 2>&1
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
# killed and the run says so (metrics-hole); such steps are counted, and so are schedules in which that was not so: a
# run says whatever lacks, also what it should have kept.
same_but_holes() {
    sed -n 's/.*"metrics-hole".*"first":\([0-9]*\),"last":\([0-9]*\).*/\1 \2/p' "$root/$name/events.jsonl" >"$root/$name/holes.txt"
    missing=$(awk -v holes="$root/$name/holes.txt" -v bits="$root/$name/bits.txt" '
        BEGIN {
            while ((getline line <holes) > 0) { split(line, at, " "); for (s = at[1]; s <= at[2]; s++) told[s] = 1 }
            while ((getline line <bits) > 0) { split(line, at, " "); if (at[1] in run) wrong++; run[at[1]] = line; extra++ }
        }
        { if ($1 in run) { wrong += run[$1] != $0; extra-- } else if ($1 in told) missing++; else wrong++ }
        END { print missing + 0; exit wrong + extra > 0 }' "$root/$reference.bits") || return 1
    [ "$missing" -eq 0 ] && return
    log "$missing steps without a line, as metrics-hole says"
    grep -q "kill everything" "$root/$name.schedule" || log "though nobody killed everything"
}

# One schedule; its word on the last line: passed, differs, or ended.
schedule() {
    name=run-$1 state=$1 life=0 drained= wiped=0
    # shellcheck disable=SC2086
    pick $worlds; world=$picked
    draw 4; ranks=$((drawn + 1))
    draw 2; spares=$drawn
    draw 5; faults=$((drawn + 1))
    draw 3; plans=$drawn plan= reference=reference-0
    if [ "$plans" -gt 0 ]; then
        draw 3; slices=$((1 << drawn)) reference=reference-$slices
        draw 4; turn=$(echo "8 7 2 5 8 7 2" | cut -d' ' -f$((drawn + 1))-$((drawn + 4)))
    fi
    draw 4
    case $world$drawn in tiers* | hosts1) tiers=1 ;; *) tiers=0 ;; esac
    register=1
    [ "$world" = hosts ] && [ "$drawn" -ge 2 ] && [ "$plans" -eq 0 ] && [ $((ranks + spares)) -ge 2 ] && register=3
    [ "$world" != hosts ] || heal_hosts
    log "$world, tiers $tiers, register of $register: $ranks ranks, $spares spares, $faults faults"
    while [ $life -lt 8 ]; do
        life=$((life + 1)) killed=0 everything= before=0 drained=
        [ "$plans" -eq 0 ] || { before=$(lines_of) && draw_plan; }
        refused=$(refusals)
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
            kill_everything
        fi
        (trap 'kill $!; exit' TERM; sleep "$limit" & wait $! && kill_everything) >/dev/null 2>&1 &
        guard=$!
        wait $launcher
        code=$?
        # What was refused watches who was there, unless that one was killed with all others.
        if [ "$world" != hosts ] && [ -z "$everything" ] &&
            { [ $killed -eq 0 ] && [ $code -eq 137 ] || [ "$(refusals)" -gt "$refused" ]; }; then
            "$KEEL" job attach "$root/$name" >/dev/null 2>&1
            code=$? killed=0
        fi
        kill $guard 2>/dev/null
        log "life $life ended with code $code"
        [ $killed -eq 1 ] || break
    done
    [ "$world" != hosts ] || kill_hosts
    if [ $code -ne 0 ]; then
        log ended
    elif ! { steps "$root/$name" >"$root/$name/bits.txt" && same_but_holes; }; then
        log differs
    else
        log passed
        rm -rf "${root:?}/$name" "$root/$name.log" "$root/$name-nodes" "$root/$name-store"
    fi
}

rm -rf "$root"
mkdir -p "$root"
TMPDIR=$(mktemp -d) && export TMPDIR || exit 1 # what killed agents leave
trap 'rm -rf "$TMPDIR"' EXIT
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$root/text"
undisturbed() { # undisturbed NAME ARGS...
    world=local tiers=0
    (keel_run "$@" --ranks 1 >"$root/$1.log" 2>&1) || { echo "FAIL: the undisturbed run did not end well; see $root/$1.log"; exit 1; }
    steps "$root/$1" >"$root/$1.bits"
}
undisturbed reference-0
for slices in 1 2 4; do undisturbed reference-$slices --set job.shards=8 --set job.tensor=$slices; done
for seat in $(seq "$jobs"); do
    [ "$worlds" = "${worlds#*hosts}" ] || make_hosts "$seat" || exit 1
done
for seat in $(seq "$jobs"); do
    for number in $(seq $((first + seat - 1)) "$jobs" $((first + runs - 1))); do schedule "$number"; done &
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
echo "$((passed + differ + ended)) schedules, $(cat "$root"/run-*.schedule | grep -cE ': (kill|pause|stop|drain|add|wipe|cut|join)') faults: $differ differ, $ended ended though nobody asked; $holes steps whose records were lost, as the runs say, in $(cat "$root"/run-*.schedule | grep -c ': though nobody killed') schedules though not everything was killed"
echo "$passed passed, $((differ + ended)) failed"
[ "$passed" -eq "$runs" ]
