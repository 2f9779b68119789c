#!/bin/sh
# Text of a GPT-2 124M, with keys and values kept: keel sample (one text) and keel serve (four at once) against PyTorch and
# GGML in float32, and one text by weights in 4 and 8 bits against Keel's own in float32 and GGML's. A prompt of 256 tokens, 64
# more behind it, greedy. The programs run in turn; figures are medians over rounds. What it obeys says racers/race.sh, and:
#   GGML_PYTHON=python3     an interpreter that has ctransformers, with GGML in its wheel; left out when it has not
#   RACE_RUN=DIR            a run of that model that is there; without it a step is trained, to have its weights
# Both programs have as many processors as threads, the same. With one thread times are the processor's, which other programs
# disturb less.
# room: runtime
set -u
. "$(dirname "$0")/racers/race.sh"
. "$(dirname "$0")/../demo/lib.sh"
PROMPT=256 TOKENS=64 TEXTS=4

cores="taskset -c 0-$((threads - 1))"
home=${RACE_RUN:-$work/run} weights=

model() { # weights that a step has made: what they are says nothing of the speed
    gpt_job texts 12 12 768 1024 50257 1 1 >"$work/job.conf"
    head -c $PROMPT build/data/english.txt >"$work/prompt"
    head -c 1 build/data/english.txt >"$work/letter"
    [ -z "${RACE_RUN:-}" ] || return 0
    "$KEEL" run "$work/job.conf" --ranks 1 --out "$work/run" --sample 0 --set snapshot.every=1 --set job.shards=1 \
        --set data.vocab=byte >"$work/log" 2>&1 || { tail -3 "$work/log" >&2; return 1; }
}
# processor PID: seconds that it has spent
processor() { awk '{ print ($14 + $15) / 100 }' "/proc/$1/stat"; }
# sample TOKENS PROMPT-FILE: seconds of processor
sample() { spent $cores "$KEEL" sample "$home" $weights --prompt-file "$2" --tokens "$1" --temperature 0 --json 4>&1 >"$work/json" 2>"$work/err"; }
# keel_one: "race seconds-of-a-token seconds-of-the-prompt"
keel_one() {
    all=$(sample $TOKENS "$work/prompt") || return 1
    if [ "$threads" -gt 1 ]; then
        sed -n 's/.*"first_token_s":\([0-9.]*\),"tokens_per_s":\([0-9.]*\).*/\1 \2/p' "$work/json" | awk '{ printf "race %f %f\n", 1 / $2, $1 }'
        return
    fi
    first=$(sample 1 "$work/prompt") && begin=$(sample 1 "$work/letter") || return 1
    echo "$all $first $begin" | awk -v n=$TOKENS '{ printf "race %f %f\n", ($1 - $2) / (n - 1), $2 - $3 }'
}
few() { weights="--weights $1"; keel_one; } # TYPE
# keel_four: "race seconds-of-a-step 0", of those that have no prompt
keel_four() {
    $cores "$KEEL" serve "$home" --port 0 --slots $TEXTS --json >"$work/served" 2>"$work/err" &
    server=$!
    until port=$(sed -n 's/.* at http:[^ ]*:\([0-9]*\), .*/\1/p' "$work/err") && [ -n "$port" ]; do kill -0 $server || return 1; sleep 0.2; done
    before=$(processor $server)
    asked=
    for text in $(seq $TEXTS); do
        curl -s "http://127.0.0.1:$port/v1/completions" -d "{\"max_tokens\":$TOKENS,\"temperature\":0,\"seed\":$text}" >"$work/text.$text" &
        asked="$asked $!"
    done
    wait $asked
    spent_s=$(echo "$(processor $server) $before" | awk '{ print $1 - $2 }')
    kill -TERM $server
    wait $server
    sed -n 's/.*"steps":\([0-9]*\),"busy_s":\([0-9.]*\).*/\1 \2/p' "$work/served" |
        awk -v spent="$spent_s" -v threads="$threads" '{ printf "race %f 0\n", (threads > 1 ? $2 : spent) / $1 }'
}

GGML=${GGML_PYTHON:-python3}
# ggml TYPE NAME
ggml() { [ $ggml = none ] || run ggml "$2" $cores "$GGML" "$racers/ggml_generate.py" "$1" $PROMPT $TOKENS "$threads"; }

peer=none ggml=none
has_torch && peer=torch
if "$GGML" -c 'import ctransformers' 2>/dev/null; then ggml=ggml; else left_out GGML "$GGML has no ctransformers (GGML_PYTHON names another)"; fi
model || exit 1
for _ in $(seq "$rounds"); do
    run keel one keel_one
    [ $peer = none ] || run torch one $cores "$PYTHON" "$racers/torch_generate.py" 1 $PROMPT $TOKENS "$threads"
    ggml f32 one
    for type in int8 int4; do run keel $type few $type; done
    ggml q8_0 int8
    ggml q4_0 int4
    run keel four keel_four
    [ $peer = none ] || run torch four $cores "$PYTHON" "$racers/torch_generate.py" $TEXTS 1 $TOKENS "$threads"
done
theirs() { [ $peer = none ] && echo 0 || rate "$@"; } # AMOUNT FILE [COLUMN]
line "text of gpt2-124m, one, $threads threads" "$(rate 1 "$work/keel.one")" tokens/s $peer "$(theirs 1 "$work/torch.one")" 1 more
line "prompt of gpt2-124m, $PROMPT tokens, $threads threads" "$(rate $PROMPT "$work/keel.one" 2)" tokens/s $peer "$(theirs $PROMPT "$work/torch.one" 2)" 1 more
line "text of gpt2-124m, $TEXTS at once, $threads threads" "$(rate $TEXTS "$work/keel.four")" tokens/s $peer "$(theirs $TEXTS "$work/torch.four")" 1 more
for type in one int8 int4; do
    [ -s "$work/ggml.$type" ] || continue
    line "text of gpt2-124m, $type, $threads threads, beside GGML" "$(rate 1 "$work/keel.$type")" tokens/s ggml "$(rate 1 "$work/ggml.$type")" 1 more
    line "prompt of gpt2-124m, $PROMPT tokens, $type, $threads threads, beside GGML" "$(rate $PROMPT "$work/keel.$type" 2)" tokens/s ggml "$(rate $PROMPT "$work/ggml.$type" 2)" 1 more
done
for type in int8 int4; do
    line "text of gpt2-124m, one, $type, $threads threads" "$(rate 1 "$work/keel.$type")" tokens/s float32 "$(rate 1 "$work/keel.one")" 1 more
    line "prompt of gpt2-124m, $PROMPT tokens, $type, $threads threads" "$(rate $PROMPT "$work/keel.$type" 2)" tokens/s float32 "$(rate $PROMPT "$work/keel.one" 2)" 1 more
done
all_raced
