#!/bin/sh
# GPT-2 124M, float32, forward, backward, clipping and AdamW, on all processors: Keel against llm.c's CPU
# program with OpenBLAS, and against PyTorch, plain and compiled. Batches of 4 x 64 and 4 x 1024 tokens.
#   LLMC=directory          a checkout of github.com/karpathy/llm.c; left out without it
#   KEEL_PYTHON=python3     an interpreter that has torch; left out when it has not
#   RACE_ROUNDS=3           each program alone in turn, so often; figures are medians over rounds
#   RACE_THREADS=N          instead of all processors; with one thread times are the processor's, which
#                           other programs on the machine disturb less
#   RACE_COMPILE=1          0: not torch.compile, which takes a minute to compile each time
# llm.c runs 4 x 64 alone: at 1024 tokens it keeps all probabilities, some 15 GiB.
set -u
BUILD=${BUILD:-build}
PYTHON=${KEEL_PYTHON:-python3}
rounds=${RACE_ROUNDS:-3}
racers=$(dirname "$0")/racers
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
threads=${RACE_THREADS:-$(nproc)}
# The best that each has: OpenBLAS's core type is not found out by an older one, and threads that spin
# between the products take processors from its own.
export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE:-$(grep -qw avx512f /proc/cpuinfo && echo SkylakeX)}"
[ -n "$OPENBLAS_CORETYPE" ] || unset OPENBLAS_CORETYPE
export OMP_NUM_THREADS="$threads" OPENBLAS_NUM_THREADS="$threads"

left_out() { echo "gpt2_race_bench: without $1: $2" >&2; }

build_llmc() {
    [ -n "${LLMC:-}" ] || { left_out llm.c "LLMC names no checkout"; return 1; }
    blas=$(ls /usr/lib/*/openblas-pthread/libopenblas.so.0 /usr/lib/*/libopenblas.so.0 /usr/lib/libopenblas.so.0 \
        2>/dev/null | head -1)
    [ -n "$blas" ] || { left_out llm.c "no libopenblas.so.0"; return 1; }
    sed 's/^void matmul_forward(/void llmc_matmul_forward(/; s/^void matmul_backward(/void llmc_matmul_backward(/' \
        "$LLMC/train_gpt2.c" >"$work/llmc_train_gpt2.c" || return 1
    ${CC:-gcc} -Ofast -march=native -fopenmp -w -DTESTING -DLLMC_SOURCE="\"$work/llmc_train_gpt2.c\"" -I"$LLMC" \
        -o "$work/llmc" "$racers/llmc_racer.c" "$blas" -lm || { left_out llm.c "it does not build"; return 1; }
}

# run NAME TOKENS STEPS: appends "seconds KiB" to $work/NAME.TOKENS
run() {
    case $1 in
    keel) "$BUILD"/bench/step_bench auto "$([ "$2" = 64 ] && echo gpt2-124m || echo gpt2-124m-1024)" "$threads" \
        >"$work/out" 2>"$work/err" && sed -n 's/.* step","value":\([0-9.e+]*\).*/\1/p; s/.*peak memory","value":\([0-9.e+]*\).*/\1/p' \
        "$work/out" | awk '{ v[NR] = $1 } END { if (NR == 2) printf "race %f %d\n", v[1] / 1000, v[2] * 1024 }' ;;
    llmc) "$work/llmc" 4 "$2" "$3" "$threads" 2>"$work/err" ;;
    torch) "$PYTHON" "$racers/torch_gpt2.py" 4 "$2" "$3" "$threads" plain 2>"$work/err" ;;
    compiled) "$PYTHON" "$racers/torch_gpt2.py" 4 "$2" "$3" "$threads" compiled 2>"$work/err" ;;
    esac | sed -n 's/^race //p' >"$work/line"
    [ -s "$work/line" ] || { echo "gpt2_race_bench: $1 failed: $(tail -1 "$work/err")" >&2; return 1; }
    cat "$work/line" >>"$work/$1.$2"
}

# median COLUMN FILE
median() { sort -g -k"$1","$1" "$2" 2>/dev/null | awk -v c="$1" '{ v[NR] = $c } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'; }

# line FIGURE OURS UNIT PEER THEIRS GOAL BETTER: ratio ours / theirs; BETTER is more or less
line() {
    awk -v figure="$1" -v ours="$2" -v unit="$3" -v peer="$4" -v theirs="$5" -v goal="$6" -v better="$7" 'BEGIN {
        printf "{\"room\":\"runtime\",\"figure\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",", figure, ours, unit
        if (theirs == 0) { print "\"peer\":null,\"peer_value\":null,\"ratio\":null,\"goal\":null,\"met\":null}"; exit }
        ratio = ours / theirs
        met = better == "more" ? ratio >= goal : ratio <= goal
        printf "\"peer\":\"%s\",\"peer_value\":%.4g,\"ratio\":%.3f,\"goal\":%s,\"met\":%s}\n", peer, theirs, ratio, goal, met ? "true" : "false" }'
}

# report TOKENS PEER GOAL
report() {
    [ -s "$work/keel.$1" ] || return
    ours=$(awk -v t="$1" -v s="$(median 1 "$work/keel.$1")" 'BEGIN { print 4 * t / s }')
    theirs=$([ -s "$work/$2.$1" ] && awk -v t="$1" -v s="$(median 1 "$work/$2.$1")" 'BEGIN { print 4 * t / s }' || echo 0)
    line "race, gpt2-124m 4x$1, $threads threads" "$ours" tokens/s "$2" "$theirs" "$3" more
    memory=$(median 2 "$work/keel.$1")
    theirs=$([ -s "$work/$2.$1" ] && median 2 "$work/$2.$1" || echo 0)
    line "race, gpt2-124m 4x$1, peak memory" "$((memory / 1024))" MiB "$2" "$((theirs / 1024))" 1 less
}

names=keel
build_llmc && names="$names llmc"
if "$PYTHON" -c 'import torch' 2>/dev/null; then
    names="$names torch"
    [ "${RACE_COMPILE:-1}" = 0 ] || names="$names compiled"
else
    left_out PyTorch "$PYTHON has no torch (KEEL_PYTHON names another)"
fi
for tokens in ${RACE_TOKENS:-64 1024}; do
    # What fails once is not asked again.
    racing=$names
    for round in $(seq "$rounds"); do
        for name in $racing; do
            case $name.$tokens in llmc.1024) continue ;; esac
            [ "$round$name" = 1keel ] || [ -s "$work/$name.$tokens" ] || [ "$round" = 1 ] || continue
            run "$name" "$tokens" "$([ "$tokens" = 64 ] && echo 5 || echo 2)"
        done
    done
    for name in $names; do
        case $name in
        keel) [ "$names" != keel ] || report "$tokens" none 1 ;;
        llmc) [ "$tokens" = 1024 ] || report "$tokens" llmc 2.5 ;;
        *) report "$tokens" "$name" 1 ;;
        esac
    done
done
