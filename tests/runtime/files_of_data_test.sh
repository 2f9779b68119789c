#!/bin/sh
# Data of one's own in files: images in folders, which are mirrored and moved, and logs of clicks, trained on through the
# loss of a rank with the same bits; what is wrong with a file is told by its name before the first step.
set -u
here=$(dirname "$0")
. "$here/script.sh"

python3 - "$root" <<'END' || exit 3
import os, random, struct, sys, zlib
root = sys.argv[1]
random.seed(1)
def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
def png(name, width, height, value):
    rows = b"".join(b"\0" + bytes((value + random.randrange(40)) % 256 for _ in range(3 * width)) for _ in range(height))
    with open(name, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                  chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
for number, name in enumerate(["ant", "bee", "cat"]):
    os.makedirs(f"{root}/images/{name}")
    for i in range(20):
        png(f"{root}/images/{name}/{i:02}.png", 12 + i % 3, 10 + i % 5, 20 + 60 * number)
with open(f"{root}/log", "w") as out:
    for _ in range(400):
        c = random.randrange(50)
        out.write(f"{int(random.random() < c / 50)}\t{random.randrange(90)}\t\t{c:x}\t{random.randrange(1 << 32):08x}\n")
END
data() { # DIR JOB ARGUMENTS...
    out=$1 job=$2
    shift 2
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/$job.conf" --out "$root/$out" --set train.steps=6 --set snapshot.every=3 \
        --set train.eval_every=3 --set train.eval_batches=2 --set cluster.device=host --set cluster.timeout_s=1 "$@" >"$root/log.$out" 2>&1
    set -- $?
    cp "$root/log.$out" "$root/log.txt"
    return "$1"
}
images() {
    out=$1
    shift
    data "$out" fashion --set data.format=folders --set data.path="$root/images" --set data.image_size=8 --set data.shift=1 \
        --set data.flip=true --set model.width=4 --set model.layers=1 --set train.batch=4 "$@"
}
clicks() {
    out=$1
    shift
    data "$out" dlrm-demo --set data.samples=262144 --set data.format=criteo --set data.path="$root/log" --set model.dense=2 --set model.tables=2 \
        --set model.categories=50 --set model.width=4 --set model.layers=1 --set train.batch=8 "$@"
}
explain() { tail -n 5 "$root/log.txt"; }
images one
check "folders of images are trained on" [ "$(steps "$root/one" | wc -l)" -eq 6 ]
images killed --ranks 3 --drill kill:rank=1,step=4
check "and have the same bits when a rank is lost" same_bits "$root/one" "$root/killed"
images seen --set data.crop=0.3 --set data.mixup=0.4 --set train.label_smoothing=0.1
check "parts of images are trained on, mixed with others" [ "$(steps "$root/seen" | wc -l)" -eq 6 ]
images seen-killed --set data.crop=0.3 --set data.mixup=0.4 --set train.label_smoothing=0.1 --set parallel.zero=1 --ranks 3 --drill kill:rank=2,step=4
check "with the same bits over owners, of whom one is lost" same_bits "$root/seen" "$root/seen-killed"
check "which are other bits" '! same_bits "$root/one" "$root/seen"'
images bad --set data.format=auto --set data.path="$here/../../build/data/fashion" --set data.image_size=224 --set data.crop=0.3
check "crops of images that are of one size already are refused" grep -q 'data.crop says nothing where data.format = auto' "$root/log.txt"
check "the accuracy of each class is told" [ "$("$KEEL" eval "$root/one" --per-class | grep -c 'class')" -eq 3 ]
clicks of-one
check "so are logs of clicks" [ "$(steps "$root/of-one" | wc -l)" -eq 6 ]
clicks of-killed --ranks 2 --drill kill:rank=1,step=4
check "with the same bits too" same_bits "$root/of-one" "$root/of-killed"
printf '1\t2\t3\tzz\t1\n' >>"$root/log"
clicks bad
check "a line that is none is refused" [ $? -eq 2 ]
check "by its number and field" grep -q '/log:401: field 4 is no category of up to 8 hexadecimal digits' "$root/log.txt"
head -c 40 "$root/images/bee/03.png" >"$root/cut" && mv "$root/cut" "$root/images/bee/03.png"
images cut --set data.val_fraction=0 --set train.batch=16
check "an image that was cut ends the run, by its name" grep -q 'images/bee/03.png: no PNG that can be read' "$root/log.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
