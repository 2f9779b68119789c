#!/bin/sh
# keel sim tells what failures cost: its seconds add up, a seed is one answer, and bad input gets one message that names
# the line and the next move. The model itself: goodput_test.c, failures_test.c.
set -u
here=$(dirname "$0")
. "$here/script.sh"
job=$here/../demo/drill.conf
sim() { "$KEEL" sim "$job" --set "data.path=$text" "$@" >"$root/log" 2>&1; code=$?; }
has() { grep -qF -- "$1" "$root/log"; }
# says CODE WORDS ARGUMENTS...: what is refused, and how
says() {
    want=$1 words=$2
    shift 2
    sim "$@"
    check "refused: $*" '[ $code -eq $want ] && has "$words" && [ "$(wc -l <"$root/log")" -eq 1 ]'
}

sim --nodes 64 --spares 2 --seeds 20 --json
cp "$root/log" "$root/one"
check "a small cluster as JSON" '[ $code -eq 0 ]'
check "its seconds add up" python3 - "$root/log" <<'END'
import json, sys
found = json.load(open(sys.argv[1]))
run = found["median_run"]
assert sum(run["ns"].values()) == found["wall_ns"] == 30 * 86400 * 10**9
assert run["ns"]["work"] == run["steps"] * found["step_ns"] and found["violations"] == 0
assert abs(sum(found["lost_seconds"].values()) - 30 * 86400 * (1 - found["goodput_mean"])) < 1e-3
q = found["goodput_quantiles"]
assert q["least"] <= q["p5"] <= q["p25"] <= q["median"] <= q["p75"] <= q["p95"] <= q["most"] < 1
assert found["goodput"] == q["median"] and 0 < found["failures"] < 30
assert found["intervals"]["nodes"] == [] and len(found["intervals"]["store"]) > 5
for choices in [found["spare_choices"], found["tier_choices"], found["intervals"]["store"]]:
    assert sum(c["best"] for c in choices) == 1
more = [c["goodput"] for c in found["spare_choices"]]
assert more == sorted(more), "a spare more does no harm"
END
sim --nodes 64 --spares 2 --seeds 20 --json
check "again the same bytes" cmp -s "$root/log" "$root/one"
sim --nodes 64 --spares 2 --seeds 20 --seed 2 --json
check "other seeds are other runs" '! cmp -s "$root/log" "$root/one"'

sim --nodes 8 --days 3650 --seeds 100 --quick --json
check "the mean of a thousand years lies among them" \
    python3 -c 'import json, sys; f = json.load(open(sys.argv[1])); q = f["goodput_quantiles"]; assert q["least"] <= f["goodput_mean"] <= q["most"]' "$root/log"

sim --nodes 64 --tiers local,erasure --seeds 1 --json --cost run.state_bytes=100000000000 --cost snapshot.erasure_bytes_s=2e6
check "a tier that cannot be so frequent hides no interval of another" \
    python3 -c 'import json, sys; n = json.load(open(sys.argv[1]))["intervals"]["nodes"]; assert [c["value"] for c in n[:6]] == [30, 60, 120, 300, 600, 1200], n' "$root/log"

# The published rate, twice the nodes of Llama 3's run: what the operator of 4,096 nodes of 8 reads.
sim --nodes 4096 --boards 8 --days 54 --failures llama3 --spares 16 --tiers local,partner,erasure,store --quick \
    --cost run.state_bytes=2100000000000 --set parallel.zero=1 --svg "$root/lost.svg" --write-failures "$root/trace"
check "4,096 nodes, 54 days, 100 seeds" '[ $code -eq 0 ] && has "goodput of seeds 1 to 100: median 99." && has "failures 838."'
check "each cause has a bar" '[ "$(grep -c "^  [a-z_]* .* s .*%.*#" "$root/log")" -ge 7 ]'
check "the picture is XML with a column of each seed" \
    python3 -c 'import sys, xml.etree.ElementTree as e; assert len(list(e.parse(sys.argv[1]).getroot())) > 300' "$root/lost.svg"
sim --nodes 4096 --boards 8 --days 54 --failures "$root/trace" --spares 16 --tiers local,partner,erasure,store --quick --json \
    --cost run.state_bytes=2100000000000 --set parallel.zero=1
cp "$root/log" "$root/read"
sim --nodes 4096 --boards 8 --days 54 --failures llama3 --spares 16 --tiers local,partner,erasure,store --quick --json \
    --cost run.state_bytes=2100000000000 --set parallel.zero=1 --seeds 1
check "failures that were written are those of the seed" \
    '[ "$(sed "s/.*median_run\"://" "$root/log")" = "$(sed "s/.*median_run\"://" "$root/read")" ]'

sim --nodes 8 --failures 0 --quick --write-failures "$root/f"
sim --nodes 8 --failures "$root/f" --quick
check "nor is it a failure that there was none" '[ $code -eq 0 ] && has "failures 0.0,"'

printf '1h 3 process 10m\n2h 3 gpu 10m\n' >"$root/f"
says 2 "f:2: unknown kind \`gpu\`; kinds are process, hang, node, stop, slow, corrupt, run" --nodes 8 --failures "$root/f"
printf '2h 3 process 10m\n1h 3 node 10m\n' >"$root/f"
says 2 "f:2: time \`1h\`; it is before that of the line above: sort by time" --nodes 8 --failures "$root/f"
printf '2h 8 process 10m\n' >"$root/f"
says 2 "f:1: node 8 is beyond the 8 nodes of the run, which count from 0; give --nodes" --nodes 8 --failures "$root/f"
printf 'rate -2 node 10m\n' >"$root/f"
says 2 "f:1: rate \`-2\`; a number of 0 to 1e+09 is wanted" --nodes 8 --failures "$root/f"
says 2 "--failures -2: a rate of 0 to 1e9 per 1,000 node-days is wanted" --failures=-2
says 3 "--failures none: neither a file nor llama3, lanl or gray" --failures none
says 2 "--tiers partner,tape: \`tape\` is none; local, partner, erasure, store, or none, are" --tiers partner,tape
says 2 "--tiers : names no tier" --tiers ""
says 2 "tier partner: one node has no other to keep its copies" --nodes 1 --tiers local,partner
says 2 "tier erasure: a set of 8+2 has 10 nodes, and the run 4" --nodes 4 --tiers local,erasure
: >"$root/f"
says 2 "f: names no failure and no rate; give --failures 0" --nodes 8 --failures "$root/f"
says 3 "no/lost.svg" --nodes 8 --svg "$root/no/lost.svg"
says 2 "--days 0: days are wanted, up to 3650, or a time with its unit, as 36h" --days 0
says 2 "--fewest 9: the run has 8 nodes" --nodes 8 --fewest 9
says 2 "--spares x: a whole number from 0 to 1048576 is wanted" --spares x
says 2 "--cost: unknown key recover.heal; the nearest known key is recover.heal_s" --cost recover.heal=1
says 3 "no such costs" --costs "$root/no such costs"
"$KEEL" sim >"$root/log" 2>&1
code=$?
check "no job" '[ $code -eq 2 ] && has "JOB.conf"'
"$KEEL" sim "$root/no.conf" >"$root/log" 2>&1
code=$?
check "a job that is not there" '[ $code -eq 3 ] && has "no.conf"'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
