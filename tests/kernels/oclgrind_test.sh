#!/bin/sh
# Every kernel, in all golden shapes, under Oclgrind: no data race, no byte beyond a buffer, nothing used before
# it is written, no barrier that only some work-items meet, and the hashes of the table. Two kernels that are
# wrong on purpose come first: a clean log means nothing from a tool that does not see those.
#
# Oclgrind 21.10 counts the local memory of all kernels of a program, hence its 128 KiB. It is right at -O0 only:
# what the optimiser makes of vectors it computes wrong here (tanh) and crashes on there (--uninitialized), where a
# shuffle's lane 11 counts as written by nobody, and a shuffle with lanes left open, as vectors put together of
# vectors have, is a crash (it takes 11, a number of LLVM's for another thing, for the mark of an open lane, which
# is -1). Hence a second run with canon.by_lane = 1, whose kernels have neither. clFinish returns 0 whatever it
# finds; the log tells.
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
command -v oclgrind >/dev/null || { echo "0 passed, 0 failed, 1 skipped"; exit 0; }
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0

verdict() { # verdict CLAIM: of the last command
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1"
        [ -s "$scratch/log" ] && head -n 20 "$scratch/log"
        [ -s "$scratch/out" ] && tail -n 5 "$scratch/out"
    fi
}

simulate() { # simulate OPTION... -- COMMAND: the log is $scratch/log
    rm -f "$scratch/log"
    oclgrind --local-mem-size 131072 --build-options -O0 --check-api --data-races --log "$scratch/log" "$@" \
        >"$scratch/out" 2>&1
}

cat >"$scratch/planted.cl" <<'END'
kernel void race(global int *x) { x[get_global_id(0) / 2] += (int)get_global_id(0); }
kernel void beyond(global int *x) { x[get_global_id(0) + 1] = 1; }
kernel void unwritten(global int *x) { local int y[8]; x[get_local_id(0)] = y[get_local_id(0)] > 0 ? 1 : 2; }
kernel void divergent(global int *x) { if (get_local_id(0) < 4) barrier(CLK_LOCAL_MEM_FENCE); x[get_local_id(0)] = 1; }
END
plant() { # plant KERNEL: eight work-items on eight integers
    cat >"$scratch/planted.sim" <<END
$scratch/planted.cl
$1
8 1 1
8 1 1
<size=32 fill=0>
END
    rm -f "$scratch/log"
    oclgrind-kernel --build-options -O0 --data-races --uninitialized "$scratch/planted.sim" >"$scratch/log" 2>&1
}
plant race
grep -q "data race at global memory" "$scratch/log"
verdict "a planted race is found"
plant beyond
grep -q "Invalid write of size 4 at global memory" "$scratch/log"
verdict "a planted write beyond a buffer is found"
plant unwritten
grep -qi "uninitialized value" "$scratch/log"
verdict "a planted use of what nobody wrote is found"
plant divergent
grep -qi "divergence" "$scratch/log"
verdict "a planted barrier that some do not meet is found"

export CK_FORK=no GOLDEN_DEVICE=oclg
if [ -n "${KEEL_TEST_LONG:-}" ]; then # the kernels whose folds are vectors, too
    GOLDEN_LANES=0 simulate "$build/tests/kernels/golden_test"
    ended=$?
    (exit $ended)
    verdict "on Oclgrind all golden cases have their hashes"
    [ $ended -eq 0 ] && [ ! -s "$scratch/log" ]
    verdict "no golden case races, leaves its buffers, or meets a barrier alone"
fi
GOLDEN_LANES=1 simulate --uninitialized "$build/tests/kernels/golden_test"
ended=$?
(exit $ended)
verdict "on Oclgrind all golden cases have their hashes, with folds by lane"
[ $ended -eq 0 ] && [ ! -s "$scratch/log" ]
verdict "no golden case uses what nobody wrote, races, leaves its buffers, or meets a barrier alone"
# What many work-items do together, by local memory: on Oclgrind every device has the same facts.
some="gemm/13x48 gemm/33x101 gemm/2 gemm/17x96x131 gemm_grouped norm/ norm_tiles/67 norm_boxes/37"
[ -z "${KEEL_TEST_LONG:-}" ] || some="gemm norm cross_entropy attention"
for op in add bias gelu layernorm embedding digest update attention/1x67x1x8 attention_grad/1x67x1x8 attention_grad/2x17 $some; do
    GOLDEN_LANES=1 GOLDEN_ITEMS=64 GOLDEN_ONLY=$op simulate --uninitialized "$build/tests/kernels/golden_test"
    ended=$?
    (exit $ended)
    verdict "on Oclgrind $op by many work-items has its hashes"
    [ $ended -eq 0 ] && [ ! -s "$scratch/log" ]
    verdict "work-items of $op do not race, leave their buffers, or meet a barrier alone"
done
# The classes whose products have planes, by one work-item and by many; in full in the long run. In the short one each class
# has a product, and one of them, by many work-items, attention and its gradient: what others of the group store is read there.
for class in exact8x2 exact8x3 bf16; do
    some="$class/13x48"
    [ $class = exact8x2 ] && some="$some $class-attention/2x17 $class-attention_grad/2x37"
    [ -z "${KEEL_TEST_LONG:-}" ] || some=$class
    for op in $some; do
        for items in ${KEEL_TEST_LONG:+1} 64; do
            [ $items = 1 ] && unset GOLDEN_ITEMS || export GOLDEN_ITEMS=$items
            GOLDEN_CLASS=$class GOLDEN_LANES=1 GOLDEN_ONLY=$op simulate --uninitialized "$build/tests/kernels/golden_test"
            ended=$?
            (exit $ended)
            verdict "on Oclgrind $op by $items has its hashes"
            [ $ended -eq 0 ] && [ ! -s "$scratch/log" ]
            verdict "work-items of $op by $items do not race, leave their buffers, or meet a barrier alone"
        done
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
