#!/bin/sh
# What is no fault of a run and must cost it nothing: clocks that jump, stores that are full, become read-only, are slow
# or hang, two runs that have one key, a key that others can read. One clear message each, and the same bits.
set -u
here=$(dirname "$0")
. "$here/script.sh"
export TMPDIR="$root"
small=$root/small
mkdir "$small"
mount -t tmpfs -o size=64m tmpfs "$small" 2>/dev/null && mounted=1 || mounted=0
trap 'for run in "$root"/*/; do [ ! -f "$run/run.lock" ] || kill_run "$run"; done; umount "$small" 2>/dev/null; rm -rf "$root"' EXIT
${CC:-cc} -O1 -fPIC -shared -D_GNU_SOURCE -o "$root/bad_world.so" "$here/bad_world.c" || exit 1

# start NAME WORDS...: a run of 24 steps in the background, a snapshot every 4; `within` the environment of its words.
start() {
    out=$root/$1
    shift
    "$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set "data.path=$text" --set cluster.device=host --out "$out" --set train.steps=24 \
        --set train.decay_steps=24 --set snapshot.every=4 --ranks 3 "$@" >"$out.log" 2>&1 &
    run=$!
}
finish() { wait $run; code=$?; }
drilled() { start "$@"; finish; }
count() { grep -c "\"event\":\"$1\"" "$out/events.jsonl"; }
lines() { { cat "$out/metrics.jsonl" 2>/dev/null || :; } | wc -l; }
until_step() { # not for ever
    for _ in $(seq 3000); do
        [ "$(lines)" -lt "$1" ] && kill -0 $run 2>/dev/null || break
        sleep 0.02
    done
}
until_snapshot() {
    for _ in $(seq 3000); do
        ! grep -qs "\"event\":\"snapshot\"" "$out/events.jsonl" && kill -0 $run 2>/dev/null || break
        sleep 0.02
    done
}
await() { for _ in $(seq 600); do grep -q "$2" "$1" 2>/dev/null && return 0; sleep 0.1; done; return 1; }
# remount ro|rw: a file system in which a copy is being written refuses to become read-only; it is asked again.
remount() {
    for _ in $(seq 600); do
        mount -o "remount,$1" "$small" 2>"$root/mount.log" && return 0
        sleep 0.02
    done
    cat "$root/mount.log"
    return 1
}
explain() { tail -n 3 "$out.log" && grep -v '"event":"\(board\|memory\|view\|plans\|start\)"' "$out/events.jsonl" | tail -n 6; }
slow="--drill slow:rank=0,step=1,ms=40,steps=100"

drilled plain
check "an undisturbed run ends well" [ $code -eq 0 ]
plain=$out

# ---- clocks -----------------------------------------------------------------------------------------------------------

export LD_PRELOAD="$root/bad_world.so" BAD_CLOCK_S=100000000
start clocks --set "snapshot.local=$root/clock-nodes" --set snapshot.partner=yes --drill kill:rank=1,step=6 --drill slow:rank=0,step=1,ms=200,steps=100
until_snapshot
kill_run "$out"
finish
unset LD_PRELOAD BAD_CLOCK_S
newest=$(sed -n 's/.*"event":"snapshot".*"step":\([0-9]*\),.*/\1/p' "$out/events.jsonl" | tail -n 1)
check "all are killed while the wall clock jumps by years" [ $code -eq 137 ]
BAD_CLOCK_S=100000000 LD_PRELOAD="$root/bad_world.so" "$KEEL" run "$out/job.conf" --ranks 3 --out "$out" >"$out.log" 2>&1
check "and the same command goes on" [ $? -eq 0 ]
resumed=$(sed -n 's/.*"event":"resumed".*"step":\([0-9]*\),.*/\1/p' "$out/events.jsonl" | tail -n 1)
check "from the newest snapshot, whatever time it bears" [ "${resumed:-0}" -ge "${newest:-1}" ] # or from one that was not told yet
check "with the same bits" same_bits "$plain" "$out"
check "nobody but who was killed was lost" [ "$(lost)" -le 2 ]

# ---- stores -----------------------------------------------------------------------------------------------------------

# shellcheck disable=SC2086
mkdir "$root/slow" && export LD_PRELOAD="$root/bad_world.so" BAD_DISK="$root/slow/store" BAD_DISK_MS=200
start slowly --set "snapshot.local=$root/slow-nodes" --set "snapshot.store=$root/slow/store"
finish
check "a store whose syncs take 0.2 s: the run ends well" [ $code -eq 0 ]
check "and has its end there" grep -q '"event":"stored".*"step":24,' "$out/events.jsonl"
check "with the same bits" same_bits "$plain" "$out"
unset BAD_DISK_MS

# shellcheck disable=SC2086
start hanging --set "snapshot.local=$root/hang-nodes" --set "snapshot.store=$root/slow/store-2" $slow
until_step 6
touch "$root/slow/hangs"
until_step 22
check "a store that hangs: the run goes on" [ "$(lines)" -ge 22 ]
rm "$root/slow/hangs"
finish
check "and ends well when it is back" [ $code -eq 0 ]
check "with the same bits" same_bits "$plain" "$out"

# Before the first step, when nobody counts beats: the launcher's call does not return, nor an agent's.
export BAD_DISK="$root/first/ckpt"
hangs='first/ckpt: no answer for 10 s, the disk or its server hangs or is slow: bring it back'
mkdir "$root/first"
touch "$root/first/hangs"
start first
await "$root/first.log" "$hangs"
check "a store that hangs before the first step is told, with the next move" [ $? -eq 0 ]
kill -INT $run
finish
check "and an interrupt ends what has begun nothing" [ $code -eq 5 ]
start first
await "$root/first.log" "$hangs"
rm "$root/first/hangs"
finish
check "when it is back the run begins" [ $code -eq 0 ]
check "which is said" grep -q 'first/ckpt: answers again, after 1' "$out.log"
check "with the same bits" same_bits "$plain" "$out"
unset LD_PRELOAD BAD_DISK
# shellcheck disable=SC2086
start agents --ranks 2 --set cluster.launch=none --set cluster.bind=127.0.0.1 --set train.steps=100000 $slow
await "$out.log" 'agents dial in at'
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
touch "$out/gone"
"$KEEL" agent --join "$place" --key-file "$out/job.key" >"$out.agent1.log" 2>&1 &
LD_PRELOAD="$root/bad_world.so" BAD_DISK="$out/ckpt" "$KEEL" agent --join "$place" --key-file "$out/job.key" >"$out.agent2.log" 2>&1 &
await "$out.agent2.log" 'agents/ckpt: no answer for 10 s, .*give another --store'
check "an agent whose host does not reach the store says so" [ $? -eq 0 ]
rm "$out/gone"
await "$out.log" 'view [0-9]*: 2 ranks'
check "and takes part when it does" [ $? -eq 0 ]
kill -INT $run
finish
check "the run is ended in order" [ $code -eq 5 ]

# Who let an agent in dies while datagrams are tried: it dials again, and the next one lets it in.
mute="--ranks 2 --set cluster.launch=none"
# shellcheck disable=SC2086
start mute $mute --set cluster.bind=127.0.0.1
await "$out.log" 'agents dial in at'
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
touch "$root/mute.sign"
"$KEEL" agent --join "$place" --key-file "$out/job.key" >"$out.agent1.log" 2>&1 &
LD_PRELOAD="$root/bad_world.so" BAD_UDP="$root/mute.sign" "$KEEL" agent --join "$place" --key-file "$out/job.key" >"$out.agent2.log" 2>&1 &
agent=$!
for _ in $(seq 100); do [ "$(grep -c 'its agent came' "$out.log")" -eq 2 ] && break; sleep 0.1; done
kill -KILL $run
wait $run
await "$out.agent2.log" "$place is gone, to which datagrams were tried; dialing $place again"
check "an agent whose datagrams are tried when who let it in dies dials again" [ $? -eq 0 ]
rm "$root/mute.sign"
# shellcheck disable=SC2086
start mute $mute --set "cluster.bind=$place"
finish
check "and is let in by the next, and the run is done" [ $code -eq 0 ]
wait $agent
check "with it" [ $? -eq 0 ]
check "with the same bits" same_bits "$plain" "$out"
export LD_PRELOAD="$root/bad_world.so"

export BAD_DISK="$root/common/ckpt"
# shellcheck disable=SC2086
start common $slow
until_step 6
touch "$root/common/hangs"
until_step 22
check "the run's own directory of snapshots hangs: the run goes on" [ "$(lines)" -ge 22 ]
rm "$root/common/hangs"
finish
check "and ends well when it is back" [ $code -eq 0 ]
check "with the same bits" same_bits "$plain" "$out"

# It is told to end while they hang: it does not wait for them for ever, and says what is not kept.
export BAD_DISK="$root/unsaved/ckpt"
# shellcheck disable=SC2086
start unsaved --drill slow:rank=0,step=1,ms=200,steps=100
until_step 6
touch "$root/unsaved/hangs"
until_step 10
"$KEEL" job stop "$out" >"$root/log" 2>&1
check "a stop through a store that hangs is heard, and fails" '[ $? -eq 1 ] && grep -q "unsaved: failed (TIMEOUT): stopped without its last snapshot" "$root/log"'
finish
check "and so does the run, which says how long it waits" '[ $code -eq 1 ] && grep -q "told to end: .* for 66 s at most; a second signal ends the run at once" "$out.log"'
check "and what is computed again" grep -q "computes steps [59] to [0-9]* again" "$out.log"
rm "$root/unsaved/hangs"
start unsaved
finish
check "the same command goes on when it is back" [ $code -eq 0 ]
check "with the same bits" same_bits "$plain" "$out"

# All of the run's directory hangs, into which who leads writes its lines: nobody reads signals.
export BAD_DISK="$root/whole/"
# shellcheck disable=SC2086
start whole --set cluster.timeout_s=4 $slow
until_step 6
touch "$root/hangs"
kill -TERM $run
finish
check "a signal is heard by one whose own directory hangs" '[ $code -eq 1 ] && grep -q "told to end, and $out has not answered for [0-9]* s: ended without a last snapshot; bring the disk" "$out.log"'
check "and nothing of it is left" flock -w 5 "$out/run.lock" true
rm "$root/hangs"
start whole --set cluster.timeout_s=4
finish
check "the same command goes on when it is back" [ $code -eq 0 ]
check "with the same bits" same_bits "$plain" "$out"
unset LD_PRELOAD BAD_DISK

if [ $mounted -eq 1 ]; then
    slower="--drill slow:rank=0,step=1,ms=200,steps=100" # it goes on while a file system is not yet what it is to be
    # shellcheck disable=SC2086
    start readonly --set "snapshot.local=$root/read-nodes" --set "snapshot.store=$small/store" $slower
    until_step 6
    remount ro
    await "$out/events.jsonl" 'Read-only file system'
    remount rw
    finish
    check "a store that becomes read-only, and can be written again: the run ends well" [ $code -eq 0 ]
    check "which is told, by name" grep -q 'Read-only file system' "$out/events.jsonl"
    check "and has its end there" grep -q '"event":"stored".*"step":24,' "$out/events.jsonl"
    check "with the same bits" same_bits "$plain" "$out"

    remount ro
    drilled refused --set "snapshot.local=$root/read-nodes-2" --set "snapshot.store=$small/store-2"
    check "a store that is read-only when the run begins is refused" [ $code -ne 0 ]
    check "by name, with the next move" grep -q 'snapshot.store = .*give a directory that can be written' "$out.log"
    remount rw

    # The directory in which node 2 keeps copies of its partner's shards has no room for them.
    mkdir -p "$root/room-nodes" "$small/node-2" && ln -s "$small/node-2" "$root/room-nodes/node-2"
    head -c 63M /dev/zero >"$small/filler"
    head -c 2M /dev/zero >>"$small/filler" 2>/dev/null
    # shellcheck disable=SC2086
    start room --set "snapshot.local=$root/room-nodes" --set snapshot.partner=yes $slower
    await "$out/events.jsonl" 'snapshot-failed.*No space left'
    rm "$small/filler"
    finish
    check "a partner without room for copies: the run ends well" [ $code -eq 0 ]
    check "which is told, by name" grep -q 'snapshot-failed.*No space left' "$out/events.jsonl"
    check "and what there is room for later is kept" grep -q '"event":"snapshot".*"step":24,' "$out/events.jsonl"
    check "with the same bits" same_bits "$plain" "$out"
else
    echo "note: a small file system could not be mounted here"
fi

# ---- one key, two runs ------------------------------------------------------------------------------------------------

mkdir -p "$root/twin-2"
start twin-1 --set cluster.launch=none --set cluster.bind=127.0.0.1
first=$run
await "$root/twin-1.log" 'agents dial in at'
cp -p "$root/twin-1/job.key" "$root/twin-2/job.key"
start twin-2 --set cluster.launch=none --set cluster.bind=127.0.0.1
await "$root/twin-2.log" 'agents dial in at'
for twin in twin-1 twin-2; do
    place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$root/$twin.log")
    for k in 1 2 3; do
        "$KEEL" agent --join "$place" --key-file "$root/twin-1/job.key" >"$root/$twin.agent$k.log" 2>&1 &
    done
done
finish
check "two runs with one key: one ends well" [ $code -eq 0 ]
check "with its bits" same_bits "$plain" "$root/twin-2"
wait $first
check "and so does the other" [ $? -eq 0 ]
check "with its bits" same_bits "$plain" "$root/twin-1"

chmod 644 "$root/twin-1/job.key"
drilled twin-1 --set train.steps=28
check "a run's key that others can read is refused" [ $code -eq 3 ]
check "by name, with the next move" grep -q 'job.key: open to others (mode 644); chmod 600 it' "$out.log"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
