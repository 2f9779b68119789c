#!/bin/sh
# Every bad input gets one clear message that names the thing and the next move, and the right exit code;
# nothing that was there is lost.
set -u
here=$(dirname "$0")
. "$here/../demo/lib.sh"
root=$(mktemp -d) || exit 1
trap 'chmod -R u+w "$root" 2>/dev/null; umount "$root/small" 2>/dev/null; rm -rf "$root"' EXIT
passed=0 failed=0 skipped=0
job=$here/../demo/drill.conf
text=$root/text
awk 'BEGIN { srand(1); for (i = 0; i < 4000; i++) printf "%s", substr("the quick brown fox jumps over a lazy dog\n", int(rand() * 42) + 1, 1) }' >"$text"

keel() { timeout 600 "$KEEL" "$@" --set "data.path=$text" --set cluster.device=host; }

# expect NAME CODE WORDS: the last command (output in $root/log) ended with CODE and said WORDS, in one line.
expect() {
    if [ "$code" -eq "$2" ] && { [ -z "$3" ] || grep -qF -- "$3" "$root/log"; }; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $1: exit $code, wanted $2 and \"$3\":"
        sed 's/^/    /' "$root/log" | tail -n 8
    fi
}
try() { keel "$@" >"$root/log" 2>&1; code=$?; }

# ---- the job ----
printf '[train]\nstep = 3\n' >"$root/unknown.conf"
try run "$root/unknown.conf" --out "$root/x";              expect "unknown key" 2 "unknown.conf:2: unknown key train.step; the nearest known key is train.steps"
printf '[train]\nsteps = 3\nsteps = 4\n' >"$root/twice.conf"
try run "$root/twice.conf" --out "$root/x";                expect "a key given twice" 2 "twice.conf:3: train.steps was given in line 2 already"
printf 'steps = 3\n' >"$root/bare.conf"
try run "$root/bare.conf" --out "$root/x";                 expect "a key in no section" 2 "bare.conf:1: steps stands in no section"
printf '[train]\nsteps = 3\0\n' >"$root/zero.conf"
try run "$root/zero.conf" --out "$root/x";                 expect "a job file with a zero byte" 2 "is NUL; a job file is text"
try run "$job" --set model.width=33 --out "$root/x";       expect "heads do not divide" 2 "does not divide into model.heads"
try run "$job" --set train.lr=99 --out "$root/x";          expect "value out of range" 2 "train.lr = 99: out of range"
try run "$job" --set job.tensor=2 --set parallel.tensor=2 --ranks 3 --out "$root/x"
expect "ranks that are no product of the axes" 2 "with the other as it is, no data will do, and tensor could be 1; with both, cluster.ranks could be 2"
try run "$job" --set parallel.data=3 --ranks 4 --out "$root/x"
expect "nor of data positions that are asked for" 2 "is no product of parallel.data = 3 and parallel.tensor = 0 (0: chosen, up to job.shards = 4 and job.tensor = 1); with the other as it is, data could be 4"
try run "$job" --set parallel.data=5 --ranks 5 --out "$root/x"
expect "more data positions than shards" 2 "parallel.data = 5 is above job.shards = 4, and a position has one shard at least: give 4 at most"
try run "$job" --set parallel.tensor=2 --ranks 2 --out "$root/x"
expect "more tensor ranks than job.tensor" 2 "parallel.tensor = 2 is above job.tensor = 1, and a rank has one slice at least: give 1 at most, or another job.tensor in a new directory"
try run "$job" --set job.tensor=65 --out "$root/x";        expect "more slices than there can be" 2 "job.tensor = 65: out of range; 1 to 64 is allowed"
try run "$job" --set job.tensor=3 --out "$root/heads"
expect "heads that cannot be cut so" 2 "has 2 units that stay together (heads): job.tensor can be 1 to 2"
try run "$job" --set model.heads=32 --set job.tensor=30 --out "$root/rows"
expect "a vocabulary that cannot be cut so" 2 "units that stay together (rows, as of a vocabulary): job.tensor can be 1 to 2"
try run "$job" --set model.kind=bert --set model.heads=32 --set model.block=8 --set train.batch=1 --set job.tensor=9 --out "$root/tokens"
expect "tokens that cannot be cut so" 2 "has 8 units that stay together (tokens of a batch): job.tensor can be 1 to 8"
try run "$job" --set model.kind=dlrm --set job.tensor=2 --out "$root/x"
expect "a model that splits nothing" 2 "job.tensor = 2 says nothing to model.kind = dlrm"
try run "$job" --set parallel.memory=1000 --out "$root/memory"
expect "more memory than a rank may use" 3 "parallel.memory = 1000: each of 1 ranks (data 1, tensor 1, zero 0) needs"
[ ! -e "$root/memory" ]; code=$?;                        expect "is found before the directory is made" 0 ""
try run "$job" --ranks 32769 --out "$root/x";                expect "more ranks than a run takes" 2 "--ranks: cluster.ranks = 32769: out of range"
try run "$job" --ranks x --sample y --out "$root/x";       expect "ranks that are no number" 2 "--ranks: cluster.ranks = x: a whole number is wanted"
passes=$(yes -- --passes-off fuse | head -n 80)
try run "$job" $passes --drill kill:rank=0,step=3 --out "$root/x"; expect "too many options for workers" 2 "--drill: more than 80 options for workers"
try run "$job" $passes --resume none --set train.steps=2 --out "$root/many"; expect "as many as are allowed, and --resume" 0 "done: 2 steps"
try run "$job" --ranks 4 --nodes 3 --out "$root/x";        expect "a world that does not divide" 2 "does not divide over cluster.nodes"
try run "$root/nowhere.conf" --out "$root/x";              expect "missing job file" 3 "nowhere.conf"
try run "$job" --drill kill:rank=1 --out "$root/x";        expect "bad drill" 2 "\"kill\": wanted also step=; examples: "
try run "$job" --drill kill:rank=7,step=3 --out "$root/x"; expect "drill of no rank" 2 "the ranks are 0 to"
try run "$job" --resume yesterday --out "$root/x";         expect "bad resume" 2 "auto, none or a step"
try run "$job" --resume 4 --out "$root/x";                 expect "a step to resume that is not there" 3 "--resume 4: "
try run "$job" --frob --out "$root/x";                     expect "an unknown option" 2 "unknown option --frob; see keel run --help"
try run "$job" --s 9 --out "$root/x";                      expect "an option cut too short" 2 "--s is short for several options"
try run "$job" --prepare=yes --out "$root/x";              expect "a value of an option that has none" 2 "--prepare takes no value"
timeout 600 "$KEEL" run "$job" --out >"$root/log" 2>&1; code=$?; expect "an option without its value" 2 "--out needs DIR"
try run "$job" "$job" --out "$root/x";                     expect "two job files" 2 "one word too many: $job"
timeout 600 "$KEEL" run --out="$root/x" --ran=99999 --set="data.path=$text" -- "$job" >"$root/log" 2>&1; code=$?
expect "values behind '=', short names, the end of options" 2 "--ranks: cluster.ranks = 99999: out of range"
try run "$job" --drill -1 --out "$root/x";                 expect "a value that begins with a dash" 2 "--drill -1: \"-1\": wanted one of kill, stop, slow, disk-full, flip, sick, hang, wipe; examples: "
try run "$job" --passes-off fuse,fast --out "$root/x";     expect "a pass that there is not" 2 "fast is no pass that can be left out: these can, fuse, fuse-gelu"
try run "$job" --dump-graph "" --out "$root/x";            expect "graphs to nowhere" 2 "--dump-graph: a directory is wanted"
try run "$job" --trace-device= --out "$root/x";            expect "traces to nowhere" 2 "--trace-device: a directory is wanted"
try run "$job" --ranks 9 --ranks 9 --ranks 9 --ranks 9 --ranks 9 --ranks 99999; expect "an option given often" 2 "--ranks: cluster.ranks = 99999: out of range"
printf 'within.alpha_ns = soon\n' >"$root/costs"
try run "$job" --set "cluster.network_costs=$root/costs" --out "$root/x"; expect "a broken file of costs" 2 "costs:1: within.alpha_ns = soon"
try run "$job" --set "cluster.network_costs=$root/none" --out "$root/x"; expect "a missing file of costs" 3 "$root/none"
mkfifo "$root/fifo"
timeout 600 "$KEEL" run "$job" --set "data.path=$root/fifo" --out "$root/x" >"$root/log" 2>&1; code=$?
expect "data that cannot be read twice" 2 "no regular file"
try run;                                                   expect "no job" 2 "keel run --help"
timeout 600 "$KEEL" run "$job" --set data.path=/nowhere.txt --out "$root/x" >"$root/log" 2>&1; code=$?
expect "missing data" 3 "data.path = /nowhere.txt: no such file"
printf 'tiny' >"$root/tiny"
timeout 600 "$KEEL" run "$job" --set "data.path=$root/tiny" --out "$root/x" >"$root/log" 2>&1; code=$?
expect "short data" 2 "give a longer text"
timeout 600 "$KEEL" run "$job" --set "data.path=$text" --set cluster.device=fpga:7 --out "$root/board" >"$root/log" 2>&1; code=$?
expect "a board that is not there" 3 "fpga:7"
timeout 600 "$KEEL" dance >"$root/log" 2>&1; code=$?
expect "unknown command" 2 "no command"

# ---- the directory ----
try run "$job" --out /proc/nowhere;                        expect "a directory that cannot be made" 3 "/proc/nowhere"
# It is to have the snapshots of steps 8 and 12: a disk that is slow just then lets it pass over one.
for _ in 1 2 3 4 5 6 7 8; do
    rm -rf "$root/run"
    try run "$job" --out "$root/run"
    grep -q snapshot-skipped "$root/run/events.jsonl" || break
done
expect "a good run" 0 "done: 12 steps"
for key in within.alpha_ns within.gap_ns within.picos_per_byte between.alpha_ns between.gap_ns between.picos_per_byte combine.picos_per_byte host.processors; do
    echo "$key = 5"
done >"$root/costs"
try run "$job" --set "cluster.network_costs=$root/costs" --out "$root/costly"; expect "a run by a file of costs" 0 "done: 12 steps"
grep -q '"event":"end","monotonic_ns":[0-9]*,"wall_ns":[0-9]\{19\},' "$root/run/events.jsonl"; code=$?
expect "events say when they were" 0 ""
cp "$root/run/metrics.jsonl" "$root/metrics.before"
steps "$root/run" >"$root/metrics.first"
try run "$job" --out "$root/run" --set train.lr=0.002;     expect "a directory of another job" 4 "holds a run of another job: train.lr is 0.001 there and 0.002 here"
try run "$job" --out "$root/run" --set job.tensor=2
expect "another logical mesh: what stays, and what may change" 4 "job.tensor is 1 there and 2 here; give the job as it was (--ranks and parallel.* may be others)"
try run "$job" --out "$root/run" --set job.shards=8 --set job.tensor=2
expect "another one on both axes" 4 "job.shards is 4 there and 8 here, job.tensor is 1 there and 2 here; give the job as it was (--ranks and parallel.* may be others)"
try run "$job" --out "$root/run" --set job.shards=8 --set train.lr=0.002
expect "another one, and another rate" 4 "train.lr is 0.001 there and 0.002 here; give the job as it was (--ranks and parallel.* may be others)"
try run "$job" --out "$root/run" --ranks 2 --set parallel.zero=1
expect "what may change may" 0 "done before: 12 steps"
cp "$text" "$root/text.before"; printf 'more\n' >>"$text"
try run "$job" --out "$root/run";                          expect "other data" 4 "the contents of data.path differ, $text there"
mv "$root/text.before" "$text"
try run "$job" --out "$root/short" --set data.val_fraction=0.001 --set train.eval_every=5
expect "a rest too short to validate with" 0 "train.eval_every = 5, but nothing is kept to validate with: data.val_fraction = 0.001"
try run "$job" --out "$root/run";                          expect "a run that is complete stays complete" 0 "done before: 12 steps"
cmp -s "$root/run/metrics.jsonl" "$root/metrics.before";   code=$?; : >"$root/log"; expect "and its metrics are untouched" 0 ""

# ---- a run that is over ----
# What lies in DIR, to the byte and the second.
picture() { (cd "$1" && find . -printf '%p %m %s %T@\n' | sort && find . -type f -exec sha256sum {} + | sort) | sha256sum; }
# over NAME CODE WORDS ARGUMENTS...: where every board that would be opened is none.
over() {
    what=$1 wanted=$2 words=$3
    shift 3
    before=$(picture "$root/run")
    timeout 600 "$KEEL" run "$job" --out "$root/run" --set "data.path=$text" --set cluster.device=fpga:7 "$@" >"$root/log" 2>&1; code=$?
    expect "$what" "$wanted" "$words"
    [ "$before" = "$(picture "$root/run")" ]; code=$?
    expect "$what: nothing is changed" 0 ""
}
over "a run that is over opens no board" 0 "done before: 12 steps, loss $(last_field "$root/run" loss | cut -c1-4)"
grep -qF "weights $(last_field "$root/run" digest)" "$root/log" && grep -qF "report: $root/run/report.html" "$root/log" && [ "$(wc -l <"$root/log")" -eq 1 ]; code=$?
expect "and says what came out and where, in one line" 0 ""
over "fewer steps open none" 0 "done before: 12 steps" --set train.steps=8 --set train.decay_steps=12 --resume auto
timeout 600 "$KEEL" run "$job" --out "$root/run" --set "data.path=$text" --set cluster.device=fpga:7 --resume 8 >"$root/log" 2>&1; code=$?
expect "what is to do something opens them" 3 "fpga:7"
copy_run() { rm -rf "$root/copy"; cp -r "$root/run" "$root/copy"; }
try run "$job" --out "$root/run";                          expect "after a life that failed the next one looks again" 0 "done before: 12 steps"
over "and the one after it need not" 0 "done before: 12 steps"
copy_run
try run "$job" --out "$root/copy" --resume 8;              expect "an older snapshot that is asked for is taken" 0 "done: 12 steps"
try run "$job" --out "$root/copy" --drill kill:rank=0,step=9 --resume none; expect "a drill is carried out" 0 "process-exit, ranks were lost"
[ "$(grep -c . "$root/copy/drills.jsonl")" -eq 1 ];        code=$?; expect "and noted" 0 ""
try run "$job" --out "$root/copy" --sample 5;              expect "a text that is not there is made" 0 "--- 5 tokens"
before=$(picture "$root/copy")
try run "$job" --out "$root/copy" --sample 5;              expect "and is shown again" 0 "--- 5 tokens"
[ "$before" = "$(picture "$root/copy")" ];                 code=$?; expect "by a command that changes nothing" 0 ""
copy_run; rm -r "$root"/copy/ckpt/*/step-12.*
try run "$job" --out "$root/copy";                         expect "a last snapshot that is gone is made again" 0 "done: 12 steps"
ls "$root/copy/ckpt/drill/"step-12.*/manifest.json >"$root/log" 2>&1; code=$?; expect "and is there" 0 "manifest.json"
copy_run; for file in "$root"/copy/ckpt/*/step-12.*/rank-0.keel; do printf '\377' | dd of="$file" bs=1 seek=5000 conv=notrunc 2>/dev/null; done
try run "$job" --out "$root/copy";                         expect "a last snapshot with a flipped byte is, too" 0 "snapshot-refused"
try run "$job" --out "$root/copy";                         expect "and is whole then" 0 "; report: $root/copy/report.html"
copy_run; rm "$root"/copy/ckpt/*/*/manifest.json
try run "$job" --out "$root/copy" --drill kill:rank=0,step=9; expect "a run that lost all its snapshots does not begin anew by itself" 4 "keel ckpt repair --from a copy, or give --resume none"
[ -f "$(find "$root/copy/ckpt" -name rank-0.keel | head -n 1)" ]; code=$?; : >"$root/log"; expect "nor takes what can be mended" 0 ""
copy_run; rm -r "$root/copy/ckpt"
try run "$job" --out "$root/copy";                         expect "nor one whose store is gone" 4 "--resume none"
try run "$job" --out "$root/copy" --resume none --drill kill:all,step=2; expect "but when it is told to" 137 ""
try run "$job" --out "$root/copy";                         expect "and the snapshots of before count no longer" 0 "done: 12 steps"
copy_run; for file in "$root"/copy/ckpt/*/*/manifest.json; do printf '\377' | dd of="$file" bs=1 seek=50 conv=notrunc 2>/dev/null; done
try run "$job" --out "$root/copy";                         expect "nor one whose manifests are damaged" 4 "manifests of all"
copy_run; rm "$root/copy/report.html"
try run "$job" --out "$root/copy";                         expect "so is a report" 0 "report: $root/copy/report.html"

try run "$job" --out "$root/run" --set train.steps=14;     expect "a longer schedule is another job, and the move is said" 4 "; to train longer set train.decay_steps = 12, or"
try run "$job" --out "$root/run" --set train.steps=14 --set train.decay_steps=12
expect "a run can be made longer, its schedule as it was" 0 "done: 14 steps"

# ---- snapshots ----
newest() { find "$root/run/ckpt" -type d -name "step-14.*" | head -n 1; }
shard=$(find "$(newest)" -name 'rank-0.keel')
timeout 600 "$KEEL" ckpt verify "$root/run/ckpt" >"$root/log" 2>&1; code=$?; expect "verify a good store" 0 ""
cp "$shard" "$root/shard"
printf '\377' | dd of="$shard" bs=1 seek=5000 conv=notrunc 2>/dev/null
timeout 600 "$KEEL" ckpt verify "$root/run/ckpt" >"$root/log" 2>&1; code=$?; expect "verify finds a flipped byte" 4 "rank-0.keel"
try run "$job" --out "$root/run" --set train.steps=15 --set train.decay_steps=12 --resume 5
expect "a step that no snapshot is of" 3 "holds no committed snapshot of step 5"
cp "$root/run/metrics.jsonl" "$root/metrics.long"
: >"$root/run/metrics.jsonl"
longer="--set train.steps=14 --set train.decay_steps=12"
try run "$job" --out "$root/run" $longer;                  expect "a flipped bit: the older snapshot is taken" 0 "snapshot-refused"
same_bits_tail() { steps "$root/run" >"$root/a"; [ -s "$root/a" ] && sed 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/' "$root/metrics.long" | tail -n "$(wc -l <"$root/a")" | cmp -s - "$root/a"; }
same_bits_tail; code=$?; : >"$root/log";                   expect "and the bits are those of the first life" 0 ""

try run "$job" --out "$root/run" $longer --resume none;    expect "steps whose records are gone are no mismatch" 0 "done: 14 steps"
copy_store() { rm -rf "$root/copy"; mkdir "$root/copy"; cp -r "$root/run/ckpt" "$root/copy/ckpt"; cp "$root/run/identity" "$root/copy/"; }
copy_store
for file in $(find "$root/copy/ckpt" -name 'rank-0.keel'); do truncate -s 4000 "$file"; done
try run "$job" --out "$root/copy" $longer;                         expect "all snapshots cut short" 4 "rank-0.keel"
copy_store
for file in $(find "$root/copy/ckpt" -name 'rank-0.keel'); do printf '\143' | dd of="$file" bs=1 seek=8 conv=notrunc 2>/dev/null; done
try run "$job" --out "$root/copy" $longer;                         expect "a damaged or newer header" 4 "rank-0.keel"
copy_store
for step in "$root"/copy/ckpt/*/step-14.*; do cp "$(find "$root/copy/ckpt" -path '*/step-12.*/rank-0.keel' | head -n 1)" "$step/rank-0.keel"; done
try run "$job" --out "$root/copy" $longer;                         expect "a file of another snapshot: the older one is taken" 0 "snapshot-refused"
copy_store
rm "$root/copy/identity"
try run "$job" --out "$root/copy" $longer --set train.lr=0.002;    expect "snapshots of another job" 4 "another job"

# ---- pipes in place of files: refused, not waited for ----
for file in metrics events; do
    mkdir -p "$root/pipe-$file"
    mkfifo "$root/pipe-$file/$file.jsonl"
    try run "$job" --out "$root/pipe-$file"; expect "a pipe in place of $file.jsonl" 2 "$file.jsonl: is no regular file; move it away"
done

# ---- what a crash or a person left in the directory ----
longer="--set train.steps=15 --set train.decay_steps=12"
copy_run; echo junk >"$root/copy/identity"
try run "$job" --out "$root/copy" $longer;                 expect "a damaged identity" 4 "remove it to have it made anew"
copy_run; touch "$root/copy/job.conf.123.4.tmp" "$root/copy/my.tmp"
try run "$job" --out "$root/copy" $longer;                 expect "a run after a kill" 0 "done"
[ ! -e "$root/copy/job.conf.123.4.tmp" ] && [ -e "$root/copy/my.tmp" ]; code=$?; expect "what a kill left behind is swept, and nothing else" 0 ""
copy_run; echo junk >"$root/copy/register.state"
try run "$job" --out "$root/copy" $longer;                 expect "a damaged register" 4 "register.state"
copy_run; rm "$root/copy/register.state"
try run "$job" --out "$root/copy" $longer;                 expect "a register that was removed" 0 "done"
copy_run; echo junk >>"$root/copy/events.jsonl"
try run "$job" --out "$root/copy" $longer;                 expect "a damaged line of events" 0 "report.html"
copy_run; echo junk >"$(find "$root/copy/ckpt" -type d -name 'step-14.*' | head -n 1)/manifest.json"
try run "$job" --out "$root/copy" $longer;                 expect "a damaged manifest is told" 0 "snapshots are passed over"

# ---- the terminal ----
keel run "$job" --ranks 2 --out "$root/closed" <&- >&- 2>&-; code=$?
steps "$root/closed" | cmp -s - "$root/metrics.first" || code=1; : >"$root/log"; expect "closed descriptors tear no file" 0 ""
keel run "$job" --ranks 2 --out "$root/piped" --drill kill:rank=1,step=5 2>&1 | head -n 3 >"$root/log"
steps "$root/piped" | cmp -s - "$root/metrics.first"; code=$?; expect "a reader that goes away ends no run" 0 "view 1"
# A terminal's or a service manager's signal reaches all processes of a run at once, and a driver's compiler catches it.
setsid "$KEEL" run "$job" --ranks 2 --set "data.path=$text" --set train.steps=100000 --out "$root/asked" >"$root/log" 2>&1 &
run=$!
until [ -s "$root/asked/metrics.jsonl" ] || ! kill -0 "$run" 2>/dev/null; do sleep 0.05; done
kill -TERM "-$run"
wait "$run"; code=$?;                                      expect "a signal to all processes is an orderly end" 5 "interrupted: stopped"
! grep "ended by\|were lost" "$root/log" >"$root/lost";    code=$?; expect "that ends no worker by itself" 0 ""

# ---- the end of a run ----
try run "$job" --ranks 4 --out "$root/last" --drill kill:rank=2,step=12,at=snapshot; expect "a rank that dies at the very end" 0 "done: 12 steps"
ls "$root/last/ckpt/drill/"step-12.*/manifest.json >"$root/log" 2>&1; code=$?; expect "and the end is kept all the same" 0 "manifest.json"
try run "$job" --ranks 2 --out "$root/late" --drill kill:rank=1,step=9 --drill slow:rank=0,step=12,ms=1500,steps=1; expect "a rank that comes back while the other does the last step" 0 "done: 12 steps"
! grep '"event":"resumed"\|"event":"end-again"' "$root/late/events.jsonl" >"$root/log"; code=$?; expect "does not make the end again" 0 ""

# ---- names, keys and files that are not what they should be ----
mkdir "$root/here" && cd_here() { (cd "$root/here" && try "$@"; exit "$code"); }
KEEL=$(readlink -f "$KEEL")
drill_conf=$(readlink -f "$job")
cd_here run "$drill_conf" --out -dash --set train.steps=2; code=$?; expect "a directory whose name begins like an option" 0 "report: ./-dash/report.html"
try run "$job" --out "$job";                               expect "a file as the directory" 2 "is a file; give a directory"
ln -s loop "$root/loop"
try run "$job" --out "$root/loop";                         expect "a link that leads nowhere as the directory" 3 "cannot make the directory: Too many levels of symbolic links; give another --out"
try run "$root/loop" --out "$root/x";                      expect "and as the job" 3 "Too many levels of symbolic links"
timeout 600 "$KEEL" ckpt ls "$root/loop" >"$root/log" 2>&1; code=$?; expect "and as a store" 3 "Too many levels"
: >"$root/key.empty"; chmod 600 "$root/key.empty"
for key in none empty; do
    try run "$job" --out "$root/keyed" --set "snapshot.key_file=$root/key.$key"
    [ "$key" = none ] && wanted=3 || wanted=2
    expect "a key file: $key" $wanted "$root/key.$key"
    [ ! -e "$root/keyed" ]; code=$?;                       expect "is found before the directory is made: $key" 0 ""
done
flip_identity() { tr "$1" "$2" <"$root/run/identity" >"$root/copy/identity"; }
copy_run; flip_identity 0-9a-f 1-9a-f0
try run "$job" --out "$root/copy" $longer;                 expect "an identity that is another, under snapshots of this job" 4 "identity: is damaged; remove it"
rm -r "$root/copy/ckpt"
try run "$job" --out "$root/copy" $longer;                 expect "and without snapshots" 4 "or DIR/identity is damaged"
flip_identity 0-7 XYZxyzGH
try run "$job" --out "$root/copy" $longer;                 expect "an identity that is no number" 4 "identity: is damaged; remove it"
copy_run; echo garbage >"$root/copy/drills.jsonl"
try run "$job" --out "$root/copy" $longer --drill kill:rank=0,step=15; expect "a damaged list of drills that fired" 4 "drills.jsonl:1: not a line of JSON"
printf '{"drill":"kill:rank=0,step=15","mono' >"$root/copy/drills.jsonl"
try run "$job" --out "$root/copy" $longer --drill kill:rank=0,step=15; expect "a torn last line of them" 0 "process-exit"
try run "$job" --out "$root/x" --drill kill:rank=0,step=5,rank=0; expect "a key of a drill given twice" 2 "\"rank\": wanted one target"
try run "$job" --out "$root/x" --set train.clip=0x10;      expect "a number in hexadecimal" 2 "a number is wanted"
try run "$job" --out "$root/x" --set job.seed=99999999999999999999; expect "a range is told in plain numbers" 2 "0 to 18446744073709551615 is allowed"
if [ -c /dev/full ]; then
    for what in "--version" "--help" "run --help"; do
        timeout 600 "$KEEL" $what >/dev/full 2>"$root/log"; code=$?
        expect "what was printed into a full disk was not said: $what" 1 "the standard output cannot be written: No space left on device"
    done
    keel run "$job" --out "$root/full" --set train.steps=2 >/dev/full 2>"$root/log"; code=$?
    expect "nor was a run" 1 "the standard output cannot be written"
fi
timeout 600 "$KEEL" agent --join 127.0.0.1:9 --key-file job.key --node 0 >"$root/log" 2>&1; code=$?; expect "an agent of no number" 2 "node 0 is the launcher"
grep -q '^keel agent: ' "$root/log";                        code=$?; expect "is told so, not a log" 0 ""
timeout 600 "$KEEL" --help >"$root/log" 2>&1; code=$?;     expect "all commands with a page are listed" 0 "keel agent"

# ---- the disk ----
mkdir "$root/small"
if mount -t tmpfs -o size=400k tmpfs "$root/small" 2>/dev/null; then
    try run "$job" --out "$root/small/run";                expect "a full disk ends no training, and is no success" 1 "No space left"
    mount -o remount,size=8m "$root/small"
    try run "$job" --out "$root/small/run";                expect "and with space again the same command ends it" 0 "done: 12 steps"
    steps "$root/small/run" | cmp -s - "$root/metrics.first"; code=$?; expect "with every step on record, once" 0 ""
    umount "$root/small"
else
    skipped=$((skipped + 3))
    echo "note: a small file system could not be mounted here; the full-disk cases were skipped"
fi

# ---- open files ----
# Whoever runs out of them, launcher, agent or worker, it is said; from some number on it is enough.
for limit in 12 16 18 20; do
    (ulimit -n $limit && keel run "$job" --ranks 2 --out "$root/files-$limit") >"$root/log" 2>&1; code=$?
    [ $code -ne 3 ] || { grep "^keel run:" "$root/log" | grep -qF "Too many open files; raise the limit (ulimit -n)" && code=0; }
    expect "a limit of $limit open files is named" 0 ""
    ! grep ': *$' "$root/log" >/dev/null; code=$?;         expect "and no line lacks its reason: $limit" 0 ""
done
# A stack that is too small is named, by whoever needs it: a step of who leads has tables of 32,768 ranks on it.
for command in "run $job --out $root/stack" "agent --join 127.0.0.1:9 --key-file $root/none"; do
    (ulimit -s 2000 && timeout 600 "$KEEL" $command) >"$root/log" 2>&1; code=$?
    expect "a small stack: ${command%% *}" 3 "a limit of this machine or of its user is used up: 2000 KiB of stack are allowed, and 6144 are needed; raise the limit (ulimit -s)"
done
(ulimit -s 256 && timeout 600 "$KEEL" ckpt ls "$root/copy") >"$root/log" 2>&1; code=$?
expect "and one that is too small for any command" 3 "raise the limit (ulimit -s)"
# And of memory: no snapshot follows the last one.
for limit in 50000 60000 70000; do
    (ulimit -v $limit && keel run "$job" --out "$root/memory-$limit") >"$root/log" 2>&1
    ! grep 'end is not kept.*the next regular one' "$root/log" >/dev/null; code=$?; expect "nothing is waited for behind the last step: $limit KB" 0 ""
done
# agent VALUE WORDS: of --join, before a key is read; and of another option, with a place that is one
agent() { timeout 60 "$KEEL" agent --key-file "$root/none" "$@" >"$root/log" 2>&1; code=$?; }
join() { agent --join "$1"; expect "--join $1" 2 "keel agent: --join $2"; }
join '' ': a place is empty; give HOST:PORT[,HOST:PORT]..., as keel run prints it (agents dial in at)'
join 'h1:9,,h2:9' 'h1:9,,h2:9: a place is empty; give '
join 10.0.0.1:0 '10.0.0.1:0: no port from 1 to 65535; give HOST:PORT or [IPv6]:PORT, as keel run prints it (agents dial in at)'
join h1:9,h2:99999 'h2:99999: no port from 1 to 65535; give '
join h1:abc 'h1:abc: no port from 1 to 65535; give '
join h1 'h1: has no port; give '
join '[::1]' '[::1]: has no port; give '
join '[::1]9' '[::1]9: not [ADDRESS]:PORT; give '
join fd00::1:4711 'fd00::1:4711: an address of IPv6 stands in brackets, and a port behind them; give '
join '[fe80::1]:9' '[fe80::1]:9: fe80::1: is an address of one link alone; give another'
join 256.1.1.1:9 '256.1.1.1:9: 256.1.1.1: not a numeric address of IPv4 or IPv6; give '
join 0.0.0.0:9 '0.0.0.0:9: is every address of a host; give '
join h1:9,h2:9,h1:9 'h1:9: is given twice; give each place once'
address() { agent --join 10.0.0.1:9 --address "$1"; expect "--address $1" 2 "keel agent: --address $2"; }
address '' ': not HOST:PORT; give an address of this host, as 10.0.0.2, 10.0.0.2:4712 or [fd00::2]:4712'
address 10.0.0.2:0 '10.0.0.2:0: no port from 1 to 65535; give an address of this host'
address 10.0.0.2:x '10.0.0.2:x: no port from 1 to 65535; give an address of this host'
address 10.0.0 '10.0.0: not a numeric address of IPv4 or IPv6; give an address of this host'
address 0.0.0.0 '0.0.0.0: is every address of this host; give the one by which the others reach it'
for number in '' 0 -1 4097 x 1.5; do
    agent --join 10.0.0.1:9 --node "$number"; expect "--node $number" 2 "keel agent: --node $number: a number from 1 to 4096 is wanted"
done
for number in '' -1 x 1m 99999999; do
    agent --join 10.0.0.1:9 --wait "$number"; expect "--wait $number" 2 "keel agent: --wait (seconds) $number: a whole number up to 2592000 is wanted"
done
agent --node 3; expect "an agent of no run" 2 "go with --join; keel agent --join HOST:PORT[,HOST:PORT]... --key-file FILE [--node N]"
"$KEEL" agent --help >"$root/log" 2>&1; code=$?;           expect "keel agent --help" 0 "usage: keel agent --join HOST:PORT"

# ---- strangers ----
chmod 644 "$root/run/job.key"
try run "$job" --out "$root/run" $longer;                      expect "a key that others can read" 3 "chmod 600"
chmod 600 "$root/run/job.key"

if [ $skipped -gt 0 ]; then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
[ "$failed" -eq 0 ]
