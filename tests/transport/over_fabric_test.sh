#!/bin/sh
# Ranks of one host talk through shared memory, so that is what the room's tests run over. Here the same programs
# run over the fabric.
set -u
programs=${BUILD:-build}/tests/transport
passed=0 failed=0
for source in $(grep -l '"ranks.h"' "$(dirname "$0")"/*_test.c); do
    name=$(basename "$source" .c)
    log=$(KEEL_SHARED_MEMORY=0 "$programs/$name" 2>&1)
    code=$?
    summary=$(echo "$log" | sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p')
    set -- $summary
    if [ $# -ne 3 ]; then set -- 1 1 0; fi
    passed=$((passed + $1 - $2 - $3)) failed=$((failed + $2 + $3))
    if [ "$code" -ne 0 ]; then
        echo "FAIL $name over the fabric"
        echo "$log"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
