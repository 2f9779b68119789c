#!/bin/sh
# native_bench.sh - what a step of GPT-2 124M takes with canonical kernels, over what it takes with native ones.
#
# Processes in turn, ROUNDS of each (3), medians. On a processor the only native variant is that of convolutions
# (kernels/README.md says what else was tried), so this one says that the promise of same bits costs nothing there.
set -u
bench=${BUILD:-build}/bench/step_bench
steps=$(mktemp) || exit 1
trap 'rm -f "$steps"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    for kind in canonical native; do
        "$bench" auto gpt2-124m 0 $kind | sed -n "s/.*gpt2-124m step\",\"value\":\([0-9.]*\).*/$kind \1/p" >>"$steps"
    done
done
python3 - "$steps" <<'END'
import json, statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
ms = {kind: statistics.median([float(v) for k, v in rows if k == kind]) for kind in ("canonical", "native")}
ratio = ms["native"] / ms["canonical"]
print(json.dumps({"room": "kernels", "figure": "gpt2-124m step, canonical", "value": ms["canonical"], "unit": "ms",
                  "peer": "native kernels", "peer_value": ms["native"], "ratio": round(ratio, 3), "goal": 0.95,
                  "met": ratio >= 0.95}))
END
