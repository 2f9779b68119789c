#!/bin/sh
# Token files in whole runs: nanoGPT's and llm.c's have the bits of the text that they were made from, also when a rank
# is killed; a file that is cut meanwhile is told by its name, and the run goes on when it is put back.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
bible=$root/bible.txt
head -c 300000 build/data/english.txt >"$bible"

# What nanoGPT's prepare.py writes of a text of characters, and the same as llm.c would, in two parts.
cat >"$root/prepare.py" <<'END'
import array, struct, sys
text, out = open(sys.argv[1], "rb").read(), sys.argv[2]
number = {c: i for i, c in enumerate(sorted(set(text)))}
def save(name, head, kind, tokens):
    numbers = array.array(kind, tokens)
    if sys.byteorder == "big": numbers.byteswap()
    open(out + "/" + name, "wb").write(head + numbers.tobytes())
kept = int(len(text) * 0.1)
train, val = text[:len(text) - kept], text[len(text) - kept:]
ids = lambda part: [number[c] for c in part]
save("train.bin", b"", "H", ids(train))
save("val.bin", b"", "H", ids(val))
def header(count): return struct.pack("<256i", 20240520, 1, count, *([0] * 253))
save("llmc_train_1.bin", header(len(train)), "H", ids(train))
save("llmc_val_1.bin", header(len(val)), "H", ids(val))
END
mkdir "$root/data" && python3 "$root/prepare.py" "$bible" "$root/data" || exit 1

train() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/nanogpt-char.conf" --out "$out" --set cluster.device=host \
        --set cluster.timeout_s=2 --set model.width=32 --set model.layers=2 --set train.steps=12 --set train.decay_steps=12 \
        --set train.eval_every=4 --set train.eval_batches=3 --set snapshot.every=4 "$@" >"$out.log" 2>&1
    code=$?
}
tokens() { # DIR ARGUMENTS...: of nanoGPT's files
    dir=$1
    shift
    train "$dir" --set "data.path=$root/data/train.bin" --set "data.val_path=$root/data/val.bin" "$@"
}
validated() { sed -n 's/.*"step":\([0-9]*\),.*"val_loss":\([^,}]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

train letters --set "data.path=$bible" --set data.val_path= --ranks 1
check "a run on the text" [ "$code" -eq 0 ]
tokens nanogpt --ranks 1 --sample 5
check "nanoGPT's files have its bits" same_bits "$root/letters" "$root/nanogpt"
check "and are validated as it is" [ -n "$(validated "$out")" -a "$(validated "$out")" = "$(validated "$root/letters")" ]
check "tokens without a tokenizer are sampled as numbers" grep -qx '\([0-9]* \)\{5\}' "$out/sample.txt"
check "the text's vocabulary is theirs" [ "$(sed -n 's/^data: .*, \([0-9]* different tokens\)/\1/p' "$out.log")" = "$(sed -n 's/^data: .*, \([0-9]* different tokens\)/\1/p' "$root/letters.log")" ]
cd "$root/data" || exit 1
train llmc --ranks 1 --set 'data.path=llmc_train_*.bin' --set 'data.val_path=llmc_val_*.bin'
check "so have llm.c's, named by a pattern" same_bits "$root/letters" "$root/llmc"
check "a run tells how it understood each" sh -c "grep -q '^data: 2 token files with llm.c.s header' '$root/llmc.log' && grep -q '^data: 2 token files of raw numbers of 16 bits' '$root/nanogpt.log'"
cd "$root" || exit 1
train llmc --ranks 2 --set "data.path=$root/data/llmc_train_*.bin" --set "data.val_path=$root/data/llmc_val_*.bin" --set train.steps=14
check "which is found from another folder too" [ "$(steps "$root/llmc" | wc -l)" -eq 14 ]
tokens killed --ranks 3 --drill kill:rank=1,step=6,at=reduce
check "a killed rank changes none of them" same_bits "$root/letters" "$root/killed"
check "which was killed" grep -q '"event":"recovery"' "$root/killed/events.jsonl"

tokens beyond --set model.vocab=20
check "a token beyond the vocabulary is refused with its place" grep -q 'train.bin: token [0-9]* at byte [0-9]* (number [0-9]*) is beyond the vocabulary of 20' "$out.log"
check "as wrong use" [ "$code" -eq 2 ]
tokens beside --set data.val_fraction=0.2
check "two ways to validate are one too many" grep -q 'data.val_fraction = 0.2 says nothing beside data.val_path' "$out.log"
train images --set model.kind=resnet --set model.bias=true --set "data.path=$root/data" --set data.val_path=x
check "images of one file have no file of their own to validate with" grep -q 'data.val_path says nothing where data.format = auto: give data.format = folders' "$out.log"

# ---- a file that is cut during the run ----
cp "$root/data/train.bin" "$root/whole.bin"
(tokens cut --ranks 2 --set train.steps=100000 --set snapshot.every=10 --drill slow:rank=1,step=30,ms=100,steps=100000; exit $code) &
run=$!
while kill -0 $run 2>/dev/null && ! grep -q '"step":20,' "$root/cut/metrics.jsonl" 2>/dev/null; do sleep 0.1; done
head -c 100000 "$root/whole.bin" >"$root/data/train.bin" # empty for a moment
wait $run
code=$?
check "a run whose file is cut ends as damaged data do" [ "$code" -eq 4 ]
check "and names the file" grep -q 'data/train.bin: was written to, cut or replaced while it is read ([0-9]* bytes at first, [0-9]* now)' "$root/cut.log"
before=$(steps "$root/cut" | wc -l)
tokens cut --ranks 2 --set train.steps=$((before + 5)) --set train.decay_steps=12
check "another text does not go on with it" [ "$code" -eq 4 ]
cp "$root/whole.bin" "$root/data/train.bin"
tokens cut --ranks 2 --set train.steps=$((before + 5))
check "the one that it began with does" [ "$code" -eq 0 -a "$(steps "$root/cut" | wc -l)" -eq $((before + 5)) ]

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
