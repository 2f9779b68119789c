#!/bin/sh
# keel serve under load: 10,000 requests (REQUESTS), one in ten of them broken, oversized, impatient, streamed, slow,
# half-closed or stalled, by 12 clients at once; a small model, so that what is measured is the server. Median and 99th percentile from asking to
# the whole text, and what its memory grew by behind the first tenth.
set -u
. "$(dirname "$0")/../demo/lib.sh"
BUILD=${BUILD:-build}
root=$BUILD/bench-serve
requests=${REQUESTS:-10000}
rm -rf "$root"
mkdir -p "$root"
"$KEEL" run runtime/jobs/demo.conf --ranks 1 --out "$root/run" --set model.layers=2 --set model.width=64 --set model.block=2048 --set train.batch=1 --set train.steps=1 \
    --set train.eval_every=0 --set snapshot.every=1 --set job.shards=1 --sample 0 >"$root/log" 2>&1 || { echo "serve_bench: failed; see $root/log" >&2; exit 1; }
"$KEEL" sample "$root/run" --prompt "In the " --tokens 16 --json 2>/dev/null |
    python3 -c 'import json, sys; print(json.dumps({"prompt": "In the ", "max_tokens": 16, "text": json.load(sys.stdin)["text"]}))' >"$root/expected"
: >"$root/errors"
"$KEEL" serve "$root/run" --port 0 --slots 8 --max-body 8K --client-timeout 2s >"$root/log" 2>"$root/errors" &
server=$!
until port=$(sed -n 's/.* at http:[^ ]*:\([0-9]*\), .*/\1/p' "$root/errors") && [ -n "$port" ]; do kill -0 $server || exit 1; sleep 0.1; done
python3 tests/runtime/serve_client.py "$port" $server "$root/expected" $((requests / 10)) 10 figures >"$root/figures"
code=$?
kill -TERM $server
wait $server
grep WRONG "$root/figures" >&2
for figure in p50_s p99_s rss_anon_kb grown_kb; do
    printf '{"room":"runtime","figure":"keel serve, %s requests, 12 clients: %s","value":%s,"unit":"%s","peer":null,"peer_value":null,"ratio":null,"goal":null,"met":null}\n' \
        "$requests" "$figure" "$(sed -n "s/.*\"$figure\": \([0-9.e-]*\).*/\1/p" "$root/figures")" "$(case $figure in *_s) echo s ;; *) echo KB ;; esac)"
done
exit $code
