#!/bin/sh
# Run every fuzz target for FUZZ_SECONDS, one after the other (ONLY=word: those whose name holds the word), and
# close with one line: N passed, N failed. What a target learned stays in build/fuzz/corpus/NAME and is where the next
# run begins; an input that broke something is kept as build/fuzz/NAME-crash-..., and
# `build/fuzz/fuzz/NAME_fuzz FILE` shows it again.
set -u
build=${BUILD:-build/fuzz} seconds=${FUZZ_SECONDS:-60}
here=$(dirname "$0")
golden=$here/../golden/ckpt
# An allocation that cannot be is an answer (NO_MEMORY), not an error.
export ASAN_OPTIONS="allocator_may_return_null=1:${ASAN_OPTIONS:-}"
export KEEL_LOG=error
passed=0 failed=0
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
for source in "$here"/*_fuzz.c; do
    name=$(basename "$source" _fuzz.c)
    case $name in *"${ONLY:-}"*) ;; *) continue ;; esac
    corpus=$build/corpus/$name seeds=
    mkdir -p "$corpus"
    for directory in "$here/seeds/$name"; do [ -d "$directory" ] && seeds="$seeds $directory"; done
    case $name in
    shard | manifest) seeds="$seeds $golden" ;;
    job) seeds="$seeds $here/../../runtime/jobs" ;;
    esac
    # shellcheck disable=SC2086 # seeds are directories of ours, without spaces
    if "$build/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$corpus" $seeds >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok    %s (%s inputs, %s features)\n' "$name" \
            "$(awk '/number_of_executed_units/ { print $2 }' "$log")" \
            "$(awk '/ ft: / { for (i = 1; i < NF; i++) if ($i == "ft:") n = $(i + 1) } END { print n + 0 }' "$log")"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$name"
        tail -n 40 "$log" | sed 's/^/      /'
    fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
