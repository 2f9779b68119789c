#!/bin/sh
# A run whose validation gets no better ends in order at the same step, with the same bits, whoever was killed and
# however often it was begun; the snapshot of its best evaluation is kept.
set -u
here=$(dirname "$0")
. "$here/script.sh"

# Of evaluations at 2, 4, 6 none is better by 10 than the first: it ends at 6.
run() { # DIR ARGUMENTS...
    out=$1
    shift
    for setting in model.width=16 model.heads=2 model.layers=1 model.block=16 train.batch=2 train.steps=40 \
        train.decay_steps=40 train.eval_every=2 train.eval_batches=2 train.patience=2 train.min_delta=10 \
        snapshot.every=1 snapshot.keep=2 job.shards=4 cluster.device=host cluster.timeout_s=1; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/demo.conf" --out "$root/$out" "$@" >"$root/log" 2>&1
}
stops() { grep -c '"event":"early-stop"' "$root/$1/events.jsonl"; }
run one
check "a run that ends early ends well" [ $? -eq 0 ]
check "where so many evaluations were no better" [ "$(steps "$root/one" | wc -l)" -eq 6 ]
check "which is an event" grep -q '"event":"early-stop".*"step":6.*"best_step":2' "$root/one/events.jsonl"
check "and a line of the report" grep -q 'early-stop' "$root/one/report.html"
"$KEEL" job status "$root/one" >"$root/said"
check "and who asks later is told why it ended" grep -q 'one: done: validation was not below .*(train.patience)' "$root/said"
check "it says what was best" grep -q 'ended early, at step 6: validation was best at step 2' "$root/log"
newest() { "$KEEL" ckpt ls "$root/$1" --json | grep -o '"step": *[0-9]*' | head -n 1 | tr -dc '0-9'; }
check "its newest snapshot is that of its end" [ "$(newest one)" -eq 6 ]
best=$("$KEEL" eval "$root/one" --step 2 --json | sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p')
check "that of its best evaluation is kept" [ -n "$best" ]
told=$(sed -n 's/^{"step":2,.*"val_loss":\([0-9.]*\).*/\1/p' "$root/one/metrics.jsonl")
check "and is worth what it was" awk "BEGIN { d = $best - $told; exit !(d < 1e-5 && d > -1e-5) }"
run one
check "the same command finds it ended" grep -q 'ended early, at step 6' "$root/log"
check "and says what would go on" grep -q 'done before: 6 steps.*raise train.patience$' "$root/log"
check "and trains no step" [ "$(steps "$root/one" | wc -l) $(stops one)" = "6 1" ]
# A rank is lost on the way, then all of them and the launcher as the end is decided.
run killed --ranks 3 --drill kill:rank=1,step=3 --drill kill:all,step=6
run killed --ranks 2
check "who was killed finds the same end" [ $? -eq 0 ]
check "with the same bits" same_bits "$root/one" "$root/killed"
check "at the same step" [ "$(newest killed) $(stops killed)" = "6 1" ]
run one --set train.patience=3
check "more patience goes on" [ "$(steps "$root/one" | wc -l)" -eq 8 ]
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
