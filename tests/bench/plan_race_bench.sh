#!/bin/sh
# One GPT on 2 and 4 processes of this machine, float32, forward, backward, clipping and AdamW: Keel with replicas,
# with ZeRO 3, with ZeRO 2 (weights stay whole) and with tensor slices, against PyTorch's DistributedDataParallel, FSDP2
# (which cuts weights as ZeRO 3 does; ZeRO 2 runs against it as well) and tensor parallelism over gloo.
# The programs run in turn; figures are medians over rounds: tokens a second, and a second of processor over all processes,
# which other programs on the machine disturb less but which has no waiting in it. What it obeys says racers/race.sh, and:
#   RACE_RANKS="2 4"        numbers of processes
#   RACE_SHAPE="4 8 512 256" layers, heads, width, tokens of a sample; 8 samples a step
# To stderr go the losses of the first steps, as each plan has them: Keel's are equal in all bits.
# room: runtime
set -u
. "$(dirname "$0")/racers/race.sh"
. "$(dirname "$0")/../demo/lib.sh"
BATCH=8 VOCAB=96 STEPS=${RACE_STEPS:-6}
set -- ${RACE_SHAPE:-4 8 512 256}
layers=$1 heads=$2 width=$3 block=$4
export GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1

# losses NAME: from standard input, lines of "loss step value bits", to descriptor 3
losses() { sed "s/^/$race: $1: /" >&3; }

# keel_run RANKS KEYS STEPS: seconds of processor
keel_run() {
    rm -rf "$work/run"
    spent "$BUILD/keel" run "$work/job.conf" --ranks "$1" --nodes 1 --out "$work/run" --set train.steps="$3" \
        --set job.shards=4 --set job.tensor=4 --set model.tied=false \
        $(printf -- '--set parallel.%s ' $2) 4>&1 >"$work/keel.log" 2>&1 || { tail -1 "$work/keel.log" >&2; return 1; }
}

# keel_plan RANKS PLAN: "race seconds-of-a-step 0 processor-seconds-of-a-step"; the latter is what a run has more than one of
# two steps
keel_plan() {
    case $2 in
    ddp) keys="data=$1 tensor=1 zero=0" ;;
    fsdp) keys="data=$1 tensor=1 zero=3" ;;
    zero2) keys="data=$1 tensor=1 zero=2" ;;
    tp) keys="data=1 tensor=$1 zero=0" ;;
    esac
    short=$(keel_run "$1" "$keys" 2) && long=$(keel_run "$1" "$keys" $((STEPS + 2))) || return 1
    sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),"loss_bits":"\([0-9a-f]*\)".*/loss \1 \2 \3/p' "$work/run/metrics.jsonl" |
        losses "keel $2, $1 ranks"
    sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' "$work/run/metrics.jsonl" | tail -n +3 | sort -g |
        awk -v spent="$(awk -v a="$short" -v b="$long" 'BEGIN { print b - a }')" -v steps="$STEPS" \
            '{ v[NR] = $1 } END { printf "race %f 0 %f\n", v[int((NR + 1) / 2)], spent / steps }'
}

# torch_plan RANKS PLAN
torch_plan() {
    [ "$2" != zero2 ] || set -- "$1" fsdp
    "$PYTHON" -m torch.distributed.run --nproc-per-node "$1" --master-addr 127.0.0.1 --master-port "${RACE_PORT:-29511}" \
        "$racers/torch_plans.py" "$2" $BATCH "$block" "$layers" "$heads" "$width" $VOCAB "$STEPS" >"$work/torch" 2>"$work/torch.err" ||
        { grep Error "$work/torch.err" | head -1 >&2; return 1; }
    grep '^loss ' "$work/torch.err" | losses "torch $2, $1 processes"
    cat "$work/torch"
}

gpt_job race $layers $heads $width $block $VOCAB $((STEPS + 2)) $((BATCH / 4)) >"$work/job.conf"
has_torch && peers=torch || peers=
for ranks in ${RACE_RANKS:-2 4}; do
    for round in $(seq "$rounds"); do
        [ "$round" = 1 ] && exec 3>&2 || exec 3>/dev/null # the losses are the same in every round
        for plan in ddp fsdp zero2 tp; do
            for name in keel $peers; do
                run "$name-$plan" "$ranks" "${name}_plan" "$ranks" "$plan"
            done
        done
    done
    for plan in ddp fsdp zero2 tp; do
        [ -s "$work/keel-$plan.$ranks" ] || continue
        [ -z "$peers" ] || [ -s "$work/torch-$plan.$ranks" ] || continue
        line "race, gpt $layers x $width, $ranks processes, $plan" "$(rate $((BATCH * block)) "$work/keel-$plan.$ranks")" \
            tokens/s "torch $plan" "$(rate $((BATCH * block)) "$work/torch-$plan.$ranks")" 1 more
        line "race, gpt $layers x $width, $ranks processes, $plan, a second of processor" \
            "$(rate $((BATCH * block)) "$work/keel-$plan.$ranks" 3)" tokens \
            "torch $plan" "$(rate $((BATCH * block)) "$work/torch-$plan.$ranks" 3)" 1 more
    done
done
all_raced
