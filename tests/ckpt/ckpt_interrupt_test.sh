#!/bin/sh
# A signal at any moment ends `keel ckpt` with exit code 5, and what export and import had begun is gone; a
# signal that was ignored stays ignored.
set -u
keel=${BUILD:-build}/keel
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
# check NAME COMMAND...
check() {
    what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what"; cat "$root/log"; fi
}
: >"$root/log"

# 256 MiB of 0.0078125: large enough to be met on the way
python3 - "$root/big.safetensors" <<'EOF'
import struct, sys
header = b'{"w":{"dtype":"F32","shape":[67108864],"data_offsets":[0,268435456]}}'
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    for _ in range(256):
        file.write(struct.pack("<f", 0.0078125) * 262144)
EOF
check "import" "$keel" ckpt import "$root/big.safetensors" "$root/store/sample" >"$root/log"

# Has that process seen to TERM, by a handler or by blocking it? Before the program has begun it ends as any does.
ready() { grep -qE '^Sig(Blk|Cgt):.*[4-7c-f][0-9a-f]{3}$' "/proc/$1/status" 2>/dev/null; }

# strike SIGNAL SECONDS WORDS...: the exit code of the command, signalled so long after its start. In a shell
# that is not interactive a command in the background ignores INT: TERM and HUP stand for it.
strike() {
    signal=$1 after=$2
    shift 2
    "$keel" ckpt "$@" >"$root/log" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null && ! ready $pid; do :; done
    sleep "$after"
    kill -"$signal" $pid 2>/dev/null
    wait $pid
}

times="0 0.02 0.05 0.08 0.11 0.14 0.17 0.2 0.25 0.3 0.4"
struck=0
for after in $times; do
    mkdir "$root/out"
    strike TERM "$after" export "$root/store" "$root/out/model/"
    code=$?
    [ $code -eq 5 ] && struck=$((struck + 1))
    if [ $code -eq 0 ]; then rm -r "$root/out/model"; fi
    check "export after $after s: done or exit code 5, not $code" test $code -eq 0 -o $code -eq 5
    check "export after $after s: nothing is left behind" rmdir "$root/out"
    rm -rf "$root/out"

    mkdir "$root/new"
    strike HUP "$after" import "$root/big.safetensors" "$root/new/deep/run"
    code=$?
    [ $code -eq 5 ] && struck=$((struck + 1))
    if [ $code -eq 0 ]; then rm -r "$root/new/deep"; fi
    check "import after $after s: done or exit code 5, not $code" test $code -eq 0 -o $code -eq 5
    check "import after $after s: nothing is left behind" rmdir "$root/new"
    rm -rf "$root/new"

    strike TERM "$after" verify "$root/store"
    code=$?
    [ $code -eq 5 ] && struck=$((struck + 1))
    check "verify after $after s: done or exit code 5, not $code" test $code -eq 0 -o $code -eq 5
done
check "some were struck ($struck)" test $struck -ge 3
check "and the store is as it was" "$keel" ckpt verify "$root/store" >"$root/log"

# late FILE WORDS...: the exit code of the command, signalled when its work is done and it waits to say so, since
# nobody reads what it prints
cat >"$root/late.py" <<'EOF'
import os, signal, subprocess, sys, time
out, full = os.pipe()
os.set_blocking(full, False)
try:
    while True:
        os.write(full, b"." * 4096)
except BlockingIOError:
    os.set_blocking(full, True)
command = subprocess.Popen(sys.argv[1:], stdout=full)
def prints():
    with open("/proc/%d/syscall" % command.pid) as now:
        return now.read().split()[1:2] == ["0x1"]
while not prints():
    time.sleep(0.01)
command.send_signal(signal.SIGTERM)
os.close(full)
while os.read(out, 65536):
    pass
sys.exit(command.wait())
EOF
python3 "$root/late.py" "$keel" ckpt export "$root/store" "$root/late.safetensors" >"$root/log" 2>&1
check "an export that is done says so, signal or not" test $? -eq 0 -a -s "$root/late.safetensors"
python3 "$root/late.py" "$keel" ckpt import "$root/big.safetensors" "$root/late/run" >"$root/log" 2>&1
check "an import that is done says so" test $? -eq 0

# A reader that goes away stops nothing half-way.
small="$root/small.safetensors"
python3 -c 'import struct, sys
header = b"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + bytes(4))' "$small"
for step in 1 2 3 4 5 6; do "$keel" ckpt import "$small" "$root/many/run" --step $step >>"$root/log" 2>&1; done
("$keel" ckpt gc "$root/many" --keep 2 2>"$root/log"; echo $? >"$root/code") | true
check "gc into a closed pipe ends well" test "$(cat "$root/code")" -eq 0
check "and has let go what was to go" test "$(find "$root/many" -name manifest.json | wc -l)" -eq 2
check "and says nothing" test ! -s "$root/log"

strike INT 0.1 verify "$root/store"
check "a command in the background of a script lives through INT" test $? -eq 0
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
