#!/bin/sh
# Run test programs and scripts, one more side by side than there are processors, since each waits for a disk or a
# peer now and then (KEEL_TEST_JOBS=1: one after the other), and close with one line: N passed, N failed. Those that
# say "mostly waits" in their first lines run one after the other beside the others; those that say "runs alone" run
# after all, by themselves.
# A program built with Check says "..%: Checks: N, Failures: N, Errors: N"; a script says "N passed, N failed".
# ONLY=word runs those whose path holds the word. A program that says nothing or dies counts as one failure.
# KEEL_TEST_TIMES=FILE writes how many seconds each took, and how many of a processor. Limits are there to end what hangs; the
# tests' own are for a machine that has nothing else to do. Here they hold four times as long, and as many times more
# as there are processes for a processor: nothing fails because others are busy.
#
# Sanitizers: an allocation that cannot be is an answer (NO_MEMORY), not an error of the test. Suppressions
# are for races and leaks in the drivers' own code alone. Reports go to files, for a run outlives a
# worker that a sanitizer ended and its exit code tells nothing: any report of any process is a failure.
# Mesa's OpenCL throws while it is loaded, which AddressSanitizer does not live through: PoCL alone is there.
# libfabric brings libinfinipath, which would put handlers on SIGABRT and others and write .btr files; its
# variable says no.
here=$(cd "$(dirname "$0")" && pwd) || exit 1

# One program: what it says goes to the user in one piece, its counts to $scratch/counts.
run_one() {
    program=$1
    own=$(mktemp -d "$scratch/XXXXXX") || exit 1
    log=$own/log
    common="allocator_may_return_null=1:print_suppressions=0:log_path=$own/report"
    # Where the thread-local data of a library opened late lies, the leak finder guesses from what stands before
    # it, which is right for old C libraries only; guessed wrong, it follows wild addresses.
    common="$common:intercept_tls_get_addr=0"
    export ASAN_OPTIONS="$common:${ASAN_OPTIONS:-}"
    export UBSAN_OPTIONS="$common:print_stacktrace=1:${UBSAN_OPTIONS:-}"
    export LSAN_OPTIONS="print_suppressions=0:suppressions=$here/lsan.supp:${LSAN_OPTIONS:-}"
    export TSAN_OPTIONS="$common:suppressions=$here/tsan.supp:${TSAN_OPTIONS:-}"
    busy=$(awk -v processors="$(nproc)" '{ n = $1 / processors; print int(n < 1 ? 1 : n + 1) }' /proc/loadavg)
    export CK_TIMEOUT_MULTIPLIER=$((${CK_TIMEOUT_MULTIPLIER:-4} * busy))
    limit=$((${KEEL_TEST_LIMIT_S:-900} * busy))
    begun=$(date +%s)
    case $program in
    *.sh) timeout -k 10 "$limit" sh "$program" >"$log" 2>&1 ;;
    *) timeout -k 10 "$limit" "$program" >"$log" 2>&1 ;;
    esac
    code=$?
    times >"$own/times" # its second line: what children used, "1m2.34s 0m5.67s"
    [ -z "${KEEL_TEST_TIMES:-}" ] || awk -v wall="$(($(date +%s) - begun))" -v program="$program" 'NR == 2 {
        split($0, part, /[ms ]+/)
        print wall, int(part[1] * 60 + part[2] + part[3] * 60 + part[4] + 0.5), program
    }' "$own/times" >>"$KEEL_TEST_TIMES"
    counts=$(awk '
        /^[0-9]+%: Checks: / { gsub(/,/, ""); p += $3 - $5 - $7; f += $5 + $7; seen = 1 }
        /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5; seen = 1 }
        END { if (seen) print p + 0, f + 0, s + 0 }' "$log")
    set -- $counts
    p=${1:-0} f=${2:-0} s=${3:-0}
    if [ -z "$counts" ] || { [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; }; then f=$((f + 1)); fi
    for report in "$own"/report*; do
        [ -s "$report" ] || continue
        f=$((f + 1))
        head -n 50 "$report" >>"$log"
    done
    if [ "$f" -gt 0 ]; then
        printf 'FAIL  %s (%d passed, %d failed, exit %d)\n' "$program" "$p" "$f" "$code"
        sed 's/^/      /' "$log" | tail -n 60
    else
        printf 'ok    %s (%d)\n' "$program" "$p"
    fi >"$own/said"
    grep '^note: ' "$log" | sed 's/^/      /' >>"$own/said"
    cat "$own/said"
    echo "$p $f $s" >>"$scratch/counts"
    rm -rf "$own"
}

export IPATH_NO_BACKTRACE=1
[ "${SAN:-}" != address ] || export OCL_ICD_VENDORS="${OCL_ICD_VENDORS:-/etc/OpenCL/vendors/pocl.icd}"
if [ "$1" = --one ]; then # what the lines with xargs below ask for
    run_one "$2"
    exit 0
fi
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export scratch
touch "$scratch/counts" "$scratch/together" "$scratch/waiting" "$scratch/alone"
for program in "$@"; do
    case $program in *"${ONLY:-}"*) ;; *) continue ;; esac
    source=$program
    case $program in *.sh) ;; *) source=$here/${program#"${BUILD:-build}/tests/"}.c ;; esac
    case $(head -n 20 "$source") in
    *'runs alone'*) list=alone ;;
    *'mostly waits'*) list=waiting ;;
    *) list=together ;;
    esac
    echo "$program" >>"$scratch/$list"
done
[ "${KEEL_TEST_JOBS:-}" != 1 ] || { cat "$scratch/waiting" >>"$scratch/together" && : >"$scratch/waiting"; }
wanted=$(cat "$scratch/together" "$scratch/waiting" "$scratch/alone" | wc -l)
xargs -I '{}' sh "$0" --one '{}' <"$scratch/waiting" &
xargs -P "${KEEL_TEST_JOBS:-$(($(nproc) + 1))}" -I '{}' sh "$0" --one '{}' <"$scratch/together"
wait
xargs -I '{}' sh "$0" --one '{}' <"$scratch/alone"
awk -v wanted="$wanted" '
    { p += $1; f += $2; s += $3 }
    END {
        f += wanted - NR
        printf("%d passed, %d failed%s\n", p, f, (s > 0 ? ", " s " skipped" : ""))
        exit f > 0 || p == 0
    }' "$scratch/counts"
