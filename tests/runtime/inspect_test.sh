#!/bin/sh
# What lets a run be looked into changes none of its bits: graphs after each pass, traces of the devices, and passes
# that are left out, each of every worker.
set -u
here=$(dirname "$0")
. "$here/script.sh"
host() { drill "$@" --set cluster.device=host --ranks 2; }
graph() { [ -s "$root/graphs/$1/$2" ]; }

host plain
check "a plain run" [ $? -eq 0 ]
host all --dump-graph "$root/graphs" --trace-device "$root/traces" --passes-off fuse,plan-memory --drill kill:rank=1,step=5
check "a run with all of it, and a loss" [ $? -eq 0 ]
check "has the bits of one without" same_bits "$root/plain" "$root/all"
for worker in 1.0 2.0; do
    check "worker $worker dumps its graph" graph $worker train-0-build.txt
    check "after each pass of training" graph $worker train-3-plan-memory.txt
    check "and of evaluation" graph $worker eval-3-plan-memory.txt
    check "worker $worker traces its device" grep -q '"ph":"X"' "$root/traces/$worker.json"
done
host fused --dump-graph "$root/fused" --passes-off ""
check "nothing is left out where nothing is named" same_bits "$root/plain" "$root/fused"
check "and the graph is another" '! cmp -s "$root/graphs/1.0/train-2-fuse.txt" "$root/fused/1.0/train-2-fuse.txt"'
printf x >"$root/file"
host none --dump-graph "$root/file"
code=$?
check "a place for graphs that is a file ends the run, and is named" [ $code -ne 0 ]
check "with its path" grep -q "$root/file" "$root/none.log"
host untraced --trace-device "$root/file"
check "a trace that cannot be written ends no run" [ $? -eq 0 ]
check "and is said" grep -q -- "--trace-device: .*$root/file" "$root/untraced.log"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
