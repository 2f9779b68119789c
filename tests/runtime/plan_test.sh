#!/bin/sh
# keel plan says what a run will do, without a device: what it prints adds up, follows the job, and bad input gets one
# message that names the next move.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
job=$here/../demo/drill.conf
plan() { "$KEEL" plan "$job" --set "data.path=$text" "$@" >"$root/log" 2>&1; code=$?; }
has() { grep -qF -- "$1" "$root/log"; }
value() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$root/log"; }

plan --ranks 1
check "a plan of one rank" '[ $code -eq 0 ]'
check "it has no collectives" has "none: one rank carries all shards"
plan --ranks 2 --dump
check "a plan of two ranks" '[ $code -eq 0 ]'
check "both compare their records" '[ "$(grep -c "collective compare" "$root/log")" -eq 2 ]'
check "each begins as many sums as it waits for, but for the records" \
    '[ $(($(grep -c "collective reduce" "$root/log") + 2)) -eq "$(grep -c "wait       await" "$root/log")" ]'
check "each updates once" '[ "$(grep -c "launch     update" "$root/log")" -eq 2 ]'
plan --ranks 2 --json
check "--json" '[ $code -eq 0 ]'
weights=$(value weights)
check "the gradients are as large as the weights" '[ "$(value gradients)" -eq "$weights" ]'
check "the buckets are the gradients" \
    '[ "$(sed "s/.*\"bucket_bytes\":\[\([0-9,]*\)\].*/\1/; y/,/+/" "$root/log" | sed "s/.*/echo \$((&))/" | sh)" -eq "$weights" ]'
check "the second use of a tied table has an accumulator as large as the table" \
    '[ "$(value accumulators)" -gt 0 ] && [ "$(value accumulators)" -lt "$weights" ]'
plan --json --set model.tied=false
check "an untied one has none" '[ "$(value accumulators)" -eq 0 ]'
plan --ranks 2 --json --set train.optimizer=sgd
check "SGD keeps half as much" '[ "$(value optimizer)" -eq "$weights" ]'
plan --json --set model.width=64
check "a wider model is larger" '[ "$(value weights)" -gt "$weights" ]'


# Positions of images, [batch, patches, width], are split by rows of two dimensions, of which one is 1 with one sample a microbatch.
"$KEEL" plan "$here/../../runtime/jobs/vit-demo.conf" --ranks 2 --set train.batch=1 \
    --set job.tensor=2 --set parallel.tensor=2 >"$root/log" 2>&1
code=$?
check "one image a microbatch, cut into slices" '[ $code -eq 0 ]'

# What a run says agrees with the plan.
plan --ranks 2 --json --dump
sums=$(grep -o '"action":"reduce"' "$root/log" | wc -l)
check "a dump as JSON" '[ "$sums" -gt 2 ]'

# A signal that comes while a slow reader takes the object: 64 KiB are in the pipe, and the rest waits.
mkfifo "$root/pipe"
"$KEEL" plan "$job" --set "data.path=$text" --json --dump --ranks 120 --set job.shards=240 >"$root/pipe" 2>"$root/err" &
pid=$!
exec 9<"$root/pipe"
dd bs=1 count=1 <&9 >"$root/log" 2>/dev/null # it has begun to say it
kill -TERM $pid
cat <&9 >>"$root/log"
exec 9<&-
wait $pid
check "an object that a signal interrupts is whole all the same" python3 -c "
import json, sys
print(len(json.load(open(sys.argv[1]))['ranks']))" "$root/log"
check "and larger than a pipe" '[ "$(wc -c <"$root/log")" -gt 100000 ]'

plan --ranks 2 --set train.gradients=int8 --dump
check "sums of 8 bits: what an element is, and what each rank does" \
    '[ $code -eq 0 ] && has "gradients int8, as i8-block" && [ "$(grep -c "copy       encode" "$root/log")" -eq 4 ] &&
     [ "$(grep -c "copy       decode   from host" "$root/log")" -eq 2 ]'
plan --ranks 2 --set train.gradients=topk:0.01 --json
bytes=$(sed 's/.*"kind":"all-reduce","element":"top-k","count":[0-9]*,"bytes":\([0-9]*\).*/\1/' "$root/log")
check "a hundredth of the numbers is a tenth of the bytes at most" '[ "$bytes" -gt 0 ] && [ $((bytes * 10)) -lt "$weights" ]'
plan --ranks 6 --dump
check "more ranks than shards: who has none gives nothing to the sums, and takes part in them" \
    '[ $code -eq 0 ] && has "2: shards; 15 actions, 0 parts of each sum" && [ "$(grep -c "launch     update" "$root/log")" -eq 6 ]'

# Plans.
plan --ranks 4 --json
check "as many positions as ranks, and nothing is divided, where all fits" \
    'grep -qF "\"plans\":[{\"ranks\":4,\"spares\":0,\"data\":4,\"tensor\":1,\"zero\":0,\"holders\":2," "$root/log"'
total=$(sed 's/.*"plans":\[{[^}]*}[^}]*"total_bytes":\([0-9]*\).*/\1/' "$root/log")
plan --ranks 4 --json --memory $((total - 1))
check "a byte less, and the optimizer's state is divided" \
    '[ $code -eq 0 ] && grep -qF "\"plans\":[{\"ranks\":4,\"spares\":0,\"data\":4,\"tensor\":1,\"zero\":1," "$root/log"'
plan --ranks 2 --set parallel.zero=1 --dump
check "with zero = 1 each sends its weights to the others, behind one update" \
    '[ $code -eq 0 ] && [ "$(grep -c " update" "$root/log")" -eq 2 ] && [ "$(grep -c "collective spread" "$root/log")" -eq 2 ] && [ "$(grep -c "collective shadow" "$root/log")" -eq 2 ]'
plan --ranks 4 --set parallel.zero=2 --set train.microbatches=1 --set parallel.bucket=16384 --dump
check "with zero = 2 sums are waited for before the memory of their buckets is used again" \
    '[ $code -eq 0 ] && grep -A 1 "wait       await    piece 0" "$root/log" | grep -q "launch     compute  shard 0 microbatch 0 segment 2"'
plan --ranks 4 --set parallel.zero=1 --set parallel.holders=1 --set parallel.zero_group=2 --json
check "two groups of owners: what a lost rank had is in the other" \
    '[ $code -eq 0 ] && has "\"holders\":1,\"zero_group\":2," && has "\"missing_bytes\":0"'
plan --ranks 8 --set job.tensor=2 --set parallel.tensor=2 --set parallel.zero=1 --set parallel.zero_group=3
check "a group that does not divide the positions" '[ $code -eq 2 ] && has "parallel.zero_group = 3 does not divide the 4 data positions"'
plan --ranks 4 --set parallel.zero=3 --set train.microbatches=1 --set parallel.bucket=16384 --dump
check "with zero = 3 weights come ahead of the segment that waits for them, and none leave behind the update" \
    '[ $code -eq 0 ] && grep -A 2 "collective weights  piece 6" "$root/log" | grep -q "await" && ! has "collective spread" && [ "$(grep -c "collective digest" "$root/log")" -eq 4 ]'
plan --ranks 3 --set parallel.zero=3 --set train.microbatches=1 --dump
check "who has fewer shards gathers as often as others ($(grep -c "collective weights" "$root/log"))" \
    '[ $code -eq 0 ] && [ $(($(grep -c "collective weights" "$root/log") % 3)) -eq 0 ]'
gathered() { sed -n 's/^  over data *\([0-9]*\) all-gather *\([0-9]*\) bytes together$/\1 \2/p' "$root/log"; }
plan --ranks 4 --set parallel.zero=3 --set train.microbatches=1
whole=$(gathered)
plan --ranks 4 --set parallel.zero=3 --set train.microbatches=1 --set parallel.zero_group=2 --set parallel.holders=1 --dump
check "groups of two of four gather the same in twice as many stripes ($whole: $(gathered))" \
    '[ "$(gathered)" = "$((${whole% *} * 2)) ${whole#* }" ] && has "collective shadow"'
plan --ranks 4 --set parallel.zero=3 --set train.microbatches=1 --set parallel.zero_group=1
check "and who has all gathers nothing ($(gathered))" '[ $code -eq 0 ] && [ -z "$(gathered)" ]'
plan --ranks 8 --set parallel.zero=3 --set job.tensor=2 --set parallel.tensor=2
check "columns of four slices' owners gather what they have" '[ $code -eq 0 ] && grep -q "^ *8 *4 *2 *3 *4 *2 *0 " "$root/log" && has "over tensor" && [ -n "$(gathered)" ]'
plan --ranks 4 --set parallel.zero=3 --set parallel.holders=1
check "what one rank alone has is lost with it" has "bytes are nowhere else, so all go back to the newest snapshot"
plan --ranks 4 --set parallel.zero=3
check "and with two holders nothing is" '[ $code -eq 0 ] && has "when a rank is lost:" && ! has "nowhere else"'
read_all=$(sed -n 's/^a snapshot:.* resumes from \([0-9]*\)$/\1/p' "$root/log")
plan --ranks 1
check "with weights divided and held twice each of four reads about half of what one does, and so it is said" \
    '[ $((read_all * 2 * 10)) -gt $(($(sed -n "s/^a snapshot:.* resumes from \([0-9]*\)$/\1/p" "$root/log") * 9)) ] &&
     [ $((read_all * 2 * 9)) -lt $(($(sed -n "s/^a snapshot:.* resumes from \([0-9]*\)$/\1/p" "$root/log") * 10)) ]'
plan --ranks 4 --set job.tensor=2 --set parallel.tensor=2
check "the plan of each number of ranks in a run: three are two and a copy" \
    '[ $code -eq 0 ] && has "it goes on with 1 to 4" && grep -q "^ *3  [0-9a-f]*  *2  *1  *2  *0  *1  *1  *1 " "$root/log"'
check "as many numbers as plans" '[ "$(grep -o "  [0-9a-f]\{16\} " "$root/log" | sort -u | wc -l)" -eq 4 ]'
plan --ranks 4 --set job.tensor=2 --set parallel.tensor=2 --json
total=$(sed 's/.*"left":1,//; s/\].*//; s/.*"total_bytes":\([0-9]*\).*/\1/' "$root/log")
plan --ranks 4 --set job.tensor=2 --set parallel.tensor=2 --memory $((total - 1))
check "one rank with all slices does not fit, and has no number" \
    '[ $code -eq 0 ] && has "it goes on with 2 to 4" && ! grep -q "^ *1  [0-9a-f]\{16\}" "$root/log"'
plan --ranks 5 --set job.tensor=2 --set parallel.data=2 --memory 100000000
check "ranks that are too many for the axes" '[ $code -eq 2 ] && has "cluster.ranks = 5 is no product of parallel.data = 2" && has "with both, cluster.ranks could be 4"'
plan --ranks 4 --set parallel.zero=1 --set parallel.zero_group=3
check "groups of owners that are not as large as each other" \
    '[ $code -eq 2 ] && has "parallel.zero_group = 3 does not divide the 4 data positions of 4 ranks; it could be 1, 2, 4"'
plan --ranks 4 --set parallel.tensor=1 --set parallel.zero=0 --set train.microbatches=1 --memory 1000000
check "axes that do not fit whatever the ranks: with the nearest plan that does" \
    '[ $code -eq 3 ] && has "no number of ranks does so; 4 with parallel.tensor = 1 and parallel.zero = 1 fit"'
plan --ranks 9 --set job.tensor=2
check "slices take ranks beyond the shards, and who has no seat is a spare" \
    '[ $code -eq 0 ] && has "seats of the first: data 4, tensor 2" && grep -q "^ *8 *4 *2 *0 *4 *2 *1 " "$root/log" && has "over tensor"'
# Tapes of ranks that share slices: two shards each, of which one waits, and what the graph exchanges for each of both.
plan --ranks 4 --set job.tensor=2 --set parallel.tensor=2 --set train.microbatches=1 --dump
graph=$(awk '/^  over tensor/ { n += $3 } END { print n }' "$root/log")
check "ranks that share slices have tapes" \
    '[ $code -eq 0 ] && [ "$(grep -c "^  [0-3]: shards [02] [13]; " "$root/log")" -eq 4 ] && [ "$(grep -c "collective agree" "$root/log")" -eq 4 ]'
check "with all that the graph exchanges ($graph), and what is summed at the end of a shard" \
    '[ "$(grep -c "collective exchange" "$root/log")" -ge $((4 * graph)) ]'
check "records are one, of any number of ranks" '[ "$(grep -c "collective compare .* 80 bytes" "$root/log")" -eq 4 ]'
# Blocks of compressed gradients are those of slices, as a run sends them.
for tensor in 1 2; do
    plan --ranks 4 --set job.tensor=2 --set parallel.tensor=$tensor --set train.gradients=int8 --dump
    sent=$(awk '/^ *0: shards/ { on = 1 } /^ *1: shards/ { on = 0 } on && /reduce .* bytes to host/ { sub(/.*piece [0-9]*, /, ""); n += $1 } END { print n - 4 }' "$root/log")
    check "compressed gradients, tensor $tensor: over data go the $sent bytes of the tape" \
        '[ $code -eq 0 ] && [ "$sent" -gt 10000 ] && grep -q "over data .* all-reduce  *$sent bytes together" "$root/log"'
done
for zero in 1 2 3; do
    plan --ranks 4 --set job.tensor=2 --set parallel.tensor=2 --set parallel.zero=$zero --set train.microbatches=1 --json --dump
    check "with zero = $zero, too" '[ $code -eq 0 ] && [ "$(grep -o "\"actions\":" "$root/log" | wc -l)" -eq 4 ]'
done
(ulimit -v 1000000; ulimit -t 10; "$KEEL" plan "$here/../../runtime/jobs/gpt3-175b.conf" --set "data.path=$text" --ranks 4096 --memory 80000000000 >"$root/log" 2>&1)
code=$?
check "GPT-3 175B on 4,096 ranks, in 10 s of a processor and 1 GB" \
    '[ $code -eq 0 ] && has "seats of the first: data 512, tensor 8" && has "more than fits" && grep -q "over tensor *385 reduce-scatter" "$root/log"'

# Bad input.
plan --ranks 2 --memory 1000
check "memory that no plan fits" '[ $code -eq 3 ] && has "the nearest, data 2, tensor 1, zero 0, needs" && has "optimizer" && has "no number of ranks does"'
plan --ranks 1 --set job.tensor=2 --memory 1200000
check "memory that more ranks would suffice for" '[ $code -eq 3 ] && has "no plan of 1 ranks fits 1200000 bytes a rank; the nearest, data 1, tensor 1, zero 0, needs" && has "; 2 ranks do"'
"$KEEL" plan "$job" --set "data.path=$text" --ranks 32769 --json >"$root/log" 2>"$root/err"
check "more ranks than a run can have are planned, which is said" \
    '[ $? -eq 0 ] && grep -qF "\"run_ranks_max\":32768" "$root/log" && grep -qxF "keel plan: 32769 ranks are a plan alone: a run has 32768 at most, and keel run refuses more (cluster.ranks)" "$root/err"'
"$KEEL" plan "$job" --set "data.path=$text" --ranks 32768 --json >"$root/log" 2>"$root/err"
check "as many as it can have are no more" '[ $? -eq 0 ] && [ ! -s "$root/err" ]'
plan --ranks 1 --set job.tensor=2 --set parallel.tensor=1 --set parallel.zero=0 --memory 800000
check "memory that no plan fits as its axes were asked for" '[ $code -eq 3 ] && has "no number of ranks does so; 8 with parallel.tensor = 2 and parallel.zero = 1 fit"'
plan --ranks 1 --memory 2000000000000000
check "more memory than there is" '[ $code -eq 2 ] && has "--memory: parallel.memory = 2000000000000000: out of range"'
plan --ranks 3 --set train.optimizer=lamb --set parallel.zero=1
check "an optimizer that wants whole tensors" '[ $code -eq 2 ] && has "scale by norms of whole tensors, which no rank has then; give parallel.zero = 0"'
plan --set model.heads=32 --set job.tensor=32
check "a vocabulary that cannot be cut so" '[ $code -eq 2 ] && has "wte.weight" && has "(rows, as of a vocabulary): job.tensor can be 1 to"'
plan --memory lots
check "memory that is no number" '[ $code -eq 2 ] && has "--memory: parallel.memory = lots"'
plan --set job.tensor=3
check "heads that cannot be cut so" '[ $code -eq 2 ] && has "job.tensor can be 1 to 2"'
plan --set train.step=3
check "an unknown key" '[ $code -eq 2 ] && has "the nearest known key is train.steps"'
plan --ranks 0
check "no ranks" '[ $code -eq 2 ] && has "--ranks: cluster.ranks = 0"'
plan --set train.gradients=topk:2
check "a fraction that cannot be" '[ $code -eq 2 ] && has "train.gradients = topk:2: exact, int8, or topk:FRACTION with a fraction from 0.0002 to 0.5"'
plan --ranks many
check "ranks that are no number" '[ $code -eq 2 ] && has "cluster.ranks"'
plan --set "data.path=$root/none"
check "data that is not there" '[ $code -ne 0 ] && has "$root/none"'
plan --frobnicate
check "an unknown option" '[ $code -eq 2 ] && has "unknown option --frobnicate"'
"$KEEL" plan >"$root/log" 2>&1
code=$?
check "no job" '[ $code -eq 2 ] && has "missing: JOB.conf; try keel plan --help"'
"$KEEL" plan "$root/none.conf" >"$root/log" 2>&1
code=$?
check "a job that is not there" '[ $code -ne 0 ] && has "none.conf"'
"$KEEL" plan "$root/none.conf" --json >"$root/log" 2>/dev/null
check "a failure as JSON" has '"exit":'
"$KEEL" plan --help >"$root/log" 2>&1
code=$?
check "--help with examples" '[ $code -eq 0 ] && has "keel plan demo.conf --ranks 4"'
# A number of slices for which there is no engine costs its own plans, and no others.
template mymodel
(cd "$template" && variant partial 's|const struct settings \*s = own;|& static int built; if (++built == 3) return keel_fail(KEEL_UNSUPPORTED, "no engine has one slice");|')
partial() {
    (cd "$template" && exec "$KEEL" plan mymodel.conf --set model.kind=./partial.so --set "data.path=$text" --set job.tensor=4 --ranks 4 "$@") \
        >"$root/log" 2>"$root/err"
    code=$?
}
widths() { grep -o '"tensor":[0-9]*,"zero"' "$root/log" | sort -u | tr -dc '0-9\n' | tr '\n' ' '; }
partial --json
check "plans of one slice are left out, and said to be" '[ $code -eq 0 ] && [ "$(widths)" = "1 2 " ] && grep -q "has 1 of the job.tensor = 4 slices are left out: .*no engine has one slice" "$root/err"'
partial --set parallel.tensor=4
check "where they are asked for it is an error" '[ $code -ne 0 ] && grep -q "no engine has one slice" "$root/err"'

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
