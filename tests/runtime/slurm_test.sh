#!/bin/sh
# Slurm as the launcher: a controller and four slurmd of this machine, whose names are n1 to n4, on loopback. The same
# bits as on one rank, also through the loss of a slurmd with all that it started. mostly waits
set -u
here=$(dirname "$0")
for program in slurmctld slurmd munged salloc srun; do
    if ! PATH=$PATH:/usr/sbin command -v $program >/dev/null; then
        echo "note: $program is not installed (Debian: slurmctld slurmd slurm-client munge): nothing was tried"
        echo "0 passed, 0 failed, 6 skipped"
        exit 0
    fi
done
if [ "$(id -u)" -ne 0 ]; then
    echo "note: slurmd runs as root alone: nothing was tried"
    echo "0 passed, 0 failed, 6 skipped"
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
daemons="$daemons $!"
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
third=$(for pid in /proc/[0-9]*; do { tr '\0' ' ' <"$pid/cmdline"; } 2>/dev/null | grep -q "^[^ ]*keel agent --join 127.0.0.1:.* --node 3 " && echo "${pid##*/}"; done | head -n 1)
stepd=$(awk '/^PPid/ { print $2 }' "/proc/$third/status")
# shellcheck disable=SC2046,SC2154
kill -KILL "$n3" "$stepd" "$third" $(victims "$third")
await ranks 3
check "a slurmd is killed with its step: the others go on" [ $? -eq 0 ]
start_slurmd n3
await ranks 4
check "it is started again, and its node is back" [ $? -eq 0 ]
kill -INT "$(cat "$out/run.lock")"
wait $salloc
check "the run is ended in order" [ $? -eq 5 ]
steps=$(wc -l <"$out/metrics.jsonl")
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --set "train.steps=$steps" --out "$root/reference" >"$root/log" 2>&1
check "and the bits are those of one rank ($steps steps)" same_bits "$root/reference" "$out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
