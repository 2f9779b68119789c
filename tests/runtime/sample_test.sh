#!/bin/sh
# keel sample: with a run's settings the text is the run's own, whatever plan has trained it and whichever device writes;
# prompts by each kind of token; what cannot be is refused by name.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
jobs=$here/../../runtime/jobs
golden=$here/../golden/bpe

train() { # KIND DIR ARGUMENTS...: they win over what is set here
    kind=$1 out=$root/$2
    shift 2
    [ "$kind" != moe-demo ] || set -- --set model.experts=4 "$@"
    for setting in model.width=16 model.heads=2 model.layers=2 model.block=16 train.batch=4 train.steps=4 train.decay_steps=4 \
        train.warmup_steps=2 train.eval_every=0 snapshot.every=2 job.shards=4 cluster.device=host cluster.timeout_s=2; do
        set -- --set "$setting" "$@"
    done
    timeout 600 "$KEEL" run "$jobs/$kind.conf" --out "$out" --sample 60 "$@" >"$out.log" 2>&1
}
sample() { timeout 300 "$KEEL" sample "$@" >"$root/log" 2>"$root/errors"; }
explain() { tail -c 300 "$root/log"; tail -n 3 "$root/errors" "$out.log"; }
agrees() { # CLAIM ARGUMENTS...: the text of the last run
    claim=$1
    shift
    sample "$out" --tokens 60 "$@"
    check "$claim: its own text" cmp -s "$root/log" "$out/sample.txt"
}

train demo one --ranks 1
agrees "a run of one rank"
check "which has that length" [ "$(wc -c <"$out/sample.txt")" -eq 60 ]
check "the rate is told" grep -q 'keel sample: step 4, 60 tokens, the first after [0-9.]* s, then [0-9.]* tokens/s' "$root/errors"
agrees "another device" --device pocl:0
agrees "by its seed" --seed 1337 --temperature 0.8 --top-p 1
train demo tensor --ranks 2 --set job.tensor=2 --set parallel.tensor=2
agrees "ranks that share slices"
train demo slices --ranks 1 --set job.tensor=8 --set model.heads=8 --set model.block=4
agrees "slices that are more than a block has tokens"
train demo owners --ranks 3 --set parallel.zero=3
agrees "owners of weights"
train moe-demo moe --ranks 1
agrees "a mixture of experts, whose places are a batch's"
train llama-demo llama --ranks 2
agrees "a llama"
agrees "whose keys and values are not kept" --no-cache
head -c 30000 "$PWD/build/data/english.txt" >"$root/bible.txt"
train bpe-demo bpe --ranks 1 --set "data.path=$root/bible.txt" --set "data.vocab=bpe:$golden/tokenizer.json"
agrees "tokens of a tokenizer"
rm "$out"/tokens-*.bin
agrees "which wants no training data"
template mymodel
make -s -C "$template" "KEEL_CFLAGS=$include"
out=$root/plugin
(cd "$root/mymodel" && timeout 600 "$KEEL" run mymodel.conf --out "$out" --ranks 1 --sample 60 --set "data.path=$text" --set cluster.device=host \
    --set model.width=16 --set model.blocks=1 --set model.heads=2 --set model.block=16 --set train.steps=4 --set train.decay_steps=4 \
    --set train.batch=2 --set train.eval_every=0 --set snapshot.every=2 >"$out.log" 2>&1)
agrees "a plug-in"

# ---- keys and values that are kept ----
cached() { # CLAIM DIR ARGUMENTS...: nothing of the text depends on them
    claim=$1
    shift
    sample "$@" && cp "$root/log" "$root/kept"
    sample "$@" --no-cache
    check "$claim" '[ $was -eq 0 ] && cmp -s "$root/log" "$root/kept"'
}
cached "a short text" "$root/one" --tokens 12
cached "which ends where the block does" "$root/one" --tokens 16
cached "or one behind" "$root/one" --tokens 17 --prompt a
cached "or further on" "$root/one" --tokens 60 --device pocl:0
cached "of a long prompt" "$root/one" --tokens 9 --prompt "in the beginning" --temperature 0
cached "of a plug-in" "$root/plugin" --tokens 9 --prompt "in the begin"
train demo wide --ranks 1 --set model.width=48 --set model.heads=3 --set model.block=40 --set model.tied=false --set model.bias=false \
    --set model.vocab=90 --set train.storage=bf16 --set model.dropout=0.1
out=$root/wide
cached "of other sizes" "$root/wide" --tokens 40 --device pocl:0 --seed 3
cached "of a prompt in blocks" "$root/wide" --tokens 5 --prompt "in the beginning was the word and th" --device pocl:0 --seed 3
cached "with candidates" "$root/wide" --tokens 38 --prompt "and " --top-k 9 --top-p 0.7 --seed 4
keeps() { sample "$1" --tokens 2 --json && grep -q "\"cache\":$2" "$root/log"; }
check "a model with learned positions keeps them" keeps "$root/wide" true
train llama-demo shared --ranks 1 --set model.heads=6 --set model.kv_heads=2 --set model.width=60 --set model.block=24 --set train.storage=bf16
out=$root/shared
cached "a llama whose heads share keys" "$root/shared" --tokens 24 --device pocl:0
cached "further on" "$root/shared" --tokens 40 --prompt "in the " --seed 3
check "which it keeps" keeps "$root/shared" true
cached "experts that have places for all" "$root/moe" --tokens 7 --prompt "in the beg" --device pocl:0 --seed 5
check "which are kept" keeps "$root/moe" true
train moe-demo tight --ranks 1 --set model.capacity=0.5
out=$root/tight
cached "experts that drop tokens" "$root/tight" --tokens 16 --seed 5
check "whose tokens see one another" keeps "$root/tight" false
check "nor do slices keep any" keeps "$root/tensor" false
check "nor does who is asked not to" sh -c "'$KEEL' sample '$root/wide' --tokens 2 --no-cache --json 2>/dev/null | grep -q '\"cache\":false'"

# ---- settings ----
out=$root/one
sample "$out" --tokens 50 --seed 2 && cp "$root/log" "$root/second"
half=$(cut -c 20-22 "$root/second" | head -n 1)
awk -v stop="$half" '{ text = text (NR > 1 ? "\n" : "") $0 } END { printf "%s", substr(text, 1, index(text, stop) - 1) }' "$root/second" >"$root/until"
sample "$out" --tokens 50 --seed 2 --stop "no such text" --stop "$half"
check "a text ends before what it is to stop at" '[ -n "$half" ] && cmp -s "$root/log" "$root/until"'
sample "$out" --tokens 50 --seed 2 --stop "$half" --json
check "and says why" grep -q '"finish_reason":"stop"' "$root/log"
check "another seed writes another text" '! cmp -s "$root/second" "$out/sample.txt"'
sample "$out" --tokens 50 --temperature 0 && cp "$root/log" "$root/greedy"
sample "$out" --tokens 50 --temperature 0 --seed 2
check "at temperature 0 the seed says nothing" cmp -s "$root/log" "$root/greedy"
sample "$out" --tokens 50 --top-k 1 --seed 5
check "and one candidate is the likeliest" cmp -s "$root/log" "$root/greedy"
sample "$out" --tokens 50 --top-p 1e-6 --seed 6
check "so are the fewest" cmp -s "$root/log" "$root/greedy"
sample "$out" --tokens 50 --top-k 1000 --seed 2
check "more candidates than tokens are all" cmp -s "$root/log" "$root/second"
sample "$out" --step 2 --tokens 50 --seed 2
check "another step writes another text" '! cmp -s "$root/log" "$root/second"'
sample "$out" --prompt "In the be" --tokens 20 --temperature 0 --json
check "JSON has text and tokens" grep -q '"step":4,"seed":1337,"prompt_tokens":9,"text":".*","tokens":\[\([0-9]*,\)\{19\}[0-9]*\],' "$root/log"
printf 'In the be' | sample "$out" --prompt-file - --tokens 20 --temperature 0
cp "$root/log" "$root/piped"
printf 'In the be' >"$root/prompt"
sample "$out" --prompt-file "$root/prompt" --tokens 20 --temperature 0
check "a prompt by file or pipe" cmp -s "$root/log" "$root/piped"
train demo bytes --ranks 1 --set data.vocab=byte
LC_ALL=C awk 'BEGIN { printf "caf\303\251 \360\237\231\202" }' >"$root/prompt"
sample "$out" --prompt-file "$root/prompt" --tokens 300 --json
check "a prompt of any bytes" grep -q '"prompt_tokens":10,' "$root/log"
sample "$out" --tokens 400 --temperature 3 && cp "$root/log" "$root/raw"
sample "$out" --tokens 400 --temperature 3 --json
sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/' "$root/log" | tr ',' '\n' | LC_ALL=C awk '{ printf "%c", $1 }' >"$root/bytes.txt"
check "and text of any bytes, all of them" cmp -s "$root/raw" "$root/bytes.txt"
check "as JSON has them" python3 - "$root/log" "$root/raw" <<'END'
import json, re, sys
text, raw = json.load(open(sys.argv[1]))["text"], open(sys.argv[2], "rb").read()
assert b"\0" in raw
assert re.sub("\ufffd+", "?", text) == re.sub("[\0\ufffd]+", "?", raw.decode(errors="replace"))
END
printf '\1\0\2\0\3\0\4\0\5\0' >"$root/five"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do cat "$root/five"; done >"$root/tokens.bin"
train demo numbers --ranks 1 --set "data.path=$root/tokens.bin" --set data.val_fraction=0
agrees "numbers of token files"
sample "$out" --prompt "1 2, 3" --tokens 7
check "are prompts too" [ "$(wc -w <"$root/log")" -eq 7 ]

# ---- what cannot be ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    sample "$@" </dev/null
    code=$?
    check "$name" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$root/errors"
    check "$name: nothing is written" [ ! -s "$root/log" ]
    code=
}
refused "a temperature below 0" 2 "a temperature of -0.5: 0, for the likeliest token, to 1000 are allowed" "$root/one" --temperature -0.5
refused "one that is no number" 2 "--temperature warm: a number is wanted" "$root/one" --temperature warm
refused "no candidates" 2 "--top-k needs K, a whole number, 1 at least: draw" "$root/one" --top-k 0
refused "candidates of no probability" 2 "a top p of 0: above 0, to 1" "$root/one" --top-p 0
refused "of more than all" 2 "a top p of 1.5: above 0, to 1" "$root/one" --top-p 1.5
refused "an empty text to stop at" 2 "--stop: a text to stop at of 0 bytes: 1 to 1024 are allowed" "$root/one" --stop ""
refused "five of them" 2 "--stop: 5 texts to stop at: at most 4" "$root/one" --stop a --stop b --stop c --stop d --stop e
refused "no tokens" 2 "--tokens needs N" "$root/one" --tokens 0
refused "too many" 2 "--tokens 16777217: at most 16777216" "$root/one" --tokens 16777217
refused "a seed below 0" 2 "--seed -1: a whole number below 2^64 is wanted" "$root/one" --seed -1
refused "a seed of 65 bits" 2 "--seed 18446744073709551616: a whole number" "$root/one" --seed 18446744073709551616
refused "two prompts" 2 "--prompt and --prompt-file" "$root/one" --prompt a --prompt-file b
refused "a prompt that is not there" 3 "$root/none" "$root/one" --prompt-file "$root/none"
refused "a letter that no training text had" 2 "the prompt: byte 3 of the text (195) is none of the job's vocabulary" "$root/one" --prompt "caf$(printf '\303\251')"
refused "a prompt longer than the block" 2 "the prompt has 17 tokens, and the model sees 16 at once (model.block)" "$root/one" --prompt aaaaaaaaaaaaaaaaa
refused "a token beyond the vocabulary" 2 "the prompt: word 2, at byte 2, is no number of a token: they are below 6" "$root/numbers" --prompt "5 6 1"
refused "a prompt that is no UTF-8" 2 "the prompt: the text is no UTF-8 at byte 1" "$root/bpe" --prompt "$(printf 'a\377')"
train bert-demo bert --ranks 1 --set train.sample=0
refused "a model that predicts no next token" 2 "its model predicts no next token" "$root/bert"
refused "another model" 4 "the snapshot holds no tensor h.2." "$root/bytes" --set model.layers=3
refused "a step that is no number" 2 "--step 4x: a whole number is wanted" "$root/one" --step 4x
refused "the largest number of a step, which is one too" 3 "no committed snapshot of step 18446744073709551615" "$root/one" --step 18446744073709551615
refused "a snapshot that is not there" 3 "keel ckpt ls $root/one says which there are" "$root/one" --step 3

if [ -c /dev/full ]; then
    "$KEEL" sample "$root/one" --tokens 9 >/dev/full 2>"$root/errors"
    code=$?
    check "a disk that is full, told once" '[ $code -eq 1 ] && [ "$(grep -c "^keel sample:.*cannot be written" "$root/errors")" -eq 1 ] && [ "$(wc -l <"$root/errors")" -eq 1 ]'
    code=
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
