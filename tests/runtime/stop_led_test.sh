#!/bin/sh
# A run that a node of another host leads is stopped over TCP, at the gate of who leads, by the key of the run: also while
# the common store hangs, within bounds. What does not prove the key, or means another run, is refused. mostly waits
set -u
here=$(dirname "$0")
. "$here/script.sh"
export KEEL_LOG=warn TMPDIR="$root"
ip link set lo up 2>/dev/null
${CC:-cc} -O1 -fPIC -shared -D_GNU_SOURCE -o "$root/bad_world.so" "$here/bad_world.c" || exit 1

job="--set job.seed=1 --set train.decay_steps=1000 --set data.path=$text --set cluster.device=host"
led="--ranks 3 --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=100 --set cluster.timeout_s=2
    --set snapshot.every=10"
within() { env LD_PRELOAD="$root/bad_world.so" BAD_DISK="$out/ckpt" "$@"; }
await() { # await FILE PATTERN: not for ever
    for _ in $(seq 1200); do grep -qs -e "$2" "$1" && return 0; sleep 0.1; done
    echo "FAIL no $2 in $1"
    return 1
}
await_led() { # of who leads elsewhere
    for _ in $(seq 1200); do cat "$out"/ckpt/.leader/*/"$1" 2>/dev/null | grep -q -e "$2" && return 0; sleep 0.1; done
    echo "FAIL no $2 of a node that leads"
    return 1
}
# begin WORDS...: a launcher and three agents, these in a world in which the store may hang
begin() {
    rm -f "$out.log"
    # shellcheck disable=SC2086
    "$KEEL" run "$here/../demo/drill.conf" $job $led --out "$out" "$@" >"$out.log" 2>&1 &
    launcher=$!
    await "$out.log" 'agents dial in at'
    place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log") agents=
    for k in 1 2 3; do
        within "$KEEL" agent --join "$place" --key-file "$out/job.key" --node $k --address 127.0.0.$k >"$out.agent$k.log" 2>&1 &
        agents="$agents $!"
    done
}
leads() { sed 's/^[^ ]* [^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader"; } # its process
explain() { tail -n 3 "$out.log" "$out".agent*.log "$root/said"; }

# ---- the store hangs --------------------------------------------------------------------------------------------------

out=$root/hung
begin --drill slow:rank=0,step=1,ms=150,steps=1000
await "$out/metrics.jsonl" '"step":12,'
check "the launcher wrote down where it is asked" grep -q "^[0-9a-f]\{16\} $place,127.0.0" "$out/gates"
kill -KILL $launcher
wait $launcher
await_led events.jsonl '"event":"leader"'
check "the launcher is killed, and a node leads" [ $? -eq 0 ]
await_led metrics.jsonl '"step":22,'

# As the directory of somebody who is not let in, and of a run that was before.
for other in forged earlier; do
    mkdir "$root/$other"
    cp -p "$out/gates" "$out/job.conf" "$out/job.key" "$out/events.jsonl" "$root/$other"
    ln -s "$out/ckpt" "$root/$other/ckpt"
done
awk 'BEGIN { for (i = 0; i < 64; i++) printf "%x", i % 16; print "" }' >"$root/forged/job.key"
sed -i 's/^[0-9a-f]*/00000000000000aa/' "$root/earlier/gates"
check "without the key of the run nobody ends it" says 3 'does not know the key that this directory has' "$KEEL" job stop "$root/forged"
check "which who leads tells" sh -c "cat $out.agent*.log | grep -q 'does not prove the job key'"
check "nor who means another run" says 4 'asks for it of another run than goes on there' "$KEEL" job stop "$root/earlier"
steps=$(cat "$out"/ckpt/.leader/*/metrics.jsonl | wc -l)
await_led metrics.jsonl "\"step\":$((steps + 12)),"
check "and the run goes on" [ $? -eq 0 ]

touch "$out/hangs" "$out/gone"
sleep 2 # who leads looks at the store each second, and hangs there now
since=$(date +%s)
check "who asks for the end while the store hangs is heard, and told what is not kept" says 1 'stopped without its last snapshot' \
    within "$KEEL" job stop "$out" --wait 3m
took=$(($(date +%s) - since))
echo "note: $took s; 12 s are for the workers' last snapshot, 65 s for the store"
check "within these bounds" [ $took -le 95 ]
left=0
for pid in $agents; do wait "$pid"; [ $? -eq 5 ] && left=$((left + 1)); done
check "all agents have ended, interrupted, who led too" [ $left -eq 3 ]
check "and no file in the store asked for it" [ ! -e "$out/ckpt/.leader/stop" ]
rm "$out/hangs" "$out/gone"

begin
wait $launcher
check "the same command goes on when the store is back" [ $? -eq 0 ]
for pid in $agents; do wait "$pid"; done
check "where nobody is asked any more" [ ! -e "$out/gates" ]
# shellcheck disable=SC2086
"$KEEL" run "$here/../demo/drill.conf" $job --set train.steps=100 --out "$root/reference" >"$root/log" 2>&1
check "with the bits of one rank" same_bits "$root/reference" "$out"

# ---- the leader changes -----------------------------------------------------------------------------------------------

# Who leads is killed while the run is to end: who leads then is asked, and says how it ended.
out=$root/moved
begin --set cluster.holders=3 --drill slow:rank=0,step=1,ms=100,steps=1000
await "$out/metrics.jsonl" '"step":12,'
kill -STOP $launcher # it is there, and answers nobody
await_led events.jsonl '"event":"leader"'
kill -KILL $launcher
wait $launcher
kill -KILL "$(leads)"
check "who leads is killed: who leads next is asked" says 0 'stopped (INTERRUPTED)' "$KEEL" job stop "$out"
ended=0
for pid in $agents; do wait "$pid"; [ $? -eq 5 ] && ended=$((ended + 1)); done
check "and the two that are left end so" [ $ended -eq 2 ]
check "a run that has ended is told of" says 0 'stopped (INTERRUPTED)' "$KEEL" job stop "$out"

# ---- the disk of the store is full ------------------------------------------------------------------------------------

out=$root/full
mkdir "$root/small" "$out"
if mount -t tmpfs -o size=4m tmpfs "$root/small" 2>/dev/null; then
    trap 'kill -KILL $launcher $agents 2>/dev/null; umount "$root/small"; rm -rf "$root"' EXIT
    mkdir "$root/small/ckpt"
    ln -s "$root/small/ckpt" "$out/ckpt"
    begin --set snapshot.keep=9 --drill slow:rank=0,step=1,ms=100,steps=1000 # none goes to make room
    await "$out/metrics.jsonl" '"step":12,'
    kill -KILL $launcher
    wait $launcher
    await_led metrics.jsonl '"step":22,'
    dd if=/dev/zero of="$root/small/filler" bs=4k 2>/dev/null
    cat /dev/zero >>"$root/small/filler" 2>/dev/null
    check "a stop that cannot save for want of room is told which steps are computed again" \
        says 1 'No space left on device; the same command computes steps ' "$KEEL" job stop "$out" --wait 3m
    ended=0
    for pid in $agents; do wait "$pid"; [ $? -eq 5 ] && ended=$((ended + 1)); done
    check "and all agents end interrupted, who led too" [ $ended -eq 3 ]
else
    echo "note: a small file system could not be mounted here"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
