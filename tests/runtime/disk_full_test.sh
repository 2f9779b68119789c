#!/bin/sh
# A run on a small file system that is full when a rank is lost: the new view finds no room, so the run says so and
# waits; with room again it goes on to the bits of an undisturbed run, and stopped instead it ends with code 5. On one
# with less room than retention needs, older snapshots make room before a save.
# It mostly waits.
set -u
here=$(dirname "$0")
. "$here/script.sh"
launcher=
job=$here/../demo/drill.conf
mkdir "$root/small"
if ! mount -t tmpfs -o size=8m tmpfs "$root/small" 2>/dev/null; then
    rm -rf "$root"
    echo "note: a small file system could not be mounted here"
    echo "0 passed, 0 failed, 26 skipped"
    exit 0
fi
trap 'for run in "$root"/small/*/; do kill_run "$run"; done; umount "$root/small"; rm -rf "$root"' EXIT

children() { for parent; do cat "/proc/$parent/task/$parent/children" 2>/dev/null; done; }
# begin NAME: on two ranks, for as long as it takes to be disturbed
begin() {
    (exec "$KEEL" run "$job" --out "$root/$1" --set "data.path=$root/text" --set cluster.device=host --ranks 2 \
        --set train.steps=150 --set train.decay_steps=150 --set snapshot.every=30 --drill slow:rank=1,step=2,ms=40,steps=149 >"$root/log" 2>&1) &
    launcher=$!
}
# within SECONDS COMMAND...: does it hold within that time?
within() {
    tries=$(($1 * 10))
    shift
    while ! "$@" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.1
    done
}
fill() { dd if=/dev/zero of="$root/small/filler" bs=4k 2>/dev/null; cat /dev/zero >>"$root/small/filler" 2>/dev/null; [ -s "$root/small/filler" ]; }
lose_a_rank() {
    agents=$(children $launcher)
    workers=$(children ${agents%% *})
    kill -KILL ${workers%% *}
}
lives() { kill -0 $launcher 2>/dev/null; }
trains() { [ -s "$root/small/$1/metrics.jsonl" ]; }

"$KEEL" run "$job" --out "$root/plain" --set "data.path=$root/text" --set cluster.device=host --set train.steps=150 \
    --set train.decay_steps=150 --set snapshot.every=30 >"$root/log" 2>&1
begin small/run
check "the run trains" within 60 trains run
check "the disk is full" fill
lose_a_rank
check "the run says what it waits for" within 60 grep -q "disk is full.*register.state.*No space" "$root/log"
sleep 3
check "and waits" lives
rm "$root/small/filler"
wait $launcher
code=$?
check "with room again it ends well" [ $code -eq 0 ]
check "which is on record" grep -q '"event":"disk-room"' "$root/small/run/events.jsonl"
check "with the bits of an undisturbed run" same_bits "$root/plain" "$root/small/run"

begin small/stopped
within 60 trains stopped
fill
lose_a_rank
within 60 grep -q "disk is full" "$root/log"
kill -INT $launcher
wait $launcher
code=$?
check "stopped while it waits, it ends as resumable" [ $code -eq 5 ]
rm "$root/small/filler"
launcher=

begin small/stop
check "a third run trains" within 60 trains stop
check "the disk is full for it" fill
"$KEEL" job stop "$root/small/stop" >"$root/stop" 2>&1
check "a stop whose snapshot finds no room fails" [ $? -eq 1 ]
check "and says which steps are done again, and why" grep -q "stopped without its last snapshot: .*No space left.*computes steps 1 to [0-9]* again" "$root/stop"
wait $launcher
code=$?
check "the run ends as resumable" [ $code -eq 5 ]
check "and says so" grep -q "goes on from here: stopped without its last snapshot" "$root/log"
rm "$root/small/filler"
launcher=

# Room for two snapshots and a half, of which retention keeps two: the one that goes makes room before the third.
fits() {
    "$KEEL" run "$job" --out "$1" --set "data.path=$root/text" --set cluster.device=host --ranks "$2" --set model.width=128 \
        --set train.microbatches=1 --set train.steps=16 --set train.decay_steps=16 --set snapshot.every=4 --set snapshot.codec=raw >"$root/log" 2>&1
}
attempts() { find "$1"/ckpt/drill/step-* -maxdepth 0 | wc -l; }
for ranks in 1 4; do
    fits "$root/wide" $ranks
    bytes=$(du -s -B1 "$root"/wide/ckpt/drill/step-16.* | cut -f1)
    umount "$root/small" && mount -t tmpfs -o size=$((bytes * 5 / 2 + 1048576)) tmpfs "$root/small"
    fits "$root/small/tight" $ranks
    check "a run of $ranks ranks with room for two snapshots and a half ends well" [ $? -eq 0 ]
    check "no snapshot of it failed" [ "$(grep -c snapshot-failed "$root/small/tight/events.jsonl")" -eq 0 ]
    check "room was made before" grep -q '"event":"snapshot-room"' "$root/small/tight/events.jsonl"
    check "its newest snapshot is the last" sh -c "'$KEEL' ckpt ls '$root/small/tight' --json | grep -q '\"step\": 16'"
    check "nothing that is not committed is left" [ "$(attempts "$root/small/tight")" -eq "$(find "$root/small/tight" -name manifest.json | wc -l)" ]
    check "with the bits of a run that has room" same_bits "$root/wide" "$root/small/tight"
    rm -rf "$root/wide"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
