#!/bin/sh
# MEGABYTES (1000) of text encoded in tokens of a BPE and trained on, beside 10 MB of it: the largest memory that any
# process of the run had, in both, and the time that encoding took. Memory is flat where the two are about the same.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-large-text
megabytes=${MEGABYTES:-1000}
rm -rf "$root"
mkdir -p "$root"
one() { # MEGABYTES: peak KB, seconds
    python3 - "$1" "$root" "$KEEL" <<'END'
import glob, json, os, resource, subprocess, sys, time
megabytes, root, keel = int(sys.argv[1]), sys.argv[2], sys.argv[3]
text = open("build/data/english.txt", "rb").read()
path = f"{root}/{megabytes}.txt"
with open(path, "wb") as f:
    left = megabytes * 1000000
    while left > 0:
        left -= f.write(text[:left])
run = [keel, "run", "runtime/jobs/bpe-demo.conf", "--ranks", "2", "--out", f"{root}/run-{megabytes}", "--set", f"data.path={path}",
       "--set", "data.vocab=bpe:tests/golden/bpe/tokenizer.json", "--set", "train.steps=20", "--set", "train.eval_every=10", "--set", "train.eval_batches=2",
       "--set", "snapshot.every=0", "--set", "cluster.device=host", "--set", "model.layers=1", "--set", "model.width=32", "--sample", "0"]
begun = time.monotonic()
prepared = subprocess.run(run + ["--prepare"], stdout=subprocess.DEVNULL)
encoded = time.monotonic() - begun
trained = subprocess.run(run, stdout=subprocess.DEVNULL)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
steps = sum(1 for _ in open(f"{root}/run-{megabytes}/metrics.jsonl"))
size = sum(os.path.getsize(f) for f in glob.glob(f"{root}/run-{megabytes}/tokens-*.bin"))
for figure, value, unit in (("peak memory of any process", peak, "KB"), ("encoding and checking", encoded, "s"), ("tokens on disk", size, "bytes"), ("steps trained", steps, "steps")):
    print(json.dumps({"room": "runtime", "figure": f"{megabytes} MB of text: {figure}", "value": value, "unit": unit, "peer": None,
                      "peer_value": None, "ratio": None, "goal": None, "met": None}))
os.remove(path)
sys.exit(prepared.returncode or trained.returncode or steps != 20)
END
}
one 10 && one "$megabytes"
code=$?
rm -rf "$root"
exit $code
