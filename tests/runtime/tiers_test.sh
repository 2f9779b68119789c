#!/bin/sh
# Snapshots in directories of nodes (snapshot.local), with copies on partners and in a store: what was killed and then
# damaged goes on with the same bits, from the nearest that is whole, and says from where; what is beyond the
# redundancy ends with code 4 and the next move. In full (make tiers): tier x damage x moment. mostly waits
set -u
here=$(dirname "$0")
. "$here/script.sh"
nodes=3

# run DIR STEPS WORDS...: so many on as many nodes, a snapshot every 8. What ends has taken all that it began.
run() {
    out=$root/$1 steps=$2
    shift 2
    timeout 300 "$KEEL" run "$here/../demo/drill.conf" --out "$out" --ranks $nodes --set "data.path=$text" \
        --set cluster.device=host --set "train.steps=$steps" --set train.decay_steps=24 --set snapshot.every=8 "$@" >"$root/log" 2>&1
    code=$?
}
explain() { tail -n 3 "$root/log" && grep -v '"event":"\(board\|memory\|view\|plans\|start\)"' "$out/events.jsonl" | tail -n 6; }
done_well() { [ "$code" -eq 0 ]; }
said() { grep -q "\"event\":\"$1\".*$2" "$out/events.jsonl"; }
plain=$root/plain
run plain 24
check "a run without any of it ends well" done_well

# words TIER: what the job asks for.
words() {
    tiers="--set snapshot.local=$root/nodes"
    case $1 in *partner*) tiers="$tiers --set snapshot.partner=yes" ;; esac
    case $1 in *erasure*) tiers="$tiers --set snapshot.erasure=2+1" ;; esac
    case $1 in *store*) tiers="$tiers --set snapshot.store=$root/store" ;; esac
}
# What is whole yet of a step: how many of the shards, on any node. A run brings copies to nodes where its ranks have others.
whole() { find "$root/nodes" -path "*/step-$1.*/rank-*.keel" ! -path "$spoilt" 2>/dev/null | sed 's|.*/||' | sort -u | wc -l; }
# damage WHAT: done to what the nodes have.
damage() {
    spoilt=nothing
    file=$(find "$root/nodes/node-2" -path "*/step-16.*/rank-*.keel" | sort | head -n 1)
    case $1 in
    nothing) ;;
    manifest) find "$root/nodes/node-2" -name manifest.json -delete ;;
    manifests) find "$root/nodes/node-1" "$root/nodes/node-2" -name manifest.json -delete ;;
    torn) for at in "$root"/nodes/node-1/*/*/manifest.json; do truncate -s 100 "$at"; done ;;
    flip) printf 'X' | dd "of=$file" bs=1 seek=5000 conv=notrunc 2>/dev/null && spoilt=$file ;;
    cut) truncate -s 8192 "$file" && spoilt=$file ;;
    file) rm "$file" ;;
    node) rm -r "$root/nodes/node-2" ;;
    first) rm -r "$root/nodes/node-1" ;;
    most) rm -r "$root/nodes/node-2" "$root/nodes/node-3" ;;
    nodes) rm -r "$root/nodes" ;;
    esac
}

# base TIER: 16 steps, with snapshots of 8 and 16, made once.
base() {
    rm -rf "$root/run" "$root/nodes" "$root/store"
    words "$1"
    if [ ! -d "$root/base-$1" ]; then
        # shellcheck disable=SC2086 # words
        run run 16 $tiers
        check "$1: 16 steps end well" done_well
        mkdir "$root/base-$1" "$root/store" 2>/dev/null
        mv "$root/run" "$root/nodes" "$root/store" "$root/base-$1"
    fi
    cp -r "$root/base-$1/." "$root"
}

# tier TIER DAMAGE MOMENT: a run that is killed at that drill, damaged, and started again.
tier() {
    base "$1"
    # shellcheck disable=SC2086 # words
    run run 24 $tiers --drill "kill:all,$3"
    check "$1, $2, $3: is killed" [ "$code" -eq 137 ]
    rm -rf "$root"/nodes/*/*/step-24.* # which may be whole, or not
    damage "$2"
    newest=$(whole 16) older=$(whole 8)
    # shellcheck disable=SC2086
    run run 24 $tiers
    # The newest that can be had, and from where.
    from="from the nodes'" step=16
    if [ "$newest" -eq $nodes ]; then
        :
    elif case $1,$2 in *erasure*,most | *erasure*,nodes) false ;; *erasure*) true ;; *) false ;; esac then
        from="with [1-9][0-9]* shards computed from parity"
    elif case $1 in *store*) true ;; *) false ;; esac then
        from="and [1-9][0-9]* from the store"
    elif [ "$older" -eq $nodes ]; then
        step=8
        check "$1, $2, $3: the newest is passed over, and why" said snapshot-passed-over "is on no node"
    else
        check "$1, $2, $3: what is lost is said, with the next move" [ "$code" -eq 4 ]
        check "$1, $2, $3: by name" grep -q "makes no whole one: bring back the nodes" "$root/log"
        return
    fi
    check "$1, $2, $3: goes on to the end" done_well
    check "$1, $2, $3: with the same bits" same_bits "$plain" "$out"
    check "$1, $2, $3: from step $step, and says from where" said resumed "\"step\":$step,.*$from"
}

if [ -n "${TIERS_FULL:-}" ]; then
    for kind in local local+partner local+erasure local+store local+partner+store; do
        for what in nothing manifest manifests torn flip cut file node first most nodes; do
            for when in step=19 step=20,at=reduce step=20,at=commit step=24,at=snapshot step=22,at=forward; do
                tier "$kind" "$what" "$when"
            done
        done
    done
else
    tier local nothing step=20
    tier local manifests step=24,at=snapshot
    tier local flip step=22
    tier local node step=20
    tier local+partner node step=20,at=reduce
    tier local+partner cut step=22
    tier local+partner most step=20
    tier local+erasure first step=20
    tier local+erasure flip step=24,at=snapshot
    tier local+partner+store nodes step=22,at=commit
fi

# The nodes committed while nobody wrote down their steps: all that is left is newer than the records.
base local
sed -i 5q "$root/run/metrics.jsonl"
rm -r "$root"/nodes/*/*/step-8.*
run run 24 --set "snapshot.local=$root/nodes"
check "records are behind all snapshots: the run goes on to the end" done_well
check "and says which steps have no line" said metrics-hole '"first":6,"last":16'
mkdir "$root/lines" && sed 6,16d "$plain/metrics.jsonl" >"$root/lines/metrics.jsonl"
check "the others with the same bits" same_bits "$root/lines" "$out"
base local
sed -i 5q "$root/run/metrics.jsonl"
rm -r "$root"/nodes/*/*/step-8.*
run run 16 --set "snapshot.local=$root/nodes"
check "so does a run that had come to its end" said metrics-hole '"first":6,"last":16'

# A node's disk is gone in the middle of the run: the others have the state, and it has files again at the end.
rm -rf "$root/nodes"
run wiped 24 --set "snapshot.local=$root/nodes" --set snapshot.partner=yes --drill wipe:node=2,step=18
check "a node that is wiped: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "what it had is gone" [ "$(find "$root/nodes/node-2" -path '*/step-8.*' 2>/dev/null | wc -l)" -eq 0 ]
check "the last snapshot is on the others at least" [ "$(find "$root/nodes" -path '*/step-24.*/manifest.json' | wc -l)" -ge 2 ]
check "with two copies of each shard" [ "$(find "$root/nodes" -path '*/step-24.*/rank-0.keel' | wc -l)" -eq 2 ]
run wiped 24 --set "snapshot.local=$root/nodes"
check "a run that is over changes nothing" done_well

# Stopped: all ranks end behind one step, and keep it.
rm -rf "$root/nodes"
"$KEEL" run "$here/../demo/drill.conf" --out "$root/stopped" --ranks $nodes --set "data.path=$text" --set cluster.device=host \
    --set train.steps=100000 --set train.decay_steps=24 --set snapshot.every=100000 --set "snapshot.local=$root/nodes" \
    --set "snapshot.store=$root/store" >"$root/log" 2>&1 &
launcher=$! out=$root/stopped
for _ in $(seq 600); do
    [ "$(cat "$out/metrics.jsonl" 2>/dev/null | wc -l)" -ge 10 ] && break
    sleep 0.1
done
kill -TERM $launcher
wait $launcher
code=$?
check "a run that is stopped says that it can go on" [ "$code" -eq 5 ]
last=$(sed -n '$s/.*"step":\([0-9]*\),.*/\1/p' "$out/metrics.jsonl")
check "and keeps the step where it was, $last" said snapshot "\"step\":$last,.*\"OK\""
check "in the store, too" said stored "\"step\":$last,.*\"OK\""
run stopped $((last + 4)) --set "snapshot.local=$root/nodes"
check "from which it goes on" done_well
check "without a step again" said resumed "\"step\":$last,"

# Wiped, and all killed before the next snapshot.
base local+partner
run run 24 --set "snapshot.local=$root/nodes" --set snapshot.partner=yes --drill wipe:node=3,step=20 --drill kill:all,step=21
run run 24 --set "snapshot.local=$root/nodes" --set snapshot.partner=yes
check "a node that is wiped, and then all killed: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "from the copy that its partner had" said resumed "with [12] shards from copies on other nodes"
check "and its report says so" grep -q "shards from copies on other nodes" "$out/report.html"
check "beside what it cost" grep -q "<td></td><td>the nodes' directories, with [12] shards from copies on other nodes and 0 from the store</td>" "$out/report.html"

# Both holders of a piece die, and the run goes on: back to what it committed itself. One may die of the other's loss, or
# before a snapshot is whole.
for _ in 1 2 3 4 5; do
    rm -rf "$root/nodes" "$root/lost"
    run lost 24 --set "snapshot.local=$root/nodes" --set cluster.nodes=1 --set parallel.zero=1 --drill kill:rank=1,step=20,at=reduce \
        --drill kill:rank=2,step=20,at=reduce
    sed '/"state-lost"/q' "$out/events.jsonl" >"$root/before"
    grep -q '"state-lost"' "$root/before" && grep -q '"event":"snapshot"' "$root/before" && break
done
check "both holders of a piece die: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "from the newest snapshot of this run" said state-lost "to the newest snapshot"

# Fewer ranks, and pieces that each owns: each node gets all of it.
rm -rf "$root/nodes" "$root/store"
run fewer 16 --set "snapshot.local=$root/nodes" --set "snapshot.store=$root/store" --set parallel.zero=1
cp -r "$root/nodes" "$root/all-nodes"
cp -r "$root/fewer" "$root/adopting"
nodes=2
rm -r "$root/nodes/node-3"
run fewer 24 --set "snapshot.local=$root/nodes" --set "snapshot.store=$root/store" --set parallel.zero=1
check "fewer ranks go on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "from a snapshot" said resumed "and [1-9][0-9]* from the store"

# The node that is no more had the only copy of its shard: a node of its host takes it over.
rm -rf "$root/nodes" "$root/store"
mv "$root/all-nodes" "$root/nodes"
run adopting 24 --set "snapshot.local=$root/nodes" --set parallel.zero=1
check "fewer nodes take over what the absent one left: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "from the newest" said resumed "\"step\":16,.*from the nodes' directories.* and 0 from the store"
check "whose file stays where it was" [ -f "$(find "$root/nodes/node-3" -path '*/step-16.*/rank-2.keel')" ]

# All workers are lost within one life, and a node's disk with them: who comes back knows that there was a snapshot.
# All die before a snapshot is whole where others keep the machine busy: then once more.
# lose_all DIR WORDS...
lose_all() {
    lost=$1
    shift
    for _ in 1 2 3 4 5; do
        rm -rf "${root:?}/$lost" "$root/nodes"
        run "$lost" 24 --set "snapshot.local=$root/nodes" --set snapshot.background=no --drill kill:rank=0,step=20 --drill kill:rank=1,step=20 --drill kill:rank=2,step=20 "$@"
        sed '/"lost_ranks":3/q' "$out/events.jsonl" | grep -q '"event":"snapshot"' && break
    done
}
# Files are made on that disk all the while: it goes at once, and with it all that was there.
nodes=3
(while sleep 0.001; do
    for at in "$root"/nodes/node-2/*/step-*; do
        for n in 0 1 2 3 4 5 6 7 8 9; do [ ! -d "$root/forgot" ] || echo >"$at/new-$n"; done
    done
done) 2>/dev/null &
writer=$!
lose_all forgot --drill wipe:node=2,step=18
kill "$writer" && wait "$writer" 2>/dev/null
check "the drill of a lost disk takes all that was on it" "! grep -q 'could not wipe' '$root/log'"
check "workers that are all started again do not begin at step 1 where there was a snapshot" [ "$code" -eq 4 ]
check "and say so" grep -q "committed a snapshot of step [0-9]*, and what the nodes here have" "$root/log"

# A run that was told to begin anew goes back to its own snapshots, as any other.
lose_all anew --resume none
check "--resume none, and all workers lost: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "from what it committed itself" said resumed "\"step\":\(8\|16\),"

# What lies in the directories is of a run whose own directory is gone: its names are those of the new one's snapshots.
run leftover 24 --set "snapshot.local=$root/nodes"
check "snapshots of another run in the nodes' directories are refused" [ "$code" -eq 2 ]
check "by name, with the next move" grep -q "has snapshots of a run .* of step 24, and this directory is of a new run: give that" "$root/log"

# A file of such a run under a name of this one's: sound, and of another snapshot.
rm -rf "$root/nodes"
run other 16 --set "snapshot.local=$root/nodes" --set job.seed=5
stale=$(find "$root/nodes/node-2" -path '*/step-16.*/rank-1.keel')
mv "$stale" "$root/stale.keel"
rm -rf "$root/nodes"
base local+partner
run run 24 --set "snapshot.local=$root/nodes" --set snapshot.partner=yes --drill kill:all,step=20
cp "$root/stale.keel" "$stale"
run run 24 --set "snapshot.local=$root/nodes" --set snapshot.partner=yes
check "a shard of another run: the run goes on to the end" done_well
check "with the same bits" same_bits "$plain" "$out"
check "it is told" said shard-damaged "is not the file that its summary describes"
check "and the partner's copy taken" said resumed "\"step\":16,.*with 1 shards from copies on other nodes"

# What a node's directory has of a run is not all, and who evaluates it is told what would be.
"$KEEL" eval "$root/nodes/node-1" --job "$out/job.conf" >"$root/log" 2>&1
code=$?
check "keel eval of one node's directory is refused" [ "$code" -eq 4 ]
check "with what it lacks" grep -q "has 2 of the 3 shards of step 24: other nodes keep the rest" "$root/log"
mkdir -p "$root/whole/$(ls "$root/nodes/node-1")"
"$KEEL" ckpt repair "$root/whole" --step 24 --from "$root/nodes/node-1" --from "$root/nodes/node-2" \
    --from "$root/nodes/node-3" >"$root/log" 2>&1
code=$?
check "the nodes' directories together make it whole" [ "$code" -eq 0 ]
"$KEEL" eval "$root/whole" --job "$out/job.conf" --device host >"$root/log" 2>&1
code=$?
check "which is read" [ "$code" -eq 0 ]

# Slices, whose places all read what others wrote.
rm -rf "$root/nodes"
nodes=2
run tensor 16 --set "snapshot.local=$root/nodes" --set job.tensor=2 --set parallel.tensor=2
run tensor 24 --set "snapshot.local=$root/nodes" --set job.tensor=2 --set parallel.tensor=2
check "ranks that share slices go on to the end" done_well
check "from a snapshot" said resumed "from the nodes'"
keep=$out
run tensor1 24 --set job.tensor=2
check "with the same bits" same_bits "$keep" "$out"
nodes=3

# What cannot be had is said before anything starts.
# refused CLAIM TEXT WORDS...
refused() {
    claim=$1 wanted=$2
    shift 2
    run refused 24 "$@"
    check "$claim: ends with code $code" [ "$code" -ge 1 -a "$code" -le 3 ]
    check "$claim: says $wanted" grep -q "$wanted" "$root/log"
}
: >"$root/file"
refused "copies without directories" "snapshot.partner is a copy of what nodes have.*give snapshot.local" --set snapshot.partner=yes
refused "a store without directories" "snapshot.store is a copy" --set "snapshot.store=$root/store"
refused "an interval without a store" "of which store" --set "snapshot.local=$root/nodes" --set snapshot.store_every=8
refused "a directory that is a file" "snapshot.local = .*give a directory that can be written" --set "snapshot.local=$root/file"
refused "a store that is a file" "snapshot.store = .*give a directory that can be written" --set "snapshot.local=$root/nodes" --set "snapshot.store=$root/file"
refused "deltas" "snapshot.codec = delta does not go with snapshot.local" --set "snapshot.local=$root/nodes" --set snapshot.codec=delta
refused "a wipe of nothing" "give snapshot.local = DIR" --drill wipe:node=2,step=5
refused "a wiped rank" "wipe" --set "snapshot.local=$root/nodes" --drill wipe:rank=1,step=5
nodes=1
refused "a partner of one node" "one node has no other to keep its copies" --set "snapshot.local=$root/nodes" --set snapshot.partner=yes
nodes=3
refused "a set of more nodes than there are" "snapshot.erasure = 8+2 wants 10 nodes, and cluster.nodes are 3" --set "snapshot.local=$root/nodes" --set snapshot.erasure=8+2
refused "a set that is none" "K+M is wanted, such as 8+2" --set "snapshot.local=$root/nodes" --set snapshot.erasure=10
refused "relative directories on other hosts" "snapshot.local = nodes: on other hosts.*begins with /" --set snapshot.local=nodes --set cluster.launch=none

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
