#!/bin/sh
# A reader that was written from ckpt/README.md alone (stranger.py) reads every golden snapshot and those of a
# real run, to the bytes that `keel ckpt export` writes; rebuilds lost shards; and refuses every flipped byte.
set -u
here=$(dirname "$0")
keel=${BUILD:-build}/keel
golden=$here/../golden
root=$(mktemp -d) || exit 1
trap 'rm -rf "$root"' EXIT
passed=0 failed=0
python=/usr/bin/python3 # Debian's, which has Debian's modules
stranger() { "$python" "$here/stranger.py" "$@"; }
check() { # check NAME COMMAND...
    what=$1
    shift
    if "$@" >"$root/log" 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAIL $what:"; tail -n 20 "$root/log"; fi
}
install -m 600 "$golden/ckpt-sealed.key" "$root/key"

# same_bytes STEP_DIRECTORY [--key FILE]: both readers verify it, and see the same tensors
same_bytes() {
    directory=$1
    shift
    stranger verify "$@" "$directory" && "$keel" ckpt verify "$directory" "$@" || return 1
    stranger digests "$@" "$directory" >"$root/ours" || return 1
    "$keel" ckpt export "$directory" "$root/all.safetensors" --force "$@" || return 1
    stranger safetensors "$root/all.safetensors" >"$root/exported" || return 1
    test -s "$root/ours" && diff "$root/ours" "$root/exported"
}

for directory in "$golden"/ckpt/*/step-*; do
    name=${directory#"$golden"/ckpt/}
    case $name in
    sealed/*)
        check "golden $name is read with its key" same_bytes "$directory" --key "$root/key"
        check "golden $name is verified without its key" stranger verify "$directory"
        ;;
    *) check "golden $name is read" same_bytes "$directory" ;;
    esac
done
refused() { # refused CODE COMMAND...
    wanted=$1
    shift
    "$@"
    test $? -eq "$wanted"
}
head -c 32 /dev/zero >"$root/other.key"
check "another key is told from damage" refused 3 stranger verify --key "$root/other.key" "$golden"/ckpt/sealed/step-*
check "a plain snapshot is refused where a key is given" refused 4 stranger verify --key "$root/key" "$golden"/ckpt/raw/step-*
check "unless plain ones are accepted" stranger verify --plain --key "$root/key" "$golden"/ckpt/raw/step-*

# ---- a box; the parity set
box() { # rows 1 and 2, columns 3 to 7 of 24 columns of float32, are those of the whole
    whole=$1
    stranger read --key "$root/key" "$whole" wte >"$root/whole"
    stranger read --key "$root/key" "$whole" wte 1,3 2,5 >"$root/part"
    { tail -c +$((1 + 4 * 27)) "$root/whole" | head -c 20; tail -c +$((1 + 4 * 51)) "$root/whole" | head -c 20; } | cmp - "$root/part"
}
check "a box is cut from the whole" box "$golden"/ckpt/sealed/step-*
cp -r "$golden/ckpt/parity" "$root/parity"
set_of=$root/parity/step-5.2
rebuilt() { stranger rebuild "$set_of" "$1" >"$root/shard" && cmp "$root/shard" "$golden/ckpt/parity/step-5.2/rank-$1.keel"; }
rm "$set_of/rank-0.keel" "$set_of/rank-1.keel" "$set_of"/parity-7.[02].keel # members 0 and 2 have these ranks
check "rank 0 is rebuilt when two of four nodes are lost" rebuilt 0
check "rank 1 is rebuilt when two of four nodes are lost" rebuilt 1
rm "$set_of/rank-2.keel"
check "more than that is not" refused 4 stranger rebuild "$set_of" 0

# ---- a real run: small steps, so that most of what changes is a small difference
check "a job runs" timeout 60 "$keel" run "$here/../../runtime/jobs/demo.conf" --ranks 2 --out "$root/run" \
    --set data.path="$here/../../ckpt/README.md" --set model.layers=1 --set model.width=64 --set model.heads=2 \
    --set model.block=16 --set train.steps=60 --set train.lr=1e-6 --set train.min_lr=1e-6 \
    --set train.eval_every=0 --set snapshot.every=20 --set snapshot.codec=delta --set snapshot.keep=4
newest=$(find "$root/run/ckpt/demo" -name manifest.json -exec dirname {} \; | sort -V | tail -n 1)
shows_delta() { "$keel" ckpt show "$newest" | grep -q 'delta:'; }
check "and leaves deltas" shows_delta
check "a run's newest snapshot is read, with what it needs" same_bytes "$newest"

# ---- damage: 200 bytes, each in a random place of a random file
cat >"$root/flip.py" <<'END'
import os, random, shutil, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import stranger
scratch, seed = sys.argv[2], int.from_bytes(os.urandom(4), "little")
draw, key = random.Random(seed), stranger.read_key(os.path.join(scratch, "key"))
believed = []
for i in range(200):
    source = draw.choice(sys.argv[3:])
    run = os.path.basename(os.path.dirname(source))
    copy = os.path.join(scratch, "flip", run)
    shutil.copytree(os.path.dirname(source), copy)
    target = os.path.join(copy, os.path.basename(source))
    path = os.path.join(target, draw.choice(sorted(os.listdir(target))))
    with open(path, "r+b") as file:
        at = draw.randrange(os.path.getsize(path))
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ draw.randrange(1, 256)]))
    try:
        stranger.Snapshot(target, key if run == "sealed" else None).verify()
        believed.append(f"{path} at {at}")
    except stranger.Damaged:
        pass
    shutil.rmtree(copy)
print(f"seed {seed}: believed {believed}")
sys.exit(bool(believed))
END
check "200 flipped bytes are refused" "$python" "$root/flip.py" "$here" "$root" "$golden"/ckpt/*/step-* "$newest"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
