#!/bin/sh
# choose_bench.sh - what AUTO takes beside the fastest of all algorithms, and the exact order beside the native one.
#
# `keel net tune` runs them by turns, 2, 4 and 8 ranks over shared memory and TCP on loopback; medians. A line for
# every case where AUTO took over 15% longer than the fastest, or the exact order over 10% longer than the native
# one with its fastest algorithm (1 MiB and more), and two for each machine that sum up. The same schedule under two
# names (all-to-all by flat and by pairwise with two ranks) differs too: that is the noise.
set -u
keel=${BUILD:-build}/keel
KEEL_NET_DIR=$(mktemp -d) || exit 1
export KEEL_NET_DIR
trap 'rm -rf "$KEEL_NET_DIR"' EXIT
for ranks in 2 4 8; do
    for carrier in shared tcp; do
        "$keel" net tune --ranks $ranks --carrier $carrier --max 64M --rounds 9 --timeout 120 --json |
            python3 -c '
import json, sys
rows, machine = json.load(sys.stdin)["rows"], "%s ranks, %s" % tuple(sys.argv[1:])

def line(figure, value, unit, peer, peer_value, ratio, goal, met):
    print(json.dumps({"room": "transport", "figure": figure, "value": value, "unit": unit, "peer": peer,
                      "peer_value": peer_value, "ratio": ratio, "goal": goal, "met": met}))

def compare(figure, taken, fastest, goal):
    us, best = taken[1], fastest[1]
    if us > goal * best:
        line("%s: %s" % (figure, taken[0]), us, "us", fastest[0], best, round(best / us, 2), round(1 / goal, 2), False)
    return us <= goal * best

def sum_up(figure, near, goal):
    if near:
        line("%s, %s" % (figure, machine), sum(near), "cases", "all cases", len(near), round(sum(near) / len(near), 2),
             goal, sum(near) >= goal * len(near))

near, exact = [], {}
for row in rows:
    us = row["median_us"]
    figure = "AUTO %s, %s, %s, %d B" % (row["order"], row["operation"], machine, row["bytes"])
    taken, fastest = (row["auto"], us[row["auto"]]), (row["fastest"], us[row["fastest"]])
    near.append(compare(figure, taken, fastest, 1.15))
    exact[row["operation"], row["bytes"], row["order"]] = taken, fastest
orders = []
for (operation, size, order), (taken, fastest) in exact.items():
    if order == "native" and size >= 1 << 20:
        figure = "exact for native, %s, %s, %d B" % (operation, machine, size)
        orders.append(compare(figure, exact[operation, size, "exact"][0], fastest, 1.1))
sum_up("AUTO within 15% of the fastest", near, 1)
sum_up("exact within 10% of native", orders, 1)
' $ranks $carrier
    done
done
