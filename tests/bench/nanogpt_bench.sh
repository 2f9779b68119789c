#!/bin/sh
# nanoGPT's small character model (its README: 4 layers, 4 heads, width 128, block 64, 12 windows a step, 2,000 steps, no
# dropout), on the train.bin and val.bin of its data/shakespeare_char/prepare.py: runtime/jobs/nanogpt-char.conf as it is.
# It names 1.88 as the validation loss: that of 20 draws of 12 windows, whose standard deviation is 0.014 (a window's is 0.22).
# DATA is the folder of the two files; where only input.txt is there, they are made of it as prepare.py does. RANKS=1.
# SEEDS="1337 1 2 3" trains with each (about two minutes of processor time) and tells mean and standard deviation.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-nanogpt data=${DATA:-$BUILD/data/shakespeare_char}
if [ ! -f "$data/train.bin" ]; then
    [ -f "$data/input.txt" ] || { echo "nanogpt_bench: DATA=$data has no train.bin, val.bin or input.txt (nanoGPT's data/shakespeare_char)" >&2; exit 3; }
    python3 - "$data" <<'END' || exit 1
import array, sys
data = sys.argv[1]
text = open(data + "/input.txt").read()
number = {c: i for i, c in enumerate(sorted(set(text)))}
kept = int(len(text) * 0.9)
for name, part in (("train", text[:kept]), ("val", text[kept:])):
    ids = array.array("H", [number[c] for c in part])
    if sys.byteorder == "big": ids.byteswap()
    open(f"{data}/{name}.bin", "wb").write(ids.tobytes())
END
fi
seeds=${SEEDS:-1337}
: >"$root.losses"
for seed in $seeds; do
    rm -rf "$root"
    "$KEEL" run runtime/jobs/nanogpt-char.conf --ranks "${RANKS:-1}" --out "$root" --set "data.path=$data/train.bin" --set "data.val_path=$data/val.bin" \
        --set job.seed="$seed" --sample 0 >"$root.log" 2>&1 || { echo "nanogpt_bench: failed; see $root.log" >&2; exit 1; }
    "$KEEL" eval "$root" --all --json >"$root/eval.json" || exit 1
    echo "$(last_field "$root" val_loss) $(sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' "$root/eval.json")" >>"$root.losses"
done
awk -v draw=0.014 '
    function row(what, sum, squares,   mean, off) {
        mean = sum / NR
        off = mean > 1.88 ? mean - 1.88 : 1.88 - mean
        printf "{\"room\":\"runtime\",\"figure\":\"nanoGPT, characters of Shakespeare: validation loss %s\",\"value\":%.4f,\"unit\":\"nats\",\"peer\":\"nanoGPT\",\"peer_value\":1.88,\"ratio\":%.4f,\"goal\":1.89,\"met\":%s}\n", what, mean, mean / 1.88, off <= 0.01 ? "true" : "false"
        if (NR > 1)
            printf "{\"room\":\"runtime\",\"figure\":\"the same, standard deviation over %d seeds\",\"value\":%.4f,\"unit\":\"nats\",\"peer\":\"a draw of 20 x 12\",\"peer_value\":%g,\"ratio\":null,\"goal\":null,\"met\":null}\n", NR, sqrt((squares - NR * mean * mean) / (NR - 1)), draw
    }
    { some += $1; some2 += $1 * $1; all += $2; all2 += $2 * $2 }
    END { row("of 80 batches, at step 2000", some, some2); row("of the whole val.bin", all, all2) }' "$root.losses"
