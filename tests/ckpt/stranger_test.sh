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

# Every type that a snapshot holds, and names of every kind that the format of the file allows and ours does.
"$python" - "$root/all_types.safetensors" <<'END'
import json, struct, sys
types = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
         "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "C64": 8, "F64": 8, "I64": 8, "U64": 8}
names = {"with space": "F32", "gr\u00fc\u00dfe \U0001f6a2": "U16", 'quote " and \\\\': "BOOL", "/../x": "C64"}
header, data = {}, b""
for name, dtype in sorted([*((t.lower(), t) for t in types), *names.items()], key=lambda n: -types[n[1]]):
    bytes_ = b"\x01\x00" * (300 * types[dtype])
    header[name] = {"dtype": dtype, "shape": [3, 200], "data_offsets": [len(data), len(data) + len(bytes_)]}
    data += bytes_
text = json.dumps(header).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + data)
END
import_all() {
    "$keel" ckpt import "$root/all_types.safetensors" "$root/types" --run all "$@" &&
        same_bytes "$root"/types/all/step-0.* && stranger safetensors "$root/all_types.safetensors" >"$root/given" &&
        diff "$root/given" "$root/ours" && [ "$(wc -l <"$root/ours")" -eq 23 ]
}
check "every type and kind of name is imported, read by the stranger, and exported as it was" import_all

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

# ---- a real run: small steps, so that most of what changes is a small difference. A save whose predecessor is not
# committed yet has none: where others keep the machine busy, more steps lie between two saves.
trained() { # trained EVERY
    rm -rf "$root/run"
    timeout 600 "$keel" run "$here/../../runtime/jobs/demo.conf" --ranks 2 --out "$root/run" \
        --set data.path="$here/../../ckpt/README.md" --set model.layers=1 --set model.width=64 --set model.heads=2 \
        --set model.block=16 --set train.steps=$(($1 * 8)) --set train.lr=1e-6 --set train.min_lr=1e-6 \
        --set train.eval_every=0 --set snapshot.every="$1" --set snapshot.codec=delta --set snapshot.keep=4 --set snapshot.background=no
}
newest_delta() {
    find "$root/run/ckpt/demo" -name manifest.json -exec dirname {} \; | sort -rV | while read -r directory; do
        "$keel" ckpt show "$directory" >"$root/shown"
        if grep -q 'delta:' "$root/shown"; then echo "$directory" && break; fi
    done
}
for every in 20 80 320 1280; do
    trained $every >"$root/trained" 2>&1
    code=$? newest=$(newest_delta)
    [ "$code" -ne 0 ] || [ -n "$newest" ] || continue
    break
done
check "a job runs" [ "$code" -eq 0 ]
check "and leaves deltas" test -n "$newest"
check "its newest snapshot with deltas is read, with what it needs" same_bytes "$newest"

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

# ---- forbidden: what no damage leaves, as every check is right, and the page forbids all the same
cat >"$root/forbidden.py" <<'END'
import json, os, shutil, struct, subprocess, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import stranger
keel, scratch, source = sys.argv[2:5]

def rewrite(target, shard=None, told=None, escaped=True):
    """Change a shard's header, middle, index and footer, and what the manifest tells, under right checks."""
    path, manifest = os.path.join(target, "rank-0.keel"), os.path.join(target, "manifest.json")
    data, text = open(path, "rb").read(), json.load(open(manifest))
    at, = struct.unpack_from("<Q", data, len(data) - 112)
    parts = {"begin": bytearray(data[:at]), "index": bytearray(data[at:-128]), "foot": bytearray(data[-128:])}
    size, = struct.unpack_from("<Q", parts["foot"], 24)
    if shard:
        shard(parts)
    foot, index = parts["foot"], bytes(parts["index"][:size])
    foot[64:80] = stranger.xxh128(index)
    struct.pack_into("<Q", foot, 56, sum(map(len, parts.values())))
    struct.pack_into("<Q", foot, 16, len(parts["begin"]))
    struct.pack_into("<Q", foot, 120, stranger.xxh64(bytes(foot[:120])))
    open(path, "wb").write(b"".join(parts.values()))
    text["shards"][0].update(index_digest=foot[64:80].hex(), file_bytes=struct.unpack_from("<Q", foot, 56)[0])
    del text["check"]
    if told:
        told(text)
    body = json.dumps(text, indent=1, ensure_ascii=escaped)[:-2].encode() + b',\n "check": "'
    open(manifest, "wb").write(body + stranger.xxh128(body).hex().encode() + b'"\n}\n')

def poke(part, at, form, value):
    return lambda parts: struct.pack_into(form, parts[part], at, value)

def same_check(parts):
    records, = struct.unpack_from("<I", parts["foot"], 32)
    at = 384 * records
    while struct.unpack_from("<I", parts["index"], at + 16)[0] != stranger.SAME:
        at += 64
    parts["index"][at + 32] ^= 1

cases = {
    "nothing": {},
    "a mac without a seal": {"shard": poke("foot", 90, "B", 1)},
    "another check of nothing": {"shard": same_check},
    "one NaN that is none": {"shard": poke("index", 360, "<Q", 1)},
    "a block before the index": {"shard": lambda parts: parts["begin"].extend(bytes(4096))},
    "a member of a shard": {"told": lambda text: text["shards"][0].update(more=1)},
    "no metadata": {"told": lambda text: text.pop("metadata")},
    "letters that are not ASCII": {"escaped": False},  # this one's metadata has some
}
wrong = []
for name, change in cases.items():
    run = os.path.join(scratch, "forbidden", os.path.basename(os.path.dirname(source)))
    shutil.copytree(os.path.dirname(source), run)
    target = os.path.join(run, os.path.basename(source))
    rewrite(target, **change)
    readers = [keel, "ckpt", "verify", target], [sys.executable, sys.argv[1] + "/stranger.py", "verify", target]
    codes = [subprocess.run(words, capture_output=True).returncode for words in readers]
    if codes != ([4, 4] if change else [0, 0]):
        wrong.append((name, codes))
    shutil.rmtree(run)
print(f"wrong {wrong}")
sys.exit(bool(wrong))
END
check "what the page forbids both readers refuse" "$python" "$root/forbidden.py" "$here" "$keel" "$root" "$golden"/ckpt/same/step-*
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
