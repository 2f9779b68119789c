#!/bin/sh
# mutants.sh [WORD...] - defects that are put in on purpose, one at a time, and what finds each of them.
#
# table.txt lists them (its head says how). Each is a copy of one source with a few lines changed, in
# $BUILD/mutants: it alone is compiled and linked in front of libkeel.a, so nothing of this is in what is shipped. The
# tests of its row run one after the other until one fails: programs of tests/runtime, and short runs of keel that are
# held against one of the unchanged program on one rank, steps 1 and 2 alone. Every row must be found; a test that
# fails without any mutant spoils the whole.
# WORD: rows that hold it; EVERY=n: every nth of them; CONTROLS=no: programs are not tried without a mutant, since
# whoever runs this runs them too (tests/runtime/mutants_test.sh).
# --rows: that each row's lines stand in its file, and nothing else (`make lint`).
# A line for each, refused by what it says or found by the bits, in $BUILD/mutants/found.txt.
#
# Expects CC_ALL and LIBS_ALL, how to compile and what to link with (Makefile), and BUILD.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
. "$here/../demo/lib.sh"
build=${BUILD:-build}
work=$build/mutants
table=${TABLE:-$here/table.txt}
limit=$((30 * $(awk -v of="$(nproc)" '{ n = int($1 / of) + 1; print n }' /proc/loadavg)))

# compile SOURCE OUT
compile() { eval "$CC_ALL -w -c \"\$1\" -o \"\$2\""; }
# The program NAME, with OBJECT in the place of what the library has.
link_test() { eval "$CC_ALL -o \"\$3\" \"\$work/$1_test.o\" $2 $build/libkeel.a $LIBS_ALL"; }
link_keel() {
    eval "$CC_ALL -o \"\$2\" $build/obj/hal/host/program_main.o $build/obj/runtime/commands/keel_main.o $1 \
        $build/libkeel.a $LIBS_ALL"
}

# A job of two steps that every sort of plan can run: dropout, a tied table, a norm that clips, uneven slices.
small() {
    out=$1 keel=$2
    shift 2
    timeout -k 5 "$limit" "$keel" run "$here/../demo/drill.conf" --out "$out" --set job.seed=1 --set job.shards=4 \
        --set model.heads=4 --set job.tensor=3 --set train.steps=2 --set train.clip=0.5 --set snapshot.every=0 \
        --set cluster.timeout_s=3 --set cluster.device=host --set "data.path=$work/text" "$@" >"$out.log" 2>&1
}
# Weights that are gathered; many buckets.
gathers="--set parallel.zero=3 --set train.microbatches=1 --set parallel.bucket=16384"
# scenario NAME: arguments of a run
scenario() {
    case $1 in
    one) echo "--ranks 1" ;;
    data) echo "--ranks 3 --set job.shards=7" ;;
    cut) echo "--ranks 3 --set parallel.tensor=3" ;;
    cut2) echo "--ranks 2 --set parallel.tensor=2" ;;
    grid) echo "--ranks 4 --set parallel.tensor=2" ;;
    zero1) echo "--ranks 3 --set parallel.zero=1 --set parallel.bucket=65536 --set model.width=64" ;;
    zero2) echo "--ranks 3 --set parallel.zero=2 --set train.microbatches=1 --set parallel.bucket=16384" ;;
    cut-zero) echo "--ranks 4 --set parallel.tensor=2 --set parallel.zero=1 --set parallel.bucket=16384" ;;
    gather) echo "--ranks 4 $gathers" ;;
    gather16) echo "--ranks 4 $gathers --set train.storage=f16 --set job.shards=16" ;;
    gather-cut) echo "--ranks 4 --set parallel.tensor=2 $gathers" ;;
    stripes) echo "--ranks 4 --set parallel.zero_group=2 $gathers" ;;
    gather-kill) echo "--ranks 4 --spares 1 $gathers --drill kill:rank=1,step=2" ;;
    gather-cut-kill) echo "--ranks 4 --spares 1 --set parallel.tensor=2 $gathers --drill kill:rank=1,step=2" ;;
    cut-kill) echo "--ranks 4 --spares 1 --set parallel.tensor=2 --drill kill:rank=1,step=1" ;;
    zero-kill) echo "--ranks 4 --spares 1 --set parallel.zero=1 --set parallel.bucket=16384 --drill kill:rank=1,step=2" ;;
    zero-commit) echo "--ranks 4 --set parallel.zero=1 --drill kill:rank=1,step=1,at=commit" ;;
    int8) echo "--ranks 3 --set train.gradients=int8" ;;
    cut-int8) echo "--ranks 4 --set parallel.tensor=2 --set train.gradients=int8" ;;
    *) return 1 ;;
    esac
}
# The run on one rank that a scenario is held against: what belongs to the identity is the same.
reference() {
    case $1 in
    data) echo "--ranks 1 --set job.shards=7" ;;
    zero1) echo "--ranks 1 --set model.width=64" ;;
    zero2 | gather | gather-* | stripes) echo "--ranks 1 --set train.microbatches=1" ;;
    gather16) echo "--ranks 1 --set train.microbatches=1 --set train.storage=f16 --set job.shards=16" ;;
    *int8) echo "--ranks 1 --set train.gradients=int8" ;;
    *) echo "--ranks 1" ;;
    esac
}

# How many ranks a run lost: one that dies of a check is replaced, and leaves the same bits.
lost_ranks() { grep -o '"lost_ranks":[0-9]*' "$1/events.jsonl" | awk -F: '{ n += $NF } END { print n + 0 }'; }

# A line for each step of a run: loss, norm and digest.
step_bits() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl" >"$1/steps"
    grep -o '"grad_norm":[^,}]*' "$1/metrics.jsonl" | paste -d' ' "$1/steps" -
}

# run_program NAME DIR OBJECT: 0 where it passes; what it says goes to DIR/said.
run_program() {
    link_test "$1" "$3" "$2/$1_test" || return 2
    CK_TIMEOUT_MULTIPLIER=10 KEEL_PLANS_CASES=150 KEEL_PLANS_SECONDS=0 \
        timeout -k 5 "$limit" "$2/$1_test" >"$2/$1.log" 2>&1
    code=$?
    [ $code -ne 0 ] || return 0
    # The first test that failed, without where; an assertion of the program instead of its signal.
    sed -n 's/.*:[FE]:[^:]*:[^:]*:[0-9]*: //p' "$2/$1.log" | head -n 1 >"$2/said"
    grep -q "signal 6" "$2/said" && grep -ia "assert" "$2/$1.log" | tail -n 1 >"$2/said"
    [ $code -ne 124 ] || echo "hangs: no end within $limit s" >"$2/said"
    rm -f "$2/$1_test"
    return 1
}

# run_keel SCENARIO DIR OBJECT
run_keel() {
    [ -x "$2/keel" ] || link_keel "$3" "$2/keel" || return 2
    small "$2/$1" "$2/keel" $(scenario "$1")
    code=$?
    step_bits "$2/$1" >"$2/$1.bits" 2>/dev/null
    step=$(awk 'NR == FNR { was[$1] = $0; next } was[$1] != $0 { print $1; exit }' "$work/$1.bits" "$2/$1.bits")
    if [ -n "$step" ]; then
        echo "loss, norm or weights of step $step differ" >"$2/said"
    elif [ $code -eq 124 ] || [ $code -eq 137 ]; then
        echo "hangs: no end within $limit s" >"$2/said"
    elif [ $code -ne 0 ] || [ "$(wc -l <"$2/$1.bits")" -ne 2 ] || [ "$(lost_ranks "$2/$1")" -ne "$(cat "$work/$1.lost")" ]; then
        for what in "assertion failed" "worker-failed" "^keel run: .*:.*:"; do
            grep -a -- "$what" "$2/$1.log" | head -n 1
        done | sed 's/^\[[^]]*\] //' | head -n 1 >"$2/said"
    else
        return 0
    fi
    return 1
}

# spoil NAME FILE: the source with the lines of the row. A text that is not there, or twice, is a row that rotted.
spoil() {
    path=$(cd "$here/../.." && find hal kernels transport ckpt boards runtime -name "$2" | head -n 1)
    [ -n "$path" ] || { echo "there is no such file" >&2; return 1; }
    awk -v name="$1" '
        FNR == NR { if (/^@ /) { split($0, field, / *\| */); on = substr(field[1], 3) == name }
                    else if (on && /^-/) old = old (old == "" ? "" : "\n") substr($0, 2)
                    else if (on && /^\+/) { if (fresh++) new = new "\n"; new = new substr($0, 2) }
                    next }
        { text = text $0 "\n" }
        END { at = index(text, old)
              if (old == "" || at == 0) { print "the text is not there" > "/dev/stderr"; exit 1 }
              rest = substr(text, at + length(old))
              if (index(rest, old) > 0) { print "the text is there twice" > "/dev/stderr"; exit 1 }
              printf "%s%s%s", substr(text, 1, at - 1), new, rest }' "$table" "$here/../../$path"
}

# What found it: a check that refuses, or bits that differ. Neither a crash nor a hang is a find.
verdict() {
    if grep -qE "^hangs|signal 11" "$1" || [ ! -s "$1" ]; then
        echo crashes
    elif grep -qE "step [0-9]+ differ|: (loss|norm|weights) of step|has (another|other) (loss|norm|weights|pieces)|evaluat|other bits than ever|norms ==" "$1"; then
        echo bits
    else
        echo refused
    fi
}

# one NAME FAMILY FILE TESTS: a line of found.txt
one() {
    dir=$work/$1
    rm -rf "$dir"
    mkdir -p "$dir"
    if ! spoil "$1" "$3" >"$dir/$3" 2>"$dir/said" || ! compile "$dir/$3" "$dir/mutant.o" 2>"$dir/said"; then
        printf 'rotten\t%s\t%s\t%s\t-\t%s\n' "$1" "$2" "$3" "$(head -n 1 "$dir/said" | tr '\t' ' ')"
        return
    fi
    for test in $4; do
        # A machine that is very busy may cost a run a rank, which tells nothing: once more.
        for try in 1 2 3; do
            if scenario "$test" >/dev/null; then run_keel "$test" "$dir" "$dir/mutant.o"; else run_program "$test" "$dir" "$dir/mutant.o"; fi
            code=$?
            [ $code -ne 1 ] || [ ! -s "$dir/said" ] || break
            [ $code -eq 1 ] || break
            rm -rf "${dir:?}/$test"
        done
        case $code in 0) continue ;; 2) echo "hangs: it cannot be linked" >"$dir/said" ;; esac
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(verdict "$dir/said")" "$1" "$2" "$3" "$test" \
            "$(head -n 1 "$dir/said" | tr '\t' ' ' | cut -c1-220)"
        [ -n "${KEEP:-}" ] || rm -rf "$dir"
        return
    done
    printf 'survives\t%s\t%s\t%s\t%s\t-\n' "$1" "$2" "$3" "$4"
    rm -f "$dir"/*_test "$dir/keel"
}

if [ "${1:-}" = --one ]; then
    shift
    # What a sanitizer says of a mutant is no report of a test.
    export ASAN_OPTIONS="${ASAN_OPTIONS:-}:log_path=$work/sanitizer" UBSAN_OPTIONS="${UBSAN_OPTIONS:-}:log_path=$work/sanitizer"
    export TSAN_OPTIONS="${TSAN_OPTIONS:-}:log_path=$work/sanitizer"
    one "$@"
    exit
fi

# rows WORD...: name, family, file and tests of each row, by tabs
rows() {
    awk -v words="$*" -v every="${EVERY:-1}" -F' *[|] *' '
        function wanted(    n, word, i) {
            n = split(words, word, " ")
            for (i = 1; i <= n; i++) if (index($0, word[i])) return 1
            return n == 0 }
        /^@ / && wanted() { if (seen++ % every == 0) printf "%s\t%s\t%s\t%s\n", substr($1, 3), $2, $3, $4 }' "$table"
}

# The rows whose lines are no more in their file, a line for each.
rotten() {
    awk -F' *[|] *' '/^@ / { print substr($1, 3), $3 }' "$table" | while read -r name file; do
        spoil "$name" "$file" 2>&1 >/dev/null | sed "s/^/FAIL $name, $file: /"
    done
}
if [ "${1:-}" = --rows ]; then
    ! rotten | grep .
    exit
fi

rm -rf "$work"
mkdir -p "$work"
rows "$@" >"$work/rows"
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$work/text"
passed=0 failed=0
# Every row of the table still says what stands in its file, also those that are not tried.
rotten >"$work/rotten"
cat "$work/rotten"
failed=$((failed + $(wc -l <"$work/rotten")))
# Without a mutant all that the rows use passes.
for test in $(cut -f4 "$work/rows" | tr ' ' '\n' | sort -u); do
    : >"$work/said"
    if scenario "$test" >/dev/null; then
        small "$work/$test-one" "$build/keel" $(reference "$test") && small "$work/$test" "$build/keel" $(scenario "$test") &&
            step_bits "$work/$test-one" >"$work/$test.bits" && step_bits "$work/$test" | cmp -s - "$work/$test.bits" &&
            lost_ranks "$work/$test" >"$work/$test.lost"
    else
        compile "$here/../runtime/${test}_test.c" "$work/${test}_test.o" &&
            { [ "${CONTROLS:-yes}" = no ] || run_program "$test" "$work" ""; }
    fi
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $test without a mutant: $(cat "$work/said")"
    fi
done
export BUILD CC_ALL LIBS_ALL TABLE
tr '\n' '\0' <"$work/rows" | xargs -0 -P "$(nproc)" -I{} sh -c '
    IFS="	"; set -- $1; unset IFS; exec sh "$0" --one "$@"' "$0" {} >"$work/found.txt"
sort -o "$work/found.txt" "$work/found.txt"
awk -F'\t' '{ printf "%-8s %-34s %-22s %-18s %-10s %s\n", $1, $2, $3, $4, $5, $6 }' "$work/found.txt"
found=$(grep -cE '^(refused|bits)' "$work/found.txt")
passed=$((passed + found))
failed=$((failed + $(wc -l <"$work/rows") - found))
echo "note: $(wc -l <"$work/rows") mutants: $(grep -c '^refused' "$work/found.txt") refused by a check, $(grep -c '^bits' "$work/found.txt") found by the bits"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
