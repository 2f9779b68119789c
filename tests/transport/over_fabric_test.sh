#!/bin/sh
# Ranks of one host talk through shared memory, so that is what the room's tests run over. Here the same programs
# run over the fabric: a matrix of programs and of providers, and with everything sealed and all buffers registered
# as other providers want it. KEEL_TEST_LONG fills the matrix. It mostly waits.
set -u
programs=${BUILD:-build}/tests/transport
passed=0 failed=0
here=$(dirname "$0")
# ofi_rxd takes any datagram for a peer's, and breaks off with peers over it, or crashes. So nobody else may send to its
# ports: an agent of another run, say, sends to one that is dead, and the port was given out again.
alone() { "$@"; }
# shellcheck disable=SC2016
if unshare -rn sh -c 'ip link set lo up' 2>/dev/null; then
    alone() { unshare -rn sh -c 'ip link set lo up && exec "$@"' sh "$@"; }
fi
run() {
    name=$1 how=$2
    shift 2
    log=$(alone env KEEL_LOG=info KEEL_SHARED_MEMORY=0 "$@" "$programs/$name" 2>&1)
    code=$?
    # A line for each suite of the program: its checks, failures and errors.
    set -- $(echo "$log" | sed -n 's/^[0-9]*%: Checks: \([0-9]*\), Failures: \([0-9]*\), Errors: \([0-9]*\)$/\1 \2 \3/p' |
        awk '{ checks += $1; bad += $2 + $3 } END { print checks + 0, bad + 0 }')
    if [ "$1" -eq 0 ] || { [ "$code" -ne 0 ] && [ "$2" -eq 0 ]; }; then set -- $(($1 + 1)) $(($2 + 1)); fi
    passed=$((passed + $1 - $2)) failed=$((failed + $2))
    if [ "$code" -ne 0 ] || [ "$2" -ne 0 ]; then
        echo "FAIL $name over the fabric, $how"
        echo "$log" | sed "s/^/  /"
    fi
}
# Those who choose what they run over themselves need no second run.
for source in $(grep -L 'KEEL_SHARED_MEMORY' $(grep -l '"ranks.h"' "$here"/*_test.c)); do
    run "$(basename "$source" .c)" plain
done
# ofi_rxm makes 64 MiB of buffers for every epoch if it may.
FI_OFI_RXM_MSG_RX_SIZE=256
export FI_OFI_RXM_MSG_RX_SIZE
while read -r provider names; do
    for name in $names; do
        run "$name" "$provider" KEEL_TEST_PROVIDER="$provider" </dev/null
    done
done <<END
tcp;ofi_rxm collectives_test failures_test groups_test ${KEEL_TEST_LONG:+every_test hang_test kills_test}
udp;ofi_rxd collectives_test groups_test ${KEEL_TEST_LONG:+every_test failures_test hang_test kills_test}
END
for name in failures_test collectives_test; do
    run "$name" "sealed and registered" KEEL_TEST_SEALED=1 KEEL_FABRIC_REGISTER=1
done
run collectives_test "tcp;ofi_rxm, sealed and registered" KEEL_TEST_PROVIDER="tcp;ofi_rxm" KEEL_TEST_SEALED=1 \
    KEEL_FABRIC_REGISTER=1
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
