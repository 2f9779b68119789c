#!/bin/sh
# Run every fuzz target for FUZZ_SECONDS, FUZZ_JOBS at a time (one a processor), ONLY=word: those whose name holds
# the word; close with one line: N passed, N failed. What a target learned stays in build/fuzz/corpus/NAME and is
# where the next run begins; an input that broke something is kept as build/fuzz/NAME-crash-..., and
# `build/fuzz/fuzz/NAME_fuzz FILE` shows it again.
set -u
build=${BUILD:-build/fuzz} seconds=${FUZZ_SECONDS:-60}
here=$(dirname "$0")
golden=$here/../golden/ckpt
# An allocation that cannot be is an answer (NO_MEMORY), not an error.
export ASAN_OPTIONS="allocator_may_return_null=1:${ASAN_OPTIONS:-}"
export KEEL_LOG=error

fuzz_one() {
    name=$1 corpus=$build/corpus/$1 seeds=
    mkdir -p "$corpus"
    [ -d "$here/seeds/$name" ] && seeds=$here/seeds/$name
    case $name in
    shard | sealed | manifest | parity) seeds="$seeds $golden" ;;
    job) seeds="$seeds $here/../../runtime/jobs" ;;
    esac
    log=$(mktemp) || return 1
    # shellcheck disable=SC2086 # seeds are directories of ours, without spaces
    if "$build/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$corpus" $seeds >"$log" 2>&1; then
        printf 'ok    %s (%s inputs, %s features)\n' "$name" \
            "$(awk '/number_of_executed_units/ { print $2 }' "$log")" \
            "$(awk '/ ft: / { for (i = 1; i < NF; i++) if ($i == "ft:") n = $(i + 1) } END { print n + 0 }' "$log")"
    else
        { printf 'FAIL  %s\n' "$name"; tail -n 40 "$log" | sed 's/^/      /'; } >"$log.report"
        cat "$log.report"
    fi
    rm -f "$log" "$log.report"
}

if [ $# -eq 1 ]; then # one target: what the line with xargs below asks for
    fuzz_one "$1"
    exit 0
fi
results=$(mktemp) || exit 1
trap 'rm -f "$results"' EXIT
for source in "$here"/*_fuzz.c; do
    name=$(basename "$source" _fuzz.c)
    case $name in *"${ONLY:-}"*) echo "$name" ;; esac
done | xargs -P "${FUZZ_JOBS:-$(nproc)}" -I '{}' sh "$0" '{}' | tee "$results"
passed=$(grep -c '^ok ' "$results") failed=$(grep -c '^FAIL ' "$results")
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
