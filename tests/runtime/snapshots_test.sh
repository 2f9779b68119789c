#!/bin/sh
# Snapshots of a run, as its job file asks for them: one that fails is taken again by all ranks after the next
# step, a few times, and never ends the run; retention, deltas and what is not finite, by the job's keys.
set -u
here=$(dirname "$0")
. "$here/script.sh"
job=$here/../demo/drill.conf

# run DIR WORDS...: 20 steps, a snapshot every 10.
run() {
    out=$root/$1
    shift
    timeout 600 "$KEEL" run "$job" --out "$out" --set "data.path=$text" --set cluster.device=host \
        --set train.steps=20 --set train.decay_steps=20 --set snapshot.every=10 "$@" >"$root/log" 2>&1
    code=$?
}
# unhurried DIR WORDS...: the same, where each snapshot is written before the next is due: again with slower steps where one
# was passed over, as on a disk that is slow just then.
unhurried() {
    for ms in 1 50 500 2000; do
        rm -rf "${root:?}/$1"
        run "$@" --drill "slow:rank=0,step=1,ms=$ms,steps=1000"
        grep -q snapshot-skipped "$out/events.jsonl" || break
    done
}
explain() { echo "snapshots $(snapshots)" && tail -n 4 "$root/log" "$out/events.jsonl"; }
done_well() { [ "$code" -eq 0 ]; }
# event NAME WORDS COUNT
event() { [ "$(grep -c "\"event\":\"$1\".*$2" "$out/events.jsonl")" -eq "$3" ]; }
snapshots() { "$KEEL" ckpt ls "$out" --json 2>&1 | sed -n 's/^ \{6\}"step": \([0-9]*\),*$/\1/p' | tr '\n' ' '; }
# Exactly the committed generations lie there, whatever a run did while it wrote them.
tidy() { [ "$(find "$out/ckpt" -path '*/step-*' -type d | wc -l)" -eq "$(find "$out/ckpt" -name manifest.json | wc -l)" ]; }
are() { [ "$(snapshots)" = "$1" ]; }
# block DIR STEP...: rank 0's shard of that step cannot be written: something that is not Keel's has its name
block() {
    dir=$root/$1/ckpt/drill
    shift
    for step; do
        mkdir -p "$dir/step-$step.1/rank-0.keel"
    done
}

run plain
check "a plain run ends well" done_well
check "it commits what was asked for" are "20 10 "
check "and leaves nothing else" tidy

block once 10
run once
check "a run with a snapshot that fails ends well" done_well
check "the failure is told with its cause" event snapshot-failed '"step":10.*was used before.*after the next step' 1
check "it is taken again after the next step" event snapshot-again '"step":11.*try 1 of 3' 1
check "and committed" are "20 11 "
check "the training took no notice" same_bits "$root/plain" "$out"

block two 10
run two --ranks 2 --drill slow:rank=1,step=11,ms=2000 # in which the other's write ends
check "a run of two ranks with a snapshot that fails on one ends well" done_well
check "both take it again" event snapshot-again 'try 1 of 3' 1
check "and it is committed" event snapshot '"status":"OK"' 2

block ever 10 11 12 13
run ever
check "a run whose snapshots keep failing ends well" done_well
check "they are tried three times" event snapshot-again 'try . of 3' 3
check "then the next regular one is waited for" event snapshot-failed '"step":13.*next regular one is waited for' 1
check "which is committed" are "20 "

# One rank fails again and again: what the other wrote must not stay until some snapshot is committed.
shards_left() { find "$out/ckpt" -name 'rank-*.keel' -type f | wc -l; }
block leaks 10 11 12 13 14 15 16 17 18 19 20 # it is tried again when the other's write has ended
run leaks --ranks 2 --set train.microbatches=64
check "a run whose snapshots all fail on one rank says that its end is not kept" test "$code" -eq 1
check "nothing is committed" are ""
check "and no shard is left of them: $(shards_left)" test "$(shards_left)" -eq 0
mkdir -p "$root/begun/ckpt/drill/step-90.7" && : >"$root/begun/ckpt/drill/step-90.7/rank-1.keel"
run begun --set snapshot.every=5
check "a run that begins removes what a killed one left" test ! -e "$out/ckpt/drill/step-90.7"
check "and leaves no attempt that is not committed" test "$(find "$out/ckpt/drill" -mindepth 1 -maxdepth 1 | wc -l)" -eq \
    "$(find "$out/ckpt/drill" -name manifest.json | wc -l)"

block never 10
run never --set snapshot.retry=0
check "with snapshot.retry = 0 it is waited for at once" are "20 "

unhurried kept --set train.steps=50 --set snapshot.keep=2 --set snapshot.keep_every=20
check "keep_every keeps more than the newest" are "50 40 20 "
unhurried young --set train.steps=50 --set snapshot.keep=2 --set snapshot.keep_within_s=3600
check "keep_within_s keeps the young" are "50 40 30 20 10 "

run delta --set snapshot.codec=delta --set train.microbatches=16
check "a run that saves deltas ends well" done_well
check "its last snapshot has a base" sh -c "'$KEEL' ckpt show '$out' --json | grep -A2 '\"bases\": \\[' | grep -q '\"step\": 10'"
check "and can be read, with its base" "$KEEL" ckpt verify "$out"
run delta --set snapshot.codec=delta --set train.microbatches=16 --set train.steps=24
check "a run goes on from a delta" done_well
check "where it ended" event resumed '"step":20' 1

# After a loss of all, each rank reads its share of the snapshot and hands it to the others.
run shares --ranks 4 --set model.width=128
run shares --ranks 4 --set model.width=128 --set train.steps=24
check "four ranks go on from a snapshot" done_well
stored=$(cat "$out"/ckpt/*/step-20.*/rank-*.keel | wc -c)
bytes=$(sed -n 's/.*"event":"resumed".*"step":20,.*"[0-9]\{1,4\}\.[0-9]* s, \([0-9]*\) bytes read by rank 0 of 4.*/\1/p' "$out/events.jsonl")
check "the first read less than half of its $stored bytes: ${bytes:-none}" test "$((${bytes:-$stored} * 2))" -lt "$stored"
keep=$out
run shares1 --ranks 1 --set model.width=128 --set train.steps=24
check "to the bits of one rank" same_bits "$keep" "$out"

run slow --set snapshot.bandwidth_bytes_s=1000000 --set snapshot.arena_bytes=4000000 --set snapshot.background=no
check "a run under a bandwidth cap, with a bounded arena, ends well" done_well
check "and loses no bits by it" same_bits "$root/plain" "$out"

run aged --set snapshot.bandwidth_bytes_s=150000 --set snapshot.background=yes --set snapshot.max_age_steps=3
check "a run whose snapshots in the background get old ends well" done_well
check "and writes them at normal priority then" event snapshot-hurried "not written after 3 steps" 1
check "and leaves nothing else" tidy
check "and loses no bits by it" same_bits "$root/plain" "$out"

# The save of the end waits for the periodic one before it, which is still being written, on both ranks.
run race --ranks 2 --set snapshot.every=18 --set snapshot.bandwidth_bytes_s=300000 --set snapshot.background=yes
check "a run whose end is saved behind a periodic save ends well" done_well
check "both are committed" are "20 18 "
check "and leave nothing else" tidy
# The next periodic save falls on one that is still being written, which is not replaced.
run behind --ranks 2 --set snapshot.every=2 --set snapshot.bandwidth_bytes_s=150000 --set snapshot.background=yes
check "a run that snapshots faster than it can write ends well" done_well
check "some were passed over" sh -c "grep -q snapshot-skipped '$out/events.jsonl'"
check "and what is there is committed" tidy
# A rank dies while it takes its share of a snapshot, which the other writes: nobody commits that one.
for _ in 1 2 3 4 5; do # a machine that is busy lets a run begin without a rank
    rm -rf "$root/torn"
    run torn --ranks 2 --drill kill:rank=1,step=10,at=snapshot --set cluster.timeout_s=2
    [ ! -s "$out/drills.jsonl" ] || break
done
check "a run that loses a rank in a snapshot ends well" done_well
check "and has lost it there" [ -s "$out/drills.jsonl" ]
check "that snapshot is not there" are "20 "
check "and leaves nothing else" tidy
check "and loses no bits by it" same_bits "$root/plain" "$out"

head -c 32 /dev/urandom >"$root/key" && chmod 600 "$root/key"
run sealed --set "snapshot.key_file=$root/key"
check "a run that seals its snapshots ends well" done_well
check "and loses no bits by it" same_bits "$root/plain" "$out"
check "they can be listed without the key" are "20 10 "
check "and checked without" sh -c "'$KEEL' ckpt verify '$out' | grep -q 'it is sealed'"
check "and with it" "$KEEL" ckpt verify "$out" --all --key "$root/key"
run sealed --set "snapshot.key_file=$root/key" --set train.steps=24
check "a run goes on from a sealed snapshot" done_well
check "where that was" event resumed '"step":20' 1
chmod 644 "$root/key"
run sealed --set "snapshot.key_file=$root/key" --set train.steps=28
check "a key that others may read is refused" test "$code" -eq 3
check "by its name" grep -q "$root/key" "$root/log"
run sealed --set "snapshot.key_file=$root/nokey" --set train.steps=28
check "a missing key file is named" grep -q "$root/nokey" "$root/log"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
