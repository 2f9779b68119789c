#!/bin/sh
# Each rank has the board that cluster.device gives it, and events and metrics say which. Boards of several kinds in
# one run compute the same bits, or the one that does not is left out with the reason.
set -u
here=$(dirname "$0")
BUILD=${BUILD:-build}
. "$here/script.sh"
run() { drill "$@" --ranks 2; }
# agreed DIR FIRST: the bits of a run on FIRST alone; with all ranks to the end, or with the reason why not.
agreed() {
    same_bits "$root/$2" "$root/$1" &&
        if grep -q "computes other bits than board" "$root/$1/events.jsonl"; then
            echo "note: $1: $(sed -n 's/.*"detail":"\(board .* computes other bits than board [^ ]*\).*/\1/p' "$root/$1/events.jsonl" | head -n 1), and was left out"
        else
            ! grep -q '"lost_ranks":[1-9]' "$root/$1/events.jsonl"
        fi
}
run host --set cluster.device=host
check "metrics do not say the boards" 'grep -q "\"boards\":\[\[\"host\",2\]\]" "$root/host/metrics.jsonl"'
run both --set cluster.device=host,pocl:0 --set cluster.timeout_s=60
code=$?
check "a run on two kinds of boards ended with $code" '[ $code -eq 0 ]'
check "two kinds of boards have neither the same bits nor a reason" 'agreed both host'
check "events do not say the boards" 'grep -q "\"event\":\"board\".*\"device\":\"host\".*\"node\":1,\"local\":0" "$root/both/events.jsonl" && grep -q "\"event\":\"board\".*\"device\":\"pocl:0\".*\"node\":2,\"local\":0" "$root/both/events.jsonl"'
# A board that says that it has local memory of its own and 32 lanes in step gets the kernels for many lanes (kernels/README.md):
# the same losses and weights. A fault that does no harm leaves a file where a group of a product has more than one work-item.
OPENCL_LAYERS=$BUILD/libkeel-emulated.so EMULATED_INFO='local_type=1;lanes=32' \
    EMULATED_FAULTS="slow:launch=*,kernel=keel_gemm,items=1,ms=1,once=$root/many" \
    run lanes --set cluster.device=pocl:0 --set cluster.timeout_s=60
code=$?
check "a run on a board of many lanes ended with $code" '[ $code -eq 0 ]'
check "its products were not those of many work-items" '[ -e "$root/many" ]'
check "a board of many lanes has other bits" 'same_bits "$root/host" "$root/lanes"'
# What plain kernels reach there is measured by kernels for many lanes, too.
OPENCL_LAYERS=$BUILD/libkeel-emulated.so EMULATED_INFO='local_type=1;lanes=32' \
    "$BUILD/keel-board" check pocl:0 --level 5.5 --quick >"$root/peaks" 2>&1
code=$?
check "the peaks of a board of many lanes: $code, $(cat "$root/peaks")" '[ $code -eq 0 ] && grep -q peak_gflops "$root/peaks"'
lying() { # RUN FAULT WORDS... Ranks wait for one another, however slow they are
    run=$1 fault=$2
    shift 2
    OPENCL_LAYERS=$BUILD/libkeel-emulated.so EMULATED_FAULTS="$fault" run "$run" --set cluster.timeout_s=20 "$@"
}
# One of the two loses a bit of what it computes, from the beginning: it is named, and the run is the other's.
lying wrong 'flip:launch=*,kernel=keel_gemm$,arg=2,bit=22' --set cluster.device=host,pocl:0
code=$?
check "a run with one wrong board ended with $code" '[ $code -eq 0 ]'
check "a run with one wrong board has other bits" 'same_bits "$root/host" "$root/wrong"'
named() { # RUN WORDS: the board that lied is named once, and no other
    [ "$(grep -c "\"event\":\"worker-failed\"" "$root/$1/events.jsonl")" -eq 1 ] &&
        grep -q "\"event\":\"worker-failed\".*\"detail\":\"board pocl:0 $2" "$root/$1/events.jsonl"
}
golden="computes wrong bits: golden operation [^ ]*gemm"
check "the wrong board is not named" 'named wrong "$golden"'
rm -rf "$KEEL_STATE"
# The same one as the first rank's: it is no reference for the others.
lying wrong_first 'flip:launch=*,kernel=keel_gemm$,arg=2,bit=22' --set cluster.device=pocl:0,host
check "a run with a wrong first board ended with $?" '[ $? -eq 0 ]'
check "a run with a wrong first board has other bits" 'same_bits "$root/host" "$root/wrong_first"'
check "the wrong first board is not named" 'named wrong_first "$golden"'
rm -rf "$KEEL_STATE"
# A board that was wrong in its first update alone, and passes every golden operation: the host reference outvotes it.
lying once 'flip:launch=2,kernel=keel_gemm$,arg=2,bit=22' --set cluster.device=pocl:0,host
check "a run whose first board was wrong once ended with $?" '[ $? -eq 0 ]'
check "a run whose first board was wrong once has other bits" 'same_bits "$root/host" "$root/once"'
check "the first board that was wrong once is not named" 'named once "computes other bits than board host of rank 1"'
# Without the host reference, most boards do.
rm -f "$root/flipped"
lying most "flip:launch=2,kernel=keel_gemm\$,arg=2,bit=22,once=$root/flipped" --ranks 3 --set cluster.device=pocl:0
check "a run with one of three boards wrong once ended with $?" '[ $? -eq 0 ]'
check "a run with one of three boards wrong once has other bits" 'same_bits "$root/host" "$root/most"'
check "the one of three is not named" 'named most "computes other bits than board pocl:0 of rank"'
rm -rf "$KEEL_STATE"
# In a class of numerics boards are admitted by its golden hashes: one whose products of that class alone are wrong is left out.
run class --set cluster.device=host --set job.numerics=exact8x2
lying wrong_class 'flip:launch=*,kernel=keel_planes$,arg=1,bit=22' --set cluster.device=host,pocl:0 --set job.numerics=exact8x2
check "a run in a class with one wrong board ended with $?" '[ $? -eq 0 ]'
check "a run in a class with one wrong board has other bits" 'same_bits "$root/class" "$root/wrong_class"'
check "the board that is wrong in the class is not named" 'named wrong_class "computes wrong bits: golden operation exact8x2"'
rm -rf "$KEEL_STATE"
# A board that cannot do a class is refused with those that it can.
OPENCL_LAYERS=$BUILD/libkeel-emulated.so EMULATED_FAULTS='error:kernel=*,kernel=keel_planes' \
    "$BUILD/keel-board" check pocl:0 --level 4.1 --numerics bf16 >"$root/cannot" 2>&1
code=$?
check "a board that cannot do a class: $code, $(cat "$root/cannot")" \
    '[ $code -ne 0 ] && grep -q "cannot do numerics bf16: .*it can do: canonical, native" "$root/cannot"'
# Native bits are those of one type of board: its name is written down, and another type does not go on.
run native --set cluster.device=host --set job.numerics=native --set snapshot.every=4 --set train.steps=8
run native --set cluster.device=pocl:0 --set job.numerics=native --set snapshot.every=4 --set train.steps=12 --set train.decay_steps=8
code=$?
check "a native run on another type of board: $code, $(tail -n 3 "$root/native.log")" \
    '[ $code -ne 0 ] && grep -q "has the run of .*, products by Keel, and this is pthread" "$root/native/events.jsonl"'
# PoCL beside Mesa's software renderer, which compiles for minutes: only on demand.
if [ -n "${KEEL_TEST_MESA:-}" ] && RUSTICL_ENABLE=llvmpipe "$KEEL" board list 2>/dev/null | grep -q '^mesa:0 '; then
    tiny() {
        run "$@" --set train.steps=2 --set model.layers=1 --set model.width=16 --set model.block=8 --set train.batch=1 \
            --set train.microbatches=1 --set job.shards=2 --set cluster.timeout_s=60
    }
    export RUSTICL_ENABLE=llvmpipe
    tiny pocl --set cluster.device=pocl:0
    tiny mesa --set cluster.device=pocl:0,mesa:0
    code=$?
    check "PoCL beside rusticl ended with $code" '[ $code -eq 0 ]'
    check "PoCL beside rusticl has neither the same bits nor a reason" 'agreed mesa pocl'
fi
run many --set cluster.device=host,host,host
code=$?
check "three boards for two ranks ended with $code" '[ $code -eq 2 ] && grep -q "3 devices for 2 ranks and 0 spares; name one for all" "$root/many.log"'
run none --set cluster.device=host,
code=$?
check "a board without a name ended with $code" '[ $code -eq 2 ] && grep -q "device 2 has no name" "$root/none.log"'
run spare --set cluster.device=host,host,host --set cluster.spares=1 --set train.steps=2
code=$?
check "a list with the spare's board is refused" '[ $code -eq 0 ]'
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
