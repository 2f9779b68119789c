#!/bin/sh
# Run test programs and scripts, one after the other, and close with one line: N passed, N failed.
# A program built with Check says "..%: Checks: N, Failures: N, Errors: N"; a script says "N passed, N failed".
# ONLY=word runs those whose path holds the word. A program that says nothing or dies counts as one failure.
#
# Sanitizers: an allocation that cannot be is an answer (NO_MEMORY), not an error of the test. Suppressions
# are for races in the drivers' own code alone; leaks need none. Reports go to files, for a run outlives a
# worker that a sanitizer ended and its exit code tells nothing: any report of any process is a failure.
# libfabric brings libinfinipath, which would put handlers on SIGABRT and others and write .btr files; its
# variable says no.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
passed=0 failed=0 skipped=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
log=$scratch/log
reports=$scratch/reports
mkdir "$reports"
common="allocator_may_return_null=1:print_suppressions=0:log_path=$reports/report"
# Where the thread-local data of a library opened late lies, the leak finder guesses from what stands before
# it, which is right for old C libraries only; guessed wrong, it follows wild addresses.
common="$common:intercept_tls_get_addr=0"
export ASAN_OPTIONS="$common:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="$common:print_stacktrace=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="$common:suppressions=$here/tsan.supp:${TSAN_OPTIONS:-}"
export IPATH_NO_BACKTRACE=1
for program in "$@"; do
    case $program in *"${ONLY:-}"*) ;; *) continue ;; esac
    case $program in
    *.sh) timeout -k 10 "${KEEL_TEST_LIMIT_S:-900}" sh "$program" >"$log" 2>&1 ;;
    *) timeout -k 10 "${KEEL_TEST_LIMIT_S:-900}" "$program" >"$log" 2>&1 ;;
    esac
    code=$?
    counts=$(awk '
        /^[0-9]+%: Checks: / { gsub(/,/, ""); p += $3 - $5 - $7; f += $5 + $7; seen = 1 }
        /^[0-9]+ passed, [0-9]+ failed/ { p += $1; f += $3; s += $5; seen = 1 }
        END { if (seen) print p + 0, f + 0, s + 0 }' "$log")
    set -- $counts
    p=${1:-0} f=${2:-0} s=${3:-0}
    if [ -z "$counts" ] || { [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; }; then f=$((f + 1)); fi
    for report in "$reports"/*; do
        [ -s "$report" ] || continue
        f=$((f + 1))
        head -n 50 "$report" >>"$log"
        rm -f "$report"
    done
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -gt 0 ]; then
        printf 'FAIL  %s (%d passed, %d failed, exit %d)\n' "$program" "$p" "$f" "$code"
        sed 's/^/      /' "$log" | tail -n 60
    else
        printf 'ok    %s (%d)\n' "$program" "$p"
    fi
    grep '^note: ' "$log" | sed 's/^/      /'
done
if [ "$skipped" -gt 0 ]; then
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
else
    printf '%d passed, %d failed\n' "$passed" "$failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
