#!/bin/sh
# GPT-2 124M, float32, forward, backward, clipping and AdamW, on all processors: Keel against llm.c's CPU
# program with OpenBLAS, and against PyTorch, plain and compiled. Batches of 4 x 64 and 4 x 1024 tokens.
#   LLMC=directory          a checkout of github.com/karpathy/llm.c; left out without it
# and what racers/race.sh says. llm.c runs 4 x 64 alone: at 1024 tokens it keeps all probabilities, some 15 GiB.
# Behind each product OpenBLAS's threads yield in turns for 2^26 ticks, and those of OpenMP spin, each in the way of
# the other's. So llm.c, and PyTorch for its OpenMP, race twice: as they come, and told to let threads sleep soon.
# The faster of both is the peer.
# room: runtime
set -u
. "$(dirname "$0")/racers/race.sh"
# An older OpenBLAS does not find out the core type of a newer processor.
export OPENBLAS_CORETYPE="${OPENBLAS_CORETYPE:-$(grep -qw avx512f /proc/cpuinfo && echo SkylakeX)}"
[ -n "$OPENBLAS_CORETYPE" ] || unset OPENBLAS_CORETYPE
export OPENBLAS_NUM_THREADS="$threads"

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

# one NAME TOKENS STEPS
one() {
    case $1 in
    keel) run keel "$2" step "$([ "$2" = 64 ] && echo gpt2-124m || echo gpt2-124m-1024)" ;;
    llmc) [ "$2" = 1024 ] || run llmc "$2" "$work/llmc" 4 "$2" "$3" "$threads" ;;
    llmc-sleeps) [ "$2" = 1024 ] || run llmc-sleeps "$2" env OPENBLAS_THREAD_TIMEOUT=20 OMP_WAIT_POLICY=passive \
        "$work/llmc" 4 "$2" "$3" "$threads" ;;
    torch) run torch "$2" "$PYTHON" "$racers/torch_gpt2.py" 4 "$2" "$3" "$threads" plain ;;
    torch-sleeps) run torch-sleeps "$2" env OMP_WAIT_POLICY=passive \
        "$PYTHON" "$racers/torch_gpt2.py" 4 "$2" "$3" "$threads" plain ;;
    compiled) run compiled "$2" "$PYTHON" "$racers/torch_gpt2.py" 4 "$2" "$3" "$threads" compiled ;;
    esac
}

# slower NAME TOKENS: of NAME and NAME-sleeps where both ran
slower() {
    [ -s "$work/$1.$2" ] && [ -s "$work/$1-sleeps.$2" ] || return
    echo "$(median 1 "$work/$1.$2") $(median 1 "$work/$1-sleeps.$2")" |
        awk -v name="$1" '{ print ($1 > $2 ? name : name "-sleeps") }'
}

peers=
build_llmc && peers="llmc llmc-sleeps"
if has_torch; then
    peers="$peers torch torch-sleeps"
    [ "${RACE_COMPILE:-1}" = 0 ] || peers="$peers compiled"
fi
for tokens in ${RACE_TOKENS:-64 1024}; do
    for _ in $(seq "$rounds"); do
        for name in keel $peers; do
            one "$name" "$tokens" "$([ "$tokens" = 64 ] && echo 5 || echo 2)"
        done
    done
    slower="$(slower llmc "$tokens") $(slower torch "$tokens")"
    for peer in ${peers:-none}; do
        case " $slower " in *" $peer "*) continue ;; esac
        case $peer in llmc*) goal=1.3 ;; *) goal=1.35 ;; esac
        report "gpt2-124m 4x$tokens" "$tokens" $((4 * tokens)) tokens/s "$peer" $goal
    done
done
all_raced
