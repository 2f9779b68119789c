#!/bin/sh
# The classes of numerics on the demo jobs of four models: the final validation loss beside that of canonical products; and how
# many of the first steps have other bits in a run of which a rank is killed, and in one that is cut in two and resumed by other
# ranks. About an hour on two cores: it is run when it is asked for, KEEL_CLASSES=1. MODELS and CLASSES choose some.
set -u
. "$(dirname "$0")/../demo/lib.sh"
[ -n "${KEEL_CLASSES:-}" ] || { echo "classes_bench: not run: takes an hour; KEEL_CLASSES=1 asks for it" >&2; exit 0; }
root=${BUILD:-build}/bench-classes
rm -rf "$root"
mkdir -p "$root"
drilled=12 # steps

# train DIR JOB STEPS CLASS ARGUMENTS...: they win over what is set here
train() {
    out=$root/$1 job=$2 whole=$3 class=$4
    shift 4
    "$KEEL" run "runtime/jobs/$job.conf" --out "$out" --set job.numerics="$class" --set train.steps="$whole" \
        --set train.decay_steps="$whole" --set train.eval_every="$whole" --set snapshot.every=0 --set cluster.ranks=1 \
        "$@" >"$out.log" 2>&1 || { echo "classes_bench: failed; see $out.log" >&2; exit 1; }
}
# figure NAME VALUE UNIT PEER-VALUE GOAL: the goal bounds | ratio - 1 | where there is a peer, else the value
figure() {
    printf '%s %s %s\n' "$2" "$4" "$5" | awk -v name="$1" -v unit="$3" '{
        ratio = $2 == "null" ? "null" : sprintf("%.5f", $1 / $2); off = $2 == "null" ? $1 : ratio - 1
        printf "{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%s,\"unit\":\"%s\",\"peer\":%s,\"peer_value\":%s,\"ratio\":%s,\"goal\":%s,\"met\":%s}\n",
            name, $1, unit, $2 == "null" ? "null" : "\"canonical\"", $2, ratio, $3, (off <= $3 && -off <= $3 ? "true" : "false") }'
}
# differ DIR WHOLE: of the first steps of a whole run, how many DIR has otherwise, or not
differ() {
    steps "$root/$1" >"$root/$1/bits.txt"
    steps "$root/$2" | head -n $drilled | grep -cvxFf "$root/$1/bits.txt"
}
for model in ${MODELS:-gpt bert moe resnet}; do
    case $model in
    gpt) job=demo whole=300 ;;
    bert) job=bert-demo whole=600 ;;
    moe) job=moe-demo whole=300 ;;
    resnet) job=fashion whole=300 ;;
    esac
    for class in canonical ${CLASSES:-exact8x2 exact8x3 bf16}; do
        name=$model-$class
        set -- "$job" "$whole" "$class"
        # A short run begins to learn sooner than the 6,000 steps of the job.
        train "$name" "$@" $([ $model = resnet ] && echo --set train.warmup_steps=30)
        short="--set train.steps=$drilled --set train.eval_every=0 --set snapshot.every=4 --set snapshot.keep=3"
        [ $model = resnet ] && short="$short --set train.warmup_steps=30"
        for try in 1 2 3 4 5; do # a busy machine may let the run end before the kill
            rm -rf "$root/$name-killed"
            train "$name-killed" "$@" $short --ranks 2 --drill kill:rank=1,step=6,at=reduce
            grep -q '"lost_ranks":[1-9]' "$root/$name-killed/events.jsonl" && break
        done
        train "$name-cut" "$@" $short --set train.steps=8
        train "$name-cut" "$@" $short --ranks 2
        grep -q '"event":"resumed"' "$root/$name-cut/events.jsonl" || { echo "classes_bench: $name-cut was not resumed" >&2; exit 1; }
        if [ $class != canonical ]; then
            goal=0.005
            [ $class = exact8x3 ] && goal=0.001
            figure "$model, $class: validation loss after $whole steps" "$(last_field "$root/$name" val_loss)" nat \
                "$(last_field "$root/$model-canonical" val_loss)" $goal
        fi
        figure "$model, $class: steps of $drilled with other bits, a rank killed" "$(differ "$name-killed" "$name")" steps null 0
        figure "$model, $class: steps of $drilled with other bits, cut and resumed" "$(differ "$name-cut" "$name")" steps null 0
        rm -rf "$root/$name-killed" "$root/$name-cut"
    done
done
