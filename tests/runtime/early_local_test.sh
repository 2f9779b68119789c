#!/bin/sh
# As early_stop_test.sh, where nodes have directories of their own (snapshot.local) and commit by themselves: the ranks end
# behind the step that the rule names, and nothing that lies behind it is committed, whoever was killed and whatever was
# wiped; the snapshot of the best evaluation is kept by all nodes.
set -u
here=$(dirname "$0")
. "$here/script.sh"

# Of evaluations at 2, 4, 6 none is better by 10 than the first: it ends at 6.
run() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    for setting in model.width=16 model.heads=2 model.layers=1 model.block=16 train.batch=2 train.steps=40 \
        train.decay_steps=40 train.eval_every=2 train.eval_batches=2 train.patience=2 train.min_delta=10 \
        snapshot.every=1 snapshot.keep=2 snapshot.partner=yes snapshot.local="$out-nodes" job.shards=4 cluster.device=host \
        cluster.timeout_s=1 data.path="$text"; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/demo.conf" --ranks 3 --out "$out" "$@" >"$root/log" 2>&1
}
stops() { grep -c '"event":"early-stop"' "$root/$1/events.jsonl"; }
# of a node: steps of the snapshots that are committed there, the newest first
committed() { "$KEEL" ckpt ls "$root/$1-nodes/node-$2" --json | grep -o '"step": *[0-9]*' | tr -dc '0-9\n' | sort -rnu | tr '\n' ' '; }
# of all nodes: who is lost as the run ends has no part in its last snapshot
newest() { for at in "$root/$1-nodes"/node-*; do committed "$1" "${at##*-}" | tr ' ' '\n'; done | sort -rn | head -n 1; }
run one
check "a run that ends early ends well" [ $? -eq 0 ]
check "where so many evaluations were no better" [ "$(steps "$root/one" | wc -l)" -eq 6 ]
check "which is an event" grep -q '"event":"early-stop".*"step":6.*"best_step":2' "$root/one/events.jsonl"
check "it says what was best" grep -q 'ended early, at step 6: validation was best at step 2' "$root/log"
for node in 1 2 3; do
    kept=" $(committed one $node)"
    check "node $node has nothing behind the end, and the best ($kept)" '[ "${kept# 6 }" != "$kept" ] && [ "${kept% 2 *}" != "$kept" ]'
done
run one
check "the same command finds it ended" grep -q 'ended early, at step 6' "$root/log"
check "and trains no step" [ "$(steps "$root/one" | wc -l) $(stops one)" = "6 1" ]

# A rank is lost on the way, then all of them and the launcher as the end is decided; and a node's directory with them.
run killed --drill kill:rank=1,step=3 --drill kill:all,step=6
check "all are killed" [ $? -ne 0 ]
rm -r "$root/killed-nodes/node-2"
run killed
check "who was killed, and lost a directory, finds the same end" [ $? -eq 0 ]
check "with the same bits" same_bits "$root/one" "$root/killed"
check "once" [ "$(stops killed)" -eq 1 ]
check "and nothing behind it ($(newest killed))" [ "$(newest killed)" -eq 6 ]
# All workers die together on the way, and the launcher with them behind the last evaluation before the end.
run again --drill kill:all,step=5
run again
check "what was evaluated before is known from the snapshot" [ "$(steps "$root/again" | wc -l) $(stops again)" = "6 1" ]
check "with the same bits" same_bits "$root/one" "$root/again"

# Owners and slices: a rank is lost as they evaluate, behind their update and before the end is committed.
for cut in "parallel.zero=1 --set parallel.holders=2" "parallel.tensor=2 --set job.tensor=2 --ranks 4"; do
    # shellcheck disable=SC2086
    run cut --set $cut --drill kill:rank=1,step=4,at=commit --drill kill:rank=2,step=6,at=commit
    check "with $cut, and two ranks lost" '[ $? -eq 0 ] && [ "$(stops cut)" -eq 1 ]'
    case $cut in *zero*) check "with the same bits" same_bits "$root/one" "$root/cut" ;; esac
    check "and nothing behind it ($(newest cut))" [ "$(newest cut)" -eq 6 ]
    rm -r "$root/cut" "$root/cut-nodes"
done

# More patience goes on from the end, where a partner has what a node lost.
rm -r "$root/one-nodes/node-3"
run one --set train.patience=3
check "more patience goes on" [ "$(steps "$root/one" | wc -l)" -eq 8 ]
check "from a partner's copy" grep -q '"event":"resumed".*"step":6,.*from copies on other nodes' "$root/one/events.jsonl"
check "and ends so ($(newest one))" [ "$(newest one)" -eq 8 ]
run three --set train.patience=3
check "as one that had it from the start" same_bits "$root/three" "$root/one"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
