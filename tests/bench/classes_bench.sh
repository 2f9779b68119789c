#!/bin/sh
# The classes of numerics on the demo jobs of four models: the final validation loss beside that of canonical products, over seeds; and
# how many of the first steps have other bits in a run of which a rank is killed, and in one that is cut in two and resumed by
# other ranks. Hours on two cores: it is run when it is asked for, KEEL_CLASSES=1. MODELS, CLASSES and SEEDS choose some; DRILLS=no leaves out
# kills and cuts; STEPS=n shortens the runs, MORE has settings for all of them.
#
# A run's loss at its end moves by more than the goal from one seed to another, and by as much from one rounding: training is chaotic. So
# classes are compared over seeds: the mean of (loss of the class / loss of canonical of the same seed) - 1, and its standard error; beside it what a
# perturbation of canonical itself does, train.lr larger by one float (class "perturbed").
set -u
. "$(dirname "$0")/../demo/lib.sh"
[ -n "${KEEL_CLASSES:-}" ] || { echo "classes_bench: not run: takes hours; KEEL_CLASSES=1 asks for it" >&2; exit 0; }
root=${BUILD:-build}/bench-classes
rm -rf "$root"
mkdir -p "$root"
drilled=12 # steps
seeds=${SEEDS:-1337 1 2 3 4 5 6 7}

# train DIR JOB STEPS CLASS SEED ARGUMENTS...: they win over what is set here
train() {
    out=$root/$1 job=$2 whole=$3 products=$4 seed=$5
    shift 5
    if [ "$products" = perturbed ]; then
        products=canonical
        lr=$(sed -n 's/^lr = //p' "runtime/jobs/$job.conf") # one float up
        set -- --set train.lr="$(awk -v x="$lr" 'BEGIN { e = 1; while (e > x) e /= 2; printf "%.12g", x + e / 8388608 }')" "$@"
    fi
    # shellcheck disable=SC2086 # MORE is words
    "$KEEL" run "runtime/jobs/$job.conf" --out "$out" --set job.numerics="$products" --set job.seed="$seed" --set train.steps="$whole" \
        --set train.decay_steps="$whole" --set train.eval_every="$whole" --set snapshot.every=0 --set cluster.ranks=1 \
        ${MORE:-} "$@" >"$out.log" 2>&1 || { echo "classes_bench: failed; see $out.log" >&2; exit 1; }
}
# figure NAME VALUE UNIT GOAL ERROR: the goal bounds the value
figure() {
    awk -v name="$1" -v value="$2" -v unit="$3" -v goal="$4" -v error="$5" 'BEGIN {
        printf "{\"room\":\"kernels\",\"figure\":\"%s\",\"value\":%s,\"unit\":\"%s\",\"error\":%s,\"goal\":%s,\"met\":%s}\n",
            name, value, unit, error, goal, (value <= goal && -value <= goal ? "true" : "false") }'
}
# spread < LOSSES: their mean, and their standard deviation over their mean
spread() { awk '{ n++; s += $1; q += $1 * $1 } END { m = s / n; v = n > 1 ? (q - n * m * m) / (n - 1) : 0; printf "%.5f %.5f", m, sqrt(v > 0 ? v : 0) / m }'; }
# paired < "LOSS CANONICAL" a line: the mean of ratios - 1, and its standard error
paired() { awk '{ r = $1 / $2 - 1; n++; s += r; q += r * r } END { m = s / n; v = n > 1 ? (q - n * m * m) / (n - 1) : 0; printf "%.5f %.5f", m, sqrt((v > 0 ? v : 0) / n) }'; }
# differ DIR WHOLE: of the first steps of a whole run, how many DIR has otherwise, or not
differ() {
    steps "$root/$1" >"$root/$1/bits.txt"
    steps "$root/$2" | head -n $drilled | grep -cvxFf "$root/$1/bits.txt"
}
# drill NAME JOB STEPS CLASS SEED: the first seed, killed, and cut and resumed
drill() {
    name=$1 class=$4
    shift
    short="--set train.steps=$drilled --set train.eval_every=0 --set snapshot.every=4 --set snapshot.keep=3 $more"
    # shellcheck disable=SC2086 # words
    for try in 1 2 3 4 5; do # a busy machine may let the run end before the kill
        rm -rf "$root/$name-killed"
        train "$name-killed" "$@" $short --ranks 2 --drill kill:rank=1,step=6,at=reduce
        grep -q '"lost_ranks":[1-9]' "$root/$name-killed/events.jsonl" && break
    done
    # shellcheck disable=SC2086 # words
    train "$name-cut" "$@" $short --set train.steps=8
    # shellcheck disable=SC2086 # words
    train "$name-cut" "$@" $short --ranks 2
    grep -q '"event":"resumed"' "$root/$name-cut/events.jsonl" || { echo "classes_bench: $name-cut was not resumed" >&2; exit 1; }
    figure "$model, $class: steps of $drilled with other bits, a rank killed" "$(differ "$name-killed" "$name")" steps 0 0
    figure "$model, $class: steps of $drilled with other bits, cut and resumed" "$(differ "$name-cut" "$name")" steps 0 0
    rm -rf "$root/$name-killed" "$root/$name-cut"
}
for model in ${MODELS:-gpt bert moe resnet}; do
    more=
    case $model in
    gpt) job=demo whole=300 ;;
    bert) job=bert-demo whole=600 ;;
    moe) job=moe-demo whole=300 ;;
    resnet) job=fashion whole=300 more="--set train.warmup_steps=30" ;; # a short run begins to learn sooner than the 6,000 steps of the job
    esac
    whole=${STEPS:-$whole}
    for class in canonical perturbed ${CLASSES:-exact8x2 exact8x3 bf16}; do
        : >"$root/$model-$class.pairs"
        drills=${DRILLS:-yes}
        for seed in $seeds; do
            name=$model-$class-$seed
            # shellcheck disable=SC2086 # words
            train "$name" "$job" "$whole" "$class" "$seed" $more
            printf '%s %s\n' "$(last_field "$root/$name" val_loss)" "$(last_field "$root/$model-canonical-$seed" val_loss)" >>"$root/$model-$class.pairs"
            [ "$drills" = no ] || [ $class = perturbed ] || drill "$name" "$job" "$whole" "$class" "$seed"
            drills=no
        done
        # shellcheck disable=SC2046 # two words
        set -- $(cut -d' ' -f1 "$root/$model-$class.pairs" | spread) $(paired <"$root/$model-$class.pairs")
        echo "$model, $class: $whole steps, seeds $seeds: mean loss $1, standard deviation over seeds $2 of it; against canonical $3, standard error $4" >&2
        [ $class = canonical ] && continue
        goal=0.005
        [ $class = exact8x3 ] && goal=0.001
        figure "$model, $class: validation loss after $whole steps over canonical's, - 1, mean of seeds" "$3" of_it $goal "$4"
    done
done
