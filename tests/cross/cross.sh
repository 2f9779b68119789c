#!/bin/sh
# cross.sh ARCH BUILD EMULATOR TRIPLET: a Keel that was built for another processor, under user-mode emulation: the
# golden hashes of all operations on the host device, a small run beside the same run on this machine (losses,
# digests, the bytes of a snapshot's shard), verify and resume in both directions. `make cross` builds and calls it.
arch=$1 build=$2 emulator=$(command -v "$3") triplet=$4
native=${NATIVE:-build}/keel
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
claim() { # claim TEXT COMMAND...
    text=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $arch: $text"
    else
        failed=$((failed + 1))
        echo "FAIL  $arch: $text"
        tail -n 15 "$scratch/log" | sed 's/^/      /'
    fi
}
[ -n "$emulator" ] || { echo "cross: $3 is not installed; make cross installs it" >&2; exit 3; }
export KEEL_EMULATOR="$emulator" KEEL_STATE="$scratch/state"
"$triplet-gcc" --sysroot="$build/sysroot" -shared -fPIC -O2 -Wall -Wextra -Werror -o "$build/emulator_exec.so" \
    tests/cross/emulator_exec.c || exit 1
# The emulator looks for the program's libraries under the prefix; what the program starts is emulated as well.
emulated() {
    QEMU_LD_PREFIX="$build/sysroot" "$emulator" -E LD_PRELOAD="$(realpath "$build")/emulator_exec.so" "$@"
}

# A text of 64 KiB: the emulator is 10 to 20 times slower, and the whole one would say no more.
head -c 65536 "${NATIVE:-build}/data/english.txt" >"$scratch/text"
cat >"$scratch/job.conf" <<JOB
[job]
name = cross
shards = 4
[model]
layers = 1
heads = 2
width = 32
block = 16
dropout = 0.1
[data]
path = $scratch/text
vocab = char
val_fraction = 0.05
[train]
steps = 6
batch = 2
eval_every = 3
eval_batches = 1
[snapshot]
every = 3
keep = 2
[cluster]
device = host
timeout_s = 20
JOB
run_here() { "$native" run "$scratch/job.conf" "$@"; }
run_there() { emulated "$build/keel" run "$scratch/job.conf" "$@"; }
lines() { # what must not differ, of each step
    grep -oE '"(step|loss_bits|digest)": ?("[0-9a-f]*"|[0-9]+)' "$1/metrics.jsonl"
}
same_lines() {
    lines "$1" >"$scratch/a" && lines "$2" >"$scratch/b"
    [ "$(grep -c digest "$scratch/a")" -eq 6 ] && cmp "$scratch/a" "$scratch/b"
}
same_shard() {
    cmp "$1"/ckpt/cross*/step-6.1/rank-0.keel "$2"/ckpt/cross*/step-6.1/rank-0.keel
}

kernels_test() { # kernels_test NAME SETTING...: in one process, without Check's clock
    name=$1
    shift
    env CK_FORK=no CK_DEFAULT_TIMEOUT=0 QEMU_LD_PREFIX="$build/sysroot" "$@" "$emulator" "$build/tests/kernels/$name"
}
claim "all golden hashes on the host device" kernels_test golden_test GOLDEN_DEVICE=host
claim "no descriptor of hostile sizes is accepted or reaches beyond its buffers" \
    kernels_test hostile_test KEEL_HOSTILE_DESCRIPTORS=100
claim "a run on this machine, to compare with" run_here --ranks 2 --out "$scratch/here"
claim "a run of two ranks, emulated" run_there --ranks 2 --out "$scratch/there"
claim "its losses and digests are this machine's" same_lines "$scratch/here" "$scratch/there"
claim "its snapshot's shard is this machine's, byte for byte" same_shard "$scratch/here" "$scratch/there"
claim "its snapshots verify here" "$native" ckpt verify "$scratch/there"
claim "this machine's snapshots verify there" emulated "$build/keel" ckpt verify "$scratch/here"
# Steps that are run again are compared with the lines on file: other bits would end the run with exit code 4.
claim "its run is resumed here" run_here --ranks 3 --out "$scratch/there" --resume 3
claim "this machine's run is resumed there" run_there --ranks 1 --out "$scratch/here" --resume 3
claim "and both came to the same again" same_lines "$scratch/here" "$scratch/there"
# Sparse, so that it costs no disk. What matters is that the size is told whole, and is not what is left of it in 32 bits.
large_is_refused() {
    truncate -s 4294967297 "$scratch/large"
    if emulated "$build/keel" run "$scratch/job.conf" --set data.path="$scratch/large" --out "$scratch/none"; then
        return 1
    fi >"$scratch/said" 2>&1
    cat "$scratch/said"
    grep -q 4294967297 "$scratch/said"
}
[ "$arch" = arm64 ] || claim "a file above 4 GiB is refused by its size, not cut short" large_is_refused
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
