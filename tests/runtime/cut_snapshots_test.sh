#!/bin/sh
# cut_snapshots_test.sh - snapshots of ranks that share the job's tensor slices: they are of whole parameters, as large
# as one rank's and equal to them, each piece is in one shard, any other cut and number of ranks goes on from them, and
# so does a run that lost all holders of a slice.
set -u
here=$(dirname "$0")
. "$here/script.sh"
small="--set model.heads=8 --set job.tensor=4 --set cluster.device=host --set data.path=$text --set train.eval_every=4"
small="$small --set snapshot.codec=raw --set train.decay_steps=8"
saved() { "$KEEL" ckpt show --json "$1/ckpt" | tr ',{}' '\n\n\n' | sed -n 's/.*"raw_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
same_state() { "$KEEL" ckpt diff "$1/ckpt" "$2/ckpt" >"$root/log" 2>&1; }

drill whole $small --set train.steps=8 --ranks 1
check "one rank with all slices" [ $? -eq 0 ]
drill half-whole $small --set train.steps=4 --ranks 1
drill half-cut $small --set train.steps=4 --set parallel.tensor=2 --ranks 4
check "2 x 2 ranks snapshot" [ $? -eq 0 ]
check "a snapshot of 2 x 2 ranks holds what one rank's does" same_state "$root/half-whole" "$root/half-cut"
check "each piece is saved once" [ "$(saved "$root/half-cut")" = "$(saved "$root/half-whole")" ]
check "and its bytes were found" [ "$(saved "$root/half-cut")" -gt 0 ]
check "the snapshot of 2 x 2 ranks is whole" "$KEEL" ckpt verify "$root/half-cut/ckpt"
drill uneven $small --set train.steps=4 --set parallel.tensor=3 --ranks 3
check "a snapshot of three uneven places holds the same" same_state "$root/half-whole" "$root/uneven"

# FROM TENSOR RANKS: go on from half of the run.
resume() {
    cp -r "$root/half-$1" "$root/on"
    drill on $small --set train.steps=8 --set parallel.tensor=$2 --ranks $3
    check "from $1: parallel.tensor = $2 on $3 ranks goes on" [ $? -eq 0 ]
    check "from $1: $2 on $3: it resumes at the snapshot" grep -q '"event": *"resumed".*"step": *4' "$out/events.jsonl"
    check "from $1: $2 on $3: it says how long that took" grep -q '"resumed".*"detail": *"[0-9]\{1,4\}\.[0-9]* s, ' "$out/events.jsonl"
    check "from $1: $2 on $3: the same bits" same_bits "$root/whole" "$out"
    check "from $1: $2 on $3: the same state at the end" same_state "$root/whole" "$out"
    rm -rf "$out"
}
resume cut 1 1
resume cut 2 2
resume cut 4 4
resume cut 1 2
resume cut 3 3
resume whole 2 4

# A rank whose disk is full says so with a step: all take the snapshot again.
drill full-whole $small --set train.steps=12 --ranks 1
drill full $small --set train.steps=12 --set snapshot.every=6 --set parallel.tensor=2 --ranks 2 \
    --drill disk-full:rank=1,step=6,ms=1500 --drill slow:rank=1,step=7,ms=600,steps=3
check "a disk is full" [ $? -eq 0 ]
check "a disk is full: the same bits" same_bits "$root/full-whole" "$out"
check "a disk is full: the others take the snapshot again" grep -q '"event":"snapshot-again".*"rank":0' "$out/events.jsonl"

# All holders of a slice at once: of 2 x 2 the two of one column, and the only one of two; in a life that began at the
# snapshot of step 4. The second of two may die so late that others have what both had: then once more.
on_from_half() { # on_from_half DIR ARGUMENTS...
    for try in 1 2 3 4 5; do
        rm -rf "$root/$1"
        cp -r "$root/half-cut" "$root/$1"
        drill "$@" || return 1
        ! grep -q '"state-lost"' "$out/events.jsonl" || return 0
    done
}
resumes() { grep -c '"event": *"resumed".*"step": *4' "$out/events.jsonl"; }
on_from_half column $small --set train.steps=8 --set parallel.tensor=2 --ranks 4 \
    --drill kill:rank=0,step=6,at=forward --drill kill:rank=1,step=6,at=forward
check "both holders of a slice die" [ $? -eq 0 ]
check "both holders of a slice die: the same bits" same_bits "$root/whole" "$out"
check "both holders of a slice die: the same state at the end" same_state "$root/whole" "$out"
check "both holders of a slice die: back to the newest snapshot" grep -q '"state-lost".*to the newest snapshot' "$out/events.jsonl"
on_from_half only $small --set train.steps=8 --set parallel.tensor=2 --ranks 2 --drill kill:rank=1,step=6
check "the only holder of a slice dies" [ $? -eq 0 ]
check "the only holder of a slice dies: the same bits" same_bits "$root/whole" "$out"
check "it goes back to the newest snapshot, and says so" grep -q '"state-lost".*to the newest snapshot' "$out/events.jsonl"
check "it resumes at the snapshot, once more ($(resumes))" [ "$(resumes)" -eq 2 ]

# The newest is damaged: the one before is taken by all.
drill damaged $small --set train.steps=4 --set snapshot.every=2 --set parallel.tensor=2 --ranks 2
dd if="$out/ckpt/drill/step-4.1/manifest.json" of="$out/ckpt/drill/step-4.1/rank-1.keel" bs=64 seek=800 conv=notrunc 2>/dev/null
drill damaged $small --set train.steps=8 --set parallel.tensor=2 --ranks 2
check "a damaged snapshot is refused" grep -q '"snapshot-refused"' "$out/events.jsonl"
check "the one before is taken" grep -q '"event": *"resumed".*"step": *2' "$out/events.jsonl"
check "from the one before: the same bits" same_bits "$root/whole" "$out"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
