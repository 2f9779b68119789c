#!/bin/sh
# Slurm as the launcher: a controller and four slurmd of this machine, whose names are n1 to n4, on loopback. The same
# bits as on one rank, also through the loss of a slurmd with all that it started. mostly waits
set -u
here=$(dirname "$0")
for program in slurmctld slurmd munged salloc srun; do
    if ! PATH=$PATH:/usr/sbin command -v $program >/dev/null; then
        echo "note: $program is not installed (Debian: slurmctld slurmd slurm-client munge): nothing was tried"
        echo "0 passed, 0 failed, 18 skipped"
        exit 0
    fi
done
if [ "$(id -u)" -ne 0 ]; then
    echo "note: slurmd runs as root alone: nothing was tried"
    echo "0 passed, 0 failed, 18 skipped"
    exit 0
fi
. "$here/script.sh"
PATH=$PATH:/usr/sbin
host=$(hostname)
export TMPDIR="$root"
daemons=
# Daemons stay in the foreground: so their process numbers are known, and they end with this script.
end_daemons() { for pid in $daemons; do kill -KILL "$pid" 2>/dev/null; done; }
trap 'end_daemons; rm -rf "$root"' EXIT
mkdir -p -m 755 "$root/state" "$root/spool"
mkdir -m 700 "$root/munge"
chmod 755 "$root"
head -c 128 /dev/urandom >"$root/munge/key"
chmod 400 "$root/munge/key"
munged --foreground --force --key-file "$root/munge/key" --socket "$root/munge/socket" --pid-file "$root/munge/pid" \
    --log-file "$root/munge/log" --seed-file "$root/munge/seed" 2>/dev/null &
daemons="$daemons $!"
port=$(awk -v seed=$$ 'BEGIN { print 20000 + seed % 20000 }')
cat >"$root/slurm.conf" <<END
ClusterName=keel
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
AuthInfo=socket=$root/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
ReturnToService=2
SlurmdTimeout=300
NodeName=n[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 4))] CPUs=2
PartitionName=all Nodes=n[1-4] Default=YES State=UP
END
export SLURM_CONF="$root/slurm.conf"
slurmctld -D >"$root/slurmctld.log" 2>&1 &
controller=$!
daemons="$daemons $controller"
start_slurmd() {
    slurmd -D -N "$1" >"$root/$1.log" 2>&1 &
    eval "$1=$!"
    daemons="$daemons $!"
}
for name in n1 n2 n3 n4; do start_slurmd $name; done
await() { # await COMMAND...: until it holds; not for ever
    for _ in $(seq 2400); do "$@" && return 0; sleep 0.1; done
    echo "FAIL never: $*"
    return 1
}
idle() { [ "$(sinfo -h -o %D -t idle 2>/dev/null)" = 4 ]; }
await idle
check "four slurmd are there" [ $? -eq 0 ]

job="--set job.seed=1 --set train.decay_steps=1000 --set data.path=$text --set cluster.timeout_s=2"
out=$root/run
# shellcheck disable=SC2086
salloc -N4 --no-kill "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=slurm \
    --set cluster.advertise=127.0.0.1 --set train.steps=100000 --drill slow:rank=0,step=1,ms=60,steps=100000 >"$out.log" 2>&1 &
salloc=$!
ranks() { grep 'view [0-9]*:' "$out.log" | tail -n 1 | grep -q ": $1 ranks"; }
await ranks 4
check "an agent on each node of the allocation, started by srun, makes a view" [ $? -eq 0 ]
victims() { # all that a slurmd has started: its stepd, the agent, and its workers
    for parent; do
        for child in $(cat "/proc/$parent/task/$parent/children" 2>/dev/null); do victims "$child"; echo "$child"; done
    done
}
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
third=$(agents_of 3)
stepd=$(awk '/^PPid/ { print $2 }' "/proc/$third/status")
# shellcheck disable=SC2046,SC2154
kill -KILL "$n3" "$stepd" "$third" $(victims "$third")
await ranks 3
check "a slurmd is killed with its step: the others go on" [ $? -eq 0 ]
start_slurmd n3
await ranks 4
check "it is started again, and its node is back" [ $? -eq 0 ]

# Slurm's controller is away: the run does not mind, and a node that is lost then is back once the controller is.
kill -KILL $controller
kill -KILL "$(agents_of 2)"
await ranks 3
check "without Slurm's controller a lost node is left out" [ $? -eq 0 ]
before=$(wc -l <"$out/metrics.jsonl")
goes_on() { [ "$(wc -l <"$out/metrics.jsonl")" -gt $((before + 20)) ]; }
await goes_on
check "and the others go on" [ $? -eq 0 ]
slurmctld -D >>"$root/slurmctld.log" 2>&1 &
controller=$!
daemons="$daemons $controller"
await ranks 4
check "its node is back with the controller" [ $? -eq 0 ]

# The allocation shrinks to three nodes: Slurm ends what ran on the fourth, which cannot be started again.
scontrol update "JobId=$(squeue -h -o %A)" NumNodes=3 >"$root/log" 2>&1
check "the allocation is shrunk" [ $? -eq 0 ]
await ranks 3
check "the others go on without the node that Slurm took" [ $? -eq 0 ]
await grep -q 'node 4: what starts its agent on n4 ended' "$out.log"
check "and it is said why it does not come back" [ $? -eq 0 ]
before=$(wc -l <"$out/metrics.jsonl")
await goes_on
kill -INT "$(cat "$out/run.lock")"
wait $salloc
check "the run is ended in order" [ $? -eq 5 ]
steps=$(wc -l <"$out/metrics.jsonl")
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --set "train.steps=$steps" --out "$root/reference" >"$root/log" 2>&1
check "and the bits are those of one rank ($steps steps)" same_bits "$root/reference" "$out"

# The launcher of three holders is killed, and a node after it, which who leads starts again by srun. The allocation is
# nobody's child (--no-shell): Slurm ends one with the command that salloc was given.
await idle
salloc -N4 --no-kill --no-shell >"$root/log" 2>&1
SLURM_JOB_ID=$(squeue -h -o %A) SLURM_JOB_NODELIST=$(squeue -h -o %N)
export SLURM_JOB_ID SLURM_JOB_NODELIST
out=$root/leads
leads() { # a run of three holders, in the background
    # shellcheck disable=SC2086
    "$KEEL" run "$here/../demo/drill.conf" $job --ranks 4 --out "$out" --set cluster.launch=slurm --set cluster.advertise=127.0.0.1 \
        --set cluster.holders=3 --set snapshot.every=50 --set train.steps=100000 --drill slow:rank=0,step=1,ms=60,steps=100000 \
        >>"$out.log" 2>&1 &
    launcher=$!
}
led() { cat "$out"/ckpt/.leader/*/"$1" 2>/dev/null; }
ranks_led() { [ "$(led events.jsonl | grep '"event":"view"' | tail -n 1 | sed 's/.*"ranks":\[\([0-9,]*\)\].*/\1/' | tr ',' '\n' | grep -c .)" -eq "$1" ]; }
leads
await ranks 4
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
await grep -q '"step":10,' "$out/metrics.jsonl"
kill -KILL $launcher
wait $launcher
await ranks_led 4
check "the launcher is killed, a node leads, and no rank is lost" [ "$(led events.jsonl | grep -c '"lost_ranks":[1-9]')" -eq 0 ]
lost=$(($(sed 's/^[^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader") % 4 + 1))
kill -KILL "$(agents_of $lost)"
await ranks_led 3
check "a node is lost after that" [ $? -eq 0 ]
await ranks_led 4
check "and is back, started by who leads" grep -q "node $lost: its agent came" "$out.log"
"$KEEL" job stop "$out" >"$root/log" 2>&1
check "the run is stopped" [ $? -eq 0 ]
: >"$out.log"
leads # it takes the lines of who led in, and begins anew
await grep -q '] agents dial in at' "$out.log"
kill -INT $launcher
wait $launcher
check "and can be begun again" [ $? -eq 5 ]
steps=$(wc -l <"$out/metrics.jsonl")
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --set "train.steps=$steps" --out "$root/reference2" >"$root/log" 2>&1
check "with the bits of one rank ($steps steps)" same_bits "$root/reference2" "$out"
scancel "$SLURM_JOB_ID"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
