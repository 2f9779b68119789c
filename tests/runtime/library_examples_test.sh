#!/bin/sh
# The examples of libkeel do what they are examples of: a model of one's own learns, with the same bits each time, and
# leaves no memory behind; ranks add up along rows, columns and a diagonal.
set -u
BUILD=${BUILD:-build}
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
check() { # check NAME CODE
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $1:"; tail -n 20 "$root/log" | sed 's/^/    /'; fi
}

"$BUILD/examples/meter" 100 "$root/graph" >"$root/log" 2>&1
check "meter trains" $?
awk '/^step 1:/ { first = $4 } /^step 100:/ { last = $4 } END { exit !(first > 0 && last < first / 4) }' "$root/log"
check "its loss falls to a quarter" $?
grep -q '^blocks of memory left: 0$' "$root/log"
check "it gives all memory back" $?
grep -q '^reshard' "$root/graph" && grep -q '^cumsum' "$root/graph"
check "its graph is written as text" $?
"$BUILD/examples/meter" 100 >"$root/again" 2>&1 && cmp "$root/log" "$root/again" >>"$root/log" 2>&1
check "it has the same bits each time" $?

"$BUILD/examples/grid" >"$root/log" 2>&1
check "grid runs" $?
sort "$root/log" >"$root/sorted"
cmp "$root/sorted" - >>"$root/log" 2>&1 <<'END'
rank 0 is 0 of 2 in its row: row 3, column 4, diagonal 5
rank 1 is 1 of 2 in its row: row 3, column 6, diagonal 0
rank 2 is 0 of 2 in its row: row 7, column 4, diagonal 0
rank 3 is 1 of 2 in its row: row 7, column 6, diagonal 5
END
check "rows, columns and the diagonal have their sums" $?

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
