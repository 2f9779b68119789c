# hosts_lost.sh - part of hosts_test.sh, where network namespaces are allowed: hosts that hold the view are lost one after the
# other, for good, and others hold it in their place. Sourced.
leading_node() { sed 's/^[^ ]* \([0-9]*\) .*/\1/' "$out/ckpt/.leader/leader" 2>/dev/null; }
await_leader() { # await_leader OTHER: until a node leads that is not that one
    for _ in $(seq 1200); do
        node=$(leading_node)
        [ -n "$node" ] && [ "$node" != "$1" ] && return 0
        sleep 0.05
    done
    echo "FAIL no node leads but $1"
    return 1
}

# The launcher on h4 holds the view, with two of the three nodes. First it is lost, then the node that leads in its place: of
# those who held it at first one is left.
# shellcheck disable=SC2086
on="ip netns exec h4"
begin lost --ranks 3 --set cluster.launch=ssh --set "cluster.shell=sh $root/enter %h" --set cluster.hosts=h1,h2,h3 \
    --set cluster.bind=10.77.0.14 --set train.steps=300 $holders
on=
await_ranks 3 1
await "$out/metrics.jsonl" '"step":10,'
cut h4
check "the launcher's host is lost, and a node leads" await_leader 0
first=$node
check "with snapshots" await_led events.jsonl '"event":"snapshot"' 1
since=$(now)
cut "h$first"
check "its host is lost, and another leads" await_leader "$first"
took "another node leads after" "$since"
check "whose snapshots are committed" await_led events.jsonl '"event":"snapshot"' 2
check "by two ranks" await_led events.jsonl '"lost_ranks":1,"ranks":\[[012],[012]\]' 1
heal h4
finish
heal "h$first"
check "the launcher is back, follows, and ends with the run" [ $code -eq 0 ]
check "it has all lines" [ "$(committed)" -eq 300 ]
reference 300
check "with the bits of one rank" same_bits "$root/reference-300" "$out"

# The launcher is killed for good, then a node: who leads starts its agent on that host again, as the launcher would have; and
# one that was drained comes back.
# shellcheck disable=SC2086
begin again --ranks 3 --set cluster.launch=ssh --set "cluster.shell=sh $root/enter %h" --set cluster.hosts=h1,h2,h3 \
    --set cluster.bind=10.77.0.1 --set train.steps=100000 --set cluster.timeout_s=2 --set snapshot.every=50 \
    --drill slow:rank=0,step=1,ms=60,steps=100000
await_ranks 3 1
await "$out/metrics.jsonl" '"step":10,'
kill -KILL "$launcher"
finish
await_leader 0
lost=$((node % 3 + 1)) other=$(((node + 1) % 3 + 1))
kill -KILL "$(agent_of $lost)"
members 2
since=$(now)
members 3
check "who leads starts the agent of a lost node on its host again" grep -q "node $lost: its agent came from .*10.77.0.1$lost:" "$out.log"
took "its node is back after" "$since"
check "one rank was lost" [ "$(losses)" -eq 1 ]
check "a node is drained" says 0 "node $other has left the run" "$KEEL" job drain "$out" $other
members 2
check "and comes back" says 0 '' "$KEEL" job add "$out" $other
members 3
check "into the view" grep -q "node $other: its agent came from .*10.77.0.1$other:" "$out.log"
steps_go_on
check "and the run goes on" [ $? -eq 0 ]
check "it is stopped" says 0 'stopped' "$KEEL" job stop "$out"
