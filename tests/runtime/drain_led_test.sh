#!/bin/sh
# Nodes of a run that a node of another host leads leave it, and come back, at the gate of who leads: nothing of it lies in
# the common store, which may hang; who leads may be lost meanwhile; and what nobody who leads hears is said. mostly waits
set -u
here=$(dirname "$0")
. "$here/script.sh"
export KEEL_LOG=warn TMPDIR="$root"
ip link set lo up 2>/dev/null
${CC:-cc} -O1 -fPIC -shared -D_GNU_SOURCE -o "$root/bad_world.so" "$here/bad_world.c" || exit 1
out=$root/run agents=
trap 'kill -KILL $launcher $agents 2>/dev/null; rm -rf "$root"' EXIT
await() { # await FILE PATTERN: not for ever
    for _ in $(seq 1200); do grep -qs -e "$2" "$1" && return 0; sleep 0.1; done
    echo "FAIL no $2 in $1"
    return 1
}
count_led() { cat "$out"/ckpt/.leader/*/"$1" 2>/dev/null | grep -c -e "$2"; } # of those who led elsewhere
await_led() {
    for _ in $(seq 1200); do [ "$(count_led "$1" "$2")" -ge "${3:-1}" ] && return 0; sleep 0.1; done
    echo "FAIL no $2 of a node that leads"
    return 1
}
explain() { tail -n 3 "$out.log" "$out".agent*.log "$root/said"; }
leads() { sed 's/^[^ ]* [^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader"; } # its process
join() { # join N: the agent of a node
    env LD_PRELOAD="$root/bad_world.so" BAD_DISK="$out/ckpt" "$KEEL" agent --join "$place" --key-file "$out/job.key" --node "$1" \
        --address "127.0.0.$1" >>"$out.agent$1.log" 2>&1 &
    eval "agent$1=$!"
    agents="$agents $!"
}

"$KEEL" run "$here/../demo/drill.conf" --set job.seed=1 --set train.decay_steps=1000 --set data.path="$text" --set cluster.device=host \
    --ranks 3 --spares 2 --set cluster.launch=none --set cluster.bind=127.0.0.1 --set cluster.holders=3 --set train.steps=100000 \
    --set cluster.timeout_s=2 --set snapshot.every=10 --drill slow:rank=0,step=1,ms=100,steps=100000 --out "$out" >"$out.log" 2>&1 &
launcher=$!
await "$out.log" 'agents dial in at'
place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$out.log")
for k in 1 2 3 4 5; do join $k; done
await "$out/metrics.jsonl" '"step":5,'
kill -KILL $launcher
wait $launcher
check "a node is drained as the launcher dies: by who leads next" says 0 'node 5 has left the run' "$KEEL" job drain "$out" 5 --wait 2m
wait $agent5
check "whose agent ends" [ $? -eq 0 ]
check "and whose lines say so" await_led events.jsonl '"event":"drained"'
touch "$out/hangs" # nothing in the store is written
check "another while the store hangs" says 0 'node 4 has left the run' env LD_PRELOAD="$root/bad_world.so" BAD_DISK="$out/ckpt" "$KEEL" job drain "$out" 4 --wait 2m
rm "$out/hangs"
check "one that was not drained is not added" says 2 'node 3 was not drained: there is nothing to bring back' "$KEEL" job add "$out" 3

# Who leads is lost. What it was asked is known by whoever is left.
loser=$(sed 's/^[^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader")
kill -KILL "$(leads)"
await_led events.jsonl '"event":"leader"' 2
place=$(sed 's/^[^ ]* //' "$out/gates")
join 4
sleep 4
check "who leads next does not let it in as it comes" '! grep -q "node 4: its agent came" "$out".agent[1235].log && kill -0 $agent4'
check "until it is to come back" says 0 'node 4 is wanted again' "$KEEL" job add "$out" 4
check "and it joins" await_led events.jsonl '"cause":"join"'
check "nothing of it was left in the store" [ ! -e "$out/ckpt/.leader/drained" ]
check "nor in the directory" [ ! -e "$out/drained" ]

# Nobody who leads is reached: by who has only old places.
mkdir "$root/old"
cp -p "$out/gates" "$out/job.conf" "$out/job.key" "$out/events.jsonl" "$root/old"
ln -s "$out/ckpt" "$root/old/ckpt"
sed -i 's/ .*/ 127.0.0.9:9/' "$root/old/gates"
check "who has old places finds who leads by the store" says 2 'was not drained' "$KEEL" job add "$root/old" "$loser"
rm "$root/old/ckpt"
: >"$root/old/run.lock"
exec 9<"$root/old/run.lock" # as if a run went on there
flock -x 9
check "who reaches nobody is told where, and what to do" says 1 \
    'nobody who leads the run was reached from here in 20 s (127.0.0.9:9: Connection refused); ask where these places are reached' \
    "$KEEL" job drain "$root/old" 4
exec 9<&-
check "the run is stopped" says 0 'stopped (INTERRUPTED)' "$KEEL" job stop "$out"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
