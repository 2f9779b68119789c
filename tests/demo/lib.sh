# lib.sh - what demo, drills and script tests share. Sourced; expects KEEL, the binary.
KEEL=${KEEL:-${BUILD:-build}/keel}

# steps DIR: step, loss bits and weights digest of every committed step, a line each.
steps() {
    sed -n 's/.*"step":\([0-9]*\),.*"loss_bits":"\([0-9a-f]*\)".*"digest":"\([0-9a-f]*\)".*/\1 \2 \3/p' "$1/metrics.jsonl"
}

# same_bits A B: do two run directories hold the same bits, for every step?
same_bits() {
    steps "$1" >"$1/bits.txt" && steps "$2" >"$2/bits.txt" && [ -s "$1/bits.txt" ] && cmp -s "$1/bits.txt" "$2/bits.txt"
}

# last_field DIR KEY: value of a key in the last line of the metrics.
last_field() {
    tail -n 1 "$1/metrics.jsonl" | sed -n "s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# gpt_job NAME LAYERS HEADS WIDTH BLOCK VOCAB STEPS BATCH: a job to be measured, on standard output: a GPT on the default data,
# without evaluations and snapshots. All else comes by --set.
gpt_job() {
    printf '[job]\nname = %s\n[model]\nlayers = %s\nheads = %s\nwidth = %s\nblock = %s\nvocab = %s\n' "$1" "$2" "$3" "$4" "$5" "$6"
    printf '[data]\npath = build/data/english.txt\n[train]\nsteps = %s\nbatch = %s\neval_every = 0\n' "$7" "$8"
    printf '[snapshot]\nevery = 0\n[cluster]\ntimeout_s = 60\n'
}

# lock_holders LOCK...: the processes that have these locks of a run, each as its lock names it.
lock_holders() {
    for lock; do [ -f "$lock" ] && ! flock -n "$lock" true && sed -n 's/^\([1-9][0-9]*\).*/\1/p' "$lock"; done
}

# kill_run DIR: all processes of the run there at once, as by a power failure: agents first, who would have another lead;
# again where one was just being started.
kill_run() {
    for try in 1 2 3 4 5 6 7 8; do
        [ -f "$1/run.lock" ] && ! flock -n "$1/run.lock" true || break
        # shellcheck disable=SC2046 # words
        kill -KILL $(lock_holders "$1"/agent-*.lock "$1/run.lock") 2>/dev/null
        sleep 0.05
    done
}
