#!/bin/sh
# A board that does not come back costs its worker, after seconds: the board is named, and the run goes on without
# it, to the same bits. One that is slow, from the beginning or by far more than a timeout, is left alone. It mostly waits.
set -u
here=$(dirname "$0")
BUILD=${BUILD:-build}
. "$here/script.sh"
run() { drill "$@" --ranks 2; }
# in_time DIR: was each hang noticed within the limit that its own measure gives, and two ticks?
in_time() {
    sed -n 's/.*did not come back in \([0-9.]*\) s, the longest before took \([0-9.]*\) s.*/\1 \2/p' "$root/$1/events.jsonl" |
        awk '{ n++; limit = 20 * ($2 + 0.01); if (limit < 1) limit = 1; if ($1 > limit + 0.5) late = 1 } END { exit !(n > 0 && !late) }'
}
host() { # again where the drill did not come: on a busy machine a run may begin without its rank
    for try in 1 2 3 4 5 6 7 8; do
        rm -rf "${root:?}/$1"
        run "$@" --set cluster.device=host
        code=$?
        case $* in *--drill*) [ -s "$root/$1/drills.jsonl" ] && break ;; *) break ;; esac
    done
    return $code
}
pocl() {
    OPENCL_LAYERS=$BUILD/libkeel-emulated.so run "$@" --set cluster.device=pocl:0
}
blocks() { # DIR FILE CALL: the driver blocks in that call of one process, and FILE tells; where the run came to none, as where it
    for timeout in 1 2 4 8 16; do # began without a rank that the machine had no time for, again with more
        rm -rf "${root:?}/$1"
        EMULATED_FAULTS="block:$3,once=$2" pocl "$1" --set cluster.timeout_s=$timeout
        code=$?
        [ ! -e "$2" ] || break
    done
    return $code
}
host plain
# Before the first snapshot, behind step 4: one that were still copied would hang too, and sooner, and be named.
host hung --drill hang:rank=1,step=3
code=$?
check "a run whose board hangs ended with $code" '[ $code -eq 0 ]'
check "a run whose board hangs has other bits" 'same_bits "$root/plain" "$root/hung"'
grep "worker-failed" "$root/hung/events.jsonl" >>"$root/hung.log" # for when it is not
check "the board is not named" 'grep -q "\"event\":\"worker-failed\".*\"detail\":\"board host (.*) hangs: the gradients of a step" "$root/hung/events.jsonl"'
check "a hang was noticed late" 'in_time hung'
# In the first step nothing was measured but the warm-up; a snapshot's copies have a queue of their own.
host first --drill hang:rank=1,step=1
check "a run whose board hangs in the first step ended otherwise, or has other bits" 'same_bits "$root/plain" "$root/first"'
check "that board is not named" 'grep -q "\"event\":\"worker-failed\".*\"detail\":\"board host (.*) hangs: the gradients of a step" "$root/first/events.jsonl"'
# The next read of the board hangs: where others keep the machine busy, a step's own may come before the snapshot's.
for _ in 1 2 3 4 5 6 7 8; do
    host copy --drill hang:rank=1,step=4,at=capture
    grep -q "hangs: the gradients of a step" "$root/copy/events.jsonl" || break
done
grep "worker-failed" "$root/copy/events.jsonl" >>"$root/copy.log" # for when it is not
check "a run whose board hangs in a snapshot ended otherwise, or has other bits" 'same_bits "$root/plain" "$root/copy"'
check "the copy is not named" 'grep -q "\"event\":\"worker-failed\".*\"detail\":\"board host (.*) hangs: a copy for a snapshot" "$root/copy/events.jsonl"'
# A driver that hangs inside the call that launches, where no wait has a deadline.
touch "$root/block-once"
EMULATED_FAULTS="block:launch=900,once=$root/block-once" pocl whole
rm -f "$root/block-once"
blocks blocked "$root/block-once" launch=900
code=$?
check "a run whose driver blocks ended with $code" '[ $code -eq 0 ] && [ -e "$root/block-once" ]'
check "a run whose driver blocks has other bits" 'same_bits "$root/whole" "$root/blocked"'
check "the board of a driver that blocks is not named" 'grep -q "\"event\":\"worker-failed\".*\"detail\":\"board pocl:0 (.*) hangs: " "$root/blocked/events.jsonl"'
# The same where the device is given back what it lent to a sum.
blocks lent "$root/unmap-once" unmap=9
code=$?
check "a run whose driver blocks behind a sum ended with $code" '[ $code -eq 0 ] && [ -e "$root/unmap-once" ]'
check "a run whose driver blocks behind a sum has other bits" 'same_bits "$root/whole" "$root/lent"'
check "the board of that driver is not named" 'grep -q "\"event\":\"worker-failed\".*\"detail\":\"board pocl:0 (.*) hangs: " "$root/lent/events.jsonl"'
# Each microbatch takes longer than the timeout of one second.
KEEL_DEVICE_FAULTS="slow:launch=*,ms=20" host slow --set train.steps=2 --set job.shards=2 --set train.microbatches=1
code=$?
check "a slow board ended the run with $code" '[ $code -eq 0 ]'
check "a slow board was said to hang" '! grep -q "worker-failed" "$root/slow/events.jsonl"'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
