#!/bin/sh
# A text in tokens of a byte-level BPE: encoded once into the run's directory, trained on through a kill with the same
# bits, sampled as text; tokenizers and texts that do not fit are refused. Where KEEL_PYTHON names a Python that has
# Hugging Face's tokenizers, whole files have its ids: English, code and Unicode, 5 MB.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/script.sh"
case $KEEL in /*) ;; *) KEEL=$PWD/$KEEL ;; esac
golden=$here/../golden/bpe
bible=$root/bible.txt
head -c 200000 build/data/english.txt >"$bible"

train() { # DIR ARGUMENTS...
    out=$root/$1
    shift
    timeout 600 "$KEEL" run "$here/../../runtime/jobs/bpe-demo.conf" --out "$out" --set cluster.device=host \
        --set cluster.timeout_s=2 --set "data.path=$bible" --set "data.vocab=bpe:$golden/tokenizer.json" \
        --set model.width=32 --set model.layers=2 --set train.steps=12 --set train.decay_steps=12 --set train.batch=2 \
        --set train.eval_every=4 --set train.eval_batches=3 --set snapshot.every=4 --set train.sample=40 "$@" >"$out.log" 2>&1
    code=$?
}

train one --ranks 1
check "a text is encoded and trained on" [ "$code" -eq 0 -a "$(steps "$out" | wc -l)" -eq 12 ]
check "with the tokenizer's vocabulary" grep -q '^data: .*, 420 different tokens$' "$out.log"
check "its tokens are fewer than its bytes, of 16 bits each" [ "$(cat "$out"/tokens-*.bin | wc -c)" -lt 300000 ]
check "what is sampled is text" grep -q '[a-zA-Z]\{3\}' "$out/sample.txt"
check "of more letters than tokens" [ "$(wc -c <"$out/sample.txt")" -gt 50 ]
ls -i "$out"/tokens-*.bin >"$root/files"
train one --ranks 1
check "a run that is over encodes nothing again" [ "$code" -eq 0 -a "$(ls -i "$out"/tokens-*.bin)" = "$(cat "$root/files")" ]
train one --ranks 2 --set train.steps=14
check "nor does one that goes on" [ "$code" -eq 0 -a "$(ls -i "$out"/tokens-*.bin)" = "$(cat "$root/files")" ]
train killed --ranks 3 --drill kill:rank=1,step=6,at=reduce
steps "$root/one" | head -n 12 >"$root/first"
steps "$out" >"$root/second"
check "a killed rank changes no bit" cmp -s "$root/first" "$root/second"
check "which was killed" grep -q '"event":"recovery"' "$out/events.jsonl"
mkdir "$root/moved" && cp "$golden/tokenizer.json" "$root/moved/other-name.json"
train killed --ranks 1 --set train.steps=13 --set "data.vocab=bpe:$root/moved/other-name.json"
check "a tokenizer may move" [ "$code" -eq 0 ]
train killed --ranks 1 --set train.steps=15 --set "data.vocab=bpe:$golden/vocab.json,$golden/merges.txt"
check "but not become another" [ "$code" -eq 4 ]
check "which is said" grep -q 'the contents of data.path differ' "$out.log"
train file --ranks 1 --set "data.path=$(ls "$root"/one/tokens-*.bin)"
check "token files are decoded by a tokenizer" [ "$code" -eq 0 -a -s "$out/sample.txt" ]
steps "$out" | cmp -s - "$root/first"
check "and have the bits of the text" '[ $was -eq 0 ]'
head -c 20000 "$bible" >"$root/val.txt"
train apart --ranks 1 --set "data.val_path=$root/val.txt"
check "a shorter text to validate with is encoded, too" [ "$code" -eq 0 -a "$(ls "$out"/tokens-*.bin | wc -l)" -eq 2 ]
check "and each evaluation has a loss" [ "$(grep -c '"val_loss"' "$out/metrics.jsonl")" -eq 3 ]

# ---- what does not fit ----
refused() { # NAME CODE WORDS ARGUMENTS...
    name=$1 wanted=$2 words=$3
    shift 3
    train bad "$@"
    check "$name" [ "$code" -eq "$wanted" ]
    check "$name, and says so" grep -qF -- "$words" "$out.log"
}
refused "a model of another vocabulary" 2 "golden/bpe/tokenizer.json has 420 tokens: it is not that of the model" --set model.vocab=50257
refused "a smaller one" 2 "model.vocab = 400, but the tokenizer" --set model.vocab=400
train padded --ranks 1 --set model.vocab=448 --set train.steps=2
check "a padded one is right" [ "$code" -eq 0 ]
refused "a tokenizer that is not there" 3 "$root/none.json" --set "data.vocab=bpe:$root/none.json"
refused "a text that is not there" 3 "data.path = $root/none.txt" --set "data.path=$root/none.txt"
refused "a vocabulary that there is not" 2 "data.vocab = words: one of char, byte, bpe:tokenizer.json" --set data.vocab=words
head -c 100 "$golden/tokenizer.json" >"$root/cut.json"
refused "a tokenizer that is cut" 4 "cut.json:7: is no JSON" --set "data.vocab=bpe:$root/cut.json"
{ head -c 150000 "$bible"; printf '\377'; cat "$bible"; } >"$root/latin.txt"
refused "a text that is no UTF-8" 2 "latin.txt: is no UTF-8 at byte 150000" --set "data.path=$root/latin.txt"
check "nothing half of it stays" [ -z "$(ls "$root/bad" | grep tmp)" ]
timeout 60 "$KEEL" plan "$here/../../runtime/jobs/bpe-demo.conf" --set "data.path=$bible" --set "data.vocab=bpe:$golden/tokenizer.json" >"$root/log" 2>&1
code=$?
check "a plan names the file that it wants" grep -q 'which keel run encodes into DIR/tokens-' "$root/log"
timeout 60 "$KEEL" plan "$here/../../runtime/jobs/bpe-demo.conf" --set "data.path=$(ls "$root"/one/tokens-*.bin)" --set "data.vocab=bpe:$golden/tokenizer.json" >"$root/log" 2>&1
check "and makes one of it" [ $? -eq 0 ]
timeout 60 "$KEEL" run "$here/../../runtime/jobs/demo.conf" --set "data.path=$bible" --set model.vocab=50257 --set train.steps=1 --set train.eval_every=0 \
    --set cluster.device=host --set model.width=8 --set snapshot.every=0 --out "$root/bytes" --ranks 1 >"$root/log" 2>&1
check "GPT-2's vocabulary on bytes is warned of" grep -q 'model.vocab = 50257, but the data have' "$root/log"

# ---- whole files against the library ----
cat >"$root/compare.py" <<'END'
import array, glob, random, subprocess, sys
from tokenizers import ByteLevelBPETokenizer, Tokenizer
root, keel, job, sources = sys.argv[1:5]
r = random.Random(5)
blocks = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x600, 0x6ff), (0x900, 0x97f),
          (0xe00, 0xe7f), (0x1100, 0x11ff), (0x2000, 0x206f), (0x2070, 0x23ff), (0x3000, 0x30ff), (0x4e00, 0x9fff),
          (0xac00, 0xd7a3), (0xfe00, 0xffef), (0x10000, 0x1f9ff), (0x20000, 0x2a6df), (0xe0000, 0xe01ef)]
ends = [" ", "  ", "\n", "\t ", "\u3000", "'s ", "'LL", "'ve", "...", "   \n\n ", "1234 ", "\u00bd", "\r\n", "", "<|endoftext|>", "<|endof"]
words = ["".join(chr(r.randint(*r.choice(blocks))) for _ in range(r.randint(1, 9))) + r.choice(ends) for _ in range(110000)]
texts = {"english": open("build/data/english.txt", encoding="latin1").read()[:2500000],
         "code": "".join(open(f, encoding="utf8").read() for f in sorted(glob.glob(sources + "/*/*.c"))),
         "unicode": "".join(words) + " " * 5000 + "a" * 20000 + "\n" * 3000 + " \t" * 3000}
for name, text in texts.items():
    open(root + "/" + name + ".txt", "w", encoding="utf8", newline="").write(text)
made = ByteLevelBPETokenizer()
made.train([root + "/" + n + ".txt" for n in texts], vocab_size=5000, special_tokens=["<|endoftext|>"], show_progress=False)
made.save_model(root)
made.save(root + "/tokenizer.json")
pair = root + "/vocab.json," + root + "/merges.txt"
for name, text in texts.items():
    for files, tokenizer in ((root + "/tokenizer.json", Tokenizer.from_file(root + "/tokenizer.json")),
                             (pair, ByteLevelBPETokenizer.from_file(*pair.split(",")))):
        out = root + "/whole-" + name + "-" + str(len(files))
        subprocess.run([keel, "run", job, "--prepare", "--out", out, "--set", "data.path=" + root + "/" + name + ".txt",
                        "--set", "data.vocab=bpe:" + files], check=True, stdout=subprocess.DEVNULL)
        ids = array.array("H", open(glob.glob(out + "/tokens-*.bin")[0], "rb").read())
        if sys.byteorder == "big": ids.byteswap()
        if list(ids) != tokenizer.encode(text, add_special_tokens=False).ids:
            sys.exit("%s by %s has other ids" % (name, files))
        print(name, len(text.encode()), len(ids))
END
if [ -n "${KEEL_PYTHON:-}" ] && "$KEEL_PYTHON" -c 'import tokenizers' 2>/dev/null; then
    check "megabytes have the ids of Hugging Face's tokenizers" "$KEEL_PYTHON" "$root/compare.py" "$root" "$KEEL" "$here/../../runtime/jobs/bpe-demo.conf" "$here/../../runtime"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
